"""What all languages share: loops, branches and statements as lines of text, and the places of elements.

A printer of one language extends ``Emitter``: it says what marks mean, how an index is written, and how a gather is checked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from tcjit.codegen.dialect import Dialect, reading_bytes
from tcjit.codegen.expression import Printer
from tcjit.codegen.integers import Ranges, limits
from tcjit.codegen.linear import Linear
from tcjit.codegen.loops import For, If, Mark, Node, Run
from tcjit.codegen.memory import Address, Memory, linear_subscript
from tcjit.grammar.ast import Access, Def, Expr
from tcjit.grammar.check import accumulating
from tcjit.grammar.wrapping import wrapping
from tcjit.mapping import marks
from tcjit.mapping.pipeline import Mapped
from tcjit.mapping.scop import ScopStatement

Gathers = list[tuple[int, Expr]]  # the data-dependent subscripts of an access: axis, subscript


class Emitter(ABC):
    """Walks the loops once, writing lines; knows the marks and loop ranges above the place it writes at."""

    def __init__(self, mapped: Mapped, dialect: Dialect, checked: bool) -> None:
        if _given_bools(mapped.scop.program.definition):
            dialect = reading_bytes(dialect)
        self.mapped = mapped
        self.checked = checked
        self.memory = Memory(mapped, dialect)
        self.lines: list[str] = []
        self.depth = 1
        self.marks: tuple[marks.Mark, ...] = ()
        self.ranges: Ranges = {d.name: (d.least, d.greatest) for d in mapped.scop.program.dynamic}
        self.around: tuple[For, ...] = ()  # the loops above, outermost first
        self.run_now: Run | None = None
        self.dialect = dialect
        self.printer = Printer(dialect, self.read, self.name, checked=checked)

    def title(self) -> str:
        definition = self.mapped.scop.program.definition
        program = self.mapped.scop.program
        facts = [f"{d.least} <= {d.size} <= {d.greatest}" for d in program.dynamic]
        sizes = ", ".join([*facts, *(f"{name} = {value}" for name, value in program.sizes)])
        arguments = ", ".join(p.name for p in definition.params)
        return f"{definition.name}({arguments}) -> ({', '.join(definition.returns)}) for {sizes or 'no sizes'}"

    # ------------------------------------------------------------ what a language adds

    @abstractmethod
    def mark(self, node: Mark) -> None:
        """Write what stands below a mark; ``self.marks`` already has it."""

    @abstractmethod
    def gather(self, access: Access, gathers: Gathers) -> str:
        """The value of an element with data-dependent subscripts."""

    def index(self, value: Linear) -> str:
        """An integer expression, unparenthesised."""
        return value.text

    def counter(self, node: For) -> str:
        """The type of a loop's variable."""
        return "int64_t"

    # ------------------------------------------------------------ structure

    def write(self, line: str) -> None:
        self.lines.append("  " * self.depth + line if not line.startswith("#") else line)

    @contextmanager
    def indented(self, opening: str, closing: str = "}") -> Iterator[None]:
        self.write(opening)
        self.depth += 1
        yield
        self.depth -= 1
        self.write(closing)

    def block(self, nodes: tuple[Node, ...]) -> None:
        for node in nodes:
            if isinstance(node, For):
                self.loop(node)
            elif isinstance(node, If):
                self.branch(node)
            elif isinstance(node, Mark):
                kept = self.marks
                self.marks = (*kept, node.mark)
                self.mark(node)
                self.marks = kept
            else:
                self.statement(node)

    def loop(self, node: For) -> None:
        with self.ranged(node), self.indented(self.header(node) + " {"):
            self.block(node.body)

    def header(self, node: For) -> str:
        name = node.variable
        step = f"++{name}" if node.step == 1 else f"{name} += {node.step}"
        return f"for ({self.counter(node)} {name} = {self.index(node.lower)}; {name} <= {self.index(node.upper)}; {step})"

    @contextmanager
    def ranged(self, node: For) -> Iterator[None]:
        """Knows the loop and its range while writing its body."""
        kept, around = self.ranges, self.around
        lower, upper = limits(node.lower, kept), limits(node.upper, kept)
        if lower is not None and upper is not None:
            self.ranges = {**kept, node.variable: (lower[0], upper[1])}
        self.around = (*around, node)
        yield
        self.ranges, self.around = kept, around

    def branch(self, node: If) -> None:
        with self.indented(f"if ({node.condition.written(self.index)}) {{"):
            self.block(node.then)
        if node.other:
            with self.indented("else {"):
                self.block(node.other)

    # ------------------------------------------------------------ statements

    def statement(self, run: Run) -> None:
        self.write(self.printer.store(*self.assignment(run)))

    def assignment(self, run: Run) -> tuple[str, str, str]:
        """What a statement stores: dtype, element, value."""
        s = self.mapped.scop.statement(run.statement)
        storage = self.mapped.scop.tensor(s.tensor)
        self.run_now = run
        target = self.place(s.tensor, s.subscripts)
        value = self.printer.value(s.value)
        if s.operator != "=":
            value = self.printer.combine(s.operator, s.value.dtype, self.printer.load(storage.dtype, target), value)
        return storage.dtype, target, value

    def target(self, s: ScopStatement, run: Run) -> Address | None:
        """The address that a statement writes, where it is affine."""
        return self.operand(Access(s.tensor, s.subscripts, dtype=s.value.dtype), run)

    def operand(self, access: Access, run: Run) -> Address | None:
        """The address of an access, None for a gather."""
        parts = [linear_subscript(sub, run, self.mapped.scop.values) for sub in access.subscripts]
        if any(p is None for p in parts):
            return None
        found = tuple(p for p in parts if p is not None)
        return self.memory.address(self.mapped.scop.tensor(access.tensor), found, self.marks, self.ranges)

    def place(self, tensor: str, subscripts: tuple[Expr, ...], names: list[str] | None = None) -> str:
        """The text of an element; a data-dependent subscript goes in by name or as text."""
        assert self.run_now is not None
        parts = []
        taken = iter(names or [])
        for sub in subscripts:
            linear = linear_subscript(sub, self.run_now, self.mapped.scop.values)
            parts.append(Linear.of(next(taken, "") or f"({self.printer.index(sub)})") if linear is None else linear)
        return self.memory.address(self.mapped.scop.tensor(tensor), tuple(parts), self.marks, self.ranges).written(self.index)

    def gathered(self, subscript: Expr) -> str:
        """A data-dependent subscript as an index to check: where its arithmetic wrapped, -1."""
        text = str(self.printer.index(subscript))
        scalars = {p.name: p.dtype for p in self.mapped.scop.program.definition.params if not p.dims}
        wrapped = [self.printer.wrapped(expr) for expr in wrapping(subscript, scalars)] if self.checked else []
        return f"({' | '.join(wrapped)} ? -1 : {text})" if wrapped else text

    def gathers(self, access: Access, run: Run) -> Gathers:
        values = self.mapped.scop.values
        return [(axis, sub) for axis, sub in enumerate(access.subscripts) if linear_subscript(sub, run, values) is None]

    def read(self, access: Access, printer: Printer) -> str:
        """The value of an element; in checked mode a gather out of range reads nothing of use and sets the flag."""
        assert self.run_now is not None
        if not self.memory.exists(access.tensor, self.marks):
            return "0"  # under a condition that isl knows to be false
        if gathers := self.gathers(access, self.run_now):
            return self.gather(access, gathers)
        return self.element(access)

    def element(self, access: Access) -> str:
        """The value of an element with affine subscripts."""
        return self.printer.load(self.mapped.scop.tensor(access.tensor).dtype, self.place(access.tensor, access.subscripts))

    def name(self, kind: str, name: str) -> str:
        """Indices, sizes and scalars as C text."""
        if kind == "index":
            assert self.run_now is not None
            return self.index_value(self.run_now.index(name))
        if name in self.mapped.scop.values:
            value = self.mapped.scop.values[name]
            return str(value) if value >= 0 else f"({value})"
        return name if kind == "size" else self.memory.names[name]

    def index_value(self, value: Linear) -> str:
        """An index as an int64_t operand, or as a decimal literal."""
        return parenthesised(value, self.index(value))


def _given_bools(definition: Def) -> bool:
    """Whether a kernel reads bools that come from the caller."""
    given = [tensor.name for tensor in definition.tensors if tensor.role == "input"]
    return any(definition.tensor(name).dtype == "bool" for name in (*given, *accumulating(definition)))


def parenthesised(value: Linear, text: str) -> str:
    return text if value.is_operand else f"({text})"
