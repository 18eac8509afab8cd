# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""What sees and hears: layers of recent papers, rendering and 3-D vision, audio and radio; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.networks import bf16, f64, i32, of, ri, rn, ru, u8
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)


# ---------------------------------------------------------------- from recent papers

def _selscan(X, Dt, Al, Bm, Cm, Ds, Bi, Z):
    de = F.softplus(Dt + Bi)
    a = torch.exp(de[..., None] * -Al.exp())
    u = (de * X)[..., None] * Bm[:, :, None]
    h, ys = torch.zeros_like(u[:, 0]), []
    for t in range(X.shape[1]):
        h = a[:, t] * h + u[:, t]
        ys.append(torch.einsum("bdn,bn->bd", h, Cm[:, t]))
    return (torch.stack(ys, 1) + Ds * X) * F.silu(Z), h


op(dict(name="mamba_selective_scan_closed_form", text='''
def mamba_selective_scan_closed_form(float(B,T,D) X, float(B,T,D) Dt, float(D,N) Al, float(B,T,N) Bm, float(B,T,N) Cm, float(D) Ds, float(D) Bi, float(B,T,D) Z) -> (Y, Hl) {
    De(b, t, d) = log1p(exp(Dt(b, t, d) + Bi(d)))
    Cs(b, t, d) +=! s <= t ? De(b, s, d) : 0.0 where t in 0:T
    A(d, n) = -exp(Al(d, n))
    G(b, t, s, d) +=! s <= t ? Cm(b, t, n) * Bm(b, s, n) * exp(A(d, n) * (Cs(b, t, d) - Cs(b, s, d))) : 0.0
    Y(b, t, d) +=! s <= t ? G(b, t, s, d) * De(b, s, d) * X(b, s, d) : 0.0
    Y(b, t, d) = (Y(b, t, d) + Ds(d) * X(b, t, d)) * Z(b, t, d) * sigmoid(Z(b, t, d))
    Hl(b, d, n) +=! exp(A(d, n) * (Cs(b, T - 1, d) - Cs(b, s, d))) * De(b, s, d) * Bm(b, s, n) * X(b, s, d)
}''', args=lambda g: [rn(g, 2, 47, 72), rn(g, 2, 47, 72, k=0.5), torch.arange(1.0, 17.0).log().repeat(72, 1) + rn(g, 72, 16, k=0.05), rn(g, 2, 47, 16), rn(g, 2, 47, 16), rn(g, 72), rn(g, 72, k=0.3) - 2.0, rn(g, 2, 47, 72)],
   torch=_selscan, tol=5e-5))


def _peer(X, Sc, Ix, U, V):
    p = Sc.softmax(-1)
    a = torch.einsum("nd,nhkd->nhk", X, F.embedding(Ix, U))
    y = torch.einsum("nhk,nhkd->nd", p * F.gelu(a), F.embedding(Ix, V))
    return y, U.new_zeros(U.shape[0]).index_add(0, Ix.flatten(), p.flatten())


op(dict(name="peer_single_neuron_experts", text='''
def peer_single_neuron_experts(float(N,D) X, float(N,H,K) Sc, int64(N,H,K) Ix, float(E,D) U, float(E,D) V) -> (Y, float(E) Us) {
    M(n, h) max=! Sc(n, h, k)
    P(n, h, k) = exp(Sc(n, h, k) - M(n, h))
    Z(n, h) +=! P(n, h, k)
    P(n, h, k) = P(n, h, k) / Z(n, h)
    A(n, h, k) +=! X(n, d) * U(Ix(n, h, k), d)
    Gt(n, h, k) = P(n, h, k) * 0.5 * A(n, h, k) * (1.0 + erf(0.7071067811865476 * A(n, h, k)))
    Y(n, d) +=! Gt(n, h, k) * V(Ix(n, h, k), d)
    Us(Ix(n, h, k)) +=! P(n, h, k)
}''', args=lambda g: [rn(g, 101, 120), rn(g, 101, 4, 16), ri(g, 0, 10000, 101, 4, 16), rn(g, 10000, 120, k=0.1), rn(g, 10000, 120)], torch=_peer, tol=2e-5))


def _snapkv(Q, K):
    W, D, S = Q.shape[3], Q.shape[4], K.shape[2]
    s = torch.einsum("bgrwd,bgsd->bgrws", Q.float(), K.float()) / D ** 0.5
    ok = torch.arange(S) <= torch.arange(W)[:, None] + S - W
    votes = s.masked_fill(~ok, -math.inf).softmax(-1)[..., :S - W].sum((2, 3))
    return F.max_pool1d(votes, 7, stride=1, padding=3)


op(dict(name="snapkv_pooled_votes_bf16", text='''
def snapkv_pooled_votes_bf16(bfloat16(B,G,R,W,D) Q, bfloat16(B,G,S,D) K) -> (float(B,G,S-W) Vote) {
    Sc(b, g, r, w, s) +=! float(Q(b, g, r, w, d)) * K(b, g, s, d)
    M(b, g, r, w) max=! s <= w + S - W ? Sc(b, g, r, w, s) : -infinity()
    P(b, g, r, w, s) = s <= w + S - W ? exp((Sc(b, g, r, w, s) - M(b, g, r, w)) / sqrt(float(D))) : 0.0
    Z(b, g, r, w) +=! P(b, g, r, w, s)
    A(b, g, s) +=! P(b, g, r, w, s) / Z(b, g, r, w) where s in 0:S-W
    Vote(b, g, s) max=! s + k >= 3 && s + k < S - W + 3 ? A(b, g, s + k - 3) : -infinity() where s in 0:S-W, k in 0:7
}''', args=lambda g: [rn(g, 2, 2, 4, 16, 64, dt=bf16), rn(g, 2, 2, 601, 64, dt=bf16)], torch=_snapkv, tol=1e-4))


def _mmdit(Xt, Xi, Gt, Gi):
    T, D = Xt.shape[1], Xt.shape[4]
    q, k = (torch.cat([F.rms_norm(Xt[:, :, c], (D,), Gt[c], 1e-6), F.rms_norm(Xi[:, :, c], (D,), Gi[c], 1e-6)], 1).transpose(1, 2) for c in (0, 1))
    v = torch.cat([Xt[:, :, 2], Xi[:, :, 2]], 1).transpose(1, 2)
    y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    return y[:, :T], y[:, T:]


op(dict(name="mmdit_joint_stream_attention", text='''
def mmdit_joint_stream_attention(float(B,T,3,H,D) Xt, float(B,N,3,H,D) Xi, float(2,D) Gt, float(2,D) Gi) -> (Yt, Yi) {
    Rt(b, t, c, h) +=! Xt(b, t, c, h, d) * Xt(b, t, c, h, d) / D where c in 0:2
    Ri(b, n, c, h) +=! Xi(b, n, c, h, d) * Xi(b, n, c, h, d) / D where c in 0:2
    Q(b, h, l, d) = l < T ? Xt(b, l, 0, h, d) * rsqrt(Rt(b, l, 0, h) + 1e-6) * Gt(0, d) : Xi(b, l - T, 0, h, d) * rsqrt(Ri(b, l - T, 0, h) + 1e-6) * Gi(0, d) where l in 0:T+N
    K(b, h, l, d) = l < T ? Xt(b, l, 1, h, d) * rsqrt(Rt(b, l, 1, h) + 1e-6) * Gt(1, d) : Xi(b, l - T, 1, h, d) * rsqrt(Ri(b, l - T, 1, h) + 1e-6) * Gi(1, d) where l in 0:T+N
    V(b, h, l, d) = l < T ? Xt(b, l, 2, h, d) : Xi(b, l - T, 2, h, d) where l in 0:T+N
    S(b, h, i, j) +=! Q(b, h, i, d) * K(b, h, j, d)
    M(b, h, i) max=! S(b, h, i, j)
    P(b, h, i, j) = exp((S(b, h, i, j) - M(b, h, i)) / sqrt(float(D)))
    Z(b, h, i) +=! P(b, h, i, j)
    Y(b, i, h, d) +=! P(b, h, i, j) / Z(b, h, i) * V(b, h, j, d)
    Yt(b, t, h, d) = Y(b, t, h, d) where t in 0:T
    Yi(b, n, h, d) = Y(b, n + T, h, d) where n in 0:N
}''', args=lambda g: [rn(g, 2, 37, 3, 5, 40), rn(g, 2, 144, 3, 5, 40), ru(g, 2, 40, lo=0.5, hi=1.5), ru(g, 2, 40, lo=0.5, hi=1.5)], torch=_mmdit, tol=3e-5))


op(dict(name="hira_hadamard_adapter_linear", text='''
def hira_hadamard_adapter_linear(float(N,I) X, float(O,I) W, float(O,R) Up, float(R,I) Dn, float(O) Bi, float sc) -> (Y) {
    Dl(o, i) +=! Up(o, r) * Dn(r, i)
    We(o, i) = W(o, i) * (1.0 + sc * Dl(o, i))
    Y(n, o) +=! X(n, i) * We(o, i)
    Y(n, o) = Y(n, o) + Bi(o)
}''', args=lambda g: [rn(g, 131, 390), rn(g, 327, 390, k=0.05), rn(g, 327, 16, k=0.3), rn(g, 16, 390, k=0.3), rn(g, 327, k=0.1), of(0.5)],
   torch=lambda X, W, Up, Dn, Bi, sc: F.linear(X, W * (1 + sc * (Up @ Dn)), Bi), tol=3e-5))


def _hqq(W, Sc, Zp):
    s, z = Sc[:, None], Zp[:, None]
    q = torch.floor(W * s + z + 0.5).clamp(0, 15)
    e = W - (q - z) / s
    a = e.abs()
    we = e.sign() * F.relu(a - a.pow(-0.3) / 10)
    return (q - (W - we) * s).mean(1), a.mean(1)


def _hqq_args(g):
    w = rn(g, 2003, 64)
    s = 15 / (w.amax(1) - w.amin(1))
    return [w, s, -w.amin(1) * s]


op(dict(name="hqq_shrink_zero_step", text='''
def hqq_shrink_zero_step(float(G,K) W, float(G) Sc, float(G) Zp) -> (Zn, Er) {
    Q(g, k) = clamp(floor(W(g, k) * Sc(g) + Zp(g) + 0.5), 0.0, 15.0)
    E(g, k) = W(g, k) - (Q(g, k) - Zp(g)) / Sc(g)
    Sh(g, k) = sign(E(g, k)) * max(abs(E(g, k)) - pow(abs(E(g, k)), -0.3) / 10.0, 0.0)
    Zn(g) +=! (Q(g, k) - (W(g, k) - Sh(g, k)) * Sc(g)) / K
    Er(g) +=! abs(E(g, k)) / K
}''', args=_hqq_args, torch=_hqq, tol=3e-3))


def _blockver(P, Q, Tok):
    K = Q.shape[1]
    r = (P[:, :K].gather(2, Tok[..., None]) / Q.gather(2, Tok[..., None]))[..., 0]
    p, ps = torch.ones_like(r[:, 0]), []
    for i in range(K):
        p = (p * r[:, i]).clamp_max(1)
        ps.append(p)
    p = torch.stack(ps, 1)
    s = F.relu(p[:, :-1, None] * P[:, 1:K] - Q[:, 1:]).sum(2)
    return p, torch.cat([s / (s + 1 - p[:, :-1]), p[:, -1:]], 1)


op(dict(name="block_verification_probabilities", text='''
def block_verification_probabilities(float(B,K+1,V) P, float(B,K,V) Q, int64(B,K) Tok) -> (Pb, Hb) {
    Lr(b, i) = log(P(b, i, Tok(b, i)) / Q(b, i, Tok(b, i)))
    C(b, i) +=! j <= i ? Lr(b, j) : 0.0 where i in 0:K
    M(b, i) max=! j <= i ? C(b, j) : -infinity() where i in 0:K
    Pb(b, i) = exp(min(C(b, i), C(b, i) - M(b, i)))      # capped at 1 after every token
    Rs(b, i) +=! max(Pb(b, i) * P(b, i + 1, v) - Q(b, i + 1, v), 0.0) where i in 0:K-1
    Hb(b, i) = i < K - 1 ? Rs(b, i) / (Rs(b, i) + 1.0 - Pb(b, i)) : Pb(b, i) where i in 0:K
}''', args=lambda g: [rn(g, 16, 7, 8003).softmax(2), rn(g, 16, 6, 8003).softmax(2), ri(g, 0, 8003, 16, 6)], torch=_blockver, tol=3e-5))


def _flow(X0, X1, Tm, W1, Fq, Wt, B1, W2, B2):
    xt = (1 - 0.999 * Tm)[:, None] * X0 + Tm[:, None] * X1
    a = Tm[:, None] * Fq
    z = F.linear(xt, W1, B1) + F.linear(torch.cat([a.sin(), a.cos()], 1), Wt)
    v = F.linear(F.silu(z), W2, B2)
    return F.mse_loss(v, X1 - 0.999 * X0), v


op(dict(name="flow_matching_mlp_loss", text='''
def flow_matching_mlp_loss(float(N,D) X0, float(N,D) X1, float(N) Tm, float(H,D) W1, float(F) Fq, float(H,2*F) Wt, float(H) B1, float(D,H) W2, float(D) B2) -> (Loss, V) {
    Xt(n, d) = (1.0 - 0.999 * Tm(n)) * X0(n, d) + Tm(n) * X1(n, d)
    Te(n, f) = f < F ? sin(Tm(n) * Fq(f)) : cos(Tm(n) * Fq(f - F)) where f in 0:2*F
    Z(n, h) +=! Xt(n, d) * W1(h, d)
    Z(n, h) += Te(n, f) * Wt(h, f)
    A(n, h) = z * sigmoid(z) where z = Z(n, h) + B1(h)
    V(n, d) +=! A(n, h) * W2(d, h)
    V(n, d) = V(n, d) + B2(d)
    Loss +=! e * e / (N * D) where e = V(n, d) - X1(n, d) + 0.999 * X0(n, d)
}''', args=lambda g: [rn(g, 509, 50), rn(g, 509, 50), ru(g, 509), rn(g, 257, 50, k=0.14), torch.logspace(0.0, 2.0, 15), rn(g, 257, 30, k=0.18), rn(g, 257, k=0.1), rn(g, 50, 257, k=0.06), rn(g, 50, k=0.1)], torch=_flow, tol=5e-5))


# ---------------------------------------------------------------- rendering and 3-D vision

def _neus(Sd, Rgb, Tm, ls, Bg):
    ph = torch.sigmoid(Sd * ls.exp())
    al = ((ph[:, :-1] - ph[:, 1:] + 1e-5) / (ph[:, :-1] + 1e-5)).clamp(0, 1)
    tr = torch.cumprod(torch.cat([torch.ones_like(al[:, :1]), 1 - al[:, :-1] + 1e-7], 1), 1)
    w = tr * al
    acc = w.sum(1)
    col = (w[..., None] * torch.sigmoid(Rgb)).sum(1) + (1 - acc)[:, None] * Bg
    return col, (w * Tm).sum(1), acc


op(dict(name="neus_sdf_alpha_render", text='''
def neus_sdf_alpha_render(float(R,S+1) Sd, float(R,S,3) Rgb, float(R,S) Tm, float ls, float(3) Bg) -> (Col, Dep, Acc) {
    Ph(r, i) = sigmoid(Sd(r, i) * exp(ls))
    Al(r, i) = clamp((Ph(r, i) - Ph(r, i + 1) + 1e-5) / (Ph(r, i) + 1e-5), 0.0, 1.0)
    Tr(r, i) *=! j < i ? 1.0 - Al(r, j) + 1e-7 : 1.0 where i in 0:S
    Wt(r, i) = Tr(r, i) * Al(r, i)
    Acc(r) +=! Wt(r, i)
    Dep(r) +=! Wt(r, i) * Tm(r, i)
    Col(r, c) +=! Wt(r, i) * sigmoid(Rgb(r, i, c))
    Col(r, c) = Col(r, c) + (1.0 - Acc(r)) * Bg(c)
}''', args=lambda g: [torch.linspace(0.8, -0.8, 50) + rn(g, 1013, 50, k=0.1), rn(g, 1013, 49, 3), (2 + 4 * ru(g, 1013, 49)).sort(1).values, of(3.0), ru(g, 3)], torch=_neus, tol=5e-5))


def _mpi(Mpi, Ds):
    a, c = torch.sigmoid(Mpi[:, :, 3]), torch.sigmoid(Mpi[:, :, :3])
    tr = torch.cumprod(torch.cat([torch.ones_like(a[:, :1]), (1 - a).flip(1)[:, :-1]], 1), 1).flip(1)
    w = tr * a
    return (w[:, :, None] * c).sum(1), torch.einsum("bpyx,p->byx", w, Ds)


op(dict(name="mpi_back_to_front_composite", text='''
def mpi_back_to_front_composite(float(B,P,4,H,W) Mpi, float(P) Ds) -> (Rgb, Dm) {
    A(b, p, y, x) = sigmoid(Mpi(b, p, 3, y, x))
    Tr(b, p, y, x) *=! q > p ? 1.0 - A(b, q, y, x) : 1.0 where p in 0:P
    Rgb(b, c, y, x) +=! Tr(b, p, y, x) * A(b, p, y, x) * sigmoid(Mpi(b, p, c, y, x)) where c in 0:3
    Dm(b, y, x) +=! Tr(b, p, y, x) * A(b, p, y, x) * Ds(p)
}''', args=lambda g: [rn(g, 2, 23, 4, 45, 67) - 0.5, torch.linspace(0.01, 1.0, 23)], torch=_mpi, tol=2e-5))


def _mip360(Sg, Ed):
    dl = Ed.diff(dim=1)
    od = F.softplus(Sg) * dl
    w = torch.exp(-F.pad(od.cumsum(1)[:, :-1], (1, 0))) * (1 - torch.exp(-od))
    m = 0.5 * (Ed[:, 1:] + Ed[:, :-1])
    pair = (w[:, :, None] * w[:, None] * (m[:, :, None] - m[:, None]).abs()).sum((1, 2))
    return (pair + (w.square() * dl).sum(1) / 3).mean(), w


op(dict(name="mipnerf360_distortion_loss", text='''
def mipnerf360_distortion_loss(float(R,S) Sg, float(R,S+1) Ed) -> (Loss, Wt) {
    Od(r, i) = log1p(exp(Sg(r, i))) * (Ed(r, i + 1) - Ed(r, i))
    Cu(r, i) +=! j < i ? Od(r, j) : 0.0 where i in 0:S
    Wt(r, i) = exp(-Cu(r, i)) * (1.0 - exp(-Od(r, i)))
    Md(r, i) = 0.5 * (Ed(r, i + 1) + Ed(r, i))
    Loss +=! Wt(r, i) * Wt(r, j) * abs(Md(r, i) - Md(r, j)) / R
    Loss += Wt(r, i) * Wt(r, i) * (Ed(r, i + 1) - Ed(r, i)) / (3.0 * R)
}''', args=lambda g: [rn(g, 521, 61), (4 * ru(g, 521, 62)).sort(1).values], torch=_mip360, tol=3e-5))


def _softras(Vt, Zf, Cf, Tg, sg, ga):
    H, W = Tg.shape[:2]
    p = torch.stack(torch.meshgrid((torch.arange(W) + 0.5) / W, (torch.arange(H) + 0.5) / H, indexing="xy"), -1)[:, :, None, None]
    u, q = Vt.roll(-1, 1) - Vt, p - Vt
    t = ((q * u).sum(-1) / (u.square().sum(-1) + 1e-8)).clamp(0, 1)
    d = (q - t[..., None] * u).square().sum(-1).amin(-1)
    cr = u[..., 0] * q[..., 1] - u[..., 1] * q[..., 0]
    pr = torch.sigmoid(torch.where((cr > 0).all(-1) | (cr < 0).all(-1), d, -d) / sg)
    w = pr * torch.exp((Zf - 1) / ga)
    img = (w @ Cf) / (w.sum(-1, keepdim=True) + torch.exp(-1 / ga))
    return F.mse_loss(img, Tg[..., :3]) + F.mse_loss(1 - (1 - pr).prod(-1), Tg[..., 3]), img


op(dict(name="softras_triangle_aggregate", text='''
def softras_triangle_aggregate(float(K,3,2) Vt, float(K) Zf, float(K,3) Cf, float(H,W,4) Tg, float sg, float ga) -> (Loss, Img) {
    Ed(k, e, a) = Vt(k, (e + 1) % 3, a) - Vt(k, e, a) where e in 0:3
    Tc(y, x, k, e) = clamp((((x + 0.5) / W - Vt(k, e, 0)) * ux + ((y + 0.5) / H - Vt(k, e, 1)) * uy) / (ux * ux + uy * uy + 1e-8), 0.0, 1.0)
        where ux = Ed(k, e, 0), uy = Ed(k, e, 1), y in 0:H, x in 0:W
    De(y, x, k, e) = gx * gx + gy * gy
        where gx = (x + 0.5) / W - Vt(k, e, 0) - Tc(y, x, k, e) * Ed(k, e, 0), gy = (y + 0.5) / H - Vt(k, e, 1) - Tc(y, x, k, e) * Ed(k, e, 1)
    Cr(y, x, k, e) = Ed(k, e, 0) * ((y + 0.5) / H - Vt(k, e, 1)) - Ed(k, e, 1) * ((x + 0.5) / W - Vt(k, e, 0)) where y in 0:H, x in 0:W
    D2(y, x, k) min=! De(y, x, k, e)
    Lo(y, x, k) min=! Cr(y, x, k, e)
    Hi(y, x, k) max=! Cr(y, x, k, e)
    Pr(y, x, k) = sigmoid((Lo(y, x, k) > 0.0 || Hi(y, x, k) < 0.0 ? D2(y, x, k) : -D2(y, x, k)) / sg)
    Ex(k) = exp((Zf(k) - 1.0) / ga)
    Nm(y, x) +=! Pr(y, x, k) * Ex(k)
    Img(y, x, c) +=! Pr(y, x, k) * Ex(k) * Cf(k, c)
    Img(y, x, c) = Img(y, x, c) / (Nm(y, x) + exp(-1.0 / ga))
    Out(y, x) *=! 1.0 - Pr(y, x, k)
    Loss +=! (Img(y, x, c) - Tg(y, x, c)) * (Img(y, x, c) - Tg(y, x, c)) / (3 * H * W)
    Loss += (1.0 - Out(y, x) - Tg(y, x, 3)) * (1.0 - Out(y, x) - Tg(y, x, 3)) / (H * W)
}''', args=lambda g: [ru(g, 31, 1, 2) + rn(g, 31, 3, 2, k=0.12), ru(g, 31), ru(g, 31, 3), ru(g, 41, 53, 4), of(1e-3), of(0.1)], torch=_softras, tol=1e-4))


def _ggx(Ps, Nr, Al, Ro, Me, Lp, In, Cam):
    v, l = F.normalize(Cam - Ps, dim=1)[:, None], Lp - Ps[:, None]
    n, d2 = Nr[:, None], l.square().sum(-1)
    l = l * torch.rsqrt(d2)[..., None]
    h = F.normalize(l + v, dim=-1)
    nl, nv, nh, vh = (n * l).sum(-1).clamp_min(0), (n * v).sum(-1).clamp_min(1e-4), (n * h).sum(-1), (v * h).sum(-1)
    a2, k = Ro[:, None] ** 4, (Ro[:, None] + 1) ** 2 / 8
    ndf = a2 / (math.pi * (nh * nh * (a2 - 1) + 1) ** 2)
    vis = nl / (nl * (1 - k) + k) * nv / (nv * (1 - k) + k)
    sp = (ndf * vis / (4 * nl * nv + 1e-4))[..., None]
    f0 = 0.04 * (1 - Me)[:, None] + Al * Me[:, None]
    fr = f0[:, None] + (1 - f0)[:, None] * ((1 - vh) ** 5)[..., None]
    df = (1 - fr) * ((1 - Me)[:, None] * Al / math.pi)[:, None]
    return ((df + sp * fr) * In * (nl / d2)[..., None]).sum(1)


op(dict(name="ggx_point_lights_shading", text='''
def ggx_point_lights_shading(float(N,3) Ps, float(N,3) Nr, float(N,3) Al, float(N) Ro, float(N) Me, float(L,3) Lp, float(L,3) In, float(3) Cam) -> (Y) {
    Vl(n) +=! (Cam(d) - Ps(n, d)) * (Cam(d) - Ps(n, d))
    Vw(n, d) = (Cam(d) - Ps(n, d)) * rsqrt(Vl(n))
    Nv(n) +=! Nr(n, d) * Vw(n, d)
    Nv(n) = max(Nv(n), 1e-4)
    D2(n, l) +=! (Lp(l, d) - Ps(n, d)) * (Lp(l, d) - Ps(n, d))
    Nl(n, l) +=! Nr(n, d) * (Lp(l, d) - Ps(n, d))
    Nl(n, l) = max(Nl(n, l) * rsqrt(D2(n, l)), 0.0)
    Hv(n, l, d) = (Lp(l, d) - Ps(n, d)) * rsqrt(D2(n, l)) + Vw(n, d)
    Hl(n, l) +=! Hv(n, l, d) * Hv(n, l, d)
    Nh(n, l) +=! Nr(n, d) * Hv(n, l, d) * rsqrt(Hl(n, l))
    Vh(n, l) +=! Vw(n, d) * Hv(n, l, d) * rsqrt(Hl(n, l))
    Gk(n, l) = u / (u * (1.0 - k) + k) * v / (v * (1.0 - k) + k) where u = Nl(n, l), v = Nv(n), k = (Ro(n) + 1.0) * (Ro(n) + 1.0) / 8.0
    Sp(n, l) = a / (3.141592653589793 * q * q) * Gk(n, l) / (4.0 * Nl(n, l) * Nv(n) + 1e-4)
        where a = Ro(n) * Ro(n) * Ro(n) * Ro(n), q = Nh(n, l) * Nh(n, l) * (a - 1.0) + 1.0
    F0(n, c) = 0.04 * (1.0 - Me(n)) + Al(n, c) * Me(n)
    Fr(n, l, c) = F0(n, c) + (1.0 - F0(n, c)) * w * w * w * w * w where w = 1.0 - Vh(n, l)
    Y(n, c) +=! ((1.0 - Fr(n, l, c)) * (1.0 - Me(n)) * Al(n, c) / 3.141592653589793 + Sp(n, l) * Fr(n, l, c)) * In(l, c) * Nl(n, l) / D2(n, l)
}''', args=lambda g: [rn(g, 4001, 3), F.normalize(rn(g, 4001, 3) + torch.tensor([0.0, 0.0, 2.0]), dim=1), ru(g, 4001, 3), ru(g, 4001, lo=0.3, hi=0.9), ru(g, 4001), rn(g, 5, 3) + torch.tensor([0.0, 0.0, 6.0]), ru(g, 5, 3, lo=10.0, hi=40.0), torch.tensor([0.0, 1.0, 7.0])],
   torch=_ggx, tol=1e-4))


def _bal(Cm, Pt, Ob, Ci, Pi):
    c, p = Cm[Ci], Pt[Pi]
    th = c[:, :3].norm(dim=1, keepdim=True)
    ax = c[:, :3] / th
    q = p * th.cos() + torch.linalg.cross(ax, p) * th.sin() + ax * (ax * p).sum(1, keepdim=True) * (1 - th.cos()) + c[:, 3:6]
    uv = -q[:, :2] / q[:, 2:]
    r2 = uv.square().sum(1)
    rs = (c[:, 6] * (1 + r2 * (c[:, 7] + r2 * c[:, 8])))[:, None] * uv - Ob
    n = rs.norm(dim=1)
    return F.huber_loss(n, torch.zeros_like(n), reduction="sum", delta=1.0), rs


op(dict(name="bal_reprojection_huber_f64", text='''
def bal_reprojection_huber_f64(double(C,9) Cm, double(P,3) Pt, double(E,2) Ob, int64(E) Ci, int64(E) Pi) -> (Loss, Rs) {
    Th(c) +=! Cm(c, d) * Cm(c, d) where d in 0:3
    Th(c) = sqrt(Th(c))
    Ax(c, d) = Cm(c, d) / Th(c) where d in 0:3
    Dt(e) +=! Ax(Ci(e), d) * Pt(Pi(e), d)
    Q(e, d) = Pt(Pi(e), d) * cos(Th(Ci(e))) + (Ax(Ci(e), (d + 1) % 3) * Pt(Pi(e), (d + 2) % 3) - Ax(Ci(e), (d + 2) % 3) * Pt(Pi(e), (d + 1) % 3)) * sin(Th(Ci(e)))
        + Ax(Ci(e), d) * Dt(e) * (1.0 - cos(Th(Ci(e)))) + Cm(Ci(e), d + 3) where d in 0:3
    Uv(e, d) = -Q(e, d) / Q(e, 2) where d in 0:2
    R2(e) +=! Uv(e, d) * Uv(e, d)
    Rs(e, d) = Cm(Ci(e), 6) * (1.0 + R2(e) * (Cm(Ci(e), 7) + R2(e) * Cm(Ci(e), 8))) * Uv(e, d) - Ob(e, d)
    Nm(e) +=! Rs(e, d) * Rs(e, d)
    Loss +=! Nm(e) <= 1.0 ? 0.5 * Nm(e) : sqrt(Nm(e)) - 0.5
}''', args=lambda g: [torch.cat([rn(g, 53, 3, dt=f64, k=0.4), rn(g, 53, 3, dt=f64, k=0.3) + torch.tensor([0.0, 0.0, -9.0], dtype=f64), ru(g, 53, 1, dt=f64, lo=400.0, hi=600.0), rn(g, 53, 2, dt=f64, k=0.05)], 1),
    rn(g, 4003, 3, dt=f64), rn(g, 20011, 2, dt=f64, k=60.0), ri(g, 0, 53, 20011), ri(g, 0, 4003, 20011)], torch=_bal, tol=1e-10))


# ---------------------------------------------------------------- audio, arrays of microphones, radio

def _ddsp(F0, Am, hop):
    T = int(hop) * (F0.shape[1] - 1)
    up = lambda a: F.interpolate(a, size=T + 1, mode="linear", align_corners=True)[..., :-1]
    f, k = up(F0[:, None]), torch.arange(1, Am.shape[1] + 1, dtype=f64)[:, None]
    a = up(Am).masked_fill(f * k >= 0.5, 0.0)
    return (a * torch.sin(2 * math.pi * k * f.cumsum(2))).sum(1)


op(dict(name="ddsp_harmonic_oscillator_f64", text='''
def ddsp_harmonic_oscillator_f64(double(B,M) F0, double(B,H,M) Am, int32 hop) -> (Y) {
    Fs(b, t) = F0(b, t / hop) + (F0(b, t / hop + 1) - F0(b, t / hop)) * double(t % hop) / hop where t in 0:hop*(M-1)
    Ph(b, t) +=! s <= t ? Fs(b, s) : 0.0 where t in 0:hop*(M-1)
    Y(b, t) +=! Fs(b, t) * (h + 1) < 0.5 ? (Am(b, h, t / hop) + (Am(b, h, t / hop + 1) - Am(b, h, t / hop)) * double(t % hop) / hop) * sin(6.283185307179586 * (h + 1) * Ph(b, t)) : 0.0
        where t in 0:hop*(M-1)
}''', args=lambda g: [ru(g, 3, 17, dt=f64, lo=0.008, hi=0.03), ru(g, 3, 40, 17, dt=f64), of(50, i32)], torch=_ddsp, tol=1e-9))


def _mimo(Hc, Yc, nv):
    h, y = torch.view_as_complex(Hc), torch.view_as_complex(Yc)
    g = h.mH @ h + nv * torch.eye(2)
    x = torch.linalg.solve(g, h.mH @ y.mT).mT
    return torch.view_as_real(x.contiguous()), 1 / (nv * torch.linalg.inv(g).diagonal(dim1=-2, dim2=-1).real) - 1


op(dict(name="mimo2_mmse_equaliser", text='''
def mimo2_mmse_equaliser(float(B,K,R,2,2) Hc, float(B,K,S,R,2) Yc, float nv) -> (Xc, Sn) {
    Gd(b, k, i) +=! Hc(b, k, r, i, c) * Hc(b, k, r, i, c)
    Gd(b, k, i) = Gd(b, k, i) + nv
    Go(b, k, c) +=! Hc(b, k, r, 0, 0) * Hc(b, k, r, 1, c) + (c == 0 ? 1.0 : -1.0) * Hc(b, k, r, 0, 1) * Hc(b, k, r, 1, 1 - c) where c in 0:2
    De(b, k) = Gd(b, k, 0) * Gd(b, k, 1) - Go(b, k, 0) * Go(b, k, 0) - Go(b, k, 1) * Go(b, k, 1)
    Z(b, k, s, i, c) +=! Hc(b, k, r, i, 0) * Yc(b, k, s, r, c) + (c == 0 ? 1.0 : -1.0) * Hc(b, k, r, i, 1) * Yc(b, k, s, r, 1 - c) where c in 0:2
    Xc(b, k, s, i, c) = (Gd(b, k, 1 - i) * Z(b, k, s, i, c) - Go(b, k, 0) * Z(b, k, s, 1 - i, c) - (i == c ? -1.0 : 1.0) * Go(b, k, 1) * Z(b, k, s, 1 - i, 1 - c)) / De(b, k)
        where i in 0:2, c in 0:2
    Sn(b, k, i) = De(b, k) / (nv * Gd(b, k, 1 - i)) - 1.0 where i in 0:2
}''', args=lambda g: [rn(g, 2, 601, 4, 2, 2, k=0.7), rn(g, 2, 601, 13, 4, 2), of(0.1)], torch=_mimo, tol=1e-4))


def _stftloss(X, Y, Wn):
    def mag(a):
        s = torch.stft(a, len(Wn), hop_length=64, window=Wn, center=False, return_complex=True)
        return (s.real.square() + s.imag.square()).clamp_min(1e-7).sqrt()
    mx, my = mag(X), mag(Y)
    return torch.linalg.norm(my - mx) / torch.linalg.norm(my), F.l1_loss(my.log(), mx.log())


op(dict(name="stft_convergence_log_magnitude", text='''
def stft_magnitude(float(B,N) X, float(W) Wn) -> (Mg) {
    Ct(f, n) = Wn(n) * cos(6.283185307179586 * (f * n % W) / W) where f in 0:W/2+1
    St(f, n) = Wn(n) * sin(6.283185307179586 * (f * n % W) / W) where f in 0:W/2+1
    Re(b, f, t) +=! X(b, 64*t + n) * Ct(f, n)
    Im(b, f, t) +=! X(b, 64*t + n) * St(f, n)
    Mg(b, f, t) = sqrt(max(Re(b, f, t) * Re(b, f, t) + Im(b, f, t) * Im(b, f, t), 1e-7))
}
def stft_convergence_log_magnitude(float(B,N) X, float(B,N) Y, float(W) Wn) -> (Sc, Lm) {
    Mx = stft_magnitude(X, Wn)
    My = stft_magnitude(Y, Wn)
    Nu +=! (My(b, f, t) - Mx(b, f, t)) * (My(b, f, t) - Mx(b, f, t))
    De +=! My(b, f, t) * My(b, f, t)
    Sc = sqrt(Nu) / sqrt(De)
    Lm +=! abs(log(My(b, f, t)) - log(Mx(b, f, t))) / (B * (W / 2 + 1) * ((N - W) / 64 + 1))
}''', args=lambda g: [rn(g, 3, 4001), rn(g, 3, 4001), torch.hann_window(240)], torch=_stftloss, tol=1e-4))


def _qam(Rx, Hc, Nv, Cs, Lb):
    c = torch.view_as_complex
    d = (c(Rx)[:, None] - c(Hc)[:, None] * c(Cs)).abs().square() / Nv[:, None]
    return torch.stack([d[:, b == 1].amin(1) - d[:, b == 0].amin(1) for b in Lb.unbind(1)], 1)


def _qam_args(g):
    m = torch.arange(64)
    i, q = m // 8, m % 8
    gray = torch.stack([i ^ (i >> 1), q ^ (q >> 1)], 1)[..., None]
    bits = (gray >> torch.tensor([2, 1, 0]) & 1).flatten(1).to(u8)
    return [rn(g, 5003, 2), rn(g, 5003, 2, k=0.7), ru(g, 5003, lo=0.01, hi=0.2), (2 * torch.stack([i, q], 1) - 7) / 42 ** 0.5, bits]


op(dict(name="qam64_maxlog_llrs", text='''
def qam64_maxlog_llrs(float(N,2) Rx, float(N,2) Hc, float(N) Nv, float(M,2) Cs, uint8(M,Q) Lb) -> (Llr) {
    Er(n, m, c) = Rx(n, c) - Hc(n, 0) * Cs(m, c) + (c == 0 ? Hc(n, 1) * Cs(m, 1) : -Hc(n, 1) * Cs(m, 0))
    Di(n, m) +=! Er(n, m, c) * Er(n, m, c)
    Di(n, m) = Di(n, m) / Nv(n)
    D0(n, q) min=! Lb(m, q) == 0 ? Di(n, m) : infinity()
    D1(n, q) min=! Lb(m, q) == 1 ? Di(n, m) : infinity()
    Llr(n, q) = D1(n, q) - D0(n, q)
}''', args=_qam_args, torch=_qam, tol=3e-5))


def _gccphat(Xr, Xi, Pa, Pb, lag):
    X, Fb, L = torch.complex(Xr, Xi), Xr.shape[1], int(lag)
    c = (X[Pa] * X[Pb].conj()).sum(2)
    c = c * torch.rsqrt(c.real.square() + c.imag.square() + 1e-12)
    a = (torch.arange(Fb)[:, None] * torch.arange(-L, L + 1)) % (2 * Fb - 2) * (math.pi / (Fb - 1))
    s = (c.real @ a.cos() - c.imag @ a.sin()) / Fb
    return s, s.amax(1)


op(dict(name="gcc_phat_lag_scores", text='''
def gcc_phat_lag_scores(float(M,F,T) Xr, float(M,F,T) Xi, int64(P) Pa, int64(P) Pb, int32 lag) -> (Sc, Pk) {
    Cr(p, f) +=! Xr(Pa(p), f, t) * Xr(Pb(p), f, t) + Xi(Pa(p), f, t) * Xi(Pb(p), f, t)
    Ci(p, f) +=! Xi(Pa(p), f, t) * Xr(Pb(p), f, t) - Xr(Pa(p), f, t) * Xi(Pb(p), f, t)
    Nm(p, f) = rsqrt(Cr(p, f) * Cr(p, f) + Ci(p, f) * Ci(p, f) + 1e-12)
    Ct(f, l) = cos(6.283185307179586 * (f * (l - lag) % (2*F - 2)) / (2*F - 2)) where f in 0:F, l in 0:2*lag+1
    St(f, l) = sin(6.283185307179586 * (f * (l - lag) % (2*F - 2)) / (2*F - 2)) where f in 0:F, l in 0:2*lag+1
    Sc(p, l) +=! Nm(p, f) * (Cr(p, f) * Ct(f, l) - Ci(p, f) * St(f, l)) / F
    Pk(p) max=! Sc(p, l)
}''', args=lambda g: [rn(g, 7, 129, 61), rn(g, 7, 129, 61), *torch.combinations(torch.arange(7)).T.contiguous(), of(20, i32)], torch=_gccphat, tol=5e-5))


def _wpe(Xr, Xi, delay, taps):
    d, K = int(delay), int(taps)
    X = torch.complex(Xr, Xi)
    Fb, T, C = X.shape
    iv = 1 / X.abs().square().mean(2).clamp_min(1e-6)
    Z = torch.cat([X.new_zeros(Fb, d + K - 1, C), X], 1).unfold(1, K, 1)[:, :T].flip(-1)
    Yk = Z.permute(0, 3, 2, 1).reshape(Fb, K * C, T)
    Yw = Yk * iv[:, None]
    R, P = (Yw @ Yk.mH).view(Fb, K, C, K, C), (Yw @ X.conj()).view(Fb, K, C, C)
    return R.real, R.imag, P.real, P.imag


op(dict(name="wpe_delayed_covariances", text='''
def wpe_delayed_covariances(float(F,T,C) Xr, float(F,T,C) Xi, int32 delay, int32 taps) -> (Rr, Ri, Pr, Pi) {
    Lm(f, t) +=! (Xr(f, t, c) * Xr(f, t, c) + Xi(f, t, c) * Xi(f, t, c)) / C
    Iv(f, t) = 1.0 / max(Lm(f, t), 1e-6)
    Rr(f, k, c, l, e) +=! t >= delay + k && t >= delay + l ? (Xr(f, t - delay - k, c) * Xr(f, t - delay - l, e) + Xi(f, t - delay - k, c) * Xi(f, t - delay - l, e)) * Iv(f, t) : 0.0
        where t in 0:T, k in 0:taps, l in 0:taps
    Ri(f, k, c, l, e) +=! t >= delay + k && t >= delay + l ? (Xi(f, t - delay - k, c) * Xr(f, t - delay - l, e) - Xr(f, t - delay - k, c) * Xi(f, t - delay - l, e)) * Iv(f, t) : 0.0
        where t in 0:T, k in 0:taps, l in 0:taps
    Pr(f, k, c, e) +=! t >= delay + k ? (Xr(f, t - delay - k, c) * Xr(f, t, e) + Xi(f, t - delay - k, c) * Xi(f, t, e)) * Iv(f, t) : 0.0 where t in 0:T, k in 0:taps
    Pi(f, k, c, e) +=! t >= delay + k ? (Xi(f, t - delay - k, c) * Xr(f, t, e) - Xr(f, t - delay - k, c) * Xi(f, t, e)) * Iv(f, t) : 0.0 where t in 0:T, k in 0:taps
}''', args=lambda g: [rn(g, 65, 121, 3), rn(g, 65, 121, 3), of(2, i32), of(5, i32)], torch=_wpe, tol=5e-5))
