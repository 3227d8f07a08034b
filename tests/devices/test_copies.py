"""JOIN, SPLIT, SLICE1 and PADDING1 by loops that copy parts: bit for bit, in pieces, whatever the layout. PADDING1 with
what is there, by NumPy's slices."""

import re
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Literal, cast

import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.cpu import calls as cpu_calls
from app.devices.cpu.alone import CallsKernel
from app.devices.cpu.arrays import _OPERATORS, ArrayKernel
from app.devices.cpu.coordinates import CoordinateKernel
from app.devices.cpu.copies import CopiesKernel
from app.devices.cpu.device import NumpyDevice
from app.devices.device import Kernel
from app.formula.coordinates import coordinates, whole
from app.formula.values import minimum as least
from app.memory.arrays import Array
from app.operators.data_movement.depth import DepthToSpace, DepthToSpace1, SpaceToDepth, SpaceToDepth1
from app.operators.operator import Operator
from app.operators.pooling.maxima import MaxPooling1, MaxPooling2
from app.operators.reduction.reductions import Argmax, Argmin
from tests.devices.test_coordinates import N, of_expression, operand
from tests.devices.test_llvm import assembly_of
from tests.operators.arrays import desc_of
from tests.operators.calls import compiled
from tests.operators.conftest import compiler
from tests.operators.fences import fenced

NUMPYS: dict[str, Literal["edge", "reflect", "symmetric", "wrap"]] = {
    "EDGE": "edge",
    "REFLECTION": "reflect",
    "SYMMETRIC": "symmetric",
    "WRAP": "wrap",
}
COPIED = (DepthToSpace, DepthToSpace1, SpaceToDepth, SpaceToDepth1)
REDUCED = (Argmin, Argmax)
RNG = np.random.default_rng(17)


def some(*sizes: int, dtype: Any = np.float32) -> Array:
    """Any bits, those of NaN too, with gaps between rows."""
    item = np.dtype(dtype).itemsize
    made: Array = RNG.integers(0, 256, (*sizes[:-1], (sizes[-1] + 3) * item), np.uint8).view(dtype)
    part: Array = made[..., : sizes[-1]]
    return part


def kernel_of(document: dict[str, Any]) -> Kernel:
    with ThreadPoolExecutor(1) as helpers:
        return NumpyDevice(helpers, 2, compiler())._kernel(compiled(document), {}, 1)


def copied(document: dict[str, Any], names: Sequence[str], inputs: Sequence[Array], output: Array) -> None:
    described: dict[str, Any] = {"OutputTensor": desc_of(output)}
    if names == ["InputTensors"]:
        described["InputTensors"] = [desc_of(each) for each in inputs]
    else:
        described |= dict(zip(names, map(desc_of, inputs), strict=True))
    kernel = kernel_of(document | described)
    assert isinstance(kernel, CopiesKernel)
    buffers = [_bytes(each) for each in inputs]
    kernel.dispatch(buffers, [_bytes(output)], lambda: False)


def _bytes(array: Array) -> memoryview:
    """From its first element to the end of what it is a view of."""
    whole = array if array.base is None else array.base
    assert isinstance(whole, np.ndarray)
    return whole.reshape(-1).view(np.uint8).data[array.ctypes.data - whole.ctypes.data :]


def equal(one: Array, other: Array) -> bool:
    """Bit for bit."""
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()


@pytest.fixture(autouse=True, params=["whole", "pieces"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "pieces":
        monkeypatch.setattr(cpu_calls, "WORTH_A_CALL", 10)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.float16, np.uint64])
@pytest.mark.parametrize("axis", range(4))
def test_join(axis: int, dtype: Any) -> None:
    sizes = [[2, 3, 5, 4] for _ in range(3)]
    for place, each in enumerate(sizes):
        each[axis] = place + 1
    given = [some(*each, dtype=dtype) for each in sizes]
    wanted = np.concatenate(given, axis)
    output = np.zeros(wanted.shape, dtype)
    copied({"Type": "DML_OPERATOR_JOIN", "Axis": axis}, ["InputTensors"], given, output)
    assert equal(output, wanted)


@pytest.mark.parametrize("known", [None, {}], ids=["alone", "in a graph"])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.float16])
@pytest.mark.parametrize("axis", range(3))
def test_split(axis: int, dtype: Any, known: dict[str, Any] | None) -> None:
    x = some(*([3, 4, 7][:axis]), 9, *([3, 4, 7][axis + 1 :]), dtype=dtype)
    wanted = np.split(x, [2, 3], axis)
    outputs = [np.zeros(each.shape, dtype) for each in wanted]
    document = {"Type": "SPLIT", "Axis": axis, "InputTensor": desc_of(x), "OutputTensors": list(map(desc_of, outputs))}
    with ThreadPoolExecutor(1) as helpers:
        kernel = NumpyDevice(helpers, 2, compiler())._kernel(compiled(document), known, 1)
        assert isinstance(kernel, CopiesKernel)
        kernel.dispatch([_bytes(x)], list(map(_bytes, outputs)), lambda: False)
    assert all(map(equal, outputs, wanted))


def test_elements_at_coordinates_that_go_up_evenly() -> None:
    """Whatever they are made of, as long as all of them are inside."""
    x = RNG.integers(0, 99, [6, 30]).astype(np.uint16)
    i, j = coordinates(2)
    read = operand(x)
    lines = {
        (i, 2 * j + N): x[:4, 3:18:2][:, :7],
        (5 - i, j * 3 + i): np.array([[x[5 - a, 3 * b + a] for b in range(7)] for a in range(4)]),
        (whole(1), N * (j - 1) + N): np.broadcast_to(x[1, :21:3], (4, 7)),
        (j - N, i): None,  # before the first one
        (i, 5 * j): None,  # beyond the last one
        (i * i, j): None,
        (i, least(j, 3)): None,
    }
    for at, wanted in lines.items():
        operator = of_expression(read[list(at)], [4, 7], DataType.UINT16, x, n=3)
        with ThreadPoolExecutor(1) as helpers:
            kernel = NumpyDevice(helpers, 1, compiler())._kernel(operator, {}, 1)
        if wanted is None:
            assert isinstance(kernel, CoordinateKernel)
            continue
        assert isinstance(kernel, CopiesKernel)
        output = np.zeros([4, 7], np.uint16)
        kernel.dispatch([_bytes(x)], [_bytes(output)], lambda: False)
        assert equal(output, wanted)


def test_slice_forwards_and_backwards() -> None:
    x, output = some(2, 9, 8, 7), np.zeros((1, 4, 3, 7), np.float32)
    document = {
        "Type": "DML_OPERATOR_SLICE1",
        "InputWindowOffsets": [1, 1, 2, 0],
        "InputWindowSizes": [1, 7, 5, 7],
        "InputWindowStrides": [1, 2, -2, -1],
    }
    copied(document, ["InputTensor"], [x], output)
    assert equal(output, x[1:2, 1:8:2, 6:1:-2, ::-1])


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
def test_every_other_element(dtype: Any) -> None:
    """Alone too; of rows that end with the memory, and as many as vectors have, more and fewer."""
    for size in (1, 2, 7, 8, 31, 32, 33, 64, 129, 300):
        x = RNG.integers(0, 256, (3, (2 * size - 1) * np.dtype(dtype).itemsize), np.uint8).view(dtype)
        document = {
            "Type": "SLICE1",
            "InputTensor": desc_of(x),
            "InputWindowOffsets": [0, 0],
            "InputWindowSizes": [3, 2 * size - 1],
            "InputWindowStrides": [1, 2],
        }
        with ThreadPoolExecutor(1) as helpers:
            kernel = NumpyDevice(helpers, 1, compiler())._kernel(compiled(document), None, 1)
        assert isinstance(kernel, CopiesKernel)
        output = np.full((3, size + 1), 7, dtype)
        with fenced([x], at_the_end=True) as (given,):
            kernel.dispatch([_bytes(given)], [_bytes(output)[: 3 * size * x.itemsize]], lambda: False)
        flat = output.reshape(-1)
        assert equal(flat[: 3 * size].reshape(3, size), x[:, ::2])
        assert (flat[3 * size :] == 7).all()


@pytest.mark.parametrize("processor", ["x86-64-v3", "sapphirerapids"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16])
def test_every_other_small_element_is_taken_out_of_vectors(dtype: Any, processor: str) -> None:
    """None is put into a vector by itself, but where steps are others."""
    x = np.zeros((3, 299), dtype)
    windows = {"InputWindowOffsets": [0, 0], "InputWindowSizes": [3, 299], "InputWindowStrides": [1, 2]}
    with ThreadPoolExecutor(1) as helpers:
        device = NumpyDevice(helpers, 1, compiler())
        kernel = device._kernel(compiled({"Type": "SLICE1", "InputTensor": desc_of(x), **windows}), None, 1)
    assert isinstance(kernel, CopiesKernel)
    (code,) = {call.code for stage in kernel.calls().stages for call in stage}
    made = assembly_of(code.source, "x86_64-unknown-linux-gnu", processor)
    assert re.search(r"vpmov[dw][wb]|vpackus[dw][wb]|vpshufb", made)


def padding(value: float) -> dict[str, Any]:
    return {
        "Type": "DML_OPERATOR_PADDING1",
        "PaddingMode": "CONSTANT",
        "PaddingValueDataType": "FLOAT32",
        "PaddingValue": {"Float32": value},
        "StartPadding": [0, 1, 2, 3],
        "EndPadding": [1, 0, 2, 1],
    }


def test_padding_with_zeros() -> None:
    x = some(2, 3, 4, 5)
    wanted = np.pad(x, [(0, 1), (1, 0), (2, 2), (3, 1)])
    output = np.ones(wanted.shape, np.float32)
    copied(padding(0), ["InputTensor"], [x], output)
    assert equal(output, wanted)


@pytest.mark.parametrize("dtype", [np.float32, np.uint64])
@pytest.mark.parametrize("order", [None, "DEPTH_COLUMN_ROW", "COLUMN_ROW_DEPTH"])
@pytest.mark.parametrize("block", [1, 2, 3])
def test_blocks_and_channels(block: int, order: str | None, dtype: Any) -> None:
    """There and back, by the same operator in two versions."""
    flat = some(2, 3, 4 * block, 5 * block, dtype=dtype)
    apart = flat.reshape(2, 3, 4, block, 5, block)
    axes = (0, 1, 3, 5, 2, 4) if order == "COLUMN_ROW_DEPTH" else (0, 3, 5, 1, 2, 4)
    deep = apart.transpose(axes).reshape(2, -1, 4, 5)
    for kind, given, wanted in (("SPACE_TO_DEPTH", flat, deep), ("DEPTH_TO_SPACE", deep, flat)):
        output = np.zeros((*wanted.shape[:-1], wanted.shape[-1] + 2), dtype)
        document = {"Type": f"DML_OPERATOR_{kind}{'1' if order else ''}", "BlockSize": block}
        made = output[..., :-2]
        copied(document | ({"Order": order} if order else {}), ["InputTensor"], [given], made)
        assert equal(made, wanted)
        assert not output[..., -2:].any()


@pytest.mark.parametrize(("name", "field"), [("float32", "Float32"), ("uint8", "UInt8"), ("int64", "Int64")])
def test_bands_of_diagonals(name: str, field: str) -> None:
    """Of one diagonal, of none, of some that matrices do not have, and of all."""
    for sizes, begin, end in (
        ((5, 7), 0, 1),
        ((5, 7), 3, 3),
        ((2, 7, 5), -6, -3),
        ((2, 3, 4, 4), -1, 2),
        ((3, 30), -100, 100),
        ((1, 1), 1, 9),
    ):
        x, made = some(*sizes, dtype=name), some(*sizes, dtype=name)
        expected = x.copy()
        apart = np.arange(sizes[-1]) - np.arange(sizes[-2])[:, None]
        expected[..., (begin <= apart) & (apart < end)] = 3
        document = {
            "Type": "DIAGONAL_MATRIX1",
            "ValueDataType": name.upper(),
            "Value": {field: 3},
            "DiagonalFillBegin": begin,
            "DiagonalFillEnd": end,
        }
        copied(document, ["InputTensor"], [x], made)
        assert equal(made, expected)


def test_outputs_that_lie_over_inputs() -> None:
    memory = some(1, 1, 1, 40).copy()
    x, output = memory[..., :30], memory[..., 3:33]
    wanted = x[..., ::-1].copy()
    document = {
        "Type": "DML_OPERATOR_SLICE1",
        "InputWindowOffsets": [0, 0, 0, 0],
        "InputWindowSizes": [1, 1, 1, 30],
        "InputWindowStrides": [1, 1, 1, -1],
    }
    copied(document, ["InputTensor"], [x], output)
    assert equal(output, wanted)


def test_what_is_no_copy_of_such_elements_is_left_to_formulas() -> None:
    x = {"DataType": "FLOAT32", "Sizes": [1, 1, 4, 5]}
    padded = {"DataType": "FLOAT32", "Sizes": [2, 2, 8, 9]}
    for value in (1.0, -0.0):
        made = kernel_of(padding(value) | {"InputTensor": x, "OutputTensor": padded})
        assert not isinstance(made, CopiesKernel)


@pytest.mark.parametrize("mode", ["EDGE", "REFLECTION", "SYMMETRIC", "WRAP"])
@pytest.mark.parametrize("most", [2, 5])
def test_padding_with_what_is_there(mode: str, most: int) -> None:
    """By slices of the output, but what is beyond a whole mirror image."""
    x = some(3, 4, 5, 3)
    before, after = [2, 0, most, 1], [0, 3, most, 2]
    wanted = np.pad(x, [*zip(before, after, strict=True)], NUMPYS[mode])
    document = padding(0) | {"PaddingMode": mode, "StartPadding": before, "EndPadding": after}
    described = {"InputTensor": desc_of(x), "OutputTensor": desc_of(wanted)}
    kernel = NumpyDevice(cast(Executor, None), 1).prepare(compiled(document | described))
    is_mirrored = mode == "EDGE" or (mode != "WRAP" and most <= 5 - (mode == "REFLECTION"))
    assert isinstance(kernel, ArrayKernel) is is_mirrored
    output = np.zeros(wanted.shape, np.float32)
    kernel.dispatch([_bytes(x)], [_bytes(output)], lambda: False)
    assert equal(output, wanted)


@pytest.mark.parametrize(
    ("sizes", "axes", "simpler"),
    [
        ([2, 8, 32, 40], [2, 3], [16, 1280]),
        ([2, 8, 32, 40], [0, 1], [16, 1280]),
        ([8, 1, 64, 1, 40], [4, 1], [512, 40]),
        ([8, 1, 64, 1, 40], [0, 2, 3], [512, 40]),
        ([2, 8, 32, 40], [1, 3], [2, 8, 32, 40]),
        ([4, 1, 5120], [1], [4, 1, 5120]),
    ],
)
@pytest.mark.parametrize("kind", ["SUM", "MAX", "ARGMIN", "last"])
def test_large_reductions_go_over_few_dimensions(
    kind: str, sizes: list[int], axes: list[int], simpler: list[int]
) -> None:
    """Of few values, so that positions are told among many that are equal and sums are exact."""
    x = RNG.integers(-3, 4, sizes).astype(np.float32)
    document: dict[str, Any] = {"InputTensor": desc_of(x), "Axes": axes}
    if kind == "last":
        document |= {"Type": "DML_OPERATOR_ARGMAX", "AxisDirection": "DECREASING"}
    else:
        document |= {"Type": "DML_OPERATOR_REDUCE", "Function": kind}
    operator = compiled(document)
    made = []
    for each in (None, compiler()):
        kernel = NumpyDevice(cast(Executor, None), 1, each).prepare(operator)
        made.append(bytearray(operator.outputs["OutputTensor"].data_bytes))
        kernel.dispatch([_bytes(x)], [memoryview(made[-1])], lambda: False)
    assert made[0] == made[1]
    if isinstance(kernel, CoordinateKernel):
        assert kernel._inputs[0].desc.Sizes == simpler
    else:  # positions along rows
        assert kind in ("ARGMIN", "last")
        assert isinstance(kernel, CallsKernel)


def test_large_totals_are_the_loops() -> None:
    for size, is_large in ((1 << 13, False), (1 << 14, True)):
        x = RNG.standard_normal((1, 1, 2, size // 2)).astype(np.float32)
        made = np.zeros((1, 1, 2, 1), np.float32)
        described = {"InputTensor": desc_of(x), "OutputTensor": desc_of(made)}
        document = {"Type": "DML_OPERATOR_REDUCE", "Function": "SUM", "Axes": [3]}
        device = NumpyDevice(cast(Executor, None), 1, compiler())
        kernel = device.prepare(compiled(document | described))
        assert isinstance(kernel, ArrayKernel) is not is_large
        kernel.dispatch([_bytes(x)], [_bytes(made)], lambda: False)
        np.testing.assert_allclose(made, x.sum(3, np.float64, keepdims=True), 1e-6)


@pytest.mark.parametrize("kind", [*_OPERATORS, *COPIED, *REDUCED, MaxPooling1, MaxPooling2])
def test_kernels_of_their_own_are_for_operators_by_coordinates(kind: type[Operator]) -> None:
    """A device asks only of such operators whether there is one."""
    assert kind.by_coordinates
