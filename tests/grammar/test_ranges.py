"""Range inference against brute force: the interval is the largest one, in every round.

Modules: errors
"""
from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from support.fuzz.ranges import domain, inferred

from tcjit.errors import CheckError, ShapeError
from tcjit.grammar import bounds_check
from tcjit.grammar.check import check
from tcjit.grammar.infer import infer, specialise
from tcjit.grammar.parse import parse

Box = dict[str, tuple[int, int]]
WIDE = range(-40, 41)


@dataclass(frozen=True)
class Term:
    """A subscript of one dimension of its own tensor: ``sum(coefficient * index) + offset``."""

    coefficients: tuple[tuple[str, str], ...]  # index, its coefficient as text
    offset: str
    size: str

    def text(self) -> str:
        return " + ".join([f"{coefficient} * {index}" for index, coefficient in self.coefficients] + [self.offset])

    def value(self, point: dict[str, int], values: dict[str, int]) -> int:
        return sum(int(eval(c, values)) * point[i] for i, c in self.coefficients) + int(eval(self.offset, values))


def drawn(rng: random.Random) -> tuple[list[Term], dict[str, tuple[int, int]], dict[str, int]]:
    """Subscripts, clauses and the values of sizes and scalars."""
    values = {name: rng.randint(1, 9) for name in ("N", "M", "K")} | {name: rng.choice((-2, -1, 1, 2, 3)) for name in ("s", "t")}
    terms = []
    for _ in range(rng.randint(1, 4)):
        indices = rng.sample(("i", "j", "k"), rng.choice((1, 1, 2, 2, 3)))
        coefficients = tuple((index, rng.choice(("1", "1", "1", "-1", "2", "3", "s", "t"))) for index in indices)
        terms.append(Term(coefficients, rng.choice(("0", "0", "1", "2 - N", "K - 1", "-2", "s")), rng.choice(("N", "M", "K"))))
    used = {index for term in terms for index, _ in term.coefficients}
    clauses = {index: (rng.randint(-2, 1), rng.randint(2, 4)) for index in sorted(used) if rng.random() < 0.25}
    return terms, clauses, values


def widest(term: Term, index: str, box: Box, values: dict[str, int]) -> tuple[int, int]:
    """By trying them all: the values of an index that keep a subscript inside for every value of the others."""
    others = [i for i, _ in term.coefficients if i != index]
    points = [dict(zip(others, point)) for point in itertools.product(*(range(*box[i]) for i in others))]
    good = [v for v in WIDE if all(0 <= term.value({**point, index: v}, values) < values[term.size] for point in points)]
    return (good[0], good[-1] + 1) if good else (0, -1)


def brute(terms: list[Term], clauses: Box, values: dict[str, int]) -> Box | None:
    """The rounds of the language's definition; None where some range is empty (no value of an index to quantify over)."""
    box = dict(clauses)
    own = {term.coefficients[0][0] for term in terms if len(term.coefficients) == 1}
    while True:
        found: dict[str, list[tuple[int, int]]] = {}
        for term in terms:
            indices = [i for i, _ in term.coefficients]
            unsolved = [i for i in indices if i not in box]
            if len(unsolved) == 1 and not (unsolved[0] in own and any(i in clauses for i in indices)):
                found.setdefault(unsolved[0], []).append(widest(term, unsolved[0], box, values))
        if not found:
            return box
        for index, intervals in found.items():
            box[index] = max(low for low, _ in intervals), min(high for _, high in intervals)
            if box[index][0] >= box[index][1]:
                return None


def programs(seed: int, count: int) -> Iterator[tuple[str, list[Term], Box, dict[str, int]]]:
    rng = random.Random(seed)
    for _ in range(count):
        terms, clauses, values = drawn(rng)
        reads = " * ".join(f"A{n}({term.text()})" for n, term in enumerate(terms))
        where = ", ".join(f"{index} in {low}:{high}" for index, (low, high) in clauses.items())
        params = ", ".join(f"float({t.size}) A{n}" for n, t in enumerate(terms))
        head = f"def f(float(N) Z0, float(M) Z1, float(K) Z2, {params}, int32 s, int32 t) -> (O)"
        yield f"{head} {{ O +=! {reads}{' where ' if where else ''}{where} }}", terms, clauses, values


def test_intervals_are_the_largest_ones() -> None:
    compared = unsolved = empty = outside = 0
    for text, terms, clauses, values in programs(20, 450):
        box = brute(terms, clauses, values)
        indices = {index for term in terms for index, _ in term.coefficients}
        try:
            definition = inferred(text)
        except CheckError as error:
            if "nothing gives" in error.what:
                assert box is None or set(box) != indices, text
                unsolved += 1
            else:  # empty, or outside, for all sizes: for these as well
                assert box is None or set(box) == indices and escapes(terms, box, values), text
            continue
        shapes = {p.name: tuple(values[str(d)] for d in p.dims) for p in definition.params if p.dims}
        try:
            found = domain(specialise(definition, shapes, {"s": values["s"], "t": values["t"]}))
        except ShapeError as error:
            if box is None:
                empty += 1
                continue
            assert "outside" in error.what, text
            assert escapes(terms, box, values), text
            outside += 1
            continue
        if box is None:
            assert any(high <= low for low, high in found.values()), text
            empty += 1
            continue
        assert found == box, (text, values)
        assert not escapes(terms, box, values), text
        compared += 1
    assert compared > 70 and unsolved > 15 and empty > 40 and outside > 15


def escapes(terms: list[Term], box: Box, values: dict[str, int]) -> bool:
    """Whether some subscript leaves its tensor over the box."""
    points = [dict(zip(box, point)) for point in itertools.product(*(range(*ends) for ends in box.values()))]
    return any(not 0 <= term.value(point, values) < values[term.size] for term in terms for point in points)


def test_examples_are_solved_once_for_all_accesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that show an access to be possible do so for others: the time of a sum of many taps is about linear."""
    solved = Counter[str]()
    solve = bounds_check.solve

    def counted(*args: Any) -> Any:
        solved["solved"] += 1
        return solve(*args)

    monkeypatch.setattr(bounds_check, "solve", counted)
    counts = []
    for taps in (10, 60):
        solved.clear()
        text = " + ".join(f"X(i, {tap})" for tap in range(taps))
        infer(check(parse(f"def f(float(N,M) X) -> (Y) {{ Y(i) = {text} }}"))[0])
        counts.append(solved["solved"])
    assert 0 < counts[1] <= counts[0] + 2
