"""The ranges of indices, inferred and refused.

Modules: grammar.bounds grammar.extents grammar.front
"""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest
from support.fuzz.ranges import domain, inferred, program, ranges, shape

from tcjit.errors import ArgumentError, CheckError, ShapeError
from tcjit.grammar import polynomial
from tcjit.grammar.ast import Size
from tcjit.grammar.check import check
from tcjit.grammar.front import read
from tcjit.grammar.infer import explain_ranges, infer, specialise
from tcjit.grammar.parse import parse
from tcjit.grammar.printer import show
from tcjit.grammar.walk import walk

MATMUL = "def mm(float(M,K) A, float(K,N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }"
STRIDED = """def conv(float(N,C,H,W) I, float(O,C,KH,KW) F, int32 sh, int32 dh) -> (Y) {
    Y(n, o, h, w) +=! I(n, c, sh * h + dh * kh, w + kw) * F(o, c, kh, kw)
}"""
PADDED = """def same(float(H, W) I, float(KH, KW) F) -> (O) {
    O(h, w) +=! (h + kh >= 1 && h + kh <= H && w + kw >= 1 && w + kw <= W) ? I(h + kh - 1, w + kw - 1) * F(kh, kw) : 0.0
        where h in 0:H, w in 0:W
}"""


# ---------------------------------------------------------------- the rounds


@pytest.mark.parametrize(
    ("parameters", "body", "expected"),
    [
        ("float(N) I, float(K) W", "O(i) +=! I(i+k) * W(k)", {"i": "0:N - K + 1", "k": "0:K"}),
        ("float(N) I", "O(i) = I(123*i)", {"i": "0:(N + 122) / 123"}),
        ("float(M,K) A, float(K,N) B", "O(m,n) +=! A(m,k) * B(k,n)", {"m": "0:M", "n": "0:N", "k": "0:K"}),
        ("float(N) A", "O +=! A(i)", {"i": "0:N"}),
        ("float(N) A", "O(i) = A(2*i) + A(2*i + 1)", {"i": "0:N / 2"}),
        ("float(N) A", "O(i) = A(N - 1 - i)", {"i": "0:N"}),
        ("float(N) A, float(M) B", "O(i) = A(i) + B(i)", {"i": "0:min(M, N)"}),
        ("float(N) A", "O(i) = A(i) + A(i + 1)", {"i": "0:N - 1"}),
        ("float(N) A", "O +=! A(i + 1)", {"i": "-1:N - 1"}),
        ("float(N) A", "O +=! A(i - 1)", {"i": "1:N + 1"}),
        ("float(N) A", "O(i) = A(i) where i in 0:N - 3", {"i": "0:N - 3"}),
        ("float(N) A", "O +=! A(i) where i in 1:N", {"i": "1:N"}),
        ("float(N) A, int32 s", "O(i) = A(i + s) where i in 0:N - s", {"i": "0:N - s"}),
        ("float(N) A, float(M) B", "O(i) = A(i) where i in 0:N, i in 0:M", {"i": "0:min(M, N)"}),
        ("float(N) A", "O(i) = A(i) where i in 0:max(N - 3, 0)", {"i": "0:max(N - 3, 0)"}),
        ("float(N) A", "O(i) = A(i / 2) where i in 0:2*N", {"i": "0:2 * N"}),
        ("float(N) A", "O(i) = A(i) + A(i / 2)", {"i": "0:N"}),
        ("float(N) A, int32(L) X", "O(l) = A(X(l))", {"l": "0:L"}),
        ("float(V,D) A, int32(B,L) X", "O(b,d) +=! A(X(b,l), d)", {"b": "0:B", "d": "0:D", "l": "0:L"}),
        ("float(N) A, float(M) B", "O(i) = A(i) + y where y = B(i + 1)", {"i": "0:min(M - 1, N)"}),
        ("float(N) A, float(M) B", "O(i) = A(i) * y where y = B(i)", {"i": "0:min(M, N)"}),
        ("float(N) A, float(M) B", "O(i) = 1.0 where exists B(i)", {"i": "0:M"}),
        ("float(N) A, int32(N) X, float(K) B", "O(i) +=! A(X(i) + k) where exists B(k)", {"i": "0:N", "k": "0:K"}),
        ("float(N) A, float(K) B", "O(i) +=! A(2*i + 3*k) * B(k)", {"i": "0:(N - 3 * K) / 2 + 2", "k": "0:K"}),
        ("float(N) A, float(K) B", "O(i) +=! A(i + K - 1 - k) * B(k)", {"i": "0:N - K + 1", "k": "0:K"}),
        ("float(N) A, float(K) B, float(L) C", "O(i) +=! A(i + k + l) * B(k) * C(l)", {"i": "0:N - K - L + 2", "k": "0:K", "l": "0:L"}),
        ("float(N) A, float(K) B, float(M) C", "O(i) +=! B(k) * A(i + k) * C(i + j) * B(j)",
         {"i": "0:min(M - K + 1, N - K + 1)", "k": "0:K", "j": "0:K"}),
        ("float(N, N) A", "O(i) = A(i, i)", {"i": "0:N"}),
        ("float(N) A, float(M) B", "O(i) = B(N*i + 0*i)", {"i": "0:(M - 1) / N + 1"}),
        ("float(8) A", "O(i) = A(3*i)", {"i": "0:3"}),
    ],
)  # fmt: skip
def test_ranges(parameters: str, body: str, expected: dict[str, str]) -> None:
    assert ranges(inferred(f"def f({parameters}) -> (O) {{ {body} }}")) == expected


def test_extents() -> None:
    assert shape(inferred(MATMUL), "C") == ("M", "N")
    assert shape(inferred(STRIDED), "Y") == ("N", "O", "(H + dh - dh * KH - 1) / sh + 1", "W - KW + 1")
    assert inferred(STRIDED).specialised == ("sh", "dh")


def test_strided_and_dilated() -> None:
    found = program(STRIDED, (2, 3, 11, 9), (4, 3, 3, 2), sh=2, dh=3)
    assert found.shape("Y") == (2, 4, 3, 8)
    assert found.value("sh") == 2 and found.value("KH") == 3
    assert domain(found)["h"] == (0, 3)


def test_padding_keeps_the_kernel_whole() -> None:
    definition = inferred(PADDED)
    assert ranges(definition) == {"h": "0:H", "w": "0:W", "kh": "0:KH", "kw": "0:KW"}
    assert program(PADDED, (7, 6), (3, 3)).shape("O") == (7, 6)


def test_a_where_range_on_an_output_cuts_no_reduction() -> None:
    text = "def f(float(N) A, float(K) B) -> (O) { O(i) +=! A(i + k) * B(k) where i in 0:N }"
    assert ranges(inferred(text)) == {"i": "0:N", "k": "0:K"}
    assert program(text, (5,), (1,)).shape("O") == (5,)
    with pytest.raises(ShapeError, match=re.escape("`A` is read outside dimension 0, whose extent is 5: `i + k` goes from 0 to 6")):
        program(text, (5,), (3,))


def test_an_index_without_a_subscript_of_its_own_is_narrowed_by_a_shared_one() -> None:
    text = "def f(float(N) A) -> (O) { O(i) +=! A(i + k) where i in 0:3 }"
    assert ranges(inferred(text)) == {"i": "0:3", "k": "0:N - 2"}


def test_later_statements_take_their_ranges_from_what_they_write() -> None:
    definition = inferred("def f(float(N) A) -> (O) { O(i) = A(i) O(n) += 1.0 O(k) = O(k) / N where k in 0:1 }")
    assert [ranges(definition, s) for s in range(3)] == [{"i": "0:N"}, {"n": "0:N"}, {"k": "0:1"}]


def test_a_later_statement_may_cover_a_part_anywhere() -> None:
    text = "def f(float(N) A) -> (O) { O(i) = 0.0 where i in 0:N O(j) = A(j) where j in 1:N - 1 }"
    assert domain(program(text, (6,))) == {"j": (1, 5)}


def test_a_later_statement_must_stay_inside() -> None:
    with pytest.raises(CheckError, match="`O` is written outside dimension 0 whatever the sizes"):
        inferred("def f(float(N) A) -> (O) { O(i) = A(i) O(j) = 0.0 where j in 0:N + 1 }")
    text = "def f(float(N) A, float(M) B) -> (O) { O(i) = A(i) O(j) = 0.0 where j in 0:M }"
    assert program(text, (5,), (3,)).shape("O") == (5,)
    with pytest.raises(ShapeError, match="the first statement that writes `O` sets its extents"):
        program(text, (3,), (5,))


def test_temporaries() -> None:
    definition = inferred("def f(float(N,M) A) -> (O) { T(i) +=! A(i, j) O(i, j) = A(i, j) / T(i) }")
    assert shape(definition, "T") == ("N",)
    assert definition.tensor("T").role == "temporary"
    assert ranges(definition) == {"i": "0:N", "j": "0:M"}


def test_rank_0() -> None:
    found = program("def f(float(N) A) -> (O) { O +=! A(i) O() = O / N }", (4,))
    assert found.shape("O") == ()
    assert found.domains == (((0, 4),), ())


def test_bounds_are_of_dtype_int64_and_of_few_kinds() -> None:
    definition = inferred("def f(float(N) A, int32 s) -> (O) { O(i) = A(2*i + 1) + A(s*i) where i in 0:N/2, i in 0:(N % 3 + 4) / s }")
    nodes = [node for r in definition.statements[0].domain for end in (r.lower, r.upper) for node in walk(end)]
    assert {node.dtype for node in nodes} == {"int64"}
    assert {type(node).__name__ for node in nodes} <= {"Const", "Size", "Scalar", "Binary", "Call"}


# ---------------------------------------------------------------- errors that need no sizes


@pytest.mark.parametrize(
    ("body", "message", "hint"),
    [
        ("O(i) = 1.0", "nothing gives the index `i` a range: it stands in no subscript", "`where i in 0:N`"),
        ("O(i) = i < N ? 1.0 : 0.0", "nothing gives the index `i` a range", "`where i in 0:N`"),
        ("O(i) +=! A(i + k)", "nothing gives the index `k` a range: `A(i + k)` shares a subscript between it and `i`", "`where k in 0:3`"),
        ("O(i) = A(i / 2)", "nothing gives the index `i` a range: `i / 2` is no sum", "`where i in 0:N`"),
        ("O(i) = A(i * i)", "nothing gives the index `i` a range", "`where i in 0:N`"),
        ("O(i) = A(min(i, N - 1))", "nothing gives the index `i` a range", "`where i in 0:N`"),
        ("O(i) = A(X(i / 3))", "nothing gives the index `i` a range", "`where i in 0:N`"),
        ("O(i) = A(i + 1)", "the left index `i` runs over -1:N - 1, which does not start at 0", "`O(i) = A(i + 1) where i in 0:N - 1`, or"),
        ("O(i) = A(i) + (i > 0 ? A(i - 1) : 0)", "the left index `i` runs over 1:N", "its range, `where i in 0:...`: a condition does not"),
        ("O(i) = A(i - 1) + A(i + 1)", "the left index `i` runs over 1:N - 1", "`O(i) = A(i) + A(i + 2)`"),
        ("O(i) = A(i) where i in 1:N", "the left index `i` runs over 1:N", "`O(i) = A(i + 1) where i in 0:N - 1`"),
        ("O(i) = i * A(i) where i in 2:N", "the left index `i` runs over 2:N", "`O(i) = float32(i + 2) * A(i + 2) where i in 0:N - 2`"),
        ("O(i) = i > 3 ? A(i) : 0 where i in 2:N", "`i` runs over 2:N", "`O(i) = i + 2 > 3 ? A(i + 2) : 0.0 where i in 0:N - 2`"),
        ("O(i) = A(i) where i in 0:0", "the range 0:0 of the index `i` is empty whatever the sizes", "half-open"),
        ("O(i) = A(i) where i in 5:3", "the range 5:3 of the index `i` is empty whatever the sizes", "half-open"),
        ("O(i) = A(i) where i in 0:N - N", "the range 0:0 of the index `i` is empty", "half-open"),
        ("O(i) = A(i) where i in N:N/2", "is empty whatever the sizes", "half-open"),
        ("O +=! F(i + 7)", None, None),
        ("O(i) = F(i) + F(i + 4)", "the range 0:0 of the index `i` is empty whatever the sizes: `F(i)`", "half-open"),
        ("O(i) = A(i + 1) where i in 0:N", "`A` is read outside dimension 0 whatever the sizes", "condition: `i + 1 < N ? A(i + 1) : 0`"),
        ("O(i) = A(i) + F(4)", "`F` is read outside dimension 0 whatever the sizes: its extent is 4, and", "a larger tensor"),
        ("O(i) = A(i) + F(-1)", "`F` is read outside dimension 0 whatever the sizes", "a larger tensor"),
        ("O(i) = A(i) + A(N)", "`A` is read outside dimension 0 whatever the sizes", "a larger tensor"),
        ("O(i) = i >= 0 ? A(i) + A(i - N - 1) : 0 where i in 0:N", "`A` is read outside", "`i - N - 1 >= 0"),
        ("O(i) = A(i / 2) where i in 0:2*N + 1", "`A` is read outside dimension 0 whatever the sizes", "shorter range of `i`"),
        ("O(i) = A(i) where i in 0:N, exists F(i + N + 4)", "`F` is read outside dimension 0 whatever the sizes", "a shorter range of `i`"),
        ("O(i) = A(i) where i in 0:N, k in 0:3", "`k`", ""),
        ("O(i) = A(i / (2 - 2))", "divided by zero", ""),
    ],
)  # fmt: skip
def test_what_no_sizes_can_mend_is_an_error_at_once(body: str, message: str | None, hint: str | None) -> None:
    text = f"def f(float(N) A, int32(N) X, float(4) F) -> (O) {{ {body} }}"
    if message is None:
        assert inferred(text)
        return
    with pytest.raises(CheckError) as caught:
        inferred(text)
    assert message in caught.value.what
    assert hint is not None and hint in caught.value.hint
    assert caught.value.where is not None


def test_what_some_sizes_mend_waits_for_them() -> None:
    text = "def f(float(N) A, float(M) B) -> (O) { O(i) = A(i + 3) where i in 0:M }"
    assert program(text, (8,), (5,)).shape("O") == (5,)
    with pytest.raises(ShapeError):
        program(text, (7,), (5,))


def test_a_check_that_only_rare_sizes_pass_is_kept() -> None:
    """isl decides where the examples fail: only N = 777 gets by."""
    text = "def f(float(N) A) -> (O) { O = A(N - 777) + A(777 - N) }"
    assert program(text, (777,)).shape("O") == ()
    with pytest.raises(ShapeError, match="`A` is read outside dimension 0"):
        program(text, (778,))


def test_a_condition_that_waits_for_a_scalar_is_not_left_out() -> None:
    """Without `i % s > 0` the read would be outside for all sizes; with s = 1 it never happens."""
    text = "def f(float(N) A, int32 s) -> (O) { O(i) = (i % s > 0) ? A(i - N) : 0.0 where i in 0:N }"
    assert program(text, (5,), s=1).shape("O") == (5,)
    with pytest.raises(ShapeError, match="goes from -4 to -2"):
        program(text, (5,), s=2)


def test_an_annotation_has_to_agree() -> None:
    assert program("def f(float(N) A) -> (float(N) O) { O(i) = A(i) }", (3,)).shape("O") == (3,)
    with pytest.raises(CheckError, match="N - 1 and N differ whatever the sizes"):
        inferred("def f(float(N) A) -> (float(N) O) { O(i) = A(i) + A(i + 1) }")
    with pytest.raises(ShapeError, match="4 is not 3"):
        program("def f(float(N) A) -> (float(3) O) { O(i) = A(i) }", (4,))


# ---------------------------------------------------------------- calls


CALL = """
def norm(float(K) V) -> (S) { S(i) = V(i) / K }
def f(float(N) A, int32 s) -> (O) { T(i) = A(s * i) O = norm(T) }
"""


def test_extents_of_temporaries_become_expressions_over_sizes() -> None:
    definition = inferred(CALL)
    assert not any("." in node.name for s in definition.statements for node in walk(s.value) if isinstance(node, Size))
    assert shape(definition, "O") == ("(N - 1) / s + 1",)
    assert program(CALL, (7,), s=2).shape("O") == (4,)


def test_an_extent_used_as_a_value_needs_the_stride_that_its_formula_assumes() -> None:
    text = CALL.replace("A(s * i)", "A(s * i + N - 1)")
    with pytest.raises(ShapeError, match="the extent 0 of `T`, which a stride that is not positive makes another than"):
        program(text, (7,), s=-1)


def test_sizes_of_a_call_agree() -> None:
    text = """
    def add(float(K) X, float(K) Y) -> (S) { S(i) = X(i) + Y(i) }
    def f(float(N) A, float(M) B) -> (O) { T(i) = A(i) + A(i + 1)  O = add(T, B) }
    """
    assert program(text, (5,), (4,)).shape("O") == (4,)
    with pytest.raises(ShapeError, match="the size K of `add`"):
        program(text, (5,), (5,))
    with pytest.raises(CheckError, match="differ whatever the sizes"):
        inferred(text.replace("add(T, B)", "add(T, A)"))


def test_a_size_of_a_call_as_coefficient_specialises_what_it_is_made_of() -> None:
    text = """
    def every(float(K) X, float(L) Y) -> (S) { S(i) = Y(K * i) }
    def f(float(N) A, float(M) B) -> (O) { T(i) = A(i) + A(i + 1)  O = every(T, B) }
    """
    assert inferred(text).specialised == ("N",)
    assert program(text, (4,), (10,)).shape("O") == (4,)


# ---------------------------------------------------------------- strides of any sign


@pytest.mark.parametrize("s", [-3, -2, -1, 1, 2, 3])
def test_a_stride_of_any_sign_gives_the_largest_interval(s: int) -> None:
    found = domain(program("def f(float(N) A, int32 s) -> (O) { O +=! A(s * i + 4) }", (10,), s=s))
    inside = [i for i in range(-20, 20) if 0 <= s * i + 4 < 10]
    assert found == {"i": (inside[0], inside[-1] + 1)}


def test_a_reversed_read() -> None:
    text = "def f(float(N) A, int32 s) -> (O) { O(i) = A(s * i + N - 1) }"
    assert program(text, (5,), s=-1).shape("O") == (5,)
    with pytest.raises(ShapeError) as caught:
        program(text, (5,), s=1)
    assert caught.value.what == "the left index `i` runs over -4:1, which does not start at 0"
    assert caught.value.sizes == {"N": 5, "s": 1}


def test_a_stride_of_zero_gives_no_range() -> None:
    text = "def f(float(N) A, int32 s) -> (O) { O(i) = A(s * i) }"
    with pytest.raises(ShapeError, match="nothing gives `i` a range when s = 0"):
        program(text, (5,), s=0)
    text = "def f(float(N) A, float(K) B, int32 s) -> (O) { O(i) +=! A(i + s * k) * B(k) }"
    assert domain(program(text, (5,), (9,), s=0)) == {"i": (0, 5), "k": (0, 9)}


def test_a_divisor_of_zero() -> None:
    text = "def f(float(N) A, int32 s) -> (O) { O(i) = A(i / s) where i in 0:N }"
    assert program(text, (5,), s=2).shape("O") == (5,)
    with pytest.raises(ShapeError, match="an index is divided by `s`, which is zero"):
        program(text, (5,), s=0)
    text = "def f(float(N) A, int32 s) -> (O) { O(i) = A(i % s) where i in 0:N / s }"
    with pytest.raises(ShapeError, match="which is zero"):
        program(text, (5,), s=0)


def test_a_condition_may_protect_its_division() -> None:
    text = "def f(float(N) A, int32 s) -> (O) { O(i) = (s != 0 && i % s == 0) ? A(i) : 0.0 }"
    assert program(text, (5,), s=0).shape("O") == (5,)


def test_a_missing_scalar_is_named() -> None:
    with pytest.raises(ArgumentError, match="specialised to `s`"):
        program("def f(float(N) A, int32 s) -> (O) { O(i) = A(s * i) }", (5,))


# ---------------------------------------------------------------- numbers


def test_zero_is_fine_and_negative_is_not() -> None:
    text = "def f(float(N) A, float(K) B) -> (O) { O(i) +=! A(i + k) * B(k) }"
    assert program(text, (4,), (5,)).shape("O") == (0,)
    assert program(text, (4,), (0,)).shape("O") == (5,)
    with pytest.raises(ShapeError) as caught:
        program(text, (4,), (6,))
    assert caught.value.what == "the range 0:-1 of the index `i`, given by `A(i + k)`, has a negative extent"
    assert caught.value.sizes == {"N": 4, "K": 6}
    assert program(MATMUL, (0, 3), (3, 2)).shape("C") == (0, 2)
    with pytest.raises(ShapeError, match="given by its `where` clause"):
        program("def f(float(N) A) -> (O) { O(i) = A(i) where i in 0:N - 3 }", (2,))


def test_an_empty_reduction_still_writes() -> None:
    text = "def f(float(N) A, float(M) B, float(K) C) -> (O) { O(i) = A(i) O(i) +=! B(i) * C(k) where i in 0:M }"
    assert program(text, (3,), (3,), (0,)).shape("O") == (3,)
    with pytest.raises(ShapeError, match="`O` is written outside"):
        program(text, (3,), (4,), (0,))


def test_nothing_is_read_over_an_empty_range() -> None:
    text = "def f(float(N) A, float(K) C) -> (O) { O(i) +=! A(i) * C(k) where i in 0:5 }"
    assert program(text, (3,), (0,)).shape("O") == (5,)


def test_sizes_of_a_call_are_those_of_the_arguments() -> None:
    with pytest.raises(ShapeError, match="the size K is 3"):
        program(MATMUL, (2, 3), (4, 5))


BIG = 1 << 31


def test_a_size_that_does_not_fit_int32_is_no_value() -> None:
    assert program("def f(float(N) A) -> (O) { O(i) = A(i) }", (BIG,)).shape("O") == (BIG,)
    assert program("def f(float(N) A) -> (O) { O(i) = i < N - 1 ? A(i + 1) : 0 where i in 0:N }", (BIG,)).shape("O") == (BIG,)
    for body, name in (("O(i) = A(i) / N", "size `N`"), ("O(i) = A(i) * i where i in 0:N + 1 - 1", "index `i`")):
        with pytest.raises(ShapeError, match=f"the {name} is used as a value and does not fit int32: it is 214748364"):
            program(f"def f(float(N) A) -> (O) {{ {body} }}", (BIG + 1,))
    text = "def g(float(K) X) -> (S) { S(i) = X(i) / K } def f(float(N) A) -> (O) { T(i) = A(i) + A(i + 1) O = g(T) }"
    assert program(text, (BIG,)).shape("O") == (BIG - 1,)
    with pytest.raises(ShapeError, match=re.escape("the size `int32(N - 1)` is used as a value")):
        program(text, (BIG + 1,))


# ---------------------------------------------------------------- symbols and numbers agree


@pytest.mark.parametrize("text", [MATMUL, STRIDED, PADDED, CALL])
def test_formulas_give_the_numbers(text: str) -> None:
    definition = inferred(text)
    scalars = {"sh": 2, "dh": 3, "s": 2}
    for extent in (9, 10, 12):
        shapes = {p.name: tuple(3 if d in ("KH", "KW") else extent for d in p.dims) for p in definition.params if p.dims}
        found = specialise(definition, shapes, scalars)
        values = {**dict(found.sizes), **dict(found.scalars)}
        for tensor in definition.tensors:
            assert tuple(polynomial.integer(e, values) for e in tensor.shape) == found.shape(tensor.name)
        for statement, numbers in zip(definition.statements, found.domains, strict=True):
            assert tuple((polynomial.integer(r.lower, values), polynomial.integer(r.upper, values)) for r in statement.domain) == numbers


@pytest.mark.bare
def test_a_plain_kernel_never_waits_for_isl() -> None:
    code = (
        "import sys, time\n"
        "from tcjit.grammar.front import read\n"
        "from tcjit.grammar.infer import specialise\n"
        f"d, = read('''{MATMUL}''')\n"
        "specialise(d, {'A': (4, 5), 'B': (5, 6)}, {})\n"
        "print('islpy' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def chain(step: str, count: int) -> str:
    body = " ".join(f"T{k + 1}(i) = {step.replace('X', f'T{k}')}" for k in range(count))
    return f"def f(float(N) A) -> (O) {{ T0(i) = A(i) {body} O(i) = T{count}(i) }}"


def test_long_chains_of_statements() -> None:
    assert shape(inferred(chain("X(i) + X(i + 1)", 60)), "O") == ("N - 60",)
    assert shape(inferred(chain("X(2*i) + X(2*i + 1)", 20)), "O") == (f"N / {1 << 20}",)


def test_a_range_that_outgrows_all_bounds_is_refused() -> None:
    with pytest.raises(CheckError, match="is too long a formula") as caught:
        inferred(chain("X(2*i) + X(i + 1)", 60))
    assert caught.value.hint == "its range in short: `where i in 0:...`"
    with pytest.raises(CheckError, match="too many terms"):
        inferred(f"def f(float(N) A, int32 s) -> (O) {{ O(i) = A({' * '.join(['(N + s + i + 1)'] * 30)}) where i in 0:3 }}")


def test_a_matmul_specialises_in_well_under_a_millisecond() -> None:
    definition = inferred(MATMUL)
    best = 1.0
    for _ in range(50):
        start = time.perf_counter()
        specialise(definition, {"A": (4, 5), "B": (5, 6)}, {})
        best = min(best, time.perf_counter() - start)
    assert best < 0.001


def test_infer_keeps_what_check_said() -> None:
    checked = check(parse(MATMUL))[0]
    found = infer(checked)
    assert found.params == checked.params and found.returns == checked.returns and found.sizes == checked.sizes
    assert found.statements[0].value == checked.statements[0].value


def test_explain() -> None:
    text = "def f(float(N) I, float(K) W) -> (O) { O(i) +=! I(i + k) * W(k) where k in 0:K O(n) += 1.0 where exists I(n) }"
    assert explain_ranges(inferred(text)) == "\n".join(
        [
            "O(i) +=! I(i + k) * W(k)",
            "  i  0:N - K + 1  left       I(i + k)",
            "  k  0:K          reduction  where k in 0:K",
            "O(n) += 1.0 where exists I(n)",
            "  n  0:min(N - K + 1, N)  left  written O(n), exists I(n)",
            "output O(N - K + 1)",
        ]
    )


# ---------------------------------------------------------------- targets


def test_targets_have_extents_from_the_text() -> None:
    head = "def f(int32(N) I, float(N, D) X, float(V) L) -> "
    texts = {
        head + "(float(V, D) Y) { Y(I(n), d) +=! X(n, d) }": "Y(I(n), d) +=! X(n, d) where d in 0:D, n in 0:N, I(n) in 0:V",
        head + "(Y) { Y(I(n), d) +=! X(n, d) where I(n) in 0:2 * V + 1 }": "where d in 0:D, n in 0:N, I(n) in 0:2 * V + 1",
        head + "(Y) { Y(v, d) = X(0, d) where v in 0:V Y(I(n), d) += X(n, d) }": "Y(I(n), d) += X(n, d) where d in 0:D, n in 0:N",
        head + "(Y) { Y(I(n), n) max=! X(n, d) where I(n) in 0:V }": "Y(I(n), n) max=! X(n, d) where n in 0:N, d in 0:D, I(n) in 0:V",
    }
    for text, shown in texts.items():
        (d,) = read(text)
        assert show(d.statements[-1]).endswith(shown)
        (again,) = read(show(d))
        assert show(again) == show(d)


def test_ranges_of_targets_must_agree_with_what_is_there() -> None:
    text = "def f(int32(N) I, float(V) L, float(W) M) -> (Y) { Y(v) = L(v) Y(I(n)) += 1.0 where I(n) in 0:W }"
    (d,) = read(text)
    specialise(d, {"I": (5,), "L": (4,), "M": (4,)}, {})
    with pytest.raises(ShapeError, match="the range of `I.n.` and the extent of dimension 0 of `Y`: 4 is not 3"):
        specialise(d, {"I": (5,), "L": (4,), "M": (3,)}, {})
    with pytest.raises(CheckError, match="the range of `I.n.` and the extent of dimension 0 of `Y`: V and V . 1 differ whatever the sizes"):
        read(text.replace("0:W", "0:V + 1"))


def test_targets_need_elements() -> None:
    (d,) = read("def f(int32(N) I, float(V) L) -> (Y) { Y(I(n)) +=! 1.0 where I(n) in 0:V - 3 }")
    specialise(d, {"I": (0,), "L": (3,)}, {})
    with pytest.raises(ShapeError, match="the range 0:-1 of `I.n.` has a negative extent"):
        specialise(d, {"I": (0,), "L": (2,)}, {})
    with pytest.raises(ShapeError, match="`I.n.` is outside of `Y`, whose dimension 0 has no elements"):
        specialise(d, {"I": (2,), "L": (3,)}, {})


# ---------------------------------------------------------------- extents that are expressions

CORRELATED = "def f(float(N) X, float(K) W, float(N - K + 1) D) -> (Y) { Y(k) +=! D(i) * X(i + k) }"


def test_extents_that_are_expressions_give_ranges() -> None:
    (d,) = read(CORRELATED)
    assert show(d.params[2]) == "float32(N - K + 1) D" and d.sizes == ("N", "K")
    assert show(d.statements[0]).endswith("where k in 0:K, i in 0:N - K + 1")
    assert show(read(show(d))[0]) == show(d)
    specialise(d, {"X": (9,), "W": (4,), "D": (6,)}, {})
    with pytest.raises(ShapeError, match="(?s)dimension 0 of `D`, whose extent is N - K . 1: 5 is not 6.*try: an extent of 6 there"):
        specialise(d, {"X": (9,), "W": (4,), "D": (5,)}, {})


def test_extents_are_one_expression_however_they_are_written() -> None:
    (d,) = read("def f(float(N) X, float(1 + N - 1) A, float(N * 2 - (N - 3)) B, float(2 + 3) C) -> (Y) { Y(i) = A(i) + B(i + 3) + C(0) }")
    assert [show(p) for p in d.params[1:]] == ["float32(N) A", "float32(N + 3) B", "float32(5) C"]


def test_scalars_in_extents_are_specialised() -> None:
    (d,) = read("def f(float(N) X, int32 s, float(N / s) D, float(N - M) E, float(M) Z) -> (Y) { Y(i) = D(i) where i in 0:N / s }")
    assert d.specialised == ("s",)
    shapes = {"X": (9,), "D": (4,), "E": (4,), "Z": (5,)}
    specialise(d, shapes, {"s": 2})
    with pytest.raises(ShapeError, match="dimension 0 of `D`, whose extent is N / s: 4 is not 3"):
        specialise(d, shapes, {"s": 3})
    with pytest.raises(ShapeError, match="a division by zero"):
        specialise(d, shapes, {"s": 0})
    (d,) = read("def f(float(N, M) X, float(N * M) D) -> (Y) { Y(i) = D(i) }")
    assert d.specialised == ("N", "M")


def test_integer_scalars_are_extents() -> None:
    (d,) = read("def f(float(N, k) X, int32 k) -> (float(k) Y) { Y(j) +=! X(i, j) }")
    assert d.sizes == ("N",) and d.specialised == ("k",) and show(d.params[0]) == "float32(N, k) X"
    assert show(read(show(d))[0]) == show(d)
    specialise(d, {"X": (9, 4)}, {"k": 4})
    with pytest.raises(ShapeError, match="dimension 1 of `X`, whose extent is k: 4 is not 3"):
        specialise(d, {"X": (9, 4)}, {"k": 3})


def test_extents_of_results_that_are_expressions() -> None:
    text = "def f(float(N) X, float(K) W) -> (float(N - K + 1) Y) { Y(i) +=! X(i + k) * W(k) }"
    read(text)
    with pytest.raises(CheckError, match="the extent N - K of dimension 0 in the type of the result Y: N - K . 1 and N - K differ"):
        read(text.replace("N - K + 1", "N - K"))
    (d,) = read("def f(int32(M) I, float(N) X) -> (float(2 * N + 1) Y) { Y(I(m)) +=! 1.0 }")
    assert show(d.statements[0]).endswith("I(m) in 0:2 * N + 1")


def test_calls_check_extents_that_are_expressions() -> None:
    text = CORRELATED + " def g(float(M) A, float(3) B) -> (Y) { T(i) = A(i) where i in 0:M - EXTRA Y = f(A, B, T) }"
    read(text.replace("EXTRA", "2"))
    with pytest.raises(CheckError, match="dimension 0 of `D`, whose extent is N - K . 1: M - 1 and M - 2 differ whatever the sizes"):
        read(text.replace("EXTRA", "1"))
