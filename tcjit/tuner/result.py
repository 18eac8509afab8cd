"""The result of a search, as users get it."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tcjit.checked import PATH, checked, settings
from tcjit.mapping.options import Options
from tcjit.tuner.report import figure, in_notebook
from tcjit.tuner.trials import TuneRecord, duration


@settings
@dataclass(frozen=True)
class TuneResult(TuneRecord):
    """The winner of a search.

    ``seconds`` and ``default_seconds`` are medians of the final, in which the best took turns with the untuned default; ``stopped`` says
    what ended the search: "trials", "seconds", "interrupt", or "exhausted" where there was nothing left to try.
    """

    def __repr__(self) -> str:
        return f"<tcjit.TuneResult {self}>"

    def _repr_html_(self) -> str:
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
        return figure(self, file)
