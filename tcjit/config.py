"""The environment variables that tcjit reads, each in one place; read at use, so that a change counts from the next call.

``CC`` names the C compiler and is read by ``runtime.host``.
"""
from __future__ import annotations

import functools
import math
import os
import re
from pathlib import Path

from tcjit.dataclass import dataclass
from tcjit.errors import TCError


@dataclass(frozen=True)
class EnvVar:
    """An environment variable: what it is for, and what holds when it is unset or empty."""

    name: str
    meaning: str
    default: str


VARIABLES = (
    EnvVar("TCJIT_CACHE_DIR", "directory of kernels and tuned options, the user's own", "$XDG_CACHE_HOME/tcjit or ~/.cache/tcjit"),
    EnvVar("TCJIT_CACHE_SIZE", "what the cache may occupy, then the least recently used goes: bytes, or 500MB, 2GB, 1GiB", "2GB"),
    EnvVar("TCJIT_POOL_SIZE", "memory of large results that is kept for the next ones: bytes, or 500MB, 2GB; 0 keeps none", "1GB"),
    EnvVar("TCJIT_DUMP", "directory that receives every step's text, one folder per kernel", "nothing is written"),
    EnvVar("TCJIT_VERIFY", "1 proves every kernel before it first runs, 0 never does", "decided by tcjit"),
    EnvVar("TCJIT_OPENCL_DEVICE", "the OpenCL device: its number, or a part of its or its platform's name", "the first GPU, else a CPU"),
    EnvVar("TCJIT_CUDA_DRIVER", "the package that calls the CUDA driver: cuda-bindings or pycuda", "the first of them that is installed"),
    EnvVar("TCJIT_TRACEBACK", "1 lets the command print the traceback of an error that is none of tcjit's own", "one line"),
    EnvVar("CC", "the C compiler, with leading arguments if need be", "the first of cc, gcc, clang on PATH"),
)

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?)?b?", re.IGNORECASE | re.ASCII)
_MOST = 2.0**63
_SHOWN = 80  # characters of a value in a message


def cache_dir() -> Path | None:
    """The cache directory, absolute but neither created nor checked; None where the user has no home directory.

    An unusable value is a TCError.
    """
    asked = os.environ.get("TCJIT_CACHE_DIR", "")
    if asked:
        return _directory("TCJIT_CACHE_DIR", asked)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the XDG specification: a relative path is to be ignored
        return _path(os.path.join(base, "tcjit"))
    home = os.path.expanduser("~")
    return _path(os.path.join(home, ".cache", "tcjit")) if os.path.isabs(home) else None


def cache_size() -> int:
    """Bytes that the cache may occupy; a TCError for anything that is no size.

    >>> cache_size() if "TCJIT_CACHE_SIZE" not in os.environ else 2_000_000_000
    2000000000
    """
    return _size("TCJIT_CACHE_SIZE", "2GB")


def pool_size() -> int:
    """Bytes that the pool of large results may keep; a TCError for anything that is no size.

    >>> pool_size() if "TCJIT_POOL_SIZE" not in os.environ else 1_000_000_000
    1000000000
    """
    return _size("TCJIT_POOL_SIZE", "1GB")


def _size(variable: str, default: str) -> int:
    text = os.environ.get(variable, "").strip() or default
    match = _SIZE.fullmatch(text)
    size = float(match[1]) * _UNITS[(match[2] or "").lower()] if match else math.nan
    if not size <= _MOST:  # nor NaN
        raise refused(variable, text, "is not a size", "a number of bytes up to 2**63, or one with a unit: 500MB, 2GB, 1GiB")
    return int(size)


def dump_dir() -> Path | None:
    """Where every step's text goes, or None."""
    asked = os.environ.get("TCJIT_DUMP", "")
    return _directory("TCJIT_DUMP", asked) if asked else None


def verify() -> bool | None:
    """True: prove every kernel; False: none; None: tcjit decides."""
    text = os.environ.get("TCJIT_VERIFY", "").strip()
    if text not in ("", "0", "1"):
        raise refused("TCJIT_VERIFY", text, "is neither 0 nor 1", "1 to prove every kernel, 0 for none, unset to let tcjit decide")
    return None if text == "" else text == "1"


def opencl_device() -> str:
    """The OpenCL device that was asked for, by number or name; nothing: tcjit chooses."""
    return os.environ.get("TCJIT_OPENCL_DEVICE", "").strip()


def cuda_driver() -> str:
    """The package that is to call the CUDA driver, ``cuda-bindings`` or ``pycuda``; nothing: tcjit chooses."""
    text = os.environ.get("TCJIT_CUDA_DRIVER", "").strip().lower()
    if text not in ("", "auto", "cuda-bindings", "pycuda"):
        raise refused("TCJIT_CUDA_DRIVER", text, "is no driver package", "cuda-bindings or pycuda; unset, tcjit chooses")
    return "" if text == "auto" else text


def refused(variable: str, text: str, what: str, hint: str, kind: type[TCError] = TCError) -> TCError:
    """The error for a variable's value, which is shown without passwords, and not at any length."""
    from tcjit.redact import redacted  # a warm start does without

    shown = redacted(text)
    return kind(f"{variable}={shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '...'!r} {what}", hint=hint)


def traceback() -> bool:
    """Whether the command shows where an unexpected error comes from."""
    return os.environ.get("TCJIT_TRACEBACK", "").strip() == "1"


def _directory(variable: str, text: str) -> Path:
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        raise refused(variable, text, "names a home directory that does not exist", "an absolute path")
    return _path(os.path.abspath(expanded))


@functools.lru_cache(maxsize=8)
def _path(text: str) -> Path:
    """Slow to make and to take a hash of, and asked for at every look into the cache."""
    return Path(text)
