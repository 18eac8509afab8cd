"""Copies with borders that repeat, reflect or go round: their linear pieces, what stays, that faults are found, and the numbers.

Modules: mapping.linear_pieces mapping.passes.split_copies mapping.verify_subscripts
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from support.mapping import AVX512, program

import tcjit
from tcjit.errors import VerifyError
from tcjit.grammar.ast import Binary, Call, Const, Expr, Index, Select, Unary
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.linear_pieces import linear_pieces
from tcjit.mapping.passes.pad_operands import pad_operands
from tcjit.mapping.passes.split_copies import split_copies
from tcjit.mapping.verify_assignments import verify_assignments

PLACES = {
    "circular": ("(h + r + H - 1) % H", "(w + s + W - 1) % W"),
    "replicate": ("min(max(h + r - 1, 0), H - 1)", "min(max(w + s - 1, 0), W - 1)"),
    "reflect": (
        "abs(h + r - 1) < H ? abs(h + r - 1) : 2*H - 2 - abs(h + r - 1)",
        "abs(w + s - 1) < W ? abs(w + s - 1) : 2*W - 2 - abs(w + s - 1)",
    ),
}


def text(mode: str) -> str:
    return f"""def f(float(N,C,H,W) X, float(F,C,3,3) K) -> (Y) {{
        Y(n,f,h,w) +=! X(n,c,{",".join(PLACES[mode])}) * K(f,c,r,s) where h in 0:H, w in 0:W, r in 0:3, s in 0:3 }}"""


def split(source: str, shapes: dict[str, tuple[int, ...]]) -> tuple[Assignments, Assignments]:
    before = pad_operands(extract(program(source, shapes)), AVX512)
    after = split_copies(before)
    verify_assignments("split_copies", before, after)
    return before, after


@pytest.mark.parametrize("mode", PLACES)
def test_pieces_of_rows(mode: str) -> None:
    _, after = split(text(mode), {"X": (2, 8, 20, 19), "K": (16, 8, 3, 3)})
    value = after.assignments[0].value
    assert isinstance(value, Select) and isinstance(value.other, Select)
    lanes = [piece.subscripts[3] for piece in (value.then, value.other.then, value.other.other)]  # type: ignore[attr-defined]
    assert not [part for part in lanes if isinstance(part, (Call, Select)) or isinstance(part, Binary) and part.op in "/%"]


@pytest.mark.parametrize("mode", PLACES)
@pytest.mark.parametrize("size", [(5, 4), (20, 19), (64, 65)])
def test_numbers(mode: str, size: tuple[int, int]) -> None:
    x, k = torch.randn(2, 3, *size), torch.randn(4, 3, 3, 3)
    padded = torch.nn.functional.pad(x.double(), (1, 1, 1, 1), mode=mode)
    wanted = torch.nn.functional.conv2d(padded, k.double())
    torch.testing.assert_close(tcjit.define(text(mode), target="cpu").f(x, k).double(), wanted, rtol=1e-5, atol=1e-5)


def test_what_has_more_pieces_stays() -> None:
    source = "def f(float(C,W) X, float(F,C,R) K) -> (Y) { Y(f,w) +=! X(c,(w + r) % 7) * K(f,c,r) where w in 0:40 }"
    before, after = split(source, {"X": (8, 7), "K": (16, 8, 3)})
    assert after.assignments == before.assignments and any("padded" in a.tensor for a in after.assignments)


@pytest.mark.parametrize("subscript", ["(a + 1) % 3", "min(a + 1, 2)", "max(a - 1, 0)"])
@pytest.mark.parametrize("uses", ["T(e, a) * T(e, a)", "T(e, a) + T(e, 2 - a)"])
def test_subscripts_that_are_data_stay(subscript: str, uses: str) -> None:
    """What picks an element of another tensor is read where that is, and is no row that is copied."""
    text = f"def f(float(V,2) P, int32(E,3) Corner) -> (Y) {{ T(e, a) = P(Corner(e, {subscript}), 1) where a in 0:3  Y(e) +=! {uses} }}"
    generator = torch.Generator().manual_seed(0)
    p, corner = torch.randn(20, 2, generator=generator), torch.randint(20, (31, 3), generator=generator, dtype=torch.int32)
    picks = {"(a + 1) % 3": [1, 2, 0], "min(a + 1, 2)": [1, 2, 2], "max(a - 1, 0)": [0, 0, 1]}[subscript]
    t = p[corner[:, picks].long(), 1]
    expected = (t * t if "*" in uses else t + t.flip(1)).sum(1)
    torch.testing.assert_close(tcjit.define(text).f(p, corner), expected, rtol=1e-5, atol=1e-5)


def test_faults_are_found() -> None:
    before, after = split(text("circular"), {"X": (2, 8, 20, 19), "K": (16, 8, 3, 3)})
    copy = after.assignments[0]
    assert isinstance(copy.value, Select) and isinstance(copy.value.condition, Binary)
    later = replace(copy.value, condition=replace(copy.value.condition, right=Const(1, dtype="int64")))
    for wrong in (later, replace(copy.value, then=copy.value.other), copy.value.other):
        with pytest.raises(VerifyError, match="split_copies"):
            faulty = [[replace(copy, value=wrong)], *([a] for a in before.assignments[1:])]
            verify_assignments("split_copies", before, before.with_parts(faulty))


def expression(rng: random.Random, depth: int) -> Expr:
    """An expression of ``i``, drawn at random."""
    kind = rng.randint(0, 7) if depth else rng.randint(0, 1)
    if kind == 0:
        return Index("i", dtype="int64")
    if kind == 1:
        return Const(rng.randint(-9, 30), dtype="int64")
    one, two = expression(rng, depth - 1), expression(rng, depth - 1)
    match kind:
        case 2:
            return Unary("-", one, dtype="int64")
        case 3:
            return Call("abs", (one,), dtype="int64")
        case 4 | 5:
            return Binary(rng.choice("+-"), one, two, dtype="int64")
        case 6:
            return Binary(rng.choice("/%"), one, Const(rng.randint(1, 20), dtype="int64"), dtype="int64")
        case 7:
            return Call(rng.choice(["min", "max"]), (one, two), dtype="int64")
    return one


def choice(rng: random.Random, depth: int) -> Expr:
    """One of several such expressions, or of choices."""
    condition = Binary(rng.choice(["<", "<=", ">", ">="]), expression(rng, 2), expression(rng, 2), dtype="bool")
    arms = (choice(rng, depth - 1) if depth and rng.random() < 0.3 else expression(rng, 3) for _ in range(2))
    return Select(condition, *arms, dtype="int64")


def value_of(expr: Expr, i: int) -> int:
    match expr:
        case Index():
            return i
        case Const():
            return int(expr.value)
        case Unary():
            return -value_of(expr.operand, i)
        case Select():
            return value_of(expr.then if value_of(expr.condition, i) else expr.other, i)
        case Call():
            args = [value_of(arg, i) for arg in expr.args]
            return abs(args[0]) if expr.function == "abs" else min(args) if expr.function == "min" else max(args)
        case Binary():
            left, right = value_of(expr.left, i), value_of(expr.right, i)
            if expr.op in "/%":
                return left // right if expr.op == "/" else left % right
            if expr.op in "+-":
                return left + right if expr.op == "+" else left - right
            return int({"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[expr.op])
    raise AssertionError(expr)


def test_pieces_are_what_they_stand_for() -> None:
    rng, known = random.Random(0), 0
    for _ in range(2000):
        expr, first = (choice(rng, 2) if rng.random() < 0.5 else expression(rng, 4)), rng.randint(-5, 5)
        last = first + rng.randint(0, 60)
        pieces = linear_pieces(expr, first, last, {})
        if pieces is not None:
            known += 1
            assert [(begin, end) for begin, end, _, _ in pieces][0][0] == first and pieces[-1][1] == last
            assert all(one[1] + 1 == two[0] for one, two in zip(pieces, pieces[1:]))
            assert all(a * i + b == value_of(expr, i) for begin, end, a, b in pieces for i in range(begin, end + 1))
    assert known > 1000
