"""Export and import of tuned options: what went out comes back, and what comes in is checked from end to end.

Modules: cache.tuned
"""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.cache import put

import tcjit.cache
from tcjit.cache import Choice, Store, options_key
from tcjit.cache.tuned import Shapes
from tcjit.errors import CacheError
from tcjit.mapping.options import Options

PROGRAM, ANOTHER = "a" * 64, "b" * 64
KEY, OTHER = options_key("cpu", PROGRAM, device="d"), options_key("cpu", ANOTHER, device="d")
SHAPES, WIDE = ((64, 64), (64, 32)), ((64, 640), (640, 32))


def choice(seconds: float | None = 0.5, shapes: Shapes = SHAPES, **changes: Any) -> Choice:
    numbers = {"trials": 100.0} if seconds is None else {"seconds": seconds, "trials": 100.0}
    return Choice(Options(**changes).to_dict(), numbers, "mm 64x64", shapes)


@pytest.fixture(autouse=True)
def used(home: Path, spare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TCJIT_CACHE_DIR", str(home))


def elsewhere(monkeypatch: pytest.MonkeyPatch, path: Path) -> Store:
    monkeypatch.setenv("TCJIT_CACHE_DIR", str(path))
    return tcjit.cache.store()


def test_out_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tcjit.cache.store()
    store.put_choice(KEY, choice(tile=(4, 32)))
    store.put_choice(KEY, choice(0.125, WIDE))
    store.put_choice(OTHER, choice(0.25))
    put(store, "k")
    file = tmp_path / "tuned.json"
    assert tcjit.cache.export(file) == 3
    text = file.read_text()
    assert "library" not in text and "kernels" not in text and "artifacts" not in text, "options and numbers only"
    assert tcjit.cache.export(str(file)) == 3 and file.read_text() == text, "the same bytes again"
    other = elsewhere(monkeypatch, tmp_path / "other")
    assert tcjit.cache.import_(file) == 3
    assert sorted(other.choices(), key=repr) == sorted(
        [(KEY, choice(tile=(4, 32))), (KEY, choice(0.125, WIDE)), (OTHER, choice(0.25))], key=repr
    )
    assert tcjit.cache.import_(file) == 0, "nothing new"
    assert tcjit.cache.entries() == ()


def test_only_the_options_of_some_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tcjit.cache.store()
    store.put_choice(KEY, choice())
    store.put_choice(KEY, choice(0.125, WIDE))
    store.put_choice(OTHER, choice(0.25))
    for programs, count in (([], 0), ([PROGRAM], 2), ([ANOTHER], 1), ([PROGRAM, ANOTHER, PROGRAM], 3), (["c" * 64], 0)):
        assert tcjit.cache.export(tmp_path / "out.json", programs) == count
    tcjit.cache.export(tmp_path / "out.json", [ANOTHER])
    assert tcjit.cache.import_(tmp_path / "out.json") == 0
    assert list(elsewhere(monkeypatch, tmp_path / "other").choices()) == [] and tcjit.cache.import_(tmp_path / "out.json") == 1
    assert tcjit.cache.choices() == (choice(0.25),)


def test_the_faster_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tuned.json"
    tcjit.cache.store().put_choice(KEY, choice(0.5))
    tcjit.cache.export(file)
    for number, (known, taken) in enumerate([(0.4, 0), (0.5, 0), (0.6, 1), (None, 1)]):
        store = elsewhere(monkeypatch, tmp_path / str(number))
        store.put_choice(KEY, choice(known))
        assert tcjit.cache.import_(file) == taken
        found = store.choice(KEY, SHAPES)
        assert found is not None and found.numbers.get("seconds") == (0.5 if taken else known)


GOOD: dict[str, Any] = {
    "family": KEY, "shapes": [[64, 64], []], "options": Options().to_dict(), "numbers": {"seconds": 0.5}, "label": "mm"
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "../../etc/passwd"}, "64 hexadecimal digits"),
        ({"family": KEY + "\n"}, "64 hexadecimal digits"),
        ({"family": 3}, "64 hexadecimal digits"),
        ({"extra": 1}, "must have family, shapes, options, numbers, label"),
        ({"shapes": None}, "list of lists"),
        ({"shapes": [64]}, "list of lists"),
        ({"shapes": [[1]] * 300}, "list of lists"),
        ({"shapes": [[1] * 100]}, "list of lists"),
        ({"shapes": [[-1]]}, "an extent must be a whole number"),
        ({"shapes": [[True]]}, "an extent must be a whole number"),
        ({"shapes": [[2.0]]}, "an extent must be a whole number"),
        ({"shapes": [[10**30]]}, "an extent must be a whole number"),
        ({"label": "a\x1b[2Jb"}, "short printable text"),
        ({"label": "x" * 1000}, "short printable text"),
        ({"label": None}, "short printable text"),
        ({"numbers": [1]}, "object of at most 64 numbers"),
        ({"numbers": {f"n{i}": i for i in range(100)}}, "object of at most 64 numbers"),
        ({"numbers": {"seconds": float("nan")}}, "seconds must be a finite number"),
        ({"numbers": {"seconds": float("inf")}}, "seconds must be a finite number"),
        ({"numbers": {"seconds": -1}}, "seconds a positive one"),
        ({"numbers": {"seconds": 10**400}}, "must be a finite number"),
        ({"numbers": {"seconds": True}}, "must be a finite number"),
        ({"numbers": {"trials": "7"}}, "trials must be a finite number"),
        ({"numbers": {"a/b": 1}}, "'a/b' cannot name a number"),
        ({"options": [1]}, "options must be an object"),
        ({"options": {"tile": "big"}}, "tile"),
        ({"options": {"tile": [[[1]]]}}, "tile"),
        ({"options": {"tile": {"a": 1}}}, "tile"),
        ({"options": {"fusion": []}}, "fusion"),
        ({"options": {"no_such_option": 1}}, "no_such_option"),
        ({"options": {"tile": [10**400]}}, "tile"),
    ],
)
def test_every_value_is_checked(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """And nothing is taken from a file with one wrong entry."""
    file = tmp_path / "in.json"
    file.write_text(json.dumps({"format": "tcjit options 2", "entries": [{**GOOD, "family": OTHER}, {**GOOD, **changes}]}))
    with pytest.raises(CacheError, match="entry 2: ") as caught:
        tcjit.cache.import_(file)
    assert message in str(caught.value)
    assert list(tcjit.cache.store().choices()) == []


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "\xff", "[" * 100000, "9" * 5000),
        '{"format": "tcjit options 3", "entries": []}',
        '{"format": "tcjit options 2"}',
    ],
)
def test_files_of_another_kind(tmp_path: Path, text: str) -> None:
    file = tmp_path / "in.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(CacheError, match="is not JSON|does not hold"):
        tcjit.cache.import_(file)


def test_files_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CacheError, match="cannot read"):
        tcjit.cache.import_(tmp_path / "missing.json")
    with pytest.raises(CacheError, match="cannot read"):
        tcjit.cache.import_(tmp_path)
    with pytest.raises(CacheError, match="cannot write"):
        tcjit.cache.export(tmp_path / "no" / "folder.json")
    with pytest.raises(CacheError, match="cannot write"):
        tcjit.cache.export(tmp_path)
    monkeypatch.setattr("tcjit.cache.exchange.LARGEST", 10)
    (tmp_path / "large.json").write_text("x" * 11)
    with pytest.raises(CacheError, match="larger than 10 bytes"):
        tcjit.cache.import_(tmp_path / "large.json")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "nothing is left"
