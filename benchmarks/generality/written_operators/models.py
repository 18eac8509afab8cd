# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""State spaces, routing, gathers, graphs, normalisations and attention; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)


def r(g, *s, dtype=torch.float32):
    return torch.randn(*s, generator=g, dtype=torch.float64 if dtype == torch.float64 else torch.float32).to(dtype)


def u(g, *s, dtype=torch.float32):
    return torch.rand(*s, generator=g, dtype=torch.float64 if dtype == torch.float64 else torch.float32).to(dtype)


def ri(g, lo, hi, *s, dtype=torch.int64):
    return torch.randint(lo, hi, s, generator=g, dtype=dtype)


# ---------------------------------------------------------------- state spaces, long convolutions, retention

def _selective(H, X, Dt, bias, A, B, C, D, Z):
    dt = F.softplus(Dt + bias)
    Hn = torch.exp(dt[..., None] * A) * H + (dt * X)[..., None] * B[:, None]
    y = torch.einsum("bdn,bn->bd", Hn, C) + D * X
    return y * F.silu(Z), Hn


op(dict(name="selective_scan_step", text='''
def selective_scan_step(float(B,D,N) H, float(B,D) X, float(B,D) Dt, float(D) bias, float(D,N) A, float(B,N) Bm, float(B,N) Cm, float(D) Skip, float(B,D) Z) -> (Y, Hn) {
    Delta(b, d) = log1p(exp(Dt(b, d) + bias(d)))
    Hn(b, d, n) = exp(Delta(b, d) * A(d, n)) * H(b, d, n) + Delta(b, d) * X(b, d) * Bm(b, n)
    S(b, d) +=! Hn(b, d, n) * Cm(b, n)
    Y(b, d) = (S(b, d) + Skip(d) * X(b, d)) * Z(b, d) * sigmoid(Z(b, d))
}''', args=lambda g: [r(g, 6, 1536, 16), r(g, 6, 1536), r(g, 6, 1536), r(g, 1536), -torch.exp(r(g, 1536, 16)), r(g, 6, 16), r(g, 6, 16), r(g, 1536), r(g, 6, 1536)],
    torch=_selective, tol=2e-5))


def _s4d(Are, Aim, Cre, Cim, Dt, Like):
    A = torch.complex(Are, Aim) * Dt[:, None]
    l = torch.arange(Like.shape[0], dtype=torch.float64)
    K = torch.exp(A[:, :, None] * l)
    return 2 * torch.einsum("hn,hnl->hl", torch.complex(Cre, Cim), K).real


op(dict(name="s4d_kernel", text='''
def s4d_kernel(double(H,N) Are, double(H,N) Aim, double(H,N) Cre, double(H,N) Cim, double(H) Dt, double(L) Like) -> (K) {
    K(h, l) +=! 2.0 * exp(l * Dt(h) * Are(h, n)) * (Cre(h, n) * cos(l * Dt(h) * Aim(h, n)) - Cim(h, n) * sin(l * Dt(h) * Aim(h, n))) where l in 0:L
}''', args=lambda g: [-u(g, 24, 16, dtype=torch.float64), 3.14 * torch.arange(16.0, dtype=torch.float64).expand(24, 16), r(g, 24, 16, dtype=torch.float64), r(g, 24, 16, dtype=torch.float64), 0.001 + 0.1 * u(g, 24, dtype=torch.float64), torch.zeros(600, dtype=torch.float64)],
    torch=_s4d, tol=1e-10))


def _zoh(Delta, A, B, U):
    dA = torch.exp(Delta[..., None] * A)
    return dA, (dA - 1) / A * B[:, :, None] * U[..., None]


op(dict(name="zoh_discretise", text='''
def zoh_discretise(float(B,L,D) Delta, float(D,N) A, float(B,L,N) Bm, float(B,L,D) U) -> (dA, dBu) {
    dA(b, l, d, n) = exp(Delta(b, l, d) * A(d, n))
    dBu(b, l, d, n) = (dA(b, l, d, n) - 1.0) / A(d, n) * Bm(b, l, n) * U(b, l, d)
}''', args=lambda g: [0.1 + u(g, 2, 97, 192), -1 - u(g, 192, 16), r(g, 2, 97, 16), r(g, 2, 97, 192)], torch=_zoh, tol=1e-5))


def _hyena(U, K, bias, X):
    L = U.shape[-1]
    Y = torch.fft.irfft(torch.fft.rfft(U, n=2 * L) * torch.fft.rfft(K, n=2 * L), n=2 * L)[..., :L]
    return (Y + bias[:, None] * U) * X


op(dict(name="hyena_long_conv", text='''
def hyena_long_conv(float(B,D,L) U, float(D,L) K, float(D) bias, float(B,D,L) X) -> (Y) {
    C(b, d, t) +=! (s <= t) ? U(b, d, s) * K(d, t - s) : 0.0 where t in 0:L, s in 0:L
    Y(b, d, t) = (C(b, d, t) + bias(d) * U(b, d, t)) * X(b, d, t)
}''', args=lambda g: [r(g, 2, 48, 512), r(g, 48, 512) * torch.exp(-torch.arange(512.) / 100), r(g, 48), r(g, 2, 48, 512)], torch=_hyena, tol=5e-5))


def _retention(Q, K, V, gamma):
    T = Q.shape[2]
    i = torch.arange(T)
    d = i[:, None] - i
    M = torch.where(d >= 0, gamma[:, None, None] ** d.clamp_min(0), 0.0)
    S = Q @ K.transpose(-1, -2) * M
    return (S / S.abs().sum(-1, keepdim=True).clamp_min(1.0)) @ V


op(dict(name="retention", text='''
def retention(float(B,H,T,D) Q, float(B,H,T,D) K, float(B,H,T,E) V, float(H) gamma) -> (Y) {
    A(b, h, i, j) +=! Q(b, h, i, d) * K(b, h, j, d)
    A(b, h, i, j) = (j <= i) ? A(b, h, i, j) * pow(gamma(h), float(i - j)) : 0.0
    N(b, h, i) +=! fabs(A(b, h, i, j))
    Y(b, h, i, e) +=! A(b, h, i, j) / max(N(b, h, i), 1.0) * V(b, h, j, e)
}''', args=lambda g: [r(g, 2, 4, 130, 32), r(g, 2, 4, 130, 32) / 6, r(g, 2, 4, 130, 48), 1 - 2.0 ** (-5 - torch.arange(4.))], torch=_retention, tol=3e-5))


def _rwkv(K, V, R, w, uu, A, B, P):
    q = torch.maximum(P, uu + K)
    e1, e2 = torch.exp(P - q), torch.exp(uu + K - q)
    y = torch.sigmoid(R) * (e1 * A + e2 * V) / (e1 * B + e2)
    q2 = torch.maximum(P - w, K)
    e1, e2 = torch.exp(P - w - q2), torch.exp(K - q2)
    return y, e1 * A + e2 * V, e1 * B + e2, q2


op(dict(name="rwkv_time_mixing", text='''
def rwkv_step(float(B,C) K, float(B,C) V, float(B,C) R, float(C) w, float(C) u, float(B,C) A, float(B,C) Bd, float(B,C) P) -> (Y, An, Bn, Pn) {
    Y(b, c) = sigmoid(R(b, c)) * (exp(P(b, c) - q) * A(b, c) + exp(u(c) + K(b, c) - q) * V(b, c)) / (exp(P(b, c) - q) * Bd(b, c) + exp(u(c) + K(b, c) - q)) where q = max(P(b, c), u(c) + K(b, c))
    Pn(b, c) = max(P(b, c) - w(c), K(b, c))
    An(b, c) = exp(P(b, c) - w(c) - Pn(b, c)) * A(b, c) + exp(K(b, c) - Pn(b, c)) * V(b, c)
    Bn(b, c) = exp(P(b, c) - w(c) - Pn(b, c)) * Bd(b, c) + exp(K(b, c) - Pn(b, c))
}''', args=lambda g: [r(g, 3, 257), r(g, 3, 257), r(g, 3, 257), u(g, 257), r(g, 257), r(g, 3, 257), u(g, 3, 257) + 0.5, r(g, 3, 257)], torch=_rwkv, tol=2e-5))


# ---------------------------------------------------------------- routing

def _mod(X, Fx, W):
    k = X.shape[1] // 4
    v, i = W.topk(k, dim=1)
    ix = i[..., None].expand(-1, -1, X.shape[2])
    return X.scatter_add(1, ix, Fx.gather(1, ix) * v[..., None])


op(dict(name="mixture_of_depths", text='''
def mixture_of_depths(float(B,T,D) X, float(B,T,D) Fx, float(B,T) W) -> (Y) {
    Rank(b, t) +=! (W(b, s) > W(b, t) || (W(b, s) == W(b, t) && s < t)) ? 1 : 0
    Y(b, t, d) = (Rank(b, t) < T / 4) ? X(b, t, d) + W(b, t) * Fx(b, t, d) : X(b, t, d)
}''', args=lambda g: [r(g, 4, 384, 200), r(g, 4, 384, 200), r(g, 4, 384)], torch=_mod, tol=1e-6))


def _switch(X, W):
    p = torch.softmax(X @ W.T, -1)
    v, i = p.max(-1)
    E = W.shape[0]
    cnt = torch.bincount(i, minlength=E)
    return cnt.to(torch.int32), v, E * (cnt * p.mean(0)).sum() / X.shape[0]


op(dict(name="switch_router_stats", text='''
def switch_router_stats(float(T,D) X, float(E,D) W) -> (int32(E) Count, Gate, float Loss) {
    L(t, e) +=! X(t, d) * W(e, d)
    M(t) max=! L(t, e)
    Z(t) +=! exp(L(t, e) - M(t))
    Gate(t) = 1.0 / Z(t)
    Top(t) min=! (L(t, e) == M(t)) ? e : E
    Count(e) +=! (Top(t) == e) ? 1 : 0 where e in 0:E
    P(e) +=! exp(L(t, e) - M(t)) / Z(t)
    Loss +=! E * float(Count(e)) / T * P(e) / T
}''', args=lambda g: [r(g, 1000, 96), r(g, 12, 96) / 8], torch=_switch, tol=1e-5))


def _caps(Uh, Bl):
    C = torch.softmax(Bl, 2)
    S = torch.einsum("bio,biod->bod", C, Uh)
    n2 = (S * S).sum(-1, keepdim=True)
    V = S * (n2 / (1 + n2)) * torch.rsqrt(n2 + 1e-8)
    return V, Bl + torch.einsum("biod,bod->bio", Uh, V)


op(dict(name="capsule_routing", text='''
def capsule_routing(float(B,I,O,D) Uh, float(B,I,O) L) -> (V, Ln) {
    Z(b, i) +=! exp(L(b, i, o))
    S(b, o, d) +=! exp(L(b, i, o)) / Z(b, i) * Uh(b, i, o, d)
    Q(b, o) +=! S(b, o, d) * S(b, o, d)
    V(b, o, d) = S(b, o, d) * Q(b, o) / (1.0 + Q(b, o)) * rsqrt(Q(b, o) + 1e-8)
    A(b, i, o) +=! Uh(b, i, o, d) * V(b, o, d)
    Ln(b, i, o) = L(b, i, o) + A(b, i, o)
}''', args=lambda g: [r(g, 3, 576, 10, 16) * 0.2, r(g, 3, 576, 10)], torch=_caps, tol=1e-5))


# ---------------------------------------------------------------- vision by gathers

def _grid(X, G):
    return F.grid_sample(X, G, mode="bilinear", padding_mode="border", align_corners=True)


op(dict(name="grid_sample_border", text='''
def grid_sample_border(float(N,C,H,W) X, float(N,P,Q,2) G) -> (Y) {
    Gx(n, p, q) = clamp((G(n, p, q, 0) + 1.0) / 2.0 * (W - 1), 0.0, float(W - 1))
    Gy(n, p, q) = clamp((G(n, p, q, 1) + 1.0) / 2.0 * (H - 1), 0.0, float(H - 1))
    X0(n, p, q) = min(int32(Gx(n, p, q)), W - 2)
    Y0(n, p, q) = min(int32(Gy(n, p, q)), H - 2)
    Y(n, c, p, q) = (1.0 - fy) * ((1.0 - fx) * X(n, c, Y0(n, p, q), X0(n, p, q)) + fx * X(n, c, Y0(n, p, q), X0(n, p, q) + 1))
                  + fy * ((1.0 - fx) * X(n, c, Y0(n, p, q) + 1, X0(n, p, q)) + fx * X(n, c, Y0(n, p, q) + 1, X0(n, p, q) + 1))
                  where fx = Gx(n, p, q) - float(X0(n, p, q)), fy = Gy(n, p, q) - float(Y0(n, p, q))
}''', args=lambda g: [r(g, 2, 24, 40, 56), u(g, 2, 33, 47, 2) * 2.2 - 1.1], torch=_grid, tol=2e-5))


def _roi(X, Box):
    H, W = X.shape[1:]
    y, x = torch.arange(H), torch.arange(W)
    my = ((y >= Box[:, 1:2]) & (y <= Box[:, 3:4])).float()
    mx = ((x >= Box[:, 0:1]) & (x <= Box[:, 2:3])).float()
    S = torch.einsum("ry,cyx,rx->rc", my, X, mx)
    return S / (my.sum(1) * mx.sum(1))[:, None]


op(dict(name="roi_mean", text='''
def roi_mean(float(C,H,W) X, int64(R,4) Box) -> (Y) {
    S(r, c) +=! (y >= Box(r, 1) && y <= Box(r, 3) && x >= Box(r, 0) && x <= Box(r, 2)) ? X(c, y, x) : 0.0
    Y(r, c) = S(r, c) / float((Box(r, 2) - Box(r, 0) + 1) * (Box(r, 3) - Box(r, 1) + 1))
}''', args=lambda g: [r(g, 32, 38, 50), torch.cat([ri(g, 0, 20, 60, 2), 20 + ri(g, 0, 18, 60, 2)], 1)], torch=_roi, tol=2e-5))


def _deform(V, Idx, A):
    B, S, H, D = V.shape
    Q, P = Idx.shape[1], Idx.shape[3]
    base = (torch.arange(B) * S * H)[:, None, None, None] + torch.arange(H)[:, None]
    return F.embedding_bag((Idx * H + base).view(-1, P), V.reshape(B * S * H, D), mode="sum", per_sample_weights=A.reshape(-1, P)).view(B, Q, H, D)


op(dict(name="deformable_attention", text='''
def deformable_attention(float(B,S,H,D) V, int64(B,Q,H,P) Idx, float(B,Q,H,P) A) -> (Y) {
    Y(b, q, h, d) +=! A(b, q, h, p) * V(b, Idx(b, q, h, p), h, d)
}''', args=lambda g: [r(g, 2, 900, 8, 32), ri(g, 0, 900, 2, 300, 8, 12), torch.softmax(r(g, 2, 300, 8, 12), -1)], torch=_deform, tol=1e-5))


def _involution(X, K):
    B, G, C, H, W = X.shape
    k = K.shape[2]
    U = F.unfold(X.reshape(B, G * C, H, W), k, padding=k // 2).view(B, G, C, k, k, H, W)
    return torch.einsum("bgckluv,bgkluv->bgcuv", U, K)


op(dict(name="involution", text='''
def involution(float(B,G,C,H,W) X, float(B,G,KH,KW,H,W) K) -> (Y) {
    Y(b, g, c, y, x) +=! (y + k >= KH/2 && y + k < H + KH/2 && x + l >= KW/2 && x + l < W + KW/2) ? K(b, g, k, l, y, x) * X(b, g, c, y + k - KH/2, x + l - KW/2) : 0.0
        where y in 0:H, x in 0:W
}''', args=lambda g: [r(g, 2, 4, 16, 28, 28), r(g, 2, 4, 3, 3, 28, 28)], torch=_involution, tol=1e-5))


# ---------------------------------------------------------------- graphs

def _gat(X, As, Ad, Nb):
    m = Nb >= 0
    j = Nb.clamp_min(0)
    e = F.leaky_relu((X @ Ad)[:, None] + (X @ As)[j], 0.2).masked_fill(~m, -torch.inf)
    return F.embedding_bag(j, X, mode="sum", per_sample_weights=torch.softmax(e, 1))


op(dict(name="gat_padded", text='''
def gat_padded(float(N,D) X, float(D) As, float(D) Ad, int64(N,K) Nb) -> (Y) {
    Es(n) +=! X(n, d) * As(d)
    Ed(n) +=! X(n, d) * Ad(d)
    E(n, k) = (Nb(n, k) >= 0) ? ((Ed(n) + Es(Nb(n, k)) > 0.0) ? Ed(n) + Es(Nb(n, k)) : 0.2 * (Ed(n) + Es(Nb(n, k)))) : -infinity()
    M(n) max=! E(n, k)
    Z(n) +=! exp(E(n, k) - M(n))
    Y(n, d) +=! (Nb(n, k) >= 0) ? exp(E(n, k) - M(n)) / Z(n) * X(Nb(n, k), d) : 0.0
}''', args=lambda g: [r(g, 700, 48), r(g, 48), r(g, 48), torch.cat([ri(g, 0, 700, 700, 1), ri(g, -300, 700, 700, 9).clamp_min(-1)], 1)], torch=_gat, tol=2e-5))


def _gcn(X, S, D):
    N = X.shape[0]
    dis = torch.bincount(D, minlength=N).float().clamp_min(1).rsqrt()
    return torch.zeros_like(X).index_add_(0, D, X[S] * (dis[S] * dis[D])[:, None])


op(dict(name="gcn_edges", text='''
def gcn_edges(float(N,D) X, int64(E) Src, int64(E) Dst) -> (float(N,D) Y) {
    Deg(Dst(e)) +=! 1.0 where Dst(e) in 0:N
    R(n) = rsqrt(max(Deg(n), 1.0))
    Y(Dst(e), d) +=! R(Src(e)) * R(Dst(e)) * X(Src(e), d)
}''', args=lambda g: [r(g, 1200, 33), ri(g, 0, 1200, 7000), ri(g, 0, 1200, 7000)], torch=_gcn, tol=1e-5))


def _schnet(P, H, Mu, W):
    d = (P[:, :, None] - P[:, None]).square().sum(-1).sqrt()  # with its gradient of 0, which cdist has an own one for
    rbf = torch.exp(-10.0 * (d[..., None] - Mu) ** 2)
    cut = 0.5 * (torch.cos(d * (math.pi / 5)) + 1) * (d < 5) * (1 - torch.eye(P.shape[1]))
    return torch.einsum("bijf,bij,bjf->bif", rbf @ W, cut, H)


op(dict(name="schnet_message", text='''
def schnet_message(float(B,N,3) P, float(B,N,F) H, float(K) Mu, float(K,F) W) -> (Y) {
    D2(b, i, j) +=! (P(b, i, x) - P(b, j, x)) * (P(b, i, x) - P(b, j, x))
    D(b, i, j) = sqrt(D2(b, i, j))
    C(b, i, j) = (i != j && D(b, i, j) < 5.0) ? 0.5 * (cos(D(b, i, j) * 3.14159265 / 5.0) + 1.0) : 0.0
    G(b, i, j, k) = exp(-10.0 * (D(b, i, j) - Mu(k)) * (D(b, i, j) - Mu(k)))
    Flt(b, i, j, f) +=! G(b, i, j, k) * W(k, f)
    Y(b, i, f) +=! Flt(b, i, j, f) * C(b, i, j) * H(b, j, f)
}''', args=lambda g: [r(g, 4, 21, 3) * 1.5, r(g, 4, 21, 64), torch.linspace(0, 5, 20), r(g, 20, 64)], torch=_schnet, tol=2e-5))


# ---------------------------------------------------------------- normalisations

def _wn(X, V, gain, b):
    return F.linear(X, torch._weight_norm(V, gain[:, None], 0), b)


op(dict(name="weight_norm_linear", text='''
def weight_norm_linear(float(B,I) X, float(O,I) V, float(O) gain, float(O) bias) -> (Y) {
    N(o) +=! V(o, i) * V(o, i)
    Y(b, o) +=! X(b, i) * V(o, i)
    Y(b, o) = Y(b, o) * gain(o) / sqrt(N(o)) + bias(o)
}''', args=lambda g: [r(g, 20, 777), r(g, 300, 777), r(g, 300), r(g, 300)], torch=_wn, tol=2e-5))


def _sn(W, uu):
    v = F.normalize(uu @ W, dim=0, eps=1e-12)
    wv = W @ v
    un = F.normalize(wv, dim=0, eps=1e-12)
    return W / torch.dot(un, wv), un, v


op(dict(name="spectral_norm_step", text='''
def spectral_norm_step(float(O,I) W, float(O) U) -> (Wn, Un, V) {
    V(i) +=! W(o, i) * U(o)
    Nv +=! V(i) * V(i)
    V(i) = V(i) / max(sqrt(Nv), 1e-12)
    Un(o) +=! W(o, i) * V(i)
    Nu +=! Un(o) * Un(o)
    Un(o) = Un(o) / max(sqrt(Nu), 1e-12)
    Wn(o, i) = W(o, i) / sqrt(Nu)
}''', args=lambda g: [r(g, 512, 1152), F.normalize(r(g, 512), dim=0)], torch=_sn, tol=2e-5))


op(dict(name="instance_norm_3d", text='''
def instance_norm_3d(float(N,C,D,H,W) X, float(C) gain, float(C) bias) -> (Y) {
    Mu(n, c) +=! X(n, c, d, h, w) / float(D * H * W)
    Var(n, c) +=! (X(n, c, d, h, w) - Mu(n, c)) * (X(n, c, d, h, w) - Mu(n, c)) / float(D * H * W)
    Y(n, c, d, h, w) = (X(n, c, d, h, w) - Mu(n, c)) * rsqrt(Var(n, c) + 1e-5) * gain(c) + bias(c)
}''', args=lambda g: [r(g, 2, 16, 20, 24, 28) + 0.5, r(g, 16), r(g, 16)], torch=lambda X, w, b: F.instance_norm(X, None, None, w, b), tol=3e-5))


op(dict(name="divisive_norm_channels", text='''
def divisive_norm_channels(float(N,C,H,W) X) -> (Y) {
    S(n, c, h, w) +=! (c + k >= 2 && c + k < C + 2) ? X(n, c + k - 2, h, w) * X(n, c + k - 2, h, w) : 0.0 where c in 0:C, k in 0:5
    Y(n, c, h, w) = X(n, c, h, w) / pow(2.0 + 1e-1 * S(n, c, h, w) / 5.0, 0.75)
}''', args=lambda g: [r(g, 3, 64, 27, 27)], torch=lambda X: F.local_response_norm(X, 5, alpha=0.1, beta=0.75, k=2.0), tol=1e-5))


# ---------------------------------------------------------------- attention

def _t5(Q, K, V, Bias):
    T, S = Q.shape[2], K.shape[2]
    rel = torch.arange(T)[:, None] - torch.arange(S) + S - 1
    return F.scaled_dot_product_attention(Q, K, V, attn_mask=Bias[:, rel][None], scale=1.0)


op(dict(name="relative_bias_attention", text='''
def relative_bias_attention(float(B,H,T,D) Q, float(B,H,S,D) K, float(B,H,S,D) V, float(H,R) Bias) -> (Y) {
    A(b, h, i, j) +=! Q(b, h, i, d) * K(b, h, j, d)
    A(b, h, i, j) = A(b, h, i, j) + Bias(h, i - j + S - 1)
    M(b, h, i) max=! A(b, h, i, j)
    Z(b, h, i) +=! exp(A(b, h, i, j) - M(b, h, i))
    Y(b, h, i, d) +=! exp(A(b, h, i, j) - M(b, h, i)) / Z(b, h, i) * V(b, h, j, d)
}''', args=lambda g: [r(g, 2, 6, 150, 64) / 8, r(g, 2, 6, 170, 64), r(g, 2, 6, 170, 64), r(g, 6, 319)], torch=_t5, tol=3e-5))


def _swin(Q, K, V):
    T, D = Q.shape[1:]
    S = 30 * torch.tanh(torch.bmm(Q, K.transpose(1, 2)) * (1 / (30 * math.sqrt(D))))
    i = torch.arange(T)
    d = i[:, None] - i
    return torch.bmm(torch.softmax(S.masked_fill_((d < 0) | (d >= 32), -torch.inf), -1), V)


op(dict(name="sliding_window_softcap", text='''
def sliding_window_softcap(float(B,T,D) Q, float(B,T,D) K, float(B,T,D) V) -> (Y) {
    S(b, t, w) +=! (t - w >= 0) ? Q(b, t, d) * K(b, t - w, d) : 0.0 where t in 0:T, w in 0:32
    S(b, t, w) = (t - w >= 0) ? 30.0 * tanh(S(b, t, w) / (30.0 * sqrt(float(D)))) : -infinity()
    M(b, t) max=! S(b, t, w)
    P(b, t, w) = exp(S(b, t, w) - M(b, t))
    Z(b, t) +=! P(b, t, w)
    Y(b, t, d) +=! (t - w >= 0) ? P(b, t, w) * V(b, t - w, d) / Z(b, t) : 0.0
}''', args=lambda g: [r(g, 3, 500, 48), r(g, 3, 500, 48), r(g, 3, 500, 48)], torch=_swin, tol=3e-5))


def _mqa(Q, K, V, Sink, Len):
    B, H, D = Q.shape
    S = torch.bmm(Q, K.transpose(1, 2)).float() / math.sqrt(D)
    S = S.masked_fill((torch.arange(K.shape[1]) >= Len[:, None])[:, None], -torch.inf)
    P = torch.softmax(torch.cat([S, Sink.expand(B, H)[..., None]], -1), -1)[..., :-1]
    return torch.bmm(P.to(V.dtype), V)


op(dict(name="multi_query_sink_decode", text='''
def multi_query_sink_decode(bfloat16(B,H,D) Q, bfloat16(B,S,D) K, bfloat16(B,S,D) V, float(H) Sink, int64(B) Len) -> (bfloat16(B,H,D) Y) {
    A(b, h, s) +=! float(Q(b, h, d)) * float(K(b, s, d))
    A(b, h, s) = (s < Len(b)) ? A(b, h, s) / sqrt(float(D)) : -infinity()
    M(b, h) = Sink(h) where b in 0:B
    M(b, h) max= A(b, h, s)
    Z(b, h) = exp(Sink(h) - M(b, h))
    Z(b, h) += exp(A(b, h, s) - M(b, h))
    O(b, h, d) +=! exp(A(b, h, s) - M(b, h)) * float(V(b, s, d))
    Y(b, h, d) = bfloat16(O(b, h, d) / Z(b, h))
}''', args=lambda g: [r(g, 4, 16, 128, dtype=torch.bfloat16), r(g, 4, 700, 128, dtype=torch.bfloat16), r(g, 4, 700, 128, dtype=torch.bfloat16), r(g, 16), ri(g, 300, 701, 4)], torch=_mqa, tol=3e-2))


def _ring(O1, L1, O2, L2):
    L = torch.logaddexp(L1, L2)
    return O1 * torch.exp(L1 - L)[..., None] + O2 * torch.exp(L2 - L)[..., None], L


op(dict(name="ring_attention_merge", text='''
def ring_attention_merge(half(B,T,H,D) O1, float(B,T,H) L1, half(B,T,H,D) O2, float(B,T,H) L2) -> (float(B,T,H,D) O, L) {
    L(b, t, h) = m + log(exp(L1(b, t, h) - m) + exp(L2(b, t, h) - m)) where m = max(L1(b, t, h), L2(b, t, h))
    O(b, t, h, d) = O1(b, t, h, d) * exp(L1(b, t, h) - L(b, t, h)) + O2(b, t, h, d) * exp(L2(b, t, h) - L(b, t, h))
}''', args=lambda g: [r(g, 2, 120, 8, 64, dtype=torch.float16), r(g, 2, 120, 8), r(g, 2, 8, 120, 64, dtype=torch.float16).transpose(1, 2), r(g, 2, 120, 8)], torch=_ring, tol=1e-5))
