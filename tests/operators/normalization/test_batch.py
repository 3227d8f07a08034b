"""BATCH_NORMALIZATION against plain NumPy, its rules, and graphs that have it in them."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from app.contract.constants import FeatureLevel
from app.contract.tensors import TensorDesc
from app.formula.structures import Structures
from app.graphs.fusion import fuse
from app.graphs.graph import GraphInput
from app.graphs.members import PlannedKernel
from app.memory.arrays import Array
from tests.contract.refusals import check_wording
from tests.graphs.documents import between, graph, into, node, out, resolved, tensor
from tests.operators.arrays import laid_out
from tests.operators.descriptors import descriptor, refusals
from tests.operators.runs import Runner, close

KIND = "DML_OPERATOR_BATCH_NORMALIZATION"
REPEATED = ("MeanTensor", "VarianceTensor", "ScaleTensor", "BiasTensor")


def expected(tensors: Iterable[Array], epsilon: float) -> Array:
    """Of the five inputs."""
    x, mean, variance, scale, bias = (each.astype(np.float64) for each in tensors)
    with np.errstate(all="ignore"):
        return (x - mean) / np.sqrt(variance + np.float32(epsilon)) * scale + bias


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_any_sizes(run: Runner, seed: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 9))
    sizes = [int(each) for each in rng.integers(1, 6 if rank < 5 else 3, rank)]
    x = rng.standard_normal(sizes).astype(dtype)
    tensors = {"InputTensor": laid_out(rng, x)}
    for name in REPEATED:
        values = rng.standard_normal([size if rng.random() < 0.5 else 1 for size in sizes])
        tensors[name] = laid_out(rng, (np.abs(values) if name == "VarianceTensor" else values).astype(dtype))
    made = run("BATCH_NORMALIZATION", tensors, Spatial=bool(seed % 2), Epsilon=0.01)["OutputTensor"]
    whole = expected(tensors.values(), 0.01)
    parts = np.abs(whole - tensors["BiasTensor"].astype(np.float64)) + np.abs(tensors["BiasTensor"].astype(np.float64))
    close(made, whole, scale=parts, ulp=3 if dtype is np.float32 else 1)


def test_special_values(run: Runner) -> None:
    """A variance of 0 without Epsilon divides by 0, a negative one has no root."""
    x = np.array([1, 2, 3, np.inf, np.nan, 5], np.float32)
    ones = np.ones(6, np.float32)
    variance = np.array([0, 0, -1, 1, 1, np.inf], np.float32)
    mean = np.array([0, 2, 0, 0, 0, 0], np.float32)
    tensors = dict(zip(("InputTensor", *REPEATED), (x, mean, variance, ones, ones), strict=True))
    made = run("BATCH_NORMALIZATION", tensors, Spatial=True, Epsilon=0)["OutputTensor"]
    np.testing.assert_array_equal(made, np.array([np.inf, np.nan, np.nan, np.inf, np.nan, 1], np.float32))


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ({"Type": "ACTIVATION_RELU"}, lambda y: np.maximum(y, 0)),
        ({"Type": "ACTIVATION_LEAKY_RELU", "Alpha": 0.25}, lambda y: np.where(y < 0, y / 4, y)),
        ({"Type": "ACTIVATION_LINEAR", "Alpha": 2, "Beta": 1}, lambda y: 2 * y + 1),
    ],
)
def test_fused_activation(run: Runner, activation: dict[str, Any], function: Any) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 3, 4)).astype(np.float32)
    mean, scale, bias = rng.standard_normal((3, 1, 3, 1)).astype(np.float32)
    tensors = dict(zip(("InputTensor", *REPEATED), (x, mean, np.abs(scale), scale, bias), strict=True))
    made = run("BATCH_NORMALIZATION", tensors, Spatial=True, Epsilon=0.5, FusedActivation=activation)["OutputTensor"]
    close(made, function(expected(tensors.values(), 0.5)), scale=4, ulp=4)


def sized(**sizes: list[int]) -> dict[str, Any]:
    """The descriptor, its tensors of these sizes."""
    named = {name: sizes.get(name, [2, 3, 4, 5]) for name in ("InputTensor", *REPEATED)}
    return descriptor(KIND, **{name: {"DataType": "FLOAT32", "Sizes": each} for name, each in named.items()})


@pytest.mark.parametrize("name", REPEATED)
@pytest.mark.parametrize("sizes", [[2, 1, 4, 4], [4, 3, 4, 5], [1, 1, 1, 2]])
def test_sizes_that_cannot_be_repeated(name: str, sizes: list[int]) -> None:
    (refusal,) = refusals(sized(**{name: sizes}))
    check_wording(refusal)
    assert (refusal.pointer, refusal.given, refusal.allowed) == (f"/{name}/Sizes", sizes, [2, 3, 4, 5])


def test_ranks_are_equal() -> None:
    (refusal,) = refusals(sized(BiasTensor=[4, 5]))
    assert refusal.pointer == "/BiasTensor/Sizes"
    (refusal,) = refusals(sized() | {"OutputTensor": {"DataType": "FLOAT32", "Sizes": [2, 3, 4, 1]}})
    assert (refusal.pointer, refusal.allowed) == ("/OutputTensor/Sizes", [2, 3, 4, 5])


@pytest.mark.parametrize("name", ["MeanTensor", "VarianceTensor"])
def test_without_spatial_before_4_0(name: str) -> None:
    document = sized(**{name: [1, 3, 1, 5]}) | {"Spatial": False}
    assert refusals(document) == []
    assert refusals(document | {"Spatial": True}, FeatureLevel.V3_1) == []
    assert refusals(document, FeatureLevel.V4_0) == []
    (refusal,) = refusals(document, FeatureLevel.V3_1)
    check_wording(refusal)
    assert (refusal.pointer, refusal.allowed) == (f"/{name}/Sizes", [1, 3, 4, 5])
    assert refusals(sized(**{name: [1, 1, 4, 5]}) | {"Spatial": False}, FeatureLevel.V1_0) == []


def test_rules_of_the_activation() -> None:
    softplus = {"Type": "ACTIVATION_SOFTPLUS", "Steepness": 0.5}
    (refusal,) = refusals(sized() | {"FusedActivation": softplus}, FeatureLevel.V2_0)
    check_wording(refusal)
    assert refusal.pointer.startswith("/FusedActivation/")


def sources(part: PlannedKernel) -> list[tuple[GraphInput, TensorDesc]]:
    """What a kernel reads, all of it inputs of the graph, each once."""
    return [
        (source, part.dispatchable.inputs[name])
        for name, source in part.reads.items()
        if isinstance(source, GraphInput)
    ]


def test_a_graph_fuses_it_with_what_is_before_and_after(run: Runner) -> None:
    """Its repeated tensors are read by the one kernel, with stride 0; the last two dimensions are one there."""
    x, repeated = tensor(sizes=(2, 3, 4, 5)), tensor(sizes=(1, 3, 1, 1))
    tensors: dict[str, Any] = dict.fromkeys(REPEATED, repeated)
    nodes = [
        node("ACTIVATION_RELU", InputTensor=x),
        node("BATCH_NORMALIZATION", InputTensor=x, Spatial=True, Epsilon=0.1, **tensors),
        node("ACTIVATION_SIGMOID", InputTensor=x),
    ]
    edges = [into(n, 1, n) for n in range(1, 5)]
    document = graph(nodes, [into(0, 0), *edges], [out(2)], [between(0, 1), between(1, 2)])
    (part,) = fuse(resolved(document), Structures()).parts
    assert part.nodes == (0, 1, 2)
    strides = {tuple(desc.strides) for desc in part.dispatchable.inputs.values()}
    assert strides == {(60, 20, 1), (0, 1, 0)}
    rng = np.random.default_rng(4)
    data: dict[Any, Array] = {source: rng.random(desc.reach, np.float32) for source, desc in sources(part)}
    made = np.zeros((2, 3, 4, 5), np.float32)
    buffers = [data[source].view(np.uint8).data for source in part.reads.values()]
    run.device.prepare(part.dispatchable).dispatch(buffers, [made.reshape(-1).view(np.uint8).data], lambda: False)
    given = [each.reshape(2, 3, 4, 5) if each.size > 3 else each.reshape(1, 3, 1, 1) for each in data.values()]
    by_name = dict(zip([source.name for source in data], given, strict=True))
    y = expected((by_name[name] for name in sorted(by_name)), 0.1)
    close(made, 1 / (1 + np.exp(-y)), scale=1, ulp=4)
