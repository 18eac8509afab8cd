"""A def over a batch means that of each element: the library's operators, and what has none."""
from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from support.fuzz.programs import draw

from tcjit import library
from tcjit.errors import CheckError
from tcjit.grammar.ast import Def
from tcjit.grammar.batch import batch
from tcjit.grammar.front import read
from tcjit.grammar.infer import specialise
from tcjit.runtime import reference

pytestmark = pytest.mark.text


def made(text: str, *names: str) -> str:
    return batch(read(text)[-1], frozenset(names))


def assert_same(text: str, names: frozenset[str], arrays: dict[str, np.ndarray]) -> None:
    """Run by the reference, a batch gives the results of its elements."""
    before, after = read(text)[-1], read(batch(read(text)[-1], names))[-1]

    def results(d: Def, arrays: dict[str, np.ndarray], scalars: dict[str, float]) -> dict[str, np.ndarray]:
        shapes = {name: array.shape for name, array in arrays.items()}
        fixed = {name: int(scalars[name]) for name in d.specialised if name in scalars}
        return dict(reference.run(specialise(d, shapes, fixed), arrays, scalars).values)

    found = results(after, arrays, {})
    for number in range(2):
        inner = {name: array[number] if name in names else array for name, array in arrays.items()}
        numbers = {name: array for name, array in inner.items() if not array.ndim}
        expected = results(before, {name: array for name, array in inner.items() if array.ndim}, numbers)
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name][number], values)


@pytest.mark.parametrize("name", library.names())
def test_every_operator_of_the_library_has_a_batch(name: str) -> None:
    for definition in read(library.source(name)):
        tensors = [param.name for param in definition.params if param.dims]
        floats = [param.name for param in definition.params if not param.dims and param.dtype.startswith("float")]
        for names in ([*tensors], *([one] for one in tensors), floats):
            if names:
                (again,) = read(batch(definition, frozenset(names)))
                assert {p.name for p, q in zip(again.params, definition.params) if len(p.dims) == len(q.dims) + 1} == {*names}


@pytest.mark.parametrize(
    "text, names",
    [
        ("def f(double(N) X) -> (Y) { Y(i) = X(i) * X(i) }", "X"),
        ("def f(double(N) X) -> (s) { T(i) = exp(X(i)) s +=! T(i) }", "X"),
        ("def f(double(N) X, double a) -> (Y) { Y(i) = a * X(i) }", "a"),
        ("def f(double(N) X, double a) -> (Y) { Z(i) = X(i) + 1.0 Y(i) = a * Z(i) }", "a"),
        ("def f(double(N) X, int64(M) I) -> (Y) { Y(m) = X(I(m)) }", "I"),
        ("def f(double(N) X, int64(M) I) -> (Y) { Y(m) = X(I(m)) }", "X"),
        ("def f(double(N) X) -> (Y) { Y(i) +=! (j <= i) ? X(j) : 0.0 where i in 0:N }", "X"),
        ("def f(double(N) X) -> (Y, I) { Y() max=! X(i) I() min=! (X(i) == Y()) ? i : N }", "X"),
        ("def f(double(N) X) -> (Y) { Y(i) = X(i) Y(i) = Y(i) + 1.0 where i in 0:2 Y(i) *= X(j) }", "X"),
        ("def g(double(N) X) -> (s) { s +=! X(i) } def f(double(N) X) -> (Y) { s = g(X) Y(i) = X(i) / s }", "X"),
    ],
)
def test_results_are_those_of_the_elements(text: str, names: str) -> None:
    random = np.random.default_rng(3)
    batched = frozenset(names)
    arrays = {"X": random.standard_normal((2, 5) if "X" in batched else 5)}
    if "int64(M) I" in text:
        arrays["I"] = random.integers(0, 5, (2, 3) if "I" in batched else 3)
    if "double a" in text:
        arrays["a"] = random.standard_normal(2)
    assert_same(text, batched, arrays)


def agrees(seed: int) -> bool:
    """Whether a random program has a batch of some of its parameters, which then gives the results of two calls."""
    rng = random.Random(seed)
    case = draw(rng)
    before = case.definition()
    if case.faults or case.initial or not case.shapes:
        return False
    names = frozenset(rng.sample(sorted(case.shapes), rng.randint(1, len(case.shapes))))
    try:
        (after,) = read(batch(before, names))
    except CheckError:
        return False
    other = replace(case, fills={n: replace(fill, seed=fill.seed + 1000) if n in names else fill for n, fill in case.fills.items()})
    inputs = [one.inputs() for one in (case, other)]
    arrays = {name: np.stack([one[name] for one in inputs]) if name in names else inputs[0][name] for name in case.shapes}
    fixed = {name: int(value) for name, value in case.scalars.items() if name in after.specialised}
    found = reference.run(specialise(after, {name: array.shape for name, array in arrays.items()}, fixed), arrays, case.scalars)
    for number, one in enumerate((case, other)):
        wanted = one.expected(one.program())
        for name in before.returns:
            a, b = found.values[name][number].astype(np.float64), wanted.values[name].astype(np.float64)
            allowed = found.error[name][number] + wanted.error[name]
            with np.errstate(all="ignore"):
                same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= allowed) | np.isinf(allowed)
            assert same.all(), f"seed {seed}, a batch of {sorted(names)}: {name} differs\n{case.text}"
    return True


@pytest.mark.filterwarnings("ignore")
def test_random_programs() -> None:
    assert sum(map(agrees, range(60))) > 40


def test_names_that_are_taken() -> None:
    text = made("def f(float(B, b) X, float(b) B_) -> (b_) { b_(i) +=! X(i, j) * B_(j) }", "X")
    assert text.splitlines()[0] == "def f(float32(B__, B, b) X, float32(b) B_) -> (float32(B__, B) b_) {"


def test_literals_keep_their_types() -> None:
    text = made("def f(half(N) X, half a) -> (Y) { T(i) = half(0.1) where i in 0:N Y(i) = X(i) * a + T(i) }", "X")
    assert "T(i) = float16(0.1)" in text


def test_sizes_that_must_agree_are_one() -> None:
    text = made(
        "def mm(float(M, K) A, float(K, N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }"
        "def f(float(M, K) A, float(L, N) B, float(4) C) -> (D, E) { D = mm(A, B) E(i) = C(i) + 0 * A(i, i) }",
        "A",
    )
    assert text.startswith("def f(float32(B_, M, L) A, float32(L, N) B, float32(4) C) -> ")
    text = made("def f(float(N) X, float(M) Z) -> (float(M) Y) { Y(i) = X(i) + Z(0) }", "X")
    assert text.startswith("def f(float32(B, M) X, float32(M) Z) -> ")


def test_what_has_no_batch() -> None:
    for text, name, says in (
        ("def f(float(N) X, int32 s) -> (Y) { Y(i) = X(i + s) where i in 0:N - s }", "s", "the same for a whole batch"),
        ("def f(float(N) X, int32 s) -> (Y) { Y(i) = X(s * i) where i in 0:N / s }", "s", "the same for a whole batch"),
    ):
        with pytest.raises(CheckError, match=says):
            made(text, name)
