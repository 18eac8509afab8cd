"""Atomic updates of elements in global memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tcjit.codegen.dialect import FLOATS, INTEGERS
from tcjit.codegen.loops import Run
from tcjit.grammar.ast import Expr, Select
from tcjit.mapping.equality import is_neutral
from tcjit.mapping.reduction import conjuncts

if TYPE_CHECKING:
    from tcjit.codegen.gpu_emitter import GpuEmitter


def write(emitter: GpuEmitter, run: Run) -> None:
    """Write the update of a statement, where its term is not one that leaves the element as it is."""
    s = emitter.mapped.scop.statement(run.statement)
    emitter.written[s.tensor] = None
    emitter.run_now = run
    conditions: list[str] = []
    value: Expr = s.value
    while isinstance(value, Select) and is_neutral(value.other, s.operator):
        conditions += [str(emitter.printer.value(each)) for each in conjuncts(value.condition)]
        value = value.then
    dtype = s.value.dtype
    short = INTEGERS[dtype][1] if dtype in INTEGERS else FLOATS[dtype][1]
    helper = emitter.printer.helper(f"tc_atomic_{'add' if s.operator == '+=' else s.operator[:3]}_{short}")
    with emitter.when([f"({each})" for each in conditions]):
        emitter.write(f"{helper}(&{emitter.place(s.tensor, s.subscripts)}, {emitter.printer.value(value)});", stores=True)
