"""Calls on plain tensors: results, layouts, outputs, scalars and what kernels flag, on the first call and on the fast path."""
# ruff: noqa: B023  (every lambda here is called at once)
from __future__ import annotations

from typing import Any

import pytest
import torch
from support import STAND_INS
from support.calls import assert_fast, assert_refused, defs, knows
from support.rings.targets import everywhere

import tcjit

pytestmark = pytest.mark.sample(2, over="targets")
CUDA = "tests/cuda/test_cuda_calls.py has calls on tensors of a GPU"


@pytest.fixture(params=["reference", *everywhere(cuda=CUDA)])
def tc(request: pytest.FixtureRequest) -> Any:
    return defs(request.param)


def test_results(tc: Any) -> None:
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    assert torch.allclose(assert_fast(tc.mm, a, b), a @ b, atol=1e-5)
    y, z = assert_fast(tc.both, a[0])
    assert type(tc.both(a[0])) is tuple
    assert torch.equal(y, a[0] + 1) and torch.equal(z, (a[0] + 1) * 2)
    whole = (10 * a).round()
    assert torch.equal(assert_fast(tc.sum, whole), whole.sum()) and tc.sum(a).shape == ()


@pytest.mark.parametrize("on", everywhere(cuda_host="torch does not resize what NumPy has seen", cuda=CUDA))
def test_outputs_are_torch_s_own(on: str) -> None:
    """Allocated by torch: they may be resized, saved and differentiated like any other tensor."""
    tc = defs(on)
    x = torch.randn(8)
    made = assert_fast(tc.add, x, x)
    assert knows(tc.add, x, x) and made.is_contiguous() and not made.requires_grad and made.grad_fn is None
    assert made.resize_(100).shape == (100,) and made._version == 1


def test_every_layout(tc: Any) -> None:
    base = torch.randn(6, 6)
    left = base, base.t(), torch.randn(18, 12)[::3, ::2], torch.randn(12, 12)[::2, 1::2], torch.randn(6).expand(6, 6)
    right = base, base.t(), torch.randn(6, 1).expand(6, 6), torch.randn(1, 1).expand(6, 6), torch.randn(6, 12)[:, ::2]
    few = tc.mm.target in STAND_INS  # which compile slowly: each layout on either side, with two of the other
    for number, a in enumerate(left):
        for b in (right[number], right[number - 1]) if few else right:
            assert torch.allclose(assert_fast(tc.mm, a, b), a @ b, atol=1e-5)
    one = torch.randn(1, 6).as_strided((1, 6), (999, 1))
    assert torch.allclose(assert_fast(tc.mm, one, base), one @ base, atol=1e-5)


@pytest.mark.parametrize("on", everywhere(cuda=CUDA))
def test_one_kernel_serves_all_strides_of_a_kind(on: str) -> None:
    tc = defs(on)
    b = torch.randn(4, 4)
    kernels = {tc.mm.compile(torch.randn(4, width)[:, :4], b) for width in (5, 6, 7)}
    assert len(kernels) == 1
    assert {k.key.layouts for k in kernels} == {("n1", "contiguous")}
    for width in (5, 6, 7):
        a = torch.randn(4, width)[:, :4]
        assert torch.allclose(assert_fast(tc.mm, a, b), a @ b, atol=1e-5)


@pytest.mark.parametrize("on", everywhere(cuda=CUDA))
def test_expanded_beyond_two_to_the_31(on: str) -> None:
    tc = defs(on)
    table = torch.randn(1, 4).expand(2**40, 4)
    index = torch.tensor([0, 2**40 - 1, 2**31 + 5])
    assert torch.equal(assert_fast(tc.pick, table, index), table[0].expand(3, 4))
    assert_refused(lambda: tc.pick(table, index + 1), tcjit.GatherError)


def test_empty_tensors(tc: Any) -> None:
    assert assert_fast(tc.add, torch.empty(0), torch.empty(0)).shape == (0,)
    assert torch.equal(assert_fast(tc.mm, torch.empty(2, 0), torch.empty(0, 3)), torch.zeros(2, 3))
    assert assert_fast(tc.mm, torch.empty(0, 4), torch.empty(4, 3)).shape == (0, 3)
    assert torch.equal(assert_fast(tc.sum, torch.empty(0, 5)), torch.tensor(0.0))
    assert assert_fast(tc.shift, torch.randn(4)).shape == (0,)
    assert_refused(lambda: tc.shift(torch.randn(3)), tcjit.ShapeError)


def test_many_shapes(tc: Any) -> None:
    for n in range(1, 9):
        x = torch.randn(n)
        assert torch.equal(tc.add(x, x), 2 * x)
    for n in range(8, 0, -1):
        x = torch.randn(n)
        assert torch.equal(assert_fast(tc.add, x, x), 2 * x)


def test_table_of_many_strides() -> None:
    """More calls of different kinds than the fast path's table holds."""
    tc = defs("cpu")
    b = torch.ones(4, 4)
    for width in range(4, 284):
        a = torch.randn(4, width)[:, :4]
        assert torch.allclose(assert_fast(tc.mm, a, b), a @ b, atol=1e-5) and knows(tc.mm, a, b)
    assert len(tc.mm._table._launcher) == 256


def test_the_table_holds_each_call_once() -> None:
    tc = defs("cpu")
    x = torch.arange(6.0)
    assert_fast(tc.step, 1.0, x, 2)
    before = len(tc.step._table._launcher)
    for _ in range(5):
        assert torch.equal(tc.step(torch.tensor(2), x, 2), 2 * x[::2])  # an integer in a tensor is not for the fast path
    assert len(tc.step._table._launcher) == before and knows(tc.step, 1.0, x, 2)


# ---------------------------------------------------------------- scalars


def test_floats_in_tensors_are_read_on_the_fast_path() -> None:
    """Of float32 and float64, at the time of the call; those that need a gradient are recorded, as before."""
    tc = defs("cpu")
    x = torch.arange(6.0)
    for a in (torch.tensor(2.0), torch.tensor(0.5, dtype=torch.float64), torch.nn.Parameter(torch.tensor(3.0), requires_grad=False)):
        assert torch.equal(assert_fast(tc.step, a, x, 2), float(a) * x[::2]) and knows(tc.step, a, x, 2)
        a.mul_(2)
        assert torch.equal(assert_fast(tc.step, a, x, 2), float(a) * x[::2])
    views = torch.arange(8.0)
    assert torch.equal(assert_fast(tc.step, views[3], x, 2), 3 * x[::2])
    for a in (torch.tensor(2.0, dtype=torch.float16), torch.ones(1)[0].neg(), torch._neg_view(torch.tensor(2.0))):
        assert torch.equal(tc.step(a, x, 2), float(a) * x[::2]) and knows(tc.step, a, x, 2) == (a.dtype == x.dtype and not a.is_neg())
    needed = torch.tensor(2.0, requires_grad=True)
    y = tc.step(needed, x, 2)
    assert not knows(tc.step, needed, x, 2)
    (gradient,) = torch.autograd.grad(y.sum(), needed)
    assert gradient == x[::2].sum()
    with torch.no_grad():
        assert torch.equal(assert_fast(tc.step, needed, x, 2), 2 * x[::2])
    z = tc.step(torch.tensor(4.0), x.clone().requires_grad_(), 2)
    assert z.requires_grad and torch.equal(z, 4 * x[::2])
    with pytest.raises(tcjit.TCError):
        tc.step(torch.ones(1), x, 2)


def test_scalars(tc: Any) -> None:
    x = torch.arange(12.0)
    for a, s in ((2.0, 3), (0.5, 2), (-1, 1), (torch.tensor(2), 4), (2.0, torch.tensor(3)), (torch.tensor(0.25, dtype=torch.float64), 5)):
        for _ in range(3):
            assert torch.equal(tc.step(a, x, s), float(a) * x[:: int(s)][: 12 // int(s)])


def test_scalars_of_every_type(tc: Any) -> None:
    values = {
        "float32": (0.1, 2, float("inf"), -0.0),
        "float64": (0.1, 2**53, -3),
        "float16": (0.1, 7),
        "bfloat16": (0.1, 256),
        "int8": (-128, 127, 3.0),
        "uint8": (0, 255),
        "int32": (-(2**31), 2**31 - 1),
        "int64": (-(2**63), 2**63 - 1),
        "uint64": (0, 2**64 - 1, 2**63),
        "bool": (True, False),
    }
    target = tc.add.target
    for name, many in values.items():
        dtype = getattr(torch, name)
        fill = tcjit.define(f"def fill({name} a, float(N) X) -> (Y) {{ Y(i) = a where i in 0:N }}", target=target).fill
        for value in many:
            assert torch.equal(assert_fast(fill, value, torch.empty(3)), torch.full((3,), value, dtype=dtype)), (name, value)


@pytest.mark.parametrize(
    ("a", "s"),
    [
        (True, 1), ("2", 1), (None, 1), (1 + 2j, 1), (1e300, 1), (2**24 + 1, 1), (10**400, 1), (1.0, 0.5), (1.0, True), (1.0, 2**31),
        (1.0, float("nan")), (1.0, float("inf")), (torch.ones(1), 1), (torch.ones(2), 1), (1.0, torch.tensor(0.5)), ([], 1), (1.0, {}),
        (torch.tensor(True), 1), (1.0, torch.tensor(1j)), (torch, 1),
    ],
)  # fmt: skip
def test_scalars_that_the_type_does_not_hold(tc: Any, a: Any, s: Any) -> None:
    x = torch.randn(6)
    for _ in range(2):
        assert_refused(lambda: tc.step(a, x, s), tcjit.ArgumentError)
        assert_fast(tc.step, 1.0, x, 1)


# ---------------------------------------------------------------- out=


def test_out(tc: Any) -> None:
    x, y = torch.randn(9), torch.randn(9)
    out = torch.empty(9)
    for version in range(1, 4):
        assert tc.add(x, y, out=out) is out and torch.equal(out, x + y) and out._version == version
        out.data.zero_()
    first, second = torch.empty(9), torch.empty(9)
    for outs in ((first, second), [first, second]):
        for _ in range(3):
            got = tc.both(x, out=outs)
            assert type(got) is tuple and got[0] is first and got[1] is second and torch.equal(second, (x + 1) * 2)
    single = (torch.empty(9),)
    assert tc.add(x, y, out=single) is single[0]


def test_out_is_noticed_by_autograd(tc: Any) -> None:
    for _ in range(3):
        saved = torch.ones(4, requires_grad=True)
        value = torch.ones(4)
        loss = (saved * value).sum()
        tc.add(torch.ones(4), torch.ones(4), out=value)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_strided_out(tc: Any) -> None:
    a, b = torch.randn(4, 5), torch.randn(5, 6)
    wide = torch.zeros(4, 12)
    for _ in range(3):
        out = wide[:, ::2]
        assert tc.mm(a, b, out=out) is out and torch.allclose(out, a @ b, atol=1e-5) and wide[:, 1::2].abs().sum() == 0
        flipped = torch.zeros(6, 4).t()
        assert torch.allclose(tc.mm(a, b, out=flipped), a @ b, atol=1e-5)


def test_out_accumulates(tc: Any) -> None:
    a = torch.randn(3, 4)
    assert_refused(lambda: tc.onto(a), tcjit.ArgumentError, "out=")
    out = torch.ones(3)
    for times in range(1, 5):
        tc.onto(a, out=out)
        assert torch.allclose(out, 1 + times * a.sum(1), atol=1e-5)
    assert_refused(lambda: tc.onto(a), tcjit.ArgumentError, "out=")
    wide = torch.ones(6)
    tc.onto(a, out=wide[::2])
    assert torch.allclose(wide[::2], 1 + a.sum(1), atol=1e-5) and torch.equal(wide[1::2], torch.ones(3))


def test_out_that_shares_memory(tc: Any) -> None:
    x, y = torch.randn(20), torch.randn(10)
    for _ in range(3):
        for out in (x[:10], x[5:15], x[9:19]):
            assert_refused(lambda: tc.add(x[:10], y, out=out), tcjit.ArgumentError, "overlaps")
        assert torch.equal(tc.add(x[:10], y, out=x[10:]), x[:10] + y)
        assert_refused(lambda: tc.both(y, out=(x[:10], x[9:19])), tcjit.ArgumentError, "overlaps")
        assert_refused(lambda: tc.both(y, out=(x[:10], x[:10])), tcjit.ArgumentError, "overlaps")
        tc.both(y, out=(x[:10], x[10:]))
    for out in (torch.empty(1).expand(10), torch.empty(12).as_strided((10,), (0,))):
        assert_refused(lambda: tc.add(y, y, out=out), tcjit.ArgumentError, "share memory")
    overlapping = torch.empty(9).as_strided((3, 3), (1, 1))
    assert_refused(lambda: tc.mm(torch.ones(3, 3), torch.ones(3, 3), out=overlapping), tcjit.ArgumentError, "share")


def test_wrong_outs(tc: Any) -> None:
    x = torch.randn(4)
    assert_fast(tc.add, x, x, out=torch.empty(4))
    for out, kind in (
        (torch.empty(5), tcjit.ShapeError),
        (torch.empty(4, 1), tcjit.ShapeError),
        (torch.empty(4, dtype=torch.float64), tcjit.ArgumentError),
        ((torch.empty(4), torch.empty(4)), tcjit.ArgumentError),
        ((), tcjit.ArgumentError),
        ("out", tcjit.ArgumentError),
        (3, tcjit.ArgumentError),
        (torch.empty(4, device="meta"), tcjit.ArgumentError),
    ):
        assert_refused(lambda: tc.add(x, x, out=out), kind)
    assert_refused(lambda: tc.both(x, out=torch.empty(4)), tcjit.ArgumentError, "tuple of 2")
    assert_refused(lambda: tc.both(x, out=(torch.empty(4), None)), tcjit.ArgumentError)


# ---------------------------------------------------------------- what kernels flag


def test_gathers(tc: Any) -> None:
    table, good = torch.randn(5, 4), torch.tensor([4, 0, 2])
    assert torch.equal(assert_fast(tc.pick, table, good), table[good])
    for bad in (5, -1, 2**40, -(2**63)):
        for _ in range(3):
            message = assert_refused(lambda: tc.pick(table, torch.tensor([0, bad])), tcjit.GatherError, "T")
            assert "line 6" in message and "T(I(b), d)" in message and "^" in message
    assert issubclass(tcjit.GatherError, IndexError)
    assert torch.equal(assert_fast(tc.pick, table, good, unchecked=True), table[good])
    if tc.pick.target == "cpu":
        assert knows(tc.pick, table, good, unchecked=True)


def test_divisions(tc: Any) -> None:
    x, d = torch.tensor([7, -7, 7], dtype=torch.int32), torch.tensor([2, 2, -2], dtype=torch.int32)
    zero = torch.zeros(3, dtype=torch.int32)
    assert torch.equal(assert_fast(tc.rest, x, d), torch.div(x, d, rounding_mode="floor"))
    for _ in range(3):
        with pytest.raises(ZeroDivisionError, match="divided by zero"):
            tc.rest(x, zero)
        assert torch.equal(tc.rest(x, zero, unchecked=True), zero)


def test_errors_leave_no_trace(tc: Any) -> None:
    """After an error the next call works, with the same arguments' memory."""
    table, index = torch.randn(5, 4), torch.tensor([0, 9])
    for _ in range(5):
        assert_refused(lambda: tc.pick(table, index), tcjit.GatherError)
        index[1] = 1
        assert torch.equal(tc.pick(table, index), table[index])
        index[1] = 9
