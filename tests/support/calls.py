"""A few defs, and a way to call them both before and after the fast path knows the arguments."""
from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch

import tcjit
from support import PYTHONPATH

TEXT = """
def add(float(N) A, float(N) B) -> (C) { C(i) = A(i) + B(i) }
def mm(float(M, K) A, float(K, N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }
def both(float(N) X) -> (Y, Z) { Y(i) = X(i) + 1.0  Z(i) = Y(i) * 2.0 }
def onto(float(M, K) A) -> (C) { C(m) += A(m, k) }
def pick(float(V, D) T, int64(B) I) -> (O) { O(b, d) = T(I(b), d) }
def step(float a, float(N) X, int32 s) -> (Y) { Y(i) = a * X(s * i) where i in 0:N / s }
def rest(int32(N) X, int32(N) D) -> (Y) { Y(i) = X(i) / D(i) }
def sum(float(N, M) X) -> (s) { s +=! X(n, m) }
def shift(float(N) X) -> (Y) { Y(i) = X(i + 1) where i in 0:N - 4 }
"""


def defs(target: str | None = None) -> tcjit.jit.define.Namespace:
    return tcjit.define(TEXT, target=target)


def assert_fast(function: Any, *args: Any, **named: Any) -> Any:
    """The result of a call that the fast path knows; asserts that it agrees with those before."""
    first = function(*args, **named)
    for _ in range(2):
        again = function(*args, **named)
        for a, b in zip(first if isinstance(first, tuple) else (first,), again if isinstance(again, tuple) else (again,)):
            assert torch.equal(a, b)
    return again


def knows(function: Any, *args: Any, out: Any = None, unchecked: bool = False) -> bool:
    """Whether the fast path takes these arguments."""
    return function._call(args, out, unchecked) is not NotImplemented


def assert_refused(call: Callable[[], object], kind: type[Exception] = tcjit.TCError, says: str = "") -> str:
    """The message of the error that a call raises."""
    try:
        call()
    except kind as error:
        assert isinstance(error, tcjit.TCError) and says in str(error), str(error)
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def child(code: str, **environment: str) -> str:
    """What a new Python prints; it must end well."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
