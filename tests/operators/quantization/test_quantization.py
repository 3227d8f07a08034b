"""Quantized operators against NumPy's integers and float64, written from the documented formulas; refusals."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.memory.arrays import Array, apart, together
from app.operators.quantization.elements import Quantize
from tests.contract.refusals import check_wording
from tests.operators.arrays import desc_of, laid_out
from tests.operators.calls import DEVICE, compiled, run
from tests.operators.descriptors import descriptor, refusals

INTEGERS = ["int8", "uint8"]


def desc(data_type: str, *sizes: int) -> dict[str, Any]:
    return {"DataType": data_type, "Sizes": list(sizes)}


def integers(rng: np.random.Generator, sizes: list[int], dtype: str) -> Array:
    limits = np.iinfo(dtype)
    return laid_out(rng, rng.integers(limits.min, limits.max, sizes, endpoint=True).astype(dtype))


def scales(rng: np.random.Generator, sizes: list[int], dtype: str = "float32") -> Array:
    return laid_out(rng, (rng.random(sizes) + 0.1).astype(dtype))


def clamped(values: Array, zero: Array | int, dtype: str) -> Array:
    limits = np.iinfo(dtype)
    return np.clip(np.rint(values) + zero, limits.min, limits.max).astype(dtype)


def by_rows(rng: np.random.Generator, matrices: list[int], *, of_columns: bool = False) -> list[int]:
    """Sizes of one element, or one for each row or column."""
    size = matrices[-1] if of_columns else matrices[-2]
    whole = [1, size] if of_columns else [size, 1]
    return [[1] * len(matrices), [*[1] * (len(matrices) - 2), *whole], [*matrices[:-2], *whole]][rng.integers(3)]


def operands(rng: np.random.Generator, a_type: str, b_type: str) -> tuple[list[int], list[int], Array, Array]:
    batch = [int(each) for each in rng.integers(1, 3, rng.integers(0, 3))]
    m, k, n = (int(each) for each in rng.integers(1, 7, 3))
    a, b = [*batch, m, k], [*batch, k, n]
    return a, b, integers(rng, a, a_type), integers(rng, b, b_type)


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("a_type", INTEGERS)
@pytest.mark.parametrize("b_type", INTEGERS)
def test_products_of_integers(a_type: str, b_type: str) -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        a_sizes, b_sizes, a, b = operands(rng, a_type, b_type)
        a_zero = integers(rng, by_rows(rng, a_sizes), a_type)
        b_zero = integers(rng, by_rows(rng, b_sizes, of_columns=True), b_type) if rng.random() < 0.7 else None
        inputs = {"ATensor": a, "AZeroPointTensor": a_zero, "BTensor": b, "BZeroPointTensor": b_zero}
        made = run({"Type": "MATRIX_MULTIPLY_INTEGER"}, inputs)["OutputTensor"]
        right = b.astype(int) - (0 if b_zero is None else b_zero.astype(int))
        np.testing.assert_array_equal(made, (a.astype(int) - a_zero) @ right)


@pytest.mark.usefixtures("on_each_device")
def test_zero_points_of_one_dimension() -> None:
    a, b = np.zeros((3, 2), np.uint8), np.eye(2, dtype=np.uint8)
    rows, columns = np.array([1, 2, 3], np.uint8), np.array([5, 6], np.uint8)
    made = run({"Type": "MATRIX_MULTIPLY_INTEGER"}, {"ATensor": a, "AZeroPointTensor": rows, "BTensor": b})
    np.testing.assert_array_equal(made["OutputTensor"], [[-1, -1], [-2, -2], [-3, -3]])
    made = run({"Type": "MATRIX_MULTIPLY_INTEGER"}, {"ATensor": a + 1, "BTensor": b, "BZeroPointTensor": columns})
    np.testing.assert_array_equal(made["OutputTensor"], [[-9, -11]] * 3)


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("each", [True, False])
def test_scales_and_zero_points_of_more_dimensions_than_the_matrices(each: bool, rank: int) -> None:
    rng = np.random.default_rng(7)
    a, b = integers(rng, [2, 3, 4][-rank:], "int8"), integers(rng, [2, 4, 5][-rank:], "uint8")
    rows, columns = ([1, 1, 3, 1], [1, 1, 1, 5]) if each else ([1] * 4, [1] * 4)
    zeros = {"AZeroPointTensor": integers(rng, rows, "int8"), "BZeroPointTensor": integers(rng, columns, "uint8")}
    left, right = (
        x.astype(int) - zero.reshape(-1, 1) if x is a else x.astype(int) - zero.reshape(-1)
        for x, zero in zip((a, b), zeros.values(), strict=True)
    )
    made = run({"Type": "MATRIX_MULTIPLY_INTEGER"}, {"ATensor": a, "BTensor": b, **zeros})["OutputTensor"]
    np.testing.assert_array_equal(made, left @ right)
    by = {name: np.full(sizes, 0.5, np.float32) for name, sizes in (("AScaleTensor", rows), ("BScaleTensor", columns))}
    output: dict[str, Array] = {"OutputScaleTensor": np.full(rows, 64, np.float32)}
    output["OutputZeroPointTensor"] = np.full(rows, 3, np.int8)
    document = {"Type": "QUANTIZED_LINEAR_MATRIX_MULTIPLY"}
    made = run(document, {"ATensor": a, "BTensor": b, **zeros, **by, **output})["OutputTensor"]
    np.testing.assert_array_equal(made, clamped(left @ right / 256, 3, "int8"))


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("terms", [258, 259, 33025, 33026, 70000])
def test_sums_are_exact_and_wrap(terms: int) -> None:
    a = np.broadcast_to(np.uint8(255), (2, terms)).copy()
    a[1, -1] = 254
    made = run({"Type": "MATRIX_MULTIPLY_INTEGER"}, {"ATensor": a, "BTensor": a[:1].T})["OutputTensor"]
    exact = np.array([[terms * 65025], [terms * 65025 - 255]])
    np.testing.assert_array_equal(made, exact.astype(np.int32))
    plain = {"Type": "CONVOLUTION_INTEGER", "GroupCount": 1} | {
        name: [1] if name in ("Strides", "Dilations") else [0]
        for name in ("Strides", "Dilations", "StartPadding", "EndPadding")
    }
    made = run(plain, {"InputTensor": a[:, None], "FilterTensor": a[:1, None]})["OutputTensor"]
    np.testing.assert_array_equal(made.reshape(2, 1), exact.astype(np.int32))


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("types", [("int8", "uint8", "int8"), ("uint8", "int8", "uint8")])
def test_products_of_quantized_matrices(types: tuple[str, str, str]) -> None:
    rng = np.random.default_rng(2)
    for _ in range(12):
        a_sizes, b_sizes, a, b = operands(rng, types[0], types[1])
        rank = len(a_sizes)
        ones = [1] * rank
        inputs: dict[str, Array | None] = {
            "ATensor": a,
            "AScaleTensor": scales(rng, by_rows(rng, a_sizes)),
            "AZeroPointTensor": integers(rng, by_rows(rng, a_sizes), types[0]) if rng.random() < 0.7 else None,
            "BTensor": b,
            "BScaleTensor": scales(rng, by_rows(rng, b_sizes, of_columns=True)),
            "BZeroPointTensor": integers(rng, by_rows(rng, b_sizes, of_columns=True), types[1]),
            "OutputScaleTensor": scales(rng, by_rows(rng, a_sizes)) * 500,
            "OutputZeroPointTensor": integers(rng, by_rows(rng, a_sizes) if rng.random() < 0.5 else ones, types[2]),
        }
        made = run({"Type": "QUANTIZED_LINEAR_MATRIX_MULTIPLY"}, inputs)["OutputTensor"]
        wide = {name: np.asarray(0.0 if each is None else each, float) for name, each in inputs.items()}
        sums = (wide["ATensor"] - wide["AZeroPointTensor"]) @ (wide["BTensor"] - wide["BZeroPointTensor"])
        quotient = sums * (wide["AScaleTensor"] * wide["BScaleTensor"]) / wide["OutputScaleTensor"]
        np.testing.assert_array_equal(made, clamped(quotient, wide["OutputZeroPointTensor"].astype(int), types[2]))


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("of", "by"),
    [
        *((each, each) for each in ("int8", "uint8", "int16", "uint16", "int32", "uint32")),
        *(("int8", "uint8"), ("uint8", "int8")),
    ],
)
def test_products_to_floats(of: str, by: str, dtype: str) -> None:
    rng = np.random.default_rng(3)
    for _ in range(6):
        a_sizes, b_sizes, a, b = operands(rng, of, by)
        bias = scales(rng, [*a_sizes[:-1], b_sizes[-1]], dtype) if rng.random() < 0.5 else None
        small = np.float32(2.0 ** (-2 * np.iinfo(of).bits if dtype == "float32" else -5))
        inputs: dict[str, Array | None] = {
            "ATensor": a,
            "AScaleTensor": (scales(rng, by_rows(rng, a_sizes)) * (small if dtype == "float32" else 2**-5)).astype(
                dtype
            ),
            "AZeroPointTensor": integers(rng, by_rows(rng, a_sizes), of),
            "BTensor": b,
            "BScaleTensor": scales(rng, by_rows(rng, b_sizes, of_columns=True), dtype),
            "BZeroPointTensor": integers(rng, by_rows(rng, b_sizes, of_columns=True), by),
            "BiasTensor": bias,
        }
        made = run({"Type": "MATRIX_MULTIPLY_INTEGER_TO_FLOAT"}, inputs)["OutputTensor"]
        wide = {name: np.asarray(0.0 if each is None else each, np.longdouble) for name, each in inputs.items()}
        sums = (wide["ATensor"] - wide["AZeroPointTensor"]) @ (wide["BTensor"] - wide["BZeroPointTensor"])
        exact = sums * wide["AScaleTensor"] * wide["BScaleTensor"] + wide["BiasTensor"]
        with np.errstate(over="ignore"):
            np.testing.assert_allclose(made, exact.astype(dtype), rtol=2e-7 if dtype == "float32" else 1e-3)


def convolved(x: Array, w: Array, groups: int, strides: list[int], dilations: list[int], padding: list[int]) -> Array:
    """Of integers, padded with 0 by as much on either side."""
    rank = len(strides)
    x = np.pad(x, [(0, 0), (0, 0), *[(each, each) for each in padding]])
    reach = [1 + (k - 1) * d for k, d in zip(w.shape[2:], dilations, strict=True)]
    counts = [(s - r) // step + 1 for s, r, step in zip(x.shape[2:], reach, strides, strict=True)]
    made = np.zeros([len(x), len(w), *counts], int)
    each, depth = len(w) // groups, w.shape[1]
    for o in range(len(w)):
        channels = x[:, o // each * depth : (o // each + 1) * depth]
        for p in np.ndindex(*counts):
            place: Any = [slice(p[i] * strides[i], p[i] * strides[i] + reach[i], dilations[i]) for i in range(rank)]
            window = channels[(slice(None), slice(None), *place)]
            made[(slice(None), o, *p)] = (window * w[o]).sum(axis=tuple(range(1, rank + 2)))
    return made


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize(("x_type", "w_type"), [("int8", "uint8"), ("uint8", "int8")])
def test_convolutions_of_integers(rank: int, x_type: str, w_type: str) -> None:
    rng = np.random.default_rng(rank)
    for _ in range(8):
        groups, depth, each = (int(value) for value in rng.integers(1, 4, 3))
        strides, dilations = ([int(value) for value in rng.integers(1, 3, rank)] for _ in range(2))
        padding = [int(value) for value in rng.integers(0, 3, rank)]
        kernel = [int(value) for value in rng.integers(1, 4, rank)]
        outputs = groups * each
        x = integers(rng, [2, groups * depth, *[7] * rank], x_type)
        w = integers(rng, [outputs, depth, *kernel], w_type)
        ones = [1] * (rank + 2)
        channels = [1, outputs, *[1] * rank]
        x_zero = integers(rng, ones, x_type) if rng.random() < 0.7 else None
        w_zero = integers(rng, channels if rng.random() < 0.7 else ones, w_type)
        document = {
            "Strides": strides,
            "Dilations": dilations,
            "StartPadding": padding,
            "EndPadding": padding,
            "GroupCount": groups,
        }
        inputs: dict[str, Array | None] = {
            "InputTensor": x,
            "InputZeroPointTensor": x_zero,
            "FilterTensor": w,
            "FilterZeroPointTensor": w_zero,
        }
        moved = x.astype(int) - (0 if x_zero is None else int(x_zero.item()))
        turned = w.astype(int) - w_zero.astype(int).reshape(-1, *[1] * (rank + 1))
        sums = convolved(moved, turned, groups, strides, dilations, padding)
        made = run(document | {"Type": "CONVOLUTION_INTEGER"}, inputs)["OutputTensor"]
        np.testing.assert_array_equal(made, sums)

        x_scale, y_scale = scales(rng, ones), scales(rng, ones) * 300
        w_scale = scales(rng, channels if rng.random() < 0.7 else ones)
        bias = integers(rng, channels, "int32") // 2**20 if rng.random() < 0.7 else None
        zero = integers(rng, ones, x_type) if rng.random() < 0.7 else None
        inputs |= {
            "InputScaleTensor": x_scale,
            "FilterScaleTensor": w_scale,
            "BiasTensor": bias,
            "OutputScaleTensor": y_scale,
            "OutputZeroPointTensor": zero,
        }
        made = run(document | {"Type": "QUANTIZED_LINEAR_CONVOLUTION"}, inputs)["OutputTensor"]
        total = sums + (0 if bias is None else bias.astype(int))
        scaled = total * (x_scale.astype(float) * w_scale.astype(float)) / y_scale.astype(float)
        np.testing.assert_array_equal(made, clamped(scaled, 0 if zero is None else int(zero.item()), x_type))


def test_halves_ends_and_scales_of_0() -> None:
    """Of each sum, that by itself."""
    a = np.array([[1], [3], [5], [200], [0]], np.uint8)
    one, two, nothing = (np.full((1, 1), value, np.float32) for value in (1, 2, 0))
    b = np.ones((1, 1), np.int8)
    inputs: dict[str, Array] = {"ATensor": a, "AScaleTensor": one, "BTensor": b, "BScaleTensor": one}
    output: dict[str, Array] = {"OutputZeroPointTensor": np.full((1, 1), -1, np.int8)}
    kind = {"Type": "QUANTIZED_LINEAR_MATRIX_MULTIPLY"}
    made = run(kind, inputs | output | {"OutputScaleTensor": two})["OutputTensor"]
    assert made.tolist() == [[-1], [1], [1], [99], [-1]]
    made = run(kind, inputs | output | {"OutputScaleTensor": nothing})["OutputTensor"]
    assert made.tolist() == [[127], [127], [127], [127], [0]]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("of", INTEGERS)
def test_dynamic_quantization(of: str, dtype: str) -> None:
    rng = np.random.default_rng(4)
    limits = np.iinfo(of)
    for moved in (0, -3, 3, 100):
        x = laid_out(rng, (rng.normal(size=(3, 4, 5)) + moved).astype(dtype))
        outputs = {"OutputZeroPointTensor": {"DataType": of.upper(), "Sizes": [1, 1, 1]}}
        made = run({"Type": "DYNAMIC_QUANTIZE_LINEAR"} | outputs, {"InputTensor": x})
        floats = x.astype(np.float32)
        low, high = min(floats.min(), np.float32(0)), max(floats.max(), np.float32(0))
        scale = (high - low) / np.float32(255)
        zero = np.clip(np.rint(limits.min - low / scale), limits.min, limits.max)
        assert made["OutputScaleTensor"].tolist() == [[[scale]]]
        assert made["OutputZeroPointTensor"].tolist() == [[[zero]]]
        np.testing.assert_array_equal(made["OutputTensor"], clamped((floats / scale).astype(float), int(zero), of))


def test_dynamic_quantization_of_nothing_but_0_and_of_nan() -> None:
    x = np.zeros((1, 3), np.float32)
    made = run({"Type": "DYNAMIC_QUANTIZE_LINEAR"}, {"InputTensor": x})
    assert [each.tolist() for each in made.values()] == [[[0, 0, 0]], [[1]], [[0]]]
    x[0, 1] = np.nan
    made = run({"Type": "DYNAMIC_QUANTIZE_LINEAR"}, {"InputTensor": x})
    assert made["OutputTensor"].tolist() == [[0, 0, 0]]
    assert np.isnan(made["OutputScaleTensor"]).all()


@pytest.mark.parametrize("stated", ["OutputTensor", "OutputZeroPointTensor"])
def test_dynamic_quantization_has_the_type_that_one_output_states(stated: str) -> None:
    sizes = [1, 3] if stated == "OutputTensor" else [1, 1]
    document = {"Type": "DYNAMIC_QUANTIZE_LINEAR", stated: desc("INT8", *sizes)}
    made = run(document, {"InputTensor": np.array([[0, 1, 255]], np.float32)})
    assert {name: each.dtype for name, each in made.items()} == {
        "OutputTensor": np.int8,
        "OutputScaleTensor": np.float32,
        "OutputZeroPointTensor": np.int8,
    }
    assert made["OutputTensor"].tolist() == [[-128, -127, 127]]


def test_a_stated_output_may_be_of_another_type_than_what_it_is_of() -> None:
    """And says where it is saturated, if no zero point does."""
    one, x = np.ones((1, 1), np.float32), np.array([[200]], np.uint8)
    by: dict[str, Array]
    document: dict[str, Any]
    by = dict.fromkeys(("AScaleTensor", "BScaleTensor", "OutputScaleTensor"), one)
    document = {"Type": "QUANTIZED_LINEAR_MATRIX_MULTIPLY", "OutputTensor": desc("INT8", 1, 1)}
    made = run(document, {"ATensor": x, "BTensor": np.ones((1, 1), np.uint8), **by})["OutputTensor"]
    assert (made.dtype.name, made.tolist()) == ("int8", [[127]])
    document = {"Type": "QUANTIZED_LINEAR_CONVOLUTION", "OutputTensor": desc("INT8", 1, 1, 1), "GroupCount": 1}
    document |= {name: [1] for name in ("Strides", "Dilations")}
    document |= {name: [0] for name in ("StartPadding", "EndPadding")}
    by = {name: one.reshape(1, 1, 1) for name in ("InputScaleTensor", "FilterScaleTensor", "OutputScaleTensor")}
    inputs = {"InputTensor": x.reshape(1, 1, 1), "FilterTensor": np.ones((1, 1, 1), np.uint8), **by}
    made = run(document, inputs)["OutputTensor"]
    assert (made.dtype.name, made.tolist()) == ("int8", [[[127]]])


def test_types_of_outputs_in_blocks_that_are_left_out() -> None:
    """Those of the zero point and of the scale."""
    scale, x = np.full((1, 1), 0.5, np.float16), np.array([[-100, 1, 100]], np.float16)
    document = {"Type": "QUANTIZE", "QuantizationType": "SCALE_ZERO_POINT"}
    made = run(document, InputTensor=x, QuantizationTensors=[scale, np.ones((1, 1), np.int8)])["OutputTensor"]
    assert (made.dtype.name, made.tolist()) == ("int8", [[-128, 3, 127]])
    document = {"Type": "DEQUANTIZE", "QuantizationType": "SCALE"}
    restored = run(document, InputTensor=made, QuantizationTensors=[scale])["OutputTensor"]
    assert (restored.dtype.name, restored.tolist()) == ("float16", [[-64, 1.5, 63.5]])


def test_blocks_of_several_places_are_no_batch() -> None:
    document = {"Type": "DEQUANTIZE", "QuantizationType": "SCALE", "InputTensor": desc("INT8", 4, 6)}
    for blocks, axes in (([4, 2], [0]), ([1, 6], [0, 1]), ([2, 3], [])):
        made = compiled(document | {"QuantizationTensors": [desc("FLOAT32", *blocks)]})
        assert [*made.batch_axes("OutputTensor")] == axes


RANGES = {"INT8": (-128, 127), "UINT8": (0, 255), "INT4": (-8, 7), "UINT4": (0, 15)}


def dispatched(document: dict[str, Any], *buffers: Array) -> bytes:
    operator = compiled(document)
    ((_, desc),) = operator.outputs.items()
    output = bytearray(desc.total_bytes)
    data = [memoryview(each.tobytes()) for each in buffers]
    DEVICE.prepare(operator).dispatch(data, [memoryview(output)], lambda: False)
    return bytes(output[: desc.data_bytes])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("of", RANGES)
@pytest.mark.parametrize("blocks", [[1, 1], [3, 1], [3, 5], [1, 5], [9, 5], "mixed"], ids=str)
def test_blocks(blocks: Any, of: str, dtype: str) -> None:
    rng = np.random.default_rng(5)
    sizes, (least, most) = [9, 5], RANGES[of]
    scale_sizes, zero_sizes = ([3, 5], [9, 1]) if blocks == "mixed" else (blocks, blocks)
    x = (rng.normal(size=sizes) * most).astype(dtype)
    scale = (rng.random(scale_sizes) + 0.5).astype(dtype)
    zero = rng.integers(least, most + 1, zero_sizes).astype("int8" if of.startswith("I") else "uint8")
    s, z = (
        np.repeat(np.repeat(each.astype(float), 9 // each.shape[0], 0), 5 // each.shape[1], 1) for each in (scale, zero)
    )
    packed = together(zero) if of.endswith("4") else zero
    tensors = [desc_of(scale), {"DataType": of, "Sizes": zero_sizes}]
    for many in (1, 2):
        kind = "SCALE" if many == 1 else "SCALE_ZERO_POINT"
        document = {
            "QuantizationType": kind,
            "QuantizationTensors": tensors[:many],
            "OutputTensor": {"DataType": of, "Sizes": sizes},
        }
        point = z if many == 2 else z * 0
        data = dispatched(
            document | {"Type": "QUANTIZE", "InputTensor": desc_of(x)}, x, scale, *([packed] if many == 2 else [])
        )
        quantized = np.clip(np.rint(x.astype(float) / s) + point, least, most)
        raw = np.frombuffer(data, np.uint8)
        got = apart(raw, DataType(of), 45) if of.endswith("4") else raw.view(of.lower())
        np.testing.assert_array_equal(got.reshape(sizes), quantized)
        document |= {
            "OutputTensor": {"DataType": dtype.upper(), "Sizes": sizes},
            "InputTensor": document["OutputTensor"],
        }
        data = dispatched(document | {"Type": "DEQUANTIZE"}, raw, scale, *([packed] if many == 2 else []))
        with np.errstate(over="ignore"):
            exact = ((quantized - point) * s).astype(dtype)
        np.testing.assert_array_equal(np.frombuffer(data, dtype).reshape(sizes), exact)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_scales_of_0_in_blocks(dtype: str) -> None:
    """As without blocks: the formula is followed, and NaN becomes 0, not the zero point."""
    x, zero = np.array([1, -1, 0, np.nan], dtype), np.array([5], np.int8)
    inputs: dict[str, Any] = {"InputTensor": x, "QuantizationTensors": [np.zeros(1, dtype), zero]}
    made = run({"Type": "QUANTIZE", "QuantizationType": "SCALE_ZERO_POINT"}, inputs)
    assert made["OutputTensor"].tolist() == [127, -128, 0, 0]
    linear = {"InputTensor": x, "ScaleTensor": np.zeros(4, dtype), "ZeroPointTensor": zero.repeat(4)}
    assert run({"Type": "ELEMENT_WISE_QUANTIZE_LINEAR"}, linear)["OutputTensor"].tolist() == [127, -128, 0, 0]


def test_blocks_that_fit_none_of_the_others_are_not_repeated_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy lets no other thread run while it repeats; `test_blocks` says what comes of it."""
    monkeypatch.setattr(np, "repeat", lambda *_, **__: pytest.fail("it was repeated"))
    document = {
        "Type": "DEQUANTIZE",
        "QuantizationType": "SCALE_ZERO_POINT",
        "QuantizationTensors": [{"DataType": "FLOAT32", "Sizes": [2]}, {"DataType": "INT8", "Sizes": [3]}],
        "InputTensor": {"DataType": "INT8", "Sizes": [6]},
        "OutputTensor": {"DataType": "FLOAT32", "Sizes": [6]},
    }
    x, zero = np.arange(6, dtype=np.int8), np.array([1, 2, 3], np.int8)
    made = dispatched(document, x, np.array([1, 10], np.float32), zero)
    assert np.frombuffer(made, np.float32).tolist() == [-1, 0, 0, 10, 10, 20]


def test_4_bits() -> None:
    """As DirectML packs [1, 2, 3, 4, 5]."""
    five = np.array([1, 2, 3, 4, 5], np.uint8)
    assert together(five).tobytes() == b"\x21\x43\x05"
    assert apart(np.frombuffer(b"\x21\x43\x05", np.uint8), DataType.UINT4, 5).tolist() == [1, 2, 3, 4, 5]
    assert apart(np.frombuffer(b"\x8f\x07", np.uint8), DataType.INT4, 3).tolist() == [-1, -8, 7]
    assert together(np.array([-1, -8, 7], np.int8)).tobytes() == b"\x8f\x07"


@pytest.mark.parametrize(
    ("strides", "repeated"),
    [([1, 3], []), ([0, 2], [0]), ([7, 2], []), ([5, 0], [1]), ([0, 0], [0, 1])],
    ids=str,
)
@pytest.mark.parametrize("of", ["INT4", "UINT4"])
def test_strides_of_4_bits(of: str, strides: list[int], repeated: list[int]) -> None:
    """They are steps of elements, half a byte each. Nothing of what lies between elements is read, and it is 0."""
    least, most = RANGES[of]
    whole = np.random.default_rng(6).integers(least, most + 1, (3, 5)).astype("int8" if of == "INT4" else "uint8")
    for axis in repeated:
        whole[:] = whole.take([0], axis)
    where = np.add.outer(np.arange(3) * strides[0], np.arange(5) * strides[1])
    buffer = np.full(where.max() + 1, most, whole.dtype)
    buffer[where] = whole
    there = {"DataType": of, "Sizes": [3, 5], "Strides": strides}
    packed = {"DataType": of, "Sizes": [3, 5]}
    x, one = whole.astype(np.float32), np.ones((1, 1), np.float32)
    common = {"QuantizationType": "SCALE", "QuantizationTensors": [desc_of(one)]}
    document = common | {"Type": "DEQUANTIZE", "InputTensor": there, "OutputTensor": desc_of(x)}
    assert dispatched(document, together(buffer), one) == x.tobytes()
    by = {"QuantizationType": "SCALE_ZERO_POINT", "QuantizationTensors": [desc_of(one), there]}
    document |= by | {"InputTensor": packed}
    assert dispatched(document, together(whole), one, together(buffer)) == np.zeros_like(x).tobytes()
    document = common | {"Type": "QUANTIZE", "InputTensor": desc_of(x), "OutputTensor": there}
    if repeated:
        assert [each.pointer for each in refusals(document)] == ["/OutputTensor/Strides"]
        return
    gaps = np.setdiff1d(np.arange(buffer.size), where)
    buffer[gaps] = 0
    assert dispatched(document, x, one) == together(buffer).tobytes()


def test_memory_for_what_lies_between_elements_of_4_bits_is_counted() -> None:
    """They are taken apart with them."""
    packed, far = (
        compiled(
            {
                "Type": "DEQUANTIZE",
                "QuantizationType": "SCALE",
                "QuantizationTensors": [{"DataType": "FLOAT32", "Sizes": [1]}],
                "InputTensor": {"DataType": "INT4", "Sizes": [2], "Strides": strides},
            }
        ).working_bytes
        for strides in ([1], [1000])
    )
    assert far - packed == 8 * 999


@pytest.mark.parametrize(
    ("kind", "members", "pointer", "allowed"),
    [
        (
            "MATRIX_MULTIPLY_INTEGER",
            {"BTensor": desc("UINT8", 1, 1, 2, 2)},
            "/BTensor/Sizes",
            [1, 1, 3, 2],
        ),
        (
            "MATRIX_MULTIPLY_INTEGER",
            {"OutputTensor": desc("INT32", 1, 1, 2, 3)},
            "/OutputTensor/Sizes",
            [1, 1, 2, 2],
        ),
        (
            "MATRIX_MULTIPLY_INTEGER",
            {"AZeroPointTensor": desc("UINT8", 1, 1, 1, 2)},
            "/AZeroPointTensor/Sizes",
            [1, 1, 2, 1],
        ),
        (
            "MATRIX_MULTIPLY_INTEGER",
            {"AZeroPointTensor": desc("UINT8", 3)},
            "/AZeroPointTensor/Sizes",
            [2],
        ),
        (
            "MATRIX_MULTIPLY_INTEGER",
            {"BZeroPointTensor": desc("UINT8", 2, 1)},
            "/BZeroPointTensor/Sizes",
            [1, 2],
        ),
        *[
            ("MATRIX_MULTIPLY_INTEGER", {name: desc("UINT8", *more, *whole)}, f"/{name}/Sizes", [1] * len(more) + whole)
            for name, whole in (("AZeroPointTensor", [2, 1]), ("BZeroPointTensor", [1, 2]))
            for more in ([1, 2], [2, 1])
        ],
        (
            "MATRIX_MULTIPLY_INTEGER",
            {
                "ATensor": desc("UINT8", 2, 3),
                "BTensor": desc("UINT8", 3, 2),
                "OutputTensor": None,
                "AZeroPointTensor": desc("UINT8", 2, 1, 2, 1),
            },
            "/AZeroPointTensor/Sizes",
            [1, 1, 2, 1],
        ),
        (
            "QUANTIZED_LINEAR_MATRIX_MULTIPLY",
            {"OutputScaleTensor": desc("FLOAT32", 1, 1, 1, 2)},
            "/OutputScaleTensor/Sizes",
            [1, 1, 2, 1],
        ),
        (
            "MATRIX_MULTIPLY_INTEGER_TO_FLOAT",
            {"BiasTensor": desc("FLOAT32", 1, 1, 1, 2)},
            "/BiasTensor/Sizes",
            [1, 1, 2, 2],
        ),
        (
            "MATRIX_MULTIPLY_INTEGER_TO_FLOAT",
            {"BTensor": desc("UINT8", 1, 1, 2, 3)},  # of which the bias is judged when it is right
            "/BTensor/Sizes",
            [1, 1, 3, 3],
        ),
        (
            "CONVOLUTION_INTEGER",
            {"InputZeroPointTensor": desc("UINT8", 1, 2, 1, 1)},
            "/InputZeroPointTensor/Sizes",
            [1] * 4,
        ),
        (
            "CONVOLUTION_INTEGER",
            {"FilterZeroPointTensor": desc("UINT8", 2, 1, 1, 1)},
            "/FilterZeroPointTensor/Sizes",
            [1] * 4,
        ),
        (
            "CONVOLUTION_INTEGER",
            {"FilterTensor": desc("UINT8", 2, 1, 1, 1), "FilterZeroPointTensor": desc("UINT8", 3, 1, 1, 1)},
            "/FilterZeroPointTensor/Sizes",
            [1, 2, 1, 1],
        ),
        ("CONVOLUTION_INTEGER", {"GroupCount": 2}, "/GroupCount", "a divisor of 1"),
        (
            "CONVOLUTION_INTEGER",
            {"OutputTensor": desc("INT32", 1, 1, 2, 2)},
            "/OutputTensor/Sizes",
            [1, 1, 2, 3],
        ),
        ("QUANTIZED_LINEAR_CONVOLUTION", {"BiasTensor": desc("INT32", 1, 2, 1, 1)}, "/BiasTensor/Sizes", [1] * 4),
        (
            "QUANTIZED_LINEAR_CONVOLUTION",
            {"OutputScaleTensor": desc("FLOAT32", 1, 2, 1, 1)},
            "/OutputScaleTensor/Sizes",
            [1] * 4,
        ),
        (
            "DYNAMIC_QUANTIZE_LINEAR",
            {"OutputScaleTensor": desc("FLOAT32", 1, 1, 2, 1)},
            "/OutputScaleTensor/Sizes",
            [1] * 4,
        ),
        ("QUANTIZE", {"QuantizationType": "NONE"}, "/QuantizationType", ["SCALE", "SCALE_ZERO_POINT"]),
        ("QUANTIZE", {"QuantizationType": "SCALE"}, "/QuantizationTensors", 1),
        ("QUANTIZE", {"QuantizationTensors": [desc("FLOAT32", 1, 1, 1, 1)] * 3}, "/QuantizationTensors", 2),
        ("QUANTIZE", {"QuantizationTensorCount": 1}, "/QuantizationTensorCount", 2),
        ("QUANTIZE", {"OutputTensor": desc("INT8", 1, 1, 2, 3)}, "/QuantizationTensors/1/DataType", "INT8"),
        (
            "DEQUANTIZE",
            {"QuantizationTensors": [desc("FLOAT32", 1, 1, 1, 2), desc("UINT8", 1, 1, 1, 1)]},
            "/QuantizationTensors/0/Sizes",
            "divisors of the Sizes of InputTensor",
        ),
        ("DEQUANTIZE", {"OutputTensor": desc("FLOAT16", 1, 1, 2, 3)}, "/QuantizationTensors/0/DataType", "FLOAT16"),
        ("DEQUANTIZE", {"InputTensor": desc("INT4", 1, 1, 2, 3)}, "/QuantizationTensors/1/DataType", "INT4"),
    ],
)
def test_refusals(kind: str, members: dict[str, Any], pointer: str, allowed: object) -> None:
    whole = descriptor(f"DML_OPERATOR_{kind}")
    assert refusals(whole) == []
    (refusal,) = refusals(whole | members)
    check_wording(refusal)
    assert (refusal.pointer, refusal.allowed) == (pointer, allowed)


@pytest.mark.parametrize(
    ("kind", "name", "sizes", "of"),
    [
        ("MATRIX_MULTIPLY_INTEGER", "AZeroPointTensor", [1, 1, 3, 1], "each row of ATensor"),
        ("QUANTIZED_LINEAR_MATRIX_MULTIPLY", "OutputScaleTensor", [1, 1, 3, 1], "each row of ATensor"),
        ("MATRIX_MULTIPLY_INTEGER_TO_FLOAT", "BScaleTensor", [1, 1, 1, 3], "each column of BTensor"),
        ("QUANTIZED_LINEAR_CONVOLUTION", "FilterScaleTensor", [2], "each channel of the output by FilterTensor"),
        ("QUANTIZED_LINEAR_AVERAGE_POOLING", "InputScaleTensor", [2], "each channel of the output by InputTensor"),
    ],
)
def test_the_tensor_that_has_another_number_of_rows_columns_or_channels_is_told(
    kind: str, name: str, sizes: list[int], of: str
) -> None:
    document = descriptor(f"DML_OPERATOR_{kind}")
    changed = document[name] | {"Sizes": sizes}
    (refusal,) = refusals(document | {name: changed})
    check_wording(refusal)
    assert refusal.pointer == f"/{name}/Sizes"
    assert refusal.message.endswith(f"one for {of}.")


@pytest.mark.parametrize(
    ("wrong", "made_as"),
    [(lambda made: made[..., :1], r"uint8 \(1, 1\)"), (lambda made: made.astype(np.int32), r"int32 \(1, 2\)")],
    ids=["sizes", "type"],
)
def test_a_call_makes_what_its_outputs_are(wrong: Callable[[Array], Array], made_as: str) -> None:
    """Or the operator is wrong: nothing is answered that was not asked for."""

    class Wrong(Quantize):
        def call(self, xp: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
            return {name: wrong(made) for name, made in super().call(xp, inputs).items()}

    scale, zero = np.ones((1, 1), np.float32), np.zeros((1, 1), np.uint8)
    x, quantize = np.ones((1, 2), np.float32), {"Type": "QUANTIZE", "QuantizationType": "SCALE_ZERO_POINT"}
    with pytest.raises(TypeError, match=rf"OutputTensor is uint8 \[1, 2\], and was made as {made_as}"):
        run(quantize, judge=Wrong, InputTensor=x, QuantizationTensors=[scale, zero])
