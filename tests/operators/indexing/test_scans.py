"""Cumulative sums and products against loops in exact numbers, and what is refused."""

from typing import Any

import numpy as np
import pytest

from app.contract.constants import DataType
from app.memory.arrays import Array, numpy_type
from app.operators.indexing import scans, scans_on_gpu
from app.operators.indexing.scans_on_gpu import LEAST_PART, PARTS
from tests.contract.refusals import check_wording
from tests.gpu import first_gpu
from tests.operators.arrays import laid_out
from tests.operators.descriptors import descriptor, refusals
from tests.operators.indexing import running
from tests.operators.indexing.running import run, sizes_of

P = "DML_OPERATOR_"
EXCLUSIVE = {"CUMULATIVE_SUMMATION": "HasExclusiveSum", "CUMULATIVE_PRODUCT": "HasExclusiveProduct"}
TYPES = [DataType(each) for each in ("FLOAT32", "FLOAT16", "INT64", "INT32", "UINT64", "UINT32")]
of_each_type = pytest.mark.parametrize("data_type", TYPES)
of_each_kind = pytest.mark.parametrize("kind", EXCLUSIVE)
directions = pytest.mark.parametrize("direction", ["INCREASING", "DECREASING"])
exclusives = pytest.mark.parametrize("exclusive", [False, True])


def scan(x: Array, kind: str, axis: int, direction: str, exclusive: bool, output: Array | None = None) -> Array:
    outputs = {} if output is None else {"OutputTensor": output}
    attributes = {"Axis": axis, "AxisDirection": direction, EXCLUSIVE[kind]: exclusive}
    made: Array = run(P + kind, {"InputTensor": x}, outputs, **attributes)["OutputTensor"]
    return made


def expected_scan(x: Array, kind: str, axis: int, direction: str, exclusive: bool) -> Array:
    """One element after the other, in Python's integers or in float64."""

    def along(sequence: Array) -> Array:
        numbers = sequence.tolist()
        if direction == "DECREASING":
            numbers.reverse()
        total: Any = 0 if kind == "CUMULATIVE_SUMMATION" else 1
        made = []
        for number in numbers:
            before = total
            total = total + number if kind == "CUMULATIVE_SUMMATION" else total * number
            made.append(before if exclusive else total)
        if direction == "DECREASING":
            made.reverse()
        if x.dtype.kind == "f":
            return np.array(made, np.float64)
        return np.array([each % 2**64 for each in made], np.uint64)

    # Of 64 bits the lowest are the number's, wrapped around.
    return np.apply_along_axis(along, axis, x).astype(x.dtype)


@pytest.mark.usefixtures("on_cpu_and_gpu")
@of_each_kind
@of_each_type
@directions
@exclusives
@pytest.mark.parametrize("most", [scans.IN_CACHE, 5])
def test_random_tensors(
    kind: str, data_type: DataType, direction: str, exclusive: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at a time, and in pieces."""
    monkeypatch.setattr(scans, "IN_CACHE", most)
    rng = np.random.default_rng(1)
    dtype = numpy_type(data_type)
    for _ in range(8):
        sizes = sizes_of(rng, int(rng.integers(1, 5)), 8)
        axis = int(rng.integers(0, len(sizes)))
        if dtype.kind == "f":
            x = (rng.standard_normal(sizes) * 2).astype(dtype)
        else:
            limits = np.iinfo(dtype)
            x = rng.integers(limits.min, limits.max, sizes, dtype, endpoint=True)
        expected = expected_scan(x, kind, axis, direction, exclusive)
        for output in (None, laid_out(rng, x)):
            made = scan(laid_out(rng, x), kind, axis, direction, exclusive, output)
            np.testing.assert_array_equal(made, expected)


@pytest.mark.usefixtures("on_cpu_and_gpu")
@directions
@exclusives
@pytest.mark.parametrize("data_type", [DataType("FLOAT16"), DataType("INT64"), DataType("UINT32")])
def test_rows_around_those_of_a_block(data_type: DataType, direction: str, exclusive: bool) -> None:
    """Which are a multiple of four elements, or not."""
    rng = np.random.default_rng(2)
    for length in (4, 126, 1020, 1024, 1028, 1031, 2052):
        x = rng.integers(0, 2, (3, length)).astype(numpy_type(data_type))
        for output in (None, np.empty_like(x)):
            made = scan(x, "CUMULATIVE_SUMMATION", 1, direction, exclusive, output)
            np.testing.assert_array_equal(made, expected_scan(x, "CUMULATIVE_SUMMATION", 1, direction, exclusive))


@pytest.mark.gpu
@of_each_kind
@directions
@exclusives
@pytest.mark.parametrize("data_type", [DataType("FLOAT16"), DataType("FLOAT32"), DataType("INT64"), DataType("UINT32")])
def test_long_rows(
    kind: str, data_type: DataType, direction: str, exclusive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one part, in several, and in as many as there are. To a CPU they are rows as others."""
    monkeypatch.setattr(running, "DEVICE", first_gpu())
    rng, dtype = np.random.default_rng(3), numpy_type(data_type)
    for count, length in (
        (3, LEAST_PART),
        (3, LEAST_PART + 1),
        (2, 3 * LEAST_PART + 1020),
        (1, 700_000),
        (PARTS, 4100),
    ):
        if dtype.kind != "f":
            x = rng.integers(0, 99, (count, length), dtype)
        elif kind == "CUMULATIVE_SUMMATION":
            x = rng.integers(-9, 10, (count, length)).astype(dtype)
        else:  # with products that are exact
            x = 2.0 ** np.diff(rng.integers(-6, 7, (count, length)), axis=1, prepend=0).astype(dtype)
            x[:, rng.integers(length, size=9)] *= -1
            x[:, length - 2] = 0
        numbers, wide = (x[:, ::-1] if direction == "DECREASING" else x), np.float64 if dtype.kind == "f" else dtype
        accumulate = np.cumsum if kind == "CUMULATIVE_SUMMATION" else np.cumprod
        expected = accumulate(numbers, axis=1, dtype=wide)
        if exclusive:
            first = np.full((count, 1), kind == "CUMULATIVE_PRODUCT", wide)
            expected = np.concatenate([first, expected[:, :-1]], axis=1)
        with np.errstate(over="ignore"):
            expected = (expected[:, ::-1] if direction == "DECREASING" else expected).astype(dtype)
        for output in (None, np.empty_like(x)):
            np.testing.assert_array_equal(scan(x, kind, 1, direction, exclusive, output), expected)


@pytest.mark.usefixtures("on_cpu_and_gpu")
@pytest.mark.parametrize("length", [100, 3 * LEAST_PART])
def test_what_is_behind_a_zero_stays_zero(length: int) -> None:
    """However large what comes then is by itself."""
    x = np.full((2, length), 1e38, np.float32)
    x[:, 0] = 0
    assert not scan(x, "CUMULATIVE_PRODUCT", 1, "INCREASING", exclusive=False).any()
    made = scan(x, "CUMULATIVE_PRODUCT", 1, "DECREASING", exclusive=True)
    assert np.isinf(made[:, : length - 2]).all()


@pytest.mark.usefixtures("on_cpu_and_gpu")
@of_each_kind
@directions
@exclusives
@pytest.mark.parametrize("data_type", [DataType("FLOAT16"), DataType("FLOAT32"), DataType("INT64"), DataType("UINT32")])
def test_sequences_that_a_thread_has_each(
    kind: str, data_type: DataType, direction: str, exclusive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, where there are many that lie side by side, or are short."""
    monkeypatch.setattr(scans_on_gpu, "MANY", 6)
    rng, dtype = np.random.default_rng(2), numpy_type(data_type)
    for sizes, axis in (((6, 7), 1), ((6, 8), 1), ((2, 9, 5), 1), ((2, 257, 15), 1), ((2, 257, 16), 1), ((17, 6), 0)):
        x = rng.uniform(0.9, 1.1, sizes).astype(dtype) if dtype.kind == "f" else rng.integers(0, 99, sizes, dtype)
        expected = expected_scan(x, kind, axis, direction, exclusive)
        for output in (None, np.empty_like(x)):
            np.testing.assert_array_equal(scan(x, kind, axis, direction, exclusive, output), expected)


@pytest.mark.usefixtures("on_cpu_and_gpu")
@directions
def test_sums_are_rounded_once(direction: str) -> None:
    """Ones beside a number that swallows them all in float32, and what float16 cannot hold on the way."""
    x = np.ones(100, np.float32)
    x[0 if direction == "INCREASING" else -1] = 2**24
    made = scan(x, "CUMULATIVE_SUMMATION", 0, direction, exclusive=False)
    assert made[-1 if direction == "INCREASING" else 0] == np.float32(2**24 + 99)
    y = np.array([60000, 60000, -60000, -60000], np.float16)
    made = scan(y, "CUMULATIVE_SUMMATION", 0, direction, exclusive=False)
    assert made.tolist() == ([60000, np.inf, 60000, 0] if direction == "INCREASING" else [0, -60000, -np.inf, -60000])
    z = np.array([1e30, 1e30, 1e-30, 1e-30], np.float32)
    made = scan(z, "CUMULATIVE_PRODUCT", 0, direction, exclusive=False)
    assert made[-1 if direction == "INCREASING" else 0] == pytest.approx(1, rel=1e-6)


@pytest.mark.usefixtures("on_cpu_and_gpu")
@of_each_kind
def test_infinities_and_nan_go_on(kind: str) -> None:
    x = np.array([1, np.inf, 2, -np.inf if kind == "CUMULATIVE_SUMMATION" else 0, 1], np.float32)
    made = scan(x, kind, 0, "INCREASING", exclusive=False)
    np.testing.assert_array_equal(made, np.array([1, np.inf, np.inf, np.nan, np.nan], np.float32))
    # What is left out is not subtracted: nothing of the infinity comes before it.
    made = scan(x, kind, 0, "INCREASING", exclusive=True)
    nothing = 0 if kind == "CUMULATIVE_SUMMATION" else 1
    np.testing.assert_array_equal(made, np.array([nothing, 1, np.inf, np.inf, np.nan], np.float32))


@pytest.mark.usefixtures("on_cpu_and_gpu")
@of_each_kind
@directions
def test_of_one_element(kind: str, direction: str) -> None:
    x = np.full((2, 1), 5, np.int32)
    assert scan(x, kind, 1, direction, exclusive=False).tolist() == [[5], [5]]
    nothing = 0 if kind == "CUMULATIVE_SUMMATION" else 1
    assert scan(x, kind, 1, direction, exclusive=True).tolist() == [[nothing], [nothing]]


@of_each_kind
@pytest.mark.parametrize(
    ("members", "pointer", "given", "allowed"),
    [
        ({"Axis": 4}, "/Axis", 4, "0 to 3"),
        ({"AxisDirection": "FORWARD"}, "/AxisDirection", "FORWARD", None),
        ({"OutputTensor": {"DataType": "FLOAT32", "Sizes": [1, 1, 2, 1]}}, "/OutputTensor/Sizes", [1, 1, 2, 1], None),
    ],
)
def test_refusals(kind: str, members: dict[str, Any], pointer: str, given: Any, allowed: Any) -> None:
    (refusal,) = refusals(descriptor(P + kind, **members))
    check_wording(refusal)
    assert (refusal.pointer, refusal.given) == (pointer, given)
    assert allowed is None or refusal.allowed == allowed
