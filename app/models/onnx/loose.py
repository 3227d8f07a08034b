"""Tensors whose sizes follow from elements: what is known of them, though nobody knows how many there are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from app.contract.constants import DataType
from app.models.onnx.mapping import Node, Value
from app.models.onnx.shapes import inserted
from app.models.onnx.tensors import Sizes, View

Dims: TypeAlias = tuple[int | None, ...]
"""Sizes of which one, which is None, is the number of places where a mask is true."""


@dataclass(frozen=True, slots=True)
class Loose:
    """A tensor whose sizes follow from elements; `why`, of the node `label`, is for who cannot take it."""

    label: str
    why: str


@dataclass(frozen=True, slots=True)
class Counts(Loose):
    """Sizes of such tensors, and what is computed of them. They are `dims`, None being how often `mask` is true;
    without a dimension of its own it is one of them. They are not known if there is no mask."""

    mask: View | None = None
    dims: Dims = ()
    has_dimension: bool = True


@dataclass(frozen=True, slots=True)
class Elements(Counts):
    """How many elements there are: `times` as many as places where `counted` is true. As a size it is not known."""

    counted: View | None = None
    times: int = 1


@dataclass(frozen=True, slots=True)
class Places(Loose):
    """Coordinates of where `mask` is true, those along `axes` of it. They lie along this one of two dimensions; one
    coordinate may have no dimension for it. If they are `repeated`, it is not known how often, nor along what."""

    mask: View
    axes: tuple[int, ...]
    along: int | None
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Rows(Loose):
    """One coordinate as a column, which is repeated along the rows."""

    column: Places


@dataclass(frozen=True, slots=True)
class Taken(Loose):
    """Those of `values` where `mask` is true. The first dimensions of `values` are the mask's, of size 1 where it makes
    no difference, and the others, `rest`, those of each place. What ONNX has are the places in a row, as one dimension
    before number `along` of the rest. If that is None, nothing but the order of elements is known."""

    mask: View
    values: View
    along: int | None = 0

    @property
    def rest(self) -> Sizes:
        return self.values.sizes[len(self.mask.sizes) :]

    @property
    def dims(self) -> Dims | None:
        """Its sizes, if they are known."""
        if self.along is None:
            return None
        return (*self.rest[: self.along], None, *self.rest[self.along :])

    def whole(self) -> View:
        """`values` for each place of the mask."""
        return self.values.broadcast((*self.mask.sizes, *self.rest))

    def condition(self) -> View:
        """The mask for each of these."""
        return inserted(self.mask, len(self.mask.sizes), len(self.rest)).broadcast((*self.mask.sizes, *self.rest))

    def of_rest(self, values: View, along: int | None) -> "Taken":
        """The same places, of `values` that are made of these."""
        return replace(self, values=values, along=along)


@dataclass(frozen=True, slots=True)
class Repeated(Loose):
    """`value` again and again."""

    value: View


@dataclass(frozen=True, slots=True)
class First(Loose):
    """So many of `values`, from the first on."""

    values: View


Given: TypeAlias = Value | Loose | None
"""An input of a node, which may be left out."""

Made: TypeAlias = Value | Loose | None
"""None if it cannot be made."""


def laid(values: View, mask: View, axes: Sequence[int], first: int = 0) -> View | None:
    """`values`, whose dimensions from `first` on are those `axes` of the mask, as `Taken` has them."""
    count = len(axes)
    own = range(first, first + count)
    if len(set(axes)) < count or [*values.sizes[first : first + count]] != [mask.sizes[axis] for axis in axes]:
        return None
    found = dict(zip(axes, own, strict=True))
    missing = [axis for axis in range(len(mask.sizes)) if axis not in found]
    made = values.transposed([*(found[axis] for axis in sorted(found)), *others(values, own)])
    for axis in missing:
        made = inserted(made, axis)
    return made


def others(view: View, axes: Sequence[int]) -> list[int]:
    return [axis for axis in range(len(view.sizes)) if axis not in axes]


def coordinate(node: Node, places: Places) -> Taken | None:
    """One coordinate, as numbers."""
    if len(places.axes) > 1 or places.repeated:
        return None
    (axis,) = places.axes
    attributes = {"ValueDataType": "INT64", "ValueStart": 0, "ValueDelta": 1}
    outputs = {"OutputTensor": (DataType.INT64, places.mask.sizes[axis : axis + 1])}
    made = node.build.operator("FILL_VALUE_SEQUENCE", {}, attributes, outputs)
    values = laid(made["OutputTensor"], places.mask, [axis])
    assert values is not None, "there are as many"
    if places.along is None:
        return Taken(places.label, places.why, places.mask, values)
    return Taken(places.label, places.why, places.mask, inserted(values, len(places.mask.sizes)), 1 - places.along)


def as_dims(node: Node, taken: Taken, dims: Dims | None) -> Taken | None:
    """The same elements in the same order in these sizes, of which one is None; or if they are not known."""
    if taken.along is not None and dims is not None and dims.count(None) == 1:
        along = dims.index(None)
        before, after = _product(dims[:along]), _product(dims[along + 1 :])
        if before == prod(taken.rest[: taken.along]) and after == prod(taken.rest[taken.along :]):
            rest = tuple(each for each in dims if each is not None)
            values = node.reshaped(taken.values, (*taken.values.sizes[: len(taken.mask.sizes)], *rest))
            return taken.of_rest(values, along)
    return None if prod(taken.rest[: taken.along or 0]) > 1 else taken.of_rest(taken.values, None)


def _product(dims: Dims) -> int:
    return prod(each for each in dims if each is not None)
