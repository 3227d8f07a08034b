"""The coordinates that a fused kernel goes through, and where the tensors inside it lie in these."""

from collections.abc import Sequence

Vector = list[int]
"""A step for each dimension of a space, in whatever unit."""


class Space:
    """Dimensions of some sizes, which can be split further. `axes` says along which of them groups are reduced."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self.axes = [False] * len(self.sizes)
        self._vectors: list[Vector] = []

    def identity(self) -> list[Vector]:
        """The coordinates of a tensor that has the space's own dimensions."""
        rank = len(self.sizes)
        return [self.vector([int(axis == other) for other in range(rank)]) for axis in range(rank)]

    def vector(self, steps: Sequence[int]) -> Vector:
        """One that goes on to be right when dimensions are split."""
        kept = list(steps)
        self._vectors.append(kept)
        return kept

    def address(self, coordinates: Sequence[Vector], strides: Sequence[int]) -> Vector:
        """Where the elements of a tensor lie that is read at `coordinates`, one vector for each of its dimensions."""
        return self.vector(
            [
                sum([stride * vector[axis] for stride, vector in zip(strides, coordinates, strict=True)])
                for axis in range(len(self.sizes))
            ]
        )

    def coordinates(self, address: Vector, sizes: Sequence[int], strides: Sequence[int]) -> list[Vector] | None:
        """Those of the tensor of `sizes` that was written with `strides`, for a reader of its memory at `address`.

        None if they are no sums of steps along dimensions. Dimensions are split where a reader's goes over several of
        the writer's. `strides` are those of an output: no two coordinates share an element.
        """
        digits = sorted((stride, size, axis) for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)))
        digits = [digit for digit in digits if digit[1] > 1]
        made = [self.vector([0] * len(self.sizes)) for _ in sizes]
        at = 0
        while at < len(self.sizes):
            step, count = address[at], self.sizes[at]
            if step == 0 or count == 1:
                at += 1
                continue
            place = max((n for n, digit in enumerate(digits) if digit[0] <= step), default=None)
            if place is None or step % digits[place][0]:
                return None
            stride, size, axis = digits[place]
            times = step // stride
            if times * (count - 1) < size:
                made[axis][at] = times
                at += 1
                continue
            if place + 1 == len(digits):
                return None
            above = digits[place + 1][0]
            inner = above // step
            if above % step or inner < 2 or count % inner:
                return None
            if times * (inner - 1) >= size:
                return None  # there is a gap before the writer's next dimension goes on
            self._split(at, inner)
        for size, vector in zip(sizes, made, strict=True):
            if sum([step * (count - 1) for step, count in zip(vector, self.sizes, strict=True)]) >= size:
                return None  # two dimensions of the reader together go beyond one of the writer's
        return made

    def groups(self, coordinates: Sequence[Vector], sizes: Sequence[int], axes: Sequence[int]) -> list[bool] | None:
        """Along which dimensions the groups of a tensor of `sizes` lie that is reduced along its `axes`.

        None if some dimension goes along groups and across them, or if there a group is not whole or out of order.
        """
        along = [any(coordinates[axis][n] for axis in axes) for n in range(len(self.sizes))]
        across = [axis for axis in range(len(sizes)) if axis not in axes]
        if any(flag and any(coordinates[axis][n] for axis in across) for n, flag in enumerate(along)):
            return None
        place, wanted = 1, [0] * len(self.sizes)
        for n in range(len(self.sizes) - 1, -1, -1):
            if along[n]:
                wanted[n] = place
                place *= self.sizes[n]
        place, found = 1, [0] * len(self.sizes)
        for axis in sorted(axes, reverse=True):
            for n, step in enumerate(coordinates[axis]):
                found[n] += step * place
            place *= sizes[axis]
        whole = place == 1 or [step if along[n] else 0 for n, step in enumerate(found)] == wanted
        count = 1
        for size, flag in zip(self.sizes, along, strict=True):
            count *= size if flag else 1
        return along if whole and count == place else None

    def _split(self, axis: int, inner: int) -> None:
        """Make two dimensions of one, the second of size `inner`."""
        self.sizes[axis : axis + 1] = [self.sizes[axis] // inner, inner]
        self.axes[axis : axis + 1] = [self.axes[axis]] * 2
        for vector in self._vectors:
            step = vector[axis]
            vector[axis : axis + 1] = [step * inner, step]
