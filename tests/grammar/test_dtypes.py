from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcjit.grammar.dtypes import DTYPES, FORMATS, converted, holds, promote, rounded

torch = pytest.importorskip("torch")

NAMES = list(DTYPES)


@pytest.mark.parametrize("left", NAMES)
@pytest.mark.parametrize("right", NAMES)
def test_promotion_is_that_of_torch(left: str, right: str) -> None:
    try:
        expected = str(torch.promote_types(getattr(torch, left), getattr(torch, right))).removeprefix("torch.")
    except RuntimeError:
        expected = None
    assert promote(left, right) == expected


@given(st.floats(allow_nan=False), st.sampled_from(["float16", "bfloat16", "float32", "float64"]))
def test_rounding_is_that_of_torch(value: float, dtype: str) -> None:
    if dtype in ("float16", "bfloat16"):
        # torch rounds a double to the half types by way of float32: compare where that rounds once
        value = float(torch.tensor(value, dtype=torch.float32))
    assert rounded(value, dtype) == torch.tensor(value, dtype=torch.float64).to(getattr(torch, dtype)).item()


def test_rounding_at_the_edges() -> None:
    assert rounded(math.ldexp(1, -25), "float16") == 0.0  # half of the least subnormal ties to even
    assert rounded(math.ldexp(1.5, -25), "float16") == math.ldexp(1, -24)
    assert rounded(65519.99, "float16") == 65504.0 and rounded(65520.0, "float16") == math.inf
    assert rounded(-1e39, "float32") == -math.inf and rounded(-math.inf, "float16") == -math.inf
    assert math.isnan(rounded(math.nan, "bfloat16"))
    assert math.copysign(1, rounded(-0.0, "float16")) == -1
    assert rounded(1 + 2**-9 + 2**-40, "bfloat16") == 1.0 and rounded(1 + 2**-8 + 2**-40, "bfloat16") == 1 + 2**-7


@given(st.integers(-(1 << 70), 1 << 70), st.sampled_from([n for n in NAMES if DTYPES[n].is_integer]))
def test_integers_wrap(value: int, dtype: str) -> None:
    result = converted(value, dtype)
    assert DTYPES[dtype].least <= result <= DTYPES[dtype].greatest
    assert (result - value) % (1 << DTYPES[dtype].bits) == 0


def test_other_conversions() -> None:
    assert [converted(x, "int8") for x in (1e9, -1e9, math.inf, -math.inf, math.nan, 2.9, -2.9)] == [127, -128, 127, -128, 0, 2, -2]
    assert converted(-1.5, "uint16") == 0 and converted(1e30, "uint64") == (1 << 64) - 1
    assert [converted(x, "bool") for x in (0, 3, 0.0, 0.5, math.nan)] == [False, True, False, True, True]
    assert converted(True, "int32") == 1 and converted(True, "float32") == 1.0


@pytest.mark.parametrize("wide", NAMES)
@pytest.mark.parametrize("narrow", NAMES)
def test_holds_means_every_value(wide: str, narrow: str) -> None:
    n = DTYPES[narrow]
    if "bool" in (wide, narrow):
        assert holds(wide, narrow) == (wide == narrow)
    elif n.kind == "float":
        assert holds(wide, narrow) == (DTYPES[wide].kind == "float" and promote(wide, narrow) == wide)
    else:
        values = [n.least, n.greatest, n.least + 1, n.greatest - 1]
        assert holds(wide, narrow) == all(converted(x, wide) == x for x in values)


@pytest.mark.parametrize("dtype", FORMATS)
def test_formats_are_those_of_torch(dtype: str) -> None:
    form, info = FORMATS[dtype], torch.finfo(getattr(torch, dtype))
    assert (form.eps, form.greatest) == (info.eps, info.max)
    assert form.tiny == info.smallest_normal * info.eps
    whole = int(form.integers)
    assert torch.tensor([whole, whole + 1]).to(getattr(torch, dtype)).double().tolist() == [whole, whole]
