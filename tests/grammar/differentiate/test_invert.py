"""Accesses turned round: the forms that libraries use, and random ones against an enumeration of all instances.

Modules: grammar.differentiate.invert grammar.differentiate.eliminate grammar.differentiate.box grammar.differentiate.prove
 grammar.differentiate.spelling
"""
from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping
from typing import NoReturn

import pytest

from tcjit.errors import CheckError, ShapeError
from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access, Binary, Const, Def, Expr, Index, Scalar, Size, Unary
from tcjit.grammar.bounds_check import Isl
from tcjit.grammar.differentiate.box import positive_scalars
from tcjit.grammar.differentiate.eliminate import NotSolved
from tcjit.grammar.differentiate.invert import Inverse, Read, dimension_name, invert
from tcjit.grammar.differentiate.prove import is_reversed
from tcjit.grammar.differentiate.simplify import reads
from tcjit.grammar.front import read
from tcjit.grammar.infer import specialise
from tcjit.grammar.printer import show

HEAD = "float(N,M) X, float(K) W, int32(N) I, int32 s, int32 d, int32 p"


def turned(statement: str, head: str = HEAD) -> tuple[Def, Read, Inverse]:
    """The first read of ``X``, turned round."""
    definition, = read(f"def f({head}) -> (Y) {{ {statement} }}")
    last = definition.statements[-1]
    access, guards = next((a, g) for a, g in guarded_accesses(last.value) if a.tensor == "X")
    ranges = {r.index: (r.lower, r.upper) for r in last.domain}
    left = tuple(subscript.name for subscript in last.subscripts if isinstance(subscript, Index))
    conditions = tuple(condition if holds else Unary("!", condition, dtype="bool") for condition, holds in guards)
    made = Read(access.subscripts, ranges, left, conditions)
    return definition, made, invert(made, definition.tensor("X").shape, positive_scalars(definition), Isl())


@pytest.mark.parametrize(
    ("statement", "substitution", "guards", "proved"),
    [
        ("Y(n,h) +=! X(n, h+k) where k in 0:3", "n=x0' h=x1' - k", "x1' - k >= 0; x1' - k < M - 2", True),
        ("Y(h) +=! X(2*h+k, 0) where k in 0:3", "h=(x0' - k) / 2",
         "(x0' - k) % 2 == 0; x1' == 0; x0' - k >= 0; x0' - k < 2 * ((N + 1) / 2) - 2", True),
        ("Y(n,h) +=! X(n, s*h+d*k) where k in 0:K, h in 0:5", "n=x0' k=(x1' - h * s) / d",
         "(x1' - h * s) % d == 0; x1' - h * s >= 0; x1' - h * s < d * K", None),
        ("Y(n,h) = X(n, h/3) where h in 0:3*M", "h=3 * x1' + t1' n=x0'", "", True),
        ("Y(i) = X(i, i) where i in 0:N", "i=x0'", "x0' == x1'", True),
        ("Y(i,j) = X(i, M-1-j)", "i=x0' j=M - x1' - 1", "", True),
        ("Y(i) = X(I(i), 0)", "", "x1' == 0; I(i) == x0'", True),
        ("Y(c,y) = X(2*c + y%2, y/2) where c in 0:N/2, y in 0:2*M", "y=2 * x1' + x0' % 2 c=x0' / 2", "x0' / 2 < N / 2", True),
        # a strided gather's condition makes the division exact: the inverse is a plain strided access
        ("Y(h) +=! ((h+1-k)%2 == 0 && h+1-k >= 0 && (h+1-k)/2 < N) ? X((h+1-k)/2, k) : 0.0 where k in 0:3, h in 0:2*N",
         "k=x1' h=2 * x0' + x1' - 1", "x1' < 3; 2 * x0' + x1' - 1 >= 0; 2 * x0' + x1' - 1 < 2 * N", True),
        # the test for padding is one on the row itself, which its range implies
        ("Y(h) +=! (h+k >= 1 && h+k-1 < N) ? X(h+k-1, 0) : 0.0 where h in 0:N, k in 0:3", "h=x0' - k + 1",
         "x1' == 0; x0' - k + 1 >= 0; x0' - k + 1 < N", True),
        # digits of one index, and what stays of a residue: the other index
        ("Y(i) = X(i/3%3, i/9) where i in 0:9*M", "i=9 * x1' + 3 * x0' + t1'", "9 * x1' + 3 * x0' + t1' < 9 * M; x0' < 3", True),
        ("Y(i) +=! X((i+k)%N, 0) where i in 0:N, k in 0:3", "i=(x0' - k) % N", "x1' == 0", None),
        ("Y(i) = X(0, M-1-I(i)-i) where i in 0:M", "", "x0' == 0; I(i) == M - x1' - i - 1", True),
    ],
)  # fmt: skip
def test_forms(statement: str, substitution: str, guards: str, proved: bool | None) -> None:
    _, made, inverse = turned(statement)
    found = " ".join(f"{name}={show(value)}" for name, value in inverse.substitution.items() if name in made.ranges)
    assert (found, "; ".join(map(show, inverse.guards)), inverse.proved) == (substitution, guards, proved)


@pytest.mark.parametrize("numbers", [False, True])
def test_the_index_that_stays_is_the_short_one(numbers: bool) -> None:
    """A size counts as longer than any number, and of two sizes a reduction index stays. A division by the stride is then exact in each
    residue class."""
    _, made, inverse = turned(f"Y(k) +=! X(2*h+k, 0) where k in 0:3, h in 0:{'9' if numbers else 'N/2 - 1'}")
    assert set(inverse.kept) == {"k"} and inverse.proved
    _, _, inverse = turned("Y(h) +=! X(2*h+k, 0) where k in 0:K, h in 0:N/2 - K")
    assert set(inverse.kept) == {"k"}


def test_what_has_no_solution_becomes_equality_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise NotSolved

    monkeypatch.setattr("tcjit.grammar.differentiate.invert.eliminate", refuse)
    _, _, inverse = turned("Y(i) +=! X(i + 2*k, I(i)) where i in 0:4, k in 0:4")
    assert not inverse.substitution and set(inverse.kept) == {"i", "k"} and inverse.proved
    assert list(map(show, inverse.guards)) == ["i + 2 * k == x0'", "I(i) == x1'"]


# ---------------------------------------------------------------- against enumeration

OPERATIONS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a // b, "%": lambda a, b: a % b,
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "&&": lambda a, b: a and b, "||": lambda a, b: a or b,
}  # fmt: skip


def value(expr: Expr, names: Mapping[str, int]) -> int:
    match expr:
        case Const(value=number):
            return int(number)
        case Index(name=name) | Size(name=name) | Scalar(name=name):
            return names[name]
        case Unary(op=op, operand=operand):
            return -value(operand, names) if op == "-" else not value(operand, names)
        case Binary(op=op, left=left, right=right):
            return int(OPERATIONS[op](value(left, names), value(right, names)))
    raise TypeError(type(expr).__name__)


def subscript(rng: random.Random, names: list[str]) -> str:
    """A random quasi-affine subscript."""
    chosen = rng.sample(names, rng.randint(1, min(2, len(names))))
    terms = [f"{rng.choice(('', '', '2*', '3*', 's*'))}{name}" for name in chosen]
    text = " + ".join(terms)
    roll = rng.random()
    if roll < 0.15:
        return f"({text}) / {rng.choice((2, 3, 's'))}"
    if roll < 0.25:
        return f"({text}) % {rng.choice((2, 3, 's'))}"
    if roll < 0.35:
        return f"{text} + {rng.choice(names)} / {rng.choice((2, 's'))}"
    if roll < 0.45:
        return f"({text}) / 2 + {rng.choice(names)} % 2"
    if roll < 0.55:
        return f"20 - {chosen[0]}"
    return text


@pytest.mark.parametrize("seed", range(120))
def test_random_accesses(seed: int) -> None:
    """Each instance that reads an element is reached from it once, and no other."""
    rng = random.Random(seed)
    names = ["i", "j", "k"][: rng.randint(1, 3)]
    extents = {name: rng.randint(1, 5) for name in names}
    left = names[: rng.randint(0, len(names))]
    subscripts = [subscript(rng, names) for _ in range(rng.randint(1, 2))]
    guard = f"({subscripts[0]} < 9 && i >= {rng.randint(0, 1)}) ? " if rng.random() < 0.4 else ""
    used = " + ".join(f"{name} * 0.0" for name in names)
    access = f"X({', '.join(subscripts)})"
    body = f"{guard}{access}{' : 0.0' if guard else ''}"
    ranges = ", ".join(f"{name} in 0:{extent}" for name, extent in extents.items())
    operator = "=" if len(left) == len(names) else "+=!"
    dims = ", ".join(["60"] * len(subscripts))
    s = rng.randint(1, 3)
    statement = f"Y({', '.join(left)}) {operator} ({body}) + {used} where {ranges}"
    definition, made, inverse = turned(statement, f"float({dims}) X, int32 s")
    try:
        specialise(definition, {"X": (60,) * len(subscripts)}, {"s": s})
    except (ShapeError, CheckError):
        pytest.skip("reads outside X")
    constants = {"s": s}
    forward: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for point in itertools.product(*(range(extents[name]) for name in names)):
        known = {**constants, **dict(zip(names, point))}
        if all(value(condition, known) for condition in made.conditions):
            forward[tuple(value(e, known) for e in made.subscripts), point] += 1
    backward: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    kept = {name: range(value(lower, constants), value(upper, constants)) for name, (lower, upper) in inverse.kept.items()}
    for element in itertools.product(range(60), repeat=len(subscripts)):
        for point in itertools.product(*kept.values()):
            known = {**constants, **{dimension_name(j): x for j, x in enumerate(element)}, **dict(zip(kept, point))}
            if all(value(guard, known) for guard in inverse.guards if not reads(guard)):
                instance = tuple(value(inverse.substitution.get(name, Index(name, dtype="int64")), known) for name in names)
                backward[element, instance] += 1
    assert backward == forward
    assert inverse.proved is not False


def test_isl_refuses_a_wrong_inverse() -> None:
    """The proof is of the printed inverse: a guard less, or an instance reached twice, and it fails."""
    _, made, inverse = turned("Y(n,h) +=! X(n, h+k) where k in 0:3")
    assert isinstance(made.subscripts[1], Binary) and not any(isinstance(s, Access) for s in made.subscripts)
    extents = (Size("N", dtype="int64"), Size("M", dtype="int64"))
    subscripts = {dimension_name(j): (made.subscripts[j], extents[j]) for j in range(2)}

    def proved(substitution: Mapping[str, Expr], kept: Mapping[str, tuple[Expr, Expr]], guards: tuple[Expr, ...]) -> bool | None:
        return is_reversed(subscripts, made.ranges, made.conditions, substitution, kept, guards, Isl())

    assert proved(inverse.substitution, inverse.kept, inverse.guards) is True
    assert proved(inverse.substitution, inverse.kept, inverse.guards[1:]) is False
    twice = {**inverse.kept, "z'": (Const(0, dtype="int64"), Const(2, dtype="int64"))}
    assert proved(inverse.substitution, twice, inverse.guards) is False
