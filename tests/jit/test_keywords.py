"""What a user of Python expects of a def: names of arguments, signatures, pickles, a namespace that holds still."""
from __future__ import annotations

import inspect
import pickle

import pytest
import torch
from support.calls import assert_refused, child, defs, knows

import tcjit


def test_signatures_have_the_names_of_the_def() -> None:
    tc = defs()
    assert str(inspect.signature(tc.mm)) == "(A: torch.Tensor, B: torch.Tensor, *, out=None, unchecked=False) -> torch.Tensor"
    assert list(inspect.signature(tc.step).parameters) == ["a", "X", "s", "out", "unchecked"]
    odd = tcjit.define("def f(float(N) out, float(N) lambda) -> (Y) { Y(i) = out(i) * lambda(i) }").f
    assert list(inspect.signature(odd).parameters) == ["out_", "lambda_", "out", "unchecked"]
    assert torch.equal(odd(torch.ones(2), torch.ones(2)), torch.ones(2))


def test_arguments_by_name() -> None:
    tc = defs("cpu")
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    wanted = tc.mm(a, b)
    for _ in range(3):
        assert torch.equal(tc.mm(A=a, B=b), wanted) and torch.equal(tc.mm(B=b, A=a), wanted) and torch.equal(tc.mm(a, B=b), wanted)
    assert knows(tc.mm, a, b)  # the fast path is that of positions
    out = torch.empty(3, 5)
    assert tc.mm(a, B=b, out=out) is out and torch.equal(out, wanted)
    x = torch.arange(6.0)
    assert torch.equal(tc.step(0.5, x, s=2), tc.step(0.5, x, 2)) and torch.equal(tc.step(s=2, X=x, a=0.5), tc.step(0.5, x, 2))
    kernel = tc.mm.compile(B=b, A=a)
    assert kernel is tc.mm.compile(a, b) and torch.equal(kernel(a, B=b), wanted) and kernel.check(A=a, B=b).used["C"] <= 1
    assert repr(tcjit.compile(tc.mm.text, "mm", a, B=b)) == repr(kernel)


def test_wrong_names() -> None:
    tc = defs("cpu")
    x = torch.ones(2)
    for call in (tc.add, tc.add.compile, tc.add.compile(x, x), tc.add.compile(x, x).check):
        assert_refused(lambda: call(x, x, B=x), tcjit.ArgumentError, "add() got multiple values for argument 'B'")  # noqa: B023
        assert_refused(lambda: call(x, C=x), tcjit.ArgumentError, "add() got an unexpected keyword argument 'C'")  # noqa: B023
        assert_refused(lambda: call(B=x), tcjit.ArgumentError, "add() misses A")  # noqa: B023
        assert_refused(lambda: call(x), tcjit.ArgumentError, "add() takes 2 arguments but 1 was given")  # noqa: B023


def test_arguments_by_name_under_torch_compile() -> None:
    tc = defs("cpu")
    x = torch.randn(5)
    compiled = torch.compile(lambda x: tc.add(x, B=x) * 2, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), x * 4)


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_kernels_pickle(target: str) -> None:
    tc = defs(target)
    x = torch.arange(7.0)
    kernel = tc.step.compile(0.5, x, 2, options=tcjit.Options(vector_width=1))
    again = pickle.loads(pickle.dumps(kernel))
    assert repr(again) == repr(kernel) and again.options == kernel.options and again.key == kernel.key
    assert torch.equal(again(0.5, x, 2), kernel(0.5, x, 2)) and again.source == kernel.source
    assert_refused(lambda: again(0.5, x, 3), tcjit.ArgumentError, "compiled for s = 2")


def test_kernels_pickle_into_another_process() -> None:
    data = pickle.dumps(defs("cpu").add.compile(torch.ones(4), torch.ones(4)))
    assert child(f"import pickle, torch; print(pickle.loads({data!r})(torch.ones(4), torch.ones(4)))") == "tensor([2., 2., 2., 2.])"


def test_a_namespace_holds_still() -> None:
    tc = defs()
    with pytest.raises(AttributeError, match="q cannot be set; try: tcjit.define of another text"):
        tc.q = 1
    with pytest.raises(AttributeError, match="mm cannot be deleted"):
        del tc.mm
    assert_refused(lambda: tc[["mm"]], tcjit.ArgumentError, "no def called ['mm']")  # type: ignore[index]
    assert tc.mm is tc["mm"] and "q" not in list(tc)
