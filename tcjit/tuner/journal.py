"""A study in a ``Log``: what optuna does is written down line by line, and replayed by every process that opens the file.

optuna numbers studies and trials by their order in the journal, so that one lost line would shift all later ones. Here lines bear names:
a study has its own, a trial that of the process that made it and a count. A damaged line costs what it said, and nothing else.

What is done counts in the order of the file, where optuna would sync every parameter to the disk. Only what concerns nobody but the
process that runs a trial, its parameters and attributes, is known there at once and written later, in one line, with whatever comes next.
"""
from __future__ import annotations

import fcntl
import os
import secrets
import struct
import threading
import warnings
from collections.abc import Sequence
from typing import Any, TypeGuard

from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import TrialState

from tcjit.cache import CacheWarning
from tcjit.cache.log import Log
from tcjit.errors import TuneError
from tcjit.tuner.study_storage import SharedStorage

# optuna's codes of what is done; they stand in its journals, so they do not change
_CREATE_STUDY, _DELETE_STUDY, _CREATE_TRIAL, _SET_PARAM, _SET_STATE, _SET_VALUE, _SET_USER, _SET_SYSTEM = 0, 1, 4, 5, 6, 7, 8, 9
_KNOWN = range(10)
_OF_A_TRIAL = (_SET_PARAM, _SET_VALUE, _SET_USER, _SET_SYSTEM)
_NO_OWNER = "nobody"  # runs a trial of which a line is damaged
_RUNNING, _WAITING = int(TrialState.RUNNING), int(TrialState.WAITING)

Operation = dict[str, Any]


class Journal(JournalStorage, SharedStorage):
    """Studies in a log. A TuneError where the file cannot be written or is something else."""

    def __init__(self, log: Log) -> None:
        self._file = _File(log)
        super().__init__(self._file)

    def flush(self) -> None:
        self._file.flush()

    def fail_orphans(self, study_name: str) -> list[int]:
        running = self.get_all_trials(self.get_study_id_from_name(study_name), deepcopy=False, states=(TrialState.RUNNING,))
        lost = self._file.lost()
        ended = []
        for trial in running:
            if trial._trial_id in lost:
                try:
                    self.set_trial_state_values(trial._trial_id, TrialState.FAIL)
                except UpdateFinishedTrialError:  # another process was faster
                    continue
                ended.append(trial.number)
        return ended

    def close(self) -> None:
        self._file.flush()
        self._file.presence.leave()


class _Presence:
    """Who is there: a process locks a byte of its own in a file beside the journal, and the system lets go of it when the process ends."""

    def __init__(self, path: str, name: str, mode: int) -> None:
        self._handle: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            # locks of the open file, unlike those of the process, outlive the closing of another handle
            fcntl.fcntl(self._handle, fcntl.F_OFD_SETLK, _byte(name))
        except OSError:
            self.leave()
            raise

    def has(self, name: str) -> bool:
        """Whether that process, another than this one, is there."""
        assert self._handle is not None
        kind: int = struct.unpack_from("h", fcntl.fcntl(self._handle, fcntl.F_OFD_GETLK, _byte(name)))[0]
        return kind != fcntl.F_UNLCK

    def leave(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def __del__(self) -> None:
        self.leave()


def _byte(name: str) -> bytes:
    """A ``struct flock`` for the byte whose number is the name, hexadecimal and below 2**63."""
    return struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, int(name, 16), 1, 0)


def _ours(line: Operation | None) -> TypeGuard[Operation]:
    return line is not None and {"by", "n", "ops"} <= line.keys()


class _File(BaseJournalBackend):
    """Between optuna's numbers and the names in a log. A line: ``by`` whom, the how many-th ordered one of that process, operations."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._me = secrets.token_hex(7)
        self._lock = threading.RLock()
        self._line, self._inode = 0, 0  # the next line to be read, of which file
        self._written, self._replayed = 0, 0  # ordered lines of this process: written, known here
        self._unwritten: list[Operation] = []
        self._settled = False  # nothing was done since the last reading that the file would have to say something about
        self._first, self._queue = 0, list[Operation]()  # operations in optuna's terms from that number on
        self._studies: dict[str, int] = {}
        self._study_names: list[str] = []
        self._trials: dict[str, int] = {}
        self._trial_names: list[str] = []
        self._runner: dict[int, str] = {}  # who runs a trial; nobody where it waits, no entry where it is finished
        self._steps: dict[int, int] = {}  # how much was said of a trial that runs
        self._made = 0
        self._full = False
        try:
            log.append(())
            self.presence = _Presence(f"{log.path}.alive", self._me, os.stat(log.path).st_mode & 0o777)
        except OSError as error:
            hint = "a path in a directory that exists on this disk, that you may write to, and that can lock files"
            raise TuneError(f"the journal {log.path} cannot be written: {error.strerror or error}", hint=hint) from error
        self._examine()

    # ------------------------------------------------------------ what optuna calls

    def read_logs(self, log_number_from: int) -> list[Operation]:
        with self._lock:
            if not self._settled:
                self._read()
            self._settled = False
            del self._queue[: log_number_from - self._first]
            self._first = log_number_from
            return list(self._queue)

    def append_logs(self, logs: list[Operation]) -> None:
        with self._lock:
            for log in logs:
                operation = self._named(log)
                code, runner = operation["op_code"], self._runner.get(log.get("trial_id", -1))
                if code in _OF_A_TRIAL and runner == self._me:
                    self._unwritten.append(operation)
                    self._replay(operation, self._me)
                    self._settled = True
                else:
                    self._write([operation])

    # ------------------------------------------------------------ for Journal

    def flush(self) -> None:
        with self._lock:
            self._write([])

    def lost(self) -> set[int]:
        """The trials whose process has ended, as optuna numbers them."""
        with self._lock:
            there = {name: self.presence.has(name) for name in set(self._runner.values()) - {"", _NO_OWNER, self._me}}
            return {trial for trial, name in self._runner.items() if name == _NO_OWNER or not there.get(name, True)}

    # ------------------------------------------------------------ the file

    def _examine(self) -> None:
        """Read what is there, mend it, and keep away from files of another kind."""
        try:
            lines = self._log.read()
        except TimeoutError as error:
            return self._warn(error)
        if lines and not any(map(_ours, lines)):
            raise TuneError(f"{self._log.path} is there and is no journal of tcjit", hint="the path of a new file")
        damaged = self._log.mend() if None in lines else 0
        if damaged:
            what = f"{damaged} of {len(lines)} lines of {self._log.path} were damaged or cut short by a kill: what they said is lost"
            warnings.warn(what, CacheWarning, stacklevel=2)

    def _read(self) -> None:
        """Replay what others have written, and what of this process's own counts in the order of the file."""
        try:
            inode = os.stat(self._log.path).st_ino
        except OSError:
            return  # removed: the study goes on here, and in the file from the next writing on
        if inode != self._inode:
            self._line, self._inode = 0, inode
        try:
            lines = self._log.read(self._line)
        except TimeoutError as error:
            return self._warn(error)
        self._line += len(lines)
        for line in filter(_ours, lines):
            if line["by"] != self._me or line["n"] > self._replayed:
                self._replay_line(line["ops"], line["by"], line["n"])

    def _write(self, ordered: list[Operation]) -> None:
        """Write what was not yet written, then what counts in order."""
        lines = [{"by": self._me, "n": 0, "ops": self._unwritten}] if self._unwritten else []
        if ordered:
            self._written += 1
            lines.append({"by": self._me, "n": self._written, "ops": ordered})
        if not lines:
            return
        try:
            end = self._log.append(lines)
        except OSError as error:
            self._warn(error)
            self._unwritten += ordered  # for the next time
            self._replay_line(ordered, self._me, self._written)
            return
        self._unwritten = []
        if end < self._line + len(lines):  # another file, or emptied
            self._line = 0
        elif end == self._line + len(lines):  # nobody has written meanwhile: there is nothing to be read
            self._line = end
            self._replay_line(ordered, self._me, self._written)
            self._settled = True

    def _warn(self, error: OSError) -> None:
        if not self._full:
            self._full = True
            what = f"the journal {self._log.path} cannot be written ({error.strerror}): the search goes on without"
            warnings.warn(what, CacheWarning, stacklevel=2)

    # ------------------------------------------------------------ names and numbers

    def _named(self, log: Operation) -> Operation:
        """An operation of optuna's with names for its numbers."""
        operation = dict(log)
        if "study_id" in operation:
            number = operation.pop("study_id")
            operation["study"] = name = self._study_names[number]
            if self._studies.get(name) != number:
                raise KeyError("Record does not exist.")  # deleted; as optuna says it
        if "trial_id" in operation:
            operation["trial"] = self._trial_names[operation.pop("trial_id")]
        if operation["op_code"] == _CREATE_TRIAL:
            self._made += 1
            operation["trial"] = f"{self._me}.{self._made}"
        elif operation["op_code"] == _SET_STATE and self._runner.get(log["trial_id"]) == self._me:
            operation["steps"] = self._steps.get(log["trial_id"], 0)
        return operation

    def _replay_line(self, operations: Sequence[Operation], by: str, number: int) -> None:
        if by == self._me:
            self._replayed = max(self._replayed, number)
        for operation in operations:
            self._replay(operation, by)

    def _replay(self, named: Operation, by: str) -> None:
        """Queue an operation with optuna's numbers, as it will give them; one on what is not known here is left out."""
        operation, code = dict(named), named["op_code"]
        if code not in _KNOWN:
            return  # of a later optuna
        study, trial = operation.pop("study", None), operation.pop("trial", None)
        if code == _CREATE_STUDY:
            name = operation["study_name"]
            if name not in self._studies:
                self._studies[name] = len(self._study_names)
                self._study_names.append(name)
        elif code == _CREATE_TRIAL:
            if study not in self._studies or trial in self._trials:
                return
            self._trials[trial] = number = len(self._trial_names)
            self._trial_names.append(trial)
            state = operation.get("state", _RUNNING)
            if state in (_RUNNING, _WAITING):
                self._runner[number] = by if state == _RUNNING else ""
        if study is not None:
            if study not in self._studies:
                return
            operation["study_id"] = self._studies[study]
        elif trial is not None:
            if trial not in self._trials:
                return
            operation["trial_id"] = number = self._trials[trial]
            if code in _OF_A_TRIAL:
                self._steps[number] = self._steps.get(number, 0) + 1
            elif operation["state"] != _RUNNING:
                steps = operation.pop("steps", None)
                if number in self._runner and steps is not None and steps != self._steps.get(number, 0):
                    self._runner[number] = _NO_OWNER  # a line is missing: a time without its parameters is worth nothing
                    return
                self._runner.pop(number, None)
                self._steps.pop(number, None)
            elif self._runner.get(number) == "":
                self._runner[number] = by
        if code == _DELETE_STUDY:
            del self._studies[study]
        self._queue.append(operation)
