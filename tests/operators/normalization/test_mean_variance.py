"""MEAN_VARIANCE_NORMALIZATION* and LP_NORMALIZATION against plain NumPy, and their rules."""

from typing import Any

import numpy as np
import pytest

from app.contract.constants import FeatureLevel
from app.memory.arrays import Array
from tests.contract.refusals import check_wording
from tests.operators.arrays import laid_out
from tests.operators.descriptors import descriptor, refusals
from tests.operators.runs import Runner, close

PREFIX = "DML_OPERATOR_"
MVN, MVN1, MVN2 = (f"MEAN_VARIANCE_NORMALIZATION{n}" for n in ("", "1", "2"))
EACH = pytest.mark.parametrize("kind", [MVN, MVN1, MVN2])
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float16])
FLOAT = "FLOAT32"
HALVED_TANH = {"Type": "ACTIVATION_SCALED_TANH", "Alpha": 1.0, "Beta": 0.5}


def normalized(x: Array, axes: tuple[int, ...], epsilon: float, *, mean: bool = True, variance: bool = True) -> Array:
    x = x.astype(np.longdouble)
    with np.errstate(all="ignore"):
        x = x - x.mean(axes, keepdims=True) if mean else x
        return x / np.sqrt((x * x).mean(axes, keepdims=True) + np.float32(epsilon)) if variance else x


def random_sizes(rng: np.random.Generator, rank: int) -> list[int]:
    return [int(each) for each in rng.integers(1, 7 if rank < 5 else 3, rank)]


@pytest.mark.parametrize("seed", range(6))
@DTYPES
@EACH
def test_any_sizes_and_attributes(run: Runner, kind: str, dtype: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = 4 if kind == MVN else int(rng.integers(1, 9))
    sizes = random_sizes(rng, rank)
    x = laid_out(rng, (rng.standard_normal(sizes) * 3 + 2).astype(dtype))
    axes = tuple(int(axis) for axis in rng.permutation(rank)[: rng.integers(1, rank + 1)])
    mean, variance = True, seed % 3 != 0
    members: dict[str, Any] = {"NormalizeVariance": variance, "Axes": list(axes), "Epsilon": 0.01}
    if kind == MVN:
        members |= {"CrossChannel": bool(seed % 2)}
        axes = (1, 2, 3) if seed % 2 else (2, 3)
        del members["Axes"]
    if kind == MVN2:
        mean = seed % 4 < 2
        del members["NormalizeVariance"]
        members |= {"UseMean": mean, "UseVariance": variance}
    whole = normalized(x, axes, 0.01, mean=mean, variance=variance)
    tensors, size = {"InputTensor": x}, np.abs(whole)
    for name in ("ScaleTensor", "BiasTensor"):
        if rng.random() < 0.7:
            values = rng.standard_normal([size if rng.random() < 0.5 else 1 for size in sizes])
            tensors[name] = laid_out(rng, values.astype(dtype))
            exact = tensors[name].astype(np.longdouble)
            whole, size = (
                (whole * exact, size * abs(exact)) if name == "ScaleTensor" else (whole + exact, size + abs(exact))
            )
    made = run(kind, tensors, **members)["OutputTensor"]
    close(made, whole, scale=np.maximum(size, 1e-6 * np.abs(x).max()), ulp=0.51)


@pytest.mark.parametrize("count", [70_000, 1, 3])
def test_large_groups_with_a_large_mean(run: Runner, count: int) -> None:
    """Means are not rounded before they are taken off; 70,000 elements do not fit into a block."""
    x = (np.random.default_rng(1).standard_normal((2, count)) + 10_000).astype(np.float32)
    made = run(MVN1, {"InputTensor": x}, Axes=[1], NormalizeVariance=True)["OutputTensor"]
    close(made, normalized(x, (1,), 1e-5), scale=1e-6, ulp=0.6)


def test_special_values(run: Runner) -> None:
    """A group with an infinity or NaN is NaN, others are as if it were not there; equal elements are 0."""
    x = np.array([[1, 2, 3], [1, np.inf, 3], [np.nan, 0, 0], [5, 5, 5]], np.float32)
    made = run(MVN2, {"InputTensor": x}, Axes=[1], UseMean=True, UseVariance=True)["OutputTensor"]
    assert np.isnan(made[1:3]).all()
    assert made[3].tolist() == [0, 0, 0]
    close(made[:1], normalized(x[:1], (1,), 1e-5), ulp=1)
    large = np.full((1, 4), 3e38, np.float32)
    made = run(MVN2, {"InputTensor": large}, Axes=[1], UseMean=False, UseVariance=True)["OutputTensor"]
    assert made.tolist() == [[1, 1, 1, 1]]
    made = run(MVN1, {"InputTensor": x[3:]}, Axes=[1], NormalizeVariance=True, Epsilon=0)["OutputTensor"]
    assert np.isnan(made).all()


def test_each_element_by_itself(run: Runner) -> None:
    """Without axes it is its own mean, and only the bias is left, as Chromium's WebNN has it for `axes: []`."""
    x, bias = np.array([[1, -2, 3], [0, 1e30, 5]], np.float32), np.array([[1, 2, 3]], np.float32)
    tensors = {"InputTensor": x, "ScaleTensor": bias, "BiasTensor": bias}
    same = np.broadcast_to(bias, x.shape)
    for variance in (True, False):
        made = run(MVN1, tensors, Axes=[], AxisCount=0, NormalizeVariance=variance)["OutputTensor"]
        np.testing.assert_array_equal(made, same)
    made = run(MVN2, tensors, Axes=[], UseMean=True, UseVariance=True)["OutputTensor"]
    np.testing.assert_array_equal(made, same)
    made = run(MVN2, {"InputTensor": x}, Axes=[], UseMean=False, UseVariance=True, Epsilon=0)["OutputTensor"]
    np.testing.assert_array_equal(made, np.where(x == 0, np.nan, np.sign(x)))


def test_examples_of_the_axes(run: Runner) -> None:
    """{2, 3} and {1, 2, 3} are CrossChannel false and true."""
    x = np.random.default_rng(2).standard_normal((2, 3, 4, 5)).astype(np.float32)
    for cross, axes in ((False, [2, 3]), (True, [3, 1, 2])):
        members: dict[str, Any] = {"NormalizeVariance": True, "Epsilon": 0.25}
        np.testing.assert_array_equal(
            run(MVN, {"InputTensor": x}, CrossChannel=cross, **members)["OutputTensor"],
            run(MVN1, {"InputTensor": x}, Axes=axes, **members)["OutputTensor"],
        )


@EACH
def test_fused_activation(run: Runner, kind: str) -> None:
    x = np.random.default_rng(3).standard_normal((1, 2, 3, 4)).astype(np.float16)
    members: dict[str, Any] = {"FusedActivation": {"Type": "ACTIVATION_RELU"}}
    members |= {"CrossChannel": False} if kind == MVN else {"Axes": [2, 3]}
    members |= {"UseMean": True, "UseVariance": True} if kind == MVN2 else {"NormalizeVariance": True}
    made = run(kind, {"InputTensor": x}, **members)["OutputTensor"]
    close(made, np.maximum(normalized(x, (2, 3), 1e-5), 0), ulp=0.51)


@pytest.mark.parametrize(("activation", "factor"), [({"Type": "ACTIVATION_TANH"}, 1), (HALVED_TANH, 0.5)])
@pytest.mark.parametrize("variance", [True, False])
@pytest.mark.parametrize("mean", [True, False])
def test_fused_tanh_of_halves(run: Runner, mean: bool, variance: bool, activation: Any, factor: float) -> None:
    """The sign of a float64 that becomes a half is not taken by a function that is not there, which ended the process;
    nor is what is computed in float32 for a half made float32 once more."""
    x = np.random.default_rng(3).standard_normal((2, 5, 5)).astype(np.float16)
    members = {"Axes": [2], "UseMean": mean, "UseVariance": variance, "Epsilon": 0.01, "FusedActivation": activation}
    made = run(MVN2, {"InputTensor": x}, **members)["OutputTensor"]
    close(made, np.tanh(factor * normalized(x, (2,), 0.01, mean=mean, variance=variance)), ulp=1)


def document(kind: str, **sizes: list[int] | None) -> dict[str, Any]:
    made: dict[str, Any] = {} if kind.startswith("LP") else dict.fromkeys(("ScaleTensor", "BiasTensor"))
    made |= {"InputTensor": {"DataType": FLOAT, "Sizes": [2, 3, 4, 5]}}
    made |= {name: each and {"DataType": FLOAT, "Sizes": each} for name, each in sizes.items()}
    return descriptor(PREFIX + kind, **made)


@EACH
@pytest.mark.parametrize("name", ["ScaleTensor", "BiasTensor"])
def test_sizes_that_cannot_be_repeated(kind: str, name: str) -> None:
    (refusal,) = refusals(document(kind, **{name: [1, 3, 2, 1]}))
    check_wording(refusal)
    assert (refusal.pointer, refusal.given, refusal.allowed) == (f"/{name}/Sizes", [1, 3, 2, 1], [2, 3, 4, 5])


@pytest.mark.parametrize("kind", [MVN, MVN1])
@pytest.mark.parametrize("name", ["ScaleTensor", "BiasTensor"])
def test_both_or_none_below_5_2(kind: str, name: str) -> None:
    (other,) = {"ScaleTensor", "BiasTensor"} - {name}
    alone = document(kind, **{name: [1, 3, 1, 1]})
    assert refusals(alone, FeatureLevel.V5_2) == []
    (refusal,) = refusals(alone, FeatureLevel.V5_1)
    check_wording(refusal)
    assert refusal.pointer == f"/{other}"
    assert refusals(document(kind), FeatureLevel.V5_1) == []


def test_channels_below_4_0() -> None:
    repeated = document(MVN1, ScaleTensor=[1, 3, 1, 1], BiasTensor=[1, 1, 4, 5])
    assert refusals(repeated, FeatureLevel.V4_0) == []
    (refusal,) = refusals(repeated, FeatureLevel.V3_1)
    check_wording(refusal)
    assert (refusal.pointer, refusal.allowed) == ("/BiasTensor/Sizes", [1, 3, 4, 5])
    one = {name: {"DataType": FLOAT, "Sizes": [1]} for name in ("ScaleTensor", "BiasTensor")}
    assert (
        refusals(
            document(MVN1) | one | {"InputTensor": {"DataType": FLOAT, "Sizes": [3]}, "Axes": [0]}, FeatureLevel.V3_1
        )
        == []
    )


@pytest.mark.parametrize("kind", [MVN1, MVN2])
def test_axes(kind: str) -> None:
    for axes, pointer in (([4], "/Axes/0"), ([1, 1], "/Axes/1")):
        (refusal,) = refusals(document(kind) | {"Axes": axes})
        check_wording(refusal)
        assert refusal.pointer == pointer
    (refusal,) = refusals(document(kind) | {"AxisCount": 3})
    assert refusal.pointer == "/AxisCount"


@EACH
def test_rules_of_the_activation(kind: str) -> None:
    if kind == MVN2:
        celu: dict[str, Any] = {"Type": "ACTIVATION_SOFTPLUS", "Steepness": 0.5}
        assert refusals(document(kind) | {"FusedActivation": celu | {"Steepness": 1}}) == []
        return
    (refusal,) = refusals(document(kind) | {"FusedActivation": {"Type": "ACTIVATION_GELU"}}, FeatureLevel.V5_0)
    assert refusal.pointer == "/FusedActivation/Type"


@pytest.mark.parametrize("seed", range(5))
@DTYPES
@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization(run: Runner, p: int, dtype: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = random_sizes(rng, int(rng.integers(1, 9)))
    x = laid_out(rng, rng.standard_normal(sizes).astype(dtype))
    axis = int(rng.integers(0, len(sizes)))
    made = run("LP_NORMALIZATION", {"InputTensor": x}, Axis=axis, P=p)["OutputTensor"]
    exact = x.astype(np.longdouble)
    norm = abs(exact).sum(axis, keepdims=True) if p == 1 else np.sqrt((exact * exact).sum(axis, keepdims=True))
    close(made, exact / norm, ulp=0.51)


def test_lp_normalization_of_little_and_of_much(run: Runner) -> None:
    """What has a norm below Epsilon is divided by Epsilon; squares do not overflow."""
    x = np.array([[0, 0], [3e-6, 4e-6], [3e38, 3e38], [np.inf, 1], [np.nan, 1]], np.float32)
    made = run("LP_NORMALIZATION", {"InputTensor": x}, Axis=1, P=2)["OutputTensor"]
    np.testing.assert_allclose(made[:3], np.array([[0, 0], [0.3, 0.4], [0.5**0.5] * 2]), rtol=2e-6)
    np.testing.assert_array_equal(made[3:], [[np.nan, 0], [np.nan, np.nan]])


@pytest.mark.parametrize(("member", "value", "allowed"), [("Axis", 4, "0 to 3"), ("P", 0, [1, 2]), ("P", 3, [1, 2])])
def test_rules_of_lp_normalization(member: str, value: int, allowed: object) -> None:
    (refusal,) = refusals(
        document(
            "LP_NORMALIZATION",
        )
        | {member: value}
    )
    check_wording(refusal)
    assert (refusal.pointer, refusal.given, refusal.allowed) == (f"/{member}", value, allowed)
