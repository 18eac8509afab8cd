"""Programs of several statements, as researchers write them: layers, losses, statistics, geometry, of random sizes."""
from __future__ import annotations

import random

import torch
import torch.nn.functional as F

from generality.families import images, layers
from generality.families.program import Program
from generality.operators import Argument, Operator
from generality.sizes import extents


def program(rng: random.Random, seconds: float) -> Operator:
    every = PROGRAMS | images.PROGRAMS | layers.PROGRAMS
    name = rng.choice(sorted(every))
    made = every[name]
    least = [made.least.get(size, 2) for size in made.sizes]
    values = extents(rng, seconds, lambda *values: made.work(dict(zip(made.sizes, values))), least)
    sizes = dict(zip(made.sizes, values))

    def extent(dim: str) -> int:
        return int(dim) if dim.isdigit() else sizes[dim]

    arguments = tuple(
        Argument(tensor, tuple(map(extent, dims)), dtype, extent(made.bounds[tensor]) if tensor in made.bounds else None)
        for dtype, tensor, dims in made.tensors
    )
    title = f"{name} {' '.join(f'{size}={value}' for size, value in sizes.items())}"
    return Operator("program", title, made.text, arguments, made.reference, made.work({size: float(v) for size, v in sizes.items()}))


def _separable(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return F.conv2d(F.conv2d(x[:, None], g[None, None, :, None]), g[None, None, None, :])[:, 0]


def _decayed(x: torch.Tensor) -> torch.Tensor:
    steps = torch.arange(x.shape[1], dtype=x.dtype)
    return torch.einsum("ts,bsc->btc", (0.9 ** (steps[:, None] - steps).clamp(min=0)).tril(), x)


def _n_body(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    apart = x[None] - x[:, None]
    return ((m * (apart.pow(2).sum(-1) + 0.01).pow(-1.5))[:, :, None] * apart).sum(1)


def _rotary(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    first, second = x[..., 0, :], x[..., 1, :]
    return torch.stack((first * c - second * s, second * c + first * s), -2)


def _iou(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    wide = (torch.minimum(a[:, None, 2], b[:, 2]) - torch.maximum(a[:, None, 0], b[:, 0])).clamp(min=0)
    high = (torch.minimum(a[:, None, 3], b[:, 3]) - torch.maximum(a[:, None, 1], b[:, 1])).clamp(min=0)
    return wide * high



def _laplace(x: torch.Tensor) -> torch.Tensor:
    return 0.2 * (x[:-2, 1:-1] + x[1:-1, :-2] + x[1:-1, 1:-1] + x[1:-1, 2:] + x[2:, 1:-1])


PROGRAMS = {
    "two layers": Program(
        "float(B,I) X, float(H,I) W, float(H) b, float(O,H) V",
        "T(n,h) +=! X(n,i) * W(h,i)  T(n,h) = fmax(T(n,h) + b(h), 0.0)  Y(n,o) +=! T(n,h) * V(o,h)",
        "2*B*H*(I+O)", "B*O", lambda x, w, b, v: F.relu(F.linear(x, w, b)) @ v.T,
    ),
    "attention": Program(
        "float(B,H,Q,D) q, float(B,H,K,D) k, float(B,H,K,D) v",
        "S(b,h,i,j) +=! q(b,h,i,d) * k(b,h,j,d)  M(b,h,i) max=! S(b,h,i,j)  E(b,h,i,j) = exp((S(b,h,i,j) - M(b,h,i)) * 0.125) "
        "Z(b,h,i) +=! E(b,h,i,j)  Y(b,h,i,d) +=! E(b,h,i,j) * v(b,h,j,d)  Y(b,h,i,d) = Y(b,h,i,d) / Z(b,h,i)",
        "4*B*H*Q*K*D + 20*B*H*Q*K", "B*H*Q*D", lambda q, k, v: torch.softmax(q @ k.mT * 0.125, -1) @ v, least={"D": 8},
    ),
    "squared distances": Program(
        "float(N,D) X, float(M,D) Z", "Y(i,j) +=! (X(i,d) - Z(j,d)) * (X(i,d) - Z(j,d))",
        "3*N*M*D", "N*M", lambda x, z: torch.cdist(x, z, compute_mode="donot_use_mm_for_euclid_dist") ** 2,
    ),
    "Gaussian kernel": Program(
        "float(N,D) X, float(M,D) Z", "T(i,j) +=! (X(i,d) - Z(j,d)) * (X(i,d) - Z(j,d))  Y(i,j) = exp(-0.1 * T(i,j))",
        "3*N*M*D + 20*N*M", "N*M", lambda x, z: torch.exp(-0.1 * torch.cdist(x, z, compute_mode="donot_use_mm_for_euclid_dist") ** 2),
    ),
    "L1 distances": Program(
        "float(N,D) X, float(M,D) Z", "Y(i,j) +=! fabs(X(i,d) - Z(j,d))", "3*N*M*D", "N*M", lambda x, z: torch.cdist(x, z, p=1)
    ),
    "bilinear": Program(
        "float(B,I) X, float(O,I,J) W, float(B,J) Z", "Y(b,o) +=! X(b,i) * W(o,i,j) * Z(b,j)",
        "2*B*O*I*J", "B*O", lambda x, w, z: F.bilinear(x, z, w),
    ),
    "layer norm, linear": Program(
        "float(B,I) X, float(I) g, float(I) h, float(O,I) W",
        "S(b) +=! X(b,i)  V(b) +=! (X(b,i) - S(b) / float(I)) * (X(b,i) - S(b) / float(I)) "
        "N(b,i) = (X(b,i) - S(b) / float(I)) * rsqrt(V(b) / float(I) + 1e-5) * g(i) + h(i)  Y(b,o) +=! N(b,i) * W(o,i)",
        "2*B*I*O", "B*O", lambda x, g, h, w: F.linear(F.layer_norm(x, x.shape[1:], g, h), w),
    ),
    "group norm, SiLU": Program(
        "float(N,G,C,S) X, float(G,C) g, float(G,C) h",
        "A(n,k) +=! X(n,k,c,s)  V(n,k) +=! (X(n,k,c,s) - A(n,k) / float(C*S)) * (X(n,k,c,s) - A(n,k) / float(C*S)) "
        "T(n,k,c,s) = (X(n,k,c,s) - A(n,k) / float(C*S)) * rsqrt(V(n,k) / float(C*S) + 1e-5) * g(k,c) + h(k,c) "
        "Y(n,k,c,s) = T(n,k,c,s) / (1.0 + exp(-T(n,k,c,s)))",
        "30*N*G*C*S", "N*G*C*S",
        lambda x, g, h: F.silu(F.group_norm(x.flatten(1, 2), x.shape[1], g.flatten(), h.flatten())).reshape(x.shape), least={"S": 8},
    ),
    "cross entropy": Program(
        "float(B,C) X, int64(B) T", "M(b) max=! X(b,c)  Z(b) +=! exp(X(b,c) - M(b))  Y(b) = log(Z(b)) + M(b) - X(b,T(b))",
        "20*B*C", "B", lambda x, t: F.cross_entropy(x, t, reduction="none"), bounds={"T": "C"},
    ),
    "rotary embedding": Program(
        "float(B,S,2,D) X, float(S,D) c, float(S,D) s",
        "Y(b,i,k,d) = k == 0 ? X(b,i,0,d) * c(i,d) - X(b,i,1,d) * s(i,d) : X(b,i,1,d) * c(i,d) + X(b,i,0,d) * s(i,d) where k in 0:2",
        "6*B*S*D", "2*B*S*D", _rotary,
    ),
    "batch norm, training": Program(
        "float(N,C,S) X",
        "A(c) +=! X(n,c,s)  V(c) +=! (X(n,c,s) - A(c) / float(N*S)) * (X(n,c,s) - A(c) / float(N*S)) "
        "Y(n,c,s) = (X(n,c,s) - A(c) / float(N*S)) * rsqrt(V(c) / float(N*S) + 1e-5)",
        "8*N*C*S", "N*C*S", lambda x: F.batch_norm(x, None, None, training=True), least={"S": 8},
    ),
    "Kalman covariance": Program(
        "float(B,N,N) A, float(B,N,N) C, float(N,N) Q",
        "T(b,i,k) +=! A(b,i,j) * C(b,j,k)  Y(b,i,l) +=! T(b,i,k) * A(b,l,k)  Y(b,i,l) = Y(b,i,l) + Q(i,l)",
        "4*B*N*N*N", "B*N*N", lambda a, c, q: a @ c @ a.mT + q,
    ),
    "products of 4 x 4": Program("float(B,4,4) A, float(B,4,4) C", "Y(b,i,k) +=! A(b,i,j) * C(b,j,k)", "128*B", "16*B", torch.bmm),
    "covariance": Program(
        "float(N,D) X", "S(d) +=! X(n,d)  Y(i,j) +=! (X(n,i) - S(i) / float(N)) * (X(n,j) - S(j) / float(N))",
        "2*N*D*D", "D*D", lambda x: (x - x.mean(0)).T @ (x - x.mean(0)), least={"N": 8},
    ),
    "SwiGLU": Program(
        "float(B,I) X, float(H,I) W, float(H,I) V",
        "A(b,h) +=! X(b,i) * W(h,i)  G(b,h) +=! X(b,i) * V(h,i)  Y(b,h) = A(b,h) / (1.0 + exp(-A(b,h))) * G(b,h)",
        "4*B*H*I", "B*H", lambda x, w, v: F.silu(x @ w.T) * (x @ v.T),
    ),
    "factorization machine": Program(
        "float(B,D,K) X", "S(b,k) +=! X(b,d,k)  Q(b,k) +=! X(b,d,k) * X(b,d,k)  Y(b) +=! 0.5 * (S(b,k) * S(b,k) - Q(b,k))",
        "4*B*D*K", "B", lambda x: 0.5 * (x.sum(1) ** 2 - (x**2).sum(1)).sum(1),
    ),
    "squeeze and excite": Program(
        "float(N,C,S) X, float(R,C) W, float(C,R) V",
        "P(n,c) +=! X(n,c,s) / float(S)  H(n,r) +=! P(n,c) * W(r,c)  H(n,r) = fmax(H(n,r), 0.0)  A(n,c) +=! H(n,r) * V(c,r) "
        "Y(n,c,s) = X(n,c,s) / (1.0 + exp(-A(n,c)))",
        "4*N*C*S + 4*N*C*R", "N*C*S", lambda x, w, v: x * torch.sigmoid(F.relu(x.mean(2) @ w.T) @ v.T)[:, :, None], least={"S": 8},
    ),
    "cosine similarity": Program(
        "float(N,D) X, float(M,D) Z",
        "A(i) +=! X(i,d) * X(i,d)  B(j) +=! Z(j,d) * Z(j,d)  T(i,j) +=! X(i,d) * Z(j,d)  Y(i,j) = T(i,j) * rsqrt(A(i) * B(j))",
        "2*N*M*D", "N*M", lambda x, z: F.normalize(x) @ F.normalize(z).T,
    ),
    "separable blur": Program(
        "float(C,H,W) X, float(9) G", "T(c,i,j) +=! X(c,i+k,j) * G(k)  Y(c,i,j) +=! T(c,i,j+k) * G(k)",
        "36*C*H*W", "C*H*W", _separable, least={"H": 16, "W": 16},
    ),
    "convolution, ReLU, pool": Program(
        "float(N,C,H,W) X, float(F,C,3,3) V",
        "T(n,f,h,w) +=! X(n,c,h+i,w+j) * V(f,c,i,j) "
        "Y(n,f,h,w) max=! fmax(T(n,f,2*h+i,2*w+j), 0.0) where i in 0:2, j in 0:2, h in 0:(H-2)/2, w in 0:(W-2)/2",
        "18*N*C*F*H*W", "N*F*H*W/4", lambda x, v: F.max_pool2d(F.relu(F.conv2d(x, v)), 2), least={"H": 6, "W": 6},
    ),
    "decayed sums": Program(
        "float(B,T,C) X", "Y(b,t,c) +=! (s <= t ? X(b,s,c) * pow(0.9, float(t - s)) : 0.0) where s in 0:T, t in 0:T",
        "B*T*T*C", "B*T*C", _decayed,
    ),
    "gate of experts": Program(
        "float(B,D) X, float(E,D) W", "T(b,e) +=! X(b,d) * W(e,d)  M(b) max=! T(b,e)  Z(b) +=! exp(T(b,e) - M(b)) "
        "Y(b,e) = exp(T(b,e) - M(b)) / Z(b)",
        "2*B*D*E + 40*B*E", "B*E", lambda x, w: torch.softmax(x @ w.T, 1),
    ),
    "softmax with linear biases": Program(
        "float(H,Q,K) S, float(H) m",
        "T(h,i,j) = S(h,i,j) - m(h) * fabs(float(i - j))  A(h,i) max=! T(h,i,j)  E(h,i,j) = exp(T(h,i,j) - A(h,i)) "
        "Z(h,i) +=! E(h,i,j)  Y(h,i,j) = E(h,i,j) / Z(h,i)",
        "30*H*Q*K", "H*Q*K",
        lambda s, m: torch.softmax(s - m[:, None, None] * (torch.arange(s.shape[1])[:, None] - torch.arange(s.shape[2])).abs(), -1),
    ),
    "affine map of points": Program(
        "float(B,N,3) X, float(B,3,3) A, float(B,3) t", "Y(b,n,i) +=! X(b,n,j) * A(b,i,j)  Y(b,n,i) = Y(b,n,i) + t(b,i)",
        "18*B*N", "3*B*N", lambda x, a, t: torch.baddbmm(t[:, None], x, a.mT),
    ),
    "weighted rows of a table": Program(
        "float(V,D) E, int64(B,L) I, float(B,L) w", "Y(b,d) +=! w(b,l) * E(I(b,l),d)",
        "2*B*L*D", "B*D", lambda e, i, w: F.embedding_bag(i, e, per_sample_weights=w, mode="sum"), bounds={"I": "V"},
    ),
    "rows of a table, linear": Program(
        "float(V,D) E, int64(B) I, float(H,D) W", "Y(b,h) +=! E(I(b),d) * W(h,d)  Y(b,h) = fmax(Y(b,h), 0.0)",
        "2*B*H*D", "B*H", lambda e, i, w: F.relu(F.linear(F.embedding(i, e), w)), bounds={"I": "V"},
    ),
    "variance of columns": Program(
        "float(N,D) X", "S(d) +=! X(n,d)  Y(d) +=! (X(n,d) - S(d) / float(N)) * (X(n,d) - S(d) / float(N)) / float(N)",
        "5*N*D", "D", lambda x: x.var(0, unbiased=False), least={"N": 8},
    ),
    "quadratic form": Program(
        "float(B,N) X, float(N,N) A", "Y(b) +=! X(b,i) * A(i,j) * X(b,j)", "2*B*N*N", "B", lambda x, a: ((x @ a) * x).sum(1)
    ),
    "Mahalanobis distance": Program(
        "float(N,D) X, float(D) m, float(D,D) S", "Y(n) +=! (X(n,i) - m(i)) * S(i,j) * (X(n,j) - m(j))",
        "2*N*D*D", "N", lambda x, m, s: (((x - m) @ s) * (x - m)).sum(1),
    ),
    "n bodies": Program(
        "float(N,3) X, float(N) m",
        "R(i,j) +=! (X(j,d) - X(i,d)) * (X(j,d) - X(i,d))  Q(i,j) = m(j) * pow(R(i,j) + 0.01, -1.5)  Y(i,d) +=! Q(i,j) * (X(j,d) - X(i,d))",
        "40*N*N", "3*N", _n_body,
    ),
    "log sum exp of columns": Program(
        "float(N,D) X", "M(d) max=! X(n,d)  Z(d) +=! exp(X(n,d) - M(d))  Y(d) = log(Z(d)) + M(d)",
        "20*N*D", "D", lambda x: torch.logsumexp(x, 0),
    ),
    "convolution, norm, ReLU": Program(
        "float(N,C,H,W) X, float(F,C,3,3) V, float(F) s, float(F) b",
        "Y(n,f,h,w) +=! (h+i-1 >= 0 && h+i-1 < H && w+j-1 >= 0 && w+j-1 < W ? X(n,c,h+i-1,w+j-1) * V(f,c,i,j) : 0.0) "
        "where h in 0:H, w in 0:W  Y(n,f,h,w) = fmax(Y(n,f,h,w) * s(f) + b(f), 0.0)",
        "18*N*C*F*H*W", "N*F*H*W",
        lambda x, v, s, b: F.relu(F.conv2d(x, v, padding=1) * s[:, None, None] + b[:, None, None]), least={"H": 4, "W": 4},
    ),
    "RMS norm, linear": Program(
        "float(B,I) X, float(I) g, float(O,I) W",
        "S(b) +=! X(b,i) * X(b,i)  Y(b,o) +=! X(b,i) * rsqrt(S(b) / float(I) + 1e-6) * g(i) * W(o,i)",
        "2*B*I*O", "B*O", lambda x, g, w: F.linear(F.rms_norm(x, x.shape[1:], g, 1e-6), w),
    ),
    "linear attention": Program(
        "float(B,N,D) q, float(B,N,D) k, float(B,N,E) v", "A(b,d,e) +=! k(b,n,d) * v(b,n,e)  Y(b,n,e) +=! q(b,n,d) * A(b,d,e)",
        "4*B*N*D*E", "B*N*E", lambda q, k, v: q @ (k.mT @ v),
    ),
    "centred projection": Program(
        "float(N,D) X, float(D) m, float(D,K) W", "Y(n,k) +=! (X(n,d) - m(d)) * W(d,k)", "2*N*D*K", "N*K", lambda x, m, w: (x - m) @ w
    ),
    "masked mean": Program(
        "float(B,T,D) X, bool(B,T) m",
        "C(b) +=! (m(b,t) ? 1.0 : 0.0)  Y(b,d) +=! (m(b,t) ? X(b,t,d) : 0.0)  Y(b,d) = Y(b,d) / fmax(C(b), 1.0)",
        "2*B*T*D", "B*D", lambda x, m: (x * m[:, :, None]).sum(1) / m.sum(1, keepdim=True).clamp(min=1), bounds={"m": "2"},
    ),
    "masked softmax": Program(
        "float(B,Q,K) S, bool(B,K) m",
        "M(b,i) max=! (m(b,j) ? S(b,i,j) : -1e30)  E(b,i,j) = exp((m(b,j) ? S(b,i,j) : -1e30) - M(b,i))  Z(b,i) +=! E(b,i,j) "
        "Y(b,i,j) = E(b,i,j) / Z(b,i)",
        "30*B*Q*K", "B*Q*K", lambda s, m: torch.softmax(s.masked_fill(~m[:, None], -1e30), -1), bounds={"m": "2"},
    ),
    "CP tensor": Program(
        "float(I,R) A, float(J,R) B, float(K,R) C", "Y(i,j,k) +=! A(i,r) * B(j,r) * C(k,r)",
        "2*I*J*K*R", "I*J*K", lambda a, b, c: torch.einsum("ir,jr,kr->ijk", a, b, c),
    ),
    "MTTKRP": Program(
        "float(I,J,K) X, float(J,R) B, float(K,R) C", "Y(i,r) +=! X(i,j,k) * B(j,r) * C(k,r)",
        "2*I*J*K*R", "I*R", lambda x, b, c: torch.einsum("ijk,jr,kr->ir", x, b, c),
    ),
    "two Jacobi steps": Program(
        "float(H,W) X",
        "T(i,j) = 0.2 * (X(i,j+1) + X(i+1,j) + X(i+1,j+1) + X(i+1,j+2) + X(i+2,j+1)) "
        "Y(i,j) = 0.2 * (T(i,j+1) + T(i+1,j) + T(i+1,j+1) + T(i+1,j+2) + T(i+2,j+1))",
        "10*H*W", "H*W", lambda x: _laplace(_laplace(x)), least={"H": 6, "W": 6},
    ),
    "overlaps of boxes": Program(
        "float(N,4) A, float(M,4) B",
        "Y(i,j) = fmax(fmin(A(i,2), B(j,2)) - fmax(A(i,0), B(j,0)), 0.0) * fmax(fmin(A(i,3), B(j,3)) - fmax(A(i,1), B(j,1)), 0.0)",
        "9*N*M", "N*M", _iou,
    ),
    "interactions of features": Program(
        "float(B,I,D) X", "Y(b,i,j) +=! (j < i ? X(b,i,d) * X(b,j,d) : 0.0) where i in 0:I, j in 0:I",
        "B*I*I*D", "B*I*I", lambda x: (x @ x.mT).tril(-1),
    ),
    "gated dilated convolutions": Program(
        "float(B,C,T) X, float(O,C,2) W, float(O,C,2) V",
        "A(b,o,t) +=! X(b,c,t+8*k) * W(o,c,k)  G(b,o,t) +=! X(b,c,t+8*k) * V(o,c,k)  Y(b,o,t) = tanh(A(b,o,t)) / (1.0 + exp(-G(b,o,t)))",
        "8*B*O*C*T", "B*O*T", lambda x, w, v: torch.tanh(F.conv1d(x, w, dilation=8)) * torch.sigmoid(F.conv1d(x, v, dilation=8)),
        least={"T": 16},
    ),
    "hinge loss": Program(
        "float(B,C) X, int64(B) T", "Y(b) +=! fmax(1.0 + X(b,c) - X(b,T(b)), 0.0)",
        "3*B*C", "B", lambda x, t: (1 + x - x.gather(1, t[:, None])).clamp(min=0).sum(1), bounds={"T": "C"},
    ),
    "average pool, 1 x 1 convolution": Program(
        "float(N,C,H,W) X, float(F,C) V",
        "P(n,c,h,w) +=! 0.25 * X(n,c,2*h+i,2*w+j) where i in 0:2, j in 0:2, h in 0:H/2, w in 0:W/2  Y(n,f,h,w) +=! P(n,c,h,w) * V(f,c)",
        "N*C*F*H*W/2", "N*F*H*W/4", lambda x, v: F.conv2d(F.avg_pool2d(x, 2), v[:, :, None, None]), least={"H": 4, "W": 4},
    ),
    "gradient of a softmax": Program(
        "float(B,N) P, float(B,N) G", "S(b) +=! P(b,i) * G(b,i)  Y(b,i) = P(b,i) * (G(b,i) - S(b))",
        "5*B*N", "B*N", lambda p, g: p * (g - (p * g).sum(1, keepdim=True)),
    ),
    "gradient of a scale": Program(
        "float(B,N) X, float(B,N) G", "Y(i) +=! X(b,i) * G(b,i)", "2*B*N", "N", lambda x, g: (x * g).sum(0)
    ),
    "Gram matrix": Program(
        "float(N,C,S) X", "Y(n,i,j) +=! X(n,i,s) * X(n,j,s) / float(S)", "2*N*C*C*S", "N*C*C", lambda x: x @ x.mT / x.shape[2]
    ),
    "binary cross entropy": Program(
        "float(B,N) X, float(B,N) T", "Y(b) +=! fmax(X(b,i), 0.0) - X(b,i) * T(b,i) + log(1.0 + exp(-fabs(X(b,i))))",
        "40*B*N", "B", lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none").sum(1),
    ),
    "shortest paths": Program(
        "float(M,K) A, float(K,N) B", "Y(m,n) min=! A(m,k) + B(k,n)", "2*M*K*N", "M*N", lambda a, b: (a[:, :, None] + b).amin(1)
    ),
    "autocorrelation": Program(
        "float(B,T) X", "Y(b,l) +=! X(b,t) * X(b,t+l) where l in 0:32, t in 0:T-31",
        "64*B*T", "32*B", lambda x: torch.einsum("bt,btl->bl", x[:, : x.shape[1] - 31], x.unfold(1, 32, 1)), least={"T": 48},
    ),
}  # fmt: skip
