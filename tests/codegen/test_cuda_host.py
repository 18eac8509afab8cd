"""The ring that runs CUDA text on the host: hand-written kernels give NumPy's results, and each kind of broken one is caught."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.rings.cuda_host import BACKWARD, COMPILER, FORWARD, Array, Host, HostError
from support.rings.cuda_text import UnknownPTX, kernels, rewritten

from tcjit.codegen.source import KernelLaunch

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

SGEMM = """
extern "C" __global__ void __launch_bounds__(64) sgemm(float *__restrict__ C, const float *__restrict__ A, const float *__restrict__ B,
                                                       char *__restrict__ workspace, int *tc_flag) {
  __shared__ float As[16][17];  /* padded */
  __shared__ __align__(16) float Bs[16][32];
  const int tid = threadIdx.x, ty = tid / 8, tx = tid % 8;
  float acc[2][4];
  #pragma unroll
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 4; ++j)
      acc[i][j] = 0.0f;
  for (int k0 = 0; k0 < 64; k0 += 16) {
    for (int e = tid; e < 256; e += 64)
      As[e / 16][e % 16] = A[(blockIdx.y * 16 + e / 16) * 64 + k0 + e % 16];
    for (int e = tid; e < 128; e += 64)
      *reinterpret_cast<float4 *>(&Bs[e / 8][e % 8 * 4]) = *(const float4 *)&B[(k0 + e / 8) * 96 + blockIdx.x * 32 + e % 8 * 4];
    __syncthreads();  // first
    for (int k = 0; k < 16; ++k) {
      const float4 b = *reinterpret_cast<const float4 *>(&Bs[k][tx * 4]);
      for (int i = 0; i < 2; ++i) {
        const float a = As[ty * 2 + i][k];
        acc[i][0] += a * b.x;
        acc[i][1] += a * b.y;
        acc[i][2] += a * b.z;
        acc[i][3] += a * b.w;
      }
    }
    __syncthreads();  // second
  }
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 4; ++j)
      C[(blockIdx.y * 16 + ty * 2 + i) * 96 + blockIdx.x * 32 + tx * 4 + j] = acc[i][j];
}
"""

# one block per row: partial sums, a tree of shuffles in each warp, another over the warps
ROW_SUMS = """
extern "C" __global__ void row_sums(float *__restrict__ S, const float *__restrict__ X, char *workspace, long long n, int *tc_flag) {
  __shared__ float part[4];
  const int tid = threadIdx.x;
  float sum = 0.0f;
  for (int i = tid; i < n; i += 128)
    sum += X[blockIdx.x * n + i];
  for (int step = 16; step; step /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (tid % 32 == 0)
    part[tid / 32] = sum;
  __syncthreads();
  if (tid == 0)
    S[blockIdx.x] = part[0] + part[1] + part[2] + part[3];
  if (sum != sum)
    atomicMax(tc_flag, 3);
}
"""

COPY = """
extern "C" __global__ void copy(float *__restrict__ Y, const float *__restrict__ X, char *__restrict__ workspace, int *tc_flag) {
  float *const to = (float *)__builtin_assume_aligned(Y, 16);
  const float4 *const from = (const float4 *)X;
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < 250)
    *(float4 *)(to + 4 * at) = from[at];
}
"""

HALVES = """
static __device__ __forceinline__ float tc_half_to_float(unsigned short h) {
  float x;
  asm("{cvt.f32.f16 %0, %1;}" : "=f"(x) : "h"(h));
  return x;
}
static __device__ __forceinline__ unsigned short tc_float_to_half(float x) {
  unsigned short h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
}
static __device__ __forceinline__ unsigned short tc_float_to_bfloat(float x) {
  unsigned short h;
  asm("cvt.rn.bf16.f32 %0, %1;"
      : "=h"(h)
      : "f"(x));
  return h;
}
extern "C" __global__ void halves(unsigned short *__restrict__ H, unsigned short *__restrict__ B, float *__restrict__ Z,
                                  const float *__restrict__ X, const unsigned short *__restrict__ Y, char *__restrict__ workspace,
                                  double scale, int *tc_flag) {
  const int at = blockIdx.x * 32 + threadIdx.x;
  H[at] = tc_float_to_half(X[at]);
  B[at] = tc_float_to_bfloat(X[at]);
  Z[at] = (float)scale * tc_half_to_float(Y[at]);
}
"""

# two buffers: while one tile is used, the next is on its way
STREAM = """
extern "C" __global__ void stream(float *__restrict__ Y, const float *__restrict__ X, char *__restrict__ workspace, int *tc_flag) {
  extern __shared__ __align__(16) char dynamic[];
  float *const tile = (float *)dynamic;
  const int tid = threadIdx.x;
  unsigned start = (unsigned)__cvta_generic_to_shared(tile + tid * 4);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(start), "l"(X + tid * 4) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  for (int k = 0; k < 5; ++k) {
    if (k < 4)
      asm volatile("cp.async.cg.shared.global [%0], [%1 + 0], %2;"
                   :: "r"(start + (k + 1) % 2 * 512), "l"(X + (k + 1) * 128 + tid * 4), "n"(16)
                   : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group %0;" :: "n"(1) : "memory");
    __syncthreads();  // arrived
    for (int i = 0; i < 4; ++i)
      Y[k * 128 + i * 32 + tid] = 2.0f * tile[k % 2 * 128 + (i * 32 + (tid * 7) % 32 + 1) % 128];
    __syncthreads();  // used
  }
}
"""


def permuted(x: Array) -> Array:
    """What STREAM computes."""
    tid = np.arange(32)
    at = np.stack([(i * 32 + tid * 7 % 32 + 1) % 128 for i in range(4)]).ravel()
    return (2 * x.reshape(5, 128)[:, at]).ravel()


# C = A B for 16 x 16 times 16 x 8 of 16 bits, both in shared memory row by row
MATRIX = """
extern "C" __global__ void matrix(float *__restrict__ C, const unsigned short *__restrict__ A, const unsigned short *__restrict__ B,
                                  char *__restrict__ workspace, int *tc_flag) {
  __shared__ __align__(16) unsigned short As[16][24], Bs[16][8];
  const int lane = threadIdx.x;
  for (int e = lane; e < 256; e += 32)
    As[e / 16][e % 16] = A[e];
  for (int e = lane; e < 128; e += 32)
    Bs[e / 8][e % 8] = B[e];
  __syncwarp();
  unsigned a[4], b[2];
  float c0 = 0.0f, c1 = 0.0f, c2 = 0.0f, c3 = 0.0f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"((unsigned)__cvta_generic_to_shared(&As[lane % 16][lane / 16 * 8])));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(b[0]), "=r"(b[1])
               : "r"((unsigned)__cvta_generic_to_shared(&Bs[lane % 16][0])));
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.KIND.KIND.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  *(float2 *)&C[lane / 4 * 8 + lane % 4 * 2] = make_float2(c0, c1);
  *(float2 *)&C[(lane / 4 + 8) * 8 + lane % 4 * 2] = make_float2(c2, c3);
}
"""

# registers as they are: every lane's fragments from memory, every lane's accumulators back
FRAGMENTS = """
extern "C" __global__ void fragments(float *__restrict__ D, const unsigned *__restrict__ A, const unsigned *__restrict__ B,
                                     const float *__restrict__ C, char *__restrict__ workspace, int *tc_flag) {
  const int t = threadIdx.x;
  asm volatile("mma.sync.aligned.SHAPE {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
               : "=f"(D[t * 4]), "=f"(D[t * 4 + 1]), "=f"(D[t * 4 + 2]), "=f"(D[t * 4 + 3])
               : "r"(A[t * 4]), "r"(A[t * 4 + 1]), "r"(A[t * 4 + 2]), "r"(A[t * 4 + 3]), "r"(B[t * 2]), "r"(B[t * 2 + 1]),
                 "f"(C[t * 4]), "f"(C[t * 4 + 1]), "f"(C[t * 4 + 2]), "f"(C[t * 4 + 3]));
}
"""


def small(*shape: int) -> Array:
    """Small whole numbers: sums are exact in any order."""
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(np.float32)


def single(text: str, symbol: str, arrays: list[Array], *, grid: int = 1, threads: int = 32, shared: int = 0, **more: Any) -> int:
    """Run one kernel whose first array is its result."""
    more.setdefault("unset", [0])
    return Host(text).run([KernelLaunch(symbol, (grid, 1, 1), threads, shared)], arrays, **more)


def assert_sgemm(text: str = SGEMM, **more: Any) -> None:
    a, b, c = small(32, 64), small(64, 96), np.empty((32, 96), np.float32)
    launch = KernelLaunch("sgemm", (3, 2, 1), 64, 16 * 17 * 4 + 16 * 32 * 4)
    assert Host(text).run([launch], [c, a, b], unset=[0], **more) == 0
    np.testing.assert_array_equal(c, a @ b)


def row_sums(text: str = ROW_SUMS, threads: int = 128) -> int:
    x, s = small(3, 300), np.empty(3, np.float32)
    flag = single(text, "row_sums", [s, x], grid=3, threads=threads, shared=16, numbers=[300])
    np.testing.assert_array_equal(s, x.sum(1))
    return flag


def assert_copy(text: str = COPY, align: int = 16) -> None:
    x, y = small(1000), np.empty(1000, np.float32)
    single(text, "copy", [y, x], grid=4, threads=64, align=align)
    np.testing.assert_array_equal(y, x)


def assert_stream(text: str = STREAM) -> None:
    x, y = small(640), np.empty(640, np.float32)
    single(text, "stream", [y, x], shared=1024)
    np.testing.assert_array_equal(y, permuted(x))


def bits(values: Array, kind: str) -> Array:
    """Small whole numbers in 16 bits."""
    return values.astype(np.float16).view(np.uint16) if kind == "f16" else (values.view(np.uint32) >> 16).astype(np.uint16)


def assert_matrix(text: str = MATRIX, kind: str = "bf16") -> None:
    a, b, c = small(16, 16), small(16, 8), np.empty((16, 8), np.float32)
    single(text.replace("KIND", kind), "matrix", [c, bits(a, kind), bits(b, kind)], shared=16 * 24 * 2 + 256)
    np.testing.assert_array_equal(c, a @ b)


# ---------------------------------------------------------------- what is right


def test_a_tiled_product() -> None:
    assert_sgemm()


def test_more_orders_of_threads_and_blocks() -> None:
    assert_sgemm(orders=[FORWARD, BACKWARD, 2, 3, 4])


def test_a_block_reduction_and_the_flag() -> None:
    assert row_sums() == 0
    x, s = np.full((1, 40), np.nan, np.float32), np.empty(1, np.float32)
    assert single(ROW_SUMS, "row_sums", [s, x], threads=128, shared=16, numbers=[40]) == 3


def test_a_vectorised_copy() -> None:
    assert_copy()


def test_copies_that_land_later() -> None:
    assert_stream()


def test_conversions_of_halves() -> None:
    x = np.random.default_rng(1).standard_normal(256).astype(np.float32) * np.float32(1e-5) ** np.arange(256).astype(np.float32).clip(0, 1)
    x[:10] = [0.0, -0.0, np.inf, -np.inf, 65519.9, 65520.0, 6e-8, 2.9e-8, 2049.0, 2051.0]
    y = np.arange(0, 65536, 256, dtype=np.uint16)
    h, b, z = np.empty(256, np.uint16), np.empty(256, np.uint16), np.empty(256, np.float32)
    single(HALVES, "halves", [h, b, z, x, y], grid=8, numbers=[2.0], unset=[0, 1, 2])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(h, x.astype(np.float16).view(np.uint16))
    raw = x.view(np.uint32).astype(np.uint64)
    np.testing.assert_array_equal(b, ((raw + 0x7FFF + (raw >> 16 & 1)) >> 16).astype(np.uint16))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(z, 2 * y.view(np.float16).astype(np.float32))


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_a_matrix_product_from_shared_memory(kind: str) -> None:
    assert_matrix(kind=kind)


@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32"])
def test_every_lane_of_a_matrix_product(kind: str) -> None:
    """Fragments laid out by the tables of the PTX ISA, one lane and register after the other."""
    k = 8 if kind == "tf32" else 16
    a, b, c = small(16, k), small(k, 8), small(16, 8)
    ra, rb = np.zeros((32, 4), np.uint32), np.zeros((32, 2), np.uint32)
    rc, want = np.zeros((32, 4), np.float32), np.zeros((32, 4), np.float32)
    for lane in range(32):
        group, member = divmod(lane, 4)
        for i in range(4):
            row, column = group + (8 if i >= 2 else 0), member * 2 + i % 2
            rc[lane, i], want[lane, i] = c[row, column], (a @ b + c)[row, column]
        if kind == "tf32":
            for i in range(4):
                ra[lane, i] = a[group + (8 if i in (1, 3) else 0), member + (4 if i >= 2 else 0)].view(np.uint32)
            for i in range(2):
                rb[lane, i] = b[member + 4 * i, group].view(np.uint32)
            continue
        for i in range(8):
            value = a[group if i in (0, 1, 4, 5) else group + 8, member * 2 + i % 2 + (8 if i >= 4 else 0)]
            ra[lane, i // 2] |= int(bits(np.array(value), kind)) << 16 * (i % 2)
        for i in range(4):
            rb[lane, i // 2] |= int(bits(np.array(b[member * 2 + i % 2 + (8 if i >= 2 else 0), group]), kind)) << 16 * (i % 2)
    d = np.empty((32, 4), np.float32)
    text = FRAGMENTS.replace("SHAPE", f"m16n8k{k}.row.col.f32.{kind}.{kind}.f32")
    single(text, "fragments", [d, ra, rb, rc])
    np.testing.assert_array_equal(d, want)


@pytest.mark.parametrize(
    ("call", "source"),
    [
        ("__shfl_sync(~0u, x, 5)", lambda t: np.full(32, 5)),
        ("__shfl_sync(~0u, x, 5, 8)", lambda t: t // 8 * 8 + 5),
        ("__shfl_up_sync(~0u, x, 3)", lambda t: np.where(t >= 3, t - 3, t)),
        ("__shfl_up_sync(~0u, x, 3, 8)", lambda t: np.where(t % 8 >= 3, t - 3, t)),
        ("__shfl_down_sync(~0u, x, 3)", lambda t: np.where(t + 3 < 32, t + 3, t)),
        ("__shfl_down_sync(~0u, x, 3, 16)", lambda t: np.where(t % 16 + 3 < 16, t + 3, t)),
        ("__shfl_xor_sync(~0u, x, 17)", lambda t: t ^ 17),
    ],
)
def test_shuffles(call: str, source: Callable[[Array], Array]) -> None:
    text = f"""extern "C" __global__ void shuffle(double *__restrict__ Y, const double *__restrict__ X, char *workspace, int *tc_flag) {{
      const double x = X[threadIdx.x];
      Y[threadIdx.x] = {call};
    }}"""
    x, y = np.arange(32.0) * 1.5, np.empty(32)
    single(text, "shuffle", [y, x])
    np.testing.assert_array_equal(y, x[source(np.arange(32))])


@pytest.mark.parametrize(
    ("threads", "lane", "mask"), [(8, 0, "0xffffffffu"), (8, 0, "0x1ffu"), (40, 32, "tid < 32 ? 0xffffffffu : 0x1ffu"), (40, 32, "~0u")]
)
@pytest.mark.parametrize("what", ["__shfl_xor_sync(MASK, x, 1)", "(__syncwarp(MASK), x)"], ids=["shuffle", "barrier"])
def test_masks_name_lanes_that_the_warp_has(threads: int, lane: int, mask: str, what: str) -> None:
    text = f"""extern "C" __global__ void f(float *__restrict__ Y, const float *__restrict__ X, char *workspace, int *tc_flag) {{
      const int tid = threadIdx.x;
      const float x = X[tid];
      Y[tid] = {what.replace("MASK", mask)};
    }}"""
    with pytest.raises(HostError, match=f"thread {lane}: __\\w+ in line 4: the mask [01f]+ names lanes beyond the 8 of the warp"):
        single(text, "f", [np.empty(threads, np.float32), small(threads)], threads=threads)
    single(text.replace(mask, mask.replace("0x1ffu", "0xffu") if "?" in mask else "tid < 32 && blockDim.x > 32 ? ~0u : 0xffu"),
           "f", [np.empty(threads, np.float32), small(threads)], threads=threads)  # fmt: skip


def test_volatile_stores_do_not_race() -> None:
    """They are relaxed operations in PTX's memory model; plain ones are none."""
    text = """extern "C" __global__ void f(float *__restrict__ Y, const float *__restrict__ X, char *workspace, int *tc_flag) {
      if (X[threadIdx.x] != X[threadIdx.x]) *(volatile int *)tc_flag = threadIdx.x / 32 + 1;
      Y[threadIdx.x] = 0.0f;
    }"""
    x, y = np.full(64, np.nan, np.float32), np.empty(64, np.float32)
    assert single(text, "f", [y, x], threads=64) in (1, 2)
    with pytest.raises(HostError, match="tc_flag depends on the order of threads"):
        single(text.replace("threadIdx.x / 32 + 1", "threadIdx.x == 63"), "f", [y, x], threads=64)
    with pytest.raises(HostError, match=r"race: thread \d+ writes tc_flag"):
        single(text.replace("volatile ", ""), "f", [y, x], threads=64)


def test_launches_follow_each_other_through_the_workspace() -> None:
    text = """
    extern "C" __global__ void first(int *__restrict__ Y, const int *__restrict__ X, char *workspace, long long n, int *tc_flag) {
      ((int *)(workspace + 64))[blockIdx.x * 32 + threadIdx.x] = X[(n - 1 - blockIdx.x * 32 - threadIdx.x) * 2];
    }
    extern "C" __global__ void second(int *__restrict__ Y, const int *__restrict__ X, char *workspace, long long n, int *tc_flag) {
      Y[threadIdx.x] += ((int *)(workspace + 64))[threadIdx.x];
    }"""
    x, y = np.arange(128, dtype=np.int32)[::2], np.full(64, 100, np.int32)
    launches = [KernelLaunch("first", (2, 1, 1), 32, 0), KernelLaunch("second", (1, 1, 1), 64, 0)]
    Host(text).run(launches, [y, x], [64], 64 + 256)
    np.testing.assert_array_equal(y, 100 + x[::-1])
    with pytest.raises(HostError, match=r"read of workspace\[64\], which nothing has written"):
        Host(text).run(launches[1:], [y, x], [64], 64 + 256)


def test_cudas_own_mathematics() -> None:
    special = pytest.importorskip("scipy.special")
    calls = {
        "erfinv(x)": special.erfinv,
        "erfcinv(x)": special.erfcinv,
        "normcdf(x)": special.ndtr,
        "normcdfinv(x)": special.ndtri,
        "erfcx(x)": special.erfcx,
        "cyl_bessel_i0(x)": special.i0,
        "j1(x)": special.j1,
        "rsqrt(x)": lambda x: 1 / np.sqrt(x),
        "sinpi(x)": lambda x: np.sin(np.pi * x),
        "norm3d(x, x, 1.0)": lambda x: np.sqrt(2 * x * x + 1),
        "exp10(x)": lambda x: 10**x,
        "fmax(x, 0.5)": lambda x: np.maximum(x, 0.5),
    }
    stores = "\n".join(f"Y[{n} * 32 + threadIdx.x] = {call};" for n, call in enumerate(calls))
    wide = f"""extern "C" __global__ void maths(double *Y, const double *X, char *workspace, int *tc_flag) {{
      double x = X[threadIdx.x];
      {stores}
    }}"""
    narrow = re.sub(r"= (\w+)\(", r"= \1f(", wide.replace("double", "float").replace(".0", ".0f"))
    x = np.linspace(0.02, 0.98, 32)
    for text, dtype, tolerance in ((wide, np.float64, 1e-13), (narrow, np.float32, 1e-6)):
        y = np.empty((len(calls), 32), dtype)
        single(text, "maths", [y, x.astype(dtype)])
        for row, function in zip(y, calls.values()):
            np.testing.assert_allclose(row, function(x.astype(dtype).astype(float)), rtol=4 * tolerance)


# ---------------------------------------------------------------- what is wrong


@pytest.mark.parametrize("order", [FORWARD, BACKWARD, 5])
@pytest.mark.parametrize("barrier", ["first", "second"])
def test_a_missing_barrier_is_a_race(barrier: str, order: int) -> None:
    unset = r"read of (As|Bs)\[\d+\], which nothing has written\n  line (19|21): "
    race = r"race: thread \d+ reads As\[\d+\], which thread \d+ wrote with no barrier between\n  line 21: .*\n  line 14: "
    with pytest.raises(HostError, match=unset if barrier == "first" else race):
        assert_sgemm(SGEMM.replace(f"__syncthreads();  // {barrier}", ""), orders=[order])


# kernel -> what is replaced in its text, by what, and what is then said
BROKEN = {
    (assert_copy, COPY): [
        ("to + 4 * at)", "to + 4 * at + 1)", r"misaligned: .*\n  line 7: \*\(float4"),
        ("(Y, 16)", "(Y + 2, 16)", "misaligned: __builtin_assume_aligned of 16 bytes at an address that is 8 mod 16"),
        ("at < 250", "at <= 250", r"block \(3, 0, 0\), thread 58: 16-byte .* out of bounds: byte 4000 of [XY], which has 4000"),
        ("from[at]", "from[at - 1]", "16-byte read out of bounds: byte -16 of X"),
        ("from[at]", "from[at == 9 ? 1 << 27 : at]", "far from every tensor"),
        ("(float4 *)(to + 4 * at)", "(float4 *)(X + 4 * at)", r"write to X\[0\], an input"),
        ("blockIdx.x * blockDim.x", "blockIdx.x * 63", r"race: thread \d+ writes Y\[252\], which a thread of another block"),
    ],
    (assert_sgemm, SGEMM): [
        ("Bs[e / 8][e % 8 * 4]", "Bs[e / 8 + 1][e % 8 * 4]", "out of"),
        ("k < 16", "k < 17", "out of"),
        ("As[e / 16][e % 16] =", "As[e / 16][e % 16 + 2] =", "index 17 is out of the array's bounds"),
        ("__align__(16) ", "", "misaligned: .* is 4 mod 16"),
        ("e < 256", "e < 250", r"read of As\[\d+\], which nothing has written"),
        ("acc[i][j] = 0.0f", "acc[i][0] = 0.0f", "C depends on the order of threads or on memory that holds no value"),
        ("acc[i][3] +=", "acc[i][4] +=", "index 4 is out"),
        ("(64) sgemm", "(32) sgemm", "launched with 64 threads, its bound is 32"),
        ("Bs[16][32]", "Bs[17][32]", "the launch says 3136 bytes of shared memory, Bs makes it at least 3264"),
        ("__syncthreads();  // second", "if (k0 < 48 || tid < 40) __syncthreads();", "40 wait at __syncthreads in line 28"),
    ],
    (row_sums, ROW_SUMS): [
        ("  __syncthreads();", "  if (tid < 96) __syncthreads();", "divergence: .* 96 wait at __syncthreads in line 12"),
        ("  __syncthreads();", "  if (tid < 96) __syncthreads();\n  else __syncthreads();", "divergence"),
        ("  for (int step", "  if (tid == 70) return;\n  for (int step", "31 wait at __shfl_xor_sync .* 1 have ended"),
        ("0xffffffffu", "0xfffffff0u", "__shfl_xor_sync in line 9: the mask fffffff0 lacks the thread's own lane 0"),
        ("long long n", "int n", "the launch passes"),
        ("step /= 2", "step /= 4", "Mismatched elements"),
    ],
    (assert_stream, STREAM): [
        ('asm volatile("cp.async.wait_group %0;" :: "n"(1) : "memory");', "", "into which a cp.async of thread \\d+ still copies"),
        ('"n"(1)', '"n"(2)', "into which a cp.async"),
        ("__syncthreads();  // arrived", "", r"read of dynamic\[\d+\], which nothing has written|race|into which a cp.async"),
        ("__syncthreads();  // used", "", r"race: thread \d+ writes dynamic"),
        ("tid * 4);\n  asm", "tid * 3);\n  asm", "misaligned: destination of a cp.async"),
    ],
    (assert_matrix, MATRIX): [
        ("  __syncwarp();\n", "", "race: .* (As|Bs)"),
        ("As[16][24]", "As[16][20]", "misaligned: row of an ldmatrix"),
        ("x2.trans", "x2", "Mismatched elements"),
        ("{%8, %9}", "{%9, %8}", "Mismatched elements"),
    ],
}
CASES = [pytest.param(*kernel, *one, id=f"{kernel[0].__name__}-{n}") for kernel, every in BROKEN.items() for n, one in enumerate(every)]


@pytest.mark.parametrize(("run", "text", "part", "other", "message"), CASES)
def test_a_broken_kernel_is_caught(run: Callable[[str], object], text: str, part: str, other: str, message: str) -> None:
    """By the ring, or by a result that is not NumPy's."""
    assert part in text
    with pytest.raises(AssertionError, match=message) as caught:
        run(text.replace(part, other))
    assert isinstance(caught.value, HostError) or message == "Mismatched elements"


def test_a_race_between_blocks_is_caught_whichever_reads() -> None:
    text = """extern "C" __global__ void kernel(int *__restrict__ Y, const int *__restrict__ X, char *workspace, int *tc_flag) {
      Y[blockIdx.x * 32 + threadIdx.x] = X[threadIdx.x];
      if (blockIdx.x == FROM)
        Y[blockIdx.x * 32 + threadIdx.x] += Y[TO * 32 + threadIdx.x];
    }"""
    for here, there in ((0, 1), (1, 0)):
        with pytest.raises(HostError, match="race: .* a thread of another block(.|\n)*\n  line 4: Y"):
            broken = text.replace("FROM", str(here)).replace("TO", str(there))
            single(broken, "kernel", [np.zeros(64, np.int32), np.ones(32, np.int32)], grid=2, unset=[])


def test_a_warp_barrier_orders_its_warp_only() -> None:
    text = """extern "C" __global__ void kernel(int *__restrict__ Y, const int *__restrict__ X, char *workspace, int *tc_flag) {
      __shared__ int s[64];
      s[threadIdx.x] = X[threadIdx.x];
      __syncwarp();
      Y[threadIdx.x] = s[threadIdx.x ^ DISTANCE];
    }"""
    x, y = np.arange(64, dtype=np.int32), np.empty(64, np.int32)
    single(text.replace("DISTANCE", "31"), "kernel", [y, x], threads=64, shared=256)
    np.testing.assert_array_equal(y, x ^ 31)
    with pytest.raises(HostError, match=r"race: thread \d+ reads s"):
        single(text.replace("DISTANCE", "32"), "kernel", [y, x], threads=64, shared=256)


def test_an_unknown_instruction_has_a_name() -> None:
    with pytest.raises(UnknownPTX, match="lop3_b32"):
        Host('extern "C" __global__ void k(int *Y, char *workspace, int *tc_flag) { asm("lop3.b32 %0, 1, 2, 3, 4;" : "=r"(Y[0])); }')


def test_rewriting_keeps_the_lines() -> None:
    for text in (SGEMM, ROW_SUMS, HALVES, STREAM, MATRIX, FRAGMENTS):
        assert rewritten(text).count("\n") == text.count("\n")
    assert kernels(SGEMM) == {"sgemm": (64, ("C", "A", "B", "workspace", "tc_flag"))}
