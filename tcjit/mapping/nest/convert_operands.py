"""Convert operands: read narrower types as the type of a reduction, from copies in it or converted where they are loaded.

Half types are computed in float32 wherever they are read, narrow integers where they are cast to int32.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from math import prod

from tcjit.errors import MappingError
from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access, Cast, Const, Expr, Index
from tcjit.grammar.walk import rebuild, walk
from tcjit.mapping.assignment import Assignment, Temporaries
from tcjit.mapping.nest.vector_forms import NARROW, is_dot_product
from tcjit.mapping.storage import Storage, fresh

MOST_COPIED = 3  # tensors of which every choice is compared


def conversions(a: Assignment, tensors: Mapping[str, Storage]) -> Iterator[tuple[str, ...]]:
    """The choices of tensors of narrower types to copy: those whose elements are used again, or some of them, or none."""
    points = prod(upper - lower for _, lower, upper in a.bounds)
    narrow = [tensor for tensor in _narrow_tensors(a, tensors) if not any(tensors[tensor].dynamic_extents)]
    again = [tensor for tensor in narrow if points > tensors[tensor].elements]
    if len(again) > MOST_COPIED:
        yield from (tuple(again), ())
        return
    for count in range(len(again), -1, -1):
        yield from combinations(again, count)


def convert_operands(a: Assignment, temporaries: Temporaries, copied: Collection[str]) -> tuple[list[Assignment], Assignment]:
    """Copies of the tensors in narrower types that are ``copied``, in the type of the reduction, and the assignment that reads them."""
    copies, names = [], {}
    wide, narrow = a.value.dtype, _narrow_types(a)
    for tensor in dict.fromkeys(access.tensor for access, _ in guarded_accesses(a.value)):
        storage = temporaries.tensors[tensor]
        converts = storage.dtype in narrow
        if tensor not in copied:
            continue
        taken = set(temporaries.tensors)
        indices = tuple(Index(fresh(f"axis{axis}", taken), dtype="int64") for axis in range(len(storage.shape)))
        read = Access(tensor, indices, dtype=storage.dtype)
        copy = temporaries.add(a.source, f"{tensor}_{wide if converts else 'dense'}", wide if converts else storage.dtype, storage.shape)
        value: Expr = Cast(read, dtype=wide) if converts else read
        bounds = tuple((index.name, 0, extent) for index, extent in zip(indices, storage.shape, strict=True))
        copies.append(Assignment(copy.name, indices, "=", value, bounds, a.source))
        names[tensor] = copy.name
    return copies, replace(a, value=_converted(a.value, names, wide, narrow)) if narrow or names else a


def _narrow_types(a: Assignment) -> tuple[str, ...]:
    """The types that the assignment's loads can convert to its own; a dot product has words."""
    return () if any(map(is_dot_product, walk(a.value))) else NARROW.get(a.value.dtype, ())


def _narrow_tensors(a: Assignment, tensors: Mapping[str, Storage]) -> list[str]:
    names = dict.fromkeys(access.tensor for access, _ in guarded_accesses(a.value))
    return [name for name in names if tensors[name].dtype in _narrow_types(a)]


def _converted(expr: Expr, names: Mapping[str, str], wide: str, narrow: Collection[str]) -> Expr:
    """An expression in the wide type, exactly what one of a narrow type gives before it is rounded."""
    if isinstance(expr, Cast) and expr.dtype == wide and expr.operand.dtype in narrow:
        return _converted(expr.operand, names, wide, narrow)
    if isinstance(expr, Access):
        dtype = wide if expr.dtype in narrow else expr.dtype
        if expr.tensor in names:
            return replace(expr, tensor=names[expr.tensor], dtype=dtype)
        return Cast(expr, dtype=dtype) if dtype != expr.dtype else expr
    made = rebuild(expr, lambda part: _converted(part, names, wide, narrow))
    if made.dtype in narrow and wide == "int32" and not isinstance(made, Const):
        raise MappingError(f"sums in {made.dtype} wrap")
    return replace(made, dtype=wide) if made.dtype in narrow else made
