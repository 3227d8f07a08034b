"""Functions in CUDA C++ that lowered formulas call and CUDA does not have: each by name, with what it needs.

All but PRIMITIVES is plain C++, so that the tests can build it for the CPU. Kernels are compiled without contraction
of products and sums: what is fused is written as fmaf.
"""

from app.devices.cuda.halves import (
    ACOSH,
    ARC_SINE,
    ARC_TANGENT,
    ASINH,
    ATANH,
    ERROR_FUNCTION,
    FLOOR_OF_SUM,
    HYPERBOLIC_SINE,
    LOGARITHM_HALF,
    NORMAL_DISTRIBUTION_HALF,
    POWER_HALF,
    SCALED_SOFTPLUS,
    SIGMOID,
    SINE,
    SOFTPLUS,
    STEEP_SOFTPLUS,
    SWISH,
    TANGENT,
)
from app.devices.cuda.quantized import ROUNDED_SUM
from app.devices.cuda.reals import REALS
from app.devices.cuda.sums import SUMS
from app.devices.cuda.wide import (
    ANGLES,
    ANGLES_OF_SUMS,
    EXPONENTIALS,
    LOGARITHM,
    NORMAL_DISTRIBUTION,
    PAIRS,
    POWER,
    WIDES,
)

PRIMITIVES = r"""
#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
#define OUT_OF_LINE static __device__ __noinline__
#define INFINITE __int_as_float(0x7f800000)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)

typedef unsigned short half_bits;

DEVICE float float_of_bits(unsigned bits) { return __uint_as_float(bits); }
DEVICE unsigned bits_of_float(float x) { return __float_as_uint(x); }
DEVICE double double_of_bits(unsigned long long bits) { return __longlong_as_double(bits); }
DEVICE int ones_of(unsigned long long x) { return __popcll(x); }
DEVICE float float_of_half(half_bits x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
DEVICE half_bits half_of_float(float x) { half_bits y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
DEVICE half_bits half_of_double(double x) { half_bits y; asm("cvt.rn.f16.f64 %0, %1;" : "=h"(y) : "d"(x)); return y; }
DEVICE float exp2_flushed(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
template <int AT, bool SIGN> DEVICE int byte_of(unsigned word)
{
    int y;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(y) : "r"(word), "n"((SIGN ? 8 + AT : 4) * 0x1110 + AT));
    __builtin_assume(SIGN ? y >= -128 && y <= 127 : (y & ~255) == 0); /* or the compiler sees to it */
    return y;
}
DEVICE unsigned word_of(int a, int b, int c, int d)
{
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}
/* All NVRTC take -1 or 0 for what they know as -x of an x that is 1 or 0, and lose the sign of -0. */
DEVICE float opposite(float x) { float y; asm("neg.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
/* NVRTC 12.8 to 13.2 take x for what they know as -x where that goes into two minima or maxima. */
DEVICE int zero_minus(int x)
{
    int y;
    asm("{.reg .b32 t; not.b32 t, %1; add.s32 %0, t, 1;}" : "=r"(y) : "r"(x));
    return y;
}
/* Half AT of `bytes`, two of them, times the two halves of `factors`, added to c. */
template <int AT, bool SIGNED> DEVICE int products_of_bytes(unsigned factors, unsigned bytes, int c)
{
    int y;
    if (SIGNED && AT) asm("dp2a.hi.s32.u32 %0, %1, %2, %3;" : "=r"(y) : "r"(factors), "r"(bytes), "r"(c));
    else if (SIGNED) asm("dp2a.lo.s32.u32 %0, %1, %2, %3;" : "=r"(y) : "r"(factors), "r"(bytes), "r"(c));
    else if (AT) asm("dp2a.hi.u32.u32 %0, %1, %2, %3;" : "=r"(y) : "r"(factors), "r"(bytes), "r"(c));
    else asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(y) : "r"(factors), "r"(bytes), "r"(c));
    return y;
}
template <unsigned WHICH> DEVICE unsigned bytes_of_both(unsigned a, unsigned b) { return __byte_perm(a, b, WHICH); }
template <bool SIGNED> DEVICE unsigned saturated_word(int a, int b, int c, int d)
{
    unsigned y;
    if (SIGNED) asm("{.reg .b32 t; cvt.pack.sat.s8.s32.b32 t, %4, %3, 0; cvt.pack.sat.s8.s32.b32 %0, %2, %1, t;}"
                    : "=r"(y) : "r"(a), "r"(b), "r"(c), "r"(d));
    else asm("{.reg .b32 t; cvt.pack.sat.u8.s32.b32 t, %4, %3, 0; cvt.pack.sat.u8.s32.b32 %0, %2, %1, t;}"
             : "=r"(y) : "r"(a), "r"(b), "r"(c), "r"(d));
    return y;
}
/* a b + c and a + b, rounded down and up. */
DEVICE float product_plus_down(float a, float b, float c) { return __fmaf_rd(a, b, c); }
DEVICE float product_plus_up(float a, float b, float c) { return __fmaf_ru(a, b, c); }
DEVICE float plus_down(float a, float b) { return __fadd_rd(a, b); }
DEVICE int nearest_integer(float x) { return __float2int_rn(x); }
/* The upper half of (high 2^32 + low) 2^n, for n from 0 to 31. */
DEVICE unsigned shifted_left(unsigned low, unsigned high, int n) { return __funnelshift_l(low, high, n); }
DEVICE float reciprocal_approx(float x) { float y; asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float reciprocal_of_normal(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float sqrt_approx(float x) { float y; asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float log2_approx(float x) { float y; asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float exp2_approx(float x) { float y; asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float sqrt_flushed(float x) { float y; asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float log2_flushed(float x) { float y; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
"""
"""What needs the compiler for GPUs. The approximate functions err by 2^-22 or less, relative or absolute, and keep
subnormal numbers, except for reciprocal_of_normal and those that are flushed."""

LIBRARY: dict[str, str] = {
    "wide": PAIRS + WIDES,
    "exponentials": EXPONENTIALS,
    "logarithm": LOGARITHM,
    "power_of_wide": POWER,
    "gelu": NORMAL_DISTRIBUTION,
    "angles": ANGLES,
    "angles_of_sums": ANGLES_OF_SUMS,
    "softplus_half": SOFTPLUS,
    "scaled_softplus_half": SCALED_SOFTPLUS,
    "steep_softplus_half": STEEP_SOFTPLUS,
    "swish_half": SWISH,
    "plain_swish_half": "",
    "sigmoid_half": SIGMOID,
    "asin_half": ARC_SINE,
    "acos_half": "",
    "atan_half": ARC_TANGENT,
    "atan2_half": "",
    "atanh_half": ATANH,
    "log_half": LOGARITHM_HALF,
    "sine_half": SINE,
    "cosine_half": "",
    "tangent_half": TANGENT,
    "sinh_half": HYPERBOLIC_SINE,
    "erf_half": ERROR_FUNCTION,
    "power_of_halves": POWER_HALF,
    "floor_of_sum": FLOOR_OF_SUM,
    "asinh_half": ASINH,
    "acosh_half": ACOSH,
    "gelu_half": NORMAL_DISTRIBUTION_HALF,
    "rounded_sum": ROUNDED_SUM,
    "real_sums": SUMS,
    "power_far": r"""
/* pow where the quick way does not lead: subnormal, infinite, NaN, negative, or a result near the ends of the range. */
OUT_OF_LINE float power_far(float x, float exponent)
{
    if (x == 0.0f && exponent == exponent) {
        float size = exponent > 0.0f ? 0.0f : exponent < 0.0f ? INFINITE : 1.0f;
        bool odd = exponent == truncf(exponent) && fabsf(exponent * 0.5f) != truncf(fabsf(exponent * 0.5f));
        return odd ? copysignf(size, x) : size;
    }
    return power_of_wide(x, exponent);
}
""",
    "power_near": r"""
/* pow for 2^-60 <= |exponent| <= 16, 2 ULP; where it does not know the result, `far` becomes true. WHOLE says if the
   exponent is a whole number, ODD if it is an odd one, SHORT if it has 16 bits at most, so that k times it is exact.

   With x = 2^k m, m within sqrt(2) of 1, and s = (m - 1) / (m + 1), log2(m) = s (2 / ln 2 + s^2 Q(s^2)). The leading
   terms are kept in two floats each, so that log2(x) is exact to 2^-30 and the exponent may multiply that. */
template <bool WHOLE, bool ODD, bool SHORT>
DEVICE float power_near(float base, float exponent, bool& far)
{
    float x = WHOLE ? fabsf(base) : base;
    unsigned bits = bits_of_float(x);
    int scale = (int)(bits - 0x3f3504f3u) & (int)0xff800000;
    float k = (float)scale;                                  /* times 2^23, exact */
    float m = float_of_bits(bits - (unsigned)scale);
    float f = m - 1.0f, d = m + 1.0f;
    float d_low = m - (d - 1.0f);
    float r = reciprocal_of_normal(d);
    float s = f * r;
    float s_low = fmaf(-s, d_low, fmaf(-s, d, f)) * r;
    float z = s * s;
    float q = fmaf(fmaf(0x1.b4fdfp-2f, z, 0x1.27618cp-1f), z, 0x1.ec70a6p-1f);
    float minus = s * -0x1.715476p+1f; /* the leading term of log2(m), negative so that no other product is needed */
    float low = fmaf(s_low, 0x1.715476p+1f, fmaf(s, 0x1.715476p+1f, minus));
    low = fmaf(s, fmaf(z, q, 0x1.4ae0c0p-25f), low);

    float step = exponent * 0x1p-23f;
    float high = step * k;
    float rounder = fmaf(-exponent, minus, high) + 0x1.8p+23f;
    float n = rounder - 0x1.8p+23f;
    float y = fmaf(-exponent, minus, high - n);
    y = SHORT ? fmaf(exponent, low, y) : y + fmaf(exponent, low, fmaf(step, k, -high));
    float p = fmaf(fmaf(fmaf(fmaf(0x1.43eba6p-13f, y, 0x1.5f51dap-10f), y, 0x1.3b2a72p-7f), y, 0x1.c6aebap-5f), y,
                   0x1.ebfbe0p-3f);
    p = fmaf(fmaf(p, y, 0x1.62e430p-1f), y, 1.0f);
    float result = float_of_bits(bits_of_float(p) + (bits_of_float(rounder) << 23));
    far |= bits - 0x00800000u >= 0x7f000000u || !(fabsf(n) <= 125.0f);
    return ODD ? copysignf(result, base) : result;
}
template <bool WHOLE, bool ODD, bool SHORT> DEVICE float power_near(float base, float exponent)
{
    bool far = false;
    float made = power_near<WHOLE, ODD, SHORT>(base, exponent, far);
    return far ? power_far(base, exponent) : made;
}
""",
    "power_of_each": r"""
/* pow, if NEAR for a normal base and 2^-60 <= |exponent| <= 16; 2 ULP. */
template <bool NEAR> DEVICE float power_of_each(float base, float exponent, bool& far)
{
    if (!NEAR) return power_far(base, exponent);
    float size = power_near<false, false, false>(fabsf(base), exponent, far), half = exponent * 0.5f;
    far |= !(fabsf(exponent) >= 0x1p-60f && fabsf(exponent) <= 16.0f);
    float of_negative = truncf(exponent) != exponent ? NOT_A_NUMBER : truncf(half) != half ? -size : size;
    return base < 0.0f ? of_negative : size;
}
DEVICE float power_of_each(float base, float exponent)
{
    bool far = false;
    float made = power_of_each<true>(base, exponent, far);
    return far ? power_far(base, exponent) : made;
}
""",
    "power_wide": r"""
/* Long, so it is there once and not for each element of a vector. */
OUT_OF_LINE double power_wide(double x, double exponent) { return pow(x, exponent); }
""",
    "power_of_integers": r"""
/* The product of `exponent` bases, wrapped around. */
DEVICE long long power_of_integers(long long base, long long exponent)
{
    unsigned long long result = 1, factor = (unsigned long long)base;
    for (unsigned long long left = (unsigned long long)exponent; left; left >>= 1) {
        if (left & 1) result *= factor;
        factor *= factor;
    }
    return (long long)result;
}
""",
    "power_half": r"""
/* pow for 2^-60 <= |exponent| <= 64 on its way to float16: the approximate functions are exact enough for it. */
template <bool WHOLE, bool ODD>
DEVICE float power_half(float base, float exponent)
{
    float x = WHOLE ? fabsf(base) : base == -INFINITE ? INFINITE : base;
    float result = exp2_approx(exponent * log2_approx(x));
    return ODD ? copysignf(result, base) : result;
}
""",
    "exp_of_product": r"""
/* exp(a b) where that is at most 1; the rounding of the product, which exp magnifies by up to 88, is made up for. */
DEVICE float exp_of_product(float a, float b)
{
    float product = a * b, whole = expf(product);
    return product < -128.0f ? 0.0f : fmaf(whole, fmaf(a, b, -product), whole);
}
""",
    "exp_of_difference": r"""
/* exp(a - b) where that is at most 1, likewise, with what Knuth's two-sum says the difference has lost. */
DEVICE float exp_of_difference(float a, float b)
{
    float difference = a - b, subtrahend = a - difference;
    float rest = (a - (difference + subtrahend)) + (subtrahend - b), whole = expf(difference);
    return fmaf(whole, difference < -128.0f ? 0.0f : rest, whole); /* no less than infinite differences have lost NaN */
}
""",
    "exp_of_difference_half": r"""
/* The same with the digits that float16 has. */
DEVICE float exp_of_difference_half(float a, float b) { return exp2_flushed((a - b) * 0x1.715476p+0f); }
""",
    "fraction_of": r"""
/* a / sum, for 0 <= a <= 1 <= sum and the float next to 1 / sum, by Markstein's correction of a product; what is so
   small that its rest might be lost is larger meanwhile. */
DEVICE float fraction_of(float a, float sum, float inverse)
{
    bool small = a < 0x1p-100f;
    float dividend = small ? a * 0x1p+100f : a, quotient = dividend * inverse;
    quotient = fmaf(fmaf(-quotient, sum, dividend), inverse, quotient);
    return small ? quotient * 0x1p-100f : quotient;
}
""",
    "steep_softplus": r"""
/* ln(1 + exp(s x)) / s, for |s| from a half on: what is subnormal becomes no more than twice as large. */
DEVICE float steep_softplus(float s, float x)
{
    float z = s * x, rest = fmaf(s, x, -z), u = expf(-fabsf(z)), inverse = 1.0f / s;
    float y = log1pf(fabsf(z + 64.0f) < 64.0f ? fmaf(u, rest, u) : u), q = y * inverse;
    return (s < 0.0f ? fminf(x, 0.0f) : fmaxf(x, 0.0f)) + fmaf(fmaf(-q, s, y), inverse, q);
}
""",
    "expm1_of_negative": r"""
/* exp(x) - 1 for x <= 0, 2 ULP. With x = n ln 2 + f it is 2^n (exp(f) - 1) + (2^n - 1), the last term being exact. */
DEVICE float expm1_of_negative(float x)
{
    x = x < -26.0f ? -26.0f : x; /* -1 from there on; NaN stays */
    float rounder = fmaf(x, 0x1.715476p+0f, 0x1.8p+23f);
    float n = rounder - 0x1.8p+23f;
    float f = fmaf(n, -0x1.7f7d1cp-20f, fmaf(n, -0x1.62e4p-1f, x));
    float q = fmaf(fmaf(fmaf(0x1.6d1254p-10f, f, 0x1.120cbap-7f), f, 0x1.555518p-5f), f, 0x1.5554dcp-3f);
    q = fmaf(q, f, 0.5f);
    float p = fmaf(f * f, q, f);
    float scale = float_of_bits((bits_of_float(rounder) << 23) + 0x3f800000u);
    return fmaf(p, scale, scale - 1.0f);
}
""",
    "expm1_of_negative_half": r"""
/* The same with the digits that float16 has. */
DEVICE float expm1_of_negative_half(float x)
{
    float near = x * fmaf(x, fmaf(x, fmaf(x, 0x1.555556p-5f, 0x1.555556p-3f), 0.5f), 1.0f);
    return x > -0.25f ? near : exp2_flushed(x * 0x1.715476p+0f) - 1.0f;
}
""",
    "expm1_of_negative_for_float": r"""
/* exp(x) - 1 for x <= 0, with the digits that float32 has: near 0 the beginning of its series in double. */
DEVICE double expm1_of_negative_for_float(double x)
{
    double far = (double)expm1_of_negative((float)x);
    return x > -1e-4 ? x * (1.0 + x * (0.5 + x * 0x1.5555555555555p-3)) : far;
}
""",
} | {name: source for name, (_, source) in REALS.items()}

NEEDS: dict[str, tuple[str, ...]] = {
    "floor_of_sum": ("floor_of", "ceil_of"),
    "scaled_softplus_half": ("softplus_half",),
    "steep_softplus_half": ("softplus_half",),
    "plain_swish_half": ("swish_half",),
    "acos_half": ("asin_half",),
    "atan2_half": ("atan_half",),
    "cosine_half": ("sine_half",),
    "exponentials": ("wide",),
    "logarithm": ("wide",),
    "power_of_wide": ("exponentials", "logarithm"),
    "power_far": ("power_of_wide",),
    "power_near": ("power_far",),
    "power_of_each": ("power_near",),
    "angles": ("wide",),
    "angles_of_sums": ("angles", "reals"),
    "rounded_sum": ("wide",),
    "real_sums": ("reals",),
    "expm1_of_negative_for_float": ("expm1_of_negative",),
} | {name: needs if name == "reals" else ("reals", *needs) for name, (needs, _) in REALS.items()}
"""Functions of LIBRARY that others call."""


def library(names: set[str] | frozenset[str]) -> str:
    """The source of the functions called `names`, each after what it needs."""
    wanted: dict[str, None] = {}

    def want(name: str) -> None:
        for each in NEEDS.get(name, ()):
            want(each)
        wanted[name] = None

    for name in sorted(names):
        want(name)
    return "".join(LIBRARY[name] for name in wanted)
