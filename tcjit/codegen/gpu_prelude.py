"""The helpers that only kernels on a grid of threads have, and those that their languages write otherwise than C.

Templates as in ``prelude``. A helper of a name that stands there takes that one's place, also in the order.
"""
from __future__ import annotations

import re

# $F the type of a pointer to the flag, $RAISE the atomic maximum
CHECKS = """
TC_INLINE void tc_raise(int32_t site, $F flag) {
  $RAISE(flag, site);
}

/* an index that is inside, or 0 and the number of the site in the flag */
TC_INLINE int64_t tc_at(int64_t index, int64_t extent, int32_t site, $F flag) {
  if ((uint64_t)index < (uint64_t)extent) return index;
  tc_raise(site, flag);
  return 0;
}

TC_INLINE int32_t tc_at_int(int32_t index, int32_t extent, int32_t site, $F flag) {
  if ((uint32_t)index < (uint32_t)extent) return index;
  tc_raise(site, flag);
  return 0;
}
"""

# the divisor itself: a division by zero gives 0
NONZERO = """
TC_INLINE $T tc_nonzero_$X($T divisor, int32_t site, $F flag) {
  if (divisor == 0) tc_raise(site, flag);
  return divisor;
}
"""

# overflow of signed integers is undefined, so unsigned ones compute
WRAPPING = """
TC_INLINE $T tc_add_$X($T a, $T b) {
  return ($T)(($U)a + ($U)b);
}

TC_INLINE $T tc_sub_$X($T a, $T b) {
  return ($T)(($U)a - ($U)b);
}

TC_INLINE $T tc_mul_$X($T a, $T b) {
  return ($T)(($U)a * ($U)b);
}

TC_INLINE $T tc_neg_$X($T a) {
  return ($T)(0u - ($U)a);
}
"""

# the product of two 16-bit integers may not fit the int that C computes it in
WRAPPING_SHORT = """
TC_INLINE uint16_t tc_mul_u16(uint16_t a, uint16_t b) {
  return (uint16_t)((uint32_t)a * (uint32_t)b);
}
"""

# between the threads of a warp, all of which call this
SHUFFLES = """
TC_INLINE $T tc_shuffle_xor_$X($T value, int lanes) {
  return ($T)__shfl_xor_sync(0xffffffffu, value, lanes);
}

TC_INLINE $T tc_shuffle_down_$X($T value, int lanes) {
  return ($T)__shfl_down_sync(0xffffffffu, value, lanes);
}
"""

# helper -> an instruction that does the same: its PTX, the constraint of the result and those of the operands; sm_80 has all of them
PTX: dict[str, tuple[str, str, str]] = {
    "tc_min_f32": ("min.NaN.f32 %0, %1, %2;", '"=f"', '"f"(a), "f"(b)'),
    "tc_max_f32": ("max.NaN.f32 %0, %1, %2;", '"=f"', '"f"(a), "f"(b)'),
    "tc_half_to_float": ("cvt.f32.f16 %0, %1;", '"=f"', '"h"(half)'),
    "tc_float_to_half": ("cvt.rn.f16.f32 %0, %1;", '"=h"', '"f"(x)'),
    "tc_float_to_bfloat": ("cvt.rn.bf16.f32 %0, %1;", '"=h"', '"f"(x)'),
}

_CUDA = """
#define INFINITY __int_as_float(0x7f800000)

#define NAN __int_as_float(0x7fc00000)

TC_INLINE uint32_t tc_bits_f32(float x) {
  return __float_as_uint(x);
}

TC_INLINE float tc_from_bits_f32(uint32_t bits) {
  return __uint_as_float(bits);
}
"""

_OPENCL = """
TC_INLINE uint32_t tc_bits_f32(float x) {
  return as_uint(x);
}

TC_INLINE float tc_from_bits_f32(uint32_t bits) {
  return as_float(bits);
}
"""

# language -> its own texts, and its atomic maximum
OWN = {"cuda": _CUDA, "opencl": _OPENCL}
ATOMIC_MAX = {"cuda": "atomicMax", "opencl": "atomic_max"}


def by_instruction(body: str, name: str) -> str:
    """A helper that CUDA does in one instruction; compilers for another machine still get its C.

    >>> print(by_instruction("float tc_half_to_float(uint16_t half) {\\n  return 0;\\n}", "tc_half_to_float"))
    float tc_half_to_float(uint16_t half) {
    #ifdef __CUDA_ARCH__
      float result;
      asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(half));
      return result;
    #else
      return 0;
    #endif
    }
    """
    code, out, given = PTX[name]
    match = re.search(rf"^.*?(\w+) {name}\(.*\n", body, re.MULTILINE)
    assert match
    fast = f'#ifdef __CUDA_ARCH__\n  {match[1]} result;\n  asm("{code}" : {out}(result) : {given});\n  return result;\n#else\n'
    return body[: match.end()] + fast + body[match.end() : -1] + "#endif\n}"
