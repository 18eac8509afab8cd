"""The mapping options: one definition carries default, meaning, choices for the tuner and what each applies to.

Validation, JSON, the cache key and the tuner's search space are all read from the fields' metadata.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

from tcjit.errors import MappingError

FUSIONS = ("maximal", "preserve_three_coincident", "minimal")


def _option(
    default: Any, meaning: str, *, choices: tuple[Any, ...], targets: tuple[str, ...], changes_code: bool = True, needs: str = ""
) -> Any:
    """``needs`` names the trait without which a def is mapped alike whatever the field says."""
    metadata = {"meaning": meaning, "choices": choices, "targets": targets, "changes_code": changes_code, "needs": needs}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Options:
    """How a program is mapped; every field left at its default is chosen by the analytic model for the program at hand.

    >>> Options.preset("naive").lanes
    1
    >>> Options.from_json(Options(tile=(4, 32)).to_json()) == Options(tile=(4, 32))
    True
    """

    fusion: str = _option(
        "preserve_three_coincident",
        "which statements share their outer loops",
        choices=FUSIONS,
        targets=("cpu",),
        needs="several",
    )
    tile: tuple[int, ...] = _option(
        (),
        "tile size of each shared loop of a group, outermost first; 0, or missing: the model's choice",
        choices=tuple((a, b) for a in (1, 4, 8, 12) for b in (16, 32, 64)),
        targets=("cpu",),
    )
    lanes: int = _option(
        0,
        "vector lanes of one register; 0: as many as the CPU has for the type, 1: no explicit vectors",
        choices=(0, 1, 4, 8, 16),
        targets=("cpu",),
    )
    reduction_chunks: int = _option(
        0,
        "parts into which a reduction with few results is cut so that threads share it; 0: the model's choice, 1: never",
        choices=(0, 1, 8, 16, 32, 64),
        targets=("cpu",),
        needs="reduction",
    )
    parallel: bool = _option(True, "run coincident outer loops on several threads", choices=(True, False), targets=("cpu",))
    contract: bool = _option(
        True,
        "keep a temporary in a small private buffer where its uses allow it",
        choices=(True, False),
        targets=("cpu",),
        needs="temporary",
    )

    pack: bool = _option(
        True,
        "copy an operand that vectors cannot read into an order that they can",
        choices=(True, False),
        targets=("cpu",),
        needs="reduction",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "tile", tuple(self.tile) if isinstance(self.tile, (list, tuple)) else self.tile)
        self._require("fusion", self.fusion in FUSIONS, f"one of {', '.join(FUSIONS)}")
        sizes = isinstance(self.tile, tuple) and all(type(size) is int and 0 <= size <= 1 << 20 for size in self.tile)
        self._require("tile", sizes and len(self.tile) <= 16, "at most 16 whole numbers from 0 to 1048576")
        self._require("lanes", type(self.lanes) is int and self.lanes in (0, 1, 2, 4, 8, 16), "0, 1, 2, 4, 8 or 16")
        chunks = type(self.reduction_chunks) is int and 0 <= self.reduction_chunks <= 4096
        self._require("reduction_chunks", chunks, "a whole number from 0 to 4096")
        self._require("parallel", type(self.parallel) is bool, "True or False")
        self._require("contract", type(self.contract) is bool, "True or False")
        self._require("pack", type(self.pack) is bool, "True or False")

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise MappingError(
                f"option {name} = {getattr(self, name)!r} is not {expected}", hint=f"tcjit.Options({name}=...) with {expected}"
            )

    def to_dict(self) -> dict[str, Any]:
        """The options as JSON values."""
        return {f.name: list(value) if isinstance(value := getattr(self, f.name), tuple) else value for f in fields(self)}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Options:
        """The inverse of ``to_dict``; a field that this version does not know is a MappingError."""
        known = {f.name for f in fields(Options)}
        if unknown := sorted(set(values) - known):
            raise MappingError(f"unknown option {unknown[0]!r}", hint=f"the options are {', '.join(sorted(known))}")
        return Options(**values)

    @staticmethod
    def from_json(text: str) -> Options:
        try:
            values = json.loads(text)
        except ValueError as error:
            raise MappingError(f"options are not JSON: {error}") from None
        if not isinstance(values, dict):
            raise MappingError("options are not a JSON object")
        return Options.from_dict(values)

    @staticmethod
    def preset(name: str) -> Options:
        """Starting points by kind of kernel: naive pointwise mlp conv group_conv reduction contraction."""
        if name not in PRESETS:
            raise MappingError(f"unknown preset {name!r}", hint=f"the presets are {', '.join(PRESETS)}")
        return PRESETS[name]

    def but(self, **changes: Any) -> Options:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def normalised(self, traits: Collection[str], loops: int) -> Options:
        """The options as far as they matter to a def with these traits and at most so many loops to share; the rest has its defaults.

        >>> Options(tile=(4, 8, 0), reduction_chunks=8).normalised((), 2) == Options(tile=(4, 8))
        True
        """
        tile = self.tile[:loops]
        while tile and not tile[-1]:
            tile = tile[:-1]
        idle = {f.name: f.default for f in fields(Options) if f.metadata["needs"] and f.metadata["needs"] not in traits}
        return self.but(tile=tile, **idle)

    @staticmethod
    def described() -> tuple[Field[Any], ...]:
        """The fields, whose metadata holds meaning, choices, targets, changes_code and needs."""
        return fields(Options)


PRESETS: dict[str, Options] = {
    "naive": Options(fusion="minimal", tile=(1,) * 16, lanes=1, reduction_chunks=1, contract=False),
    "pointwise": Options(fusion="maximal"),
    "mlp": Options(fusion="preserve_three_coincident"),
    "conv": Options(fusion="preserve_three_coincident"),
    "group_conv": Options(fusion="preserve_three_coincident"),
    "reduction": Options(reduction_chunks=32),
    "contraction": Options(fusion="minimal"),
}
