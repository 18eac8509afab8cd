"""Rows and elements: what memory bounds, with the spots where eager PyTorch and Inductor are known to be weak."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from gpu.case import Case, Entry, Input
from tcjit import library

EPS = 1e-5

RMS_NORM_CHANNELS = """
def rms_norm_channels(float(N, C, H, W) X, float(C) gamma, float32 eps) -> (float(N, C, H, W) Y) {
    scale(n, h, w) +=! X(n, c, h, w) * X(n, c, h, w)
    scale(n, h, w) = rsqrt(scale(n, h, w) / C + eps)
    Y(n, c, h, w) = X(n, c, h, w) * scale(n, h, w) * gamma(c)
}
"""
SUM_MIDDLE = "def sum_middle(float(A, B, C) X) -> (Y) { Y(a, c) +=! X(a, b, c) }"
BIAS_GELU = """
def bias_gelu(float(M, N) X, float(N) b) -> (float(M, N) Y) {
    Y(m, n) = 0.5 * z * (1.0 + erf(z * 0.7071067811865476)) where z = X(m, n) + b(n)
}
"""


def of_library(
    name: str, inputs: tuple[Input, ...], eager: Callable[..., Any], flops: float, outputs: tuple[str, ...] = ("Y",), **facts: Any
) -> Case:
    """A case of a named operator of tcjit's library."""
    dtype = inputs[0].dtype
    return Case(inputs, outputs, library.source(name, dtype), name, eager, flops, **facts)


def softmax(M: int, N: int) -> Case:
    return of_library("softmax", (Input("X", (M, N)),), lambda X: torch.softmax(X, 1), 5 * M * N, triton="softmax")


def layer_norm(M: int, N: int) -> Case:
    inputs = Input("X", (M, N)), Input("gamma", (N,)), Input("beta", (N,))

    def eager(X: Any, gamma: Any, beta: Any, eps: float) -> Any:
        return F.layer_norm(X, gamma.shape, gamma, beta, eps)

    return of_library("layer_norm", inputs, eager, 8 * M * N, scalars=(EPS,), triton="layer_norm")


def rms_norm(M: int, N: int) -> Case:
    def eager(X: Any, gamma: Any, eps: float) -> Any:
        return F.rms_norm(X, gamma.shape, gamma, eps)

    return of_library("rms_norm", (Input("X", (M, N)), Input("gamma", (N,))), eager, 4 * M * N, scalars=(EPS,))


def rms_norm_channels(N: int, C: int, H: int, W: int) -> Case:
    def eager(X: Any, gamma: Any, eps: float) -> Any:
        return X * torch.rsqrt(X.square().mean(1, keepdim=True) + eps) * gamma[:, None, None]

    inputs = Input("X", (N, C, H, W)), Input("gamma", (C,))
    return Case(inputs, ("Y",), RMS_NORM_CHANNELS, "rms_norm_channels", eager, 4 * N * C * H * W, scalars=(EPS,))


def group_norm(N: int, G: int, C: int, H: int, W: int) -> Case:
    inputs = Input("X", (N, G, C, H, W)), Input("gamma", (G, C)), Input("beta", (G, C))

    def eager(X: Any, gamma: Any, beta: Any, eps: float) -> Any:
        return F.group_norm(X.flatten(1, 2), gamma.shape[0], gamma.flatten(), beta.flatten(), eps).unflatten(1, gamma.shape)

    return of_library("group_norm", inputs, eager, 8 * math.prod(inputs[0].shape), scalars=(EPS,))


def _planes(N: int, C: int, H: int, W: int) -> tuple[Input, ...]:
    return Input("X", (N, C, H, W)), Input("gamma", (C,)), Input("beta", (C,))


def instance_norm(N: int, C: int, H: int, W: int) -> Case:
    def eager(X: Any, gamma: Any, beta: Any, eps: float) -> Any:
        return F.instance_norm(X, None, None, gamma, beta, True, 0.0, eps)

    return of_library("instance_norm", _planes(N, C, H, W), eager, 8 * N * C * H * W, scalars=(EPS,))


def batch_norm_training(N: int, C: int, H: int, W: int) -> Case:
    def eager(X: Any, gamma: Any, beta: Any, eps: float) -> Any:
        return F.batch_norm(X, None, None, gamma, beta, True, 0.0, eps)

    return of_library("batch_norm_training", _planes(N, C, H, W), eager, 8 * N * C * H * W, scalars=(EPS,))


def l2_normalize(M: int, N: int) -> Case:
    return of_library("l2_normalize", (Input("X", (M, N)),), lambda X, eps: F.normalize(X, dim=1, eps=eps), 3 * M * N, scalars=(1e-12,))


def cross_entropy(N: int, C: int) -> Case:
    inputs = Input("X", (N, C)), Input("Class", (N,), "int64", C)
    return of_library("cross_entropy", inputs, lambda X, Class: F.cross_entropy(X, Class), 4 * N * C, ("loss",))


def sum_middle(A: int, B: int, C: int) -> Case:
    return Case((Input("X", (A, B, C)),), ("Y",), SUM_MIDDLE, "sum_middle", lambda X: X.sum(1), A * B * C)


def bias_gelu(M: int, N: int) -> Case:
    inputs = Input("X", (M, N)), Input("b", (N,))
    return Case(inputs, ("Y",), BIAS_GELU, "bias_gelu", lambda X, b: F.gelu(X + b), 12 * M * N)


ROW = {"M": 3, "N": 40}
PLANE = {"N": 2, "C": 4, "H": 3, "W": 5}
IMAGES = {"N": 16, "C": 64, "H": 256, "W": 256}
ENTRIES = [
    Entry("softmax_4096", "rows", softmax, {"M": 32768, "N": 4096}, ROW, quick=True),
    Entry("softmax_1000", "rows", softmax, {"M": 131072, "N": 1000}, ROW),
    Entry("softmax_393k", "rows", softmax, {"M": 256, "N": 393216}, ROW, quick=True),
    Entry("layernorm_4096", "rows", layer_norm, {"M": 32768, "N": 4096}, ROW, quick=True),
    Entry("layernorm_4.2M", "rows", layer_norm, {"M": 16, "N": 4194304}, ROW, quick=True),
    Entry("rmsnorm_4096", "rows", rms_norm, {"M": 32768, "N": 4096}, ROW),
    Entry("rmsnorm_channels", "rows", rms_norm_channels, IMAGES, PLANE, quick=True),
    Entry("groupnorm", "rows", group_norm, {"N": 16, "G": 8, "C": 8, "H": 256, "W": 256}, {**PLANE, "G": 2}, quick=True),
    Entry("instancenorm", "rows", instance_norm, IMAGES, PLANE),
    Entry("batchnorm_training", "rows", batch_norm_training, IMAGES, PLANE, quick=True),
    Entry("l2norm_65535", "rows", l2_normalize, {"M": 2048, "N": 65535}, ROW, quick=True),
    Entry("cross_entropy_4096", "rows", cross_entropy, {"N": 32768, "C": 4096}, {"N": 4, "C": 9}, quick=True),
    Entry("cross_entropy_50257", "rows", cross_entropy, {"N": 8192, "C": 50257}, {"N": 4, "C": 9}),
    Entry("sum_middle", "rows", sum_middle, {"A": 256, "B": 1024, "C": 512}, {"A": 3, "B": 9, "C": 5}),
    Entry("bias_gelu", "rows", bias_gelu, {"M": 8192, "N": 8192}, ROW),
]
