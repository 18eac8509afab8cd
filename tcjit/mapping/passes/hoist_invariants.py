"""Hoist invariants: what an assignment computes again for many values of an index that it does not depend on is computed once.

``Y(i,j) +=! (X(n,i) - M(i)) * (X(n,j) - M(j))`` subtracts each mean 2 * N times; with the differences in a temporary it is a plain
product. What conditions on indices choose is stored as well, which no nest has as an operand. Where an invariant stands in an outer loop
alone, the C compiler hoists it from the inner ones without a temporary. What a product of halves converts is converted once, so that
tensor cores can load it. This is loop-invariant code motion with array expansion, as partial redundancy elimination on a polyhedral domain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from math import prod

from tcjit.grammar.affine import affine, condition, guarded_accesses
from tcjit.grammar.ast import Access, Binary, Cast, Const, Expr, Index, Select
from tcjit.grammar.dtypes import ROUNDED
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import children, factors, rebuild, walk, with_names
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.equality import picked_index
from tcjit.mapping.operations import CALL, divides_integers, may_fail, operations
from tcjit.mapping.padded_copies import form_of, has_windows
from tcjit.mapping.passes.split_index_sets import joined_parts
from tcjit.mapping.reduction import conjuncts, signed
from tcjit.mapping.strides import affine_form

TYPES = ("float32", "float64")  # of what is hoisted: halves are widened first, and integers are parts of dot products, unless divided
GATHER = 8  # the same of a read at a subscript that is data, which is checked; and no nest has it as an operand
TRAFFIC = 8  # operations that an element of a temporary takes as long as: it is written and read
USES = 4  # of each element of a temporary at least: fewer do not pay for memory that it may leave the caches for
USES_OF_CALLS = 2  # the same of what takes as long as a function, in a reduction on a CPU
WORTH_HOISTING = 1 << 14  # operations that are saved at least, on a CPU
WORTH_LAUNCH = 1 << 24  # on a GPU, which runs another kernel for a temporary
WORTH_NARROW = 8  # uses of a converted element that pay for storing it, if tensor cores load it then
WORTH_LOAD = 8  # operations of a pointwise assignment's invariant at least: it reads the temporary instead, and is bound by memory


def hoist_invariants(before: Assignments, cpu: bool, tensor_cores: bool = False) -> Assignments:
    """The program with temporaries for the invariants of reductions; on a CPU for gathers, too, and for those of pointwise assignments; for
    ``tensor_cores`` for what products of halves convert."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if a.empty or a.constraints or not (a.reduction or cpu and a.operator == "="):
            return [a]
        hoisting = _Hoisting(a, before.values, temporaries, cpu, _converted(a) if tensor_cores else ())
        value = hoisting.rewritten(a.value, guarded=False)
        return [*hoisting.made, replace(a, value=value)] if hoisting.made else [a]

    return rewrite(before, visit)


def split_around_invariants(before: Assignments) -> Assignments:
    """The program, for a CPU, with assignments that join tensors in parts where one of these has invariants: beside a choice they would
    not be evaluated everywhere."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if a.empty or a.constraints or a.reduction or a.operator != "=" or a.dynamic or operations(a.value) < CALL:
            return [a]
        parts = joined_parts(a, before)
        with temporaries.trial():
            found = [_Hoisting(part, before.values, temporaries, True, ()) for part in parts if len(parts) > 1]
            for hoisting in found:
                hoisting.rewritten(hoisting.a.value, guarded=False)
        return parts if any(hoisting.made for hoisting in found) else [a]

    return rewrite(before, visit)


class _Hoisting:
    """The invariants of one assignment; ``made`` are those that are stored, each for all values of its indices."""

    def __init__(self, a: Assignment, values: Mapping[str, int], temporaries: Temporaries, cpu: bool, converted: Sequence[Expr]) -> None:
        self.a, self.values, self.temporaries, self.cpu = a, values, temporaries, cpu
        self.worth = WORTH_HOISTING if cpu else WORTH_LAUNCH
        self.converted = set(map(id, converted))
        last = a.subscripts[-1] if a.subscripts and not a.reduction else None
        self.inner = frozenset(names(last)) if last is not None else frozenset()
        self.made: list[Assignment] = []
        self.known: dict[int, frozenset[str]] = {}  # by the identity of parts of the assignment's value

    def rewritten(self, value: Expr, guarded: bool) -> Expr:
        """A value that reads its invariants; ``guarded``: it may not be evaluated everywhere."""
        if condition(value, self.values) is not None:
            return value  # nests leave out what conditions on indices leave out
        if self.picks(value):  # a scatter goes over the terms alone
            joined = isinstance(value, Binary) and value.op == "&&"
            return rebuild(value, lambda part: self.rewritten(part, guarded=True)) if joined else value
        if self.is_invariant(value, guarded):
            return self.stored(value)
        if isinstance(value, Access):
            return value
        if isinstance(value, Binary) and value.op == "*" and (found := self.with_divided_factors(value, guarded)) is not None:
            return Binary("*", *found, dtype=value.dtype)
        if (choice := signed(value)) is not None and self.is_invariant(choice[1], guarded):
            return Binary("*", self.rewritten(choice[0], guarded), self.stored(choice[1]), dtype=value.dtype)
        if isinstance(value, Select):
            test = self.rewritten(value.condition, guarded)
            then, other = (self.rewritten(arm, guarded=True) for arm in (value.then, value.other))
            parts = iter((test, then, other))
            return rebuild(value, lambda _: next(parts))
        inside = guarded or isinstance(value, Binary) and value.op in ("&&", "||")
        return rebuild(value, lambda part: self.rewritten(part, inside))

    def picks(self, value: Expr) -> bool:
        """Whether a condition, or one that it joins, compares data with an index of the results."""
        own = value.dtype == "bool" and self.a.reduction
        return bool(own) and any(picked_index(self.a, one, self.values) for one in conjuncts(value))

    def with_divided_factors(self, product: Binary, guarded: bool) -> tuple[Expr, Expr] | None:
        """Of a term of three factors or more the others, and the element that holds an invariant one times those at quotients of indices
        with which that moves, too, as the scales of groups of weights do; None where there are none."""
        parts = list(factors(product))
        stored = [part for part in parts if not isinstance(part, Access) and operations(part) and self.is_invariant(part, guarded)]
        left = [part for part in parts if len(stored) == 1 and part not in stored]
        divided = [part for part in left if self.is_divided(part) and self.dims(part) <= self.dims(stored[0])]
        others = [part for part in parts if part not in (*divided, *stored)]
        if not (self.cpu and self.a.operator == "+=" and divided and others):  # sums alone may multiply in another order
            return None
        held, rest = (reduce(partial(Binary, "*", dtype=product.dtype), some) for some in ([*divided, *stored], others))
        return (self.rewritten(rest, guarded), self.stored(held)) if self.is_invariant(held, guarded) else None

    def is_divided(self, factor: Expr) -> bool:
        """Whether a factor is an element at a quotient of indices, perhaps converted."""
        access = factor.operand if isinstance(factor, Cast) else factor
        texts = [affine_form(sub, self.values) is None and affine(sub, self.values) for sub in getattr(access, "subscripts", ())]
        return isinstance(access, Access) and None not in texts and any(texts)

    def is_invariant(self, value: Expr, guarded: bool) -> bool:
        """Whether a value is worth a temporary, and may be computed for all values of its indices."""
        dims = self.dims(value)
        count = prod(self.a.extents[dim] for dim in dims)
        calls = self.cpu and bool(self.a.reduction) and operations(value) >= CALL
        if not dims or self.a.points < (USES_OF_CALLS if calls else USES) * count:
            return False
        if id(value) in self.converted:
            return self.a.points >= WORTH_NARROW * count
        accesses = [part for part in walk(value) if isinstance(part, Access)]
        gathered = sum(any(map(self.is_gathered, access.subscripts)) for access in accesses)
        work = operations(value) + GATHER * gathered
        typed = value.dtype in TYPES or value.dtype not in ROUNDED and _divides(value)
        if not (work and typed) or gathered and not self.cpu:
            return False
        if not gathered and all(isinstance(factor, Access) for factor in factors(value)):
            return False  # products of elements are computed where they are packed
        if work * (self.a.points - count) < max(self.worth, TRAFFIC * count):
            return False
        if not self.a.reduction and (work < WORTH_LOAD or not self.inner & dims):
            return False
        if any(lower < 0 for name, lower, _ in self.a.bounds if name in dims):
            return False
        if isinstance(value, Access) and self.cpu and self.is_padded(value):
            return False
        if guarded and accesses and not (calls and all(map(self.exists, accesses))):
            return False
        if any(access.tensor == self.a.tensor for access in accesses):
            return False
        if any(guards for _, guards in guarded_accesses(value)) and not self.is_affine_select(value):
            return False
        always = not guarded and not self.a.dynamic  # it is computed in any case
        return always or not may_fail(value, self.values, gathers=False)

    def exists(self, access: Access) -> bool:
        """Whether there is such an element for all values of the indices."""
        shape = self.temporaries.tensors[access.tensor].shape
        for subscript, extent in zip(access.subscripts, shape, strict=True):
            form = affine_form(subscript, self.values)
            if form is None or self.a.dynamic:
                return False
            ends = [sorted(factor * at for at in (self.a.ranges[name][0], self.a.ranges[name][1] - 1)) for name, factor in form[0].items()]
            if form[1] + sum(least for least, _ in ends) < 0 or form[1] + sum(most for _, most in ends) >= extent:
                return False
        return True

    def is_gathered(self, subscript: Expr) -> bool:
        """Whether data are a subscript; of a pointwise assignment those of each element, as others pick rows before a loop."""
        return affine(subscript, self.values) is None and (bool(self.a.reduction) or bool(self.inner & self.dims(subscript)))

    def is_padded(self, access: Access) -> bool:
        """Whether subscripts that are not affine are functions of sums of indices alone, over whose values `pad_operands` copies."""
        if not self.a.reduction or self.a.dynamic:
            return False
        boxes = {name: (lower, upper - 1) for name, lower, upper in self.a.bounds}
        forms = [form_of(sub, boxes, self.values) for sub in access.subscripts if affine(sub, self.values) is None]
        return None not in forms and any(form is not None and len(form) > 1 for form in forms)

    def is_affine_select(self, value: Expr) -> bool:
        """Whether conditions on indices alone choose between parts of a value: no nest evaluates these. What is 0 beside a window of a
        tensor is left to `pad_operands`."""
        if not isinstance(value, Select):
            return all(map(self.is_affine_select, children(value)))
        arms = (value.then, value.other)
        if not self.a.reduction or condition(value.condition, self.values) is None:
            return False
        padded = any(isinstance(arm, Const) and arm.value == 0 for arm in arms) and has_windows(value)
        return not padded and all(map(self.is_affine_select, arms))

    def dims(self, value: Expr) -> frozenset[str]:
        """The dimensions that a value depends on; long sums are asked for those of all their parts."""
        known = self.known.get(id(value))
        if known is None:
            own = frozenset([value.name]) & self.a.extents.keys() if isinstance(value, Index) else frozenset[str]()
            known = self.known[id(value)] = own.union(*map(self.dims, children(value)))
        return known

    def stored(self, value: Expr) -> Expr:
        """The element that holds an invariant: one of its own, or that of the same with other indices of the same ranges."""
        results = () if self.a.reduction else self.a.subscripts  # in their order, where a loop over them reads it
        ordered = (*(name for part in results for name in names(part)), *_unconditional(value), *names(value))
        dims = tuple(dict.fromkeys(name for name in ordered if name in self.dims(value)))
        for copy in self.made:
            own = tuple(name for name, _, _ in copy.bounds)
            same = len(own) == len(dims) and all(self.a.span(one) == self.a.span(other) for one, other in zip(own, dims, strict=True))
            if same and with_names(copy.value, dict(zip(own, dims, strict=True))) == value:
                return Access(copy.tensor, tuple(Index(name, dtype="int64") for name in dims), dtype=value.dtype)
        bounds = tuple((name, *self.a.ranges[name]) for name in dims)
        narrow = [f"{access.tensor}_narrow" for access, _ in guarded_accesses(value) if id(value) in self.converted]
        self.made.append(self.temporaries.stored(self.a, narrow[0] if narrow else f"{self.a.tensor}_invariant", value, bounds))
        return self.made[-1].element


def _unconditional(value: Expr) -> Iterator[str]:
    """The indices of a value in the order of its text, as tensors are indexed: not those of conditions."""
    if isinstance(value, Index):
        yield value.name
    for part in (value.then, value.other) if isinstance(value, Select) else children(value):
        yield from _unconditional(part)


def _divides(value: Expr) -> bool:
    """Whether a value takes a quotient or remainder of integers, of which vectors have none."""
    return divides_integers(value) or not isinstance(value, Access) and any(map(_divides, children(value)))


def _converted(a: Assignment) -> list[Expr]:
    """The operands that a sum of products of halves converts."""
    product = a.value.operand if isinstance(a.value, Cast) and a.value.dtype == "float32" else a.value
    halves = isinstance(product, Binary) and product.op == "*" and product.dtype in ("float16", "bfloat16")
    if a.operator != "+=" or a.dynamic or product is a.value or not halves:
        return []
    return [operand for operand in children(product) if isinstance(operand, Cast)]
