"""Products of matrices of 8-bit integers by loops are those of NumPy's integers, whatever registers hold, and however
matrices and zero points lie; known matrices are packed before."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from app.devices.cpu import alone, integer_channels, integer_convolutions, integer_packing, integer_products, runs
from app.devices.cpu.alone import CallsKernel
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm import integer_products as loops
from app.devices.cpu.llvm.compiler import Compiler
from app.memory.arrays import Array
from tests.operators import calls, conftest
from tests.operators.arrays import desc_of, laid_out
from tests.operators.calls import compiled, run
from tests.operators.widths import WIDTHS, narrow

INTEGERS = ["int8", "uint8"]
NUMPY = calls.DEVICE


@pytest.fixture(params=[None, *WIDTHS])
def compiler(request: pytest.FixtureRequest) -> Compiler:
    """Of this machine's registers, and of others."""
    return narrow(request.param) if request.param else conftest.compiler()


@pytest.fixture
def device(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> Iterator[NumpyDevice]:
    """Of several threads, which compute little at a time."""
    monkeypatch.setattr(alone, "MOST_OF_A_CALL", 1 << 9)
    monkeypatch.setattr(runs, "WORTH_A_THREAD", 1 << 9)
    monkeypatch.setattr(integer_packing, "MOST_OF_A_CALL", 1 << 9)
    with ThreadPoolExecutor(2) as helpers:
        device = NumpyDevice(helpers, 3, compiler, 1)
        monkeypatch.setattr(calls, "DEVICE", device)
        yield device


def integers(rng: np.random.Generator, sizes: list[int], name: str) -> Array:
    """Of which many are the least and the largest."""
    limits = np.iinfo(name)
    made = rng.integers(limits.min, limits.max, sizes, endpoint=True)
    ends = rng.choice([limits.min, limits.max, 0], sizes)
    return np.where(rng.random(sizes) < 0.3, ends, made).astype(name)


def matrices(rng: np.random.Generator, batch: list[int], sizes: list[int]) -> Array:
    """Of any layout, some of which are one again and again."""
    repeated = [1 if rng.random() < 0.3 else size for size in batch]
    made = laid_out(rng, integers(rng, [*repeated, *sizes], str(rng.choice(INTEGERS))))
    return np.broadcast_to(made, [*batch, *sizes])


def wrapped(a: Array, a_zero: Array | None, b: Array, b_zero: Array | None) -> Array:
    """The products of the definition, in 64 bits, and what INT32 has of them."""
    left, right = (
        x.astype(np.int64) - (0 if zero is None else zero.astype(np.int64)) for x, zero in ((a, a_zero), (b, b_zero))
    )
    made: Array = (left @ right).astype(np.int32)
    return made


def test_any_layout(device: NumpyDevice) -> None:
    rng = np.random.default_rng(31)
    for number in range(120):
        batch = [int(each) for each in rng.integers(1, 4, number % 3)]
        m, k, n = (int(each) for each in rng.integers(1, 70, 3))
        a, b = (matrices(rng, batch, sizes) for sizes in ([m, k], [k, n]))
        zeros = []
        for x, own in ((a, [m, 1]), (b, [1, n])):
            leading = [[1] * len(batch), batch][rng.integers(2)]
            sizes = [[1] * (2 + len(batch)), [*leading, *own], [max(own)]][rng.integers(3)]
            zeros.append(laid_out(rng, integers(rng, sizes, x.dtype.name)) if rng.random() < 0.7 else None)
        document: dict[str, Any] = {"Type": "MATRIX_MULTIPLY_INTEGER"}
        if rng.random() < 0.3:
            steps = [(m * (n + 3) + 1) * int(np.prod(batch[place + 1 :])) for place in range(len(batch))]
            strides = [*steps, n + 3, 1]
            document["OutputTensor"] = {"DataType": "INT32", "Sizes": [*batch, m, n], "Strides": strides}
        inputs = {"ATensor": a, "AZeroPointTensor": zeros[0], "BTensor": b, "BZeroPointTensor": zeros[1]}
        made = run(document, inputs)["OutputTensor"]
        a_zero = zeros[0].reshape(-1, 1) if zeros[0] is not None and zeros[0].ndim == 1 else zeros[0]
        stated = document | {name: desc_of(each) for name, each in inputs.items() if each is not None}
        np.testing.assert_array_equal(made, wrapped(a, a_zero, b, zeros[1]), str((number, stated)))
        assert isinstance(device.prepare(compiled(stated)), CallsKernel)


def alike(device: NumpyDevice, document: dict[str, Any], inputs: Mapping[str, Array | None]) -> None:
    """By loops are the bits of NumPy's."""
    given = {name: each for name, each in inputs.items() if each is not None}
    stated = document | {name: desc_of(each) for name, each in given.items()}
    assert isinstance(device.prepare(compiled(stated)), CallsKernel)
    made = run(document, given)["OutputTensor"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(calls, "DEVICE", NUMPY)
        expected = run(document, given)["OutputTensor"]
    assert made.dtype == expected.dtype
    np.testing.assert_array_equal(made, expected, str(stated))


def scales(rng: np.random.Generator, sizes: list[int]) -> Array:
    """Some of them 0, endless or not a number, halves and wholes of which make ties."""
    made = np.where(rng.random(sizes) < 0.5, 0.5, rng.random(sizes) * 0.1)
    odd = rng.choice([0, np.inf, np.nan, 1], sizes)
    return laid_out(rng, np.where(rng.random(sizes) < 0.05, odd, made).astype(np.float32))


@pytest.mark.parametrize("kind", ["QUANTIZED_LINEAR_MATRIX_MULTIPLY", "MATRIX_MULTIPLY_INTEGER_TO_FLOAT"])
def test_results_of_sums(device: NumpyDevice, kind: str) -> None:
    rng = np.random.default_rng(33)
    for number in range(60):
        batch = [int(each) for each in rng.integers(1, 4, number % 3)]
        m, k, n = (int(each) for each in rng.integers(1, 70, 3))
        a, b = (matrices(rng, batch, sizes) for sizes in ([m, k], [k, n]))
        of_rows = [[1] * len(batch), batch][rng.integers(2)]
        rows, columns = ([[*of_rows, *each], [1] * (2 + len(batch))][rng.integers(2)] for each in ([m, 1], [1, n]))
        inputs: dict[str, Array | None] = {
            "ATensor": a,
            "AScaleTensor": scales(rng, rows),
            "AZeroPointTensor": laid_out(rng, integers(rng, rows, a.dtype.name)),
            "BTensor": b,
            "BScaleTensor": np.ascontiguousarray(scales(rng, columns)),
            "BZeroPointTensor": laid_out(rng, integers(rng, columns, b.dtype.name)) if rng.random() < 0.5 else None,
        }
        if kind.endswith("FLOAT"):
            inputs["BiasTensor"] = None
            if rng.random() < 0.5:
                one = rng.standard_normal([*batch, 1, n], np.float32)
                inputs["BiasTensor"] = np.broadcast_to(one, [*batch, m, n])
        else:
            inputs["OutputScaleTensor"] = scales(rng, rows) * np.float32(2 ** rng.integers(0, 14))
            zero = laid_out(rng, integers(rng, rows, str(rng.choice(INTEGERS))))
            inputs["OutputZeroPointTensor"] = zero if rng.random() < 0.7 else None
        alike(device, {"Type": kind}, inputs)


@pytest.mark.parametrize("depth", [33026, 70000])
def test_sums_that_wrap(device: NumpyDevice, depth: int) -> None:
    """Of the largest numbers with any signs, which instructions that saturate would not get right."""
    for a_type in INTEGERS:
        for b_type in INTEGERS:
            limits = [np.iinfo(name) for name in (a_type, b_type)]
            for low, high in ((0, 0), (0, 1), (1, 0), (1, 1)):
                a = np.full((2, depth), (limits[0].min, limits[0].max)[low], a_type)
                b = np.full((depth, 33), (limits[1].min, limits[1].max)[high], b_type)
                zeros = [
                    np.array([each.max if end == 0 else each.min], name)
                    for each, end, name in zip(limits, (low, high), (a_type, b_type), strict=True)
                ]
                inputs = {"ATensor": a, "AZeroPointTensor": zeros[0], "BTensor": b, "BZeroPointTensor": zeros[1]}
                made = run({"Type": "MATRIX_MULTIPLY_INTEGER"}, inputs)["OutputTensor"]
                np.testing.assert_array_equal(made, wrapped(a, zeros[0], b, zeros[1]))


@pytest.mark.parametrize("has_zeros", [False, True])
def test_what_is_known_is_packed_before(device: NumpyDevice, compiler: Compiler, has_zeros: bool) -> None:
    """And read no more; not where its zero points are not known."""
    rng = np.random.default_rng(32)
    for sizes in ([7, 9, 40], [2, 3, 30, 31, 33]):
        *batch, m, k, n = sizes
        a, b = integers(rng, [*batch, m, k], "uint8"), integers(rng, [*batch, k, n], "int8")
        inputs = {"ATensor": a, "BTensor": b}
        if has_zeros:
            inputs["BZeroPointTensor"] = integers(rng, [*batch, 1, n], "int8")
        operator = compiled({"Type": "MATRIX_MULTIPLY_INTEGER"} | {name: desc_of(x) for name, x in inputs.items()})
        known = {name: inputs[name].data.cast("B") for name in inputs if name != "ATensor"}
        kernel = device._kernel(operator, known)
        assert isinstance(kernel, CallsKernel)
        (kept,) = kernel._kept
        told = integer_products.integer_packing_of(operator, compiler, known)
        assert told
        assert told.nbytes - 64 <= kept.nbytes <= told.nbytes
        wanted = wrapped(a, None, b, inputs.get("BZeroPointTensor"))
        made = np.zeros(wanted.shape, np.int32)
        given = [
            np.ascontiguousarray(inputs[name] if name == "ATensor" else 0 * inputs[name]) for name in operator.inputs
        ]
        kernel.dispatch([each.data.cast("B") for each in given], [made.data.cast("B")], lambda: False)
        np.testing.assert_array_equal(made, wanted)
        alone_known = {"BTensor": known["BTensor"]}
        assert bool(integer_products.integer_packing_of(operator, compiler, alone_known)) != has_zeros
        kernel = device._kernel(operator, alone_known)
        assert isinstance(kernel, CallsKernel)
        assert (not kernel._kept) == has_zeros


def test_packed_rows_tell_their_bytes() -> None:
    """What a kernel takes beside its tensors is charged for."""
    a, b = np.zeros((5, 9), np.uint8), np.zeros((9, 40), np.uint8)
    operator = compiled({"Type": "MATRIX_MULTIPLY_INTEGER", "ATensor": desc_of(a), "BTensor": desc_of(b)})
    with ThreadPoolExecutor(1) as helpers:
        kernel = NumpyDevice(helpers, 1, conftest.compiler(), 1).prepare(operator)
    assert isinstance(kernel, CallsKernel)
    terms: loops.Terms = 4 if conftest.compiler().adds_bytes else 2
    assert kernel.own_bytes >= (5 + 40) * loops.row_bytes(9, terms)


def convolution(
    rng: np.random.Generator, kind: str, rank: int, filters: range = range(1, 20)
) -> tuple[dict[str, Any], dict[str, Array | None]]:
    """Any windows, of which some lie beside the tensor, and so many filters to a group."""
    groups, depth, each = (int(rng.choice(counts)) for counts in (range(1, 4), range(1, 6), filters))
    strides, dilations = ([int(value) for value in rng.integers(1, most, rank)] for most in (5, 4))
    before, behind = ([int(value) for value in rng.integers(0, 4, rank)] for _ in range(2))
    kernel = [int(value) for value in rng.integers(1, 5, rank)]
    reach = [1 + (size - 1) * dilation for size, dilation in zip(kernel, dilations, strict=True)]
    sizes = [int(rng.integers(max(1, r - b - e), r + 20)) for r, b, e in zip(reach, before, behind, strict=True)]
    names = rng.choice(INTEGERS, 3)
    outputs = groups * each
    one, channels = [1] * (rank + 2), [1, outputs, *[1] * rank]
    inputs: dict[str, Array | None] = {
        "InputTensor": integers(rng, [int(rng.integers(1, 4)), groups * depth, *sizes], str(names[0])),
        "InputZeroPointTensor": integers(rng, one, str(names[0])) if rng.random() < 0.7 else None,
        "FilterTensor": integers(rng, [outputs, depth, *kernel], str(names[1])),
        "FilterZeroPointTensor": (
            integers(rng, channels if rng.random() < 0.7 else one, str(names[1])) if rng.random() < 0.7 else None
        ),
    }
    if kind.startswith("QUANTIZED"):
        inputs |= {
            "InputScaleTensor": scales(rng, one),
            "FilterScaleTensor": scales(rng, channels if rng.random() < 0.7 else one),
            "BiasTensor": rng.integers(-(2**20), 2**20, channels).astype(np.int32) if rng.random() < 0.7 else None,
            "OutputScaleTensor": scales(rng, one) * np.float32(2 ** rng.integers(0, 14)),
            "OutputZeroPointTensor": integers(rng, one, str(names[2])) if rng.random() < 0.7 else None,
        }
    document = {
        "Type": kind,
        "Strides": strides,
        "Dilations": dilations,
        "StartPadding": before,
        "EndPadding": behind,
        "GroupCount": groups,
    }
    return document, inputs


@pytest.mark.parametrize("kind", ["CONVOLUTION_INTEGER", "QUANTIZED_LINEAR_CONVOLUTION"])
@pytest.mark.parametrize("most", [1 << 21, 1 << 13])
@pytest.mark.parametrize("filters", [range(1, 20), range(1, 4)], ids=["many", "few"])
def test_convolutions(
    device: NumpyDevice, kind: str, most: int, filters: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once, and few rows of positions at a time; many filters to a group, and few."""
    monkeypatch.setattr(integer_convolutions, "MOST_AT_ONCE", most)
    rng = np.random.default_rng(34)
    for number in range(24):
        alike(device, *convolution(rng, kind, 1 + number % 2, filters))


@pytest.mark.parametrize("filters", [integer_channels.MOST_FILTERS, integer_channels.MOST_FILTERS + 1])
@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize(("height", "width"), [(1, 5), (7, 7), (13, 16), (9, 17), (3, 130)])
def test_channels_of_few_filters(device: NumpyDevice, filters: int, stride: int, height: int, width: int) -> None:
    """On both sides of what is read as it lies, for positions that fill vectors and tiles, and for others."""
    rng = np.random.default_rng([filters, stride, width])
    inputs: dict[str, Array | None] = {
        "InputTensor": integers(rng, [2, 6, (height - 1) * stride + 1, (width - 1) * stride + 1], "uint8"),
        "InputZeroPointTensor": integers(rng, [1] * 4, "uint8"),
        "FilterTensor": integers(rng, [3 * filters, 2, 3, 3], "int8"),
        "FilterZeroPointTensor": integers(rng, [1, 3 * filters, 1, 1], "int8"),
    }
    document = {
        "Type": "CONVOLUTION_INTEGER",
        "Strides": [stride, stride],
        "Dilations": [1, 1],
        "StartPadding": [1, 1],
        "EndPadding": [1, 1],
        "GroupCount": 3,
    }
    alike(device, document, inputs)


def test_filters_that_are_known_are_packed_before(device: NumpyDevice, compiler: Compiler) -> None:
    """And read no more."""
    rng = np.random.default_rng(35)
    for _ in range(6):
        document, inputs = convolution(rng, "CONVOLUTION_INTEGER", 2, range(3, 20))
        given = {name: each for name, each in inputs.items() if each is not None}
        operator = compiled(document | {name: desc_of(each) for name, each in given.items()})
        known = {name: each.data.cast("B") for name, each in given.items() if name.startswith("Filter")}
        kernel = device._kernel(operator, known)
        assert isinstance(kernel, CallsKernel)
        told = integer_convolutions.integer_filter_packing_of(operator, compiler, known)
        assert told
        assert told.nbytes - 64 <= kernel._kept[-1].nbytes <= told.nbytes
        made, wanted = (np.zeros(operator.outputs["OutputTensor"].Sizes, np.int32) for _ in range(2))
        read = [0 * given[name] if name in known else given[name] for name in operator.inputs]
        kernel.dispatch([each.data.cast("B") for each in read], [made.data.cast("B")], lambda: False)
        NUMPY.prepare(operator).dispatch(
            [given[name].data.cast("B") for name in operator.inputs], [wanted.data.cast("B")], lambda: False
        )
        np.testing.assert_array_equal(made, wanted)
        assert not integer_convolutions.integer_filter_packing_of(operator, compiler, {"InputTensor"})
