"""Updates of register tiles under masks of their terms' conditions: the text, and results for all relations, types and widths.

Modules: codegen.predication
"""

from __future__ import annotations

import pytest
import torch

import tcjit

PRODUCT = "def f(%s(M,K) A, %s(K,N) B, %s(M,K) Q) -> (C) { C(m,n) %s! (%s) ? A(m,k) * B(k,n) : %s }"
RELATIONS = {"==": torch.eq, "!=": torch.ne, "<": torch.lt, "<=": torch.le, ">": torch.gt, ">=": torch.ge}
TYPES = {"float": torch.float32, "double": torch.float64, "int32": torch.int32}


def arguments(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Whole numbers, so that sums in any order are the same."""
    generator = torch.Generator().manual_seed(0)
    a, b, q = (torch.randint(-3, 4, shape, generator=generator).to(dtype) for shape in ((37, 29), (29, 61), (37, 29)))
    return a, b, q


@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("dtype", TYPES)
def test_relations(dtype: str, relation: str, width: int) -> None:
    a, b, q = arguments(TYPES[dtype])
    zero = "0" if dtype == "int32" else "0.0"
    text = PRODUCT % (dtype, dtype, dtype, "+=", f"Q(m,k) {relation} 1", zero)
    kernel = tcjit.define(text, target="cpu").f.compile(a, b, q, options=tcjit.Options(vector_width=width) if width else None)
    assert "tc_blend" in kernel.source and "tc_a0_0 + tc_select" not in kernel.source
    assert torch.equal(kernel(a, b, q), torch.where(RELATIONS[relation](q, 1), a, 0) @ b)


@pytest.mark.parametrize(("operator", "rest"), [("max=", float("-inf")), ("min=", float("inf"))])
def test_extremes(operator: str, rest: float) -> None:
    a, b, q = arguments(torch.float32)
    constant = "-1.0 / 0.0" if rest < 0 else "1.0 / 0.0"
    kernel = tcjit.define(PRODUCT % ("float", "float", "float", operator, "Q(m,k) > 0 && A(m,k) != 1 || Q(m,k) == -2", constant)).f
    mask = ((q > 0) & (a != 1) | (q == -2))[:, :, None]
    terms = torch.where(mask, a[:, :, None] * b, rest)
    assert torch.equal(kernel(a, b, q), terms.amax(1) if rest < 0 else terms.amin(1))


@pytest.mark.parametrize(("dtype", "least", "greatest"), [("uint8", 0, 255), ("int8", -128, 127), ("int16", -(2**15), 2**15 - 1)])
def test_narrow_integers(dtype: str, least: int, greatest: int) -> None:
    kind = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(0)
    first = max(-5, least)
    a, b, q = (torch.randint(first, 9, size, generator=generator).to(kind) for size in ((37, 29), (29, 61), (37, 29)))
    terms = torch.minimum(a[:, :, None], b).long()
    for operator, rest in (("max=", least), ("min=", greatest)):
        text = "def f(%s(M,K) A, %s(K,N) B, %s(M,K) Q) -> (C) { C(m,n) %s! Q(m,k) >= 2 && Q(m,k) != 3 ? min(A(m,k), B(k,n)) : %s(%d) }"
        kernel = tcjit.define(text % (dtype, dtype, dtype, operator, dtype, rest), target="cpu").f.compile(a, b, q)
        wanted = torch.where(((q >= 2) & (q != 3))[:, :, None], terms, rest)
        assert "tc_blend" in kernel.source
        assert torch.equal(kernel(a, b, q).long(), wanted.amax(1) if operator == "max=" else wanted.amin(1))


def test_terms_that_do_not_count_are_not_computed_with() -> None:
    """An infinity beside a condition that does not hold is no NaN, and a comparison with one does not hold."""
    a, b, q = arguments(torch.float32)
    a[3, 5], q[3, 5], b[7, 9], q[:, 7] = float("inf"), 0.0, float("nan"), float("nan")
    found = tcjit.define(PRODUCT % ("float", "float", "float", "+=", "Q(m,k) > 0", "0.0")).f(a, b, q)
    assert torch.equal(found, torch.where(q > 0, a, 0.0) @ torch.where(torch.isnan(b), 0.0, b)) and bool(found.isfinite().all())


@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("where", ["k", "n", "both"])
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_infinities_under_masks_do_not_count(dtype: str, where: str, width: int) -> None:
    """Where masks are vectors, sums of products with 0 that are no numbers are computed again: those of terms that do not count."""
    a, b, q = arguments(TYPES[dtype])
    mask = {"k": q[:, :, None] > 1, "n": (q.sum(0)[:, None] > b)[None], "both": q[:, :, None] > b[None]}[where].expand(37, 29, 61)
    test = {"k": "Q(m,k) > 1", "n": "S(k) > B(k,n)", "both": "Q(m,k) > B(k,n)"}[where]
    text = f"def f({dtype}(M,K) A, {dtype}(K,N) B, {dtype}(M,K) Q, {dtype}(K) S) -> (C, D) {{ C(m,n) +=! ({test}) ? A(m,k) * B(k,n) : 0.0 "
    kernel = tcjit.define(f"{text} D(m,n) = 2.0 * C(m,n) + 1.0 }}").f.compile(a, b, q, q.sum(0), options=tcjit.Options(vector_width=width))
    if torch.finfo(a.dtype).bits // 8 * width < 64:
        assert "tc_again" in kernel.source and "tc_or_zero" in kernel.source
    generator = torch.Generator().manual_seed(1)
    for number, values in enumerate(([], [float("inf")], [float("nan")], [float("-inf"), float("nan"), float("inf")])):
        left, right = a.clone(), b.clone()
        for value in values:
            for tensor in (left, right) if where == "k" else (left,):
                at = torch.randint(tensor.numel(), (1 + number,), generator=generator)
                tensor.view(-1)[at] = value
        terms = torch.where(mask, left[:, :, None] * right[None], 0)
        found = kernel(left, right, q, q.sum(0))
        torch.testing.assert_close(found[0], terms.sum(1), rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(found[1], 2 * terms.sum(1) + 1, rtol=0, atol=0, equal_nan=True)


def test_other_values_are_selected() -> None:
    """One that changes the sum is a term as well."""
    a, b, q = arguments(torch.float32)
    kernel = tcjit.define(PRODUCT % ("float", "float", "float", "+=", "Q(m,k) > 0", "2.0"), target="cpu").f.compile(a, b, q)
    assert torch.equal(kernel(a, b, q), torch.where((q > 0)[:, :, None], a[:, :, None] * b, 2.0).sum(1))
