"""Which reductions of a program become nests: the reason for each that does not, what becomes part of a nest, and copies before it.

Modules: mapping.passes.tile_reductions
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.mapping import AVX512
from support.nests import Shapes, tiled

import tcjit
from tcjit.grammar.front import read
from tcjit.grammar.infer import specialise
from tcjit.grammar.printer import show
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.machine import Machine
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import build_scop, map_program

MATMUL = "C(m,n) +=! A(m,k) * B(k,n)"
TWO: Shapes = {"A": (20, 30), "B": (30, 40)}
PARAMETERS = "float(M,K) A, float(K,N) B"
SHARED = "every operand is used once, by others too"
CONVEX = "the conditions cut out what is not convex"
FIRST = "C(m,n) = 1.0 where m in 0:M, n in 0:N"
SAME: Shapes = {"A": (20, 30), "B": (20, 30)}
QUOTIENT = "X(i / 40 + k) * w(k) where i in 0:190"


def one(text: str, shapes: Shapes, number: int = -1) -> tuple[bool, str]:
    a = tiled(text, shapes).assignments[number]
    assert bool(a.tiled) == (not a.untiled), a.show()
    return bool(a.tiled), a.untiled


@pytest.mark.parametrize(
    ("text", "shapes", "reason"),
    [
        (f"def f({PARAMETERS}) -> (C) {{ C(m,k) = A(m,k) * 2.0 }}", TWO, "no reduction"),
        (f"def f({PARAMETERS}) -> (C) {{ C(m,n) +=! A(m,k) * B(k,n) }}", {"A": (20, 0), "B": (0, 40)}, "no reduction"),
        ("def f(int64(M,K) A, int64(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }", TWO, "elements of int64"),
        ("def f(int32(M,K) A, int32(K,N) B) -> (C) { C(m,n) +=! A(m,k) / B(k,n) }", TWO, "the body has no form over vectors or lanes"),
        ("def f(int8(M,K) A, int8(K,N) B) -> (C) { C(m,n) max=! int32(A(m,k) + B(k,n)) }", TWO, "sums in int8 wrap"),
        (f"def f({PARAMETERS}) -> (C) {{ C(m,n) +=! (A(m,k) + float(k)) * B(k,n) }}", TWO, "the body has no form over vectors or lanes"),
        ("def f(float(M,K) A) -> (S, T) { S(m) +=! A(m,k)  T(m) max=! A(m,k) }", {"A": (20, 30)}, SHARED),
        ("def f(float(M,K) A) -> (S, B) { S(m) +=! A(m,k)  B(m,k) = A(m,k) / S(m) }", {"A": (20, 30)}, SHARED),
        ("def f(float(M,K) A) -> (S, T) { S +=! A(m,k)  T max=! A(m,k) }", {"A": (20, 30)}, SHARED),
        ("def f(float(M,K) A) -> (S) { B(m,k) = exp(A(m,k))  S(m) +=! B(m,k) }", {"A": (20, 30)}, SHARED),
        (f"def f({PARAMETERS}) -> (C) {{ C(m,n) +=! (k != m ? A(m,k) * B(k,n) : 0.0) }}", TWO, CONVEX),
        (f"def f({PARAMETERS}) -> (C) {{ C(m,n) +=! (k < m || k > m + 9 ? A(m,k) * B(k,n) : 0.0) }}", TWO, CONVEX),
        (f"def f({PARAMETERS}) -> (C) {{ C(m,n) +=! (k >= K ? A(m,k) * B(k,n) : 0.0) }}", TWO, "no term counts"),
        ("def f(float(E,D) T, int64(L) I) -> (O) { O(d) +=! T(I(l), d) }", {"T": (9, 20), "I": (5,)}, "an access to T is not affine"),
        (f"def f(float(N) X, float(K) w) -> (O) {{ O(i) +=! {QUOTIENT} }}", {"X": (20,), "w": (3,)}, "an access to X divides an index"),
    ],
)  # fmt: skip
def test_reasons(text: str, shapes: Shapes, reason: str) -> None:
    found = [a.untiled for a in tiled(text, shapes).assignments if a.untiled]
    assert reason in found and not any(a.tiled for a in tiled(text, shapes).assignments)


@pytest.mark.parametrize(
    "text",
    [
        "def f(float(M,K) A) -> (S) { S(m) +=! A(m,k) }",
        "def f(float(M,K) A) -> (S) { S +=! A(m,k) }",
        "def f(float(M,K) A, float(M,K) B) -> (S) { S(k) max=! A(m,k) - B(m,k) }",
        "def f(float(M,K) A) -> (S, B) { S(m) +=! A(m,k)  B(m) = exp(S(m)) }",
    ],
)
def test_sums_that_share_nothing(text: str) -> None:
    """Every element is used once, but by nobody else."""
    assert tiled(text, SAME if "float(M,K) B" in text else {"A": (20, 30)}).assignments[0].tiled


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("def f(float(N) A) -> (S) { S +=! A(n) }", {"A": (1 << 17,)}),
        ("def f(float(N,M) A) -> (S) { S(m) +=! A(n,m) }", {"A": (1 << 15, 7)}),
        ("def f(float(N) A) -> (S) { S max=! fabs(A(n)) }", {"A": ((1 << 17) + 1,)}),
        ("def f(float(K,M) A) -> (S) { S(m,n) +=! A(k,m) * A(k,n) }", {"A": (1 << 14, 16)}),
    ],
)
def test_long_sums_are_in_chunks(text: str, shapes: Shapes) -> None:
    """Few results leave threads without work: partial results are a nest, and what combines them follows."""
    first, *rest = tiled(text, shapes).assignments
    assert first.tiled and first.tensor == "S_part" and first.bounds[0][0] == "chunk"
    assert [a.untiled for a in rest if a.reduction] == ["combines partial results"]


def test_extrema_of_halves_are_those_of_their_values_in_single() -> None:
    pool = "def f(half(N,H,W) X) -> (O) { O(n,h,w) max=! X(n,2*h+i,2*w+j) where i in 0:2, j in 0:2, h in 0:9, w in 0:20 }"
    nest, copy = tiled(pool, {"X": (3, 18, 40)}).assignments
    assert nest.tensor == "O_wide" and nest.tiled and not nest.tiled[0].statement.stored and copy.tensor == "O" and copy.fused
    part, *_, last = tiled("def f(bfloat16(N) X) -> (S) { S min=! X(n) }", {"X": (1 << 17,)}).assignments
    assert part.tiled and last.show() == "S() = bfloat16(S_wide)"
    shared = tiled("def f(half(N,M) X) -> (T, Y) { T(n) max=! X(n,m)  Y(n,m) = X(n,m) - T(n) }", {"X": (30, 40)}).assignments
    assert shared[0].untiled == SHARED and "T_wide" not in {a.tensor for a in shared}


@pytest.mark.parametrize(("dtype", "nests"), [("half", 2), ("bfloat16", 2), ("bool", 2), ("float", 0)])
def test_extrema_of_the_same_halves_are_nests(dtype: str, nests: int) -> None:
    """Which passes over columns would convert to and fro in memory at each term; floats share their loops."""
    reduce, other = ("max=!", "min=!")
    text = f"def f({dtype}(N,M) X) -> (T, U) {{ T(m) {reduce} X(n,m)  U(m) {other} X(n,m) }}"
    found = tiled(text, {"X": (30, 400)}).assignments
    assert sum(bool(a.tiled) for a in found) == nests
    types = {"half": torch.float16, "bfloat16": torch.bfloat16, "bool": torch.bool, "float": torch.float32}
    x = (torch.rand(30, 400) > 0.5) if dtype == "bool" else torch.randn(30, 400).to(types[dtype])
    t, u = tcjit.define(text).f(x)
    assert torch.equal(t, x.amax(0)) and torch.equal(u, x.amin(0))


def test_half_precision_is_converted_once() -> None:
    """It runs in single, where an element is read often enough; otherwise loads convert it."""
    large: Shapes = {"A": (200, 300), "B": (300, 400)}
    found = tiled(f"def f({PARAMETERS}) -> (C) {{ {MATMUL} }}".replace("float", "bfloat16"), large)
    assert [a.tensor for a in found.assignments if a.tiled] == ["C_wide"]
    assert "A_float32" in {a.tensor for a in found.assignments} and found.assignments[-1].fused
    once = tiled("def f(bfloat16(M,K) A, bfloat16(K) x) -> (y) { y(m) +=! A(m,k) * x(k) }", {"A": (20, 30), "x": (30,)})
    assert [a.tensor for a in once.assignments if a.tiled] == ["y_wide"] and "A_float32" not in {a.tensor for a in once.assignments}


@pytest.mark.parametrize(
    "text",
    [
        f"def f({PARAMETERS}) -> (C) {{ {MATMUL} }}",
        f"def f({PARAMETERS}) -> (C) {{ C(m,n) +=! (k <= m ? A(m,k) * B(k,n) : 0.0) }}",
        f"def f({PARAMETERS}) -> (C) {{ {FIRST}  {MATMUL.replace('!', '')} }}",
        f"def f({PARAMETERS}) -> (C) {{ C(m,n) min=! A(m,k) + B(k,n) }}",
        f"def f({PARAMETERS}) -> (C) {{ C(m,n) *=! A(m,k) + B(k,n) }}",
        "def f(float(M,K) A, float(K) b) -> (C) { C(m) +=! A(m,k) * b(k) }",
        "def f(float(M,K) A) -> (C) { C(m) +=! (k <= m ? A(m,k) : 0.0) }",
        "def f(float(M,K) A) -> (C) { C(m,n) max=! A(m,n+k) where k in 0:3, n in 0:28 }",
    ],
)
def test_what_is_tiled(text: str) -> None:
    shapes: Shapes = {name: shape for name, shape in {**TWO, "b": (30,)}.items() if f") {name}" in text}
    assert one(text, shapes) == (True, "")


def test_residue_classes_are_statements_of_one_assignment() -> None:
    inside = "h + 1 - k >= 0 && (h + 1 - k) % 2 == 0 && (h + 1 - k) / 2 < H"
    value = f"({inside} ? X(c, (h + 1 - k) / 2) * W(c,f,k) : 0.0)"
    text = f"def f(float(C,H) X, float(C,F,K) W) -> (O) {{ O(f,h) +=! {value} where h in 0:2*H }}"
    a = tiled(text, {"X": (8, 20), "W": (8, 32, 4)}).assignments[-1]
    assert len(a.tiled) == 2 and len({nest.name for nest in a.tiled}) == 2


def kinds(found: Assignments) -> list[tuple[str, bool, bool]]:
    return [(a.tensor, bool(a.tiled), a.fused) for a in found.assignments]


def test_epilogues_are_marked() -> None:
    rest = "Y(m,n) = C(m,n) + b(n)  T(n,m) = Y(m,n) * C(m,n)  Z(m,n) = C(m,n) - C(0,n)"
    text = f"def f({PARAMETERS}, float(N) b) -> (Y, T, Z) {{ {MATMUL}  {rest} }}"
    found = tiled(text, {**TWO, "b": (40,)})
    marks = [(bool(a.tiled), a.fused) for a in found.assignments]
    first = marks.index((True, False))
    assert marks[first + 1 : first + 3] == [(False, True), (False, True)] and marks[-1] == (False, False)
    (nest,) = found.assignments[first].tiled
    assert len(nest.statement.epilogue) == sum(fused for _, fused in marks)


def test_results_that_nobody_else_reads_are_not_stored() -> None:
    kept = f"def f({PARAMETERS}) -> (Y, C) {{ {MATMUL}  Y(m,n) = relu(C(m,n)) }}"
    for text, stored in ((kept, True), (kept.replace("(Y, C)", "(Y)"), False)):
        found = tiled(text, TWO)
        assert [nest.statement.stored for a in found.assignments for nest in a.tiled] == [stored]


def test_copies_are_temporaries_before_the_reduction() -> None:
    text = "def f(float(M,K) A, float(N,K) B) -> (C) { C(m,n) +=! A(m,k) * B(n,k) }"
    shapes: Shapes = {"A": (100, 64), "B": (90, 64)}
    found = tiled(text, shapes)
    copy, rest, padding, reduction = found.assignments
    assert copy.tensor == rest.tensor == padding.tensor  # the last block has fewer points
    assert copy.tensor.endswith("_staged") and not copy.tiled and not copy.untiled and reduction.tiled
    (storage,) = (storage for _, storage in found.temporaries)
    assert storage.name == copy.tensor and storage.role == "temporary" and storage.dtype == "float32"
    assert copy.tensor in {access.tensor for access in reduction.tiled[0].statement.accesses}
    assert len(tiled(text, shapes, Options(pack=False)).assignments) == 1


def test_a_program_of_several() -> None:
    text = f"def f({PARAMETERS}, float(N,P) D) -> (E, S) {{ {MATMUL}  H(m,n) = relu(C(m,n))  E(m,p) +=! H(m,n) * D(n,p)  S(m) +=! E(m,p) }}"
    found = tiled(text, {**TWO, "D": (40, 24)})
    assert [mark for mark in kinds(found) if not mark[0].endswith("_staged")] == [
        ("C", True, False), ("H", False, True), ("E", True, False), ("S", False, False),
    ]  # fmt: skip
    assert found.assignments[-1].untiled == SHARED


def test_widths_of_vectors() -> None:
    text = f"def f({PARAMETERS}) -> (C) {{ {MATMUL} }}"
    for width in (2, 4, 8):
        (a,) = tiled(text, TWO, Options(vector_width=width)).assignments
        assert a.tiled[0].width == width
    (a,) = tiled(text.replace("float(", "double("), TWO, machine=Machine(32, 16)).assignments
    assert a.tiled[0].width == 4


def test_the_option() -> None:
    (definition,) = read(f"def f({PARAMETERS}) -> (C) {{ {MATMUL} }}")
    program = specialise(definition, TWO, {})
    assert build_scop(program, Options(), None, AVX512).tile_statements
    assert not build_scop(program, Options(vector_width=1), None, AVX512).tile_statements
    assert "accumulators T0" in str(map_program(program, Options(), AVX512).tree)
    assert "accumulators" not in str(map_program(program, Options(vector_width=1), AVX512).tree)


@pytest.mark.parametrize(
    ("given", "tile"), [((4, 2), (4, 2)), ((3, 1), (3, 1)), ((24, 1), (20, 1)), ((2, 8), (2, 3))], ids=["4x2", "3x1", "rows", "lanes"]
)
def test_register_tiles_that_are_given(given: tuple[int, int], tile: tuple[int, int]) -> None:
    """As far as extents allow."""
    (definition,) = read(f"def f({PARAMETERS}) -> (C) {{ {MATMUL} }}")
    program = specialise(definition, TWO, {})
    (s,) = (s for s in build_scop(program, Options(register_tile=given), None, AVX512).statements if s.tiled)
    leaf = s.tiled[0].nest.leaf
    assert ((dict(leaf.rows) or {"": 1}).popitem()[1], leaf.vectors) == tile


def test_more_accumulators_than_registers_make_no_nest() -> None:
    (definition,) = read(f"def f({PARAMETERS}) -> (C) {{ {MATMUL} }}")
    program = specialise(definition, {"A": (200, 30), "B": (30, 400)}, {})
    assert not build_scop(program, Options(register_tile=(14, 8)), None, AVX512).tile_statements


@pytest.mark.parametrize("given", [{"tile": (4, 8)}, {"reduction_chunks": 1}, {"reduction_chunks": 3}], ids=str)
def test_nests_whatever_options_say_of_loops(given: dict[str, Any]) -> None:
    (definition,) = read(f"def f({PARAMETERS}) -> (C) {{ {MATMUL} }}")
    program = specialise(definition, {"A": (200, 30), "B": (30, 400)}, {})
    made = map_program(program, Options(**given), AVX512).scop
    assert made.tile_statements and ("C_part" in {t.name for t in made.tensors}) == (given.get("reduction_chunks", 1) > 1)


@pytest.mark.parametrize("condition", ["(m + k) % 37 == 0", "(m + 2 * k) % 3 < 2"])
def test_a_modulus_that_no_class_resolves(condition: str) -> None:
    text = f"def f({PARAMETERS}) -> (C) {{ C(m,n) +=! ({condition} ? A(m,k) * B(k,n) : 0.0) }}"
    assert one(text, TWO) == (False, "a condition takes an index modulo something")


def test_results_wider_than_the_domain() -> None:
    text = "def f(float(N) X) -> (O) { O(i,j) +=! (j <= 1 ? X(k) : 0.0) where i in 0:2, j in 0:16, k in 0:N }"
    assert one(text, {"X": (5,)}) == (True, "")


@pytest.mark.parametrize(
    ("operator", "value"),
    [
        ("+=!", "0.0 + A(m, 1) * B(m, n)"),
        ("*=!", "1.0 * (A(m, 1) * B(m, n))"),
        ("min=!", "min(infinity(), A(m, 1) * B(m, n))"),
        ("max=!", "max(-infinity(), A(m, 1) * B(m, n))"),
    ],
)
def test_results_of_one_term_are_assignments(operator: str, value: str) -> None:
    text = f"def f(float(M,K) A, float(M,N) B) -> (C) {{ C(m,n) {operator} A(m,k) * B(m,n) where k in 1:2 }}"
    (a,) = tiled(text, {"A": (20, 3), "B": (20, 30)}).assignments
    assert (a.operator, a.reduction, a.start, a.tiled, show(a.value)) == ("=", (), None, (), value)


def test_results_without_terms_are_assignments() -> None:
    text = "def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n,k) +=! A(m,k) * B(k,n) }"
    (a,) = tiled(text, {"A": (20, 5), "B": (5, 30)}).assignments
    assert (a.operator, a.start, a.tiled, show(a.value)) == ("=", None, (), "0.0 + A(m, k) * B(k, n)")


def test_long_sums_keep_their_digits_before_an_epilogue() -> None:
    """Blocks of terms are summed apart, whether the result itself is stored or only what is computed from it."""
    x, w = torch.randn(32, 5000), torch.randn(200, 5000)
    text = "def f(float(N,K) X, float(O,K) W) -> ({}) {{ P(n,o) +=! X(n,k) * W(o,k)  Y(n,o) = P(n,o) * 2.0 }}"
    alone = tcjit.define(text.format("Y")).f.compile(x, w)
    both = tcjit.define(text.format("P, Y")).f.compile(x, w)
    # blocks wait for one another in an array of their tile, or in a tensor where they are the outer loop
    assert "tc_s[" in alone.source or alone.resources["workspace"] >= 4 * 32 * 200
    assert alone.resources["workspace"] == both.resources["workspace"] and torch.equal(alone(x, w), both(x, w)[0] * 2)


def test_conditions_on_indices_go_before_those_on_data() -> None:
    """The gradient of a pool with stride 2: residue classes, in which only the comparison is left."""
    text = """def f(float(C,H) X, float(C,P) Y, float(C,P) g) -> (Z) {
        Z(c,h) +=! (h - i) % 2 == 0 && h - i >= 0 && h - i < 2 * P && X(c,h) == Y(c, (h - i) / 2) ? g(c, (h - i) / 2) : 0.0 where i in 0:3
    }"""
    x, y, g = torch.randint(0, 3, (20, 61)).float(), torch.randint(0, 3, (20, 29)).float(), torch.randn(20, 29)
    kernel = tcjit.define(text).f.compile(x, y, g)
    assert len(kernel.resources["reductions"]) == 2 and all("register tile" in nest for nest in kernel.resources["reductions"])
    expected = torch.zeros(20, 61)
    for h, i in ((h, i) for h in range(61) for i in range(3)):
        if (h - i) % 2 == 0 and 0 <= h - i < 58:
            expected[:, h] += torch.where(x[:, h] == y[:, (h - i) // 2], g[:, (h - i) // 2], 0)
    torch.testing.assert_close(kernel(x, y, g), expected)


@pytest.mark.parametrize(("result", "place"), [("T(n,f,y,x)", "T"), ("T(n,y,x,f)", "C")])
def test_sums_wait_in_the_place_of_what_follows_them(result: str, place: str) -> None:
    """Where that has their order: blocks of channels stand outside, and no panel of all of them has to stay in the cache."""
    text = f"""def f(float(N,D,H,W) X, float(F,D,5,5) K, float(F) B) -> (T) {{
        C(n,f,y,x) +=! X(n,c,y+i,x+j) * K(f,c,i,j)
        {result} = relu(C(n,f,y,x) + B(f))
    }}"""
    (definition,) = read(text)
    program = specialise(definition, {"X": (1, 232, 16, 16), "K": (64, 232, 5, 5), "B": (64,)}, {})
    (one,) = (one for s in map_program(program, Options(), AVX512).scop.statements for one in s.tiled)
    assert (one.statement.write.tensor, one.has_results_in_blocks) == (place, place == "T") and one.show().startswith("C: ")
    x, k, b = torch.randn(1, 232, 16, 16), torch.randn(64, 232, 5, 5), torch.randn(64)
    expected = torch.nn.functional.conv2d(x.double(), k.double(), b.double()).relu()
    found = tcjit.define(text).f(x, k, b).double()
    torch.testing.assert_close(found if place == "T" else found.permute(0, 3, 1, 2), expected, rtol=1e-4, atol=1e-3)
