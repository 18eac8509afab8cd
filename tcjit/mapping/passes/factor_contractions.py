"""Factor contractions: a sum of products of several tensors is computed pairwise through temporaries, where that takes fewer operations.

``O(a) +=! X(b,c) * Y(a,b,d) * Z(d,b)`` needs no sum over ``c`` for each ``a``: by the distributive law ``c`` is summed first, and what
divides all terms divides their sum. A condition without which a term is 0 is a factor that is 0 or 1, and stands in all steps that have
its indices: what it keeps from being a factor need not be finite. One that picks a result by data, as ``I(n) == v`` does, makes a scatter
of the product that it is in. The order is the one with the fewest operations. After Lam, Sadayappan
and Wenger, On Optimizing a Class of Multi-Dimensional Loops with Reductions for Parallel Execution (1997); ``torch.einsum`` does the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import prod

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import condition, guarded_accesses, isl_name
from tcjit.grammar.arithmetic import plus
from tcjit.grammar.ast import Access, Binary, Expr, Index, Select
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import walk
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.equality import picked_index, reads_inside
from tcjit.mapping.isl import context, images, points, sizes_in
from tcjit.mapping.operations import may_fail
from tcjit.mapping.reduction import conjunction, guarded_factors, identity

TYPES = ("float32", "float64", "int32", "int64")  # in which sums run; halves are widened first
MOST_FACTORS = 6  # orders grow with their factorial
WORTH_FACTORING = 1 << 16  # operations below which more loops, or launches of a GPU, cost more than they save
WORTH_DIVIDING = 8  # terms, for a division of each to be worth a temporary of their sum
GAIN = 1.5  # times fewer multiply-adds that pay for what is not counted: products in registers need no traffic
TRAFFIC = 4  # operations that an element of a temporary takes as long as: it is written and read,
SCATTERED = 8  # operations that a step of a scatter takes as long as
NEAR_TRAFFIC = 1  # and in a cache where loops over results stand around both
READ_MORE = 4  # elements of an operand for each of a temporary, for its order to be the temporary's

Factors = frozenset[int]  # their numbers
Part = tuple[object, ...]  # a sum of a product of some factors, as a key


@dataclass(frozen=True)
class _Order:
    """How ``factors`` are contracted: all at once, or the products of some ``parts`` first."""

    operations: int
    factors: Factors
    parts: tuple[_Order, ...] = ()


def factor_contractions(before: Assignments, cpu: bool = True) -> Assignments:
    """The program with the temporaries of contractions that are cheaper in several steps; of scatters only on a ``cpu``. What one holds in
    a temporary, others read, too, as gradients by the factors of one product do, as long as nothing that it is computed from changes."""
    shared: dict[Part, Assignment] = {}

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        made = divided_once(a, temporaries) if a.operator == "+=" and _is_common_quotient(a) else contracted(a, temporaries)
        changed = {a.tensor}
        while stale := [part for part, one in shared.items() if changed & one.tensors_read]:
            changed |= {shared.pop(part).tensor for part in stale}
        return made

    def divided_once(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        """The sum of the dividends, in a temporary, is divided by what all terms are divided by."""
        assert isinstance(a.value, Binary)
        subscripts = tuple(plus(Index(name, dtype="int64"), -lower) for name, lower, _ in a.results)
        storage = temporaries.add(a.source, f"{a.tensor}_dividend", a.value.dtype, [upper - lower for _, lower, upper in a.results])
        start = identity("+=", a.value.dtype)
        total = Assignment(storage.name, subscripts, "+=", a.value.left, a.bounds, a.source, a.reduction, start=start)
        steps = contracted(total, temporaries)
        quotient: Expr = replace(a.value, left=Access(storage.name, subscripts, dtype=a.value.dtype))
        rest = replace(a, value=quotient, bounds=a.results, reduction=(), start=None)
        if a.start is not None:
            rest = replace(rest, operator="=", value=Binary("+", a.start, quotient, dtype=a.value.dtype))
        return [*(steps if steps[-1].operator == "+=" else [total]), rest]

    def contracted(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if a.operator != "+=" or not a.reduction or a.empty or a.dynamic or a.constraints or a.value.dtype not in TYPES:
            return [a]
        if temporaries.tensors[a.tensor].dtype != a.value.dtype or a.tensor in a.inputs:
            return [a]
        contraction = _Contraction(a, before.values, shared)
        data = [number for number, one in enumerate(contraction.conditions) if condition(one, before.values) is None]
        if data and not (cpu and {*data} <= contraction.picked.keys()):
            return [a]  # data pick the terms
        if contraction.conditions and any(map(may_fail, contraction.factors)):
            return [a]  # conditions protect what may fail
        operations, every = contraction.at_once(contraction.all), contraction.all
        if not 1 < len(every) <= MOST_FACTORS or not contraction.dims(every) >= set(a.reduction) or operations < WORTH_FACTORING:
            return [a]
        order = contraction.order(every)
        if order.operations * GAIN > operations:
            return [a]
        added, known = list(temporaries.added), dict(temporaries.tensors)
        made = contraction.assignments(order, temporaries)
        within = replace(before, temporaries=tuple(temporaries.added))
        if contraction.conditions and not all(reads_inside(within, one) for one in made):  # where a condition had protected a read
            temporaries.added[:], temporaries.tensors = added, known
            return [a]
        shared.update(contraction.made)
        return made

    return rewrite(before, visit)


def _is_common_quotient(a: Assignment) -> bool:
    """Whether the terms of a sum are floats that are all divided by one value, often enough."""
    value = a.value
    if not isinstance(value, Binary) or value.op != "/" or value.dtype not in ("float32", "float64"):
        return False
    if not a.reduction or a.empty or a.dynamic or a.constraints or set(names(value.right)) & set(a.reduction):
        return False
    points, terms = (prod(upper - lower for _, lower, upper in bounds) for bounds in (a.bounds, a.terms))
    return points >= WORTH_FACTORING and terms >= WORTH_DIVIDING and all(one.tensor != a.tensor for one, _ in guarded_accesses(value))


class _Contraction:
    """A sum over the terms of an assignment of a product of factors; others have ``shared`` parts of theirs."""

    def __init__(self, a: Assignment, values: Mapping[str, int], shared: Mapping[Part, Assignment]) -> None:
        self.a, self.values, self.shared = a, values, shared
        self.made: dict[Part, Assignment] = {}
        self.conditions, factors = guarded_factors(a.value)
        # by the number of a condition on data, the result's index that it picks
        self.picked = {number: name for number, one in enumerate(self.conditions) if (name := picked_index(a, one, values)) is not None}
        self.affine = {number: text for number, one in enumerate(self.conditions) if (text := condition(one, values)) is not None}
        self.factors = (*self.conditions, *factors)
        self.all = frozenset(range(len(self.factors)))
        self.moves = tuple(frozenset(names(factor)) & set(a.dims) for factor in self.factors)
        self.orders: dict[Factors, _Order] = {}  # the best ones
        self.everywhere: dict[tuple[Factors, frozenset[str]], bool] = {}  # whether conditions leave terms to all points of some dimensions

    def dims(self, factors: Factors) -> frozenset[str]:
        """Those that factors move with."""
        return frozenset().union(*(self.moves[number] for number in factors))

    def kept(self, factors: Factors) -> frozenset[str]:
        """The dimensions of the product of some factors, summed over the terms that no other factor moves with."""
        others = self.dims(self.all - factors) | {name for name, _, _ in self.a.results}
        return self.dims(factors) & others

    def part(self, factors: Factors) -> Part:
        """The sum of the product of some factors, for whatever contraction."""
        dims = self.dims(factors)
        counts = Counter(self.factors[number] for number in factors)
        return frozenset(counts.items()), frozenset((dim, *self.a.ranges[dim]) for dim in dims), self.kept(factors), self.a.value.dtype

    def is_shared(self, factors: Factors) -> bool:
        return len(factors) > 1 and factors != self.all and self.part(factors) in self.shared

    def volume(self, dims: frozenset[str]) -> int:
        return prod(self.a.extents[dim] for dim in dims)

    def steps(self, dims: frozenset[str], factors: Factors) -> int:
        """Those over some dimensions of a product in which some of the ``factors`` stand by themselves: a scatter has none along what they
        pick."""
        indices = {self.picked[number] for number in factors if number in self.picked}
        return self.volume(dims - indices) * (SCATTERED if indices else 1)

    def at_once(self, factors: Factors) -> int:
        """Multiply-adds of the sum of a product of so many factors."""
        return max(1, len(self.multiplied(factors)) - 1) * self.steps(self.dims(factors), factors)

    def multiplied(self, factors: Factors) -> list[int]:
        """Those that are no conditions, in their order."""
        return [number for number in sorted(factors) if number >= len(self.conditions)]

    def traffic(self, factors: Factors) -> int:
        """Operations that the temporary of a product is worth; none for the results and for what is read from a tensor."""
        kept = self.kept(factors)
        if factors == self.all or len(factors) == 1 and kept == self.dims(factors):
            return 0
        return (NEAR_TRAFFIC if any(self.is_near_under(dim, factors) for dim, _, _ in self.a.results) else TRAFFIC) * self.volume(kept)

    def is_near_under(self, dim: str, factors: Factors) -> bool:
        """Whether the temporary of a product is one slice of its own for each value of a result's dimension, and the other factors, which
        are read again for each of them, are no larger than all slices."""
        kept = self.kept(factors)
        again = (self.volume(self.moves[number]) for number in self.all - factors if dim not in self.moves[number])
        return dim in kept and all(elements <= self.volume(kept) for elements in again)

    def order(self, factors: Factors) -> _Order:
        """The one with the fewest operations."""
        if factors not in self.orders:
            self.orders[factors] = self.cheapest(factors)
        return self.orders[factors]

    def cheapest(self, factors: Factors) -> _Order:
        if len(factors) == 1:
            alone = self.kept(factors) == self.dims(factors)
            return _Order(0 if alone else self.steps(self.dims(factors), factors) + self.traffic(factors), factors)
        if self.is_shared(factors):
            return _Order(0, factors)
        best = _Order(self.at_once(factors) + self.traffic(factors), factors)
        first, *others = sorted(factors)
        for chosen in range(2 ** len(others) - 1):
            left = frozenset([first, *(number for bit, number in enumerate(others) if chosen >> bit & 1)])
            if any(len(part) > 1 and not self.multiplied(part) for part in (left, factors - left)):
                continue  # conditions alone are no tensor
            parts = self.order(left), self.order(factors - left)
            together = self.kept(left) | self.kept(factors - left)
            own = (part.operations - self.traffic(part.factors) * self.is_inline(part, together) for part in parts)
            unchanged = frozenset(min(part.factors) for part in parts if len(part.factors) == 1 and not part.operations)
            counted = self.volume(self.dims(self.lost(factors, together))) * SCATTERED
            operations = sum(own) + self.steps(together, unchanged) + self.traffic(factors) + counted
            if operations < best.operations:
                best = _Order(operations, factors, parts)
        return best

    def lost(self, factors: Factors, together: frozenset[str]) -> Factors:
        """Conditions of some factors that do not stand in a step over dimensions, as others of their indices are summed over, and may leave
        points of it without terms: the other factors there need not be finite, and are no factors of 0. None of integers."""
        lost = frozenset(number for number in factors if number < len(self.conditions) and not self.moves[number] <= together)
        affine = lost <= self.affine.keys()
        if not lost or self.a.value.dtype not in ("float32", "float64") or affine and self.leave_terms(lost, together & self.dims(lost)):
            return frozenset()
        return lost

    def leave_terms(self, conditions: Factors, kept: frozenset[str]) -> bool:
        """Whether affine conditions hold for a term at each value of some of their dimensions, whatever dynamic sizes are."""
        key = conditions, kept
        if sizes_in([self.factors[number] for number in conditions], self.values):
            return False
        if key not in self.everywhere:
            dims = sorted(self.dims(conditions))
            box = [f"{lower} <= {isl_name(name)} < {upper}" for name, lower, upper in self.a.bounds if name in dims]
            to = images(context(), map(isl_name, dims), map(isl_name, sorted(kept)))
            some, every = (points(context(), map(isl_name, dims), facts).apply(to) for facts in ([*box, *self.texts(conditions)], box))
            self.everywhere[key] = every.is_subset(some)
        return self.everywhere[key]

    def texts(self, conditions: Factors) -> list[str]:
        """Affine conditions in isl's words."""
        return [f"({self.affine[number]})" for number in sorted(conditions)]

    def is_inline(self, part: _Order, together: frozenset[str]) -> bool:
        """Whether a part is a product alone, which the step that multiplies it, over ``together``, needs once."""
        alone = len(part.factors) > 1 and self.kept(part.factors) == self.dims(part.factors) == together
        return alone and not self.is_shared(part.factors)

    def summed(self, order: _Order) -> frozenset[str]:
        """The terms that the last step of an order sums over."""
        kept = self.kept(order.factors) if order.factors != self.all else {name for name, _, _ in self.a.results}
        return self.read_together(order) - kept

    def read_together(self, order: _Order) -> frozenset[str]:
        """The dimensions of the last step of an order."""
        return frozenset().union(*(self.kept(part.factors) for part in order.parts)) if order.parts else self.dims(order.factors)

    # ------------------------------------------------------------ assignments

    def assignments(self, order: _Order, temporaries: Temporaries) -> list[Assignment]:
        """Those of the temporaries, and of the results."""
        made: list[Assignment] = []
        value, a, summed = self.product(order, made, temporaries), self.a, self.summed(order)
        if not summed and a.start is not None:
            value = Binary("+", a.start, value, dtype=a.value.dtype)
            return [*made, replace(a, operator="=", value=value, bounds=a.results, reduction=(), start=None)]
        bounds = tuple(bound for bound in a.bounds if bound[0] not in a.reduction or bound[0] in summed)
        return [*made, replace(a, value=value, bounds=bounds, reduction=tuple(name for name in a.reduction if name in summed))]

    def product(self, order: _Order, made: list[Assignment], temporaries: Temporaries) -> Expr:
        """The product that the last step of an order sums."""
        values = self.multiplicands(order, made, temporaries)
        read = self.read_together(order)
        again = [self.factors[number] for number in sorted(order.factors) if number < len(self.conditions) and self.moves[number] <= read]
        conditions = list(dict.fromkeys([*again, *(value for value in values if value.dtype == "bool")]))
        if lost := self.lost(order.factors, read):
            count = self.counted(lost, read, made, temporaries)
            conditions.append(Binary(">", count, identity("+=", count.dtype), dtype="bool"))
        factors = [value for value in values if value.dtype != "bool"]
        value, *others = factors or [identity("*=", self.a.value.dtype)]  # for how many terms a condition holds
        for factor in others:
            value = Binary("*", value, factor, dtype=factor.dtype)
        return Select(conjunction(conditions), value, identity("+=", value.dtype), dtype=value.dtype) if conditions else value

    def counted(self, conditions: Factors, read: frozenset[str], made: list[Assignment], temporaries: Temporaries) -> Access:
        """For how many terms conditions hold at a point of a step, which is stored."""
        a, dims, dtype = self.a, self.dims(conditions), self.a.value.dtype
        one, zero = identity("*=", dtype), identity("+=", dtype)
        value = Select(conjunction([self.factors[number] for number in sorted(conditions)]), one, zero, dtype=dtype)
        results, terms = ([bound for bound in a.bounds if bound[0] in some] for some in (dims & read, dims - read))
        subscripts = tuple(plus(Index(name, dtype="int64"), -lower) for name, lower, _ in results)
        storage = temporaries.add(a.source, f"{a.tensor}_terms", dtype, [upper - lower for _, lower, upper in results])
        reduction = tuple(name for name, _, _ in terms)
        made.append(Assignment(storage.name, subscripts, "+=", value, (*results, *terms), a.source, reduction, start=zero))
        return Access(storage.name, subscripts, dtype=dtype)

    def multiplicands(self, order: _Order, made: list[Assignment], temporaries: Temporaries) -> list[Expr]:
        """The factors and conditions of the product that the last step of an order sums."""
        if not order.parts:
            return [self.factors[number] for number in sorted(order.factors)]
        together = frozenset().union(*(self.kept(part.factors) for part in order.parts))
        inline = [self.is_inline(part, together) for part in order.parts]
        return [
            value
            for part, is_inline in zip(order.parts, inline, strict=True)
            for value in (self.multiplicands(part, made, temporaries) if is_inline else [self.read(part, made, temporaries)])
        ]

    def axes(self, factors: Factors, temporaries: Temporaries) -> list[str]:
        """The dimensions of the temporary of a product, outermost first: in the order of memory of an operand that it sums many elements of
        for each of its own, or else of a tensor that it is multiplied with element by element, where there is one; neighbours in the result
        are neighbours in others."""
        a, kept = self.a, self.kept(factors)
        read = sorted(factors, key=lambda number: -self.volume(self.moves[number]))
        read = [number for number in read if self.volume(self.moves[number]) >= READ_MORE * self.volume(kept)]
        parts = ((number, part) for number in (*read, *sorted(self.all - factors)) for part in walk(self.factors[number]))
        for number, access in ((number, part) for number, part in parts if isinstance(part, Access)):
            axes = zip(access.subscripts, temporaries.tensors[access.tensor].strides, strict=True)
            steps = {sub.name: step for sub, step in axes if isinstance(sub, Index) and step is not None}
            if len(steps) == len(access.subscripts) and (self.is_order(steps, kept) if number in factors else steps.keys() == kept):
                return sorted(kept, key=lambda name: -steps[name])
        last = set(names(a.subscripts[-1])) if a.subscripts else set()
        return sorted((name for name, _, _ in a.bounds if name in kept), key=last.__contains__)

    def is_order(self, steps: Mapping[str, int], kept: frozenset[str]) -> bool:
        """Whether a tensor with these steps moves with all dimensions that are kept, and its neighbours along one of them."""
        return steps.keys() >= kept > set() and min(steps, key=steps.__getitem__) in kept

    def read(self, order: _Order, made: list[Assignment], temporaries: Temporaries) -> Expr:
        """A factor, or what is read of the temporary that holds a product."""
        a, kept = self.a, self.kept(order.factors)
        if len(order.factors) == 1 and kept == self.dims(order.factors):
            return self.factors[min(order.factors)]
        if self.is_shared(order.factors):
            return self.shared[self.part(order.factors)].element
        value, summed = self.product(order, made, temporaries), self.summed(order)
        axes = self.axes(order.factors, temporaries)
        results = sorted((bound for bound in a.bounds if bound[0] in kept), key=lambda bound: axes.index(bound[0]))
        terms = [bound for bound in a.bounds if bound[0] in summed]
        subscripts = tuple(plus(Index(name, dtype="int64"), -lower) for name, lower, _ in results)
        storage = temporaries.add(a.source, f"{a.tensor}_factor", value.dtype, [upper - lower for _, lower, upper in results])
        reduction = tuple(name for name, _, _ in terms)
        operator, start = ("+=", identity("+=", value.dtype)) if terms else ("=", None)
        made.append(Assignment(storage.name, subscripts, operator, value, (*results, *terms), a.source, reduction, start=start))
        self.made[self.part(order.factors)] = made[-1]
        return Access(storage.name, subscripts, dtype=value.dtype)
