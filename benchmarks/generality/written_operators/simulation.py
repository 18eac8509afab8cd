# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Multigrid, conservation laws, elements, sparse and dense matrices, robotics, finance, alignments and tables; as in ``learning``."""
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
