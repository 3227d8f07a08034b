"""REDUCE, ARGMIN and ARGMAX against NumPy, and what they refuse."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType, FeatureLevel
from app.memory.arrays import Array, numpy_type
from tests.contract.refusals import check_wording
from tests.operators.arrays import laid_out
from tests.operators.calls import run
from tests.operators.descriptors import compiled, output_of, refusals

FLOATS = "FLOAT32 FLOAT16"
ALL = "FLOAT32 FLOAT16 INT64 INT32 INT16 INT8 UINT64 UINT32 UINT16 UINT8"
TO_32 = "FLOAT32 FLOAT16 INT32 INT16 INT8 UINT32 UINT16 UINT8"
FROM_32 = "FLOAT32 FLOAT16 INT64 INT32 UINT64 UINT32"
ONLY_32 = "FLOAT32 FLOAT16 INT32 UINT32"
INDICES = "INT64 INT32 UINT64 UINT32"

# By level: what the input may be, and what the output of ARGMAX and ARGMIN may be. Others have the input's type.
_OF_FLOATS = {"1_0": (FLOATS, "")}
_NORMS = {"1_0": (FLOATS, ""), "5_0": (FROM_32, "")}
_BOUNDS = {"1_0": (FLOATS, ""), "2_1": (ONLY_32, ""), "3_0": (TO_32, ""), "5_0": (ALL, "")}
_SUMS = {"1_0": (FLOATS, ""), "2_1": (ONLY_32, ""), "5_0": (FROM_32, "")}
_POSITIONS = {"1_0": (FLOATS, "UINT32"), "2_1": (TO_32, "UINT32"), "3_0": (TO_32, INDICES), "4_1": (ALL, INDICES)}
TABLES = {
    "ARGMAX": _POSITIONS,
    "ARGMIN": _POSITIONS,
    "AVERAGE": _OF_FLOATS,
    "L1": _NORMS,
    "L2": _OF_FLOATS,
    "LOG_SUM": _OF_FLOATS,
    "LOG_SUM_EXP": _OF_FLOATS,
    "MAX": _BOUNDS,
    "MIN": _BOUNDS,
    "MULTIPLY": _SUMS,
    "SUM": _SUMS,
    "SUM_SQUARE": _NORMS,
}
"""The tables of the page, by function."""

LONG = np.longdouble


def _of(function: Callable[..., Array]) -> Callable[[Array, tuple[int, ...]], Array]:
    return lambda x, axes: function(x, axis=axes, keepdims=True)


EXACT: dict[str, Callable[[Array, tuple[int, ...]], Array]] = {
    "AVERAGE": _of(np.mean),
    "L1": lambda x, axes: np.abs(x).sum(axes, keepdims=True, dtype=x.dtype),
    "L2": lambda x, axes: np.sqrt((x * x).sum(axes, keepdims=True)),
    "LOG_SUM": lambda x, axes: np.log(x.sum(axes, keepdims=True)),
    "LOG_SUM_EXP": lambda x, axes: np.log(np.exp(x).sum(axes, keepdims=True)),
    "MAX": _of(np.max),
    "MIN": _of(np.min),
    "MULTIPLY": lambda x, axes: x.prod(axes, keepdims=True, dtype=x.dtype),
    "SUM": lambda x, axes: x.sum(axes, keepdims=True, dtype=x.dtype),
    "SUM_SQUARE": lambda x, axes: (x * x).sum(axes, keepdims=True, dtype=x.dtype),
}


def position(x: Array, axes: tuple[int, ...], least: bool = False, last: bool = False) -> Array:
    """The index of the bound by NumPy's argmax and argmin, of which NaN is the first."""
    axes = tuple(sorted(axes))
    moved = np.moveaxis(x, axes, range(-len(axes), 0))
    flat = moved.reshape(*moved.shape[: x.ndim - len(axes)], -1)
    function = np.argmin if least else np.argmax
    made = flat.shape[-1] - 1 - function(flat[..., ::-1], axis=-1) if last else function(flat, axis=-1)
    sizes = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    return np.asarray(made).reshape(sizes)


def drawn(rng: np.random.Generator, data_type: str) -> tuple[Array, list[int]]:
    rank = int(rng.integers(1, 6))
    sizes = [int(each) for each in rng.integers(1, 6, rank)]
    axes = [int(each) for each in rng.permutation(rank)[: rng.integers(1, rank + 1)]]
    dtype = numpy_type(DataType(data_type))
    if dtype.kind == "f":
        x = (rng.integers(-40, 41, sizes) / 16).astype(dtype)
    else:
        x = rng.integers(max(np.iinfo(dtype).min, -100), 101, sizes).astype(dtype)
    return laid_out(rng, x), axes


@pytest.mark.parametrize("function", [*EXACT, "ARGMAX"])
@pytest.mark.parametrize("sizes", [(1,), (2, 3), (500, 700)])
def test_each_element_by_itself(function: str, sizes: tuple[int, ...]) -> None:
    """Without axes, as Chromium's WebNN has it for `axes: []` and for scalars."""
    x = np.abs(np.random.default_rng(8).standard_normal(sizes)).astype(np.float32) + 1
    made = run({"Type": "REDUCE", "Function": function, "Axes": [], "AxisCount": 0}, InputTensor=x)["OutputTensor"]
    exact = np.zeros(sizes) if function == "ARGMAX" else EXACT[function](x, ())
    np.testing.assert_allclose(made, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("function", EXACT)
def test_functions(function: str) -> None:
    rng = np.random.default_rng(7)
    for data_type in TABLES[function][max(TABLES[function])][0].split():
        for _ in range(4):
            x, axes = drawn(rng, data_type)
            x = np.abs(x) if function == "LOG_SUM" else x
            made = run({"Type": "REDUCE", "Function": function, "Axes": axes}, InputTensor=x)["OutputTensor"]
            exact = EXACT[function](x.astype(LONG) if x.dtype.kind == "f" else x, tuple(axes))
            assert made.dtype == x.dtype
            if x.dtype.kind == "f":
                bound = 4 * np.spacing(np.abs(exact).astype(x.dtype)) + (1e-6 if function.startswith("LOG") else 0)
                assert (np.isinf(exact) & (made == exact) | (np.abs(made - exact) <= bound)).all()
            else:
                np.testing.assert_array_equal(made, exact)


@pytest.mark.parametrize("kind", ["REDUCE", "ARGMAX", "ARGMIN"])
def test_positions(kind: str) -> None:
    rng = np.random.default_rng(8)
    for data_type in ALL.split():
        for output in INDICES.split():
            x, axes = drawn(rng, data_type)
            x[...] = x.astype(np.int64) // 30  # ties
            last = kind != "REDUCE" and bool(rng.integers(0, 2))
            least = kind == "ARGMIN" or (kind == "REDUCE" and bool(rng.integers(0, 2)))
            attributes = (
                {"Function": "ARGMIN" if least else "ARGMAX"}
                if kind == "REDUCE"
                else {"AxisDirection": "DECREASING" if last else "INCREASING"}
            )
            exact = position(x, tuple(axes), least, last)
            stated = {"DataType": output, "Sizes": list(exact.shape)}
            document = {"Type": kind, "Axes": axes, "AxisCount": len(axes), "OutputTensor": stated, **attributes}
            made = run(document, InputTensor=x)["OutputTensor"]
            assert made.dtype.name.upper() == output
            np.testing.assert_array_equal(made, exact)


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("data_type", ["FLOAT32", "FLOAT16", "INT8", "UINT64"])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("kind", ["REDUCE", "ARGMAX", "ARGMIN"])
def test_positions_along_rows_and_other_dimensions(kind: str, axis: int, data_type: str) -> None:
    """As many that loops are made of them, with ties, NaN and both infinities, in memory that may not be written to."""
    rng = np.random.default_rng(9)
    dtype = numpy_type(DataType(data_type))
    for last in (False, True):
        x = rng.integers(0, 3, (1, 30, 601) if axis == 2 else (30, 601, 1)).astype(dtype)
        if dtype.kind == "f":
            x.reshape(-1)[rng.integers(0, x.size, 40)] = rng.choice([np.nan, np.inf, -np.inf], 40)
        least = kind == "ARGMIN" or (kind == "REDUCE" and last)
        ways = {"Function": "ARGMIN" if least else "ARGMAX"}
        if kind != "REDUCE":
            ways = {"AxisDirection": "DECREASING" if last else "INCREASING"}
        exact = position(x, (axis,), least, last and kind != "REDUCE")
        x.flags.writeable = False
        made = run({"Type": kind, "Axes": [axis], **ways}, InputTensor=x)["OutputTensor"]
        np.testing.assert_array_equal(made, exact)


def reduced(function: str, *x: float, dtype: str = "float32") -> float:
    document = {"Type": "REDUCE", "Function": function, "Axes": [0]}
    made = run(document, InputTensor=np.array(x, dtype))["OutputTensor"]
    return float(made.item())


@pytest.mark.parametrize(
    ("function", "x", "exact"),
    [
        ("SUM", [1e38, 3e38, -3e38], 1e38),
        ("SUM", [16777216.0, 1, 1, 1, 1], 16777220.0),
        ("SUM", [np.inf, 1], np.inf),
        ("SUM", [np.inf, -np.inf], np.nan),
        ("MULTIPLY", [3e38, 10, 1e-3], 3e36),
        ("L2", [3e38, 0], 3e38),
        ("L2", [3e-30, 4e-30], 5e-30),
        ("AVERAGE", [3e38, 3e38, 3e38], 3e38),
        ("LOG_SUM", [-1, 0.5], np.nan),
        ("LOG_SUM", [0, 0], -np.inf),
        ("LOG_SUM", [3e38, 3e38], np.log(6e38)),
        ("LOG_SUM_EXP", [1000, 1000], 1000 + np.log(2)),
        ("LOG_SUM_EXP", [3e38, 3e38], 3e38),
        ("LOG_SUM_EXP", [-1000, -1001], -1000 + np.log1p(np.exp(-1))),
        ("LOG_SUM_EXP", [-np.inf, -np.inf], -np.inf),
        ("LOG_SUM_EXP", [-np.inf, 2], 2),
        ("LOG_SUM_EXP", [np.inf, 2], np.inf),
        ("LOG_SUM_EXP", [np.inf, np.nan], np.nan),
        ("MAX", [-np.inf, -np.inf], -np.inf),
        ("MAX", [1, np.nan, np.inf], np.nan),
        ("MIN", [1, np.nan, -np.inf], np.nan),
        ("L1", [-np.inf, 1], np.inf),
        ("ARGMAX", [1, np.nan, np.inf, np.nan], 1),
        ("ARGMIN", [1, np.nan, -np.inf, np.nan], 1),
        ("ARGMAX", [-np.inf, -np.inf], 0),
    ],
)
def test_special_values(function: str, x: list[float], exact: float) -> None:
    np.testing.assert_allclose(reduced(function, *x), exact, rtol=3e-7)


def test_float16_is_rounded_once() -> None:
    assert reduced("SUM", *[2048, 1, 1, 1, 1], dtype="float16") == 2052
    assert reduced("SUM_SQUARE", 300, dtype="float16") == np.inf
    assert reduced("L2", 300, 400, dtype="float16") == 500
    assert reduced("AVERAGE", *[60000] * 4, dtype="float16") == 60000


def test_integers_wrap_around() -> None:
    assert reduced("SUM", 2**31 - 1, 1, dtype="int32") == -(2**31)
    assert reduced("L1", -(2**31), dtype="int32") == -(2**31)
    assert reduced("SUM_SQUARE", 65536, 3, dtype="uint32") == 9
    assert reduced("MULTIPLY", 2**33, 2**31, dtype="uint64") == 0


def test_the_last_of_several_nans() -> None:
    x = np.array([1, np.nan, 2, np.nan, 5], np.float32)
    for kind in ("ARGMAX", "ARGMIN"):
        document = {"Type": kind, "Axes": [0], "AxisDirection": "DECREASING"}
        assert run(document, InputTensor=x)["OutputTensor"].item() == 3


def test_repeated_elements() -> None:
    x = np.broadcast_to(np.array([[1], [2]], np.float32), (2, 5))
    made = run({"Type": "REDUCE", "Function": "SUM", "Axes": [1]}, InputTensor=x)["OutputTensor"]
    np.testing.assert_array_equal(made, [[5], [10]])


# What is refused


def reduce(function: str, data_type: str, **members: Any) -> dict[str, Any]:
    desc = {"DataType": data_type, "Sizes": [2, 3, 4, 5]}
    return {"Type": "REDUCE", "Function": function, "Axes": [1, 3], "InputTensor": desc} | members


def pointers(document: dict[str, Any], level: FeatureLevel = FeatureLevel.V6_4) -> list[str]:
    found = refusals(document, level)
    for each in found:
        check_wording(each)
    return [each.pointer for each in found]


@pytest.mark.parametrize("function", TABLES)
def test_tables_of_the_functions(function: str) -> None:
    for level in FeatureLevel:
        (inputs, outputs) = TABLES[function][max(each for each in TABLES[function] if FeatureLevel(each) <= level)]
        for given in DataType:
            found = pointers(reduce(function, given.value), level)
            assert found == ([] if given.value in inputs.split() else ["/InputTensor/DataType"])
            if found:
                continue
            for output in DataType:
                stated = {"DataType": output.value, "Sizes": [2, 1, 4, 1]}
                allowed = outputs.split() or [given.value]
                found = pointers(reduce(function, given.value, OutputTensor=stated), level)
                assert found == ([] if output.value in allowed else ["/OutputTensor/DataType"])


@pytest.mark.parametrize("function", TABLES)
def test_left_out_output(function: str) -> None:
    made = output_of(compiled(reduce(function, "FLOAT16")))
    assert made.Sizes == [2, 1, 4, 1]
    assert made.DataType is (DataType.UINT32 if function.startswith("ARG") else DataType.FLOAT16)


@pytest.mark.parametrize("kind", ["REDUCE", "ARGMIN", "ARGMAX"])
@pytest.mark.parametrize(
    ("members", "refused"),
    [
        ({"Axes": [0]}, []),
        ({"Axes": [3, 1]}, []),
        ({"Axes": [3, 1], "AxisCount": 2}, []),
        ({"Axes": [4]}, ["/Axes/0"]),
        ({"Axes": [1, 1]}, ["/Axes/1"]),
        ({"Axes": []}, []),
        ({"Axes": [], "AxisCount": 0}, []),
        ({"Axes": [0], "AxisCount": 2}, ["/AxisCount"]),
        ({"OutputTensor": {"DataType": "UINT32", "Sizes": [2, 4]}}, ["/OutputTensor/Sizes"]),
        ({"OutputTensor": {"DataType": "UINT32", "Sizes": [2, 3, 4, 5]}}, ["/OutputTensor/Sizes"]),
        ({"AxisDirection": "UP"}, ["/AxisDirection"]),
        ({"Function": "MEAN"}, ["/Function"]),
    ],
)
def test_attributes(kind: str, members: dict[str, Any], refused: list[str]) -> None:
    document = reduce("ARGMAX", "FLOAT32", Type=kind, AxisDirection="INCREASING")
    del document["AxisDirection" if kind == "REDUCE" else "Function"]
    assert pointers(document | members) == refused


def test_the_right_sizes_are_told() -> None:
    (refusal,) = refusals(reduce("SUM", "FLOAT32", OutputTensor={"DataType": "FLOAT32", "Sizes": [2, 3, 4, 5]}))
    assert refusal.allowed == [2, 1, 4, 1]
    assert "Axes [1, 3]" in refusal.message
