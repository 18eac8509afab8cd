"""Quotients of many values of a thread by one divisor: its reciprocal once, and a corrected product for each (Markstein 1990).

The quotients are those of IEEE division, bit for bit. A thread remembers whether a value was not in the range in which that is so, and
divides all of its values then, in a second copy of the loops that hardly ever runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from tcjit.codegen import prelude
from tcjit.codegen.expression import vtype
from tcjit.codegen.gpu_emitter import GpuEmitter
from tcjit.codegen.loops import For, If, MarkNode, Node, Run, runs
from tcjit.codegen.loops import walk as all_below
from tcjit.grammar.ast import Access, Binary, Expr, Select
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import children as operands
from tcjit.grammar.walk import walk
from tcjit.mapping.marks import Unroll, Vector
from tcjit.mapping.operations import is_power_of_two
from tcjit.mapping.scop import ScopStatement

ENOUGH = 4  # quotients of a thread that are worth a second copy of their loops


def write(emitter: GpuEmitter, nodes: tuple[Node, ...]) -> bool:
    """Write the loops of one thread so; False, and nothing written, where they are not many quotients by divisors of their own."""
    found = runs(nodes)
    if len(found) != 1 or not prelude.known("tc_quotient_f32", emitter.dialect):
        return False
    (run,) = found
    s = emitter.mapped.scop.statement(run.statement)
    loops = [node for node in all_below(nodes) if isinstance(node, For)]
    moving = {loop.variable for loop in loops}
    if s.operator != "=" or prod(ENOUGH if loop.trips is None else loop.trips for loop in loops) < ENOUGH or not _about(nodes, moving):
        return False
    divisions = [each for each in _divisions(s.value) if _invariant(emitter, each.right, run, s, moving)]
    dividends = [access for each in divisions for access in walk(each.left) if isinstance(access, Access)]
    registers = all(_in_registers(emitter, access.tensor) for access in dividends)
    if not divisions or not (registers or all(access.tensor != s.tensor for access, _ in s.reads)):
        return False  # a second run would not find what the first one has read
    printer = emitter.printer
    with emitter.indented("{"):
        emitter.run_now = run
        divisors: dict[Expr, tuple[str, str]] = {}
        for each in divisions:
            if each.right not in divisors:
                divisor, reciprocal = divisors[each.right] = f"tc_d{len(divisors)}", f"tc_r{len(divisors)}"
                emitter.write(f"const float {divisor} = {printer.value(each.right)};")
                emitter.write(f"const float {reciprocal} = 1.0f / {divisor};")
        emitter.write("uint32_t tc_low = 0xffffffffu;")
        emitter.write("float tc_high = 0.0f;")

        def as_calls(helper: str, reciprocals: bool, *more: str) -> None:
            for each in divisions:
                divisor, reciprocal = divisors[each.right]
                printer.quotients[id(each)] = helper, (divisor, *([reciprocal] * reciprocals), *more)

        def check(at: Run) -> None:
            for each in divisions:
                emitter.write(f"{printer.helper('tc_range_f32')}({emitter.value(each.left, at)}, &tc_low, &tc_high);")

        def decide() -> None:
            plain = " && ".join(f"{printer.helper('tc_divides_f32')}({divisor}, tc_low, tc_high)" for divisor, _ in divisors.values())
            emitter.write(f"const bool tc_plain = {plain};")

        if registers:  # all are looked at first
            emitter.instead = check
            emitter.block(nodes)
            emitter.instead = None
            decide()
            as_calls("tc_quotient_f32", True)
            with emitter.when(["tc_plain"]):
                emitter.block(nodes)
        else:  # what is read once is divided once, and again where that was wrong
            as_calls("tc_checked_quotient_f32", True, "&tc_low", "&tc_high")
            emitter.block(nodes)
            decide()
        as_calls("tc_divided_f32", False)
        with emitter.when(["!tc_plain"]):
            emitter.block(nodes)
        printer.quotients = {}
    return True


def _in_registers(emitter: GpuEmitter, tensor: str) -> bool:
    buffer = emitter.memory.private(tensor, emitter.marks)
    return buffer is not None and buffer.space == "thread"


def _about(nodes: Sequence[Node], moving: set[str]) -> bool:
    """Whether conditions are about loops alone, for others may say that there is no divisor, and nothing waits for other threads."""
    every = list(all_below(nodes))
    marks = all(isinstance(node.mark, Unroll | Vector) for node in every if isinstance(node, MarkNode))
    return marks and not any(moving.isdisjoint(node.condition.variables) for node in every if isinstance(node, If))


def _divisions(value: Expr) -> Iterator[Binary]:
    """Those of floats of 32 bits or fewer that are evaluated in any case."""
    if isinstance(value, Binary) and value.op == "/" and vtype(value.dtype) == "float":
        yield value
    chooses = isinstance(value, Select) or (isinstance(value, Binary) and value.op in ("&&", "||"))
    for each in operands(value)[: 1 if chooses else None]:
        yield from _divisions(each)


def _invariant(emitter: GpuEmitter, divisor: Expr, run: Run, s: ScopStatement, moving: set[str]) -> bool:
    """Whether a divisor is the same in all loops, and no power of two, by which compilers multiply."""
    if is_power_of_two(divisor):
        return False
    reads = [part for part in walk(divisor) if isinstance(part, Access)]
    integers = any(isinstance(part, Binary) and part.op in "/%" and vtype(part.dtype) not in ("float", "double") for part in walk(divisor))
    still = all(moving.isdisjoint(run.index(name).variables) for name in names(divisor))
    return still and not integers and not any(emitter.gathers(access, run) for access in reads)
