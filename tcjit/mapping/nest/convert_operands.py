"""Convert operands: what a reduction reads again and again is copied once into contiguous tensors of its own type.

Half types are computed in float32 wherever they are read: a vector of them would be converted for every use. Of a tensor whose strides only
a call knows, no form is linear before.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tcjit.errors import MappingError
from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access, Cast, Expr, Index
from tcjit.grammar.walk import rebuild
from tcjit.mapping.assignment import Assignment, Temporaries
from tcjit.mapping.storage import fresh

HALVES = ("float16", "bfloat16")
WORTH_CONVERTING = 8  # uses of an element in the mean


def convert_operands(a: Assignment, temporaries: Temporaries) -> tuple[list[Assignment], Assignment]:
    """Copies of the tensors that a reduction reads in half precision, in float32, or with strides of the call, and the assignment that
    reads the copies; a MappingError where one is not worth it."""
    copies, names = [], {}
    for tensor in dict.fromkeys(access.tensor for access, _ in guarded_accesses(a.value)):
        storage = temporaries.tensors[tensor]
        half = storage.dtype in HALVES and a.value.dtype == "float32"
        if not half and None not in storage.strides:
            continue
        if prod(upper - lower for _, lower, upper in a.bounds) < WORTH_CONVERTING * storage.elements:
            raise MappingError(f"{tensor} is {'converted to float32' if half else 'copied'} as often as it is read")
        taken = set(temporaries.tensors)
        indices = tuple(Index(fresh(f"axis{axis}", taken), dtype="int64") for axis in range(len(storage.shape)))
        read = Access(tensor, indices, dtype=storage.dtype)
        copy = temporaries.add(a.source, f"{tensor}_{'float' if half else 'dense'}", "float32" if half else storage.dtype, storage.shape)
        value: Expr = Cast(read, dtype="float32") if half else read
        bounds = tuple((index.name, 0, extent) for index, extent in zip(indices, storage.shape, strict=True))
        copies.append(Assignment(copy.name, indices, "=", value, bounds, a.source))
        names[tensor] = copy.name
    return copies, replace(a, value=_converted(a.value, names)) if names else a


def _converted(expr: Expr, names: dict[str, str]) -> Expr:
    """An expression in float32, exactly what one of a half type gives before it is rounded."""
    if isinstance(expr, Cast) and expr.dtype == "float32" and expr.operand.dtype in HALVES:
        return _converted(expr.operand, names)
    if isinstance(expr, Access):
        dtype = "float32" if expr.dtype in HALVES else expr.dtype
        return replace(expr, tensor=names[expr.tensor], dtype=dtype) if expr.tensor in names else expr
    made = rebuild(expr, lambda part: _converted(part, names))
    return replace(made, dtype="float32") if made.dtype in HALVES else made
