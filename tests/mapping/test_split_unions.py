"""Sums over terms that are no convex set: the parts that nests run over, that each is proved, that faults are found, and the numbers.

Modules: mapping.convex_parts mapping.passes.split_unions mapping.verify_unions
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from support.mapping import program

import tcjit
from tcjit.errors import VerifyError
from tcjit.grammar.ast import Select
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.convex_parts import convex_parts
from tcjit.mapping.extract import extract
from tcjit.mapping.passes.split_unions import split_unions
from tcjit.mapping.verify_assignments import verify_assignments

M, N, K = 40, 33, 36
SHAPES = {"A": (M, K), "B": (K, N)}


def product(guard: str) -> str:
    return f"def f(float(M,K) A, float(K,N) B) -> (C) {{ C(i,d) +=! ({guard}) ? A(i,j) * B(j,d) : 0.0 }}"


def of(guard: str) -> tuple[Assignments, Assignments]:
    before = extract(program(product(guard), SHAPES))
    after = split_unions(before)
    verify_assignments("split_unions", before, after)
    return before, after


def test_both_sides_of_a_diagonal() -> None:
    box = " where i in 0:40, d in 0:33, j in 0:36"
    assert [a.show() for a in of("j != i")[1].assignments] == [
        f"C(i, d) += -1 * i + j + -1 >= 0 ? A(i, j) * B(j, d) : 0.0 from 0.0{box}",
        f"C(i, d) += i + -1 * j + -1 >= 0 ? A(i, j) * B(j, d) : 0.0{box}",
    ]


@pytest.mark.parametrize(
    ("guard", "parts"),
    [
        ("j < 4 || j <= i && i - j < 8", 2),  # attention with sinks
        ("j / 8 == i / 8 || j < 4", 3),  # blocks that are not all whole
        ("j / 4 == i / 4 || j / 4 == 0 || i / 4 == 0", 3),
        ("j % 2 != i / 4", 2),
        ("!(j == i) && j != i + 1", 2),
        ("j <= i", 1),
        ("j / 8 <= i / 8", 1),
        ("j % 2 == i % 2", 1),
        ("(i + j) % 3 == 0", 1),
        ("i == 3 || i == 5 || i == 7 || j == 1 || j == 9 || j == 30", None),  # too many
        ("(i + j) % 3 != 0", None),
        ("i * j < 100", None),
        ("A(i,j) > 0.0", None),
    ],
)
def test_the_parts_of_conditions(guard: str, parts: int | None) -> None:
    before, after = of(guard)
    found = convex_parts(before.assignments[0], before.values)
    assert (found if found is None else len(found)) == parts and len(after.assignments) == (parts or 1)


def test_what_stays_as_it_is() -> None:
    def count(text: str, **shapes: Sequence[int]) -> int:
        return len(split_unions(extract(program(text, {name: tuple(shape) for name, shape in shapes.items()}))).assignments)

    several = product("j != i")
    assert count(several, A=(40, 36), B=(36, 33)) == 2
    assert count(several, A=(10, 10), B=(10, 10)) == 1, "few terms"
    rows = "def f(float(M,K) A, float(K,N) B) -> (C) { C(i) +=! (j != i) ? exp(A(i,j)) : 0.0 }"
    assert count(rows, A=(400, 360), B=(360, 33)) == 1, "no term is read for several results"
    assert count(several.replace("+=!", "max=!"), A=(40, 36), B=(36, 33)) == 1, "extremes do not go on with others"


def test_what_goes_on_with_results_does_so_in_each_part() -> None:
    text = product("j != i").replace("C(i,d) +=!", "C(i,d) = A(i,0) where d in 0:N  C(i,d) +=")
    before = extract(program(text, SHAPES))
    after = split_unions(before)
    verify_assignments("split_unions", before, after)
    assert [a.operator for a in after.assignments] == ["=", "+=", "+="] and not any(a.start for a in after.assignments)


def lost(parts: list[Assignment]) -> list[Assignment]:
    return parts[:1]


def twice(parts: list[Assignment]) -> list[Assignment]:
    return [parts[0], *parts]


def restarted(parts: list[Assignment]) -> list[Assignment]:
    return [parts[0], replace(parts[1], start=parts[0].start)]


def never_started(parts: list[Assignment]) -> list[Assignment]:
    return [replace(parts[0], start=None), parts[1]]


def another_term(parts: list[Assignment]) -> list[Assignment]:
    value = parts[1].value
    assert isinstance(value, Select)
    return [parts[0], replace(parts[1], value=replace(value, then=parts[1].reads[0]))]


def overlapping(parts: list[Assignment]) -> list[Assignment]:
    value = parts[1].value
    assert isinstance(value, Select)
    return [parts[0], replace(parts[1], value=value.then)]


@pytest.mark.parametrize("fault", [lost, twice, restarted, never_started, another_term, overlapping])
def test_the_proof_finds_faults(fault: object) -> None:
    before, after = of("j != i")
    wrong = fault(list(after.assignments))  # type: ignore[operator]
    with pytest.raises(VerifyError, match="split_unions"):
        verify_assignments("split_unions", before, before.with_parts([wrong]))


def comparison(rng: random.Random, names: Sequence[str]) -> str:
    one, other = rng.choice(names), rng.choice(names)
    forms = [one, f"({one} + {other})", f"({one} - {other})", f"({one} / {rng.choice([2, 4, 5, 8])})", f"({one} % {rng.choice([2, 3, 4])})"]
    if rng.random() < 0.2:
        return f"(({one} + {other}) % {rng.choice([2, 3, 5])} {rng.choice(['==', '!='])} 0)"
    if rng.random() < 0.1:
        return f"({one} * {other} < {rng.randrange(50, 500)})"
    right = rng.choice([str(rng.randrange(20)), rng.choice(forms)])
    return f"({rng.choice(forms)} {rng.choice(['<', '<=', '>', '>=', '==', '!='])} {right})"


def guard_of(rng: random.Random, names: Sequence[str], depth: int = 2) -> str:
    if depth == 0 or rng.random() < 0.4:
        return comparison(rng, names)
    left, right = (guard_of(rng, names, depth - 1) for _ in range(2))
    return rng.choice([f"({left} && {right})", f"({left} || {right})", f"({left} || {right})", f"(!{left})"])


@pytest.mark.parametrize("seed", range(40))
def test_random_conditions(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    a, b, scale = (torch.randn(*shape) for shape in ((M, K), (K, N), (K,)))
    names = rng.choice([["i", "j"], ["i", "j"], ["i", "j", "d"], ["j", "d"], ["j"]])
    guard = guard_of(rng, names)
    places = {"i": torch.arange(M).view(M, 1, 1), "j": torch.arange(K).view(1, K, 1), "d": torch.arange(N).view(1, 1, N)}
    words = {"&&": "&", "||": "|", "!(": "~(", "/": "//"}
    python = guard
    for word, its in words.items():
        python = python.replace(word, its)
    where = torch.as_tensor(eval(python, dict(places))).expand(M, K, N)  # tensors of indices
    terms, infinity = a.double()[:, :, None] * (b * scale[:, None]).double(), float("inf")
    text = f"""def f(float(M,K) A, float(K,N) B, float(K) S) -> (C, R, X, P) {{
        C(i,d) +=! ({guard}) ? A(i,j) * S(j) * B(j,d) : 0.0
        R(i,d) = 2.0 * C(i,d)
        X(i,d) max=! ({guard}) ? A(i,j) + B(j,d) : -infinity()
        P(i,j,d) = ({guard}) ? A(i,j) * B(j,d) : A(i,j) }}"""
    sums, doubled, extremes, chosen = tcjit.define(text, target="cpu").f(a, b, scale)
    torch.testing.assert_close(sums.double(), torch.where(where, terms, 0.0).sum(1), rtol=2e-5, atol=2e-5)
    assert torch.equal(doubled, 2.0 * sums)
    assert torch.equal(extremes, torch.where(where, a[:, :, None] + b, -infinity).amax(1))
    assert torch.equal(chosen, torch.where(where, a[:, :, None] * b, a[:, :, None]))


DYNAMIC: Mapping[str, Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]] = {
    "j != i": lambda i, j, k: j != i,
    "j / 8 <= i / 8": lambda i, j, k: j // 8 <= i // 8,
    "j / 8 == i / 8 && j <= i": lambda i, j, k: (j // 8 == i // 8) & (j <= i),
    "j < 4 || j <= i && i - j < 8": lambda i, j, k: (j < 4) | (j <= i) & (i - j < 8),
    "j / 8 == i / 8 || j < 4": lambda i, j, k: (j // 8 == i // 8) | (j < 4),
    "i + j >= K || j % 4 < 2": lambda i, j, k: (i + j >= k) | (j % 4 < 2),
    "(i + j) % 3 != 0": lambda i, j, k: (i + j) % 3 != 0,
}


@pytest.mark.parametrize("guard", DYNAMIC)
def test_sizes_that_are_open(guard: str) -> None:
    function = tcjit.define(product(guard), target="cpu", dynamic=["M", "N", "K"]).f
    for m, n, k in ((40, 33, 36), (70, 20, 91), (64, 64, 64), (3, 5, 2), (1, 17, 130)):
        a, b, i, j = torch.randn(m, k), torch.randn(k, n), torch.arange(m)[:, None], torch.arange(k)
        expected = torch.where(DYNAMIC[guard](i, j, k), a, 0.0).double() @ b.double()
        torch.testing.assert_close(function(a, b).double(), expected, rtol=1e-4, atol=1e-4)


def test_what_does_not_count_may_be_infinite() -> None:
    a, b, i, j = torch.randn(M, K), torch.randn(K, N), torch.arange(M)[:, None], torch.arange(K)
    for guard, where in (("j != i", j != i), ("i * j < 100", i * j < 100)):
        given = torch.where(where, a, torch.inf)
        result = tcjit.define(product(guard), target="cpu").f(given, b)
        torch.testing.assert_close(result, torch.where(where, a, 0.0) @ b, rtol=1e-4, atol=1e-4)


def test_no_plain_loops() -> None:
    """Products under conditions of all kinds have nests."""
    shapes = (torch.randn(96, 100), torch.randn(100, 64))
    for guard in ("j != i", "j / 7 <= i / 5", "(i + j) % 3 != 0", "i * j < 900", "j < 9 || i - j < 20 && j <= i", "d == j || d == i"):
        plan = tcjit.define(product(guard), target="cpu").f.compile(*shapes).resources["reductions"]
        assert plan and not [line for line in plan if line.startswith("C: no nest")], (guard, plan)
