"""Convert operands: read narrower types as the type of a reduction, from copies in it or converted where they are loaded; and what lanes
along a term need with its neighbours together.

Half types are computed in float32 wherever they are read, narrow integers where they are cast to int32. What a wider type holds and is cast
to it, as float32 to float64, loads do not convert: a copy does. So it does with truth values, which are numbers other than 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import TypeGuard

from tcjit.errors import MappingError
from tcjit.grammar.affine import linear
from tcjit.grammar.ast import Access, Binary, Cast, Const, Expr, Index
from tcjit.grammar.dtypes import DTYPES, ROUNDED, holds
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import rebuild, walk
from tcjit.mapping.assignment import Assignment, Temporaries
from tcjit.mapping.nest.vector_forms import NARROW, is_dot_product
from tcjit.mapping.storage import Storage, fresh

MOST_COPIED = 3  # tensors of which every choice is compared
FEW_USES = 8  # of an element of what stays as it is: with more of them panels of tiles are copied instead

Orders = Mapping[str, tuple[int, ...]]  # of the axes of the tensors that are copied, the last innermost


def conversions(a: Assignment, tensors: Mapping[str, Storage]) -> Iterator[Orders]:
    """The choices of tensors to copy: of those of narrower types whose elements are used again all, or some, or none; and tensors whose
    neighbours are to lie along a term as those of a larger tensor do."""
    points = a.points
    some = (*_narrow_tensors(a, tensors), *_exact_tensors(a), *_predicates(a))
    narrow = [tensor for tensor in some if not any(tensors[tensor].dynamic_extents)]
    again = {tensor: _own_order(tensors[tensor]) for tensor in narrow if points > tensors[tensor].elements}
    if len(again) > MOST_COPIED:
        yield from (again, {})
    else:
        for count in range(len(again), -1, -1):
            yield from ({tensor: again[tensor] for tensor in chosen} for chosen in combinations(again, count))
    if not (a.outer or a.dynamic):
        for term in a.reduction:
            if turned := _transposed(a, term, tensors, points):
                yield {**again, **turned}


def _own_order(storage: Storage) -> tuple[int, ...]:
    return tuple(range(len(storage.shape)))


def _transposed(a: Assignment, term: str, tensors: Mapping[str, Storage], points: int) -> Orders:
    """The tensors that move with a term, but not by one element, with its axis innermost; none where no tensor of as many elements has
    its neighbours there, or is used so often that it is copied in panels."""
    orders: dict[str, tuple[int, ...]] = {}
    stays = 0
    for access in dict.fromkeys(access for access in a.reads):
        storage = tensors[access.tensor]
        moving = [axis for axis, sub in enumerate(access.subscripts) if term in names(sub)]
        if not moving:
            continue
        if any(storage.dynamic_extents) or moving[1:] or not _is_least_digit(term, access.subscripts[moving[0]], a.extents[term]):
            return {}
        if storage.strides[moving[0]] == 1:
            stays = max(stays, storage.elements)
        else:
            order = (*(axis for axis in _own_order(storage) if axis != moving[0]), moving[0])
            if orders.setdefault(access.tensor, order) != order:
                return {}
    copied = sum(tensors[tensor].elements for tensor in orders)
    return orders if 0 < copied <= stays and points < FEW_USES * stays else {}


def _is_least_digit(term: str, subscript: Expr, extent: int) -> bool:
    """Whether a subscript is a term, perhaps one of a chunk, from 0 on."""
    form = linear(subscript)
    others = {} if form is None else {name: factor for name, factor in form[0].items() if name != term}
    apart = all(isinstance(factor, int) and factor >= extent for factor in others.values())
    return form is not None and form[0].get(term) == 1 and form[1] == 0 and apart


def convert_operands(a: Assignment, temporaries: Temporaries, copied: Orders) -> tuple[list[Assignment], Assignment]:
    """Copies of the tensors that are ``copied``, those of narrower types in the type of the reduction, and the assignment that reads
    them."""
    copies: list[Assignment] = []
    copy_of: dict[str, str] = {}
    wide, narrow, exact = a.value.dtype, _narrow_types(a), [*_exact_tensors(a), *_predicates(a)]
    for tensor in dict.fromkeys(access.tensor for access in a.reads):
        if tensor not in copied:
            continue
        storage, order = temporaries.tensors[tensor], copied[tensor]
        converts = storage.dtype in narrow or tensor in exact
        taken = set(temporaries.tensors)
        indices = tuple(Index(fresh(f"axis{axis}", taken), dtype="int64") for axis in range(len(storage.shape)))
        read = Access(tensor, indices, dtype=storage.dtype)
        name = f"{tensor}_{wide if converts else 'dense' if order == _own_order(storage) else 'transposed'}"
        value: Expr = Cast(read, dtype=wide) if converts else read
        copies.append(temporaries.copy(a, name, value, [(indices[axis], storage.shape[axis], None) for axis in order]))
        copy_of[tensor] = copies[-1].tensor
    return copies, replace(a, value=_converted(a.value, copy_of, copied, wide, narrow)) if narrow or exact or copied else a


def _narrow_types(a: Assignment) -> tuple[str, ...]:
    """The types that the assignment's loads can convert to its own; a dot product has words."""
    return () if any(map(is_dot_product, walk(a.value))) else NARROW.get(a.value.dtype, ())


def _narrow_tensors(a: Assignment, tensors: Mapping[str, Storage]) -> list[str]:
    tensors_read = dict.fromkeys(access.tensor for access in a.reads)
    return [name for name in tensors_read if tensors[name].dtype in _narrow_types(a)]


def _exact_tensors(a: Assignment) -> list[str]:
    """The tensors of other types that floats of the reduction's type hold exactly, all of whose elements are cast to it."""
    floats = a.value.dtype in ("float32", "float64") and not any(map(is_dot_product, walk(a.value)))
    casts = [part.operand for part in walk(a.value) if _is_exact(part, a.value.dtype)] if floats else []
    cast, read = (Counter(access.tensor for access in some if isinstance(access, Access)) for some in (casts, a.reads))
    return [tensor for tensor in cast if cast[tensor] == read[tensor]]


def _predicates(a: Assignment) -> list[str]:
    """The tensors of truth values that are conditions of numbers of other types."""
    if a.value.dtype not in ("float32", "float64", "int32"):
        return []
    cast = {part.operand for part in walk(a.value) if isinstance(part, Cast)}
    return list(dict.fromkeys(access.tensor for access in a.reads if access.dtype == "bool" and access not in cast))


def _is_exact(expr: Expr, wide: str) -> TypeGuard[Cast]:
    """Whether an expression is an element in a floating type that holds it, computed as ``wide``, where no load converts it."""
    if not isinstance(expr, Cast) or not isinstance(expr.operand, Access) or expr.operand.dtype in NARROW.get(wide, ()):
        return False
    types = (wide, *(ROUNDED if wide == "float32" else ()))
    return expr.dtype in types and expr.operand.dtype != expr.dtype and holds(expr.dtype, expr.operand.dtype)


def _converted(expr: Expr, copy_of: Mapping[str, str], orders: Orders, wide: str, narrow: Collection[str]) -> Expr:
    """An expression in the wide type, exactly what one of a narrow type gives before it is rounded."""
    if isinstance(expr, Cast) and expr.dtype == wide and expr.operand.dtype in narrow:
        number = isinstance(expr.operand, Access)
        return (_number if number else _converted)(expr.operand, copy_of, orders, wide, narrow)
    if _is_exact(expr, wide):
        read = _converted(expr.operand, copy_of, orders, wide, narrow)
        copied = isinstance(read, Access) and read.tensor in copy_of.values()
        return replace(read, dtype=wide) if copied else Cast(read, dtype=wide)
    if isinstance(expr, Access):
        read = _number(expr, copy_of, orders, wide, narrow)
        truth = expr.dtype == "bool" != read.dtype and wide != "uint8"  # of bytes it is one
        zero = Const(0.0 if DTYPES[wide].kind == "float" else 0, dtype=wide)
        return Binary("!=", read, zero, dtype="bool") if truth else read
    made = rebuild(expr, lambda part: _converted(part, copy_of, orders, wide, narrow))
    if made.dtype in narrow and made.dtype != "bool" and wide == "int32" and not isinstance(made, Const):
        raise MappingError(f"sums in {made.dtype} wrap")
    return replace(made, dtype=wide) if made.dtype in narrow and made.dtype != "bool" else made  # a comparison stays one


def _number(access: Expr, copy_of: Mapping[str, str], orders: Orders, wide: str, narrow: Collection[str]) -> Expr:
    """An element in the wide type: that of a copy, or converted where it is loaded; or as it is, where it is neither."""
    assert isinstance(access, Access)
    if access.tensor not in copy_of:
        return Cast(access, dtype=wide) if access.dtype in narrow else access
    subscripts = tuple(access.subscripts[axis] for axis in orders[access.tensor])
    dtype = wide if access.dtype in narrow or access.dtype == "bool" else access.dtype
    return replace(access, tensor=copy_of[access.tensor], subscripts=subscripts, dtype=dtype)
