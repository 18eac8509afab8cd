"""Mutated program text: reading it gives a program or a TCError, soon."""
from __future__ import annotations

import random

import pytest
from support.cases import REGRESSIONS
from support.fuzz.mutated_texts import mutated, reading_failure

TEXTS, SHARDS, SEED = 600, 6, 20240602

ODD = [
    "",
    "#",
    "\x00",
    "def",
    "def f() -> (Y) { Y = 1 }",
    "def f(float(N) A) -> (B) { B(i) = A(i) }" + "}" * 1000,
    "def f(float(N) A) -> (B) { B(i) = " + "(" * 5000 + "A(i)" + ")" * 5000 + " }",
    "def f(float(N) A) -> (B) { B(i) = " + "-" * 5000 + "A(i) }",
    "def f(float(N) A) -> (B) { B(i) = A(i)" + " + A(i)" * 5000 + " }",
    "def f(float(N) A) -> (B) { B(i) = " + "A(i) > 0 ? 1 : " * 3000 + "0 }",
    "def f(float(N) A) -> (B) { B(i) = a30 where "
    + "a0 = A(i), "
    + ", ".join(f"a{k + 1} = a{k} + a{k}" for k in range(30))
    + " }",  # a billion reads once written out
    "def f(float(N) A) -> (B) { B(i) = A(99999999999999999999999 * i) }",
    "def f(float(99999999999999999999) A) -> (B) { B(i) = A(i) }",
    "def f(float(N) A) -> (B) { B(i) = A(" + "i/" * 200 + "2) }",
    "def f(float(N) A) -> (B) { B(i) = A(i % 2 % 3 / 5 % 7 * 11 % 13 / 17) where i in 0:N }",
    "def f(float(" + ",".join(f"N{k}" for k in range(300)) + ") A) -> (B) { B(i0) = A(" + ",".join(f"i{k}" for k in range(300)) + ") }",
    "def f(float(N) A) -> (B) { " + " ".join(f"B{k}(i) = A(i)" for k in range(3000)) + " B(i) = A(i) }",
    "def f(float(N) " + "A" * 100_000 + ") -> (B) { B(i) = 1 }",
    "def f(float(N) A) -> (B) { B(i) = A(i) * 1" + "0" * 10_000 + ".0 }",
    "def f(float(N) A) -> (B) { B(i) = A(i) * 1" + "0" * 10_000 + " }",
    *(path.read_text() for path in sorted(REGRESSIONS.glob("*.txt"))),
]


@pytest.mark.parametrize("shard", range(SHARDS))
def test_mutated_programs(shard: int) -> None:
    for number in range(shard, TEXTS, SHARDS):
        text = mutated(random.Random(f"{SEED} {number}"))
        failure = reading_failure(text)
        assert not failure, f"text {number}: {failure}\n{text}"


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))  # what a soak found among them
def test_odd_texts(text: str) -> None:
    failure = reading_failure(text)
    assert not failure, f"{failure}\n{text[:200]}"
