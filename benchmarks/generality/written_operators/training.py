# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Operators of sound, recommendation, graphs, images, losses and quantised inference; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.operator import WrittenOperator, adder
from generality.written_operators.operator import integers as ri
from generality.written_operators.operator import normal as rn
from generality.written_operators.operator import uniform as ru

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)


# ---------------------------------------------------------------- speech and audio
def t_pcen(E, K):
    M = F.conv1d(F.pad(E.flatten(0, 1)[:, None], (K.shape[0] - 1, 0)), K.flip(0)[None, None])[:, 0].view_as(E)
    return (E * (M + 1e-3) ** -0.8 + 2.0) ** 0.5 - math.sqrt(2.0)
op(dict(name="pcen", text='''
def pcen(float(B,F,T) E, float(K) Smooth) -> (Y) {
    M(b, f, t) +=! (t - k >= 0) ? Smooth(k) * E(b, f, t - k) : 0.0 where t in 0:T, k in 0:K
    Y(b, f, t) = pow(E(b, f, t) * pow(M(b, f, t) + 1e-3, -0.8) + 2.0, 0.5) - sqrt(2.0)
}''', args=lambda g: [ru(g, 4, 40, 301) + 0.05, 0.05 * 0.95 ** torch.arange(48.0)], torch=t_pcen, tol=2e-5))

op(dict(name="delta_features", text='''
def delta_features(float(B,T,C) X) -> (D) {
    D(b, t, c) +=! float(k + 1) * (X(b, min(t + k + 1, T - 1), c) - X(b, max(t - k - 1, 0), c)) / 28.0 where t in 0:T, k in 0:3
}''', args=lambda g: [rn(g, 8, 517, 39)],
    torch=lambda X: sum(k * (X[:, (torch.arange(X.shape[1]) + k).clamp_max(X.shape[1] - 1)] - X[:, (torch.arange(X.shape[1]) - k).clamp_min(0)]) for k in (1, 2, 3)) / 28.0, tol=1e-5))

def t_srp(XR, XI, tau, W):
    st = torch.polar(torch.ones((), dtype=tau.dtype), (W[:, None, None] * tau[None]))      # F D M
    X = torch.complex(XR, XI)                           # M T F
    return torch.einsum("fdm,mtf->fdt", st, X).abs().square().sum(0)
op(dict(name="steered_power", text='''
def steered_power(float(M,T,F) XR, float(M,T,F) XI, float(D,M) Tau, float(F) W) -> (P) {
    C(f, d, m) = cos(W(f) * Tau(d, m))
    S(f, d, m) = sin(W(f) * Tau(d, m))
    Re(f, d, t) +=! C(f, d, m) * XR(m, t, f) - S(f, d, m) * XI(m, t, f)
    Im(f, d, t) +=! C(f, d, m) * XI(m, t, f) + S(f, d, m) * XR(m, t, f)
    P(d, t) +=! Re(f, d, t) * Re(f, d, t) + Im(f, d, t) * Im(f, d, t)
}''', args=lambda g: [rn(g, 6, 50, 129), rn(g, 6, 50, 129), rn(g, 37, 6), 3 * ru(g, 129)], torch=t_srp, tol=2e-5))

# ---------------------------------------------------------------- recommender systems
def t_din(E, Hist, Len, Q):
    H = E[Hist]
    a = torch.sigmoid(torch.einsum("btd,bd->bt", H, Q) / math.sqrt(Q.shape[1]))
    a = a * (torch.arange(Hist.shape[1])[None] < Len[:, None])
    return torch.bmm(a[:, None], H)[:, 0]
op(dict(name="target_attention_pool", text='''
def target_attention_pool(float(V,D) E, int64(B,T) Hist, int32(B) Len, float(B,D) Q) -> (U) {
    S(b, t) +=! E(Hist(b, t), d) * Q(b, d)
    A(b, t) = (t < Len(b)) ? sigmoid(S(b, t) / sqrt(float(D))) : 0.0
    U(b, d) +=! A(b, t) * E(Hist(b, t), d)
}''', args=lambda g: [rn(g, 5003, 32), ri(g, 0, 5003, 256, 50), ri(g, 1, 51, 256, dt=torch.int32), rn(g, 256, 32)], torch=t_din, tol=2e-5))

def t_fwfm(V, R):
    G = torch.bmm(V, V.transpose(1, 2))
    return (G * torch.triu(R, 1)).sum((1, 2))
op(dict(name="field_weighted_fm", text='''
def field_weighted_fm(float(B,Fl,D) V, float(Fl,Fl) R) -> (Y) {
    Y(b) +=! (i < j) ? R(i, j) * V(b, i, d) * V(b, j, d) : 0.0
}''', args=lambda g: [rn(g, 512, 23, 16), rn(g, 23, 23)], torch=t_fwfm, tol=2e-5))

def t_inb(U, I, Id, lq):
    S = U @ I.T * 5.0 - lq[None]
    n = Id.shape[0]
    S2 = S.masked_fill((Id[:, None] == Id[None]) & ~torch.eye(n, dtype=torch.bool), -1e30)
    return torch.logsumexp(S2, 1) - S.diagonal()
op(dict(name="inbatch_softmax_logq", text='''
def inbatch_softmax_logq(float(N,D) U, float(N,D) I, int64(N) Id, float(N) LogQ) -> (L) {
    S(i, j) +=! 5.0 * U(i, d) * I(j, d)
    S(i, j) = S(i, j) - LogQ(j)
    M(i) max=! (i == j || Id(i) != Id(j)) ? S(i, j) : -infinity()
    Z(i) +=! (i == j || Id(i) != Id(j)) ? exp(S(i, j) - M(i)) : 0.0
    L(i) = log(Z(i)) + M(i) - S(i, i)
}''', args=lambda g: [F.normalize(rn(g, 300, 64), dim=1), F.normalize(rn(g, 300, 64), dim=1), ri(g, 0, 120, 300), -ru(g, 300)], torch=t_inb, tol=2e-5))

# ---------------------------------------------------------------- graph networks on padded neighbour lists
def nbr(g, n, k, dt=torch.int64):
    N = ri(g, 0, n, n, k, dt=dt)
    d = ri(g, 1, k + 1, n)
    return torch.where(torch.arange(k)[None] < d[:, None], N, torch.full_like(N, -1))
def t_gat(X, Y, A, N):
    ok = N >= 0
    j = N.clamp_min(0)
    Z = Y[j]
    s = (F.leaky_relu(X[:, None] + Z, 0.2) * A).sum(-1).masked_fill(~ok[..., None], -1e30)
    w = torch.softmax(s, 1)
    return torch.einsum("nkh,nkhd->nhd", w, Z)
op(dict(name="gatv2_padded", text='''
def gatv2_padded(float(N,H,D) X, float(N,H,D) Y, float(H,D) A, int64(N,K) Nbr) -> (O) {
    S(n, k, h) +=! (Nbr(n, k) >= 0) ? A(h, d) * (max(X(n, h, d) + Y(Nbr(n, k), h, d), 0.0) + 0.2 * min(X(n, h, d) + Y(Nbr(n, k), h, d), 0.0)) : 0.0
    M(n, h) max=! (Nbr(n, k) >= 0) ? S(n, k, h) : -infinity()
    P(n, k, h) = (Nbr(n, k) >= 0) ? exp(S(n, k, h) - M(n, h)) : 0.0
    Z(n, h) +=! P(n, k, h)
    O(n, h, d) +=! (Nbr(n, k) >= 0) ? P(n, k, h) / Z(n, h) * Y(Nbr(n, k), h, d) : 0.0
}''', args=lambda g: [rn(g, 700, 4, 24), rn(g, 700, 4, 24), rn(g, 4, 24), nbr(g, 700, 11)], torch=t_gat, tol=2e-5))

def t_pna(X, N, Deg):
    Z = X[N]
    ok = (torch.arange(N.shape[1])[None] < Deg[:, None])[..., None]
    d = Deg[:, None].to(X.dtype)
    mean = (Z * ok).sum(1) / d
    return mean, Z.masked_fill(~ok, -math.inf).amax(1), Z.masked_fill(~ok, math.inf).amin(1), (((Z - mean[:, None]) ** 2 * ok).sum(1) / d + 1e-5).sqrt()
op(dict(name="pna_aggregators", text='''
def pna_aggregators(float(N,D) X, int32(N,K) Nbr, int32(N) Deg) -> (Mean, Hi, Lo, Std) {
    Mean(n, d) +=! (k < Deg(n)) ? X(Nbr(n, k), d) / Deg(n) : 0.0
    Hi(n, d) max=! (k < Deg(n)) ? X(Nbr(n, k), d) : -infinity()
    Lo(n, d) min=! (k < Deg(n)) ? X(Nbr(n, k), d) : infinity()
    Std(n, d) +=! (k < Deg(n)) ? (X(Nbr(n, k), d) - Mean(n, d)) * (X(Nbr(n, k), d) - Mean(n, d)) : 0.0
    Std(n, d) = sqrt(Std(n, d) / Deg(n) + 1e-5)
}''', args=lambda g: [rn(g, 1500, 48), ri(g, 0, 1500, 1500, 14, dt=torch.int32), ri(g, 1, 15, 1500, dt=torch.int32)], torch=t_pna, tol=2e-5))

# ---------------------------------------------------------------- diffusion and image generation
def t_cfg(c, u):
    c32, u32 = c.float(), u.float()
    G = u32 + 7.5 * (c32 - u32)
    r = c32.std((1, 2, 3), unbiased=False, keepdim=True) / G.std((1, 2, 3), unbiased=False, keepdim=True)
    return (0.7 * G * r + 0.3 * G).half()
op(dict(name="cfg_rescale", text='''
def cfg_rescale(half(B,C,H,W) Co, half(B,C,H,W) Un) -> (half(B,C,H,W) Y) {
    MC(b) +=! float(Co(b, c, h, w)) / float(C * H * W)
    G(b, c, h, w) = float(Un(b, c, h, w)) + 7.5 * (float(Co(b, c, h, w)) - float(Un(b, c, h, w)))
    MG(b) +=! G(b, c, h, w) / float(C * H * W)
    VC(b) +=! (Co(b, c, h, w) - MC(b)) * (Co(b, c, h, w) - MC(b))
    VG(b) +=! (G(b, c, h, w) - MG(b)) * (G(b, c, h, w) - MG(b))
    Y(b, c, h, w) = 0.7 * G(b, c, h, w) * sqrt(VC(b) / VG(b)) + 0.3 * G(b, c, h, w)
}''', args=lambda g: [rn(g, 4, 4, 96, 80, dt=torch.float16), rn(g, 4, 4, 96, 80, dt=torch.float16)], torch=t_cfg, tol=2e-3))

def t_adagn(X, S, T):
    B, G, C, H, W = X.shape
    Y = F.group_norm(X.reshape(B, G * C, H, W), G, eps=1e-5).view(B, G, C, H, W)
    return F.silu(Y * (1 + S[..., None, None]) + T[..., None, None])
op(dict(name="adagn_silu", text='''
def adagn_silu(float(B,G,C,H,W) X, float(B,G,C) S, float(B,G,C) T) -> (Y) {
    M(b, g) +=! X(b, g, c, h, w) / float(C * H * W)
    V(b, g) +=! (X(b, g, c, h, w) - M(b, g)) * (X(b, g, c, h, w) - M(b, g))
    Z(b, g, c, h, w) = (X(b, g, c, h, w) - M(b, g)) * rsqrt(V(b, g) / float(C * H * W) + 1e-5) * (1.0 + S(b, g, c)) + T(b, g, c)
    Y(b, g, c, h, w) = Z(b, g, c, h, w) * sigmoid(Z(b, g, c, h, w))
}''', args=lambda g: [rn(g, 3, 8, 20, 17, 16)] + list(rn(g, 3, 16, 20).chunk(2, 1)), torch=t_adagn, tol=2e-5))

def t_vq(X, E):
    D = (E * E).sum(1)[None] - 2 * X @ E.T
    I = D.argmin(1)
    return E[I], torch.bincount(I, minlength=E.shape[0]).int()
op(dict(name="vq_assign_count", text='''
def vq_assign_count(float(N,D) X, float(K,D) E) -> (Q, int32(K) Count) {
    Dist(n, k) +=! (X(n, d) - E(k, d)) * (X(n, d) - E(k, d))
    Best(n) min=! Dist(n, k)
    I(n) min=! (Dist(n, k) == Best(n)) ? k : K - 1
    Q(n, d) = E(I(n), d)
    Count(I(n)) +=! 1
}''', args=lambda g: [rn(g, 1000, 32), rn(g, 257, 32)], torch=t_vq, tol=1e-6))

# ---------------------------------------------------------------- state-space and linear attention
def t_s4d(lar, ai, cr, ci, Like):
    L = Like.shape[0]
    l = torch.arange(L, dtype=lar.dtype)
    ar = -torch.exp(lar)
    return 2 * torch.einsum("hn,hnl->hl", torch.complex(cr, ci), torch.exp(torch.complex(ar, ai)[..., None] * l)).real
op(dict(name="s4d_convolution_kernel", text='''
def s4d_convolution_kernel(float(H,N) LogA, float(H,N) Ai, float(H,N) Cr, float(H,N) Ci, int32(L) Like) -> (K) {
    K(h, l) +=! 2.0 * exp(-exp(LogA(h, n)) * l) * (Cr(h, n) * cos(Ai(h, n) * l) - Ci(h, n) * sin(Ai(h, n) * l)) where l in 0:L
}''', args=lambda g: [rn(g, 24, 16) - 3.0, ru(g, 24, 16), rn(g, 24, 16), rn(g, 24, 16), torch.zeros(384, dtype=torch.int32)], torch=t_s4d, tol=1e-4))

def t_ssd(X, A, Bm, Cm):
    cs = A.cumsum(2)                                     # b c l h
    seg = cs[:, :, :, None] - cs[:, :, None]             # b c i j h
    L = torch.exp(seg.masked_fill(~torch.ones(A.shape[2], A.shape[2], dtype=torch.bool).tril()[None, None, :, :, None], -math.inf))
    G = torch.einsum("bcin,bcjn->bcij", Cm, Bm)
    return torch.einsum("bcijh,bcjhp->bcihp", L * G[..., None], X)
op(dict(name="ssd_intra_chunk", text='''
def ssd_intra_chunk(float(B,C,L,H,P) X, float(B,C,L,H) A, float(B,C,L,N) Bm, float(B,C,L,N) Cm) -> (Y) {
    Cs(b, c, i, h) +=! (j <= i) ? A(b, c, j, h) : 0.0 where i in 0:L
    G(b, c, i, j) +=! Cm(b, c, i, n) * Bm(b, c, j, n)
    Y(b, c, i, h, p) +=! (j <= i) ? exp(Cs(b, c, i, h) - Cs(b, c, j, h)) * G(b, c, i, j) * X(b, c, j, h, p) : 0.0
}''', args=lambda g: [rn(g, 2, 5, 32, 6, 24), -0.3 * ru(g, 2, 5, 32, 6), rn(g, 2, 5, 32, 16), rn(g, 2, 5, 32, 16)], torch=t_ssd, tol=2e-5))

def t_gla(K, V, Gt):
    cs = Gt.cumsum(3)                                    # b h c l d
    tot = cs[:, :, :, -1]
    S = torch.einsum("bhcld,bhcle->bhcde", K * torch.exp(tot[:, :, :, None] - cs), V)
    out, st = [], torch.zeros_like(S[:, :, 0])
    for c in range(S.shape[2]):
        out.append(st)
        st = st * torch.exp(tot[:, :, c])[..., None] + S[:, :, c]
    return torch.stack(out, 2)
op(dict(name="gla_chunk_states", text='''
def gla_chunk_states(float(B,H,C,L,D) K, float(B,H,C,L,E) V, float(B,H,C,L,D) Gate) -> (St) {
    Rest(b, h, c, l, d) +=! (m > l) ? Gate(b, h, c, m, d) : 0.0 where l in 0:L
    Tot(b, h, c, d) +=! Gate(b, h, c, l, d)
    S(b, h, c, d, e) +=! K(b, h, c, l, d) * exp(Rest(b, h, c, l, d)) * V(b, h, c, l, e)
    Dec(b, h, c, p, d) +=! (p < q && q < c) ? Tot(b, h, q, d) : 0.0 where c in 0:C, p in 0:C
    St(b, h, c, d, e) +=! (p < c) ? exp(Dec(b, h, c, p, d)) * S(b, h, p, d, e) : 0.0
}''', args=lambda g: [rn(g, 2, 3, 7, 16, 20), rn(g, 2, 3, 7, 16, 24), -0.1 * ru(g, 2, 3, 7, 16, 20)], torch=t_gla, tol=2e-5))

def t_wkv(w, u, K, V):
    T = K.shape[1]
    i = torch.arange(T)
    d = (i[:, None] - 1 - i[None]).to(K.dtype)
    low = (i[:, None] > i[None])
    D = torch.where(low[..., None], -d[..., None].clamp_min(0) * torch.exp(w), torch.where(torch.eye(T, dtype=torch.bool)[..., None], u.expand(T, T, -1), torch.full((), -1e30, dtype=K.dtype)))
    P = torch.exp(D[None] + K[:, None])
    return (P * V[:, None]).sum(2) / P.sum(2)
op(dict(name="rwkv_wkv", text='''
def rwkv_wkv(float(C) W, float(C) U, float(B,T,C) K, float(B,T,C) V) -> (Y) {
    Num(b, t, c) +=! (s < t) ? exp(K(b, s, c) - exp(W(c)) * float(t - 1 - s)) * V(b, s, c) : 0.0 where t in 0:T
    Den(b, t, c) +=! (s < t) ? exp(K(b, s, c) - exp(W(c)) * float(t - 1 - s)) : 0.0 where t in 0:T, s in 0:T
    Y(b, t, c) = (Num(b, t, c) + exp(U(c) + K(b, t, c)) * V(b, t, c)) / (Den(b, t, c) + exp(U(c) + K(b, t, c)))
}''', args=lambda g: [rn(g, 40) - 1, rn(g, 40)] + list(rn(g, 3, 61, 80).chunk(2, 2)), torch=t_wkv, tol=2e-5))


# ---------------------------------------------------------------- quantised inference
def t_w4(X, W, Z, S):
    lo, hi = W & 15, W >> 4
    q = torch.stack((lo, hi), -1).flatten(1)                                  # O I
    G = S.shape[1]
    w = ((q.view(q.shape[0], G, -1).float() - Z[..., None].float()) * S[..., None].float()).view(q.shape)
    return (X.float() @ w.T).bfloat16()
op(dict(name="w4_group_linear", text='''
def w4_group_linear(bfloat16(N,2*J) X, uint8(O,J) W, uint8(O,G) Z, half(O,G) S) -> (bfloat16(N,O) Y) {
    Acc(n, o) +=! X(n, i) * S(o, i / 64) * (float(((i % 2 == 0) ? W(o, i / 2) : W(o, i / 2) / 16) % 16) - float(Z(o, i / 64))) where i in 0:2*J
    Y(n, o) = Acc(n, o)
}''', args=lambda g: [rn(g, 3, 1024, dt=torch.bfloat16), ri(g, 0, 256, 384, 512, dt=torch.uint8), ri(g, 0, 16, 384, 16, dt=torch.uint8), (0.01 + 0.1 * ru(g, 384, 16)).half()], torch=t_w4, tol=1e-2))

def t_rq(X, W, B, Sc, zx):
    acc = (X.float() - 113.0) @ W.float().T
    y = acc * Sc + B
    return torch.clamp(torch.floor(y + 0.5) + 7, 0, 255).to(torch.uint8)
op(dict(name="u8s8_requant", text='''
def u8s8_requant(uint8(N,K) X, int8(O,K) W, float(O) B, float(O) Sc, int32 zx) -> (uint8(N,O) Y) {
    A(n, o) +=! (int32(X(n, k)) - zx) * int32(W(o, k))
    Y(n, o) = uint8(clamp(floor(float(A(n, o)) * Sc(o) + B(o) + 0.5) + 7.0, 0.0, 255.0))
}''', args=lambda g: [ri(g, 0, 256, 77, 320, dt=torch.uint8), ri(g, -127, 128, 200, 320, dt=torch.int8), 20 * rn(g, 200), 1e-3 + 1e-3 * ru(g, 200), torch.tensor(113, dtype=torch.int32)], torch=t_rq, tol=1e-2))

def t_sq(X, sm):
    Z = (X.float() / sm).view(X.shape[0], -1, 96)
    a = Z.abs().amax(-1) / 127.0
    return torch.floor(Z / a[..., None] + 0.5).to(torch.int8).view(X.shape), a
op(dict(name="smooth_dynamic_quant", text='''
def smooth_dynamic_quant(bfloat16(N,C) X, float(C) Sm) -> (int8(N,C) Q, float(N,C/96) S) {
    Z(n, c) = float(X(n, c)) / Sm(c)
    S(n, g) max=! fabs(Z(n, 96*g + i)) where g in 0:C/96, i in 0:96
    S(n, g) = S(n, g) / 127.0
    Q(n, c) = int8(floor(Z(n, c) / S(n, c / 96) + 0.5))
}''', args=lambda g: [rn(g, 333, 768, dt=torch.bfloat16), 0.5 + ru(g, 768)], torch=t_sq, tol=1e-2))

# ---------------------------------------------------------------- losses and optimisers
def t_asl(X, T):
    p = torch.sigmoid(X)
    ps = (p - 0.05).clamp_min(0)
    l = torch.where(T == 1, -(1 - p) * F.logsigmoid(X), -ps ** 4 * torch.log(1 - ps + 1e-8))
    ok = (T >= 0)
    return (l * ok).sum(1) / ok.sum(1).to(X.dtype)
op(dict(name="asymmetric_multilabel_loss", text='''
def asymmetric_multilabel_loss(float(N,C) X, int8(N,C) T) -> (L) {
    P(n, c) = sigmoid(X(n, c))
    Cnt(n) +=! (T(n, c) >= 0) ? 1.0 : 0.0
    S(n) +=! (T(n, c) == 1) ? (1.0 - P(n, c)) * -log(P(n, c)) : ((T(n, c) == 0) ? -pow(q, 4.0) * log(1.0 - q + 1e-8) : 0.0) where q = max(P(n, c) - 0.05, 0.0)
    L(n) = S(n) / Cnt(n)
}''', args=lambda g: [2 * rn(g, 1024, 81), ri(g, -1, 2, 1024, 81, dt=torch.int8)], torch=t_asl, tol=2e-5))

def t_supcon(Z, Y):
    z = F.normalize(Z, dim=1, eps=0)
    S = z @ z.T / 0.1
    I = torch.eye(Z.shape[0], dtype=torch.bool)
    lse = torch.logsumexp(S.masked_fill(I, -1e30), 1)
    pos = (Y[:, None] == Y[None]) & ~I
    return lse - (S * pos).sum(1) / pos.sum(1).clamp_min(1).to(Z.dtype)
op(dict(name="supervised_contrastive", text='''
def supervised_contrastive(float(N,D) Z, int64(N) Y) -> (L) {
    R(n) +=! Z(n, d) * Z(n, d)
    S(i, j) +=! Z(i, d) * Z(j, d)
    S(i, j) = S(i, j) * rsqrt(R(i)) * rsqrt(R(j)) / 0.1
    E(i) +=! (i != j) ? exp(S(i, j) - 10.0) : 0.0
    Pos(i) +=! (i != j && Y(i) == Y(j)) ? S(i, j) : 0.0
    Cnt(i) +=! (i != j && Y(i) == Y(j)) ? 1.0 : 0.0
    L(i) = log(E(i)) + 10.0 - Pos(i) / max(Cnt(i), 1.0)
}''', args=lambda g: [rn(g, 255, 48), ri(g, 0, 20, 255)], torch=t_supcon, tol=2e-5))

def t_trip(X, Y):
    D = torch.cdist(X, X, compute_mode="donot_use_mm_for_euclid_dist") ** 2 if not X.requires_grad else ((X[:, None] - X[None]) ** 2).sum(-1)
    same = Y[:, None] == Y[None]
    return F.softplus(0.1 * ((D.masked_fill(~same, -math.inf)).amax(1) - D.masked_fill(same, math.inf).amin(1)))
op(dict(name="hardest_triplets", text='''
def hardest_triplets(float(N,D) X, int64(N) Y) -> (L) {
    D2(i, j) +=! (X(i, d) - X(j, d)) * (X(i, d) - X(j, d))
    Far(i) max=! (Y(i) == Y(j)) ? D2(i, j) : -infinity()
    Near(i) min=! (Y(i) != Y(j)) ? D2(i, j) : infinity()
    L(i) = log1p(exp(0.1 * (Far(i) - Near(i))))
}''', args=lambda g: [rn(g, 192, 40), torch.arange(192) // 4], torch=t_trip, tol=5e-5))

def t_ctc(P, Lab):
    B, T, V = P.shape
    S = Lab.shape[1]
    lp = P.gather(2, Lab[:, None].expand(B, T, S))
    neg = torch.full((), -1e30, dtype=P.dtype)
    skip = torch.zeros(B, S, dtype=torch.bool)
    skip[:, 2:] = (Lab[:, 2:] != 0) & (Lab[:, 2:] != Lab[:, :-2])
    a = torch.where(torch.arange(S)[None] < 2, lp[:, 0], neg)
    for t in range(1, T):
        a1 = F.pad(a, (1, 0), value=-1e30)[:, :S]
        a2 = torch.where(skip, F.pad(a, (2, 0), value=-1e30)[:, :S], neg)
        a = torch.logsumexp(torch.stack((a, a1, a2)), 0) + lp[:, t]
    return -torch.logaddexp(a[:, -1], a[:, -2])
op(dict(name="ctc_five_frames", text='''
def ctc_step(float(B,S) A, float(B,T,V) P, int64(B,S) Lab, int32 t) -> (N) {
    A1(b, s) = (s >= 1) ? A(b, s - 1) : -1e30 where s in 0:S
    A2(b, s) = (s >= 2) ? ((Lab(b, s) != 0 && Lab(b, s) != Lab(b, s - 2)) ? A(b, s - 2) : -1e30) : -1e30 where s in 0:S
    M(b, s) = max(A(b, s), max(A1(b, s), A2(b, s)))
    N(b, s) = M(b, s) + log(exp(A(b, s) - M(b, s)) + exp(A1(b, s) - M(b, s)) + exp(A2(b, s) - M(b, s))) + P(b, t, Lab(b, s))
}
def ctc_five_frames(float(B,5,V) P, int64(B,S) Lab) -> (L) {
    A0(b, s) = (s < 2) ? P(b, 0, Lab(b, s)) : -1e30
    B1 = ctc_step(A0, P, Lab, 1)
    B2 = ctc_step(B1, P, Lab, 2)
    B3 = ctc_step(B2, P, Lab, 3)
    B4 = ctc_step(B3, P, Lab, 4)
    L(b) = -(max(B4(b, S-1), B4(b, S-2)) + log1p(exp(-fabs(B4(b, S-1) - B4(b, S-2)))))
}''', args=lambda g: [F.log_softmax(rn(g, 32, 5, 29), 2), (lambda l: torch.stack((torch.zeros_like(l), l), 2).flatten(1).contiguous()[:, :7])(torch.cat((ri(g, 1, 29, 32, 3), torch.zeros(32, 1, dtype=torch.int64)), 1))], torch=t_ctc, tol=2e-5))

def t_dkd(S, T, Y):
    s, t = torch.log_softmax(S / 4.0, 1), torch.log_softmax(T / 4.0, 1)
    pt, ps = t.exp().gather(1, Y[:, None])[:, 0], s.exp().gather(1, Y[:, None])[:, 0]
    tck = pt * torch.log(pt / ps) + (1 - pt) * torch.log((1 - pt) / (1 - ps))
    m = F.one_hot(Y, S.shape[1]).bool()
    s2, t2 = torch.log_softmax((S / 4.0).masked_fill(m, -1e30), 1), torch.log_softmax((T / 4.0).masked_fill(m, -1e30), 1)
    return tck + 8.0 * (t2.exp() * (t2 - s2)).masked_fill(m, 0).sum(1)
op(dict(name="decoupled_distillation", text='''
def parts(float(N,C) X, int64(N) Y) -> (E, A, O) {
    M(n) max=! X(n, c)
    E(n, c) = exp((X(n, c) - M(n)) / 4.0)
    A(n) +=! E(n, c)
    O(n) +=! (c != Y(n)) ? E(n, c) : 0.0
}
def decoupled_distillation(float(N,C) S, float(N,C) T, int64(N) Y) -> (L) {
    ES, AS, OS = parts(S, Y)
    ET, AT, OT = parts(T, Y)
    K(n) +=! (c != Y(n)) ? ET(n, c) / OT(n) * log(ET(n, c) / OT(n) * OS(n) / ES(n, c)) : 0.0
    L(n) = ET(n, Y(n)) / AT(n) * log(ET(n, Y(n)) / AT(n) * AS(n) / ES(n, Y(n))) + OT(n) / AT(n) * log(OT(n) / AT(n) * AS(n) / OS(n)) + 8.0 * K(n)
}''', args=lambda g: [3 * rn(g, 400, 100), 3 * rn(g, 400, 100), ri(g, 0, 100, 400)], torch=t_dkd, tol=5e-5))

def t_adaf(P, G, R, C):
    G2 = G * G + 1e-30
    R2, C2 = 0.98 * R + 0.02 * G2.mean(1), 0.98 * C + 0.02 * G2.mean(0)
    U = G * torch.rsqrt(R2 / R2.mean())[:, None] * torch.rsqrt(C2)[None]
    rms = U.square().mean().sqrt()
    return P - 1e-2 * U / rms.clamp_min(1.0), R2, C2
op(dict(name="adafactor_update", text='''
def adafactor_update(float(M,N) P, float(M,N) G, float(M) R, float(N) C) -> (PN, RN, CN) {
    RN(m) +=! G(m, n) * G(m, n)
    RN(m) = 0.98 * R(m) + 0.02 * (RN(m) / N + 1e-30)
    CN(n) +=! G(m, n) * G(m, n)
    CN(n) = 0.98 * C(n) + 0.02 * (CN(n) / M + 1e-30)
    RS +=! RN(m)
    U(m, n) = G(m, n) * rsqrt(RN(m) * M / RS) * rsqrt(CN(n))
    SS +=! U(m, n) * U(m, n)
    PN(m, n) = P(m, n) - 1e-2 * U(m, n) / max(sqrt(SS / (M * N)), 1.0)
}''', args=lambda g: [rn(g, 1023, 512), rn(g, 512, 1023).T, ru(g, 1023) + 0.1, ru(g, 512) + 0.1], torch=t_adaf, tol=2e-5))
