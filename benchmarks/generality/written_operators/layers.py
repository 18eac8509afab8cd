# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Layers of language models, images and shapes, signals, graphs and recommenders; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.networks import bf16, f16, f64, i8, i32, of, ri, rn, ru, u8
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)
i16 = torch.int16


# ---------------------------------------------------------------- language models: attention and its caches

def _mla_expand(X, Wd, Gain, Wk, Wv, Cos, Sin):
    L, H = Wk.shape[2], Wk.shape[0]
    lat, kr = F.linear(X, Wd).split([L, Wd.shape[0] - L], -1)
    lat = F.rms_norm(lat.float(), (L,), Gain, 1e-6).to(bf16)
    a, b = kr.float().chunk(2, -1)
    kr = torch.cat([a * Cos - b * Sin, b * Cos + a * Sin], -1).to(bf16)
    kn = torch.einsum("btl,hdl->bhtd", lat, Wk)
    return torch.cat([kn, kr[:, None].expand(-1, H, -1, -1)], -1), torch.einsum("btl,hel->bhte", lat, Wv)


op(dict(name="mla_latent_kv_expand_bf16", text='''
def mla_latent_kv_expand_bf16(bfloat16(B,T,I) X, bfloat16(L+2*P,I) Wd, float(L) Gain, bfloat16(H,D,L) Wk, bfloat16(H,E,L) Wv, float(T,P) Cos, float(T,P) Sin)
        -> (bfloat16(B,H,T,D+2*P) K, bfloat16(B,H,T,E) V) {
    C(b, t, l) +=! float(X(b, t, i)) * Wd(l, i)
    S(b, t) +=! C(b, t, l) * C(b, t, l) / L where l in 0:L
    N(b, t, l) = C(b, t, l) * rsqrt(S(b, t) + 1e-6) * Gain(l)
    Kn(b, h, t, d) +=! N(b, t, l) * Wk(h, d, l)
    K(b, h, t, q) = q < D ? Kn(b, h, t, q)
        : (q < D + P ? C(b, t, L + q - D) * Cos(t, q - D) - C(b, t, L + P + q - D) * Sin(t, q - D)
                     : C(b, t, L + q - D) * Cos(t, q - D - P) + C(b, t, L + q - D - P) * Sin(t, q - D - P)) where q in 0:D+2*P
    V(b, h, t, e) +=! N(b, t, l) * Wv(h, e, l)
}''', args=lambda g: [rn(g, 2, 131, 512, dt=bf16), rn(g, 160, 512, dt=bf16, k=0.044), ru(g, 128, lo=0.5, hi=1.5), rn(g, 8, 48, 128, dt=bf16, k=0.09), rn(g, 8, 64, 128, dt=bf16, k=0.09), ru(g, 131, 16, lo=-1), ru(g, 131, 16, lo=-1)],
    torch=_mla_expand, tol=2e-2))


def _gdn_chunk(Q, K, V, Beta, G, T, S):
    Tb = T.tril() * Beta[..., None, :]
    eg, last = G.exp()[..., None], G[..., -1:, None]
    Vn = Tb @ V - (Tb @ (eg * K)) @ S
    decay = (G[..., :, None] - G[..., None, :]).tril().exp().tril()
    O = (eg * Q) @ S + (Q @ K.mT * decay) @ Vn
    return O, last.exp() * S + (K * (last - G[..., None]).exp()).mT @ Vn


op(dict(name="gated_delta_chunk_wy", text='''
def gated_delta_chunk_wy(float(B,H,C,D) Q, float(B,H,C,D) K, float(B,H,C,E) V, float(B,H,C) Beta, float(B,H,C) G, float(B,H,C,C) T, float(B,H,D,E) S) -> (O, Sn) {
    W(b, h, i, d) +=! j <= i ? T(b, h, i, j) * Beta(b, h, j) * exp(G(b, h, j)) * K(b, h, j, d) : 0.0
    Vn(b, h, i, e) +=! j <= i ? T(b, h, i, j) * Beta(b, h, j) * V(b, h, j, e) : 0.0
    Vn(b, h, i, e) += -W(b, h, i, d) * S(b, h, d, e)
    A(b, h, i, j) +=! Q(b, h, i, d) * K(b, h, j, d)
    O(b, h, i, e) +=! exp(G(b, h, i)) * Q(b, h, i, d) * S(b, h, d, e)
    O(b, h, i, e) += j <= i ? A(b, h, i, j) * exp(G(b, h, i) - G(b, h, j)) * Vn(b, h, j, e) : 0.0
    Sn(b, h, d, e) = exp(G(b, h, C - 1)) * S(b, h, d, e)
    Sn(b, h, d, e) += exp(G(b, h, C - 1) - G(b, h, j)) * K(b, h, j, d) * Vn(b, h, j, e)
}''', args=lambda g: [rn(g, 2, 6, 64, 48, k=0.15), F.normalize(rn(g, 2, 6, 64, 48), dim=3), rn(g, 2, 6, 64, 56), ru(g, 2, 6, 64), -0.1 * ru(g, 2, 6, 64).cumsum(2), torch.eye(64) + rn(g, 2, 6, 64, 64, k=0.05).tril(-1), rn(g, 2, 6, 48, 56, k=0.3)],
    torch=_gdn_chunk, tol=5e-5))


def _gptoss(Q, K, V, Sink, win):
    B, T, G, R, D = Q.shape
    S = torch.einsum("bigrd,bjgd->bgrij", Q.float(), K.float()) / D ** 0.5
    t = torch.arange(T)
    lag = t[:, None] - t
    S = S.masked_fill((lag < 0) | (lag >= win), -math.inf)
    P = torch.cat([S, Sink[:, :, None, None].expand(B, G, R, T, 1)], -1).softmax(-1)[..., :-1]
    return torch.einsum("bgrij,bjgd->bigrd", P, V.float()).to(bf16)


op(dict(name="gptoss_window_sink_prefill_bf16", text='''
def gptoss_window_sink_prefill_bf16(bfloat16(B,T,G,R,D) Q, bfloat16(B,T,G,D) K, bfloat16(B,T,G,D) V, float(G,R) Sink, int32 win) -> (bfloat16(B,T,G,R,D) Y) {
    S(b, g, r, i, j) +=! float(Q(b, i, g, r, d)) * K(b, j, g, d)
    S(b, g, r, i, j) = (j <= i && i - j < win) ? S(b, g, r, i, j) / sqrt(float(D)) : -infinity()
    M(b, g, r, i) max=! S(b, g, r, i, j)
    M(b, g, r, i) = max(M(b, g, r, i), Sink(g, r))
    P(b, g, r, i, j) = exp(S(b, g, r, i, j) - M(b, g, r, i))
    Z(b, g, r, i) +=! P(b, g, r, i, j)
    Z(b, g, r, i) = Z(b, g, r, i) + exp(Sink(g, r) - M(b, g, r, i))
    Y(b, i, g, r, d) +=! P(b, g, r, i, j) / Z(b, g, r, i) * V(b, j, g, d)
}''', args=lambda g: [rn(g, 2, 199, 2, 4, 64, dt=bf16), rn(g, 2, 199, 2, 64, dt=bf16), rn(g, 2, 199, 2, 64, dt=bf16), rn(g, 2, 4), of(64, i32)], torch=_gptoss, tol=1e-2))


def _quest(Q, K):
    q, mx, mn = Q.float(), K.amax(2).float(), K.amin(2).float()
    S = torch.einsum("bgrd,bngd->bgrn", q.clamp_min(0), mx) + torch.einsum("bgrd,bngd->bgrn", q.clamp_max(0), mn)
    return S, S.amax((1, 2))


op(dict(name="quest_page_upper_bounds_half", text='''
def quest_page_upper_bounds_half(half(B,G,R,D) Q, half(B,N,16,G,D) K) -> (S, Top) {
    Mx(b, n, g, d) max=! K(b, n, p, g, d)
    Mn(b, n, g, d) min=! K(b, n, p, g, d)
    S(b, g, r, n) +=! max(float(Q(b, g, r, d)) * Mx(b, n, g, d), float(Q(b, g, r, d)) * Mn(b, n, g, d))
    Top(b, n) max=! S(b, g, r, n)
}''', args=lambda g: [rn(g, 4, 4, 3, 64, dt=f16), rn(g, 4, 63, 16, 4, 64, dt=f16)], torch=_quest, tol=2e-5))


def _mrope(X, Pos, Inv, s0, s1):
    p = torch.arange(len(Inv))
    axis = (p >= s0).long() + (p >= s1).long()
    ang = (Pos[axis].permute(1, 2, 0) * Inv)[:, :, None]
    a, b = X.chunk(2, -1)
    return torch.cat([a * ang.cos() - b * ang.sin(), b * ang.cos() + a * ang.sin()], -1).transpose(1, 2)


op(dict(name="mrope_three_axis_sections", text='''
def mrope_three_axis_sections(float(B,T,H,2*P) X, int32(3,B,T) Pos, float(P) Inv, int32 s0, int32 s1) -> (Y) {
    A(b, t, p) = float(p < s0 ? Pos(0, b, t) : (p < s1 ? Pos(1, b, t) : Pos(2, b, t))) * Inv(p)
    Y(b, h, t, q) = q < P ? X(b, t, h, q) * cos(A(b, t, q)) - X(b, t, h, q + P) * sin(A(b, t, q))
                          : X(b, t, h, q) * cos(A(b, t, q - P)) + X(b, t, h, q - P) * sin(A(b, t, q - P)) where q in 0:2*P
}''', args=lambda g: [rn(g, 2, 401, 6, 64), ri(g, 0, 900, 3, 2, 401, dt=i32), 10000.0 ** (-torch.arange(32) / 32), of(8, i32), of(20, i32)], torch=_mrope, tol=2e-5))


def _tree(Q, K, V, Kd, Vd, Anc, cached):
    n = int(cached)
    k, v = (torch.cat([a[:n], b]).transpose(0, 1) for a, b in ((K, Kd), (V, Vd)))
    return F.scaled_dot_product_attention(Q, k, v, attn_mask=torch.cat([Anc.new_ones(len(Anc), n), Anc], 1))


op(dict(name="tree_draft_verify_attention", text='''
def tree_draft_verify_attention(float(H,N,D) Q, float(S,H,D) K, float(S,H,D) V, float(N,H,D) Kd, float(N,H,D) Vd, bool(N,N) Anc, int32 len) -> (Y) {
    A(h, n, s) +=! Q(h, n, d) * K(s, h, d)
    A(h, n, s) = s < len ? A(h, n, s) / sqrt(float(D)) : -infinity()
    T(h, n, m) +=! Q(h, n, d) * Kd(m, h, d)
    T(h, n, m) = Anc(n, m) ? T(h, n, m) / sqrt(float(D)) : -infinity()
    M(h, n) max=! A(h, n, s)
    M(h, n) max= T(h, n, m)
    Z(h, n) +=! exp(A(h, n, s) - M(h, n))
    Z(h, n) += exp(T(h, n, m) - M(h, n))
    Y(h, n, d) +=! exp(A(h, n, s) - M(h, n)) / Z(h, n) * V(s, h, d)
    Y(h, n, d) += exp(T(h, n, m) - M(h, n)) / Z(h, n) * Vd(m, h, d)
}''', args=lambda g: [rn(g, 8, 27, 64), rn(g, 700, 8, 64), rn(g, 700, 8, 64), rn(g, 27, 8, 64), rn(g, 27, 8, 64), (ru(g, 27, 27) < 0.3).tril() | torch.eye(27, dtype=torch.bool), of(613, i32)], torch=_tree, tol=2e-5))


# ---------------------------------------------------------------- language models: experts, formats, adapters, preferences

def _moe(X, Tok, Wt, Wi, Wo):
    on, tok = Tok >= 0, Tok.clamp_min(0).long()
    a = torch.einsum("eci,ekji->kecj", X[tok] * on[..., None], Wi)
    o = torch.bmm(F.silu(a[0]) * a[1], Wo.mT) * (Wt * on)[..., None]
    return torch.zeros_like(X).index_add(0, tok.flatten(), o.flatten(0, 1))


def _moe_args(g):
    Tok = ri(g, 0, 101, 6, 40, dt=i32).masked_fill(torch.arange(40) >= ri(g, 15, 41, 6)[:, None], -1)
    return [rn(g, 101, 128), Tok, ru(g, 6, 40), rn(g, 6, 2, 192, 128, k=0.09), rn(g, 6, 128, 192, k=0.07)]


op(dict(name="moe_gather_swiglu_scatter", text='''
def moe_gather_swiglu_scatter(float(T,I) X, int32(E,C) Tok, float(E,C) Wt, float(E,2,J,I) Wi, float(E,I,J) Wo) -> (float(T,I) Y) {
    A(e, c, k, j) +=! Tok(e, c) >= 0 ? X(Tok(e, c), i) * Wi(e, k, j, i) : 0.0
    G(e, c, j) = A(e, c, 0, j) * sigmoid(A(e, c, 0, j)) * A(e, c, 1, j)
    O(e, c, i) +=! G(e, c, j) * Wo(e, i, j)
    Y(max(Tok(e, c), 0), i) +=! Tok(e, c) >= 0 ? Wt(e, c) * O(e, c, i) : 0.0
}''', args=_moe_args, torch=_moe, tol=3e-5))


def _mxfp4(X, W, Ex, Lut):
    code = torch.stack([W & 15, W >> 4], -1).flatten(1).long()
    scale = torch.exp2(Ex.float() - 127).repeat_interleave(32, 1)
    return (X.float() @ (Lut[code] * scale).T).to(bf16)


op(dict(name="mxfp4_linear_bf16", text='''
def mxfp4_linear_bf16(bfloat16(M,I) X, uint8(O,I/2) W, uint8(O,I/32) Ex, float(16) Lut) -> (bfloat16(M,O) Y) {
    Code(o, i) = i % 2 == 0 ? W(o, i / 2) % 16 : W(o, i / 2) / 16 where i in 0:I
    Wf(o, i) = Lut(Code(o, i)) * exp2(float(Ex(o, i / 32)) - 127.0) where i in 0:I
    Y(m, o) +=! float(X(m, i)) * Wf(o, i)
}''', args=lambda g: [rn(g, 13, 512, dt=bf16), ri(g, 0, 256, 390, 256, dt=u8), ri(g, 118, 125, 390, 16, dt=u8), torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6])], torch=_mxfp4, tol=1e-2))


def _dora(X, W, A, Bm, Mg, Bias, s):
    V = torch.addmm(W, Bm, A, alpha=float(s))
    return F.linear(X, V * (Mg / torch.linalg.vector_norm(V, dim=1))[:, None], Bias)


op(dict(name="dora_linear", text='''
def dora_linear(float(N,I) X, float(O,I) W, float(R,I) A, float(O,R) Bm, float(O) Mg, float(O) Bias, float s) -> (Y) {
    V(o, i) = W(o, i)
    V(o, i) += s * Bm(o, r) * A(r, i)
    Q(o) +=! V(o, i) * V(o, i)
    Z(n, o) +=! X(n, i) * V(o, i)
    Y(n, o) = Mg(o) * rsqrt(Q(o)) * Z(n, o) + Bias(o)
}''', args=lambda g: [rn(g, 77, 320), rn(g, 430, 320, k=0.06), rn(g, 8, 320, k=0.06), rn(g, 430, 8), ru(g, 430, lo=0.5, hi=1.5), rn(g, 430), of(0.25)], torch=_dora, tol=2e-5))


def _dpo(Logits, Lab, Ref, beta):
    lp = Logits.float().log_softmax(-1).gather(-1, Lab.clamp_min(0)[..., None])[..., 0].masked_fill(Lab < 0, 0.0).sum(-1)
    d = beta * ((lp - Ref)[0] - (lp - Ref)[1])
    return -F.logsigmoid(d).mean(), lp, (d > 0).float().mean()


def _dpo_args(g):
    n = ri(g, 12, 38, 2, 5)
    Lab = ri(g, 0, 5003, 2, 5, 37).masked_fill(torch.arange(37) >= n[..., None], -100)
    return [rn(g, 2, 5, 37, 5003, dt=f16), Lab, -9.0 * n + rn(g, 2, 5, k=3.0), of(0.1)]


op(dict(name="dpo_pair_loss_half", text='''
def dpo_pair_loss_half(half(2,P,T,V) Logits, int64(2,P,T) Lab, float(2,P) Ref, float beta) -> (Loss, Lp, Acc) {
    M(k, p, t) max=! Logits(k, p, t, v)
    Z(k, p, t) +=! exp(float(Logits(k, p, t, v)) - M(k, p, t))
    Lp(k, p) +=! Lab(k, p, t) >= 0 ? float(Logits(k, p, t, Lab(k, p, t))) - M(k, p, t) - log(Z(k, p, t)) : 0.0
    D(p) = beta * (Lp(0, p) - Ref(0, p) - Lp(1, p) + Ref(1, p))
    Loss +=! (max(-D(p), 0.0) + log1p(exp(-abs(D(p))))) / P
    Acc +=! D(p) > 0.0 ? 1.0 / P : 0.0
}''', args=_dpo_args, torch=_dpo, tol=2e-4))


# ---------------------------------------------------------------- vision

def _tsm(X, Scale, Shift):
    f = X.shape[2] // 8
    Z = torch.zeros_like(X)
    Z[:, :-1, :f] = X[:, 1:, :f]
    Z[:, 1:, f:2 * f] = X[:, :-1, f:2 * f]
    Z[:, :, 2 * f:] = X[:, :, 2 * f:]
    return F.relu(torch.addcmul(Shift[:, None, None], Z, Scale[:, None, None]))


op(dict(name="tsm_temporal_shift_bn_relu", text='''
def tsm_temporal_shift_bn_relu(float(N,T,C,H,W) X, float(C) Scale, float(C) Shift) -> (Y) {
    Z(n, t, c, y, x) = c < C / 8 ? (t + 1 < T ? X(n, t + 1, c, y, x) : 0.0) : (c < 2 * (C / 8) ? (t >= 1 ? X(n, t - 1, c, y, x) : 0.0) : X(n, t, c, y, x)) where t in 0:T
    Y(n, t, c, y, x) = relu(Z(n, t, c, y, x) * Scale(c) + Shift(c))
}''', args=lambda g: [rn(g, 2, 8, 43, 27, 29), rn(g, 43), rn(g, 43)], torch=_tsm, tol=1e-6))


def _raft(Corr, P):
    H, W = Corr.shape[1:]
    d = torch.arange(-3, 4)
    x = (P[:, 0, None, None] + d).expand(-1, 7, 7) * (2 / (W - 1)) - 1
    y = (P[:, 1, None, None] + d[:, None]).expand(-1, 7, 7) * (2 / (H - 1)) - 1
    return F.grid_sample(Corr[:, None], torch.stack([x, y], -1), align_corners=True)[:, 0]


op(dict(name="raft_corr_lookup_r3", text='''
def raft_corr_lookup_r3(float(N,H,W) Corr, float(N,2) P) -> (Y) {
    X0(n) = int32(floor(P(n, 0)))
    Y0(n) = int32(floor(P(n, 1)))
    Fx(n) = P(n, 0) - floor(P(n, 0))
    Fy(n) = P(n, 1) - floor(P(n, 1))
    Y(n, i, j) +=! (Y0(n) + i + a >= 3 && Y0(n) + i + a < H + 3 && X0(n) + j + b >= 3 && X0(n) + j + b < W + 3)
        ? (a == 0 ? 1.0 - Fy(n) : Fy(n)) * (b == 0 ? 1.0 - Fx(n) : Fx(n)) * Corr(n, Y0(n) + i + a - 3, X0(n) + j + b - 3) : 0.0
        where i in 0:7, j in 0:7, a in 0:2, b in 0:2
}''', args=lambda g: [rn(g, 1200, 30, 41), ru(g, 1200, 2, lo=-2.0, hi=40.0)], torch=_raft, tol=1e-4))


op(dict(name="espcn_subpixel_prelu", text='''
def espcn_subpixel_prelu(float(N,C,H,W) X, float(O,2,2,C,3,3) K, float(O,2,2) Bias, float(O) Slope) -> (Y) {
    Z(n, o, p, q, y, x) +=! (y + i >= 1 && y + i <= H && x + j >= 1 && x + j <= W) ? X(n, c, y + i - 1, x + j - 1) * K(o, p, q, c, i, j) : 0.0 where y in 0:H, x in 0:W
    Y(n, o, v, w) = z > 0.0 ? z : Slope(o) * z where z = Z(n, o, v % 2, w % 2, v / 2, w / 2) + Bias(o, v % 2, w % 2), v in 0:2*H, w in 0:2*W
}''', args=lambda g: [rn(g, 1, 16, 53, 59), rn(g, 7, 2, 2, 16, 3, 3, k=0.08), rn(g, 7, 2, 2), ru(g, 7, hi=0.4)],
    torch=lambda X, K, b, s: F.prelu(F.pixel_shuffle(F.conv2d(X, K.flatten(0, 2), b.flatten(), padding=1), 2), s), tol=2e-5))


def _carafe(X, L):
    N, C, H, W = X.shape
    P = L.flatten(1, 2).softmax(1).view(N, 25, H, 2, W, 2)
    U = F.unfold(X, 5, padding=2).view(N, C, 25, H, W)
    return torch.einsum("nckhw,nkhpwq->nchpwq", U, P).reshape(N, C, 2 * H, 2 * W)


op(dict(name="carafe_reassemble_x2", text='''
def carafe_reassemble_x2(float(N,C,H,W) X, float(N,5,5,2*H,2*W) L) -> (Y) {
    M(n, v, w) max=! L(n, i, j, v, w)
    E(n, i, j, v, w) = exp(L(n, i, j, v, w) - M(n, v, w))
    Z(n, v, w) +=! E(n, i, j, v, w)
    Y(n, c, v, w) +=! (v / 2 + i >= 2 && v / 2 + i < H + 2 && w / 2 + j >= 2 && w / 2 + j < W + 2)
        ? E(n, i, j, v, w) / Z(n, v, w) * X(n, c, v / 2 + i - 2, w / 2 + j - 2) : 0.0 where v in 0:2*H, w in 0:2*W
}''', args=lambda g: [rn(g, 2, 24, 19, 23), rn(g, 2, 5, 5, 38, 46)], torch=_carafe, tol=2e-5))


def _morph(X, Se):
    s = Se.flatten()[:, None]
    patches = lambda v: F.unfold(F.pad(X[:, None], (4, 4, 2, 2), value=v), Se.shape, dilation=2)
    return ((patches(-math.inf) + s).amax(1) - (patches(math.inf) - s).amin(1)).view_as(X)


op(dict(name="morph_gradient_additive_d2", text='''
def morph_gradient_additive_d2(float(N,H,W) X, float(3,5) Se) -> (G) {
    D(n, y, x) max=! (y + 2*i >= 2 && y + 2*i < H + 2 && x + 2*j >= 4 && x + 2*j < W + 4) ? X(n, y + 2*i - 2, x + 2*j - 4) + Se(i, j) : -infinity() where y in 0:H, x in 0:W
    E(n, y, x) min=! (y + 2*i >= 2 && y + 2*i < H + 2 && x + 2*j >= 4 && x + 2*j < W + 4) ? X(n, y + 2*i - 2, x + 2*j - 4) - Se(i, j) : infinity() where y in 0:H, x in 0:W
    G(n, y, x) = D(n, y, x) - E(n, y, x)
}''', args=lambda g: [rn(g, 3, 121, 157), rn(g, 3, 5, k=0.3)], torch=_morph, tol=1e-6))


# ---------------------------------------------------------------- shapes and bodies

def _winding(X, Tri):
    a, b, c = (Tri - X[:, None, None]).unbind(2)
    la, lb, lc = (t.norm(dim=-1) for t in (a, b, c))
    det = (a * torch.linalg.cross(b, c)).sum(-1)
    den = la * lb * lc + (a * b).sum(-1) * lc + (b * c).sum(-1) * la + (c * a).sum(-1) * lb
    return torch.atan2(det, den).sum(1) / (2 * math.pi)


op(dict(name="winding_number_mesh_f64", text='''
def winding_number_mesh_f64(double(P,3) X, double(F,3,3) Tri) -> (W) {
    A(p, f, k, d) = Tri(f, k, d) - X(p, d)
    L(p, f, k) +=! A(p, f, k, d) * A(p, f, k, d)
    L(p, f, k) = sqrt(L(p, f, k))
    Dot(p, f, k) +=! A(p, f, k, d) * A(p, f, (k + 1) % 3, d) where k in 0:3
    Det(p, f) +=! A(p, f, 0, d) * (A(p, f, 1, (d + 1) % 3) * A(p, f, 2, (d + 2) % 3) - A(p, f, 1, (d + 2) % 3) * A(p, f, 2, (d + 1) % 3)) where d in 0:3
    Den(p, f) = L(p, f, 0) * L(p, f, 1) * L(p, f, 2) + Dot(p, f, 0) * L(p, f, 2) + Dot(p, f, 1) * L(p, f, 0) + Dot(p, f, 2) * L(p, f, 1)
    W(p) +=! atan2(Det(p, f), Den(p, f)) / 6.283185307179586
}''', args=lambda g: [rn(g, 301, 3, dt=f64), rn(g, 257, 3, 3, dt=f64)], torch=_winding, tol=1e-9))


def _dlb(Dq, Bi, Bw, X):
    g = Dq[Bi.long()]
    s = torch.where((g[:, :1, 0] * g[:, :, 0]).sum(-1) < 0, -Bw, Bw)
    B = torch.einsum("vk,vkrc->vrc", s, g)
    N = B / B[:, :1].norm(dim=-1, keepdim=True)
    (w, q), (we, qe) = ((x[:, :1], x[:, 1:]) for x in N.unbind(1))
    t = 2 * (w * qe - we * q + torch.linalg.cross(q, qe))
    u = 2 * torch.linalg.cross(q, X)
    return X + w * u + torch.linalg.cross(q, u) + t


def _dlb_args(g):
    q = F.normalize(rn(g, 23, 4) + torch.tensor([2.0, 0, 0, 0]), dim=1) * (1 - 2 * ri(g, 0, 2, 23, 1))
    return [torch.stack([q, rn(g, 23, 4, k=0.3)], 1), ri(g, 0, 23, 7001, 4, dt=i32), rn(g, 7001, 4).softmax(1), rn(g, 7001, 3)]


op(dict(name="dual_quaternion_skinning", text='''
def dual_quaternion_skinning(float(J,2,4) Dq, int32(V,4) Bi, float(V,4) Bw, float(V,3) X) -> (Y) {
    Sg(v, k) +=! Dq(Bi(v, 0), 0, c) * Dq(Bi(v, k), 0, c)
    B(v, r, c) +=! (Sg(v, k) < 0.0 ? -Bw(v, k) : Bw(v, k)) * Dq(Bi(v, k), r, c)
    Q(v) +=! B(v, 0, c) * B(v, 0, c)
    N(v, r, c) = B(v, r, c) * rsqrt(Q(v))
    T(v, d) = 2.0 * (N(v, 0, 0) * N(v, 1, 1 + d) - N(v, 1, 0) * N(v, 0, 1 + d)
        + N(v, 0, 1 + (d + 1) % 3) * N(v, 1, 1 + (d + 2) % 3) - N(v, 0, 1 + (d + 2) % 3) * N(v, 1, 1 + (d + 1) % 3)) where d in 0:3
    U(v, d) = 2.0 * (N(v, 0, 1 + (d + 1) % 3) * X(v, (d + 2) % 3) - N(v, 0, 1 + (d + 2) % 3) * X(v, (d + 1) % 3)) where d in 0:3
    Y(v, d) = X(v, d) + N(v, 0, 0) * U(v, d) + N(v, 0, 1 + (d + 1) % 3) * U(v, (d + 2) % 3) - N(v, 0, 1 + (d + 2) % 3) * U(v, (d + 1) % 3) + T(v, d) where d in 0:3
}''', args=_dlb_args, torch=_dlb, tol=1e-4))


# ---------------------------------------------------------------- signals

def _pulse(Rx, Tx, Win):
    a, b = (Tx * Win[:, None]).unbind(1)
    k = torch.stack([torch.stack([a, b]), torch.stack([-b, a])])
    P = F.conv1d(Rx.transpose(1, 2), k).square().sum((0, 1))
    return P, P.max(), P.argmax().int()


op(dict(name="radar_pulse_compress_noncoherent", text='''
def radar_pulse_compress_noncoherent(float(P,N,2) Rx, float(K,2) Tx, float(K) Win) -> (Pw, Peak, At) {
    Re(p, l) +=! Win(k) * (Rx(p, l + k, 0) * Tx(k, 0) + Rx(p, l + k, 1) * Tx(k, 1))
    Im(p, l) +=! Win(k) * (Rx(p, l + k, 1) * Tx(k, 0) - Rx(p, l + k, 0) * Tx(k, 1))
    Pw(l) +=! Re(p, l) * Re(p, l) + Im(p, l) * Im(p, l)
    Peak max=! Pw(l)
    At min=! Pw(l) == Peak ? l : N
}''', args=lambda g: [rn(g, 8, 2003, 2), rn(g, 97, 2), torch.hann_window(97, periodic=False)], torch=_pulse, tol=5e-5))


def _q15(X, Hc):
    a = F.conv1d(X[:, None].double(), Hc[None, None].double())[:, 0]
    return ((a + 16384) / 32768).floor().clamp(-32768, 32767).to(i16)


op(dict(name="q15_fir_saturate", text='''
def q15_fir_saturate(int16(C,N) X, int16(K) Hc) -> (int16(C,N-K+1) Y) {
    A(c, i) +=! int32(X(c, i + k)) * int32(Hc(k))
    Y(c, i) = int16(clamp((A(c, i) + 16384) / 32768, -32768, 32767))
}''', args=lambda g: [ri(g, -32768, 32768, 6, 8009, dt=i16), ri(g, -2000, 2001, 31, dt=i16)], torch=_q15, tol=0.0))


# ---------------------------------------------------------------- graphs and recommenders

def _hodge(X, End, Te, Sg, Wn):
    t, h = End.long().unbind(1)
    dv = torch.zeros(len(Wn), X.shape[1]).index_add(0, h, X).index_add(0, t, X, alpha=-1) * Wn[:, None]
    s, te = Sg.float()[..., None], Te.long()
    cu = s * (s * X[te]).sum(1, keepdim=True)
    return (dv[h] - dv[t]).index_add(0, te.flatten(), cu.flatten(0, 1))


op(dict(name="hodge_edge_laplacian", text='''
def hodge_edge_laplacian(float(E,D) X, int32(E,2) End, int32(T,3) Te, int8(T,3) Sg, float(N) Wn) -> (Y) {
    Dv(End(e, 1), d) +=! X(e, d) where End(e, 1) in 0:N
    Dv(End(e, 0), d) += -X(e, d)
    Dv(n, d) = Wn(n) * Dv(n, d)
    Cu(t, d) +=! Sg(t, k) * X(Te(t, k), d)
    Y(e, d) = Dv(End(e, 1), d) - Dv(End(e, 0), d)
    Y(Te(t, k), d) += Sg(t, k) * Cu(t, d)
}''', args=lambda g: [rn(g, 3001, 24), ri(g, 0, 600, 3001, 2, dt=i32), ri(g, 0, 3001, 1999, 3, dt=i32), 2 * ri(g, 0, 2, 1999, 3, dt=i8) - 1, ru(g, 600)], torch=_hodge, tol=3e-5))


def _node2vec(Nb, W, Ed, p, q):
    t, v = Ed.long().unbind(1)
    nv = Nb[v]
    hit = (nv[:, :, None] == Nb[t][:, None]).any(2)
    bias = torch.where(nv == Ed[:, :1], 1 / p, torch.where(hit, torch.ones_like(q), 1 / q))
    a = (W[v] * bias).masked_fill(nv < 0, 0.0)
    s = a.sum(1, keepdim=True)
    return torch.where(s > 0, a / s, 0.0)


op(dict(name="node2vec_transition_probs", text='''
def node2vec_transition_probs(int32(N,K) Nb, float(N,K) W, int32(E,2) Ed, float p, float q) -> (Pr) {
    Hit(e, k) max=! Nb(Ed(e, 1), k) == Nb(Ed(e, 0), l) ? 1 : 0
    A(e, k) = Nb(Ed(e, 1), k) < 0 ? 0.0 : W(Ed(e, 1), k) * (Nb(Ed(e, 1), k) == Ed(e, 0) ? 1.0 / p : (Hit(e, k) > 0 ? 1.0 : 1.0 / q))
    S(e) +=! A(e, k)
    Pr(e, k) = S(e) > 0.0 ? A(e, k) / S(e) : 0.0
}''', args=lambda g: [ri(g, 0, 500, 500, 19, dt=i32).masked_fill(torch.arange(19) >= ri(g, 0, 20, 500)[:, None], -1), 0.1 + ru(g, 500, 19), ri(g, 0, 500, 2003, 2, dt=i32), of(0.5), of(2.0)], torch=_node2vec, tol=1e-5))


def _ffm(Ix, E, Val, Lin):
    g = E[Ix] * Val[:, :, None, None]
    pair = (g * g.transpose(1, 2)).sum(-1).triu(1).sum((1, 2))
    return torch.sigmoid(pair + (Val * Lin[Ix]).sum(1))


op(dict(name="field_aware_fm", text='''
def field_aware_fm(int64(B,F) Ix, float(V,F,D) E, float(B,F) Val, float(V) Lin) -> (P) {
    S(b) +=! i < j ? Val(b, i) * Val(b, j) * E(Ix(b, i), j, d) * E(Ix(b, j), i, d) : 0.0
    S(b) += Val(b, i) * Lin(Ix(b, i))
    P(b) = sigmoid(S(b))
}''', args=lambda g: [ri(g, 0, 4000, 131, 17), rn(g, 4000, 17, 8, k=0.1), ru(g, 131, 17), rn(g, 4000, k=0.3)], torch=_ffm, tol=2e-5))
