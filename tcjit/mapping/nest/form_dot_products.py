"""Form dot products: sums of products of narrow numbers run by groups of terms, of which one instruction adds a dot product to 32 bits.

``sum_k x(k) * y(k)`` becomes ``sum_k' dot(x'(k'), y'(k'))``, in which an element of ``x'`` holds neighbours in ``k`` in its 32 bits: two of
16 bits, or four of 8 where the processor has an instruction for bytes. That takes unsigned bytes and signed ones. A factor is one of them
or the other plus a constant, so that with ``u(k) = x(k) + p`` and ``s(k) = y(k) + q``

    ``sum x * y  =  sum u * s  -  p * sum s  -  q * sum u  +  sum p * q``.

The sums over one factor are reductions of their own, and results start from them. Integers wrap: all of this is exact. Where no terms can
be grouped, the high half of a pair is 0: one multiply-add is still cheaper than a product of 32 bits and a sum.

Products of two bfloat16 are summed in float32 by pairs where the processor has an instruction for them, which takes denormals for zeros.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import linear
from tcjit.grammar.arithmetic import total
from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Expr, Index, Select
from tcjit.grammar.dtypes import DTYPES, converted
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import replaced, with_indices
from tcjit.mapping.assignment import Assignment, Temporaries
from tcjit.mapping.machine import Machine
from tcjit.mapping.nest.narrow_factors import NarrowFactor, bfloat16_factor, narrow_factor, without_conditions
from tcjit.mapping.nest.vector_forms import ADJACENT, DOT_PRODUCTS, FLIP_SIGNS, PACK, SIGNED_PRODUCTS, UNSIGNED_PRODUCTS
from tcjit.mapping.storage import are_digits, fresh

ONES = 0x01010101  # four bytes
WORTH_PAIRS = 8  # uses of an element of each factor in the mean that pay for its copy in groups of two
WORTH_BYTES = 2  # uses of an element of one of two factors in the mean: copies in groups of bytes take less time than products in int32


@dataclass(frozen=True)
class TermGroup:
    """The terms of a word: ``ways`` neighbours in a dimension of ``count``; without a dimension a single term."""

    dim: str
    count: int
    ways: int
    multiple: int = 1  # of which there are so many words

    @property
    def extent(self) -> int:
        return -(-self.count // (self.ways * self.multiple)) * self.multiple if self.dim else 1

    @property
    def missing(self) -> int:
        """Terms beyond the last, whose bits are 0."""
        return self.extent * self.ways - self.count if self.dim else 0


def word(value: Expr, group: TermGroup, adjacent: bool, flip: bool) -> Expr:
    """The word of each group of values, with ``group.dim`` counting groups; ``adjacent``: values are elements in the order of memory."""
    dim, ways = Index(group.dim, dtype="int64"), group.ways
    dtype, zero = ("float32", Const(0.0, dtype="bfloat16")) if value.dtype == "bfloat16" else ("int32", Const(0, dtype="int32"))
    if not group.dim:
        return _word(PACK, [value, *[zero] * (ways - 1)], dtype, flip)
    values = [with_indices(value, {group.dim: total([(ways, dim)], number)}) for number in range(ways)]
    whole = _word(ADJACENT if adjacent else PACK, values, dtype, flip)
    if not group.missing:
        return whole
    full, rest = divmod(group.count, ways)
    others = _word(PACK, [zero] * ways, dtype, flip)
    if rest:
        last = _word(PACK, [*values[:rest], *[zero] * (ways - rest)], dtype, flip)
        after = full + 1 < group.extent
        others = Select(_below(dim, full + 1), last, others, dtype=dtype) if after else last
    return Select(_below(dim, full), whole, others, dtype=dtype)


def _below(dim: Expr, end: int) -> Expr:
    return Binary("<", dim, Const(end, dtype="int64"), dtype="bool")


def _word(function: str, values: list[Expr], dtype: str, flip: bool) -> Expr:
    made = Call(function, tuple(values), dtype=dtype)
    return Call(FLIP_SIGNS, (made,), dtype="int32") if flip else made


@dataclass(frozen=True)
class DotProducts:
    """``assignment`` reads groups of terms, behind ``copies`` of tensors in groups; its results start from ``sums`` over one factor."""

    assignment: Assignment
    copies: tuple[Assignment, ...] = ()
    sums: tuple[Assignment, ...] = ()


def form_dot_products(
    a: Assignment, temporaries: Temporaries, machine: Machine, *, panels: bool = True, multiple: int = 1, innermost: bool = False
) -> DotProducts:
    """The assignment over groups of terms, as many as the machine allows; as it is where it is no sum of products of two narrow numbers, or
    copies would not pay. Without ``panels`` it reads copies of whole tensors. The number of groups is a ``multiple``: words of 0 end it;
    in copies of whole tensors they are neighbours where they are to be ``innermost``."""
    product, conditions = without_conditions(a.value)
    if isinstance(product, Cast) and product.operand.dtype == "bfloat16":  # what is summed in a wider type is computed in it
        product, more = without_conditions(product.operand)
        conditions += more
    if a.operator != "+=" or not isinstance(product, Binary) or product.op != "*":
        return DotProducts(a)
    if any(dim in a.dynamic for dim in a.reduction):
        return DotProducts(a)  # the last group has as many terms as the sizes say
    if a.value.dtype == "int32":
        left, right = narrow_factor(product.left), narrow_factor(product.right)
    elif a.value.dtype == "float32" and machine.bfloat16_dots:
        left, right = bfloat16_factor(product.left), bfloat16_factor(product.right)
    else:
        return DotProducts(a)
    if left is None or right is None:
        return DotProducts(a)
    conditions += [*left[1], *right[1]]
    factors = (left[0], right[0])
    uses = [_uses(a, factor.access, temporaries) for factor in factors]
    former = _Former(a, factors, conditions, temporaries, panels, multiple, innermost)
    made = former.of_bytes() if machine.dot_ways == 4 and max(uses) >= WORTH_BYTES else None
    return made or (former.of_halves() if min(uses) >= WORTH_PAIRS else None) or DotProducts(a)


def _uses(a: Assignment, access: Access, temporaries: Temporaries) -> float:
    """How often an element that is read is used, in the mean."""
    moving = set(names(access))
    read = prod(extent for name, extent in a.extents.items() if name in moving)
    return a.points / max(1, min(read, temporaries.tensors[access.tensor].elements))


@dataclass(frozen=True)
class _ByteFactor:
    """A factor as bytes ``signed`` or not, those of its type or with their signs flipped: they are the factor plus ``more``."""

    factor: NarrowFactor
    more: int
    flip: bool
    signed: bool

    @property
    def beyond(self) -> int:
        """The byte whose bits are 0 before signs are flipped."""
        return 0 if not self.flip else -128 if self.signed else 128


@dataclass(frozen=True)
class _BytePair:
    """The factors in the order of a function's arguments."""

    first: _ByteFactor
    second: _ByteFactor
    function: str


@dataclass(frozen=True)
class _Former:
    """A sum of products of two factors under conditions, on its way to dot products."""

    a: Assignment
    factors: tuple[NarrowFactor, NarrowFactor]
    conditions: list[Expr]
    temporaries: Temporaries
    panels: bool
    multiple: int
    innermost: bool

    def of_halves(self) -> DotProducts | None:
        """Pairs of 16 bits, whatever the conditions are; None where no terms of bfloat16 are neighbours, which pairs with 0 would not pay
        for."""
        group = self.group(2)
        if not group.dim and self.a.value.dtype == "float32":
            return None
        copies: list[Assignment] = []
        values = [self.grouped(factor, group, False, copies) for factor in self.factors]
        return DotProducts(self.over(group, values, DOT_PRODUCTS[2]), (*copies,))

    def of_bytes(self) -> DotProducts | None:
        """Groups of four bytes; None where factors are none, or few terms follow one another, or a result has no sum over a factor."""
        group, pair = self.group(4), self.of_one_sign() if self.multiple > 1 else self.of_both_signs()
        if pair is None or group.count <= 2:
            return None
        every = prod(upper - lower for _, lower, upper in self.a.terms)
        beyond = group.missing * every // group.count
        (x, p, x0), (y, q, y0) = ((one.factor, one.more, one.beyond) for one in (pair.first, pair.second))
        constant = p * q * every - beyond * (x0 * y0 - p * y0 - q * x0)
        if (constant or p or q) and (self.conditions or self.a.start is None or not self.is_linear()):
            return None
        copies: list[Assignment] = []
        values = [self.grouped(one.factor, group, one.flip, copies) for one in (pair.first, pair.second)]
        ones = Const(ONES, dtype="int32")
        terms, sums = [], []
        for number, factor, word, signed in ((p, y, values[1], pair.second.signed), (q, x, values[0], pair.first.signed)):
            if number:
                made, times = self.sum(factor, group, Call(DOT_PRODUCTS[4], (ones, word) if signed else (word, ones), dtype="int32"))
                sums.append(made)
                terms.append(Binary("*", made.element, _int32(-number * times), dtype="int32"))
        start: Expr = _int32(constant)
        for term in terms:
            start = Binary("+", start, term, dtype="int32")
        made = self.over(group, values, pair.function)
        return DotProducts(replace(made, start=start) if terms or constant else made, (*copies,), (*sums,))

    def of_both_signs(self) -> _BytePair | None:
        """One factor as unsigned bytes and the other as signed ones, such that the sums over one factor have few terms."""
        choices = [(self.factors[one], self.factors[1 - one]) for one in (0, 1)]
        known = [(self.added(u, s), u, s) for u, s in choices if u.as_unsigned is not None and s.as_signed is not None]
        if not known:
            return None
        _, u, s = min(known, key=lambda choice: choice[0])
        first = _ByteFactor(u, u.as_unsigned or 0, u.access.dtype == "int8", signed=False)
        return _BytePair(first, _ByteFactor(s, s.as_signed or 0, s.access.dtype == "uint8", signed=True), DOT_PRODUCTS[4])

    def of_one_sign(self) -> _BytePair | None:
        """The bytes as they are, unsigned ones first, for a matrix unit."""
        signs = {"uint8": False, "bool": False, "int8": True}
        ordered = sorted(self.factors, key=lambda factor: signs.get(factor.access.dtype, False))
        if any(factor.constant is None for factor in ordered):
            return None
        first, second = (_ByteFactor(one, -(one.constant or 0), False, signs[one.access.dtype]) for one in ordered)
        same = SIGNED_PRODUCTS if first.signed else UNSIGNED_PRODUCTS
        return _BytePair(first, second, same if first.signed == second.signed else DOT_PRODUCTS[4])

    def group(self, ways: int) -> TermGroup:
        """The terms that are neighbours in both factors, those that fill groups best, of these the longest."""
        a = self.a
        bound = {name for condition in self.conditions for name in names(condition)}
        able = [
            (upper, dim)
            for dim, lower, upper in a.terms
            if lower == 0 and upper > 1 and dim not in bound and a.constraints == a.start_constraints
            if all(_moves_one_axis(f.access, dim) for f in self.factors)
        ]
        if not able:
            return TermGroup("", 1, ways)
        count, dim = max(able, key=lambda one: (one[0] / (-(-one[0] // ways) * ways), *one))
        return TermGroup(dim, count, ways, self.multiple)

    def added(self, unsigned: NarrowFactor, signed: NarrowFactor) -> int:
        """Terms of the sums over one factor that results start from."""
        dims = {factor: set(names(factor.access)) for factor in (unsigned, signed)}
        points = {factor: prod(self.a.extents.get(name, 1) for name in dims[factor]) for factor in (unsigned, signed)}
        return (points[signed] if unsigned.as_unsigned else 0) + (points[unsigned] if signed.as_signed else 0)

    def is_linear(self) -> bool:
        """Whether no index is divided, so that no result has its terms in residue classes."""
        return all(linear(sub) is not None for factor in self.factors for sub in factor.access.subscripts)

    def over(self, group: TermGroup, values: list[Expr], function: str) -> Assignment:
        """The assignment over groups."""
        dtype = self.a.value.dtype
        value: Expr = Call(function, tuple(values), dtype=dtype)
        for condition in self.conditions:
            value = Select(condition, value, Const(0.0, dtype=dtype) if dtype == "float32" else _int32(0), dtype=dtype)
        return replace(self.a, value=value, bounds=self.bounds(group))

    def bounds(self, group: TermGroup) -> tuple[tuple[str, int, int], ...]:
        return tuple((name, lower, group.extent if name == group.dim else upper) for name, lower, upper in self.a.bounds)

    def sum(self, factor: NarrowFactor, group: TermGroup, value: Expr) -> tuple[Assignment, int]:
        """The sum over a factor for each of the results that it moves with, and how often each of its terms counts."""
        a = self.a
        moving = set(names(factor.access))
        bounds = tuple(bound for bound in self.bounds(group) if bound[0] in moving)
        results = tuple(bound for bound in bounds if bound[0] not in a.reduction)
        made = self.temporaries.stored(a, f"{factor.access.tensor}_sums", value, results)
        reduction = tuple(name for name in a.reduction if name in moving)
        times = prod(upper - lower for name, lower, upper in a.terms if name not in moving)
        return replace(made, operator="+=", bounds=bounds, reduction=reduction, start=_int32(0)), times

    def is_read_once(self, access: Access) -> bool:
        """Whether each point of the dimensions that an access moves with reads an element of its own, and one that there is."""
        if self.a.dynamic and self.conditions:
            return False
        bounds = {name: (lower, upper - 1) for name, lower, upper in self.a.bounds}
        outer, known = self.a.outer, set[str]()
        for sub, extent in zip(access.subscripts, self.temporaries.tensors[access.tensor].shape, strict=True):
            form = linear(sub)
            if form is None or not isinstance(form[1], int):
                return False
            factors = {name: factor for name, factor in form[0].items() if isinstance(factor, int) and name not in known}
            blocks = outer is not None and outer.dims[-1] in factors and len(factors) == 2  # of shared loops, and the points of one
            if len(form[0]) != len(factors) or not (len(factors) == 1 or blocks):
                return False
            if not are_digits((factor, bounds[name][1] - bounds[name][0] + 1) for name, factor in factors.items()):
                return False
            known |= set(factors)
            last = dict([outer.rest]) if outer and outer.rest and blocks else {}  # points of the last block
            ends = {name: (bounds[name][0], last.get(name, bounds[name][1] + 1) - 1) for name in factors}
            corners = [[factor * end for end in ends[name]] for name, factor in factors.items()]
            if form[1] + sum(map(min, corners)) < 0 or form[1] + sum(map(max, corners)) >= extent:
                return False
        return True

    def grouped(self, factor: NarrowFactor, group: TermGroup, flip: bool, copies: list[Assignment]) -> Expr:
        """A factor's groups: a value that is computed as it is copied into panels, or an access to a copy of the whole tensor where panels
        would repeat what windows share."""
        access, tensor = factor.access, self.temporaries.tensors[factor.access.tensor]
        axis = next((number for number, sub in enumerate(access.subscripts) if group.dim in names(sub)), -1)
        plain = factor.value in (access, Cast(access, dtype=self.a.value.dtype))
        plain &= access.dtype != "bool"  # any byte but 0 is true: words are made of whether they are
        adjacent = group.dim != "" and tensor.strides[axis] == 1 and plain and DTYPES[access.dtype].bits * group.ways == 32
        value: Expr = access if group.ways == 4 or adjacent or access.dtype == "bfloat16" else factor.value
        if group.dim and self.panels and self.is_read_once(access):
            return word(value, group, adjacent, flip)
        taken = set(self.temporaries.tensors)
        indices = [Index(fresh(f"axis{n}", taken), dtype="int64") for n in range(len(access.subscripts))]
        axes = [(index, extent, tensor.extent(number)) for number, (index, extent) in enumerate(zip(indices, tensor.shape, strict=True))]
        if group.dim:
            axes[axis] = indices[axis], group.extent, None
            group = replace(group, dim=indices[axis].name)
        words = word(replaced(value, {access: replace(access, subscripts=tuple(indices))}), group, adjacent, flip)
        order = sorted(range(len(axes)), key=lambda number: self.innermost and group.dim != "" and number == axis)
        copies.append(self.temporaries.copy(self.a, f"{access.tensor}_groups", words, [axes[number] for number in order]))
        subscripts = tuple(access.subscripts[number] for number in order)
        return replace(access, tensor=copies[-1].tensor, subscripts=subscripts, dtype=self.a.value.dtype)


def _moves_one_axis(access: Access, dim: str) -> bool:
    """Whether a dimension is a subscript by itself, and part of no other."""
    moving = [sub for sub in access.subscripts if dim in names(sub)]
    return len(moving) == 1 and isinstance(moving[0], Index)


def _int32(number: int) -> Expr:
    return Const(converted(number, "int32"), dtype="int32")
