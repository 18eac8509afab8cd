# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Building blocks of networks in the layouts in which they come, and what users of scientific packages fuse; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)
f16, bf16, f32, f64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
i8, i32, i64, u8 = torch.int8, torch.int32, torch.int64, torch.uint8


def rn(g, *s, dt=f32, k=1.0):
    return (torch.randn(*s, generator=g, dtype=f64) * k).to(dt)


def ru(g, *s, dt=f32, lo=0.0, hi=1.0):
    return (lo + (hi - lo) * torch.rand(*s, generator=g, dtype=f64)).to(dt)


def ri(g, lo, hi, *s, dt=i64):
    return torch.randint(lo, hi, s, generator=g).to(dt)


# ---------------------------------------------------------------- linear layers and convolutions with what stands beside them

op(dict(name="linear_gelu_time_major", text='''
def linear_gelu_time_major(float(T,B,I) X, float(I,O) W, float(O) Bias) -> (Y) {
    Z(t, b, o) +=! X(t, b, i) * W(i, o)
    Y(t, b, o) = 0.5 * z * (1.0 + erf(z * 0.7071067811865476)) where z = Z(t, b, o) + Bias(o)
}''', args=lambda g: [rn(g, 6, 145, 200).transpose(0, 1), rn(g, 200, 310, k=0.07), rn(g, 310)], torch=lambda X, W, b: F.gelu(X @ W + b), tol=2e-5))


op(dict(name="conformer_pointwise_glu", text='''
def conformer_pointwise_glu(float(N,C,T) X, float(2,O,C) W, float(2,O) Bias, bool(N,T) Valid) -> (Y) {
    A(n, o, t) +=! W(0, o, c) * X(n, c, t)
    G(n, o, t) +=! W(1, o, c) * X(n, c, t)
    Y(n, o, t) = Valid(n, t) ? (A(n, o, t) + Bias(0, o)) * sigmoid(G(n, o, t) + Bias(1, o)) : 0.0
}''', args=lambda g: [rn(g, 3, 144, 251), rn(g, 2, 144, 144, k=0.08), rn(g, 2, 144), torch.arange(251) < ri(g, 120, 252, 3)[:, None]],
    torch=lambda X, W, b, M: F.glu(F.conv1d(X, W.flatten(0, 1)[:, :, None], b.flatten()), 1).masked_fill(~M[:, None], 0.0), tol=2e-5))


op(dict(name="conv1d_nlc_hardswish", text='''
def conv1d_nlc_hardswish(float(N,L,C) X, float(5,C,O) K, float(O) Bias) -> (Y) {
    Z(n, l, o) +=! (2*l + k >= 2 && 2*l + k < L + 2) ? X(n, 2*l + k - 2, c) * K(k, c, o) : 0.0 where l in 0:(L+1)/2
    Y(n, l, o) = z * clamp(z + 3.0, 0.0, 6.0) / 6.0 where z = Z(n, l, o) + Bias(o)
}''', args=lambda g: [rn(g, 4, 301, 48), rn(g, 5, 48, 72, k=0.07), rn(g, 72)],
    torch=lambda X, K, b: F.hardswish(F.conv1d(X.transpose(1, 2), K.permute(2, 1, 0), b, stride=2, padding=2)).transpose(1, 2), tol=2e-5))


op(dict(name="grouped_conv3d_leaky", text='''
def grouped_conv3d_leaky(float(N,G,C,D,H,W) X, float(G,O,C,3,3,3) K, float(G,O) Bias) -> (Y) {
    Y(n, g, o, z, y, x) +=! (z + i >= 1 && z + i <= D && y + j >= 1 && y + j <= H && x + k >= 1 && x + k <= W)
        ? X(n, g, c, z + i - 1, y + j - 1, x + k - 1) * K(g, o, c, i, j, k) : 0.0 where z in 0:D, y in 0:H, x in 0:W
    Y(n, g, o, z, y, x) = Y(n, g, o, z, y, x) + Bias(g, o)
    Y(n, g, o, z, y, x) = Y(n, g, o, z, y, x) > 0.0 ? Y(n, g, o, z, y, x) : 0.1 * Y(n, g, o, z, y, x)
}''', args=lambda g: [rn(g, 1, 4, 6, 10, 22, 27), rn(g, 4, 8, 6, 3, 3, 3, k=0.08), rn(g, 4, 8)],
    torch=lambda X, K, b: F.leaky_relu(F.conv3d(X.flatten(1, 2), K.flatten(0, 1), b.flatten(), padding=1, groups=X.shape[1]), 0.1).unflatten(1, (X.shape[1], -1)), tol=2e-5))


def _convnext(X, K, b, gain, beta):
    C = X.shape[3]
    Z = F.conv2d(X.permute(0, 3, 1, 2), K.permute(2, 0, 1)[:, None], b, padding=3, groups=C)
    return F.layer_norm(Z.permute(0, 2, 3, 1), (C,), gain, beta, 1e-6)


op(dict(name="convnext_dw7_layernorm", text='''
def convnext_dw7_layernorm(float(N,H,W,C) X, float(7,7,C) K, float(C) Bias, float(C) Gain, float(C) Beta) -> (Y) {
    Z(n, y, x, c) +=! (y + i >= 3 && y + i < H + 3 && x + j >= 3 && x + j < W + 3) ? X(n, y + i - 3, x + j - 3, c) * K(i, j, c) : 0.0 where y in 0:H, x in 0:W
    Z(n, y, x, c) = Z(n, y, x, c) + Bias(c)
    Mu(n, y, x) +=! Z(n, y, x, c) / C
    Var(n, y, x) +=! (Z(n, y, x, c) - Mu(n, y, x)) * (Z(n, y, x, c) - Mu(n, y, x)) / C
    Y(n, y, x, c) = (Z(n, y, x, c) - Mu(n, y, x)) * rsqrt(Var(n, y, x) + 1e-6) * Gain(c) + Beta(c)
}''', args=lambda g: [rn(g, 2, 28, 28, 96), rn(g, 7, 7, 96, k=0.15), rn(g, 96), rn(g, 96), rn(g, 96)], torch=_convnext, tol=2e-5))


op(dict(name="hifigan_upsample_1d", text='''
def hifigan_upsample_1d(float(N,C,L) X, float(C,O,8) K, float(O) Bias) -> (Y) {
    A(n, c, l) = X(n, c, l) > 0.0 ? X(n, c, l) : 0.1 * X(n, c, l)
    Y(n, o, t) +=! (v >= 0 && v < 4*L && v % 4 == 0) ? A(n, c, v / 4) * K(c, o, k) : 0.0 where v = t + 2 - k, t in 0:4*L
    Y(n, o, t) = Y(n, o, t) + Bias(o)
}''', args=lambda g: [rn(g, 2, 64, 151), rn(g, 64, 32, 8, k=0.08), rn(g, 32)],
    torch=lambda X, K, b: F.conv_transpose1d(F.leaky_relu(X, 0.1), K, b, stride=4, padding=2), tol=2e-5))


op(dict(name="conv_transpose3d_k2_bn_relu", text='''
def conv_transpose3d_k2_bn_relu(float(N,C,D,H,W) X, float(C,O,2,2,2) K, float(O) Scale, float(O) Shift) -> (Y) {
    Z(n, o, z, y, x) +=! X(n, c, z / 2, y / 2, x / 2) * K(c, o, z % 2, y % 2, x % 2) where z in 0:2*D, y in 0:2*H, x in 0:2*W
    Y(n, o, z, y, x) = relu(Z(n, o, z, y, x) * Scale(o) + Shift(o))
}''', args=lambda g: [rn(g, 1, 24, 8, 17, 20), rn(g, 24, 12, 2, 2, 2, k=0.2), ru(g, 12, lo=0.5, hi=1.5), rn(g, 12)],
    torch=lambda X, K, s, b: F.relu(torch.addcmul(b[:, None, None, None], F.conv_transpose3d(X, K, stride=2), s[:, None, None, None])), tol=2e-5))


def _mbv2(X, We, be, Kd, bd, Wp, bp):
    A = F.relu6(F.conv2d(X, We[:, :, None, None], be))
    B = F.relu6(F.conv2d(A, Kd[:, None], bd, stride=2, padding=1, groups=A.shape[1]))
    return F.conv2d(B, Wp[:, :, None, None], bp)


op(dict(name="inverted_residual_s2", text='''
def inverted_residual_s2(float(N,C,H,W) X, float(E,C) We, float(E) Be, float(E,3,3) Kd, float(E) Bd, float(O,E) Wp, float(O) Bp) -> (Y) {
    A(n, e, y, x) +=! We(e, c) * X(n, c, y, x)
    A(n, e, y, x) = clamp(A(n, e, y, x) + Be(e), 0.0, 6.0)
    B(n, e, y, x) +=! (2*y + i >= 1 && 2*y + i <= H && 2*x + j >= 1 && 2*x + j <= W) ? A(n, e, 2*y + i - 1, 2*x + j - 1) * Kd(e, i, j) : 0.0
        where y in 0:(H+1)/2, x in 0:(W+1)/2
    B(n, e, y, x) = clamp(B(n, e, y, x) + Bd(e), 0.0, 6.0)
    Y(n, o, y, x) +=! Wp(o, e) * B(n, e, y, x)
    Y(n, o, y, x) = Y(n, o, y, x) + Bp(o)
}''', args=lambda g: [rn(g, 2, 24, 37, 40), rn(g, 144, 24, k=0.2), rn(g, 144), rn(g, 144, 3, 3, k=0.3), rn(g, 144), rn(g, 32, 144, k=0.1), rn(g, 32)], torch=_mbv2, tol=2e-5))


def _wsconv(X, W, b):
    v, m = torch.var_mean(W, (1, 2, 3), correction=0, keepdim=True)
    return F.conv2d(X, (W - m) * torch.rsqrt(v + 1e-10), b, padding=1)


op(dict(name="weight_standardised_conv", text='''
def weight_standardised_conv(float(N,C,H,W) X, float(O,C,3,3) K, float(O) Bias) -> (Y) {
    Mu(o) +=! K(o, c, i, j) / (C * 9)
    Var(o) +=! (K(o, c, i, j) - Mu(o)) * (K(o, c, i, j) - Mu(o)) / (C * 9)
    Ks(o, c, i, j) = (K(o, c, i, j) - Mu(o)) * rsqrt(Var(o) + 1e-10)
    Y(n, o, y, x) +=! (y + i >= 1 && y + i <= H && x + j >= 1 && x + j <= W) ? X(n, c, y + i - 1, x + j - 1) * Ks(o, c, i, j) : 0.0 where y in 0:H, x in 0:W
    Y(n, o, y, x) = Y(n, o, y, x) + Bias(o)
}''', args=lambda g: [rn(g, 2, 64, 28, 29), rn(g, 64, 64, 3, 3, k=0.1) + 0.02, rn(g, 64)], torch=_wsconv, tol=3e-5))


def _stylegan(X, S, W, noise, b):
    d = torch.rsqrt(S.square() @ W.square().sum((2, 3)).T + 1e-8)
    Y = F.conv2d(X * S[:, :, None, None], W, padding=1) * d[:, :, None, None]
    return F.leaky_relu(Y + 0.1 * noise + b[:, None, None], 0.2) * math.sqrt(2)


op(dict(name="stylegan2_modulated_conv", text='''
def stylegan2_modulated_conv(float(N,C,H,W) X, float(N,C) S, float(O,C,3,3) K, float(H,W) Noise, float(O) Bias) -> (Y) {
    D(n, o) +=! K(o, c, i, j) * S(n, c) * K(o, c, i, j) * S(n, c)
    Z(n, o, y, x) +=! (y + i >= 1 && y + i <= H && x + j >= 1 && x + j <= W) ? S(n, c) * X(n, c, y + i - 1, x + j - 1) * K(o, c, i, j) : 0.0
        where y in 0:H, x in 0:W
    Z(n, o, y, x) = Z(n, o, y, x) * rsqrt(D(n, o) + 1e-8) + 0.1 * Noise(y, x) + Bias(o)
    Y(n, o, y, x) = 1.4142135623730951 * (Z(n, o, y, x) > 0.0 ? Z(n, o, y, x) : 0.2 * Z(n, o, y, x))
}''', args=lambda g: [rn(g, 3, 48, 24, 24), 1 + rn(g, 3, 48, k=0.3), rn(g, 40, 48, 3, 3), rn(g, 24, 24), rn(g, 40)], torch=_stylegan, tol=3e-5))


def _condconv(X, Rt, W):
    N, E = Rt.shape
    K = (torch.sigmoid(Rt) @ W.flatten(1)).view(N * W.shape[1], *W.shape[2:])
    return F.conv2d(X.flatten(0, 1)[None], K, groups=N)[0].unflatten(0, (N, -1))


op(dict(name="condconv_experts", text='''
def condconv_experts(float(N,C,H,W) X, float(N,E) Route, float(E,O,C,KH,KW) Wt) -> (Y) {
    K(n, o, c, i, j) +=! sigmoid(Route(n, e)) * Wt(e, o, c, i, j)
    Y(n, o, y, x) +=! X(n, c, y + i, x + j) * K(n, o, c, i, j)
}''', args=lambda g: [rn(g, 6, 16, 22, 23), rn(g, 6, 4), rn(g, 4, 24, 16, 3, 3, k=0.1)], torch=_condconv, tol=2e-5))


op(dict(name="unet_concat_conv_relu", text='''
def unet_concat_conv_relu(float(N,C,H,W) X, float(N,S,H,W) Skip, float(O,C+S,3,3) K, float(O) Bias) -> (Y) {
    Z(n, o, y, x) +=! (y + i >= 1 && y + i <= H && x + j >= 1 && x + j <= W) ? X(n, c, y + i - 1, x + j - 1) * K(o, c, i, j) : 0.0
        where y in 0:H, x in 0:W, c in 0:C
    Z(n, o, y, x) += (y + i >= 1 && y + i <= H && x + j >= 1 && x + j <= W) ? Skip(n, s, y + i - 1, x + j - 1) * K(o, C + s, i, j) : 0.0
        where y in 0:H, x in 0:W, s in 0:S
    Y(n, o, y, x) = relu(Z(n, o, y, x) + Bias(o))
}''', args=lambda g: [rn(g, 1, 32, 33, 46), rn(g, 1, 20, 33, 46), rn(g, 32, 52, 3, 3, k=0.05), rn(g, 32)],
    torch=lambda X, S, K, b: F.relu(F.conv2d(torch.cat([X, S], 1), K, b, padding=1)), tol=2e-5))


def _convlstm(X, Hp, Cp, Wx, Wh, b):
    G = F.conv2d(torch.cat([X, Hp], 1), torch.cat([Wx, Wh], 2).flatten(0, 1), b.flatten(), padding=1)
    i, f, o, c = G.chunk(4, 1)
    C = torch.sigmoid(f) * Cp + torch.sigmoid(i) * torch.tanh(c)
    return torch.sigmoid(o) * torch.tanh(C), C


op(dict(name="conv_lstm_step", text='''
def conv_lstm_step(float(N,C,H,W) X, float(N,F,H,W) Hp, float(N,F,H,W) Cp, float(4,F,C,3,3) Wx, float(4,F,F,3,3) Wh, float(4,F) Bias) -> (Hn, Cn) {
    G(n, g, f, y, x) +=! (y + i >= 1 && y + i <= H && x + j >= 1 && x + j <= W) ? X(n, c, y + i - 1, x + j - 1) * Wx(g, f, c, i, j) : 0.0 where y in 0:H, x in 0:W
    G(n, g, f, y, x) += (y + i >= 1 && y + i <= H && x + j >= 1 && x + j <= W) ? Hp(n, e, y + i - 1, x + j - 1) * Wh(g, f, e, i, j) : 0.0 where y in 0:H, x in 0:W
    G(n, g, f, y, x) = G(n, g, f, y, x) + Bias(g, f)
    Cn(n, f, y, x) = sigmoid(G(n, 1, f, y, x)) * Cp(n, f, y, x) + sigmoid(G(n, 0, f, y, x)) * tanh(G(n, 3, f, y, x))
    Hn(n, f, y, x) = sigmoid(G(n, 2, f, y, x)) * tanh(Cn(n, f, y, x))
}''', args=lambda g: [rn(g, 2, 8, 24, 30), rn(g, 2, 16, 24, 30), rn(g, 2, 16, 24, 30), rn(g, 4, 16, 8, 3, 3, k=0.1), rn(g, 4, 16, 16, 3, 3, k=0.1), rn(g, 4, 16)], torch=_convlstm, tol=2e-5))


op(dict(name="gru_cell_three_gates", text='''
def gru_cell_three_gates(float(B,I) X, float(B,J) Hp, float(3,J,I) Wi, float(3,J,J) Wh, float(3,J) Bi, float(3,J) Bh) -> (Hn) {
    A(b, g, h) +=! X(b, i) * Wi(g, h, i)
    U(b, g, h) +=! Hp(b, j) * Wh(g, h, j)
    A(b, g, h) = A(b, g, h) + Bi(g, h)
    U(b, g, h) = U(b, g, h) + Bh(g, h)
    Z(b, h) = sigmoid(A(b, 1, h) + U(b, 1, h))
    Nw(b, h) = tanh(A(b, 2, h) + sigmoid(A(b, 0, h) + U(b, 0, h)) * U(b, 2, h))
    Hn(b, h) = (1.0 - Z(b, h)) * Nw(b, h) + Z(b, h) * Hp(b, h)
}''', args=lambda g: [rn(g, 29, 90), rn(g, 29, 130), rn(g, 3, 130, 90, k=0.1), rn(g, 3, 130, 130, k=0.1), rn(g, 3, 130), rn(g, 3, 130)],
    torch=lambda X, H, W, U, b, c: torch.gru_cell(X, H, W.flatten(0, 1), U.flatten(0, 1), b.flatten(), c.flatten()), tol=2e-5))


def _lightconv(X, W):
    H, R = X.shape[2:]
    K = torch.softmax(W, 1).repeat_interleave(R, 0)[:, None]
    return F.conv1d(X.flatten(2).permute(1, 2, 0), K, padding=3, groups=H * R).permute(2, 0, 1).unflatten(2, (H, R))


op(dict(name="lightconv_softmax_kernel", text='''
def lightconv_softmax_kernel(float(T,B,H,R) X, float(H,7) Wt) -> (Y) {
    M(h) max=! Wt(h, k)
    Z(h) +=! exp(Wt(h, k) - M(h))
    K(h, k) = exp(Wt(h, k) - M(h)) / Z(h)
    Y(t, b, h, r) +=! (t + k >= 3 && t + k < T + 3) ? X(t + k - 3, b, h, r) * K(h, k) : 0.0 where t in 0:T
}''', args=lambda g: [rn(g, 120, 5, 8, 33), rn(g, 8, 7)], torch=_lightconv, tol=2e-5))


op(dict(name="bilinear_form_tanh", text='''
def bilinear_form_tanh(float(N,I) A, float(N,J) B, float(O,I,J) W, float(O) Bias) -> (Y) {
    S(n, o) +=! A(n, i) * W(o, i, j) * B(n, j)
    Y(n, o) = tanh(S(n, o) + Bias(o))
}''', args=lambda g: [rn(g, 64, 40), rn(g, 64, 51), rn(g, 30, 40, 51, k=0.02), rn(g, 30)], torch=lambda A, B, W, b: torch.tanh(F.bilinear(A, B, W, b)), tol=2e-5))


op(dict(name="baddbmm_transposed_f64", text='''
def baddbmm_transposed_f64(double(B,K,M) A, double(B,K,N) X, double(M,N) C) -> (Y) {
    Y(b, m, n) +=! A(b, k, m) * X(b, k, n)
    Y(b, m, n) = 2.0 * Y(b, m, n) + 0.5 * C(m, n)
}''', args=lambda g: [rn(g, 75, 45, 23, dt=f64), rn(g, 75, 45, 31, dt=f64), rn(g, 23, 31, dt=f64)],
    torch=lambda A, X, C: torch.baddbmm(C, A.mT, X, beta=0.5, alpha=2.0), tol=1e-12))


def _mixer(X, gain, beta, W1, b1, W2, b2):
    Z = F.layer_norm(X, X.shape[2:], gain, beta, 1e-6).transpose(1, 2)
    return X + F.linear(F.gelu(F.linear(Z, W1, b1)), W2, b2).transpose(1, 2)


op(dict(name="mixer_token_mlp", text='''
def mixer_token_mlp(float(B,T,C) X, float(C) Gain, float(C) Beta, float(S,T) W1, float(S) B1, float(T,S) W2, float(T) B2) -> (Y) {
    Mu(b, t) +=! X(b, t, c) / C
    Var(b, t) +=! (X(b, t, c) - Mu(b, t)) * (X(b, t, c) - Mu(b, t)) / C
    L(b, t, c) = (X(b, t, c) - Mu(b, t)) * rsqrt(Var(b, t) + 1e-6) * Gain(c) + Beta(c)
    U(b, s, c) +=! W1(s, t) * L(b, t, c)
    G(b, s, c) = 0.5 * u * (1.0 + erf(u * 0.7071067811865476)) where u = U(b, s, c) + B1(s)
    V(b, t, c) +=! W2(t, s) * G(b, s, c)
    Y(b, t, c) = X(b, t, c) + V(b, t, c) + B2(t)
}''', args=lambda g: [rn(g, 3, 196, 192), rn(g, 192), rn(g, 192), rn(g, 96, 196, k=0.07), rn(g, 96), rn(g, 196, 96, k=0.1), rn(g, 196)], torch=_mixer, tol=2e-5))


def _merge(X, gain, beta, W):
    Z = torch.cat([X[:, :, 0, :, 0], X[:, :, 1, :, 0], X[:, :, 0, :, 1], X[:, :, 1, :, 1]], -1)
    return F.linear(F.layer_norm(Z, Z.shape[-1:], gain, beta, 1e-5), W)


op(dict(name="swin_patch_merging", text='''
def swin_patch_merging(float(B,H,2,W,2,C) X, float(4*C) Gain, float(4*C) Beta, float(O,4*C) Wt) -> (Y) {
    P(b, y, x, q) = X(b, y, (q / C) % 2, x, q / (2 * C), q % C) where q in 0:4*C
    Mu(b, y, x) +=! P(b, y, x, q) / (4 * C)
    Var(b, y, x) +=! (P(b, y, x, q) - Mu(b, y, x)) * (P(b, y, x, q) - Mu(b, y, x)) / (4 * C)
    L(b, y, x, q) = (P(b, y, x, q) - Mu(b, y, x)) * rsqrt(Var(b, y, x) + 1e-5) * Gain(q) + Beta(q)
    Y(b, y, x, o) +=! L(b, y, x, q) * Wt(o, q)
}''', args=lambda g: [rn(g, 2, 14, 2, 14, 2, 96), rn(g, 384), rn(g, 384), rn(g, 192, 384, k=0.05)], torch=_merge, tol=2e-5))


# ---------------------------------------------------------------- pooling, resampling, gates over channels

op(dict(name="maxpool_nhwc_bf16", text='''
def maxpool_nhwc_bf16(bfloat16(N,H,W,C) X) -> (Y) {
    Y(n, y, x, c) max=! (2*y + i >= 1 && 2*y + i <= H && 2*x + j >= 1 && 2*x + j <= W) ? X(n, 2*y + i - 1, 2*x + j - 1, c) : -1e30
        where y in 0:(H+1)/2, x in 0:(W+1)/2, i in 0:3, j in 0:3
}''', args=lambda g: [rn(g, 4, 55, 56, 64, dt=bf16)], torch=lambda X: F.max_pool2d(X.permute(0, 3, 1, 2), 3, 2, 1).permute(0, 2, 3, 1), tol=0.0))


op(dict(name="adaptive_avg_pool_7x5", text='''
def adaptive_avg_pool_7x5(float(N,C,H,W) X) -> (Y) {
    S(n, c, i, x) +=! (y >= i * H / 7 && y < ((i + 1) * H + 6) / 7) ? X(n, c, y, x) : 0.0 where i in 0:7
    Y(n, c, i, j) +=! (x >= j * W / 5 && x < ((j + 1) * W + 4) / 5) ? S(n, c, i, x) : 0.0 where j in 0:5
    Y(n, c, i, j) = Y(n, c, i, j) / float((((i + 1) * H + 6) / 7 - i * H / 7) * (((j + 1) * W + 4) / 5 - j * W / 5))
}''', args=lambda g: [rn(g, 4, 64, 31, 47)], torch=lambda X: F.adaptive_avg_pool2d(X, (7, 5)), tol=2e-5))


op(dict(name="lp_pool_s2_f64", text='''
def lp_pool_s2_f64(double(N,C,H,W) X) -> (Y) {
    S(n, c, y, x) +=! X(n, c, 2*y + i, 2*x + j) * X(n, c, 2*y + i, 2*x + j) where i in 0:3, j in 0:3
    Y(n, c, y, x) = sqrt(S(n, c, y, x))
}''', args=lambda g: [rn(g, 3, 20, 45, 46, dt=f64)], torch=lambda X: F.lp_pool2d(X, 2.0, 3, stride=2), tol=1e-12))


def _blurpool(X):
    k = torch.tensor([0.25, 0.5, 0.25])
    C = X.shape[1]
    return F.conv2d(F.pad(X, (1, 1, 1, 1), mode="reflect"), (k[:, None] * k).expand(C, 1, 3, 3), stride=2, groups=C)


op(dict(name="blurpool_reflect", text='''
def blurpool_reflect(float(N,C,H,W) X) -> (Y) {
    V(n, c, y, w) +=! (i == 1 ? 0.5 : 0.25) * X(n, c, min(max(p, -p), 2*H - 2 - p), w) where p = 2*y + i - 1, y in 0:(H+1)/2, i in 0:3
    Y(n, c, y, x) +=! (j == 1 ? 0.5 : 0.25) * V(n, c, y, min(max(p, -p), 2*W - 2 - p)) where p = 2*x + j - 1, x in 0:(W+1)/2, j in 0:3
}''', args=lambda g: [rn(g, 2, 48, 57, 60)], torch=_blurpool, tol=2e-5))


def _fpn(Top, Lat, W, b):
    return F.interpolate(Top, scale_factor=2, mode="bilinear", align_corners=False) + F.conv2d(Lat, W[:, :, None, None], b)


op(dict(name="fpn_bilinear_lateral", text='''
def fpn_bilinear_lateral(float(N,O,H,W) Top, float(N,C,2*H,2*W) Lat, float(O,C) Wt, float(O) Bias) -> (Y) {
    R(n, o, y, w) = 0.75 * Top(n, o, y / 2, w) + 0.25 * Top(n, o, min(max(y / 2 + 2 * (y % 2) - 1, 0), H - 1), w) where y in 0:2*H
    Y(n, o, y, x) +=! Wt(o, c) * Lat(n, c, y, x)
    Y(n, o, y, x) = Y(n, o, y, x) + Bias(o) + 0.75 * R(n, o, y, x / 2) + 0.25 * R(n, o, y, min(max(x / 2 + 2 * (x % 2) - 1, 0), W - 1))
}''', args=lambda g: [rn(g, 2, 40, 15, 18), rn(g, 2, 56, 30, 36), rn(g, 40, 56, k=0.1), rn(g, 40)], torch=_fpn, tol=2e-5))


def _cbam(X, K):
    s = torch.stack([X.amax(1), X.mean(1)], 1)
    return X * torch.sigmoid(F.conv2d(s, K[None], padding=3))


op(dict(name="cbam_spatial_gate", text='''
def cbam_spatial_gate(float(N,C,H,W) X, float(2,7,7) K) -> (Y) {
    Mx(n, y, x) max=! X(n, c, y, x)
    Av(n, y, x) +=! X(n, c, y, x) / C
    T(n, y, x) +=! (y + i >= 3 && y + i < H + 3 && x + j >= 3 && x + j < W + 3)
        ? Mx(n, y + i - 3, x + j - 3) * K(0, i, j) + Av(n, y + i - 3, x + j - 3) * K(1, i, j) : 0.0 where y in 0:H, x in 0:W
    Y(n, c, y, x) = X(n, c, y, x) * sigmoid(T(n, y, x))
}''', args=lambda g: [rn(g, 3, 80, 32, 35), rn(g, 2, 7, 7, k=0.2)], torch=_cbam, tol=2e-5))


op(dict(name="eca_channel_gate_nhwc", text='''
def eca_channel_gate_nhwc(float(N,H,W,C) X, float(5) K) -> (Y) {
    P(n, c) +=! X(n, h, w, c) / (H * W)
    T(n, c) +=! (c + k >= 2 && c + k < C + 2) ? P(n, c + k - 2) * K(k) : 0.0 where c in 0:C
    Y(n, h, w, c) = X(n, h, w, c) * sigmoid(T(n, c))
}''', args=lambda g: [rn(g, 6, 20, 21, 112) + 0.2, rn(g, 5)],
    torch=lambda X, K: X * torch.sigmoid(F.conv1d(X.mean((1, 2))[:, None], K[None, None], padding=2))[:, None], tol=2e-5))


def _simam(X):
    d = (X - X.mean((2, 3), keepdim=True)).square()
    v = d.sum((2, 3), keepdim=True) / (X.shape[2] * X.shape[3] - 1)
    return X * torch.sigmoid(d / (4 * (v + 1e-4)) + 0.5)


op(dict(name="simam_energy_gate", text='''
def simam_energy_gate(float(N,C,H,W) X) -> (Y) {
    Mu(n, c) +=! X(n, c, h, w) / (H * W)
    V(n, c) +=! (X(n, c, h, w) - Mu(n, c)) * (X(n, c, h, w) - Mu(n, c)) / (H * W - 1)
    Y(n, c, h, w) = X(n, c, h, w) * sigmoid(d * d / (4.0 * (V(n, c) + 1e-4)) + 0.5) where d = X(n, c, h, w) - Mu(n, c)
}''', args=lambda g: [rn(g, 4, 64, 27, 29) + 0.3], torch=_simam, tol=2e-5))


def _soft_argmax(X):
    N, K, H, W = X.shape
    P = X.flatten(2).softmax(-1).view_as(X)
    x = (2 * torch.arange(W) + 1 - W) / W
    y = (2 * torch.arange(H) + 1 - H) / H
    return torch.stack([P.sum(2) @ x, P.sum(3) @ y], 2), P.amax((2, 3))


op(dict(name="soft_argmax_heatmaps", text='''
def soft_argmax_heatmaps(float(N,K,H,W) X) -> (Y, Conf) {
    M(n, k) max=! X(n, k, h, w)
    Z(n, k) +=! exp(X(n, k, h, w) - M(n, k))
    P(n, k, h, w) = exp(X(n, k, h, w) - M(n, k)) / Z(n, k)
    Y(n, k, a) +=! P(n, k, h, w) * (a == 0 ? float(2 * w + 1 - W) / W : float(2 * h + 1 - H) / H) where a in 0:2
    Conf(n, k) max=! P(n, k, h, w)
}''', args=lambda g: [rn(g, 8, 17, 48, 36, k=3.0)], torch=_soft_argmax, tol=5e-5))


# ---------------------------------------------------------------- norms, layouts, broadcasts, running sums

def _bn_train(X, gain, beta, Rm, Rv):
    rm, rv = Rm.clone(), Rv.clone()
    Y = F.batch_norm(X.permute(0, 3, 1, 2), rm, rv, gain, beta, True, 0.1, 1e-5)
    return Y.permute(0, 2, 3, 1), rm, rv


op(dict(name="batch_norm_train_nhwc", text='''
def batch_norm_train_nhwc(float(N,H,W,C) X, float(C) Gain, float(C) Beta, float(C) Rm, float(C) Rv) -> (Y, Rmn, Rvn) {
    Mu(c) +=! X(n, h, w, c) / (N * H * W)
    Var(c) +=! (X(n, h, w, c) - Mu(c)) * (X(n, h, w, c) - Mu(c)) / (N * H * W)
    Y(n, h, w, c) = (X(n, h, w, c) - Mu(c)) * rsqrt(Var(c) + 1e-5) * Gain(c) + Beta(c)
    Rmn(c) = 0.9 * Rm(c) + 0.1 * Mu(c)
    Rvn(c) = 0.9 * Rv(c) + 0.1 * Var(c) * (N * H * W) / (N * H * W - 1)
}''', args=lambda g: [rn(g, 8, 19, 22, 90) + 0.4, rn(g, 90), rn(g, 90), rn(g, 90), ru(g, 90, lo=0.5, hi=1.5)], torch=_bn_train, tol=3e-5))


def _grn(X, gamma, beta):
    n = X.square().sum((1, 2), keepdim=True).sqrt()
    return X + torch.addcmul(beta, gamma, X * (n / (n.mean(-1, keepdim=True) + 1e-6)))


op(dict(name="global_response_norm_nhwc", text='''
def global_response_norm_nhwc(float(N,H,W,C) X, float(C) Gamma, float(C) Beta) -> (Y) {
    G(n, c) +=! X(n, h, w, c) * X(n, h, w, c)
    A(n) +=! sqrt(G(n, c)) / C
    Y(n, h, w, c) = X(n, h, w, c) + Gamma(c) * X(n, h, w, c) * sqrt(G(n, c)) / (A(n) + 1e-6) + Beta(c)
}''', args=lambda g: [rn(g, 3, 14, 15, 256), rn(g, 256), rn(g, 256)], torch=_grn, tol=2e-5))


def _qknorm(X, gain, Cos, Sin):
    B, T, H, R, _ = X.shape
    n = F.rms_norm(X.flatten(3), (2 * R,), gain.flatten(), 1e-6).view_as(X)
    z = torch.view_as_complex(n) * torch.complex(Cos, Sin)[:, None]
    return torch.view_as_real(z.transpose(1, 2))


op(dict(name="qk_norm_rope_pairs", text='''
def qk_norm_rope_pairs(float(B,T,H,R,2) X, float(R,2) Gain, float(T,R) Cos, float(T,R) Sin) -> (Y) {
    S(b, t, h) +=! X(b, t, h, r, k) * X(b, t, h, r, k) / (2 * R)
    N(b, t, h, r, k) = X(b, t, h, r, k) * rsqrt(S(b, t, h) + 1e-6) * Gain(r, k)
    Y(b, h, t, r, k) = k == 0 ? N(b, t, h, r, 0) * Cos(t, r) - N(b, t, h, r, 1) * Sin(t, r) : N(b, t, h, r, 0) * Sin(t, r) + N(b, t, h, r, 1) * Cos(t, r) where k in 0:2
}''', args=lambda g: [rn(g, 2, 201, 8, 32, 2), rn(g, 32, 2), ru(g, 201, 32, lo=-1), ru(g, 201, 32, lo=-1)], torch=_qknorm, tol=2e-5))


op(dict(name="channel_shuffle_affine_relu6", text='''
def channel_shuffle_affine_relu6(float(N,G,C,H,W) X, float(G,C) Scale, float(G,C) Shift) -> (Y) {
    Y(n, c, g, y, x) = clamp(X(n, g, c, y, x) * Scale(g, c) + Shift(g, c), 0.0, 6.0)
}''', args=lambda g: [rn(g, 4, 3, 40, 28, 31), rn(g, 3, 40), rn(g, 3, 40)],
    torch=lambda X, s, b: torch.addcmul(b[:, :, None, None], X, s[:, :, None, None]).clamp(0, 6).transpose(1, 2).contiguous(), tol=1e-6))


def _shift(X):
    B, H, W, C = X.shape
    return X.roll((-3, -3), (1, 2)).view(B, H // 7, 7, W // 7, 7, C).transpose(2, 3).contiguous()


op(dict(name="cyclic_shift_windows_half", text='''
def cyclic_shift_windows_half(half(B,H,W,C) X) -> (Y) {
    Y(b, p, q, i, j, c) = X(b, (7*p + i + 3) % H, (7*q + j + 3) % W, c) where p in 0:H/7, q in 0:W/7, i in 0:7, j in 0:7
}''', args=lambda g: [rn(g, 3, 28, 35, 96, dt=f16)], torch=_shift, tol=0.0))


op(dict(name="pair_grid_silu", text='''
def pair_grid_silu(float(B,I,H,C) Q, float(B,J,H,C) K, float(I,J,C) Edge, float(B,H) Gate) -> (Y) {
    Z(b, i, j, h, c) = Q(b, i, h, c) + K(b, j, h, c) + Edge(i, j, c)
    Y(b, h, i, j, c) = Gate(b, h) * Z(b, i, j, h, c) * sigmoid(Z(b, i, j, h, c))
}''', args=lambda g: [rn(g, 2, 33, 6, 20), rn(g, 2, 45, 6, 20), rn(g, 33, 45, 20), rn(g, 2, 6)],
    torch=lambda Q, K, E, G: (F.silu(Q[:, :, None] + K[:, None] + E[:, :, None]) * G[:, None, None, :, None]).permute(0, 3, 1, 2, 4), tol=2e-5))


def _cln(X, gain, beta):
    B, C, T = X.shape
    n = C * torch.arange(1, T + 1)
    m = X.sum(1).cumsum(1) / n
    v = X.square().sum(1).cumsum(1) / n - m * m
    return (X - m[:, None]) * torch.rsqrt(v + 1e-5)[:, None] * gain[:, None] + beta[:, None]


op(dict(name="cumulative_layer_norm", text='''
def cumulative_layer_norm(float(B,C,T) X, float(C) Gain, float(C) Beta) -> (Y) {
    S(b, t) +=! X(b, c, t)
    Q(b, t) +=! X(b, c, t) * X(b, c, t)
    Mu(b, t) +=! (s <= t) ? S(b, s) : 0.0 where t in 0:T
    Sq(b, t) +=! (s <= t) ? Q(b, s) : 0.0 where t in 0:T
    Mu(b, t) = Mu(b, t) / (C * (t + 1))
    Var(b, t) = Sq(b, t) / (C * (t + 1)) - Mu(b, t) * Mu(b, t)
    Y(b, c, t) = (X(b, c, t) - Mu(b, t)) * rsqrt(Var(b, t) + 1e-5) * Gain(c) + Beta(c)
}''', args=lambda g: [rn(g, 4, 64, 499) + 0.2, rn(g, 64), rn(g, 64)], torch=_cln, tol=5e-5))


op(dict(name="bert_embeddings_layernorm", text='''
def bert_embeddings_layernorm(int64(B,T) Ids, int64(B,T) Kind, float(V,D) Word, float(T,D) Pos, float(2,D) Type, float(D) Gain, float(D) Beta) -> (Y) {
    E(b, t, d) = Word(Ids(b, t), d) + Pos(t, d) + Type(Kind(b, t), d)
    Mu(b, t) +=! E(b, t, d) / D
    Var(b, t) +=! (E(b, t, d) - Mu(b, t)) * (E(b, t, d) - Mu(b, t)) / D
    Y(b, t, d) = (E(b, t, d) - Mu(b, t)) * rsqrt(Var(b, t) + 1e-12) * Gain(d) + Beta(d)
}''', args=lambda g: [ri(g, 0, 9000, 8, 77), ri(g, 0, 2, 8, 77), rn(g, 9000, 384), rn(g, 77, 384), rn(g, 2, 384), rn(g, 384), rn(g, 384)],
    torch=lambda I, K, W, P, T, gain, beta: F.layer_norm(F.embedding(I, W) + P + F.embedding(K, T), W.shape[1:], gain, beta, 1e-12), tol=2e-5))


# ---------------------------------------------------------------- attention and decoding

op(dict(name="causal_packed_qkv", text='''
def causal_packed_qkv(float(B,T,3,H,D) Qkv) -> (Y) {
    S(b, h, i, j) +=! Qkv(b, i, 0, h, d) * Qkv(b, j, 1, h, d)
    S(b, h, i, j) = (j <= i) ? S(b, h, i, j) / sqrt(float(D)) : -infinity()
    M(b, h, i) max=! S(b, h, i, j)
    Z(b, h, i) +=! exp(S(b, h, i, j) - M(b, h, i))
    Y(b, i, h, d) +=! exp(S(b, h, i, j) - M(b, h, i)) / Z(b, h, i) * Qkv(b, j, 2, h, d)
}''', args=lambda g: [rn(g, 2, 129, 3, 6, 40)],
    torch=lambda X: F.scaled_dot_product_attention(*X.permute(2, 0, 3, 1, 4).unbind(0), is_causal=True).transpose(1, 2), tol=2e-5))


def _cross(Q, K, V, Pad):
    q, k, v = (t.permute(1, 2, 0, 3) for t in (Q, K, V))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~Pad[:, None, None]).permute(2, 0, 1, 3)


op(dict(name="cross_attention_time_major", text='''
def cross_attention_time_major(float(T,B,H,D) Q, float(S,B,H,D) K, float(S,B,H,D) V, bool(B,S) Pad) -> (Y) {
    L(b, h, t, s) +=! Q(t, b, h, d) * K(s, b, h, d)
    L(b, h, t, s) = Pad(b, s) ? -infinity() : L(b, h, t, s) / sqrt(float(D))
    M(b, h, t) max=! L(b, h, t, s)
    P(b, h, t, s) = exp(L(b, h, t, s) - M(b, h, t))
    Z(b, h, t) +=! P(b, h, t, s)
    Y(t, b, h, d) +=! P(b, h, t, s) * V(s, b, h, d)
    Y(t, b, h, d) = Y(t, b, h, d) / Z(b, h, t)
}''', args=lambda g: [rn(g, 60, 3, 8, 32), rn(g, 151, 3, 8, 32), rn(g, 151, 3, 8, 32), torch.arange(151) >= ri(g, 40, 152, 3)[:, None]], torch=_cross, tol=2e-5))


def _talking(Q, K, V, Pre, Post):
    L = Q @ K.transpose(2, 3) / math.sqrt(Q.shape[3])
    P = torch.softmax(torch.einsum("gh,bhij->bgij", Pre, L), -1)
    return torch.einsum("og,bgij->boij", Post, P) @ V


op(dict(name="talking_heads_attention", text='''
def talking_heads_attention(float(B,H,T,D) Q, float(B,H,T,D) K, float(B,H,T,D) V, float(G,H) Pre, float(H,G) Post) -> (Y) {
    L(b, h, i, j) +=! Q(b, h, i, d) * K(b, h, j, d) / sqrt(float(D))
    A(b, g, i, j) +=! Pre(g, h) * L(b, h, i, j)
    M(b, g, i) max=! A(b, g, i, j)
    E(b, g, i, j) = exp(A(b, g, i, j) - M(b, g, i))
    Z(b, g, i) +=! E(b, g, i, j)
    P(b, h, i, j) +=! Post(h, g) * E(b, g, i, j) / Z(b, g, i)
    Y(b, h, i, d) +=! P(b, h, i, j) * V(b, h, j, d)
}''', args=lambda g: [rn(g, 2, 6, 98, 32), rn(g, 2, 6, 98, 32), rn(g, 2, 6, 98, 32), rn(g, 9, 6, k=0.4), rn(g, 6, 9, k=0.4)], torch=_talking, tol=3e-5))


def _msarow(Q, K, V, Bias, Gate):
    L = torch.einsum("sihd,sjhd->shij", Q, K) / math.sqrt(Q.shape[3]) + Bias.permute(2, 0, 1)
    return torch.sigmoid(Gate) * torch.einsum("shij,sjhd->sihd", torch.softmax(L, -1), V)


op(dict(name="msa_row_attention_pair_bias", text='''
def msa_row_attention_pair_bias(float(S,I,H,D) Q, float(S,I,H,D) K, float(S,I,H,D) V, float(I,I,H) Bias, float(S,I,H,D) Gate) -> (Y) {
    L(s, h, i, j) +=! Q(s, i, h, d) * K(s, j, h, d)
    L(s, h, i, j) = L(s, h, i, j) / sqrt(float(D)) + Bias(i, j, h)
    M(s, h, i) max=! L(s, h, i, j)
    Z(s, h, i) +=! exp(L(s, h, i, j) - M(s, h, i))
    O(s, i, h, d) +=! exp(L(s, h, i, j) - M(s, h, i)) / Z(s, h, i) * V(s, j, h, d)
    Y(s, i, h, d) = sigmoid(Gate(s, i, h, d)) * O(s, i, h, d)
}''', args=lambda g: [rn(g, 24, 50, 8, 16), rn(g, 24, 50, 8, 16), rn(g, 24, 50, 8, 16), rn(g, 50, 50, 8), rn(g, 24, 50, 8, 16)], torch=_msarow, tol=2e-5))


def _samrel(Q, K, V, Rh, Rw):
    B, H, W, D = Q.shape
    L = (Q.flatten(1, 2) @ K.flatten(1, 2).transpose(1, 2)).view(B, H, W, H, W) / math.sqrt(D)
    L = L + torch.einsum("byxd,yud->byxu", Q, Rh)[..., None] + torch.einsum("byxd,xvd->byxv", Q, Rw)[..., None, :]
    return (torch.softmax(L.view(B, H * W, H * W), -1) @ V.flatten(1, 2)).view(B, H, W, D)


op(dict(name="sam_decomposed_rel_pos", text='''
def sam_decomposed_rel_pos(float(B,H,W,D) Q, float(B,H,W,D) K, float(B,H,W,D) V, float(H,H,D) Rh, float(W,W,D) Rw) -> (Y) {
    A(b, y, x, u) +=! Q(b, y, x, d) * Rh(y, u, d)
    C(b, y, x, v) +=! Q(b, y, x, d) * Rw(x, v, d)
    L(b, y, x, u, v) +=! Q(b, y, x, d) * K(b, u, v, d)
    L(b, y, x, u, v) = L(b, y, x, u, v) / sqrt(float(D)) + A(b, y, x, u) + C(b, y, x, v)
    M(b, y, x) max=! L(b, y, x, u, v)
    Z(b, y, x) +=! exp(L(b, y, x, u, v) - M(b, y, x))
    Y(b, y, x, d) +=! exp(L(b, y, x, u, v) - M(b, y, x)) / Z(b, y, x) * V(b, u, v, d)
}''', args=lambda g: [rn(g, 4, 14, 15, 64), rn(g, 4, 14, 15, 64), rn(g, 4, 14, 15, 64), rn(g, 14, 14, 64, k=0.2), rn(g, 15, 15, 64, k=0.2)], torch=_samrel, tol=3e-5))


def _xca(Q, K, V, tau):
    A = F.normalize(Q, dim=-1) @ F.normalize(K, dim=-1).transpose(2, 3) * tau[:, None, None]
    return (torch.softmax(A, -1) @ V).permute(0, 3, 1, 2)


op(dict(name="xcit_cross_covariance", text='''
def xcit_cross_covariance(float(B,H,D,N) Q, float(B,H,D,N) K, float(B,H,D,N) V, float(H) Tau) -> (Y) {
    Nq(b, h, d) +=! Q(b, h, d, n) * Q(b, h, d, n)
    Nk(b, h, e) +=! K(b, h, e, n) * K(b, h, e, n)
    A(b, h, d, e) +=! Q(b, h, d, n) * K(b, h, e, n)
    A(b, h, d, e) = Tau(h) * A(b, h, d, e) / (sqrt(Nq(b, h, d)) * sqrt(Nk(b, h, e)))
    M(b, h, d) max=! A(b, h, d, e)
    Z(b, h, d) +=! exp(A(b, h, d, e) - M(b, h, d))
    Y(b, n, h, d) +=! exp(A(b, h, d, e) - M(b, h, d)) / Z(b, h, d) * V(b, h, e, n)
}''', args=lambda g: [rn(g, 2, 4, 48, 197), rn(g, 2, 4, 48, 197), rn(g, 2, 4, 48, 197), ru(g, 4, lo=1.0, hi=5.0)], torch=_xca, tol=2e-5))


def _sage(Q, K, Sq, Sk, V):
    L = Q.float() @ K.float().transpose(1, 2) * Sq[:, :, None] * Sk[:, None]
    return torch.softmax(L, -1) @ V


op(dict(name="sage_int8_attention", text='''
def sage_int8_attention(int8(H,T,D) Q, int8(H,S,D) K, float(H,T) Sq, float(H,S) Sk, float(H,S,E) V) -> (Y) {
    C(h, i, j) +=! int32(Q(h, i, d)) * int32(K(h, j, d))
    L(h, i, j) = C(h, i, j) * Sq(h, i) * Sk(h, j)
    M(h, i) max=! L(h, i, j)
    Z(h, i) +=! exp(L(h, i, j) - M(h, i))
    Y(h, i, e) +=! exp(L(h, i, j) - M(h, i)) / Z(h, i) * V(h, j, e)
}''', args=lambda g: [ri(g, -127, 128, 6, 120, 64, dt=i8), ri(g, -127, 128, 6, 203, 64, dt=i8), ru(g, 6, 120, lo=0.005, hi=0.01), ru(g, 6, 203, lo=0.005, hi=0.01), rn(g, 6, 203, 64)],
    torch=_sage, tol=3e-5))


def _kvdecode(Q, Kc, Ks, Vc, Vs, Len):
    k, v = Kc.float() * Ks[..., None], Vc.float() * Vs[..., None]
    L = torch.einsum("bhd,bshd->bhs", Q, k) / math.sqrt(Q.shape[2])
    L = L.masked_fill((torch.arange(Kc.shape[1]) >= Len[:, None])[:, None], -torch.inf)
    return torch.einsum("bhs,bshd->bhd", torch.softmax(L, -1), v)


op(dict(name="int8_kv_cache_decode", text='''
def int8_kv_cache_decode(float(B,H,D) Q, int8(B,S,H,D) Kc, float(B,S,H) Ks, int8(B,S,H,D) Vc, float(B,S,H) Vs, int32(B) Len) -> (Y) {
    L(b, h, s) +=! Q(b, h, d) * Kc(b, s, h, d)
    L(b, h, s) = (s < Len(b)) ? L(b, h, s) * Ks(b, s, h) / sqrt(float(D)) : -infinity()
    M(b, h) max=! L(b, h, s)
    Z(b, h) +=! exp(L(b, h, s) - M(b, h))
    Y(b, h, d) +=! exp(L(b, h, s) - M(b, h)) / Z(b, h) * Vs(b, s, h) * Vc(b, s, h, d)
}''', args=lambda g: [rn(g, 3, 8, 64), ri(g, -127, 128, 3, 500, 8, 64, dt=i8), ru(g, 3, 500, 8, lo=0.005, hi=0.02), ri(g, -127, 128, 3, 500, 8, 64, dt=i8), ru(g, 3, 500, 8, lo=0.005, hi=0.02), ri(g, 100, 501, 3, dt=i32)],
    torch=_kvdecode, tol=3e-5))


def _penalties(X, Out, temp):
    c = torch.zeros_like(X).scatter_add(1, Out, torch.ones(Out.shape))
    x = torch.where(c > 0, torch.where(X > 0, X / 1.2, X * 1.2) - 0.3, X) - 0.1 * c
    p = torch.softmax(x / temp[:, None], -1)
    return torch.where(p < 0.02 * p.amax(-1, keepdim=True), 0.0, p)


op(dict(name="sampling_penalties_min_p", text='''
def sampling_penalties_min_p(float(B,V) X, int64(B,L) Out, float(B) Temp) -> (P) {
    C(b, Out(b, l)) +=! 1.0 where Out(b, l) in 0:V
    A(b, v) = (((C(b, v) > 0.0) ? ((X(b, v) > 0.0) ? X(b, v) / 1.2 : X(b, v) * 1.2) - 0.3 : X(b, v)) - 0.1 * C(b, v)) / Temp(b)
    M(b) max=! A(b, v)
    Z(b) +=! exp(A(b, v) - M(b))
    P(b, v) = (exp(A(b, v) - M(b)) < 0.02) ? 0.0 : exp(A(b, v) - M(b)) / Z(b)
}''', args=lambda g: [rn(g, 6, 32001, k=2.5), ri(g, 0, 32001, 6, 200), ru(g, 6, lo=0.7, hi=1.3)], torch=_penalties, tol=5e-5))


# ---------------------------------------------------------------- quantised convolutions and losses

def _qdw(X, K, b, m):
    A = F.conv2d(X.permute(0, 3, 1, 2).float() - 128, K.permute(2, 0, 1)[:, None].float(), groups=X.shape[3]).permute(0, 2, 3, 1) + b
    return torch.floor(A * m + 128.5).clamp(0, 255).to(u8)


op(dict(name="uint8_depthwise_requant", text='''
def uint8_depthwise_requant(uint8(N,H,W,C) X, int8(3,3,C) K, int32(C) Bias, float(C) Mult) -> (Y) {
    A(n, y, x, c) +=! (int32(X(n, y + i, x + j, c)) - 128) * int32(K(i, j, c))
    Y(n, y, x, c) = uint8(clamp(floor(float(A(n, y, x, c) + Bias(c)) * Mult(c) + 128.5), 0.0, 255.0))
}''', args=lambda g: [ri(g, 0, 256, 2, 40, 43, 64, dt=u8), ri(g, -128, 128, 3, 3, 64, dt=i8), ri(g, -2000, 2000, 64, dt=i32), ru(g, 64, lo=0.002, hi=0.008)], torch=_qdw, tol=0.005))


def _mixce(X, Ya, Yb, lam):
    ce = lambda y: F.cross_entropy(X, y, reduction="none", label_smoothing=0.1)
    return (lam * ce(Ya) + (1 - lam) * ce(Yb)).mean()


op(dict(name="mixup_smoothed_ce", text='''
def mixup_smoothed_ce(float(N,C) X, int64(N) Ya, int64(N) Yb, float(N) Lam) -> (Loss) {
    M(n) max=! X(n, c)
    Z(n) +=! exp(X(n, c) - M(n))
    A(n) +=! X(n, c) / C
    Loss +=! (M(n) + log(Z(n)) - 0.1 * A(n) - 0.9 * (Lam(n) * X(n, Ya(n)) + (1.0 - Lam(n)) * X(n, Yb(n)))) / N
}''', args=lambda g: [rn(g, 256, 1000, k=2.0), ri(g, 0, 1000, 256), ri(g, 0, 1000, 256), ru(g, 256)], torch=_mixce, tol=2e-5))


def _crf(Em, Tags, Mask, Tr, Start):
    m = Mask.float()
    e = (Em.gather(2, Tags[:, :, None])[:, :, 0] * m).sum(1)
    return e + (Tr[Tags[:, :-1], Tags[:, 1:]] * m[:, 1:]).sum(1) + Start[Tags[:, 0]]


op(dict(name="crf_gold_score", text='''
def crf_gold_score(float(B,T,K) Em, int64(B,T) Tags, bool(B,T) Mask, float(K,K) Tr, float(K) Start) -> (S) {
    S(b) +=! Mask(b, t) ? Em(b, t, Tags(b, t)) : 0.0
    S(b) += Mask(b, t + 1) ? Tr(Tags(b, t), Tags(b, t + 1)) : 0.0
    S(b) = S(b) + Start(Tags(b, 0))
}''', args=lambda g: [rn(g, 48, 121, 19), ri(g, 0, 19, 48, 121), torch.arange(121) < ri(g, 20, 122, 48)[:, None], rn(g, 19, 19), rn(g, 19)], torch=_crf, tol=2e-5))


def _viterbi(Sc, Tr, Em):
    v, i = (Sc[:, :, None] + Tr).max(1)
    return v + Em, i.int()


op(dict(name="viterbi_step_backpointers", text='''
def viterbi_step_backpointers(float(B,S) Sc, float(S,S) Tr, float(B,S) Em) -> (New, Bp) {
    A(b, i, j) = Sc(b, i) + Tr(i, j)
    M(b, j) max=! A(b, i, j)
    Bp(b, j) min=! (A(b, i, j) == M(b, j)) ? i : S
    New(b, j) = M(b, j) + Em(b, j)
}''', args=lambda g: [rn(g, 32, 61), rn(g, 61, 61), rn(g, 32, 61)], torch=_viterbi, tol=1e-6))


def _rnnt(Enc, Pred, W, b, Lab):
    L = F.linear(torch.tanh(Enc[:, :, None] + Pred[:, None]), W, b).log_softmax(-1)
    ix = Lab[:, None, :, None].expand(-1, L.shape[1], -1, 1)
    return L[..., 0], L.gather(3, ix)[..., 0]


op(dict(name="rnnt_joiner_logprobs", text='''
def rnnt_joiner_logprobs(float(B,T,D) Enc, float(B,U,D) Pred, float(V,D) Wt, float(V) Bias, int64(B,U) Lab) -> (Blank, Emit) {
    J(b, t, u, d) = tanh(Enc(b, t, d) + Pred(b, u, d))
    L(b, t, u, v) +=! J(b, t, u, d) * Wt(v, d)
    L(b, t, u, v) = L(b, t, u, v) + Bias(v)
    M(b, t, u) max=! L(b, t, u, v)
    Z(b, t, u) +=! exp(L(b, t, u, v) - M(b, t, u))
    Blank(b, t, u) = L(b, t, u, 0) - M(b, t, u) - log(Z(b, t, u))
    Emit(b, t, u) = L(b, t, u, Lab(b, u)) - M(b, t, u) - log(Z(b, t, u))
}''', args=lambda g: [rn(g, 2, 60, 64), rn(g, 2, 13, 64), rn(g, 129, 64, k=0.2), rn(g, 129), ri(g, 1, 129, 2, 13)], torch=_rnnt, tol=2e-5))


def _mvdr(Xr, Xi, M):
    X = torch.complex(Xr, Xi)
    P = torch.einsum("bcft,bft,beft->bfce", X, M.to(X.dtype), X.conj()) / M.sum(-1)[..., None, None]
    return P.real.contiguous(), P.imag.contiguous()


op(dict(name="mvdr_psd_masked", text='''
def mvdr_psd_masked(float(B,C,F,T) Xr, float(B,C,F,T) Xi, float(B,F,T) Mask) -> (Pr, Pi) {
    S(b, f) +=! Mask(b, f, t)
    Pr(b, f, c, e) +=! Mask(b, f, t) * (Xr(b, c, f, t) * Xr(b, e, f, t) + Xi(b, c, f, t) * Xi(b, e, f, t))
    Pi(b, f, c, e) +=! Mask(b, f, t) * (Xi(b, c, f, t) * Xr(b, e, f, t) - Xr(b, c, f, t) * Xi(b, e, f, t))
    Pr(b, f, c, e) = Pr(b, f, c, e) / S(b, f)
    Pi(b, f, c, e) = Pi(b, f, c, e) / S(b, f)
}''', args=lambda g: [rn(g, 1, 6, 129, 180), rn(g, 1, 6, 129, 180), ru(g, 1, 129, 180, lo=0.05)], torch=_mvdr, tol=2e-5))


# ---------------------------------------------------------------- vision

def _pwc(A, B):
    H, W = A.shape[2:]
    P = F.pad(B, (4, 4, 4, 4)).unfold(2, H, 1).unfold(3, W, 1)
    return F.leaky_relu(torch.einsum("nchw,ncpqhw->npqhw", A, P) / A.shape[1], 0.1)


op(dict(name="pwc_correlation_9x9", text='''
def pwc_correlation_9x9(float(N,C,H,W) A, float(N,C,H,W) B) -> (Y) {
    V(n, p, q, y, x) +=! (y + p >= 4 && y + p < H + 4 && x + q >= 4 && x + q < W + 4) ? A(n, c, y, x) * B(n, c, y + p - 4, x + q - 4) / C : 0.0
        where p in 0:9, q in 0:9, y in 0:H, x in 0:W
    Y(n, p, q, y, x) = V(n, p, q, y, x) > 0.0 ? V(n, p, q, y, x) : 0.1 * V(n, p, q, y, x)
}''', args=lambda g: [rn(g, 1, 32, 24, 40), rn(g, 1, 32, 24, 40)], torch=_pwc, tol=2e-5))


def _hough(E, c, s):
    y, x = E.nonzero().unbind(1)
    rho = torch.floor(c[:, None] * x + s[:, None] * y + 0.5).long() + 150
    return torch.zeros(c.shape[0], 301, dtype=i32).scatter_add(1, rho, torch.ones_like(rho, dtype=i32))


def a_hough(g):
    t = (torch.arange(90, dtype=f64) + 0.37) * (math.pi / 90)
    return [ru(g, 90, 119) < 0.05, torch.cos(t), torch.sin(t)]


op(dict(name="hough_line_votes", text='''
def hough_line_votes(bool(H,W) E, double(T) Cs, double(T) Sn) -> (Acc) {
    Rho(t, y, x) = int32(floor(x * Cs(t) + y * Sn(t) + 0.5)) + 150 where y in 0:H, x in 0:W
    Acc(t, Rho(t, y, x)) +=! E(y, x) ? 1 : 0 where Rho(t, y, x) in 0:301
}''', args=a_hough, torch=_hough, tol=0.0))


def _hog(I):
    gx, gy = I[1:-1, 2:] - I[1:-1, :-2], I[2:, 1:-1] - I[:-2, 1:-1]
    a = torch.atan2(gy, gx)
    pos = torch.where(a < 0, a + math.pi, a) * (9 / math.pi) - 0.5
    d = (pos[..., None] - torch.arange(9)).abs()
    v = torch.hypot(gx, gy)[..., None] * (1 - torch.minimum(d, 9 - d)).clamp_min(0)
    P, Q = v.shape[0] // 8, v.shape[1] // 8
    h = v[:8 * P, :8 * Q].reshape(P, 8, Q, 8, 9).sum((1, 3))
    return h * torch.rsqrt(h.square().sum(-1, keepdim=True) + 1e-6)


op(dict(name="hog_soft_bins", text='''
def hog_soft_bins(float(H,W) I) -> (Y) {
    Gx(y, x) = I(y + 1, x + 2) - I(y + 1, x) where y in 0:H-2
    Gy(y, x) = I(y + 2, x + 1) - I(y, x + 1) where x in 0:W-2
    A(y, x) = atan2(Gy(y, x), Gx(y, x))
    Pos(y, x) = (A(y, x) < 0.0 ? A(y, x) + 3.141592653589793 : A(y, x)) * 2.864788975654116 - 0.5
    Mag(y, x) = sqrt(Gx(y, x) * Gx(y, x) + Gy(y, x) * Gy(y, x))
    Hs(p, q, o) +=! Mag(8*p + i, 8*q + j) * max(1.0 - min(d, 9.0 - d), 0.0)
        where d = fabs(Pos(8*p + i, 8*q + j) - o), p in 0:(H-2)/8, q in 0:(W-2)/8, i in 0:8, j in 0:8, o in 0:9
    Nr(p, q) +=! Hs(p, q, o) * Hs(p, q, o)
    Y(p, q, o) = Hs(p, q, o) * rsqrt(Nr(p, q) + 1e-6)
}''', args=lambda g: [ru(g, 133, 197)], torch=_hog, tol=5e-5))


def _tsdf(T, Wt, Pose, Depth):
    g = torch.stack(torch.meshgrid(*(0.05 * torch.arange(n, dtype=f64) for n in T.shape), indexing="ij"))
    x, y, z = torch.einsum("ab,bijk->aijk", Pose[:, :3], g) + Pose[:, 3, None, None, None]
    u = torch.floor(100 * x / z + 64.5).long()
    v = torch.floor(100 * y / z + 48.5).long()
    H, W = Depth.shape
    inside = (u >= 0) & (u < W) & (v >= 0) & (v < H)
    d = torch.where(inside, Depth[v.clamp(0, H - 1), u.clamp(0, W - 1)], 0.0)
    ok = (d > 0) & (d - z > -0.1)
    return torch.where(ok, (T * Wt + ((d - z) / 0.1).clamp_max(1)) / (Wt + 1), T), torch.where(ok, Wt + 1, Wt)


def a_tsdf(g):
    pose = torch.cat([torch.eye(3, dtype=f64) + rn(g, 3, 3, dt=f64, k=0.05), torch.tensor([[-1.1], [-0.9], [1.03]], dtype=f64)], 1)
    return [rn(g, 40, 44, 36, dt=f64, k=0.5), ri(g, 0, 5, 40, 44, 36).double(), pose, ru(g, 96, 128, dt=f64, lo=1.0, hi=3.0) * (ru(g, 96, 128, dt=f64) > 0.1)]


op(dict(name="tsdf_integrate_depth", text='''
def tsdf_integrate_depth(double(X,Y,Z) T, double(X,Y,Z) Wt, double(3,4) Pose, double(H,W) Depth) -> (Tn, Wn) {
    C(a, i, j, k) = 0.05 * i * Pose(a, 0) + 0.05 * j * Pose(a, 1) + 0.05 * k * Pose(a, 2) + Pose(a, 3) where i in 0:X, j in 0:Y, k in 0:Z
    U(i, j, k) = int32(floor(100.0 * C(0, i, j, k) / C(2, i, j, k) + 64.5))
    V(i, j, k) = int32(floor(100.0 * C(1, i, j, k) / C(2, i, j, k) + 48.5))
    D(i, j, k) = (U(i, j, k) >= 0 && U(i, j, k) < W && V(i, j, k) >= 0 && V(i, j, k) < H) ? Depth(V(i, j, k), U(i, j, k)) : 0.0
    Ok(i, j, k) = D(i, j, k) > 0.0 && D(i, j, k) - C(2, i, j, k) > -0.1
    Tn(i, j, k) = Ok(i, j, k) ? (T(i, j, k) * Wt(i, j, k) + min((D(i, j, k) - C(2, i, j, k)) / 0.1, 1.0)) / (Wt(i, j, k) + 1.0) : T(i, j, k)
    Wn(i, j, k) = Ok(i, j, k) ? Wt(i, j, k) + 1.0 : Wt(i, j, k)
}''', args=a_tsdf, torch=_tsdf, tol=1e-9))


# ---------------------------------------------------------------- recommenders, graphs, scikit-learn

def _als(Fac, Items, Conf):
    E = Fac[Items]
    A = (E * Conf[..., None]).transpose(1, 2) @ E + Fac.T @ Fac + 0.1 * torch.eye(Fac.shape[1])
    return A, (E * (1 + Conf)[..., None]).sum(1)


op(dict(name="als_normal_matrices", text='''
def als_normal_matrices(float(V,K) Fac, int64(U,L) Items, float(U,L) Conf) -> (A, B) {
    G(i, j) +=! Fac(v, i) * Fac(v, j)
    A(u, i, j) +=! Conf(u, l) * Fac(Items(u, l), i) * Fac(Items(u, l), j)
    A(u, i, j) = A(u, i, j) + G(i, j) + (i == j ? 0.1 : 0.0)
    B(u, i) +=! (1.0 + Conf(u, l)) * Fac(Items(u, l), i)
}''', args=lambda g: [rn(g, 3000, 24, k=0.2), ri(g, 0, 3000, 128, 37), ru(g, 128, 37, lo=1.0, hi=20.0)], torch=_als, tol=2e-5))


def _cin(X0, Xk, W, b):
    Z = (Xk[:, :, None] * X0[:, None]).flatten(1, 2)
    Y = F.relu(F.conv1d(Z, W.flatten(1)[:, :, None], b))
    return Y, Y.sum(2)


op(dict(name="xdeepfm_cin_layer", text='''
def xdeepfm_cin_layer(float(B,M,D) X0, float(B,H,D) Xk, float(O,H,M) Wt, float(O) Bias) -> (Y, Pool) {
    Z(b, o, d) +=! Wt(o, h, m) * Xk(b, h, d) * X0(b, m, d)
    Y(b, o, d) = relu(Z(b, o, d) + Bias(o))
    Pool(b, o) +=! Y(b, o, d)
}''', args=lambda g: [rn(g, 96, 20, 10), rn(g, 96, 24, 10), rn(g, 32, 24, 20, k=0.05), rn(g, 32)], torch=_cin, tol=2e-5))


def _rgcn(X, Src, Dst, Rel, Coef, Basis, Root):
    Z = torch.einsum("ni,bio->nbo", X, Basis)
    msg = (Coef[Rel][:, :, None] * Z[Src]).sum(1)
    deg = torch.bincount(Dst, minlength=X.shape[0]).clamp_min(1)
    A = torch.zeros(X.shape[0], Root.shape[1]).index_add(0, Dst, msg)
    return F.relu(X @ Root + A / deg[:, None])


op(dict(name="rgcn_basis_edges", text='''
def rgcn_basis_edges(float(N,I) X, int64(E) Src, int64(E) Dst, int64(E) Rel, float(R,B) Coef, float(B,I,O) Basis, float(I,O) Root) -> (Y) {
    Deg(Dst(e)) +=! 1.0 where Dst(e) in 0:N
    Z(n, b, o) +=! X(n, i) * Basis(b, i, o)
    A(Dst(e), o) +=! Coef(Rel(e), b) * Z(Src(e), b, o) where Dst(e) in 0:N
    Y(n, o) +=! X(n, i) * Root(i, o)
    Y(n, o) = relu(Y(n, o) + A(n, o) / max(Deg(n), 1.0))
}''', args=lambda g: [rn(g, 800, 32), ri(g, 0, 800, 5000), ri(g, 0, 800, 5000), ri(g, 0, 11, 5000), rn(g, 11, 4), rn(g, 4, 32, 40, k=0.1), rn(g, 32, 40, k=0.1)], torch=_rgcn, tol=2e-5))


def _tsne(Y, P):
    d = Y[:, None] - Y
    q = 1 / (1 + d.square().sum(-1))
    q = q - torch.diag(q.diagonal())
    Q = q / q.sum()
    off = ~torch.eye(Y.shape[0], dtype=torch.bool)
    return 4 * (((P - Q) * q)[..., None] * d).sum(1), torch.where(off, P * torch.log(P / Q), 0.0).sum()


def a_tsne(g):
    p = torch.exp(-torch.cdist(x := rn(g, 400, 5, dt=f64), x))
    p = p - torch.diag(p.diagonal())
    return [rn(g, 400, 2, dt=f64), p / p.sum()]


op(dict(name="tsne_gradient_kl", text='''
def tsne_gradient_kl(double(N,2) Yl, double(N,N) P) -> (Grad, Kl) {
    R(i, j) +=! (Yl(i, d) - Yl(j, d)) * (Yl(i, d) - Yl(j, d))
    Q(i, j) = (i != j) ? 1.0 / (1.0 + R(i, j)) : 0.0
    Zs +=! Q(i, j)
    Grad(i, d) +=! 4.0 * (P(i, j) - Q(i, j) / Zs) * Q(i, j) * (Yl(i, d) - Yl(j, d))
    Kl +=! (i != j) ? P(i, j) * log(P(i, j) * Zs / Q(i, j)) : 0.0
}''', args=a_tsne, torch=_tsne, tol=1e-9))


def _gmm(X, Mu, Prec, LogPi):
    q = (Prec * (X[:, None] - Mu).square()).sum(-1)
    lp = 0.5 * (torch.log(Prec).sum(1) - q) + LogPi
    R = torch.softmax(lp, 1)
    nk = R.sum(0)
    return R.T @ X / nk[:, None], nk, torch.logsumexp(lp, 1).mean()


op(dict(name="gmm_diag_em_step", text='''
def gmm_diag_em_step(float(N,D) X, float(K,D) Mu, float(K,D) Prec, float(K) LogPi) -> (Mn, Nk, Ll) {
    Ld(k) +=! log(Prec(k, d))
    Lp(n, k) +=! Prec(k, d) * (X(n, d) - Mu(k, d)) * (X(n, d) - Mu(k, d))
    Lp(n, k) = 0.5 * (Ld(k) - Lp(n, k)) + LogPi(k)
    M(n) max=! Lp(n, k)
    Z(n) +=! exp(Lp(n, k) - M(n))
    Nk(k) +=! exp(Lp(n, k) - M(n)) / Z(n)
    Mn(k, d) +=! exp(Lp(n, k) - M(n)) / Z(n) * X(n, d)
    Mn(k, d) = Mn(k, d) / Nk(k)
    Ll +=! (M(n) + log(Z(n))) / N
}''', args=lambda g: [rn(g, 2000, 16), rn(g, 12, 16), ru(g, 12, 16, lo=0.5, hi=1.5), torch.log_softmax(rn(g, 12), 0)], torch=_gmm, tol=5e-5))


def _silhouette(X, Lab, Like):
    N, K = X.shape[0], Like.shape[0]
    D = torch.cdist(X, X, compute_mode="donot_use_mm_for_euclid_dist")
    S = torch.zeros(N, K).index_add(1, Lab, D)
    c = torch.bincount(Lab, minlength=K)
    own = F.one_hot(Lab, K).bool()
    a = S[own] / (c[Lab] - 1).clamp_min(1)
    b = (S / c).masked_fill(own, torch.inf).amin(1)
    return (b - a) / torch.maximum(a, b)


op(dict(name="silhouette_samples", text='''
def silhouette_samples(float(N,D) X, int64(N) Lab, float(K) Like) -> (Y) {
    Dist(i, j) +=! (X(i, d) - X(j, d)) * (X(i, d) - X(j, d))
    Dist(i, j) = sqrt(Dist(i, j))
    S(i, Lab(j)) +=! Dist(i, j) where Lab(j) in 0:K
    Cnt(Lab(j)) +=! 1.0 where Lab(j) in 0:K
    A(i) = S(i, Lab(i)) / max(Cnt(Lab(i)) - 1.0, 1.0)
    B(i) min=! (k != Lab(i)) ? S(i, k) / Cnt(k) : infinity()
    Y(i) = (B(i) - A(i)) / max(A(i), B(i))
}''', args=lambda g: [rn(g, 500, 10), torch.cat([torch.arange(7), ri(g, 0, 7, 493)]), torch.zeros(7)], torch=_silhouette, tol=1e-4))


# ---------------------------------------------------------------- time series, weather, chemistry, biology

def _lomb(t, y, w):
    a = w[:, None] * t
    tau = torch.atan2(torch.sin(2 * a).sum(1), torch.cos(2 * a).sum(1)) / (2 * w)
    a = w[:, None] * (t - tau[:, None])
    c, s = torch.cos(a), torch.sin(a)
    return 0.5 * ((c @ y).square() / c.square().sum(1) + (s @ y).square() / s.square().sum(1))


op(dict(name="lomb_scargle_tau", text='''
def lomb_scargle_tau(double(N) T, double(N) Yt, double(K) Om) -> (P) {
    S2(k) +=! sin(2.0 * Om(k) * T(n))
    C2(k) +=! cos(2.0 * Om(k) * T(n))
    Tau(k) = atan2(S2(k), C2(k)) / (2.0 * Om(k))
    C(k, n) = cos(Om(k) * (T(n) - Tau(k)))
    S(k, n) = sin(Om(k) * (T(n) - Tau(k)))
    Yc(k) +=! Yt(n) * C(k, n)
    Ys(k) +=! Yt(n) * S(k, n)
    Cc(k) +=! C(k, n) * C(k, n)
    Ss(k) +=! S(k, n) * S(k, n)
    P(k) = 0.5 * (Yc(k) * Yc(k) / Cc(k) + Ys(k) * Ys(k) / Ss(k))
}''', args=lambda g: [torch.sort(ru(g, 300, dt=f64, hi=50.0)).values, rn(g, 300, dt=f64), torch.linspace(0.2, 8.0, 401, dtype=f64)], torch=_lomb, tol=1e-9))


def _crps(E, O, w):
    M = E.shape[0]
    a = (E - O).abs().mean(0)
    b = (E[:, None] - E).abs().sum((0, 1)) / (2 * M * (M - 1))
    return ((a - b) * w[:, None]).mean((1, 2))


op(dict(name="crps_ensemble_fair", text='''
def crps_ensemble_fair(float(M,T,Y,X) Ens, float(T,Y,X) Obs, float(Y) Wt) -> (Crps) {
    A(t, y, x) +=! fabs(Ens(m, t, y, x) - Obs(t, y, x)) / M
    B(t, y, x) +=! fabs(Ens(m, t, y, x) - Ens(l, t, y, x)) / (2 * M * (M - 1))
    Crps(t) +=! (A(t, y, x) - B(t, y, x)) * Wt(y) / (Y * X)
}''', args=lambda g: [rn(g, 12, 3, 41, 60), rn(g, 3, 41, 60), torch.cos(torch.linspace(-1.5, 1.5, 41))], torch=_crps, tol=5e-5))


def _plev(T, P, Lev):
    K = (P[None] <= Lev[:, None, None, None]).sum(1).clamp(1, P.shape[0] - 1)
    L = torch.log(P)
    l0, l1, t0, t1 = L.gather(0, K - 1), L.gather(0, K), T.gather(0, K - 1), T.gather(0, K)
    return t0 + (torch.log(Lev)[:, None, None] - l0) / (l1 - l0) * (t1 - t0)


op(dict(name="pressure_level_interp", text='''
def pressure_level_interp(double(Z,Y,X) Tm, double(Z,Y,X) Pr, double(L) Lev) -> (O) {
    Lp(z, y, x) = log(Pr(z, y, x))
    N(l, y, x) +=! (Pr(z, y, x) <= Lev(l)) ? 1 : 0
    K(l, y, x) = min(max(N(l, y, x), 1), Z - 1)
    O(l, y, x) = Tm(K(l, y, x) - 1, y, x) + (log(Lev(l)) - Lp(K(l, y, x) - 1, y, x)) / (Lp(K(l, y, x), y, x) - Lp(K(l, y, x) - 1, y, x))
               * (Tm(K(l, y, x), y, x) - Tm(K(l, y, x) - 1, y, x))
}''', args=lambda g: [200 + rn(g, 20, 37, 48, dt=f64, k=10.0), ru(g, 20, 37, 48, dt=f64, lo=20.0, hi=80.0).cumsum(0), torch.linspace(150.0, 850.0, 9, dtype=f64)], torch=_plev, tol=1e-10))


def _gga(Ao, Dm, W):
    R = ((Ao[0] @ Dm) * Ao).sum(-1)
    rho, sg = R[0], 4 * R[1:].square().sum(0)
    s2 = sg / (38.283120002509214 * rho ** 2.6666666666666667)
    fx = 1.804 - 0.804 / (1 + 0.27302857309019 * s2)
    return rho, (W * -0.738558766382022 * rho ** 1.3333333333333333 * fx).sum()


def a_gga(g):
    c = rn(g, 60, 12, dt=f64)
    return [rn(g, 4, 1500, 60, dt=f64, k=0.2), c @ c.T, ru(g, 1500, dt=f64)]


op(dict(name="pbe_exchange_on_grid", text='''
def pbe_exchange_on_grid(double(4,G,N) Ao, double(N,N) Dm, double(G) Wt) -> (Rho, Exc) {
    C(g, m) +=! Ao(0, g, n) * Dm(n, m)
    R(a, g) +=! C(g, m) * Ao(a, g, m)
    Rho(g) = R(0, g)
    S2(g) = 4.0 * (R(1, g) * R(1, g) + R(2, g) * R(2, g) + R(3, g) * R(3, g)) / (38.283120002509214 * pow(R(0, g), 2.6666666666666667))
    Exc +=! Wt(g) * -0.738558766382022 * pow(R(0, g), 1.3333333333333333) * (1.804 - 0.804 / (1.0 + 0.27302857309019 * S2(g)))
}''', args=a_gga, torch=_gga, tol=1e-9))


def _ewald(X, q, box, alpha):
    d = X[:, None] - X
    r2 = (d - box * torch.round(d / box)).square().sum(-1)
    ok = (r2 < 20.25) & ~torch.eye(X.shape[0], dtype=torch.bool)
    r = torch.where(ok, r2, 1.0).sqrt()
    return torch.where(ok, 0.5 * q[:, None] * q * torch.erfc(alpha * r) / r, 0.0).sum(1)


op(dict(name="ewald_real_min_image", text='''
def ewald_real_min_image(double(N,3) X, double(N) Q, double box, double alpha) -> (E) {
    R2(i, j) +=! d * d where d = X(i, a) - X(j, a) - box * round((X(i, a) - X(j, a)) / box)
    E(i) +=! (i != j && R2(i, j) < 20.25) ? 0.5 * Q(i) * Q(j) * erfc(alpha * sqrt(R2(i, j))) / sqrt(R2(i, j)) : 0.0
}''', args=lambda g: [ru(g, 320, 3, dt=f64, hi=9.7), rn(g, 320, dt=f64), torch.tensor(9.7, dtype=f64), torch.tensor(0.6, dtype=f64)], torch=_ewald, tol=1e-9))


def _grm(G):
    V = (G >= 0).float()
    x = G.float() * V
    p = x.sum(0) / (2 * V.sum(0))
    Z = (x - 2 * p) * torch.rsqrt(2 * p * (1 - p)) * V
    return (Z @ Z.T) / (V @ V.T)


op(dict(name="grm_missing_genotypes", text='''
def grm_missing_genotypes(int8(N,M) G) -> (A) {
    V(n, m) = (G(n, m) >= 0) ? 1.0 : 0.0
    Nv(m) +=! V(n, m)
    P(m) +=! (G(n, m) >= 0) ? float(G(n, m)) : 0.0
    P(m) = P(m) / (2.0 * Nv(m))
    Z(n, m) = (G(n, m) >= 0) ? (float(G(n, m)) - 2.0 * P(m)) * rsqrt(2.0 * P(m) * (1.0 - P(m))) : 0.0
    C(i, j) +=! V(i, m) * V(j, m)
    A(i, j) +=! Z(i, m) * Z(j, m)
    A(i, j) = A(i, j) / C(i, j)
}''', args=lambda g: [torch.where(ru(g, 121, 1503) < 0.03, -1, (ru(g, 2, 121, 1503) < ru(g, 1503, lo=0.1, hi=0.5)).sum(0)).to(i8)], torch=_grm, tol=5e-5))


def _lddt(Pp, Pt):
    dp, dt = ((X[:, :, None] - X[:, None]).square().sum(-1).sqrt() for X in (Pp, Pt))
    ok = (dt < 15) & ~torch.eye(Pp.shape[1], dtype=torch.bool)
    e = (dp - dt).abs()
    s = 0.25 * sum((e < c).float() for c in (0.5, 1.0, 2.0, 4.0))
    return (s * ok).sum(2) / ok.sum(2).clamp_min(1)


op(dict(name="lddt_ca", text='''
def lddt_ca(double(B,N,3) Pp, double(B,N,3) Pt) -> (Y) {
    Dp(b, i, j) +=! (Pp(b, i, a) - Pp(b, j, a)) * (Pp(b, i, a) - Pp(b, j, a))
    Dt(b, i, j) +=! (Pt(b, i, a) - Pt(b, j, a)) * (Pt(b, i, a) - Pt(b, j, a))
    Err(b, i, j) = fabs(sqrt(Dp(b, i, j)) - sqrt(Dt(b, i, j)))
    S(b, i) +=! (i != j && Dt(b, i, j) < 225.0)
        ? 0.25 * ((Err(b, i, j) < 0.5 ? 1.0 : 0.0) + (Err(b, i, j) < 1.0 ? 1.0 : 0.0) + (Err(b, i, j) < 2.0 ? 1.0 : 0.0) + (Err(b, i, j) < 4.0 ? 1.0 : 0.0)) : 0.0
    C(b, i) +=! (i != j && Dt(b, i, j) < 225.0) ? 1.0 : 0.0
    Y(b, i) = S(b, i) / max(C(b, i), 1.0)
}''', args=lambda g: (lambda t: [t + rn(g, 2, 201, 3, dt=f64), t])(rn(g, 2, 201, 3, dt=f64, k=12.0)), torch=_lddt, tol=1e-6))


def _fape(Rp, Tp, Xp, Rt, Tt, Xt):
    local = lambda R, T, X: torch.einsum("fba,fpb->fpa", R, X - T[:, None])
    d = (local(Rp, Tp, Xp) - local(Rt, Tt, Xt)).square().sum(-1)
    return torch.sqrt(d + 1e-4).clamp_max(10).mean() / 10


op(dict(name="fape_loss", text='''
def fape_loss(float(F,3,3) Rp, float(F,3) Tp, float(P,3) Xp, float(F,3,3) Rt, float(F,3) Tt, float(P,3) Xt) -> (Loss) {
    Lp(f, p, a) +=! Rp(f, b, a) * (Xp(p, b) - Tp(f, b))
    Lt(f, p, a) +=! Rt(f, b, a) * (Xt(p, b) - Tt(f, b))
    D(f, p) +=! (Lp(f, p, a) - Lt(f, p, a)) * (Lp(f, p, a) - Lt(f, p, a))
    Loss +=! min(sqrt(D(f, p) + 1e-4), 10.0) / 10.0 / float(F * P)
}''', args=lambda g: [t for _ in range(2) for t in (torch.linalg.qr(rn(g, 120, 3, 3)).Q, rn(g, 120, 3, k=4.0), rn(g, 351, 3, k=4.0))], torch=_fape, tol=5e-5))


def _mi(Msa, W):
    L = Msa.shape[1]
    O = F.one_hot(Msa.long(), 5).float().flatten(1)
    Fr = ((O * W[:, None]).T @ O).view(L, 5, L, 5).permute(0, 2, 1, 3)
    P = (O * W[:, None]).sum(0).view(L, 5)
    return torch.xlogy(Fr, Fr / (P[:, None, :, None] * P[:, None, :])).sum((2, 3))


op(dict(name="msa_mutual_information", text='''
def msa_mutual_information(uint8(S,L) Msa, float(S) Wt) -> (Mi) {
    Fr(i, j, Msa(s, i), Msa(s, j)) +=! Wt(s) where Msa(s, i) in 0:5, Msa(s, j) in 0:5
    P(i, Msa(s, i)) +=! Wt(s) where Msa(s, i) in 0:5
    Mi(i, j) +=! (Fr(i, j, a, b) > 0.0) ? Fr(i, j, a, b) * log(Fr(i, j, a, b) / (P(i, a) * P(j, b))) : 0.0
}''', args=lambda g: [ri(g, 0, 5, 600, 41, dt=u8), (lambda w: w / w.sum())(ru(g, 600, lo=0.2))], torch=_mi, tol=5e-5))
