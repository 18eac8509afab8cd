# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Pieces of everyday models, with their residuals, masks and biases, in the sizes of those models; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.networks import bf16, f16, i8, i32, of, ri, rn, ru
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)


# ---------------------------------------------------------------- tiny: one token, one small batch, one layer's weights

def _splitkv(Part, Lse):
    L = torch.logsumexp(Lse, 0)
    return (torch.exp(Lse - L)[..., None] * Part).sum(0).half(), L


op(dict(name="splitkv_merge", text='''
def splitkv_merge(half(S,B,H,D) Part, float(S,B,H) Lse) -> (half(B,H,D) O, L) {
    M(b, h) max=! Lse(s, b, h)
    Z(b, h) +=! exp(Lse(s, b, h) - M(b, h))
    L(b, h) = M(b, h) + log(Z(b, h))
    A(b, h, d) +=! exp(Lse(s, b, h) - L(b, h)) * float(Part(s, b, h, d))
    O(b, h, d) = half(A(b, h, d))
}''', args=lambda g: [rn(g, 7, 1, 8, 64, dt=f16), rn(g, 7, 1, 8, k=2.0)], torch=_splitkv, tol=2e-3))


def _sigrouter(Lg, bias, k, scale):
    s = torch.sigmoid(Lg)
    idx = (s + bias).topk(int(k), 1).indices
    w = s.gather(1, idx)
    w = scale * w / (w.sum(1, keepdim=True) + 1e-20)
    return torch.zeros_like(s).scatter(1, idx, w), torch.bincount(idx.flatten(), minlength=Lg.shape[1]).to(i32)


op(dict(name="deepseek_sigmoid_router", text='''
def deepseek_sigmoid_router(float(T,E) Logit, float(E) Bias, int32 k, float scale) -> (Wt, int32(E) Load) {
    S(t, e) = sigmoid(Logit(t, e))
    C(t, e) = S(t, e) + Bias(e)
    Rank(t, e) +=! (C(t, f) > C(t, e) || (C(t, f) == C(t, e) && f < e)) ? 1 : 0
    Z(t) +=! (Rank(t, e) < k) ? S(t, e) : 0.0
    Wt(t, e) = (Rank(t, e) < k) ? scale * S(t, e) / (Z(t) + 1e-20) : 0.0
    Load(e) +=! (Rank(t, e) < k) ? 1 : 0
}''', args=lambda g: [rn(g, 4, 64), rn(g, 64, k=0.05), of(6, i32), of(2.5)], torch=_sigrouter, tol=1e-5))


def _ddqn(Qn, Qt, Q, Act, Rw, Done, Is):
    y = Rw + 0.99 * Qt.gather(1, Qn.argmax(1, keepdim=True))[:, 0].masked_fill(Done, 0.0)
    q = Q.gather(1, Act[:, None])[:, 0]
    return q - y, (Is * F.huber_loss(q, y, reduction="none")).mean()


op(dict(name="double_dqn_targets", text='''
def double_dqn_targets(float(B,A) Qn, float(B,A) Qt, float(B,A) Q, int64(B) Act, float(B) Rw, bool(B) Done, float(B) Is) -> (Td, Loss) {
    M(b) max=! Qn(b, a)
    Best(b) min=! (Qn(b, a) == M(b)) ? a : A - 1
    Td(b) = Q(b, Act(b)) - (Rw(b) + (Done(b) ? 0.0 : 0.99 * Qt(b, Best(b))))
    Loss +=! Is(b) * ((fabs(Td(b)) <= 1.0) ? 0.5 * Td(b) * Td(b) : fabs(Td(b)) - 0.5) / B
}''', args=lambda g: [rn(g, 32, 6), rn(g, 32, 6), rn(g, 32, 6), ri(g, 0, 6, 32), rn(g, 32), ru(g, 32) < 0.1, ru(g, 32, lo=0.2)], torch=_ddqn, tol=1e-5))


def _sac(Out, Eps):
    mu, ls = Out.chunk(2, 1)
    ls = ls.clamp(-5.0, 2.0)
    u = mu + ls.exp() * Eps
    lp = -0.5 * Eps.square() - ls - 0.5 * math.log(2 * math.pi) - 2 * (math.log(2.0) - u - F.softplus(-2 * u))
    return torch.tanh(u), lp.sum(1)


op(dict(name="sac_squashed_gaussian", text='''
def sac_squashed_gaussian(float(B,2*A) Out, float(B,A) Eps) -> (Act, Logp) {
    Ls(b, a) = clamp(Out(b, a + A), -5.0, 2.0) where a in 0:A
    U(b, a) = Out(b, a) + exp(Ls(b, a)) * Eps(b, a) where a in 0:A
    Act(b, a) = tanh(U(b, a))
    Logp(b) +=! -0.5 * Eps(b, a) * Eps(b, a) - Ls(b, a) - 0.9189385332046727 - 2.0 * (0.6931471805599453 - U(b, a) - log1p(exp(-2.0 * U(b, a))))
}''', args=lambda g: [rn(g, 32, 12), rn(g, 32, 6)], torch=_sac, tol=2e-5))


def _bnfold(K, b, mean, var, gamma, beta):
    s = gamma * torch.rsqrt(var + 1e-5)
    return K * s[:, None, None, None], torch.addcmul(beta, b - mean, s)


op(dict(name="conv_bn_fold", text='''
def conv_bn_fold(float(O,C,3,3) K, float(O) Bias, float(O) Mean, float(O) Var, float(O) Gamma, float(O) Beta) -> (Kf, Bf) {
    S(o) = Gamma(o) * rsqrt(Var(o) + 1e-5)
    Kf(o, c, i, j) = K(o, c, i, j) * S(o)
    Bf(o) = (Bias(o) - Mean(o)) * S(o) + Beta(o)
}''', args=lambda g: [rn(g, 24, 16, 3, 3), rn(g, 24), rn(g, 24), ru(g, 24, lo=0.5, hi=1.5), rn(g, 24), rn(g, 24)], torch=_bnfold, tol=2e-6))


op(dict(name="dit_modulation_row", text='''
def dit_modulation_row(float(D) Cond, float(6,O,D) W, float(6,O) Bias) -> (M) {
    S(d) = Cond(d) * sigmoid(Cond(d))
    M(k, o) +=! W(k, o, d) * S(d)
    M(k, o) = M(k, o) + Bias(k, o)
}''', args=lambda g: [rn(g, 64), rn(g, 6, 48, 64, k=0.1), rn(g, 6, 48)],
    torch=lambda c, W, b: F.linear(F.silu(c), W.flatten(0, 1), b.flatten()).view(6, -1), tol=2e-5))


# ---------------------------------------------------------------- blocks of language models

def _w8(X, W, S):
    g, u = (F.linear(X, W.flatten(0, 1).to(X.dtype)) * S.flatten()).chunk(2, 1)
    return F.silu(g) * u


op(dict(name="w8_gate_up_gemv_bf16", text='''
def w8_gate_up_gemv_bf16(bfloat16(1,I) X, int8(2,O,I) W, bfloat16(2,O) Scale) -> (bfloat16(1,O) Y) {
    Z(n, k, o) +=! X(n, i) * W(k, o, i)
    Y(n, o) = gate * sigmoid(gate) * (Z(n, 1, o) * Scale(1, o)) where gate = Z(n, 0, o) * Scale(0, o)
}''', args=lambda g: [rn(g, 1, 2048, dt=bf16), ri(g, -127, 128, 2, 4096, 2048, dt=i8), ru(g, 2, 4096, lo=2e-4, hi=5e-4, dt=bf16)], torch=_w8, tol=2e-2))


def _mlp(X, gain, Wgu, Wd):
    g, u = F.linear(F.rms_norm(X, X.shape[1:], gain, 1e-5), Wgu).chunk(2, 1)
    return X + F.linear(F.silu(g) * u, Wd)


op(dict(name="mistral_mlp_residual_bf16", text='''
def mistral_mlp_residual_bf16(bfloat16(T,D) X, bfloat16(D) Gain, bfloat16(2*F,D) Wgu, bfloat16(D,F) Wd) -> (bfloat16(T,D) Y) {
    S(t) +=! float(X(t, d)) * float(X(t, d)) / D
    H(t, d) = bfloat16(float(X(t, d)) * rsqrt(S(t) + 1e-5)) * Gain(d)
    G(t, f) +=! H(t, d) * Wgu(f, d) where f in 0:F
    U(t, f) +=! H(t, d) * Wgu(F + f, d) where f in 0:F
    A(t, f) = G(t, f) * sigmoid(G(t, f)) * U(t, f)
    Y(t, d) +=! A(t, f) * Wd(d, f)
    Y(t, d) = X(t, d) + Y(t, d)
}''', args=lambda g: [rn(g, 5, 1024, dt=bf16), ru(g, 1024, lo=0.5, hi=1.5, dt=bf16), rn(g, 5632, 1024, dt=bf16, k=0.03), rn(g, 1024, 2816, dt=bf16, k=0.02)], torch=_mlp, tol=2e-2))


def _qwen(X, Bq, Bk, Bv, Cos, Sin):
    q, k, v = X.transpose(1, 2).split([Bq.shape[0], Bk.shape[0], Bv.shape[0]], 1)

    def turned(x, bias):
        a, b = (x + bias[:, None]).chunk(2, -1)
        return torch.cat([a * Cos - b * Sin, b * Cos + a * Sin], -1)

    return turned(q, Bq), turned(k, Bk), v + Bv[:, None]


op(dict(name="qwen_qkv_bias_rope_split", text='''
def qwen_qkv_bias_rope_split(float(B,T,H+2*G,2*R) X, float(H,2*R) Bq, float(G,2*R) Bk, float(G,2*R) Bv, float(T,R) Cos, float(T,R) Sin) -> (Q, K, V) {
    Q(b, h, t, d) = (d < R) ? (X(b, t, h, d) + Bq(h, d)) * Cos(t, d) - (X(b, t, h, d + R) + Bq(h, d + R)) * Sin(t, d)
                            : (X(b, t, h, d) + Bq(h, d)) * Cos(t, d - R) + (X(b, t, h, d - R) + Bq(h, d - R)) * Sin(t, d - R)
        where b in 0:B, h in 0:H, t in 0:T, d in 0:2*R
    K(b, g, t, d) = (d < R) ? (X(b, t, H + g, d) + Bk(g, d)) * Cos(t, d) - (X(b, t, H + g, d + R) + Bk(g, d + R)) * Sin(t, d)
                            : (X(b, t, H + g, d) + Bk(g, d)) * Cos(t, d - R) + (X(b, t, H + g, d - R) + Bk(g, d - R)) * Sin(t, d - R)
        where b in 0:B, g in 0:G, t in 0:T, d in 0:2*R
    V(b, g, t, d) = X(b, t, H + G + g, d) + Bv(g, d) where g in 0:G
}''', args=lambda g: [rn(g, 2, 377, 18, 64), rn(g, 14, 64), rn(g, 2, 64), rn(g, 2, 64), ru(g, 377, 32, lo=-1), ru(g, 377, 32, lo=-1)], torch=_qwen, tol=1e-5))


def _flce(H, W, Y):
    L = 30 * torch.tanh(F.linear(H, W) / 30)
    ok = Y != -100
    return F.cross_entropy(L, Y, ignore_index=-100), 1e-4 * torch.logsumexp(L, 1)[ok].square().mean(), ok.sum(dtype=i32)


op(dict(name="gemma_linear_softcap_ce", text='''
def gemma_linear_softcap_ce(float(T,D) H, float(V,D) W, int64(T) Y) -> (Loss, Zloss, int32 Valid) {
    L(t, v) +=! H(t, d) * W(v, d)
    L(t, v) = 30.0 * tanh(L(t, v) / 30.0)
    M(t) max=! L(t, v)
    S(t) +=! exp(L(t, v) - M(t))
    Lse(t) = M(t) + log(S(t))
    Valid +=! (Y(t) >= 0) ? 1 : 0
    Loss +=! (Y(t) >= 0) ? Lse(t) - L(t, Y(t)) : 0.0
    Loss = Loss / float(Valid)
    Zloss +=! (Y(t) >= 0) ? Lse(t) * Lse(t) : 0.0
    Zloss = 1e-4 * Zloss / float(Valid)
}''', args=lambda g: [rn(g, 150, 256), rn(g, 6001, 256, k=0.1), torch.where(ru(g, 150) < 0.2, -100, ri(g, 0, 6001, 150))], torch=_flce, tol=5e-5))


def _gqapre(Q, K, V, Start):
    B, T, G, R, _ = Q.shape
    i, j = torch.arange(T)[:, None], torch.arange(T)
    m = (i == j) | ((j < i) & (i - j < 64) & (j >= Start[:, None, None]))
    k, v = (x.repeat_interleave(R, 2).transpose(1, 2) for x in (K, V))
    return F.scaled_dot_product_attention(Q.flatten(2, 3).transpose(1, 2), k, v, attn_mask=m[:, None]).transpose(1, 2).unflatten(2, (G, R))


op(dict(name="gqa_prefill_leftpad_window", text='''
def gqa_prefill_leftpad_window(float(B,T,G,R,D) Q, float(B,T,G,D) K, float(B,T,G,D) V, int64(B) Start) -> (O) {
    S(b, g, r, i, j) +=! Q(b, i, g, r, d) * K(b, j, g, d)
    S(b, g, r, i, j) = (i == j || (j < i && i - j < 64 && j >= Start(b))) ? S(b, g, r, i, j) / sqrt(float(D)) : -infinity()
    M(b, g, r, i) max=! S(b, g, r, i, j)
    P(b, g, r, i, j) = exp(S(b, g, r, i, j) - M(b, g, r, i))
    Z(b, g, r, i) +=! P(b, g, r, i, j)
    O(b, i, g, r, d) +=! P(b, g, r, i, j) / Z(b, g, r, i) * V(b, j, g, d)
}''', args=lambda g: [rn(g, 2, 161, 2, 4, 64), rn(g, 2, 161, 2, 64), rn(g, 2, 161, 2, 64), torch.tensor([0, 37])], torch=_gqapre, tol=3e-5))


def _megatron(A, Mask, Keep):
    P = torch.softmax((A * 0.125).masked_fill(Mask[:, None], -10000.0), -1)
    return P, P * Keep / 0.9


op(dict(name="masked_softmax_dropout_half", text='''
def masked_softmax_dropout_half(half(B,H,T,S) A, bool(B,T,S) Mask, bool(B,H,T,S) Keep) -> (half(B,H,T,S) P, half(B,H,T,S) Y) {
    L(b, h, t, s) = Mask(b, t, s) ? -10000.0 : 0.125 * float(A(b, h, t, s))
    M(b, h, t) max=! L(b, h, t, s)
    Z(b, h, t) +=! exp(L(b, h, t, s) - M(b, h, t))
    P(b, h, t, s) = exp(L(b, h, t, s) - M(b, h, t)) / Z(b, h, t)
    Y(b, h, t, s) = Keep(b, h, t, s) ? P(b, h, t, s) / 0.9 : 0.0
}''', args=lambda g: [rn(g, 2, 8, 384, 384, dt=f16, k=8.0), (torch.arange(384) > torch.arange(384)[:, None]) | (ru(g, 2, 384, 384) < 0.05), ru(g, 2, 8, 384, 384) < 0.9], torch=_megatron, tol=3e-3))


def _bertln(X, bias, Keep, Res, gain, beta):
    h = Res.float() + (X + bias).float() * Keep / 0.9
    y, m, r = torch.native_layer_norm(h, (h.shape[-1],), gain, beta, 1e-12)
    return y.bfloat16(), m[..., 0], r[..., 0]


op(dict(name="bert_dropout_residual_layernorm", text='''
def bert_dropout_residual_layernorm(bfloat16(B,T,D) X, bfloat16(D) Bias, bool(B,T,D) Keep, bfloat16(B,T,D) Res, float(D) Gain, float(D) Beta)
    -> (bfloat16(B,T,D) Y, Mean, Rstd) {
    H(b, t, d) = float(Res(b, t, d)) + (Keep(b, t, d) ? (float(X(b, t, d)) + float(Bias(d))) / 0.9 : 0.0)
    Mean(b, t) +=! H(b, t, d) / D
    Var(b, t) +=! (H(b, t, d) - Mean(b, t)) * (H(b, t, d) - Mean(b, t)) / D
    Rstd(b, t) = rsqrt(Var(b, t) + 1e-12)
    Y(b, t, d) = (H(b, t, d) - Mean(b, t)) * Rstd(b, t) * Gain(d) + Beta(d)
}''', args=lambda g: [rn(g, 6, 128, 512, dt=bf16), rn(g, 512, dt=bf16), ru(g, 6, 128, 512) < 0.9, rn(g, 6, 128, 512, dt=bf16), rn(g, 512), rn(g, 512)], torch=_bertln, tol=2e-2))


def _rmsback(Dy, X, gain, rstd, Dres):
    g, xh = Dy * gain, X * rstd[:, None]
    return Dres + rstd[:, None] * (g - xh * (g * xh).mean(1, keepdim=True)), (Dy * xh).sum(0)


def a_rmsback(g):
    X = rn(g, 1111, 768)
    return [rn(g, 1111, 768), X, ru(g, 768, lo=0.5, hi=1.5), torch.rsqrt(X.square().mean(1) + 1e-6), rn(g, 1111, 768)]


op(dict(name="rms_norm_backward_residual", text='''
def rms_norm_backward_residual(float(N,D) Dy, float(N,D) X, float(D) Gain, float(N) Rstd, float(N,D) Dres) -> (Dx, Dg) {
    C(n) +=! Dy(n, d) * Gain(d) * X(n, d) / D
    Dx(n, d) = Dres(n, d) + Rstd(n) * (Dy(n, d) * Gain(d) - X(n, d) * Rstd(n) * Rstd(n) * C(n))
    Dg(d) +=! Dy(n, d) * X(n, d) * Rstd(n)
}''', args=a_rmsback, torch=_rmsback, tol=2e-5))


# ---------------------------------------------------------------- state spaces, mixtures of experts

def _mambaconv(X, K, bias):
    z = F.conv1d(X.transpose(1, 2), K[:, None], bias, padding=3, groups=X.shape[2])[..., : X.shape[1]]
    return F.silu(z).transpose(1, 2), X[:, -3:].transpose(1, 2)


op(dict(name="mamba_causal_conv_prefill", text='''
def mamba_causal_conv_prefill(float(B,L,D) X, float(D,4) K, float(D) Bias) -> (Y, St) {
    A(b, l, d) +=! (l + k >= 3) ? X(b, l + k - 3, d) * K(d, k) : 0.0 where l in 0:L
    Y(b, l, d) = z * sigmoid(z) where z = A(b, l, d) + Bias(d)
    St(b, d, k) = X(b, L - 3 + k, d) where k in 0:3
}''', args=lambda g: [rn(g, 2, 333, 1536)[..., :768], rn(g, 768, 4, k=0.5), rn(g, 768)], torch=_mambaconv, tol=1e-5))


def _top2(X, W):
    p = torch.softmax(X @ W.T, 1)
    v, i = p.topk(2, 1)
    n = torch.bincount(i.flatten(), minlength=W.shape[0])
    return v / v.sum(1, keepdim=True), i, n.to(i32), W.shape[0] * (n / X.shape[0] * p.mean(0)).sum()


op(dict(name="mixtral_top2_router", text='''
def mixtral_top2_router(float(T,D) X, float(E,D) W) -> (Wt, int64(T,2) Idx, int32(E) Count, Aux) {
    L(t, e) +=! X(t, d) * W(e, d)
    M1(t) max=! L(t, e)
    I1(t) min=! (L(t, e) == M1(t)) ? e : E
    M2(t) max=! (e != I1(t)) ? L(t, e) : -infinity()
    I2(t) min=! (e != I1(t) && L(t, e) == M2(t)) ? e : E
    Z(t) +=! exp(L(t, e) - M1(t))
    Wt(t, k) = ((k == 0) ? 1.0 : exp(M2(t) - M1(t))) / (1.0 + exp(M2(t) - M1(t))) where k in 0:2
    Idx(t, k) = int64((k == 0) ? I1(t) : I2(t)) where k in 0:2
    Count(e) +=! (I1(t) == e || I2(t) == e) ? 1 : 0 where e in 0:E
    Pm(e) +=! exp(L(t, e) - M1(t)) / Z(t) / T
    Aux +=! E * float(Count(e)) / T * Pm(e)
}''', args=lambda g: [rn(g, 777, 192), rn(g, 8, 192, k=0.08)], torch=_top2, tol=2e-5))


# ---------------------------------------------------------------- vision

def _patches(X, K, b, cls, Pos):
    z = F.conv2d(X, K, b, stride=16).flatten(2).transpose(1, 2)
    return torch.cat([cls.expand(X.shape[0], 1, -1), z], 1) + Pos


op(dict(name="vit_patch_embed_cls_pos", text='''
def vit_patch_embed_cls_pos(float(N,C,H,W) X, float(O,C,16,16) K, float(O) Bias, float(O) Cls, float(T,O) Pos) -> (Y) {
    Z(n, y, x, o) +=! X(n, c, 16*y + i, 16*x + j) * K(o, c, i, j)
    Y(n, t, o) = ((t > 0) ? Z(n, (t - 1) / (W / 16), (t - 1) % (W / 16), o) + Bias(o) : Cls(o)) + Pos(t, o) where n in 0:N, t in 0:T
}''', args=lambda g: [rn(g, 3, 3, 160, 192), rn(g, 384, 3, 16, 16, k=0.04), rn(g, 384), rn(g, 384), rn(g, 121, 384)], torch=_patches, tol=2e-5))


def _mbtail(X, Gate, P, s, b, Keep, Res):
    z = F.conv2d(X * torch.sigmoid(Gate)[:, :, None, None], P[:, :, None, None])
    return Res + torch.addcmul(b[:, None, None], z, s[:, None, None]) * (Keep / 0.8)[:, None, None, None]


op(dict(name="mbconv_project_droppath", text='''
def mbconv_project_droppath(float(N,E,H,W) X, float(N,E) Gate, float(O,E) P, float(O) Scale, float(O) Shift, bool(N) Keep, float(N,O,H,W) Res) -> (Y) {
    Z(n, o, h, w) +=! X(n, e, h, w) * sigmoid(Gate(n, e)) * P(o, e)
    Y(n, o, h, w) = Res(n, o, h, w) + (Keep(n) ? (Z(n, o, h, w) * Scale(o) + Shift(o)) / 0.8 : 0.0)
}''', args=lambda g: [rn(g, 5, 240, 28, 28), rn(g, 5, 240), rn(g, 40, 240, k=0.1), ru(g, 40, lo=0.5, hi=1.5), rn(g, 40), torch.tensor([True, False, True, True, True]), rn(g, 5, 40, 28, 28)],
    torch=_mbtail, tol=2e-5))


def _cnmlp(X, D, gain, beta, W1, b1, W2, b2, gamma):
    z = F.layer_norm(D, D.shape[3:], gain, beta, 1e-6)
    return X + gamma * F.linear(F.gelu(F.linear(z, W1, b1)), W2, b2)


op(dict(name="convnext_mlp_layerscale", text='''
def convnext_mlp_layerscale(float(N,H,W,C) X, float(N,H,W,C) D, float(C) Gain, float(C) Beta, float(E,C) W1, float(E) B1, float(C,E) W2, float(C) B2, float(C) Gamma) -> (Y) {
    Mu(n, h, w) +=! D(n, h, w, c) / C
    Var(n, h, w) +=! (D(n, h, w, c) - Mu(n, h, w)) * (D(n, h, w, c) - Mu(n, h, w)) / C
    L(n, h, w, c) = (D(n, h, w, c) - Mu(n, h, w)) * rsqrt(Var(n, h, w) + 1e-6) * Gain(c) + Beta(c)
    A(n, h, w, e) +=! L(n, h, w, c) * W1(e, c)
    G(n, h, w, e) = 0.5 * a * (1.0 + erf(a * 0.7071067811865476)) where a = A(n, h, w, e) + B1(e)
    Y(n, h, w, c) +=! G(n, h, w, e) * W2(c, e)
    Y(n, h, w, c) = X(n, h, w, c) + Gamma(c) * (Y(n, h, w, c) + B2(c))
}''', args=lambda g: [rn(g, 3, 28, 28, 192), rn(g, 3, 28, 28, 192), rn(g, 192), rn(g, 192), rn(g, 768, 192, k=0.07), rn(g, 768), rn(g, 192, 768, k=0.04), rn(g, 192), rn(g, 192, k=0.3)],
    torch=_cnmlp, tol=2e-5))


def _dw5(X, K, s, b):
    z = F.conv2d(X, K[:, None], stride=2, padding=2, groups=X.shape[1])
    y = F.hardswish(torch.addcmul(b[:, None, None], z, s[:, None, None]))
    return y, y.mean((2, 3))


op(dict(name="mobilenetv3_dw5_hswish_pool", text='''
def mobilenetv3_dw5_hswish_pool(float(N,C,H,W) X, float(C,5,5) K, float(C) Scale, float(C) Shift) -> (Y, Pool) {
    Z(n, c, y, x) +=! (2*y + i >= 2 && 2*y + i < H + 2 && 2*x + j >= 2 && 2*x + j < W + 2) ? X(n, c, 2*y + i - 2, 2*x + j - 2) * K(c, i, j) : 0.0
        where y in 0:(H+1)/2, x in 0:(W+1)/2
    Y(n, c, y, x) = z * clamp(z + 3.0, 0.0, 6.0) / 6.0 where z = Z(n, c, y, x) * Scale(c) + Shift(c)
    Pool(n, c) +=! Y(n, c, y, x) / float(((H + 1) / 2) * ((W + 1) / 2))
}''', args=lambda g: [rn(g, 4, 72, 55, 56), rn(g, 72, 5, 5, k=0.2), ru(g, 72, lo=0.5, hi=1.5), rn(g, 72)], torch=_dw5, tol=2e-5))


def _sdres(X, gamma, beta, K, b, Temb):
    a = F.silu(F.group_norm(X.flatten(1, 2), X.shape[1], gamma.flatten(), beta.flatten(), 1e-5))
    return F.conv2d(a, K.flatten(1, 2), b, padding=1) + Temb[:, :, None, None]


op(dict(name="unet_gn_silu_conv_temb", text='''
def unet_gn_silu_conv_temb(float(N,G,C,H,W) X, float(G,C) Gamma, float(G,C) Beta, float(O,G,C,3,3) K, float(O) Bias, float(N,O) Temb) -> (Y) {
    Mu(n, g) +=! X(n, g, c, y, x) / float(C * H * W)
    Var(n, g) +=! (X(n, g, c, y, x) - Mu(n, g)) * (X(n, g, c, y, x) - Mu(n, g)) / float(C * H * W)
    A(n, g, c, y, x) = z * sigmoid(z) where z = (X(n, g, c, y, x) - Mu(n, g)) * rsqrt(Var(n, g) + 1e-5) * Gamma(g, c) + Beta(g, c)
    Y(n, o, y, x) +=! (y + i >= 1 && y + i <= H && x + j >= 1 && x + j <= W) ? A(n, g, c, y + i - 1, x + j - 1) * K(o, g, c, i, j) : 0.0 where y in 0:H, x in 0:W
    Y(n, o, y, x) = Y(n, o, y, x) + Bias(o) + Temb(n, o)
}''', args=lambda g: [rn(g, 2, 32, 4, 48, 48) + 0.2, rn(g, 32, 4), rn(g, 32, 4), rn(g, 160, 32, 4, 3, 3, k=0.03), rn(g, 160), rn(g, 2, 160)], torch=_sdres, tol=3e-5))


# ---------------------------------------------------------------- speech

def _whisperstem(X, K1, b1, K2, b2, Pos):
    a = F.gelu(F.conv1d(X, K1, b1, padding=1))
    z = F.gelu(F.conv1d(a, K2, b2, stride=2, padding=1)).transpose(1, 2)
    return z + Pos[: z.shape[1]]


op(dict(name="whisper_conv_stem", text='''
def whisper_conv_stem(float(N,M,T) X, float(C,M,3) K1, float(C) B1, float(O,C,3) K2, float(O) B2, float(P,O) Pos) -> (Y) {
    A(n, c, t) +=! (t + k >= 1 && t + k <= T) ? X(n, m, t + k - 1) * K1(c, m, k) : 0.0 where t in 0:T
    A(n, c, t) = 0.5 * z * (1.0 + erf(z * 0.7071067811865476)) where z = A(n, c, t) + B1(c)
    Z(n, t, o) +=! (2*t + k >= 1 && 2*t + k <= T) ? A(n, c, 2*t + k - 1) * K2(o, c, k) : 0.0 where t in 0:(T+1)/2
    Y(n, t, o) = 0.5 * z * (1.0 + erf(z * 0.7071067811865476)) + Pos(t, o) where z = Z(n, t, o) + B2(o), t in 0:(T+1)/2
}''', args=lambda g: [rn(g, 2, 80, 299), rn(g, 256, 80, 3, k=0.06), rn(g, 256), rn(g, 256, 256, 3, k=0.05), rn(g, 256), rn(g, 200, 256)], torch=_whisperstem, tol=2e-5))


op(dict(name="wav2vec_conv_instnorm_gelu", text='''
def wav2vec_conv_instnorm_gelu(float(N,L) X, float(C,10) K, float(C) Gain, float(C) Beta) -> (Y) {
    Z(n, c, t) +=! X(n, 5*t + k) * K(c, k)
    Mu(n, c) +=! Z(n, c, t) / float((L - 10) / 5 + 1)
    Var(n, c) +=! (Z(n, c, t) - Mu(n, c)) * (Z(n, c, t) - Mu(n, c)) / float((L - 10) / 5 + 1)
    Y(n, c, t) = 0.5 * z * (1.0 + erf(z * 0.7071067811865476)) where z = (Z(n, c, t) - Mu(n, c)) * rsqrt(Var(n, c) + 1e-5) * Gain(c) + Beta(c)
}''', args=lambda g: [rn(g, 2, 16000), rn(g, 512, 10, k=0.3), rn(g, 512), rn(g, 512)],
    torch=lambda X, K, w, b: F.gelu(F.group_norm(F.conv1d(X[:, None], K[:, None], stride=5), K.shape[0], w, b, 1e-5)), tol=3e-5))


def _posconv(X, K, b):
    G, KW = K.shape[0], K.shape[3]
    z = F.conv1d(X.flatten(2).transpose(1, 2), K.flatten(0, 1), b.flatten(), padding=KW // 2, groups=G)[..., :-1]
    return X + F.gelu(z).transpose(1, 2).unflatten(2, (G, -1))


op(dict(name="wav2vec_positional_conv", text='''
def wav2vec_positional_conv(float(N,T,G,C) X, float(G,C,C,KW) K, float(G,C) Bias) -> (Y) {
    Z(n, t, g, o) +=! (t + k >= KW/2 && t + k < T + KW/2) ? X(n, t + k - KW/2, g, c) * K(g, o, c, k) : 0.0 where t in 0:T
    Y(n, t, g, o) = X(n, t, g, o) + 0.5 * z * (1.0 + erf(z * 0.7071067811865476)) where z = Z(n, t, g, o) + Bias(g, o)
}''', args=lambda g: [rn(g, 1, 149, 16, 48), rn(g, 16, 48, 48, 128, k=0.013), rn(g, 16, 48)], torch=_posconv, tol=5e-5))


# ---------------------------------------------------------------- recommenders, graphs, points, rays

def _bags(T, Idx, Len):
    Fs, V, _ = T.shape
    B, _, L = Idx.shape
    w = (torch.arange(L) < Len[..., None]) / Len.clamp_min(1)[..., None]
    at = (Idx + V * torch.arange(Fs)[:, None]).view(-1, L)
    return F.embedding_bag(at, T.flatten(0, 1), mode="sum", per_sample_weights=w.to(T.dtype).view(-1, L)).view(B, Fs, -1)


op(dict(name="multi_table_bag_mean_half", text='''
def multi_table_bag_mean_half(half(F,V,D) Table, int32(B,F,L) Idx, int32(B,F) Len) -> (half(B,F,D) Y) {
    S(b, f, d) +=! (l < Len(b, f)) ? float(Table(f, Idx(b, f, l), d)) : 0.0
    Y(b, f, d) = half(S(b, f, d) / float(max(Len(b, f), 1)))
}''', args=lambda g: [rn(g, 13, 1500, 32, dt=f16), ri(g, 0, 1500, 333, 13, 10, dt=i32), ri(g, 0, 11, 333, 13, dt=i32)], torch=_bags, tol=3e-3))


def _gine(X, Attr, We, Edge, eps, W, b):
    m = F.relu(torch.addmm(X[Edge[0]], Attr, We))
    return F.relu(F.linear(((1 + eps) * X).index_add(0, Edge[1], m), W, b))


op(dict(name="gine_edge_linear", text='''
def gine_edge_linear(float(N,D) X, float(E,A) Attr, float(A,D) We, int64(2,E) Edge, float eps, float(O,D) W, float(O) Bias) -> (Y) {
    M(e, d) +=! Attr(e, a) * We(a, d)
    M(e, d) = relu(M(e, d) + X(Edge(0, e), d))
    Z(n, d) = (1.0 + eps) * X(n, d)
    Z(Edge(1, e), d) += M(e, d)
    Y(n, o) +=! Z(n, d) * W(o, d)
    Y(n, o) = relu(Y(n, o) + Bias(o))
}''', args=lambda g: [rn(g, 900, 64), rn(g, 6001, 7), rn(g, 7, 64, k=0.4), ri(g, 0, 900, 2, 6001), of(0.25), rn(g, 64, 64, k=0.1), rn(g, 64)], torch=_gine, tol=2e-5))


def _pointnet(P, T, W1, b1, W2, b2):
    a = F.relu(F.conv1d(torch.bmm(T.transpose(1, 2), P), W1[:, :, None], b1))
    return F.relu(F.conv1d(a, W2[:, :, None], b2)).amax(2)


op(dict(name="pointnet_tnet_mlp_max", text='''
def pointnet_tnet_mlp_max(float(B,3,N) P, float(B,3,3) T, float(C,3) W1, float(C) B1, float(O,C) W2, float(O) B2) -> (G) {
    Q(b, i, n) +=! T(b, j, i) * P(b, j, n)
    A(b, c, n) +=! W1(c, i) * Q(b, i, n)
    A(b, c, n) = relu(A(b, c, n) + B1(c))
    H(b, o, n) +=! W2(o, c) * A(b, c, n)
    G(b, o) max=! relu(H(b, o, n) + B2(o))
}''', args=lambda g: [rn(g, 6, 3, 700), rn(g, 6, 3, 3), rn(g, 64, 3, k=0.5), rn(g, 64), rn(g, 256, 64, k=0.15), rn(g, 256)], torch=_pointnet, tol=2e-5))


def _contract(O, D, T):
    p = O[:, None] + (0.5 * (T[:, :-1] + T[:, 1:]))[..., None] * D[:, None]
    n = p.norm(dim=-1, keepdim=True)
    return torch.where(n <= 1, p, (2 - 1 / n) * p / n), T.diff(dim=1) * D.norm(dim=1, keepdim=True)


op(dict(name="mipnerf_contract_points", text='''
def mipnerf_contract_points(float(R,3) O, float(R,3) D, float(R,K) T) -> (X, Dt) {
    Pt(r, s, c) = O(r, c) + 0.5 * (T(r, s) + T(r, s + 1)) * D(r, c) where s in 0:K-1
    N2(r, s) +=! Pt(r, s, c) * Pt(r, s, c)
    X(r, s, c) = (N2(r, s) <= 1.0) ? Pt(r, s, c) : (2.0 - rsqrt(N2(r, s))) * rsqrt(N2(r, s)) * Pt(r, s, c)
    Nd(r) +=! D(r, c) * D(r, c)
    Dt(r, s) = (T(r, s + 1) - T(r, s)) * sqrt(Nd(r)) where s in 0:K-1
}''', args=lambda g: [rn(g, 1024, 3, k=0.3), rn(g, 1024, 3), ru(g, 1024, 65, lo=0.01, hi=0.1).cumsum(1)], torch=_contract, tol=1e-5))


# ---------------------------------------------------------------- losses

def _ppo(Lg, Act, Old, Adv, V, Vo, R):
    lp = F.log_softmax(Lg, 1)
    lr = lp.gather(1, Act[:, None])[:, 0] - Old
    r = lr.exp()
    a = (Adv - Adv.mean()) / (Adv.std() + 1e-8)
    pg = torch.maximum(-a * r, -a * r.clamp(0.8, 1.2)).mean()
    vf = 0.5 * torch.maximum((V - R).square(), (Vo + (V - Vo).clamp(-0.2, 0.2) - R).square()).mean()
    return pg, vf, -(lp.exp() * lp).sum(1).mean(), (r - 1 - lr).mean(), ((r - 1).abs() > 0.2).float().mean()


def a_ppo(g):
    lg, act, v = rn(g, 2048, 18), ri(g, 0, 18, 2048), rn(g, 2048)
    return [lg, act, F.log_softmax(lg, 1).gather(1, act[:, None])[:, 0] + rn(g, 2048, k=0.25), rn(g, 2048) + 0.3, v, v + rn(g, 2048, k=0.3), v + rn(g, 2048)]


op(dict(name="ppo_clipped_losses", text='''
def ppo_clipped_losses(float(B,A) Logit, int64(B) Act, float(B) OldLp, float(B) Adv, float(B) Val, float(B) OldVal, float(B) Ret) -> (Pg, Vf, Ent, Kl, Frac) {
    M(b) max=! Logit(b, a)
    Z(b) +=! exp(Logit(b, a) - M(b))
    Lp(b, a) = Logit(b, a) - M(b) - log(Z(b))
    Lr(b) = Lp(b, Act(b)) - OldLp(b)
    Mean +=! Adv(b) / B
    Var +=! (Adv(b) - Mean) * (Adv(b) - Mean) / (B - 1)
    Pg +=! max(-z * exp(Lr(b)), -z * clamp(exp(Lr(b)), 0.8, 1.2)) / B where z = (Adv(b) - Mean) / (sqrt(Var) + 1e-8)
    Vf +=! 0.5 * max(u * u, v * v) / B where u = Val(b) - Ret(b), v = OldVal(b) + clamp(Val(b) - OldVal(b), -0.2, 0.2) - Ret(b)
    Ent +=! -exp(Lp(b, a)) * Lp(b, a) / B
    Kl +=! (exp(Lr(b)) - 1.0 - Lr(b)) / B
    Frac +=! ((fabs(exp(Lr(b)) - 1.0) > 0.2) ? 1.0 : 0.0) / B
}''', args=a_ppo, torch=_ppo, tol=1e-4))


def _clip(I, T, scale):
    L = torch.exp(scale) * F.normalize(I, dim=1) @ F.normalize(T, dim=1).T
    at = torch.arange(L.shape[0])
    return 0.5 * (F.cross_entropy(L, at) + F.cross_entropy(L.T, at)), (L.argmax(1) == at).sum(dtype=i32)


def a_clip(g):
    I = rn(g, 321, 256)
    return [I, I + rn(g, 321, 256, k=4.0), of(2.5)]


op(dict(name="clip_symmetric_loss", text='''
def clip_symmetric_loss(float(N,D) I, float(N,D) T, float scale) -> (Loss, int32 Hit) {
    Ni(n) +=! I(n, d) * I(n, d)
    Nt(m) +=! T(m, d) * T(m, d)
    S(n, m) +=! I(n, d) * T(m, d)
    S(n, m) = exp(scale) * S(n, m) * rsqrt(Ni(n)) * rsqrt(Nt(m))
    Mr(n) max=! S(n, m)
    Zr(n) +=! exp(S(n, m) - Mr(n))
    Mc(m) max=! S(n, m)
    Zc(m) +=! exp(S(n, m) - Mc(m))
    Loss +=! 0.5 * (Mr(n) + log(Zr(n)) + Mc(n) + log(Zc(n)) - 2.0 * S(n, n)) / N
    Hit +=! (S(n, n) == Mr(n)) ? 1 : 0
}''', args=a_clip, torch=_clip, tol=2e-5))
