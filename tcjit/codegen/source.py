"""The source of a kernel, from code generator to runtime: text, symbol, launches and failure sites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from tcjit.dataclass import dataclass
from tcjit.grammar.ast import Expr

# ("scalar", parameter, dtype), ("stride", argument, axis), ("value", variable, expression over dynamic sizes)
Numbers = tuple[tuple[str, str, str | int | Expr], ...]


@dataclass(frozen=True)
class KernelLaunch:
    """One kernel of a GPU source: blocks along x, y and z, threads of a block, and all its shared memory in bytes."""

    symbol: str
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int


@dataclass(frozen=True)
class Source:
    """The text of a kernel and all that a caller must know to launch it.

    ``numbers`` lists the 64-bit values that the call passes, as in a launch record; ``workspace`` counts bytes; ``sites`` says what each
    non-zero return value means, in order from 1. ``host`` has what the caller itself must know of a call with dynamic sizes, by name:
    ``workspace``, the bytes of a call, and ``grid 0 x``, the blocks of a launch along an axis. On a GPU ``launches`` run in order,
    ``symbol`` is the first one's, and the arguments named in ``aligned`` must start on a boundary of 16 bytes. ``profile``
    counts what the kernels do, for ``profile.features``. ``functions`` are those of a text in C that may be in translation units of their
    own.
    """

    text: str
    symbol: str
    numbers: Numbers
    workspace: int
    sites: tuple[dict[str, Any], ...]
    launches: tuple[KernelLaunch, ...] = ()
    aligned: tuple[str, ...] = ()
    host: tuple[tuple[str, Expr], ...] = ()
    profile: Mapping[str, float] = field(default_factory=dict, repr=False, compare=False)
    functions: tuple[str, ...] = ()
