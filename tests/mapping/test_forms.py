"""Forms of a sum that vectors can use: cut at conditions, or of copies in which conditions are.

Modules: mapping.padded_copies mapping.passes.pad_operands
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.fuzz.kernels import strided
from support.mapping import AVX512, program
from support.run import right_cases

import tcjit
from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.printer import show
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.extract import extract
from tcjit.mapping.options import Options
from tcjit.mapping.passes.hoist_invariants import hoist_invariants
from tcjit.mapping.passes.pad_operands import pad_operands
from tcjit.mapping.passes.split_index_sets import split_sums
from tcjit.mapping.pipeline import map_program

DILATED = "def f(float(C,K) W, float(K,T) X) -> (Y) { Y(c, t) +=! (t >= 5 ? X(k, t - 5) * W(c, k) : 0.0) + X(k, t) where t in 0:T }"
SHAPES = {"W": (8, 16), "X": (16, 64)}


def sums(text: str, shapes: dict[str, tuple[int, ...]]) -> list[Assignment]:
    """The sums of a program that ``split_sums`` leaves, in its order."""
    return [a for a in split_sums(extract(program(text, shapes))).assignments if a.operator == "+="]


def test_a_sum_is_cut_where_a_condition_changes() -> None:
    found = sums(DILATED, SHAPES)
    assert [{d: (lo, hi) for d, lo, hi in a.bounds}["t"] for a in found] == [(0, 5), (5, 64)]
    assert [len({read.tensor for read, _ in guarded_accesses(a.value)}) for a in found] == [1, 2]
    made = map_program(program(DILATED, SHAPES), Options(), AVX512)
    assert [s.tensor for s in made.scop.statements if s.tiled] == ["Y", "Y"]
    assert not any(s.untiled for s in made.scop.statements if s.reduction)


@pytest.mark.parametrize(
    "condition, cuts",
    [
        ("t < 7", [7]),
        ("7 > t", [7]),
        ("t <= 7", [8]),
        ("3 - t >= 0", [4]),
        ("t > 63", []),
        ("t + k > 5", []),
        ("2 * t > 9", []),
        ("t == 4", []),
    ],
)
def test_only_plain_comparisons_of_one_index_cut(condition: str, cuts: list[int]) -> None:
    value = f"({condition} ? X(k, t) * W(c, k) : 0.0) + X(k, t)"
    text = f"def f(float(C,K) W, float(K,T) X) -> (Y) {{ Y(c, t) +=! {value} where t in 0:T }}"
    assert [a.bounds[1][2] for a in sums(text, SHAPES)][:-1] == cuts


def test_a_condition_around_all_of_a_sum_bounds_its_domain() -> None:
    text = DILATED.replace(" + X(k, t) where", " where")
    assert len(sums(text, SHAPES)) == 1
    assert [len(s.tiled) for s in map_program(program(text, SHAPES), Options(), AVX512).scop.statements if s.tiled] == [1]


PADDED = "{ O(n,f,w) +=! (w + k >= 1 && w + k <= W ? X(n,c,w+k-1) : 0.0) * G(f,c,k) where w in 0:W }"
GROUPS = PADDED.replace("X(n,c,", "X(n,c + 4*(f/2),").replace("c,k) where", "c,k) where c in 0:4,")


@pytest.mark.parametrize(
    ("body", "layouts", "expected"),
    [
        (PADDED, {}, (2, 8, 22)),
        (PADDED, {"X": "dense 0,2,1"}, (2, 8, 22)),  # lanes run along a dimension that moves what is read
        (PADDED, {"X": "dense 0,2,1", "O": "dense 0,2,1"}, (2, 22, 8)),  # all lanes read one element: neighbours stay together
        (GROUPS, {"X": "dense 0,2,1", "O": "dense 0,2,1"}, (2, 8, 22)),
    ],
)
def test_the_order_of_a_padded_copy(body: str, layouts: dict[str, str], expected: tuple[int, ...]) -> None:
    assert _padded_shape(body, layouts, (2, 8, 20), (4, 4 if body is GROUPS else 8, 3)) == expected


@pytest.mark.parametrize(
    ("channels", "filters", "stays"),
    [
        (32, 16, True),  # filters fill a vector, and there are fewer results than elements to transpose
        (32, 10, False),
        (8, 16, False),  # more results than elements
        (600, 640, False),  # each element has so many uses that its transposition is little
    ],
)
def test_a_padded_copy_stays_in_order_where_other_lanes_are_full(channels: int, filters: int, stays: bool) -> None:
    shape = _padded_shape(PADDED, {"X": "dense 0,2,1"}, (2, channels, 20), (filters, channels, 3))
    assert shape == ((2, 22, channels) if stays else (2, channels, 22))


def _padded_shape(body: str, layouts: dict[str, str], x: tuple[int, ...], g: tuple[int, ...]) -> tuple[int, ...]:
    text = f"def f(float(N,C,W) X, float(F,D,K) G) -> (O) {body}"
    made = pad_operands(extract(program(text, {"X": x, "G": g}), layouts), AVX512)
    (shape,) = (t.shape for t in made.tensors if t.name == "X_padded")
    return shape


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ({"X": (2, 8, 200, 16), "G": (8, 3, 5)}, (2, 8, 20, 202)),  # rows of 6 results: lanes run along the columns
        ({"X": (2, 8, 60, 16), "G": (8, 3, 5)}, (2, 8, 62, 20)),  # neither is long
        ({"X": (2, 8, 200, 40), "G": (8, 3, 5)}, (2, 8, 202, 44)),  # rows fill vectors
    ],
)
def test_a_padded_copy_for_results_with_few_neighbours(shapes: dict[str, tuple[int, ...]], expected: tuple[int, ...]) -> None:
    text = """def f(float(N,C,H,W) X, float(C,I,J) G) -> (O) {
        O(n,c,h,w) +=! (y >= 0 && y < H && x >= 0 && x < W ? X(n,c,y,x) : 0.0) * G(c,i,j)
            where h in 0:H, w in 0:(W+2)/3, y = h+i-1, x = 3*w+j-2
    }"""
    made = pad_operands(extract(program(text, shapes)), AVX512)
    assert [copy.shape for copy in made.tensors if copy.name == "X_padded"] == [expected]


def test_a_padded_copy_has_the_values_of_strides_alone() -> None:
    text = """def f(float(N,C,H,W) X, float(F,C,I,J) G) -> (O) {
        O(n,f,h,w) +=! (x >= 0 && x < W ? X(n,c,3*h+3*i,x) : 0.0) * G(f,c,i,j) where w in 0:(W+1)/2, x = 4*w + 2*j - 2
    }"""
    shapes = {"X": (2, 8, 61, 32), "G": (8, 8, 3, 2)}
    made = pad_operands(extract(program(text, shapes)), AVX512)
    assert [copy.shape for copy in made.tensors if copy.name == "X_padded"] == [(2, 8, 21, 32)]
    x, g = (torch.randn(shape) for shape in shapes.values())
    f = tcjit.define(text, target="cpu").f
    expected = F.conv2d(F.pad(x, (2, 40)), g, stride=(3, 4), dilation=(3, 2))[..., :16]
    torch.testing.assert_close(f(x, g), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("(h - i) % 2 == 0 && h - i >= 0 && h - i < 16", [(4, 10)]),
        ("(h - i) % 2 == 0 && h - i >= 1 && h - i <= 13", [(4, 10)]),  # of even numbers
        ("h - i >= 0 && h - i < 16", [(4, 19)]),  # of all: over what is divided, not over the quotients
        ("h - i >= 1 && h - i < 16", [(4, 19)]),  # 1 / 2 and 0 / 2 are one element, which is read at 1 alone
        ("(h - i) % 3 == 0 && h - i >= 1 && h - i < 16", []),
        ("h - i >= 0 && h - i < 16 && X(c, h) > Y(c, (h - i) / 2)", [(4, 19), (4, 19)]),
        ("h - i >= 0 && h - i < 16 && X(c, h) > Y(c, h - i)", [(4, 19), (4, 19)]),
        ("h - i >= 0 && h - i < 16 && X(c, h) > Z(K((h - i) / 2))", [(4, 19)]),  # an element of data has no copy
    ],
)
def test_padded_copies_of_quotients_and_of_what_is_compared_under_their_limits(condition: str, expected: list[tuple[int, ...]]) -> None:
    text = f"""def f(float(C,8) S, float(C,17) X, float(C,R) Y, float(M) Z, int32(8) K) -> (D) {{
        D(c, h) +=! {condition} ? S(c, (h - i) / 2) : 0.0 where h in 0:17, i in 0:3
    }}"""
    shapes = {"S": (4, 8), "X": (4, 17), "Y": (4, 16), "Z": (5,), "K": (8,)}
    made = pad_operands(extract(program(text, shapes)), AVX512)
    assert [copy.shape for copy in made.tensors if copy.name.endswith("_padded")] == expected


def test_what_is_chosen_and_compared_has_one_copy() -> None:
    text = """def f(float(C,H) X, float(C,H) S) -> (D) {
        D(c, h) +=! h >= i && X(c, h - i) < S(c, h - i) ? X(c, h - i) : 0.0 where h in 0:H, i in 0:4
    }"""
    made = pad_operands(extract(program(text, {"X": (4, 16), "S": (4, 16)})), AVX512)
    assert [copy.name for copy in made.tensors if "_padded" in copy.name] == ["X_padded", "S_padded"]


DIVIDED = {  # text, shapes, and the copy that it has
    "circulant": (
        "def f(double(N) C, double(B,N) X) -> (Y) { Y(b,i) +=! C((i - j) % N) * X(b,j) where i in 0:N }",
        {"C": (37,), "X": (12, 37)}, ("C", "C((y0 + -36) % N)", (73,)),
    ),
    "circular": (
        "def f(float(N,H,W) X, float(I,J) K) -> (Y) { Y(n,y,x) +=! X(n, (y+i-1) % H, (x+j-1) % W) * K(i,j) where y in 0:H, x in 0:W }",
        {"X": (3, 9, 25), "K": (3, 3)}, ("X", "X(y0, (y1 + -1) % H, (y2 + -1) % W)", (3, 11, 27)),
    ),
    "nearest neighbours": (
        """def f(float(C,W) X, float(O,C,3) K) -> (Y) {
            Y(o,x) +=! (x + j >= 1 && x + j <= 2*W) ? X(c, (x + j - 1)/2) * K(o,c,j) : 0.0 where x in 0:2*W }""",
        {"X": (5, 21), "K": (9, 5, 3)}, ("X", "y1 + -1 >= 0 && y1 + -42 <= 0 ? X(y0, (y1 + -1) / 2) : 0.0", (5, 44)),
    ),
    "limits of quotients": (
        """def f(bfloat16(C,W) X, bfloat16(O,C,4) K) -> (Y) {
            Y(o,x) +=! float((x + j - 2)/3 >= 0 && (x + j - 2)/3 < W ? X(c, (x + j - 2)/3) : 0.0) * float(K(o,c,j)) where x in 0:3*W }""",
        {"X": (5, 21), "K": (9, 5, 4)}, ("X", "(y1 + -2) / 3 >= 0 && (y1 + -2) / 3 < W ? X(y0, (y1 + -2) / 3) : 0.0", (5, 66)),
    ),
    "extrema": (
        "def f(float(N) C, float(B,N) X) -> (Y) { Y(b,i) min=! C((i - j) % N) + X(b,j) where i in 0:N }",
        {"C": (37,), "X": (12, 37)}, ("C", "C((y0 + -36) % N)", (73,)),
    ),
    "groups": (
        "def f(float(M,K) X, float(N,K) W, float(N,G) S) -> (Y) { Y(m,n) +=! X(m,k) * W(n,k) * S(n,k/8) }",
        {"X": (20, 32), "W": (30, 32), "S": (30, 4)}, ("S", "S(y0, y1 / 8)", (30, 32)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DIVIDED)
def test_operands_that_divide_a_linear_form_are_copied_over_its_values(name: str) -> None:
    text, shapes, (tensor, value, shape) = DIVIDED[name]
    read = program(text, shapes)
    made = pad_operands(extract(read), AVX512)
    copy = next(a for a in made.assignments if a.tensor == f"{tensor}_padded")
    assert (show(copy.value), made.storages[copy.tensor].shape) == (value, shape)
    nests = map_program(read, Options(), AVX512)
    assert all(s.tiled for s in nests.scop.statements if s.reduction)
    dtypes = [getattr(torch, t.dtype) for t in read.definition.tensors]
    tensors = [torch.randn(size).to(dtype) for size, dtype in zip(shapes.values(), dtypes)]
    found, expected = (tcjit.define(text, target=target).f(*tensors) for target in ("cpu", "reference"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "body",
    [
        "Y(o,x) +=! X(c, (x + j)/2 + c) * K(o,c,j) where x in 0:20",  # of no one linear form
        "Y(o,x) +=! X(c, x/2) * K(o,c,j) where x in 0:20",  # blocks of x have no division
    ],
)
def test_divisions_that_stay(body: str) -> None:
    before = extract(program(f"def f(float(C,W) X, float(O,C,J) K) -> (Y) {{ {body} }}", {"X": (5, 40), "K": (9, 5, 3)}))
    assert pad_operands(before, AVX512).assignments == before.assignments


@pytest.mark.parametrize("shard", range(4))
def test_random_windows_of_a_stride(shard: int) -> None:
    """Conditions on quotients and residues, and on what is read under them; the soak draws fresh ones."""
    copies = 0
    for case in right_cases(strided, range(shard, 32, 4)):
        copies += any("_padded" in t.name for t in pad_operands(extract(case.program()), AVX512).tensors)
    assert copies, "some of them have padded copies"


@pytest.mark.parametrize("dtype", ["float", "bfloat16"])
def test_conditions_that_leave_no_term(dtype: str) -> None:
    """As those of a band do, of blocks of rows beside it: nothing is a nest, and results are what they start from."""
    text = f"def f({dtype}(M,K) A, {dtype}(K,N) B) -> (Y) {{ Y(m, n) +=! n >= 40 + m ? A(m, k) * B(k, n) : 0.0 }}"
    mapped = map_program(program(text, {"A": (32, 8), "B": (8, 36)}), Options(), AVX512)
    assert not any(s.tiled for s in mapped.scop.statements) and any(s.untiled == "no term counts" for s in mapped.scop.statements)


BORDERS = {
    "replicate": ("min(max(h + r - 1, 0), H - 1)", "min(max(w + s - 1, 0), W - 1)"),
    "reflect": (
        "abs(h + r - 1) < H ? abs(h + r - 1) : 2*H - 2 - abs(h + r - 1)",
        "abs(w + s - 1) < W ? abs(w + s - 1) : 2*W - 2 - abs(w + s - 1)",
    ),
    "circular": ("(h + r + H - 1) % H", "(w + s + W - 1) % W"),
}


@pytest.mark.parametrize("mode", BORDERS)
def test_borders_that_repeat_are_copied_once(mode: str) -> None:
    """A copy over the values of ``h + r`` and ``w + s``, in which the kernel's window lies as in an image."""
    text = f"""def f(float(N,C,H,W) X, float(F,C,3,3) K) -> (Y) {{
        Y(n,f,h,w) +=! X(n,c,{",".join(BORDERS[mode])}) * K(f,c,r,s) where h in 0:H, w in 0:W, r in 0:3, s in 0:3 }}"""
    x, k = torch.randn(2, 8, 20, 19), torch.randn(16, 8, 3, 3)
    f = tcjit.define(text, target="cpu").f
    wanted = torch.nn.functional.conv2d(torch.nn.functional.pad(x, (1, 1, 1, 1), mode=mode), k)
    torch.testing.assert_close(f(x, k), wanted, rtol=1e-4, atol=1e-4)
    given = extract(program(text, {"X": (2, 8, 20, 19), "K": (16, 8, 3, 3)}))
    assert [a.show()[:24] for a in pad_operands(hoist_invariants(given, cpu=True), AVX512).assignments][0] == "X_padded(y0, y1, y2, y3)"


@pytest.mark.parametrize("dtype", ["float", "bfloat16", "int8"])
def test_borders_of_what_is_no_product(dtype: str) -> None:
    h, w = BORDERS["reflect"]
    text = f"""def f({dtype}(N,C,H,W) X, float(C,3,3) K) -> (Y) {{
        Y(n,c,h,w) max=! fabs(float(X(n,c,{h},{w})) - K(c,r,s)) where h in 0:H, w in 0:W, r in 0:3, s in 0:3 }}"""
    x, k = (3 * torch.randn(2, 8, 20, 19)).to(getattr(torch, {"float": "float32"}.get(dtype, dtype))), torch.randn(8, 3, 3)
    f = tcjit.define(text, target="cpu").f
    windows = F.unfold(F.pad(x.float(), (1, 1, 1, 1), mode="reflect"), 3).view(2, 8, 9, 20, 19)
    wanted = (windows - k.view(8, 9, 1, 1)).abs().amax(2)
    torch.testing.assert_close(f(x, k), wanted, rtol=1e-6, atol=1e-6)
    assert "not affine" not in str(f.compile(x, k).resources["reductions"])


@pytest.mark.parametrize(
    ("at", "copied"), [("max(t + a - 2, 0)", True), ("min(max(t + a - 1, 0), T - 1)", True), ("max(t + a - 1, 0)", False)]
)
def test_borders_that_repeat_beside_borders_of_zeros(at: str, copied: bool) -> None:
    """Nothing is read where a condition does not hold: a copy has elements there too, and only if all of them are inside."""
    text = f"""def f(float(C,T,W) X, float(F,C,3,3) K) -> (Y) {{
        Y(f,t,w) +=! w + r >= 1 && w + r <= W{"" if copied else " && t + a < T"} ? X(c, {at}, w + r - 1) * K(f,c,a,r) : 0.0
            where t in 0:T, w in 0:W, a in 0:3, r in 0:3 }}"""
    x, k = torch.randn(8, 20, 19), torch.randn(16, 8, 3, 3)
    f = tcjit.define(text, target="cpu").f
    places = torch.arange(20)[:, None] + torch.arange(3) - (2 if at.startswith("max(t + a - 2") else 1)
    taken = F.pad(x, (1, 1))[:, places.clamp(0, 19)]  # c, t, a, w
    if not copied:
        taken = taken * (places + 1 < 20)[None, :, :, None]
    wanted = torch.einsum("ctawr,fcar->ftw", taken.unfold(3, 3, 1), k)
    torch.testing.assert_close(f(x, k), wanted, rtol=1e-4, atol=1e-4)
    assert (f.compile(x, k).resources["reductions"][0].split(":")[0] != "Y: no nest") and ("X_padded" in f.compile(x, k).source) == copied


@pytest.mark.parametrize("size", [128, 50, 36])
def test_borders_of_dynamic_sizes_under_conditions(size: int) -> None:
    """What a condition keeps from being read may lie outside of a tensor whose size only a call knows."""
    text = """def f(float(C,N) X, float(O,C,K) W) -> (Y) {
        Y(o,i) +=! (i + 2 < N) ? X(c, min(max(i + k - 1, 0), 39)) * W(o,c,k) : 0.0 where i in 0:40 }"""
    x, w = torch.randn(8, size), torch.randn(16, 8, 3)
    f = tcjit.define(text, target="cpu", dynamic=["N"]).f
    places = (torch.arange(40)[:, None] + torch.arange(3) - 1).clamp(0, 39)
    there = torch.arange(40) + 2 < size
    wanted = torch.einsum("cik,ock->oi", x[:, places.clamp(max=size - 1)], w) * there
    for n in (128, size):
        result = f(torch.nn.functional.pad(x, (0, n - size)), w) if n > size else f(x, w)
    torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)


def test_gathers_of_sums_that_leave_values_out_are_not_copied() -> None:
    """``4 * h + r`` is never 3, where the subscript might be anything; nor is what a condition keeps from being read."""
    shapes = {"X": (100, 8), "K": (30, 2)}
    for at in ("min(4*h + r, 90)", "r > h ? min(h + r, 90) : min(h + r, 80)"):
        text = f"def f(float(A,C) X, float(F,R) K) -> (Y) {{ Y(f,h,c) +=! X({at}, c) * K(f,r) where h in 0:20 }}"
        given = hoist_invariants(extract(program(text, shapes)), cpu=True)
        assert not [a for a in pad_operands(given, AVX512).assignments if "padded" in a.show()], at
