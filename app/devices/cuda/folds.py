"""How totals are made on a GPU: what a thread keeps while it meets terms, and how threads join what they have."""

import math
from dataclasses import dataclass

import numpy as np

from app.devices.cuda.c_types import C_TYPES, convert, literal
from app.formula.coordinates import Total, accumulated_type
from app.formula.uniform import typed
from app.formula.values import FLOAT32, Number, integer_range, is_float

CHOICE = r"""
/* Where the best of some terms is, and which it is. */
template <class T, class I> struct spot { T value; I at; };
/* NaN before numbers, the better before the worse, and of equals the first or the last. */
template <bool LEAST, bool LAST, class T, class I> DEVICE spot<T, I> chosen(spot<T, I> a, spot<T, I> b)
{
    bool nan_a = a.value != a.value, nan_b = b.value != b.value;
    if (nan_a != nan_b) return nan_a ? a : b;
    if (!nan_a && a.value != b.value) return (a.value > b.value) != LEAST ? a : b;
    return (a.at < b.at) != LAST ? a : b;
}
template <class T> DEVICE unsigned ordered(T x) { return (unsigned)x ^ ((T)-1 < (T)0 ? 0x80000000u : 0u); }
DEVICE unsigned ordered(float x)
{
    unsigned bits = bits_of_float(x == 0.0f ? 0.0f : x);
    return bits ^ (bits >> 31 ? ~0u : 0x80000000u);
}
/* The same of values of at most 32 bits as a number: the chosen one has the largest. */
template <bool LEAST, bool LAST, class T> DEVICE unsigned long long key_of(spot<T, unsigned> a)
{
    unsigned order = a.value != a.value ? ~0u : LEAST ? ~ordered(a.value) : ordered(a.value);
    return (unsigned long long)order << 32 | (LAST ? a.at : ~a.at);
}
template <bool LAST> DEVICE unsigned place_of(unsigned long long key) { return LAST ? (unsigned)key : ~(unsigned)key; }
template <class T> DEVICE T most_of(T a, T b) { return a > b || a != a ? a : b; }
template <class T> DEVICE T least_of(T a, T b) { return a < b || a != a ? a : b; }
#if __CUDA_ARCH__ >= 800
DEVICE float most_of(float a, float b)
{
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
}
DEVICE float least_of(float a, float b)
{
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
}
#endif
"""


@dataclass(frozen=True, slots=True)
class Fold:
    """A total of type `kind`, which begins as `start`; an `update` in each turn; and what threads join: `pack` of it,
    of type `packed`, `joined` of the names a and b."""

    kind: str
    start: str
    update: str
    packed: str
    pack: str
    joined: str
    before: str
    """What stands before a packed one in the expression of the total's value,"""
    after: str
    """and after it."""
    settle: str = ""
    """What is done after some updates, before there are too many."""
    stored: str = ""
    """The type of a packed one in memory, if that is another,"""
    store: str = "{}"
    """how that is made of it,"""
    load: str = "{}"
    """and it of that."""

    def result(self, packed: str) -> str:
        """The total's value."""
        return f"{self.before}{packed}{self.after}"

    @property
    def in_memory(self) -> str:
        """The type of a packed one there."""
        return self.stored or self.packed

    def kept(self, packed: str) -> str:
        """What is stored of a packed one."""
        return self.store.format(packed)

    def taken(self, stored: str) -> str:
        """The packed one that was stored."""
        return self.load.format(stored)


def is_position(node: Total) -> bool:
    """Whether it says which term, not what its value is."""
    return node.name.startswith(("first", "last"))


def fold_of(node: Total, made: str, value: str, at: str, place: str) -> Fold:
    """The total `made` of an argument's `value`, the combination that is number `at`, a `place`, which is a C type."""
    type_ = accumulated_type(node)
    kind, least = C_TYPES[type_], node.name.endswith("minimum")
    if is_position(node):
        return _position(node, made, value, at, place)
    if node.name in ("maximum", "minimum"):
        extreme = "least_of" if least else "most_of"
        start, update = _worst(type_, least=least), f"{made} = {extreme}({made}, {value});"
        join = f"{extreme}(a, b)"
    else:
        operator, start = ("+", "0") if node.name == "sum" else ("*", "1")
        wide = "unsigned long long" if np.dtype(type_).itemsize == 8 else "unsigned"
        wide = kind if is_float(type_) else wide  # integers wrap around, which only unsigned ones may do in C++
        update = f"{made} = ({kind})(({wide}){made} {operator} ({wide}){value});"
        join = f"({kind})(({wide})a {operator} ({wide})b)"
    before, _, after = convert("$", type_, node.type).partition("$")
    return Fold(kind, start, update, kind, made, join, before, after)


def real_fold(node: Total, made: str, update: str) -> Fold:
    """The sum or product `made` of floats, without float64, with an `update` in each turn."""
    kind, is_sum = "real_sum<NEAR>", node.name == "sum"
    start = f"real<NEAR>({'0.0f' if is_sum else '1.0f'}, 0.0f)"
    before, after = "total_of(", f", {'few' if is_sum else 'false'}, far)"
    if node.type == FLOAT32:
        before = "narrowed_total("
    settle = f"settle({made});" if is_sum else ""
    together = "joined(a, b)" if is_sum else "times(a, b, far)"
    store = f"kept(total_of({{}}, {'few' if is_sum else 'false'}, far))"
    return Fold(
        kind, start, update, kind, made, together, before, after, settle, "kept_sum", store, "taken<NEAR>({}, far)"
    )


def _position(node: Total, made: str, value: str, at: str, place: str) -> Fold:
    """Terms come in order. Who has met none has the worst value at 0, which is right if all are that."""
    type_ = accumulated_type(node)
    least, last = node.name.endswith("minimum"), node.name.startswith("last")
    best = f"{made}.value"
    is_better = f"!({value} {'>' if least else '<'}{'' if last else '='} {best})"
    if is_float(type_):
        is_better += f" && ({best} == {best}{f' || {value} != {value}' if last else ''})"
    kind = f"spot<{C_TYPES[type_]}, {place}>"
    start = f"{{{_worst(type_, least=least)}, 0}}"
    update = f"if ({is_better}) {{ {best} = {value}; {made}.at = {at}; }}"
    flags = f"<{_truth(least)}, {_truth(last)}>"
    if np.dtype(type_).itemsize <= 4 and place == "unsigned":
        key, before = "unsigned long long", f"(long long)place_of<{_truth(last)}>("
        return Fold(kind, start, update, key, f"key_of{flags}({made})", "a > b ? a : b", before, ")")
    return Fold(kind, start, update, kind, made, f"chosen{flags}(a, b)", "(long long)", ".at")


def _worst(type_: str, *, least: bool) -> str:
    """What all others are better than."""
    worst: Number = math.inf if least else -math.inf
    return literal(typed(type_, worst if is_float(type_) else integer_range(type_)[least]))


def _truth(value: bool) -> str:
    return "true" if value else "false"
