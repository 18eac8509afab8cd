"""The helpers that only kernels on a grid of threads have, and those that their languages write otherwise than C.

Templates as in ``prelude``. A helper of a name that stands there takes that one's place, also in the order.
"""
from __future__ import annotations

from collections.abc import Iterator

from tcjit.codegen.dialect import FLOATS, INTEGERS, GpuDialect
from tcjit.grammar.dtypes import DTYPES

# A thread keeps the greatest number of the sites that fail in a variable of its own, so that loads need not wait for a check. At the end it
# goes to memory: $F is the type of the flag there, $RAISE a statement, and some of the sites that fail stays in it.
CHECKS = """
TC_INLINE void tc_raise(int32_t site, $F *flag) {
  $RAISE
}

TC_INLINE void tc_fail(int32_t site, int32_t *failed) {
  if (*failed < site) *failed = site;
}

/* an index that is inside, or 0 and the number of the site */
TC_INLINE int64_t tc_at(int64_t index, int64_t extent, int32_t site, int32_t *failed) {
  if ((uint64_t)index < (uint64_t)extent) return index;
  tc_fail(site, failed);
  return 0;
}

/* an index; of one that is not inside, the number of the site too */
TC_INLINE int64_t tc_target(int64_t index, int64_t extent, int32_t site, int32_t *failed) {
  if ((uint64_t)index >= (uint64_t)extent) tc_fail(site, failed);
  return index;
}
"""

# the divisor itself: a division by zero gives 0
NONZERO = """
TC_INLINE $T tc_nonzero_$X($T divisor, int32_t site, int32_t *failed) {
  if (divisor == 0) tc_fail(site, failed);
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

# between the threads of a warp, all of which call this with the mask of all; $V is the value, narrow types as int
SHUFFLES = """
TC_INLINE $T tc_shuffle_xor_$X($T value, int lanes, uint32_t mask) {
  return ($T)__shfl_xor_sync(mask, $V, lanes);
}
"""

# the instructions are those of sm_80; min.NaN and max.NaN keep a NaN, and the conversions round to nearest even
_CUDA = """
#define INFINITY __int_as_float(0x7f800000)

#define NAN __int_as_float(0x7fc00000)

TC_INLINE uint32_t tc_bits_f32(float x) {
  return __float_as_uint(x);
}

TC_INLINE float tc_from_bits_f32(uint32_t bits) {
  return __uint_as_float(bits);
}

TC_INLINE float tc_half_to_float(uint16_t half) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
  return x;
}
"""

_EXTREMUM = """
TC_INLINE float tc_$N_f32(float a, float b) {
  float $P;
  asm("$N.NaN.f32 %0, %1, %2;" : "=f"($P) : "f"(a), "f"(b));
  return $P;
}
"""

_ROUNDED = """
TC_INLINE uint16_t tc_float_to_$N(float x) {
  uint16_t $N;
  asm("cvt.rn.$P.f32 %0, %1;" : "=h"($N) : "f"(x));
  return $N;
}
"""

# quotients by one divisor. Where the divisor is in a range whose ends are far from those of the floats, the remainder of a product with
# its reciprocal is exact, and corrects it to the nearest quotient; so it is for dividends that give normal quotients, and zero.
_QUOTIENTS = """
/* the least and the greatest of what is divided; of the former twice the bits less 1, by which zero is not small, nor is NaN great */
TC_INLINE void tc_range_f32(float a, uint32_t *low, float *high) {
  uint32_t bits = 2u * tc_bits_f32(a) - 1u;
  if (*low > bits) *low = bits;
  *high = fmaxf(*high, fabsf(a));
}

TC_INLINE bool tc_divides_f32(float d, uint32_t low, float high) {
  float least = fmaxf(0x1p-100f, d * 0x1p-125f);
  return d >= 0x1p-100f && d <= 0x1p+100f && low >= 2u * tc_bits_f32(least) - 1u && high < d * 0x1p+126f;
}

/* r: 1 / d */
TC_INLINE float tc_quotient_f32(float a, float d, float r) {
  float q = a * r;
  return fmaf(fmaf(q, d, -a), -r, q);
}

TC_INLINE float tc_checked_quotient_f32(float a, float d, float r, uint32_t *low, float *high) {
  tc_range_f32(a, low, high);
  return tc_quotient_f32(a, d, r);
}

static __device__ __noinline__ float tc_divided_f32(float a, float d) {
  return a / d;
}
"""

# four 8 by 8 tiles of 16-bit elements, the row of each that a thread names on a boundary of 16 bytes, and a product of 16 by 16 and 16 by 8
_MATRICES = """
TC_INLINE void tc_ldmatrix$N(uint32_t *to, const uint16_t *from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4$P.shared.b16 {%0, %1, %2, %3}, [%4];"
    : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"((uint32_t)__cvta_generic_to_shared(from)) : "memory");
}
"""

# a copy to shared memory that a thread does not wait for; arrived: all but the newest so many groups of those it sent
_COPIES = """
TC_INLINE void tc_ahead_$N(void *to, const void *from) {
  asm volatile("cp.async.$P.shared.global [%0], [%1], $N;" : : "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
"""

_ARRIVED = """
TC_INLINE void tc_arrived_$N() {
  asm volatile("cp.async.commit_group;" : : : "memory");
  asm volatile("cp.async.wait_group $N;" : : : "memory");
}
"""

_PRODUCT = """
/* low and high: two neighbours of one row each, eight rows apart */
TC_INLINE void tc_mma_$N(float *low, float *high, const uint32_t *a, const uint32_t *b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.$P.$P.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
    : "+f"(low[0]), "+f"(low[1]), "+f"(high[0]), "+f"(high[1])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
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


def _instances(template: str, *parts: tuple[str, str]) -> str:
    """A template for each name and another part."""
    return "".join(template.replace("$N", name).replace("$P", part) for name, part in parts)


_HALVES = (("half", "f16"), ("bfloat", "bf16"))
# the element in memory of another type of as many bits, $Q; what the update is there in the languages of GPUs
ATOMIC = """
TC_INLINE void tc_atomic_$N_$X($G $T *p, $T v) {
  $A(($G $Q *)p, ($Q)v);
}
"""

# Floats of one sign are ordered as their bits are, negative ones backwards. A NaN, which results keep, is the greatest of all bits, or the
# least; results of the other sign than a NaN's are none, as they start from an infinity.
ATOMIC_EXTREMA = """
TC_INLINE void tc_atomic_max_$X($G $T *p, $T v) {
  $I bits = v == v ? $VIEW(v) : $NAN;
  if (bits >= 0) $MAX(($G $I *)p, bits);
  else $MIN(($G $U *)p, ($U)bits);
}

TC_INLINE void tc_atomic_min_$X($G $T *p, $T v) {
  $I bits = v == v ? $VIEW(v) : -1;
  if (bits >= 0) $MIN(($G $I *)p, bits);
  else $MAX(($G $U *)p, ($U)bits);
}
"""

# where a language has no atomic sums of floats; the first guess is what most elements start from
ATOMIC_SUM = """
TC_INLINE void tc_atomic_add_$X($G $T *p, $T v) {
  volatile $G $U *word = (volatile $G $U *)p;
  $U seen = 0, before;
  do {
    before = seen;
    seen = $SWAP(word, before, as_$R(as_$T(before) + v));
  } while (seen != before);
}
"""

# language -> its own texts, and how a site gets into the flag. Any that fails will do: a store of whole words needs no atomic operation,
# which mapped host memory may not have across PCIe; OpenCL calls two stores of different values to one place a race.
OWN = {
    "cuda": _CUDA
    + _instances(_EXTREMUM, ("min", "least"), ("max", "most"))
    + _instances(_ROUNDED, *_HALVES)
    + _QUOTIENTS
    + _instances(_MATRICES, ("", ""), ("_trans", ".trans"))
    + _instances(_COPIES, ("4", "ca"), ("8", "ca"), ("16", "cg"))
    + _instances(_ARRIVED, *((str(count), "") for count in range(7)))
    + _instances(_PRODUCT, *_HALVES),
    "opencl": _OPENCL,
}
RAISE = {"cuda": "*(volatile int *)flag = site;", "opencl": "atomic_max(flag, site);"}


def atomic_updates(dialect: GpuDialect) -> Iterator[tuple[str, dict[str, str]]]:
    """Templates with what they are filled with."""
    cuda = dialect.name == "cuda"
    for dtype, (c_type, short) in INTEGERS.items():
        bits = DTYPES[dtype].bits
        for name in ("add", "min", "max") if bits >= 32 else ():
            function = f"atomic{name.title()}" if cuda else f"{'atomic' if bits == 32 else 'atom'}_{name}"
            kind = f"uint{bits}_t" if name == "add" else c_type
            yield ATOMIC, {"N": name, "X": short, "T": c_type, "G": dialect.pointer, "A": function, "Q": kind}
    for c_type, short, _ in FLOATS.values():
        bits = 64 if c_type == "double" else 32
        kinds = {"X": short, "T": c_type, "G": dialect.pointer, "I": f"int{bits}_t", "U": f"uint{bits}_t"}
        nan = "0x7ff8000000000000" if bits == 64 else "0x7fc00000"
        if cuda:
            view = "__double_as_longlong" if bits == 64 else "__float_as_int"
            yield ATOMIC, {**kinds, "N": "add", "A": "atomicAdd", "Q": c_type}
            yield ATOMIC_EXTREMA, {**kinds, "MAX": "atomicMax", "MIN": "atomicMin", "VIEW": view, "NAN": nan}
        else:
            prefix, word = ("atom", "long") if bits == 64 else ("atomic", "int")
            yield ATOMIC_SUM, {**kinds, "SWAP": f"{prefix}_cmpxchg", "R": f"u{word}"}
            yield ATOMIC_EXTREMA, {**kinds, "MAX": f"{prefix}_max", "MIN": f"{prefix}_min", "VIEW": f"as_{word}", "NAN": nan}
