# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Optical flow and stereo, kinds of attention, returns of policies, particles on grids; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.networks import f64, ri, rn, ru, u8
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)


def sc(value, dt=torch.float32):
    return torch.tensor(value, dtype=dt)


# ---------------------------------------------------------------- vision

def _harris(I):
    gx = (I[:, 2:] - I[:, :-2])[1:-1] * 0.5
    gy = (I[2:] - I[:-2])[:, 1:-1] * 0.5
    box = lambda a: F.avg_pool2d(a[None, None], 5, 1)[0, 0] * 25
    a, b, c = box(gx * gx), box(gx * gy), box(gy * gy)
    return a * c - b * b - 0.05 * (a + c) ** 2


op(dict(name="harris_response", text='''
def harris_response(float(H,W) I) -> (R) {
    Gx(y, x) = 0.5 * (I(y + 1, x + 2) - I(y + 1, x)) where y in 0:H-2, x in 0:W-2
    Gy(y, x) = 0.5 * (I(y + 2, x + 1) - I(y, x + 1)) where y in 0:H-2, x in 0:W-2
    A(y, x) +=! Gx(y + i, x + j) * Gx(y + i, x + j) where i in 0:5, j in 0:5
    B(y, x) +=! Gx(y + i, x + j) * Gy(y + i, x + j) where i in 0:5, j in 0:5
    C(y, x) +=! Gy(y + i, x + j) * Gy(y + i, x + j) where i in 0:5, j in 0:5
    R(y, x) = A(y, x) * C(y, x) - B(y, x) * B(y, x) - 0.05 * (A(y, x) + C(y, x)) * (A(y, x) + C(y, x))
}''', args=lambda g: [rn(g, 480, 643)], torch=_harris, tol=2e-5))


def _lk(A, B):
    gx = F.pad((A[:, :, 2:] - A[:, :, :-2]) * 0.5, (1, 1))
    gy = F.pad((A[:, 2:] - A[:, :-2]) * 0.5, (0, 0, 1, 1))
    gt = B - A
    box = lambda a: F.avg_pool2d(a[:, None], 7, 1, 3, divisor_override=1)[:, 0]
    xx, xy, yy, xt, yt = box(gx * gx) + 0.1, box(gx * gy), box(gy * gy) + 0.1, box(gx * gt), box(gy * gt)
    d = xx * yy - xy * xy
    return torch.stack([(xy * yt - yy * xt) / d, (xy * xt - xx * yt) / d], 1)


op(dict(name="lucas_kanade_dense", text='''
def lucas_kanade_dense(float(N,H,W) A, float(N,H,W) B) -> (float(N,2,H,W) U) {
    Gx(n, y, x) = (x >= 1 && x < W - 1) ? 0.5 * (A(n, y, x + 1) - A(n, y, x - 1)) : 0.0 where x in 0:W
    Gy(n, y, x) = (y >= 1 && y < H - 1) ? 0.5 * (A(n, y + 1, x) - A(n, y - 1, x)) : 0.0 where y in 0:H
    Gt(n, y, x) = B(n, y, x) - A(n, y, x)
    Xx(n, y, x) +=! (y + i >= 3 && y + i < H + 3 && x + j >= 3 && x + j < W + 3) ? Gx(n, y + i - 3, x + j - 3) * Gx(n, y + i - 3, x + j - 3) : 0.0 where i in 0:7, j in 0:7, y in 0:H, x in 0:W
    Xy(n, y, x) +=! (y + i >= 3 && y + i < H + 3 && x + j >= 3 && x + j < W + 3) ? Gx(n, y + i - 3, x + j - 3) * Gy(n, y + i - 3, x + j - 3) : 0.0 where i in 0:7, j in 0:7, y in 0:H, x in 0:W
    Yy(n, y, x) +=! (y + i >= 3 && y + i < H + 3 && x + j >= 3 && x + j < W + 3) ? Gy(n, y + i - 3, x + j - 3) * Gy(n, y + i - 3, x + j - 3) : 0.0 where i in 0:7, j in 0:7, y in 0:H, x in 0:W
    Xt(n, y, x) +=! (y + i >= 3 && y + i < H + 3 && x + j >= 3 && x + j < W + 3) ? Gx(n, y + i - 3, x + j - 3) * Gt(n, y + i - 3, x + j - 3) : 0.0 where i in 0:7, j in 0:7, y in 0:H, x in 0:W
    Yt(n, y, x) +=! (y + i >= 3 && y + i < H + 3 && x + j >= 3 && x + j < W + 3) ? Gy(n, y + i - 3, x + j - 3) * Gt(n, y + i - 3, x + j - 3) : 0.0 where i in 0:7, j in 0:7, y in 0:H, x in 0:W
    D(n, y, x) = (Xx(n, y, x) + 0.1) * (Yy(n, y, x) + 0.1) - Xy(n, y, x) * Xy(n, y, x)
    U(n, a, y, x) = a == 0 ? (Xy(n, y, x) * Yt(n, y, x) - (Yy(n, y, x) + 0.1) * Xt(n, y, x)) / D(n, y, x)
        : (Xy(n, y, x) * Xt(n, y, x) - (Xx(n, y, x) + 0.1) * Yt(n, y, x)) / D(n, y, x) where a in 0:2
}''', args=lambda g: [rn(g, 2, 120, 160), rn(g, 2, 120, 160)], torch=_lk, tol=2e-4))


def _pyr(X, K):
    C = X.shape[1]
    w = (K[:, None] * K[None, :]).expand(C, 1, 5, 5)
    D = F.conv2d(F.pad(X, (2, 2, 2, 2), mode="reflect"), w, stride=2, groups=C)
    return D, X - F.interpolate(D, scale_factor=2, mode="nearest")


op(dict(name="laplacian_pyramid_level", text='''
def laplacian_pyramid_level(float(N,C,H,W) X, float(5) K) -> (D, L) {
    Rx(n, c, y, x) +=! K(k) * ((2*x + k < 2) ? X(n, c, y, 2 - 2*x - k) : (2*x + k >= W + 2 ? X(n, c, y, 2*W - 2*x - k) : X(n, c, y, 2*x + k - 2))) where x in 0:W/2, y in 0:H, k in 0:5
    D(n, c, y, x) +=! K(k) * ((2*y + k < 2) ? Rx(n, c, 2 - 2*y - k, x) : (2*y + k >= H + 2 ? Rx(n, c, 2*H - 2*y - k, x) : Rx(n, c, 2*y + k - 2, x))) where y in 0:H/2, k in 0:5
    L(n, c, y, x) = X(n, c, y, x) - D(n, c, y / 2, x / 2)
}''', args=lambda g: [rn(g, 2, 3, 256, 320), torch.tensor([1., 4., 6., 4., 1.]) / 16], torch=_pyr, tol=1e-5))


def _sad(L, R):
    P = F.pad(R, (23, 0))
    C = torch.stack([(L - P[:, 23 - d:23 - d + L.shape[1]]).abs() for d in range(24)])
    C = F.avg_pool2d(C[:, None], 5, 1, divisor_override=1)[:, 0]
    return C.argmin(0).int()


op(dict(name="stereo_block_matching", text='''
def stereo_block_matching(float(H,W) L, float(H,W) R) -> (int32(H-4,W-4) D) {
    C(d, y, x) = abs(L(y, x) - (x >= d ? R(y, x - d) : 0.0)) where d in 0:24, x in 0:W
    S(d, y, x) +=! C(d, y + i, x + j) where i in 0:5, j in 0:5
    M(y, x) min=! S(d, y, x)
    D(y, x) min=! S(d, y, x) == M(y, x) ? d : 24
}''', args=lambda g: [torch.floor(ru(g, 160, 243) * 32), torch.floor(ru(g, 160, 243) * 32)], torch=_sad, tol=0.0))


op(dict(name="color_jitter_u8", text='''
def color_jitter_u8(uint8(N,3,H,W) X, float(N) Br, float(N) Co, float(N) Sa) -> (uint8(N,3,H,W) Y) {
    G(n, y, x) = Br(n) * (0.299 * float(X(n, 0, y, x)) + 0.587 * float(X(n, 1, y, x)) + 0.114 * float(X(n, 2, y, x)))
    M(n) +=! G(n, y, x) / (H * W)
    T(n, c, y, x) = Sa(n) * float(X(n, c, y, x)) * Br(n) + (1.0 - Sa(n)) * G(n, y, x)
    Y(n, c, y, x) = uint8(clamp(Co(n) * T(n, c, y, x) + (1.0 - Co(n)) * M(n), 0.0, 255.0))
}''', args=lambda g: [ri(g, 0, 256, 8, 3, 128, 128, dt=u8), ru(g, 8) + 0.5, ru(g, 8) + 0.5, ru(g, 8) + 0.5],
   torch=lambda X, b, c, s: (lambda V: (lambda G: (c[:, None, None, None] * (s[:, None, None, None] * V + (1 - s)[:, None, None, None] * G)
        + (1 - c)[:, None, None, None] * G.mean((1, 2, 3), keepdim=True)).clamp(0, 255).to(u8))((V * torch.tensor([.299, .587, .114])[:, None, None]).sum(1, keepdim=True)))(X.float() * b[:, None, None, None]), tol=0.01))


op(dict(name="layer_norm_2d_channels_first", text='''
def layer_norm_2d_channels_first(float(N,C,H,W) X, float(C) G, float(C) B) -> (Y) {
    M(n, y, x) +=! X(n, c, y, x) / C
    V(n, y, x) +=! (X(n, c, y, x) - M(n, y, x)) * (X(n, c, y, x) - M(n, y, x)) / C
    Y(n, c, y, x) = (X(n, c, y, x) - M(n, y, x)) * rsqrt(V(n, y, x) + 1e-6) * G(c) + B(c)
}''', args=lambda g: [rn(g, 4, 96, 56, 56), rn(g, 96), rn(g, 96)],
   torch=lambda X, G, B: F.layer_norm(X.permute(0, 2, 3, 1), (X.shape[1],), G, B, 1e-6).permute(0, 3, 1, 2).contiguous(), tol=2e-5))


def _bn(X, G, B, Rm, Rv):
    rm, rv = Rm.clone(), Rv.clone()
    Y = F.relu(F.batch_norm(X, rm, rv, G, B, True, 0.1, 1e-5))
    return Y, rm, rv


op(dict(name="batch_norm_train_relu_running", text='''
def batch_norm_train_relu_running(float(N,C,H,W) X, float(C) G, float(C) B, float(C) Rm, float(C) Rv) -> (Y, Nm, Nv) {
    M(c) +=! X(n, c, y, x) / (N * H * W)
    V(c) +=! (X(n, c, y, x) - M(c)) * (X(n, c, y, x) - M(c)) / (N * H * W)
    Y(n, c, y, x) = max((X(n, c, y, x) - M(c)) * rsqrt(V(c) + 1e-5) * G(c) + B(c), 0.0)
    Nm(c) = 0.9 * Rm(c) + 0.1 * M(c)
    Nv(c) = 0.9 * Rv(c) + 0.1 * V(c) * (N * H * W) / (N * H * W - 1.0)
}''', args=lambda g: [rn(g, 8, 64, 28, 28), rn(g, 64), rn(g, 64), rn(g, 64), ru(g, 64)], torch=_bn, tol=2e-5))


# ---------------------------------------------------------------- attention and language models

def _diffattn(Q, K, V, lam):
    S = torch.softmax(torch.einsum("bhpqd,bhpkd->bhpqk", Q, K) * Q.shape[-1] ** -0.5, -1)
    O = (S[:, :, 0] - lam[:, None, None] * S[:, :, 1]) @ V
    return O * torch.rsqrt(O.square().mean(-1, keepdim=True) + 1e-5)


op(dict(name="differential_attention", text='''
def differential_attention(float(B,H,2,S,D) Q, float(B,H,2,S,D) K, float(B,H,S,E) V, float(H) Lam) -> (O) {
    T(b, h, p, q, k) +=! Q(b, h, p, q, d) * K(b, h, p, k, d) * rsqrt(float(D))
    M(b, h, p, q) max=! T(b, h, p, q, k)
    X(b, h, p, q, k) = exp(T(b, h, p, q, k) - M(b, h, p, q))
    Z(b, h, p, q) +=! X(b, h, p, q, k)
    A(b, h, q, e) +=! X(b, h, 0, q, k) * V(b, h, k, e)
    C(b, h, q, e) +=! X(b, h, 1, q, k) * V(b, h, k, e)
    U(b, h, q, e) = A(b, h, q, e) / Z(b, h, 0, q) - Lam(h) * C(b, h, q, e) / Z(b, h, 1, q)
    R(b, h, q) +=! U(b, h, q, e) * U(b, h, q, e) / E
    O(b, h, q, e) = U(b, h, q, e) * rsqrt(R(b, h, q) + 1e-5)
}''', args=lambda g: [rn(g, 2, 4, 2, 192, 32), rn(g, 2, 4, 2, 192, 32), rn(g, 2, 4, 192, 64), ru(g, 4)], torch=_diffattn, tol=5e-5))


op(dict(name="performer_features", text='''
def performer_features(float(B,H,S,D) X, float(M,D) W) -> (P) {
    L(b, h, s, m) +=! X(b, h, s, d) * W(m, d) * pow(float(D), -0.25)
    N(b, h, s) +=! 0.5 * X(b, h, s, d) * X(b, h, s, d) * rsqrt(float(D))
    G(b, h, s) max=! L(b, h, s, m)
    P(b, h, s, m) = (exp(L(b, h, s, m) - N(b, h, s) - G(b, h, s)) + 1e-4) * rsqrt(float(M))
}''', args=lambda g: [rn(g, 2, 4, 300, 64), rn(g, 128, 64)],
   torch=lambda X, W: (lambda L: (torch.exp(L - 0.5 * (X * X).sum(-1, keepdim=True) * 64 ** -0.5 - L.amax(-1, keepdim=True)) + 1e-4) * 128 ** -0.5)(torch.einsum("bhsd,md->bhsm", X, W) * 64 ** -0.25), tol=2e-5))


def _t5(Q, K, V, Bias, Bu):
    S = Q @ K.transpose(-1, -2) + Bias[Bu].permute(2, 0, 1)
    return torch.softmax(S, -1) @ V


op(dict(name="t5_bucketed_bias_attention", text='''
def t5_bucketed_bias_attention(float(B,H,Q,D) Qs, float(B,H,K,D) Ks, float(B,H,K,D) V, float(R,H) Bias, int64(Q,K) Bu) -> (O) {
    T(b, h, q, k) +=! Qs(b, h, q, d) * Ks(b, h, k, d)
    T(b, h, q, k) += Bias(Bu(q, k), h)
    M(b, h, q) max=! T(b, h, q, k)
    P(b, h, q, k) = exp(T(b, h, q, k) - M(b, h, q))
    Z(b, h, q) +=! P(b, h, q, k)
    O(b, h, q, d) +=! P(b, h, q, k) * V(b, h, k, d)
    O(b, h, q, d) = O(b, h, q, d) / Z(b, h, q)
}''', args=lambda g: [0.3 * rn(g, 2, 6, 160, 64), rn(g, 2, 6, 200, 64), rn(g, 2, 6, 200, 64), rn(g, 32, 6), ri(g, 0, 32, 160, 200)], torch=_t5, tol=5e-5))


def _tokenshift(X, Mr, Mk, Wr, Wk, Wv):
    P = F.pad(X, (0, 0, 1, -1))
    xr, xk = X * Mr + P * (1 - Mr), X * Mk + P * (1 - Mk)
    return torch.sigmoid(xr @ Wr.T) * (torch.relu(xk @ Wk.T).square() @ Wv.T)


op(dict(name="rwkv_channel_mixing", text='''
def rwkv_channel_mixing(float(B,T,C) X, float(C) Mr, float(C) Mk, float(C,C) Wr, float(E,C) Wk, float(C,E) Wv) -> (Y) {
    P(b, t, c) = t >= 1 ? X(b, t - 1, c) : 0.0 where t in 0:T
    R(b, t, o) +=! (X(b, t, c) * Mr(c) + P(b, t, c) * (1.0 - Mr(c))) * Wr(o, c)
    K(b, t, e) +=! (X(b, t, c) * Mk(c) + P(b, t, c) * (1.0 - Mk(c))) * Wk(e, c)
    A(b, t, e) = max(K(b, t, e), 0.0) * max(K(b, t, e), 0.0)
    V(b, t, o) +=! A(b, t, e) * Wv(o, e)
    Y(b, t, o) = sigmoid(R(b, t, o)) * V(b, t, o)
}''', args=lambda g: [rn(g, 2, 100, 192), ru(g, 192), ru(g, 192), rn(g, 192, 192) * 0.07, rn(g, 512, 192) * 0.07, rn(g, 192, 512) * 0.05], torch=_tokenshift, tol=5e-5))


op(dict(name="gated_rmsnorm_silu", text='''
def gated_rmsnorm_silu(float(B,T,H,D) X, float(B,T,H,D) G, float(D) W) -> (Y) {
    R(b, t, h) +=! X(b, t, h, d) * X(b, t, h, d) / D
    Y(b, t, h, d) = X(b, t, h, d) * rsqrt(R(b, t, h) + 1e-6) * W(d) * (G(b, t, h, d) * sigmoid(G(b, t, h, d)))
}''', args=lambda g: [rn(g, 2, 257, 8, 64), rn(g, 2, 257, 8, 64), rn(g, 64)],
   torch=lambda X, G, W: X * torch.rsqrt(X.square().mean(-1, keepdim=True) + 1e-6) * W * F.silu(G), tol=2e-5))


op(dict(name="block_mean_compress_keys", text='''
def block_mean_compress_keys(float(B,H,S,D) K, float(32,D) Pe, float(D,D) W) -> (C) {
    M(b, h, n, d) +=! (K(b, h, 32*n + i, d) + Pe(i, d)) / 32.0 where n in 0:S/32, i in 0:32
    C(b, h, n, e) +=! M(b, h, n, d) * W(d, e)
}''', args=lambda g: [rn(g, 2, 4, 1024, 64), rn(g, 32, 64), rn(g, 64, 64)],
   torch=lambda K, Pe, W: (K.unflatten(2, (-1, 32)) + Pe).mean(3) @ W, tol=2e-5))


def _entropy(L):
    p = torch.log_softmax(L, -1)
    return -(p.exp() * p).sum(-1)


op(dict(name="policy_entropy", text='''
def policy_entropy(float(N,V) L) -> (H) {
    M(n) max=! L(n, v)
    Z(n) +=! exp(L(n, v) - M(n))
    S(n) +=! exp(L(n, v) - M(n)) * (L(n, v) - M(n))
    H(n) = log(Z(n)) - S(n) / Z(n)
}''', args=lambda g: [rn(g, 300, 2049)], torch=_entropy, tol=2e-5))


def _kl(P, Q, T):
    return (F.kl_div(F.log_softmax(Q / T, 1), F.log_softmax(P / T, 1), log_target=True, reduction="none").sum(1)).mean() * T * T


op(dict(name="distillation_kl_temperature", text='''
def distillation_kl_temperature(float(N,V) P, float(N,V) Q, float T) -> (Loss) {
    Mp(n) max=! P(n, v) / T
    Mq(n) max=! Q(n, v) / T
    Zp(n) +=! exp(P(n, v) / T - Mp(n))
    Zq(n) +=! exp(Q(n, v) / T - Mq(n))
    Lp(n, v) = P(n, v) / T - Mp(n) - log(Zp(n))
    Loss +=! exp(Lp(n, v)) * (Lp(n, v) - (Q(n, v) / T - Mq(n) - log(Zq(n)))) * T * T / N
}''', args=lambda g: [rn(g, 128, 3001), rn(g, 128, 3001), sc(2.0)], torch=_kl, tol=2e-5))


# ---------------------------------------------------------------- reinforcement learning


op(dict(name="categorical_projection", text='''
def categorical_projection(float(B,Z) P, float(B) R, float(B) Done, float Gamma, float V0, float Dz) -> (float(B,Z) M) {
    T(b, j) = clamp(R(b) + Gamma * (1.0 - Done(b)) * (V0 + j * Dz), V0, V0 + (Z - 1) * Dz) where j in 0:Z
    M(b, i) +=! P(b, j) * max(1.0 - abs((T(b, j) - V0) / Dz - i), 0.0) where i in 0:Z
}''', args=lambda g: [torch.softmax(rn(g, 256, 51), -1), rn(g, 256), (ru(g, 256) < 0.1).float(), sc(0.99), sc(-10.0), sc(0.4)],
   torch=lambda P, R, D, ga, v0, dz: (lambda T: (P[:, :, None] * (1 - ((T[:, :, None] - v0) / dz - torch.arange(51.)).abs()).clamp(min=0)).sum(1))(
       (R[:, None] + ga * (1 - D)[:, None] * (v0 + torch.arange(51.) * dz)).clamp(v0, v0 + 50 * dz)), tol=2e-5))


op(dict(name="n_step_returns_8", text='''
def n_step_returns_8(float(T,B) R, float(T,B) Nd, float(T,B) V, float Gamma) -> (float(T,B) G) {
    A0(t, b) = R(t, b) + Gamma * Nd(t, b) * V(t, b)
    A1(t, b) = t + 1 < T ? R(t, b) + Gamma * Nd(t, b) * A0(t + 1, b) : A0(t, b) where t in 0:T
    A2(t, b) = t + 1 < T ? R(t, b) + Gamma * Nd(t, b) * A1(t + 1, b) : A1(t, b) where t in 0:T
    G(t, b) = t + 1 < T ? R(t, b) + Gamma * Nd(t, b) * A2(t + 1, b) : A2(t, b) where t in 0:T
}''', args=lambda g: [rn(g, 128, 64), (ru(g, 128, 64) > 0.05).float(), rn(g, 128, 64), sc(0.99)],
   torch=lambda R, Nd, V, ga: (lambda step: step(step(step(R + ga * Nd * V))))(lambda A: torch.cat([R[:-1] + ga * Nd[:-1] * A[1:], A[-1:]])), tol=1e-5))


# ---------------------------------------------------------------- particles and grids

def _p2g(X, M, V):
    b = (X * 64 - 0.5).floor()
    f = X * 64 - b
    w = torch.stack([0.5 * (1.5 - f) ** 2, 0.75 - (f - 1) ** 2, 0.5 * (f - 0.5) ** 2], 1)
    b = b.long()
    out = torch.zeros(64 * 64, 3)
    for i in range(3):
        for j in range(3):
            ww = (w[:, i, 0] * w[:, j, 1] * M)[:, None]
            out.index_add_(0, (b[:, 0] + i) * 64 + b[:, 1] + j, torch.cat([ww, ww * V], 1))
    return out.view(64, 64, 3)


op(dict(name="mpm_particle_to_grid", text='''
def mpm_particle_to_grid(float(P,2) X, float(P) Ms, float(P,2) V) -> (float(64,64,3) G) {
    Bs(p, a) = int32(floor(X(p, a) * 64.0 - 0.5))
    Fx(p, a) = X(p, a) * 64.0 - float(Bs(p, a))
    Wt(p, k, a) = k == 0 ? 0.5 * (1.5 - Fx(p, a)) * (1.5 - Fx(p, a)) : (k == 1 ? 0.75 - (Fx(p, a) - 1.0) * (Fx(p, a) - 1.0) : 0.5 * (Fx(p, a) - 0.5) * (Fx(p, a) - 0.5)) where k in 0:3
    Ii(p, i) = Bs(p, 0) + i where i in 0:3
    Jj(p, j) = Bs(p, 1) + j where j in 0:3
    G(Ii(p, i), Jj(p, j), c) +=! Wt(p, i, 0) * Wt(p, j, 1) * Ms(p) * (c == 0 ? 1.0 : V(p, c - 1)) where c in 0:3, Ii(p, i) in 0:64, Jj(p, j) in 0:64
}''', args=lambda g: [ru(g, 8000, 2) * 0.9 + 0.05, ru(g, 8000), rn(g, 8000, 2)], torch=_p2g, tol=1e-4))


def _g2p(X, G):
    b = (X * 64 - 0.5).floor()
    f = X * 64 - b
    w = torch.stack([0.5 * (1.5 - f) ** 2, 0.75 - (f - 1) ** 2, 0.5 * (f - 0.5) ** 2], 1)
    b = b.long()
    o = torch.arange(3)
    g = G[(b[:, 0, None] + o)[:, :, None], (b[:, 1, None] + o)[:, None, :]]
    return torch.einsum("pi,pj,pijc->pc", w[:, :, 0], w[:, :, 1], g)


op(dict(name="mpm_grid_to_particle", text='''
def mpm_grid_to_particle(float(P,2) X, float(U,W,2) G) -> (V) {
    Bs(p, a) = int32(floor(X(p, a) * 64.0 - 0.5))
    Fx(p, a) = X(p, a) * 64.0 - float(Bs(p, a))
    Wt(p, k, a) = k == 0 ? 0.5 * (1.5 - Fx(p, a)) * (1.5 - Fx(p, a)) : (k == 1 ? 0.75 - (Fx(p, a) - 1.0) * (Fx(p, a) - 1.0) : 0.5 * (Fx(p, a) - 0.5) * (Fx(p, a) - 0.5)) where k in 0:3
    V(p, c) +=! Wt(p, i, 0) * Wt(p, j, 1) * G(Bs(p, 0) + i, Bs(p, 1) + j, c) where i in 0:3, j in 0:3
}''', args=lambda g: [ru(g, 20000, 2) * 0.9 + 0.05, rn(g, 64, 64, 2)], torch=_g2p, tol=2e-5))


def _sph(X, h):
    d2 = (X[:, None] - X[None]).square().sum(-1)
    return ((h * h - d2).clamp(min=0) ** 3).sum(1) * (315 / (64 * math.pi * h ** 9))


op(dict(name="sph_density_poly6", text='''
def sph_density_poly6(float(N,3) X, float Hh) -> (R) {
    D(i, j) +=! (X(i, a) - X(j, a)) * (X(i, a) - X(j, a))
    Q(i, j) = max(Hh * Hh - D(i, j), 0.0)
    R(i) +=! Q(i, j) * Q(i, j) * Q(i, j) * 1.5666814710608448 / (Hh * Hh * Hh * Hh * Hh * Hh * Hh * Hh * Hh)
}''', args=lambda g: [ru(g, 1500, 3), sc(0.3)], torch=_sph, tol=5e-5))


def _acsf(X, eta, rs, rc):
    d = (X[:, :, None] - X[:, None]).square().sum(-1).add(1e-12).sqrt()
    fc = torch.where(d < rc, 0.5 * (torch.cos(math.pi * d / rc) + 1), 0.0) * (1 - torch.eye(X.shape[1]))
    return torch.stack([(torch.exp(-e * (d - r) ** 2) * fc).sum(-1) for e, r in zip(eta.tolist(), rs.tolist())], -1)


op(dict(name="acsf_radial", text='''
def acsf_radial(float(B,N,3) X, float(K) Eta, float(K) Rs, float Rc) -> (G) {
    S(b, i, j) +=! (X(b, i, a) - X(b, j, a)) * (X(b, i, a) - X(b, j, a))
    D(b, i, j) = sqrt(S(b, i, j) + 1e-12)
    Fc(b, i, j) = (i != j && D(b, i, j) < Rc) ? 0.5 * (cos(3.14159265358979 * D(b, i, j) / Rc) + 1.0) : 0.0
    G(b, i, k) +=! exp(0.0 - Eta(k) * (D(b, i, j) - Rs(k)) * (D(b, i, j) - Rs(k))) * Fc(b, i, j)
}''', args=lambda g: [rn(g, 4, 64, 3) * 2, ru(g, 16) * 3 + 0.1, ru(g, 16) * 4, sc(4.0)], torch=_acsf, tol=5e-5))


def _gb(X, q, a):
    d2 = (X[:, None] - X[None]).square().sum(-1)
    aa = a[:, None] * a[None]
    f = torch.sqrt(d2 + aa * torch.exp(-d2 / (4 * aa)))
    return -0.5 * (q[:, None] * q[None] / f).sum()


op(dict(name="generalised_born_energy", text='''
def generalised_born_energy(double(N,3) X, double(N) Q, double(N) A) -> (E) {
    D(i, j) +=! (X(i, k) - X(j, k)) * (X(i, k) - X(j, k))
    E +=! -0.5 * Q(i) * Q(j) / sqrt(D(i, j) + A(i) * A(j) * exp(0.0 - D(i, j) / (4.0 * A(i) * A(j))))
}''', args=lambda g: [rn(g, 900, 3, dt=f64) * 5, rn(g, 900, dt=f64), ru(g, 900, dt=f64) + 1], torch=_gb, tol=1e-9))


def _ising(S, J, h):
    n = sum(torch.roll(S, s, d) for s in (1, -1) for d in (1, 2))
    return (-0.5 * J * S * n - h * S).sum((1, 2)), 2 * S * (J * n + h)


op(dict(name="ising_energy_flips", text='''
def ising_energy_flips(float(B,L,M) S, float J, float Hf) -> (E, D) {
    N(b, y, x) = S(b, (y + 1) % L, x) + S(b, (y + L - 1) % L, x) + S(b, y, (x + 1) % M) + S(b, y, (x + M - 1) % M)
    E(b) +=! 0.0 - 0.5 * J * S(b, y, x) * N(b, y, x) - Hf * S(b, y, x)
    D(b, y, x) = 2.0 * S(b, y, x) * (J * N(b, y, x) + Hf)
}''', args=lambda g: [ri(g, 0, 2, 32, 96, 96).float() * 2 - 1, sc(1.0), sc(0.1)], torch=_ising, tol=1e-4))


def _gpe(R, I, V, dt):
    def lap(a):
        return torch.roll(a, 1, 0) + torch.roll(a, -1, 0) + torch.roll(a, 1, 1) + torch.roll(a, -1, 1) - 4 * a
    def h(a, d):
        return -0.5 * lap(a) + (V + d) * a
    d = R * R + I * I
    I2 = I - dt * h(R, d)
    R2 = R + dt * h(I2, R * R + I2 * I2)
    return R2, I2


op(dict(name="gross_pitaevskii_leapfrog", text='''
def gross_pitaevskii_leapfrog(double(N,M) R, double(N,M) I, double(N,M) V, double Dt) -> (Rn, In) {
    In(y, x) = I(y, x) - Dt * ((V(y, x) + R(y, x) * R(y, x) + I(y, x) * I(y, x)) * R(y, x)
        - 0.5 * (R((y + 1) % N, x) + R((y + N - 1) % N, x) + R(y, (x + 1) % M) + R(y, (x + M - 1) % M) - 4.0 * R(y, x)))
    Rn(y, x) = R(y, x) + Dt * ((V(y, x) + R(y, x) * R(y, x) + In(y, x) * In(y, x)) * In(y, x)
        - 0.5 * (In((y + 1) % N, x) + In((y + N - 1) % N, x) + In(y, (x + 1) % M) + In(y, (x + M - 1) % M) - 4.0 * In(y, x)))
}''', args=lambda g: [rn(g, 300, 301, dt=f64), rn(g, 300, 301, dt=f64), ru(g, 300, 301, dt=f64), sc(0.01, f64)], torch=_gpe, tol=1e-10))
