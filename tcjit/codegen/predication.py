"""Predication: updates of accumulators in the lanes for which a condition holds, so that terms that do not count are not computed with.

A term ``c ? x * y : 0`` of a sum is a multiply-add under a mask where a processor has masks, in the place of a product, a selection and an
addition; elsewhere it is a multiply-add and a selection. The comparisons of a condition give masks without a way through vectors.
"""

from __future__ import annotations

from collections.abc import Callable

from tcjit.grammar.ast import Binary, Expr
from tcjit.grammar.dtypes import DTYPES

# of C's relations: their names, and the numbers of Intel's predicates for floats, quiet ones, and for integers
_RELATIONS = {"==": ("eq", 0, 0), "!=": ("ne", 4, 4), "<": ("lt", 17, 1), "<=": ("le", 18, 2), ">": ("gt", 30, 6), ">=": ("ge", 29, 5)}


def comparisons(dtype: str, *, masks: bool) -> list[str]:
    """Macros that compare vectors, for masks of a register of their own or for those of lanes; templates as those of ``tile_vectors``."""
    lines = []
    for relation, (name, of_floats, of_integers) in _RELATIONS.items():
        floats, unsigned = DTYPES[dtype].kind == "float", "u" if dtype in ("uint8", "bool") else ""
        rest = f"{of_floats}, -1, 4" if floats else f"{of_integers}, -1"
        value = f"__builtin_ia32_{unsigned}cmp$P512_mask(($A)(a), ($A)(b), {rest})" if masks else f"((a) {relation} (b))"
        lines.append(f"#define tc_{name}$N(a, b) {value}")
    return lines


def condition_mask(condition: Expr, ending: str, value: Callable[[Expr], str]) -> str:
    """The lanes for which a condition holds, over vectors."""
    assert isinstance(condition, Binary), "of comparisons alone"
    if condition.op in _RELATIONS:
        return f"tc_{_RELATIONS[condition.op][0]}{ending}({value(condition.left)}, {value(condition.right)})"
    return f"({condition_mask(condition.left, ending, value)} {condition.op[0]} {condition_mask(condition.right, ending, value)})"
