"""What statements read at subscripts that are data: remainders of sums of indices and data.

Modules: codegen.reads
"""

from __future__ import annotations

import pytest
import torch

import tcjit

N = 13
TYPES = {"int8": torch.int8, "uint8": torch.uint8, "int16": torch.int16, "int32": torch.int32, "int64": torch.int64}
# subscripts, what they are in PyTorch, and whether the division is one of each shift alone, for any type and for narrow ones
SUMS = [
    ("(i + S(b)) % N", lambda i, s: i + s, True, True),
    ("(S(b) + i + 2) % N", lambda i, s: s + i + 2, False, True),
    ("(i - S(b)) % N", lambda i, s: i - s, True, True),
    ("(S(b) - i) % N", lambda i, s: s - i, True, True),
    ("(S(b) - i - 1) % N", lambda i, s: s - i - 1, False, True),
    ("(2 * i + S(b)) % N", lambda i, s: 2 * i + s, False, False),  # more than one divisor
    ("(i + S(b) * S(b)) % N", lambda i, s: i + s * s, False, False),  # a product may wrap before the index is added
    ("(i + S(b) + S(B - 1 - b)) % N", lambda i, s: i + s + s.flip(0), False, False),
]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("sum_", SUMS, ids=lambda one: str(one[0]))
def test_remainders_of_sums(dtype: str, sum_: tuple[str, object, bool, bool]) -> None:
    subscript, form, wide, narrow = sum_
    text = f"def f(double(N) X, {dtype}(B) S) -> (Y) {{ Y(b,i) = X({subscript}) where i in 0:N }}"
    torch.manual_seed(0)
    least, most = (-100, 100) if dtype != "uint8" else (0, 256)
    x, s = torch.randn(N, dtype=torch.float64), torch.randint(least, most, (60,)).to(TYPES[dtype])
    kernel = tcjit.define(text).f.compile(x, s)
    at = form(torch.arange(N), s.long()[:, None]) % N  # type: ignore[operator]
    assert torch.equal(kernel(x, s), x[at])
    reduced = wide if dtype == "int64" else narrow
    assert ("tc_wrap(c" in kernel.source or "tc_wrap(-c" in kernel.source) == reduced, kernel.source


def test_sums_that_wrap_are_errors() -> None:
    f = tcjit.define("def f(float(N) X, int64(B) S) -> (Y) { Y(b,i) = X((i + S(b)) % N) where i in 0:N }").f
    with pytest.raises(tcjit.GatherError):
        f(torch.randn(N), torch.tensor([3, 2**63 - 2]))


def test_values_that_are_remainders() -> None:
    """Of int64 they wrap; a narrower type cannot."""
    text = """def f(int32(B) S, int64(B) L) -> (Y, Z) {
        Y(b,i) = (i + int64(S(b))) % 7 where i in 0:7
        Z(b,i) = (i + L(b)) % 7 where i in 0:7 }"""
    s, wide = torch.tensor([-9, 2**31 - 1, 5], dtype=torch.int32), torch.tensor([2**63 - 1, -(2**63), 4])
    y, z = tcjit.define(text).f(s, wide)
    i = torch.arange(7)
    assert torch.equal(y, (i + s.long()[:, None]) % 7) and torch.equal(z, (i + wide[:, None]) % 7)


def test_sums_near_the_ends_of_int64() -> None:
    """With constants and divisors that large, and below a conversion, which may wrap and is no error, the sum is what it was."""
    text = """def f(int32(B) S, int64(B) L, double(N) X) -> (Y, Z, V, G) {
        Y(b,i) = (i + int64(S(b)) + 9223372036854775807) % 7 where i in 0:7
        Z(b,i) = (i + int64(S(b))) % 9223372036854775807 where i in 0:16
        V(b,i) = (int64(S(b)) - i) % 9223372036854775807 where i in 0:16
        G(b,i) = X(int64(int32((i + L(b)) % N))) where i in 0:N }"""
    s = torch.tensor([0, -5, 3, -(2**31), 2**31 - 1], dtype=torch.int32)
    wide, x = torch.tensor([2**63 - 1, 2**63 - 3, -(2**63), 4, -9]), torch.randn(7, dtype=torch.float64)
    y, z, v, g = tcjit.define(text).f(s, wide, x)
    short, long, most, each = torch.arange(7), torch.arange(16), 2**63 - 1, s.long()[:, None]
    assert torch.equal(y, (short + each + most) % 7)
    assert torch.equal(z, (long + each) % most) and torch.equal(v, (each - long) % most)
    assert torch.equal(g, x[(short + wide[:, None]) % 7])
