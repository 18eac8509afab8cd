"""The canonical form: equal for programs that differ in words only, different for all others."""
from __future__ import annotations

import pytest

from tcjit.grammar.canonical import Canonical, canonical
from tcjit.grammar.front import read
from tcjit.library import names, source


def form(text: str, last: bool = True) -> Canonical:
    return canonical(read(text)[-1 if last else 0])


MM = "def mm(float(M, K) A, float(K, N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }"

SAME = [
    (MM, "def mm(float(M,K) A,\n  float(K,N) B) -> (C) {\n# a comment\nC(m,n) +=! (A(m,k)*B(k,n))\n}"),
    (MM, "def product(float32(R, S) Left, float(S, T) Right) -> (Out) { Out(i, j) +=! Left(i, r) * Right(r, j) }"),
    (MM, "def mm(float(M, K) A, float(K, N) B) -> (C) { C(k, m) +=! A(k, n) * B(n, m) }"),
    (
        "def f(float(N) X) -> (Y, Z) { Y(i) = X(i)  Z(i) = Y(i) }",
        "def f(float(N) X) -> (Y, Z) { Y(i) = X(i)  Z(j) = Y(j) }",
    ),
    ("def f(float(N) X) -> (Y) { T(i) = X(i) + 1  Y(i) = T(i) }", "def f(float(N) X) -> (Y) { U(i) = X(i) + 1  Y(i) = U(i) }"),
    ("def f(float(N) X) -> (Y) { Y(i) = 2.0 * X(i) }", "def f(float(N) X) -> (Y) { Y(i) = 2 * X(i) }"),
    (
        "def f(float a, float(N) X, int32 s) -> (Y) { Y(i) = a * X(s * i) where i in 0:N / s }",
        "def g(float s, float(M) A, int32 a) -> (B) { B(s_) = s * A(a * s_) where s_ in 0:M / a }",
    ),
    (  # a call stands for what it does
        "def g(float(N) A) -> (B) { B(i) = A(i) + 1 }\ndef f(float(N) X) -> (Y) { T = g(X)  Y(i) = T(i) * 2 }",
        "def f(float(N) X) -> (Y) { T(i) = X(i) + 1  Y(i) = T(i) * 2 }",
    ),
]

DIFFERENT = [
    MM,
    MM.replace("+=!", "+="),
    MM.replace("+=!", "max=!"),
    MM.replace("float(K, N)", "double(K, N)"),
    MM.replace("float(", "double("),
    MM.replace("float(K, N)", "float(N, K)").replace("B(k, n)", "B(n, k)"),
    MM.replace("C(m, n)", "C(n, m)"),
    MM.replace("float(M, K)", "float(M, 4)").replace("float(K, N)", "float(4, N)"),
    MM.replace("float(M, K) A, float(K, N) B", "float(K, N) B, float(M, K) A"),
    MM.replace("float(M, K)", "float(M, M)"),
    MM.replace("* B", "+ B"),
    MM.replace("A(m, k) * B(k, n)", "B(k, n) * A(m, k)"),
    MM.replace("A(m, k)", "A(m, k) * 2"),
    MM.replace("A(m, k)", "A(m, k) * 2.5"),
    MM.replace("}", "where k in 0:3 }"),
    MM.replace("}", "where k in 0:4 }"),
    MM.replace("}", "where exists A(m, k + 1) }"),
    "def f(float(N) X) -> (Y, Z) { Y(i) = X(i)  Z(i) = X(i) }",
    "def f(float(N) X) -> (Y, Z) { Y(i) = X(i)  Z(i) = Y(i) }",
    "def f(float(N) X) -> (Z, Y) { Y(i) = X(i)  Z(i) = Y(i) }",
    "def f(float(N) X, float(N) Y) -> (Z) { Z(i) = X(i) - Y(i) }",
    "def f(float(N) X, float(M) Y) -> (Z) { Z(i) = X(i) - Y(i) }",
    "def f(float(N) X, float(N) Y) -> (Z) { Z(i) = Y(i) - X(i) }",
    "def f(float(N) X) -> (Z) { Z(i) = X(i) - X(i) }",
    "def f(int32(N) X) -> (Y) { Y(i) = X(i) / 2 }",
    "def f(int32(N) X) -> (Y) { Y(i) = X(i) / 2.0 }",
    "def f(int64(N) X) -> (Y) { Y(i) = X(i) / 2 }",
    "def f(float(N) X) -> (Y) { Y(i) = X(i) * 0.0 }",
    "def f(float(N) X) -> (Y) { Y(i) = X(i) * -0.0 }",
    "def f(float16(N) X) -> (s) { s +=! X(n) }",
    "def f(bfloat16(N) X) -> (s) { s +=! X(n) }",
]


@pytest.mark.parametrize("texts", SAME, ids=range(len(SAME)))
def test_words_do_not_count(texts: tuple[str, str]) -> None:
    one, other = map(form, texts)
    assert one.digest == other.digest
    assert len(one.places) == len(other.places)


def test_everything_else_does() -> None:
    found = [form(text).digest for text in DIFFERENT]
    assert len(set(found)) == len(found), [DIFFERENT[n] for n, digest in enumerate(found) if found.count(digest) > 1]


def test_operators_of_the_library_differ() -> None:
    found: dict[str, list[str]] = {}
    for name in names():
        for definition in read(source(name)):
            if definition.name == name:
                found.setdefault(canonical(definition).digest, []).append(name)
    assert [same for same in found.values() if len(same) > 1] == []


def test_spelling_tells_words_apart() -> None:
    assert form(MM).spelling == form(MM.replace(", ", ",").replace("{ ", "{\n")).spelling
    changed = [MM.replace("mm", "nn"), MM.replace("A", "X"), MM.replace("m,", "i,"), MM.replace("K", "L"), MM.replace("k)", "r)")]
    changed[-1] = changed[-1].replace("B(k", "B(r")
    assert len({form(text).spelling for text in (MM, *changed)}) == len(changed) + 1


PICK = "def pick(float(V, D) T, int64(B) I, int32(D) E) -> (O) { O(b, d) = T(I(b), d / 2) + T(b * d % V, d % E(d)) }"


def test_places_are_where_a_kernel_may_fail() -> None:
    places = form(PICK).places
    text = PICK[: PICK.index("}") + 1]
    assert all(place["line"] == 1 and place["line_text"] == text for place in places)
    kinds = [(place["kind"], text[place["column"] - 1 :].partition(" ")[0]) for place in places]
    assert ("gather", "T(I(b),") in kinds and ("gather", "T(b") in kinds
    assert {kind for kind, _ in kinds} == {"gather", "division"} and form(MM).places == ()


def test_places_that_are_one_in_the_text() -> None:
    """A def that is called twice fails at one place, the same written out at two: they cannot share a kernel, which numbers its places."""
    called = """
def at(float(V) T, int64(B) I) -> (O) { O(b) = T(I(b)) }
def f(float(V) T, int64(B) I, int64(B) J) -> (P, Q) { P = at(T, I)  Q = at(T, J) }
"""
    written = "def f(float(V) T, int64(B) I, int64(B) J) -> (P, Q) { P(b) = T(I(b))  Q(b) = T(J(b)) }"
    assert len(form(called).places) == 1 and len(form(written).places) == 2
    assert form(called).digest != form(written).digest


def test_the_form_is_the_same_in_every_version() -> None:
    """Tuned options are found by it: let it change only where the meaning of a program does."""
    assert form(MM).digest.startswith("1ab6a0e0ab2c791f")
