# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Graphs, metrics, splines, transport, decoding, dynamic programming, images and small algebra; as in ``learning``."""
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
