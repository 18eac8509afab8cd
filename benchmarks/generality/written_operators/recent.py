# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Parts of recent networks; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.networks import f16, i32, of, ri, rn, ru
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)

# ---------------------------------------------------------------- modern deep learning

def _ngpt(H, Wu, Wg, Wd, Su, Sv, Al):
    m = F.linear(F.linear(H, Wu) * Su * F.silu(F.linear(H, Wg) * (Sv * H.shape[1] ** 0.5)), Wd)
    return F.normalize(torch.lerp(H, F.normalize(m, dim=1), Al), dim=1)


op(dict(name="ngpt_mlp_slerp_update", text='''
def ngpt_mlp_slerp_update(float(N,D) H, float(J,D) Wu, float(J,D) Wg, float(D,J) Wd, float(J) Su, float(J) Sv, float(D) Al) -> (Y) {
    U(n, j) +=! H(n, d) * Wu(j, d)
    G(n, j) +=! H(n, d) * Wg(j, d)
    A(n, j) = U(n, j) * Su(j) * z * sigmoid(z) where z = G(n, j) * Sv(j) * sqrt(float(D))
    M(n, d) +=! A(n, j) * Wd(d, j)
    Mn(n) +=! M(n, d) * M(n, d)
    Hc(n, d) = H(n, d) + Al(d) * (M(n, d) * rsqrt(Mn(n)) - H(n, d))
    Hn(n) +=! Hc(n, d) * Hc(n, d)
    Y(n, d) = Hc(n, d) * rsqrt(Hn(n))
}''', args=lambda g: [F.normalize(rn(g, 211, 192), dim=1), F.normalize(rn(g, 509, 192), dim=1), F.normalize(rn(g, 509, 192), dim=1), F.normalize(rn(g, 192, 509), dim=0), ru(g, 509, lo=0.5, hi=1.5), ru(g, 509, lo=0.5, hi=1.5), ru(g, 192, lo=0.05, hi=0.5)],
   torch=_ngpt, tol=5e-5))


def _dcnv4(X, Of, Mk):
    B, H, W, G, C = X.shape
    k = torch.arange(9)
    p = Of + torch.stack([k // 3 - 1, k % 3 - 1], 1)
    p = p + torch.stack(torch.meshgrid(torch.arange(H), torch.arange(W), indexing="ij"), -1)[:, :, None, None]
    at = (2 * p / torch.tensor([H - 1, W - 1]) - 1).flip(-1).permute(0, 3, 1, 2, 4, 5).reshape(B * G, H, W * 9, 2)
    s = F.grid_sample(X.permute(0, 3, 4, 1, 2).reshape(B * G, C, H, W), at, padding_mode="zeros", align_corners=True)
    return (s.view(B, G, C, H, W, 9) * Mk.permute(0, 3, 1, 2, 4)[:, :, None]).sum(-1).permute(0, 3, 4, 1, 2)


op(dict(name="dcnv4_modulated_sampling", text='''
def dcnv4_modulated_sampling(float(B,H,W,G,C) X, float(B,H,W,G,9,2) Of, float(B,H,W,G,9) Mk) -> (Y) {
    Py(b, y, x, g, k) = Of(b, y, x, g, k, 0) + (y + k / 3 - 1)
    Px(b, y, x, g, k) = Of(b, y, x, g, k, 1) + (x + k % 3 - 1)
    Iy(b, y, x, g, k) = int32(floor(Py(b, y, x, g, k)))
    Ix(b, y, x, g, k) = int32(floor(Px(b, y, x, g, k)))
    Y(b, y, x, g, c) +=! (Iy(b, y, x, g, k) + i >= 0 && Iy(b, y, x, g, k) + i < H && Ix(b, y, x, g, k) + j >= 0 && Ix(b, y, x, g, k) + j < W)
        ? Mk(b, y, x, g, k) * (i == 0 ? 1.0 - fy : fy) * (j == 0 ? 1.0 - fx : fx) * X(b, Iy(b, y, x, g, k) + i, Ix(b, y, x, g, k) + j, g, c) : 0.0
        where i in 0:2, j in 0:2, fy = Py(b, y, x, g, k) - floor(Py(b, y, x, g, k)), fx = Px(b, y, x, g, k) - floor(Px(b, y, x, g, k))
}''', args=lambda g: [rn(g, 1, 37, 41, 4, 13), ri(g, -2, 2, 1, 37, 41, 4, 9, 2, dt=torch.float32) + ru(g, 1, 37, 41, 4, 9, 2, lo=0.05, hi=0.95), rn(g, 1, 37, 41, 4, 9, k=0.4)],
   torch=_dcnv4, tol=1e-4))


def _remoe(X, Wr, Wa, Wb, k):
    s = F.relu(F.linear(X, Wr))
    reg = ((s > 0).float().mean(0) / k * s).sum() / len(X)
    h = F.silu(F.linear(X, Wa.flatten(0, 1)).view(len(X), *Wa.shape[:2])) * s[..., None]
    return h.flatten(1) @ Wb.mT.flatten(0, 1), reg


op(dict(name="remoe_relu_routed_experts", text='''
def remoe_relu_routed_experts(float(N,D) X, float(E,D) Wr, float(E,F,D) Wa, float(E,D,F) Wb, float k) -> (Y, Reg) {
    S(n, e) +=! X(n, d) * Wr(e, d)
    R(n, e) = relu(S(n, e))
    Fe(e) +=! S(n, e) > 0.0 ? 1.0 : 0.0
    Reg +=! Fe(e) / (k * N) * R(n, e) / N
    A(n, e, f) +=! X(n, d) * Wa(e, f, d)
    Hd(n, e, f) = R(n, e) * A(n, e, f) * sigmoid(A(n, e, f))
    Y(n, d) +=! Hd(n, e, f) * Wb(e, d, f)
}''', args=lambda g: [rn(g, 151, 128), rn(g, 9, 128, k=0.09), rn(g, 9, 71, 128, k=0.09), rn(g, 9, 128, 71, k=0.06), of(2.0)], torch=_remoe, tol=3e-5))


def _deltaproduct(S, Ka, Va, Ba, Kb, Vb, Bb, Q, Gd):
    S = Gd.exp()[..., None, None] * S
    for k, v, b in ((Ka, Va, Ba), (Kb, Vb, Bb)):
        S = S + (b[..., None] * k)[..., None] * (v - (k[:, :, None] @ S)[:, :, 0])[:, :, None]
    return (Q[:, :, None] @ S)[:, :, 0], S


op(dict(name="deltaproduct_two_householders_step", text='''
def householder_write(float(B,H,K,V) S, float(B,H,K) Kn, float(B,H,V) Vn, float(B,H) Be) -> (T) {
    P(b, h, v) +=! Kn(b, h, k) * S(b, h, k, v)
    T(b, h, k, v) = S(b, h, k, v) + Be(b, h) * Kn(b, h, k) * (Vn(b, h, v) - P(b, h, v))
}
def deltaproduct_two_householders_step(float(B,H,K,V) S, float(B,H,K) Ka, float(B,H,V) Va, float(B,H) Ba, float(B,H,K) Kb, float(B,H,V) Vb, float(B,H) Bb, float(B,H,K) Q, float(B,H) Gd) -> (O, S2) {
    S0(b, h, k, v) = exp(Gd(b, h)) * S(b, h, k, v)
    S1 = householder_write(S0, Ka, Va, Ba)
    S2 = householder_write(S1, Kb, Vb, Bb)
    O(b, h, v) +=! Q(b, h, k) * S2(b, h, k, v)
}''', args=lambda g: [rn(g, 6, 5, 61, 67), F.normalize(rn(g, 6, 5, 61), dim=2), rn(g, 6, 5, 67), ru(g, 6, 5, lo=0.2, hi=1.8), F.normalize(rn(g, 6, 5, 61), dim=2), rn(g, 6, 5, 67), ru(g, 6, 5, lo=0.2, hi=1.8), rn(g, 6, 5, 61, k=0.2), ru(g, 6, 5, lo=-0.5)],
   torch=_deltaproduct, tol=2e-5))


def _mtp(H, Wh, Wu, Tok, Lw):
    T, K = len(H), len(Wh)
    z = H + F.silu(H @ Wh.mT)
    ls = F.cross_entropy((z @ Wu.T).flatten(0, 1), Tok[1:].unfold(0, T, 1).reshape(-1), reduction="none").view(K, T).mean(1)
    return (Lw * ls).sum(), ls


op(dict(name="multi_token_heads_ce", text='''
def multi_token_heads_ce(float(T,D) H, float(K,D,D) Wh, float(V,D) Wu, int64(T+K) Tok, float(K) Lw) -> (Loss, Ls) {
    Z(k, t, o) +=! H(t, d) * Wh(k, o, d)
    Z(k, t, o) = H(t, o) + z * sigmoid(z) where z = Z(k, t, o)
    L(k, t, v) +=! Z(k, t, d) * Wu(v, d)
    M(k, t) max=! L(k, t, v)
    E(k, t) +=! exp(L(k, t, v) - M(k, t))
    Ls(k) +=! (M(k, t) + log(E(k, t)) - L(k, t, Tok(t + k + 1))) / T
    Loss +=! Lw(k) * Ls(k)
}''', args=lambda g: [rn(g, 61, 96), rn(g, 3, 96, 96, k=0.1), rn(g, 701, 96, k=0.1), ri(g, 0, 701, 64), torch.tensor([1.0, 0.3, 0.1])], torch=_mtp, tol=2e-5))


def _gspo(Ln, Lo, Mk, Rw, lo, hi):
    ad = (Rw - Rw.mean(1, keepdim=True)) / (Rw.std(1, keepdim=True, correction=0) + 1e-4)
    s = (torch.where(Mk, Ln - Lo, 0.0).sum(2) / Mk.sum(2).clamp_min(1)).exp()
    return -torch.minimum(s * ad, s.clamp(1 - lo, 1 + hi) * ad).mean(), s


def _gspo_args(g):
    old = -3 * ru(g, 13, 8, 1021)
    return [old + rn(g, 13, 8, 1021, k=0.5), old, ru(g, 13, 8, 1021) < 0.8, rn(g, 13, 8), of(0.02), of(0.03)]


op(dict(name="gspo_group_sequence_clip", text='''
def gspo_group_sequence_clip(float(G,R,T) Ln, float(G,R,T) Lo, bool(G,R,T) Mk, float(G,R) Rw, float lo, float hi) -> (Loss, Sr) {
    Mu(g) +=! Rw(g, r) / R
    Va(g) +=! (Rw(g, r) - Mu(g)) * (Rw(g, r) - Mu(g)) / R
    Nt(g, r) +=! Mk(g, r, t) ? 1.0 : 0.0
    Sr(g, r) +=! Mk(g, r, t) ? Ln(g, r, t) - Lo(g, r, t) : 0.0
    Sr(g, r) = exp(Sr(g, r) / max(Nt(g, r), 1.0))
    Loss +=! -min(Sr(g, r) * ad, clamp(Sr(g, r), 1.0 - lo, 1.0 + hi) * ad) / (G * R) where ad = (Rw(g, r) - Mu(g)) / (sqrt(Va(g)) + 1e-4)
}''', args=_gspo_args, torch=_gspo, tol=5e-5))


def _yarn(X, Pos, base, sc, lo, hi):
    i = torch.arange(X.shape[3])
    f = base ** (-i / X.shape[3])
    r = ((i - lo) / (hi - lo)).clamp(0, 1)
    a = Pos[..., None] * (f * (1 - r) + f / sc * r)
    m = 0.1 * sc.log() + 1
    c, s = (m * a.cos())[:, :, None], (m * a.sin())[:, :, None]
    x, y = X.unbind(-1)
    return torch.stack([x * c - y * s, y * c + x * s], -1)


op(dict(name="yarn_rope_interleaved", text='''
def yarn_rope_interleaved(float(B,T,H,P,2) X, int32(B,T) Pos, float base, float sc, float lo, float hi) -> (Y) {
    Fr(i) = f * (1.0 - r) + f / sc * r where i in 0:P, f = pow(base, -float(i) / P), r = clamp((i - lo) / (hi - lo), 0.0, 1.0)
    Co(b, t, i) = (0.1 * log(sc) + 1.0) * cos(Pos(b, t) * Fr(i))
    Si(b, t, i) = (0.1 * log(sc) + 1.0) * sin(Pos(b, t) * Fr(i))
    Y(b, t, h, i, c) = c == 0 ? X(b, t, h, i, 0) * Co(b, t, i) - X(b, t, h, i, 1) * Si(b, t, i) : X(b, t, h, i, 1) * Co(b, t, i) + X(b, t, h, i, 0) * Si(b, t, i)
        where c in 0:2
}''', args=lambda g: [rn(g, 2, 149, 12, 32, 2), ri(g, 0, 300, 2, 149, dt=i32), of(10000.0), of(4.0), of(3.3), of(17.7)], torch=_yarn, tol=1e-4))


def _splatpre(Q, S, Xm, Cam, Sh):
    w, x, y, z = F.normalize(Q, dim=1).unbind(1)
    R = torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y), 2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x), 2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], 1).view(-1, 3, 3)
    m = R * S.exp()[:, None]
    d = F.normalize(Xm - Cam, dim=1)
    c = 0.28209479177387814 * Sh[:, 0] + 0.4886025119029199 * (d[:, 2:] * Sh[:, 2] - d[:, 1:2] * Sh[:, 1] - d[:, :1] * Sh[:, 3])
    return m @ m.mT, F.relu(c + 0.5)


op(dict(name="splat_quaternion_cov_sh_colour", text='''
def splat_quaternion_cov_sh_colour(float(N,4) Q, float(N,3) S, float(N,3) Xm, float(3) Cam, float(N,4,3) Sh) -> (Cv, Col) {
    Nq(n) +=! Q(n, a) * Q(n, a)
    U(n, a) = Q(n, a) * rsqrt(Nq(n))
    R(n, i, j) = 2.0 * U(n, i + 1) * U(n, j + 1)
        + (i == j ? 2.0 * w * w - 1.0 : (j == (i + 1) % 3 ? -2.0 * w * U(n, (i + 2) % 3 + 1) : 2.0 * w * U(n, (i + 1) % 3 + 1)))
        where i in 0:3, j in 0:3, w = U(n, 0)
    M(n, i, k) = R(n, i, k) * exp(S(n, k))
    Cv(n, i, j) +=! M(n, i, k) * M(n, j, k)
    Dn(n) +=! (Xm(n, a) - Cam(a)) * (Xm(n, a) - Cam(a))
    Di(n, a) = (Xm(n, a) - Cam(a)) * rsqrt(Dn(n))
    Col(n, c) = relu(0.5 + 0.28209479177387814 * Sh(n, 0, c) + 0.4886025119029199 * (Di(n, 2) * Sh(n, 2, c) - Di(n, 1) * Sh(n, 1, c) - Di(n, 0) * Sh(n, 3, c)))
}''', args=lambda g: [rn(g, 20011, 4), rn(g, 20011, 3, k=0.5), rn(g, 20011, 3), torch.tensor([0.3, -4.0, 2.0]), rn(g, 20011, 4, 3, k=0.7)], torch=_splatpre, tol=3e-5))


def _indexer(Q, K, W, P):
    T = len(Q)
    ix = (W[:, None] @ F.relu(Q @ K.T))[:, 0]
    no = torch.ones(T, T, dtype=torch.bool).triu(1)
    lq = ix.masked_fill(no, -math.inf).log_softmax(1).masked_fill(no, 0.0)
    return ix, (P.tril() * (P.log() - lq)).sum() / T


op(dict(name="lightning_indexer_kl", text='''
def lightning_indexer_kl(float(T,H,D) Q, float(T,D) K, float(T,H) W, float(T,T) P) -> (Ix, Kl) {
    A(t, h, s) +=! Q(t, h, d) * K(s, d)
    Ix(t, s) +=! W(t, h) * relu(A(t, h, s))
    M(t) max=! s <= t ? Ix(t, s) : -infinity()
    Z(t) +=! s <= t ? exp(Ix(t, s) - M(t)) : 0.0
    Kl +=! s <= t ? P(t, s) * (log(P(t, s)) - Ix(t, s) + M(t) + log(Z(t))) / T : 0.0
}''', args=lambda g: [rn(g, 131, 8, 32), rn(g, 131, 32, k=0.2), rn(g, 131, 8, k=0.3), rn(g, 131, 131).softmax(1)], torch=_indexer, tol=5e-5))


def _gatedattn(Q, K, V, Gt, Wq, Wk):
    R = Q.shape[2]
    q, k = F.rms_norm(Q, Wq.shape, 1 + Wq, 1e-6), F.rms_norm(K, Wk.shape, 1 + Wk, 1e-6)
    o = F.scaled_dot_product_attention(q.flatten(1, 2), k.repeat_interleave(R, 1), V.repeat_interleave(R, 1), is_causal=True)
    return o.view_as(Q) * Gt.sigmoid()


op(dict(name="zero_centred_qknorm_output_gate_attention", text='''
def zero_centred_qknorm_output_gate_attention(float(B,G,R,T,D) Q, float(B,G,T,D) K, float(B,G,T,D) V, float(B,G,R,T,D) Gt, float(D) Wq, float(D) Wk) -> (Y) {
    Rq(b, g, r, t) +=! Q(b, g, r, t, d) * Q(b, g, r, t, d) / D
    Rk(b, g, s) +=! K(b, g, s, d) * K(b, g, s, d) / D
    S(b, g, r, t, s) +=! Q(b, g, r, t, d) * (1.0 + Wq(d)) * K(b, g, s, d) * (1.0 + Wk(d))
    S(b, g, r, t, s) = S(b, g, r, t, s) * rsqrt(Rq(b, g, r, t) + 1e-6) * rsqrt(Rk(b, g, s) + 1e-6) * rsqrt(float(D))
    M(b, g, r, t) max=! s <= t ? S(b, g, r, t, s) : -infinity()
    E(b, g, r, t, s) = s <= t ? exp(S(b, g, r, t, s) - M(b, g, r, t)) : 0.0
    Z(b, g, r, t) +=! E(b, g, r, t, s)
    O(b, g, r, t, d) +=! E(b, g, r, t, s) * V(b, g, s, d)
    Y(b, g, r, t, d) = O(b, g, r, t, d) / Z(b, g, r, t) * sigmoid(Gt(b, g, r, t, d))
}''', args=lambda g: [rn(g, 2, 2, 3, 131, 40), rn(g, 2, 2, 131, 40), rn(g, 2, 2, 131, 40), rn(g, 2, 2, 3, 131, 40), rn(g, 40, k=0.2), rn(g, 40, k=0.2)], torch=_gatedattn, tol=3e-5))


def _chebykan(X, Cf):
    u = torch.tanh(X)
    t = [torch.ones_like(u), u]
    for _ in range(4):
        t.append(2 * u * t[-1] - t[-2])
    return torch.stack(t, -1).flatten(1) @ Cf.permute(0, 2, 1).flatten(0, 1)


op(dict(name="chebykan_layer_degree5", text='''
def chebykan_layer_degree5(float(N,I) X, float(I,O,6) Cf) -> (Y) {
    U(n, i) = acos(tanh(X(n, i)))
    Tk(n, i, k) = cos(k * U(n, i)) where k in 0:6
    Y(n, o) +=! Tk(n, i, k) * Cf(i, o, k)
}''', args=lambda g: [rn(g, 257, 61, k=0.8), rn(g, 61, 83, 6, k=0.05)], torch=_chebykan, tol=5e-5))


def _kv4(Q, Kp, Sc, Zp, V):
    B, S, H, P = Kp.shape
    c = torch.stack([Kp & 15, Kp >> 4], -1).view(B, S, H, -1, 16).float()
    k = ((c - Zp[..., None]) * Sc[..., None]).view(B, S, H, 2 * P)
    a = torch.einsum("bhd,bshd->bhs", Q.flatten(2), k) * (2 * P) ** -0.5
    return torch.einsum("bhs,bshe->bhe", a.softmax(-1), V.float())


op(dict(name="kv_packed4_group_affine_decode", text='''
def kv_packed4_group_affine_decode(float(B,H,P,2) Q, uint8(B,S,H,P) Kp, float(B,S,H,G) Sc, float(B,S,H,G) Zp, half(B,S,H,E) V) -> (O) {
    Kd(b, s, h, p, c) = (float(c == 0 ? Kp(b, s, h, p) % 16 : Kp(b, s, h, p) / 16) - Zp(b, s, h, p / 8)) * Sc(b, s, h, p / 8) where p in 0:P, c in 0:2
    A(b, h, s) +=! Q(b, h, p, c) * Kd(b, s, h, p, c)
    A(b, h, s) = A(b, h, s) * rsqrt(2.0 * P)
    M(b, h) max=! A(b, h, s)
    Z(b, h) +=! exp(A(b, h, s) - M(b, h))
    O(b, h, e) +=! exp(A(b, h, s) - M(b, h)) / Z(b, h) * float(V(b, s, h, e))
}''', args=lambda g: [rn(g, 3, 5, 24, 2), ri(g, 0, 256, 3, 401, 5, 24, dt=torch.uint8), ru(g, 3, 401, 5, 3, lo=0.05, hi=0.2), ru(g, 3, 401, 5, 3, lo=6.0, hi=9.0), rn(g, 3, 401, 5, 53, dt=f16)], torch=_kv4, tol=5e-5))


def _hyper(H, Wm, Wr, Wb, Bm, Br, Bb, Wl, sa, sb):
    h = F.rms_norm(H, H.shape[2:], None, 1e-6)
    am, ar, bt = sa * torch.tanh(h @ Wm) + Bm, sa * torch.tanh(h @ Wr) + Br, sb * torch.tanh(h @ Wb) + Bb
    return bt[..., None] * F.linear(am[:, None] @ H, Wl) + ar.mT @ H


op(dict(name="hyper_connections_dynamic_mix", text='''
def hyper_connections_dynamic_mix(float(N,S,D) H, float(D) Wm, float(D,S) Wr, float(D) Wb, float(S) Bm, float(S,S) Br, float(S) Bb, float(D,D) Wl, float sa, float sb) -> (Y) {
    Ms(n, s) +=! H(n, s, d) * H(n, s, d) / D
    Hn(n, s, d) = H(n, s, d) * rsqrt(Ms(n, s) + 1e-6)
    Am(n, s) +=! Hn(n, s, d) * Wm(d)
    Bt(n, s) +=! Hn(n, s, d) * Wb(d)
    Ar(n, s, r) +=! Hn(n, s, d) * Wr(d, r)
    I(n, d) +=! (sa * tanh(Am(n, s)) + Bm(s)) * H(n, s, d)
    L(n, o) +=! I(n, d) * Wl(o, d)
    R(n, r, d) +=! (sa * tanh(Ar(n, s, r)) + Br(s, r)) * H(n, s, d)
    Y(n, s, d) = (sb * tanh(Bt(n, s)) + Bb(s)) * L(n, d) + R(n, s, d)
}''', args=lambda g: [rn(g, 149, 4, 192), rn(g, 192, k=0.07), rn(g, 192, 4, k=0.07), rn(g, 192, k=0.07), ru(g, 4), torch.eye(4) + rn(g, 4, 4, k=0.1), ru(g, 4, lo=0.5, hi=1.5), rn(g, 192, 192, k=0.07), of(0.3), of(0.2)],
   torch=_hyper, tol=3e-5))


def _bifpn(Co, A, Fi, Wf, Kd):
    w = F.relu(Wf)
    f = (w[0] * A + w[1] * F.interpolate(Co, scale_factor=2, mode="nearest") + w[2] * F.max_pool2d(Fi, 3, 2, 1)) / (w.sum() + 1e-4)
    return F.conv2d(F.silu(f), Kd[:, None], padding=1, groups=Kd.shape[0])


op(dict(name="bifpn_fast_fusion_node", text='''
def bifpn_fast_fusion_node(float(N,C,P,Q) Co, float(N,C,2*P,2*Q) A, float(N,C,4*P,4*Q) Fi, float(3) Wf, float(C,3,3) Kd) -> (Y) {
    Mp(n, c, y, x) max=! 2*y + u >= 1 && 2*x + v >= 1 ? Fi(n, c, 2*y + u - 1, 2*x + v - 1) : -infinity() where y in 0:2*P, x in 0:2*Q, u in 0:3, v in 0:3
    Sw = relu(Wf(0)) + relu(Wf(1)) + relu(Wf(2)) + 1e-4
    Fu(n, c, y, x) = (relu(Wf(0)) * A(n, c, y, x) + relu(Wf(1)) * Co(n, c, y / 2, x / 2) + relu(Wf(2)) * Mp(n, c, y, x)) / Sw where y in 0:2*P, x in 0:2*Q
    G(n, c, y, x) = Fu(n, c, y, x) * sigmoid(Fu(n, c, y, x))
    Y(n, c, y, x) +=! y + u >= 1 && y + u <= 2*P && x + v >= 1 && x + v <= 2*Q ? G(n, c, y + u - 1, x + v - 1) * Kd(c, u, v) : 0.0
        where y in 0:2*P, x in 0:2*Q, u in 0:3, v in 0:3
}''', args=lambda g: [rn(g, 2, 23, 13, 17), rn(g, 2, 23, 26, 34), rn(g, 2, 23, 52, 68), ru(g, 3, lo=0.3, hi=1.3), rn(g, 23, 3, 3, k=0.4)], torch=_bifpn, tol=2e-5))
