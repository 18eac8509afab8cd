"""isl's proof that an inverse is the reversed access and reaches no instance twice."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tcjit.grammar.ast import Expr
from tcjit.grammar.bounds_check import Isl, OutOfBudget
from tcjit.grammar.differentiate.box import Bounds
from tcjit.grammar.differentiate.simplify import compare, index, reads
from tcjit.grammar.differentiate.spelling import IslSpelling
from tcjit.grammar.polynomial import number


def is_reversed(
    subscripts: Mapping[str, tuple[Expr, Expr]],
    ranges: Bounds,
    conditions: Iterable[Expr],
    substitution: Mapping[str, Expr],
    kept: Bounds,
    guards: Iterable[Expr],
    isl: Isl,
) -> bool | None:
    """Whether ``substitution`` under ``guards`` gives each instance of ``ranges`` under ``conditions`` that reads an element, once.

    ``subscripts`` maps each dimension's name to its subscript and extent; those that are not affine are left out. Conditions that read
    tensors stand on both sides and do not count. None where an expression is not affine, or isl gives up.
    """
    spelling = IslSpelling()
    dimensions = {name: f"x{j}" for j, name in enumerate(subscripts)}
    forward = {name: f"i{j}" for j, name in enumerate(ranges)}
    outside = {**dimensions, **{name: f"k{j}" for j, name in enumerate(kept)}}
    inside = {**dimensions, **forward}

    box = [spelling.within(outside, name, number(0), extent) for name, (_, extent) in subscripts.items()]
    access = [spelling.text(inside, compare("==", subscript, index(name))) for name, (subscript, _) in subscripts.items()]
    access += [spelling.within(inside, name, *ends) for name, ends in ranges.items()]
    inverse = [spelling.within(outside, name, *ends) for name, ends in kept.items()]
    for name, spelled in forward.items():
        value = spelling.text({**outside, "": spelled}, compare("==", index(""), substitution.get(name, index(name))))
        inverse.append(value)
    legal = [spelling.text({}, compare("<=", *ends)) for ends in ranges.values()]
    needed = [*box, *access, *inverse, *legal]
    if None in needed:
        return None
    happens = [text for c in conditions if not reads(c) and (text := spelling.text(inside, c)) is not None]
    holds = [text for g in guards if not reads(g) and (text := spelling.text(outside, g)) is not None]

    context = [*filter(None, [*box, *legal]), *spelling.sizes()]
    copies = {spelled: f"y{j}" for j, spelled in enumerate(dimensions.values())}
    space = f"[{', '.join(spelling.parameters.values())}] -> {{ "
    element = _tuple([*dimensions.values(), *forward.values()])
    elements = f"{space}{element} : {_all([*context, *filter(None, access), *happens])} }}"
    source, target = _tuple(outside.values()), _tuple([*copies.values(), *forward.values()])
    equal = [f"{copy} = {spelled}" for spelled, copy in copies.items()]
    reached = f"{space}{source} -> {target} : {_all([*context, *equal, *filter(None, inverse), *holds])} }}"

    def question() -> bool:
        found = isl.map(reached)
        return bool(found.is_injective() and found.range().is_equal(isl.set(elements)))

    try:
        return isl.known(f"{reached} {elements}", question)
    except OutOfBudget:
        return None


def _all(texts: Sequence[str]) -> str:
    return " and ".join(texts) or "0 = 0"


def _tuple(names: Iterable[str]) -> str:
    return f"[{', '.join(names)}]"
