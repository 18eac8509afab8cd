"""Programs whose left side reads tensors, against the reference: sums, counts and extremes of what data pick, at their edges.

Modules: grammar.targets mapping.extract mapping.passes.scatter_reductions mapping.passes.schedule_scatter codegen.atomic
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from support.cases import Case, Fill
from support.fuzz.kernels import changed_device
from support.rings.cuda_host import COMPILER
from support.rings.cuda_target import TARGET
from support.run import assert_right, tensor

import tcjit
from tcjit.errors import GatherError, ShapeError
from tcjit.grammar.parse import parse
from tcjit.jit.call import function
from tcjit.mapping.gpu import scatter_time

SIZES = {"N": 50, "D": 33, "V": 6, "B": 3, "M": 7}


def case(text: str, kind: str = "int64", dtype: str = "float32", faults: str = "", **options: object) -> Case:
    """``INT`` and ``VALUE`` are the types of indices and values; the dims of a parameter say its shape."""
    text = text.replace("INT", kind).replace("VALUE", dtype)
    shapes, fills = {}, {}
    for number, param in enumerate(parse(text)[-1].params):
        name, values = param.name, "special" if "float" in param.dtype else "small"
        shapes[name] = tuple(SIZES[dim] if isinstance(dim, str) else dim for dim in param.dims)
        fills[name] = Fill(param.dtype, values, number, -3, 4)
        if name in ("I", "J"):
            fills[name] = Fill(param.dtype, "small", number, 0, SIZES["V"] - (not faults))
    return Case(text, shapes, fills, faults=faults, **options)  # type: ignore[arg-type]


SUMS = "def f(INT(N) I, VALUE(N,D) X, int8(V) L) -> (VALUE(V,D) O) { O(I(n), d) +=! X(n, d) }"
COUNTS = "def f(INT(N) I, int8(V) L) -> (int32(V) O) { O(I(n)) +=! 1 }"
ROWS = "def f(INT(N) I, VALUE(N,B) X, int8(V) L) -> (VALUE(V) O) { O(I(n)) +=! X(n, b) }"
UPDATED = "def f(INT(N) I, VALUE(N,D) X, VALUE(V) L) -> (O) { O(v,d) = L(v) where d in 0:D O(I(n), d) += X(n,d) }"
SCATTERS: dict[str, Case] = {
    "sums": case(SUMS),
    "sums of halves": case(SUMS, dtype="float16"),
    "sums of bfloat16": case(SUMS, dtype="bfloat16"),
    "sums of double": case(SUMS, dtype="float64"),
    "sums of int8": case(SUMS, dtype="int8"),
    "products": case(SUMS.replace("+=!", "*=!")),
    "minima": case(SUMS.replace("+=!", "min=!"), dtype="bfloat16"),
    "maxima": case(SUMS.replace("+=!", "max=!"), dtype="float64"),
    "maxima of int16": case(SUMS.replace("+=!", "max=!"), dtype="int16"),
    "transposed": case("def f(INT(N) I, VALUE(N,D) X, int8(V) L) -> (O) { O(d, I(n)) +=! X(n, d) where I(n) in 0:V }"),
    "a range in the text": case("def f(INT(N) I, VALUE(N,D) X) -> (O) { O(I(n), d) +=! X(n, d) where I(n) in 0:N - 44 }"),
    "batches": case("def f(INT(B,N) I, VALUE(B,N,D) X, int8(V) L) -> (O) { O(b, I(b,n), d) +=! X(b, n, d) where I(b,n) in 0:V }"),
    "sums of rows": case("def f(INT(N) I, VALUE(N,D) X, int8(V) L) -> (VALUE(V) O) { O(I(n)) +=! X(n, d) }"),
    "sums of short rows": case(ROWS),
    "sums of short rows of double": case(ROWS.replace("X(n, b)", "(X(n, b) > 0.0 ? X(n, b) : 0.0)"), dtype="float64"),
    "greatest of short rows": case(ROWS.replace("+=!", "max=!")),
    "least of short rows": case(ROWS.replace("+=!", "min=!"), dtype="int32"),
    "short rows of halves and what came in": case(
        ROWS.replace("+=!", "+="), dtype="float16", initial={"O": Fill("float16", "special", 9)}
    ),
    "two targets of short rows": case(
        "def f(INT(N) I, INT(N) J, VALUE(N,B) X, int8(V) L) -> (int64(V,V,33) O) { O(I(n), J(n), d) +=! X(n, b) * d where d in 0:33 }",
        dtype="int64",
    ),
    "counts": case(COUNTS),
    "counts in a temporary": case(COUNTS.replace("(int32(V) O)", "(P)").replace("+=! 1 }", "+=! 1 where I(n) in 0:V P(v) = O(v) + 1 }")),
    "counts of bool": case("def f(INT(N) I, bool(N) X, int8(V) L) -> (bool(V) O) { O(I(n)) +=! X(n) }"),
    "two targets": case("def f(INT(N) I, INT(N) J, VALUE(N,D) X, int8(V) L) -> (VALUE(V,V,D) O) { O(I(n), J(n), d) +=! X(n, d) }"),
    "one row of data twice": case("def f(INT(N) I, VALUE(N,D) X, int8(V) L) -> (VALUE(V,V) O) { O(I(n), I(N-1-n)) +=! X(n, d) }"),
    "a target for each result": case("def f(INT(N) I, VALUE(N,D) X, int8(V) L) -> (VALUE(V,N,D) O) { O(I(n), n, d) +=! X(n, d) }"),
    "arithmetic": case("def f(INT(N) I, VALUE(N,D) X, int8(V) L) -> (O) { O((I(n) + d) % 6) +=! X(n, d) where (I(n) + d) % 6 in 0:V }"),
    "data of data": case("def f(INT(V) I, INT(N) J, VALUE(N,D) X, int8(V) L) -> (VALUE(V,D) O) { O(I(J(n)), d) +=! X(n, d) }"),
    "under a condition": case(SUMS.replace("+=! X(n, d)", "+=! X(n, d) > 0.0 ? X(n, d) : 0.0")),
    "of an expression": case(SUMS.replace("+=! X(n, d)", "+=! X(n, d) * X(n, 0) - n")),
    "the index as a value": case("def f(INT(N) I, int8(V) L) -> (int32(V) O) { O(I(n)) max=! n * n }"),
    "updated": case(UPDATED),
    "updated halves": case(UPDATED, dtype="float16"),
    "greater than before": case(UPDATED.replace("+=", "max=")),
    "columns of a part": case(UPDATED.replace(" }", " where d in 2:9 }")),
    "begun anew in a part": case(UPDATED.replace("+=", "+=!").replace(" }", " where d in 2:9 }")),
    "what came in": case(SUMS.replace("+=!", "+="), initial={"O": Fill("float32", "special", 9)}),
    "what came in, of halves": case(SUMS.replace("+=!", "+="), dtype="bfloat16", initial={"O": Fill("bfloat16", "special", 9)}),
    "what reads it": case(SUMS.replace("(VALUE(V,D) O)", "(VALUE(V,D) O, S)").replace("}", " S(n) +=! O(I(n), d) * X(n, d) }")),
    "a call": case(
        "def g(int64(M) I, float32(M,D) X, float32(V) L) -> (float32(V,D) O) { O(I(n), d) +=! X(n, d) }\n"
        "def f(int64(N) I, float32(N,D) X, float32(V) L) -> (O) { T = g(I, X, L) O(v,d) = T(v,d) * L(v) }"
    ),
    **{f"indices of {kind}": case(SUMS, kind=kind) for kind in ("int8", "uint8", "int32", "uint32", "uint64")},
}
SCATTERS["chunks of unequal length"] = replace(
    case("def f(INT(N,B) I, VALUE(N,B,D) X, INT(B) J) -> (O) { O(J(b), I(n,b)) max=! X(n,b,d) where I(n,b) in 0:50, J(b) in 0:6 }"),
    shapes={"I": (33, 2), "X": (33, 2, 65), "J": (2,)},
)
FAULTS: dict[str, Case] = {
    "sums": case(SUMS, faults="gather"),
    "counts": case(COUNTS, faults="gather"),
    "two targets": case(
        "def f(INT(N) I, INT(N) J, VALUE(N,D) X, int8(V) L) -> (VALUE(V,V,D) O) { O(I(n), J(n), d) +=! X(n, d) }", faults="gather"
    ),
    "a target for each result": case(
        "def f(INT(N) I, VALUE(N,D) X, int8(V) L) -> (VALUE(V,N,D) O) { O(I(n), n, d) +=! X(n, d) }", faults="gather"
    ),
}


ATOMIC = {"processors": 3}  # a GPU of its own, and options: kernels of none of the other tests
OWN = tcjit.Options(shared=False)
# operators, and results of fewer than 32 bits, of which there are no atomic updates
WITHOUT = {"products", "sums of int8", "minima", "maxima of int16", "greater than before", "a target for each result"}
pytestmark = pytest.mark.usefixtures("threads_share_small_loops")


@pytest.mark.parametrize("name", SCATTERS)
def test_against_the_reference(name: str) -> None:
    assert_right(SCATTERS[name], "cpu")


@pytest.mark.parametrize("name", SCATTERS)
def test_without_nests(name: str) -> None:
    """Plain loops over all pairs of a term and an element."""
    assert_right(replace(SCATTERS[name], options=tcjit.Options(vector_width=1)), "cpu")


@pytest.mark.parametrize("name", FAULTS)
def test_targets_outside_are_errors(name: str) -> None:
    assert_right(FAULTS[name], "cpu")
    assert_right(replace(FAULTS[name], options=tcjit.Options(vector_width=1)), "cpu")


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize("given", [*SCATTERS.values(), *FAULTS.values()], ids=[*SCATTERS, *(f"wrong {name}" for name in FAULTS)])
def test_cuda_on_the_host(given: Case) -> None:
    assert_right(given, TARGET)


@pytest.fixture
def atomic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Atomic updates wherever a GPU has them, of however few terms."""
    monkeypatch.setattr(scatter_time, "WORTH", math.inf)


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize("name", [*SCATTERS, *(f"wrong {name}" for name in FAULTS)])
def test_cuda_with_atomic_updates_on_the_host(name: str, atomic: None) -> None:
    given = replace(SCATTERS.get(name) or FAULTS[name.removeprefix("wrong ")], device=ATOMIC, options=OWN)
    assert_right(given, TARGET)
    if not given.faults and not given.initial:
        with changed_device(ATOMIC):
            source = function(given.text, "f", TARGET, OWN).compile(*tensors(given)).source
        assert ("tc_atomic_" in source) == (name not in WITHOUT)


@pytest.mark.opencl
@pytest.mark.parametrize("name", SCATTERS)
def test_opencl(name: str) -> None:
    from support.rings.opencl import assert_agrees, require

    require("pocl")
    assert_agrees(SCATTERS[name])


@pytest.mark.opencl
@pytest.mark.parametrize("name", [*SCATTERS, *(f"wrong {name}" for name in FAULTS)])
def test_opencl_with_atomic_updates(name: str, atomic: None) -> None:
    from support.rings.opencl import require

    require("pocl")
    given = SCATTERS.get(name) or FAULTS[name.removeprefix("wrong ")]
    assert_right(replace(given, device=ATOMIC, options=OWN), "opencl")


@pytest.mark.opencl
def test_opencl_raises() -> None:
    from support.rings.opencl import require

    require("pocl")
    for given in FAULTS.values():
        assert_right(given, "opencl")


GPUS = [
    pytest.param(TARGET, marks=pytest.mark.skipif(COMPILER is None, reason="needs g++")),
    pytest.param("opencl", marks=pytest.mark.opencl),
]


@pytest.fixture
def gpu(request: pytest.FixtureRequest, atomic: None) -> Iterator[str]:
    """A target whose kernels update atomically what they can."""
    if request.param == "opencl":
        from support.rings.opencl import require

        require("pocl")
    with changed_device(ATOMIC):
        yield request.param


@pytest.mark.parametrize("gpu", GPUS, indirect=True)
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_extrema_of_nan_and_zeros_of_both_signs(gpu: str, dtype: str) -> None:
    nan, inf = math.nan, math.inf
    rows = [[0.0, -0.0], [-1.0, nan, 1.0], [1.0, -nan], [inf, -inf], [], [-inf], [-2.0, -3.0, 4.0], [-nan, nan, -inf]]
    index = torch.tensor([number for number, row in enumerate(rows) for _ in row])
    x = torch.tensor([value for row in rows for value in row]).to(torch.float64 if dtype == "double" else torch.float32)
    for operator in ("max", "min"):
        text = f"def f(int64(N) I, {dtype}(N) X) -> (O) {{ O(I(n)) {operator}=! X(n) where I(n) in 0:8 }}"
        f = tcjit.define(text, target=gpu, options=OWN).f
        assert "tc_atomic_" in f.compile(index, x).source
        expected = tcjit.define(text, target="reference").f(index, x)
        torch.testing.assert_close(f(index, x), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("gpu", GPUS, indirect=True)
@pytest.mark.parametrize("n", [0, 1, 700])
def test_few_terms_and_many_on_a_gpu(gpu: str, n: int) -> None:
    """Those of a tensor that lies transposed, too; what data leave out counts for no result."""
    text = "def f(int32(N) I, float(N,D) X) -> (O) { O(v, d) +=! (I(n) == v) ? X(n, d) : 0.0 where v in 0:5 }"
    f = tcjit.define(text, target=gpu, options=OWN).f
    index, x = torch.randint(-1, 6, (n,), dtype=torch.int32), torch.randint(-9, 9, (n, 3)).float()
    expected = torch.zeros(7, 3).index_add(0, index.long() + 1, x)[1:6]
    for given in (x, x.t().contiguous().t()):
        assert f(index, given).equal(expected)


@pytest.mark.parametrize("gpu", GPUS, indirect=True)
def test_chunks_of_few_results_on_a_gpu(gpu: str) -> None:
    f = tcjit.define("def f(int64(N) I) -> (int32(2) O) { O(I(n)) +=! 1 where I(n) in 0:2 }", target=gpu, options=OWN).f
    index = torch.randint(0, 2, (20003,))
    assert "O_part" in f.compile(index).source and f(index).equal(torch.bincount(index).int())


@pytest.mark.parametrize("gpu", GPUS, indirect=True)
def test_the_gradient_of_a_gather_on_a_gpu(gpu: str) -> None:
    text = "def f(float(V,D) T, int64(B,L) I, float(B,L) W) -> (Y) { Y(b,d) +=! W(b,l) * T(I(b,l), d) }"
    f = tcjit.define(text, target=gpu, options=OWN).f
    table, index = torch.randn(40, 7, requires_grad=True), torch.randint(0, 40, (9, 11))
    weight, cotangent = torch.randn(9, 11), torch.randn(9, 7)
    f(table, index, weight).backward(cotangent)
    terms = (weight[:, :, None] * cotangent[:, None]).reshape(-1, 7)
    torch.testing.assert_close(table.grad, torch.zeros(40, 7).index_add(0, index.flatten(), terms))


@pytest.mark.parametrize("gpu", GPUS, indirect=True)
def test_deterministic_algorithms(gpu: str) -> None:
    """A prepared call is of either kind, and each has its kernel."""
    f = tcjit.define(SUMS.replace("INT", "int64").replace("VALUE", "float"), target=gpu, options=OWN).f
    arguments = tensors(SCATTERS["sums"])
    atomic = []
    for asked in (False, True, False, True):
        torch.use_deterministic_algorithms(asked)
        try:
            f(*arguments)
            f(*arguments)
            atomic.append("tc_atomic_" in f.compile(*arguments).source)
        finally:
            torch.use_deterministic_algorithms(False)
    assert atomic == [True, False, True, False]


def tensors(given: Case) -> list[torch.Tensor]:
    return [tensor(array, given.fills[name].dtype) for name, array in given.inputs().items()]


@pytest.mark.parametrize("name", ["sums", "sums of halves", "counts", "two targets", "batches", "updated", "sums of rows"])
def test_the_same_bits_for_any_number_of_threads(name: str) -> None:
    arguments = tensors(SCATTERS[name])
    kernel = tcjit.define(SCATTERS[name].text).f.compile(*arguments)
    assert any("scatter along target" in line for line in kernel.resources["reductions"])
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(kernel(*arguments).view(torch.uint8).tolist())
    assert found[0] == found[1] == found[2]


def test_messages() -> None:
    f = tcjit.define(SUMS.replace("INT", "int64").replace("VALUE", "float")).f
    x, like = torch.ones(4, 3), torch.zeros(5, dtype=torch.int8)
    for bad in (-1, 5, 1 << 40, -(1 << 63)):
        with pytest.raises(GatherError, match="an index into O is outside of it") as caught:
            f(torch.tensor([0, 1, bad, 2]), x, like)
        assert caught.value.where is not None and caught.value.where.line_text[caught.value.where.column - 1 :].startswith("I(n), d)")
        dropped = f(torch.tensor([0, 1, bad, 2]), x, like, unchecked=True)
        assert dropped.sum() == 9 and dropped[:3].eq(1).all()
    none = torch.zeros(0, dtype=torch.int8)
    with pytest.raises(ShapeError, match="`I.n.` is outside of `O`, whose dimension 0 has no elements"):
        f(torch.tensor([0, 1, 3, 2]), x, none)
    assert f(torch.zeros(0, dtype=torch.int64), x[:0], none).shape == (0, 3)
    assert f(torch.zeros(0, dtype=torch.int64), x[:0], like).eq(0).all()


def test_arithmetic_that_wraps_is_outside() -> None:
    text = "def f(int64(N) I, int8(V) L) -> (int32(V) O) { O(2 * I(n)) +=! 1 }"
    for target in ("cpu", "reference"):
        f = tcjit.define(text, target=target).f
        assert f(torch.tensor([0, 1]), torch.zeros(3, dtype=torch.int8)).tolist() == [1, 0, 1]
        with pytest.raises(GatherError):
            f(torch.tensor([0, (1 << 63) - 1, -(1 << 63)]), torch.zeros(3, dtype=torch.int8))


def test_what_no_term_goes_to_keeps_its_sign() -> None:
    text = "def f(int64(N) I, float(N) X, float(V) L) -> (O) { O(v) = L(v) O(I(n)) += X(n) }"
    given = torch.tensor([0, 0]), torch.tensor([1.0, 2.0]), torch.full((40,), -0.0)
    for options in (None, tcjit.Options(vector_width=1)):
        found = tcjit.define(text, options=options).f(*given)
        assert found[0] == 3 and found[1:].signbit().all()


def test_sizes_that_only_the_call_knows() -> None:
    assert reductions_of_several_sizes("cpu") == ["O: scatter along target"]


@pytest.mark.parametrize("gpu", GPUS, indirect=True)
def test_sizes_that_only_the_call_knows_on_a_gpu(gpu: str) -> None:
    assert reductions_of_several_sizes(gpu) == ["O: scatter along target"]


def reductions_of_several_sizes(target: str) -> list[str]:
    """How a kernel for all sizes computes sums, which it has right at three of them."""
    text = "def f(int64(N) I, float(N,D) X, float(V) L) -> (float(V,D) O) { O(I(n), d) +=! X(n, d) }"
    sums = tcjit.define(text, target=target, dynamic=["N", "V", "D"]).f
    for n, v, d in ((5, 9, 7), (100, 6, 70), (33, 64, 200)):
        index, x = torch.randint(0, v, (n,)), torch.randint(-3, 4, (n, d)).float()
        torch.testing.assert_close(sums(index, x, torch.zeros(v)), torch.zeros(v, d).index_add_(0, index, x), rtol=0, atol=0)
        index[3] = v
        with pytest.raises(GatherError):
            sums(index, x, torch.zeros(v))
    found: list[str] = sums.compile(index, x, torch.zeros(64)).resources["reductions"]
    return found


def test_what_gives_sizes_alone_is_not_kept() -> None:
    f = tcjit.define("def f(int64(N) I, float(N,D) X, float(V) L) -> (float(V,D) O) { O(I(n), d) +=! X(n, d) * X(n, d) }").f
    like, index = torch.zeros(4), torch.tensor([0, 1, 1])
    x, gone = torch.ones(3, 2, requires_grad=True), weakref.ref(like)
    result = f(index, x, like)
    del like
    assert gone() is None
    result.sum().backward()
    assert x.grad is not None and x.grad.eq(2).all()


def test_a_batch_is_one_more_dimension() -> None:
    f = tcjit.define("def f(int64(N) I, float(N,D) X, float(V) L) -> (float(V,D) O) { O(I(n), d) +=! X(n, d) }").f
    index, x, like = torch.randint(0, 4, (2, 9)), torch.randint(-3, 4, (2, 9, 5)).float(), torch.zeros(4)
    expected = torch.stack([f(i, y, like) for i, y in zip(index, x)])
    assert torch.func.vmap(f, in_dims=(0, 0, None))(index, x, like).equal(expected)
    assert torch.func.vmap(f, in_dims=(None, 0, None))(index[0], x, like)[0].equal(expected[0])
