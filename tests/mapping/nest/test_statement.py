"""Statements with flat accesses: their forms against enumeration, and accesses that have none.

Modules: mapping.nest.affine_statement mapping.nest.merge_dims
"""

from __future__ import annotations

from collections import Counter
from itertools import product

import islpy as isl
import pytest
from support.nests import affine_of, flat, points, results_of, terms_of

from tcjit.errors import MappingError
from tcjit.mapping.nest.merge_dims import shift_dims
from tcjit.mapping.nest.statement import Place, linear_form

BOX = isl.Set("{ [i, k] : 0 <= i < 4 and 0 <= k < 5 }")


def form(place: str, domain: str = "0 = 0") -> tuple[dict[str, int], int]:
    given, where = Place(isl.PwAff(f"{{ [i, k] -> [({place})] }}")), BOX.intersect(isl.Set(f"{{ [i, k] : {domain} }}"))
    found = linear_form("X", 100, given, ("i", "k"), where)
    return dict(found.form), found.constant


@pytest.mark.parametrize(
    ("place", "domain", "expected"),
    [
        ("5 * (i) + k", "0 = 0", ({"i": 5, "k": 1}, 0)),
        ("7", "0 = 0", ({}, 7)),
        ("3 - k + 2 * (i + k - 1)", "0 = 0", ({"i": 2, "k": 1}, 1)),
        ("floor((i + k)/2)", "(i + k) mod 2 = 0 and i = k", ({"k": 1}, 0)),
        ("floor((4*i + k)/4)", "k < 4", ({"i": 1}, 0)),
        ("floor((4*i + k)/4)", "k = 4", ({"i": 1}, 1)),
    ],
)
def test_forms(place: str, domain: str, expected: tuple[dict[str, int], int]) -> None:
    found = form(place, domain)
    where = BOX.intersect(isl.Set(f"{{ [i, k] : {domain} }}"))
    given = isl.PwAff(f"{{ [i, k] -> [({place})] }}")
    for i, k in points(where):
        at = isl.Point.zero(where.get_space()).set_coordinate_val(3, 0, i).set_coordinate_val(3, 1, k)
        assert given.eval(at).to_python() == found[1] + found[0].get("i", 0) * i + found[0].get("k", 0) * k
    assert found == expected or "=" in domain  # an equality may name one dimension by the other


@pytest.mark.parametrize(
    ("place", "domain", "reason"),
    [
        ("floor((i + k)/2)", "0 = 0", "divides an index"),
        ("floor((4*i + k)/4)", "0 = 0", "divides an index"),
        ("max(i, k)", "0 = 0", "in pieces"),
        ("i + k", "i > 10", "in pieces"),  # no points, no form
    ],
)
def test_places_without_a_form(place: str, domain: str, reason: str) -> None:
    with pytest.raises(MappingError, match=reason):
        form(place, domain)


def test_a_statement_of_an_assignment() -> None:
    text = "def f(float(N,H) X, float(K) w) -> (O) { O(h,n) +=! X(n, 2*h + k) * w(k) where h in 0:3 }"
    s = flat(text, {"X": (2, 8), "w": (3,)})
    assert s.outputs == ("h", "n") and s.terms == ("k",) and s.is_box and s.stored and not s.epilogue
    expected = ((2 * h + n, 8 * n + 2 * h + k, k) for h, n, k in product(range(3), range(2), range(3)))
    assert terms_of(s) == Counter(expected) and results_of(s) == Counter(range(6))
    assert [flat.elements for flat in s.accesses] == [6, 16, 3] and [s.extent(dim) for dim in s.dims] == [3, 2, 3]
    assert s.write.stride("k") == 0 and s.write.stride("h") == 2


def test_names_that_isl_keeps_for_itself() -> None:
    text = "def f(float(N,K) A) -> (O) { O(mod) +=! (floor <= mod ? A(mod,floor) : 0.0) }"
    s = flat(text, {"A": (3, 4)})
    assert s.dims == ("mod_", "floor_") and not s.is_box
    assert terms_of(s) == Counter((i, 4 * i + k) for i in range(3) for k in range(4) if k <= i)


def test_gathers_have_no_statement() -> None:
    text = "def f(float(E,D) T, int64(B,L) I) -> (O) { O(b,d) +=! T(I(b,l), d) }"
    with pytest.raises(MappingError, match="not affine"):
        affine_of(text, {"T": (5, 4), "I": (2, 3)})


def test_shifted_dimensions_start_at_0() -> None:
    s = flat("def f(float(N,K) A) -> (O) { O(i) +=! (k <= i + 1 ? A(i + 3,k + 1) : 0.0) where i in 0:2, k in 2:4 }", {"A": (6, 6)})
    assert s.range("k")[0] == 2
    moved = shift_dims(s)
    assert terms_of(moved) == terms_of(s) and results_of(moved) == results_of(s)
    assert all(moved.range(dim)[0] == 0 for dim in moved.dims)
    assert shift_dims(moved) is moved


@pytest.mark.parametrize("condition", ["i < 1", "i == n", "i == 2"])
def test_the_write_is_that_of_all_results(condition: str) -> None:
    text = f"def f(float(M,K) A, float(K,N) B) -> (O) {{ O(i,n) +=! ({condition} ? A(i,k) * B(k,n) : 0.0) }}"
    s = flat(text, {"A": (4, 3), "B": (3, 5)})
    assert results_of(s) == Counter(range(20))
