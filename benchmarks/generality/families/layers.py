"""Programs of models: cells, attentions, gates, losses, statistics, tensor networks."""
from __future__ import annotations

import torch
import torch.nn.functional as F

from generality.families.program import Program


def _lstm(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, w: torch.Tensor, u: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    i, f, o, n = (x @ w.flatten(0, 1).T + h @ u.flatten(0, 1).T + b.flatten()).chunk(4, 1)
    return torch.sigmoid(o) * torch.tanh(torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(n))


def _gates(x: torch.Tensor, c: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    i, f, o, n = (x @ w.flatten(0, 1).T).chunk(4, 1)
    return torch.sigmoid(o) * torch.tanh(torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(n))


def _windowed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    at = torch.arange(q.shape[-2])
    back = at[:, None] - at
    return torch.softmax((q @ k.mT * 0.125).masked_fill((back < 0) | (back >= 64), -1e30), -1) @ v


def _grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    p = torch.softmax(torch.einsum("bgrid,bgjd->bgrij", q, k) * 0.125, -1)
    return torch.einsum("bgrij,bgjd->bgrid", p, v)


def _vlad(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    a = torch.einsum("bnd,kd->bkn", x, c).softmax(1)
    return torch.einsum("bkn,bnd->bkd", a, x) - a.sum(2)[:, :, None] * c


def _adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 0.001 * m / (torch.sqrt(v.abs()) + 1e-8), m, v


def _focal(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    p = torch.sigmoid(x) * t + (1 - torch.sigmoid(x)) * (1 - t)
    return ((1 - p) ** 2 * -torch.log(p.abs() + 1e-6)).sum(1)


def _huber(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    apart = (x - y).abs()
    return torch.where(apart < 1, 0.5 * apart * apart, apart - 0.5).sum(1)


def _moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mean = x.mean(1, keepdim=True)
    return mean[:, 0], (x - mean).pow(2).sum(1), (x - mean).pow(3).sum(1)


def _contrast(x: torch.Tensor) -> torch.Tensor:
    n = F.normalize(x)
    return torch.logsumexp(n @ n.T / 0.1, 1)


def _complex(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    real = a[..., 0] @ b[..., 0] - a[..., 1] @ b[..., 1]
    return torch.stack((real, a[..., 0] @ b[..., 1] + a[..., 1] @ b[..., 0]), -1)


def _updated(a: torch.Tensor, u: torch.Tensor, v: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    b = a + torch.outer(u, v)
    return b @ (0.5 * b.T @ y + z)


SOFTMAX = (
    "M(b,h,i) max=! U(b,h,i,j)  E(b,h,i,j) = exp(U(b,h,i,j) - M(b,h,i))  Z(b,h,i) +=! E(b,h,i,j) "
    "Y(b,h,i,d) +=! E(b,h,i,j) * v(b,h,j,d)  Y(b,h,i,d) = Y(b,h,i,d) / Z(b,h,i)"
)

PROGRAMS = {
    "recurrent cell": Program(
        "float(B,I) X, float(B,H) h, float(H,I) W, float(H,H) U, float(H) b",
        "T(n,o) +=! X(n,i) * W(o,i)  S(n,o) +=! h(n,i) * U(o,i)  Y(n,o) = tanh(T(n,o) + S(n,o) + b(o))",
        "2*B*H*(I+H)", "B*H", lambda x, h, w, u, b: torch.tanh(x @ w.T + h @ u.T + b),
    ),
    "LSTM cell": Program(
        "float(B,I) X, float(B,H) h, float(B,H) c, float(4,H,I) W, float(4,H,H) U, float(4,H) b",
        "G(n,g,o) +=! X(n,i) * W(g,o,i)  R(n,g,o) +=! h(n,i) * U(g,o,i)  T(n,g,o) = G(n,g,o) + R(n,g,o) + b(g,o) "
        "D(n,o) = sigmoid(T(n,1,o)) * c(n,o) + sigmoid(T(n,0,o)) * tanh(T(n,3,o))  Y(n,o) = sigmoid(T(n,2,o)) * tanh(D(n,o))",
        "8*B*H*(I+H)", "B*H", _lstm,
    ),
    "LSTM gates": Program(
        "float(B,I) X, float(B,H) c, float(4,H,I) W",
        "P(n,o) +=! X(n,i) * W(0,o,i)  Q(n,o) +=! X(n,i) * W(1,o,i)  R(n,o) +=! X(n,i) * W(2,o,i)  S(n,o) +=! X(n,i) * W(3,o,i) "
        "D(n,o) = sigmoid(Q(n,o)) * c(n,o) + sigmoid(P(n,o)) * tanh(S(n,o))  Y(n,o) = sigmoid(R(n,o)) * tanh(D(n,o))",
        "8*B*H*I", "B*H", _gates,
    ),
    "windowed attention": Program(
        "float(B,H,T,D) q, float(B,H,T,D) k, float(B,H,T,D) v",
        "S(b,h,i,j) +=! q(b,h,i,d) * k(b,h,j,d)  U(b,h,i,j) = (j <= i && i - j < 64) ? S(b,h,i,j) * 0.125 : -1e30 " + SOFTMAX,
        "4*B*H*T*T*D", "B*H*T*D", _windowed, least={"D": 8},
    ),
    "attention with a bias": Program(
        "float(B,H,Q,D) q, float(B,H,K,D) k, float(B,H,K,D) v, float(H,Q,K) a",
        "S(b,h,i,j) +=! q(b,h,i,d) * k(b,h,j,d)  U(b,h,i,j) = S(b,h,i,j) * 0.125 + a(h,i,j) " + SOFTMAX,
        "4*B*H*Q*K*D", "B*H*Q*D", lambda q, k, v, a: torch.softmax(q @ k.mT * 0.125 + a, -1) @ v, least={"D": 8},
    ),
    "attention of grouped queries": Program(
        "float(B,G,R,I,D) q, float(B,G,J,D) k, float(B,G,J,D) v",
        "S(b,g,r,i,j) +=! q(b,g,r,i,d) * k(b,g,j,d)  M(b,g,r,i) max=! S(b,g,r,i,j) "
        "E(b,g,r,i,j) = exp(0.125 * (S(b,g,r,i,j) - M(b,g,r,i)))  Z(b,g,r,i) +=! E(b,g,r,i,j) "
        "Y(b,g,r,i,d) +=! E(b,g,r,i,j) * v(b,g,j,d)  Y(b,g,r,i,d) = Y(b,g,r,i,d) / Z(b,g,r,i)",
        "4*B*G*R*I*J*D", "B*G*R*I*D", _grouped, least={"D": 8},
    ),
    "attention pooling": Program(
        "float(B,N,D) X, float(D) w",
        "T(b,n) +=! X(b,n,d) * w(d)  M(b) max=! T(b,n)  E(b,n) = exp(T(b,n) - M(b))  Z(b) +=! E(b,n)  Y(b,d) +=! E(b,n) / Z(b) * X(b,n,d)",
        "4*B*N*D", "B*D", lambda x, w: (torch.softmax(x @ w, 1)[:, :, None] * x).sum(1),
    ),
    "vector of aggregated descriptors": Program(
        "float(B,N,D) X, float(K,D) c",
        "T(b,k,n) +=! X(b,n,d) * c(k,d)  M(b,n) max=! T(b,k,n)  E(b,k,n) = exp(T(b,k,n) - M(b,n))  Z(b,n) +=! E(b,k,n) "
        "A(b,k,n) = E(b,k,n) / Z(b,n)  S(b,k) +=! A(b,k,n)  Y(b,k,d) +=! A(b,k,n) * X(b,n,d)  Y(b,k,d) = Y(b,k,d) - S(b,k) * c(k,d)",
        "4*B*N*K*D", "B*K*D", _vlad,
    ),
    "mean of neighbours, linear": Program(
        "float(V,D) X, int64(N,K) I, float(O,D) W",
        "M(n,d) +=! X(I(n,k),d)  T(n,o) +=! M(n,d) * W(o,d)  Y(n,o) = fmax(T(n,o) / float(K), 0.0)",
        "2*N*O*D + N*K*D", "N*O", lambda x, i, w: F.relu(x[i].mean(1) @ w.T), bounds={"I": "V"},
    ),
    "graph convolution": Program(
        "float(N,N) A, float(N,D) X, float(D,O) W", "T(n,o) +=! X(n,d) * W(d,o)  S(m,o) +=! A(m,n) * T(n,o)  Y(m,o) = fmax(S(m,o), 0.0)",
        "2*N*N*O + 2*N*D*O", "N*O", lambda a, x, w: F.relu(a @ (x @ w)),
    ),
    "sum of embeddings": Program(
        "float(V,D) t, float(L,D) p, float(S,D) s, int64(B,L) I, int64(B,L) K", "Y(b,l,d) = t(I(b,l),d) + p(l,d) + s(K(b,l),d)",
        "2*B*L*D", "B*L*D", lambda t, p, s, i, k: t[i] + p + s[k], bounds={"I": "V", "K": "S"},
    ),
    "linear and one of low rank": Program(
        "float(B,I) X, float(O,I) W, float(8,I) a, float(O,8) b",
        "T(n,r) +=! X(n,i) * a(r,i)  Y(n,o) +=! X(n,i) * W(o,i)  Y(n,o) += 0.5 * T(n,r) * b(o,r)",
        "2*B*O*I", "B*O", lambda x, w, a, b: x @ w.T + (x @ a.T) @ b.T * 0.5,
    ),
    "linear of scaled bytes": Program(
        "float(B,I) X, int8(O,I) W, float(O) s", "Y(b,o) +=! X(b,i) * float(W(o,i)) * s(o)",
        "2*B*I*O", "B*O", lambda x, w, s: x @ (w.to(x.dtype) * s[:, None]).T,
    ),
    "linear of bytes scaled by groups": Program(
        "float(B,G,I) X, int8(O,G,I) W, float(O,G) s", "Y(b,o) +=! X(b,g,i) * float(W(o,g,i)) * s(o,g)",
        "2*B*I*O*G", "B*O", lambda x, w, s: torch.einsum("bgi,ogi,og->bo", x, w.to(x.dtype), s),
    ),
    "products of blocks": Program(
        "float(B,G,I) X, float(G,I,J) W", "Y(b,g,j) +=! X(b,g,i) * W(g,i,j)",
        "2*B*G*I*J", "B*G*J", lambda x, w: torch.einsum("bgi,gij->bgj", x, w),
    ),
    "weight norm": Program(
        "float(O,I) V, float(O) g", "S(o) +=! V(o,i) * V(o,i)  Y(o,i) = V(o,i) * g(o) / sqrt(S(o))",
        "4*O*I", "O*I", lambda v, g: v * (g / v.norm(dim=1))[:, None],
    ),
    "range norm": Program(
        "float(B,N) X", "M(b) max=! X(b,n)  L(b) min=! X(b,n)  Y(b,n) = (X(b,n) - L(b)) / (M(b) - L(b) + 0.000001)",
        "4*B*N", "B*N", lambda x: (x - x.amin(1, keepdim=True)) / (x.amax(1, keepdim=True) - x.amin(1, keepdim=True) + 1e-6),
    ),
    "deviation over a batch": Program(
        "float(N,C,S) X",
        "U(c,s) +=! X(n,c,s) / float(N)  V(c,s) +=! (X(n,c,s) - U(c,s)) * (X(n,c,s) - U(c,s)) / float(N) "
        "Y(s) +=! sqrt(V(c,s) + 0.00000001) / float(C)",
        "6*N*C*S", "S", lambda x: x.var(0, unbiased=False).add(1e-8).sqrt().mean(0),
    ),
    "moments": Program(
        "float(B,N) X",
        "A(b) +=! X(b,n) / float(N)  V(b) +=! (X(b,n) - A(b)) * (X(b,n) - A(b)) "
        "S(b) +=! (X(b,n) - A(b)) * (X(b,n) - A(b)) * (X(b,n) - A(b))",
        "8*B*N", "3*B", _moments, returns="A, V, S",
    ),
    "Adam step": Program(
        "float(N,M) p, float(N,M) g, float(N,M) m, float(N,M) v",
        "A(i,j) = 0.9 * m(i,j) + 0.1 * g(i,j)  B(i,j) = 0.999 * v(i,j) + 0.001 * g(i,j) * g(i,j) "
        "Y(i,j) = p(i,j) - 0.001 * A(i,j) / (sqrt(fabs(B(i,j))) + 0.00000001)",
        "15*N*M", "3*N*M", _adam, returns="Y, A, B",
    ),
    "triplet loss": Program(
        "float(B,D) X, float(B,D) P, float(B,D) Q",
        "S(b) +=! (X(b,d) - P(b,d)) * (X(b,d) - P(b,d))  T(b) +=! (X(b,d) - Q(b,d)) * (X(b,d) - Q(b,d)) "
        "Y(b) = fmax(S(b) - T(b) + 1.0, 0.0)",
        "6*B*D", "B", lambda x, p, q: F.relu((x - p).pow(2).sum(1) - (x - q).pow(2).sum(1) + 1.0),
    ),
    "divergence": Program(
        "float(B,N) P, float(B,N) Q", "Y(b) +=! P(b,n) * (log(fabs(P(b,n)) + 0.000001) - log(fabs(Q(b,n)) + 0.000001))",
        "40*B*N", "B", lambda p, q: (p * (torch.log(p.abs() + 1e-6) - torch.log(q.abs() + 1e-6))).sum(1),
    ),
    "Huber loss": Program(
        "float(B,N) X, float(B,N) Z",
        "Y(b) +=! fabs(X(b,n) - Z(b,n)) < 1.0 ? 0.5 * (X(b,n) - Z(b,n)) * (X(b,n) - Z(b,n)) : fabs(X(b,n) - Z(b,n)) - 0.5",
        "6*B*N", "B", _huber,
    ),
    "focal loss": Program(
        "float(B,N) X, float(B,N) T",
        "p(b,n) = sigmoid(X(b,n)) * T(b,n) + (1.0 - sigmoid(X(b,n))) * (1.0 - T(b,n)) "
        "Y(b) +=! (1.0 - p(b,n)) * (1.0 - p(b,n)) * (0.0 - log(fabs(p(b,n)) + 0.000001))",
        "60*B*N", "B", _focal,
    ),
    "contrastive loss": Program(
        "float(N,D) X",
        "S(n) +=! X(n,d) * X(n,d)  G(i,j) +=! X(i,d) * X(j,d)  L(i,j) = 10.0 * G(i,j) * rsqrt(S(i) * S(j))  M(i) max=! L(i,j) "
        "Z(i) +=! exp(L(i,j) - M(i))  Y(i) = log(Z(i)) + M(i)",
        "2*N*N*D", "N", _contrast,
    ),
    "sums of pairs": Program(
        "float(B,N,D) X, float(B,M,D) Z", "Y(b,i,j) +=! fmax(X(b,i,d) + Z(b,j,d), 0.0)",
        "3*B*N*M*D", "B*N*M", lambda x, z: F.relu(x[:, :, None, :] + z[:, None, :, :]).sum(-1),
    ),
    "nearest code": Program(
        "float(N,D) X, float(K,D) C",
        "A(n,k) +=! (X(n,d) - C(k,d)) * (X(n,d) - C(k,d))  M(n) min=! A(n,k)  Y(n) min=! (A(n,k) == M(n)) ? k : K",
        "3*N*K*D", "N", lambda x, c: torch.cdist(x, c, compute_mode="donot_use_mm_for_euclid_dist").argmin(1).int(),
    ),
    "running mean": Program(
        "float(B,T) X", "S(b,t) +=! (s <= t ? X(b,s) : 0.0) where s in 0:T, t in 0:T  Y(b,t) = S(b,t) / float(t+1)",
        "3*B*T", "B*T", lambda x: x.cumsum(1) / torch.arange(1, x.shape[1] + 1, dtype=x.dtype),
    ),
    "complex product": Program(
        "float(M,K,2) a, float(K,N,2) b",
        "R(m,n) +=! a(m,k,0) * b(k,n,0) - a(m,k,1) * b(k,n,1)  S(m,n) +=! a(m,k,0) * b(k,n,1) + a(m,k,1) * b(k,n,0) "
        "Y(m,n,c) = c == 0 ? R(m,n) : S(m,n) where c in 0:2",
        "8*M*N*K", "2*M*N", _complex,
    ),
    "Tucker tensor": Program(
        "float(P,Q,R) g, float(I,P) a, float(J,Q) b, float(K,R) c", "Y(i,j,k) +=! g(p,q,r) * a(i,p) * b(j,q) * c(k,r)",
        "2*I*J*K*R", "I*J*K", lambda g, a, b, c: torch.einsum("pqr,ip,jq,kr->ijk", g, a, b, c),
    ),
    "tensor train": Program(
        "float(I,R) a, float(R,J,S) b, float(S,K) c", "Y(i,j,k) +=! a(i,r) * b(r,j,s) * c(s,k)",
        "2*I*J*K*S", "I*J*K", lambda a, b, c: torch.einsum("ir,rjs,sk->ijk", a, b, c),
    ),
    "trilinear form": Program(
        "float(B,I) x, float(B,J) y, float(B,K) z, float(I,J,K) T", "Y(b) +=! x(b,i) * y(b,j) * z(b,k) * T(i,j,k)",
        "2*B*I*J*K", "B", lambda x, y, z, t: torch.einsum("bi,bj,bk,ijk->b", x, y, z, t),
    ),
    "updated matrix": Program(
        "float(N,N) A, float(N) u, float(N) v, float(N) y, float(N) z",
        "B(i,j) = A(i,j) + u(i) * v(j)  x(j) +=! 0.5 * B(i,j) * y(i)  w(j) = x(j) + z(j)  Y(i) +=! B(i,j) * w(j)",
        "8*N*N", "N", _updated,
    ),
}  # fmt: skip
