# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Scientific programs, signals and images, and awkward shapes and types; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.networks import bf16, f16, f64, i8, i32, of, ri, rn, ru
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)

# ---------------------------------------------------------------- science and engineering

def _drude(E, Hm, J, Ie, Wp, dt, ga):
    J2 = ((1 - 0.5 * ga * dt) * J + dt * Wp * E) / (1 + 0.5 * ga * dt)

    def curl(a, ahead):
        d = lambda c, k: a[c].roll(-1, k) - a[c] if ahead else a[c] - a[c].roll(1, k)
        return torch.stack([d(2, 1) - d(1, 2), d(0, 2) - d(2, 0), d(1, 0) - d(0, 1)])
    E2 = E + dt * Ie * (curl(Hm, False) - J2)
    return E2, Hm - dt * curl(E2, True), J2


op(dict(name="maxwell3d_drude_ade_step", text='''
def maxwell3d_drude_ade_step(float(3,X,Y,Z) E, float(3,X,Y,Z) Hm, float(3,X,Y,Z) J, float(X,Y,Z) Ie, float(X,Y,Z) Wp, float dt, float ga) -> (E2, H2, J2) {
    J2(c, x, y, z) = ((1.0 - 0.5 * ga * dt) * J(c, x, y, z) + dt * Wp(x, y, z) * E(c, x, y, z)) / (1.0 + 0.5 * ga * dt)
    Ch(c, x, y, z) = c == 0 ? Hm(2, x, y, z) - Hm(2, x, (y + Y - 1) % Y, z) - Hm(1, x, y, z) + Hm(1, x, y, (z + Z - 1) % Z)
        : (c == 1 ? Hm(0, x, y, z) - Hm(0, x, y, (z + Z - 1) % Z) - Hm(2, x, y, z) + Hm(2, (x + X - 1) % X, y, z)
        : Hm(1, x, y, z) - Hm(1, (x + X - 1) % X, y, z) - Hm(0, x, y, z) + Hm(0, x, (y + Y - 1) % Y, z)) where c in 0:3, x in 0:X, y in 0:Y, z in 0:Z
    E2(c, x, y, z) = E(c, x, y, z) + dt * Ie(x, y, z) * (Ch(c, x, y, z) - J2(c, x, y, z))
    Ce(c, x, y, z) = c == 0 ? E2(2, x, (y + 1) % Y, z) - E2(2, x, y, z) - E2(1, x, y, (z + 1) % Z) + E2(1, x, y, z)
        : (c == 1 ? E2(0, x, y, (z + 1) % Z) - E2(0, x, y, z) - E2(2, (x + 1) % X, y, z) + E2(2, x, y, z)
        : E2(1, (x + 1) % X, y, z) - E2(1, x, y, z) - E2(0, x, (y + 1) % Y, z) + E2(0, x, y, z)) where c in 0:3, x in 0:X, y in 0:Y, z in 0:Z
    H2(c, x, y, z) = Hm(c, x, y, z) - dt * Ce(c, x, y, z)
}''', args=lambda g: [rn(g, 3, 37, 29, 41), rn(g, 3, 37, 29, 41), rn(g, 3, 37, 29, 41), ru(g, 37, 29, 41, lo=0.2, hi=1.0), ru(g, 37, 29, 41, lo=0.5, hi=2.0), of(0.4), of(0.3)], torch=_drude, tol=1e-5))


def _tpfa(P, S, K, S0, mw, mo, dt):
    def faces(d):
        n = P.shape[d] - 1
        lo, hi = lambda a: a.narrow(d, 0, n), lambda a: a.narrow(d, 1, n)
        t = 2 * lo(K) * hi(K) / (lo(K) + hi(K)) * (lo(P) - hi(P))
        s = torch.where(t > 0, lo(S), hi(S))
        out = lambda f: F.pad(f, (1, 1) if d else (0, 0, 1, 1)).diff(dim=d)
        return out(t * s * s / mw), out(t * (1 - s) ** 2 / mo)
    (wx, ox), (wy, oy), acc = faces(1), faces(0), (S - S0) / dt
    return acc + wx + wy, ox + oy - acc


op(dict(name="tpfa_two_phase_upwind_residual", text='''
def tpfa_two_phase_upwind_residual(float(H,W) P, float(H,W) S, float(H,W) K, float(H,W) S0, float mw, float mo, float dt) -> (Rw, Ro) {
    Tx(y, x) = 2.0 * K(y, x) * K(y, x + 1) / (K(y, x) + K(y, x + 1)) * (P(y, x) - P(y, x + 1)) where x in 0:W-1
    Ty(y, x) = 2.0 * K(y, x) * K(y + 1, x) / (K(y, x) + K(y + 1, x)) * (P(y, x) - P(y + 1, x)) where y in 0:H-1
    Sx(y, x) = Tx(y, x) > 0.0 ? S(y, x) : S(y, x + 1) where x in 0:W-1
    Sy(y, x) = Ty(y, x) > 0.0 ? S(y, x) : S(y + 1, x) where y in 0:H-1
    Rw(y, x) = (S(y, x) - S0(y, x)) / dt + (x < W - 1 ? Tx(y, x) * Sx(y, x) * Sx(y, x) / mw : 0.0) - (x >= 1 ? Tx(y, x - 1) * Sx(y, x - 1) * Sx(y, x - 1) / mw : 0.0)
        + (y < H - 1 ? Ty(y, x) * Sy(y, x) * Sy(y, x) / mw : 0.0) - (y >= 1 ? Ty(y - 1, x) * Sy(y - 1, x) * Sy(y - 1, x) / mw : 0.0) where y in 0:H, x in 0:W
    Ro(y, x) = (S0(y, x) - S(y, x)) / dt + (x < W - 1 ? Tx(y, x) * (1.0 - Sx(y, x)) * (1.0 - Sx(y, x)) / mo : 0.0) - (x >= 1 ? Tx(y, x - 1) * (1.0 - Sx(y, x - 1)) * (1.0 - Sx(y, x - 1)) / mo : 0.0)
        + (y < H - 1 ? Ty(y, x) * (1.0 - Sy(y, x)) * (1.0 - Sy(y, x)) / mo : 0.0) - (y >= 1 ? Ty(y - 1, x) * (1.0 - Sy(y - 1, x)) * (1.0 - Sy(y - 1, x)) / mo : 0.0) where y in 0:H, x in 0:W
}''', args=lambda g: [rn(g, 193, 171), ru(g, 193, 171, lo=0.2, hi=0.8), ru(g, 193, 171, lo=0.1, hi=2.0), ru(g, 193, 171, lo=0.2, hi=0.8), of(0.5), of(2.0), of(0.3)], torch=_tpfa, tol=2e-5))


def _gauge(Th, Ax, Ay, be):
    dx, dy = Th.roll(-1, 1) - Th - Ax, Th.roll(-1, 2) - Th - Ay
    sx, sy, cx = dx.sin(), dy.sin(), dx.cos().sum((1, 2))
    he = (cx - be * sx.sum((1, 2)).square()) / Ax.numel()
    return -cx - dy.cos().sum((1, 2)), he, sx - sx.roll(1, 1) + sy - sy.roll(1, 2)


op(dict(name="gauge_glass_xy_torques_helicity", text='''
def gauge_glass_xy_torques_helicity(float(B,L,M) Th, float(L,M) Ax, float(L,M) Ay, float be) -> (En, He, Fo) {
    Dx(b, l, m) = Th(b, (l + 1) % L, m) - Th(b, l, m) - Ax(l, m) where l in 0:L, m in 0:M
    Dy(b, l, m) = Th(b, l, (m + 1) % M) - Th(b, l, m) - Ay(l, m) where l in 0:L, m in 0:M
    En(b) +=! -cos(Dx(b, l, m)) - cos(Dy(b, l, m))
    Cx(b) +=! cos(Dx(b, l, m))
    Sx(b) +=! sin(Dx(b, l, m))
    He(b) = (Cx(b) - be * Sx(b) * Sx(b)) / (L * M)
    Fo(b, l, m) = sin(Dx(b, l, m)) - sin(Dx(b, (l + L - 1) % L, m)) + sin(Dy(b, l, m)) - sin(Dy(b, l, (m + M - 1) % M)) where l in 0:L, m in 0:M
}''', args=lambda g: [rn(g, 11, 37, 53, k=0.5), rn(g, 37, 53, k=0.3), rn(g, 37, 53, k=0.3), of(0.8)], torch=_gauge, tol=5e-5))


op(dict(name="casscf_orbital_gradient_f64", text='''
def casscf_orbital_gradient_f64(double(N,N) Hc, double(N,N,N,N) G, double(N,N) D1, double(N,N,N,N) D2) -> (Wg, En) {
    Ff(p, q) +=! Hc(p, r) * D1(q, r)
    Ff(p, q) += G(p, r, s, t) * D2(q, r, s, t)
    Wg(p, q) = 2.0 * (Ff(p, q) - Ff(q, p))
    En +=! Hc(p, q) * D1(p, q)
    En += 0.5 * G(p, q, r, s) * D2(p, q, r, s)
}''', args=lambda g: [rn(g, 17, 17, dt=f64), rn(g, 17, 17, 17, 17, dt=f64).permute(0, 2, 1, 3), rn(g, 17, 17, dt=f64), rn(g, 17, 17, 17, 17, dt=f64, k=0.2)],
   torch=lambda Hc, G, D1, D2: (lambda f: (2 * (f - f.T), (Hc * D1).sum() + 0.5 * (G * D2).sum()))(torch.addmm(Hc @ D1.T, G.flatten(1), D2.flatten(1).T)), tol=1e-11))


def _dpd(X, V, Nb, Rn, a, ga, si, box):
    j = Nb.long()
    d = X[:, None] - X[j]
    d = d - box * torch.round(d / box)
    r2 = d.square().sum(-1)
    ir = r2.rsqrt()
    w = F.relu(1 - r2 * ir)
    fm = (a * w - ga * w * w * (d * (V[:, None] - V[j])).sum(-1) * ir + si * w * Rn) * ir
    return (fm[..., None] * d).sum(1), 0.5 * (fm * r2).sum()


op(dict(name="dpd_neighbour_forces", text='''
def dpd_neighbour_forces(float(N,3) X, float(N,3) V, int32(N,K) Nb, float(N,K) Rn, float a, float ga, float si, float box) -> (Fo, Vi) {
    D(i, k, c) = X(i, c) - X(Nb(i, k), c) - box * round((X(i, c) - X(Nb(i, k), c)) / box)
    R2(i, k) +=! D(i, k, c) * D(i, k, c)
    Rv(i, k) +=! D(i, k, c) * (V(i, c) - V(Nb(i, k), c))
    Fm(i, k) = R2(i, k) < 1.0 ? (a * w - ga * w * w * Rv(i, k) * ir + si * w * Rn(i, k)) * ir : 0.0 where ir = rsqrt(R2(i, k)), w = 1.0 - R2(i, k) * ir
    Fo(i, c) +=! Fm(i, k) * D(i, k, c)
    Vi +=! 0.5 * Fm(i, k) * R2(i, k)
}''', args=lambda g: [ru(g, 1501, 3, hi=2.5), rn(g, 1501, 3), ((torch.arange(1501)[:, None] + ri(g, 1, 1501, 1501, 27)) % 1501).to(i32), rn(g, 1501, 27), of(25.0), of(4.5), of(3.0), of(2.5)], torch=_dpd, tol=5e-5))


def _gtr(La, Lb, U, Ui, Ev, R, Pi, Wt, t):
    er = R[:, None] * Ev
    w = (er * t).exp() / len(R)
    ab = ((La @ (Pi[:, None] * U)) * (Lb @ Ui.T)).flatten(1)
    s, d = (ab @ torch.stack([w.flatten(), (er * w).flatten()], 1)).unbind(1)
    return (Wt * s.log()).sum(), (Wt * d / s).sum()


def _gtr_args(g):
    s, p = ru(g, 20, 20, dt=f64, lo=0.1, hi=2.0), ru(g, 20, dt=f64, lo=0.5, hi=1.5)
    p = p / p.sum()
    q = (s + s.T) * p
    q = q - torch.diag(q.sum(1))
    d = p.sqrt()
    e, v = torch.linalg.eigh(d[:, None] * q / d)
    return [ru(g, 1009, 4, 20, dt=f64, lo=0.01), ru(g, 1009, 4, 20, dt=f64, lo=0.01), v / d[:, None], v.T * d, e / 20, torch.tensor([0.1, 0.5, 1.0, 2.4], dtype=f64), p, ri(g, 1, 30, 1009, dt=i32), of(0.3, f64)]


op(dict(name="gtr_gamma_branch_loglik_derivative_f64", text='''
def gtr_gamma_branch_loglik_derivative_f64(double(P,C,A) La, double(P,C,A) Lb, double(A,A) U, double(A,A) Ui, double(A) Ev, double(C) R, double(A) Pi, int32(P) Wt, double t) -> (Lnl, Dl) {
    Az(p, c, k) +=! Pi(i) * La(p, c, i) * U(i, k)
    Bz(p, c, k) +=! Ui(k, j) * Lb(p, c, j)
    Ex(c, k) = exp(Ev(k) * R(c) * t) / C
    Sl(p) +=! Az(p, c, k) * Bz(p, c, k) * Ex(c, k)
    Sd(p) +=! Az(p, c, k) * Bz(p, c, k) * Ex(c, k) * Ev(k) * R(c)
    Lnl +=! Wt(p) * log(Sl(p))
    Dl +=! Wt(p) * Sd(p) / Sl(p)
}''', args=_gtr_args, torch=_gtr, tol=1e-9))


def _prism(Ob, Pr, Rho):
    d = Pr - Ob[:, None, :, None]
    x, y, z = d[:, :, 0, :, None, None], d[:, :, 1, None, :, None], d[:, :, 2, None, None]
    r = (x * x + y * y + z * z).sqrt()
    s = torch.tensor([1.0, -1.0], dtype=f64)
    k = x * (y + r).log() + y * (x + r).log() - z * torch.atan2(x * y, z * r)
    return (k * (s[:, None, None] * s[:, None] * s)).sum((2, 3, 4)) @ Rho


def _prism_args(g):
    low = torch.cat([rn(g, 151, 2, dt=f64, k=3.0), ru(g, 151, 1, dt=f64, lo=1.0, hi=3.0)], 1)
    return [torch.cat([rn(g, 61, 2, dt=f64, k=3.0), torch.zeros(61, 1, dtype=f64)], 1), torch.stack([low, low + ru(g, 151, 3, dt=f64, lo=0.3, hi=1.5)], 2), ru(g, 151, dt=f64, lo=0.5, hi=2.0)]


op(dict(name="gravity_prisms_vertical_f64", text='''
def gravity_prisms_vertical_f64(double(N,3) Ob, double(M,3,2) Pr, double(M) Rho) -> (Gz) {
    Dc(n, m, a, e) = Pr(m, a, e) - Ob(n, a)
    Kn(n, m, i, j, k) = x * log(y + r) + y * log(x + r) - z * atan2(x * y, z * r)
        where x = Dc(n, m, 0, i), y = Dc(n, m, 1, j), z = Dc(n, m, 2, k), r = sqrt(x * x + y * y + z * z)
    Gz(n) +=! ((i + j + k) % 2 == 0 ? 1.0 : -1.0) * Rho(m) * Kn(n, m, i, j, k)
}''', args=_prism_args, torch=_prism, tol=1e-9))


def _posegraph(Rm, T, Zr, Zt, Ia, Ib, Wt):
    ra = Rm[Ia].mT
    er = Zr.mT @ (ra @ Rm[Ib])
    th = (0.5 * (er.diagonal(dim1=1, dim2=2).sum(1) - 1)).acos()
    v = torch.stack([er[:, 2, 1] - er[:, 1, 2], er[:, 0, 2] - er[:, 2, 0], er[:, 1, 0] - er[:, 0, 1]], 1)
    om = (0.5 * th / th.sin())[:, None] * v
    dt = (ra @ (T[Ib] - T[Ia])[..., None])[..., 0] - Zt
    return om, dt, (Wt * (om.square() + dt.square()).sum(1)).sum()


def _posegraph_args(g):
    def turns(w):
        z = torch.zeros_like(w[:, 0])
        return torch.linalg.matrix_exp(torch.stack([z, -w[:, 2], w[:, 1], w[:, 2], z, -w[:, 0], -w[:, 1], w[:, 0], z], 1).view(-1, 3, 3))
    R, t, a, b = turns(rn(g, 401, 3, dt=f64)), rn(g, 401, 3, dt=f64), ri(g, 0, 401, 2003), ri(g, 0, 401, 2003)
    off = turns(F.normalize(rn(g, 2003, 3, dt=f64), dim=1) * ru(g, 2003, 1, dt=f64, lo=0.3, hi=1.5))
    return [R, t, R[a].mT @ R[b] @ off, rn(g, 2003, 3, dt=f64), a, b, ru(g, 2003, dt=f64, lo=0.5, hi=1.5)]


op(dict(name="pose_graph_so3_log_residuals_f64", text='''
def pose_graph_so3_log_residuals_f64(double(N,3,3) Rm, double(N,3) T, double(E,3,3) Zr, double(E,3) Zt, int64(E) Ia, int64(E) Ib, double(E) Wt) -> (Om, Dt, Cost) {
    Re(e, i, j) +=! Rm(Ia(e), k, i) * Rm(Ib(e), k, j)
    Er(e, i, j) +=! Zr(e, k, i) * Re(e, k, j)
    Tr(e) +=! Er(e, i, i)
    Om(e, i) = 0.5 * th / sin(th) * (Er(e, (i + 2) % 3, (i + 1) % 3) - Er(e, (i + 1) % 3, (i + 2) % 3)) where i in 0:3, th = acos(0.5 * (Tr(e) - 1.0))
    Dt(e, i) +=! Rm(Ia(e), k, i) * (T(Ib(e), k) - T(Ia(e), k))
    Dt(e, i) = Dt(e, i) - Zt(e, i)
    Cost +=! Wt(e) * (Om(e, i) * Om(e, i) + Dt(e, i) * Dt(e, i))
}''', args=_posegraph_args, torch=_posegraph, tol=1e-9))


def _film(Lam, Sn, Nr, Th, ns):
    s2 = Sn * Sn
    et = (Nr[:, None].square() - s2).sqrt()
    d = 2 * math.pi * et * Th[:, None] / Lam[:, None, None]
    co, si = d.cos(), d.sin()
    a, b, c, e = co[:, 0], si[:, 0] / et[0], si[:, 0] * et[0], co[:, 0]
    for q in range(1, len(Nr)):
        u, v, n = co[:, q], si[:, q], et[q]
        a, b, c, e = a * u - b * n * v, a * v / n + b * u, c * u + e * n * v, e * u - c * v / n
    e0, es = (1 - s2).sqrt(), (ns * ns - s2).sqrt()
    return ((e0 * a - es * e).square() + (e0 * es * b - c).square()) / ((e0 * a + es * e).square() + (e0 * es * b + c).square())


op(dict(name="thin_film_reflectance_four_layers", text='''
def film_layer(float(L,A) Ma, float(L,A) Mb, float(L,A) Mc, float(L,A) Md, float(L,Q,A) De, float(Q,A) Et, int32 q) -> (Na, Nb, Nc, Nd) {
    Na(l, a) = Ma(l, a) * cos(De(l, q, a)) - Mb(l, a) * Et(q, a) * sin(De(l, q, a))
    Nb(l, a) = Ma(l, a) * sin(De(l, q, a)) / Et(q, a) + Mb(l, a) * cos(De(l, q, a))
    Nc(l, a) = Mc(l, a) * cos(De(l, q, a)) + Md(l, a) * Et(q, a) * sin(De(l, q, a))
    Nd(l, a) = Md(l, a) * cos(De(l, q, a)) - Mc(l, a) * sin(De(l, q, a)) / Et(q, a)
}
def thin_film_reflectance_four_layers(float(L) Lam, float(A) Sn, float(Q) Nr, float(Q) Th, float ns) -> (R) {
    Et(k, a) = sqrt(Nr(k) * Nr(k) - Sn(a) * Sn(a))
    De(l, k, a) = 6.283185307179586 * Et(k, a) * Th(k) / Lam(l)
    A1(l, a) = cos(De(l, 0, a))
    B1(l, a) = sin(De(l, 0, a)) / Et(0, a)
    C1(l, a) = sin(De(l, 0, a)) * Et(0, a)
    A2, B2, C2, D2 = film_layer(A1, B1, C1, A1, De, Et, 1)
    A3, B3, C3, D3 = film_layer(A2, B2, C2, D2, De, Et, 2)
    A4, B4, C4, D4 = film_layer(A3, B3, C3, D3, De, Et, 3)
    R(l, a) = ((e0 * A4(l, a) - es * D4(l, a)) * (e0 * A4(l, a) - es * D4(l, a)) + (e0 * es * B4(l, a) - C4(l, a)) * (e0 * es * B4(l, a) - C4(l, a)))
        / ((e0 * A4(l, a) + es * D4(l, a)) * (e0 * A4(l, a) + es * D4(l, a)) + (e0 * es * B4(l, a) + C4(l, a)) * (e0 * es * B4(l, a) + C4(l, a)))
        where e0 = sqrt(1.0 - Sn(a) * Sn(a)), es = sqrt(ns * ns - Sn(a) * Sn(a))
}''', args=lambda g: [torch.linspace(0.4, 0.8, 1021), torch.linspace(0.0, 0.8, 13), ru(g, 4, lo=1.4, hi=2.3), ru(g, 4, lo=0.05, hi=0.3), of(1.52)], torch=_film, tol=5e-5))


def _bulk(U, Ta, Ts, Z0):
    la, c = (10 / Z0).log(), 98.1 * (Ta - Ts) / (Ta * U * U)
    z = c * la
    for last in (False, True):
        s2, st = (1 - 16 * z.clamp_max(0)).sqrt(), 5 * z.clamp_min(0)
        s = s2.sqrt()
        lh = ((1 + s2) / 2).log()
        m, h = la - 2 * ((1 + s) / 2).log() - lh + 2 * s.atan() - math.pi / 2 + st, la - 2 * lh + st
        if not last:
            z = c * m * m / h
    return 0.192 * (U / m).square(), 192.768 * U * (Ts - Ta) / (m * h)


op(dict(name="bulk_fluxes_two_stability_iterations", text='''
def stability_profiles(float(H,W) La, float(H,W) Ze) -> (Pm, Ph) {
    Pm(y, x) = La(y, x) - 2.0 * log(0.5 * (1.0 + s)) - log(0.5 * (1.0 + s * s)) + 2.0 * atan(s) - 1.5707963267948966 + 5.0 * max(Ze(y, x), 0.0)
        where s = sqrt(sqrt(1.0 - 16.0 * min(Ze(y, x), 0.0)))
    Ph(y, x) = La(y, x) - 2.0 * log(0.5 * (1.0 + sqrt(1.0 - 16.0 * min(Ze(y, x), 0.0)))) + 5.0 * max(Ze(y, x), 0.0)
}
def bulk_fluxes_two_stability_iterations(float(H,W) U, float(H,W) Ta, float(H,W) Ts, float(H,W) Z0) -> (Tau, Sh) {
    La(y, x) = log(10.0 / Z0(y, x))
    Ri(y, x) = 98.1 * (Ta(y, x) - Ts(y, x)) / (Ta(y, x) * U(y, x) * U(y, x))
    Za(y, x) = Ri(y, x) * La(y, x)
    Ma, Ha = stability_profiles(La, Za)
    Zb(y, x) = Ri(y, x) * Ma(y, x) * Ma(y, x) / Ha(y, x)
    Mb, Hb = stability_profiles(La, Zb)
    Tau(y, x) = 0.192 * (U(y, x) / Mb(y, x)) * (U(y, x) / Mb(y, x))
    Sh(y, x) = 192.768 * U(y, x) * (Ts(y, x) - Ta(y, x)) / (Mb(y, x) * Hb(y, x))
}''', args=lambda g: (lambda t: [ru(g, 181, 233, lo=3.0, hi=12.0), t, t + torch.where(ru(g, 181, 233) < 0.35, -0.5, 1.0) * ru(g, 181, 233, lo=0.05, hi=4.0), ru(g, 181, 233, lo=0.001, hi=0.03)])(ru(g, 181, 233, lo=275.0, hi=300.0)), torch=_bulk, tol=5e-5))


# ---------------------------------------------------------------- signals, images and data

def _geodesic(M, K):
    for _ in range(3):
        d = M.clone()
        torch.maximum(d[1:], M[:-1], out=d[1:])
        torch.maximum(d[:-1], M[1:], out=d[:-1])
        torch.maximum(d[:, 1:], M[:, :-1], out=d[:, 1:])
        torch.maximum(d[:, :-1], M[:, 1:], out=d[:, :-1])
        M = torch.minimum(d, K)
    return M, K - M


def _geodesic_args(g):
    k = ri(g, 0, 256, 211, 307, dt=torch.uint8)
    return [(k.float() * ru(g, 211, 307)).to(torch.uint8), k]


op(dict(name="geodesic_reconstruct_cross_three_u8", text='''
def geodesic_dilate(uint8(H,W) M, uint8(H,W) K) -> (T) {
    V(y, x) = max(max(M(max(y - 1, 0), x), M(min(y + 1, H - 1), x)), M(y, x)) where y in 0:H
    T(y, x) = min(max(V(y, x), max(M(y, max(x - 1, 0)), M(y, min(x + 1, W - 1)))), K(y, x)) where x in 0:W
}
def geodesic_reconstruct_cross_three_u8(uint8(H,W) M, uint8(H,W) K) -> (M3, Df) {
    M1 = geodesic_dilate(M, K)
    M2 = geodesic_dilate(M1, K)
    M3 = geodesic_dilate(M2, K)
    Df(y, x) = K(y, x) - M3(y, x)
}''', args=_geodesic_args, torch=_geodesic, tol=0.0))


def _phasemosaic(X, Kf, Wb):
    y = torch.stack([F.conv2d(X[:, None, a:, b:], Kf[a, b][:, None], stride=2) for a in (0, 1) for b in (0, 1)], 2)
    return (F.pixel_shuffle(y.flatten(1, 2), 2) * Wb[:, None, None]) ** 0.4545


op(dict(name="phase_filter_mosaic_gamma", text='''
def phase_filter_mosaic_gamma(float(B,P,Q) X, float(2,2,3,5,5) Kf, float(3) Wb) -> (Y) {
    Y(b, c, y, x) +=! Kf(y % 2, x % 2, c, u, v) * X(b, y + u, x + v) where y in 0:P-4, x in 0:Q-4
    Y(b, c, y, x) = pow(Y(b, c, y, x) * Wb(c), 0.4545)
}''', args=lambda g: [ru(g, 2, 134, 174, lo=0.05, hi=0.95), ru(g, 2, 2, 3, 5, 5, lo=0.02, hi=0.06), torch.tensor([1.9, 1.0, 1.6])], torch=_phasemosaic, tol=2e-5))


def _wecdf(X, W, Qs):
    x, i = X.sort(1)
    c = F.pad(W.gather(1, i).cumsum(1), (1, 0))
    return c.gather(1, torch.searchsorted(x.detach(), Qs.detach(), right=True)) / c[:, -1:]


op(dict(name="weighted_ecdf_at_thresholds", text='''
def weighted_ecdf_at_thresholds(float(B,N) X, float(B,N) W, float(B,K) Qs) -> (Y) {
    Tw(b) +=! W(b, n)
    Y(b, k) +=! X(b, n) <= Qs(b, k) ? W(b, n) : 0.0
    Y(b, k) = Y(b, k) / Tw(b)
}''', args=lambda g: [rn(g, 7, 4001), ru(g, 7, 4001, lo=0.2), rn(g, 7, 53)], torch=_wecdf, tol=5e-5))


op(dict(name="bilinear_antialias_shrink", text='''
def bilinear_antialias_shrink(float(N,C,H,W) X, int32 p, int32 q) -> (Y) {
    Wy(i, y) = max(1.0 - fabs((y + 0.5) * p / H - (i + 0.5)), 0.0) where i in 0:p, y in 0:H
    Wx(j, x) = max(1.0 - fabs((x + 0.5) * q / W - (j + 0.5)), 0.0) where j in 0:q, x in 0:W
    Sy(i) +=! Wy(i, y)
    Sx(j) +=! Wx(j, x)
    Tm(n, c, i, x) +=! Wy(i, y) / Sy(i) * X(n, c, y, x)
    Y(n, c, i, j) +=! Tm(n, c, i, x) * Wx(j, x) / Sx(j)
}''', args=lambda g: [rn(g, 2, 3, 211, 293), of(80, i32), of(101, i32)], torch=lambda X, p, q: F.interpolate(X, size=(int(p), int(q)), mode="bilinear", antialias=True), tol=1e-4))


def _expanding(X, w):
    n, w = torch.arange(1, X.shape[1] + 1), int(w)
    m = X.cumsum(1) / n
    v = ((X * X).cumsum(1) / n - m * m)[:, w:]
    return F.pad((X - m)[:, w:] * v.rsqrt(), (w, 0)), m


op(dict(name="expanding_zscore_min_periods_f64", text='''
def expanding_zscore_min_periods_f64(double(B,T) X, int32 w) -> (Z, Mu) {
    C1(b, t) +=! s <= t ? X(b, s) : 0.0 where t in 0:T
    C2(b, t) +=! s <= t ? X(b, s) * X(b, s) : 0.0 where t in 0:T
    Mu(b, t) = C1(b, t) / (t + 1)
    Z(b, t) = t >= w ? (X(b, t) - Mu(b, t)) * rsqrt(C2(b, t) / (t + 1) - Mu(b, t) * Mu(b, t)) : 0.0
}''', args=lambda g: [0.3 + rn(g, 33, 2003, dt=f64), of(20, i32)], torch=_expanding, tol=1e-9))


def _friedman(X):
    N, K = X.shape
    e = (X[:, None] == X[:, :, None]).sum(2)
    rk = (X[:, None] < X[:, :, None]).sum(2) + 0.5 * e + 0.5
    q = 12 * (rk.sum(0) - 0.5 * N * (K + 1)).square().sum() / (N * K * (K + 1))
    return rk, q / (1 - (e * e - 1).sum() / (N * (K ** 3 - K)))


op(dict(name="friedman_tied_block_ranks", text='''
def friedman_tied_block_ranks(int32(N,K) X) -> (Rk, Qs) {
    Rk(n, k) +=! X(n, j) < X(n, k) ? 1.0 : (X(n, j) == X(n, k) ? 0.5 : 0.0)
    Rk(n, k) = Rk(n, k) + 0.5
    Eq(n, k) +=! X(n, j) == X(n, k) ? 1.0 : 0.0
    Ti +=! Eq(n, k) * Eq(n, k) - 1.0
    Rs(k) +=! Rk(n, k)
    Qs +=! 12.0 * d * d / (float(N) * K * (K + 1)) where d = Rs(k) - 0.5 * N * (K + 1)
    Qs = Qs / (1.0 - Ti / (float(N) * (K * K * K - K)))
}''', args=lambda g: [(rn(g, 5003, 7) * 2.5 + 0.3 * torch.arange(7)).to(i32)], torch=_friedman, tol=3e-5))


def _mink3(X, Y, V, tau):
    d = torch.cdist(X, Y, p=3.0)
    return (-d / tau).softmax(1) @ V, d.amin(1)


op(dict(name="minkowski3_softmin_read", text='''
def minkowski3_softmin_read(float(N,D) X, float(M,D) Y, float(M,E) V, float tau) -> (O, Mn) {
    D3(n, m) +=! a * a * a where a = fabs(X(n, d) - Y(m, d))
    Di(n, m) = cbrt(D3(n, m))
    Mn(n) min=! Di(n, m)
    Z(n) +=! exp((Mn(n) - Di(n, m)) / tau)
    O(n, e) +=! exp((Mn(n) - Di(n, m)) / tau) / Z(n) * V(m, e)
}''', args=lambda g: [rn(g, 151, 7), rn(g, 211, 7), rn(g, 211, 9), of(0.3)], torch=_mink3, tol=5e-5))


def _geoharm(X, Key, Wk):
    k = Key.long()
    z, ct = torch.zeros(len(Wk), X.shape[1]), torch.bincount(k, minlength=len(Wk))[:, None]
    return Wk[:, None] * (z.index_add(0, k, X.log()) / ct).exp(), Wk[:, None] * ct / z.index_add(0, k, 1 / X)


op(dict(name="groupby_geometric_harmonic_means", text='''
def groupby_geometric_harmonic_means(float(N,C) X, int32(N) Key, float(K) Wk) -> (Gm, Hm) {
    Ct(Key(n)) +=! 1.0 where Key(n) in 0:K
    Lg(Key(n), c) +=! log(X(n, c)) where Key(n) in 0:K
    Iv(Key(n), c) +=! 1.0 / X(n, c) where Key(n) in 0:K
    Gm(k, c) = Wk(k) * exp(Lg(k, c) / Ct(k))
    Hm(k, c) = Wk(k) * Ct(k) / Iv(k, c)
}''', args=lambda g: [ru(g, 20011, 5, lo=0.3, hi=4.0), ri(g, 0, 37, 20011, dt=i32), ru(g, 37, lo=0.5, hi=1.5)], torch=_geoharm, tol=5e-5))


# ---------------------------------------------------------------- awkward shapes and types

op(dict(name="conv2d_s3_d3_int8_weight_half", text='''
def conv2d_s3_d3_int8_weight_half(half(B,C,H,W) X, int8(O,C,3,3) Wq, float(O) Sc) -> (Y) {
    A(b, o, y, x) +=! float(X(b, c, 3*y + 3*u, 3*x + 3*v)) * Wq(o, c, u, v)
    Y(b, o, y, x) = half(A(b, o, y, x) * Sc(o))
}''', args=lambda g: [rn(g, 2, 13, 67, 71, dt=f16), ri(g, -127, 128, 29, 13, 3, 3, dt=i8), ru(g, 29, lo=0.0005, hi=0.002)],
   torch=lambda X, Wq, Sc: F.conv2d(X.float(), Wq * Sc[:, None, None, None], stride=3, dilation=3).half(), tol=2e-3))


def _coskew(X):
    c = X - X.mean(0)
    sd = c.square().mean(0).sqrt()
    z = c / sd
    D = X.shape[1]
    return ((z[:, :, None] * z[:, None]).flatten(1).T @ z / len(X)).view(D, D, D), sd


op(dict(name="coskewness_thin_f64", text='''
def coskewness_thin_f64(double(N,D) X) -> (M3, Sd) {
    Mu(i) +=! X(n, i) / N
    Xc(n, i) = X(n, i) - Mu(i)
    Va(i) +=! Xc(n, i) * Xc(n, i) / N
    M3(i, j, k) +=! Xc(n, i) * Xc(n, j) * Xc(n, k) / N
    M3(i, j, k) = M3(i, j, k) * rsqrt(Va(i) * Va(j) * Va(k))
    Sd(i) = sqrt(Va(i))
}''', args=lambda g: [rn(g, 5, 50021, dt=f64, k=0.5).exp().T], torch=_coskew, tol=1e-10))


def _nv12(I):
    r, g, b = I.to(i32).unbind(2)
    y = ((66 * r + 129 * g + 25 * b + 128) >> 8) + 16
    h, w = I.shape[0] // 2, I.shape[1] // 2
    r, g, b = ((I.view(h, 2, w, 2, 3).sum((1, 3), dtype=i32) + 2) >> 2).unbind(2)
    uv = ((torch.stack([112 * b - 38 * r - 74 * g, 112 * r - 94 * g - 18 * b], 2) + 128) >> 8) + 128
    return y.to(torch.uint8), uv.to(torch.uint8)


op(dict(name="nv12_from_rgb_u8", text='''
def nv12_from_rgb_u8(uint8(H,W,3) I) -> (Y, Uv) {
    Y(y, x) = uint8((66 * int32(I(y, x, 0)) + 129 * int32(I(y, x, 1)) + 25 * int32(I(y, x, 2)) + 128) / 256 + 16)
    Av(y, x, c) +=! int32(I(2*y + u, 2*x + v, c)) where u in 0:2, v in 0:2
    Uv(y, x, k) = uint8(((k == 0 ? 112 * b - 38 * r - 74 * g : 112 * r - 94 * g - 18 * b) + 128) / 256 + 128)
        where k in 0:2, r = (Av(y, x, 0) + 2) / 4, g = (Av(y, x, 1) + 2) / 4, b = (Av(y, x, 2) + 2) / 4
}''', args=lambda g: [ri(g, 0, 256, 226, 302, 3, dt=torch.uint8)], torch=_nv12, tol=0.0))


def _toptwo(X):
    v, i = X.topk(2, dim=1)
    return v[:, 0] - v[:, 1], i[:, 0].to(i32)


op(dict(name="top_two_margin_over_channels", text='''
def top_two_margin_over_channels(float(B,C,H,W) X) -> (Mg, Ix) {
    Ma(b, y, x) max=! X(b, c, y, x)
    Ix(b, y, x) min=! X(b, c, y, x) == Ma(b, y, x) ? c : C
    Mb(b, y, x) max=! c != Ix(b, y, x) ? X(b, c, y, x) : -infinity()
    Mg(b, y, x) = Ma(b, y, x) - Mb(b, y, x)
}''', args=lambda g: [rn(g, 2, 97, 113, 7).permute(0, 3, 1, 2)], torch=_toptwo, tol=1e-6))


def _lagclass(X, V, ga):
    i, x = torch.arange(X.shape[1]), X.float()
    d = i - i[:, None]
    a = torch.where((d % 3 == 1) & (d.abs() < 40), (-ga * (x[:, :, None] - x[:, None]).square().sum(-1)).exp(), 0.0)
    return (a / (a.sum(2, keepdim=True) + 1e-3)) @ V.float()


op(dict(name="lag_class_pair_mixing_bf16", text='''
def lag_class_pair_mixing_bf16(bfloat16(B,T,D) X, bfloat16(B,T,E) V, float ga) -> (O) {
    D2(b, i, j) +=! r * r where r = float(X(b, i, d)) - float(X(b, j, d))
    A(b, i, j) = (j - i) % 3 == 1 && j - i < 40 && i - j < 40 ? exp(-ga * D2(b, i, j)) : 0.0
    Z(b, i) +=! A(b, i, j)
    O(b, i, e) +=! A(b, i, j) / (Z(b, i) + 1e-3) * float(V(b, j, e))
}''', args=lambda g: [rn(g, 3, 131, 6, dt=bf16), rn(g, 3, 131, 11, dt=bf16), of(0.2)], torch=_lagclass, tol=3e-5))


def _tinylegs(A, Bq, Cq):
    w = torch.einsum("jli,klm->ijkm", Bq.float(), Cq.float()).flatten(0, 2)
    y = (A.flatten(1).float() @ w).to(i32)
    return y, torch.where(y == y.amax(1, keepdim=True), torch.arange(y.shape[1], dtype=i32), y.shape[1]).amin(1)


op(dict(name="tiny_leg_network_argmax_int8", text='''
def tiny_leg_network_argmax_int8(int8(N,I,J,K) A, int8(J,L,I) Bq, int8(K,L,M) Cq) -> (Y, Am) {
    Y(n, m) +=! int32(A(n, i, j, k)) * int32(Bq(j, l, i)) * int32(Cq(k, l, m))
    Top(n) max=! Y(n, m)
    Am(n) min=! Y(n, m) == Top(n) ? m : M
}''', args=lambda g: [ri(g, -8, 9, 20011, 2, 3, 5, dt=i8), ri(g, -8, 9, 3, 7, 2, dt=i8), ri(g, -8, 9, 5, 7, 4, dt=i8)], torch=_tinylegs, tol=0.0))


def _colrange(X):
    lo, hi = X.amin(0), X.amax(0)
    return ((X.float() - lo) / (hi.float() - lo) * 2 - 1).half(), lo, hi


op(dict(name="column_range_scale_transposed_half", text='''
def column_range_scale_transposed_half(half(N,C) X) -> (Y, Lo, Hi) {
    Lo(c) min=! X(n, c)
    Hi(c) max=! X(n, c)
    Y(n, c) = half((float(X(n, c)) - float(Lo(c))) / (float(Hi(c)) - float(Lo(c))) * 2.0 - 1.0)
}''', args=lambda g: [rn(g, 211, 1021, dt=f16).T], torch=_colrange, tol=2e-3))


def _kaplan(W, Ev):
    r = W.flip(1).cumsum(1).flip(1)
    h = torch.where(Ev == 1, W / r, 0.0)
    s = (1 - h).cumprod(1)
    return s, s * s * (h / ((1 - h) * r)).cumsum(1)


op(dict(name="kaplan_meier_greenwood_weighted_f64", text='''
def kaplan_meier_greenwood_weighted_f64(double(B,N) W, uint8(B,N) Ev) -> (Sv, Gv) {
    R(b, i) +=! j >= i ? W(b, j) : 0.0 where i in 0:N
    Hz(b, i) = Ev(b, i) == 1 ? W(b, i) / R(b, i) : 0.0
    Sv(b, i) *=! j <= i ? 1.0 - Hz(b, j) : 1.0 where i in 0:N
    Gv(b, i) +=! j <= i ? Hz(b, j) / ((1.0 - Hz(b, j)) * R(b, j)) : 0.0 where i in 0:N
    Gv(b, i) = Sv(b, i) * Sv(b, i) * Gv(b, i)
}''', args=lambda g: [ru(g, 5, 1021, dt=f64, lo=0.5, hi=1.5), F.pad((ru(g, 5, 1020) < 0.6).to(torch.uint8), (0, 1))], torch=_kaplan, tol=1e-9))
