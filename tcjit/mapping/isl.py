"""The few isl operations that the passes share, by readable names.

isl objects never mix contexts, so everything is read through the context of the Scop at hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import islpy as isl

from tcjit.errors import MappingError, VerifyError
from tcjit.grammar.affine import condition, isl_name
from tcjit.grammar.ast import Expr, Scalar, Size
from tcjit.grammar.polynomial import names as index_names

# a compile that needs more isl operations than this is given up with an error instead of hanging the process
BUDGET = 200_000_000


def context() -> isl.Context:
    """A fresh context with a budget."""
    ctx = isl.Context()
    ctx.set_max_operations(BUDGET)
    return ctx


@contextmanager
def decided(what: str) -> Iterator[None]:
    """What isl cannot decide is not proved."""
    try:
        yield
    except isl.Error as error:
        raise VerifyError(f"{what} could not be decided within the budget: {error}") from None


def has(aff: isl.Aff, kind: isl.dim_type) -> bool:
    """Whether a quasi-affine expression has divisions, or parameters."""
    return any(not aff.get_coefficient_val(kind, at).is_zero() for at in range(aff.dim(kind)))


def union_set(ctx: isl.Context, parts: list[str], parameters: str = "") -> isl.UnionSet:
    """``parameters`` as in ``Scop.parameters``."""
    return isl.UnionSet.read_from_str(ctx, parameters + "{ " + "; ".join(parts) + " }")


def union_map(ctx: isl.Context, parts: list[str], parameters: str = "") -> isl.UnionMap:
    return isl.UnionMap.read_from_str(ctx, parameters + "{ " + "; ".join(parts) + " }")


def points(ctx: isl.Context, dims: Iterable[str], facts: Iterable[str], parameters: str = "") -> isl.Set:
    """The points of some dimensions at which all facts hold."""
    return isl.Set.read_from_str(ctx, f"{parameters}{{ [{', '.join(dims)}] : {' and '.join(facts) or '0 = 0'} }}")


def images(ctx: isl.Context, dims: Iterable[str], to: Iterable[str], parameters: str = "") -> isl.Map:
    """From the points of some dimensions to the values of expressions."""
    return isl.Map.read_from_str(ctx, f"{parameters}{{ [{', '.join(dims)}] -> [{', '.join(to)}] }}")


def sizes_in(exprs: Iterable[Expr], values: Mapping[str, int]) -> str:
    """The sizes and scalars in some expressions, as parameters, but for those with known ``values``."""
    given = (name for expr in exprs for kind in (Size, Scalar) for name in index_names(expr, kind))
    found = dict.fromkeys(isl_name(name) for name in given if name not in values)
    return f"[{', '.join(found)}] -> " if found else ""


def index_fact(expr: Expr, values: Mapping[str, int]) -> str | None:
    """isl's text of a condition on indices alone, fit to stand beside others; None for any other."""
    text = condition(expr, values)
    return None if text is None or sizes_in([expr], values) else f"({text})"


def holds(facts: Sequence[str], values: Mapping[str, int]) -> bool:
    """Whether facts about parameters hold for their values."""
    known = [f"{name} = {value}" for name, value in values.items()]
    return not isl.Set.read_from_str(context(), f"[{', '.join(values)}] -> {{ : {' and '.join([*facts, *known])} }}").is_empty()


def constraint_text(found: isl.Set) -> str:
    """What holds in a set, over the names of its dimensions, fit to stand beside other constraints.

    >>> constraint_text(isl.Set("{ [a, b] : b = 0 and a >= 2 }"))
    '(b = 0 and a >= 2)'
    """
    dims = isl.dim_type
    # in a tuple isl would write a dimension that is a constant as that
    facts = found.coalesce().move_dims(dims.param, found.dim(dims.param), dims.set, 0, found.dim(dims.set)).params().to_str()
    return f"({facts.partition(':')[2].strip(' }') or '0 = 0'})"


def identifier(ctx: isl.Context, name: str) -> isl.Id:
    """An Id equal to the one that a parsed string holds (``isl.Id(name)`` would not be)."""
    return isl.Id.read_from_str(ctx, name if name.isidentifier() else f'"{name}"')


def sets(union: isl.UnionSet) -> list[isl.Set]:
    parts = union.get_set_list()
    return sorted((parts.get_at(i) for i in range(parts.n_set())), key=lambda s: str(s.get_tuple_name()))


def maps(union: isl.UnionMap) -> list[isl.Map]:
    parts = union.get_map_list()
    return [parts.get_at(i) for i in range(parts.n_map())]


def names(union: isl.UnionSet) -> tuple[str, ...]:
    """The tuple names of a union set, sorted."""
    return tuple(str(s.get_tuple_name()) for s in sets(union))


def stack(ctx: isl.Context, members: list[isl.UnionPwAff]) -> isl.MultiUnionPwAff:
    """A partial schedule from its members, outermost first."""
    listed = isl.UnionPwAffList.from_union_pw_aff(members[0])
    for member in members[1:]:
        listed = listed.add(member)
    return isl.MultiUnionPwAff.from_union_pw_aff_list(isl.Space.set_alloc(ctx, 0, len(members)), listed)


def member(ctx: isl.Context, expressions: dict[str, tuple[tuple[str, ...], str]], parameters: str = "") -> isl.UnionPwAff:
    """One schedule dimension: statement -> (its dims, text of the expression)."""
    parts = [f"{name}[{', '.join(dims)}] -> [({text})]" for name, (dims, text) in expressions.items()]
    return isl.UnionPwAff.read_from_str(ctx, parameters + "{ " + "; ".join(parts) + " }")


def descendants(node: isl.ScheduleNode) -> Iterator[isl.ScheduleNode]:
    """The node and everything below it, top down."""
    yield node
    for position in range(node.n_children()):
        yield from descendants(node.child(position))


def count_points(found: isl.Set) -> int:
    """The number of elements of a bounded set; a MappingError where counting exceeds the budget.

    isl enumerates the elements of a set with integer divisions, however many they are, so dimensions that no constraint joins are counted
    apart.

    >>> count_points(isl.Set("{ [a, b, c] : 0 <= a, b < 30000 and 0 <= c < 300 and a mod 3 = 0 and (b + c) mod 3 = 0 }"))
    30000000000
    """
    parts = found.compute_divs().make_disjoint().get_basic_set_list()
    return sum(_count_product(parts.get_at(i)) for i in range(parts.n_basic_set()))


def _count_product(part: isl.BasicSet) -> int:
    dims, size = isl.dim_type, part.dim(isl.dim_type.set)
    divs = range(part.dim(dims.div))
    joined = [{i} for i in range(size)]
    forms = [(c, dims.set) for c in part.get_constraints()] + [(part.get_div(k), dims.in_) for k in divs]
    for number, (form, kind) in enumerate(forms):
        together = {i for i in range(size) if form.involves_dims(kind, i, 1)}
        together |= {size + k for k in divs if form.involves_dims(dims.div, k, 1)}
        defined = number - (len(forms) - len(divs))
        together |= {size + defined} if defined >= 0 else set()
        if together:
            joined = [g for g in joined if not g & together] + [together.union(*(g for g in joined if g & together))]
    result = 1
    for group in joined:
        factor = part.to_set()
        for i in reversed(range(size)):
            if i not in group:
                factor = factor.project_out(dims.set, i, 1)
        points = factor.count_val().to_str()
        if points is None:
            raise MappingError("there are too many points to count one by one", hint="smaller sizes, whose roofline has the same intensity")
        result *= int(points)
    return result
