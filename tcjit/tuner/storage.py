"""Where a study is kept: in memory, in a journal that processes and machines share, or in a database.

>>> import optuna
>>> storage = open_storage(None)
>>> study = optuna.create_study(storage=storage, study_name="one")
>>> trial = study.ask({"tile": optuna.distributions.CategoricalDistribution(["8", "16"])})
>>> storage.flush()  # others may now see what is in flight
>>> study.tell(trial, 1.0).value
1.0
"""
from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tcjit.cache.log import Log
from tcjit.errors import TuneError
from tcjit.redact import redacted

if TYPE_CHECKING:  # optuna is for those who tune
    from tcjit.tuner.study_storage import SharedStorage

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_EXAMPLE = "postgresql://user:password@host:5432/database"
_DATABASES = ("postgresql", "postgres", "sqlite", "mysql", "mariadb", "oracle", "mssql")


def open_storage(where: str | os.PathLike[str] | Log | None, *, heartbeat: int = 10) -> SharedStorage:
    """The storage that ``where`` names, for ``optuna.create_study(storage=...)``: None for memory, a path or log for a journal, a URL.

    Of a database's URL the database must exist, its tables are made. ``heartbeat``: the seconds between two signs of life of a process that
    has trials in flight in a database; after three without, others may end these trials. In a journal they see at once when a process ends.
    A TuneError says why a place cannot be used.
    """
    from tcjit.tuner.study_storage import MemoryStorage, silence_optuna

    with silence_optuna():
        if where is None:
            return MemoryStorage()
        _refuse_secrets(where)
        if isinstance(where, Log) or not (isinstance(where, str) and _is_url(where)):
            from tcjit.tuner.journal import Journal

            return Journal(where if isinstance(where, Log) else Log(Path(where).expanduser()))
        from tcjit.tuner.database import Database

        return Database(where, heartbeat)


def _refuse_secrets(where: str | os.PathLike[str] | Log) -> None:
    """A TuneError for what would be the path of a journal and holds a password, so that it was meant for a database."""
    if isinstance(where, Log) or (isinstance(where, str) and _is_url(where)):
        return
    name = os.fspath(where)
    if redacted(name) != name:
        raise TuneError(f"{redacted(name)!r} is no URL of a database, and a path should hold no password", hint=_EXAMPLE)


def _is_url(where: str) -> bool:
    """Whether a text is a URL rather than a path; a TuneError for one of neither."""
    if not where.strip():
        raise TuneError("the storage of a study is empty", hint="None, the path of a journal, or a database's URL")
    scheme = _URL.match(where)
    if scheme is None:
        return False
    kind = where[: scheme.end() - 1].partition("+")[0].lower()
    if kind in _DATABASES:
        return True
    if "://" in where:
        raise TuneError(f"a study cannot be kept at {kind}://...", hint="the path of a journal, or postgresql://user@host/database")
    return False
