"""Contractions whose rows, columns or terms are several dimensions: which are folded to products of matrices, that these compute the same,
and what the proof refuses.

Modules: mapping.passes.fold_contractions mapping.verify_foldings
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.mapping import AVX512, program

import tcjit
from tcjit.errors import VerifyError
from tcjit.grammar.arithmetic import index, total
from tcjit.grammar.ast import Access, Const, Expr
from tcjit.grammar.walk import replaced
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries
from tcjit.mapping.extract import extract
from tcjit.mapping.index_classes import index_classes
from tcjit.mapping.options import Options
from tcjit.mapping.passes import fold_contractions as passes
from tcjit.mapping.passes.fold_contractions import Folded, fold_contractions, folded
from tcjit.mapping.verify_assignments import verify_assignments

Shapes = dict[str, tuple[int, ...]]
FOUR = "def f(float(F,B,E,A) X, float(E,C,F,D) Y) -> (Z) { Z(d,c,b,a) +=! X(f,b,e,a) * Y(e,c,f,d) }"
LARGE: Shapes = {"X": (72, 72, 72, 72), "Y": (72, 72, 72, 72)}
SMALL: Shapes = {"X": (3, 5, 4, 6), "Y": (4, 7, 3, 2)}
ALL: Folded = {"b_a": ("b", "a"), "c_d": ("c", "d"), "f_e": ("f", "e")}
UNITS = "def f(float(N,F,B,E,A) X, float(E,C,F) Y) -> (Z) { Z(n,c,b,a) +=! X(n,f,b,e,a) * Y(e,c,f) }"


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All classes with several dimensions are folded, however small."""
    monkeypatch.setattr(passes, "WORK", 1)
    monkeypatch.setattr(passes._Folding, "best", lambda self, temporaries: [dims for _, dims in self.choices(temporaries)][-1])
    yield


def made(text: str, shapes: Shapes, dims: Folded) -> tuple[Assignments, Assignments]:
    before = extract(program(text, shapes))
    temporaries, parts = Temporaries(before), list[Sequence[Assignment]]()
    for a in before.assignments:
        found = index_classes(a, temporaries.tensors)
        parts.append(folded(found, dims, temporaries) if found else (a,))
    return before, before.with_parts(parts, temporaries)


def shown(assignments: Assignments) -> list[str]:
    return [a.show() for a in assignments.assignments]


def test_short_dimensions_are_folded() -> None:
    before = extract(program(FOUR, LARGE))
    after = fold_contractions(before, Options(), AVX512)
    verify_assignments("fold_contractions", before, after)
    assert len(after.assignments) > 1 and any("72 * " in text for text in shown(after))


def test_all_classes() -> None:
    before, after = made(FOUR, SMALL, ALL)
    verify_assignments("fold_contractions", before, after)
    assert shown(after) == [
        "X_folded(4 * f + e, 6 * b + a) = X(f, b, e, a) where f in 0:3, b in 0:5, e in 0:4, a in 0:6",
        "Y_folded(4 * f + e, 2 * c + d) = Y(e, c, f, d) where e in 0:4, c in 0:7, f in 0:3, d in 0:2",
        "Z_folded(c_d, b_a) += X_folded(f_e, b_a) * Y_folded(f_e, c_d) from 0.0 where c_d in 0:14, b_a in 0:30, f_e in 0:12",
        "Z(d, c, b, a) = Z_folded(2 * c + d, 6 * b + a) where d in 0:2, c in 0:7, b in 0:5, a in 0:6",
    ]


def test_a_tensor_without_folded_dimensions_stays() -> None:
    before, after = made(FOUR, SMALL, {"b_a": ("b", "a")})
    verify_assignments("fold_contractions", before, after)
    assert [a.tensor for a in after.assignments] == ["X_folded", "Z_folded", "Z"]
    before, after = made(FOUR, SMALL, {"f_e": ("f", "e")})
    verify_assignments("fold_contractions", before, after)
    assert [a.tensor for a in after.assignments] == ["X_folded", "Y_folded", "Z"]


def test_dimensions_of_one_value() -> None:
    before, after = made(UNITS, {"X": (1, 3, 5, 4, 6), "Y": (4, 7, 3)}, {"b_a": ("b", "a"), "f_e": ("f", "e")})
    verify_assignments("fold_contractions", before, after)
    assert "n in 0:1" in shown(after)[0] and [a.tensor for a in after.assignments] == ["X_folded", "Y_folded", "Z_folded", "Z"]


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (FOUR, {"X": (8, 8, 8, 8), "Y": (8, 8, 8, 8)}),  # small
        ("def f(float(M,K) X, float(K,N) Y) -> (Z) { Z(m,n) +=! X(m,k) * Y(k,n) }", {"X": (800, 800), "Y": (800, 800)}),  # matrices
        (  # few uses of each element
            "def f(float(D,B,A) X, float(C,D) Y) -> (Z) { Z(c,b,a) +=! X(d,b,a) * Y(c,d) }",
            {"X": (24, 312, 312), "Y": (24, 24)},
        ),
        (  # heads of attention: a batch, and single dimensions
            "def f(float(B,H,N,D) X, float(B,H,M,D) Y) -> (Z) { Z(b,h,n,m) +=! X(b,h,n,d) * Y(b,h,m,d) }",
            {"X": (4, 8, 512, 64), "Y": (4, 8, 512, 64)},
        ),
    ],
)
def test_what_stays(text: str, shapes: Shapes) -> None:
    before = extract(program(text, shapes))
    assert fold_contractions(before, Options(), AVX512).assignments == before.assignments


EQUATIONS = ["fbea,ecfd->dcba", "aebf,dfce->abcd", "febc,edf->dcb", "gabe,gecd->gdbca", "bca,cbd->da", "eabf,fce->acb"]


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("dtype", ["float", "double", "bfloat16"])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_numbers(equation: str, dtype: str) -> None:
    """As ``torch.einsum`` has them, in several layouts."""
    sizes = {"a": 5, "b": 4, "c": 7, "d": 6, "e": 3, "f": 8, "g": 2}
    (left, right), result = equation.split("->")[0].split(","), equation.split("->")[1]
    x, y, z = (",".join(word) for word in (left, right, result))
    text = f"def f({dtype}({x.upper()}) X, {dtype}({y.upper()}) Y) -> (Z) {{ Z({z}) +=! X({x}) * Y({y}) }}"
    torch.manual_seed(0)
    kind = getattr(torch, {"float": "float32", "double": "float64"}.get(dtype, dtype))
    one, other = (torch.randn([sizes[i] for i in word]).to(kind) for word in (left, right))
    turned = one.permute(*reversed(range(one.dim()))).contiguous().permute(*reversed(range(one.dim())))
    expected = torch.einsum(equation, one.double(), other.double())
    tolerance = {"float": 1e-5, "double": 1e-13, "bfloat16": 2e-2}[dtype]
    for given in (one, turned):
        kernel = tcjit.define(text, target="cpu").f.compile(given, other, options=Options(reduction_chunks=1))
        torch.testing.assert_close(kernel(given, other).double(), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))
    assert "_folded" in tcjit.define(text, target="cpu").f.compile(one, other).source


@pytest.mark.usefixtures("everywhere")
def test_what_follows_and_what_was_there() -> None:
    """A pointwise statement behind a folded product, and a sum onto results, whose terms alone are folded."""
    layer = FOUR.replace(" }", "  W(d,c,b,a) = fmax(Z(d,c,b,a), 0.0) }").replace("(Z)", "(W)")
    onto = "def f(float(F,E,A) X, float(E,F,D) Y, float(D,A) S) -> (Z) { Z(d,a) = S(d,a)  Z(d,a) += X(f,e,a) * Y(e,f,d) }"
    torch.manual_seed(0)
    x, y = torch.randn(SMALL["X"]), torch.randn(SMALL["Y"])
    torch.testing.assert_close(tcjit.define(layer, target="cpu").f(x, y), torch.einsum("fbea,ecfd->dcba", x, y).relu())
    x, y, s = torch.randn(3, 4, 6), torch.randn(4, 3, 5), torch.randn(5, 6)
    kernel = tcjit.define(onto, target="cpu").f.compile(x, y, s)
    torch.testing.assert_close(kernel(x, y, s), s + torch.einsum("fea,efd->da", x, y))


Change = Callable[[list[Assignment]], list[Assignment]]


def _at(place: int, **changes: Any) -> Change:
    return lambda parts: [replace(a, **changes) if number == place else a for number, a in enumerate(parts)]


def _with_turned_factor(a: Assignment) -> Expr:
    """A product whose right factor has its subscripts in another order."""
    right = a.reads[1]
    return replaced(a.value, {right: replace(right, subscripts=right.subscripts[::-1])})


WRONG_RADIX = total([(3, index("f")), (1, index("e"))]), total([(6, index("b")), (1, index("a"))])
FAULTS: dict[str, Change] = {
    "a place is taken twice": _at(0, subscripts=WRONG_RADIX),
    "another order of digits": _at(0, subscripts=(total([(1, index("f")), (3, index("e"))]), WRONG_RADIX[1])),
    "a part is not copied": _at(0, bounds=(("f", 0, 2), ("b", 0, 5), ("e", 0, 4), ("a", 0, 6))),
    "another element is copied": lambda parts: [replace(parts[0], value=replace(parts[0].reads[0], tensor="Y")), *parts[1:]],
    "a copy is lost": lambda parts: parts[1:],
    "terms are lost": _at(2, bounds=(("c_d", 0, 14), ("b_a", 0, 30), ("f_e", 0, 11))),
    "results are lost": _at(2, bounds=(("c_d", 0, 13), ("b_a", 0, 30), ("f_e", 0, 12))),
    "a term is a result": _at(2, reduction=("f_e", "b_a")),
    "another start": _at(2, start=Const(1.0, dtype="float32")),
    "another sum": _at(2, operator="max="),
    "results are not copied": lambda parts: parts[:3],
    "some results are copied": _at(3, bounds=(("d", 0, 2), ("c", 0, 6), ("b", 0, 5), ("a", 0, 6))),
    "results go elsewhere": _at(3, subscripts=tuple(map(index, "dcab"))),
    "results come from elsewhere": lambda parts: [
        *parts[:3],
        replace(parts[3], value=Access("Z_folded", (total([(7, index("d")), (1, index("c"))]), WRONG_RADIX[1]), dtype="float32")),
    ],
    "results are copied to the operand": _at(3, tensor="X"),
    "factors are of different terms": lambda parts: [
        *parts[:2],
        replace(parts[2], value=_with_turned_factor(parts[2])),
        parts[3],
    ],
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_proof_finds_faults(fault: str) -> None:
    before, after = made(FOUR, SMALL, ALL)
    wrong = tuple(FAULTS[fault](list(after.assignments)))
    with pytest.raises(VerifyError):
        verify_assignments("fold_contractions", before, replace(after, assignments=wrong, replaced=(wrong,)))


@pytest.mark.parametrize("shape", [(13, 30), (12, 31), (30, 14)])
def test_the_proof_knows_the_shapes_of_copies(shape: tuple[int, int]) -> None:
    before, after = made(FOUR, SMALL, ALL)
    temporaries = tuple((source, replace(t, shape=shape) if t.name == "X_folded" else t) for source, t in after.temporaries)
    with pytest.raises(VerifyError):
        verify_assignments("fold_contractions", before, replace(after, temporaries=temporaries))
