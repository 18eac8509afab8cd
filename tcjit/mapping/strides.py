"""By how much an access moves in memory along a dimension: what coalescing, vectorising and reuse are decided by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import linear, linear_form, text
from tcjit.grammar.ast import Access, Binary, Expr, Index, Scalar, Size
from tcjit.grammar.polynomial import INTEGERS, expression, from_terms, integer, names
from tcjit.grammar.walk import children, walk
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.storage import Bounds, Storage

Form = tuple[tuple[str, int], ...]  # the coefficients of indices
LinearParts = dict[Expr, tuple[Form, int]]  # of a value those that are linear in indices, with their forms and constants

KEPT = 32  # elements of a row that a thread of a GPU can keep in registers
INTERLEAVED = 4  # elements between lanes, at most, that C compilers load and store with shuffles
SHUFFLED = 8  # the same where lanes read all elements between
SHARING = 1024  # threads of a block that can take a row together


def involves(subscript: Expr, dim: str) -> bool:
    """Whether a subscript mentions a dimension, inside a gather's index too."""
    return dim in names(subscript)


def affine_form(subscript: Expr, values: Mapping[str, int]) -> tuple[dict[str, int], int] | None:
    """The integer coefficient of every index, and the constant; None where it is not a plain sum."""
    form = linear(subscript, values)
    if form is None or not isinstance(form[1], int):
        return None
    known = {name: factor for name, factor in form[0].items() if isinstance(factor, int)}
    return (known, form[1]) if len(known) == len(form[0]) else None


def linear_parts(value: Expr, values: Mapping[str, int]) -> LinearParts:
    """The largest parts of a value that are linear in indices, with their forms and constants."""
    form = affine_form(value, values) if value.dtype in INTEGERS else None
    if form is not None:
        terms = tuple(sorted((dim, factor) for dim, factor in form[0].items() if factor))
        return {value: (terms, form[1])} if terms else {}
    return {part: form for child in children(value) for part, form in linear_parts(child, values).items()}


@dataclass(frozen=True)
class SubscriptForm:
    """A subscript as a sum of the integer ``factors`` of indices, a ``constant`` and the ``rest``, multiples of quotients."""

    factors: Mapping[str, int]
    constant: int
    rest: tuple[tuple[int, Expr], ...] = ()

    @property
    def divided(self) -> frozenset[str]:
        """The indices in quotients."""
        return frozenset(name for _, quotient in self.rest for name in names(quotient))


def subscript_form(subscript: Expr, values: Mapping[str, int]) -> SubscriptForm | None:
    """None where data or dynamic sizes are part of it."""
    if (form := affine_form(subscript, values)) is not None:
        return SubscriptForm(*form)
    value = integer(subscript, values)
    if value is None or isinstance(value, int) or any(isinstance(node, (Size, Scalar)) for node in walk(expression(value))):
        return None
    if text(value) is None:
        return None
    terms = dict(value.terms)
    constant = terms.pop((), 0)
    factors = {atom.name: factor for (atom,), factor in terms.items() if isinstance(atom, Index)}
    return SubscriptForm(factors, constant, tuple((factor, atom) for (atom,), factor in terms.items() if not isinstance(atom, Index)))


def stride(scop: Scop, access: Access, dim: str) -> int | None:
    """Elements that an access moves when a dimension moves by one; None where that is not one number."""
    return stride_in(scop.tensor(access.tensor), access.subscripts, dim, scop.values)


def stride_in_lanes(scop: Scop, s: ScopStatement, access: Access, dim: str) -> int | None:
    """The same but for a few places, where quotients in subscripts change: loops over lanes are cut there."""
    total = 0
    for subscript, step in zip(access.subscripts, scop.tensor(access.tensor).strides, strict=True):
        if involves(subscript, dim):
            value = integer(subscript, scop.values)
            terms = {} if value is None or isinstance(value, int) else value.terms
            still = {atoms: c for atoms, c in terms.items() if not (len(atoms) == 1 and _seldom_changes(atoms[0], s, dim, scop.values))}
            form = linear_form(from_terms(still))
            coefficient = None if value is None or form is None else form[0].get(dim, 0)
            if not isinstance(coefficient, int) or step is None:
                return None
            total += coefficient * step
    return total


def _seldom_changes(atom: Expr, s: ScopStatement, dim: str, values: Mapping[str, int]) -> bool:
    """Whether a quotient changes once at most while a dimension goes through its values."""
    if not (isinstance(atom, Binary) and atom.op == "/"):
        return False
    form, divisor = affine_form(atom.left, values), integer(atom.right, values)
    return form is not None and isinstance(divisor, int) and abs(form[0].get(dim, 0)) * (s.extent(dim) - 1) <= divisor


def stride_in(storage: Storage, subscripts: tuple[Expr, ...], dim: str, values: Mapping[str, int]) -> int | None:
    """The same for one tensor's storage."""
    total = 0
    for subscript, step in zip(subscripts, storage.strides, strict=True):
        if not involves(subscript, dim):
            continue
        form = affine_form(subscript, values)
        if form is None or step is None:
            return None
        total += form[0].get(dim, 0) * step
    return total


def strides_in(storage: Storage, subscripts: tuple[Expr, ...], bounds: Bounds, values: Mapping[str, int]) -> list[int | None]:
    """Those along some dimensions."""
    return [stride_in(storage, subscripts, name, values) for name, _, _ in bounds]


def moves_as_one(scop: Scop, access: Access, outer: str, inner: str, extent: int) -> bool:
    """Whether an access moves along two dimensions, the inner one of this extent, as along one."""
    step, near = stride(scop, access, outer), stride(scop, access, inner)
    return step is not None and near is not None and step == near * extent


def accesses(s: ScopStatement) -> list[Access]:
    """The write of a statement and all its reads."""
    return [s.element, *(access for access, _ in s.reads)]


def fits_block(extents: Mapping[str, int], found: Iterable[Access], step: Callable[[Access, str], int | None]) -> bool:
    """Whether the threads of one block can keep what lies along some dimensions: they go side by side along one on which every access
    moves by no more than one element, and each by itself along the others. ``step`` gives an access's stride along a dimension."""
    reads = list(found)
    near = [extent for dim, extent in extents.items() if all(step(access, dim) in (0, 1) for access in reads)]
    return prod(extents.values()) <= KEPT * min(max(near, default=1), SHARING)
