"""Steps: numbered, timed, kept, dumped, checked.

Modules: step
"""
from __future__ import annotations

from pathlib import Path

import pytest

from tcjit.errors import TCError, VerifyError
from tcjit.step import Steps


@pytest.fixture
def dump(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TCJIT_DUMP", str(tmp_path / "dump"))
    return tmp_path / "dump"


def test_a_pipeline(dump: Path) -> None:
    steps = Steps("mm-64x32")
    three = steps.run("schedule", lambda a, b: a + b, 1, 2, show=lambda n: f"band {n}", suffix="tree")
    six = steps.run("tile", lambda n: 2 * n, three, show=lambda n: f"band {n}\n", suffix="tree")
    steps.run("quiet", lambda: None)
    steps.run("code", lambda: "int x;", show=str, file="kernel.c")
    steps.keep("notes", "a word", "notes.txt")
    assert six == 6
    assert steps.artifacts == {"schedule": "band 3", "tile": "band 6\n", "code": "int x;", "notes": "a word"}
    assert list(steps.seconds) == ["schedule", "tile", "quiet", "code"]
    assert all(0 <= seconds < 1 for seconds in steps.seconds.values())
    written = {path.name: path.read_text() for path in (dump / "mm-64x32").iterdir()}
    assert written == {"01-schedule.tree": "band 3\n", "02-tile.tree": "band 6\n", "kernel.c": "int x;\n", "notes.txt": "a word\n"}


def test_nothing_is_written_unasked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TCJIT_DUMP", raising=False)
    monkeypatch.chdir(tmp_path)
    Steps("x").run("a", int, show=str)
    assert list(tmp_path.iterdir()) == []


def test_check_comes_after_the_text(dump: Path) -> None:
    def refuse(result: int) -> None:
        raise VerifyError(f"{result} is wrong")

    steps = Steps("bad")
    with pytest.raises(VerifyError, match="4 is wrong"):
        steps.run("tile", int, "4", show=str, suffix="tree", check=refuse)
    assert (dump / "bad" / "01-tile.tree").read_text() == "4\n", "the tree that was refused is the one to look at"
    steps.run("fuse", int, "5", check=lambda result: None)
    assert "fuse check" in steps.seconds


def test_a_step_run_twice_adds_up() -> None:
    steps = Steps("twice")
    steps.run("verify", int, "1", show=str)
    once = steps.seconds["verify"]
    steps.run("verify", int, "2", show=str)
    assert steps.seconds["verify"] > once
    assert steps.artifacts["verify"] == "2"


def test_a_label_is_never_a_path(dump: Path) -> None:
    Steps("../../etc/a b").keep("x", "text", "/../x.c")
    assert [str(path.relative_to(dump)) for path in dump.rglob("*.c")] == ["-..-etc-a-b/-..-x.c"]
    Steps("..").keep("x", "text", "..")
    assert (dump / "unnamed" / "unnamed").exists()


def test_a_dump_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TCJIT_DUMP", str(tmp_path / "file"))
    with pytest.raises(TCError, match=r"cannot write (.|\n)*TCJIT_DUMP"):
        Steps("x").run("a", int, show=str)
