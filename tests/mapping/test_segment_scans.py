"""Sums over ties with a running extremum, as scans of segments and term by term.

Modules: mapping.passes.segment_scans mapping.tied_sums mapping.verify_segments
"""
from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from support.mapping import program

import tcjit
from tcjit.errors import VerifyError
from tcjit.grammar.ast import Binary, Select
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.passes.segment_scans import segment_scans
from tcjit.mapping.verify_assignments import verify_assignments

INF = "infinity()"
RUNNING = "M(b,t) {op} {guard} ? {element} : {neutral} where t in 0:N"
COUNT = "O(b,t) +=! ({guard} ? {element} : {neutral}) == M(b,t) ? 1.0 : 0.0"
SUM = "O(b,s) +=! {guard} && {element} == M(b,t) ? A(b,t) : 0.0"
HEAD = "def f(float(B,N) X, float(B,N) A) -> (M, O) {{ "
FORMS = [
    {"op": op, "guard": guard, "element": element, "neutral": "-" + INF if op == "max=!" else INF}
    for op in ("max=!", "min=!")
    for guard in ("s <= t", "s >= t")
    for element in ("X(b,s)", "abs(X(b,s) - 1.0)")
]


def text(sums: str, form: dict[str, str]) -> str:
    return f"{HEAD}{RUNNING} {sums} }}}}".format(**form).replace("}}", "}")


def expected(sums: str, form: dict[str, str], x: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    n = x.shape[1]
    element = x if "abs" not in form["element"] else (x - 1.0).abs()
    s, t = torch.arange(n)[None, :], torch.arange(n)[:, None]
    inside = s <= t if "<=" in form["guard"] else s >= t  # by result, then term
    sign = 1.0 if form["op"] == "max=!" else -1.0
    terms = torch.where(inside, element[:, None, :], -sign * torch.inf)
    running = terms.amax(-1) if sign > 0 else terms.amin(-1)
    if sums is COUNT:
        return running, (terms == running[..., None]).sum(-1).float()
    ties = inside & (element[:, None, :] == running[..., None])
    return running, torch.where(ties, a[:, :, None].double(), 0.0).sum(1).float()


def data(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    x = torch.randint(-3, 4, (6, n), generator=generator).float()
    x[1, n // 3] = torch.nan
    x[2, n // 4 :] = torch.inf
    x[3] = -torch.inf
    x[4] = torch.inf
    x[5] = torch.where(torch.rand(n, generator=generator) < 0.5, 0.0, -0.0)
    return x, torch.randn(6, n, generator=generator)


@pytest.mark.parametrize("sums", [COUNT, SUM], ids=["count", "sum"])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(form.values()))
def test_results(sums: str, form: dict[str, str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what M stores is compared with its expression
        f = tcjit.define(text(sums, form)).f
    x, a = data(101)
    running, results = f(x, a)
    want, wanted = expected(sums, form, x, a)
    torch.testing.assert_close(running, want, equal_nan=True)
    torch.testing.assert_close(results, wanted, rtol=1e-5, atol=1e-5)
    assert "segments" in f.compile(x, a).source


def assignments(body: str, n: int = 101) -> Assignments:
    return extract(program(f"def f(float(B,N) X, float(B,N) A) -> (M, O) {{ {body} }}", {"X": (4, n), "A": (4, n)}))


MAXIMUM = "M(b,t) max=! s <= t ? X(b,s) : -infinity() where t in 0:N"


@pytest.mark.parametrize(
    "body",
    [
        f"{MAXIMUM} O(b,s) +=! s < t && X(b,s) == M(b,t) ? A(b,t) : 0.0",  # other terms
        f"{MAXIMUM} O(b,s) +=! s <= t && A(b,s) == M(b,t) ? A(b,t) : 0.0",  # another element
        f"{MAXIMUM} O(b,s) +=! s <= t && X(b,s) == M(b,t) ? A(b,s) * A(b,t) : 0.0",  # moves with the result
        f"{MAXIMUM} O(b,s) +=! s <= t && X(b,s) == M(b,t) ? A(b,t) : 1.0",  # others count
        f"{MAXIMUM} O(b,s) +=! s <= t && X(b,s) == A(b,t) ? A(b,t) : 0.0",  # nothing that runs
        f"{MAXIMUM} M(b,t) = M(b,t) * 0.5 O(b,s) +=! s <= t && X(b,s) == M(b,t) ? A(b,t) : 0.0",  # it changes
        "M(b,t) max=! s <= t && s >= t - 3 ? X(b,s) : -infinity() where t in 0:N"
        " O(b,s) +=! s <= t && s >= t - 3 && X(b,s) == M(b,t) ? A(b,t) : 0.0",  # a window
        "M(b,t) max=! s <= t ? X(b,s) : 0.0 where t in 0:N O(b,s) +=! s <= t && X(b,s) == M(b,t) ? A(b,t) : 0.0",  # of other elements, too
        "M(b,t) += s <= t ? X(b,s) : 0.0 where t in 0:N O(b,s) +=! s <= t && X(b,s) == M(b,t) ? A(b,t) : 0.0",
    ],
)
def test_what_stays(body: str) -> None:
    before = assignments(body)
    assert segment_scans(before).assignments == before.assignments


def test_short_dimensions_stay() -> None:
    before = assignments(f"{MAXIMUM} {SUM.format(guard='s <= t', element='X(b,s)')}", 30)
    assert segment_scans(before).assignments == before.assignments


@pytest.mark.parametrize("sums", [COUNT, SUM], ids=["count", "sum"])
def test_the_proof_finds_what_is_wrong(sums: str) -> None:
    before = assignments(f"{MAXIMUM} {sums.format(guard='s <= t', element='X(b,s)', neutral='-infinity()')}")
    after = segment_scans(before)
    verify_assignments("segment_scans", before, after)
    maximum, (first, others, result) = after.replaced
    assert isinstance(others.value, Select)
    always = Binary("==", others.value.condition, others.value.condition, dtype="bool")
    shifted = tuple((name, lower + (name == others.scan), upper) for name, lower, upper in others.bounds)
    wrong = {
        "each element is a segment": (first, replace(others, value=others.value.other), result),
        "all are one": (first, replace(others, value=replace(others.value, condition=always)), result),
        "a sum is left out": (first, replace(others, bounds=shifted), result),
        "the first is another element's": (replace(first, bounds=others.bounds), others, result),
        "a result is its segment's sum": (first, others, replace(result, value=replace(first.element, subscripts=result.subscripts))),
        "a result is 0": (first, others, replace(result, value=others.value.other)),
    }
    if sums is COUNT:
        wrong["what is no term is not counted"] = wrong.pop("a result is its segment's sum")
    for parts in wrong.values():
        with pytest.raises(VerifyError, match="segment_scans"):
            verify_assignments("segment_scans", before, replace(before.with_parts([maximum, parts]), temporaries=after.temporaries))


def test_gradients_of_running_extrema_are_scans() -> None:
    f = tcjit.define("def f(float(B,N) X) -> (M) { M(b,t) max=! s <= t ? X(b,s) : -infinity() where t in 0:N }").f
    x = torch.randint(0, 9, (5, 130)).float().requires_grad_()
    weight = torch.randn(5, 130)
    (found,) = torch.autograd.grad(f(x), x, weight)
    below = torch.ones(130, 130, dtype=torch.bool).tril()
    running = torch.where(below, x[:, None, :], -torch.inf).amax(-1)
    (wanted,) = torch.autograd.grad(running, x, weight)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
