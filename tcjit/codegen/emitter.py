"""What all languages share: loops, branches and statements as lines of text, and the places of elements.

A printer of one language extends ``Emitter``: it says what marks mean, how an index is written, and how a gather is checked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace

from tcjit.codegen.dialect import Dialect, reading_bytes
from tcjit.codegen.expression import ExpressionPrinter
from tcjit.codegen.loops import Condition, For, If, MarkNode, Node, Run, runs
from tcjit.codegen.memory import KernelMemory, linear_subscript
from tcjit.codegen.profile import Profile, scaled, trips
from tcjit.codegen.scope import Gathers, LoopScope
from tcjit.codegen.text import Text
from tcjit.grammar.ast import Access, Binary, Def, Expr, Select, TargetSubscript
from tcjit.grammar.check import accumulating
from tcjit.grammar.linear import HELPERS, Linear
from tcjit.grammar.wrapping import checked_parts, wrapping
from tcjit.mapping.pipeline import Mapped


class Emitter(LoopScope, ABC):
    """Walks the loops once, appending lines."""

    def __init__(self, mapped: Mapped, dialect: Dialect, checked: bool) -> None:
        if _given_bools(mapped.scop.program.definition):
            dialect = reading_bytes(dialect)
        super().__init__(mapped, KernelMemory(mapped, dialect))
        self.checked = checked
        self.lines: list[str] = []
        self.profile = Profile()
        self.scaled: list[str] = []  # variables with a factor in the texts of the line to come
        self.mentioned: set[str] = set()  # variables of the kernel and of loops that texts name
        self.depth = 1
        self.run_now: Run | None = None
        self.dialect = dialect
        self.in_subscripts: set[int] = set()  # by id: parts of the index of a gather that is printed, which is checked to have not wrapped
        self.printer = ExpressionPrinter(
            dialect, self.read, self.name, target=self.target_at, checked=checked, compared=self.compared, addends=self.addends
        )

    def title(self) -> str:
        definition = self.mapped.scop.program.definition
        program = self.mapped.scop.program
        facts = [f"{d.least} <= {d.size} <= {d.greatest}" for d in program.dynamic]
        sizes = ", ".join([*facts, *(f"{name} = {value}" for name, value in program.sizes)])
        arguments = ", ".join(p.name for p in definition.params)
        return f"{definition.name}({arguments}) -> ({', '.join(definition.returns)}) for {sizes or 'no sizes'}"

    # ------------------------------------------------------------ what a language adds

    def mark(self, node: MarkNode) -> None:
        """Write what stands below a mark; ``self.marks`` already names it."""
        self.block(node.body)

    @abstractmethod
    def gather(self, access: Access, gathers: Gathers) -> str:
        """The value of an element with data-dependent subscripts."""

    def plain(self, value: Linear) -> Linear:
        """The form in which an integer expression is written."""
        return value

    def index(self, value: Linear) -> str:
        """An integer expression, unparenthesised."""
        self.scaled += scaled(value)
        for operator in value.operators:
            self.printer.helper(HELPERS[operator])
        return value.text

    def compared(self, expr: Binary) -> str:
        """A comparison of int64 expressions in a shorter form than theirs, where a language has one."""
        return ""

    def addends(self, expr: Binary) -> tuple[Expr, Expr] | None:
        """Of the dividend of a remainder a part from 0 to the divisor, and the rest, where a language gains by that."""
        return None

    def counter(self, node: For) -> str:
        """The type of a loop's variable."""
        return "int64_t"

    # ------------------------------------------------------------ structure

    def line(self, text: str) -> None:
        """Append a line of any kind."""
        self.lines.append("  " * self.depth + text if not text.startswith("#") else text)
        self.scaled = []

    def write(self, text: str, *, stores: bool = False) -> None:
        """Append a statement; ``stores``: to an element of an array."""
        self.profile.count("runs")
        if stores:
            self.profile.count("stores")
            self.profile.count("strided", self.scaled.count(self.profile.innermost))
        self.line(text)

    def array(self, declaration: str, elements: int, attribute: str = "") -> None:
        """Declare an array."""
        self.profile.counts["private"] += elements
        self.line(f"{declaration}[{elements}]{attribute};")

    @contextmanager
    def indented(self, opening: str, closing: str = "}") -> Iterator[None]:
        """``closing`` may be empty: nothing is written then."""
        self.line(opening)
        self.depth += 1
        yield
        self.depth -= 1
        if closing:
            self.line(closing)

    @contextmanager
    def when(self, conditions: Sequence[str]) -> Iterator[None]:
        """What is written happens only where all conditions hold."""
        if conditions:
            self.profile.count("tested")
        with self.indented(f"if ({' && '.join(conditions)}) {{") if conditions else nullcontext():
            yield

    @contextmanager
    def iterated(self, node: For, *, braces: bool = True) -> Iterator[None]:
        """A loop around what is written meanwhile."""
        opening, closing = (" {", "}") if braces else ("", "")
        bounds = replace(node, lower=self.plain(node.lower), upper=self.plain(node.upper))
        with self.profile.loop(node.variable, trips(bounds)), self.indented(self.header(node) + opening, closing):
            yield

    @contextmanager
    def looped(self, *nodes: For) -> Iterator[None]:
        """Known loops, outermost first, around what is written meanwhile."""
        with ExitStack() as around:
            for node in nodes:
                around.enter_context(self.ranged(node))
                around.enter_context(self.iterated(node))
            yield

    @contextmanager
    def captured(self) -> Iterator[list[str]]:
        """The lines that are written meanwhile; the caller appends them after what must precede them."""
        before, self.lines = self.lines, []
        yield self.lines
        self.lines = before

    @contextmanager
    def mentions(self) -> Iterator[set[str]]:
        """The variables that texts name meanwhile."""
        around, self.mentioned = self.mentioned, set()
        yield self.mentioned
        around |= self.mentioned
        self.mentioned = around

    def block(self, nodes: tuple[Node, ...]) -> None:
        for node in nodes:
            self.node(node)

    def node(self, node: Node) -> None:
        """Write a node of isl's AST; a language adds others."""
        match node:
            case For():
                self.loop(node)
            case If():
                self.branch(node, self.block)
            case MarkNode():
                with self.below(node.mark):
                    self.mark(node)
            case Run():
                self.statement(node)

    def loop(self, node: For) -> None:
        with self.looped(node):
            self.block(node.body)

    def header(self, node: For) -> str:
        name = node.variable
        step = f"++{name}" if node.step == 1 else f"{name} += {node.step}"
        return f"for ({self.counter(node)} {name} = {self.index(node.lower)}; {name} <= {self.index(node.upper)}; {step})"

    def tests(self, *conditions: Condition) -> list[str]:
        """The texts of what must be tested for conditions to hold."""
        return [condition.written(self.index) for condition in conditions]

    def branch(self, node: If, write: Callable[[tuple[Node, ...]], None]) -> None:
        texts = self.tests(node.condition)
        with self.when(texts):
            write(node.then)
        if node.other and texts:
            with self.indented("else {"):
                write(node.other)

    def scatter(self, loop: For) -> None:
        """The iteration that the outer choice of a statement's value picks, if there is such; inside it is the value's other part."""
        run = runs(loop.body)[0]
        choice = self.mapped.scop.statement(run.statement).value
        assert isinstance(choice, Select) and isinstance(choice.condition, Binary)
        self.run_now = run
        with self.indented("{"):
            self.write(f"const int64_t {loop.variable} = {self.printer.index(choice.condition.right)};")
            inside = f"{self.index(loop.lower)} <= {loop.variable}", f"{loop.variable} <= {self.index(loop.upper)}"
            with self.when(inside), self.ranged(loop), self.valued(run, choice.then):
                self.picked(loop.body)

    def picked(self, nodes: tuple[Node, ...]) -> None:
        """What stands in the iteration of a loop that data pick."""
        self.block(nodes)

    # ------------------------------------------------------------ statements

    @contextmanager
    def valued(self, run: Run, value: Expr) -> Iterator[None]:
        """A statement has the value that it has in a branch."""
        mapped, scop = self.mapped, self.mapped.scop
        statements = tuple(replace(s, value=value) if s.name == run.statement else s for s in scop.statements)
        self.mapped = replace(mapped, scop=replace(scop, statements=statements))
        yield
        self.mapped = mapped

    def statement(self, run: Run) -> None:
        self.write(self.printer.store(*self.assignment(run)), stores=True)

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

    def place(self, tensor: str, subscripts: tuple[Expr, ...], names: list[str] | None = None) -> str:
        """The text of an element; a data-dependent subscript goes in by name or as text."""
        assert self.run_now is not None
        parts = []
        taken = iter(names or [])
        for sub in subscripts:
            linear = linear_subscript(sub, self.run_now, self.mapped.scop.values)
            parts.append(Linear.of(next(taken, "") or f"({self.printer.index(sub)})") if linear is None else linear)
        address = self.memory.address(self.mapped.scop.tensor(tensor), tuple(parts), self.marks, self.ranges)
        self.mentioned.add(address.base)
        return address.written(self.index)

    def value(self, expr: Expr, run: Run) -> Text:
        """An expression at an instance of a statement."""
        self.run_now = run
        return self.printer.value(expr)

    def pointer(self, tensor: str, subscripts: tuple[Expr, ...], run: Run) -> str:
        """The address of an element at an instance of a statement."""
        self.run_now = run
        return f"&{self.place(tensor, subscripts)}"

    def data_subscript(self, subscript: Expr) -> str:
        """A data-dependent subscript as an index to check: where its arithmetic wrapped, -1."""
        before, self.in_subscripts = self.in_subscripts, {id(part) for part in checked_parts(subscript)}
        text = str(self.printer.index(subscript))
        self.in_subscripts = before
        scalars = {p.name: p.dtype for p in self.mapped.scop.program.definition.params if not p.dims}
        wrapped = [self.printer.wrapped(expr) for expr in wrapping(subscript, scalars)] if self.checked else []
        return f"({' | '.join(wrapped)} ? -1 : {text})" if wrapped else text

    def target_at(self, expr: TargetSubscript) -> str:
        """A subscript of a left side that reads tensors; in checked mode one out of range, which picks no element, sets the flag."""
        subscript, extent = expr.args
        text = self.data_subscript(subscript)
        if not self.checked:
            return text
        return self.printer.target(text, self.printer.index(extent), self.printer.site("gather", tensor=expr.tensor, where=expr.where))

    def read(self, access: Access, printer: ExpressionPrinter) -> str:
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
        variable = name if kind == "size" else self.memory.names[name]
        self.mentioned.add(variable)
        return variable

    def index_value(self, value: Linear) -> str:
        """An index as an int64_t operand, or as a decimal literal."""
        return parenthesised(value, self.index(value))


def _given_bools(definition: Def) -> bool:
    """Whether a kernel reads bools that come from the caller."""
    given = [tensor.name for tensor in definition.tensors if tensor.role == "input"]
    return any(definition.tensor(name).dtype == "bool" for name in (*given, *accumulating(definition)))


def parenthesised(value: Linear, text: str) -> str:
    return text if value.is_operand else f"({text})"
