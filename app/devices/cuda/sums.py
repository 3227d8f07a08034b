"""Sums without float64, in C++: each addition's loss is kept beside the sum, in a second float.

A kernel with such sums is computed by NEAR first, which has pairs, and once more by wides, which have the range of
float64, if it was too `far` for that. `few` says that terms were lost because they are small: this matters if their
sum is small, too.
"""

from collections.abc import Sequence

SUMS = r"""
template <bool> struct type_of_sum { typedef pair type; };
template <> struct type_of_sum<false> { typedef wide type; };
template <bool NEAR> using real_sum = typename type_of_sum<NEAR>::type;
DEVICE void add_to(pair& sum, float x)
{
    pair s = two_sum(sum.hi, x);
    sum = pair{s.hi, sum.lo + s.lo};
}
DEVICE void add_to(pair& sum, pair x)
{
    pair s = two_sum(sum.hi, x.hi);
    sum = pair{s.hi, sum.lo + (s.lo + x.lo)};
}
DEVICE void add_to(wide& sum, wide x) { sum = plus(sum, x); }
/* A product is exact, or its rest is of what is no longer normal: it is one of `few` then. */
DEVICE bool is_lost(float p, float a, float b) { return is_small(p) & (a != 0.0f) & (b != 0.0f); }
DEVICE void add_product_to(pair& sum, float a, float b, bool& few)
{
    float p = a * b;
    few |= is_lost(p, a, b);
    add_to(sum, pair{p, fmaf(a, b, -p)});
}
DEVICE void add_product_to(pair& sum, pair a, float b, bool& few)
{
    float p = a.hi * b;
    few |= is_lost(p, a.hi, b);
    add_to(sum, pair{p, fmaf(a.lo, b, fmaf(a.hi, b, -p))});
}
DEVICE void add_product_to(pair& sum, float a, pair b, bool& few) { add_product_to(sum, b, a, few); }
DEVICE void add_product_to(pair& sum, pair a, pair b, bool& few)
{
    float p = a.hi * b.hi;
    few |= is_lost(p, a.hi, b.hi);
    add_to(sum, pair{p, fmaf(a.hi, b.lo, fmaf(a.lo, b.hi, fmaf(a.hi, b.hi, -p)))});
}
DEVICE void add_product_to(wide& sum, wide a, wide b, bool&) { sum = plus(sum, times(a, b)); }
DEVICE void add_square_to(pair& sum, float a, bool& few)
{
    float p = a * a;
    few |= is_small(p) & (a != 0.0f);
    add_to(sum, pair{p, fmaf(a, a, -p)});
}
DEVICE void add_square_to(pair& sum, pair a, bool& few)
{
    float p = a.hi * a.hi;
    few |= is_small(p) & (a.hi != 0.0f);
    add_to(sum, pair{p, fmaf(a.hi + a.hi, a.lo, fmaf(a.hi, a.hi, -p))});
}
DEVICE void add_square_to(wide& sum, wide a, bool&) { sum = plus(sum, times(a, a)); }
/* A difference that is multiplied: hi may be no larger than lo, and neither is looked at before. */
struct loose { float hi, lo; DEVICE_MEMBER operator pair() const { return quick_sum(hi, lo); } };
DEVICE loose apart(float a, float b) { pair s = two_sum(a, -b); return loose{s.hi, s.lo}; }
DEVICE loose apart(float a, pair b) { pair s = two_sum(a, -b.hi); return loose{s.hi, s.lo - b.lo}; }
DEVICE loose apart(pair a, float b) { pair s = two_sum(a.hi, -b); return loose{s.hi, s.lo + a.lo}; }
DEVICE loose apart(pair a, pair b) { pair s = two_sum(a.hi, -b.hi); return loose{s.hi, s.lo + (a.lo - b.lo)}; }
DEVICE wide apart(wide a, wide b) { return plus(a, negative(b)); }
DEVICE pair as_pair(loose x) { return x; }
DEVICE wide as_wide(loose x) { return as_wide(as_pair(x)); }
DEVICE float narrowed(loose x) { return x.hi + x.lo; }
DEVICE loose times(loose a, float b, bool& far)
{
    float p = a.hi * b;
    far |= is_lost(p, a.hi, b);
    return loose{p, fmaf(a.lo, b, fmaf(a.hi, b, -p))};
}
DEVICE loose times(float a, loose b, bool& far) { return times(b, a, far); }
DEVICE loose times(loose a, pair b, bool& far)
{
    float p = a.hi * b.hi;
    far |= is_lost(p, a.hi, b.hi);
    return loose{p, fmaf(a.lo, b.hi, fmaf(a.hi, b.lo, fmaf(a.hi, b.hi, -p)))};
}
DEVICE loose times(pair a, loose b, bool& far) { return times(b, a, far); }
DEVICE pair times(loose a, loose b, bool& far) { return times(as_pair(a), as_pair(b), far); }
DEVICE float narrowed_times(loose a, float b, bool& far)
{
    float p = fmaf(a.hi, b, a.lo * b);
    far |= is_large(p);
    return p;
}
DEVICE float narrowed_times(float a, loose b, bool& far) { return narrowed_times(b, a, far); }
DEVICE float narrowed_times(loose a, pair b, bool& far)
{
    float p = fmaf(a.hi, b.hi, fmaf(a.hi, b.lo, a.lo * b.hi));
    far |= is_large(p);
    return p;
}
DEVICE float narrowed_times(pair a, loose b, bool& far) { return narrowed_times(b, a, far); }
DEVICE float narrowed_times(loose a, loose b, bool& far) { return narrowed_times(as_pair(a), as_pair(b), far); }
/* a b + c as exact as these two terms are. */
DEVICE float narrowed_terms(loose a, float b, float c, bool& far)
{
    float y = fmaf(a.hi, b, fmaf(a.lo, b, c));
    far |= is_large(y);
    return y;
}
DEVICE float narrowed_terms(loose a, pair b, float c, bool& far)
{
    float y = fmaf(a.hi, b.hi, fmaf(a.hi, b.lo, fmaf(a.lo, b.hi, c)));
    far |= is_large(y);
    return y;
}
template <class A, class B, class C> DEVICE float narrowed_terms(A a, B b, C c, bool& far)
{
    return narrowed_times_plus(a, b, c, far);
}
DEVICE void add_product_to(pair& sum, loose a, float b, bool& few) { add_product_to(sum, pair{a.hi, a.lo}, b, few); }
DEVICE void add_product_to(pair& sum, float a, loose b, bool& few) { add_product_to(sum, b, a, few); }
DEVICE void add_product_to(pair& sum, loose a, pair b, bool& few) { add_product_to(sum, pair{a.hi, a.lo}, b, few); }
DEVICE void add_product_to(pair& sum, pair a, loose b, bool& few) { add_product_to(sum, b, a, few); }
DEVICE void add_product_to(pair& sum, loose a, loose b, bool& few) { add_product_to(sum, as_pair(a), as_pair(b), few); }
DEVICE void add_square_to(pair& sum, loose a, bool& few)
{
    float p = a.hi * a.hi;
    few |= is_small(p) & (a.hi != 0.0f);
    add_to(sum, pair{p, fmaf(a.hi + a.hi, a.lo, fmaf(a.lo, a.lo, fmaf(a.hi, a.hi, -p)))});
}
/* What was lost, added up by itself for some terms, goes to the sum before it is no longer small beside it. */
DEVICE void settle(pair& sum) { sum = quick_sum(sum.hi, sum.lo); }
DEVICE void settle(wide&) {}
DEVICE pair joined(pair a, pair b)
{
    pair s = two_sum(a.hi, b.hi);
    return pair{s.hi, s.lo + (a.lo + b.lo)};
}
DEVICE wide joined(wide a, wide b) { return plus(a, b); }
DEVICE float narrowed_total(pair sum, bool few, bool& far)
{
    far |= is_large(sum.hi) | (few & !(fabsf(sum.hi) >= 0x1p-60f));
    return narrowed(sum);
}
DEVICE float narrowed_total(wide sum, bool, bool&) { return narrowed(sum); }
DEVICE pair total_of(pair sum, bool few, bool& far)
{
    far |= is_large(sum.hi) | (few & !(fabsf(sum.hi) >= 0x1p-60f));
    return quick_sum(sum.hi, sum.lo);
}
DEVICE wide total_of(wide sum, bool, bool&) { return sum; }
/* In memory, where both are wides, pairs with an exponent of 0; stored and loaded at once. */
struct alignas(16) kept_sum { float hi, lo; int e; };
DEVICE kept_sum kept(pair sum) { return kept_sum{sum.hi, sum.lo, 0}; }
DEVICE kept_sum kept(wide sum) { return kept_sum{sum.hi, sum.lo, sum.e}; }
template <bool NEAR> DEVICE real_sum<NEAR> taken(kept_sum sum, bool& far)
{
    if constexpr (NEAR) {
        far |= sum.e != 0;
        return pair{sum.hi, sum.lo};
    } else return normal(sum.hi, sum.lo, sum.e);
}
"""
"""Over REALS."""

TWICE = r"""
template <bool VALUE> struct truth { static constexpr bool value = VALUE; };
/* Whether it is so for any of a group of threads. */
template <int GROUP> DEVICE bool any_of(bool is)
{
    return GROUP == 1 ? is : GROUP <= 32 ? __any_sync(~0u, is) : __syncthreads_or(is);
}
"""
"""For kernels whose bodies are there twice."""


def twice(lines: Sequence[str], group: str) -> list[str]:
    """These lines with NEAR, and without if it was too far for any of a `group` of threads, which may do things
    together in them."""
    body = "\n".join(["constexpr bool NEAR = decltype(nearness)::value;", "bool few = false;", *lines])
    return [
        "bool far = false;",
        "const auto computed = [&](auto nearness)",
        "{\n    " + body.replace("\n", "\n    ") + "\n};",
        "computed(truth<true>());",
        f"if (any_of<{group}>(far)) computed(truth<false>());",
    ]
