"""Restrict: a reduction of ``c ? e : identity`` becomes one of ``e`` over the part of its domain in which ``c`` holds.

Exact also for NaN and signed zeros: the reduction starts at the identity, so that leaving out terms equal to it changes nothing. One that
goes on with what its results hold is added to them when it is complete, the identity where it has no terms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, reduce

import islpy as isl

from tcjit.errors import VerifyError
from tcjit.grammar.affine import condition
from tcjit.grammar.ast import Expr, Select
from tcjit.grammar.walk import walk
from tcjit.mapping.isl import points
from tcjit.mapping.nest.statement import AffineStatement, parameters
from tcjit.mapping.reduction import guarded_term, identity, is_identity


def restrict(s: AffineStatement, dtype: str, values: Mapping[str, int]) -> AffineStatement:
    """The statement without the conditions that decide on a term as a whole; ``dtype`` is that of the results."""
    if s.operator == "=" or s.start not in (None, identity(s.operator, dtype)):
        return s
    conditions, body = guarded_term(s.body, s.operator, values)
    if not conditions:
        return s
    domain = reduce(isl.Set.intersect, (_where(s, text) for text, _ in conditions), s.domain)
    left = set(walk(body))
    reads = {access: flat for access, flat in s.reads.items() if access in left}
    return replace(s, domain=domain.coalesce(), body=body, reads=reads)


def verify_restrict(before: AffineStatement, after: AffineStatement, values: Mapping[str, int]) -> None:
    """Prove that the terms that are gone were the identity, and that the others have the same value."""
    if not after.domain.is_subset(before.domain) or not _value(before, after.domain, values, after.body):
        raise VerifyError(f"restrict: {before.name}: a term has another value")
    gone = before.domain.subtract(after.domain)
    if not gone.is_empty() and not _value(before, gone, values, None):
        raise VerifyError(f"restrict: {before.name}: a term that is no identity is gone")


def _value(s: AffineStatement, where: isl.Set, values: Mapping[str, int], expected: Expr | None) -> bool:
    """Whether the body has a value everywhere on a part of its domain: ``expected``, or the identity."""

    def fits(body: Expr) -> bool:
        return body is expected or expected is None and is_identity(body, s.operator)

    return is_chosen(s.body, where, values, partial(_where, s), fits)


def is_chosen(
    value: Expr, where: isl.Set, values: Mapping[str, int], holds: Callable[[str], isl.Set], fits: Callable[[Expr], bool]
) -> bool:
    """Whether conditions on indices choose a part of a value that ``fits`` at all points of a set; ``holds``: those at which one does."""
    if where.is_empty() or fits(value):
        return True
    text = condition(value.condition, values) if isinstance(value, Select) else None
    if text is None or not isinstance(value, Select):
        return False
    arms = (value.then, where.intersect(holds(text))), (value.other, where.subtract(holds(text)))
    return all(is_chosen(arm, part, values, holds, fits) for arm, part in arms)


def _where(s: AffineStatement, text: str) -> isl.Set:
    return points(s.domain.get_ctx(), s.dims, [text], parameters(s.domain))
