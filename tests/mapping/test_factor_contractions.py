"""Sums of products in the order with the fewest operations: which temporaries there are, and that every order gives the same numbers.

Modules: mapping.passes.factor_contractions mapping.verify_contractions
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.mapping import program

import tcjit
from tcjit.errors import VerifyError
from tcjit.grammar.ast import Binary, Expr, Select
from tcjit.grammar.walk import with_accesses
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.passes.factor_contractions import factor_contractions
from tcjit.mapping.passes.widen import widen
from tcjit.mapping.verify_assignments import verify_assignments


def before(text: str, shapes: dict[str, tuple[int, ...]]) -> Assignments:
    return extract(program(text, shapes))


def factored(text: str, shapes: dict[str, tuple[int, ...]]) -> list[str]:
    return [a.show() for a in factor_contractions(before(text, shapes)).assignments]


def test_an_index_of_one_factor_is_summed_first() -> None:
    text = "def f(float(B,C) X, float(A,B) Y) -> (O) { O(a) +=! X(b,c) * Y(a,b) }"
    assert factored(text, {"X": (20, 300), "Y": (500, 20)}) == [
        "O_factor(b) += X(b, c) from 0.0 where b in 0:20, c in 0:300",
        "O(a) += O_factor(b) * Y(a, b) from 0.0 where a in 0:500, b in 0:20",
    ]


@pytest.mark.parametrize(
    ("sizes", "first"), [({"X": (8, 64), "Y": (64, 512), "Z": (512, 512)}, "X"), ({"X": (512, 512), "Y": (512, 64), "Z": (64, 8)}, "Y")]
)
def test_the_order_of_a_chain_follows_its_sizes(sizes: dict[str, tuple[int, ...]], first: str) -> None:
    text = "def f(float(I,J) X, float(J,K) Y, float(K,L) Z) -> (O) { O(i,l) +=! X(i,j) * Y(j,k) * Z(k,l) }"
    made, last = factored(text, sizes)
    assert made.startswith({"X": "O_factor(i, k) += X(i, j) * Y(j, k)", "Y": "O_factor(j, l) += Y(j, k) * Z(k, l)"}[first])
    assert last.count("O_factor") == 1


def test_a_temporary_lies_like_what_it_is_multiplied_with() -> None:
    """Element by element; where nothing has all of its dimensions, neighbours in the result are neighbours in it."""
    text = "def f(float(N,D) X, float(D) m, float(D,D) P) -> (Q) { Q(n) +=! (X(n,i) - m(i)) * P(i,j) * (X(n,j) - m(j)) }"
    made, last = factored(text, {"X": (500, 24), "m": (24,), "P": (24, 24)})
    assert made.startswith("Q_factor(n, i) += ") and "Q_factor(n, i)" in last
    turned = text.replace("X(n,", "X(").replace(") - m", ",n) - m").replace("N,D", "D,N")
    made, last = factored(turned, {"X": (24, 500), "m": (24,), "P": (24, 24)})
    assert made.startswith("Q_factor(i, n) += ") and "Q_factor(i, n)" in last


def test_a_temporary_lies_like_what_it_sums_most_of() -> None:
    """Neighbours of an operand with many elements for each of the temporary's are neighbours in it, if they are not summed."""
    sizes = {"X": (20, 30, 40), "U": (40, 30, 20)}
    text = "def f(float(A,B,D) X, float(D,B,A) U, float(B,A,C,D) V) -> (O) { O(a,b) +=! X(a,b,d) * U(d,b,a) * V(b,a,c,d) }"
    assert factored(text, {**sizes, "V": (30, 20, 50, 40)})[0].startswith("O_factor(b, a, d) +=")
    summed = text.replace("float(B,A,C,D) V", "float(B,A,D,C) V").replace("V(b,a,c,d)", "V(b,a,d,c)")
    assert factored(summed, {**sizes, "V": (30, 20, 40, 50)})[0].startswith("O_factor(a, b, d) +=")


TWO = "def f(float(I,J) X, float(J,K) Y, float(K,L) Z, float(K,M) V) -> (O, Q) { %s }"
TWO_SIZES = {"X": (8, 64), "Y": (64, 512), "Z": (512, 512), "V": (512, 300)}
BOTH = "O(i,l) +=! X(i,j) * Y(j,k) * Z(k,l) Q(i,m) +=! X(i,j) * Y(j,k) * V(k,m)"
CHANGED = "T(i,j) = X(i,j) O(i,l) +=! T(i,j) * Y(j,k) * Z(k,l) T(i,j) = 2.0 * T(i,j) Q(i,m) +=! T(i,j) * Y(j,k) * V(k,m)"


def test_what_one_contraction_holds_others_read() -> None:
    made, first, second = factored(TWO % BOTH, TWO_SIZES)
    assert made.startswith("O_factor(i, k) += X(i, j) * Y(j, k)") and all("O_factor(i, k)" in one for one in (first, second))
    three = BOTH + " O(i,l) += X(i,j) * Y(j,k) * Z(k,l)"
    assert sum("_factor(i, k) +=" in one for one in factored(TWO % three, TWO_SIZES)) == 1
    others = factored(TWO % BOTH.replace("Q(i,m) +=! X(i,j)", "Q(i,m) +=! X(i,j) * X(i,j)"), TWO_SIZES)
    assert "O_factor" not in others[-1]


def test_what_changes_between_contractions_is_computed_again() -> None:
    program_before = before(TWO % CHANGED, TWO_SIZES)
    after = factor_contractions(program_before)
    verify_assignments("factor_contractions", program_before, after)
    texts = [a.show() for a in after.assignments]
    assert sum("_factor(i, k) +=" in one for one in texts) == 2 and "Q_factor(i, k)" in texts[-1]
    last = replace(after.assignments[-1], value=with_names_of(after.assignments[-1].value, "Q_factor", "O_factor"))
    wrong = replace(after, assignments=(*after.assignments[:-1], last), replaced=(*after.replaced[:-1], (*after.replaced[-1][:-1], last)))
    with pytest.raises(VerifyError, match="factor_contractions"):
        verify_assignments("factor_contractions", program_before, wrong)


def with_names_of(value: Expr, old: str, new: str) -> Expr:
    return with_accesses(value, lambda access: replace(access, tensor=new) if access.tensor == old else access)


@pytest.mark.parametrize("text", [BOTH, CHANGED])
def test_numbers_of_shared_parts(text: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y, z, v = (torch.randn(size, generator=generator) / 8 for size in TWO_SIZES.values())
    o, q = tcjit.define(TWO % text).f(x, y, z, v)
    product = x.double() @ y.double()
    torch.testing.assert_close(o, (product @ z.double()).float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(q, ((2 if text == CHANGED else 1) * product @ v.double()).float(), rtol=1e-4, atol=1e-4)


def test_results_without_a_sum_of_their_own_are_assigned() -> None:
    text = "def f(float(N,J) X, float(N,K) Y) -> (O) { O(n) +=! X(n,j) * Y(n,k) }"
    *made, last = factored(text, {"X": (50, 60), "Y": (50, 70)})
    assert len(made) == 2
    assert last == "O(n) = 0.0 + O_factor(n) * O_factor1(n) where n in 0:50"


def test_ranges_that_do_not_begin_at_zero_are_kept() -> None:
    text = "O(n) = 1.0 where n in 0:N  O(n) += X(n,j) * Y(k) * Z(n,k) where n in 3:N, j in 5:J"
    shapes = {"X": (50, 60), "Y": (70,), "Z": (50, 70)}
    assert factored(f"def f(float(N,J) X, float(K) Y, float(N,K) Z) -> (O) {{ {text} }}", shapes)[1:] == [
        "O_factor(n + -3) += X(n, j) from 0.0 where n in 3:50, j in 5:60",
        "O_factor1(n + -3) += Y(k) * Z(n, k) from 0.0 where n in 3:50, k in 0:70",
        "O(n) += O_factor(n + -3) * O_factor1(n + -3) where n in 3:50",
    ]


@pytest.mark.parametrize("dtype", ["half", "bfloat16"])
def test_factors_of_halves_are_converted_one_by_one(dtype: str) -> None:
    """Their product is computed in float32 anyway; its partial sums are not rounded."""
    text = f"def f({dtype}(B,C) X, {dtype}(A,B) Y) -> (O) {{ O(a) +=! X(b,c) * Y(a,b) }}"
    found = factor_contractions(widen(before(text, {"X": (20, 300), "Y": (500, 20)}))).assignments
    assert [a.show().partition(" where")[0] for a in found[:2]] == [
        "O_wide_factor(b) += float32(X(b, c)) from 0.0",
        "O_wide(a) += O_wide_factor(b) * float32(Y(a, b)) from 0.0",
    ]
    x, y = (torch.randn(shape).to(torch.float16 if dtype == "half" else torch.bfloat16) for shape in ((20, 300), (500, 20)))
    assert tcjit.define(text).f.compile(x, y).check(x, y)


def test_the_sum_is_divided_by_what_divides_all_terms() -> None:
    text = "def f(float(N,D) X, float(D) V) -> (O) { O(i,j) +=! X(n,i) * X(n,j) / V(j) }"
    assert factored(text, {"X": (100, 40), "V": (40,)}) == [
        "O_dividend(i, j) += X(n, i) * X(n, j) from 0.0 where i in 0:40, j in 0:40, n in 0:100",
        "O(i, j) = 0.0 + O_dividend(i, j) / V(j) where i in 0:40, j in 0:40",
    ]
    added = "def f(float(N,D) X) -> (O) { O(i) = 1.0 where i in 0:D  O(i) += X(n,i) / 3.0 }"
    assert factored(added, {"X": (4000, 40)})[1:] == [
        "O_dividend(i) += X(n, i) from 0.0 where i in 0:40, n in 0:4000",
        "O(i) += O_dividend(i) / 3.0 where i in 0:40",
    ]


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("def f(float(N,D) X, float(N) V) -> (O) { O(i) +=! X(n,i) / V(n) }", {"X": (4000, 40), "V": (4000,)}),  # each by its own
        ("def f(int32(N,D) X) -> (O) { O(i) +=! X(n,i) / 3 }", {"X": (4000, 40)}),  # which rounds
        ("def f(float(N,D) X) -> (O) { O(i) max=! X(n,i) / 3.0 }", {"X": (4000, 40)}),
        ("def f(float(N,D) X) -> (O) { O(n) +=! X(n,i) / 3.0 }", {"X": (40000, 3)}),  # few terms
        ("def f(float(M,K) X, float(K,N) Y) -> (O) { O(m,n) +=! X(m,k) * Y(k,n) }", {"X": (64, 64), "Y": (64, 64)}),
        (  # fewer operations, but so few that loops cost more
            "def f(float(B,C) X, float(A,B) Y) -> (O) { O(a) +=! X(b,c) * Y(a,b) }",
            {"X": (5, 9), "Y": (10, 5)},
        ),
        ("def f(float(B,C) X, float(A,B) Y) -> (O) { O(a) max=! X(b,c) * Y(a,b) }", {"X": (20, 300), "Y": (500, 20)}),
        ("def f(float(B,C) X, float(A,B) Y) -> (O) { O(a) +=! X(b,c) + Y(a,b) }", {"X": (20, 300), "Y": (500, 20)}),
        (  # a condition joins the indices of both factors
            "def f(float(B,C) X, float(A,B) Y) -> (O) { O(a) +=! (c > a) ? X(b,c) * Y(a,b) : 0.0 }",
            {"X": (20, 300), "Y": (500, 20)},
        ),
    ],
)
def test_what_stays_as_it_is(text: str, shapes: dict[str, tuple[int, ...]]) -> None:
    start = before(text, shapes)
    assert factor_contractions(start).assignments == start.assignments


def test_a_condition_is_a_factor() -> None:
    text = "def f(float(T,T) G, float(T,P) X, float(T) L) -> (O) { O(t,p) +=! (s <= t) ? G(t,s) * exp(L(t) - L(s)) * X(s,p) : 0.0 }"
    assert factored(text, {"G": (50, 50), "X": (50, 60), "L": (50,)}) == [
        "O_factor(t, s) = s <= t ? G(t, s) * exp(L(t) - L(s)) : 0.0 where t in 0:50, s in 0:50",
        "O(t, p) += s <= t ? O_factor(t, s) * X(s, p) : 0.0 from 0.0 where t in 0:50, p in 0:60, s in 0:50",
    ]
    negated = "def f(float(B,C) X, float(A,B) Y) -> (O) { O(a) +=! (b < a) ? -(X(b,c) * Y(a,b)) : 0.0 }"
    assert factored(negated, {"X": (20, 300), "Y": (500, 20)}) == [
        "O_factor(b) += -X(b, c) from 0.0 where b in 0:20, c in 0:300",
        "O(a) += b < a ? Y(a, b) * O_factor(b) : 0.0 from 0.0 where a in 0:500, b in 0:20",
    ]
    counted = "def f(float(P,T) X) -> (r) { r +=! (s <= t) ? X(p,t) : 0.0 where s in 0:T }"
    assert factored(counted, {"X": (200, 50)}) == [
        "r_factor(t) += s <= t ? 1.0 : 0.0 from 0.0 where t in 0:50, s in 0:50",
        "r_factor1(t) += X(p, t) from 0.0 where t in 0:50, p in 0:200",
        "r() += r_factor(t) * r_factor1(t) from 0.0 where t in 0:50",
    ]
    x = torch.randn(200, 50)
    assert tcjit.define(counted).f.compile(x).check(x)
    protected = "def f(float(E,C) X, float(A,B) Y) -> (O) { O(a) +=! (b >= 5) ? X(b-5,c) * Y(a,b) : 0.0 }"
    assert factored(protected, {"X": (15, 300), "Y": (500, 20)})[0].startswith("O_factor(b + -5) += b >= 5 ? X(b - 5, c) : 0.0 from 0.0")
    text = protected.replace("b >= 5", "a + b < 10").replace("b-5", "b").replace("0.0 }", "0.0 where b in 0:20 }")
    outside = before(text, {"X": (10, 300), "Y": (500, 20)})
    assert factor_contractions(outside).assignments == outside.assignments  # the condition protects the rows of X


UNDER = "def f(float(T,N) C, float(T,N) B, float(T,D) L, float(D,N) A) -> (O) { %s }"
STATES = "O(t,s,d) +=! s %s t ? C(t,n) * B(s,n) * exp(A(d,n) * (L(t,d) - L(s,d))) : 0.0"
ATTENTION = "O(t,d) +=! s %s t ? C(t,n) * B(s,n) * L(s,d) : 0.0"


@pytest.mark.parametrize("order", ["<=", "<"])
@pytest.mark.parametrize("statement", [STATES, ATTENTION])
def test_what_a_condition_keeps_from_being_a_factor_need_not_be_finite(statement: str, order: str) -> None:
    text = UNDER % statement % order
    a = before(text, {"C": (70, 24), "B": (70, 24), "L": (70, 40), "A": (40, 24)})
    after = factor_contractions(a)
    verify_assignments("factor_contractions", a, after)
    assert len(after.assignments) > 1
    *made, last = after.assignments
    assert isinstance(last.value, Select)
    without = (*made, replace(last, value=last.value.then))
    with pytest.raises(VerifyError, match="factor_contractions: statement 1 of f"):
        verify_assignments("factor_contractions", a, replace(after, assignments=without, replaced=(without,)))
    generator = torch.Generator().manual_seed(0)
    c, b, x, d = (torch.randn(shape, generator=generator) for shape in ((70, 24), (70, 24), (70, 40), (40, 24)))
    x = 30.0 * x.abs().cumsum(0) if statement == STATES else x.index_fill(0, torch.tensor([69]), torch.inf)
    d = -d.abs() - 0.1
    mask = torch.ones(70, 70, dtype=torch.bool).tril(0 if order == "<=" else -1)
    if statement == STATES:
        terms = torch.einsum("tn,sn,tsdn->tsd", c, b, torch.exp(d * (x[:, None] - x)[..., None]).where(mask[..., None, None], 0.0))
    else:
        products = (c @ b.T)[..., None] * x
        terms = products.where(mask[..., None], 0.0).sum(1)
    found = tcjit.define(text).f(c, b, x, d)
    rows = slice(None) if statement == STATES else slice(0, 69)
    assert terms[rows].isfinite().all()
    torch.testing.assert_close(found[rows], terms[rows], rtol=1e-4, atol=1e-4)


def test_a_step_without_terms_is_no_factor() -> None:
    """``s < t`` leaves the first ``t`` without terms, whatever stands beside them there."""
    text = "def f(float(T,S) X, float(T,N) Y, float(N,M) Z) -> (O) { O(m) +=! s %s t ? X(t,s) * Y(t,n) * Z(n,m) : 0.0 }"
    sizes: dict[str, tuple[int, ...]] = {"X": (40, 40), "Y": (40, 50), "Z": (50, 60)}
    every, some = (factored(text % order, sizes) for order in ("<=", "<"))
    assert any("+= s <= t ? X(t, s) : 0.0" in one for one in every) and not any("O_terms" in one for one in every)
    assert any(one.startswith("O_terms(t) += s < t ? 1.0 : 0.0 from 0.0") for one in some)
    assert any("O_terms(t) > 0.0 ?" in one for one in some)


PICKED = """def f(int32(N) I, float(N,D) X, float(V,D) Y, float(V,E) Z) -> (O) {
    O(v,e) +=! %s ? X(n,d) * Y(v,d) * Z(v,e) : 0.0 where v in 0:V }"""


@pytest.mark.parametrize("condition", ["I(n) == v", "(I(n) == v && n >= v)"])
def test_what_data_do_not_pick_need_not_be_finite(condition: str) -> None:
    text, shapes = PICKED % condition, {"I": (300,), "X": (300, 20), "Y": (30, 20), "Z": (30, 24)}
    a = before(text, shapes)
    after = factor_contractions(a)
    verify_assignments("factor_contractions", a, after)
    *made, last = after.assignments
    assert any(one.tensor == "O_terms" for one in made) and isinstance(last.value, Binary) and isinstance(last.value.right, Select)
    without = (*made, replace(last, value=replace(last.value, right=last.value.right.then)))
    with pytest.raises(VerifyError, match="factor_contractions: statement 1 of f"):
        verify_assignments("factor_contractions", a, replace(after, assignments=without, replaced=(without,)))
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, 20, (300,), generator=generator, dtype=torch.int32)
    x, y, z = (torch.rand(shapes[name], generator=generator) + 0.5 for name in "XYZ")
    y[20:], z[20:] = torch.inf, torch.nan
    place = torch.arange(30)
    picked = (index[None] == place[:, None]) & ((torch.arange(300) >= place[:, None]) | ("n >= v" not in condition))
    expected = torch.where(picked.any(1)[:, None], torch.einsum("vn,nd,vd,ve->ve", picked.float(), x, y.nan_to_num(1.0, 1.0), z), 0.0)
    torch.testing.assert_close(tcjit.define(text).f(index, x, y, z), expected, rtol=1e-4, atol=1e-3)


def test_what_data_pick_stands_in_every_step_that_has_its_indices() -> None:
    text = """def f(float(V,D,N) A, float(N,V) B, float(D,N,V) C, int32(N) I) -> (O) {
        O(v) +=! (I(n) == v) ? A(v,d,n) * B(n,v) * C(d,n,v) : 0.0 where v in 0:V, n in 0:N, d in 0:D }"""
    a = before(text, {"A": (13, 31, 280), "B": (280, 13), "C": (31, 280, 13), "I": (280,)})
    after = factor_contractions(a)
    verify_assignments("factor_contractions", a, after)
    assert len(after.assignments) > 1
    generator = torch.Generator().manual_seed(0)
    x, y, z = (torch.rand(shape, generator=generator) + 0.5 for shape in ((13, 31, 280), (280, 13), (31, 280, 13)))
    index = torch.randint(-1, 13, (280,), generator=generator, dtype=torch.int32)
    picked = index[:, None] == torch.arange(13)
    expected = torch.einsum("vdn,nv,dnv->v", x, y.where(picked, 0.0), z)
    torch.testing.assert_close(tcjit.define(text).f(x, y.where(picked, torch.inf), z, index), expected, rtol=1e-4, atol=1e-3)


OVERWRITTEN = """def f(float(I,J) X, float(J,K) Y, float(K,L) Z, float(L,M) V, float(L,M) W) -> (O, Q) {
    T(i,j) = X(i,j)
    O(i,m) +=! T(i,j) * Y(j,k) * Z(k,l) * V(l,m)
    T(i,j) = 2.0 * T(i,j)
    Q(i,m) +=! T(i,j) * Y(j,k) * Z(k,l) * W(l,m) }"""


def test_what_is_computed_from_what_changes_is_computed_again() -> None:
    a = before(OVERWRITTEN, {"X": (8, 64), "Y": (64, 512), "Z": (512, 16), "V": (16, 300), "W": (16, 300)})
    after = factor_contractions(a)
    verify_assignments("factor_contractions", a, after)
    last = after.replaced[-1]
    assert len(last) > 1 and all("O_factor" not in one.show() for one in last)


def test_results_are_added_to_what_an_element_holds() -> None:
    x, y, z = torch.randn(50, 60), torch.randn(70), torch.randn(50, 70)
    text = "O(n) = 1.0 where n in 0:N  O(n) += X(n,j) * Y(k) * Z(n,k) where n in 3:N"
    for target in ("cpu", "opencl"):
        result = tcjit.define(f"def f(float(N,J) X, float(K) Y, float(N,K) Z) -> (O) {{ {text} }}", target=target).f(x, y, z)
        expected = 1 + torch.einsum("nj,k,nk->n", x.double(), y.double(), z.double())
        torch.testing.assert_close(result[3:].double(), expected[3:], rtol=1e-4, atol=1e-3)
        assert result[:3].tolist() == [1.0, 1.0, 1.0]


CONTRACTIONS = [
    ("float(B,C) X, float(A,B,D) Y, float(D,B) Z", "O(a) +=! X(b,c) * Y(a,b,d) * Z(d,b)", "bc,abd,db->a"),
    ("float(B) X, float(A,C,D) Y, float(A,B) Z", "O(d) +=! X(b) * Y(a,c,d) * Z(a,b)", "b,acd,ab->d"),
    ("float(A,B) X, float(B,C) Y, float(C,D) Z", "O(a,d) +=! X(a,b) * Y(b,c) * Z(c,d)", "ab,bc,cd->ad"),
    ("float(A) X, float(B) Y, float(C,D) Z", "O +=! X(a) * Y(b) * Z(c,d)", "a,b,cd->"),
    ("float(A,B) X, float(C) Y, float(A,D) Z", "O(a,d) +=! X(a,b) * (Y(c) * Z(a,d))", "ab,c,ad->ad"),
    ("int32(A,B) X, int32(B,C) Y, int32(C,D) Z", "O(a,d) +=! X(a,b) * Y(b,c) * Z(c,d)", "ab,bc,cd->ad"),
    ("double(A,B) X, double(A,C) Y, double(A,D) Z", "O(a) +=! X(a,b) * Y(a,c) * Z(a,d)", "ab,ac,ad->a"),
    ("float(A,B) X, float(B,C) Y", "O(a,c) +=! X(a,b) * Y(b,c) / 1.0", "ab,bc->ac"),
    ("bfloat16(B,C) X, bfloat16(A,B) Y", "O(a) +=! float(X(b,c)) * float(Y(a,b))", "bc,ab->a"),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("parameters", "statement", "equation"), CONTRACTIONS)
@pytest.mark.parametrize("target", ["cpu", "opencl"])
def test_numbers_are_those_of_einsum(parameters: str, statement: str, equation: str, target: str) -> None:
    sizes = {"a": 108, "b": 23, "c": 33, "d": 21}
    inputs = []
    generator = torch.Generator().manual_seed(5)
    for letters, dtype in zip(equation.split("->")[0].split(","), [p.split("(")[0] for p in parameters.split(", ")], strict=True):
        kind = {"float": torch.float32, "int32": torch.int32, "double": torch.float64, "bfloat16": torch.bfloat16}[dtype]
        shape = [sizes[letter] for letter in letters]
        if kind.is_floating_point:
            inputs.append(torch.randn(shape, generator=generator).to(kind))
        else:
            inputs.append(torch.randint(-(1 << 20), 1 << 20, shape, generator=generator, dtype=kind))
    f = tcjit.define(f"def f({parameters}) -> (O) {{ {statement} }}", target=target).f
    kernel = f.compile(*inputs)
    result, expected = kernel(*inputs), torch.einsum(equation, *(x.double() if x.is_floating_point() else x.long() for x in inputs))
    if result.dtype == torch.int32:
        assert torch.equal(result, expected.to(torch.int32))  # sums that wrap
    else:
        torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-3)
    if "/" in statement:  # a nest divides its accumulators
        assert "O_dividend" in kernel.source or any("O_dividend" in nest for nest in kernel.resources["reductions"])
    else:
        assert "O_factor" in kernel.source


SCATTERED = """def f(int64(N,K) I, float(O,N,K) G, float(O,C) W) -> (Y) {
    Y(v,c) +=! I(n,k) == v ? G(o,n,k) * W(o,c) : 0.0 where v in 0:50
}"""


def test_terms_that_data_pick_are_summed_before_they_are_multiplied() -> None:
    """Scattered once for each channel of the gradients, not for each pair of one with a channel of the results."""
    a = before(SCATTERED, {"I": (50, 12), "G": (40, 50, 12), "W": (40, 24)})
    after = factor_contractions(a)
    verify_assignments("factor_contractions", a, after)
    factor, terms, product = after.assignments
    assert "int64(v)" in factor.show() and {*factor.dims} == {"o", "v", "n", "k"} and {*terms.dims} == {"v", "n", "k"}
    assert {*product.dims} == {"v", "c", "o"} and "==" not in product.show() and "Y_terms(v) > 0.0 ?" in product.show()
    assert factor_contractions(a, cpu=False).assignments == a.assignments
    g = torch.Generator().manual_seed(0)
    at, grad, weight = torch.randint(0, 50, (50, 12), generator=g), *(torch.randn(*s, generator=g) for s in ((40, 50, 12), (40, 24)))
    expected = torch.zeros(50, 24).index_add_(0, at.flatten(), torch.einsum("onk,oc->nkc", grad, weight).flatten(0, 1))
    torch.testing.assert_close(tcjit.define(SCATTERED).f(at, grad, weight), expected, rtol=1e-4, atol=1e-4)
