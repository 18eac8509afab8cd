"""Write a tensor comprehension, get a tuned PyTorch kernel."""
from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tcjit import cache, nn
    from tcjit.byoc.partition import PartitionedModule, load, partition
    from tcjit.byoc.settings import PartitionConfig
    from tcjit.errors import (
        ArgumentError,
        CacheError,
        CheckError,
        CompileError,
        DivisionError,
        GatherError,
        LaunchError,
        MappingError,
        ParseError,
        PartitionError,
        ShapeError,
        TCError,
        TCWarning,
        TuneError,
        VerifyError,
    )
    from tcjit.jit.define import autotune, compile, define, synchronize
    from tcjit.jit.kernel import Kernel
    from tcjit.mapping.options import Options
    from tcjit.tuner.config import TunerConfig
    from tcjit.tuner.result import TuneResult

logging.getLogger("tcjit").addHandler(logging.NullHandler())  # silent unless a program asks to hear it

__version__ = "0.1.0"
__all__ = [
    "ArgumentError",
    "CacheError",
    "CheckError",
    "CompileError",
    "DivisionError",
    "GatherError",
    "Kernel",
    "LaunchError",
    "MappingError",
    "Options",
    "ParseError",
    "PartitionConfig",
    "PartitionError",
    "PartitionedModule",
    "ShapeError",
    "TCError",
    "TCWarning",
    "TuneError",
    "TuneResult",
    "TunerConfig",
    "VerifyError",
    "autotune",
    "cache",
    "compile",
    "define",
    "load",
    "nn",
    "partition",
    "synchronize",
]
_HOMES = {
    "Kernel": "tcjit.jit.kernel",
    "Options": "tcjit.mapping.options",
    "PartitionConfig": "tcjit.byoc.settings",
    "PartitionedModule": "tcjit.byoc.partition",
    "TuneResult": "tcjit.tuner.result",
    "TunerConfig": "tcjit.tuner.config",
    "autotune": "tcjit.jit.define",
    "compile": "tcjit.jit.define",
    "define": "tcjit.jit.define",
    "load": "tcjit.byoc.partition",
    "partition": "tcjit.byoc.partition",
    "synchronize": "tcjit.jit.define",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its home on first use, so that ``import tcjit`` and its parts stay light."""
    if name not in __all__:
        raise AttributeError(f"module 'tcjit' has no attribute {name!r}")
    if name in ("cache", "nn"):
        return import_module(f"tcjit.{name}")
    value = getattr(import_module(_HOMES.get(name, "tcjit.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


if sys.modules.get("torch") is not None:  # the calling side costs little then, and a first call should not wait for it
    import_module("tcjit.jit.call")
