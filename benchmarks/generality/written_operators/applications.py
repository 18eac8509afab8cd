# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Quantised inference, caches, reinforcement learning, tables, flows, optimisers, metrics, augmentation, time series; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.networks import f16, f64, i8, i32, of, ri, rn, ru, u8
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)


# ---------------------------------------------------------------- quantised inference

NF4 = [-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0, 0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]


def _nf4(X, P, T, Am, S, off):
    A = Am.float() * S[:, None] + off
    q = torch.stack([P >> 4, P & 15], -1).flatten(1).long()
    return X @ (T[q] * A.repeat_interleave(64, 1)).T


op(dict(name="nf4_double_quant", text='''
def nf4_double_quant(float(B,2*J) X, uint8(O,J) Packed, float(16) Table, uint8(O,G) Amax, float(O) Scale, float offset) -> (Y) {
    A(o, g) = float(Amax(o, g)) * Scale(o) + offset
    Q(o, i) = (i % 2 == 0) ? Packed(o, i / 2) / 16 : Packed(o, i / 2) % 16 where i in 0:2*J
    W(o, i) = Table(Q(o, i)) * A(o, i / 64)
    Y(b, o) +=! X(b, i) * W(o, i)
}''', args=lambda g: [rn(g, 2, 1024), ri(g, 0, 256, 512, 512, dt=u8), torch.tensor(NF4), ri(g, 0, 256, 512, 16, dt=u8), ru(g, 512, hi=1e-3), of(0.0625)], torch=_nf4, tol=2e-5))


def _bitnet(X, P, ws):
    a = X.abs().amax(1, keepdim=True)
    q = (X * 127 / a).round().clamp(-128, 127).to(i8)
    w = (torch.stack([P >> s & 3 for s in (0, 2, 4, 6)], -1).flatten(1).to(i8) - 1)
    return torch._int_mm(q, w.T).float() * a / 127 * ws


op(dict(name="bitnet_ternary", text='''
def bitnet_ternary(float(T,4*J) X, uint8(O,J) P, float wscale) -> (Y) {
    A(t) max=! fabs(X(t, i))
    Q(t, i) = int8(clamp(round(X(t, i) * 127.0 / A(t)), -128.0, 127.0))
    W(o, i) = int8(int32(P(o, i / 4)) / ((i % 4 == 0) ? 1 : (i % 4 == 1) ? 4 : (i % 4 == 2) ? 16 : 64) % 4 - 1) where i in 0:4*J
    Acc(t, o) +=! int32(Q(t, i)) * int32(W(o, i))
    Y(t, o) = float(Acc(t, o)) * A(t) / 127.0 * wscale
}''', args=lambda g: [rn(g, 33, 1024), (ri(g, 0, 3, 640, 256, 4) * torch.tensor([1, 4, 16, 64])).sum(-1).to(u8), of(0.03125)], torch=_bitnet, tol=5e-3))


def _fp8mm(A, B, E4, Sa, Sb):
    X = A.view(torch.float8_e4m3fn).float() * Sa.repeat_interleave(128, 1)
    W = B.view(torch.float8_e4m3fn).float() * Sb.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return (X @ W.T).bfloat16()


op(dict(name="fp8_table_blocks", text='''
def fp8_table_blocks(uint8(M,K) A, uint8(N,K) B, float(256) E4, float(M,KB) Sa, float(NB,KB) Sb) -> (bfloat16(M,N) Y) {
    X(m, k) = E4(A(m, k)) * Sa(m, k / 128)
    W(n, k) = E4(B(n, k)) * Sb(n / 128, k / 128)
    Acc(m, n) +=! X(m, k) * W(n, k)
    Y(m, n) = Acc(m, n)
}''', args=lambda g: [(ri(g, 0, 100, 63, 512) + 128 * ri(g, 0, 2, 63, 512)).to(u8), (ri(g, 0, 100, 384, 512) + 128 * ri(g, 0, 2, 384, 512)).to(u8),
                      torch.arange(256).to(u8).view(torch.float8_e4m3fn).float().nan_to_num(0.0), ru(g, 63, 4, lo=0.1), ru(g, 3, 4, lo=0.1)], torch=_fp8mm, tol=1e-2))


def _convi8(X, K, bias, mul):
    A = F.conv2d(X.permute(0, 3, 1, 2).float(), K.permute(0, 3, 1, 2).float(), bias.float(), stride=2, padding=1)
    return (A * mul[:, None, None]).round().clamp(0, 127).to(i8).permute(0, 2, 3, 1)


op(dict(name="conv_int8_nhwc", text='''
def conv_int8_nhwc(int8(N,H,W,C) X, int8(O,3,3,C) K, int32(O) Bias, float(O) Mul) -> (Y) {
    A(n, y, x, o) +=! (2*y + i >= 1 && 2*y + i <= H && 2*x + j >= 1 && 2*x + j <= W) ? int32(X(n, 2*y + i - 1, 2*x + j - 1, c)) * int32(K(o, i, j, c)) : 0
        where y in 0:H/2, x in 0:W/2
    Y(n, y, x, o) = int8(clamp(round(float(A(n, y, x, o) + Bias(o)) * Mul(o)), 0.0, 127.0))
}''', args=lambda g: [ri(g, -128, 128, 2, 28, 30, 32, dt=i8), ri(g, -127, 128, 48, 3, 3, 32, dt=i8), ri(g, -20000, 20000, 48, dt=i32), ru(g, 48, lo=3e-4, hi=7e-4)], torch=_convi8, tol=0.01))


# ---------------------------------------------------------------- caches and speculative decoding

def _paged(Q, Kc, Vc, Tb, Len):
    B, G, R, D = Q.shape
    t = Tb.clamp_min(0).long()
    K, V = (c[t].flatten(1, 2).permute(0, 2, 1, 3).float() for c in (Kc, Vc))                 # B G S D
    m = (torch.arange(K.shape[2]) < Len[:, None])[:, None, None]
    return F.scaled_dot_product_attention(Q, K, V, attn_mask=m.expand(B, G, R, -1))


def a_paged(g):
    Len = ri(g, 100, 289, 4, dt=i32)
    Tb = torch.where(torch.arange(18) < ((Len + 15) // 16)[:, None], ri(g, 0, 80, 4, 18, dt=i32), torch.full((), -1, dtype=i32))
    return [rn(g, 4, 4, 5, 64), rn(g, 80, 16, 4, 64, dt=f16), rn(g, 80, 16, 4, 64, dt=f16), Tb, Len]


op(dict(name="paged_gqa_decode", text='''
def paged_gqa_decode(float(B,G,R,D) Q, half(NB,P,G,D) Kc, half(NB,P,G,D) Vc, int32(B,MB) Table, int32(B) Len) -> (O) {
    S(b, g, r, s) +=! (s < Len(b)) ? Q(b, g, r, d) * Kc(Table(b, s / P), s % P, g, d) : 0.0 where s in 0:MB*P
    M(b, g, r) max=! (s < Len(b)) ? S(b, g, r, s) : -infinity()
    E(b, g, r, s) = (s < Len(b)) ? exp((S(b, g, r, s) - M(b, g, r)) / sqrt(float(D))) : 0.0
    Z(b, g, r) +=! E(b, g, r, s)
    O(b, g, r, d) +=! (s < Len(b)) ? E(b, g, r, s) / Z(b, g, r) * Vc(Table(b, s / P), s % P, g, d) : 0.0
}''', args=a_paged, torch=_paged, tol=5e-5))


def _mla(Qn, Qr, Wuk, Wuv, C, Kr):
    q = torch.einsum("bhd,hdr->bhr", Qn, Wuk)
    P = torch.softmax(0.1 * (torch.bmm(q, C.transpose(1, 2)) + torch.bmm(Qr, Kr.transpose(1, 2))), -1)
    return torch.einsum("bhr,hrv->bhv", torch.bmm(P, C), Wuv)


op(dict(name="mla_absorbed_decode", text='''
def mla_absorbed_decode(float(B,H,D) Qn, float(B,H,E) Qr, float(H,D,R) Wuk, float(H,R,V) Wuv, float(B,S,R) C, float(B,S,E) Kr) -> (O) {
    Qa(b, h, r) +=! Qn(b, h, d) * Wuk(h, d, r)
    A(b, h, s) +=! Qa(b, h, r) * C(b, s, r)
    A(b, h, s) += Qr(b, h, e) * Kr(b, s, e)
    M(b, h) max=! A(b, h, s)
    P(b, h, s) = exp(0.1 * (A(b, h, s) - M(b, h)))
    Z(b, h) +=! P(b, h, s)
    Ol(b, h, r) +=! P(b, h, s) / Z(b, h) * C(b, s, r)
    O(b, h, v) +=! Ol(b, h, r) * Wuv(h, r, v)
}''', args=lambda g: [rn(g, 2, 16, 64), rn(g, 2, 16, 32), rn(g, 16, 64, 256, k=0.1), rn(g, 16, 256, 64, k=0.1), rn(g, 2, 701, 256), rn(g, 2, 701, 32)], torch=_mla, tol=5e-5))


def _spec(P, Q, Tok, U):
    K = Q.shape[1]
    p, q = (t[:, :K].gather(2, Tok[..., None])[..., 0] for t in (P, Q))
    n = (U * q < p).int().cumprod(1).sum(1, dtype=i32)
    at = n.long()[:, None, None].expand(-1, 1, P.shape[2])
    d = F.relu(P.gather(1, at) - F.pad(Q, (0, 0, 0, 1)).gather(1, at))[:, 0]
    return n, d / d.sum(1, keepdim=True)


def a_spec(g):
    q = rn(g, 8, 6, 3000, k=2.0)
    return [torch.softmax(q + rn(g, 8, 6, 3000, k=0.5), -1), torch.softmax(q[:, :5], -1), ri(g, 0, 3000, 8, 5), ru(g, 8, 5)]


op(dict(name="speculative_accept", text='''
def speculative_accept(float(B,K+1,V) P, float(B,K,V) Q, int64(B,K) Tok, float(B,K) U) -> (int32(B) N, R) {
    Ok(b, k) = U(b, k) * Q(b, k, Tok(b, k)) < P(b, k, Tok(b, k))
    N(b) min=! Ok(b, k) ? K : k
    D(b, v) = (N(b) < K) ? max(P(b, N(b), v) - Q(b, N(b), v), 0.0) : P(b, N(b), v)
    Z(b) +=! D(b, v)
    R(b, v) = D(b, v) / Z(b)
}''', args=a_spec, torch=_spec, tol=1e-5))


# ---------------------------------------------------------------- reinforcement learning

def _gae(R, V, Done):
    live = (~Done).float()
    delta = R + 0.99 * V[1:] * live - V[:-1]
    a, out = torch.zeros_like(R[0]), []
    for t in range(R.shape[0] - 1, -1, -1):
        a = delta[t] + 0.9405 * live[t] * a
        out.append(a)
    A = torch.stack(out[::-1])
    return A, A + V[:-1]


op(dict(name="gae_batch", text='''
def gae_batch(float(T,B) R, float(T+1,B) V, bool(T,B) Done) -> (A, Ret) {
    D(t, b) = R(t, b) + (Done(t, b) ? 0.0 : 0.99 * V(t + 1, b)) - V(t, b)
    C(t, b) +=! (r < t && Done(r, b)) ? 1 : 0 where t in 0:T
    A(t, b) +=! (s >= t && C(s, b) == C(t, b)) ? pow(0.9405, float(s - t)) * D(s, b) : 0.0 where t in 0:T
    Ret(t, b) = A(t, b) + V(t, b)
}''', args=lambda g: [rn(g, 128, 64), rn(g, 129, 64), ru(g, 128, 64) < 0.03], torch=_gae, tol=2e-5))


def _grpo(Lp, Lo, Lr, Rw, Mask):
    adv = ((Rw - Rw.mean(1, keepdim=True)) / (Rw.std(1, keepdim=True) + 1e-4))[..., None]
    r, k = torch.exp(Lp - Lo), Lr - Lp
    t = torch.minimum(r * adv, r.clamp(0.8, 1.2) * adv) - 0.04 * (torch.exp(k) - k - 1)
    return -(t * Mask).sum(-1) / Mask.sum(-1).clamp_min(1)


op(dict(name="grpo_token_loss", text='''
def grpo_token_loss(float(P,G,L) Lp, float(P,G,L) Lo, float(P,G,L) Lr, float(P,G) Rw, bool(P,G,L) Mask) -> (Loss) {
    Mu(p) +=! Rw(p, g) / G
    Va(p) +=! (Rw(p, g) - Mu(p)) * (Rw(p, g) - Mu(p)) / (G - 1)
    Adv(p, g) = (Rw(p, g) - Mu(p)) / (sqrt(Va(p)) + 1e-4)
    Cnt(p, g) +=! Mask(p, g, l) ? 1.0 : 0.0
    Loss(p, g) +=! Mask(p, g, l) ? 0.04 * (exp(k) - k - 1.0) - min(r * Adv(p, g), clamp(r, 0.8, 1.2) * Adv(p, g)) : 0.0
        where r = exp(Lp(p, g, l) - Lo(p, g, l)), k = Lr(p, g, l) - Lp(p, g, l)
    Loss(p, g) = Loss(p, g) / max(Cnt(p, g), 1.0)
}''', args=lambda g: (lambda lp: [lp, lp + rn(g, 6, 8, 400, k=0.2), lp + rn(g, 6, 8, 400, k=0.3), ru(g, 6, 8), torch.arange(400) < ri(g, 50, 401, 6, 8, 1)])(-2 * ru(g, 6, 8, 400)), torch=_grpo, tol=2e-5))


# ---------------------------------------------------------------- tabular models

def _oblivious(X, Feat, Thr, Leaf, Bit):
    i = ((X[:, Feat.long()] > Thr) * Bit).sum(-1)
    return Leaf[torch.arange(Leaf.shape[0]), i].sum(1)


op(dict(name="oblivious_trees", text='''
def oblivious_trees(float(N,F) X, int32(T,D) Feat, float(T,D) Thr, float(T,L) Leaf, int32(D) Bit) -> (Y) {
    I(n, t) +=! (X(n, Feat(t, d)) > Thr(t, d)) ? Bit(d) : 0
    Y(n) +=! Leaf(t, I(n, t))
}''', args=lambda g: [rn(g, 28, 1000).T, ri(g, 0, 28, 100, 6, dt=i32), rn(g, 100, 6), rn(g, 100, 64), (2 ** torch.arange(6)).to(i32)], torch=_oblivious, tol=1e-5))


def _gbdt(X, G, H, Like):
    N, Fs = X.shape
    nb = Like.shape[0]
    at = (X.long() + torch.arange(Fs) * nb).flatten()
    gl, hl = (torch.zeros(Fs * nb).index_add(0, at, t[:, None].expand(N, Fs).reshape(-1)).view(Fs, nb).cumsum(1) for t in (G, H))
    gr, hr = gl[:, -1:] - gl, hl[:, -1:] - hl
    gain = gl * gl / (hl + 1) + gr * gr / (hr + 1)
    return gain, gain.amax(1)


op(dict(name="gbdt_split_gain", text='''
def gbdt_split_gain(uint8(N,F) X, float(N) G, float(N) H, float(NB) Like) -> (Gain, Best) {
    Gh(f, X(n, f)) +=! G(n) where X(n, f) in 0:NB
    Hh(f, X(n, f)) +=! H(n) where X(n, f) in 0:NB
    Gl(f, b) +=! (c <= b) ? Gh(f, c) : 0.0 where b in 0:NB
    Hl(f, b) +=! (c <= b) ? Hh(f, c) : 0.0 where b in 0:NB
    Gain(f, b) = Gl(f, b) * Gl(f, b) / (Hl(f, b) + 1.0) + gr * gr / (Hl(f, NB - 1) - Hl(f, b) + 1.0) where gr = Gl(f, NB - 1) - Gl(f, b)
    Best(f) max=! Gain(f, b)
}''', args=lambda g: [ri(g, 0, 64, 12000, 24, dt=u8), rn(g, 12000) + 0.2, ru(g, 12000, lo=0.1), torch.zeros(64)], torch=_gbdt, tol=1e-4))


def _kan(X, C, Wb):
    K = C.shape[2]
    v = ((X + 1)[..., None] * 0.5 * (K - 3) + 1 - torch.arange(K)).abs()
    B = ((2 - v).clamp_min(0) ** 3 - 4 * (1 - v).clamp_min(0) ** 3) / 6
    return torch.addmm(B.flatten(1) @ C.flatten(1).T, F.silu(X), Wb.T)


op(dict(name="kan_cubic", text='''
def kan_cubic(float(N,I) X, float(O,I,K) C, float(O,I) Wb) -> (Y) {
    V(n, i, k) = fabs((X(n, i) + 1.0) * 0.5 * (K - 3) + 1.0 - k) where k in 0:K
    B(n, i, k) = (v < 1.0) ? 2.0 / 3.0 - v * v + 0.5 * v * v * v : (v < 2.0) ? (2.0 - v) * (2.0 - v) * (2.0 - v) / 6.0 : 0.0 where v = V(n, i, k)
    Y(n, o) +=! B(n, i, k) * C(o, i, k)
    Y(n, o) += X(n, i) * sigmoid(X(n, i)) * Wb(o, i)
}''', args=lambda g: [torch.tanh(rn(g, 256, 65)), rn(g, 48, 65, 11), rn(g, 48, 65)], torch=_kan, tol=2e-5))


# ---------------------------------------------------------------- normalising flows

def _rqs(X, W, H, D):
    cx, cy = (F.pad(t.cumsum(-1)[..., :-1], (1, 0)) for t in (W, H))
    b = (X[..., None] + 3 >= cx[..., 1:]).sum(-1, keepdim=True)
    at = lambda t, o=0: t.gather(-1, b + o)[..., 0]
    w, h, d0, d1 = at(W), at(H), at(D), at(D, 1)
    xi, s = (X + 3 - at(cx)) / w, h / w
    q = xi * (1 - xi)
    den = s + (d0 + d1 - 2 * s) * q
    ld = torch.log(s * s * (d1 * xi * xi + 2 * s * q + d0 * (1 - xi) ** 2)) - 2 * torch.log(den)
    return at(cy) - 3 + h * (s * xi * xi + d0 * q) / den, ld.sum(1)


op(dict(name="rq_spline_flow", text='''
def rq_spline_flow(double(N,D) X, double(N,D,K) W, double(N,D,K) H, double(N,D,K+1) Dv) -> (Y, Ld) {
    Cx(n, d, k) +=! (j < k) ? W(n, d, j) : 0.0 where k in 0:K
    Cy(n, d, k) +=! (j < k) ? H(n, d, j) : 0.0 where k in 0:K
    Bin(n, d) +=! (k >= 1 && X(n, d) + 3.0 >= Cx(n, d, k)) ? 1 : 0
    Xi(n, d) = (X(n, d) + 3.0 - Cx(n, d, Bin(n, d))) / W(n, d, Bin(n, d))
    S(n, d) = H(n, d, Bin(n, d)) / W(n, d, Bin(n, d))
    Den(n, d) = S(n, d) + (Dv(n, d, Bin(n, d)) + Dv(n, d, Bin(n, d) + 1) - 2.0 * S(n, d)) * Xi(n, d) * (1.0 - Xi(n, d))
    Y(n, d) = Cy(n, d, Bin(n, d)) - 3.0 + H(n, d, Bin(n, d)) * (S(n, d) * x * x + Dv(n, d, Bin(n, d)) * x * (1.0 - x)) / Den(n, d) where x = Xi(n, d)
    Ld(n) +=! log(S(n, d) * S(n, d) * (Dv(n, d, Bin(n, d) + 1) * x * x + 2.0 * S(n, d) * x * (1.0 - x) + Dv(n, d, Bin(n, d)) * (1.0 - x) * (1.0 - x))) - 2.0 * log(Den(n, d)) where x = Xi(n, d)
}''', args=lambda g: [ru(g, 301, 10, dt=f64, lo=-2.9, hi=2.9), 6 * torch.softmax(rn(g, 301, 10, 8, dt=f64), -1), 6 * torch.softmax(rn(g, 301, 10, 8, dt=f64), -1), ru(g, 301, 10, 9, dt=f64, lo=0.3, hi=1.3)],
    torch=_rqs, tol=1e-10))


# ---------------------------------------------------------------- optimisers

def _muon(G, Mom):
    M = 0.95 * Mom + G
    X = G + 0.95 * M
    X = X / (X.norm() + 1e-7)
    for _ in range(3):
        A = X @ X.T
        X = torch.addmm(X, torch.addmm(A, A, A, beta=-4.775, alpha=2.0315), X, beta=3.4445)
    return 0.2 * math.sqrt(max(G.shape)) * X, M


op(dict(name="muon_newton_schulz", text='''
def schulz(float(N,M) X) -> (Y) {
    A(i, j) +=! X(i, k) * X(j, k)
    P(i, j) +=! 2.0315 * A(i, k) * A(k, j)
    P(i, j) = P(i, j) - 4.775 * A(i, j)
    Y(i, m) +=! P(i, j) * X(j, m)
    Y(i, m) = Y(i, m) + 3.4445 * X(i, m)
}
def muon_newton_schulz(float(N,M) G, float(N,M) Mom) -> (O, Mn) {
    Mn(i, m) = 0.95 * Mom(i, m) + G(i, m)
    U(i, m) = G(i, m) + 0.95 * Mn(i, m)
    S +=! U(i, m) * U(i, m)
    X0(i, m) = U(i, m) / (sqrt(S) + 1e-7)
    X1 = schulz(X0)
    X2 = schulz(X1)
    X3 = schulz(X2)
    O(i, m) = 0.2 * sqrt(float(max(N, M))) * X3(i, m)
}''', args=lambda g: [rn(g, 256, 500), rn(g, 500, 256).T], torch=_muon, tol=2e-4))


def _lamb(P, G, M, V, Seg, Decay):
    m, v = torch.lerp(M, G, 0.1), 0.999 * V + 0.001 * G * G
    U = m / (v.sqrt() + 1e-6) + Decay[Seg] * P
    p2, u2 = (torch.zeros_like(Decay).index_add(0, Seg, t * t) for t in (P, U))
    t = torch.where((p2 > 0) & (u2 > 0), torch.sqrt(p2 / u2), 1.0)
    return P - 0.01 * t[Seg] * U, m, v


op(dict(name="lamb_segments", text='''
def lamb_segments(float(N) P, float(N) G, float(N) M, float(N) V, int64(N) Seg, float(S) Decay) -> (Pn, Mn, Vn) {
    Mn(i) = 0.9 * M(i) + 0.1 * G(i)
    Vn(i) = 0.999 * V(i) + 0.001 * G(i) * G(i)
    U(i) = Mn(i) / (sqrt(Vn(i)) + 1e-6) + Decay(Seg(i)) * P(i)
    Np(Seg(i)) +=! P(i) * P(i) where Seg(i) in 0:S
    Nu(Seg(i)) +=! U(i) * U(i) where Seg(i) in 0:S
    T(s) = (Np(s) > 0.0 && Nu(s) > 0.0) ? sqrt(Np(s) / Nu(s)) : 1.0
    Pn(i) = P(i) - 0.01 * T(Seg(i)) * U(i)
}''', args=lambda g: [rn(g, 400003), rn(g, 400003), rn(g, 400003, k=0.1), ru(g, 400003, lo=0.01), ri(g, 0, 41, 400003).sort().values, ru(g, 41, hi=0.1)], torch=_lamb, tol=5e-5))


# ---------------------------------------------------------------- metrics

def _ece(X, Lab):
    c = torch.softmax(X, 1).amax(1)
    ok = (X.argmax(1) == Lab).float()
    b = (c * 15).long().clamp_max(14)
    acc, con = (torch.zeros(15).index_add(0, b, t) for t in (ok, c))
    return (acc - con).abs().sum() / X.shape[0], torch.bincount(b, minlength=15).to(i32)


op(dict(name="calibration_error", text='''
def calibration_error(float(N,C) X, int64(N) Lab) -> (Ece, int32(15) Count) {
    M(n) max=! X(n, c)
    Z(n) +=! exp(X(n, c) - M(n))
    Bin(n) = min(int32(15.0 / Z(n)), 14)
    Count(Bin(n)) +=! 1
    Acc(Bin(n)) +=! (X(n, Lab(n)) == M(n)) ? 1.0 : 0.0 where Bin(n) in 0:15
    Con(Bin(n)) +=! 1.0 / Z(n) where Bin(n) in 0:15
    Ece +=! fabs(Acc(b) - Con(b)) / N
}''', args=lambda g: [rn(g, 2000, 37, k=2.0), ri(g, 0, 37, 2000)], torch=_ece, tol=1e-4))


def _giou(P, Q):
    p, q = P[:, :, None], Q[:, None]
    area = lambda t: (t[..., 2] - t[..., 0]) * (t[..., 3] - t[..., 1])
    I = (torch.minimum(p[..., 2:], q[..., 2:]) - torch.maximum(p[..., :2], q[..., :2])).clamp_min(0).prod(-1)
    H = (torch.maximum(p[..., 2:], q[..., 2:]) - torch.minimum(p[..., :2], q[..., :2])).prod(-1)
    un = area(p) + area(q) - I
    return I / un - (H - un) / H


def boxes(g, *s):
    a = ru(g, *s, 2, hi=100.0)
    return torch.cat([a, a + ru(g, *s, 2, lo=5.0, hi=40.0)], -1)


op(dict(name="pairwise_giou", text='''
def pairwise_giou(float(B,N,4) P, float(B,M,4) Q) -> (G) {
    Ap(b, n) = (P(b, n, 2) - P(b, n, 0)) * (P(b, n, 3) - P(b, n, 1))
    Aq(b, m) = (Q(b, m, 2) - Q(b, m, 0)) * (Q(b, m, 3) - Q(b, m, 1))
    I(b, n, m) = max(min(P(b, n, 2), Q(b, m, 2)) - max(P(b, n, 0), Q(b, m, 0)), 0.0) * max(min(P(b, n, 3), Q(b, m, 3)) - max(P(b, n, 1), Q(b, m, 1)), 0.0)
    H(b, n, m) = (max(P(b, n, 2), Q(b, m, 2)) - min(P(b, n, 0), Q(b, m, 0))) * (max(P(b, n, 3), Q(b, m, 3)) - min(P(b, n, 1), Q(b, m, 1)))
    G(b, n, m) = I(b, n, m) / un - (H(b, n, m) - un) / H(b, n, m) where un = Ap(b, n) + Aq(b, m) - I(b, n, m)
}''', args=lambda g: [boxes(g, 2, 301), boxes(g, 250, 2).transpose(0, 1)], torch=_giou, tol=2e-5))


def _ap(S, Rel):
    r = Rel.gather(1, S.argsort(1, descending=True)).float()
    p = r.cumsum(1) / torch.arange(1, S.shape[1] + 1)
    ap = (p * r).sum(1) / r.sum(1).clamp_min(1)
    return ap, ap.mean()


op(dict(name="average_precision", text='''
def average_precision(float(Q,N) S, bool(Q,N) Rel) -> (Ap, Map) {
    Above(q, i) +=! (S(q, j) >= S(q, i)) ? 1 : 0
    Hits(q, i) +=! (S(q, j) >= S(q, i) && Rel(q, j)) ? 1 : 0
    R(q) +=! Rel(q, i) ? 1 : 0
    Ap(q) +=! Rel(q, i) ? float(Hits(q, i)) / float(Above(q, i)) : 0.0
    Ap(q) = Ap(q) / float(max(R(q), 1))
    Map +=! Ap(q) / Q
}''', args=lambda g: [rn(g, 32, 203), ru(g, 32, 203) < 0.1], torch=_ap, tol=1e-5))


# ---------------------------------------------------------------- augmentation

def _cutmix(X, Perm, Box, mean, std):
    _, H, W, _ = X.shape
    y, x = torch.arange(H)[:, None], torch.arange(W)
    y0, x0, y1, x1 = Box[:, :, None, None].unbind(1)
    m = (y >= y0) & (y < y1) & (x >= x0) & (x < x1)
    Z = torch.where(m[..., None], X[Perm], X).permute(0, 3, 1, 2)
    lam = 1 - ((Box[:, 2] - Box[:, 0]) * (Box[:, 3] - Box[:, 1])).float() / (H * W)
    return (Z.float() / 255 - mean[:, None, None]) / std[:, None, None], lam


op(dict(name="cutmix_u8", text='''
def cutmix_u8(uint8(B,H,W,3) X, int64(B) Perm, int32(B,4) Box, float(3) Mean, float(3) Std) -> (Y, Lam) {
    Y(b, c, y, x) = (float((y >= Box(b, 0) && y < Box(b, 2) && x >= Box(b, 1) && x < Box(b, 3)) ? X(Perm(b), y, x, c) : X(b, y, x, c)) / 255.0 - Mean(c)) / Std(c)
    Lam(b) = 1.0 - float((Box(b, 2) - Box(b, 0)) * (Box(b, 3) - Box(b, 1))) / float(H * W)
}''', args=lambda g: [ri(g, 0, 256, 16, 128, 160, 3, dt=u8), torch.randperm(16, generator=g), torch.cat([ri(g, 0, 50, 16, 2), ri(g, 60, 128, 16, 2)], 1).to(i32), torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])],
    torch=_cutmix, tol=1e-5))


def _equalize(X):
    B, C, H, W = X.shape
    at = X.flatten(2).flatten(0, 1).long()
    cdf = torch.zeros(B * C, 256, dtype=i32).scatter_add(1, at, torch.ones_like(at, dtype=i32)).cumsum(1)
    low = torch.where(cdf > 0, cdf, H * W).amin(1, keepdim=True)
    lut = ((cdf - low) * 255 / (H * W - low).clamp_min(1) + 0.5).clamp(0, 255).to(u8)
    return lut.gather(1, at).view_as(X)


op(dict(name="equalize_u8", text='''
def equalize_u8(uint8(B,C,H,W) X) -> (Y) {
    Hist(b, c, X(b, c, y, x)) +=! 1 where X(b, c, y, x) in 0:256
    Cdf(b, c, v) +=! (u <= v) ? Hist(b, c, u) : 0 where v in 0:256
    Low(b, c) min=! (Cdf(b, c, v) > 0) ? Cdf(b, c, v) : H * W
    Lut(b, c, v) = uint8(clamp(float(Cdf(b, c, v) - Low(b, c)) * 255.0 / float(max(H * W - Low(b, c), 1)) + 0.5, 0.0, 255.0))
    Y(b, c, y, x) = Lut(b, c, X(b, c, y, x))
}''', args=lambda g: [(rn(g, 4, 3, 121, 160) * 30 + 110).clamp(0, 255).to(u8)], torch=_equalize, tol=0.005))


# ---------------------------------------------------------------- time series

def _dlinear(X, Wt, Ws, Bt, Bs):
    x = X.transpose(1, 2)
    t = F.avg_pool1d(F.pad(x, (12, 12), mode="replicate"), 25, 1)
    return (F.linear(t, Wt, Bt) + F.linear(x - t, Ws, Bs)).transpose(1, 2)


op(dict(name="dlinear_forecast", text='''
def dlinear_forecast(float(B,L,C) X, float(P,L) Wt, float(P,L) Ws, float(P) Bt, float(P) Bs) -> (Y) {
    T(b, t, c) +=! X(b, min(max(t + k - 12, 0), L - 1), c) / 25.0 where t in 0:L, k in 0:25
    Y(b, p, c) +=! Wt(p, t) * T(b, t, c) + Ws(p, t) * (X(b, t, c) - T(b, t, c))
    Y(b, p, c) = Y(b, p, c) + Bt(p) + Bs(p)
}''', args=lambda g: [rn(g, 16, 336, 21), rn(g, 96, 336, k=0.05), rn(g, 96, 336, k=0.05), rn(g, 96), rn(g, 96)], torch=_dlinear, tol=2e-5))


def _delay(V, Lag, Corr):
    B, T = V.shape[:2]
    i = (torch.arange(T)[:, None] + Lag[:, None]) % T
    return torch.einsum("btkhd,bk->bthd", V[torch.arange(B)[:, None, None], i], torch.softmax(Corr, 1))


op(dict(name="time_delay_aggregate", text='''
def time_delay_aggregate(float(B,T,H,D) V, int64(B,K) Lag, float(B,K) Corr) -> (Y) {
    M(b) max=! Corr(b, k)
    Z(b) +=! exp(Corr(b, k) - M(b))
    Y(b, t, h, d) +=! exp(Corr(b, k) - M(b)) / Z(b) * V(b, (t + Lag(b, k)) % T, h, d) where t in 0:T
}''', args=lambda g: [rn(g, 4, 193, 4, 16), ri(g, 0, 193, 4, 5), rn(g, 4, 5)], torch=_delay, tol=2e-5))


# ---------------------------------------------------------------- capsules

def _em(V, R, A, bu, ba):
    r = R * A[..., None]
    s = r.sum(3)
    w = (r / s[:, :, :, None])[..., None]
    mu = (w * V).sum(3)
    d2 = (V - mu[:, :, :, None]).square()
    sg = (w * d2).sum(3)
    act = torch.sigmoid(0.01 * (ba - ((bu[:, None] + 0.5 * torch.log(sg)) * s[..., None]).sum(-1)))
    lp = -0.5 * (d2 / sg[:, :, :, None] + torch.log(2 * math.pi * sg)[:, :, :, None]).sum(-1)
    p = act[:, :, :, None] * torch.exp(lp)
    return mu, act, p / p.sum(-1, keepdim=True)


op(dict(name="em_routing", text='''
def em_routing(float(B,H,W,I,O,D) V, float(B,H,W,I,O) R, float(B,H,W,I) A, float(O) Bu, float(O) Ba) -> (Mu, Act, Rn) {
    S(b, h, w, o) +=! R(b, h, w, i, o) * A(b, h, w, i)
    Mu(b, h, w, o, d) +=! R(b, h, w, i, o) * A(b, h, w, i) / S(b, h, w, o) * V(b, h, w, i, o, d)
    Sg(b, h, w, o, d) +=! R(b, h, w, i, o) * A(b, h, w, i) / S(b, h, w, o) * (V(b, h, w, i, o, d) - Mu(b, h, w, o, d)) * (V(b, h, w, i, o, d) - Mu(b, h, w, o, d))
    Act(b, h, w, o) +=! (Bu(o) + 0.5 * log(Sg(b, h, w, o, d))) * S(b, h, w, o)
    Act(b, h, w, o) = sigmoid(0.01 * (Ba(o) - Act(b, h, w, o)))
    Lp(b, h, w, i, o) +=! -0.5 * ((V(b, h, w, i, o, d) - Mu(b, h, w, o, d)) * (V(b, h, w, i, o, d) - Mu(b, h, w, o, d)) / Sg(b, h, w, o, d) + log(6.283185307179586 * Sg(b, h, w, o, d)))
    Zp(b, h, w, i) +=! Act(b, h, w, o) * exp(Lp(b, h, w, i, o))
    Rn(b, h, w, i, o) = Act(b, h, w, o) * exp(Lp(b, h, w, i, o)) / Zp(b, h, w, i)
}''', args=lambda g: [rn(g, 2, 5, 5, 27, 8, 16), torch.softmax(rn(g, 2, 5, 5, 27, 8), -1), ru(g, 2, 5, 5, 27, lo=0.1), rn(g, 8), rn(g, 8)], torch=_em, tol=2e-4))


# ---------------------------------------------------------------- hyperbolic embeddings and kernels

def _poincare(U, V, r, t):
    e = (U[:, None] - V).square().sum(-1)
    d = torch.acosh(1 + 2 * e / ((1 - U.square().sum(1))[:, None] * (1 - V.square().sum(1))))
    return d, torch.sigmoid((r - d) / t)


def ball(g, n, d):
    return F.normalize(rn(g, n, d, dt=f64), dim=1) * ru(g, n, 1, dt=f64, lo=0.1, hi=0.95)


op(dict(name="poincare_distances", text='''
def poincare_distances(double(N,D) U, double(M,D) V, double r, double t) -> (Dist, P) {
    Nu(n) +=! U(n, d) * U(n, d)
    Nv(m) +=! V(m, d) * V(m, d)
    E(n, m) +=! (U(n, d) - V(m, d)) * (U(n, d) - V(m, d))
    Dist(n, m) = acosh(1.0 + 2.0 * E(n, m) / ((1.0 - Nu(n)) * (1.0 - Nv(m))))
    P(n, m) = 1.0 / (exp((Dist(n, m) - r) / t) + 1.0)
}''', args=lambda g: [ball(g, 300, 11), ball(g, 251, 11), of(2.5, f64), of(0.5, f64)], torch=_poincare, tol=1e-9))


def _ntk(X, Y):
    D = X.shape[1]
    n = torch.sqrt((X * X).sum(1)[:, None] * (Y * Y).sum(1)) / D
    S = X @ Y.T / D
    k0 = lambda r: (math.pi - torch.acos(r)) / math.pi
    k1 = lambda r: (torch.sqrt(1 - r * r) + r * (math.pi - torch.acos(r))) / math.pi
    R = (S / n).clamp(-1, 1)
    T = k1(R)
    K = n * k1(T)
    return K, K + (n * T + S * k0(R)) * k0(T)


op(dict(name="ntk_two_layer", text='''
def ntk_two_layer(float(N,D) X, float(M,D) Y) -> (K, Theta) {
    A(n) +=! X(n, d) * X(n, d) / D
    B(m) +=! Y(m, d) * Y(m, d) / D
    S(n, m) +=! X(n, d) * Y(m, d) / D
    R(n, m) = clamp(S(n, m) / sqrt(A(n) * B(m)), -1.0, 1.0)
    T(n, m) = (sqrt(1.0 - R(n, m) * R(n, m)) + R(n, m) * (3.141592653589793 - acos(R(n, m)))) / 3.141592653589793
    K(n, m) = sqrt(A(n) * B(m)) * (sqrt(1.0 - T(n, m) * T(n, m)) + T(n, m) * (3.141592653589793 - acos(T(n, m)))) / 3.141592653589793
    Theta(n, m) = K(n, m) + (sqrt(A(n) * B(m)) * T(n, m) + S(n, m) * (3.141592653589793 - acos(R(n, m))) / 3.141592653589793) * (3.141592653589793 - acos(T(n, m))) / 3.141592653589793
}''', args=lambda g: [rn(g, 260, 40), rn(g, 40, 243).T], torch=_ntk, tol=2e-5))


# ---------------------------------------------------------------- tensor decompositions

def _cp(A, B, C, I, J, K, val):
    a, b, c = A[I], B[J], C[K]
    d = (a * b * c).sum(1) - val
    e = d[:, None] * c
    return 0.5 * d.square().sum() / d.shape[0], torch.zeros_like(A).index_add(0, I, e * b), torch.zeros_like(B).index_add(0, J, e * a)


op(dict(name="cp_coo_gradient", text='''
def cp_coo_gradient(float(P,R) A, float(Q,R) B, float(S,R) C, int64(E) I, int64(E) J, int64(E) K, float(E) Val) -> (Loss, float(P,R) Ga, float(Q,R) Gb) {
    D(e) +=! A(I(e), r) * B(J(e), r) * C(K(e), r)
    D(e) = D(e) - Val(e)
    Loss +=! 0.5 * D(e) * D(e) / E
    Ga(I(e), r) +=! D(e) * B(J(e), r) * C(K(e), r)
    Gb(J(e), r) +=! D(e) * A(I(e), r) * C(K(e), r)
}''', args=lambda g: [rn(g, 200, 18), rn(g, 151, 18), rn(g, 90, 18), ri(g, 0, 200, 7000), ri(g, 0, 151, 7000), ri(g, 0, 90, 7000), rn(g, 7000)], torch=_cp, tol=2e-5))
