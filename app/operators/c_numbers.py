"""Numbers in kernels that are written in CUDA C++, without CUDA's headers."""

INTEGERS = {
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned",
    "uint64": "unsigned long long",
}
"""C++'s types by NumPy's names."""

C_TYPES = {"float32": "float", "float16": "half", **INTEGERS}
"""The same, with FLOAT16 as NUMBERS has it."""

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
