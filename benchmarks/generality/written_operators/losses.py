# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Losses, optimiser steps and quantisation; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.models import r, ri, u
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)


# ---------------------------------------------------------------- losses

def _focal(X, Y, a):
    ce = F.binary_cross_entropy_with_logits(X, Y, reduction="none")
    p = torch.sigmoid(X)
    pt = p * Y + (1 - p) * (1 - Y)
    at = a * Y + (1 - a) * (1 - Y)
    return (at * (1 - pt) ** 2 * ce).sum() / Y.sum().clamp_min(1.0)


op(dict(name="sigmoid_focal_loss", text='''
def sigmoid_focal_loss(float(N,C) X, float(N,C) T, float(C) alpha) -> (Loss) {
    Pos +=! T(n, c)
    S +=! (alpha(c) * T(n, c) + (1.0 - alpha(c)) * (1.0 - T(n, c))) * (1.0 - pt) * (1.0 - pt) * (fmax(X(n, c), 0.0) - X(n, c) * T(n, c) + log1p(exp(-fabs(X(n, c)))))
        where p = sigmoid(X(n, c)), pt = p * T(n, c) + (1.0 - p) * (1.0 - T(n, c))
    Loss = S / max(Pos, 1.0)
}''', args=lambda g: [r(g, 5000, 80) * 2, (u(g, 5000, 80) < 0.02).float(), u(g, 80)], torch=_focal, tol=2e-5))


def _dice(L, T):
    P = torch.softmax(L, 1)
    oh = F.one_hot(T, L.shape[1]).permute(0, 3, 1, 2)
    I = (P * oh).sum((2, 3))
    U = P.sum((2, 3)) + oh.sum((2, 3))
    return (1 - (2 * I + 1) / (U + 1)).mean()


op(dict(name="soft_dice_loss", text='''
def soft_dice_loss(float(N,C,H,W) L, int64(N,H,W) T) -> (Loss) {
    Z(n, h, w) +=! exp(L(n, c, h, w))
    P(n, c, h, w) = exp(L(n, c, h, w)) / Z(n, h, w)
    I(n, c) +=! (T(n, h, w) == c) ? P(n, c, h, w) : 0.0
    U(n, c) +=! P(n, c, h, w) + ((T(n, h, w) == c) ? 1.0 : 0.0)
    Loss +=! (1.0 - (2.0 * I(n, c) + 1.0) / (U(n, c) + 1.0)) / float(N * C)
}''', args=lambda g: [r(g, 4, 5, 96, 80), ri(g, 0, 5, 4, 96, 80)], torch=_dice, tol=1e-5))


def _ctc(A, LP, Lab):
    a1 = F.pad(A, (1, 0), value=-1e30)[:, :-1]
    a2 = F.pad(A, (2, 0), value=-1e30)[:, :-2]
    skip = (Lab != 0) & (Lab != F.pad(Lab, (2, 0), value=-1)[:, :-2])
    skip[:, :2] = False
    a2 = a2.masked_fill(~skip, -1e30)
    return torch.logsumexp(torch.stack([A, a1, a2]), 0) + LP.gather(1, Lab)


op(dict(name="ctc_forward_step", text='''
def ctc_forward_step(float(B,S) A, float(B,C) LP, int64(B,S) Lab) -> (An) {
    A1(b, s) = (s >= 1) ? A(b, s - 1) : -1e30 where s in 0:S
    A2(b, s) = (s >= 2) ? ((Lab(b, s) != 0 && Lab(b, s) != Lab(b, s - 2)) ? A(b, s - 2) : -1e30) : -1e30 where s in 0:S
    M(b, s) = max(max(A(b, s), A1(b, s)), A2(b, s))
    An(b, s) = M(b, s) + log(exp(A(b, s) - M(b, s)) + exp(A1(b, s) - M(b, s)) + exp(A2(b, s) - M(b, s))) + LP(b, Lab(b, s))
}''', args=lambda g: [-10 * u(g, 16, 121), torch.log_softmax(r(g, 16, 32), -1), torch.where(torch.arange(121) % 2 == 0, 0, ri(g, 1, 32, 16, 121))], torch=_ctc, tol=1e-5))


def _triplet(X, L):
    D = torch.cdist(X, X)
    same = L[:, None] == L
    hp = D.masked_fill(~same, 0.0).amax(1)
    hn = D.masked_fill(same, torch.inf).amin(1)
    return F.relu(hp - hn + 0.3).mean()


op(dict(name="batch_hard_triplet", text='''
def batch_hard_triplet(float(N,D) X, int64(N) Lab) -> (Loss) {
    D2(i, j) +=! (X(i, d) - X(j, d)) * (X(i, d) - X(j, d))
    Hp(i) max=! (Lab(i) == Lab(j)) ? sqrt(D2(i, j)) : 0.0
    Hn(i) min=! (Lab(i) != Lab(j)) ? sqrt(D2(i, j)) : infinity()
    Loss +=! relu(Hp(i) - Hn(i) + 0.3) / N
}''', args=lambda g: [r(g, 192, 128) / 11, ri(g, 0, 24, 192)], torch=_triplet, tol=1e-4))


def _qh(Q, T, tau):
    d = T[:, None, :] - Q[:, :, None]
    h = torch.where(d.abs() <= 1, 0.5 * d * d, d.abs() - 0.5)
    return ((tau[:, None] - (d < 0).double()).abs() * h).mean(2).sum(1)


op(dict(name="quantile_huber", text='''
def quantile_huber(double(B,N) Q, double(B,M) T, double(N) tau) -> (Loss) {
    Loss(b) +=! fabs(tau(i) - ((u < 0.0) ? 1.0 : 0.0)) * ((fabs(u) <= 1.0) ? 0.5 * u * u : fabs(u) - 0.5) / M where u = T(b, j) - Q(b, i)
}''', args=lambda g: [r(g, 64, 51, dtype=torch.float64), r(g, 64, 51, dtype=torch.float64), (torch.arange(51, dtype=torch.float64) + 0.5) / 51], torch=_qh, tol=1e-12))


def _arc(X, W, L):
    c = F.normalize(X) @ F.normalize(W).T
    cl = c.gather(1, L[:, None])
    phi = cl * math.cos(0.5) - (1 - cl * cl).clamp_min(0).sqrt() * math.sin(0.5)
    return F.cross_entropy(30 * c.scatter(1, L[:, None], phi), L, reduction="none")


op(dict(name="arcface_margin_loss", text='''
def arcface_margin_loss(float(B,D) X, float(C,D) W, int64(B) Lab) -> (Loss) {
    Nx(b) +=! X(b, d) * X(b, d)
    Nw(c) +=! W(c, d) * W(c, d)
    Cos(b, c) +=! X(b, d) * W(c, d)
    Cos(b, c) = Cos(b, c) * rsqrt(Nx(b)) * rsqrt(Nw(c))
    L(b, c) = 30.0 * ((Lab(b) == c) ? Cos(b, c) * cos(0.5) - sqrt(max(1.0 - Cos(b, c) * Cos(b, c), 0.0)) * sin(0.5) : Cos(b, c))
    Z(b) +=! exp(L(b, c) - 30.0)
    Loss(b) = log(Z(b)) + 30.0 - L(b, Lab(b))
}''', args=lambda g: [r(g, 64, 256), r(g, 2000, 256), ri(g, 0, 2000, 64)], torch=_arc, tol=3e-5))


def _sink(C, G, la, lb):
    f = -0.05 * torch.logsumexp((G[:, None] - C) / 0.05 + lb[:, None], 2)
    return f, -0.05 * torch.logsumexp((f[:, :, None] - C) / 0.05 + la[:, :, None], 1)


op(dict(name="sinkhorn_log_step", text='''
def sinkhorn_log_step(float(B,N,M) C, float(B,M) G, float(B,N) la, float(B,M) lb) -> (F, Gn) {
    R(b, i) max=! (G(b, j) - C(b, i, j)) / 0.05 + lb(b, j)
    S(b, i) +=! exp((G(b, j) - C(b, i, j)) / 0.05 + lb(b, j) - R(b, i))
    F(b, i) = -0.05 * (log(S(b, i)) + R(b, i))
    Rc(b, j) max=! (F(b, i) - C(b, i, j)) / 0.05 + la(b, i)
    Sc(b, j) +=! exp((F(b, i) - C(b, i, j)) / 0.05 + la(b, i) - Rc(b, j))
    Gn(b, j) = -0.05 * (log(Sc(b, j)) + Rc(b, j))
}''', args=lambda g: [u(g, 4, 200, 233), r(g, 4, 233) * 0.1, torch.log_softmax(r(g, 4, 200), 1), torch.log_softmax(r(g, 4, 233), 1)], torch=_sink, tol=2e-5))


def _gw(C1, C2, P):
    p, q = P.sum(1), P.sum(0)
    return (C1 * C1 @ p)[:, None] + (C2 * C2 @ q)[None] - 2 * C1 @ P @ C2.T


op(dict(name="gromov_wasserstein_cost", text='''
def gromov_wasserstein_cost(float(N,N) C1, float(M,M) C2, float(N,M) P) -> (L) {
    L(i, j) +=! (C1(i, k) - C2(j, l)) * (C1(i, k) - C2(j, l)) * P(k, l)
}''', args=lambda g: [u(g, 60, 60), u(g, 45, 45), torch.softmax(r(g, 60 * 45), 0).view(60, 45)], torch=_gw, tol=2e-5))


# ---------------------------------------------------------------- optimiser steps

def _adamw(P, G, M, V, lr):
    m = torch.lerp(M, G, 0.1)
    v = torch.addcmul(V * 0.95, G, G, value=0.05)
    return (P * (1 - 0.1 * lr)).addcdiv_(m, (v * 20.0).sqrt_().add_(1e-8), value=-10.0 * float(lr)), m, v


op(dict(name="adamw_fused", text='''
def adamw_fused(float(N) P, float(N) G, float(N) M, float(N) V, float lr) -> (Pn, Mn, Vn) {
    Mn(i) = 0.9 * M(i) + 0.1 * G(i)
    Vn(i) = 0.95 * V(i) + 0.05 * G(i) * G(i)
    Pn(i) = P(i) * (1.0 - 0.1 * lr) - lr * Mn(i) * 10.0 / (sqrt(Vn(i) * 20.0) + 1e-8)
}''', args=lambda g: [r(g, 3000001), r(g, 3000001), r(g, 3000001) * 0.1, u(g, 3000001), torch.tensor(1e-3)], torch=_adamw, tol=1e-5))


def _adafactor(W, G, R, C):
    g2 = G * G + 1e-30
    Rn = torch.lerp(R, g2.mean(1), 0.01)
    Cn = torch.lerp(C, g2.mean(0), 0.01)
    U = G * (Rn / Rn.mean()).rsqrt()[:, None] * Cn.rsqrt()
    U = U / (U.square().mean().sqrt()).clamp_min(1.0)
    return W - 0.01 * U, Rn, Cn


op(dict(name="adafactor_step", text='''
def adafactor_step(float(N,M) W, float(N,M) G, float(N) R, float(M) C) -> (Wn, Rn, Cn) {
    Rn(i) = 0.99 * R(i)
    Rn(i) += 0.01 * (G(i, j) * G(i, j) + 1e-30) / M
    Cn(j) = 0.99 * C(j)
    Cn(j) += 0.01 * (G(i, j) * G(i, j) + 1e-30) / N
    Mean +=! Rn(i) / N
    U(i, j) = G(i, j) * rsqrt(Rn(i) / Mean) * rsqrt(Cn(j))
    Rms +=! U(i, j) * U(i, j)
    Wn(i, j) = W(i, j) - 0.01 * U(i, j) / max(1.0, sqrt(Rms / float(N * M)))
}''', args=lambda g: [r(g, 640, 900), r(g, 640, 900), u(g, 640) + 0.1, u(g, 900) + 0.1], torch=_adafactor, tol=2e-5))


def _lion(P, G, M):
    g, m, p = G.float(), M.float(), P.float()
    up = torch.sign(torch.lerp(g, m, 0.9)) + 0.1 * p
    return (p - 3e-4 * up).bfloat16(), torch.lerp(g, m, 0.99).bfloat16()


op(dict(name="lion_bf16", text='''
def lion_bf16(bfloat16(N,M) P, bfloat16(N,M) G, bfloat16(N,M) Mom) -> (bfloat16(N,M) Pn, bfloat16(N,M) Mn) {
    Pn(i, j) = P(i, j) - 3e-4 * (sign(0.9 * Mom(i, j) + 0.1 * G(i, j)) + 0.1 * P(i, j))
    Mn(i, j) = 0.99 * Mom(i, j) + 0.01 * G(i, j)
}''', args=lambda g: [r(g, 1000, 512, dtype=torch.bfloat16), r(g, 1000, 512, dtype=torch.bfloat16), r(g, 1000, 512, dtype=torch.bfloat16)], torch=_lion, tol=1e-2))


def _shampoo(G, L, R):
    a = G.flatten(1)
    b = G.transpose(0, 1).flatten(1)
    return torch.addmm(L, a, a.T, beta=0.95), torch.addmm(R, b, b.T, beta=0.95)


op(dict(name="shampoo_grams", text='''
def shampoo_grams(float(O,I,KH,KW) G, float(O,O) L, float(I,I) R) -> (Ln, Rn) {
    Ln(o, p) = 0.95 * L(o, p)
    Ln(o, p) += G(o, i, y, x) * G(p, i, y, x)
    Rn(i, j) = 0.95 * R(i, j)
    Rn(i, j) += G(o, i, y, x) * G(o, j, y, x)
}''', args=lambda g: [r(g, 128, 96, 3, 3), r(g, 128, 128), r(g, 96, 96)], torch=_shampoo, tol=2e-5))


# ---------------------------------------------------------------- quantisation

def _int4(X, P, S, Z):
    O, I2 = P.shape
    q = torch.stack([P & 15, P >> 4], -1).view(O, S.shape[1], -1).float()
    W = ((q - Z[..., None].float()) * S[..., None]).view(O, 2 * I2)
    return X @ W.T


op(dict(name="int4_group_linear", text='''
def int4_group_linear(float(B,I) X, uint8(O,J) P, float(O,G) S, uint8(O,G) Z) -> (Y) {
    Q(o, i) = (i % 2 == 0) ? int32(P(o, i / 2)) % 16 : int32(P(o, i / 2)) / 16 where i in 0:I
    W(o, i) = float(Q(o, i) - int32(Z(o, i / 64))) * S(o, i / 64)
    Y(b, o) +=! X(b, i) * W(o, i)
}''', args=lambda g: [r(g, 4, 1024), ri(g, 0, 256, 768, 512, dtype=torch.uint8), u(g, 768, 16), ri(g, 0, 16, 768, 16, dtype=torch.uint8)], torch=_int4, tol=2e-5))


def _fp8(X):
    a = X.abs().amax()
    s = 448.0 / a
    return (X * s).to(torch.float8_e4m3fn).float() / s, s


op(dict(name="fp8_e4m3_roundtrip", text='''
def fp8_e4m3_roundtrip(float(N,D) X) -> (Y, Scale) {
    A max=! fabs(X(n, d))
    Scale = 448.0 / A
    E(n, d) = fmax(floor(log2(fabs(X(n, d) * Scale))), -6.0)
    Y(n, d) = round(X(n, d) * Scale * exp2(3.0 - E(n, d))) * exp2(E(n, d) - 3.0) / Scale
}''', args=lambda g: [r(g, 321, 640)], torch=_fp8, tol=1e-5))


def _blk(X):
    b = X.float().view(-1, 128)
    a = b.abs().amax(1)
    return torch.round(b / a[:, None] * 127).to(torch.int8).view(X.shape), (a / 127).half()


op(dict(name="blockwise_absmax_int8", text='''
def blockwise_absmax_int8(half(N) X) -> (int8(N) Q, half(N/128) S) {
    A(b) max=! fabs(float(X(128 * b + k))) where b in 0:N/128, k in 0:128
    S(b) = half(A(b) / 127.0)
    Q(i) = int8(round(float(X(i)) / A(i / 128) * 127.0))
}''', args=lambda g: [r(g, 128 * 2500, dtype=torch.float16)], torch=_blk, tol=0.01))


def _w8a8(X, W, Sw, b):
    s = X.abs().amax(1, keepdim=True) / 127
    q = torch.round(X / s).clamp_(-127, 127).to(torch.int8)
    return torch._int_mm(q, W.T).float() * s * Sw + b


op(dict(name="w8a8_per_token", text='''
def w8a8_per_token(float(T,I) X, int8(O,I) W, float(O) Sw, float(O) bias) -> (Y) {
    A(t) max=! fabs(X(t, i)) / 127.0
    Q(t, i) = int8(clamp(round(X(t, i) / A(t)), -127.0, 127.0))
    Acc(t, o) +=! int32(Q(t, i)) * int32(W(o, i))
    Y(t, o) = float(Acc(t, o)) * A(t) * Sw(o) + bias(o)
}''', args=lambda g: [r(g, 48, 512), ri(g, -127, 128, 384, 512, dtype=torch.int8), u(g, 384) / 100, r(g, 384)], torch=_w8a8, tol=5e-3))
