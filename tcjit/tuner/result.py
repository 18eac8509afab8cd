"""What a search found, and every candidate on the way."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tcjit.checked import PATH, checked, settings
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


@settings
@dataclass(frozen=True)
class TuneResult:
    """The winner of a search.

    ``seconds`` and ``default_seconds`` are medians of the final, in which the best took turns with the untuned default; ``stopped`` says
    what ended the search: "trials", "seconds", "interrupt", or "exhausted" where there was nothing left to try.
    """

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

    def __repr__(self) -> str:
        return f"<tcjit.TuneResult {self}>"

    def _repr_html_(self) -> str:
        from tcjit.tuner.report import in_notebook

        return in_notebook(self)

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {state}" for state, count in self.trials.items() if count)
        plain = Options().to_dict()
        chosen = ", ".join(f"{name}={value}" for name, value in self.options.to_dict().items() if value != plain[name]) or "the defaults"
        return (
            f"{self.label}: {duration(self.seconds)}, {self.speedup:.2f} times as fast as untuned ({duration(self.default_seconds)}), "
            f"by {chosen}; {counts} in {self.elapsed:.1f} s, ended by {self.stopped}"
        )

    @checked(file=(*PATH, None))
    def plot(self, file: str | Path | None = None) -> Any:
        """A matplotlib figure of the times, the best so far, and what each option mattered; written to ``file`` if one is named."""
        from tcjit.tuner.report import figure

        return figure(self, file)


def duration(seconds: float) -> str:
    """A time with three digits and a fitting unit.

    >>> duration(0.00123)
    '1.23 ms'
    """
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1 or unit == "us":
            return f"{seconds * factor:.3g} {unit}"
    raise AssertionError
