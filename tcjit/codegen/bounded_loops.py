"""Loops of a reduction between bounds that data give its index (see ``data_bounds``), evaluated where the loop begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tcjit.codegen.loops import For, Run, runs, tile_runs, walk
from tcjit.codegen.reads import ReadEmitter
from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access
from tcjit.grammar.linear import Linear
from tcjit.grammar.walk import walk as walk_expr
from tcjit.mapping.data_bounds import DataBound, data_bounds, without


@contextmanager
def bounded(emitter: ReadEmitter, loop: For) -> Iterator[For]:
    """The loop around the only statement below it between the bounds that data give, and the statement without their conditions."""
    below = runs(loop.body)
    run = below[0] if len(below) == 1 and not tile_runs(loop.body) else None
    found = find_bounds(emitter, loop, run) if run is not None else []
    if run is None or not found:
        yield loop
        return
    s = emitter.mapped.scop.statement(run.statement)
    ((_, offset),) = _along(loop, run)
    ends = {False: emitter.index(loop.lower), True: emitter.index(loop.upper)}
    for bound in found:
        text = str(emitter.value(bound.value, run))
        shifted = text if offset == Linear.of(0) else f"{text} - ({emitter.index(offset)})"
        end = emitter.printer.combine("min=" if bound.is_upper else "max=", "int64", ends[bound.is_upper], shifted)
        ends[bound.is_upper] = str(end)
    least, greatest = (f"tc_{end}_{loop.variable}" for end in ("least", "greatest"))
    with emitter.indented("{"):
        emitter.write(f"const int64_t {least} = {ends[False]}, {greatest} = {ends[True]};")
        with emitter.valued(run, without(s.value, s.operator, found)):
            yield replace(loop, lower=Linear.of(least), upper=Linear.of(greatest))


def find_bounds(emitter: ReadEmitter, loop: For, run: Run) -> list[DataBound]:
    """The bounds that data which do not change in a loop give it."""
    scop = emitter.mapped.scop
    s, along = scop.statement(run.statement), _along(loop, run)
    if s.operator == "=" or loop.step != 1 or len(along) != 1:
        return []
    changing = {loop.variable, *(node.variable for node in walk(loop.body) if isinstance(node, For))}
    ((dim, offset),) = along
    inner = [name for name, value in run.indices if changing & value.variables]
    if changing & offset.variables:
        return []
    guarded = list(guarded_accesses(s.value))

    def is_there(bound: DataBound) -> bool:
        read = [part for part in walk_expr(bound.condition) if isinstance(part, Access)]
        own = [(access, guards) for access, guards in guarded if any(access is part for part in read)]
        return all(access.tensor != s.tensor and emitter.exists(access, guards, s) for access, guards in own)

    found = data_bounds(s.value, s.operator, dim, s.bounds, scop.values, inner)
    return [bound for bound in found if is_there(bound)]


def _along(loop: For, run: Run) -> list[tuple[str, Linear]]:
    """The indices of a statement that a loop counts, and what they are besides its variable; nothing where one takes other steps."""
    moving = [(dim, value) for dim, value in run.indices if loop.variable in value.variables]
    shifted = [(dim, value - Linear.of(loop.variable)) for dim, value in moving]
    return shifted if all(loop.variable not in rest.variables for _, rest in shifted) else []
