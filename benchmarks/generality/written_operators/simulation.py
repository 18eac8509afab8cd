# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Operators of simulation, signals and images, finance, robotics, bioinformatics and data engineering; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.operator import WrittenOperator

OPERATORS: list[WrittenOperator] = []
i32, i64, f32, f64, u8 = torch.int32, torch.int64, torch.float32, torch.float64, torch.uint8


def rn(g, *s, dtype=f32): return torch.randn(*s, generator=g, dtype=dtype)
def ru(g, *s, dtype=f32): return torch.rand(*s, generator=g, dtype=dtype)
def ri(g, lo, hi, *s, dtype=i64): return torch.randint(lo, hi, s, generator=g, dtype=dtype)
def op(name, tol, args, fn, text): OPERATORS.append(WrittenOperator(name, text, args, fn, tol))


# ---------------------------------------------------------------- multigrid
def _jac(U, Fm, h2):
    V = U.clone()
    V[1:-1, 1:-1] = U[1:-1, 1:-1] / 3 + (U[:-2, 1:-1] + U[2:, 1:-1] + U[1:-1, :-2] + U[1:-1, 2:] + h2 * Fm[1:-1, 1:-1]) * (1 / 6)
    R = torch.zeros_like(U)
    R[1:-1, 1:-1] = Fm[1:-1, 1:-1] - (4 * V[1:-1, 1:-1] - V[:-2, 1:-1] - V[2:, 1:-1] - V[1:-1, :-2] - V[1:-1, 2:]) / h2
    return V, R
op("mg_smooth_residual", 1e-12, lambda g: [rn(g, 513, 513, dtype=f64), rn(g, 513, 513, dtype=f64), torch.tensor(1e-2, dtype=f64)], _jac, '''
def mg_smooth_residual(double(H,W) U, double(H,W) F, double h2) -> (V, R) {
    V(i, j) = inside ? U(i, j) / 3.0 + (U(i-1, j) + U(i+1, j) + U(i, j-1) + U(i, j+1) + h2 * F(i, j)) / 6.0 : U(i, j)
        where i in 0:H, j in 0:W, inside = i >= 1 && i < H - 1 && j >= 1 && j < W - 1
    R(i, j) = inside ? F(i, j) - (4.0 * V(i, j) - V(i-1, j) - V(i+1, j) - V(i, j-1) - V(i, j+1)) / h2 : 0.0
        where i in 0:H, j in 0:W, inside = i >= 1 && i < H - 1 && j >= 1 && j < W - 1
}''')

op("mg_restrict3d", 1e-5, lambda g: [rn(g, 129, 129, 129), torch.tensor([0.25, 0.5, 0.25])],
   lambda R, w: F.conv3d(R[None, None], torch.einsum("a,b,c->abc", w, w, w)[None, None], stride=2)[0, 0], '''
def mg_restrict3d(float(D,H,W) R, float(3) w) -> (C) {
    C(i, j, k) +=! w(a) * w(b) * w(c) * R(2*i + a, 2*j + b, 2*k + c)
}''')

op("mg_prolong_correct", 1e-5, lambda g: [rn(g, 301, 257), rn(g, 601, 513)],
   lambda C, U: U + F.interpolate(C[None, None], size=U.shape, mode="bilinear", align_corners=True)[0, 0], '''
def mg_prolong_correct(float(N,M) C, float(H,W) U) -> (V) {
    V(i, j) = U(i, j) + 0.25 * (C(i/2, j/2) + C((i+1)/2, j/2) + C(i/2, (j+1)/2) + C((i+1)/2, (j+1)/2))
}''')

# ---------------------------------------------------------------- hyperbolic equations
def _upw(U, A, B, c):
    fx = torch.where(A > 0, A * (U - U.roll(1, 1)), A * (U.roll(-1, 1) - U))
    fy = torch.where(B > 0, B * (U - U.roll(1, 0)), B * (U.roll(-1, 0) - U))
    return U - c * (fx + fy)
op("upwind_advection2d", 1e-5, lambda g: [rn(g, 384, 500), rn(g, 384, 500), rn(g, 384, 500), torch.tensor(0.3)], _upw, '''
def upwind_advection2d(float(H,W) U, float(H,W) A, float(H,W) B, float c) -> (V) {
    V(y, x) = U(y, x) - c * (fx + fy)
        where fx = A(y, x) > 0.0 ? A(y, x) * (U(y, x) - U(y, (x + W - 1) % W)) : A(y, x) * (U(y, (x + 1) % W) - U(y, x)),
              fy = B(y, x) > 0.0 ? B(y, x) * (U(y, x) - U((y + H - 1) % H, x)) : B(y, x) * (U((y + 1) % H, x) - U(y, x))
}''')

def _muscl(U, nu):
    d = U[:, 1:] - U[:, :-1]
    l, r = d[:, :-1], d[:, 1:]
    S = torch.where(l * r > 0, torch.sign(l) * torch.minimum(l.abs(), r.abs()), 0.0)
    Fx = U[:, 1:-1] + 0.5 * (1 - nu) * S
    return U[:, 2:-1] - nu * (Fx[:, 1:] - Fx[:, :-1])
op("muscl_minmod", 1e-5, lambda g: [rn(g, 33, 4099), torch.tensor(0.4)], _muscl, '''
def muscl_minmod(float(B,N) U, float nu) -> (V) {
    S(b, i) = l * r > 0.0 ? sign(l) * min(abs(l), abs(r)) : 0.0 where l = U(b, i+1) - U(b, i), r = U(b, i+2) - U(b, i+1)
    F(b, i) = U(b, i+1) + 0.5 * (1.0 - nu) * S(b, i)
    V(b, i) = U(b, i+2) - nu * (F(b, i+1) - F(b, i))
}''')

def _weno(U):
    a, b, c, d, e = (U[k:U.shape[0] - 4 + k] for k in range(5))
    b0 = 13 / 12 * (a - 2 * b + c) ** 2 + 0.25 * (a - 4 * b + 3 * c) ** 2
    b1 = 13 / 12 * (b - 2 * c + d) ** 2 + 0.25 * (b - d) ** 2
    b2 = 13 / 12 * (c - 2 * d + e) ** 2 + 0.25 * (3 * c - 4 * d + e) ** 2
    w0, w1, w2 = 0.1 / (1e-6 + b0) ** 2, 0.6 / (1e-6 + b1) ** 2, 0.3 / (1e-6 + b2) ** 2
    return (w0 * (2 * a - 7 * b + 11 * c) + w1 * (-b + 5 * c + 2 * d) + w2 * (2 * c + 5 * d - e)) / (6 * (w0 + w1 + w2))
op("weno5_edge", 1e-10, lambda g: [rn(g, 20004, dtype=f64)], _weno, '''
def weno5_edge(double(N) U) -> (P) {
    P(i) = (w0 * (2.0*U(i) - 7.0*U(i+1) + 11.0*U(i+2)) + w1 * (5.0*U(i+2) - U(i+1) + 2.0*U(i+3)) + w2 * (2.0*U(i+2) + 5.0*U(i+3) - U(i+4)))
           / (6.0 * (w0 + w1 + w2))
        where s0 = U(i) - 2.0*U(i+1) + U(i+2), t0 = U(i) - 4.0*U(i+1) + 3.0*U(i+2),
              s1 = U(i+1) - 2.0*U(i+2) + U(i+3), t1 = U(i+1) - U(i+3),
              s2 = U(i+2) - 2.0*U(i+3) + U(i+4), t2 = 3.0*U(i+2) - 4.0*U(i+3) + U(i+4),
              b0 = 13.0/12.0*s0*s0 + 0.25*t0*t0 + 1e-6, b1 = 13.0/12.0*s1*s1 + 0.25*t1*t1 + 1e-6, b2 = 13.0/12.0*s2*s2 + 0.25*t2*t2 + 1e-6,
              w0 = 0.1 / (b0*b0), w1 = 0.6 / (b1*b1), w2 = 0.3 / (b2*b2)
}''')

def _sw(H, Q, P, lam):
    G = 9.81
    u, v = Q / H, P / H
    def step(q, fx, fy):
        avg = 0.25 * (q[:-2, 1:-1] + q[2:, 1:-1] + q[1:-1, :-2] + q[1:-1, 2:])
        return avg - 0.5 * lam * (fx[1:-1, 2:] - fx[1:-1, :-2] + fy[2:, 1:-1] - fy[:-2, 1:-1])
    pr = 0.5 * G * H * H
    quv = Q * v
    return step(H, Q, P), step(Q, Q * u + pr, quv), step(P, quv, P * v + pr)
op("shallow_water_lxf", 2e-5, lambda g: [1 + ru(g, 258, 302), rn(g, 258, 302), rn(g, 258, 302), torch.tensor(0.1)], _sw, '''
def shallow_water_lxf(float(N,M) H, float(N,M) Q, float(N,M) P, float lam) -> (H1, Q1, P1) {
    Fx(y, x) = Q(y, x) * Q(y, x) / H(y, x) + 4.905 * H(y, x) * H(y, x)
    Fy(y, x) = P(y, x) * P(y, x) / H(y, x) + 4.905 * H(y, x) * H(y, x)
    Xy(y, x) = Q(y, x) * P(y, x) / H(y, x)
    H1(y, x) = 0.25 * (H(y, x+1) + H(y+2, x+1) + H(y+1, x) + H(y+1, x+2)) - 0.5 * lam * (Q(y+1, x+2) - Q(y+1, x) + P(y+2, x+1) - P(y, x+1))
    Q1(y, x) = 0.25 * (Q(y, x+1) + Q(y+2, x+1) + Q(y+1, x) + Q(y+1, x+2)) - 0.5 * lam * (Fx(y+1, x+2) - Fx(y+1, x) + Xy(y+2, x+1) - Xy(y, x+1))
    P1(y, x) = 0.25 * (P(y, x+1) + P(y+2, x+1) + P(y+1, x) + P(y+1, x+2)) - 0.5 * lam * (Xy(y+1, x+2) - Xy(y+1, x) + Fy(y+2, x+1) - Fy(y, x+1))
}''')

# ---------------------------------------------------------------- elements
op("sem_stiffness3d", 1e-11, lambda g: [rn(g, 300, 8, 8, 8, dtype=f64), rn(g, 8, 8, dtype=f64), rn(g, 300, 3, 8, 8, 8, dtype=f64)],
   lambda U, D, G: (lambda a, b, c: torch.einsum("ai,ekja->ekji", D, a) + torch.einsum("aj,ekai->ekji", D, b) + torch.einsum("ak,eaji->ekji", D, c))(
       G[:, 0] * torch.einsum("ia,ekja->ekji", D, U), G[:, 1] * torch.einsum("ja,ekai->ekji", D, U), G[:, 2] * torch.einsum("ka,eaji->ekji", D, U)), '''
def sem_stiffness3d(double(E,P,P,P) U, double(P,P) D, double(E,3,P,P,P) G) -> (Y) {
    Ux(e, k, j, i) +=! D(i, a) * U(e, k, j, a)
    Uy(e, k, j, i) +=! D(j, a) * U(e, k, a, i)
    Uz(e, k, j, i) +=! D(k, a) * U(e, a, j, i)
    Y(e, k, j, i)  +=! D(a, i) * G(e, 0, k, j, a) * Ux(e, k, j, a)
    Y(e, k, j, i)   += D(a, j) * G(e, 1, k, a, i) * Uy(e, k, a, i)
    Y(e, k, j, i)   += D(a, k) * G(e, 2, a, j, i) * Uz(e, a, j, i)
}''')

op("dg_mass_apply", 1e-5, lambda g: [rn(g, 15, 5000).T, ru(g, 21, 15), ru(g, 21), ru(g, 5000)],
   lambda U, Phi, w, J: ((U @ Phi.T) * w * J[:, None]) @ Phi, '''
def dg_mass_apply(float(E,N) U, float(Q,N) Phi, float(Q) w, float(E) J) -> (Y) {
    V(e, q) +=! Phi(q, n) * U(e, n)
    V(e, q)   = V(e, q) * w(q) * J(e)
    Y(e, n) +=! Phi(q, n) * V(e, q)
}''')

# ---------------------------------------------------------------- sparse
def _ellargs(g):
    N, K = 20011, 9
    C = ri(g, 0, N, N, K, dtype=i32)
    C[ru(g, N, K) < 0.2] = -1
    return [rn(g, N, K), C, rn(g, N)]
op("ell_spmv_padded", 1e-5, _ellargs, lambda V, C, x: (torch.where(C >= 0, V, 0.0) * x[C.clamp(min=0)]).sum(1), '''
def ell_spmv_padded(float(N,K) V, int32(N,K) Col, float(M) x) -> (y) {
    y(i) +=! (Col(i, k) >= 0) ? V(i, k) * x(Col(i, k)) : 0.0
}''')

def _dia(V, O, x):
    N = x.shape[0]
    y = torch.zeros_like(x)
    for d, o in enumerate(O.tolist()):
        lo, hi = max(0, -o), min(N, N - o)
        y[lo:hi] += V[d, lo:hi] * x[lo + o:hi + o]
    return y
op("dia_spmv", 1e-12, lambda g: [rn(g, 7, 8000, dtype=f64), torch.tensor([-400, -20, -1, 0, 1, 20, 400]), rn(g, 8000, dtype=f64)], _dia, '''
def dia_spmv(double(D,N) V, int64(D) Off, double(N) x) -> (y) {
    y(i) +=! (i + Off(d) >= 0 && i + Off(d) < N) ? V(d, i) * x(i + Off(d)) : 0.0
}''')

op("bsr_padded_spmm", 1e-5, lambda g: [rn(g, 500, 6, 4, 4), ri(g, 0, 500, 500, 6, dtype=i32), ri(g, 1, 7, 500, dtype=i32), rn(g, 500, 4, 3)],
   lambda V, C, L, X: torch.einsum("rkij,rkjm->rim", V * (torch.arange(6) < L[:, None])[:, :, None, None], X[C]), '''
def bsr_padded_spmm(float(R,K,B,B) V, int32(R,K) Col, int32(R) Len, float(C,B,M) X) -> (Y) {
    Y(r, i, m) +=! (k < Len(r)) ? V(r, k, i, j) * X(Col(r, k), j, m) : 0.0
}''')

# ---------------------------------------------------------------- dense factorisations
def _chol(A, k):
    k = int(k)
    B = A.clone()
    p = A[:, k, k].sqrt()
    B[:, k, k] = p
    B[:, k + 1:, k] /= p[:, None]
    B[:, k + 1:, k + 1:] -= B[:, k + 1:, k, None] * B[:, None, k + 1:, k]
    return B
def _spd(g, b, n):
    A = rn(g, b, n, n)
    return A @ A.mT / n + torch.eye(n)
op("cholesky_step", 1e-5, lambda g: [_spd(g, 64, 37), torch.tensor(5, dtype=i32)], _chol, '''
def cholesky_step(float(B,N,N) A, int32 k) -> (L) {
    P(b) = sqrt(A(b, k, k))
    C(b, i) = A(b, i, k) / P(b)
    L(b, i, j) = (i == k && j == k) ? P(b) : ((i > k && j == k) ? C(b, i) : ((i > k && j > k) ? A(b, i, j) - C(b, i) * C(b, j) : A(b, i, j)))
}''')

def _jrot(A, p, q, c, s):
    B = A.clone()
    n = torch.arange(A.shape[0])
    rp, rq = A[n, p], A[n, q]
    B[n, p], B[n, q] = c[:, None] * rp - s[:, None] * rq, s[:, None] * rp + c[:, None] * rq
    cp, cq = B[n, :, p], B[n, :, q]
    B[n, :, p], B[n, :, q] = c[:, None] * cp - s[:, None] * cq, s[:, None] * cp + c[:, None] * cq
    return B
def _jrargs(g):
    t = ru(g, 200, dtype=f64)
    p = ri(g, 0, 8, 200)
    return [rn(g, 200, 16, 16, dtype=f64), p, p + 1 + ri(g, 0, 8, 200), t.cos(), t.sin()]
op("jacobi_rotation", 1e-12, _jrargs, _jrot, '''
def jacobi_rotation(double(B,N,N) A, int64(B) p, int64(B) q, double(B) c, double(B) s) -> (Y) {
    R(b, i, j) = i == p(b) ? c(b) * A(b, p(b), j) - s(b) * A(b, q(b), j) : (i == q(b) ? s(b) * A(b, p(b), j) + c(b) * A(b, q(b), j) : A(b, i, j))
    Y(b, i, j) = j == p(b) ? c(b) * R(b, i, p(b)) - s(b) * R(b, i, q(b)) : (j == q(b) ? s(b) * R(b, i, p(b)) + c(b) * R(b, i, q(b)) : R(b, i, j))
}''')

op("householder_apply", 1e-5, lambda g: [rn(g, 12, 190, 131).transpose(1, 2), rn(g, 12, 131)],
   lambda A, v: torch.baddbmm(A, (v * (2 / (v * v).sum(1, keepdim=True)))[:, :, None], v[:, None] @ A, alpha=-1), '''
def householder_apply(float(B,M,N) A, float(B,M) v) -> (Y) {
    vv(b)   +=! v(b, i) * v(b, i)
    w(b, j) +=! v(b, i) * A(b, i, j)
    Y(b, i, j) = A(b, i, j) - 2.0 / vv(b) * v(b, i) * w(b, j)
}''')


# ---------------------------------------------------------------- robotics and small matrices
def _kal(P, Hh, r):
    PH = torch.einsum("bij,bj->bi", P, Hh)
    S = (PH * Hh).sum(1) + r
    return P - PH[:, :, None] * PH[:, None] / S[:, None, None], PH / S[:, None]
op("kalman_scalar_update", 1e-5, lambda g: [_spd(g, 1000, 9), rn(g, 1000, 9), 0.5 + ru(g, 1000)], _kal, '''
def kalman_scalar_update(float(B,N,N) P, float(B,N) H, float(B) r) -> (P1, K) {
    PH(b, i) +=! P(b, i, j) * H(b, j)
    S(b) +=! PH(b, i) * H(b, i)
    S(b) = S(b) + r(b)
    K(b, i) = PH(b, i) / S(b)
    P1(b, i, j) = P(b, i, j) - K(b, i) * PH(b, j)
}''')

op("kalman_predict_mimo", 1e-11, lambda g: [_spd(g, 129, 6).double(), rn(g, 6, 6, dtype=f64), rn(g, 6, 3, dtype=f64), rn(g, 129, 3, 3, dtype=f64), rn(g, 129, 6, dtype=f64)],
   lambda P, A, G, Q, x: (A @ P @ A.T + G @ Q @ G.T, x @ A.T), '''
def kalman_predict_mimo(double(B,N,N) P, double(N,N) A, double(N,M) G, double(B,M,M) Q, double(B,N) x) -> (P1, x1) {
    P1(b, i, j) +=! A(i, k) * P(b, k, l) * A(j, l)
    P1(b, i, j)  += G(i, k) * Q(b, k, l) * G(j, l)
    x1(b, i) +=! A(i, k) * x(b, k)
}''')

def _inv3(A):
    r0, r1, r2 = A.unbind(1)
    C = torch.stack([torch.linalg.cross(r1, r2), torch.linalg.cross(r2, r0), torch.linalg.cross(r0, r1)], 2)
    det = (r0 * C[:, :, 0]).sum(1)
    return C / det[:, None, None], det
op("inverse3_cofactor", 2e-4, lambda g: [rn(g, 100_003, 3, 3) + 4 * torch.eye(3)], _inv3, '''
def inverse3_cofactor(float(B,3,3) A) -> (I, Det) {
    C(b, i, j) = A(b, (j+1) % 3, (i+1) % 3) * A(b, (j+2) % 3, (i+2) % 3) - A(b, (j+1) % 3, (i+2) % 3) * A(b, (j+2) % 3, (i+1) % 3)
        where i in 0:3, j in 0:3
    Det(b) +=! A(b, 0, i) * C(b, i, 0)
    I(b, i, j) = C(b, i, j) / Det(b)
}''')

def _expm(A):
    A2 = A @ A
    A4 = A2 @ A2
    E = torch.eye(4) + A + A2 / 2 + (A2 @ A) / 6 + A4 / 24
    return E @ E
op("expm4_taylor_squared", 1e-5, lambda g: [0.3 * rn(g, 2048, 4, 4)], _expm, '''
def expm4_taylor_squared(float(B,N,N) A) -> (Y) {
    A2(b, i, j) +=! A(b, i, k) * A(b, k, j)
    A3(b, i, j) +=! A2(b, i, k) * A(b, k, j)
    A4(b, i, j) +=! A2(b, i, k) * A2(b, k, j)
    E(b, i, j) = (i == j ? 1.0 : 0.0) + A(b, i, j) + A2(b, i, j) / 2.0 + A3(b, i, j) / 6.0 + A4(b, i, j) / 24.0
    Y(b, i, j) +=! E(b, i, k) * E(b, k, j)
}''')

def _arm(Q, L):
    th = Q.cumsum(1)
    cx, sy = L * th.cos(), L * th.sin()
    rx, ry = cx.flip(1).cumsum(1).flip(1), sy.flip(1).cumsum(1).flip(1)
    return torch.stack([rx[:, 0], ry[:, 0]], 1), torch.stack([-ry, rx], 1)
op("planar_arm_fk_jacobian", 1e-5, lambda g: [rn(g, 4000, 7), ru(g, 7)], _arm, '''
def planar_arm_fk_jacobian(float(B,N) Q, float(N) L) -> (P, J) {
    Th(b, i) +=! j <= i ? Q(b, j) : 0.0 where i in 0:N
    P(b, c) +=! L(i) * (c == 0 ? cos(Th(b, i)) : sin(Th(b, i))) where c in 0:2
    J(b, c, j) +=! i >= j ? L(i) * (c == 0 ? -sin(Th(b, i)) : cos(Th(b, i))) : 0.0 where c in 0:2, j in 0:N
}''')

def _quat(q, v, t):
    u = q[:, None, 1:]
    w = 2 * torch.linalg.cross(u.expand_as(v), v)
    return v + q[:, None, :1] * w + torch.linalg.cross(u.expand_as(v), w) + t[:, None]
op("quaternion_transform_points", 1e-5, lambda g: [F.normalize(rn(g, 16, 4), dim=1), rn(g, 16, 2500, 3), rn(g, 16, 3)], _quat, '''
def quaternion_transform_points(float(B,4) q, float(B,N,3) V, float(B,3) t) -> (Y) {
    W(b, n, c) = 2.0 * (q(b, 1 + (c+1) % 3) * V(b, n, (c+2) % 3) - q(b, 1 + (c+2) % 3) * V(b, n, (c+1) % 3)) where c in 0:3
    Y(b, n, c) = V(b, n, c) + q(b, 0) * W(b, n, c) + q(b, 1 + (c+1) % 3) * W(b, n, (c+2) % 3) - q(b, 1 + (c+2) % 3) * W(b, n, (c+1) % 3) + t(b, c) where c in 0:3
}''')

def _ray(O, D, A, E1, E2):
    p = torch.linalg.cross(D[:, None], E2[None])
    det = (p * E1).sum(2)
    s = O[:, None] - A
    u = (s * p).sum(2) / det
    q = torch.linalg.cross(s, E1[None].expand_as(s))
    v = (q * D[:, None]).sum(2) / det
    t = (q * E2).sum(2) / det
    hit = (u >= 0) & (v >= 0) & (u + v <= 1) & (t > 1e-4)
    T = torch.where(hit, t, math.inf).amin(1)
    return T, hit.sum(1, dtype=i32)
op("ray_triangle_nearest", 1e-3, lambda g: [rn(g, 500, 3), F.normalize(rn(g, 500, 3), dim=1), 3 * rn(g, 200, 3), rn(g, 200, 3), rn(g, 200, 3)], _ray, '''
def ray_triangle_nearest(float(R,3) O, float(R,3) D, float(T,3) A, float(T,3) E1, float(T,3) E2) -> (Near, Hits) {
    Tt(r, t) = hit ? tt : infinity()
        where px = D(r,1)*E2(t,2) - D(r,2)*E2(t,1), py = D(r,2)*E2(t,0) - D(r,0)*E2(t,2), pz = D(r,0)*E2(t,1) - D(r,1)*E2(t,0),
              inv = 1.0 / (px*E1(t,0) + py*E1(t,1) + pz*E1(t,2)),
              sx = O(r,0) - A(t,0), sy = O(r,1) - A(t,1), sz = O(r,2) - A(t,2),
              u = inv * (sx*px + sy*py + sz*pz),
              qx = sy*E1(t,2) - sz*E1(t,1), qy = sz*E1(t,0) - sx*E1(t,2), qz = sx*E1(t,1) - sy*E1(t,0),
              v = inv * (qx*D(r,0) + qy*D(r,1) + qz*D(r,2)), tt = inv * (qx*E2(t,0) + qy*E2(t,1) + qz*E2(t,2)),
              hit = u >= 0.0 && v >= 0.0 && u + v <= 1.0 && tt > 1e-4
    Near(r) min=! Tt(r, t)
    Hits(r) +=! Tt(r, t) < infinity() ? 1 : 0
}''')

def _sdf(X, Y, Z, C, R, half):
    p = torch.stack(torch.meshgrid(X, Y, Z, indexing="ij"), -1)
    sph = ((p[..., None, :] - C).square().sum(-1).sqrt() - R).amin(-1)
    q = p.abs() - half
    box = q.clamp(min=0).square().sum(-1).sqrt() + q.amax(-1).clamp(max=0)
    return torch.maximum(box, -sph)
op("sdf_box_minus_spheres", 1e-5, lambda g: [torch.linspace(-1, 1, 40), torch.linspace(-1, 1, 48), torch.linspace(-1, 1, 56), rn(g, 12, 3), 0.2 + ru(g, 12), torch.tensor([.7, .8, .9])], _sdf, '''
def sdf_box_minus_spheres(float(A) X, float(B) Y, float(C) Z, float(S,3) Ctr, float(S) R, float(3) H) -> (D) {
    Sph(i, j, k) min=! sqrt((X(i)-Ctr(s,0))*(X(i)-Ctr(s,0)) + (Y(j)-Ctr(s,1))*(Y(j)-Ctr(s,1)) + (Z(k)-Ctr(s,2))*(Z(k)-Ctr(s,2))) - R(s)
    D(i, j, k) = max(sqrt(max(qx, 0.0)*max(qx, 0.0) + max(qy, 0.0)*max(qy, 0.0) + max(qz, 0.0)*max(qz, 0.0)) + min(max(qx, max(qy, qz)), 0.0), -Sph(i, j, k))
        where qx = abs(X(i)) - H(0), qy = abs(Y(j)) - H(1), qz = abs(Z(k)) - H(2)
}''')

# ---------------------------------------------------------------- finance
op("asian_option_paths", 1e-5, lambda g: [rn(g, 20_000, 50), torch.tensor(0.2), torch.tensor(0.02)],
   lambda Z, v, r: (lambda p: torch.exp(-r) * (p - 1).clamp(min=0).mean())(torch.exp(((r - 0.5 * v * v) / 50 + v * math.sqrt(1 / 50) * Z).cumsum(1)).mean(1)), '''
def asian_option_paths(float(P,T) Z, float v, float r) -> (Price) {
    L(p, t) +=! s <= t ? (r - 0.5 * v * v) / T + v * sqrt(1.0 / T) * Z(p, s) : 0.0 where t in 0:T
    A(p) +=! exp(L(p, t)) / T
    Price +=! exp(-r) * max(A(p) - 1.0, 0.0) / P
}''')

def _garch(R, om, al, be):
    T = R.shape[1]
    i = torch.arange(T)
    k = i[:, None] - 1 - i[None]
    Wt = torch.where(k >= 0, be.double() ** k.clamp(min=0), 0.0)
    H = om / (1 - be) + al * (R * R) @ Wt.T
    return H, -0.5 * (H.log() + R * R / H).sum(1)
op("garch_loglik", 1e-10, lambda g: [rn(g, 50, 250, dtype=f64), torch.tensor(0.05, dtype=f64), torch.tensor(0.08, dtype=f64), torch.tensor(0.9, dtype=f64)], _garch, '''
def garch_loglik(double(N,T) R, double om, double al, double be) -> (H, LL) {
    H(n, t) +=! s < t ? al * pow(be, t - 1 - s) * R(n, s) * R(n, s) : 0.0 where t in 0:T
    H(n, t) = H(n, t) + om / (1.0 - be)
    LL(n) +=! -0.5 * (log(H(n, t)) + R(n, t) * R(n, t) / H(n, t))
}''')

def _roll(X):
    w = X.unfold(0, 20, 1)
    v, m = torch.var_mean(w, 2, correction=1)
    return (X[19:] - m) / (v + 1e-8).sqrt()
op("rolling_zscore", 2e-4, lambda g: [rn(g, 1500, 64)], _roll, '''
def rolling_zscore(float(T,A) X) -> (Z) {
    M(t, a) +=! X(t + k, a) / 20.0 where k in 0:20
    V(t, a) +=! (X(t + k, a) - M(t, a)) * (X(t + k, a) - M(t, a)) / 19.0 where k in 0:20
    Z(t, a) = (X(t + 19, a) - M(t, a)) * rsqrt(V(t, a) + 1e-8)
}''')

def _stoch(H, L, C):
    hi = F.max_pool1d(H, 14, 1)
    lo = -F.max_pool1d(-L, 14, 1)
    return F.avg_pool1d(100 * (C[:, 13:] - lo) / (hi - lo), 3, 1)
op("stochastic_oscillator", 1e-5, lambda g: (lambda x: [x + 0.1 + ru(g, 100, 777), x - 0.1 - ru(g, 100, 777), x])(rn(g, 100, 777).cumsum(1)), _stoch, '''
def stochastic_oscillator(float(A,T) H, float(A,T) L, float(A,T) C) -> (D) {
    Hi(a, t) max=! H(a, t + k) where k in 0:14
    Lo(a, t) min=! L(a, t + k) where k in 0:14
    K(a, t) = 100.0 * (C(a, t + 13) - Lo(a, t)) / (Hi(a, t) - Lo(a, t))
    D(a, t) +=! K(a, t + m) / 3.0 where m in 0:3
}''')

def _bs(S, K, T, v):
    d1 = ((S / K).log() + 0.5 * v * v * T) / (v * T.sqrt())
    d2 = d1 - v * T.sqrt()
    n = torch.special.ndtr
    vega = S * torch.exp(-0.5 * d1 * d1) * (0.3989422804 * T.sqrt())
    return S * n(d1) - K * n(d2), vega
op("black_scholes_surface", 1e-5, lambda g: [90 + 20 * ru(g, 41, 1, 1), 80 + 40 * ru(g, 1, 37, 1), 0.1 + ru(g, 1, 1, 29), 0.1 + 0.3 * ru(g, 41, 37, 29)], _bs, '''
def black_scholes_surface(float(A,1,1) S, float(1,B,1) K, float(1,1,C) T, float(A,B,C) V) -> (Call, Vega) {
    D1(i, j, k) = (log(S(i,0,0) / K(0,j,0)) + 0.5 * V(i,j,k) * V(i,j,k) * T(0,0,k)) / (V(i,j,k) * sqrt(T(0,0,k)))
    Call(i, j, k) = S(i,0,0) * normcdf(D1(i,j,k)) - K(0,j,0) * normcdf(D1(i,j,k) - V(i,j,k) * sqrt(T(0,0,k)))
    Vega(i, j, k) = S(i,0,0) * exp(-0.5 * D1(i,j,k) * D1(i,j,k)) * 0.3989422804 * sqrt(T(0,0,k))
}''')

# ---------------------------------------------------------------- correlations
def _acf(X):
    d = X - X.mean(1, keepdim=True)
    T = X.shape[1]
    c = torch.stack([(d[:, :T - l] * d[:, l:]).sum(1) for l in range(40)], 1)
    return c / c[:, :1]
op("autocorrelation_lags", 2e-5, lambda g: [rn(g, 32, 1000)], _acf, '''
def autocorrelation_lags(float(N,T) X) -> (R) {
    M(n) +=! X(n, t) / T
    C(n, l) +=! t + l < T ? (X(n, t) - M(n)) * (X(n, t + l) - M(n)) : 0.0 where t in 0:T, l in 0:40
    R(n, l) = C(n, l) / C(n, 0)
}''')

def _ncc(I, T):
    h, w = T.shape
    t0 = T - T.mean()
    k = torch.ones(1, 1, h, w)
    num = F.conv2d(I[None, None], t0[None, None])[0, 0]
    m = F.avg_pool2d(I[None, None], (h, w), 1)[0, 0]
    sq = F.conv2d(I[None, None].square(), k)[0, 0]
    return num / ((sq - h * w * m * m) * t0.square().sum()).sqrt()
op("ncc_template_match", 1e-4, lambda g: [rn(g, 120, 161), rn(g, 13, 11)], _ncc, '''
def ncc_template_match(float(H,W) I, float(KH,KW) T) -> (R) {
    Tm +=! T(a, b)
    Tn +=! (T(a, b) - Tm / (KH*KW)) * (T(a, b) - Tm / (KH*KW))
    M(y, x) +=! I(y + a, x + b) / (KH * KW) where a in 0:KH, b in 0:KW
    Num(y, x) +=! (I(y + a, x + b) - M(y, x)) * (T(a, b) - Tm / (KH*KW))
    Den(y, x) +=! (I(y + a, x + b) - M(y, x)) * (I(y + a, x + b) - M(y, x)) where a in 0:KH, b in 0:KW
    R(y, x) = Num(y, x) * rsqrt(Den(y, x) * Tn)
}''')

# ---------------------------------------------------------------- dynamic programming and bioinformatics
def _dtw(C, P1, P2, d):
    d = int(d)
    N, M = C.shape[1:]
    i = torch.arange(N)
    j = d - i
    ok = (j >= 0) & (j < M)
    c = C[:, i, j.clamp(0, M - 1)]
    inf = torch.full_like(P1[:, :1], math.inf)
    up, left, diag = torch.cat([inf, P1[:, :-1]], 1), P1, torch.cat([inf, P2[:, :-1]], 1)
    return torch.where(ok, c + torch.minimum(diag, torch.minimum(up, left)), math.inf)
op("dtw_antidiagonal", 1e-6, lambda g: [ru(g, 20, 300, 280), 10 * ru(g, 20, 300), 10 * ru(g, 20, 300), torch.tensor(310, dtype=i32)], _dtw, '''
def dtw_antidiagonal(float(B,N,M) C, float(B,N) P1, float(B,N) P2, int32 d) -> (Y) {
    Y(b, i) = (d - i >= 0 && d - i < M)
            ? C(b, i, d - i) + min(i >= 1 ? P2(b, i-1) : infinity(), min(i >= 1 ? P1(b, i-1) : infinity(), P1(b, i)))
            : infinity()
        where i in 0:N
}''')

def _swat(A, Bq, S, H1, H2, E1, F1):
    sh = lambda X: torch.cat([torch.zeros_like(X[:, :1]), X[:, :-1]], 1)
    E = torch.maximum(E1 - 1, H1 - 11)
    Fg = torch.maximum(sh(F1) - 1, sh(H1) - 11)
    return torch.maximum(torch.maximum(sh(H2) + S[A.long(), Bq.long()], E), Fg).clamp(min=0), E, Fg
op("smith_waterman_affine_diagonal", 0, lambda g: [ri(g, 0, 24, 1000, 64, dtype=u8), ri(g, 0, 24, 1000, 64, dtype=u8), ri(g, -4, 12, 24, 24, dtype=i32)]
   + [ri(g, 0, 40, 1000, 64, dtype=i32) for _ in range(4)], _swat, '''
def smith_waterman_affine_diagonal(uint8(P,L) A, uint8(P,L) B, int32(V,V) S, int32(P,L) H1, int32(P,L) H2, int32(P,L) E1, int32(P,L) F1) -> (H, E, F) {
    E(p, i) = max(E1(p, i) - 1, H1(p, i) - 11)
    F(p, i) = max((i > 0 ? F1(p, i-1) : 0) - 1, (i > 0 ? H1(p, i-1) : 0) - 11) where i in 0:L
    H(p, i) = max(max((i > 0 ? H2(p, i-1) : 0) + S(A(p, i), B(p, i)), 0), max(E(p, i), F(p, i))) where i in 0:L
}''')

op("hmm_forward_log_step", 1e-5, lambda g: [-5 * ru(g, 256, 45), torch.log_softmax(rn(g, 45, 45), 1), torch.log_softmax(rn(g, 45, 20), 1), ri(g, 0, 20, 256)],
   lambda a, T, E, o: torch.logsumexp(a[:, :, None] + T, 1) + E.T[o], '''
def hmm_forward_log_step(float(B,S) a, float(S,S) T, float(S,O) E, int64(B) obs) -> (Y) {
    M(b, j) max=! a(b, i) + T(i, j)
    Z(b, j) +=! exp(a(b, i) + T(i, j) - M(b, j))
    Y(b, j) = M(b, j) + log(Z(b, j)) + E(j, obs(b))
}''')

def _kmer(R):
    n, l = R.shape
    r = R.int()
    w = r.unfold(1, 4, 1)
    code = ((w[..., 0] * 4 + w[..., 1]) * 4 + w[..., 2]) * 4 + w[..., 3]
    ok = (w < 4).all(2)
    key = (torch.arange(n)[:, None] * 256 + code)[ok]
    return torch.bincount(key, minlength=n * 256).view(n, 256).int()
def _reads(g):
    R = ri(g, 0, 4, 500, 150, dtype=u8)
    R[ru(g, 500, 150) < 0.01] = 4
    return [R]
op("kmer_spectrum", 0, _reads, _kmer, '''
def kmer_spectrum(uint8(N,L) R) -> (int32(N,256) Count) {
    K(n, i) = R(n, i) < 4 && R(n, i+1) < 4 && R(n, i+2) < 4 && R(n, i+3) < 4
            ? 64 * int32(R(n, i)) + 16 * int32(R(n, i+1)) + 4 * int32(R(n, i+2)) + int32(R(n, i+3)) : -1
    Count(n, v) +=! (K(n, i) == v) ? 1 : 0 where v in 0:256
}''')

op("pwm_scan_onehot", 1e-5, lambda g: [ri(g, 0, 4, 40, 1001), rn(g, 30, 4, 12)],
   lambda S, W: (lambda y: (y.amax(2), y.exp().sum(2).log()))(F.conv1d(F.one_hot(S, 4).mT.float(), W)), '''
def pwm_scan_onehot(int64(B,L) S, float(M,4,K) W) -> (Best, Occ) {
    Y(b, m, i) +=! W(m, S(b, i + k), k)
    Best(b, m) max=! Y(b, m, i)
    Occ(b, m) +=! exp(Y(b, m, i))
    Occ(b, m) = log(Occ(b, m))
}''')

# ---------------------------------------------------------------- tables
def _grp(K, X):
    G = 300
    n = torch.bincount(K, minlength=G)
    s = torch.zeros(G, dtype=f64).index_add_(0, K, X)
    q = torch.zeros(G, dtype=f64).index_add_(0, K, X * X)
    mx = torch.full((G,), -math.inf, dtype=f64).scatter_reduce_(0, K, X, "amax")
    m = s / n
    return n, m, q / n - m * m, mx
op("group_by_aggregate", 1e-9, lambda g: [ri(g, 0, 300, 50_000), rn(g, 50_000, dtype=f64)], _grp, '''
def group_by_aggregate(int64(N) Key, double(N) X) -> (int64(300) Count, Mean, Var, Max) {
    Count(Key(n)) +=! 1
    Mean(Key(n)) +=! X(n) where Key(n) in 0:300
    Var(Key(n)) +=! X(n) * X(n) where Key(n) in 0:300
    Max(Key(n)) max=! X(n) where Key(n) in 0:300
    Mean(k) = Mean(k) / Count(k)
    Var(k) = Var(k) / Count(k) - Mean(k) * Mean(k)
}''')

def _join(ck, pk, qty, price, region):
    keep = (ck >= 0) & (qty > 0)
    rev = qty[keep] * price[pk[keep].long()]
    return torch.zeros(25).index_add_(0, region[ck[keep].long()], rev)
op("star_join_revenue", 1e-5, lambda g: [ri(g, -1, 5000, 60_000, dtype=i32), ri(g, 0, 1000, 60_000, dtype=i32), ri(g, 0, 10, 60_000, dtype=i32), ru(g, 1000), ri(g, 0, 25, 5000)], _join, '''
def star_join_revenue(int32(N) Cust, int32(N) Part, int32(N) Qty, float(P) Price, int64(C) Region) -> (Rev) {
    Reg(n) = Cust(n) >= 0 ? Region(Cust(n)) : -1
    Amt(n) = Qty(n) * Price(Part(n))
    Rev(r) +=! (Reg(n) == r && Qty(n) > 0) ? Amt(n) : 0.0 where r in 0:25
}''')

def _adler(X):
    x = X.long()
    L = x.shape[1]
    a = (1 + x.sum(1)) % 65521
    b = (L + (x * torch.arange(L, 0, -1)).sum(1)) % 65521
    return b * 65536 + a
op("adler32_rows", 0, lambda g: [ri(g, 0, 256, 77, 4096, dtype=u8)], _adler, '''
def adler32_rows(uint8(N,L) X) -> (Sum) {
    A(n) +=! int64(X(n, i))
    B(n) +=! int64(L - i) * int64(X(n, i))
    Sum(n) = (B(n) + L) % 65521 * 65536 + (A(n) + 1) % 65521
}''')

def _civil(D):
    z = D + 719468
    era = z.div(146097, rounding_mode="floor")
    doe = z - era * 146097
    yoe = (doe - doe // 1460 + doe // 36524 - doe // 146096) // 365
    doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
    mp = (5 * doy + 2) // 153
    d = doy - (153 * mp + 2) // 5 + 1
    m = torch.where(mp < 10, mp + 3, mp - 9)
    return yoe + era * 400 + (m <= 2), m, d, (D + 4) % 7
op("civil_from_days", 0, lambda g: [ri(g, -800_000, 800_000, 31_337)], _civil, '''
def civil_from_days(int64(N) D) -> (Year, Month, Day, Weekday) {
    Month(n) = mp < 10 ? mp + 3 : mp - 9
        where z = D(n) + 719468, doe = z % 146097, yoe = (doe - doe/1460 + doe/36524 - doe/146096) / 365,
              doy = doe - (365*yoe + yoe/4 - yoe/100), mp = (5*doy + 2) / 153
    Day(n) = doy - (153*mp + 2)/5 + 1
        where z = D(n) + 719468, doe = z % 146097, yoe = (doe - doe/1460 + doe/36524 - doe/146096) / 365,
              doy = doe - (365*yoe + yoe/4 - yoe/100), mp = (5*doy + 2) / 153
    Year(n) = yoe + z / 146097 * 400 + (Month(n) <= 2 ? 1 : 0)
        where z = D(n) + 719468, doe = z % 146097, yoe = (doe - doe/1460 + doe/36524 - doe/146096) / 365
    Weekday(n) = (D(n) + 4) % 7
}''')

# ---------------------------------------------------------------- interpolation and filters
def _cat(X, P):
    f = P.floor()
    i = f.long()
    t = P - f
    p = [X.gather(1, (i + k).clamp(0, X.shape[1] - 1)) for k in (-1, 0, 1, 2)]
    return p[1] + 0.5 * t * (p[2] - p[0] + t * (2 * p[0] - 5 * p[1] + 4 * p[2] - p[3] + t * (3 * (p[1] - p[2]) + p[3] - p[0])))
op("catmull_rom_resample", 1e-5, lambda g: [rn(g, 24, 1000), 999 * ru(g, 24, 2205)], _cat, '''
def catmull_rom_resample(float(B,N) X, float(B,M) P) -> (Y) {
    I(b, m) = int32(floor(P(b, m)))
    Y(b, m) = p1 + 0.5 * t * (p2 - p0 + t * (2.0*p0 - 5.0*p1 + 4.0*p2 - p3 + t * (3.0*(p1 - p2) + p3 - p0)))
        where t = P(b, m) - floor(P(b, m)), p0 = X(b, max(I(b, m) - 1, 0)), p1 = X(b, I(b, m)),
              p2 = X(b, min(I(b, m) + 1, N - 1)), p3 = X(b, min(I(b, m) + 2, N - 1))
}''')

op("trilinear_volume_sample", 2e-5, lambda g: [rn(g, 2, 4, 20, 24, 28), 0.98 * (2 * ru(g, 2, 3000, 3) - 1)],
   lambda V, P: F.grid_sample(V, P.flip(2)[:, :, None, None], mode="bilinear", align_corners=True)[..., 0, 0], '''
def trilinear_volume_sample(float(B,C,D,H,W) V, float(B,N,3) P) -> (Y) {
    Z(b, n) = 0.5 * (P(b, n, 0) + 1.0) * (D - 1)
    U(b, n) = 0.5 * (P(b, n, 1) + 1.0) * (H - 1)
    X(b, n) = 0.5 * (P(b, n, 2) + 1.0) * (W - 1)
    Y(b, c, n) +=! (k == 0 ? 1.0 - fz : fz) * (j == 0 ? 1.0 - fy : fy) * (i == 0 ? 1.0 - fx : fx)
                   * V(b, c, int32(floor(Z(b, n))) + k, int32(floor(U(b, n))) + j, int32(floor(X(b, n))) + i)
        where k in 0:2, j in 0:2, i in 0:2, fz = Z(b, n) - floor(Z(b, n)), fy = U(b, n) - floor(U(b, n)), fx = X(b, n) - floor(X(b, n))
}''')

def _poly(X, Hf):
    B, N = X.shape
    L, K = Hf.shape
    out = (N - K) * 3 // 2
    y = F.conv1d(X[:, None], Hf[:, None])                     # (B, L, N-K+1)
    n = torch.arange(out)
    return y[:, n * 2 % 3, n * 2 // 3]
op("polyphase_resample_3_2", 1e-5, lambda g: [rn(g, 8, 12_016), rn(g, 3, 16)], _poly, '''
def polyphase_resample_3_2(float(B,N) X, float(3,K) H) -> (Y) {
    Y(b, n) +=! X(b, 2*n/3 + k) * H(2*n % 3, k) where n in 0:(N-K)*3/2
}''')

op("fir_bank_log_energy", 1e-4, lambda g: [rn(g, 6, 8063), rn(g, 32, 64) / 8],
   lambda X, H: F.avg_pool1d(F.conv1d(X[:, None], H[:, None]).square(), 160).add(1e-8).log(), '''
def fir_bank_log_energy(float(B,T) X, float(F,64) H) -> (E) {
    Y(b, f, t) +=! X(b, t + k) * H(f, k)
    E(b, f, m) +=! Y(b, f, 160*m + s) * Y(b, f, 160*m + s) where s in 0:160
    E(b, f, m) = log(E(b, f, m) / 160.0 + 1e-8)
}''')

op("median5_network", 0, lambda g: [ri(g, 0, 65536, 64, 5000, dtype=i32).to(torch.int16)],
   lambda X: X.unfold(1, 5, 1).median(2).values, '''
def median5_network(int16(C,T) X) -> (M) {
    M(c, t) = max(min(X(c, t+4), max(f, g)), min(f, g))
        where a = min(X(c, t), X(c, t+1)), b = max(X(c, t), X(c, t+1)), d = min(X(c, t+2), X(c, t+3)), e = max(X(c, t+2), X(c, t+3)),
              f = max(a, d), g = min(b, e)
}''')

# ---------------------------------------------------------------- images
op("grey_opening_uint8", 0, lambda g: [ri(g, 0, 256, 240, 321, dtype=u8)],
   lambda X: F.max_pool2d(-F.max_pool2d(-X[None].float(), 5, 1), 5, 1)[0].to(u8), '''
def grey_opening_uint8(uint8(H,W) X) -> (Y) {
    E(y, x) min=! X(y + a, x + b) where a in 0:5, b in 0:5
    Y(y, x) max=! E(y + a, x + b) where a in 0:5, b in 0:5
}''')

def _hsv(X):
    x = X.float() / 255
    r, g, b = x.unbind(1)
    mx, mn = x.amax(1), x.amin(1)
    d = mx - mn
    q = torch.where(d > 0, d, 1.0)
    h = torch.where(mx == r, (g - b) / q % 6, torch.where(mx == g, (b - r) / q + 2, (r - g) / q + 4)) / 6
    return torch.stack([torch.where(d > 0, h, 0.0), torch.where(mx > 0, d / torch.where(mx > 0, mx, 1.0), 0.0), mx], 1)
op("rgb_to_hsv_bytes", 1e-5, lambda g: [ri(g, 0, 256, 2, 200, 301, 3, dtype=u8).permute(0, 3, 1, 2)], _hsv, '''
def rgb_to_hsv_bytes(uint8(N,3,H,W) X) -> (Y) {
    C(n, c, y, x) = float(X(n, c, y, x)) / 255.0
    Mx(n, y, x) max=! C(n, c, y, x)
    Mn(n, y, x) min=! C(n, c, y, x)
    Hue(n, y, x) = d > 0.0 ? (Mx(n,y,x) == C(n,0,y,x) ? (C(n,1,y,x) - C(n,2,y,x)) / d % 6.0
                   : (Mx(n,y,x) == C(n,1,y,x) ? (C(n,2,y,x) - C(n,0,y,x)) / d + 2.0 : (C(n,0,y,x) - C(n,1,y,x)) / d + 4.0)) / 6.0 : 0.0
        where d = Mx(n, y, x) - Mn(n, y, x)
    Y(n, k, y, x) = k == 0 ? Hue(n, y, x) : (k == 1 ? (Mx(n, y, x) > 0.0 ? (Mx(n, y, x) - Mn(n, y, x)) / Mx(n, y, x) : 0.0) : Mx(n, y, x)) where k in 0:3
}''')

def _bayer(R):
    H, W = R.shape
    P = F.pad(R[None].float(), (1, 1, 1, 1), mode="reflect")[0]
    c, h = P[1:-1, 1:-1], 0.5 * (P[1:-1, :-2] + P[1:-1, 2:])
    v = 0.5 * (P[:-2, 1:-1] + P[2:, 1:-1])
    x = 0.25 * (P[:-2, :-2] + P[:-2, 2:] + P[2:, :-2] + P[2:, 2:])
    p = 0.5 * (h + v)
    O = torch.empty(3, H, W)
    for a in (0, 1):
        for b in (0, 1):
            s = (slice(a, None, 2), slice(b, None, 2))
            O[0][s] = (c, h, v, x)[2 * a + b][s]
            O[1][s] = (p, c, c, p)[2 * a + b][s]
            O[2][s] = (x, v, h, c)[2 * a + b][s]
    return O
op("bayer_rggb_demosaic", 1e-6, lambda g: [ri(g, 0, 1023, 300, 404, dtype=i32).to(torch.int16)], _bayer, '''
def bayer_rggb_demosaic(int16(H,W) R) -> (O) {
    P(y, x) = float(R(y == 0 ? 1 : (y == H + 1 ? H - 2 : y - 1), x == 0 ? 1 : (x == W + 1 ? W - 2 : x - 1))) where y in 0:H+2, x in 0:W+2
    O(c, y, x) = c == 0 ? (y % 2 == 0 ? (x % 2 == 0 ? p : h) : (x % 2 == 0 ? v : d))
               : (c == 1 ? ((y + x) % 2 == 0 ? 0.5 * (h + v) : p) : (y % 2 == 0 ? (x % 2 == 0 ? d : v) : (x % 2 == 0 ? h : p)))
        where c in 0:3, y in 0:H, x in 0:W, p = P(y+1, x+1), h = 0.5 * (P(y+1, x) + P(y+1, x+2)), v = 0.5 * (P(y, x+1) + P(y+2, x+1)),
              d = 0.25 * (P(y, x) + P(y, x+2) + P(y+2, x) + P(y+2, x+2))
}''')

def _integral(X, r):
    r = int(r)
    S = F.pad(X.cumsum(0).cumsum(1), (1, 0, 1, 0))
    k = 2 * r + 1
    m = (S[k:, k:] - S[:-k, k:] - S[k:, :-k] + S[:-k, :-k]) / (k * k)
    return X[r:-r, r:-r] > m - 0.02
op("integral_adaptive_threshold", 0, lambda g: [ru(g, 200, 150, dtype=f64), torch.tensor(7, dtype=i32)], _integral, '''
def integral_adaptive_threshold(double(H,W) X, int32 r) -> (B) {
    R(y, x) +=! v <= x ? X(y, v) : 0.0 where x in 0:W
    S(y, x) +=! (u < y && x > 0) ? R(u, x - 1) : 0.0 where y in 0:H+1, x in 0:W+1, u in 0:H
    B(y, x) = X(y + r, x + r) > (S(y + k, x + k) - S(y, x + k) - S(y + k, x) + S(y, x)) / (k * k) - 0.02
        where y in 0:H-2*r, x in 0:W-2*r, k = 2*r + 1
}''')

op("gamma_lut_channels", 0, lambda g: [ri(g, 0, 256, 3, 480, 640, dtype=u8), ri(g, 0, 256, 3, 256, dtype=u8)],
   lambda X, T: torch.stack([T[c][X[c].int()] for c in range(3)]), '''
def gamma_lut_channels(uint8(C,H,W) X, uint8(C,256) T) -> (Y) {
    Y(c, y, x) = T(c, X(c, y, x))
}''')

def _dith(X, T):
    H, W = X.shape
    b = (X > T.repeat(H // 8, W // 8)).view(H, W // 8, 8).int()
    return (b * (2 ** torch.arange(7, -1, -1, dtype=i32))).sum(2, dtype=i32).to(u8)
op("ordered_dither_pack_bits", 0, lambda g: [ri(g, 0, 256, 400, 640, dtype=u8), ri(g, 0, 256, 8, 8, dtype=u8)], _dith, '''
def ordered_dither_pack_bits(uint8(H,W) X, uint8(8,8) T) -> (uint8(H,W/8) P) {
    Bit(k) *=! j < 7 - k ? 2 : 1 where k in 0:8, j in 0:8
    P(y, b) +=! X(y, 8*b + k) > T(y % 8, k) ? Bit(k) : 0
}''')

def _bp(S, c, s):
    n = 96
    r = torch.arange(n) - 47.5
    t = r[None, None] * c[:, None, None] + r[None, :, None] * s[:, None, None] + 72.0
    i = t.floor()
    f = t - i
    i = i.long().flatten(1)
    return ((1 - f) * S.gather(1, i).view_as(t) + f * S.gather(1, i + 1).view_as(t)).sum(0) * (math.pi / S.shape[0])
op("filtered_backprojection", 2e-5, lambda g: (lambda a: [rn(g, 90, 145), a.cos(), a.sin()])(torch.arange(90) * (math.pi / 90)), _bp, '''
def filtered_backprojection(float(A,T) S, float(A) c, float(A) s) -> (I) {
    I(y, x) +=! 3.14159265358979 / A * ((1.0 - (t - floor(t))) * S(a, int32(floor(t))) + (t - floor(t)) * S(a, int32(floor(t)) + 1))
        where y in 0:96, x in 0:96, t = (x - 47.5) * c(a) + (y - 47.5) * s(a) + 72.0
}''')

def _lum(X, k):
    L = (0.2126 * X[:, 0].float() + 0.7152 * X[:, 1].float() + 0.0722 * X[:, 2].float())
    avg = (L + 1e-4).log().mean((1, 2), keepdim=True).exp()
    s = k.float()[:, None, None] * L / avg
    return (X.float() * (s * (1 + s / 16) / (1 + s) / (L + 1e-6))[:, None]).to(torch.float16)
op("reinhard_tonemap_half", 2e-3, lambda g: [(4 * ru(g, 2, 3, 160, 210)).half(), torch.tensor([0.18, 0.36]).half()], _lum, '''
def reinhard_tonemap_half(half(N,3,H,W) X, half(N) k) -> (half(N,3,H,W) Y) {
    L(n, y, x) = 0.2126 * float(X(n, 0, y, x)) + 0.7152 * float(X(n, 1, y, x)) + 0.0722 * float(X(n, 2, y, x))
    G(n) +=! log(L(n, y, x) + 1e-4) / (H * W)
    Y(n, c, y, x) = half(X(n, c, y, x) * (s * (1.0 + s / 16.0) / (1.0 + s) / (L(n, y, x) + 1e-6))) where s = k(n) * L(n, y, x) / exp(G(n))
}''')

# ---------------------------------------------------------------- waves and quanta
def _beam(X, W):
    y = torch.einsum("bmf,smf->bsf", W[..., 0], X[..., 0]), torch.einsum("bmf,smf->bsf", W[..., 1], X[..., 1]), \
        torch.einsum("bmf,smf->bsf", W[..., 0], X[..., 1]), torch.einsum("bmf,smf->bsf", W[..., 1], X[..., 0])
    return ((y[0] + y[1]).square() + (y[2] - y[3]).square()).mean(1)
op("beamformer_power", 1e-4, lambda g: [rn(g, 50, 16, 65, 2), rn(g, 37, 16, 65, 2)], _beam, '''
def beamformer_power(float(S,M,F,2) X, float(B,M,F,2) W) -> (P) {
    Re(b, s, f) +=! W(b, m, f, 0) * X(s, m, f, 0) + W(b, m, f, 1) * X(s, m, f, 1)
    Im(b, s, f) +=! W(b, m, f, 0) * X(s, m, f, 1) - W(b, m, f, 1) * X(s, m, f, 0)
    P(b, f) +=! (Re(b, s, f) * Re(b, s, f) + Im(b, s, f) * Im(b, s, f)) / S
}''')

def _fdtd(E, H, eps, c):
    def curl(V, d):
        n = lambda A, ax: (A.roll(-d, ax) - A) * d
        return torch.stack([n(V[2], 1) - n(V[1], 2), n(V[0], 2) - n(V[2], 0), n(V[1], 0) - n(V[0], 1)])
    H1 = H - c * curl(E, 1)
    return E + c / eps * curl(H1, -1), H1
op("fdtd_yee_periodic", 1e-5, lambda g: [rn(g, 3, 32, 40, 48), rn(g, 3, 32, 40, 48), 1 + ru(g, 32, 40, 48), torch.tensor(0.5)], _fdtd, '''
def fdtd_yee_periodic(float(3,A,B,C) E, float(3,A,B,C) H, float(A,B,C) eps, float c) -> (E1, H1) {
    H1(d, i, j, k) = H(d, i, j, k) - c * (d == 0 ? E(2, i, (j+1)%B, k) - E(2, i, j, k) - E(1, i, j, (k+1)%C) + E(1, i, j, k)
                                       : (d == 1 ? E(0, i, j, (k+1)%C) - E(0, i, j, k) - E(2, (i+1)%A, j, k) + E(2, i, j, k)
                                                 : E(1, (i+1)%A, j, k) - E(1, i, j, k) - E(0, i, (j+1)%B, k) + E(0, i, j, k)))
    E1(d, i, j, k) = E(d, i, j, k) + c / eps(i, j, k) * (d == 0 ? H1(2, i, j, k) - H1(2, i, (j+B-1)%B, k) - H1(1, i, j, k) + H1(1, i, j, (k+C-1)%C)
                                       : (d == 1 ? H1(0, i, j, k) - H1(0, i, j, (k+C-1)%C) - H1(2, i, j, k) + H1(2, (i+A-1)%A, j, k)
                                                 : H1(1, i, j, k) - H1(1, (i+A-1)%A, j, k) - H1(0, i, j, k) + H1(0, i, (j+B-1)%B, k)))
}''')

def _gate(S, U):
    s = torch.view_as_complex(S)
    u = torch.view_as_complex(U)
    return torch.view_as_real(torch.einsum("pqrs,arbsc->apbqc", u, s).contiguous())
op("two_qubit_gate", 1e-12, lambda g: [rn(g, 16, 2, 32, 2, 64, 2, dtype=f64), rn(g, 2, 2, 2, 2, 2, dtype=f64)], _gate, '''
def two_qubit_gate(double(A,2,B,2,C,2) S, double(2,2,2,2,2) U) -> (T) {
    T(a, p, b, q, c, z) +=! z == 0 ? U(p, q, r, s, 0) * S(a, r, b, s, c, 0) - U(p, q, r, s, 1) * S(a, r, b, s, c, 1)
                                   : U(p, q, r, s, 0) * S(a, r, b, s, c, 1) + U(p, q, r, s, 1) * S(a, r, b, s, c, 0) where z in 0:2
}''')

op("mpo_environment_step", 1e-11, lambda g: [rn(g, 24, 5, 24, dtype=f64), rn(g, 24, 2, 28, dtype=f64), rn(g, 5, 5, 2, 2, dtype=f64), rn(g, 24, 2, 28, dtype=f64)],
   lambda L, A, W, Bt: torch.einsum("awb,asc,wvst,btd->cvd", L, A, W, Bt), '''
def mpo_environment_step(double(X,D,X) L, double(X,S,Y) A, double(D,D,S,S) W, double(X,S,Y) B) -> (R) {
    R(c, v, d) +=! L(a, w, b) * A(a, s, c) * W(w, v, s, t) * B(b, t, d)
}''')

def _lsda(a, b, w):
    ex = -0.9305257363491 * ((a.clamp(min=1e-12)) ** (4 / 3) + (b.clamp(min=1e-12)) ** (4 / 3))
    va, vb = -1.2407009817988 * torch.pow(a.clamp(min=1e-12), 1 / 3), -1.2407009817988 * torch.pow(b.clamp(min=1e-12), 1 / 3)
    return (w * ex).sum(), va, vb
op("lsda_exchange", 1e-11, lambda g: [ru(g, 41_003, dtype=f64) - 0.01, ru(g, 41_003, dtype=f64), ru(g, 41_003, dtype=f64)], _lsda, '''
def lsda_exchange(double(N) Ra, double(N) Rb, double(N) w) -> (Ex, Va, Vb) {
    Va(i) = -1.2407009817988 * cbrt(max(Ra(i), 1e-12))
    Vb(i) = -1.2407009817988 * cbrt(max(Rb(i), 1e-12))
    Ex +=! 0.75 * w(i) * (Va(i) * max(Ra(i), 1e-12) + Vb(i) * max(Rb(i), 1e-12))
}''')

# ---------------------------------------------------------------- particles
def _lj(X, Nb, box):
    d = X[:, None] - X[Nb.clamp(min=0).long()]
    d = d - box * torch.round(d / box)
    r2 = d.square().sum(2)
    ok = (Nb >= 0) & (r2 < 6.25)
    i6 = 1 / torch.where(ok, r2, 1.0) ** 3
    f = torch.where(ok, 24 * (2 * i6 * i6 - i6) / r2, 0.0)
    return (f[:, :, None] * d).sum(1), torch.where(ok, 2 * (i6 * i6 - i6), 0.0).sum(1)
def _ljargs(g):
    n = 12
    x = torch.stack(torch.meshgrid(*[torch.arange(n) * 1.2] * 3, indexing="ij"), -1).view(-1, 3) + 0.2 * ru(g, n ** 3, 3)
    box = torch.tensor(14.4)
    d = x[:, None] - x
    d = (d - box * torch.round(d / box)).square().sum(2).fill_diagonal_(99)
    v, k = d.topk(64, 1, largest=False)
    return [x, torch.where(v < 7.5, k, -1).int(), box]
op("lennard_jones_neighbours", 2e-4, _ljargs, _lj, '''
def lennard_jones_neighbours(float(N,3) X, int32(N,K) Nb, float box) -> (F, E) {
    D(i, k, c) = Nb(i, k) >= 0 ? X(i, c) - X(Nb(i, k), c) - box * round((X(i, c) - X(Nb(i, k), c)) / box) : 100.0
    R(i, k) +=! D(i, k, c) * D(i, k, c)
    F(i, c) +=! R(i, k) < 6.25 ? 24.0 * (2.0 * s * s - s) / R(i, k) * D(i, k, c) : 0.0 where s = 1.0 / (R(i, k) * R(i, k) * R(i, k))
    E(i) +=! R(i, k) < 6.25 ? 2.0 * (s * s - s) : 0.0 where s = 1.0 / (R(i, k) * R(i, k) * R(i, k))
}''')

def _sfac(X, K, q):
    ph = X @ K.T
    return (q @ ph.cos()).square() + (q @ ph.sin()).square()
op("ewald_structure_factor", 1e-4, lambda g: [rn(g, 700, 3), 3 * rn(g, 250, 3), rn(g, 700)], _sfac, '''
def ewald_structure_factor(float(N,3) X, float(M,3) K, float(N) q) -> (S) {
    Ph(n, m) +=! X(n, c) * K(m, c)
    Re(m) +=! q(n) * cos(Ph(n, m))
    Im(m) +=! q(n) * sin(Ph(n, m))
    S(m) = Re(m) * Re(m) + Im(m) * Im(m)
}''')

# ---------------------------------------------------------------- polynomials and splines
def _bspl(P, t):
    i = t.floor()
    u = t - i
    i = i.long()
    w = [(1 - u) ** 3, 3 * u ** 3 - 6 * u ** 2 + 4, -3 * u ** 3 + 3 * u ** 2 + 3 * u + 1, u ** 3]
    return sum(w[k][:, None] * P[i + k] for k in range(4)) / 6
op("bspline_curve_eval", 1e-5, lambda g: [rn(g, 50, 3), 46.99 * ru(g, 7001)], _bspl, '''
def bspline_curve_eval(float(N,D) P, float(M) t) -> (Y) {
    B(m, k) = (k == 0 ? (1.0-u)*(1.0-u)*(1.0-u) : (k == 1 ? 3.0*u*u*u - 6.0*u*u + 4.0 : (k == 2 ? 3.0*(u*u + u - u*u*u) + 1.0 : u*u*u))) / 6.0
        where k in 0:4, u = t(m) - floor(t(m))
    Y(m, d) +=! B(m, k) * P(int32(floor(t(m))) + k, d)
}''')

def _horn(x, C):
    y, d = C[:, 6:7] * x + C[:, 5:6], C[:, 6:7].expand(-1, x.shape[1])
    for k in (4, 3, 2, 1, 0):
        d = d * x + y
        y = y * x + C[:, k:k + 1]
    return x - y / d
op("horner_newton_iteration", 1e-9, lambda g: [2 + ru(g, 63, 1000, dtype=f64), 0.5 + ru(g, 63, 7, dtype=f64)], _horn, '''
def horner_newton_iteration(double(B,N) x, double(B,7) C) -> (Y) {
    Y(b, n) = z - p / q
        where z = x(b, n), p = (((((C(b,6)*z + C(b,5))*z + C(b,4))*z + C(b,3))*z + C(b,2))*z + C(b,1))*z + C(b,0),
              q = ((((6.0*C(b,6)*z + 5.0*C(b,5))*z + 4.0*C(b,4))*z + 3.0*C(b,3))*z + 2.0*C(b,2))*z + C(b,1)
}''')

def _leg(x, c):
    p, q = torch.ones_like(x), x
    y = c[0] * p + c[1] * q
    for n in range(1, 5):
        p, q = q, ((2 * n + 1) * x * q - n * p) / (n + 1)
        y = y + c[n + 1] * q
    return y
op("legendre_series", 1e-5, lambda g: [2 * ru(g, 333, 100) - 1, rn(g, 6)], _leg, '''
def next(float(N,M) x, float(N,M) q, float(N,M) p, float n) -> (r) {
    r(i, j) = ((2.0*n + 1.0) * x(i, j) * q(i, j) - n * p(i, j)) / (n + 1.0)
}
def legendre_series(float(N,M) x, float(6) c) -> (y) {
    P0(i, j) = 1.0 where i in 0:N, j in 0:M
    P2 = next(x, x, P0, 1.0)
    P3 = next(x, P2, x, 2.0)
    P4 = next(x, P3, P2, 3.0)
    P5 = next(x, P4, P3, 4.0)
    y(i, j) = c(0) + c(1)*x(i, j) + c(2)*P2(i, j) + c(3)*P3(i, j) + c(4)*P4(i, j) + c(5)*P5(i, j)
}''')

def _sh(D, C):
    x, y, z = D.unbind(1)
    b = torch.stack([torch.full_like(x, 0.2820948), -0.4886025 * y, 0.4886025 * z, -0.4886025 * x, 1.0925484 * x * y, -1.0925484 * y * z,
                     0.3153916 * (3 * z * z - 1), -1.0925484 * x * z, 0.5462742 * (x * x - y * y)], 1)
    return torch.einsum("nk,nkc->nc", b, C.float()).add(0.5).clamp(min=0).bfloat16()
op("spherical_harmonics_colour", 1e-2, lambda g: [F.normalize(rn(g, 30_000, 3), dim=1), (0.2 * rn(g, 30_000, 9, 3)).bfloat16()], _sh, '''
def spherical_harmonics_colour(float(N,3) D, bfloat16(N,9,3) C) -> (bfloat16(N,3) Y) {
    B(n, k) = k == 0 ? 0.2820948 : (k == 1 ? -0.4886025 * y : (k == 2 ? 0.4886025 * z : (k == 3 ? -0.4886025 * x : (k == 4 ? 1.0925484 * x * y
            : (k == 5 ? -1.0925484 * y * z : (k == 6 ? 0.3153916 * (3.0 * z * z - 1.0) : (k == 7 ? -1.0925484 * x * z : 0.5462742 * (x * x - y * y))))))))
        where k in 0:9, x = D(n, 0), y = D(n, 1), z = D(n, 2)
    S(n, c) +=! B(n, k) * float(C(n, k, c))
    Y(n, c) = bfloat16(max(S(n, c) + 0.5, 0.0))
}''')

# ---------------------------------------------------------------- populations and epidemics
def _wf(x):
    N = 120
    j = torch.arange(N + 1, dtype=f64)
    p = torch.arange(N + 1, dtype=f64) / N * 0.98 + 0.01
    lc = math.lgamma(N + 1) - torch.lgamma(j + 1) - torch.lgamma(N - j + 1)
    T = torch.exp(lc + j * p.log()[:, None] + (N - j) * (1 - p).log()[:, None])
    return T, x @ T
op("wright_fisher_step", 1e-10, lambda g: [F.normalize(ru(g, 121, dtype=f64), p=1, dim=0)], _wf, '''
def wright_fisher_step(double(M) x) -> (T, y) {
    P(i) = 0.98 * double(i) / (M - 1) + 0.01 where i in 0:M
    T(i, j) = exp(lgamma(double(M)) - lgamma(double(j + 1)) - lgamma(double(M - j)) + j * log(P(i)) + (M - 1 - j) * log(1.0 - P(i))) where j in 0:M
    y(j) +=! x(i) * T(i, j)
}''')

def _ld(G):
    g = G.float()
    ok = (G >= 0).float()
    g = g * ok
    m = g.sum(0) / ok.sum(0)
    z = (g - m) * ok
    s = (z * z).sum(0).rsqrt()
    return (z.T @ z * s[:, None] * s).square()
op("linkage_r2_missing", 1e-4, lambda g: [ri(g, -1, 3, 503, 90, dtype=torch.int8)], _ld, '''
def linkage_r2_missing(int8(N,S) G) -> (R) {
    C(s)   +=! G(n, s) >= 0 ? 1.0 : 0.0
    M(s)   +=! G(n, s) >= 0 ? float(G(n, s)) : 0.0
    Z(n, s)  = G(n, s) >= 0 ? float(G(n, s)) - M(s) / C(s) : 0.0
    V(s)   +=! Z(n, s) * Z(n, s)
    D(s, t) +=! Z(n, s) * Z(n, t)
    R(s, t)  = D(s, t) * D(s, t) / (V(s) * V(t))
}''')

def _seir(S, E, I, R, C, T, b):
    N = S + E + I + R
    lam = b * (I / N) @ C.T
    inf, sym, rec = S * (1 - torch.exp(-lam)), 0.2 * E, 0.1 * I
    return S - inf, T @ (E + inf - sym), T @ (I + sym - rec), R + rec
op("seir_age_region_step", 1e-5, lambda g: [100 + 100 * ru(g, 200, 16)] + [10 * ru(g, 200, 16) for _ in range(3)] + [ru(g, 16, 16), torch.softmax(rn(g, 200, 200), 0), torch.tensor(0.3)], _seir, '''
def seir_age_region_step(float(R,A) S, float(R,A) E, float(R,A) I, float(R,A) Rec, float(A,A) C, float(R,R) T, float beta) -> (S1, E1, I1, R1) {
    Lam(r, a) +=! beta * C(a, b) * I(r, b) / (S(r, b) + E(r, b) + I(r, b) + Rec(r, b))
    New(r, a) = S(r, a) * (1.0 - exp(-Lam(r, a)))
    S1(r, a) = S(r, a) - New(r, a)
    E1(r, a) +=! T(r, q) * (E(q, a) + New(q, a) - 0.2 * E(q, a))
    I1(r, a) +=! T(r, q) * (I(q, a) + 0.2 * E(q, a) - 0.1 * I(q, a))
    R1(r, a) = Rec(r, a) + 0.1 * I(r, a)
}''')

# ---------------------------------------------------------------- integers
def _life(X):
    p = F.pad(X[:, None].float(), (1, 1, 1, 1), mode="circular")[:, 0].to(u8)
    r = p[:, :-2] + p[:, 1:-1] + p[:, 2:]
    n = r[:, :, :-2] + r[:, :, 1:-1] + r[:, :, 2:] - X
    return ((n == 3) | ((n == 2) & (X == 1))).to(u8)
op("life_torus_uint8", 0, lambda g: [ri(g, 0, 2, 3, 255, 256, dtype=u8)], _life, '''
def life_torus_uint8(uint8(B,H,W) X) -> (uint8(B,H,W) Y) {
    N(b, y, x) +=! X(b, (y + H + i - 1) % H, (x + W + j - 1) % W) where y in 0:H, x in 0:W, i in 0:3, j in 0:3
    Y(b, y, x) = N(b, y, x) == 3 || (N(b, y, x) == 4 && X(b, y, x) == 1) ? 1 : 0
}''')

def _wrap(x): return ((x + 2 ** 31) % 2 ** 32 - 2 ** 31)
def _mur(K, s):
    m = 2 ** 32 - 1
    h = (K.long() + int(s)) & m
    h = (h ^ (h >> 16)) * 0x85ebca6b & m
    h = (h ^ (h >> 13)) * 0xc2b2ae35 & m
    h = h ^ (h >> 16)
    return _wrap(h).int()

op("lcg_skip_ahead_uniform", 1e-6, lambda g: [ri(g, -2 ** 31, 2 ** 31, 1000, dtype=i32), ri(g, -2 ** 31, 2 ** 31, 33, dtype=i32), ri(g, -2 ** 31, 2 ** 31, 33, dtype=i32)],
   lambda S, A, C: ((S[:, None] * A + C) // 256 + 8388608).float() * (1 / 16777216), '''
def lcg_skip_ahead_uniform(int32(N) S, int32(K) A, int32(K) C) -> (U) {
    U(n, k) = float((S(n) * A(k) + C(k)) / 256 + 8388608) / 16777216.0
}''')

def _pop(A, Bq):
    x = (A[:, None] ^ Bq).long() & 0xffffffff
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0f0f0f0f
    return ((x * 0x01010101 & 0xffffffff) >> 24).sum(2).int()
op("hamming_fingerprints", 0, lambda g: [ri(g, -2 ** 31, 2 ** 31, 40, 4, dtype=i32), ri(g, -2 ** 31, 2 ** 31, 60, 4, dtype=i32)], _pop, '''
def hamming_fingerprints(int32(N,W) A, int32(M,W) B) -> (D) {
    P(b) *=! j < b ? int64(2) : int64(1) where b in 0:32, j in 0:32
    Ab(n, w, b) = A(n, w) / P(b) % 2 != 0
    Bb(m, w, b) = B(m, w) / P(b) % 2 != 0
    D(n, m) +=! Ab(n, w, b) != Bb(m, w, b) ? 1 : 0
}''')

# ---------------------------------------------------------------- more
def _bfly(X, Tw):
    x, w = torch.view_as_complex(X), torch.view_as_complex(Tw)
    a, b = x[:, :, 0], x[:, :, 1] * w
    return torch.view_as_real(torch.stack([a + b, a - b], 2))
op("fft_butterfly_stage", 1e-6, lambda g: [rn(g, 100, 16, 2, 32, 2), torch.view_as_real(torch.polar(torch.ones(32), -torch.arange(32) * math.pi / 32)).contiguous()], _bfly, '''
def fft_butterfly_stage(float(B,G,2,H,2) X, float(H,2) W) -> (Y) {
    Tr(b, g, k) = X(b, g, 1, k, 0) * W(k, 0) - X(b, g, 1, k, 1) * W(k, 1)
    Ti(b, g, k) = X(b, g, 1, k, 0) * W(k, 1) + X(b, g, 1, k, 1) * W(k, 0)
    Y(b, g, h, k, z) = X(b, g, 0, k, z) + (h == 0 ? 1.0 : -1.0) * (z == 0 ? Tr(b, g, k) : Ti(b, g, k)) where h in 0:2, z in 0:2
}''')

def _rk4(X, dt):
    def f(v):
        x, y, z = v.unbind(1)
        return torch.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], 1)
    a = f(X); b = f(X + dt / 2 * a); c = f(X + dt / 2 * b); d = f(X + dt * c)
    return X + dt / 6 * (a + 2 * b + 2 * c + d)
op("lorenz_ensemble_rk4", 1e-11, lambda g: [10 * rn(g, 10_000, 3, dtype=f64), torch.tensor(0.01, dtype=f64)], _rk4, '''
def slope(double(N,3) X, double(N,3) K, double h) -> (F) {
    V(n, c) = X(n, c) + h * K(n, c)
    F(n, c) = c == 0 ? 10.0 * (V(n, 1) - V(n, 0)) : (c == 1 ? V(n, 0) * (28.0 - V(n, 2)) - V(n, 1) : V(n, 0) * V(n, 1) - 8.0 / 3.0 * V(n, 2)) where c in 0:3
}
def lorenz_ensemble_rk4(double(N,3) X, double dt) -> (Y) {
    A = slope(X, X, 0.0)
    half_dt = 0.5 * dt
    B = slope(X, A, half_dt)
    C = slope(X, B, half_dt)
    D = slope(X, C, dt)
    Y(n, c) = X(n, c) + dt / 6.0 * (A(n, c) + 2.0 * B(n, c) + 2.0 * C(n, c) + D(n, c))
}''')

def _icp(P, Q):
    d = torch.cdist(P, Q)
    m, i = d.min(1)
    w = torch.exp(-m.square())
    A = P - (w[:, None] * P).sum(0) / w.sum()
    B = Q[i] - (w[:, None] * Q[i]).sum(0) / w.sum()
    return i.int(), (w[:, None] * A).T @ B
op("icp_cross_covariance", 1e-4, lambda g: [rn(g, 700, 3), rn(g, 900, 3)], _icp, '''
def icp_cross_covariance(float(N,3) P, float(M,3) Q) -> (J, H) {
    D(n, m) +=! (P(n, c) - Q(m, c)) * (P(n, c) - Q(m, c))
    Near(n) min=! D(n, m)
    J(n) min=! D(n, m) == Near(n) ? m : M
    W +=! exp(-Near(n))
    Mp(c) +=! exp(-Near(n)) * P(n, c)
    Mq(c) +=! exp(-Near(n)) * Q(J(n), c)
    H(a, b) +=! exp(-Near(n)) * (P(n, a) - Mp(a) / W) * (Q(J(n), b) - Mq(b) / W)
}''')

def _sixinv(A, b):
    return torch.linalg.solve(A, b)
op("block6_schur_solve", 2e-4, lambda g: [_spd(g, 3000, 6) + torch.eye(6), rn(g, 3000, 6)], _sixinv, '''
def inv3(float(B,3,3) A) -> (I) {
    C(b, i, j) = A(b, (j+1) % 3, (i+1) % 3) * A(b, (j+2) % 3, (i+2) % 3) - A(b, (j+1) % 3, (i+2) % 3) * A(b, (j+2) % 3, (i+1) % 3) where i in 0:3, j in 0:3
    D(b) +=! A(b, 0, i) * C(b, i, 0)
    I(b, i, j) = C(b, i, j) / D(b)
}
def block6_schur_solve(float(B,6,6) A, float(B,6) r) -> (x) {
    Aa(b, i, j) = A(b, i, j) where i in 0:3, j in 0:3
    Ai = inv3(Aa)
    G(b, i, j) +=! A(b, i + 3, k) * Ai(b, k, j) where i in 0:3, j in 0:3, k in 0:3
    S(b, i, j) = A(b, i + 3, j + 3) where i in 0:3, j in 0:3
    S(b, i, j) += -G(b, i, k) * A(b, k, j + 3)
    Si = inv3(S)
    t(b, i) = r(b, i + 3) where i in 0:3
    t(b, i) += -G(b, i, k) * r(b, k)
    z(b, i) +=! Si(b, i, k) * t(b, k)
    y(b, i) +=! Ai(b, i, k) * r(b, k) where k in 0:3
    y(b, i)  += -G(b, k, i) * z(b, k)
    x(b, i) = i < 3 ? y(b, i) : z(b, i - 3) where i in 0:6
}''')

def _cms(K, A):
    h = (K[None] * A[:, None]) // 65536 % 1024
    D = A.shape[0]
    C = torch.bincount((h + torch.arange(D)[:, None] * 1024).flatten(), minlength=D * 1024).view(D, 1024).int()
    return C, C.gather(1, h.long()).amin(0)
op("count_min_sketch", 0, lambda g: [ri(g, -2 ** 31, 2 ** 31, 20_000, dtype=i32) // 40_000_000, ri(g, 1, 2 ** 30, 5, dtype=i32) * 2 + 1], _cms, '''
def count_min_sketch(int32(N) K, int32(D) A) -> (int32(D,1024) C, Est) {
    Hash(d, n) = K(n) * A(d) / 65536 % 1024
    C(d, Hash(d, n)) +=! 1
    Est(n) min=! C(d, Hash(d, n))
}''')

def _vox(P):
    i = (P * 16).int()
    k = ((i[:, 0] * 16 + i[:, 1]) * 16 + i[:, 2]).long()
    n = torch.bincount(k, minlength=4096)
    c = torch.zeros(4096, 3).index_add_(0, k, P) / n.clamp(min=1)[:, None]
    return n.int().view(16, 16, 16), c.view(16, 16, 16, 3)
op("voxel_grid_centroids", 1e-5, lambda g: [0.999 * ru(g, 3, 30_001).T], _vox, '''
def voxel_grid_centroids(float(N,3) P) -> (int32(16,16,16) Count, float(16,16,16,3) C) {
    Count(int32(16.0*P(n,0)), int32(16.0*P(n,1)), int32(16.0*P(n,2))) +=! 1
    C(int32(16.0*P(n,0)), int32(16.0*P(n,1)), int32(16.0*P(n,2)), d) +=! P(n, d)
    C(x, y, z, d) = C(x, y, z, d) / max(Count(x, y, z), 1)
}''')

def _mdd(R):
    e = R.cumsum(1)
    dd = e.cummax(1).values - e
    return dd.amax(1), dd.square().mean(1).sqrt()
op("max_drawdown_ulcer", 1e-10, lambda g: [0.01 * rn(g, 300, 252, dtype=f64)], _mdd, '''
def max_drawdown_ulcer(double(A,T) R) -> (MDD, Ulcer) {
    E(a, t) +=! s <= t ? R(a, s) : 0.0 where t in 0:T
    Peak(a, t) max=! s <= t ? E(a, s) : -infinity() where t in 0:T
    MDD(a) max=! Peak(a, t) - E(a, t)
    Ulcer(a) +=! (Peak(a, t) - E(a, t)) * (Peak(a, t) - E(a, t)) / T
    Ulcer(a) = sqrt(Ulcer(a))
}''')

def _beta(X, M):
    xw, mw = X.unfold(1, 60, 1), M.unfold(0, 60, 1)
    xm, mm = xw.mean(2), mw.mean(1)
    mc = mw - mm[:, None]
    b = (xw * mc).sum(2) / mc.square().sum(1)
    return b, xm - b * mm
op("rolling_beta_alpha", 1e-4, lambda g: [rn(g, 60, 1200)[:, ::2], rn(g, 600)], _beta, '''
def rolling_beta_alpha(float(A,T) X, float(T) M) -> (Beta, Alpha) {
    Mx(a, t) +=! X(a, t + k) / 60.0 where k in 0:60
    Mm(t) +=! M(t + k) / 60.0 where k in 0:60
    Cov(a, t) +=! (X(a, t + k) - Mx(a, t)) * (M(t + k) - Mm(t)) where k in 0:60
    Var(t) +=! (M(t + k) - Mm(t)) * (M(t + k) - Mm(t)) where k in 0:60
    Beta(a, t) = Cov(a, t) / Var(t)
    Alpha(a, t) = Mx(a, t) - Beta(a, t) * Mm(t)
}''')

def _adj(R, p, V):
    w, v = V[:, :3], V[:, 3:]
    rw = torch.einsum("bij,bj->bi", R, w)
    return torch.cat([rw, torch.einsum("bij,bj->bi", R, v) + torch.linalg.cross(p, rw)], 1)
op("twist_adjoint_small", 1e-5, lambda g: [torch.linalg.qr(rn(g, 5, 3, 3))[0].contiguous(), rn(g, 5, 3), rn(g, 5, 6)], _adj, '''
def twist_adjoint_small(float(B,3,3) R, float(B,3) p, float(B,6) V) -> (Y) {
    Rw(b, i) +=! R(b, i, j) * V(b, j)
    Rv(b, i) +=! R(b, i, j) * V(b, j + 3)
    Y(b, i) = i < 3 ? Rw(b, i) : Rv(b, i - 3) + p(b, (i+1) % 3) * Rw(b, (i+2) % 3) - p(b, (i+2) % 3) * Rw(b, (i+1) % 3) where i in 0:6
}''')

op("median9_network", 0, lambda g: [ri(g, 0, 256, 150, 202, dtype=u8)],
   lambda X: X.unfold(0, 3, 1).unfold(1, 3, 1).flatten(2).median(2).values, '''
def median9_network(uint8(H,W) X) -> (M) {
    Lo(y, x) = min(X(y, x), min(X(y, x+1), X(y, x+2)))
    Hi(y, x) = max(X(y, x), max(X(y, x+1), X(y, x+2)))
    Mid(y, x) = max(min(X(y, x), X(y, x+1)), min(max(X(y, x), X(y, x+1)), X(y, x+2)))
    M(y, x) = max(min(a, c), min(max(a, c), e))
        where a = max(Lo(y, x), max(Lo(y+1, x), Lo(y+2, x))), e = min(Hi(y, x), min(Hi(y+1, x), Hi(y+2, x))),
              c = max(min(Mid(y, x), Mid(y+1, x)), min(max(Mid(y, x), Mid(y+1, x)), Mid(y+2, x)))
}''')

op('median9_exchange_network', 0, lambda g: [ri(g, 0, 256, 150, 202, dtype=u8)],
   lambda X: X.unfold(0, 3, 1).unfold(1, 3, 1).flatten(2).median(2).values, '''
def median9_exchange_network(uint8(H,W) X) -> (M) {
    M(y, x) = l18
        where l0 = min(X(y+0, x+1), X(y+0, x+2)), h0 = max(X(y+0, x+1), X(y+0, x+2)),
              l1 = min(X(y+1, x+1), X(y+1, x+2)), h1 = max(X(y+1, x+1), X(y+1, x+2)),
              l2 = min(X(y+2, x+1), X(y+2, x+2)), h2 = max(X(y+2, x+1), X(y+2, x+2)),
              l3 = min(X(y+0, x+0), l0), h3 = max(X(y+0, x+0), l0),
              l4 = min(X(y+1, x+0), l1), h4 = max(X(y+1, x+0), l1),
              l5 = min(X(y+2, x+0), l2), h5 = max(X(y+2, x+0), l2),
              l6 = min(h3, h0), h6 = max(h3, h0),
              l7 = min(h4, h1), h7 = max(h4, h1),
              l8 = min(h5, h2), h8 = max(h5, h2),
              l9 = min(l3, l4), h9 = max(l3, l4),
              l10 = min(h7, h8), h10 = max(h7, h8),
              l11 = min(l7, l8), h11 = max(l7, l8),
              l12 = min(h9, l5), h12 = max(h9, l5),
              l13 = min(l6, l11), h13 = max(l6, l11),
              l14 = min(h6, l10), h14 = max(h6, l10),
              l15 = min(h13, h11), h15 = max(h13, h11),
              l16 = min(l15, l14), h16 = max(l15, l14),
              l17 = min(h12, l16), h17 = max(h12, l16),
              l18 = min(h17, h16), h18 = max(h17, h16)
}''')

