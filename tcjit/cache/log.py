"""An append-only file of JSON records that processes share, on one machine or on a disk that several machines mount.

A line is a checksum, a space and the record. Lines are never moved, so that a line's number means the same to everyone for as long as the
file is there. A writer that is killed leaves at most a torn line at the end, which the next writer ends.
"""
from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tcjit import scratch

_SEAL = 16  # hexadecimal digits of the checksum
_TAIL = 64
WAIT = 20.0  # seconds for others, who hold a log for milliseconds


class _FileMark(NamedTuple):
    """The part of a file that was read already: lines, bytes, and the last of these bytes, which another file in its place has not."""

    lines: int
    offset: int
    tail: bytes


_START = _FileMark(0, 0, b"")


class Log:
    """An append-only file of JSON records shared by processes: one line each, with a checksum; a torn or damaged line costs itself only.

    (A damaged line end costs the line after it, too.) ``mode`` is that of the file and, with the right to search, of missing folders.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = Log(Path(folder, "log"))
    ...     log.append([{"a": 1}, {"a": 2}]), log.read(1)
    (2, [{'a': 2}])
    """

    def __init__(self, path: str | Path, mode: int = 0o666) -> None:
        self.path = Path(path)
        self._mode = mode
        self._patience = WAIT  # for others to unlock it; nothing once that was in vain
        self._mark = _START  # replaced whole: threads may share a log

    def append(self, records: Sequence[Mapping[str, Any]]) -> int:
        """Add records, all of them synced to the disk or none; the number of lines afterwards.

        An OSError where that is impossible (a full disk, or another process that is stopped and has the file locked), after which the file
        is as it was; a TypeError for what is not JSON.
        """
        text = b"".join(map(_line, records))
        with self._opened(os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX) as handle:
            end = os.fstat(handle).st_size
            if end and os.pread(handle, 1, end - 1) != b"\n":
                text = b"\n" + text
            try:
                rest = memoryview(text)
                while rest:
                    rest = rest[os.write(handle, rest) :]
                os.fsync(handle)
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(handle, end)
                raise
            mark = self._known(handle)
            return self._advance(mark, _from(handle, mark.offset))

    def read(self, start: int = 0) -> list[dict[str, Any] | None]:
        """The records from line number ``start`` on; None for a line that is damaged.

        A line that is not yet ended is not yet there, and neither is anything where there is no file. To read on from where the last
        ``read`` or ``append`` ended costs only what is new.
        """
        try:
            with self._opened(os.O_RDONLY, fcntl.LOCK_SH) as handle:
                mark = self._known(handle)
                mark = mark if mark.lines <= start else _START
                content = _from(handle, mark.offset)
        except FileNotFoundError:
            return []
        self._advance(mark, content)
        return [_record(line) for line in content.split(b"\n")[max(0, start - mark.lines) : -1]]

    def mend(self) -> int:
        """Blank the lines that are damaged; how many there were. They stay lines, so that no other one changes its number."""
        try:
            with self._opened(os.O_RDONLY, fcntl.LOCK_SH) as handle:
                if not _damaged(_from(handle, 0)):
                    return 0
            with self._opened(os.O_RDWR, fcntl.LOCK_EX) as handle:
                spans = _damaged(_from(handle, 0))
                for offset, length in spans:
                    os.pwrite(handle, b" " * length, offset)
                os.fsync(handle)
                return len(spans)
        except FileNotFoundError:
            return 0

    # ------------------------------------------------------------ the file

    @contextmanager
    def _opened(self, flags: int, lock: int) -> Iterator[int]:
        """The file, locked; the one that bears the name at that moment."""
        while True:
            handle = self._open(flags | os.O_CLOEXEC)
            try:
                if not scratch.lock(handle, lock, self._patience):
                    self._patience = 0.0
                    raise TimeoutError(errno.ETIMEDOUT, f"{scratch.holder(handle)} has it locked", str(self.path))
                self._patience = WAIT
                if os.fstat(handle).st_nlink:  # else it was removed while this process waited
                    yield handle
                    return
            finally:
                fcntl.flock(handle, fcntl.LOCK_UN)  # a child forked meanwhile has the file open still
                os.close(handle)

    def _open(self, flags: int) -> int:
        try:
            return os.open(self.path, flags, self._mode)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
        for folder in reversed([p for p in self.path.parents if not p.exists()]):
            with suppress(FileExistsError):
                folder.mkdir(self._mode | (self._mode & 0o444) >> 2)
        return os.open(self.path, flags, self._mode)

    def _known(self, handle: int) -> _FileMark:
        """The part of this file that was read already; nothing, where it is another file."""
        mark = self._mark
        same = os.pread(handle, len(mark.tail), mark.offset - len(mark.tail)) == mark.tail
        if not same:
            self._mark = mark = _START
        return mark

    def _advance(self, mark: _FileMark, content: bytes) -> int:
        """Note the lines in what follows a mark; how many there are in all."""
        end = content.rfind(b"\n") + 1
        self._mark = _FileMark(mark.lines + content.count(b"\n"), mark.offset + end, (mark.tail + content[:end])[-_TAIL:])
        return self._mark.lines


def _from(handle: int, offset: int) -> bytes:
    """All that follows an offset."""
    parts = []
    while part := os.pread(handle, 1 << 24, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def _line(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(dict(record), separators=(",", ":")).encode()
    return _seal(text) + b" " + text + b"\n"


def _record(line: bytes) -> dict[str, Any] | None:
    text = line[_SEAL + 1 :]
    if line[: _SEAL + 1] != _seal(text) + b" ":
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):  # whole, but of another make
        return None
    return record if isinstance(record, dict) else None


def _damaged(content: bytes) -> list[tuple[int, int]]:
    """Offset and length of the lines that are neither records nor blank."""
    damaged, offset = [], 0
    for line in content.split(b"\n")[:-1]:
        if line.strip(b" ") and _record(line) is None:
            damaged.append((offset, len(line)))
        offset += len(line) + 1
    return damaged


def _seal(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:_SEAL].encode()
