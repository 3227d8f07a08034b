"""Operators that NumPy's calls make at once, by loops instead: bit for bit the same, on several threads, in pieces."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from app.devices.cpu import alone, device, maximum_gradients, scatters, window_sums
from app.devices.cpu.alone import CallsKernel
from app.devices.cpu.device import NumpyDevice
from app.devices.cpu.llvm import firsts, random_words, scans, sorting
from app.devices.device import Cancelled
from app.memory.arrays import Array, numpy_type
from tests.devices.test_llvm import COMPILER
from tests.operators.arrays import GUARD, desc_of
from tests.operators.calls import compiled


@pytest.fixture(scope="module")
def devices() -> Iterator[list[NumpyDevice]]:
    """One that computes with NumPy, and one with loops."""
    with ThreadPoolExecutor(3) as helpers:
        yield [NumpyDevice(helpers, 3, compiler) for compiler in (None, COMPILER)]


@pytest.fixture(params=[False, True], ids=["whole", "in pieces"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setattr(alone, "MOST_OF_A_CALL", 1 << 9)


def alike(devices: list[NumpyDevice], document: dict[str, Any], inputs: Mapping[str, Array]) -> None:
    """What both give, of packed tensors: a NaN may have any sign. Nothing is written beside the outputs, an output may
    have the memory of an input, and what is cancelled stops."""
    operator = compiled(document | {name: desc_of(each) for name, each in inputs.items()})
    kernels = [device._kernel(operator, None, 1) for device in devices]
    assert isinstance(kernels[1], CallsKernel)
    given = [memoryview(inputs[name].tobytes()) for name in operator.inputs]
    made: list[list[Array]] = []
    for kernel in kernels:
        memory = [np.full(desc.data_bytes + GUARD, 0xA5, np.uint8) for desc in operator.outputs.values()]
        kernel.dispatch(given, [each.data[:-GUARD] for each in memory], lambda: False)
        assert all((each[-GUARD:] == 0xA5).all() for each in memory)
        types = [numpy_type(operator.program.stored[name]) for name in operator.outputs]
        made.append([each[:-GUARD].view(dtype) for each, dtype in zip(memory, types, strict=True)])
    for expected, found in zip(*made, strict=True):
        same_bits(expected, found)
    with pytest.raises(Cancelled):
        kernels[1].dispatch(given, [memoryview(bytearray(each.nbytes)) for each in made[0]], lambda: True)
    if len(made[0]) == 1 and made[0][0].nbytes == given[0].nbytes:
        shared = np.frombuffer(given[0], np.uint8).copy()
        kernels[1].dispatch([shared.data, *given[1:]], [shared.data], lambda: False)
        same_bits(made[0][0], shared.view(made[0][0].dtype))


def same_bits(expected: Array, made: Array) -> None:
    if expected.dtype.kind == "f":
        np.testing.assert_array_equal(np.isnan(made), np.isnan(expected))
        expected, made = (np.where(np.isnan(each), 0, each) for each in (expected, made))
    np.testing.assert_array_equal(made.view(np.uint8), expected.view(np.uint8))


def elements(rng: np.random.Generator, sizes: list[int], name: str) -> Array:
    dtype = np.dtype(name)
    if dtype.kind == "f":
        x = rng.standard_normal(sizes).astype(dtype)
        some = rng.random(sizes) < 0.05
        x[some] = rng.choice(np.array([0, -0.0, 6e4, 6e-8, -6e4, np.inf, np.nan], dtype), int(some.sum()))
        return x
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, sizes, dtype, endpoint=True)


SCANNED = [
    *[([rows, count], 1) for rows in (1, scans.ROWS - 1, scans.ROWS, 2 * scans.ROWS + 1) for count in (1, 2, 300)],
    *[([3, count, columns], 1) for count in (1, 2, 7) for columns in (2, scans.STRIP - 1, scans.STRIP + 1)],
    ([5, 300], 0),
    ([5, 513], 1),
    ([2, 1025], 1),
]


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("name", ["float32", "float16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize(("kind", "member"), [("SUMMATION", "HasExclusiveSum"), ("PRODUCT", "HasExclusiveProduct")])
@pytest.mark.parametrize("is_exclusive", [False, True])
def test_scans(devices: list[NumpyDevice], name: str, kind: str, member: str, is_exclusive: bool) -> None:
    rng = np.random.default_rng(17)
    for number, (sizes, axis) in enumerate(SCANNED):
        document = {
            "Type": f"CUMULATIVE_{kind}",
            "Axis": axis,
            "AxisDirection": ("INCREASING", "DECREASING")[number % 2],
            member: is_exclusive,
        }
        x = elements(rng, sizes, name)
        x[0, ..., 0] = 0
        if name.startswith("float"):
            x[0, ..., 0] = -0.0
        alike(devices, document, {"InputTensor": x})


def of_first(k: int, direction: str, index: str, outer: int, inner: int) -> dict[str, Any]:
    indices = {"DataType": index, "Sizes": [outer, k, inner]}
    return {"Type": "TOP_K1", "Axis": 1, "K": k, "AxisDirection": direction, "OutputIndexTensor": indices}


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize(
    ("name", "direction"),
    [
        *[(name, "INCREASING") for name in ("float32", "uint64", "int32", "uint16", "int8")],
        *[(name, "DECREASING") for name in ("float32", "float16", "int64", "uint32", "int16", "uint8")],
    ],
)
@pytest.mark.parametrize("inner", [1, 7, 9, 32])
def test_first_elements(devices: list[NumpyDevice], name: str, direction: str, inner: int) -> None:
    """Of many equal ones, of random ones, of the most extreme ones only, and of such as are found one after the
    other; of sequences one behind the other, and side by side."""
    rng = np.random.default_rng(18)
    block = firsts.LANES[0]
    ends: list[float] = [-np.inf, np.nan]
    if not name.startswith("float"):
        ends = [np.iinfo(name).min, np.iinfo(name).max]
    some = [(1, 1), (2, 3), (firsts.LEAST, 9), (5, block - 1), (9, block), (17, block + 1), (40, 40), (150, 300)]
    for k, size in some if inner > 1 else [*some, (1, 300), (299, 300), (300, 300)]:
        document = of_first(k, direction, "UINT64" if inner == 9 else "UINT32", 2, inner)
        any_ = elements(rng, [2, size, inner], name)
        few = rng.integers(0, 3, any_.shape).astype(name)
        extreme = rng.choice(np.array(ends, name), any_.shape, p=[0.2, 0.8][:: 1 if direction == "INCREASING" else -1])
        for x in (few, any_, np.sort(any_, 1), extreme):
            alike(devices, document, {"InputTensor": x})


@pytest.mark.parametrize("name", ["float32", "int64"])
def test_first_elements_of_each_count(devices: list[NumpyDevice], name: str) -> None:
    """As runs and what they are merged from have other lengths with each."""
    x = elements(np.random.default_rng(23), [3, 70, 1], name)
    for k in range(1, 71):
        alike(devices, of_first(k, "DECREASING", "UINT32", 3, 1), {"InputTensor": x})


def test_a_long_sequence_is_sorted_until_nobody_waits(devices: list[NumpyDevice]) -> None:
    x = elements(np.random.default_rng(24), [1, sorting.LOOKING + 1, 1], "float32")
    operator = compiled(of_first(x.size, "DECREASING", "UINT32", 1, 1) | {"InputTensor": desc_of(x)})
    asked: list[bool] = []

    def cancelled() -> bool:
        asked.append(True)
        return len(asked) > 3

    outputs = [memoryview(bytearray(desc.data_bytes)) for desc in operator.outputs.values()]
    with pytest.raises(Cancelled):
        devices[1].prepare(operator).dispatch([x.data.cast("B")], outputs, cancelled)
    assert len(asked) == 4


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize(
    ("name", "index"),
    [
        *[("float32", "INT32"), ("float16", "UINT64"), ("int64", "UINT32"), ("uint32", "INT64")],
        *[("int8", "UINT32"), ("uint8", "INT32")],
    ],
)
@pytest.mark.parametrize("kind", ["ARGMAX", "ARGMIN"])
@pytest.mark.parametrize("direction", ["INCREASING", "DECREASING"])
def test_positions_along_rows(devices: list[NumpyDevice], name: str, index: str, kind: str, direction: str) -> None:
    """Of many equal ones, of one that is alone anywhere, and of zeros of both signs, infinities and NaN."""
    rng = np.random.default_rng(22)
    is_float, sign = name.startswith("float"), 1 if kind == "ARGMAX" else -1
    for size in (1, 8, 9, 32, 33, 97):
        few = rng.integers(0, 3, (7, size)).astype(name)
        alone = (5 + sign * np.eye(size)).astype(name)
        cases = [few, alone, elements(rng, [7, size], name)]
        if is_float:
            zeros = rng.choice(np.array([0, -0.0], name), (7, size))
            some = rng.choice(np.array([0, 1, np.nan], name), (7, size), p=[0.5, 0.45, 0.05])
            cases += [zeros, some, np.full((2, size), -sign * np.inf, name), np.where(alone == 5, alone, np.nan)]
        for x in cases:
            document = {"Axes": [1], "OutputTensor": {"DataType": index, "Sizes": [len(x), 1]}}
            alike(devices, document | {"Type": kind, "AxisDirection": direction}, {"InputTensor": x})
            if direction == "INCREASING":
                alike(devices, document | {"Type": "REDUCE", "Function": kind}, {"InputTensor": x})


def test_positions_over_several_dimensions(devices: list[NumpyDevice]) -> None:
    """Those of size 1 may be anywhere; others are gone over otherwise."""
    rng = np.random.default_rng(23)
    for sizes, axes, is_of_rows in (
        ([3, 4, 5], [2, 1], True),
        ([1, 4, 1, 5, 1], [4, 0, 3], True),
        ([3, 4, 1], [2], True),
        ([3, 4, 5], [0, 2], False),
        ([3, 4, 5], [1], False),
    ):
        x = rng.integers(0, 3, sizes).astype(np.float32)
        document = {"Type": "ARGMAX", "Axes": axes, "AxisDirection": "DECREASING"}
        if is_of_rows:
            alike(devices, document, {"InputTensor": x})
        else:
            operator = compiled(document | {"InputTensor": desc_of(x)})
            assert not isinstance(devices[1]._kernel(operator, None, 1), CallsKernel)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("name", ["float32", "float16"])
def test_windows_as_columns(devices: list[NumpyDevice], name: str) -> None:
    """With steps, dilations and padding, of which there may be whole windows."""
    rng = np.random.default_rng(24)
    for image in ([9], [6, 7], [4, 5, 3]):
        for _ in range(3):
            window, steps, dilations = (rng.integers(1, 4, len(image)).tolist() for _ in range(3))
            before, after = (rng.integers(0, 7, len(image)).tolist() for _ in range(2))
            before = [max(each, 3 * 3) if rng.random() < 0.3 else each for each in before]
            members = {"WindowSizes": window, "Strides": steps, "Dilations": dilations}
            document = {"Type": "UNFOLD", **members, "StartPadding": before, "EndPadding": [7 + each for each in after]}
            alike(devices, document, {"InputTensor": rng.standard_normal([2, 3, *image]).astype(name)})


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("name", ["float32", "float16"])
def test_gradients_of_slices(devices: list[NumpyDevice], name: str) -> None:
    rng = np.random.default_rng(25)
    for _ in range(6):
        sizes = rng.integers(1, 12, 3)
        offsets = rng.integers(0, sizes)
        windows = rng.integers(1, sizes - offsets + 1)
        strides = rng.choice([-3, -2, -1, 1, 2], 3)
        counts = -(-windows // abs(strides))
        document = {
            "Type": "SLICE_GRAD",
            "InputWindowOffsets": offsets.tolist(),
            "InputWindowSizes": windows.tolist(),
            "InputWindowStrides": strides.tolist(),
            "OutputGradientTensor": {"DataType": name.upper(), "Sizes": sizes.tolist()},
        }
        alike(devices, document, {"InputGradientTensor": rng.standard_normal(counts).astype(name)})


@pytest.mark.usefixtures("pieces")
def test_random_words(devices: list[NumpyDevice]) -> None:
    """Of some, of a few more, and where one half of the counter goes over into the other one."""
    rng = np.random.default_rng(26)
    for size in (1, random_words.AT_ONCE - 1, random_words.AT_ONCE, 3 * random_words.AT_ONCE + 1):
        for counter in ([2**32 - 1] * 4, [2**32 - 3, 2**32 - 1, 5, 0]):
            state = np.array([*counter, *rng.integers(0, 2**32, 2)], np.uint32)
            document: dict[str, Any] = {
                "Type": "RANDOM_GENERATOR",
                "GeneratorType": "PHILOX_4X32_10",
                "OutputTensor": {"DataType": "UINT32", "Sizes": [size]},
            }
            for _ in range(2):
                alike(devices, document, {"InputStateTensor": state})
                document["OutputStateTensor"] = {"DataType": "UINT32", "Sizes": [6]}


TURNED: list[tuple[list[int], list[int]]] = [
    *[([rows, columns], [1, 0]) for rows in (16, 17, 31, 40, 130) for columns in (16, 33, 64)],
    *[([17, 20, 37], order) for order in ([0, 2, 1], [2, 0, 1], [2, 1, 0], [1, 2, 0])],
    *[([2, 16, 3, 35], order) for order in ([0, 2, 3, 1], [2, 3, 0, 1], [3, 0, 2, 1], [0, 3, 2, 1])],
]


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("name", ["uint8", "int16", "float32", "uint64"])
def test_rows_turned_into_columns(devices: list[NumpyDevice], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any bits, from and to rows with gaps between them, which stay as they are."""
    monkeypatch.setattr(device, "TILED", 1)
    rng = np.random.default_rng(19)
    dtype = np.dtype(name)
    for sizes, order in TURNED:
        for gap in (0, 3):
            whole = rng.integers(0, 256, (*sizes[:-1], (sizes[-1] + gap) * dtype.itemsize), np.uint8).view(dtype)
            given = whole[..., : sizes[-1]].transpose(order)
            made = np.zeros((*given.shape[:-1], given.shape[-1] + gap), dtype)
            taken = made[..., : given.shape[-1]]
            document = {"Type": "ELEMENT_WISE_IDENTITY", "InputTensor": desc_of(given), "OutputTensor": desc_of(taken)}
            kernel = devices[1]._kernel(compiled(document), None, 1)
            assert isinstance(kernel, CallsKernel)
            buffers = [
                each.reshape(-1).view(np.uint8).data[: each.nbytes - gap * dtype.itemsize] for each in (whole, made)
            ]
            kernel.dispatch(buffers[:1], buffers[1:], lambda: False)
            same_bits(given.copy().view(f"u{dtype.itemsize}"), taken.copy().view(f"u{dtype.itemsize}"))
            taken[...] = 0
            assert not made.any()
            with pytest.raises(ValueError, match="buffer"):
                kernel.dispatch([buffers[0][: -dtype.itemsize]], buffers[1:], lambda: False)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", ["UINT8", "INT8"])
def test_quantized_by_their_range(devices: list[NumpyDevice], name: str, dtype: str) -> None:
    """Of ranges on either side of 0 or both, of 0 alone, of halves and next to them, and with infinities and NaN
    somewhere."""
    rng = np.random.default_rng(20)
    for size in (1, 15, 16, 17, 64, 65, 1000):
        x = rng.standard_normal((2, size)).astype(np.float32)
        halves = rng.integers(-255, 256, (2, size)).astype(dtype) / 2
        halves[0, 0], halves[1, -1] = -127.5, 127.5
        beside = [np.nextafter(halves, halves.dtype.type(end)) for end in (-np.inf, np.inf)]
        cases = [x, np.abs(x), -np.abs(x), x * 1e-44, x * 3e37, 0 * x, -np.zeros_like(x), halves, halves * 0.3, *beside]
        for given in cases:
            for special in (None, np.nan, np.inf, -np.inf):
                with np.errstate(over="ignore"):
                    some = given.astype(dtype)
                if special is not None:
                    some[1, rng.integers(size)] = special
                document = {
                    "Type": "DYNAMIC_QUANTIZE_LINEAR",
                    "OutputTensor": {"DataType": name, "Sizes": [2, size]},
                }
                alike(devices, document, {"InputTensor": some})


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize(
    ("name", "index"), [("uint8", "int32"), ("float16", "uint32"), ("int32", "int64"), ("uint64", "uint64")]
)
def test_scattered_elements(devices: list[NumpyDevice], name: str, index: str) -> None:
    """Several to one place, from the end, and beyond it by anything."""
    rng = np.random.default_rng(21)
    far = np.iinfo(index)
    for sizes in ([300], [7, 40], [5, 6, 7], [3, 4, 5, 6], [1, 5, 1, 6]):
        x = rng.integers(0, 256, [*sizes[:-1], sizes[-1] * np.dtype(name).itemsize], np.uint8).view(name)
        for axis, size in enumerate(sizes):
            updated = [*sizes[:axis], int(rng.choice([1, size, 2 * size])), *sizes[axis + 1 :]]
            updates = rng.integers(0, 256, [*updated[:-1], updated[-1] * x.itemsize], np.uint8).view(name)
            at = rng.integers(-size if far.min else 0, size, updated).astype(index)
            beyond = rng.random(updated) < 0.2
            outside = np.array([far.min, far.max, size, size + 5, far.max // 2, -size - 1 if far.min else size], index)
            at[beyond] = rng.choice(outside, int(beyond.sum()))
            document = {"Type": "SCATTER", "Axis": axis}
            alike(devices, document, {"InputTensor": x, "IndicesTensor": at, "UpdatesTensor": updates})


def bits(rng: np.random.Generator, sizes: list[int], name: str) -> Array:
    """Of any elements."""
    return rng.integers(0, 256, [*sizes[:-1], sizes[-1] * np.dtype(name).itemsize], np.uint8).view(name)


def some_beyond(rng: np.random.Generator, at: Array, size: int) -> Array:
    """The indices `at` of elements along a dimension, a fifth of them in none."""
    far = np.iinfo(at.dtype)
    beyond = rng.random(list(at.shape)) < 0.2
    outside = np.array([far.min, far.max, size, size + 5, far.max // 2, -size - 1 if far.min else size], at.dtype)
    if not far.min:
        outside = outside[1:]
    at[beyond] = rng.choice(outside, int(beyond.sum()))
    return at


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize(
    ("name", "index"), [("uint8", "int32"), ("float16", "uint32"), ("int32", "int64"), ("uint64", "uint64")]
)
def test_scattered_parts(devices: list[NumpyDevice], name: str, index: str) -> None:
    """One element each, some, and as many as several threads take; several to one place, from the end, and beyond."""
    rng = np.random.default_rng(27)
    for sizes, length in (
        ([300], 1),
        ([7, 40], 1),
        ([7, 40], 2),
        ([5, scatters.WIDE + 3], 1),
        ([1, 5, 6, 7], 2),
        ([3, 4, 5, 6], 4),
    ):
        count, rank = 20, max(len(sizes), 2)
        meant = [each for each in sizes if each > 1]
        tuples = [
            some_beyond(rng, rng.integers(-size if index.startswith("i") else 0, size, count).astype(index), size)
            for size in meant[:length]
        ]
        at = np.stack(tuples, 1).reshape([1] * (rank - 2) + [count, length])
        updated = [count, *meant[length:]]
        document = {
            "Type": "SCATTER_ND",
            "InputDimensionCount": len(meant),
            "IndicesDimensionCount": 2,
        }
        inputs = {
            "InputTensor": bits(rng, [1] * (rank - len(sizes)) + sizes, name),
            "IndicesTensor": at,
            "UpdatesTensor": bits(rng, [1] * (rank - len(updated)) + updated, name),
        }
        alike(devices, document, inputs)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize(
    ("name", "index"), [("float32", "uint32"), ("float16", "uint64"), ("int8", "uint64"), ("uint64", "uint32")]
)
def test_elements_put_back_among_zeros(devices: list[NumpyDevice], name: str, index: str) -> None:
    """Several to one place, and beyond all of them."""
    rng = np.random.default_rng(28)
    for sizes, made in (([1, 1, 1, 1], [1, 1, 1, 1]), ([2, 3, 10, 9], [2, 3, 20, 19]), ([1, 2, 9, 9], [1, 2, 3, 3])):
        elements = int(np.prod(made))
        at = some_beyond(rng, rng.integers(0, elements, sizes).astype(index), elements)
        document = {"Type": "MAX_UNPOOLING", "OutputTensor": {"DataType": name.upper(), "Sizes": made}}
        alike(devices, document, {"InputTensor": bits(rng, sizes, name), "IndicesTensor": at})


def windows_over(rng: np.random.Generator, image: list[int]) -> dict[str, list[int]]:
    """Windows of which there is one at least, some of them in the padding alone, some longer than the image."""
    window, strides, dilations, start = (rng.integers(1, 4, len(image)).tolist() for _ in range(4))
    reach = [(size - 1) * step + 1 for size, step in zip(window, dilations, strict=True)]
    end = [max(each - size - before, 0) for each, size, before in zip(reach, image, start, strict=True)]
    return {
        "WindowSizes": window,
        "Strides": strides,
        "Dilations": dilations,
        "StartPadding": [before + int(rng.integers(4)) for before in start],
        "EndPadding": [after + int(rng.integers(4)) for after in end],
    }


def counts_of(image: list[int], members: Mapping[str, list[int]]) -> list[int]:
    return [
        (size + start + end - dilation * (window - 1) - 1) // stride + 1
        for size, window, stride, dilation, start, end in zip(image, *members.values(), strict=True)
    ]


IMAGES = [[1], [37], [6, 7], [1, 30], [9, 1], [4, 5, 3]]


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("name", ["float32", "float16"])
def test_columns_as_windows(devices: list[NumpyDevice], name: str) -> None:
    rng = np.random.default_rng(29)
    for image in [*IMAGES, [2, 3, 2, 3]]:
        for _ in range(4):
            members = windows_over(rng, image)
            made = {"DataType": name.upper(), "Sizes": [2, 3, *image]}
            rows, columns = 3 * int(np.prod(members["WindowSizes"])), int(np.prod(counts_of(image, members)))
            document = {"Type": "FOLD", **members, "OutputTensor": made}
            alike(devices, document, {"InputTensor": elements(rng, [2, rows, columns], name)})


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("name", ["float32", "float16"])
@pytest.mark.parametrize("include_padding", [False, True])
def test_gradients_of_averages(devices: list[NumpyDevice], name: str, include_padding: bool) -> None:
    rng = np.random.default_rng(30)
    for image in [each for each in IMAGES if len(each) > 1]:
        for _ in range(4):
            members = windows_over(rng, image) | {"Dilations": [1] * len(image)}
            given = elements(rng, [2, 3, *counts_of(image, members)], name)
            document = {
                "Type": "AVERAGE_POOLING_GRAD",
                "WindowSize": members["WindowSizes"],
                **{each: members[each] for each in ("Strides", "StartPadding", "EndPadding")},
                "IncludePadding": include_padding,
                "OutputGradientTensor": {"DataType": name.upper(), "Sizes": [2, 3, *image]},
            }
            alike(devices, document, {"InputGradientTensor": given})


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("name", ["float32", "float16"])
def test_gradients_of_maxima(devices: list[NumpyDevice], name: str) -> None:
    """Of many equal elements, of some that are NaN, of nothing but the least."""
    rng = np.random.default_rng(31)
    for image in [each for each in IMAGES if len(each) > 1]:
        for turn in range(6):
            members = windows_over(rng, image)
            given = elements(rng, [2, 3, *counts_of(image, members)], name)
            x = rng.integers(0, 3, [2, 3, *image]).astype(name) if turn % 2 else elements(rng, [2, 3, *image], name)
            x[0] = np.where(rng.random(image) < 0.1, np.nan, -np.inf)
            document = {
                "Type": "MAX_POOLING_GRAD",
                "WindowSize": members["WindowSizes"],
                **{each: members[each] for each in ("Strides", "Dilations", "StartPadding", "EndPadding")},
            }
            alike(devices, document, {"InputTensor": x, "InputGradientTensor": given})


def test_large_planes_and_windows_are_left_to_numpy(devices: list[NumpyDevice]) -> None:
    for size, window in ((1 + maximum_gradients.LARGEST_PLANE // 1024, 1), (512, 200)):
        given = [1024, size - window + 1]
        document = {
            "Type": "MAX_POOLING_GRAD",
            "WindowSize": [1, window],
            "Strides": [1, 1],
            "Dilations": [1, 1],
            "StartPadding": [0, 0],
            "EndPadding": [0, 0],
            "InputTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 1024, size]},
            "InputGradientTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, *given]},
        }
        assert not isinstance(devices[1]._kernel(compiled(document), None, 1), CallsKernel)


def test_windows_of_which_tables_would_be_large_are_left_to_the_formula(devices: list[NumpyDevice]) -> None:
    for image in ([window_sums.MOST_MEETINGS // 8, 1], [1, window_sums.LONGEST_ROW + 1]):
        document = {
            "Type": "AVERAGE_POOLING_GRAD",
            "WindowSize": [9, 1],
            "Strides": [1, 1],
            "StartPadding": [8, 0],
            "EndPadding": [0, 0],
            "IncludePadding": True,
            "OutputGradientTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, *image]},
        }
        given = {"InputGradientTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, *image]}}
        assert not isinstance(devices[1]._kernel(compiled(document | given), None, 1), CallsKernel)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("name", ["float32", "float16"])
@pytest.mark.parametrize("mode", ["NEAREST_NEIGHBOR", "LINEAR"])
def test_gradients_of_samples(devices: list[NumpyDevice], name: str, mode: str) -> None:
    """Along any dimensions, of tensors that are larger or smaller than scales make them."""
    rng = np.random.default_rng(32)
    for turn in range(40):
        rank = int(rng.integers(1, 5))
        scaled = rng.random(rank) < 0.6
        scaled[rng.integers(rank)] = True
        scales = np.where(scaled, rng.choice([0.25, 0.5, 2, 3, 0.3, 1.7], rank), 1).tolist()
        sizes = rng.integers(1, 9, rank)
        given = np.maximum((sizes * scales).astype(int) + rng.integers(-1, 3) * scaled, 1)
        document = {
            "Type": "RESAMPLE_GRAD1" if turn % 2 else "RESAMPLE_GRAD",
            "InterpolationMode": mode,
            "Scales": scales,
            "InputPixelOffsets": [0.5] * rank if turn % 3 else [0] * rank,
            "OutputPixelOffsets": [-0.5] * rank if turn % 3 else [0] * rank,
            "OutputGradientTensor": {"DataType": name.upper(), "Sizes": sizes.tolist()},
        }
        if turn % 2:
            document["RoundingDirection"] = ("INCREASING", "DECREASING")[turn // 2 % 2]
        alike(devices, document, {"InputGradientTensor": elements(rng, given.tolist(), name)})


def test_samples_of_which_tables_would_be_large_are_left_to_the_formula(devices: list[NumpyDevice]) -> None:
    most = window_sums.MOST_MEETINGS
    for sizes, scales in (
        ([1, 1, most + 1], [1, 1, 2.0]),
        ([most, 1], [2.0, 1]),
        ([1, most // 2], [1, 3.0]),
        ([most // 512, 512, 2], [2.0, 2.0, 1]),
    ):
        given = [int(size * scale) for size, scale in zip(sizes, scales, strict=True)]
        document = {
            "Type": "RESAMPLE_GRAD1",
            "InterpolationMode": "LINEAR",
            "RoundingDirection": "DECREASING",
            "Scales": scales,
            "InputPixelOffsets": [0.5] * len(sizes),
            "OutputPixelOffsets": [-0.5] * len(sizes),
            "OutputGradientTensor": {"DataType": "FLOAT32", "Sizes": sizes},
            "InputGradientTensor": {"DataType": "FLOAT32", "Sizes": given},
        }
        assert not isinstance(devices[1]._kernel(compiled(document), None, 1), CallsKernel), sizes
