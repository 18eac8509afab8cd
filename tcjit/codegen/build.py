"""From a mapped schedule tree to loops, through isl's AST generator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import islpy as isl

from tcjit.codegen.loops import BooleanOp, Compare, Condition, For, If, MarkNode, Node, Run, TileRun, runs, substitute
from tcjit.dataclass import dataclass
from tcjit.errors import MappingError
from tcjit.grammar.linear import Linear, combine
from tcjit.mapping import marks
from tcjit.mapping.isl import identifier, union_map
from tcjit.mapping.pipeline import Digits, Mapped
from tcjit.mapping.tree import KIND, kind, mark_of, rewrite

# islpy's stubs lack the names that end in an underscore, and type the values as int
_NODE: Any = isl.ast_node_type
_EXPR: Any = isl.ast_expr_type
_OP: Any = isl.ast_expr_op_type
_COMPARE = {_OP.eq: "==", _OP.le: "<=", _OP.lt: "<", _OP.ge: ">=", _OP.gt: ">"}
_CHOICE = (_OP.cond, _OP.select)
_LOGIC = {_OP.and_: "&&", _OP.or_: "||", _OP.and_then: "&&", _OP.or_else: "||"}


def build(mapped: Mapped) -> tuple[Node, ...]:
    """The loops of a mapped program; those that become blocks and threads stand there even where they run once."""
    if not mapped.scop.statements:
        return ()
    ctx = mapped.scop.ctx
    ctx.set_ast_build_detect_min_max(1)
    ctx.set_ast_build_exploit_nested_bounds(1)
    shared = any(s.outer is not None for s in mapped.scop.statements)
    together = shared or bool(mapped.scop.tile_statements) or bool(mapped.privates and not mapped.launches)
    ctx.set_ast_build_group_coscheduled(int(together))  # buffers stay with all that use them
    builder = isl.AstBuild.from_context(mapped.scop.sizes)
    walker = _GpuBuilder(mapped) if mapped.launches else _Builder(mapped)
    try:
        nodes = walker.nodes(walker.generate(builder))
    except isl.Error as error:
        raise MappingError(f"no loops could be generated for the mapped tree: {error}") from None
    if together:
        _refuse_torn(mapped, nodes)
    return nodes


def _refuse_torn(mapped: Mapped, nodes: tuple[Node, ...]) -> None:
    """A MappingError where isl took apart what shares a buffer: it moves a loop that it knows to run once below a sequence."""
    users: dict[marks.Mark, set[str]] = {}
    for buffer in mapped.privates:
        for s in mapped.scop.statements:
            if buffer.tensor in (s.tensor, *(access.tensor for access, _ in s.reads)):
                users.setdefault(buffer.mark, set()).add(s.name)
    found = [
        (node.mark, {run.statement for run in runs(node.body)} & users[node.mark], branches)
        for node, branches in _marks(nodes, {})
        if node.mark in users
    ]
    for mark, below, branches in found:
        for other, there, elsewhere in found:
            exclusive = any(elsewhere.get(branch, side) != side for branch, side in branches.items())
            if mark == other and below and there - below and not exclusive:
                hint = "fixed sizes, or private_buffers=False"
                raise MappingError("isl's loops take a tile apart whose statements share a buffer", hint=hint)


def _marks(nodes: tuple[Node, ...], branches: Mapping[int, bool]) -> Iterator[tuple[MarkNode, Mapping[int, bool]]]:
    """All marks, each with the side of every branch that it is on."""
    for node in nodes:
        if isinstance(node, If):
            yield from _marks(node.then, {**branches, id(node): True})
            yield from _marks(node.other, {**branches, id(node): False})
        elif isinstance(node, (For, MarkNode)):
            if isinstance(node, MarkNode):
                yield node, branches
            yield from _marks(node.body, branches)


class _Builder:
    """Walks isl's AST; every loop gets a name of its own, ``c0`` outermost."""

    def __init__(self, mapped: Mapped) -> None:
        self.mapped = mapped

    def generate(self, builder: isl.AstBuild) -> isl.AstNode:
        return builder.node_from_schedule(self.mapped.tree)

    def dims(self, name: str, values: list[Linear]) -> list[Linear]:
        """The values of a statement's dimensions, from those that isl has for an instance."""
        return values

    def nodes(self, node: isl.AstNode) -> tuple[Node, ...]:
        here = node.get_type()
        if here == _NODE.block:
            return tuple(n for child in _children(node) for n in self.nodes(child))
        if here == _NODE.for_:
            return self.loop(node)
        if here == _NODE.if_:
            other = self.nodes(node.if_get_else_node()) if node.if_has_else_node() else ()
            return (If(condition(node.if_get_cond()), self.nodes(node.if_get_then_node()), other),)
        if here == _NODE.mark:
            return (self.mark(str(node.mark_get_id().get_name()), node.mark_get_node()),)
        return (self.call(node),)

    def mark(self, name: str, below: isl.AstNode) -> MarkNode:
        return MarkNode(marks.parse(name), self.nodes(below))

    def call(self, node: isl.AstNode) -> Run | TileRun:
        call = node.user_get_expr()
        name = str(call.get_op_arg(0).get_id().get_name())
        values = [from_ast(call.get_op_arg(i)) for i in range(1, call.get_op_n_arg())]
        if name in self.mapped.scop.tile_statements:
            tiled, kind = self.mapped.scop.tile_statements[name]
            return TileRun(tiled.name, kind, tuple(values))
        statement = self.mapped.scop.statement(name)
        return Run(name, tuple(zip(statement.dims, self.dims(name, values), strict=True)))

    def loop(self, node: isl.AstNode) -> tuple[Node, ...]:
        variable, lower, body = _variable(node), from_ast(node.for_get_init()), self.nodes(node.for_get_body())
        if node.for_is_degenerate():  # isl names the variable only in the body
            return tuple(substitute(n, {variable: lower}) for n in body)
        return (For(variable, lower, _upper(node), node.for_get_inc().get_val().to_python(), body),)


@dataclass(frozen=True)
class _Members:
    """Members of a band directly below a ``Grid`` or ``Threads`` mark, which are still to come on the way down."""

    depth: int  # of the next one: isl calls its loop ``c`` and this number
    times: tuple[isl.UnionPwAff, ...]

    def without(self, count: int) -> _Members:
        return _Members(self.depth + count, self.times[count:])


class _GpuBuilder(_Builder):
    """Keeps the loops that blocks and threads run: isl drops one whose value is known, but its mark counts on it.

    Such marks get a name of their own while isl works, so that the band below one is found again; what a dropped loop's variable would be
    follows from the iteration space at any instance below it.
    """

    def __init__(self, mapped: Mapped) -> None:
        super().__init__(mapped)
        self.bands: dict[str, tuple[marks.Mark, _Members]] = {}  # by those names
        self.leaves: list[tuple[isl.AstBuild, isl.PwMultiAff]] = []

    def dims(self, name: str, values: list[Linear]) -> list[Linear]:
        if name not in self.mapped.digits:
            return values
        left = iter(values)
        found = []
        for lower, digits in self.mapped.digits[name]:
            total = Linear.of(lower)
            for weight, _ in digits:
                total = total + next(left).times(weight)
            found.append(total)
        return found

    def in_digits(self) -> isl.Schedule:
        """The tree over the digits of its statements' dimensions."""
        parts = [_map_of_digits(name, found) for name, found in self.mapped.digits.items()]
        if not parts:
            return self.mapped.tree
        back = isl.UnionPwMultiAff.from_union_map(union_map(self.mapped.scop.ctx, parts))
        return self.mapped.tree.pullback_union_pw_multi_aff(back)

    def generate(self, builder: isl.AstBuild) -> isl.AstNode:
        tree = rewrite(self.in_digits(), self.numbered)
        raised: list[BaseException] = []

        def leaf(node: isl.AstNode, build: isl.AstBuild) -> isl.AstNode:
            try:
                times = isl.Map.from_union_map(build.get_schedule())
                self.leaves.append((build.copy(), isl.PwMultiAff.from_map(times.reverse())))
                return node.set_annotation(identifier(self.mapped.scop.ctx, f"leaf{len(self.leaves) - 1}"))
            except BaseException as error:  # isl prints and swallows what a callback raises
                raised.append(error)
                return node

        builder, handle = builder.set_at_each_domain(leaf)
        made = builder.node_from_schedule(tree)
        del handle  # which held the callback until here
        if raised:
            raise raised[0]
        return made

    def numbered(self, node: isl.ScheduleNode) -> isl.ScheduleNode:
        mark = mark_of(node)
        if not isinstance(mark, marks.Grid | marks.Threads):
            return node
        band = node.child(0)
        if kind(band) != KIND.band:
            raise MappingError(f"no band stands below the mark '{mark}'")
        partial = band.band_get_partial_schedule()
        times = tuple(partial.get_at(position) for position in range(band.band_n_member()))
        name = f"band{len(self.bands)}"
        self.bands[name] = mark, _Members(band.get_schedule_depth(), times)
        return band.parent().delete().insert_mark(identifier(self.mapped.scop.ctx, name))

    def mark(self, name: str, below: isl.AstNode) -> MarkNode:
        if name not in self.bands:
            return super().mark(name, below)
        mark, members = self.bands[name]
        return MarkNode(mark, self.kept(below, members))

    def kept(self, node: isl.AstNode, members: _Members) -> tuple[Node, ...]:
        """The nodes, with a loop for every member."""
        here = node.get_type()
        if not members.times:
            return self.nodes(node)
        if here == _NODE.block:
            return tuple(n for child in _children(node) for n in self.kept(child, members))
        if here == _NODE.if_:
            other = self.kept(node.if_get_else_node(), members) if node.if_has_else_node() else ()
            return (If(condition(node.if_get_cond()), self.kept(node.if_get_then_node(), members), other),)
        if here == _NODE.for_ and _variable(node) == f"c{members.depth}":
            lower = from_ast(node.for_get_init())
            upper = lower if node.for_is_degenerate() else _upper(node)
            step = 1 if node.for_is_degenerate() else node.for_get_inc().get_val().to_python()
            return (For(f"c{members.depth}", lower, upper, step, self.kept(node.for_get_body(), members.without(1))),)
        value = self.value(node, members.times[0])
        return (For(f"c{members.depth}", value, value, 1, self.kept(node, members.without(1))),)

    def value(self, node: isl.AstNode, time: isl.UnionPwAff) -> Linear:
        """What a schedule dimension without a loop is, from the first instance below."""
        while node.get_type() != _NODE.user:
            node = _children(node)[0]
        build, instances = self.leaves[int(node.get_annotation().get_name()[4:])]
        there = time.pullback_union_pw_multi_aff(isl.UnionPwMultiAff.from_pw_multi_aff(instances))
        return from_ast(build.expr_from_pw_aff(there.get_pw_aff_list().get_at(0)))


def _map_of_digits(statement: str, found: Digits) -> str:
    """``{ S[digits] -> S[dims] }``: one to one, since every weight is that of the digit below times its count."""
    names, sums, facts = [], [], []
    for axis, (lower, digits) in enumerate(found):
        terms = [str(lower)]
        for place, (weight, count) in enumerate(digits):
            below = digits[place + 1] if place + 1 < len(digits) else (1, 1)
            if weight != below[0] * below[1]:
                raise MappingError(f"the digits {digits} of {statement} do not count every value once")
            names.append(f"d{axis}_{place}")
            terms.append(f"{weight} * {names[-1]}")
            facts.append(f"0 <= {names[-1]} < {count}")
        sums.append(" + ".join(terms))
    where = f" : {' and '.join(facts)}" if facts else ""
    return f"{statement}[{', '.join(names)}] -> {statement}[{', '.join(sums)}]{where}"


def _children(node: isl.AstNode) -> list[isl.AstNode]:
    here = node.get_type()
    if here == _NODE.block:
        listed = node.block_get_children()
        return [listed.get_at(i) for i in range(listed.n_ast_node())]
    if here == _NODE.if_:
        return [node.if_get_then_node()]
    return [node.for_get_body() if here == _NODE.for_ else node.mark_get_node()]


def _variable(node: isl.AstNode) -> str:
    return str(node.for_get_iterator().get_id().get_name())


def _upper(node: isl.AstNode) -> Linear:
    condition = node.for_get_cond()
    upper = from_ast(condition.get_op_arg(1))
    return upper - 1 if condition.get_op_type() == _OP.lt else upper


def from_ast(expr: isl.AstExpr) -> Linear:
    """An isl AST expression in normal form."""
    kind = expr.get_type()
    if kind == _EXPR.id:
        return Linear.of(str(expr.get_id().get_name()))
    if kind == _EXPR.int:
        return Linear.of(int(expr.get_val().to_python()))
    op = expr.get_op_type()
    first = 1 if op in _CHOICE else 0
    args = [from_ast(expr.get_op_arg(i)) for i in range(first, expr.get_op_n_arg())]
    if op in _CHOICE and (distance := args[0] - args[1]).is_constant:
        return args[1] + indicator(condition(expr.get_op_arg(0))).times(distance.constant)
    if op == _OP.add:
        return args[0] + args[1]
    if op == _OP.sub:
        return args[0] - args[1]
    if op == _OP.minus:
        return args[0].times(-1)
    if op == _OP.mul:
        scale, value = (args[0], args[1]) if args[0].is_constant else (args[1], args[0])
        if scale.is_constant:
            return value.times(scale.constant)
    if op in (_OP.fdiv_q, _OP.pdiv_q, _OP.div):
        return combine("floor", (args[0], args[1]))
    if op in (_OP.pdiv_r, _OP.zdiv_r):
        return combine("mod", (args[0], args[1]))
    if op in (_OP.min, _OP.max):
        return combine("min" if op == _OP.min else "max", tuple(args))
    raise MappingError(f"isl generated an expression that the printer does not know: {expr.to_C_str()}")


def indicator(holds: Condition) -> Linear:
    """1 where a condition holds, 0 elsewhere."""
    if isinstance(holds, BooleanOp):
        return combine("min" if holds.op == "&&" else "max", (indicator(holds.left), indicator(holds.right)))
    if holds.op in ("==", "!="):
        equal = combine("min", (indicator(Compare(holds.left, "<=", holds.right)), indicator(Compare(holds.left, ">=", holds.right))))
        return equal if holds.op == "==" else Linear.of(1) - equal
    less, more = (holds.left, holds.right) if "<" in holds.op else (holds.right, holds.left)
    room = more - less + (1 if "=" in holds.op else 0)
    return combine("max", (Linear.of(0), combine("min", (Linear.of(1), room))))


def condition(expr: isl.AstExpr) -> Condition:
    """An isl AST condition."""
    op = expr.get_op_type() if expr.get_type() == _EXPR.op else None
    if op in _COMPARE:
        return Compare(from_ast(expr.get_op_arg(0)), _COMPARE[op], from_ast(expr.get_op_arg(1)))
    if op in _LOGIC:
        return BooleanOp(condition(expr.get_op_arg(0)), _LOGIC[op], condition(expr.get_op_arg(1)))
    return Compare(from_ast(expr), "!=", Linear.of(0))
