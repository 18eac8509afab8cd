"""Matrix products: in float32 at every size, with work behind them, and in bfloat16."""
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from gpu.case import Case, Entry, Input
from gpu.rows import of_library


def matmul_nn(M: int, N: int, K: int, dtype: str = "float32") -> Case:
    inputs = Input("A", (M, K), dtype, "weight"), Input("B", (K, N), dtype)
    return of_library("matmul_nn", inputs, lambda A, B: A @ B, 2 * M * N * K, ("C",), triton="matmul_nn")


def matmul_nt(M: int, N: int, K: int, dtype: str = "float32") -> Case:
    inputs = Input("A", (M, K), dtype, "weight"), Input("B", (N, K), dtype)
    return of_library("matmul_nt", inputs, lambda A, B: A @ B.T, 2 * M * N * K, ("C",), triton="matmul_nt")


def bf16_nn(M: int, N: int, K: int) -> Case:
    return matmul_nn(M, N, K, "bfloat16")


def bf16_nt(M: int, N: int, K: int) -> Case:
    return matmul_nt(M, N, K, "bfloat16")


def _layer(dtype: str, B: int, I: int, O: int) -> tuple[Input, ...]:  # noqa: E741 - the names of the library's def
    return Input("X", (B, I), dtype), Input("Weight", (O, I), dtype, "weight"), Input("Bias", (O,), dtype)


def linear_relu(B: int, I: int, O: int) -> Case:  # noqa: E741
    def eager(X: Any, Weight: Any, Bias: Any) -> Any:
        return F.relu(F.linear(X, Weight, Bias))

    return of_library("linear_relu", _layer("float32", B, I, O), eager, 2 * B * I * O)


def linear_gelu(B: int, I: int, O: int, dtype: str = "float32") -> Case:  # noqa: E741
    def eager(X: Any, Weight: Any, Bias: Any) -> Any:
        return F.gelu(F.linear(X, Weight, Bias))

    return of_library("linear_gelu", _layer(dtype, B, I, O), eager, 2 * B * I * O)


def bf16_linear_gelu(B: int, I: int, O: int) -> Case:  # noqa: E741
    return linear_gelu(B, I, O, "bfloat16")


def addmm(M: int, N: int, K: int) -> Case:
    inputs = Input("C", (M, N)), Input("A", (M, K), draw="weight"), Input("B", (K, N))

    def eager(C: Any, A: Any, B: Any, beta: float, alpha: float) -> Any:
        return torch.addmm(C, A, B, beta=beta, alpha=alpha)

    return of_library("addmm", inputs, eager, 2 * M * N * K, ("D",), scalars=(0.5, 2.0))


SMALL = {"M": 5, "N": 7, "K": 9}
LAYER = {"B": 4096, "I": 4096, "O": 4096}
SMALL_LAYER = {"B": 5, "I": 9, "O": 7}


def _square(prefix: str, extent: int, quick: bool = False) -> Entry:
    make = {"sgemm": matmul_nn, "bf16": bf16_nn}[prefix]
    return Entry(f"{prefix}_{extent}", prefix, make, dict.fromkeys("MNK", extent), SMALL, quick)


ENTRIES = [
    *(_square("sgemm", extent, extent in (1024, 4096)) for extent in (512, 1024, 2048, 4096, 8192)),
    Entry("sgemm_odd", "sgemm", matmul_nn, {"M": 4095, "N": 4093, "K": 4091}, SMALL),
    Entry("sgemm_skinny", "sgemm", matmul_nn, {"M": 64, "N": 8192, "K": 8192}, SMALL),
    Entry("sgemm_nt_4096", "sgemm", matmul_nt, dict.fromkeys("MNK", 4096), SMALL),
    Entry("linear_relu", "epilogue", linear_relu, LAYER, SMALL_LAYER),
    Entry("linear_gelu", "epilogue", linear_gelu, LAYER, SMALL_LAYER, quick=True),
    Entry("addmm", "epilogue", addmm, dict.fromkeys("MNK", 4096), SMALL),
    Entry("bf16_linear_gelu", "epilogue", bf16_linear_gelu, {"B": 8192, "I": 4096, "O": 4096}, SMALL_LAYER),
    *(_square("bf16", extent, extent == 4096) for extent in (1024, 4096, 8192)),
    Entry("bf16_nt_4096", "bf16", bf16_nt, dict.fromkeys("MNK", 4096), SMALL),
]
