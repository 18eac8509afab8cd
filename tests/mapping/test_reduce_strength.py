"""Powers that are products: which, that each is proved, that faults are found, and what comes out.

Modules: mapping.passes.reduce_strength mapping.verify_powers
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from support.mapping import program
from support.rings.targets import only

import tcjit
from tcjit.errors import VerifyError
from tcjit.grammar.ast import Binary, Call, Const, Expr
from tcjit.grammar.walk import rebuild, walk
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.nest.vector_forms import INTEGER_POWER
from tcjit.mapping.passes.reduce_strength import reduce_strength
from tcjit.mapping.verify_assignments import verify_assignments


def reduced(value: str, dtype: str = "float64", where: str = "k in 0:9") -> tuple[Assignments, Assignments]:
    text = f"def f({dtype}(N) X, {dtype}(N) Z) -> (Y) {{ Y(i, k) = {value} where {where} }}"
    before = extract(program(text, {"X": (20,), "Z": (20,)}))
    return before, reduce_strength(before)


@pytest.mark.parametrize(
    ("value", "dtype", "made"),
    [
        ("pow(X(i), k)", "float64", "integer_power(X(i), float64(k), 4)"),
        ("pow(X(i), 8 - k)", "float64", "integer_power(X(i), float64(8 - k), 4)"),
        ("pow(X(i), 2*k + 1)", "float32", "integer_power(X(i), float32(2 * k + 1), 5)"),
        ("pow(X(i), 2.0)", "float32", "X(i) * X(i)"),
        ("pow(X(i), -3.0)", "float64", "integer_power(X(i), -3.0, 2)"),
        ("pow(pow(X(i), 3.0), k)", "bfloat16", "integer_power(integer_power(X(i), 3.0, 2), bfloat16(k), 4)"),
    ],
)
def test_small_whole_exponents(value: str, dtype: str, made: str) -> None:
    before, after = reduced(value, dtype)
    assert f" = {made} where" in after.assignments[0].show()
    verify_assignments("reduce_strength", before, after)


@pytest.mark.parametrize(
    "value",
    [
        "pow(X(i), Z(i))",
        "pow(X(i), 1.5)",
        "pow(X(i), k - 1)",  # may be negative
        "pow(X(i), 2*k)",  # up to 16
        "pow(X(i), 11.0)",
        "pow(X(i), -8.0)",
        "pow(X(i), int8(k * 40) + 100)",  # wraps
        "pow(X(i), infinity())",
        "pow(X(i), int32(Z(i)))",
    ],
)
def test_other_exponents_stay(value: str) -> None:
    before, after = reduced(value)
    assert after.assignments == before.assignments


@pytest.mark.parametrize(("bits", "exponent"), [(3, None), (4, Const(8.0, dtype="float64"))])
def test_faults_are_found(bits: int, exponent: Expr | None) -> None:
    before, after = reduced("pow(X(i), k)")

    def fault(value: Expr) -> Expr:
        if isinstance(value, Call) and value.function == INTEGER_POWER:
            return replace(value, args=(value.args[0], exponent or value.args[1], Const(bits, dtype="int64")))
        return rebuild(value, fault)

    (a,) = after.assignments
    with pytest.raises(VerifyError, match="a power has another exponent"):
        verify_assignments("reduce_strength", before, before.with_parts([[replace(a, value=fault(a.value))]]))


PACKED = """def f(uint8(O,J) P) -> (W) {
    W(o,i) = int8(int32(P(o,i/4)) / ((i % 4 == 0) ? 1 : (i % 4 == 1) ? 4 : (i % 4 == 2) ? 16 : 64) % 4 - 1) where i in 0:4*J
}"""


def test_divisions_by_one_of_some_constants_are_divisions_by_each() -> None:
    before = extract(program(PACKED, {"P": (6, 40)}))
    after = reduce_strength(before)
    verify_assignments("reduce_strength", before, after)
    (a,) = after.assignments
    divisors = [part.right for part in walk(a.value) if isinstance(part, Binary) and part.op == "/" and part.dtype == "int32"]
    assert [divisor.value for divisor in divisors if isinstance(divisor, Const)] == [1, 4, 16, 64]

    def fault(value: Expr) -> Expr:
        return Const(8, dtype="int32") if value == Const(16, dtype="int32") else rebuild(value, fault)

    with pytest.raises(VerifyError, match="a power has another exponent"):
        verify_assignments("reduce_strength", before, before.with_parts([[replace(a, value=fault(a.value))]]))
    by_zero = extract(program(PACKED.replace(": 64", ": 0"), {"P": (6, 40)}))  # an error, at run time
    assert reduce_strength(by_zero).assignments == by_zero.assignments


def test_numbers_in_a_byte_are_unpacked_in_vectors() -> None:
    packed = torch.randint(0, 256, (6, 40), dtype=torch.uint8)
    f = only(PACKED, target="cpu")
    expected = (packed.int()[..., None] // torch.tensor([1, 4, 16, 64]) % 4 - 1).to(torch.int8).reshape(6, 160)
    assert torch.equal(f(packed), expected)
    source = f.compile(packed).source
    kernel = source[source.index("int64_t tc_f(") :]
    assert kernel.count("#pragma omp simd") == 1 and "tc_fdiv" not in kernel


SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, -2.5, 1e-30, -1e-30, 1e30, 1e-41]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0, 3.0, 6.0, 10.0, 40.0, -1.0, -2.0, -3.0, -6.0, -10.0])
def test_constant_powers(dtype: torch.dtype, exponent: float) -> None:
    name = str(dtype).removeprefix("torch.")
    x = torch.cat([torch.tensor(SPECIAL, dtype=torch.float64), torch.linspace(-4, 4, 101, dtype=torch.float64)]).to(dtype)
    x = torch.cat([x, torch.tensor([1e200, -1e160, 1e-160, -1e-310, 2e103, -3e53, 1.7e32, 1e31], dtype=torch.float64).to(dtype)])
    got = only(f"def f({name}(N) X) -> (Y) {{ Y(i) = pow(X(i), {exponent}) }}", target="cpu")(x)
    exact = torch.pow(x.double(), torch.full_like(x.double(), exponent)).to(dtype)
    torch.testing.assert_close(got, exact, rtol=6 * torch.finfo(dtype).eps, atol=0, equal_nan=True)
    known = ~exact.isnan()
    assert torch.equal(got.signbit()[known], exact.signbit()[known])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("exponent", [-3.0, -2.0, 2.0, 3.0, 10.0])
def test_products_with_powers(dtype: str, exponent: float) -> None:
    a, b = torch.rand(40, 33, dtype=getattr(torch, dtype)) + 0.5, torch.randn(50, 33, dtype=getattr(torch, dtype))
    text = f"def f({dtype}(N,K) A, {dtype}(M,K) B) -> (Y) {{ Y(i, j) +=! pow(A(i, k) - B(j, k) * 0.1, {exponent}) }}"
    got, want = only(text, target="cpu")(a, b), ((a[:, None] - b * 0.1).double() ** exponent).sum(2).to(a.dtype)
    torch.testing.assert_close(got, want, rtol=2e-5 if dtype == "float32" else 1e-12, atol=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("size", "terms"), [(1003, 9), (40, 3), (7, 1), (300, 11)])
def test_sums_of_powers(dtype: str, size: int, terms: int) -> None:
    x, c = torch.linspace(-1.5, 1.5, size, dtype=getattr(torch, dtype)), torch.randn(terms, dtype=getattr(torch, dtype))
    text = f"def f({dtype}(N) X, {dtype}(K) C) -> (Y) {{ Y(i) +=! C(k) * pow(X(i), k) }}"
    rtol = 1e-5 if dtype == "float32" else 1e-13
    got, want = only(text, target="cpu")(x, c), (c * x[:, None].double() ** torch.arange(terms)).sum(1).to(x.dtype)
    torch.testing.assert_close(got, want, rtol=rtol, atol=rtol * 10)


@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize("exponent", [0.0, 2.0, 3.0, 10.0, 11.0, -1.0, -2.0, 0.5, -0.5, 2.5])
def test_special_values_are_those_of_the_reference(dtype: str, exponent: float) -> None:
    """C's pow, also where gcc and numpy make a square root of a power."""
    special = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, -2.0, 1e30, 1e-30, 0.5]
    x = torch.tensor(special * 9, dtype=torch.float64 if dtype == "double" else torch.float32)
    text = f"def f({dtype}(N) X) -> (Y) {{ Y(i) = pow(X(i), {exponent}) }}"
    found, expected = (tcjit.compile(text, "f", x, target=target)(x) for target in ("cpu", "reference"))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0, equal_nan=True)
    assert torch.equal(found.signbit() & (found == 0), expected.signbit() & (expected == 0))
