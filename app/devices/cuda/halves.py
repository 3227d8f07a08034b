"""Functions in CUDA C++ with the digits that float16 has, for results that are stored so: each errs by no more than
2^-16 of them. Plain C++, as in `functions.py`."""

SOFTPLUS = r"""
/* max(x, 0) + ln(1 + exp(-|x|)): of u from 0 to 1, ln(1 + u) / u is a polynomial. */
DEVICE float softplus_half(float x)
{
    float u = exp2_flushed(fabsf(x) * -0x1.715476p+0f);
    float p = fmaf(fmaf(fmaf(0x1.cf5dfep-7f, u, -0x1.0ffac4p-4f), u, 0x1.319bf8p-3f), u, -0x1.e15bc0p-3f);
    p = fmaf(fmaf(fmaf(p, u, 0x1.530a6ap-2f), u, -0x1.ffddd4p-2f), u, 0x1.ffffd6p-1f);
    return fmaf(p, u, 0.0f > x ? 0.0f : x);
}
"""

SCALED_SOFTPLUS = r"""
DEVICE float scaled_softplus_half(float alpha, float beta, float x) { return alpha * softplus_half(beta * x); }
"""

STEEP_SOFTPLUS = r"""
DEVICE float steep_softplus_half(float s, float x) { return softplus_half(s * x) * (1.0f / s); }
"""

SWISH = r"""
/* x / (1 + exp(-scale x)), with the limit 0. */
DEVICE float swish_half(float scale, float x)
{
    float finite = scale < 0.0f ? fminf(x, 0x1.fffffep+127f) : fmaxf(x, -0x1.fffffep+127f);
    float made = finite * reciprocal_of_normal(1.0f + exp2_flushed(scale * x * -0x1.715476p+0f));
    return x != x ? x : made;
}
DEVICE float plain_swish_half(float x) { return swish_half(1.0f, x); }
"""

ASINH = r"""
/* ln(|x| + sqrt(x^2 + 1)), and near 0 a polynomial. */
DEVICE float asinh_half(float x)
{
    float size = fabsf(x), square = size * size;
    float p = fmaf(fmaf(-0x1.0b801ap-5f, square, 0x1.2c2862p-4f), square, -0x1.552a50p-3f);
    float near = fmaf(p, square, 0x1.ffffecp-1f) * size;
    float away = log2_flushed(size + sqrt_flushed(square + 1.0f)) * 0x1.62e430p-1f;
    return copysignf(size < 0.5f ? near : away, x);
}
"""

ACOSH = r"""
/* ln(x + sqrt((x - 1) (x + 1))). */
DEVICE float acosh_half(float x)
{
    float made = log2_flushed(x + sqrt_flushed((x - 1.0f) * (x + 1.0f))) * 0x1.62e430p-1f;
    return x < 1.0f ? NOT_A_NUMBER : made;
}
"""

NORMAL_DISTRIBUTION_HALF = r"""
/* x times the normal distribution's share below it. Beyond |x| it is exp(-x^2 / 2) times a polynomial of
   1 / (1 + 0.35 |x|), as far as float16 has digits for it. */
DEVICE float gelu_half(float x)
{
    float size = fabsf(x), w = reciprocal_of_normal(fmaf(size, 0x1.666666p-2f, 1.0f));
    float p = fmaf(fmaf(-0x1.ac75ccp-4f, w, 0x1.314e9ep-2f), w, -0x1.399df4p-7f);
    p = fmaf(fmaf(fmaf(p, w, 0x1.77360cp-3f), w, 0x1.0f00aap-3f), w, 0x1.ff25e0p-12f);
    float beyond = p * exp2_flushed(size * size * -0x1.715476p-1f);
    return fmaxf(x, -0x1.fffffep+127f) * (x < 0.0f ? beyond : 1.0f - beyond);
}
"""

SIGMOID = r"""
DEVICE float sigmoid_half(float x) { return reciprocal_of_normal(1.0f + exp2_flushed(x * -0x1.715476p+0f)); }
"""

ARC_SINE = r"""
/* Up to a half a polynomial of the square; beyond, that of half of what is left of 1, twice of which is left of a right
   angle. */
DEVICE float arc_half(float size)
{
    float z = size > 0.5f ? fmaf(size, -0.5f, 0.5f) : size * size, root = size > 0.5f ? sqrt_flushed(z) : size;
    float p = fmaf(fmaf(0x1.0a8406p-4f, z, 0x1.24cc84p-4f), z, 0x1.55b69ap-3f);
    return fmaf(p, z, 0x1.ffffcep-1f) * root;
}
DEVICE float asin_half(float x)
{
    float size = fabsf(x), arc = arc_half(size);
    return copysignf(size > 0.5f ? fmaf(arc, -2.0f, 0x1.921fb6p+0f) : arc, x);
}
DEVICE float acos_half(float x)
{
    float size = fabsf(x), arc = arc_half(size), twice = arc + arc;
    float beyond = x < 0.0f ? 0x1.921fb6p+1f - twice : twice;
    return size > 0.5f ? beyond : 0x1.921fb6p+0f - copysignf(arc, x);
}
"""

ARC_TANGENT = r"""
/* For x from 0 to 1. */
DEVICE float arc_of_ratio(float x)
{
    float z = x * x, p = fmaf(fmaf(0x1.01a87ap-7f, z, -0x1.2f3428p-5f), z, 0x1.578858p-4f);
    p = fmaf(fmaf(fmaf(p, z, -0x1.14377ap-3f), z, 0x1.972c2cp-3f), z, -0x1.554374p-2f);
    return fmaf(p, z, 0x1.ffffeap-1f) * x;
}
DEVICE float atan_half(float x)
{
    float size = fabsf(x), arc = arc_of_ratio(size > 1.0f ? reciprocal_of_normal(size) : size);
    return copysignf(size > 1.0f ? 0x1.921fb6p+0f - arc : arc, x);
}
DEVICE float atan2_half(float y, float x)
{
    float a = fabsf(y), b = fabsf(x), least = fminf(a, b), most = fmaxf(a, b);
    float ratio = least == most ? (most > 0.0f ? 1.0f : 0.0f) : least * reciprocal_of_normal(most);
    float arc = arc_of_ratio(ratio);
    arc = a > b ? 0x1.921fb6p+0f - arc : arc;
    arc = bits_of_float(x) >> 31 ? 0x1.921fb6p+1f - arc : arc;
    return (y != y) | (x != x) ? NOT_A_NUMBER : copysignf(arc, y);
}
"""

ATANH = r"""
DEVICE float atanh_half(float x)
{
    float size = fabsf(x), z = x * x;
    float p = fmaf(fmaf(0x1.91840ap-3f, z, 0x1.f30c50p-4f), z, 0x1.9db1eap-3f);
    float near = fmaf(fmaf(p, z, 0x1.554448p-2f), z, 0x1.000006p+0f) * size;
    float away = (log2_flushed(1.0f + size) - log2_flushed(1.0f - size)) * 0x1.62e430p-2f;
    return copysignf(size < 0.5f ? near : away, x);
}
"""

LOGARITHM_HALF = r"""
/* Near 1, where the approximate one is so absolutely alone, a polynomial. */
DEVICE float log_half(float x)
{
    float f = x - 1.0f, p = fmaf(fmaf(-0x1.729df4p-3f, f, 0x1.b6ac0ap-3f), f, -0x1.ff1808p-3f);
    float near = fmaf(fmaf(fmaf(p, f, 0x1.54fc70p-2f), f, -0x1.000070p-1f), f, 0x1.000014p+0f) * f;
    return fabsf(f) < 0.25f ? near : log2_flushed(x) * 0x1.62e430p-1f;
}
"""

SINE = r"""
/* The sine of k pi + r for |r| up to pi / 2, k being the lowest bits of `rounder`. */
DEVICE float sine_of_halves(float r, float rounder)
{
    float z = r * r, p = fmaf(fmaf(-0x1.84d4d6p-13f, z, 0x1.1070dep-7f), z, -0x1.55510ep-3f);
    float made = fmaf(fmaf(p, z, 0.0f), r, r); /* 0 of 0: -0 would lose its sign */
    return float_of_bits(bits_of_float(made) ^ bits_of_float(rounder) << 31);
}
/* Of a float16. */
DEVICE float sine_half(float x)
{
    float rounder = fmaf(x, 0x1.45f306p-2f, 0x1.8p+23f), k = rounder - 0x1.8p+23f;
    return sine_of_halves(fmaf(k, -0x1.4442d2p-23f, fmaf(k, -0x1.921fb4p+1f, x)), rounder);
}
/* The sine of x and a right angle, x being (k - 1 / 2) pi + r. */
DEVICE float cosine_half(float x)
{
    float rounder = fmaf(x, 0x1.45f306p-2f, 0.5f) + 0x1.8p+23f, middle = (rounder - 0x1.8p+23f) - 0.5f;
    return sine_of_halves(fmaf(middle, -0x1.4442d2p-23f, fmaf(middle, -0x1.921fb4p+1f, x)), rounder);
}
"""

TANGENT = r"""
/* Of a float16: of q right angles and r, q being the lowest bits of `rounder`. */
DEVICE float tangent_half(float x)
{
    float rounder = fmaf(x, 0x1.45f306p-1f, 0x1.8p+23f), q = rounder - 0x1.8p+23f;
    float r = fmaf(q, -0x1.4442d2p-24f, fmaf(q, -0x1.921fb4p+0f, x)), z = r * r;
    float p = fmaf(fmaf(fmaf(0x1.4b2afep-6f, z, 0x1.a560f8p-7f), z, 0x1.d2a32cp-5f), z, 0x1.1034bep-3f);
    float made = fmaf(fmaf(p, z, 0x1.555a44p-2f), z * r, r);
    return bits_of_float(rounder) & 1u ? reciprocal_of_normal(-made) : made;
}
"""

HYPERBOLIC_SINE = r"""
DEVICE float sinh_half(float x)
{
    float z = x * x, e = exp2_flushed(fabsf(x) * 0x1.715476p+0f);
    float near = fmaf(fmaf(fmaf(0x1.abb166p-13f, z, 0x1.10f45ep-7f), z, 0x1.5555b0p-3f), z, 1.0f) * x;
    return z < 1.0f ? near : copysignf(fmaf(e, 0.5f, -0.5f * reciprocal_of_normal(e)), x);
}
"""

FLOOR_OF_SUM = r"""
/* The next whole number of a x + b below, or if UP above. Both ends of what the sum may be are rounded to it; if that
   is not the same, a whole number is nearer to the sum than float32 has digits. */
template <bool NEAR, bool UP> DEVICE float floor_of_sum(float a, float x, float b, bool& far)
{
    if (!NEAR) {
        wide sum = plus(times(widened(a), widened(x)), widened(b));
        return narrowed(UP ? ceil_of(sum, far) : floor_of(sum, far));
    }
    float factor = UP ? -a : a, addend = UP ? -b : b;
    float low = product_plus_down(factor, x, addend), high = product_plus_up(factor, x, addend);
    float made = plus_down(low, 0x1.8p+23f);
    far |= !(fabsf(low) < 0x1p+22f) | (made != plus_down(high, 0x1.8p+23f));
    made = copysignf(made - 0x1.8p+23f, high);
    return UP ? -made : made;
}
template <bool UP> DEVICE float floor_of_sum(float a, float x, float b)
{
    bool far = false;
    float made = floor_of_sum<true, UP>(a, x, b, far);
    return far ? floor_of_sum<false, UP>(a, x, b, far) : made;
}
"""

ERROR_FUNCTION = r"""
/* Up to 1 a polynomial of the square; beyond, 1 less a power of 2. */
DEVICE float erf_half(float x)
{
    float size = fabsf(x), z = x * x;
    float p = fmaf(fmaf(0x1.c9f964p-9f, z, -0x1.a0efd0p-6f), z, 0x1.cc26dap-4f);
    float near = fmaf(fmaf(p, z, -0x1.8116f6p-2f), z, 0x1.20dd60p+0f) * x;
    float g = fmaf(fmaf(fmaf(-0x1.4c67e8p-5f, size, -0x1.1a6256p+0f), size, -0x1.7a723cp+0f), size, -0x1.7cd678p-5f);
    return size < 1.0f ? near : copysignf(1.0f - exp2_flushed(g), x);
}
"""

POWER_HALF = r"""
/* pow by logarithm and power of 2, the logarithm as exact as 2^-22 of it near 1, which large exponents magnify. */
DEVICE float power_of_halves(float x, float y)
{
    float size = fabsf(x), f = size - 1.0f;
    float p = fmaf(fmaf(0x1.42b4bcp-3f, f, -0x1.733f0ap-3f), f, 0x1.986bacp-3f);
    p = fmaf(fmaf(fmaf(p, f, -0x1.ff0b72p-3f), f, 0x1.55572ep-2f), f, -0x1.00007cp-1f);
    float near = fmaf(p, f, 1.0f) * (f * 0x1.715476p+0f), logarithm = fabsf(f) < 0.25f ? near : log2_flushed(size);
    float made = exp2_flushed(y * logarithm), half = y * 0.5f;
    made = (y == 0.0f) | (size == 1.0f) ? 1.0f : made;
    bool whole = truncf(y) == y, odd = whole & (truncf(half) != half);
    made = odd ? copysignf(made, x) : made;
    return (x < 0.0f) & (size <= 0x1.fffffep+127f) & !whole ? NOT_A_NUMBER : made; /* of NaN it is that already */
}
"""
