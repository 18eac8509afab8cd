# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Building blocks of networks in the layouts in which they come; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.networks import bf16, f16, f64, ri, rn, ru
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)


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
