"""Eighteen programs, each with the ratio that it must reach: ``python benchmarks/generality/required.py [NAMES] [--rounds 25]``.

A product, guards, windows, statistics of rows, stencils of two steps, other operators than sums, layouts: one program of each, beside eager
PyTorch and ``torch.compile`` in turns. The exit status is 1 where a result was wrong.
"""
from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE.parent), str(HERE.parent / "peers"), str(HERE.parents[1])]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from generality.operators import Argument, Operator, Work  # noqa: E402

MATMUL = "def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"
STATISTICS = "(X(n,c) - s(n) / C) * rsqrt(q(n) / C - (s(n) / C) * (s(n) / C) + 0.00001)"
GROUP = "s(n,g) / (C*H*W)"


@dataclass(frozen=True)
class Required:
    """A program and the least time of the faster peer over tcjit's that is asked of it."""

    operator: Operator
    ratio: float


def _blur(image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows = (image[:, :-2] + image[:, 1:-1] + image[:, 2:]) * 0.333333
    return rows, (rows[:-2] + rows[1:-1] + rows[2:]) * 0.333333


def _star(a: torch.Tensor) -> torch.Tensor:
    return (a[1:-1, 1:-1] + a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:]) * 0.2


def _program(name: str, ratio: float, text: str, reference: Any, *shapes: tuple[int, ...]) -> Required:
    arguments = tuple(Argument(f"T{i}", shape) for i, shape in enumerate(shapes))
    return Required(Operator("required", name, text, arguments, reference, Work(0, 0)), ratio)


PROGRAMS = [
    _program("matmul 1024^3", 1.17, MATMUL, torch.mm, (1024, 1024), (1024, 1024)),
    _program("matmul 128x1000x1024", 1.17, MATMUL, torch.mm, (128, 1024), (1024, 1000)),
    _program(
        "triangular product 384",
        4.42,
        "def f(float(N,N) L, float(N,N) U) -> (C) { C(m,n) +=! k >= m && k <= n ? L(m,k) * U(k,n) : 0.0 }",
        lambda a, b: torch.triu(a) @ torch.triu(b),
        (384, 384),
        (384, 384),
    ),
    _program(
        "causal product",
        3.23,
        "def f(float(B,T,T) P, float(B,T,D) V) -> (O) { O(b,q,d) +=! k <= q ? P(b,q,k) * V(b,k,d) : 0.0 }",
        lambda p, v: torch.tril(p) @ v,
        (8, 512, 512),
        (8, 512, 64),
    ),
    _program(
        "max pooling 3x3/2",
        1.93,
        "def f(float(N,C,H,W) I) -> (O) { O(n,c,h,w) max=! I(n,c,2*h+kh,2*w+kw) where kh in 0:3, kw in 0:3 }",
        lambda x: F.max_pool2d(x, 3, 2),
        (8, 64, 112, 112),
    ),
    _program(
        "average pooling 3-d",
        5.13,
        "def f(float(N,C,D,H,W) I) -> (O) {\n O(n,c,d,h,w) +=! I(n,c,2*d+kd,2*h+kh,2*w+kw) where kd in 0:3, kh in 0:3, kw in 0:3\n"
        " O(n,c,d,h,w) = O(n,c,d,h,w) / 27.0 }",
        lambda x: F.avg_pool3d(x, 3, 2),
        (2, 16, 33, 65, 65),
    ),
    _program(
        "group norm",
        1.56,
        "def f(float(N,G,C,H,W) X) -> (Y) {\n s(n,g) +=! X(n,g,c,h,w)\n q(n,g) +=! X(n,g,c,h,w) * X(n,g,c,h,w)\n"
        f" Y(n,g,c,h,w) = (X(n,g,c,h,w) - {GROUP}) * rsqrt(q(n,g) / (C*H*W) - ({GROUP}) * ({GROUP}) + 0.00001) }}",
        lambda x: F.group_norm(x.view(8, 256, 28, 28), 32).view(x.shape),
        (8, 32, 8, 28, 28),
    ),
    _program(
        "layer norm 4096x768",
        1.56,
        "def f(float(N,C) X, float(C) w, float(C) b) -> (Y) {\n s(n) +=! X(n,c)\n q(n) +=! X(n,c) * X(n,c)\n"
        f" Y(n,c) = {STATISTICS} * w(c) + b(c) }}",
        lambda x, w, b: F.layer_norm(x, (768,), w, b),
        (4096, 768),
        (768,),
        (768,),
    ),
    _program(
        "two-stage blur 2002^2",
        1.51,
        "def f(float(H,W) I) -> (X, Y) {\n X(y,x) = (I(y,x) + I(y,x+1) + I(y,x+2)) * 0.333333\n"
        " Y(y,x) = (X(y,x) + X(y+1,x) + X(y+2,x)) * 0.333333 }",
        _blur,
        (2002, 2002),
    ),
    _program(
        "Jacobi, two steps, 2004^2",
        1.74,
        "def f(float(H,W) A) -> (B) {\n T(i,j) = (A(i+1,j+1) + A(i,j+1) + A(i+2,j+1) + A(i+1,j) + A(i+1,j+2)) * 0.2\n"
        " B(i,j) = (T(i+1,j+1) + T(i,j+1) + T(i+2,j+1) + T(i+1,j) + T(i+1,j+2)) * 0.2 }",
        lambda a: _star(_star(a)),
        (2004, 2004),
    ),
    _program(
        "bilinear 128x64x64x128",
        3.87,
        "def f(float(B,I) X, float(O,I,J) W, float(B,J) Y) -> (Z) { Z(b,o) +=! X(b,i) * W(o,i,j) * Y(b,j) }",
        lambda x, w, y: F.bilinear(x, y, w),
        (128, 64),
        (128, 64, 64),
        (128, 64),
    ),
    _program(
        "min-plus 256^3",
        3.57,
        "def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) min=! A(m,k) + B(k,n) }",
        lambda a, b: (a[:, :, None] + b[None]).amin(1),
        (256, 256),
        (256, 256),
    ),
    _program(
        "L1 distance 512x512x64",
        13.2,
        "def f(float(M,K) A, float(N,K) B) -> (C) { C(m,n) +=! fabs(A(m,k) - B(n,k)) }",
        lambda a, b: torch.cdist(a, b, p=1.0),
        (512, 64),
        (512, 64),
    ),
    _program(
        "transposed convolution 4x4/2",
        1.02,
        "def f(float(N,C,H,W) X, float(C,O,4,4) K) -> (Y) {\n"
        " Y(n,o,h,w) +=! (h + 1 - kh) % 2 == 0 && (w + 1 - kw) % 2 == 0 && h + 1 >= kh && w + 1 >= kw && h + 1 - kh < 2*H"
        " && w + 1 - kw < 2*W ? X(n,c,(h+1-kh)/2,(w+1-kw)/2) * K(c,o,kh,kw) : 0.0 where h in 0:2*H, w in 0:2*W }",
        lambda x, k: F.conv_transpose2d(x, k, stride=2, padding=1),
        (4, 32, 28, 28),
        (32, 32, 4, 4),
    ),
    _program(
        "prefix sum 2048x512",
        1.74,
        "def f(float(M,N) X) -> (S) { S(i,j) +=! k <= j ? X(i,k) : 0.0 where j in 0:N }",
        lambda x: torch.cumsum(x, 1),
        (2048, 512),
    ),
    _program(
        "convolution 3x3, padded",
        0.9,
        "def f(float(N,C,H,W) I, float(O,C,3,3) K) -> (Y) {\n"
        " Y(n,o,h,w) +=! (h + kh >= 1 && h + kh <= H && w + kw >= 1 && w + kw <= W ? I(n,c,h+kh-1,w+kw-1) : 0.0) * K(o,c,kh,kw)"
        " where h in 0:H, w in 0:W }",
        lambda x, k: F.conv2d(x, k, padding=1),
        (4, 64, 56, 56),
        (64, 64, 3, 3),
    ),
    _program("column sum 8192x256", 1.32, "def f(float(M,N) A) -> (S) { S(j) +=! A(i,j) }", lambda a: a.sum(0), (8192, 256)),
    _program(
        "A^T B, K = 65536, 16x16",
        2.16,
        "def f(float(K,M) A, float(K,N) B) -> (C) { C(m,n) +=! A(k,m) * B(k,n) }",
        lambda a, b: a.t() @ b,
        (65536, 16),
        (65536, 16),
    ),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAMES", help="parts of names; all by default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=3.0, help="no more rounds of a program after so long")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()

    import machine

    from generality import ceilings, report
    from generality.measure import Settings, measure

    torch.set_num_threads(given.threads)
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    settings = Settings(rounds=given.rounds, seconds=given.seconds)
    records = []
    print(f"{machine.name()}, {given.threads} threads, torch {torch.__version__}")
    print(f"{'asked':>6} {report.HEADER}")
    with tempfile.TemporaryDirectory(prefix="tcjit-required-") as folder:
        os.environ["TCJIT_CACHE_DIR"] = folder
        limits = ceilings.measure()
        for program in PROGRAMS:
            if given.names and not any(part in program.operator.name for part in given.names):
                continue
            record = measure(program.operator, 0, settings, limits) | {"id": program.operator.name, "asked": program.ratio}
            records.append(record)
            print(f"{program.ratio:6.2f} {report.line(record)}", flush=True)
    short = [r for r in records if r["kind"] != "timed" or r["ratio"] < r["asked"]]
    print(f"{len(records) - len(short)} of {len(records)} as asked; short: {', '.join(r['id'] for r in short) or 'none'}")
    if given.json:
        given.json.write_text(json.dumps({"machine": machine.describe(), "rows": records}, indent=1) + "\n")
    return 1 if any(r["kind"] == "wrong" for r in records) else 0


if __name__ == "__main__":
    sys.exit(main())
