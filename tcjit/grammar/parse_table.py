"""Lark's parse table of ``tc.lark``, made ahead: to build it takes a process 130 ms, to read it 7 (EPYC, Zen 1).

``python -m tcjit.grammar.parse_table`` writes it. It is read by the version of Lark that it was made with; others build their own.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from lark import Lark, __version__
from lark.grammar import Rule
from lark.lexer import TerminalDef

GRAMMAR = Path(__file__).with_name("tc.lark")
TABLE = Path(__file__).with_name("tc.json")


def parser(builder: Any) -> Lark:
    """The parser of programs, whose trees are what ``builder`` makes of their rules."""
    text = GRAMMAR.read_text(encoding="utf-8")
    made = json.loads(TABLE.read_text(encoding="utf-8"), object_hook=_numbered)
    if made["made from"] == _source(text):
        loaded: Lark = Lark._load_from_dict(made["data"], made["memo"], transformer=builder)  # type: ignore[no-untyped-call]
        return loaded
    return _built(text, transformer=builder)


def table() -> str:
    """The text of the table for the grammar and the version of Lark at hand."""
    text = GRAMMAR.read_text(encoding="utf-8")
    data, memo = _built(text).memo_serialize([TerminalDef, Rule])
    return json.dumps({"made from": _source(text), "data": data, "memo": memo}, separators=(",", ":"), sort_keys=True) + "\n"


def _built(text: str, **options: Any) -> Lark:
    """The basic lexer keeps keywords reserved everywhere."""
    return Lark(text, parser="lalr", lexer="basic", start="program", maybe_placeholders=False, **options)


def _source(text: str) -> list[str]:
    return [__version__, sha256(text.encode("utf-8")).hexdigest()]


def _numbered(found: dict[str, Any]) -> dict[Any, Any]:
    """JSON has no numbers for keys; no name of the grammar is one."""
    return {int(key) if key.isdigit() else key: value for key, value in found.items()}


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
