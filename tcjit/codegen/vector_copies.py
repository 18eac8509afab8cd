"""Copies of words in vectors: bytes of four rows interleaved, and elements of 1 to 8 bytes transposed, several rows of a vector at once.

A C compiler widens bytes step by step, and moves what it transposes element by element. The last vector begins where it ends with the row:
what two of them copy is the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import reduce

from tcjit.codegen.address import Address
from tcjit.codegen.copy_functions import BYTES, LANES, WORD
from tcjit.codegen.emitter import Emitter
from tcjit.codegen.loops import For, Run, SimdLoop, substitute
from tcjit.codegen.memory import linear_subscript
from tcjit.dataclass import dataclass
from tcjit.grammar.affine import conjuncts
from tcjit.grammar.ast import Access, Binary, Call, Const, Expr, Select
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear
from tcjit.mapping.nest.vector_forms import ADJACENT, FLIP_SIGNS, PACK
from tcjit.mapping.plan_loops import PLACE

MASKED = 32  # bytes of vectors that processors load and store under masks, at least
MOVED = ("int64", "float64", "int32", "float32", "int16", "float16", "bfloat16", "int8", "uint8", "bool")  # types of what is copied
FEW = 64  # words of a row that is copied in whole vectors under masks: loops of a C compiler end in single ones
SIDES = {">=": (True, 0), ">": (True, 1), "<=": (False, 0), "<": (False, 1)}  # whether the left is the greater, and by how much at least
SIGNS = -0x7F7F7F80  # the highest bits of four bytes


@dataclass(frozen=True)
class _Copy:
    """Elements of ``size`` bytes from ``source`` to ``target``, which moves by one with the lanes; ``step``: bytes from one row of the
    source to the next, as C has them; ``lanes``: elements that are written at once. Where one of ``inside`` is negative, it is 0 that is
    written."""

    target: Address
    source: Address
    step: str
    signs: int
    size: int = WORD
    inside: tuple[Linear, ...] = ()
    lanes: int = LANES


def write_interleaved(emitter: Emitter, loop: For) -> bool:
    """Write a loop over lanes that packs the bytes of four rows; False, and nothing written, where it is none of that kind."""
    copy = _interleaved(emitter, loop)
    if copy is None:
        return False
    assert loop.trips is not None
    few = loop.trips < copy.lanes
    with nullcontext({loop.variable: loop.lower}) if few else _lanes(emitter, loop, copy.lanes) as at:
        places = f"&{copy.target.substitute(at).written(emitter.index)}, &{copy.source.substitute(at).written(emitter.index)}"
        function, columns = ("tc_interleave_few", f", {loop.trips}") if few else ("tc_interleave", "")
        emitter.write(f"{function}({places}, {copy.step}, {copy.signs}{columns});", stores=True)
    return True


def write_transposed(emitter: Emitter, rows: For) -> bool:
    """Write a loop over neighbours in memory around one over lanes that are apart, whose words are transposed where there is at least a
    vector of them, and of those that are inside, with zeros before and behind these; False, and nothing written, where it is none of that
    kind."""
    lanes = _inner(rows)
    if lanes is None:
        return False
    with emitter.ranged(rows, lanes):  # which tell that an element of a small buffer is where it is
        copy = _transposed(emitter, rows, lanes)
    if copy is None:
        return _write_packed(emitter, rows, lanes)
    with emitter.indented("{") if copy.inside else nullcontext():
        tests, whole = _write_ends(emitter, lanes, copy.inside) if copy.inside else [], lanes
        if copy.inside:
            whole = replace(lanes, lower=Linear.of("tc_inner_first"), upper=Linear.of("tc_inner_last"))
        if whole.trips is None:
            tests.append(f"{emitter.index(whole.upper)} - {emitter.index(whole.lower)} >= {copy.lanes - 1}")
        with emitter.when(tests):
            _write_rows(emitter, rows, whole, copy)
            for lower, upper in ((lanes.lower, whole.lower - 1), (whole.upper + 1, lanes.upper)) if copy.inside else ():
                zeros = replace(lanes, lower=lower, upper=upper)
                with emitter.looped(rows, zeros):
                    emitter.write(f"{copy.target.written(emitter.index)} = 0;", stores=True)
        if tests:
            with emitter.indented("else {"):
                Emitter.loop(emitter, rows)
    return True


def _write_packed(emitter: Emitter, words: For, lanes: For) -> bool:
    """Write a loop over neighbouring words, of the bytes of four rows each, around one over columns that lie apart in the result: bytes are
    transposed, sixteen rows of sixteen columns at once; False, and nothing written, where it is none of that kind."""
    if words.trips is None or words.trips % (LANES // WORD) or words.variable in (lanes.lower.variables | lanes.upper.variables):
        return False
    copy = _interleaved(emitter, lanes, along=words.variable)
    to_step = copy and copy.target.stride(lanes.variable)
    if copy is None or not to_step or copy.signs or copy.source.stride(words.variable) != WORD * int(copy.step):
        return False
    with emitter.ranged(words), emitter.iterated(replace(words, step=LANES // WORD)), _lanes(emitter, lanes, LANES) as at:
        places = f"&{copy.target.substitute(at).written(emitter.index)}", f"&{copy.source.substitute(at).written(emitter.index)}"
        emitter.write(f"tc_transpose_1({places[0]}, {WORD * to_step}, {places[1]}, {copy.step});", stores=True)
    return True


def _write_ends(emitter: Emitter, lanes: For, inside: tuple[Linear, ...]) -> list[str]:
    """The first and the last lane that are inside; what must hold for all of them is returned."""
    variable, first, last = lanes.variable, [emitter.index(lanes.lower)], [emitter.index(lanes.upper)]
    tests = []
    for value in inside:
        step, rest = value.coefficient(variable), value.substitute({variable: Linear.of(0)})
        if not step:
            tests.append(f"{emitter.index(value)} >= 0")
        elif step > 0:
            first.append(emitter.index(rest.times(-1)))
        else:
            last.append(emitter.index(rest))
    least, greatest = emitter.printer.helper("tc_max_index"), emitter.printer.helper("tc_min_index")
    emitter.line(f"const int64_t tc_inner_first = {reduce(lambda a, b: f'{least}({a}, {b})', first)};")
    emitter.line(f"const int64_t tc_inner_last = {reduce(lambda a, b: f'{greatest}({a}, {b})', last)};")
    return tests


def write_padded(emitter: Emitter, loop: For) -> bool:
    """Write a loop over few lanes that copies those that are inside and writes zeros for others; False, and nothing written, where it is
    none of that kind."""
    found = _run(emitter, loop) if loop.trips is not None and loop.trips <= FEW else None
    if found is None:
        return False
    run, target, value, _ = found
    if not isinstance(value, Select) or not isinstance(read := value.then, Access):
        return False
    inside = _padded(emitter, run, value, loop, loop)
    if not inside or _bytes(emitter, read) != WORD or read.dtype != value.dtype:
        return False
    source = emitter.operand(read, run)
    if source is None or source.base == target.base or source.stride(loop.variable) != 1:
        return False
    at = {loop.variable: loop.lower}
    places = f"&{target.substitute(at).written(emitter.index)}, &{source.substitute(at).written(emitter.index)}"
    with emitter.indented("{"):
        tests = _write_ends(emitter, loop, inside)
        lower = emitter.index(loop.lower)
        last = f"tc_inner_last - ({lower})"
        last = f"{' && '.join(tests)} ? {last} : -1" if tests else last
        emitter.write(f"tc_copy_padded({places}, tc_inner_first - ({lower}), {last}, {loop.trips});", stores=True)
    return True


def _write_rows(emitter: Emitter, rows: For, lanes: For, copy: _Copy) -> None:
    """A loop over rows around one over at least a vector of lanes, so many rows at once as are copied together, what is left one by one."""
    to_step, together = copy.size * (copy.target.stride(rows.variable) or 0), PLACE // copy.size
    whole = rows.trips is not None and rows.trips % together == 0

    def transpose(at: Mapping[str, Linear]) -> None:
        places = copy.target.substitute(at).written(emitter.index), copy.source.substitute(at).written(emitter.index)
        lanes_and_signs = {1: [], 2: [copy.signs], WORD: [copy.lanes, copy.signs], 2 * WORD: [copy.lanes]}[copy.size]
        args = ", ".join(map(str, (f"&{places[0]}", to_step, f"&{places[1]}", copy.step, *lanes_and_signs)))
        emitter.write(f"tc_transpose_{copy.size}({args});", stores=True)

    if whole:  # all rows of a few lanes: lines of the source are done with before others are read, which may meet them in a cache's sets
        with _lanes(emitter, lanes, copy.lanes) as at, emitter.ranged(rows), emitter.iterated(replace(rows, step=together)):
            transpose(at)
        return
    with emitter.ranged(rows), emitter.iterated(replace(rows, step=together)):
        tests = [f"{rows.variable} <= {emitter.index(rows.upper - (together - 1))}"]
        with emitter.when(tests), _lanes(emitter, lanes, copy.lanes) as at:
            transpose(at)
        row = For(f"{rows.variable}_row", Linear.of(rows.variable), rows.upper, 1, ())
        single = substitute(lanes, {rows.variable: Linear.of(row.variable)})
        with emitter.indented("else {"), emitter.looped(row):
            emitter.node(SimdLoop(single))


def _inner(rows: For) -> For | None:
    """The only loop inside another."""
    inner = rows.body[0] if len(rows.body) == 1 else None
    if isinstance(inner, SimdLoop):
        return inner.loop if inner.reduction is None else None
    return inner if isinstance(inner, For) else None


@contextmanager
def _lanes(emitter: Emitter, loop: For, count: int) -> Iterator[Mapping[str, Linear]]:
    """A loop over vectors, the last of which ends with the loop; gives what the variable is."""
    emitter.profile.vector = True
    at = {loop.variable: Linear.of("tc_at")} if loop.trips is None or loop.trips % count else {}
    with emitter.ranged(loop), emitter.iterated(replace(loop, step=count)):
        if at:
            last = emitter.index(loop.upper - (count - 1))
            emitter.write(f"const int64_t tc_at = {loop.variable} < {last} ? {loop.variable} : {last};")
        yield at


def _run(emitter: Emitter, loop: For, along: str = "") -> tuple[Run, Address, Expr, int] | None:
    """The copy that a loop over words or halves is all of: its instance, place, value, and the signs that are flipped. Results are
    neighbours ``along`` the loop, or another one."""
    if loop.step != 1 or len(loop.body) != 1:
        return None
    (run,) = loop.body
    if not isinstance(run, Run):
        return None
    s = emitter.mapped.scop.statement(run.statement)
    target, dtype = emitter.target(s, run), emitter.mapped.scop.tensor(s.tensor).dtype
    if s.operator != "=" or dtype not in MOVED or target is None or target.stride(along or loop.variable) != 1:
        return None
    if isinstance(s.value, Call) and s.value.function == FLIP_SIGNS:
        return run, target, s.value.args[0], SIGNS
    return run, target, s.value, 0


def _interleaved(emitter: Emitter, loop: For, along: str = "") -> _Copy | None:
    found = _run(emitter, loop, along) if loop.trips is not None and loop.trips >= (LANES if along else WORD) else None
    if found is None or found[1].runtime:
        return None
    run, target, value, signs = found
    if not isinstance(value, Call) or value.function != PACK or len(value.args) != WORD:
        return None
    reads = [arg for arg in value.args if isinstance(arg, Access)]
    if emitter.dialect.any_byte and any(read.dtype == "bool" for read in reads):
        return None  # bytes that are true may be any but 0
    rows = [emitter.operand(read, run) for read in reads if _bytes(emitter, read) == 1]
    known = [row for row in rows if row is not None and not row.runtime]
    if len(known) < WORD or known[0].stride(loop.variable) != 1 or any(row.base != known[0].base for row in known):
        return None
    steps = [row.fixed - known[0].fixed for row in known]
    if any(step != steps[1].times(number) or not step.is_constant for number, step in enumerate(steps)):
        return None
    return _Copy(target, known[0], str(steps[1].constant), signs)


def _transposed(emitter: Emitter, rows: For, lanes: For) -> _Copy | None:
    found = _run(emitter, lanes)
    if found is None or rows.step != 1:
        return None
    if rows.variable in (lanes.lower.variables | lanes.upper.variables):
        return None
    run, target, value, signs = found
    dtype = emitter.mapped.scop.tensor(emitter.mapped.scop.statement(run.statement).tensor).dtype
    moved = DTYPES[dtype].bytes
    inside: tuple[Linear, ...] | None = ()
    if isinstance(value, Select) and not signs:
        inside, value = _padded(emitter, run, value, rows, lanes), value.then
    read = value.args[0] if isinstance(value, Call) and value.function == ADJACENT else value
    if inside is None or (inside and read is not value):
        return None
    if not isinstance(read, Access) or not target.stride(rows.variable) or (rows.trips is not None and rows.trips < PLACE // moved):
        return None
    if read is value and emitter.mapped.scop.tensor(read.tensor).dtype != dtype:
        return None
    source = emitter.operand(read, run)
    if source is None or source.base == target.base:
        return None
    size, apart = _bytes(emitter, read), source.stride(lanes.variable)
    if source.stride(rows.variable) != moved // size or apart in (0, moved // size):
        return None
    whole = min(LANES, BYTES // moved)
    together = whole if lanes.trips is None else min(whole, lanes.trips)
    if together < whole and (moved < WORD or together < PLACE // WORD or inside):
        return None
    known = source.step(lanes.variable)
    if not known:
        return None
    step = f"{size} * ({known})" if apart is None else str(size * apart)
    return _Copy(target, source, step, signs, moved, inside, together)


def _padded(emitter: Emitter, run: Run, value: Select, rows: For, lanes: For) -> tuple[Linear, ...] | None:
    """What is negative where a choice is 0 and no element, from limits that do not differ between rows; None where it is no such choice."""
    zero = isinstance(value.other, Const) and value.other.value == 0 and math.copysign(1, value.other.value) > 0
    inside = []
    for limit, holds in conjuncts(value.condition, True) if zero else ():
        if not holds or not isinstance(limit, Binary) or limit.op not in SIDES:
            return None
        left, right = (linear_subscript(side, run, emitter.mapped.scop.values) for side in (limit.left, limit.right))
        if left is None or right is None:
            return None
        greater, strict = SIDES[limit.op]
        found = (left - right if greater else right - left) - strict
        alone = found.substitute({lanes.variable: Linear.of(0)})
        if found.coefficient(lanes.variable) not in (-1, 0, 1) or {rows.variable, lanes.variable} & alone.variables:
            return None
        inside.append(found)
    return tuple(inside) or None


def _bytes(emitter: Emitter, read: Access) -> int:
    return DTYPES[emitter.mapped.scop.tensor(read.tensor).dtype].bytes
