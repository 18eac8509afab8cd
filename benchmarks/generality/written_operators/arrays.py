# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Array programs outside of deep learning, as users of NumPy, SciPy and JAX write them; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.networks import bf16, f16, f64, i8, i32, i64, ri, rn, ru, u8
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)


# ---------------------------------------------------------------- matrix equations, small and batched matrices

op(dict(name="sylvester_residual_tiny", text='''
def sylvester_residual_tiny(double(M,M) A, double(M,N) X, double(N,N) B, double(M,N) C) -> (R) {
    R(i, j)  = -C(i, j)
    R(i, j) += A(i, k) * X(k, j)
    R(i, j) += X(i, k) * B(k, j)
}''', args=lambda g: [rn(g, 6, 6, dt=f64), rn(g, 6, 5, dt=f64), rn(g, 5, 5, dt=f64), rn(g, 6, 5, dt=f64)],
    torch=lambda A, X, B, C: torch.addmm(X @ B - C, A, X), tol=1e-12))


def t_lyap(A, E, X, B):
    R = A @ X @ E.mT + E @ X @ A.mT + B @ B.mT
    return R, torch.linalg.matrix_norm(R)


op(dict(name="generalised_lyapunov_residual", text='''
def generalised_lyapunov_residual(double(P,N,N) A, double(P,N,N) E, double(P,N,N) X, double(P,N,M) B) -> (R, Nrm) {
    T(p, i, k) +=! A(p, i, l) * X(p, l, k)
    S(p, i, k) +=! E(p, i, l) * X(p, l, k)
    R(p, i, j) +=! T(p, i, k) * E(p, j, k)
    R(p, i, j)  += S(p, i, k) * A(p, j, k)
    R(p, i, j)  += B(p, i, m) * B(p, j, m)
    Nrm(p)     +=! R(p, i, j) * R(p, i, j)
    Nrm(p)       = sqrt(Nrm(p))
}''', args=lambda g: [rn(g, 60, 23, 23, dt=f64), torch.eye(23, dtype=f64) + rn(g, 60, 23, 23, dt=f64, k=0.1), rn(g, 60, 23, 23, dt=f64), rn(g, 60, 23, 4, dt=f64)],
    torch=t_lyap, tol=1e-11))


def t_rotate4(C, R):
    t = torch.einsum("gsl,ijkl->gijks", R, C)
    t = torch.einsum("grk,gijks->gijrs", R, t)
    t = torch.einsum("gqj,gijrs->giqrs", R, t)
    return torch.einsum("gpi,giqrs->gpqrs", R, t).contiguous()


op(dict(name="rotate_elasticity_tensor", text='''
def rotate_elasticity_tensor(float(3,3,3,3) C, float(G,3,3) R) -> (Y) {
    Y(g, p, q, r, s) +=! R(g, p, i) * R(g, q, j) * R(g, r, k) * R(g, s, l) * C(i, j, k, l)
}''', args=lambda g: [rn(g, 3, 3, 3, 3), torch.linalg.qr(rn(g, 1501, 3, 3, dt=f64))[0].float().contiguous()], torch=t_rotate4, tol=2e-5))


def t_cgs2(Q, W):
    h = Q.T @ W
    w = W - Q @ h
    s = Q.T @ w
    w = torch.addmv(w, Q, s, alpha=-1)
    b = torch.linalg.vector_norm(w)
    return w / b, h + s, b


op(dict(name="cgs2_arnoldi_step", text='''
def cgs2_arnoldi_step(double(N,K) Q, double(N) W) -> (V, H, Beta) {
    H1(k) +=! Q(n, k) * W(n)
    W1(n)   = W(n)
    W1(n)  += -Q(n, k) * H1(k)
    H2(k) +=! Q(n, k) * W1(n)
    V(n)    = W1(n)
    V(n)   += -Q(n, k) * H2(k)
    H(k)    = H1(k) + H2(k)
    Beta  +=! V(n) * V(n)
    Beta    = sqrt(Beta)
    V(n)    = V(n) / Beta
}''', args=lambda g: [rn(g, 21, 40001, dt=f64, k=0.005).T, rn(g, 40001, dt=f64)], torch=t_cgs2, tol=1e-10))


# ---------------------------------------------------------------- Kronecker sums and tensor decompositions

op(dict(name="kron_sum_apply3", text='''
def kron_sum_apply3(float(I,I) A, float(J,J) B, float(K,K) C, float(I,J,K) X) -> (Y) {
    Y(i, j, k) +=! A(i, l) * X(l, j, k)
    Y(i, j, k)  += B(j, l) * X(i, l, k)
    Y(i, j, k)  += C(k, l) * X(i, j, l)
}''', args=lambda g: [rn(g, 112, 112, k=0.1), rn(g, 105, 105, k=0.1), rn(g, 120, 120, k=0.1), rn(g, 112, 105, 120)],
    torch=lambda A, B, C, X: (A @ X.flatten(1)).view_as(X) + B @ X + X @ C.T, tol=2e-5))


def t_hooi(X, U, V):
    Z = U.T @ (X @ V)
    f = Z.flatten(1)
    return Z, f @ f.T


op(dict(name="hooi_mode_gram", text='''
def hooi_mode_gram(float(I,J,K) X, float(J,Q) U, float(K,R) V) -> (Z, G) {
    Z(i, q, r) +=! X(i, j, k) * U(j, q) * V(k, r)
    G(i, l)    +=! Z(i, q, r) * Z(l, q, r)
}''', args=lambda g: [rn(g, 61, 90, 75), rn(g, 90, 9, k=0.1), rn(g, 75, 7, k=0.1)], torch=t_hooi, tol=2e-5))


def t_cp_masked(X, Seen, A, B, C):
    e = ((A[:, None] * B).flatten(0, 1) @ C.T).view_as(X)
    e = torch.where(Seen, e - X, 0.0)
    return ((e @ C) * A[:, None]).sum(0), 0.5 * e.square().sum()


op(dict(name="masked_cp_residual_mttkrp", text='''
def masked_cp_residual_mttkrp(float(I,J,K) X, bool(I,J,K) Seen, float(I,R) A, float(J,R) B, float(K,R) C) -> (Grad, Loss) {
    Res(i, j, k) +=! A(i, r) * B(j, r) * C(k, r)
    Res(i, j, k)   = Seen(i, j, k) ? Res(i, j, k) - X(i, j, k) : 0.0
    Grad(j, r)   +=! Res(i, j, k) * A(i, r) * C(k, r)
    Loss         +=! 0.5 * Res(i, j, k) * Res(i, j, k)
}''', args=lambda g: [rn(g, 150, 121, 128), ru(g, 150, 121, 128) < 0.4, rn(g, 150, 16, k=0.6), rn(g, 121, 16, k=0.6), rn(g, 128, 16, k=0.6)],
    torch=t_cp_masked, tol=1e-4))


def t_tt_inner(A1, A2, A3, A4, A5, B1, B2, B3, B4, B5):
    E = A1.T @ B1
    for A, B in ((A2, B2), (A3, B3), (A4, B4)):
        E = torch.tensordot(A, torch.tensordot(E, B, 1), ([0, 1], [0, 1]))
    return (A5 * (E @ B5)).sum()


op(dict(name="tt_inner_five_cores", text='''
def tt_inner_five_cores(double(S,R) A1, double(R,S,R) A2, double(R,S,R) A3, double(R,S,R) A4, double(R,S) A5,
                        double(S,P) B1, double(P,S,P) B2, double(P,S,P) B3, double(P,S,P) B4, double(P,S) B5) -> (V) {
    E1(a, b) +=! A1(s, a) * B1(s, b)
    E2(c, d) +=! E1(a, b) * A2(a, s, c) * B2(b, s, d)
    E3(c, d) +=! E2(a, b) * A3(a, s, c) * B3(b, s, d)
    E4(c, d) +=! E3(a, b) * A4(a, s, c) * B4(b, s, d)
    V        +=! E4(a, b) * A5(a, s) * B5(b, s)
}''', args=lambda g: [ru(g, 6, 7, dt=f64)] + [ru(g, 7, 6, 7, dt=f64) for _ in range(3)] + [ru(g, 7, 6, dt=f64), ru(g, 6, 5, dt=f64)]
    + [ru(g, 5, 6, 5, dt=f64) for _ in range(3)] + [ru(g, 5, 6, dt=f64)], torch=t_tt_inner, tol=1e-11))


# ---------------------------------------------------------------- finance, polynomials, graphs

def t_factor_risk(W, B, Cf, D):
    f = W @ B
    h = f @ Cf
    s = ((h * f).sum(1) + W.square() @ D).sqrt()
    return s, W * (h @ B.T + D * W) / s[:, None]


op(dict(name="factor_risk_contributions", text='''
def factor_risk_contributions(double(P,N) W, double(N,K) B, double(K,K) Cf, double(N) D) -> (Sigma, Ctr) {
    F(p, k)  +=! W(p, n) * B(n, k)
    G(p, k)  +=! F(p, l) * Cf(l, k)
    V(p)     +=! G(p, k) * F(p, k)
    V(p)      += W(p, n) * W(p, n) * D(n)
    Sigma(p)   = sqrt(V(p))
    M(p, n)  +=! G(p, k) * B(n, k)
    Ctr(p, n)  = W(p, n) * (M(p, n) + D(n) * W(p, n)) / Sigma(p)
}''', args=lambda g: [torch.softmax(rn(g, 40, 1201, dt=f64), 1), rn(g, 1201, 17, dt=f64), (lambda a: a @ a.T / 17)(rn(g, 17, 17, dt=f64)), ru(g, 1201, dt=f64, lo=0.1)],
    torch=t_factor_risk, tol=1e-11))


op(dict(name="polynomial_product_tiny", text='''
def polynomial_product_tiny(float(M) A, float(N) B) -> (C) {
    C(k) +=! (k >= i && k - i < N) ? A(i) * B(k - i) : 0.0 where k in 0:M+N-1, i in 0:M
}''', args=lambda g: [rn(g, 9), rn(g, 6)],
    torch=lambda A, B: F.conv1d(A[None, None], B.flip(0)[None, None], padding=B.shape[0] - 1)[0, 0], tol=1e-5))


def t_reach2(A):
    a = A.float()
    return (a @ a > 0) | A | torch.eye(A.shape[0], dtype=torch.bool)


op(dict(name="reach_two_steps_tiny", text='''
def reach_two_steps_tiny(bool(N,N) A) -> (R) {
    B(i, j) max=! A(i, k) && A(k, j)
    R(i, j)     = A(i, j) || B(i, j) || i == j
}''', args=lambda g: [ru(g, 11, 11) < 0.2], torch=t_reach2, tol=0.0))


# ---------------------------------------------------------------- finite elements and volumes

def _mesh(g, ny, nx):
    """Vertices of a jittered grid, two triangles for each square, and for each vertex the places 3*e + a where it stands."""
    v = torch.arange(ny * nx).view(ny, nx)
    a, b, c, d = v[:-1, :-1], v[:-1, 1:], v[1:, :-1], v[1:, 1:]
    conn = torch.cat([torch.stack([a, b, d], -1).view(-1, 3), torch.stack([a, d, c], -1).view(-1, 3)])
    p = torch.stack([v % nx, v // nx], -1).view(-1, 2) + 0.2 * ru(g, ny * nx, 2)
    s, place = conn.flatten().sort(stable=True)
    inc = torch.full((ny * nx, 6), -1)
    inc[s, torch.arange(s.shape[0]) - torch.searchsorted(s, s)] = place
    return p, conn.int(), inc.int()


def _p1_args(g):
    p, conn, inc = _mesh(g, 101, 87)
    return [p, rn(g, 101 * 87), conn, inc]


def t_p1(P, U, Conn, Inc):
    c = Conn.long()
    x, y = P[c].unbind(2)
    bx, by = y.roll(-1, 1) - y.roll(-2, 1), x.roll(-2, 1) - x.roll(-1, 1)
    area = 0.5 * (bx[:, 0] * by[:, 1] - bx[:, 1] * by[:, 0]).abs()
    u = U[c]
    re = (bx * (bx * u).sum(1, keepdim=True) + by * (by * u).sum(1, keepdim=True)) / (4 * area[:, None])
    n = c.flatten()
    zero = torch.zeros_like(U)
    return zero.index_add(0, n, re.flatten()), zero.index_add(0, n, (area / 3).repeat_interleave(3))


op(dict(name="p1_residual_gather", text='''
def p1_residual_gather(float(V,2) P, float(V) U, int32(E,3) Conn, int32(V,K) Inc) -> (Res, Lumped) {
    Bx(e, a)    = P(Conn(e, (a + 1) % 3), 1) - P(Conn(e, (a + 2) % 3), 1) where a in 0:3
    By(e, a)    = P(Conn(e, (a + 2) % 3), 0) - P(Conn(e, (a + 1) % 3), 0) where a in 0:3
    Ar(e)       = 0.5 * abs(Bx(e, 0) * By(e, 1) - Bx(e, 1) * By(e, 0))
    Gx(e)     +=! Bx(e, a) * U(Conn(e, a))
    Gy(e)     +=! By(e, a) * U(Conn(e, a))
    Re(e, a)    = (Bx(e, a) * Gx(e) + By(e, a) * Gy(e)) / (4.0 * Ar(e))
    Res(v)    +=! Inc(v, k) >= 0 ? Re(Inc(v, k) / 3, Inc(v, k) % 3) : 0.0
    Lumped(v) +=! Inc(v, k) >= 0 ? Ar(Inc(v, k) / 3) / 3.0 : 0.0
}''', args=_p1_args, torch=t_p1, tol=5e-5))


def t_overint(U, B, Wj):
    I, E = U.shape[0], U.shape[3]
    Q = B.shape[0]
    t = (B @ U.flatten(1)).view(Q, I, I, E)
    t = (B @ t.flatten(2)).view(Q, Q, I, E)
    t = B @ t
    t = Wj * t * t * t
    t = B.T @ t
    t = (B.T @ t.flatten(2)).view(Q, I, I, E)
    return (B.T @ t.flatten(1)).view_as(U)


op(dict(name="sem_cubic_overintegration", text='''
def sem_cubic_overintegration(double(I,I,I,E) U, double(Q,I) B, double(Q,Q,Q,E) Wj) -> (Y) {
    T1(p, j, k, e) +=! B(p, i) * U(i, j, k, e)
    T2(p, q, k, e) +=! B(q, j) * T1(p, j, k, e)
    T3(p, q, r, e) +=! B(r, k) * T2(p, q, k, e)
    T3(p, q, r, e)   = Wj(p, q, r, e) * T3(p, q, r, e) * T3(p, q, r, e) * T3(p, q, r, e)
    S1(p, q, k, e) +=! B(r, k) * T3(p, q, r, e)
    S2(p, j, k, e) +=! B(q, j) * S1(p, q, k, e)
    Y(i, j, k, e)  +=! B(p, i) * S2(p, j, k, e)
}''', args=lambda g: [rn(g, 6, 6, 6, 241, dt=f64), rn(g, 9, 6, dt=f64, k=0.4), ru(g, 9, 9, 9, 241, dt=f64)], torch=t_overint, tol=1e-11))


def _faces(g):
    C, n = 6000, 9000
    s, place = torch.arange(n).repeat(2)[torch.randperm(3 * C, generator=g)].sort()
    cf = torch.empty(3 * C, dtype=i64)
    cf[place] = s
    sg = torch.empty(3 * C)
    sg[place] = torch.tensor([1.0, -1.0]).repeat(n)
    h = ru(g, C, 1, lo=1.0, hi=2.0)
    return [torch.cat([h, 0.5 * rn(g, C, 2)], 1), (place // 3).view(n, 2), F.normalize(rn(g, n, 2), dim=1), ru(g, n, lo=0.5, hi=1.5),
            cf.view(C, 3), sg.view(C, 3), ru(g, C, lo=0.5, hi=1.5), torch.tensor(0.01)]


def t_rusanov(U, Lr, Nm, Len, Cf, Sg, Vol, dt):
    q = U[Lr]
    h = q[..., 0]
    vn = (q[..., 1:] * Nm[:, None]).sum(2) / h
    sm = (vn.abs() + (9.81 * h).sqrt()).amax(1)
    fn = q * vn[..., None] + F.pad(4.905 * (h * h)[..., None] * Nm[:, None], (1, 0))
    fl = 0.5 * (fn.sum(1) - sm[:, None] * (q[:, 1] - q[:, 0])) * Len[:, None]
    return U - dt * (Sg[..., None] * fl[Cf]).sum(1) / Vol[:, None]


op(dict(name="rusanov_unstructured", text='''
def rusanov_unstructured(float(C,3) U, int64(F,2) Lr, float(F,2) Nm, float(F) Len, int64(C,3) Cf, float(C,3) Sg, float(C) Vol, float dt) -> (Un) {
    Q(f, s, q)  = U(Lr(f, s), q)
    Vn(f, s)    = (Q(f, s, 1) * Nm(f, 0) + Q(f, s, 2) * Nm(f, 1)) / Q(f, s, 0)
    Cs(f, s)    = abs(Vn(f, s)) + sqrt(9.81 * Q(f, s, 0))
    Sm(f)   max=! Cs(f, s)
    Fn(f, s, q) = Q(f, s, q) * Vn(f, s) + (q == 0 ? 0.0 : 4.905 * Q(f, s, 0) * Q(f, s, 0) * Nm(f, q - 1)) where q in 0:3
    Fl(f, q)    = 0.5 * (Fn(f, 0, q) + Fn(f, 1, q) - Sm(f) * (Q(f, 1, q) - Q(f, 0, q))) * Len(f)
    Un(c, q)    = U(c, q)
    Un(c, q)   += -dt * Sg(c, k) * Fl(Cf(c, k), q) / Vol(c)
}''', args=_faces, torch=t_rusanov, tol=2e-5))


def t_hex8(Dn, Ji, Wd, La, Mu):
    E, A = Wd.shape[0], Dn.shape[1]
    G = (Dn @ Ji).flatten(2)
    M = ((G * Wd[..., None]).mT @ G).view(E, A, 3, A, 3)
    D = M.diagonal(dim1=2, dim2=4).sum(-1)
    lam, mu = La[:, None, None, None, None], Mu[:, None, None, None, None]
    return lam * M + mu * (M.transpose(2, 4) + D[:, :, None, :, None] * torch.eye(3)[:, None])


op(dict(name="hex8_elastic_stiffness", text='''
def hex8_elastic_stiffness(float(Q,A,3) Dn, float(E,Q,3,3) Ji, float(E,Q) Wd, float(E) La, float(E) Mu) -> (K) {
    G(e, q, a, i)    +=! Dn(q, a, r) * Ji(e, q, r, i)
    D(e, a, b)       +=! Wd(e, q) * G(e, q, a, i) * G(e, q, b, i)
    M(e, a, i, b, j) +=! Wd(e, q) * G(e, q, a, i) * G(e, q, b, j)
    K(e, a, i, b, j)   = La(e) * M(e, a, i, b, j) + Mu(e) * (M(e, a, j, b, i) + (i == j ? D(e, a, b) : 0.0))
}''', args=lambda g: [rn(g, 8, 8, 3, k=0.3), torch.eye(3) + rn(g, 2500, 8, 3, 3, k=0.1), ru(g, 2500, 8, lo=0.5), ru(g, 2500, lo=0.5), ru(g, 2500, lo=0.5)],
    torch=t_hex8, tol=2e-5))


# ---------------------------------------------------------------- lattices

def _mrt_args(g):
    mt = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1, 1], [-4, -1, -1, -1, -1, 2, 2, 2, 2], [4, -2, -2, -2, -2, 1, 1, 1, 1],
                       [0, 1, 0, -1, 0, 1, -1, -1, 1], [0, -2, 0, 2, 0, 1, -1, -1, 1], [0, 0, 1, 0, -1, 1, 1, -1, -1],
                       [0, 0, -2, 0, 2, 1, 1, -1, -1], [0, 1, -1, 1, -1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, -1, 1, -1]], dtype=f64)
    return [ru(g, 420, 401, 9, lo=0.05, hi=0.15), mt.float(), torch.linalg.inv(mt).float().contiguous(),
            torch.tensor([0.0, 1.4, 1.4, 0.0, 1.2, 0.0, 1.2, 1.7, 1.7])]


def t_mrt(f, Mt, Mi, Sr):
    m = f @ Mt.T
    rho, jx, jy = m[..., 0], m[..., 3], m[..., 5]
    jj = jx * jx + jy * jy
    eq = torch.stack([rho, 3 * jj - 2 * rho, rho - 3 * jj, jx, -jx, jy, -jy, jx * jx - jy * jy, jx * jy], -1)
    return f - (Sr * (m - eq)) @ Mi.T


op(dict(name="lbm_mrt_channels_last", text='''
def lbm_mrt_channels_last(float(H,W,9) F, float(9,9) Mt, float(9,9) Mi, float(9) Sr) -> (Y) {
    M(y, x, m) +=! Mt(m, q) * F(y, x, q)
    D(y, x, m)   = Sr(m) * (M(y, x, m) - eq)
        where rho = M(y, x, 0), jx = M(y, x, 3), jy = M(y, x, 5), jj = jx * jx + jy * jy,
              eq = m == 0 ? rho : (m == 1 ? 3.0 * jj - 2.0 * rho : (m == 2 ? rho - 3.0 * jj : (m == 3 ? jx : (m == 4 ? -jx
                 : (m == 5 ? jy : (m == 6 ? -jy : (m == 7 ? jx * jx - jy * jy : jx * jy)))))))
    Y(y, x, q)   = F(y, x, q)
    Y(y, x, q)  += -Mi(q, m) * D(y, x, m)
}''', args=_mrt_args, torch=t_mrt, tol=2e-5))


def t_u1(Th, Ev):
    ahead = torch.stack([Th.roll(-1, m + 1) for m in range(4)])          # m, n: the angle n, one step along m
    p = (Th[:, None] + ahead - ahead.transpose(0, 1) - Th).cos()
    return p.contiguous(), (1 - p).sum((2, 3, 4, 5))


op(dict(name="u1_wilson_plaquettes", text='''
def u1_wilson_plaquettes(double(4,A,B,C,D) Th, int32(4,4) Ev) -> (P, S) {
    P(m, n, a, b, c, d) = cos(Th(m, a, b, c, d) + Th(n, (a + Ev(m, 0)) % A, (b + Ev(m, 1)) % B, (c + Ev(m, 2)) % C, (d + Ev(m, 3)) % D)
                            - Th(m, (a + Ev(n, 0)) % A, (b + Ev(n, 1)) % B, (c + Ev(n, 2)) % C, (d + Ev(n, 3)) % D) - Th(n, a, b, c, d))
    S(m, n) +=! 1.0 - P(m, n, a, b, c, d)
}''', args=lambda g: [rn(g, 4, 6, 8, 7, 10, dt=f64), torch.eye(4, dtype=i32)], torch=t_u1, tol=1e-11))


# ---------------------------------------------------------------- particles

def t_eam(X):
    d = X[:, None] - X
    r2 = d.square().sum(2)
    ok = (r2 < 4.84) & ~torch.eye(X.shape[0], dtype=torch.bool)
    q, ph = torch.where(ok, 4.84 - r2, 0.0), torch.where(ok, torch.exp(-1.3 * r2), 0.0)
    rho = q.square().sum(1) + 0.01
    s = -0.5 * rho.rsqrt()
    k = 4 * (s[:, None] + s) * q + 2.6 * ph
    return 0.5 * ph.sum(1) - rho.sqrt(), (k[..., None] * d).sum(1)


op(dict(name="eam_energy_forces", text='''
def eam_energy_forces(double(N,3) X) -> (E, F) {
    R2(i, j) +=! (X(i, c) - X(j, c)) * (X(i, c) - X(j, c))
    Q(i, j)    = (i != j && R2(i, j) < 4.84) ? 4.84 - R2(i, j) : 0.0
    Ph(i, j)   = (i != j && R2(i, j) < 4.84) ? exp(-1.3 * R2(i, j)) : 0.0
    Rho(i)   +=! Q(i, j) * Q(i, j)
    Dr(i)      = -0.5 * rsqrt(Rho(i) + 0.01)
    E(i)       = -sqrt(Rho(i) + 0.01)
    E(i)      += 0.5 * Ph(i, j)
    F(i, c)  +=! (4.0 * (Dr(i) + Dr(j)) * Q(i, j) + 2.6 * Ph(i, j)) * (X(i, c) - X(j, c))
}''', args=lambda g: [ru(g, 420, 3, dt=f64, hi=7.5)], torch=t_eam, tol=1e-10))


def t_vortex(P, Z, Gm, S2):
    dx, dy = (P[:, None] - Z).unbind(2)
    r2 = dx * dx + dy * dy
    k = torch.where(r2 > 1e-12, -Gm * torch.expm1(-r2 / S2) / (2 * math.pi * r2), 0.0)
    return torch.stack([-(k * dy).sum(1), (k * dx).sum(1)], 1)


op(dict(name="vortex_blob_velocity", text='''
def vortex_blob_velocity(float(N,2) P, float(M,2) Z, float(M) Gm, float(M) S2) -> (U) {
    K(i, j)   = r2 > 1e-12 ? -Gm(j) * expm1(-r2 / S2(j)) / (6.283185307179586 * r2) : 0.0
        where dx = P(i, 0) - Z(j, 0), dy = P(i, 1) - Z(j, 1), r2 = dx * dx + dy * dy
    U(i, c) +=! K(i, j) * (c == 0 ? Z(j, 1) - P(i, 1) : P(i, 0) - Z(j, 0)) where c in 0:2
}''', args=lambda g: [rn(g, 1100, 2), rn(g, 1000, 2), rn(g, 1000), ru(g, 1000, lo=0.01, hi=0.05)], torch=t_vortex, tol=5e-5))


# ---------------------------------------------------------------- statistics

def t_ecology(A, B):
    x, s = (A[:, None] - B).abs(), A[:, None] + B
    return x.sum(2) / s.sum(2), torch.where(s > 0, x / s, 0.0).sum(2), x.amax(2)


op(dict(name="bray_canberra_chebyshev", text='''
def bray_canberra_chebyshev(float(N,D) A, float(M,D) B) -> (Bray, Canb, Cheb) {
    Num(i, j)  +=! abs(A(i, d) - B(j, d))
    Den(i, j)  +=! A(i, d) + B(j, d)
    Bray(i, j)   = Num(i, j) / Den(i, j)
    Canb(i, j) +=! A(i, d) + B(j, d) > 0.0 ? abs(A(i, d) - B(j, d)) / (A(i, d) + B(j, d)) : 0.0
    Cheb(i, j) max=! abs(A(i, d) - B(j, d))
}''', args=lambda g: [rn(g, 90, 51).clamp(min=0), rn(g, 51, 83).clamp(min=0).T], torch=t_ecology, tol=1e-5))


op(dict(name="rolling_median_by_rank_half", text='''
def rolling_median_by_rank_half(half(T,A) X) -> (half(T-14,A) Med) {
    Rk(t, a, k) +=! (X(t + l, a) < X(t + k, a) || (X(t + l, a) == X(t + k, a) && l < k)) ? 1 : 0 where k in 0:15, l in 0:15
    Med(t, a)   +=! Rk(t, a, k) == 7 ? X(t + k, a) : 0.0
}''', args=lambda g: [rn(g, 400, 41, dt=f16)], torch=lambda X: X.unfold(0, 15, 1).sort(-1).values[..., 7].contiguous(), tol=0.0))


def t_ks(X, Y):
    x, y = X.T.contiguous().sort(1).values, Y.T.contiguous().sort(1).values
    both = torch.cat([x, y], 1)
    fx = torch.searchsorted(x, both, right=True).double() / X.shape[0]
    fy = torch.searchsorted(y, both, right=True).double() / Y.shape[0]
    return (fx - fy).abs().amax(1)


op(dict(name="ks_two_sample_by_counting", text='''
def ks_two_sample_by_counting(double(N,F) X, double(M,F) Y) -> (D) {
    Xx(i, f) +=! X(k, f) <= X(i, f) ? 1 : 0
    Yx(i, f) +=! Y(k, f) <= X(i, f) ? 1 : 0
    Xy(j, f) +=! X(k, f) <= Y(j, f) ? 1 : 0
    Yy(j, f) +=! Y(k, f) <= Y(j, f) ? 1 : 0
    D(f)   max=! abs(double(Xx(i, f)) / N - double(Yx(i, f)) / M)
    D(f)    max= abs(double(Xy(j, f)) / N - double(Yy(j, f)) / M)
}''', args=lambda g: [rn(g, 260, 9, dt=f64), rn(g, 211, 9, dt=f64, k=1.2) + 0.1], torch=t_ks, tol=1e-12))


def t_ewma_corr(R, lam):
    T, A = R.shape
    i = torch.arange(T, dtype=f64)
    W = ((1 - lam) * lam ** (i[:, None] - i).clamp(min=0)).tril()
    C = (W @ (R[:, :, None] * R[:, None]).flatten(1)).view(T, A, A)
    s = C.diagonal(dim1=1, dim2=2).rsqrt()
    return C * s[:, :, None] * s[:, None]


op(dict(name="ewma_correlation_path", text='''
def ewma_correlation_path(double(T,A) R, double lam) -> (Cor) {
    W(t, s)       = s <= t ? (1.0 - lam) * pow(lam, t - s) : 0.0 where t in 0:T, s in 0:T
    Cov(t, a, b) +=! W(t, s) * R(s, a) * R(s, b)
    Cor(t, a, b)  = Cov(t, a, b) * rsqrt(Cov(t, a, a)) * rsqrt(Cov(t, b, b))
}''', args=lambda g: [rn(g, 180, 13, dt=f64), torch.tensor(0.94, dtype=f64)], torch=t_ewma_corr, tol=1e-10))


# ---------------------------------------------------------------- signals

def t_cdf97(X):
    ahead = lambda v: torch.cat([v[:, 1:], v[:, -1:]], 1)
    back = lambda v: torch.cat([v[:, :1], v[:, :-1]], 1)
    e, o = X[:, ::2], X[:, 1::2]
    o = o - 1.586134342 * (e + ahead(e))
    e = e - 0.05298011854 * (o + back(o))
    o = o + 0.8829110762 * (e + ahead(e))
    e = e + 0.4435068522 * (o + back(o))
    return (e * 1.149604398).contiguous(), (o / 1.149604398).contiguous()


op(dict(name="cdf97_lifting", text='''
def cdf97_lifting(float(B,L) X) -> (S, D) {
    D1(b, n) = X(b, 2*n + 1) - 1.586134342 * (X(b, 2*n) + (n < L/2 - 1 ? X(b, 2*n + 2) : X(b, 2*n))) where n in 0:L/2
    S1(b, n) = X(b, 2*n) - 0.05298011854 * (D1(b, n) + (n > 0 ? D1(b, n - 1) : D1(b, n))) where n in 0:L/2
    D2(b, n) = D1(b, n) + 0.8829110762 * (S1(b, n) + (n < L/2 - 1 ? S1(b, n + 1) : S1(b, n))) where n in 0:L/2
    S2(b, n) = S1(b, n) + 0.4435068522 * (D2(b, n) + (n > 0 ? D2(b, n - 1) : D2(b, n))) where n in 0:L/2
    S(b, n)  = S2(b, n) * 1.149604398
    D(b, n)  = D2(b, n) / 1.149604398
}''', args=lambda g: [rn(g, 1002, 96).T], torch=t_cdf97, tol=1e-5))


def t_mdct(X):
    n, k = torch.arange(128, dtype=f64)[:, None], torch.arange(64, dtype=f64)
    C = (torch.sin(math.pi / 128 * (n + 0.5)) * torch.cos(math.pi / 64 * (n + 32.5) * (k + 0.5))).float()
    return X.float().unfold(1, 128, 64) @ C


op(dict(name="mdct_sine_frames_bf16", text='''
def mdct_sine_frames_bf16(bfloat16(B,T) X) -> (Y) {
    Cs(n, k)     = float(sin(3.141592653589793 / 128.0 * (double(n) + 0.5)) * cos(3.141592653589793 / 64.0 * (double(n) + 32.5) * (double(k) + 0.5)))
        where n in 0:128, k in 0:64
    Y(b, f, k) +=! X(b, 64*f + n) * Cs(n, k)
}''', args=lambda g: [rn(g, 8, 64 * 101, dt=bf16)], torch=t_mdct, tol=2e-5))


# ---------------------------------------------------------------- images

def _bicubic_table(n, m):
    """For each of m pixels made of n, as Pillow has it: where to read, and the weights, which widen where there are fewer."""
    s = n / m
    c = (torch.arange(m, dtype=f64)[:, None] + 0.5) * s
    i = (c - 2 * s + 0.5).floor().long() + torch.arange(math.ceil(4 * s) + 1)
    x = ((i + 0.5 - c) / s).abs()
    w = torch.where(x < 1, (1.5 * x - 2.5) * x * x + 1, torch.where(x < 2, ((-0.5 * x + 2.5) * x - 4) * x + 2, 0.0))
    w = torch.where((i >= 0) & (i < n), w, 0.0)
    return i.clamp(0, n - 1).int(), (w / w.sum(1, keepdim=True)).float()


def t_pil(I, Ix, Wx, Iy, Wy):
    a = (I.float()[:, Ix.long()] * Wx[:, :, None]).sum(2)
    o = (a[Iy.long()] * Wy[:, :, None, None]).sum(1)
    return (o + 0.5).clamp(0, 255).to(u8)


op(dict(name="pil_bicubic_resize_u8", text='''
def pil_bicubic_resize_u8(uint8(H,W,3) I, int32(P,T) Ix, float(P,T) Wx, int32(Q,S) Iy, float(Q,S) Wy) -> (Z) {
    A(y, p, c) +=! Wx(p, t) * float(I(y, Ix(p, t), c))
    O(q, p, c) +=! Wy(q, s) * A(Iy(q, s), p, c)
    Z(q, p, c)   = uint8(clamp(O(q, p, c) + 0.5, 0.0, 255.0))
}''', args=lambda g: [ri(g, 0, 256, 180, 240, 3, dt=u8), *_bicubic_table(240, 133), *_bicubic_table(180, 101)], torch=t_pil, tol=6e-3))


def t_census_cost(Cl, Cr):
    H, W, K = Cl.shape
    c = torch.full((H, W, 24), K, dtype=i32)
    for d in range(24):
        c[:, d:, d] = (Cl[:, d:] != Cr[:, :W - d]).sum(2, dtype=i32)
    m = c.amin(2)
    return torch.where(c == m[..., None], torch.arange(24, dtype=i32), 24).amin(2), m


op(dict(name="census_cost_wta", text='''
def census_cost_wta(bool(H,W,K) Cl, bool(H,W,K) Cr) -> (Disp, Best) {
    C(y, x, d)  +=! x >= d ? (Cl(y, x, k) != Cr(y, x - d, k) ? 1 : 0) : 1 where x in 0:W, d in 0:24
    Best(y, x) min=! C(y, x, d)
    Disp(y, x) min=! C(y, x, d) == Best(y, x) ? d : 24
}''', args=lambda g: [ru(g, 110, 160, 24) < 0.5, ru(g, 110, 160, 24) < 0.5], torch=t_census_cost, tol=0.0))


# ---------------------------------------------------------------- tiny ones

def _pagerank_args(g):
    a = (ru(g, 12, 12) < 0.3).float()
    a[3] = 0.0
    return [a, torch.softmax(rn(g, 12), 0)]


def t_pagerank(A, X):
    deg = A.sum(1)
    out = deg > 0
    return 0.85 * (torch.where(out, X / deg, 0.0) @ A) + (0.85 * torch.where(out, 0.0, X).sum() + 0.15) / A.shape[0]


op(dict(name="pagerank_dangling_tiny", text='''
def pagerank_dangling_tiny(float(N,N) A, float(N) X) -> (Y) {
    Deg(i) +=! A(i, j)
    Dang   +=! Deg(i) > 0.0 ? 0.0 : X(i)
    Y(j)   +=! Deg(i) > 0.0 ? 0.85 * A(i, j) * X(i) / Deg(i) : 0.0
    Y(j)     = Y(j) + (0.85 * Dang + 0.15) / N
}''', args=_pagerank_args, torch=t_pagerank, tol=1e-5))


def t_haar(X):
    e = X[:, ::2]
    d = X[:, 1::2] - e
    return e + (d >> 1), d


op(dict(name="haar_integer_lifting_tiny", text='''
def haar_integer_lifting_tiny(int32(B,L) X) -> (S, D) {
    D(b, n) = X(b, 2*n + 1) - X(b, 2*n) where n in 0:L/2
    S(b, n) = X(b, 2*n) + D(b, n) / 2 where n in 0:L/2
}''', args=lambda g: [ri(g, -1000, 1000, 5, 16, dt=i32)], torch=t_haar, tol=0.0))


def t_hwe(Gt):
    N = Gt.shape[1]
    o = F.one_hot(Gt.long(), 3).sum(1).float()
    p = (o[:, 1] + 2 * o[:, 2]) / (2 * N)
    q = 1 - p
    e = N * torch.stack([q * q, 2 * p * q, p * p], 1)
    return o, ((o - e).square() / e).sum(1)


op(dict(name="hwe_chi2_tiny", text='''
def hwe_chi2_tiny(int8(S,N) Gt) -> (O, Chi) {
    O(s, g) +=! Gt(s, n) == g ? 1.0 : 0.0 where g in 0:3
    P(s)      = (O(s, 1) + 2.0 * O(s, 2)) / (2 * N)
    Ex(s, g)  = N * (g == 0 ? q * q : (g == 1 ? 2.0 * p * q : p * p)) where p = P(s), q = 1.0 - P(s), g in 0:3
    Chi(s)  +=! (O(s, g) - Ex(s, g)) * (O(s, g) - Ex(s, g)) / Ex(s, g)
}''', args=lambda g: [ri(g, 0, 3, 6, 20, dt=i8)], torch=t_hwe, tol=1e-4))
