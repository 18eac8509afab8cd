"""Which mathematical functions this machine's C library has for whole vector registers: glibc's libmvec, where there is one."""
from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from functools import lru_cache

from tcjit.codegen.dialect import VECTOR_MATH, vector_math
from tcjit.runtime.host import VECTOR_LIBRARY


@lru_cache(maxsize=1)
def vector_math_symbols() -> frozenset[str]:
    """The C names, ``sinf`` for one, that a dialect's ``vector_math`` may hold here; none on musl, macOS or an old glibc."""
    return available(VECTOR_MATH)


def available(names: Iterable[str]) -> frozenset[str]:
    """The functions among ``names`` that the library has in every width."""
    try:
        library = ctypes.CDLL(VECTOR_LIBRARY)
    except OSError:
        return frozenset()
    return vector_math(os.uname().machine, lambda symbol: hasattr(library, symbol), names)
