"""Tensor descriptors: DML_BUFFER_TENSOR_DESC and the rules for its members.

Source of the rules: "DML_BUFFER_TENSOR_DESC", "Using strides to express padding and memory layout" and
"DMLCalcBufferTensorSize" in DirectML's documentation. Sums are Python integers and cannot wrap.
"""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field

from app.contract import constants
from app.contract.constants import TensorFlag
from app.contract.members import Lenient
from app.contract.scalars import UINT_MAX, Uint, Uint64
from app.contract.violations import Path, Violation

T = TypeVar("T")

MAX_RANK = 8
MAX_ELEMENTS = UINT_MAX
MAX_TENSORS = 128
"""Tensors in an array, such as those that JOIN joins. DirectML states no limit."""

_PLAIN = {"DataType", "Sizes"}

_MAX_LOOKS = 10_000

_ELEMENT = re.compile(r"(\w+)\[(0|[1-9][0-9]{0,8})\]")
"""As `element_name` writes it; integers of thousands of digits are none that Python reads."""

_Flags = Annotated[list[TensorFlag], Field(max_length=8)]


class once(Generic[T]):  # noqa: N801 - as `property` is
    """`cached_property` without its lock, which takes longer than what is found here. Threads find the same."""

    def __init__(self, find: Callable[[Any], T]) -> None:
        self.__doc__ = find.__doc__
        self._find = find
        self._name = find.__name__

    def __get__(self, instance: object, owner: type[Any]) -> T:
        made = instance.__dict__[self._name] = self._find(instance)
        return made


class TensorDesc(Lenient):
    """A tensor's element type and layout in its buffer."""

    model_config = ConfigDict(ignored_types=(once,))

    DataType: Annotated[constants.DataType, Field(description="Type of the elements.")]
    Sizes: Annotated[
        list[Annotated[Uint, Field(ge=1)]],
        Field(
            min_length=1,
            max_length=MAX_RANK,
            description="Elements in each dimension, outermost first. At most 2^32 - 1 in all.",
        ),
    ]
    Strides: Annotated[
        list[Uint] | None,
        Field(
            max_length=MAX_RANK,
            description="Step in elements along each dimension; 0 repeats (inputs only). Null: packed, row-major.",
        ),
    ] = None
    Flags: Annotated[
        _Flags,
        # Generators make no class of "one or a list of them", so the document asks for the list.
        BeforeValidator(lambda flags: flags if isinstance(flags, list) else [flags], json_schema_input_type=_Flags),
        Field(
            description="A list, or one flag by itself. OWNED_BY_DML (inputs only): the data are copied at "
            "initialization, so no output can take the buffer.",
        ),
    ] = Field(default_factory=list, json_schema_extra={"default": []})  # a list by itself would be copied, slowly
    DimensionCount: Uint | None = Field(None, description="Number of dimensions; if given, the length of Sizes.")
    TotalTensorSizeInBytes: Uint64 | None = Field(
        None, description="Bytes of the buffer, a multiple of 4. Absent, null or 0: the least that the layout needs."
    )
    GuaranteedBaseOffsetAlignment: Uint = Field(
        0, description="0, or a power of two not less than an element's bytes. A hint without effect on results."
    )

    @property
    def is_plain(self) -> bool:
        """Whether it states no more than the elements' type and sizes."""
        return self.__pydantic_fields_set__ <= _PLAIN

    @property
    def states_little(self) -> bool:
        """Whether there is nothing that `violations` could be about."""
        return self.__pydantic_fields_set__ <= _PLAIN and self.elements <= MAX_ELEMENTS

    @property
    def rank(self) -> int:
        return len(self.Sizes)

    @once
    def elements(self) -> int:
        return math.prod(self.Sizes)

    @property
    def strides(self) -> Sequence[int]:
        """Step in elements along each dimension, also where `Strides` is null."""
        return packed_strides(self.Sizes) if self.Strides is None else self.Strides

    @property
    def steps(self) -> list[int]:
        """The strides, 0 along dimensions of size 1: with these its elements are read as if these were longer."""
        return [0 if size == 1 else stride for size, stride in zip(self.Sizes, self.strides, strict=True)]

    @property
    def gapless(self) -> bool:
        """Whether no bytes lie between its elements; for tensors in which no two coordinates share an element."""
        return self.reach == self.elements

    @property
    def reach(self) -> int:
        """Elements from the first of the buffer to the last that the layout touches, both included."""
        if self.Strides is None:
            return self.elements
        return 1 + sum((size - 1) * stride for size, stride in zip(self.Sizes, self.Strides, strict=True))

    @once
    def data_bytes(self) -> int:
        """The fewest bytes that hold every element, not rounded."""
        return (self.reach * self.DataType.bits + 7) // 8

    @property
    def minimum_bytes(self) -> int:
        """What DMLCalcBufferTensorSize answers: `data_bytes` rounded up to a multiple of 4."""
        return (self.data_bytes + 3) & ~3

    @once
    def total_bytes(self) -> int:
        """TotalTensorSizeInBytes, computed where it is absent, null or 0."""
        return self.TotalTensorSizeInBytes or self.minimum_bytes

    @property
    def data_lengths(self) -> set[int]:
        """Bytes that data for it may have."""
        return {self.data_bytes, self.minimum_bytes, self.total_bytes}

    @property
    def owned_by_dml(self) -> bool:
        return TensorFlag.OWNED_BY_DML in self.Flags

    @property
    def is_packed(self) -> bool:
        """Whether the elements lie row-major without gaps; steps along dimensions of size 1 do not matter."""
        return self.Strides is None or all(
            size == 1 or stride == packed
            for size, stride, packed in zip(self.Sizes, self.Strides, packed_strides(self.Sizes), strict=True)
        )

    @property
    def overlaps_itself(self) -> bool:
        """Whether two coordinates may share an element."""
        return self.Strides is not None and _overlaps(self.Sizes, self.Strides)

    def same_layout(self, other: "TensorDesc") -> bool:
        """Whether both put each coordinate at the same place in a buffer of the same size."""
        if self.DataType.bits != other.DataType.bits or self.Sizes != other.Sizes:
            return False
        if self.Strides != other.Strides:
            one, two = ([s if n > 1 else 0 for n, s in zip(d.Sizes, d.strides, strict=True)] for d in (self, other))
            if one != two:
                return False
        return self.total_bytes == other.total_bytes

    def violations(self, *, output: bool = False) -> Iterator[Violation]:
        """Rules that hold for the descriptor alone, unless it `states_little`. Paths start at the descriptor."""
        if self.DimensionCount not in (None, self.rank):
            yield Violation(
                ("DimensionCount",),
                f"DimensionCount is {self.DimensionCount} but Sizes has {self.rank} dimensions; they must agree.",
                self.DimensionCount,
                self.rank,
            )
        elements = self.elements
        if elements > MAX_ELEMENTS:
            yield Violation(
                ("Sizes",),
                f"Sizes hold {elements} elements; a tensor has at most {MAX_ELEMENTS}.",
                self.Sizes,
                MAX_ELEMENTS,
            )
        if self.Strides is not None and len(self.Strides) != self.rank:
            yield Violation(
                ("Strides",),
                f"Strides has {len(self.Strides)} entries but Sizes has {self.rank}; give one for each dimension.",
                self.Strides,
                self.rank,
            )
            return  # nothing below means anything without a stride for each dimension
        alignment = self.GuaranteedBaseOffsetAlignment
        if alignment and (alignment & (alignment - 1) or alignment < self.DataType.bytes):
            yield Violation(
                ("GuaranteedBaseOffsetAlignment",),
                f"GuaranteedBaseOffsetAlignment is {alignment}; it must be 0, or a power of two of at least "
                f"{self.DataType.bytes}, the bytes of a {self.DataType} element.",
                alignment,
                f"0, or a power of two >= {self.DataType.bytes}",
            )
        total = self.TotalTensorSizeInBytes
        if total and total < self.minimum_bytes:
            yield Violation(
                ("TotalTensorSizeInBytes",),
                f"TotalTensorSizeInBytes is {total} but this layout needs at least {self.minimum_bytes} bytes "
                "(DMLCalcBufferTensorSize).",
                total,
                f">= {self.minimum_bytes}, or 0 to have it computed",
            )
        elif total and total % 4:
            # DirectML leaves this open; every bound buffer is a multiple of 4 bytes, so the strict reading.
            yield Violation(
                ("TotalTensorSizeInBytes",),
                f"TotalTensorSizeInBytes is {total}; it must be a multiple of 4.",
                total,
                "a multiple of 4",
            )
        if output and self.Flags and self.owned_by_dml:
            yield Violation(
                ("Flags",),
                "Flags of an output tensor cannot hold OWNED_BY_DML; only inputs can be owned by DirectML.",
                TensorFlag.OWNED_BY_DML,
                [TensorFlag.NONE],
            )
        if output and self.overlaps_itself:
            yield Violation(
                ("Strides",),
                "Strides make two coordinates of an output share an element; only inputs may repeat elements.",
                self.Strides,
                "strides that give each coordinate an element of its own",
            )


def element_name(field: str, place: int) -> str:
    """The name of one tensor of an array, where tensors are told apart: InputTensors[0]."""
    return f"{field}[{place}]"


@lru_cache(1024)
def path_of(name: str) -> Path:
    """Where the tensor called `name` is: a field, or a place in one."""
    match = _ELEMENT.fullmatch(name)
    return (match[1], int(match[2])) if match else (name,)


def members(group: tuple[str, ...], tensors: Collection[str]) -> list[str]:
    """Those of `tensors`, by name, that are meant by the fields of `group`: of an array all, in its place there."""
    if all("[" not in name for name in tensors):
        return [name for name in group if name in tensors]
    return [name for field in group for name in tensors if path_of(name)[0] == field]


def tensor_name(path: Path) -> str:
    """The name of the tensor that a `path` ends at; of a constant's Data in a graph, its node."""
    *_, last = path
    if path[-3:-2] == ("Nodes",):
        return element_name("Nodes", int(path[-2]))
    return element_name(str(path[-2]), last) if isinstance(last, int) else last


def in_fields(values: Mapping[str, T]) -> dict[str, T | list[T]]:
    """What there is for each tensor, in their order, by field: a list for an array."""
    result: dict[str, T | list[T]] = {}
    for name, value in values.items():
        field, *place = path_of(name)
        if place:
            made = result.setdefault(str(field), [])
            assert isinstance(made, list)
            made.append(value)
        else:
            result[name] = value
    return result


def packed_strides(sizes: Sequence[int]) -> list[int]:
    """Row-major strides without gaps, in elements."""
    strides = [1] * len(sizes)
    for axis in range(len(sizes) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * sizes[axis + 1]
    return strides


def _overlaps(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two coordinates share an element, that is, whether steps d, not all 0, sum up to nothing:
    sum of d[i] * strides[i] = 0 with each |d[i]| < sizes[i].

    Searched from the longest stride down, where the shorter ones must make up for what is left. Layouts of padding,
    cropping and transposition take one look for each dimension; the search is exponential only for strides nobody
    uses, and gives up on those after `_MAX_LOOKS`: then the layout counts as overlapping, which is the safe answer.
    """
    dimensions = sorted(
        ((stride, size - 1) for size, stride in zip(sizes, strides, strict=True) if size > 1), reverse=True
    )
    if dimensions and dimensions[-1][0] == 0:
        return True
    below = [0]
    for stride, last in reversed(dimensions):
        below.append(below[-1] + stride * last)
    below.reverse()  # below[i]: the most that dimensions i and shorter can make up for
    looks = 0

    def meets(i: int, left: int, moved: bool) -> bool:
        nonlocal looks
        looks += 1
        if looks > _MAX_LOOKS:
            return True
        if i == len(dimensions):
            return moved  # nothing is left, since the shortest stride has made up for it
        stride, last = dimensions[i]
        least = max(-((left + below[i + 1]) // stride), -last if moved else 0)  # d and -d are the same meeting
        most = min((below[i + 1] - left) // stride, last)
        return any(meets(i + 1, left + d * stride, moved or d != 0) for d in range(least, most + 1))

    return meets(0, 0, False)
