"""Kernels as one writes them in Triton, after its tutorials, each with a few configurations to choose from. Importing it needs Triton."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

Ways = dict[str, Callable[..., Any]]
WHOLE = 65536  # elements of a row that one program keeps in registers


@triton.jit
def _softmax_rows(X, Y, N, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    x = tl.load(X + row * N + at, mask=at < N, other=float("-inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(Y + row * N + at, e / tl.sum(e, 0), mask=at < N)


@triton.jit
def _softmax_long(X, Y, N, BLOCK: tl.constexpr):
    """Maximum and sum in one pass over the row, results in a second one."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        at = start + lane
        x = tl.load(X + row * N + at, mask=at < N, other=float("-inf"))
        higher = tl.maximum(top, x)
        mass = mass * tl.exp(top - higher) + tl.exp(x - higher)
        top = higher
    most = tl.max(top, 0)
    total = tl.sum(mass * tl.exp(top - most), 0)
    for start in range(0, N, BLOCK):
        at = start + lane
        x = tl.load(X + row * N + at, mask=at < N, other=float("-inf"))
        tl.store(Y + row * N + at, tl.exp(x - most) / total, mask=at < N)


@triton.jit
def _layer_norm_rows(X, gamma, beta, Y, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    x = tl.load(X + row * N + at, mask=at < N, other=0.0)
    off = tl.where(at < N, x - tl.sum(x, 0) / N, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(off * off, 0) / N + eps)
    g = tl.load(gamma + at, mask=at < N, other=0.0)
    b = tl.load(beta + at, mask=at < N, other=0.0)
    tl.store(Y + row * N + at, off * scale * g + b, mask=at < N)


@triton.jit
def _matmul(
    A, B, C, M, N, K, am, ak, bk, bn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Blocks of C in groups of rows, so that those which run together share operands in the L2 cache."""
    program = tl.program_id(0)
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = program // (GROUP * across)
    first = group * GROUP
    rows = min(down - first, GROUP)
    block_m = first + (program % (GROUP * across)) % rows
    block_n = (program % (GROUP * across)) // rows
    m = block_m * BM + tl.arange(0, BM)
    n = block_n * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a = A + (m % M)[:, None].to(tl.int64) * am + k[None, :] * ak
    b = B + k[:, None] * bk + (n % N)[None, :].to(tl.int64) * bn
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        left = tl.load(a, mask=k[None, :] < K - start, other=0.0)
        right = tl.load(b, mask=k[:, None] < K - start, other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
        a += BK * ak
        b += BK * bk
    place = C + m[:, None].to(tl.int64) * N + n[None, :]
    tl.store(place, total.to(C.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


def softmax(arguments: Sequence[Any], quick: bool) -> Ways:
    columns = arguments[0].shape[1]

    def run(kernel: Any, block: int, warps: int, X: torch.Tensor) -> torch.Tensor:
        Y = torch.empty_like(X)
        kernel[(X.shape[0],)](X, Y, X.shape[1], BLOCK=block, num_warps=warps)
        return Y

    if columns <= WHOLE:
        block = triton.next_power_of_2(columns)
        return {f"{warps} warps": partial(run, _softmax_rows, block, warps) for warps in _warps(block)}
    tried = [(4096, 16), (8192, 32), (8192, 16)]
    return {f"blocks of {block}, {warps} warps": partial(run, _softmax_long, block, warps) for block, warps in tried}


def layer_norm(arguments: Sequence[Any], quick: bool) -> Ways:
    columns = arguments[0].shape[1]

    def run(block: int, warps: int, X: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, eps: float) -> torch.Tensor:
        Y = torch.empty_like(X)
        _layer_norm_rows[(X.shape[0],)](X, gamma, beta, Y, X.shape[1], eps, BLOCK=block, num_warps=warps)
        return Y

    if columns > WHOLE:
        return {}
    block = triton.next_power_of_2(columns)
    return {f"{warps} warps": partial(run, block, warps) for warps in _warps(block)}


def _warps(block: int) -> list[int]:
    """Numbers of warps that leave a thread 4 to 64 elements."""
    return [warps for warps in (1, 2, 4, 8, 16, 32) if 4 <= block // (32 * warps) <= 64][-3:] or [4]


# block rows, block columns, depth, warps, stages; the first ones are tried in a quick run
_FLOAT32 = [(128, 128, 16, 8, 3), (64, 64, 32, 4, 3), (128, 64, 16, 4, 3), (64, 128, 32, 8, 3), (32, 64, 32, 4, 4)]
_BFLOAT16 = [(128, 256, 64, 8, 3), (128, 128, 64, 8, 3), (128, 128, 64, 4, 4), (64, 128, 64, 4, 4), (64, 64, 64, 4, 4)]


def _product(transposed: bool, arguments: Sequence[Any], quick: bool) -> Ways:
    half = arguments[0].dtype == torch.bfloat16
    tried = _BFLOAT16 if half else _FLOAT32

    def run(configuration: tuple[int, ...], A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        B = B.T if transposed else B
        bm, bn, bk, warps, stages = configuration
        (M, K), N = A.shape, B.shape[1]
        C = torch.empty(M, N, dtype=A.dtype, device=A.device)
        grid = (triton.cdiv(M, bm) * triton.cdiv(N, bn),)
        _matmul[grid](
            A, B, C, M, N, K, *A.stride(), *B.stride(),
            BM=bm, BN=bn, BK=bk, GROUP=8, PRECISION="ieee", num_warps=warps, num_stages=stages,
        )  # fmt: skip
        return C

    return {"x".join(map(str, one)): partial(run, one) for one in (tried[:3] if quick else tried)}


KERNELS: dict[str, Callable[[Sequence[Any], bool], Ways]] = {
    "softmax": softmax,
    "layer_norm": layer_norm,
    "matmul_nn": partial(_product, False),
    "matmul_nt": partial(_product, True),
}
