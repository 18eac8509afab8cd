"""From text to defs that are known to be right."""
from __future__ import annotations

from functools import lru_cache

from tcjit.grammar.ast import Def
from tcjit.grammar.check import check
from tcjit.grammar.infer import infer
from tcjit.grammar.parse import parse


@lru_cache(maxsize=256)
def read(text: str) -> tuple[Def, ...]:
    """The defs of a program, checked, with ranges and shapes; kept for the shapes to come. Raises ParseError, CheckError.

    >>> definition, = read("def twice(float(N) A) -> (B) { B(i) = 2 * A(i) }")
    >>> definition.tensor("B").shape[0].name
    'N'
    """
    return tuple(map(infer, check(parse(text))))
