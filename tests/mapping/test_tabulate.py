"""Functions of indices that are computed in tables over linear forms, and that wrong tables are refused.

Modules: mapping.passes.tabulate mapping.verify_tables
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from support.mapping import program

import tcjit
from tcjit.errors import VerifyError
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.passes.tabulate import tabulate, tabulate_conditions
from tcjit.mapping.verify_assignments import verify_assignments

DECAY = "Y(b,t) +=! (s <= t) ? pow(0.9, t - s) * X(b,s) : 0.0 where t in 0:T"


def before(body: str, t: int = 60) -> Assignments:
    return extract(program(f"def f(float(B,T) X, float a) -> (Y) {{ {body} }}", {"X": (30, t)}))


def tabulated(body: str, t: int = 60) -> list[str]:
    given = before(body, t)
    functions = tabulate(given)
    verify_assignments("tabulate", given, functions)
    made = tabulate_conditions(functions)
    verify_assignments("tabulate_conditions", functions, made)
    return [one.show() for one in made.assignments]


def test_a_table_has_the_values_that_conditions_leave() -> None:
    assert tabulated(DECAY) == [
        "Y_table(v) = pow(0.9, float32(int32(v))) where v in 0:60",
        "Y(b, t) += s <= t ? Y_table(-1 * s + t) * X(b, s) : 0.0 from 0.0 where b in 0:30, t in 0:60, s in 0:60",
    ]


def test_forms_beside_indices_and_tables_that_serve_twice() -> None:
    body = "Y(b,t) +=! exp(-a * (t - s)) * X(b,s) + exp(-a * (t - s)) where t in 0:T"
    table, update = tabulated(body)
    assert table == "Y_table(v) = exp(-a * float32(int32(v + -59))) where v in 0:119" and update.count("Y_table(-1 * s + t + 59)") == 2
    shifted = tabulated("Y(b,t) +=! sin(0.1 * (b * (2*t - s) % 7)) * X(b,s) where t in 0:T")
    assert shifted[0] == "Y_table(v, v1) = sin(0.1 * float32(int32(v) * int32(v1 + -59) % 7)) where v in 0:30, v1 in 0:178"


@pytest.mark.parametrize(
    "body",
    [
        "Y(b,t) +=! exp(0.1 * s) * X(b,s) where t in 0:T",  # what `hoist_invariants` has
        "Y(b,t) +=! exp(0.1 * (t - s) * s) * X(b,s) where t in 0:T",  # more values than t and s have
        "Y(b,t) +=! exp(X(b,t) * (t - s)) * X(b,s)",  # of data
        "Y(b,t) = exp(0.1 * (t - b)) * X(b,t)",  # no sum
    ],
)
def test_what_stays(body: str) -> None:
    given = before(body)
    assert tabulate(given).assignments == tabulate_conditions(given).assignments == given.assignments


@pytest.mark.parametrize("number", range(4))
def test_wrong_tables_are_refused(number: int) -> None:
    given = before(DECAY)
    made = tabulate(given)
    table, update = made.assignments
    wrong: list[Assignment] = [
        replace(table, value=tabulate(before(DECAY.replace("0.9", "0.8"))).assignments[0].value),
        replace(table, bounds=(("v", 0, 59),)),
        replace(table, bounds=(("v", 1, 60),)),
        tabulate(before("Y(b,t) +=! (s <= t) ? pow(0.9, t - s + 1) * X(b,s) : 0.0 where t in 0:T")).assignments[0],
    ]
    parts = [wrong[number], update]
    with pytest.raises(VerifyError):
        verify_assignments("tabulate", given, made.with_parts([parts]))


@pytest.mark.parametrize("target", ["cpu", "opencl"])
def test_numbers(target: str) -> None:
    text = f"def f(float(B,T) X, float a) -> (Y) {{ {DECAY} }}"
    x = torch.randn(30, 61)
    steps = torch.arange(61)[:, None] - torch.arange(61)
    weights = torch.where(steps >= 0, 0.9 ** steps.double(), 0.0)
    torch.testing.assert_close(tcjit.define(text, target=target).f(x, 1.0).double(), x.double() @ weights.T, rtol=1e-5, atol=1e-5)


def test_conditions_that_no_domain_is_made_of() -> None:
    assert tabulated("Y(b,t) +=! (t + s) % 3 != 0 ? X(b,s) : 0.0 where t in 0:T") == [
        "Y_table(v) = v % 3 != 0 ? 1.0 : 0.0 where v in 0:119",
        "Y(b, t) += Y_table(s + t) != 0.0 ? X(b, s) : 0.0 from 0.0 where b in 0:30, t in 0:60, s in 0:60",
    ]
    assert tabulated("Y(b,t) +=! t * s < 100 ? X(b,s) : 0.0 where t in 0:T")[0].endswith("? 1.0 : 0.0 where v in 0:60, v1 in 0:60")
    pointwise = tabulated("Y(b,t) = (b + t) % 5 == 2 ? exp(X(b,t)) : 0.0", 600)
    assert len(pointwise) == 2 and "Y_table(b + t) != 0.0 ? exp(X(b, t)) : 0.0" in pointwise[1]


SEGMENTS = "def f(float(B,T) X, float(T,D) V, int32(T) S, int32(B,T) M) -> (Y) {{ Y(b,d) +=! {} }}"


def of_segments(body: str) -> tuple[Assignments, Assignments]:
    given = extract(program(SEGMENTS.format(body), {"X": (30, 60), "V": (60, 40), "S": (60,), "M": (30, 60)}))
    return given, tabulate_conditions(given)


@pytest.mark.parametrize(
    ("body", "tables"),
    [
        ("M(b,t) != 0 ? X(b,t) * V(t,d) : 0.0", ["M(v, v1) != 0 ? 1.0 : 0.0 where v in 0:30, v1 in 0:60"]),
        ("t <= b && S(t) == S(b) ? X(b,t) * V(t,d) : 0.0", ["S(v1) == S(v) ? 1.0 : 0.0 where v in 0:30, v1 in 0:60"]),
        ("X(b,t) > 0.5 ? X(b,t) * V(t,d) : 0.0", []),  # nests compare what they sum
        ("X(b,t) * (t <= b ? V(t,d) : 0.0)", ["v1 <= v ? 1.0 : 0.0 where v in 0:30, v1 in 0:60"]),  # in every term
        ("(t <= b ? X(b,t) : 0.0) * V(t,d)", []),  # computed once for each d
        ("t > b ? 0.0 : X(b,t) * V(t,d)", []),  # a domain
    ],
)
def test_conditions_on_data_of_other_types_and_inside_of_terms(body: str, tables: list[str]) -> None:
    given, made = of_segments(body)
    verify_assignments("tabulate_conditions", given, made)
    assert [one.show().split(" = ", 1)[1] for one in made.assignments[:-1]] == tables


def test_a_table_of_what_changes_is_refused() -> None:
    text = "def f(int32(N,N) A, float(N,N) B) -> (C) { C(i,d) +=! A(i,j) != 0 ? B(j,d) : 0.0 }"
    given = extract(program(text, {"A": (40, 40), "B": (40, 40)}))
    made = tabulate_conditions(given)
    verify_assignments("tabulate_conditions", given, made)
    table, update = made.assignments
    own = replace(table, tensor=update.tensor)
    for parts in ([own, update], [update, table], [replace(table, value=update.value), update]):
        with pytest.raises(VerifyError):
            verify_assignments("tabulate_conditions", given, made.with_parts([parts]))


@pytest.mark.parametrize("seed", range(30))
def test_masks_drawn_at_random(seed: int) -> None:
    """Conditions on indices and data around terms and around their factors, in any order, with zeros and other values beside."""
    rng, numbers = random.Random(seed), torch.Generator().manual_seed(seed)
    m, n, k = (rng.choice([16, 24, 30, 33, 40]) for _ in range(3))
    kind = rng.choice(["int32", "int64", "uint8", "float"])
    a, b = (torch.randint(-4, 5, shape, generator=numbers).float() for shape in ((m, k), (k, n)))
    dtype = getattr(torch, kind)
    q, p, g = (torch.randint(0, 3, shape, generator=numbers).to(dtype) for shape in ((m, k), (k,), (m,)))
    i, j, d = torch.arange(m).view(m, 1, 1), torch.arange(k).view(1, k, 1), torch.arange(n).view(1, 1, n)
    known = {"Q(i,j) > 0": q[:, :, None] > 0, "P(j) == G(i)": p[None, :, None] == g[:, None, None], "P(j) > 1": p[None, :, None] > 1}
    known |= {"j <= i": j <= i, "d != j": d != j, "(i + j) % 3 != 0": (i + j) % 3 != 0, "i / 4 == j / 4": i // 4 == j // 4, "j < 9": j < 9}

    def guarded(text: str, value: torch.Tensor, other: int) -> tuple[str, torch.Tensor]:
        names = rng.sample(sorted(known), rng.choice([0, 1, 1, 2]))
        where = torch.ones(1, 1, 1, dtype=torch.bool)
        for name in names:
            where = where & known[name]
        return (f"({' && '.join(names)} ? {text} : {other})", torch.where(where, value, other)) if names else (text, value)

    left, right = guarded("A(i,j)", a[:, :, None], rng.choice([0, 1])), guarded("B(j,d)", b[None], rng.choice([0, 2]))
    operator = rng.choice(["+=!", "+=!", "max=!"])
    body, terms = guarded(f"{left[0]} * {right[0]}", (left[1] * right[1]).expand(m, k, n), 0 if operator == "+=!" else rng.choice([-3, 5]))
    text = f"""def f(float(M,K) A, float(K,N) B, {kind}(M,K) Q, {kind}(K) P, {kind}(M) G) -> (C) {{ C(i,d) {operator} {body} }}"""
    wanted = terms.double().sum(1) if operator == "+=!" else terms.double().amax(1)
    assert torch.equal(tcjit.define(text, target="cpu").f(a, b, q, p, g).double(), wanted)


@pytest.mark.parametrize(
    "body",
    [
        "Y(b,t) +=! s <= t ? X(b,s) : 0.0 where t in 0:T",  # a domain
        "Y(b,t) max=! s <= t ? X(b,s) : -infinity() where t in 0:T",
        "Y(b,t) +=! t % 2 == s % 2 ? X(b,s) : 0.0 where t in 0:T",  # residue classes
        "Y(b,t) +=! t / 4 == s / 4 ? X(b,s) : 0.0 where t in 0:T",  # blocks
        "Y(b) max=! s * b < 100 ? X(b,s) : 0.0",  # as many elements as terms
        "Y(b,t) = (b + t) % 5 == 2 ? exp(X(b,t)) : 0.0",  # few
        "Y(b,t) = b % 5 == 2 ? exp(X(b,t)) : 0.0",  # outside of the inner loop
        "Y(b,t) = X(b,t) > 0.0 ? exp(X(b,t)) : 0.0",  # of data
        "Y(b,t) = (b + t) % 61 == 2 ? exp(X(b, t + 1)) : 0.0 where t in 0:T, b in 0:3",  # of what would not exist
    ],
)
def test_conditions_that_stay(body: str) -> None:
    given = before(body)
    assert tabulate(given).assignments == tabulate_conditions(given).assignments == given.assignments


def test_a_table_of_another_condition_is_refused() -> None:
    given = before("Y(b,t) +=! (t + s) % 3 != 0 ? X(b,s) : 0.0 where t in 0:T")
    table, update = tabulate_conditions(given).assignments
    other = tabulate_conditions(before("Y(b,t) +=! (t + s) % 3 != 1 ? X(b,s) : 0.0 where t in 0:T")).assignments[0]
    with pytest.raises(VerifyError, match="a table has another value"):
        made = replace(tabulate_conditions(given), assignments=(other, update), replaced=((other, update),))
        verify_assignments("tabulate_conditions", given, made)
    assert table != other


OVERLAPPED = """def f(float(B,T,K) G, float(W) Win) -> (Y) {
    Y(b,i) +=! (i - 100 * t >= 0 && i - 100 * t < W) ? G(b,t,k) * Win(i - 100 * t) * cos(0.1 * (k * (i - 100 * t) % 256)) : 0.0
        where i in 0:8000
}"""


def test_overlapped_frames_are_windows_over_digits() -> None:
    """What a frame adds at each of its places has a table, and neighbours in the result are lanes."""
    g = torch.Generator().manual_seed(0)
    frames, window = torch.randn(2, 78, 33, generator=g), torch.rand(256, generator=g)
    f = tcjit.define(OVERLAPPED).f
    assert [line.split(",")[0] for line in f.compile(frames, window).resources["reductions"]] == ["Y: loops i b i_block k"]
    place, k = torch.arange(256.0).double()[:, None], torch.arange(33.0).double()
    terms = (frames.double() @ torch.cos(0.1 * (k * place % 256)).T) * window
    expected = torch.zeros(2, 8000, dtype=torch.float64)
    for t in range(78):
        expected[:, 100 * t : 100 * t + 256] += terms[:, t, : 8000 - 100 * t]
    torch.testing.assert_close(f(frames, window).double(), expected, rtol=1e-4, atol=1e-4)
