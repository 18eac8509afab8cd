"""The instances of a program's assignments as isl knows them, and whether two values are the same wherever one is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import islpy as isl

from tcjit.grammar.affine import affine, condition, isl_name
from tcjit.grammar.ast import Access, Binary, Cast, Const, Expr, Index, Select, Size, Unary
from tcjit.grammar.walk import children, same_node, walk
from tcjit.mapping.assignment import Assignment, Assignments, to_scop, to_statement
from tcjit.mapping.equality import exact
from tcjit.mapping.isl import images, points
from tcjit.mapping.nest.restrict import is_chosen
from tcjit.mapping.operations import either_comparison


class Instances:
    """What isl says of the instances of a program's assignments."""

    def __init__(self, before: Assignments) -> None:
        self.scop, self.values = to_scop(before), before.values

    def instances(self, a: Assignment, order: Sequence[str] = ()) -> isl.Set:
        """The iteration domain, its dimensions in an order of their own if one is given."""
        domain = self.scop.instances(to_statement("I", a, self.values)).reset_tuple_id()
        return domain.apply(self.map(a.dims, list(map(isl_name, order)))) if order else domain

    def map(self, dims: Sequence[str], to: Sequence[str]) -> isl.Map:
        """From points of dimensions to the values of expressions in isl's words."""
        return images(self.scop.ctx, map(isl_name, dims), to, self.scop.parameters)

    def where(self, a: Assignment, fact: str) -> isl.Set:
        return points(self.scop.ctx, map(isl_name, a.dims), [fact], self.scop.parameters)

    def function(self, a: Assignment, value: str) -> isl.PwAff:
        """A value of the dimensions of an assignment, in isl's words."""
        return isl.PwAff.read_from_str(self.scop.ctx, f"{self.scop.parameters}{{ [{', '.join(map(isl_name, a.dims))}] -> [({value})] }}")

    def empty(self, instances: isl.Set, a: Assignment, fact: str) -> bool:
        """Whether a fact holds for none of the instances of an assignment."""
        return bool(instances.intersect(self.where(a, fact)).is_empty())

    def elements(self, a: Assignment, subscripts: Sequence[Expr], where: isl.Set) -> isl.Set:
        """Those at some instances."""
        return where.apply(self.map(a.dims, [str(affine(sub, self.values)) for sub in subscripts]))

    def neutral(self, value: Expr, neutral: Const, where: isl.Set, a: Assignment) -> bool:
        """Whether a value is the identity of a reduction wherever ``a`` has these instances."""
        same = (neutral, str(neutral.value))  # 0.0 is no -0.0
        return is_chosen(value, where, self.values, partial(self.where, a), lambda part: (part, str(getattr(part, "value", ""))) == same)

    def agree(self, old: Expr, new: Expr, instances: isl.Set, a: Assignment, places: Mapping[str, str] | None = None) -> bool:
        """Whether a value in the terms of ``a`` is the old one, with indices in ``places`` replaced, wherever ``a`` is executed."""
        if isinstance(old, Index) and places and old.name in places:
            text = affine(new.operand if isinstance(new, Cast) else new, self.values)
            exact = new.dtype == old.dtype and text is not None
            return exact and self.empty(instances, a, f"{text} != {places[old.name]}")
        if same_node(old, new):
            pairs = zip(children(old), children(new), strict=True)
            if all(self.agree(left, right, instances, a, places) for left, right in pairs):
                return True
        if not places and self.same_on(instances, old, new, a):
            return True
        if isinstance(old, Select) and not places and (always := self.decided(old.condition, instances, a)) is not None:
            return self.agree(old.then if always else old.other, new, instances, a)
        if isinstance(new, Const) and new.dtype == "bool" and not places:
            return self.decided(old, instances, a) is new.value
        if isinstance(old, Binary) and old.op in ("&&", "||") and not places:
            sides = (old.left, old.right), (old.right, old.left)
            if any(self.decided(one, instances, a) is (old.op == "&&") and self.agree(other, new, instances, a) for one, other in sides):
                return True
            return isinstance(new, Binary) and new.op in ("<=", ">=") and either_comparison(self.undecided(old, instances, a)) == new
        return False

    def undecided(self, value: Expr, instances: isl.Set, a: Assignment) -> Expr:
        """A condition without the sides of ``&&`` and ``||`` that decide nothing at all instances."""
        if not isinstance(value, Binary) or value.op not in ("&&", "||"):
            return value
        for one, other in ((value.left, value.right), (value.right, value.left)):
            if self.decided(one, instances, a) is (value.op == "&&"):
                return self.undecided(other, instances, a)
        return replace(value, left=self.undecided(value.left, instances, a), right=self.undecided(value.right, instances, a))

    def decided(self, value: Expr, instances: isl.Set, a: Assignment) -> bool | None:
        """Whether a condition holds at all instances, or at none; None where isl does not know."""
        if (text := condition(value, self.values)) is not None:
            return True if self.empty(instances, a, f"not ({text})") else False if self.empty(instances, a, text) else None
        if isinstance(value, Unary) and value.op == "!":
            inside = self.decided(value.operand, instances, a)
            return None if inside is None else not inside
        if isinstance(value, Select):
            chosen = self.decided(value.condition, instances, a)
            arms = [value.then] * (chosen is not False) + [value.other] * (chosen is not True)
            found = {self.decided(arm, instances, a) for arm in arms}
            return found.pop() if len(found) == 1 else None
        if isinstance(value, Binary) and value.op in ("&&", "||"):
            sides = self.decided(value.left, instances, a), self.decided(value.right, instances, a)
            decides = value.op == "||"  # the value of a side that is that of both
            return decides if decides in sides else None if None in sides else not decides
        return None

    def same_on(self, instances: isl.Set, old: Expr, new: Expr, a: Assignment) -> bool:
        """Whether isl knows two indices, or two conditions, to be the same at some instances."""
        if old.dtype == new.dtype == "int64" and None not in (texts := (affine(old, self.values), affine(new, self.values))):
            return self.empty(instances, a, f"{texts[0]} != {texts[1]}")
        if old.dtype == new.dtype == "int32" and _wraps_alike(old) and _wraps_alike(new):
            texts = affine(exact(old), self.values), affine(exact(new), self.values)
            return None not in texts and self.empty(instances, a, f"{texts[0]} != {texts[1]}")
        if old.dtype == new.dtype == "bool" and None not in (facts := (condition(old, self.values), condition(new, self.values))):
            apart = f"(({facts[0]}) and not ({facts[1]})) or (({facts[1]}) and not ({facts[0]}))"
            return self.empty(instances, a, apart)
        return False


def _wraps_alike(value: Expr) -> bool:
    """Whether an integer of 32 bits is that of the same arithmetic without wrapping, modulo 2**32."""
    if isinstance(value, Binary) and value.op not in ("+", "-", "*") or not isinstance(value, (Binary, Unary, Cast, Index, Const, Size)):
        return False
    return value.dtype in ("int32", "int64") and all(map(_wraps_alike, children(value)))


def results_of(a: Assignment) -> Assignment:
    """An assignment to every result of a reduction, also to one without terms."""
    return replace(a, bounds=a.results, reduction=(), constraints=())


def same_element(a: Assignment, b: Assignment) -> bool:
    return (a.tensor, a.subscripts) == (b.tensor, b.subscripts)


def is_given_again(a: Assignment, later: Assignment | None) -> bool:
    """Whether a later assignment changes all elements that one gives values, each by its own."""
    if later is None or not later.is_elementwise or later.bounds != a.bounds or later.subscripts != a.subscripts:
        return False
    own = {part.subscripts for part in walk(later.value) if isinstance(part, Access) and part.tensor == a.tensor}
    return own <= {a.subscripts}
