"""What a search needs of the place where its study is kept, beside what optuna asks of every storage."""
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
        """Let others see, and a kill leave behind, which candidates are in flight; to be called when they have been asked for."""

    @abc.abstractmethod
    def fail_orphans(self, study_name: str) -> list[int]:
        """Mark as failed what was in flight in processes that are no more; the numbers of these trials."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the use of the storage by this process: what it still has in flight counts as lost from now on."""

    def translate_errors(self) -> AbstractContextManager[None]:
        """Within it, what goes wrong with the storage is a TuneError."""
        return nullcontext()


class MemoryStorage(InMemoryStorage, SharedStorage):
    """Studies of this process alone."""

    def flush(self) -> None:
        """Nobody else can see them."""

    def fail_orphans(self, study_name: str) -> list[int]:
        return []

    def close(self) -> None:
        """Nothing is held."""


@contextmanager
def silence_optuna() -> Iterator[None]:
    """Within it, optuna neither logs what it does nor warns of what it calls experimental."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(level, optuna.logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)
