"""Walking expressions: children, all nodes, rebuilding, and how large a tree is."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from tcjit.grammar.ast import Access, Apply, Binary, Call, Cast, Expr, Select, Unary

# Every walk over a tree is recursive; trees no deeper than this keep all of them far from Python's recursion limit.
MAX_DEPTH = 150
# Lets and calls share what they substitute, and a walk visits it once per use; more nodes than this is no program but a bomb.
MAX_NODES = 100_000


def children(expr: Expr) -> tuple[Expr, ...]:
    """The operands of ``expr``, in the order of the text."""
    match expr:
        case Cast() | Unary():
            return (expr.operand,)
        case Binary():
            return (expr.left, expr.right)
        case Select():
            return (expr.condition, expr.then, expr.other)
        case Apply() | Call():
            return expr.args
        case Access():
            return expr.subscripts
        case _:
            return ()


def walk(expr: Expr) -> Iterator[Expr]:
    """Every node of ``expr``, itself first, then its operands in the order of the text."""
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(children(node)))


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


def measure(roots: Iterable[Expr]) -> tuple[int, int]:
    """The depth and the number of nodes of ``roots`` as trees, in time linear in the distinct nodes and without recursion."""
    known: dict[int, tuple[int, int]] = {}
    depth = nodes = 0
    for root in roots:
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if id(node) in known:
                continue
            below = children(node)
            if ready:
                sizes = [known[id(child)] for child in below]
                known[id(node)] = (1 + max((d for d, _ in sizes), default=0), 1 + sum(n for _, n in sizes))
            else:
                stack.append((node, True))
                stack.extend((child, False) for child in below)
        depth = max(depth, known[id(root)][0])
        nodes += known[id(root)][1]
    return depth, nodes
