"""CUDA kernels whose terms are split over blocks, and whose threads have several neighbours, against NumPy: built for
the CPU, and on a GPU."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.devices.cpu.device import NumpyDevice
from app.devices.cuda import places as cuda_places
from app.devices.cuda import splits as cuda_splits
from app.devices.cuda import turns
from app.devices.cuda.device import CudaDevice
from app.devices.cuda.places import Coordinates
from app.devices.cuda.splits import Splits
from app.formula.coordinates import coordinates
from app.memory.arrays import numpy_type
from tests.devices.coordinate_cases import Case, case, same
from tests.devices.cuda_device_on_cpu import CudaDeviceOnCpu
from tests.devices.cuda_on_cpu import COMPILER, BuiltKernels, coordinate_source, split_sources
from tests.devices.test_coordinates import N, elements, of_expression, operand
from tests.gpu import assert_compiles, first_gpu
from tests.operators.arrays import desc_of, laid_out, room, run
from tests.operators.coordinate_operators import Gather, Join, Reduce, Slice1
from tests.operators.descriptors import compiled

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")


@pytest.fixture(scope="module")
def numpy_device() -> Iterator[NumpyDevice]:
    with ThreadPoolExecutor(1) as helpers:
        yield NumpyDevice(helpers, 1)


def reductions(scale: int = 1, *, drawn: bool = True) -> Iterator[Case]:
    """Over outer dimensions with rows that are wide, narrow and of one element, and over all; NaN, ties, infinities.
    What is not drawn is zeros, whose memory nobody touches."""
    rng = np.random.default_rng(3)
    layouts = [
        ([300, 70], [0]),
        ([2, 140, 9, 66], [0, 1]),
        ([3, 400, 1], [1]),
        ([150, 4, 32], [0, 1, 2]),
        ([513, 3], [0]),
    ]
    chosen = [
        *(("SUM", each) for each in (DataType.FLOAT32, DataType.FLOAT16, DataType.INT64)),
        *(("MAX", each) for each in (DataType.FLOAT16, DataType.UINT8)),
        *(("ARGMAX", each) for each in (DataType.FLOAT32, DataType.FLOAT64, DataType.INT8, DataType.UINT64)),
        *(("ARGMIN", each) for each in (DataType.FLOAT16, DataType.INT32)),
        *(("LOG_SUM_EXP", DataType.FLOAT32), ("AVERAGE", DataType.FLOAT32)),
    ]
    for place, (function, data_type) in enumerate(chosen):
        for layout in (
            range(len(layouts)) if data_type is DataType.FLOAT32 and function != "AVERAGE" else [place % len(layouts)]
        ):
            sizes, axes = layouts[layout]
            scaled = [scale * size if axis == axes[-1] else size for axis, size in enumerate(sizes)]
            x: Any = elements(rng, scaled, data_type) if drawn else np.zeros(scaled, numpy_type(data_type))
            is_float = x.dtype.kind == "f"
            if drawn and is_float and function == "LOG_SUM_EXP":
                x = rng.standard_normal(x.shape, np.float32)
            elif drawn and is_float:
                flat = x.reshape(-1)
                flat[3 :: x.shape[-1] + 1] = flat[1]  # ties
                flat[0], flat[x.size // 2 + 1] = np.nan, -np.inf
                x[..., -1] = -np.inf
                x[0, ..., 0] = -0.0
            out = np.zeros([1 if axis in axes else size for axis, size in enumerate(x.shape)], x.dtype)
            out = out.astype(np.uint32) if function.startswith("ARG") else out
            for last in (False, True) if function.startswith("ARG") and layout in (0, 3) else (False,):
                members = {"OutputTensor": desc_of(laid_out(rng, out)), "Function": function, "Axes": axes}
                yield case(
                    f"{function} {data_type} {sizes} {'last' if last else ''}",
                    Reduce,
                    members | {"Last": last},
                    exact=function not in ("LOG_SUM_EXP", "AVERAGE") and not (function == "SUM" and is_float),
                    InputTensor=(laid_out if drawn else room)(rng, x),
                )


def moves() -> Iterator[Case]:
    """Aligned and not, from the ends of rows and beyond them, choices along rows and across."""
    rng = np.random.default_rng(4)
    x = np.arange(40, dtype=np.int32)
    of, (i,) = operand(x), coordinates(1)
    for start in (-50, -37, 30, (1 << 63) - 18):  # whose sums with coordinates wrap around
        yield Case(f"from {start}", of_expression(of[[i + N]], [40], DataType.INT32, x, n=start), {"X": x})
    for data_type in (DataType.FLOAT16, DataType.FLOAT32, DataType.INT8, DataType.INT64):
        x = elements(rng, [5, 7, 40], data_type)
        for offset in (0, 1, 8):
            members: dict[str, Any] = {
                "InputWindowOffsets": [1, 2, offset],
                "InputWindowSizes": [4, 5, 32],
                "InputWindowStrides": [1, -2, 1],
                "OutputTensor": desc_of(np.zeros((4, 3, 32), x.dtype)),
            }
            yield case(f"slice {data_type} from {offset}", Slice1, members, InputTensor=x)
        for axis, sizes in ((0, (2, 3, 4)), (2, (24, 9, 31))):
            tensors = [elements(rng, [n if at == axis else 24 for at in range(3)], data_type) for n in sizes]
            out = np.concatenate(tensors, axis)
            members = {"OutputTensor": desc_of(laid_out(rng, out)), "Axis": axis}
            yield case(f"join {data_type} {axis}", Join, members, InputTensors=tensors)
        rows = elements(rng, [6, 50], data_type)
        indices = np.array([0, 5, -1, -6, 6, 77, -7], np.int32)
        for beyond in ({}, {"Beyond": 3.0}) if rows.dtype.kind == "f" else ({},):
            members = {"Axis": 0, "OutputTensor": desc_of(np.zeros((7, 50), rows.dtype))}
            name = f"gather {data_type} {beyond}"
            yield case(name, Gather, members | beyond, InputTensor=rows, IndicesTensor=indices)


def differing(device: CudaDevice, numpy_device: NumpyDevice, cases: list[Case]) -> list[str]:
    """The cases that `device` computes otherwise."""
    return [
        each.name
        for each in cases
        if not same(each, run(device, each.operator, each.inputs), run(numpy_device, each.operator, each.inputs))
    ]


@needs_compiler
def test_terms_are_split_over_blocks(
    tmp_path: Path, numpy_device: NumpyDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_splits, "LEAST_WORK", 0)
    monkeypatch.setattr(cuda_splits, "MULTIPROCESSORS", 1)
    cases = list(reductions())
    sources = [source for each in cases for source in split_sources(each.operator, "OutputTensor")]
    assert len(sources) > len(cases)
    device = CudaDeviceOnCpu(BuiltKernels(tmp_path, sources=sources))
    assert differing(device, numpy_device, cases) == []
    assert device.log.count("kernel") == len(sources)


@needs_compiler
def test_threads_have_neighbours(tmp_path: Path, numpy_device: NumpyDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_places, "LEAST_VECTORS", 0)
    cases = list(moves())
    assert {Coordinates.of(each.operator, next(iter(each.operator.outputs))).kind.width for each in cases} == {
        2,
        4,
        8,
        16,
    }
    device = CudaDeviceOnCpu(BuiltKernels(tmp_path, [each.operator for each in cases]))
    assert differing(device, numpy_device, cases) == []


def test_only_what_is_chosen_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tensors that are joined across rows, one."""
    monkeypatch.setattr(cuda_places, "LEAST_VECTORS", 0)
    joined = [each.operator for each in moves() if each.name == f"join {DataType.FLOAT16} 0"]
    source, _, _ = coordinate_source(joined[0], "OutputTensor")
    tests = re.findall(r"if \((.*)\) gathered\(", source)
    assert [each.count("!") for each in tests] == [0, 1, 1]  # the last of three is behind both tests or one
    assert len({*tests}) == 3


def split_of(sizes: list[int], axes: list[int], data_type: DataType = DataType.FLOAT32) -> Splits | None:
    x = np.broadcast_to(np.zeros(1, np.float32 if data_type is DataType.FLOAT32 else np.float16), sizes)
    out = np.zeros([1 if axis in axes else size for axis, size in enumerate(sizes)], x.dtype)
    desc = {"DataType": data_type, "Sizes": sizes}
    members = {"OutputTensor": desc_of(out), "Function": "SUM", "Axes": axes, "InputTensor": desc}
    operator = case("", Reduce, members).operator
    return Splits.of(operator, "OutputTensor", Coordinates.of(operator, "OutputTensor"))


def test_what_is_chosen_for_all_of_a_threads_neighbours_is_known_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tensors that are joined along rows, where vectors begin; of others, for each element."""
    monkeypatch.setattr(cuda_places, "LEAST_VECTORS", 0)
    for sizes, guarded in (((24, 8), 2), ((25, 7), 0)):
        tensors = [np.zeros((24, 24, n), np.float16) for n in sizes]
        members = {"OutputTensor": desc_of(np.zeros((24, 24, 32), np.float16)), "Axis": 2}
        source, _, _ = coordinate_source(case("", Join, members, InputTensors=tensors).operator, "OutputTensor")
        assert len(re.findall(r"if \(!?v\d+\) gathered\(", source)) == guarded


def rows_of_terms() -> Iterator[Case]:
    """Reductions along rows that fill a team's vectors, do not, and do not begin where these may; several at once."""
    rng = np.random.default_rng(6)
    chosen = [
        *(("SUM", each) for each in (DataType.FLOAT32, DataType.FLOAT16, DataType.UINT32)),
        *(("MAX", each) for each in (DataType.FLOAT32, DataType.FLOAT16, DataType.INT32)),
        *(("MIN", DataType.FLOAT16), ("ARGMAX", DataType.FLOAT16), ("ARGMIN", DataType.FLOAT32)),
        *(("ARGMAX", DataType.UINT64), ("LOG_SUM_EXP", DataType.FLOAT32)),
    ]
    for function, data_type in chosen:
        for sizes, axes in (
            ([9, 1024], [1]),
            ([2, 3, 5, 352], [2, 3]),
            ([7, 259], [1]),
            ([6, 1300], [1]),
            ([19, 200], [1]),
        ):
            x: Any = elements(rng, sizes, data_type)
            if x.dtype.kind == "f":
                x = rng.standard_normal(sizes).astype(x.dtype)
                x[0, ..., 3] = x[0, ..., -2] = 99
                x[1, ..., 7] = x[1, ..., 9] = np.nan if function != "LOG_SUM_EXP" else 0
            out = np.zeros([1 if axis in axes else size for axis, size in enumerate(sizes)], x.dtype)
            out = out.astype(np.uint32) if function.startswith("ARG") else out
            for last in (False, True) if function == "ARGMAX" else (False,):
                members = {"OutputTensor": desc_of(out), "Function": function, "Axes": axes, "Last": last}
                name, exact = f"{function} {data_type} {sizes} {last}", function != "LOG_SUM_EXP"
                yield case(name, Reduce, members, exact=exact, InputTensor=x)


@pytest.mark.parametrize(
    ("size", "group", "neighbours"),
    [(31, 128, 1), (33, 8, 1), (65, 8, 1), (255, 8, 1), (257, 16, 1), (513, 32, 1), (1024, 8, 4), (1028, 16, 4)],
)
def test_teams_are_as_small_as_turns_allow(size: int, group: int, neighbours: int) -> None:
    x = np.zeros([1 << 12, size], np.float32)
    members = {"OutputTensor": desc_of(x[:, :1]), "Function": "SUM", "Axes": [1]}
    kind = Coordinates.of(case("", Reduce, members, InputTensor=x).operator, "OutputTensor").kind
    assert (kind.group, kind.neighbours) == (group, neighbours)


@needs_compiler
def test_teams_have_rows(tmp_path: Path, numpy_device: NumpyDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_places, "LEAST_BY_TEAMS", 0)
    cases = list(rows_of_terms())
    kinds = [Coordinates.of(each.operator, "OutputTensor").kind for each in cases]
    assert {each.group for each in kinds} == {8, 16, 32}
    assert {each.neighbours for each in kinds} == {1, 2, 4, 8}
    device = CudaDeviceOnCpu(BuiltKernels(tmp_path, [each.operator for each in cases]))
    assert differing(device, numpy_device, cases) == []


def windows() -> Iterator[Case]:
    """Poolings of windows that lie one after the other, and of some that do not."""
    rng = np.random.default_rng(7)
    for kind in ("MAX_POOLING", "AVERAGE_POOLING", "LP_POOLING", "MAX_POOLING1"):
        for data_type, step, window, sizes in (
            ("FLOAT16", 2, [2, 2], [2, 3, 6, 16]),
            ("FLOAT16", 4, [3, 3], [2, 3, 7, 16]),
            ("FLOAT32", 2, [3, 2], [2, 3, 7, 16]),
            ("FLOAT32", 2, [2, 2, 1], [1, 2, 4, 6, 8]),
            ("FLOAT32", 2, [3, 3], [2, 3, 7, 15]),
            ("FLOAT16", 2, [2, 2], [2, 3, 6, 12]),
        ):
            x = rng.standard_normal(sizes).astype(np.float16 if data_type == "FLOAT16" else np.float32)
            x[0, 1, 2, 3] = np.nan
            spatial = len(sizes) - 2
            document: dict[str, Any] = {
                "Type": kind,
                "InputTensor": {"DataType": data_type, "Sizes": sizes},
                "Strides": [2] * (spatial - 1) + [step],
                "WindowSize": window,
                "StartPadding": [0] * spatial,
                "EndPadding": [0] * spatial,
            }
            more: dict[str, dict[str, Any]] = {"AVERAGE_POOLING": {"IncludePadding": False}, "LP_POOLING": {"P": 2}}
            document |= more.get(kind, {})
            if kind == "MAX_POOLING1":
                made = [
                    (size - n) // by + 1 for size, n, by in zip(sizes[2:], window, document["Strides"], strict=True)
                ]
                document["OutputIndicesTensor"] = {"DataType": "UINT32", "Sizes": [*sizes[:2], *made]}
            operator = compiled(document)
            if "OutputIndicesTensor" in operator.outputs:
                x[np.isnan(x)] = 1
            yield Case(f"{kind} {data_type} {window} {sizes}", operator, {"InputTensor": x}, exact=kind != "LP_POOLING")


@needs_compiler
def test_threads_load_windows_at_once(
    tmp_path: Path, numpy_device: NumpyDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_places, "LEAST_VECTORS", 0)
    cases = list(windows())
    kinds = [Coordinates.of(each.operator, "OutputTensor").kind for each in cases]
    assert {(each.step, each.width) for each in kinds} == {(2, 4), (4, 2), (2, 2), (0, 1)}
    device = CudaDeviceOnCpu(BuiltKernels(tmp_path, [each.operator for each in cases]))
    assert differing(device, numpy_device, cases) == []


def test_what_is_not_aligned_is_loaded_one_by_one() -> None:
    """Where addresses are not, or rows begin elsewhere."""
    for size, aligned, expected in ((1024, True, True), (1024, False, False), (1030, True, False)):
        x = np.broadcast_to(np.zeros(1, np.float32), [5000, size])
        members = {"OutputTensor": desc_of(np.zeros((5000, 1), np.float32)), "Function": "SUM", "Axes": [1]}
        operator = case("", Reduce, members, InputTensor=x.copy()).operator
        kind = Coordinates.of(operator, "OutputTensor").kind
        source, _, _ = coordinate_source(operator, "OutputTensor", kind if aligned else replace(kind, packed=()))
        assert ("gathered(near" not in source) == expected


def test_splits_keep_a_gpu_busy() -> None:
    """Threads go along rows where these are kept; as many blocks as there is room for, and little to join."""
    outer = split_of([1 << 16, 1 << 10], [0])
    assert outer
    assert (outer.kind.lanes, outer.kind.width) == (32, 4)
    assert outer.blocks == cuda_splits.MULTIPROCESSORS * turns.BLOCKS_ACROSS
    assert outer.scratch_bytes < 1 << 23
    half = split_of([1 << 16, 1 << 10], [0], DataType.FLOAT16)
    assert half
    assert half.kind.width == 8
    whole = split_of([1 << 13, 1 << 13], [0, 1])
    assert whole
    assert (whole.kind.lanes, whole.blocks) == (0, cuda_splits.MULTIPROCESSORS * turns.BLOCKS)
    assert split_of([1 << 16, 1 << 10], [1]) is None  # a block for each
    assert split_of([1 << 6, 1 << 10], [0]) is None  # little
    assert split_of([1 << 10, 1 << 17], [0]) is None  # a thread for each


def test_kernels_compile() -> None:
    """For Ampere and for Hopper."""
    cases = [
        each for each in reductions(scale=300, drawn=False) if Splits.of(each.operator, "OutputTensor", _places(each))
    ]
    sources = sorted({source for each in cases for source in split_sources(each.operator, "OutputTensor")})[::4]
    assert len(sources) > 5
    for number, source in enumerate(sources):
        assert_compiles(source, (80, 90)[number % 2])


def _places(each: Case) -> Coordinates:
    return Coordinates.of(each.operator, "OutputTensor")


@pytest.mark.gpu
def test_a_gpu_computes_what_numpy_does(numpy_device: NumpyDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_splits, "LEAST_WORK", 0)
    monkeypatch.setattr(cuda_places, "LEAST_VECTORS", 0)
    monkeypatch.setattr(cuda_places, "LEAST_BY_TEAMS", 0)
    cases = [*reductions(), *moves(), *reductions(scale=7), *rows_of_terms(), *windows()]
    assert differing(first_gpu(), numpy_device, cases) == []
