# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Attention, quantisation, adapters, mixtures of experts, state spaces, convolutions and norms; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.models import r, ri, u
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)
f16, bf16, f64, u8, i8, i32 = torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.int8, torch.int32


def sc(value, dtype=torch.float32):
    return torch.tensor(value, dtype=dtype)


# ---------------------------------------------------------------- attention

def _natten(Q, K, V, Start, win, Rpb):
    T, D = Q.shape[1], Q.shape[3]
    idx = Start[:, None].long() + torch.arange(int(win))
    rel = idx - torch.arange(T)[:, None] + int(win) - 1
    P = (torch.einsum("bthd,btjhd->bhtj", Q, K[:, idx]) / D ** 0.5 + Rpb[:, rel]).softmax(-1)
    return torch.einsum("bhtj,btjhd->bthd", P, V[:, idx])


op(dict(name="natten_1d_starts", text='''
def natten_1d_starts(float(B,T,H,D) Q, float(B,T,H,D) K, float(B,T,H,D) V, int32(T) Start, int32 win, float(H,2*win-1) Rpb) -> (Y) {
    S(b, h, t, j) +=! Q(b, t, h, d) * K(b, Start(t) + j, h, d) where j in 0:win
    S(b, h, t, j) = S(b, h, t, j) / sqrt(float(D)) + Rpb(h, Start(t) + j - t + win - 1)
    M(b, h, t) max=! S(b, h, t, j)
    E(b, h, t, j) = exp(S(b, h, t, j) - M(b, h, t))
    Z(b, h, t) +=! E(b, h, t, j)
    Y(b, t, h, d) +=! E(b, h, t, j) / Z(b, h, t) * V(b, Start(t) + j, h, d)
}''', args=lambda g: [*r(g, 2, 300, 3, 4, 24).unbind(2), (torch.arange(300, dtype=i32) - 3).clamp(0, 293), sc(7, i32), r(g, 4, 13)], torch=_natten, tol=3e-5))


def _bigbird(Q, K, V, Blk):
    H, T, D = Q.shape
    idx = (16 * Blk[..., None] + torch.arange(16)).flatten(2)
    h = torch.arange(H)[:, None, None]
    return F.scaled_dot_product_attention(Q.view(H, T // 16, 16, D), K[h, idx], V[h, idx]).reshape(H, T, D)


op(dict(name="bigbird_block_gather_half", text='''
def bigbird_block_gather_half(half(H,T,D) Q, half(H,T,D) K, half(H,T,D) V, int64(H,T/16,S) Blk) -> (half(H,T,D) Y) {
    P(h, t, s, j) +=! float(Q(h, t, d)) * K(h, 16*Blk(h, t/16, s) + j, d) where t in 0:T, j in 0:16
    M(h, t) max=! P(h, t, s, j)
    E(h, t, s, j) = exp((P(h, t, s, j) - M(h, t)) / sqrt(float(D)))
    Z(h, t) +=! E(h, t, s, j)
    Y(h, t, d) +=! E(h, t, s, j) / Z(h, t) * V(h, 16*Blk(h, t/16, s) + j, d) where t in 0:T
}''', args=lambda g: [r(g, 6, 320, 64, dtype=f16), r(g, 6, 320, 64, dtype=f16), r(g, 6, 320, 64, dtype=f16), ri(g, 0, 20, 6, 20, 5)], torch=_bigbird, tol=5e-3))


def _packed(Q, K, V, Doc):
    t = torch.arange(Q.shape[0])
    S = torch.einsum("qhd,kd->hqk", Q.float(), K.float()) / Q.shape[2] ** 0.5
    S = S.masked_fill((t[:, None] < t) | (Doc[:, None] != Doc), -math.inf)
    lse = S.logsumexp(-1)
    return torch.einsum("hqk,kd->qhd", torch.exp(S - lse[..., None]), V.float()).to(bf16), lse


op(dict(name="packed_docs_mqa_lse_bf16", text='''
def packed_docs_mqa_lse_bf16(bfloat16(T,H,D) Q, bfloat16(T,D) K, bfloat16(T,D) V, int32(T) Doc) -> (bfloat16(T,H,D) Y, float(H,T) Lse) {
    S(h, q, k) +=! float(Q(q, h, d)) * K(k, d)
    S(h, q, k) = (k <= q && Doc(q) == Doc(k)) ? S(h, q, k) / sqrt(float(D)) : -infinity()
    M(h, q) max=! S(h, q, k)
    P(h, q, k) = exp(S(h, q, k) - M(h, q))
    Z(h, q) +=! P(h, q, k)
    Y(q, h, d) +=! P(h, q, k) / Z(h, q) * V(k, d)
    Lse(h, q) = M(h, q) + log(Z(h, q))
}''', args=lambda g: [r(g, 257, 6, 64, dtype=bf16), r(g, 257, 64, dtype=bf16), r(g, 257, 64, dtype=bf16), ri(g, 0, 5, 257, dtype=i32).sort().values], torch=_packed, tol=1e-2))


def _tome(X, K):
    S = K[:, ::2] @ K[:, 1::2].mT
    to = S.argmax(2)
    Y = X[:, 1::2].scatter_add(1, to[..., None].expand(-1, -1, X.shape[2]), X[:, ::2])
    n = torch.ones(to.shape).scatter_add(1, to, torch.ones(to.shape))
    return to.int(), Y / n[..., None]


op(dict(name="tome_bipartite_merge", text='''
def tome_bipartite_merge(float(B,T,C) X, float(B,T,D) K) -> (int32(B,T/2) To, float(B,T/2,C) Y) {
    S(b, i, j) +=! K(b, 2*i, d) * K(b, 2*j + 1, d) where i in 0:T/2, j in 0:T/2
    M(b, i) max=! S(b, i, j)
    To(b, i) min=! S(b, i, j) == M(b, i) ? j : T/2
    Cn(b, To(b, i)) +=! 1 where To(b, i) in 0:T/2
    Y(b, j, c) = X(b, 2*j + 1, c)
    Y(b, To(b, i), c) += X(b, 2*i, c)
    Y(b, j, c) = Y(b, j, c) / (1.0 + Cn(b, j))
}''', args=lambda g: [r(g, 4, 196, 192), F.normalize(r(g, 4, 196, 64), dim=2)], torch=_tome, tol=1e-5))


# ---------------------------------------------------------------- quantisation, adapters, mixtures of experts

def _gptq(X, Qw, Sc, Zp, Gidx):
    gi = Gidx.long()
    W = (torch.stack([Qw & 15, Qw >> 4], 1).flatten(0, 1).float() - Zp[gi].float()) * Sc[gi].float()
    return (X.float() @ W).half()


op(dict(name="gptq_act_order_half", text='''
def gptq_act_order_half(half(M,I) X, uint8(I/2,O) Qw, half(G,O) Sc, uint8(G,O) Zp, int32(I) Gidx) -> (half(M,O) Y) {
    Wf(i, o) = (float(i % 2 == 0 ? Qw(i/2, o) % 16 : Qw(i/2, o) / 16) - float(Zp(Gidx(i), o))) * Sc(Gidx(i), o) where i in 0:I
    Y(m, o) +=! X(m, i) * Wf(i, o)
}''', args=lambda g: [r(g, 20, 512, dtype=f16), ri(g, 0, 256, 256, 300, dtype=u8), (0.005 + 0.01 * u(g, 8, 300)).to(f16), ri(g, 5, 11, 8, 300, dtype=u8), ri(g, 0, 8, 512, dtype=i32)], torch=_gptq, tol=3e-3))


def _kivi(K):
    B, T, C = K.shape
    X = K.float().reshape(B, T // 32, 32, C)
    mn = X.amin(2)
    s = ((X.amax(2) - mn) / 3).clamp_min(1e-6)
    q = ((X - mn[:, :, None]) / s[:, :, None] + 0.5).floor().clamp(0, 3).to(u8).view(B, T // 4, 4, C)
    return q[:, :, 0] + 4 * q[:, :, 1] + 16 * q[:, :, 2] + 64 * q[:, :, 3], s, mn


op(dict(name="kivi_pack_2bit", text='''
def kivi_pack_2bit(half(B,T,C) K) -> (uint8(B,T/4,C) Code, Scale, Mn) {
    Mx(b, g, c) max=! float(K(b, 32*g + i, c)) where g in 0:T/32, i in 0:32
    Mn(b, g, c) min=! float(K(b, 32*g + i, c)) where g in 0:T/32, i in 0:32
    Scale(b, g, c) = max((Mx(b, g, c) - Mn(b, g, c)) / 3.0, 1e-6)
    Q(b, t, c) = int32(clamp(floor((K(b, t, c) - Mn(b, t/32, c)) / Scale(b, t/32, c) + 0.5), 0.0, 3.0)) where t in 0:T
    Code(b, p, c) = uint8(Q(b, 4*p, c) + 4 * Q(b, 4*p + 1, c) + 16 * Q(b, 4*p + 2, c) + 64 * Q(b, 4*p + 3, c)) where p in 0:T/4
}''', args=lambda g: [r(g, 3, 352, 128, dtype=f16)[:, :, 5:105]], torch=_kivi, tol=1e-6))


def _mxint8(X):
    N, D = X.shape
    x = X.float().view(N, -1, 32)
    e = torch.frexp(x.abs().amax(2)).exponent - 1
    s = torch.exp2(6.0 - e)[..., None]
    q = torch.floor(x * s + 0.5).clamp(-127, 127)
    return q.to(i8).view(N, D), e.to(i8), ((x - q / s) ** 2).sum((1, 2))


op(dict(name="mxint8_shared_exponent", text='''
def mxint8_shared_exponent(bfloat16(N,D) X) -> (int8(N,D) Q, int8(N,D/32) E, float(N) Err) {
    A(n, g) max=! fabs(float(X(n, 32*g + i))) where g in 0:D/32, i in 0:32
    E(n, g) = int8(clamp(A(n, g) > 0.0 ? logb(A(n, g)) : -127.0, -127.0, 127.0))
    Q(n, d) = int8(clamp(floor(float(X(n, d)) * exp2(6.0 - E(n, d/32)) + 0.5), -127.0, 127.0)) where d in 0:D
    Err(n) +=! e * e where e = float(X(n, d)) - Q(n, d) * exp2(E(n, d/32) - 6.0), d in 0:D
}''', args=lambda g: [r(g, 130, 1056, dtype=bf16)], torch=_mxint8, tol=0.02))


def _bgmv(X, W, A, Bm, Ad, Scale):
    a = Ad.clamp_min(0).long()
    t = torch.einsum("bi,bri->br", X.float(), A[a].float())
    d = torch.einsum("br,bor->bo", t, Bm[a].float()) * torch.where(Ad >= 0, Scale[a], 0.0)[:, None]
    return ((X @ W.T).float() + d).half()


op(dict(name="multi_lora_bgmv_half", text='''
def multi_lora_bgmv_half(half(B,I) X, half(O,I) W, half(L,R,I) A, half(L,O,R) Bm, int32(B) Ad, float(L) Scale) -> (half(B,O) Y) {
    T(b, r) +=! Ad(b) >= 0 ? float(X(b, i)) * A(Ad(b), r, i) : 0.0
    Y(b, o) +=! X(b, i) * W(o, i)
    Y(b, o) += Ad(b) >= 0 ? Scale(Ad(b)) * T(b, r) * Bm(Ad(b), o, r) : 0.0
}''', args=lambda g: [r(g, 24, 512, dtype=f16), (r(g, 640, 512) / 23).to(f16), (r(g, 9, 16, 512) / 23).to(f16), (r(g, 9, 640, 16) / 4).to(f16), ri(g, -1, 9, 24, dtype=i32), 0.5 + u(g, 9)], torch=_bgmv, tol=5e-3))


def _capacity(L, X, cap):
    cap, E = int(cap), L.shape[1]
    e = L.argmax(1)
    slot = (F.one_hot(e, E).cumsum(0) - 1).gather(1, e[:, None])[:, 0]
    keep = slot < cap
    buf = torch.zeros(E, cap + 1, X.shape[1])
    buf[e[keep], slot[keep]] = X[keep]
    return e.int(), slot.int(), buf, L.softmax(1).amax(1)


op(dict(name="moe_capacity_dispatch", text='''
def moe_capacity_dispatch(float(T,E) L, float(T,D) X, int32 cap) -> (Expert, Slot, float(E,cap+1,D) Buf, Gate) {
    M(t) max=! L(t, e)
    Expert(t) min=! L(t, e) == M(t) ? e : E
    Z(t) +=! exp(L(t, e) - M(t))
    Gate(t) = 1.0 / Z(t)
    Slot(t) +=! (s < t && Expert(s) == Expert(t)) ? 1 : 0
    Buf(Expert(t), min(Slot(t), cap), d) +=! Slot(t) < cap ? X(t, d) : 0.0     # the last slot takes what overflows, as zeros
}''', args=lambda g: [r(g, 400, 8), r(g, 400, 96), sc(45, i32)], torch=_capacity, tol=1e-5))


def _u8bag(Tb, Sb, Idx, Wt):
    g = Idx.clamp_min(0).long()
    w, s = Wt.float().masked_fill(Idx < 0, 0.0), Sb[g]
    return (torch.einsum("bl,bld->bd", w * s[..., 0], Tb[g].float()) + (w * s[..., 1]).sum(1, keepdim=True)).half()


op(dict(name="rowwise_u8_embedding_bag", text='''
def rowwise_u8_embedding_bag(uint8(V,D) Tb, float(V,2) Sb, int32(B,L) Idx, half(B,L) Wt) -> (half(B,D) Y) {
    Y(b, d) +=! Idx(b, l) >= 0 ? Wt(b, l) * (Sb(Idx(b, l), 0) * float(Tb(Idx(b, l), d)) + Sb(Idx(b, l), 1)) : 0.0
}''', args=lambda g: [ri(g, 0, 256, 20000, 80, dtype=u8), r(g, 20000, 2) * 0.01, ri(g, -1, 20000, 128, 25, dtype=i32).where(u(g, 128, 25) > 0.2, sc(-1, i32)), u(g, 128, 25, dtype=f16)], torch=_u8bag, tol=2e-3))


# ---------------------------------------------------------------- state spaces, convolutions, norms

def _rglru(X, Hs, Wa, Wx, Lam):
    x = X.float()
    a = torch.sigmoid(torch.einsum("bhd,hde->bhe", x, Wa.float()))
    i = torch.sigmoid(torch.einsum("bhd,hde->bhe", x, Wx.float()))
    la = -8 * F.softplus(Lam) * a
    Hn = la.exp() * Hs + (-torch.expm1(2 * la)).sqrt() * i * x
    return Hn.to(bf16), Hn


op(dict(name="griffin_rglru_step_bf16", text='''
def griffin_rglru_step_bf16(bfloat16(B,H,D) X, float(B,H,D) Hs, bfloat16(H,D,D) Wa, bfloat16(H,D,D) Wx, float(H,D) Lam) -> (bfloat16(B,H,D) Y, float(B,H,D) Hn) {
    R(b, h, e) +=! float(X(b, h, d)) * Wa(h, d, e)
    I(b, h, e) +=! float(X(b, h, d)) * Wx(h, d, e)
    La(b, h, e) = -8.0 * log1p(exp(Lam(h, e))) * sigmoid(R(b, h, e))
    Hn(b, h, e) = exp(La(b, h, e)) * Hs(b, h, e) + sqrt(-expm1(2.0 * La(b, h, e))) * sigmoid(I(b, h, e)) * X(b, h, e)
    Y(b, h, e) = bfloat16(Hn(b, h, e))
}''', args=lambda g: [r(g, 8, 10, 64, dtype=bf16), r(g, 8, 10, 64), (r(g, 10, 64, 64) / 8).to(bf16), (r(g, 10, 64, 64) / 8).to(bf16), r(g, 10, 64) - 2], torch=_rglru, tol=5e-3))


def _partial(X, M, K, Bias):
    m = M[:, None].float()
    n = F.conv2d(m, torch.ones(1, 1, 3, 3), padding=1)
    on = n > 0
    S = F.conv2d(X * m, K, padding=1)
    return torch.where(on, S * (9.0 / n.clamp_min(1)) + Bias[:, None, None], 0.0), on[:, 0]


op(dict(name="partial_conv_inpaint", text='''
def partial_conv_inpaint(float(N,C,H,W) X, bool(N,H,W) M, float(O,C,3,3) K, float(O) Bias) -> (Y, bool(N,H,W) Mn) {
    Cnt(n, y, x) +=! (y + i >= 1 && y + i <= H && x + j >= 1 && x + j <= W && M(n, y + i - 1, x + j - 1)) ? 1 : 0
        where y in 0:H, x in 0:W, i in 0:3, j in 0:3
    S(n, o, y, x) +=! (y + i >= 1 && y + i <= H && x + j >= 1 && x + j <= W && M(n, y + i - 1, x + j - 1)) ? X(n, c, y + i - 1, x + j - 1) * K(o, c, i, j) : 0.0
        where y in 0:H, x in 0:W, i in 0:3, j in 0:3
    Y(n, o, y, x) = Cnt(n, y, x) > 0 ? S(n, o, y, x) * (9.0 / Cnt(n, y, x)) + Bias(o) : 0.0
    Mn(n, y, x) = Cnt(n, y, x) > 0
}''', args=lambda g: [r(g, 2, 16, 45, 61), u(g, 2, 45, 61) < 0.35, r(g, 24, 16, 3, 3) / 12, r(g, 24)], torch=_partial, tol=3e-5))


def _geo(X, K, Area):
    Z = (X * Area[:, None, None]).permute(0, 3, 1, 2)
    Z = F.pad(F.pad(Z, (2, 2, 0, 0), mode="circular"), (0, 0, 1, 1))
    return F.relu(F.conv2d(Z, K)).permute(0, 2, 3, 1)


op(dict(name="geo_conv_wrap_longitude", text='''
def geo_conv_wrap_longitude(float(B,La,Lo,C) X, float(O,C,3,5) K, float(La) Area) -> (Y) {
    Y(b, y, x, o) +=! (y + i >= 1 && y + i < La + 1) ? X(b, y + i - 1, (x + j + Lo - 2) % Lo, c) * K(o, c, i, j) * Area(y + i - 1) : 0.0
        where y in 0:La, x in 0:Lo, i in 0:3, j in 0:5
    Y(b, y, x, o) = relu(Y(b, y, x, o))
}''', args=lambda g: [r(g, 2, 46, 90, 12), r(g, 20, 12, 3, 5) / 13, torch.cos(torch.linspace(-1.5, 1.5, 46))], torch=_geo, tol=3e-5))


op(dict(name="locally_connected_s2", text='''
def locally_connected_s2(float(N,C,H,W) X, float(P,Q,O,C,3,3) K, float(P,Q,O) Bias) -> (Y) {
    Y(n, o, p, q) +=! X(n, c, 2*p + i, 2*q + j) * K(p, q, o, c, i, j)
    Y(n, o, p, q) = tanh(Y(n, o, p, q) + Bias(p, q, o))
}''', args=lambda g: [r(g, 6, 8, 27, 33), r(g, 13, 16, 10, 8, 3, 3) / 9, r(g, 13, 16, 10)],
   torch=lambda X, K, b: torch.tanh(torch.einsum("ncpqij,pqocij->nopq", X.unfold(2, 3, 2).unfold(3, 3, 2), K) + b.permute(2, 0, 1)), tol=3e-5))


def _minst(X, Len, G, Beta):
    m = (torch.arange(X.shape[2]) < Len[:, None])[:, None]
    n = Len[:, None].float()
    Z = X.masked_fill(~m, 0.0)
    mu = Z.sum(2) / n
    var = (X - mu[..., None]).masked_fill(~m, 0.0).square().sum(2) / n
    Y = (X - mu[..., None]) * torch.rsqrt(var + 1e-5)[..., None] * G[:, None] + Beta[:, None]
    return Y.masked_fill(~m, 0.0), mu, var


op(dict(name="masked_instance_norm_lengths", text='''
def masked_instance_norm_lengths(float(N,C,T) X, int32(N) Len, float(C) G, float(C) Beta) -> (Y, Mean, Var) {
    Mean(n, c) +=! t < Len(n) ? X(n, c, t) / Len(n) : 0.0
    Var(n, c) +=! t < Len(n) ? (X(n, c, t) - Mean(n, c)) * (X(n, c, t) - Mean(n, c)) / Len(n) : 0.0
    Y(n, c, t) = t < Len(n) ? (X(n, c, t) - Mean(n, c)) * rsqrt(Var(n, c) + 1e-5) * G(c) + Beta(c) : 0.0
}''', args=lambda g: [r(g, 6, 333, 80).transpose(1, 2) + 2, sc([333, 7, 120, 299, 64, 201], i32), r(g, 80), r(g, 80)], torch=_minst, tol=3e-5))
