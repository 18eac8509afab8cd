"""Gradients of defs beside PyTorch's own: ``python benchmarks/gradients.py [NAMES...]``.

Each row is the backward of one call, of float32 arguments on the CPU: the derived adjoint's time against that of PyTorch's backward of the
same function, in turns, the median of three readings; only the gradients named are asked for. ``first s`` is the derivation and compilation
of the adjoint at its first use. ``--library`` times these two for the operators of the library instead, beside the forward's compilation.
"""
from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE), str(HERE / "peers"), str(HERE.parent)]

import machine  # noqa: E402 - the path above comes first
from clock import median  # noqa: E402

READING_S = 0.3
Reference = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Row:
    """``text`` of one def with its arguments, drawn anew, its PyTorch form, and the positions of the arguments that need gradients."""

    text: str
    arguments: Callable[[], Sequence[torch.Tensor]]
    reference: Reference
    wrt: tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """A convolution of ``extent`` x ``extent`` images with kernels of ``width`` x ``width`` and padding ``width // 2``; ``outputs`` is 0
    where each channel has a kernel of its own."""

    channels: int
    outputs: int
    extent: int
    width: int = 1
    stride: int = 1

    def __str__(self) -> str:
        to = f"-{self.outputs}" if self.outputs else " depthwise"
        stride = f"/{self.stride}" if self.stride > 1 else ""
        return f"{self.channels}{to} {self.extent} {self.width}x{self.width}{stride}"

    def row(self, wrt: int) -> Row:
        """Its backward by data (0) or by weight (1), of four images."""
        pad, size = self.width // 2, (self.extent + 2 * (self.width // 2) - self.width) // self.stride + 1
        places = [(f"{self.stride}*{d}+{k}-{pad}", extent) for d, k, extent in (("h", "i", "H"), ("w", "j", "W"))]
        inside = " && ".join(f"{place} >= 0 && {place} < {extent}" for place, extent in places)
        read = f"X(n,c,{places[0][0]},{places[1][0]})"
        value, left = f"({inside} ? {read} : 0.0)" if pad else read, "n,f,h,w" if self.outputs else "n,c,h,w"
        kernel = "float(F,C,A,B) K" if self.outputs else "float(C,A,B) K"
        product = f"{value} * K({'f,' if self.outputs else ''}c,i,j)"
        text = f"def f(float(N,C,H,W) X, {kernel}) -> (Y) {{ Y({left}) +=! {product} where h in 0:{size}, w in 0:{size} }}"
        shape = (self.outputs, self.channels, self.width, self.width) if self.outputs else (self.channels, self.width, self.width)
        groups = 1 if self.outputs else self.channels

        def reference(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            return F.conv2d(x, k if self.outputs else k[:, None], stride=self.stride, padding=pad, groups=groups)

        return Row(text, lambda: (torch.randn(4, self.channels, self.extent, self.extent), torch.randn(*shape)), reference, (wrt,))


# the convolutions of ResNet-50 and of MobileNetV2, each once
RESNET50 = (
    Layer(3, 64, 224, 7, 2), Layer(64, 64, 56), Layer(64, 64, 56, 3), Layer(64, 256, 56), Layer(256, 64, 56), Layer(256, 128, 56),
    Layer(128, 128, 56, 3, 2), Layer(256, 512, 56, 1, 2), Layer(128, 512, 28), Layer(512, 128, 28), Layer(128, 128, 28, 3),
    Layer(512, 256, 28), Layer(256, 256, 28, 3, 2), Layer(512, 1024, 28, 1, 2), Layer(256, 1024, 14), Layer(1024, 256, 14),
    Layer(256, 256, 14, 3), Layer(1024, 512, 14), Layer(512, 512, 14, 3, 2), Layer(1024, 2048, 14, 1, 2), Layer(512, 2048, 7),
    Layer(2048, 512, 7), Layer(512, 512, 7, 3),
)  # fmt: skip
MOBILENET_V2 = (
    Layer(3, 32, 224, 3, 2), Layer(32, 0, 112, 3), Layer(32, 16, 112), Layer(16, 96, 112), Layer(96, 0, 112, 3, 2), Layer(96, 24, 56),
    Layer(24, 144, 56), Layer(144, 0, 56, 3), Layer(144, 24, 56), Layer(144, 0, 56, 3, 2), Layer(144, 32, 28), Layer(32, 192, 28),
    Layer(192, 0, 28, 3), Layer(192, 32, 28), Layer(192, 0, 28, 3, 2), Layer(192, 64, 14), Layer(64, 384, 14), Layer(384, 0, 14, 3),
    Layer(384, 64, 14), Layer(384, 96, 14), Layer(96, 576, 14), Layer(576, 0, 14, 3), Layer(576, 96, 14), Layer(576, 0, 14, 3, 2),
    Layer(576, 160, 7), Layer(160, 960, 7), Layer(960, 0, 7, 3), Layer(960, 160, 7), Layer(960, 320, 7), Layer(320, 1280, 7),
)  # fmt: skip
NETWORKS = {f"{layer} by {what}": layer.row(wrt) for layer in (*RESNET50, *MOBILENET_V2) for wrt, what in enumerate(("data", "weight"))}

MATMUL = "def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"
LOG_SOFTMAX = "def f(float(M,N) X) -> (Y) { T(m) max=! X(m,n)  S(m) +=! exp(X(m,n) - T(m))  Y(m,n) = X(m,n) - T(m) - log(S(m)) }"
LAYER_NORM = """def f(float(M,N) X, float(N) w, float(N) b) -> (Y) {
    m(i) +=! X(i,j)  v(i) +=! (X(i,j) - m(i) / N) * (X(i,j) - m(i) / N)
    Y(i,j) = (X(i,j) - m(i) / N) * rsqrt(v(i) / N + 1e-5) * w(j) + b(j) }"""
GELU = "def f(float(N) X) -> (Y) { Y(i) = 0.5 * X(i) * (1.0 + tanh(0.7978845608 * (X(i) + 0.044715 * X(i) * X(i) * X(i)))) }"
ATTENTION = """def f(float(B,H,Q,D) q, float(B,H,K,D) k, float(B,H,K,D) v) -> (O) {
    S(b,h,i,j) +=! q(b,h,i,d) * k(b,h,j,d)  T(b,h,i) max=! S(b,h,i,j)  E(b,h,i,j) = exp(0.125 * (S(b,h,i,j) - T(b,h,i)))
    Z(b,h,i) +=! E(b,h,i,j)  O(b,h,i,d) +=! E(b,h,i,j) / Z(b,h,i) * v(b,h,j,d) }"""
MAX_POOL = "def f(float(N,C,H,W) X) -> (Y) { Y(n,c,h,w) max=! X(n,c,2*h+i,2*w+j) where i in 0:3, j in 0:3, h in 0:27, w in 0:27 }"
BAG = "def f(float(V,D) T, int64(B,L) I) -> (O) { O(b,d) +=! T(I(b,l),d) }"
DEPTHWISE = "def f(float(N,C,H,W) X, float(C,3,3) K) -> (Y) { Y(n,c,h,w) +=! X(n,c,h+i,w+j) * K(c,i,j) }"
CROSS_ENTROPY = """def f(float(N,C) X, int64(N) L) -> (s) {
    T(n) max=! X(n,c)  S(n) +=! exp(X(n,c) - T(n))  s() +=! log(S(n)) + T(n) - X(n,L(n))  s() = s() / N }"""
POINTS = "def f(float(N,C,P) X, float(F,C) K) -> (Y) { Y(n,f,p) +=! X(n,c,p) * K(f,c) }"


def _matrices() -> Sequence[torch.Tensor]:
    return torch.randn(512, 768), torch.randn(768, 1024)


ROWS = {
    "matmul by A": Row(MATMUL, _matrices, torch.matmul, (0,)),
    "matmul by B": Row(MATMUL, _matrices, torch.matmul, (1,)),
    "log softmax": Row(LOG_SOFTMAX, lambda: (torch.randn(4096, 1000),), lambda x: F.log_softmax(x, 1), (0,)),
    "layer norm": Row(
        LAYER_NORM, lambda: (torch.randn(4096, 768), torch.randn(768), torch.randn(768)), lambda x, w, b: F.layer_norm(x, (768,), w, b),
        (0, 1, 2),
    ),
    "gelu": Row(GELU, lambda: (torch.randn(4_000_000),), lambda x: F.gelu(x, approximate="tanh"), (0,)),
    "convolution by data": Layer(64, 64, 28, 3).row(0),
    "convolution by weight": Layer(64, 64, 28, 3).row(1),
    "stride 2 by data": Layer(64, 64, 28, 3, 2).row(0),
    "stride 2 by weight": Layer(64, 64, 28, 3, 2).row(1),
    "depthwise": Row(
        DEPTHWISE, lambda: (torch.randn(4, 96, 56, 56), torch.randn(96, 3, 3)), lambda x, k: F.conv2d(x, k[:, None], groups=96), (0, 1)
    ),
    "1x1 convolution": Row(
        POINTS, lambda: (torch.randn(4, 256, 784), torch.randn(64, 256)), lambda x, k: F.conv1d(x, k[:, :, None]), (0, 1)
    ),
    "attention": Row(ATTENTION, lambda: [torch.randn(2, 8, 256, 64) for _ in range(3)], F.scaled_dot_product_attention, (0, 1, 2)),
    "long attention": Row(ATTENTION, lambda: [torch.randn(1, 4, 2048, 64) for _ in range(3)], F.scaled_dot_product_attention, (0, 1, 2)),
    "max pooling": Row(MAX_POOL, lambda: (torch.randn(4, 64, 56, 56),), lambda x: F.max_pool2d(x, 3, 2), (0,)),
    "embedding bag": Row(
        BAG, lambda: (torch.randn(1000, 64), torch.randint(0, 1000, (64, 16))), lambda t, i: F.embedding_bag(i, t, mode="sum"), (0,)
    ),
    "cross entropy": Row(CROSS_ENTROPY, lambda: (torch.randn(1024, 1000), torch.randint(0, 1000, (1024,))), F.cross_entropy, (0,)),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="rows, all by default: " + ", ".join(ROWS))
    parser.add_argument("--networks", action="store_true", help="the convolutions of ResNet-50 and MobileNetV2 instead")
    parser.add_argument("--library", action="store_true", help="what deriving and compiling takes")
    given = parser.parse_args(argv)
    if given.library:
        print(f"{machine.name()}, torch {torch.__version__}")
        return _library(given.names)
    rows = NETWORKS if given.networks else ROWS
    names = given.names or list(rows)
    if unknown := [name for name in names if name not in rows]:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(rows)}")
    print(f"{machine.name()}, {machine.cores()} threads, torch {torch.__version__}", flush=True)
    print(f"{'backward of':28} {'tcjit ms':>9} {'torch ms':>9} {'ratio':>6} {'first s':>8} {'error':>8}", flush=True)
    ratios = [_compare(name, rows[name]) for name in names]
    print(f"\nratio of PyTorch's time to tcjit's: geometric mean {statistics.geometric_mean(ratios):.2f}, least {min(ratios):.2f}")
    return 0


def _library(names: Sequence[str]) -> int:
    """Print, for operators of the library, milliseconds of the derivation, and of compiling forward and adjoint at their first calls."""
    sys.path.append(str(HERE.parent / "tests"))
    from support.library import NAMES, inputs, listed

    import tcjit
    from tcjit import library
    from tcjit.jit.differentiation import adjoint_of, integers

    print(f"{'operator':32} {'derive':>8} {'forward':>8} {'adjoint':>8} {'ratio':>6}")
    derived, ratios = list[float](), list[float]()
    for name in names or NAMES:
        function, case = tcjit.define(library.source(name, "float32"), target="cpu")[name], listed()[name][0]
        given = inputs(case, function.signature.params, "float32") | case.scalars
        args = [given[param.name] for param in function.signature.params]
        forward = _seconds(lambda: function(*args))  # noqa: B023 - called at once
        floating = {p.name: v for p, v in zip(function.signature.params, args) if isinstance(v, torch.Tensor) and v.is_floating_point()}
        wrt, asked = [value.requires_grad_() for value in floating.values()], frozenset(floating)
        derived.append(_seconds(lambda: adjoint_of(function, asked, integers(function.signature, args))))  # noqa: B023
        results = function(*args)
        floats = [r for r in (results if isinstance(results, tuple) else (results,)) if r.requires_grad]
        ones = [torch.ones_like(r) for r in floats]
        adjoint = _seconds(lambda: torch.autograd.grad(floats, wrt, ones, allow_unused=True))  # noqa: B023
        ratios.append(adjoint / forward)
        print(f"{name:32} {derived[-1] * 1e3:8.1f} {forward * 1e3:8.1f} {adjoint * 1e3:8.1f} {ratios[-1]:6.2f}", flush=True)
    print(f"\nderivation: median {statistics.median(derived) * 1e3:.1f} ms, most {max(derived) * 1e3:.1f} ms; ", end="")
    print(f"first call of the adjoint against the forward's: median {statistics.median(ratios):.2f}, most {max(ratios):.2f}")
    return 0


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _compare(name: str, row: Row) -> float:
    """Print a row; its ratio."""
    import tcjit

    given = [tensor.requires_grad_() if at in row.wrt else tensor for at, tensor in enumerate(row.arguments())]
    wanted = [given[at] for at in row.wrt]
    own, theirs = tcjit.define(row.text)["f"](*given), row.reference(*given)
    cotangent = torch.randn_like(theirs)

    def backward(result: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(result, wanted, cotangent, retain_graph=True)

    begin = time.perf_counter()
    first = backward(own)
    seconds = time.perf_counter() - begin
    error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(first, backward(theirs), strict=True))
    readings = [(median(lambda: backward(own), READING_S), median(lambda: backward(theirs), READING_S)) for _ in range(3)]
    mine, torchs = sorted(readings, key=lambda reading: reading[1] / reading[0])[1]
    print(f"{name:28} {mine * 1e3:9.2f} {torchs * 1e3:9.2f} {torchs / mine:6.2f} {seconds:8.2f} {error:8.1e}", flush=True)
    return torchs / mine


if __name__ == "__main__":
    import os

    torch.set_num_threads(machine.cores())
    with tempfile.TemporaryDirectory(prefix="tcjit-gradients-") as folder:
        os.environ["TCJIT_CACHE_DIR"] = folder
        sys.exit(main())
