"""Operands of half precision: copied in single, or converted where they are loaded; and operands copied in another order.

Modules: mapping.nest.convert_operands
"""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch
from support.nests import Shapes, assignments

import tcjit
from tcjit.errors import MappingError
from tcjit.mapping.assignment import Assignment, Temporaries
from tcjit.mapping.nest.convert_operands import Orders, conversions, convert_operands

PRODUCT = "def f(bfloat16(M,K) A, bfloat16(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"
SHAPES: Shapes = {"A": (20, 30), "B": (30, 40)}


def converted(text: str, shapes: Shapes, copied: Collection[str]) -> tuple[list[Assignment], Assignment]:
    before = assignments(text, shapes)
    temporaries = Temporaries(before)
    orders = {tensor: tuple(range(len(temporaries.tensors[tensor].shape))) for tensor in copied}
    return convert_operands(before.assignments[0], temporaries, orders)


def orders(text: str, shapes: Shapes, layouts: dict[str, str] | None = None) -> list[Orders]:
    before = assignments(text, shapes, layouts=layouts)
    return list(conversions(before.assignments[0], Temporaries(before).tensors))


def choices(text: str, shapes: Shapes) -> list[tuple[str, ...]]:
    return [tuple(chosen) for chosen in orders(text, shapes)]


def test_each_tensor_once() -> None:
    copies, a = converted(PRODUCT.replace("A(m,k) * B(k,n)", "A(m,k) * B(k,n) + A(m,k)"), SHAPES, "AB")
    assert [copy.show() for copy in copies] == [
        "A_float32(axis0, axis1) = float32(A(axis0, axis1)) where axis0 in 0:20, axis1 in 0:30",
        "B_float32(axis0, axis1) = float32(B(axis0, axis1)) where axis0 in 0:30, axis1 in 0:40",
    ]
    assert "A_float32(m, k) * B_float32(k, n) + A_float32(m, k)" in a.show() and "bfloat16" not in a.show()


def test_single_precision_stays() -> None:
    copies, a = converted(PRODUCT.replace("bfloat16", "float"), SHAPES, ())
    assert copies == [] and "A(m, k) * B(k, n)" in a.show()


def test_mixed_operands() -> None:
    copies, a = converted(PRODUCT.replace("bfloat16(K,N)", "float(K,N)"), SHAPES, "A")
    assert [copy.tensor for copy in copies] == ["A_float32"] and "A_float32(m, k) * B(k, n)" in a.show()


def test_windows_read_the_converted_tensor_as_they_did() -> None:
    text = "def f(half(N) X, half(K) w) -> (Y) { Y(i) +=! X(2 * i + k) * w(k) }"
    copies, a = converted(text, {"X": (100,), "w": (41,)}, ("X", "w"))
    assert [copy.tensor for copy in copies] == ["X_float32", "w_float32"] and "X_float32(2 * i + k) * w_float32(k)" in a.show()


def test_what_is_not_copied_is_converted_where_it_is_read() -> None:
    copies, a = converted(PRODUCT, SHAPES, "A")
    assert [copy.tensor for copy in copies] == ["A_float32"] and "A_float32(m, k) * float32(B(k, n))" in a.show()
    copies, a = converted("def f(int8(M,K) A) -> (int32(M) y) { y(m) +=! int32(A(m,k)) }", {"A": (20, 30)}, ())
    assert copies == [] and "y(m) += int32(A(m, k))" in a.show()
    with pytest.raises(MappingError, match="wrap"):
        converted("def f(int8(M,K) A) -> (int32(M) y) { y(m) +=! int32(A(m,k) + A(m,k)) }", {"A": (20, 30)}, ())


def test_choices_of_what_is_copied() -> None:
    """Of what is read once there is none; of many tensors all or none."""
    assert choices(PRODUCT, SHAPES) == [("A", "B"), ("A",), ("B",), ()]
    assert choices(PRODUCT.replace("bfloat16", "float"), SHAPES) == [()]
    assert choices("def f(half(M,K) A, half(K) x) -> (y) { y(m) +=! A(m,k) * x(k) }", {"A": (20, 30), "x": (30,)}) == [("x",), ()]
    four = "def f(half(K) a, half(K) b, half(K) c, half(K) d) -> (y) { y(m) +=! a(k) * b(k) * c(k) * d(k) where m in 0:9 }"
    assert choices(four, dict.fromkeys("abcd", (30,))) == [("a", "b", "c", "d"), ()]


LAST = "def f(float(A,C,D) X, float(D,C,B,A) U) -> (O) { O(a,b) +=! X(a,c,d) * U(d,c,b,a) }"


def test_what_lies_along_another_term_is_copied_in_an_order_that_suits_a_larger_tensor() -> None:
    """The neighbours of the larger lie along d; those of the smaller, along c, are copied, but not where its elements are many."""
    shapes = {"X": (75, 16, 64), "U": (64, 16, 27, 75)}
    layouts = {"X": "dense 0,2,1", "U": "dense 2,3,1,0"}
    assert orders(LAST, shapes, layouts) == [{}, {"X": (0, 1, 2)}]
    before = assignments(LAST, shapes, layouts=layouts)
    [copy], a = convert_operands(before.assignments[0], Temporaries(before), {"X": (1, 0, 2)})
    assert copy.show() == "X_transposed(axis1, axis0, axis2) = X(axis0, axis1, axis2) where axis1 in 0:16, axis0 in 0:75, axis2 in 0:64"
    assert "X_transposed(c, a, d) * U(d, c, b, a)" in a.show()
    often = "def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"
    assert orders(often, {"A": (200, 30), "B": (30, 4)}) == [{}, {"B": (1, 0)}]
    assert orders(often, {"A": (200, 30), "B": (30, 9)}) == [{}]  # panels of tiles
    assert orders(often, {"A": (3, 30), "B": (30, 4)}) == [{}]  # the larger of the two


@pytest.mark.parametrize(("chunk", "copied"), [(320, True), (319, False)])
def test_a_term_of_a_chunk_is_one_of_the_whole(chunk: int, copied: bool) -> None:
    """Terms that overlap those of the next chunk are a window, which is read as it is."""
    term = f"{chunk} * q + a"
    text = f"def f(float(C,B,A) U, float(A,C) V) -> (O) {{ O(b,c,q) +=! U(c,b,{term}) * V({term},c) where a in 0:320, q in 0:4 }}"
    assert ({"V": (1, 0)} in orders(text, {"U": (16, 16, 1280), "V": (1280, 16)})) == copied


def test_what_loads_do_not_convert_is_copied() -> None:
    text = "def f(double(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"
    copies, a = converted(text, SHAPES, "B")
    assert [copy.show() for copy in copies] == [
        "B_float64(axis0, axis1) = float64(B(axis0, axis1)) where axis0 in 0:30, axis1 in 0:40"
    ]
    assert "A(m, k) * B_float64(k, n)" in a.show() and choices(text, SHAPES)[:2] == [("B",), ()]
    halves = "def f(half(M,K) A, int8(K,N) B) -> (float(M,N) C) { C(m,n) +=! A(m,k) * B(k,n) }"
    copies, a = converted(halves, SHAPES, "B")
    assert copies[0].show().startswith("B_float32(axis0, axis1) = float32(B(axis0, axis1))") and "float16" not in a.show()
    assert choices(halves.replace("int8", "int32"), SHAPES) == [("A",), ()], "a half does not hold what an int32 may be"
    assert choices(text.replace("* B", "* (B(k,n) + float(m)) + B"), SHAPES) == [()], "it is read in its own type, too"


@pytest.mark.parametrize(
    ("left", "right"),
    [("double", "float"), ("half", "int8"), ("half", "uint8"), ("bfloat16", "int8"), ("double", "half"), ("half", "float")],
)
@pytest.mark.parametrize("term", ["A(m,k) * B(k,n)", "fabs(A(m,k) - B(k,n))", "exp(A(m,k) * B(k,n))", "relu(A(m,k) + B(k,n)) * S(k)"])
def test_products_of_two_types(left: str, right: str, term: str) -> None:
    names = {"half": torch.float16, "double": torch.float64, "float": torch.float32}
    torch.manual_seed(1)
    a, b, s = (
        torch.randint(-3, 4, shape).abs().to(names.get(dtype) or getattr(torch, dtype))
        for shape, dtype in (((35, 40), left), ((40, 37), right), ((40,), "float"))
    )
    values = a.double()[:, :, None], b.double(), s.double()[:, None]
    of = {"*": values[0] * values[1], "f": (values[0] - values[1]).abs(), "e": (values[0] * values[1]).exp()}
    terms = of.get(term[0]) if term[0] in "fe" else of["*"] if term[0] == "A" else (values[0] + values[1]).relu() * values[2]
    for operator, expected in (("+=!", terms.sum(1)), ("max=!", terms.amax(1))):
        text = f"def f({left}(M,K) A, {right}(K,N) B, float(K) S) -> (double(M,N) C) {{ C(m,n) {operator} {term} }}"
        f = tcjit.define(text, target="cpu").f
        torch.testing.assert_close(f(a, b, s), expected, rtol=2e-6 if "double" not in (left, right) else 2e-12, atol=1e-6)


MASKED = "def f(bool(M,K) P, float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! P(m,k) ? A(m,k) * B(k,n) : 0.0 }"


def test_truth_values_are_numbers_that_nests_compare() -> None:
    shapes: Shapes = {"P": (20, 30), "A": (20, 30), "B": (30, 40)}
    copies, a = converted(MASKED, shapes, "P")
    assert [copy.tensor for copy in copies] == ["P_float32"]
    assert "P_float32(m, k) != 0.0 ? A(m, k) * B(k, n) : 0.0" in a.show()
    assert choices(MASKED, shapes) == [("P",), ()]


@pytest.mark.parametrize("dtype", ["float", "double", "int32"])
def test_masked_convolutions(dtype: str) -> None:
    """What a mask leaves out is never multiplied: an infinite weight adds nothing."""
    zero = "0" if dtype == "int32" else "0.0"
    inside = "y + i >= 1 && y + i <= H && x + j >= 1 && x + j <= W"
    text = f"""def f({dtype}(C,H,W) X, bool(H,W) M, {dtype}(O,C,3,3) K) -> (Y) {{
        Y(o,y,x) +=! ({inside} && M(y + i - 1, x + j - 1)) ? X(c, y + i - 1, x + j - 1) * K(o,c,i,j) : {zero}
            where y in 0:H, x in 0:W }}"""
    g = torch.Generator().manual_seed(1)
    kind = {"float": torch.float32, "double": torch.float64, "int32": torch.int32}[dtype]
    x, k = (torch.randint(-9, 9, shape, generator=g).to(kind) for shape in ((8, 19, 23), (20, 8, 3, 3)))
    mask = torch.rand(19, 23, generator=g) < 0.4
    mask[3:6, 3:6] = False
    expected = torch.nn.functional.conv2d((x * mask).double()[None], k.double(), padding=1)[0]
    if kind.is_floating_point:
        x[:, 4, 4] = float("inf")
    f = tcjit.define(text).f
    assert torch.equal(f(x, mask, k).double(), expected)
    assert "no nest" not in " ".join(f.compile(x, mask, k).resources["reductions"])
