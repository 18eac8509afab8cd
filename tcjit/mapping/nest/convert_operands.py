"""Convert operands: tensors of half precision that a reduction reads again and again are converted to its own type once.

Half types are computed in float32 wherever they are read; a vector of them would be converted for every use.
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
    """Copies in float32 of the half-precision tensors that a float32 reduction reads, and the assignment that reads them."""
    halves = dict.fromkeys(access.tensor for access, _ in guarded_accesses(a.value) if access.dtype in HALVES)
    if a.value.dtype != "float32" or not halves:
        return [], a
    copies, names = [], {}
    for tensor in halves:
        storage = temporaries.tensors[tensor]
        if prod(upper - lower for _, lower, upper in a.bounds) < WORTH_CONVERTING * storage.elements:
            raise MappingError(f"{tensor} is converted to float32 as often as it is read")
        taken = set(temporaries.tensors)
        indices = tuple(Index(fresh(f"axis{axis}", taken), dtype="int64") for axis in range(len(storage.shape)))
        copy = temporaries.add(a.source, f"{tensor}_float", "float32", storage.shape)
        value = Cast(Access(tensor, indices, dtype=storage.dtype), dtype="float32")
        bounds = tuple((index.name, 0, extent) for index, extent in zip(indices, storage.shape, strict=True))
        copies.append(Assignment(copy.name, indices, "=", value, bounds, a.source))
        names[tensor] = copy.name
    return copies, replace(a, value=_converted(a.value, names))


def _converted(expr: Expr, names: dict[str, str]) -> Expr:
    """An expression in float32, exactly what one of a half type gives before it is rounded."""
    if isinstance(expr, Cast) and expr.dtype == "float32" and expr.operand.dtype in HALVES:
        return _converted(expr.operand, names)
    if isinstance(expr, Access):
        return replace(expr, tensor=names[expr.tensor], dtype="float32") if expr.tensor in names else expr
    made = rebuild(expr, lambda part: _converted(part, names))
    return replace(made, dtype="float32") if made.dtype in HALVES else made
