"""Results that hang on comparisons of floats that nearly agree: the reference's value, the check's count, the warning at define."""
from __future__ import annotations

import warnings

import pytest
import torch

import tcjit
from tcjit import library

V, T = torch.tensor([0.1, 0.3, 0.5]), torch.tensor([0.2, 0.77, 0.1])
SUMS = "def f(float(S) V, float(S) T) -> (A) { W(i) = V(i) + T(i)  A %s }"
SCORES = "def f(half(N, S) A, half(N, S) B, half(S) C) -> (W, I) { %s I(n) min=! (%s == W(n)) ? s : S }"
STORED = SCORES % ("Z(n, s) = A(n, s) * B(n, s) + C(s)  W(n) max=! Z(n, s) ", "Z(n, s)")
RECOMPUTED = SCORES % ("W(n) max=! A(n, r) * B(n, r) + C(r) ", "A(n, s) * B(n, s) + C(s)")


@pytest.mark.filterwarnings("ignore::tcjit.TCWarning")
@pytest.mark.parametrize(
    ("operator", "value", "wanted"), [("max=!", "i : 77", 77), ("+=!", "i : 77", 231), ("min=!", "5 - i : 77", 77), ("*=!", "i : 7", 343)]
)
def test_the_reference_gives_a_reduction_what_float64_gives(operator: str, value: str, wanted: int) -> None:
    text = SUMS % f"{operator} (V(i) + T(i) == W(i)) ? {value}"
    tc = tcjit.define(text, target="reference")
    exact = V.double() + T.double()
    assert not (exact == exact.float().double()).any()  # so no element equals what was stored
    assert tc.f(V, T).item() == wanted


@pytest.mark.filterwarnings("ignore::tcjit.TCWarning")
def test_a_check_counts_what_it_cannot_decide() -> None:
    tc = tcjit.define("def f(float(S) V, float(S) T) -> (E, W) { W(i) = V(i) + T(i)  E(i) = V(i) + T(i) == W(i) }", target="cpu")
    checked = tc.f.compile(V, T).check(V, T)
    assert checked.undecided == {"E": 3, "W": 0} and checked.elements == {"E": 3, "W": 3}
    assert "E: 0 of the error allowed (3 of 3 not decidable), W: " in str(checked) and str(checked).endswith("of the error allowed")
    reduced = tcjit.define(SUMS % "max=! (V(i) + T(i) == W(i)) ? i : 77", target="cpu").f.compile(V, T).check(V, T)
    assert reduced.undecided == {"A": 1}


def test_define_warns_of_a_recomputed_comparison_once_a_def() -> None:
    says = r"f: line 1, column \d+: `A\(n, s\) \* B\(n, s\) \+ C\(s\) == W\(n\)` compares what `W` stores"
    with pytest.warns(tcjit.TCWarning, match=says) as caught:
        tcjit.define(RECOMPUTED)
    assert len(caught) == 1 and caught[0].filename == __file__
    with pytest.warns(tcjit.TCWarning):  # a warm start, too
        tcjit.define(RECOMPUTED)


@pytest.mark.parametrize(
    "text",
    [
        STORED,
        SCORES % ("W(n) max=! A(n, s) ", "A(n, s)"),
        SCORES % ("W(n) max=! abs(A(n, s)) ", "abs(A(n, s))"),  # nothing rounds
        SCORES % ("W(n) +=! A(n, r) * B(n, r) ", "A(n, s) * B(n, s)"),  # no element of a sum is one of its terms
        SCORES % ("W(n) max=! A(n, r) * B(n, r) ", "A(n, s) * C(s)"),  # another expression
        "def f(int32(N) X) -> (Y, Z) { Y(i) = X(i) * 3  Z(i) = X(i) * 3 == Y(i) }",  # integers
        "def f(float(N) X) -> (Y, Z) { Y(i) = X(i) * 3.0  Z(i) = X(N - 1 - i) * 3.0 == Y(i) }",  # another element
    ],
)
def test_define_is_silent_where_nothing_is_recomputed(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", tcjit.TCWarning)
        tcjit.define(text)


def test_no_def_of_the_library_is_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", tcjit.TCWarning)
        for name in (name for names in library.families().values() for name in names):
            tcjit.define(library.source(name))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_stored_score_is_found_again(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(7)
    a, b, c = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((64, 33), (64, 33), (33,)))
    kind = "half" if dtype is torch.float16 else "bfloat16"
    best, index = tcjit.define(STORED.replace("half", kind)).f(a, b, c)
    assert (index < 33).all()
    stored = (a.float() * b.float() + c.float()).to(dtype)
    assert torch.equal(stored.gather(1, index[:, None].long())[:, 0], best)
