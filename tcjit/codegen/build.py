"""From a mapped schedule tree to loops, through isl's AST generator."""

from __future__ import annotations

import re
from typing import Any

import islpy as isl

from tcjit.codegen.linear import Linear, combine
from tcjit.codegen.loops import For, If, Mark, Node, Run
from tcjit.errors import MappingError
from tcjit.mapping.pipeline import Mapped

# islpy's stubs lack the names that end in an underscore, and type the values as int
_NODE: Any = isl.ast_node_type
_EXPR: Any = isl.ast_expr_type
_OP: Any = isl.ast_expr_op_type
_COMPARE = {_OP.eq: "==", _OP.le: "<=", _OP.lt: "<", _OP.ge: ">=", _OP.gt: ">"}
_LOGIC = {_OP.and_: "&&", _OP.or_: "||", _OP.and_then: "&&", _OP.or_else: "||"}


def build(mapped: Mapped) -> tuple[Node, ...]:
    """The loops of a mapped program."""
    if not mapped.scop.statements:
        return ()
    ctx = mapped.scop.ctx
    ctx.set_ast_build_detect_min_max(1)
    ctx.set_ast_build_exploit_nested_bounds(1)
    builder = isl.AstBuild.from_context(isl.Set.read_from_str(ctx, "{ : }"))
    try:
        tree = builder.node_from_schedule(mapped.tree)
    except isl.Error as error:
        raise MappingError(f"no loops could be generated for the mapped tree: {error}") from None
    return _Builder(mapped).nodes(tree)


class _Builder:
    """Walks isl's AST; every loop gets a name of its own, ``c0`` outermost."""

    def __init__(self, mapped: Mapped) -> None:
        self.mapped = mapped

    def nodes(self, node: isl.AstNode) -> tuple[Node, ...]:
        kind = node.get_type()
        if kind == _NODE.block:
            children = node.block_get_children()
            return tuple(n for i in range(children.n_ast_node()) for n in self.nodes(children.get_at(i)))
        if kind == _NODE.for_:
            return self.loop(node)
        if kind == _NODE.if_:
            other = self.nodes(node.if_get_else_node()) if node.if_has_else_node() else ()
            return (If(condition_text(node.if_get_cond()), self.nodes(node.if_get_then_node()), other),)
        if kind == _NODE.mark:
            return (Mark(str(node.mark_get_id().get_name()), self.nodes(node.mark_get_node())),)
        call = node.user_get_expr()
        name = str(call.get_op_arg(0).get_id().get_name())
        statement = self.mapped.scop.statement(name)
        values = [linear(call.get_op_arg(i)) for i in range(1, call.get_op_n_arg())]
        return (Run(name, tuple(zip(statement.dims, values, strict=True))),)

    def loop(self, node: isl.AstNode) -> tuple[Node, ...]:
        variable = str(node.for_get_iterator().get_id().get_name())
        lower = linear(node.for_get_init())
        body = self.nodes(node.for_get_body())
        if node.for_is_degenerate():
            return tuple(replace_variable(n, variable, lower) for n in body)
        condition = node.for_get_cond()
        upper = linear(condition.get_op_arg(1))
        if condition.get_op_type() == _OP.lt:
            upper = upper - 1
        return (For(variable, lower, upper, node.for_get_inc().get_val().to_python(), body),)


def replace_variable(node: Node, variable: str, value: Linear) -> Node:
    """The node with a loop variable replaced; isl names a degenerate loop's variable only in its body."""
    values = {variable: value}
    if isinstance(node, Run):
        return Run(node.statement, tuple((d, e.substitute(values)) for d, e in node.indices), node.shift)
    if isinstance(node, For):
        body = tuple(replace_variable(n, variable, value) for n in node.body)
        return For(node.variable, node.lower.substitute(values), node.upper.substitute(values), node.step, body)
    if isinstance(node, Mark):
        return Mark(node.name, tuple(replace_variable(n, variable, value) for n in node.body))
    text = f"({value.text})"
    then = tuple(replace_variable(n, variable, value) for n in node.then)
    other = tuple(replace_variable(n, variable, value) for n in node.other)
    return If(_replace_word(node.condition, variable, text), then, other)


def _replace_word(text: str, word: str, replacement: str) -> str:
    return re.sub(rf"\b{re.escape(word)}\b", lambda _: replacement, text)


def linear(expr: isl.AstExpr) -> Linear:
    """An isl AST expression in normal form."""
    kind = expr.get_type()
    if kind == _EXPR.id:
        return Linear.of(str(expr.get_id().get_name()))
    if kind == _EXPR.int:
        return Linear.of(int(expr.get_val().to_python()))
    op = expr.get_op_type()
    args = [linear(expr.get_op_arg(i)) for i in range(expr.get_op_n_arg())]
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


def condition_text(expr: isl.AstExpr) -> str:
    """An isl AST condition as C text."""
    if expr.get_type() != _EXPR.op:
        return linear(expr).text
    op = expr.get_op_type()
    if op in _COMPARE:
        left, right = linear(expr.get_op_arg(0)), linear(expr.get_op_arg(1))
        return f"{left.text} {_COMPARE[op]} {right.text}"
    if op in _LOGIC:
        return f"({condition_text(expr.get_op_arg(0))}) {_LOGIC[op]} ({condition_text(expr.get_op_arg(1))})"
    return linear(expr).text
