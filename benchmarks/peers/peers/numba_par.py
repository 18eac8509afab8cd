"""Numba loops as a competent user would write them: prange outside, fastmath, the contiguous axis innermost.

BENCH_NUMBA_CACHE=1 keeps compiled code.
"""
from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from numba import prange
from ops import Op

numba.set_num_threads(int(os.environ["BENCH_THREADS"]))
KEEP = bool(os.environ.get("BENCH_NUMBA_CACHE"))
f32 = np.float32
DILATION = 32  # of the WaveNet layer
BLOCK = 200  # its time steps at once


def versions() -> dict[str, str]:
    return {"numba": numba.__version__, "threading": os.environ.get("NUMBA_THREADING_LAYER", "default")}


def tmm(A, B):
    M, K = A.shape
    N = B.shape[0]
    C = np.empty((M, N), f32)
    for m in prange(M):
        for n in range(N):
            s = f32(0)
            for k in range(K):
                s += A[m, k] * B[n, k]
            C[m, n] = s
    return C


def mm(A, B):
    M, K = A.shape
    N = B.shape[1]
    C = np.zeros((M, N), f32)
    for m in prange(M):
        for k in range(K):
            a = A[m, k]
            for n in range(N):
                C[m, n] += a * B[k, n]
    return C


def tbmm(X, Y):
    batch, N, M = X.shape
    K = Y.shape[1]
    Z = np.empty((batch, N, K), f32)
    for b in prange(batch):
        for n in range(N):
            for k in range(K):
                s = f32(0)
                for m in range(M):
                    s += X[b, n, m] * Y[b, k, m]
                Z[b, n, k] = s
    return Z


def gconv(X, W, B):
    N, G, C, H, width = X.shape
    F, KH, KW = W.shape[1], W.shape[3], W.shape[4]
    rows, columns = H - KH + 1, width - KW + 1
    Y = np.empty((N, G, F, rows, columns), f32)
    for ng in prange(N * G):
        n = ng // G
        g = ng % G
        for f in range(F):
            for h in range(rows):
                for w in range(columns):
                    Y[n, g, f, h, w] = B[g, f]
                for c in range(C):
                    for kh in range(KH):
                        for kw in range(KW):
                            x = W[g, f, c, kh, kw]
                            for w in range(columns):
                                Y[n, g, f, h, w] += X[n, g, c, h + kh, w + kw] * x
    return Y


def mlp1(X, W, B):
    M, K = X.shape
    N = W.shape[0]
    Y = np.empty((M, N), f32)
    for m in prange(M):
        for n in range(N):
            s = B[n]
            for k in range(K):
                s += X[m, k] * W[n, k]
            Y[m, n] = max(s, f32(0))
    return Y


def mlp3(X, W2, B2, W3, B3, W4, B4):
    M, N = X.shape
    P, Q, R = len(B2), len(B3), len(B4)
    Y = np.empty((M, R), f32)
    for m in prange(M):
        t2 = np.empty(P, f32)
        t3 = np.empty(Q, f32)
        for o in range(P):
            s = B2[o]
            for k in range(N):
                s += X[m, k] * W2[o, k]
            t2[o] = max(s, f32(0))
        for o in range(Q):
            s = B3[o]
            for k in range(P):
                s += t2[k] * W3[o, k]
            t3[o] = max(s, f32(0))
        for o in range(R):
            s = B4[o]
            for k in range(Q):
                s += t3[k] * W4[o, k]
            Y[m, o] = max(s, f32(0))
    return Y


def lut1(T, index):
    B, L = index.shape
    D = T.shape[1]
    Y = np.zeros((B, D), f32)
    for b in prange(B):
        for j in range(L):
            e = index[b, j]
            for d in range(D):
                Y[b, d] += T[e, d]
    return Y


def lut2(T, index, T2, index2):
    B, L = index.shape
    D = T.shape[1]
    Y = np.zeros((B, D), f32)
    Z = np.zeros((B, D), f32)
    for b in prange(B):
        for j in range(L):
            e = index[b, j]
            e2 = index2[b, j]
            for d in range(D):
                Y[b, d] += T[e, d]
            for d in range(D):
                Z[b, d] += T2[e2, d]
    return Y, Z


def softmax(X):
    M, N = X.shape
    Y = np.empty((M, N), f32)
    for m in prange(M):
        top = X[m, 0]
        for n in range(N):
            top = max(top, X[m, n])
        s = f32(0)
        for n in range(N):
            e = np.exp(X[m, n] - top)
            Y[m, n] = e
            s += e
        r = f32(1) / s
        for n in range(N):
            Y[m, n] *= r
    return Y


def layernorm(X, g, b):
    M, N = X.shape
    Y = np.empty((M, N), f32)
    for m in prange(M):
        s = f32(0)
        v = f32(0)
        for n in range(N):
            s += X[m, n]
        mean = s / f32(N)
        for n in range(N):
            v += (X[m, n] - mean) * (X[m, n] - mean)
        r = f32(1) / f32(math.sqrt(v / f32(N) + f32(1e-5)))
        for n in range(N):
            Y[m, n] = (X[m, n] - mean) * r * g[n] + b[n]
    return Y


def bias_gelu(X, b):
    M, N = X.shape
    Y = np.empty((M, N), f32)
    for m in prange(M):
        for n in range(N):
            x = X[m, n] + b[n]
            Y[m, n] = x * f32(0.5) * (f32(1) + f32(math.erf(x * f32(0.70710678))))
    return Y


def conv2d(X, W):
    N, C, H, width = X.shape
    F, _, KH, KW = W.shape
    rows, columns = H - KH + 1, width - KW + 1
    Y = np.zeros((N, F, rows, columns), f32)
    for nf in prange(N * F):
        n = nf // F
        f = nf % F
        for c in range(C):
            for h in range(rows):
                for kh in range(KH):
                    for kw in range(KW):
                        x = W[f, c, kh, kw]
                        for w in range(columns):
                            Y[n, f, h, w] += X[n, c, h + kh, w + kw] * x
    return Y


def mttkrp(X, A, B):
    rows, J, K = X.shape
    R = A.shape[1]
    M = np.empty((rows, R), f32)
    for i in prange(rows):
        total = np.zeros(R, f32)
        for j in range(J):
            t = np.zeros(R, f32)
            for k in range(K):
                x = X[i, j, k]
                for r in range(R):
                    t[r] += x * B[k, r]
            for r in range(R):
                total[r] += t[r] * A[j, r]
        for r in range(R):
            M[i, r] = total[r]
    return M


def kru3(X, W0, W1, W2):
    M, N0, N1, N2 = X.shape
    D0, D1, D2 = W0.shape[0], W1.shape[0], W2.shape[0]
    Y = np.empty((M, D0, D1, D2), f32)
    for m in prange(M):
        last = np.zeros((N0, N1, D2), f32)
        middle = np.zeros((N0, D1, D2), f32)
        first = np.zeros((D0, D1, D2), f32)
        for n0 in range(N0):
            for n1 in range(N1):
                for d in range(D2):
                    s = f32(0)
                    for n2 in range(N2):
                        s += X[m, n0, n1, n2] * W2[d, n2]
                    last[n0, n1, d] = s
        for n0 in range(N0):
            for d1 in range(D1):
                for n1 in range(N1):
                    for d in range(D2):
                        middle[n0, d1, d] += last[n0, n1, d] * W1[d1, n1]
        for d0 in range(D0):
            for n0 in range(N0):
                for d1 in range(D1):
                    for d in range(D2):
                        first[d0, d1, d] += middle[n0, d1, d] * W0[d0, n0]
        Y[m] = first
    return Y


def tccg4(A, B):
    a_, e_, b_, f_ = A.shape
    d_, _, c_, _ = B.shape
    C = np.empty((a_, b_, c_, d_), f32)
    for ab in prange(a_ * b_):
        a = ab // b_
        b = ab % b_
        t = np.empty((f_, e_), f32)
        for e in range(e_):
            for f in range(f_):
                t[f, e] = A[a, e, b, f]
        for c in range(c_):
            for d in range(d_):
                s = f32(0)
                for f in range(f_):
                    for e in range(e_):
                        s += t[f, e] * B[d, f, c, e]
                C[a, b, c, d] = s
    return C


def moments(X):
    N, K = X.shape
    mean = np.empty(N, f32)
    variance = np.empty(N, f32)
    for n in prange(N):
        s = f32(0)
        q = f32(0)
        for k in range(K):
            x = X[n, k]
            s += x
            q += x * x
        mean[n] = s / f32(K)
        variance[n] = q / f32(K) - mean[n] * mean[n]
    return mean, variance


def tensordot(X, Y):
    N, C1, C2, H, W = X.shape
    C3 = Y.shape[2]
    Z = np.zeros((N, C1, C3, H, W), f32)
    for nc in prange(N * C1):
        n = nc // C1
        c1 = nc % C1
        for c3 in range(C3):
            for c2 in range(C2):
                for h in range(H):
                    for w in range(W):
                        Z[n, c1, c3, h, w] += X[n, c1, c2, h, w] * Y[n, c2, c3, h, w]
    return Z


def wavenet(D, FW, FB, GW, GB, RW, RB, SW, SB):
    batch, RC, T = D.shape
    DC = FW.shape[0]
    SC = SW.shape[0]
    Res = np.empty((batch, RC, T), f32)
    Skip = np.empty((batch, SC, T), f32)
    blocks = T // BLOCK
    for bt in prange(batch * blocks):
        b = bt // blocks
        t0 = (bt % blocks) * BLOCK
        gated = np.empty((DC, BLOCK), f32)
        fo = np.empty(BLOCK, f32)
        go = np.empty(BLOCK, f32)
        for c in range(DC):
            for t in range(BLOCK):
                fo[t] = FB[c]
                go[t] = GB[c]
            for rc in range(RC):
                w1 = FW[c, rc, 1]
                g1 = GW[c, rc, 1]
                w0 = FW[c, rc, 0]
                g0 = GW[c, rc, 0]
                for t in range(BLOCK):
                    x = D[b, rc, t0 + t]
                    fo[t] += x * w1
                    go[t] += x * g1
                for t in range(max(0, DILATION - t0), BLOCK):
                    x = D[b, rc, t0 + t - DILATION]
                    fo[t] += x * w0
                    go[t] += x * g0
            for t in range(BLOCK):
                gated[c, t] = np.tanh(fo[t]) * (f32(1) / (f32(1) + np.exp(-go[t])))
        for c in range(RC):
            for t in range(BLOCK):
                Res[b, c, t0 + t] = D[b, c, t0 + t] + RB[c]
            for d in range(DC):
                w = RW[c, d]
                for t in range(BLOCK):
                    Res[b, c, t0 + t] += gated[d, t] * w
        for s in range(SC):
            for t in range(BLOCK):
                Skip[b, s, t0 + t] = SB[s]
            for d in range(DC):
                w = SW[s, d]
                for t in range(BLOCK):
                    Skip[b, s, t0 + t] += gated[d, t] * w
    return Res, Skip


def tiny(A, B):
    C = np.empty_like(A)
    for i in prange(len(A)):
        C[i] = A[i] + B[i]
    return C


FORMS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("tmm_s", "tmm_m", "tmm_l", "c3"), tmm),
    **dict.fromkeys(("mm_1024", "mm_odd"), mm),
    **dict.fromkeys(("gconv_56", "gconv_14", "gconv_7"), gconv),
    **{
        form.__name__: form
        for form in (
            tbmm, mlp1, mlp3, lut1, lut2, softmax, layernorm, bias_gelu, conv2d,
            mttkrp, kru3, tccg4, moments, tensordot, wavenet, tiny,
        )  # fmt: skip
    },
}


def build(op: Op, arguments: Sequence[Any]) -> Callable[..., Any]:
    return numba.njit(parallel=True, fastmath=True, cache=KEEP)(FORMS[op.name])
