"""Truncated, flipped, moved and planted files, a full disk, a killed process, many processes: at worst a recompile and one warning.

Modules: cache.directory
"""
from __future__ import annotations

import errno
import os
import random
import shutil
import warnings
from pathlib import Path

import pytest
from support.cache import WRITER, family, files, kill_writers, printed, put, python, whole

from tcjit.cache import CacheWarning, Choice, Store
from tcjit.errors import CacheError

KEYS = ("k", "l")


def choice(key: str) -> Choice:
    return Choice({"tile": [1]}, {"seconds": 1.0}, key, ((4, 4), (4,)))


def fill(store: Store) -> None:
    for key in KEYS:
        put(store, key)
        store.put_signatures(key, [{"name": key}])
        store.put_choice(family(key), choice(key))
        store.put_note(key, {"name": key})
        store.put_blob(key, key.encode() * 100)


def sound(store: Store) -> int:
    """Read everything; how much was there. Whatever is there must be right."""
    found = 0
    for key in KEYS:
        entry, blob = store.get(key), store.blob(key)
        assert entry is None or whole(entry, key)
        assert blob is None or blob.read_bytes() == key.encode() * 100
        signatures, options, note = store.signatures(key), store.choice(family(key), choice(key).shapes), store.note(key)
        assert signatures in (None, [{"name": key}])
        assert options in (None, choice(key)) and store.nearest(family(key), ((4, 4), (4,))) == options
        assert note in (None, {"name": key})
        found += sum(part is not None for part in (entry, blob, signatures, options, note))
    return found


@pytest.fixture
def filled(store: Store, home: Path) -> list[Path]:
    fill(store)
    return files(home)


def spoiled(content: bytes, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    at = rng.randrange(len(content))
    flipped = bytearray(content)
    flipped[at] ^= 1 << rng.randrange(8)
    return [bytes(flipped), content[:at], content[:-1], b"", content + b"x", content.replace(b"tcjit1", b"tcjit0") + b"\n"]


def test_every_file_spoiled_in_every_way(filled: list[Path], home: Path) -> None:
    assert len(filled) == 14  # of two keys: five sealed files, two attachments
    for number, path in enumerate(filled):
        content = path.read_bytes()
        for bad in spoiled(content, number):
            path.write_bytes(bad)
            store = Store(home)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert sound(store) == 9, f"{path} was spoiled: what was in it is gone, all else is there"
                assert sound(store) == 9
            assert [w.category for w in caught] == [CacheWarning] and str(path.name) in str(caught[0].message)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                fill(store)
                assert sound(Store(home)) == 10, "made again without a word"


def test_all_spoiled_at_once_is_one_warning(filled: list[Path], home: Path) -> None:
    for path in filled:
        path.write_bytes(path.read_bytes()[:-7])
    store = Store(home)
    with pytest.warns(CacheWarning, match="the cache was damaged and what it lost is made again") as caught:
        assert sound(store) == 0
    assert len(caught) == 1


def test_a_missing_library_is_a_plain_miss(filled: list[Path], home: Path) -> None:
    for path in filled:
        if "@" in path.name:
            path.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sound(Store(home)) == 6


def test_files_that_changed_places(filled: list[Path], home: Path) -> None:
    """Every checksum is right, only not for this name."""
    shutil.copy(home / "v1/kernels/k", home / "v1/kernels/l")
    shutil.copy(home / "v1/notes/k", home / "v1/texts/k")
    with pytest.warns(CacheWarning):
        assert sound(Store(home)) == 8


def test_verify_finds_and_removes(store: Store, filled: list[Path], home: Path) -> None:
    assert store.verify() == []
    (home / "v1/texts/k").write_bytes(b"")
    library = next((home / "v1/kernels").glob("l@*"))
    library.write_bytes(library.read_bytes()[:-1])
    next((home / "v1/blobs").glob("k@*")).unlink()
    assert store.verify() == ["blobs/k", "kernels/l", "texts/k"]
    assert store.verify() == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sound(store) == 7


def test_whole_files_of_another_make(store: Store) -> None:
    from tcjit.cache.directory import Directory

    place = Directory(store.path)
    for body in (b"[]", b"3", b"{}", b"not json", b'{"record": 1, "library": ["../../x@0123456789abcdef.so", ""]}', b"[" * 100000):
        for kind in ("kernels", "blobs", "options", "notes", "texts"):
            place.write(kind, "k", body)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert store.get("k") is store.blob("k") is None and list(store.choices()) == []
            assert store.note("k") in (None, {}) or body.startswith(b'{"record"')
            assert store.signatures("k") in (None, [])


@pytest.mark.parametrize("way", ["link", "pipe", "open", "folder"])
def test_planted_files_are_not_read(store: Store, filled: list[Path], home: Path, tmp_path: Path, way: str) -> None:
    """The directory may have been open to others before: a file must be the user's own, and a file."""
    path = home / "v1/kernels/k"
    if way == "open":
        path.chmod(0o666)
    else:
        path.rename(tmp_path / "elsewhere")
    if way == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif way == "pipe":
        os.mkfifo(path)
    elif way == "folder":
        path.mkdir()
    with pytest.warns(CacheWarning):
        assert store.get("k") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_files_of_another_user_are_not_read(store: Store, filled: list[Path], home: Path) -> None:
    os.chown(home / "v1/kernels/k", 12345, 12345)
    os.chown(next((home / "v1/kernels").glob("l@*")), 12345, 12345)
    with pytest.warns(CacheWarning, match="is not a private file of the user"):
        assert store.get("k") is store.get("l") is None


def test_a_disk_that_does_not_give_a_file(store: Store, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as damaged, with the reason, and is made again."""
    put(store, "k")
    good = os.read

    def broken(handle: int, count: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{handle}").startswith(str(home)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return good(handle, count)

    monkeypatch.setattr(os, "read", broken)
    with pytest.warns(CacheWarning, match="kernels/k cannot be read: Input/output error"):
        assert Store(home).get("k") is None
    monkeypatch.undo()
    assert whole(put(store, "k"), "k") and store.get("k") is not None


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_full_disk(store: Store, home: Path, spare: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Kernels of this process go to the temporary directory; what was there before stays; nothing half-written is left."""
    put(store, "before")
    before = files(home)
    good = getattr(os, call)

    def full(first: object, *rest: object) -> object:
        path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(first)
        if path.startswith(str(home)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return good(first, *rest)

    monkeypatch.setattr(os, call, full)
    with pytest.warns(CacheWarning, match="No space left on device") as caught:
        for key in KEYS:
            assert whole(put(store, key), key)
            found = store.get(key)
            assert found is not None and whole(found, key) and found.library.is_relative_to(spare)
    assert len(caught) == 1
    assert files(home) == before
    monkeypatch.undo()
    assert Store(home).get("before") is not None


def test_every_disk_full(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(CacheWarning):
        store.put_signatures("t", [])  # needs no place: it is found again by parsing
    with pytest.raises(CacheError, match="no room for a compiled kernel"):
        put(store, "k")
    with pytest.raises(CacheError, match="no room for launcher"):
        store.put_blob("launcher", b"x")


def test_a_write_cut_short_by_the_system(home: Path) -> None:
    """A real limit on file sizes: the library's first 8 kB are written, the rest is refused."""
    code = """
import json, resource, sys, warnings
from pathlib import Path
from tcjit.cache import Store
from tcjit.errors import CacheError
from support.cache import put
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
store = Store(Path(sys.argv[1]))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        put(store, "k")
        outcome = "stored"
    except CacheError:
        outcome = "CacheError"
print(json.dumps([outcome, len(caught), store.get("k") is None]))
"""
    assert printed(code, str(home)) == ["CacheError", 1, True]
    assert files(home) == []


def test_killed_at_any_moment(home: Path) -> None:
    assert kill_writers(home, 8, 7) == []
    assert Store(home).get("a") is not None, "the writers got somewhere"


def test_many_processes(home: Path, store: Store) -> None:
    """The same keys and different ones, written and read by eight processes at once: every read is of one writer, whole."""
    limits = ["300kB", *[""] * 7]  # one of them throws out what the others write
    settings = [{"THROWN_OUT": "1", "TCJIT_CACHE_SIZE": limit} for limit in limits]
    writers = [python(WRITER, str(home), "10", str(100 * n), "same", f"own{n}", **settings[n]) for n in range(8)]
    for writer in writers:
        assert writer.stdout and writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors
    assert store.verify() == []
    entry = store.get("same")
    assert entry is None or whole(entry, "same")
    records = store.log("written").read()
    assert len(records) == 8 * 10 * 2 and None not in records, "no limit takes what was measured"


def test_a_log_with_damage(store: Store, home: Path) -> None:
    log = store.log("l")
    log.append([{"n": n} for n in range(3)])
    lines = log.path.read_bytes().splitlines(keepends=True)
    log.path.write_bytes(lines[0] + lines[1][:-4] + b"\n" + lines[2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.log("l").read() == [{"n": 0}, None, {"n": 2}]
        assert store.verify() == ["logs/l"] and store.verify() == []
        assert store.log("l").read() == [{"n": 0}, None, {"n": 2}]


@pytest.mark.parametrize("way", ["link", "pipe", "open", "folder"])
def test_a_planted_log_is_neither_read_nor_written(store: Store, home: Path, tmp_path: Path, way: str) -> None:
    put(store, "k")
    victim = tmp_path / "victim"
    victim.write_text("mine")
    path = home / "v1/logs/l"
    path.parent.mkdir(mode=0o700)
    {"link": lambda: path.symlink_to(victim), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}.get(way, path.touch)()
    if way == "open":
        path.chmod(0o666)
    with pytest.warns(CacheWarning, match="is not a private file of the user"):
        log = store.log("l")
    if way != "folder":
        assert log.append([{"n": 1}]) == 1 and Store(home).log("l").read() == [{"n": 1}]
    assert victim.read_text() == "mine"
