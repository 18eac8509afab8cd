"""A directory that another user could write to is neither read nor written."""
from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.cache import files, put, whole

import tcjit.cache
from tcjit.cache import CacheWarning, Store
from tcjit.cache.directory import examine

STRANGER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")


def assert_refused(home: Path, spare: Path, reason: str) -> None:
    """The store works, in the temporary directory, with one warning that says why."""
    shutil.rmtree(spare, ignore_errors=True)
    before = files(home)
    trust = examine(home)
    assert not trust.ok and reason in trust.problem and "TCJIT_CACHE_DIR" in trust.hint and not trust.writable
    with pytest.warns(CacheWarning, match="kernels last as long as the process") as caught:
        store = Store(home)
        assert store.get("k") is None, "what is there is not read"
        assert whole(put(store, "k"), "k")
        found = store.get("k")
    assert len(caught) == 1 and reason in str(caught[0].message)
    assert found is not None and found.library.is_relative_to(spare) and store.path == spare
    assert files(home) == before, "nothing is written"


@pytest.fixture
def filled(store: Store, home: Path) -> Path:
    put(store, "k", 3)
    return home


def test_a_good_directory(home: Path, filled: Path) -> None:
    assert examine(home) == tcjit.cache.Trust(home, "", "", True)
    assert examine(home / "not" / "yet").ok and not (home / "not").exists()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702, 0o1777])
@pytest.mark.parametrize("inside", ["", "v1", "v1/kernels"])
def test_writable_by_others(filled: Path, spare: Path, mode: int, inside: str) -> None:
    (filled / inside).chmod(mode)
    assert_refused(filled, spare, "can be written by others")
    (filled / inside).chmod(0o755)
    assert Store(filled).get("k") is not None, "readable by others is no danger"


@as_root
@pytest.mark.parametrize("inside", ["", "v1", "v1/kernels"])
def test_owned_by_another(filled: Path, spare: Path, inside: str) -> None:
    os.chown(filled / inside, STRANGER, STRANGER)
    assert_refused(filled, spare, f"belongs to another user (uid {STRANGER})")


@pytest.mark.parametrize("mode", [0o777, 0o707])
def test_a_parent_open_to_others(filled: Path, spare: Path, mode: int) -> None:
    parent = filled.parent / "open"
    parent.mkdir()
    parent.chmod(mode)
    filled.rename(parent / "cache")
    assert_refused(parent / "cache", spare, "on the way to")
    parent.chmod(mode | 0o1000)
    assert examine(parent / "cache").ok, "a sticky one, such as /tmp, lets nobody rename what is another's"
    parent.chmod(0o770)
    assert examine(parent / "cache").ok, "the user's own group is the usual umask of many systems"


@as_root
def test_a_parent_of_another(filled: Path, spare: Path) -> None:
    parent = filled.parent / "theirs"
    parent.mkdir()
    filled.rename(parent / "cache")
    os.chown(parent, STRANGER, 0)
    assert_refused(parent / "cache", spare, "belongs to another user")
    os.chown(parent, 0, STRANGER)
    parent.chmod(0o770)
    assert_refused(parent / "cache", spare, "on the way to")


def test_a_link_to_a_good_directory(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "way").symlink_to("cache")
    (tmp_path / "link").symlink_to(tmp_path / "way")
    assert examine(tmp_path / "link").ok
    assert Store(tmp_path / "link").get("k") is not None
    (tmp_path / "up").symlink_to("../" + tmp_path.name + "/./cache")
    assert examine(tmp_path / "up").ok


def test_a_link_to_a_bad_directory(filled: Path, tmp_path: Path, spare: Path) -> None:
    (tmp_path / "link").symlink_to(filled)
    filled.chmod(0o777)
    assert_refused(tmp_path / "link", spare, "can be written by others")


def test_a_link_through_an_open_directory(filled: Path, tmp_path: Path, spare: Path) -> None:
    """The directory is good; but whoever may replace the link in the middle may send the user elsewhere."""
    middle = tmp_path / "middle"
    middle.mkdir()
    (middle / "way").symlink_to(filled)
    (tmp_path / "link").symlink_to(middle / "way")
    middle.chmod(0o777)
    assert_refused(tmp_path / "link", spare, "on the way to")


@as_root
def test_a_link_of_another(filled: Path, tmp_path: Path, spare: Path) -> None:
    (tmp_path / "link").symlink_to(filled)
    os.chown(tmp_path / "link", STRANGER, STRANGER, follow_symlinks=False)
    assert_refused(tmp_path / "link", spare, "belongs to another user")


def test_links_inside_are_refused(filled: Path, tmp_path: Path, spare: Path) -> None:
    (filled / "v1/kernels").rename(tmp_path / "elsewhere")
    (filled / "v1/kernels").symlink_to(tmp_path / "elsewhere")
    assert_refused(filled, spare, "is not a directory")


def test_a_circle_of_links(tmp_path: Path, spare: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert_refused(tmp_path / "a", spare, "cannot be examined")


def test_a_directory_that_others_can_reach_by_the_first_write(tmp_path: Path, spare: Path) -> None:
    """What was no danger when the store was opened is looked at again where directories are made."""
    parent = tmp_path / "parent"
    parent.mkdir()
    store = Store(parent / "cache")
    assert store.trust.ok
    parent.chmod(0o777)
    with pytest.warns(CacheWarning, match="cannot be written"):
        entry = put(store, "k")
    assert whole(entry, "k") and entry.library.is_relative_to(spare)


def test_a_link_to_nothing(tmp_path: Path, spare: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.warns(CacheWarning, match="cannot be written"):
        assert whole(put(Store(tmp_path / "link"), "k"), "k")


def test_a_file_in_the_way(tmp_path: Path, spare: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_refused(tmp_path / "file", spare, "is not a directory")
    assert_refused(tmp_path / "file" / "below", spare, "cannot be examined")


def test_no_home_directory(spare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tcjit.config.cache_dir", lambda: None)
    assert tcjit.cache.trusted().problem == "the user has no home directory"
    with pytest.warns(CacheWarning, match="no home directory"):
        assert whole(put(Store(None), "k"), "k")


@pytest.fixture
def ordinary(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Gives the rights of an ordinary user for the rest of the test; root is refused nothing."""
    if os.geteuid() != 0:
        yield lambda: None
        return
    own = [path for path in (tmp_path, *tmp_path.parents) if path.name.startswith(("pytest", "popen-", "test_"))]
    modes = {path: path.stat().st_mode & 0o7777 for path in own}

    def become() -> None:
        for path, mode in modes.items():
            path.chmod(mode | 0o055)
        for path in (tmp_path, *tmp_path.rglob("*")):
            os.chown(path, STRANGER, STRANGER)
        os.setegid(STRANGER)
        os.seteuid(STRANGER)

    try:
        yield become
    finally:
        os.seteuid(0)
        os.setegid(0)
        for path, mode in modes.items():
            path.chmod(mode)


def test_a_read_only_directory(filled: Path, tmp_path: Path, spare: Path, ordinary: Callable[[], None]) -> None:
    """A cache that came with a machine image: it is read, new kernels last as long as the process."""
    for path in (filled, *filled.rglob("*")):
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        ordinary()
        trust = examine(filled)
        assert trust.ok and not trust.writable
        store = Store(filled)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = store.get("k")
            assert found is not None and whole(found, "k")
        with pytest.warns(CacheWarning, match=r"cannot be written \(Permission denied\)") as caught:
            assert whole(put(store, "l"), "l") and whole(put(store, "m"), "m")
        assert len(caught) == 1
        assert {entry.key for entry in store.entries()} == {"k", "l", "m"}
        os.close(store.lock_file("n"))
        assert not list(filled.rglob("n")) and list(spare.rglob("n")), "what is locked there is empty, too"
    finally:
        for path in (filled, *filled.rglob("*")):
            if path.is_dir():
                path.chmod(0o700)
