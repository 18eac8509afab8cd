"""A def as an operator of torch.library."""
from __future__ import annotations

import pytest
import torch
from support.calls import assert_refused, defs
from support.rings.targets import everywhere
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import tcjit
from tcjit.jit import kernel_cache, operator

ODD = """
def None_(float(N) self, float(N) out, float a_, int32 unchecked, bool in_, uint64 u, float16 h) -> (y_) {
    y_(i) = self(i) + out(i)
}
"""


def test_schema() -> None:
    step = defs().step
    assert step._overload.name().startswith("tcjit::step_")
    assert str(step._overload._schema).partition("(")[2] == "float a, Tensor X, int s, bool unchecked=False) -> Tensor"
    both, onto = defs().both, defs().onto
    assert str(both._overload._schema).endswith("(Tensor X, bool unchecked=False) -> (Tensor, Tensor)")
    assert str(onto._overload._schema).endswith("(Tensor A, Tensor C, bool unchecked=False) -> Tensor")


def test_names_that_a_schema_cannot_hold() -> None:
    (signature,) = kernel_cache.signatures(ODD)
    text = operator.schema(signature, "f")
    assert text == "f(Tensor self_, Tensor out_, float a__, int unchecked_, bool in__, int u, float h, bool unchecked=False) -> Tensor"
    f = tcjit.define(ODD, target="reference")["None_"]
    assert torch.equal(f(torch.ones(2), torch.ones(2), 1.0, 2, True, 2**64 - 1, 0.5), torch.full((2,), 2.0))


def test_a_name_per_text_target_and_options() -> None:
    names = {f._overload.name() for f in (defs().mm, defs("reference").mm, defs("cpu").mm, defs().mm)}
    assert len(names) == 3


pytestmark = pytest.mark.sample(2, over="targets")
CUDA = "tests/jit/test_cuda_calls.py has operators on tensors of a GPU"


@pytest.mark.parametrize("on", ["reference", *everywhere(cuda=CUDA)])
def test_opcheck(on: str) -> None:
    tc = defs(on)
    x = torch.randn(6)
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    for function, args in (
        (tc.add, (x, x)),
        (tc.both, (x,)),
        (tc.mm, (torch.randn(3, 4), torch.randn(4, 5))),
        (tc.step, (0.5, x, 2)),
        (tc.onto, (torch.randn(3, 4), torch.randn(3))),
        (tc.pick, (torch.randn(3, 4), torch.tensor([0, 2]))),
    ):
        assert set(torch.library.opcheck(function._overload, args, test_utils=checks).values()) == {"SUCCESS"}


@pytest.mark.parametrize("on", everywhere(cuda=CUDA))
def test_called_directly(on: str) -> None:
    tc = defs(on)
    x = torch.randn(6)
    assert torch.equal(tc.add._overload(x, x), 2 * x)
    total = torch.ones(3)
    a = torch.randn(3, 4)
    assert torch.allclose(tc.onto._overload(a, total), 1 + a.sum(1), atol=1e-5) and torch.equal(total, torch.ones(3))
    table, index = torch.randn(3, 4), torch.tensor([0, 9])
    assert_refused(lambda: tc.pick._overload(table, index), tcjit.GatherError)
    assert_refused(lambda: tc.add._overload(x, x[:3]), tcjit.ShapeError)
    assert_refused(lambda: tc.onto._overload(a, total[:2]), tcjit.ShapeError)
    y = x.clone().requires_grad_()
    assert torch.equal(torch.autograd.grad(tc.add._overload(x, y).sum(), y)[0], torch.ones(6))
    assert_refused(lambda: tc.onto._overload(a, total.requires_grad_()), tcjit.ArgumentError, "don't support automatic differentiation")


def test_symbolic_shapes() -> None:
    tc = defs("cpu")
    real = torch.randn(6, 7)
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * 2)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        fake = mode.from_tensor(real, source=ConstantSource("a"), symbolic_context=context)
        made = tc.mm(fake, fake.t())
        assert isinstance(made.shape[0], torch.SymInt) and made.shape[0] == fake.shape[0] and made.dtype == torch.float32
        assert tc.shift(fake[0]).shape[0] == fake.shape[1] - 4


@pytest.mark.parametrize("on", everywhere(cuda=CUDA))
def test_uint64_keeps_its_bits(on: str) -> None:
    f = tcjit.define("def f(uint64 a, float(N) X) -> (Y) { Y(i) = a where i in 0:N }", target=on).f
    x = torch.empty(2)
    with torch.device("cpu"):  # through the dispatcher
        assert f(2**64 - 1, x).tolist() == [2**64 - 1] * 2
