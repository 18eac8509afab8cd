"""One directory of sealed files: who may be trusted with it, and files that are whole or not there.

A sealed file starts with a line that holds the SHA-256 of its place and its content, so a truncated, flipped, moved or renamed file
is told apart from a good one. Files are written aside, synced and renamed, so a reader never meets half a file. A file may
have *attachments*, raw files whose checksums it holds: shared objects, which must be loaded by their path.
"""
from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tcjit import scratch
from tcjit.cache.log import Log
from tcjit.dataclass import dataclass

FORMAT = "v1"  # files of another format live beside these, in a folder of their own
LOCKS = "locks"  # a folder beside those of the kinds
KINDS = ("texts", "options", "notes", "kernels", "blobs", "logs")
LASTING = ("logs", "options")  # what can be had again by searching only goes only if all of it is too much by itself
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
STALE = 3600.0  # seconds after which what a killed process left behind is swept up
YOUNG = 5.0  # seconds in which a file that was just made has surely been locked by its writer
_ATTACHMENT = re.compile(rf"({NAME.pattern})@[0-9a-f]{{16}}\.so")
_ASIDE = ".aside-"
_MAGIC = b"tcjit1 "


class Damaged(Exception):
    """A file is there and is not what was written; the text says in what way."""


@dataclass(frozen=True)
class Trust:
    """Whether the user's cache directory can be relied on. ``problem`` is empty if so; a missing directory is fine."""

    path: Path | None
    problem: str
    hint: str
    writable: bool

    @property
    def ok(self) -> bool:
        return not self.problem


@dataclass(frozen=True)
class StoredItem:
    """A file and its attachments: ``used`` is when it was last read (to the hour) in seconds since 1970, ``bytes`` on the disk."""

    kind: str
    name: str
    used: float
    bytes: int
    files: tuple[str, ...]  # the sealed file first, if there is one


def examine(root: Path | None) -> Trust:
    """Look at a cache directory without touching it.

    It must be the user's own and writable by nobody else, with all that tcjit has made in it; nobody but the user and the owner of the
    machine may be able to put another in its place.
    """
    if root is None:
        return Trust(None, "the user has no home directory", "TCJIT_CACHE_DIR set to a directory of your own", False)
    try:
        problem = _problem_inside(root) or _problem_above(root)
    except OSError as error:
        problem = f"{root} cannot be examined: {error.strerror}"
    hint = f"a directory of your own: chown it, chmod 700 {root}, or set TCJIT_CACHE_DIR" if problem else ""
    existing = next((p for p in (root, *root.parents) if not problem and p.exists()), root)
    writable = not problem and os.access(existing, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)
    return Trust(root, problem, hint, writable)


def _problem_inside(root: Path) -> str:
    base = os.path.join(root, FORMAT)
    for path in (os.fspath(root), base, *(os.path.join(base, kind) for kind in (*KINDS, LOCKS))):
        try:
            # the user may link to a directory elsewhere: judged by what it points to here, as a link by _problem_above
            status = os.stat(path) if path == os.fspath(root) else os.lstat(path)
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(status.st_mode):
            return f"{path} is not a directory"
        if status.st_uid != os.geteuid():
            return f"{path} belongs to another user (uid {status.st_uid})"
        if status.st_mode & 0o022:
            return f"{path} can be written by others (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def _problem_above(root: Path) -> str:
    machine = os.stat("/").st_uid  # not 0 in a user namespace
    for path, status in _way(str(root)):
        if status.st_uid not in (0, machine, os.geteuid()):
            return f"{path}, on the way to {root}, belongs to another user (uid {status.st_uid})"
        if stat.S_ISLNK(status.st_mode) or status.st_mode & stat.S_ISVTX:
            continue
        # a group of one's own (the default on many systems) is as good as oneself
        if status.st_mode & 0o002 or (status.st_mode & 0o020 and status.st_gid not in (0, os.getegid())):
            return f"{path}, on the way to {root}, can be written by others (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def _way(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every directory and every link that the system passes on its way to an absolute path, as far as they exist."""
    here, links = "/", 0
    yield here, os.lstat(here)
    ahead = path.split("/")[::-1]
    while ahead:
        name = ahead.pop()
        if name == "..":
            here = os.path.dirname(here)
        if name in ("", ".", ".."):
            continue
        there = os.path.join(here, name)
        try:
            status = os.lstat(there)
        except FileNotFoundError:
            return
        yield there, status
        if not stat.S_ISLNK(status.st_mode):
            here = there
            continue
        links += 1
        if links > 40:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = os.readlink(there)
        ahead += target.split("/")[::-1]
        here = "/" if target.startswith("/") else here


class Directory:
    """Sealed files by kind and name under ``root``, which the caller has examined."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._base = os.path.join(root, FORMAT)

    def path(self, kind: str, file: str) -> str:
        return os.path.join(self._base, kind, file)

    # ------------------------------------------------------------ sealed files

    def read(self, kind: str, name: str, use: bool = True) -> bytes | None:
        """The content of a sealed file, None where there is none; Damaged if it is not what was written. ``use``: a hit is a use."""
        path = self.path(kind, name)
        stored = _read(path)
        if stored is None:
            return None
        content, modified = stored
        body = content[len(_MAGIC) + 65 :]
        if content[: len(_MAGIC) + 65] != _MAGIC + _seal(kind, name, body) + b"\n":
            raise Damaged(f"{path} fails its checksum")
        if use:
            _touch(path, modified)
        return body

    def write(self, kind: str, name: str, body: bytes) -> None:
        """Put a sealed file in place of what was there; an OSError if that is impossible."""
        self._put(kind, name, _MAGIC + _seal(kind, name, body) + b"\n" + body)

    # ------------------------------------------------------------ attachments

    def attach(self, kind: str, name: str, content: bytes) -> tuple[str, str]:
        """Write an attachment of a file that is yet to be written; its file name and checksum, which belong into that file."""
        digest = hashlib.sha256(content).hexdigest()
        file = f"{name}@{digest[:16]}.so"
        try:
            there = self.attached(kind, file, digest)  # the same bytes may be loaded already: leave them
        except Damaged:
            there = None
        if there is None:
            self._put(kind, file, content)
        return file, digest

    def attached(self, kind: str, file: str, digest: str) -> Path | None:
        """The path of an attachment whose content was checked, None where there is none; Damaged if it is not what was written."""
        path = self.path(kind, file)
        if not _ATTACHMENT.fullmatch(file):
            raise Damaged(f"{path} is no attachment")
        stored = _read(path)
        if stored is None:
            return None
        if hashlib.sha256(stored[0]).hexdigest() != digest:
            raise Damaged(f"{path} fails its checksum")
        return Path(path)

    # ------------------------------------------------------------ logs

    def log(self, name: str) -> Log:
        """A log, which is no sealed file: it grows."""
        return Log(self.path("logs", name), 0o600)

    def lock_file(self, name: str) -> int:
        """An open, empty file to lock, which nobody else can open; it is never removed, or two processes could hold two files."""
        path = self.path(LOCKS, name)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            handle = os.open(path, flags, 0o600)
        except FileNotFoundError:
            self._make(Path(path).parent)
            handle = os.open(path, flags, 0o600)
        try:
            _require_private(path, os.fstat(handle))
        except Damaged as error:
            os.close(handle)
            raise PermissionError(errno.EPERM, str(error), path) from error
        return handle

    def require_private(self, kind: str, file: str) -> None:
        """Damaged where there is something that is not a file of the user's own."""
        path = self.path(kind, file)
        with suppress(FileNotFoundError):
            _require_private(path, os.lstat(path))

    # ------------------------------------------------------------ upkeep

    def items(self, kinds: tuple[str, ...] = KINDS) -> list[StoredItem]:
        """All that is here, least recently used first."""
        by_item: dict[tuple[str, str], list[os.DirEntry[str]]] = {}
        for kind in kinds:
            for entry in self._scan(kind):
                attached = _ATTACHMENT.fullmatch(entry.name)
                if attached or NAME.fullmatch(entry.name):
                    by_item.setdefault((kind, attached[1] if attached else entry.name), []).append(entry)
        items = []
        for (kind, name), entries in by_item.items():
            entries.sort(key=lambda e: (e.name != name, e.name))
            with suppress(FileNotFoundError):
                sizes = [_occupied(e.stat(follow_symlinks=False)) for e in entries]
                used = entries[0].stat(follow_symlinks=False).st_mtime
                items.append(StoredItem(kind, name, used, sum(sizes), tuple(e.name for e in entries)))
        return sorted(items, key=lambda item: (item.used, item.kind, item.name))

    def names(self, kind: str, prefix: str) -> list[str]:
        """The names of a kind that start so, in order."""
        return sorted(entry.name for entry in self._scan(kind) if entry.name.startswith(prefix) and NAME.fullmatch(entry.name))

    def remove(self, item: StoredItem) -> None:
        """Remove a file, then its attachments: whoever still finds it finds them too."""
        for file in item.files:
            with suppress(OSError):
                os.unlink(self.path(item.kind, file))

    def drop(self, kind: str, name: str) -> None:
        """Remove a damaged file, so that it is found missing from now on; what it refers to goes when space is made."""
        with suppress(OSError):
            os.unlink(self.path(kind, name))

    def make_room(self, limit: int, keep: tuple[str, str], now: float) -> int:
        """Remove what killed processes left, then the least recently used beyond ``limit`` bytes; the bytes still free.

        ``keep`` is the kind and name of what was just written.
        """
        aside = self.sweep(now - STALE)
        items = self.items()
        kept = sum(item.bytes for item in items)
        if aside and kept + aside > limit:
            aside = self.sweep(now - STALE, dead=True)
        total = kept + aside
        lasting = sum(item.bytes for item in items if item.kind in LASTING)
        if total > limit:
            for item in sorted(items, key=lambda item: LASTING.index(item.kind) if item.kind in LASTING else -1):
                last = item.kind in LASTING
                if total <= limit * 9 // 10 or (last and lasting <= limit):
                    break
                if (item.kind, item.name) != keep:
                    self.remove(item)
                    total -= item.bytes
                    lasting -= item.bytes if last else 0
        return max(0, limit - total)

    def sweep(self, before: float, dead: bool = False) -> int:
        """Remove files that were being written and last changed before that moment, with ``dead`` also later ones whose process has
        ended; the bytes of those that stay."""
        left = 0
        for kind in KINDS:
            for entry in self._scan(kind):
                with suppress(OSError):
                    if not entry.name.startswith(_ASIDE):
                        continue
                    status = entry.stat(follow_symlinks=False)
                    if status.st_mtime < before or (dead and status.st_mtime < time.time() - YOUNG and _abandoned(entry.path)):
                        os.unlink(entry.path)
                    else:
                        left += _occupied(status)
        return left

    def _scan(self, kind: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(os.path.join(self._base, kind)) as entries:
                return list(entries)
        except OSError:
            return []

    def _put(self, kind: str, file: str, content: bytes) -> None:
        path = self.path(kind, file)
        aside = self.path(kind, f"{_ASIDE}{os.getpid()}-{secrets.token_hex(8)}")
        try:
            with self._written_aside(aside, content):
                os.replace(aside, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(aside)
            raise

    @contextmanager
    def _written_aside(self, aside: str, content: bytes) -> Iterator[None]:
        """Within it the file is there, and locked: it is not taken for one that a killed process left."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            handle = os.open(aside, flags, 0o600)
        except FileNotFoundError:  # the first file of its kind, or someone removed the directory
            self._make(Path(aside).parent)
            handle = os.open(aside, flags, 0o600)
        try:
            scratch.lock(handle, fcntl.LOCK_EX, 0)
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(handle, rest) :]
            os.fsync(handle)
            yield
        finally:
            os.close(handle)

    def _make(self, folder: Path) -> None:
        missing = [p for p in (folder, *folder.parents) if not p.exists()]
        for path in reversed(missing):
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
        trust = examine(self.root)
        if not trust.ok:
            raise PermissionError(errno.EPERM, trust.problem, str(self.root))


def _occupied(status: os.stat_result) -> int:
    """Bytes on the disk."""
    return -(-status.st_size // 4096) * 4096


def _abandoned(path: str) -> bool:
    """Whether no process is writing a file any more."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return scratch.lock(handle, fcntl.LOCK_EX, 0)
    finally:
        os.close(handle)


def _seal(kind: str, name: str, body: bytes) -> bytes:
    seal = hashlib.sha256(f"{kind}/{name}\0".encode())
    seal.update(body)
    return seal.hexdigest().encode()


def _read(path: str) -> tuple[bytes, float] | None:
    """A file's content and time of change; None where there is none, Damaged if it is not a file of the user's own."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from error
    try:
        status = os.fstat(handle)
        _require_private(path, status)
        parts = []
        while part := os.read(handle, 1 << 24):
            parts.append(part)
        return b"".join(parts), status.st_mtime
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from error
    finally:
        os.close(handle)


def _require_private(path: str, status: os.stat_result) -> None:
    """Damaged unless a file is the user's own and only the user may write it: others may have put it there earlier."""
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise Damaged(f"{path} is not a private file of the user")


def _touch(path: str, modified: float) -> None:
    """Let the time of change tell the last use, to the hour: one system call an hour."""
    if time.time() - modified > STALE:
        with suppress(OSError):
            os.utime(path)
