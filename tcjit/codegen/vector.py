"""Neighbours that a thread reads or writes at once, below a ``vector`` mark.

All reads come first and all writes last, through small arrays that become registers: nothing that might touch the same memory stands in
between. Where the address is aligned, a language with vector types moves 16 bytes at once; NVRTC does not find these by itself
everywhere, whatever it is told of alignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tcjit.codegen import async_copy
from tcjit.codegen.expression import ctype
from tcjit.codegen.gpu_emitter import GpuEmitter
from tcjit.codegen.inequalities import comparison, facts
from tcjit.codegen.loops import Condition, For, If, MarkNode, Run
from tcjit.codegen.unroll import constant_trips
from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear, simplified

BOUNDARY = 16  # bytes, the most that one access moves


def write(emitter: GpuEmitter, mark: MarkNode) -> bool:
    """Write the loop below a mark as accesses of neighbours; False, and nothing written, where it does not have that form."""
    if emitter.instead is not None:
        return False
    loop = mark.body[0]
    found = constant_trips(loop, emitter.ranges) if len(mark.body) == 1 and isinstance(loop, For) else None
    if found is None:
        return False
    loop, guards = found
    conditions, inner = list[Condition](guards), loop.body
    while len(inner) == 1 and isinstance(inner[0], If) and not inner[0].other:
        conditions.append(inner[0].condition)
        inner = inner[0].then
    together = _together(loop, conditions)
    whole = _for_all(loop, conditions) if together is None else together
    if whole is None or len(inner) != 1 or not isinstance(inner[0], Run) or (loop.trips or 0) < 2 or loop.lower != Linear.of(0):
        return False
    run = inner[0]
    with emitter.ranged(loop):
        s = emitter.mapped.scop.statement(run.statement)
        loads = [access for access, inside in guarded_accesses(s.value) if not inside and _address(emitter, access, run, loop) is not None]
        stores = _address(emitter, s.element, run, loop) is not None
        moved = [*loads, *([s.element] if stores else [])]
        wide = any(_width(emitter, loop, access, _address(emitter, access, run, loop)) > 1 for access in moved)
    if not moved or not (wide or together is not None):
        return False
    texts = emitter.tests(*whole)
    with emitter.when(texts) if texts else emitter.indented("{"), emitter.ranged(loop):
        _neighbours(emitter, loop, run, loads, stores)
    if together is None and texts:
        with emitter.indented("else {"):
            emitter.block(mark.body)
    return True


def _together(loop: For, conditions: Sequence[Condition]) -> list[Condition] | None:
    """What decides for all iterations at once whether they run; None where they may differ."""
    count = loop.trips or 1
    found: list[Condition] = []
    for condition in conditions:
        needed = facts(condition)
        if needed is None:
            return None
        for fact in needed:
            factor = fact.coefficient(loop.variable)
            if factor not in (-1, 0, 1):
                return None
            rest = fact - Linear.of(loop.variable).times(factor)
            multiples = [rest.constant + 1 if factor == -1 else rest.constant, *(number for _, number in rest.terms)]
            if factor and any(number % count for number in multiples):
                return None
            found.append(comparison(rest))
    return found


def _for_all(loop: For, conditions: Sequence[Condition]) -> list[Condition] | None:
    """What holds where all iterations run, and only there; None where that is no conjunction of inequalities."""
    found: list[Condition] = []
    for needed in map(facts, conditions):
        if needed is None:
            return None
        for fact in needed:
            factor = fact.coefficient(loop.variable)
            if factor is None:
                return None
            least = 0 if factor >= 0 else factor * ((loop.trips or 1) - 1)
            found.append(comparison(fact - Linear.of(loop.variable).times(factor) + least))
    return found


def _neighbours(emitter: GpuEmitter, loop: For, run: Run, loads: Sequence[Access], stores: bool) -> None:
    s = emitter.mapped.scop.statement(run.statement)
    if source := async_copy.copied(emitter, s):
        places = (_address(emitter, source, run, loop), _address(emitter, s.element, run, loop))
        if async_copy.write_neighbours(emitter, loop, run, places):
            return
    names: dict[str, str] = {}
    emitter.run_now = run
    for access in loads:
        text = _place(emitter, access, run)
        if text not in names:
            names[text] = f"tc_x{len(names)}"
            _array(emitter, loop, access.tensor, names[text])
            _move(emitter, loop, run, access, names[text], write=False)
        emitter.loaded[id(access)] = f"{names[text]}[{loop.variable}]"
    emitter.run_now = run
    dtype, target, value = emitter.assignment(run)
    if not stores:
        _element_loop(emitter, loop, emitter.printer.store(dtype, target, value))
    else:
        name = next((name for name in names.values() if value == f"{name}[{loop.variable}]"), "")
        if not name:
            name = "tc_y"
            _array(emitter, loop, s.tensor, name)
            _element_loop(emitter, loop, emitter.printer.store(dtype, f"{name}[{loop.variable}]", value))
        _move(emitter, loop, run, s.element, name, write=True)
    emitter.loaded = {}


def _address(emitter: GpuEmitter, access: Access, run: Run, loop: For) -> Linear | None:
    """The place of the first neighbour in memory, where the others follow it; None for a thread's own registers."""
    private = emitter.memory.private(access.tensor, emitter.marks)
    if not emitter.memory.exists(access.tensor, emitter.marks) or (private is not None and private.space == "thread"):
        return None
    address = emitter.operand(access, run)
    if address is None and (gathered := emitter.gathered(access, run)) is not None:  # a row that data pick, if its number is in the address
        known = all(name in gathered.address.variables for name, _ in gathered.subscripts)
        address = gathered.address if known and not gathered.depends(run, loop.variable) else None
    if address is None or any(part.coefficient(loop.variable) != 0 for _, part in address.runtime):
        return None
    fixed = simplified(address.fixed, emitter.ranges)
    return fixed - Linear.of(loop.variable) if fixed.coefficient(loop.variable) == 1 else None


def _place(emitter: GpuEmitter, access: Access, run: Run) -> str:
    gathers = emitter.gathers(access, run)
    return emitter.gathered_place(access, gathers) if gathers else emitter.place(access.tensor, access.subscripts)


def _width(emitter: GpuEmitter, loop: For, access: Access, first: Linear | None) -> int:
    """How many neighbours one instruction moves, the first at a place."""
    storage, count = emitter.mapped.scop.tensor(access.tensor), loop.trips or 1
    together = min(count, BOUNDARY // DTYPES[storage.dtype].bytes)
    known = (ctype(storage.dtype, emitter.dialect), together) in emitter.gpu.vectors
    return together if known and count % together == 0 and async_copy.aligned(emitter, access.tensor, first, together) else 1


def _move(emitter: GpuEmitter, loop: For, run: Run, access: Access, name: str, *, write: bool) -> None:
    """Neighbours from memory into an array, or back."""
    together = _width(emitter, loop, access, _address(emitter, access, run, loop))
    if together == 1:
        text = _place(emitter, access, run)
        _element_loop(emitter, loop, f"{text} = {name}[{loop.variable}];" if write else f"{name}[{loop.variable}] = {text};")
        return
    emitter.aligned[access.tensor] = None
    kind = ctype(emitter.mapped.scop.tensor(access.tensor).dtype, emitter.dialect)
    vector = emitter.gpu.vectors[kind, together]
    for start in range(0, loop.trips or 1, together):
        emitter.run_now = replace(run, indices=tuple((d, e.substitute({loop.variable: Linear.of(start)})) for d, e in run.indices))
        text = _place(emitter, access, emitter.run_now)
        own = f"*({vector} *)&{name}[{start}]"
        if write:
            emitter.write(emitter.gpu.store.format(vector=vector, count=together, place=text, value=own), stores=True)
        else:
            emitter.write(f"{own} = {emitter.gpu.load.format(vector=vector, count=together, place=text)};", stores=True)
    emitter.run_now = run


def _array(emitter: GpuEmitter, loop: For, tensor: str, name: str) -> None:
    kind = ctype(emitter.mapped.scop.tensor(tensor).dtype, emitter.dialect)
    emitter.array(f"{emitter.gpu.aligned.format(bytes=BOUNDARY)} {kind} {name}", loop.trips or 1)


def _element_loop(emitter: GpuEmitter, loop: For, line: str) -> None:
    scaled = emitter.scaled  # in the line, which is there already
    emitter.pragma()
    with emitter.iterated(loop):
        emitter.scaled = scaled
        emitter.write(line, stores=True)
