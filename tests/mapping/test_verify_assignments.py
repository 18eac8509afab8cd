"""The proofs of the passes over assignments: what the passes do holds, and every fault that is put into it is found.

Modules: mapping.passes.hoist_invariants mapping.passes.restrict_products mapping.passes.split_residues
mapping.residue_classes mapping.verify_assignments mapping.verify_residues
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from support.mapping import AVX512, program

from tcjit.errors import VerifyError
from tcjit.grammar.ast import Access, Binary, Cast, Const, Expr, Index, Select
from tcjit.grammar.printer import show
from tcjit.grammar.walk import rebuild, with_names
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.options import Options
from tcjit.mapping.passes.chunk_reductions import chunk_reductions
from tcjit.mapping.passes.eliminate_conditions import eliminate_conditions
from tcjit.mapping.passes.factor_contractions import factor_contractions
from tcjit.mapping.passes.hoist_invariants import hoist_invariants
from tcjit.mapping.passes.restrict_products import restrict_products
from tcjit.mapping.passes.split_index_sets import split_index_sets, split_sums
from tcjit.mapping.passes.split_initialisation import split_initialisation
from tcjit.mapping.passes.split_residues import split_residues
from tcjit.mapping.passes.widen import widen
from tcjit.mapping.verify_assignments import verify_assignments

Parts = Sequence[Assignment]
Change = Callable[[Parts], Parts]

PROGRAMS: dict[str, tuple[str, str, dict[str, tuple[int, ...]]]] = {
    "sum of halves": ("widen", "def f(float16(M,N) A) -> (S) { S(m) +=! A(m, n) }", {"A": (3, 50)}),
    "sum of bools": ("widen", "def f(bool(M,N) A) -> (S) { S(m) +=! A(m, n) }", {"A": (3, 50)}),
    "sum of chosen halves": ("widen", "def f(float16(M,N) A) -> (S) { S(m) +=! n > m ? A(m, n) : 0.5 }", {"A": (3, 50)}),
    "in chunks": ("chunk_reductions", "def f(float(M,N) A) -> (S) { S(m) max=! A(m, n) * n }", {"A": (3, 50)}),
    "in a shorter chunk": ("chunk_reductions", "def f(float(M,N) A) -> (S) { S(m) +=! A(m, n - 2) where n in 2:55 }", {"A": (3, 53)}),
    "onto what is there": (
        "chunk_reductions",
        "def f(float(N) A, float(M) B) -> (S) { S(m) = B(m)  S(m) += A(m + n) where n in 0:40 }",
        {"A": (60,), "B": (4,)},
    ),
    "decided conditions": (
        "eliminate_conditions",
        "def f(float(N) A) -> (O) { O(i) = (i + 2 < N && !(i < 3 || i > 20)) ? A(i + 2) : A(i) where i in 0:17 }",
        {"A": (19,)},
    ),
    "joined": (
        "split_index_sets",
        "def f(float(N) A, float(M) B) -> (O) { O(i) = (i < N ? A(i) : B(i - N)) where i in 0:N+M }",
        {"A": (16,), "B": (20,)},
    ),
    "shifted sum": (
        "split_sums",
        "def f(float(K,T) A, float(C,K) W) -> (O) { O(c, t) +=! (t >= 5 ? A(k, t - 5) * W(c, k) : 0.0) + A(k, t) where t in 0:T }",
        {"A": (16, 64), "W": (20, 16)},
    ),
    "factored": (
        "factor_contractions",
        "def f(float(B,C) X, float(A,B,D) Y, float(D,B) Z) -> (O) { O(a) +=! X(b,c) * Y(a,b,d) * Z(d,b) where b in 2:21 }",
        {"X": (21, 90), "Y": (80, 21, 24), "Z": (24, 21)},
    ),
    "factored to a product": (
        "factor_contractions",
        "def f(float(N,J) X, float(N,K) Y) -> (O) { O(n) +=! X(n,j) * Y(n,k) }",
        {"X": (50, 60), "Y": (50, 70)},
    ),
    "counted": (
        "factor_contractions",
        "def f(float(P,T) X) -> (r) { r +=! (s <= t) ? X(p,t) : 0.0 where s in 0:T }",
        {"X": (200, 50)},
    ),
    "divided once": (
        "factor_contractions",
        "def f(float(N,D) X, float(D) V) -> (O) { O(i, j) +=! X(n, i) * X(n, j) / V(j) }",
        {"X": (100, 40), "V": (40,)},
    ),
    "triangle": (
        "restrict_products",
        "def f(float(N,N) A, float(N,M) B) -> (C) { C(i, j) +=! (k > i) ? 0.0 : A(i, k) * B(k, j) }",
        {"A": (20, 20), "B": (20, 24)},
    ),
    "band": (
        "restrict_products",
        "def f(float(N,N) A, float(N,M) B) -> (C) { C(i, j) +=! (k <= i) ? ((k + 4 >= i) ? A(i, k) * B(k, j) : 0.0) : 0.0 }",
        {"A": (20, 20), "B": (20, 24)},
    ),
    "lower": (
        "restrict_products",
        "def f(float(N,K) A, float(K,M) B) -> (C) { C(i, j) +=! (j <= i) ? A(i, k) * B(k, j) : 0.0 }",
        {"A": (20, 8), "B": (8, 24)},
    ),
    "lower, added": (
        "restrict_products",
        "def f(float(N,K) A, float(K,M) B, float(N,M) D) -> (C) { C(i, j) = D(i, j)  C(i, j) += (j <= i) ? A(i, k) * B(k, j) : 0.0 }",
        {"A": (20, 8), "B": (8, 24), "D": (20, 24)},
    ),
    "triangle, added": (
        "restrict_products",
        "def f(float(N,N) A, float(N,M) B, float(N,M) D) -> (C) { C(i, j) = D(i, j)  C(i, j) += (k <= i) ? A(i, k) * B(k, j) : 0.0 }",
        {"A": (20, 20), "B": (20, 24), "D": (20, 24)},
    ),
    "stride of two": (
        "split_residues",
        "def f(float(C,W) X, float(C,K) V) -> (O) { O(w) +=! (x >= 0 && x < 2*W && x % 2 == 0) ? X(c, x/2) * V(c, k) : 0.0 "
        "where w in 0:19, x = w + 1 - k }",
        {"X": (4, 9), "V": (4, 3)},
    ),
    "stride of two, one term": (
        "split_residues",
        "def f(float(C,W) X, float(C,K) V) -> (O) { O(w) +=! (w % 2 == 0) ? X(c, w/2) * V(c, k) : 0.0 where w in 0:18 }",
        {"X": (4, 9), "V": (4, 1)},
    ),
    "stride of three, two terms": (
        "split_residues",
        "def f(float(W) X, float(K) V) -> (O) { O(w) max=! ((w - k) % 3 == 0) ? "
        "((w < k || w >= k + 3 * W) ? -infinity() : X((w - k)/3) * V(k)) : -infinity() where w in 0:31 }",
        {"X": (9,), "V": (2,)},
    ),
    "narrowed": (
        "hoist_invariants",
        "def f(float(M,K) A, float16(K,N) B) -> (float32(M,N) C) { C(m, n) +=! float32(float16(A(m, k)) * B(k, n)) }",
        {"A": (20, 24), "B": (24, 30)},
    ),
    "hoisted": (
        "hoist_invariants",
        "def f(float(N,D) X, float(D) M) -> (Y) { Y(i, j) +=! (X(n, i) - M(i)) * (X(n, j) - M(j)) }",
        {"X": (40, 30), "M": (30,)},
    ),
    "started": ("split_initialisation", "def f(float(M,N) A) -> (S) { S(m) +=! A(m, n) }", {"A": (3, 50)}),
    "started without terms": ("split_initialisation", "def f(float(M,N) A) -> (S) { S(m) +=! A(m, n) }", {"A": (3, 0)}),
}  # fmt: skip
PASSES: dict[str, Callable[[Assignments], Assignments]] = {
    "eliminate_conditions": eliminate_conditions,
    "widen": widen,
    "chunk_reductions": lambda before: chunk_reductions(before, Options(reduction_chunks=7), AVX512),
    "split_index_sets": split_index_sets,
    "split_sums": split_sums,
    "split_initialisation": split_initialisation,
    "factor_contractions": factor_contractions,
    "restrict_products": restrict_products,
    "split_residues": split_residues,
    "hoist_invariants": lambda before: hoist_invariants(before, True, True),
}


def passed(name: str) -> tuple[str, Assignments, Assignments]:
    rule, text, shapes = PROGRAMS[name]
    before = extract(program(text, shapes), None)
    return rule, before, PASSES[rule](before)


def with_constant(value: Expr, old: int, new: int) -> Expr:
    """A value with every number ``old`` replaced."""
    if isinstance(value, Const) and value.value == old and type(value.value) is int:
        return replace(value, value=new)
    return rebuild(value, lambda child: with_constant(child, old, new))


def first(**changes: object) -> Change:
    return lambda parts: [replace(parts[0], **changes), *parts[1:]]  # type: ignore[arg-type]


def last(**changes: object) -> Change:
    return lambda parts: [*parts[:-1], replace(parts[-1], **changes)]  # type: ignore[arg-type]


def divided_by(a: Assignment, index: str) -> Assignment:
    """``start + total / V(j)`` with another index of ``V``."""
    assert isinstance(a.value, Binary) and isinstance(a.value.right, Binary)
    return replace(a, value=replace(a.value, right=replace(a.value.right, right=with_names(a.value.right.right, {"j": index}))))


def with_other(a: Assignment, other: Expr) -> Assignment:
    """A choice with another value where its condition fails."""
    assert isinstance(a.value, Select)
    return replace(a, value=replace(a.value, other=other))


def box(part: int, number: int, lower: int, upper: int) -> Change:
    """One bound of one part moved."""

    def change(parts: Parts) -> Parts:
        bounds = list(parts[part].bounds)
        name, low, high = bounds[number]
        bounds[number] = name, low + lower, high + upper
        changed = list(parts)
        changed[part] = replace(parts[part], bounds=tuple(bounds))
        return changed

    return change


def value(part: int, old: int, new: int) -> Change:
    def change(parts: Parts) -> Parts:
        changed = list(parts)
        changed[part] = replace(parts[part], value=with_constant(parts[part].value, old, new))
        return changed

    return change


def partial_results(parts: Parts, place: Callable[[Expr, Expr], tuple[Expr, ...]]) -> Parts:
    """Partial results in other elements of their temporary, where the combination reads them."""
    accumulate, *others, combine = parts
    chunk, row = accumulate.subscripts
    assert isinstance(combine.value, Access)
    moved = place(chunk, row)
    return [replace(accumulate, subscripts=moved), *others, replace(combine, value=replace(combine.value, subscripts=moved))]


FAULTS: list[tuple[str, Change, str]] = [
    ("sum of halves", first(value=Const(1.0, dtype="float32")), "the reduction changed"),
    ("sum of halves", first(operator="max="), "the reduction changed"),
    ("sum of halves", first(start=Const(1.0, dtype="float32")), "starts from another value"),
    ("sum of halves", first(start=None), "starts from another value"),
    ("sum of halves", box(0, 1, 0, -1), "the reduction changed"),
    ("sum of halves", box(1, 0, 0, -1), "results are lost"),
    ("sum of halves", last(operator="+="), "not what was reduced"),
    ("sum of halves", lambda parts: parts[:1], "no reduction and conversion"),
    ("sum of chosen halves", lambda parts: [with_other(parts[0], Const(0.25, dtype="float32")), parts[1]], "the reduction changed"),
    ("sum of chosen halves", lambda parts: [with_other(parts[0], Const(True, dtype="bool")), parts[1]], "the reduction changed"),
    ("sum of chosen halves", lambda p: [replace(p[0], value=with_names(p[0].value, {"n": "m"})), p[1]], "the reduction changed"),
    ("sum of bools", first(start=Const(7, dtype="int32")), "starts from another value"),
    ("sum of bools", last(value=Const(True, dtype="bool")), "not what was reduced"),
    ("in chunks", first(start=Const(0.0, dtype="float32")), "do not start at the identity"),
    ("in chunks", first(operator="min="), "do not start at the identity"),
    ("in chunks", box(0, 2, 0, 1), "every term once"),
    ("in chunks", box(0, 2, 0, -1), "every term once"),
    ("in chunks", box(0, 1, 1, 0), "every term once"),
    ("in chunks", value(0, 5, 4), "every term once"),
    ("in chunks", box(2, 1, 0, -1), "not all partial results"),
    ("in chunks", box(2, 1, 0, 1), "not all partial results|share an element"),
    ("in chunks", box(1, 0, 1, 0), "left without their start"),
    ("in chunks", lambda parts: [*parts[:1], *parts[2:]], "no partial results and their combination"),
    ("in chunks", last(operator="="), "do not start at the identity"),
    ("in chunks", box(0, 0, 1, 1), "share an element"),
    ("in chunks", lambda parts: partial_results(parts, lambda chunk, row: (chunk, chunk)), "share an element"),
    ("in chunks", lambda parts: partial_results(parts, lambda chunk, row: (row, chunk)), "share an element"),
    ("in chunks", last(reduction=()), "not combined into their element"),
    ("in a shorter chunk", first(constraints=()), "every term once"),
    ("in a shorter chunk", value(0, 2, 1), "every term once"),
    ("onto what is there", last(start=Const(0.0, dtype="float32")), "not combined into their element"),
    ("onto what is there", lambda parts: [parts[0], replace(parts[1], operator="="), parts[1]], "no partial results"),
    ("joined", box(0, 0, 0, 1), "overlap|another value"),
    ("joined", box(0, 0, 0, -1), "do not cover"),
    ("joined", lambda parts: parts[1:], "do not cover"),
    ("joined", lambda parts: [parts[0], replace(parts[1], value=parts[0].value)], "another value"),
    ("joined", last(value=Access("B", (Index("i", dtype="int64"),), dtype="float32")), "another value"),
    ("shifted sum", box(0, 1, 0, 1), "another value"),
    ("shifted sum", lambda parts: parts[:1], "do not cover"),
    ("shifted sum", lambda parts: [replace(parts[0], value=parts[1].value), parts[1]], "another value"),
    ("shifted sum", last(operator="max="), "more than domain and value"),
    ("factored", first(start=Const(1.0, dtype="float32")), "does not hold what it stands for"),
    ("factored", first(operator="max="), "does not hold what it stands for"),
    ("factored", first(subscripts=(Index("b", dtype="int64"),)), "does not hold what it stands for"),
    ("factored", first(reduction=()), "does not hold what it stands for|summed once"),
    ("factored", first(value=Access("X", (Index("c", dtype="int64"), Index("b", dtype="int64")), dtype="float32")), "factors are others"),
    ("factored", box(0, 1, 0, -1), "a range changed"),
    ("factored", box(2, 0, 1, 0), "the results changed"),
    ("factored", last(start=Const(1.0, dtype="float32")), "the results changed"),
    ("factored", value(2, -2, -1), "summed once|factors are others"),
    ("factored", lambda parts: parts[1:], "factors are others|summed once"),
    ("factored", lambda parts: [*parts[:2], replace(parts[2], value=Binary("*", parts[2].value, parts[2].value, dtype="float32"))], "once"),
    ("factored to a product", last(value=Const(0.0, dtype="float32")), "not started"),
    ("factored to a product", last(operator="+="), "the results changed|summed once"),
    ("divided once", last(value=Const(0.0, dtype="float32")), "not started"),
    ("divided once", lambda parts: [*parts[:-1], divided_by(parts[-1], "i")], "divided by something else"),
    ("divided once", first(value=Access("X", (Index("n", dtype="int64"), Index("i", dtype="int64")), dtype="float32")), "factors|summed"),
    ("lower", first(constraints=("j < i",)), "no identity is gone|lack terms"),
    ("lower", first(constraints=()), "another value|lack terms"),
    ("lower", first(tensor="C"), "more than domain|no temporary"),
    ("lower", box(1, 0, 0, -1), "not all results"),
    ("lower", last(operator="+="), "not all results"),
    ("lower", last(value=Const(0.0, dtype="float32")), "lack terms, or others"),
    ("lower", lambda parts: [parts[0], replace(parts[1], value=parts[1].value.then)], "lack terms, or others"),  # type: ignore[attr-defined]
    ("lower", lambda parts: parts[:1], "more than domain and value"),
    ("narrowed", box(0, 0, 0, -1), "a value changed"),
    ("narrowed", first(constraints=("k < 10",)), "a value changed"),
    ("narrowed", first(tensor="C"), "where others see it"),
    ("narrowed", first(operator="+="), "a value changed"),
    ("narrowed", first(value=Const(1.0, dtype="float16")), "a value changed"),
    ("narrowed", lambda parts: parts[1:], "a value changed"),
    ("narrowed", last(operator="max="), "a value changed"),
    ("hoisted", box(0, 0, 0, -1), "a value changed"),
    ("hoisted", box(1, 0, 0, -1), "a value changed"),
    ("hoisted", first(subscripts=(Index("i", dtype="int64"), Index("n", dtype="int64"))), "a value changed"),
    ("hoisted", lambda parts: [*parts[:-1], replace(parts[-1], value=parts[-1].value.left)], "a value changed"),  # type: ignore[attr-defined]
    ("hoisted", lambda parts: [*parts[:-1], replace(parts[-1], value=with_names(parts[-1].value, {"j": "n"}))], "a value changed"),
    ("hoisted", lambda parts: [*parts[:-1], replace(parts[-1], value=with_names(parts[-1].value, {"j": "i"}))], "a value changed"),
    ("hoisted", first(value=Access("Y", (Index("n", dtype="int64"), Index("i", dtype="int64")), dtype="float32")), "depends on results"),
    ("triangle", first(constraints=()), "another value"),
    ("triangle", first(constraints=("k < i",)), "no identity is gone"),
    ("triangle", first(constraints=("k <= i + 1",)), "another value"),
    ("triangle", first(start=Const(1.0, dtype="float32")), "do not start at the identity"),
    ("triangle, added", lambda parts: parts[:1], "more than domain and value"),
    ("triangle, added", first(start=None), "do not start at the identity"),
    ("triangle, added", first(constraints=("k < i",)), "no identity is gone"),
    ("triangle, added", last(operator="="), "not all results are picked"),
    ("lower, added", last(value=Const(0.0, dtype="float32")), "results are picked that lack terms"),
    ("triangle", first(value=Const(0.0, dtype="float32")), "another value"),
    ("triangle", lambda parts: [*parts, *parts], "more than domain|no temporary"),
    ("band", first(constraints=("k <= i",)), "another value"),
    ("band", first(constraints=("k <= i", "k + 3 >= i")), "no identity is gone"),
    ("stride of two", box(0, 0, 0, -1), "not the sum"),
    ("stride of two", box(0, 1, 0, -1), "no identity is gone"),
    ("stride of two", box(0, 1, 0, 1), "not summed once|another value"),
    ("stride of two", box(1, 0, 0, -1), "not the sum"),
    ("stride of two", box(1, 0, 0, 1), "two classes, or of none|not the sum"),
    ("stride of two", lambda parts: [parts[0], replace(parts[1], subscripts=parts[0].subscripts), *parts[2:]], "element is another"),
    ("stride of two", lambda parts: [parts[0], replace(parts[1], operator="+="), *parts[2:]], "two classes, or of none"),
    ("stride of two", lambda parts: [parts[0], replace(parts[1], value=Const(0.0, dtype="float32")), *parts[2:]], "not the sum"),
    ("stride of two", first(operator="max="), "not summed once"),
    ("stride of two", first(start=None), "not summed once"),
    ("stride of two", first(constraints=("w > 0",)), "no identity is gone"),
    ("stride of two", value(2, 1, 2), "another value"),
    ("stride of two", lambda parts: [replace(parts[0], value=parts[2].value), *parts[1:]], "another value"),
    ("stride of two", lambda parts: [replace(parts[0], tensor="O"), *parts[1:]], "not the sum"),
    ("stride of two", lambda parts: parts[:2], "without a class"),
    ("stride of two", lambda parts: [*parts, parts[1]], "something was added"),
    ("stride of three, two terms", last(value=Const(0.0, dtype="float32")), "not the sum"),
    ("stride of three, two terms", lambda parts: [*parts[:-1], replace(parts[-1], bounds=(("w", 0, 9),))], "without a class"),
    ("started", lambda parts: parts[1:], "not started"),
    ("started", lambda parts: parts[:1], "the update changed"),
    ("started", box(0, 0, 0, -1), "not started"),
    ("started", first(value=Const(1.0, dtype="float32")), "not started"),
    ("started", lambda parts: [*parts, parts[1]], "something was added"),
    ("started", lambda parts: parts[::-1], "not started"),
    ("started without terms", lambda parts: [], "not started"),
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_passes_do_is_proved(name: str) -> None:
    rule, before, after = passed(name)
    assert after.assignments != before.assignments
    verify_assignments(rule, before, after)


@pytest.mark.parametrize(("name", "change", "message"), FAULTS, ids=[f"{name}-{n}" for n, (name, _, _) in enumerate(FAULTS)])
def test_faults_are_found(name: str, change: Change, message: str) -> None:
    rule, before, after = passed(name)
    new = after.replaced[-1]
    changed = (*after.replaced[:-1], tuple(change(new)))
    assert changed != after.replaced
    with pytest.raises(VerifyError, match=f"{rule}: statement {len(changed)} of f: .*({message})"):
        verify_assignments(rule, before, replace(after, assignments=tuple(a for part in changed for a in part), replaced=changed))


def test_results_without_terms_are_no_negative_zeros() -> None:
    rule, before, after = passed("stride of two, one term")
    (new,) = after.replaced
    assert show(new[-1].value) == "0.0" and not new[-1].reduction
    changed = (*new[:-1], replace(new[-1], value=Const(-0.0, dtype="float32")))
    with pytest.raises(VerifyError, match="not the sum"):
        verify_assignments(rule, before, replace(after, assignments=changed, replaced=(changed,)))


def test_assignments_outside_the_record_are_found() -> None:
    rule, before, after = passed("started")
    with pytest.raises(VerifyError, match="added or lost"):
        verify_assignments(rule, before, replace(after, assignments=after.assignments[:1]))
    with pytest.raises(VerifyError, match="a tensor changed"):
        verify_assignments(rule, before, replace(after, declared=()))


def test_indices_are_compared_as_numbers() -> None:
    """The place of a term may be written in another way, but not be another."""
    rule, before, after = passed("in chunks")
    (new,) = after.replaced

    def turned(value: Expr) -> Expr:
        if isinstance(value, Binary) and value.op == "+" and value.dtype == "int64":
            return replace(value, left=value.right, right=value.left)
        return rebuild(value, turned)

    changed = (replace(new[0], value=turned(new[0].value)), *new[1:])
    assert changed != new
    verify_assignments(rule, before, replace(after, assignments=changed, replaced=(changed,)))
    assert isinstance(new[2].value, Access) and not isinstance(new[0].value, (Select, Cast, Index))
