"""Comparisons of a stored float with the expression that it was computed from, computed again: they need not round alike."""
from __future__ import annotations

from collections.abc import Iterator

from tcjit.grammar import printer
from tcjit.grammar.ast import Access, Binary, Call, Cast, Def, Expr, Index, Statement
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import children, walk

# what rounds nothing gives the same number wherever it is computed
_EXACT = frozenset("abs ceil clamp copysign fabs floor fmax fmin fmod logb max min nextafter relu remainder round sign trunc".split())


def recomputed(definition: Def) -> str:
    """A warning for the first ``==`` or ``!=`` between an element that an earlier statement stored (or the least or greatest of them) and
    the same rounding expression; empty where there is none."""
    return next((text for number, s in enumerate(definition.statements) for text in _warnings(s, definition.statements[:number])), "")


def _warnings(statement: Statement, before: tuple[Statement, ...]) -> Iterator[str]:
    comparisons = [node for node in walk(statement.value) if isinstance(node, Binary) and node.op in ("==", "!=")]
    for comparison in comparisons:
        for stored, other in ((comparison.left, comparison.right), (comparison.right, comparison.left)):
            stored, other = _bare(stored), _bare(other)
            if not isinstance(stored, Access) or not _rounds(other):
                continue
            for source in before:
                if source.tensor == stored.tensor and source.operator in ("=", "min=", "max=") and _is_same(source, stored, other):
                    yield _text(comparison, stored, other, source)


def _text(comparison: Binary, stored: Access, other: Expr, source: Statement) -> str:
    place = f"{comparison.where}: " if comparison.where else ""
    return (
        f"{place}`{printer.show(comparison)}` compares what `{source.tensor}` stores with the same expression computed again,"
        f" and the two may round differently; try: a statement that stores it,"
        f" `Z(...) = {printer.show(other)}`, and `Z(...)` in both places"
    )


def _bare(expr: Expr) -> Expr:
    """What is converted, where something is."""
    return _bare(expr.operand) if isinstance(expr, Cast) else expr


def _rounds(expr: Expr) -> bool:
    """Whether an expression has a float operation that may round; those in subscripts do not count."""
    if isinstance(expr, Access) or DTYPES[expr.dtype].kind != "float":
        return False
    own = expr.op in "+-*/%" if isinstance(expr, Binary) else isinstance(expr, Call) and expr.function not in _EXACT
    return own or any(map(_rounds, children(expr)))


def _is_same(source: Statement, stored: Access, other: Expr) -> bool:
    """Whether ``other`` is the value of ``source`` for the element ``stored``, whatever its reduction indices are called."""
    bound = {index.name: subscript for index, subscript in zip(source.subscripts, stored.subscripts) if isinstance(index, Index)}
    return _matches(_bare(source.value), other, bound)


def _matches(pattern: Expr, expr: Expr, bound: dict[str, Expr]) -> bool:
    pattern, expr = _bare(pattern), _bare(expr)
    if isinstance(pattern, Index):
        known = bound.setdefault(pattern.name, expr)
        return printer.show(_bare(known)) == printer.show(expr)
    if type(pattern) is not type(expr):
        return False
    below = children(pattern), children(expr)
    if not below[0]:
        return printer.show(pattern) == printer.show(expr)
    heads = [[getattr(node, name, None) for name in ("op", "tensor", "function")] for node in (pattern, expr)]
    return heads[0] == heads[1] and len(below[0]) == len(below[1]) and all(_matches(a, b, bound) for a, b in zip(*below))
