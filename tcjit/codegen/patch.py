"""A contraction on explicit vectors: a patch of results stays in named registers while the reduction runs.

The patch is unrolled completely and every accumulator is a variable of its own, so nothing depends on what a C compiler makes of small
arrays. Lanes run along a result dimension (vector loads and stores of results) or along the reduction (partial sums that
are added up at the end, in a fixed tree).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

from tcjit.codegen.address import Address
from tcjit.codegen.expression import ExpressionPrinter
from tcjit.codegen.loops import For, Gathered, MarkNode, MicroKernel, Node, Run, nest, substitute
from tcjit.grammar.affine import Guard
from tcjit.grammar.ast import Access, Binary, Const, Expr, Unary
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear
from tcjit.mapping import marks
from tcjit.mapping.machine import Machine, vector_cover
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import Mapped
from tcjit.mapping.plan import SHORT, UNROLL_LIMIT, WRITTEN_OUT
from tcjit.mapping.scop import ScopStatement


class Rows(Protocol):
    """How a language binds the data-dependent subscripts of a read, and asks for what a later iteration will read."""

    def bound(self, access: Access, run: Run, number: int) -> tuple[list[str], list[str]]:
        """Lines that check the subscripts and hold them in variables, and the names of these: always inside of the tensor."""

    def ahead(self, access: Access, run: Run, loops: Sequence[For], lane: For) -> tuple[list[str], list[str]]:
        """Lines before the reduction loops and inside of them that ask for rows of a tensor too large for the cache early."""


def match(
    mapped: Mapped,
    mark: MarkNode,
    target: Callable[[ScopStatement, Run], Address | None],
    operand: Callable[[Access, Run], Address | None],
    gathered: Callable[[Access, Run], Gathered | None],
) -> MicroKernel | None:
    """What stands below a ``RegisterTile`` mark, or None where the loops do not have constant trip counts and unit strides."""
    if len(mark.body) != 1:
        return None
    outer, body = nest(mark.body[0])
    if len(body) != 1 or not isinstance(body[0], MarkNode) or body[0].mark != marks.Unroll() or len(body[0].body) != 1:
        return None
    patch, body = nest(body[0].body[0])
    if len(body) != 1 or not isinstance(body[0], MarkNode) or body[0].mark != marks.Simd():
        return None
    lanes = body[0].body
    if len(lanes) != 1 or not isinstance(lanes[0], For) or len(lanes[0].body) != 1 or not isinstance(lanes[0].body[0], Run):
        return None
    lane, run = lanes[0], lanes[0].body[0]
    statement = mapped.scop.statement(run.statement)
    if any(one.trips is None or one.step != 1 for one in (*patch, lane)):
        return None
    results = 1
    for one in patch:
        results *= one.trips or 0
    written = target(statement, run)
    reads = [a for a, _ in _reads(statement)]
    operands = {id(a): where for a in reads if (where := operand(a, run)) is not None}
    gathers = {id(a): found for a in reads if id(a) not in operands and (found := gathered(a, run)) is not None}
    operands |= {key: found.address for key, found in gathers.items()}
    if written is None or len(operands) != len(reads) or results > UNROLL_LIMIT:
        return None
    if any(found.depends(run, lane.variable) for found in gathers.values()):
        return None
    moves = [where.stride(lane.variable) for where in operands.values()]
    if written.stride(lane.variable) not in (0, 1) or any(m not in (0, 1) for m in moves):
        return None
    if written.variables & {one.variable for one in outer}:
        return None
    # every point of the patch gets an accumulator: two for one result would lose all but one sum
    variables = [one.variable for one in patch]
    if len({written.substitute(dict(zip(variables, point, strict=True))).text for point in product(*map(_values, patch))}) != results:
        return None
    along = written.stride(lane.variable) == 0
    return MicroKernel(statement, run, tuple(outer), tuple(patch), lane, written, operands, gathers, along)


def _reads(s: ScopStatement) -> list[tuple[Access, tuple[Guard, ...]]]:
    """The reads of the value alone: the accumulator is read by the patch itself."""
    return list(s.reads())[1:]


def _values(loop: For) -> list[Linear]:
    return [loop.lower + value for value in range(loop.trips or 0)]


def starts(found: MicroKernel, node: Node, mapped: Mapped, target: Callable[[ScopStatement, Run], Address | None]) -> bool:
    """Whether the loops in front of a patch do no more than set its results to 0: then the accumulators may start there themselves."""
    loops: list[For] = []
    while isinstance(node, (For, MarkNode)):
        loops += [node] if isinstance(node, For) else []
        if len(node.body) != 1:
            return False
        node = node.body[0]
    s = mapped.scop.statement(node.statement) if isinstance(node, Run) else None
    if s is None or s.operator != "=" or s.source != found.statement.source or s.tensor != found.statement.tensor:
        return False
    if not isinstance(s.value, Const) or s.value.value != 0 or not isinstance(node, Run) or (written := target(s, node)) is None:
        return False
    results = found.patch if found.along_reduction else (*found.patch, found.lane)
    here = _box(found.target, results)
    return here is not None and here == _box(written, loops)


def _box(address: Address, loops: Sequence[For]) -> tuple[str, list[tuple[int, int]]] | None:
    """The elements that an address takes over loops: the first one, and (stride, count) of each loop; None where they are no box."""
    moves = []
    own = {one.variable for one in loops}
    for one in loops:
        stride = address.stride(one.variable)
        if not stride or one.trips is None or one.step != 1 or one.lower.variables & own:
            return None
        if one.trips > 1:
            moves.append((stride, one.trips))
    return address.substitute({one.variable: one.lower for one in loops}).text, sorted(moves)


# an operand that several results use is loaded once: left to itself, gcc 12 reads it from memory again for each of them
KEEP = """#if defined(__AVX512F__)
#define TC_KEEP(x) __asm__("" : "+v"(x))
#elif defined(__x86_64__)
#define TC_KEEP(x) __asm__("" : "+x"(x))
#elif defined(__aarch64__)
#define TC_KEEP(x) __asm__("" : "+w"(x))
#else
#define TC_KEEP(x)
#endif"""


@dataclass(frozen=True)
class Update:
    """A line that adds a product to an accumulator, and the names of its operands."""

    text: str
    operands: tuple[str, ...]


def sparing(updates: Sequence[Update]) -> list[Update]:
    """Updates in an order that keeps few operands in registers: those of the side that has the most come one after the other.

    Of a patch of 3 times 8 sums 3 operands stay, beside the one at hand. Left to come by rows, 8 would, and gcc 12, which keeps the order,
    had no registers for all sums.
    """
    sides = list(zip(*(update.operands for update in updates), strict=True)) if len({len(u.operands) for u in updates}) == 1 else []
    if not sides:
        return list(updates)
    most = max(sides, key=lambda side: len(set(side)))
    places = {name: place for place, name in enumerate(dict.fromkeys(most))}
    return [update for _, update in sorted(zip(most, updates, strict=True), key=lambda each: places[each[0]])]


class Patch:
    """Writes the lines of one patch."""

    def __init__(
        self,
        found: MicroKernel,
        options: Options,
        machine: Machine,
        printer: ExpressionPrinter,
        declarations: dict[str, None],
        rows: Rows,
        index: Callable[[Linear], str],
    ) -> None:
        self.found = found
        self.rows = rows
        self.index = index
        self.unroll = options.unroll
        self.zero = found.zero
        self.printer = printer
        self.declarations = declarations
        self.element = "float" if found.statement.value.dtype == "float32" else "double"
        self.bytes = DTYPES[found.statement.value.dtype].bytes
        self.width = options.vector_width or machine.lanes(self.bytes)
        self.vector_bytes = machine.vector_bytes
        self.registers: set[str] = set()  # the types of vectors that are one register
        self.loaded: dict[str, str] = {}  # element -> name
        self.loads: dict[str, tuple[str, str]] = {}  # name -> its type and element
        self.bindings: list[str] = []  # of data-dependent subscripts
        self.names: dict[tuple[int, Run], list[str]] = {}
        self.early: tuple[list[str], list[str]] = ([], [])  # what rows.ahead asks for: before the loops, inside
        self.used: list[str] = []  # the operands of the update at hand

    def lines(self) -> list[str]:
        """``{ load accumulators; reduction loops { loads; updates } store accumulators }``."""
        found = self.found
        covering = vector_cover(found.lane.trips or 0, self.width)
        points = [dict(zip((one.variable for one in found.patch), values, strict=True)) for values in product(*map(_values, found.patch))]
        before, after = [], []
        updates: list[Update] = []
        for number, point in enumerate(points):
            for start, width in covering:
                at = dict(point)
                at[found.lane.variable] = found.lane.lower + start
                name = f"s{number}_{start}" if len(covering) > 1 else f"s{number}"
                target = found.target.substitute(at).written(self.index)
                if found.along_reduction or self.zero:
                    before.append(f"{self.type(width)} {name} = {'{0}' if width > 1 else '0'};")
                else:
                    before.append(f"{self.type(width)} {name} = {self.vector(target, width)};")
                if found.along_reduction:
                    after.append(f"{target} {'=' if self.zero and start == 0 else '+='} {self.total(name, width)};")
                else:
                    after.append(f"{self.vector(target, width)} = {name};")
                self.used = []
                text = f"{name} += {self.value(found.statement.value, at, width)};"
                updates.append(Update(text, tuple(self.used)))
        lines = ["{", *("  " + line for line in (*before, *self.early[0]))]
        pad = "  "
        for one in found.outer:
            if one is found.outer[-1] and (count := self.unrolled(len(updates))) > 1:
                lines.append(f"#pragma GCC unroll {count}")
            lower, upper = self.index(one.lower), self.index(one.upper)
            lines.append(f"{pad}for (int64_t {one.variable} = {lower}; {one.variable} <= {upper}; ++{one.variable}) {{")
            pad += "  "
        lines += [pad + line for line in (*self.bindings, *self.early[1], *self.inside(updates))]
        for _ in found.outer:
            pad = pad[2:]
            lines.append(pad + "}")
        return [*lines, *("  " + line for line in after), "}"]

    def unrolled(self, updates: int) -> int:
        """Iterations of the innermost loop to write out one after the other; 1: as the C compiler likes."""
        trips = self.found.outer[-1].trips or 0
        short = SHORT[0] <= trips <= SHORT[1] and trips * updates <= WRITTEN_OUT
        return self.unroll or (trips if short else 1)

    def inside(self, updates: Sequence[Update]) -> list[str]:
        """One iteration: every operand goes into a register of its own shortly before it is used, those that are used again stay there."""
        uses = Counter(name for update in updates for name in update.operands)
        lines: list[str] = []
        there: set[str] = set()
        for update in sparing(updates):
            for name in update.operands:
                if name not in there:
                    there.add(name)
                    lines += self.loading(name, again=uses[name] > 1)
            lines.append(update.text)
        return lines

    def loading(self, name: str, *, again: bool) -> list[str]:
        kind, text = self.loads[name]
        if not again or kind not in self.registers:
            return [f"const {kind} {name} = {text};"]
        self.declarations[KEEP] = None
        return [f"{kind} {name} = {text};", f"TC_KEEP({name});"]

    def type(self, width: int) -> str:
        """The type of a register of some lanes; ``_u`` may stand at any element's address."""
        if width == 1:
            return self.element
        name = f"tc_{self.element}{width}"
        size = width * self.bytes
        if size <= self.vector_bytes:
            self.registers.add(name)
        self.declarations[f"typedef {self.element} {name} __attribute__((vector_size({size})));"] = None
        self.declarations[f"typedef {self.element} {name}_u __attribute__((vector_size({size}), aligned({self.bytes}), may_alias));"] = None
        return name

    def vector(self, text: str, width: int) -> str:
        return text if width == 1 else f"*({self.type(width)}_u *)&{text}"

    def value(self, expr: Expr, at: dict[str, Linear], width: int) -> str:
        """An expression on vectors: scalars widen by themselves."""
        if isinstance(expr, Access):
            where = self.found.operands[id(expr)]
            if id(expr) in self.found.gathers:
                where = where.substitute(self.subscripts(expr, at))
            return self.load(where.substitute(at), width if where.stride(self.found.lane.variable) else 1)
        if isinstance(expr, Unary):
            return f"(-{self.value(expr.operand, at, width)})"
        if isinstance(expr, Binary):
            return f"({self.value(expr.left, at, width)} {expr.op} {self.value(expr.right, at, width)})"
        return self.printer.value(expr)

    def subscripts(self, access: Access, at: dict[str, Linear]) -> dict[str, Linear]:
        """The variables that hold the data-dependent subscripts of a read at a point of the patch; they are bound once for all lanes."""
        found = self.found
        run = substitute(found.run, {one.variable: at[one.variable] for one in found.patch})
        assert isinstance(run, Run)
        if (id(access), run) not in self.names:
            number = len(self.names)
            lines, self.names[id(access), run] = self.rows.bound(access, run, number)
            self.bindings += lines
            for asked, lines in zip(self.early, self.rows.ahead(access, run, found.outer, found.lane), strict=True):
                asked += [line for line in lines if line not in asked]
        names = self.names[id(access), run]
        return {place: Linear.of(name) for (place, _), name in zip(found.gathers[id(access)].subscripts, names, strict=True)}

    def load(self, address: Address, width: int) -> str:
        """A name for an operand, loaded once for all its uses in the patch."""
        element = address.written(self.index)
        text = element if width == 1 else f"*(const {self.type(width)}_u *)&{element}"
        if text not in self.loaded:
            self.loaded[text] = f"{'v' if width > 1 else 'x'}{len(self.loaded)}"
            self.loads[self.loaded[text]] = self.type(width), text
        self.used.append(self.loaded[text])
        return self.loaded[text]

    def total(self, name: str, width: int) -> str:
        """The sum of a register's lanes, as a fixed tree in a function of its own."""
        if width == 1:
            return name
        parts = [f"v[{lane}]" for lane in range(width)]
        while len(parts) > 1:
            parts = [f"({a} + {b})" for a, b in zip(parts[: len(parts) // 2], parts[len(parts) // 2 :], strict=True)]
        function = f"tc_sum_{self.element}{width}"
        self.declarations[f"static inline {self.element} {function}({self.type(width)} v) {{ return {parts[0]}; }}"] = None
        return f"{function}({name})"
