"""The matrix unit of the processor at hand: Intel's AMX, whose registers the system gives to a process that asks for them."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import lru_cache

from tcjit.runtime import host

FEATURES = {"bfloat16": "amx_bf16", "int8": "amx_int8"}
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18  # of Linux on x86-64


@lru_cache
def matrix_types() -> frozenset[str]:
    """The elements whose products the unit sums; none where there is no such unit, or the system does not give it to this process. Asked
    for once in a process, for all of its threads."""
    able = frozenset(dtype for dtype, feature in FEATURES.items() if feature in host.cpu_features())
    if len(able) < len(FEATURES) or sys.platform != "linux" or os.uname().machine != "x86_64":
        return frozenset()
    asked = ctypes.CDLL(None, use_errno=True).syscall(*map(ctypes.c_long, (_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)))
    return able if asked == 0 else frozenset()
