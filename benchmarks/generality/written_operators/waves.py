# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Audio, graphs and meshes, waves and oceans, quantum chemistry, tensor networks, finance, statistics, genomes; as in ``learning``."""
from __future__ import annotations

import torch
import torch.nn.functional as F

from generality.written_operators.networks import f64, i32, of, ri, rn, ru, u8
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)
i16 = torch.int16


# ---------------------------------------------------------------- audio and signals

def _dac(X, A1, K1, B1, A2, K2, B2):
    snake = lambda x, a: x + torch.sin(a[:, None] * x).square() / (a[:, None] + 1e-9)
    z = F.conv1d(snake(X, A1), K1, B1, padding=9, dilation=3)
    return F.conv1d(snake(z, A2), K2[:, :, None], B2) + X


op(dict(name="dac_snake_residual_unit", text='''
def snake(float(B,C,L) X, float(C) Al) -> (Y) {
    Y(b, c, t) = X(b, c, t) + sin(Al(c) * X(b, c, t)) * sin(Al(c) * X(b, c, t)) / (Al(c) + 1e-9)
}
def dac_snake_residual_unit(float(B,C,L) X, float(C) A1, float(C,C,7) K1, float(C) B1, float(C) A2, float(C,C) K2, float(C) B2) -> (Y) {
    S = snake(X, A1)
    Z(b, o, t) +=! (t + 3*k >= 9 && t + 3*k < L + 9) ? S(b, c, t + 3*k - 9) * K1(o, c, k) : 0.0 where t in 0:L
    Z(b, o, t) = Z(b, o, t) + B1(o)
    R = snake(Z, A2)
    Y(b, o, t) +=! R(b, c, t) * K2(o, c)
    Y(b, o, t) = Y(b, o, t) + B2(o) + X(b, o, t)
}''', args=lambda g: [rn(g, 2, 48, 601), ru(g, 48, lo=0.3, hi=2.0), rn(g, 48, 48, 7, k=0.05), rn(g, 48), ru(g, 48, lo=0.3, hi=2.0), rn(g, 48, 48, k=0.14), rn(g, 48)], torch=_dac, tol=3e-5))


def _cic(X, r):
    r = int(r)

    def box(x):
        s = F.pad(x.cumsum(1, dtype=i32), (1, 0))
        return s[:, r:] - s[:, :-r]
    return box(box(box(X)))[:, ::r].contiguous()


op(dict(name="cic3_decimate_i32", text='''
def cic3_decimate_i32(int32(C,N) X, int32 r) -> (Y) {
    A(c, i) +=! X(c, i + k) where k in 0:r
    B(c, i) +=! A(c, i + k) where k in 0:r
    Y(c, m) +=! B(c, r*m + k) where k in 0:r
}''', args=lambda g: [ri(g, -2048, 2048, 4, 20011, dt=i32), of(16, i32)], torch=_cic, tol=0.0))


def _schroeder(X, early):
    sq = X.square()
    E = sq.flip(1).cumsum(1).flip(1)
    k = int(early)
    return (10 * torch.log10((E / E[:, :1]).clamp_min(1e-12)), 10 * torch.log10((E[:, 0] - E[:, k]) / E[:, k]),
            (sq * torch.arange(X.shape[1])).sum(1) / E[:, 0])


op(dict(name="schroeder_energy_decay", text='''
def schroeder_energy_decay(float(R,N) X, int32 early) -> (Db, C50, Ts) {
    Rv(r, t) +=! s <= t ? X(r, N - 1 - s) * X(r, N - 1 - s) : 0.0 where t in 0:N, s in 0:N
    Db(r, t) = 10.0 * log10(max(Rv(r, N - 1 - t) / Rv(r, N - 1), 1e-12)) where t in 0:N
    C50(r) = 10.0 * log10((Rv(r, N - 1) - Rv(r, N - 1 - early)) / Rv(r, N - 1 - early))
    Ts(r) +=! X(r, t) * X(r, t) * t / Rv(r, N - 1)
}''', args=lambda g: [rn(g, 6, 12001) * torch.exp(-torch.arange(12001) / 1500), of(800, i32)], torch=_schroeder, tol=1e-4))


# ---------------------------------------------------------------- graphs, meshes

def _hyper(X, Nd, He, We, Th):
    N, E = X.shape[0], We.shape[0]
    z = X @ Th
    dv = torch.zeros(N).index_add(0, Nd, We[He])
    dv = torch.where(dv > 0, dv.rsqrt(), 0.0)[:, None]
    de = torch.bincount(He, minlength=E).clamp_min(1)
    ms = torch.zeros(E, z.shape[1]).index_add(0, He, (dv * z)[Nd]) * (We / de)[:, None]
    return torch.zeros_like(z).index_add(0, Nd, ms[He]) * dv


op(dict(name="hypergraph_conv_mean", text='''
def hypergraph_conv_mean(float(N,D) X, int64(M) Nd, int64(M) He, float(E) We, float(D,F) Th) -> (Y) {
    Z(n, f) +=! X(n, d) * Th(d, f)
    Dv(Nd(m)) +=! We(He(m)) where Nd(m) in 0:N
    Dv(n) = Dv(n) > 0.0 ? rsqrt(Dv(n)) : 0.0
    De(He(m)) +=! 1.0 where He(m) in 0:E
    Ms(He(m), f) +=! Dv(Nd(m)) * Z(Nd(m), f) where He(m) in 0:E
    Ms(e, f) = Ms(e, f) * We(e) / max(De(e), 1.0)
    Y(Nd(m), f) +=! Dv(Nd(m)) * Ms(He(m), f) where Nd(m) in 0:N
}''', args=lambda g: [rn(g, 701, 48), ri(g, 0, 701, 5003), ri(g, 0, 300, 5003), ru(g, 300, lo=0.2), rn(g, 48, 40, k=0.15)], torch=_hyper, tol=3e-5))


def _dimenet(X, Sbf, W, Kj, Ji):
    U = torch.einsum("ei,osi->eos", X, W)
    return torch.zeros(X.shape[0], W.shape[0]).index_add(0, Ji, torch.einsum("tos,ts->to", U[Kj], Sbf))


op(dict(name="dimenet_bilinear_triplets", text='''
def dimenet_bilinear_triplets(float(E,I) X, float(T,S) Sbf, float(O,S,I) W, int64(T) Kj, int64(T) Ji) -> (float(E,O) Y) {
    U(e, o, s) +=! X(e, i) * W(o, s, i)
    M(t, o) +=! Sbf(t, s) * U(Kj(t), o, s)
    Y(Ji(t), o) +=! M(t, o)
}''', args=lambda g: [rn(g, 503, 32), rn(g, 6007, 7), rn(g, 32, 7, 32, k=0.1), ri(g, 0, 503, 6007), ri(g, 0, 503, 6007)], torch=_dimenet, tol=3e-5))


def _bp(U, Ps, Src, Dst, Rev, Msg, damp):
    bel = U.index_add(0, Dst, Msg)
    c = bel[Src] - Msg[Rev]
    new = (c - c.amax(1, keepdim=True)).exp() @ Ps.exp()
    return damp * Msg + (1 - damp) * (new / new.sum(1, keepdim=True)).log(), bel.softmax(1)


def _bp_args(g):
    a, b, m = ri(g, 0, 900, 1801), ri(g, 0, 900, 1801), torch.arange(1801)
    return [rn(g, 900, 11), rn(g, 11, 11), torch.cat([a, b]), torch.cat([b, a]), torch.cat([m + 1801, m]), rn(g, 3602, 11).log_softmax(1), of(0.3)]


op(dict(name="loopy_bp_messages", text='''
def loopy_bp_messages(float(N,S) U, float(S,S) Ps, int64(E) Src, int64(E) Dst, int64(E) Rev, float(E,S) Msg, float damp) -> (Mn, Mg) {
    Bel(n, s) = U(n, s)
    Bel(Dst(e), s) += Msg(e, s)
    C(e, s) = Bel(Src(e), s) - Msg(Rev(e), s)
    Mx(e) max=! C(e, s)
    L(e, t) +=! exp(Ps(s, t)) * exp(C(e, s) - Mx(e))
    Q(e) +=! L(e, t)
    Mn(e, t) = damp * Msg(e, t) + (1.0 - damp) * log(L(e, t) / Q(e))
    Bm(n) max=! Bel(n, s)
    Bz(n) +=! exp(Bel(n, s) - Bm(n))
    Mg(n, s) = exp(Bel(n, s) - Bm(n)) / Bz(n)
}''', args=_bp_args, torch=_bp, tol=3e-5))


def _cotan(V, Fc):
    X = V[Fc]
    A = X.roll(-1, 1) - X
    s2 = torch.linalg.cross(A[:, 0], A[:, 1]).norm(dim=1)
    w = -0.5 * (A * A.roll(-2, 1)).sum(2) / s2[:, None]
    e = (w[..., None] * A.roll(-1, 1)).flatten(0, 1)
    Y = torch.zeros_like(V).index_add(0, Fc.roll(-1, 1).flatten(), e).index_add(0, Fc.roll(-2, 1).flatten(), e, alpha=-1)
    return Y, torch.zeros(len(V)).index_add(0, Fc.flatten(), (s2 / 6).repeat_interleave(3))


def _cotan_args(g):
    a = ri(g, 0, 2003, 4001)
    return [rn(g, 2003, 3), torch.stack([a, (a + 1 + ri(g, 0, 900, 4001)) % 2003, (a + 1001 + ri(g, 0, 900, 4001)) % 2003], 1)]


op(dict(name="cotan_laplacian_faces", text='''
def cotan_laplacian_faces(float(N,3) V, int64(M,3) Fc) -> (float(N,3) Y, float(N) Ar) {
    A(m, k, d) = V(Fc(m, (k + 1) % 3), d) - V(Fc(m, k), d) where k in 0:3
    Cr(m, d) = A(m, 0, (d + 1) % 3) * A(m, 1, (d + 2) % 3) - A(m, 0, (d + 2) % 3) * A(m, 1, (d + 1) % 3) where d in 0:3
    S2(m) +=! Cr(m, d) * Cr(m, d)
    S2(m) = sqrt(S2(m))
    Wt(m, k) +=! -0.5 * A(m, k, d) * A(m, (k + 2) % 3, d) where k in 0:3
    Wt(m, k) = Wt(m, k) / S2(m)
    Y(Fc(m, (k + 1) % 3), d) +=! Wt(m, k) * A(m, (k + 1) % 3, d) where k in 0:3
    Y(Fc(m, (k + 2) % 3), d) += -Wt(m, k) * A(m, (k + 1) % 3, d) where k in 0:3
    Ar(Fc(m, k)) +=! S2(m) / 6.0
}''', args=_cotan_args, torch=_cotan, tol=1e-3))


# ---------------------------------------------------------------- waves, oceans, vortices

def _acoustic(U, Up, V2, Sp, Cf):
    k = torch.cat([Cf[1:].flip(0), 2 * Cf[:1], Cf[1:]])[None, None]
    u = U[None, None]
    lap = F.conv2d(u[:, :, 4:-4], k[:, :, None]) + F.conv2d(u[..., 4:-4], k[..., None])
    return Sp * (2 * U[4:-4, 4:-4] - Sp * Up[4:-4, 4:-4] + V2 * lap[0, 0])


op(dict(name="acoustic2d_o8_sponge_step", text='''
def acoustic2d_o8_sponge_step(float(H,W) U, float(H,W) Up, float(H-8,W-8) V2, float(H-8,W-8) Sp, float(5) Cf) -> (Un) {
    Lp(y, x) +=! Cf(k) * (U(y + 4 + k, x + 4) + U(y + 4 - k, x + 4) + U(y + 4, x + 4 + k) + U(y + 4, x + 4 - k)) where y in 0:H-8, x in 0:W-8
    Un(y, x) = Sp(y, x) * (2.0 * U(y + 4, x + 4) - Sp(y, x) * Up(y + 4, x + 4) + V2(y, x) * Lp(y, x)) where y in 0:H-8, x in 0:W-8
}''', args=lambda g: [rn(g, 509, 611), rn(g, 509, 611), ru(g, 501, 603, lo=0.05, hi=0.3), ru(g, 501, 603, lo=0.9, hi=1.0), torch.tensor([-205 / 144, 8 / 5, -1 / 5, 8 / 315, -1 / 560])], torch=_acoustic, tol=2e-5))


def _arakawa(P, Z, h, nu):
    p, z = (F.pad(a[None, None], (1, 1, 1, 1), mode="circular")[0, 0] for a in (P, Z))
    N, M = P.shape
    at = lambda a, i, j: a[1 + i:1 + i + N, 1 + j:1 + j + M]
    pe, pw, pn, ps, ze, zw, zn, zs = (at(a, *d) for a in (p, z) for d in ((1, 0), (-1, 0), (0, 1), (0, -1)))
    pne, pnw, pse, psw, zne, znw, zse, zsw = (at(a, *d) for a in (p, z) for d in ((1, 1), (-1, 1), (1, -1), (-1, -1)))
    J = (pe - pw) * (zn - zs) - (pn - ps) * (ze - zw)
    J = J + pe * (zne - zse) - pw * (znw - zsw) - pn * (zne - znw) + ps * (zse - zsw)
    J = J + zn * (pne - pnw) - zs * (pse - psw) - ze * (pne - pse) + zw * (pnw - psw)
    return nu * (ze + zw + zn + zs - 4 * Z) / (h * h) - J / (12 * h * h)


op(dict(name="arakawa_vorticity_rhs_f64", text='''
def arakawa_vorticity_rhs_f64(double(N,M) P, double(N,M) Z, double h, double nu) -> (Rhs) {
    J(i, j) = (P(e, j) - P(w, j)) * (Z(i, n) - Z(i, s)) - (P(i, n) - P(i, s)) * (Z(e, j) - Z(w, j))
        + P(e, j) * (Z(e, n) - Z(e, s)) - P(w, j) * (Z(w, n) - Z(w, s)) - P(i, n) * (Z(e, n) - Z(w, n)) + P(i, s) * (Z(e, s) - Z(w, s))
        + Z(i, n) * (P(e, n) - P(w, n)) - Z(i, s) * (P(e, s) - P(w, s)) - Z(e, j) * (P(e, n) - P(e, s)) + Z(w, j) * (P(w, n) - P(w, s))
        where i in 0:N, j in 0:M, e = (i + 1) % N, w = (i + N - 1) % N, n = (j + 1) % M, s = (j + M - 1) % M
    Rhs(i, j) = nu * (Z((i + 1) % N, j) + Z((i + N - 1) % N, j) + Z(i, (j + 1) % M) + Z(i, (j + M - 1) % M) - 4.0 * Z(i, j)) / (h * h) - J(i, j) / (12.0 * h * h)
        where i in 0:N, j in 0:M
}''', args=lambda g: [rn(g, 211, 241, dt=f64), rn(g, 211, 241, dt=f64), of(0.1, f64), of(0.02, f64)], torch=_arakawa, tol=1e-11))


def _ocean(Rho, Dz, Idx, idy, Wet):
    m = Dz[:, None, None] * Rho
    pr = 9.81 * (m.cumsum(1) - 0.5 * m)
    gx = torch.where(Wet & Wet.roll(-1, 2), Idx[:, None] * (pr.roll(-1, 3) - pr), 0.0)
    return gx, torch.where(Wet[:, 1:] & Wet[:, :-1], idy * (pr[:, :, 1:] - pr[:, :, :-1]), 0.0)


op(dict(name="ocean_pressure_gradient_f64", text='''
def ocean_pressure_gradient_f64(double(B,K,H,W) Rho, double(K) Dz, double(H) Idx, double idy, bool(K,H,W) Wet) -> (Gx, Gy) {
    C(b, k, y, x) +=! m <= k ? Dz(m) * Rho(b, m, y, x) : 0.0 where k in 0:K
    Pr(b, k, y, x) = 9.81 * (C(b, k, y, x) - 0.5 * Dz(k) * Rho(b, k, y, x))
    Gx(b, k, y, x) = Wet(k, y, x) && Wet(k, y, (x + 1) % W) ? Idx(y) * (Pr(b, k, y, (x + 1) % W) - Pr(b, k, y, x)) : 0.0 where x in 0:W
    Gy(b, k, y, x) = Wet(k, y, x) && Wet(k, y + 1, x) ? idy * (Pr(b, k, y + 1, x) - Pr(b, k, y, x)) : 0.0 where y in 0:H-1
}''', args=lambda g: [1025 + rn(g, 1, 31, 61, 73, dt=f64), ru(g, 31, dt=f64, lo=5.0, hi=50.0), ru(g, 61, dt=f64, lo=1e-5, hi=2e-5), of(1e-5, f64), ru(g, 31, 61, 73) < 0.8], torch=_ocean, tol=1e-9))


# ---------------------------------------------------------------- quantum chemistry and tensor networks

def _ccd(V, T):
    O, U = T.shape[0], T.shape[2]
    v, t = V.reshape(O * O, U * U), T.reshape(O * O, U * U)
    tp, vp = T.permute(0, 2, 1, 3).reshape(O * U, O * U), V.permute(0, 2, 1, 3).reshape(O * U, O * U)
    ring = (tp @ vp @ tp.T).view(O, U, O, U).permute(0, 2, 1, 3)
    return 0.25 * (t @ v.T @ t).view_as(T) + ring


op(dict(name="ccd_quadratic_terms_f64", text='''
def ccd_quadratic_terms_f64(double(O,O,U,U) V, double(O,O,U,U) T) -> (R) {
    R(i, j, a, b) +=! 0.25 * V(k, l, c, d) * T(i, j, c, d) * T(k, l, a, b)
    R(i, j, a, b) += V(k, l, c, d) * T(i, k, a, c) * T(j, l, b, d)
}''', args=lambda g: [rn(g, 7, 7, 13, 13, dt=f64), rn(g, 7, 7, 13, 13, dt=f64, k=0.1)], torch=_ccd, tol=1e-11))


op(dict(name="thc_exchange_f64", text='''
def thc_exchange_f64(double(P,N) X, double(P,P) Z, double(N,N) Dm) -> (Kx) {
    Kx(m, n) +=! X(p, m) * X(p, l) * Z(p, q) * X(q, s) * X(q, n) * Dm(l, s)
}''', args=lambda g: [rn(g, 23, 140, dt=f64).T, rn(g, 140, 140, dt=f64), rn(g, 23, 23, dt=f64)],
    torch=lambda X, Z, D: X.T @ (Z * (X @ D @ X.T)) @ X, tol=1e-11))


def _ctmrg(Cn, Tu, Tl, A):
    X, D = Tu.shape[1:]
    t = (Cn.T @ Tu.flatten(1)).view(-1, X * D)
    u = (t.T @ Tl.flatten(1)).view(X, D, X, D)
    g = (u.transpose(1, 2).reshape(X * X, D * D) @ A.reshape(D * D, D * D)).view(X, X, D, D).transpose(1, 2)
    return g / g.abs().max()


op(dict(name="ctmrg_corner_grow", text='''
def ctmrg_corner_grow(float(X,X) Cn, float(X,X,D) Tu, float(X,X,D) Tl, float(D,D,D,D) A) -> (Gn) {
    G(c, k, f, l) +=! Cn(a, b) * Tu(a, c, i) * Tl(b, f, j) * A(i, j, k, l)
    Mx max=! abs(G(c, k, f, l))
    Gn(c, k, f, l) = G(c, k, f, l) / Mx
}''', args=lambda g: [rn(g, 41, 41), rn(g, 41, 41, 5), rn(g, 41, 41, 5), rn(g, 5, 5, 5, 5)], torch=_ctmrg, tol=3e-5))


# ---------------------------------------------------------------- finance and statistics

def _lsm(S, Cf, strike):
    x, on = S / strike, S < strike
    e = torch.exp(-0.5 * x)
    B = torch.stack([torch.ones_like(x), e, e * (1 - x), e * (1 - 2 * x + 0.5 * x * x)], 1) * on[:, None]
    return B.T @ B, B.T @ Cf, on.sum(dtype=i32)


op(dict(name="lsm_laguerre_moments_f64", text='''
def lsm_laguerre_moments_f64(double(P) S, double(P) Cf, double strike) -> (Gm, Rh, Cnt) {
    B(p, k) = k == 0 ? 1.0 : exp(-0.5 * x) * (k == 1 ? 1.0 : (k == 2 ? 1.0 - x : 1.0 - 2.0 * x + 0.5 * x * x)) where k in 0:4, x = S(p) / strike
    Gm(i, j) +=! S(p) < strike ? B(p, i) * B(p, j) : 0.0
    Rh(i) +=! S(p) < strike ? B(p, i) * Cf(p) : 0.0
    Cnt +=! S(p) < strike ? 1 : 0
}''', args=lambda g: [36.0 * torch.exp(0.25 * rn(g, 100003, dt=f64)), 8.0 * ru(g, 100003, dt=f64), of(40.0, f64)], torch=_lsm, tol=1e-10))


def _var_es(R, Pos, k):
    v = (R @ Pos).T.topk(int(k) + 1, dim=1, largest=False).values
    return -v[:, -1], -v.mean(1)


op(dict(name="historical_var_es", text='''
def historical_var_es(float(S,A) R, float(A,Q) Pos, int32 k) -> (Var, Es) {
    Pl(q, s) +=! R(s, a) * Pos(a, q)
    Rk(q, s) +=! (Pl(q, t) < Pl(q, s) || (Pl(q, t) == Pl(q, s) && t < s)) ? 1 : 0
    Var(q) +=! Rk(q, s) == k ? -Pl(q, s) : 0.0
    Es(q) +=! Rk(q, s) <= k ? -Pl(q, s) / (k + 1) : 0.0
}''', args=lambda g: [rn(g, 257, 60, k=0.01), rn(g, 60, 16), of(12, i32)], torch=_var_es, tol=2e-5))


def _newey(X, U, lags):
    L = int(lags)
    G = U[:, None] * X
    w = 1 - torch.arange(L + 1, dtype=f64) / (L + 1)
    w[0] = 0.5
    H = F.conv1d(F.pad(G.T, (L, 0))[:, None], w.flip(0)[None, None])[:, 0].T
    S = G.T @ H
    return (S + S.T) / len(X)


op(dict(name="newey_west_hac_f64", text='''
def newey_west_hac_f64(double(T,K) X, double(T) U, int32 lags) -> (S) {
    G(t, k) = U(t) * X(t, k)
    W(l) = l == 0 ? 0.5 : 1.0 - double(l) / (lags + 1) where l in 0:lags+1
    Hh(t, j) +=! t >= l ? W(l) * G(t - l, j) : 0.0 where t in 0:T
    S0(i, j) +=! G(t, i) * Hh(t, j)
    S(i, j) = (S0(i, j) + S0(j, i)) / T
}''', args=lambda g: [rn(g, 4001, 9, dt=f64), rn(g, 4001, dt=f64), of(12, i32)], torch=_newey, tol=1e-11))


# ---------------------------------------------------------------- genomes and number theory

def _plan7(M, I, D, Bg, Res, Em, Tr):
    sat = lambda a: a.clamp(-32768, 32767).to(i16)
    m, i = M.int(), I.int()
    v = torch.maximum(torch.maximum(m[:, :-1] + Tr[0, 1:], i[:, :-1] + Tr[1, 1:]), D.int()[:, :-1] + Tr[2, 1:])
    v = torch.maximum(F.pad(v, (1, 0), value=-32768), Bg.int()[:, None] + Tr[3])
    mn = sat(v + Em[Res.long()])
    dn = F.pad(sat(mn[:, :-1].int() + Tr[6, 1:]), (1, 0), value=-32768)
    return mn, sat(torch.maximum(m + Tr[4], i + Tr[5])), dn, mn.amax(1)


op(dict(name="plan7_viterbi_step_i16", text='''
def plan7_viterbi_step_i16(int16(B,K) M, int16(B,K) I, int16(B,K) D, int16(B) Bg, uint8(B) Res, int16(A,K) Em, int16(7,K) Tr)
        -> (int16(B,K) Mn, int16(B,K) Io, int16(B,K) Dn, int16(B) Xe) {
    V(b, k) = max(int32(Bg(b)) + Tr(3, k), k > 0 ? max(max(int32(M(b, k - 1)) + Tr(0, k), int32(I(b, k - 1)) + Tr(1, k)), int32(D(b, k - 1)) + Tr(2, k)) : -32768) where k in 0:K
    Mn(b, k) = int16(clamp(V(b, k) + Em(Res(b), k), -32768, 32767))
    Io(b, k) = int16(clamp(max(int32(M(b, k)) + Tr(4, k), int32(I(b, k)) + Tr(5, k)), -32768, 32767))
    Dn(b, k) = k > 0 ? int16(clamp(int32(Mn(b, k - 1)) + Tr(6, k), -32768, 32767)) : -32768 where k in 0:K
    Xe(b) max=! Mn(b, k)
}''', args=lambda g: [ri(g, -32768, 9000, 128, 401, dt=i16), ri(g, -32768, 9000, 128, 401, dt=i16), ri(g, -32768, 9000, 128, 401, dt=i16), ri(g, -500, 500, 128, dt=i16), ri(g, 0, 21, 128, dt=u8), ri(g, -1500, 2500, 21, 401, dt=i16), ri(g, -3000, 0, 7, 401, dt=i16)], torch=_plan7, tol=0.0))


def _fm(Bwt, Ck, C0, Iv, Ch):
    blk, off, c = (Iv // 64).long(), Iv % 64, Ch.long()
    hit = (Bwt[blk.clamp_max(len(Bwt) - 1)] == Ch[:, None, None]) & (torch.arange(64) < off[..., None])
    nx = C0[c][:, None] + Ck[blk, c[:, None]] + hit.sum(-1, dtype=i32)
    return nx, nx[:, 1] - nx[:, 0]


def _fm_args(g):
    b = ri(g, 0, 4, 800, 64, dt=u8)
    n = F.one_hot(b.long(), 4).sum(1)
    tot = n.sum(0)
    return [b, F.pad(n.cumsum(0), (0, 0, 1, 0)).to(i32), (tot.cumsum(0) - tot).to(i32), ri(g, 0, 51201, 1501, 2, dt=i32).sort(1).values, ri(g, 0, 4, 1501, dt=u8)]


op(dict(name="fm_index_backward_step", text='''
def fm_index_backward_step(uint8(G,64) Bwt, int32(G+1,4) Ck, int32(4) C0, int32(Q,2) Iv, uint8(Q) Ch) -> (Nx, Occ) {
    R(q, e) +=! j < Iv(q, e) % 64 && Bwt(Iv(q, e) / 64, j) == Ch(q) ? 1 : 0 where j in 0:64
    Nx(q, e) = C0(Ch(q)) + Ck(Iv(q, e) / 64, Ch(q)) + R(q, e)
    Occ(q) = Nx(q, 1) - Nx(q, 0)
}''', args=_fm_args, torch=_fm, tol=0.0))


def _ntt(X, Ta, Tb):
    for tw in (Ta, Tb):
        u, t = X.view(X.shape[0], -1, 2, len(tw)).unbind(2)
        t = t * tw % 12289
        X = torch.stack([(u + t) % 12289, (u - t) % 12289], 2).view(X.shape[0], -1)
    return X


op(dict(name="ntt_two_stages_12289", text='''
def ntt_stage(int32(B,N) X, int32(H) Tw) -> (Y) {
    Y(b, i) = (i / H % 2 == 0 ? u + t : u + 12289 - t) % 12289
        where i in 0:N, u = X(b, i / (2*H) * (2*H) + i % H), t = X(b, i / (2*H) * (2*H) + i % H + H) * Tw(i % H) % 12289
}
def ntt_two_stages_12289(int32(B,N) X, int32(H) Ta, int32(2*H) Tb) -> (Y) {
    Z = ntt_stage(X, Ta)
    Y = ntt_stage(Z, Tb)
}''', args=lambda g: [ri(g, 0, 12289, 32, 1024, dt=i32), ri(g, 0, 12289, 32, dt=i32), ri(g, 0, 12289, 64, dt=i32)], torch=_ntt, tol=0.0))
