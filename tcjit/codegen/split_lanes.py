"""Index-set splitting and unswitching of lane loops: no iteration asks a condition on indices that is the same for its neighbours.

``(i >= 1 && i + 1 < N && j >= 1 && j + 1 < N) ? A(i,j-1) + A(i,j+1) : A(i,j)`` as a loop over lanes ``j`` loads under masks and blends.
A branch outside the loop asks what does not move with it, and the loop is cut where the rest changes: one loop over whole vectors without a
choice, and those at its ends, which keep theirs. Where quotients in subscripts change, as in ``A(i,(j + 1) % M)``, the loop is cut as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tcjit.codegen.loops import For, Run
from tcjit.codegen.memory import linear_subscript
from tcjit.dataclass import dataclass
from tcjit.grammar.ast import Access, Binary, Const, Expr, Select, Unary
from tcjit.grammar.linear import Linear, Opaque, Ranges
from tcjit.grammar.walk import rebuild, walk
from tcjit.mapping.cases import changes, difference, truth
from tcjit.mapping.reduction import conjunction

MOST_PARTS = 8  # loops that one is cut into
MOST_CONDITIONS = 8  # that one branch asks
MOST_SEGMENTS = 4  # loops that are written for the values of an outer one
LEAST_SHARE = 2  # a loop is cut where one part has at least one in so many of its iterations


@dataclass(frozen=True)
class LaneConditions:
    """The conditions on indices that a statement asks in a loop over lanes."""

    loop: For
    run: Run
    values: Mapping[str, int]
    width: int  # of vectors: parts begin and end where these do

    def comparisons(self, value: Expr) -> list[tuple[Expr, Linear]]:
        """Those of indices in the conditions of a value, each once, with their differences over the variables of loops."""
        found: dict[Expr, Linear] = {}
        for node in walk(value):
            for part in walk(node.condition) if isinstance(node, Select) else ():
                if (form := difference(part, self.values)) is not None:
                    found[part] = form.substitute(dict(self.run.indices))
        return list(found.items())

    def branch(self, value: Expr) -> Select | None:
        """The value as a choice by the conditions that do not move with the loop; None where there are none, or too many."""
        outside = [part for part, form in self.comparisons(value) if self.loop.variable not in form.variables and not form.is_constant]
        if not 0 < len(outside) <= MOST_CONDITIONS:
            return None
        other = value if len(outside) > 1 else decided(value, lambda part: False if part in outside else None)
        return Select(conjunction(outside), decided(value, lambda part: True if part in outside else None), other, dtype=value.dtype)

    def segments(self, value: Expr, ranges: Ranges) -> tuple[str, list[tuple[int, Expr]]] | None:
        """The variable of an outer loop, its last values up to which the value is the same choice, and that; None where ``branch`` decides
        all in half of the iterations, or there are too many."""
        outside = [(part, form) for part, form in self.comparisons(value) if len(form.variables) == 1 and form.variables <= ranges.keys()]
        made: dict[str, list[tuple[int, Expr]]] = {}
        share = 1.0
        for variable in dict.fromkeys(name for _, form in outside for name in form.variables - {self.loop.variable}):
            forms = [(part, form) for part, form in outside if form.variables == {variable}]
            (lower, upper), holding = ranges[variable], 0
            cuts = {cut for part, form in forms for cut in changes(part, form, variable) if lower < cut <= upper}
            ends = [lower, *sorted(cuts), upper + 1]
            found: list[tuple[int, Expr]] = []
            for first, beyond in zip(ends, ends[1:]):
                known = {part: truth(part, form, {variable: (first, beyond - 1)}) for part, form in forms}
                holding += (beyond - first) * all(known.values())
                chosen = decided(value, known.get)
                found = [*(found[:-1] if found and found[-1][1] == chosen else found), (beyond - 1, chosen)]
            share *= holding / (upper + 1 - lower)
            if 1 < len(found) <= MOST_SEGMENTS:
                made[variable] = found
        return next(iter(made.items())) if made and LEAST_SHARE * share < 1 else None

    def periods(self, value: Expr) -> list[For]:
        """The loops that a loop is cut into where quotients in subscripts change; one where that is in too many places."""
        loop = self.loop
        if not (loop.lower.is_constant and loop.upper.is_constant) or loop.step != 1:
            return [loop]
        lower, upper = loop.lower.constant, loop.upper.constant
        cuts: set[int] = set()
        for access in (part for part in walk(value) if isinstance(part, Access)):
            for quotient in (part for sub in access.subscripts for part in self._quotients(sub)):
                first, last = (quotient.substitute({loop.variable: Linear.of(at)}).constant for at in (lower, upper))
                if abs(last - first) > MOST_PARTS:
                    return [loop]
                cuts |= {_least(quotient, at, loop.variable) for at in range(min(first, last) + 1, max(first, last) + 1)}
        ends = [lower, *sorted(cuts), upper + 1]
        if len(ends) > MOST_PARTS + 1:
            return [loop]
        return [replace(loop, lower=Linear.of(first), upper=Linear.of(beyond - 1)) for first, beyond in zip(ends, ends[1:])]

    def _quotients(self, subscript: Expr) -> Iterator[Linear]:
        """The quotients in a subscript that move with the loop alone."""
        form = linear_subscript(subscript, self.run, self.values)
        for atom, _ in form.terms if form is not None else ():
            if isinstance(atom, Opaque) and atom.op == "floor" and atom.args[0].coefficient(self.loop.variable):
                if Linear.of(atom).variables == {self.loop.variable}:
                    yield Linear.of(atom)

    def parts(self, value: Expr) -> list[tuple[For, Expr]]:
        """The loops that a loop is cut into, with the value in each; one where cutting does not pay."""
        loop = self.loop
        whole = [(loop, value)]
        if not (loop.lower.is_constant and loop.upper.is_constant) or loop.step != 1:
            return whole
        lower, upper = loop.lower.constant, loop.upper.constant
        forms = [(part, form) for part, form in self.comparisons(value) if form.variables <= {loop.variable}]
        cuts = {cut for part, form in forms for cut in changes(part, form, loop.variable) if lower < cut <= upper}
        ends = [lower, *sorted(cuts), upper + 1]
        first, beyond = self._whole_vectors(*max(zip(ends, ends[1:]), key=lambda part: part[1] - part[0]))
        before = [end for end in ends if end <= first - self.width]
        after = [end for end in ends if end >= beyond + self.width]
        ends = sorted({lower, *before, first, beyond, *after, upper + 1})
        if not forms or len(ends) > MOST_PARTS + 1 or LEAST_SHARE * (beyond - first) < upper + 1 - lower:
            return whole
        made = []
        for first, beyond in zip(ends, ends[1:]):
            known = {part: truth(part, form, {loop.variable: (first, beyond - 1)}) for part, form in forms}
            made.append((replace(loop, lower=Linear.of(first), upper=Linear.of(beyond - 1)), decided(value, known.get)))
        return made

    def _whole_vectors(self, first: int, beyond: int) -> tuple[int, int]:
        """The vectors that lie between two iterations, counted from the first one of the loop; its last may be a part of one."""
        lower, upper, width = self.loop.lower.constant, self.loop.upper.constant, self.width
        end = beyond if beyond > upper else lower + (beyond - lower) // width * width
        return lower + -(-(first - lower) // width) * width, end


def _least(quotient: Linear, value: int, variable: str) -> int:
    """The least value of a variable from which on a quotient is at least, or, where it falls, less than a value."""
    ((atom, _),) = quotient.terms
    assert isinstance(atom, Opaque)
    dividend, divisor = atom.args[0], atom.args[1].constant
    step = dividend.coefficient(variable) or 1
    rest = divisor * value - dividend.constant
    return -(-rest // step) if step > 0 else (-rest) // -step + 1


def decided(value: Expr, truth: Callable[[Expr], bool | None]) -> Expr:
    """The value with every choice made that the truth of comparisons decides."""
    if isinstance(value, Select):
        condition = _condition(value.condition, truth)
        if isinstance(condition, bool):
            return decided(value.then if condition else value.other, truth)
        return replace(value, condition=condition, then=decided(value.then, truth), other=decided(value.other, truth))
    return rebuild(value, lambda part: decided(part, truth))


def _condition(condition: Expr, truth: Callable[[Expr], bool | None]) -> Expr | bool:
    known = truth(condition)
    if known is not None:
        return known
    if isinstance(condition, Const) and isinstance(condition.value, bool):
        return condition.value
    if isinstance(condition, Unary) and condition.op == "!":
        inside = _condition(condition.operand, truth)
        return (not inside) if isinstance(inside, bool) else replace(condition, operand=inside)
    if isinstance(condition, Binary) and condition.op in ("&&", "||"):
        deciding = condition.op == "||"
        left, right = _condition(condition.left, truth), _condition(condition.right, truth)
        if left is deciding or right is deciding:
            return deciding
        if isinstance(left, bool):
            return right
        return left if isinstance(right, bool) else replace(condition, left=left, right=right)
    return condition
