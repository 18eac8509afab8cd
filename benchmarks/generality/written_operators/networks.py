# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Recommenders, retrieval, audio, diffusion, graphs and radiance fields; as in ``learning``."""
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


def of(value, dt=f32):
    """A scalar argument."""
    return torch.tensor(value, dtype=dt)


# ---------------------------------------------------------------- recommender systems

def _dcn(X, U1, V1, b1, U2, V2, b2):
    H = torch.addcmul(X, X, F.linear(F.linear(X, V1), U1, b1))
    return torch.addcmul(H, X, F.linear(F.linear(H, V2), U2, b2))


op(dict(name="dcn_v2_lowrank", text='''
def cross_layer(float(B,D) X0, float(B,D) X, float(D,R) U, float(R,D) V, float(D) Bias) -> (Y) {
    P(n, r) +=! X(n, d) * V(r, d)
    Q(n, d) +=! P(n, r) * U(d, r)
    Y(n, d) = X0(n, d) * (Q(n, d) + Bias(d)) + X(n, d)
}
def dcn_v2_lowrank(float(B,D) X, float(D,R) U1, float(R,D) V1, float(D) B1, float(D,R) U2, float(R,D) V2, float(D) B2) -> (Y) {
    H = cross_layer(X, X, U1, V1, B1)
    Y = cross_layer(X, H, U2, V2, B2)
}''', args=lambda g: [rn(g, 512, 429)] + [t for _ in range(2) for t in (rn(g, 429, 64, k=0.1), rn(g, 64, 429, k=0.05), rn(g, 429, k=0.1))], torch=_dcn, tol=2e-5))


def _dlrm(X, Li, Lj):
    return torch.cat([X[:, 0], torch.bmm(X, X.transpose(1, 2))[:, Li, Lj]], 1)


op(dict(name="dlrm_tril_concat", text='''
def dlrm_tril_concat(float(B,F,D) X, int64(P) Li, int64(P) Lj) -> (Y) {
    G(b, i, j) +=! X(b, i, d) * X(b, j, d)
    Y(b, q) = (q < D) ? X(b, 0, q) : G(b, Li(q - D), Lj(q - D)) where q in 0:D+P
}''', args=lambda g: [rn(g, 512, 27, 32), *torch.tril_indices(27, 27, -1).unbind(0)], torch=_dlrm, tol=2e-5))


def _mmoe(X, We, Wg, Wt, Bt):
    E = F.relu(torch.einsum("bi,eih->ebh", X, We))
    G = torch.softmax(torch.einsum("bi,kie->kbe", X, Wg), -1)
    return torch.sigmoid(torch.einsum("kbh,kh->bk", torch.einsum("kbe,ebh->kbh", G, E), Wt) + Bt)


op(dict(name="mmoe_towers", text='''
def mmoe_towers(float(B,I) X, float(E,I,H) We, float(K,I,E) Wg, float(K,H) Wt, float(K) Bt) -> (P) {
    Ex(e, b, h) +=! X(b, i) * We(e, i, h)
    L(k, b, e) +=! X(b, i) * Wg(k, i, e)
    M(k, b) max=! L(k, b, e)
    Z(k, b) +=! exp(L(k, b, e) - M(k, b))
    T(k, b, h) +=! exp(L(k, b, e) - M(k, b)) / Z(k, b) * relu(Ex(e, b, h))
    S(b, k) +=! T(k, b, h) * Wt(k, h)
    P(b, k) = sigmoid(S(b, k) + Bt(k))
}''', args=lambda g: [rn(g, 256, 130), rn(g, 6, 130, 64, k=0.09), rn(g, 3, 130, 6, k=0.09), rn(g, 3, 64, k=0.3), rn(g, 3)], torch=_mmoe, tol=2e-5))


def _adc(Q, C, code):
    L = (Q[:, :, None] - C).square().sum(-1)
    D = L[:, torch.arange(C.shape[0]), code.long()].sum(-1)
    return D, D.amin(1)


op(dict(name="pq_adc_scores", text='''
def pq_adc_scores(float(Q,M,S) Query, float(M,256,S) Book, uint8(N,M) Code) -> (Dist, Best) {
    Lut(q, m, c) +=! (Query(q, m, s) - Book(m, c, s)) * (Query(q, m, s) - Book(m, c, s))
    Dist(q, n) +=! Lut(q, m, Code(n, m))
    Best(q) min=! Dist(q, n)
}''', args=lambda g: [rn(g, 8, 16, 8), rn(g, 16, 256, 8), ri(g, 0, 256, 4001, 16, dt=u8)], torch=_adc, tol=2e-5))


# ---------------------------------------------------------------- retrieval, contrastive and ranking losses

def _colbert(Q, K, Len):
    A, T, _ = Q.shape
    N, L, _ = K.shape
    S = (Q.flatten(0, 1) @ K.flatten(0, 1).T).view(A, T, N, L)
    return S.masked_fill(torch.arange(L) >= Len[:, None], -torch.inf).amax(-1).float().sum(1)


op(dict(name="colbert_maxsim", text='''
def colbert_maxsim(bfloat16(A,T,D) Q, bfloat16(N,L,D) K, int32(N) Len) -> (float(A,N) S) {
    Sim(a, n, t, l) +=! Q(a, t, d) * K(n, l, d)
    Top(a, n, t) max=! (l < Len(n)) ? Sim(a, n, t, l) : -infinity()
    S(a, n) +=! float(Top(a, n, t))
}''', args=lambda g: [rn(g, 4, 32, 128, dt=bf16, k=0.3), rn(g, 60, 100, 128, dt=bf16, k=0.3), ri(g, 20, 101, 60, dt=i32)], torch=_colbert, tol=2e-2))


def _siglip(X, Y, t, b):
    z = torch.exp(t) * (F.normalize(X, dim=1) @ F.normalize(Y, dim=1).T) + b
    y = 2 * torch.eye(X.shape[0]) - 1
    return -F.logsigmoid(y * z).sum() / X.shape[0]


op(dict(name="siglip_pairs_loss", text='''
def siglip_pairs_loss(float(N,D) X, float(N,D) Y, float scale, float bias) -> (Loss) {
    Nx(i) +=! X(i, d) * X(i, d)
    Ny(j) +=! Y(j, d) * Y(j, d)
    L(i, j) +=! X(i, d) * Y(j, d)
    L(i, j) = exp(scale) * L(i, j) * rsqrt(Nx(i)) * rsqrt(Ny(j)) + bias
    Loss +=! (max(-z, 0.0) + log1p(exp(-fabs(z)))) / N where z = ((i == j) ? 1.0 : -1.0) * L(i, j)
}''', args=lambda g: [rn(g, 301, 192), rn(g, 301, 192), of(2.25), of(-5.0)], torch=_siglip, tol=2e-5))


def _vicreg(X, Y):
    N, D = X.shape
    x, y = X - X.mean(0), Y - Y.mean(0)
    cx, cy = x.T @ x / (N - 1), y.T @ y / (N - 1)
    off = lambda c: c.square().sum() - c.diagonal().square().sum()
    var = F.relu(1 - torch.sqrt(cx.diagonal() + 1e-4)).mean() + F.relu(1 - torch.sqrt(cy.diagonal() + 1e-4)).mean()
    return F.mse_loss(X, Y), var, (off(cx) + off(cy)) / D


op(dict(name="vicreg_terms", text='''
def vicreg_terms(float(N,D) X, float(N,D) Y) -> (Inv, Var, Cov) {
    Mx(d) +=! X(n, d) / N
    My(d) +=! Y(n, d) / N
    Cx(i, j) +=! (X(n, i) - Mx(i)) * (X(n, j) - Mx(j)) / (N - 1)
    Cy(i, j) +=! (Y(n, i) - My(i)) * (Y(n, j) - My(j)) / (N - 1)
    Inv +=! (X(n, d) - Y(n, d)) * (X(n, d) - Y(n, d)) / (N * D)
    Var +=! (relu(1.0 - sqrt(Cx(i, i) + 1e-4)) + relu(1.0 - sqrt(Cy(i, i) + 1e-4))) / D
    Cov +=! (i != j) ? (Cx(i, j) * Cx(i, j) + Cy(i, j) * Cy(i, j)) / D : 0.0
}''', args=lambda g: [rn(g, 384, 250, k=0.7) + 0.2, rn(g, 384, 250, k=0.6)], torch=_vicreg, tol=5e-5))


def _lambdarank(S, R):
    disc = 1 / torch.log2(S.argsort(1, descending=True).argsort(1) + 2.0)
    gain = torch.exp2(R.float()) - 1
    ideal = (gain.sort(1, descending=True).values / torch.log2(torch.arange(S.shape[1]) + 2.0)).sum(1)
    w = ((gain[:, :, None] - gain[:, None]) * (disc[:, :, None] - disc[:, None])).abs() / ideal[:, None, None]
    return (w * F.softplus(S[:, None] - S[:, :, None])).masked_fill(R[:, :, None] <= R[:, None], 0.0).sum((1, 2))


op(dict(name="lambdarank_loss", text='''
def lambdarank_loss(float(Q,N) S, int32(Q,N) R) -> (Loss) {
    Rank(q, i) +=! (S(q, j) > S(q, i) || (S(q, j) == S(q, i) && j < i)) ? 1 : 0
    Ideal(q, i) +=! (R(q, j) > R(q, i) || (R(q, j) == R(q, i) && j < i)) ? 1 : 0
    Best(q) +=! (exp2(float(R(q, i))) - 1.0) / log2(float(Ideal(q, i)) + 2.0)
    W(q, i, j) = fabs((exp2(float(R(q, i))) - exp2(float(R(q, j)))) * (1.0 / log2(float(Rank(q, i)) + 2.0) - 1.0 / log2(float(Rank(q, j)) + 2.0))) / Best(q)
    Loss(q) +=! (R(q, i) > R(q, j)) ? W(q, i, j) * log1p(exp(S(q, j) - S(q, i))) : 0.0
}''', args=lambda g: [rn(g, 48, 100), ri(g, 0, 5, 48, 100, dt=i32)], torch=_lambdarank, tol=2e-5))


def _rotate(Re, Im, Ph, h, r, t, known):
    c, s = torch.cos(Ph[r]), torch.sin(Ph[r])
    ar, ai = Re[h] * c - Im[h] * s, Re[h] * s + Im[h] * c
    d = ((ar[:, None] - Re).square() + (ai[:, None] - Im).square()).sqrt().sum(-1)
    rank = ((d < d.gather(1, t[:, None])) & ~known).sum(1, dtype=i32)
    return rank, (1 / (rank + 1).float()).mean()


op(dict(name="rotate_filtered_rank", text='''
def rotate_filtered_rank(float(V,D) Re, float(V,D) Im, float(R,D) Phase, int64(B) Hd, int64(B) Rl, int64(B) Tl, bool(B,V) Known) -> (int32(B) Rank, Mrr) {
    Ar(b, d) = Re(Hd(b), d) * cos(Phase(Rl(b), d)) - Im(Hd(b), d) * sin(Phase(Rl(b), d))
    Ai(b, d) = Re(Hd(b), d) * sin(Phase(Rl(b), d)) + Im(Hd(b), d) * cos(Phase(Rl(b), d))
    Dist(b, v) +=! sqrt((Ar(b, d) - Re(v, d)) * (Ar(b, d) - Re(v, d)) + (Ai(b, d) - Im(v, d)) * (Ai(b, d) - Im(v, d)))
    Rank(b) +=! (!Known(b, v) && Dist(b, v) < Dist(b, Tl(b))) ? 1 : 0
    Mrr +=! 1.0 / float(Rank(b) + 1) / B
}''', args=lambda g: [rn(g, 1000, 96), rn(g, 1000, 96), ru(g, 40, 96, lo=-3.14, hi=3.14), ri(g, 0, 1000, 8), ri(g, 0, 40, 8), ri(g, 0, 1000, 8), ru(g, 8, 1000) < 0.03], torch=_rotate, tol=2e-3))


# ---------------------------------------------------------------- speech and audio front ends

def _sincnet(X, low, band, win):
    n = (torch.arange(win.shape[0]) - win.shape[0] // 2).float()
    lo, hi = low[:, None], (low + band)[:, None]
    H = (2 * hi * torch.sinc(2 * hi * n) - 2 * lo * torch.sinc(2 * lo * n)) * win
    return torch.log1p(F.conv1d(X[:, None], H[:, None], stride=5).abs())


op(dict(name="sincnet_frontend", text='''
def sincnet_frontend(float(B,L) X, float(C) Low, float(C) Band, float(K) Win) -> (Y) {
    H(c, k) = Win(k) * ((k == K / 2) ? 2.0 * Band(c)
            : (sin(6.283185307179586 * (Low(c) + Band(c)) * (k - K / 2)) - sin(6.283185307179586 * Low(c) * (k - K / 2))) / (3.141592653589793 * (k - K / 2)))
    Y(b, c, t) +=! X(b, 5 * t + k) * H(c, k)
    Y(b, c, t) = log1p(fabs(Y(b, c, t)))
}''', args=lambda g: [rn(g, 4, 8000), ru(g, 40, lo=0.002, hi=0.3), ru(g, 40, lo=0.01, hi=0.12), torch.hamming_window(101, periodic=False)], torch=_sincnet, tol=1e-4))


def _istft(Fr, win):
    B, T, N = Fr.shape
    fold = lambda x: F.fold(x, (1, 64 * (T - 1) + N), (1, N), stride=(1, 64))[:, 0, 0]
    return fold((Fr * win).transpose(1, 2)) / fold((win * win)[None, :, None].expand(1, N, T)).clamp_min(1e-8)


op(dict(name="istft_overlap_add", text='''
def istft_overlap_add(float(B,T,N) Fr, float(N) Win) -> (Y) {
    A(b, t) +=! (t >= 64 * f && t < 64 * f + N) ? Fr(b, f, t - 64 * f) * Win(t - 64 * f) : 0.0 where t in 0:64*(T-1)+N, f in 0:T
    E(t) +=! (t >= 64 * f && t < 64 * f + N) ? Win(t - 64 * f) * Win(t - 64 * f) : 0.0 where t in 0:64*(T-1)+N, f in 0:T
    Y(b, t) = A(b, t) / max(E(t), 1e-8)
}''', args=lambda g: [rn(g, 8, 60, 256), torch.hamming_window(256)], torch=_istft, tol=2e-5))


def _yin(X):
    fr = X.unfold(1, 512, 128)
    d = (fr.unfold(2, 256, 1)[:, :, :256] - fr[:, :, None, :256]).square().sum(-1)
    y = d[..., 1:] * torch.arange(1, 256) / d[..., 1:].cumsum(-1)
    y = torch.cat([torch.ones_like(y[..., :1]), y], -1)
    return y, y[..., 20:].amin(-1)


op(dict(name="yin_cmnd", text='''
def yin_cmnd(float(B,L) X) -> (Y, Best) {
    D(b, t, k) +=! (X(b, 128 * t + j) - X(b, 128 * t + j + k)) * (X(b, 128 * t + j) - X(b, 128 * t + j + k)) where t in 0:(L - 512) / 128 + 1, j in 0:256, k in 0:256
    C(b, t, k) +=! (m >= 1 && m <= k) ? D(b, t, m) : 0.0 where k in 0:256
    Y(b, t, k) = (k == 0) ? 1.0 : D(b, t, k) * k / C(b, t, k)
    Best(b, t) min=! (k >= 20) ? Y(b, t, k) : infinity()
}''', args=lambda g: [torch.sin(torch.arange(6000) * torch.tensor([[0.11], [0.07]])) + rn(g, 2, 6000, k=0.2)], torch=_yin, tol=5e-5))


def _sisdr(E, R):
    e, r = E - E.mean(-1, keepdim=True), R - R.mean(-1, keepdim=True)
    a = e @ r.transpose(1, 2) / r.square().sum(-1)[:, None]
    s = a[..., None] * r[:, None]
    v = 10 * torch.log10(s.square().sum(-1) / (e[:, :, None] - s).square().sum(-1))
    return -torch.maximum(v[:, 0, 0] + v[:, 1, 1], v[:, 0, 1] + v[:, 1, 0]) / 2


def a_sisdr(g):
    R = rn(g, 8, 2, 16000)
    return [0.8 * R.flip(1) + rn(g, 8, 2, 16000, k=0.5) + 0.1, R]


op(dict(name="si_sdr_pit", text='''
def si_sdr_pit(float(B,2,T) E, float(B,2,T) R) -> (L) {
    Me(b, i) +=! E(b, i, t) / T
    Mr(b, j) +=! R(b, j, t) / T
    Dot(b, i, j) +=! (E(b, i, t) - Me(b, i)) * (R(b, j, t) - Mr(b, j))
    Rr(b, j) +=! (R(b, j, t) - Mr(b, j)) * (R(b, j, t) - Mr(b, j))
    N(b, i, j) +=! d * d where d = E(b, i, t) - Me(b, i) - Dot(b, i, j) / Rr(b, j) * (R(b, j, t) - Mr(b, j))
    Sdr(b, i, j) = 10.0 * log10(Dot(b, i, j) * Dot(b, i, j) / Rr(b, j) / N(b, i, j))
    L(b) = -max(Sdr(b, 0, 0) + Sdr(b, 1, 1), Sdr(b, 0, 1) + Sdr(b, 1, 0)) / 2.0
}''', args=a_sisdr, torch=_sisdr, tol=5e-5))


# ---------------------------------------------------------------- diffusion and tokenisers

def _minsnr(X, E, V, T, Ab):
    a = Ab[T]
    snr = a / (1 - a)
    a = a[:, None, None, None]
    mse = (a.sqrt() * E - (1 - a).sqrt() * X - V.float()).square().mean((1, 2, 3))
    return (snr.clamp_max(5) / (snr + 1) * mse).mean()


op(dict(name="min_snr_v_loss", text='''
def min_snr_v_loss(float(N,C,H,W) X, float(N,C,H,W) E, half(N,C,H,W) Vp, int64(N) T, float(K) Ab) -> (Loss) {
    A(n) = Ab(T(n))
    Snr(n) = A(n) / (1.0 - A(n))
    Mse(n) +=! d * d / float(C * H * W) where d = sqrt(A(n)) * E(n, c, h, w) - sqrt(1.0 - A(n)) * X(n, c, h, w) - Vp(n, c, h, w)
    Loss +=! min(Snr(n), 5.0) / (Snr(n) + 1.0) * Mse(n) / N
}''', args=lambda g: [rn(g, 6, 4, 64, 64), rn(g, 6, 4, 64, 64), rn(g, 6, 64, 64, 4, dt=f16).permute(0, 3, 1, 2), ri(g, 0, 1000, 6), torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)],
    torch=_minsnr, tol=2e-5))


def _adaln(X, Fx, Mod):
    Y = X + Mod[:, 2, None] * Fx
    return Y, F.layer_norm(Y, (Y.shape[-1],), eps=1e-6) * (1 + Mod[:, 4, None]) + Mod[:, 3, None]


op(dict(name="adaln_zero_bf16", text='''
def adaln_zero_bf16(bfloat16(B,T,D) X, bfloat16(B,T,D) Fx, bfloat16(B,6,D) Mod) -> (Y, bfloat16(B,T,D) H) {
    Y(b, t, d) = X(b, t, d) + Mod(b, 2, d) * Fx(b, t, d)
    Mu(b, t) +=! float(Y(b, t, d)) / D
    Var(b, t) +=! (float(Y(b, t, d)) - Mu(b, t)) * (float(Y(b, t, d)) - Mu(b, t)) / D
    H(b, t, d) = (float(Y(b, t, d)) - Mu(b, t)) * rsqrt(Var(b, t) + 1e-6) * (1.0 + Mod(b, 4, d)) + Mod(b, 3, d)
}''', args=lambda g: [rn(g, 4, 256, 1152, dt=bf16), rn(g, 4, 256, 1152, dt=bf16), rn(g, 4, 6, 1152, dt=bf16, k=0.3)], torch=_adaln, tol=2e-2))


def _unpatch(X):
    B, GH, GW, P, Q, C = X.shape
    return X.permute(0, 5, 1, 3, 2, 4).reshape(B, C, GH * P, GW * Q).float().mul(127.5).add(128.0).clamp(0, 255).to(u8)


op(dict(name="dit_unpatchify", text='''
def dit_unpatchify(half(B,GH,GW,P,Q,C) X) -> (Y) {
    Y(b, c, y, x) = uint8(clamp(float(X(b, y / P, x / Q, y % P, x % Q, c)) * 127.5 + 128.0, 0.0, 255.0)) where y in 0:GH*P, x in 0:GW*Q
}''', args=lambda g: [rn(g, 2, 48, 40, 4, 4, 3, dt=f16, k=0.4)], torch=_unpatch, tol=0.005))


def _fsq(Z, Lv, Basis):
    h = (Lv - 1) * 1.001 / 2
    off = torch.where(Lv % 2 == 0, 0.5, 0.0)
    I = (torch.tanh(Z + torch.atanh(off / h)) * h - off).round()
    return I / (Lv // 2), ((I.to(i32) + Lv // 2) * Basis).sum(1, dtype=i32)


op(dict(name="fsq_codes", text='''
def fsq_codes(float(N,D) Z, int32(D) Level, int32(D) Basis) -> (Q, int32(N) Code) {
    H(d) = (Level(d) - 1) * 1.001 / 2.0
    Off(d) = (Level(d) % 2 == 0) ? 0.5 : 0.0
    I(n, d) = round(tanh(Z(n, d) + atanh(Off(d) / H(d))) * H(d) - Off(d))
    Q(n, d) = I(n, d) / float(Level(d) / 2)
    Code(n) +=! (int32(I(n, d)) + Level(d) / 2) * Basis(d)
}''', args=lambda g: [rn(g, 300, 4), torch.tensor([8, 5, 5, 5], dtype=i32), torch.tensor([1, 8, 40, 200], dtype=i32)], torch=_fsq, tol=1e-6))


# ---------------------------------------------------------------- graphs, equivariance, point clouds

def _painn(P, V, W, Dir, Src, Dst):
    N, _, Fc = P.shape
    a, b, c = (P[Src] * W).unbind(1)
    dv = b[:, None] * V[Src] + c[:, None] * Dir[:, :, None]
    return torch.zeros(N, Fc).index_add(0, Dst, a), torch.zeros(N, 3, Fc).index_add(0, Dst, dv)


op(dict(name="painn_edge_message", text='''
def painn_edge_message(float(N,3,F) P, float(N,3,F) V, float(E,3,F) W, float(E,3) Dir, int64(E) Src, int64(E) Dst) -> (float(N,F) Ds, float(N,3,F) Dv) {
    Ds(Dst(e), f) +=! P(Src(e), 0, f) * W(e, 0, f)
    Dv(Dst(e), x, f) +=! P(Src(e), 1, f) * W(e, 1, f) * V(Src(e), x, f) + P(Src(e), 2, f) * W(e, 2, f) * Dir(e, x)
}''', args=lambda g: [rn(g, 300, 3, 64), rn(g, 300, 3, 64), rn(g, 3000, 3, 64), F.normalize(rn(g, 3000, 3), dim=1), ri(g, 0, 300, 3000), ri(g, 0, 300, 3000)], torch=_painn, tol=2e-5))


def _e3(X, Y, W0, W1, W2):
    D = (X * Y).sum(-1)
    O = X[..., None] * Y[..., None, :]
    T = 0.5 * (O + O.mT) - D[..., None, None] / 3 * torch.eye(3, dtype=X.dtype)
    return D @ W0 / math.sqrt(3), torch.einsum("bci,co->boi", torch.linalg.cross(X, Y), W1), torch.einsum("bcij,co->boij", T, W2)


op(dict(name="e3_product_l1", text='''
def e3_product_l1(double(B,C,3) X, double(B,C,3) Y, double(C,O) W0, double(C,O) W1, double(C,O) W2) -> (S, V, T) {
    D(b, c) +=! X(b, c, i) * Y(b, c, i)
    S(b, o) +=! D(b, c) * W0(c, o) / sqrt(3.0)
    V(b, o, i) +=! (X(b, c, (i + 1) % 3) * Y(b, c, (i + 2) % 3) - X(b, c, (i + 2) % 3) * Y(b, c, (i + 1) % 3)) * W1(c, o) where i in 0:3
    T(b, o, i, j) +=! (0.5 * (X(b, c, i) * Y(b, c, j) + X(b, c, j) * Y(b, c, i)) - ((i == j) ? D(b, c) / 3.0 : 0.0)) * W2(c, o)
}''', args=lambda g: [rn(g, 101, 32, 3, dt=f64), rn(g, 101, 32, 3, dt=f64), rn(g, 32, 24, dt=f64), rn(g, 32, 24, dt=f64), rn(g, 32, 24, dt=f64)], torch=_e3, tol=1e-11))


def _egnn(X, P, Q, wd, wx):
    N = X.shape[1]
    diff = X[:, :, None] - X[:, None]
    E = F.silu(P[:, :, None] + Q[:, None] + diff.square().sum(-1)[..., None] * wd)
    return X + (diff * (E @ wx)[..., None]).sum(2) / (N - 1), (E * (1 - torch.eye(N))[..., None]).sum(2)


op(dict(name="egnn_dense", text='''
def egnn_dense(float(B,N,3) X, float(B,N,F) P, float(B,N,F) Q, float(F) Wd, float(F) Wx) -> (Xn, M) {
    D2(b, i, j) +=! (X(b, i, c) - X(b, j, c)) * (X(b, i, c) - X(b, j, c))
    E(b, i, j, f) = z * sigmoid(z) where z = P(b, i, f) + Q(b, j, f) + D2(b, i, j) * Wd(f)
    G(b, i, j) +=! E(b, i, j, f) * Wx(f)
    Xn(b, i, c) = X(b, i, c)
    Xn(b, i, c) += (X(b, i, c) - X(b, j, c)) * G(b, i, j) / (N - 1)
    M(b, i, f) +=! (i != j) ? E(b, i, j, f) : 0.0
}''', args=lambda g: [rn(g, 8, 29, 3), rn(g, 8, 29, 32), rn(g, 8, 29, 32), rn(g, 32, k=0.3), rn(g, 32, k=0.2)], torch=_egnn, tol=2e-5))


def _edgesm(Q, K, V, Bias, Src, Dst):
    N, H, D = Q.shape
    s = (Q[Dst] * K.index_select(0, Src)).sum(-1) / math.sqrt(D) + Bias
    m = torch.full((N, H), -torch.inf).scatter_reduce(0, Dst[:, None].expand_as(s), s, "amax")
    p = torch.exp(s - m[Dst])
    z = torch.zeros(N, H).index_add(0, Dst, p)
    return torch.zeros(N, H, D).index_add(0, Dst, (p / z[Dst])[..., None] * V.index_select(0, Src))


op(dict(name="edge_softmax_heads", text='''
def edge_softmax_heads(float(N,H,D) Q, float(N,H,D) K, float(N,H,D) V, float(E,H) Bias, int32(E) Src, int64(E) Dst) -> (float(N,H,D) Y) {
    S(e, h) +=! Q(Dst(e), h, d) * K(Src(e), h, d)
    S(e, h) = S(e, h) / sqrt(float(D)) + Bias(e, h)
    M(Dst(e), h) max=! S(e, h) where Dst(e) in 0:N
    P(e, h) = exp(S(e, h) - M(Dst(e), h))
    Z(Dst(e), h) +=! P(e, h) where Dst(e) in 0:N
    Y(Dst(e), h, d) +=! P(e, h) / Z(Dst(e), h) * V(Src(e), h, d)
}''', args=lambda g: [rn(g, 500, 4, 16), rn(g, 500, 4, 16), rn(g, 500, 4, 16), rn(g, 4000, 4), ri(g, 0, 500, 4000, dt=i32), ri(g, 0, 500, 4000)], torch=_edgesm, tol=2e-5))


def _edgeconv(X, Idx, W):
    P = X.transpose(1, 2)
    nb = P[torch.arange(P.shape[0])[:, None, None], Idx]
    c = P[:, :, None].expand_as(nb)
    return F.leaky_relu(torch.cat([nb - c, c], -1) @ W.T, 0.2).amax(2).transpose(1, 2)


op(dict(name="edgeconv_max", text='''
def edgeconv_max(float(B,C,N) X, int64(B,N,K) Idx, float(O,2*C) W) -> (Y) {
    E(b, o, n, k) +=! W(o, c) * (X(b, c, Idx(b, n, k)) - X(b, c, n)) + W(o, c + C) * X(b, c, n)
    Y(b, o, n) max=! (E(b, o, n, k) > 0.0) ? E(b, o, n, k) : 0.2 * E(b, o, n, k)
}''', args=lambda g: [rn(g, 2, 24, 256), ri(g, 0, 256, 2, 256, 12), rn(g, 40, 48, k=0.2)], torch=_edgeconv, tol=2e-5))


def _kpconv(S, Q, Nb, Kp, X, W, sigma):
    d = (S[Nb] - Q[:, None])[:, :, None] - Kp
    h = (1 - d.norm(dim=-1) / sigma).clamp_min(0)
    return (h.transpose(1, 2) @ X[Nb]).flatten(1) @ W.flatten(0, 1)


op(dict(name="kpconv_rigid", text='''
def kpconv_rigid(float(N,3) S, float(M,3) Q, int64(M,K) Nb, float(P,3) Kp, float(N,C) X, float(P,C,O) W, float sigma) -> (Y) {
    D2(m, k, p) +=! (S(Nb(m, k), x) - Q(m, x) - Kp(p, x)) * (S(Nb(m, k), x) - Q(m, x) - Kp(p, x))
    H(m, k, p) = max(1.0 - sqrt(D2(m, k, p)) / sigma, 0.0)
    A(m, p, c) +=! H(m, k, p) * X(Nb(m, k), c)
    Y(m, o) +=! A(m, p, c) * W(p, c, o)
}''', args=lambda g: [rn(g, 1500, 3, k=0.4), rn(g, 800, 3, k=0.4), ri(g, 0, 1500, 800, 20), rn(g, 15, 3, k=0.4), rn(g, 1500, 32), rn(g, 15, 32, 48, k=0.1), of(1.25)], torch=_kpconv, tol=2e-5))


def _threenn(U, P, X, Idx):
    B, C, _ = X.shape
    nb = P[torch.arange(B)[:, None, None], Idx]
    w = 1 / ((U[:, :, None] - nb).square().sum(-1) + 1e-8)
    w = w / w.sum(-1, keepdim=True)
    return (X.gather(2, Idx.flatten(1)[:, None].expand(B, C, -1)).unflatten(2, (-1, 3)) * w[:, None]).sum(-1)


op(dict(name="three_nn_interpolate", text='''
def three_nn_interpolate(float(B,N,3) U, float(B,M,3) P, float(B,C,M) X, int64(B,N,3) Idx) -> (Y) {
    D(b, n, k) +=! (U(b, n, x) - P(b, Idx(b, n, k), x)) * (U(b, n, x) - P(b, Idx(b, n, k), x))
    Z(b, n) +=! 1.0 / (D(b, n, k) + 1e-8)
    Y(b, c, n) +=! X(b, c, Idx(b, n, k)) / (D(b, n, k) + 1e-8) / Z(b, n)
}''', args=lambda g: [rn(g, 4, 801, 3), rn(g, 4, 200, 3), rn(g, 4, 64, 200), ri(g, 0, 200, 4, 801, 3)], torch=_threenn, tol=2e-5))


# ---------------------------------------------------------------- radiance fields and splats

def _ngp(X, Table, Res):
    L, T, _ = Table.shape
    bits = torch.tensor([[k // 4, k // 2 % 2, k % 2] for k in range(8)])
    p = X[:, None] * Res[:, None]
    c = p.floor()
    fr = (p - c)[:, :, None]
    h = ((c.long()[:, :, None] + bits) * torch.tensor([1, 2654435761, 805459861])).sum(-1) % T
    w = torch.where(bits == 1, fr, 1 - fr).prod(-1)
    return (w[..., None] * Table[torch.arange(L)[:, None], h]).sum(2)


op(dict(name="ngp_hash_level", text='''
def ngp_hash_level(float(N,3) X, float(L,T,F) Table, float(L) Res) -> (Y) {
    C(n, l, d) = int64(floor(X(n, d) * Res(l)))
    W(n, l, d) = X(n, d) * Res(l) - floor(X(n, d) * Res(l))
    H(n, l, k) = (C(n, l, 0) + k / 4 + (C(n, l, 1) + k / 2 % 2) * 2654435761 + (C(n, l, 2) + k % 2) * 805459861) % T where k in 0:8
    Y(n, l, f) +=! Table(l, H(n, l, k), f) * ((k / 4 == 1) ? W(n, l, 0) : 1.0 - W(n, l, 0)) * ((k / 2 % 2 == 1) ? W(n, l, 1) : 1.0 - W(n, l, 1)) * ((k % 2 == 1) ? W(n, l, 2) : 1.0 - W(n, l, 2))
}''', args=lambda g: [ru(g, 2000, 3), rn(g, 6, 8192, 2), 8.0 * 1.6 ** torch.arange(6.0)], torch=_ngp, tol=5e-5))


def _splat(Mu, Con, Op, Col):
    p = torch.arange(16.0)
    dx, dy = p[:, None] - Mu[:, None, None, :, 0], p[:, None, None] - Mu[:, None, None, :, 1]
    a, b, c = Con[:, None, None].unbind(-1)
    A = (Op[:, None, None] * torch.exp(-0.5 * (a * dx * dx + c * dy * dy) - b * dx * dy)).clamp_max(0.99)
    P = torch.cumprod(F.pad(1 - A[..., :-1], (1, 0), value=1.0), -1)
    return torch.einsum("tyxk,tkc->tyxc", P * A, Col), (1 - A).prod(-1)


op(dict(name="splat_tile_composite", text='''
def splat_tile_composite(float(T,K,2) Mu, float(T,K,3) Con, float(T,K) Op, float(T,K,3) Col) -> (Img, Tr) {
    A(t, y, x, k) = min(Op(t, k) * exp(-0.5 * (Con(t, k, 0) * dx * dx + Con(t, k, 2) * dy * dy) - Con(t, k, 1) * dx * dy), 0.99)
        where y in 0:16, x in 0:16, dx = x - Mu(t, k, 0), dy = y - Mu(t, k, 1)
    P(t, y, x, k) *=! (j < k) ? 1.0 - A(t, y, x, j) : 1.0 where k in 0:K
    Img(t, y, x, c) +=! P(t, y, x, k) * A(t, y, x, k) * Col(t, k, c)
    Tr(t, y, x) *=! 1.0 - A(t, y, x, k)
}''', args=lambda g: [ru(g, 12, 48, 2, hi=16.0), torch.stack([ru(g, 12, 48, lo=0.05, hi=0.4), ru(g, 12, 48, lo=-0.04, hi=0.04), ru(g, 12, 48, lo=0.05, hi=0.4)], -1), ru(g, 12, 48, hi=0.7), ru(g, 12, 48, 3)],
    torch=_splat, tol=2e-5))


def _project(Q, S, P, V, fx, fy):
    w, x, y, z = F.normalize(Q, dim=1).unbind(1)
    R = torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y), 2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
                     2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], 1).view(-1, 3, 3)
    X, Y, Z = P.unbind(1)
    o = torch.zeros_like(Z)
    J = torch.stack([fx / Z, o, -fx * X / (Z * Z), o, fy / Z, -fy * Y / (Z * Z)], 1).view(-1, 2, 3)
    U = J @ (V @ (R * S[:, None]))
    C = U @ U.mT + 0.3 * torch.eye(2)
    a, b, c = C[:, 0, 0], C[:, 0, 1], C[:, 1, 1]
    return torch.stack([c, -b, a], 1) / (a * c - b * b)[:, None]


op(dict(name="splat_project_cov", text='''
def splat_project_cov(float(N,4) Q, float(N,3) S, float(N,3) P, float(3,3) V, float fx, float fy) -> (Conic) {
    L(n) +=! Q(n, a) * Q(n, a)
    R(n, i, j) = (2.0 * Q(n, i + 1) * Q(n, j + 1) + ((i == j) ? 2.0 * Q(n, 0) * Q(n, 0) - L(n)
               : (j == (i + 1) % 3) ? -2.0 * Q(n, 0) * Q(n, (i + 2) % 3 + 1) : 2.0 * Q(n, 0) * Q(n, (i + 1) % 3 + 1))) / L(n) where i in 0:3, j in 0:3
    M(n, i, k) +=! V(i, j) * R(n, j, k) * S(n, k)
    U(n, r, k) = (r == 0) ? fx / P(n, 2) * (M(n, 0, k) - P(n, 0) / P(n, 2) * M(n, 2, k)) : fy / P(n, 2) * (M(n, 1, k) - P(n, 1) / P(n, 2) * M(n, 2, k)) where r in 0:2
    C(n, r, s) +=! U(n, r, k) * U(n, s, k)
    C(n, r, s) = C(n, r, s) + ((r == s) ? 0.3 : 0.0)
    Det(n) = C(n, 0, 0) * C(n, 1, 1) - C(n, 0, 1) * C(n, 1, 0)
    Conic(n, q) = ((q == 0) ? C(n, 1, 1) : (q == 1) ? -C(n, 0, 1) : C(n, 0, 0)) / Det(n) where q in 0:3
}''', args=lambda g: [rn(g, 700, 4), ru(g, 700, 3, lo=0.02, hi=0.3), torch.cat([rn(g, 700, 2), ru(g, 700, 1, lo=2.0, hi=6.0)], 1), torch.linalg.qr(rn(g, 3, 3)).Q.contiguous(), of(40.0), of(44.0)],
    torch=_project, tol=1e-4))


def _triplane(P, X):
    G = torch.stack([X, X.roll(-1, 1)], -1).transpose(0, 1)[:, None]
    return F.grid_sample(P, G, mode="bilinear", padding_mode="border", align_corners=True)[:, :, 0].sum(0).T


op(dict(name="triplane_sample", text='''
def triplane_sample(float(3,C,R,R) P, float(N,3) X) -> (Y) {
    G(n, d) = clamp((X(n, d) + 1.0) * 0.5 * (R - 1), 0.0, float(R - 1))
    I(n, d) = min(int32(G(n, d)), R - 2)
    Fr(n, d) = G(n, d) - float(I(n, d))
    Y(n, c) +=! (1.0 - Fr(n, (p + 1) % 3)) * ((1.0 - Fr(n, p)) * P(p, c, I(n, (p + 1) % 3), I(n, p)) + Fr(n, p) * P(p, c, I(n, (p + 1) % 3), I(n, p) + 1))
              + Fr(n, (p + 1) % 3) * ((1.0 - Fr(n, p)) * P(p, c, I(n, (p + 1) % 3) + 1, I(n, p)) + Fr(n, p) * P(p, c, I(n, (p + 1) % 3) + 1, I(n, p) + 1)) where p in 0:3
}''', args=lambda g: [rn(g, 3, 16, 64, 64), ru(g, 4000, 3, lo=-1.0)], torch=_triplane, tol=5e-5))
