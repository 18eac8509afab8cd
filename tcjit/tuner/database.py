"""A study in a database, in optuna's tables: its dashboard and its commands read them too.

optuna makes a transaction of every parameter; here those of a trial are written with one, before anything else looks at the trial.
A process tells with heartbeats, by the database's clock, that the trials it has in flight are alive.
"""
from __future__ import annotations

import json
import threading
import time
import weakref
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

from optuna.distributions import BaseDistribution, check_distribution_compatibility, distribution_to_json
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage, _CachedStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import column, create_engine, delete, insert, select, table
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from tcjit.errors import TuneError
from tcjit.redact import redacted
from tcjit.tuner.study_storage import SharedStorage

# the columns of optuna's tables that are written here
_PARAMS = table("trial_params", *map(column, ("trial_id", "param_name", "param_value", "distribution_json")))
_USER = table("trial_user_attributes", *map(column, ("trial_id", "key", "value_json")))
_SYSTEM = table("trial_system_attributes", *map(column, ("trial_id", "key", "value_json")))
_HEARTBEATS = table("trial_heartbeats", column("trial_id"))

_DRIVERS = ("psycopg2", "psycopg")  # for PostgreSQL, where the URL names none
_INSTALL = "pip install psycopg2-binary for PostgreSQL (it comes with tcjit's extra `tuner`), else the driver that the URL names"
_REACH = "a server that runs, lets this machine in and has the database: postgresql://user:password@host:5432/database"
_CONNECT = {"postgresql": {"connect_timeout": 10}, "sqlite": {"timeout": 60}}  # seconds to wait for the server, for the file
_MISSED = 3  # heartbeats
_ATTEMPTS = 20


class Database(_CachedStorage, SharedStorage):
    """Studies in the database of a URL. ``heartbeat``: seconds between two signs of life, of which three may be missed.

    A TuneError where there is no driver, no server, or no such database.
    """

    def __init__(self, url: str, heartbeat: int) -> None:
        self._url = url
        address = _address(url)
        self.name = redacted(address.render_as_string(hide_password=True), url)
        with self.translate_errors():
            super().__init__(_opened(address, heartbeat))
        self._unwritten: dict[tuple[Any, int, str], dict[str, Any]] = {}  # rows by table, trial and name
        self._writing = threading.RLock()
        self._mine: dict[int, int | None] = {}  # this process's trials in flight, and the study of each where it is known
        self._known: dict[tuple[int, str], BaseDistribution] = {}
        self._stop = threading.Event()
        self._heart: threading.Thread | None = None
        weakref.finalize(self, self._stop.set)

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """What the database complains of as a TuneError."""
        try:
            yield
        except (SQLAlchemyError, StorageInternalError) as error:
            _redact(error, self._url)
            cause = error.__cause__ if isinstance(error, StorageInternalError) else error
            reason = str(getattr(cause, "orig", None) or cause).strip().partition("\n")[0]
            raise TuneError(f"the database {self.name} cannot be used: {reason}", hint=_REACH) from error

    # ------------------------------------------------------------ for a search

    def flush(self) -> None:
        with self._writing:
            if not self._unwritten:
                return
            with self._backend.engine.begin() as connection:
                for rows_of in (_PARAMS, _USER, _SYSTEM):
                    rows = [row for (kind, _, _), row in self._unwritten.items() if kind is rows_of]
                    if rows and rows_of is not _PARAMS:  # attributes may be set again
                        trials, keys = {row["trial_id"] for row in rows}, {row["key"] for row in rows}
                        connection.execute(delete(rows_of).where(rows_of.c.trial_id.in_(trials), rows_of.c.key.in_(keys)))
                    if rows:
                        connection.execute(insert(rows_of), rows)
            self._unwritten = {}

    def fail_orphans(self, study_name: str) -> list[int]:
        study = self.get_study_id_from_name(study_name)
        running = self.get_all_trials(study, deepcopy=False, states=(TrialState.RUNNING,))
        others = {trial._trial_id: trial.number for trial in running if trial._trial_id not in self._mine}
        if not others:
            return []
        with self._backend.engine.connect() as connection:
            beating = set(connection.scalars(select(_HEARTBEATS.c.trial_id).where(_HEARTBEATS.c.trial_id.in_(others))))
        for trial in others.keys() - beating:
            self._backend.record_heartbeat(trial)  # just made, or killed before its first: its time runs from here
        ended = []
        for trial in self._backend._get_stale_trial_ids(study):
            if trial in others:
                with suppress(UpdateFinishedTrialError):  # it has ended, or another process was faster
                    super().set_trial_state_values(trial, TrialState.FAIL)
                    ended.append(others[trial])
        return ended

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._stop.set()
            self._backend.engine.dispose()

    def get_heartbeat_interval(self) -> None:
        """None: hearts beat here and not in ``Study.optimize``, so ``Study.ask`` need not warn."""

    # ------------------------------------------------------------ trials in flight

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        trial = super().create_new_trial(study_id, template_trial)
        if template_trial is None or template_trial.state == TrialState.RUNNING:
            self._begin(trial, study_id)
        return trial

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        self.flush()
        done = super().set_trial_state_values(trial_id, state, values)
        if state.is_finished():
            self._mine.pop(trial_id, None)
        elif state == TrialState.RUNNING and done:
            self._begin(trial_id, None)
        return done

    def _begin(self, trial: int, study: int | None) -> None:
        self._mine[trial] = study
        if self._heart is None:
            interval = self._backend.heartbeat_interval
            assert interval is not None
            what = (self._backend.record_heartbeat, self._mine, interval, self._stop)
            self._heart = threading.Thread(target=_beat, args=what, name="tcjit-heartbeat", daemon=True)
            self._heart.start()

    # ------------------------------------------------------------ what is written later, and what waits for it

    def set_trial_param(self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution) -> None:
        study = self._mine.get(trial_id)
        known = None if study is None else self._known.get((study, param_name))
        if known is None:  # optuna looks whether the other trials of the study agree
            super().set_trial_param(trial_id, param_name, param_value_internal, distribution)
            if study is not None:
                self._known[study, param_name] = distribution
            return
        check_distribution_compatibility(known, distribution)
        row = {"param_name": param_name, "param_value": param_value_internal, "distribution_json": distribution_to_json(distribution)}
        self._note(_PARAMS, trial_id, param_name, row)

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        if trial_id in self._mine:
            self._note(_USER, trial_id, key, {"key": key, "value_json": json.dumps(value)})
        else:
            super().set_trial_user_attr(trial_id, key, value)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        if trial_id in self._mine:
            self._note(_SYSTEM, trial_id, key, {"key": key, "value_json": json.dumps(value)})
        else:
            super().set_trial_system_attr(trial_id, key, value)

    def get_trial(self, trial_id: int) -> FrozenTrial:
        self.flush()
        return super().get_trial(trial_id)

    def get_all_trials(self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None) -> list[FrozenTrial]:
        self.flush()
        return super().get_all_trials(study_id, deepcopy, states)

    def _note(self, rows_of: Any, trial: int, name: str, row: dict[str, Any]) -> None:
        with self._writing:
            self._unwritten[rows_of, trial, name] = {"trial_id": trial, **row}


def _beat(record: Callable[[int], None], trials: dict[int, int | None], interval: int, stop: threading.Event) -> None:
    """Give a sign of life for every trial in flight, until told to stop. It holds on to the trials, not to the storage."""
    while not stop.wait(interval):
        for trial in list(trials):
            with suppress(SQLAlchemyError, StorageInternalError):  # the server may come back
                record(trial)


def _redact(error: BaseException, url: str) -> None:
    """Take the secrets of a URL out of the texts of an error and of those behind it, which tracebacks and collectors of errors show."""
    chain: list[BaseException] = [error]
    for one in chain:
        one.args = tuple(redacted(part, url) if isinstance(part, str) else part for part in one.args)
        chain += [behind for behind in (one.__cause__, one.__context__) if behind is not None and behind not in chain]


def _address(url: str) -> URL:
    """A URL with its driver; a TuneError where it is none or the driver is missing."""
    try:
        address = make_url(url)
        if address.drivername in ("postgresql", "postgres"):
            driver = next((name for name in _DRIVERS if find_spec(name)), _DRIVERS[0])
            address = address.set(drivername=f"postgresql+{driver}")
        address.get_dialect().import_dbapi()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        _redact(error, url)
        raise TuneError(f"a study cannot be kept there: {error}", hint="postgresql://user:password@host:5432/database") from error
    except ImportError as error:
        raise TuneError(f"the driver {error.name} of the database is not installed", hint=_INSTALL) from error
    return address


def _opened(address: URL, heartbeat: int) -> RDBStorage:
    """optuna's storage; its tables are made if they are missing, even where several processes start to make them at once."""
    settings = {**_CONNECT.get(address.get_backend_name(), {})}
    for key in address.query:
        settings.pop(key, None)
    engine = {"pool_pre_ping": True, "connect_args": settings}
    url = address.render_as_string(hide_password=False)
    try:
        create_engine(address, **engine).connect().close()  # no server: no need to try again
    except (TypeError, ValueError) as error:  # of a driver that does not know a word of the query
        _redact(error, url)
        raise TuneError(f"the driver {address.drivername} does not take this URL: {error}", hint=_REACH) from error
    for attempt in range(_ATTEMPTS):
        try:
            return RDBStorage(url, engine, heartbeat_interval=heartbeat, grace_period=_MISSED * heartbeat)
        except (SQLAlchemyError, StorageInternalError):
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(0.1)
        except RuntimeError as error:
            _redact(error, url)
            raise TuneError(f"the tables in the database are of another version of optuna: {error}", hint="a new database") from error
    raise AssertionError
