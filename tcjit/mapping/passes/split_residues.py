"""Split residues: on a GPU, one sum for each residue class of the indices that a condition takes modulo a number.

A transposed convolution of stride 2 has ``(h + 1 - kh) % 2 == 0 ? X((h + 1 - kh) / 2) * K(kh) : 0``: for even ``h`` the odd ``kh`` have
terms, and no others. Over ``2 * h`` and ``2 * kh + 1`` the sum reads ``X(h - kh)``: a product without the condition and without divisions,
of a quarter of the terms in two dimensions. It is computed in a temporary without gaps, which registers hold, and stored where it belongs.
Results in whose class no term is are zeros. Exact, as ``restrict`` is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd

from tcjit.errors import MappingError
from tcjit.grammar.affine import affine, conjuncts, isl_name
from tcjit.grammar.affine import condition as affine_condition
from tcjit.grammar.arithmetic import index, total
from tcjit.grammar.ast import Access, Binary, Expr, Select, Unary
from tcjit.grammar.polynomial import number
from tcjit.grammar.walk import rebuild
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.isl import context, points
from tcjit.mapping.reduction import conjunction, identity
from tcjit.mapping.residue_classes import ResidueClass, placed, residue_classes
from tcjit.mapping.storage import Bounds
from tcjit.mapping.strides import affine_form


def split_residues(before: Assignments) -> Assignments:
    """The program with sums in the place of those whose conditions take indices modulo a number; one with too many residue classes has
    the reason that its conditions stay."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if a.start != identity(a.operator, temporaries.tensors[a.tensor].dtype):
            return [a]
        try:
            classes = residue_classes(a, before.values)
        except MappingError as error:
            return [replace(a, untiled=error.what)]
        return [new for one in classes for new in _of_class(a, one, temporaries, before.values)] or [a]

    return rewrite(before, visit)


def _of_class(a: Assignment, one: ResidueClass, temporaries: Temporaries, values: Mapping[str, int]) -> list[Assignment]:
    """The sum of a class in a temporary, and where its results belong; or the identity for results without terms."""
    subscripts = tuple(_without_divisions(placed(sub, one), values) for sub in a.subscripts)
    dtype, results = temporaries.tensors[a.tensor].dtype, one.bounds[: len(a.results)]
    held: Expr = identity(a.operator, dtype)
    made: list[Assignment] = []
    if one.terms:
        value = _without_divisions(_chosen(placed(a.value, one), one.bounds, values), values)
        storage = temporaries.add(a.source, f"{a.tensor}_class", dtype, [upper for _, _, upper in results])
        plain = tuple(index(name) for name, _, _ in results)
        made.append(replace(a, tensor=storage.name, subscripts=plain, value=value, bounds=one.bounds))
        held = Access(storage.name, plain, dtype=dtype)
    return [*made, Assignment(a.tensor, subscripts, "=", held, results, a.source)]


def _chosen(value: Expr, bounds: Bounds, values: Mapping[str, int]) -> Expr:
    """A value without those parts of the conditions around it that hold for all indices."""
    if not isinstance(value, Select) or affine_condition(value.condition, values) is None:
        return value
    parts = [part if holds else Unary("!", part, dtype="bool") for part, holds in conjuncts(value.condition, True)]
    facts = [f"{lower} <= {isl_name(name)} < {upper}" for name, lower, upper in bounds]
    dims = [isl_name(name) for name, _, _ in bounds]

    def fails(part: Expr) -> bool:
        text = affine_condition(part, values)
        return text is None or not points(context(), dims, [*facts, f"not ({text})"]).is_empty()

    left = [_divided(part, values) for part in parts if fails(part)]
    then = _chosen(value.then, bounds, values)
    return replace(value, condition=conjunction(left), then=then) if left else then


def _divided(part: Expr, values: Mapping[str, int]) -> Expr:
    """A comparison of multiples of a number as one of what they are multiples of: 2 h + 1 < 2 N as h < N."""
    if not isinstance(part, Binary) or part.op not in ("<", "<=", ">", ">=") or part.left.dtype != "int64":
        return part
    form = affine_form(Binary("-", part.left, part.right, dtype="int64"), values)
    common = gcd(*form[0].values()) if form else 1
    if form is None or common < 2:
        return part
    strict, sign = part.op in ("<", ">"), 1 if part.op in (">", ">=") else -1
    least = -((sign * form[1] - strict) // common)  # of the sum over the number, towards the side that holds
    terms = total([(sign * factor // common, index(name)) for name, factor in form[0].items()])
    return Binary(">=", terms, number(least), dtype="bool")


def _without_divisions(expr: Expr, values: Mapping[str, int]) -> Expr:
    """An expression with quotients and remainders of sums of multiples carried out."""
    expr = rebuild(expr, lambda part: _without_divisions(part, values))
    if not isinstance(expr, Binary) or expr.op not in ("/", "%") or expr.dtype != "int64" or affine(expr, values) is None:
        return expr
    form, divisor = affine_form(expr.left, values), affine_form(expr.right, values)
    if form is None or divisor is None or divisor[0] or divisor[1] < 1 or any(factor % divisor[1] for factor in form[0].values()):
        return expr
    if expr.op == "%":
        return number(form[1] % divisor[1])
    return total([(factor // divisor[1], index(name)) for name, factor in form[0].items()], form[1] // divisor[1])
