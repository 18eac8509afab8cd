# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Images, signals, fields and particles; as in ``science``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)
f64, f32, f16, bf16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
i8, u8, i16, i32, i64 = torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64


def rn(g, *s, dt=f32): return torch.randn(*s, generator=g, dtype=f64).to(dt)
def ru(g, *s, dt=f32): return torch.rand(*s, generator=g, dtype=f64).to(dt)
def ri(g, lo, hi, *s, dt=i64): return torch.randint(lo, hi, s, generator=g).to(dt)
def scalar(v): return torch.tensor(v, dtype=f64)


# ---------------------------------------------------------------- images
def t_census(I, Bit):
    p = I.unfold(0, 5, 1).unfold(1, 5, 1)
    return ((p < I[2:-2, 2:-2, None, None]) * Bit).sum((2, 3), dtype=i32)
def _bits():
    k = torch.arange(25)
    w = torch.where(k < 12, 2 ** k.clamp(max=23), 2 ** (k - 1).clamp(min=0))
    w[12] = 0
    return w.view(5, 5).int()
op(dict(name="census_transform_5x5", text='''
def census_transform_5x5(uint8(H,W) I, int32(5,5) Bit) -> (C) {
    C(y, x) +=! (I(y + a, x + b) < I(y + 2, x + 2)) ? Bit(a, b) : 0 where a in 0:5, b in 0:5
}''', args=lambda g: [ri(g, 0, 256, 301, 403, dt=u8), _bits()], torch=t_census, tol=0.0))

def t_sgm(C, Lp):
    m = Lp.amin(1, keepdim=True)
    lo = F.pad(Lp[:, :-1] + 12, (1, 0), value=32000)
    hi = F.pad(Lp[:, 1:] + 12, (0, 1), value=32000)
    return C + torch.minimum(torch.minimum(Lp, m + 96), torch.minimum(lo, hi)) - m
op(dict(name="sgm_path_step", text='''
def sgm_path_step(int16(X,D) C, int16(X,D) Lp) -> (L) {
    M(x) min=! Lp(x, d)
    L(x, d) = C(x, d) + min(min(Lp(x, d), M(x) + 96), min(d > 0 ? Lp(x, d - 1) + 12 : 32000, d < D - 1 ? Lp(x, d + 1) + 12 : 32000)) - M(x)
        where d in 0:D
}''', args=lambda g: [ri(g, 0, 200, 1243, 128, dt=i16), ri(g, 0, 2000, 1243, 128, dt=i16)], torch=t_sgm, tol=0.0))

def t_green(R):
    z = R.int()
    H, W = z.shape
    c = z[2:-2, 2:-2]
    l, r, u, d = z[2:-2, 1:-3], z[2:-2, 3:-1], z[1:-3, 2:-2], z[3:-1, 2:-2]
    lh = 2 * c - z[2:-2, :-4] - z[2:-2, 4:]
    lv = 2 * c - z[:-4, 2:-2] - z[4:, 2:-2]
    gh, gv = (l - r).abs() + lh.abs(), (u - d).abs() + lv.abs()
    h, v = (l + r) // 2 + lh // 4, (u + d) // 2 + lv // 4
    site = (torch.arange(H - 4)[:, None] + torch.arange(W - 4)) % 2 == 1
    return torch.where(site, c, torch.where(gh < gv, h, torch.where(gv < gh, v, (h + v) // 2))).to(i16)
op(dict(name="hamilton_adams_green", text='''
def hamilton_adams_green(int16(H,W) R) -> (int16(H-4,W-4) G) {
    Lh(y, x) = 2 * int32(R(y + 2, x + 2)) - R(y + 2, x) - R(y + 2, x + 4) where y in 0:H-4, x in 0:W-4
    Lv(y, x) = 2 * int32(R(y + 2, x + 2)) - R(y, x + 2) - R(y + 4, x + 2) where y in 0:H-4, x in 0:W-4
    Gh(y, x) = abs(int32(R(y + 2, x + 1)) - R(y + 2, x + 3)) + abs(Lh(y, x))
    Gv(y, x) = abs(int32(R(y + 1, x + 2)) - R(y + 3, x + 2)) + abs(Lv(y, x))
    G(y, x)  = (y + x) % 2 == 1 ? int32(R(y + 2, x + 2)) : (Gh(y, x) < Gv(y, x) ? h : (Gv(y, x) < Gh(y, x) ? v : (h + v) / 2))
        where h = (int32(R(y + 2, x + 1)) + R(y + 2, x + 3)) / 2 + Lh(y, x) / 4, v = (int32(R(y + 1, x + 2)) + R(y + 3, x + 2)) / 2 + Lv(y, x) / 4
}''', args=lambda g: [ri(g, 0, 4096, 514, 642, dt=i16)], torch=t_green, tol=0.0))

def t_guided(I, P):
    mi, mp, cip, cii = F.avg_pool2d(torch.stack([I, P, I * P, I * I])[:, None], 9, 1)[:, 0]
    a = (cip - mi * mp) / (cii - mi * mi + 0.01)
    ma, mb = F.avg_pool2d(torch.stack([a, mp - a * mi])[:, None], 9, 1)[:, 0]
    return ma * I[8:-8, 8:-8] + mb
op(dict(name="guided_filter_gray", text='''
def guided_filter_gray(float(H,W) I, float(H,W) P) -> (Q) {
    Mi(y, x)  +=! I(y + a, x + b) / 81.0 where a in 0:9, b in 0:9
    Mp(y, x)  +=! P(y + a, x + b) / 81.0 where a in 0:9, b in 0:9
    Cip(y, x) +=! I(y + a, x + b) * P(y + a, x + b) / 81.0 where a in 0:9, b in 0:9
    Cii(y, x) +=! I(y + a, x + b) * I(y + a, x + b) / 81.0 where a in 0:9, b in 0:9
    A(y, x)     = (Cip(y, x) - Mi(y, x) * Mp(y, x)) / (Cii(y, x) - Mi(y, x) * Mi(y, x) + 0.01)
    B(y, x)     = Mp(y, x) - A(y, x) * Mi(y, x)
    Q(y, x)   +=! (A(y + a, x + b) * I(y + 8, x + 8) + B(y + a, x + b)) / 81.0 where a in 0:9, b in 0:9
}''', args=lambda g: [ru(g, 240, 319), ru(g, 240, 319)], torch=t_guided, tol=1e-4))

def t_lbp(I):
    H, W = I.shape
    c = I[1:-1, 1:-1]
    code = sum((I[a:H - 2 + a, b:W - 2 + b] >= c).long() << k for k, (a, b) in enumerate(((0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0))))
    P, Q = (H - 2) // 16, (W - 2) // 16
    cell = torch.arange(H - 2)[:, None] // 16 * Q + torch.arange(W - 2) // 16
    return torch.bincount((cell * 256 + code).flatten(), minlength=P * Q * 256).view(P, Q, 256).int()
op(dict(name="lbp_cell_histograms", text='''
def lbp_cell_histograms(uint8(H,W) I) -> (int32((H-2)/16,(W-2)/16,256) Hist) {
    Code(y, x) = (I(y, x) >= c ? 1 : 0) + (I(y, x + 1) >= c ? 2 : 0) + (I(y, x + 2) >= c ? 4 : 0) + (I(y + 1, x + 2) >= c ? 8 : 0)
               + (I(y + 2, x + 2) >= c ? 16 : 0) + (I(y + 2, x + 1) >= c ? 32 : 0) + (I(y + 2, x) >= c ? 64 : 0) + (I(y + 1, x) >= c ? 128 : 0)
        where c = I(y + 1, x + 1)
    Hist(p, q, Code(16*p + i, 16*q + j)) +=! 1 where p in 0:(H-2)/16, q in 0:(W-2)/16, i in 0:16, j in 0:16
}''', args=lambda g: [ri(g, 0, 256, 242, 322, dt=u8)], torch=t_lbp, tol=0.0))

def t_edt(M):
    H, W = M.shape
    yy = (torch.arange(H, dtype=i32)[:, None] - torch.arange(H, dtype=i32)).square()
    xx = (torch.arange(W, dtype=i32)[:, None] - torch.arange(W, dtype=i32)).square()
    G = torch.where(M[None], yy[:, :, None], 1000000).amin(1)
    return (G[:, None, :] + xx).amin(2).float().sqrt()
op(dict(name="exact_distance_transform", text='''
def exact_distance_transform(bool(H,W) M) -> (Dist) {
    G(y, x) min=! M(v, x) ? (y - v) * (y - v) : 1000000 where y in 0:H
    D(y, x) min=! G(y, u) + (x - u) * (x - u) where x in 0:W
    Dist(y, x) = sqrt(float(D(y, x)))
}''', args=lambda g: [ru(g, 120, 141) < 0.03], torch=t_edt, tol=1e-6))

def t_jpeg(I, Ct, Qt, Zig):
    H, W = I.shape
    B = (I.float() - 128).view(H // 8, 8, W // 8, 8).transpose(1, 2)
    return torch.round(Ct @ B @ Ct.T / Qt).flatten(2)[..., Zig.long()].to(i16)
def _jpeg_args(g):
    u = torch.arange(8.0)
    ct = torch.cos((2 * u + 1) * u[:, None] * (math.pi / 16)) * 0.5
    ct[0] *= math.sqrt(0.5)
    zig = sorted(range(64), key=lambda p: (p // 8 + p % 8, p // 8 if (p // 8 + p % 8) % 2 else p % 8))
    return [ri(g, 0, 256, 400, 520, dt=u8), ct, 10 + 40 * ru(g, 8, 8), torch.tensor(zig, dtype=i32)]
op(dict(name="jpeg_block_dct_zigzag", text='''
def jpeg_block_dct_zigzag(uint8(H,W) I, float(8,8) Ct, float(8,8) Qt, int32(64) Zig) -> (int16(H/8,W/8,64) Z) {
    F(p, q, u, v) +=! Ct(u, i) * Ct(v, j) * (float(I(8*p + i, 8*q + j)) - 128.0)
    F(p, q, u, v)   = round(F(p, q, u, v) / Qt(u, v))
    Z(p, q, k)      = int16(F(p, q, Zig(k) / 8, Zig(k) % 8))
}''', args=_jpeg_args, torch=t_jpeg, tol=4e-2))

def t_clahe(I, Lut):
    (H, W), (GY, GX) = I.shape, Lut.shape[:2]
    fy = ((torch.arange(H) + 0.5) / 32 - 0.5).clamp(0, GY - 1)
    fx = ((torch.arange(W) + 0.5) / 32 - 0.5).clamp(0, GX - 1)
    y0, x0 = fy.floor().long(), fx.floor().long()
    y1, x1 = (y0 + 1).clamp(max=GY - 1), (x0 + 1).clamp(max=GX - 1)
    wy, wx, v, L = (fy - y0)[:, None], fx - x0, I.long(), Lut.float()
    top = (1 - wx) * L[y0[:, None], x0, v] + wx * L[y0[:, None], x1, v]
    low = (1 - wx) * L[y1[:, None], x0, v] + wx * L[y1[:, None], x1, v]
    return ((1 - wy) * top + wy * low + 0.5).to(u8)
op(dict(name="clahe_apply", text='''
def clahe_apply(uint8(H,W) I, uint8(GY,GX,256) Lut) -> (Z) {
    Fy(y) = clamp((y + 0.5) / 32.0 - 0.5, 0.0, GY - 1.0) where y in 0:H
    Fx(x) = clamp((x + 0.5) / 32.0 - 0.5, 0.0, GX - 1.0) where x in 0:W
    Ty(y) = int32(floor(Fy(y)))
    Tx(x) = int32(floor(Fx(x)))
    O(y, x) +=! (a == 0 ? 1.0 - wy : wy) * (b == 0 ? 1.0 - wx : wx) * Lut(min(Ty(y) + a, GY - 1), min(Tx(x) + b, GX - 1), I(y, x))
        where a in 0:2, b in 0:2, wy = Fy(y) - Ty(y), wx = Fx(x) - Tx(x)
    Z(y, x) = uint8(O(y, x) + 0.5)
}''', args=lambda g: [ri(g, 0, 256, 256, 352, dt=u8), ri(g, 0, 256, 8, 11, 256, dt=u8)], torch=t_clahe, tol=6e-3))

def t_label(L, C):
    H, W = L.shape
    big = 2147483647
    Lp, Cp = F.pad(L, (1, 1, 1, 1), value=big), F.pad(C, (1, 1, 1, 1), value=255)
    out = L
    for a in range(3):
        for b in range(3):
            out = torch.minimum(out, torch.where(Cp[a:a + H, b:b + W] == C, Lp[a:a + H, b:b + W], big))
    return out
op(dict(name="label_propagation_step", text='''
def label_propagation_step(int32(H,W) L, uint8(H,W) C) -> (Ln) {
    Ln(y, x) min=! (y + a >= 1 && y + a <= H && x + b >= 1 && x + b <= W)
                 ? (C(y + a - 1, x + b - 1) == C(y, x) ? L(y + a - 1, x + b - 1) : 2147483647) : 2147483647
        where y in 0:H, x in 0:W, a in 0:3, b in 0:3
}''', args=lambda g: [torch.randperm(333 * 444, generator=g).view(333, 444).int(), ri(g, 0, 3, 333, 444, dt=u8)], torch=t_label, tol=0.0))

op(dict(name="oklab_from_srgb8", text='''
def oklab_from_srgb8(uint8(H,W,3) I, float(256) Lut, float(3,3) M1, float(3,3) M2) -> (half(H,W,3) O) {
    L(y, x, i) +=! M1(i, c) * Lut(I(y, x, c))
    R(y, x, i)   = cbrt(L(y, x, i))
    O(y, x, j) +=! M2(j, i) * R(y, x, i)
}''', args=lambda g: [ri(g, 0, 256, 270, 361, 3, dt=u8), ((torch.arange(256.0) / 255 + 0.055) / 1.055) ** 2.4,
                      torch.tensor([[0.4122215, 0.5363325, 0.0514460], [0.2119035, 0.6806995, 0.1073970], [0.0883025, 0.2817188, 0.6299787]]),
                      torch.tensor([[0.2104543, 0.7936178, -0.0040720], [1.9779985, -2.4285922, 0.4505937], [0.0259040, 0.7827718, -0.8086758]])],
   torch=lambda I, Lut, M1, M2: ((Lut[I.long()] @ M1.T).pow(1 / 3) @ M2.T).half(), tol=2e-3))

def t_nlm(I):
    H, W = I.shape
    c, num, den = I[2:-2, 2:-2], 0.0, 0.0
    for a in range(5):
        for b in range(5):
            d = (c - I[a:a + H - 4, b:b + W - 4]).square()
            k = torch.exp(-6 * 9 * F.avg_pool2d(d[None, None], 3, 1)[0, 0])
            num = num + k * I[a + 1:a + H - 5, b + 1:b + W - 5]
            den = den + k
    return num / den
op(dict(name="nlm_denoise", text='''
def nlm_denoise(float(H,W) I) -> (O) {
    D(y, x, a, b) +=! d * d
        where d = I(y + i + 2, x + j + 2) - I(y + a + i, x + b + j), a in 0:5, b in 0:5, i in 0:3, j in 0:3, y in 0:H-6, x in 0:W-6
    K(y, x, a, b) = exp(-6.0 * D(y, x, a, b))
    Z(y, x) +=! K(y, x, a, b)
    O(y, x) +=! K(y, x, a, b) * I(y + a + 1, x + b + 1)
    O(y, x)   = O(y, x) / Z(y, x)
}''', args=lambda g: [ru(g, 150, 171)], torch=t_nlm, tol=1e-4))

# ---------------------------------------------------------------- signals
def t_db2(X, Fl):
    B, H, W = X.shape
    k = torch.einsum("sa,tb->stab", Fl, Fl).flatten(0, 1)[:, None]
    return F.conv2d(F.pad(X[:, None], (0, 2, 0, 2), mode="circular"), k, stride=2).view(B, 2, 2, H // 2, W // 2)
op(dict(name="wavelet_db2_2d", text='''
def wavelet_db2_2d(float(B,H,W) X, float(2,4) Fl) -> (Y) {
    R(b, t, y, x)    +=! Fl(t, k) * X(b, y, (2*x + k) % W) where x in 0:W/2
    Y(b, s, t, y, x) +=! Fl(s, k) * R(b, t, (2*y + k) % H, x) where y in 0:H/2
}''', args=lambda g: [rn(g, 6, 256, 194), torch.tensor([[0.48296291, 0.83651630, 0.22414387, -0.12940952], [-0.12940952, -0.22414387, 0.83651630, -0.48296291]])],
   torch=t_db2, tol=1e-5))

def t_pfb(X, Hw, Tw):
    fr = X.unfold(1, 128, 32).unflatten(2, (4, 32))
    return torch.view_as_real(torch.fft.rfft((fr * Hw).sum(2)))
def _dft_table(m):
    a = torch.arange(m, dtype=f64)[:, None] * torch.arange(m // 2 + 1, dtype=f64) % m * (2 * math.pi / m)
    return torch.stack([a.cos(), -a.sin()], 2).float()
op(dict(name="pfb_channelizer", text='''
def pfb_channelizer(float(A,N) X, float(4,32) Hw, float(32,17,2) Tw) -> (Y) {
    Z(a, t, m)    +=! Hw(p, m) * X(a, 32*(t + p) + m)
    Y(a, t, k, z) +=! Z(a, t, m) * Tw(m, k, z)
}''', args=lambda g: [rn(g, 8, 32 * 603), rn(g, 4, 32), _dft_table(32)], torch=t_pfb, tol=1e-5))

def t_nlms(Wt, X, D):
    u = X[:, -Wt.shape[1]:].flip(1)
    e = D - (Wt * u).sum(1)
    return Wt + (0.5 * e / (u.square().sum(1) + 0.001))[:, None] * u, e
op(dict(name="nlms_bank_step", text='''
def nlms_bank_step(float(B,K) Wt, float(B,T) X, float(B) D) -> (Wn, E) {
    U(b, k)  = X(b, T - 1 - k) where k in 0:K
    Yh(b)  +=! Wt(b, k) * U(b, k)
    P(b)   +=! U(b, k) * U(b, k)
    E(b)     = D(b) - Yh(b)
    Wn(b, k) = Wt(b, k) + 0.5 * E(b) * U(b, k) / (P(b) + 0.001)
}''', args=lambda g: [rn(g, 64, 33), rn(g, 64, 200), rn(g, 64)], torch=t_nlms, tol=1e-5))

def t_frames(X):
    fr = X.unfold(1, 400, 160)
    neg = fr < 0
    return (neg[..., 1:] != neg[..., :-1]).sum(2, dtype=i32), fr.float().square().mean(2).sqrt(), fr.int().abs().amax(2)
op(dict(name="frame_features_int16", text='''
def frame_features_int16(int16(C,T) X) -> (Zc, Rms, Pk) {
    Zc(c, f)  +=! ((X(c, 160*f + i) < 0) != (X(c, 160*f + i + 1) < 0)) ? 1 : 0 where i in 0:399
    Rms(c, f) +=! float(X(c, 160*f + i)) * float(X(c, 160*f + i)) / 400.0 where i in 0:400
    Rms(c, f)   = sqrt(Rms(c, f))
    Pk(c, f) max=! abs(int32(X(c, 160*f + i))) where i in 0:400
}''', args=lambda g: [ri(g, -32768, 32768, 4, 48000, dt=i16)], torch=t_frames, tol=1e-5))

def t_kaiser(Fc, beta, Like):
    N = Like.shape[0]
    n = torch.arange(N, dtype=f64)
    r = 2 * n / (N - 1) - 1
    win = torch.special.i0(beta * (1 - r * r).sqrt()) / torch.special.i0(beta)
    h = 2 * Fc[:, None] * torch.sinc(2 * Fc[:, None] * (n - 0.5 * (N - 1))) * win
    return h / h.sum(1, keepdim=True)
op(dict(name="kaiser_sinc_bank", text='''
def kaiser_sinc_bank(double(F) Fc, double beta, int32(N) Like) -> (H) {
    Win(n)  = cyl_bessel_i0(beta * sqrt(1.0 - r * r)) / cyl_bessel_i0(beta) where n in 0:N, r = 2.0 * n / (N - 1) - 1.0
    H(f, n) = (t == 0.0 ? 2.0 * Fc(f) : sin(6.283185307179586 * Fc(f) * t) / (3.141592653589793 * t)) * Win(n) where t = n - 0.5 * (N - 1)
    G(f)  +=! H(f, n)
    H(f, n) = H(f, n) / G(f)
}''', args=lambda g: [0.02 + 0.4 * ru(g, 48, dt=f64), scalar(8.6), torch.zeros(129, dtype=i32)], torch=t_kaiser, tol=1e-10))

def t_dedisperse(X, Delay):
    t = torch.arange(X.shape[1] - 512)
    return torch.stack([X.gather(1, d[:, None] + t).sum(0, dtype=i32) for d in Delay.long()])
op(dict(name="dedisperse", text='''
def dedisperse(uint8(F,T) X, int32(M,F) Delay) -> (D) {
    D(m, t) +=! int32(X(f, t + Delay(m, f))) where t in 0:T-512
}''', args=lambda g: [ri(g, 0, 256, 64, 4096, dt=u8), (torch.arange(16)[:, None] * torch.arange(64).flip(0) // 2 % 513).int()],
   torch=t_dedisperse, tol=0.0))

def t_fold(Tm, Fl, Per):
    P = Per.shape[0]
    x = Tm / Per[:, None]
    k = (((x - x.floor()) * 64).floor().long() + 64 * torch.arange(P)[:, None]).flatten()
    s = torch.zeros(P * 64).index_add_(0, k, Fl.repeat(P))
    return (s / torch.bincount(k, minlength=P * 64).clamp(min=1)).view(P, 64)
op(dict(name="phase_folded_profiles", text='''
def phase_folded_profiles(double(N) Tm, float(N) Fl, double(P) Per) -> (Prof) {
    Ph(p, n) = int32(floor(64.0 * (Tm(n) / Per(p) - floor(Tm(n) / Per(p)))))
    Cnt(p, Ph(p, n))  +=! 1 where Ph(p, n) in 0:64
    Prof(p, Ph(p, n)) +=! Fl(n) where Ph(p, n) in 0:64
    Prof(p, k) = Prof(p, k) / max(Cnt(p, k), 1)
}''', args=lambda g: [100 * ru(g, 3000, dt=f64), rn(g, 3000), 0.5 + 3 * ru(g, 40, dt=f64)], torch=t_fold, tol=1e-5))

def t_cfar(P):
    so = F.avg_pool2d(P[:, None], 9, 1)[:, 0] * 81
    si = F.avg_pool2d(P[:, None, 2:-2, 2:-2], 5, 1)[:, 0] * 25
    t = P[:, 4:-4, 4:-4] * 56 / (so - si)
    return t, t.amax((1, 2))
op(dict(name="cfar_cell_ratio", text='''
def cfar_cell_ratio(float(B,R,D) P) -> (T, Best) {
    So(b, y, x) +=! P(b, y + i, x + j) where i in 0:9, j in 0:9
    Si(b, y, x) +=! P(b, y + i + 2, x + j + 2) where i in 0:5, j in 0:5, y in 0:R-8, x in 0:D-8
    T(b, y, x)    = P(b, y + 4, x + 4) * 56.0 / (So(b, y, x) - Si(b, y, x))
    Best(b)    max=! T(b, y, x)
}''', args=lambda g: [(0.05 - ru(g, 128, 3, 201).clamp(min=1e-4).log()).permute(1, 0, 2)], torch=t_cfar, tol=1e-4))

# ---------------------------------------------------------------- fields and flows
def t_rb(U, R, h2):
    red = (torch.arange(U.shape[0])[:, None] + torch.arange(U.shape[1])) % 2 == 0
    def relaxed(V):
        p = F.pad(V[None, None], (1, 1, 1, 1), mode="replicate")[0, 0]
        return 0.25 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - h2 * R)
    V = torch.where(red, relaxed(U), U)
    return torch.where(red, V, relaxed(V))
op(dict(name="redblack_neumann_sweep", text='''
def redblack_neumann_sweep(double(H,W) U, double(H,W) R, double h2) -> (Z) {
    V(i, j) = (i + j) % 2 == 0 ? 0.25 * (n + s + w + e - h2 * R(i, j)) : U(i, j)
        where i in 0:H, j in 0:W, n = i > 0 ? U(i - 1, j) : U(i, j), s = i < H - 1 ? U(i + 1, j) : U(i, j),
              w = j > 0 ? U(i, j - 1) : U(i, j), e = j < W - 1 ? U(i, j + 1) : U(i, j)
    Z(i, j) = (i + j) % 2 == 1 ? 0.25 * (n + s + w + e - h2 * R(i, j)) : V(i, j)
        where i in 0:H, j in 0:W, n = i > 0 ? V(i - 1, j) : V(i, j), s = i < H - 1 ? V(i + 1, j) : V(i, j),
              w = j > 0 ? V(i, j - 1) : V(i, j), e = j < W - 1 ? V(i, j + 1) : V(i, j)
}''', args=lambda g: [rn(g, 300, 413, dt=f64), rn(g, 300, 413, dt=f64), scalar(0.01)], torch=t_rb, tol=1e-12))

def t_pcr(Lo, Di, Up, Rh, s):
    s = int(s)
    back = lambda x, v=0.0: F.pad(x[:, :-s], (s, 0), value=v)
    ahead = lambda x, v=0.0: F.pad(x[:, s:], (0, s), value=v)
    i = torch.arange(Lo.shape[1])
    al = torch.where(i >= s, -Lo / back(Di, 1.0), 0.0)
    ga = torch.where(i + s < Lo.shape[1], -Up / ahead(Di, 1.0), 0.0)
    return al * back(Lo), Di + al * back(Up) + ga * ahead(Lo), ga * ahead(Up), Rh + al * back(Rh) + ga * ahead(Rh)
op(dict(name="pcr_tridiagonal_step", text='''
def pcr_tridiagonal_step(double(B,N) Lo, double(B,N) Di, double(B,N) Up, double(B,N) Rh, int32 s) -> (Ln, Dn, Un, Rn) {
    Al(b, i) = i >= s ? -Lo(b, i) / Di(b, i - s) : 0.0 where i in 0:N
    Ga(b, i) = i + s < N ? -Up(b, i) / Di(b, i + s) : 0.0 where i in 0:N
    Ln(b, i) = i >= s ? Al(b, i) * Lo(b, i - s) : 0.0 where i in 0:N
    Dn(b, i) = Di(b, i) + (i >= s ? Al(b, i) * Up(b, i - s) : 0.0) + (i + s < N ? Ga(b, i) * Lo(b, i + s) : 0.0) where i in 0:N
    Un(b, i) = i + s < N ? Ga(b, i) * Up(b, i + s) : 0.0 where i in 0:N
    Rn(b, i) = Rh(b, i) + (i >= s ? Al(b, i) * Rh(b, i - s) : 0.0) + (i + s < N ? Ga(b, i) * Rh(b, i + s) : 0.0) where i in 0:N
}''', args=lambda g: [rn(g, 200, 499, dt=f64), 4 + ru(g, 200, 499, dt=f64), rn(g, 200, 499, dt=f64), rn(g, 200, 499, dt=f64), torch.tensor(4, dtype=i32)],
   torch=t_pcr, tol=1e-12))

def t_hll(U):
    r, m, e = U.unbind(2)
    v = m / r
    p = 0.4 * (e - 0.5 * m * v)
    c = (1.4 * p / r).sqrt()
    fx = torch.stack([m, m * v + p, (e + p) * v], 2)
    sl = torch.minimum(v[:, :-1] - c[:, :-1], v[:, 1:] - c[:, 1:]).clamp(max=0)[..., None]
    sr = torch.maximum(v[:, :-1] + c[:, :-1], v[:, 1:] + c[:, 1:]).clamp(min=0)[..., None]
    h = (sr * fx[:, :-1] - sl * fx[:, 1:] + sl * sr * (U[:, 1:] - U[:, :-1])) / (sr - sl)
    return U[:, 1:-1] - 0.2 * (h[:, 1:] - h[:, :-1])
def _hll_args(g):
    r, v, p = 1 + ru(g, 16, 3001), 0.3 * rn(g, 16, 3001), 1 + ru(g, 16, 3001)
    return [torch.stack([r, r * v, p / 0.4 + 0.5 * r * v * v], 2)]
op(dict(name="euler_hll_update", text='''
def euler_hll_update(float(B,N,3) U) -> (Un) {
    V(b, i)  = U(b, i, 1) / U(b, i, 0)
    P(b, i)  = 0.4 * (U(b, i, 2) - 0.5 * U(b, i, 1) * V(b, i))
    Cs(b, i) = sqrt(1.4 * P(b, i) / U(b, i, 0))
    Fx(b, i, c) = c == 0 ? U(b, i, 1) : (c == 1 ? U(b, i, 1) * V(b, i) + P(b, i) : (U(b, i, 2) + P(b, i)) * V(b, i)) where c in 0:3
    Hf(b, i, c) = (sr * Fx(b, i, c) - sl * Fx(b, i + 1, c) + sl * sr * (U(b, i + 1, c) - U(b, i, c))) / (sr - sl)
        where sl = min(min(V(b, i) - Cs(b, i), V(b, i + 1) - Cs(b, i + 1)), 0.0), sr = max(max(V(b, i) + Cs(b, i), V(b, i + 1) + Cs(b, i + 1)), 0.0)
    Un(b, i, c) = U(b, i + 1, c) - 0.2 * (Hf(b, i + 1, c) - Hf(b, i, c))
}''', args=_hll_args, torch=t_hll, tol=1e-5))

def t_cahn(U, K):
    lap = lambda x: F.conv2d(F.pad(x[None, None], (1, 1, 1, 1), mode="circular"), K[None, None])[0, 0]
    return U + 0.01 * lap(U * U * U - U - 0.5 * lap(U))
op(dict(name="cahn_hilliard_step", text='''
def cahn_hilliard_step(float(H,W) U, float(3,3) K) -> (V) {
    La(y, x) +=! K(a, b) * U((y + a - 1) % H, (x + b - 1) % W) where y in 0:H, x in 0:W
    Mu(y, x)   = U(y, x) * U(y, x) * U(y, x) - U(y, x) - 0.5 * La(y, x)
    Lm(y, x) +=! K(a, b) * Mu((y + a - 1) % H, (x + b - 1) % W) where y in 0:H, x in 0:W
    V(y, x)    = U(y, x) + 0.01 * Lm(y, x)
}''', args=lambda g: [rn(g, 256, 301), torch.tensor([[1.0, 4, 1], [4, -20, 4], [1, 4, 1]]) / 6], torch=t_cahn, tol=1e-5))

_D3Q19 = [(0, 0, 0)] + [(a, b, c) for a in (-1, 0, 1) for b in (-1, 0, 1) for c in (-1, 0, 1) if abs(a) + abs(b) + abs(c) in (1, 2)]
def t_d3q19(Fi, C, Wq):
    G = torch.stack([torch.roll(f, c, (0, 1, 2)) for f, c in zip(Fi, C.tolist())])
    c = C.to(Fi.dtype)
    rho = G.sum(0)
    m = torch.tensordot(c, G, ([0], [0]))
    cu = torch.tensordot(c, m, 1)
    return G + 1.6 * (Wq[:, None, None, None] * (rho + 3 * cu + (4.5 * cu * cu - 1.5 * m.square().sum(0)) / rho) - G)
op(dict(name="lbm_d3q19_pull", text='''
def lbm_d3q19_pull(float(19,Z,Y,X) Fi, int32(19,3) C, float(19) Wq) -> (O) {
    G(q, z, y, x)  = Fi(q, (z - C(q, 0)) % Z, (y - C(q, 1)) % Y, (x - C(q, 2)) % X) where z in 0:Z, y in 0:Y, x in 0:X
    Rho(z, y, x) +=! G(q, z, y, x)
    M(d, z, y, x) +=! C(q, d) * G(q, z, y, x)
    Mm(z, y, x)  +=! M(d, z, y, x) * M(d, z, y, x)
    Cu(q, z, y, x) +=! C(q, d) * M(d, z, y, x)
    O(q, z, y, x)  = G(q, z, y, x) + 1.6 * (Wq(q) * (Rho(z, y, x) + 3.0 * Cu(q, z, y, x)
                   + (4.5 * Cu(q, z, y, x) * Cu(q, z, y, x) - 1.5 * Mm(z, y, x)) / Rho(z, y, x)) - G(q, z, y, x))
}''', args=lambda g: [0.05 + 0.02 * ru(g, 19, 20, 25, 28), torch.tensor(_D3Q19, dtype=i32),
                      torch.tensor([(1 / 3, 1 / 18, 1 / 36)[sum(map(abs, c))] for c in _D3Q19])], torch=t_d3q19, tol=2e-5))

def t_fastdiag(R, V1, V2, V3, L1, L2, L3):
    A, B, C = R.shape
    T = V2.T @ (V1.T @ R.flatten(1)).view(A, B, C) @ V3
    T = T / (L1[:, None, None] + L2[:, None] + L3)
    return (V1 @ (V2 @ T @ V3.T).flatten(1)).view(A, B, C)
def _sine(n):
    k = torch.arange(1, n + 1, dtype=f64)
    return math.sqrt(2 / (n + 1)) * torch.sin(math.pi / (n + 1) * k[:, None] * k), 4 * torch.sin(math.pi / (2 * n + 2) * k).square()
def _fastdiag_args(g):
    (v1, l1), (v2, l2), (v3, l3) = _sine(29), _sine(33), _sine(37)
    return [rn(g, 29, 33, 37, dt=f64), v1, v2, v3, l1, l2, l3]
op(dict(name="fast_diagonal_poisson3d", text='''
def fast_diagonal_poisson3d(double(A,B,C) R, double(A,A) V1, double(B,B) V2, double(C,C) V3, double(A) L1, double(B) L2, double(C) L3) -> (U) {
    T(i, j, k) +=! V1(a, i) * V2(b, j) * V3(c, k) * R(a, b, c)
    T(i, j, k)   = T(i, j, k) / (L1(i) + L2(j) + L3(k))
    U(a, b, c) +=! V1(a, i) * V2(b, j) * V3(c, k) * T(i, j, k)
}''', args=_fastdiag_args, torch=t_fastdiag, tol=1e-11))

def t_sphdiv(U, V, Cc, Ce):
    v = Ce[:, None] * V
    d = 16 * (U.roll(-1, 2) - U + v[:, 1:] - v[:, :-1]) / Cc[:, None]
    return d, (d.square() * Cc[:, None]).sum((1, 2))
op(dict(name="sphere_cgrid_divergence", text='''
def sphere_cgrid_divergence(double(T,A,B) U, double(T,A+1,B) V, double(A) Cc, double(A+1) Ce) -> (D, Z) {
    D(t, j, i) = 16.0 * (U(t, j, (i + 1) % B) - U(t, j, i) + Ce(j + 1) * V(t, j + 1, i) - Ce(j) * V(t, j, i)) / Cc(j) where i in 0:B
    Z(t)     +=! D(t, j, i) * D(t, j, i) * Cc(j)
}''', args=lambda g: [rn(g, 5, 90, 181, dt=f64), rn(g, 5, 91, 181, dt=f64), torch.cos(((torch.arange(90, dtype=f64) + 0.5) / 90 - 0.5) * math.pi),
                      torch.cos((torch.arange(91, dtype=f64) / 90 - 0.5) * math.pi)], torch=t_sphdiv, tol=1e-11))

# ---------------------------------------------------------------- particles
def t_pic(X, Qn):
    s = X * 64
    i = s.floor().long()
    f = s - i
    rho = torch.zeros(4096)
    for a in (0, 1):
        for b in (0, 1):
            w = Qn * (f[:, 0] if a else 1 - f[:, 0]) * (f[:, 1] if b else 1 - f[:, 1])
            rho.index_add_(0, (i[:, 0] + a) % 64 * 64 + (i[:, 1] + b) % 64, w)
    return (rho - rho.mean()).view(64, 64)
op(dict(name="pic_cloud_in_cell_deposit", text='''
def pic_cloud_in_cell_deposit(float(N,2) X, float(N) Qn) -> (float(64,64) Rho) {
    I(n, d) = int32(floor(64.0 * X(n, d)))
    Rho((I(n, 0) + a) % 64, (I(n, 1) + b) % 64) +=! Qn(n) * (a == 0 ? 1.0 - fx : fx) * (b == 0 ? 1.0 - fy : fy)
        where a in 0:2, b in 0:2, fx = 64.0 * X(n, 0) - I(n, 0), fy = 64.0 * X(n, 1) - I(n, 1)
    Mean +=! Rho(i, j) / 4096.0
    Rho(i, j) = Rho(i, j) - Mean
}''', args=lambda g: [0.9999 * ru(g, 40001, 2), 0.5 + ru(g, 40001)], torch=t_pic, tol=1e-4))

def t_cells(X, Cnt):
    ok = torch.arange(X.shape[3]) < Cnt[..., None]
    out = torch.zeros_like(X)
    for i in (-1, 0, 1):
        for j in (-1, 0, 1):
            for k in (-1, 0, 1):
                Y = X.roll((-i, -j, -k), (0, 1, 2)) + torch.tensor([i, j, k])
                d = X[..., :, None, :] - Y[..., None, :, :]
                r2 = d.square().sum(-1)
                near = ok[..., :, None] & ok.roll((-i, -j, -k), (0, 1, 2))[..., None, :] & (r2 < 1)
                out += (torch.where(near, (1 - r2).square(), 0.0)[..., None] * d).sum(-2)
    return out
op(dict(name="cell_list_soft_forces", text='''
def cell_list_soft_forces(float(A,B,C,M,3) X, int32(A,B,C) Cnt) -> (F) {
    F(a, b, c, m, d) +=! (m < Cnt(a, b, c) && n < Cnt((a + i - 1) % A, (b + j - 1) % B, (c + k - 1) % C) && r2 < 1.0)
                       ? (1.0 - r2) * (1.0 - r2) * (d == 0 ? px : (d == 1 ? py : pz)) : 0.0
        where a in 0:A, b in 0:B, c in 0:C, m in 0:M, n in 0:M, d in 0:3, i in 0:3, j in 0:3, k in 0:3,
              px = X(a, b, c, m, 0) - X((a + i - 1) % A, (b + j - 1) % B, (c + k - 1) % C, n, 0) - (i - 1),
              py = X(a, b, c, m, 1) - X((a + i - 1) % A, (b + j - 1) % B, (c + k - 1) % C, n, 1) - (j - 1),
              pz = X(a, b, c, m, 2) - X((a + i - 1) % A, (b + j - 1) % B, (c + k - 1) % C, n, 2) - (k - 1),
              r2 = px * px + py * py + pz * pz
}''', args=lambda g: [ru(g, 5, 6, 7, 6, 3), ri(g, 1, 7, 5, 6, 7, dt=i32)], torch=t_cells, tol=1e-4))

def t_torsion(R, At, K):
    b = R[At[:, 1:]] - R[At[:, :-1]]
    n1, n2 = torch.linalg.cross(b[:, 0], b[:, 1]), torch.linalg.cross(b[:, 1], b[:, 2])
    phi = torch.atan2(b[:, 1].norm(dim=1) * (b[:, 0] * n2).sum(1), (n1 * n2).sum(1))
    return (K * (1 + torch.cos(phi[:, None] * torch.arange(1, 4)))).sum(1)
op(dict(name="torsion_fourier_energy", text='''
def torsion_fourier_energy(float(N,3) R, int32(T,4) At, float(T,3) K) -> (E) {
    B(t, s, d) = R(At(t, s + 1), d) - R(At(t, s), d) where s in 0:3
    N1(t, d)   = B(t, 0, (d + 1) % 3) * B(t, 1, (d + 2) % 3) - B(t, 0, (d + 2) % 3) * B(t, 1, (d + 1) % 3) where d in 0:3
    N2(t, d)   = B(t, 1, (d + 1) % 3) * B(t, 2, (d + 2) % 3) - B(t, 1, (d + 2) % 3) * B(t, 2, (d + 1) % 3) where d in 0:3
    L(t)     +=! B(t, 1, d) * B(t, 1, d)
    Y(t)     +=! B(t, 0, d) * N2(t, d)
    X(t)     +=! N1(t, d) * N2(t, d)
    Phi(t)     = atan2(sqrt(L(t)) * Y(t), X(t))
    E(t)     +=! K(t, k) * (1.0 + cos((k + 1) * Phi(t)))
}''', args=lambda g: [3 * rn(g, 2000, 3), (ri(g, 0, 1990, 5000, 1) + torch.tensor([0, 1, 3, 4])).int(), ru(g, 5000, 3)], torch=t_torsion, tol=1e-3))
