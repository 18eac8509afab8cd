"""A Kernel: how it was made, what it refuses, and its comparison with the reference."""
from __future__ import annotations

from typing import Any

import pytest
import torch
from support.calls import assert_refused, defs
from support.rings.targets import everywhere

import tcjit
from tcjit.jit import kernel as kernels
from tcjit.jit import kernel_cache, targets
from tcjit.jit.launch import Key

pytestmark = pytest.mark.sample(2, over="targets")
CUDA = "tests/cuda/test_cuda_calls.py has kernels for tensors of a GPU"
EVERYWHERE = pytest.mark.parametrize("on", everywhere(cuda=CUDA))


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def test_how_it_was_made() -> None:
    k = defs().mm.compile(meta(4, 5), meta(5, 6))
    assert repr(k) == "<tcjit.Kernel mm(A[4, 5], B[5, 6]) for cpu>"
    assert "tc_mm" in k.source and "domain" in k.tree and k.target == "cpu" and isinstance(k.options, tcjit.Options)
    assert {"source", "tree", "scop"} <= set(k.artifacts)
    assert set(k.resources) == {"workspace", "verified", "seconds", "reductions"} and k.resources["seconds"]["compile"] > 0
    assert k.roofline.flops == 2 * 4 * 5 * 6 and k.roofline.bytes == 4 * (20 + 30 + 24)


def test_options_and_targets() -> None:
    tc = defs()
    a, b = torch.randn(9, 7), torch.randn(7, 8)
    naive = tc.mm.compile(a, b, options=tcjit.Options.preset("naive"))
    default = tc.mm.compile(a, b)
    other = tc.mm.compile(a, b, target="reference")
    assert naive is not default and naive.options.vector_width == 1 and naive is tc.mm.compile(a, b, options=tcjit.Options.preset("naive"))
    for k in (naive, default, other):
        assert torch.allclose(k(a, b), a @ b, atol=1e-5)
        assert k.check(a, b).used["C"] <= 1
    assert "mm" in other.source and other.tree == "" and other.resources["workspace"] == 0
    assert assert_refused(lambda: tc.mm.compile(a, b, target="cuda"), tcjit.ArgumentError)


def test_out_of_the_cache() -> None:
    """Source, tree and the rest are stored beside the binary."""
    text = "def fresh(float(N) X) -> (Y) { Y(i) = 3.0 * X(i) }"
    signature = kernel_cache.signature(text, "fresh")
    key = Key(((5,),), ("contiguous",), (), True, targets.find("cpu"), None)
    first, again = (kernels.compiled(text, signature, key, kernel_cache.binary(text, signature, key)) for _ in range(2))
    assert first is not again and first.artifacts == again.artifacts and first.record == again.record
    assert torch.equal(again(torch.ones(5)), torch.full((5,), 3.0)) and "fresh" in again.source and again.roofline.flops == 5


@pytest.mark.parametrize("on", ["reference", *everywhere(cuda=CUDA)])
def test_calling(on: str) -> None:
    tc = defs(on)
    k = tc.step.compile(2.0, torch.randn(8), 2)
    x, out = torch.randn(8), torch.empty(4)
    assert torch.equal(k(0.5, x, 2), 0.5 * x[::2])  # the factor is not part of the kernel, the step is
    assert k(3, x, 2, out=out) is out and torch.equal(out, 3 * x[::2])
    assert_refused(lambda: k(1.0, x, 3), tcjit.ArgumentError, "s = 2")
    assert_refused(lambda: k(1.0, torch.randn(9), 2), tcjit.ShapeError, "(8,)")
    assert_refused(lambda: k(1.0, x), tcjit.ArgumentError)
    assert_refused(lambda: k(1.0, x, 2, out=torch.empty(5)), tcjit.ShapeError)
    assert_refused(lambda: k(1.0, x.clone().requires_grad_(), 2), tcjit.ArgumentError, "torch.no_grad()")
    assert torch.equal(k(1.0, torch._neg_view(x), 2), -x[::2])
    assert_refused(lambda: torch.vmap(lambda a: k(1.0, a, 2))(torch.randn(3, 8)), tcjit.TCError)
    assert_refused(lambda: k(1.0, x.to("meta"), 2), tcjit.ArgumentError)


@EVERYWHERE
def test_layouts(on: str) -> None:
    tc = defs(on)
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    k = tc.mm.compile(a, b)
    for other in (a.t(), torch.randn(8, 8)[::2, ::2], torch.randn(4, 1).expand(4, 4)):
        assert torch.allclose(k(other, b), other @ b, atol=1e-5)  # copied once, never misread
    strided = tc.mm.compile(torch.randn(4, 9)[:, :4], b)
    for other in (a, torch.randn(4, 5)[:, :4], a.t(), torch.randn(4, 1).expand(4, 4)):
        assert torch.allclose(strided(other, b), other @ b, atol=1e-5)
    expanded = tc.mm.compile(torch.randn(1, 4).expand(4, 4), b)
    row = torch.randn(1, 4).expand(4, 4)
    assert torch.allclose(expanded(row, b), row @ b, atol=1e-5)
    assert_refused(lambda: expanded(a, b), tcjit.ArgumentError, "layout")


@EVERYWHERE
def test_unchecked(on: str) -> None:
    tc = defs(on)
    table, index = torch.randn(4, 3), torch.tensor([0, 3])
    checked, unchecked = tc.pick.compile(table, index), tc.pick.compile(table, index, unchecked=True)
    assert checked is not unchecked and checked.source != unchecked.source
    assert torch.equal(unchecked(table, index), table[index])
    assert_refused(lambda: checked(table, index + 1), tcjit.GatherError)


def test_check_sees_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    tc = defs("cpu")
    x = torch.randn(6)
    k = tc.add.compile(x, x)
    assert str(k.check(x, x)).startswith("C: ")

    def wrong(inputs: Any, scalars: Any, outs: Any) -> None:
        outs[0].copy_(inputs[0] + inputs[1])
        outs[0][4] += 0.01

    monkeypatch.setattr(k, "work", wrong)
    assert_refused(lambda: k.check(x, x), tcjit.VerifyError, "C[4]")
    monkeypatch.setattr(k, "work", lambda inputs, scalars, outs: outs[0].fill_(float("nan")))
    assert_refused(lambda: k.check(x, x), tcjit.VerifyError, "C[0]")


def test_nan_is_right_where_the_reference_has_it_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([1.0, float("nan"), float("inf"), 2.0])
    k = defs("cpu").add.compile(x, x)
    assert k.check(x, x).used["C"] == 0
    for place in (1, 3):

        def wrong(inputs: Any, scalars: Any, outs: Any, place: int = place) -> None:
            outs[0].copy_(inputs[0] + inputs[1])
            outs[0][place] = 3.0 if place == 1 else float("nan")

        monkeypatch.setattr(k, "work", wrong)
        assert_refused(lambda: k.check(x, x), tcjit.VerifyError, f"C[{place}]")


@EVERYWHERE
def test_check(on: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {
        "add": (torch.randn(5), torch.randn(5)),
        "mm": (torch.randn(5, 40), torch.randn(40, 3)),
        "both": (torch.randn(9),),
        "onto": (torch.randn(3, 5),),
        "pick": (torch.randn(4, 2), torch.tensor([1, 1, 3])),
        "step": (0.3, torch.randn(7), 3),
        "rest": (torch.arange(-4, 4, dtype=torch.int32), torch.full((8,), 3, dtype=torch.int32)),
        "sum": (torch.randn(30, 30),),
        "shift": (torch.randn(8),),
    }
    tc = defs(on)
    assert set(arguments) == set(tc)
    for name, given in arguments.items():
        assert all(0 <= part <= 1 for part in tc[name].compile(*given).check(*given).used.values()), name


def test_an_unproved_kernel_of_the_cache_is_proved_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def unproved(float(N) A) -> (C) { C(i) = A(i) * 3.0 }"
    signature = kernel_cache.signature(text, "unproved")
    key = Key(shapes=((5,),), layouts=("contiguous",), scalars=(), checked=True, target=targets.find("cpu"), options=None)
    for asked, verified in (("0", False), ("0", False), ("1", True), ("0", True)):
        monkeypatch.setenv("TCJIT_VERIFY", asked)
        assert kernel_cache.binary(text, signature, key).record["verified"] is verified


def test_options_that_cannot_matter_make_no_second_kernel() -> None:
    """A cache entry, too, is found whatever such options say."""
    text = "def f(float(N) X) -> (Y) { Y(n) = 3 * X(n) + 1 }"
    given = torch.ones(5)
    plain = tcjit.compile(text, "f", given, options=tcjit.Options(tile=(2,)))
    other = tcjit.compile(text, "f", given, options=tcjit.Options(tile=(2, 0), reduction_chunks=7, fusion="minimal", private_buffers=False))
    assert plain.options == other.options == tcjit.Options(tile=(2,))
    assert plain.binary is not None and other.binary is not None and plain.binary.launch.address == other.binary.launch.address
    assert tcjit.compile(text, "f", given, options=tcjit.Options(tile=(3,))).binary.launch.address != plain.binary.launch.address
