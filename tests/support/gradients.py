"""Defs with their adjoints and tangents, of first and second order, beside PyTorch's expressions for them."""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import tcjit

# `gradgradcheck` compares products of the second derivatives with random directions, not one element after the other: an element that is
# wrong shows in them as well, in a few calls
second_order = partial(torch.autograd.gradgradcheck, fast_mode=True)

TEXT = """
def cube(double(N) X) -> (Y) { Y(i) = X(i) * X(i) * X(i) }
def cube_back(double(N) X, double(N) d_Y) -> (d_X) { d_X(i) = 3.0 * X(i) * X(i) * d_Y(i) }
def cube_back_back(double(N) X, double(N) d_Y, double(N) dd_d_X) -> (dd_X, dd_d_Y) {
    dd_X(i) = 6.0 * X(i) * d_Y(i) * dd_d_X(i)
    dd_d_Y(i) = 3.0 * X(i) * X(i) * dd_d_X(i)
}
def cube_back_tangent(double(N) X, double(N) d_Y, double(N) t_X, double(N) t_d_Y) -> (t_d_X) {
    t_d_X(i) = 6.0 * X(i) * d_Y(i) * t_X(i) + 3.0 * X(i) * X(i) * t_d_Y(i)
}
def mm(double(M, K) A, double(K, N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }
def mm_back(double(M, N) d_C, double(M, K) A, double(K, N) B) -> (d_A, d_B) {
    d_A(m, k) +=! d_C(m, n) * B(k, n)
    d_B(k, n) +=! A(m, k) * d_C(m, n)
}
def mm_back_back(double(M, N) d_C, double(M, K) A, double(K, N) B, double(M, K) dd_d_A, double(K, N) dd_d_B) -> (dd_d_C, dd_A, dd_B) {
    dd_d_C(m, n) +=! dd_d_A(m, k) * B(k, n)
    dd_d_C(m, n) += A(m, k) * dd_d_B(k, n)
    dd_A(m, k) +=! d_C(m, n) * dd_d_B(k, n)
    dd_B(k, n) +=! dd_d_A(m, k) * d_C(m, n)
}
def mm_back_tangent(double(M, N) d_C, double(M, K) A, double(K, N) B, double(M, N) t_d_C, double(M, K) t_A, double(K, N) t_B)
    -> (t_d_A, t_d_B) {
    t_d_A(m, k) +=! t_d_C(m, n) * B(k, n)
    t_d_A(m, k) += d_C(m, n) * t_B(k, n)
    t_d_B(k, n) +=! t_A(m, k) * d_C(m, n)
    t_d_B(k, n) += A(m, k) * t_d_C(m, n)
}
def softmax(double(M, N) X) -> (Y) {
    Top(m) max=! X(m, n)
    Y(m, n) = exp(X(m, n) - Top(m))
    Total(m) +=! Y(m, n)
    Y(m, n) = Y(m, n) / Total(m)
}
def softmax_back(double(M, N) Y, double(M, N) d_Y) -> (d_X) {
    Dot(m) +=! Y(m, n) * d_Y(m, n)
    d_X(m, n) = Y(m, n) * (d_Y(m, n) - Dot(m))
}
def norm(double(N) X, double a) -> (s) { s +=! a * X(i) * X(i) }
def norm_back(double d_s, double(N) X, double a) -> (d_X, d_a) {
    d_X(i) = 2.0 * a * X(i) * d_s
    d_a +=! X(i) * X(i) * d_s
}
def norm_back_back(double d_s, double(N) X, double a, double(N) dd_d_X, double dd_d_a) -> (dd_d_s, dd_X, dd_a) {
    dd_d_s +=! 2.0 * a * X(i) * dd_d_X(i) + X(i) * X(i) * dd_d_a
    dd_X(i) = 2.0 * a * d_s * dd_d_X(i) + 2.0 * X(i) * d_s * dd_d_a
    dd_a +=! 2.0 * X(i) * d_s * dd_d_X(i)
}
def window(double(N) X, int32 s) -> (Y) { Y(i) = sin(X(i + s)) where i in 0:N - s }
def window_back(double(N) X, int32 s, double(M) d_Y) -> (d_X) {
    d_X(j) = (j >= s && j - s < M) ? cos(X(j)) * d_Y(j - s) : 0.0 where j in 0:N
}
def mean(double(N) X) -> (Y) { Y() +=! X(i)  Y() = Y() / N }
def mean_back(double d_Y, double(N) X) -> (d_X) { d_X(i) = d_Y / N where i in 0:N }
def ranks(double(N) X) -> (Y, K) {
    Y(i) = 2.0 * X(i)
    K(i) = int64(X(i))
}
def ranks_back(double(N) d_Y) -> (d_X) { d_X(i) = 2.0 * d_Y(i) }
def pick(double(V, D) T, int64(B) I) -> (O) { O(b, d) = T(I(b), d) }
def pick_back(double(V, D) T, int64(B) I, double(B, D) d_O) -> (d_T) { d_T(v, d) +=! (I(b) == v) ? d_O(b, d) : 0.0 where v in 0:V }
def pick_tangent(double(V, D) t_T, int64(B) I) -> (t_O) { t_O(b, d) = t_T(I(b), d) }
"""
BACKWARD = {
    "cube": "cube_back",
    "cube_back": "cube_back_back",
    "mm": "mm_back",
    "mm_back": "mm_back_back",
    "softmax": "softmax_back",
    "norm": "norm_back",
    "norm_back": "norm_back_back",
    "window": "window_back",
    "mean": "mean_back",
    "ranks": "ranks_back",
    "pick": "pick_back",
}
TANGENT = {"cube_back": "cube_back_tangent", "mm_back": "mm_back_tangent", "pick": "pick_tangent"}


def defs(target: str | None = None) -> tcjit.jit.define.Namespace:
    """With the derivatives that the text has."""
    return tcjit.define(TEXT, target=target, backward=BACKWARD, tangent=TANGENT)


def derived(target: str | None = None) -> tcjit.jit.define.Namespace:
    """With derived ones."""
    return tcjit.define(TEXT, target=target)


def torch_cube(x: torch.Tensor) -> torch.Tensor:
    return x * x * x


def torch_norm(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    return (a * x * x).sum()


EXPRESSIONS: dict[str, Callable[..., Any]] = {
    "cube": torch_cube,
    "mm": torch.matmul,
    "softmax": lambda x: torch.softmax(x, 1),
    "norm": torch_norm,
    "window": lambda x, s: torch.sin(x[s:]),
    "mean": torch.mean,
    "pick": lambda t, i: t[i],
}


def arguments(name: str, grad: bool = True) -> tuple[Any, ...]:
    """Arguments of a def, whose floats require grad."""
    random = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64).requires_grad_(grad)

    return {
        "cube": lambda: (drawn(4),),
        "mm": lambda: (drawn(3, 4), drawn(4, 2)),
        "softmax": lambda: (drawn(3, 5),),
        "norm": lambda: (drawn(5), drawn()),
        "window": lambda: (drawn(7), 3),
        "mean": lambda: (drawn(6),),
        "pick": lambda: (drawn(4, 3), torch.tensor([3, 0, 3])),
    }[name]()
