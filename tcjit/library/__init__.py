"""Named operators written in the language: their text, and the callables made from it.

Each family is one module of constants; the constant ``MATMUL_NT`` holds the text of the def ``matmul_nt``. The comment above
a def says what it computes, the shapes, and the PyTorch expression that it equals over the same argument names (the tests evaluate that
expression). Two words of a text stand for types: ``float`` for the type of the elements, ``float32`` for that of sums and
statistics, which a ``float64`` variant widens and a half variant leaves as it is; ``int64`` is the type of indices.
"""
from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

from tcjit.checked import checked
from tcjit.errors import ArgumentError
from tcjit.grammar.dtypes import ALIASES, DTYPES
from tcjit.library import (
    activations,
    attention,
    contractions,
    convolution,
    embedding,
    indexing,
    losses,
    matmul,
    normalization,
    pooling,
    rearrangement,
    reductions,
    softmax,
    winograd,
)

__all__ = ["families", "get", "names", "source"]

_FAMILIES: tuple[ModuleType, ...] = (
    matmul,
    convolution,
    winograd,
    pooling,
    softmax,
    normalization,
    activations,
    reductions,
    losses,
    embedding,
    indexing,
    attention,
    contractions,
    rearrangement,
)


@checked()
@cache
def families() -> dict[str, tuple[str, ...]]:
    """The names of the operators by family.

    >>> families()["softmax"]
    ('softmax', 'log_softmax')
    """
    return {module.__name__.rpartition(".")[2]: tuple(_texts(module)) for module in _FAMILIES}


@checked()
def names() -> tuple[str, ...]:
    """The names of all operators.

    >>> "conv2d" in names()
    True
    """
    return tuple(name for members in families().values() for name in members)


@checked(name=str, dtype=str, index=str)
def source(name: str, dtype: str = "float32", index: str = "int64") -> str:
    """The text of an operator over elements of ``dtype`` and indices of type ``index``.

    ArgumentError for an unknown name, a ``dtype`` that is not floating or an ``index`` that is no integer type.

    >>> print(source("matmul_nt", dtype="float64"))
    # The product of A with B transposed.
    # A: (M, K), B: (N, K); C: (M, N).
    # PyTorch: A @ B.T
    def matmul_nt(float64(M, K) A, float64(N, K) B) -> (C) {
        C(m, n) +=! A(m, k) * B(n, k)
    }
    """
    element, integer = ALIASES.get(dtype, dtype), ALIASES.get(index, index)
    for what, given, canonical, kinds in (("dtype", dtype, element, ("float",)), ("index", index, integer, ("signed", "unsigned"))):
        if canonical not in DTYPES or DTYPES[canonical].kind not in kinds:
            fitting = [known for known, facts in DTYPES.items() if facts.kind in kinds]
            raise ArgumentError(f"an operator's {what} cannot be {given!r}", hint="one of " + ", ".join(fitting))
    words = {"float": element, "float32": "float64" if element == "float64" else "float32", "int64": integer}
    return re.sub(r"\b(float|float32|int64)\b", lambda word: words[word[0]], _text(name))


@checked(name=str, dtype=str, index=str, target=(str, None))
def get(name: str, dtype: str = "float32", index: str = "int64", *, target: str | None = None) -> Callable[..., Any]:
    """The operator as a callable on tensors, as ``tcjit.define`` makes them.

    ArgumentError as for ``source``.

    >>> import torch
    >>> get("row_sum")(torch.ones(2, 3))
    tensor([3., 3.])
    """
    from tcjit.jit.define import define  # needs torch; the texts do not

    function: Callable[..., Any] = getattr(define(source(name, dtype, index), target=target), name)
    return function


def _texts(module: ModuleType) -> dict[str, str]:
    return {constant.lower(): text.strip() for constant, text in vars(module).items() if constant.isupper()}


def _text(name: str) -> str:
    for module in _FAMILIES:
        if name in (texts := _texts(module)):
            return texts[name]
    close = difflib.get_close_matches(name, names(), n=3) or names()
    raise ArgumentError(f"the library has no operator {name!r}", hint="one of " + ", ".join(close))
