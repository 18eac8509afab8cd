"""The parse table that is made ahead, and the parser that is built where it does not serve.

Modules: grammar.parse_table
"""
from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest

from tcjit import library
from tcjit.grammar import parse, parse_table


def parsed() -> list[object]:
    parse._parser.cache_clear()
    return [parse.parse(text) for text in map(library.source, library.names())]


def test_the_table_is_of_the_grammar() -> None:
    _, grammar = json.loads(parse_table.TABLE.read_text(encoding="utf-8"))["made from"]
    assert grammar == sha256(parse_table.GRAMMAR.read_bytes()).hexdigest(), "python -m tcjit.grammar.parse_table writes it"


def test_a_table_of_another_version_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read = parsed()
    table = json.loads(parse_table.table())
    other = tmp_path / "table.json"
    other.write_text(json.dumps({**table, "made from": ["0.0", table["made from"][1]], "data": None}), encoding="utf-8")
    monkeypatch.setattr(parse_table, "TABLE", other)
    assert parsed() == read, "the parser is built"
    other.write_text(json.dumps(table), encoding="utf-8")
    assert parsed() == read, "a table that was made just now is read"
    monkeypatch.undo()
    parse._parser.cache_clear()
