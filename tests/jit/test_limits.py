"""What is too many or too large: arguments, bytes, extents. Errors that say what and how much, before anything is generated."""
from __future__ import annotations

import pickle

import pytest
import torch
from support.calls import assert_refused

import tcjit
from tcjit.jit import kernel as kernels
from tcjit.runtime import tensors

HUGE = 2**30


def many(count: int, operator: str = "=") -> str:
    params = ", ".join(f"float(N) X{n}" for n in range(count))
    return f"def f({params}) -> (Y) {{ Y(i) {operator} " + " + ".join(f"X{n}(i)" for n in range(count)) + " }"


def test_as_many_arguments_as_an_operator_takes() -> None:
    assert tcjit.define(many(63), target="cpu").f(*[torch.ones(2)] * 63).tolist() == [63, 63]
    assert tcjit.define(many(62, "+="), target="cpu").f(*[torch.ones(2)] * 62, out=torch.ones(2)).tolist() == [63, 63]
    assert_refused(lambda: tcjit.define(many(64)), tcjit.CheckError, "`f` takes 64 arguments, and an operator of PyTorch at most 63")
    assert_refused(lambda: tcjit.define(many(63, "+=")), tcjit.CheckError, "takes 64 arguments")


OUTER = "def f(float(N) X, int32 s) -> (Y) { %s where i in 0:s, j in 0:s }"


def test_a_result_without_room() -> None:
    call = lambda: tcjit.define(OUTER % "Y(i, j) = X(0*i)", target="cpu").f(torch.ones(2), HUGE)  # noqa: E731
    said = assert_refused(call, tcjit.LaunchError, f"no memory on cpu for Y of shape ({HUGE}, {HUGE}) in float32, {4 * HUGE * HUGE} bytes")
    assert "try: smaller arguments" in said
    with pytest.raises(RuntimeError) as caught:
        call()
    assert "for Y" in str(pickle.loads(pickle.dumps(caught.value)))


def test_a_temporary_without_room() -> None:
    text = "def f(float(N) X, int32 s) -> (Y) { T(i, j) = X(0*i) where i in 0:s, j in 0:s  Y +=! T(i, j) * T(j, i) }"
    tc = tcjit.define(text, target="cpu")
    said = assert_refused(lambda: tc.f(torch.ones(2), HUGE), tcjit.LaunchError, "no memory for the temporaries")
    assert f"of f(): T of shape ({HUGE}, {HUGE}) in float32" in said and "bytes" in said


def test_a_fast_path_without_room_takes_the_longer_way(monkeypatch: pytest.MonkeyPatch) -> None:
    tc = tcjit.define("def roomless(float(N) X) -> (Y) { Y(i) = X(i) + 1.0 }", target="cpu")
    x = torch.ones(3)
    for _ in range(3):
        tc.roomless(x)

    def fails(*_: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(tc.roomless, "_call", fails)
    assert tc.roomless(x).tolist() == [2, 2, 2]
    monkeypatch.setattr(tc.roomless, "_call", fails)
    monkeypatch.setattr(tensors.torch, "empty", fails)
    assert_refused(lambda: tc.roomless(x), tcjit.LaunchError, "no memory on cpu for Y of shape (3,) in float32, 12 bytes")


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("Y(i) = X(0*i) where i in 0:s*s*s", "Y would have shape"),
        ("Y +=! X(0*i) where i in 0:s*s*s", "the range of the index `i`"),
        ("Y(i, j, k) = X(0*i) where i in 0:s, j in 0:s, k in 0:s", "Y would have shape"),
        ("T(i) = X(0*i) where i in 0:s*s*s  Y = T(0)", "`T` would have shape"),
    ],
)
@pytest.mark.parametrize("dynamic", [(), ("N",)])
@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_sizes_past_64_bits(statement: str, says: str, dynamic: tuple[str, ...], target: str) -> None:
    tc = tcjit.define(f"def f(float(N) X, int32 s) -> (Y) {{ {statement} }}", dynamic=dynamic, target=target)
    said = assert_refused(lambda: tc.f(torch.ones(2), HUGE), tcjit.ShapeError, says)
    assert "beyond 64-bit addresses" in said and f"s = {HUGE}" in said
    assert_refused(lambda: tc.f.compile(torch.ones(2), HUGE), tcjit.ShapeError, "beyond 64-bit addresses")


def test_the_workspace_of_the_launcher() -> None:
    record = {"sites": [], "symbol": "tc_f", "workspace": 1 << 50}
    assert "no memory for the workspace of tc_f" in str(kernels.failure(record, -1))
