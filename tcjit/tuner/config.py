"""How long and how wide a search goes."""
from __future__ import annotations

import math
import os
from dataclasses import dataclass, fields
from typing import Any

from tcjit.checked import brief, settings
from tcjit.errors import TuneError
from tcjit.redact import redacted


@settings
@dataclass(frozen=True, repr=False)
class TunerConfig:
    """The settings of a search; a TuneError names the field that is out of range.

    - ``population``: candidates that may become parents, and the number of trials that make a generation;
    - ``generations``: with ``trials`` left open there are ``population * generations`` trials;
    - ``crossover``: the part of offspring that has three parents, the others vary one;
    - ``mutation``: the probability with which each gene of an offspring changes;
    - ``elites``: the fastest so many stay parents however old they are;
    - ``trials``, ``seconds``: the budget, whichever ends first; trials count from the study's beginning, also over several sessions;
    - ``workers``: processes that compile at the same time, by default one per core; candidates are timed one by one;
    - ``seed``: the same seed proposes the same candidates for the same times;
    - ``storage``: where the study is kept: None for the cache, a path for a journal that several machines see, or a database's URL;
    - ``model``: let a learned model choose among offspring: it saved no trials where it was measured, and costs time;
    - ``timeout``: seconds that running a candidate may take, beside what compiling takes.
    """

    population: int = 16
    generations: int = 8
    crossover: float = 0.8
    mutation: float = 0.1
    elites: int = 4
    trials: int | None = None
    seconds: float | None = None
    workers: int | None = None
    seed: int = 0
    storage: str | os.PathLike[str] | None = None
    model: bool = False
    timeout: float = 10.0

    def __post_init__(self) -> None:
        for name, least, most in (("population", 3, 10_000), ("generations", 1, 100_000), ("elites", 0, self.population)):
            value = getattr(self, name)
            self._require(name, _whole(value) and least <= value <= most, f"a whole number from {least} to {most}")
        for name in ("crossover", "mutation"):
            self._require(name, _number(getattr(self, name)) and 0 <= getattr(self, name) <= 1, "a number from 0 to 1")
        self._require("trials", self.trials is None or (_whole(self.trials) and self.trials >= 1), "a whole number from 1, or None")
        for name in ("seconds", "timeout"):
            value = getattr(self, name)
            missing = value is None and name == "seconds"
            self._require(name, missing or (_number(value) and 0 < value < math.inf), "a positive number of seconds")
        self._require("workers", self.workers is None or (_whole(self.workers) and 1 <= self.workers <= 1024), "from 1 to 1024, or None")
        self._require("seed", _whole(self.seed) and 0 <= self.seed < 1 << 63, "a whole number from 0 below 2**63")
        self._require("storage", self.storage is None or isinstance(self.storage, (str, os.PathLike)), "a path, a URL, or None")
        self._require("model", isinstance(self.model, bool), "True or False")

    def __repr__(self) -> str:
        """Without a password that the storage may hold."""
        shown = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.storage is not None:
            shown["storage"] = redacted(str(self.storage))
        return f"TunerConfig({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def budget(self) -> int:
        """Trials in all."""
        return self.population * self.generations if self.trials is None else self.trials

    @property
    def compilers(self) -> int:
        """Processes that compile."""
        return self.workers or len(os.sched_getaffinity(0))

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            value = getattr(self, name)
            shown = f"a {type(value).__name__}" if name == "storage" else brief(value)  # it may hold a password
            raise TuneError(f"TunerConfig: {name} = {shown} is not {expected}", hint=f"TunerConfig({name}=...)")


def _whole(value: Any) -> bool:
    return type(value) is int


def _number(value: Any) -> bool:
    return type(value) in (int, float)
