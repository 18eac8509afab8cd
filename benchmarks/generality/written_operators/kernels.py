# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Everyday layers of awkward sizes, and kernels of scientific programs; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.networks import bf16, f16, f64, i8, i32, of, ri, rn, ru
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)

# ---------------------------------------------------------------- everyday layers of awkward sizes

op(dict(name="linear_gelu_residual_postnorm", text='''
def linear_gelu_residual_postnorm(float(N,D) X, float(D,D) W, float(D) Bi, float(D) Ga, float(D) Be) -> (Y) {
    A(n, o) +=! X(n, i) * W(o, i)
    H(n, o) = X(n, o) + 0.5 * z * (1.0 + erf(0.7071067811865476 * z)) where z = A(n, o) + Bi(o)
    Mu(n) +=! H(n, o) / D
    Va(n) +=! (H(n, o) - Mu(n)) * (H(n, o) - Mu(n)) / D
    Y(n, o) = (H(n, o) - Mu(n)) * rsqrt(Va(n) + 1e-5) * Ga(o) + Be(o)
}''', args=lambda g: [rn(g, 211, 331), rn(g, 331, 331, k=0.055), rn(g, 331, k=0.2), ru(g, 331, lo=0.5, hi=1.5), rn(g, 331, k=0.2)],
   torch=lambda X, W, Bi, Ga, Be: F.layer_norm(X + F.gelu(F.linear(X, W, Bi)), Ga.shape, Ga, Be), tol=3e-5))


def _sinkcap(Q, K, V, Sk, cap, win):
    B, G, R, T, D = Q.shape
    s = cap * torch.tanh(torch.einsum("bgrid,bgjd->bgrij", Q.float(), K.float()) / (cap * D ** 0.5))
    i = torch.arange(T)
    d = i[:, None] - i
    s = s.masked_fill((d < 0) | (d >= int(win)), -math.inf)
    p = torch.cat([s, Sk[:, :, None, None].expand(B, G, R, T, 1)], -1).softmax(-1)[..., :-1]
    return torch.einsum("bgrij,bgjd->bgrid", p, V.float()).half()


op(dict(name="gqa_softcap_sliding_sink_half", text='''
def gqa_softcap_sliding_sink_half(half(B,G,R,T,D) Q, half(B,G,T,D) K, half(B,G,T,D) V, float(G,R) Sk, float cap, int32 win) -> (half(B,G,R,T,D) Y) {
    S(b, g, r, i, j) +=! float(Q(b, g, r, i, d)) * K(b, g, j, d)
    S(b, g, r, i, j) = cap * tanh(S(b, g, r, i, j) / (cap * sqrt(float(D))))
    M(b, g, r, i) max=! j <= i && j > i - win ? S(b, g, r, i, j) : -infinity()
    M(b, g, r, i) = max(M(b, g, r, i), Sk(g, r))
    P(b, g, r, i, j) = j <= i && j > i - win ? exp(S(b, g, r, i, j) - M(b, g, r, i)) : 0.0
    Z(b, g, r, i) +=! P(b, g, r, i, j)
    Y(b, g, r, i, d) +=! P(b, g, r, i, j) / (Z(b, g, r, i) + exp(Sk(g, r) - M(b, g, r, i))) * V(b, g, j, d)
}''', args=lambda g: [rn(g, 2, 2, 3, 83, 48, dt=f16), rn(g, 2, 2, 83, 48, dt=f16), rn(g, 2, 2, 83, 48, dt=f16), rn(g, 2, 3), of(30.0), of(29, i32)], torch=_sinkcap, tol=3e-3))


def _gconv1d(X, W, Bi, s, d):
    return F.silu(F.conv1d(X.flatten(1, 2), W.flatten(0, 1), Bi.flatten(), stride=int(s), dilation=int(d), groups=W.shape[0])).unflatten(1, W.shape[:2])


op(dict(name="grouped_conv1d_stride_dilate_silu_f64", text='''
def grouped_conv1d_stride_dilate_silu_f64(double(B,G,C,L) X, double(G,O,C,K) W, double(G,O) Bi, int32 s, int32 d) -> (Y) {
    A(b, g, o, t) +=! X(b, g, c, s*t + d*k) * W(g, o, c, k)
    Y(b, g, o, t) = z * sigmoid(z) where z = A(b, g, o, t) + Bi(g, o)
}''', args=lambda g: [rn(g, 3, 4, 13, 997, dt=f64), rn(g, 4, 11, 13, 5, dt=f64, k=0.12), rn(g, 4, 11, dt=f64, k=0.2), of(3, i32), of(2, i32)], torch=_gconv1d, tol=1e-11))


def _upgn(X, K, Ga, Be):
    G, J = Ga.shape
    a = F.conv_transpose2d(X, K.flatten(1, 2), stride=2, padding=1, output_padding=1)
    return F.mish(F.group_norm(a, G, Ga.flatten(), Be.flatten())).unflatten(1, (G, J))


op(dict(name="conv_transpose_k3s2_groupnorm_mish", text='''
def conv_transpose_k3s2_groupnorm_mish(float(B,C,H,W) X, float(C,G,J,3,3) K, float(G,J) Ga, float(G,J) Be) -> (Y) {
    A(b, g, j, y, x) +=! (y + 1 - u) % 2 == 0 && (x + 1 - v) % 2 == 0 && y + 1 - u >= 0 && y + 1 - u < 2*H && x + 1 - v >= 0 && x + 1 - v < 2*W
            ? X(b, c, (y + 1 - u) / 2, (x + 1 - v) / 2) * K(c, g, j, u, v) : 0.0
        where y in 0:2*H, x in 0:2*W, u in 0:3, v in 0:3
    Mu(b, g) +=! A(b, g, j, y, x) / (4 * J * H * W)
    Va(b, g) +=! (A(b, g, j, y, x) - Mu(b, g)) * (A(b, g, j, y, x) - Mu(b, g)) / (4 * J * H * W)
    N(b, g, j, y, x) = (A(b, g, j, y, x) - Mu(b, g)) * rsqrt(Va(b, g) + 1e-5) * Ga(g, j) + Be(g, j)
    Y(b, g, j, y, x) = N(b, g, j, y, x) * tanh(log1p(exp(N(b, g, j, y, x))))
}''', args=lambda g: [rn(g, 2, 19, 23, 31), rn(g, 19, 3, 7, 3, 3, k=0.15), ru(g, 3, 7, lo=0.5, hi=1.5), rn(g, 3, 7, k=0.2)], torch=_upgn, tol=3e-5))


def _mixpool(X, Al):
    a = torch.sigmoid(Al)[:, None, None]
    return a * F.max_pool2d(X, 3, 2, 1) + (1 - a) * F.avg_pool2d(X, 3, 2, 1, count_include_pad=False)


op(dict(name="mixed_max_avg_pool_learned", text='''
def mixed_max_avg_pool_learned(float(B,C,H,W) X, float(C) Al) -> (Y) {
    Mx(b, c, y, x) max=! 2*y + u >= 1 && 2*y + u <= H && 2*x + v >= 1 && 2*x + v <= W ? X(b, c, 2*y + u - 1, 2*x + v - 1) : -infinity()
        where y in 0:(H-1)/2+1, x in 0:(W-1)/2+1, u in 0:3, v in 0:3
    Sm(b, c, y, x) +=! 2*y + u >= 1 && 2*y + u <= H && 2*x + v >= 1 && 2*x + v <= W ? X(b, c, 2*y + u - 1, 2*x + v - 1) : 0.0
        where y in 0:(H-1)/2+1, x in 0:(W-1)/2+1, u in 0:3, v in 0:3
    Ct(y, x) +=! 2*y + u >= 1 && 2*y + u <= H && 2*x + v >= 1 && 2*x + v <= W ? 1.0 : 0.0
        where y in 0:(H-1)/2+1, x in 0:(W-1)/2+1, u in 0:3, v in 0:3
    Y(b, c, y, x) = a * Mx(b, c, y, x) + (1.0 - a) * Sm(b, c, y, x) / Ct(y, x) where a = sigmoid(Al(c))
}''', args=lambda g: [rn(g, 3, 37, 67, 53), rn(g, 37)], torch=_mixpool, tol=1e-5))


op(dict(name="bottleneck_adapter_three_rows_bf16", text='''
def bottleneck_adapter_three_rows_bf16(bfloat16(N,D) X, bfloat16(D) Ga, bfloat16(D) Be, bfloat16(R,D) Wd, bfloat16(R) Bd, bfloat16(D,R) Wu, bfloat16(D) Bu) -> (bfloat16(N,D) Y) {
    Mu(n) +=! float(X(n, d)) / D
    Va(n) +=! (X(n, d) - Mu(n)) * (X(n, d) - Mu(n)) / D
    Xn(n, d) = (X(n, d) - Mu(n)) * rsqrt(Va(n) + 1e-5) * Ga(d) + Be(d)
    A(n, r) +=! Xn(n, d) * Wd(r, d)
    A(n, r) = 0.5 * z * (1.0 + erf(0.7071067811865476 * z)) where z = A(n, r) + Bd(r)
    U(n, d) +=! A(n, r) * Wu(d, r)
    Y(n, d) = X(n, d) + U(n, d) + Bu(d)
}''', args=lambda g: [rn(g, 3, 1531, dt=bf16), ru(g, 1531, dt=bf16, lo=0.5, hi=1.5), rn(g, 1531, dt=bf16, k=0.2), rn(g, 67, 1531, dt=bf16, k=0.026), rn(g, 67, dt=bf16, k=0.2), rn(g, 1531, 67, dt=bf16, k=0.12), rn(g, 1531, dt=bf16, k=0.1)],
   torch=lambda X, Ga, Be, Wd, Bd, Wu, Bu: X + F.linear(F.gelu(F.linear(F.layer_norm(X, Ga.shape, Ga, Be), Wd, Bd)), Wu, Bu), tol=3e-2))


def _sepse(X, Kd, Sc, Sh, W1, B1, W2, B2, Wp):
    a = F.relu6(F.conv2d(X, Kd[:, None], padding=2, groups=X.shape[1]) * Sc[:, None, None] + Sh[:, None, None])
    e = F.hardsigmoid(F.linear(F.relu(F.linear(a.mean((2, 3)), W1, B1)), W2, B2))
    return F.conv2d(a * e[..., None, None], Wp[..., None, None])


op(dict(name="depthwise5_relu6_se_project", text='''
def depthwise5_relu6_se_project(float(B,C,H,W) X, float(C,5,5) Kd, float(C) Sc, float(C) Sh, float(R,C) W1, float(R) B1, float(C,R) W2, float(C) B2, float(O,C) Wp) -> (Y) {
    A(b, c, y, x) +=! y + u >= 2 && y + u < H + 2 && x + v >= 2 && x + v < W + 2 ? X(b, c, y + u - 2, x + v - 2) * Kd(c, u, v) : 0.0
        where y in 0:H, x in 0:W, u in 0:5, v in 0:5
    A(b, c, y, x) = clamp(A(b, c, y, x) * Sc(c) + Sh(c), 0.0, 6.0)
    Sq(b, c) +=! A(b, c, y, x) / (H * W)
    E1(b, r) +=! Sq(b, c) * W1(r, c)
    E1(b, r) = relu(E1(b, r) + B1(r))
    E2(b, c) +=! E1(b, r) * W2(c, r)
    E2(b, c) = clamp((E2(b, c) + B2(c) + 3.0) / 6.0, 0.0, 1.0)
    Y(b, o, y, x) +=! Wp(o, c) * E2(b, c) * A(b, c, y, x)
}''', args=lambda g: [rn(g, 2, 47, 29, 31), rn(g, 47, 5, 5, k=0.3), ru(g, 47, lo=0.5, hi=1.5), rn(g, 47, k=0.5), rn(g, 13, 47, k=0.3), rn(g, 13, k=0.2), rn(g, 47, 13, k=0.5), rn(g, 47, k=0.5), rn(g, 61, 47, k=0.15)],
   torch=_sepse, tol=2e-5))


def _focalsmooth(X, Yt, sm, ga):
    lp, ok = X.log_softmax(1), Yt >= 0
    py = lp.gather(1, Yt.clamp_min(0)[:, None])[:, 0]
    l = torch.where(ok, (1 - py.exp()) ** ga * (-(1 - sm) * py - sm * lp.mean(1)), 0.0)
    return l.sum() / ok.sum(), l


def _focalsmooth_args(g):
    x, y = rn(g, 1009, 101), ri(g, 0, 101, 1009)
    return [x, torch.where(ru(g, 1009) < 0.1, -100, y), of(0.1), of(2.0)]


op(dict(name="focal_label_smoothing_ignore", text='''
def focal_label_smoothing_ignore(float(N,C) X, int64(N) Yt, float sm, float ga) -> (Loss, L) {
    M(n) max=! X(n, c)
    Z(n) +=! exp(X(n, c) - M(n))
    Lp(n, c) = X(n, c) - M(n) - log(Z(n))
    Py(n) +=! Yt(n) == c ? Lp(n, c) : 0.0
    Un(n) +=! Lp(n, c) / C
    L(n) = Yt(n) >= 0 ? pow(1.0 - exp(Py(n)), ga) * ((sm - 1.0) * Py(n) - sm * Un(n)) : 0.0
    Nv +=! Yt(n) >= 0 ? 1.0 : 0.0
    Loss +=! L(n)
    Loss = Loss / Nv
}''', args=_focalsmooth_args, torch=_focalsmooth, tol=3e-5))


op(dict(name="int8_dilated_conv1d_channel_scales_half", text='''
def int8_dilated_conv1d_channel_scales_half(int8(B,C,L) X, int8(O,C,K) W, float(O) Sw, float(O) Bi, float sx) -> (half(B,O,L-2*K+2) Y) {
    A(b, o, t) +=! int32(X(b, c, t + 2*k)) * W(o, c, k)
    Y(b, o, t) = A(b, o, t) * (sx * Sw(o)) + Bi(o)
}''', args=lambda g: [ri(g, -127, 128, 3, 37, 401, dt=i8), ri(g, -127, 128, 53, 37, 3, dt=i8), ru(g, 53, lo=0.001, hi=0.01), rn(g, 53), of(0.02)],
   torch=lambda X, W, Sw, Bi, sx: (F.conv1d(X.float(), W.float(), dilation=2) * (sx * Sw)[:, None] + Bi[:, None]).half(), tol=2e-3))


op(dict(name="video_stem_conv3d_pool_max_time", text='''
def video_stem_conv3d_pool_max_time(float(B,C,T,H,W) X, float(O,C,3,5,5) K, float(O) Bi) -> (Y) {
    A(b, o, t, y, x) +=! t + k >= 1 && t + k <= T && 2*y + u >= 2 && 2*y + u < H + 2 && 2*x + v >= 2 && 2*x + v < W + 2
            ? X(b, c, t + k - 1, 2*y + u - 2, 2*x + v - 2) * K(o, c, k, u, v) : 0.0
        where t in 0:T, y in 0:(H-1)/2+1, x in 0:(W-1)/2+1, k in 0:3, u in 0:5, v in 0:5
    Sp(b, o, t) +=! relu(A(b, o, t, y, x) + Bi(o)) / (((H - 1) / 2 + 1) * ((W - 1) / 2 + 1))
    Y(b, o) max=! Sp(b, o, t)
}''', args=lambda g: [rn(g, 1, 3, 9, 37, 41), rn(g, 23, 3, 3, 5, 5, k=0.07), rn(g, 23, k=0.3)],
   torch=lambda X, K, Bi: F.relu(F.conv3d(X, K, Bi, stride=(1, 2, 2), padding=(1, 2, 2))).mean((3, 4)).amax(2), tol=2e-5))


# ---------------------------------------------------------------- scientific kernels

def _heat3(U, Kp, dt):
    for _ in range(2):
        y, z = torch.cat([U[:, :1], U, U[:, -1:]], 1), F.pad(U, (0, 0, 0, 0, 1, 1))
        U = U + dt * Kp * (U.roll(-1, 2) + U.roll(1, 2) + y[:, 2:] + y[:, :-2] + z[2:] + z[:-2] - 6 * U)
    return U


op(dict(name="heat3d_mixed_boundaries_two_steps", text='''
def heat3d_step(float(D,H,W) U, float(D,H,W) Kp, float dt) -> (V) {
    V(z, y, x) = U(z, y, x) + dt * Kp(z, y, x) * (U(z, y, (x + 1) % W) + U(z, y, (x + W - 1) % W)      # periodic
            + U(z, min(y + 1, H - 1), x) + U(z, max(y - 1, 0), x)      # insulated
            + (z + 1 < D ? U(z + 1, y, x) : 0.0) + (z >= 1 ? U(z - 1, y, x) : 0.0) - 6.0 * U(z, y, x))      # held at 0
        where z in 0:D, y in 0:H, x in 0:W
}
def heat3d_mixed_boundaries_two_steps(float(D,H,W) U, float(D,H,W) Kp, float dt) -> (U2) {
    U1 = heat3d_step(U, Kp, dt)
    U2 = heat3d_step(U1, Kp, dt)
}''', args=lambda g: [rn(g, 31, 37, 43), ru(g, 31, 37, 43, lo=0.2, hi=1.0), of(0.15)], torch=_heat3, tol=1e-5))


def _tidal(Xt, Xs, Ms, e2):
    d = Xs - Xt[:, None]
    ir = torch.rsqrt(d.square().sum(-1) + e2)
    i2 = ir * ir
    w = Ms * ir
    w3 = w * i2
    td = 3 * (d * (w3 * i2)[..., None]).mT @ d - w3.sum(1)[:, None, None] * torch.eye(3)
    return -w.sum(1), torch.einsum("nm,nma->na", w3, d), td


op(dict(name="plummer_tidal_tensors", text='''
def plummer_tidal_tensors(float(N,3) Xt, float(M,3) Xs, float(M) Ms, float e2) -> (Ph, Ac, Td) {
    R2(n, m) +=! (Xs(m, a) - Xt(n, a)) * (Xs(m, a) - Xt(n, a))
    Ir(n, m) = rsqrt(R2(n, m) + e2)
    W3(n, m) = Ms(m) * Ir(n, m) * Ir(n, m) * Ir(n, m)
    Ph(n) +=! -Ms(m) * Ir(n, m)
    Ac(n, a) +=! W3(n, m) * (Xs(m, a) - Xt(n, a))
    Td(n, a, b) +=! 3.0 * W3(n, m) * Ir(n, m) * Ir(n, m) * (Xs(m, a) - Xt(n, a)) * (Xs(m, b) - Xt(n, b)) - (a == b ? W3(n, m) : 0.0)
}''', args=lambda g: [rn(g, 401, 3), rn(g, 701, 3), ru(g, 701, lo=0.5, hi=1.5), of(0.05)], torch=_tidal, tol=5e-5))


def _stvk(X, Tt, Bm, Vo, mu, la):
    v, eye = X[Tt], torch.eye(3, dtype=f64)
    fd = (v[:, 1:] - v[:, :1]).mT @ Bm
    s = 0.5 * (fd.mT @ fd - eye)
    tr = s.diagonal(dim1=1, dim2=2).sum(1)
    h = -Vo[:, None, None] * (Bm @ (fd @ (2 * mu * s + la * tr[:, None, None] * eye)).mT)
    f = torch.cat([-h.sum(1, keepdim=True), h], 1)
    fo = torch.zeros_like(X).index_add(0, Tt.flatten(), f.flatten(0, 1))
    return fo, (Vo * (mu * s.square().sum((1, 2)) + 0.5 * la * tr * tr)).sum()


op(dict(name="tet4_stvk_forces_f64", text='''
def tet4_stvk_forces_f64(double(N,3) X, int64(E,4) Tt, double(E,3,3) Bm, double(E) Vo, double mu, double la) -> (double(N,3) Fo, En) {
    Ds(e, a, k) = X(Tt(e, k + 1), a) - X(Tt(e, 0), a) where k in 0:3
    Fd(e, a, b) +=! Ds(e, a, k) * Bm(e, k, b)
    Gs(e, a, b) +=! 0.5 * Fd(e, c, a) * Fd(e, c, b)
    Gs(e, a, b) = Gs(e, a, b) - (a == b ? 0.5 : 0.0)
    Tr(e) +=! Gs(e, a, a)
    Sp(e, a, b) = 2.0 * mu * Gs(e, a, b) + (a == b ? la * Tr(e) : 0.0)
    Pk(e, a, b) +=! Fd(e, a, c) * Sp(e, c, b)
    Hf(e, k, a) +=! -Vo(e) * Pk(e, a, b) * Bm(e, k, b)
    Fo(Tt(e, k + 1), a) +=! Hf(e, k, a) where k in 0:3
    Fo(Tt(e, 0), a) += -Hf(e, k, a)
    En +=! Vo(e) * mu * Gs(e, a, b) * Gs(e, a, b)
    En += 0.5 * la * Vo(e) * Tr(e) * Tr(e)
}''', args=lambda g: [rn(g, 801, 3, dt=f64), ri(g, 0, 801, 3001, 4), torch.eye(3, dtype=f64) + rn(g, 3001, 3, 3, dt=f64, k=0.3), ru(g, 3001, dt=f64, lo=0.05, hi=0.2), of(1.5, f64), of(0.8, f64)], torch=_stvk, tol=1e-10))


def _dctbasis(N):
    c = torch.cos(math.pi * torch.arange(N, dtype=f64)[:, None] * (torch.arange(N, dtype=f64) + 0.5) / N) * (2 / N) ** 0.5
    c[0] = N ** -0.5
    return c.float()


def _dctpoisson(X):
    N, M = X.shape[1:]
    cn, cm = _dctbasis(N), _dctbasis(M)
    lam = 4 * torch.sin(0.5 * math.pi * torch.arange(N) / N).square()[:, None] + 4 * torch.sin(0.5 * math.pi * torch.arange(M) / M).square()
    uh = (cn @ X @ cm.T) * torch.where(lam > 0, 1 / lam, 0.0)
    return cn.T @ uh @ cm, uh


op(dict(name="dct2_neumann_poisson_dense", text='''
def dct2_neumann_poisson_dense(float(B,N,M) X) -> (U, Uh) {
    Cn(k, n) = (k == 0 ? sqrt(1.0 / N) : sqrt(2.0 / N)) * cos(3.141592653589793 * ((2*n + 1) * k % (4*N)) / (2.0 * N)) where k in 0:N, n in 0:N
    Cm(l, m) = (l == 0 ? sqrt(1.0 / M) : sqrt(2.0 / M)) * cos(3.141592653589793 * ((2*m + 1) * l % (4*M)) / (2.0 * M)) where l in 0:M, m in 0:M
    Ga(b, k, m) +=! Cn(k, n) * X(b, n, m)
    Gb(b, k, l) +=! Ga(b, k, m) * Cm(l, m)
    Uh(b, k, l) = k + l > 0 ? Gb(b, k, l) / (4.0 * s * s + 4.0 * t * t) : 0.0 where s = sin(1.5707963267948966 * k / N), t = sin(1.5707963267948966 * l / M)
    Gc(b, n, l) +=! Cn(k, n) * Uh(b, k, l)
    U(b, n, m) +=! Gc(b, n, l) * Cm(l, m)
}''', args=lambda g: [rn(g, 5, 45, 61)], torch=_dctpoisson, tol=5e-5))


def _itebd(A, Bq, Gt, La, Lm, Lb):
    ab = torch.einsum("lsm,mtr->lstr", La[:, None, None] * A * Lm, Bq * Lb)
    th = torch.einsum("uvst,lstr->luvr", Gt, ab)
    nrm = th.square().sum()
    th = th / nrm.sqrt()
    m = th.permute(1, 2, 0, 3).flatten(2).flatten(0, 1)
    return th, (m @ m.T).view(*Gt.shape), nrm


op(dict(name="itebd_two_site_gate_density", text='''
def itebd_two_site_gate_density(float(L,P,M) A, float(M,P,R) Bq, float(P,P,P,P) Gt, float(L) La, float(M) Lm, float(R) Lb) -> (Th, Rho, Nrm) {
    Th(l, u, v, r) +=! Gt(u, v, s, t) * La(l) * A(l, s, m) * Lm(m) * Bq(m, t, r) * Lb(r)
    Nrm +=! Th(l, u, v, r) * Th(l, u, v, r)
    Th(l, u, v, r) = Th(l, u, v, r) / sqrt(Nrm)
    Rho(u, v, w, x) +=! Th(l, u, v, r) * Th(l, w, x, r)
}''', args=lambda g: [rn(g, 61, 3, 67), rn(g, 67, 3, 59), rn(g, 3, 3, 3, 3), ru(g, 61), ru(g, 67), ru(g, 59)], torch=_itebd, tol=3e-5))


def _vqc(S, T1, T2, Pw):
    B, N = S.shape
    bits = torch.arange(N)[:, None] // Pw % 2
    cz = 1.0 - 2.0 * ((bits[:, 1:] * bits[:, :-1]).sum(1) % 2)

    def layer(s, th):
        c, n = (0.5 * th).cos()[..., None, None], (0.5 * th).sin()[..., None, None]
        for k in range(th.shape[1]):
            a, b = s.view(B, -1, 2, 1 << k).unbind(2)
            s = torch.stack([c[:, k] * a - n[:, k] * b, n[:, k] * a + c[:, k] * b], 2)
        return s.view(B, N)
    f = layer(layer(S, T1) * cz, T2)
    return f.square() @ (1.0 - 2.0 * bits), f


op(dict(name="vqc_ry_cz_two_layers_7q", text='''
def ry(float(B,N) S, float(B,Q) Th, int32 k, int32 m) -> (T) {
    T(b, i) = i / m % 2 == 0 ? cos(0.5 * Th(b, k)) * S(b, t) - sin(0.5 * Th(b, k)) * S(b, t + m) : sin(0.5 * Th(b, k)) * S(b, t) + cos(0.5 * Th(b, k)) * S(b, t + m)
        where i in 0:N, t = i / (2*m) * (2*m) + i % m
}
def ry_layer(float(B,N) S, float(B,Q) Th) -> (S7) {
    S1 = ry(S, Th, 0, 1)
    S2 = ry(S1, Th, 1, 2)
    S3 = ry(S2, Th, 2, 4)
    S4 = ry(S3, Th, 3, 8)
    S5 = ry(S4, Th, 4, 16)
    S6 = ry(S5, Th, 5, 32)
    S7 = ry(S6, Th, 6, 64)
}
def vqc_ry_cz_two_layers_7q(float(B,N) S, float(B,Q) T1, float(B,Q) T2, int32(Q) Pw) -> (Ez, Sf) {
    Sa = ry_layer(S, T1)
    Sc(b, i) = (i % 2 * (i / 2 % 2) + i / 2 % 2 * (i / 4 % 2) + i / 4 % 2 * (i / 8 % 2) + i / 8 % 2 * (i / 16 % 2) + i / 16 % 2 * (i / 32 % 2) + i / 32 % 2 * (i / 64 % 2)) % 2 == 0 ? Sa(b, i) : -Sa(b, i)
    Sf = ry_layer(Sc, T2)
    Ez(b, q) +=! (i / Pw(q) % 2 == 0 ? 1.0 : -1.0) * Sf(b, i) * Sf(b, i)
}''', args=lambda g: [F.normalize(rn(g, 101, 128), dim=1), rn(g, 101, 7), rn(g, 101, 7), 2 ** torch.arange(7, dtype=i32)], torch=_vqc, tol=2e-5))


def _ewaldk(X, Qc, Kv, al, vol):
    a, k2 = Kv @ X.T, Kv.square().sum(1)
    c, s = a.cos(), a.sin()
    sc, ss = c @ Qc, s @ Qc
    w = torch.exp(-k2 / (4 * al * al)) / k2
    f = (4 * math.pi / vol) * Qc[:, None] * (((w * sc)[:, None] * s - (w * ss)[:, None] * c).T @ Kv)
    return (2 * math.pi / vol) * (w * (sc * sc + ss * ss)).sum(), f


op(dict(name="ewald_reciprocal_energy_forces_f64", text='''
def ewald_reciprocal_energy_forces_f64(double(N,3) X, double(N) Qc, double(K,3) Kv, double al, double vol) -> (En, Fo) {
    Kr(k, n) +=! Kv(k, d) * X(n, d)
    K2(k) +=! Kv(k, d) * Kv(k, d)
    Wk(k) = exp(-K2(k) / (4.0 * al * al)) / K2(k)
    Co(k, n) = cos(Kr(k, n))
    Si(k, n) = sin(Kr(k, n))
    Sc(k) +=! Qc(n) * Co(k, n)
    Ss(k) +=! Qc(n) * Si(k, n)
    En +=! 6.283185307179586 / vol * Wk(k) * (Sc(k) * Sc(k) + Ss(k) * Ss(k))
    Fo(n, d) +=! Wk(k) * (Sc(k) * Si(k, n) - Ss(k) * Co(k, n)) * Kv(k, d)
    Fo(n, d) = 12.566370614359172 / vol * Qc(n) * Fo(n, d)
}''', args=lambda g: [ru(g, 301, 3, dt=f64, hi=11.0), rn(g, 301, dt=f64), ri(g, 1, 8, 257, 3, dt=f64) * (2 * math.pi / 11) * torch.where(ru(g, 257, 3, dt=f64) < 0.5, -1.0, 1.0), of(0.35, f64), of(1331.0, f64)], torch=_ewaldk, tol=1e-10))


def _ava(Vp, Vs, Rh, An, Wv):
    mid = lambda a: 0.5 * (a[:, 1:] + a[:, :-1])
    s, p = An.sin().square(), mid(Vp)
    v = mid(Vs)
    g = 4 * (v / p).square()[..., None] * s
    dp, ds, dr = (Vp.diff(dim=1) / p)[..., None], (Vs.diff(dim=1) / v)[..., None], (Rh.diff(dim=1) / mid(Rh))[..., None]
    rc = 0.5 * (1 - g) * dr + 0.5 / (1 - s) * dp - g * ds
    B, T, A = rc.shape
    return F.conv1d(rc.mT.reshape(B * A, 1, T), Wv[None, None], padding=len(Wv) // 2).view(B, A, T).mT, rc


def _ava_args(g):
    t = (torch.arange(41) - 20.0) * 0.17
    wavelet = (1 - 2 * t.square()) * torch.exp(-t.square())
    return [ru(g, 23, 251, lo=2.0, hi=4.0), ru(g, 23, 251, lo=1.0, hi=2.0), ru(g, 23, 251, lo=2.0, hi=2.6), torch.linspace(0.0, 0.7, 13), wavelet]


op(dict(name="aki_richards_ava_synthetics", text='''
def aki_richards_ava_synthetics(float(B,T) Vp, float(B,T) Vs, float(B,T) Rh, float(A) An, float(K) Wv) -> (Sy, Rc) {
    Rc(b, t, a) = 0.5 * (1.0 - 4.0 * g * s) * (Rh(b, t + 1) - Rh(b, t)) / r + 0.5 / (1.0 - s) * (Vp(b, t + 1) - Vp(b, t)) / p - 4.0 * g * s * (Vs(b, t + 1) - Vs(b, t)) / v
        where t in 0:T-1, s = sin(An(a)) * sin(An(a)), p = 0.5 * (Vp(b, t) + Vp(b, t + 1)), v = 0.5 * (Vs(b, t) + Vs(b, t + 1)), r = 0.5 * (Rh(b, t) + Rh(b, t + 1)), g = v * v / (p * p)
    Sy(b, t, a) +=! t + k >= K / 2 && t + k < T - 1 + K / 2 ? Rc(b, t + k - K/2, a) * Wv(k) : 0.0 where t in 0:T-1, k in 0:K
}''', args=_ava_args, torch=_ava, tol=2e-5))


def _limber(Zs, Nz, El, Om, Gs, dz):
    om, a, H = Om[:, None], 1 + Zs, 2997.92458
    e = torch.rsqrt(om * a ** 3 + 1 - om)
    ch = F.pad((0.5 * dz * H * (e[:, 1:] + e[:, :-1])).cumsum(1), (1, 0))
    c1 = ch[:, 1:]
    lens = (1 - ch[:, :, None] / c1[:, None]).triu()
    q = torch.einsum("jw,czw->cjz", Nz[:, 1:], lens) * dz * (1.5 * om * a * ch / H ** 2)[:, None]
    k = (El[:, None] + 0.5) / c1[:, None]
    x = 2.34 * k / Gs[:, None, None]
    pk = k * (x.log1p() / x / a[1:]).square()
    w = H * dz * e[:, 1:] / c1.square()
    pair = (w[:, None] * q[:, :, 1:])[:, :, None] * q[:, None, :, 1:]
    return torch.einsum("cijz,clz->cijl", pair, pk), ch


op(dict(name="weak_lensing_limber_spectra_f64", text='''
def weak_lensing_limber_spectra_f64(double(Z) Zs, double(J,Z) Nz, double(L) El, double(C) Om, double(C) Gs, double dz) -> (Cl, Ch) {
    Eh(c, z) = rsqrt(Om(c) * a * a * a + 1.0 - Om(c)) where a = 1.0 + Zs(z)
    Ch(c, z) +=! w < z ? 0.5 * dz * 2997.92458 * (Eh(c, w) + Eh(c, w + 1)) : 0.0 where z in 0:Z, w in 0:Z-1
    Qe(c, j, z) +=! w > z ? Nz(j, w) * dz * (1.0 - Ch(c, z) / Ch(c, w)) : 0.0 where z in 0:Z, w in 0:Z
    Qe(c, j, z) = 1.5 * Om(c) * (1.0 + Zs(z)) * Ch(c, z) * Qe(c, j, z) / 8987551.787368176
    Pk(c, l, z) = z >= 1 ? k * t * t / ((1.0 + Zs(z)) * (1.0 + Zs(z))) : 0.0 where k = (El(l) + 0.5) / Ch(c, z), t = log(1.0 + 2.34 * k / Gs(c)) / (2.34 * k / Gs(c))
    Wt(c, z) = z >= 1 ? 2997.92458 * dz * Eh(c, z) / (Ch(c, z) * Ch(c, z)) : 0.0
    Cl(c, i, j, l) +=! Wt(c, z) * Qe(c, i, z) * Qe(c, j, z) * Pk(c, l, z)
}''', args=lambda g: [torch.linspace(0.0, 2.5, 101, dtype=f64), ru(g, 4, 101, dt=f64), torch.logspace(1.0, 3.5, 41, dtype=f64), ru(g, 7, dt=f64, lo=0.2, hi=0.4), ru(g, 7, dt=f64, lo=0.1, hi=0.3), of(0.025, f64)], torch=_limber, tol=1e-9))


def _swe(Hh, Qx, Qy, cr, gr):
    sx, sy = torch.ones(Hh.shape[1] + 2), torch.ones(Hh.shape[0] + 2)
    sx[0] = sx[-1] = sy[0] = sy[-1] = -1
    pad = lambda a: F.pad(a[None], (1, 1, 1, 1), mode="replicate")[0]
    avg = lambda a: 0.25 * (a[1:-1, :-2] + a[1:-1, 2:] + a[:-2, 1:-1] + a[2:, 1:-1])
    dx, dy = lambda a: a[1:-1, 2:] - a[1:-1, :-2], lambda a: a[2:, 1:-1] - a[:-2, 1:-1]
    for _ in range(2):
        h, u, v = pad(Hh), pad(Qx) * sx, pad(Qy) * sy[:, None]
        p, c = 0.5 * gr * h * h, u * v / h
        fx, fy = u * u / h + p, v * v / h + p
        Hh = avg(h) - 0.5 * cr * (dx(u) + dy(v))
        Qx = avg(u) - 0.5 * cr * (dx(fx) + dy(c))
        Qy = avg(v) - 0.5 * cr * (dx(c) + dy(fy))
    return Hh, Qx, Qy


op(dict(name="shallow_water_reflecting_two_steps", text='''
def shallow_water_step(float(H,W) Hh, float(H,W) Qx, float(H,W) Qy, float cr, float gr) -> (Hn, Un, Vn) {
    Hp(y, x) = Hh(min(max(y - 1, 0), H - 1), min(max(x - 1, 0), W - 1)) where y in 0:H+2, x in 0:W+2
    Up(y, x) = (x == 0 || x == W + 1 ? -1.0 : 1.0) * Qx(min(max(y - 1, 0), H - 1), min(max(x - 1, 0), W - 1)) where y in 0:H+2, x in 0:W+2
    Vp(y, x) = (y == 0 || y == H + 1 ? -1.0 : 1.0) * Qy(min(max(y - 1, 0), H - 1), min(max(x - 1, 0), W - 1)) where y in 0:H+2, x in 0:W+2
    Fx(y, x) = Up(y, x) * Up(y, x) / Hp(y, x) + 0.5 * gr * Hp(y, x) * Hp(y, x)
    Fy(y, x) = Vp(y, x) * Vp(y, x) / Hp(y, x) + 0.5 * gr * Hp(y, x) * Hp(y, x)
    Fc(y, x) = Up(y, x) * Vp(y, x) / Hp(y, x)
    Hn(y, x) = 0.25 * (Hp(y + 1, x) + Hp(y + 1, x + 2) + Hp(y, x + 1) + Hp(y + 2, x + 1)) - 0.5 * cr * (Up(y + 1, x + 2) - Up(y + 1, x) + Vp(y + 2, x + 1) - Vp(y, x + 1)) where y in 0:H, x in 0:W
    Un(y, x) = 0.25 * (Up(y + 1, x) + Up(y + 1, x + 2) + Up(y, x + 1) + Up(y + 2, x + 1)) - 0.5 * cr * (Fx(y + 1, x + 2) - Fx(y + 1, x) + Fc(y + 2, x + 1) - Fc(y, x + 1)) where y in 0:H, x in 0:W
    Vn(y, x) = 0.25 * (Vp(y + 1, x) + Vp(y + 1, x + 2) + Vp(y, x + 1) + Vp(y + 2, x + 1)) - 0.5 * cr * (Fc(y + 1, x + 2) - Fc(y + 1, x) + Fy(y + 2, x + 1) - Fy(y, x + 1)) where y in 0:H, x in 0:W
}
def shallow_water_reflecting_two_steps(float(H,W) Hh, float(H,W) Qx, float(H,W) Qy, float cr, float gr) -> (H2, U2, V2) {
    H1, U1, V1 = shallow_water_step(Hh, Qx, Qy, cr, gr)
    H2, U2, V2 = shallow_water_step(H1, U1, V1, cr, gr)
}''', args=lambda g: [ru(g, 127, 95, lo=1.0, hi=1.5), rn(g, 127, 95, k=0.2), rn(g, 127, 95, k=0.2), of(0.2), of(9.81)], torch=_swe, tol=2e-5))
