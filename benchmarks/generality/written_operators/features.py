# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Embeddings, diffusion, decoding, factored layers, volumes and audio; as in ``models``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.models import r, ri, u
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)


# ---------------------------------------------------------------- embeddings, features

def _prope(X, Pos, Cos, Sin):
    R = 2 * Cos.shape[1]
    c, s = Cos[Pos][:, :, None], Sin[Pos][:, :, None]
    a, b = X[..., :R // 2], X[..., R // 2:R]
    return torch.cat([a * c - b * s, b * c + a * s, X[..., R:]], -1)


op(dict(name="partial_rotary_neox", text='''
def partial_rotary_neox(float(B,T,H,D) X, int64(B,T) Pos, float(P,R) Cos, float(P,R) Sin) -> (float(B,T,H,D) Y) {
    Y(b, t, h, d) = (d < R) ? X(b, t, h, d) * Cos(Pos(b, t), d) - X(b, t, h, d + R) * Sin(Pos(b, t), d)
                  : (d < 2 * R) ? X(b, t, h, d) * Cos(Pos(b, t), d - R) + X(b, t, h, d - R) * Sin(Pos(b, t), d - R)
                  : X(b, t, h, d) where b in 0:B, t in 0:T, h in 0:H, d in 0:D
}''', args=lambda g: [r(g, 2, 12, 200, 80).transpose(1, 2), ri(g, 0, 512, 2, 200), r(g, 512, 16), r(g, 512, 16)], torch=_prope, tol=1e-6))


def _sinus(T):
    D = 320
    w = torch.exp(torch.arange(D // 2) * (-math.log(10000.0) / (D // 2)))
    a = T[:, None].float() * w
    return torch.cat([torch.cos(a), torch.sin(a)], 1)


op(dict(name="timestep_embedding", text='''
def timestep_embedding(int64(N) T) -> (Y) {
    Y(n, d) = (d < 160) ? cos(float(T(n)) * exp(-log(10000.0) * d / 160.0)) : sin(float(T(n)) * exp(-log(10000.0) * (d - 160) / 160.0)) where d in 0:320
}''', args=lambda g: [ri(g, 0, 1000, 77)], torch=_sinus, tol=5e-4))


def _hashemb(Tok, A, B, T, W):
    V = T.shape[0]
    i = ((Tok[:, :, None] * A + B) % 2147483647) % V
    return F.embedding_bag(i.view(-1, i.shape[2]), T, mode="sum", per_sample_weights=W[Tok].view(-1, i.shape[2])).view(*Tok.shape, -1)


op(dict(name="hash_embedding", text='''
def hash_embedding(int64(B,L) Tok, int64(K) A, int64(K) C, float(V,D) T, float(U,K) W) -> (Y) {
    Hs(b, l, k) = (Tok(b, l) * A(k) + C(k)) % 2147483647 % V
    Y(b, l, d) +=! W(Tok(b, l), k) * T(Hs(b, l, k), d)
}''', args=lambda g: [ri(g, 0, 30000, 8, 100), ri(g, 1, 2 ** 30, 3), ri(g, 0, 2 ** 30, 3), r(g, 5003, 64), r(g, 30000, 3)], torch=_hashemb, tol=1e-5))


op(dict(name="rff_kernel_mean", text='''
def rff_kernel_mean(double(N,D) X, double(M,D) W, double(M) phase, double(N) w) -> (Mu) {
    A(n, m) +=! X(n, d) * W(m, d)
    Mu(m) +=! w(n) * sqrt(2.0 / M) * cos(A(n, m) + phase(m))
}''', args=lambda g: [r(g, 400, 10, dtype=torch.float64), r(g, 1000, 10, dtype=torch.float64), 6.28 * u(g, 1000, dtype=torch.float64), u(g, 400, dtype=torch.float64)],
    torch=lambda X, W, p, w: w @ torch.cos(torch.addmm(p, X, W.T)) * math.sqrt(2 / W.shape[0]), tol=1e-10))


# ---------------------------------------------------------------- NeRF, diffusion

def _nerf(Sg, Rgb, T):
    d = torch.cat([T[:, 1:] - T[:, :-1], torch.full_like(T[:, :1], 1e10)], 1)
    sd = F.relu(Sg) * d
    tr = torch.exp(-F.pad(torch.cumsum(sd[:, :-1], 1), (1, 0)))
    w = tr * (1 - torch.exp(-sd))
    acc = w.sum(1)
    return torch.einsum("rs,rsc->rc", w, torch.sigmoid(Rgb)) + (1 - acc)[:, None], (w * T).sum(1)


op(dict(name="nerf_render", text='''
def nerf_render(float(R,S) Sg, float(R,S,3) Rgb, float(R,S) T) -> (Col, Depth) {
    Sd(r, s) = relu(Sg(r, s)) * ((s < S - 1) ? T(r, s + 1) - T(r, s) : 1e10) where s in 0:S
    Tau(r, s) +=! (j < s) ? Sd(r, j) : 0.0 where s in 0:S
    Wt(r, s) = exp(-Tau(r, s)) * (1.0 - exp(-Sd(r, s)))
    Acc(r) +=! Wt(r, s)
    Col(r, c) = 1.0 - Acc(r) where c in 0:3
    Col(r, c) += Wt(r, s) * sigmoid(Rgb(r, s, c))
    Depth(r) +=! Wt(r, s) * T(r, s)
}''', args=lambda g: [r(g, 1024, 64), r(g, 1024, 64, 3), torch.sort(2 + 4 * u(g, 1024, 64), 1).values], torch=_nerf, tol=2e-5))


def _penc(X):
    a = X[..., None] * (2.0 ** torch.arange(10))
    return torch.stack([torch.sin(a), torch.cos(a)], -1)


op(dict(name="nerf_positional", text='''
def nerf_positional(float(R,S,3) X) -> (Y) {
    Y(r, s, c, l, f) = (f == 0) ? sin(exp2(float(l)) * X(r, s, c)) : cos(exp2(float(l)) * X(r, s, c)) where l in 0:10, f in 0:2
}''', args=lambda g: [r(g, 300, 33, 3)], torch=_penc, tol=1e-5))


def _ddpm(X, Ec, Eu, Nz, T, Ab, Be):
    ab, be = Ab[T].view(-1, 1, 1, 1), Be[T].view(-1, 1, 1, 1)
    abp = torch.where(T > 0, Ab[(T - 1).clamp_min(0)], 1.0).view(-1, 1, 1, 1)
    e = torch.lerp(Eu, Ec, 7.5)
    x0 = ((X - (1 - ab).sqrt() * e) * ab.rsqrt()).clamp_(-1, 1)
    mu = abp.sqrt() * be / (1 - ab) * x0 + (1 - be).sqrt() * (1 - abp) / (1 - ab) * X
    return mu + (be * (1 - abp) / (1 - ab)).sqrt() * Nz


op(dict(name="ddpm_guided_step", text='''
def ddpm_guided_step(float(N,C,H,W) X, float(N,C,H,W) Ec, float(N,C,H,W) Eu, float(N,C,H,W) Noise, int64(N) T, float(K) Ab, float(K) Beta) -> (Y) {
    Abt(n) = Ab(T(n))
    Prev(n) = (T(n) > 0) ? Ab(T(n) - 1) : 1.0
    Bt(n) = Beta(T(n))
    X0(n, c, h, w) = clamp((X(n, c, h, w) - sqrt(1.0 - Abt(n)) * (Eu(n, c, h, w) + 7.5 * (Ec(n, c, h, w) - Eu(n, c, h, w)))) / sqrt(Abt(n)), -1.0, 1.0)
    Y(n, c, h, w) = (sqrt(Prev(n)) * Bt(n) * X0(n, c, h, w) + sqrt(1.0 - Bt(n)) * (1.0 - Prev(n)) * X(n, c, h, w)) / (1.0 - Abt(n))
                  + sqrt(Bt(n) * (1.0 - Prev(n)) / (1.0 - Abt(n))) * Noise(n, c, h, w)
}''', args=lambda g: [r(g, 5, 4, 64, 64), r(g, 5, 4, 64, 64), r(g, 5, 4, 64, 64), r(g, 5, 4, 64, 64), torch.cat([torch.zeros(1, dtype=torch.int64), ri(g, 0, 1000, 4)]), torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0), torch.linspace(1e-4, 0.02, 1000)],
    torch=_ddpm, tol=5e-5))


# ---------------------------------------------------------------- decoding, metric learning, codebooks

def _beam(Sc, LP, Done, Len):
    B, K, V = LP.shape
    only = torch.full((V,), -torch.inf); only[2] = 0.0
    s = Sc[..., None] + torch.where(Done[..., None], only, LP)
    ln = (Len + (~Done).long()).float()
    n = s / ((5 + ln) / 6).pow(0.6)[..., None]
    v, i = n.view(B, K * V).max(1)
    return n, v, i


op(dict(name="beam_search_scores", text='''
def beam_search_scores(float(B,K) Sc, float(B,K,V) LP, bool(B,K) Done, int64(B,K) Len) -> (N, Best, int64(B) Arg) {
    Pen(b, k) = pow((5.0 + float(Len(b, k) + (Done(b, k) ? 0 : 1))) / 6.0, 0.6)
    N(b, k, v) = (Sc(b, k) + (Done(b, k) ? ((v == 2) ? 0.0 : -infinity()) : LP(b, k, v))) / Pen(b, k)
    Best(b) max=! N(b, k, v)
    Arg(b) min=! (N(b, k, v) == Best(b)) ? int64(k * V + v) : int64(K * V)
}''', args=lambda g: [-5 * u(g, 4, 5), torch.log_softmax(r(g, 4, 5, 3001), -1), u(g, 4, 5) < 0.3, ri(g, 3, 30, 4, 5)], torch=_beam, tol=1e-5))


def _maha(X, Y, M):
    a, b = X @ M, Y @ M
    return (a * X).sum(1)[:, None] + (b * Y).sum(1)[None] - a @ Y.T - X @ b.T


op(dict(name="mahalanobis_pairs", text='''
def mahalanobis_pairs(float(N,D) X, float(M,D) Y, float(D,D) P) -> (S) {
    S(i, j) +=! (X(i, d) - Y(j, d)) * P(d, e) * (X(i, e) - Y(j, e))
}''', args=lambda g: [r(g, 96, 33), r(g, 70, 33), r(g, 33, 33)], torch=_maha, tol=3e-5))


def _vq(X, E):
    D = (X * X).sum(1, keepdim=True) - 2 * X @ E.T + (E * E).sum(1)
    i = D.argmin(1)
    q = E[i]
    return q, i.to(torch.int32), (X - q).square().mean(), torch.zeros_like(E).index_add_(0, i, X)


op(dict(name="vq_codebook", text='''
def vq_codebook(float(N,D) X, float(K,D) E) -> (Q, I, Commit, Sum) {
    Dist(n, k) +=! (X(n, d) - E(k, d)) * (X(n, d) - E(k, d))
    Least(n) min=! Dist(n, k)
    I(n) min=! (Dist(n, k) == Least(n)) ? k : K
    Q(n, d) = E(I(n), d)
    Commit +=! (X(n, d) - Q(n, d)) * (X(n, d) - Q(n, d)) / float(N * D)
    Sum(I(n), d) +=! X(n, d) where I(n) in 0:K
}''', args=lambda g: [r(g, 600, 24), r(g, 256, 24)], torch=_vq, tol=2e-5))


# ---------------------------------------------------------------- factored layers

op(dict(name="kronecker_layer", text='''
def kronecker_layer(half(B,I,J) X, half(O,I) A, half(P,J) C, half(O,P) bias) -> (Y) {
    T(b, o, j) +=! X(b, i, j) * A(o, i)
    Y(b, o, p) +=! T(b, o, j) * C(p, j)
    Y(b, o, p) = max(Y(b, o, p) + bias(o, p), 0.0)
}''', args=lambda g: [r(g, 16, 24, 40, dtype=torch.float16), r(g, 32, 24, dtype=torch.float16) / 5, r(g, 20, 40, dtype=torch.float16) / 6, r(g, 32, 20, dtype=torch.float16)],
    torch=lambda X, A, C, b: torch.relu((A @ X) @ C.T + b), tol=5e-3))

op(dict(name="cp_bilinear_fusion", text='''
def cp_bilinear_fusion(float(N,I) X, float(N,J) Y, float(I,R) A, float(J,R) C, float(R,O) W) -> (Z) {
    Z(n, o) +=! X(n, i) * A(i, r) * Y(n, j) * C(j, r) * W(r, o)
}''', args=lambda g: [r(g, 30, 70), r(g, 30, 110), r(g, 70, 24), r(g, 110, 24), r(g, 24, 50)], torch=lambda X, Y, A, C, W: ((X @ A) * (Y @ C)) @ W, tol=2e-5))


# ---------------------------------------------------------------- volumes, points

op(dict(name="dilated_depthwise_3d", text='''
def dilated_depthwise_3d(float(N,C,D,H,W) X, float(C,KD,KH,KW) K) -> (Y) {
    Y(n, c, z, y, x) +=! X(n, c, z + dz, y + 2 * dy, 2 * x + 2 * dx) * K(c, dz, dy, dx)
    Y(n, c, z, y, x) = (Y(n, c, z, y, x) > 0.0) ? Y(n, c, z, y, x) : expm1(Y(n, c, z, y, x))
}''', args=lambda g: [r(g, 1, 12, 18, 31, 45), r(g, 12, 3, 3, 3)], torch=lambda X, K: F.elu(F.conv3d(X, K[:, None], stride=(1, 1, 2), dilation=(1, 2, 2), groups=X.shape[1])), tol=1e-5))


def _chamfer(X, Y):
    d = (X * X).sum(2)[:, :, None] + (Y * Y).sum(2)[:, None] - 2 * torch.bmm(X, Y.transpose(1, 2))
    return d.amin(2).mean(1) + d.amin(1).mean(1)


op(dict(name="chamfer_distance", text='''
def chamfer_distance(float(B,N,3) X, float(B,M,3) Y) -> (L) {
    D(b, i, j) +=! (X(b, i, c) - Y(b, j, c)) * (X(b, i, c) - Y(b, j, c))
    Mx(b, i) min=! D(b, i, j)
    My(b, j) min=! D(b, i, j)
    L(b) +=! Mx(b, i) / N
    L(b) += My(b, j) / M
}''', args=lambda g: [r(g, 3, 1000, 3), r(g, 3, 1300, 3)], torch=_chamfer, tol=1e-4))


def _ball(P, Q, Fe):
    d = torch.cdist(Q, P, compute_mode="donot_use_mm_for_euclid_dist")
    m = d < 0.5
    out = torch.where(m[..., None], Fe[:, None], -torch.inf).amax(2)
    return m.sum(2, dtype=torch.int32), out


op(dict(name="ball_query_maxpool", text='''
def ball_query_maxpool(float(B,N,3) P, float(B,M,3) Q, float(B,N,F) Feat) -> (Count, Y) {
    In(b, m, n) = (Q(b, m, 0) - P(b, n, 0)) * (Q(b, m, 0) - P(b, n, 0)) + (Q(b, m, 1) - P(b, n, 1)) * (Q(b, m, 1) - P(b, n, 1)) + (Q(b, m, 2) - P(b, n, 2)) * (Q(b, m, 2) - P(b, n, 2)) < 0.25
    Count(b, m) +=! In(b, m, n) ? 1 : 0
    Y(b, m, f) max=! In(b, m, n) ? Feat(b, n, f) : -infinity()
}''', args=lambda g: [r(g, 2, 500, 3), r(g, 2, 64, 3), r(g, 2, 500, 20)], torch=_ball, tol=1e-6))


# ---------------------------------------------------------------- audio

def _whisper(P, Fb):
    m = torch.log10((P @ Fb.T).clamp_min(1e-10))
    return (torch.maximum(m, m.amax((1, 2), keepdim=True) - 8) + 4) / 4


op(dict(name="log_mel_whisper", text='''
def log_mel_whisper(float(B,T,K) P, float(M,K) Fb) -> (Y) {
    Mel(b, t, m) +=! P(b, t, k) * Fb(m, k)
    Lg(b, t, m) = log10(max(Mel(b, t, m), 1e-10))
    Top(b) max=! Lg(b, t, m)
    Y(b, t, m) = (max(Lg(b, t, m), Top(b) - 8.0) + 4.0) / 4.0
}''', args=lambda g: [r(g, 2, 300, 201).square(), F.relu(r(g, 80, 201) - 1)], torch=_whisper, tol=1e-5))


def _mulaw(X):
    y = torch.sign(X) * torch.log1p(255 * X.abs()) / math.log1p(255.0)
    return ((y + 1) / 2 * 255 + 0.5).to(torch.uint8)


op(dict(name="mu_law_encode", text='''
def mu_law_encode(float(N) X) -> (uint8(N) Q) {
    Q(i) = uint8((sign(X(i)) * log1p(255.0 * fabs(X(i))) / log1p(255.0) + 1.0) / 2.0 * 255.0 + 0.5)
}''', args=lambda g: [u(g, 160000)[::2] * 2 - 1], torch=_mulaw, tol=0.005))


def _stft(X, W):
    return torch.stft(X, 256, 100, 256, W, center=False, return_complex=True).abs().square().transpose(1, 2)


op(dict(name="power_spectrogram", text='''
def power_spectrogram(float(B,L) X, float(256) Win) -> (P) {
    Re(b, t, k) +=! X(b, 100 * t + n) * Win(n) * cos(2.0 * 3.14159265358979 / 256.0 * float(k * n % 256)) where k in 0:129
    Im(b, t, k) +=! X(b, 100 * t + n) * Win(n) * sin(2.0 * 3.14159265358979 / 256.0 * float(k * n % 256)) where k in 0:129
    P(b, t, k) = Re(b, t, k) * Re(b, t, k) + Im(b, t, k) * Im(b, t, k)
}''', args=lambda g: [r(g, 2, 8000), torch.hann_window(256)], torch=_stft, tol=1e-4))


# ---------------------------------------------------------------- the closed form of a recurrence that is refused, and a concatenation

def _ssd(LA, X, Bm, Cm):
    L = torch.cumsum(LA, 1)                                        # B,T,H
    T = LA.shape[1]
    D = (L[:, :, None] - L[:, None]).permute(0, 3, 1, 2)           # B,H,t,s
    D = torch.exp(D.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf))
    G = torch.bmm(Cm, Bm.transpose(1, 2))[:, None]
    return ((G * D) @ X.transpose(1, 2)).transpose(1, 2)


op(dict(name="ssd_chunk", text='''
def ssd_chunk(float(B,T,H) LA, float(B,T,H,P) X, float(B,T,N) Bm, float(B,T,N) Cm) -> (Y) {
    L(b, t, h) +=! (s <= t) ? LA(b, s, h) : 0.0 where t in 0:T
    G(b, t, s) +=! Cm(b, t, n) * Bm(b, s, n)
    Y(b, t, h, p) +=! (s <= t) ? G(b, t, s) * exp(L(b, t, h) - L(b, s, h)) * X(b, s, h, p) : 0.0
}''', args=lambda g: [-0.1 * u(g, 4, 64, 24), r(g, 4, 64, 24, 64), r(g, 4, 64, 128), r(g, 4, 64, 128)], torch=_ssd, tol=2e-5))

op(dict(name="coord_concat_film", text='''
def coord_concat_film(float(N,C,H,W) X, float(N,C) gamma, float(N,C) beta) -> (Y) {
    Y(n, c, y, x) = (c < C) ? gamma(n, c) * X(n, c, y, x) + beta(n, c) : (c == C) ? 2.0 * y / (H - 1) - 1.0 : 2.0 * x / (W - 1) - 1.0 where n in 0:N, c in 0:C+2, y in 0:H, x in 0:W
}''', args=lambda g: [r(g, 4, 13, 50, 70), r(g, 4, 13), r(g, 4, 13)],
    torch=lambda X, a, b: torch.cat([torch.addcmul(b[..., None, None], a[..., None, None], X), torch.linspace(-1, 1, X.shape[2])[:, None].expand(X.shape[0], 1, *X.shape[2:]), torch.linspace(-1, 1, X.shape[3]).expand(X.shape[0], 1, *X.shape[2:])], 1), tol=1e-5))
