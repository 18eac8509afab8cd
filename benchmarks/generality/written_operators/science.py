# ruff: noqa: E501, E741 (a table: tensors have the names of the texts)
"""Operators of science, signals, graphics, statistics, finance, graphs and databases; as in ``learning``."""
from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F

from generality.written_operators.operator import WrittenOperator

OPERATORS: list[WrittenOperator] = []
f32, f64, i32, i64, u8 = torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8


def rn(g, *s, dtype=f32):
    return torch.randn(*s, generator=g, dtype=dtype)


def ru(g, *s, dtype=f32):
    return torch.rand(*s, generator=g, dtype=dtype)


def ri(g, lo, hi, *s, dtype=i64):
    return torch.randint(lo, hi, s, generator=g, dtype=dtype)


def op(name, text, args, fn, tol=1e-4):
    OPERATORS.append(WrittenOperator(name, text, args, fn, tol))




# ---------------------------------------------------------------- graphs and semirings
op("min_plus", """
def min_plus(float(M,K) A, float(K,N) B) -> (C) {
    C(m, n) min=! A(m, k) + B(k, n)
}
""", lambda g: [ru(g, 203, 151), ru(g, 151, 187)],
   lambda A, B: (A[:, None, :] + B.T.contiguous()[None]).amin(2), 1e-6)

op("bool_reach", """
def bool_reach(bool(N,K) A, bool(K,M) B) -> (R) {
    R(i, j) max=! A(i, k) && B(k, j)
}
""", lambda g: [ru(g, 257, 301) < 0.05, ru(g, 301, 190) < 0.05],
   lambda A, B: (A.float() @ B.float()) > 0, 0.0)

op("floyd_step", """
def floyd_step(float(N,N) D, int64(1) P) -> (O) {
    O(i, j) = min(D(i, j), D(i, P(0)) + D(P(0), j))
}
""", lambda g: [ru(g, 701, 701), ri(g, 0, 701, 1)],
   lambda D, P: torch.minimum(D, D[:, P] + D[P]), 1e-6)

# ---------------------------------------------------------------- particles and kernels
def _nbody(X, m):
    d = X[None] - X[:, None]
    r2 = d.square().sum(2) + 0.01
    w = m * r2.pow(-1.5)
    return w @ X - w.sum(1, keepdim=True) * X


op("nbody_forces", """
def nbody_forces(double(N,D) X, double(N) m) -> (A) {
    R(i, j) +=! (X(j, d) - X(i, d)) * (X(j, d) - X(i, d))
    W(i, j)   = m(j) / ((R(i, j) + 0.01) * sqrt(R(i, j) + 0.01))
    A(i, d) +=! W(i, j) * (X(j, d) - X(i, d))
}
""", lambda g: [rn(g, 613, 3, dtype=f64), ru(g, 613, dtype=f64)], _nbody, 1e-9)


def _lattice(g, n, dtype=f32):
    i = torch.arange(n)
    return torch.stack([i % 8, (i // 8) % 8, i // 64], 1).to(dtype) * 1.1 + 0.1 * ru(g, n, 3, dtype=dtype)


def _lj(X):
    r2 = (X[:, None] - X[None]).square().sum(2)
    r2.fill_diagonal_(math.inf)
    s = r2.reciprocal() ** 3
    return torch.where(r2 < 6.25, 4 * (s * s - s), 0.0).sum(1)


op("lennard_jones", """
def lennard_jones(float(N,3) X) -> (E) {
    R(i, j) +=! (X(i, d) - X(j, d)) * (X(i, d) - X(j, d))
    E(i)    +=! (i != j && R(i, j) < 6.25) ? 4.0 * (s*s - s) : 0.0
        where q = 1.0 / R(i, j), s = q*q*q
}
""", lambda g: [_lattice(g, 450)], _lj, 1e-3)

op("kde_1d", """
def kde_1d(double(Q) X, double(N) S, double(1) h) -> (Y) {
    Y(q) +=! exp(-0.5 * ((X(q) - S(n)) / h(0)) * ((X(q) - S(n)) / h(0)))
    Y(q)   = Y(q) / (N * h(0) * 2.5066282746310002)
}
""", lambda g: [torch.linspace(-3, 3, 501, dtype=f64), rn(g, 2777, dtype=f64), torch.tensor([0.2], dtype=f64)],
   lambda X, S, h: torch.exp(-0.5 * ((X[:, None] - S) / h).square()).sum(1) / (len(S) * h * math.sqrt(2 * math.pi)), 1e-9)

op("rbf_matvec", """
def rbf_matvec(float(N,D) X, float(M,D) Z, float(M) v) -> (Y) {
    R(i, j) +=! (X(i, d) - Z(j, d)) * (X(i, d) - Z(j, d))
    Y(i)    +=! exp(-0.5 * R(i, j)) * v(j)
}
""", lambda g: [rn(g, 901, 5), rn(g, 640, 5), rn(g, 640)],
   lambda X, Z, v: torch.exp(-0.5 * torch.cdist(X, Z).square()) @ v, 1e-3)

# ---------------------------------------------------------------- structured matrices
op("toeplitz", """
def toeplitz(float(L) T, float(N,B) X) -> (Y) {
    Y(i, b) +=! T(i - j + N - 1) * X(j, b) where i in 0:N
}
""", lambda g: [rn(g, 601), rn(g, 301, 7)],
   lambda T, X: T.unfold(0, len(X), 1) @ X.flip(0), 1e-3)

op("circulant", """
def circulant(double(N) C, double(B,N) X) -> (Y) {
    Y(b, i) +=! C((i - j) % N) * X(b, j) where i in 0:N
}
""", lambda g: [rn(g, 509, dtype=f64), rn(g, 12, 509, dtype=f64)],
   lambda C, X: torch.fft.irfft(torch.fft.rfft(C) * torch.fft.rfft(X), n=len(C)), 1e-9)

op("banded_matvec", """
def banded_matvec(double(N,K) A, double(N) X) -> (Y) {
    Y(i) +=! (i + k >= 5 && i + k < N + 5) ? A(i, k) * X(i + k - 5) : 0.0
}
""", lambda g: [rn(g, 30001, 11, dtype=f64), rn(g, 30001, dtype=f64)],
   lambda A, X: (A * F.pad(X, (5, 5)).unfold(0, 11, 1)).sum(1), 1e-9)

op("block_diagonal", """
def block_diagonal(float(N,G,J) X, float(G,I,J) W) -> (Y) {
    Y(n, g, i) +=! W(g, i, j) * X(n, g, j)
}
""", lambda g: [rn(g, 12, 129, 33).permute(1, 0, 2), rn(g, 12, 40, 33)],
   lambda X, W: torch.einsum("gij,ngj->ngi", W, X), 1e-4)

op("ell_matmat", """
def ell_matmat(float(N,K) V, int32(N,K) J, float(M,C) X) -> (Y) {
    Y(i, c) +=! V(i, k) * X(J(i, k), c)
}
""", lambda g: [rn(g, 5003, 9), ri(g, 0, 4100, 5003, 9, dtype=i32), rn(g, 4100, 5)],
   lambda V, J, X: (V[:, None, :] @ X[J]).squeeze(1), 1e-4)

# ---------------------------------------------------------------- polynomials, transforms, filters
def _horner(X, C):
    y = C[-1].expand_as(X)
    for k in range(len(C) - 2, -1, -1):
        y = torch.addcmul(C[k], y, X)
    return y


op("vandermonde_eval", """
def vandermonde_eval(double(N) X, double(K) C) -> (Y) {
    Y(i) +=! C(k) * pow(X(i), k)
}
""", lambda g: [3 * ru(g, 40001, dtype=f64) - 1.5, rn(g, 9, dtype=f64)], _horner, 1e-9)

op("dft_power", """
def dft_power(double(B,N) X) -> (P) {
    Re(b, k) +=! X(b, n) * cos(6.283185307179586 * double((k*n) % N) / N) where k in 0:N/2 + 1
    Im(b, k) +=! X(b, n) * sin(6.283185307179586 * double((k*n) % N) / N) where k in 0:N/2 + 1
    P(b, k)    = Re(b, k) * Re(b, k) + Im(b, k) * Im(b, k)
}
""", lambda g: [rn(g, 47, 202, dtype=f64)],
   lambda X: torch.view_as_real(torch.fft.rfft(X)).square().sum(-1), 1e-9)

op("fir_decimate", """
def fir_decimate(float(C,N) X, float(K) H) -> (Y) {
    Y(c, i) +=! X(c, 4*i + k) * H(k)
}
""", lambda g: [rn(g, 21, 16003), rn(g, 33)],
   lambda X, H: F.conv1d(X[:, None], H[None, None], stride=4)[:, 0], 1e-3)

op("autocorrelation", """
def autocorrelation(float(T,C) X) -> (R) {
    R(c, l) +=! (t + l < T) ? X(t, c) * X(t + l, c) : 0.0 where l in 0:50, t in 0:T
}
""", lambda g: [rn(g, 18, 1201).T],
   lambda X: torch.einsum("ct,ctl->cl", X.T, F.pad(X.T, (0, 49)).unfold(1, 50, 1)), 1e-3)

op("ema_rows", """
def ema_rows(double(B,T) X) -> (Y) {
    Y(b, t) +=! (s <= t) ? 0.1 * pow(0.9, double(t - s)) * X(b, s) : 0.0 where t in 0:T
}
""", lambda g: [rn(g, 63, 251, dtype=f64)],
   lambda X: X @ (0.1 * torch.tensor(0.9, dtype=f64) ** (
       torch.arange(X.shape[1])[None] - torch.arange(X.shape[1])[:, None]).clamp(min=0)).triu(), 1e-7)

op("running_max", """
def running_max(float(B,N) X) -> (Y) {
    Y(b, i) max=! (j <= i) ? X(b, j) : -infinity() where i in 0:N
}
""", lambda g: [rn(g, 41, 307)], lambda X: torch.cummax(X, 1).values, 1e-6)

# ---------------------------------------------------------------- images
op("separable_blur", """
def separable_blur(double(H,W) I, double(K) G) -> (O) {
    T(y, x) +=! I(y, x + k) * G(k)
    O(y, x) +=! T(y + k, x) * G(k)
}
""", lambda g: [ru(g, 517, 643, dtype=f64), torch.softmax(rn(g, 9, dtype=f64), 0)],
   lambda I, G: F.conv2d(F.conv2d(I[None, None], G[None, None, None, :]), G[None, None, :, None])[0, 0], 1e-9)


def _sobel(I):
    a = I[:-2] + 2 * I[1:-1] + I[2:]
    d = I[2:] - I[:-2]
    gx = a[:, 2:] - a[:, :-2]
    gy = d[:, :-2] + 2 * d[:, 1:-1] + d[:, 2:]
    return torch.hypot(gx, gy)


op("sobel", """
def sobel(float(H,W) I) -> (M) {
    Gx(y, x) = I(y, x+2) - I(y, x) + 2*(I(y+1, x+2) - I(y+1, x)) + I(y+2, x+2) - I(y+2, x)
    Gy(y, x) = I(y+2, x) - I(y, x) + 2*(I(y+2, x+1) - I(y, x+1)) + I(y+2, x+2) - I(y, x+2)
    M(y, x)  = sqrt(Gx(y, x)*Gx(y, x) + Gy(y, x)*Gy(y, x))
}
""", lambda g: [ru(g, 601, 799)], _sobel, 1e-4)


def _bilateral(I, S):
    p = I.unfold(0, 5, 1).unfold(1, 5, 1)
    w = torch.exp(-20 * (p - I[2:-2, 2:-2, None, None]).square()) * S
    return (w * p).sum((2, 3)) / w.sum((2, 3))


op("bilateral", """
def bilateral(float(H,W) I, float(5,5) S) -> (O) {
    N(y, x) +=! S(a, b) * exp(-20.0 * d * d) * I(y + a, x + b) where d = I(y + a, x + b) - I(y + 2, x + 2), a in 0:5, b in 0:5
    D(y, x) +=! S(a, b) * exp(-20.0 * d * d) where d = I(y + a, x + b) - I(y + 2, x + 2), a in 0:5, b in 0:5
    O(y, x)   = N(y, x) / D(y, x)
}
""", lambda g: [ru(g, 243, 321), ru(g, 5, 5)], _bilateral, 1e-4)


def _dilate(I):
    h = functools.reduce(torch.maximum, [I[:, k:I.shape[1] - 4 + k] for k in range(5)])
    return functools.reduce(torch.maximum, [h[k:h.shape[0] - 4 + k] for k in range(5)])


op("dilate_u8", """
def dilate_u8(uint8(H,W) I) -> (O) {
    O(y, x) max=! I(y + a, x + b) where a in 0:5, b in 0:5
}
""", lambda g: [ri(g, 0, 256, 484, 650, dtype=u8)[:, 5:-4]], _dilate, 0.0)

op("summed_area", """
def summed_area(double(H,W) I) -> (S) {
    R(y, x) +=! (b <= x) ? I(y, b) : 0.0 where x in 0:W
    S(y, x) +=! (a <= y) ? R(a, x) : 0.0 where y in 0:H
}
""", lambda g: [ru(g, 190, 233, dtype=f64)], lambda I: I.cumsum(1).cumsum(0), 1e-9)


def _clamped(I):
    p = F.pad(I[None], (1, 1, 1, 1), mode="replicate")[0]
    return 0.5 * (p[1:-1, 2:] - p[1:-1, :-2]), 0.5 * (p[2:, 1:-1] - p[:-2, 1:-1])


op("gradient_clamped", """
def gradient_clamped(float(H,W) I) -> (Gx, Gy) {
    Gx(y, x) = 0.5 * ((x + 1 < W ? I(y, x + 1) : I(y, x)) - (x > 0 ? I(y, x - 1) : I(y, x))) where x in 0:W
    Gy(y, x) = 0.5 * ((y + 1 < H ? I(y + 1, x) : I(y, x)) - (y > 0 ? I(y - 1, x) : I(y, x))) where y in 0:H
}
""", lambda g: [ru(g, 411, 733)], _clamped, 1e-5)

op("rgb_to_ycbcr", """
def rgb_to_ycbcr(uint8(H,W,3) I, float(3,3) M, float(3) o) -> (Y) {
    Y(y, x, c) +=! M(c, d) * (float(I(y, x, d)) / 255.0)
    Y(y, x, c)   = Y(y, x, c) + o(c)
}
""", lambda g: [ri(g, 0, 256, 361, 480, 3, dtype=u8), rn(g, 3, 3), rn(g, 3)],
   lambda I, M, o: (I.float() / 255) @ M.T + o, 1e-4)


def _bilinear(I, P):
    C, H, W = I.shape
    q = P.flip(1) * torch.tensor([2 / (W - 1), 2 / (H - 1)]) - 1
    return F.grid_sample(I[None], q[None, None], align_corners=True)[0, :, 0].T


op("bilinear_sample", """
def bilinear_sample(float(C,H,W) I, float(N,2) P) -> (O) {
    Y(n)    = int32(floor(P(n, 0)))
    X(n)    = int32(floor(P(n, 1)))
    O(n, c) = (1.0 - v) * ((1.0 - u) * I(c, Y(n), X(n))     + u * I(c, Y(n), X(n) + 1))
            +        v  * ((1.0 - u) * I(c, Y(n) + 1, X(n)) + u * I(c, Y(n) + 1, X(n) + 1))
        where v = P(n, 0) - Y(n), u = P(n, 1) - X(n)
}
""", lambda g: [rn(g, 3, 151, 203), ru(g, 20011, 2) * torch.tensor([149.9, 201.9])], _bilinear, 1e-3)

# ---------------------------------------------------------------- geometry
op("mat3_chain", """
def mat3_chain(double(B,3,3) P, double(B,3,3) Q, double(B,3,3) S) -> (C) {
    T(b, i, j) +=! P(b, i, k) * Q(b, k, j)
    C(b, i, j) +=! T(b, i, k) * S(b, j, k)
}
""", lambda g: [rn(g, 9001, 3, 3, dtype=f64), rn(g, 9001, 3, 3, dtype=f64), rn(g, 9001, 3, 3, dtype=f64)],
   lambda P, Q, S: P @ Q @ S.mT, 1e-9)

op("skinning", """
def skinning(float(V,J) W, float(J,3,4) T, float(V,4) X) -> (Y) {
    Y(v, i) +=! W(v, j) * T(j, i, k) * X(v, k)
}
""", lambda g: [torch.softmax(rn(g, 6890, 24), 1), rn(g, 24, 3, 4), rn(g, 6890, 4)],
   lambda W, T, X: ((W @ T.flatten(1)).view(-1, 3, 4) @ X[:, :, None]).squeeze(2), 1e-4)


def _normals(V, Fc):
    a, b, c = V[Fc[:, 0]], V[Fc[:, 1]], V[Fc[:, 2]]
    return F.normalize(torch.linalg.cross(b - a, c - a), dim=1)


op("face_normals", """
def face_normals(float(P,3) V, int64(T,3) Tri) -> (N) {
    A(f, d) = V(Tri(f, 1), d) - V(Tri(f, 0), d)
    B(f, d) = V(Tri(f, 2), d) - V(Tri(f, 0), d)
    C(f, d) = A(f, (d + 1) % 3) * B(f, (d + 2) % 3) - A(f, (d + 2) % 3) * B(f, (d + 1) % 3) where d in 0:3
    L(f)  +=! C(f, d) * C(f, d)
    N(f, d) = C(f, d) / max(sqrt(L(f)), 1e-12)
}
""", lambda g: [rn(g, 12000, 3), torch.rand(24001, 12000 // 100, generator=g).argsort(1)[:, :3] * 97], _normals, 1e-3)


def _quat_rotate(Q, V):
    w, u = Q[:, :1], Q[:, 1:]
    t = 2 * torch.linalg.cross(u, V)
    return V + w * t + torch.linalg.cross(u, t)


op("quaternion_rotate", """
def quaternion_rotate(double(N,4) Q, double(N,3) V) -> (O) {
    T(n, d) = 2.0 * (Q(n, 1 + (d + 1) % 3) * V(n, (d + 2) % 3) - Q(n, 1 + (d + 2) % 3) * V(n, (d + 1) % 3)) where d in 0:3
    O(n, d) = V(n, d) + Q(n, 0) * T(n, d) + Q(n, 1 + (d + 1) % 3) * T(n, (d + 2) % 3) - Q(n, 1 + (d + 2) % 3) * T(n, (d + 1) % 3)
        where d in 0:3
}
""", lambda g: [F.normalize(rn(g, 17001, 4, dtype=f64), dim=1), rn(g, 17001, 3, dtype=f64)], _quat_rotate, 1e-9)

op("hausdorff", """
def hausdorff(double(N,3) A, double(M,3) B) -> (H) {
    D(i, j)  +=! (A(i, d) - B(j, d)) * (A(i, d) - B(j, d))
    P(i)    min=! D(i, j)
    H       max=! P(i)
    H           = sqrt(H)
}
""", lambda g: [rn(g, 703, 3, dtype=f64), rn(g, 511, 3, dtype=f64)],
   lambda A, B: torch.cdist(A, B).amin(1).amax(), 1e-7)

# ---------------------------------------------------------------- differential equations
def _varlap(U, K):
    c, k = U[1:-1, 1:-1, 1:-1], K[1:-1, 1:-1, 1:-1]
    out = torch.zeros_like(c)
    for axis in range(3):
        for lo in (0, 2):
            s = [slice(1, -1)] * 3
            s[axis] = slice(lo, U.shape[axis] - 2 + lo)
            out += 0.5 * (K[tuple(s)] + k) * (U[tuple(s)] - c)
    return out


op("laplacian_3d_varying", """
def laplacian_3d_varying(double(X,Y,Z) U, double(X,Y,Z) K) -> (O) {
    O(i, j, k) = 0.5 * ( (K(i+2, j+1, k+1) + c) * (U(i+2, j+1, k+1) - u) + (K(i, j+1, k+1) + c) * (U(i, j+1, k+1) - u)
                       + (K(i+1, j+2, k+1) + c) * (U(i+1, j+2, k+1) - u) + (K(i+1, j, k+1) + c) * (U(i+1, j, k+1) - u)
                       + (K(i+1, j+1, k+2) + c) * (U(i+1, j+1, k+2) - u) + (K(i+1, j+1, k) + c) * (U(i+1, j+1, k) - u))
        where c = K(i+1, j+1, k+1), u = U(i+1, j+1, k+1)
}
""", lambda g: [rn(g, 65, 63, 71, dtype=f64), ru(g, 65, 63, 71, dtype=f64)], _varlap, 1e-9)

op("heat_periodic", """
def heat_periodic(float(H,W) U) -> (V) {
    V(i, j) = U(i, j) + 0.1 * (U((i + 1) % H, j) + U((i - 1) % H, j) + U(i, (j + 1) % W) + U(i, (j - 1) % W) - 4.0 * U(i, j))
        where i in 0:H, j in 0:W
}
""", lambda g: [rn(g, 511, 387)],
   lambda U: U + 0.1 * (U.roll(-1, 0) + U.roll(1, 0) + U.roll(-1, 1) + U.roll(1, 1) - 4 * U), 1e-5)


def _lbm(f, c, w):
    rho = f.sum(0)
    u = torch.einsum("qd,qyx->dyx", c, f) / rho
    cu = torch.einsum("qd,dyx->qyx", c, u)
    uu = u.square().sum(0)
    eq = w[:, None, None] * rho * (1 + 3 * cu + 4.5 * cu.square() - 1.5 * uu)
    return f + 0.8 * (eq - f)


op("lattice_boltzmann", """
def lattice_boltzmann(float(Q,H,W) f, float(Q,2) c, float(Q) w) -> (O) {
    R(y, x)    +=! f(q, y, x)
    U(d, y, x) +=! c(q, d) * f(q, y, x)
    E(q, y, x) +=! c(q, d) * U(d, y, x) / R(y, x)
    S(y, x)    +=! (U(d, y, x) / R(y, x)) * (U(d, y, x) / R(y, x))
    O(q, y, x)   = f(q, y, x) + 0.8 * (w(q) * R(y, x) * (1.0 + 3.0 * E(q, y, x) + 4.5 * E(q, y, x) * E(q, y, x) - 1.5 * S(y, x)) - f(q, y, x))
}
""", lambda g: [ru(g, 9, 131, 203) + 0.5,
                torch.tensor([[0, 0], [1, 0], [0, 1], [-1, 0], [0, -1], [1, 1], [-1, 1], [-1, -1], [1, -1]], dtype=f32),
                torch.tensor([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4, dtype=f32)], _lbm, 1e-4)


def _fdtd(E, Hx, Hy):
    hx = Hx - 0.5 * (E[:, 1:] - E[:, :-1])
    hy = Hy + 0.5 * (E[1:] - E[:-1])
    e = E.clone()
    e[1:-1, 1:-1] += 0.5 * ((hy[1:, 1:-1] - hy[:-1, 1:-1]) - (hx[1:-1, 1:] - hx[1:-1, :-1]))
    return e, hx, hy


op("fdtd_tm", """
def fdtd_tm(double(X,Y) E, double(X,Y-1) Hx, double(X-1,Y) Hy) -> (En, Hxn, Hyn) {
    Hxn(i, j) = Hx(i, j) - 0.5 * (E(i, j + 1) - E(i, j))
    Hyn(i, j) = Hy(i, j) + 0.5 * (E(i + 1, j) - E(i, j))
    En(i, j)  = E(i, j) + ((i > 0 && i < X - 1 && j > 0 && j < Y - 1)
              ? 0.5 * (Hyn(i, j) - Hyn(i - 1, j) - Hxn(i, j) + Hxn(i, j - 1)) : 0.0) where i in 0:X, j in 0:Y
}
""", lambda g: [rn(g, 401, 333, dtype=f64), rn(g, 401, 332, dtype=f64), rn(g, 400, 333, dtype=f64)], _fdtd, 1e-9)

op("fem_stiffness", """
def fem_stiffness(double(E,Q) w, double(E,Q,A,I) B, double(A,A) D) -> (K) {
    K(e, i, j) +=! w(e, q) * B(e, q, a, i) * D(a, b) * B(e, q, b, j)
}
""", lambda g: [ru(g, 310, 8, dtype=f64), rn(g, 310, 8, 6, 24, dtype=f64), rn(g, 6, 6, dtype=f64)],
   lambda w, B, D: (B * w[:, :, None, None]).flatten(1, 2).mT @ (D @ B).flatten(1, 2), 1e-9)

op("spectral_gradient", """
def spectral_gradient(double(E,N,N,N) U, double(N,N) D) -> (Ur, Us, Ut) {
    Ur(e, i, j, k) +=! D(i, a) * U(e, a, j, k)
    Us(e, i, j, k) +=! D(j, a) * U(e, i, a, k)
    Ut(e, i, j, k) +=! D(k, a) * U(e, i, j, a)
}
""", lambda g: [rn(g, 350, 7, 7, 7, dtype=f64), rn(g, 7, 7, dtype=f64)],
   lambda U, D: ((D @ U.flatten(2)).view_as(U), D @ U, U @ D.T), 1e-9)

# ---------------------------------------------------------------- tensor contractions
op("ccsd_ring", """
def ccsd_ring(double(O,O,V,V) T, double(O,V,V,O) W) -> (R) {
    R(i, j, a, b) +=! T(i, k, a, c) * W(k, b, c, j)
}
""", lambda g: [rn(g, 9, 9, 21, 21, dtype=f64), rn(g, 9, 9, 21, 21, dtype=f64).permute(0, 2, 3, 1)],
   lambda T, W: torch.einsum("ikac,kbcj->ijab", T, W), 1e-9)

op("mttkrp", """
def mttkrp(float(I,J,K) X, float(J,R) B, float(K,R) C) -> (M) {
    M(i, r) +=! X(i, j, k) * B(j, r) * C(k, r)
}
""", lambda g: [rn(g, 61, 73, 147), rn(g, 73, 16), rn(g, 147, 16)],
   lambda X, B, C: torch.einsum("ijr,jr->ir", X @ C, B), 1e-3)

op("hf_coulomb_exchange", """
def hf_coulomb_exchange(double(N,N,N,N) I, double(N,N) D) -> (J, K) {
    J(p, q) +=! I(p, q, r, s) * D(r, s)
    K(p, q) +=! I(p, r, q, s) * D(r, s)
}
""", lambda g: [rn(g, 27, 27, 27, 27, dtype=f64), rn(g, 27, 27, dtype=f64)],
   lambda I, D: (torch.mv(I.reshape(27 * 27, -1), D.reshape(-1)).view(27, 27), torch.einsum("prqs,rs->pq", I, D)), 1e-9)

# ---------------------------------------------------------------- finance
def _bs(S, K, T, v):
    st = v * T.sqrt()
    d1 = (torch.log(S / K) + (0.03 + 0.5 * v * v) * T) / st
    n1, n2 = torch.special.ndtr(d1), torch.special.ndtr(d1 - st)
    return S * n1 - K * torch.exp(-0.03 * T) * n2, n1, S * torch.exp(-0.5 * d1 * d1) * T.sqrt() * (1 / math.sqrt(2 * math.pi))


op("black_scholes", """
def black_scholes(double(N) S, double(N) K, double(N) T, double(N) v) -> (C, Delta, Vega) {
    D(i)     = (log(S(i) / K(i)) + (0.03 + 0.5 * v(i) * v(i)) * T(i)) / (v(i) * sqrt(T(i)))
    Delta(i) = normcdf(D(i))
    C(i)     = S(i) * Delta(i) - K(i) * exp(-0.03 * T(i)) * normcdf(D(i) - v(i) * sqrt(T(i)))
    Vega(i)  = S(i) * exp(-0.5 * D(i) * D(i)) * sqrt(T(i)) * 0.3989422804014327
}
""", lambda g: [80 + 40 * ru(g, 50021, dtype=f64), 80 + 40 * ru(g, 50021, dtype=f64), 0.1 + ru(g, 50021, dtype=f64),
                0.1 + 0.3 * ru(g, 50021, dtype=f64)], _bs, 1e-7)

op("asian_payoff", """
def asian_payoff(float(P,T) Z, float(1) K) -> (V) {
    A(p) +=! Z(p, t)
    V    +=! max(A(p) / T - K(0), 0.0) / P
}
""", lambda g: [(100 + 10 * rn(g, 63, 30011)).T, torch.tensor([100.0])],
   lambda Z, K: torch.relu(Z.mean(1) - K).mean(), 1e-3)

# ---------------------------------------------------------------- statistics
op("covariance", """
def covariance(double(N,D) X) -> (C) {
    M(d)    +=! X(n, d)
    C(a, b) +=! (X(n, a) - M(a) / N) * (X(n, b) - M(b) / N)
    C(a, b)   = C(a, b) / (N - 1)
}
""", lambda g: [rn(g, 1503, 67, dtype=f64)], lambda X: torch.cov(X.T), 1e-9)

op("mahalanobis", """
def mahalanobis(float(N,D) X, float(D) m, float(D,D) P) -> (Q) {
    Q(n) +=! (X(n, i) - m(i)) * P(i, j) * (X(n, j) - m(j))
}
""", lambda g: [rn(g, 5003, 24), rn(g, 24), (lambda a: a @ a.T)(rn(g, 24, 24))],
   lambda X, m, P: (((X - m) @ P) * (X - m)).sum(1), 1e-3)

op("wls_normal", """
def wls_normal(double(N,D) X, double(N) w, double(N) y) -> (A, b) {
    A(i, j) +=! X(n, i) * w(n) * X(n, j)
    b(i)    +=! X(n, i) * w(n) * y(n)
}
""", lambda g: [rn(g, 4001, 23, dtype=f64), ru(g, 4001, dtype=f64), rn(g, 4001, dtype=f64)],
   lambda X, w, y: ((X * w[:, None]).T @ X, X.T @ (w * y)), 1e-9)

# ---------------------------------------------------------------- databases and integers
op("joint_histogram", """
def joint_histogram(int64(N) A, int64(N) B) -> (int32(60,41) H) {
    H(A(n), B(n)) +=! 1
}
""", lambda g: [ri(g, 0, 60, 200003), ri(g, 0, 41, 200003)],
   lambda A, B: torch.bincount(A * 41 + B, minlength=60 * 41).view(60, 41).int(), 0.0)

op("group_max", """
def group_max(int64(N) G, float(N,D) X, float(V) Like) -> (M) {
    M(G(n), d) max=! X(n, d) where G(n) in 0:V
}
""", lambda g: [ri(g, 0, 311, 20011), rn(g, 20011, 13), torch.zeros(311)],
   lambda G, X, L: torch.full((len(L), X.shape[1]), -math.inf).scatter_reduce(0, G[:, None].expand_as(X), X, "amax"), 1e-6)

op("join_revenue", """
def join_revenue(double(I) Price, int32(N) Item, int64(N) Customer, int32(N) Qty) -> (double(2003) R) {
    R(Customer(n)) +=! Price(Item(n)) * Qty(n)
}
""", lambda g: [ru(g, 5000, dtype=f64), ri(g, 0, 5000, 100003, dtype=i32), ri(g, 0, 2003, 100003), ri(g, 1, 9, 100003, dtype=i32)],
   lambda P, I, C, Q: torch.zeros(2003, dtype=f64).index_add(0, C, P[I] * Q), 1e-9)

op("hamming", """
def hamming(uint8(N,L) A, uint8(M,L) B) -> (D) {
    D(i, j) +=! (A(i, l) != B(j, l)) ? 1 : 0
}
""", lambda g: [ri(g, 0, 4, 301, 37, dtype=u8), ri(g, 0, 4, 250, 37, dtype=u8)],
   lambda A, B: (A[:, None] != B).sum(2, dtype=i32), 0.0)

# ================================================================ further ones, beyond the 45
op("ranks", """
def ranks(double(N) X) -> (R) {
    R(i) +=! (X(j) < X(i) || (X(j) == X(i) && j < i)) ? 1 : 0
}
""", lambda g: [rn(g, 1901, dtype=f64)],
   lambda X: torch.empty(len(X), dtype=i32).scatter_(0, X.argsort(stable=True), torch.arange(len(X), dtype=i32)), 0.0)

op("searchsorted_count", """
def searchsorted_count(int32(M) S, int32(Q) X) -> (P) {
    P(q) +=! (S(j) < X(q)) ? 1 : 0
}
""", lambda g: [ri(g, 0, 10000, 1201, dtype=i32).sort().values, ri(g, 0, 10000, 3001, dtype=i32)],
   lambda S, X: torch.searchsorted(S, X, out_int32=True), 0.0)

op("popcount", """
def popcount(int32(N) X, int32(K) Pow) -> (C) {
    C(n) +=! (X(n) / Pow(k)) % 2
}
""", lambda g: [ri(g, 0, 2**31 - 1, 20001, dtype=i32), 2 ** torch.arange(31, dtype=i32)],
   lambda X, Pow: ((X[:, None] // Pow) % 2).sum(1, dtype=i32), 0.0)

op("hash_noise", """
def hash_noise(int64(H) Y, int64(W) X) -> (N) {
    B(y, x) = (X(x) * 374761393 + Y(y) * 668265263) % 2147483647
    N(y, x) = 1.0 - ((B(y, x) * (B(y, x) * B(y, x) % 2147483647 * 15731 + 789221) + 1376312589) % 2147483648) / 1073741824.0
}
""", lambda g: [ri(g, 0, 1000, 311), ri(g, 0, 1000, 405)],
   lambda Y, X: (lambda h: 1.0 - ((h * (h * h % 2147483647 * 15731 + 789221) + 1376312589) % 2147483648) / 1073741824.0)(
       (X[None] * 374761393 + Y[:, None] * 668265263) % 2147483647), 1e-5)

op("kmeans_assign", """
def kmeans_assign(double(N,D) X, double(K,D) C) -> (A, M) {
    R(n, k) +=! (X(n, d) - C(k, d)) * (X(n, d) - C(k, d))
    M(n)    min=! R(n, k)
    A(n)    min=! (R(n, k) == M(n)) ? k : K
}
""", lambda g: [rn(g, 3001, 11, dtype=f64), rn(g, 37, 11, dtype=f64)],
   lambda X, C: (lambda m: (m.indices.int(), m.values.square()))(torch.cdist(X, C).min(1)), 1e-7)

op("tucker", """
def tucker(float(P,Q,R) G, float(I,P) A, float(J,Q) B, float(K,R) C) -> (X) {
    X(i, j, k) +=! G(p, q, r) * A(i, p) * B(j, q) * C(k, r)
}
""", lambda g: [rn(g, 7, 9, 6), rn(g, 53, 7), rn(g, 61, 9), rn(g, 77, 6)],
   lambda G, A, B, C: torch.einsum("pqr,ip,jq,kr->ijk", G, A, B, C), 1e-3)

op("khatri_rao", """
def khatri_rao(float(I,R) A, float(J,R) B) -> (K) {
    K(p, r) = A(p / J, r) * B(p % J, r) where p in 0:I*J
}
""", lambda g: [rn(g, 121, 13), rn(g, 87, 13)], lambda A, B: (A[:, None] * B).flatten(0, 1), 1e-6)

op("det3", """
def det3(double(B,3,3) A) -> (D) {
    D(b) = A(b,0,0) * (A(b,1,1)*A(b,2,2) - A(b,1,2)*A(b,2,1))
         - A(b,0,1) * (A(b,1,0)*A(b,2,2) - A(b,1,2)*A(b,2,0))
         + A(b,0,2) * (A(b,1,0)*A(b,2,1) - A(b,1,1)*A(b,2,0))
}
""", lambda g: [rn(g, 3, 3, 30011, dtype=f64).permute(2, 0, 1)],
   lambda A: (A[:, 0] * torch.linalg.cross(A[:, 1], A[:, 2])).sum(1), 1e-8)

op("srgb_gamma", """
def srgb_gamma(float(H,W,C) I) -> (O) {
    O(y, x, c) = I(y, x, c) <= 0.0031308 ? 12.92 * I(y, x, c) : 1.055 * pow(I(y, x, c), 0.4166666667) - 0.055
}
""", lambda g: [ru(g, 240, 321, 3)],
   lambda I: torch.where(I <= 0.0031308, 12.92 * I, 1.055 * I.pow(1 / 2.4) - 0.055), 1e-4)

op("alpha_blend", """
def alpha_blend(float(H,W) A, float(H,W,3) P, float(H,W,3) Q) -> (O) {
    O(y, x, c) = A(y, x) * P(y, x, c) + (1.0 - A(y, x)) * Q(y, x, c)
}
""", lambda g: [ru(g, 300, 413), ru(g, 320, 413, 3)[11:311], ru(g, 3, 300, 413).permute(1, 2, 0)],
   lambda A, P, Q: torch.lerp(Q, P, A[..., None]), 1e-5)

op("upsample_nearest", """
def upsample_nearest(float(C,H,W) X) -> (Y) {
    Y(c, y, x) = X(c, y / 3, x / 2) where y in 0:3*H, x in 0:2*W
}
""", lambda g: [rn(g, 5, 71, 93)],
   lambda X: F.interpolate(X[None], size=(213, 186), mode="nearest")[0], 0.0)

op("zscore", """
def zscore(float(N,D) X) -> (Z) {
    M(d)  +=! X(n, d)
    S(d)  +=! (X(n, d) - M(d) / N) * (X(n, d) - M(d) / N)
    Z(n, d) = (X(n, d) - M(d) / N) * rsqrt(S(d) / (N - 1))
}
""", lambda g: [rn(g, 3001, 101)], lambda X: (lambda s, m: (X - m) / s)(*torch.std_mean(X, 0)), 1e-3)

op("moving_average", """
def moving_average(float(B,N) X) -> (Y) {
    Y(b, i) +=! X(b, i + k) / 12.0 where k in 0:12
}
""", lambda g: [rn(g, 77, 3003)], lambda X: F.avg_pool1d(X[:, None], 12, 1)[:, 0], 1e-4)

op("triangular_residual", """
def triangular_residual(float(N,N) L, float(N,C) X, float(N,C) B) -> (R) {
    S(i, c) +=! (j <= i) ? L(i, j) * X(j, c) : 0.0
    R(i, c)   = B(i, c) - S(i, c)
}
""", lambda g: [rn(g, 411, 411), rn(g, 411, 19), rn(g, 411, 19)], lambda L, X, B: B - L.tril() @ X, 1e-3)

op("tridiagonal", """
def tridiagonal(float(B,N) L, float(B,N) D, float(B,N) U, float(B,N) X) -> (Y) {
    Y(b, i) = D(b, i) * X(b, i) + (i > 0 ? L(b, i) * X(b, i - 1) : 0.0) + (i < N - 1 ? U(b, i) * X(b, i + 1) : 0.0) where i in 0:N
}
""", lambda g: [rn(g, 50, 2001) for _ in range(4)],
   lambda L, D, U, X: (lambda y: (y[:, 1:].addcmul_(L[:, 1:], X[:, :-1]), y[:, :-1].addcmul_(U[:, :-1], X[:, 1:]), y)[2])(D * X), 1e-5)

op("chebyshev", """
def chebyshev(float(N,D) X, float(M,D) Z) -> (R) {
    R(i, j) max=! abs(X(i, d) - Z(j, d))
}
""", lambda g: [rn(g, 403, 17), rn(g, 377, 17)], lambda X, Z: torch.cdist(X, Z, p=math.inf), 1e-6)

op("quadratic_forms", """
def quadratic_forms(float(B,K) X, float(B,K,K) A) -> (Q) {
    Q(b) +=! X(b, i) * A(b, i, j) * X(b, j)
}
""", lambda g: [rn(g, 701, 31), rn(g, 701, 31, 31)],
   lambda X, A: ((A @ X[:, :, None]).squeeze(2) * X).sum(1), 1e-3)

op("walsh", """
def walsh(float(B,N) X, int32(K) Pow) -> (Y) {
    P(u, n) +=! ((u / Pow(k)) % 2) * ((n / Pow(k)) % 2) where u in 0:N, n in 0:N
    Y(b, u) +=! (P(u, n) % 2 == 0) ? X(b, n) : -X(b, n)
}
""", lambda g: [rn(g, 33, 256), 2 ** torch.arange(8, dtype=i32)],
   lambda X, Pow: functools.reduce(
       lambda y, h: torch.stack([y.view(33, -1, 2, h)[:, :, 0] + y.view(33, -1, 2, h)[:, :, 1],
                                 y.view(33, -1, 2, h)[:, :, 0] - y.view(33, -1, 2, h)[:, :, 1]], 2).view(33, -1),
       [2**k for k in range(8)], X), 1e-3)
