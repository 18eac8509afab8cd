"""Dot products of bytes and halves, whatever the processor at hand has: what they are made of, and what they come to, bit for bit.

Modules: mapping.nest.form_dot_products mapping.nest.narrow_factors
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.mapping import AVX512, program
from support.nests import Shapes, assignments

import tcjit
from tcjit.codegen.c import emit_c
from tcjit.codegen.dialect import C
from tcjit.grammar.printer import show
from tcjit.mapping.assignment import Temporaries
from tcjit.mapping.machine import Machine
from tcjit.mapping.nest import cost
from tcjit.mapping.nest.form_dot_products import DotProducts, form_dot_products
from tcjit.mapping.nest.narrow_factors import with_conditions_inside
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import map_program
from tcjit.runtime import host

BYTES = replace(AVX512, dot_ways=4)
NN = "def f(int8(M,K) X, int8(K,N) Y) -> (O) { O(m,n) +=! int32(X(m,k)) * int32(Y(k,n)) }"
ENDS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-(1 << 15), (1 << 15) - 1)}


def formed(text: str, shapes: Shapes, ways: int = 4, *, panels: bool = True) -> DotProducts:
    before = assignments(text, shapes)
    return form_dot_products(before.assignments[-1], Temporaries(before), replace(AVX512, dot_ways=ways), panels=panels)


def computed(text: str, arrays: Sequence[np.ndarray], folder: Path, flags: Sequence[str] = (), **options: Any) -> tuple[np.ndarray, str]:
    """The first result of a kernel for a processor with instructions for bytes, and its text."""
    names = "XYZ"[: len(arrays)]
    read = program(text, {name: array.shape for name, array in zip(names, arrays, strict=True)})
    mapped = map_program(read, Options(**options), BYTES)
    source = emit_c(mapped, C, BYTES, checked=True)
    (folder / "kernel.so").write_bytes(host.build(source.text, source.symbol, flags))
    function = getattr(ctypes.CDLL(str(folder / "kernel.so")), source.symbol)
    result = np.zeros(mapped.scop.tensor("O").shape, np.int32)
    workspace = np.zeros(source.workspace + 64, np.uint8)
    pointers = (ctypes.c_void_p * (1 + len(arrays)))(*(array.ctypes.data for array in (result, *arrays)))
    place = -(-workspace.ctypes.data // 64) * 64
    assert function(pointers, (ctypes.c_int64 * 8)(), ctypes.c_void_p(place), 1) == 0
    kernel = source.text.partition(f"int64_t {source.symbol}(")[2]
    return result, "\n".join([*source.functions, kernel])


def filled(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Over all of a type's range, half of them its ends."""
    random, (least, greatest) = np.random.default_rng(seed), ENDS[dtype]
    ends = random.choice([least, greatest], shape)
    return np.where(random.random(shape) < 0.5, ends, random.integers(least, greatest + 1, shape)).astype(dtype)


def wrapped(exact: np.ndarray) -> np.ndarray:
    return exact.astype(np.uint64).astype(np.uint32).view(np.int32)


# ---------------------------------------------------------------- what is made


def test_signed_bytes_start_from_a_sum_over_the_smaller_factor() -> None:
    made = formed(NN, {"X": (40, 64), "Y": (64, 100)})
    assert show(made.assignment.value).startswith("dot4(flip_signs(pack(Y(") and made.assignment.bounds[-1] == ("k", 0, 16)
    (total,) = made.sums
    assert total.tensor == "X_sums" and total.bounds == (("m", 0, 40), ("k", 0, 16)) and total.reduction == ("k",)
    assert show(total.value).startswith("dot4(16843009, adjacent(X(")
    assert made.assignment.start is not None and show(made.assignment.start) == "0 + X_sums(m) * -128"


@pytest.mark.parametrize(
    ("factors", "sums", "start"),
    [
        (("uint8(M,K) X", "int8(K,N) Y", "int32(X(m,k)) * int32(Y(k,n))"), [], "0"),
        (("int8(M,K) X", "uint8(K,N) Y", "int32(X(m,k)) * int32(Y(k,n))"), [], "0"),
        (("uint8(M,K) X", "uint8(K,N) Y", "int32(X(m,k)) * (int32(Y(k,n)) - 128)"), [], "0"),
        (("uint8(M,K) X", "int8(K,N) Y", "(int32(X(m,k)) - 7) * int32(Y(k,n))"), ["Y"], "0 + Y_sums(n) * -7"),
        (("uint8(M,K) X", "int8(K,N) Y", "int32(X(m,k)) * (3 + int32(Y(k,n)))"), ["X"], "0 + X_sums(m) * 3"),
        (
            ("uint8(M,K) X", "int8(K,N) Y", "(int32(X(m,k)) - 7) * (int32(Y(k,n)) - 2)"),
            ["Y", "X"],
            "896 + Y_sums(n) * -7 + X_sums(m) * -2",
        ),
    ],
)
def test_constants(factors: tuple[str, str, str], sums: list[str], start: str) -> None:
    """x + p and y + q are bytes: what they add to the product is taken away again."""
    one, two, value = factors
    made = formed(f"def f({one}, {two}) -> (O) {{ O(m,n) +=! {value} }}", {"X": (20, 64), "Y": (64, 30)})
    assert [total.tensor for total in made.sums] == [f"{name}_sums" for name in sums]
    assert made.assignment.start is not None and show(made.assignment.start) == start


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        (NN, 4),
        (NN.replace("int8(M,K)", "int16(M,K)"), 2),
        (NN.replace("int32(X(m,k))", "(0 - int32(X(m,k)))"), 2),
        (NN.replace("+=!", "+=").replace("{", "{ O(m,n) = 1 where m in 0:M, n in 0:N ", 1), 2),
        (NN.replace("int32(X(m,k)) * int32(Y(k,n))", "(m <= n ? int32(X(m,k)) * int32(Y(k,n)) : 0)"), 2),
        (NN.replace("int8(M", "uint8(M").replace("int32(X(m,k)) * int32(Y(k,n))", "(m <= n ? int32(X(m,k)) * int32(Y(k,n)) : 0)"), 4),
        (NN.replace("int32(X(m,k)) * int32(Y(k,n))", "int32(X(m,k)) + int32(Y(k,n))"), 0),
        (NN.replace("int32(X", "int64(X").replace("int32(Y", "int64(Y"), 0),
        (NN.replace("O(m,n) +=! int32(X(m,k))", "O(m,n) max=! int32(X(m,k))"), 0),
    ],
)
def test_how_many_terms(text: str, ways: int) -> None:
    """Sums over a factor are the same for all results: not where conditions choose among the terms, nor where results hold something."""
    made = formed(text, {"X": (20, 64), "Y": (64, 30)})
    assert show(made.assignment.value).count("dot4(") == (ways == 4) and show(made.assignment.value).count("dot2(") == (ways == 2)


def test_few_terms_and_few_uses() -> None:
    assert "dot2(" in show(formed(NN, {"X": (20, 2), "Y": (2, 30)}).assignment.value)
    once = "def f(int8(M,K) X, int8(M,K) Y) -> (O) { O(m) +=! int32(X(m,k)) * int32(Y(m,k)) }"
    before = assignments(once, {"X": (20, 64), "Y": (20, 64)}).assignments[-1]
    assert formed(once, {"X": (20, 64), "Y": (20, 64)}).assignment == before
    few: Shapes = {"X": (2, 64), "Y": (64, 64)}
    assert formed(NN, few, 2).assignment == assignments(NN, few).assignments[-1]
    assert "dot4(" in show(formed(NN, {"X": (1, 64), "Y": (64, 64)}).assignment.value)


def test_whole_tensors_in_groups() -> None:
    """Where windows share what they read, and where a sum is to be cut in chunks."""
    made = formed(NN, {"X": (20, 65), "Y": (65, 30)}, panels=False)
    assert [(copy.tensor, copy.bounds[-1][2], copy.bounds[0][2]) for copy in made.copies] == [("Y_groups", 30, 17), ("X_groups", 17, 20)]
    assert show(made.assignment.value) == "dot4(Y_groups(k, n), X_groups(m, k))"
    window = "def f(uint8(N,C,W) X, int8(F,C,J) Y) -> (O) { O(n,f,w) +=! int32(X(n,c,w+j)) * int32(Y(f,c,j)) }"
    made = formed(window, {"X": (3, 8, 20), "Y": (9, 8, 3)})
    assert [copy.tensor for copy in made.copies] == ["X_groups"] and not made.sums


@pytest.mark.parametrize(
    ("value", "inside"),
    [
        ("(i > 0 ? int32(X(i)) : 0)", "int32(i > 0 ? X(i) : 0)"),
        ("(i > 0 ? int32(X(i)) - 255 : 0)", "int32(i > 0 ? X(i) : 255) - 255"),
        ("(i > 0 ? int32(X(i)) - 256 : 0)", None),
        ("(i > 0 ? int32(X(i)) + 1 : 0)", None),
        ("(i > 0 ? int32(X(i)) : 1)", None),
        ("(i > 0 ? int32(X(i)) * 2 : 0)", None),
        ("(i > 0 ? int32(X(i)) + int32(X(i - 1)) : 0)", None),
    ],
)
def test_conditions_inside(value: str, inside: str | None) -> None:
    (a,) = assignments(f"def f(uint8(N) X) -> (O) {{ O(i) = {value} where i in 0:N }}", {"X": (9,)}).assignments
    assert show(with_conditions_inside(a.value)) == (inside or show(a.value))
    assert with_conditions_inside(a.value).dtype == "int32"


# ---------------------------------------------------------------- what it comes to

PRODUCTS: dict[str, tuple[str, Sequence[tuple[str, tuple[int, ...]]], Callable[..., Any]]] = {
    "nn": (NN, [("int8", (19, 41)), ("int8", (41, 37))], np.matmul),
    "nt, unsigned both": (
        "def f(uint8(M,K) X, uint8(N,K) Y) -> (O) { O(m,n) +=! int32(X(m,k)) * int32(Y(n,k)) }",
        [("uint8", (50, 39)), ("uint8", (70, 39))],
        lambda x, y: x @ y.T,
    ),
    "tn, constants on both": (
        "def f(uint8(K,M) X, int8(K,N) Y) -> (O) { O(m,n) +=! (int32(X(k,m)) - 200) * (int32(Y(k,n)) + 5) }",
        [("uint8", (66, 70)), ("int8", (66, 33))],
        lambda x, y: (x.T - 200) @ (y + 5),
    ),
    "tt, batched": (
        "def f(int8(B,K,M) X, int8(B,N,K) Y) -> (O) { O(b,m,n) +=! int32(X(b,k,m)) * int32(Y(b,n,k)) }",
        [("int8", (3, 21, 18)), ("int8", (3, 40, 21))],
        lambda x, y: x.swapaxes(1, 2) @ y.swapaxes(1, 2),
    ),
    "one row": (NN, [("int8", (1, 130)), ("int8", (130, 37))], np.matmul),
    "lanes of terms": (
        "def f(int8(M,K) X, uint8(N,K) Y) -> (O) { O(m,n) +=! (int32(X(m,k)) + 1) * int32(Y(n,k)) }",
        [("int8", (3, 403)), ("uint8", (2, 403))],
        lambda x, y: (x + 1) @ y.T,
    ),
    "sums that wrap, in chunks": (NN, [("int8", (3, 140001)), ("int8", (140001, 5))], np.matmul),
    "a term of one factor": (
        "def f(int8(M,K,L) X, int8(K,N) Y) -> (O) { O(m,n) +=! int32(X(m,k,l)) * int32(Y(k,n)) }",
        [("int8", (9, 13, 3)), ("int8", (13, 40))],
        lambda x, y: np.einsum("mkl,kn->mn", x, y),
    ),
    "one tensor": (
        "def f(int8(M,K) X) -> (O) { O(m,n) +=! int32(X(m,k)) * int32(X(n,k)) where n in 0:M }",
        [("int8", (40, 23))],
        lambda x: x @ x.T,
    ),
    "triangular": (
        "def f(uint8(M,K) X, int8(K,N) Y) -> (O) { O(m,n) +=! (n <= m ? int32(X(m,k)) * int32(Y(k,n)) : 0) }",
        [("uint8", (33, 22)), ("int8", (22, 40))],
        lambda x, y: np.tril(x @ y),
    ),
    "windows with strides": (
        "def f(int8(N,C,W) X, int8(F,C,J) Y) -> (O) { O(n,f,w) +=! int32(X(n,c,2*w+j)) * int32(Y(f,c,j)) where w in 0:19 }",
        [("int8", (2, 6, 41)), ("int8", (5, 6, 3))],
        lambda x, y: np.einsum("ncwj,fcj->nfw", np.lib.stride_tricks.sliding_window_view(x, 3, axis=2)[:, :, :38:2], y),
    ),
    "strides without windows": (
        "def f(int8(N,C,W) X, int8(F,C) Y) -> (O) { O(n,f,w) +=! int32(X(n,c,2*w+1)) * int32(Y(f,c)) where w in 0:19 }",
        [("int8", (2, 6, 41)), ("int8", (5, 6))],
        lambda x, y: np.einsum("ncw,fc->nfw", x[:, :, 1:39:2], y),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_values(name: str, tmp_path: Path) -> None:
    text, kinds, reference = PRODUCTS[name]
    arrays = [filled(dtype, shape, seed) for seed, (dtype, shape) in enumerate(kinds)]
    found, body = computed(text, arrays, tmp_path)
    expected = wrapped(reference(*(array.astype(np.int64) for array in arrays)))
    np.testing.assert_array_equal(found.reshape(expected.shape), expected)  # axes may be merged
    assert "tc_dot4_" in body and "tc_dot2_" not in body


def test_what_people_see() -> None:
    read = program(NN, {"X": (20, 40), "Y": (40, 30)})
    for ways in (2, 4):
        assert map_program(read, Options(), replace(AVX512, dot_ways=ways)).reductions[-1].endswith(f", dot{ways}")


@pytest.mark.parametrize("options", [{"vector_width": 4}, {"pack": False}, {"register_tile": (3, 1)}], ids=str)
@pytest.mark.parametrize("name", ["nn", "tn, constants on both"])
def test_options(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    text, kinds, reference = PRODUCTS[name]
    arrays = [filled(dtype, shape, seed) for seed, (dtype, shape) in enumerate(kinds)]
    found, _ = computed(text, arrays, tmp_path, **options)
    np.testing.assert_array_equal(found, wrapped(reference(*(array.astype(np.int64) for array in arrays))))


def test_without_instructions_for_bytes(tmp_path: Path) -> None:
    """The same text, compiled for another processor."""
    arrays = [filled("int8", shape, seed) for seed, shape in enumerate([(19, 41), (41, 37)])]
    flags = ["-mno-avx512vnni", "-mno-avx512f"] if "avx512f" in host.cpu_features() else []
    found, body = computed(NN, arrays, tmp_path, flags)
    np.testing.assert_array_equal(found, wrapped(arrays[0].astype(np.int64) @ arrays[1].astype(np.int64)))
    assert "tc_dot4_" in body


def test_long_sums_in_blocks_of_their_terms(tmp_path: Path) -> None:
    """Results start from a sum over a factor in the first block alone."""
    arrays = [filled("int8", shape, seed) for seed, shape in enumerate([(70, 30001), (30001, 90)])]
    found, body = computed(NN, arrays, tmp_path)
    np.testing.assert_array_equal(found, wrapped(arrays[0].astype(np.int64) @ arrays[1].astype(np.int64)))
    assert "== 0) {" in body and "} else {" in body


# ---------------------------------------------------------------- bfloat16

BFLOATS = replace(AVX512, bfloat16_dots=True)


@pytest.fixture
def fast_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor whose instruction for them takes as long as a multiply-add."""
    monkeypatch.setattr(cost, "BFLOAT16_DOT", 1.0)
PAIRS = "def f(bfloat16(M,K) X, bfloat16(K,N) Y) -> (O) { O(m,n) +=! X(m,k) * Y(k,n) }"
WINDOWS = """
def f(bfloat16(N,C,H) X, bfloat16(F,C,I) Y) -> (O) {
    O(n,f,h) +=! (h + i >= 1 && h + i <= H ? X(n,c,h+i-1) : 0) * Y(f,c,i) where h in 0:H
}
"""


def reductions(text: str, shapes: Shapes, machine: Machine) -> list[str]:
    return list(map_program(program(text, shapes), Options(), machine).reductions)


@pytest.mark.parametrize(
    ("text", "shapes", "pairs"),
    [
        (PAIRS, {"X": (100, 64), "Y": (64, 96)}, True),
        (PAIRS.replace("(K,N)", "(N,K)").replace("(k,n)", "(n,k)"), {"X": (100, 65), "Y": (96, 65)}, True),
        (PAIRS, {"X": (2, 64), "Y": (64, 96)}, False),  # too few uses of an element
        (PAIRS.replace("bfloat16", "half"), {"X": (100, 64), "Y": (64, 96)}, False),
        (PAIRS.replace("* Y", "+ Y"), {"X": (100, 64), "Y": (64, 96)}, False),
        (PAIRS, {"X": (100, 1), "Y": (1, 96)}, False),
    ],
)
def test_pairs_of_bfloat16(text: str, shapes: Shapes, pairs: bool, fast_pairs: None) -> None:
    """Where the machine has a fast instruction for them, and the model says that their copies pay."""
    assert any(line.endswith(", dot2") for line in reductions(text, shapes, BFLOATS)) is pairs
    assert not any("dot2" in line for line in reductions(text, shapes, AVX512))


@pytest.mark.parametrize("flags", [[], ["-mno-avx512bf16"]], ids=["own", "plain"])
@pytest.mark.parametrize("terms", [2, 64, 67, 1500])
def test_sums_of_pairs_of_bfloat16(terms: int, flags: list[str], tmp_path: Path, fast_pairs: None) -> None:
    """Exact where sums of integers fit into a float32, whatever the processor has; special values stay what they are."""
    if "avx512f" not in host.cpu_features():
        flags = []
    random = np.random.default_rng(terms)
    x, y = random.integers(-16, 17, (40, terms)), random.integers(-16, 17, (terms, 50))
    exact = (x @ y).astype(np.float32)
    given = [torch.from_numpy(a).to(torch.bfloat16) for a in (x, y)]
    given[0][3, 1], given[0][5, 0] = float("nan"), float("inf")
    text = PAIRS.replace("X(m,k) * Y(k,n)", "float(X(m,k)) * float(Y(k,n))")
    mapped = map_program(program(text, {"X": (40, terms), "Y": (terms, 50)}), Options(), BFLOATS)
    assert any("dot2" in line for line in mapped.reductions)
    source = emit_c(mapped, C, BFLOATS, checked=True)
    (tmp_path / "kernel.so").write_bytes(host.build(source.text, source.symbol, flags))
    function = getattr(ctypes.CDLL(str(tmp_path / "kernel.so")), source.symbol)
    result, workspace = np.zeros((40, 50), np.float32), np.zeros(source.workspace + 64, np.uint8)
    pointers = (ctypes.c_void_p * 3)(result.ctypes.data, *(one.data_ptr() for one in given))
    assert function(pointers, (ctypes.c_int64 * 8)(), ctypes.c_void_p(-(-workspace.ctypes.data // 64) * 64), 1) == 0
    special = np.isin(np.arange(40), (3, 5))
    np.testing.assert_array_equal(result[~special], exact[~special])
    wide = [one.double().numpy() for one in given]
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(result[special], (wide[0] @ wide[1])[special].astype(np.float32))


def test_padded_windows_of_bfloat16() -> None:
    """Through the whole compiler, on what this processor has."""
    random = np.random.default_rng(0)
    x, y = (torch.from_numpy(random.integers(-8, 9, shape)).to(torch.bfloat16) for shape in ((3, 20, 40), (32, 20, 3)))
    result = tcjit.define(WINDOWS).f(x, y)
    expected = torch.nn.functional.conv1d(x.float(), y.float(), padding=1).to(torch.bfloat16)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
