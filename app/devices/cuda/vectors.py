"""Elements that lie together along a row of the output and in memory, which one thread loads and stores at once."""

from collections.abc import Callable
from dataclasses import dataclass

from app.contract.tensors import TensorDesc
from app.devices.cuda.layouts import ACCESS_BYTES
from app.formula.coordinates import Coordinate, Element, Index, Total
from app.formula.uniform import Numbers, evaluator, uniform_parts
from app.formula.values import BOOL, Constant, Operation, Value, parts

MOST_OPERATIONS = 64
"""Of an element that are worth being written several times over, once for each neighbour."""

NEIGHBOURS = r"""
template <class T, int N> struct alignas(sizeof(T) * N) neighbours { T at[N]; };
template <int N> struct width {};
template <int N> struct times_of { static constexpr int value = N; };
template <class T> DEVICE void loaded(T* to, const T* from, width<1>) { *to = *from; }
/* At once if they are aligned, else by halves. */
template <class T, int N> DEVICE void loaded(T* to, const T* from, width<N>)
{
    if ((unsigned long long)from % (sizeof(T) * N) == 0) {
        const neighbours<T, N> made = *(const neighbours<T, N>*)from;
        #pragma unroll
        for (int k = 0; k < N; ++k) to[k] = made.at[k];
        return;
    }
    loaded(to, from, width<N / 2>());
    loaded(to + N / 2, from + N / 2, width<N / 2>());
}
/* Elements from place `at` on along a dimension, each the nearest that is inside. */
template <class T, int N>
DEVICE void gathered(neighbours<T, N>& made, const T* from, long long at, unsigned size, unsigned stride)
{
    if (stride == 1 && at >= 0 && at <= (long long)size - N) { /* at + N may wrap around */
        loaded(made.at, from + at, width<N>());
        return;
    }
    if (at <= -N || (at >= (long long)size && at < 1ll << 62)) {
        const T one = from[inside(at, size) * stride];
        #pragma unroll
        for (int k = 0; k < N; ++k) made.at[k] = one;
        return;
    }
    #pragma unroll
    for (int k = 0; k < N; ++k) made.at[k] = from[inside((long long)((unsigned long long)at + k), size) * stride];
}
/* Those that are inside of a row, from place `at` on. */
template <class T, int N>
DEVICE void scattered(T* to, const neighbours<T, N>& made, long long at, unsigned size, unsigned stride)
{
    to += (unsigned long long)at * stride;
    if (stride == 1 && at + N <= (long long)size && (unsigned long long)to % (sizeof(T) * N) == 0) {
        *(neighbours<T, N>*)to = made;
        return;
    }
    #pragma unroll
    for (int k = 0; k < N; ++k)
        if (at + k < (long long)size) to[(unsigned long long)k * stride] = made.at[k];
}
"""


@dataclass(frozen=True, slots=True)
class Along:
    """What is known of a formula in which a coordinate or an index goes up by one: which nodes it `is`, what `changes`
    then, and what `is_one` for all elements."""

    is_it: Callable[[Value], bool]
    changes: Callable[[Value], bool]
    is_one: Callable[[Value], bool]

    def first(self, node: Element, write: Callable[[Value], str]) -> str | None:
        """The last coordinate of `node` where what goes up is `from`, if it goes up by one with it and nothing else
        changes."""
        if not node.at or any(map(self.changes, node.at[:-1])):
            return None
        return self._first(node.at[-1], write)

    def _first(self, node: Value, write: Callable[[Value], str]) -> str | None:
        if self.is_it(node):
            return "from"
        match node:
            case Operation(name="add" | "multiply", arguments=(a, b)):
                other, rest = (a, b) if self.changes(b) else (b, a)
                if self.changes(other) or (node.name == "multiply" and not self.is_one(other)):
                    return None
                found = self._first(rest, write)
                return found if found is None or node.name == "multiply" else _wrapped(found, "+", write(other))
            case Operation(name="cast", type="int32", arguments=(a,)):  # what has 32 bits for certain
                return self._first(a, write)
            case Operation(name="subtract", arguments=(a, b)) if not self.changes(b):
                found = self._first(a, write)
                return found and _wrapped(found, "-", write(b))
        return None


def _wrapped(a: str, sign: str, b: str) -> str:
    """The sum or difference of int64 values, which wraps around."""
    return f"(long long)((unsigned long long){a} {sign} (unsigned long long){b})"


def goes_up(node: Value, along: int | Index) -> bool:
    """Whether it is the output's coordinate along that dimension, or that index."""
    return node is along or (isinstance(node, Coordinate) and node.axis == along)


def going_along(root: Value, along: int | Index, numbers: Numbers) -> Along:
    """What is known of a request's formula, along a dimension of the output or with an index of a total."""
    changing: set[Value] = set()
    uniform = uniform_parts(root)
    for node in parts(root):
        if goes_up(node, along) or any(each in changing for each in node.operands()):
            changing.add(node)

    def is_one(node: Value) -> bool:
        if isinstance(node, Constant):
            return node.type != BOOL and node.value == 1
        return node in uniform and node.type != BOOL and evaluator(node)(numbers) == 1

    return Along(lambda node: goes_up(node, along), changing.__contains__, is_one)


def vector_width(root: Value, numbers: Numbers, made: TensorDesc) -> int:
    """How many neighbours along a row of an output one thread computes."""
    nodes = list(parts(root))
    operations = sum(isinstance(node, Operation) for node in nodes)
    if operations > MOST_OPERATIONS or any(isinstance(node, Total) for node in nodes):
        return 1
    along = going_along(root, made.rank - 1, numbers)
    found = [node.stored.bytes for node in nodes if isinstance(node, Element) and along.first(node, lambda _: "")]
    if not any(isinstance(node, Element) for node in nodes):
        return 1
    return fitting(ACCESS_BYTES // max([made.DataType.bytes, *found]), made.Sizes[-1])


def fitting(width: int, size: int) -> int:
    """The most neighbours, at most `width`, of which threads compute no more than a fourth beyond a row."""
    while width > 1 and -(-size // width) * width * 3 > 4 * size:
        width //= 2
    return width
