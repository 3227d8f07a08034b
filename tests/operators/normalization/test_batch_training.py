"""BATCH_NORMALIZATION_TRAINING and the gradients against plain NumPy, and their rules."""

from typing import Any

import numpy as np
import pytest

from app.memory.arrays import Array
from tests.contract.refusals import check_wording
from tests.operators.arrays import laid_out
from tests.operators.descriptors import compiled, descriptor, refusals
from tests.operators.runs import Runner, close

TRAINING, GRAD, TRAINING_GRAD = (f"BATCH_NORMALIZATION_{name}" for name in ("TRAINING", "GRAD", "TRAINING_GRAD"))
SOME = [*((seed, np.float32) for seed in range(5)), *((seed, np.float16) for seed in range(2))]
CASES = pytest.mark.parametrize(("seed", "dtype"), SOME)


class Case:
    """Random sizes, and tensors of them or of their groups'."""

    def __init__(self, seed: int, dtype: Any) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype
        rank = int(self.rng.integers(1, 9))
        self.sizes = [int(each) for each in self.rng.integers(1, 6 if rank < 5 else 3, rank)]
        self.of_groups = [size if self.rng.random() < 0.4 else 1 for size in self.sizes]
        if seed == 0:
            self.of_groups = self.sizes
        self.axes = tuple(axis for axis, size in enumerate(self.of_groups) if size == 1)

    def tensor(self, *, groups: bool = False, positive: bool = False) -> Array:
        values = self.rng.standard_normal(self.of_groups if groups else self.sizes)
        return laid_out(self.rng, (np.abs(values) if positive else values * 2 + 1).astype(self.dtype))

    def mean(self, values: Array) -> Array:
        made: Array = values.mean(self.axes, keepdims=True)
        return made

    def sum(self, values: Array) -> Array:
        made: Array = values.sum(self.axes, keepdims=True)
        return made


def exact(*arrays: Array) -> list[Array]:
    return [each.astype(np.longdouble) for each in arrays]


@CASES
def test_training(run: Runner, seed: int, dtype: Any) -> None:
    case = Case(seed, dtype)
    tensors = {"InputTensor": case.tensor()} | {n: case.tensor(groups=True) for n in ("ScaleTensor", "BiasTensor")}
    if seed % 2:
        tensors["FusedAddTensor"] = case.tensor()
    made = run(TRAINING, tensors, Epsilon=0.01)
    x, scale, bias, *add = exact(*tensors.values())
    apart = x - case.mean(x)
    variance = case.mean(apart * apart)
    product = scale * apart / np.sqrt(variance + np.float32(0.01))
    whole = product + bias + (add[0] if add else 0)
    size = abs(product) + abs(bias) + (abs(add[0]) if add else 0)
    close(made["OutputTensor"], whole, scale=size, ulp=0.51)
    close(made["OutputMeanTensor"], case.mean(x), scale=1e-3, ulp=0.51)
    close(made["OutputVarianceTensor"], variance, scale=1e-3, ulp=0.51)


def test_statistics_of_large_means_and_of_outliers(run: Runner) -> None:
    """The variance keeps its digits wherever the first element lies."""
    x = np.random.default_rng(1).standard_normal((3, 5000)).astype(np.float32)
    x[0] += 100_000
    x[1, 0] = 1e6
    ones = np.ones((3, 1), np.float32)
    made = run(TRAINING, {"InputTensor": x, "ScaleTensor": ones, "BiasTensor": ones}, Epsilon=0)
    wide = x.astype(np.longdouble)
    close(made["OutputMeanTensor"], wide.mean(1, keepdims=True), ulp=0.51)
    close(made["OutputVarianceTensor"], wide.var(1, keepdims=True), ulp=0.51)


def test_special_values(run: Runner) -> None:
    """A group with an infinity or NaN is NaN, and no other."""
    x = np.array([[1, 2], [np.inf, 1], [1, np.nan], [3, 3]], np.float32)
    ones = np.ones((4, 1), np.float32)
    made = run(TRAINING, {"InputTensor": x, "ScaleTensor": ones, "BiasTensor": ones}, Epsilon=1)
    assert np.isnan(made["OutputTensor"]).all(1).tolist() == [False, True, True, False]
    assert made["OutputTensor"][3].tolist() == [1, 1]
    np.testing.assert_array_equal(made["OutputMeanTensor"].reshape(-1), np.array([1.5, np.inf, np.nan, 3], np.float32))
    np.testing.assert_array_equal(
        made["OutputVarianceTensor"].reshape(-1), np.array([0.25, np.nan, np.nan, 0], np.float32)
    )


def test_activation_after_the_addition(run: Runner) -> None:
    x = np.array([[-1, 1]], np.float32)
    one = np.ones((1, 1), np.float32)
    tensors = {
        "InputTensor": x,
        "ScaleTensor": one,
        "BiasTensor": one,
        "FusedAddTensor": np.array([[-0.5, 4]], np.float32),
    }
    made = run(TRAINING, tensors, Epsilon=0, FusedActivation={"Type": "ACTIVATION_RELU"})
    assert made["OutputTensor"].tolist() == [[0, 6]]
    assert made["OutputMeanTensor"].tolist() == [[0]]


@CASES
@pytest.mark.parametrize("kind", [GRAD, TRAINING_GRAD])
def test_gradients(run: Runner, kind: str, seed: int, dtype: Any) -> None:
    case = Case(seed, dtype)
    tensors = {name: case.tensor() for name in ("InputTensor", "InputGradientTensor")}
    tensors |= {n: case.tensor(groups=True, positive="V" in n) for n in ("MeanTensor", "VarianceTensor", "ScaleTensor")}
    made = run(kind, tensors, Epsilon=0.25)
    x, g, mean, variance, scale = exact(*tensors.values())
    root = np.sqrt(variance + 0.25)
    whole = g * scale / root
    size = abs(whole)
    if kind == TRAINING_GRAD:
        apart = x - case.mean(x)
        last = apart * case.mean(g * apart) / (variance + 0.25)
        whole = scale / root * (g - case.mean(g) - last)
        size = abs(scale / root) * (abs(g) + abs(case.mean(g)) + abs(last))
    close(made["OutputGradientTensor"], whole, scale=size * 1e-3, ulp=0.51)
    terms = g * (x - mean) / root
    close(made["OutputScaleGradientTensor"], case.sum(terms), scale=case.sum(abs(terms)) * 1e-3, ulp=0.51)
    close(made["OutputBiasGradientTensor"], case.sum(g), scale=case.sum(abs(g)) * 1e-3, ulp=0.51)


def test_the_gradient_is_that_of_training(run: Runner) -> None:
    """By differences."""
    rng = np.random.default_rng(3)
    x, gradient = rng.standard_normal((2, 4, 3)).astype(np.float32)
    scale, bias = rng.standard_normal((2, 1, 3)).astype(np.float32)
    ahead = {"InputTensor": x, "ScaleTensor": scale, "BiasTensor": bias}
    forward = run(TRAINING, ahead, Epsilon=0.5)
    tensors = {"InputTensor": x, "InputGradientTensor": gradient, "MeanTensor": forward["OutputMeanTensor"]}
    tensors |= {"VarianceTensor": forward["OutputVarianceTensor"], "ScaleTensor": scale}
    made = run(TRAINING_GRAD, tensors, Epsilon=0.5)
    for name, output in (("InputTensor", "OutputGradientTensor"), ("ScaleTensor", "OutputScaleGradientTensor")):
        for place in ((0, 0), (0, 2)):
            step = np.zeros_like(ahead[name])
            step[place] = 2**-7
            high, low = (
                run(TRAINING, ahead | {name: ahead[name] + sign * step}, Epsilon=0.5)["OutputTensor"]
                for sign in (1, -1)
            )
            np.testing.assert_allclose(made[output][place], ((high - low) * gradient).sum() * 2**6, atol=1e-3)


def sized(kind: str, **sizes: list[int]) -> dict[str, Any]:
    tensors = {name: {"DataType": "FLOAT32", "Sizes": each} for name, each in sizes.items()}
    return descriptor(f"DML_OPERATOR_{kind}") | tensors | ({"FusedAddTensor": None} if kind == TRAINING else {})


@pytest.mark.parametrize(
    ("kind", "wide", "narrow", "outputs"),
    [
        (TRAINING, ["InputTensor"], ["ScaleTensor", "BiasTensor"], ["OutputMeanTensor", "OutputVarianceTensor"]),
        *(
            (
                kind,
                ["InputTensor", "InputGradientTensor"],
                ["MeanTensor", "VarianceTensor", "ScaleTensor"],
                ["OutputScaleGradientTensor", "OutputBiasGradientTensor"],
            )
            for kind in (GRAD, TRAINING_GRAD)
        ),
    ],
)
def test_sizes(kind: str, wide: list[str], narrow: list[str], outputs: list[str]) -> None:
    whole = {key: [2, 3, 4] for key in wide}
    fine = sized(kind, **whole, **{key: [1, 3, 1] for key in narrow})
    made = compiled(fine)
    assert {name: desc.Sizes for name, desc in made.outputs.items() if name in outputs} == {
        key: [1, 3, 1] for key in outputs
    }
    (other,) = set(made.outputs) - set(outputs)
    assert made.outputs[other].Sizes == [2, 3, 4]
    (refusal,) = refusals(sized(kind, **whole, **{key: [1, 2, 1] for key in narrow}))
    check_wording(refusal)
    assert (refusal.pointer, refusal.allowed) == (f"/{narrow[0]}/Sizes", [2, 3, 4])
    (refusal,) = refusals(fine | {narrow[1]: {"DataType": "FLOAT32", "Sizes": [1, 3, 4]}})
    check_wording(refusal)
    assert (refusal.pointer, refusal.allowed) == (f"/{narrow[1]}/Sizes", [1, 3, 1])
    for name, right in ((outputs[1], [1, 3, 1]), (other, [2, 3, 4])):
        found = refusals(fine | {name: {"DataType": "FLOAT32", "Sizes": [2, 1, 4]}})
        assert [(each.pointer, each.allowed) for each in found] == [(f"/{name}/Sizes", right)]
    found = refusals(sized(kind, **whole, **{key: [3, 1] for key in narrow}))
    assert [each.pointer for each in found] == [f"/{narrow[0]}/Sizes"]


def test_elements_are_reduced_once_for_all_of_a_group() -> None:
    """The large output goes by position, in groups; what there is one of for each group goes by coordinates."""
    for kind, axes in ((TRAINING, (0, 1, 3)), (TRAINING_GRAD, (0, 1, 3)), (GRAD, ())):
        document = descriptor(f"DML_OPERATOR_{kind}")
        for name, each in document.items():
            if isinstance(each, dict) and each["Sizes"][-1] > 1:
                document[name] = each | {"Sizes": [2, 2, 2, 3]}
        large, *small = compiled(document).program.maps.values()
        assert (large.by_coordinates, large.axes) == (False, axes)
        assert [each.by_coordinates for each in small] == [True, True]
