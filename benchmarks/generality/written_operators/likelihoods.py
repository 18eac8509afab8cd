# ruff: noqa: E501, E702, E703, E704, E731, E741, E301, E302, E305, C408, B023, N803, N806 (a table: tensors have the names of the texts)
"""Likelihoods and statistics, chemistry and physics, finance, matrices and genomes; as in ``learning``."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from generality.written_operators.networks import f16, f64, i8, i32, of, ri, rn, ru, u8
from generality.written_operators.operator import WrittenOperator, adder

OPERATORS: list[WrittenOperator] = []
op = adder(OPERATORS)


# ---------------------------------------------------------------- likelihoods and statistics

def _baum_welch(La, Lb, A, Em, Len):
    B, T = La.shape[:2]
    lz = La[torch.arange(B), Len.long() - 1].logsumexp(1)
    xi = La[:, :-1, :, None] + A + (Em + Lb)[:, 1:, None] - lz[:, None, None, None]
    return (xi.exp() * (torch.arange(1, T) < Len[:, None])[..., None, None]).sum((0, 1)), lz


op(dict(name="baum_welch_xi_sums", text='''
def baum_welch_xi_sums(float(B,T,S) La, float(B,T,S) Lb, float(S,S) A, float(B,T,S) Em, int32(B) Len) -> (Xi, Lz) {
    M(b) max=! La(b, Len(b) - 1, s)
    Lz(b) +=! exp(La(b, Len(b) - 1, s) - M(b))
    Lz(b) = M(b) + log(Lz(b))
    Xi(i, j) +=! t + 1 < Len(b) ? exp(La(b, t, i) + A(i, j) + Em(b, t + 1, j) + Lb(b, t + 1, j) - Lz(b)) : 0.0 where t in 0:T-1
}''', args=lambda g: [rn(g, 7, 97, 23) - 3, rn(g, 7, 97, 23) - 2, rn(g, 23, 23).log_softmax(1), rn(g, 7, 97, 23) - 1, ri(g, 40, 98, 7, dt=i32)], torch=_baum_welch, tol=5e-5))


def _student(X, Mu, Lc, Nu, LogPi):
    D = X.shape[1]
    q = torch.einsum("kij,nkj->nki", Lc.tril(), X[:, None] - Mu).square().sum(-1)
    c = torch.lgamma((Nu + D) / 2) - torch.lgamma(Nu / 2) - D / 2 * torch.log(math.pi * Nu) + Lc.diagonal(dim1=1, dim2=2).log().sum(1) + LogPi
    L = c - (Nu + D) / 2 * torch.log1p(q / Nu)
    return L.softmax(1), L.logsumexp(1).sum()


op(dict(name="student_t_mixture_resp_f64", text='''
def student_t_mixture_resp_f64(double(N,D) X, double(K,D) Mu, double(K,D,D) Lc, double(K) Nu, double(K) LogPi) -> (R, Ll) {
    Z(n, k, i) +=! j <= i ? Lc(k, i, j) * (X(n, j) - Mu(k, j)) : 0.0
    Q(n, k) +=! Z(n, k, i) * Z(n, k, i)
    Ld(k) +=! log(Lc(k, i, i))
    C(k) = lgamma(0.5 * (Nu(k) + D)) - lgamma(0.5 * Nu(k)) - 0.5 * D * log(3.141592653589793 * Nu(k)) + Ld(k) + LogPi(k)
    L(n, k) = C(k) - 0.5 * (Nu(k) + D) * log1p(Q(n, k) / Nu(k))
    M(n) max=! L(n, k)
    S(n) +=! exp(L(n, k) - M(n))
    R(n, k) = exp(L(n, k) - M(n)) / S(n)
    Ll +=! M(n) + log(S(n))
}''', args=lambda g: [rn(g, 1501, 7, dt=f64, k=2.0), rn(g, 9, 7, dt=f64), rn(g, 9, 7, 7, dt=f64, k=0.3).tril(-1) + torch.diag_embed(ru(g, 9, 7, dt=f64, lo=0.5, hi=1.5)), ru(g, 9, dt=f64, lo=2.0, hi=9.0), rn(g, 9, dt=f64).log_softmax(0)],
    torch=_student, tol=1e-10))


def _dlm(X, P):
    pi, mu, ls = P.unbind(1)
    x, inv = X[:, None], torch.exp(-ls.clamp_min(-7))
    hi, lo = inv * (x - mu + 1 / 255), inv * (x - mu - 1 / 255)
    mid = torch.log((hi.sigmoid() - lo.sigmoid()).clamp_min(1e-12))
    lp = torch.where(x < -0.999, F.logsigmoid(hi), torch.where(x > 0.999, -F.softplus(lo), mid))
    return -(lp + pi.log_softmax(1)).logsumexp(1).sum((1, 2))


op(dict(name="discretised_logistic_mixture_f64", text='''
def discretised_logistic_mixture_f64(double(N,H,W) X, double(N,3,K,H,W) P) -> (Nll) {
    Hi(n, k, y, x) = exp(-max(P(n, 2, k, y, x), -7.0)) * (X(n, y, x) - P(n, 1, k, y, x) + 1.0 / 255.0)
    Lo(n, k, y, x) = exp(-max(P(n, 2, k, y, x), -7.0)) * (X(n, y, x) - P(n, 1, k, y, x) - 1.0 / 255.0)
    L(n, k, y, x) = P(n, 0, k, y, x) + (X(n, y, x) < -0.999 ? hi - max(hi, 0.0) - log1p(exp(-abs(hi)))
        : (X(n, y, x) > 0.999 ? -max(lo, 0.0) - log1p(exp(-abs(lo))) : log(max(sigmoid(hi) - sigmoid(lo), 1e-12))))
        where hi = Hi(n, k, y, x), lo = Lo(n, k, y, x)
    M(n, y, x) max=! L(n, k, y, x)
    S(n, y, x) +=! exp(L(n, k, y, x) - M(n, y, x))
    Mp(n, y, x) max=! P(n, 0, k, y, x)
    Sp(n, y, x) +=! exp(P(n, 0, k, y, x) - Mp(n, y, x))
    Nll(n) +=! Mp(n, y, x) + log(Sp(n, y, x)) - M(n, y, x) - log(S(n, y, x))
}''', args=lambda g: [ri(g, 0, 256, 2, 37, 41, dt=f64) / 127.5 - 1, torch.stack([rn(g, 2, 5, 37, 41, dt=f64), rn(g, 2, 5, 37, 41, dt=f64, k=0.5), rn(g, 2, 5, 37, 41, dt=f64, k=0.5) - 2], 1)],
    torch=_dlm, tol=1e-7))


def _ksd(X, S):
    D = X.shape[1]
    n = X.square().sum(1)
    r2 = (n[:, None] + n - 2 * X @ X.T).clamp_min(0)
    c, a = S @ X.T, (S * X).sum(1)
    w = (1 + r2).rsqrt()
    U = w * (S @ S.T) + w ** 3 * (a[:, None] + a - c - c.T + D) - 3 * r2 * w ** 5
    return U.mean(), U.mean(1)


op(dict(name="stein_discrepancy_imq_f64", text='''
def stein_discrepancy_imq_f64(double(N,D) X, double(N,D) S) -> (Ksd, Row) {
    R(i, j) +=! (X(i, d) - X(j, d)) * (X(i, d) - X(j, d))
    C(i, j) +=! S(i, d) * S(j, d)
    G(i, j) +=! (S(i, d) - S(j, d)) * (X(i, d) - X(j, d))
    U(i, j) = w * C(i, j) + w * w * w * (G(i, j) + D) - 3.0 * R(i, j) * w * w * w * w * w where w = rsqrt(1.0 + R(i, j))
    Row(i) +=! U(i, j) / N
    Ksd +=! Row(i) / N
}''', args=lambda g: (lambda x: [x, 0.3 * rn(g, 701, 10, dt=f64) - x])(rn(g, 701, 10, dt=f64)), torch=_ksd, tol=1e-9))


def _mmd(X, Y, Gam):
    def kernel(a, b):
        r2 = (a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T).clamp_min(0)
        return torch.exp(-Gam[:, None, None] * r2).sum(0)

    def unbiased(a):
        k = kernel(a, a)
        return (k.sum() - k.diagonal().sum()) / (len(a) * (len(a) - 1))
    return unbiased(X) + unbiased(Y) - 2 * kernel(X, Y).mean()


op(dict(name="mmd2_unbiased_multi_bandwidth", text='''
def mmd2_unbiased_multi_bandwidth(float(N,D) X, float(M,D) Y, float(K) Gam) -> (Mmd) {
    Rx(i, j) +=! (X(i, d) - X(j, d)) * (X(i, d) - X(j, d))
    Ry(i, j) +=! (Y(i, d) - Y(j, d)) * (Y(i, d) - Y(j, d))
    Rc(i, j) +=! (X(i, d) - Y(j, d)) * (X(i, d) - Y(j, d))
    A +=! i != j ? exp(-Gam(k) * Rx(i, j)) : 0.0
    B +=! i != j ? exp(-Gam(k) * Ry(i, j)) : 0.0
    C +=! exp(-Gam(k) * Rc(i, j))
    Mmd = A / (N * (N - 1)) + B / (M * (M - 1)) - 2.0 * C / (N * M)
}''', args=lambda g: [rn(g, 401, 16), rn(g, 307, 16, k=1.3) + 0.5, torch.tensor([0.01, 0.02, 0.05, 0.1, 0.3])], torch=_mmd, tol=2e-4))


def _hawkes(T, C, Mu, Al, beta, fin):
    w = Al[C[:, None], C] * beta * torch.exp(-beta * (T[:, None] - T).clamp_min(0))
    lam = Mu[C] + w.tril(-1).sum(1)
    return lam.log().sum() - Mu.sum() * fin - (Al.sum(0)[C] * -torch.expm1(-beta * (fin - T))).sum(), lam


op(dict(name="hawkes_exp_loglik_f64", text='''
def hawkes_exp_loglik_f64(double(N) T, int64(N) C, double(K) Mu, double(K,K) Al, double beta, double fin) -> (Lik, Lam) {
    Lam(i) = Mu(C(i))
    Lam(i) += j < i ? Al(C(i), C(j)) * beta * exp(-beta * (T(i) - T(j))) : 0.0
    Lik +=! log(Lam(i))
    Lik += -Mu(k) * fin
    Lik += Al(k, C(j)) * expm1(-beta * (fin - T(j)))
}''', args=lambda g: [(0.01 + ru(g, 901, dt=f64)).cumsum(0), ri(g, 0, 6, 901), ru(g, 6, dt=f64, lo=0.2), ru(g, 6, 6, dt=f64, hi=0.1), of(1.3, f64), of(500.0, f64)], torch=_hawkes, tol=1e-10))


def _affinity(S, R, A, damp):
    n = torch.arange(len(S))
    top, arg = (A + S).topk(2, 1)
    Rn = damp * R + (1 - damp) * (S - torch.where(n == arg[:, :1], top[:, 1:], top[:, :1]))
    P = Rn.clamp_min(0)
    P.diagonal().copy_(Rn.diagonal())
    c = P.sum(0)
    An = (c - P).clamp_max(0)
    An.diagonal().copy_(c - Rn.diagonal())
    return Rn, damp * A + (1 - damp) * An


op(dict(name="affinity_propagation_messages", text='''
def affinity_propagation_messages(float(N,N) S, float(N,N) R, float(N,N) A, float damp) -> (Rn, An) {
    V(i, k) = A(i, k) + S(i, k)
    M1(i) max=! V(i, k)
    I1(i) min=! V(i, k) == M1(i) ? k : N
    M2(i) max=! k == I1(i) ? -infinity() : V(i, k)
    Rn(i, k) = damp * R(i, k) + (1.0 - damp) * (S(i, k) - (k == I1(i) ? M2(i) : M1(i)))
    C(k) +=! i == k ? Rn(i, k) : max(Rn(i, k), 0.0)
    An(i, k) = damp * A(i, k) + (1.0 - damp) * (i == k ? C(k) - Rn(i, k) : min(C(k) - max(Rn(i, k), 0.0), 0.0))
}''', args=lambda g: [-rn(g, 397, 397).square(), rn(g, 397, 397), -ru(g, 397, 397), of(0.7)], torch=_affinity, tol=2e-5))


# ---------------------------------------------------------------- chemistry and physics

def _dsf(X, Q, Nb, box, alpha, rc):
    j = Nb.clamp_min(0).long()
    dr = X[:, None] - X[j]
    dr = dr - box * torch.round(dr / box)
    r = dr.norm(dim=2)
    on = (Nb >= 0) & (r < rc)
    r = torch.where(on, r, 1.0)
    qq = torch.where(on, Q[:, None] * Q[j], 0.0)
    c = 2 / math.sqrt(math.pi) * alpha
    sh = torch.erfc(alpha * rc) / rc
    fs = sh / rc + c * torch.exp(-(alpha * rc) ** 2) / rc
    e = torch.erfc(alpha * r) / r
    E = 0.5 * (qq * (e - sh + fs * (r - rc))).sum(1)
    f = qq * (e / r + c * torch.exp(-(alpha * r) ** 2) / r - fs) / r
    return E, (f[..., None] * dr).sum(1)


op(dict(name="dsf_coulomb_neighbours_f64", text='''
def dsf_coulomb_neighbours_f64(double(N,3) X, double(N) Q, int32(N,K) Nb, double box, double alpha, double rc) -> (E, Fo) {
    Dr(i, k, d) = Nb(i, k) >= 0 ? X(i, d) - X(Nb(i, k), d) : 0.0
    Dr(i, k, d) = Dr(i, k, d) - box * round(Dr(i, k, d) / box)
    R(i, k) +=! Dr(i, k, d) * Dr(i, k, d)
    R(i, k) = sqrt(R(i, k))
    E(i) +=! (Nb(i, k) >= 0 && R(i, k) < rc) ? 0.5 * Q(i) * Q(Nb(i, k)) * (erfc(alpha * R(i, k)) / R(i, k) - sh + (sh + c * exp(-alpha * alpha * rc * rc)) / rc * (R(i, k) - rc)) : 0.0
        where sh = erfc(alpha * rc) / rc, c = 1.1283791670955126 * alpha
    Cf(i, k) = (Nb(i, k) >= 0 && r < rc) ? Q(i) * Q(Nb(i, k)) * (erfc(alpha * r) / r + c * exp(-alpha * alpha * r * r) - erfc(alpha * rc) / rc * r / rc - c * exp(-alpha * alpha * rc * rc) * r / rc) / (r * r) : 0.0
        where r = R(i, k), c = 1.1283791670955126 * alpha
    Fo(i, d) +=! Cf(i, k) * Dr(i, k, d)
}''', args=lambda g: [ru(g, 1501, 3, dt=f64, hi=12.0), rn(g, 1501, dt=f64), ((torch.arange(1501)[:, None] + 1 + ri(g, 0, 1499, 1501, 40)) % 1501).to(i32).masked_fill(ru(g, 1501, 40) < 0.1, -1), of(12.0, f64), of(0.25, f64), of(5.0, f64)],
    torch=_dsf, tol=1e-9))


def _d3bj(X, Z, Rcov, Cnref, C6, Qr, a1, a2, s8):
    d2 = (X[:, None] - X).square().sum(-1)
    d2.fill_diagonal_(math.inf)
    rc = Rcov[Z]
    cn = torch.sigmoid(16 * (4 / 3 * (rc[:, None] + rc) / d2.sqrt() - 1)).fill_diagonal_(0).sum(1)
    W = torch.exp(-4 * (cn[:, None] - Cnref[Z]).square())
    W = W / (W.sum(1, keepdim=True) + 1e-12)
    c6 = torch.einsum("ia,ijab,jb->ij", W, C6[Z[:, None], Z], W)
    qq = 3 * Qr[Z][:, None] * Qr[Z]
    f = (a1 * qq.sqrt() + a2).square()
    return -0.5 * (c6 * (1 / (d2 ** 3 + f ** 3) + s8 * qq / (d2 ** 4 + f ** 4))).sum(1), cn


op(dict(name="d3bj_dispersion_energy", text='''
def d3bj_dispersion_energy(float(N,3) X, int64(N) Z, float(S) Rcov, float(S,R) Cnref, float(S,S,R,R) C6, float(S) Qr, float a1, float a2, float s8) -> (E, Cn) {
    D(i, j) +=! (X(i, d) - X(j, d)) * (X(i, d) - X(j, d))
    Cn(i) +=! i != j ? sigmoid(16.0 * (1.3333333333333333 * (Rcov(Z(i)) + Rcov(Z(j))) / sqrt(D(i, j)) - 1.0)) : 0.0
    W(i, a) = exp(-4.0 * (Cn(i) - Cnref(Z(i), a)) * (Cn(i) - Cnref(Z(i), a)))
    T(i) +=! W(i, a)
    W(i, a) = W(i, a) / (T(i) + 1e-12)
    C(i, j) +=! W(i, a) * W(j, b) * C6(Z(i), Z(j), a, b)
    Q(i, j) = 3.0 * Qr(Z(i)) * Qr(Z(j))
    G(i, j) = (a1 * sqrt(Q(i, j)) + a2) * (a1 * sqrt(Q(i, j)) + a2)
    E(i) +=! i != j ? -0.5 * C(i, j) * (1.0 / (r * r * r + f * f * f) + s8 * Q(i, j) / (r * r * r * r + f * f * f * f)) : 0.0 where r = D(i, j), f = G(i, j)
}''', args=lambda g: [ru(g, 151, 3, hi=14.0), ri(g, 0, 6, 151), ru(g, 6, lo=0.7, hi=1.4), torch.arange(5.0) + ru(g, 6, 5, hi=0.6), ru(g, 6, 6, 5, 5, lo=10.0, hi=60.0), ru(g, 6, lo=1.5, hi=4.0), of(0.4), of(4.5), of(0.8)],
    torch=_d3bj, tol=1e-4))


def _lindblad(Rho, Hm, L):
    rho, h, l = (torch.view_as_complex(t) for t in (Rho, Hm, L))
    k = -1j * h - 0.5 * (l.mH @ l).sum(0)
    return torch.view_as_real(k @ rho + rho @ k.mH + (l @ rho[:, None] @ l.mH).sum(1))


op(dict(name="lindblad_rhs_f64", text='''
def lindblad_rhs_f64(double(B,N,N,2) Rho, double(N,N,2) Hm, double(M,N,N,2) L) -> (Y) {
    Gr(i, j) +=! L(m, k, i, 0) * L(m, k, j, 0) + L(m, k, i, 1) * L(m, k, j, 1)
    Gi(i, j) +=! L(m, k, i, 0) * L(m, k, j, 1) - L(m, k, i, 1) * L(m, k, j, 0)
    Kr(i, j) = Hm(i, j, 1) - 0.5 * Gr(i, j)
    Ki(i, j) = -Hm(i, j, 0) - 0.5 * Gi(i, j)
    Ar(b, m, i, j) +=! L(m, i, k, 0) * Rho(b, k, j, 0) - L(m, i, k, 1) * Rho(b, k, j, 1)
    Ai(b, m, i, j) +=! L(m, i, k, 0) * Rho(b, k, j, 1) + L(m, i, k, 1) * Rho(b, k, j, 0)
    Yr(b, i, j) +=! Kr(i, k) * Rho(b, k, j, 0) - Ki(i, k) * Rho(b, k, j, 1)
    Yr(b, i, j) += Rho(b, i, k, 0) * Kr(j, k) + Rho(b, i, k, 1) * Ki(j, k)
    Yr(b, i, j) += Ar(b, m, i, k) * L(m, j, k, 0) + Ai(b, m, i, k) * L(m, j, k, 1)
    Yi(b, i, j) +=! Kr(i, k) * Rho(b, k, j, 1) + Ki(i, k) * Rho(b, k, j, 0)
    Yi(b, i, j) += Rho(b, i, k, 1) * Kr(j, k) - Rho(b, i, k, 0) * Ki(j, k)
    Yi(b, i, j) += Ai(b, m, i, k) * L(m, j, k, 0) - Ar(b, m, i, k) * L(m, j, k, 1)
    Y(b, i, j, c) = c == 0 ? Yr(b, i, j) : Yi(b, i, j) where c in 0:2
}''', args=lambda g: [rn(g, 8, 31, 31, 2, dt=f64), rn(g, 31, 31, 2, dt=f64), rn(g, 5, 31, 31, 2, dt=f64, k=0.2)], torch=_lindblad, tol=1e-11))


def _smagorinsky(U, cs):
    grad = lambda a, k: 0.5 * (a.roll(-1, k + 1) - a.roll(1, k + 1))
    g = torch.stack([grad(U, k) for k in range(3)], 1)
    S = 0.5 * (g + g.transpose(0, 1))
    nt = cs * (2 * S * S).sum((0, 1)).sqrt()
    tau = 2 * nt * S
    return grad(tau[:, 0], 0) + grad(tau[:, 1], 1) + grad(tau[:, 2], 2), nt


op(dict(name="smagorinsky_stress_divergence", text='''
def smagorinsky_stress_divergence(float(3,D,H,W) U, float cs) -> (F, Nt) {
    G(a, b, z, y, x) = 0.5 * (b == 0 ? U(a, (z + 1) % D, y, x) - U(a, (z + D - 1) % D, y, x)
        : (b == 1 ? U(a, z, (y + 1) % H, x) - U(a, z, (y + H - 1) % H, x) : U(a, z, y, (x + 1) % W) - U(a, z, y, (x + W - 1) % W)))
        where b in 0:3, z in 0:D, y in 0:H, x in 0:W
    S(a, b, z, y, x) = 0.5 * (G(a, b, z, y, x) + G(b, a, z, y, x))
    Nt(z, y, x) +=! 2.0 * S(a, b, z, y, x) * S(a, b, z, y, x)
    Nt(z, y, x) = cs * sqrt(Nt(z, y, x))
    Tau(a, b, z, y, x) = 2.0 * Nt(z, y, x) * S(a, b, z, y, x)
    F(a, z, y, x) = 0.5 * (Tau(a, 0, (z + 1) % D, y, x) - Tau(a, 0, (z + D - 1) % D, y, x) + Tau(a, 1, z, (y + 1) % H, x) - Tau(a, 1, z, (y + H - 1) % H, x)
        + Tau(a, 2, z, y, (x + 1) % W) - Tau(a, 2, z, y, (x + W - 1) % W)) where z in 0:D, y in 0:H, x in 0:W
}''', args=lambda g: [rn(g, 3, 24, 31, 29), of(0.03)], torch=_smagorinsky, tol=3e-5))


def _potts(S, U, Field, beta):
    Q, (H, W) = len(Field), S.shape[1:]
    one = (S[:, None] == torch.arange(Q)[:, None, None]).float()
    n = one.roll(1, 2) + one.roll(-1, 2) + one.roll(1, 3) + one.roll(-1, 3)
    P = torch.softmax(beta * n + Field[:, None, None], 1)
    new = (U[:, None] > P.cumsum(1)).sum(1).clamp_max(Q - 1).to(i8)
    return P, torch.where((torch.arange(H)[:, None] + torch.arange(W)) % 2 == 0, new, S)


op(dict(name="potts_checkerboard_heatbath", text='''
def potts_checkerboard_heatbath(int8(B,H,W) S, float(B,H,W) U, float(Q) Field, float beta) -> (P, int8(B,H,W) Sn) {
    C(b, q, y, x) = (S(b, (y + 1) % H, x) == q ? 1 : 0) + (S(b, (y + H - 1) % H, x) == q ? 1 : 0) + (S(b, y, (x + 1) % W) == q ? 1 : 0) + (S(b, y, (x + W - 1) % W) == q ? 1 : 0)
        where q in 0:Q, y in 0:H, x in 0:W
    L(b, q, y, x) = beta * C(b, q, y, x) + Field(q)
    M(b, y, x) max=! L(b, q, y, x)
    E(b, q, y, x) = exp(L(b, q, y, x) - M(b, y, x))
    Z(b, y, x) +=! E(b, q, y, x)
    P(b, q, y, x) = E(b, q, y, x) / Z(b, y, x)
    Cum(b, q, y, x) +=! r <= q ? P(b, r, y, x) : 0.0 where q in 0:Q
    New(b, y, x) +=! U(b, y, x) > Cum(b, q, y, x) ? 1 : 0
    Sn(b, y, x) = (y + x) % 2 == 0 ? int8(min(New(b, y, x), Q - 1)) : S(b, y, x)
}''', args=lambda g: [ri(g, 0, 5, 4, 62, 66, dt=i8), ru(g, 4, 62, 66), rn(g, 5, k=0.2), of(0.6)], torch=_potts, tol=1e-5))


# ---------------------------------------------------------------- finance, matrices, genomes, reductions

def _lmm(L, Sg, Z, dt, tau):
    V = ((tau * L / (1 + tau * L))[..., None] * Sg).cumsum(1)
    drift = (V * Sg).sum(-1) - 0.5 * Sg.square().sum(1)
    return L * torch.exp(drift * dt + dt.sqrt() * (Z @ Sg.T))


op(dict(name="libor_market_drift_step", text='''
def libor_market_drift_step(float(P,N) L, float(N,R) Sg, float(P,R) Z, float dt, float tau) -> (Ln) {
    C(p, i) = tau * L(p, i) / (1.0 + tau * L(p, i))
    V(p, i, r) +=! j <= i ? C(p, j) * Sg(j, r) : 0.0 where i in 0:N
    Mu(p, i) +=! V(p, i, r) * Sg(i, r)
    Q(i) +=! Sg(i, r) * Sg(i, r)
    W(p, i) +=! Sg(i, r) * Z(p, r)
    Ln(p, i) = L(p, i) * exp((Mu(p, i) - 0.5 * Q(i)) * dt + sqrt(dt) * W(p, i))
}''', args=lambda g: [ru(g, 2003, 20, lo=0.01, hi=0.06), rn(g, 20, 3, k=0.15), rn(g, 2003, 3), of(0.25), of(0.5)], torch=_lmm, tol=1e-5))


def _ring_entries(A, Bc, Cc, Dc, Ix):
    i, j, k, l = Ix.unbind(1)
    return ((A[i] @ Bc[j]) * (Cc[k] @ Dc[l]).mT).sum((1, 2))


op(dict(name="tensor_ring_entries", text='''
def tensor_ring_entries(float(I,P,Q) A, float(J,Q,R) Bc, float(K,R,S) Cc, float(L,S,P) Dc, int64(N,4) Ix) -> (V) {
    T(n, p, r) +=! A(Ix(n, 0), p, q) * Bc(Ix(n, 1), q, r)
    U(n, r, p) +=! Cc(Ix(n, 2), r, s) * Dc(Ix(n, 3), s, p)
    V(n) +=! T(n, p, r) * U(n, r, p)
}''', args=lambda g: [rn(g, 50, 8, 9), rn(g, 61, 9, 7), rn(g, 40, 7, 10), rn(g, 31, 10, 8), ri(g, 0, 31, 1501, 4)], torch=_ring_entries, tol=1e-5))


def _blocktri(Lo, Dg, Up, X):
    Y = torch.einsum("nij,bnj->bni", Dg, X)
    Y[:, 1:] += torch.einsum("nij,bnj->bni", Lo[1:], X[:, :-1])
    Y[:, :-1] += torch.einsum("nij,bnj->bni", Up[:-1], X[:, 1:])
    return Y


op(dict(name="block_tridiagonal_matvec_f64", text='''
def block_tridiagonal_matvec_f64(double(N,M,M) Lo, double(N,M,M) Dg, double(N,M,M) Up, double(B,N,M) X) -> (Y) {
    Y(b, n, i) +=! Dg(n, i, j) * X(b, n, j)
    Y(b, n, i) += Lo(n, i, j) * X(b, n - 1, j) where n in 1:N
    Y(b, n, i) += Up(n, i, j) * X(b, n + 1, j) where n in 0:N-1
}''', args=lambda g: [rn(g, 401, 9, 9, dt=f64), rn(g, 401, 9, 9, dt=f64), rn(g, 401, 9, 9, dt=f64), rn(g, 24, 401, 9, dt=f64)], torch=_blocktri, tol=1e-12))


def _codons(S, Tab):
    s = S.int()
    r = s.flip(1)
    w = torch.stack([s, torch.where(r == 4, 4, 3 - r)], 1).unfold(2, 3, 1)
    code = (w * torch.tensor([16, 4, 1], dtype=i32)).sum(-1).clamp_max(63)
    aa = Tab[code].masked_fill((w > 3).any(-1), 88)
    n = 3 * ((S.shape[1] - 2) // 3)
    return torch.stack([aa[:, :, f:f + n:3] for f in range(3)], 2).flatten(1, 2)


op(dict(name="codon_six_frame_translation", text='''
def codon_six_frame_translation(uint8(B,N) S, uint8(64) Tab) -> (Y) {
    R(b, r, p) = r == 0 ? int32(S(b, p)) : (S(b, N - 1 - p) == 4 ? 4 : 3 - int32(S(b, N - 1 - p))) where r in 0:2, p in 0:N
    Code(b, f, m) = (u > 3 || v > 3 || w > 3) ? -1 : 16 * u + 4 * v + w
        where f in 0:6, m in 0:(N-2)/3, u = R(b, f / 3, 3*m + f % 3), v = R(b, f / 3, 3*m + f % 3 + 1), w = R(b, f / 3, 3*m + f % 3 + 2)
    Y(b, f, m) = Code(b, f, m) >= 0 ? Tab(Code(b, f, m)) : 88
}''', args=lambda g: [ri(g, 0, 4, 8, 6001, dt=u8).masked_fill(ru(g, 8, 6001) < 0.01, 4), ri(g, 65, 91, 64, dt=u8)], torch=_codons, tol=0.0))


def _tajima(G):
    n = G.shape[2]
    c = G.sum(2, dtype=i32)
    sfs = torch.zeros(len(G), n + 1, dtype=i32).scatter_add(1, c.long(), torch.ones_like(c))
    seg = ((c > 0) & (c < n)).sum(1, dtype=i32)
    pi = (2.0 * c * (n - c) / (n * (n - 1))).sum(1)
    i = torch.arange(1.0, n)
    a1, a2 = (1 / i).sum(), (1 / i.square()).sum()
    e1 = ((n + 1) / (3 * (n - 1)) - 1 / a1) / a1
    e2 = (2 * (n * n + n + 3) / (9 * n * (n - 1)) - (n + 2) / (a1 * n) + a2 / (a1 * a1)) / (a1 * a1 + a2)
    return sfs, pi, torch.where(seg > 0, (pi - seg / a1) / (e1 * seg + e2 * seg * (seg - 1)).sqrt(), 0.0)


op(dict(name="sfs_tajima_d_windows", text='''
def sfs_tajima_d_windows(int8(W,S,N) G) -> (int32(W,N+1) Sfs, Pi, D) {
    C(w, s) +=! int32(G(w, s, n))
    Sfs(w, C(w, s)) +=! 1
    Seg(w) +=! (C(w, s) > 0 && C(w, s) < N) ? 1 : 0
    Pi(w) +=! 2.0 * C(w, s) * (N - C(w, s)) / (N * (N - 1))
    A1 +=! 1.0 / (i + 1) where i in 0:N-1
    A2 +=! 1.0 / ((i + 1) * (i + 1)) where i in 0:N-1
    E1 = (float(N + 1) / (3 * (N - 1)) - 1.0 / A1) / A1
    E2 = (2.0 * (N * N + N + 3) / (9 * N * (N - 1)) - (N + 2) / (A1 * N) + A2 / (A1 * A1)) / (A1 * A1 + A2)
    D(w) = Seg(w) > 0 ? (Pi(w) - Seg(w) / A1) / sqrt(E1 * Seg(w) + E2 * Seg(w) * (Seg(w) - 1)) : 0.0
}''', args=lambda g: [(ru(g, 11, 199, 97) < ru(g, 11, 199, 1).square()).to(i8)], torch=_tajima, tol=1e-4))


def _extremes(X):
    Z = X.permute(0, 2, 4, 1, 3).flatten(3)
    top, at = Z.max(3)
    return top, Z.amin(3), at.int()


op(dict(name="extremes_two_inner_dims_half", text='''
def extremes_two_inner_dims_half(half(A,B,C,D,E) X) -> (Mx, Mn, At) {
    Mx(a, c, e) max=! X(a, b, c, d, e)
    Mn(a, c, e) min=! X(a, b, c, d, e)
    At(a, c, e) min=! X(a, b, c, d, e) == Mx(a, c, e) ? b * D + d : B * D
}''', args=lambda g: [rn(g, 31, 7, 13, 5, 11, dt=f16).permute(3, 2, 1, 4, 0)], torch=_extremes, tol=0.0))
