"""Blocks and threads: what stands below the marks of a GPU mapping, as the code that every thread runs.

Block and thread loops disappear: their variables are digits of the block's or thread's number, and a guard stands where a loop's bounds
are narrower than its digit. Below ``unroll`` all loops run over constants, so that the indices of a thread's arrays are constants too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from math import prod
from typing import NamedTuple

from tcjit.codegen import async_copy, integers, mma, reduce, vector
from tcjit.codegen.dialect import GpuDialect
from tcjit.codegen.emitter import Emitter, parenthesised
from tcjit.codegen.expression import ctype, vtype
from tcjit.codegen.inequalities import comparison, facts, split
from tcjit.codegen.integers import Ranges, limits, simplified
from tcjit.codegen.isolate import separate
from tcjit.codegen.linear import Linear, combine
from tcjit.codegen.loops import Compare, Condition, For, If, Mark, Node, Run, children, marks_below, runs, substitute
from tcjit.codegen.profile import scaled
from tcjit.codegen.scope import Gathers
from tcjit.codegen.text import atomic, prefixed
from tcjit.codegen.unroll import constant_trips, full_trips
from tcjit.errors import MappingError
from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Expr
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.machine import Device
from tcjit.mapping.marks import AsyncCopy, Block, Grid, Mma, Reduce, Sync, Threads, Unroll, Vector, WaitGroup
from tcjit.mapping.pipeline import Mapped
from tcjit.mapping.scop import ScopStatement

THREAD = "tc_thread"  # the variable that holds the number of the thread
UNROLLED_BYTES = 128  # of the values of iterations that are written out, and may be under way at once, where nothing is kept in arrays


class Digit(NamedTuple):
    """A digit of ``number``, which is a variable: its text and its radix."""

    text: str
    radix: int
    number: str


class GridEmitter(Emitter):
    """Writes the body of one kernel after another."""

    def __init__(self, mapped: Mapped, dialect: GpuDialect, device: Device, checked: bool) -> None:
        super().__init__(mapped, dialect, checked)
        self.gpu = dialect
        self.device = device
        self.shuffles = dialect.shuffles and "shuffle" in device.capabilities
        self.begin(1)

    def begin(self, threads: int) -> None:
        """A new kernel."""
        self.threads = threads
        self.lines = []
        self.mentioned = set()
        self.depth = 1
        self.grid = (1, 1, 1)
        self.fewer: list[tuple[str, Expr]] = []  # axes along which dynamic sizes say how many blocks there are
        self.unrolling = False
        self.loops = 0  # around what is being written, those of threads and blocks aside
        self.early = False  # copies may arrive later
        self.written: dict[str, None] = {}  # tensors that the kernel writes
        self.aligned: dict[str, None] = {}  # and those whose elements it reads or writes several at once
        self.scratch: dict[str, tuple[str, int, int]] = {}  # arrays for reductions: type, elements, bytes of one
        self.loaded: dict[int, str] = {}  # by id of an Access: its element, read before
        self.instead: Callable[[Run], None] | None = None  # what takes the place of a statement

    # ------------------------------------------------------------ integers

    def plain(self, value: Linear) -> Linear:
        return simplified(value, self.ranges)

    def index(self, value: Linear) -> str:
        plain = self.plain(value)
        self.scaled += scaled(plain)
        self.mentioned |= plain.variables
        return integers.text(plain, self.ranges, self.printer.helper)

    def index_value(self, value: Linear) -> str:
        plain = simplified(value, self.ranges)
        text = parenthesised(plain, self.index(plain))
        return text if plain.is_constant or not integers.fits(plain, self.ranges) else f"(int64_t){text}"

    def counter(self, node: For) -> str:
        found = self.ranges.get(node.variable)
        return "int" if found is not None and found[0] >= -integers.GREATEST and found[1] + node.step <= integers.GREATEST else "int64_t"

    # ------------------------------------------------------------ marks

    def mark(self, node: Mark) -> None:
        mark = node.mark
        if isinstance(mark, Grid):
            self.blocks(node)
        elif isinstance(mark, Sync):
            self.barrier(mark.scope)
            self.block(node.body)
        elif isinstance(mark, Reduce):
            reduce.write(self, node)
        elif isinstance(mark, AsyncCopy):
            self.early = "async_copy" in self.device.capabilities
            self.block(node.body)
            self.early = False
        elif isinstance(mark, WaitGroup):
            if "async_copy" in self.device.capabilities:
                self.write(f"{self.printer.helper(f'tc_arrived_{mark.number}')}();")
            self.block(node.body)
        elif isinstance(mark, Mma):
            mma.write(self, node)
        elif isinstance(mark, Threads):
            self.region(mark.radices, node.body)
        elif isinstance(mark, Unroll | Vector):
            kept, self.unrolling = self.unrolling, True
            if isinstance(mark, Unroll) or not vector.write(self, node):
                self.block(node.body)
            self.unrolling = kept
        else:
            self.buffers(node)

    def barrier(self, scope: str) -> None:
        if scope == "warp" and "warp_barrier" in self.device.capabilities:
            self.write(self.gpu.barriers["warp"].format(mask=self.warp_mask()))
        else:
            self.profile.count("waits")
            self.line(self.gpu.barriers["block"])

    @property
    def thread(self) -> str:
        """The variable that holds the number of the thread, to be named in a text."""
        self.mentioned.add(THREAD)
        return THREAD

    def warp_mask(self) -> str:
        """A bit for each lane that the thread's warp has: all of them, but in the last warp of a block that does not fill it."""
        warp = self.device.warp
        full, rest = divmod(self.threads, warp)
        whole, part = f"0x{(1 << warp) - 1:x}u", f"0x{(1 << rest) - 1:x}u"
        if not rest:
            return whole
        return f"({self.thread} < {full * warp} ? {whole} : {part})" if full else part

    def buffers(self, node: Mark) -> None:
        """A mark below which every thread may have arrays of its own; everything that is known here, all threads of the block share."""
        for private in self.memory.below(node.mark):
            if private.space == "thread":
                kind = ctype(self.mapped.scop.tensor(private.tensor).dtype, self.dialect)
                self.array(f"{kind} {self.memory.private_name(private)}", private.elements)
        body = node.body
        if isinstance(node.mark, Block) and any(self.sums_products(run) for run in _unrolled(body)):
            body = separate(body, frozenset(self.ranges), self.ranges)
        self.block(body)

    def sums_products(self, run: Run) -> bool:
        """Whether a statement is the heart of a contraction: then a second copy of its kernel without guards is worth its size."""
        s = self.mapped.scop.statement(run.statement)
        value: Expr = s.value
        while isinstance(value, Cast):
            value = value.operand
        return s.operator == "+=" and isinstance(value, Binary) and value.op == "*"

    # ------------------------------------------------------------ blocks and threads

    def blocks(self, node: Mark) -> None:
        """Block loops along x, y and z, the last one along x; in turns where the device does not have as many blocks."""
        counts = block_counts(node.body, self.ranges)
        x, y, z = ([1, 1, *counts][-1], [1, 1, *counts][-2], counts[:-2])
        most = self.device.max_grid
        if x <= most[0] and y <= most[1] and prod(z) <= most[2]:
            self.grid = (x, y, prod(z))
            self.fewer = self.open_counts(node.body, counts)
            inner = [Digit(self.gpu.blocks[axis], count, "") for axis, count in reversed(list(enumerate(counts[:-3:-1])))]
            self.bind(node.body, digits(self.gpu.blocks[2], z) + inner, self.block)
            return
        total = prod(counts)
        self.grid = (min(total, most[0]), 1, 1)
        if total <= most[0]:
            self.bind(node.body, digits(self.gpu.blocks[0], counts), self.block)
            return
        kind = "int" if total + most[0] <= integers.GREATEST else "int64_t"
        with self.indented(f"for ({kind} tc_block = {self.gpu.blocks[0]}; tc_block < {total}; tc_block += {most[0]}) {{"):
            self.bind(node.body, digits("tc_block", counts), self.block)
            if self.scratch or self.shares(node.body):
                self.barrier("block")  # before the next turn writes what this one still reads

    def shares(self, nodes: tuple[Node, ...]) -> bool:
        """Whether the threads of a block share a buffer below one of the marks of these nodes."""
        below = marks_below(nodes)
        return any(buffer.space == "shared" and buffer.mark in below for buffer in self.memory.privates.values())

    def open_counts(self, nodes: tuple[Node, ...], counts: Sequence[int]) -> list[tuple[str, Expr]]:
        """The blocks along x, y and z where a loop's end depends on dynamic sizes alone; along z the outermost loop's, times the others."""
        sizes = {d.name for d in self.mapped.scop.program.dynamic}
        found: list[tuple[str, Expr]] = []
        for depth in range(len(counts)):
            if len(nodes) != 1 or not isinstance(nodes[0], For):
                break
            axis = len(counts) - 1 - depth
            if nodes[0].upper.variables and nodes[0].upper.variables <= sizes and (axis < 2 or depth == 0):
                others = prod(counts[1:-2]) if axis >= 2 else 1
                count = nodes[0].upper.expression()
                whole = Binary("*", Binary("+", count, number(1), dtype="int64"), number(others), dtype="int64")
                found.append(("xyz"[min(axis, 2)], Call("max", (number(1), whole), dtype="int64")))
            nodes = nodes[0].body
        return found

    def digits(self, sizes: Sequence[int]) -> list[Digit]:
        """The digits of the thread's number."""
        return digits(THREAD, sizes)

    def first(self, count: int) -> str:
        """The condition that a thread is one of the first so many; empty where all are."""
        return f"{self.thread} < {count}" if count < self.threads else ""

    def region(self, sizes: Sequence[int], nodes: tuple[Node, ...], *, leaders: bool = False) -> None:
        """What the threads of a block run, each with its digits; ``leaders`` are those with 0 as the last, which has no loop then."""
        places = self.digits(sizes)
        conditions = [condition] if (condition := self.first(prod(sizes))) else []
        if leaders and sizes[-1] > 1:
            self.mentioned.add(places[-1].number)
            conditions.append(f"{places[-1].text} == 0")
        with self.when(conditions) if conditions else self.indented("{"):
            self.bind(nodes, places[:-1] if leaders else places, self.block)

    def scratch_array(self, dtype: str, elements: int) -> str:
        """The name of a shared array for reductions across the block, with room for so many values."""
        kind = self.dialect.stored_boolean if dtype == "bool" else vtype(dtype, self.dialect)
        size = max(DTYPES[dtype].bytes, 4 if DTYPES[dtype].kind == "float" else 1)
        name = f"tc_scratch_{kind}"
        self.scratch[name] = (kind, max(elements, self.scratch[name][1] if name in self.scratch else 0), size)
        return name

    def bind(self, nodes: tuple[Node, ...], places: list[Digit], write: Callable[[tuple[Node, ...]], None]) -> None:
        """The nodes with the outer loops' variables set to digits, in guards; ``write`` gets what stands inside."""
        if not places:
            write(nodes)
            return
        for node in nodes:
            if isinstance(node, If):
                texts = self.tests(node.condition)
                with self.when(texts):
                    self.bind(node.then, places, write)
                if node.other and texts:
                    with self.indented("else {"):
                        self.bind(node.other, places, write)
            elif not isinstance(node, For):
                raise MappingError(f"no loop of the mapped tree takes {places[0].text}: its band is not directly below its mark")
            elif len(nodes) == 1:
                self.digit(node, places, write)
            else:
                with self.indented("{"):
                    self.digit(node, places, write)

    def digit(self, node: For, places: list[Digit], write: Callable[[tuple[Node, ...]], None]) -> None:
        digit, rest = places[0], places[1:]
        kept = self.ranges
        lower, upper = limits(node.lower, kept) or (0, 0), limits(node.upper, kept) or (0, digit.radix - 1)
        with self.captured() as body, self.mentions() as mentioned:
            self.ranges = {**kept, node.variable: (0, digit.radix - 1)}
            texts = self.tests(*_guards(node))
            least = max(0, lower[0])
            self.ranges = {**kept, node.variable: (least, max(least, min(digit.radix - 1, upper[1])))}
            with self.when(texts):
                self.bind(node.body, rest, write)
        if node.variable in mentioned:
            self.declare_digit(node, digit)
        self.lines += body
        self.ranges = kept

    def declare_digit(self, node: For, digit: Digit) -> None:
        """The variable of a loop that blocks or threads run."""
        self.mentioned.add(digit.number)
        self.write(f"const int {node.variable} = {digit.text};")

    def tests(self, *conditions: Condition) -> list[str]:
        """The texts of what must be tested for conditions to hold; none for what the ranges of the variables promise."""
        texts: list[str] = []
        for condition in conditions:
            found = facts(condition)
            if found is None:
                texts.append(condition.written(self.index))
            for fact in found or ():
                for piece in split(simplified(fact, self.ranges)):
                    reach = limits(piece, self.ranges)
                    if reach is None or reach[0] < 0:
                        texts.append(comparison(piece).written(self.index))
        return texts

    def branch(self, node: If) -> None:
        texts = self.tests(node.condition)
        with self.when(texts):
            self.block(node.then)
        if node.other and texts:
            with self.indented("else {"):
                self.block(node.other)

    # ------------------------------------------------------------ loops of one thread

    def loop(self, node: For) -> None:
        found = constant_trips(node, self.ranges) if self.unrolling else None
        self.loops += 1
        if found is None:
            super().loop(node)
        else:
            self.constant_loop(*found)
        self.loops -= 1

    def constant_loop(self, node: For, guards: Sequence[Condition]) -> None:
        """A loop over constants, unrolled: where the guards hold anyway in most of the iterations, those, and the ones before and after."""
        first, last = node.lower.constant, node.upper.constant
        full = full_trips(node, guards, self.ranges)
        if full is None or 2 * (full[1] - full[0] + 1) <= last - first + 1:
            full = first, last
        for low, high in ((first, full[0] - 1), full, (full[1] + 1, last)):
            if low <= high:
                self.guarded_loop(replace(node, lower=Linear.of(low), upper=Linear.of(high)), guards)

    def guarded_loop(self, node: For, guards: Sequence[Condition]) -> None:
        """With a single trip only the body."""
        if node.lower == node.upper:
            value = {node.variable: node.lower}
            with self.when(self.tests(*(guard.substitute(value) for guard in guards))):
                self.block(tuple(substitute(n, value) for n in node.body))
            return
        self.pragma(self.unroll_factor(node))
        with self.ranged(node), self.iterated(node), self.when(self.tests(*guards)):
            self.block(node.body)

    def unroll_factor(self, node: For) -> int:
        """How many iterations of a loop over constants are written out one after the other; 0: all.

        It must be all where a thread's own array is indexed, which lies in registers only if its indices are constants. Elsewhere the
        compiler would load the elements of many iterations before it needs them, or keep them for a later loop, and run out of registers.
        """
        for run in runs(node.body):
            s = self.mapped.scop.statement(run.statement)
            for tensor in (s.tensor, *(access.tensor for access, _ in s.reads())):
                buffer = self.memory.private(tensor, self.marks)
                if buffer is not None and buffer.space == "thread" and buffer.elements > 1:
                    return 0
        factor = max(1, UNROLLED_BYTES // self._bytes(node.body))
        return factor if factor < node.upper.constant - node.lower.constant + 1 else 0

    def _bytes(self, nodes: Sequence[Node]) -> int:
        """Those of the values of one run through nodes, in loops over constants."""
        total = 0
        for node in nodes:
            if isinstance(node, For):
                found = constant_trips(node, self.ranges)
                trips = 1 if found is None else found[0].upper.constant - found[0].lower.constant + 1
                total += trips * self._bytes(node.body)
            elif isinstance(node, If):
                total += self._bytes(node.then) + self._bytes(node.other)
            elif isinstance(node, Mark):
                total += self._bytes(node.body)
            elif isinstance(node, Run):
                total += DTYPES[self.mapped.scop.statement(node.statement).value.dtype].bytes
        return max(total, 1)

    def pragma(self, factor: int = 0) -> None:
        """What makes a compiler unroll the next loop, whole or by a factor."""
        if self.gpu.unroll:
            self.line(f"{self.gpu.unroll} {factor}" if factor else self.gpu.unroll)

    # ------------------------------------------------------------ statements

    def statement(self, run: Run) -> None:
        if self.instead is not None:
            self.instead(run)
        elif not async_copy.write(self, run):
            super().statement(run)

    def assignment(self, run: Run) -> tuple[str, str, str]:
        s = self.mapped.scop.statement(run.statement)
        self.written[s.tensor] = None
        if s.operator == "=" and isinstance(s.value, Access) and ctype(s.value.dtype) != vtype(s.value.dtype):
            return self.copied(s, s.value, run) or super().assignment(run)
        return super().assignment(run)

    def copied(self, s: ScopStatement, access: Access, run: Run) -> tuple[str, str, str] | None:
        """A copy of an element whose values have another type than its bits: the bits are copied."""
        dtype = self.mapped.scop.tensor(s.tensor).dtype
        if dtype != access.dtype or self.gathers(access, run) or not self.memory.exists(access.tensor, self.marks):
            return None
        self.run_now = run
        return "uint16", self.place(s.tensor, s.subscripts), self.loaded.get(id(access)) or self.place(access.tensor, access.subscripts)

    def element(self, access: Access) -> str:
        if found := self.loaded.get(id(access)):
            return self.printer.load(self.mapped.scop.tensor(access.tensor).dtype, found)
        return super().element(access)

    def gather(self, access: Access, gathers: Gathers) -> str:
        """The element at checked indices: one that is outside raises the flag, and 0 takes its place."""
        storage = self.mapped.scop.tensor(access.tensor)
        kept = self.ranges
        names = []
        for axis, subscript in gathers:
            text = self.data_subscript(subscript)
            if self.checked:
                site = self.printer.site("gather", tensor=access.tensor, where=access.where)
                text = str(self.printer.inside(text, str(self.printer.index(self.memory.extent(access.tensor, axis))), site))
            names.append(text if storage.shape[axis] > integers.GREATEST else str(prefixed("(int)", atomic(text))))
            self.ranges = {**self.ranges, names[-1]: (0, max(0, storage.shape[axis] - 1))}
        if storage.elements:
            with self.mentions() as mentioned:
                value = str(self.printer.load(storage.dtype, self.place(access.tensor, access.subscripts, names)))
            if self.checked and (idle := [name for name in names if name not in mentioned]):
                value = f"({', '.join([*idle, value])})"  # along an expanded dimension, or one of extent 1, no address moves
        else:  # the flag goes up, and nothing is read
            zero = f"({vtype(storage.dtype, self.dialect)})0"
            value = f"({', '.join([*names, zero])})" if self.checked else zero
        self.ranges = kept
        return value


def digits(number: str, sizes: Sequence[int]) -> list[Digit]:
    """The digits of a number below the product of the sizes, in that mixed radix, the last one counting fastest; 0 needs no number.

    >>> [(digit.text, digit.radix, digit.number) for digit in digits("t", (4, 8, 1))]
    [('t / 8', 4, 't'), ('t % 8', 8, 't'), ('0', 1, '')]
    """
    found = []
    stride = prod(sizes)
    for position, size in enumerate(sizes):
        stride //= size
        text = number if stride == 1 else f"{number} / {stride}"
        if size == 1:
            found.append(Digit("0", 1, ""))
        else:
            found.append(Digit(text if position == 0 or stride * size == prod(sizes) else f"{text} % {size}", size, number))
    return found


def number(value: int) -> Expr:
    return Const(value, dtype="int64")


def block_counts(nodes: tuple[Node, ...], ranges: Ranges) -> list[int]:
    """How many values each of the nested block loops takes, outermost first."""
    found: list[int] = []
    for node in nodes:
        inner: list[int] = []
        if isinstance(node, If):
            inner = [max(pair) for pair in zip_longest(block_counts(node.then, ranges), block_counts(node.other, ranges), fillvalue=1)]
        elif isinstance(node, For):
            reach = limits(node.upper, ranges)
            if reach is None or limits(node.lower, ranges) is None:
                raise MappingError(f"the number of blocks along {node.variable} is not a constant")
            inner = [max(1, reach[1] + 1), *block_counts(node.body, {**ranges, node.variable: (0, max(0, reach[1]))})]
        found = [max(pair) for pair in zip_longest(found, inner, fillvalue=1)]
    return found


def _guards(node: For) -> list[Condition]:
    """Where a digit of a number is a value of a loop's variable."""
    variable = Linear.of(node.variable)
    if node.lower == node.upper:
        return [Compare(variable, "==", node.lower)]
    found: list[Condition] = [Compare(variable, ">=", node.lower), Compare(variable, "<=", node.upper)]
    if node.step > 1:
        found.append(Compare(combine("mod", (variable - node.lower, Linear.of(node.step))), "==", Linear.of(0)))
    return found


def _unrolled(nodes: tuple[Node, ...]) -> Iterator[Run]:
    """The statements below ``unroll`` marks."""
    for node in nodes:
        if isinstance(node, Mark) and isinstance(node.mark, Unroll):
            yield from runs(node.body)
        else:
            yield from _unrolled(children(node))
