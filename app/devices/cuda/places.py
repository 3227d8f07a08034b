"""How the tensors of an output lie that is made by coordinates, as kernels are told of it, and what chooses these."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.contract.tensors import TensorDesc
from app.devices.cuda.grids import THREADS, WARP
from app.devices.cuda.layouts import ACCESS_BYTES
from app.devices.cuda.totals import LONG, MOST, is_along_rows, is_row, terms_of, width_of_terms
from app.devices.cuda.vectors import vector_width
from app.devices.cuda.windows import window_step
from app.formula.coordinates import Coordinate, Element, Total
from app.formula.decided import Decisions, decide, decided
from app.formula.outlines import Outline
from app.formula.ranges import Ranges
from app.formula.structures import Structures
from app.formula.values import INT64, Constant, Operation, Parameter, Value, parts
from app.programs.dispatchable import Dispatchable

FEW = 1 << 14
"""Elements of an output that are fewer leave most of a GPU idle if each is computed by one thread."""

CHUNKS = (512, 256, 128)
"""Elements of a row that a block computes, at most a fourth of them for nothing: what they have in common, its threads
find out once."""

LEAST_VECTORS = 1 << 16
"""Elements of an output that are fewer are not worth finding out which of them lie together."""

LEAST_TEAM = 8

LEAST_BY_TEAMS, LEAST_OF_TEAMS, MOST_OF_A_TEAM = 1 << 12, 1 << 5, 1 << 12
"""Elements of an output from which on there are enough for a team each, of a warp's threads or a part of them, and the
terms of an element that are worth one, and not too many for it: it has them joined sooner than a block."""

TURNS_OF_TEAM = 32
"""A smaller team, whose threads take so many turns at most, is quicker: there are fewer parts to join."""

MOST_TERMS, MOST_WORK = 1 << 28, 1 << 40
"""Terms that one thread may compute for an element, and that a kernel may for all: seconds of an H200's time, since a
kernel under way cannot be stopped. More is NumPy's, which can."""

MOST_BRIEF = 1 << 8
"""Terms whose losses are added up without a look at how many they have become."""

MOST_UNROLLED = 16
"""Terms of an element that are written one after the other: none then waits for another."""

MOST_NARROW = (1 << 31) - 1
"""Integers up to this, and elements that a tensor reaches over, are counted with 32 bits."""

DIVISION = r"""
/* n / d for any 32-bit n and d > 0: with 2^(l-1) < d <= 2^l, `magic` is 2^32 (2^l - d) / d + 1 and `shift` is l. */
DEVICE unsigned divided(unsigned n, unsigned magic, unsigned shift)
{
    unsigned high = (unsigned)(((unsigned long long)n * magic) >> 32);
    return (unsigned)(((unsigned long long)high + n) >> shift);
}
/* The coordinate nearest to `at` that is inside. */
DEVICE unsigned long long inside(long long at, unsigned size)
{
    return (unsigned)(at < 0 ? 0 : at < (long long)size ? at : (long long)size - 1);
}
DEVICE unsigned inside(int at, unsigned size) { return at < 0 ? 0 : at < (int)size ? at : (int)size - 1; }
"""


@dataclass(frozen=True, slots=True)
class CoordinateClass:
    """What of the tensors chooses code: the ranks of the inputs and, last, of the output, whether that has few
    elements, which of CHUNKS its rows are cut into, or 0, how many neighbours along a row a thread computes, and
    whether what is computed of coordinates has 32 bits. `window` is how many terms the only total has at most along
    each of its indices, if these are few, and `step` is how far windows of neighbours are apart that are loaded at
    once, else 0. Of totals whose terms threads share, a `group` of threads has each, and each
    thread some `neighbours` of its terms at once.

    `even`: no neighbour is beyond its row. `decisions` are what sizes decide of the formula, and `packed` says which
    inputs have rows of elements one after the other that begin where a vector may. `brief`: an element has so few terms
    that what their sum loses may be added up by itself."""

    ranks: tuple[int, ...]
    few: bool
    chunk: int
    width: int = 1
    narrow: bool = False
    window: tuple[int, ...] = ()
    step: int = 0
    group: int = THREADS
    neighbours: int = 1
    even: bool = True
    decisions: Decisions = ()
    packed: tuple[bool, ...] = ()
    brief: bool = False


@dataclass(frozen=True, slots=True)
class Coordinates:
    """How the tensors of an output lie that is made by coordinates."""

    kind: CoordinateClass
    elements: int
    terms: int
    """Of an element, at most."""
    shape: np.ndarray[tuple[int], np.dtype[np.uint32]]
    """The kernel's argument: of the output sizes, what divides by them, strides, and chunks of a row with what divides
    by these; of each input sizes and strides.

    Some 64 bytes for each tensor. Of 50 and more, kernels have more than 4 KiB of arguments, which CUDA 12.1 permits.
    """
    pieces: int
    """Of a kernel that goes by rows: blocks, or groups of neighbours."""
    outline: Outline
    """Of the formula, with what sizes decide of it."""

    @classmethod
    def of(cls, compiled: Dispatchable, output: str, structures: Structures | None = None) -> "Coordinates":
        """What is the same for all numbers and sizes is among `structures`."""
        made, expression = compiled.outputs[output], compiled.program.maps[output].expression
        sizes = {name: desc.Sizes for name, desc in compiled.inputs.items()}
        known = structures or Structures()
        whole = known.find(("outline", expression), {}, lambda _: Outline(expression))
        decisions = decide(whole, compiled.numbers, made.Sizes, sizes)
        outline = known.find(("decided", expression, decisions), {}, lambda _: Outline(decided(expression, decisions)))
        root = outline.root
        width = vector_width(root, compiled.numbers, made) if made.elements >= LEAST_VECTORS else 1
        chunk = 0 if width > 1 else _chunk(made.Sizes[-1])
        pieces = -(-made.Sizes[-1] // (chunk or width)) if chunk or width > 1 else 1
        ranges = Ranges(outline, compiled.numbers, made.Sizes)
        narrow = _is_narrow(outline, ranges, [*compiled.inputs.values(), made], totals=width == 1)
        window = _window(whole, outline, ranges) if narrow else ()
        step = 0
        if window and made.elements >= LEAST_VECTORS:
            step, width = window_step(root, compiled.numbers, made, window)
            chunk = 0 if step else chunk
            pieces = made.Sizes[-1] // width if step else pieces
        terms, few = ranges.terms(), made.elements < FEW
        group, neighbours = _sharing(outline, compiled, made, terms, few=few)
        kind = CoordinateClass(
            ranks_of(compiled, made),
            few,
            chunk,
            width,
            narrow,
            window,
            step,
            group,
            neighbours,
            made.Sizes[-1] % width == 0,
            decisions,
            tuple(map(_is_packed, compiled.inputs.values())),
            terms <= MOST_BRIEF,
        )
        shape = np.array(shape_of(compiled, made, pieces), np.uint32)
        return cls(kind, made.elements, terms, shape, made.elements // made.Sizes[-1] * pieces, outline)

    def is_too_much(self, *, shared: bool) -> bool:
        """Whether a kernel, whose blocks' threads may have `shared` the terms of an element, is not to be started."""
        return self.terms > (MOST if shared else MOST_TERMS) or self.elements * self.terms > MOST_WORK


def _sharing(outline: Outline, compiled: Dispatchable, made: TensorDesc, terms: int, *, few: bool) -> tuple[int, int]:
    """Threads that have a long total's terms together, and neighbours among these that each of them loads at once."""
    numbers, totals = compiled.numbers, outline.outer_totals
    rows = [each for each in totals if terms_of(each, numbers) >= LEAST_OF_TEAMS and is_row(each, made.rank - 1)]
    totals = [each for each in totals if terms_of(each, numbers) >= LONG and (few or is_along_rows(each))]
    group = THREADS
    if rows and made.elements >= LEAST_BY_TEAMS and terms <= MOST_OF_A_TEAM and set(totals) <= set(rows):
        group, totals = WARP, rows
    if not totals or not set(totals) <= set(rows):
        return THREADS, 1
    width, least = width_of_terms(outline.root, totals, numbers), min(terms_of(each, numbers) for each in totals)
    if group == WARP:
        while group > LEAST_TEAM and least <= group // 2 * width * TURNS_OF_TEAM:
            group //= 2
    while width > 1 and least < group * width:
        width //= 2
    return group, width


def _is_packed(desc: TensorDesc) -> bool:
    """Whether rows have their elements one after the other, and begin where a vector may."""
    *outer, (_, last) = zip(desc.Sizes, desc.strides, strict=True)
    return last == 1 and not any(step * desc.DataType.bytes % ACCESS_BYTES for size, step in outer if size > 1)


def _is_narrow(outline: Outline, ranges: Ranges, tensors: Sequence[TensorDesc], *, totals: bool) -> bool:
    """Whether a formula, one with `totals` if these are asked for, has integers of coordinates alone, and these have
    32 bits."""
    if any(desc.reach > MOST_NARROW for desc in tensors):
        return False
    narrow = not totals
    for node in outline.parts:
        narrow |= isinstance(node, Total)
        if node.type in ("int64", "uint64"):
            low, high = (1, 0) if isinstance(node, Element | Total) else ranges.of(node)
            if node.type == "uint64" or not -MOST_NARROW <= low <= high <= MOST_NARROW:
                return False
    return narrow


def _window(whole: Outline, outline: Outline, ranges: Ranges) -> tuple[int, ...]:
    """Of totals that end where the input does, if sizes do not decide that they end before; those that do not are as
    long as a size is, which chooses no code."""
    if len(whole.totals) != 1 or whole.uniform.issuperset(whole.totals[0].counts):
        return ()
    most = tuple(map(ranges.most, outline.totals[0].counts))
    return most if 1 <= math.prod(most) <= MOST_UNROLLED else ()


def narrowed_integers(root: Value) -> Value:
    """The same with int32 in place of int64."""
    made: dict[Value, Value] = {}
    for node in parts(root):
        match node:
            case Coordinate() | Parameter(type="int64"):
                made[node] = Operation("int32", "cast", (node,))
            case Constant(type="int64"):
                made[node] = Constant("int32", node.value)
            case Operation():
                kind = "int32" if node.type == INT64 else node.type
                made[node] = Operation(kind, node.name, tuple(made[each] for each in node.arguments))
            case Element() | Total():
                made[node] = node.with_operands(tuple(made[each] for each in node.operands()))
            case _:
                made[node] = node
    return made[root]


def ranks_of(compiled: Dispatchable, made: TensorDesc) -> tuple[int, ...]:
    """Of the inputs and, last, of the output."""
    return (*(desc.rank for desc in compiled.inputs.values()), made.rank)


def shape_of(compiled: Dispatchable, made: TensorDesc, pieces: int) -> list[int]:
    """What kernels are told of sizes and strides, an output's rows being cut into so many `pieces`."""
    divisions = [division(size) for size in made.Sizes]
    flat = [*made.Sizes, *(magic for magic, _ in divisions), *(shift for _, shift in divisions), *made.strides]
    flat += [pieces, *division(pieces)]
    for desc in compiled.inputs.values():
        flat += [*desc.Sizes, *desc.strides]
    return flat


def _chunk(size: int) -> int:
    return next((chunk for chunk in CHUNKS if -(-size // chunk) * chunk * 3 <= 4 * size), 0)


def division(size: int) -> tuple[int, int]:
    """What `divided` takes for a divisor."""
    shift = (size - 1).bit_length()
    return ((1 << 32) * ((1 << shift) - size)) // size + 1, shift
