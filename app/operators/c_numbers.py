"""FLOAT32 and FLOAT16 in kernels that are written in CUDA C++, without CUDA's headers."""

C_TYPES = {"float32": "float", "float16": "half"}

NUMBERS = r"""
struct half { unsigned short bits; };
__device__ __forceinline__ float number(float x) { return x; }
__device__ __forceinline__ float number(half x)
{
    float y;
    asm("cvt.f32.f16 %%0, %%1;" : "=f"(y) : "h"(x.bits));
    return y;
}
__device__ __forceinline__ half rounded(float x)
{
    half y;
    asm("cvt.rn.f16.f32 %%0, %%1;" : "=h"(y.bits) : "f"(x));
    return y;
}
__device__ __forceinline__ void put(float* to, double x) { *to = (float)x; }
__device__ __forceinline__ void put(half* to, double x) { asm("cvt.rn.f16.f64 %%0, %%1;" : "=h"(to->bits) : "d"(x)); }
"""
"""With `%` twice, as in all texts that values are put into."""
