"""Tensors of a graph that is being built: which bytes, and how they are read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from app.contract.constants import DataType
from app.graphs.graph import Source

Sizes = tuple[int, ...]


class Unsupported(Exception):
    """This node has no DirectML operator, or not with these inputs. The text says why, as a clause: "its shape is not
    constant"."""


def packed_strides(sizes: Sequence[int]) -> Sizes:
    """In elements, of a row-major tensor without gaps."""
    strides = [1] * len(sizes)
    for axis in range(len(sizes) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * sizes[axis + 1]
    return tuple(strides)


@dataclass(frozen=True, slots=True)
class View:
    """Elements of `source`'s bytes, from its beginning. `sizes` are ONNX's (a scalar has none), `strides` in elements.

    What only reads the same bytes another way (a transpose, a broadcast, a reshape) is another view: no operator.
    """

    source: Source
    data_type: DataType
    sizes: Sizes
    strides: Sizes

    @staticmethod
    def packed(source: Source, data_type: DataType, sizes: Sequence[int]) -> "View":
        return View(source, data_type, tuple(sizes), packed_strides(sizes))

    @property
    def elements(self) -> int:
        return prod(self.sizes)

    @property
    def is_packed(self) -> bool:
        """Whether elements lie row-major and without gaps; strides of axes of one element do not matter."""
        packed = packed_strides(self.sizes)
        return self.strides == packed or all(
            size == 1 or a == b for size, a, b in zip(self.sizes, self.strides, packed, strict=True)
        )

    @property
    def is_one(self) -> bool:
        """Whether all elements are the same one, by their strides."""
        return all(size == 1 or stride == 0 for size, stride in zip(self.sizes, self.strides, strict=True))

    def transposed(self, axes: Sequence[int]) -> "View":
        """Axis i of the result is axis `axes[i]` of this one."""
        return replace(
            self, sizes=tuple(self.sizes[axis] for axis in axes), strides=tuple(self.strides[axis] for axis in axes)
        )

    def broadcast(self, sizes: Sequence[int]) -> "View":
        """By NumPy's rules, with strides of 0. Raises ValueError if it cannot be."""
        missing = len(sizes) - len(self.sizes)
        if missing < 0:
            raise ValueError(f"{self.sizes} cannot be broadcast to {tuple(sizes)}")
        strides = [0] * missing
        for own, stride, wanted in zip(self.sizes, self.strides, sizes[missing:], strict=True):
            if own not in (1, wanted):
                raise ValueError(f"{self.sizes} cannot be broadcast to {tuple(sizes)}")
            strides.append(stride if own == wanted else 0)
        return replace(self, sizes=tuple(sizes), strides=tuple(strides))

    def reshaped(self, sizes: Sequence[int]) -> "View | None":
        """The same elements in the same order, or None if no strides say that of these bytes. A packed one always
        can."""
        sizes = tuple(sizes)
        if prod(sizes) != self.elements:
            raise ValueError(f"{self.sizes} cannot be reshaped to {sizes}")
        if self.is_packed:
            return replace(self, sizes=sizes, strides=packed_strides(sizes))
        strides = _regrouped(self.sizes, self.strides, sizes)
        return None if strides is None else replace(self, sizes=sizes, strides=strides)

    def described(self, rank: int = 1) -> dict[str, Any]:
        """The tensor's descriptor, with at least `rank` dimensions, 1s in front."""
        missing = max(0, max(rank, 1) - len(self.sizes))
        sizes = [1] * missing + list(self.sizes)
        described: dict[str, Any] = {"DataType": self.data_type.value, "Sizes": sizes}
        if not self.is_packed:
            described["Strides"] = [0] * missing + list(self.strides)
        return described


def _regrouped(sizes: Sizes, strides: Sizes, wanted: Sizes) -> Sizes | None:
    """Strides for `wanted`, group by group of axes with equal products, where each group lies evenly in memory."""
    old = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
    made: list[int] = []
    position, axis = 0, 0
    while axis < len(wanted):
        if wanted[axis] == 1:
            made.append(0)
            axis += 1
            continue
        first, count = axis, wanted[axis]
        size, stride = old[position]
        position += 1
        axis += 1
        while size != count:
            if size < count:
                more, inner = old[position]
                if stride != more * inner:
                    return None
                size, stride = size * more, inner
                position += 1
            else:
                count *= wanted[axis]
                axis += 1
        group = wanted[first:axis]
        made += [each * stride for each in packed_strides(group)]
    return tuple(made)
