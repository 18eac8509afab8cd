"""Convert operands: what a reduction reads again and again is copied once into contiguous tensors of its own type.

Half types are computed in float32 wherever they are read, narrow integers where they are cast to int32: a vector of them would be
converted for every use. Of a tensor whose strides only a call knows, no form is linear before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import prod

from tcjit.errors import MappingError
from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access, Binary, Cast, Const, Expr, Index, Select
from tcjit.grammar.walk import rebuild, walk
from tcjit.mapping.assignment import Assignment, Temporaries
from tcjit.mapping.nest.vector_forms import is_dot_product
from tcjit.mapping.storage import fresh

HALVES = ("float16", "bfloat16")
NARROW = {"float32": HALVES, "int32": ("int8", "uint8", "int16")}
WORTH_CONVERTING = 8  # uses of an element in the mean


def convert_operands(a: Assignment, temporaries: Temporaries) -> tuple[list[Assignment], Assignment]:
    """Copies of the tensors that a reduction reads in narrower types, in its own, or with strides of the call, and the assignment that
    reads the copies; a MappingError where one is not worth it."""
    copies, names = [], {}
    wide = a.value.dtype
    narrow = () if any(map(is_dot_product, walk(a.value))) else NARROW.get(wide, ())
    for tensor in dict.fromkeys(access.tensor for access, _ in guarded_accesses(a.value)):
        storage = temporaries.tensors[tensor]
        converts = storage.dtype in narrow
        if not converts and None not in storage.strides:
            continue
        if not converts and _is_plain_product(a):
            raise MappingError(f"{tensor} has strides of the call")  # loops copy just what their vectors cannot read
        if prod(upper - lower for _, lower, upper in a.bounds) < WORTH_CONVERTING * storage.elements:
            raise MappingError(f"{tensor} is {f'converted to {wide}' if converts else 'copied'} as often as it is read")
        taken = set(temporaries.tensors)
        indices = tuple(Index(fresh(f"axis{axis}", taken), dtype="int64") for axis in range(len(storage.shape)))
        read = Access(tensor, indices, dtype=storage.dtype)
        copy = temporaries.add(a.source, f"{tensor}_{wide if converts else 'dense'}", wide if converts else storage.dtype, storage.shape)
        value: Expr = Cast(read, dtype=wide) if converts else read
        bounds = tuple((index.name, 0, extent) for index, extent in zip(indices, storage.shape, strict=True))
        copies.append(Assignment(copy.name, indices, "=", value, bounds, a.source))
        names[tensor] = copy.name
    return copies, replace(a, value=_converted(a.value, names, wide, narrow)) if names else a


def _is_plain_product(a: Assignment) -> bool:
    """Whether a sum of products has no conditions."""
    is_product = a.operator == "+=" and isinstance(a.value, Binary) and a.value.op == "*"
    return is_product and not any(isinstance(part, Select) for part in walk(a.value))


def _converted(expr: Expr, names: Mapping[str, str], wide: str, narrow: Collection[str]) -> Expr:
    """An expression in the wide type, exactly what one of a narrow type gives before it is rounded."""
    if isinstance(expr, Cast) and expr.dtype == wide and expr.operand.dtype in narrow:
        return _converted(expr.operand, names, wide, narrow)
    if isinstance(expr, Access):
        dtype = wide if expr.dtype in narrow else expr.dtype
        return replace(expr, tensor=names[expr.tensor], dtype=dtype) if expr.tensor in names else expr
    made = rebuild(expr, lambda part: _converted(part, names, wide, narrow))
    if made.dtype in narrow and wide == "int32" and not isinstance(made, Const):
        raise MappingError(f"sums in {made.dtype} wrap")
    return replace(made, dtype=wide) if made.dtype in narrow else made
