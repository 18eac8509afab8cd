# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Filters, images, waves, particles, splines, populations and integers; as in ``simulation``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.operator import WrittenOperator
from generality.written_operators.simulation import _spd, f64, i32, ri, rn, ru, u8

OPERATORS: list[WrittenOperator] = []


def op(name, tol, args, fn, text): OPERATORS.append(WrittenOperator(name, text, args, fn, tol))


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
