# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Operators of molecules, waves, climate, control, imaging, genetics and economics; as in ``science``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.operator import WrittenOperator, adder
from generality.written_operators.operator import integers as ri
from generality.written_operators.operator import normal as rn
from generality.written_operators.operator import uniform as ru

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)


# ---------------------------------------------------------------- molecular dynamics
def t_lj(R, N, Box):
    ok = N >= 0
    d = R[:, None] - R[N.clamp_min(0)]
    d = d - Box * torch.round(d / Box)
    r2 = (d * d).sum(-1)
    ok = ok & (r2 < 6.25)
    r2 = torch.where(ok, r2, torch.ones((), dtype=R.dtype))
    s6 = 1.0 / (r2 * r2 * r2)
    x = (r2 / 6.25)
    return ((2.0 * (s6 * s6 - s6) * (1 - x) ** 2 * (1 + 2 * x)) * ok).sum(1)
op(dict(name="lj_switched_energy", text='''
def lj_switched_energy(double(N,3) R, int64(N,K) Nbr, double(3) Box) -> (E) {
    D(i, k, c) = (Nbr(i, k) >= 0) ? R(i, c) - R(Nbr(i, k), c) - Box(c) * round((R(i, c) - R(Nbr(i, k), c)) / Box(c)) : 1.0
    R2(i, k) +=! D(i, k, c) * D(i, k, c)
    S6(i, k) = 1.0 / (R2(i, k) * R2(i, k) * R2(i, k))
    E(i) +=! (Nbr(i, k) >= 0 && R2(i, k) < 6.25) ? 2.0 * (S6(i, k) * S6(i, k) - S6(i, k)) * (1.0 - x) * (1.0 - x) * (1.0 + 2.0 * x) : 0.0 where x = R2(i, k) / 6.25
}''', args=lambda g: [(torch.cartesian_prod(*[torch.arange(10.0, dtype=torch.float64)] * 3) * 1.1 + 0.15 * ru(g, 1000, 3, dt=torch.float64)),
                      (lambda N: torch.where((N == torch.arange(1000)[:, None]) | (ri(g, 0, 8, 1000, 30) == 0), torch.full_like(N, -1), N))((torch.arange(1000)[:, None] + torch.tensor([s * a for a in (1, 2, 10, 20, 100, 200, 9, 11, 90, 110, 99, 101, 111, 89, 109) for s in (1, -1)])[None]) % 1000),
                      torch.full((3,), 11.0, dtype=torch.float64)], torch=t_lj, tol=1e-12))

def t_sw(D):
    r = D.square().sum(-1).sqrt()
    f = torch.where(r < 1.8, torch.exp(1.2 / torch.where(r < 1.8, r - 1.8, torch.full((), -1.0, dtype=D.dtype))), torch.zeros((), dtype=D.dtype))
    U = D / r[..., None]
    c = torch.einsum("njx,nkx->njk", U, U)
    h = (c + 1.0 / 3.0) ** 2 * f[:, :, None] * f[:, None]
    return torch.triu(h, 1).sum((1, 2))
op(dict(name="three_body_energy", text='''
def three_body_energy(float(N,K,3) D) -> (E) {
    R(n, k) +=! D(n, k, x) * D(n, k, x)
    R(n, k) = sqrt(R(n, k))
    F(n, k) = (R(n, k) < 1.8) ? exp(1.2 / (R(n, k) - 1.8)) : 0.0
    C(n, j, k) +=! D(n, j, x) * D(n, k, x) / (R(n, j) * R(n, k))
    E(n) +=! (j < k) ? (C(n, j, k) + 1.0 / 3.0) * (C(n, j, k) + 1.0 / 3.0) * F(n, j) * F(n, k) : 0.0
}''', args=lambda g: [(F.normalize(rn(g, 601, 14, 3), dim=-1) * (0.8 + 1.2 * ru(g, 601, 14, 1)))], torch=t_sw, tol=2e-5))

# ---------------------------------------------------------------- quantum chemistry and tensor networks
def t_ovl(a, c, R):
    r2 = (R[:, None] - R[None]).square().sum(-1)[:, :, None, None]
    p, q = a[:, None, :, None], a[None, :, None, :]
    w = c[:, None, :, None] * c[None, :, None, :]
    return (w * (math.pi / (p + q)) ** 1.5 * torch.exp(-p * q / (p + q) * r2)).sum((2, 3))
op(dict(name="contracted_s_overlap", text='''
def contracted_s_overlap(double(A,P) Ex, double(A,P) Co, double(A,3) R) -> (S) {
    R2(a, b) +=! (R(a, x) - R(b, x)) * (R(a, x) - R(b, x))
    S(a, b) +=! Co(a, p) * Co(b, q) * pow(3.141592653589793 / s, 1.5) * exp(-Ex(a, p) * Ex(b, q) / s * R2(a, b)) where s = Ex(a, p) + Ex(b, q)
}''', args=lambda g: [0.1 + 3 * ru(g, 65, 4, dt=torch.float64), rn(g, 65, 4, dt=torch.float64), 2 * rn(g, 65, 3, dt=torch.float64)], torch=t_ovl, tol=1e-12))

def t_mpo(L, A, W, B):
    t = torch.tensordot(L, A, ([0], [0]))                  # w b s a'
    t = torch.tensordot(t, W, ([0, 2], [0, 2]))            # b a' v t
    return torch.tensordot(t, B, ([0, 3], [0, 1])).contiguous()  # a' v b'
op(dict(name="mpo_left_environment", text='''
def mpo_left_environment(double(Da,Dw,Db) L, double(Da,S,Ea) A, double(Dw,Ew,S,T) W, double(Db,T,Eb) B) -> (O) {
    O(c, v, d) +=! L(a, w, b) * A(a, s, c) * W(w, v, s, t) * B(b, t, d)
}''', args=lambda g: [rn(g, 48, 5, 48, dt=torch.float64), rn(g, 48, 2, 56, dt=torch.float64), rn(g, 5, 5, 2, 2, dt=torch.float64), rn(g, 48, 2, 56, dt=torch.float64)], torch=t_mpo, tol=1e-12))

def t_mp2(I, eo, ev):
    d = eo[:, None, None, None] + eo[None, None, :, None] - ev[None, :, None, None] - ev
    return (I * (2 * I - I.transpose(1, 3)) / d).sum((1, 3))
op(dict(name="mp2_pair_energies", text='''
def mp2_pair_energies(double(O,V,O,V) G, double(O) Eo, double(V) Ev) -> (E) {
    E(i, j) +=! G(i, a, j, b) * (2.0 * G(i, a, j, b) - G(i, b, j, a)) / (Eo(i) + Eo(j) - Ev(a) - Ev(b))
}''', args=lambda g: [rn(g, 12, 45, 12, 45, dt=torch.float64), -0.5 - ru(g, 12, dt=torch.float64), 0.5 + ru(g, 45, dt=torch.float64)], torch=t_mp2, tol=1e-12))

# ---------------------------------------------------------------- seismics
def t_sg(VX, VZ, SXX, SZZ, SXZ, La, Mu):
    c1, c2 = 9 / 8, -1 / 24
    s = (slice(2, -2), slice(2, -2))
    ex = c1 * (VX[2:-2, 2:-2] - VX[2:-2, 1:-3]) + c2 * (VX[2:-2, 3:-1] - VX[2:-2, :-4])
    ez = c1 * (VZ[2:-2, 2:-2] - VZ[1:-3, 2:-2]) + c2 * (VZ[3:-1, 2:-2] - VZ[:-4, 2:-2])
    gx = c1 * (VZ[2:-2, 3:-1] - VZ[2:-2, 2:-2]) + c2 * (VZ[2:-2, 4:] - VZ[2:-2, 1:-3])
    gz = c1 * (VX[3:-1, 2:-2] - VX[2:-2, 2:-2]) + c2 * (VX[4:, 2:-2] - VX[1:-3, 2:-2])
    A, B, C = SXX.clone(), SZZ.clone(), SXZ.clone()
    A[s] += 0.1 * ((La[s] + 2 * Mu[s]) * ex + La[s] * ez)
    B[s] += 0.1 * ((La[s] + 2 * Mu[s]) * ez + La[s] * ex)
    C[s] += 0.1 * Mu[s] * (gx + gz)
    return A, B, C
op(dict(name="staggered_stress_update", text='''
def staggered_stress_update(float(H,W) VX, float(H,W) VZ, float(H,W) SXX, float(H,W) SZZ, float(H,W) SXZ, float(H,W) La, float(H,W) Mu) -> (XX, ZZ, XZ) {
    XX(i, j) = SXX(i, j)
    ZZ(i, j) = SZZ(i, j)
    XZ(i, j) = SXZ(i, j)
    XX(i, j) += 0.1 * ((La(i, j) + 2.0 * Mu(i, j)) * ex + La(i, j) * ez) where i in 2:H-2, j in 2:W-2, ex = 1.125 * (VX(i, j) - VX(i, j-1)) - (VX(i, j+1) - VX(i, j-2)) / 24.0, ez = 1.125 * (VZ(i, j) - VZ(i-1, j)) - (VZ(i+1, j) - VZ(i-2, j)) / 24.0
    ZZ(i, j) += 0.1 * ((La(i, j) + 2.0 * Mu(i, j)) * ez + La(i, j) * ex) where i in 2:H-2, j in 2:W-2, ex = 1.125 * (VX(i, j) - VX(i, j-1)) - (VX(i, j+1) - VX(i, j-2)) / 24.0, ez = 1.125 * (VZ(i, j) - VZ(i-1, j)) - (VZ(i+1, j) - VZ(i-2, j)) / 24.0
    XZ(i, j) += 0.1 * Mu(i, j) * (1.125 * (VZ(i, j+1) - VZ(i, j)) - (VZ(i, j+2) - VZ(i, j-1)) / 24.0 + 1.125 * (VX(i+1, j) - VX(i, j)) - (VX(i+2, j) - VX(i-1, j)) / 24.0) where i in 2:H-2, j in 2:W-2
}''', args=lambda g: [rn(g, 601, 700) for _ in range(5)] + [1 + ru(g, 601, 700), 1 + ru(g, 601, 700)], torch=t_sg, tol=1e-5))

def t_kir(D, Ts, Tr):
    NR, NT = D.shape
    t = (Ts[None] + Tr) / 0.004
    i = t.floor().long()
    w = t - i
    r = torch.arange(NR)[:, None, None]
    ok = i < NT - 1
    i = i.clamp_max(NT - 2)
    return (((1 - w) * D[r, i] + w * D[r, i + 1]) * ok).sum(0)

op(dict(name="kirchhoff_migrate", text='''
def kirchhoff_migrate(double(R,NT) D, double(Z,X) Ts, double(R,Z,X) Tr) -> (I) {
    T(r, z, x) = (Ts(z, x) + Tr(r, z, x)) / 0.004
    I(z, x) +=! (int32(floor(T(r, z, x))) < NT - 1) ? (1.0 - (T(r, z, x) - floor(T(r, z, x)))) * D(r, int32(floor(T(r, z, x)))) + (T(r, z, x) - floor(T(r, z, x))) * D(r, int32(floor(T(r, z, x))) + 1) : 0.0
}''', args=lambda g: [rn(g, 48, 751, dt=torch.float64), 1.6 * ru(g, 90, 101, dt=torch.float64), 1.6 * ru(g, 48, 90, 101, dt=torch.float64)], torch=t_kir, tol=1e-11))

# ---------------------------------------------------------------- climate and radiation
def t_zon(X, M, W):
    w = M * W[:, None]
    tot = w.sum(1)
    zm = torch.where(tot > 0, (X * w).sum(-1) / torch.where(tot > 0, tot, torch.ones_like(tot)), torch.zeros((), dtype=X.dtype))
    return torch.where(M, X - zm[..., None], torch.full((), -99.0, dtype=X.dtype)), zm
op(dict(name="masked_zonal_anomaly", text='''
def masked_zonal_anomaly(float(T,La,Lo) X, bool(La,Lo) Sea, float(La) W) -> (A, Zm) {
    Tot(y) +=! Sea(y, x) ? W(y) : 0.0
    Sum(t, y) +=! Sea(y, x) ? W(y) * X(t, y, x) : 0.0
    Zm(t, y) = (Tot(y) > 0) ? Sum(t, y) / Tot(y) : 0.0
    A(t, y, x) = Sea(y, x) ? X(t, y, x) - Zm(t, y) : -99.0
}''', args=lambda g: [rn(g, 181, 360, 24).permute(2, 0, 1), (ru(g, 181, 360) > 0.35) & (torch.arange(181)[:, None] > 9), torch.cos((torch.arange(181.0) - 90) * math.pi / 181)], torch=t_zon, tol=2e-5))

def t_regrid(X, M, Row, Col, S, Like):
    V = Like.shape[0]
    w = S * M[Col]
    num = torch.zeros(X.shape[0], V, dtype=X.dtype).index_add(1, Row, X[:, Col] * w)
    den = torch.zeros(V, dtype=X.dtype).index_add(0, Row, w)
    return torch.where(den > 1e-3, num / torch.where(den > 1e-3, den, torch.ones_like(den)), torch.zeros((), dtype=X.dtype))
op(dict(name="conservative_regrid", text='''
def conservative_regrid(double(T,C) X, double(C) M, int64(L) Row, int64(L) Col, double(L) S, int32(V) Like) -> (Y) {
    Num(t, Row(l)) +=! S(l) * M(Col(l)) * X(t, Col(l)) where Row(l) in 0:V
    Den(Row(l)) +=! S(l) * M(Col(l)) where Row(l) in 0:V
    Y(t, v) = (Den(v) > 1e-3) ? Num(t, v) / Den(v) : 0.0
}''', args=lambda g: [rn(g, 9, 4050, dt=torch.float64), ru(g, 4050, dt=torch.float64), ri(g, 0, 1013, 6000).sort()[0], ri(g, 0, 4050, 6000), ru(g, 6000, dt=torch.float64), torch.zeros(1013, dtype=torch.int32)], torch=t_regrid, tol=1e-11))

def t_rad(Tau, B, Wg):
    C, G, L = Tau.shape
    cs = Tau.cumsum(2)
    d = cs[:, :, :, None] - cs[:, :, None]                 # c g l k
    low = torch.ones(L, L, dtype=torch.bool).tril()
    tr = torch.where(low, torch.exp(-1.66 * torch.where(low, d, torch.zeros((), dtype=d.dtype))), torch.zeros((), dtype=d.dtype))
    return torch.einsum("cglk,cgk,g->cl", tr, (1 - torch.exp(-1.66 * Tau)) * B[:, None], Wg)
op(dict(name="longwave_down_flux", text='''
def longwave_down_flux(float(C,G,L) Tau, float(C,L) B, float(G) Wg) -> (Fd) {
    Cs(c, g, l) +=! (k <= l) ? Tau(c, g, k) : 0.0 where l in 0:L
    Em(c, g, l) = (1.0 - exp(-1.66 * Tau(c, g, l))) * B(c, l)
    Fd(c, l) +=! (k <= l) ? Wg(g) * exp(-1.66 * (Cs(c, g, l) - Cs(c, g, k))) * Em(c, g, k) : 0.0
}''', args=lambda g: [0.2 * ru(g, 33, 16, 47), 1 + ru(g, 33, 47), ru(g, 16)], torch=t_rad, tol=2e-5))

# ---------------------------------------------------------------- lattice Boltzmann
_CX = torch.tensor([0, 1, 0, -1, 0, 1, -1, -1, 1]); _CY = torch.tensor([0, 0, 1, 0, -1, 1, 1, -1, -1])
_WQ = torch.tensor([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)
def t_lbm(Fi, CX, CY, Wq, Solid):
    rho = Fi.sum(0)
    ux = torch.tensordot(CX.to(Fi.dtype), Fi, 1) / rho
    uy = torch.tensordot(CY.to(Fi.dtype), Fi, 1) / rho
    cu = CX[:, None, None] * ux + CY[:, None, None] * uy
    P = Fi + 1.7 * (Wq[:, None, None] * rho * (1 + 3 * cu + 4.5 * cu * cu - 1.5 * (ux * ux + uy * uy)) - Fi)
    opp = [0, 3, 4, 1, 2, 7, 8, 5, 6]
    P = torch.where(Solid, Fi[opp], P)
    return torch.stack([torch.roll(P[q], (int(CY[q]), int(CX[q])), (0, 1)) for q in range(9)])
_lbm_args = lambda g: [0.1 + ru(g, 9, 128, 161) * 0.05, _CX.int(), _CY.int(), _WQ, ru(g, 128, 161) < 0.1]
_lbm = '''
def lbm_d2q9(float(9,H,W) Fi, int32(9) Cx, int32(9) Cy, float(9) Wq, bool(H,W) Solid) -> (G) {
    Rho(y, x) +=! Fi(q, y, x)
    Ux(y, x) +=! Cx(q) * Fi(q, y, x)
    Uy(y, x) +=! Cy(q) * Fi(q, y, x)
    Cu(q, y, x) = (Cx(q) * Ux(y, x) + Cy(q) * Uy(y, x)) / Rho(y, x)
    P(q, y, x) = Solid(y, x) ? Fi((q == 0) ? 0 : ((q < 5) ? (q + 1) % 4 + 1 : (q - 3) % 4 + 5), y, x) : Fi(q, y, x) + 1.7 * (Wq(q) * Rho(y, x) * (1.0 + 3.0 * Cu(q, y, x) + 4.5 * Cu(q, y, x) * Cu(q, y, x) - 1.5 * (Ux(y, x) * Ux(y, x) + Uy(y, x) * Uy(y, x)) / (Rho(y, x) * Rho(y, x))) - Fi(q, y, x))
    G(q, y, x) = P(q, (y - Cy(q)) % H, (x - Cx(q)) % W) where y in 0:H, x in 0:W
}'''
op(dict(name="lbm_d2q9", text=_lbm, args=_lbm_args, torch=t_lbm, tol=2e-5))

# ---------------------------------------------------------------- control
def t_kf(x, P, H, R, z):
    S = H @ P @ H.mT + R
    K = torch.linalg.solve(S, H @ P).mT
    return x + (K @ (z - (H @ x[..., None])[..., 0])[..., None])[..., 0], P - K @ H @ P
op(dict(name="kalman_update_2d", text='''
def kalman_update_2d(double(B,S) X, double(B,S,S) P, double(2,S) H, double(2,2) R, double(B,2) Z) -> (Xn, Pn) {
    HP(b, m, s) +=! H(m, r) * P(b, r, s)
    In(b, m, n) +=! HP(b, m, s) * H(n, s)
    In(b, m, n) = In(b, m, n) + R(m, n)
    V(b, m) +=! H(m, s) * X(b, s)
    V(b, m) = Z(b, m) - V(b, m)
    Det(b) = In(b, 0, 0) * In(b, 1, 1) - In(b, 0, 1) * In(b, 1, 0)
    K(b, s, m) +=! HP(b, n, s) * ((n == m) ? In(b, 1 - n, 1 - m) : -In(b, m, n)) / Det(b)
    Xn(b, s) = X(b, s)
    Xn(b, s) += K(b, s, m) * V(b, m)
    Pn(b, s, r) = P(b, s, r)
    Pn(b, s, r) += -K(b, s, m) * HP(b, m, r)
}''', args=lambda g: [rn(g, 999, 5, dt=torch.float64), (lambda A: A @ A.mT + torch.eye(5, dtype=torch.float64))(rn(g, 999, 5, 5, dt=torch.float64)), rn(g, 2, 5, dt=torch.float64), torch.tensor([[1.0, 0.2], [0.2, 0.7]], dtype=torch.float64), rn(g, 999, 2, dt=torch.float64)], torch=t_kf, tol=1e-11))


def t_lqr(A, B, Q, x0, Kf):
    c, x = torch.zeros(x0.shape[0], dtype=x0.dtype), x0
    for _ in range(4):
        u = -torch.tanh(x @ Kf.T)
        c = c + ((x @ Q) * x).sum(1) + 0.1 * u.square().sum(1)
        x = x @ A.T + u @ B.T
    return c, x
op(dict(name="rollout_cost", text='''
def advance(float(N,S) X, float(N) C, float(S,S) A, float(S,M) B, float(S,S) Q, float(M,S) K) -> (Xn, Cn) {
    U(n, m) +=! K(m, s) * X(n, s)
    U(n, m) = -tanh(U(n, m))
    Xn(n, s) +=! A(s, r) * X(n, r)
    Xn(n, s) += B(s, m) * U(n, m)
    Cn(n) = C(n)
    Cn(n) += Q(r, s) * X(n, r) * X(n, s)
    Cn(n) += 0.1 * U(n, m) * U(n, m)
}
def rollout_cost(float(S,S) A, float(S,M) B, float(S,S) Q, float(N,S) X0, float(M,S) K) -> (C4, X4) {
    C0(n) = 0.0 where exists X0(n, 0)
    X1, C1 = advance(X0, C0, A, B, Q, K)
    X2, C2 = advance(X1, C1, A, B, Q, K)
    X3, C3 = advance(X2, C2, A, B, Q, K)
    X4, C4 = advance(X3, C3, A, B, Q, K)
}''', args=lambda g: [torch.eye(6) + 0.1 * rn(g, 6, 6), rn(g, 6, 2), (lambda a: a @ a.T)(rn(g, 6, 6)), rn(g, 700, 6), 0.3 * rn(g, 2, 6)], torch=t_lqr, tol=5e-5))

# ---------------------------------------------------------------- geospatial rasters
def t_hill(D):
    d = D.float()
    ok = D != -32768
    a, b, c = d[:-2, :-2], d[:-2, 1:-1], d[:-2, 2:]
    e, f = d[1:-1, :-2], d[1:-1, 2:]
    h, i, j = d[2:, :-2], d[2:, 1:-1], d[2:, 2:]
    p = (c + 2 * f + j - a - 2 * e - h) / 240.0
    q = (h + 2 * i + j - a - 2 * b - c) / 240.0
    s = (0.7071068 + 0.5 * (p - q)) * torch.rsqrt(1 + p * p + q * q)
    k = ok.unfold(0, 3, 1).unfold(1, 3, 1).all(-1).all(-1)
    return torch.where(k, (s.clamp(0, 1) * 254 + 1), torch.zeros(())).to(torch.uint8)
op(dict(name="hillshade_nodata", text='''
def hillshade_nodata(int16(H,W) Dem) -> (uint8(H-2,W-2) S) {
    P(y, x) = float(Dem(y, x+2) + 2 * Dem(y+1, x+2) + Dem(y+2, x+2) - Dem(y, x) - 2 * Dem(y+1, x) - Dem(y+2, x)) / 240.0
    Q(y, x) = float(Dem(y+2, x) + 2 * Dem(y+2, x+1) + Dem(y+2, x+2) - Dem(y, x) - 2 * Dem(y, x+1) - Dem(y, x+2)) / 240.0
    Lo(y, x) min=! Dem(y + i, x + j) where i in 0:3, j in 0:3
    S(y, x) = (Lo(y, x) == -32768) ? 0 : uint8(254.0 * clamp((0.7071068 + 0.5 * (P(y, x) - Q(y, x))) * rsqrt(1.0 + P(y, x) * P(y, x) + Q(y, x) * Q(y, x)), 0.0, 1.0) + 1.0)
}''', args=lambda g: [torch.where(ru(g, 513, 487) < 0.01, torch.tensor(-32768), (100 * rn(g, 513, 487)).long() + 400).to(torch.int16)], torch=t_hill, tol=1e-2))

def t_zh(Z, Cl, P, LZ, LC):
    k = Z.long() * LC.shape[0] + Cl.long()
    n = LZ.shape[0] * LC.shape[0]
    c = torch.bincount(k.flatten(), minlength=n).int().view(LZ.shape[0], -1)
    s = torch.zeros(n, dtype=torch.float64).index_add_(0, k.flatten(), P.flatten().double()).view(LZ.shape[0], -1)
    m = torch.full((LZ.shape[0],), -math.inf).scatter_reduce(0, Z.flatten().long(), P.flatten(), "amax")
    return c, s, m
op(dict(name="zonal_crosstab", text='''
def zonal_crosstab(int32(H,W) Zone, uint8(H,W) Cls, float(H,W) Pop, bool(NZ) LikeZ, bool(NC) LikeC) -> (int32(NZ,NC) Count, double(NZ,NC) Total, float(NZ) Peak) {
    Count(Zone(y, x), Cls(y, x)) +=! 1
    Total(Zone(y, x), Cls(y, x)) +=! double(Pop(y, x))
    Peak(Zone(y, x)) max=! Pop(y, x)
}''', args=lambda g: [ri(g, 0, 57, 400, 333, dt=torch.int32), ri(g, 0, 11, 400, 333, dt=torch.uint8), ru(g, 400, 333), torch.zeros(57, dtype=torch.bool), torch.zeros(11, dtype=torch.bool)], torch=t_zh, tol=1e-6))

# ---------------------------------------------------------------- microscopy and tomography
def t_rl(E, D, Pz):
    k = Pz[None, None]
    b = F.conv2d(E[:, None], k, padding=(Pz.shape[0] // 2, Pz.shape[1] // 2)) + 0.02
    r = D[:, None] / b
    return E * F.conv2d(r, k.flip(2, 3), padding=(Pz.shape[0] // 2, Pz.shape[1] // 2))[:, 0]
op(dict(name="richardson_lucy_step", text='''
def richardson_lucy_step(float(B,H,W) E, float(B,H,W) D, float(KH,KW) Psf) -> (En) {
    Bl(b, y, x) +=! (y + i >= KH/2 && y + i - KH/2 < H && x + j >= KW/2 && x + j - KW/2 < W) ? Psf(i, j) * E(b, y + i - KH/2, x + j - KW/2) : 0.0 where y in 0:H, x in 0:W
    Ra(b, y, x) = D(b, y, x) / (Bl(b, y, x) + 0.02)
    Co(b, y, x) +=! (y - i + KH/2 >= 0 && y - i + KH/2 < H && x - j + KW/2 >= 0 && x - j + KW/2 < W) ? Psf(i, j) * Ra(b, y - i + KH/2, x - j + KW/2) : 0.0 where y in 0:H, x in 0:W
    En(b, y, x) = E(b, y, x) * Co(b, y, x)
}''', args=lambda g: [ru(g, 2, 130, 117) + 0.1, ru(g, 2, 130, 117) + 0.1, ru(g, 5, 7) / 20], torch=t_rl, tol=2e-5))

def t_bp(S, Th, Like):
    A, NT = S.shape
    N = Like.shape[0]
    u = torch.arange(N, dtype=S.dtype) - (N - 1) / 2
    t = u[None, None] * torch.cos(Th)[:, None, None] + u[None, :, None] * torch.sin(Th)[:, None, None] + (NT - 1) / 2
    i = t.floor()
    w = t - i
    i = i.long()
    ok0, ok1 = (i >= 0) & (i < NT), (i + 1 >= 0) & (i + 1 < NT)
    a = torch.arange(A)[:, None, None]
    return ((1 - w) * S[a, i.clamp(0, NT - 1)] * ok0 + w * S[a, (i + 1).clamp(0, NT - 1)] * ok1).sum(0) * (math.pi / A)
op(dict(name="fan_free_backprojection", text='''
def fan_free_backprojection(double(A,NT) S, double(A) Th, int32(N) Like) -> (I) {
    T(a, y, x) = (x - 0.5 * (N - 1)) * cos(Th(a)) + (y - 0.5 * (N - 1)) * sin(Th(a)) + 0.5 * (NT - 1) where x in 0:N, y in 0:N
    I(y, x) +=! max(1.0 - fabs(T(a, y, x) - k), 0.0) * S(a, k) * 3.141592653589793 / A
}''', args=lambda g: [rn(g, 20, 57, dt=torch.float64), math.pi * ru(g, 20, dt=torch.float64), torch.zeros(64, dtype=torch.int32)], torch=t_bp, tol=1e-11))

# ---------------------------------------------------------------- genetics
def t_ld(G, Like):
    K = Like.shape[0]
    M = G.shape[1] - K
    ok = (G != 3)
    g = torch.where(ok, G, torch.zeros_like(G)).float()
    o = ok.float()
    out = []
    for k in range(1, K + 1):
        a, b, p = g[:, :M], g[:, k:k + M], o[:, :M] * o[:, k:k + M]
        a, b = a * p, b * p
        n, sa, sb, sab, saa, sbb = p.sum(0), a.sum(0), b.sum(0), (a * b).sum(0), (a * a).sum(0), (b * b).sum(0)
        out.append((n * sab - sa * sb) ** 2 / ((n * saa - sa * sa) * (n * sbb - sb * sb)).clamp_min(1))
    return torch.stack(out, 1)

op(dict(name="ld_r2_band", text='''
def ld_r2_band(uint8(N,M) G, bool(K) Like) -> (R) {
    O(n, m) = (G(n, m) != 3) ? 1 : 0
    X(n, m) = (G(n, m) != 3) ? int32(G(n, m)) : 0
    Cn(m, k) +=! O(n, m) * O(n, m + k + 1) where m in 0:M-K, k in 0:K
    Sa(m, k) +=! X(n, m) * O(n, m + k + 1) where m in 0:M-K, k in 0:K
    Sb(m, k) +=! O(n, m) * X(n, m + k + 1) where m in 0:M-K, k in 0:K
    Sab(m, k) +=! X(n, m) * X(n, m + k + 1) where m in 0:M-K, k in 0:K
    Saa(m, k) +=! X(n, m) * X(n, m) * O(n, m + k + 1) where m in 0:M-K, k in 0:K
    Sbb(m, k) +=! O(n, m) * X(n, m + k + 1) * X(n, m + k + 1) where m in 0:M-K, k in 0:K
    R(m, k) = c * c / max(float(Cn(m, k) * Saa(m, k) - Sa(m, k) * Sa(m, k)) * float(Cn(m, k) * Sbb(m, k) - Sb(m, k) * Sb(m, k)), 1.0) where c = float(Cn(m, k) * Sab(m, k) - Sa(m, k) * Sb(m, k))
}''', args=lambda g: [ri(g, 0, 4, 250, 412, dt=torch.uint8), torch.zeros(12, dtype=torch.bool)], torch=t_ld, tol=2e-5))

def t_seed(Q, T, Sub, Lw):
    w = Lw.shape[0]
    S = Sub[Q.long()][:, T.long()].int()
    A, B = S.shape[0] - w + 1, S.shape[1] - w + 1
    D = sum(S[k:k + A, k:k + B] for k in range(w))
    return D, D.amax(1)
op(dict(name="diagonal_word_scores", text='''
def diagonal_word_scores(uint8(A) Q, uint8(B) T, int8(20,20) Sub, bool(K) Word) -> (D, Best) {
    D(i, j) +=! int32(Sub(Q(i + k), T(j + k))) where k in 0:K, i in 0:A-K+1, j in 0:B-K+1
    Best(i) max=! D(i, j)
}''', args=lambda g: [ri(g, 0, 20, 203, dt=torch.uint8), ri(g, 0, 20, 1200, dt=torch.uint8), ri(g, -4, 10, 20, 20, dt=torch.int8), torch.zeros(5, dtype=torch.bool)], torch=t_seed, tol=1e-9))

# ---------------------------------------------------------------- economics
def t_leo(Z, x, y, e):
    A = Z / x
    y1 = y @ A.T
    y2 = y1 @ A.T
    y3 = y2 @ A.T
    return (y + y1 + y2 + y3) @ (e / x[:, None])
op(dict(name="leontief_footprint", text='''
def leontief_footprint(double(S,S) Z, double(S) X, double(R,S) Y, double(S,P) E) -> (Fp) {
    Y1(r, i) +=! Z(i, j) / X(j) * Y(r, j)
    Y2(r, i) +=! Z(i, j) / X(j) * Y1(r, j)
    Y3(r, i) +=! Z(i, j) / X(j) * Y2(r, j)
    Fp(r, p) +=! (Y(r, i) + Y1(r, i) + Y2(r, i) + Y3(r, i)) * E(i, p) / X(i)
}''', args=lambda g: [ru(g, 163, 163, dt=torch.float64), 90 + ru(g, 163, dt=torch.float64), ru(g, 27, 163, dt=torch.float64), ru(g, 163, 4, dt=torch.float64)], torch=t_leo, tol=1e-12))

def t_bel(V, P, K, Zs, beta):
    ev = V @ P.T                                              # k' z
    c = Zs[None] * K[:, None] ** 0.33 + 0.9 * K[:, None]      # k z
    cc = c[:, :, None] - K[None, None]                        # k z k'
    u = torch.where(cc > 0, torch.log(torch.where(cc > 0, cc, torch.ones_like(cc))), torch.full((), -math.inf, dtype=V.dtype))
    return (u + beta * ev.T[None]).amax(2)
op(dict(name="growth_bellman", text='''
def growth_bellman(double(NK,NZ) V, double(NZ,NZ) P, double(NK) K, double(NZ) Zs, double beta) -> (Vn) {
    Ev(k, z) +=! P(z, w) * V(k, w)
    Wealth(k, z) = Zs(z) * pow(K(k), 0.33) + 0.9 * K(k)
    Vn(k, z) max=! (Wealth(k, z) > K(q)) ? log(Wealth(k, z) - K(q)) + beta * Ev(q, z) : -infinity()
}''', args=lambda g: [rn(g, 150, 7, dt=torch.float64), torch.softmax(rn(g, 7, 7, dt=torch.float64), 1), torch.linspace(0.5, 8, 150, dtype=torch.float64), 1 + 0.3 * ru(g, 7, dt=torch.float64), torch.tensor(0.95, dtype=torch.float64)], torch=t_bel, tol=1e-12))

# ---------------------------------------------------------------- graph statistics
def t_clu(A):
    a = A.float()
    return (torch.einsum("ij,ji->i", a @ a, a)).to(torch.int32), (a @ a).sum(1).to(torch.int32)
op(dict(name="triangles_and_wedges", text='''
def triangles_and_wedges(bool(N,N) A) -> (Tri, Wedge) {
    Tri(i) +=! (A(i, j) && A(j, k) && A(k, i)) ? 1 : 0
    Deg(j) +=! A(j, k) ? 1 : 0
    Wedge(i) +=! A(i, j) ? Deg(j) : 0
}''', args=lambda g: [(lambda a: torch.triu(a, 1) | torch.triu(a, 1).T)(ru(g, 311, 311) < 0.12)], torch=t_clu, tol=1e-9))

def t_ruz(A):
    return torch.stack([torch.minimum(A[i], A).sum(1) / torch.maximum(A[i], A).sum(1) for i in range(A.shape[0])])
op(dict(name="weighted_jaccard", text='''
def weighted_jaccard(float(N,M) A) -> (J) {
    Lo(i, j) +=! min(A(i, k), A(j, k))
    Hi(i, j) +=! max(A(i, k), A(j, k))
    J(i, j) = Lo(i, j) / Hi(i, j)
}''', args=lambda g: [ru(g, 500, 256).T], torch=t_ruz, tol=2e-5))

def t_mod(A, S):
    k = A.sum(1)
    m2 = k.sum()
    v = k @ S
    return (((A @ S) * S).sum(0) - v * v / m2) / m2
op(dict(name="soft_modularity", text='''
def soft_modularity(float(N,N) A, float(N,C) S) -> (Q) {
    Deg(i) +=! A(i, j)
    M2 +=! Deg(i)
    Q(c) +=! (A(i, j) - Deg(i) * Deg(j) / M2) * S(i, c) * S(j, c)
    Q(c) = Q(c) / M2
}''', args=lambda g: [(lambda a: a + a.T)(ru(g, 251, 251) * (ru(g, 251, 251) < 0.2)), torch.softmax(rn(g, 251, 8), 1)], torch=t_mod, tol=1e-3))
