"""Whether two coordinates of an output share an element, against visiting them all."""

import itertools
import time
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.contract.scalars import UINT_MAX
from app.contract.tensors import TensorDesc

Layout = tuple[Sequence[int], Sequence[int]]


def overlaps(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    desc = TensorDesc.model_validate({"DataType": "INT8", "Sizes": list(sizes), "Strides": list(strides)})
    return desc.overlaps_itself


def visits_twice(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    offsets = [
        sum(coordinate * stride for coordinate, stride in zip(place, strides, strict=True))
        for place in itertools.product(*map(range, sizes))
    ]
    return len(set(offsets)) < len(offsets)


@st.composite
def any_layouts(draw: st.DrawFn) -> Layout:
    """A few hundred elements at most, strides of any kind: some nested, some interleaved, most overlapping."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    return sizes, draw(st.lists(st.integers(0, 30), min_size=len(sizes), max_size=len(sizes)))


@st.composite
def dense_layouts(draw: st.DrawFn) -> Layout:
    """Layouts of arrays: any order of dimensions, padding after each, up to the greatest rank and size."""
    sizes = draw(st.lists(st.integers(1, 2**20), min_size=1, max_size=8))
    strides, step = [0] * len(sizes), 1
    for axis in draw(st.permutations(range(len(sizes)))):
        step += draw(st.integers(0, step))
        strides[axis] = min(step, UINT_MAX)
        step *= sizes[axis]
    return sizes, strides


@given(any_layouts())
@example(((2, 3), (3, 2)))  # interleaved, apart: 0 2 4 3 5 7
@example(((3, 3), (3, 2)))  # interleaved, meeting: 0 + 3 * 2 = 6 = 2 * 3 + 0
@example(((4, 4), (4, 1)))
@example(((4, 4), (3, 1)))
@example(((2, 2, 2), (1, 1, 2)))
@example(((1, 1, 2), (0, 0, 1)))
@example(((2,), (0,)))
@example(((1,), (0,)))
@example(((2, 2, 2, 2), (8, 4, 2, 1)))
@example(((2, 2, 2, 2), (7, 6, 5, 3)))
@example(((5, 5), (6, 5)))
@example(((6, 5), (5, 6)))
def test_equals_visiting_every_coordinate(layout: Layout) -> None:
    sizes, strides = layout
    assert overlaps(sizes, strides) == visits_twice(sizes, strides)


@given(dense_layouts())
def test_layouts_of_arrays_are_never_refused(layout: Layout) -> None:
    sizes, strides = layout
    # Strides cut off at UINT_MAX are the one thing that could make such a layout meet itself.
    if max(strides) < UINT_MAX:
        assert not overlaps(sizes, strides)


@pytest.mark.parametrize(
    ("sizes", "strides"),
    [
        pytest.param([2, 3, 4, 5], [60, 1, 15, 3], id="NHWC"),
        pytest.param([1, 1, 2, 3], [0, 0, 3, 1], id="stride 0 where the size is 1"),
        pytest.param([4, 1080, 1920, 3], [2211840 * 3, 2048 * 3, 3, 1], id="rows with padding"),
        pytest.param([64, 64], [4096, 1], id="a crop of an image"),
        pytest.param([2, UINT_MAX // 2], [1, 2], id="two interleaved channels"),
        pytest.param([UINT_MAX], [UINT_MAX], id="as far apart as can be"),
    ],
)
def test_layouts_in_use_are_apart(sizes: list[int], strides: list[int]) -> None:
    assert not overlaps(sizes, strides)


@pytest.mark.parametrize(
    ("sizes", "strides"),
    [
        pytest.param([3, 1000], [999, 1], id="rows that share an element"),
        pytest.param([1000, 1000], [1, 1], id="equal strides"),
        pytest.param([UINT_MAX], [0], id="broadcast"),
        pytest.param([1001, 1002], [1001, 1000], id="meeting at the last coordinates only"),
    ],
)
def test_layouts_that_meet(sizes: list[int], strides: list[int]) -> None:
    assert overlaps(sizes, strides)


@pytest.mark.parametrize("sizes", [[1000, 1002], [1001, 1001]])
def test_layouts_that_would_meet_one_element_further(sizes: list[int]) -> None:
    assert not overlaps(sizes, [1001, 1000])


@pytest.mark.parametrize(
    ("sizes", "strides"),
    [
        pytest.param([2**32 - 1] * 8, [2**32 - 1 - 2 * i for i in range(8)], id="as large as can be"),
        pytest.param([15] * 8, [1000003 + 2 * i for i in range(8)], id="nearly equal"),
        pytest.param(
            [13, 15, 17, 19, 21, 23, 25, 27], [10**9 + p for p in (7, 9, 21, 33, 87, 93, 97, 103)], id="primes"
        ),
        pytest.param([2] * 8, [2**31 + 2**i for i in range(8)], id="subset sums"),
        pytest.param([2**16, 2**16], [2**31 + 1, 2**31 - 1], id="two long ones"),
        pytest.param([2**32 - 1, 2**32 - 1, 2], [2**32 - 1, 2**32 - 3, 1], id="no small remainder"),
    ],
)
def test_strides_made_to_be_slow_end_soon(sizes: list[int], strides: list[int]) -> None:
    """The search may give up; then it answers that they overlap."""
    start = time.thread_time()
    overlaps(sizes, strides)
    assert time.thread_time() - start < 0.5


@given(st.lists(st.tuples(st.integers(1, UINT_MAX), st.integers(0, UINT_MAX)), min_size=1, max_size=8))
def test_any_strides_end_soon(layout: list[tuple[int, int]]) -> None:
    sizes, strides = zip(*layout, strict=True)
    start = time.thread_time()
    overlaps(sizes, strides)
    assert time.thread_time() - start < 0.5
