"""Factors of results that leave sums, which are scans then: which, that each is proved, that faults are found, and the numbers.

Modules: mapping.passes.factor_scans mapping.verify_factored
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.mapping import program

import tcjit
from tcjit.errors import VerifyError
from tcjit.grammar.ast import Binary, Select, Unary
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.passes.factor_scans import factor_scans
from tcjit.mapping.passes.simplify_reductions import simplify_reductions
from tcjit.mapping.verify_assignments import verify_assignments

PARAMETERS = "float(M,N) A, float(M,N) B, float(M,N) X, int32(N) I"
SHAPES = {"A": (3, 400), "B": (3, 400), "X": (3, 400), "I": (400,)}
ADJOINT = "D(m,j) +=! j <= i ? (X(m,j) == 0.0 ? (B(m,i) > 0.0 ? A(m,i) : 0.0) : A(m,i) / X(m,j)) : 0.0 where j in 0:N"
STRICT = "D(m,j) +=! i < j ? A(m,i) * X(m,j) : 0.0 where j in 0:N"
GUARDED = "D(m,j) +=! i <= j ? (B(m,i) > 0.0 ? A(m,i) * X(m,j) : X(m,j) + B(m,i)) : 0.0 where j in 0:N"


def of(statement: str) -> tuple[Assignments, Assignments]:
    before = extract(program(f"def f({PARAMETERS}) -> (D) {{ {statement} }}", SHAPES))
    return before, factor_scans(before)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (
            ADJOINT,
            [
                "D_scan(m, j) += j <= i ? B(m, i) > 0.0 ? A(m, i) : 0.0 : 0.0 from 0.0",
                "D_scan1(m, j) += j <= i ? A(m, i) : 0.0 from 0.0",
                "D(m, j) = X(m, j) == 0.0 ? D_scan(m, j) : D_scan1(m, j) / X(m, j)",
            ],
        ),
        (
            STRICT,  # the first result has no terms, and X may be infinite there
            [
                "D_scan(m, j) += i < j ? A(m, i) : 0.0 from 0.0",
                "D_scan1(m, j) += i < j ? 1.0 : 0.0 from 0.0",
                "D(m, j) = D_scan1(m, j) > 0.0 ? D_scan(m, j) * X(m, j) : 0.0",
            ],
        ),
        (
            GUARDED,
            [
                "D_scan(m, j) += i <= j ? B(m, i) > 0.0 ? A(m, i) : 0.0 : 0.0 from 0.0",
                "D_scan1(m, j) += i <= j ? B(m, i) > 0.0 ? 1.0 : 0.0 : 0.0 from 0.0",
                "D_scan2(m, j) += i <= j ? !(B(m, i) > 0.0) ? 1.0 : 0.0 : 0.0 from 0.0",
                "D_scan3(m, j) += i <= j ? !(B(m, i) > 0.0) ? B(m, i) : 0.0 : 0.0 from 0.0",
                "D(m, j) = (D_scan1(m, j) > 0.0 ? D_scan(m, j) * X(m, j) : 0.0) + "
                "((D_scan2(m, j) > 0.0 ? D_scan2(m, j) * X(m, j) : 0.0) + D_scan3(m, j))",
            ],
        ),
        (
            "D(m,j) +=! i <= j ? (A(m,i) > 0.0 ? (B(m,i) > 0.0 ? A(m,i) * X(m,j) : 0.0) : 0.0) : 0.0 where j in 0:N",
            [
                "D_scan(m, j) += i <= j ? A(m, i) > 0.0 ? B(m, i) > 0.0 ? A(m, i) : 0.0 : 0.0 : 0.0 from 0.0",
                "D_scan1(m, j) += i <= j ? A(m, i) > 0.0 && B(m, i) > 0.0 ? 1.0 : 0.0 : 0.0 from 0.0",
                "D(m, j) = D_scan1(m, j) > 0.0 ? D_scan(m, j) * X(m, j) : 0.0",
            ],
        ),
        (
            "D(m,j) +=! i <= j ? (X(m,j) == 0.0 ? A(m,i) * X(m,j) : 0.0) * B(m,j) : 0.0 where j in 0:N",
            [
                "D_scan(m, j) += i <= j ? A(m, i) : 0.0 from 0.0",
                "D(m, j) = (X(m, j) == 0.0 ? D_scan(m, j) * X(m, j) : 0.0) * B(m, j)",
            ],
        ),
        (
            "D(m,j) = X(m,j) where j in 0:N D(m,j) += i <= j ? A(m,i) : 0.0",  # which goes on with what is there
            [
                "D(m, j) = X(m, j)",
                "D_scan(m, j) += i <= j ? A(m, i) : 0.0 from 0.0",
                "D(m, j) += D_scan(m, j)",
            ],
        ),
    ],
)
def test_factors_of_results_leave_a_sum(statement: str, expected: list[str]) -> None:
    before, after = of(statement)
    verify_assignments("factor_scans", before, after)
    assert [a.show().split(" where ")[0] for a in after.assignments] == expected
    scans = [a for a in simplify_reductions(after).assignments if a.tensor.startswith("D_scan") and a.scan]
    assert len(scans) == sum("_scan" in line.split("(")[0] for line in expected)


@pytest.mark.parametrize(
    "statement",
    [
        "D(m,j) +=! i <= j ? exp(A(m,i) - X(m,j)) : 0.0 where j in 0:N",
        "D(m,j) +=! i <= j ? (A(m,i) > X(m,j) ? A(m,i) : 0.0) : 0.0 where j in 0:N",  # a condition that moves with both
        "D(m,j) +=! i <= j ? A(m,i) / (X(m,j) + B(m,i)) : 0.0 where j in 0:N",
        "D(m,j) +=! i <= j ? (A(m,i) + X(m,j)) * (X(m,j) + B(m,i)) : 0.0 where j in 0:N",
        "D(m,j) +=! i <= j ? A(m,I(i)) * X(m,j) : 0.0 where j in 0:N",  # a gather that may fail
        "D(m,j) +=! A(m,i) * X(m,j) where j in 0:N",  # no scan
        "D(m,j) max=! i <= j ? A(m,i) * X(m,j) : -infinity() where j in 0:N",
        "D(m,j) +=! i <= j ? A(m,i) : 0.0 where j in 0:N",  # a scan as it is
        "D(m,j) +=! i <= j ? A(m,i) * X(m,j) : 0.0 where j in 0:6",  # few results
        "D(m,j) +=! i <= 2 * j ? A(m,i) * X(m,j) : 0.0 where j in 0:50",  # a result has two terms more
    ],
)
def test_other_sums_stay(statement: str) -> None:
    before, after = of(statement)
    assert after.assignments == before.assignments



@pytest.mark.parametrize("statement", [ADJOINT, STRICT, GUARDED])
def test_faults_are_found(statement: str) -> None:
    before, after = of(statement)
    *scans, result = after.assignments

    def refused(assignments: list[Assignment]) -> None:
        wrong = replace(after, assignments=tuple(assignments), replaced=(tuple(assignments),))
        with pytest.raises(VerifyError, match="statement 1 of f"):
            verify_assignments("factor_scans", before, wrong)

    for place, scan in enumerate(scans):
        others = [*scans[:place], *scans[place + 1 :]]
        fewer = tuple((name, lower, upper - (name == "i")) for name, lower, upper in scan.bounds)
        assert isinstance(scan.value, Select)
        turned = replace(scan.value, then=Unary("-", scan.value.then, dtype="float32"))
        changed = [{"bounds": fewer}, {"value": scan.value.then}, {"value": turned}, {"start": None}]
        for wrong in (replace(scan, **change) for change in changed):
            refused([*scans[:place], wrong, *scans[place + 1 :], result])
        refused([*others, result])
    doubled = Binary("+", result.value, result.value, dtype="float32")
    unguarded = result.value.then if isinstance(result.value, Select) else result.value
    negative = Unary("-", result.value, dtype="float32")
    for value in {doubled, negative, unguarded} - {result.value}:
        refused([*scans, replace(result, value=value)])
    assert len(scans) > 1


@pytest.mark.parametrize("text", ["j <= i ? X(m,i) : 1.0", "i < j ? X(m,i) : 1.0"])
@pytest.mark.parametrize("zeros", [(), (5,), (5, 40)])
def test_the_gradient_of_a_prefix_product(text: str, zeros: tuple[int, ...]) -> None:
    torch.manual_seed(5)
    f = tcjit.define(f"def f(double(M,N) X) -> (P) {{ P(m,j) *=! {text} where j in 0:N }}")["f"]
    x = torch.rand(3, 150, dtype=torch.float64) + 0.5
    x[1, list(zeros)] = 0.0
    x.requires_grad_()
    seed, second = torch.randn(2, 3, 150, dtype=torch.float64)

    def expected(x: torch.Tensor) -> torch.Tensor:
        if text.startswith("j"):
            return torch.stack([x[:, j:].prod(1) for j in range(150)], 1)
        return torch.stack([x[:, :j].prod(1) for j in range(150)], 1)

    found = []
    for function in (f, expected):
        (first,) = torch.autograd.grad(function(x), x, seed)
        (again,) = torch.autograd.grad(function(x), x, seed, create_graph=True)
        (twice,) = torch.autograd.grad(again, x, second)
        found.append((first, again, twice))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_of_halves_have_gradients_in_float32(dtype: torch.dtype) -> None:
    name = "half" if dtype == torch.float16 else "bfloat16"
    f = tcjit.define(f"def f({name}(M,N) X) -> (P) {{ P(m) *=! X(m,n) }}")["f"]
    x = torch.tensor([[300.0, 300.0], [1e-3, 1e-3], [0.0, 2.0], [0.0, 0.0]], dtype=dtype, requires_grad=True)
    (found,) = torch.autograd.grad(f(x), x, torch.ones(4, dtype=dtype))
    assert torch.equal(found, x.detach().flip(1))


def test_no_term_is_no_factor() -> None:
    statement = "D(m,j) +=! i < j ? (B(m,i) > 0.0 ? A(m,i) * X(m,j) : A(m,i)) : 0.0 where j in 0:N"
    f = tcjit.define(f"def f({PARAMETERS}) -> (D) {{ {statement} }}")["f"]
    torch.manual_seed(3)
    a, b, x = torch.randn(3, 3, 400)
    b[0], b[1, :50] = -b[0].abs(), -b[1, :50].abs()
    x[0, ::7], x[1, :50], x[:, 0] = torch.inf, torch.nan, torch.nan
    before = torch.arange(400) < torch.arange(400)[:, None]
    terms = torch.where((b > 0)[:, None], a[:, None] * x[:, :, None], a[:, None])
    expected = torch.where(before, terms, 0.0).sum(2)
    assert expected.isfinite().all()
    torch.testing.assert_close(f(a, b, x, torch.zeros(400, dtype=torch.int32)), expected, rtol=1e-4, atol=1e-4)
