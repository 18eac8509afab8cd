"""Overlapped blocks of rows: which statements have them, what each block computes, and the proof that it is the same.

Modules: mapping.passes.overlap_tiles mapping.verify_overlapped
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.caches import small_caches
from support.mapping import AVX512, program

import tcjit
from tcjit.errors import VerifyError
from tcjit.grammar.ast import Access, Binary, Const, Index
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.passes.overlap_tiles import overlap_tiles
from tcjit.mapping.verify_assignments import verify_assignments

SMALL = replace(AVX512, threads=2, cache_bytes=1 << 15, shared_bytes=1 << 15)
INSIDE = "B(i,j) = A(i,j) + A(i + 1,j) + A(i + 2,j)  O(i,j) = B(i,j) - 2.0 * B(i + 1,j + 1) + B(i + 2,j)"
GUARDED = """B(i,j) = (i >= 1 && i + 1 < N) ? A(i - 1,j) + A(i + 1,j) : A(i,j) where i in 0:N, j in 0:M
    C(i,j) = (i >= 2 ? B(i - 2,j) : 0.0) + (i + 1 < N ? B(i + 1,j) : 0.0) where i in 0:N
    O(i,j) = exp(C(i,j)) + B(i,j) + A(i,j) where i in 0:N"""


def text(body: str, returns: str = "O", dtype: str = "float") -> str:
    return f"def f({dtype}(N,M) A) -> ({returns}) {{ {body} }}"


def extracted(body: str, returns: str = "O", shape: tuple[int, int] = (400, 50)) -> Assignments:
    return extract(program(text(body, returns), {"A": shape}), None)


def tiled(body: str, returns: str = "O", shape: tuple[int, int] = (400, 50)) -> tuple[Assignments, Assignments]:
    before = extracted(body, returns, shape)
    after = overlap_tiles(before, SMALL)
    verify_assignments("overlap_tiles", before, after)
    return before, after


def extents(a: Assignment) -> dict[str, int]:
    return {name: upper - lower for name, lower, upper in a.bounds}


def test_blocks_have_the_rows_that_later_steps_need() -> None:
    _, after = tiled(INSIDE)
    tile, result = after.assignments
    rows = extents(result)
    assert tile.tensor == "B_tile" and result.tensor == "O"
    assert extents(tile)["i"] == rows["i"] + 2
    assert all(a.outer is not None and a.outer.dims == ("i_block",) for a in after.assignments)
    assert rows["i_block"] % SMALL.threads == 0 and rows["i_block"] * rows["i"] >= 396


def test_what_is_computed_again_is_worth_what_is_saved() -> None:
    """Of planes, of which a cache holds few: cheap ones are computed twice, costly ones are not."""
    machine = replace(SMALL, cache_bytes=1 << 17, shared_bytes=1 << 22)
    for value, tiles in (("A(i,j) + A(i + 2,j)", 1), ("exp(A(i,j)) + exp(A(i + 2,j)) + exp(A(i + 1,j))", 0)):
        body = f"B(i,j) = {value}  O(i,j) = B(i,j) - B(i + 2,j)"
        after = overlap_tiles(extract(program(text(body), {"A": (120, 3000)}), None), machine)
        assert len([a for a in after.assignments if a.tensor == "B_tile"]) == tiles


@pytest.mark.parametrize(("size", "tiles"), [(60, 0), (300, 1), (900, 1)])
def test_steps_that_caches_pass_on(size: int, tiles: int) -> None:
    """The nearer of two holds what a block needs; there is no nearer one than the first."""
    after = overlap_tiles(extracted(INSIDE, shape=(size, size)), replace(AVX512, threads=2))
    assert len([a for a in after.assignments if a.tensor == "B_tile"]) == tiles


def test_steps_add_up() -> None:
    _, after = tiled(GUARDED)
    rows = {a.tensor: extents(a)["i"] for a in after.assignments}
    assert rows["B_tile"] == rows["C_tile"] + 3 == rows["O"] + 3


def test_what_others_see_is_stored_as_well() -> None:
    _, after = tiled(GUARDED, "C, O")
    assert [a.tensor for a in after.assignments] == ["B_tile", "C_tile", "C", "O"]


@pytest.mark.parametrize(
    ("body", "returns", "shape"),
    [
        (INSIDE, "O", (60, 50)),  # the cache holds it
        (INSIDE, "B, O", (400, 50)),  # is stored in any case
        (INSIDE, "O", (400, 4000)),  # it holds no rows enough
        ("B(i,j) = A(i,j) + 1.0  O(i,j) = B(i,j) * B(i,j + 1)", "O", (400, 50)),  # nothing leaves a row
        ("B(i,j) = A(i,j) + 1.0  O(i,j) = B(N - 1 - i,j) where i in 0:N", "O", (400, 50)),  # at no constant distance
        ("B(i,j) = A(i,j) + 1.0  O(i,j) = B(2 * i,j) + B(2 * i + 1,j)", "O", (400, 50)),
        ("B(j,i) = A(i,j) + 1.0  O(i,j) = B(i,j) + B(i,j + 1)", "O", (50, 400)),  # the columns of another
        ("B(i,j) = A(i,j) + 1.0  O(i) +=! B(i,j) + B(i + 1,j)", "O", (400, 50)),  # a reduction
        ("B(i,j) = A(i,j) + 1.0  O(i,j) = B(i,j) + B(i + 120,j)", "O", (400, 50)),  # most rows would be computed twice
    ],
)
def test_what_has_no_blocks(body: str, returns: str, shape: tuple[int, int]) -> None:
    before, after = tiled(body, returns, shape)
    assert after.assignments == before.assignments


def more(a: Assignment, dim: str, upper: int) -> Assignment:
    return replace(a, bounds=tuple((name, lower, beyond + upper if name == dim else beyond) for name, lower, beyond in a.bounds))


def moved(value: object, tensor: str, axis: int, by: int) -> object:
    """A value that reads a tensor elsewhere, once."""
    if isinstance(value, Access) and value.tensor == tensor:
        subscripts = list(value.subscripts)
        subscripts[axis] = Binary("+", subscripts[axis], Const(by, dtype="int64"), dtype="int64")
        return replace(value, subscripts=tuple(subscripts))
    if isinstance(value, Binary):
        left = moved(value.left, tensor, axis, by)
        return replace(value, left=left) if left != value.left else replace(value, right=moved(value.right, tensor, axis, by))
    return value


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (0, lambda a: more(a, "i", -1)),  # rows of a tile that nobody computes
        (1, lambda a: more(a, "i", -1)),  # results are lost
        (1, lambda a: more(a, "i", 1)),  # results are written twice
        (1, lambda a: more(a, "i_block", -1)),
        (0, lambda a: replace(a, constraints=())),
        (1, lambda a: replace(a, value=moved(a.value, "B_tile", 1, 1))),  # the wrong row
        (1, lambda a: replace(a, value=moved(a.value, "B_tile", 0, 1))),  # that of another block
        (1, lambda a: replace(a, value=moved(a.value, "B_tile", 2, 1))),
        (0, lambda a: replace(a, value=moved(a.value, "A", 0, 1))),
        (0, lambda a: replace(a, subscripts=(Index("i_block", dtype="int64"), Const(0, dtype="int64"), *a.subscripts[2:]))),
        (0, lambda a: replace(a, outer=None)),
        (1, lambda a: replace(a, outer=replace(a.outer, number=7))),
        (1, lambda a: replace(a, outer=replace(a.outer, row=Index("i", dtype="int64")))),
    ],
)
def test_mistakes_are_found(number: int, change) -> None:
    before, after = tiled(INSIDE)
    made = list(after.assignments)
    made[number] = change(made[number])
    wrong = replace(after, assignments=tuple(made), replaced=tuple((a,) for a in made))
    with pytest.raises(VerifyError):
        verify_assignments("overlap_tiles", before, wrong)


def test_other_orders_are_found() -> None:
    before, after = tiled(GUARDED, "C, O")
    b, c_tile, c, o = after.assignments
    for order in ((b, o, c_tile, c), (c_tile, b, c, o)):
        wrong = replace(after, assignments=order, replaced=((order[0],), (order[1], order[2]), (order[3],)))
        with pytest.raises(VerifyError):
            verify_assignments("overlap_tiles", before, wrong)


@pytest.mark.parametrize("dtype", ["float", "double", "half"])
@pytest.mark.parametrize("shape", [(400, 50), (397, 33), (1300, 1), (640, 3)])
@pytest.mark.parametrize(("body", "returns"), [(INSIDE, "O"), (GUARDED, "O"), (GUARDED, "C, O")])
def test_results_are_those_of_the_reference(body: str, returns: str, shape: tuple[int, int], dtype: str) -> None:
    if body is INSIDE and shape[1] < 3:
        body = body.replace("j + 1", "j")
    kind = {"float": torch.float32, "double": torch.float64, "half": torch.float16}[dtype]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(kind)
    with small_caches(1 << 13 if shape[1] > 3 else 1 << 9):
        defined = tcjit.define(text(body, returns, dtype)).f
        kernel = defined.compile(x)
        assert any(line.startswith("outer loops i_block") for line in kernel.resources["reductions"])
        found = defined(x)
    expected = tcjit.define(text(body, returns, dtype), target="reference").f(x)
    tolerance = {"half": 2e-2}.get(dtype, 1e-5)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_one_dimension() -> None:
    body = "def f(float(N) A) -> (O) { B(i) = A(i) + A(i + 1)  O(i) = B(i) * B(i + 3) }"
    x = torch.randn(5000)
    with small_caches(1 << 10):
        found = tcjit.define(body).f(x)
    torch.testing.assert_close(found, (x[:-1] + x[1:])[:-3] * (x[:-1] + x[1:])[3:])
