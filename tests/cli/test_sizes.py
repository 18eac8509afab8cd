"""``--shapes``: what it accepts, what follows, and the message for everything else."""

from __future__ import annotations

import pytest

from tcjit.cli.sizes import ArgumentSizes, definition, sizes
from tcjit.errors import ArgumentError, TCError

CONV = """
def conv(float(N,C,H,W) X, float(O,C,3,3) K, int32 s, bool flip, half scale) -> (Y) {
    Y(n, o, y, x) +=! flip ? 0.0 : scale * X(n, c, s*y + kh, s*x + kw) * K(o, c, kh, kw)
}
"""
TWO = """
def f(float(N) X) -> (Y) { Y(i) = X(i) }
def g(float(N) X) -> (Y) { Y = f(X) }
"""
EXPECTED = ArgumentSizes({"X": (1, 2, 8, 9), "K": (4, 2, 3, 3)}, {"s": 2, "flip": True, "scale": 0.5})


@pytest.mark.parametrize(
    "text",
    [
        "X=1x2x8x9,K=4x2x3x3,s=2,flip=true,scale=0.5",
        " s = 2 , flip=True, scale=5e-1, X=1x2x8x9 , O=4 ",
        "N=1,C=2,H=8,W=9,O=4,s=2,flip=true,scale=.5,",
    ],
)
def test_all_ways_to_say_it(text: str) -> None:
    assert sizes(definition(CONV, None), text) == EXPECTED


@pytest.mark.parametrize(
    "text, what, hint",
    [
        ("X=1x2x8", "X=1x2x8 has 3 dimensions, float32(N, C, H, W) X has 4", "X=8x8x8x8"),
        ("X=1,2,8,9", "'2' is not of the form name=value", '--shapes "A=1024x512,'),
        ("X=8", "X=8 has 1 dimension, float32(N, C, H, W) X has 4", "X=8x8x8x8"),
        ("X=1x2x-8x9", "X=1x2x-8x9 is not a shape", "X=8x8x8x8"),
        ("X", "'X' is not of the form name=value", '--shapes "'),
        ("X=", "'X=' is not of the form name=value", '--shapes "'),
        ("Q=3", "'Q' is no tensor, size or scalar of conv(float32(N, C, H, W) X", "=..."),
        ("scal=3", "'scal' is no tensor, size or scalar", "scale=..."),
        ("N=1.5", "N=1.5: a size is a whole number", "N=128"),
        ("s=two", "s=two is no value for int32 s", "s=1"),
        ("flip=1", "flip=1 is no value for bool flip", "flip=true"),
        ("scale=big", "scale=big is no value for float16 scale", "scale=0.5"),
        ("N=1,N=2", "N twice: 1 and 2", ""),
        ("N=1,C=2,O=4,s=1,flip=false,scale=1", "nothing says how large H, W of conv(", "X=1x2xHxW"),
        ("X=1x2x8x9,O=4,flip=true,scale=1", "int32 s of conv(", "s=1"),
        ("", "nothing says how large N, C, H, W", "X=NxCxHxW"),
    ],
)
def test_mistakes(text: str, what: str, hint: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        sizes(definition(CONV, None), text)
    assert what in caught.value.what
    assert hint in caught.value.hint


def test_the_def_is_named_or_the_only_one() -> None:
    assert definition(CONV, None).name == definition(CONV, "conv").name == "conv"
    assert definition(TWO, "f").name == "f"
    with pytest.raises(ArgumentError, match="has 2 defs: f, g") as caught:
        definition(TWO, None)
    assert caught.value.hint == "--name g"
    with pytest.raises(ArgumentError, match="no def 'cnov'") as caught:
        definition(CONV, "cnov")
    assert caught.value.hint == "--name conv"


def test_a_wrong_program_is_the_languages_error() -> None:
    with pytest.raises(TCError) as caught:
        definition("def f(float(N) X) -> (Y) { Y(i) = X(i }", None)
    assert caught.value.where is not None
