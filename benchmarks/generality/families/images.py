"""Programs over images, signals and points."""
from __future__ import annotations

import torch
import torch.nn.functional as F

from generality.families.program import Program

LEAST = {"H": 10, "W": 10}


def _cost_volume(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.stack([(x[..., 8:] * y[..., 8 - d : y.shape[3] - d]).sum(1) for d in range(8)], 1)


def _similarity(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a, b, c, d, e = (F.avg_pool2d(t, 7, 1) for t in (x, y, x * x, y * y, x * y))
    return ((2 * a * b + 1e-4) * (2 * (e - a * b) + 9e-4)) / ((a * a + b * b + 1e-4) * (c - a * a + d - b * b + 9e-4))


def _gradient(x: torch.Tensor) -> torch.Tensor:
    top, middle, bottom = x[:, :-2], x[:, 1:-1], x[:, 2:]
    across = sum(w * (row[..., 2:] - row[..., :-2]) for w, row in ((1, top), (2, middle), (1, bottom)))
    down = sum(w * (bottom - top)[..., k : x.shape[2] - 2 + k] for w, k in ((1, 0), (2, 1), (1, 2)))
    return torch.sqrt(across * across + down * down + 1e-6)


def _heat(x: torch.Tensor) -> torch.Tensor:
    inner = x[1:-1, 1:-1, 1:-1]
    beside = x[2:, 1:-1, 1:-1] + x[:-2, 1:-1, 1:-1] + x[1:-1, 2:, 1:-1] + x[1:-1, :-2, 1:-1] + x[1:-1, 1:-1, 2:] + x[1:-1, 1:-1, :-2]
    return inner + 0.1 * (beside - 6 * inner)


def _soft_place(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    p = torch.softmax(x.flatten(1), 1).view_as(x)
    columns, rows = (torch.arange(extent, dtype=x.dtype) for extent in (x.shape[2], x.shape[1]))
    return (p * columns).sum((1, 2)), (p * rows[:, None]).sum((1, 2))


def _filtered(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    n, c, h, w = x.shape
    return (F.unfold(x, 3).view(n, c, 9, h - 2, w - 2) * k[:, None, :, :-2, :-2]).sum(2)


def _separated(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.conv2d(F.conv2d(x, w[:, None], padding=1, groups=x.shape[1]), v[:, :, None, None])


PADDED = "h+i-1 >= 0 && h+i-1 < H && w+j-1 >= 0 && w+j-1 < W"

PROGRAMS = {
    "local response norm": Program(
        "float(N,C,H,W) X",
        "S(n,c,h,w) +=! (c+k-2 >= 0 && c+k-2 < C ? X(n,c+k-2,h,w) * X(n,c+k-2,h,w) : 0.0) where k in 0:5, c in 0:C "
        "Y(n,c,h,w) = X(n,c,h,w) * pow(1.0 + 0.00002 * S(n,c,h,w), -0.75)",
        "60*N*C*H*W", "N*C*H*W", lambda x: F.local_response_norm(x, 5, alpha=1e-4, beta=0.75, k=1.0), least={"C": 6},
    ),
    "cost volume": Program(
        "float(N,C,H,W) X, float(N,C,H,W) Z", "Y(n,d,h,w) +=! X(n,c,h,w+8) * Z(n,c,h,w+8-d) where d in 0:8, w in 0:W-8",
        "16*N*C*H*W", "8*N*H*W", _cost_volume, least={"W": 12},
    ),
    "structural similarity": Program(
        "float(N,H,W) X, float(N,H,W) Z",
        "A(n,h,w) +=! X(n,h+i,w+j) / 49.0 where i in 0:7, j in 0:7  B(n,h,w) +=! Z(n,h+i,w+j) / 49.0 where i in 0:7, j in 0:7 "
        "C(n,h,w) +=! X(n,h+i,w+j) * X(n,h+i,w+j) / 49.0 where i in 0:7, j in 0:7 "
        "D(n,h,w) +=! Z(n,h+i,w+j) * Z(n,h+i,w+j) / 49.0 where i in 0:7, j in 0:7 "
        "E(n,h,w) +=! X(n,h+i,w+j) * Z(n,h+i,w+j) / 49.0 where i in 0:7, j in 0:7 "
        "Y(n,h,w) = ((2.0*A(n,h,w)*B(n,h,w) + 0.0001) * (2.0*(E(n,h,w) - A(n,h,w)*B(n,h,w)) + 0.0009)) / ((A(n,h,w)*A(n,h,w) "
        "+ B(n,h,w)*B(n,h,w) + 0.0001) * (C(n,h,w) - A(n,h,w)*A(n,h,w) + D(n,h,w) - B(n,h,w)*B(n,h,w) + 0.0009))",
        "400*N*H*W", "N*H*W", _similarity, least=LEAST,
    ),
    "magnitudes of gradients": Program(
        "float(N,H,W) X",
        "A(n,i,j) = X(n,i,j+2) + 2.0*X(n,i+1,j+2) + X(n,i+2,j+2) - X(n,i,j) - 2.0*X(n,i+1,j) - X(n,i+2,j) "
        "B(n,i,j) = X(n,i+2,j) + 2.0*X(n,i+2,j+1) + X(n,i+2,j+2) - X(n,i,j) - 2.0*X(n,i,j+1) - X(n,i,j+2) "
        "Y(n,i,j) = sqrt(A(n,i,j)*A(n,i,j) + B(n,i,j)*B(n,i,j) + 0.000001)",
        "20*N*H*W", "N*H*W", _gradient, least=LEAST,
    ),
    "heat": Program(
        "float(D,H,W) X",
        "Y(i,j,k) = X(i+1,j+1,k+1) + 0.1 * (X(i+2,j+1,k+1) + X(i,j+1,k+1) + X(i+1,j+2,k+1) + X(i+1,j,k+1) + X(i+1,j+1,k+2) "
        "+ X(i+1,j+1,k) - 6.0*X(i+1,j+1,k+1))",
        "9*D*H*W", "D*H*W", _heat, least={"D": 4, **LEAST},
    ),
    "power spectrum": Program(
        "float(B,N) X, float(N,K) c, float(N,K) s",
        "P(b,k) +=! X(b,n) * c(n,k)  Q(b,k) +=! X(b,n) * s(n,k)  Y(b,k) = P(b,k)*P(b,k) + Q(b,k)*Q(b,k)",
        "4*B*N*K", "B*K", lambda x, c, s: (x @ c) ** 2 + (x @ s) ** 2,
    ),
    "rolling variance": Program(
        "float(B,T) X",
        "S(b,t) +=! X(b,t+k) / 16.0 where k in 0:16  Y(b,t) +=! (X(b,t+k) - S(b,t)) * (X(b,t+k) - S(b,t)) / 16.0 where k in 0:16",
        "80*B*T", "B*T", lambda x: x.unfold(1, 16, 1).var(-1, unbiased=False), least={"T": 20},
    ),
    "colour matrix": Program(
        "float(N,3,H,W) X, float(3,3) M", "T(n,d,h,w) +=! X(n,c,h,w) * M(d,c)  Y(n,d,h,w) = fmin(fmax(T(n,d,h,w), 0.0), 1.0)",
        "60*N*H*W", "3*N*H*W", lambda x, m: torch.einsum("nchw,dc->ndhw", x, m).clamp(0, 1),
    ),
    "reflected convolution": Program(
        "float(N,C,H,W) X, float(F,C,3,3) V",
        "P(n,c,y,x) = X(n, c, y == 0 ? 1 : (y == H+1 ? H-2 : y-1), x == 0 ? 1 : (x == W+1 ? W-2 : x-1)) where y in 0:H+2, x in 0:W+2 "
        "Y(n,f,h,w) +=! P(n,c,h+i,w+j) * V(f,c,i,j)",
        "18*N*C*F*H*W", "N*F*H*W", lambda x, v: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), v), least={"H": 4, "W": 4},
    ),
    "depthwise separable convolution": Program(
        "float(N,C,H,W) X, float(C,3,3) K, float(F,C) V",
        f"T(n,c,h,w) +=! ({PADDED} ? X(n,c,h+i-1,w+j-1) * K(c,i,j) : 0.0) where h in 0:H, w in 0:W  Y(n,f,h,w) +=! T(n,c,h,w) * V(f,c)",
        "2*N*C*(9+F)*H*W", "N*F*H*W", _separated, least={"H": 4, "W": 4},
    ),
    "residual block": Program(
        "float(N,C,H,W) X, float(C,C,3,3) V, float(C,C,3,3) U",
        f"T(n,f,h,w) +=! ({PADDED} ? X(n,c,h+i-1,w+j-1) * V(f,c,i,j) : 0.0) where h in 0:H, w in 0:W  R(n,f,h,w) = fmax(T(n,f,h,w), 0.0) "
        f"S(n,f,h,w) +=! ({PADDED} ? R(n,c,h+i-1,w+j-1) * U(f,c,i,j) : 0.0) where h in 0:H, w in 0:W "
        "Y(n,f,h,w) = fmax(S(n,f,h,w) + X(n,f,h,w), 0.0)",
        "36*N*C*C*H*W", "N*C*H*W", lambda x, v, u: F.relu(F.conv2d(F.relu(F.conv2d(x, v, padding=1)), u, padding=1) + x),
        least={"H": 4, "W": 4},
    ),
    "instance norm": Program(
        "float(N,C,H,W) X",
        "S(n,c) +=! X(n,c,h,w)  Q(n,c) +=! (X(n,c,h,w) - S(n,c) / float(H*W)) * (X(n,c,h,w) - S(n,c) / float(H*W)) "
        "Y(n,c,h,w) = (X(n,c,h,w) - S(n,c) / float(H*W)) * rsqrt(Q(n,c) / float(H*W) + 0.00001)",
        "8*N*C*H*W", "N*C*H*W", F.instance_norm, least={"H": 4, "W": 4},
    ),
    "soft place of a maximum": Program(
        "float(N,H,W) X",
        "M(n) max=! X(n,h,w)  Z(n) +=! exp(X(n,h,w) - M(n))  A(n) +=! exp(X(n,h,w) - M(n)) / Z(n) * float(w) "
        "B(n) +=! exp(X(n,h,w) - M(n)) / Z(n) * float(h)",
        "60*N*H*W", "2*N", _soft_place, returns="A, B",
    ),
    "nearest points": Program(
        "float(B,N,3) X, float(B,M,3) Z", "D(b,i,j) +=! (X(b,i,d) - Z(b,j,d)) * (X(b,i,d) - Z(b,j,d))  Y(b,i) min=! D(b,i,j)",
        "10*B*N*M", "B*N", lambda x, z: torch.cdist(x, z, compute_mode="donot_use_mm_for_euclid_dist").pow(2).amin(2),
    ),
    "patches": Program(
        "float(N,C,H,P,W,Q) X, float(F,C,P,Q) V", "Y(n,h,w,f) +=! X(n,c,h,p,w,q) * V(f,c,p,q)",
        "2*N*C*H*P*W*Q*F", "N*H*W*F", lambda x, v: torch.einsum("nchpwq,fcpq->nhwf", x, v),
    ),
    "filters of each place": Program(
        "float(N,C,H,W) X, float(N,9,H,W) K",
        "Y(n,c,h,w) +=! X(n,c,h+i,w+j) * K(n,3*i+j,h,w) where i in 0:3, j in 0:3, h in 0:H-2, w in 0:W-2",
        "18*N*C*H*W", "N*C*H*W", _filtered, least={"H": 4, "W": 4},
    ),
    "channel shuffle": Program(
        "float(N,G,C,S) X", "Y(n,c,g,s) = X(n,g,c,s)", "N*G*C*S", "N*G*C*S", lambda x: x.transpose(1, 2).contiguous()
    ),
}  # fmt: skip
