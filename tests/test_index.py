"""Every module is named by the test that concerns it: by the file's name, or after ``Modules:`` at the end of its docstring."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.text

HOME = Path(__file__).resolve().parent
PACKAGE = HOME.parent / "tcjit"
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for path in PACKAGE.rglob("*.py")
    if path.name not in ("__init__.py", "__main__.py")
}


@cache
def named(path: Path) -> set[str]:
    """The modules that a test file names."""
    listed = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\nModules: ")[2]
    own = ".".join((*path.relative_to(HOME).parts[:-1], path.stem.removeprefix("test_")))
    return {*listed.split(), *({own} & MODULES)}


TESTS = sorted(HOME.rglob("test_*.py"))


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_test_names_it(module: str) -> None:
    assert [path for path in TESTS if module in named(path)], f"which test concerns {module}? say so after `Modules:` in its docstring"


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.relative_to(HOME).as_posix())
def test_what_is_named_is_there(path: Path) -> None:
    assert named(path) <= MODULES
