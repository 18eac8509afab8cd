# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Attention, routing, quantisation, graphs, metrics, dynamic programming, images and small algebra; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)
f16, bf16, f64, u8, i8, i32 = torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.int8, torch.int32


def r(g, *s, dtype=torch.float32):
    return torch.randn(*s, generator=g, dtype=torch.float64 if dtype == torch.float64 else torch.float32).to(dtype)


def u(g, *s, dtype=torch.float32):
    return torch.rand(*s, generator=g, dtype=torch.float64 if dtype == torch.float64 else torch.float32).to(dtype)


def ri(g, lo, hi, *s, dtype=torch.int64):
    return torch.randint(lo, hi, s, generator=g, dtype=dtype)


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


# ---------------------------------------------------------------- graphs, meshes, sparse convolution

def _readout(X, Q, Seg):
    G = Q.shape[0]
    s = (X * Q[Seg]).sum(1) / X.shape[1] ** 0.5
    m = torch.full((G,), -math.inf).scatter_reduce(0, Seg, s, "amax")
    p = torch.exp(s - m[Seg])
    p = p / torch.zeros(G).index_add(0, Seg, p)[Seg]
    return p, torch.zeros(G, X.shape[1]).index_add(0, Seg, p[:, None] * X)


op(dict(name="graph_readout_softmax", text='''
def graph_readout_softmax(float(N,D) X, float(G,D) Q, int64(N) Seg) -> (P, float(G,D) R) {
    S(n) +=! X(n, d) * Q(Seg(n), d)
    S(n) = S(n) / sqrt(float(D))
    M(Seg(n)) max=! S(n) where Seg(n) in 0:G
    P(n) = exp(S(n) - M(Seg(n)))
    Z(Seg(n)) +=! P(n) where Seg(n) in 0:G
    P(n) = P(n) / Z(Seg(n))
    R(Seg(n), d) +=! P(n) * X(n, d)
}''', args=lambda g: [r(g, 5003, 72), r(g, 131, 72), ri(g, 0, 131, 5003).sort().values], torch=_readout, tol=5e-5))


def _gatedgcn(P, Ef, C, Src, Dst):
    A, B, V, U = P.unbind(1)
    En = Ef @ C + A.index_select(0, Dst) + B.index_select(0, Src)
    s = torch.sigmoid(En)
    num = torch.zeros_like(U).index_add(0, Dst, s * V.index_select(0, Src))
    den = torch.zeros_like(U).index_add(0, Dst, s)
    return F.relu(U + num / (den + 1e-6)), En


op(dict(name="gated_gcn_edges", text='''
def gated_gcn_edges(float(N,4,D) P, float(E,D) Ef, float(D,D) C, int32(E) Src, int32(E) Dst) -> (float(N,D) Y, float(E,D) En) {
    En(e, o) +=! Ef(e, d) * C(d, o)
    En(e, o) = En(e, o) + P(Dst(e), 0, o) + P(Src(e), 1, o)
    Num(Dst(e), o) +=! sigmoid(En(e, o)) * P(Src(e), 2, o) where Dst(e) in 0:N
    Den(Dst(e), o) +=! sigmoid(En(e, o)) where Dst(e) in 0:N
    Y(n, o) = relu(P(n, 3, o) + Num(n, o) / (Den(n, o) + 1e-6))
}''', args=lambda g: [r(g, 700, 4, 40), r(g, 5003, 40), r(g, 40, 40) / 6, ri(g, 0, 700, 5003, dtype=i32), ri(g, 0, 700, 5003, dtype=i32)], torch=_gatedgcn, tol=3e-5))


def _gauss(Phi, Sf, Wt, Own, Nei, Vol):
    inside, own, nei = Nei >= 0, Own.long(), Nei.clamp_min(0).long()
    pf = torch.where(inside, Wt * Phi[own] + (1 - Wt) * Phi[nei], Phi[own])
    flux = pf[:, None] * Sf
    G = torch.zeros(len(Phi), 3, dtype=f64).index_add(0, own, flux)
    return G.index_add(0, nei, torch.where(inside[:, None], -flux, 0.0)) / Vol[:, None]


op(dict(name="green_gauss_gradient_f64", text='''
def green_gauss_gradient_f64(double(C) Phi, double(F,3) Sf, double(F) Wt, int32(F) Own, int32(F) Nei, double(C) Vol) -> (double(C,3) G) {
    Pf(f) = Nei(f) >= 0 ? Wt(f) * Phi(Own(f)) + (1.0 - Wt(f)) * Phi(Nei(f)) : Phi(Own(f))      # -1: a face of the boundary
    G(Own(f), d) +=! Pf(f) * Sf(f, d)
    G(max(Nei(f), 0), d) += Nei(f) >= 0 ? -Pf(f) * Sf(f, d) : 0.0
    G(c, d) = G(c, d) / Vol(c)
}''', args=lambda g: [r(g, 4000, dtype=f64), r(g, 12001, 3, dtype=f64), u(g, 12001, dtype=f64), ri(g, 0, 4000, 12001, dtype=i32), torch.cat([ri(g, 0, 4000, 11000, dtype=i32), torch.full((1001,), -1, dtype=i32)]), 0.5 + u(g, 4000, dtype=f64)], torch=_gauss, tol=1e-11))


def _subm(X, Wt, In, Out, Bias):
    T = torch.bmm(X[In.clamp_min(0).long()] * (In >= 0)[..., None], Wt)
    return Bias.expand(len(X), -1).index_add(0, Out.clamp_min(0).flatten(), T.flatten(0, 1))


def _subm_args(g):
    short = torch.arange(60) >= ri(g, 20, 61, 27)[:, None]
    pairs = [ri(g, 0, 400, 27, 60, dtype=i32).masked_fill(short, -1) for _ in range(2)]
    return [r(g, 400, 16), r(g, 27, 16, 24) / 10, *pairs, r(g, 24)]


op(dict(name="submanifold_sparse_conv", text='''
def submanifold_sparse_conv(float(N,C) X, float(K,C,O) Wt, int32(K,P) In, int32(K,P) Out, float(O) Bias) -> (float(N,O) Y) {
    T(k, p, o) +=! In(k, p) >= 0 ? X(In(k, p), c) * Wt(k, c, o) : 0.0
    Y(n, o) = Bias(o) where n in 0:N
    Y(max(Out(k, p), 0), o) += T(k, p, o)
}''', args=_subm_args, torch=_subm, tol=2e-5))


# ---------------------------------------------------------------- metrics and retrieval

def _gauc(S, L, Valid):
    p, n = Valid & (L == 1), Valid & (L == 0)
    w = (S[:, :, None] > S[:, None]).float() + 0.5 * (S[:, :, None] == S[:, None])
    w = torch.einsum("uij,ui,uj->u", w, p.float(), n.float()).double()
    P, N = p.sum(1), n.sum(1)
    auc = torch.where((P > 0) & (N > 0), w / (P * N).double().clamp_min(1), 0.5)
    return auc, (auc * (P + N)).sum() / (P + N).sum()


op(dict(name="grouped_auc_counting_half", text='''
def grouped_auc_counting_half(half(U,N) S, uint8(U,N) L, bool(U,N) Valid) -> (Auc, Gauc) {
    Pos(u) +=! (Valid(u, i) && L(u, i) == 1) ? 1 : 0
    Neg(u) +=! (Valid(u, i) && L(u, i) == 0) ? 1 : 0
    Win(u) +=! (Valid(u, i) && L(u, i) == 1 && Valid(u, j) && L(u, j) == 0) ? (S(u, i) > S(u, j) ? 1.0 : (S(u, i) == S(u, j) ? 0.5 : 0.0)) : 0.0
    Auc(u) = (Pos(u) > 0 && Neg(u) > 0) ? double(Win(u)) / (double(Pos(u)) * Neg(u)) : 0.5
    Num +=! Auc(u) * (Pos(u) + Neg(u))
    Den +=! Pos(u) + Neg(u)
    Gauc = Num / Den
}''', args=lambda g: [torch.round(4 * r(g, 64, 203)).to(f16) / 4, ri(g, 0, 2, 64, 203, dtype=u8), u(g, 64, 203) < 0.8], torch=_gauc, tol=1e-10))


def _recall(S, Rel):
    o = S.argsort(dim=1, descending=True, stable=True)[:, :10]
    rel, tot, disc = Rel.gather(1, o).float(), Rel.sum(1), 1 / torch.log2(torch.arange(10.0) + 2)
    ideal = disc.cumsum(0)[tot.clamp(1, 10) - 1]
    return torch.where(tot > 0, rel.sum(1) / tot.clamp_min(1), 0.0), torch.where(tot > 0, rel @ disc / ideal, 0.0)


op(dict(name="recall_ndcg_at_10", text='''
def recall_ndcg_at_10(float(Q,N) S, bool(Q,N) Rel) -> (Recall, Ndcg) {
    Rank(q, i) +=! (S(q, j) > S(q, i) || (S(q, j) == S(q, i) && j < i)) ? 1 : 0
    Tot(q) +=! Rel(q, i) ? 1 : 0
    Hit(q) +=! (Rel(q, i) && Rank(q, i) < 10) ? 1 : 0
    Dcg(q) +=! (Rel(q, i) && Rank(q, i) < 10) ? 1.0 / log2(Rank(q, i) + 2.0) : 0.0
    Idcg(q) +=! k < min(Tot(q), 10) ? 1.0 / log2(k + 2.0) : 0.0 where k in 0:10
    Recall(q) = Tot(q) > 0 ? float(Hit(q)) / Tot(q) : 0.0
    Ndcg(q) = Tot(q) > 0 ? Dcg(q) / Idcg(q) : 0.0
}''', args=lambda g: [torch.round(64 * r(g, 48, 311)) / 64, u(g, 48, 311) < 0.02], torch=_recall, tol=1e-5))


def _cwece(P, Y):
    N, C = P.shape
    p = P.float()
    k = (torch.arange(C) * 10 + (p * 10).int().clamp_max(9)).flatten()
    gap = torch.zeros(C * 10).index_add(0, k, (p - F.one_hot(Y, C)).flatten()).view(C, 10)
    ece = gap.abs().sum(1) / N
    return torch.bincount(k, minlength=C * 10).view(C, 10).int(), ece, ece.mean()


op(dict(name="classwise_ece_bf16", text='''
def classwise_ece_bf16(bfloat16(N,C) P, int64(N) Y) -> (int32(C,10) Count, Ece, Sce) {
    Bin(n, c) = min(int32(float(P(n, c)) * 10.0), 9)
    Count(c, Bin(n, c)) +=! 1
    Gap(c, Bin(n, c)) +=! float(P(n, c)) - (Y(n) == c ? 1.0 : 0.0) where Bin(n, c) in 0:10
    Ece(c) +=! abs(Gap(c, b)) / N
    Sce +=! Ece(c) / C
}''', args=lambda g: [torch.softmax(2 * r(g, 3000, 21), 1).to(bf16), ri(g, 0, 21, 3000)], torch=_cwece, tol=1e-4))


def _qwk(A, T, Like):
    R, V = len(A), len(Like)
    k = (torch.arange(R)[:, None] * V + A) * V + T
    O = torch.bincount(k.flatten(), minlength=R * V * V).view(R, V, V)
    d = (torch.arange(V)[:, None] - torch.arange(V)).square().double()
    Od = O.double()
    num = (Od * d).sum((1, 2))
    den = torch.einsum("ri,rj,ij->r", Od.sum(2), Od.sum(1), d) / A.shape[1]
    return O.int(), 1 - num / den


op(dict(name="quadratic_weighted_kappa_i8", text='''
def quadratic_weighted_kappa_i8(int8(R,N) A, int8(N) T, double(V) Like) -> (int32(R,V,V) O, Kappa) {
    O(r, A(r, n), T(n)) +=! 1
    Ra(r, i) +=! O(r, i, j)
    Cb(r, j) +=! O(r, i, j)
    Num(r) +=! double(O(r, i, j)) * ((i - j) * (i - j))
    Den(r) +=! double(Ra(r, i)) * Cb(r, j) * ((i - j) * (i - j)) / N
    Kappa(r) = 1.0 - Num(r) / Den(r)
}''', args=lambda g: [ri(g, 0, 7, 30, 4001, dtype=i8), ri(g, 0, 7, 4001, dtype=i8), torch.zeros(7, dtype=f64)], torch=_qwk, tol=1e-10))


def _bleu2(H, R, Hl, Rl):
    h, q = H[:, :-1] * 1000 + H[:, 1:], R[:, :-1] * 1000 + R[:, 1:]
    v, w = torch.arange(1, H.shape[1]) < Hl[:, None], torch.arange(1, R.shape[1]) < Rl[:, None]
    bf = ((h[:, :, None] == h[:, None]) & v[:, :, None]).tril(-1).sum(2)
    cr = ((h[:, :, None] == q[:, None]) & w[:, None]).sum(2)
    m = (v & (bf < cr)).sum(1, dtype=i32)
    return m, torch.where(Hl > 1, m / (Hl - 1).clamp_min(1), 0.0)


op(dict(name="bleu_clipped_bigrams", text='''
def bleu_clipped_bigrams(int32(B,L) H, int32(B,M) R, int32(B) Hl, int32(B) Rl) -> (Match, Prec) {
    Bf(b, i) +=! (j < i && i + 1 < Hl(b) && H(b, i) == H(b, j) && H(b, i + 1) == H(b, j + 1)) ? 1 : 0 where i in 0:L-1, j in 0:L-1
    Cr(b, i) +=! (j + 1 < Rl(b) && H(b, i) == R(b, j) && H(b, i + 1) == R(b, j + 1)) ? 1 : 0 where i in 0:L-1, j in 0:M-1
    Match(b) +=! (i + 1 < Hl(b) && Bf(b, i) < Cr(b, i)) ? 1 : 0
    Prec(b) = Hl(b) > 1 ? float(Match(b)) / (Hl(b) - 1) : 0.0
}''', args=lambda g: [ri(g, 0, 12, 64, 50, dtype=i32), ri(g, 0, 12, 64, 57, dtype=i32), ri(g, 1, 51, 64, dtype=i32), ri(g, 5, 58, 64, dtype=i32)], torch=_bleu2, tol=1e-6))


def _bm25(Tf, Len, Idf, Qt, k1, bb):
    q = Qt.clamp_min(0)
    norm = k1 * (1 - bb + bb * Len / Len.float().mean())
    tf = Tf[:, q].float()
    w = Idf[q].masked_fill(Qt < 0, 0.0) * (k1 + 1)
    return torch.einsum("dql,ql->qd", tf / (tf + norm[:, None, None]), w)


op(dict(name="bm25_scores_u8", text='''
def bm25_scores_u8(uint8(D,V) Tf, int32(D) Len, float(V) Idf, int64(Q,L) Qt, float k1, float bb) -> (S) {
    Avg +=! float(Len(d)) / D
    Nm(d) = k1 * (1.0 - bb + bb * Len(d) / Avg)
    S(q, d) +=! Qt(q, l) >= 0 ? Idf(Qt(q, l)) * float(Tf(d, Qt(q, l))) * (k1 + 1.0) / (float(Tf(d, Qt(q, l))) + Nm(d)) : 0.0
}''', args=lambda g: [ri(g, 0, 9, 3000, 500, dtype=u8), ri(g, 40, 900, 3000, dtype=i32), 0.1 + 5 * u(g, 500), ri(g, -1, 500, 20, 9), sc(1.2), sc(0.75)], torch=_bm25, tol=2e-5))


# ---------------------------------------------------------------- splines, transport, decoding

def _kanlin(X, C, Base):
    G = C.shape[2]
    p = (X.clamp(-1, 1) + 1) * 0.5 * (G - 1)
    k = p.long().clamp_max(G - 2)
    Ct, i = C.transpose(1, 2), torch.arange(C.shape[0])
    return torch.lerp(Ct[i, k], Ct[i, k + 1], (p - k)[..., None]).sum(1) + F.silu(X) @ Base.T


op(dict(name="kan_piecewise_linear", text='''
def kan_piecewise_linear(float(N,I) X, float(I,O,G) C, float(O,I) Base) -> (Y) {
    P(n, i) = (clamp(X(n, i), -1.0, 1.0) + 1.0) * 0.5 * (G - 1)
    K(n, i) = min(int32(P(n, i)), G - 2)
    Y(n, o) +=! (1.0 - P(n, i) + K(n, i)) * C(i, o, K(n, i)) + (P(n, i) - K(n, i)) * C(i, o, K(n, i) + 1)
    Y(n, o) += X(n, i) * sigmoid(X(n, i)) * Base(o, i)
}''', args=lambda g: [r(g, 200, 64) * 0.6, r(g, 64, 48, 21) / 8, r(g, 48, 64) / 8], torch=_kanlin, tol=3e-5))


def _unbalanced(C, A, Bm, eps, rho):
    K, a = torch.exp(-C / eps), rho / (rho + eps)
    U = (A / K.sum(1)) ** a
    V = (Bm / (U @ K)) ** a
    P = U[:, None] * K * V
    return P, (P * C).sum()


op(dict(name="unbalanced_sinkhorn_f64", text='''
def unbalanced_sinkhorn_f64(double(N,M) C, double(N) A, double(M) Bm, double eps, double rho) -> (Plan, Cost) {
    K(i, j) = exp(-C(i, j) / eps)
    S(i) +=! K(i, j)
    U(i) = pow(A(i) / S(i), rho / (rho + eps))
    T(j) +=! K(i, j) * U(i)
    V(j) = pow(Bm(j) / T(j), rho / (rho + eps))
    Plan(i, j) = U(i) * K(i, j) * V(j)
    Cost +=! Plan(i, j) * C(i, j)
}''', args=lambda g: [u(g, 301, 257, dtype=f64), (0.5 + u(g, 301, dtype=f64)) / 301, (0.5 + u(g, 257, dtype=f64)) / 257, sc(0.05, f64), sc(1.0, f64)], torch=_unbalanced, tol=1e-10))


def _diverse(LP, Sc, Prev, lam):
    V = LP.shape[2]
    h = torch.zeros(len(LP), V).scatter_add(1, Prev, torch.ones(Prev.shape))
    best, arg = (Sc[..., None] + LP - lam * h[:, None]).flatten(1).max(1)
    return best, arg // V, arg % V


op(dict(name="diverse_beam_group_penalty", text='''
def diverse_beam_group_penalty(float(B,K,V) LP, float(B,K) Sc, int64(B,P) Prev, float lam) -> (Best, int64(B) Beam, int64(B) Tok) {
    H(b, Prev(b, p)) +=! 1 where Prev(b, p) in 0:V
    Z(b, k, v) = Sc(b, k) + LP(b, k, v) - lam * H(b, v)
    Best(b) max=! Z(b, k, v)
    Arg(b) min=! Z(b, k, v) == Best(b) ? k * V + v : K * V
    Beam(b) = int64(Arg(b) / V)
    Tok(b) = int64(Arg(b) % V)
}''', args=lambda g: [torch.log_softmax(2 * r(g, 7, 5, 4001), -1), -3 * u(g, 7, 5), ri(g, 0, 4001, 7, 10), sc(0.5)], torch=_diverse, tol=1e-5))


def _bigrams(Logits, Tok):
    hit = (Tok[:, :-1] == Tok[:, -1:]).int()
    ban = torch.zeros(Logits.shape, dtype=i32).scatter_reduce(1, Tok[:, 1:], hit, "amax") > 0
    return Logits.masked_fill(ban, -math.inf), ban.sum(1, dtype=i32)


op(dict(name="no_repeat_bigram_ban", text='''
def no_repeat_bigram_ban(float(B,V) Logits, int64(B,L) Tok) -> (Y, int32(B) Banned) {
    Ban(b, Tok(b, t + 1)) max=! Tok(b, t) == Tok(b, L - 1) ? 1 : 0 where Tok(b, t + 1) in 0:V, t in 0:L-1
    Y(b, v) = Ban(b, v) > 0 ? -infinity() : Logits(b, v)
    Banned(b) +=! Ban(b, v) > 0 ? 1 : 0
}''', args=lambda g: [r(g, 16, 8003), ri(g, 0, 40, 16, 200) * 200], torch=_bigrams, tol=0.0))


# ---------------------------------------------------------------- dynamic programming

def _cky(Chart, Rule, w):
    w, N = int(w), Chart.shape[1]
    k, i = torch.arange(w)[:, None], torch.arange(N - w)
    S = (Chart[:w, :N - w, :, None] + Chart[w - 1 - k, i + k + 1][:, :, None]).amax(0)
    best = (S[:, None] + Rule).amax((2, 3))
    return best, best.amax(1)


op(dict(name="cky_viterbi_span", text='''
def cky_viterbi_span(float(W,N,A) Chart, float(A,A,A) Rule, int32 w) -> (Best, Top) {
    S(i, b, c) max=! Chart(k, i, b) + Chart(w - 1 - k, i + k + 1, c) where k in 0:w, i in 0:N-w
    Best(i, a) max=! S(i, b, c) + Rule(a, b, c)
    Top(i) max=! Best(i, a)
}''', args=lambda g: [-5 * u(g, 12, 41, 20), -3 * u(g, 20, 20, 20), sc(9, i32)], torch=_cky, tol=1e-6))


def _knapsack(D, Wt, Val):
    c = torch.arange(D.shape[1])

    def step(t, j):
        k = c - Wt[:, j:j + 1]
        return torch.where(k >= 0, torch.maximum(t, t.gather(1, k.clamp_min(0)) + Val[:, j:j + 1]), t)
    Dn = step(step(D, 0), 1)
    return Dn, Dn > D


op(dict(name="knapsack_two_items_i64", text='''
def knapsack_two_items_i64(int64(B,C) D, int32(B,2) Wt, int64(B,2) Val) -> (Dn, Took) {
    T(b, c) = c >= Wt(b, 0) ? max(D(b, c), D(b, c - Wt(b, 0)) + Val(b, 0)) : D(b, c)
    Dn(b, c) = c >= Wt(b, 1) ? max(T(b, c), T(b, c - Wt(b, 1)) + Val(b, 1)) : T(b, c)
    Took(b, c) = Dn(b, c) > D(b, c)
}''', args=lambda g: [ri(g, 0, 50, 64, 3001).cumsum(1), ri(g, 1, 400, 64, 2, dtype=i32), ri(g, 1, 12000, 64, 2)], torch=_knapsack, tol=0.0))


def _changepoint(S1, S2, Fc, pen):
    T = Fc.shape[1]
    n = torch.arange(1, T + 1)[:, None] - torch.arange(T)
    m = S1[:, 1:, None] - S1[:, None, :-1]
    C = Fc[:, None] + S2[:, 1:, None] - S2[:, None, :-1] - m * m / n.clamp_min(1) + pen
    best, arg = C.masked_fill(n < 1, math.inf).min(2)
    return best, arg.int()


op(dict(name="changepoint_pelt_row_f64", text='''
def changepoint_pelt_row_f64(double(B,T+1) S1, double(B,T+1) S2, double(B,T) Fc, double pen) -> (Cost, Arg) {
    C(b, t, s) = s <= t ? Fc(b, s) + S2(b, t + 1) - S2(b, s) - m * m / (t + 1 - s) + pen : infinity()
        where m = S1(b, t + 1) - S1(b, s), t in 0:T, s in 0:T
    Cost(b, t) min=! C(b, t, s)
    Arg(b, t) min=! C(b, t, s) == Cost(b, t) ? s : T
}''', args=lambda g: (lambda x: [F.pad(x.cumsum(1), (1, 0)), F.pad(x.square().cumsum(1), (1, 0)), (0.9 + 0.2 * u(g, 4, 350, dtype=f64)).cumsum(1), sc(3.0, f64)])(r(g, 4, 350, dtype=f64)),
   torch=_changepoint, tol=1e-9))


# ---------------------------------------------------------------- images, histograms, series

def _kuwahara(X):
    C, H, W = X.shape
    S = F.avg_pool2d(X[None], 4, 1)[0]
    V = (F.avg_pool2d(X[None].square(), 4, 1)[0] - S * S).sum(0)
    h, w = H - 6, W - 6
    q = [(slice(a, a + h), slice(b, b + w)) for a in (0, 3) for b in (0, 3)]
    k = torch.stack([V[p] for p in q]).argmin(0)
    return torch.stack([S[:, a, b] for a, b in q]).gather(0, k.expand(1, C, h, w))[0]


op(dict(name="kuwahara_rgb_f64", text='''
def kuwahara_rgb_f64(double(C,H,W) X) -> (Y) {
    S(c, y, x) +=! X(c, y + i, x + j) / 16.0 where i in 0:4, j in 0:4
    V(y, x) +=! (X(c, y + i, x + j) - S(c, y, x)) * (X(c, y + i, x + j) - S(c, y, x)) where i in 0:4, j in 0:4
    M(y, x) = min(min(V(y, x), V(y, x + 3)), min(V(y + 3, x), V(y + 3, x + 3)))
    Y(c, y, x) = V(y, x) == M(y, x) ? S(c, y, x) : (V(y, x + 3) == M(y, x) ? S(c, y, x + 3) : (V(y + 3, x) == M(y, x) ? S(c, y + 3, x) : S(c, y + 3, x + 3)))
}''', args=lambda g: [u(g, 121, 155, 3, dtype=f64).permute(2, 0, 1)[:, 1:-2, 2:-2]], torch=_kuwahara, tol=1e-9))


def _zhangsuen(I, Dy, Dx):
    H, W = I.shape
    P = F.pad(I.to(u8), (1, 1, 1, 1))
    n = torch.stack([P[1 + a:1 + a + H, 1 + b:1 + b + W] for a, b in zip(Dy.tolist(), Dx.tolist(), strict=True)])
    B, A = n.sum(0, dtype=u8), ((n == 0) & (n.roll(-1, 0) == 1)).sum(0, dtype=u8)
    gone = I & (B >= 2) & (B <= 6) & (A == 1) & ((n[0] & n[2] & n[4]) == 0) & ((n[2] & n[4] & n[6]) == 0)
    return I & ~gone, gone.sum(dtype=i32)


op(dict(name="zhang_suen_thinning_pass", text='''
def zhang_suen_thinning_pass(bool(H,W) I, int32(8) Dy, int32(8) Dx) -> (Y, int32 Removed) {
    N(k, y, x) = (y + Dy(k) >= 0 && y + Dy(k) < H && x + Dx(k) >= 0 && x + Dx(k) < W && I(y + Dy(k), x + Dx(k))) ? 1 : 0 where y in 0:H, x in 0:W
    B(y, x) +=! N(k, y, x)
    A(y, x) +=! (N(k, y, x) == 0 && N((k + 1) % 8, y, x) == 1) ? 1 : 0 where k in 0:8
    Del(y, x) = I(y, x) && B(y, x) >= 2 && B(y, x) <= 6 && A(y, x) == 1 && N(0, y, x) * N(2, y, x) * N(4, y, x) == 0 && N(2, y, x) * N(4, y, x) * N(6, y, x) == 0
    Y(y, x) = I(y, x) && !Del(y, x)
    Removed +=! Del(y, x) ? 1 : 0
}''', args=lambda g: [F.avg_pool2d(u(g, 1, 1, 154, 207), 5, 1)[0, 0] < 0.51, sc([-1, -1, 0, 1, 1, 1, 0, -1], i32), sc([0, 1, 1, 1, 0, -1, -1, -1], i32)], torch=_zhangsuen, tol=0.0))


def _glcm(I):
    B, H, W = I.shape
    q = (I // 16).long()
    k = (torch.arange(B)[:, None, None] * 16 + q[:, :-1, :-2]) * 16 + q[:, 1:, 2:]
    G = torch.bincount(k.flatten(), minlength=B * 256).view(B, 16, 16)
    P = (G + G.mT) / (2.0 * (H - 1) * (W - 2))
    d = torch.arange(16)[:, None] - torch.arange(16)
    return G.int(), (P * d * d).sum((1, 2)), (P * P).sum((1, 2)), (P / (1 + d.abs())).sum((1, 2))


op(dict(name="glcm_haralick_u8", text='''
def glcm_haralick_u8(uint8(B,H,W) I) -> (int32(B,16,16) Glcm, Contrast, Energy, Homog) {
    Glcm(b, I(b, y, x) / 16, I(b, y + 1, x + 2) / 16) +=! 1
    P(b, i, j) = (Glcm(b, i, j) + Glcm(b, j, i)) / (2.0 * (H - 1) * (W - 2))
    Contrast(b) +=! P(b, i, j) * (i - j) * (i - j)
    Energy(b) +=! P(b, i, j) * P(b, i, j)
    Homog(b) +=! P(b, i, j) / (1.0 + abs(i - j))
}''', args=lambda g: [ri(g, 0, 256, 6, 120, 161, dtype=u8)], torch=_glcm, tol=2e-5))


def _ordinal(X, lag):
    lag = int(lag)
    n = X.shape[1] - 2 * lag
    a, b, c = X[:, :n], X[:, lag:lag + n], X[:, 2 * lag:]
    p = (a < b).long() + 2 * (a < c) + 4 * (b < c)
    count = torch.zeros(len(X), 8, dtype=i32).scatter_add(1, p, torch.ones(p.shape, dtype=i32))
    return count, torch.special.entr(count / n).sum(1) / math.log(2)


op(dict(name="ordinal_pattern_entropy", text='''
def ordinal_pattern_entropy(float(B,T) X, int32 lag) -> (int32(B,8) Count, Entropy) {
    P(b, t) = (X(b, t) < X(b, t + lag) ? 1 : 0) + (X(b, t) < X(b, t + 2*lag) ? 2 : 0) + (X(b, t + lag) < X(b, t + 2*lag) ? 4 : 0) where t in 0:T-2*lag
    Count(b, P(b, t)) +=! 1
    Entropy(b) +=! Count(b, p) > 0 ? -q * log2(q) : 0.0 where q = float(Count(b, p)) / (T - 2*lag)
}''', args=lambda g: [r(g, 12, 8000).cumsum(1), sc(3, i32)], torch=_ordinal, tol=2e-5))


def _variogram(X, Z, Like, step):
    K, N = len(Like), len(Z)
    d = X[:, None] - X
    b = ((d * d).sum(2).sqrt() / step).int().clamp_max(K).masked_fill(torch.ones(N, N, dtype=torch.bool).tril(), K).flatten()
    n = torch.bincount(b, minlength=K + 1)
    s = torch.zeros(K + 1, dtype=f64).index_add(0, b, (0.5 * (Z[:, None] - Z) ** 2).flatten())
    return n, (s / n.clamp_min(1))[:K]


op(dict(name="empirical_variogram_f64", text='''
def empirical_variogram_f64(double(N,2) X, double(N) Z, double(K) Like, double step) -> (int64(K+1) Count, Gamma) {
    B(i, j) = i < j ? min(int32(sqrt(dx * dx + dy * dy) / step), K) : K where dx = X(i, 0) - X(j, 0), dy = X(i, 1) - X(j, 1)
    Count(B(i, j)) +=! 1          # the last bin takes what is far, and every pair but the first time
    Sq(B(i, j)) +=! 0.5 * (Z(i) - Z(j)) * (Z(i) - Z(j)) where B(i, j) in 0:K+1
    Gamma(k) = Count(k) > 0 ? Sq(k) / Count(k) : 0.0 where k in 0:K
}''', args=lambda g: [u(g, 350, 2, dtype=f64), r(g, 350, dtype=f64), torch.zeros(15, dtype=f64), sc(0.04, f64)], torch=_variogram, tol=1e-9))


# ---------------------------------------------------------------- interpolation, finite volumes, small algebra

def _pchip(X, Y, Xq, Iv):
    h = X.diff()
    S = Y.diff(dim=1) / h
    w1, w2 = 2 * h[1:] + h[:-1], h[1:] + 2 * h[:-1]
    a, b = S[:, :-1], S[:, 1:]
    D = F.pad(torch.where(a * b > 0, (w1 + w2) / (w1 / a + w2 / b), 0.0), (1, 1))
    hq = h[Iv]
    t = (Xq - X[Iv]) / hq
    e = 1 - t
    return (1 + 2 * t) * e * e * Y[:, Iv] + t * t * (3 - 2 * t) * Y[:, Iv + 1] + hq * t * e * (e * D[:, Iv] - t * D[:, Iv + 1])


def _pchip_args(g):
    X = (0.2 + u(g, 300, dtype=f64)).cumsum(0)
    Xq = X[0] + (X[-1] - X[0]) * (0.001 + 0.998 * u(g, 1001, dtype=f64))
    return [X, r(g, 40, 300, dtype=f64), Xq, torch.searchsorted(X, Xq, right=True) - 1]


op(dict(name="pchip_monotone_eval_f64", text='''
def pchip_monotone_eval_f64(double(N) X, double(B,N) Y, double(M) Xq, int64(M) Iv) -> (Yq) {
    S(b, n) = (Y(b, n + 1) - Y(b, n)) / (X(n + 1) - X(n))
    D(b, n) = (n >= 1 && n < N - 1 && S(b, n - 1) * S(b, n) > 0.0) ? (w1 + w2) / (w1 / S(b, n - 1) + w2 / S(b, n)) : 0.0
        where n in 0:N, w1 = 2.0 * X(n + 1) - X(n) - X(n - 1), w2 = X(n + 1) + X(n) - 2.0 * X(n - 1)
    Yq(b, m) = (1.0 + 2.0 * t) * (1.0 - t) * (1.0 - t) * Y(b, Iv(m)) + t * t * (3.0 - 2.0 * t) * Y(b, Iv(m) + 1)
        + h * t * (1.0 - t) * ((1.0 - t) * D(b, Iv(m)) - t * D(b, Iv(m) + 1)) where h = X(Iv(m) + 1) - X(Iv(m)), t = (Xq(m) - X(Iv(m))) / h
}''', args=_pchip_args, torch=_pchip, tol=1e-9))


def _godunov(U, k):
    f = torch.maximum(0.5 * U.roll(1, 1).clamp_min(0) ** 2, 0.5 * U.clamp_max(0) ** 2)
    Un = U - k * (f.roll(-1, 1) - f)
    return Un, Un.abs().amax(1)


op(dict(name="burgers_godunov_step_f64", text='''
def burgers_godunov_step_f64(double(B,N) U, double dtdx) -> (Un, Top) {
    Fx(b, i) = max(0.5 * ul * ul, 0.5 * ur * ur) where ul = max(U(b, (i + N - 1) % N), 0.0), ur = min(U(b, i), 0.0), i in 0:N
    Un(b, i) = U(b, i) - dtdx * (Fx(b, (i + 1) % N) - Fx(b, i)) where i in 0:N
    Top(b) max=! abs(Un(b, i))
}''', args=lambda g: [r(g, 33, 4100, dtype=f64)[:, 1::2], sc(0.2, f64)], torch=_godunov, tol=1e-12))


def _sym3(A):
    q = A.diagonal(dim1=1, dim2=2).sum(1) / 3
    D = A - q[:, None, None] * torch.eye(3, dtype=f64)
    p = (D.square().sum((1, 2)) / 6).sqrt()
    (a, b, c), (d, e, f), (h, i, j) = ((x.unbind(1)) for x in (D / p[:, None, None]).unbind(1))
    phi = torch.acos((0.5 * (a * (e * j - f * i) - b * (d * j - f * h) + c * (d * i - e * h))).clamp(-1, 1)) / 3
    shift = torch.tensor([1.0, 2.0, 0.0], dtype=f64) * (2 * math.pi / 3)
    L = q[:, None] + 2 * p[:, None] * torch.cos(phi[:, None] + shift)
    return L, (9 * p * p / (6 * p * p + 3 * q * q)).sqrt()


op(dict(name="sym3_eigenvalues_anisotropy", text='''
def sym3_eigenvalues_anisotropy(double(N,3,3) A) -> (double(N,3) L, Fa) {
    Q(n) +=! A(n, i, i) / 3.0
    P(n) +=! d * d / 6.0 where d = A(n, i, j) - (i == j ? Q(n) : 0.0)
    P(n) = sqrt(P(n))
    D(n, i, j) = (A(n, i, j) - (i == j ? Q(n) : 0.0)) / P(n)
    Phi(n) = acos(clamp(0.5 * (D(n, 0, 0) * (D(n, 1, 1) * D(n, 2, 2) - D(n, 1, 2) * D(n, 2, 1)) - D(n, 0, 1) * (D(n, 1, 0) * D(n, 2, 2) - D(n, 1, 2) * D(n, 2, 0))
        + D(n, 0, 2) * (D(n, 1, 0) * D(n, 2, 1) - D(n, 1, 1) * D(n, 2, 0))), -1.0, 1.0)) / 3.0
    L(n, k) = Q(n) + 2.0 * P(n) * cos(Phi(n) + (k + 1) % 3 * 2.0943951023931953) where k in 0:3
    Fa(n) = sqrt(9.0 * P(n) * P(n) / (6.0 * P(n) * P(n) + 3.0 * Q(n) * Q(n)))
}''', args=lambda g: [(lambda a: a + a.mT)(r(g, 9001, 3, 3, dtype=f64)) + torch.eye(3, dtype=f64)], torch=_sym3, tol=1e-6))
