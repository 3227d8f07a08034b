"""Quotients rounded to integers, in C++: which one is next is found by integers and by products without rounding."""

ROUNDED_QUOTIENT = r"""
/* What is next to x / s, of two the even one, moved by `zero`, or the end of the range; 0 of NaN. LEAST and MOST are of
   16 bits at most. About which of two it is, an exact product with what is halfway between them decides. */
template <int LEAST, int MOST> DEVICE int rounded_quotient(float x, float s, int zero)
{
    float size = fabsf(s), scale = size < 0x1p-60f ? 0x1p+80f : size > 0x1p+60f ? 0x1p-80f : 1.0f;
    size *= scale;
    x *= s < 0.0f ? -scale : scale;
    float q = size == 0.0f ? x / size : x * reciprocal_of_normal(size);
    bool none = q != q;
    q = q > 0x1p+18f ? 0x1p+18f : q < -0x1p+18f ? -0x1p+18f : q;
    float rounder = (q - 0.5f) + 0x1.8p+23f, halfway = (rounder - 0x1.8p+23f) + 0.5f;
    float beyond = fmaf(-halfway, size, x);
    int n = (int)(bits_of_float(rounder) - 0x4b400000u);
    n += (beyond > 0.0f || (beyond == 0.0f && n & 1)) + zero;
    return none ? 0 : n < LEAST ? LEAST : n > MOST ? MOST : n;
}
"""
"""Over primitives."""

ROUNDED_SUM = r"""
/* a / s = factor * 2^(e - 29), nearly or `exact`; for normal numbers. */
struct share { int factor, e; bool exact; };
DEVICE share share_of(float a, float s)
{
    unsigned a_bits = bits_of_float(a), s_bits = bits_of_float(s);
    float x = float_of_bits((a_bits & 0x807fffffu) | 0x3f800000u);
    float y = float_of_bits((s_bits & 0x807fffffu) | 0x3f800000u);
    float inverse = 1.0f / y, q = x * inverse, rest = fmaf(-q, y, x) * inverse;
    share made;
    made.factor = (int)(q * 0x1p+29f) + (int)rintf(rest * 0x1p+29f);
    made.e = (int)(a_bits >> 23 & 255u) - (int)(s_bits >> 23 & 255u);
    made.exact = (long long)made.factor * (int)(y * 0x1p+23f) == (long long)(int)(x * 0x1p+23f) << 29;
    return made;
}
DEVICE void divide_by_power(share& made, int n)
{
    n = n > 31 ? 31 : n;
    int factor = (made.factor + (int)(1u << n >> 1)) >> n;
    made.exact = made.exact & (int)((unsigned)factor << n) == made.factor;
    made.factor = factor;
}
DEVICE bool is_normal(float x) { return (fabsf(x) >= 0x1p-126f) & (fabsf(x) <= 0x1.fffffep+127f); }
/* What is next to ((a - a_zero) a_scale + (b - b_zero) b_scale) / s otherwise. */
template <int LEAST, int MOST>
OUT_OF_LINE int rounded_sum_far(int a, float a_scale, int b, float b_scale, float s, int zero)
{
    wide sum = plus(times(widened((float)a), widened(a_scale)), times(widened((float)b), widened(b_scale)));
    float q = narrowed(over(sum, widened(s)));
    if (q != q) return 0;
    q = q > 0x1p+18f ? 0x1p+18f : q < -0x1p+18f ? -0x1p+18f : q;
    float below = floorf(q);
    float beyond = plus(sum, negative(times(widened(below + 0.5f), widened(s)))).hi;
    if (s < 0.0f) beyond = -beyond;
    int n = (int)below;
    n += (beyond > 0.0f || (beyond == 0.0f && n & 1)) + zero;
    return n < LEAST ? LEAST : n > MOST ? MOST : n;
}
/* The same, for a, b and their zeros of 8 bits: by integers, times 2^F, if NEAR. What depends on scales and zeros alone
   compilers take out of loops. Where the sum is so near to halfway that it is not known on which side, it is `far`. */
template <bool NEAR, int LEAST, int MOST>
DEVICE int rounded_sum(int a, int a_zero, float a_scale, int b, int b_zero, float b_scale, float s, int zero, bool& far)
{
    if (!NEAR) return rounded_sum_far<LEAST, MOST>(a - a_zero, a_scale, b - b_zero, b_scale, s, zero);
    share x = share_of(a_scale, s), y = share_of(b_scale, s);
    int most = x.e > y.e ? x.e : y.e;
    int places = 29 - most, further = places > 31 ? places - 31 : 0; /* places is F */
    divide_by_power(x, most - x.e + further);
    divide_by_power(y, most - y.e + further);
    places -= further;
    bool exact = x.exact & y.exact;
    far |= !(is_normal(a_scale) & is_normal(b_scale) & is_normal(s)) | (places < 10);
    places = places < 10 ? 10 : places;
    unsigned doubt = exact ? 0u : 2u * 520u + 1u, mask = (1u << places) - 1u; /* 255 (1 + 1), and some */
    long long others = ((long long)zero << places) + (1ll << (places - 1)) + (exact ? 0 : 520);
    others -= (long long)a_zero * x.factor + (long long)b_zero * y.factor;
    long long sum = multiply_add(a, x.factor, multiply_add(b, y.factor, others));
    unsigned rest = (unsigned)sum & mask;
    far |= rest < doubt;
    int n = shifted(sum, places), odd = (n ^ zero) & 1;
    n = rest == 0u ? n - odd : n; /* of two the even one, before it was moved */
    return n < LEAST ? LEAST : n > MOST ? MOST : n;
}
template <int LEAST, int MOST>
DEVICE int rounded_sum(int a, int a_zero, float a_scale, int b, int b_zero, float b_scale, float s, int zero)
{
    bool far = false;
    int n = rounded_sum<true, LEAST, MOST>(a, a_zero, a_scale, b, b_zero, b_scale, s, zero, far);
    return far ? rounded_sum_far<LEAST, MOST>(a - a_zero, a_scale, b - b_zero, b_scale, s, zero) : n;
}
"""
"""Over WIDES of `wide.py`."""
