# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""What users of vision, graph, statistics and science packages fuse, and quantised layers and losses; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.networks import f64, i8, i32, ri, rn, ru, u8
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)


# ---------------------------------------------------------------- quantised convolutions and losses

def _qdw(X, K, b, m):
    A = F.conv2d(X.permute(0, 3, 1, 2).float() - 128, K.permute(2, 0, 1)[:, None].float(), groups=X.shape[3]).permute(0, 2, 3, 1) + b
    return torch.floor(A * m + 128.5).clamp(0, 255).to(u8)


op(dict(name="uint8_depthwise_requant", text='''
def uint8_depthwise_requant(uint8(N,H,W,C) X, int8(3,3,C) K, int32(C) Bias, float(C) Mult) -> (Y) {
    A(n, y, x, c) +=! (int32(X(n, y + i, x + j, c)) - 128) * int32(K(i, j, c))
    Y(n, y, x, c) = uint8(clamp(floor(float(A(n, y, x, c) + Bias(c)) * Mult(c) + 128.5), 0.0, 255.0))
}''', args=lambda g: [ri(g, 0, 256, 2, 40, 43, 64, dt=u8), ri(g, -128, 128, 3, 3, 64, dt=i8), ri(g, -2000, 2000, 64, dt=i32), ru(g, 64, lo=0.002, hi=0.008)], torch=_qdw, tol=0.005))


def _mixce(X, Ya, Yb, lam):
    ce = lambda y: F.cross_entropy(X, y, reduction="none", label_smoothing=0.1)
    return (lam * ce(Ya) + (1 - lam) * ce(Yb)).mean()


op(dict(name="mixup_smoothed_ce", text='''
def mixup_smoothed_ce(float(N,C) X, int64(N) Ya, int64(N) Yb, float(N) Lam) -> (Loss) {
    M(n) max=! X(n, c)
    Z(n) +=! exp(X(n, c) - M(n))
    A(n) +=! X(n, c) / C
    Loss +=! (M(n) + log(Z(n)) - 0.1 * A(n) - 0.9 * (Lam(n) * X(n, Ya(n)) + (1.0 - Lam(n)) * X(n, Yb(n)))) / N
}''', args=lambda g: [rn(g, 256, 1000, k=2.0), ri(g, 0, 1000, 256), ri(g, 0, 1000, 256), ru(g, 256)], torch=_mixce, tol=2e-5))


def _crf(Em, Tags, Mask, Tr, Start):
    m = Mask.float()
    e = (Em.gather(2, Tags[:, :, None])[:, :, 0] * m).sum(1)
    return e + (Tr[Tags[:, :-1], Tags[:, 1:]] * m[:, 1:]).sum(1) + Start[Tags[:, 0]]


op(dict(name="crf_gold_score", text='''
def crf_gold_score(float(B,T,K) Em, int64(B,T) Tags, bool(B,T) Mask, float(K,K) Tr, float(K) Start) -> (S) {
    S(b) +=! Mask(b, t) ? Em(b, t, Tags(b, t)) : 0.0
    S(b) += Mask(b, t + 1) ? Tr(Tags(b, t), Tags(b, t + 1)) : 0.0
    S(b) = S(b) + Start(Tags(b, 0))
}''', args=lambda g: [rn(g, 48, 121, 19), ri(g, 0, 19, 48, 121), torch.arange(121) < ri(g, 20, 122, 48)[:, None], rn(g, 19, 19), rn(g, 19)], torch=_crf, tol=2e-5))


def _viterbi(Sc, Tr, Em):
    v, i = (Sc[:, :, None] + Tr).max(1)
    return v + Em, i.int()


op(dict(name="viterbi_step_backpointers", text='''
def viterbi_step_backpointers(float(B,S) Sc, float(S,S) Tr, float(B,S) Em) -> (New, Bp) {
    A(b, i, j) = Sc(b, i) + Tr(i, j)
    M(b, j) max=! A(b, i, j)
    Bp(b, j) min=! (A(b, i, j) == M(b, j)) ? i : S
    New(b, j) = M(b, j) + Em(b, j)
}''', args=lambda g: [rn(g, 32, 61), rn(g, 61, 61), rn(g, 32, 61)], torch=_viterbi, tol=1e-6))


def _rnnt(Enc, Pred, W, b, Lab):
    L = F.linear(torch.tanh(Enc[:, :, None] + Pred[:, None]), W, b).log_softmax(-1)
    ix = Lab[:, None, :, None].expand(-1, L.shape[1], -1, 1)
    return L[..., 0], L.gather(3, ix)[..., 0]


op(dict(name="rnnt_joiner_logprobs", text='''
def rnnt_joiner_logprobs(float(B,T,D) Enc, float(B,U,D) Pred, float(V,D) Wt, float(V) Bias, int64(B,U) Lab) -> (Blank, Emit) {
    J(b, t, u, d) = tanh(Enc(b, t, d) + Pred(b, u, d))
    L(b, t, u, v) +=! J(b, t, u, d) * Wt(v, d)
    L(b, t, u, v) = L(b, t, u, v) + Bias(v)
    M(b, t, u) max=! L(b, t, u, v)
    Z(b, t, u) +=! exp(L(b, t, u, v) - M(b, t, u))
    Blank(b, t, u) = L(b, t, u, 0) - M(b, t, u) - log(Z(b, t, u))
    Emit(b, t, u) = L(b, t, u, Lab(b, u)) - M(b, t, u) - log(Z(b, t, u))
}''', args=lambda g: [rn(g, 2, 60, 64), rn(g, 2, 13, 64), rn(g, 129, 64, k=0.2), rn(g, 129), ri(g, 1, 129, 2, 13)], torch=_rnnt, tol=2e-5))


def _mvdr(Xr, Xi, M):
    X = torch.complex(Xr, Xi)
    P = torch.einsum("bcft,bft,beft->bfce", X, M.to(X.dtype), X.conj()) / M.sum(-1)[..., None, None]
    return P.real.contiguous(), P.imag.contiguous()


op(dict(name="mvdr_psd_masked", text='''
def mvdr_psd_masked(float(B,C,F,T) Xr, float(B,C,F,T) Xi, float(B,F,T) Mask) -> (Pr, Pi) {
    S(b, f) +=! Mask(b, f, t)
    Pr(b, f, c, e) +=! Mask(b, f, t) * (Xr(b, c, f, t) * Xr(b, e, f, t) + Xi(b, c, f, t) * Xi(b, e, f, t))
    Pi(b, f, c, e) +=! Mask(b, f, t) * (Xi(b, c, f, t) * Xr(b, e, f, t) - Xr(b, c, f, t) * Xi(b, e, f, t))
    Pr(b, f, c, e) = Pr(b, f, c, e) / S(b, f)
    Pi(b, f, c, e) = Pi(b, f, c, e) / S(b, f)
}''', args=lambda g: [rn(g, 1, 6, 129, 180), rn(g, 1, 6, 129, 180), ru(g, 1, 129, 180, lo=0.05)], torch=_mvdr, tol=2e-5))


# ---------------------------------------------------------------- vision

def _pwc(A, B):
    H, W = A.shape[2:]
    P = F.pad(B, (4, 4, 4, 4)).unfold(2, H, 1).unfold(3, W, 1)
    return F.leaky_relu(torch.einsum("nchw,ncpqhw->npqhw", A, P) / A.shape[1], 0.1)


op(dict(name="pwc_correlation_9x9", text='''
def pwc_correlation_9x9(float(N,C,H,W) A, float(N,C,H,W) B) -> (Y) {
    V(n, p, q, y, x) +=! (y + p >= 4 && y + p < H + 4 && x + q >= 4 && x + q < W + 4) ? A(n, c, y, x) * B(n, c, y + p - 4, x + q - 4) / C : 0.0
        where p in 0:9, q in 0:9, y in 0:H, x in 0:W
    Y(n, p, q, y, x) = V(n, p, q, y, x) > 0.0 ? V(n, p, q, y, x) : 0.1 * V(n, p, q, y, x)
}''', args=lambda g: [rn(g, 1, 32, 24, 40), rn(g, 1, 32, 24, 40)], torch=_pwc, tol=2e-5))


def _hough(E, c, s):
    y, x = E.nonzero().unbind(1)
    rho = torch.floor(c[:, None] * x + s[:, None] * y + 0.5).long() + 150
    return torch.zeros(c.shape[0], 301, dtype=i32).scatter_add(1, rho, torch.ones_like(rho, dtype=i32))


def a_hough(g):
    t = (torch.arange(90, dtype=f64) + 0.37) * (math.pi / 90)
    return [ru(g, 90, 119) < 0.05, torch.cos(t), torch.sin(t)]


op(dict(name="hough_line_votes", text='''
def hough_line_votes(bool(H,W) E, double(T) Cs, double(T) Sn) -> (Acc) {
    Rho(t, y, x) = int32(floor(x * Cs(t) + y * Sn(t) + 0.5)) + 150 where y in 0:H, x in 0:W
    Acc(t, Rho(t, y, x)) +=! E(y, x) ? 1 : 0 where Rho(t, y, x) in 0:301
}''', args=a_hough, torch=_hough, tol=0.0))


def _hog(I):
    gx, gy = I[1:-1, 2:] - I[1:-1, :-2], I[2:, 1:-1] - I[:-2, 1:-1]
    a = torch.atan2(gy, gx)
    pos = torch.where(a < 0, a + math.pi, a) * (9 / math.pi) - 0.5
    d = (pos[..., None] - torch.arange(9)).abs()
    v = torch.hypot(gx, gy)[..., None] * (1 - torch.minimum(d, 9 - d)).clamp_min(0)
    P, Q = v.shape[0] // 8, v.shape[1] // 8
    h = v[:8 * P, :8 * Q].reshape(P, 8, Q, 8, 9).sum((1, 3))
    return h * torch.rsqrt(h.square().sum(-1, keepdim=True) + 1e-6)


op(dict(name="hog_soft_bins", text='''
def hog_soft_bins(float(H,W) I) -> (Y) {
    Gx(y, x) = I(y + 1, x + 2) - I(y + 1, x) where y in 0:H-2
    Gy(y, x) = I(y + 2, x + 1) - I(y, x + 1) where x in 0:W-2
    A(y, x) = atan2(Gy(y, x), Gx(y, x))
    Pos(y, x) = (A(y, x) < 0.0 ? A(y, x) + 3.141592653589793 : A(y, x)) * 2.864788975654116 - 0.5
    Mag(y, x) = sqrt(Gx(y, x) * Gx(y, x) + Gy(y, x) * Gy(y, x))
    Hs(p, q, o) +=! Mag(8*p + i, 8*q + j) * max(1.0 - min(d, 9.0 - d), 0.0)
        where d = fabs(Pos(8*p + i, 8*q + j) - o), p in 0:(H-2)/8, q in 0:(W-2)/8, i in 0:8, j in 0:8, o in 0:9
    Nr(p, q) +=! Hs(p, q, o) * Hs(p, q, o)
    Y(p, q, o) = Hs(p, q, o) * rsqrt(Nr(p, q) + 1e-6)
}''', args=lambda g: [ru(g, 133, 197)], torch=_hog, tol=5e-5))


def _tsdf(T, Wt, Pose, Depth):
    g = torch.stack(torch.meshgrid(*(0.05 * torch.arange(n, dtype=f64) for n in T.shape), indexing="ij"))
    x, y, z = torch.einsum("ab,bijk->aijk", Pose[:, :3], g) + Pose[:, 3, None, None, None]
    u = torch.floor(100 * x / z + 64.5).long()
    v = torch.floor(100 * y / z + 48.5).long()
    H, W = Depth.shape
    inside = (u >= 0) & (u < W) & (v >= 0) & (v < H)
    d = torch.where(inside, Depth[v.clamp(0, H - 1), u.clamp(0, W - 1)], 0.0)
    ok = (d > 0) & (d - z > -0.1)
    return torch.where(ok, (T * Wt + ((d - z) / 0.1).clamp_max(1)) / (Wt + 1), T), torch.where(ok, Wt + 1, Wt)


def a_tsdf(g):
    pose = torch.cat([torch.eye(3, dtype=f64) + rn(g, 3, 3, dt=f64, k=0.05), torch.tensor([[-1.1], [-0.9], [1.03]], dtype=f64)], 1)
    return [rn(g, 40, 44, 36, dt=f64, k=0.5), ri(g, 0, 5, 40, 44, 36).double(), pose, ru(g, 96, 128, dt=f64, lo=1.0, hi=3.0) * (ru(g, 96, 128, dt=f64) > 0.1)]


op(dict(name="tsdf_integrate_depth", text='''
def tsdf_integrate_depth(double(X,Y,Z) T, double(X,Y,Z) Wt, double(3,4) Pose, double(H,W) Depth) -> (Tn, Wn) {
    C(a, i, j, k) = 0.05 * i * Pose(a, 0) + 0.05 * j * Pose(a, 1) + 0.05 * k * Pose(a, 2) + Pose(a, 3) where i in 0:X, j in 0:Y, k in 0:Z
    U(i, j, k) = int32(floor(100.0 * C(0, i, j, k) / C(2, i, j, k) + 64.5))
    V(i, j, k) = int32(floor(100.0 * C(1, i, j, k) / C(2, i, j, k) + 48.5))
    D(i, j, k) = (U(i, j, k) >= 0 && U(i, j, k) < W && V(i, j, k) >= 0 && V(i, j, k) < H) ? Depth(V(i, j, k), U(i, j, k)) : 0.0
    Ok(i, j, k) = D(i, j, k) > 0.0 && D(i, j, k) - C(2, i, j, k) > -0.1
    Tn(i, j, k) = Ok(i, j, k) ? (T(i, j, k) * Wt(i, j, k) + min((D(i, j, k) - C(2, i, j, k)) / 0.1, 1.0)) / (Wt(i, j, k) + 1.0) : T(i, j, k)
    Wn(i, j, k) = Ok(i, j, k) ? Wt(i, j, k) + 1.0 : Wt(i, j, k)
}''', args=a_tsdf, torch=_tsdf, tol=1e-9))


# ---------------------------------------------------------------- recommenders, graphs, scikit-learn

def _als(Fac, Items, Conf):
    E = Fac[Items]
    A = (E * Conf[..., None]).transpose(1, 2) @ E + Fac.T @ Fac + 0.1 * torch.eye(Fac.shape[1])
    return A, (E * (1 + Conf)[..., None]).sum(1)


op(dict(name="als_normal_matrices", text='''
def als_normal_matrices(float(V,K) Fac, int64(U,L) Items, float(U,L) Conf) -> (A, B) {
    G(i, j) +=! Fac(v, i) * Fac(v, j)
    A(u, i, j) +=! Conf(u, l) * Fac(Items(u, l), i) * Fac(Items(u, l), j)
    A(u, i, j) = A(u, i, j) + G(i, j) + (i == j ? 0.1 : 0.0)
    B(u, i) +=! (1.0 + Conf(u, l)) * Fac(Items(u, l), i)
}''', args=lambda g: [rn(g, 3000, 24, k=0.2), ri(g, 0, 3000, 128, 37), ru(g, 128, 37, lo=1.0, hi=20.0)], torch=_als, tol=2e-5))


def _cin(X0, Xk, W, b):
    Z = (Xk[:, :, None] * X0[:, None]).flatten(1, 2)
    Y = F.relu(F.conv1d(Z, W.flatten(1)[:, :, None], b))
    return Y, Y.sum(2)


op(dict(name="xdeepfm_cin_layer", text='''
def xdeepfm_cin_layer(float(B,M,D) X0, float(B,H,D) Xk, float(O,H,M) Wt, float(O) Bias) -> (Y, Pool) {
    Z(b, o, d) +=! Wt(o, h, m) * Xk(b, h, d) * X0(b, m, d)
    Y(b, o, d) = relu(Z(b, o, d) + Bias(o))
    Pool(b, o) +=! Y(b, o, d)
}''', args=lambda g: [rn(g, 96, 20, 10), rn(g, 96, 24, 10), rn(g, 32, 24, 20, k=0.05), rn(g, 32)], torch=_cin, tol=2e-5))


def _rgcn(X, Src, Dst, Rel, Coef, Basis, Root):
    Z = torch.einsum("ni,bio->nbo", X, Basis)
    msg = (Coef[Rel][:, :, None] * Z[Src]).sum(1)
    deg = torch.bincount(Dst, minlength=X.shape[0]).clamp_min(1)
    A = torch.zeros(X.shape[0], Root.shape[1]).index_add(0, Dst, msg)
    return F.relu(X @ Root + A / deg[:, None])


op(dict(name="rgcn_basis_edges", text='''
def rgcn_basis_edges(float(N,I) X, int64(E) Src, int64(E) Dst, int64(E) Rel, float(R,B) Coef, float(B,I,O) Basis, float(I,O) Root) -> (Y) {
    Deg(Dst(e)) +=! 1.0 where Dst(e) in 0:N
    Z(n, b, o) +=! X(n, i) * Basis(b, i, o)
    A(Dst(e), o) +=! Coef(Rel(e), b) * Z(Src(e), b, o) where Dst(e) in 0:N
    Y(n, o) +=! X(n, i) * Root(i, o)
    Y(n, o) = relu(Y(n, o) + A(n, o) / max(Deg(n), 1.0))
}''', args=lambda g: [rn(g, 800, 32), ri(g, 0, 800, 5000), ri(g, 0, 800, 5000), ri(g, 0, 11, 5000), rn(g, 11, 4), rn(g, 4, 32, 40, k=0.1), rn(g, 32, 40, k=0.1)], torch=_rgcn, tol=2e-5))


def _tsne(Y, P):
    d = Y[:, None] - Y
    q = 1 / (1 + d.square().sum(-1))
    q = q - torch.diag(q.diagonal())
    Q = q / q.sum()
    off = ~torch.eye(Y.shape[0], dtype=torch.bool)
    return 4 * (((P - Q) * q)[..., None] * d).sum(1), torch.where(off, P * torch.log(P / Q), 0.0).sum()


def a_tsne(g):
    p = torch.exp(-torch.cdist(x := rn(g, 400, 5, dt=f64), x))
    p = p - torch.diag(p.diagonal())
    return [rn(g, 400, 2, dt=f64), p / p.sum()]


op(dict(name="tsne_gradient_kl", text='''
def tsne_gradient_kl(double(N,2) Yl, double(N,N) P) -> (Grad, Kl) {
    R(i, j) +=! (Yl(i, d) - Yl(j, d)) * (Yl(i, d) - Yl(j, d))
    Q(i, j) = (i != j) ? 1.0 / (1.0 + R(i, j)) : 0.0
    Zs +=! Q(i, j)
    Grad(i, d) +=! 4.0 * (P(i, j) - Q(i, j) / Zs) * Q(i, j) * (Yl(i, d) - Yl(j, d))
    Kl +=! (i != j) ? P(i, j) * log(P(i, j) * Zs / Q(i, j)) : 0.0
}''', args=a_tsne, torch=_tsne, tol=1e-9))


def _gmm(X, Mu, Prec, LogPi):
    q = (Prec * (X[:, None] - Mu).square()).sum(-1)
    lp = 0.5 * (torch.log(Prec).sum(1) - q) + LogPi
    R = torch.softmax(lp, 1)
    nk = R.sum(0)
    return R.T @ X / nk[:, None], nk, torch.logsumexp(lp, 1).mean()


op(dict(name="gmm_diag_em_step", text='''
def gmm_diag_em_step(float(N,D) X, float(K,D) Mu, float(K,D) Prec, float(K) LogPi) -> (Mn, Nk, Ll) {
    Ld(k) +=! log(Prec(k, d))
    Lp(n, k) +=! Prec(k, d) * (X(n, d) - Mu(k, d)) * (X(n, d) - Mu(k, d))
    Lp(n, k) = 0.5 * (Ld(k) - Lp(n, k)) + LogPi(k)
    M(n) max=! Lp(n, k)
    Z(n) +=! exp(Lp(n, k) - M(n))
    Nk(k) +=! exp(Lp(n, k) - M(n)) / Z(n)
    Mn(k, d) +=! exp(Lp(n, k) - M(n)) / Z(n) * X(n, d)
    Mn(k, d) = Mn(k, d) / Nk(k)
    Ll +=! (M(n) + log(Z(n))) / N
}''', args=lambda g: [rn(g, 2000, 16), rn(g, 12, 16), ru(g, 12, 16, lo=0.5, hi=1.5), torch.log_softmax(rn(g, 12), 0)], torch=_gmm, tol=5e-5))


def _silhouette(X, Lab, Like):
    N, K = X.shape[0], Like.shape[0]
    D = torch.cdist(X, X, compute_mode="donot_use_mm_for_euclid_dist")
    S = torch.zeros(N, K).index_add(1, Lab, D)
    c = torch.bincount(Lab, minlength=K)
    own = F.one_hot(Lab, K).bool()
    a = S[own] / (c[Lab] - 1).clamp_min(1)
    b = (S / c).masked_fill(own, torch.inf).amin(1)
    return (b - a) / torch.maximum(a, b)


op(dict(name="silhouette_samples", text='''
def silhouette_samples(float(N,D) X, int64(N) Lab, float(K) Like) -> (Y) {
    Dist(i, j) +=! (X(i, d) - X(j, d)) * (X(i, d) - X(j, d))
    Dist(i, j) = sqrt(Dist(i, j))
    S(i, Lab(j)) +=! Dist(i, j) where Lab(j) in 0:K
    Cnt(Lab(j)) +=! 1.0 where Lab(j) in 0:K
    A(i) = S(i, Lab(i)) / max(Cnt(Lab(i)) - 1.0, 1.0)
    B(i) min=! (k != Lab(i)) ? S(i, k) / Cnt(k) : infinity()
    Y(i) = (B(i) - A(i)) / max(A(i), B(i))
}''', args=lambda g: [rn(g, 500, 10), torch.cat([torch.arange(7), ri(g, 0, 7, 493)]), torch.zeros(7)], torch=_silhouette, tol=1e-4))


# ---------------------------------------------------------------- time series, weather, chemistry, biology

def _lomb(t, y, w):
    a = w[:, None] * t
    tau = torch.atan2(torch.sin(2 * a).sum(1), torch.cos(2 * a).sum(1)) / (2 * w)
    a = w[:, None] * (t - tau[:, None])
    c, s = torch.cos(a), torch.sin(a)
    return 0.5 * ((c @ y).square() / c.square().sum(1) + (s @ y).square() / s.square().sum(1))


op(dict(name="lomb_scargle_tau", text='''
def lomb_scargle_tau(double(N) T, double(N) Yt, double(K) Om) -> (P) {
    S2(k) +=! sin(2.0 * Om(k) * T(n))
    C2(k) +=! cos(2.0 * Om(k) * T(n))
    Tau(k) = atan2(S2(k), C2(k)) / (2.0 * Om(k))
    C(k, n) = cos(Om(k) * (T(n) - Tau(k)))
    S(k, n) = sin(Om(k) * (T(n) - Tau(k)))
    Yc(k) +=! Yt(n) * C(k, n)
    Ys(k) +=! Yt(n) * S(k, n)
    Cc(k) +=! C(k, n) * C(k, n)
    Ss(k) +=! S(k, n) * S(k, n)
    P(k) = 0.5 * (Yc(k) * Yc(k) / Cc(k) + Ys(k) * Ys(k) / Ss(k))
}''', args=lambda g: [torch.sort(ru(g, 300, dt=f64, hi=50.0)).values, rn(g, 300, dt=f64), torch.linspace(0.2, 8.0, 401, dtype=f64)], torch=_lomb, tol=1e-9))


def _crps(E, O, w):
    M = E.shape[0]
    a = (E - O).abs().mean(0)
    b = (E[:, None] - E).abs().sum((0, 1)) / (2 * M * (M - 1))
    return ((a - b) * w[:, None]).mean((1, 2))


op(dict(name="crps_ensemble_fair", text='''
def crps_ensemble_fair(float(M,T,Y,X) Ens, float(T,Y,X) Obs, float(Y) Wt) -> (Crps) {
    A(t, y, x) +=! fabs(Ens(m, t, y, x) - Obs(t, y, x)) / M
    B(t, y, x) +=! fabs(Ens(m, t, y, x) - Ens(l, t, y, x)) / (2 * M * (M - 1))
    Crps(t) +=! (A(t, y, x) - B(t, y, x)) * Wt(y) / (Y * X)
}''', args=lambda g: [rn(g, 12, 3, 41, 60), rn(g, 3, 41, 60), torch.cos(torch.linspace(-1.5, 1.5, 41))], torch=_crps, tol=5e-5))


def _plev(T, P, Lev):
    K = (P[None] <= Lev[:, None, None, None]).sum(1).clamp(1, P.shape[0] - 1)
    L = torch.log(P)
    l0, l1, t0, t1 = L.gather(0, K - 1), L.gather(0, K), T.gather(0, K - 1), T.gather(0, K)
    return t0 + (torch.log(Lev)[:, None, None] - l0) / (l1 - l0) * (t1 - t0)


op(dict(name="pressure_level_interp", text='''
def pressure_level_interp(double(Z,Y,X) Tm, double(Z,Y,X) Pr, double(L) Lev) -> (O) {
    Lp(z, y, x) = log(Pr(z, y, x))
    N(l, y, x) +=! (Pr(z, y, x) <= Lev(l)) ? 1 : 0
    K(l, y, x) = min(max(N(l, y, x), 1), Z - 1)
    O(l, y, x) = Tm(K(l, y, x) - 1, y, x) + (log(Lev(l)) - Lp(K(l, y, x) - 1, y, x)) / (Lp(K(l, y, x), y, x) - Lp(K(l, y, x) - 1, y, x))
               * (Tm(K(l, y, x), y, x) - Tm(K(l, y, x) - 1, y, x))
}''', args=lambda g: [200 + rn(g, 20, 37, 48, dt=f64, k=10.0), ru(g, 20, 37, 48, dt=f64, lo=20.0, hi=80.0).cumsum(0), torch.linspace(150.0, 850.0, 9, dtype=f64)], torch=_plev, tol=1e-10))


def _gga(Ao, Dm, W):
    R = ((Ao[0] @ Dm) * Ao).sum(-1)
    rho, sg = R[0], 4 * R[1:].square().sum(0)
    s2 = sg / (38.283120002509214 * rho ** 2.6666666666666667)
    fx = 1.804 - 0.804 / (1 + 0.27302857309019 * s2)
    return rho, (W * -0.738558766382022 * rho ** 1.3333333333333333 * fx).sum()


def a_gga(g):
    c = rn(g, 60, 12, dt=f64)
    return [rn(g, 4, 1500, 60, dt=f64, k=0.2), c @ c.T, ru(g, 1500, dt=f64)]


op(dict(name="pbe_exchange_on_grid", text='''
def pbe_exchange_on_grid(double(4,G,N) Ao, double(N,N) Dm, double(G) Wt) -> (Rho, Exc) {
    C(g, m) +=! Ao(0, g, n) * Dm(n, m)
    R(a, g) +=! C(g, m) * Ao(a, g, m)
    Rho(g) = R(0, g)
    S2(g) = 4.0 * (R(1, g) * R(1, g) + R(2, g) * R(2, g) + R(3, g) * R(3, g)) / (38.283120002509214 * pow(R(0, g), 2.6666666666666667))
    Exc +=! Wt(g) * -0.738558766382022 * pow(R(0, g), 1.3333333333333333) * (1.804 - 0.804 / (1.0 + 0.27302857309019 * S2(g)))
}''', args=a_gga, torch=_gga, tol=1e-9))


def _ewald(X, q, box, alpha):
    d = X[:, None] - X
    r2 = (d - box * torch.round(d / box)).square().sum(-1)
    ok = (r2 < 20.25) & ~torch.eye(X.shape[0], dtype=torch.bool)
    r = torch.where(ok, r2, 1.0).sqrt()
    return torch.where(ok, 0.5 * q[:, None] * q * torch.erfc(alpha * r) / r, 0.0).sum(1)


op(dict(name="ewald_real_min_image", text='''
def ewald_real_min_image(double(N,3) X, double(N) Q, double box, double alpha) -> (E) {
    R2(i, j) +=! d * d where d = X(i, a) - X(j, a) - box * round((X(i, a) - X(j, a)) / box)
    E(i) +=! (i != j && R2(i, j) < 20.25) ? 0.5 * Q(i) * Q(j) * erfc(alpha * sqrt(R2(i, j))) / sqrt(R2(i, j)) : 0.0
}''', args=lambda g: [ru(g, 320, 3, dt=f64, hi=9.7), rn(g, 320, dt=f64), torch.tensor(9.7, dtype=f64), torch.tensor(0.6, dtype=f64)], torch=_ewald, tol=1e-9))


def _grm(G):
    V = (G >= 0).float()
    x = G.float() * V
    p = x.sum(0) / (2 * V.sum(0))
    Z = (x - 2 * p) * torch.rsqrt(2 * p * (1 - p)) * V
    return (Z @ Z.T) / (V @ V.T)


op(dict(name="grm_missing_genotypes", text='''
def grm_missing_genotypes(int8(N,M) G) -> (A) {
    V(n, m) = (G(n, m) >= 0) ? 1.0 : 0.0
    Nv(m) +=! V(n, m)
    P(m) +=! (G(n, m) >= 0) ? float(G(n, m)) : 0.0
    P(m) = P(m) / (2.0 * Nv(m))
    Z(n, m) = (G(n, m) >= 0) ? (float(G(n, m)) - 2.0 * P(m)) * rsqrt(2.0 * P(m) * (1.0 - P(m))) : 0.0
    C(i, j) +=! V(i, m) * V(j, m)
    A(i, j) +=! Z(i, m) * Z(j, m)
    A(i, j) = A(i, j) / C(i, j)
}''', args=lambda g: [torch.where(ru(g, 121, 1503) < 0.03, -1, (ru(g, 2, 121, 1503) < ru(g, 1503, lo=0.1, hi=0.5)).sum(0)).to(i8)], torch=_grm, tol=5e-5))


def _lddt(Pp, Pt):
    dp, dt = ((X[:, :, None] - X[:, None]).square().sum(-1).sqrt() for X in (Pp, Pt))
    ok = (dt < 15) & ~torch.eye(Pp.shape[1], dtype=torch.bool)
    e = (dp - dt).abs()
    s = 0.25 * sum((e < c).float() for c in (0.5, 1.0, 2.0, 4.0))
    return (s * ok).sum(2) / ok.sum(2).clamp_min(1)


op(dict(name="lddt_ca", text='''
def lddt_ca(double(B,N,3) Pp, double(B,N,3) Pt) -> (Y) {
    Dp(b, i, j) +=! (Pp(b, i, a) - Pp(b, j, a)) * (Pp(b, i, a) - Pp(b, j, a))
    Dt(b, i, j) +=! (Pt(b, i, a) - Pt(b, j, a)) * (Pt(b, i, a) - Pt(b, j, a))
    Err(b, i, j) = fabs(sqrt(Dp(b, i, j)) - sqrt(Dt(b, i, j)))
    S(b, i) +=! (i != j && Dt(b, i, j) < 225.0)
        ? 0.25 * ((Err(b, i, j) < 0.5 ? 1.0 : 0.0) + (Err(b, i, j) < 1.0 ? 1.0 : 0.0) + (Err(b, i, j) < 2.0 ? 1.0 : 0.0) + (Err(b, i, j) < 4.0 ? 1.0 : 0.0)) : 0.0
    C(b, i) +=! (i != j && Dt(b, i, j) < 225.0) ? 1.0 : 0.0
    Y(b, i) = S(b, i) / max(C(b, i), 1.0)
}''', args=lambda g: (lambda t: [t + rn(g, 2, 201, 3, dt=f64), t])(rn(g, 2, 201, 3, dt=f64, k=12.0)), torch=_lddt, tol=1e-6))


def _fape(Rp, Tp, Xp, Rt, Tt, Xt):
    local = lambda R, T, X: torch.einsum("fba,fpb->fpa", R, X - T[:, None])
    d = (local(Rp, Tp, Xp) - local(Rt, Tt, Xt)).square().sum(-1)
    return torch.sqrt(d + 1e-4).clamp_max(10).mean() / 10


op(dict(name="fape_loss", text='''
def fape_loss(float(F,3,3) Rp, float(F,3) Tp, float(P,3) Xp, float(F,3,3) Rt, float(F,3) Tt, float(P,3) Xt) -> (Loss) {
    Lp(f, p, a) +=! Rp(f, b, a) * (Xp(p, b) - Tp(f, b))
    Lt(f, p, a) +=! Rt(f, b, a) * (Xt(p, b) - Tt(f, b))
    D(f, p) +=! (Lp(f, p, a) - Lt(f, p, a)) * (Lp(f, p, a) - Lt(f, p, a))
    Loss +=! min(sqrt(D(f, p) + 1e-4), 10.0) / 10.0 / float(F * P)
}''', args=lambda g: [t for _ in range(2) for t in (torch.linalg.qr(rn(g, 120, 3, 3)).Q, rn(g, 120, 3, k=4.0), rn(g, 351, 3, k=4.0))], torch=_fape, tol=5e-5))


def _mi(Msa, W):
    L = Msa.shape[1]
    O = F.one_hot(Msa.long(), 5).float().flatten(1)
    Fr = ((O * W[:, None]).T @ O).view(L, 5, L, 5).permute(0, 2, 1, 3)
    P = (O * W[:, None]).sum(0).view(L, 5)
    return torch.xlogy(Fr, Fr / (P[:, None, :, None] * P[:, None, :])).sum((2, 3))


op(dict(name="msa_mutual_information", text='''
def msa_mutual_information(uint8(S,L) Msa, float(S) Wt) -> (Mi) {
    Fr(i, j, Msa(s, i), Msa(s, j)) +=! Wt(s) where Msa(s, i) in 0:5, Msa(s, j) in 0:5
    P(i, Msa(s, i)) +=! Wt(s) where Msa(s, i) in 0:5
    Mi(i, j) +=! (Fr(i, j, a, b) > 0.0) ? Fr(i, j, a, b) * log(Fr(i, j, a, b) / (P(i, a) * P(j, b))) : 0.0
}''', args=lambda g: [ri(g, 0, 5, 600, 41, dt=u8), (lambda w: w / w.sum())(ru(g, 600, lo=0.2))], torch=_mi, tol=5e-5))
