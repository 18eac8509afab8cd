"""Taichi kernels over arrays, parallel over the outermost loop. BENCH_TI_CACHE=1 keeps compiled kernels under $BENCH_CACHE.

No postponed annotations here: Taichi reads the kernels' types from them.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import taichi as ti
from ops import Op

ti.init(
    arch=ti.cpu,
    cpu_max_num_threads=int(os.environ["BENCH_THREADS"]),
    fast_math=True,
    offline_cache=bool(os.environ.get("BENCH_TI_CACHE")),
    offline_cache_file_path=os.environ["BENCH_CACHE"] + "/taichi",
    log_level=ti.ERROR,
)
A1, A2, A3, A4, A5 = (ti.types.ndarray(dtype=ti.f32, ndim=rank) for rank in range(1, 6))


def versions() -> dict[str, str]:
    return {"taichi": ".".join(map(str, ti.__version__))}


def tmm(A: A2, B: A2, C: A2):
    for m, n in ti.ndrange(A.shape[0], B.shape[0]):
        s = 0.0
        for k in range(A.shape[1]):
            s += A[m, k] * B[n, k]
        C[m, n] = s


def mm(A: A2, B: A2, C: A2):
    for m in range(A.shape[0]):
        for n in range(B.shape[1]):
            C[m, n] = 0.0
        for k in range(A.shape[1]):
            a = A[m, k]
            for n in range(B.shape[1]):
                C[m, n] += a * B[k, n]


def tbmm(X: A3, Y: A3, Z: A3):
    for b, n in ti.ndrange(X.shape[0], X.shape[1]):
        for k in range(Y.shape[1]):
            s = 0.0
            for m in range(X.shape[2]):
                s += X[b, n, m] * Y[b, k, m]
            Z[b, n, k] = s


def gconv(X: A5, W: A5, B: A2, Y: A5):
    for n, g, f in ti.ndrange(Y.shape[0], Y.shape[1], Y.shape[2]):
        for h in range(Y.shape[3]):
            for w in range(Y.shape[4]):
                s = B[g, f]
                for c in range(X.shape[2]):
                    for kh in ti.static(range(3)):
                        for kw in ti.static(range(3)):
                            s += X[n, g, c, h + kh, w + kw] * W[g, f, c, kh, kw]
                Y[n, g, f, h, w] = s


def mlp1(X: A2, W: A2, B: A1, Y: A2):
    for m, n in ti.ndrange(X.shape[0], W.shape[0]):
        s = B[n]
        for k in range(X.shape[1]):
            s += X[m, k] * W[n, k]
        Y[m, n] = ti.max(s, 0.0)


def softmax(X: A2, Y: A2):
    for m in range(X.shape[0]):
        top = X[m, 0]
        for n in range(X.shape[1]):
            top = ti.max(top, X[m, n])
        s = 0.0
        for n in range(X.shape[1]):
            e = ti.exp(X[m, n] - top)
            Y[m, n] = e
            s += e
        r = 1.0 / s
        for n in range(X.shape[1]):
            Y[m, n] *= r


def mttkrp(X: A3, A: A2, B: A2, M: A2):
    for i, r in ti.ndrange(X.shape[0], A.shape[1]):
        total = 0.0
        for j in range(X.shape[1]):
            t = 0.0
            for k in range(X.shape[2]):
                t += X[i, j, k] * B[k, r]
            total += t * A[j, r]
        M[i, r] = total


def tccg4(A: A4, B: A4, C: A4):
    for a, b in ti.ndrange(A.shape[0], A.shape[2]):
        for c in range(B.shape[2]):
            for d in range(B.shape[0]):
                s = 0.0
                for e in range(A.shape[1]):
                    for f in range(A.shape[3]):
                        s += A[a, e, b, f] * B[d, f, c, e]
                C[a, b, c, d] = s


def tiny(A: A1, B: A1, C: A1):
    for i in A:
        C[i] = A[i] + B[i]


FORMS = {
    **dict.fromkeys(("tmm_s", "tmm_m", "c3"), tmm),
    **dict.fromkeys(("mm_1024", "mm_odd"), mm),
    **dict.fromkeys(("gconv_56", "gconv_14", "gconv_7"), gconv),
    "tbmm": tbmm,
    "mlp1": mlp1,
    "softmax": softmax,
    "mttkrp": mttkrp,
    "tccg4": tccg4,
    "tiny": tiny,
}


def build(op: Op, arguments: Sequence[Any]) -> Callable[..., Any]:
    if op.name not in FORMS:
        raise NotImplementedError(op.name)
    kernel = ti.kernel(FORMS[op.name])
    output = np.empty(next(iter(op.outputs.values())), np.float32)

    def call(*arrays: np.ndarray) -> np.ndarray:
        kernel(*arrays, output)
        return output

    return call
