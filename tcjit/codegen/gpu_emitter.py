"""What all parts of a GPU's kernels are written with: the numbers of blocks and threads, guards, barriers, and statements.

Block and thread loops disappear: their variables are digits of the block's or thread's number, and a guard stands where a loop's bounds
are narrower than its digit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import NamedTuple

from tcjit.codegen import integers
from tcjit.codegen.dialect import GpuDialect
from tcjit.codegen.emitter import Emitter, parenthesised
from tcjit.codegen.expression import ExpressionPrinter, ctype, vtype
from tcjit.codegen.inequalities import comparison, facts, split
from tcjit.codegen.loops import Compare, Condition, For, If, Node, Run
from tcjit.codegen.memory import linear_subscript
from tcjit.codegen.profile import scaled
from tcjit.codegen.scope import Gathers
from tcjit.codegen.text import atomic, prefixed
from tcjit.errors import MappingError
from tcjit.grammar.ast import Access, Binary, Expr
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear, limits, simplified
from tcjit.mapping.machine import Device
from tcjit.mapping.pipeline import Mapped
from tcjit.mapping.scop import ScopStatement

THREAD = "tc_thread"  # the variable that holds the number of the thread


class Digit(NamedTuple):
    """A digit of ``number``, which is a variable: its text and its radix."""

    text: str
    radix: int
    number: str


class GpuEmitter(Emitter):
    """The state of the kernel that is being written, and its threads."""

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
        self.uniform: frozenset[str] = frozenset()  # variables of the loops around a region, with one value in all threads of a block
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

    def compared(self, expr: Binary) -> str:
        """In 32 bits, where both sides are sums of loops' variables that fit."""
        assert self.run_now is not None
        sides = [linear_subscript(side, self.run_now, self.mapped.scop.values) for side in (expr.left, expr.right)]
        if any(side is None or not integers.fits(self.plain(side), self.ranges) for side in sides):
            return ""
        return f" {expr.op} ".join(self.index(side) for side in sides if side is not None)

    def counter(self, node: For) -> str:
        found = self.ranges.get(node.variable)
        return "int" if found is not None and found[0] >= -integers.GREATEST and found[1] + node.step <= integers.GREATEST else "int64_t"

    # ------------------------------------------------------------ threads of a block

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
        kept, self.uniform = self.uniform, frozenset(self.ranges)
        with self.when(conditions) if conditions else self.indented("{"):
            self.bind(nodes, places[:-1] if leaders else places, self.thread_body)
        self.uniform = kept

    def thread_body(self, nodes: tuple[Node, ...]) -> None:
        """What one thread runs, its digits aside."""
        self.block(nodes)

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
                self.branch(node, lambda nodes: self.bind(nodes, places, write))
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
        """None for what the ranges of the variables promise."""
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

    def pragma(self, factor: int = 0) -> None:
        """The pragma that unrolls the next loop, whole or by a factor."""
        if self.gpu.unroll:
            self.line(f"{self.gpu.unroll} {factor}" if factor else self.gpu.unroll)

    # ------------------------------------------------------------ statements

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

    def read(self, access: Access, printer: ExpressionPrinter) -> str:
        if found := self.loaded.get(id(access)):
            return self.printer.load(self.mapped.scop.tensor(access.tensor).dtype, found)
        return super().read(access, printer)

    def gather(self, access: Access, gathers: Gathers) -> str:
        """The element at checked indices: one that is outside raises the flag, and 0 takes its place."""
        storage = self.mapped.scop.tensor(access.tensor)
        with self.checked_subscripts(access, gathers) as names:
            if not storage.elements:  # the flag goes up, and nothing is read
                zero = f"({vtype(storage.dtype, self.dialect)})0"
                return f"({', '.join([*names, zero])})" if self.checked else zero
            with self.mentions() as mentioned:
                value = str(self.printer.load(storage.dtype, self.place(access.tensor, access.subscripts, names)))
            if self.checked and (idle := [name for name in names if name not in mentioned]):
                value = f"({', '.join([*idle, value])})"  # along an expanded dimension, or one of extent 1, no address moves
            return value

    def gathered_place(self, access: Access, gathers: Gathers) -> str:
        """The place of an element at checked indices, all of which move its address."""
        with self.checked_subscripts(access, gathers) as names:
            return self.place(access.tensor, access.subscripts, names)

    @contextmanager
    def checked_subscripts(self, access: Access, gathers: Gathers) -> Iterator[list[str]]:
        """The texts of the indices that depend on data, which are inside their axes."""
        storage, kept = self.mapped.scop.tensor(access.tensor), self.ranges
        names: list[str] = []
        for axis, subscript in gathers:
            text = self.data_subscript(subscript)
            if self.checked:
                site = self.printer.site("gather", tensor=access.tensor, where=access.where)
                text = str(self.printer.inside(text, str(self.printer.index(self.memory.extent(access.tensor, axis))), site))
            names.append(text if storage.shape[axis] > integers.GREATEST else str(prefixed("(int)", atomic(text))))
            self.ranges = {**self.ranges, names[-1]: (0, max(0, storage.shape[axis] - 1))}
        yield names
        self.ranges = kept


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


def _guards(node: For) -> list[Condition]:
    """Where a digit of a number is a value of a loop's variable."""
    variable = Linear.of(node.variable)
    if node.lower == node.upper:
        return [Compare(variable, "==", node.lower)]
    found: list[Condition] = [Compare(variable, ">=", node.lower), Compare(variable, "<=", node.upper)]
    if node.step > 1:
        found.append(Compare((variable - node.lower) % node.step, "==", Linear.of(0)))
    return found
