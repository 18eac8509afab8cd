"""Calling a kernel's address: ctypes always, and a C extension that makes a repeated call as cheap as one torch operator.

Nothing here imports torch or knows the cache: the caller builds the extension (``build``), keeps its bytes, loads it (``load``) and
tells it what torch offers. In a forked child kernels run on one thread, since libgomp's threads did not survive the fork.
"""
from __future__ import annotations

import ctypes
import hashlib
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from tcjit.errors import CompileError, LaunchError
from tcjit.runtime import host

MODULE = "tcjit._launcher"
_SOURCE = Path(__file__).with_name("launcher.c")
_KERNEL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)


class Launcher(Protocol):
    """The methods of the extension's type; ``launcher.c`` documents the arguments."""

    def call(self, args: tuple[Any, ...], out: Any, unchecked: bool, /) -> Any: ...

    def add(
        self,
        address: int,
        checked: bool,
        functional: bool,
        params: tuple[tuple[Any, ...], ...],
        outputs: tuple[tuple[Any, ...], ...],
        numbers: tuple[int, ...],
        workspace: int,
        keep: object,
        fail: Callable[[int], object],
        recording: tuple[Any, ...] | None = None,
        /,
    ) -> bool: ...

    def __len__(self) -> int: ...


def key(memory: host.Notes | None = None) -> str:
    """The cache key of a build of the extension: its source, this Python's binary interface, and as for kernels the compiler with its
    flags, the C library and the machine."""
    interface = (sys.version, sysconfig.get_config_var("SOABI"), sysconfig.get_path("include"))
    facts = (*interface, host.identity(memory), host.c_library(memory))
    return hashlib.sha256(_SOURCE.read_bytes() + repr(facts).encode()).hexdigest()


def build(memory: host.Notes | None = None) -> bytes:
    """The extension as a shared object; a CompileError without a compiler or without Python's headers."""
    include = sysconfig.get_path("include")
    if not Path(include, "Python.h").is_file():
        raise CompileError(f"no Python.h in {include}", hint="the headers of this Python (python3-dev); calls work without, but slower")
    return host.build(_SOURCE.read_text(encoding="utf-8"), "the launcher", (f"-I{include}",), memory)


def load(path: Path | str) -> ModuleType:
    """The extension in a shared object; a LaunchError where it cannot be loaded."""
    loader = importlib.machinery.ExtensionFileLoader(MODULE, os.fspath(path))
    try:
        spec = importlib.util.spec_from_loader(MODULE, loader)
        if spec is None:
            raise ImportError("no module specification")
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise LaunchError(f"cannot load the launcher {path}: {error}", hint="tcjit.cache.clear()") from error
    return module


def prepared(address: int, tensors: Sequence[int], numbers: Sequence[int], workspace: int, threads: int) -> Callable[[], int]:
    """A function that runs a kernel without the extension, each time on the same memory; it returns the kernel's flag.

    ``tensors`` and ``workspace`` are addresses, ``numbers`` 64-bit patterns. The GIL is released meanwhile.
    """
    pointers = (ctypes.c_void_p * max(1, len(tensors)))(*tensors)
    patterns = (ctypes.c_int64 * max(1, len(numbers)))(*numbers)
    function = _KERNEL(address)

    def run() -> int:
        return int(function(pointers, patterns, workspace, 1 if forked() else threads))

    return run


# ---------------------------------------------------------------- after a fork

_state: dict[str, Any] = {"forked": False, "extension": None}


def forked() -> bool:
    """Whether this process is a forked child of one that had tcjit loaded."""
    return bool(_state["forked"])


def register(extension: ModuleType) -> None:
    """Let the extension know of forks, past and to come."""
    _state["extension"] = extension
    extension.force_threads(1 if forked() else 0)


def _after_fork() -> None:
    _state["forked"] = True
    if _state["extension"] is not None:
        _state["extension"].force_threads(1)


os.register_at_fork(after_in_child=_after_fork)
