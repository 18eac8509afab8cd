"""Which sizes and scalars a kernel is specialised to: isl has no symbolic coefficients, divisors or moduli."""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from tcjit.grammar.ast import Access, Binary, Cast, Expr, Index, Param, Scalar, Size, Statement, Tensor
from tcjit.grammar.walk import children, walk


def specialised(params: Iterable[Param], statements: Iterable[Statement], tensors: Iterable[Tensor]) -> tuple[str, ...]:
    """Sizes that are a coefficient, divisor or modulus in index arithmetic, then the integer scalars that stand in any.

    Sizes come in the order of their appearance in ``params``. Works on extents of outputs (``T.0``) only once they are resolved.
    """
    found: set[str] = set()
    shapes = (extent for tensor in tensors if tensor.role == "input" for extent in tensor.shape)
    for expr in chain((e for statement in statements for e in _indices(statement)), shapes):
        for node in walk(expr):
            if isinstance(node, Scalar):
                found.add(node.name)
            elif isinstance(node, Binary) and node.op in "/%":
                found |= _names(node.right)
            elif isinstance(node, Binary) and node.op == "*":
                found |= _coefficients(node)
    params = tuple(params)
    names = dict.fromkeys(str(dim) for param in params for dim in param.dims)  # sizes, and integer scalars that are extents
    names |= {p.name: None for p in params if not p.dims and p.dtype.lstrip("u").startswith("int")}
    return tuple(name for name in names if name in found)


def _coefficients(product: Binary) -> set[str]:
    """The names in the factors without an index; none where the other factor is a number, or both have an index."""
    sides = (product.left, product.right)
    if not all(any(isinstance(node, (Index, Size, Scalar)) for node in walk(side)) for side in sides):
        return set()
    plain = [side for side in sides if not any(isinstance(node, Index) for node in walk(side))]
    return {name for side in plain for name in _names(side)}


def _names(expr: Expr) -> set[str]:
    return {node.name for node in walk(expr) if isinstance(node, (Size, Scalar))}


def _indices(statement: Statement) -> Iterator[Expr]:
    """Every expression of ``statement`` in index arithmetic: subscripts, bounds, affine comparisons."""
    yield from statement.subscripts
    for clause in statement.clauses:
        yield from (clause.lower, clause.upper)
    yield from filter(None, statement.extents)
    for root in (statement.value, *statement.exists):
        for node in walk(root):
            if isinstance(node, Access):
                yield from node.subscripts
            elif is_affine_comparison(node):
                yield from children(node)
    for expr in statement.exists:
        yield from (node for node in walk(expr) if isinstance(node, Scalar) and node.dtype.lstrip("u").startswith("int"))


def is_affine_comparison(node: Expr) -> bool:
    """Whether ``node`` compares index arithmetic, which the checker types as int64 without a read or a conversion."""
    return (
        isinstance(node, Binary)
        and node.op in ("<", "<=", ">", ">=", "==", "!=")
        and node.left.dtype == "int64"
        and not any(isinstance(inner, (Access, Cast)) for inner in walk(node))
    )
