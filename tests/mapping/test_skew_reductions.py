"""Sums over bands: the windows that take their place, that each is proved, that faults are found, and the numbers.

Modules: mapping.bands mapping.passes.skew_reductions mapping.verify_skews
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from support.mapping import program

import tcjit
from tcjit.errors import VerifyError
from tcjit.grammar.ast import Select
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.bands import NARROW
from tcjit.mapping.extract import extract
from tcjit.mapping.passes.skew_reductions import skew_reductions
from tcjit.mapping.verify_assignments import verify_assignments

M, N, K = 40, 33, 36
SHAPES = {"A": (M, K), "B": (K, N)}


def product(guard: str) -> str:
    return f"def f(float(M,K) A, float(K,N) B) -> (C) {{ C(i,d) +=! ({guard}) ? A(i,j) * B(j,d) : 0.0 }}"


def skewed(text: str, **shapes: tuple[int, ...]) -> tuple[Assignments, Assignments]:
    before = extract(program(text, shapes))
    after = skew_reductions(before, NARROW)
    verify_assignments("skew_reductions", before, after)
    return before, after


@pytest.mark.parametrize(
    ("guard", "width"),
    [
        ("j <= i && j > i - 3", 3),
        ("i - j <= 1 && j - i <= 1", 3),
        ("j >= 2 * i && j < 2 * i + 2", 2),
        ("!(j < i) && !(j >= i + 5)", 5),
        ("j == i", 1),
        ("3 * j == i + 1", 1),
        ("i == 35 - j", 1),
        ("2 * j <= i && 2 * j > i - 5", 3),
        ("j == (i + 1) % 36", 1),
        ("j / 4 == i / 4", 4),
        ("(j + 1) / 4 == i", 4),
        ("j / 34 == i / 34", 34),  # results of a block share what they read
        ("j / 4 >= i / 4 && j / 4 <= i / 4 + 1", 8),
        ("j <= i && j > i - 34", K),  # most of the terms: tiles of results share what they read
        ("j <= i && j > d - 3", K),  # of another width for each result
        ("j <= i && j % 2 == 0", K),
        ("j > i / 4", K),
        ("j < 4", K),
        ("j != i", K),
        ("A(i,j) > 0.0 && j == i", 1),
    ],
)
def test_the_windows_of_bands(guard: str, width: int) -> None:
    (a,) = skewed(product(guard), **SHAPES)[1].assignments
    assert a.extents["j"] == width


def test_the_terms_that_exist_in_their_order() -> None:
    _, after = skewed("def f(float(N) X) -> (Y) { Y(i) +=! (s <= i && s > i - 8) ? X(s) : 0.0 where i in 0:N, s in 0:N }", X=(100,))
    assert [a.show() for a in after.assignments] == [
        "Y(i) += 0 <= i - 7 + s && i - 7 + s < 100 && (i + s - 7 <= i && i + s - 7 > i - 8) ? X(i + s - 7) : 0.0"
        " from 0.0 where i in 0:100, s in 0:8"
    ]


@pytest.mark.parametrize("width", [2, NARROW + 30])
def test_what_subtracts_the_index_of_a_result_no_longer_moves_with_it(width: int) -> None:
    text = f"def f(float(N,C,T) X, float(F,C,W) K) -> (Y) {{ Y(n,f,i) +=! (s <= i && s > i - {width}) ? X(n,c,s) * K(f,c,i - s) : 0.0 }}"
    _, after = skewed(text.replace("}", "where i in 0:T, s in 0:T }"), X=(3, 4, 100), K=(5, 4, width))
    assert f"K(f, c, -1 * s + {width - 1})" in after.assignments[0].show().replace(f"{width - 1} - s", f"-1 * s + {width - 1}")


def test_bands_of_two_indices_and_of_one_beside_the_other() -> None:
    guard, box = "s <= i && s > i - 3 && t <= s && t > s - 2", "where i in 0:N, j in 0:N, s in 0:N, t in 0:N"
    text = f"def f(float(N,N) X) -> (Y) {{ Y(i,j) +=! ({guard}) ? X(s,t) * X(s,j) : 0.0 {box} }}"
    _, after = skewed(text, X=(40, 40))
    assert {after.assignments[0].extents["s"], after.assignments[0].extents["t"]} == {2, 3}


def test_the_longest_index_of_an_equality_goes() -> None:
    text = "def f(float(N) X, float(K) W) -> (Y) { Y(i) +=! (2 * j + k == i) ? X(j) * W(k) : 0.0 where i in 0:2 * N + K }"
    _, after = skewed(text, X=(50,), W=(4,))
    assert (after.assignments[0].extents["j"], after.assignments[0].extents["k"]) == (1, 4)


@pytest.mark.parametrize(("apart", "width"), [(18, 3), (40, 1), (1, 2)])
def test_taps_far_apart_keep_their_tiles(apart: int, width: int) -> None:
    """Two taps of three can be inside of an image of 29: counted from a quotient, they would leave the product without a nest."""
    size = 29 if apart > 1 else 2
    text = f"""def f(float(C,H) X, float(F,C,R) K) -> (Y) {{
        Y(f,h) +=! h + {apart} * r >= {apart} && h + {apart} * r < {apart + size} ? X(c,h + {apart} * r - {apart}) * K(f,c,r) : 0.0
            where h in 0:{size}, r in 0:3 }}"""
    _, after = skewed(text, X=(8, 29), K=(16, 8, 3))
    assert after.assignments[0].extents["r"] == width


def test_windows_of_few_terms_have_quotients() -> None:
    """Two of eight points of an image are at taps of a result of a transposed convolution."""
    text = """def f(float(C,H) X, float(C,F,4) W) -> (Y) {
        Y(f,h) +=! 2 * x <= h && h < 2 * x + 4 ? X(c,x) * W(c,f,h - 2 * x) : 0.0 where h in 0:18, x in 0:8 }"""
    _, after = skewed(text, X=(32, 8), W=(32, 32, 4))
    assert after.assignments[0].extents["x"] == 2


def narrower(a: Assignment) -> Assignment:
    return replace(a, bounds=tuple((name, lower, upper - (name == "j")) for name, lower, upper in a.bounds))


def unconditional(a: Assignment) -> Assignment:
    assert isinstance(a.value, Select)
    return replace(a, value=a.value.then)


def another_term(a: Assignment) -> Assignment:
    assert isinstance(a.value, Select)
    return replace(a, value=replace(a.value, then=a.reads[0]))


def another_result(a: Assignment) -> Assignment:
    return replace(a, subscripts=a.subscripts[::-1])


def restarted(a: Assignment) -> Assignment:
    return replace(a, start=None)


@pytest.mark.parametrize("fault", [narrower, unconditional, another_term, another_result, restarted])
def test_faults_are_found(fault: Callable[[Assignment], Assignment]) -> None:
    before, after = skewed(product("j / 4 == i / 4"), A=(M, K), B=(K, N))
    (a,) = after.assignments
    with pytest.raises(VerifyError, match="skew_reductions"):
        verify_assignments("skew_reductions", before, before.with_parts([[fault(a)]]))


def band(v: str, others: list[str], extents: dict[str, int], rng: random.Random) -> str:
    """A condition that is a band of ``v``, in Python's words."""
    u, w, c, shift = rng.choice(others), rng.choice([1, 2, 3, 5, 8]), rng.choice([2, 3, 4, 8]), rng.choice([0, 1, -3])
    end = extents[u] - 1
    e = rng.choice([u, f"(2*{u})", f"({u}//3)", f"({end}-{u})", f"({u}%4)", f"({u}*3//2)", f"({u}+{rng.choice(others)})"])
    forms = [
        f"({v} <= {e}) & ({v} > {e} - {w})",
        f"({v} >= {e} - {shift}) & ({v} <= {e} + {w})",
        f"({v} == {e})",
        f"({c}*{v} == {e} + {shift})",
        f"({v}//{c} == {u}//{c})",
        f"(({v}+1)//{c} == {e})",
        f"({v}//{c} >= {u}//{c}) & ({v}//{c} <= {u}//{c} + 1)",
        f"({v} + {u} >= {end // 2}) & ({v} + {u} <= {end // 2 + w})",
        f"({v} == ({u} + {w}) % {extents[v]})",
        f"({u} - {c}*{v} == {shift})",
    ]
    extra = rng.choice(["", "", "", f" & ({u} < 20)", f" | ({v} < 3)", f" & ({v} % 2 == 0)"])
    return f"(({rng.choice(forms)}){extra})"


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_bands_drawn_at_random(seed: int, dynamic: bool) -> None:
    rng, random_numbers = random.Random(seed), torch.Generator().manual_seed(seed)
    m, n, k = (rng.choice([5, 16, 30, 33, 36, 48]) for _ in range(3))
    dtype = rng.choice(["float", "double", "half", "int32", "int64"])
    guard = band("j", rng.choice([["i"], ["d"], ["i", "d"]]), {"i": m, "j": k, "d": n}, rng)
    operator, other = rng.choice([("+=!", 0), ("+=!", 0), ("max=!", -3), ("min=!", 7)])
    kind = {"float": torch.float32, "double": torch.float64, "half": torch.float16}.get(dtype) or getattr(torch, dtype)
    a, b, w = (torch.randint(-4, 5, shape, generator=random_numbers).to(kind) for shape in ((m, k), (k, n), (m + k,)))
    i, j, d = torch.arange(m).view(m, 1, 1), torch.arange(k).view(1, k, 1), torch.arange(n).view(1, 1, n)
    wide = torch.float64 if kind.is_floating_point else torch.int64
    known = {"A(i,j)": a[:, :, None], "B(j,d)": b[None], f"W(i - j + {k})": w[i - j + k], "B(j / 2,d)": b[j[0, :, 0] // 2][None]}
    factors = rng.sample(sorted(known), rng.choice([1, 2, 3]))
    terms = torch.ones(m, k, n, dtype=wide)
    for factor in factors:
        terms = terms * known[factor].to(wide)
    terms = torch.where(eval(guard, {"i": i, "j": j, "d": d}), terms, other)  # the text of the test's own grammar
    wanted = terms.sum(1) if operator == "+=!" else terms.amax(1) if operator == "max=!" else terms.amin(1)
    body, words = " * ".join(factors), guard.replace("//", "/").replace("&", "&&").replace("|", "||")
    text = f"""def f({dtype}(M,K) A, {dtype}(K,N) B, {dtype}(P) W) -> (C) {{
        C(i,d) {operator} ({words}) ? {body} : {other} where i in 0:M, d in 0:N, j in 0:K
    }}"""
    function = tcjit.define(text, target="cpu", dynamic=["M", "K", "N", "P"] if dynamic else []).f
    found = function(a, b, w).to(wide)
    torch.testing.assert_close(found, wanted.to(kind).to(wide), rtol=1e-3 if dtype == "half" else 1e-5, atol=1e-5)


def test_what_fills_copies_keeps_the_conditions_that_its_elements_exist_by() -> None:
    text = """def f(double(32) S, double(32,33) X) -> (C) {
        C(i,d) +=! 8 * j == l / 2 - 3 && !(l < j % 4) && !(l >= j % 4 + 9) ? X(j,l) * S(j) : 0.0
        where i in 0:36, d in 0:32, j in 0:32, l in 0:33
    }"""
    s, x = torch.randn(32).double(), torch.randn(32, 33).double()
    terms = [x[j, row] * s[j] for j in range(32) for row in range(33) if 8 * j == row // 2 - 3 and j % 4 <= row < j % 4 + 9]
    assert terms
    torch.testing.assert_close(tcjit.define(text, target="cpu").f(s, x), sum(terms).expand(36, 32))


def test_each_row_of_a_tile_may_end_at_another_lane() -> None:
    text = """def f(half(M,K) A, half(K) S) -> (C) {
        C(i,d) +=! j / 4 >= d / 4 && j / 4 <= d / 4 + 1 ? A(i,j) * S(j) : 0 where d in 0:K
    }"""
    a, s = torch.randint(-4, 5, (24, 30)).half(), torch.randint(-4, 5, (30,)).half()
    j = torch.arange(30)
    where = (j // 4 >= j[:, None] // 4) & (j // 4 <= j[:, None] // 4 + 1)
    assert torch.equal(tcjit.define(text, target="cpu").f(a, s), (torch.where(where, a[:, None], 0) * s).float().sum(2).half())


@pytest.mark.parametrize(
    ("guard", "reference"),
    [
        ("j / 16 == i / 16", lambda i, j: j // 16 == i // 16),
        ("j == i", lambda i, j: j == i),
        ("j != i", lambda i, j: j != i),
        ("!(j == i)", lambda i, j: j != i),
        ("j / 3 != i / 2", lambda i, j: j // 3 != i // 2),
        ("j / 5 >= i / 4", lambda i, j: j // 5 >= i // 4),
        ("63 - 2 * j == i", lambda i, j: 63 - 2 * j == i),
    ],
)
def test_extremes_with_a_value_beside_a_band(guard: str, reference: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    x, i, j = torch.randn(7, 64), torch.arange(64)[:, None], torch.arange(64)
    for other in (-0.5, 0.5):
        text = f"def f(float(N,K) X) -> (Y) {{ Y(n,i) max=! ({guard}) ? X(n,j) : {other} where i in 0:K }}"
        wanted = torch.where(reference(i, j), x[:, None], other).amax(2)
        assert torch.equal(tcjit.define(text, target="cpu").f(x), wanted)


def test_residue_classes_have_no_edges_that_are_quotients() -> None:
    """Five terms that lie three apart, of which three are within an image of four: those of each class are a nest."""
    text = """def f(float(N,C,W) X, float(C,F,K) G) -> (O) {
        O(n,f,w) +=! x >= 0 && x < 2*W && x % 2 == 0 ? X(n,c,x/2) * G(c,f,k) : 0.0 where w in 0:17, x = w + 1 - 3*k }"""
    x, g = torch.randn(8, 4, 4), torch.randn(4, 5, 5)
    kernel = tcjit.define(text, target="cpu").f.compile(x, g)
    assert all("no nest" not in line for line in kernel.resources["reductions"])
    expected = torch.nn.functional.conv_transpose1d(x, g, stride=2, padding=1, dilation=3, output_padding=0)
    torch.testing.assert_close(kernel(x, g)[..., : expected.shape[2]], expected[..., :17])
