"""What statements read at subscripts that are data, remainders of sums of indices and data, and under conditions.

Modules: codegen.reads
"""

from __future__ import annotations

import re
from collections.abc import Callable

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


# what is read under a condition, the same in PyTorch, and whether the element is there whatever that says
CHOICES = [
    ("Y(i,j) = i != j ? exp(X(i,j)) : 0.0", lambda x, m: x.exp().masked_fill(torch.eye(*x.shape, dtype=torch.bool), 0.0), True),
    ("Y(i,j) = M(i,j) > 0.0 ? sqrt(X(i,j)) : M(i,j)", lambda x, m: torch.where(m > 0, x.sqrt(), m), True),
    ("Y(i,j) = M(i,j) > 0.0 && X(i,j) > 1.0 ? X(i,j) : 1.0", lambda x, m: torch.where((m > 0) & (x > 1), x, 1.0), True),
    ("Y(i) +=! i != j ? exp(X(i,j)) : 0.0", lambda x, m: x.exp().sum(1) - x.exp().diag(), True),
    ("Y(i,j) = M(i,j) > 0.0 && i + j < B ? exp(X(i,i + j)) : 0.0", lambda x, m: _shifted(x, m), False),  # others are outside
    ("Y(i,j) = M(i,j) > 0.0 ? exp(X(j,i)) : 0.0", lambda x, m: torch.where(m > 0, x.T.exp(), 0.0), False),  # no neighbours
]


def _shifted(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    at = torch.arange(len(x))[:, None] + torch.arange(x.shape[1])
    return torch.where((m > 0) & (at < x.shape[1]), x.gather(1, at.clamp(max=x.shape[1] - 1)).exp(), 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("choice", CHOICES, ids=lambda one: str(one[0]))
def test_what_is_there_is_loaded_before_conditions(choice: tuple[str, Callable[..., torch.Tensor], bool], dtype: torch.dtype) -> None:
    """As whole vectors; what stands where the condition does not hold changes nothing."""
    text, expected, plain = choice
    x, m = torch.rand(61, 61, dtype=dtype) * 2, torch.randn(61, 61, dtype=dtype)
    name = "float" if dtype == torch.float32 else "double"
    f = tcjit.define(f"def f({name}(A,B) X, {name}(A,B) M) -> (Y) {{ {text} }}").f
    torch.testing.assert_close(f(x, m), expected(x, m), rtol=1e-5, atol=1e-5)
    source = f.compile(x, m).source
    assert bool(re.search(rf"const {name} tc_e\d+ = X", source)) == plain
    if plain and "M(i,j)" in text:
        gone = torch.where(m > 0, x, float("nan"))
        torch.testing.assert_close(f(gone, m), expected(x, m), rtol=1e-5, atol=1e-5)


def test_buffers_hold_only_what_is_read() -> None:
    """A temporary that is kept in a buffer is read where the condition holds."""
    x, m = torch.randn(300, 200), torch.randn(300, 200)
    text = """def f(float(A,B) X, float(A,B) M) -> (Y) {
        T(i,j) = exp(X(i,j) * M(i,j))
        Y(i,j) = M(i,j) > 0.0 && j > 0 ? T(i,j - 1) / 2.0 + T(i,j) : T(i,j) where j in 0:B }"""
    kernel = tcjit.define(text).f.compile(x, m)
    t = (x * m).exp()
    left = torch.cat([torch.zeros(300, 1), t[:, :-1]], 1)
    expected = torch.where((m > 0) & (torch.arange(200) > 0), left / 2 + t, t)
    torch.testing.assert_close(kernel(x, m), expected, rtol=1e-5, atol=1e-5)
    assert not re.search(r"tc_e\d+ = T", kernel.source)
