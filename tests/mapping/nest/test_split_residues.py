"""Residue classes: every point in one of them, what is refused, and results of which no class may be forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import islpy as isl
import pytest
from support.nests import DIM, points, restricted, results_of, terms_of

from tcjit.errors import MappingError, VerifyError
from tcjit.mapping.nest.split_residues import (
    MAX_CLASSES,
    covers_results,
    divisors,
    embedding,
    moduli,
    split_residues,
    verify_split_residues,
)
from tcjit.mapping.nest.statement import AffineStatement, FlatStatement

GUARD = "{h} + {p} - {k} >= 0 && ({h} + {p} - {k}) % {s} == 0 && ({h} + {p} - {k}) / {s} < {H}"


def guard(h: str, k: str, extent: str, stride: int, padding: int) -> str:
    return GUARD.format(h=h, k=k, H=extent, s=stride, p=padding)


def transposed(stride: int, padding: int) -> str:
    """A transposed convolution in one dimension, from X (C, H) to F channels."""
    inside = guard("h", "kh", "H", stride, padding)
    value, extent = f"X(c, (h + {padding} - kh) / {stride}) * W(c, f, kh)", f"{stride} * (H - 1) + K - 2 * {padding}"
    return f"def f(float(C,H) X, float(C,F,K) W) -> (O) {{ O(f,h) +=! ({inside} ? {value} : 0.0) where h in 0:{extent} }}"


def classes(text: str, shapes: dict[str, tuple[int, ...]]) -> tuple[AffineStatement, list[FlatStatement]]:
    whole = restricted(text, shapes)
    parts = split_residues(whole)
    verify_split_residues(whole, parts)
    return whole, [part.flat() for part, _ in parts]


@pytest.mark.parametrize(("stride", "padding", "kernel"), [(2, 1, 4), (2, 0, 3), (3, 1, 5), (3, 0, 2), (2, 0, 1)])
def test_transposed_convolution(stride: int, padding: int, kernel: int) -> None:
    shapes = {"X": (2, 5), "W": (2, 3, kernel)}
    text = transposed(stride, padding)
    whole = restricted(text, shapes)
    assert set(moduli(whole.domain, whole.dims)) <= {"h", "kh"}
    longest = stride * 4 + kernel - 2 * padding
    expected: Counter[tuple[int, ...]] = Counter()
    for f, h, c, k in product(range(3), range(longest), range(2), range(kernel)):
        x, rest = divmod(h + padding - k, stride)
        if rest == 0 and 0 <= x < 5:
            expected[(f * longest + h, c * 5 + x, (c * 3 + f) * kernel + k)] += 1
    _, parts = classes(text, shapes) if kernel >= stride else (None, [])
    if kernel >= stride:  # else whole classes of results have no terms
        assert sum((terms_of(part) for part in parts), Counter()) == expected
        assert sum((results_of(part) for part in parts), Counter()) == Counter(range(3 * longest))
        assert all(flat.form.keys() <= set(part.dims) for part in parts for flat in part.accesses)


@pytest.mark.parametrize(("stride", "kernel"), [(2, 4), (3, 6), (2, 2)])
def test_quotients_of_results_that_no_condition_divides(stride: int, kernel: int) -> None:
    """A transposed convolution that is written with the taps of each parity: as many classes as the stride, each with linear accesses."""
    taps, extent = kernel // stride, 5 * stride
    inside = f"(h + 1) / {stride} - p >= 0 && (h + 1) / {stride} - p < H"
    value = f"X(c, (h + 1) / {stride} - p) * W(c, f, (h + 1) % {stride} + {stride} * p)"
    text = f"def f(float(C,H) X, float(C,F,K) W) -> (O) {{ O(f,h) +=! ({inside} ? {value} : 0.0) where h in 0:{extent}, p in 0:{taps} }}"
    whole, parts = classes(text, {"X": (2, 5), "W": (2, 3, kernel)})
    assert moduli(whole.domain, whole.dims) == {} and divisors(whole) == {"h": stride} and len(parts) == stride
    expected: Counter[tuple[int, ...]] = Counter()
    for f, h, c, p in product(range(3), range(extent), range(2), range(taps)):
        x, rest = (h + 1) // stride - p, (h + 1) % stride
        if 0 <= x < 5:
            expected[(f * extent + h, c * 5 + x, (c * 3 + f) * kernel + rest + stride * p)] += 1
    assert sum((terms_of(part) for part in parts), Counter()) == expected
    assert sum((results_of(part) for part in parts), Counter()) == Counter(range(3 * extent))


def test_two_dimensions() -> None:
    inside = f"{guard('h', 'kh', 'H', 2, 1)} && {guard('w', 'kw', 'H', 2, 1)}"
    value = "X((h + 1 - kh) / 2, (w + 1 - kw) / 2) * W(kh, kw)"
    text = f"def f(float(H,H) X, float(K,K) W) -> (O) {{ O(h,w) +=! ({inside} ? {value} : 0.0) where h in 0:2*H, w in 0:2*H }}"
    whole, parts = classes(text, {"X": (3, 3), "W": (4, 4)})
    assert [part.name for part in parts] == ["S_0011", "S_0110", "S_1001", "S_1100"] or len(parts) == 4
    expected: Counter[tuple[int, ...]] = Counter()
    for h, w, i, j in product(range(6), range(6), range(4), range(4)):
        (x, a), (y, b) = divmod(h + 1 - i, 2), divmod(w + 1 - j, 2)
        if a == b == 0 and 0 <= x < 3 and 0 <= y < 3:
            expected[(6 * h + w, 3 * x + y, 4 * i + j)] += 1
    assert sum((terms_of(part) for part in parts), Counter()) == expected
    assert sum((results_of(part) for part in parts), Counter()) == Counter(range(36))
    assert len(points(whole.domain)) == expected.total()


def test_terms_alone() -> None:
    """Strides of a sum over every second term stay a single statement."""
    _, parts = classes("def f(float(N,K) A) -> (O) { O(i) +=! (k % 2 == 1 ? A(i,k) : 0.0) }", {"A": (3, 9)})
    (part,) = parts
    assert terms_of(part) == Counter((i, 9 * i + k) for i in range(3) for k in range(1, 9, 2))
    assert results_of(part) == Counter(range(3))


def test_without_a_modulus_nothing_is_split() -> None:
    whole = restricted("def f(float(N,K) A) -> (O) { O(i) +=! (k <= i ? A(i,k) : 0.0) }", {"A": (3, 9)})
    ((part, points_of),) = split_residues(whole)
    identity = embedding(whole.domain.get_ctx(), whole.dims, {}, {})
    assert part is whole and isl.Map.from_multi_aff(points_of).is_equal(isl.Map.from_multi_aff(identity))


def test_residues_of_results_decide_on_those_of_terms() -> None:
    whole = restricted(transposed(5, 0), {"X": (2, 5), "W": (2, 3, 6)})
    assert moduli(whole.domain, whole.dims) == {"h": 5, "kh": 5}
    parts = split_residues(whole)
    assert len(parts) == 5 < MAX_CLASSES
    verify_split_residues(whole, parts)


@pytest.mark.parametrize("stride", [MAX_CLASSES + 1, 2 * MAX_CLASSES], ids=["classes", "combinations of residues"])
def test_too_many_classes(stride: int) -> None:
    whole = restricted(transposed(stride, 0), {"X": (2, 5), "W": (2, 3, stride + 1)})
    ((part, _),) = split_residues(whole)
    assert part is whole
    with pytest.raises(MappingError, match="divides an index"):
        part.flat()


def test_faults_are_found() -> None:
    whole = restricted(transposed(2, 1), {"X": (2, 5), "W": (2, 3, 4)})
    parts = split_residues(whole)
    verify_split_residues(whole, parts)
    for wrong in (parts[1:], [*parts, parts[0]], [(part, parts[0][1]) for part, _ in parts]):
        with pytest.raises(VerifyError, match="split_residues"):
            verify_split_residues(whole, wrong)


@pytest.mark.parametrize(
    ("condition", "started"),
    [
        ("(k + l) % 2 == 0", range(4)),
        ("(i + k + l) % 2 == 0", range(4)),
        ("i % 2 == 0 && k % 2 == 0", (0, 2)),  # the others have no terms
        ("(i + 2 * k) % 4 == 0", (0, 2)),
    ],
)
def test_a_result_is_started_by_one_class_at_most(condition: str, started: Iterable[int]) -> None:
    text = f"def f(float(N,K,L) A) -> (O) {{ O(i) +=! ({condition} ? A(i,k,l) : 0.0) }}"
    whole = restricted(text, {"A": (4, 4, 4)})
    parts = split_residues(whole)
    verify_split_residues(whole, parts)
    assert sum((results_of(part.flat()) for part, _ in parts), Counter()) == Counter(started)
    assert covers_results(whole, parts) == (set(started) == set(range(4)))


def test_embeddings() -> None:
    whole = restricted(transposed(2, 1), {"X": (2, 5), "W": (2, 3, 4)})
    assert whole.dims[:2] == ("f", "h")
    for part, points_of in split_residues(whole):
        assert points_of.dim(DIM.out) == len(whole.dims)
        for at in points(part.domain)[:3]:
            residues = dict(zip(("h", "kh"), map(int, part.name.removeprefix("S_"))))
            image = tuple(2 * x + residues[dim] if dim in residues else x for dim, x in zip(part.dims, at))
            assert image in points(whole.domain)


def test_classes_of_a_dimension_whose_loop_is_shared() -> None:
    """Other statements have loops over all of its points: an iteration of one over those of a class is not the same."""
    whole = restricted(transposed(2, 1), {"X": (2, 5), "W": (2, 3, 4)})
    assert len(split_residues(replace(whole, shared=("f",)))) == 2
    with pytest.raises(MappingError, match="share"):
        split_residues(replace(whole, shared=("h",)))
