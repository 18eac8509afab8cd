# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Features of signals, estimates of statistics, recommendation, steps of optimisers, quantised layers and tensors; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.methods import sc
from generality.written_operators.networks import f64, i8, i32, ri, rn, ru, u8
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)


# ---------------------------------------------------------------- signals

op(dict(name="teager_zero_crossings", text='''
def teager_zero_crossings(float(B,T) X) -> (E, Z) {
    E(b, t) = X(b, t + 1) * X(b, t + 1) - X(b, t) * X(b, t + 2) where t in 0:T-2
    Z(b) +=! ((X(b, t) >= 0.0) != (X(b, t + 1) >= 0.0)) ? 1 : 0 where t in 0:T-1
}''', args=lambda g: [rn(g, 16, 16000)], torch=lambda X: (X[:, 1:-1] ** 2 - X[:, :-2] * X[:, 2:], ((X[:, :-1] >= 0) != (X[:, 1:] >= 0)).sum(1, dtype=i32)), tol=1e-5))


def _centroid(S, f):
    p = S.square()
    t = p.sum(1) + 1e-9
    c = (p * f[:, None]).sum(1) / t
    return c, ((p * (f[:, None] - c[:, None]) ** 2).sum(1) / t).sqrt(), torch.exp(torch.log(p + 1e-9).mean(1)) / (p.mean(1) + 1e-9)


op(dict(name="spectral_shape", text='''
def spectral_shape(float(B,K,T) S, float(K) Fr) -> (C, W, Fl) {
    P(b, k, t) = S(b, k, t) * S(b, k, t)
    Z(b, t) +=! P(b, k, t)
    N(b, t) +=! P(b, k, t) * Fr(k)
    C(b, t) = N(b, t) / (Z(b, t) + 1e-9)
    V(b, t) +=! P(b, k, t) * (Fr(k) - C(b, t)) * (Fr(k) - C(b, t))
    W(b, t) = sqrt(V(b, t) / (Z(b, t) + 1e-9))
    Lg(b, t) +=! log(P(b, k, t) + 1e-9) / K
    Fl(b, t) = exp(Lg(b, t)) / (Z(b, t) / K + 1e-9)
}''', args=lambda g: [rn(g, 4, 257, 250), torch.linspace(0, 1, 257)], torch=_centroid, tol=5e-5))


def _goertzel(X, Cs, Sn):
    return (torch.einsum("bn,kn->bk", X, Cs).square() + torch.einsum("bn,kn->bk", X, Sn).square()).sqrt()


op(dict(name="dtmf_tone_power", text='''
def dtmf_tone_power(float(B,N) X, float(K,N) Cs, float(K,N) Sn) -> (P) {
    A(b, k) +=! X(b, n) * Cs(k, n)
    C(b, k) +=! X(b, n) * Sn(k, n)
    P(b, k) = sqrt(A(b, k) * A(b, k) + C(b, k) * C(b, k))
}''', args=lambda g: [rn(g, 500, 205), rn(g, 8, 205), rn(g, 8, 205)], torch=_goertzel, tol=2e-5))


def _mic(X, D, W):
    g = X[:, torch.arange(X.shape[1])[:, None, None], (torch.arange(2000)[None, None] + D.T[:, :, None])]  # b m s t
    return torch.einsum("bmst,m->bst", g, W)


op(dict(name="delay_and_sum_beams", text='''
def delay_and_sum_beams(float(B,M,T) X, int64(S,M) D, float(M) W) -> (float(B,S,2000) Y) {
    Y(b, s, t) +=! X(b, m, t + D(s, m)) * W(m) where t in 0:2000
}''', args=lambda g: [rn(g, 2, 16, 2064), ri(g, 0, 64, 24, 16), rn(g, 16)], torch=_mic, tol=2e-5))


# ---------------------------------------------------------------- finance and statistics

op(dict(name="heston_euler_steps", text='''
def heston_euler_steps(double(P) S, double(P) V, double(2,P) Za, double(2,P) Zb, double Kp, double Th, double Xi, double Rh, double Dt) -> (Sn, Vn) {
    Va(p) = max(V(p), 0.0)
    S1(p) = S(p) * exp(0.0 - 0.5 * Va(p) * Dt + sqrt(Va(p) * Dt) * Za(0, p))
    V1(p) = V(p) + Kp * (Th - Va(p)) * Dt + Xi * sqrt(Va(p) * Dt) * (Rh * Za(0, p) + sqrt(1.0 - Rh * Rh) * Zb(0, p))
    Vb(p) = max(V1(p), 0.0)
    Sn(p) = S1(p) * exp(0.0 - 0.5 * Vb(p) * Dt + sqrt(Vb(p) * Dt) * Za(1, p))
    Vn(p) = V1(p) + Kp * (Th - Vb(p)) * Dt + Xi * sqrt(Vb(p) * Dt) * (Rh * Za(1, p) + sqrt(1.0 - Rh * Rh) * Zb(1, p))
}''', args=lambda g: [ru(g, 50000, dt=f64) + 90, ru(g, 50000, dt=f64) * 0.1, rn(g, 2, 50000, dt=f64), rn(g, 2, 50000, dt=f64), sc(1.5, f64), sc(0.04, f64), sc(0.3, f64), sc(-0.7, f64), sc(0.01, f64)],
   torch=lambda S, V, Za, Zb, Kp, Th, Xi, Rh, Dt: (lambda st: st(*st(S, V, 0), 1))(lambda s, v, i: (s * torch.exp(-0.5 * v.clamp(min=0) * Dt + (v.clamp(min=0) * Dt).sqrt() * Za[i]),
        v + Kp * (Th - v.clamp(min=0)) * Dt + Xi * (v.clamp(min=0) * Dt).sqrt() * (Rh * Za[i] + (1 - Rh * Rh) ** 0.5 * Zb[i]))), tol=1e-10))


def _shrink(X, a):
    Z = X - X.mean(0)
    S = Z.T @ Z / (X.shape[0] - 1)
    return (1 - a) * S + a * torch.diag(torch.full((S.shape[0],), S.trace().item() / S.shape[0], dtype=S.dtype))


op(dict(name="shrunk_covariance", text='''
def shrunk_covariance(double(N,D) X, double A) -> (double(D,D) C) {
    M(d) +=! X(n, d) / N
    S(i, j) +=! (X(n, i) - M(i)) * (X(n, j) - M(j)) / (N - 1.0)
    T +=! S(i, i) / D
    C(i, j) = (1.0 - A) * S(i, j) + (i == j ? A * T : 0.0)
}''', args=lambda g: [rn(g, 1200, 130, dt=f64), sc(0.2, f64)], torch=_shrink, tol=1e-9))



op(dict(name="skew_kurtosis_columns", text='''
def skew_kurtosis_columns(double(N,D) X) -> (Sk, Ku) {
    M(d) +=! X(n, d) / N
    V(d) +=! pow(X(n, d) - M(d), 2.0) / N
    T(d) +=! pow(X(n, d) - M(d), 3.0) / N
    Q(d) +=! pow(X(n, d) - M(d), 4.0) / N
    Sk(d) = T(d) / (V(d) * sqrt(V(d)))
    Ku(d) = Q(d) / (V(d) * V(d)) - 3.0
}''', args=lambda g: [rn(g, 5000, 40, dt=f64)],
   torch=lambda X: (lambda Z: (lambda v: ((Z ** 3).mean(0) / v ** 1.5, (Z ** 4).mean(0) / v ** 2 - 3))((Z ** 2).mean(0)))(X - X.mean(0)), tol=1e-9))


op(dict(name="mann_whitney_u", text='''
def mann_whitney_u(float(F,N) X, float(F,M) Y) -> (U) {
    U(f) +=! X(f, i) > Y(f, j) ? 1.0 : (X(f, i) == Y(f, j) ? 0.5 : 0.0)
}''', args=lambda g: [rn(g, 20, 311), rn(g, 20, 287)],
   torch=lambda X, Y: ((X[:, :, None] > Y[:, None]).float() + 0.5 * (X[:, :, None] == Y[:, None]).float()).sum((1, 2)), tol=1e-5))


def _partial_corr(X):
    Z = X - X.mean(0)
    Z = Z / Z.square().sum(0).sqrt()
    return Z.T @ Z


op(dict(name="correlation_matrix", text='''
def correlation_matrix(float(N,D) X) -> (R) {
    M(d) +=! X(n, d) / N
    V(d) +=! (X(n, d) - M(d)) * (X(n, d) - M(d))
    R(i, j) +=! (X(n, i) - M(i)) * (X(n, j) - M(j)) * rsqrt(V(i)) * rsqrt(V(j))
}''', args=lambda g: [rn(g, 2000, 90)], torch=_partial_corr, tol=5e-5))


op(dict(name="tfidf_rows", text='''
def tfidf_rows(int64(D,L) W, float(V) Idf) -> (float(D,1000) T) {
    C(d, W(d, l)) +=! 1.0 where W(d, l) in 0:1000, d in 0:D
    N(d) +=! C(d, v) * Idf(v) * C(d, v) * Idf(v)
    T(d, v) = C(d, v) * Idf(v) * rsqrt(N(d) + 1e-9)
}''', args=lambda g: [ri(g, 0, 1000, 200, 180), ru(g, 1000) + 0.1],
   torch=lambda W, I: F.normalize(torch.zeros(len(W), 1000).scatter_add(1, W, torch.ones_like(W, dtype=torch.float32)) * I, dim=1), tol=2e-5))


# ---------------------------------------------------------------- recommendation, graphs

op(dict(name="bpr_loss", text='''
def bpr_loss(float(U,D) Us, float(I,D) It, int64(B) A, int64(B) P, int64(B) N) -> (Loss) {
    S(b) +=! Us(A(b), d) * (It(P(b), d) - It(N(b), d))
    Loss +=! log(1.0 + exp(0.0 - S(b))) / B
}''', args=lambda g: [rn(g, 3000, 48) * 0.2, rn(g, 5000, 48) * 0.2, ri(g, 0, 3000, 4096), ri(g, 0, 5000, 4096), ri(g, 0, 5000, 4096)],
   torch=lambda U, I, a, p, n: -F.logsigmoid((U[a] * (I[p] - I[n])).sum(1)).mean(), tol=2e-5))


def _autoint(X, Wq, Wk, Wv, Wr):
    q, k, v = (torch.einsum("bfd,hde->bhfe", X, W) for W in (Wq, Wk, Wv))
    return F.relu((torch.softmax(q @ k.transpose(-1, -2), -1) @ v).permute(0, 2, 1, 3).flatten(2) + X @ Wr)


op(dict(name="autoint_layer", text='''
def autoint_layer(float(B,F,D) X, float(H,D,E) Wq, float(H,D,E) Wk, float(H,D,E) Wv, float(D,HE) Wr) -> (float(B,F,HE) Y) {
    Q(b, h, f, e) +=! X(b, f, d) * Wq(h, d, e)
    K(b, h, f, e) +=! X(b, f, d) * Wk(h, d, e)
    V(b, h, f, e) +=! X(b, f, d) * Wv(h, d, e)
    T(b, h, f, g) +=! Q(b, h, f, e) * K(b, h, g, e)
    M(b, h, f) max=! T(b, h, f, g)
    P(b, h, f, g) = exp(T(b, h, f, g) - M(b, h, f))
    Z(b, h, f) +=! P(b, h, f, g)
    O(b, h, f, e) +=! P(b, h, f, g) * V(b, h, g, e)
    R(b, f, o) +=! X(b, f, d) * Wr(d, o)
    Y(b, f, o) = max(R(b, f, o) + O(b, o / E, f, o % E) / Z(b, o / E, f), 0.0)
}''', args=lambda g: [rn(g, 256, 26, 16) * 0.5, rn(g, 2, 16, 16) * 0.3, rn(g, 2, 16, 16) * 0.3, rn(g, 2, 16, 16) * 0.3, rn(g, 16, 32) * 0.3], torch=_autoint, tol=5e-5))


def _sage(X, N, D, Ws, Wn):
    m = torch.arange(N.shape[1])[None] < D[:, None]
    a = torch.where(m[:, :, None], X[N], -math.inf).amax(1)
    a = torch.where(D[:, None] > 0, a, 0.0)
    return F.normalize(F.relu(X @ Ws.T + a @ Wn.T), dim=1)


op(dict(name="sage_max_normalised", text='''
def sage_max_normalised(float(V,C) X, int64(V,K) N, int64(V) D, float(E,C) Ws, float(E,C) Wn) -> (Y) {
    A(v, c) max=! k < D(v) ? X(N(v, k), c) : -3e38
    G(v, c) = D(v) > 0 ? A(v, c) : 0.0
    S(v, e) +=! X(v, c) * Ws(e, c)
    S(v, e) += G(v, c) * Wn(e, c)
    R(v, e) = max(S(v, e), 0.0)
    Q(v) +=! R(v, e) * R(v, e)
    Y(v, e) = R(v, e) / max(sqrt(Q(v)), 1e-12)
}''', args=lambda g: [rn(g, 2000, 64), ri(g, 0, 2000, 2000, 12), ri(g, 0, 13, 2000), rn(g, 48, 64) * 0.1, rn(g, 48, 64) * 0.1], torch=_sage, tol=5e-5))


op(dict(name="appnp_two_steps", text='''
def appnp_two_steps(float(N,C) H, float(N,N) A, float Al) -> (Z) {
    Y(i, c) +=! A(i, j) * H(j, c) * (1.0 - Al)
    Y(i, c) += Al * H(i, c)
    Z(i, c) +=! A(i, j) * Y(j, c) * (1.0 - Al)
    Z(i, c) += Al * H(i, c)
}''', args=lambda g: [rn(g, 700, 32), ru(g, 700, 700) * 0.003, sc(0.1)], torch=lambda H, A, al: (lambda s: s(s(H)))(lambda Z: (1 - al) * (A @ Z) + al * H), tol=2e-5))


# ---------------------------------------------------------------- quantised layers, optimisers

def _w4(X, Q, S, Z):
    lo, hi = (Q & 15).float(), (Q >> 4).float()
    W = torch.stack([lo, hi], -1).flatten(1)
    W = (W.unflatten(1, (-1, 64)) - Z[:, :, None]) * S[:, :, None]
    return X @ W.flatten(1).T


op(dict(name="awq_zero_point_gemm", text='''
def awq_zero_point_gemm(float(M,K) X, uint8(N,K2) Q, float(N,G) S, float(N,G) Z) -> (float(M,N) Y) {
    Y(m, n) +=! X(m, k) * ((k % 2 == 0 ? float(Q(n, k / 2) % 16) : float(Q(n, k / 2) / 16)) - Z(n, k / 64)) * S(n, k / 64)
}''', args=lambda g: [rn(g, 16, 1024), ri(g, 0, 256, 768, 512, dt=u8), ru(g, 768, 16) * 0.02, torch.floor(ru(g, 768, 16) * 16)], torch=_w4, tol=5e-5))


def _i8lstm(X, W, sx, sw, b):
    a = (X.int() @ W.int().T).float() * sx * sw + b
    i, f, g, o = a.chunk(4, 1)
    return torch.sigmoid(i) * torch.tanh(g), torch.sigmoid(f), torch.sigmoid(o)


op(dict(name="int8_lstm_gates", text='''
def int8_lstm_gates(int8(B,K) X, int8(4,H,K) W, float Sx, float(4,H) Sw, float(4,H) Bs) -> (U, Fg, Og) {
    A(b, g, h) +=! int32(X(b, k)) * int32(W(g, h, k))
    T(b, g, h) = float(A(b, g, h)) * Sx * Sw(g, h) + Bs(g, h)
    U(b, h) = sigmoid(T(b, 0, h)) * tanh(T(b, 2, h))
    Fg(b, h) = sigmoid(T(b, 1, h))
    Og(b, h) = sigmoid(T(b, 3, h))
}''', args=lambda g: [ri(g, -128, 128, 24, 320, dt=i8), ri(g, -128, 128, 4, 256, 320, dt=i8), sc(0.01), ru(g, 4, 256) * 0.01, rn(g, 4, 256)],
   torch=lambda X, W, sx, sw, b: (lambda a: (torch.sigmoid(a[:, 0]) * torch.tanh(a[:, 2]), torch.sigmoid(a[:, 1]), torch.sigmoid(a[:, 3])))(((X.float() @ W.flatten(0, 1).float().T).view(-1, 4, 256)) * sx * sw + b), tol=2e-5))


op(dict(name="log2_quantise", text='''
def log2_quantise(float(N,M) X) -> (int8(N,M) Q, Y) {
    L(n, m) = clamp(floor(log2(abs(X(n, m)) + 1e-12) + 0.5), -7.0, 0.0)
    Q(n, m) = int8(L(n, m) * (X(n, m) < 0.0 ? -1.0 : 1.0))
    Y(n, m) = (X(n, m) < 0.0 ? -1.0 : 1.0) * exp2(L(n, m))
}''', args=lambda g: [rn(g, 300, 1000)], torch=lambda X: (lambda L, s: ((L * s).to(i8), s * torch.exp2(L)))(torch.floor(torch.log2(X.abs() + 1e-12) + 0.5).clamp(-7, 0), torch.where(X < 0, -1.0, 1.0)), tol=1e-5))


def _amsgrad(P, G, M, V, Vm, lr, c1, c2):
    m = 0.9 * M + 0.1 * G
    v = 0.999 * V + 0.001 * G * G
    vm = torch.maximum(Vm, v)
    return P - lr * (m / c1) / ((vm / c2).sqrt() + 1e-8), m, v, vm


op(dict(name="amsgrad_step", text='''
def amsgrad_step(float(N) P, float(N) G, float(N) M, float(N) V, float(N) Vm, float Lr, float C1, float C2) -> (Pn, Mn, Vn, Xn) {
    Mn(n) = 0.9 * M(n) + 0.1 * G(n)
    Vn(n) = 0.999 * V(n) + 0.001 * G(n) * G(n)
    Xn(n) = max(Vm(n), Vn(n))
    Pn(n) = P(n) - Lr * (Mn(n) / C1) / (sqrt(Xn(n) / C2) + 1e-8)
}''', args=lambda g: [rn(g, 300007), rn(g, 300007), rn(g, 300007), ru(g, 300007), ru(g, 300007), sc(0.001), sc(0.5), sc(0.1)], torch=_amsgrad, tol=1e-4))


op(dict(name="clip_grad_norm_two", text='''
def clip_grad_norm_two(float(N,M) A, float(K) B, float Most) -> (Ac, Bc, Nm) {
    S +=! A(n, m) * A(n, m)
    T +=! B(k) * B(k)
    Nm = sqrt(S + T)
    Ac(n, m) = A(n, m) * min(Most / (Nm + 1e-6), 1.0)
    Bc(k) = B(k) * min(Most / (Nm + 1e-6), 1.0)
}''', args=lambda g: [rn(g, 512, 700), rn(g, 700), sc(1.0)], torch=lambda A, B, m: (lambda n: (A * (m / (n + 1e-6)).clamp(max=1), B * (m / (n + 1e-6)).clamp(max=1), n))((A.square().sum() + B.square().sum()).sqrt()), tol=2e-5))


# ---------------------------------------------------------------- linear algebra and tensors

op(dict(name="trace_of_products", text='''
def trace_of_products(float(B,N,N) X, float(B,N,N) Y, float(B,N,N) Z) -> (T) {
    T(b) +=! X(b, i, j) * Y(b, j, k) * Z(b, k, i)
}''', args=lambda g: [rn(g, 32, 64, 64), rn(g, 32, 64, 64), rn(g, 32, 64, 64)], torch=lambda X, Y, Z: torch.einsum("bij,bjk,bki->b", X, Y, Z), tol=1e-4))


op(dict(name="commutator_norms", text='''
def commutator_norms(double(B,N,N) X, double(N,N) H) -> (R) {
    C(b, i, j) +=! X(b, i, k) * H(k, j)
    C(b, i, j) += 0.0 - H(i, k) * X(b, k, j)
    R(b) +=! C(b, i, j) * C(b, i, j)
}''', args=lambda g: [rn(g, 16, 48, 48, dt=f64), rn(g, 48, 48, dt=f64)], torch=lambda X, H: (X @ H - H @ X).square().sum((1, 2)), tol=1e-10))


op(dict(name="block_outer_update", text='''
def block_outer_update(float(H,D,E) S, float(H,D) K, float(H,E) V, float(H) G, float(H,D) Q) -> (Sn, O) {
    Sn(h, d, e) = G(h) * S(h, d, e) + K(h, d) * V(h, e)
    O(h, e) +=! Q(h, d) * Sn(h, d, e)
}''', args=lambda g: [rn(g, 32, 64, 128), rn(g, 32, 64), rn(g, 32, 128), ru(g, 32), rn(g, 32, 64)],
   torch=lambda S, K, V, G, Q: (lambda Sn: (Sn, torch.einsum("hd,hde->he", Q, Sn)))(G[:, None, None] * S + K[:, :, None] * V[:, None]), tol=2e-5))


op(dict(name="hosvd_core_4", text='''
def hosvd_core_4(double(I,J,K,L) X, double(I,A) U, double(J,B) V, double(K,C) W, double(L,D) Y) -> (G) {
    G(a, b, c, d) +=! X(i, j, k, l) * U(i, a) * V(j, b) * W(k, c) * Y(l, d)
}''', args=lambda g: [rn(g, 20, 22, 24, 26, dt=f64), rn(g, 20, 5, dt=f64), rn(g, 22, 6, dt=f64), rn(g, 24, 7, dt=f64), rn(g, 26, 4, dt=f64)],
   torch=lambda X, U, V, W, Y: torch.einsum("ijkl,ia,jb,kc,ld->abcd", X, U, V, W, Y), tol=1e-10))


op(dict(name="pair_products_upper", text='''
def pair_products_upper(float(B,F,D) X, int64(P) I, int64(P) J) -> (Y) {
    Y(b, p) +=! X(b, I(p), d) * X(b, J(p), d)
}''', args=lambda g: [rn(g, 128, 20, 32), torch.triu_indices(20, 20, 1)[0], torch.triu_indices(20, 20, 1)[1]], torch=lambda X, I, J: (X[:, I] * X[:, J]).sum(-1), tol=2e-5))


op(dict(name="cumulative_logsumexp", text='''
def cumulative_logsumexp(float(B,N) X) -> (Y) {
    M(b) max=! X(b, n)
    S(b, n) +=! m <= n ? exp(X(b, m) - M(b)) : 0.0 where m in 0:N, n in 0:N
    Y(b, n) = log(S(b, n)) + M(b)
}''', args=lambda g: [rn(g, 128, 1000)], torch=lambda X: torch.logcumsumexp(X, 1), tol=2e-5))


op(dict(name="reverse_cumsum_columns", text='''
def reverse_cumsum_columns(double(T,B) X) -> (Y) {
    Y(t, b) +=! u >= t ? X(u, b) : 0.0 where u in 0:T, t in 0:T
}''', args=lambda g: [rn(g, 500, 96, dt=f64)], torch=lambda X: X.flip(0).cumsum(0).flip(0), tol=1e-10))


op(dict(name="gradient3d_edges", text='''
def gradient3d_edges(float(A,B,C) U) -> (Gx, Gy, Gz) {
    Gx(i, j, k) = i == 0 ? U(1, j, k) - U(0, j, k) : (i == A - 1 ? U(A - 1, j, k) - U(A - 2, j, k) : 0.5 * (U(i + 1, j, k) - U(i - 1, j, k))) where i in 0:A
    Gy(i, j, k) = j == 0 ? U(i, 1, k) - U(i, 0, k) : (j == B - 1 ? U(i, B - 1, k) - U(i, B - 2, k) : 0.5 * (U(i, j + 1, k) - U(i, j - 1, k))) where j in 0:B
    Gz(i, j, k) = k == 0 ? U(i, j, 1) - U(i, j, 0) : (k == C - 1 ? U(i, j, C - 1) - U(i, j, C - 2) : 0.5 * (U(i, j, k + 1) - U(i, j, k - 1))) where k in 0:C
}''', args=lambda g: [rn(g, 48, 50, 70)], torch=lambda U: tuple(torch.gradient(U)), tol=1e-5))


def _spd(X, a):
    return torch.einsum("bij,bjk,bkl->bil", X, a, X)


op(dict(name="congruence_transform", text='''
def congruence_transform(float(B,N,M) X, float(B,N,N) A) -> (Y) {
    T(b, i, m) +=! A(b, i, j) * X(b, j, m)
    Y(b, l, m) +=! X(b, i, l) * T(b, i, m)
}''', args=lambda g: [rn(g, 200, 30, 14), rn(g, 200, 30, 30)], torch=lambda X, A: X.transpose(1, 2) @ (A @ X), tol=5e-5))


op(dict(name="nadaraya_watson", text='''
def nadaraya_watson(double(Q) Xq, double(N) X, double(N,D) Y, double Bw) -> (R) {
    K(q, n) = exp(-0.5 * (Xq(q) - X(n)) * (Xq(q) - X(n)) / (Bw * Bw))
    W(q) +=! K(q, n)
    R(q, d) +=! K(q, n) * Y(n, d)
    R(q, d) = R(q, d) / W(q)
}''', args=lambda g: [ru(g, 300, dt=f64), ru(g, 1500, dt=f64), rn(g, 1500, 8, dt=f64), sc(0.1, f64)],
   torch=lambda Xq, X, Y, bw: (lambda K: K @ Y / K.sum(1, keepdim=True))(torch.exp(-0.5 * ((Xq[:, None] - X) / bw) ** 2)), tol=1e-10))
