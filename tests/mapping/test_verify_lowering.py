"""What is proved of a lowering: copies, accumulators and partial results keep every value, and every way to break them is refused.

Modules: mapping.passes.pad_tiles mapping.value_flow
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.mapping import MATMUL, SMALL, program, scop
from support.trees import BARE, SIZES, product

from tcjit.errors import VerifyError
from tcjit.grammar.ast import Access, Binary, Const, Expr, Index
from tcjit.grammar.walk import rebuild
from tcjit.mapping import pipeline
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import map_gpu
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.storage import Storage
from tcjit.mapping.value_flow import verify_lowering


def lowered_product() -> tuple[Scop, Scop, dict[str, str]]:
    """A product, the same with accumulators and copies, and what those stand for."""
    before = scop(MATMUL, {"A": (64, 32), "B": (32, 128)}, BARE)
    made = product(*SIZES)
    names = ["S0", "C1", "C2", "S1", "W3"]
    kept = dict(zip(("S0", "S1"), before.statements, strict=True))
    statements = [replace(s, name=name, source=0) for s, name in zip(made.statements, names, strict=True)]
    statements[0] = replace(kept["S0"], tensor="C_acc")
    aliases = {
        "C_acc": "{ C_acc[a, b] -> C[a, b] }",
        "A_sh": "{ A_sh[p, q, s, l, c] -> A[32p + l, 8s + c] }",
        "B_sh": "{ B_sh[p, q, s, c, l] -> B[8s + c, 32q + l] }",
    }
    return before, replace(before, statements=tuple(statements), tensors=made.tensors), aliases


def statement(after: Scop, name: str, **change: object) -> Scop:
    """The scop with one statement changed."""
    changed = replace(after.statement(name), **change)  # type: ignore[arg-type]
    return replace(after, statements=tuple(changed if s.name == name else s for s in after.statements))


def moved(after: Scop, name: str, place: int) -> Scop:
    """The scop with one statement moved."""
    rest = [s for s in after.statements if s.name != name]
    return replace(after, statements=(*rest[:place], after.statement(name), *rest[place:]))


def dropped(after: Scop, name: str) -> Scop:
    return replace(after, statements=tuple(s for s in after.statements if s.name != name))


def test_a_lowered_product_is_accepted() -> None:
    before, after, aliases = lowered_product()
    verify_lowering(before, after, aliases)
    verify_lowering(before, before, {})
    verify_lowering(before, moved(after, "C2", 0), aliases)
    chained = aliases | {"C_acc": "{ C_acc[a, b] -> other[a, b] }", "other": "{ other[a, b] -> C[a, b] }"}
    other = Storage("other", "float32", (64, 128), "temporary")
    verify_lowering(before, replace(after, tensors=(*after.tensors, other)), chained)


LOWERING_MUTANTS: dict[str, tuple[Callable[[Scop], Scop], str]] = {
    "a copy lost": (lambda a: dropped(a, "C1"), "S1: it reads A_sh where that does not hold A"),
    "a copy too late": (lambda a: moved(a, "C1", 3), "S1: it reads A_sh where"),
    "a copy of less": (lambda a: statement(a, "C1", constraints=("l < 31",)), "S1: it reads A_sh where"),
    "the store lost": (lambda a: dropped(a, "W3"), "the output C lacks"),
    "the store too early": (lambda a: moved(a, "W3", 1), "the output C lacks"),
    "a store of less": (lambda a: statement(a, "W3", bounds=(("m", 0, 64), ("n", 0, 127))), "the output C lacks"),
    "a store turned": (lambda a: statement(a, "W3", subscripts=tuple(reversed(a.statement("W3").subscripts))), "do not stand for the same"),
    "the start lost": (lambda a: dropped(a, "S0"), "of the statements"),
    "the start elsewhere": (lambda a: statement(a, "S0", tensor="C"), "S1: it updates C_acc where"),
    "statements turned": (lambda a: moved(a, "S1", 0), "S0: it must stay before S1"),
    "other operator": (lambda a: statement(a, "S1", operator="max="), "S1: its operator or its domain changed"),
    "fewer terms": (lambda a: statement(a, "S1", bounds=(("m", 0, 64), ("n", 0, 128), ("k", 0, 31))), "its operator or its domain"),
    "other value": (lambda a: statement(a, "S1", value=swapped_operands(a.statement("S1"))), "S1: it reads another element of A"),
    "another place": (
        lambda a: statement(a, "S1", subscripts=tuple(reversed(a.statement("S1").subscripts))),
        "writes another element of C",
    ),
    "a write in vain": (lambda a: statement(a, "W3", tensor="A"), "may not write A|do not stand"),
    "twice": (lambda a: replace(a, statements=(*a.statements, a.statements[-1])), "of the statements"),
}


def swapped_operands(s: ScopStatement) -> Expr:
    assert isinstance(s.value, Binary)
    return replace(s.value, left=s.value.right, right=s.value.left)


@pytest.mark.parametrize("name", list(LOWERING_MUTANTS))
def test_broken_lowerings(name: str) -> None:
    before, after, aliases = lowered_product()
    change, why = LOWERING_MUTANTS[name]
    with pytest.raises(VerifyError, match=why):
        verify_lowering(before, change(after), aliases)


def test_a_copy_shifted_by_one() -> None:
    before, after, aliases = lowered_product()
    copy = after.statement("C1")
    assert isinstance(copy.value, Access)
    column = Binary("+", copy.value.subscripts[1], Const(1, dtype="int64"), dtype="int64")
    after = statement(after, "C1", value=replace(copy.value, subscripts=(copy.value.subscripts[0], column)))
    with pytest.raises(VerifyError, match="C1: A_sh and A do not stand for the same element"):
        verify_lowering(before, after, aliases)
    lying = aliases | {"A_sh": "{ A_sh[p, q, s, l, c] -> A[32p + l, 8s + c + 1] }"}
    with pytest.raises(VerifyError, match="S1: it reads another element of A"):
        verify_lowering(before, after, lying)


@pytest.mark.parametrize(
    "aliases, why",
    [
        ({"A_sh": "{ A_sh[p, q, s, l, c] -> B[32p + l, 8s + c] }"}, "do not stand for the same"),
        ({"A_sh": "{ A_sh[p, q, s, l, c] -> A_sh[p, q, s, l, c] }"}, "A_sh stands for no tensor"),
        ({"C": "{ C[a, b] -> A[a, b] }"}, "C cannot stand for A|C_acc"),
        ({"A_sh": "{ A_sh[p, q, s, l, c] -> A[32p + l, x] }"}, "stands for several"),
    ],
)
def test_wrong_aliases(aliases: dict[str, str], why: str) -> None:
    before, after, right = lowered_product()
    with pytest.raises(VerifyError, match=why):
        verify_lowering(before, after, right | aliases)


def test_what_stands_for_nothing_may_hold_anything_but_not_be_read() -> None:
    before, after, aliases = lowered_product()
    copy = after.statement("C1")
    zero = Const(0.0, dtype="float32")
    fill = replace(copy, name="Z4", value=zero, constraints=("l > 40",), bounds=(*copy.bounds[:3], ("l", 32, 48), copy.bounds[4]))
    verify_lowering(before, replace(after, statements=(fill, *after.statements)), aliases)
    with pytest.raises(VerifyError, match="S1: it reads A_sh where"):
        over = replace(fill, bounds=copy.bounds, constraints=("l = 3",))
        verify_lowering(before, moved(replace(after, statements=(over, *after.statements)), "Z4", 3), aliases)


SUM = "def total(float(M,N) A) -> (s) { s(m) +=! A(m, n) }"


def lowered_sum() -> tuple[Scop, Scop, dict[str, str]]:
    """Sums of rows, and the same in 32 parts."""
    before = scop(SUM, {"A": (8, 96)}, BARE)
    text = """
def total(float(M,N) A) -> (s) {
    s(m) = 0.0 where m in 0:M
    P(t, m) = 0.0 where m in 0:M, t in 0:32
    P(n, m) += A(m, n) where m in 0:M, n in 0:32
    s(m) += P(t, m) where m in 0:M, t in 0:32
}"""
    made = scop(text, {"A": (8, 96)}, BARE)
    start, add = before.statements
    zero = replace(made.statements[1], name="I1", value=Const(0.0, dtype="float32"))
    turn = Binary("%", Index("n", dtype="int64"), Const(32, dtype="int64"), dtype="int64")
    parts = replace(add, tensor="P", subscripts=(turn, Index("m", dtype="int64")))
    combine = replace(made.statements[3], name="R2")
    after = replace(before, statements=(start, zero, parts, combine), tensors=made.tensors)
    return before, after, {"P": "{ P[t, m] -> s[m] }"}


def test_partial_sums_are_accepted() -> None:
    before, after, aliases = lowered_sum()
    verify_lowering(before, after, aliases)
    verify_lowering(before, moved(after, "I1", 0), aliases)


SUM_MUTANTS: dict[str, tuple[Callable[[Scop], Scop], str]] = {
    "no start": (lambda a: dropped(a, "I1"), "S1: P does not start at the identity"),
    "a start of less": (lambda a: statement(a, "I1", constraints=("t < 31",)), "S1: P does not start at the identity"),
    "another start": (lambda a: statement(a, "I1", value=Const(1.0, dtype="float32")), "I1: it does not start P at the identity"),
    "a start too late": (lambda a: moved(a, "I1", 2), "P does not start at the identity"),
    "no end": (lambda a: dropped(a, "R2"), "S1|the output s"),
    "an end of less": (lambda a: statement(a, "R2", constraints=("t < 31",)), "R2: it does not add all of P"),
    "an end too early": (lambda a: moved(a, "R2", 2), "the output s lacks"),
    "twice": (
        lambda a: replace(a, statements=(*a.statements, replace(a.statement("R2"), name="R3"))),
        "R3: .*adds what holds nothing",
    ),
    "each part twice": (
        lambda a: statement(a, "R2", bounds=(*a.statement("R2").bounds, ("u", 0, 2))),
        "R2: it does not add each of P once",
    ),
    "combined by another operator": (lambda a: statement(a, "R2", operator="max="), "I1: it does not start|S1"),
    "added to another row": (
        lambda a: statement(a, "R2", subscripts=(Binary("-", Const(7, dtype="int64"), Index("m", dtype="int64"), dtype="int64"),)),
        "R2: s and P do not stand for the same",
    ),
    "the start of the sum after it": (lambda a: moved(a, "S0", 3), "S0: it must stay before S1"),
}


@pytest.mark.parametrize("name", list(SUM_MUTANTS))
def test_broken_partial_sums(name: str) -> None:
    before, after, aliases = lowered_sum()
    change, why = SUM_MUTANTS[name]
    with pytest.raises(VerifyError, match=why):
        verify_lowering(before, change(after), aliases)


def test_a_held_row_must_be_what_it_was_when_it_is_read() -> None:
    """A copy taken before its tensor changes does not hold the new values."""
    before = scop("def f(float(N) A) -> (B, C) { B(i) = A(i)  C(i) = B(i)  B(i) = B(i) * 2.0  C(i) = C(i) + B(i) }", {"A": (16,)}, BARE)
    held = Storage("B_held", "float32", (16,), "temporary")
    first, second, third, fourth = before.statements
    copy = replace(second, name="L4", tensor="B_held")

    def reading(s: ScopStatement) -> ScopStatement:
        return replace(s, value=renamed(s.value, "B", "B_held"))

    def after(*statements: ScopStatement) -> Scop:
        return replace(before, statements=statements, tensors=(*before.tensors, held))

    alias = {"B_held": "{ B_held[i] -> B[i] }"}
    verify_lowering(before, after(first, copy, reading(second), third, fourth), alias)
    verify_lowering(before, after(first, copy, second, reading(third), fourth), alias)
    with pytest.raises(VerifyError, match="S3: it reads B_held where that does not hold B"):
        verify_lowering(before, after(first, copy, second, third, reading(fourth)), alias)
    with pytest.raises(VerifyError, match="S1: it reads B_held where that does not hold B"):
        verify_lowering(before, after(copy, first, reading(second), third, fourth), alias)


def renamed(value: Expr, tensor: str, other: str) -> Expr:
    inner = rebuild(value, lambda child: renamed(child, tensor, other))
    return replace(inner, tensor=other) if isinstance(inner, Access) and inner.tensor == tensor else inner


def test_a_statement_that_reads_what_it_wrote() -> None:
    """Each element is the last one doubled: a copy of the tensor made before has only the first."""
    before = scop(
        "def f(float(N) A, float(N) D) -> (B) { B(i) = A(i)  B(i) = D(i - 1) * 2.0 where i in 1:N }", {"A": (16,), "D": (16,)}, BARE
    )
    first, second = before.statements
    second = replace(second, value=renamed(second.value, "D", "B"))
    before = replace(before, statements=(first, second))
    held = Storage("B_held", "float32", (16,), "temporary")
    whole = replace(first, name="L2", tensor="B_held", value=Access("B", first.subscripts, dtype="float32"))
    stale = replace(second, value=renamed(second.value, "B", "B_held"))
    after = replace(before, statements=(first, whole, stale), tensors=(*before.tensors, held))
    with pytest.raises(VerifyError, match="S1: it reads B_held where it has written a newer value elsewhere"):
        verify_lowering(before, after, {"B_held": "{ B_held[i] -> B[i] }"})
    inside = replace(stale, tensor="B_held")
    store = replace(whole, name="W3", tensor="B", value=Access("B_held", first.subscripts, dtype="float32"))
    verify_lowering(before, replace(after, statements=(first, whole, inside, store)), {"B_held": "{ B_held[i] -> B[i] }"})


# ---------------------------------------------------------------- whole tiles


# a product that is added to a part of a tensor
PART = """def f(float(M,K) A, float(K,N) B) -> (C) {
    C(m,n) = 1.0 where m in 0:50, n in 0:60
    C(m,n) += A(m,k) * B(k,n)
}"""


def padded_product(monkeypatch: pytest.MonkeyPatch, text: str = MATMUL) -> tuple[Scop, Scop, dict[str, str]]:
    """A product of odd sizes, as the passes for a GPU lower it to whole tiles."""
    lowerings: list[tuple[Scop, Scop, dict[str, str]]] = []
    monkeypatch.setattr(pipeline, "verify_lowering", lambda *given: lowerings.append(given))
    options = Options(threads=(8, 8), reduction_tile=8, pipeline_stages=1)
    map_gpu(program(text, {"A": (37, 21), "B": (21, 41)}), options, SMALL, prove="last")
    return lowerings[-1]


def test_a_product_in_whole_tiles_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after, aliases = padded_product(monkeypatch)
    (old,), (new,) = ([s for s in scop.statements if s.reduction] for scop in (before, after))
    assert [upper for _, _, upper in old.bounds] == [37, 41, 21]
    assert all(upper % 8 == 0 for _, _, upper in new.bounds)
    verify_lowering(before, after, aliases)


def zero(after: Scop) -> ScopStatement:
    return next(s for s in after.statements if s.name.startswith("Z"))


PADDING_MUTANTS: dict[str, tuple[Callable[[Scop], Scop], str]] = {
    "no zeros": (lambda a: dropped(a, zero(a).name), "S1: it adds products of A_shared beyond its domain"),
    "ones": (lambda a: statement(a, zero(a).name, value=Const(1.0, dtype="float32")), "S1: it adds products of A_shared beyond"),
    "too few zeros": (lambda a: statement(a, zero(a).name, constraints=("l1 > 5",)), "S1: it adds products of A_shared beyond"),
    "another operator": (lambda a: statement(a, "S1", operator="*="), "its operator or its domain changed"),
    "a start of less": (lambda a: statement(a, "S0", bounds=(("m", 0, 36), ("n", 0, 41))), "S0: its operator or its domain changed"),
}


@pytest.mark.parametrize("name", list(PADDING_MUTANTS))
def test_broken_padding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after, aliases = padded_product(monkeypatch)
    change, why = PADDING_MUTANTS[name]
    with pytest.raises(VerifyError, match=why):
        verify_lowering(before, change(after), aliases)


def test_sums_of_a_part_of_a_tensor_leave_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements of the accumulator beyond the domain stand for elements that another statement has written: they are not to be stored."""
    before, after, aliases = padded_product(monkeypatch, PART)
    (sums,), (store,) = ([s for s in after.statements if s.reduction], [s for s in after.statements if s.name.startswith("W")])
    assert all(upper % 8 == 0 for _, _, upper in sums.bounds)
    verify_lowering(before, after, aliases)
    with pytest.raises(VerifyError, match="the output C lacks"):
        verify_lowering(before, statement(after, store.name, bounds=(("m", 0, 38), ("n", 0, 41))), aliases)
