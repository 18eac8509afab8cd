"""The mapping options: one definition carries default, meaning, choices for the tuner and what each applies to.

Validation, JSON, the cache key and the tuner's search space are all read from the fields' metadata.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Collection, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

from tcjit.checked import brief, checked, settings
from tcjit.errors import MappingError

FUSIONS = ("maximal", "preserve_three_coincident", "minimal")
NUMBERS = {  # the largest value of each option that is a whole number
    "reduction_chunks": 4096,
    "block": 1024,
    "reduction_tile": 256,
    "pipeline_stages": 8,
}
# Options by the names of earlier versions: files keep them, and a program that uses one is warned.
ALIASES = {
    "lanes": "vector_width",
    "patch": "register_tile",
    "contract": "private_buffers",
    "step": "reduction_tile",
    "stages": "pipeline_stages",
}
# Options of earlier versions that have no effect any more, with what they were by default, and the names that they had before.
RETIRED = {"nest": True, **dict.fromkeys(("vector_dim", "lane", "unroll", "outer_loop", "outer", "accumulators", "sums"), 0)}


def _option(default: Any, meaning: str, *, choices: tuple[Any, ...], targets: tuple[str, ...], needs: str = "") -> Any:
    """``needs`` names the trait without which a def is mapped alike whatever the field says."""
    return field(default=default, metadata={"meaning": meaning, "choices": choices, "targets": targets, "needs": needs})


def _current(values: Mapping[str, Any], stacklevel: int, *, renamed: bool = True) -> dict[str, Any]:
    """Values of options by today's names, without those that are retired: a warning for these where they did something, and for old
    names where ``renamed``. An option that is there by both its names is an error."""
    for old, new in ALIASES.items():
        if old in values and renamed:
            warnings.warn(f"the option {old} is called {new} now", DeprecationWarning, stacklevel=stacklevel)
        if old in values and new in values:
            raise MappingError(f"option {new} is given twice, also by its old name {old}", hint=f"{new} alone")
    if given := [name for name, default in RETIRED.items() if values.get(name, default) != default]:
        words = f"options without effect, of loops that nests have replaced: {', '.join(given)}"
        warnings.warn(words, DeprecationWarning, stacklevel=stacklevel)
    return {ALIASES.get(name, name): value for name, value in values.items() if name not in RETIRED}


def _accept_aliases(kind: type[Options]) -> type[Options]:
    initialise = kind.__init__

    @functools.wraps(initialise)
    def renaming_init(self: Options, *args: Any, **named: Any) -> None:
        initialise(self, *args, **_current(named, 4))

    kind.__init__ = renaming_init  # type: ignore[method-assign]
    return kind


@settings
@_accept_aliases
@dataclass(frozen=True)
class Options:
    """How a program is mapped; every field left at its default is chosen by the analytic model for the program at hand.

    >>> Options.preset("naive").vector_width
    1
    >>> Options.from_json(Options(tile=(4, 32)).to_json()) == Options(tile=(4, 32))
    True
    """

    fusion: str = _option(
        "preserve_three_coincident",
        "which statements share their outer loops",
        choices=FUSIONS,
        targets=("cpu", "cuda", "opencl"),
        needs="several",
    )
    tile: tuple[int, ...] = _option(
        (),
        "tile size of each loop that statements without nests share, outermost first; 0, or missing: the model's choice",
        choices=tuple((a, b) for a in (1, 4, 8, 12) for b in (16, 32, 64)),
        targets=("cpu",),
    )
    vector_width: int = _option(
        0,
        "vector lanes of one register; 0: as many as the CPU has for the type, 1: loops as they are written, without vectors",
        choices=(0, 1, 4, 8, 16),
        targets=("cpu",),
    )
    register_tile: tuple[int, ...] = _option(
        (),
        "results that a reduction keeps in vector registers: (rows, registers along the lanes of each), as far as extents allow; "
        "empty: the model's choice",
        choices=((), (1, 4), (4, 1), (4, 2), (4, 3), (6, 2), (6, 4), (8, 1), (8, 2), (8, 3), (12, 1), (12, 2), (14, 2), (24, 1)),
        targets=("cpu",),
        needs="reduction",
    )
    reduction_chunks: int = _option(
        0,
        "parts into which a reduction is cut so that threads share it, or somewhat more that are equal, and no more than its longest "
        "dimension has terms; 0: the model's choice, 1: never",
        choices=(0, 1, 8, 16, 32, 64),
        targets=("cpu", "cuda", "opencl"),
        needs="reduction",
    )
    parallel: bool = _option(True, "run coincident outer loops on several threads", choices=(True, False), targets=("cpu",))
    private_buffers: bool = _option(
        True,
        "keep a temporary in a small private buffer where its uses allow it",
        choices=(True, False),
        targets=("cpu",),
        needs="temporary",
    )

    pack: bool = _option(
        True,
        "copy an operand that is read under conditions, or that vectors cannot read, into a better form",
        choices=(True, False),
        targets=("cpu", "cuda", "opencl"),
        needs="reduction",
    )

    block: int = _option(
        0, "threads of a block at most; 0: the model's choice", choices=(0, 64, 128, 256, 512, 1024), targets=("cuda", "opencl")
    )
    threads: tuple[int, ...] = _option(
        (),
        "threads of a block (down, across) the tile of a contraction, but not on tensor cores; the last: along a row; "
        "empty: the model's choice",
        choices=((), (8, 8), (8, 16), (16, 8), (16, 16), (8, 32), (16, 32)),
        targets=("cuda", "opencl"),
    )
    registers: tuple[int, ...] = _option(
        (),
        "results of one thread (down, across) the tile of a contraction, but not on tensor cores; empty: the model's choice",
        choices=((), (1, 1), (2, 2), (4, 4), (4, 8), (8, 4), (8, 8)),
        targets=("cuda", "opencl"),
        needs="reduction",
    )
    reduction_tile: int = _option(
        0,
        "terms of a reduction that pass through shared memory at once; 0: the model's choice",
        choices=(0, 4, 8, 16, 32),
        targets=("cuda", "opencl"),
        needs="reduction",
    )
    vector: int = _option(
        0,
        "neighbours that a thread reads, writes or copies at once, at most, results of tensor cores aside; 0: the model's choice",
        choices=(0, 1, 2, 4),
        targets=("cuda", "opencl"),
    )
    pipeline_stages: int = _option(
        0,
        "steps' pieces in shared memory at once, as far as there are steps: 2 and more let copies run ahead of what reads them; "
        "0: the model's choice",
        choices=(0, 1, 2, 3, 4),
        targets=("cuda", "opencl"),
        needs="reduction",
    )
    shared: bool = _option(
        True, "copy what threads of a block read again and again to shared memory", choices=(True, False), targets=("cuda", "opencl")
    )

    def __post_init__(self) -> None:
        for name in ("tile", "threads", "registers", "register_tile"):
            given = getattr(self, name)
            object.__setattr__(self, name, tuple(given) if isinstance(given, (list, tuple)) else given)
        self._require("fusion", self.fusion in FUSIONS, f"one of {', '.join(FUSIONS)}")
        sizes = isinstance(self.tile, tuple) and all(type(size) is int and 0 <= size <= 1 << 20 for size in self.tile)
        self._require("tile", sizes and len(self.tile) <= 16, "at most 16 whole numbers from 0 to 1048576")
        self._require("vector_width", type(self.vector_width) is int and self.vector_width in (0, 1, 2, 4, 8, 16), "0, 1, 2, 4, 8 or 16")
        for name, most in NUMBERS.items():
            number = getattr(self, name)
            self._require(name, type(number) is int and 0 <= number <= most, f"a whole number from 0 to {most}")
        for name in ("parallel", "private_buffers", "pack", "shared"):
            self._require(name, type(getattr(self, name)) is bool, "True or False")
        for name, most in (("threads", 1024), ("registers", 16), ("register_tile", 64)):
            pair = getattr(self, name)
            fits = isinstance(pair, tuple) and len(pair) in (0, 2) and all(type(n) is int and 1 <= n <= most for n in pair)
            self._require(name, fits, f"empty or two whole numbers from 1 to {most}")
        self._require("threads", not self.threads or self.threads[0] * self.threads[1] <= 1024, "two numbers whose product is at most 1024")
        self._require("vector", type(self.vector) is int and self.vector in (0, 1, 2, 4), "0, 1, 2 or 4")

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise MappingError(
                f"option {name} = {brief(getattr(self, name))} is not {expected}", hint=f"tcjit.Options({name}=...) with {expected}"
            )

    @property
    def uses_vectors(self) -> bool:
        """Whether a CPU computes reductions in nests of register tiles, and rows in vectors."""
        return self.vector_width != 1

    @checked()
    def to_dict(self) -> dict[str, Any]:
        """The options as JSON values."""
        return {f.name: list(value) if isinstance(value := getattr(self, f.name), tuple) else value for f in fields(self)}

    @checked()
    def to_json(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True)

    @staticmethod
    @checked(values=Mapping)
    def from_dict(values: Mapping[str, Any]) -> Options:
        """The inverse of ``to_dict``, also of earlier versions (``ALIASES``, ``RETIRED``); a field that no version knows is a
        MappingError."""
        values = _current(values, 4, renamed=False)
        known = {f.name for f in fields(Options)}
        if unknown := sorted(brief(name) for name in values if name not in known):
            raise MappingError(f"unknown option {unknown[0]}", hint=f"the options are {', '.join(sorted(known))}")
        return Options(**values)

    @staticmethod
    @checked(text=str)
    def from_json(text: str) -> Options:
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MappingError(f"options are not JSON: {error}") from None
        if not isinstance(values, dict):
            raise MappingError("options are not a JSON object")
        return Options.from_dict(values)

    @staticmethod
    @checked()
    def preset(name: str) -> Options:
        """Starting points by kind of kernel: naive pointwise mlp conv group_conv reduction contraction."""
        if not isinstance(name, str) or name not in PRESETS:
            raise MappingError(f"unknown preset {brief(name)}", hint=f"the presets are {', '.join(PRESETS)}")
        return PRESETS[name]

    @checked()
    def but(self, **changes: Any) -> Options:
        """A copy with some fields changed."""
        return replace(self, **_current(changes, 4))

    def __getattr__(self, name: str) -> Any:
        if name not in ALIASES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        _current({name: None}, 3)
        return getattr(self, ALIASES[name])

    @checked(target=str, traits=(tuple, list, set, frozenset), loops=int)
    def normalised(self, target: str, traits: Collection[str], loops: int) -> Options:
        """The options as far as they matter to a kind of target (``cpu``, ``cuda``, ``opencl``) and to a def with these traits and at most
        so many loops to share; the rest has its defaults.

        >>> Options(tile=(4, 8, 0), reduction_chunks=8, block=64).normalised("cpu", (), 2) == Options(tile=(4, 8))
        True
        """
        tile = self.tile[:loops]
        while tile and not tile[-1]:
            tile = tile[:-1]
        idle = {
            f.name: f.default
            for f in fields(Options)
            if (f.metadata["needs"] and f.metadata["needs"] not in traits) or target not in f.metadata["targets"]
        }
        return self.but(**{"tile": tile, **idle})

    @staticmethod
    def described() -> tuple[Field[Any], ...]:
        """The fields, whose metadata holds meaning, choices, targets and needs."""
        return fields(Options)


# Where the model would choose by the program at hand, a preset says it for its kind of kernel; the fields of other targets do not matter.
PRESETS: dict[str, Options] = {
    "naive": Options(
        fusion="minimal",
        tile=(1,) * 16,
        vector_width=1,
        reduction_chunks=1,
        private_buffers=False,
        pack=False,
        threads=(8, 8),
        registers=(1, 1),
        vector=1,
        shared=False,
    ),
    "pointwise": Options(fusion="maximal", block=256),
    "mlp": Options(threads=(16, 16), registers=(4, 4), reduction_tile=8),
    "conv": Options(threads=(8, 16), registers=(8, 4), reduction_tile=8),
    "group_conv": Options(threads=(8, 16), registers=(2, 2), reduction_tile=4),
    "reduction": Options(reduction_chunks=32, block=512),
    "contraction": Options(fusion="minimal", threads=(16, 16), registers=(8, 8), reduction_tile=8),
}
