"""The store's layers: what is put is found, again and in another process, and the least recently used goes."""
from __future__ import annotations

import fcntl
import math
import os
import threading
import time
import warnings
from pathlib import Path

import pytest
from support.cache import family, files, printed, put, whole

import tcjit.cache
from tcjit.cache import Choice, Store
from tcjit.cache.directory import Directory
from tcjit.cache.keys import made_by
from tcjit.errors import CacheError, TCError

SHAPES = ((4, 4), (4, 4))
SIGNATURES = [{"name": "mm", "params": [{"name": "A", "dtype": "float32", "dims": ["N", 4]}]}]


@pytest.fixture(autouse=True)
def silent() -> None:
    warnings.simplefilter("error")


def old(path: Path, days: float) -> None:
    os.utime(path, (time.time() - 86400 * days,) * 2)


def test_layers(store: Store, home: Path) -> None:
    assert store.signatures("t") is store.get("k") is store.choice(family("k"), SHAPES) is store.note("n") is store.blob("b") is None
    assert not home.exists(), "a look creates nothing"
    store.put_signatures("t", SIGNATURES)
    entry = put(store, "k")
    store.put_choice(family("k"), Choice({"tile": [4, 32]}, {"seconds": 0.25}, "mm 4x4", SHAPES))
    store.put_note("n", {"a": 1})
    store.put_blob("b", b"\x7fELF")
    for again in (store, Store(home)):
        assert again.signatures("t") == SIGNATURES
        found = again.get("k")
        assert found is not None and found == entry and whole(found, "k")
        assert found.artifact("tree") == "band\n" and found.artifact("other") is None
        assert found.bytes > len(found.library.read_bytes())
        assert again.choice(family("k"), SHAPES) == Choice({"tile": [4, 32]}, {"seconds": 0.25}, "mm 4x4", SHAPES)
        assert again.note("n") == {"a": 1}
        blob = again.blob("b")
        assert blob is not None and blob.read_bytes() == b"\x7fELF"


def test_private_to_the_user(store: Store, home: Path) -> None:
    mask = os.umask(0)
    try:
        put(store, "k")
    finally:
        os.umask(mask)
    assert all(path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600) for path in (home, *home.rglob("*")))


def test_a_later_kernel_takes_the_place(store: Store) -> None:
    first = put(store, "k", 1)
    second = put(store, "k", 2)
    assert first.library != second.library and first.library.exists(), "the first may be loaded somewhere"
    found = store.get("k")
    assert found is not None and found.record["number"] == 2 and whole(found, "k")


def test_the_same_bytes_are_left_alone(store: Store) -> None:
    inode = put(store, "k").library.stat().st_ino
    assert put(store, "k").library.stat().st_ino == inode, "a loaded library is never replaced by itself"


def test_entries_most_recent_first(store: Store, home: Path) -> None:
    for days, key in enumerate("abc"):
        put(store, key)
        old(home / "v1" / "kernels" / key, 3 - days)
    assert [entry.key for entry in store.entries()] == ["c", "b", "a"]
    assert [entry.key for entry in store.entries()] == ["c", "b", "a"], "looking is no use"
    store.get("a")
    assert [entry.key for entry in store.entries()] == ["a", "c", "b"]


def test_least_recently_used_goes_first(store: Store, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for days, key in enumerate("abcdef"):
        put(store, key)
        old(home / "v1" / "kernels" / key, 6 - days)
    store.get("a")
    monkeypatch.setenv("TCJIT_CACHE_SIZE", "150kB")  # a kernel takes 32 kB: library and head, in blocks
    put(Store(home), "g")
    kept = {entry.key for entry in store.entries()}
    assert kept == {"a", "f", "g", "e"}
    assert not any(path.name.startswith(("b@", "c@", "d@")) for path in files(home)), "their libraries go with them"
    assert store.get("b") is None


def test_options_and_logs_go_last(store: Store, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They took a search; kernels, however recent, take a compiler."""
    store.put_choice(family("k"), Choice({}, {}, "", SHAPES))
    store.log("measured").append([{"n": 1}])
    for path in files(home):
        old(path, 100)
    for key in "abc":
        put(store, key)
    monkeypatch.setenv("TCJIT_CACHE_SIZE", "10kB")
    put(Store(home), "d")
    assert [entry.key for entry in store.entries()] == ["d"], "what was just written"
    assert store.gc()[0] == 1 and list(store.entries()) == [], "a kernel alone is larger than the limit"
    assert store.choice(family("k"), SHAPES) is not None and store.log("measured").read() == [{"n": 1}]
    monkeypatch.setenv("TCJIT_CACHE_SIZE", "5kB")
    assert store.gc()[0] == 1 and store.log("measured").read() == [], "too much by themselves: logs before options"
    assert store.choice(family("k"), SHAPES) is not None


def test_nearest_choice(store: Store) -> None:
    def nearest(*shapes: tuple[int, ...], within: float = math.inf) -> str:
        found = store.nearest(family("k"), shapes, within)
        return found.label if found else ""

    assert nearest((4, 4)) == ""
    for label, shapes in {"small": ((8, 8),), "large": ((64, 64),), "wide": ((8, 512),), "vector": ((8,),), "two": ((8, 8), (8,))}.items():
        store.put_choice(family("k"), Choice({}, {}, label, shapes))
    store.put_choice(family("l"), Choice({}, {}, "another program", ((9, 9),)))
    assert nearest((8, 8)) == "small" and nearest((64, 64)) == "large", "exact"
    assert nearest((9, 9)) == "small" and nearest((30, 30)) == "large" and nearest((10, 300)) == "wide"
    assert nearest((100,)) == "vector" and nearest((100,), (1,)) == "" and nearest((8, 8), (9,)) == "two", "ranks must agree"
    assert nearest((16, 32)) == "small" and nearest((8, 64)) == "small", "of equals, always the same"
    assert nearest((32, 33), within=2) == "large" and nearest((31, 33), within=2) == "", "no extent may be further away"
    assert nearest((8, 8), within=1) == "small" and nearest((0, 8)) == "" and nearest((0,)) == ""
    store.put_choice(family("k"), Choice({}, {}, "empty", ((0, 8),)))
    assert nearest((0, 9)) == "empty" and nearest((1, 8)) == "small"
    store.put_choice(family("k"), Choice({}, {}, "later", ((8, 8),)))
    assert nearest((8, 8)) == "later", "the last one stays"


def test_gc(store: Store, home: Path) -> None:
    for days, key in enumerate("abc"):
        put(store, key, days)
        old(home / "v1" / "kernels" / key, 10 * days)
    store.put_note("n", {})
    store.put_choice(family("k"), Choice({}, {}, "", SHAPES))
    store.log("measured").append([{"n": 1}])
    for name in ("notes/n", f"options/{next((home / 'v1/options').iterdir()).name}", "logs/measured"):
        old(home / "v1" / name, 100)
    left = home / "v1/kernels" / f"x@{'0' * 16}.so"
    left.write_bytes(b"whose head was never written")
    assert store.gc() == (0, 0), "it may be written this moment"
    old(left, 1)
    assert store.gc() == (1, 4096) and not left.exists()
    assert store.gc(useful=lambda record: record["number"] != 0)[0] == 1 and store.get("a") is None
    assert store.gc(idle=15 * 86400)[0] == 2 and [entry.key for entry in store.entries()] == ["b"]
    assert store.note("n") is None
    assert store.gc(idle=0)[0] == 1 and list(store.entries()) == []
    assert store.choice(family("k"), SHAPES) is not None and store.log("measured").read() == [{"n": 1}], "whatever their age"


def test_what_was_just_written_stays(home: Path, spare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TCJIT_CACHE_SIZE", "0")
    store = Store(home)
    for key in ("a", "b"):
        assert whole(put(store, key), key)
    assert [entry.key for entry in store.entries()] == ["b"]


def test_space_is_not_counted_at_every_write(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from tcjit.cache.directory import Directory

    counts = []
    make_room = Directory.make_room
    monkeypatch.setattr(Directory, "make_room", lambda *arguments: counts.append(1) or make_room(*arguments))
    for number in range(20):
        put(store, f"k{number}")
    assert len(counts) == 1


def test_space_is_counted_again_when_a_quarter_of_what_was_free_is_used(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes write as well: what one of them counted as free is not its alone."""
    from tcjit.cache.directory import Directory

    counts: list[int] = []
    monkeypatch.setattr(Directory, "make_room", lambda *arguments: counts.append(1) or 400_000)
    monkeypatch.setenv("TCJIT_CACHE_SIZE", "1GB")
    sizes = []
    for number in range(99):
        before = store._room
        put(store, f"k{number}")
        sizes.append(before - store._room)
        if len(counts) == 2:
            break
    size = sizes[1]
    assert 0 < size < 100_000 <= size * (len(sizes) - 1) < 100_000 + size


def test_kernels_of_other_tools_go(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TCJIT_CACHE_DIR", str(home))
    mine = made_by("mine")
    kept = {"a": ("cpu", mine), "b": ("cuda", made_by("nvrtc")), "c": ("cpu", made_by("gone")), "d": ("cpu", ["no such version", mine[1]])}
    for name, (target, tools) in kept.items():
        tcjit.cache.store().put(name, {"target": target, "tools": tools}, b"library", {})
    assert tcjit.cache.gc(tools={"cpu": ["mine"]})[0] == 2
    assert sorted(entry.key for entry in tcjit.cache.store().entries()) == ["a", "b"], "nothing is said of the tools for cuda"
    assert tcjit.cache.gc(tools={"cpu": ["mine"], "cuda": ["another"]})[0] == 1


def test_leftovers_are_swept(store: Store, home: Path) -> None:
    put(store, "k")
    left, busy = home / "v1" / "kernels" / ".aside-1-a", home / "v1" / "kernels" / ".aside-2-b"
    left.write_bytes(b"half a fi")
    busy.write_bytes(b"half a fi")
    old(left, 1)
    put(Store(home), "l")
    assert not left.exists() and busy.exists()


def test_leftovers_count_and_go_when_there_is_no_room(store: Store, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting an hour, once their writers have ended; what is being written stays, also where nobody knows its writer."""
    put(store, "k")
    folder = home / "v1" / "kernels"
    dead, young, busy = (folder / f".aside-{number}-a" for number in range(3))
    for file in (dead, young, busy):
        file.write_bytes(bytes(200_000))
    minute = time.time() - 60
    os.utime(dead, (minute, minute)), os.utime(busy, (minute, minute))
    handle = os.open(busy, os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    monkeypatch.setenv("TCJIT_CACHE_SIZE", "1MB")
    put(Store(home), "l")
    assert dead.exists() and store.get("k") is not None, "there is room"
    monkeypatch.setenv("TCJIT_CACHE_SIZE", "500KB")
    put(Store(home), "m")
    assert not dead.exists() and young.exists() and busy.exists() and store.get("k") is not None
    monkeypatch.setenv("TCJIT_CACHE_SIZE", "300KB")
    put(Store(home), "n")
    assert young.exists() and busy.exists() and store.get("k") is None and store.get("n") is not None, "they count"
    os.close(handle)


@pytest.mark.parametrize("way", ["fifo", "link"])
def test_leftovers_that_are_no_files(store: Store, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Nobody waits for the other end of a FIFO, and what a link leads to is not taken for a file whose writer has ended."""
    put(store, "k")
    planted, minute = home / "v1" / "kernels" / ".aside-0-a", time.time() - 60
    if way == "fifo":
        os.mkfifo(planted)
    else:
        (tmp_path / "file").write_bytes(bytes(200_000))
        planted.symlink_to(tmp_path / "file")
    os.utime(planted, (minute, minute), follow_symlinks=False)
    (planted.parent / ".aside-1-a").write_bytes(bytes(200_000))
    monkeypatch.setenv("TCJIT_CACHE_SIZE", "50KB")
    thread = threading.Thread(target=lambda: put(Store(home), "l"), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert planted.is_symlink() == (way == "link")


def test_links_in_the_place_of_kernels_are_items_themselves(store: Store, home: Path, tmp_path: Path) -> None:
    """By their own age and size, also where they lead to nothing: they go like others."""
    put(store, "k")
    (tmp_path / "file").write_bytes(bytes(200_000))
    names = ["a" * 64, "b" * 64]
    for name, aim in zip(names, ("file", "nothing")):
        (home / "v1" / "kernels" / name).symlink_to(tmp_path / aim)
        os.utime(home / "v1" / "kernels" / name, (1000.0, 1000.0), follow_symlinks=False)
    links = [item for item in Directory(home).items() if item.name in names]
    assert [(item.name, item.used, item.bytes) for item in links] == [(name, 1000.0, 4096) for name in names]


def test_clear_touches_only_its_own(store: Store, home: Path) -> None:
    put(store, "k")
    store.put_note("n", {})
    (home / "mine.txt").write_text("mine")
    (home / "v1" / "notes" / "not a cache name").write_text("mine")
    assert store.clear() == 2
    assert [path.name for path in files(home)] == ["mine.txt", "not a cache name"]
    assert store.get("k") is None


def test_names_are_never_paths(store: Store, tmp_path: Path) -> None:
    for name in ("", "..", "../x", "a/b", "a b", ".hidden", "a;rm", "x" * 200, "a@0123456789abcdef.so", "a\n"):
        with pytest.raises(CacheError, match="cannot be a name"):
            store.put_note(name, {})
        with pytest.raises(CacheError, match="cannot be a name"):
            store.get(name)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_size_limit_is_said(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TCJIT_CACHE_SIZE", "plenty")
    with pytest.raises(TCError, match="TCJIT_CACHE_SIZE='plenty' is not a size"):
        put(store, "k")


def test_the_directory_removed_under_way(store: Store, home: Path) -> None:
    import shutil

    put(store, "k")
    shutil.rmtree(home)
    assert store.get("k") is None
    assert whole(put(store, "k"), "k") and Store(home).get("k") is not None


def test_public_functions(home: Path, spare: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TCJIT_CACHE_DIR", str(home))
    assert tcjit.cache.path() == home and tcjit.cache.trusted().ok and tcjit.cache.entries() == ()
    put(tcjit.cache.store(), "k")
    assert [entry.key for entry in tcjit.cache.entries()] == ["k"]
    assert tcjit.cache.store() is tcjit.cache.store()
    assert tcjit.cache.verify() == [] and tcjit.cache.clear() == 1
    monkeypatch.setenv("TCJIT_CACHE_DIR", str(tmp_path / "other"))
    assert tcjit.cache.path() == tmp_path / "other", "the variable is read at use"


@pytest.mark.cold
def test_another_process_finds_it(store: Store, home: Path) -> None:
    put(store, "k", 5)
    code = """
import json, sys
from pathlib import Path
from tcjit.cache import Store
from support.cache import whole
entry = Store(Path(sys.argv[1])).get("k")
print(json.dumps([entry.record["number"], whole(entry, "k"), [m for m in ("torch", "lark", "islpy") if m in sys.modules]]))
"""
    assert printed(code, str(home)) == [5, True, []]


def test_the_temporary_directory_goes_with_the_process(tmp_path: Path) -> None:
    """It serves the process, not its end: nothing is left, and a forked child does not remove it under its parent."""
    code = """
import json, os, warnings
warnings.simplefilter("ignore")
from tcjit.cache import store, path
from support.cache import put, whole
entry = put(store(), "k")
if os.fork() == 0:
    import atexit
    atexit._run_exitfuncs()
    os._exit(0)
os.wait()
found = store().get("k")
print(json.dumps([str(path()), whole(found, "k"), oct(path().stat().st_mode & 0o777)]))
"""
    (tmp_path / "file").write_text("")
    temporary, sound, mode = printed(code, TCJIT_CACHE_DIR=str(tmp_path / "file"), TMPDIR=str(tmp_path))
    assert sound and mode == "0o700" and temporary.startswith(f"{tmp_path}/tcjit-cache-")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
