# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Data analysis, search and images, and programs of many statements; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.networks import f16, f64, i32, of, ri, rn, ru, u8
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)

# ---------------------------------------------------------------- data analysis, search, images

def _jointmi(X, Y, Wt, nb):
    n = int(nb)
    i, j = ((a * n).long().clamp(0, n - 1) for a in (X, Y))
    h = torch.zeros(n * n).index_add(0, i * n + j, Wt).view(n, n)
    p = h / h.sum()
    r = torch.where(p > 0, p / (p.sum(1, keepdim=True) * p.sum(0)), 1.0)
    return p, (p * r.log()).sum()


def _jointmi_args(g):
    x = ru(g, 20011)
    return [x, 0.75 * x + 0.25 * ru(g, 20011), ru(g, 20011, lo=0.5, hi=1.5), of(32, i32)]


op(dict(name="weighted_joint_histogram_mi", text='''
def weighted_joint_histogram_mi(float(N) X, float(N) Y, float(N) Wt, int32 nb) -> (Pj, Mi) {
    Ix(n) = min(max(int32(X(n) * nb), 0), nb - 1)
    Iy(n) = min(max(int32(Y(n) * nb), 0), nb - 1)
    Hj(Ix(n), Iy(n)) +=! Wt(n) where Ix(n) in 0:nb, Iy(n) in 0:nb
    Sw +=! Hj(i, j)
    Pj(i, j) = Hj(i, j) / Sw
    Px(i) +=! Pj(i, j)
    Py(j) +=! Pj(i, j)
    Mi +=! Pj(i, j) > 0.0 ? Pj(i, j) * log(Pj(i, j) / (Px(i) * Py(j))) : 0.0
}''', args=_jointmi_args, torch=_jointmi, tol=2e-5))


def _groupz(X, Key, Like):
    G = len(Like)
    ct = torch.bincount(Key, minlength=G).double()[:, None]
    total = lambda a: a.new_zeros(G, a.shape[1]).index_add(0, Key, a)
    mu = total(X) / ct.clamp_min(1)
    dv = X - mu[Key]
    sd = (total(dv.square()) / (ct - 1).clamp_min(1)).sqrt()
    return dv / (sd[Key] + 1e-6), mu, sd


op(dict(name="groupby_key_zscores_f64", text='''
def groupby_key_zscores_f64(double(N,D) X, int64(N) Key, float(G) Like) -> (Zs, Mu, Sd) {
    Ct(Key(n)) +=! 1.0 where Key(n) in 0:G
    Mu(Key(n), d) +=! X(n, d) where Key(n) in 0:G
    Mu(g, d) = Mu(g, d) / max(Ct(g), 1.0)
    Dv(n, d) = X(n, d) - Mu(Key(n), d)
    Sd(Key(n), d) +=! Dv(n, d) * Dv(n, d) where Key(n) in 0:G
    Sd(g, d) = sqrt(Sd(g, d) / max(Ct(g) - 1.0, 1.0))
    Zs(n, d) = Dv(n, d) / (Sd(Key(n), d) + 1e-6)
}''', args=lambda g: [rn(g, 5003, 7, dt=f64), ri(g, 0, 211, 5003), torch.zeros(211)], torch=_groupz, tol=1e-11))


def _moving(X, w):
    n, x = int(w), X[:, None]
    va, mu = torch.var_mean(X.unfold(1, n, 1), -1, correction=0)
    return -F.max_pool1d(-x, n, 1)[:, 0], F.max_pool1d(x, n, 1)[:, 0], mu, va


op(dict(name="moving_min_max_mean_var", text='''
def moving_min_max_mean_var(float(B,N) X, int32 w) -> (Lo, Hi, Mu, Va) {
    Lo(b, i) min=! X(b, i + k) where k in 0:w
    Hi(b, i) max=! X(b, i + k) where k in 0:w
    Mu(b, i) +=! X(b, i + k) / w where k in 0:w
    Va(b, i) +=! (X(b, i + k) - Mu(b, i)) * (X(b, i + k) - Mu(b, i)) / w where k in 0:w
}''', args=lambda g: [rn(g, 7, 4001), of(25, i32)], torch=_moving, tol=1e-5))


def _dtw(X, Y):
    d = (X - Y[:, :1]).abs().cumsum(1)
    for r in range(1, 5):
        c = (X - Y[:, r:r + 1]).abs()
        s = c.cumsum(1)
        m = torch.cat([d[:, :1], torch.minimum(d[:, 1:], d[:, :-1])], 1) - s + c
        d = m.cummin(1).values + s
    return d, d[:, -1]


op(dict(name="dtw_five_rows_by_scans", text='''
def dtw_row(float(B,N) Dp, float(B,N) X, float(B,T) Y, int32 r) -> (Dn) {
    Co(b, j) = abs(X(b, j) - Y(b, r))
    Cs(b, j) +=! k <= j ? Co(b, k) : 0.0 where j in 0:N
    Mn(b, j) = (j >= 1 ? min(Dp(b, j), Dp(b, j - 1)) : Dp(b, j)) - Cs(b, j) + Co(b, j) where j in 0:N
    Dn(b, j) min=! k <= j ? Mn(b, k) : infinity() where j in 0:N
    Dn(b, j) = Dn(b, j) + Cs(b, j)
}
def dtw_five_rows_by_scans(float(B,N) X, float(B,T) Y) -> (D4, Dl) {
    D0(b, j) +=! k <= j ? abs(X(b, k) - Y(b, 0)) : 0.0 where j in 0:N
    D1 = dtw_row(D0, X, Y, 1)
    D2 = dtw_row(D1, X, Y, 2)
    D3 = dtw_row(D2, X, Y, 3)
    D4 = dtw_row(D3, X, Y, 4)
    Dl(b) = D4(b, N - 1)
}''', args=lambda g: [rn(g, 31, 313), rn(g, 31, 5)], torch=_dtw, tol=2e-5))


def _ratiotest(A, Bq, ratio):
    d2 = A.square().sum(1)[:, None] + Bq.square().sum(1) - 2 * A @ Bq.T
    v, i = d2.topk(2, dim=1, largest=False)
    back = d2.argmin(0)[i[:, 0]] == torch.arange(len(A))
    return i[:, 0].to(i32), v[:, 0], (v[:, 0] < ratio * ratio * v[:, 1]) & back


def _ratiotest_args(g):
    b = rn(g, 397, 61)
    return [torch.cat([b[torch.randperm(397, generator=g)[:250]] + rn(g, 250, 61, k=0.3), rn(g, 151, 61)]), b, of(0.8)]


op(dict(name="descriptor_ratio_mutual_match", text='''
def descriptor_ratio_mutual_match(float(M,D) A, float(N,D) Bq, float ratio) -> (I1, M1, Ok) {
    D2(i, j) +=! (A(i, d) - Bq(j, d)) * (A(i, d) - Bq(j, d))
    M1(i) min=! D2(i, j)
    I1(i) min=! D2(i, j) == M1(i) ? j : N
    M2(i) min=! j != I1(i) ? D2(i, j) : infinity()
    C1(j) min=! D2(i, j)
    J1(j) min=! D2(i, j) == C1(j) ? i : M
    Ok(i) = M1(i) < ratio * ratio * M2(i) && J1(I1(i)) == i
}''', args=_ratiotest_args, torch=_ratiotest, tol=2e-5))


def _kdeloo(X, Bw):
    N = len(X)
    d2 = (X[:, None] - X).square().sum(-1)
    h2 = Bw.square()[:, None]
    k = F.relu(1 - d2 / h2[..., None]).sum(-1) - 1
    p = 2 / math.pi * k / ((N - 1) * h2)
    return (p + 1e-6).log().mean(1), p


op(dict(name="kde_epanechnikov_leave_one_out", text='''
def kde_epanechnikov_leave_one_out(float(N,2) X, float(H) Bw) -> (Ll, P) {
    D2(i, j) +=! (X(i, a) - X(j, a)) * (X(i, a) - X(j, a))
    P(h, i) +=! i != j ? max(1.0 - D2(i, j) / (Bw(h) * Bw(h)), 0.0) : 0.0
    P(h, i) = 0.6366197723675814 * P(h, i) / ((N - 1) * Bw(h) * Bw(h))
    Ll(h) +=! log(P(h, i) + 1e-6) / N
}''', args=lambda g: [rn(g, 601, 2), torch.tensor([0.3, 0.4, 0.5, 0.7, 0.9, 1.2, 1.6])], torch=_kdeloo, tol=1e-4))


def _demosaic(X, Mc):
    p = F.pad(X[:, None], (1, 1, 1, 1), mode="reflect")[:, 0]
    n, s, w, e = p[:, :-2, 1:-1], p[:, 2:, 1:-1], p[:, 1:-1, :-2], p[:, 1:-1, 2:]
    ver, hor = 0.5 * (n + s), 0.5 * (w + e)
    dia = 0.25 * (p[:, :-2, :-2] + p[:, :-2, 2:] + p[:, 2:, :-2] + p[:, 2:, 2:])
    y, x = torch.arange(X.shape[1])[:, None] % 2 == 0, torch.arange(X.shape[2]) % 2 == 0
    red = torch.where(y, torch.where(x, X, hor), torch.where(x, ver, dia))
    green = torch.where(y == x, 0.5 * (ver + hor), X)
    blue = torch.where(y, torch.where(x, dia, ver), torch.where(x, hor, X))
    return torch.einsum("oc,bcyx->boyx", Mc, torch.stack([red, green, blue], 1))


op(dict(name="demosaic_rggb_bilinear_colour", text='''
def demosaic_rggb_bilinear_colour(float(B,H,W) X, float(3,3) Mc) -> (Y) {
    Iy(i) = i == 0 ? 1 : (i <= H ? i - 1 : H - 2) where i in 0:H+2
    Ix(j) = j == 0 ? 1 : (j <= W ? j - 1 : W - 2) where j in 0:W+2
    P(b, i, j) = X(b, Iy(i), Ix(j))
    Ve(b, y, x) = 0.5 * (P(b, y, x + 1) + P(b, y + 2, x + 1)) where y in 0:H, x in 0:W
    Ho(b, y, x) = 0.5 * (P(b, y + 1, x) + P(b, y + 1, x + 2)) where y in 0:H, x in 0:W
    Di(b, y, x) = 0.25 * (P(b, y, x) + P(b, y, x + 2) + P(b, y + 2, x) + P(b, y + 2, x + 2)) where y in 0:H, x in 0:W
    C(b, c, y, x) = c == 0 ? (y % 2 == 0 ? (x % 2 == 0 ? X(b, y, x) : Ho(b, y, x)) : (x % 2 == 0 ? Ve(b, y, x) : Di(b, y, x)))
        : (c == 1 ? ((y + x) % 2 == 0 ? 0.5 * (Ve(b, y, x) + Ho(b, y, x)) : X(b, y, x))
        : (y % 2 == 0 ? (x % 2 == 0 ? Di(b, y, x) : Ve(b, y, x)) : (x % 2 == 0 ? Ho(b, y, x) : X(b, y, x)))) where c in 0:3
    Y(b, o, y, x) +=! Mc(o, c) * C(b, c, y, x)
}''', args=lambda g: [ru(g, 2, 123, 171), torch.eye(3) + rn(g, 3, 3, k=0.2)], torch=_demosaic, tol=1e-5))


def _spearman(X):
    x = X.T.contiguous()
    s = x.sort(1).values
    r = 0.5 * (torch.searchsorted(s, x) + torch.searchsorted(s, x, right=True)).float().T
    return torch.corrcoef(r.T), r


op(dict(name="spearman_tied_rank_matrix", text='''
def spearman_tied_rank_matrix(int32(N,C) X) -> (Rs, Rk) {
    Rk(n, c) +=! X(m, c) < X(n, c) ? 1.0 : (X(m, c) == X(n, c) ? 0.5 : 0.0)
    Mu(c) +=! Rk(n, c) / N
    Cv(c, d) +=! (Rk(n, c) - Mu(c)) * (Rk(n, d) - Mu(d))
    Rs(c, d) = Cv(c, d) * rsqrt(Cv(c, c) * Cv(d, d))
}''', args=lambda g: [(rn(g, 701, 13) * 12 + 9 * rn(g, 701, 1)).to(i32)], torch=_spearman, tol=2e-5))


def _tophat(X):
    x = X.float()
    o = F.max_pool2d(-F.max_pool2d(-x, 5, 1, 2), 5, 1, 2)
    return o.to(u8), (x - o).to(u8)


op(dict(name="white_top_hat_5x5_u8", text='''
def white_top_hat_5x5_u8(uint8(C,H,W) X) -> (Op, Th) {
    Er(c, y, x) min=! X(c, min(max(y + u - 2, 0), H - 1), min(max(x + v - 2, 0), W - 1)) where y in 0:H, x in 0:W, u in 0:5, v in 0:5
    Op(c, y, x) max=! Er(c, min(max(y + u - 2, 0), H - 1), min(max(x + v - 2, 0), W - 1)) where y in 0:H, x in 0:W, u in 0:5, v in 0:5
    Th(c, y, x) = X(c, y, x) - Op(c, y, x)
}''', args=lambda g: [ri(g, 0, 256, 3, 131, 173, dt=u8)], torch=_tophat, tol=0.0))


def _bilateral(X, ss, sr):
    n = F.pad(X[:, None], (2, 2, 2, 2), mode="reflect")[:, 0].unfold(1, 5, 1).unfold(2, 5, 1)
    d = (torch.arange(5) - 2.0).square()
    w = torch.exp(-(d[:, None] + d) / (2 * ss * ss) - (n - X[..., None, None]).square() / (2 * sr * sr))
    return (w * n).sum((-1, -2)) / w.sum((-1, -2))


op(dict(name="bilateral_filter_5x5_reflect", text='''
def bilateral_filter_5x5_reflect(float(B,H,W) X, float ss, float sr) -> (Y) {
    Iy(i) = i < 2 ? 2 - i : (i < H + 2 ? i - 2 : 2*H - i) where i in 0:H+4
    Ix(j) = j < 2 ? 2 - j : (j < W + 2 ? j - 2 : 2*W - j) where j in 0:W+4
    P(b, i, j) = X(b, Iy(i), Ix(j))
    Wt(b, y, x, u, v) = exp(-((u - 2) * (u - 2) + (v - 2) * (v - 2)) / (2.0 * ss * ss) - e * e / (2.0 * sr * sr))
        where e = P(b, y + u, x + v) - X(b, y, x), y in 0:H, x in 0:W, u in 0:5, v in 0:5
    Z(b, y, x) +=! Wt(b, y, x, u, v)
    Y(b, y, x) +=! Wt(b, y, x, u, v) * P(b, y + u, x + v) / Z(b, y, x)
}''', args=lambda g: [ru(g, 2, 93, 117), of(1.5), of(0.2)], torch=_bilateral, tol=1e-5))


# ---------------------------------------------------------------- odd ones

def _chol3(Pk, R):
    a = Pk[:, [0, 1, 3, 1, 2, 4, 3, 4, 5]].view(-1, 3, 3)
    l = torch.linalg.cholesky(a)
    return torch.cholesky_solve(R, l), 2 * l.diagonal(dim1=1, dim2=2).log().sum(1)


def _chol3_args(g):
    m = rn(g, 2003, 3, 3, dt=f64)
    a = m @ m.mT + torch.eye(3, dtype=f64)
    return [torch.stack([a[:, 0, 0], a[:, 1, 0], a[:, 1, 1], a[:, 2, 0], a[:, 2, 1], a[:, 2, 2]], 1), rn(g, 2003, 3, 7, dt=f64)]


op(dict(name="packed_cholesky3_solve_logdet_f64", text='''
def packed_cholesky3_solve_logdet_f64(double(B,6) Pk, double(B,3,K) R) -> (X, Ld) {
    La(b) = sqrt(Pk(b, 0))
    Lb(b) = Pk(b, 1) / La(b)
    Lc(b) = sqrt(Pk(b, 2) - Lb(b) * Lb(b))
    Le(b) = Pk(b, 3) / La(b)
    Lf(b) = (Pk(b, 4) - Le(b) * Lb(b)) / Lc(b)
    Lg(b) = sqrt(Pk(b, 5) - Le(b) * Le(b) - Lf(b) * Lf(b))
    Za(b, k) = R(b, 0, k) / La(b)
    Zb(b, k) = (R(b, 1, k) - Lb(b) * Za(b, k)) / Lc(b)
    Zc(b, k) = (R(b, 2, k) - Le(b) * Za(b, k) - Lf(b) * Zb(b, k)) / (Lg(b) * Lg(b))
    Xb(b, k) = (Zb(b, k) - Lf(b) * Zc(b, k)) / Lc(b)
    Xa(b, k) = (Za(b, k) - Lb(b) * Xb(b, k) - Le(b) * Zc(b, k)) / La(b)
    X(b, i, k) = i == 0 ? Xa(b, k) : (i == 1 ? Xb(b, k) : Zc(b, k)) where i in 0:3
    Ld(b) = 2.0 * log(La(b) * Lc(b) * Lg(b))
}''', args=_chol3_args, torch=_chol3, tol=1e-10))


def _top1(X, Wr, We):
    E = len(We)
    p = F.linear(X, Wr).softmax(1)
    gate, i = p.max(1)
    ct = torch.bincount(i, minlength=E)
    y = F.relu(torch.einsum("nd,njd->nj", X, We[i])) * gate[:, None]
    return y, i.to(i32), ct.to(i32), E * (p.mean(0) * ct).sum() / len(X)


op(dict(name="switch_top1_gathered_expert", text='''
def switch_top1_gathered_expert(float(N,D) X, float(E,D) Wr, float(E,J,D) We) -> (Y, Id, int32(E) Ct, Aux) {
    Lg(n, e) +=! X(n, d) * Wr(e, d)
    M(n) max=! Lg(n, e)
    Id(n) min=! Lg(n, e) == M(n) ? e : E
    Z(n) +=! exp(Lg(n, e) - M(n))
    Hd(n, j) +=! We(Id(n), j, d) * X(n, d)
    Y(n, j) = relu(Hd(n, j)) / Z(n)
    Ct(Id(n)) +=! 1
    Pm(e) +=! exp(Lg(n, e) - M(n)) / Z(n) / N
    Aux +=! E * Pm(e) * Ct(e) / N
}''', args=lambda g: [rn(g, 203, 96), rn(g, 7, 96, k=0.1), rn(g, 7, 61, 96, k=0.1)], torch=_top1, tol=2e-5))


def _bandgram(X, w):
    N, b = X.shape[1], int(w)
    s = X @ X.mT
    i = torch.arange(N)
    near = (i[:, None] - i).abs() <= b
    far = (F.softplus(s) * ((i - i[:, None]) > b)).sum((1, 2))
    return (s * near).sum(2), far, near.sum(1, dtype=i32), s.diagonal(dim1=1, dim2=2).amax(1)


op(dict(name="banded_gram_contrast_counts", text='''
def banded_gram_contrast_counts(float(B,N,D) X, int32 w) -> (Near, Far, Cn, Dm) {
    G(b, i, j) +=! X(b, i, d) * X(b, j, d)
    Near(b, i) +=! j <= i + w && i <= j + w ? G(b, i, j) : 0.0
    Far(b) +=! j > i + w ? max(G(b, i, j), 0.0) + log1p(exp(-abs(G(b, i, j)))) : 0.0
    Cn(i) +=! j <= i + w && i <= j + w ? 1 : 0 where i in 0:N, j in 0:N
    Dm(b) max=! G(b, i, i)
}''', args=lambda g: [rn(g, 5, 131, 37, k=0.4), of(11, i32)], torch=_bandgram, tol=3e-5))


op(dict(name="permute_max_meansquare_5d_half", text='''
def permute_max_meansquare_5d_half(half(A,B,C,D,E) X) -> (Y, S) {
    Y(e, b, d) max=! X(a, b, c, d, e)
    S(d, a) +=! float(X(a, b, c, d, e)) * X(a, b, c, d, e) / (B * C * E)
}''', args=lambda g: [rn(g, 7, 13, 11, 17, 19, dt=f16)],
   torch=lambda X: (X.amax((0, 2)).permute(2, 0, 1), X.float().square().mean((1, 2, 4)).T), tol=1e-5))


def _mix16(X, Gn):
    q = ((X.to(i32) * Gn[..., None]).sum(0, dtype=i32) + 16384) >> 15
    y = q.clamp(-32768, 32767)
    return y.to(torch.int16), y.abs().amax(1), (q != y).sum(1, dtype=i32)


op(dict(name="mix_tracks_q15_clip_int16", text='''
def mix_tracks_q15_clip_int16(int16(T,C,N) X, int32(T,C) Gn) -> (Y, Pk, Cl) {
    A(c, n) +=! int32(X(t, c, n)) * Gn(t, c)
    A(c, n) = (A(c, n) + 16384) / 32768
    Y(c, n) = int16(clamp(A(c, n), -32768, 32767))
    Pk(c) max=! abs(int32(Y(c, n)))
    Cl(c) +=! A(c, n) > 32767 || A(c, n) < -32768 ? 1 : 0
}''', args=lambda g: [ri(g, -32767, 32768, 5, 2, 24001, dt=torch.int16), ri(g, 4000, 12001, 5, 2, dt=i32)], torch=_mix16, tol=0.0))


op(dict(name="reduction_cell_pool_conv_concat", text='''
def reduction_cell_pool_conv_concat(float(B,C,H,W) X, float(O,C,3,3) K, float(O) Bi) -> (float(B,C+O,(H-1)/2,(W-1)/2) Y) {
    Mx(b, c, y, x) max=! X(b, c, 2*y + u, 2*x + v) where u in 0:3, v in 0:3
    Cv(b, o, y, x) +=! X(b, c, 2*y + u, 2*x + v) * K(o, c, u, v)
    Y(b, k, y, x) = k < C ? Mx(b, k, y, x) : relu(Cv(b, k - C, y, x) + Bi(k - C)) where k in 0:C+O, y in 0:(H-1)/2, x in 0:(W-1)/2
}''', args=lambda g: [rn(g, 3, 19, 47, 53), rn(g, 23, 19, 3, 3, k=0.08), rn(g, 23, k=0.2)],
   torch=lambda X, K, Bi: torch.cat([F.max_pool2d(X, 3, 2), F.relu(F.conv2d(X, K, Bi, stride=2))], 1), tol=2e-5))


def _ema(X, a):
    t = torch.arange(X.shape[1])
    d = t[:, None] - t
    w = torch.where(d < 0, 0.0, torch.where(t == 0, 1.0, a) * (1 - a) ** d.clamp_min(0))
    return X @ w.T


def _macd(X, fa, sa, ga):
    md = _ema(X, fa) - _ema(X, sa)
    ps = torch.tanh(2 * (md - _ema(md, ga)))
    gr = 1 + ps[:, :-1] * (X[:, 1:] / X[:, :-1] - 1)
    eq = F.pad(gr.cumprod(1), (1, 0), value=1.0)
    return ps, eq, (1 - eq / eq.cummax(1).values).amax(1)


op(dict(name="macd_tanh_equity_drawdown", text='''
def ema(float(S,T) X, float al) -> (E) {
    Wt(t, u) = u > t ? 0.0 : (u == 0 ? pow(1.0 - al, t) : al * pow(1.0 - al, t - u)) where t in 0:T, u in 0:T
    E(s, t) +=! u <= t ? X(s, u) * Wt(t, u) : 0.0
}
def macd_tanh_equity_drawdown(float(S,T) X, float fa, float sa, float ga) -> (Ps, Eq, Dd) {
    Ef = ema(X, fa)
    Es = ema(X, sa)
    Md(s, t) = Ef(s, t) - Es(s, t)
    Sg = ema(Md, ga)
    Ps(s, t) = tanh(2.0 * (Md(s, t) - Sg(s, t)))
    Gr(s, t) = 1.0 + Ps(s, t) * (X(s, t + 1) / X(s, t) - 1.0) where t in 0:T-1
    Eq(s, t) *=! u < t ? Gr(s, u) : 1.0 where t in 0:T, u in 0:T-1
    Pk(s, t) max=! u <= t ? Eq(s, u) : -infinity() where t in 0:T, u in 0:T
    Dd(s) max=! 1.0 - Eq(s, t) / Pk(s, t)
}''', args=lambda g: [100 * torch.exp(rn(g, 61, 251, k=0.02).cumsum(1)), of(2 / 13), of(2 / 27), of(0.2)], torch=_macd, tol=2e-4))


def _life(X):
    for _ in range(3):
        r = X.roll(1, 0) + X + X.roll(-1, 0)
        n = r.roll(1, 1) + r + r.roll(-1, 1) - X
        X = ((n == 3) | ((n == 2) & (X == 1))).to(u8)
    return X, X.sum(dtype=i32)


op(dict(name="life_torus_three_generations_u8", text='''
def life_generation(uint8(H,W) X) -> (Y) {
    Nb(y, x) +=! u != 1 || v != 1 ? int32(X((y + u + H - 1) % H, (x + v + W - 1) % W)) : 0 where y in 0:H, x in 0:W, u in 0:3, v in 0:3
    Y(y, x) = uint8(Nb(y, x) == 3 || (Nb(y, x) == 2 && X(y, x) == 1) ? 1 : 0)
}
def life_torus_three_generations_u8(uint8(H,W) X) -> (X3, Alive) {
    X1 = life_generation(X)
    X2 = life_generation(X1)
    X3 = life_generation(X2)
    Alive +=! int32(X3(y, x))
}''', args=lambda g: [(ru(g, 193, 211) < 0.35).to(u8)], torch=_life, tol=0.0))


op(dict(name="unit_lower_solve_by_doubling_16", text='''
def unit_lower_solve_by_doubling_16(float(B,16,16) A, float(B,16,K) R) -> (X) {
    Na(b, i, j) = j < i ? A(b, i, j) : 0.0
    Nb(b, i, j) +=! Na(b, i, k) * Na(b, k, j)
    Nc(b, i, j) +=! Nb(b, i, k) * Nb(b, k, j)
    Nd(b, i, j) +=! Nc(b, i, k) * Nc(b, k, j)
    Xa(b, i, c) +=! -Na(b, i, j) * R(b, j, c)
    Xa(b, i, c) = Xa(b, i, c) + R(b, i, c)
    Xb(b, i, c) +=! Nb(b, i, j) * Xa(b, j, c)
    Xb(b, i, c) = Xb(b, i, c) + Xa(b, i, c)
    Xc(b, i, c) +=! Nc(b, i, j) * Xb(b, j, c)
    Xc(b, i, c) = Xc(b, i, c) + Xb(b, i, c)
    X(b, i, c) +=! Nd(b, i, j) * Xc(b, j, c)
    X(b, i, c) = X(b, i, c) + Xc(b, i, c)
}''', args=lambda g: [rn(g, 151, 16, 16, k=0.2), rn(g, 151, 16, 29)],
   torch=lambda A, R: torch.linalg.solve_triangular(A, R, upper=False, unitriangular=True), tol=5e-5))


def _compact(X, th):
    k = X > th
    ct = k.sum(1, dtype=i32)
    at = k.to(u8).argsort(dim=1, descending=True, stable=True)
    live = torch.arange(X.shape[1]) < ct[:, None]
    return torch.where(live, X.gather(1, at), 0.0), torch.where(live, at, -1).to(i32), ct


op(dict(name="stream_compaction_by_prefix_count", text='''
def stream_compaction_by_prefix_count(float(B,N) X, float th) -> (Y, Src, Ct) {
    Kp(b, i) = X(b, i) > th ? 1 : 0
    Ps(b, i) +=! j < i ? Kp(b, j) : 0 where i in 0:N
    Ct(b) +=! Kp(b, i)
    Y(b, r) +=! Ps(b, i) == r && Kp(b, i) == 1 ? X(b, i) : 0.0 where r in 0:N
    Src(b, r) +=! Ps(b, i) == r && Kp(b, i) == 1 ? i + 1 : 0 where r in 0:N
    Src(b, r) = Src(b, r) - 1
}''', args=lambda g: [rn(g, 9, 1501), of(0.25)], torch=_compact, tol=0.0))
