"""Marks of schedule trees and their texts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tcjit
from tcjit.errors import VerifyError
from tcjit.mapping import marks
from tcjit.mapping.marks import BY_WORD, Accumulators, GridBlock, Launch, Mark, Sync, Threads, Tile, WaitGroup, parse

pytestmark = pytest.mark.text

NUMBERED = (Launch(0), GridBlock(12), Tile(3), WaitGroup(1))
WITH_ARGUMENTS = (*NUMBERED, Threads((8, 32)), Threads((64,)), Sync("block"), Sync("warp"), Accumulators("T0_01"))
PLAIN = tuple(kind() for kind in BY_WORD.values() if kind not in {type(mark) for mark in WITH_ARGUMENTS})
KINDS = BY_WORD.keys()


@pytest.mark.parametrize("mark", [*WITH_ARGUMENTS, *PLAIN], ids=str)
def test_a_mark_is_read_back_from_its_text(mark: Mark) -> None:
    assert parse(str(mark)) == mark


def test_words_tell_the_kinds_of_marks_apart() -> None:
    kinds = [name for name, kind in vars(marks).items() if isinstance(kind, type) and issubclass(kind, Mark) and name[0] != "_"]
    assert len(KINDS) == len(kinds) - 1 and "" not in KINDS  # Mark itself is none


@pytest.mark.parametrize(
    "text",
    "shuffle|accumulators|accumulators |unroll 2|launch|launch x|tile -1|tile 01|threads|threads 4x|threads 0x4|threads 8 x 32|sync|"
    "sync grid|wait_group|".split("|"),
)
def test_another_text_is_an_error(text: str) -> None:
    with pytest.raises(VerifyError, match=f"'{text}' means nothing"):
        parse(text)


def test_no_other_module_compares_texts_of_marks() -> None:
    """Nor begins of them: words of several meanings aside, none stands in a comparison, or in a call that takes texts apart."""
    found = []
    for folder in ("mapping", "codegen"):
        for path in sorted((Path(tcjit.__file__).parent / folder).rglob("*.py")):
            if path.name == "marks.py":
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                found += [f"{path.name}:{node.lineno}" for text in _texts(node) if _begins_a_mark(text)]
    assert found == []


def _texts(node: ast.AST) -> list[str]:
    """The texts that a comparison names, or that a call takes a text apart by."""
    parts: list[ast.expr] = []
    if isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("startswith", "endswith", "removeprefix", "removesuffix", "partition", "insert_mark"):
            parts = node.args
    constants = [leaf for part in parts for leaf in ast.walk(part) if isinstance(leaf, ast.Constant)]
    return [leaf.value for leaf in constants if isinstance(leaf.value, str)]


def _begins_a_mark(text: str) -> bool:
    return text.partition(" ")[0] in KINDS - AMBIGUOUS


# also a scope of barriers, a number of an option, capabilities of a device, a kind of statement
AMBIGUOUS = {"block", "threads", "async_copy", "atomic", "mma", "scan", "scatter"}
