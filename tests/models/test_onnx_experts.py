"""com.microsoft's mixtures of experts beside onnxruntime."""

from typing import Any

import numpy as np
import pytest

from app.models.onnx.errors import NotSupported
from tests.models.onnx_nodes import OneNode, floats
from tests.models.onnx_runs import Array

EXPERTS, WIDTH, INNER = 4, 8, 6
OF_ONE = {"k": 1, "activation_type": "silu"}
NORMALIZED = {"k": 2, "normalize_routing_weights": 1}
GATED = {"activation_type": "swiglu", "swiglu_fusion": 1}


def mixture(rows: Array, attributes: dict[str, Any], *more: Array, has_bias: bool = True) -> OneNode:
    inner = INNER * (2 if attributes.get("activation_type") == "swiglu" else 1)
    layers: list[Array | None] = [floats(EXPERTS, inner, WIDTH), floats(EXPERTS, inner) if has_bias else None]
    layers += [floats(EXPERTS, WIDTH, INNER), floats(EXPERTS, WIDTH) if has_bias else None]
    scores = floats(rows.size // WIDTH, EXPERTS)
    return OneNode("MoE", [rows, scores, *layers, *more], domain="com.microsoft", **attributes)


@pytest.mark.parametrize(
    ("attributes", "has_bias"),
    [
        ({}, True),
        (OF_ONE, False),
        *(({"activation_type": each} | NORMALIZED, True) for each in ("relu", "gelu", "silu", "identity")),
        ({"k": 2, "activation_type": "gelu"}, True),
        ({"k": EXPERTS, "activation_type": "silu"}, False),
        (GATED, True),
        (GATED | NORMALIZED, False),
        (GATED | NORMALIZED | {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.5}, True),
    ],
)
def test_mixtures_are_those_of_onnxruntime(attributes: dict[str, Any], has_bias: bool) -> None:
    mixture(floats(5, WIDTH), attributes, has_bias=has_bias).compare()
    mixture(floats(2, 3, WIDTH), attributes, has_bias=has_bias).compare()


def test_an_expert_that_is_not_chosen_adds_nothing() -> None:
    """Though its numbers are infinite, of which 0 times are none."""
    matrices = floats(EXPERTS, INNER, WIDTH)
    matrices[0] = np.inf
    scores = np.array([[-9, 1, 2, 3]], np.float32)
    layers = [matrices, None, floats(EXPERTS, WIDTH, INNER)]
    node = OneNode("MoE", [floats(1, WIDTH), scores, *layers], domain="com.microsoft", k=2)
    assert np.isfinite(node.expected()[0]).all()
    node.compare()


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"use_sparse_mixer": 1, "k": 2}, "it has use_sparse_mixer"),
        ({"activation_type": "tanh"}, "its activation_type is tanh"),
        (GATED | {"swiglu_fusion": 0}, "its swiglu_fusion is 0, of 12 columns"),
        (GATED | {"swiglu_fusion": 2}, "its swiglu_fusion is 2, of 12 columns"),
        ({"k": 5}, "its k is 5, of 4 elements"),
    ],
)
def test_what_is_refused_of_mixtures(attributes: dict[str, Any], why: str) -> None:
    refused(mixture(floats(5, WIDTH), attributes), why)


def test_mixtures_with_a_third_layer_are_refused() -> None:
    refused(mixture(floats(5, WIDTH), OF_ONE, floats(EXPERTS, INNER, WIDTH)), "it has fc3_experts_weights")


def refused(node: OneNode, why: str) -> None:
    with pytest.raises(NotSupported, match=why):
        node.made([np.zeros((5, WIDTH), np.float32)])
