"""Atomic updates of elements in global memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tcjit.codegen.dialect import FLOATS, INTEGERS
from tcjit.codegen.expression import vtype
from tcjit.codegen.loops import Node, Run, runs
from tcjit.grammar.ast import Const, Expr, Select
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.equality import is_neutral
from tcjit.mapping.reduction import conjuncts, identity

if TYPE_CHECKING:
    from tcjit.codegen.gpu_emitter import GpuEmitter


def write(emitter: GpuEmitter, run: Run) -> None:
    """Write the update of a statement by its term."""
    with _term(emitter, run) as value:
        _update(emitter, run, value)


def write_sum(emitter: GpuEmitter, nodes: tuple[Node, ...]) -> None:
    """Write the update of a statement by the sum, or the extremum, of its terms in loops."""
    run = runs(nodes)[0]
    s = emitter.mapped.scop.statement(run.statement)
    # -0.0 leaves any other term as it is, and any result where there is no term
    start = Const(-0.0, dtype=s.value.dtype) if DTYPES[s.value.dtype].kind == "float" and s.operator == "+=" else None

    def add(at: Run) -> None:
        with _term(emitter, at) as value:
            emitter.write(f"tc_sum = {emitter.printer.combine(s.operator, s.value.dtype, 'tc_sum', value)};")

    with emitter.indented("{"):
        first = emitter.printer.value(start or identity(s.operator, s.value.dtype))
        emitter.write(f"{vtype(s.value.dtype, emitter.dialect)} tc_sum = {first};")
        emitter.instead = add
        emitter.block(nodes)
        emitter.instead = None
        _update(emitter, run, "tc_sum")


@contextmanager
def _term(emitter: GpuEmitter, run: Run) -> Iterator[str]:
    """The text of a term, where it is not one that leaves every result as it is."""
    s = emitter.mapped.scop.statement(run.statement)
    emitter.run_now = run
    conditions: list[str] = []
    value: Expr = s.value
    while isinstance(value, Select) and is_neutral(value.other, s.operator):
        conditions += [f"({emitter.printer.value(each)})" for each in conjuncts(value.condition)]
        value = value.then
    with emitter.when(conditions):
        yield str(emitter.printer.value(value))


def _update(emitter: GpuEmitter, run: Run, value: str) -> None:
    s = emitter.mapped.scop.statement(run.statement)
    emitter.written[s.tensor] = None
    emitter.run_now = run
    dtype = s.value.dtype
    short = INTEGERS[dtype][1] if dtype in INTEGERS else FLOATS[dtype][1]
    helper = emitter.printer.helper(f"tc_atomic_{'add' if s.operator == '+=' else s.operator[:3]}_{short}")
    emitter.write(f"{helper}(&{emitter.place(s.tensor, s.subscripts)}, {value});", stores=True)
