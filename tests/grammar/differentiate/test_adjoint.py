"""Texts of adjoints: one for each construct, names, parameters, settings and errors. Their values are tested in ``tests/end_to_end``.

Modules: grammar.differentiate.adjoint grammar.differentiate.activity grammar.differentiate.body grammar.differentiate.contribute
 grammar.differentiate.dead_terms grammar.differentiate.rules grammar.differentiate.shifts grammar.differentiate.values
"""
from __future__ import annotations

from typing import Any

import pytest

from tcjit.errors import ArgumentError, CheckError
from tcjit.grammar import walk
from tcjit.grammar.differentiate import AdjointDef, differentiate
from tcjit.grammar.front import read


def adjoint(text: str, wrt: list[str] | None = None, **settings: Any) -> AdjointDef:
    return differentiate(read(text)[-1], wrt, **settings)


def lines(made: AdjointDef) -> list[str]:
    return [line.strip() for line in made.text.splitlines()[1:-1]]


MATMUL = "def mm(float(M,K) A, float(K,N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }"
CONV = """def conv(float(N,C,H) X, float(O,C,K) W, int32 s) -> (Y) {
    Y(n, o, h) +=! (s*h + k >= 1 && s*h + k - 1 < H) ? X(n, c, s*h + k - 1) * W(o, c, k) : 0.0 where h in 0:(H + 2 - K)/s + 1 }"""


def test_a_contraction_is_two() -> None:
    made = adjoint(MATMUL)
    assert made.text == """def mm_backward(float32(M, N) d_C, float32(M, K) A, float32(K, N) B) -> (float32(M, K) d_A, float32(K, N) d_B) {
    d_A(m, k) +=! d_C(m, n) * B(k, n)
    d_B(k, n) +=! d_C(m, n) * A(m, k)
}
"""
    assert (made.cotangents, made.gradients) == ({"C": "d_C"}, {"A": "d_A", "B": "d_B"})
    assert (made.reads, made.shapes, made.initial) == (("A", "B"), (), {})


def test_only_what_is_asked_for() -> None:
    made = adjoint(MATMUL, ["B"])
    assert made.gradients == {"B": "d_B"} and made.reads == ("A",)
    assert made.definition.name == "mm_backward" and made.definition.returns == ("d_B",)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("Y(i) = X(i) * X(i) * a", ["d_X(i) = 2.0 * d_Y(i) * X(i) * a", "d_a() +=! d_Y(i) * X(i) * X(i)"]),
        ("Y(i) = exp(X(i))", ["d_X(i) = d_Y(i) * Y(i)", "d_a() = 0.0"]),
        ("Y(i) = X(N-1-i)", ["d_X(n) = d_Y(N - n - 1)", "d_a() = 0.0"]),
        ("Y(i) = X(i/3) where i in 0:3*N", ["d_X(n) +=! d_Y(3 * n + t1) where t1 in 0:3", "d_a() = 0.0"]),
        ("Y(i) = X(i + 1) - X(i)", [
            "d_X(i) = (i - 1 >= 0 ? d_Y(i - 1) : 0.0) + (i < N - 1 ? -d_Y(i) : 0.0) where i in 0:N", "d_a() = 0.0",
        ]),
        ("Y(i) = X(min(i + 1, N - 1)) where i in 0:N", [
            "d_X(n) = n - 1 >= 0 ? d_Y(n - 1) : 0.0 where n in 0:N", "d_X(n) += N == n + 1 && i + 1 > N - 1 ? d_Y(i) : 0.0", "d_a() = 0.0",
        ]),
        ("Y(i) = X(i == 0 ? N - 1 : i - 1) where i in 0:N", [
            "d_X(n) = n + 1 < N ? d_Y(n + 1) : 0.0 where n in 0:N", "d_X(n) += N == n + 1 && i == 0 ? d_Y(i) : 0.0", "d_a() = 0.0",
        ]),
        ("Y(i) = (i < 3) ? X(i) : a", ["d_X(i) = i < 3 ? d_Y(i) : 0.0", "d_a() +=! i >= 3 ? d_Y(i) : 0.0"]),
        ("Y(i) = (X(i) > a) ? X(i) : 0.0", ["d_X(i) = X(i) > a ? d_Y(i) : 0.0", "d_a() = 0.0"]),
        ("Y(i) = X(i) Y(i) += X(i) * a", ["d_X(i) = d_Y(i) * a + d_Y(i)", "d_a() +=! d_Y(i) * X(i)"]),
        ("Y(b) = X(I(b))", ["d_X(n) +=! I(b) == n ? d_Y(b) : 0.0 where n in 0:N", "d_a() = 0.0"]),
    ],
)  # fmt: skip
def test_constructs(body: str, wanted: list[str]) -> None:
    found = lines(adjoint(f"def f(float(N) X, float a, int64(B) I) -> (Y) {{ {body} }}"))
    assert found == wanted


def test_the_shift_of_a_softmax_has_no_cotangent() -> None:
    made = adjoint("""def softmax(float(M,N) X) -> (Y) {
        top(m) max=! X(m, n)
        E(m, n) = exp(X(m, n) - top(m))
        total(m) +=! E(m, n)
        Y(m, n) = E(m, n) / total(m) }""")
    assert "d_top" not in made.text and "n_top" not in made.text
    kept = adjoint("def f(float(M,N) X) -> (Y) { top(m) max=! X(m, n) Y(m, n) = exp(X(m, n) - top(m)) }")
    assert "d_top" in kept.text


def test_a_saved_temporary_is_a_parameter() -> None:
    text = "def f(float(M,N) X) -> (Y) { mean(m) +=! X(m, n) / N Y(m, n) = X(m, n) * mean(m) }"
    assert "mean(m) +=!" in adjoint(text).text
    made = adjoint(text, saved=["mean"])
    assert made.reads == ("X", "mean") and lines(made)[0].startswith("d_mean(m) +=!")
    assert "float32(M) mean" in made.text


def test_a_maximum_of_what_is_computed_again_is_computed_again() -> None:
    """The result that the forward stored need not equal a product that another kernel rounds."""
    made = adjoint("def f(float(M,N) A, float(M,N) B) -> (Y) { Y(m) max=! A(m, n) * B(m, n) }")
    assert "Y" not in made.reads and "Y(m) max=! e_Y_1(m, n)" in made.text
    assert "Y" in adjoint("def f(float(M,N) A) -> (Y) { Y(m) max=! A(m, n) }").reads
    argmax = """def f(float(M,N) A, float(M,N) B, float(N) X) -> (W, Y) {
        Z(m, n) = A(m, n) * B(m, n)
        W(m) max=! Z(m, n)
        I(m) min=! (Z(m, n) == W(m)) ? n : N
        Y(m) = X(I(m)) }"""
    assert "W" not in adjoint(argmax, ["X"]).reads and adjoint(argmax, ["X"], saved=["I"]).reads == ("A", "I")


def test_ties() -> None:
    text = "def f(float(M,N) A) -> (Y) { Y(m) max=! A(m, n) }"
    assert lines(adjoint(text)) == [
        "n_Y(m) +=! A(m, n) == Y(m) ? 1.0 : 0.0",
        "share_Y(m) = n_Y(m) != 0.0 ? d_Y(m) / n_Y(m) : 0.0",
        "d_A(m, n) = A(m, n) == Y(m) ? share_Y(m) : 0.0",
    ]
    assert lines(adjoint(text, ties="first")) == [
        "first_Y(m) min=! A(m, n) == Y(m) ? n : 2147483647",
        "d_A(m, n) = first_Y(m) == n ? d_Y(m) : 0.0 where n in 0:N",
    ]


def test_quotients() -> None:
    """What all terms are divided by divides the cotangent once; where there are terms, the sum is not computed again for it."""
    text = "def f(float(M,K) A, float(K,N) B, float(M) z) -> (C) { C(m, n) +=! A(m, k) / z(m) * B(k, n) }"
    assert lines(adjoint(text)) == [
        "d_sum_C(m, n) = d_C(m, n) / z(m)",
        "d_A(m, k) +=! d_sum_C(m, n) * B(k, n)",
        "d_B(k, n) +=! d_sum_C(m, n) * A(m, k)",
        "d_z(m) +=! 0 < K ? -(d_sum_C(m, n) * C(m, n)) : 0.0",
    ]
    guarded = text.replace("A(m, k) / z(m) * B(k, n)", "k <= m ? A(m, k) / z(m) * B(k, n) : 0.0")
    assert lines(adjoint(guarded)) == [
        "d_sum_C(m, n) = d_C(m, n) / z(m)",
        "d_A(m, k) +=! k <= m ? d_sum_C(m, n) * B(k, n) : 0.0",
        "d_B(k, n) +=! k <= m ? d_sum_C(m, n) * A(m, k) : 0.0",
        "d_z(m) +=! C(m, n) != 0.0 ? -(d_sum_C(m, n) * C(m, n)) : 0.0",
    ]
    terms = "def f(float(M,K) A, float(M,K) Z) -> (y) { y(m) +=! A(m, k) / Z(m, k) }"  # each term has its own
    assert lines(adjoint(terms)) == ["d_A(m, k) = d_y(m) / Z(m, k)", "d_Z(m, k) = -(d_y(m) * (A(m, k) / (Z(m, k) * Z(m, k))))"]
    more = "def f(float(M,K) A, float(M) z) -> (y) { y(m) = z(m)  y(m) += A(m, k) / z(m) }"  # it is not all that the result holds
    assert not any("y(m)" in line.replace("d_y(m)", "") for line in lines(adjoint(more)))


def test_sums_of_what_nothing_reads_have_no_cotangent() -> None:
    text = """def f(float(M,K) A, float(N,K) B) -> (y) {
        S(i, j) +=! A(i, k) * B(j, k)
        y(i) max=! j <= i ? S(i, j) : 0.0
    }"""
    found = lines(adjoint(text))
    assert "S(i, j) +=! j <= i ? A(i, k) * B(j, k) : 0.0" in found
    assert "d_A(i, k) +=! j <= i ? d_S(i, j) * B(j, k) : 0.0" in found and "d_B(j, k) +=! j <= i ? d_S(i, j) * A(i, k) : 0.0" in found
    returned = text.replace("-> (y)", "-> (S, y)")
    assert "d_B(j, k) +=! d_all_S(i, j) * A(i, k)" in lines(adjoint(returned))


def test_products() -> None:
    text = "def f(float(M,N) A) -> (Y) { Y(m) *=! A(m, n) }"
    assert lines(adjoint(text)) == ["others_Y(m, n_) *=! n != n_ ? A(m, n) : 1.0 where n_ in 0:N", "d_A(m, n) = d_Y(m) * others_Y(m, n)"]
    assert "rest_Y(m) *=! A(m, n) == 0.0 ? 1.0 : A(m, n)" in lines(adjoint(text, differentiable=False))


def test_values_are_written_out() -> None:
    sizes = {"N": 2, "C": 3, "H": 9, "O": 4, "K": 3}
    made = adjoint(CONV, values={**sizes, "s": 1})
    assert made.reads == ("X", "W") and not made.shapes
    assert lines(made) == [
        "d_X(n, c, i2) +=! i2 - k + 1 >= 0 && i2 - k + 1 < 9 ? d_Y(n, o, i2 - k + 1) * W(o, c, k) : 0.0 where i2 in 0:9",
        "d_W(o, c, k) +=! h + k >= 1 && h + k - 1 < 9 ? d_Y(n, o, h) * X(n, c, h + k - 1) : 0.0 where k in 0:3",
    ]
    some = adjoint(CONV, values={"s": 2})
    assert "s" not in some.reads and "float32(N, C, H) X" in some.text


def test_values_that_the_text_cannot_hold() -> None:
    with pytest.raises(CheckError, match="`conv` has no derivative for s = 0"):
        adjoint(CONV, values={"s": 0})
    empty = adjoint("def f(float(N) X) -> (Y) { Y(i) = X(i) * 2.0 }", values={"N": 0})
    assert lines(empty) == ["d_X(i) = 2.0 * d_Y(i)"] and "float32(N) d_Y" in empty.text


def test_cotangents_have_the_extents_of_results() -> None:
    made = adjoint("def f(float(N) X, float(K) W) -> (Y) { Y(i) +=! X(i + k) * W(k) }", ["X"])
    assert "float32(N - K + 1) d_Y" in made.text and made.reads == ("X", "W") and made.shapes == ("X",)
    assert made.definition.sizes == ("N", "K")
    made = adjoint("def f(float(N) X, int32 s, int32 K) -> (Y) { Y(i) +=! X(s*i + k) where k in 0:K }")
    assert made.text.startswith("def f_backward(float32((N - K) / s + 1) d_Y, float32(N) X, int32 s, int32 K) -> (float32(N) d_X)")


def test_names_that_are_taken() -> None:
    made = adjoint("def f(float(N) X, float(N) d_X, float(d_Y) Z) -> (Y) { Y(i) = X(i) * d_X(i) * Z(0) }")
    assert made.cotangents == {"Y": "d_Y_"} and made.gradients == {"X": "d_X_", "d_X": "d_d_X", "Z": "d_Z"}


def test_names_that_mean_something_else() -> None:
    """An index is not called like a type or a word of the language, although the size is."""
    made = adjoint("def f(float(IN,INT8) X) -> (Y) { Y = X(0, 0) }")
    assert lines(made) == ["d_X(i0, i1) = i0 == 0 && i1 == 0 ? d_Y : 0.0 where i0 in 0:IN, i1 in 0:INT8"]


def test_an_integer_result_in_a_subscript_is_computed_again() -> None:
    made = adjoint("def f(float(N) X, int32(M) I) -> (J, Y) { J max=! I(m) Y = X(J) }")
    assert made.reads == ("X", "I") and "J() max=! I(m)" in made.text


def test_a_result_that_is_read_again_has_a_sum_of_its_own() -> None:
    made = adjoint("def f(float(N) X) -> (Y, Z) { Y(i) = X(i) * 2.0 Z(i) = Y(i) * Y(i) }")
    assert lines(made) == ["d_all_Y(i) = d_Y(i) + 2.0 * d_Z(i) * Y(i)", "d_X(i) = 2.0 * d_all_Y(i)"]


def test_a_result_that_comes_in() -> None:
    made = adjoint("def f(float(N) X) -> (Y) { Y(i) *= X(i) }", ["X", "Y"])
    assert made.initial == {"Y": "Y_0"} and made.gradients == {"X": "d_X", "Y": "d_Y_"}
    assert lines(made) == ["d_X(i) = d_Y(i) * Y_0(i)", "d_Y_(i) = d_Y(i) * X(i)"]


def test_halves() -> None:
    """Cotangents of temporaries are float32, gradients of the parameter's type."""
    made = adjoint("def f(half(N) X) -> (Y) { T(i) = sin(X(i)) Y(i) = T(i) * T(i) }")
    assert lines(made) == ["T(i) = sin(X(i))", "d_T(i) = 2.0 * float32(d_Y(i)) * float32(T(i))", "d_X(i) = float16(d_T(i) * cos(X(i)))"]
    assert made.definition.tensor("d_X").dtype == "float16"


def test_sums_of_halves() -> None:
    """Their terms are not rounded, nor are sums of several contributions in between."""
    text = "def f(half(N,K) X, half(N,K) W) -> (Y) { T(n,m) +=! X(n,k) * W(m,k) U(n,m) +=! X(n,k) * X(m,k) Y(n,m) = exp(T(n,m)) * U(n,m) }"
    made = lines(adjoint(text, ["W"]))
    assert made[-1] == "d_W(m, k) +=! d_T(n, m) * X(n, k)"
    made = lines(adjoint(text, ["X"]))
    assert [line.split("(")[0] for line in made if "d_X" in line] == ["d_X_wide"] * 3 + ["d_X"]
    assert made[-1] == "d_X(i0, k) = float16(d_X_wide(i0, k))"


def test_integers_are_forward_only() -> None:
    made = adjoint("def f(float(N) X, int32(N) I) -> (Y, Z) { Z(i) = I(i) + 1 Y(i) = X(i) * Z(i) }")
    assert made.cotangents == {"Y": "d_Y"} and lines(made) == ["d_X(i) = d_Y(i) * float32(Z(i))"]


def test_an_index_that_no_expression_uses_is_a_factor() -> None:
    for body in ("X(i) where exists W(j)", "X(i) + W(j)"):
        made = adjoint(f"def f(float(N) X, float(M) W) -> (Y) {{ Y +=! {body} }}", ["X"])
        assert lines(made) == ["d_X(i) = float32(M) * d_Y where i in 0:N"]
    assert lines(adjoint("def f(float(N) X, float(M) W) -> (Y) { Y +=! (X(i) - X(i)) * W(j) }", ["X"])) == ["d_X(i0) = 0.0 where i0 in 0:N"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"wrt": ["Z"]}, "wrt= names 'Z', which is no parameter of `mm` with floats\ntry: of A, B"),
        ({"wrt": []}, "there is nothing to differentiate `mm` by\ntry: wrt= with names of A, B"),
        ({"saved": ["C"]}, "saved= names 'C', which is no temporary of `mm`\ntry: no saved=: results are there anyway"),
        ({"ties": "last"}, "ties= is 'last'\ntry: 'even' or 'first'"),
    ],
)
def test_wrong_arguments(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        adjoint(MATMUL, **settings)
    assert str(caught.value) == message


def test_a_def_without_floats() -> None:
    with pytest.raises(ArgumentError, match="nothing to differentiate `f` by\\ntry: a def with a parameter of floats"):
        adjoint("def f(int32(N) X) -> (Y) { Y(i) = X(i) }")


def test_a_derivative_that_the_language_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = "X(i)"
    for _ in range(20):
        deep = f"sin({deep})"
    first = adjoint(f"def f(float(N) X) -> (Y) {{ Y(i) = {deep} }}")
    monkeypatch.setattr(walk, "MAX_DEPTH", 30)  # a text beyond the true limit takes a minute
    with pytest.raises(CheckError, match="the derivative of `f_backward` is no def that the language takes: .*\\ntry: split it"):
        differentiate(first.definition)


def test_borders_in_many_dimensions_are_one_sum() -> None:
    """Each case of a read is a statement of its own: of 81 there are too many."""
    places = [f"min(max({name} + p - 1, 0), {name.upper()} - 1)" for name in "abcd"]
    for dims in (3, 4):
        names = "abcd"[:dims]
        ranges = ", ".join(f"{name} in 0:{name.upper()}" for name in names)
        value = f"X({', '.join(places[:dims])}) where {ranges}, p in 0:3"
        text = f"def f(float({','.join(names.upper())}) X) -> (Y) {{ Y({','.join(names)}) +=! {value} }}"
        assert ("min(" in adjoint(text).text) == (dims == 4)
