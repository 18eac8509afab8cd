# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""State spaces, linear attention and mixtures of experts; as in ``networks``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.networks import bf16, i32, of, rn, ru
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)


# ---------------------------------------------------------------- state spaces and linear attention

def _gdelta(S, Q, K, V, A, Be):
    u = torch.einsum("bhd,bhde->bhe", K, S)
    Sn = A[..., None, None] * S + (Be[..., None] * K)[..., None] * (V - A[..., None] * u)[..., None, :]
    return torch.einsum("bhd,bhde->bhe", Q, Sn), Sn


op(dict(name="gated_delta_step", text='''
def gated_delta_step(float(B,H,D,E) S, float(B,H,D) Q, float(B,H,D) K, float(B,H,E) V, float(B,H) A, float(B,H) Beta) -> (O, Sn) {
    U(b, h, e) +=! K(b, h, d) * S(b, h, d, e)
    Sn(b, h, d, e) = A(b, h) * S(b, h, d, e) + Beta(b, h) * K(b, h, d) * (V(b, h, e) - A(b, h) * U(b, h, e))
    O(b, h, e) +=! Q(b, h, d) * Sn(b, h, d, e)
}''', args=lambda g: [rn(g, 4, 8, 64, 96), rn(g, 4, 8, 64), F.normalize(rn(g, 4, 8, 64), dim=-1), rn(g, 4, 8, 96), ru(g, 4, 8), ru(g, 4, 8)], torch=_gdelta, tol=2e-5))


def _mlstm(C, N, M, Q, K, V, ig, fg):
    lf = F.logsigmoid(fg) + M
    m = torch.maximum(lf, ig)
    f, i = torch.exp(lf - m)[..., None], torch.exp(ig - m)[..., None]
    Cn = f[..., None] * C + i[..., None] * V[..., None] * K[..., None, :]
    Nn = f * N + i * K
    den = torch.maximum((Nn * Q).sum(-1).abs(), torch.exp(-m))
    return (Cn @ Q[..., None])[..., 0] / den[..., None], Cn, Nn, m


op(dict(name="mlstm_step", text='''
def mlstm_step(float(B,H,D,D) C, float(B,H,D) N, float(B,H) M, float(B,H,D) Q, float(B,H,D) K, float(B,H,D) V, float(B,H) Ig, float(B,H) Fg) -> (Hn, Cn, Nn, Mn) {
    Lf(b, h) = M(b, h) - log1p(exp(-Fg(b, h)))
    Mn(b, h) = max(Lf(b, h), Ig(b, h))
    Cn(b, h, i, j) = exp(Lf(b, h) - Mn(b, h)) * C(b, h, i, j) + exp(Ig(b, h) - Mn(b, h)) * V(b, h, i) * K(b, h, j)
    Nn(b, h, j) = exp(Lf(b, h) - Mn(b, h)) * N(b, h, j) + exp(Ig(b, h) - Mn(b, h)) * K(b, h, j)
    Num(b, h, i) +=! Cn(b, h, i, j) * Q(b, h, j)
    Den(b, h) +=! Nn(b, h, j) * Q(b, h, j)
    Hn(b, h, i) = Num(b, h, i) / max(fabs(Den(b, h)), exp(-Mn(b, h)))
}''', args=lambda g: [rn(g, 2, 4, 32, 32), rn(g, 2, 4, 32), rn(g, 2, 4), rn(g, 2, 4, 32), rn(g, 2, 4, 32, k=0.2), rn(g, 2, 4, 32), rn(g, 2, 4), rn(g, 2, 4) + 2], torch=_mlstm, tol=2e-5))


def _taylor(Q, K, V):
    x = torch.einsum("bthd,bshd->bhts", Q, K) / math.sqrt(Q.shape[-1])
    P = (1 + x + 0.5 * x * x).tril()
    return torch.einsum("bhts,bshe->bthe", P / P.sum(-1, keepdim=True), V)


op(dict(name="taylor_attention_causal", text='''
def taylor_attention_causal(float(B,T,H,D) Q, float(B,T,H,D) K, float(B,T,H,E) V) -> (Y) {
    A(b, h, t, s) +=! Q(b, t, h, d) * K(b, s, h, d)
    P(b, h, t, s) = (s <= t) ? 1.0 + x + 0.5 * x * x : 0.0 where x = A(b, h, t, s) / sqrt(float(D))
    Z(b, h, t) +=! P(b, h, t, s)
    Y(b, t, h, e) +=! P(b, h, t, s) / Z(b, h, t) * V(b, s, h, e)
}''', args=lambda g: [rn(g, 1, 390, 6, 16), rn(g, 1, 390, 6, 16), rn(g, 1, 390, 6, 64)], torch=_taylor, tol=2e-5))


def _mconv(St, X, W, bias):
    Sn = torch.cat([St[..., 1:], X[..., None]], -1)
    return F.silu((Sn.float() * W.float()).sum(-1) + bias).to(X.dtype), Sn


op(dict(name="mamba_conv_update", text='''
def mamba_conv_update(bfloat16(B,D,K) St, bfloat16(B,D) X, bfloat16(D,K) W, bfloat16(D) Bias) -> (Y, Sn) {
    Sn(b, d, k) = (k < K - 1) ? St(b, d, k + 1) : X(b, d) where k in 0:K
    A(b, d) +=! float(Sn(b, d, k)) * float(W(d, k))
    Y(b, d) = bfloat16(z * sigmoid(z)) where z = A(b, d) + Bias(d)
}''', args=lambda g: [rn(g, 5, 1536, 4, dt=bf16), rn(g, 5, 1536, dt=bf16), rn(g, 1536, 4, dt=bf16), rn(g, 1536, dt=bf16)], torch=_mconv, tol=1e-2))


# ---------------------------------------------------------------- mixtures of experts

def _choice(L, X, cap):
    gate, tok = torch.softmax(L, 1).T.topk(int(cap), 1)
    return tok.to(i32), gate, X[tok]


op(dict(name="expert_choice_dispatch", text='''
def expert_choice_dispatch(float(T,E) L, float(T,D) X, int32 cap) -> (Tok, Gate, Xe) {
    Z(t) +=! exp(L(t, e))
    P(e, t) = exp(L(t, e)) / Z(t)
    Rank(e, t) +=! (P(e, s) > P(e, t) || (P(e, s) == P(e, t) && s < t)) ? 1 : 0
    Tok(e, c) +=! (Rank(e, t) == c) ? t : 0 where c in 0:cap
    Gate(e, c) = P(e, Tok(e, c))
    Xe(e, c, d) = X(Tok(e, c), d)
}''', args=lambda g: [rn(g, 256, 8), rn(g, 256, 200), of(40, i32)], torch=_choice, tol=1e-5))


def _softmoe(X, Phi, W):
    L = torch.einsum("btd,des->btes", X, Phi)
    Xs = torch.einsum("btes,btd->besd", L.softmax(1), X)
    Ys = F.relu(torch.einsum("besd,edo->beso", Xs, W))
    return torch.einsum("btes,beso->bto", L.flatten(2).softmax(-1).view_as(L), Ys)


op(dict(name="soft_moe", text='''
def soft_moe(float(B,T,D) X, float(D,E,S) Phi, float(E,D,O) W) -> (Y) {
    L(b, t, e, s) +=! X(b, t, d) * Phi(d, e, s)
    Zt(b, e, s) +=! exp(L(b, t, e, s))
    Zs(b, t) +=! exp(L(b, t, e, s))
    Xs(b, e, s, d) +=! exp(L(b, t, e, s)) / Zt(b, e, s) * X(b, t, d)
    Ys(b, e, s, o) +=! Xs(b, e, s, d) * W(e, d, o)
    Y(b, t, o) +=! exp(L(b, t, e, s)) / Zs(b, t) * relu(Ys(b, e, s, o))
}''', args=lambda g: [rn(g, 4, 197, 96), rn(g, 96, 8, 5, k=0.1), rn(g, 8, 96, 128, k=0.2)], torch=_softmoe, tol=2e-5))
