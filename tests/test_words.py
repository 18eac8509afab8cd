"""Names are the field's: words that no module, function, class, field, constant or option bears, and classes that share no name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.text

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "tcjit").rglob("*.py"))
# each says less than the name of what it stands for, or is no term of compilers, linear algebra or PyTorch
WORDS = frozenset(
    "ahead apart atoms brood crowd each elsewhere fence fences figures found given held hold impersonal made mood moods nobody personal"
    " quiet said settled sitting sittings soon stubborn sure told turned twin wanted won".split()
)
ALLOWED = {("tcjit/cli/doctor.py", "found")}  # a key of the JSON that the command prints


def path_of(source: Path) -> str:
    return source.relative_to(ROOT).as_posix()


def names(source: Path) -> Iterator[tuple[int, str]]:
    """Where a module defines functions, classes, their fields, and its own constants."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.lineno, node.name
        if isinstance(node, ast.ClassDef):
            annotated = [part for part in node.body if isinstance(part, ast.AnnAssign)]
            yield from ((part.lineno, part.target.id) for part in annotated if isinstance(part.target, ast.Name))
    for node in tree.body:
        if isinstance(node, ast.Assign):
            yield from ((node.lineno, target.id) for target in node.targets if isinstance(target, ast.Name))


@pytest.mark.parametrize("source", SOURCES, ids=path_of)
def test_no_private_words(source: Path) -> None:
    assert source.stem not in WORDS
    private = [(line, name) for line, name in names(source) if name.strip("_").lower() in WORDS]
    assert [f"{path_of(source)}:{line}: {name}" for line, name in private if (path_of(source), name) not in ALLOWED] == []


def test_options_have_none_of_the_words() -> None:
    from tcjit.mapping.options import Options

    assert [option.name for option in Options.described() if option.name in WORDS] == []


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(path_of(source))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_the_test_sees_what_it_forbids(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.write_text("MOODS = 1\nclass _Told:\n    found: int\n    right: int\n    def said(self): ...\n")
    assert [name for _, name in sorted(names(source))] == ["MOODS", "_Told", "found", "right", "said"]
