"""com.microsoft's mixtures of experts beside onnxruntime."""

from typing import Any

import numpy as np
import pytest

from app.models.onnx.errors import NotSupported
from tests.models.onnx_nodes import OneNode, floats
from tests.models.onnx_runs import Array

RANDOM = np.random.default_rng(6)
EXPERTS, WIDTH, INNER = 4, 8, 6
DEPTH = 32
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


def together(numbers: Array) -> Array:
    """Two in a byte."""
    made: Array = (numbers[..., ::2] + 16 * numbers[..., 1::2]).astype(np.uint8)
    return made


def packed(rows: int, depth: int, bits: int, block: int) -> list[Array]:
    """Weights, scales and zero points."""
    numbers = RANDOM.integers(0, 1 << bits, (EXPERTS, rows, depth)).astype(np.uint8)
    count = depth // block if block else 1
    scales = RANDOM.random((EXPERTS, rows, count), np.float32)
    zeros = RANDOM.integers(0, 1 << bits, (EXPERTS, rows, count)).astype(np.uint8)
    if bits == 4:
        numbers, zeros = together(numbers), together(zeros.repeat(1 + count % 2, 2))
    return [numbers, scales, zeros] if block else [numbers, scales[..., 0], zeros[..., 0]]


def packed_mixture(
    attributes: dict[str, Any], has_bias: bool, has_zeros: bool, weights: Array | None = None, **stated: Any
) -> OneNode:
    """Of which the node has some attributes as they are `stated`."""
    bits, block = attributes["expert_weight_bits"], attributes.get("block_size", 0)
    inner = DEPTH * (2 if attributes.get("activation_type") == "swiglu" else 1)
    first, second = packed(inner, DEPTH, bits, block), packed(DEPTH, DEPTH, bits, block)
    inputs: list[Array | None] = [floats(3, DEPTH), floats(3, EXPERTS)]
    for layer in (first, second):
        inputs += [*layer[:2], floats(EXPERTS, layer[0].shape[1]) if has_bias else None]
    inputs += [None, None, None, *((first[2], second[2]) if has_zeros else (None, None)), None, weights]
    while inputs[-1] is None:
        inputs.pop()
    known = [index for index, each in enumerate(inputs) if 1 < index < 14 and each is not None]
    return OneNode("QMoE", inputs, known, domain="com.microsoft", **attributes | stated)


def alike(node: OneNode) -> None:
    """As onnxruntime has it, but for what sums of large numbers lose."""
    (wanted,) = node.expected()
    (made,) = node.made([wanted])
    np.testing.assert_allclose(made, wanted, 0, 1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("attributes", "has_bias", "has_zeros"),
    [
        ({"k": 2, "activation_type": "silu", "expert_weight_bits": 4}, True, False),
        (GATED | {"k": 2, "expert_weight_bits": 4, "block_size": 16}, True, True),
        (GATED | {"k": 1, "expert_weight_bits": 4, "block_size": 32}, False, True),
        (GATED | {"k": 2, "expert_weight_bits": 8}, True, True),
        (NORMALIZED | {"activation_type": "relu", "expert_weight_bits": 8}, False, False),
    ],
)
def test_packed_mixtures_are_those_of_onnxruntime(attributes: dict[str, Any], has_bias: bool, has_zeros: bool) -> None:
    alike(packed_mixture(attributes, has_bias, has_zeros))


@pytest.mark.parametrize(("name", "index"), [("fc1", 2), ("fc2", 5)])
def test_packed_mixtures_whose_layers_are_of_other_bits(name: str, index: int) -> None:
    """Which onnxruntime has on GPUs only: 4 bits, of which 8 is 0, are the same numbers as bytes, of which 128 is."""
    numbers = RANDOM.integers(0, 16, (EXPERTS, DEPTH, DEPTH)).astype(np.uint8)
    inputs = [floats(3, DEPTH), floats(3, EXPERTS)]
    for _ in range(2):
        inputs += [*packed(DEPTH, DEPTH, 8, 0)[:2], floats(EXPERTS, DEPTH)]
    inputs[index] = numbers + np.uint8(120)
    attributes = {"k": 2, "expert_weight_bits": 8}
    (wanted,) = OneNode("QMoE", inputs, range(2, 8), domain="com.microsoft", **attributes).expected()
    inputs[index] = together(numbers)
    attributes[f"{name}_expert_weight_bits"] = 4
    (made,) = OneNode("QMoE", inputs, range(2, 8), domain="com.microsoft", **attributes).made([wanted])
    np.testing.assert_allclose(made, wanted, 0, 1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("is_normalized", [0, 1])
def test_packed_mixtures_with_weights_of_their_own(is_normalized: int) -> None:
    """Some of which are below 0, which leaves these experts out."""
    weights = np.array([[1, -2, 3, 4], [0.5, 2, -1, 3], [0.25, 0.5, 1, 2]], np.float32)
    attributes = {"k": 2, "expert_weight_bits": 4, "normalize_routing_weights": is_normalized}
    alike(packed_mixture(attributes, has_bias=True, has_zeros=False, weights=weights))


def test_packed_mixtures_in_blocks_of_bytes() -> None:
    """Of which onnxruntime quantizes the rows as well: it comes within a percent."""
    node = packed_mixture({"k": 2, "expert_weight_bits": 8, "block_size": 16}, has_bias=True, has_zeros=True)
    (wanted,) = node.expected()
    (made,) = node.made([wanted])
    assert 0 < np.abs(made - wanted).max() < 0.03 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"expert_weight_bits": 0}, "its bits are 0, not 4 or 8"),
        ({"expert_weight_bits": 2}, "its bits are 2, not 4 or 8"),
        ({"expert_weight_bits": 8, "block_size": -1}, "it is invalid"),
        ({"expert_weight_bits": 4}, "it has zero points of 4 bits and no blocks"),
        ({"expert_weight_bits": 8, "block_size": 24}, "has 4096 bytes, not those of 128 x 1 blocks of 24"),
        ({"expert_weight_bits": 8, "weights_prepacked": 1}, "its weights lie as kernels of onnxruntime take them"),
        ({"expert_weight_bits": 8, "quant_type": "fp8"}, "its quant_type is fp8, which onnxruntime has on GPUs only"),
    ],
)
def test_what_is_refused_of_packed_mixtures(attributes: dict[str, Any], why: str) -> None:
    node = packed_mixture({"expert_weight_bits": 8}, has_bias=False, has_zeros=True, **attributes)
    refused(node, why, DEPTH)


def test_packed_weights_are_those_of_each_expert() -> None:
    node = packed_mixture({"expert_weight_bits": 8}, has_bias=False, has_zeros=True)
    refused(node.replaced(2, np.zeros((4, 8), np.uint8)), "its input 2 has sizes [4, 8], not those of a matrix", DEPTH)


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
        (GATED | {"swiglu_limit_after_activation": 1}, "it has swiglu_limit_after_activation"),
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


def refused(node: OneNode, why: str, width: int = WIDTH) -> None:
    with pytest.raises(NotSupported) as raised:
        node.made([np.zeros((5, width), np.float32)])
    assert why in raised.value.nodes[0].why
