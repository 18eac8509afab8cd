# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Molecules, crystals and fields, statistics and finance, search and recommenders, odd ones; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.networks import f16, f64, i8, i32, of, ri, rn, ru, u8
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)



# ---------------------------------------------------------------- molecules, crystals, fields

def _gto(Rg, Ce, Ex, Cf, Dm):
    r = Rg[:, None] - Ce
    e = Cf * torch.exp(-Ex * r.square().sum(-1)[..., None])
    ph, dp = e.sum(-1), (-2 * Ex * e).sum(-1)
    x = ph @ Dm.T
    return (ph * x).sum(1), 2 * torch.einsum("gm,gmd->gd", x * dp, r)


op(dict(name="gto_density_and_gradient_f64", text='''
def gto_density_and_gradient_f64(double(G,3) Rg, double(M,3) Ce, double(M,P) Ex, double(M,P) Cf, double(M,M) Dm) -> (Rho, Gr) {
    R2(g, m) +=! (Rg(g, d) - Ce(m, d)) * (Rg(g, d) - Ce(m, d))
    Ph(g, m) +=! Cf(m, p) * exp(-Ex(m, p) * R2(g, m))
    Dp(g, m) +=! -2.0 * Ex(m, p) * Cf(m, p) * exp(-Ex(m, p) * R2(g, m))
    Xd(g, m) +=! Dm(m, n) * Ph(g, n)
    Rho(g) +=! Ph(g, m) * Xd(g, m)
    Gr(g, d) +=! 2.0 * Xd(g, m) * Dp(g, m) * (Rg(g, d) - Ce(m, d))
}''', args=lambda g: [rn(g, 2003, 3, dt=f64, k=1.5), rn(g, 41, 3, dt=f64), ru(g, 41, 3, dt=f64, lo=0.1, hi=3.0), rn(g, 41, 3, dt=f64), (lambda a: a + a.T)(rn(g, 41, 41, dt=f64))], torch=_gto, tol=1e-11))


def _behler(X, Nb, Et, Ze, La, rc):
    v = X[Nb] - X[:, None]
    r2 = v.square().sum(-1)
    cut = lambda s: torch.where(s < rc * rc, 0.5 * torch.cos(math.pi * s.sqrt() / rc) + 0.5, 0.0)
    j, k = torch.triu_indices(Nb.shape[1], Nb.shape[1], 1)
    rj, rk, s = r2[:, j], r2[:, k], (v[:, j] - v[:, k]).square().sum(-1)
    c = (v[:, j] * v[:, k]).sum(-1) * torch.rsqrt(rj * rk)
    w = cut(rj) * cut(rk) * cut(s)
    a = (1 + La * c[..., None]).clamp_min(1e-6) ** Ze
    return torch.exp2(1 - Ze) * torch.einsum("npq,np->nq", a * torch.exp(-Et * (rj + rk + s)[..., None]), w)


def _behler_args(g):
    x = 6 * ru(g, 211, 3)
    return [x, (torch.cdist(x, x) + 99 * torch.eye(211)).topk(13, largest=False).indices, ru(g, 9, lo=0.05, hi=0.8), torch.tensor([1.0, 2.0, 4.0] * 3), torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0]), of(2.0)]


op(dict(name="behler_g4_angular_neighbours", text='''
def behler_g4_angular_neighbours(float(N,3) X, int64(N,K) Nb, float(Q) Et, float(Q) Ze, float(Q) La, float rc) -> (G) {
    V(n, k, d) = X(Nb(n, k), d) - X(n, d)
    R2(n, k) +=! V(n, k, d) * V(n, k, d)
    Fc(n, k) = R2(n, k) < rc * rc ? 0.5 * cos(3.141592653589793 * sqrt(R2(n, k)) / rc) + 0.5 : 0.0
    Ct(n, j, k) +=! V(n, j, d) * V(n, k, d)
    Ct(n, j, k) = Ct(n, j, k) * rsqrt(R2(n, j) * R2(n, k))
    S2(n, j, k) +=! (V(n, j, d) - V(n, k, d)) * (V(n, j, d) - V(n, k, d))
    W(n, j, k) = j < k && S2(n, j, k) < rc * rc ? Fc(n, j) * Fc(n, k) * (0.5 * cos(3.141592653589793 * sqrt(S2(n, j, k)) / rc) + 0.5) : 0.0
    G(n, q) +=! j < k ? W(n, j, k) * exp2(1.0 - Ze(q)) * pow(max(1.0 + La(q) * Ct(n, j, k), 1e-6), Ze(q)) * exp(-Et(q) * (R2(n, j) + R2(n, k) + S2(n, j, k))) : 0.0
}''', args=_behler_args, torch=_behler, tol=5e-5))


def _grayscott(U, V, Fd, Kl, du, dv):
    k = torch.tensor([[0.05, 0.2, 0.05], [0.2, -1.0, 0.2], [0.05, 0.2, 0.05]])[None, None]
    lap = lambda a: F.conv2d(F.pad(a[:, None], (1, 1, 1, 1), mode="circular"), k)[:, 0]
    for _ in range(3):
        r = U * V * V
        U, V = U + du * lap(U) - r + Fd * (1 - U), V + dv * lap(V) + r - (Fd + Kl) * V
    return U, V


op(dict(name="gray_scott_three_steps", text='''
def gray_scott_step(float(B,H,W) U, float(B,H,W) V, float(H,W) Fd, float(H,W) Kl, float du, float dv) -> (Un, Vn) {
    Lu(b, y, x) = 0.2 * (U(b, s, x) + U(b, n, x) + U(b, y, e) + U(b, y, w)) + 0.05 * (U(b, s, e) + U(b, s, w) + U(b, n, e) + U(b, n, w)) - U(b, y, x)
        where y in 0:H, x in 0:W, s = (y + 1) % H, n = (y + H - 1) % H, e = (x + 1) % W, w = (x + W - 1) % W
    Lv(b, y, x) = 0.2 * (V(b, s, x) + V(b, n, x) + V(b, y, e) + V(b, y, w)) + 0.05 * (V(b, s, e) + V(b, s, w) + V(b, n, e) + V(b, n, w)) - V(b, y, x)
        where y in 0:H, x in 0:W, s = (y + 1) % H, n = (y + H - 1) % H, e = (x + 1) % W, w = (x + W - 1) % W
    Rc(b, y, x) = U(b, y, x) * V(b, y, x) * V(b, y, x)
    Un(b, y, x) = U(b, y, x) + du * Lu(b, y, x) - Rc(b, y, x) + Fd(y, x) * (1.0 - U(b, y, x))
    Vn(b, y, x) = V(b, y, x) + dv * Lv(b, y, x) + Rc(b, y, x) - (Fd(y, x) + Kl(y, x)) * V(b, y, x)
}
def gray_scott_three_steps(float(B,H,W) U, float(B,H,W) V, float(H,W) Fd, float(H,W) Kl, float du, float dv) -> (U3, V3) {
    U1, V1 = gray_scott_step(U, V, Fd, Kl, du, dv)
    U2, V2 = gray_scott_step(U1, V1, Fd, Kl, du, dv)
    U3, V3 = gray_scott_step(U2, V2, Fd, Kl, du, dv)
}''', args=lambda g: [ru(g, 3, 93, 131), ru(g, 3, 93, 131, hi=0.5), ru(g, 93, 131, lo=0.02, hi=0.06), ru(g, 93, 131, lo=0.05, hi=0.065), of(0.9), of(0.45)], torch=_grayscott, tol=1e-5))


def _dgsem(U, Dm, Jc):
    rho, v, h = U[..., 0], U[..., 1] / U[..., 0], U[..., 2] / U[..., 0]
    p = 0.4 * (U[..., 2] - 0.5 * U[..., 1] * v)
    r, v, h, p = (0.5 * (a[:, :, None] + a[:, None]) for a in (rho, v, h, p))
    f = torch.stack([r * v, r * v * v + p, (r * h + p) * v], -1)
    return -2 * torch.einsum("ij,eijc->eic", Dm, f) / Jc[:, None, None]


op(dict(name="dgsem_kennedy_gruber_volume_f64", text='''
def dgsem_kennedy_gruber_volume_f64(double(E,N,3) U, double(N,N) Dm, double(E) Jc) -> (Rh) {
    V(e, i) = U(e, i, 1) / U(e, i, 0)
    P(e, i) = 0.4 * (U(e, i, 2) - 0.5 * U(e, i, 1) * V(e, i))
    Fx(e, i, j, c) = c == 0 ? r * v : (c == 1 ? r * v * v + p : (r * h + p) * v)
        where c in 0:3, r = 0.5 * (U(e, i, 0) + U(e, j, 0)), v = 0.5 * (V(e, i) + V(e, j)), p = 0.5 * (P(e, i) + P(e, j)), h = 0.5 * (U(e, i, 2) / U(e, i, 0) + U(e, j, 2) / U(e, j, 0))
    Rh(e, i, c) +=! -2.0 * Dm(i, j) * Fx(e, i, j, c)
    Rh(e, i, c) = Rh(e, i, c) / Jc(e)
}''', args=lambda g: [torch.stack([ru(g, 2003, 7, dt=f64, lo=0.5, hi=2.0), rn(g, 2003, 7, dt=f64), ru(g, 2003, 7, dt=f64, lo=3.0, hi=6.0)], 2), rn(g, 7, 7, dt=f64), ru(g, 2003, dt=f64, lo=0.1, hi=0.3)], torch=_dgsem, tol=1e-11))


def _qeq(X, Qc, Ch, Jh, Sg):
    eye = torch.eye(X.shape[1], dtype=f64)
    r = ((X[:, :, None] - X[:, None]).square().sum(-1) + eye).sqrt()
    s = Sg.square()
    k = torch.where(eye > 0, Jh[..., None], torch.erf(r / (2 * (s[:, :, None] + s[:, None])).sqrt()) / r)
    ph = Ch + (k @ Qc[..., None])[..., 0]
    return 0.5 * (Qc * (ph + Ch)).sum(1), ph


op(dict(name="qeq_gaussian_charges_f64", text='''
def qeq_gaussian_charges_f64(double(B,N,3) X, double(B,N) Qc, double(B,N) Ch, double(B,N) Jh, double(B,N) Sg) -> (En, Ph) {
    R2(b, i, j) +=! (X(b, i, d) - X(b, j, d)) * (X(b, i, d) - X(b, j, d))
    Kc(b, i, j) = i == j ? Jh(b, i) : erf(sqrt(R2(b, i, j) / (2.0 * (Sg(b, i) * Sg(b, i) + Sg(b, j) * Sg(b, j))))) / sqrt(R2(b, i, j))
    Ph(b, i) +=! Kc(b, i, j) * Qc(b, j)
    Ph(b, i) = Ph(b, i) + Ch(b, i)
    En(b) +=! 0.5 * Qc(b, i) * (Ph(b, i) + Ch(b, i))
}''', args=lambda g: [rn(g, 11, 83, 3, dt=f64, k=3.0), rn(g, 11, 83, dt=f64, k=0.3), rn(g, 11, 83, dt=f64), ru(g, 11, 83, dt=f64, lo=0.5, hi=1.5), ru(g, 11, 83, dt=f64, lo=0.5, hi=1.2)], torch=_qeq, tol=1e-10))


def _phonon(Fc, Lv, Qp, Ms):
    a = 2 * math.pi * (Qp @ Lv.T)
    w = torch.rsqrt(Ms.repeat_interleave(3))
    m = (Fc * w[:, None] * w).flatten(1)
    return (a.cos() @ m).unflatten(1, Fc.shape[1:]), (a.sin() @ m).unflatten(1, Fc.shape[1:])


op(dict(name="phonon_dynamical_matrices_f64", text='''
def phonon_dynamical_matrices_f64(double(R,3*A,3*A) Fc, double(R,3) Lv, double(Q,3) Qp, double(A) Ms) -> (Dr, Di) {
    Ph(q, r) +=! Qp(q, d) * Lv(r, d)
    Cq(q, r) = cos(6.283185307179586 * Ph(q, r))
    Sq(q, r) = sin(6.283185307179586 * Ph(q, r))
    Iw(i) = rsqrt(Ms(i / 3)) where i in 0:3*A
    Dr(q, i, j) +=! Fc(r, i, j) * Cq(q, r) * Iw(i) * Iw(j)
    Di(q, i, j) +=! Fc(r, i, j) * Sq(q, r) * Iw(i) * Iw(j)
}''', args=lambda g: [rn(g, 125, 21, 21, dt=f64), ri(g, -3, 4, 125, 3, dt=f64), ru(g, 203, 3, dt=f64), ru(g, 7, dt=f64, lo=10.0, hi=60.0)], torch=_phonon, tol=1e-10))


# ---------------------------------------------------------------- statistics and finance

def _cox(X, Be, Tm, Ev):
    o = Tm.argsort(descending=True)
    eta, ev = (X @ Be)[o], Ev[o]
    return (torch.logcumsumexp(eta, 0) - eta)[ev].sum() / ev.sum()


op(dict(name="cox_breslow_nll", text='''
def cox_breslow_nll(float(N,P) X, float(P) Be, float(N) Tm, bool(N) Ev) -> (Nl) {
    Et(i) +=! X(i, p) * Be(p)
    Mx max=! Et(i)
    Ee(i) = exp(Et(i) - Mx)
    Rs(i) +=! Tm(j) >= Tm(i) ? Ee(j) : 0.0
    Ne +=! Ev(i) ? 1.0 : 0.0
    Nl +=! Ev(i) ? log(Rs(i)) + Mx - Et(i) : 0.0
    Nl = Nl / Ne
}''', args=lambda g: [rn(g, 1501, 23), rn(g, 23, k=0.2), torch.randperm(1501, generator=g).float() + 1.0, ru(g, 1501) < 0.6], torch=_cox, tol=2e-5))


def _sabr(Kx, Fw, Tx, La, Rh, Ln, Mv, be):
    a, ro, nu, b2 = La.exp()[:, None], Rh.tanh()[:, None], Ln.exp()[:, None], (1 - be) ** 2
    lk, pm = torch.log(Fw[:, None] / Kx), (Fw[:, None] * Kx) ** (0.5 * (1 - be))
    z = nu / a * pm * lk
    small = z.abs() < 1e-6
    zs = torch.where(small, 1.0, z)
    zx = torch.where(small, 1 - 0.5 * ro * z, zs / torch.log(((1 - 2 * ro * zs + zs * zs).sqrt() + zs - ro) / (1 - ro)))
    l2 = lk.square()
    iv = a * zx / (pm * (1 + b2 / 24 * l2 + b2 * b2 / 1920 * l2 * l2))
    iv = iv * (1 + Tx[:, None] * (b2 / 24 * a * a / (pm * pm) + 0.25 * ro * be * nu * a / pm + (2 - 3 * ro * ro) / 24 * nu * nu))
    return F.mse_loss(iv, Mv), iv


op(dict(name="sabr_hagan_calibration_f64", text='''
def sabr_hagan_calibration_f64(double(E,S) Kx, double(E) Fw, double(E) Tx, double(E) La, double(E) Rh, double(E) Ln, double(E,S) Mv, double be) -> (Loss, Iv) {
    Al(e) = exp(La(e))
    Ro(e) = tanh(Rh(e))
    Nu(e) = exp(Ln(e))
    Lk(e, s) = log(Fw(e) / Kx(e, s))
    Pm(e, s) = pow(Fw(e) * Kx(e, s), 0.5 * (1.0 - be))
    Z(e, s) = Nu(e) / Al(e) * Pm(e, s) * Lk(e, s)
    Zx(e, s) = abs(z) < 1e-6 ? 1.0 - 0.5 * Ro(e) * z : z / log((sqrt(1.0 - 2.0 * Ro(e) * z + z * z) + z - Ro(e)) / (1.0 - Ro(e))) where z = Z(e, s)
    Tc(e, s) = 1.0 + Tx(e) * ((1.0 - be) * (1.0 - be) / 24.0 * Al(e) * Al(e) / (Pm(e, s) * Pm(e, s)) + 0.25 * Ro(e) * be * Nu(e) * Al(e) / Pm(e, s) + (2.0 - 3.0 * Ro(e) * Ro(e)) / 24.0 * Nu(e) * Nu(e))
    Iv(e, s) = Al(e) * Zx(e, s) * Tc(e, s) / (Pm(e, s) * (1.0 + u / 24.0 + u * u / 1920.0)) where u = (1.0 - be) * (1.0 - be) * Lk(e, s) * Lk(e, s)
    Loss +=! (Iv(e, s) - Mv(e, s)) * (Iv(e, s) - Mv(e, s)) / (E * S)
}''', args=lambda g: [(0.03 * torch.linspace(0.6, 1.6, 51, dtype=f64)).repeat(301, 1) + ru(g, 301, 51, dt=f64, hi=1e-4), ru(g, 301, dt=f64, lo=0.025, hi=0.035), ru(g, 301, dt=f64, lo=0.1, hi=10.0), rn(g, 301, dt=f64, k=0.2) - 3.5, rn(g, 301, dt=f64, k=0.3) - 0.3, rn(g, 301, dt=f64, k=0.2) - 1.0, ru(g, 301, 51, dt=f64, lo=0.1, hi=0.4), of(0.5, f64)],
   torch=_sabr, tol=1e-9))


def _irt(Yr, La, Bd, Th, Lw):
    lg = La.exp()[:, None] * (Th - Bd[:, None])
    ok = (Yr >= 0).float()
    l = Yr.clamp_min(0).float() @ lg - ok @ F.softplus(lg) + Lw
    return -l.logsumexp(1).mean(), l.softmax(1) @ Th


op(dict(name="irt_2pl_marginal_nll", text='''
def irt_2pl_marginal_nll(int8(N,J) Yr, float(J) La, float(J) Bd, float(Q) Th, float(Q) Lw) -> (Nl, Eap) {
    Lg(j, q) = exp(La(j)) * (Th(q) - Bd(j))
    Sp(j, q) = max(Lg(j, q), 0.0) + log1p(exp(-abs(Lg(j, q))))
    L(n, q) +=! Yr(n, j) >= 0 ? float(Yr(n, j)) * Lg(j, q) - Sp(j, q) : 0.0
    L(n, q) = L(n, q) + Lw(q)
    M(n) max=! L(n, q)
    E(n, q) = exp(L(n, q) - M(n))
    Z(n) +=! E(n, q)
    Nl +=! -(M(n) + log(Z(n))) / N
    Eap(n) +=! E(n, q) / Z(n) * Th(q)
}''', args=lambda g: [ri(g, -1, 2, 1203, 43, dt=i8), rn(g, 43, k=0.3), rn(g, 43), torch.linspace(-4.0, 4.0, 41), (-0.5 * torch.linspace(-4.0, 4.0, 41).square()).log_softmax(0)], torch=_irt, tol=3e-5))


def _bridge(Z, s0, strike, lb, vol, rate, mat):
    S = Z.shape[1]
    dt = mat / S
    x = F.pad((vol * dt.sqrt() * Z + (rate - 0.5 * vol * vol) * dt).cumsum(1), (1, 0)) - lb
    a, b = x[:, :-1], x[:, 1:]
    sv = torch.where((a > 0) & (b > 0), 1 - torch.exp(-2 * a * b / (vol * vol * dt)), 0.0).prod(1)
    pay = torch.exp(-rate * mat) * sv * F.relu(s0 * torch.exp(x[:, -1] + lb) - strike)
    return pay.mean(), pay.std() / len(pay) ** 0.5


op(dict(name="barrier_bridge_monte_carlo_f64", text='''
def barrier_bridge_monte_carlo_f64(double(P,S) Z, double s0, double strike, double lb, double vol, double rate, double mat) -> (Pv, Se) {
    Lx(p, t) +=! u <= t ? vol * sqrt(mat / S) * Z(p, u) + (rate - 0.5 * vol * vol) * mat / S : 0.0 where t in 0:S
    Lp(p, t) = t > 0 ? Lx(p, t - 1) : 0.0 where t in 0:S
    Br(p, t) = a > 0.0 && b > 0.0 ? 1.0 - exp(-2.0 * a * b / (vol * vol * mat / S)) : 0.0 where a = Lp(p, t) - lb, b = Lx(p, t) - lb
    Sv(p) *=! Br(p, t)
    Pay(p) = exp(-rate * mat) * Sv(p) * max(s0 * exp(Lx(p, S - 1)) - strike, 0.0)
    Pv +=! Pay(p) / P
    Va +=! (Pay(p) - Pv) * (Pay(p) - Pv) / (P - 1)
    Se = sqrt(Va / P)
}''', args=lambda g: [rn(g, 5003, 24, dt=f64), of(100.0, f64), of(95.0, f64), of(-0.2, f64), of(0.25, f64), of(0.02, f64), of(1.0, f64)], torch=_bridge, tol=1e-10))


# ---------------------------------------------------------------- search and recommenders

def _lightgcn(E0, Src, Dst, We, Us, Ps, Ng):
    step = lambda e: torch.zeros_like(e).index_add(0, Dst, We[:, None] * e[Src])
    e1 = step(E0)
    em = (E0 + e1 + step(e1)) / 3
    u, p, n = em[Us], em[Ps], em[Ng]
    reg = (E0[Us].square().sum() + E0[Ps].square().sum() + E0[Ng].square().sum()) / (2 * len(Us))
    return F.softplus((u * (n - p)).sum(1)).mean(), reg, em


op(dict(name="lightgcn_propagation_bpr", text='''
def lightgcn_propagation_bpr(float(N,D) E0, int64(M) Src, int64(M) Dst, float(M) We, int64(B) Us, int64(B) Ps, int64(B) Ng) -> (Loss, Reg, Em) {
    E1(Dst(m), d) +=! We(m) * E0(Src(m), d) where Dst(m) in 0:N
    E2(Dst(m), d) +=! We(m) * E1(Src(m), d) where Dst(m) in 0:N
    Em(n, d) = (E0(n, d) + E1(n, d) + E2(n, d)) / 3.0
    Sc(b) +=! Em(Us(b), d) * (Em(Ng(b), d) - Em(Ps(b), d))
    Loss +=! (max(Sc(b), 0.0) + log1p(exp(-abs(Sc(b))))) / B
    Reg +=! (E0(Us(b), d) * E0(Us(b), d) + E0(Ps(b), d) * E0(Ps(b), d) + E0(Ng(b), d) * E0(Ng(b), d)) / (2 * B)
}''', args=lambda g: [rn(g, 2003, 44), ri(g, 0, 2003, 15013), ri(g, 0, 2003, 15013), ru(g, 15013, lo=0.05, hi=0.2), ri(g, 0, 2003, 1021), ri(g, 0, 2003, 1021), ri(g, 0, 2003, 1021)], torch=_lightgcn, tol=3e-5))


def _splade(Hq, Em, Bi, Len):
    m = (torch.arange(Hq.shape[1]) < Len[:, None])[..., None]
    w = (torch.log1p(F.relu(F.linear(Hq, Em, Bi))) * m).amax(1)
    return w, w @ w.T, w.mean(0).square().sum()


op(dict(name="splade_max_log_saturation", text='''
def splade_max_log_saturation(float(B,T,D) Hq, float(V,D) Em, float(V) Bi, int32(B) Len) -> (Wt, Sc, Flops) {
    Lg(b, t, v) +=! Hq(b, t, d) * Em(v, d)
    Wt(b, v) max=! t < Len(b) ? log1p(relu(Lg(b, t, v) + Bi(v))) : 0.0
    Sc(b, c) +=! Wt(b, v) * Wt(c, v)
    Mn(v) +=! Wt(b, v) / B
    Flops +=! Mn(v) * Mn(v)
}''', args=lambda g: [rn(g, 9, 24, 61), rn(g, 3001, 61, k=0.13), rn(g, 3001, k=0.3) - 1.0, ri(g, 5, 25, 9, dt=i32)], torch=_splade, tol=3e-5))


def _rrf(Sa, Sb, wa, k):
    ra, rb = (s.argsort(dim=1, descending=True, stable=True).argsort(1) for s in (Sa, Sb))
    f = wa / (61 + ra) + (1 - wa) / (61 + rb)
    return f, f.topk(int(k), dim=1).values


op(dict(name="reciprocal_rank_fusion_top", text='''
def reciprocal_rank_fusion_top(float(Q,N) Sa, float(Q,N) Sb, float wa, int32 k) -> (Fs, Top) {
    Ra(q, i) +=! Sa(q, j) > Sa(q, i) || (Sa(q, j) == Sa(q, i) && j < i) ? 1 : 0
    Rb(q, i) +=! Sb(q, j) > Sb(q, i) || (Sb(q, j) == Sb(q, i) && j < i) ? 1 : 0
    Fs(q, i) = wa / (61.0 + Ra(q, i)) + (1.0 - wa) / (61.0 + Rb(q, i))
    Rf(q, i) +=! Fs(q, j) > Fs(q, i) || (Fs(q, j) == Fs(q, i) && j < i) ? 1 : 0
    Top(q, r) +=! Rf(q, i) == r ? Fs(q, i) : 0.0 where r in 0:k
}''', args=lambda g: [rn(g, 17, 251), rn(g, 17, 251), of(0.6), of(10, i32)], torch=_rrf, tol=1e-5))


def _neuralsort(S, Gn, Ideal, tau):
    N = S.shape[1]
    a = (S[:, :, None] - S[:, None]).abs().sum(2)
    c = (N - 1 - 2 * torch.arange(N)).to(S.dtype)
    p = ((c[:, None] * S[:, None] - a[:, None]) / tau).softmax(-1)
    dcg = ((p @ Gn[..., None])[..., 0] / torch.log2(torch.arange(N) + 2.0)).sum(1)
    return (1 - dcg / Ideal).mean(), p


def _neuralsort_args(g):
    gain = torch.exp2(ri(g, 0, 5, 61, 59).float()) - 1
    return [rn(g, 61, 59), gain, (gain.sort(1, descending=True).values / torch.log2(torch.arange(59) + 2.0)).sum(1), of(2.0)]


op(dict(name="neuralsort_relaxed_ndcg", text='''
def neuralsort_relaxed_ndcg(float(B,N) S, float(B,N) Gn, float(B) Ideal, float tau) -> (Loss, P) {
    A(b, j) +=! abs(S(b, j) - S(b, k))
    L(b, i, j) = ((N - 1 - 2 * i) * S(b, j) - A(b, j)) / tau where i in 0:N
    M(b, i) max=! L(b, i, j)
    P(b, i, j) = exp(L(b, i, j) - M(b, i))
    Z(b, i) +=! P(b, i, j)
    P(b, i, j) = P(b, i, j) / Z(b, i)
    Gs(b, i) +=! P(b, i, j) * Gn(b, j)
    Dcg(b) +=! Gs(b, i) / log2(i + 2.0)
    Loss +=! (1.0 - Dcg(b) / Ideal(b)) / B
}''', args=_neuralsort_args, torch=_neuralsort, tol=1e-4))


# ---------------------------------------------------------------- odd ones

def _ttt(Q, K, V, W0, Et):
    gr = Et[..., None] * (K @ W0 - V)
    z = Q @ W0 - (Q @ K.mT).tril() @ gr
    return z, W0 - K.mT @ gr


op(dict(name="ttt_linear_dual_chunk", text='''
def ttt_linear_dual_chunk(float(B,H,C,D) Q, float(B,H,C,D) K, float(B,H,C,D) V, float(H,D,D) W0, float(B,H,C) Et) -> (Y, W1) {
    G(b, h, s, e) +=! K(b, h, s, d) * W0(h, d, e)
    G(b, h, s, e) = Et(b, h, s) * (G(b, h, s, e) - V(b, h, s, e))
    A(b, h, t, s) +=! Q(b, h, t, d) * K(b, h, s, d)
    Y(b, h, t, e) +=! Q(b, h, t, d) * W0(h, d, e)
    Y(b, h, t, e) += s <= t ? -A(b, h, t, s) * G(b, h, s, e) : 0.0
    W1(b, h, d, e) +=! -K(b, h, s, d) * G(b, h, s, e)
    W1(b, h, d, e) = W1(b, h, d, e) + W0(h, d, e)
}''', args=lambda g: [rn(g, 3, 7, 49, 36), rn(g, 3, 7, 49, 36, k=0.2), rn(g, 3, 7, 49, 36), rn(g, 7, 36, 36, k=0.15), ru(g, 3, 7, 49, hi=0.2)], torch=_ttt, tol=3e-5))


def _hll(Hs, Gp, Like):
    w = Hs // 1024
    rho = torch.where(w == 0, 23, torch.log2((w & -w).clamp_min(1).double()).to(torch.int64) + 1)
    rg = torch.zeros(len(Like) * 1024, dtype=torch.int64).scatter_reduce(0, Gp * 1024 + Hs % 1024, rho, "amax").view(-1, 1024)
    return rg.to(u8), 0.7213 / (1 + 1.079 / 1024) * 1024 ** 2 / torch.exp2(-rg.float()).sum(1)


op(dict(name="hyperloglog_grouped_registers_u8", text='''
def hyperloglog_grouped_registers_u8(int64(N) Hs, int64(N) Gp, float(G) Like) -> (uint8(G,1024) Rg, Est) {
    Pw(k) *=! j <= k ? 2 : 1 where k in 0:22, j in 0:22
    Ro(n) +=! Hs(n) / 1024 % Pw(k) == 0 ? 1 : 0
    Rg(Gp(n), Hs(n) % 1024) max=! uint8(Ro(n) + 1)
    Hm(g) +=! exp2(-float(Rg(g, m)))
    Est(g) = 0.7213 / (1.0 + 1.079 / 1024.0) * 1048576.0 / Hm(g)
}''', args=lambda g: [ri(g, 0, 2 ** 32, 20011), ri(g, 0, 5, 20011), torch.zeros(5)], torch=_hll, tol=1e-5))


def _vim(X, Kf, Kb, Bf, Bb):
    conv = lambda a, k, b: F.silu(F.conv1d(F.pad(a, (3, 0)), k.float()[:, None], b.float(), groups=len(k))).mT.half()
    x = X.float().mT
    return conv(x, Kf, Bf), conv(x.flip(2), Kb, Bb)


op(dict(name="vim_two_direction_conv_half", text='''
def vim_two_direction_conv_half(half(B,T,C) X, half(C,4) Kf, half(C,4) Kb, half(C) Bf, half(C) Bb) -> (half(B,T,C) Yf, half(B,T,C) Yb) {
    Cf(b, t, c) +=! t + k >= 3 ? float(X(b, t + k - 3, c)) * Kf(c, k) : 0.0 where t in 0:T, k in 0:4
    Cb(b, t, c) +=! t + k >= 3 ? float(X(b, T + 2 - t - k, c)) * Kb(c, k) : 0.0 where t in 0:T, k in 0:4
    Yf(b, t, c) = z * sigmoid(z) where z = Cf(b, t, c) + Bf(c)
    Yb(b, t, c) = z * sigmoid(z) where z = Cb(b, t, c) + Bb(c)
}''', args=lambda g: [rn(g, 5, 197, 192, dt=f16), rn(g, 192, 4, dt=f16, k=0.5), rn(g, 192, 4, dt=f16, k=0.5), rn(g, 192, dt=f16, k=0.2), rn(g, 192, dt=f16, k=0.2)], torch=_vim, tol=2e-3))


def _packed(Ap, X):
    N = X.shape[1]
    i, j = torch.arange(N)[:, None], torch.arange(N)
    hi, lo = torch.maximum(i, j), torch.minimum(i, j)
    y = Ap[:, hi * (hi + 1) // 2 + lo] @ X
    return y, (X * y).sum(1)


op(dict(name="packed_symmetric_matmat_f64", text='''
def packed_symmetric_matmat_f64(double(B,L) Ap, double(B,N,M) X) -> (Y, Qf) {
    Ix(i, j) = i >= j ? i * (i + 1) / 2 + j : j * (j + 1) / 2 + i where i in 0:N, j in 0:N
    Y(b, i, m) +=! Ap(b, Ix(i, j)) * X(b, j, m)
    Qf(b, m) +=! X(b, i, m) * Y(b, i, m)
}''', args=lambda g: [rn(g, 7, 121 * 122 // 2, dt=f64), rn(g, 7, 121, 9, dt=f64)], torch=_packed, tol=1e-11))


def _keogh(Qs, Cs):
    up, lo = F.max_pool1d(Cs[:, None], 11, 1, 5)[:, 0], -F.max_pool1d(-Cs[:, None], 11, 1, 5)[:, 0]
    bd = (F.relu(Qs[:, None] - up).square() + F.relu(lo - Qs[:, None]).square()).sum(2)
    return bd, bd.amin(1)


op(dict(name="lb_keogh_pair_bounds", text='''
def lb_keogh_pair_bounds(float(M,T) Qs, float(N,T) Cs) -> (Bd, Mn) {
    Up(n, t) max=! Cs(n, min(max(t + k - 5, 0), T - 1)) where t in 0:T, k in 0:11
    Lo(n, t) min=! Cs(n, min(max(t + k - 5, 0), T - 1)) where t in 0:T, k in 0:11
    Bd(m, n) +=! q > Up(n, t) ? (q - Up(n, t)) * (q - Up(n, t)) : (q < Lo(n, t) ? (Lo(n, t) - q) * (Lo(n, t) - q) : 0.0) where q = Qs(m, t)
    Mn(m) min=! Bd(m, n)
}''', args=lambda g: [rn(g, 31, 101), rn(g, 127, 101)], torch=_keogh, tol=2e-5))


def _satd(Cu, Rf, Hd, Mc):
    P, Q, S = *Cu.shape[:2], Mc.shape[0]
    w = Rf.unfold(0, S + 3, 4).unfold(1, S + 3, 4)[:P, :Q].unfold(2, 4, 1).unfold(3, 4, 1)
    h = Hd.float()
    t = h @ (Cu[:, :, None, None].float() - w.float()) @ h.T
    cost = (t.abs().sum((-1, -2)).to(i32) + 1) // 2 + Mc
    key = (cost * 64 + torch.arange(S * S, dtype=i32).view(S, S)).flatten(2).amin(2)
    return key // 64, key % 64


op(dict(name="satd_4x4_motion_search_u8", text='''
def satd_4x4_motion_search_u8(uint8(P,Q,4,4) Cu, uint8(H,W) Rf, int32(4,4) Hd, int32(S,S) Mc) -> (Best, Arg) {
    D(p, q, y, x, i, j) = int32(Cu(p, q, i, j)) - int32(Rf(4*p + y + i, 4*q + x + j)) where y in 0:S, x in 0:S
    E(p, q, y, x, u, j) +=! Hd(u, i) * D(p, q, y, x, i, j)
    G(p, q, y, x, u, v) +=! E(p, q, y, x, u, j) * Hd(v, j)
    Co(p, q, y, x) +=! abs(G(p, q, y, x, u, v))
    Co(p, q, y, x) = (Co(p, q, y, x) + 1) / 2 + Mc(y, x)
    Ky(p, q) min=! 64 * Co(p, q, y, x) + S * y + x
    Best(p, q) = Ky(p, q) / 64
    Arg(p, q) = Ky(p, q) % 64
}''', args=lambda g: [ri(g, 0, 256, 13, 17, 4, 4, dt=u8), ri(g, 0, 256, 59, 75, dt=u8), torch.tensor([[1, 1, 1, 1], [1, 1, -1, -1], [1, -1, -1, 1], [1, -1, 1, -1]], dtype=i32), ri(g, 0, 60, 7, 7, dt=i32)], torch=_satd, tol=0.0))
