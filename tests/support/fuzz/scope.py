"""What a random program has so far: its sizes, tensors and scalars."""
from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from support.cases import Fill
from tcjit.grammar.dtypes import DTYPES

LETTERS = list("ijklmnpq")
FLOATS = ("float32", "float32", "float32", "float64", "float64", "float16", "bfloat16")
INTEGERS = ("int32", "int32", "int64", "int16", "int8", "uint8", "uint16", "uint32", "uint64")


@dataclass(frozen=True)
class Idx:
    """An index from ``lower`` to ``upper``; ``ranged`` by a clause, or left to inference. ``known`` if the left tensor gives it."""

    name: str
    lower: int
    upper: int
    ranged: bool
    left: bool
    known: bool = False

    @property
    def last(self) -> int:
        return max(self.upper - 1, self.lower)


@dataclass(frozen=True)
class Ten:
    """A tensor; ``dims`` is the text of an input's extents. ``indexing`` says that gathers read it, so its values matter."""

    name: str
    dtype: str
    extents: tuple[int, ...]
    dims: tuple[str, ...] | None
    role: str  # input or result
    fill: Fill | None
    indexing: bool = False


@dataclass
class Scope:
    rng: random.Random
    exact: bool
    faults: str
    pool: Sequence[int]
    sizes: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, Ten] = field(default_factory=dict)
    scalars: dict[str, tuple[str, int | float | bool]] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def new_name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def extent(self) -> int:
        return self.rng.choice(self.pool)

    def dim(self, extent: int) -> str:
        """The text of an extent of a new input: a size, new or used before, or a number."""
        same = [name for name, value in self.sizes.items() if value == extent]
        roll = self.rng.random()
        if same and roll < 0.6:
            return self.rng.choice(same)
        if roll < 0.85 or extent == 0:
            name = f"{self.rng.choice('BCDHKMNRSW')}{len(self.sizes)}"
            self.sizes[name] = extent
            return name
        return str(extent)

    def extent_text(self, extent: int) -> str:
        """The text of an extent where no new size can be made."""
        same = [name for name, value in self.sizes.items() if value == extent]
        return self.rng.choice(same) if same and (extent == 0 or self.rng.random() < 0.7) else str(extent)

    def input(
        self,
        dtype: str,
        extents: tuple[int, ...],
        dims: tuple[str, ...] | None = None,
        fill: Fill | None = None,
        indexing: bool = False,
        nonzero: bool = False,
    ) -> str:
        """A new tensor parameter."""
        name = self.new_name("X")
        fill = fill or self._fill(dtype, nonzero)
        self.tensors[name] = Ten(name, dtype, extents, dims or tuple(map(self.dim, extents)), "input", fill, indexing or nonzero)
        return name

    def _fill(self, dtype: str, nonzero: bool) -> Fill:
        roll, seed = self.rng.random(), self.rng.getrandbits(32)
        if self.exact or DTYPES[dtype].kind == "bool":
            return Fill(dtype, "small", seed, -3, 3, nonzero)
        if DTYPES[dtype].kind == "float":
            return Fill(dtype, "special" if roll < 0.1 else "small" if roll < 0.25 else "uniform", seed, -3, 3)
        return Fill(dtype, "wide" if roll < 0.15 else "small", seed, -5, 9, nonzero)

    def scalar(self, dtype: str, value: int | float | bool | None = None) -> str:
        """A scalar parameter, one that is there or new."""
        like = [n for n, (d, v) in self.scalars.items() if d == dtype and (value is None or (v == value and isinstance(v, type(value))))]
        if like and self.rng.random() < 0.7:
            return self.rng.choice(like)
        if value is None:
            kind = DTYPES[dtype].kind
            value = self.rng.random() < 0.5 if kind == "bool" else self.rng.randint(0 if kind == "unsigned" else -3, 5)
            if kind == "float":
                value = float(value) if self.exact else value + self.rng.choice((0.0, 0.25, 0.5))
        name = self.new_name("s")
        self.scalars[name] = (dtype, value)
        return name
