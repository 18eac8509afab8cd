"""What was measured of a problem, by generated code: no kernel is timed twice, in this search, the next, or that of another process."""
from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tcjit.cache import CacheWarning, store


@dataclass(frozen=True)
class Outcome:
    """Seconds, or how the code failed; ``features`` are numbers of the code."""

    seconds: float | None
    failed: str = ""
    values: Mapping[str, str] | None = None
    features: Mapping[str, float] = field(default_factory=dict)


class Measurements:
    """The log of a problem, whose ``name`` tells program, shapes, device and compiler, on a kind of target."""

    def __init__(self, target: str, name: str) -> None:
        self._log = store().log(_log_name(target, name))
        self._read = 0
        self._known: dict[str, Outcome] = {}
        self._writable = True
        self.refresh()

    def refresh(self) -> None:
        """Read the outcomes that other processes have added."""
        try:
            records = self._log.read(self._read)
        except TimeoutError:  # they can be had later
            return
        self._read += len(records)
        for record in records:
            if record is not None:
                self._take(record)

    def get(self, code: str) -> Outcome | None:
        """What is known of a code."""
        return self._known.get(code)

    def add(self, code: str, outcome: Outcome) -> None:
        """Store an outcome; in memory alone where the disk cannot be written."""
        self._known[code] = outcome
        try:
            self._log.append([{"code": code, **vars(outcome), "values": dict(outcome.values or {}), "features": dict(outcome.features)}])
        except OSError as error:
            if self._writable:
                self._writable = False
                what = f"measurements cannot be kept ({error.strerror}) and last as long as the process"
                warnings.warn(what, CacheWarning, stacklevel=2)

    def all(self) -> Mapping[str, Outcome]:
        """Every outcome, by code."""
        return self._known

    def _take(self, record: Mapping[str, Any]) -> None:
        if outcome := _outcome(record):
            self._known[record["code"]] = outcome


def others(target: str, name: str) -> Iterator[list[Outcome]]:
    """What was measured of the problems of a kind of target but one, in its order; the problem searched last comes first."""
    for log_name, log in store().logs(_log_name(target, "")):
        if log_name != _log_name(target, name):
            with suppress(TimeoutError):
                yield [outcome for record in log.read() if record is not None and (outcome := _outcome(record))]


def _log_name(target: str, name: str) -> str:
    return f"measured-{target}-{name}"


def _outcome(record: Mapping[str, Any]) -> Outcome | None:
    """A record that is whole and makes sense."""
    seconds, features = record.get("seconds"), record.get("features")
    if not isinstance(record.get("code"), str) or not (seconds is None or (isinstance(seconds, float) and seconds > 0)):
        return None
    numbers = {k: float(v) for k, v in features.items() if isinstance(v, (int, float))} if isinstance(features, dict) else {}
    return Outcome(seconds, str(record.get("failed", "")), record.get("values"), numbers)
