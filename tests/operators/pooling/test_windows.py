"""Averages, norms and maxima of windows against plain loops, and what they refuse."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.contract.tensors import TensorDesc
from app.devices.device import own_bytes
from app.memory.arrays import Array
from app.operators.pooling import averages, maxima
from tests.contract.refusals import check_wording
from tests.operators.arrays import laid_out
from tests.operators.calls import NUMPY, run
from tests.operators.descriptors import compiled, descriptor, refusals
from tests.operators.pooling.plain import drawn, elements, of_all, pooled, windows

FORWARD = [
    *("AVERAGE_POOLING", "AVERAGE_POOLING1", "LP_POOLING", "LP_POOLING1"),
    *("MAX_POOLING", "MAX_POOLING1", "MAX_POOLING2", "QUANTIZED_LINEAR_AVERAGE_POOLING"),
]
ALL = ["float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"]


def is_dilated(kind: str) -> bool:
    return kind in ("AVERAGE_POOLING1", "LP_POOLING1", "MAX_POOLING2", "MAX_POOLING_GRAD") or "QUANTIZED" in kind


def close(made: Array, exact: Array) -> None:
    """To one rounding, or for norms of odd exponents a few."""
    np.testing.assert_allclose(made, exact.astype(made.dtype), rtol=4 * np.finfo(made.dtype).eps)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("kind", ["AVERAGE_POOLING", "AVERAGE_POOLING1"])
def test_averages(kind: str, include: bool) -> None:
    rng = np.random.default_rng(1)
    for turn in range(16):
        sizes, attributes = drawn(rng, dilated=is_dilated(kind))
        x = laid_out(rng, elements(rng, sizes, "float16" if turn % 3 == 0 else "float32"))
        exact = np.zeros((*sizes[:2], *pooled(sizes[2:], attributes)))
        for place, inside in windows(sizes[2:], attributes):
            total = sum(x[of_all(at)].astype(float) for at in inside)
            divisor = np.prod(attributes["WindowSize"]) if include else max(len(inside), 1)
            exact[of_all(place)] = total / divisor
        close(run({"Type": kind, "IncludePadding": include, **attributes}, InputTensor=x)["OutputTensor"], exact)


@pytest.mark.parametrize("exponent", [1, 2, 3, 7, averages.MOST_RAISED])
@pytest.mark.parametrize("kind", ["LP_POOLING", "LP_POOLING1"])
def test_norms(kind: str, exponent: int) -> None:
    rng = np.random.default_rng(exponent)
    for turn in range(8):
        sizes, attributes = drawn(rng, dilated=is_dilated(kind))
        x = laid_out(rng, elements(rng, sizes, "float16" if turn % 3 == 0 else "float32"))
        exact = np.zeros((*sizes[:2], *pooled(sizes[2:], attributes)))
        for place, inside in windows(sizes[2:], attributes):
            exact[of_all(place)] = sum(np.abs(x[of_all(at)].astype(float)) ** exponent for at in inside)
        exact **= 1 / exponent
        close(run({"Type": kind, "P": exponent, **attributes}, InputTensor=x)["OutputTensor"], exact)


def norm(*x: float, exponent: int) -> float:
    plane = np.array(x, np.float32).reshape(1, 1, 1, -1)
    window = {"Strides": [1, 1], "WindowSize": [1, len(x)], "StartPadding": [0, 0], "EndPadding": [0, 0]}
    return float(run({"Type": "LP_POOLING", "P": exponent, **window}, InputTensor=plane)["OutputTensor"].item())


@pytest.mark.parametrize("exponent", [1, 2, 3, 50, averages.MOST_RAISED, averages.MOST_RAISED + 1, 2**32 - 1])
def test_norms_neither_overflow_nor_vanish(exponent: int) -> None:
    assert norm(1e38, 0, exponent=exponent) == pytest.approx(1e38)
    assert norm(-1e-40, 0, exponent=exponent) == pytest.approx(1e-40, rel=1e-4)
    assert norm(1e30, 1e30, exponent=exponent) == pytest.approx(1e30 * 2 ** (1 / exponent))
    assert norm(0, -0.0, exponent=exponent) == 0
    assert norm(1, -np.inf, exponent=exponent) == np.inf
    assert np.isnan(norm(1, np.nan, exponent=exponent))


def maximum_of(x: Array, attributes: dict[str, Any]) -> tuple[Array, Array]:
    """Each window's maximum, and the index of the first one; NaN is greater than all."""
    sizes = list(x.shape)
    shape = (*sizes[:2], *pooled(sizes[2:], attributes))
    least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    made, index = np.full(shape, least, x.dtype), np.zeros(shape, np.uint64)
    for place, inside in windows(sizes[2:], attributes):
        for n, c in np.ndindex(*shape[:2]):
            if inside:
                values = np.array([x[(n, c, *at)] for at in inside])
                best = int(values.argmax())
                made[(n, c, *place)] = values[best]
                index[(n, c, *place)] = np.ravel_multi_index((n, c, *inside[best]), x.shape)
    return made, index


@pytest.mark.parametrize("data_type", ALL)
@pytest.mark.parametrize("kind", ["MAX_POOLING", "MAX_POOLING1", "MAX_POOLING2"])
def test_maxima(kind: str, data_type: str) -> None:
    rng = np.random.default_rng(3)
    for turn in range(4):
        sizes, attributes = drawn(rng, dilated=is_dilated(kind))
        x = elements(rng, sizes, data_type)
        if x.dtype.kind == "f" and turn % 2:
            x[rng.random(sizes) < 0.2] = np.nan
            x[rng.random(sizes) < 0.2] = -np.inf
        x = laid_out(rng, x)
        exact, index = maximum_of(x, attributes)
        document = {"Type": kind, **attributes}
        if kind != "MAX_POOLING":
            output = "UINT64" if turn % 2 else "UINT32"
            document["OutputIndicesTensor"] = {"DataType": output, "Sizes": list(exact.shape)}
        made = run(document, InputTensor=x)
        np.testing.assert_array_equal(made["OutputTensor"], exact)
        if kind != "MAX_POOLING":
            np.testing.assert_array_equal(made["OutputIndicesTensor"], index)


def test_maxima_without_indices() -> None:
    document = descriptor("DML_OPERATOR_MAX_POOLING1", OutputIndicesTensor=None)
    assert list(compiled(document).outputs) == ["OutputTensor"]


@pytest.mark.parametrize("kind", FORWARD)
def test_a_window_of_padding_alone(kind: str) -> None:
    x = np.array([[[[1, 2]]]], np.uint8 if "QUANTIZED" in kind else np.float32)
    window = {"Strides": [1, 4], "WindowSize": [1, 2], "StartPadding": [0, 4], "EndPadding": [0, 0]}
    document: dict[str, Any] = {"Type": kind, "IncludePadding": False, "P": 3, "Dilations": [1, 1], **window}
    inputs = {"InputTensor": x}
    if "QUANTIZED" in kind:
        scale, zero = np.ones((1, 1, 1, 1), np.float32), np.full((1, 1, 1, 1), 7, np.uint8)
        inputs |= {"InputScaleTensor": scale, "OutputScaleTensor": scale, "OutputZeroPointTensor": zero}
    fields = descriptor("DML_OPERATOR_" + kind)
    document = {name: value for name, value in document.items() if name in fields or name == "Type"}
    if kind in ("MAX_POOLING1", "MAX_POOLING2"):
        document["OutputIndicesTensor"] = {"DataType": "UINT32", "Sizes": [1, 1, 1, 2]}
    made = run(document, inputs)
    assert made["OutputTensor"][0, 0, 0, 0] == (-np.inf if "MAX" in kind else 7 if "QUANTIZED" in kind else 0)
    if "OutputIndicesTensor" in made:
        np.testing.assert_array_equal(made["OutputIndicesTensor"].reshape(-1), [0, 1])


def test_a_huge_window_takes_what_is_inside() -> None:
    """Time goes with the input, not with what is around it."""
    most = 2**32 - 1
    x = np.array([[[[1, -5], [2, 3]]]], np.float32)
    window = {"Strides": [1, 1], "WindowSize": [most] * 2, "StartPadding": [most - 2] * 2, "EndPadding": [0, 0]}
    for kind, exact in (("MAX_POOLING2", 3), ("AVERAGE_POOLING1", 0.25)):
        document: dict[str, Any] = {"Type": kind, **window, "Dilations": [1, 1]}
        document |= {"IncludePadding": False} if kind == "AVERAGE_POOLING1" else {}
        assert run(document, InputTensor=x)["OutputTensor"].tolist() == [[[[exact]]]]


# Quantized


@pytest.mark.parametrize("per_channel", [False, True])
def test_quantized_averages(per_channel: bool) -> None:
    rng = np.random.default_rng(5)
    for turn in range(16):
        sizes, attributes = drawn(rng, dilated=True)
        x = laid_out(rng, rng.integers(0, 128, sizes).astype(np.int8 if turn % 2 else np.uint8))
        output = np.int8 if turn % 4 < 2 else np.uint8
        shape = ([1] if turn else []) + [sizes[1]] + [1] * (turn % 4) if per_channel else [1] * int(rng.integers(1, 6))
        x_scale, scale = (rng.integers(1, 9, shape).astype(np.float32) / 8 for _ in range(2))
        x_zero, zero = rng.integers(0, 9, shape).astype(x.dtype), rng.integers(0, 9, shape).astype(output)
        include = bool(turn % 3)
        exact = np.zeros((*sizes[:2], *pooled(sizes[2:], attributes)))
        across = (1, -1, *[1] * (len(sizes) - 2)) if per_channel else (1,) * len(sizes)
        real = (x.astype(float) - x_zero.reshape(across)) * x_scale.reshape(across)
        for place, inside in windows(sizes[2:], attributes):
            divisor = np.prod(attributes["WindowSize"]) if include else max(len(inside), 1)
            exact[of_all(place)] = sum(real[of_all(at)] for at in inside) / divisor
        moved = np.rint(exact / scale.reshape(across)) + zero.reshape(across)
        limits = np.iinfo(output)
        made = run(
            {"Type": "QUANTIZED_LINEAR_AVERAGE_POOLING", "IncludePadding": include, **attributes},
            InputTensor=x,
            InputScaleTensor=x_scale,
            InputZeroPointTensor=x_zero,
            OutputScaleTensor=scale,
            OutputZeroPointTensor=zero,
        )["OutputTensor"]
        assert made.dtype == output
        np.testing.assert_array_equal(made, np.clip(moved, limits.min, limits.max).astype(output))


@pytest.mark.parametrize("kind", [*FORWARD, "AVERAGE_POOLING_GRAD", "MAX_POOLING_GRAD"])
def test_sizes_rounded_up_are_those_of_more_padding(kind: str) -> None:
    """A last window that reaches beyond the padding, as Chromium's WebNN has it for sizes rounded up."""
    rng = np.random.default_rng(8)
    there = 0
    for turn in range(24):
        sizes, attributes = drawn(rng, dilated=is_dilated(kind))
        padded = attributes | {"EndPadding": reaching(sizes[2:], attributes)}
        shape = [*sizes[:2], *pooled(sizes[2:], padded)]
        there += padded != attributes
        dtype = "uint8" if "QUANTIZED" in kind else "float32"
        x = elements(rng, sizes, dtype)
        output: dict[str, Any] = {"DataType": dtype.upper(), "Sizes": shape}
        document: dict[str, Any] = {"Type": kind, "IncludePadding": bool(turn % 2), "P": 2}
        document = {name: value for name, value in document.items() if name in example(kind)}
        inputs = {"InputTensor": x}
        if kind.endswith("_GRAD"):
            inputs["InputGradientTensor"] = elements(rng, shape, dtype)
            if kind.startswith("AVERAGE"):
                del inputs["InputTensor"]
                document["OutputGradientTensor"] = {"DataType": "FLOAT32", "Sizes": sizes}
        else:
            document["OutputTensor"] = output
        if kind in ("MAX_POOLING1", "MAX_POOLING2"):
            document["OutputIndicesTensor"] = output | {"DataType": "UINT32"}
        if "QUANTIZED" in kind:
            scale = np.full((1, 1, 1, 1), 0.5, np.float32)
            inputs |= {"InputScaleTensor": scale, "OutputScaleTensor": scale}
        made, same = run(document | attributes, inputs), run(document | padded, inputs)
        assert made.keys() == same.keys()
        for name in made:
            np.testing.assert_array_equal(made[name], same[name])
    assert there > 5


@pytest.mark.parametrize("shape", [[1, 1, 3, 2], [1, 1, 1, 3], [1, 1, 0x7FFFFFFF, 2]])
def test_sizes_that_are_none_are_told_those_rounded_down(shape: list[int]) -> None:
    """Not some of each, along a dimension for which they were right."""
    tensors = {"InputTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 4, 4]}}
    tensors["OutputTensor"] = {"DataType": "FLOAT32", "Sizes": shape}
    attributes = {"WindowSize": [3, 3], "Strides": [2, 2], "StartPadding": [0, 0], "EndPadding": [0, 0]}
    (refusal,) = refusals(descriptor("DML_OPERATOR_MAX_POOLING", **tensors, **attributes))
    check_wording(refusal)
    assert (refusal.pointer, refusal.given, refusal.allowed) == ("/OutputTensor/Sizes", shape, [1, 1, 1, 1])


@pytest.mark.parametrize(("shape", "of_indices"), [([1, 1, 2, 2], [1, 1, 2, 1]), ([1, 1, 1, 2], [1, 1, 1, 1])])
def test_sizes_are_rounded_up_only_where_all_outputs_have_them(shape: list[int], of_indices: list[int]) -> None:
    """The output that is not as the page says is told, and not the one that is."""
    tensors = {
        "InputTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 4, 4]},
        "OutputTensor": {"DataType": "FLOAT32", "Sizes": shape},
        "OutputIndicesTensor": {"DataType": "UINT32", "Sizes": of_indices},
    }
    attributes = {"WindowSize": [3, 3], "Strides": [2, 2], "StartPadding": [0, 0], "EndPadding": [0, 0]}
    for kind in ("MAX_POOLING1", "MAX_POOLING2"):
        more = {"Dilations": [1, 1]} if is_dilated(kind) else {}
        found = refusals(descriptor(f"DML_OPERATOR_{kind}", **tensors, **attributes, **more))
        assert {each.pointer: each.given for each in found} == {
            f"/{name}/Sizes": tensors[name]["Sizes"]
            for name in ("OutputTensor", "OutputIndicesTensor")
            if tensors[name]["Sizes"] != [1, 1, 1, 1]
        }
        assert {str(each.allowed) for each in found} == {"[1, 1, 1, 1]"}


def reaching(sizes: list[int], a: dict[str, Any]) -> list[int]:
    """The EndPadding with which a last window fits that the given one cuts off."""
    dilations = a.get("Dilations", [1] * len(sizes))
    behind = []
    for size, stride, window, dilation, start, end in zip(
        sizes, a["Strides"], a["WindowSize"], dilations, a["StartPadding"], a["EndPadding"], strict=True
    ):
        room = size + start + end - 1 - (window - 1) * dilation
        behind.append(end + -room % stride)
    return behind


# The ways back


@pytest.mark.parametrize("include", [False, True])
def test_gradients_of_averages(include: bool) -> None:
    rng = np.random.default_rng(6)
    for turn in range(16):
        sizes, attributes = drawn(rng, dilated=False)
        shape = [*sizes[:2], *pooled(sizes[2:], attributes)]
        dy = laid_out(rng, elements(rng, shape, "float16" if turn % 3 == 0 else "float32"))
        exact = np.zeros(sizes)
        for place, inside in windows(sizes[2:], attributes):
            for at in inside:
                divisor = np.prod(attributes["WindowSize"]) if include else len(inside)
                exact[of_all(at)] += dy[of_all(place)].astype(float) / divisor
        document = {"Type": "AVERAGE_POOLING_GRAD", "IncludePadding": include, **attributes}
        document["OutputGradientTensor"] = {"DataType": dy.dtype.name.upper(), "Sizes": sizes}
        made = run(document, InputGradientTensor=dy)["OutputGradientTensor"]
        np.testing.assert_allclose(made, exact.astype(made.dtype), rtol=2 * np.finfo(made.dtype).eps, atol=1e-7)


@pytest.mark.parametrize("piece", [1, 5, 40, 1 << 20])
def test_gradients_of_maxima(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maxima, "_PIECE", piece)
    rng = np.random.default_rng(7)
    for turn in range(16):
        sizes, attributes = drawn(rng, dilated=True)
        dtype = "float16" if turn % 3 == 0 else "float32"
        x = elements(rng, sizes, dtype)
        if turn % 2:
            x[rng.random(sizes) < 0.2] = np.nan
            x[rng.random(sizes) < 0.3] = -np.inf
        _, index = maximum_of(x, attributes)
        dy = elements(rng, list(index.shape), dtype)
        exact = np.zeros(x.size)
        for place, inside in windows(sizes[2:], attributes):
            if inside:
                np.add.at(exact, index[of_all(place)].astype(int), dy[of_all(place)].astype(float))
        made = run(
            {"Type": "MAX_POOLING_GRAD", **attributes},
            InputTensor=laid_out(rng, x),
            InputGradientTensor=laid_out(rng, dy),
        )["OutputGradientTensor"]
        np.testing.assert_array_equal(made, exact.reshape(sizes).astype(dtype))


def test_the_gradient_of_maxima_over_huge_windows_takes_little_memory() -> None:
    most = 2**32 - 1
    x = np.arange(4096, dtype=np.float32).reshape(1, 1, 64, 64)
    window = {"Strides": [1, 1], "WindowSize": [most] * 2, "StartPadding": [most - 64] * 2, "EndPadding": [0, 0]}
    document = {"Type": "MAX_POOLING_GRAD", **window, "Dilations": [1, 1]}
    tracemalloc.start()
    dy = np.full((1, 1, 1, 1), 5, np.float32)
    made = run(document, InputTensor=x, InputGradientTensor=dy)["OutputGradientTensor"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
    assert made[0, 0, 63, 63] == made.sum() == 5


@pytest.mark.parametrize("size", [1, 1 << 21])
def test_memory_for_the_gradient_of_maxima_over_a_large_plane_is_counted(size: int) -> None:
    document = {
        "Type": "MAX_POOLING_GRAD",
        "InputTensor": {"DataType": "FLOAT16", "Sizes": [1, 1, 1, size]},
        "InputGradientTensor": {"DataType": "FLOAT16", "Sizes": [1, 1, 1, 1 << 21]},
        **{name: [1, 1] for name in ("Strides", "Dilations")},
        "WindowSize": [1, 2],
        "StartPadding": [0, 0],
        "EndPadding": [0, (1 << 21) + 1 - size],
    }
    operator = compiled(document)
    inputs = [memoryview(bytes(each.data_bytes)) for each in operator.inputs.values()]
    (output,) = (memoryview(bytearray(each.data_bytes)) for each in operator.outputs.values())
    kernel = NUMPY.prepare(operator)
    tracemalloc.start()
    kernel.dispatch(inputs, [output], lambda: False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < own_bytes(kernel) + (40 << 20)


@pytest.mark.parametrize("index_type", ["uint32", "uint64"])
@pytest.mark.parametrize("data_type", ALL)
def test_unpooling(data_type: str, index_type: str) -> None:
    rng = np.random.default_rng(8)
    for _ in range(6):
        sizes = [int(each) for each in rng.integers(1, 5, 4)]
        output = [int(each) for each in rng.integers(1, 6, 4)]
        x = elements(rng, sizes, data_type)
        indices = rng.integers(0, int(np.prod(output)) + 3, sizes).astype(index_type)
        indices[rng.random(sizes) < 0.1] = np.iinfo(index_type).max
        exact = np.zeros(int(np.prod(output)), data_type)
        for value, index in zip(x.reshape(-1), indices.reshape(-1).tolist(), strict=True):
            if index < exact.size:
                exact[index] = value
        made = run(
            {"Type": "MAX_UNPOOLING", "OutputTensor": {"DataType": data_type.upper(), "Sizes": output}},
            InputTensor=laid_out(rng, x),
            IndicesTensor=laid_out(rng, indices),
        )["OutputTensor"]
        np.testing.assert_array_equal(made, exact.reshape(output))


def test_unpooling_is_the_way_back() -> None:
    x = np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6)
    window = {"Strides": [2, 2], "WindowSize": [2, 2], "StartPadding": [0, 0], "EndPadding": [0, 0]}
    indices = {"DataType": "UINT32", "Sizes": [1, 1, 3, 3]}
    made = run({"Type": "MAX_POOLING1", "OutputIndicesTensor": indices, **window}, InputTensor=x)
    whole = {"DataType": "FLOAT32", "Sizes": [1, 1, 6, 6]}
    back = run(
        {"Type": "MAX_UNPOOLING", "OutputTensor": whole},
        InputTensor=made["OutputTensor"],
        IndicesTensor=made["OutputIndicesTensor"],
    )["OutputTensor"]
    np.testing.assert_array_equal(back, np.where(np.isin(x, made["OutputTensor"]), x, 0))


# What is refused


def pointers(document: dict[str, Any]) -> list[str]:
    found = refusals(document)
    for each in found:
        check_wording(each)
    return [each.pointer for each in found]


def example(kind: str, **members: Any) -> dict[str, Any]:
    return descriptor(f"DML_OPERATOR_{kind}") | members


@pytest.mark.parametrize("kind", [*FORWARD, "AVERAGE_POOLING_GRAD", "MAX_POOLING_GRAD"])
def test_arrays_of_windows(kind: str) -> None:
    arrays = ["Strides", "WindowSize", "StartPadding", "EndPadding", *(["Dilations"] if is_dilated(kind) else [])]
    assert pointers(example(kind)) == []
    assert pointers(example(kind, DimensionCount=2)) == []
    assert pointers(example(kind, DimensionCount=3)) == ["/DimensionCount"]
    for name in arrays:
        for wrong in ([1], [1] * 4, [], 1, [1, -1], [1, 1.5], [1, 2**32]):
            (pointer,) = pointers(example(kind, **{name: wrong}))
            assert pointer in (f"/{name}", f"/{name}/1")
        if "Padding" not in name:
            assert pointers(example(kind, **{name: [1, 0]})) == [f"/{name}/1"]
    spatial = {name: [1, 1, 1] for name in arrays}
    found = refusals(example(kind, **spatial))
    assert [(each.pointer, each.given, each.allowed) for each in found] == [(f"/{name}", 3, 2) for name in arrays]


@pytest.mark.parametrize("kind", FORWARD)
def test_sizes_of_outputs(kind: str) -> None:
    sizes = {"Sizes": [2, 3, 9, 10]}
    more = {"Strides": [2, 3], "WindowSize": [3, 2], "StartPadding": [1, 0], "EndPadding": [0, 5]}
    more |= {"Dilations": [2, 3]} if is_dilated(kind) else {}
    document = example(kind, **more)
    document["InputTensor"] = document["InputTensor"] | sizes
    right = [2, 3, 3, 4] if is_dilated(kind) else [2, 3, 4, 5]
    assert compiled(document).outputs["OutputTensor"].Sizes == right
    data_type = compiled(document).outputs["OutputTensor"].DataType
    for wrong in ([2, 3, 2, 4], [2, 3, 3, 3], [2, 3, 3, 7], [3, 2, 3, 4], [2, 3, 12], [2, 3, 3, 4, 1]):
        stated = {"DataType": data_type, "Sizes": wrong}
        found = refusals(document | {"OutputTensor": stated})
        assert {each.pointer for each in found} == {"/OutputTensor/Sizes"}
        if len(wrong) == 4:
            assert found[0].allowed == right
    for up in ([0, 1], [1, 0], [1, 1]):  # for the window that the last elements begin
        rounded = {"DataType": data_type, "Sizes": [*right[:2], right[2] + up[0], right[3] + up[1]]}
        assert pointers(document | {"OutputTensor": rounded}) == []
    if "OutputIndicesTensor" in type(compiled(document).operator).model_fields:
        assert pointers(document | {"OutputIndicesTensor": {"DataType": "UINT32", "Sizes": right}}) == []
        wrong_indices = {"DataType": "UINT32", "Sizes": [2, 3, 4, 4]}
        assert pointers(document | {"OutputIndicesTensor": wrong_indices}) == ["/OutputIndicesTensor/Sizes"]
        rounded = {"Sizes": [*right[:3], right[3] + 1]}
        both = {
            "OutputTensor": rounded | {"DataType": data_type},
            "OutputIndicesTensor": rounded | {"DataType": "UINT32"},
        }
        assert pointers(document | both) == []
        assert pointers(document | both | {"OutputTensor": None}) == ["/OutputIndicesTensor/Sizes"]


@pytest.mark.parametrize("kind", [*FORWARD, "AVERAGE_POOLING_GRAD", "MAX_POOLING_GRAD"])
def test_a_window_larger_than_all(kind: str) -> None:
    """It is the window that is refused, and not the size below 1 that an output would have."""
    name = "OutputGradientTensor" if kind == "AVERAGE_POOLING_GRAD" else "InputTensor"
    document = example(kind)
    document[name] = document[name] | {"Sizes": [1, 1, 2, 3]}
    (refusal,) = refusals(document | {"WindowSize": [3, 1]})
    check_wording(refusal)
    assert (refusal.pointer, refusal.given, refusal.allowed) == ("/WindowSize/0", 3, "<= 2")
    assert name in refusal.message
    assert "in steps" not in refusal.message
    (refusal,) = refusals(document | {"WindowSize": [2, 5], "StartPadding": [0, 1]})
    assert (refusal.pointer, refusal.given, refusal.allowed) == ("/WindowSize/1", 5, "<= 4")
    if is_dilated(kind):
        (refusal,) = refusals(document | {"WindowSize": [2, 2], "Dilations": [2, 3], "EndPadding": [0, 1]})
        assert "is 2 elements in steps of 2 (Dilations[0]); " in refusal.message
        assert (refusal.pointer, refusal.given, refusal.allowed) == ("/WindowSize/0", 2, "<= 1")
        assert all(f"{each}[0]" in refusal.message for each in ("Dilations", "StartPadding", "EndPadding"))
    if kind in FORWARD:
        assert pointers(document | {"WindowSize": [3, 1], "EndPadding": [1, 0]}) == []


@pytest.mark.parametrize("kind", ["AVERAGE_POOLING_GRAD", "MAX_POOLING_GRAD"])
def test_sizes_of_gradients(kind: str) -> None:
    given = {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 2]}
    (refusal,) = refusals(example(kind, InputGradientTensor=given))
    check_wording(refusal)
    assert (refusal.pointer, refusal.allowed) == ("/InputGradientTensor/Sizes", [1, 1, 2, 3])
    arrays = ["Strides", "WindowSize", "StartPadding", "EndPadding", *(["Dilations"] if is_dilated(kind) else [])]
    assert all(name in refusal.message for name in arrays)


def test_the_gradient_of_maxima_has_the_inputs_sizes() -> None:
    assert compiled(example("MAX_POOLING_GRAD")).outputs["OutputGradientTensor"] == TensorDesc(
        DataType=DataType.FLOAT32, Sizes=[1, 1, 3, 4]
    )
    wrong = {"DataType": "FLOAT32", "Sizes": [1, 1, 4, 3]}
    assert pointers(example("MAX_POOLING_GRAD", OutputGradientTensor=wrong)) == ["/OutputGradientTensor/Sizes"]


def test_exponents() -> None:
    for kind in ("LP_POOLING", "LP_POOLING1"):
        for wrong in (0, -1, 1.5, 2**32, None, True):
            assert pointers(example(kind, P=wrong)) == ["/P"]


def test_indices_have_the_inputs_sizes() -> None:
    wrong = {"DataType": "UINT32", "Sizes": [1, 1, 3, 2]}
    assert pointers(example("MAX_UNPOOLING", IndicesTensor=wrong)) == ["/IndicesTensor/Sizes"]


@pytest.mark.parametrize("name", ["InputScaleTensor", "InputZeroPointTensor", "OutputScaleTensor"])
def test_parameters_of_quantization(name: str) -> None:
    kind = "QUANTIZED_LINEAR_AVERAGE_POOLING"
    x = {"DataType": "INT8", "Sizes": [2, 3, 4, 5]}
    data_type = "INT8" if "ZeroPoint" in name else "FLOAT32"
    zero = {"InputZeroPointTensor": {"DataType": "INT8", "Sizes": [1]}}
    for sizes in ([1], [1, 1], [1, 1, 1, 1, 1], [1, 3, 1, 1], [3], [1, 3], [1, 3, 1], [1, 3, 1, 1, 1]):
        members = zero | {"InputTensor": x, name: {"DataType": data_type, "Sizes": sizes}}
        assert pointers(example(kind, **members)) == []
    for sizes in ([1, 2, 1, 1], [3, 1, 1, 1], [2, 3, 4, 5]):
        members = zero | {"InputTensor": x, name: {"DataType": data_type, "Sizes": sizes}}
        (refusal,) = refusals(example(kind, **members))
        check_wording(refusal)
        assert (refusal.pointer, refusal.allowed) == (f"/{name}/Sizes", [1, 3, 1, 1])


def test_type_of_a_left_out_quantized_output() -> None:
    kind = "QUANTIZED_LINEAR_AVERAGE_POOLING"
    zero = {"DataType": "UINT8", "Sizes": [1]}
    made = compiled(example(kind, OutputZeroPointTensor=zero)).outputs["OutputTensor"]
    assert made.DataType is DataType.UINT8
    x = {"DataType": "INT8", "Sizes": [1, 1, 2, 3]}
    absent = {"InputZeroPointTensor": None, "OutputZeroPointTensor": None}
    assert compiled(example(kind, InputTensor=x, **absent)).outputs["OutputTensor"].DataType is DataType.INT8
