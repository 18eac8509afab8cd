"""A partitioned program of fixed shapes is called without the module of torch.export, wherever nothing asks for that."""
from __future__ import annotations

import pytest
import torch
from torch import nn

import tcjit
from tcjit.byoc.static_call import static_call
from tcjit.errors import ShapeError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, object]:
        hidden = torch.sigmoid(self.layer(x)) * y
        return {"hidden": hidden, "parts": (torch.cumsum(hidden, 0), x)}


def partitioned(requires_grad: bool = False):
    torch.manual_seed(0)
    model, inputs = Net().eval().requires_grad_(requires_grad), (torch.randn(5, 12), torch.randn(5, 8))
    return model, inputs, tcjit.partition(model, inputs)


def same(found, expected) -> None:
    torch.testing.assert_close(found["hidden"], expected["hidden"])
    torch.testing.assert_close(found["parts"], expected["parts"])


def test_the_results_are_the_models_in_its_own_structure_and_the_second_call_goes_to_the_kernel():
    model, inputs, fast = partitioned()
    for _ in range(3):
        same(fast(*inputs), model(*inputs))
    assert fast._static(inputs) is not NotImplemented
    assert fast(*inputs)["parts"][1] is inputs[0]


def test_the_module_is_not_run_where_the_function_serves(monkeypatch):
    model, inputs, fast = partitioned()
    ran = []
    monkeypatch.setattr(type(fast.model), "forward", lambda *args: ran.append(args))
    same(fast(*inputs), model(*inputs))
    assert not ran
    monkeypatch.setattr(fast, "_static", None)
    fast(*inputs)
    assert len(ran) == 1


@pytest.mark.parametrize(
    "inputs",
    [
        (torch.randn(5, 12), torch.randn(5, 8), torch.randn(1)),
        (torch.randn(6, 12), torch.randn(6, 8)),
        (torch.randn(5, 12).double(), torch.randn(5, 8)),
        (torch.randn(5, 12, requires_grad=True), torch.randn(5, 8)),
        (nn.Parameter(torch.randn(5, 12)), torch.randn(5, 8)),
        (torch.randn(5, 12, device="meta"), torch.randn(5, 8)),
        (torch.randn(5, 12), 1.0),
    ],
)
def test_other_inputs_take_the_longer_way(inputs):
    assert partitioned()[2]._static(inputs) is NotImplemented


def test_other_shapes_are_refused_as_before():
    _, _, fast = partitioned()
    with pytest.raises(ShapeError, match="partitioned for inputs"):
        fast(torch.randn(6, 12), torch.randn(6, 8))


def test_what_watches_or_changes_operators_sees_them():
    model, inputs, fast = partitioned()
    fast(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        assert fast._static(inputs) is NotImplemented
    with torch.utils.flop_counter.FlopCounterMode(display=False):
        assert fast._static(inputs) is NotImplemented
    found = torch.func.vmap(lambda x: fast(x, inputs[1])["hidden"])(torch.stack([inputs[0], inputs[0] + 1]))
    torch.testing.assert_close(found[1], model(inputs[0] + 1, inputs[1])["hidden"])


def test_gradients_are_those_of_the_model_where_weights_train():
    model, inputs, fast = partitioned(requires_grad=True)
    assert fast._static(inputs) is NotImplemented
    with torch.no_grad():
        assert fast._static(inputs) is not NotImplemented
    fast(*inputs)["hidden"].sum().backward()
    found, model.layer.weight.grad = model.layer.weight.grad, None
    model(*inputs)["hidden"].sum().backward()
    torch.testing.assert_close(found, model.layer.weight.grad)


def test_weights_written_in_place_and_replaced_are_seen():
    model, inputs, fast = partitioned()
    fast(*inputs)
    with torch.no_grad():
        model.layer.weight.mul_(2)
    same(fast(*inputs), model(*inputs))
    zeros = {name: torch.zeros_like(each) for name, each in fast.model.state_dict().items()}
    fast.model.load_state_dict(zeros, assign=True)
    assert fast._static(inputs) is NotImplemented
    torch.testing.assert_close(fast(*inputs)["hidden"], 0.5 * inputs[1])


def test_other_runners_are_asked_again_and_what_they_refuse_runs_in_aten():
    from tcjit.byoc.runtime import forget

    model = lambda x, i: torch.relu(x[i] + 1) * 2  # noqa: E731 - a module of one line

    class Gather(nn.Module):
        def forward(self, x, i):
            return model(x, i)

    x, i = torch.randn(50, 40), torch.randint(0, 50, (60,))
    fast = tcjit.partition(Gather().eval(), (x, i), tcjit.PartitionConfig(cost=False))
    assert fast.regions
    for _ in range(3):
        torch.testing.assert_close(fast(x, i), model(x, i))
    forget("tcjit")
    torch.testing.assert_close(fast(x, i), model(x, i))
    torch.testing.assert_close(fast(x, i), model(x, i))
    with pytest.raises(IndexError):
        fast(x, i + 50)


def test_what_has_extents_that_vary_or_inputs_that_are_no_tensors_has_no_such_function():
    class Scaled(nn.Module):
        def forward(self, x, factor):
            return x * factor + 1

    program = torch.export.export(Scaled(), (torch.randn(4, 3), 2.0))
    assert static_call(program, program.module()) is None
    program = torch.export.export(Scaled(), (torch.randn(4, 3), torch.randn(3)), dynamic_shapes=({0: torch.export.Dim("n")}, None))
    assert static_call(program, program.module()) is None
    program = torch.export.export(Scaled(), (torch.randn(4, 3), torch.randn(3)))
    assert static_call(program, program.module()) is not None
    assert static_call(program, Scaled()) is None


def test_copies_files_and_compiled_models_compute_the_same(tmp_path):
    import copy

    model, inputs, fast = partitioned()
    fast.save(tmp_path / "model.pt2")
    for made in (copy.deepcopy(fast), tcjit.load(tmp_path / "model.pt2")):
        assert made._static(inputs) is not NotImplemented
        same(made(*inputs), model(*inputs))
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(fast, backend="eager")(*inputs)["hidden"], model(*inputs)["hidden"])
