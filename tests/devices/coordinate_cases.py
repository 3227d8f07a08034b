"""Operators of all kinds that go by coordinates, with inputs, to be computed by one device and by NumPy."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from app.contract.constants import DataType
from app.devices.cuda.totals import LONG
from app.formula import coordinates as c
from app.formula.coordinates import coordinates
from app.formula.values import Value, cast, quotient, remainder_of_floor
from app.memory.arrays import Array, numpy_type
from app.operators.compiled import CompiledOperator
from app.operators.operator import Operator
from tests.devices.test_coordinates import OF_INTEGERS, POSITIONS, TYPES, Enlarge, N, elements, of_expression, operand
from tests.operators.arrays import desc_of, laid_out
from tests.operators.coordinate_operators import (
    AveragePooling,
    Gather,
    Join,
    Reduce,
    Slice1,
    compiled,
)

INEXACT = ("LOG_SUM", "LOG_SUM_EXP", "L2", "MULTIPLY")
"""Reductions whose last bit may differ: by functions that are approximate, or by the order of products."""


SOME = [DataType.FLOAT32, DataType.FLOAT16, DataType.FLOAT64, DataType.INT8, DataType.UINT64]
"""Types that are computed differently."""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    operator: CompiledOperator
    inputs: dict[str, Array]
    exact: bool = True


def case(name: str, kind: type[Operator], members: dict[str, Any], *, exact: bool = True, **inputs: Any) -> Case:
    """Of an operator, with arrays or lists of them as inputs, whose descriptors are among its members."""
    arrays: dict[str, Array] = {}
    for field, value in inputs.items():
        if isinstance(value, list):
            arrays |= {f"{field}[{place}]": each for place, each in enumerate(value)}
            members[field] = [desc_of(each) for each in value]
        else:
            arrays[field] = value
            members[field] = desc_of(value)
    return Case(name, compiled(kind, members), arrays, exact)


@cache
def cases() -> tuple[Case, ...]:
    return tuple(_cases())


def _cases() -> Iterator[Case]:
    rng = np.random.default_rng(1)
    members: dict[str, Any]
    tensors: Any
    for data_type in TYPES:
        for rank in (1, 3, 5) if data_type is DataType.FLOAT32 else (3,):
            x = laid_out(rng, elements(rng, [int(each) for each in rng.integers(2, 7, rank)], data_type))
            offsets = [int(rng.integers(0, size)) for size in x.shape]
            windows = [int(rng.integers(1, size - offset + 1)) for size, offset in zip(x.shape, offsets, strict=True)]
            steps = [int(rng.choice([-2, -1, 1, 2, 3])) for _ in x.shape]
            sizes = [-(-window // abs(step)) for window, step in zip(windows, steps, strict=True)]
            members = {
                "InputWindowOffsets": offsets,
                "InputWindowSizes": windows,
                "InputWindowStrides": steps,
                "OutputTensor": desc_of(laid_out(rng, np.zeros(sizes, x.dtype))),
            }
            yield case(f"slice {data_type} {rank}", Slice1, members, InputTensor=x)
    for index_type in (np.int64, np.int32, np.uint32, np.int8):
        limits = np.iinfo(index_type)
        indices = np.array([0, 2, -1, -3, 4, 5, 6, -5, -6, -7, 77, limits.max, limits.min, limits.max - 1])
        x = rng.integers(1, 100, (5, 6)).astype(np.float32)
        for axis in (0, 1):
            for beyond in ({}, {"Beyond": -1.5}):
                members = {"Axis": axis, "OutputTensor": desc_of(np.zeros([(14, 6), (5, 14)][axis], np.float32))}
                tensors = {"InputTensor": x, "IndicesTensor": indices.astype(index_type)}
                yield case(f"gather {index_type.__name__} {axis} {beyond}", Gather, members | beyond, **tensors)
    yield from _reductions(rng)
    x, weight = rng.integers(0, 9, 20).astype(np.float32), rng.integers(0, 9, 7).astype(np.float32)
    members = {"OutputTensor": desc_of(np.zeros(40, np.float32)), "WindowSize": 7, "StartPadding": 12}
    members["OutputCountTensor"] = desc_of(np.zeros(40, np.int64))
    yield case("pooling", AveragePooling, dict(members), InputTensor=x)
    yield case("pooling with weights", AveragePooling, dict(members), InputTensor=x, WeightTensor=weight)
    x = rng.integers(0, 9, 180).astype(np.float32)
    members |= {name: desc_of(np.zeros(200, dtype)) for name, dtype in _OF_ROWS.items()}
    yield case("pooling by rows", AveragePooling, members, InputTensor=x)
    for axis, count in ((0, 1), (1, 4), (2, 60)):
        tensors = [laid_out(rng, elements(rng, [3, 4, 5], DataType.INT32)) for _ in range(count)]
        out = np.concatenate(tensors, axis)
        yield case(f"join {count}", Join, {"OutputTensor": desc_of(out), "Axis": axis}, InputTensors=tensors)
    x = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
    attributes = {
        "ScaleSize": {"Width": 3, "Height": 2},
        "Bias": [2.0, 3.0],
        "Start": -1,
        "FusedActivation": {"Type": "DML_OPERATOR_ACTIVATION_LEAKY_RELU", "Alpha": 0.25},
        "OutputTensor": desc_of(np.zeros((4, 9), np.float32)),
    }
    yield case("attributes of all kinds", Enlarge, attributes, InputTensor=x)
    x = laid_out(rng, elements(rng, [130, 3, 130], DataType.INT16))
    members = {"OutputTensor": desc_of(np.zeros((130, 1, 130), x.dtype)), "Function": "SUM", "Axes": [1]}
    yield case("more than a few", Reduce, members, InputTensor=x)
    yield from _expressions(rng)


_OF_ROWS = {"OutputTensor": np.float32, "OutputCountTensor": np.int64}


def _reductions(rng: np.random.Generator) -> Iterator[Case]:
    """By loops, and by a block for each element; of those the shorter ones leave threads without work."""
    layouts: list[tuple[list[int], list[int]]] = [
        ([3, 4, 5], [0, 2]),
        ([7, LONG], [1]),
        ([2, 30, 3, 20], [1, 3]),
        ([3, 4], []),
    ]
    for data_type in SOME:
        for function in Reduce.FUNCTIONS:
            if not data_type.startswith("FLOAT") and function not in OF_INTEGERS:
                continue
            for sizes, axes in layouts if data_type in (DataType.FLOAT32, DataType.INT8) else layouts[1:2]:
                x = elements(rng, sizes, data_type)
                if data_type.startswith("FLOAT") and sizes[0] == 7:
                    x[0, 100] = x[0, 200] = np.nan
                    x[1] = -np.inf
                out = np.zeros([1 if axis in axes else size for axis, size in enumerate(sizes)], x.dtype)
                out = out.astype(np.uint32) if function.startswith("ARG") else out
                for last in (False, True) if function.startswith("ARG") else (False,):
                    members = {"OutputTensor": desc_of(laid_out(rng, out)), "Function": function, "Axes": axes}
                    yield case(
                        f"{function} {data_type} {sizes} {'last' if last else ''}",
                        Reduce,
                        members | {"Last": last},
                        exact=function not in INEXACT or not data_type.startswith("FLOAT"),
                        InputTensor=laid_out(rng, x),
                    )


def _expressions(rng: np.random.Generator) -> Iterator[Case]:
    x = rng.integers(-99, 99, 30).astype(np.int32)
    (i,) = coordinates(1)
    of = operand(x)

    def inner(j: Value) -> Value:
        return c.maximum_over([2, remainder_of_floor(j, 3)], lambda a, b: of[[i + j * 2 + a * 5 - b]])

    nested = c.sum_over([i + c.sum_over([i], lambda k: k)], inner)
    yield Case("totals in totals and in their counts", of_expression(nested, [9], DataType.INT32, x), {"X": x})
    # By a block for each element: a total that threads share, of it one that they do not, and one that is short.
    long = c.sum_over([3, N], lambda a, b: c.maximum_over([a + 1, 2], lambda k, m: of[[b + k - m * i]]) - of[[a]])
    short = c.minimum_over([5], lambda a: of[[a * 3 + i]] + cast(long, "int32"))
    expression = short + long * c.product_over([i], lambda a: of[[a]])
    yield Case("shared and not", of_expression(expression, [11], DataType.INT32, x, n=LONG), {"X": x})
    for name in POSITIONS:
        for dtype, values in (
            (np.float32, [-np.inf, np.inf, np.nan, 1, 2, 2]),
            (np.int8, [-128, 127, 1]),
        ):
            y = rng.choice(np.array(values), (12, 4, 3)).astype(dtype)
            k, _ = coordinates(2)
            for counts in ([remainder_of_floor(k, 5), quotient(k, 4)], [LONG, 3]):
                z = operand(y)
                expression = c.position_over(
                    name,  # type: ignore[arg-type]
                    counts,
                    lambda a, b, k=k, z=z: z[[k, remainder_of_floor(a, 4), b]],
                )
                made = of_expression(expression, [12, 2], DataType.INT64, y)
                yield Case(f"{name} {dtype.__name__} {len(counts)}", made, {"X": y})
    for data_type in SOME:
        y = np.ones(3, numpy_type(data_type))
        z = operand(y)
        for over in (c.sum_over, c.product_over, c.maximum_over, c.minimum_over):
            expression = over([3, N], lambda a, b, z=z: z[[a + b]])
            for count in (0, -5, 2):
                made = of_expression(expression, [2], data_type, y, n=count)
                yield Case(f"{over.__name__} of {count} {data_type}", made, {"X": y})


def same(case: Case, made: dict[str, Array], expected: dict[str, Array]) -> bool:
    """Bit for bit, but for NaN and the sign of zeros, where the case is exact; else within what rounding may do."""
    for name, array in expected.items():
        tolerance = 0 if case.exact else 2e-3 if array.dtype.itemsize == 2 else 1e-6
        with np.errstate(all="ignore"):
            if not np.allclose(made[name], array, tolerance, tolerance, equal_nan=array.dtype.kind == "f"):
                return False
            if case.exact and array.dtype.kind != "f" and not np.array_equal(made[name], array):
                return False
    return True
