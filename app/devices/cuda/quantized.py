"""Sums of quantized numbers, in C++: which integer is next to them is found by integers."""

ROUNDED_SUM = r"""
#define DOUBT 520 /* what a sum of shares errs by: 255 (1 + 1), and some */
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
/* a x + b y + others = all 2^16 + rest, times 2^F; what of it depends on scales and zeros alone, which compilers take
   out of loops. Bytes that are SIGNED are 128 larger meanwhile. Fractions below the
   `limit` may be another integer's. */
struct sum_of_shares { unsigned high, low, limit; int others, rest, places; bool exact; };
template <bool SIGNED_A, bool SIGNED_B>
DEVICE sum_of_shares shares_of(int a_zero, float a_scale, int b_zero, float b_scale, float s, int zero)
{
    share x = share_of(a_scale, s), y = share_of(b_scale, s);
    int most = x.e > y.e ? x.e : y.e;
    int places = 29 - most, further = places > 31 ? places - 31 : 0; /* places is F */
    divide_by_power(x, most - x.e + further);
    divide_by_power(y, most - y.e + further);
    places -= further;
    sum_of_shares made;
    made.exact = x.exact & y.exact;
    bool far = !(is_normal(a_scale) & is_normal(b_scale) & is_normal(s)) | (places < 17);
    made.places = places < 17 ? 17 : places;
    long long others = ((long long)zero << made.places) + (1ll << (made.places - 1)) + (made.exact ? 0 : DOUBT);
    others -= (long long)(a_zero + (SIGNED_A ? 128 : 0)) * x.factor;
    others -= (long long)(b_zero + (SIGNED_B ? 128 : 0)) * y.factor;
    made.high = ((unsigned)x.factor >> 16) | ((unsigned)y.factor & 0xffff0000u);
    made.low = ((unsigned)x.factor & 0xffffu) | ((unsigned)y.factor << 16);
    made.others = (int)(others >> 16);
    made.rest = (int)(others & 0xffff);
    made.limit = far ? ~0u : made.exact ? 0u : (2u * DOUBT + 1u) << (32 - made.places);
    return made;
}
/* The sum's integer, and the fraction after it: of two that stand in half AT of `pairs`, a before b. */
struct rounded { int whole; unsigned fraction; };
template <int AT> DEVICE rounded rounded_at(const sum_of_shares& shares, unsigned pairs)
{
    unsigned rest = (unsigned)products_of_bytes<AT, false>(shares.low, pairs, shares.rest);
    int all = products_of_bytes<AT, true>(shares.high, pairs, shares.others) + (int)(rest >> 16);
    return rounded{all >> (shares.places - 16), shifted_left(rest << 16, (unsigned)all, 48 - shares.places)};
}
/* Of two the even one, before it was moved. */
DEVICE int evened(rounded sum, int zero) { return sum.whole - (sum.fraction == 0u ? (sum.whole ^ zero) & 1 : 0); }
DEVICE unsigned less_of(unsigned a, unsigned b) { return a < b ? a : b; }
/* The same, for a, b and their zeros of 8 bits: by integers, times 2^F, if NEAR. Where the sum is so near to halfway
   that it is not known on which side, it is `far`. */
template <bool NEAR, bool SIGNED_A, bool SIGNED_B, int LEAST, int MOST>
DEVICE int rounded_sum(int a, int a_zero, float a_scale, int b, int b_zero, float b_scale, float s, int zero, bool& far)
{
    if (!NEAR) return rounded_sum_far<LEAST, MOST>(a - a_zero, a_scale, b - b_zero, b_scale, s, zero);
    sum_of_shares shares = shares_of<SIGNED_A, SIGNED_B>(a_zero, a_scale, b_zero, b_scale, s, zero);
    unsigned pair = (unsigned)(a + (SIGNED_A ? 128 : 0)) | (unsigned)(b + (SIGNED_B ? 128 : 0)) << 8;
    rounded sum = rounded_at<0>(shares, pair);
    far |= sum.fraction < shares.limit;
    int n = shares.exact ? evened(sum, zero) : sum.whole;
    return n < LEAST ? LEAST : n > MOST ? MOST : n;
}
template <bool SIGNED_A, bool SIGNED_B, int LEAST, int MOST>
DEVICE int rounded_sum(int a, int a_zero, float a_scale, int b, int b_zero, float b_scale, float s, int zero)
{
    bool far = false;
    int n = rounded_sum<true, SIGNED_A, SIGNED_B, LEAST, MOST>(a, a_zero, a_scale, b, b_zero, b_scale, s, zero, far);
    return far ? rounded_sum_far<LEAST, MOST>(a - a_zero, a_scale, b - b_zero, b_scale, s, zero) : n;
}
/* Four of them, from words of four bytes each. */
template <bool SIGNED_A, bool SIGNED_B, int LEAST, int MOST>
DEVICE unsigned rounded_sums(
    unsigned a, int a_zero, float a_scale, unsigned b, int b_zero, float b_scale, float s, int zero, bool& far)
{
    sum_of_shares shares = shares_of<SIGNED_A, SIGNED_B>(a_zero, a_scale, b_zero, b_scale, s, zero);
    if (SIGNED_A) a ^= 0x80808080u;
    if (SIGNED_B) b ^= 0x80808080u;
    unsigned first = bytes_of_both<0x5140>(a, b), last = bytes_of_both<0x7362>(a, b);
    rounded n0 = rounded_at<0>(shares, first), n1 = rounded_at<1>(shares, first);
    rounded n2 = rounded_at<0>(shares, last), n3 = rounded_at<1>(shares, last);
    if (shares.exact) {
        n0.whole = evened(n0, zero); n1.whole = evened(n1, zero);
        n2.whole = evened(n2, zero); n3.whole = evened(n3, zero);
    }
    unsigned least = less_of(less_of(n0.fraction, n1.fraction), less_of(n2.fraction, n3.fraction));
    far |= least < shares.limit;
    return saturated_word<(LEAST < 0)>(n0.whole, n1.whole, n2.whole, n3.whole);
}
"""
"""Over WIDES of `wide.py`."""
