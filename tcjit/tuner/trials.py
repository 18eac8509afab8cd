"""The record of a search: its settings, every candidate, and the winner."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tcjit.mapping.options import Options

State = Literal["measured", "same", "pruned", "failed"]
STATES: tuple[State, ...] = ("measured", "same", "pruned", "failed")


@dataclass(frozen=True)
class Trial:
    """A candidate.

    ``seconds`` is its time where it was measured, or where another of the same code was (``state`` "same"); ``reason`` says why it was
    pruned before it was compiled, or how it failed after; ``at`` is when, in seconds since this session began, less than 0 in an
    earlier one.
    """

    number: int
    values: Mapping[str, str]
    seconds: float | None
    state: State
    reason: str = ""
    at: float = 0.0
    code: str = ""


@dataclass(frozen=True)
class TuneRecord:
    """The fields of ``TuneResult``, which documents them, without its reports."""

    options: Options
    seconds: float
    default_seconds: float
    history: tuple[Trial, ...]
    stopped: str
    label: str = ""
    elapsed: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)  # machine and settings, for reports

    @property
    def speedup(self) -> float:
        """How many times faster than the untuned default."""
        return self.default_seconds / self.seconds

    @property
    def trials(self) -> Mapping[str, int]:
        """How many candidates there were of each state."""
        counted = Counter(trial.state for trial in self.history)
        return {state: counted[state] for state in STATES}


def duration(seconds: float) -> str:
    """A time with three digits and a fitting unit.

    >>> duration(0.00123)
    '1.23 ms'
    """
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1 or unit == "us":
            return f"{seconds * factor:.3g} {unit}"
    raise AssertionError
