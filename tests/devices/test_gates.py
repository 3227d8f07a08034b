"""Sigmoids, and numbers times their own, as loops compute them."""

import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.cpu.llvm.lowering import lower
from app.devices.cpu.llvm.math.gates import gated
from app.devices.cpu.llvm.math.primitives import Chosen
from app.formula.functions import FLOAT_MAX, decay_of, sigmoid
from app.formula.values import (
    FLOAT32,
    Input,
    Operation,
    Value,
    absolute,
    cast,
    exp,
    maximum,
    minimum,
    normal_cdf,
    widen,
)
from app.memory.arrays import Array
from app.operators.operator import PREFIX
from tests.devices.test_arcs import by_loops
from tests.formula.spelled import ask
from tests.operators.descriptors import compiled, descriptor, expression_of

X = Input(FLOAT32, "X", DataType.FLOAT32)
Y = Input(FLOAT32, "Y", DataType.FLOAT32)
ENDS = [0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1e-45, -1e-45, -87.4, -103.97, -104, -119.9, -120.1, 88.8]


def of_operator(kind: str) -> Value:
    tensor = {"DataType": "FLOAT32", "Sizes": [4]}
    more = {"SigmoidInputScale": 1.0} if kind == "ACTIVATION_SWISH" else {}
    return expression_of(compiled(descriptor(PREFIX + kind, tensor, **more)))


def numbers() -> Array:
    sizes = np.geomspace(1e-44, 3e38, 1 << 14)
    nans = np.array([0x7F800001, 0xFFC00001, 0x7FC0FFFF], np.uint32).view(np.float32)
    ordinary = np.concatenate([np.linspace(-125, 125, 1 << 17), sizes, -sizes, ENDS])
    return np.concatenate([ordinary.astype(np.float32), nans])


def exact_sigmoid(x: Array) -> Array:
    decay = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, decay, 1) / (1 + decay))


@pytest.mark.parametrize("kind", ["ACTIVATION_SIGMOID", "ACTIVATION_SWISH"])
def test_results_are_exact_where_a_sigmoid_is_subnormal_too(kind: str) -> None:
    expression = of_operator(kind)
    assert isinstance(expression, Operation)
    assert gated(expression) is not None
    x = numbers()
    with np.errstate(all="ignore"):
        wide = x.astype(np.longdouble)
        exact = exact_sigmoid(wide)
        if kind == "ACTIVATION_SWISH":
            exact = np.where(np.isneginf(wide), -0.0, wide * exact)
        made = by_loops(lambda _: expression, x, DataType.FLOAT32)
        unit = np.maximum(np.spacing(np.abs(exact).astype(np.float32)), np.float32(2.0**-149))
        off = np.where(made == exact, 0, np.abs(made - exact) / unit)
    np.testing.assert_array_equal(np.isnan(made), np.isnan(exact))
    assert np.nanmax(off) < 3.2
    assert np.signbit(made[x < 0]).all() == (kind == "ACTIVATION_SWISH")


def test_what_only_looks_like_one_is_left() -> None:
    decay = decay_of(X)
    swish = of_operator("ACTIVATION_SWISH")
    assert isinstance(swish, Operation)
    (limited, share), rest = swish.arguments[0].operands(), swish.arguments[1]
    for expression in (
        sigmoid(decay, X < 1),
        sigmoid(decay, Y < 0),
        sigmoid(exp(-absolute(Y)), X < 0),
        sigmoid(exp(absolute(X)), X < 0),
        sigmoid(exp(X), X < 0),
        sigmoid(maximum(decay, 0), X < 0),
        sigmoid(exp(maximum(-absolute(X), -80)), X < 0),
        sigmoid(exp(maximum(-absolute(X), -87)), X < 0),
        share,
        limited * share,
        limited * share * exp(minimum(X + 80, 0)),
        limited * share * exp(minimum(Y + 87, 0)),
        limited * sigmoid(decay, X < 0) * rest,
        maximum(X, -1) * share * rest,
        maximum(Y, -3.4028234663852886e38) * share * rest,
    ):
        assert isinstance(expression, Operation)
        assert gated(expression) is None


def test_a_number_times_its_area_of_the_normal_distribution_is_one_function() -> None:
    """Of an operator, whose result is stored as float32, and in a graph, where it goes on as such."""
    gelu = of_operator("ACTIVATION_GELU")
    area = normal_cdf(widen(X))
    found = gated(cast(maximum(X, -FLOAT_MAX) * area, FLOAT32))
    assert isinstance(found, Chosen)
    assert (found.function, found.arguments) == ("gated_by_normal", (X,))
    body = lower(ask, gelu, DataType.FLOAT32).body
    assert any("@chosen.gated_by_normal(" in line for line in body)
    assert not any("@chosen." in line for line in lower(ask, gelu, DataType.FLOAT16).body)
    others = [maximum(Y, -FLOAT_MAX) * area, maximum(X, -1) * area, widen(X) * area]
    assert not any(gated(cast(other, FLOAT32)) for other in others)
    assert gated(maximum(X, -FLOAT_MAX) * area) is None
