# ruff: noqa: E501, E741 (a table: tensors have the names of the texts)
"""Operators of deep learning: each a def, arguments, what a PyTorch user writes, and the largest error relative to the largest
magnitude of a result."""
from __future__ import annotations

import torch
import torch.nn.functional as F

from generality.written_operators.operator import WrittenOperator

f32, f64, bf16 = torch.float32, torch.float64, torch.bfloat16
OPERATORS: list[WrittenOperator] = []


def r(g, *shape, dtype=f32, scale=1.0):
    return (torch.randn(*shape, generator=g) * scale).to(dtype)


def u(g, *shape, dtype=f32):
    return torch.rand(*shape, generator=g).to(dtype)


def ri(g, lo, hi, *shape, dtype=torch.int64):
    return torch.randint(lo, hi, shape, generator=g).to(dtype)


def op(name, text, args, torch_fn, tol=2e-5):
    OPERATORS.append(WrittenOperator(name, text, args, torch_fn, tol))


# RoPE, halves rotated; q is a slice of a packed qkv (non-contiguous)
def _rope(X, C, S):
    a, b = X.chunk(2, -1)
    c, s = C[:, None], S[:, None]
    return torch.cat([a * c - b * s, b * c + a * s], -1)

op("rope_half", """
def rope_half(float(B,T,H,2*R) X, float(T,R) Cos, float(T,R) Sin) -> (Y) {
    Y(b, t, h, d) = d < R ? X(b, t, h, d) * Cos(t, d) - X(b, t, h, d + R) * Sin(t, d)
                          : X(b, t, h, d) * Cos(t, d - R) + X(b, t, h, d - R) * Sin(t, d - R)
        where b in 0:B, t in 0:T, h in 0:H, d in 0:2*R
}""", lambda g: [r(g, 2, 333, 3, 12, 64)[:, :, 0], u(g, 333, 32), u(g, 333, 32)], _rope)

# SwiGLU of two projections, bfloat16
op("swiglu_bf16", """
def swiglu_bf16(bfloat16(N,I) X, bfloat16(O,I) Wg, bfloat16(O,I) Wu) -> (Y) {
    G(n, o) +=! X(n, i) * Wg(o, i)
    U(n, o) +=! X(n, i) * Wu(o, i)
    Y(n, o)   = G(n, o) * sigmoid(G(n, o)) * U(n, o)
}""", lambda g: [r(g, 77, 384, dtype=bf16), r(g, 1024, 384, dtype=bf16, scale=0.05), r(g, 1024, 384, dtype=bf16, scale=0.05)],
   lambda X, Wg, Wu: F.silu(X @ Wg.T) * (X @ Wu.T), 2e-2)

# residual add and RMS norm
def _rms(X, R, g):
    H = X + R
    return F.rms_norm(H, (H.shape[1],), g, 1e-6), H

op("add_rms_norm", """
def add_rms_norm(float(N,D) X, float(N,D) R, float(D) Gain) -> (Y, H) {
    H(n, d)  = X(n, d) + R(n, d)
    S(n)   +=! H(n, d) * H(n, d)
    Y(n, d)  = H(n, d) * rsqrt(S(n) / D + 1e-6) * Gain(d)
}""", lambda g: [r(g, 513, 768), r(g, 513, 768), u(g, 768)], _rms)

# LoRA
op("lora_linear", """
def lora_linear(float(N,I) X, float(O,I) W, float(R,I) A, float(O,R) B) -> (Y) {
    Y(n, o) +=! X(n, i) * W(o, i)
    T(n, r) +=! X(n, i) * A(r, i)
    Y(n, o)  += 0.5 * T(n, r) * B(o, r)
}""", lambda g: [r(g, 260, 512), r(g, 640, 512, scale=0.05), r(g, 16, 512, scale=0.05), r(g, 640, 16, scale=0.2)],
   lambda X, W, A, B: torch.addmm(X @ W.T, X @ A.T, B.T, alpha=0.5))

# mixture-of-experts combine from expert buffers
op("moe_combine", """
def moe_combine(bfloat16(T,K) Gate, int64(T,K) Expert, int64(T,K) Slot, bfloat16(E,C,D) Out) -> (Y) {
    Y(t, d) +=! Gate(t, k) * Out(Expert(t, k), Slot(t, k), d)
}""", lambda g: [torch.softmax(r(g, 600, 2), 1).to(bf16), ri(g, 0, 8, 600, 2), ri(g, 0, 150, 600, 2), r(g, 8, 150, 320, dtype=bf16)],
   lambda G, E, S, O: (G[:, :, None] * O[E, S]).sum(1), 2e-2)

# causal attention with ALiBi
def _alibi(Q, K, V, m):
    T = Q.shape[1]
    p = torch.arange(T)
    rel = p[:, None] - p
    bias = torch.where(rel >= 0, -m[:, None, None] * rel, float("-inf"))
    return F.scaled_dot_product_attention(Q[None], K[None], V[None], attn_mask=bias[None], scale=0.125)[0]

op("alibi_attention", """
def alibi_attention(float(H,T,D) Q, float(H,T,D) K, float(H,T,D) V, float(H) Slope) -> (O) {
    S(h, q, k) +=! Q(h, q, d) * K(h, k, d)
    E(h, q, k)   = k <= q ? exp(0.125 * S(h, q, k) - Slope(h) * (q - k)) : 0.0
    Z(h, q)    +=! E(h, q, k)
    O(h, q, d) +=! E(h, q, k) * V(h, k, d) / Z(h, q)
}""", lambda g: [r(g, 6, 250, 64), r(g, 6, 250, 64), r(g, 6, 250, 64), 2.0 ** -torch.arange(1.0, 7.0)], _alibi)

# sliding-window attention with a bias per offset; q, k, v are (T,H,D) permuted
def _window(Q, K, V, Bias):
    W = Bias.shape[1]
    T, R = Q.shape[1], W // 2
    Kp, Vp = (F.pad(t, (0, 0, R, R)).unfold(1, W, 1) for t in (K, V))
    pos = torch.arange(T)[:, None] + torch.arange(W) - R
    S = torch.einsum("hqd,hqdw->hqw", Q, Kp) * 0.2 + Bias[:, None]
    P = S.masked_fill((pos < 0) | (pos >= T), float("-inf")).softmax(-1)
    return torch.einsum("hqw,hqdw->hqd", P, Vp)

op("sliding_window_attention", """
def sliding_window_attention(float(H,T,D) Q, float(H,T,D) K, float(H,T,D) V, float(H,W) Bias) -> (O) {
    S(h, q, w) +=! (q + w >= W/2 && q + w < T + W/2) ? Q(h, q, d) * K(h, q + w - W/2, d) : 0.0 where w in 0:W, q in 0:T
    E(h, q, w)   = (q + w >= W/2 && q + w < T + W/2) ? exp(0.2 * S(h, q, w) + Bias(h, w)) : 0.0
    Z(h, q)    +=! E(h, q, w)
    O(h, q, d) +=! (q + w >= W/2 && q + w < T + W/2) ? E(h, q, w) * V(h, q + w - W/2, d) / Z(h, q) : 0.0
}""", lambda g: [r(g, 700, 4, 24).permute(1, 0, 2), r(g, 700, 4, 24).permute(1, 0, 2), r(g, 700, 4, 24).permute(1, 0, 2), r(g, 4, 33)], _window)

# two block-diagonal factors (Monarch)
op("monarch", """
def monarch(float(N,G,I) X, float(G,I,O) L, float(O,G,P) R) -> (Y) {
    T(n, g, o) +=! X(n, g, i) * L(g, i, o)
    Y(n, p, o) +=! T(n, g, o) * R(o, g, p)
}""", lambda g: [r(g, 300, 24, 30), r(g, 24, 30, 28, scale=0.2), r(g, 28, 24, 20, scale=0.2)],
   lambda X, L, R: torch.bmm(torch.bmm(X.transpose(0, 1), L).permute(2, 1, 0), R).permute(1, 2, 0))

# grouped-query attention scores, q permuted
def _gqa(Q, K):
    B, H, T, D = Q.shape
    G = K.shape[1]
    return (Q.reshape(B, G, H // G * T, D) @ K.transpose(2, 3)).view(B, H, T, K.shape[2])

op("gqa_scores", """
def gqa_scores(float(B,H,T,D) Q, float(B,G,S,D) K) -> (A) {
    A(b, h, t, s) +=! Q(b, h, t, d) * K(b, h/4, s, d)
}""", lambda g: [r(g, 1, 120, 16, 96, scale=0.3).permute(0, 2, 1, 3), r(g, 1, 4, 391, 96, scale=0.3)], _gqa)

# the same in bfloat16: VerifyError at its first call (see check_dl.py); passes with S=256, T=128
op("gqa_scores_bf16", """
def gqa_scores_bf16(bfloat16(B,H,T,D) Q, bfloat16(B,G,S,D) K) -> (A) {
    A(b, h, t, s) +=! Q(b, h, t, d) * K(b, h/4, s, d)
}""", lambda g: [r(g, 1, 120, 16, 96, dtype=bf16, scale=0.3).permute(0, 2, 1, 3), r(g, 1, 4, 391, 96, dtype=bf16, scale=0.3)], _gqa, 1e-2)

# linear attention
def _linatt(Q, K, V):
    q, k = F.relu(Q) + 0.001, F.relu(K) + 0.001
    z = q @ k.sum(1)[:, :, None]
    return q @ (k.transpose(1, 2) @ V) / z

op("linear_attention", """
def linear_attention(float(H,T,D) Q, float(H,T,D) K, float(H,T,E) V) -> (O) {
    KV(h, d, e) +=! (relu(K(h, t, d)) + 0.001) * V(h, t, e)
    Ks(h, d)    +=! relu(K(h, t, d)) + 0.001
    Z(h, t)     +=! (relu(Q(h, t, d)) + 0.001) * Ks(h, d)
    O(h, t, e)  +=! (relu(Q(h, t, d)) + 0.001) * KV(h, d, e) / Z(h, t)
}""", lambda g: [r(g, 8, 1021, 32), r(g, 8, 1021, 32), r(g, 8, 1021, 48)], _linatt)

# cosine similarity matrix
op("cosine_matrix", """
def cosine_matrix(float(N,D) X, float(M,D) Y) -> (C) {
    A(n)    +=! X(n, d) * X(n, d)
    B(m)    +=! Y(m, d) * Y(m, d)
    C(n, m) +=! X(n, d) * Y(m, d)
    C(n, m)   = C(n, m) * rsqrt(A(n) * B(m))
}""", lambda g: [r(g, 450, 200), r(g, 377, 200)], lambda X, Y: F.normalize(X, dim=1) @ F.normalize(Y, dim=1).T)

# pairwise L1
op("pairwise_l1", """
def pairwise_l1(float(N,D) X, float(M,D) Y) -> (Z) {
    Z(n, m) +=! fabs(X(n, d) - Y(m, d))
}""", lambda g: [r(g, 300, 50), r(g, 257, 50)], lambda X, Y: torch.cdist(X, Y, p=1))

# Gaussian kernel matrix, float64, one side a transposed view
op("rbf_kernel_f64", """
def rbf_kernel_f64(double(N,D) X, double(M,D) Y, double(D) L) -> (K) {
    S(n, m) +=! (X(n, d) - Y(m, d)) * (X(n, d) - Y(m, d)) * L(d)
    K(n, m)   = exp(-0.5 * S(n, m))
}""", lambda g: [r(g, 410, 12, dtype=f64), r(g, 12, 350, dtype=f64).T, u(g, 12, dtype=f64)],
   lambda X, Y, L: torch.exp(-0.5 * torch.cdist(X * L.sqrt(), Y * L.sqrt()) ** 2), 1e-9)

# factorisation machine over embedded fields
op("factorisation_machine", """
def factorisation_machine(int64(N,F) I, float(V,K) T) -> (Y) {
    S(n, k) +=! T(I(n, f), k)
    Q(n, k) +=! T(I(n, f), k) * T(I(n, f), k)
    Y(n)    +=! 0.5 * (S(n, k) * S(n, k) - Q(n, k))
}""", lambda g: [ri(g, 0, 20000, 1024, 26), r(g, 20000, 16)],
   lambda I, T: 0.5 * (lambda E: E.sum(1).square() - E.square().sum(1))(T[I]).sum(1))

# squeeze and excite
def _se(X, W1, W2):
    s = torch.sigmoid(F.relu(X.mean((2, 3)) @ W1.T) @ W2.T)
    return X * s[:, :, None, None]

op("squeeze_excite", """
def squeeze_excite(float(B,C,H,W) X, float(R,C) W1, float(C,R) W2) -> (Y) {
    P(b, c)      +=! X(b, c, h, w) / (H * W)
    A(b, r)      +=! P(b, c) * W1(r, c)
    G(b, c)      +=! relu(A(b, r)) * W2(c, r)
    Y(b, c, h, w)  = X(b, c, h, w) * sigmoid(G(b, c))
}""", lambda g: [r(g, 8, 96, 28, 28) + 0.3, r(g, 6, 96), r(g, 96, 6)], _se)

# depthwise-separable convolution
op("depthwise_separable", """
def depthwise_separable(float(N,C,H,W) X, float(C,3,3) D, float(O,C) P) -> (Y) {
    T(n, c, y, x) +=! (y + i >= 1 && y + i <= H && x + j >= 1 && x + j <= W) ? X(n, c, y + i - 1, x + j - 1) * D(c, i, j) : 0.0
        where y in 0:H, x in 0:W
    Y(n, o, y, x) +=! relu(T(n, c, y, x)) * P(o, c)
}""", lambda g: [r(g, 2, 48, 45, 61), r(g, 48, 3, 3), r(g, 80, 48)],
   lambda X, D, P: F.conv2d(F.relu(F.conv2d(X, D[:, None], padding=1, groups=X.shape[1])), P[:, :, None, None]))

# dilated causal conv1d with gate
op("causal_dilated_conv", """
def causal_dilated_conv(float(N,C,T) X, float(O,C,K) Wf, float(O,C,K) Wg) -> (Y) {
    A(n, o, t) +=! t + 4*k >= 4*(K - 1) ? X(n, c, t + 4*k - 4*(K - 1)) * Wf(o, c, k) : 0.0 where t in 0:T
    B(n, o, t) +=! t + 4*k >= 4*(K - 1) ? X(n, c, t + 4*k - 4*(K - 1)) * Wg(o, c, k) : 0.0 where t in 0:T
    Y(n, o, t)   = tanh(A(n, o, t)) * sigmoid(B(n, o, t))
}""", lambda g: [r(g, 3, 40, 1000), r(g, 40, 40, 3, scale=0.1), r(g, 40, 40, 3, scale=0.1)],
   lambda X, Wf, Wg: (lambda z: torch.tanh(F.conv1d(z, Wf, dilation=4)) * torch.sigmoid(F.conv1d(z, Wg, dilation=4)))(F.pad(X, (8, 0))))

# nearest upsampling by 2 and 3x3 convolution
op("upsample_conv", """
def upsample_conv(float(N,C,H,W) X, float(O,C,3,3) K) -> (Y) {
    Y(n, o, y, x) +=! (y + i >= 1 && y + i <= 2*H && x + j >= 1 && x + j <= 2*W) ? X(n, c, (y + i - 1)/2, (x + j - 1)/2) * K(o, c, i, j) : 0.0
        where y in 0:2*H, x in 0:2*W
}""", lambda g: [r(g, 1, 32, 21, 30), r(g, 24, 32, 3, 3, scale=0.1)],
   lambda X, K: F.conv2d(F.interpolate(X, scale_factor=2, mode="nearest"), K, padding=1))

# im2col
op("unfold3", """
def unfold3(float(N,C,H,W) X) -> (U) {
    U(n, p, l) = X(n, p/9, l/(W - 2) + (p/3) % 3, l % (W - 2) + p % 3) where p in 0:9*C, l in 0:(H - 2)*(W - 2)
}""", lambda g: [r(g, 2, 17, 40, 55)], lambda X: F.unfold(X, 3), 0.0)

# local response norm
op("local_response_norm", """
def local_response_norm(float(N,C,H,W) X) -> (Y) {
    S(n, c, h, w) +=! (c + k >= 2 && c + k < C + 2) ? X(n, c + k - 2, h, w) * X(n, c + k - 2, h, w) : 0.0
        where k in 0:5, c in 0:C, h in 0:H, w in 0:W
    Y(n, c, h, w)   = X(n, c, h, w) * pow(2.0 + 2e-5 * S(n, c, h, w), -0.75)
}""", lambda g: [r(g, 4, 64, 27, 27, scale=30.0)], lambda X: F.local_response_norm(X, 5, alpha=1e-4, beta=0.75, k=2.0))

# Fourier neural operator: complex weights per mode
def _fno(Xr, Xi, Wr, Wi):
    Z = torch.einsum("bimn,iomn->bomn", torch.complex(Xr, Xi), torch.complex(Wr, Wi))
    return Z.real, Z.imag

op("fno_modes", """
def fno_modes(float(B,I,M,N) Xr, float(B,I,M,N) Xi, float(I,O,M,N) Wr, float(I,O,M,N) Wi) -> (Yr, Yi) {
    Yr(b, o, m, n) +=! Xr(b, i, m, n) * Wr(i, o, m, n) - Xi(b, i, m, n) * Wi(i, o, m, n)
    Yi(b, o, m, n) +=! Xr(b, i, m, n) * Wi(i, o, m, n) + Xi(b, i, m, n) * Wr(i, o, m, n)
}""", lambda g: [r(g, 7, 20, 12, 12), r(g, 7, 20, 12, 12), r(g, 20, 20, 12, 12), r(g, 20, 20, 12, 12)], _fno)

# tensor-train linear layer, float64
op("tensor_train_f64", """
def tensor_train_f64(double(B,P,Q,R) X, double(P,I,A) G1, double(A,Q,J,C) G2, double(C,R,K) G3) -> (Y) {
    Y(b, i, j, k) +=! X(b, p, q, r) * G1(p, i, a) * G2(a, q, j, c) * G3(c, r, k)
}""", lambda g: [r(g, 60, 8, 8, 9, dtype=f64), r(g, 8, 6, 5, dtype=f64), r(g, 5, 8, 7, 5, dtype=f64), r(g, 5, 9, 6, dtype=f64)],
   lambda X, A, B, C: torch.einsum("bpqr,pia,aqjc,crk->bijk", X, A, B, C), 1e-11)

# LSTM cell
def _lstm(X, H, C, W, U, b):
    h, c = torch.lstm_cell(X, (H, C), W.flatten(0, 1), U.flatten(0, 1), b.flatten(), torch.zeros_like(b.flatten()))
    return h, c

op("lstm_cell", """
def lstm_cell(float(B,I) X, float(B,H) Hp, float(B,H) Cp, float(4,H,I) W, float(4,H,H) U, float(4,H) Bias) -> (Hn, Cn) {
    G(b, g, h) +=! X(b, i) * W(g, h, i)
    G(b, g, h)  += Hp(b, j) * U(g, h, j)
    Cn(b, h)     = sigmoid(G(b, 1, h) + Bias(1, h)) * Cp(b, h) + sigmoid(G(b, 0, h) + Bias(0, h)) * tanh(G(b, 2, h) + Bias(2, h))
    Hn(b, h)     = sigmoid(G(b, 3, h) + Bias(3, h)) * tanh(Cn(b, h))
}""", lambda g: [r(g, 37, 100), r(g, 37, 150), r(g, 37, 150), r(g, 4, 150, 100, scale=0.1), r(g, 4, 150, 150, scale=0.1), r(g, 4, 150)], _lstm)

# RWKV step
def _rwkv(R, K, V, W, U, S):
    kv = K[..., :, None] * V[..., None, :]
    return torch.einsum("bhd,bhde->bhe", R, S + U[:, :, None] * kv), W[..., None] * S + kv

op("rwkv_step", """
def rwkv_step(float(B,H,D) R, float(B,H,D) K, float(B,H,E) V, float(B,H,D) W, float(H,D) U, float(B,H,D,E) S) -> (O, Sn) {
    O(b, h, e)   +=! R(b, h, d) * (S(b, h, d, e) + U(h, d) * K(b, h, d) * V(b, h, e))
    Sn(b, h, d, e) = W(b, h, d) * S(b, h, d, e) + K(b, h, d) * V(b, h, e)
}""", lambda g: [r(g, 5, 12, 64), r(g, 5, 12, 64), r(g, 5, 12, 64), u(g, 5, 12, 64), r(g, 12, 64), r(g, 5, 12, 64, 64)], _rwkv)

# cross entropy with label smoothing
op("label_smoothing_ce", """
def label_smoothing_ce(float(N,C) X, int64(N) Y) -> (L) {
    M(n) max=! X(n, c)
    S(n)  +=! exp(X(n, c) - M(n))
    A(n)  +=! X(n, c)
    L     +=! (log(S(n)) + M(n) - 0.9 * X(n, Y(n)) - 0.1 * A(n) / C) / N
}""", lambda g: [r(g, 500, 1003, scale=2.0), ri(g, 0, 1003, 500)], lambda X, Y: F.cross_entropy(X, Y, label_smoothing=0.1))

# InfoNCE
op("info_nce", """
def info_nce(float(N,D) A, float(N,D) B) -> (Loss) {
    L(i, j) +=! A(i, d) * B(j, d) / 0.07
    M(i)  max=! L(i, j)
    S(i)    +=! exp(L(i, j) - M(i))
    Loss    +=! (log(S(i)) + M(i) - L(i, i)) / N
}""", lambda g: [F.normalize(r(g, 384, 128), dim=1), F.normalize(r(g, 384, 128), dim=1)],
   lambda A, B: F.cross_entropy(A @ B.T / 0.07, torch.arange(len(A))))

# int8 weights with scales per group of 64
op("int8_group_linear", """
def int8_group_linear(float(N,I) X, int8(O,I) W, float(O,G) S) -> (Y) {
    Y(n, o) +=! X(n, i) * W(o, i) * S(o, i/64)
}""", lambda g: [r(g, 9, 1024), ri(g, -128, 128, 768, 1024, dtype=torch.int8), u(g, 768, 16)],
   lambda X, W, S: X @ (W.view(len(W), -1, 64) * S[:, :, None]).flatten(1).T)

# dynamically quantised activations (fake quant per row), bias
def _fq(X, W):
    m = X.abs().amax(1, keepdim=True)
    q = torch.floor(X * (127.0 / m) + 0.5)
    return (q @ W.T) * (m / 127.0)

op("fake_quant_linear", """
def fake_quant_linear(float(N,I) X, float(O,I) W) -> (Y) {
    M(n) max=! fabs(X(n, i))
    Q(n, i)  = floor(X(n, i) * (127.0 / M(n)) + 0.5)
    Y(n, o) +=! Q(n, i) * W(o, i)
    Y(n, o)  = Y(n, o) * (M(n) / 127.0)
}""", lambda g: [r(g, 200, 330), r(g, 410, 330)], _fq, 5e-3)

# Gram-matrix style loss
def _gram(X, T):
    Y = X.flatten(2)
    return ((Y @ Y.transpose(1, 2)) / (Y.shape[1] * Y.shape[2]) - T).square().sum()

op("gram_style_loss", """
def gram_style_loss(float(B,C,H,W) X, float(B,C,C) T) -> (L) {
    G(b, c, d) +=! X(b, c, h, w) * X(b, d, h, w) / (C * H * W)
    L          +=! (G(b, c, d) - T(b, c, d)) * (G(b, c, d) - T(b, c, d))
}""", lambda g: [r(g, 2, 64, 50, 47), r(g, 2, 64, 64, scale=0.01)], _gram)

# total variation
op("total_variation", """
def total_variation(float(N,C,H,W) X) -> (V) {
    V +=! fabs(X(n, c, h + 1, w) - X(n, c, h, w))
    V  += fabs(X(n, c, h, w + 1) - X(n, c, h, w))
}""", lambda g: [r(g, 2, 3, 201, 319)],
   lambda X: (X[:, :, 1:] - X[:, :, :-1]).abs().sum() + (X[..., 1:] - X[..., :-1]).abs().sum(), 1e-4)

# windowed covariance of SSIM, gaussian window
def _cov(X, Y, w):
    k = (w[:, None] * w)[None, None]
    mx, my, xy = F.conv2d(torch.stack([X, Y, X * Y], 1).flatten(0, 1)[:, None], k).unflatten(0, (-1, 3)).squeeze(2).unbind(1)
    return xy - mx * my

op("ssim_covariance", """
def ssim_covariance(float(N,H,W) X, float(N,H,W) Y, float(K) G) -> (C) {
    A(n, y, x) +=! X(n, y + i, x + j) * G(i) * G(j)
    B(n, y, x) +=! Y(n, y + i, x + j) * G(i) * G(j)
    C(n, y, x) +=! X(n, y + i, x + j) * Y(n, y + i, x + j) * G(i) * G(j)
    C(n, y, x)   = C(n, y, x) - A(n, y, x) * B(n, y, x)
}""", lambda g: [u(g, 3, 128, 150), u(g, 3, 128, 150), torch.softmax(-(torch.arange(11.0) - 5) ** 2 / 4.5, 0)], _cov, 1e-4)

# log-sum-exp product of matrices (B transposed view)
op("logsumexp_matmul", """
def logsumexp_matmul(float(N,K) A, float(K,M) B) -> (Y) {
    X(n, m) max=! A(n, k) + B(k, m)
    S(n, m)  +=! exp(A(n, k) + B(k, m) - X(n, m))
    Y(n, m)    = X(n, m) + log(S(n, m))
}""", lambda g: [r(g, 150, 64, scale=3.0), r(g, 110, 64, scale=3.0).T], lambda A, B: torch.logsumexp(A[:, :, None] + B, 1))

# convolution, channels last
op("conv_nhwc", """
def conv_nhwc(float(N,H,W,C) X, float(KH,KW,C,O) K, float(O) Bias) -> (Y) {
    Y(n, y, x, o) +=! X(n, y + i, x + j, c) * K(i, j, c, o)
    Y(n, y, x, o)   = relu(Y(n, y, x, o) + Bias(o))
}""", lambda g: [r(g, 2, 35, 42, 32), r(g, 3, 3, 32, 48, scale=0.1), r(g, 48)],
   lambda X, K, b: F.relu(F.conv2d(X.permute(0, 3, 1, 2), K.permute(3, 2, 0, 1), b)).permute(0, 2, 3, 1))

# transposed convolution, kernel 4, stride 2, padding 1
op("conv_transpose2d", """
def conv_transpose2d(float(N,C,H,W) X, float(C,O,4,4) K) -> (Y) {
    Y(n, o, y, x) +=! (v >= 0 && v < 2*H && v % 2 == 0 && u >= 0 && u < 2*W && u % 2 == 0) ? X(n, c, v/2, u/2) * K(c, o, i, j) : 0.0
        where v = y + 1 - i, u = x + 1 - j, y in 0:2*H, x in 0:2*W
}""", lambda g: [r(g, 2, 32, 15, 22), r(g, 32, 20, 4, 4, scale=0.1)], lambda X, K: F.conv_transpose2d(X, K, stride=2, padding=1))

# grouped convolution, stride 2
op("group_conv_s2", """
def group_conv_s2(float(N,G,C,H,W) X, float(G,O,C,KH,KW) K) -> (Y) {
    Y(n, g, o, y, x) +=! X(n, g, c, 2*y + i, 2*x + j) * K(g, o, c, i, j)
}""", lambda g: [r(g, 2, 8, 12, 57, 57), r(g, 8, 10, 12, 3, 3, scale=0.1)],
   lambda X, K: F.conv2d(X.flatten(1, 2), K.flatten(0, 1), stride=2, groups=8).unflatten(1, (8, -1)))

# average pooling that counts the valid elements only
op("avg_pool_valid", """
def avg_pool_valid(float(N,C,H,W) X) -> (Y) {
    S(n, c, y, x) +=! (y + i >= 1 && y + i <= H && x + j >= 1 && x + j <= W) ? X(n, c, y + i - 1, x + j - 1) : 0.0
        where y in 0:H, x in 0:W, i in 0:3, j in 0:3
    K(y, x)       +=! (y + i >= 1 && y + i <= H && x + j >= 1 && x + j <= W) ? 1.0 : 0.0 where y in 0:H, x in 0:W, i in 0:3, j in 0:3
    Y(n, c, y, x)   = S(n, c, y, x) / K(y, x)
}""", lambda g: [r(g, 4, 33, 41, 40)], lambda X: F.avg_pool2d(X, 3, 1, 1, count_include_pad=False))

# soft histogram loss
op("soft_histogram_loss", """
def soft_histogram_loss(float(N) X, float(B) Centre, float(B) Target) -> (L) {
    H(b) +=! exp(-50.0 * d * d) / N where d = X(n) - Centre(b)
    L    +=! (H(b) - Target(b)) * (H(b) - Target(b))
}""", lambda g: [u(g, 9999), torch.linspace(0, 1, 40), u(g, 40)],
   lambda X, C, T: (torch.exp(-50 * (X[:, None] - C).square()).mean(0) - T).square().sum())

# embedding bag with weights per sample
op("weighted_embedding_bag", """
def weighted_embedding_bag(float(V,D) T, int64(B,L) I, float(B,L) W) -> (Y) {
    Y(b, d) +=! T(I(b, l), d) * W(b, l)
}""", lambda g: [r(g, 5003, 100), ri(g, 0, 5003, 256, 13), u(g, 256, 13)],
   lambda T, I, W: F.embedding_bag(I, T, per_sample_weights=W, mode="sum"))

# segment mean
def _segmean(S, X, Like):
    Y = torch.zeros(len(Like), X.shape[1]).index_add_(0, S, X)
    return Y / torch.bincount(S, minlength=len(Like)).clamp(min=1)[:, None]

op("segment_mean", """
def segment_mean(int64(N) Segment, float(N,D) X, float(V) Like) -> (Y) {
    C(Segment(n))    +=! 1.0 where Segment(n) in 0:V
    Y(Segment(n), d) +=! X(n, d) where Segment(n) in 0:V
    Y(v, d)            = Y(v, d) / max(C(v), 1.0)
}""", lambda g: [ri(g, 0, 300, 4000), r(g, 4000, 65), torch.zeros(310)], _segmean)

# Swin window attention probabilities with relative-position bias
def _swin(Q, K, T, I):
    S = Q @ K.transpose(2, 3) * 0.17 + T[I].permute(2, 0, 1)
    return S.softmax(-1)

op("swin_attention_probs", """
def swin_attention_probs(float(W,H,L,D) Q, float(W,H,L,D) K, float(R,H) T, int64(L,L) I) -> (P) {
    S(w, h, i, j) +=! Q(w, h, i, d) * K(w, h, j, d)
    E(w, h, i, j)   = exp(0.17 * S(w, h, i, j) + T(I(i, j), h))
    Z(w, h, i)    +=! E(w, h, i, j)
    P(w, h, i, j)   = E(w, h, i, j) / Z(w, h, i)
}""", lambda g: [r(g, 36, 3, 49, 32), r(g, 36, 3, 49, 32), r(g, 169, 3), ri(g, 0, 169, 49, 49)], _swin)

# masked mean over time of a transposed sequence
op("masked_mean", """
def masked_mean(float(B,T,D) X, bool(B,T) M) -> (Y) {
    S(b, d) +=! M(b, t) ? X(b, t, d) : 0.0
    C(b)    +=! M(b, t) ? 1.0 : 0.0
    Y(b, d)   = S(b, d) / max(C(b), 1.0)
}""", lambda g: [r(g, 200, 16, 256).transpose(0, 1), u(g, 16, 200) < 0.7],
   lambda X, M: (X * M[:, :, None]).sum(1) / M.sum(1, keepdim=True).clamp(min=1))

# reversal of sequences of different lengths
def _rev(X, L):
    t = torch.arange(X.shape[1])
    idx = torch.where(t < L[:, None], L[:, None] - 1 - t, t)
    return X.gather(1, idx[:, :, None].expand(-1, -1, X.shape[2]))

op("reverse_sequence", """
def reverse_sequence(float(B,T,D) X, int64(B) L) -> (Y) {
    Y(b, t, d) = t < L(b) ? X(b, L(b) - 1 - t, d) : X(b, t, d)
}""", lambda g: [r(g, 24, 131, 80), ri(g, 1, 132, 24)], _rev, 0.0)

# outer-product mean (AlphaFold)
def _opm(A, B, W):
    O = torch.einsum("sic,sje->ijce", A, B) / A.shape[0]
    return O.flatten(2) @ W.flatten(1).T

op("outer_product_mean", """
def outer_product_mean(float(S,I,C) A, float(S,J,E) B, float(Z,C,E) W) -> (Y) {
    O(i, j, c, e) +=! A(s, i, c) * B(s, j, e) / S
    Y(i, j, z)    +=! O(i, j, c, e) * W(z, c, e)
}""", lambda g: [r(g, 48, 44, 16), r(g, 48, 44, 16), r(g, 64, 16, 16, scale=0.1)], _opm)

# triangle multiplication, outgoing edges, gated (AlphaFold)
op("triangle_multiplication", """
def triangle_multiplication(float(I,K,C) A, float(J,K,C) B, float(I,J,C) G) -> (Y) {
    Z(i, j, c) +=! A(i, k, c) * B(j, k, c)
    Y(i, j, c)   = sigmoid(G(i, j, c)) * Z(i, j, c)
}""", lambda g: [r(g, 72, 72, 64), r(g, 72, 72, 64), r(g, 72, 72, 64)],
   lambda A, B, G: torch.sigmoid(G) * torch.einsum("ikc,jkc->ijc", A, B))

# int8 by int8 product, int32 accumulation, scales of rows and columns
def _imm(A, B, sa, sb):
    return torch._int_mm(A, B) * sa[:, None] * sb

op("int8_matmul", """
def int8_matmul(int8(M,K) A, int8(K,N) B, float(M) Sa, float(N) Sb) -> (Y) {
    C(m, n) +=! int32(A(m, k)) * int32(B(k, n))
    Y(m, n)   = C(m, n) * Sa(m) * Sb(n)
}""", lambda g: [ri(g, -128, 128, 130, 300, dtype=torch.int8), ri(g, -128, 128, 300, 250, dtype=torch.int8), u(g, 130), u(g, 250)], _imm)
