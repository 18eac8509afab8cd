"""Dimensions that are divided by constants: what they are split into, in reductions and in copies.

Modules: mapping.nest.strip_mine mapping.passes.strip_mine_copies mapping.passes.strip_mine_products
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.mapping import AVX512, program

import tcjit
from tcjit.errors import VerifyError
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.machine import SM_90
from tcjit.mapping.nest.strip_mine import Strip, split_divisions
from tcjit.mapping.options import Options
from tcjit.mapping.passes.strip_mine_copies import strip_mine_copies
from tcjit.mapping.passes.strip_mine_products import strip_mine_products
from tcjit.mapping.verify_assignments import verify_assignments

UNFOLD = "Y(p,l) = Z(p/9, l/(W - 2) + p/3%3, l%(W - 2) + p%3) where p in 0:9*C, l in 0:(H - 2)*(W - 2)"


def of(text: str, width: int = 34) -> Assignments:
    shapes = {"X": (5, 9), "Y": (4, 9, 33), "Z": (6, 8, width)}
    return extract(program(f"def f(float(A,K) X, float(B,K,N) Y, float(C,H,W) Z) -> (O) {{ {text} }}", shapes))


def split(text: str) -> tuple[Assignment, Assignment, list[Strip]]:
    before = of(text)
    return before.assignments[0], *split_divisions(before.assignments[0], before.values)


def test_quotients_and_rests_are_indices() -> None:
    _, a, (strip,) = split("O(i,n) +=! X(i/4,k) * Y(i%4,k,n) where i in 0:20")
    assert a.show() == (
        "O(4 * i_block + i, n) += X(i_block, k) * Y(i, k, n) from 0.0 where i_block in 0:5, i in 0:4, n in 0:33, k in 0:9"
    )
    assert (strip.dim, strip.outer, strip.block) == ("i", "i_block", 4)


def test_quotients_of_rests_are_split_again() -> None:
    text = UNFOLD.replace("Y", "O").replace("W - 2", "32").replace("H - 2", "6")
    _, a, strips = split(text)
    assert [(s.dim, s.block) for s in strips] == [("l", 32), ("p", 9), ("p", 3)]
    assert a.show().startswith("O(9 * p_block + (3 * p_block1 + p), 32 * l_block + l) = Z(p_block, l_block + p_block1, l + p)")


def test_conditions_divide_terms_as_well() -> None:
    _, a, strips = split("O(i,n) +=! k/3 <= i/4 ? X(0,k) * Y(0,k,n) : 0.0 where i in 0:18")
    assert [(s.dim, s.block) for s in strips] == [("i", 4), ("k", 3)] and a.reduction == ("k_block", "k")
    assert a.show() == (
        "O(4 * i_block + i, n) += k_block <= i_block ? X(0, 3 * k_block + k) * Y(0, 3 * k_block + k, n) : 0.0 from 0.0"
        " where i_block in 0:5, i in 0:4, n in 0:33, k_block in 0:3, k in 0:3"
    )
    assert a.constraints == ("4 * i_block + i < 18",)
    _, a, strips = split("O(i,n) +=! k % 3 < i % 2 ? X(0,k) * Y(0,k,n) : 0.0 where i in 0:18")
    assert [(s.dim, s.block) for s in strips] == [("k", 3), ("i", 2)] and "k < i ?" in a.show()
    assert split("O(i,n) +=! k % 3 == i % 3 ? X(0,k) * Y(0,k,n) : 0.0 where i in 0:18")[2] == [], "residue classes"


@pytest.mark.parametrize(
    "text",
    [
        "O(i,n) +=! X(i/4,k) * Y(0,k,n) where i in 0:18",  # the last block would be shorter
        "O(i,n) +=! X((i+1)/4,k) * Y(0,k,n) where i in 0:16",
        "O(n) +=! X(k/3,k) * Y(0,k,n)",  # a term
        "O(i,n) +=! X(i,k) * Y(0,k,n)",
    ],
)
def test_what_stays(text: str) -> None:
    a, same, strips = split(text)
    assert same == a and not strips


def copied(text: str, width: int = 34) -> tuple[Assignments, Assignments]:
    before = of(text.replace("Y", "O"), width)
    after = strip_mine_copies(before, AVX512)
    verify_assignments("strip_mine_copies", before, after)
    return before, after


@pytest.mark.parametrize(("text", "width", "dims"), [
    (UNFOLD, 34, ["p_block", "p_block1", "p", "l_block", "l"]),
    (UNFOLD, 9, ["p", "l"]),  # rows of 7 fill no vector
    ("Y(c,h,w) = Z(c, h/2, w) where c in 0:C, h in 0:2*H, w in 0:W", 9, ["c", "h_block", "h", "w"]),  # rows stay as they are
    ("Y(c,h,w) = Z(c, h, w/2) where c in 0:C, h in 0:H, w in 0:2*W", 9, ["c", "h", "w"]),
])  # fmt: skip
def test_copies_have_rows_that_fill_vectors(text: str, width: int, dims: list[str]) -> None:
    assert list(copied(text, width)[1].assignments[0].dims) == dims


@pytest.mark.parametrize("change", [
    lambda a: replace(a, bounds=tuple((n, low, up - (n == "p_block1")) for n, low, up in a.bounds)),
    lambda a: replace(a, subscripts=(a.subscripts[0], a.subscripts[0])),
    lambda a: replace(a, value=replace(a.value, subscripts=(*a.value.subscripts[:2], a.value.subscripts[1]))),
    lambda a: replace(a, operator="+="),
    lambda a: replace(a, bounds=(*a.bounds, ("again", 0, 2))),
])  # fmt: skip
def test_wrong_digits_are_refused(change: object) -> None:
    before, after = copied(UNFOLD)
    assert callable(change)
    with pytest.raises(VerifyError, match="strip_mine_copies: statement 1 of f"):
        verify_assignments("strip_mine_copies", before, before.with_parts([[change(after.assignments[0])]]))


@pytest.mark.parametrize(("text", "dims"), [
    ("O(i,n) +=! X(i,k) * Y(i/8,k,n)", ["i_block", "i", "n", "k"]),
    ("O(i,n) +=! (k > n) ? X(i,k) * Y(i/8,k,n) : 0.0", ["i_block", "i", "n", "k"]),
    ("O(i,n) +=! X(i,k) * Y(i/8,k,n) where n in 0:40", ["i", "n", "k"]),  # too few columns to pay
    ("O(m,i,n) +=! X(m,k) * Y(i/8,k,n) where i in 0:64", ["m", "i", "n", "k"]),  # has two sides already
    ("O(i) +=! X(0,k) * Y(i/8,k,0) where i in 0:64", ["i", "k"]),  # would have one
    ("O(i,n) max=! X(i,k) * Y(i/8,k,n)", ["i", "n", "k"]),
])  # fmt: skip
def test_products_have_digits_that_make_a_tile(text: str, dims: list[str]) -> None:
    shapes = {"X": (64, 128), "Y": (8, 128, 2000)}
    before = extract(program(f"def f(float(A,K) X, float(B,K,N) Y) -> (O) {{ {text} }}", shapes))
    after = strip_mine_products(before, Options(), SM_90)
    verify_assignments("strip_mine_products", before, after)
    assert list(after.assignments[0].dims) == dims


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_unfold(target: str) -> None:
    x = torch.arange(2.0 * 3 * 7 * 20).reshape(2, 3, 7, 20)
    text = """def unfold(float(N,C,H,W) X) -> (Y) {
        Y(n,p,l) = X(n, p/9, l/(W - 2) + p/3%3, l%(W - 2) + p%3) where p in 0:9*C, l in 0:(H - 2)*(W - 2)
    }"""
    assert torch.equal(tcjit.define(text, target=target).unfold(x), torch.nn.functional.unfold(x, 3))


@pytest.mark.parametrize("dtype", ["float", "bfloat16"])
def test_queries_in_groups_share_loops_over_digits(dtype: str) -> None:
    """Heads, which keys and values divide by 4, are two loops around all statements."""
    text = f"""def attention({dtype}(H,T,D) Q, {dtype}(G,S,D) K, {dtype}(G,S,D) V) -> (O) {{
        P(h,t,s) +=! Q(h,t,d) * K(h/4,s,d)
        E(h,t,s) = exp(P(h,t,s))
        Z(h,t) +=! E(h,t,s)
        O(h,t,d) +=! E(h,t,s) * V(h/4,s,d)
        O(h,t,d) = O(h,t,d) / Z(h,t)
    }}"""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (0.2 * torch.randn(*shape, generator=generator) for shape in ((16, 256, 64), (4, 512, 64), (4, 512, 64)))
    args = [each.to(getattr(torch, dtype)) for each in (q, k, v)]
    kernel = tcjit.compile(text, "attention", *args)
    shared = any("outer loops h_block h" in line for line in kernel.resources["reductions"])
    assert shared or dtype == "bfloat16"
    wide = [each.repeat_interleave(16 // each.shape[0], 0).double() for each in args]
    expected = (wide[0] @ wide[1].mT).softmax(-1) @ wide[2]
    error = 1e-4 if dtype == "float" else 1e-2
    torch.testing.assert_close(kernel(*args).double(), expected, rtol=error, atol=error)
