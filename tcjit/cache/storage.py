"""The persistent store: what is known of a text, what was chosen for a program, and the kernels that came of it.

Layers, each with its own key, so that they age apart:

- *texts*: hash of a program's text -> the signatures of its defs; a text found here is known to be valid;
- *options*: hash of program and device (the *family*), and shapes -> the best options found, with numbers; survives new compilers and
  versions;
- *kernels*: hash of all of that and of tcjit's code, compiler, flags and processor -> launch record, shared object, texts;
- *notes* and *blobs*: small facts and binaries of tcjit's own, such as the compiler's description and the launcher;
- *logs*: what was measured, in the order in which it was.

The cache can fail in no way that a caller would notice, except by speed and one warning of each kind: what is damaged counts as missing,
and where the user's directory cannot be used, a private temporary one stands in for it.
"""
from __future__ import annotations

import atexit
import functools
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

from tcjit import config, scratch
from tcjit.cache import tuned
from tcjit.cache.directory import LASTING, NAME, STALE, Damaged, Directory, Trust, examine
from tcjit.cache.log import Log
from tcjit.cache.tuned import Choice, Shapes
from tcjit.dataclass import dataclass
from tcjit.errors import CacheError

T = TypeVar("T")
# makes a value of a file's content; None where something that belongs to it is gone
Unpack = Callable[[Directory, str, bytes], "T | None"]
_ROOM = "room on the disk of TCJIT_CACHE_DIR or TMPDIR"


class CacheWarning(UserWarning):
    """The cache does not work as it should; results are right all the same."""


@dataclass(frozen=True)
class Entry:
    """A compiled kernel. ``library`` is its shared object, whose checksum was right when this entry was made."""

    key: str
    record: dict[str, Any]
    library: Path
    _texts: bytes = field(default=b"{}", repr=False)

    @property
    def bytes(self) -> int:
        """The size of shared object and texts."""
        return (self.library.stat().st_size if self.library.exists() else 0) + len(self._texts)

    def artifact(self, name: str) -> str | None:
        """The text called ``name`` (``source``, ``tree``, or that of a step), None where there is none."""
        return self.artifacts().get(name)

    def artifacts(self) -> dict[str, str]:
        """Every text; they are only now unpacked."""
        texts = json.loads(self._texts)
        return {str(name): str(text) for name, text in texts.items()}


class Store:
    """The store in the user's directory ``home``; get one from ``store()``."""

    def __init__(self, home: Path | None) -> None:
        self.trust: Trust = examine(home)
        self._home = Directory(home) if home is not None and self.trust.ok else None
        self._warned: dict[str, object] = {}
        self._room = 0  # bytes that may be written before space is counted again

    @property
    def path(self) -> Path:
        """The directory in use."""
        return self._home.root if self._home else _spare().root

    # ------------------------------------------------------------ texts

    def signatures(self, text_hash: str) -> list[dict[str, Any]] | None:
        """The signatures of a text's defs, None if this text is not known to be valid."""
        known = self._json("texts", text_hash)
        return known if isinstance(known, list) else None

    def put_signatures(self, text_hash: str, signatures: Sequence[Mapping[str, Any]]) -> None:
        self._write("texts", text_hash, _dumped(list(signatures)))

    # ------------------------------------------------------------ options

    def choice(self, family: str, shapes: Shapes) -> Choice | None:
        """The best options known for a family, a key of ``options_key``, and these very shapes."""
        known = self._first("options", tuned.file_name(family, shapes), _choice)
        return known[1] if known is not None and known[0] == family else None

    def nearest(self, family: str, shapes: Shapes, within: float = math.inf) -> Choice | None:
        """The best options known for these shapes, else for the nearest ones: see ``tuned.distance``."""
        exact = self.choice(family, shapes)
        if exact is not None:
            return exact
        near: list[tuple[float, Shapes, Choice]] = []
        for name in sorted({name for directory in self._directories() for name in directory.names("options", tuned.prefix(family))}):
            known = self._first("options", name, _choice)
            if known is not None and known[0] == family and (far := tuned.distance(known[1].shapes, shapes, within)) is not None:
                near.append((far, known[1].shapes, known[1]))
        return min(near, key=lambda known: known[:2])[2] if near else None

    def put_choice(self, family: str, choice: Choice) -> None:
        """Keep options for ``choice.shapes``, in place of what was known for them."""
        self._write("options", tuned.file_name(family, choice.shapes), tuned.packed(family, choice))

    def choices(self) -> Iterator[tuple[str, Choice]]:
        """Every choice with its family, in a fixed order."""
        for name in sorted({item.name for directory in self._directories() for item in directory.items(("options",))}):
            known = self._first("options", name, _choice, use=False)
            if known is not None:
                yield known

    # ------------------------------------------------------------ kernels

    def get(self, key: str) -> Entry | None:
        """The kernel stored under a key of ``call_key``, its record and shared object checked."""
        return self._first("kernels", key, _entry)

    def put(self, key: str, record: Mapping[str, Any], library: bytes, artifacts: Mapping[str, str]) -> Entry:
        """Store a kernel. A CacheError only where no directory at all takes it, so that there would be nothing to load."""

        def write(directory: Directory) -> Entry:
            file, digest = directory.attach("kernels", key, library)
            texts = _dumped(dict(artifacts))
            directory.write("kernels", key, _dumped({"record": record, "library": [file, digest]}) + b"\n" + texts)
            return Entry(key, dict(record), Path(directory.path("kernels", file)), texts)

        entry = self._somewhere("kernels", key, write, len(library))
        if entry is None:
            raise CacheError(f"there is no room for a compiled kernel of {len(library)} bytes", hint=_ROOM)
        return entry

    def entries(self) -> Iterator[Entry]:
        """Every sound kernel, most recently used first."""
        for directory in self._directories():
            for item in reversed(directory.items(("kernels",))):
                entry = self._from(directory, "kernels", item.name, _entry, use=False)
                if entry is not None:
                    yield entry

    # ------------------------------------------------------------ notes and blobs

    def note(self, name: str) -> dict[str, Any] | None:
        """A small fact put there by ``put_note``."""
        note = self._json("notes", name)
        return note if isinstance(note, dict) else None

    def notes(self, start: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The notes whose names start so, with their names."""
        for name in sorted({name for directory in self._directories() for name in directory.names("notes", start)}):
            note = self.note(name)
            if note is not None:
                yield name, note

    def put_note(self, name: str, note: Mapping[str, Any]) -> None:
        self._write("notes", name, _dumped(dict(note)))

    def blob(self, name: str) -> Path | None:
        """The path of a binary put there by ``put_blob``, its checksum right."""
        return self._first("blobs", name, _blob)

    def put_blob(self, name: str, content: bytes) -> Path:
        """Store a binary and return its path; a CacheError only where no directory at all takes it."""

        def write(directory: Directory) -> Path:
            file, digest = directory.attach("blobs", name, content)
            directory.write("blobs", name, _dumped([file, digest]))
            return Path(directory.path("blobs", file))

        path = self._somewhere("blobs", name, write, len(content))
        if path is None:
            raise CacheError(f"there is no room for {name}", hint=_ROOM)
        return path

    # ------------------------------------------------------------ logs

    def log(self, name: str) -> Log:
        """A log of that name in the user's directory, or where that takes no files in the temporary one.

        Its ``append`` raises an OSError on a full disk: nothing stands in for a log.
        """
        _require_name(name)
        self._warn_of_distrust()
        directory = self._home if self._home and self.trust.writable else _spare()
        try:
            directory.require_private("logs", name)
        except Damaged as error:
            directory.drop("logs", name)
            self._warn("damaged", f"the cache was damaged and what it lost is made again: {error}")
        return directory.log(name)

    def logs(self, start: str) -> Iterator[tuple[str, Log]]:
        """The logs whose names start so, with their names, the one written to last first."""
        items = [(item, directory) for directory in self._directories() for item in directory.items(("logs",))]
        logs = [(item, directory) for item, directory in items if item.name.startswith(start)]
        for item, directory in sorted(logs, key=lambda log: -log[0].used):
            yield item.name, directory.log(item.name)

    # ------------------------------------------------------------ locks

    def lock_file(self, name: str) -> int:
        """An open file of that name to lock, in the user's directory, or where that takes no files in the temporary one; an OSError."""
        _require_name(name)
        self._warn_of_distrust()
        directory = self._home if self._home and self.trust.writable else _spare()
        return directory.lock_file(name)

    # ------------------------------------------------------------ upkeep

    def clear(self) -> int:
        """Remove everything; how many things there were. Libraries in use stay loaded."""
        count = 0
        for directory in self._directories():
            items = directory.items()
            count += len(items)
            for item in items:
                directory.remove(item)
            directory.sweep(float("inf"))
        return count

    def verify(self) -> list[str]:
        """Read everything and remove what is damaged, of a log its damaged lines; the names of what was."""
        damaged = []
        for directory in self._directories():
            for item in directory.items():
                try:
                    sound = item.name not in item.files or _sound(directory, item.kind, item.name)
                except (Damaged, *_MALFORMED):
                    sound = False
                if not sound:
                    damaged.append(f"{item.kind}/{item.name}")
                    if item.kind != "logs":
                        directory.remove(item)
        return sorted(damaged)

    def gc(self, idle: float = math.inf, useful: Callable[[Mapping[str, Any]], bool] = lambda record: True) -> tuple[int, int]:
        """Make room now; how many things went, and their bytes.

        Those are: kernels whose records are not ``useful``; kernels, texts, notes and blobs not used for ``idle`` seconds; what killed
        processes left; then, if that is not enough for the size limit, the least recently used.
        """
        if self._home is None:
            return 0, 0
        directory, now = self._home, time.time()
        before = directory.items()
        for item in before:
            entry = None
            if item.kind == "kernels" and item.name in item.files:
                entry = self._from(directory, "kernels", item.name, _entry, use=False)
            unused = item.kind not in LASTING and item.used < now - idle
            left = item.name not in item.files and item.used < now - STALE
            if unused or left or (entry is not None and not useful(entry.record)):
                directory.remove(item)
        directory.make_room(config.cache_size(), ("", ""), now)
        after = directory.items()
        return len(before) - len(after), sum(item.bytes for item in before) - sum(item.bytes for item in after)

    # ------------------------------------------------------------ behind all of them

    def _directories(self) -> list[Directory]:
        spare = [_spare()] if _spare.cache_info().currsize else []
        return ([self._home] if self._home else []) + spare

    def _json(self, kind: str, name: str) -> Any:
        return self._first(kind, name, lambda directory, name, body: json.loads(body))

    def _first(self, kind: str, name: str, unpack: Unpack[T], use: bool = True) -> T | None:
        _require_name(name)
        self._warn_of_distrust()
        for directory in self._directories():
            value = self._from(directory, kind, name, unpack, use)
            if value is not None:
                return value
        return None

    def _from(self, directory: Directory, kind: str, name: str, unpack: Unpack[T], use: bool) -> T | None:
        try:
            body = directory.read(kind, name, use)
            return None if body is None else unpack(directory, name, body)
        except Damaged as error:
            directory.drop(kind, name)
            self._warn("damaged", f"the cache was damaged and what it lost is made again: {error}")
        except _MALFORMED:
            directory.drop(kind, name)  # whole, but of another make
        return None

    def _write(self, kind: str, name: str, body: bytes) -> None:
        self._somewhere(kind, name, lambda directory: directory.write(kind, name, body), len(body))

    def _somewhere(self, kind: str, name: str, write: Callable[[Directory], T], size: int) -> T | None:
        """Write to the user's directory, or else to the temporary one; None if neither takes it."""
        _require_name(name)
        self._warn_of_distrust()
        if self._home is not None:
            try:
                done = write(self._home)
                self._make_room(kind, name, size)
                return done
            except OSError as error:
                self._warn("write", f"{self._home.root} cannot be written ({error.strerror}): new kernels last as long as the process")
        try:
            return write(_spare())
        except OSError:
            return None

    def _make_room(self, kind: str, name: str, size: int) -> None:
        """Keep to the size limit. Files are counted at the first write and whenever a part of the free space has been used up."""
        self._room -= size
        if self._room <= 0 and self._home is not None:
            limit = config.cache_size()
            free = self._home.make_room(limit, (kind, name), time.time())
            self._room = min(free // 4, limit // 16)  # other processes write too

    def _warn_of_distrust(self) -> None:
        if self._home is None:
            self._warn("trust", f"no cache, kernels last as long as the process: {self.trust.problem}; try: {self.trust.hint}")

    def _warn(self, kind: str, message: str) -> None:
        this = object()
        if self._warned.setdefault(kind, this) is this:  # of several threads, one
            warnings.warn(message, CacheWarning, stacklevel=2)


def store() -> Store:
    """The process's store for the present ``TCJIT_CACHE_DIR``."""
    return _opened(config.cache_dir(), os.geteuid())


@functools.lru_cache
def _opened(home: Path | None, user: int) -> Store:
    return Store(home)


@functools.lru_cache(maxsize=1)
def _spare() -> Directory:
    """The process's private temporary directory, removed when the process ends; an OSError where none can be made."""
    folder, owner = scratch.LockedFolder("cache"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a forked child, whose parent still uses it
            folder.remove()

    atexit.register(remove)
    return Directory(Path(folder.path))


# What unpacking raises on a file that is whole but was written by another version of tcjit.
_MALFORMED = (ValueError, KeyError, TypeError, RecursionError)


def _choice(directory: Directory, name: str, body: bytes) -> tuple[str, Choice]:
    return tuned.unpacked(body)


def _entry(directory: Directory, key: str, body: bytes) -> Entry | None:
    head, _, texts = body.partition(b"\n")
    facts = json.loads(head)
    file, digest = facts["library"]
    library = directory.attached("kernels", file, digest)
    return Entry(key, dict(facts["record"]), library, texts) if library is not None else None


def _blob(directory: Directory, name: str, body: bytes) -> Path | None:
    file, digest = json.loads(body)
    return directory.attached("blobs", file, digest)


def _sound(directory: Directory, kind: str, name: str) -> bool:
    """Whether a file and what belongs to it are there; damaged and malformed ones raise. A file removed meanwhile counts as sound."""
    if kind == "logs":
        directory.require_private(kind, name)
        try:
            return directory.log(name).mend() == 0
        except OSError:
            return False
    body = directory.read(kind, name, use=False)
    if body is None:
        return True
    if kind == "kernels":
        entry = _entry(directory, name, body)
        return entry is not None and entry.artifacts() is not None
    if kind == "blobs":
        return _blob(directory, name, body) is not None
    if kind == "options":
        return bool(tuned.unpacked(body))
    return json.loads(body) is not None


def _require_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise CacheError(f"{name!r} cannot be a name in the cache", hint="letters, digits and _ . - only")


def _dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
