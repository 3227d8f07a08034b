"""What stands for float64 in C++, in the few places of kernels for smaller types where float32 will not do.

Most GPUs have one unit for float64 where they have 64 for float32. A `pair` is the sum of two floats, 48 bits with the
range of float32; a `wide` has an exponent of its own besides, and so more range than float64.
"""

PAIRS = r"""
struct pair { float hi, lo; };            /* hi + lo, hi being what is next to that */
DEVICE float two_to(int n) { return float_of_bits((unsigned)(n + 127) << 23); }
DEVICE bool is_number(float x) { return fabsf(x) <= 0x1.fffffep+127f; }
DEVICE pair quick_sum(float a, float b) { float s = a + b; return pair{s, b - (s - a)}; } /* for |a| >= |b| */
DEVICE pair two_sum(float a, float b)
{
    float s = a + b, t = s - a;
    return pair{s, (a - (s - t)) + (b - t)};
}
DEVICE pair two_product(float a, float b) { float p = a * b; return pair{p, fmaf(a, b, -p)}; }
DEVICE pair negative(pair a) { return pair{-a.hi, -a.lo}; }
DEVICE pair plus(pair a, pair b)
{
    pair s = two_sum(a.hi, b.hi);
    return quick_sum(s.hi, s.lo + (a.lo + b.lo));
}
DEVICE pair times(pair a, pair b)
{
    float p = a.hi * b.hi;
    return quick_sum(p, fmaf(a.hi, b.lo, fmaf(a.lo, b.hi, fmaf(a.hi, b.hi, -p))));
}
DEVICE pair over(pair a, pair b)
{
    float q = a.hi / b.hi, rest = (fmaf(-q, b.hi, a.hi) + a.lo) - q * b.lo;
    return quick_sum(q, rest * reciprocal_approx(b.hi));
}
DEVICE pair pair_of_integer(long long n) { float hi = (float)n; return quick_sum(hi, (float)(n - (long long)hi)); }
"""

WIDES = r"""
struct wide { float hi, lo; int e; };     /* (hi + lo) * 2^e, hi from 1 to 2; or hi alone: zeros, infinities, NaN */
DEVICE bool is_ordinary(wide a) { return a.hi != 0.0f && is_number(a.hi); }
DEVICE wide negative(wide a) { return wide{-a.hi, -a.lo, a.e}; }
/* hi + lo times 2^e, whatever they are. */
DEVICE wide normal(float hi, float lo, int e)
{
    if (hi == 0.0f || !is_number(hi)) return wide{hi, 0.0f, 0};
    float size = fabsf(hi);
    float scale = size < 0x1p-50f ? 0x1p+100f : size > 0x1p+50f ? 0x1p-100f : 1.0f;
    e += size < 0x1p-50f ? -100 : size > 0x1p+50f ? 100 : 0;
    hi *= scale; lo *= scale;
    int k = (int)(bits_of_float(hi) >> 23 & 255u) - 127;
    return wide{hi * two_to(-k), lo * two_to(-k), e + k};
}
DEVICE wide widened(float x) { return normal(x, 0.0f, 0); }
/* Rounded once, also where it is subnormal: its last bit is made odd before, unless nothing is beyond. */
DEVICE float narrowed(wide a)
{
    if (!is_ordinary(a)) return a.hi;
    unsigned bits = bits_of_float(a.hi);
    if (a.e < -126 && a.lo != 0.0f) bits = (bits - ((a.hi < 0.0f) != (a.lo < 0.0f))) | 1u;
    int n = a.e < -250 ? -250 : a.e > 250 ? 250 : a.e, half = n / 2;
    return float_of_bits(bits) * two_to(half) * two_to(n - half);
}
OUT_OF_LINE wide plus(wide a, wide b)
{
    if (!is_number(a.hi) || !is_number(b.hi)) return wide{a.hi + b.hi, 0.0f, 0};
    if (a.hi == 0.0f || b.hi == 0.0f) return a.hi != 0.0f ? a : b.hi != 0.0f ? b : wide{a.hi + b.hi, 0.0f, 0};
    if (a.e < b.e) { wide c = a; a = b; b = c; }
    if (a.e - b.e > 60) return a;
    float scale = two_to(b.e - a.e);
    pair s = plus(pair{a.hi, a.lo}, pair{b.hi * scale, b.lo * scale});
    return normal(s.hi, s.lo, a.e);
}
OUT_OF_LINE wide times(wide a, wide b)
{
    if (!is_ordinary(a) || !is_ordinary(b)) return wide{a.hi * b.hi, 0.0f, 0};
    pair p = times(pair{a.hi, a.lo}, pair{b.hi, b.lo});
    const int most = 1 << 29, e = a.e + b.e; /* a product of many goes no further, and does not come around */
    return normal(p.hi, p.lo, e > most ? most : e < -most ? -most : e);
}
OUT_OF_LINE wide over(wide a, wide b)
{
    if (!is_ordinary(a) || !is_ordinary(b)) return wide{a.hi / b.hi, 0.0f, 0};
    pair q = over(pair{a.hi, a.lo}, pair{b.hi, b.lo});
    return normal(q.hi, q.lo, a.e - b.e);
}
"""
"""Over PAIRS. Sums and products are exact where they have 48 bits at most."""

EXPONENTIALS = r"""
/* exp(hi + lo) = (1 + result) 2^n, for |hi| up to 1000, to 2^-35 of the result. */
DEVICE pair expm1_reduced(float hi, float lo, int& n)
{
    float rounder = fmaf(hi, 0x1.715476p+0f, 0x1.8p+23f);
    float k = rounder - 0x1.8p+23f;
    n = (int)(bits_of_float(rounder) - 0x4b400000u);
    float f = fmaf(k, -0x1.62e4p-1f, hi);
    pair p = two_product(k, -0x1.7f7d1cp-20f), r = two_sum(f, p.hi);
    r.lo += fmaf(k, -0x1.ef357ap-45f, p.lo) + lo;
    r = quick_sum(r.hi, r.lo);
    float x = r.hi;
    float q = fmaf(fmaf(0x1.a01a02p-16f, x, 0x1.a01a02p-13f), x, 0x1.6c16c2p-10f);
    q = fmaf(fmaf(q, x, 0x1.111112p-7f), x, 0x1.555556p-5f);
    pair square = times(r, r), sixth = times(pair{0x1.555556p-3f, -0x1.555556p-28f}, r);
    pair inner = plus(pair{0.5f, 0.0f}, plus(sixth, pair{x * x * q, 0.0f}));
    return plus(r, times(square, inner));
}
OUT_OF_LINE wide exp_of(wide x)
{
    if (x.hi != x.hi) return x;
    if (is_number(x.hi) && x.e < 9) {
        int n;
        float scale = two_to(x.hi == 0.0f || x.e < -100 ? -100 : x.e);
        pair e = plus(pair{1.0f, 0.0f}, expm1_reduced(x.hi * scale, x.lo * scale, n));
        return normal(e.hi, e.lo, n);
    }
    return wide{x.hi > 0.0f ? INFINITE : 0.0f, 0.0f, 0};
}
DEVICE wide half_exp_of(wide x)
{
    wide e = exp_of(x);
    return is_ordinary(e) ? wide{e.hi, e.lo, e.e - 1} : e;
}
"""

LOGARITHM = r"""
/* To 2^-40 of the result. */
OUT_OF_LINE wide log_of(wide x)
{
    if (x.hi == 0.0f) return wide{-INFINITE, 0.0f, 0};
    if (!is_number(x.hi) || x.hi < 0.0f) return wide{x.hi > 0.0f ? x.hi : NOT_A_NUMBER, 0.0f, 0};
    float hi = x.hi, lo = x.lo;
    int k = x.e;
    if (hi > 0x1.6a09e6p+0f) { hi *= 0.5f; lo *= 0.5f; ++k; }
    pair f = two_sum(hi - 1.0f, lo), d = two_sum(hi, 1.0f);
    d.lo += lo;
    pair s = over(f, d), square = times(s, s);
    float z = s.hi * s.hi;
    float rest = fmaf(fmaf(fmaf(0x1.3b13b2p-3f, z, 0x1.745d18p-3f), z, 0x1.c71c72p-3f), z, 0x1.24924ap-2f);
    pair inner = plus(pair{0x1.99999ap-2f, -0x1.99999ap-28f}, pair{z * rest, 0.0f});
    inner = plus(pair{0x1.555556p-1f, -0x1.555556p-26f}, times(square, inner));
    pair m = plus(pair{2.0f * s.hi, 2.0f * s.lo}, times(times(s, square), inner));
    pair high = two_product((float)k, 0x1.62e43p-1f);
    high.lo = fmaf((float)k, -0x1.05c61p-29f, high.lo);
    if (k != 0) m = plus(high, m);
    return normal(m.hi, m.lo, 0);
}
/* Of 2 |x|, with the sign of x. */
DEVICE wide log_of_twice(wide x)
{
    return x.hi < 0.0f ? negative(log_of(wide{-x.hi, -x.lo, x.e + 1})) : log_of(wide{x.hi, x.lo, x.e + 1});
}
"""

POWER = r"""
DEVICE bool is_whole(float x) { return truncf(x) == x; }
/* IEEE 754's pow, to 2^-30 of it; computed once for all elements that want the same. */
OUT_OF_LINE __attribute__((const)) wide power_of(wide x, float y)
{
    if (y == 0.0f || (x.hi == 1.0f && x.lo == 0.0f && x.e == 0)) return widened(1.0f);
    if (x.hi != x.hi || y != y) return widened(NOT_A_NUMBER);
    bool minus = bits_of_float(x.hi) >> 31 && is_number(y) && is_whole(y) && !is_whole(y * 0.5f);
    wide logarithm = log_of(bits_of_float(x.hi) >> 31 ? negative(x) : x), made;
    if (!is_ordinary(x) || !is_number(y)) {
        float sign = logarithm.hi;
        made = widened(sign == 0.0f ? 1.0f : (sign > 0.0f) == (y > 0.0f) ? INFINITE : 0.0f);
    } else {
        if (x.hi < 0.0f && !is_whole(y)) return widened(NOT_A_NUMBER);
        made = exp_of(times(widened(y), logarithm));
    }
    return minus ? negative(made) : made;
}
DEVICE float power_of_wide(float x, float y) { return narrowed(power_of(widened(x), y)); }
"""
"""Over LOGARITHM and EXPONENTIALS."""

NORMAL_DISTRIBUTION = r"""
/* x times the normal distribution's area left of it, 1.5 ULP. The tail is exp(-y^2 / 2) R(y) / (y + 1), y being |x|,
   and R a polynomial in (y - K) / (y + K) whose first term is next to a float. If NEAR it takes NaN, and what is so
   low that results may be subnormal, for too far; else it has these 2^64 times as large until the end. */
template <bool NEAR> DEVICE float gelu(float x, bool& far)
{
    if (NEAR) far |= !(x >= -12.0f);
    bool low = !NEAR && x < -12.0f;
    float y = fminf(fabsf(x), low ? 15.0f : 13.0f); /* beyond these there is nothing left */
    float square = y * y, rest = fmaf(y, y, -square);
    float rounder = fmaf(square, -0x1.715476p-1f, 0x1.8p+23f), k = rounder - 0x1.8p+23f;
    float g = fmaf(k, -0x1.62e4p+0f, -square); /* exp(-y^2 / 2) = 2^k exp(g / 2) = 2^k (1 + p) */
    g += fmaf(k, -0x1.7f7d1cp-19f, -rest);
    float p = fmaf(fmaf(fmaf(0x1.6b6de4p-16f, g, 0x1.123008p-12f), g, 0x1.55568ap-9f), g, 0x1.5554a2p-6f);
    p = fmaf(0.5f, g, fmaf(p, g, 0.125f) * (g * g));
    float t = (y - 0x1.d48p+1f) * reciprocal_of_normal(y + 0x1.d48p+1f);
    float q = fmaf(fmaf(0x1.718cfep-13f, t, 0x1.770faep-12f), t, -0x1.5ec376p-10f);
    q = fmaf(fmaf(fmaf(q, t, -0x1.49a832p-10f), t, 0x1.accf4ap-7f), t, -0x1.013e6cp-5f);
    q = fmaf(fmaf(fmaf(q, t, 0x1.1fe79p-5f), t, 0x1.63d492p-8f), t, -0x1.8fa87p-4f);
    float n = fmaf(q, t, 0x1.e7cd1ep-2f), e = fmaf(n, p, n); /* R, and R exp(g / 2) */
    float e_rest = fmaf(q, t, fmaf(n, p, 0x1.e7cd1ep-2f - e));
    float d = y + 1.0f, d_rest = y - (d - 1.0f), inverse = reciprocal_of_normal(d), quotient = e * inverse;
    float more = (fmaf(-quotient, d_rest, fmaf(-quotient, d, e)) + e_rest) * inverse;
    /* y 2^k, k being 0 where y might be subnormal. */
    float factor = -float_of_bits(bits_of_float(y) + (bits_of_float(rounder) << 23) + (low ? 64u << 23 : 0u));
    float made = fmaf(factor, quotient, fmaf(factor, more, NEAR ? fmaxf(x, -0.0f) : x < 0.0f ? -0.0f : x));
    return low ? made * 0x1p-64f : made;
}

DEVICE float gelu(float x) { bool far = false; return gelu<false>(x, far); }
"""

ANGLES = r"""
/* |m| 2^e in quarters of a turn, modulo 4, times 2^62, for |m| from 1 to 2 and e up to 256. */
OUT_OF_LINE unsigned long long quarters_of(float m, int e)
{
    static const unsigned two_over_pi[40] = { /* 32 bits each, a byte apart */
        0xa2u, 0xa2f9u, 0xa2f983u, 0xa2f9836eu, 0xf9836e4eu, 0x836e4e44u, 0x6e4e4415u, 0x4e441529u,
        0x441529fcu, 0x1529fc27u, 0x29fc2757u, 0xfc2757d1u, 0x2757d1f5u, 0x57d1f534u, 0xd1f534ddu, 0xf534ddc0u,
        0x34ddc0dbu, 0xddc0db62u, 0xc0db6295u, 0xdb629599u, 0x6295993cu, 0x95993c43u, 0x993c4390u, 0x3c439041u,
        0x439041feu, 0x9041fe51u, 0x41fe5163u, 0xfe5163abu, 0x5163abdeu, 0x63abdebbu, 0xabdebbc5u, 0xdebbc561u,
        0xbbc561b7u, 0xc561b724u, 0x61b7246eu, 0xb7246e3au, 0x246e3a42u, 0x6e3a424du, 0x3a424dd2u, 0x424dd2e0u};
    int beyond = e < 1 ? 1 - e : 0;
    e += beyond;
    const unsigned* at = two_over_pi + ((e - 1) >> 3);
    unsigned factor = ((bits_of_float(m) & 0x7fffffu) | 0x800000u) << ((e - 1) & 7);
    unsigned long long all = (unsigned long long)(factor * at[0]) << 32;
    all |= ((unsigned long long)factor * at[8]) >> 32;
    all += (unsigned long long)factor * at[4];
    return beyond > 63 ? 0ull : all >> beyond;
}
/* What these are: q pi / 2 + result, negative if `minus`. */
DEVICE pair rest_of_quarters(unsigned long long all, bool minus, int& q)
{
    unsigned long long n = (all + (1ull << 61)) >> 62;
    pair r = times(pair_of_integer((long long)(all - (n << 62))), pair{0x1.921fb6p-62f, -0x1.777a5cp-87f});
    q = minus ? -(int)n : (int)n;
    return minus ? negative(r) : r;
}
struct angle { float rest; int q; };       /* q pi / 2 + rest */
OUT_OF_LINE angle far_angle(float x)
{
    angle made = {NOT_A_NUMBER, 0};
    wide y = widened(x);
    if (is_number(x)) made.rest = rest_of_quarters(quarters_of(y.hi, y.e), x < 0.0f, made.q).hi;
    return made;
}
/* As CUDA has it, which takes float64 for what is far; unless FAR there is nothing but infinities. */
template <bool FAR> DEVICE angle angle_of(float x)
{
    int q = nearest_integer(x * 0x1.45f306p-1f);
    float k = (float)q;
    float r = fmaf(k, -0x1.84698ap-48f, fmaf(k, -0x1.4442dp-24f, fmaf(k, -0x1.921fb4p+0f, x)));
    bool near = fabsf(x) < 0x1.9c8fp+16f;
    if (FAR && !near) return far_angle(x);
    return angle{FAR || near ? r : NOT_A_NUMBER, q};
}
/* CUDA's own polynomials from here on. */
DEVICE float sine_of_quarters(angle x, int more)
{
    int q = x.q + more;
    float r = x.rest, z = r * r, p = q & 1 ? fmaf(0x1.9758p-16f, z, -0x1.6c0fdap-10f) : -0x1.9a82a6p-13f;
    p = fmaf(p, z, q & 1 ? 0x1.555576p-5f : 0x1.110bc8p-7f);
    p = fmaf(p, z, q & 1 ? -0x1.fffffep-2f : -0x1.55555p-3f);
    float first = q & 1 ? 1.0f : r;
    float made = fmaf(p, fmaf(z, first, 0.0f), first);
    return q & 2 ? fmaf(made, -1.0f, 0.0f) : made;
}
template <bool FAR> DEVICE float sine_of(float x) { return sine_of_quarters(angle_of<FAR>(x), 0); }
template <bool FAR> DEVICE float cosine_of(float x) { return sine_of_quarters(angle_of<FAR>(x), 1); }
DEVICE float tangent_of_quarters(angle y)
{
    float r = y.rest, z = r * r, p = fmaf(0x1.32p-7f, z, 0x1.acp-9f);
    p = fmaf(fmaf(p, z, 0x1.8ep-6f), z, 0x1.b6p-5f);
    p = fmaf(fmaf(p, z, 0x1.11287p-3f), z, 0x1.55551p-2f);
    float made = fabsf(r) == 0x1.016878p-11f ? r : fmaf(p, z * r, r);
    return y.q & 1 ? reciprocal_of_normal(-made) : made;
}
template <bool FAR> DEVICE float tangent_of(float x) { return tangent_of_quarters(angle_of<FAR>(x)); }
"""
"""Over WIDES."""

ANGLES_OF_SUMS = r"""
/* The angle a b + c, to the last digit if it is near. */
DEVICE angle angle_of_sum(float a, float b, float c, bool& far)
{
    pair p = two_product(a, b), s = two_sum(p.hi, c), rest = two_sum(s.lo, p.lo);
    s = two_sum(s.hi, rest.hi); /* which is the larger if the first two cancel */
    far |= !(fabsf(s.hi) < 1024.0f) | (is_small(p.hi) & (a != 0.0f) & (b != 0.0f));
    int q = nearest_integer(s.hi * 0x1.45f306p-1f);
    float k = (float)q;
    pair r = two_sum(fmaf(k, -0x1.921fb4p+0f, s.hi), s.lo);
    return angle{fmaf(k, -0x1.4442dp-24f, r.hi) + (fmaf(k, -0x1.84698ap-48f, r.lo) + rest.lo), q};
}
/* m 2^e, its highest bit being the 62nd, or 0. */
struct scaled { unsigned long long m; int e; bool minus; };
DEVICE scaled scaled_up(unsigned long long m, int e, bool minus)
{
    for (; m != 0 && m < 1ull << 61; --e) m <<= 1;
    return scaled{m, e, minus};
}
DEVICE unsigned fraction_of_float(float x)
{
    unsigned bits = bits_of_float(x);
    return bits & 0x7f800000u ? (bits & 0x7fffffu) | 0x800000u : bits & 0x7fffffu;
}
DEVICE int exponent_of(float x) { int e = (int)(bits_of_float(x) >> 23 & 255u); return (e == 0 ? 1 : e) - 150; }
/* The same after the sum has been rounded as float64 does, whose multiples of pi are what counts. */
OUT_OF_LINE angle far_angle_of_sum(float a, float b, float c)
{
    angle made = {NOT_A_NUMBER, 0};
    if (!is_number(a) || !is_number(b) || !is_number(c)) return made;
    unsigned long long product = (unsigned long long)fraction_of_float(a) * fraction_of_float(b);
    scaled x = scaled_up(product, exponent_of(a) + exponent_of(b), (a < 0.0f) != (b < 0.0f));
    scaled y = scaled_up(fraction_of_float(c), exponent_of(c), c < 0.0f);
    if (x.m == 0 || (y.m != 0 && y.e > x.e)) { scaled z = x; x = y; y = z; }
    int apart = x.e - y.e; /* what is shifted out leaves a bit */
    unsigned long long less = y.m == 0 ? 0ull : apart > 61 ? 1ull : y.m >> apart | ((y.m & ((1ull << apart) - 1)) != 0);
    unsigned long long m = x.minus == y.minus ? x.m + less : x.m - less;
    bool minus = x.minus;
    if (m >> 63) { m = 0ull - m; minus = !minus; }
    x = scaled_up(m, x.e, minus);
    if (x.m >> 62) { x.m = x.m >> 1 | (x.m & 1); ++x.e; }
    x.m = (x.m + 0xff + (x.m >> 9 & 1)) & ~0x1ffull;
    /* 53 bits, in three numbers of 24 at most. */
    float size = (float)(unsigned)(x.m >> 38), middle = (float)(unsigned)(x.m >> 14 & 0xffffffu);
    wide parts[3] = {normal(size, 0.0f, x.e + 38), normal(middle, 0.0f, x.e + 14),
                     normal((float)(unsigned)(x.m & 0x3fffu), 0.0f, x.e)};
    if (x.m == 0 || x.e + 61 < -1) {
        wide sum = plus(parts[0], parts[1]);
        made.rest = narrowed(minus ? negative(sum) : sum);
        return made;
    }
    unsigned long long all = 0;
    for (int n = 0; n < 3; ++n) if (parts[n].hi != 0.0f) all += quarters_of(parts[n].hi, parts[n].e);
    made.rest = rest_of_quarters(all, minus, made.q).hi;
    return made;
}
DEVICE angle angle_of_sum(wide a, wide b, wide c, bool&)
{
    return far_angle_of_sum(narrowed(a), narrowed(b), narrowed(c));
}
DEVICE float as_stands(float made, float) { return made; }
DEVICE wide as_stands(float made, wide) { return widened(made); }
template <class A> DEVICE A sine_of_sum(A a, A b, A c, bool& far)
{
    return as_stands(sine_of_quarters(angle_of_sum(a, b, c, far), 0), a);
}
template <class A> DEVICE A cosine_of_sum(A a, A b, A c, bool& far)
{
    return as_stands(sine_of_quarters(angle_of_sum(a, b, c, far), 1), a);
}
template <class A> DEVICE A tangent_of_sum(A a, A b, A c, bool& far)
{
    return as_stands(tangent_of_quarters(angle_of_sum(a, b, c, far)), a);
}
"""
"""Over ANGLES and what stands for float64."""
