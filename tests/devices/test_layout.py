"""Layouts are simplified without touching other elements, and cut into blocks without losing any."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contract.tensors import packed_strides
from app.devices.layout import blocks
from app.programs.walks import collapse

Strides = list[list[int]]


def offsets(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> "Counter[tuple[int, ...]]":
    """For each coordinate, where it lies in every tensor."""
    return Counter(
        tuple(sum(c * s for c, s in zip(place, steps, strict=True)) for steps in strides)
        for place in itertools.product(*map(range, sizes))
    )


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[int], Strides]:
    """Sizes with strides of up to three tensors: packed, padded, permuted and broadcast, also by chance."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    strides = []
    for _ in range(draw(st.integers(1, 3))):
        steps, step = [0] * len(sizes), 1
        for axis in draw(st.permutations(range(len(sizes))) | st.just(range(len(sizes) - 1, -1, -1))):
            steps[axis] = step
            step = step * sizes[axis] + draw(st.sampled_from([0, 0, 0, 1, 5]))
        for axis in range(len(sizes)):
            if draw(st.integers(0, 5)) == 0:
                steps[axis] = draw(st.integers(0, 9))
        strides.append(steps)
    return sizes, strides


@given(layouts())
def test_collapsing_visits_the_same_elements(layout: tuple[list[int], Strides]) -> None:
    sizes, strides = layout
    merged_sizes, merged_strides = collapse(sizes, strides)
    assert offsets(merged_sizes, merged_strides) == offsets(sizes, strides)
    assert 1 <= len(merged_sizes) <= len(sizes)
    assert len(merged_strides) == len(strides)
    assert all(len(steps) == len(merged_sizes) for steps in merged_strides)
    assert merged_strides[-1] == sorted(merged_strides[-1], reverse=True)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.data())
def test_gapless_tensors_of_one_layout_end_as_one_dimension(sizes: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(sizes))))
    packed = packed_strides([sizes[axis] for axis in order])
    strides = [packed[order.index(axis)] for axis in range(len(sizes))]
    merged_sizes, merged_strides = collapse(sizes, [strides, strides])
    assert merged_sizes == [math.prod(sizes)]
    assert merged_strides in ([[1], [1]], [[0], [0]])


@pytest.mark.parametrize(
    ("sizes", "strides", "merged_sizes", "merged_strides"),
    [
        pytest.param([2, 3, 4], [[12, 4, 1]], [24], [[1]], id="packed"),
        pytest.param([2, 3, 4], [[24, 8, 2]], [24], [[2]], id="every second element"),
        pytest.param([2, 3, 4], [[15, 5, 1]], [6, 4], [[5, 1]], id="padded rows"),
        pytest.param([2, 3, 4], [[20, 4, 1]], [2, 12], [[20, 1]], id="padded planes"),
        pytest.param([2, 3, 4], [[1, 2, 6]], [24], [[1]], id="reversed order"),
        pytest.param([2, 3, 4], [[0, 0, 1], [12, 4, 1]], [6, 4], [[0, 1], [4, 1]], id="broadcast rows"),
        pytest.param([2, 3, 4], [[0, 0, 0], [12, 4, 1]], [24], [[0], [1]], id="broadcast element"),
        pytest.param(
            [2, 3, 4], [[0, 1, 0], [12, 4, 1]], [2, 3, 4], [[0, 1, 0], [12, 4, 1]], id="broadcast per channel"
        ),
        pytest.param([3, 4], [[1, 3], [4, 1]], [3, 4], [[1, 3], [4, 1]], id="transposition"),
        pytest.param([1, 1, 5], [[7, 9, 1]], [5], [[1]], id="sizes of 1"),
        pytest.param([1, 1], [[7, 9], [3, 3]], [1], [[0], [0]], id="one element"),
    ],
)
def test_collapsed_layouts(
    sizes: list[int], strides: Strides, merged_sizes: list[int], merged_strides: Strides
) -> None:
    assert collapse(sizes, strides) == (merged_sizes, merged_strides)


@given(st.lists(st.integers(1, 7), min_size=1, max_size=5), st.integers(1, 40))
def test_blocks_cover_each_element_once_in_memory_order(sizes: list[int], most: int) -> None:
    places = np.arange(math.prod(sizes)).reshape(sizes)
    cut = [places[index].ravel() for index in blocks(sizes, most)]
    assert max(block.size for block in cut) <= most
    assert min(block.size for block in cut) >= 1
    assert np.array_equal(np.concatenate(cut), places.ravel())


@given(st.lists(st.integers(1, 50), min_size=1, max_size=4), st.integers(1, 100))
def test_blocks_are_not_needlessly_small(sizes: list[int], most: int) -> None:
    """Rows are cut only where a row is longer than a block, and at most one block of each cut is short."""
    count = sum(1 for _ in blocks(sizes, most))
    assert count <= 4 * math.ceil(math.prod(sizes) / most) + math.prod(sizes[:-1])


def test_a_tensor_that_fits_is_one_block() -> None:
    assert list(blocks([2, 3, 4], 24)) == [(slice(0, 2),)]


def test_blocks_of_a_long_row() -> None:
    assert list(blocks([10], 4)) == [(slice(0, 4),), (slice(4, 8),), (slice(8, 12),)]
    assert list(blocks([2, 6], 4)) == [(row, slice(start, start + 4)) for row in (0, 1) for start in (0, 4)]
