"""Arithmetic in a data-dependent subscript that leaves 64 bits: a GatherError on every target, never an element that it wrapped to.

Modules: grammar.wrapping
"""

from __future__ import annotations

import pytest
import torch
from support.rings.targets import assert_agrees, everywhere, only

import tcjit
from tcjit.grammar.front import read
from tcjit.grammar.wrapping import wrapping

EVERYWHERE = pytest.mark.parametrize("on", everywhere())
TABLE = torch.arange(10.0)
FAR = 2**63


def gather(subscript: str, dtype: str = "int64") -> str:
    return f"def f(float(V) T, {dtype}(N) I, {dtype}(N) J) -> (Y) {{ Y(l) = T({subscript}) where exists J(l) }}"


@EVERYWHERE
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("subscript", "i", "j"),
    [
        ("I(l)*2", -FAR, 0),
        ("I(l)*4 + 1", 2**62, 0),
        ("I(l) - J(l)", FAR - 1, -FAR),
        ("I(l)*J(l)", 2**32, 2**32),
        ("(I(l)*2) / 100", 2**62 + 50, 0),  # the quotient would be inside
        ("(I(l)*2) % 7", 2**62 + 5, 0),
        ("-(I(l) + I(l))", 2**62, 0),
        ("min(I(l)*2, 3)", -FAR, 0),
    ],
)
def test_an_index_that_wraps_is_outside(on: str, subscript: str, i: int, j: int) -> None:
    function = only(gather(subscript), target=on)
    with pytest.raises(tcjit.GatherError):
        function(TABLE, torch.tensor([0, i]), torch.tensor([0, j]))
        tcjit.synchronize()
    assert function(TABLE, torch.tensor([0, 0]), torch.tensor([0, 0])).shape == (2,)


@EVERYWHERE
def test_indices_that_only_pass_through_large_numbers(on: str) -> None:
    """What wraps on the way and comes back is right."""
    i, j = torch.tensor([FAR - 1, 2**62, 5, 0]), torch.tensor([FAR - 3, 2**62 - 4, 1, 0])
    assert_agrees(on, gather("I(l) - J(l)"), TABLE, i, j)
    assert_agrees(on, gather("2*I(l) - 2*J(l)"), TABLE, i, j)
    assert_agrees(on, gather("I(l) / 1000000000000000000"), TABLE, i, j)
    assert_agrees(on, gather("(I(l) % 5) + (J(l) % 5)"), TABLE, i, j)


@pytest.mark.parametrize("subscript", ["I(l)", "I(l) / 3", "I(l) % 5", "(I(l) % 5) * 2 + 1"])
def test_kernels_whose_indices_cannot_wrap_do_not_change(subscript: str) -> None:
    assert "tc_wrapped" not in tcjit.compile(gather(subscript), "f", TABLE, *[torch.zeros(2, dtype=torch.int64)] * 2, target="cpu").source


def test_the_reference_says_that_it_wrapped() -> None:
    function = only(gather("I(l)*2"), target="reference")
    with pytest.raises(tcjit.GatherError, match="an index of `T` along dimension 0 does not fit 64 bits"):
        function(TABLE, torch.tensor([-FAR]), torch.tensor([0]))


def test_narrower_indices_cannot_wrap() -> None:
    given = [torch.zeros(2, dtype=torch.int32)] * 2
    assert "tc_wrapped" not in tcjit.compile(gather("I(l)*1000 - J(l)", "int32"), "f", TABLE, *given, target="cpu").source
    (definition,) = read("def f(float(V) T, int32(N) I, int32 s, int64 t) -> (Y) { Y(l) = T(I(l)*s) + T(I(l)*t) }")
    scalars = {"s": "int32", "t": "int64"}
    value = definition.statements[0].value
    (first,), (second,) = (side.subscripts for side in (value.left, value.right))  # type: ignore[attr-defined]
    assert not list(wrapping(first, scalars)) and list(wrapping(second, scalars)) == [second]


@EVERYWHERE
def test_what_a_condition_leaves_out_is_neither_read_nor_wraps(on: str) -> None:
    subscript = "(l + 1 < N && I(l + 1) > -9) ? I(l + 1) + 1 : (l == 0) ? I(0) * 2 : 3"
    text = f"def f(float(V) T, int64(N) I) -> (Y) {{ Y(l) = T({subscript}) where l in 0:N }}"
    assert_agrees(on, text, TABLE, torch.tensor([FAR - 1, 2, 8, -9, 4]))
    function = only(text, target=on)
    for wraps in (torch.tensor([0, FAR - 1, 1]), torch.tensor([FAR // 2, -10, 1])):
        with pytest.raises(tcjit.GatherError):
            function(TABLE, wraps)
            tcjit.synchronize()


def test_reads_of_the_check_have_their_condition() -> None:
    text = "def f(float(V) T, int64(N) I) -> (Y) { Y(l) = T((l + 1 < N) ? I(l + 1) + 1 : 0) where l in 0:N }"
    source = tcjit.compile(text, "f", TABLE, torch.zeros(4, dtype=torch.int64), target="cpu").source
    assert "tc_wrapped(c0 + 1 < 4 ? I[c0 + 1] + 1 : 0," in source
