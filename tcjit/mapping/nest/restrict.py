"""Restrict: a reduction of ``c ? e : identity`` becomes one of ``e`` over the part of its domain in which ``c`` holds.

Exact also for NaN and signed zeros: the reduction starts at the identity, so that leaving out terms equal to it changes nothing. One that
goes on with what its results hold is added to them when it is complete, the identity where it has no terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

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
    work = [(s.body, where)]
    while work:
        body, part = work.pop()
        if part.is_empty() or body is expected or expected is None and is_identity(body, s.operator):
            continue
        text = condition(body.condition, values) if isinstance(body, Select) else None
        if text is None:
            return False
        assert isinstance(body, Select)
        work += [(body.then, part.intersect(_where(s, text))), (body.other, part.subtract(_where(s, text)))]
    return True


def _where(s: AffineStatement, text: str) -> isl.Set:
    return points(s.domain.get_ctx(), s.dims, [text], parameters(s.domain))
