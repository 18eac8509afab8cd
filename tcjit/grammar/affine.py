"""What isl can be told of an expression: its text where it is quasi-affine, and the conditions under which a read happens."""
from __future__ import annotations

from collections.abc import Iterator, Mapping

from tcjit.grammar.ast import Access, Binary, Call, Const, Expr, Index, Scalar, Select, Size, Unary
from tcjit.grammar.polynomial import NOTHING, Monomial, Value, ZeroDivisor, from_terms, integer, names
from tcjit.grammar.walk import children

# ``sum(coefficients[i] * i) + rest`` over indices: the coefficients, and the rest; all are free of indices
LinearForm = tuple[dict[str, Value], Value]
Guard = tuple[Expr, bool]  # a condition, and the value it has where the access is evaluated

# words that isl's parser does not take for a name, in any capitalisation
_KEYWORDS = frozenset("and or not exists implies mod floor ceil floord ceild min max rat true false infty infinity nan".split())
_COMPARISONS = {"<": "<", ">": ">", "<=": "<=", ">=": ">=", "==": "=", "!=": "!="}


def isl_name(name: str) -> str:
    """The name under which isl knows an index, size, scalar or tensor: its own, unless isl reads that as a keyword.

    >>> isl_name("k"), isl_name("mod"), isl_name("mod_")
    ('k', 'mod_', 'mod__')
    """
    return name + "_" if name.rstrip("_").lower() in _KEYWORDS else name


def linear(expr: Expr, values: Mapping[str, int] = NOTHING) -> LinearForm | None:
    """The linear form of an integer expression; None where an index is divided, or multiplied by another. Raises ZeroDivisor."""
    value = integer(expr, values)
    return None if value is None else linear_form(value)


def linear_form(value: Value) -> LinearForm | None:
    if isinstance(value, int):
        return {}, value
    coefficients: dict[str, dict[Monomial, int]] = {}
    rest: dict[Monomial, int] = {}
    for monomial, c in value.terms.items():
        indices = [factor for factor in monomial if isinstance(factor, Index) or names(factor)]
        if not indices:
            rest[monomial] = c
        elif len(indices) == 1 and isinstance(indices[0], Index):
            others = tuple(factor for factor in monomial if factor is not indices[0])
            coefficients.setdefault(indices[0].name, {})[others] = c
        else:
            return None
    return {name: from_terms(terms) for name, terms in coefficients.items()}, from_terms(rest)


def is_quasi_affine(value: Value) -> bool:
    """Whether the value becomes quasi-affine once every size and scalar in it is a number."""
    if isinstance(value, int):
        return True
    for monomial in value.terms:
        indices = [factor for factor in monomial if isinstance(factor, Index) or names(factor)]
        if len(indices) > 1:
            return False
        if indices and isinstance(indices[0], Binary):
            numerator, divisor = integer(indices[0].left), integer(indices[0].right)
            if numerator is None or divisor is None or names(divisor) or not is_quasi_affine(numerator):
                return False
    return True


def is_gather(subscript: Expr) -> bool:
    """Whether a subscript depends on data or is not quasi-affine, so that it is checked at run time. Raises ZeroDivisor."""
    value = integer(subscript)
    return value is None or not is_quasi_affine(value)


def affine(expr: Expr, values: Mapping[str, int]) -> str | None:
    """isl's text of a quasi-affine integer expression, names in ``values`` replaced by numbers; None where it is not affine.

    >>> affine(Binary("/", Index("i", dtype="int64"), Size("K", dtype="int64"), dtype="int64"), {"K": 2})
    'floor((i)/2)'
    """
    try:
        value = integer(expr, values)
    except ZeroDivisor:
        return None
    return None if value is None else text(value)


def text(value: Value) -> str | None:
    """isl's text of a value; None where two names are multiplied or a divisor is not a number."""
    if isinstance(value, int):
        return str(value)
    parts: list[str] = []
    for monomial, c in value.terms.items():
        if len(monomial) > 1:
            return None
        factor = _atom(monomial[0]) if monomial else ""
        if factor is None:
            return None
        size = str(abs(c)) if abs(c) != 1 or not factor else ""
        sign = "-" if c < 0 else ""
        if parts:
            sign = " - " if c < 0 else " + "
        parts.append(f"{sign}{size}{'*' if size and factor else ''}{factor}")
    return "".join(parts)


def _atom(expr: Expr) -> str | None:
    if isinstance(expr, (Index, Size, Scalar)):
        return isl_name(expr.name)
    if isinstance(expr, Binary):
        numerator = affine(expr.left, NOTHING)
        return f"floor(({numerator})/{expr.right.value})" if numerator is not None and isinstance(expr.right, Const) else None
    assert isinstance(expr, Call)  # the last kind of atom: min or max
    arguments = [affine(argument, NOTHING) for argument in expr.args]
    return None if None in arguments else f"{expr.function}({', '.join(a for a in arguments if a)})"


def condition(expr: Expr, values: Mapping[str, int]) -> str | None:
    """isl's text of a condition, fit to stand beside others, names in ``values`` replaced by numbers; None where it is not affine.

    Only comparisons in int64 count, index arithmetic as ``check`` types it: a narrower one may have wrapped. A division by zero
    makes the condition None: whether it is evaluated at all is decided at run time.
    """
    if isinstance(expr, Const) and isinstance(expr.value, bool):
        return "0 = 0" if expr.value else "0 = 1"
    if isinstance(expr, Unary) and expr.op == "!":
        inner = condition(expr.operand, values)
        return None if inner is None else f"not ({inner})"
    if not isinstance(expr, Binary):
        return None
    if expr.op in ("&&", "||"):
        sides = condition(expr.left, values), condition(expr.right, values)
        return None if None in sides else f"({sides[0]} {'and' if expr.op == '&&' else 'or'} {sides[1]})"
    if expr.op not in _COMPARISONS or expr.left.dtype != "int64":
        return None
    left, right = affine(expr.left, values), affine(expr.right, values)
    return None if left is None or right is None else f"{left} {_COMPARISONS[expr.op]} {right}"


def guarded_accesses(expr: Expr, guards: tuple[Guard, ...] = ()) -> Iterator[tuple[Access, tuple[Guard, ...]]]:
    """Every access in an expression, those in subscripts included, with the conditions under which it is evaluated.

    Conjunctions are taken apart, so that in ``i < N && data ? A(i) : 0`` the affine half still counts; a disjunction is
    taken apart where it is known to be false.
    """
    stack = [(expr, guards)]
    while stack:
        node, known = stack.pop()
        if isinstance(node, Select):
            stack.append((node.other, (*known, *conjuncts(node.condition, False))))
            stack.append((node.then, (*known, *conjuncts(node.condition, True))))
            stack.append((node.condition, known))
        elif isinstance(node, Binary) and node.op in ("&&", "||"):
            stack.append((node.right, (*known, *conjuncts(node.left, node.op == "&&"))))
            stack.append((node.left, known))
        else:
            if isinstance(node, Access):
                yield node, known
            stack.extend((child, known) for child in reversed(children(node)))


def conjuncts(expr: Expr, holds: bool) -> Iterator[Guard]:
    """What is known where ``expr`` has the value ``holds``."""
    if isinstance(expr, Unary) and expr.op == "!":
        yield from conjuncts(expr.operand, not holds)
    elif isinstance(expr, Binary) and expr.op == ("&&" if holds else "||"):
        yield from conjuncts(expr.left, holds)
        yield from conjuncts(expr.right, holds)
    else:
        yield expr, holds
