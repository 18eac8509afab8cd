"""The documents are true: Python blocks run in order and print the text below them, programs are read, links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from tcjit.grammar import front

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path: Path) -> list[tuple[str, str]]:
    return FENCE.findall(path.read_text(encoding="utf-8"))


def with_language(language: str) -> list[Path]:
    return [path for path in PAGES if any(kind == language for kind, _ in blocks(path))]


@pytest.mark.host
@pytest.mark.parametrize("path", with_language("python"), ids=lambda p: p.name)
def test_python_blocks(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    every = blocks(path)
    for number, (language, code) in enumerate(every):
        if language != "python":
            continue
        heard = io.StringIO()
        with contextlib.redirect_stdout(heard):
            exec(compile(code, f"{path.name}, block {number + 1}", "exec"), names)
        after, expected = every[number + 1] if number + 1 < len(every) else ("", "")
        if after == "text":
            assert heard.getvalue() == expected, code


@pytest.mark.text
@pytest.mark.parametrize("path", with_language("tc"), ids=lambda p: p.name)
def test_programs_are_read(path: Path) -> None:
    for language, text in blocks(path):
        if language == "tc":
            assert front.read(text)


@pytest.mark.text
@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (path.parent / target).exists(), target


@pytest.mark.text
def test_the_page_of_the_command_lists_every_variable() -> None:
    from tcjit.config import VARIABLES

    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [v.name for v in VARIABLES if f"| `{v.name}` |" not in page] == []
