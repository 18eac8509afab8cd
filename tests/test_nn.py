"""Layers of defs: parameters, initialisers, state, training beside PyTorch's own layers.

Modules: nn
"""
from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from support.calls import assert_refused

import tcjit
from tcjit.nn import layer

pytestmark = pytest.mark.host

TEXT = """
def dense(float(N, K) X, float(M, K) W, float(M) b) -> (Y) {
    Y(n, m) +=! X(n, k) * W(m, k)
    Y(n, m) = Y(n, m) + b(m)
}
def dense_back(float(N, M) d_Y, float(N, K) X, float(M, K) W) -> (d_X, d_W, d_b) {
    d_X(n, k) +=! d_Y(n, m) * W(m, k)
    d_W(m, k) +=! d_Y(n, m) * X(n, k)
    d_b(m) +=! d_Y(n, m)
}
def scale(float(N) X, float a) -> (Y) { Y(i) = a * X(i) }
def scale_back(float(N) d_Y, float(N) X, float a) -> (d_X, d_a) {
    d_X(i) = a * d_Y(i)
    d_a +=! d_Y(i) * X(i)
}
def fixed(float(N, 4) X, float(4) training, int64(N) I) -> (Y) { Y(n, i) = X(n, i) * training(i) + I(n) }
"""
BACKWARD = {"dense": "dense_back", "scale": "scale_back"}


@pytest.fixture(params=["reference", "cpu"])
def tc(request: pytest.FixtureRequest) -> Any:
    return tcjit.define(TEXT, target=request.param, backward=BACKWARD)


def test_a_layer_is_a_module(tc: Any) -> None:
    dense = layer(tc.dense, {"W": (3, 4), "b": (3,)})
    assert isinstance(dense, torch.nn.Module) and list(dense.state_dict()) == ["W", "b"]
    assert repr(dense) == f"DefModule({tc.dense.signature}, W=(3, 4), b=(3,))"
    assert dense.W.abs().max() <= 0.5 and dense.W.std() > 0 and torch.equal(dense.b.detach(), torch.zeros(3))
    x = torch.randn(2, 4)
    torch.testing.assert_close(dense(x), torch.nn.functional.linear(x, dense.W, dense.b))
    torch.testing.assert_close(dense(X=x), dense(x))
    twin = copy.deepcopy(dense)
    twin.reset_parameters()
    assert not torch.equal(twin.W, dense.W) and twin.function is dense.function
    twin.load_state_dict(dense.state_dict())
    assert torch.equal(twin(x), dense(x))


def test_initialisers(tc: Any) -> None:
    dense = layer(tc.dense, {"W": (3, 4), "b": [3]}, initialisers={"W": torch.nn.init.eye_, "b": lambda b: b.fill_(2.0)})
    assert torch.equal(dense.W.detach(), torch.eye(3, 4)) and torch.equal(dense.b.detach(), torch.full((3,), 2.0))
    assert dense.W.requires_grad and dense.W.is_leaf


def test_training_beside_pytorch(tc: Any) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(16, 4), torch.randn(16, 2)
    own = torch.nn.Sequential(layer(tc.dense, {"W": (8, 4), "b": (8,)}), torch.nn.Tanh(), layer(tc.dense, {"W": (2, 8), "b": (2,)}))
    theirs = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    theirs.load_state_dict({name.replace("W", "weight").replace("b", "bias"): value for name, value in own.state_dict().items()})
    losses = []
    for model in (own, theirs):
        optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
        for _ in range(20):
            optimiser.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimiser.step()
        losses.append(loss.detach())
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-3, atol=1e-4)


def test_a_number_is_trained(tc: Any) -> None:
    scale = layer(tc.scale, {"a": ()}, initialisers={"a": torch.nn.init.ones_})
    x = torch.randn(5)
    scale(x).sum().backward()
    torch.testing.assert_close(scale.a.grad, x.sum())


def test_compiled(tc: Any) -> None:
    dense = layer(tc.dense, {"W": (3, 4), "b": (3,)})
    x = torch.randn(2, 4)
    compiled = torch.compile(dense, backend="aot_eager", fullgraph=True)
    compiled(x).sum().backward()
    torch.testing.assert_close(dense.b.grad, torch.full((3,), 2.0))
    torch._dynamo.reset()


def test_what_is_refused(tc: Any) -> None:
    for parameters, kind, says in (
        ({"V": (3,)}, tcjit.ArgumentError, "names 'V'"),
        ({"W": (3,)}, tcjit.ArgumentError, "has 2 dimensions, and its shape here is (3,)"),
        ({"W": 3}, tcjit.ArgumentError, "the shape of W is 3"),
        ({"W": (3, 4), "b": (4,)}, tcjit.ShapeError, "M of dense() is 4 for b and 3 for W"),
        ("W", tcjit.ArgumentError, "takes a dict"),
    ):
        assert_refused(lambda: layer(tc.dense, parameters), kind, says)  # noqa: B023
    assert_refused(lambda: layer(tc.fixed, {"I": (3,)}), tcjit.ArgumentError, "is no float")
    assert_refused(lambda: layer(tc.fixed, {"training": (4,)}), tcjit.ArgumentError, "cannot be a parameter")
    assert_refused(lambda: layer(tc.fixed, {"X": (3, 5)}), tcjit.ShapeError, "4 of fixed() is 5 for X and 4 for X")
    assert_refused(lambda: layer("dense", {}), tcjit.ArgumentError, "made of a def")
    assert_refused(lambda: layer(tc.dense, {"W": (3, 4)}, initialisers={"b": torch.nn.init.ones_}), tcjit.ArgumentError, "names 'b'")
    assert_refused(lambda: layer(tc.dense, {"W": (3, 4)}, initialisers={"W": 1}), tcjit.ArgumentError, "cannot be called")
    dense = layer(tc.dense, {"W": (3, 4), "b": (3,)})
    x = torch.randn(2, 4)
    assert_refused(lambda: dense(x, x), tcjit.ArgumentError, "takes X, and 2 arguments were given")
    assert_refused(lambda: dense(x, X=x), tcjit.ArgumentError, "multiple values for argument 'X'")
    assert_refused(lambda: dense(x, W=x), tcjit.ArgumentError, "multiple values for argument 'W'")
    assert_refused(dense, tcjit.ArgumentError, "misses X")
    assert_refused(lambda: dense(torch.randn(2, 5)), tcjit.ShapeError)
