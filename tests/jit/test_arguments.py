"""Wrong arguments: what is said of them, in which order, and that nothing but a TCError comes of a fuzz."""
# ruff: noqa: B023  (every lambda here is called at once)
from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from support.calls import assert_fast, assert_refused, defs

import tcjit


@pytest.fixture(params=["cpu", "reference"])
def tc(request: pytest.FixtureRequest) -> Any:
    return defs(request.param)


A, B = torch.ones(4, 5), torch.ones(5, 6)

WRONG = {
    "too few": ((A,), "mm() takes 2 arguments but 1 was given\ntry: mm(float32(M, K) A, float32(K, N) B) -> (C)"),
    "too many": ((A, B, B), "mm() takes 2 arguments but 3 were given\ntry: mm(float32(M, K) A, float32(K, N) B) -> (C)"),
    "none": ((A, None), "argument 2 of mm(), float32(K, N) B, must be a torch.Tensor, not None\ntry: a tensor of 2 dimensions"),
    "list": (([1.0], B), "argument 1 of mm(), float32(M, K) A, must be a torch.Tensor, not list\ntry: a tensor of 2 dimensions"),
    "numpy": (
        (np.ones((4, 5)), B),
        "argument 1 of mm(), float32(M, K) A, must have dtype torch.float32, not torch.float64\ntry: x.to(torch.float32)",
    ),
    "dtype": (
        (A, B.double()),
        "argument 2 of mm(), float32(K, N) B, must have dtype torch.float32, not torch.float64\ntry: x.to(torch.float32)",
    ),
    "dtype comes before rank": (
        (A.long()[0], B),
        "argument 1 of mm(), float32(M, K) A, must have dtype torch.float32, not torch.int64\ntry: x.to(torch.float32)",
    ),
    "rank": ((A, B[0]), "argument 2 of mm(), float32(K, N) B, must have 2 dimensions, not 1: its shape is (6,)"),
    "first argument first": (
        (A[0], B.double()),
        "argument 1 of mm(), float32(M, K) A, must have 2 dimensions, not 1: its shape is (5,)",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_messages(tc: Any, case: str) -> None:
    args, message = WRONG[case]
    assert_fast(tc.mm, A, B)
    assert assert_refused(lambda: tc.mm(*args), tcjit.ArgumentError) == message


@pytest.mark.parametrize(
    ("dtype", "value", "held"),
    [
        ("float32", 1e39, "a float up to 3.40282e+38, or an integer that float32 represents"),
        ("float16", 2049, "a float up to 65504, or an integer that float16 represents"),
        ("int8", 128, "a whole number from -128 to 127"),
        ("uint16", -1, "a whole number from 0 to 65535"),
        ("bool", 1, "True or False"),
    ],
)
def test_what_a_scalar_may_be(dtype: str, value: float, held: str) -> None:
    text = f"def f(float(N) X, {dtype} s) -> (Y) {{ Y(i) = s ? X(i) : 0.0 }}" if dtype == "bool" else ""
    f = tcjit.define(text or f"def f(float(N) X, {dtype} s) -> (Y) {{ Y(i) = X(i) * float(s) }}", target="reference").f
    with pytest.raises(tcjit.ArgumentError, match=f"{dtype} does not hold it exactly") as caught:
        f(torch.ones(2), value)
    assert caught.value.hint == held


def test_sizes(tc: Any) -> None:
    message = assert_refused(lambda: tc.mm(A, torch.ones(6, 6)), tcjit.ShapeError)
    assert "`A`" in message and "`B`" in message and "K" in message
    with pytest.raises(ValueError):
        tc.mm(A, torch.ones(6, 6))


def test_constant_extents() -> None:
    f = tcjit.define("def f(float(3, N) A, float(N) B) -> (C) { C(i) = A(0, i) + B(i) }", target="reference").f
    assert_refused(lambda: f(torch.ones(2, 5), torch.ones(4)), tcjit.ShapeError, "3")
    assert f(torch.ones(3, 5), torch.ones(5)).shape == (5,)


def test_keywords(tc: Any) -> None:
    x = torch.ones(3)
    for wrong in (1, "yes", None, torch.tensor(True)):
        assert_refused(lambda: tc.add(x, x, unchecked=wrong), tcjit.ArgumentError, "unchecked")
    assert_refused(lambda: tc.add(x, x, nothing=1), tcjit.ArgumentError, "unexpected keyword argument 'nothing'")


def test_an_accumulating_call_checks_arguments_first(tc: Any) -> None:
    assert_refused(lambda: tc.onto(torch.ones(3)), tcjit.ArgumentError, "dimensions")


class Strange:
    """Refuses whatever is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return Strange
        raise RuntimeError("no")


def pieces(rng: random.Random) -> Any:
    """Something to pass: mostly tensors that nearly fit."""
    dtype = rng.choice([torch.float32, torch.float32, torch.float32, torch.int64, torch.int32, torch.float64, torch.bool, torch.complex64])
    shape = tuple(rng.choice([0, 1, 2, 3, 3, 4]) for _ in range(rng.choice([0, 1, 1, 2, 2, 3])))
    t = torch.zeros(shape, dtype=dtype) if rng.random() < 0.5 else torch.ones(shape, dtype=dtype)
    make = rng.randrange(16)
    if make < 6:
        return t
    if make == 6:
        return t.to("meta")
    if make == 7:
        return t.expand(3, *shape)
    if make == 8:
        return t.transpose(0, -1) if t.dim() else t
    if make == 9 and dtype.is_floating_point:
        return t.requires_grad_()
    if make == 10:
        return t.to_sparse()
    if make == 11:
        return torch.nn.Parameter(t, requires_grad=False)
    if make == 12:
        return t.numpy()
    if make == 13:
        return rng.choice([0, 1, 2, 3, -1, 0.5, 2.0, True, None, "x", 1j, 2**70, float("nan"), (), [], {}, Strange(), torch.float32])
    if make == 14:
        return t[..., ::2] if t.dim() else t
    return torch._neg_view(t) if dtype not in (torch.bool,) else t


GOOD = {
    "add": (torch.ones(3), torch.ones(3)),
    "both": (torch.ones(4),),
    "onto": (torch.ones(3, 2),),
    "pick": (torch.ones(3, 2), torch.tensor([0, 2])),
    "step": (2.0, torch.ones(4), 2),
    "rest": (torch.ones(3, dtype=torch.int32), torch.ones(3, dtype=torch.int32)),
    "sum": (torch.ones(3, 3),),
    "shift": (torch.ones(6),),
}


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_fuzz(target: str) -> None:
    tc = defs(target)
    rng = random.Random(20260101)
    outcomes = {"fine": 0, "refused": 0}
    for _ in range(1500):
        name = rng.choice(list(GOOD))
        function, args = tc[name], list(GOOD[name])
        for _ in range(rng.choice([0, 1, 1, 2])):
            args[rng.randrange(len(args))] = pieces(rng)
        if rng.random() < 0.1:
            args = args[1:] if rng.random() < 0.5 else [*args, pieces(rng)]
        named = {}
        if name == "onto":
            named["out"] = torch.zeros(3)
        if rng.random() < 0.3:
            named["out"] = pieces(rng) if rng.random() < 0.6 else tuple(pieces(rng) for _ in range(rng.randrange(3)))
        if rng.random() < 0.1:
            named["unchecked"] = rng.choice([True, False, 1, None])
        if named.get("unchecked") is True and function is tc.pick:
            continue  # reads memory wherever the indices say
        try:
            function(*args, **named)
            outcomes["fine"] += 1
        except tcjit.TCError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 150, outcomes


def test_fuzz_of_define() -> None:
    for source in (None, 3, b"def", ["def"], object()):
        assert_refused(lambda: tcjit.define(source), tcjit.ArgumentError)
    text = "def f(float(N) X) -> (Y) { Y(i) = X(i) }"
    for target in ("gpu", "cuda:0", "cuda:sm", "opencl:1", "cpu:avx2", "", 3, ["cpu"], object()):
        assert_refused(lambda: tcjit.define(text, target=target), tcjit.ArgumentError)
    for options in ("naive", {}, 3, object()):
        assert_refused(lambda: tcjit.define(text, options=options), tcjit.ArgumentError)
        assert_refused(lambda: tcjit.define(text).f.compile(torch.ones(2), options=options), tcjit.ArgumentError)
    for source in ("", "def", "def f", text + "}", "def f(float(N) X) -> (Y) { Y(i) = Z(i) }"):
        assert_refused(lambda: tcjit.define(source), tcjit.TCError)
    assert_refused(lambda: tcjit.compile(text, "g", torch.ones(2)), tcjit.ArgumentError, "no def called 'g'")
    assert_refused(lambda: tcjit.compile(text, 3, torch.ones(2)), tcjit.ArgumentError)
    for wrong in (None, 1, torch.tensor(True), torch.ones(2), np.ones(3)):
        assert_refused(lambda: tcjit.define(text).f.compile(torch.ones(2), unchecked=wrong), tcjit.ArgumentError, "unchecked")
        assert_refused(lambda: tcjit.compile(text, "f", torch.ones(2), unchecked=wrong), tcjit.ArgumentError, "unchecked")
