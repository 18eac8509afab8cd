# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""What is trained with: attention, gates, convolutions, features, differentiable physics, filters; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.networks import bf16, f64, i32, ri, rn, ru
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)


# ---------------------------------------------------------------- attention

def _shaw(Q, K, V, R):
    B, H, T, D = Q.shape
    i = torch.arange(T)
    s = Q @ K.mT + (Q @ R.T).gather(-1, (i - i[:, None] + T - 1).expand(B, H, T, T))
    return (s / D ** 0.5).softmax(-1) @ V


op(dict(name="shaw_relative_key_attention", text='''
def shaw_relative_key_attention(float(B,H,T,D) Q, float(B,H,T,D) K, float(B,H,T,D) V, float(2*T-1,D) R) -> (Y) {
    S(b, h, i, j) +=! Q(b, h, i, d) * K(b, h, j, d)
    S(b, h, i, j) += Q(b, h, i, d) * R(j - i + T - 1, d) where i in 0:T, j in 0:T
    M(b, h, i) max=! S(b, h, i, j)
    E(b, h, i, j) = exp((S(b, h, i, j) - M(b, h, i)) / sqrt(float(D)))
    Z(b, h, i) +=! E(b, h, i, j)
    Y(b, h, i, d) +=! E(b, h, i, j) / Z(b, h, i) * V(b, h, j, d)
}''', args=lambda g: [rn(g, 2, 7, 101, 24, k=0.7), rn(g, 2, 7, 101, 24, k=0.7), rn(g, 2, 7, 101, 24), rn(g, 201, 24, k=0.4)], torch=_shaw, tol=3e-5))


def _dilated(Q, K, V, Sink, Gt):
    B, T, H, D = Q.shape
    i = torch.arange(T)[:, None] - 3 * torch.arange(17)
    s = torch.einsum("bthd,btwhd->bhtw", Q, K[:, i.clamp_min(0)]) / D ** 0.5
    s = torch.cat([s.masked_fill(i < 0, -math.inf), Sink[:, None, None].expand(B, H, T, 1)], -1)
    return torch.einsum("bhtw,btwhd->bthd", s.softmax(-1)[..., :-1], V[:, i.clamp_min(0)]) * torch.sigmoid(Gt)


op(dict(name="dilated_window_sink_attention", text='''
def dilated_window_sink_attention(float(B,T,H,D) Q, float(B,T,H,D) K, float(B,T,H,D) V, float(H) Sink, float(B,T,H,D) Gt) -> (Y) {
    S(b, h, t, w) +=! t - 3*w >= 0 ? Q(b, t, h, d) * K(b, t - 3*w, h, d) / sqrt(float(D)) : 0.0 where t in 0:T, w in 0:17
    M(b, h, t) max=! t - 3*w >= 0 ? S(b, h, t, w) : -infinity()
    M(b, h, t) = max(M(b, h, t), Sink(h))
    P(b, h, t, w) = t - 3*w >= 0 ? exp(S(b, h, t, w) - M(b, h, t)) : 0.0
    Z(b, h, t) +=! P(b, h, t, w)
    Z(b, h, t) = Z(b, h, t) + exp(Sink(h) - M(b, h, t))
    A(b, t, h, d) +=! t - 3*w >= 0 ? P(b, h, t, w) * V(b, t - 3*w, h, d) : 0.0 where t in 0:T, w in 0:17
    Y(b, t, h, d) = A(b, t, h, d) / Z(b, h, t) * sigmoid(Gt(b, t, h, d))
}''', args=lambda g: [rn(g, 2, 301, 6, 32), rn(g, 2, 301, 6, 32), rn(g, 2, 301, 6, 32), rn(g, 6), rn(g, 2, 301, 6, 32)], torch=_dilated, tol=3e-5))


def _latent(Sd, X, Wk, Wv, Len):
    B, N, _ = X.shape
    L, H, D = Sd.shape
    k, v = (F.linear(X, w.flatten(0, 1)).view(B, N, H, D).transpose(1, 2) for w in (Wk, Wv))
    ok = torch.arange(N) < Len[:, None, None, None]
    return F.scaled_dot_product_attention(Sd.transpose(0, 1).expand(B, H, L, D), k, v, attn_mask=ok).transpose(1, 2)


op(dict(name="latent_cross_pool_bf16", text='''
def latent_cross_pool_bf16(bfloat16(L,H,D) Sd, bfloat16(B,N,C) X, bfloat16(H,D,C) Wk, bfloat16(H,D,C) Wv, int32(B) Len) -> (bfloat16(B,L,H,D) Y) {
    K(b, h, n, d) +=! X(b, n, c) * Wk(h, d, c)
    V(b, h, n, d) +=! X(b, n, c) * Wv(h, d, c)
    S(b, h, l, n) +=! float(Sd(l, h, d)) * K(b, h, n, d)
    M(b, h, l) max=! n < Len(b) ? S(b, h, l, n) : -infinity()
    P(b, h, l, n) = n < Len(b) ? exp((S(b, h, l, n) - M(b, h, l)) / sqrt(float(D))) : 0.0
    Z(b, h, l) +=! P(b, h, l, n)
    Y(b, l, h, d) +=! P(b, h, l, n) / Z(b, h, l) * V(b, h, n, d)
}''', args=lambda g: [rn(g, 13, 6, 40, dt=bf16), rn(g, 3, 211, 240, dt=bf16), rn(g, 6, 40, 240, dt=bf16, k=0.06), rn(g, 6, 40, 240, dt=bf16, k=0.06), ri(g, 60, 212, 3, dt=i32)], torch=_latent, tol=3e-2))


def _turn(X, Fr):
    a = Fr[:, None] * torch.arange(X.shape[2])[:, None]
    c, s = a.cos(), a.sin()
    x, y = X.chunk(2, -1)
    return torch.cat([x * c - y * s, y * c + x * s], -1)


op(dict(name="learned_frequency_rope_attention", text='''
def turn(float(B,H,T,2*P) X, float(H,P) Fr) -> (Y) {
    C(h, t, p) = cos(Fr(h, p) * t) where t in 0:T
    S(h, t, p) = sin(Fr(h, p) * t) where t in 0:T
    Y(b, h, t, d) = d < P ? X(b, h, t, d) * C(h, t, d) - X(b, h, t, d + P) * S(h, t, d)
                          : X(b, h, t, d) * C(h, t, d - P) + X(b, h, t, d - P) * S(h, t, d - P) where t in 0:T, d in 0:2*P
}
def learned_frequency_rope_attention(float(B,H,T,2*P) Q, float(B,H,T,2*P) K, float(B,H,T,2*P) V, float(H,P) Fr) -> (Y) {
    Qr = turn(Q, Fr)
    Kr = turn(K, Fr)
    S(b, h, i, j) +=! Qr(b, h, i, d) * Kr(b, h, j, d)
    M(b, h, i) max=! j <= i ? S(b, h, i, j) : -infinity()
    E(b, h, i, j) = j <= i ? exp((S(b, h, i, j) - M(b, h, i)) / sqrt(float(2*P))) : 0.0
    Z(b, h, i) +=! E(b, h, i, j)
    Y(b, h, i, d) +=! E(b, h, i, j) / Z(b, h, i) * V(b, h, j, d)
}''', args=lambda g: [rn(g, 2, 5, 97, 28), rn(g, 2, 5, 97, 28), rn(g, 2, 5, 97, 28), 100 ** (-torch.arange(14) / 14) * ru(g, 5, 14, lo=0.7, hi=1.3)],
   torch=lambda Q, K, V, Fr: F.scaled_dot_product_attention(_turn(Q, Fr), _turn(K, Fr), V, is_causal=True), tol=5e-5))


def _elulin(Q, K, V, Kc):
    H, E = V.shape[2:]
    q, k = F.elu(Q) + 1, F.elu(K) + 1
    y = torch.einsum("bthd,bhde->bthe", q, torch.einsum("bthd,bthe->bhde", k, V)) / torch.einsum("bthd,bhd->bth", q, k.sum(1))[..., None]
    c = F.conv1d(V.flatten(2).mT, Kc.flatten(0, 1)[:, None], padding=2, groups=H * E)
    return y + c.mT.unflatten(2, (H, E))


op(dict(name="elu_linear_attention_dwc", text='''
def elu_linear_attention_dwc(float(B,T,H,D) Q, float(B,T,H,D) K, float(B,T,H,E) V, float(H,E,5) Kc) -> (Y) {
    Pq(b, t, h, d) = x > 0.0 ? x + 1.0 : exp(x) where x = Q(b, t, h, d)
    Pk(b, t, h, d) = x > 0.0 ? x + 1.0 : exp(x) where x = K(b, t, h, d)
    Kv(b, h, d, e) +=! Pk(b, t, h, d) * V(b, t, h, e)
    Ks(b, h, d) +=! Pk(b, t, h, d)
    Z(b, t, h) +=! Pq(b, t, h, d) * Ks(b, h, d)
    Y(b, t, h, e) +=! Pq(b, t, h, d) * Kv(b, h, d, e)
    Y(b, t, h, e) = Y(b, t, h, e) / Z(b, t, h)
    Y(b, t, h, e) += t + k >= 2 && t + k < T + 2 ? V(b, t + k - 2, h, e) * Kc(h, e, k) : 0.0 where t in 0:T, k in 0:5
}''', args=lambda g: [rn(g, 2, 397, 6, 24), rn(g, 2, 397, 6, 24), rn(g, 2, 397, 6, 31), rn(g, 6, 31, 5, k=0.4)], torch=_elulin, tol=2e-5))


# ---------------------------------------------------------------- norms, gates, convolutions

def _grms(X, Ga, Wg, Wu, Wd):
    G, D = Ga.shape
    h = (F.rms_norm(X.unflatten(-1, (G, D)), (D,), eps=1e-6) * Ga).flatten(-2)
    return X + F.linear(F.silu(F.linear(h, Wg)) * F.linear(h, Wu), Wd)


op(dict(name="group_rms_swiglu_residual", text='''
def group_rms_swiglu_residual(float(B,T,G*D) X, float(G,D) Ga, float(J,G*D) Wg, float(J,G*D) Wu, float(G*D,J) Wd) -> (Y) {
    R(b, t, g) +=! X(b, t, D*g + d) * X(b, t, D*g + d) / D where g in 0:G, d in 0:D
    Hn(b, t, c) = X(b, t, c) * rsqrt(R(b, t, c / D) + 1e-6) * Ga(c / D, c % D) where c in 0:G*D
    A(b, t, j) +=! Hn(b, t, c) * Wg(j, c)
    U(b, t, j) +=! Hn(b, t, c) * Wu(j, c)
    Y(b, t, c) +=! A(b, t, j) * sigmoid(A(b, t, j)) * U(b, t, j) * Wd(c, j)
    Y(b, t, c) = Y(b, t, c) + X(b, t, c)
}''', args=lambda g: [rn(g, 3, 197, 385), ru(g, 7, 55, lo=0.5, hi=1.5), rn(g, 97, 385, k=0.05), rn(g, 97, 385, k=0.05), rn(g, 385, 97, k=0.1)], torch=_grms, tol=3e-5))


def _nfws(X, K, Ga, Bi):
    G, O, C = K.shape[:3]
    var, mu = torch.var_mean(K, (2, 3, 4), correction=0, keepdim=True)
    w = Ga[..., None, None, None] * (K - mu) * torch.rsqrt((var * (9 * C)).clamp_min(1e-4))
    return F.conv2d(1.7868 * F.silu(X).flatten(1, 2), w.flatten(0, 1), Bi.flatten(), stride=2, groups=G).unflatten(1, (G, O))


op(dict(name="nfnet_scaled_ws_group_conv", text='''
def nfnet_scaled_ws_group_conv(float(B,G,C,H,W) X, float(G,O,C,3,3) K, float(G,O) Ga, float(G,O) Bi) -> (Y) {
    Mu(g, o) +=! K(g, o, c, u, v) / (9 * C)
    Va(g, o) +=! (K(g, o, c, u, v) - Mu(g, o)) * (K(g, o, c, u, v) - Mu(g, o))
    Kn(g, o, c, u, v) = Ga(g, o) * (K(g, o, c, u, v) - Mu(g, o)) * rsqrt(max(Va(g, o), 1e-4))
    A(b, g, c, y, x) = 1.7868 * X(b, g, c, y, x) * sigmoid(X(b, g, c, y, x))
    Y(b, g, o, y, x) +=! A(b, g, c, 2*y + u, 2*x + v) * Kn(g, o, c, u, v)
    Y(b, g, o, y, x) = Y(b, g, o, y, x) + Bi(g, o)
}''', args=lambda g: [rn(g, 2, 5, 12, 45, 59), rn(g, 5, 14, 12, 3, 3), ru(g, 5, 14, lo=0.5, hi=1.5), rn(g, 5, 14, k=0.2)], torch=_nfws, tol=2e-5))


op(dict(name="global_filter_spectral_gate", text='''
def global_filter_spectral_gate(float(B,T,C) X, float(F,C) Wr, float(F,C) Wi) -> (Y) {
    Ct(k, t) = cos(6.283185307179586 * (k * t % T) / T) where k in 0:F, t in 0:T
    Sn(k, t) = sin(6.283185307179586 * (k * t % T) / T) where k in 0:F, t in 0:T
    Fr(b, k, c) +=! X(b, t, c) * Ct(k, t)
    Fi(b, k, c) +=! -X(b, t, c) * Sn(k, t)
    Gr(b, k, c) = Fr(b, k, c) * Wr(k, c) - Fi(b, k, c) * Wi(k, c)
    Gi(b, k, c) = Fr(b, k, c) * Wi(k, c) + Fi(b, k, c) * Wr(k, c)
    Y(b, t, c) +=! (k == 0 ? 1.0 : 2.0) / T * (Gr(b, k, c) * Ct(k, t) - Gi(b, k, c) * Sn(k, t))
}''', args=lambda g: [rn(g, 3, 147, 91), rn(g, 74, 91), rn(g, 74, 91)],
   torch=lambda X, Wr, Wi: torch.fft.irfft(torch.fft.rfft(X, dim=1) * torch.complex(Wr, Wi), n=X.shape[1], dim=1), tol=3e-5))


def _wavenet(X, W, Bi, Wr, Ws):
    a, s = F.conv1d(F.pad(X, (8, 0)), W, Bi, dilation=4).chunk(2, 1)
    a = torch.tanh(a) * torch.sigmoid(s)
    return X + F.conv1d(a, Wr[..., None]), F.conv1d(a, Ws[..., None])


op(dict(name="wavenet_gated_block", text='''
def wavenet_gated_block(float(B,C,T) X, float(2*R,C,3) W, float(2*R) Bi, float(C,R) Wr, float(S,R) Ws) -> (Res, Skip) {
    Z(b, q, t) +=! t + 4*k >= 8 ? X(b, c, t + 4*k - 8) * W(q, c, k) : 0.0 where t in 0:T, k in 0:3
    Z(b, q, t) = Z(b, q, t) + Bi(q)
    A(b, r, t) = tanh(Z(b, r, t)) * sigmoid(Z(b, r + R, t)) where r in 0:R
    Res(b, c, t) +=! Wr(c, r) * A(b, r, t)
    Res(b, c, t) = Res(b, c, t) + X(b, c, t)
    Skip(b, s, t) +=! Ws(s, r) * A(b, r, t)
}''', args=lambda g: [rn(g, 2, 29, 701), rn(g, 74, 29, 3, k=0.1), rn(g, 74, k=0.2), rn(g, 29, 37, k=0.2), rn(g, 51, 37, k=0.2)], torch=_wavenet, tol=2e-5))


def _kpcn(X, Lg, Tg):
    p = F.unfold(F.pad(X, (2, 2, 2, 2), mode="replicate"), 5).unflatten(1, (3, 25)).unflatten(-1, X.shape[2:])
    return (((p * Lg.softmax(1)[:, None]).sum(2) - Tg).square() + 1e-6).sqrt().mean()


op(dict(name="kernel_prediction_charbonnier", text='''
def kernel_prediction_charbonnier(float(B,3,H,W) X, float(B,25,H,W) Lg, float(B,3,H,W) Tg) -> (Loss) {
    M(b, y, x) max=! Lg(b, k, y, x)
    E(b, k, y, x) = exp(Lg(b, k, y, x) - M(b, y, x))
    Z(b, y, x) +=! E(b, k, y, x)
    P(b, c, y, x) +=! E(b, 5*u + v, y, x) / Z(b, y, x) * X(b, c, min(max(y + u - 2, 0), H - 1), min(max(x + v - 2, 0), W - 1)) where u in 0:5, v in 0:5, y in 0:H, x in 0:W
    Loss +=! sqrt((P(b, c, y, x) - Tg(b, c, y, x)) * (P(b, c, y, x) - Tg(b, c, y, x)) + 1e-6) / (3 * B * H * W)
}''', args=lambda g: [ru(g, 2, 3, 61, 83), rn(g, 2, 25, 61, 83), ru(g, 2, 3, 61, 83)], torch=_kpcn, tol=3e-5))


def _pggan(X, K, Bi):
    y = F.leaky_relu(F.conv_transpose2d(X, K, Bi, stride=2, padding=1), 0.2)
    return y * torch.rsqrt(y.square().mean(1, keepdim=True) + 1e-8)


op(dict(name="pggan_upconv_pixelnorm", text='''
def pggan_upconv_pixelnorm(float(B,C,H,W) X, float(C,O,4,4) K, float(O) Bi) -> (Y) {
    A(b, o, y, x) +=! (y + 1) / 2 - p >= 0 && (y + 1) / 2 - p < H && (x + 1) / 2 - q >= 0 && (x + 1) / 2 - q < W
            ? X(b, c, (y + 1) / 2 - p, (x + 1) / 2 - q) * K(c, o, (y + 1) % 2 + 2*p, (x + 1) % 2 + 2*q) : 0.0
        where y in 0:2*H, x in 0:2*W, p in 0:2, q in 0:2
    A(b, o, y, x) = z > 0.0 ? z : 0.2 * z where z = A(b, o, y, x) + Bi(o)
    Nm(b, y, x) +=! A(b, o, y, x) * A(b, o, y, x) / O
    Y(b, o, y, x) = A(b, o, y, x) * rsqrt(Nm(b, y, x) + 1e-8)
}''', args=lambda g: [rn(g, 2, 23, 29, 37), rn(g, 23, 17, 4, 4, k=0.1), rn(g, 17, k=0.2)], torch=_pggan, tol=3e-5))


def _r2p1(X, Ks, Bi, Kt):
    z = F.relu(F.conv3d(X, Ks[:, :, None], Bi, padding=(0, 1, 1)))
    return F.conv3d(z, Kt[..., None, None], padding=(1, 0, 0))


op(dict(name="r2plus1d_factored_conv", text='''
def r2plus1d_factored_conv(float(B,C,T,H,W) X, float(M,C,3,3) Ks, float(M) Bi, float(O,M,3) Kt) -> (Y) {
    Z(b, m, t, y, x) +=! y + u >= 1 && y + u <= H && x + v >= 1 && x + v <= W ? X(b, c, t, y + u - 1, x + v - 1) * Ks(m, c, u, v) : 0.0 where y in 0:H, x in 0:W, u in 0:3, v in 0:3
    Z(b, m, t, y, x) = relu(Z(b, m, t, y, x) + Bi(m))
    Y(b, o, t, y, x) +=! t + k >= 1 && t + k <= T ? Z(b, m, t + k - 1, y, x) * Kt(o, m, k) : 0.0 where t in 0:T, k in 0:3
}''', args=lambda g: [rn(g, 1, 11, 9, 27, 31), rn(g, 19, 11, 3, 3, k=0.1), rn(g, 19, k=0.2), rn(g, 13, 19, 3, k=0.13)], torch=_r2p1, tol=2e-5))


def _haar(X, Lt):
    h = torch.tensor([[1.0, 1.0], [1.0, -1.0]]) / 2 ** 0.5
    k = torch.einsum("iu,jv->ijuv", h, h).reshape(4, 1, 2, 2).to(X.dtype)
    c = F.conv2d(X[:, None], k, stride=2)
    s = c.sign() * F.relu(c.abs() - Lt.exp().view(4, 1, 1))
    return F.conv_transpose2d(torch.cat([c[:, :1], s[:, 1:]], 1), k, stride=2)[:, 0]


op(dict(name="haar_soft_shrinkage", text='''
def haar_soft_shrinkage(float(B,H,W) X, float(2,2) Lt) -> (Y) {
    Cf(b, i, j, y, x) +=! (i == 1 && u == 1 ? -0.5 : 0.5) * (j == 1 && v == 1 ? -1.0 : 1.0) * X(b, 2*y + u, 2*x + v) where i in 0:2, j in 0:2, u in 0:2, v in 0:2, y in 0:H/2, x in 0:W/2
    Sh(b, i, j, y, x) = i + j == 0 ? Cf(b, i, j, y, x) : sign(Cf(b, i, j, y, x)) * max(abs(Cf(b, i, j, y, x)) - exp(Lt(i, j)), 0.0)
    Y(b, y, x) +=! (i == 1 && y % 2 == 1 ? -0.5 : 0.5) * (j == 1 && x % 2 == 1 ? -1.0 : 1.0) * Sh(b, i, j, y / 2, x / 2) where i in 0:2, j in 0:2, y in 0:H, x in 0:W
}''', args=lambda g: [rn(g, 29, 62, 86), rn(g, 2, 2, k=0.3) - 1.0], torch=_haar, tol=1e-5))


def _mel(Sp, Ce, Lw):
    fb = F.relu(1 - (torch.arange(Sp.shape[2]) - Ce[:, None]).abs() / Lw.exp()[:, None])
    l = torch.log(Sp @ fb.T + 1e-5)
    var, mu = torch.var_mean(l, 1, correction=0, keepdim=True)
    return (l - mu) * torch.rsqrt(var + 1e-5)


op(dict(name="learned_triangular_mel", text='''
def learned_triangular_mel(float(B,T,F) Sp, float(M) Ce, float(M) Lw) -> (Y) {
    Fb(m, f) = max(1.0 - abs(f - Ce(m)) / exp(Lw(m)), 0.0) where f in 0:F
    Lg(b, t, m) +=! Sp(b, t, f) * Fb(m, f)
    Lg(b, t, m) = log(Lg(b, t, m) + 1e-5)
    Mu(b, m) +=! Lg(b, t, m) / T
    Va(b, m) +=! (Lg(b, t, m) - Mu(b, m)) * (Lg(b, t, m) - Mu(b, m)) / T
    Y(b, t, m) = (Lg(b, t, m) - Mu(b, m)) * rsqrt(Va(b, m) + 1e-5)
}''', args=lambda g: [rn(g, 3, 211, 129).square(), torch.linspace(4.0, 124.0, 41) + rn(g, 41, k=0.3), rn(g, 41, k=0.2) + 1.5], torch=_mel, tol=5e-5))


# ---------------------------------------------------------------- differentiable physics

def _heat(U, Lk, Obs):
    k = Lk.exp()
    ky, kx = 0.5 * (k[1:] + k[:-1]), 0.5 * (k[:, 1:] + k[:, :-1])
    for _ in range(4):
        fy, fx = ky * U.diff(dim=1), kx * U.diff(dim=2)
        U = U + 0.2 * (F.pad(fy, (0, 0, 0, 1)) - F.pad(fy, (0, 0, 1, 0)) + F.pad(fx, (0, 1)) - F.pad(fx, (1, 0)))
    return F.mse_loss(U, Obs)


op(dict(name="heat2d_conductivity_misfit", text='''
def heat_step(float(B,H,W) U, float(H,W) Kc) -> (V) {
    Fy(b, y, x) = 0.5 * (Kc(y + 1, x) + Kc(y, x)) * (U(b, y + 1, x) - U(b, y, x))
    Fx(b, y, x) = 0.5 * (Kc(y, x + 1) + Kc(y, x)) * (U(b, y, x + 1) - U(b, y, x))
    V(b, y, x) = U(b, y, x) + 0.2 * ((y < H - 1 ? Fy(b, y, x) : 0.0) - (y > 0 ? Fy(b, y - 1, x) : 0.0) + (x < W - 1 ? Fx(b, y, x) : 0.0) - (x > 0 ? Fx(b, y, x - 1) : 0.0)) where y in 0:H, x in 0:W
}
def heat2d_conductivity_misfit(float(B,H,W) U, float(H,W) Lk, float(B,H,W) Obs) -> (Loss) {
    Kc(y, x) = exp(Lk(y, x))
    U1 = heat_step(U, Kc)
    U2 = heat_step(U1, Kc)
    U3 = heat_step(U2, Kc)
    U4 = heat_step(U3, Kc)
    Loss +=! (U4(b, y, x) - Obs(b, y, x)) * (U4(b, y, x) - Obs(b, y, x)) / (B * H * W)
}''', args=lambda g: [rn(g, 5, 61, 83), rn(g, 61, 83, k=0.3), rn(g, 5, 61, 83)], torch=_heat, tol=2e-5))


def _springs(X, V, Sa, Sb, Ks, L0, Gv, Tg):
    for _ in range(3):
        r = X[Sb] - X[Sa]
        f = (Ks * (1 - L0 / r.norm(dim=1)))[:, None] * r
        V = 0.99 * V + 0.01 * (torch.zeros_like(X).index_add(0, Sa, f).index_add(0, Sb, -f) + Gv)
        X = X + 0.01 * V
    return (X - Tg).square().sum() / X.shape[0]


def _springs_args(g):
    N, E = 1501, 4507
    a = ri(g, 0, N, E)
    return [rn(g, N, 3, dt=f64), rn(g, N, 3, dt=f64), a, (a + ri(g, 1, N, E)) % N, ru(g, E, dt=f64, lo=20.0, hi=90.0),
            ru(g, E, dt=f64, lo=0.3, hi=1.5), torch.tensor([0.0, 0.0, -9.81], dtype=f64), rn(g, N, 3, dt=f64)]


op(dict(name="mass_spring_three_steps_f64", text='''
def spring_step(double(N,3) X, double(N,3) V, int64(E) Sa, int64(E) Sb, double(E) Ks, double(E) L0, double(3) Gv) -> (Xn, Vn) {
    R(e, d) = X(Sb(e), d) - X(Sa(e), d)
    Ln(e) +=! R(e, d) * R(e, d)
    Ln(e) = sqrt(Ln(e))
    Fe(e, d) = Ks(e) * (1.0 - L0(e) / Ln(e)) * R(e, d)
    Ac(Sa(e), d) +=! Fe(e, d) where Sa(e) in 0:N
    Ac(Sb(e), d) += -Fe(e, d)
    Vn(n, d) = 0.99 * V(n, d) + 0.01 * (Ac(n, d) + Gv(d))
    Xn(n, d) = X(n, d) + 0.01 * Vn(n, d)
}
def mass_spring_three_steps_f64(double(N,3) X, double(N,3) V, int64(E) Sa, int64(E) Sb, double(E) Ks, double(E) L0, double(3) Gv, double(N,3) Tg) -> (Loss) {
    X1, V1 = spring_step(X, V, Sa, Sb, Ks, L0, Gv)
    X2, V2 = spring_step(X1, V1, Sa, Sb, Ks, L0, Gv)
    X3, V3 = spring_step(X2, V2, Sa, Sb, Ks, L0, Gv)
    Loss +=! (X3(n, d) - Tg(n, d)) * (X3(n, d) - Tg(n, d)) / N
}''', args=_springs_args, torch=_springs, tol=1e-11))


def _nbody(X, V, Lm):
    m = Lm.exp()

    def pull(x):
        d = x - x[:, None]
        return torch.einsum("ij,ijd->id", m * torch.rsqrt(d.square().sum(-1) + 0.01) ** 3, d)
    vh = V + 0.005 * pull(X)
    xn = X + 0.01 * vh
    return xn, vh + 0.005 * pull(xn)


op(dict(name="nbody_softened_leapfrog", text='''
def pull(float(N,3) X, float(N) Ms) -> (A) {
    D2(i, j) +=! (X(j, d) - X(i, d)) * (X(j, d) - X(i, d))
    Wt(i, j) = Ms(j) * r * r * r where r = rsqrt(D2(i, j) + 0.01)
    A(i, d) +=! Wt(i, j) * (X(j, d) - X(i, d))
}
def nbody_softened_leapfrog(float(N,3) X, float(N,3) V, float(N) Lm) -> (Xn, Vn) {
    Ms(n) = exp(Lm(n))
    A0 = pull(X, Ms)
    Vh(n, d) = V(n, d) + 0.005 * A0(n, d)
    Xn(n, d) = X(n, d) + 0.01 * Vh(n, d)
    A1 = pull(Xn, Ms)
    Vn(n, d) = Vh(n, d) + 0.005 * A1(n, d)
}''', args=lambda g: [rn(g, 397, 3), rn(g, 397, 3), rn(g, 397, k=0.5) - 1.0], torch=_nbody, tol=5e-5))


def _pinn(X, W1, B1, W2, Src, Xb, Ub):
    t = torch.tanh(F.linear(X, W1, B1))
    u, lap = t @ W2, (t - t ** 3) @ (-2 * W2 * W1.square().sum(1))
    return (lap + 4 * u - Src).square().mean(), F.mse_loss(torch.tanh(F.linear(Xb, W1, B1)) @ W2, Ub)


op(dict(name="pinn_helmholtz_shallow", text='''
def pinn_helmholtz_shallow(float(N,2) X, float(H,2) W1, float(H) B1, float(H) W2, float(N) Src, float(M,2) Xb, float(M) Ub) -> (Pde, Bc) {
    Z(n, h) +=! X(n, d) * W1(h, d)
    T(n, h) = tanh(Z(n, h) + B1(h))
    Sq(h) +=! W1(h, d) * W1(h, d)
    U(n) +=! W2(h) * T(n, h)
    Lp(n) +=! -2.0 * W2(h) * Sq(h) * T(n, h) * (1.0 - T(n, h) * T(n, h))
    Pde +=! r * r / N where r = Lp(n) + 4.0 * U(n) - Src(n)
    Zb(m, h) +=! Xb(m, d) * W1(h, d)
    V(m) +=! W2(h) * tanh(Zb(m, h) + B1(h))
    Bc +=! (V(m) - Ub(m)) * (V(m) - Ub(m)) / M
}''', args=lambda g: [ru(g, 2003, 2), rn(g, 131, 2, k=1.5), rn(g, 131), rn(g, 131, k=0.1), rn(g, 2003), ru(g, 301, 2), rn(g, 301)], torch=_pinn, tol=5e-5))


def _kalman(M, P, A, Lq, C, Lr, Y):
    nl = 0.0
    for t in range(3):
        m, p = M @ A.T, A @ P @ A.T + torch.diag(Lq.exp())
        v, h = Y[:, t] - m @ C.T, C @ p
        s = h @ C.T + torch.diag(Lr.exp())
        w = torch.linalg.solve(s, torch.cat([h, v[..., None]], -1))
        k = w[..., :-1].mT
        nl = nl + 0.5 * ((v * w[..., -1]).sum(1) + torch.logdet(s))
        M, P = m + (k @ v[..., None])[..., 0], p - k @ h
    return nl.mean()


op(dict(name="kalman_nll_three_steps_f64", text='''
def kalman_step(double(B,S) M, double(B,S,S) P, double(S,S) A, double(S) Lq, double(2,S) C, double(2) Lr, double(B,3,2) Y, int32 t) -> (Mn, Pn, Nl) {
    Mp(b, i) +=! A(i, j) * M(b, j)
    Pp(b, i, j) +=! A(i, k) * P(b, k, l) * A(j, l)
    Pp(b, i, j) = Pp(b, i, j) + (i == j ? exp(Lq(i)) : 0.0)
    V(b, o) +=! C(o, i) * Mp(b, i)
    V(b, o) = Y(b, t, o) - V(b, o)
    Hp(b, o, i) +=! C(o, j) * Pp(b, j, i)
    Sg(b, o, q) +=! Hp(b, o, i) * C(q, i)
    Sg(b, o, q) = Sg(b, o, q) + (o == q ? exp(Lr(o)) : 0.0)
    Dt(b) = Sg(b, 0, 0) * Sg(b, 1, 1) - Sg(b, 0, 1) * Sg(b, 1, 0)
    Si(b, o, q) = (o == q ? Sg(b, 1 - o, 1 - q) : -Sg(b, o, q)) / Dt(b) where o in 0:2, q in 0:2
    Kg(b, i, o) +=! Si(b, o, q) * Hp(b, q, i)
    Mn(b, i) +=! Kg(b, i, o) * V(b, o)
    Mn(b, i) = Mn(b, i) + Mp(b, i)
    Pn(b, i, j) +=! Kg(b, i, o) * Hp(b, o, j)
    Pn(b, i, j) = Pp(b, i, j) - Pn(b, i, j)
    Nl(b) +=! V(b, o) * Si(b, o, q) * V(b, q)
    Nl(b) = 0.5 * (Nl(b) + log(Dt(b)))
}
def kalman_nll_three_steps_f64(double(B,S) M, double(B,S,S) P, double(S,S) A, double(S) Lq, double(2,S) C, double(2) Lr, double(B,3,2) Y) -> (Loss) {
    M1, P1, N1 = kalman_step(M, P, A, Lq, C, Lr, Y, 0)
    M2, P2, N2 = kalman_step(M1, P1, A, Lq, C, Lr, Y, 1)
    M3, P3, N3 = kalman_step(M2, P2, A, Lq, C, Lr, Y, 2)
    Loss +=! (N1(b) + N2(b) + N3(b)) / B
}''', args=lambda g: [rn(g, 1203, 6, dt=f64), (lambda a: a @ a.mT + torch.eye(6, dtype=f64))(rn(g, 1203, 6, 6, dt=f64, k=0.3)), 0.9 * torch.eye(6, dtype=f64) + rn(g, 6, 6, dt=f64, k=0.1),
   rn(g, 6, dt=f64, k=0.3) - 1.0, rn(g, 2, 6, dt=f64), rn(g, 2, dt=f64, k=0.3) - 0.5, rn(g, 1203, 3, 2, dt=f64)], torch=_kalman, tol=1e-10))
