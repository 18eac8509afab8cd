"""A reduction across threads: below ``reduce``, runs of neighbouring threads combine one value each, in a fixed tree.

Threads of a warp exchange values by shuffles, warps through a scratch array; without shuffles all goes through the array. Every thread of
the block takes part, idle ones with the operator's identity, for all must reach the barriers. The first thread of a run has the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tcjit.codegen.expression import vtype
from tcjit.codegen.gpu_emitter import GpuEmitter
from tcjit.codegen.loops import Compare, For, If, MarkNode, Node, Run, runs, substitute
from tcjit.errors import MappingError
from tcjit.mapping.marks import Threads
from tcjit.mapping.scop import ScopStatement

VALUE = "tc_value"


def write(emitter: GpuEmitter, mark: MarkNode) -> None:
    """What stands below a ``reduce`` mark: an update whose last digit of the thread's number runs along the reduction."""
    below = mark.body[0]
    on_threads = below.mark if isinstance(below, MarkNode) and len(mark.body) == 1 else None
    if not isinstance(below, MarkNode) or not isinstance(on_threads, Threads) or len(runs(below.body)) != 1:
        raise MappingError("below a mark `reduce` there is no single update on threads")
    s = emitter.mapped.scop.statement(runs(below.body)[0].statement)
    sizes = on_threads.radices
    dtype, count = s.value.dtype, sizes[-1]
    with emitter.indented("{"):
        emitter.write(f"{vtype(dtype, emitter.dialect)} {VALUE} = {emitter.printer.identity(s.operator, dtype)};")
        emitter.instead = lambda run: _take(emitter, run, s)
        emitter.region(sizes, below.body)
        if emitter.shuffles:
            _through_warps(emitter, s, count, prod(sizes))
        elif count > 1:
            _through_memory(emitter, s, count, prod(sizes))
        emitter.instead = lambda run: _give(emitter, run, s)
        emitter.region(sizes, _first(below.body, len(sizes)), leaders=True)
        emitter.instead = None


def _take(emitter: GpuEmitter, run: Run, s: ScopStatement) -> None:
    emitter.write(f"{VALUE} = {emitter.value(s.value, run)};")


def _give(emitter: GpuEmitter, run: Run, s: ScopStatement) -> None:
    """The result into its element."""
    dtype = emitter.mapped.scop.tensor(s.tensor).dtype
    emitter.run_now = run
    target = emitter.place(s.tensor, s.subscripts)
    emitter.written[s.tensor] = None
    combined = emitter.printer.combine(s.operator, s.value.dtype, emitter.printer.load(dtype, target), VALUE)
    emitter.write(emitter.printer.store(dtype, target, combined), stores=True)


def _first(nodes: Sequence[Node], digits: int) -> tuple[Node, ...]:
    """The loops of the first thread of each run: without the last digit's, whose variable has its least value."""
    node = nodes[0]
    if isinstance(node, If) and not node.other:
        return (If(node.condition, _first(node.then, digits)),)
    if len(nodes) != 1 or not isinstance(node, For):
        raise MappingError("a region below `reduce` is more than loops of threads and guards around one statement")
    if digits > 1:
        return (replace(node, body=_first(node.body, digits - 1)),)
    inner = tuple(substitute(n, {node.variable: node.lower}) for n in node.body)
    return inner if node.lower == node.upper else (If(Compare(node.lower, "<=", node.upper), inner),)


def _step(emitter: GpuEmitter, s: ScopStatement, left: str, right: str) -> str:
    return f"{left} = {emitter.printer.combine(s.operator, s.value.dtype, left, right)};"


def _through_warps(emitter: GpuEmitter, s: ScopStatement, count: int, working: int) -> None:
    dtype, warp = s.value.dtype, emitter.device.warp
    _shuffles(emitter, s, min(count, warp))
    if count <= warp:
        return
    thread = emitter.thread
    warps = count // warp
    scratch = _scratch(emitter, dtype, -(-emitter.threads // warp))
    with emitter.when([f"{thread} % {warp} == 0"]):
        emitter.write(f"{scratch}[{thread} / {warp}] = {VALUE};", stores=True)
    emitter.barrier("block")
    text = f"{scratch}[{thread} / {count} * {warps} + {thread} % {warps}]"
    if condition := emitter.first(working):
        text = f"{condition} ? {text} : {emitter.printer.identity(s.operator, dtype)}"
    emitter.write(f"{VALUE} = {text};")
    _shuffles(emitter, s, warps)


def _scratch(emitter: GpuEmitter, dtype: str, elements: int) -> str:
    """The scratch array for a reduction, which nobody still reads: the first one in a kernel finds it so, unless a loop comes back."""
    known = set(emitter.scratch)
    name = emitter.scratch_array(dtype, elements)
    if name in known or emitter.loops:
        emitter.barrier("block")
    return name


def _shuffles(emitter: GpuEmitter, s: ScopStatement, lanes: int) -> None:
    while lanes > 1:
        lanes //= 2
        emitter.write(_step(emitter, s, VALUE, emitter.printer.shuffled(s.value.dtype, VALUE, lanes, emitter.warp_mask())))


def _through_memory(emitter: GpuEmitter, s: ScopStatement, count: int, working: int) -> None:
    thread = emitter.thread
    scratch = _scratch(emitter, s.value.dtype, emitter.threads)
    emitter.write(f"{scratch}[{thread}] = {VALUE};", stores=True)
    emitter.barrier("block")
    conditions = [condition] if (condition := emitter.first(working)) else []
    with emitter.indented(f"for (int tc_lanes = {count // 2}; tc_lanes > 0; tc_lanes /= 2) {{"):
        with emitter.when([*conditions, f"{thread} % {count} < tc_lanes"]):
            emitter.write(_step(emitter, s, f"{scratch}[{thread}]", f"{scratch}[{thread} + tc_lanes]"), stores=True)
        emitter.barrier("block")
    emitter.write(f"{VALUE} = {scratch}[{thread}];")
