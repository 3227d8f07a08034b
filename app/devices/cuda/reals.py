"""What stands for float64 in C++ where formulas compute elements: NEAR a float, or a pair of two where there is more to
say than a float holds; else a wide, which has the range of float64 and more.

Most elements are near, and what they need float64 for is the last digits alone: the small part of a product, a quotient
or a sum, which a function of it takes in by its derivative, exp(p + e) being exp(p) (1 + e). That is a few
instructions, of which the compiler drops those of parts that nobody asks for. Numbers that would overflow, or of which
float32 would lose digits because they are subnormal, are `far`: the same formula is then computed again with wides.
What functions of float32 return is a float, exact to 2 ULP, as `app/formula/values.py` says.
"""

_CORE = r"""
/* far: what is not between 2^-100 and 2^100, where products and their rests are ordinary numbers. Zeros are near. */
DEVICE bool is_large(float x) { return !(fabsf(x) <= 0x1p+100f); }
DEVICE bool is_small(float x) { return fabsf(x) < 0x1p-100f; }
DEVICE bool is_beyond(float x) { return is_large(x) | (is_small(x) & (x != 0.0f)); }

template <bool NEAR> DEVICE auto real(float x) { if constexpr (NEAR) return x; else return widened(x); }
template <bool NEAR> DEVICE auto real(float hi, float lo)
{
    if constexpr (NEAR) return pair{hi, lo};
    else return normal(hi, lo, 0);
}
template <bool NEAR, class T> DEVICE auto real_of_integer(T n, bool& far)
{
    if constexpr (NEAR) {
        far |= n > (1 << 24) || n < -(1 << 24);
        return (float)n;
    } else {
        pair made = pair_of_integer(n);
        return normal(made.hi, made.lo, 0);
    }
}
DEVICE pair as_pair(float x) { return pair{x, -0.0f}; } /* which added to -0 leaves it */
DEVICE pair as_pair(pair x) { return x; }
/* What is rounded to a float, also where it is subnormal, and NaN or infinite if it is not ordinary. */
DEVICE pair as_pair(wide x)
{
    float hi = narrowed(wide{x.hi, 0.0f, x.e});
    return pair{hi, hi == 0.0f || !is_number(hi) ? -0.0f : narrowed(normal(x.lo, 0.0f, x.e))};
}
DEVICE wide as_wide(float x) { return widened(x); }
DEVICE wide as_wide(pair x) { return normal(x.hi, x.lo, 0); }
DEVICE wide as_wide(wide x) { return x; }
DEVICE float narrowed(float x) { return x; }
DEVICE float narrowed(pair x) { return x.hi + x.lo; }

DEVICE float negated(float x) { return opposite(x); }
DEVICE pair negated(pair x) { return negative(x); }
DEVICE wide negated(wide x) { return negative(x); }
DEVICE bool is_nan(float x) { return x != x; }
DEVICE bool is_nan(pair x) { return x.hi != x.hi; }
DEVICE bool is_nan(wide x) { return x.hi != x.hi; }
DEVICE bool is_less(float a, float b) { return a < b; }
DEVICE bool is_less(pair a, pair b) { return (a.hi - b.hi) + (a.lo - b.lo) < 0.0f; }
DEVICE bool is_less(pair a, float b) { return is_less(a, as_pair(b)); }
DEVICE bool is_less(float a, pair b) { return is_less(as_pair(a), b); }
DEVICE bool is_less(wide a, wide b) { return plus(a, negative(b)).hi < 0.0f; }
template <class A, class B> DEVICE bool is_equal(A a, B b)
{
    return is_less(a, b) == is_less(b, a) && !is_nan(a) && !is_nan(b);
}
DEVICE float chosen(bool first, float a, float b) { return first ? a : b; }
DEVICE pair chosen(bool first, pair a, pair b) { return pair{first ? a.hi : b.hi, first ? a.lo : b.lo}; }
DEVICE pair chosen(bool first, pair a, float b) { return chosen(first, a, as_pair(b)); }
DEVICE pair chosen(bool first, float a, pair b) { return chosen(first, as_pair(a), b); }
DEVICE wide chosen(bool first, wide a, wide b) { return first ? a : b; }
DEVICE float magnitude(float a) { return fabsf(a); }
DEVICE pair magnitude(pair a) { return pair{fabsf(a.hi), a.hi < 0.0f ? -a.lo : a.lo}; }
DEVICE wide magnitude(wide a) { return wide{fabsf(a.hi), a.hi < 0.0f ? -a.lo : a.lo, a.e}; }
template <class A, class B> DEVICE auto larger_of(A a, B b) { return chosen(is_less(b, a) | is_nan(a), a, b); }
template <class A, class B> DEVICE auto smaller_of(A a, B b) { return chosen(is_less(a, b) | is_nan(a), a, b); }

DEVICE pair plus(float a, float b, bool& far)
{
    pair s = two_sum(a, b);
    far |= is_large(s.hi);
    return s;
}
DEVICE pair plus(pair a, pair b, bool& far)
{
    pair s = plus(a, b);
    far |= is_large(s.hi);
    return s;
}
DEVICE pair plus(pair a, float b, bool& far)
{
    pair s = two_sum(a.hi, b);
    far |= is_large(s.hi);
    return quick_sum(s.hi, s.lo + a.lo);
}
DEVICE pair plus(float a, pair b, bool& far) { return plus(b, a, far); }
DEVICE wide plus(wide a, wide b, bool&) { return plus(a, b); }
template <class A, class B> DEVICE auto minus(A a, B b, bool& far) { return plus(a, negated(b), far); }

/* The rest of a product is written so that -0 + it is -0. */
DEVICE pair times(float a, float b, bool& far)
{
    float p = a * b;
    far |= is_large(p) | (is_small(p) & (a != 0.0f) & (b != 0.0f));
    return pair{p, -fmaf(-a, b, p)};
}
DEVICE pair times(pair a, float b, bool& far)
{
    pair p = times(a.hi, b, far);
    return pair{p.hi, fmaf(a.lo, b, p.lo)};
}
DEVICE pair times(float a, pair b, bool& far) { return times(b, a, far); }
DEVICE pair times(pair a, pair b, bool& far)
{
    pair p = times(a.hi, b.hi, far);
    return quick_sum(p.hi, fmaf(a.hi, b.lo, fmaf(a.lo, b.hi, p.lo)));
}
DEVICE wide times(wide a, wide b, bool&) { return times(a, b); }
template <class A, class B, class C> DEVICE auto times_plus(A a, B b, C c, bool& far)
{
    return plus(times(a, b, far), c, far);
}

/* A quotient by the reciprocal is within 2 ULP, and its rest makes up for that. */
DEVICE pair over(float a, float b, bool& far)
{
    float inverse = reciprocal_of_normal(b), q = a * inverse;
    far |= is_large(q) | ((is_small(q) | is_small(a)) & (a != 0.0f));
    return quick_sum(q, -fmaf(q, b, -a) * inverse);
}
DEVICE pair over(float a, pair b, bool& far)
{
    float inverse = reciprocal_of_normal(b.hi), q = a * inverse;
    far |= is_large(q) | ((is_small(q) | is_small(a)) & (a != 0.0f));
    return quick_sum(q, -fmaf(q, b.lo, fmaf(q, b.hi, -a)) * inverse);
}
DEVICE pair over(pair a, float b, bool& far)
{
    float inverse = reciprocal_of_normal(b), q = a.hi * inverse;
    far |= is_large(q) | ((is_small(q) | is_small(a.hi)) & (a.hi != 0.0f));
    return quick_sum(q, (a.lo - fmaf(q, b, -a.hi)) * inverse);
}
DEVICE pair over(pair a, pair b, bool& far)
{
    float inverse = reciprocal_of_normal(b.hi), q = a.hi * inverse;
    far |= is_large(q) | ((is_small(q) | is_small(a.hi)) & (a.hi != 0.0f));
    return quick_sum(q, (a.lo - fmaf(q, b.lo, fmaf(q, b.hi, -a.hi))) * inverse);
}
DEVICE wide over(wide a, wide b, bool&) { return over(a, b); }

/* The same rounded to a float, of which most need less, and floats alone nothing but the operation. */
DEVICE float narrowed_plus(float a, float b, bool&) { return a + b; }
DEVICE float narrowed_plus(pair a, float b, bool& far)
{
    pair s = two_sum(a.hi, b);
    far |= is_large(s.hi);
    return s.hi + (s.lo + a.lo);
}
DEVICE float narrowed_plus(float a, pair b, bool& far) { return narrowed_plus(b, a, far); }
DEVICE float narrowed_plus(pair a, pair b, bool& far) { return narrowed_plus(pair{a.hi, a.lo + b.lo}, b.hi, far); }
DEVICE float narrowed_plus(wide a, wide b, bool&) { return narrowed(plus(a, b)); }
/* The same where float16's digits will do. */
DEVICE float minus_half(float a, pair b) { return (a - b.hi) - b.lo; }
DEVICE float minus_half(wide a, wide b) { return narrowed(plus(a, negative(b))); }
template <class A, class B> DEVICE float narrowed_minus(A a, B b, bool& far)
{
    return narrowed_plus(a, negated(b), far);
}
/* Which the sum of a product's parts, of which one is 0 and none, may have lost. */
DEVICE float with_sign_of(float p, float a, float b)
{
    return float_of_bits((bits_of_float(p) & 0x7fffffffu) | ((bits_of_float(a) ^ bits_of_float(b)) & 0x80000000u));
}
DEVICE float narrowed_times(float a, float b, bool&) { return a * b; }
DEVICE float narrowed_times(pair a, float b, bool& far)
{
    float p = fmaf(a.hi, b, a.lo * b);
    far |= is_large(p); /* the parts may have overflowed apart */
    return with_sign_of(p, a.hi, b);
}
DEVICE float narrowed_times(float a, pair b, bool& far) { return narrowed_times(b, a, far); }
DEVICE float narrowed_times(pair a, pair b, bool& far)
{
    float p = fmaf(a.hi, b.hi, fmaf(a.hi, b.lo, a.lo * b.hi));
    far |= is_large(p);
    return with_sign_of(p, a.hi, b.hi);
}
DEVICE float narrowed_times(wide a, wide b, bool&) { return narrowed(times(a, b)); }
DEVICE float narrowed_over(float a, float b, bool&) { return a / b; }
template <class A, class B> DEVICE float narrowed_over(A a, B b, bool& far) { return narrowed(over(a, b, far)); }
DEVICE float narrowed_times_plus(float a, float b, float c, bool&) { return fmaf(a, b, c); }
template <class A, class B, class C> DEVICE float narrowed_times_plus(A a, B b, C c, bool& far)
{
    return narrowed_plus(times(a, b, far), c, far);
}
"""
"""Over WIDES."""

_HALF_OF = r"""
/* Rounded once: the float's last bit is made odd before, unless nothing is beyond. */
DEVICE half_bits half_of(float x) { return half_of_float(x); }
DEVICE half_bits half_of(pair x)
{
    pair y = quick_sum(x.hi, x.lo);
    unsigned bits = bits_of_float(y.hi);
    if (y.lo != 0.0f && y.hi != 0.0f && is_number(y.hi)) bits = (bits - ((y.hi < 0.0f) != (y.lo < 0.0f))) | 1u;
    return half_of_float(float_of_bits(bits));
}
DEVICE half_bits half_of(wide x) { return half_of(as_pair(x)); }
/* a b + c, of the two floats around which one is odd. */
DEVICE half_bits half_of_sum(float a, float b, float c, bool&)
{
    float low = product_plus_down(a, b, c), high = product_plus_up(a, b, c);
    return half_of_float(bits_of_float(low) & 1u ? low : high);
}
template <class A, class B, class C> DEVICE half_bits half_of_sum(A a, B b, C c, bool& far)
{
    return half_of(times_plus(a, b, c, far));
}
"""

_SATURATED = r"""
/* Truncated toward zero, in 8 or 16 bits. */
template <int LEAST, int MOST> DEVICE int saturated(float x)
{
    return x != x ? 0 : x <= (float)LEAST ? LEAST : x >= (float)MOST ? MOST : (int)x;
}
template <int LEAST, int MOST> DEVICE int saturated(pair x)
{
    pair y = quick_sum(x.hi, x.lo);
    float whole = truncf(y.hi), toward = y.hi < 0.0f ? 1.0f : -1.0f;
    return saturated<LEAST, MOST>(whole == y.hi && y.lo * toward > 0.0f ? whole + toward : whole);
}
template <int LEAST, int MOST> DEVICE int saturated(wide x) { return saturated<LEAST, MOST>(as_pair(x)); }
"""

_SCALED_SOFTPLUS = r"""
/* alpha ln(1 + exp(beta x)) for |alpha| up to 2, which magnifies nothing that is subnormal. */
template <bool NEAR> DEVICE float scaled_softplus(float alpha, float beta, float x, bool& far)
{
    if (!NEAR) {
        wide z = times(widened(beta), widened(x)), more = log1p_of(exp_of(negative(magnitude(z))), far);
        return narrowed(times(widened(alpha), plus(larger_of(z, widened(0.0f)), more)));
    }
    float z = beta * x, rest = fmaf(beta, x, -z), u = expf(-fabsf(z));
    far |= is_large(z);
    return alpha * (fmaxf(z, 0.0f) + log1pf(z < 0.0f ? fmaf(u, rest, u) : u));
}
DEVICE float scaled_softplus(float alpha, float beta, float x)
{
    bool far = false;
    float made = scaled_softplus<true>(alpha, beta, x, far);
    return far ? scaled_softplus<false>(alpha, beta, x, far) : made;
}
"""

_TINY = "is_ordinary(a) && a.e < -60"


def _through_float(name: str, of_tiny: str, of_huge: str = "", huge: int = 60) -> str:
    """A function of a wide by that of a float or a pair, and by what it is where these do not reach, from 2^huge on."""
    beyond = f"    if (is_ordinary(a) && a.e >= {huge}) return {of_huge};\n" if of_huge else ""
    return f"""
OUT_OF_LINE wide {name}(wide a, bool&)
{{
    if ({_TINY}) return {of_tiny};
{beyond}    bool far = false;
    pair x = as_pair(a);
    return widened(x.lo == 0.0f ? {name}(x.hi, far) : {name}(x, far));
}}
"""


def _steady(name: str, function: str, of_tiny: str = "a", of_huge: str = "") -> str:
    """A function that magnifies no rounding of what it is of."""
    return (
        f"DEVICE float {name}(float x, bool&) {{ return {function}(x); }}\n"
        f"DEVICE float {name}(pair x, bool&) {{ return {function}(narrowed(x)); }}\n"
        f"{_through_float(name, of_tiny, of_huge)}"
    )


def _whole(name: str, of_tiny: str) -> str:
    return f"""
DEVICE float {name}_of(float x, bool&) {{ return {name}f(x); }}
DEVICE pair {name}_of(pair x, bool&)
{{
    pair y = quick_sum(x.hi, x.lo);
    float whole = {name}f(y.hi), unseen = float_of_bits(bits_of_float(y.hi) & 0x7f800000u) * 0x1p-53f; /* by float64 */
    float rest = fabsf(y.lo) <= unseen ? -0.0f : y.lo;
    return pair{{whole, whole == y.hi ? {name}f(rest) : -0.0f}};
}}
OUT_OF_LINE wide {name}_of(wide x, bool& far)
{{
    if (!is_ordinary(x) || x.e > 60) return x;
    if (x.e < -60) return widened(x.{of_tiny});
    pair y = {name}_of(as_pair(x), far);
    y = quick_sum(y.hi, y.lo);
    return normal(y.hi, y.lo, 0);
}}
"""


def _exponential(name: str, of_huge: str, of_tiny: str) -> str:
    """What far from 0 is as good as an exponential, and near it magnifies nothing."""
    return f"""
DEVICE float {name}_of(float x, bool&) {{ return {name}f(x); }}
DEVICE float {name}_of(pair x, bool& far)
{{
    float y = {name}f(x.hi);
    far |= is_large(y);
    return fmaf(fabsf(y), {"x.lo" if name == "sinh" else "x.hi < 0.0f ? -x.lo : x.lo"}, y);
}}
{_through_float(f"{name}_of", of_tiny, of_huge, 5)}"""


_ARCS = r"""
/* 1 - |x|, to the last digit. */
DEVICE float left_of_one(pair x) { return (1.0f - fabsf(x.hi)) - (x.hi < 0.0f ? -x.lo : x.lo); }
/* asin(x) for |x| up to a half, else asin(sqrt((1 - |x|) / 2)), from which twice it is to a right angle. */
DEVICE float arc_of(pair x, bool& of_rest)
{
    float y = narrowed(x);
    of_rest = !(fabsf(y) <= 0.5f);
    return asinf(of_rest ? sqrtf(left_of_one(x) * 0.5f) : y);
}
"""

REALS: dict[str, tuple[tuple[str, ...], str]] = {
    "reals": (("wide",), _CORE),
    "half_of": ((), _HALF_OF),
    "saturated": ((), _SATURATED),
    "arcs": ((), _ARCS),
    "exp_of": (
        ("exponentials",),
        r"""
DEVICE float exp_of(float x, bool& far)
{
    float e = expf(x);
    far |= is_large(e) | (e < 0x1p-126f);
    return e;
}
DEVICE float exp_of(pair x, bool& far)
{
    float e = exp_of(x.hi, far);
    return fmaf(e, x.lo, e);
}
DEVICE wide exp_of(wide x, bool&) { return exp_of(x); }
""",
    ),
    "expm1_of": (
        ("exponentials",),
        r"""
DEVICE float expm1_of(float x, bool& far)
{
    float e = expm1f(x);
    far |= is_large(e);
    return e;
}
DEVICE float expm1_of(pair x, bool& far)
{
    float e = expm1_of(x.hi, far);
    return fmaf(x.lo, e + 1.0f, e);
}
OUT_OF_LINE wide expm1_of(wide x, bool&)
{
    if (x.hi != x.hi || x.hi == 0.0f || (is_number(x.hi) && x.e < -60)) return x;
    if (!is_number(x.hi) || x.e >= 9) return widened(x.hi > 0.0f ? INFINITE : -1.0f);
    int n;
    float scale = two_to(x.e);
    pair e = expm1_reduced(x.hi * scale, x.lo * scale, n);
    return n == 0 ? normal(e.hi, e.lo, 0) : plus(widened(-1.0f), exp_of(x));
}
""",
    ),
    "expm1_of_negative_real": (
        ("expm1_of_negative", "expm1_of"),
        r"""
DEVICE float expm1_of_negative_real(float x, bool&) { return expm1_of_negative(x); }
DEVICE float expm1_of_negative_real(pair x, bool&)
{
    float e = expm1_of_negative(x.hi);
    return fmaf(x.lo, e + 1.0f, e);
}
DEVICE wide expm1_of_negative_real(wide x, bool& far) { return expm1_of(x, far); }
""",
    ),
    "log_of": (
        ("logarithm",),
        r"""
DEVICE float log_of(float x, bool&) { return logf(x); }
DEVICE float log_of(pair x, bool&)
{
    float y = logf(x.hi);
    return x.lo == 0.0f ? y : fmaf(x.lo, reciprocal_of_normal(x.hi), y);
}
DEVICE wide log_of(wide x, bool&) { return log_of(x); }
""",
    ),
    "sqrt_of": (
        (),
        r"""
DEVICE pair sqrt_of(pair x, bool& far)
{
    float s = sqrt_approx(x.hi);
    far |= is_beyond(x.hi);
    return pair{s, s == 0.0f ? s : (fmaf(-s, s, x.hi) + x.lo) * (0.5f * reciprocal_of_normal(s))};
}
DEVICE pair sqrt_of(float x, bool& far) { return sqrt_of(as_pair(x), far); }
OUT_OF_LINE wide sqrt_of(wide x, bool&)
{
    if (!is_ordinary(x) || x.hi < 0.0f) return widened(sqrtf(x.hi));
    bool far = false;
    float scale = x.e & 1 ? 2.0f : 1.0f;
    pair s = sqrt_of(pair{x.hi * scale, x.lo * scale}, far);
    return normal(s.hi, s.lo, x.e >> 1);
}
""",
    ),
    "power_of_one": (
        ("power_of_wide",),
        r"""
/* Of a number that is no result, to 2^-30, whatever is subtracted from it. */
DEVICE pair power_of_one(float x, float y, bool&) { return as_pair(power_of(widened(x), y)); }
DEVICE wide power_of_one(wide x, wide y, bool&) { return power_of(x, narrowed(y)); }
""",
    ),
    "power_of_result": (
        ("power_of_each",),
        r"""
DEVICE float power_of_result(pair x, float y, bool& far)
{
    float made = power_of_each<true>(x.hi, y, far);
    return fmaf(made, y * (x.lo * reciprocal_of_normal(x.hi)), made);
}
DEVICE float power_of_result(float x, float y, bool& far) { return power_of_each<true>(x, y, far); }
DEVICE wide power_of_result(wide x, wide y, bool&) { return power_of(x, narrowed(y)); }
""",
    ),
    "log1p_of": ((), _steady("log1p_of", "log1pf")),
    "tanh_of": (
        (),
        r"""
DEVICE float tanh_of(float x, bool&) { return tanhf(x); }
DEVICE float tanh_of(pair x, bool&)
{
    float t = tanhf(x.hi);
    return fmaf(x.lo, fmaf(-t, t, 1.0f), t);
}
"""
        + _through_float("tanh_of", "a"),
    ),
    "scaled_softplus": (("exponentials", "log1p_of"), _SCALED_SOFTPLUS),
    "erf_of": ((), _steady("erf_of", "erff", "times(a, normal(0x1.20dd76p+0f, -0x1.f7ac92p-25f, 0))")),
    "atan_of": ((), _steady("atan_of", "atanf")),
    "asinh_of": (
        ("logarithm",),
        _steady("asinh_of", "asinhf", of_huge="log_of_twice(a)"),
    ),
    "acosh_of": (
        ("logarithm",),
        r"""
DEVICE float acosh_of(float x, bool&) { return acoshf(x); }
DEVICE float acosh_of(pair x, bool&)
{
    float d = (x.hi - 1.0f) + x.lo;
    return log1pf(d + sqrtf(d) * sqrtf(d + 2.0f));
}
"""
        + _through_float("acosh_of", "widened(NOT_A_NUMBER)", "a.hi < 0.0f ? widened(NOT_A_NUMBER) : log_of_twice(a)"),
    ),
    "atanh_of": (
        ("arcs",),
        r"""
DEVICE float atanh_of(float x, bool&) { return atanhf(x); }
DEVICE float atanh_of(pair x, bool&)
{
    return copysignf(0.5f * log1pf(2.0f * fabsf(narrowed(x)) / left_of_one(x)), x.hi);
}
"""
        + _through_float("atanh_of", "a"),
    ),
    "asin_of": (
        ("arcs",),
        r"""
DEVICE float asin_of(float x, bool&) { return asinf(x); }
DEVICE float asin_of(pair x, bool&)
{
    bool of_rest;
    float y = arc_of(x, of_rest);
    return of_rest ? copysignf((0x1.921fb6p+0f - 2.0f * y) - 0x1.777a5cp-25f, x.hi) : y;
}
"""
        + _through_float("asin_of", "a"),
    ),
    "acos_of": (
        ("arcs",),
        r"""
DEVICE float acos_of(float x, bool&) { return acosf(x); }
DEVICE float acos_of(pair x, bool&)
{
    bool of_rest;
    float y = arc_of(x, of_rest), twice = 2.0f * y;
    if (!of_rest) return (0x1.921fb6p+0f - y) - 0x1.777a5cp-25f;
    return x.hi < 0.0f ? (0x1.921fb6p+1f - twice) - 0x1.777a5cp-24f : twice;
}
"""
        + _through_float("acos_of", "widened(0x1.921fb6p+0f)"),
    ),
    "sinh_of": (
        ("exponentials",),
        _exponential("sinh", "a.hi < 0.0f ? negative(half_exp_of(negative(a))) : half_exp_of(a)", "a"),
    ),
    "cosh_of": (("exponentials",), _exponential("cosh", "half_exp_of(magnitude(a))", "widened(1.0f)")),
    "floor_of": ((), _whole("floor", "hi < 0.0f ? -1.0f : 0.0f")),
    "ceil_of": ((), _whole("ceil", "hi > 0.0f ? 1.0f : -0.0f")),
}
"""By name, what else each needs, and its source: of a float, of a pair, and of a wide."""
