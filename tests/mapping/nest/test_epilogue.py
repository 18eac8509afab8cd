"""Epilogues: which assignments behind a reduction its nest computes, which it must not, and whether its own results are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.nests import Shapes, assignments

from tcjit.mapping.assignment import Assignments
from tcjit.mapping.nest.epilogue import Epilogue, epilogue_of
from tcjit.mapping.storage import Storage

SHAPES: Shapes = {"A": (8, 5), "B": (5, 9), "b": (9,), "Z": (8, 9)}
HEAD = "def f(float(M,K) A, float(K,N) B, float(N) b, float(M,N) Z) -> ({results}) {{ C(m,n) +=! A(m,k) * B(k,n)  {rest} }}"


def epilogue(rest: str, results: str = "Y", shapes: Shapes = SHAPES, number: int = 0) -> Epilogue:
    before = assignments(HEAD.format(results=results, rest=rest), shapes)
    program = before.assignments
    return epilogue_of(program[number], program[number + 1 :], program[:number], tensors(before))


def tensors(before: Assignments) -> dict[str, Storage]:
    return {storage.name: storage for storage in before.tensors}


def fused(rest: str, results: str = "Y") -> tuple[list[str], bool]:
    found = epilogue(rest, results)
    return [e.show().partition(" where ")[0] for e in found.assignments], found.stored


@pytest.mark.parametrize(
    ("rest", "results", "expected", "stored"),
    [
        ("Y(m,n) = C(m,n) + b(n)", "Y", ["Y(m, n) = C(m, n) + b(n)"], False),
        ("Y(m,n) = relu(C(m,n))", "Y,C", ["Y(m, n) = relu(C(m, n))"], True),
        ("Y(n,m) = C(m,n) * 2.0", "Y", ["Y(n, m) = C(m, n) * 2.0"], False),
        ("Y(i,j) = C(j,i) * Z(j,i)", "Y", ["Y(n, m) = C(m, n) * Z(m, n)"], False),
        ("Y(m,n) = exp(C(m,n)) * C(m,n)", "Y", ["Y(m, n) = exp(C(m, n)) * C(m, n)"], False),
        ("Y(m,n) = C(m,n) + b(0) + Z(m,0)", "Y", ["Y(m, n) = C(m, n) + b(0) + Z(m, 0)"], False),
        # a chain, of which each part reads the element at hand
        ("T(m,n) = C(m,n) + b(n)  Y(m,n) = T(m,n) * Z(m,n)", "Y", ["Y(m, n) = (C(m, n) + b(n)) * Z(m, n)"], False),
        ("T(m,n) = C(m,n) + b(n)  Y(n,m) = T(m,n) * C(m,n)", "Y", ["Y(n, m) = (C(m, n) + b(n)) * C(m, n)"], False),
        ("T(m,n) = C(m,n) + b(n)  Y(m,n) = T(m,n) * Z(m,n)", "Y,T", ["T(m, n) = C(m, n) + b(n)", "Y(m, n) = T(m, n) * Z(m, n)"], False),
        # a value that is used twice stands there twice; the functions in it are evaluated once
        ("T(m,n) = C(m,n) + 1.0  Y(m,n) = T(m,n) * T(m,n)", "Y", ["Y(m, n) = (C(m, n) + 1.0) * (C(m, n) + 1.0)"], False),
        ("T(m,n) = exp(C(m,n))  Y(m,n) = T(m,n) * T(m,n)", "Y", ["Y(m, n) = exp(C(m, n)) * exp(C(m, n))"], False),
        # in place: what is overwritten is not stored
        ("C(m,n) = C(m,n) + b(n)", "C", ["C(m, n) = C(m, n) + b(n)"], False),
        ("C(m,n) = C(m,n) + b(n)  C(m,n) = relu(C(m,n))", "C", ["C(m, n) = relu(C(m, n) + b(n))"], False),
        ("C(m,n) = C(m,n) + b(n)  Y(m,n) = relu(C(m,n))", "Y", ["Y(m, n) = relu(C(m, n) + b(n))"], False),
        ("C(m,n) = C(m,n) + b(n)  Y(m,n) = C(m,n) * b(n)", "Y,C", ["C(m, n) = C(m, n) + b(n)", "Y(m, n) = (C(m, n) + b(n)) * b(n)"], False),
        ("Y(m,n) = C(m,n) * 2.0  C(m,n) = C(m,n) + Y(m,n)", "Y,C", ["Y(m, n) = C(m, n) * 2.0", "C(m, n) = C(m, n) + Y(m, n)"], False),
        # a result in place that costs much is not computed again for a second reader
        ("C(m,n) = exp(C(m,n))  Y(m,n) = C(m,n) * C(m,n)", "Y,C", ["C(m, n) = exp(C(m, n))"], False),
        ("Y(m,n) = Z(m,n) * C(m,n)  C(m,n) = C(m,n) - Z(m,n)  Z2(m,n) = C(m,n) * Y(m,n)", "Y,Z2",
         ["Y(m, n) = Z(m, n) * C(m, n)", "Z2(m, n) = (C(m, n) - Z(m, n)) * Y(m, n)"], False),
        # its results are needed after it
        ("Y(m,n) = C(m,n) + b(n)  D(m) +=! C(m,n)", "Y,D", ["Y(m, n) = C(m, n) + b(n)"], True),
        ("Y(m,n) = C(m,n) + b(n)  D(m) +=! Y(m,n)", "Y,D", ["Y(m, n) = C(m, n) + b(n)"], False),
        ("Y(m,n) = C(m,n) + b(n)  D(m,n) = C(m,n) * C(0,n)", "Y,D", ["Y(m, n) = C(m, n) + b(n)"], True),
    ],
)
def test_what_fuses(rest: str, results: str, expected: list[str], stored: bool) -> None:
    assert fused(rest, results) == (expected, stored)


@pytest.mark.parametrize(
    ("rest", "results"),
    [
        ("Y(m,n) = C(m,n) - C(0,n)", "Y"),  # another element of the result
        ("Y(m,n) = C(m,n+1) where n in 0:N-1", "Y"),
        ("Y(m,n) = C(m,n) where n in 0:N-1", "Y"),  # another box
        ("Y(m,n) = C(m,n) * float(n)", "Y"),  # an index as a number
        ("Y(m,n) = (n < m ? C(m,n) : 0.0)", "Y"),
        ("Y(m) = C(m,m) where m in 0:M", "Y"),  # the diagonal
        ("Y(m,n,p) = C(m,n) where p in 0:2", "Y"),  # more dimensions
        ("Y(m) +=! C(m,n)", "Y"),  # a reduction
        ("Y(m,n) = Z(m,n) * 2.0", "Y,C"),  # does not read it
        ("Y(m,n) = Z(m,n)  Y(m,n) += C(m,n) where n in 0:N", "Y"),  # nothing but what stands directly behind it
    ],
)
def test_what_does_not(rest: str, results: str) -> None:
    assert fused(rest, results) == ([], True)


def test_an_operator_is_not_fused() -> None:
    rest = "Y(m,n) = 1.0 where m in 0:M, n in 0:N  C(m,n) +=! A(m,k) * B(k,n)  Y(m,n) += C(m,n)"
    text = f"def f(float(M,K) A, float(K,N) B) -> (Y) {{ {rest} }}"
    before = assignments(text, {"A": (8, 5), "B": (5, 9)})
    program = before.assignments
    assert program[2].operator == "+=" and epilogue_of(program[1], program[2:], program[:1], tensors(before)) == Epilogue()


def test_a_gather_is_not_fused() -> None:
    text = "def f(float(M,K) A, float(K,N) B, int32(N) I, float(N) b) -> (Y) { C(m,n) +=! A(m,k) * B(k,n)  Y(m,n) = C(m,n) + b(I(n)) }"
    before = assignments(text, {"A": (8, 5), "B": (5, 9), "I": (9,), "b": (9,)})
    program = before.assignments
    assert epilogue_of(program[0], program[1:], (), tensors(before)) == Epilogue()


def test_what_the_reduction_reads_is_not_written() -> None:
    """Tiles would overwrite what others still read."""
    text = "def f(float(M,M) A) -> (T) { T(m,n) = A(m,n)  C(m,n) +=! T(m,k) * A(k,n)  T(m,n) = C(m,n) + 1.0 }"
    before = assignments(text, {"A": (8, 8)})
    program = before.assignments
    read = {"T"} & {program[2].tensor}
    found = epilogue_of(program[1], program[2:], program[:1], tensors(before))
    assert bool(found.assignments) == (not read) and (found.stored or not read)


def test_a_sum_that_goes_on_has_no_epilogue() -> None:
    rest = "C(m,n) = Z(m,n)  C(m,n) += A(m,k) * B(k,n)  Y(m,n) = C(m,n) + 1.0"
    text = f"def f(float(M,K) A, float(K,N) B, float(M,N) Z) -> (Y) {{ {rest} }}"
    before = assignments(text, {"A": (8, 5), "B": (5, 9), "Z": (8, 9)})
    program = before.assignments
    assert program[1].reduction and epilogue_of(program[1], program[2:], program[:1], tensors(before)) == Epilogue()


def test_assignments_that_are_counted() -> None:
    """All that the nest computes, those that have no store of their own included."""
    found = epilogue("C(m,n) = C(m,n) + b(n)  T(m,n) = relu(C(m,n))  Y(m,n) = T(m,n) * Z(m,n)  D(m) +=! Y(m,n)", "Y,D")
    assert [e.tensor for e in found.assignments] == ["Y"] and found.count == 3 and not found.stored


def test_a_store_rounds() -> None:
    """A value in a narrower tensor is not what was stored in it: it is read there, or the chain ends."""
    rest = "{0}(m,n) = C(m,n) + b(n)  Y(m,n) = {0}(m,n) * Z(m,n)"
    for name, expected in (("T", ["T(m, n) = C(m, n) + b(n)", "Y(m, n) = T(m, n) * Z(m, n)"]), ("C", [])):
        before = assignments(HEAD.format(results="Y", rest=rest.format(name)), SHAPES)
        storages = {t.name: replace(t, dtype="float16" if t.name == name else t.dtype) for t in before.tensors}
        found = epilogue_of(before.assignments[0], before.assignments[1:], (), storages)
        assert [e.show().partition(" where ")[0] for e in found.assignments] == expected
