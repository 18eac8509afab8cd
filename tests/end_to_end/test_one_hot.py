"""Programs that compare data with an index, against the reference: rows of tables, sums and counts of classes, at their edges."""

from __future__ import annotations

import faulthandler
import os

import pytest
import torch
from support.cases import Case, Fill
from support.memory import beside_a_guard
from support.rings.cuda_host import COMPILER
from support.rings.cuda_target import TARGET
from support.run import assert_right, tensor

import tcjit
from tcjit.errors import GatherError, TCError

INDICES = ("I", "J")
LARGE = 1 << 17  # terms of a histogram that is cut into chunks


def case(text: str, shapes: dict[str, tuple[int, ...]], kind: str = "int64", dtype: str = "float32", **fills: Fill) -> Case:
    """Indices from -2 to 8, which are too small, right and too large; values with NaN, infinities and zeros of both signs."""
    values = "special" if "float" in dtype else "small"
    drawn = {
        name: Fill(kind, "small", number, -2, 8) if name in INDICES else Fill(dtype, values, number, -3, 4)
        for number, name in enumerate(shapes)
    }
    written = {"float32": "float", "float64": "double", "float16": "half"}.get(dtype, dtype)
    return Case(text.replace("INT", kind).replace("VALUE", written), shapes, {**drawn, **fills})


ROWS = "def f(INT(N) I, VALUE(V,D) X) -> (O) { O(n,d) +=! (I(n) == v) ? X(v,d) : 0.0 }"
WHOLE = ROWS.replace("0.0", "0")
SUMS = "def f(INT(N) I, VALUE(N,D) X) -> (O) { O(v,d) +=! (I(n) == v) ? X(n,d) : 0.0 where v in 0:6 }"
COUNTS = "def f(INT(N) I) -> (O) { O(v) +=! (I(n) == v) ? 1 : 0 where v in 0:100 }"
TABLE = {"I": (50,), "X": (6, 33)}
TERMS = {"I": (50,), "X": (50, 33)}

GATHERS: dict[str, Case] = {
    "rows": case(ROWS, TABLE),
    "elements": case("def f(INT(N) I, VALUE(V) X) -> (O) { O(n) +=! (v == I(n)) ? X(v) : 0.0 }", {"I": (50,), "X": (6,)}),
    "rows of halves": case(ROWS, TABLE, dtype="bfloat16"),
    "rows of int8": case(WHOLE, TABLE, dtype="int8"),
    "products": case(ROWS.replace("+=!", "*=!").replace("0.0", "1.0"), TABLE),
    "minima": case(ROWS.replace("+=!", "min=!").replace("0.0", "infinity()"), TABLE),
    "maxima": case(ROWS.replace("+=!", "max=!").replace("0.0", "-infinity()"), TABLE, dtype="float64"),
    "a range from 2": case("def f(INT(N) I, VALUE(V,D) X) -> (O) { O(n,d) +=! (I(n) == v + 1) ? X(v,d) : 0.0 where v in 2:5 }", TABLE),
    "counted backwards": case("def f(INT(N) I, VALUE(V,D) X) -> (O) { O(n,d) +=! (4 - v == I(n)) ? X(v,d) : 0.0 }", TABLE),
    "the index as a value": case("def f(INT(N) I) -> (O) { O(n) +=! (I(n) == v) ? v * v : 0 where v in 0:6 }", {"I": (50,)}),
    "more conditions": case(
        "def f(INT(N) I, VALUE(V,D) X) -> (O) { O(n,d) +=! (n > 3 && I(n-3) == v && X(v,0) < 1.0 && d > v) ? X(v,d) : 0.0 where n in 0:N }",
        TABLE,
    ),
    "two indices": case(
        "def f(INT(N) I, INT(N) J, VALUE(V,D) X) -> (O) { O(n) +=! (I(n) == v && J(n) == d) ? X(v,d) : 0.0 }",
        {"I": (50,), "J": (50,), "X": (6, 5)},
    ),
    "bags": case(
        "def f(INT(N,K) I, VALUE(V,D) X, VALUE(N,K) W) -> (O) { O(n,d) +=! (I(n,k) == v) ? X(v,d) * W(n,k) : 0.0 }",
        {"I": (20, 5), "X": (6, 33), "W": (20, 5)},
    ),
    "narrow bags": case(
        "def f(INT(N,K) I, VALUE(V,D) X, VALUE(N,K) W) -> (O) { O(n,d) +=! (I(n,k) == v) ? X(v,d) * W(n,k) : 0.0 }",
        {"I": (40, 9), "X": (6, 3), "W": (40, 9)},
    ),
    "no row": case(ROWS, {"I": (50,), "X": (0, 33)}),
    "no index": case(ROWS, {"I": (0,), "X": (6, 33)}),
    **{f"indices of {kind}": case(ROWS, TABLE, kind=kind) for kind in ("int8", "uint8", "int32")},
    "indices of uint32": case(ROWS.replace("I(n) ==", "int64(I(n)) =="), TABLE, kind="uint32"),
    "indices of uint64": case(ROWS.replace("== v", "== uint64(v)"), TABLE, kind="uint64"),
    "indices of any bits": case(ROWS.replace("== v", "== v - 2"), TABLE, I=Fill("int64", "wide", 1)),
}
SCATTERS: dict[str, Case] = {
    "sums": case(SUMS, TERMS),
    "sums of halves": case(SUMS, TERMS, dtype="float16"),
    "sums of int8": case(SUMS.replace("0.0", "0"), TERMS, dtype="int8"),
    "products of classes": case(SUMS.replace("+=!", "*=!").replace("0.0", "1.0"), TERMS),
    "minima of classes": case(SUMS.replace("+=!", "min=!").replace("0.0", "infinity()"), TERMS, dtype="bfloat16"),
    "maxima of classes": case(SUMS.replace("+=!", "max=!").replace("0.0", "-infinity()"), TERMS, dtype="float64"),
    "transposed": case(SUMS.replace("O(v,d)", "O(d,v)"), TERMS),
    "long rows": case(SUMS, {"I": (50,), "X": (50, 200)}),
    "batches": case(
        "def f(INT(B,N) I, VALUE(B,N,D) X) -> (O) { O(b,v,d) +=! (I(b,n) == v) ? X(b,n,d) : 0.0 where v in 0:6 }",
        {"I": (3, 20), "X": (3, 20, 33)},
    ),
    "several dims": case(
        "def f(INT(N,M) I, VALUE(N,D) X, VALUE(M,E) Y) -> (O) { O(d,v,e) +=! (I(n,m) == v) ? X(n,d) * Y(m,e) : 0.0 where v in 0:6 }",
        {"I": (5, 4), "X": (5, 3), "Y": (4, 17)},
    ),
    "sums of rows": case("def f(INT(N) I, VALUE(N,D) X) -> (O) { O(v) +=! (I(n) == v) ? X(n,d) : 0.0 where v in 0:100 }", TERMS),
    "conditions on classes": case(
        "def f(INT(N) I, VALUE(N,D) X) -> (O) { O(v,d) +=! (n > 2 && I(n-3) == v + 1 && d > v && X(n,d) > 0.0) ? X(n,d) * v : 0.0"
        " where v in 0:6, n in 0:N }",
        TERMS,
    ),
    "joint classes": case(
        "def f(INT(N) I, INT(N) J, VALUE(N,D) X) -> (O) { O(v,w,d) +=! (I(n) == v && J(n) == w) ? X(n,d) : 0.0 where v in 0:6, w in 0:7 }",
        {"I": (50,), "J": (50,), "X": (50, 33)},
    ),
    "counts": case(COUNTS, {"I": (50,)}),
    "counts of rows": case("def f(INT(B,N) I) -> (O) { O(b,v) +=! (I(b,n) == v) ? 1 : 0 where v in 0:100 }", {"I": (3, 50)}),
    "counts of uint8": case(COUNTS.replace("100", "256"), {"I": (500,)}, kind="uint8", I=Fill("uint8", "wide", 1)),
    "no term": case(SUMS, {"I": (0,), "X": (0, 33)}),
    **{f"classes of {kind}": case(SUMS, TERMS, kind=kind) for kind in ("int8", "uint8", "int32")},
    "classes of any bits": case(SUMS.replace("== v", "== v - 2"), TERMS, I=Fill("int64", "wide", 1)),
    "a scatter and what reads it": case(
        "def f(INT(N) I, VALUE(N,D) X) -> (O, S, P) { O(v,d) +=! (I(n) == v) ? X(n,d) : 0.0 where v in 0:6\n"
        " S(v) max=! O(v,d)\n P(n,d) +=! (I(n) == v) ? O(v,d) - S(v) : 0.0 where v in 0:6 }",
        TERMS,
    ),
}
PROGRAMS = {**GATHERS, **SCATTERS}


pytestmark = pytest.mark.usefixtures("threads_share_small_loops")


@pytest.mark.parametrize("name", PROGRAMS)
def test_against_the_reference(name: str) -> None:
    assert_right(PROGRAMS[name], "cpu")


@pytest.mark.parametrize("name", ["rows", "bags", "more conditions", "sums", "counts"])
def test_without_nests(name: str) -> None:
    """Plain loops: a scatter stays a reduction over all pairs, a gather is one all the same."""
    found = PROGRAMS[name]
    assert_right(Case(found.text, found.shapes, found.fills, options=tcjit.Options(vector_width=1)), "cpu")


ON_GPUS = ["rows", "rows of halves", "bags", "two indices", "more conditions", "indices of any bits", "sums", "counts"]


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize("name", ON_GPUS)
def test_cuda_on_the_host(name: str) -> None:
    assert_right(PROGRAMS[name], TARGET)


@pytest.mark.opencl
@pytest.mark.parametrize("name", ON_GPUS)
def test_opencl(name: str) -> None:
    from support.rings.opencl import assert_agrees, require

    require("pocl")
    assert_agrees(PROGRAMS[name])


def tensors(given: Case) -> list[torch.Tensor]:
    return [tensor(array, given.fills[name].dtype) for name, array in given.inputs().items()]


@pytest.mark.parametrize("name", [name for name in SCATTERS if name != "no term"])
def test_scatters(name: str) -> None:
    """There is one, and its bits are the same whatever the threads."""
    arguments = tensors(SCATTERS[name])
    kernel = tcjit.define(SCATTERS[name].text).f.compile(*arguments)
    assert any("scatter along v" in line for line in kernel.resources["reductions"])
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results = kernel(*arguments)
        found.append([one.view(torch.uint8).tolist() for one in (results if isinstance(results, tuple) else (results,))])
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["float32", "int32"])
def test_chunks_of_terms(kind: str) -> None:
    """Small integers, whose sums are exact in any order."""
    zero = "0.0" if kind == "float32" else "0"
    text = f"def f(INT(N) I, VALUE(N) X) -> (O) {{ O(v) +=! (I(n) == v) ? X(n) : {zero} where v in 0:100 }}"
    fills = {"I": Fill("int64", "small", 1, -2, 101), "X": Fill(kind, "small", 2, -3, 3)}
    given = case(text, {"I": (LARGE + 5,), "X": (LARGE + 5,)}, dtype=kind, **fills)
    assert "O_part" in str(tcjit.define(given.text).f.compile(*tensors(given)).source)
    assert_right(given, "cpu")


def test_nothing_but_what_is_picked_reaches_a_result() -> None:
    """NaN elsewhere does not, and of the zeros that are added to 0.0 none is negative."""
    rows, sums = (tcjit.define(text.replace("INT", "int64").replace("VALUE", "float")).f for text in (ROWS, SUMS))
    x = torch.full((6, 33), torch.nan)
    x[2], x[3] = -0.0, 1.0
    found = rows(torch.tensor([3, 2, -1, 6, 1 << 62]), x)
    assert found[0].eq(1).all() and found[1:].eq(0).all() and not found.signbit().any()
    found = sums(torch.tensor([7, -1, 3, 2, -(1 << 63), 6]), x)
    assert found[2].eq(1).all() and found[[0, 1, 3, 4, 5]].eq(0).all() and not found.signbit().any()


@pytest.mark.parametrize(
    ("data", "taken"), [("2 * I(n)", [1 - (1 << 63), 1]), ("I(n) + I(n)", [1 - (1 << 63)]), ("I(n) - 5", [7]), ("-I(n)", [-2])]
)
def test_data_that_wrap(data: str, taken: list[int]) -> None:
    """Values wrap: a product that leaves 64 bits picks the row that is left of it, as a comparison does."""
    arguments = torch.tensor([*taken, -(1 << 63), (1 << 63) - 1]), torch.arange(1.0, 201.0)
    texts = f"O(n) +=! ({data} == v) ? X(v) : 0.0", f"P(v) +=! ({data} == v) ? float(n) : 0.0 where v in 0:V"
    text = f"def f(int64(N) I, float(V) X) -> (O, P) {{ {texts[0]} {texts[1]} }}"
    made = tcjit.define(text)
    for one, other in zip(made.f(*arguments), tcjit.define(text, target="reference").f(*arguments)):
        torch.testing.assert_close(one, other)
    assert made.f(*arguments)[0][: len(taken)].eq(3).all()


def test_indices_of_data_are_checked() -> None:
    """A comparison with a row outside of the table picks nothing; a read of the data outside of them is an error as before."""
    texts = (
        "def f(int64(N) I, int64(M) J, float(V) X) -> (O) { O(n) +=! (J(I(n)) == v) ? X(v) : 0.0 }",
        "def f(int64(N) I, int64(M) J, float(V) X) -> (O) { O(v) +=! (J(I(n)) == v) ? X(v) : 0.0 where v in 0:V }",
        "def f(int64(N) I, int64(M) J, float(V) X) -> (O) { O(n) +=! (I(n) == v) ? X(J(v)) : 0.0 where v in 0:3 }",
    )
    for text in texts:
        f = tcjit.define(text).f
        f(torch.tensor([0, 1]), torch.tensor([5, 0, 4]), torch.ones(6))
        with pytest.raises(GatherError):
            f(torch.tensor([0, 1, 3] if "J(I" in text else [0, 1, 2]), torch.tensor([5, 0, 6]), torch.ones(6))


def test_sizes_that_only_the_call_knows() -> None:
    text = ROWS.replace("INT", "int64").replace("VALUE", "float")
    f = tcjit.define(text, dynamic=["N", "V"]).f
    for n, v in ((5, 9), (100, 3), (33, 64)):
        index, x = torch.randint(-1, v + 1, (n,)), torch.randn(v, 17)
        expected = torch.where(((index >= 0) & (index < v))[:, None], x[index.clamp(0, v - 1)], torch.zeros(()))
        torch.testing.assert_close(f(index, x), expected, rtol=0, atol=0)
    text = "def f(int64(N) I, float(N,D) X, float(V) Like) -> (O) { O(v,d) +=! (I(n) == v) ? X(n,d) : 0.0 where exists Like(v) }"
    sums = tcjit.define(text, dynamic=["N", "V", "D"]).f
    for n, v, d in ((5, 9, 7), (100, 6, 70), (33, 64, 200)):
        index, x = torch.randint(-1, v + 1, (n,)), torch.randint(-3, 4, (n, d)).float()
        inside = (index >= 0) & (index < v)
        expected = torch.zeros(v, d).index_add_(0, index[inside], x[inside])
        torch.testing.assert_close(sums(index, x, torch.zeros(v)), expected, rtol=0, atol=0)
    found = sums.compile(index, x, torch.zeros(64)).resources["reductions"]
    assert found == ["O: scatter along v"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a child process may crash")
@pytest.mark.parametrize("end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("name", ["rows", "bags", "more conditions", "indices of any bits", "sums", "conditions on classes", "counts"])
def test_reads_stay_inside(name: str, end: bool) -> None:
    """Arguments at the end, or the start, of memory that ends where they do."""
    arguments = tensors(PROGRAMS[name])
    kernel = tcjit.define(PROGRAMS[name].text).f.compile(*arguments)
    torch.set_num_threads(1)  # a child has no threads
    child = os.fork()
    if not child:
        faulthandler.disable()
        try:
            kernel(*(beside_a_guard(argument, end) for argument in arguments))
        except TCError:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
