# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Molecules, statistics, finance, sequences, codes, linear algebra, chains, tables and maps; as in ``science``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.imaging import bf16, f64, i8, i16, i32, i64, ri, rn, ru, scalar, u8
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)


# ---------------------------------------------------------------- molecules and tensor networks
def t_ao2mo(G, Co, Cv):
    t = torch.tensordot(Co, G, ([0], [0]))                  # i q r s
    t = torch.tensordot(t, Cv, ([1], [0]))                  # i r s a
    t = torch.tensordot(t, Co, ([1], [0]))                  # i s a j
    return torch.tensordot(t, Cv, ([1], [0]))               # i a j b
op(dict(name="ao2mo_ovov", text='''
def ao2mo_ovov(double(N,N,N,N) G, double(N,O) Co, double(N,V) Cv) -> (Y) {
    Y(i, a, j, b) +=! G(p, q, r, s) * Co(p, i) * Cv(q, a) * Co(r, j) * Cv(s, b)
}''', args=lambda g: [rn(g, 22, 22, 22, 22, dt=f64), rn(g, 22, 5, dt=f64), rn(g, 22, 17, dt=f64)], torch=t_ao2mo, tol=1e-11))

def t_df(B, C):
    X = B @ C
    Xm = X.transpose(0, 1).flatten(1)
    return torch.tensordot((X * C).sum((1, 2)), B, 1), Xm @ Xm.T
op(dict(name="density_fitted_jk", text='''
def density_fitted_jk(double(P,N,N) B, double(N,O) C) -> (J, K) {
    X(p, m, i) +=! B(p, m, n) * C(n, i)
    G(p)       +=! X(p, m, i) * C(m, i)
    J(m, n)    +=! G(p) * B(p, m, n)
    K(m, n)    +=! X(p, m, i) * X(p, n, i)
}''', args=lambda g: [rn(g, 83, 41, 41, dt=f64), rn(g, 41, 9, dt=f64)], torch=t_df, tol=1e-11))

def t_rpa(B, Eo, Ev, Om):
    e = Ev - Eo[:, None]
    d = -4 * e / (e * e + Om.square()[:, None, None])
    b = B.flatten(1)
    return (b * d.flatten(1)[:, None]) @ b.T
op(dict(name="rpa_polarisability", text='''
def rpa_polarisability(double(P,O,V) B, double(O) Eo, double(V) Ev, double(W) Om) -> (Pi) {
    D(w, i, a) = -4.0 * e / (e * e + Om(w) * Om(w)) where e = Ev(a) - Eo(i)
    Pi(w, p, q) +=! B(p, i, a) * D(w, i, a) * B(q, i, a)
}''', args=lambda g: [rn(g, 51, 7, 23, dt=f64), -0.5 - ru(g, 7, dt=f64), 0.3 + ru(g, 23, dt=f64), 2 * ru(g, 6, dt=f64)], torch=t_rpa, tol=1e-11))

def t_heff(L, X, Wl, Wr, R):
    t = torch.tensordot(L, X, ([0], [0]))                   # w c s t b
    t = torch.tensordot(t, Wl, ([0, 2], [0, 2]))            # c t b v p
    t = torch.tensordot(t, Wr, ([3, 1], [0, 2]))            # c b p u q
    return torch.tensordot(t, R, ([1, 3], [0, 1]))          # c p q e
op(dict(name="dmrg_two_site_apply", text='''
def dmrg_two_site_apply(double(A,W,A) L, double(A,D,D,B) X, double(W,W,D,D) Wl, double(W,W,D,D) Wr, double(B,W,B) R) -> (Y) {
    Y(c, p, q, e) +=! L(a, w, c) * X(a, s, t, b) * Wl(w, v, s, p) * Wr(v, u, t, q) * R(b, u, e)
}''', args=lambda g: [rn(g, 32, 5, 32, dt=f64), rn(g, 32, 2, 2, 28, dt=f64), rn(g, 5, 5, 2, 2, dt=f64), rn(g, 5, 5, 2, 2, dt=f64), rn(g, 28, 5, 28, dt=f64)],
   torch=t_heff, tol=1e-11))

def t_trg(S1, S2, S3, S4):
    p = torch.tensordot(S1, S2, ([1], [0]))                 # a i c j
    q = torch.tensordot(S3, S4, ([1], [0]))                 # c k a l
    t = torch.tensordot(p, q, ([0, 2], [2, 0]))
    m = t.abs().amax()
    return t / m, m.log()
op(dict(name="trg_plaquette", text='''
def trg_plaquette(float(C,C,D) S1, float(C,C,D) S2, float(C,C,D) S3, float(C,C,D) S4) -> (T, Lm) {
    T(i, j, k, l) +=! S1(a, b, i) * S2(b, c, j) * S3(c, d, k) * S4(d, a, l)
    M max=! abs(T(i, j, k, l))
    T(i, j, k, l) = T(i, j, k, l) / M
    Lm = log(M)
}''', args=lambda g: [rn(g, 10, 10, 11), rn(g, 10, 10, 11), rn(g, 10, 10, 11), rn(g, 10, 10, 11)], torch=t_trg, tol=2e-5))

def t_heisenberg(Psi, Pow):
    s, k = torch.arange(Psi.shape[0])[:, None], torch.arange(Pow.shape[0])
    b = s >> k & 1
    apart = b != b.roll(-1, 1)
    flip = s ^ (1 << k | 1 << (k + 1) % Pow.shape[0])
    return torch.where(apart, 0.5 * Psi[flip] - 0.25 * Psi[:, None], 0.25 * Psi[:, None]).sum(1)
op(dict(name="heisenberg_ring_apply", text='''
def heisenberg_ring_apply(double(S) Psi, int32(K) Pow) -> (Y) {
    Flip(s, k) = s / Pow(k) % 2 == s / Pow((k + 1) % K) % 2 ? s
               : (s / Pow(k) % 2 == 1 ? s - Pow(k) + Pow((k + 1) % K) : s + Pow(k) - Pow((k + 1) % K)) where s in 0:S, k in 0:K
    Y(s) +=! Flip(s, k) == s ? 0.25 * Psi(s) : 0.5 * Psi(Flip(s, k)) - 0.25 * Psi(s)
}''', args=lambda g: [rn(g, 4096, dt=f64), 2 ** torch.arange(12, dtype=i32)], torch=t_heisenberg, tol=1e-12))

# ---------------------------------------------------------------- statistics
def t_boot(X, Idx):
    t = X[Idx].mean(1)
    return t, t.std(0)
op(dict(name="bootstrap_mean_se", text='''
def bootstrap_mean_se(double(R,D) X, int32(B,N) Idx) -> (Theta, Se) {
    Theta(b, d) +=! X(Idx(b, i), d)
    Theta(b, d)   = Theta(b, d) / N
    Mu(d)       +=! Theta(b, d) / B
    Se(d)       +=! (Theta(b, d) - Mu(d)) * (Theta(b, d) - Mu(d))
    Se(d)         = sqrt(Se(d) / (B - 1))
}''', args=lambda g: [rn(g, 400, 3, dt=f64), ri(g, 0, 400, 300, 400, dt=i32)], torch=t_boot, tol=1e-10))

def t_gp(X, Z, Ell, Ki, Yv):
    s = math.sqrt(5) * torch.cdist(Z / Ell, X / Ell, compute_mode="donot_use_mm_for_euclid_dist")
    k = (1 + s + s * s / 3) * torch.exp(-s)
    return k @ (Ki @ Yv), 1 - ((k @ Ki) * k).sum(1)
op(dict(name="gp_matern52_posterior", text='''
def gp_matern52_posterior(double(N,D) X, double(M,D) Z, double(D) Ell, double(N,N) Ki, double(N) Yv) -> (Mean, Var) {
    R(m, n) +=! (Z(m, d) - X(n, d)) / Ell(d) * ((Z(m, d) - X(n, d)) / Ell(d))
    S(m, n)   = sqrt(5.0 * R(m, n))
    K(m, n)   = (1.0 + S(m, n) + S(m, n) * S(m, n) / 3.0) * exp(-S(m, n))
    Al(n)   +=! Ki(n, k) * Yv(k)
    Mean(m) +=! K(m, n) * Al(n)
    V(m, n) +=! K(m, k) * Ki(k, n)
    Var(m)  +=! V(m, n) * K(m, n)
    Var(m)    = 1.0 - Var(m)
}''', args=lambda g: [rn(g, 160, 4, dt=f64), rn(g, 223, 4, dt=f64), 0.5 + ru(g, 4, dt=f64), (lambda a: a @ a.T / 160)(rn(g, 160, 160, dt=f64)), rn(g, 160, dt=f64)],
   torch=t_gp, tol=1e-10))

def t_kendall(X):
    s = (X[:, None] - X).sign().flatten(0, 1)
    return s.T @ s / (X.shape[0] * (X.shape[0] - 1))
op(dict(name="kendall_tau_matrix", text='''
def kendall_tau_matrix(float(N,D) X) -> (T) {
    T(a, b) +=! sign(X(i, a) - X(j, a)) * sign(X(i, b) - X(j, b))
    T(a, b)   = T(a, b) / (N * (N - 1))
}''', args=lambda g: [rn(g, 180, 13)], torch=t_kendall, tol=1e-6))

def t_dcor(X, Y):
    def centred(Z):
        d = torch.cdist(Z, Z, compute_mode="donot_use_mm_for_euclid_dist")
        m = d.mean(1)
        return d - m[:, None] - m + m.mean()
    A, B = centred(X), centred(Y)
    return ((A * B).sum() / ((A * A).sum() * (B * B).sum()).sqrt()).sqrt()
op(dict(name="distance_correlation", text='''
def centred(double(N,P) X) -> (A) {
    D(i, j) +=! (X(i, p) - X(j, p)) * (X(i, p) - X(j, p))
    D(i, j)   = sqrt(D(i, j))
    M(i)    +=! D(i, j) / N
    G       +=! M(i) / N
    A(i, j)   = D(i, j) - M(i) - M(j) + G
}
def distance_correlation(double(N,P) X, double(N,Q) Y) -> (R) {
    A = centred(X)
    B = centred(Y)
    C  +=! A(i, j) * B(i, j)
    Va +=! A(i, j) * A(i, j)
    Vb +=! B(i, j) * B(i, j)
    R = sqrt(C / sqrt(Va * Vb))
}''', args=lambda g: (lambda x: [x, x[:, :3] * x[:, 1:4] + 0.3 * rn(g, 311, 3, dt=f64)])(rn(g, 311, 5, dt=f64)), torch=t_dcor, tol=1e-9))

# ---------------------------------------------------------------- finance
def t_nss(Cf, Tm, Par):
    u, v = Tm / Par[4], Tm / Par[5]
    g, h = (1 - torch.exp(-u)) / u, (1 - torch.exp(-v)) / v
    y = Par[0] + Par[1] * g + Par[2] * (g - torch.exp(-u)) + Par[3] * (h - torch.exp(-v))
    pv = Cf * torch.exp(-Tm * y)
    p = pv.sum(1)
    return p, (pv * Tm).sum(1) / p
op(dict(name="svensson_bond_duration", text='''
def svensson_bond_duration(double(N,K) Cf, double(N,K) Tm, double(6) Par) -> (Price, Dur) {
    Yl(n, k) = Par(0) + Par(1) * g + Par(2) * (g - e) + Par(3) * (h - f)
        where u = Tm(n, k) / Par(4), v = Tm(n, k) / Par(5), e = exp(-u), f = exp(-v), g = (1.0 - e) / u, h = (1.0 - f) / v
    Pv(n, k)  = Cf(n, k) * exp(-Tm(n, k) * Yl(n, k))
    Price(n) +=! Pv(n, k)
    Dur(n)   +=! Pv(n, k) * Tm(n, k)
    Dur(n)     = Dur(n) / Price(n)
}''', args=lambda g: [5 * ru(g, 801, 40, dt=f64), 0.05 + 30 * ru(g, 801, 40, dt=f64), torch.tensor([0.03, -0.02, 0.01, 0.015, 1.7, 6.3], dtype=f64)],
   torch=t_nss, tol=1e-10))

def t_american(V, S, K, u, p, disc):
    for _ in range(4):
        n = V.shape[1] - 1
        e = 2 * torch.arange(n, dtype=f64) - (n - 1)
        V = torch.maximum(K[:, None] - S[:, None] * u ** e, disc * (p * V[:, 1:] + (1 - p) * V[:, :-1]))
    return V
def _american_args(g):
    S, K = 80 + 40 * ru(g, 60, dt=f64), 80 + 40 * ru(g, 60, dt=f64)
    V = (K[:, None] - S[:, None] * 1.01 ** (2 * torch.arange(201, dtype=f64) - 200)).clamp(min=0)
    return [V, S, K, scalar(1.01), scalar(0.51), scalar(0.9999)]
op(dict(name="american_put_four_levels", text='''
def level(double(A,N) V, double(A) S, double(A) K, double u, double p, double disc) -> (W) {
    W(a, i) = max(K(a) - S(a) * pow(u, 2*i - N + 2), disc * (p * V(a, i + 1) + (1.0 - p) * V(a, i)))
}
def american_put_four_levels(double(A,N) V, double(A) S, double(A) K, double u, double p, double disc) -> (V4) {
    V1 = level(V, S, K, u, p, disc)
    V2 = level(V1, S, K, u, p, disc)
    V3 = level(V2, S, K, u, p, disc)
    V4 = level(V3, S, K, u, p, disc)
}''', args=_american_args, torch=t_american, tol=1e-10))

# ---------------------------------------------------------------- sequences
def t_band(Hp, Qc, Wc, Sub):
    k = 3 * torch.arange(Hp.shape[1], dtype=i32)
    up = F.pad(Hp[:, 1:] - 3, (0, 1), value=-1000000)
    t = torch.maximum(Hp + Sub[Qc.long()[:, None], Wc.long()], up)
    return (t + k).cummax(1).values - k
op(dict(name="banded_needleman_row", text='''
def banded_needleman_row(int32(B,K) Hp, uint8(B) Qc, uint8(B,K) Wc, int8(24,24) Sub) -> (H) {
    T(b, k)   = max(Hp(b, k) + Sub(Qc(b), Wc(b, k)), k < K - 1 ? Hp(b, k + 1) - 3 : -1000000) where k in 0:K
    H(b, k) max=! q <= k ? T(b, q) - 3 * (k - q) : -1000000000 where k in 0:K
}''', args=lambda g: [ri(g, -100, 400, 2000, 33, dt=i32), ri(g, 0, 24, 2000, dt=u8), ri(g, 0, 24, 2000, 33, dt=u8), ri(g, -4, 12, 24, 24, dt=i8)],
   torch=t_band, tol=0.0))

def t_minimiser(R, Pow):
    h = ((R.long().unfold(1, 8, 1) * Pow).sum(2) * 2654435761 + 12345) % 4294967296
    w = h.unfold(1, 6, 1)
    m = w.amin(2)
    j = torch.where(w == m[..., None], torch.arange(6), 6).amin(2)
    return m, (j + torch.arange(w.shape[1])).int()
op(dict(name="kmer_minimisers", text='''
def kmer_minimisers(uint8(N,L) R, int64(8) Pow) -> (Mn, Ps) {
    Km(n, i) +=! int64(R(n, i + j)) * Pow(j)
    Hs(n, i)   = (Km(n, i) * 2654435761 + 12345) % 4294967296
    Mn(n, i) min=! Hs(n, i + j) where j in 0:6
    Ps(n, i) min=! Hs(n, i + j) == Mn(n, i) ? i + j : 2147483647 where j in 0:6
}''', args=lambda g: [ri(g, 0, 4, 200, 150, dt=u8), 4 ** torch.arange(7, -1, -1)], torch=t_minimiser, tol=0.0))

def t_prune(P1, P2, L1, L2, Sc1, Sc2):
    l = torch.einsum("cxy,scy->scx", P1, L1) * torch.einsum("cxy,scy->scx", P2, L2)
    m = l.amax((1, 2))
    return l / m[:, None, None], m.log() + Sc1 + Sc2
op(dict(name="felsenstein_prune_node", text='''
def felsenstein_prune_node(float(C,4,4) P1, float(C,4,4) P2, float(S,C,4) L1, float(S,C,4) L2, float(S) Sc1, float(S) Sc2) -> (L, Sc) {
    A(s, c, x) +=! P1(c, x, y) * L1(s, c, y)
    B(s, c, x) +=! P2(c, x, y) * L2(s, c, y)
    L(s, c, x)   = A(s, c, x) * B(s, c, x)
    M(s)      max=! L(s, c, x)
    L(s, c, x)   = L(s, c, x) / M(s)
    Sc(s)        = log(M(s)) + Sc1(s) + Sc2(s)
}''', args=lambda g: [torch.softmax(2 * rn(g, 4, 4, 4), 2), torch.softmax(2 * rn(g, 4, 4, 4), 2), ru(g, 4, 4, 5001).permute(2, 0, 1), ru(g, 5001, 4, 4), -ru(g, 5001), -ru(g, 5001)],
   torch=t_prune, tol=2e-5))

# ---------------------------------------------------------------- dynamic programming, codes, rings
def t_heldkarp(D, C, Pow):
    n = Pow.shape[0]
    s = torch.arange(D.shape[0])[:, None]
    has = s // Pow % 2 == 1
    old = D[(s - Pow).clamp(min=0)] + C.T                    # s, to, from
    ok = has[:, :, None] & has[:, None] & ~torch.eye(n, dtype=torch.bool)
    return torch.where(ok, old, math.inf).amin(2)
op(dict(name="held_karp_layer", text='''
def held_karp_layer(float(S,N) D, float(N,N) C, int32(N) Pow) -> (Dn) {
    Dn(s, j) min=! (s / Pow(j) % 2 == 1 && s / Pow(i) % 2 == 1 && i != j) ? D(s - Pow(j), i) + C(i, j) : infinity() where s in 0:S
}''', args=lambda g: [ru(g, 2048, 11), ru(g, 11, 11), 2 ** torch.arange(11, dtype=i32)], torch=t_heldkarp, tol=1e-6))

def t_minsum(X):
    v, i = X.abs().topk(2, 2, largest=False)
    mag = torch.where(torch.arange(X.shape[2]) == i[..., :1], v[..., 1:], v[..., :1])
    neg = (X < 0).int()
    odd = (neg.sum(2, keepdim=True) - neg) % 2 == 1
    return torch.where(odd, -mag, mag) * 0.75
op(dict(name="ldpc_min_sum_check_bf16", text='''
def ldpc_min_sum_check_bf16(bfloat16(B,M,K) X) -> (bfloat16(B,M,K) Y) {
    Mg(b, m, k) min=! j != k ? abs(X(b, m, j)) : infinity() where k in 0:K
    Sg(b, m, k)  *=! j != k && X(b, m, j) < 0.0 ? -1.0 : 1.0 where k in 0:K
    Y(b, m, k)     = 0.75 * Sg(b, m, k) * Mg(b, m, k)
}''', args=lambda g: [rn(g, 4, 1024, 7, dt=bf16)], torch=t_minsum, tol=1e-2))

def t_negacyclic(A, D):
    i = torch.arange(A.shape[1])
    k = i[:, None]
    M = D.double()[:, (k - i) % A.shape[1]] * torch.where(i <= k, 1.0, -1.0).double()
    return torch.bmm(M, A.double()[:, :, None])[:, :, 0].long() % 3329
op(dict(name="negacyclic_polymul_3329", text='''
def negacyclic_polymul_3329(int32(B,N) A, int32(B,N) D) -> (C) {
    C(b, k) +=! i <= k ? int64(A(b, i)) * D(b, k - i) : -(int64(A(b, i)) * D(b, k - i + N)) where k in 0:N
    C(b, k)   = C(b, k) % 3329
}''', args=lambda g: [ri(g, 0, 3329, 24, 256, dt=i32), ri(g, 0, 3329, 24, 256, dt=i32)], torch=t_negacyclic, tol=0.0))

def t_zeta(Fn):
    for d in range(5):
        Fn = Fn.cumsum(d)
    return Fn
op(dict(name="subset_sums_rank6", text='''
def subset_sums_rank6(int64(2,2,2,2,2,M) Fn) -> (Z) {
    Z(a, b, c, d, e, m) +=! (i <= a && j <= b && k <= c && l <= d && n <= e) ? Fn(i, j, k, l, n, m) : 0
        where a in 0:2, b in 0:2, c in 0:2, d in 0:2, e in 0:2
}''', args=lambda g: [ri(g, -1000, 1000, 2, 2, 2, 2, 2, 701)], torch=t_zeta, tol=0.0))

def t_luhn(D):
    d = D.int()
    e = 2 * d[:, ::2]
    return (torch.where(e > 9, e - 9, e).sum(1) + d[:, 1::2].sum(1)) % 10 == 0
op(dict(name="luhn_valid", text='''
def luhn_valid(int8(N,16) D) -> (V) {
    S(n) +=! i % 2 == 0 ? (2 * d > 9 ? 2 * d - 9 : 2 * d) : d where d = int32(D(n, i))
    V(n)   = S(n) % 10 == 0
}''', args=lambda g: [ri(g, 0, 10, 3000, 16, dt=i8)], torch=t_luhn, tol=0.0))

# ---------------------------------------------------------------- linear algebra
def t_pcg(X, R, P, Dg):
    p = F.pad(P, (1, 1, 1, 1))
    q = Dg * P - p[:-2, 1:-1] - p[2:, 1:-1] - p[1:-1, :-2] - p[1:-1, 2:]
    rz = (R * R / Dg).sum()
    a = rz / (P * q).sum()
    r = R - a * q
    z = r / Dg
    return X + a * P, r, z + (r * z).sum() / rz * P
op(dict(name="pcg_five_point_iteration", text='''
def pcg_five_point_iteration(double(H,W) X, double(H,W) R, double(H,W) P, double(H,W) Dg) -> (Xn, Rn, Pn) {
    Q(i, j) = Dg(i, j) * P(i, j) - (i > 0 ? P(i - 1, j) : 0.0) - (i < H - 1 ? P(i + 1, j) : 0.0)
            - (j > 0 ? P(i, j - 1) : 0.0) - (j < W - 1 ? P(i, j + 1) : 0.0) where i in 0:H, j in 0:W
    Rz  +=! R(i, j) * R(i, j) / Dg(i, j)
    Pq  +=! P(i, j) * Q(i, j)
    Xn(i, j) = X(i, j) + Rz / Pq * P(i, j)
    Rn(i, j) = R(i, j) - Rz / Pq * Q(i, j)
    Rzn +=! Rn(i, j) * Rn(i, j) / Dg(i, j)
    Pn(i, j) = Rn(i, j) / Dg(i, j) + Rzn / Rz * P(i, j)
}''', args=lambda g: [rn(g, 200, 263, dt=f64), rn(g, 200, 263, dt=f64), rn(g, 200, 263, dt=f64), 4.1 + ru(g, 200, 263, dt=f64)], torch=t_pcg, tol=1e-10))

def t_wy(V, T, A):
    v, a = V.transpose(0, 1), A.transpose(0, 1)
    return torch.baddbmm(a, v, T.triu() @ (v.mT @ a), alpha=-1).transpose(0, 1)
op(dict(name="compact_wy_reflector", text='''
def compact_wy_reflector(float(M,B,K) V, float(B,K,K) T, float(M,B,N) A) -> (Y) {
    U(b, k, n) +=! V(m, b, k) * A(m, b, n)
    Z(b, k, n) +=! l >= k ? T(b, k, l) * U(b, l, n) : 0.0
    Y(m, b, n)   = A(m, b, n)
    Y(m, b, n)  += -V(m, b, k) * Z(b, k, n)
}''', args=lambda g: [0.1 * rn(g, 121, 10, 8), rn(g, 10, 8, 8), rn(g, 121, 10, 90)], torch=t_wy, tol=1e-5))

# ---------------------------------------------------------------- queues and chains
def t_erlang(A, Like):
    K = Like.shape[0]
    a = A[:, None]
    k = torch.arange(K + 1, dtype=f64)
    T = torch.exp(k * a.log() - torch.lgamma(k + 1))
    m = k[1:]
    u = T[:, 1:] * m / (m - a)
    busy = a >= m
    pw = torch.where(busy, 1.0, u / (T.cumsum(1)[:, :K] + u))
    return pw, torch.where(busy, math.inf, pw / (m - a))
op(dict(name="erlang_c_waiting", text='''
def erlang_c_waiting(double(N) A, int32(K) Like) -> (Pw, Wq) {
    T(n, k)  = exp(k * log(A(n)) - lgamma(k + 1.0)) where k in 0:K+1
    S(n, c) +=! k <= c ? T(n, k) : 0.0 where c in 0:K
    Pw(n, c) = A(n) < c + 1 ? u / (S(n, c) + u) : 1.0 where c in 0:K, u = T(n, c + 1) * (c + 1) / (c + 1 - A(n))
    Wq(n, c) = A(n) < c + 1 ? Pw(n, c) / (c + 1 - A(n)) : infinity()
}''', args=lambda g: [0.2 + 18 * ru(g, 301, dt=f64), torch.zeros(40, dtype=i32)], torch=t_erlang, tol=1e-9))

def t_ctmc(X, P, qt):
    y, w = X, 1.0
    for k in range(1, 6):
        X, w = X @ P, w * qt / k
        y = y + w * X
    return torch.exp(-qt) * y
op(dict(name="uniformised_markov_five", text='''
def hop(double(B,S) X, double(S,S) P) -> (Y) {
    Y(b, j) +=! X(b, i) * P(i, j)
}
def uniformised_markov_five(double(B,S) X, double(S,S) P, double qt) -> (Y) {
    X1 = hop(X, P)
    X2 = hop(X1, P)
    X3 = hop(X2, P)
    X4 = hop(X3, P)
    X5 = hop(X4, P)
    Y(b, j) = exp(-qt) * (X(b, j) + qt * (X1(b, j) + qt / 2.0 * (X2(b, j) + qt / 3.0 * (X3(b, j) + qt / 4.0 * (X4(b, j) + qt / 5.0 * X5(b, j))))))
}''', args=lambda g: [torch.softmax(rn(g, 40, 131, dt=f64), 1), torch.softmax(3 * rn(g, 131, 131, dt=f64), 1), scalar(0.8)], torch=t_ctmc, tol=1e-12))

# ---------------------------------------------------------------- tables
def t_asof(Tt, Px, Tq, Bid, Ask):
    j = torch.searchsorted(Tq, Tt, right=True) - 1
    k = j.clamp(min=0)
    return j.int(), torch.where(j >= 0, Px - 0.5 * (Bid[k] + Ask[k]), 0.0)
op(dict(name="asof_join_spread", text='''
def asof_join_spread(int64(N) Tt, float(N) Px, int64(M) Tq, float(M) Bid, float(M) Ask) -> (J, Y) {
    J(n) max=! Tq(m) <= Tt(n) ? m : -1
    Y(n)   = J(n) >= 0 ? Px(n) - 0.5 * (Bid(J(n)) + Ask(J(n))) : 0.0
}''', args=lambda g: [ri(g, 0, 1_000_000, 701), 100 + ru(g, 701), 5000 + ri(g, 0, 990_000, 1201).sort().values, 100 - ru(g, 1201), 100 + ru(g, 1201)],
   torch=t_asof, tol=1e-5))

def t_cube(Ka, Kb, Kc, Amt):
    k = (Ka.long() * 5 + Kb) * 12 + Kc
    c = torch.zeros(420, dtype=i64).index_add_(0, k, Amt.long()).view(7, 5, 12)
    return c, c.sum(2), c.sum((0, 1)), c.sum()
op(dict(name="cube_rollup_sales", text='''
def cube_rollup_sales(uint8(N) Ka, uint8(N) Kb, int32(N) Kc, int32(N) Amt) -> (int64(7,5,12) Cube, Mab, Mc, Tot) {
    Cube(Ka(n), Kb(n), Kc(n)) +=! Amt(n)
    Mab(a, b) +=! Cube(a, b, c)
    Mc(c)     +=! Cube(a, b, c)
    Tot       +=! Mc(c)
}''', args=lambda g: [ri(g, 0, 7, 80_001, dt=u8), ri(g, 0, 5, 80_001, dt=u8), ri(g, 0, 12, 80_001, dt=i32), ri(g, 1, 2_000_000, 80_001, dt=i32)],
   torch=t_cube, tol=0.0))

# ---------------------------------------------------------------- control
def t_unscented(X, L, Q):
    N = X.shape[1]
    d = 1.7 * L.mT
    s = torch.cat([X[:, None], X[:, None] + d, X[:, None] - d], 1)
    z = s + 0.1 * s.roll(-1, 2).sin()
    w = torch.full((2 * N + 1, 1), 0.6 / (2 * N))
    w[0] = 0.4
    mu = (w * z).sum(1)
    e = z - mu[:, None]
    return mu, (w * e).mT @ e + Q
op(dict(name="unscented_predict", text='''
def unscented_predict(float(B,N) X, float(B,N,N) L, float(N,N) Q) -> (Mu, Pc) {
    Sg(b, s, i) = s == 0 ? X(b, i) : (s <= N ? X(b, i) + 1.7 * L(b, i, s - 1) : X(b, i) - 1.7 * L(b, i, s - 1 - N)) where s in 0:2*N+1
    Z(b, s, i)  = Sg(b, s, i) + 0.1 * sin(Sg(b, s, (i + 1) % N))
    Mu(b, i)   +=! Z(b, s, i) * (s == 0 ? 0.4 : 0.6 / (2 * N))
    Pc(b, i, j) +=! w * (Z(b, s, i) - Mu(b, i)) * (Z(b, s, j) - Mu(b, j)) where w = s == 0 ? 0.4 : 0.6 / (2 * N)
    Pc(b, i, j)  = Pc(b, i, j) + Q(i, j)
}''', args=lambda g: [rn(g, 501, 6), rn(g, 501, 6, 6).tril(), torch.eye(6) * 0.1], torch=t_unscented, tol=2e-5))

# ---------------------------------------------------------------- maps
_D8 = ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))
def t_d8(Z, Dy, Dx, Wt):
    H, W = Z.shape
    z = Z.int()
    c = z[1:-1, 1:-1]
    s = torch.stack([(c - z[1 + dy:H - 1 + dy, 1 + dx:W - 1 + dx]).float() for dy, dx in zip(Dy.tolist(), Dx.tolist())], 2) * Wt
    m = s.amax(2)
    k = torch.where(s == m[..., None], torch.arange(8, dtype=i32), 8).amin(2)
    return torch.where(m > 0, k, -1), m
op(dict(name="d8_flow_direction", text='''
def d8_flow_direction(int16(H,W) Z, int32(8) Dy, int32(8) Dx, float(8) Wt) -> (Dir, Mx) {
    Sl(y, x, k) = float(int32(Z(y + 1, x + 1)) - Z(y + 1 + Dy(k), x + 1 + Dx(k))) * Wt(k) where y in 0:H-2, x in 0:W-2
    Mx(y, x)  max=! Sl(y, x, k)
    Dir(y, x) min=! Sl(y, x, k) == Mx(y, x) ? k : 8
    Dir(y, x)   = Mx(y, x) > 0.0 ? Dir(y, x) : -1
}''', args=lambda g: [ri(g, 0, 60, 300, 257, dt=i16), torch.tensor([d[0] for d in _D8], dtype=i32), torch.tensor([d[1] for d in _D8], dtype=i32),
                      torch.tensor([1.0 if 0 in d else math.sqrt(0.5) for d in _D8])], torch=t_d8, tol=1e-6))

def t_idw(Gl, Go, Sl, So, Va):
    p = torch.sin(0.5 * (Gl[:, None] - Sl))[:, None]
    q = torch.sin(0.5 * (Go[:, None] - So))
    g = torch.asin(torch.sqrt(p * p + (torch.cos(Gl)[:, None] * torch.cos(Sl))[:, None] * q * q))
    w = 1 / (1e-3 + 4 * g * g)
    return (w @ Va) / w.sum(2)
op(dict(name="haversine_inverse_distance", text='''
def haversine_inverse_distance(float(H) Gl, float(W) Go, float(S) Sl, float(S) So, float(S) Va) -> (O) {
    K(h, w, s) = 1.0 / (1e-3 + 4.0 * g * g)
        where p = sin(0.5 * (Gl(h) - Sl(s))), q = sin(0.5 * (Go(w) - So(s))), g = asin(sqrt(p * p + cos(Gl(h)) * cos(Sl(s)) * q * q))
    Nu(h, w) +=! K(h, w, s) * Va(s)
    De(h, w) +=! K(h, w, s)
    O(h, w)    = Nu(h, w) / De(h, w)
}''', args=lambda g: [torch.linspace(-0.6, 0.6, 61), torch.linspace(-0.8, 0.8, 80), 1.2 * ru(g, 50) - 0.6, 1.6 * ru(g, 50) - 0.8, rn(g, 50)],
   torch=t_idw, tol=1e-4))

def t_ffd(P, Bw):
    p = P.unfold(1, 4, 1).unfold(2, 4, 1)
    t = torch.einsum("xb,cijab->cijax", Bw, p)
    t = torch.einsum("ya,cijax->ciyjx", Bw, t)
    return t.flatten(3, 4).flatten(1, 2)
def _bspline(n):
    t = torch.arange(n, dtype=f64) / n
    return torch.stack([(1 - t) ** 3, 3 * t ** 3 - 6 * t ** 2 + 4, -3 * t ** 3 + 3 * t ** 2 + 3 * t + 1, t ** 3], 1) / 6
op(dict(name="bspline_deformation_bf16", text='''
def bspline_deformation_bf16(bfloat16(C,GY,GX) P, bfloat16(8,4) Bw) -> (D) {
    D(c, y, x) +=! Bw(y % 8, a) * Bw(x % 8, b) * P(c, y / 8 + a, x / 8 + b) where y in 0:8*(GY-3), x in 0:8*(GX-3)
}''', args=lambda g: [rn(g, 2, 35, 43, dt=bf16), _bspline(8).to(bf16)], torch=t_ffd, tol=3e-2))

def t_sph(Pl, Ca, Sa, Phi):
    a, b = torch.einsum("tlm,lm->tm", Pl, Ca.tril()), torch.einsum("tlm,lm->tm", Pl, Sa.tril())
    ang = torch.arange(Ca.shape[1])[:, None] * Phi
    return a @ ang.cos() + b @ ang.sin()
op(dict(name="spherical_harmonic_synthesis", text='''
def spherical_harmonic_synthesis(double(T,L,M) Pl, double(L,M) Ca, double(L,M) Sa, double(P) Phi) -> (Y) {
    Ac(t, m) +=! l >= m ? Pl(t, l, m) * Ca(l, m) : 0.0
    As(t, m) +=! l >= m ? Pl(t, l, m) * Sa(l, m) : 0.0
    Y(t, p)  +=! Ac(t, m) * cos(m * Phi(p)) + As(t, m) * sin(m * Phi(p))
}''', args=lambda g: [rn(g, 64, 41, 41, dt=f64), rn(g, 41, 41, dt=f64), rn(g, 41, 41, dt=f64), 2 * math.pi * torch.arange(128, dtype=f64) / 128],
   torch=t_sph, tol=1e-11))
