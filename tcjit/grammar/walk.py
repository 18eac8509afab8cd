"""Walking expressions: children, all nodes, rebuilding, and how large a tree is."""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

from tcjit.grammar.ast import (
    Access,
    Apply,
    Binary,
    Call,
    Cast,
    Clause,
    Const,
    Expr,
    ExtentClause,
    Index,
    RangeClause,
    Select,
    TargetSubscript,
    Unary,
)

# Every walk over a tree is recursive. Trees no deeper than the first keep all of them far from Python's recursion limit; a flat sum or
# product is no deeper than its terms to a reader, but a tree as high as it is long, up to the second.
MAX_DEPTH = 150
MAX_HEIGHT = 1_200
_OPERAND = Const(0, dtype="int64")  # stands for every operand where nodes are compared without them
_FRAMES = 10  # of Python's that a walk has at most for each level of a tree
# Lets and calls share what they substitute, and a walk visits it once per use; more nodes than this is no program but a bomb.
MAX_NODES = 100_000


# a table, since most of the time of a walk is here
_OPERANDS: dict[type, Callable[[Any], tuple[Expr, ...]]] = {
    Cast: lambda expr: (expr.operand,),
    Unary: lambda expr: (expr.operand,),
    Binary: attrgetter("left", "right"),
    Select: attrgetter("condition", "then", "other"),
    Apply: attrgetter("args"),
    Call: attrgetter("args"),
    TargetSubscript: attrgetter("args"),
    Access: attrgetter("subscripts"),
}


def children(expr: Expr) -> tuple[Expr, ...]:
    """The operands of ``expr``, in the order of the text."""
    found = _OPERANDS.get(type(expr))
    return found(expr) if found is not None else ()


def operands(clause: Clause) -> tuple[Expr, ...]:
    """The expressions of a clause, in the order of the text."""
    match clause:
        case RangeClause():
            return clause.lower, clause.upper
        case ExtentClause():
            return clause.subscript, clause.lower, clause.upper
        case _:
            return (clause.value,)


def walk(expr: Expr) -> Iterator[Expr]:
    """Every node of ``expr``, itself first, then its operands in the order of the text."""
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        stack += children(node)[::-1]


def factors(expr: Expr) -> Iterator[Expr]:
    """Those of a product of one type, in the order of the text; of anything else itself."""
    if isinstance(expr, Binary) and expr.op == "*" and expr.left.dtype == expr.right.dtype == expr.dtype:
        yield from factors(expr.left)
        yield from factors(expr.right)
    else:
        yield expr


def addends(expr: Expr) -> list[Expr]:
    """Those of a sum of one type, in the order of the text; of anything else itself."""
    if isinstance(expr, Binary) and expr.op == "+" and expr.left.dtype == expr.right.dtype == expr.dtype:
        return [*addends(expr.left), *addends(expr.right)]
    return [expr]


def wide_factors(expr: Expr) -> Iterator[Expr]:
    """The factors of a product; of one of halves that is converted to float32, in which halves are computed, the converted ones."""
    if isinstance(expr, Cast) and expr.dtype == "float32" and expr.operand.dtype in ("float16", "bfloat16"):
        yield from (Cast(factor, dtype=expr.dtype) for factor in factors(expr.operand))
    else:
        yield from factors(expr)


def rebuild(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """``expr`` with ``change`` applied to each operand; the same object where nothing changed."""
    old = children(expr)
    new = tuple(change(child) for child in old)
    if all(a is b for a, b in zip(old, new, strict=True)):
        return expr
    match expr:
        case Cast() | Unary():
            return replace(expr, operand=new[0])
        case Binary():
            return replace(expr, left=new[0], right=new[1])
        case Select():
            return replace(expr, condition=new[0], then=new[1], other=new[2])
        case Access():
            return replace(expr, subscripts=new)
        case Apply() | Call():
            return replace(expr, args=new)
    raise TypeError(f"{type(expr).__name__} has no operands")  # unreachable: children() is empty for the others


def same_node(one: Expr, other: Expr) -> bool:
    """Whether two expressions are the same but for their operands."""
    return rebuild(one, lambda _: _OPERAND) == rebuild(other, lambda _: _OPERAND)


def replaced(expr: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """``expr`` with others for some of its parts."""
    return values[expr] if expr in values else rebuild(expr, lambda part: replaced(part, values))


def with_names(expr: Expr, names: Mapping[str, str]) -> Expr:
    """``expr`` with other names for indices."""
    if isinstance(expr, Index):
        return replace(expr, name=names.get(expr.name, expr.name))
    return rebuild(expr, lambda part: with_names(part, names))


def with_indices(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """``expr`` with values in the place of indices."""
    if isinstance(expr, Index):
        return values.get(expr.name, expr)
    return rebuild(expr, lambda part: with_indices(part, values))


def with_index(expr: Expr, name: str, value: Expr) -> Expr:
    """``expr`` with an index replaced; where it stands as a value, in ``int32``, its replacement is converted to that."""
    if isinstance(expr, Index) and expr.name == name:
        return value if value.dtype == expr.dtype else Cast(value, dtype=expr.dtype)
    return rebuild(expr, lambda part: with_index(part, name, value))


def with_accesses(expr: Expr, change: Callable[[Access], Expr]) -> Expr:
    """``expr`` with every access changed, those in subscripts of others first."""
    inner = rebuild(expr, lambda part: with_accesses(part, change))
    return change(inner) if isinstance(inner, Access) else inner


def with_elements(expr: Expr, change: Callable[[Access], Expr]) -> Expr:
    """``expr`` with every access changed, but those in subscripts of others."""
    return change(expr) if isinstance(expr, Access) else rebuild(expr, lambda part: with_elements(part, change))


class Measure(NamedTuple):
    """``depth`` is how deep operations nest, a chain of ``+ -`` or of ``* / %`` counting as one; ``height`` that of the tree."""

    depth: int
    height: int
    nodes: int


def measure(roots: Iterable[Expr]) -> Measure:
    """How large ``roots`` are as trees, in time linear in the distinct nodes and without recursion."""
    known: dict[int, Measure] = {}
    depth = height = nodes = 0
    for root in roots:
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if id(node) in known:
                continue
            below = children(node)
            if ready:
                sizes = [known[id(child)] for child in below]
                inner = [size.depth - _continues(node, child) for size, child in zip(sizes, below)]
                higher = max((size.height for size in sizes), default=0)
                known[id(node)] = Measure(1 + max(inner, default=0), 1 + higher, 1 + sum(size.nodes for size in sizes))
            else:
                stack.append((node, True))
                stack.extend((child, False) for child in below)
        depth, height = max(depth, known[id(root)].depth), max(height, known[id(root)].height)
        nodes += known[id(root)].nodes
    return Measure(depth, height, nodes)


def _continues(node: Expr, child: Expr) -> bool:
    """Whether ``child`` is the beginning of the sum or product that ``node`` ends."""
    if not isinstance(node, Binary) or child is not node.left:
        return False
    while isinstance(child, Cast):  # of a sum so far, to the type of the next term
        child = child.operand
    return isinstance(child, Binary) and any(node.op in chain and child.op in chain for chain in ("+-", "*/%"))


def excess(size: Measure) -> str:
    """What of a tree is too much for walks, in words; where nothing is, Python is given the room that they need."""
    if size.depth > MAX_DEPTH:
        return f"nests more than {MAX_DEPTH} operations deep"
    if size.height > MAX_HEIGHT:
        return f"has more than {MAX_HEIGHT} operations in a row"
    if size.nodes > MAX_NODES:
        return f"has more than {MAX_NODES} operations"
    if size.height > MAX_DEPTH:
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 1_000 + _FRAMES * size.height))
    return ""
