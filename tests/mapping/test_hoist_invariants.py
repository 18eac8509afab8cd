"""What an assignment would compute again and again: which of it is stored, and that numbers stay the same.

Modules: mapping.passes.hoist_invariants
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.mapping import AVX512, program

import tcjit
from tcjit.errors import DivisionError, GatherError, VerifyError
from tcjit.grammar.ast import Access, Binary, Cast
from tcjit.mapping.assignment import Assignments, Temporaries
from tcjit.mapping.extract import extract
from tcjit.mapping.options import Options
from tcjit.mapping.passes.hoist_invariants import hoist_invariants
from tcjit.mapping.pipeline import build_scop
from tcjit.mapping.verify_assignments import verify_assignments
from tcjit.step import Steps

N = {"X": (200, 64), "M": (64,)}


def before(text: str, shapes: dict[str, tuple[int, ...]]) -> Assignments:
    return extract(program(text, shapes))


def hoisted(text: str, shapes: dict[str, tuple[int, ...]], cpu: bool = True) -> list[str]:
    return [a.show() for a in hoist_invariants(before(text, shapes), cpu).assignments]


def test_one_temporary_serves_all_indices_of_a_range() -> None:
    text = "def f(float(N,D) X, float(D) M) -> (Y) { Y(i,j) +=! (X(n,i) - M(i)) * (X(n,j) - M(j)) }"
    assert hoisted(text, N) == [
        "Y_invariant(n, i) = X(n, i) - M(i) where n in 0:200, i in 0:64",
        "Y(i, j) += Y_invariant(n, i) * Y_invariant(n, j) from 0.0 where i in 0:64, j in 0:64, n in 0:200",
    ]


def test_invariants_of_invariants() -> None:
    """The mean that differences subtract is divided once for each column, not once for each element."""
    text = "def f(float(N,D) X, float(D) M) -> (Y) { Y(i,j) +=! (X(n,i) - M(i) / N) * (X(n,j) - M(j) / N) }"
    steps = Steps("covariance")
    build_scop(program(text, {"X": (1503, 64), "M": (64,)}), Options(), target=AVX512, steps=steps, prove="every")
    assert steps.artifacts["hoist_invariants"].splitlines()[:2] == [
        "Y_invariant_invariant(i) = M(i) / float32(N) where i in 0:64",
        "Y_invariant(n, i) = X(n, i) - Y_invariant_invariant(i) where n in 0:1503, i in 0:64",
    ]


def test_another_launch_of_a_gpu_is_worth_many_operations() -> None:
    text = "def f(float(N,D) X, float(D) M) -> (Y) { Y(i,j) +=! (X(n,i) - M(i)) * (X(n,j) - M(j)) }"
    assert [len(hoisted(text, {"X": (n, 512), "M": (512,)}, cpu=False)) for n in (60, 600)] == [1, 2]


def test_other_ranges_have_temporaries_of_their_own() -> None:
    text = "def f(float(N,D) X, float(D) M) -> (Y) { Y(i,j) +=! (X(n,i) - M(i)) * (X(n,j) - M(j)) where i in 0:20 }"
    first, second, last = hoisted(text, N)
    assert first.endswith("i in 0:20") and second.endswith("j in 0:64")
    assert last.startswith("Y(i, j) += Y_invariant(n, i) * Y_invariant1(n, j)")


def test_a_table_of_indices_may_stand_under_a_condition() -> None:
    text = "def f(float(T,C) X) -> (Y) { Y(t,c) +=! (s <= t ? X(s,c) * pow(0.9, float(t - s)) : 0.0) where t in 0:T, s in 0:T }"
    table, last = hoisted(text, {"X": (64, 100)})
    assert table == "Y_invariant(t, s) = pow(0.9, float32(t - s)) where t in 0:64, s in 0:64"
    assert "X(s, c) * Y_invariant(t, s)" in last


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("s <= t ? exp(S(t,s)) * V(s,c) : 0.0", "exp(S(t, s)) where t in 0:64, s in 0:64"),
        ("s >= 1 ? exp(S(t,s - 1)) * V(s,c) : 0.0", ""),  # is not there everywhere
        ("s <= t ? (S(t,s) + 1.0) * V(s,c) : 0.0", ""),  # takes no longer than a load
    ],
)
def test_functions_under_conditions_are_stored_where_all_they_read_exists(value: str, stored: str) -> None:
    """A function for each result takes longer than for all elements, also for those that conditions leave out."""
    text = f"def f(float(T,T) S, float(T,C) V) -> (Y) {{ Y(t,c) +=! {value} where t in 0:T, s in 0:T }}"
    made = hoisted(text, {"S": (64, 64), "V": (64, 32)})
    assert [one.partition(" = ")[2] for one in made[:-1]] == [stored] * bool(stored)
    assert len(hoisted(text, {"S": (64, 64), "V": (64, 32)}, cpu=False)) == 1
    s, v = torch.randn(64, 64), torch.randn(64, 32)
    torch.testing.assert_close(tcjit.define(text).f(s, v), tcjit.define(text, target="reference").f(s, v), rtol=1e-5, atol=1e-4)


def test_two_uses_of_a_function_pay_in_a_reduction() -> None:
    text = "def f(float(B,N) Q) -> (P) { P(b,c) +=! c == 0 ? cos(Q(b,i)) : sin(Q(b,i)) where c in 0:2 }"
    assert len(hoisted(text, {"Q": (300, 40)})) == 3


SYMMETRIC = "def f(float(M,M) A, float(M,N) B) -> (Y) { Y(i,j) +=! ((k <= i) ? A(i,k) : A(k,i)) * B(k,j) where i in 0:M }"


def test_what_a_condition_on_indices_chooses_is_an_operand_of_its_own() -> None:
    """No nest evaluates such a condition for each result."""
    a, b = torch.randn(200, 200), torch.randn(200, 80)
    first, last = hoisted(SYMMETRIC, {"A": (200, 200), "B": (200, 80)})
    assert first == "Y_invariant(i, k) = k <= i ? A(i, k) : A(k, i) where i in 0:200, k in 0:200"
    assert last.startswith("Y(i, j) += Y_invariant(i, k) * B(k, j)")
    kernel = tcjit.define(SYMMETRIC, target="cpu").f.compile(a, b)
    lower = a.double().tril()
    torch.testing.assert_close(kernel(a, b).double(), (lower + lower.tril(-1).T) @ b.double(), rtol=1e-4, atol=1e-4)
    assert kernel.nests == 1


def test_functions_of_what_is_chosen_are_computed_once() -> None:
    text = SYMMETRIC.replace("((k <= i) ? A(i,k) : A(k,i))", "exp((k <= i) ? A(i,k) : A(k,i))")
    first, last = hoisted(text, {"A": (200, 200), "B": (200, 80)})
    assert "= exp(k <= i ? A(i, k) : A(k, i))" in first and "exp" not in last


def test_what_a_condition_on_data_chooses_stays() -> None:
    text = "def f(float(M,K) A, float(K,N) B, float(M,K) C) -> (Y) { Y(i,j) +=! ((C(i,k) > 0.0) ? A(i,k) : C(i,k)) * B(k,j) }"
    assert len(hoisted(text, {"A": (200, 200), "B": (200, 80), "C": (200, 200)})) == 1


def test_what_picks_a_result_stays() -> None:
    """A scatter goes over the terms alone, however the result is computed from data."""
    text = "def f(float(T,D) X, int64(K) L) -> (Y) { Y(i,d) +=! (t + L(k)) % T == i ? X(t,d) : 0.0 where i in 0:T }"
    shapes = {"X": (193, 64), "L": (5,)}
    assert hoisted(text, shapes) == [a.show() for a in before(text, shapes).assignments]
    f = tcjit.define(text).f
    x, lags = torch.randn(193, 64, dtype=torch.float32), torch.tensor([0, 3, 192, 7, 7])
    assert f.compile(x, lags).resources["reductions"] == ["Y: scatter along i"]
    torch.testing.assert_close(f(x, lags), sum(x.roll(lag, 0) for lag in lags.tolist()))


def test_a_window_beside_zeros_stays() -> None:
    text = "def f(float(M,K) A, float(K,N) B) -> (Y) { Y(i,j) +=! ((k <= i) ? A(i,k) : 0.0) * B(k,j) where i in 0:M }"
    shapes = {"A": (200, 200), "B": (200, 80)}
    assert hoisted(text, shapes)[0] == "Y_invariant(i, k) = k <= i ? A(i, k) : 0.0 where i in 0:200, k in 0:200"
    assert len(hoisted(text.replace("A(i,k)", "A(i,i - k)"), shapes)) == 1, "which is copied for all i - k"


def test_pointwise_assignments_store_what_takes_long_and_moves_with_the_inner_index() -> None:
    rotary = "def f(float(B,S,D) X, float(D) W) -> (Y) { Y(b,i,d) = X(b,i,d) * cos(float(i) * W(d)) }"
    shapes = {"X": (32, 100, 64), "W": (64,)}
    assert hoisted(rotary, shapes)[0] == "Y_invariant(i, d) = cos(float32(i) * W(d)) where i in 0:100, d in 0:64"
    assert len(hoisted(rotary, shapes, cpu=False)) == 1


def test_rows_that_are_used_again_are_gathered_once() -> None:
    text = "def f(float(V,D) E, int32(N) I, float(H,D) W) -> (Y) { Y(n,h) +=! E(I(n),d) * W(h,d) }"
    shapes = {"E": (500, 64), "I": (100,), "W": (32, 64)}
    assert hoisted(text, shapes) == [
        "Y_invariant(n, d) = E(I(n), d) where n in 0:100, d in 0:64",
        "Y(n, h) += Y_invariant(n, d) * W(h, d) from 0.0 where n in 0:100, h in 0:32, d in 0:64",
    ]
    assert len(hoisted(text, shapes, cpu=False)) == 1
    bag = "def f(float(V,D) E, int32(N,L) I) -> (Y) { Y(n,d) +=! E(I(n,l),d) }"
    assert len(hoisted(bag, {"E": (500, 64), "I": (100, 20)})) == 1  # each is used once


def test_borders_are_left_to_padded_copies_where_these_can_have_them() -> None:
    """Not beside rows that data pick, which are gathered once as before."""
    text = """def f(float(G,H) X, int64(C) I, float(F,C,3) K) -> (Y) {
        Y(f,h) +=! X(%s, min(max(h+r-1,0),H-1)) * K(f,c,r) where h in 0:H, r in 0:3 }"""
    shapes = {"X": (20, 100), "I": (20,), "K": (40, 20, 3)}
    assert len(hoisted(text % "c", shapes)) == 1
    made = hoisted(text % "I(c)", shapes)
    assert len(made) == 2 and made[0].startswith("Y_invariant(c, h, r) = X(I(c), min(max(")


def test_remainders_of_integers_are_computed_once() -> None:
    """No vector has them; by sizes and by data, which are checked wherever the sum has a term."""
    text = "def f(float(B,N) X) -> (Y) { Y(b,k) +=! X(b,n) * cos(6.28 * float((k*n) % N) / float(N)) where k in 0:N }"
    first, last = hoisted(text, {"X": (40, 64)})
    assert first.startswith("Y_invariant(k, n) = cos(") and last.startswith("Y(b, k) += X(b, n) * Y_invariant(k, n)")
    digits = "def f(int32(K) P) -> (Y) { Y(u,n) +=! ((u / P(k)) % 2) * ((n / P(k)) % 2) where u in 0:100, n in 0:100 }"
    first, last = hoisted(digits, {"P": (7,)})
    assert first == "Y_invariant(u, k) = u / P(k) % 2 where u in 0:100, k in 0:7"
    assert last.startswith("Y(u, n) += Y_invariant(u, k) * Y_invariant(n, k)")
    powers, bits = 2 ** torch.arange(7, dtype=torch.int32), torch.arange(100)[:, None] // 2 ** torch.arange(7) % 2
    f = tcjit.define(digits, target="cpu").f
    assert torch.equal(f(powers), (bits @ bits.T).int()) and f.compile(powers).nests == 1
    powers[3] = 0
    with pytest.raises(DivisionError):
        f(powers)
    guarded = digits.replace("((u / P(k)) % 2) * ((n / P(k)) % 2)", "(P(k) > 0) ? ((u / P(k)) % 2) * ((n / P(k)) % 2) : 0")
    assert len(hoisted(guarded, {"P": (7,)})) == 1
    assert len(hoisted("def f(uint8(M,K) A, int8(K,N) B) -> (Y) { Y(i,j) +=! (int32(A(i,k)) - 3) * int32(B(k,j)) }",
                       {"A": (99, 99), "B": (99, 99)})) == 1  # parts of dot products


NIBBLES = """def f(bfloat16(N,2*J) X, uint8(O,J) W, uint8(O,G) Z, half(O,G) S) -> (Y) {
    Y(n,o) +=! X(n,i) * S(o,i/64) * (float(((i % 2 == 0) ? W(o,i/2) : W(o,i/2) / 16) % 16) - float(Z(o,i/64))) where i in 0:2*J
}"""


def test_halves_are_not_rounded_on_the_way() -> None:
    """Remainders are worth a temporary, but that of halves, which are computed in float32, would round."""
    text = """def f(int32(R) V, uint8(I) G, float16(K) X, float16(N) Z) -> (float(I,N) Y) {
        Y(i,n) max=! (v - X(k)) * Z(n) where v = V(G(i)) % 3 }"""
    generator = torch.Generator().manual_seed(1)
    x, z = ((0.1 * torch.randn(size, generator=generator)).half() for size in (92, 31))
    v, g = torch.tensor([4, -2, 3, 1], dtype=torch.int32), torch.arange(31).to(torch.uint8) % 4
    terms = ((v[g.long()] % 3).double()[:, None, None] - x.double()[:, None]) * z.double()
    torch.testing.assert_close(tcjit.define(text).f(v, g, x, z).double(), terms.amax(1), rtol=1e-6, atol=1e-6)
    start = before(text, {"V": (4,), "G": (31,), "X": (92,), "Z": (31,)})
    (a,) = start.assignments
    temporaries = Temporaries(start)
    assert isinstance(a.value, Cast) and isinstance(a.value.operand, Binary)
    product = a.value.operand
    made = temporaries.stored(a, "Y_invariant", product.left, tuple(bound for bound in a.bounds if bound[0] != "n"))
    element = Access(made.tensor, made.subscripts, dtype=product.left.dtype)
    stored = start.with_parts([[made, replace(a, value=replace(a.value, operand=replace(product, left=element)))]], temporaries)
    with pytest.raises(VerifyError, match="a value changed"):
        verify_assignments("hoist_invariants", start, stored)


def test_scales_of_groups_of_weights_are_part_of_what_is_computed_once() -> None:
    """Beside an invariant that moves with them: in the order of the tensors' axes, and along these in vectors."""
    shapes = {"X": (3, 1024), "W": (384, 512), "Z": (384, 16), "S": (384, 16)}
    start = before(NIBBLES, shapes)
    first, last = (a.show() for a in hoist_invariants(start, True).assignments)
    assert first.startswith("Y_invariant(o, i) = float32(S(o, i / 64)) * (float32(") and last.count("Y_invariant(o, i)") == 1
    assert "S(o" not in last and "X(n, i)" in last
    given = [torch.randn(shapes["X"]).bfloat16(), *(torch.randint(0, 256, shapes[name], dtype=torch.uint8) for name in "WZ")]
    given.append(torch.rand(shapes["S"]).half())
    f = tcjit.define(NIBBLES, target="cpu").f
    torch.testing.assert_close(f(*given), tcjit.define(NIBBLES, target="reference").f(*given), rtol=2e-2, atol=1.0)
    kernel = f.compile(*given).source
    assert "tc_fdiv" not in kernel[kernel.index("int64_t tc_f(") :]


def test_a_factor_is_not_part_of_what_divides_twice() -> None:
    shapes = {"A": (10, 80), "B": (80, 64), "T": (30,)}
    made = hoisted("def f(int64(G,K) A, double(K,N) B, float(M) T) -> (C) { C(i,j) +=! A(i/3,k) * B(k,j) * T(i) where i in 0:30 }", shapes)
    assert made[0].startswith("C_invariant(i, k) = float64(A(i / 3, k)) where") and made[1].count("C_invariant(i, k)") == 1


def test_another_product_is_no_proof() -> None:
    start = before(NIBBLES, {"X": (3, 1024), "W": (384, 512), "Z": (384, 16), "S": (384, 16)})
    made, (first, last) = hoist_invariants(start, True), hoist_invariants(start, True).assignments
    verify_assignments("hoist_invariants", start, made)
    value = first.value
    assert isinstance(value, Binary)
    for wrong in (value.right, replace(value, left=value.right), replace(value, op="+")):
        parts = replace(first, value=wrong), last
        with pytest.raises(VerifyError, match="a value changed"):
            verify_assignments("hoist_invariants", start, replace(made, assignments=parts, replaced=(parts,)))


def test_signs_that_results_share_are_factors() -> None:
    text = "def f(float(B,K) X, float(O,K) W) -> (Y) { Y(b,o) +=! (W(o,k) >= 0.0) ? X(b,k) : -X(b,k) }"
    first, last = hoisted(text, {"X": (99, 80), "W": (70, 80)})
    assert first.startswith("Y_invariant(o, k) = W(o, k) >= 0.0 ? 1.0 : -1.0") and "X(b, k) * Y_invariant(o, k)" in last
    x, w = torch.randn(99, 80), torch.randn(70, 80)
    kernel = tcjit.define(text, target="cpu").f.compile(x, w)
    torch.testing.assert_close(kernel(x, w), x @ torch.where(w >= 0, 1.0, -1.0).T, rtol=1e-4, atol=1e-4)
    assert kernel.nests == 1 and kernel.resources["verified"]
    assert len(hoisted(text.replace(">= 0.0", ">= X(b,k)"), {"X": (99, 80), "W": (70, 80)})) == 1  # moves with all


def test_pointwise_assignments_gather_elements_of_lanes_once() -> None:
    """In the order in which loops over the results read them."""
    bias = "def f(float(W,H,L,L) S, float(R,H) T, int32(L,L) I) -> (P) { P(w,h,i,j) = S(w,h,i,j) + T(I(i,j),h) }"
    shapes = {"S": (30, 3, 20, 20), "T": (50, 3), "I": (20, 20)}
    assert hoisted(bias, shapes) == [
        "P_invariant(h, i, j) = T(I(i, j), h) where h in 0:3, i in 0:20, j in 0:20",
        "P(w, h, i, j) = S(w, h, i, j) + P_invariant(h, i, j) where w in 0:30, h in 0:3, i in 0:20, j in 0:20",
    ]
    assert len(hoisted(bias, shapes, cpu=False)) == 1
    row = "def f(float(B,C,N) X, float(K,N) T, int32(C) I) -> (P) { P(b,c,j) = X(b,c,j) + T(I(c),j) }"
    assert len(hoisted(row, {"X": (50, 8, 700), "T": (9, 700), "I": (8,)})) == 1  # a row is picked before the loop
    s, t, i = torch.randn(30, 3, 20, 20), torch.randn(50, 3), torch.randint(0, 50, (20, 20), dtype=torch.int32)
    f = tcjit.define(bias, target="cpu").f
    torch.testing.assert_close(f(s, t, i), s + t[i.long()].permute(2, 0, 1))
    i[7, 3] = -1
    with pytest.raises(GatherError, match="an index into T is outside"):
        f(s, t, i)


def test_a_row_that_does_not_exist_is_an_error_as_before() -> None:
    text = "def f(float(V,D) E, int32(N) I, float(H,D) W) -> (Y) { Y(n,h) +=! E(I(n),d) * W(h,d) }"
    e, i, w = torch.randn(500, 64), torch.randint(0, 500, (100,), dtype=torch.int32), torch.randn(32, 64)
    f = tcjit.define(text, target="cpu").f
    torch.testing.assert_close(f(e, i, w), e[i.long()] @ w.T, rtol=1e-4, atol=1e-4)
    assert f.compile(e, i, w).nests == 1
    i[7] = 500
    with pytest.raises(GatherError, match="column 67: an index into E is outside"):
        f(e, i, w)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("Y(i,j) +=! (X(n,i) - X(n,j)) * M(j)", N),  # moves with all
        ("Y(i,j) +=! X(n,i) * X(n,j) * M(j)", N),  # products are computed where they are packed
        ("Y(i,j) +=! (X(n,i) - M(i)) * X(n,j)", {"X": (9, 8), "M": (8,)}),  # saves little
        ("Y(i,j) +=! ((i + n) % 4 == 0 ? X(n,i) * X(n,j) : 0.0)", N),  # nests leave out what such conditions leave out
        ("Y(n) +=! (X(n,i) - M(i)) * (X(n,i) - M(i))", N),  # X - M moves with all
        ("Y(i,j) +=! (n > 3 ? (X(n - 4,i) - M(i)) * X(n,j) : 0.0)", N),  # may not be read everywhere
        ("Y(n,i) = X(n,i) * (M(i) + 1.0)", N),  # an addition is no more than a load
        ("Y(i,n) = X(n,i) * exp(M(i))", N),  # stands outside the inner loop
        ("Y(n,i) = X(n,i) * exp(M(i))", {"X": (3, 64000), "M": (64000,)}),  # three uses of each
    ],
)
def test_what_stays_as_it_is(text: str, shapes: dict[str, tuple[int, ...]]) -> None:
    start = before(f"def f(float(N,D) X, float(D) M) -> (Y) {{ {text} }}", shapes)
    assert hoist_invariants(start, True).assignments == start.assignments


ROTATED = """def f(float(B,T,H,2*P) X, float(B,T,P) A) -> (Y) {
    Y(b,h,t,q) = q < P ? X(b,t,h,q) * cos(A(b,t,q)) - X(b,t,h,q + P) * sin(A(b,t,q))
        : X(b,t,h,q) * cos(A(b,t,q - P)) + X(b,t,h,q - P) * sin(A(b,t,q - P)) where q in 0:2*P }"""


@pytest.mark.parametrize("heads", [8, 3])
def test_parts_of_what_joins_tensors_have_invariants(heads: int) -> None:
    """Which are computed once where the heads are many: a function beside a choice is not evaluated everywhere."""
    x, a = torch.randn(2, 40, heads, 64), torch.randn(2, 40, 32)
    kernel = tcjit.define(ROTATED).f.compile(x, a)
    left, right = x.double().chunk(2, -1)
    c, s = (each.double()[:, :, None] for each in (a.cos(), a.sin()))
    expected = torch.cat([left * c - right * s, right * c + left * s], -1).transpose(1, 2)
    torch.testing.assert_close(kernel(x, a).double(), expected, rtol=1e-5, atol=1e-5)
    assert kernel.resources["verified"]
    assert ("Y_invariant" in kernel.source) == (heads > 3)


@pytest.mark.parametrize("target", ["cpu", "opencl"])
def test_numbers_are_the_same(target: str) -> None:
    x, m = torch.randn(200, 64), torch.randn(64)
    text = """def f(float(N,D) X, float(D) M) -> (Y, Z) {
        Y(i,j) +=! (X(n,i) - M(i)) * (X(n,j) - M(j)) / 3.0
        Z(t,c) +=! (s <= t ? (X(s,c) * exp(float(s - t))) : 0.0) where t in 0:N, s in 0:N
    }"""
    kernel = tcjit.define(text, target=target).f.compile(x, m)
    y, z = kernel(x, m)
    centred, step = x.double() - m, torch.arange(200.0, dtype=torch.float64)
    torch.testing.assert_close(y.double(), centred.T @ centred / 3, rtol=1e-4, atol=1e-3)
    decay = torch.exp(step[None] - step[:, None]).tril()
    torch.testing.assert_close(z.double(), decay @ x.double(), rtol=1e-4, atol=1e-4)
    assert ("Z_table" if target == "cpu" else "Z_invariant") in kernel.source
    assert ("Y_dividend_invariant" in kernel.source or target == "opencl")
    assert kernel.resources["verified"]
