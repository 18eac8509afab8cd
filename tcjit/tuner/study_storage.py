"""Storage of a study that processes share: what a search needs beyond optuna's interface."""
from __future__ import annotations

import abc
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, InMemoryStorage


class SharedStorage(BaseStorage):
    """An optuna storage that several processes may use at once, any of which may be killed."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Write the running trials out, for other processes and in case of a kill; to be called after ``Study.ask``."""

    @abc.abstractmethod
    def fail_orphans(self, study_name: str) -> list[int]:
        """Fail the running trials of processes that have ended; the numbers of these trials."""

    @abc.abstractmethod
    def close(self) -> None:
        """End this process's use of the storage; its running trials become orphans."""

    def translate_errors(self) -> AbstractContextManager[None]:
        """A context in which errors of the storage are TuneErrors."""
        return nullcontext()


class MemoryStorage(InMemoryStorage, SharedStorage):
    """Studies of this process alone."""

    def flush(self) -> None:
        """Nothing to do: no other process reads this storage."""

    def fail_orphans(self, study_name: str) -> list[int]:
        return []

    def close(self) -> None:
        """Nothing to release."""


@contextmanager
def silence_optuna() -> Iterator[None]:
    """A context in which optuna neither logs nor warns of experimental features."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(level, optuna.logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)
