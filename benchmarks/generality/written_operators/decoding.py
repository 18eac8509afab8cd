# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Decoding and attention, losses, normalisation, optimisers, control, vision; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.networks import bf16, f16, f64, i8, i32, of, ri, rn, ru, u8
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)


# ---------------------------------------------------------------- language models

def _medusa(X, W, Bi, Emb):
    K, D = Bi.shape
    z = F.linear(X, W.flatten(0, 1), Bi.flatten()).view(-1, K, D)
    return F.linear(X[:, None] + F.silu(z), Emb)


op(dict(name="medusa_residual_heads_bf16", text='''
def medusa_residual_heads_bf16(bfloat16(B,D) X, bfloat16(K,D,D) W, bfloat16(K,D) Bi, bfloat16(V,D) Emb) -> (bfloat16(B,K,V) L) {
    Z(b, k, o) +=! float(X(b, d)) * W(k, o, d)
    Z(b, k, o) = Z(b, k, o) + Bi(k, o)
    Hd(b, k, o) = bfloat16(float(X(b, o)) + Z(b, k, o) * sigmoid(Z(b, k, o)))
    L(b, k, v) +=! Hd(b, k, d) * Emb(v, d)
}''', args=lambda g: [rn(g, 5, 256, dt=bf16), rn(g, 3, 256, 256, dt=bf16, k=0.06), rn(g, 3, 256, dt=bf16), rn(g, 4001, 256, dt=bf16, k=0.06)], torch=_medusa, tol=3e-2))


def _typical(L, Tok, eps, delta, temp):
    lp = (L.float() / temp).log_softmax(-1)
    ent = -(lp.exp() * lp).sum(-1)
    ok = lp.gather(-1, Tok[..., None])[..., 0].exp() > torch.minimum(eps, delta * torch.exp(-ent))
    n = ok.int().cumprod(1).sum(1, dtype=i32)
    return n, n.max(), ent


def _typical_args(g):
    L = rn(g, 8, 5, 2003, dt=f16, k=3.0)
    return [L, torch.where(ru(g, 8, 5) < 0.8, L.float().argmax(-1), ri(g, 0, 2003, 8, 5)), of(0.09), of(0.3), of(0.7)]


op(dict(name="typical_acceptance_prefix_half", text='''
def typical_acceptance_prefix_half(half(N,T,V) L, int64(N,T) Tok, float eps, float delta, float temp) -> (Len, Best, Ent) {
    M(n, t) max=! float(L(n, t, v)) / temp
    Z(n, t) +=! exp(float(L(n, t, v)) / temp - M(n, t))
    W(n, t) +=! exp(float(L(n, t, v)) / temp - M(n, t)) * (float(L(n, t, v)) / temp - M(n, t))
    Ent(n, t) = log(Z(n, t)) - W(n, t) / Z(n, t)
    Ok(n, t) = exp(float(L(n, t, Tok(n, t))) / temp - M(n, t)) / Z(n, t) > min(eps, delta * exp(-Ent(n, t))) ? 1 : 0
    Pre(n, t) *=! s <= t ? Ok(n, s) : 1 where t in 0:T
    Len(n) +=! Pre(n, t)
    Best max=! Len(n)
}''', args=_typical_args, torch=_typical, tol=2e-5))


def _cope(Q, K, V, Pe):
    T, D = Q.shape[2:]
    a = Q @ K.mT
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    pos = (a.sigmoid() * causal).flip(-1).cumsum(-1).flip(-1).clamp_max(Pe.shape[1] - 1)
    lo, lp = pos.floor(), Q @ Pe
    w = pos - lo
    s = a / D ** 0.5 + (1 - w) * lp.gather(-1, lo.long()) + w * lp.gather(-1, pos.ceil().long())
    return s.masked_fill(~causal, -math.inf).softmax(-1) @ V


op(dict(name="cope_contextual_positions", text='''
def cope_contextual_positions(float(B,H,T,D) Q, float(B,H,T,D) K, float(B,H,T,D) V, float(D,P) Pe) -> (Y) {
    A(b, h, i, j) +=! Q(b, h, i, d) * K(b, h, j, d)
    Gt(b, h, i, j) = j <= i ? sigmoid(A(b, h, i, j)) : 0.0
    Cs(b, h, i, j) +=! s >= j ? Gt(b, h, i, s) : 0.0 where j in 0:T
    Pos(b, h, i, j) = min(Cs(b, h, i, j), float(P - 1))
    Lp(b, h, i, p) +=! Q(b, h, i, d) * Pe(d, p)
    S(b, h, i, j) = j <= i ? A(b, h, i, j) / sqrt(float(D)) + (1.0 - w) * Lp(b, h, i, int32(floor(Pos(b, h, i, j)))) + w * Lp(b, h, i, int32(ceil(Pos(b, h, i, j)))) : -infinity()
        where w = Pos(b, h, i, j) - floor(Pos(b, h, i, j))
    M(b, h, i) max=! S(b, h, i, j)
    E(b, h, i, j) = exp(S(b, h, i, j) - M(b, h, i))
    Z(b, h, i) +=! E(b, h, i, j)
    Y(b, h, i, d) +=! E(b, h, i, j) / Z(b, h, i) * V(b, h, j, d)
}''', args=lambda g: [rn(g, 2, 4, 131, 48, k=0.5), rn(g, 2, 4, 131, 48, k=0.5), rn(g, 2, 4, 131, 48), rn(g, 48, 32, k=0.2)], torch=_cope, tol=1e-4))


def _stick(Q, K, V):
    q, k, v = (a.transpose(1, 2) for a in (Q, K, V))
    z = q @ k.mT / Q.shape[3] ** 0.5
    off = ~torch.ones(z.shape[-2:], dtype=torch.bool).tril(-1)
    cs = F.softplus(z).masked_fill(off, 0.0).flip(-1).cumsum(-1).flip(-1)
    w = torch.exp(z - cs).masked_fill(off, 0.0)
    return (w @ v).transpose(1, 2), torch.exp(-cs[..., 0])


op(dict(name="stick_breaking_attention", text='''
def stick_breaking_attention(float(B,T,H,D) Q, float(B,T,H,D) K, float(B,T,H,D) V) -> (Y, Rem) {
    Z(b, h, i, j) +=! Q(b, i, h, d) * K(b, j, h, d)
    Sp(b, h, i, j) = j < i ? max(x, 0.0) + log1p(exp(-abs(x))) : 0.0 where x = Z(b, h, i, j) / sqrt(float(D))
    Cs(b, h, i, j) +=! s >= j ? Sp(b, h, i, s) : 0.0 where j in 0:T
    W(b, h, i, j) = j < i ? exp(Z(b, h, i, j) / sqrt(float(D)) - Cs(b, h, i, j)) : 0.0
    Y(b, i, h, d) +=! W(b, h, i, j) * V(b, j, h, d)
    Rem(b, h, i) = exp(-Cs(b, h, i, 0))
}''', args=lambda g: [rn(g, 1, 157, 6, 40), rn(g, 1, 157, 6, 40), rn(g, 1, 157, 6, 40)], torch=_stick, tol=5e-5))


def _ternary(X, P, Pw, Sx, Sc):
    t = (P[..., None].int() // Pw % 3 - 1).flatten(1)
    return ((X.float() @ t.float().T) * Sx[:, None] * Sc).half()


op(dict(name="ternary_base3_linear_i8", text='''
def ternary_base3_linear_i8(int8(B,5*G) X, uint8(O,G) P, int32(5) Pw, float(B) Sx, half(O) Sc) -> (half(B,O) Y) {
    T(o, g, q) = int32(P(o, g)) / Pw(q) % 3 - 1
    A(b, o) +=! int32(X(b, 5*g + q)) * T(o, g, q)
    Y(b, o) = half(float(A(b, o)) * Sx(b) * Sc(o))
}''', args=lambda g: [ri(g, -127, 128, 3, 640, dt=i8), ri(g, 0, 243, 509, 128, dt=u8), 3 ** torch.arange(5, dtype=i32), ru(g, 3, lo=0.005, hi=0.02), ru(g, 509, dt=f16, lo=0.02, hi=0.1)], torch=_ternary, tol=2e-3))


def _qr_bag(Qt, Rt, Ix):
    i = Ix.clamp_min(0)
    M = Rt.shape[0]
    return ((Qt[i // M].float() * Rt[i % M]) * (Ix >= 0)[..., None]).sum(2).half()


op(dict(name="quotient_remainder_bag_half", text='''
def quotient_remainder_bag_half(half(A,D) Qt, half(M,D) Rt, int64(B,F,L) Ix) -> (half(B,F,D) Y) {
    Y(b, f, d) +=! Ix(b, f, l) >= 0 ? float(Qt(Ix(b, f, l) / M, d)) * Rt(Ix(b, f, l) % M, d) : 0.0
}''', args=lambda g: [rn(g, 401, 32, dt=f16), rn(g, 251, 32, dt=f16), ri(g, 0, 401 * 251, 64, 5, 12).masked_fill(torch.arange(12) >= ri(g, 1, 13, 64, 5)[..., None], -1)], torch=_qr_bag, tol=2e-3))


# ---------------------------------------------------------------- losses, normalisation, optimisers, control

def _dino(S, Te, Cen, ts, tt, mom):
    C, B, _ = S.shape
    ce = -((((Te - Cen) / tt).softmax(-1)).flatten(1) @ (S / ts).log_softmax(-1).flatten(1).T) / B
    return (ce.sum() - ce.diagonal().sum()) / (2 * (C - 1)), mom * Cen + (1 - mom) * Te.mean((0, 1))


op(dict(name="dino_multicrop_loss", text='''
def dino_multicrop_loss(float(C,B,K) S, float(2,B,K) Te, float(K) Cen, float ts, float tt, float mom) -> (Loss, Cn) {
    Ms(c, b) max=! S(c, b, k) / ts
    Zs(c, b) +=! exp(S(c, b, k) / ts - Ms(c, b))
    Mt(g, b) max=! (Te(g, b, k) - Cen(k)) / tt
    Pt(g, b, k) = exp((Te(g, b, k) - Cen(k)) / tt - Mt(g, b))
    Zt(g, b) +=! Pt(g, b, k)
    X(g, c, b) +=! Pt(g, b, k) / Zt(g, b) * S(c, b, k)
    Loss +=! g != c ? (Ms(c, b) + log(Zs(c, b)) - X(g, c, b) / ts) / (2 * (C - 1) * B) : 0.0
    Cn(k) +=! Te(g, b, k)
    Cn(k) = mom * Cen(k) + (1.0 - mom) * Cn(k) / (2 * B)
}''', args=lambda g: [rn(g, 6, 16, 2048, k=0.3), rn(g, 2, 16, 2048, k=0.2), rn(g, 2048, k=0.1), of(0.1), of(0.04), of(0.9)], torch=_dino, tol=5e-5))


def _switchable(X, Wm, Wv, Ga, Be):
    vi, mi = torch.var_mean(X, (2, 3), correction=0)
    ml, mb = mi.mean(1, keepdim=True), mi.mean(0, keepdim=True)
    vl, vb = (vi + (mi - ml).square()).mean(1, keepdim=True), (vi + (mi - mb).square()).mean(0, keepdim=True)
    a, v = Wm.softmax(0), Wv.softmax(0)
    mu, var = a[0] * mi + a[1] * ml + a[2] * mb, v[0] * vi + v[1] * vl + v[2] * vb
    s = Ga * torch.rsqrt(var + 1e-5)
    return torch.addcmul((Be - mu * s)[..., None, None], X, s[..., None, None])


op(dict(name="switchable_norm_2d", text='''
def switchable_norm_2d(float(N,C,H,W) X, float(3) Wm, float(3) Wv, float(C) Ga, float(C) Be) -> (Y) {
    Mi(n, c) +=! X(n, c, y, x) / (H * W)
    Vi(n, c) +=! (X(n, c, y, x) - Mi(n, c)) * (X(n, c, y, x) - Mi(n, c)) / (H * W)
    Ml(n) +=! Mi(n, c) / C
    Vl(n) +=! (Vi(n, c) + (Mi(n, c) - Ml(n)) * (Mi(n, c) - Ml(n))) / C
    Mb(c) +=! Mi(n, c) / N
    Vb(c) +=! (Vi(n, c) + (Mi(n, c) - Mb(c)) * (Mi(n, c) - Mb(c))) / N
    Zm +=! exp(Wm(k))
    Zv +=! exp(Wv(k))
    Mu(n, c) = (exp(Wm(0)) * Mi(n, c) + exp(Wm(1)) * Ml(n) + exp(Wm(2)) * Mb(c)) / Zm
    Va(n, c) = (exp(Wv(0)) * Vi(n, c) + exp(Wv(1)) * Vl(n) + exp(Wv(2)) * Vb(c)) / Zv
    Y(n, c, y, x) = (X(n, c, y, x) - Mu(n, c)) * rsqrt(Va(n, c) + 1e-5) * Ga(c) + Be(c)
}''', args=lambda g: [(rn(g, 4, 31, 33, 40) + rn(g, 40)).permute(0, 3, 1, 2), rn(g, 3), rn(g, 3), ru(g, 40, lo=0.5, hi=1.5), rn(g, 40)], torch=_switchable, tol=3e-5))


def _sparsemax(X):
    cs = X.sort(1, descending=True).values.cumsum(1) - 1
    tau = (cs / torch.arange(1, X.shape[1] + 1)).amax(1)
    return F.relu(X - tau[:, None]), tau


op(dict(name="sparsemax_rows", text='''
def sparsemax_rows(float(N,K) X) -> (Y, Tau) {
    R(n, i) +=! X(n, j) >= X(n, i) ? 1.0 : 0.0
    Cs(n, i) +=! X(n, j) >= X(n, i) ? X(n, j) : 0.0
    Tau(n) max=! (Cs(n, i) - 1.0) / R(n, i)
    Y(n, i) = max(X(n, i) - Tau(n), 0.0)
}''', args=lambda g: [rn(g, 201, 61)], torch=_sparsemax, tol=1e-5))


def _soap(G, Ql, Qr, Mo, Vo, W, lr, b1, b2, eps):
    Mn = torch.lerp(G, Mo, b1)
    Gr, Mr = Ql.T @ G @ Qr, Ql.T @ Mn @ Qr
    Vn = b2 * Vo + (1 - b2) * Gr.square()
    return W - lr * (Ql @ (Mr / (Vn.sqrt() + eps)) @ Qr.T), Mn, Vn


op(dict(name="soap_rotated_adam_step", text='''
def soap_rotated_adam_step(float(M,N) G, float(M,M) Ql, float(N,N) Qr, float(M,N) Mo, float(M,N) Vo, float(M,N) W, float lr, float b1, float b2, float eps) -> (Wn, Mn, Vn) {
    Mn(m, n) = b1 * Mo(m, n) + (1.0 - b1) * G(m, n)
    Gr(i, j) +=! Ql(m, i) * G(m, n) * Qr(n, j)
    Mr(i, j) +=! Ql(m, i) * Mn(m, n) * Qr(n, j)
    Vn(i, j) = b2 * Vo(i, j) + (1.0 - b2) * Gr(i, j) * Gr(i, j)
    Ur(i, j) = Mr(i, j) / (sqrt(Vn(i, j)) + eps)
    Up(m, n) +=! Ql(m, i) * Ur(i, j) * Qr(n, j)
    Wn(m, n) = W(m, n) - lr * Up(m, n)
}''', args=lambda g: [rn(g, 192, 131), torch.linalg.qr(rn(g, 192, 192))[0], torch.linalg.qr(rn(g, 131, 131))[0], rn(g, 192, 131, k=0.3), ru(g, 192, 131, lo=0.1), rn(g, 192, 131), of(0.01), of(0.95), of(0.9), of(1e-8)], torch=_soap, tol=1e-4))


def _mppi(Cost, Ep, U, Ker, lam):
    w = torch.softmax(-Cost / lam, 0)
    un = torch.addmv(U.flatten(), Ep.flatten(1).T, w).view_as(U)
    return F.conv1d(F.pad(un.T[:, None], (2, 2), mode="replicate"), Ker[None, None])[:, 0].T, 1 / w.square().sum()


op(dict(name="mppi_update_smoothed", text='''
def mppi_update_smoothed(float(S) Cost, float(S,T,A) Ep, float(T,A) U, float(5) Ker, float lam) -> (Us, Ess) {
    Lo min=! Cost(s)
    W(s) = exp((Lo - Cost(s)) / lam)
    Z +=! W(s)
    Un(t, a) +=! W(s) / Z * Ep(s, t, a)
    Un(t, a) = Un(t, a) + U(t, a)
    Us(t, a) +=! Ker(k) * Un(min(max(t + k - 2, 0), T - 1), a) where t in 0:T
    Q +=! W(s) * W(s)
    Ess = Z * Z / Q
}''', args=lambda g: [10.0 * ru(g, 1024), rn(g, 1024, 48, 6), rn(g, 48, 6), torch.tensor([-3.0, 12.0, 17.0, 12.0, -3.0]) / 35, of(1.5)], torch=_mppi, tol=3e-5))


def _riccati(A, B, P, Q, r):
    pa = P @ A
    g = B @ pa
    K = g / (r + B @ P @ B)
    return A.T @ pa + Q - torch.outer(K, g), K


def _riccati_args(g):
    W = rn(g, 6, 6, dt=f64)
    return [rn(g, 6, 6, dt=f64, k=0.4), rn(g, 6, dt=f64), 0.5 * (W @ W.T + (W @ W.T).T), torch.eye(6, dtype=f64), of(0.5, f64)]


op(dict(name="riccati_step_tiny_f64", text='''
def riccati_step_tiny_f64(double(N,N) A, double(N) B, double(N,N) P, double(N,N) Q, double r) -> (Pn, K) {
    Pa(i, j) +=! P(i, l) * A(l, j)
    Pb(i) +=! P(i, l) * B(l)
    S +=! B(i) * Pb(i)
    G(j) +=! Pb(i) * A(i, j)
    K(j) = G(j) / (r + S)
    Pn(i, j) +=! A(l, i) * Pa(l, j)
    Pn(i, j) = Pn(i, j) + Q(i, j) - K(i) * G(j)
}''', args=_riccati_args, torch=_riccati, tol=1e-12))


# ---------------------------------------------------------------- vision

op(dict(name="deepspeech2_conv_41x11", text='''
def deepspeech2_conv_41x11(float(N,H,W) X, float(O,41,11) K, float(O) Scale, float(O) Shift) -> (Y) {
    Z(n, o, y, x) +=! (2*y + i >= 20 && 2*y + i < H + 20 && 2*x + j >= 5 && 2*x + j < W + 5) ? X(n, 2*y + i - 20, 2*x + j - 5) * K(o, i, j) : 0.0 where y in 0:(H+1)/2, x in 0:(W+1)/2
    Y(n, o, y, x) = clamp(Z(n, o, y, x) * Scale(o) + Shift(o), 0.0, 20.0)
}''', args=lambda g: [rn(g, 2, 81, 101), rn(g, 32, 41, 11, k=0.1), ru(g, 32, lo=0.5, hi=1.5), rn(g, 32)],
    torch=lambda X, K, a, b: F.hardtanh(torch.addcmul(b[:, None, None], F.conv2d(X[:, None], K[:, None], stride=2, padding=(20, 5)), a[:, None, None]), 0.0, 20.0), tol=3e-5))


def _aspp(X, K0, K1, K2, K3, Kp, Wp):
    H, W = X.shape[2:]
    parts = [F.conv2d(X, K0[:, :, None, None])] + [F.conv2d(X, k, padding=d, dilation=d) for k, d in ((K1, 6), (K2, 12), (K3, 18))]
    parts.append(F.conv2d(X.mean((2, 3), keepdim=True), Kp[:, :, None, None]).expand(-1, -1, H, W))
    return F.conv2d(F.relu(torch.cat(parts, 1)), Wp.transpose(0, 1).flatten(1)[:, :, None, None])


op(dict(name="aspp_head_three_rates", text='''
def atrous_relu(float(N,C,H,W) X, float(Q,C,3,3) K, int32 d) -> (Y) {
    Y(n, q, y, x) +=! (y + d*i >= d && y + d*i < H + d && x + d*j >= d && x + d*j < W + d) ? X(n, c, y + d*i - d, x + d*j - d) * K(q, c, i, j) : 0.0 where y in 0:H, x in 0:W
    Y(n, q, y, x) = relu(Y(n, q, y, x))
}
def aspp_head_three_rates(float(N,C,H,W) X, float(Q,C) K0, float(Q,C,3,3) K1, float(Q,C,3,3) K2, float(Q,C,3,3) K3, float(Q,C) Kp, float(5,O,Q) Wp) -> (Y) {
    A0(n, q, y, x) +=! X(n, c, y, x) * K0(q, c)
    A1 = atrous_relu(X, K1, 6)
    A2 = atrous_relu(X, K2, 12)
    A3 = atrous_relu(X, K3, 18)
    G(n, c) +=! X(n, c, y, x) / (H * W)
    A4(n, q) +=! G(n, c) * Kp(q, c)
    Y(n, o, y, x) +=! Wp(0, o, q) * relu(A0(n, q, y, x))
    Y(n, o, y, x) += Wp(1, o, q) * A1(n, q, y, x)
    Y(n, o, y, x) += Wp(2, o, q) * A2(n, q, y, x)
    Y(n, o, y, x) += Wp(3, o, q) * A3(n, q, y, x)
    Y(n, o, y, x) += Wp(4, o, q) * relu(A4(n, q))
}''', args=lambda g: [rn(g, 1, 32, 29, 31), rn(g, 16, 32, k=0.2), rn(g, 16, 32, 3, 3, k=0.06), rn(g, 16, 32, 3, 3, k=0.06), rn(g, 16, 32, 3, 3, k=0.06), rn(g, 16, 32, k=0.2), rn(g, 5, 24, 16, k=0.1)], torch=_aspp, tol=3e-5))


def _octave(Xh, Xl, Khh, Klh, Khl, Kll):
    return (F.conv2d(Xh, Khh, padding=1) + F.interpolate(F.conv2d(Xl, Klh, padding=1), scale_factor=2.0),
            F.conv2d(Xl, Kll, padding=1) + F.conv2d(F.avg_pool2d(Xh, 2), Khl, padding=1))


op(dict(name="octave_conv_two_rates", text='''
def octave_conv_two_rates(float(N,C,2*H,2*W) Xh, float(N,E,H,W) Xl, float(O,C,3,3) Khh, float(O,E,3,3) Klh, float(P,C,3,3) Khl, float(P,E,3,3) Kll) -> (Yh, Yl) {
    D(n, c, y, x) +=! 0.25 * Xh(n, c, 2*y + i, 2*x + j) where y in 0:H, x in 0:W, i in 0:2, j in 0:2
    Lh(n, o, y, x) +=! (y + i >= 1 && y + i <= H && x + j >= 1 && x + j <= W) ? Xl(n, e, y + i - 1, x + j - 1) * Klh(o, e, i, j) : 0.0 where y in 0:H, x in 0:W
    Yh(n, o, y, x) +=! (y + i >= 1 && y + i <= 2*H && x + j >= 1 && x + j <= 2*W) ? Xh(n, c, y + i - 1, x + j - 1) * Khh(o, c, i, j) : 0.0 where y in 0:2*H, x in 0:2*W
    Yh(n, o, y, x) = Yh(n, o, y, x) + Lh(n, o, y / 2, x / 2) where y in 0:2*H, x in 0:2*W
    Yl(n, p, y, x) +=! (y + i >= 1 && y + i <= H && x + j >= 1 && x + j <= W) ? Xl(n, e, y + i - 1, x + j - 1) * Kll(p, e, i, j) : 0.0 where y in 0:H, x in 0:W
    Yl(n, p, y, x) += (y + i >= 1 && y + i <= H && x + j >= 1 && x + j <= W) ? D(n, c, y + i - 1, x + j - 1) * Khl(p, c, i, j) : 0.0 where y in 0:H, x in 0:W
}''', args=lambda g: [rn(g, 1, 20, 46, 54), rn(g, 1, 12, 23, 27), rn(g, 18, 20, 3, 3, k=0.08), rn(g, 18, 12, 3, 3, k=0.08), rn(g, 10, 20, 3, 3, k=0.08), rn(g, 10, 12, 3, 3, k=0.08)], torch=_octave, tol=3e-5))


op(dict(name="video_vae_causal_conv3d_bf16", text='''
def video_vae_causal_conv3d_bf16(bfloat16(N,C,T,H,W) X, bfloat16(O,C,3,3,3) K, bfloat16(O) Bias) -> (bfloat16(N,O,T,H,W) Y) {
    Z(n, o, t, y, x) +=! (y + i >= 1 && y + i <= H && x + j >= 1 && x + j <= W) ? float(X(n, c, max(t + a - 2, 0), y + i - 1, x + j - 1)) * K(o, c, a, i, j) : 0.0
        where t in 0:T, y in 0:H, x in 0:W
    Y(n, o, t, y, x) = bfloat16(z * sigmoid(z)) where z = Z(n, o, t, y, x) + Bias(o)
}''', args=lambda g: [rn(g, 1, 12, 9, 24, 23, dt=bf16), rn(g, 16, 12, 3, 3, 3, dt=bf16, k=0.06), rn(g, 16, dt=bf16)],
    torch=lambda X, K, b: F.silu(F.conv3d(torch.cat([X[:, :, :1].expand(-1, -1, 2, -1, -1), X], 2), K, b, padding=(0, 1, 1))), tol=1e-2))


def _sift(G, thr):
    D = (G[1:] - G[:-1])[None, None]
    c = D[0, 0, 1:-1, 1:-1, 1:-1]
    E = ((c == F.max_pool3d(D, 3, 1)[0, 0]) | (c == -F.max_pool3d(-D, 3, 1)[0, 0])) & (c.abs() > thr)
    return E, E.sum((1, 2), dtype=i32)


op(dict(name="sift_dog_extrema", text='''
def sift_dog_extrema(float(S,H,W) G, float thr) -> (E, Count) {
    D(s, y, x) = G(s + 1, y, x) - G(s, y, x) where s in 0:S-1
    Mx(s, y, x) max=! D(s + a, y + i, x + j) where s in 0:S-3, y in 0:H-2, x in 0:W-2, a in 0:3, i in 0:3, j in 0:3
    Mn(s, y, x) min=! D(s + a, y + i, x + j) where s in 0:S-3, y in 0:H-2, x in 0:W-2, a in 0:3, i in 0:3, j in 0:3
    E(s, y, x) = (c == Mx(s, y, x) || c == Mn(s, y, x)) && abs(c) > thr where s in 0:S-3, y in 0:H-2, x in 0:W-2, c = D(s + 1, y + 1, x + 1)
    Count(s) +=! E(s, y, x) ? 1 : 0
}''', args=lambda g: [rn(g, 6, 151, 197), of(1.5)], torch=_sift, tol=0.0))


def _centernet(Hm, Off, Wh):
    H, W = Hm.shape[2:]
    p = Hm.sigmoid()
    kp = p * (F.max_pool2d(p, 3, 1, 1) == p)
    score, at = kp.max(1)
    grid = torch.stack([torch.arange(W).expand(H, W), torch.arange(H)[:, None].expand(H, W)])
    ctr = grid + Off
    return score, torch.where(score > 0, at.int(), -1), torch.cat([ctr - 0.5 * Wh, ctr + 0.5 * Wh], 1)


op(dict(name="centernet_peak_decode", text='''
def centernet_peak_decode(float(N,C,H,W) Hm, float(N,2,H,W) Off, float(N,2,H,W) Wh) -> (Score, Cls, Box) {
    P(n, c, y, x) = sigmoid(Hm(n, c, y, x))
    Mx(n, c, y, x) max=! (y + i >= 1 && y + i <= H && x + j >= 1 && x + j <= W) ? P(n, c, y + i - 1, x + j - 1) : 0.0 where y in 0:H, x in 0:W, i in 0:3, j in 0:3
    Kp(n, c, y, x) = P(n, c, y, x) == Mx(n, c, y, x) ? P(n, c, y, x) : 0.0
    Score(n, y, x) max=! Kp(n, c, y, x)
    Cls(n, y, x) min=! Kp(n, c, y, x) == Score(n, y, x) ? c : C
    Cls(n, y, x) = Score(n, y, x) > 0.0 ? Cls(n, y, x) : -1
    Box(n, k, y, x) = (k % 2 == 0 ? x + Off(n, 0, y, x) : y + Off(n, 1, y, x)) + (k < 2 ? -0.5 : 0.5) * Wh(n, k % 2, y, x) where k in 0:4
}''', args=lambda g: [rn(g, 1, 20, 76, 79), ru(g, 1, 2, 76, 79), ru(g, 1, 2, 76, 79, lo=2.0, hi=20.0)], torch=_centernet, tol=1e-5))


def _matrix_nms(Mk, Sc, Lab, sig):
    m = Mk.float()
    inter = m @ m.T
    area = inter.diagonal()
    iou = (inter / (area[:, None] + area - inter) * (Lab[:, None] == Lab)).triu(1)
    return Sc * torch.exp(sig * (iou.amax(0)[:, None].square() - iou.square())).amin(0), iou


op(dict(name="solov2_matrix_nms", text='''
def solov2_matrix_nms(bool(N,P) Mk, float(N) Sc, int64(N) Lab, float sig) -> (Out, Iou) {
    Nt(i, j) +=! Mk(i, p) && Mk(j, p) ? 1 : 0
    Iou(i, j) = i < j && Lab(i) == Lab(j) ? float(Nt(i, j)) / (Nt(i, i) + Nt(j, j) - Nt(i, j)) : 0.0
    Cp(j) max=! Iou(i, j)
    Dc(j) min=! exp(sig * (Cp(i) * Cp(i) - Iou(i, j) * Iou(i, j)))
    Out(j) = Sc(j) * Dc(j)
}''', args=lambda g: [ru(g, 61, 3136) < ru(g, 61, 1, lo=0.2, hi=0.9), ru(g, 61).sort(descending=True).values, ri(g, 0, 4, 61), of(2.0)], torch=_matrix_nms, tol=1e-5))


def _homography(X, A, oh, ow):
    H, W, _ = X.shape
    v, u = torch.arange(float(oh))[:, None], torch.arange(float(ow))
    px, py, d = (A[k, 0] * u + A[k, 1] * v + A[k, 2] for k in range(3))
    grid = torch.stack([px / d * (2 / (W - 1)) - 1, py / d * (2 / (H - 1)) - 1], -1)
    z = F.grid_sample(X.permute(2, 0, 1)[None].float(), grid[None], align_corners=True)[0].permute(1, 2, 0)
    return (z + 0.5).clamp(0, 255).to(u8)


op(dict(name="homography_warp_u8", text='''
def homography_warp_u8(uint8(H,W,3) X, float(3,3) A, int32 oh, int32 ow) -> (Y) {
    Px(v, u) = (A(0, 0) * u + A(0, 1) * v + A(0, 2)) / (A(2, 0) * u + A(2, 1) * v + A(2, 2)) where v in 0:oh, u in 0:ow
    Py(v, u) = (A(1, 0) * u + A(1, 1) * v + A(1, 2)) / (A(2, 0) * u + A(2, 1) * v + A(2, 2)) where v in 0:oh, u in 0:ow
    Xi(v, u) = int32(floor(Px(v, u)))
    Yi(v, u) = int32(floor(Py(v, u)))
    Z(v, u, c) +=! (Yi(v, u) + i >= 0 && Yi(v, u) + i < H && Xi(v, u) + j >= 0 && Xi(v, u) + j < W)
        ? (i == 0 ? 1.0 - fy : fy) * (j == 0 ? 1.0 - fx : fx) * X(Yi(v, u) + i, Xi(v, u) + j, c) : 0.0
        where i in 0:2, j in 0:2, fy = Py(v, u) - floor(Py(v, u)), fx = Px(v, u) - floor(Px(v, u))
    Y(v, u, c) = uint8(clamp(Z(v, u, c) + 0.5, 0.0, 255.0))
}''', args=lambda g: [ri(g, 0, 256, 240, 320, 3, dt=u8), torch.tensor([[1.1, 0.08, -12.3], [-0.05, 0.95, 9.4], [2e-4, -1e-4, 1.0]]), of(181, i32), of(250, i32)], torch=_homography, tol=6e-3))


def _png(X):
    x = X.int()
    a, b, c = F.pad(x[:, :-3], (3, 0)), F.pad(x[:-1], (0, 0, 1, 0)), F.pad(x[:-1, :-3], (3, 0, 1, 0))
    pa, pb, pc = (b - c).abs(), (a - c).abs(), (a + b - 2 * c).abs()
    p = torch.where((pa <= pb) & (pa <= pc), a, torch.where(pb <= pc, b, c))
    R = torch.stack([x, x - a, x - b, x - ((a + b) >> 1), x - p]) & 255
    sad = torch.minimum(R, 256 - R).sum(2, dtype=i32)
    sel = torch.where(sad == sad.amin(0), torch.arange(5, dtype=i32)[:, None], 5).amin(0)
    return R.gather(0, sel.long()[None, :, None].expand(1, *X.shape))[0].to(u8), sel


op(dict(name="png_filter_min_sad_u8", text='''
def png_filter_min_sad_u8(uint8(H,L) X) -> (Y, Sel) {
    A(y, i) = i >= 3 ? int32(X(y, i - 3)) : 0 where y in 0:H, i in 0:L
    B(y, i) = y >= 1 ? int32(X(y - 1, i)) : 0 where y in 0:H, i in 0:L
    C(y, i) = y >= 1 && i >= 3 ? int32(X(y - 1, i - 3)) : 0 where y in 0:H, i in 0:L
    P(y, i) = pa <= pb && pa <= pc ? A(y, i) : (pb <= pc ? B(y, i) : C(y, i))
        where pa = abs(B(y, i) - C(y, i)), pb = abs(A(y, i) - C(y, i)), pc = abs(A(y, i) + B(y, i) - 2 * C(y, i))
    R(f, y, i) = uint8(int32(X(y, i)) - (f == 0 ? 0 : (f == 1 ? A(y, i) : (f == 2 ? B(y, i) : (f == 3 ? (A(y, i) + B(y, i)) / 2 : P(y, i)))))) where f in 0:5
    Sad(y, f) +=! min(int32(R(f, y, i)), 256 - int32(R(f, y, i)))
    Best(y) min=! Sad(y, f)
    Sel(y) min=! Sad(y, f) == Best(y) ? f : 5
    Y(y, i) = R(Sel(y), y, i)
}''', args=lambda g: [(rn(g, 127, 483, k=9.0).cumsum(1) % 256).to(u8)], torch=_png, tol=0.0))


