"""Products on tensor cores: below ``mma``, the threads of a warp compute 16 by 8 results of 16 terms in one instruction.

The tree says which thread has which result; that is how the instruction deals them out. What it reads, the warp loads from shared memory
together, 8 rows of 16 bytes at a time, each thread naming the row whose number it has. Guards are left out: rows and columns beyond the
edge are computed of whatever lies there, and nobody stores them. The plan (``mapping/gpu/candidates``) offers only what has this form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from tcjit.codegen.address import Address
from tcjit.codegen.gpu_emitter import GpuEmitter
from tcjit.codegen.loops import For, MarkNode, Run
from tcjit.codegen.unroll import constant_trips
from tcjit.dataclass import dataclass
from tcjit.errors import MappingError
from tcjit.grammar.ast import Access, Binary, Cast
from tcjit.grammar.linear import Linear, simplified
from tcjit.mapping.marks import Threads

TERMS = 16  # of one instruction
ROW = 8  # elements of 16 bits that it loads at once, on a boundary of as many
LANES = ("tc_row", "tc_half", "tc_side")  # of a thread in its warp: number % 8, number / 8 % 2, number / 16


@dataclass(frozen=True)
class _Product:
    """A region taken apart: the loops of its digits and of one thread (terms, rows, columns, neighbours), and its operands."""

    digits: tuple[For, ...]
    terms: For
    rows: For
    columns: For
    neighbours: For
    target: Address
    left: Address
    right: Address
    dtype: str


def write(emitter: GpuEmitter, mark: MarkNode) -> None:
    """Write what stands below a mark ``Mma``. A MappingError where it does not have the form of the instruction."""
    below = mark.body[0]
    sizes = below.mark.radices if isinstance(below, MarkNode) and isinstance(below.mark, Threads) else ()
    kept = emitter.ranges
    found = _taken_apart(emitter, below, sizes) if isinstance(below, MarkNode) and sizes[-2:] == (8, 4) else None
    if found is None:
        raise MappingError("a product was mapped to tensor cores and does not have their form", hint="Options(shared=False)")
    condition = emitter.first(prod(sizes))
    with emitter.when([condition]) if condition else emitter.indented("{"):
        _product(emitter, found, sizes)
    emitter.ranges = kept


def _taken_apart(emitter: GpuEmitter, region: MarkNode, sizes: tuple[int, ...]) -> _Product | None:
    """The parts of a region, whose ranges the emitter then knows."""
    loops: list[For] = []
    nodes = region.body
    while len(nodes) == 1 and isinstance(node := nodes[0], For | MarkNode):
        if isinstance(node, For):
            last = sizes[len(loops)] - 1 if len(loops) < len(sizes) else 0
            if len(loops) >= len(sizes):
                whole = constant_trips(node, emitter.ranges)
                if whole is None or whole[0].lower != Linear.of(0):
                    return None
                node = whole[0]
                last = (node.trips or 1) - 1
            emitter.ranges = {**emitter.ranges, node.variable: (0, last)}
            loops.append(node)
        nodes = node.body
    inner = loops[len(sizes) :]
    if len(nodes) != 1 or not isinstance(nodes[0], Run) or len(inner) < 2:
        return None
    run = nodes[0]
    s = emitter.mapped.scop.statement(run.statement)
    product = s.value.operand if isinstance(s.value, Cast) else s.value
    if not isinstance(product, Binary) or not isinstance(product.left, Access) or not isinstance(product.right, Access):
        return None
    emitter.marks = (*emitter.marks, region.mark)
    found = [emitter.operand(access, run) for access in (s.element, product.left, product.right)]
    emitter.marks = emitter.marks[:-1]
    buffers = [emitter.memory.private(access.tensor, emitter.marks) for access in (s.element, product.left, product.right)]
    places = [replace(a, fixed=simplified(a.fixed, emitter.ranges)) for a in found if a is not None]
    if len(places) < 3 or [buffer and buffer.space for buffer in buffers] != ["thread", "shared", "shared"]:
        return None
    target, left, right = places
    terms, neighbours = inner[0], inner[-1]
    down = loops[len(sizes) - 2].variable
    if left.stride(down) == 0:
        left, right = right, left
    rows, columns = (
        [one for one in inner[1:-1] if target.stride(one.variable) and side.stride(one.variable) and (one.trips or 1) % 2 == 0]
        for side in (left, right)
    )
    apart = _rows_apart(left, terms.variable, down) and _rows_apart(right, terms.variable, neighbours.variable)
    if (terms.trips or 0) % TERMS or neighbours.trips != 2 or not apart or [len(rows), len(columns), len(inner)] != [1, 1, 4]:
        return None
    return _Product(tuple(loops[: len(sizes)]), terms, rows[0], columns[0], neighbours, target, left, right, product.dtype)


def _rows_apart(operand: Address, one: str, other: str) -> bool:
    """Whether neighbours along one of two loops lie side by side, and rows of them where the instruction can load them."""
    steps = (operand.stride(one), operand.stride(other))
    return any(near == 1 and far is not None and far % ROW == 0 for near, far in (steps, steps[::-1]))


def _product(emitter: GpuEmitter, found: _Product, sizes: tuple[int, ...]) -> None:
    for loop, digit in list(zip(found.digits, emitter.digits(sizes), strict=True))[:-2]:
        emitter.declare_digit(loop, digit)
    for name, text in zip(LANES, ("% 8", "/ 8 % 2", "/ 16 % 2"), strict=True):
        emitter.write(f"const int {name} = {emitter.thread} {text};")
    down, across = (loop.variable for loop in found.digits[-2:])
    steps, atoms_down, atoms_across = (found.terms.trips or 0) // TERMS, (found.rows.trips or 0) // 2, found.columns.trips or 0
    counts = {**dict(zip(LANES, (8, 2, 2), strict=True)), "tc_k": steps, "tc_m": atoms_down, "tc_n": atoms_across}
    emitter.ranges = {**emitter.ranges, **{name: (0, count - 1) for name, count in counts.items()}}
    row, half, side, k, m, n = map(Linear.of, counts)
    first = k.times(TERMS)
    zero = Linear.of(0)
    if found.left.stride(found.terms.variable) == 1:
        turned_left = ""
        left = {down: row, found.rows.variable: m.times(2) + half, found.terms.variable: first + side.times(8)}
    else:  # rows of memory are terms: transposed while loading
        turned_left = "_trans"
        left = {down: zero, found.rows.variable: m.times(2) + half, found.terms.variable: first + row + side.times(8)}
    left |= {across: zero, found.columns.variable: zero, found.neighbours.variable: zero}
    if found.right.stride(found.terms.variable) == 1:
        turned_right = ""
        right = {found.terms.variable: first + half.times(8), across: zero, found.neighbours.variable: row}
    else:
        turned_right = "_trans"
        right = {found.terms.variable: first + row + half.times(8), across: zero, found.neighbours.variable: zero}
    right |= {found.columns.variable: n + side, down: zero, found.rows.variable: zero}

    def load(address: Address, values: Mapping[str, Linear]) -> str:
        return address.substitute(values).written(emitter.index)

    def result(rows: Linear) -> str:
        values = {found.rows.variable: rows, found.columns.variable: n, found.neighbours.variable: zero, down: zero, across: zero}
        return load(found.target, values)

    def counted_loop(name: str, count: int, step: int = 1) -> str:
        emitter.pragma()
        return f"for (int {name} = 0; {name} < {count}; {name} += {step}) {{"

    loads = [emitter.printer.helper(f"tc_ldmatrix{turned}") for turned in (turned_left, turned_right)]
    multiply = emitter.printer.helper(f"tc_mma_{'half' if found.dtype == 'float16' else 'bfloat'}")
    with emitter.indented(counted_loop("tc_k", steps)):
        emitter.write(f"uint32_t tc_left[{atoms_down}][4];")
        emitter.write(f"uint32_t tc_right[{atoms_across}][2];")
        with emitter.indented(counted_loop("tc_m", atoms_down)):
            emitter.write(f"{loads[0]}(tc_left[tc_m], &{load(found.left, left)});")
        with emitter.indented(counted_loop("tc_n", atoms_across, 2)):
            emitter.write(f"{loads[1]}(tc_right[tc_n], &{load(found.right, right)});")
        with emitter.indented(counted_loop("tc_m", atoms_down)), emitter.indented(counted_loop("tc_n", atoms_across)):
            pair = f"&{result(m.times(2))}, &{result(m.times(2) + 1)}"
            emitter.write(f"{multiply}({pair}, tc_left[tc_m], tc_right[tc_n]);")
