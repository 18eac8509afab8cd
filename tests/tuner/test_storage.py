"""Where studies are kept: journals and databases, and what goes wrong with them.

Modules: tuner.database tuner.study_storage
"""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage, get_storage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from support import PYTHONPATH
from support.tuner.postgres import server
from support.tuner.storages import answers, contents, steps
from support.tuner.study import GENES, start, study_of, value

from tcjit.cache import CacheWarning
from tcjit.cache.log import Log
from tcjit.errors import TuneError
from tcjit.tuner.storage import open_storage
from tcjit.tuner.study_storage import SharedStorage


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with server("fsync=off") as url:
        yield url


@pytest.fixture(params=["journal", "sqlite"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {"journal": f"{tmp_path}/study", "sqlite": f"sqlite:///{tmp_path}/study.db"}[request.param]


def told(study: optuna.Study, count: int) -> list[str]:
    """Tell so many trials; their tokens."""
    tokens = []
    for _ in range(count):
        trial = study.ask(GENES)
        trial.set_user_attr("token", f"{study.study_name}-{trial.number}")
        study.tell(trial, value(trial.params))
        tokens.append(trial.user_attrs["token"])
    return tokens


def sound(study: optuna.Study) -> set[str]:
    """The tokens of the trials that are complete, each with all of its parameters and the value that belongs to them."""
    complete = study.get_trials(states=(TrialState.COMPLETE,))
    assert all(trial.params.keys() == GENES.keys() and trial.value == value(trial.params) for trial in complete)
    return {trial.user_attrs["token"] for trial in complete}


# ---------------------------------------------------------------- opening


@pytest.mark.parametrize(
    ("where", "what", "hint"),
    [
        ("", "is empty", "path of a journal"),
        ("redis://localhost/0", "cannot be kept at redis://", "postgresql://"),
        ("postgresql://me@host:port/base", "cannot be kept there", "postgresql://user:password@host:5432/database"),
        ("mysql+nosuchdriver://me@host/base", "cannot be kept there", "postgresql://"),
        ("postgresql+asyncpg://me@host/base", "driver asyncpg of the database is not installed", "psycopg2-binary"),
        ("sqlite:////nowhere/at/all.db", "sqlite:////nowhere/at/all.db cannot be used: unable to open", "a server that runs"),
        ("postgresql://me:secret@127.0.0.1:1/base", "postgresql+psycopg2://me:***@127.0.0.1:1/base cannot be used: connection to", "runs"),
        ("/proc/journal", "/proc/journal cannot be written", "a path in a directory"),
        (os.sep, "/ cannot be written: Is a directory", "a path in a directory"),
    ],
)
def test_what_cannot_be_used_is_explained(where: str, what: str, hint: str) -> None:
    if "secret" in where:
        pytest.importorskip("psycopg2")
    with pytest.raises(TuneError) as error:
        open_storage(where)
    assert what in error.value.what and hint in error.value.hint and "secret" not in str(error.value)


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tcjit.tuner.database.find_spec", lambda name: None)
    for driver in ("psycopg2", "psycopg"):
        monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(TuneError, match=r"(?s)psycopg2.* is not installed.*pip install psycopg2-binary"):
        open_storage("postgresql://me@127.0.0.1/base")


def test_a_file_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    text, log = tmp_path / "notes.txt", Log(tmp_path / "log")
    text.write_text("some text\nof mine\n")
    log.append([{"not": "a study"}])
    for path in (text, log.path):
        before = path.read_bytes()
        with pytest.raises(TuneError, match="is no journal of tcjit"):
            open_storage(path)
        assert path.read_bytes() == before


@pytest.mark.bare
def test_optuna_waits_until_something_is_opened_and_is_quiet_then(tmp_path: Path) -> None:
    code = f"""
import sys, warnings
warnings.simplefilter("error")
from tcjit.tuner.storage import open_storage
assert "optuna" not in sys.modules and "sqlalchemy" not in sys.modules
import optuna
level = optuna.logging.get_verbosity()
for where in (None, {str(tmp_path / "study")!r}, "sqlite:///{tmp_path}/study.db"):
    open_storage(where).close()
assert optuna.logging.get_verbosity() == level
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": PYTHONPATH})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_memory() -> None:
    storage = open_storage(None)
    study = study_of(storage)
    tokens = told(study, 3)
    storage.flush()
    assert sound(study) == set(tokens) and storage.fail_orphans("study") == []
    with storage.translate_errors():
        storage.close()


# ---------------------------------------------------------------- the same as optuna's own


@pytest.mark.parametrize("seed", range(20))
def test_a_journal_does_what_that_of_optuna_does(seed: int, tmp_path: Path) -> None:
    path = steps(seed, 150)
    storage = open_storage(tmp_path / "ours")
    theirs = JournalStorage(JournalFileBackend(str(tmp_path / "theirs")))
    assert answers(storage, path) == answers(theirs, path)
    storage.flush()
    again = open_storage(tmp_path / "ours")
    names = [study.study_name for study in storage.get_all_studies()]
    assert [study.study_name for study in again.get_all_studies()] == names
    for name in names:
        assert contents(again, again.get_study_id_from_name(name)) == contents(storage, storage.get_study_id_from_name(name))
    storage.close()
    again.close()


@pytest.mark.parametrize("seed", range(2))
def test_a_database_does_what_it_does_for_optuna(seed: int, tmp_path: Path) -> None:
    path = steps(seed, 100)
    storage = open_storage(f"sqlite:///{tmp_path}/ours.db")
    assert answers(storage, path) == answers(get_storage(f"sqlite:///{tmp_path}/theirs.db"), path)
    storage.close()


# ---------------------------------------------------------------- several processes


def test_two_see_each_other(where: str) -> None:
    one, two = open_storage(where), open_storage(where)
    here, there = study_of(one), study_of(two)
    tokens = told(here, 3)
    running = here.ask(GENES)
    one.flush()
    assert sound(there) == set(tokens)
    (seen,) = there.get_trials(states=(TrialState.RUNNING,))
    assert seen.params == running.params and len(seen.params) == len(GENES)
    assert two.fail_orphans("study") == one.fail_orphans("study") == []
    there.tell(there.ask(GENES), 0.0)
    assert here.best_value == 0.0 and len(here.trials) == len(there.trials) == 5
    here.tell(running, 1.0)
    assert there.get_trials(states=(TrialState.RUNNING,)) == []
    one.close()
    two.close()


def test_what_waits_is_taken_once(where: str) -> None:
    one, two = open_storage(where), open_storage(where)
    here, there = study_of(one), study_of(two)
    for n in range(5):
        here.enqueue_trial({"gene0": str(n)})
    taken = [study.ask(GENES).params for study in (here, there, there, here, there)]
    assert sorted(params["gene0"] for params in taken) == ["0", "1", "2", "3", "4"]
    one.close()
    two.close()


def test_many_open_a_new_database_at_once(tmp_path: Path) -> None:
    where = f"sqlite:///{tmp_path}/new.db"
    crowd = [start(where, 1) for _ in range(3)]
    for process in crowd:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors


def assert_kill_loses_nothing(where: str, budget: int = 24) -> None:
    """Four processes, one killed in its third trial: the others do the rest and end what it had in flight."""
    victim = start(where, budget, "hang")
    assert victim.stdout is not None
    heard = [victim.stdout.readline().split() for _ in range(5)]
    assert [line[0] for line in heard] == ["asked", "told", "asked", "told", "asked"]
    others = [start(where, budget) for _ in range(3)]
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    outputs = [process.communicate(timeout=120) for process in others]
    assert [process.returncode for process in others] == [0, 0, 0], [errors for _, errors in outputs]
    said = [line.split() for out, _ in outputs for line in out.splitlines()]
    tokens = {line[1] for line in [*heard, *said] if line[0] == "told"}
    storage = open_storage(where)
    study = study_of(storage)
    assert sound(study) == tokens and budget <= len(tokens) <= budget + 2
    (lost,) = study.get_trials(states=(TrialState.FAIL,))
    assert lost.user_attrs["token"] == heard[-1][1] and len(study.trials) == len(tokens) + 1
    assert said.count(["ended"]) == 1
    storage.close()


def test_one_of_four_on_a_shared_journal_is_killed(tmp_path: Path) -> None:
    assert_kill_loses_nothing(str(tmp_path / "study"))


def test_one_of_four_on_a_postgresql_server_is_killed(postgres: str) -> None:
    assert_kill_loses_nothing(postgres)


def test_kills_at_random_moments_lose_what_was_in_flight_only(tmp_path: Path) -> None:
    draw, where, heard = random.Random(5), str(tmp_path / "study"), []
    for _ in range(5):
        process = start(where, 10_000)
        assert process.stdout is not None
        heard.append(process.stdout.readline())
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=draw.random() / 2)
        process.kill()
        heard += process.communicate()[0].splitlines()
    lines = [line.split() for line in heard]
    storage = open_storage(where)
    study = study_of(storage)
    storage.fail_orphans("study")
    tokens, asked = sound(study), {line[1] for line in lines if line[0] == "asked" and len(line) == 2}
    assert {line[1] for line in lines if line[0] == "told" and len(line) == 2} <= tokens
    assert study.get_trials(states=(TrialState.RUNNING,)) == []
    lost = study.get_trials(states=(TrialState.FAIL,))
    assert len(lost) <= 5 and asked - tokens <= {trial.user_attrs.get("token") for trial in lost}
    storage.close()


def test_a_closed_storage_has_lost_its_trials(tmp_path: Path) -> None:
    where = tmp_path / "study"
    one, two = open_storage(where), open_storage(where)
    trial = study_of(one).ask(GENES)
    one.close()
    assert two.fail_orphans("study") == [0] and two.fail_orphans("study") == []
    study = study_of(two)
    assert study.trials[0].state == TrialState.FAIL and study.trials[0].params == trial.params
    two.close()


def test_a_process_killed_before_its_first_heartbeat(tmp_path: Path) -> None:
    where = f"sqlite:///{tmp_path}/study.db"
    one, two = open_storage(where, heartbeat=3600), open_storage(where, heartbeat=1)
    study_of(one).ask(GENES)
    one.close()
    two._backend.grace_period = -1  # type: ignore[attr-defined]
    assert study_of(two).trials[0].state == TrialState.RUNNING
    assert two.fail_orphans("study") == [0]
    two.close()


# ---------------------------------------------------------------- few and large writes


def test_a_trial_costs_a_journal_three_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    appended, append = [], Log.append
    monkeypatch.setattr(Log, "append", lambda log, records: appended.append(len(records)) or append(log, records))
    storage = open_storage(tmp_path / "study")
    study = study_of(storage)
    appended.clear()
    trials = [study.ask(GENES) for _ in range(8)]
    storage.flush()
    storage.flush()
    assert appended == [1] + [2] * 7 + [1]  # making one takes along what is to be said of the one before
    appended.clear()
    for trial in trials:
        study.tell(trial, 1.0)
    assert appended == [1] * 8  # optuna's own: 14 a trial
    storage.close()


def test_a_trial_costs_a_database_few_transactions(tmp_path: Path) -> None:
    from sqlalchemy import event

    storage = open_storage(f"sqlite:///{tmp_path}/study.db")
    study = study_of(storage)
    told(study, 1)
    written: list[str] = []
    engine = storage._backend.engine  # type: ignore[attr-defined]
    event.listen(engine, "before_cursor_execute", lambda *given: written.append(given[2].split()[0]))
    told(study, 1)
    assert written.count("INSERT") <= 5 and len(written) < 45  # optuna alone: 17 and 90
    storage.close()


# ---------------------------------------------------------------- damage


def test_a_flipped_byte_costs_what_its_line_said(tmp_path: Path) -> None:
    path = tmp_path / "study"
    storage = open_storage(path)
    tokens = told(study_of(storage), 6)
    storage.close()
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 1 + 3 * len(tokens)
    for n, line in enumerate(lines):
        at = sum(map(len, lines[:n])) + len(line) // 2
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.warns(CacheWarning, match=f"1 of {len(lines)} lines of .* damaged") as heard:
            storage = open_storage(path)
        assert len(heard) == 1
        study = study_of(storage)
        lost = {tokens[(n - 1) // 3]} if n else set(tokens)
        assert sound(study) == set(tokens) - lost
        storage.fail_orphans("study")
        assert study.get_trials(states=(TrialState.RUNNING,)) == []
        more = told(study, 2)
        storage.close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            storage = open_storage(path)
        assert sound(study_of(storage)) == set(tokens) - lost | set(more)
        storage.close()


def test_a_torn_line_is_harmless(tmp_path: Path) -> None:
    path = tmp_path / "study"
    storage = open_storage(path)
    tokens = told(study_of(storage), 3)
    storage.close()
    whole = path.read_bytes()
    last = whole[:-1].rfind(b"\n") + 1
    for cut in (last + 1, (last + len(whole)) // 2, len(whole) - 2):
        path.write_bytes(whole[:cut])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)
            storage = open_storage(path)
        study = study_of(storage)
        assert sound(study) == set(tokens[:2])
        told(study, 1)
        assert len(storage.fail_orphans("study")) == 1  # it was announced and never told
        storage.close()


def test_a_full_disk_is_told_once_and_the_search_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "study"
    storage = open_storage(path)
    study = study_of(storage)
    tokens = told(study, 2)
    with monkeypatch.context() as patch, pytest.warns(CacheWarning, match="cannot be written") as heard:

        def full(log: Log, records: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(Log, "append", full)
        tokens += told(study, 3)
        assert sound(study) == set(tokens)
    assert len(heard) == 1
    tokens += told(study, 1)  # there is room again
    storage.close()
    again = open_storage(path)
    assert sound(study_of(again)) == set(tokens)
    again.close()


@pytest.mark.parametrize("how", ["removed", "emptied", "replaced"])
def test_a_journal_that_goes_away_takes_the_search_with_it_to_nowhere(how: str, tmp_path: Path) -> None:
    path = tmp_path / "study"
    storage: SharedStorage = open_storage(path)
    study = study_of(storage)
    tokens = told(study, 5)
    if how == "emptied":
        path.write_bytes(b"")
    else:
        path.unlink()
    if how == "replaced":
        other = open_storage(path)
        told(study_of(other, "another"), 9)
        other.close()
    tokens += told(study, 4)
    assert sound(study) == set(tokens)
    storage.close()


def test_a_server_that_goes_away_is_explained() -> None:
    with server("fsync=off") as url:
        storage = open_storage(url)
        study = study_of(storage)
        told(study, 1)
    with pytest.raises(TuneError, match="cannot be used"), storage.translate_errors():
        told(study, 1)
