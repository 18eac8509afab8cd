"""Which values share memory, and whose memory something writes to: one pass over a model's blocks, without regard to order.

After Steensgaard's points-to analysis: values that may be the same memory are one cell; a list or tuple is a cell with another cell for all
that it holds. More is taken to be shared than is, never less.
"""
from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from tcjit.byoc.graph import Block, Node, Value, captured, values_of
from tcjit.byoc.ops import operator, written
from tcjit.errors import PartitionError

# what only moves values into lists, tuples and dictionaries or out of them
_CONTAINERS = frozenset(
    f"prim.{name}"
    for name in "TupleConstruct ListConstruct DictConstruct TupleUnpack ListUnpack TupleIndex TupleSlice unchecked_cast data".split()
)


def mutated(block: Block, holders: Mapping[Value, str], shared: Iterable[tuple[Value, Hashable]] = ()) -> frozenset[Value]:
    """The values of a block and all blocks inside whose memory something writes to, or would seem to if a view of it became a copy.

    ``holders`` names what is no tensor but may hold some. ``shared``: constants, and what else has memory known by a name; those of one
    name share it. What is given from outside may share memory as well.
    """
    memory = _AliasClasses(holders)
    constants = list(shared)
    names: dict[Hashable, Value] = {}
    for value, name in constants:
        memory.link(value, names.setdefault(name, value))
    memory.link_all(block.inputs)
    memory.visit(block)
    memory.expose(block, [value for value, _ in constants])
    return frozenset(value for value in memory.cells if memory.touched(value))


class _AliasClasses:
    def __init__(self, holders: Mapping[Value, str]) -> None:
        self.holders = holders
        self.cells: dict[Value, int] = {}
        self.root: list[int] = []
        self.inside: dict[int, int] = {}  # what a cell of a list or tuple holds
        self.written: set[int] = set()
        self.attributes: dict[str, Value] = {}

    def find(self, cell: int) -> int:
        while self.root[cell] != cell:
            self.root[cell] = self.root[self.root[cell]]
            cell = self.root[cell]
        return cell

    def new(self) -> int:
        self.root.append(len(self.root))
        return self.root[-1]

    def cell(self, value: Value) -> int:
        if value not in self.cells:
            self.cells[value] = self.new()
        return self.find(self.cells[value])

    def contents(self, cell: int) -> int:
        cell = self.find(cell)
        if cell not in self.inside:
            self.inside[cell] = self.new()
        return self.find(self.inside[cell])

    def join(self, first: int, second: int) -> None:
        pending = [(first, second)]
        while pending:
            one, other = map(self.find, pending.pop())
            if one == other:
                continue
            self.root[other] = one
            if other in self.written:
                self.written.add(one)
            if other in self.inside:
                inner = self.inside.pop(other)
                if one in self.inside:
                    pending.append((self.inside[one], inner))
                else:
                    self.inside[one] = inner

    def link(self, one: Value, other: Value) -> None:
        """Two values may share memory, one may be held by the other."""
        first, second = self.cell(one), self.cell(other)
        if (one in self.holders) != (other in self.holders):
            holder, part = (first, second) if one in self.holders else (second, first)
            self.join(self.contents(holder), part)
        elif one in self.holders:
            self.join(self.contents(first), first)  # either may hold the other
            self.join(first, second)
        else:
            self.join(first, second)

    def carries(self, value: Value) -> bool:
        return value.type is not None or value in self.holders

    def link_all(self, values: Iterable[Value]) -> None:
        carrying = [value for value in values if self.carries(value)]
        for value in carrying[1:]:
            self.link(carrying[0], value)

    def visit(self, block: Block) -> None:
        for node in block.nodes:
            for inner in node.blocks:
                self.visit(inner)
            self.node(node)

    def node(self, node: Node) -> None:
        everything = [*node.inputs, *node.outputs]
        if node.op == "prim.If":
            for place, value in enumerate(node.outputs):
                self.same([value, *(inner.outputs[place] for inner in node.blocks)])
        elif node.op == "prim.Loop":
            carried = node.arguments["carried"]
            assert isinstance(carried, tuple)
            (body,) = node.blocks
            for value, start, inner, end in zip(node.outputs, carried, body.inputs[1:], body.outputs[1:]):
                self.same([value, *values_of(start), inner, end])
        elif node.op in ("prim.GetAttr", "prim.SetAttr"):
            for value in everything:
                if self.carries(value):
                    self.same([self.attributes.setdefault(str(node.arguments["name"]), value), value])
        elif node.op in _CONTAINERS:
            self.contain(node)
        else:
            self.operation(node, everything)

    def same(self, values: list[Value]) -> None:
        for value in values[1:]:
            if self.carries(values[0]) or self.carries(value):
                self.join(self.cell(values[0]), self.cell(value))

    def contain(self, node: Node) -> None:
        if node.op in ("prim.unchecked_cast", "prim.data", "prim.TupleSlice"):
            self.same([*node.inputs[:1], *node.outputs])
            return
        whole, parts = (node.outputs[:1], node.inputs) if node.op.endswith("Construct") else (node.inputs[:1], node.outputs)
        for holder in whole:
            for part in parts:
                if self.carries(part):
                    self.join(self.contents(self.cell(holder)), self.cell(part))

    def operation(self, node: Node, everything: list[Value]) -> None:
        try:
            found = operator(node.op, node.overload)
        except PartitionError:
            found = None
        if found is None:
            if node.effect:  # of an operation that nobody knows
                self.link_all(everything)
                self.written.update(self.reached(everything))
            return
        marks = {each.name: each.alias_info for each in found._schema.arguments}
        targets = [value for name in written(found, node.arguments) for value in values_of(node.arguments.get(name))]
        for value in targets:
            self.written.add(self.cell(value))
        if any(value in self.holders for value in targets):
            self.link_all(everything)  # a list takes up what it is given
        marked = [v for name, argument in node.arguments.items() if marks.get(name) is not None for v in values_of(argument)]
        if any(each.alias_info is not None for each in found._schema.returns):
            self.link_all([*marked, *node.outputs] if marked else everything)
        elif node.effect == "view" or any(value in self.holders for value in node.outputs):
            self.link_all(everything)  # a sum or slice of lists holds the very tensors

    def reached(self, values: Iterable[Value]) -> set[int]:
        """The cells of values and of all that they hold."""
        found: set[int] = set()
        pending = [self.cell(value) for value in values if self.carries(value)]
        while pending:
            cell = self.find(pending.pop())
            if cell not in found:
                found.add(cell)
                if cell in self.inside:
                    pending.append(self.inside[cell])
        return found

    def touched(self, value: Value) -> bool:
        return any(self.find(each) in self.written for each in self.reached([value]))

    def expose(self, block: Block, constants: Iterable[Value]) -> None:
        """A view that leaves its block would be told apart from a copy where a way leads to its memory that goes through no view, but
        through a list, a branch or a loop: such memory counts as written to."""
        held = set(map(self.find, self.inside.values()))
        roots: dict[int, set[Value]] = {}
        for value in (*constants, *block.inputs):
            roots.setdefault(self.cell(value), set()).add(value)
        self.look(block, roots, held)
        self.written = set(map(self.find, self.written))

    def look(self, block: Block, around: Mapping[int, set[Value]], held: set[int]) -> None:
        """One block; ``around`` are the values, by cell, that are the first to have their memory here and outside."""
        roots = {cell: set(values) for cell, values in around.items()}
        leaving = set(block.outputs).union(*(captured(inner) for node in block.nodes for inner in node.blocks))
        leaving.update(value for node in block.nodes if node.blocks for value in node.inputs)  # a loop of no iteration passes them on
        views = [node for node in block.nodes if node.effect == "view" and any(value.type is not None for value in node.inputs)]
        derived = {value for node in views for value in node.outputs}
        for value in block.values:
            if value not in derived:
                roots.setdefault(self.cell(value), set()).add(value)
        for value in derived:
            cell = self.cell(value)
            if cell in held or (value in leaving and len(roots.get(cell, ())) > 1):
                self.written.add(cell)
        for node in block.nodes:
            for inner in node.blocks:
                self.look(inner, {cell: values.difference(node.outputs) for cell, values in roots.items()}, held)
