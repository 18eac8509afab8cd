"""A contraction on explicit vectors: a patch of results stays in named registers while the reduction runs.

The patch is unrolled completely and every accumulator is a variable of its own, so nothing depends on what a C compiler makes of small
arrays. Lanes run along a result dimension (vector loads and stores of results) or along the reduction (partial sums that
are added up at the end, in a fixed tree).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from tcjit.codegen.expression import Printer
from tcjit.codegen.linear import Linear
from tcjit.codegen.loops import For, Mark, Run, nest
from tcjit.codegen.memory import Address
from tcjit.grammar.affine import Guard
from tcjit.grammar.ast import Access, Binary, Expr, Unary
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.machine import Machine
from tcjit.mapping.pipeline import Mapped
from tcjit.mapping.plan import UNROLL_LIMIT
from tcjit.mapping.scop import ScopStatement

Operand = Callable[[Access, Run], "Address | None"]


@dataclass(frozen=True)
class Found:
    """A contraction's loops, taken apart: reduction loops, patch loops, the lane loop, the statement."""

    statement: ScopStatement
    run: Run
    outer: tuple[For, ...]
    patch: tuple[For, ...]
    lane: For
    target: Address
    operands: dict[int, Address]  # by id of the Access
    along_reduction: bool


def match(mapped: Mapped, mark: Mark, target: Callable[[ScopStatement, Run], Address | None], operand: Operand) -> Found | None:
    """What stands below a ``registers`` mark, or None where the loops do not have constant trip counts and unit strides."""
    if len(mark.body) != 1:
        return None
    outer, body = nest(mark.body[0])
    if len(body) != 1 or not isinstance(body[0], Mark) or body[0].name != "unroll" or len(body[0].body) != 1:
        return None
    patch, body = nest(body[0].body[0])
    if len(body) != 1 or not isinstance(body[0], Mark) or body[0].name != "lanes":
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
    operands = {id(a): where for a, _ in _reads(statement) if (where := operand(a, run)) is not None}
    if written is None or len(operands) != len(list(_reads(statement))) or results > UNROLL_LIMIT:
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
    return Found(statement, run, tuple(outer), tuple(patch), lane, written, operands, along)


def _reads(s: ScopStatement) -> list[tuple[Access, tuple[Guard, ...]]]:
    """The reads of the value alone: the accumulator is read by the patch itself."""
    return list(s.reads())[1:]


def _values(loop: For) -> list[Linear]:
    return [loop.lower + value for value in range(loop.trips or 0)]


class Patch:
    """Writes the lines of one patch."""

    def __init__(self, found: Found, lanes: int, machine: Machine, printer: Printer, declarations: dict[str, None]) -> None:
        self.found = found
        self.printer = printer
        self.declarations = declarations
        self.element = "float" if found.statement.value.dtype == "float32" else "double"
        self.bytes = DTYPES[found.statement.value.dtype].bytes
        self.width = lanes or machine.lanes(self.bytes)
        self.loaded: dict[str, str] = {}
        self.loads: list[str] = []

    def lines(self) -> list[str]:
        """``{ load accumulators; reduction loops { loads; updates } store accumulators }``."""
        found = self.found
        pieces = self.pieces()
        points = [
            dict(zip((one.variable for one in found.patch), values, strict=True)) for values in product(*map(_values, found.patch))
        ]
        before, inside, after = [], [], []
        for number, point in enumerate(points):
            for start, width in pieces:
                at = dict(point)
                at[found.lane.variable] = found.lane.lower + start
                name = f"s{number}_{start}" if len(pieces) > 1 else f"s{number}"
                target = found.target.substitute(at)
                if found.along_reduction:
                    before.append(f"{self.type(width)} {name} = {'{0}' if width > 1 else '0'};")
                    after.append(f"{target.text} += {self.total(name, width)};")
                else:
                    before.append(f"{self.type(width)} {name} = {self.vector(target.text, width)};")
                    after.append(f"{self.vector(target.text, width)} = {name};")
                inside.append(f"{name} += {self.value(found.statement.value, at, width)};")
        lines = ["{", *("  " + line for line in before)]
        pad = "  "
        for one in found.outer:
            lines.append(f"{pad}for (int64_t {one.variable} = {one.lower.text}; {one.variable} <= {one.upper.text}; ++{one.variable}) {{")
            pad += "  "
        lines += [pad + line for line in (*self.loads, *inside)]
        for _ in found.outer:
            pad = pad[2:]
            lines.append(pad + "}")
        return [*lines, *("  " + line for line in after), "}"]

    def pieces(self) -> list[tuple[int, int]]:
        """(start, width) of the registers that cover the lanes: full ones first, then halves."""
        trips = self.found.lane.trips or 0
        result, start, width = [], 0, self.width
        while start < trips:
            while width > trips - start:
                width //= 2
            result.append((start, width))
            start += width
        return result

    def type(self, width: int) -> str:
        """The type of a register of some lanes; ``_u`` may stand at any element's address."""
        if width == 1:
            return self.element
        name = f"tc_{self.element}{width}"
        size = width * self.bytes
        self.declarations[f"typedef {self.element} {name} __attribute__((vector_size({size})));"] = None
        self.declarations[f"typedef {self.element} {name}_u __attribute__((vector_size({size}), aligned({self.bytes}), may_alias));"] = None
        return name

    def vector(self, text: str, width: int) -> str:
        return text if width == 1 else f"*({self.type(width)}_u *)&{text}"

    def value(self, expr: Expr, at: dict[str, Linear], width: int) -> str:
        """An expression on vectors: scalars widen by themselves."""
        if isinstance(expr, Access):
            where = self.found.operands[id(expr)]
            return self.load(where.substitute(at), width if where.stride(self.found.lane.variable) else 1)
        if isinstance(expr, Unary):
            return f"(-{self.value(expr.operand, at, width)})"
        if isinstance(expr, Binary):
            return f"({self.value(expr.left, at, width)} {expr.op} {self.value(expr.right, at, width)})"
        return self.printer.value(expr)

    def load(self, address: Address, width: int) -> str:
        """A name for an operand, loaded once for all its uses in the patch."""
        text = address.text if width == 1 else f"*(const {self.type(width)}_u *)&{address.text}"
        if text not in self.loaded:
            self.loaded[text] = f"{'v' if width > 1 else 'x'}{len(self.loaded)}"
            self.loads.append(f"const {self.type(width)} {self.loaded[text]} = {text};")
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
