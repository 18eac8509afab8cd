# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Variants of attention, and what decoding does beside it; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.networks import i8, i32, ri, rn, ru
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)


# ---------------------------------------------------------------- attention and decoding

op(dict(name="causal_packed_qkv", text='''
def causal_packed_qkv(float(B,T,3,H,D) Qkv) -> (Y) {
    S(b, h, i, j) +=! Qkv(b, i, 0, h, d) * Qkv(b, j, 1, h, d)
    S(b, h, i, j) = (j <= i) ? S(b, h, i, j) / sqrt(float(D)) : -infinity()
    M(b, h, i) max=! S(b, h, i, j)
    Z(b, h, i) +=! exp(S(b, h, i, j) - M(b, h, i))
    Y(b, i, h, d) +=! exp(S(b, h, i, j) - M(b, h, i)) / Z(b, h, i) * Qkv(b, j, 2, h, d)
}''', args=lambda g: [rn(g, 2, 129, 3, 6, 40)],
    torch=lambda X: F.scaled_dot_product_attention(*X.permute(2, 0, 3, 1, 4).unbind(0), is_causal=True).transpose(1, 2), tol=2e-5))


def _cross(Q, K, V, Pad):
    q, k, v = (t.permute(1, 2, 0, 3) for t in (Q, K, V))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~Pad[:, None, None]).permute(2, 0, 1, 3)


op(dict(name="cross_attention_time_major", text='''
def cross_attention_time_major(float(T,B,H,D) Q, float(S,B,H,D) K, float(S,B,H,D) V, bool(B,S) Pad) -> (Y) {
    L(b, h, t, s) +=! Q(t, b, h, d) * K(s, b, h, d)
    L(b, h, t, s) = Pad(b, s) ? -infinity() : L(b, h, t, s) / sqrt(float(D))
    M(b, h, t) max=! L(b, h, t, s)
    P(b, h, t, s) = exp(L(b, h, t, s) - M(b, h, t))
    Z(b, h, t) +=! P(b, h, t, s)
    Y(t, b, h, d) +=! P(b, h, t, s) * V(s, b, h, d)
    Y(t, b, h, d) = Y(t, b, h, d) / Z(b, h, t)
}''', args=lambda g: [rn(g, 60, 3, 8, 32), rn(g, 151, 3, 8, 32), rn(g, 151, 3, 8, 32), torch.arange(151) >= ri(g, 40, 152, 3)[:, None]], torch=_cross, tol=2e-5))


def _talking(Q, K, V, Pre, Post):
    L = Q @ K.transpose(2, 3) / math.sqrt(Q.shape[3])
    P = torch.softmax(torch.einsum("gh,bhij->bgij", Pre, L), -1)
    return torch.einsum("og,bgij->boij", Post, P) @ V


op(dict(name="talking_heads_attention", text='''
def talking_heads_attention(float(B,H,T,D) Q, float(B,H,T,D) K, float(B,H,T,D) V, float(G,H) Pre, float(H,G) Post) -> (Y) {
    L(b, h, i, j) +=! Q(b, h, i, d) * K(b, h, j, d) / sqrt(float(D))
    A(b, g, i, j) +=! Pre(g, h) * L(b, h, i, j)
    M(b, g, i) max=! A(b, g, i, j)
    E(b, g, i, j) = exp(A(b, g, i, j) - M(b, g, i))
    Z(b, g, i) +=! E(b, g, i, j)
    P(b, h, i, j) +=! Post(h, g) * E(b, g, i, j) / Z(b, g, i)
    Y(b, h, i, d) +=! P(b, h, i, j) * V(b, h, j, d)
}''', args=lambda g: [rn(g, 2, 6, 98, 32), rn(g, 2, 6, 98, 32), rn(g, 2, 6, 98, 32), rn(g, 9, 6, k=0.4), rn(g, 6, 9, k=0.4)], torch=_talking, tol=3e-5))


def _msarow(Q, K, V, Bias, Gate):
    L = torch.einsum("sihd,sjhd->shij", Q, K) / math.sqrt(Q.shape[3]) + Bias.permute(2, 0, 1)
    return torch.sigmoid(Gate) * torch.einsum("shij,sjhd->sihd", torch.softmax(L, -1), V)


op(dict(name="msa_row_attention_pair_bias", text='''
def msa_row_attention_pair_bias(float(S,I,H,D) Q, float(S,I,H,D) K, float(S,I,H,D) V, float(I,I,H) Bias, float(S,I,H,D) Gate) -> (Y) {
    L(s, h, i, j) +=! Q(s, i, h, d) * K(s, j, h, d)
    L(s, h, i, j) = L(s, h, i, j) / sqrt(float(D)) + Bias(i, j, h)
    M(s, h, i) max=! L(s, h, i, j)
    Z(s, h, i) +=! exp(L(s, h, i, j) - M(s, h, i))
    O(s, i, h, d) +=! exp(L(s, h, i, j) - M(s, h, i)) / Z(s, h, i) * V(s, j, h, d)
    Y(s, i, h, d) = sigmoid(Gate(s, i, h, d)) * O(s, i, h, d)
}''', args=lambda g: [rn(g, 24, 50, 8, 16), rn(g, 24, 50, 8, 16), rn(g, 24, 50, 8, 16), rn(g, 50, 50, 8), rn(g, 24, 50, 8, 16)], torch=_msarow, tol=2e-5))


def _samrel(Q, K, V, Rh, Rw):
    B, H, W, D = Q.shape
    L = (Q.flatten(1, 2) @ K.flatten(1, 2).transpose(1, 2)).view(B, H, W, H, W) / math.sqrt(D)
    L = L + torch.einsum("byxd,yud->byxu", Q, Rh)[..., None] + torch.einsum("byxd,xvd->byxv", Q, Rw)[..., None, :]
    return (torch.softmax(L.view(B, H * W, H * W), -1) @ V.flatten(1, 2)).view(B, H, W, D)


op(dict(name="sam_decomposed_rel_pos", text='''
def sam_decomposed_rel_pos(float(B,H,W,D) Q, float(B,H,W,D) K, float(B,H,W,D) V, float(H,H,D) Rh, float(W,W,D) Rw) -> (Y) {
    A(b, y, x, u) +=! Q(b, y, x, d) * Rh(y, u, d)
    C(b, y, x, v) +=! Q(b, y, x, d) * Rw(x, v, d)
    L(b, y, x, u, v) +=! Q(b, y, x, d) * K(b, u, v, d)
    L(b, y, x, u, v) = L(b, y, x, u, v) / sqrt(float(D)) + A(b, y, x, u) + C(b, y, x, v)
    M(b, y, x) max=! L(b, y, x, u, v)
    Z(b, y, x) +=! exp(L(b, y, x, u, v) - M(b, y, x))
    Y(b, y, x, d) +=! exp(L(b, y, x, u, v) - M(b, y, x)) / Z(b, y, x) * V(b, u, v, d)
}''', args=lambda g: [rn(g, 4, 14, 15, 64), rn(g, 4, 14, 15, 64), rn(g, 4, 14, 15, 64), rn(g, 14, 14, 64, k=0.2), rn(g, 15, 15, 64, k=0.2)], torch=_samrel, tol=3e-5))


def _xca(Q, K, V, tau):
    A = F.normalize(Q, dim=-1) @ F.normalize(K, dim=-1).transpose(2, 3) * tau[:, None, None]
    return (torch.softmax(A, -1) @ V).permute(0, 3, 1, 2)


op(dict(name="xcit_cross_covariance", text='''
def xcit_cross_covariance(float(B,H,D,N) Q, float(B,H,D,N) K, float(B,H,D,N) V, float(H) Tau) -> (Y) {
    Nq(b, h, d) +=! Q(b, h, d, n) * Q(b, h, d, n)
    Nk(b, h, e) +=! K(b, h, e, n) * K(b, h, e, n)
    A(b, h, d, e) +=! Q(b, h, d, n) * K(b, h, e, n)
    A(b, h, d, e) = Tau(h) * A(b, h, d, e) / (sqrt(Nq(b, h, d)) * sqrt(Nk(b, h, e)))
    M(b, h, d) max=! A(b, h, d, e)
    Z(b, h, d) +=! exp(A(b, h, d, e) - M(b, h, d))
    Y(b, n, h, d) +=! exp(A(b, h, d, e) - M(b, h, d)) / Z(b, h, d) * V(b, h, e, n)
}''', args=lambda g: [rn(g, 2, 4, 48, 197), rn(g, 2, 4, 48, 197), rn(g, 2, 4, 48, 197), ru(g, 4, lo=1.0, hi=5.0)], torch=_xca, tol=2e-5))


def _sage(Q, K, Sq, Sk, V):
    L = Q.float() @ K.float().transpose(1, 2) * Sq[:, :, None] * Sk[:, None]
    return torch.softmax(L, -1) @ V


op(dict(name="sage_int8_attention", text='''
def sage_int8_attention(int8(H,T,D) Q, int8(H,S,D) K, float(H,T) Sq, float(H,S) Sk, float(H,S,E) V) -> (Y) {
    C(h, i, j) +=! int32(Q(h, i, d)) * int32(K(h, j, d))
    L(h, i, j) = C(h, i, j) * Sq(h, i) * Sk(h, j)
    M(h, i) max=! L(h, i, j)
    Z(h, i) +=! exp(L(h, i, j) - M(h, i))
    Y(h, i, e) +=! exp(L(h, i, j) - M(h, i)) / Z(h, i) * V(h, j, e)
}''', args=lambda g: [ri(g, -127, 128, 6, 120, 64, dt=i8), ri(g, -127, 128, 6, 203, 64, dt=i8), ru(g, 6, 120, lo=0.005, hi=0.01), ru(g, 6, 203, lo=0.005, hi=0.01), rn(g, 6, 203, 64)],
    torch=_sage, tol=3e-5))


def _kvdecode(Q, Kc, Ks, Vc, Vs, Len):
    k, v = Kc.float() * Ks[..., None], Vc.float() * Vs[..., None]
    L = torch.einsum("bhd,bshd->bhs", Q, k) / math.sqrt(Q.shape[2])
    L = L.masked_fill((torch.arange(Kc.shape[1]) >= Len[:, None])[:, None], -torch.inf)
    return torch.einsum("bhs,bshd->bhd", torch.softmax(L, -1), v)


op(dict(name="int8_kv_cache_decode", text='''
def int8_kv_cache_decode(float(B,H,D) Q, int8(B,S,H,D) Kc, float(B,S,H) Ks, int8(B,S,H,D) Vc, float(B,S,H) Vs, int32(B) Len) -> (Y) {
    L(b, h, s) +=! Q(b, h, d) * Kc(b, s, h, d)
    L(b, h, s) = (s < Len(b)) ? L(b, h, s) * Ks(b, s, h) / sqrt(float(D)) : -infinity()
    M(b, h) max=! L(b, h, s)
    Z(b, h) +=! exp(L(b, h, s) - M(b, h))
    Y(b, h, d) +=! exp(L(b, h, s) - M(b, h)) / Z(b, h) * Vs(b, s, h) * Vc(b, s, h, d)
}''', args=lambda g: [rn(g, 3, 8, 64), ri(g, -127, 128, 3, 500, 8, 64, dt=i8), ru(g, 3, 500, 8, lo=0.005, hi=0.02), ri(g, -127, 128, 3, 500, 8, 64, dt=i8), ru(g, 3, 500, 8, lo=0.005, hi=0.02), ri(g, 100, 501, 3, dt=i32)],
    torch=_kvdecode, tol=3e-5))


def _penalties(X, Out, temp):
    c = torch.zeros_like(X).scatter_add(1, Out, torch.ones(Out.shape))
    x = torch.where(c > 0, torch.where(X > 0, X / 1.2, X * 1.2) - 0.3, X) - 0.1 * c
    p = torch.softmax(x / temp[:, None], -1)
    return torch.where(p < 0.02 * p.amax(-1, keepdim=True), 0.0, p)


op(dict(name="sampling_penalties_min_p", text='''
def sampling_penalties_min_p(float(B,V) X, int64(B,L) Out, float(B) Temp) -> (P) {
    C(b, Out(b, l)) +=! 1.0 where Out(b, l) in 0:V
    A(b, v) = (((C(b, v) > 0.0) ? ((X(b, v) > 0.0) ? X(b, v) / 1.2 : X(b, v) * 1.2) - 0.3 : X(b, v)) - 0.1 * C(b, v)) / Temp(b)
    M(b) max=! A(b, v)
    Z(b) +=! exp(A(b, v) - M(b))
    P(b, v) = (exp(A(b, v) - M(b)) < 0.02) ? 0.0 : exp(A(b, v) - M(b)) / Z(b)
}''', args=lambda g: [rn(g, 6, 32001, k=2.5), ri(g, 0, 32001, 6, 200), ru(g, 6, lo=0.7, hi=1.3)], torch=_penalties, tol=5e-5))
