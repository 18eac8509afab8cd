"""Temporary folders and locks, both of which end with the process that holds them.

A folder is locked as long as its process uses it; the system lets go when that ends, however it ends. So what killed processes left behind
is told from what others still use, also where process numbers say nothing, as between containers that share a disk.
"""
from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

KEPT = 86400.0  # seconds that code which a compiler refused is kept for a report
_LOCKED = ".held"
_REFUSED = "tcjit-refused-"
_swept: set[str] = set()  # temporary directories, by this process


class LockedFolder:
    """A new folder in the temporary directory; an OSError where none can be made. The first one of a process sweeps up others."""

    def __init__(self, kind: str) -> None:
        sweep_once()
        while True:
            self.path = tempfile.mkdtemp(prefix=f"tcjit-{kind}-", suffix=_LOCKED)
            with suppress(FileNotFoundError):  # another process may sweep it up before it is locked, or even open
                self._handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                if _mine(self._handle) and os.fstat(self._handle).st_nlink:
                    return
                os.close(self._handle)

    def remove(self) -> None:
        if self.path:
            shutil.rmtree(self.path, ignore_errors=True)
        self._release()

    def keep(self) -> str:
        """Leave it for a report on what is in it; its new path."""
        kept = self.path
        with suppress(OSError):
            kept = os.path.join(os.path.dirname(self.path), _REFUSED + os.path.basename(self.path).removesuffix(_LOCKED)[len("tcjit-") :])
            os.rename(self.path, kept)
        self.path = ""  # there is nothing left to remove
        self._release()
        return kept

    def _release(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


@contextmanager
def folder(kind: str) -> Iterator[str]:
    """The path of a new temporary folder, removed at the end."""
    held = LockedFolder(kind)
    try:
        yield held.path
    finally:
        held.remove()


def refused() -> str:
    """The path of a new folder for code that a compiler refused; an OSError where none can be made."""
    sweep_once()
    return tempfile.mkdtemp(prefix=_REFUSED)


def sweep_once() -> None:
    """``sweep``, the first time that this process makes use of the temporary directory."""
    here = tempfile.gettempdir()
    if here not in _swept:
        _swept.add(here)
        sweep(here)


def sweep(where: str) -> None:
    """Remove the folders of this user's processes that have ended, and refused code that was kept long enough."""
    try:
        with os.scandir(where) as entries:
            names = [entry.name for entry in entries if entry.name.startswith("tcjit-")]
    except OSError:
        return
    for name in names:
        if name.endswith(_LOCKED) or name.startswith(_REFUSED):
            with suppress(OSError):
                _sweep(os.path.join(where, name), held=name.endswith(_LOCKED))


def _sweep(path: str, held: bool) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if status.st_uid != os.geteuid() or (not held and status.st_mtime > time.time() - KEPT):
            return
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an OSError where a process has it
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(handle)


def _mine(handle: int) -> bool:
    """Lock a folder just made; True also where the disk has no locks, and then nobody can sweep."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


# ---------------------------------------------------------------- locks


def lock(handle: int, kind: int, limit: float) -> bool:
    """Lock an open file, ``fcntl.LOCK_EX`` or ``LOCK_SH``; False where others held it for ``limit`` seconds."""
    end, pause = time.monotonic() + limit, 0.001
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, 0.05)


def holder(handle: int) -> str:
    """Who has an open file locked, as far as the system tells."""
    with suppress(OSError, ValueError, IndexError):
        status = os.fstat(handle)
        this = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        with open("/proc/locks", encoding="ascii") as file:
            for line in file:
                words = line.split()
                if "->" not in words and words[5] == this and int(words[4]) > 0:
                    return f"process {words[4]}"
    return "another process"
