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
    float made = finite * reciprocal_approx(1.0f + exp2_flushed(scale * x * -0x1.715476p+0f));
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
