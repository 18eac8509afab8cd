"""The marks of a schedule tree: what a band or a subtree becomes in the generated code.

isl holds a mark as a name; ``parse`` and ``str`` are the only places that know these names. ``docs/gpu.md`` has a table of those of a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, ClassVar

from tcjit.dataclass import dataclass
from tcjit.errors import VerifyError

# how the argument of a mark is read, by its type
_ARGUMENTS: dict[Any, Callable[[str], Any]] = {
    "int": int, "str": str, "tuple[int, ...]": lambda text: tuple(map(int, text.split("x"))),
}  # fmt: skip

BY_WORD: dict[str, type[Mark]] = {}  # the kinds of marks, those of a CPU first


@dataclass(frozen=True)
class Mark:
    """A mark; ``word``, its class's name unless that says otherwise, begins its text, and that of its argument follows, if it has one."""

    word: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        cls.word = vars(cls).get("word", re.sub(r"\B([A-Z])", r"_\1", cls.__name__).lower())
        if not cls.__name__.startswith("_"):
            BY_WORD[cls.word] = cls

    @classmethod
    def of(cls, argument: str) -> Mark:
        """The mark with an argument as ``str`` writes it; a ValueError for one of another form."""
        return cls(*(_ARGUMENTS[one.type](argument) for one in fields(cls)))

    def __str__(self) -> str:
        return " ".join([self.word, *("x".join(map(str, one)) if isinstance(one, tuple) else str(one) for one in vars(self).values())])


@dataclass(frozen=True)
class _Numbered(Mark):
    """A mark with a number."""

    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError(f"a negative number in a mark: {self.number}")


# ---------------------------------------------------------------- CPU


class Parallel(Mark):
    """Tile loops that the threads of a CPU share."""


class TileLoops(Mark):
    """A band over tiles."""


class Tile(_Numbered):
    """One tile, with its private buffers; the number tells tiles of different loops apart."""


@dataclass(frozen=True)
class Accumulators(Mark):
    """The register tile of a tiled statement: its accumulators live below."""

    statement: str

    def __post_init__(self) -> None:
        if not self.statement:
            raise ValueError("accumulators of no statement")


class Scan(Mark):
    """A loop in which each result adds to the one before it, which stays in a register."""


class Scatter(Mark):
    """A loop of which a comparison with data picks at most one iteration."""


class Simd(Mark):
    """A loop that runs in vector lanes."""


class RowPass(Mark):
    """One pass over a row in vector lanes: statements for each of its points, sums and extrema of them in accumulators."""


# ---------------------------------------------------------------- GPU


class Launch(_Numbered):
    """A kernel: one launch of a grid of blocks."""


class Grid(Mark):
    """A band whose members are the numbers of a block along the grid."""


class GridBlock(_Numbered):
    """What one block of a launch does, with its buffers."""

    word = "block"


@dataclass(frozen=True)
class Threads(Mark):
    """A band whose members are the digits of the thread's number in a mixed radix, the last one counting fastest."""

    radices: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.radices or min(self.radices) < 1:
            raise ValueError(f"no radices of threads: {self.radices}")


@dataclass(frozen=True)
class Sync(Mark):
    """What runs behind a barrier of the ``block``, or of a ``warp``."""

    scope: str

    def __post_init__(self) -> None:
        if self.scope not in ("block", "warp"):
            raise ValueError(f"no scope of a barrier: {self.scope}")


class WaitGroup(_Numbered):
    """What runs once all asynchronous copies have arrived, but those of the last ``number`` iterations of the loop above."""


class Reduce(Mark):
    """Threads whose numbers differ in the last digit only combine one value each."""


class Mma(Mark):
    """Each warp computes its part of a product on tensor cores."""


class AsyncCopy(Mark):
    """Copies to shared memory that a thread does not wait for."""


class Unroll(Mark):
    """Loops that are unrolled."""


class Vector(Mark):
    """A loop over neighbours that a thread reads or writes at once."""


class Atomic(Mark):
    """Updates of elements that other threads may update at the same time."""


Collective = Reduce | Mma | AsyncCopy  # stands directly above ``Threads``, at most one of them: what the threads do together
Inner = Unroll | Vector | Atomic | Scatter  # may stand below ``Threads``: how what one thread does is printed


@cache
def parse(text: str) -> Mark:
    """The mark with a text.

    >>> parse("threads 8x32")
    Threads(radices=(8, 32))
    """
    word, _, argument = text.partition(" ")
    try:
        mark = BY_WORD[word].of(argument)
    except (KeyError, ValueError):
        mark = None
    if mark is None or str(mark) != text:
        raise VerifyError(f"structure: the mark {text!r} means nothing")
    return mark
