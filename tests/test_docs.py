"""The documents are true: Python blocks run in order and print the text below them, programs are read, links lead somewhere.

As a program, this file runs the Python blocks of one page.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import PYTHONPATH, ROOT

from tcjit.grammar import front

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path: Path) -> list[tuple[str, str]]:
    return FENCE.findall(path.read_text(encoding="utf-8"))


def with_language(language: str) -> list[Path]:
    return [path for path in PAGES if any(kind == language for kind, _ in blocks(path))]


@pytest.mark.host
@pytest.mark.parametrize("path", [page for page in with_language("python") if page.name != "gpu.md"], ids=lambda p: p.name)
def test_python_blocks(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_blocks_run(path)


@pytest.mark.opencl
def test_python_blocks_of_the_page_on_gpus(tmp_path: Path) -> None:
    """In a process of its own, which PoCL may take down."""
    from support.rings.opencl import require

    from tcjit.errors import CompileError
    from tcjit.runtime import nvrtc

    require("pocl")
    try:
        nvrtc.version()
    except CompileError as missing:
        pytest.skip(str(missing))
    variables = {**os.environ, "TCJIT_OPENCL_DEVICE": "pocl", "POCL_CACHE_DIR": str(tmp_path), "PYTHONPATH": PYTHONPATH}
    page = ROOT / "docs" / "gpu.md"
    done = subprocess.run([sys.executable, __file__, page], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def assert_blocks_run(path: Path) -> None:
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


@pytest.mark.text
def test_the_page_of_the_command_lists_every_constant() -> None:
    from tcjit.mapping.machine import Costs

    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    rows = [f"| `{c.name}` | {c.metadata['unit']} | {c.metadata['meaning']} | {c.metadata['measured']} |" for c in Costs.described()]
    assert [row for row in rows if row not in page] == []


@pytest.mark.text
def test_the_page_on_the_language_lists_every_builtin() -> None:
    from tcjit.grammar.builtins import BUILTINS

    page = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
    section = page[page.index("### Built-in functions") :].partition("\n## ")[0]
    listed = {name.removesuffix("()") for quoted in re.findall(r"`([^`]*)`", section) for name in quoted.split()}
    assert set(BUILTINS) - listed == set()


@pytest.mark.text
def test_the_page_on_gpus_lists_every_option_for_them() -> None:
    from tcjit.mapping.options import Options

    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    known = [f for f in Options.described() if {"cuda", "opencl"} & set(f.metadata["targets"])]
    rows = [f"| `{f.name}` | `{f.default!r}` | {f.metadata['meaning']} | {f.metadata['needs']} |" for f in known]
    assert [row for row in rows if row not in page] == []
    assert len(re.findall(r"^\| `\w+` \| `[^|]*` \| [^|]* \| \w* \|$", page, re.MULTILINE)) == len(rows)


@pytest.mark.text
def test_the_page_on_gpus_explains_every_mark() -> None:
    from tcjit.mapping.marks import BY_WORD, Launch, parse

    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    table = page[page.index("| mark |") : page.index("The statements of the program are called")]
    named = [parse(text) for row in table.splitlines()[2:] for text in re.findall(r"`(.*?)`", row.split("|")[1] if row else "")]
    kinds = list(BY_WORD.values())
    assert {type(mark) for mark in named} == set(kinds[kinds.index(Launch) :])  # those of a CPU stand first


if __name__ == "__main__":
    assert_blocks_run(Path(sys.argv[1]))
