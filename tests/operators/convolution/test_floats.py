"""CONVOLUTION: against its formula by coordinates on random descriptors, what is special, and what is refused."""

import tracemalloc
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from app.contract.constants import ConvolutionDirection, ConvolutionMode
from app.formula.coordinates import Operand, coordinates, sum_over
from app.formula.values import Value, cast, equal, quotient, remainder_of_truncation, where, widen
from app.memory.arrays import Array
from app.operators import arrays
from app.operators.convolution import windows
from app.operators.convolution.floats import Convolution
from app.operators.parameters import TensorParameters
from tests.contract.refusals import check_wording
from tests.operators.arrays import desc_of, laid_out
from tests.operators.calls import run
from tests.operators.descriptors import refusals


class ConvolutionByCoordinates(Convolution):
    """The judge: one element after the other, each of the products that meet it."""

    by_coordinates = True
    call = None  # type: ignore[assignment]

    def formula(self, p: TensorParameters, x: Operand, w: Operand, bias: Operand | None) -> Value:
        n, channel, *place = coordinates(x.rank)
        rank = x.rank - 2
        is_backward = self.Direction is ConvolutionDirection.BACKWARD
        outputs = p.out("OutputTensor").sizes
        each = quotient(outputs[1], p.GroupCount)
        depth = quotient(x.sizes[1], p.GroupCount)
        group = quotient(channel, each)

        def term(c: Value, *k: Value) -> Value:
            at: list[Value] = []
            there: Value | None = None
            for axis in range(rank):
                if is_backward:
                    q = place[axis] + p.StartPadding[axis] - k[axis] * p.Dilations[axis]
                    inside = equal(remainder_of_truncation(q, p.Strides[axis]), 0) & (q >= 0)
                    q = quotient(q, p.Strides[axis])
                else:
                    q = place[axis] * p.Strides[axis] + k[axis] * p.Dilations[axis] - p.StartPadding[axis]
                    inside = q >= 0
                inside = inside & (q < x.sizes[2 + axis])
                there = inside if there is None else there & inside
                at.append(q)
            assert there
            element = widen(x[[n, group * depth + c, *at]])
            mirrored = self.Mode is ConvolutionMode.CONVOLUTION
            along = [w.sizes[2 + i] - 1 - each_k if mirrored else each_k for i, each_k in enumerate(k)]
            filters = [group * depth + c, channel - group * each] if is_backward else [channel, c]
            return where(there, element, 0) * widen(w[[*filters, *along]])

        made = sum_over([depth, *w.sizes[2:]], term)
        if bias:
            made = made + widen(bias[[0, channel, *[0] * rank]])
        made = cast(made, x.type)
        if self.FusedActivation:
            made = self.FusedActivation.formula(p.below("FusedActivation."), made)
        for axis in range(rank):
            made = where(place[axis] < outputs[2 + axis] - p.OutputPadding[axis], made, 0)
        return made


def integers(rng: np.random.Generator, rank: int, most: int, least: int = 1) -> list[int]:
    return [int(each) for each in rng.integers(least, most + 1, rank)]


def document_of(rng: np.random.Generator, rank: int, **members: Any) -> dict[str, Any]:
    """Attributes, at random but for `members`."""
    return {
        "Type": "CONVOLUTION",
        "Mode": str(rng.choice(["CONVOLUTION", "CROSS_CORRELATION"])),
        "Direction": str(rng.choice(["FORWARD", "BACKWARD"])),
        "Strides": integers(rng, rank, 3),
        "Dilations": integers(rng, rank, 3),
        "StartPadding": integers(rng, rank, 3, 0),
        "EndPadding": integers(rng, rank, 3, 0),
        "OutputPadding": integers(rng, rank, 2, 0) if rng.random() < 0.3 else [0] * rank,
        "GroupCount": int(rng.integers(1, 4)),
        "FusedActivation": {"Type": "ACTIVATION_CELU", "Alpha": 0.5} if rng.random() < 0.3 else None,
    } | members


def inputs_of(
    rng: np.random.Generator, document: dict[str, Any], dtype: str, extent: int = 3, size: int = 6, multiple: int = 1
) -> dict[str, Array | None]:
    """Each group of so many times `multiple` channels."""
    rank, groups = len(document["Strides"]), document["GroupCount"]
    depth, each, batch = integers(rng, 3, 3)
    if rng.random() < 0.3:
        depth = 1
    depth, each = depth * multiple, each * multiple
    is_backward = document["Direction"] == "BACKWARD"
    kernel = integers(rng, rank, extent)
    x = rng.normal(size=[batch, groups * depth, *integers(rng, rank, size)]).astype(dtype)
    sizes = [groups * depth, each] if is_backward else [groups * each, depth]
    w = rng.normal(size=[*sizes, *kernel]).astype(dtype)
    bias = rng.normal(size=[1, groups * each, *[1] * rank]).astype(dtype) if rng.random() < 0.5 else None
    return {
        "InputTensor": laid_out(rng, x),
        "FilterTensor": laid_out(rng, w),
        "BiasTensor": bias,
    }


def check(document: dict[str, Any], inputs: Mapping[str, Array | None], rng: np.random.Generator) -> bool:
    """Whether the descriptor, which may have no output, was one; then the results are right."""
    descs = {name: desc_of(each) for name, each in inputs.items() if each is not None}
    if refusals(document | {"Type": "DML_OPERATOR_CONVOLUTION"} | descs):
        return False
    made = run(document, inputs)["OutputTensor"]
    judged = run(document, inputs, ConvolutionByCoordinates)["OutputTensor"]
    tolerance = 1e-5 if made.dtype == np.float32 else 1e-3
    np.testing.assert_allclose(made, judged, rtol=tolerance, atol=tolerance)
    if document["Direction"] == "BACKWARD":
        more = [
            size + int(rng.integers(0, stride))
            for size, stride in zip(made.shape[2:], document["Strides"], strict=True)
        ]
        longer = document | {"OutputTensor": {"DataType": made.dtype.name.upper(), "Sizes": [*made.shape[:2], *more]}}
        made = run(longer, inputs)["OutputTensor"]
        judged = run(longer, inputs, ConvolutionByCoordinates)["OutputTensor"]
        np.testing.assert_allclose(made, judged, rtol=tolerance, atol=tolerance)
    return True


@pytest.fixture(params=["whole", "pieces"], autouse=True)
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test once with everything at a time, and once in small pieces."""
    if request.param == "pieces":
        monkeypatch.setattr(windows, "SCRATCH", {"numpy": 512, "cupy": 512})
        monkeypatch.setattr(arrays, "_PIECE", {"numpy": 16, "cupy": 16})


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("direction", ["FORWARD", "BACKWARD"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolution_is_its_formula(rank: int, direction: str, dtype: str) -> None:
    rng = np.random.default_rng(rank)
    judged = 0
    for _ in range(9):
        document = document_of(rng, rank, Direction=direction)
        judged += check(document, inputs_of(rng, document, dtype, size=(20, 6, 4)[rank - 1]), rng)
    assert judged > 3


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("direction", ["FORWARD", "BACKWARD"])
@pytest.mark.parametrize("rank", [1, 2])
def test_halves_of_many_channels(rank: int, direction: str) -> None:
    """With an activation, so that what is made of them is float32, which cuDNN's kernels for that get wrong."""
    rng = np.random.default_rng(10 + rank)
    judged = 0
    for _ in range(9):
        document = document_of(rng, rank, Direction=direction, FusedActivation={"Type": "ACTIVATION_RELU"})
        judged += check(document, inputs_of(rng, document, "float16", size=(20, 6)[rank - 1], multiple=8), rng)
    assert judged > 3


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("direction", ["FORWARD", "BACKWARD"])
def test_filters_larger_than_what_they_move_over(direction: str) -> None:
    rng = np.random.default_rng(3)
    judged = 0
    for _ in range(20):
        document = document_of(rng, 2, Direction=direction, StartPadding=integers(rng, 2, 9, 0))
        judged += check(document, inputs_of(rng, document, "float32", extent=8, size=3), rng)
    assert judged > 3


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("direction", ["FORWARD", "BACKWARD"])
def test_filters_of_one_element(direction: str) -> None:
    rng = np.random.default_rng(4)
    plain = {"Strides": [1, 1], "StartPadding": [0, 0], "EndPadding": [0, 0], "Direction": direction}
    for changed in ({}, {"Strides": [2, 1]}, {"StartPadding": [1, 0]}, {"EndPadding": [0, 2]}):
        for _ in range(2):
            document = document_of(rng, 2, **plain | changed)
            assert check(document, inputs_of(rng, document, "float32", extent=1), rng) or changed


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("each", [1, 2, 3, 5])
def test_depthwise(each: int) -> None:
    rng = np.random.default_rng(each)
    for _ in range(2):
        document = document_of(rng, 2, Direction="FORWARD", GroupCount=6, StartPadding=[3, 3], EndPadding=[3, 3])
        inputs = {
            "InputTensor": laid_out(rng, rng.normal(size=(2, 6, 5, 7)).astype("f4")),
            "FilterTensor": rng.normal(size=(6 * each, 1, 3, 2)).astype("f4"),
            "BiasTensor": rng.normal(size=(1, 6 * each, 1, 1)).astype("f4"),
        }
        assert check(document, inputs, rng)


PLAIN: dict[str, Any] = {
    "Type": "DML_OPERATOR_CONVOLUTION",
    "Mode": "CROSS_CORRELATION",
    "Direction": "FORWARD",
    "Strides": [1, 1],
    "Dilations": [1, 1],
    "StartPadding": [0, 0],
    "EndPadding": [0, 0],
    "OutputPadding": [0, 0],
    "GroupCount": 1,
}


@pytest.mark.usefixtures("on_each_device")
def test_repeated_inputs_and_a_filter_by_strides() -> None:
    """A filter turned by its strides, a batch that is one image, and an output that lies channels last."""
    rng = np.random.default_rng(0)
    x = np.broadcast_to(rng.normal(size=(1, 4, 5, 5)).astype("f4"), (3, 4, 5, 5))
    w = rng.normal(size=(3, 3, 4, 2)).astype("f4").transpose(3, 2, 0, 1)
    out = np.zeros((3, 3, 3, 2), np.float32).transpose(0, 3, 1, 2)
    made = run(PLAIN | {"OutputTensor": desc_of(out)}, {"InputTensor": x, "FilterTensor": w})["OutputTensor"]
    expected = sum(
        np.einsum("nchw,oc->nohw", x[:, :, i : i + 3, j : j + 3], w[:, :, i, j]) for i in range(3) for j in range(3)
    )
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


def test_steps_and_paddings_of_any_size_take_no_memory() -> None:
    most = 2**32 - 1
    x, w = np.ones((1, 1, 2, 2), "f4"), np.full((1, 1, 3, 1), 2, "f4")
    far = PLAIN | {"Strides": [most, 1], "Dilations": [most // 2, 1], "StartPadding": [most - 1, 0]}
    tracemalloc.start()
    made = run(far | {"EndPadding": [most, 0]}, {"InputTensor": x, "FilterTensor": w})["OutputTensor"]
    assert made.tolist() == [[[[2, 2], [2, 2]]]]  # the last element of the filter, then the first
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_columns_are_bounded(request: pytest.FixtureRequest) -> None:
    """9 times 64 channels of 256 x 256 would be 150 MB."""
    if "pieces" in request.node.name:
        pytest.skip("which is for small tensors")
    x, w = np.ones((1, 64, 256, 256), "f4"), np.ones((1, 64, 3, 3), "f4")
    tracemalloc.start()
    run(PLAIN, {"InputTensor": x, "FilterTensor": w})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * x.nbytes + (12 << 20)  # the test's own copies of the input, and the scratch


def test_results_are_rounded_once() -> None:
    x = np.array([[[[1024, 0.25, 0.25]]]], np.float16)
    made = run(PLAIN, {"InputTensor": x, "FilterTensor": np.ones((1, 1, 1, 3), np.float16)})["OutputTensor"]
    assert made.item() == 1024  # 1024.5, halfway: to even
    bias = np.full((1, 1, 1, 1), 0.25, np.float16)
    made = run(PLAIN, {"InputTensor": x, "FilterTensor": np.ones((1, 1, 1, 3), np.float16), "BiasTensor": bias})[
        "OutputTensor"
    ]
    assert made.item() == 1025


def test_padding_of_the_output_is_0_whatever_bias_and_activation() -> None:
    x, w = np.ones((1, 1, 2, 2), "f4"), np.ones((1, 1, 2, 2), "f4")
    bias = np.full((1, 1, 1, 1), 7, "f4")
    for direction, size in (("FORWARD", 1), ("BACKWARD", 3)):
        document = PLAIN | {"Direction": direction, "OutputPadding": [1, 2], "Mode": "CONVOLUTION"}
        fused = {"Type": "ACTIVATION_SIGMOID"}
        made = run(document | {"FusedActivation": fused}, {"InputTensor": x, "FilterTensor": w, "BiasTensor": bias})
        result = made["OutputTensor"][0, 0]
        assert result.shape == (size + 1, size + 2)
        assert (result[size:] == 0).all()
        assert (result[:, size:] == 0).all()
        assert (result[:size, :size] > 0.99).all()


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("direction", ["FORWARD", "BACKWARD"])
def test_an_activation_that_has_no_loop_is_applied_too(direction: str, dtype: str) -> None:
    """CELU of a negative Alpha is NumPy's to compute. Padding of the output is 0 all the same."""
    rng = np.random.default_rng(3)
    x, w = ((rng.standard_normal(sizes) / 2).astype(dtype) for sizes in ((2, 3, 9, 64), (3, 3, 2, 2)))
    given = {"InputTensor": x, "FilterTensor": w, "BiasTensor": np.ones((1, 3, 1, 1), dtype)}
    for padding in ([0, 0], [1, 2]):
        document = PLAIN | {"Direction": direction, "OutputPadding": padding}
        plain = run(document, given)["OutputTensor"].astype(np.float64)
        activated = document | {"FusedActivation": {"Type": "ACTIVATION_CELU", "Alpha": -1}}
        wanted = np.maximum(plain, 0) + np.minimum(1 - np.exp(-plain), 0)
        tolerance = 1e-5 if dtype == "float32" else 1e-2
        np.testing.assert_allclose(run(activated, given)["OutputTensor"], wanted, tolerance, tolerance)


def desc(*sizes: int) -> dict[str, Any]:
    return {"DataType": "FLOAT32", "Sizes": list(sizes)}


ARRAYS = ("Strides", "Dilations", "StartPadding", "EndPadding", "OutputPadding")


def test_arrays_of_other_lengths() -> None:
    found = refusals(GROUPED | {name: [1, 1, 1] for name in ARRAYS} | {"DimensionCount": 3})
    assert [(each.pointer, each.allowed) for each in found] == [(f"/{name}", 2) for name in ARRAYS]
    for each in found:
        check_wording(each)


GROUPED = PLAIN | {"InputTensor": desc(2, 4, 5, 6), "FilterTensor": desc(6, 2, 3, 3), "GroupCount": 2}
BACKWARD = GROUPED | {"Direction": "BACKWARD", "FilterTensor": desc(4, 3, 3, 3), "Strides": [2, 2]}


@pytest.mark.parametrize(
    ("document", "members", "pointer", "allowed"),
    [
        *[(GROUPED, {name: [1]}, f"/{name}", 2) for name in ARRAYS],
        (GROUPED, {"DimensionCount": 3}, "/DimensionCount", 2),
        (GROUPED, {"Strides": [1, 0]}, "/Strides/1", ">= 1"),
        (GROUPED, {"Dilations": [0, 1]}, "/Dilations/0", ">= 1"),
        (GROUPED, {"GroupCount": 0}, "/GroupCount", ">= 1"),
        (GROUPED, {"GroupCount": 3}, "/GroupCount", "a divisor of 4"),
        (GROUPED, {"FilterTensor": desc(6, 4, 3, 3)}, "/FilterTensor/Sizes", [6, 2, 3, 3]),
        (GROUPED, {"FilterTensor": desc(5, 2, 3, 3)}, "/FilterTensor/Sizes", None),
        (GROUPED, {"FilterTensor": desc(6, 2, 6, 3)}, "/OutputTensor/Sizes", None),
        (GROUPED, {"FilterTensor": desc(6, 2, 6, 3), "OutputPadding": [1, 0]}, "/OutputTensor/Sizes", None),
        (GROUPED, {"BiasTensor": desc(6, 1, 1, 1)}, "/BiasTensor/Sizes", [1, 6, 1, 1]),
        (GROUPED, {"OutputTensor": desc(2, 6, 5, 6)}, "/OutputTensor/Sizes", [2, 6, 3, 4]),
        (GROUPED, {"FusedActivation": {"Type": "ACTIVATION_SOFTMAX"}}, "/FusedActivation/Type", None),
        (BACKWARD, {"FilterTensor": desc(6, 2, 3, 3)}, "/FilterTensor/Sizes", [4, 2, 3, 3]),
        (BACKWARD, {"BiasTensor": desc(1, 3, 1, 1)}, "/BiasTensor/Sizes", [1, 6, 1, 1]),
        (BACKWARD, {"OutputTensor": desc(2, 6, 13, 13)}, "/OutputTensor/Sizes", [2, 6, 11, 13]),
        (BACKWARD, {"OutputTensor": desc(2, 6, 10, 13)}, "/OutputTensor/Sizes", [2, 6, 11, 13]),
    ],
)
def test_refusals(document: dict[str, Any], members: dict[str, Any], pointer: str, allowed: object) -> None:
    assert refusals(document) == []
    found = refusals(document | members)
    for each in found:
        check_wording(each)
    assert [each.pointer for each in found if each.allowed == allowed or allowed is None] == [pointer]


@pytest.mark.parametrize(
    ("document", "members", "name"),
    [
        (BACKWARD | {"FilterTensor": desc(4, 3, 3, 3)}, {"Direction": "FORWARD"}, "Direction is FORWARD"),
        (GROUPED, {"Direction": "BACKWARD"}, "Direction is BACKWARD"),
        (BACKWARD | {"BiasTensor": desc(1, 6, 1, 1)}, {"GroupCount": 1}, "GroupCount"),
    ],
)
def test_refusals_of_channels_name_what_they_follow_from(
    document: dict[str, Any], members: dict[str, Any], name: str
) -> None:
    (refusal,) = refusals(document | members)
    check_wording(refusal)
    assert name in refusal.message
