# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Losses of geometry and likelihoods, tensor networks, scans, graphs and segments that are trained with; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.networks import bf16, f64, ri, rn, ru
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)


# ---------------------------------------------------------------- geometry

def _chamfer_n(P, Q, Np, Nq):
    d = (P[:, :, None] - Q[:, None]).square().sum(-1)
    (mp, ip), (mq, iq) = d.min(2), d.min(1)
    cp = (Np * Nq.gather(1, ip[..., None].expand(-1, -1, 3))).sum(-1)
    cq = (Nq * Np.gather(1, iq[..., None].expand(-1, -1, 3))).sum(-1)
    return mp.mean() + mq.mean(), (1 - cp.abs()).mean() + (1 - cq.abs()).mean()


op(dict(name="chamfer_normal_consistency", text='''
def chamfer_normal_consistency(float(B,N,3) P, float(B,M,3) Q, float(B,N,3) Np, float(B,M,3) Nq) -> (Cd, Nc) {
    D(b, i, j) +=! (P(b, i, d) - Q(b, j, d)) * (P(b, i, d) - Q(b, j, d))
    Mp(b, i) min=! D(b, i, j)
    Mq(b, j) min=! D(b, i, j)
    Ip(b, i) min=! D(b, i, j) == Mp(b, i) ? j : M - 1
    Iq(b, j) min=! D(b, i, j) == Mq(b, j) ? i : N - 1
    Cp(b, i) +=! Np(b, i, d) * Nq(b, Ip(b, i), d)
    Cq(b, j) +=! Nq(b, j, d) * Np(b, Iq(b, j), d)
    Cd +=! Mp(b, i) / (B * N)
    Cd += Mq(b, j) / (B * M)
    Nc +=! (1.0 - abs(Cp(b, i))) / (B * N)
    Nc += (1.0 - abs(Cq(b, j))) / (B * M)
}''', args=lambda g: [rn(g, 2, 397, 3), rn(g, 2, 451, 3), F.normalize(rn(g, 2, 397, 3), dim=-1), F.normalize(rn(g, 2, 451, 3), dim=-1)], torch=_chamfer_n, tol=2e-5))


def _capsules(A, E, Rad, Tg):
    H, W = Tg.shape
    p = torch.stack(torch.meshgrid((torch.arange(W) + 0.5) / W, (torch.arange(H) + 0.5) / H, indexing="xy"), -1)[:, :, None]
    ab = E - A
    t = (((p - A) * ab).sum(-1) / (ab.square().sum(-1) + 1e-6)).clamp(0, 1)
    d = ((p - A - t[..., None] * ab).square().sum(-1) + 1e-8).sqrt() - Rad
    sil = 1 - torch.sigmoid(d / 0.02).prod(-1)
    return F.mse_loss(sil, Tg), sil


op(dict(name="soft_capsule_silhouette", text='''
def soft_capsule_silhouette(float(K,2) A, float(K,2) E, float(K) Rad, float(H,W) Tg) -> (Loss, Sil) {
    T(y, x, k) = clamp((((x + 0.5) / W - A(k, 0)) * bx + ((y + 0.5) / H - A(k, 1)) * by) / (bx * bx + by * by + 1e-6), 0.0, 1.0)
        where bx = E(k, 0) - A(k, 0), by = E(k, 1) - A(k, 1), y in 0:H, x in 0:W
    Ds(y, x, k) = sqrt(dx * dx + dy * dy + 1e-8) - Rad(k)
        where dx = (x + 0.5) / W - A(k, 0) - T(y, x, k) * (E(k, 0) - A(k, 0)), dy = (y + 0.5) / H - A(k, 1) - T(y, x, k) * (E(k, 1) - A(k, 1))
    Out(y, x) *=! sigmoid(Ds(y, x, k) / 0.02)
    Sil(y, x) = 1.0 - Out(y, x)
    Loss +=! (Sil(y, x) - Tg(y, x)) * (Sil(y, x) - Tg(y, x)) / (H * W)
}''', args=lambda g: [ru(g, 23, 2), ru(g, 23, 2), ru(g, 23, lo=0.01, hi=0.05), ru(g, 61, 83)], torch=_capsules, tol=5e-5))


def _sdf(X, C, Hs, An, Rd, Tg):
    d, c, s = X[:, None] - C, An.cos(), An.sin()
    q = torch.stack([c * d[..., 0] + s * d[..., 1], c * d[..., 1] - s * d[..., 0], d[..., 2]], -1).abs() - Hs
    di = (F.relu(q).square().sum(-1) + 1e-12).sqrt() + q.amax(-1).clamp_max(0) - Rd
    sd = -0.05 * torch.logsumexp(-di / 0.05, 1)
    return sd, F.l1_loss(sd.clamp(-0.1, 0.1), Tg.clamp(-0.1, 0.1))


op(dict(name="sdf_boxes_smooth_union_f64", text='''
def sdf_boxes_smooth_union_f64(double(N,3) X, double(K,3) C, double(K,3) Hs, double(K) An, double(K) Rd, double(N) Tg) -> (Sd, Loss) {
    Qx(n, k) = abs(cos(An(k)) * (X(n, 0) - C(k, 0)) + sin(An(k)) * (X(n, 1) - C(k, 1))) - Hs(k, 0)
    Qy(n, k) = abs(cos(An(k)) * (X(n, 1) - C(k, 1)) - sin(An(k)) * (X(n, 0) - C(k, 0))) - Hs(k, 1)
    Qz(n, k) = abs(X(n, 2) - C(k, 2)) - Hs(k, 2)
    Di(n, k) = sqrt(a * a + b * b + c * c + 1e-12) + min(max(Qx(n, k), max(Qy(n, k), Qz(n, k))), 0.0) - Rd(k)
        where a = max(Qx(n, k), 0.0), b = max(Qy(n, k), 0.0), c = max(Qz(n, k), 0.0)
    Mn(n) min=! Di(n, k)
    Z(n) +=! exp((Mn(n) - Di(n, k)) / 0.05)
    Sd(n) = Mn(n) - 0.05 * log(Z(n))
    Loss +=! abs(clamp(Sd(n), -0.1, 0.1) - clamp(Tg(n), -0.1, 0.1)) / N
}''', args=lambda g: [ru(g, 1201, 3, dt=f64), ru(g, 37, 3, dt=f64), ru(g, 37, 3, dt=f64, lo=0.03, hi=0.12), ru(g, 37, dt=f64, hi=3.14), ru(g, 37, dt=f64, lo=0.005, hi=0.03), rn(g, 1201, dt=f64, k=0.06)], torch=_sdf, tol=1e-10))


def _trilinear(X, Gd, W1, B1):
    P = X * (torch.tensor(Gd.shape[:3]) - 1)
    (i, j, k), (u, v, w) = P.floor().long().unbind(1), (P - P.floor())[..., None].unbind(1)
    line = lambda a, b: torch.lerp(Gd[i + a, j + b, k], Gd[i + a, j + b, k + 1], w)
    plane = lambda a: torch.lerp(line(a, 0), line(a, 1), v)
    return F.relu(F.linear(torch.lerp(plane(0), plane(1), u), W1, B1))


op(dict(name="trilinear_grid_relu_head", text='''
def trilinear_grid_relu_head(float(N,3) X, float(U,V,W,C) Gd, float(O,C) W1, float(O) B1) -> (Y) {
    P(n, a) = X(n, a) * float(a == 0 ? U - 1 : (a == 1 ? V - 1 : W - 1))
    I(n, a) = int32(floor(P(n, a)))
    Fr(n, a) = P(n, a) - floor(P(n, a))
    Wt(n, i, j, k) = (i == 0 ? 1.0 - Fr(n, 0) : Fr(n, 0)) * (j == 0 ? 1.0 - Fr(n, 1) : Fr(n, 1)) * (k == 0 ? 1.0 - Fr(n, 2) : Fr(n, 2)) where i in 0:2, j in 0:2, k in 0:2
    Ft(n, c) +=! Wt(n, i, j, k) * Gd(I(n, 0) + i, I(n, 1) + j, I(n, 2) + k, c)
    Y(n, o) +=! Ft(n, c) * W1(o, c)
    Y(n, o) = relu(Y(n, o) + B1(o))
}''', args=lambda g: [ru(g, 3001, 3, lo=0.001, hi=0.999), rn(g, 17, 19, 23, 12), rn(g, 29, 12, k=0.3), rn(g, 29, k=0.1)], torch=_trilinear, tol=3e-5))


# ---------------------------------------------------------------- likelihoods and losses

def _mdn(X, Wp, Wm, Ws, Y):
    mu, ls = torch.einsum("ni,kdi->nkd", X, Wm), torch.einsum("ni,kdi->nkd", X, Ws)
    lp = F.log_softmax(X @ Wp.T, -1) + torch.distributions.Normal(mu, ls.exp()).log_prob(Y[:, None]).sum(-1)
    return -torch.logsumexp(lp, 1).mean()


op(dict(name="mdn_diagonal_nll", text='''
def mdn_diagonal_nll(float(N,I) X, float(K,I) Wp, float(K,D,I) Wm, float(K,D,I) Ws, float(N,D) Y) -> (Loss) {
    Lp(n, k) +=! X(n, i) * Wp(k, i)
    Mu(n, k, d) +=! X(n, i) * Wm(k, d, i)
    Ls(n, k, d) +=! X(n, i) * Ws(k, d, i)
    A(n, k) +=! -0.5 * z * z - Ls(n, k, d) - 0.9189385332046727 where z = (Y(n, d) - Mu(n, k, d)) * exp(-Ls(n, k, d))
    A(n, k) = A(n, k) + Lp(n, k)
    Ma(n) max=! A(n, k)
    Za(n) +=! exp(A(n, k) - Ma(n))
    Mp(n) max=! Lp(n, k)
    Zp(n) +=! exp(Lp(n, k) - Mp(n))
    Loss +=! (Mp(n) + log(Zp(n)) - Ma(n) - log(Za(n))) / N
}''', args=lambda g: [rn(g, 701, 67), rn(g, 5, 67, k=0.1), rn(g, 5, 11, 67, k=0.1), rn(g, 5, 11, 67, k=0.02), rn(g, 701, 11)], torch=_mdn, tol=2e-5))


def _crf(E, Tr, St, Y):
    a = St + E[:, 0]
    for t in range(1, E.shape[1]):
        a = torch.logsumexp(a[:, :, None] + Tr, 1) + E[:, t]
    gold = E.gather(2, Y[..., None]).sum((1, 2)) + Tr[Y[:, :-1], Y[:, 1:]].sum(1) + St[Y[:, 0]]
    return (a.logsumexp(1) - gold).mean()


op(dict(name="crf_nll_nine_steps", text='''
def crf_step(float(B,K) A, float(B,9,K) E, float(K,K) Tr, int32 t) -> (N) {
    M(b, j) max=! A(b, i) + Tr(i, j)
    Z(b, j) +=! exp(A(b, i) + Tr(i, j) - M(b, j))
    N(b, j) = M(b, j) + log(Z(b, j)) + E(b, t, j)
}
def crf_nll_nine_steps(float(B,9,K) E, float(K,K) Tr, float(K) St, int64(B,9) Y) -> (Loss) {
    A0(b, j) = St(j) + E(b, 0, j)
    A1 = crf_step(A0, E, Tr, 1)
    A2 = crf_step(A1, E, Tr, 2)
    A3 = crf_step(A2, E, Tr, 3)
    A4 = crf_step(A3, E, Tr, 4)
    A5 = crf_step(A4, E, Tr, 5)
    A6 = crf_step(A5, E, Tr, 6)
    A7 = crf_step(A6, E, Tr, 7)
    A8 = crf_step(A7, E, Tr, 8)
    M(b) max=! A8(b, j)
    Z(b) +=! exp(A8(b, j) - M(b))
    G(b) +=! E(b, t, Y(b, t))
    G(b) += Tr(Y(b, t), Y(b, t + 1))
    Loss +=! (M(b) + log(Z(b)) - G(b) - St(Y(b, 0))) / B
}''', args=lambda g: [rn(g, 61, 9, 41), rn(g, 41, 41, k=0.5), rn(g, 41), ri(g, 0, 41, 61, 9)], torch=_crf, tol=2e-5))


def _moco(Q, K, Qu):
    q, k = F.normalize(Q.float(), dim=1), F.normalize(K.float(), dim=1)
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ Qu.float().T], 1) / 0.07
    return F.cross_entropy(logits, torch.zeros(Q.shape[0], dtype=torch.int64))


op(dict(name="moco_queue_infonce_bf16", text='''
def moco_queue_infonce_bf16(bfloat16(N,D) Q, bfloat16(N,D) K, bfloat16(M,D) Qu) -> (Loss) {
    Rq(n) +=! float(Q(n, d)) * Q(n, d)
    Rk(n) +=! float(K(n, d)) * K(n, d)
    P(n) +=! float(Q(n, d)) * K(n, d)
    P(n) = P(n) * rsqrt(Rq(n)) * rsqrt(Rk(n)) / 0.07
    S(n, m) +=! float(Q(n, d)) * Qu(m, d)
    S(n, m) = S(n, m) * rsqrt(Rq(n)) / 0.07
    T(n) max=! S(n, m)
    T(n) = max(T(n), P(n))
    Z(n) +=! exp(S(n, m) - T(n))
    Loss +=! (T(n) + log(Z(n) + exp(P(n) - T(n))) - P(n)) / N
}''', args=lambda g: (lambda q: [q.to(bf16), (q + 0.7 * rn(g, 131, 96)).to(bf16), F.normalize(rn(g, 2039, 96), dim=1).to(bf16)])(rn(g, 131, 96)), torch=_moco, tol=1e-3))


def _listmle(S, Od):
    s = S.gather(1, Od)
    return (s.flip(1).logcumsumexp(1).flip(1) - s).sum(1).mean()


op(dict(name="listmle_permutation_nll", text='''
def listmle_permutation_nll(float(Q,N) S, int64(Q,N) Od) -> (Loss) {
    G(q, i) = S(q, Od(q, i))
    M(q) max=! G(q, i)
    Tl(q, i) +=! j >= i ? exp(G(q, j) - M(q)) : 0.0 where i in 0:N, j in 0:N
    Loss +=! (M(q) + log(Tl(q, i)) - G(q, i)) / Q
}''', args=lambda g: [rn(g, 151, 83, k=1.5), ru(g, 151, 83).argsort(1)], torch=_listmle, tol=2e-5))


def _sinkhorn(X, Y, G):
    c = (X[:, None] - Y).square().sum(-1)
    N, M = c.shape
    for _ in range(4):
        f = -0.1 * (torch.logsumexp((G - c) / 0.1, 1) - math.log(M))
        G = -0.1 * (torch.logsumexp((f[:, None] - c) / 0.1, 0) - math.log(N))
    return (torch.exp((f[:, None] + G - c) / 0.1) * c).mean()


op(dict(name="sinkhorn_cloud_cost_four", text='''
def to_rows(float(N,M) C, float(M) G) -> (P) {
    T(i) max=! G(j) - C(i, j)
    Z(i) +=! exp((G(j) - C(i, j) - T(i)) / 0.1)
    P(i) = -T(i) - 0.1 * log(Z(i) / M)
}
def to_columns(float(N,M) C, float(N) P) -> (G) {
    T(j) max=! P(i) - C(i, j)
    Z(j) +=! exp((P(i) - C(i, j) - T(j)) / 0.1)
    G(j) = -T(j) - 0.1 * log(Z(j) / N)
}
def sinkhorn_cloud_cost_four(float(N,D) X, float(M,D) Y, float(M) G) -> (Cost) {
    C(i, j) +=! (X(i, d) - Y(j, d)) * (X(i, d) - Y(j, d))
    P1 = to_rows(C, G)
    G1 = to_columns(C, P1)
    P2 = to_rows(C, G1)
    G2 = to_columns(C, P2)
    P3 = to_rows(C, G2)
    G3 = to_columns(C, P3)
    P4 = to_rows(C, G3)
    G4 = to_columns(C, P4)
    Cost +=! exp((P4(i) + G4(j) - C(i, j)) / 0.1) * C(i, j) / (N * M)
}''', args=lambda g: [ru(g, 203, 3), ru(g, 157, 3), rn(g, 157, k=0.05)], torch=_sinkhorn, tol=1e-4))


def _energy(X, Y):
    mean = lambda a, b: torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").mean()
    return 2 * mean(X, Y) - mean(X, X) - mean(Y, Y)


op(dict(name="energy_distance_clouds_f64", text='''
def energy_distance_clouds_f64(double(N,D) X, double(M,D) Y) -> (Ed) {
    Dc(i, j) +=! (X(i, d) - Y(j, d)) * (X(i, d) - Y(j, d))
    Dx(i, j) +=! (X(i, d) - X(j, d)) * (X(i, d) - X(j, d))
    Dy(i, j) +=! (Y(i, d) - Y(j, d)) * (Y(i, d) - Y(j, d))
    Sc +=! sqrt(Dc(i, j))
    Sx +=! i != j ? sqrt(Dx(i, j)) : 0.0
    Sy +=! i != j ? sqrt(Dy(i, j)) : 0.0
    Ed = 2.0 * Sc / (N * M) - Sx / (N * N) - Sy / (M * M)
}''', args=lambda g: [rn(g, 301, 17, dt=f64), rn(g, 263, 17, dt=f64, k=1.2) + 0.3], torch=_energy, tol=1e-10))


def _tversky(X, T):
    p = X.softmax(1)
    y = F.one_hot(T, X.shape[1]).movedim(-1, 1)
    tp, fp, fn = ((a * b).sum((0, 2, 3)) for a, b in ((p, y), (p, 1 - y), (1 - p, y)))
    return ((1 - (tp + 1) / (tp + 0.3 * fp + 0.7 * fn + 1)) ** 0.75).mean()


op(dict(name="focal_tversky_multiclass", text='''
def focal_tversky_multiclass(float(B,C,H,W) X, int64(B,H,W) T) -> (Loss) {
    M(b, y, x) max=! X(b, c, y, x)
    E(b, c, y, x) = exp(X(b, c, y, x) - M(b, y, x))
    Z(b, y, x) +=! E(b, c, y, x)
    P(b, c, y, x) = E(b, c, y, x) / Z(b, y, x)
    Tp(c) +=! T(b, y, x) == c ? P(b, c, y, x) : 0.0
    Ps(c) +=! P(b, c, y, x)
    Cn(c) +=! T(b, y, x) == c ? 1.0 : 0.0 where c in 0:C
    Ti(c) = (Tp(c) + 1.0) / (Tp(c) + 0.3 * (Ps(c) - Tp(c)) + 0.7 * (Cn(c) - Tp(c)) + 1.0)
    Loss +=! pow(1.0 - Ti(c), 0.75) / C
}''', args=lambda g: [rn(g, 2, 7, 61, 83, k=1.5), ri(g, 0, 7, 2, 61, 83)], torch=_tversky, tol=3e-5))


def _zloss(X, W, Y):
    l = F.linear(X, W).float()
    return F.cross_entropy(l, Y, label_smoothing=0.1) + 1e-4 * l.logsumexp(1).square().mean()


op(dict(name="smoothed_head_zloss_bf16", text='''
def smoothed_head_zloss_bf16(bfloat16(N,D) X, bfloat16(V,D) W, int64(N) Y) -> (Loss) {
    L(n, v) +=! X(n, d) * W(v, d)
    M(n) max=! float(L(n, v))
    Z(n) +=! exp(float(L(n, v)) - M(n))
    Sm(n) +=! float(L(n, v)) / V
    Ls(n) = M(n) + log(Z(n))
    Loss +=! (Ls(n) - 0.9 * float(L(n, Y(n))) - 0.1 * Sm(n) + 0.0001 * Ls(n) * Ls(n)) / N
}''', args=lambda g: [rn(g, 103, 88, dt=bf16), rn(g, 1511, 88, dt=bf16, k=0.15), ri(g, 0, 1511, 103)], torch=_zloss, tol=1e-2))


def _anova(Tb, Wl, Ix, Xv, Y):
    z = Tb[Ix] * Xv[..., None]
    p1, p2, p3 = z.sum(1), z.square().sum(1), (z ** 3).sum(1)
    logit = (0.5 * (p1 * p1 - p2) + (p1 ** 3 - 3 * p1 * p2 + 2 * p3) / 6).sum(1) + (Wl[Ix] * Xv).sum(1)
    return F.binary_cross_entropy_with_logits(logit, Y)


op(dict(name="anova_third_order_fm_logloss", text='''
def anova_third_order_fm_logloss(float(V,D) Tb, float(V) Wl, int64(B,F) Ix, float(B,F) Xv, float(B) Y) -> (Loss) {
    P1(b, d) +=! Tb(Ix(b, f), d) * Xv(b, f)
    P2(b, d) +=! z * z where z = Tb(Ix(b, f), d) * Xv(b, f)
    P3(b, d) +=! z * z * z where z = Tb(Ix(b, f), d) * Xv(b, f)
    Lg(b) +=! 0.5 * (P1(b, d) * P1(b, d) - P2(b, d)) + (P1(b, d) * P1(b, d) * P1(b, d) - 3.0 * P1(b, d) * P2(b, d) + 2.0 * P3(b, d)) / 6.0
    Lg(b) += Wl(Ix(b, f)) * Xv(b, f)
    Loss +=! (max(Lg(b), 0.0) - Lg(b) * Y(b) + log1p(exp(-abs(Lg(b))))) / B
}''', args=lambda g: [rn(g, 5003, 11, k=0.2), rn(g, 5003, k=0.1), ri(g, 0, 5003, 701, 23), ru(g, 701, 23, lo=0.2, hi=1.5), ri(g, 0, 2, 701).float()], torch=_anova, tol=3e-5))


def _biaffine(Hd, Dp, U, Wh, Bi, Ar, Lb):
    h = Hd[torch.arange(Hd.shape[0])[:, None], Ar]
    return F.cross_entropy((F.bilinear(h, Dp, U, Bi) + F.linear(h, Wh)).flatten(0, 1), Lb.flatten())


op(dict(name="biaffine_label_nll", text='''
def biaffine_label_nll(float(B,T,P) Hd, float(B,T,Q) Dp, float(L,P,Q) U, float(L,P) Wh, float(L) Bi, int64(B,T) Ar, int64(B,T) Lb) -> (Loss) {
    G(b, t, p) = Hd(b, Ar(b, t), p)
    S(b, t, l) +=! G(b, t, p) * U(l, p, q) * Dp(b, t, q)
    S(b, t, l) += G(b, t, p) * Wh(l, p)
    S(b, t, l) = S(b, t, l) + Bi(l)
    M(b, t) max=! S(b, t, l)
    Z(b, t) +=! exp(S(b, t, l) - M(b, t))
    Loss +=! (M(b, t) + log(Z(b, t)) - S(b, t, Lb(b, t))) / (B * T)
}''', args=lambda g: [rn(g, 5, 37, 51), rn(g, 5, 37, 43), rn(g, 19, 51, 43, k=0.03), rn(g, 19, 51, k=0.1), rn(g, 19), ri(g, 0, 37, 5, 37), ri(g, 0, 19, 5, 37)], torch=_biaffine, tol=3e-5))


# ---------------------------------------------------------------- scans, factored layers, experts, graphs

def _mingru(X, Wz, Bz, Wh):
    z, c = torch.sigmoid(F.linear(X, Wz, Bz)), F.linear(X, Wh)
    h, out = torch.zeros_like(c[:, 0]), []
    for t in range(X.shape[1]):
        h = torch.lerp(h, c[:, t], z[:, t])
        out.append(h)
    return torch.stack(out, 1)


op(dict(name="mingru_triangular_scan", text='''
def mingru_triangular_scan(float(B,T,D) X, float(H,D) Wz, float(H) Bz, float(H,D) Wh) -> (Y) {
    Zl(b, t, h) +=! X(b, t, d) * Wz(h, d)
    Zl(b, t, h) = Zl(b, t, h) + Bz(h)
    Cd(b, t, h) +=! X(b, t, d) * Wh(h, d)
    Lf(b, t, h) = -max(z, 0.0) - log1p(exp(-abs(z))) where z = Zl(b, t, h)
    Cs(b, t, h) +=! s <= t ? Lf(b, s, h) : 0.0 where t in 0:T, s in 0:T
    Y(b, t, h) +=! s <= t ? exp(Cs(b, t, h) - Cs(b, s, h)) * sigmoid(Zl(b, s, h)) * Cd(b, s, h) : 0.0 where t in 0:T, s in 0:T
}''', args=lambda g: [rn(g, 3, 61, 43), rn(g, 50, 43, k=0.15), rn(g, 50), rn(g, 50, 43, k=0.15)], torch=_mingru, tol=3e-5))


def _s5(U, La, Om, Br, Bi, Cr, Ci, D):
    lam, u = torch.exp(torch.complex(-La.exp(), Om)), torch.complex(U @ Br.T, U @ Bi.T)
    x, xs = torch.zeros_like(u[:, 0]), []
    for t in range(U.shape[1]):
        x = lam * x + u[:, t]
        xs.append(x)
    return 2 * (torch.stack(xs, 1) @ torch.complex(Cr, Ci).T).real + D * U


op(dict(name="s5_complex_state_scan", text='''
def s5_complex_state_scan(float(B,T,H) U, float(N) La, float(N) Om, float(N,H) Br, float(N,H) Bi, float(H,N) Cr, float(H,N) Ci, float(H) D) -> (Y) {
    Er(n, k) = exp(-exp(La(n)) * k) * cos(Om(n) * k) where k in 0:T
    Ei(n, k) = exp(-exp(La(n)) * k) * sin(Om(n) * k) where k in 0:T
    Ur(b, t, n) +=! U(b, t, h) * Br(n, h)
    Ui(b, t, n) +=! U(b, t, h) * Bi(n, h)
    Xr(b, t, n) +=! s <= t ? Er(n, t - s) * Ur(b, s, n) - Ei(n, t - s) * Ui(b, s, n) : 0.0 where t in 0:T, s in 0:T
    Xi(b, t, n) +=! s <= t ? Er(n, t - s) * Ui(b, s, n) + Ei(n, t - s) * Ur(b, s, n) : 0.0 where t in 0:T, s in 0:T
    Y(b, t, h) +=! 2.0 * (Cr(h, n) * Xr(b, t, n) - Ci(h, n) * Xi(b, t, n))
    Y(b, t, h) = Y(b, t, h) + D(h) * U(b, t, h)
}''', args=lambda g: [rn(g, 2, 89, 24), rn(g, 37, k=0.5) - 2.0, ru(g, 37, hi=1.5), rn(g, 37, 24, k=0.2), rn(g, 37, 24, k=0.2), rn(g, 24, 37, k=0.15), rn(g, 24, 37, k=0.15), rn(g, 24)], torch=_s5, tol=5e-5))


def _tt(X, G1, G2, G3, Bi):
    t = torch.einsum("nijk,iap->njkap", X, G1)
    t = torch.einsum("njkap,pjbq->nkabq", t, G2)
    return F.relu(torch.einsum("nkabq,qkc->nabc", t, G3) + Bi)


op(dict(name="tt_linear_three_cores", text='''
def tt_linear_three_cores(float(N,I,J,K) X, float(I,A,P) G1, float(P,J,B,Q) G2, float(Q,K,C) G3, float(A,B,C) Bi) -> (Y) {
    Y(n, a, b, c) +=! X(n, i, j, k) * G1(i, a, p) * G2(p, j, b, q) * G3(q, k, c)
    Y(n, a, b, c) = relu(Y(n, a, b, c) + Bi(a, b, c))
}''', args=lambda g: [rn(g, 131, 5, 7, 11), rn(g, 5, 6, 5, k=0.4), rn(g, 5, 7, 9, 5, k=0.2), rn(g, 5, 11, 10, k=0.15), rn(g, 6, 9, 10, k=0.3)], torch=_tt, tol=2e-5))


def _hyper(X, Cx, W, Hu, Hv, Bi):
    u, v = torch.einsum("bc,orc->bor", Cx, Hu), torch.einsum("bc,ric->bri", Cx, Hv)
    return F.gelu(F.linear(X, W, Bi) + X @ v.mT @ u.mT)


op(dict(name="hyper_linear_low_rank", text='''
def hyper_linear_low_rank(float(B,T,I) X, float(B,C) Cx, float(O,I) W, float(O,R,C) Hu, float(R,I,C) Hv, float(O) Bi) -> (Y) {
    U(b, o, r) +=! Cx(b, c) * Hu(o, r, c)
    V(b, r, i) +=! Cx(b, c) * Hv(r, i, c)
    Xv(b, t, r) +=! X(b, t, i) * V(b, r, i)
    A(b, t, o) +=! X(b, t, i) * W(o, i)
    A(b, t, o) += U(b, o, r) * Xv(b, t, r)
    Y(b, t, o) = 0.5 * z * (1.0 + erf(z * 0.7071067811865476)) where z = A(b, t, o) + Bi(o)
}''', args=lambda g: [rn(g, 7, 153, 61), rn(g, 7, 23), rn(g, 47, 61, k=0.12), rn(g, 47, 5, 23, k=0.1), rn(g, 5, 61, 23, k=0.03), rn(g, 47, k=0.2)], torch=_hyper, tol=3e-5))


def _moe(X, Wr, W1, W2):
    p = F.linear(X.float(), Wr.float()).softmax(-1)
    a = p[..., None] * F.relu(torch.einsum("nd,ejd->nej", X, W1)).square()
    return torch.einsum("nej,edj->nd", a.to(X.dtype), W2)


op(dict(name="dense_moe_relu2_bf16", text='''
def dense_moe_relu2_bf16(bfloat16(N,D) X, bfloat16(E,D) Wr, bfloat16(E,J,D) W1, bfloat16(E,D,J) W2) -> (bfloat16(N,D) Y) {
    Lr(n, e) +=! float(X(n, d)) * Wr(e, d)
    M(n) max=! Lr(n, e)
    P(n, e) = exp(Lr(n, e) - M(n))
    Z(n) +=! P(n, e)
    Hd(n, e, j) +=! X(n, d) * W1(e, j, d)
    A(n, e, j) = bfloat16(P(n, e) / Z(n) * relu(float(Hd(n, e, j))) * relu(float(Hd(n, e, j))))
    Y(n, d) +=! A(n, e, j) * W2(e, d, j)
}''', args=lambda g: [rn(g, 83, 96, dt=bf16), rn(g, 5, 96, dt=bf16, k=0.1), rn(g, 5, 131, 96, dt=bf16, k=0.1), rn(g, 5, 96, 131, dt=bf16, k=0.1)], torch=_moe, tol=3e-2))


def _gatv2e(Xl, Xr, Ef, We, A, Src, Dst):
    z = Xl[Src] + Xr[Dst] + torch.einsum("ef,hdf->ehd", Ef, We)
    s = (F.leaky_relu(z, 0.2) * A).sum(-1)
    m = torch.full_like(Xl[..., 0], -math.inf).scatter_reduce(0, Dst[:, None].expand_as(s), s.detach(), "amax")
    p = torch.exp(s - m[Dst])
    w = p / torch.zeros_like(m).index_add(0, Dst, p)[Dst]
    return torch.zeros_like(Xl).index_add(0, Dst, w[..., None] * Xl[Src])


op(dict(name="gatv2_edge_list_features", text='''
def gatv2_edge_list_features(float(N,H,D) Xl, float(N,H,D) Xr, float(E,F) Ef, float(H,D,F) We, float(H,D) A, int64(E) Src, int64(E) Dst) -> (float(N,H,D) Y) {
    Z(e, h, d) +=! Ef(e, f) * We(h, d, f)
    Z(e, h, d) = Z(e, h, d) + Xl(Src(e), h, d) + Xr(Dst(e), h, d)
    S(e, h) +=! A(h, d) * (Z(e, h, d) > 0.0 ? Z(e, h, d) : 0.2 * Z(e, h, d))
    M(Dst(e), h) max=! S(e, h) where Dst(e) in 0:N
    P(e, h) = exp(S(e, h) - M(Dst(e), h))
    Ps(Dst(e), h) +=! P(e, h) where Dst(e) in 0:N
    Y(Dst(e), h, d) +=! P(e, h) / Ps(Dst(e), h) * Xl(Src(e), h, d)
}''', args=lambda g: [rn(g, 601, 3, 20), rn(g, 601, 3, 20), rn(g, 3507, 13), rn(g, 3, 20, 13, k=0.3), rn(g, 3, 20, k=0.3), ri(g, 0, 601, 3507), ri(g, 0, 601, 3507)], torch=_gatv2e, tol=3e-5))


def _deepsets(X, Seg, W1, B1, W2, W3, Gf):
    z, G = F.relu(F.linear(X, W1, B1)), Gf.shape[0]
    mean = z.new_zeros(G, z.shape[1]).index_add(0, Seg, z) / torch.bincount(Seg, minlength=G)[:, None]
    top = z.new_full((G, z.shape[1]), -math.inf).scatter_reduce(0, Seg[:, None].expand_as(z), z, "amax")
    return Gf + F.linear(mean, W2) + F.linear(top, W3)


op(dict(name="deepsets_segment_mean_max", text='''
def deepsets_segment_mean_max(float(N,I) X, int64(N) Seg, float(H,I) W1, float(H) B1, float(O,H) W2, float(O,H) W3, float(G,O) Gf) -> (Y) {
    Z(n, h) +=! X(n, i) * W1(h, i)
    Z(n, h) = relu(Z(n, h) + B1(h))
    Cn(Seg(n)) +=! 1.0 where Seg(n) in 0:G
    Sm(Seg(n), h) +=! Z(n, h) where Seg(n) in 0:G
    Mx(Seg(n), h) max=! Z(n, h) where Seg(n) in 0:G
    Y(g, o) +=! Sm(g, h) / Cn(g) * W2(o, h) + Mx(g, h) * W3(o, h)
    Y(g, o) = Y(g, o) + Gf(g, o)
}''', args=lambda g: [rn(g, 3011, 29), torch.cat([torch.arange(97), ri(g, 0, 97, 3011 - 97)]).sort().values, rn(g, 47, 29, k=0.2), rn(g, 47, k=0.2), rn(g, 33, 47, k=0.15), rn(g, 33, 47, k=0.15), rn(g, 97, 33)], torch=_deepsets, tol=3e-5))
