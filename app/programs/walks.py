"""Ways through the elements of tensors that are visited together."""

from collections.abc import Sequence

Walk = tuple[list[int], list[list[int]]]
"""Sizes of dimensions, and for each tensor its strides along these, the output's last."""


def collapse(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> Walk:
    """Fewer dimensions that visit the same elements.

    `strides` has one sequence for each tensor, in any unit, the output's last. Dimensions of size 1 go, the others are
    ordered by the output's strides, and neighbours merge where every tensor steps evenly across both. Tensors that
    all have the same gapless layout, in whatever order, end as one dimension.
    """
    axes = sorted((axis for axis, size in enumerate(sizes) if size > 1), key=lambda axis: -strides[-1][axis])
    merged_sizes: list[int] = []
    merged_strides: list[list[int]] = [[] for _ in strides]
    for axis in axes:
        size = sizes[axis]
        if merged_sizes and all(
            outer[-1] == steps[axis] * size for outer, steps in zip(merged_strides, strides, strict=True)
        ):
            merged_sizes[-1] *= size
            for outer, steps in zip(merged_strides, strides, strict=True):
                outer[-1] = steps[axis]
        else:
            merged_sizes.append(size)
            for outer, steps in zip(merged_strides, strides, strict=True):
                outer.append(steps[axis])
    if not merged_sizes:
        return [1], [[0] for _ in strides]
    return merged_sizes, merged_strides
