"""Axes that become one before tiles are made: where reductions read elements again, not elsewhere; the numbers; a proof that refuses.

Modules: mapping.passes.collapse_axes
"""
from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.mapping import AVX512, program

import tcjit
from tcjit.errors import VerifyError
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.options import Options
from tcjit.mapping.passes import collapse_axes as passes
from tcjit.mapping.passes.collapse_axes import collapse_axes
from tcjit.mapping.pipeline import map_program

Shapes = dict[str, tuple[int, ...]]
POINTS = """def f(float(N,C,H,W) X, float(F,C) K, float(F) B) -> (Y) {
    Y(n,f,h,w) = B(f) where n in 0:N, h in 0:H, w in 0:W
    Y(n,f,h,w) += X(n,c,h,w) * K(f,c)
}"""
SIZES: Shapes = {"X": (2, 5, 6, 7), "K": (4, 5), "B": (4,)}


def shown(text: str, shapes: Shapes) -> list[str]:
    return [a.show() for a in collapse_axes(extract(program(text, shapes)), True).assignments]


def test_positions_of_a_convolution_are_one_dimension() -> None:
    before = extract(program(POINTS, SIZES))
    after = collapse_axes(before, True)
    assert [a.extents for a in after.assignments][-1] == {"n": 2, "f": 4, "h": 42, "c": 5}
    assert after.storages["X"].shape == (2, 5, 42) and after.storages["Y"].shape == (2, 4, 42) and after.storages["B"].shape == (4,)
    assert before.storages["X"].shape == (2, 5, 6, 7)


def test_rows_of_both_sides_and_what_a_sum_starts_from() -> None:
    text = "def f(float(B,S,I) X, float(O,I) W, float(B,S) U) -> (Y) { Y(b,s,o) = U(b,s) where o in 0:O  Y(b,s,o) += X(b,s,i) * W(o,i) }"
    product = "Y(b, o) += X(b, i) * W(o, i) where b in 0:6, o in 0:4, i in 0:5"
    shapes = {"X": (2, 3, 5), "W": (4, 5), "U": (2, 3)}
    assert shown(text, shapes) == ["Y(b, o) = U(b) where b in 0:6, o in 0:4", product]
    before = extract(program(text, shapes))
    first, last = before.assignments
    started = before.with_parts([(), (replace(last, start=first.value),)])
    (made,) = collapse_axes(started, True).assignments
    assert made.show() == product.replace(" where", " from U(b) where")


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("def f(float(N,C,H,W) X) -> (Y) { Y(n,c,h,w) = X(n,c,h,w) * 2.0 }", {"X": (2, 3, 4, 5)}),  # no reduction
        ("def f(float(N,C,H,W) X) -> (Y) { Y(n,c) +=! X(n,c,h,w) }", {"X": (2, 3, 4, 5)}),  # each element once
        ("def f(float(N,H,W) X, float(K) V) -> (Y) { Y(n,h,w) +=! X(n,h,w+k) * V(k) }", {"X": (2, 1, 9), "V": (3,)}),  # rows overlap
        ("def f(float(H,W) X, float(W,H,C) K) -> (Y) { Y(c) +=! X(h,w) * K(w,h,c) }", {"X": (4, 5), "K": (5, 4, 3)}),  # transposed
    ],
)
def test_what_stays(text: str, shapes: Shapes) -> None:
    before = extract(program(text, shapes))
    after = collapse_axes(before, True)
    assert after is before or [a.extents for a in after.assignments] == [{"n": 2, "w": 7, "k": 3}]


def test_tiles_that_are_asked_for_keep_their_dimensions() -> None:
    (nest,) = (s for s in map_program(program(POINTS, SIZES), Options(), AVX512).scop.statements if s.tiled)
    assert nest.extents["h"] == 42
    (nest,) = (s for s in map_program(program(POINTS, SIZES), Options(tile=(1, 2)), AVX512).scop.statements if s.tiled)
    assert nest.extents["h"] == 6


def test_numbers() -> None:
    x, k, b = torch.randn(2, 5, 6, 7), torch.randn(4, 5), torch.randn(4)
    expected = torch.nn.functional.conv2d(x, k[:, :, None, None], b)
    f = tcjit.define(POINTS, target="cpu").f
    for given in (x, x.contiguous(memory_format=torch.channels_last), x.repeat(1, 1, 1, 2)[..., :7]):
        torch.testing.assert_close(f(given, k, b), expected, rtol=1e-5, atol=1e-5)


def test_a_wrong_merge_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def collapse(*given: object, **how: object) -> object:
        made, merges = passes_collapse(*given, **how)  # type: ignore[arg-type]
        return made, tuple(replace(one, extent=one.extent + 1) for one in merges)

    passes_collapse = passes.collapse
    monkeypatch.setattr(passes, "collapse", collapse)
    before: Assignments = extract(program(POINTS, SIZES))
    with pytest.raises(VerifyError, match=r"coverage|value flow"):
        collapse_axes(before, True)
