"""TorchScript models cut by toy backends: every form of control flow and of results, aliases, files, training, and random programs.

Modules: byoc.alias_analysis byoc.script_read byoc.script_types byoc.script_write
"""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.byoc.scripts import Toy, cut, defined, partitioned, sharing, tensors_of, text
from torch import nn

from tcjit.byoc.graph import Block, Node, Value
from tcjit.byoc.infer import make
from tcjit.byoc.torchscript import TorchScriptAdapter, load, save, written
from tcjit.errors import PartitionError

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.host, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(autouse=True)
def plain_executor() -> Iterator[None]:
    """Without the executor's fuser of tensor expressions, which mixes up branches with and without loops."""
    was = torch._C._jit_texpr_fuser_enabled()
    torch._C._jit_set_texpr_fuser_enabled(False)
    yield
    torch._C._jit_set_texpr_fuser_enabled(was)


def scripted(body: str, arguments: str = "x") -> torch.jit.ScriptModule:
    """A module with this forward, a weight (4, 4) and a buffer ``shift`` (4,)."""
    return defined(
        f"def forward(self, {arguments}):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n",
        weight=nn.Parameter(torch.arange(16.0).view(4, 4) / 16),
        shift=torch.arange(4.0),
    )


def assert_same(module: torch.jit.ScriptModule, made: torch.jit.ScriptModule, *calls: Sequence[Any]) -> None:
    """Both give the same, leave the same behind, and share the same memory."""
    for arguments in calls:
        for _ in range(2):  # the second call runs what the executor made of the first
            found = []
            for each in (module, made):
                given = [value.clone() if isinstance(value, torch.Tensor) else value for value in arguments]
                with torch.no_grad():
                    result = each(*given)
                found.append([*tensors_of(given), *tensors_of(result), *each.buffers()])
            assert len(found[0]) == len(found[1])
            assert all(torch.equal(one, other) for one, other in zip(*found))
            assert sharing(found[0]) == sharing(found[1])


def nodes(block: Block) -> list[Node]:
    return [node for each in block.every() for node in each.nodes]


def find(block: Block, op: str) -> Node:
    (found,) = (node for node in nodes(block) if node.op == op)
    return found


X = torch.linspace(-2, 2, 16).view(4, 4)

PROGRAMS = {
    "chain": ("y = torch.relu(x + 1)\nreturn y * y", 1),
    "constants": ("return torch.nn.functional.linear(x, self.weight, self.shift) * 2", 1),
    "if": ("if bool(x.sum() > 0):\n    y = torch.relu(x) + 1\nelse:\n    y = torch.neg(x) * 2\nreturn y.sigmoid()", 4),
    "if without else": ("y = x + 1\nif bool(x.sum() > 0):\n    y = torch.relu(y) * 3\nreturn y", 3),
    "loop": ("y = x\nfor i in range(3):\n    y = torch.tanh(y + 1) * 2\nreturn y", 1),
    "while": ("y = x\nwhile bool(y.abs().sum() > 1):\n    y = y * 0.5 + 0.0\nreturn y", 2),
    "nested": (
        """
        y = x
        for i in range(3):
            if i % 2 == 0:
                for j in range(i):
                    y = torch.tanh(y) + 1
                z = y * 2
            else:
                z = y.relu() + y
            y = z * 0.5
        return y
        """,
        4,
    ),
    "tuple": ("a = x + 1\nreturn a, a.relu(), (a * 2, a.neg())", 1),
    "duplicate outputs": ("a = (x + 1).relu()\nreturn a, a, (a, a)", 1),
    "escaping tuple": ("p = (x + 1, x.relu())\nfor i in range(2):\n    p = (p[1] * 2, p[0] + p[1])\nreturn p", None),
    "tuple used inside": ("p = (x + 1, x * 2)\na, b = p\nreturn a.relu() + b", None),
    "list": ("held = [x + 1, x * 2]\nheld.append(x.relu())\nreturn torch.cat(held, 0), held", None),
    "list in a loop": ("held = [x]\nfor i in range(3):\n    held.append(held[i] + 1)\nreturn torch.stack(held).sum(0)", None),
    "split": ("a, b = torch.split(x, [1, 3], 1)\nc, d = (x + 1).chunk(2, 0)\nreturn torch.cat([b, a], 1), torch.cat([d, c], 0)", 2),
    "numbers": ("n = x.size(0)\ny = x.relu().view(n, -1) + n\nreturn y.neg() * float(n), n", 2),
    "dead tail": ("y = x + 1\nz = (y * 2).relu()\nw = z.sigmoid()\nreturn y", 1),
    "diamond": ("a = x + 1\nb = a.relu()\nc = torch.rand(4) * 0\nd = a * 2 + c\nreturn b + d", None),
    "input returned": ("y = x + 1\nreturn x, y", 1),
    "constant returned": ("if bool(x.sum() > 0):\n    n = 1\nelse:\n    n = 2\nreturn x * n, n, self.shift", None),
    "no grad": ("with torch.no_grad():\n    y = x * 2\nreturn y + 1", 1),
    "index": ("return x[0] + x[:, 1] + x[1:3].sum(0) + x[torch.tensor([0, 2])].sum(0)", None),
    "optional": (
        """
        b: Optional[Tensor] = None
        if x.size(0) > 3:
            b = self.shift
        return torch.nn.functional.linear(x, self.weight, b).relu()
        """,
        1,
    ),
}


@pytest.mark.parametrize(("body", "count"), PROGRAMS.values(), ids=PROGRAMS)
def test_programs(body: str, count: int | None) -> None:
    """Everything that may be in regions is; results as before, and a second run leaves the graph as it is."""
    module = scripted(body)
    toy = Toy()
    made, regions = partitioned(module, (X,), toy)
    assert regions and (count is None or len(regions) == count)
    assert_same(module, made, [X], [X + 3], [-X - 3])
    assert toy.calls
    again, more = partitioned(made, (X,), toy)
    assert not more and text(again) == text(made)
    none, empty = partitioned(module, (X,), Toy("none", lambda node: False))
    assert not empty and text(none) == text(module), "no match leaves the graph unchanged"


WRITERS = {
    "on an input": ("x.add_(1)\nreturn x * 2", "aten.add_", "writes to its argument"),
    "through a view": ("y = x.t()\ny.mul_(2)\nreturn x + 1, y", "aten.t", "shares memory with %"),
    "through a view in a branch": ("y = x * 1\nz = y.t()\nif bool(x.sum() > 0):\n    z.add_(1)\nreturn y + 1", "aten.t", "shares memory"),
    "through a tuple": ("y = x * 1\np = (y.t(), y)\nfor i in range(2):\n    p[0].add_(1)\nreturn y + 1", "aten.t", "shares memory with %"),
    "through a list": ("y = x * 1\nh = [y.t()]\nh.append(x)\nh[0].add_(1)\nreturn y + 1", "aten.t", "shares memory with %"),
    "on a buffer": ("y = self.shift.view(2, 2)\nself.shift.add_(1)\nreturn y + 1", "aten.view", "shares memory with %"),
    "a view that is returned": ("y = x * 2\nreturn y, y.t()", "aten.t", "leaves the block and shares memory with %"),
    "a view that is returned in a list": ("y = x * 2\nz = [y, y.t()]\nz.append(y)\nreturn z", "aten.t", "shares memory with %"),
    "a view of what a loop may return": (
        "y = x * 2\nz = y.t()\nfor i in range(x.size(0) - 4):\n    y = y + 1\nreturn y, z",
        "aten.t",
        "shares memory with %",
    ),
    "a view that a loop of no iteration returns": (
        "z = x.t()\nfor i in range(x.size(0) - 4):\n    z = x + 1\nreturn z",
        "aten.t",
        "shares memory with %",
    ),
    "a view of an element": (
        "h = [x]\ny = x + 1\nfor i in range(2):\n    h.append(y)\nreturn h[0].t(), x",
        "aten.t",
        "shares memory with %",
    ),
    "random": ("return torch.rand_like(x) * 0 + x", "aten.rand_like", "draws random numbers"),
    "of statistics": (
        "return torch.batch_norm(x, None, None, self.shift, self.shift, True, 0.1, 1e-5, False)",
        "aten.batch_norm",
        "writes to its argument",
    ),
}


@pytest.mark.parametrize(("body", "op", "why"), WRITERS.values(), ids=WRITERS)
def test_writers_and_views_are_refused_with_a_reason(body: str, op: str, why: str) -> None:
    module = scripted(body)
    adapter = TorchScriptAdapter(module, (X,))
    node = find(adapter.block, op)
    block, _ = cut(adapter.block, [Toy()])
    assert why in node.reason
    if op != "aten.rand_like":
        assert_same(module, adapter.realise(block), [X], [X - 3])


def test_two_inputs_may_be_one_tensor() -> None:
    module = scripted("y = b.t()\na.add_(1)\nreturn y + 1", "a, b")
    made, _ = partitioned(module, (X, X), Toy())
    for each in (module, made):
        shared = X.clone()
        with torch.no_grad():
            assert torch.equal(each(shared, shared), X.t() + 2)


def test_blocks_hold_what_the_graph_says() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.linear(x).relu(), x], dim=1)

    adapter = TorchScriptAdapter(torch.jit.script(Layer()), (torch.ones(2, 4),))
    linear, relu, cat = adapter.block.nodes
    assert str(linear.output.type) == "float32[2x3]" and str(cat.output.type) == "float32[2x7]"
    weight = linear.arguments["weight"]
    assert isinstance(weight, Value) and weight.constant and weight.name == "linear_weight" and str(weight.type) == "float32[3x4]"
    assert adapter.read(weight).shape == (3, 4)
    assert cat.arguments == {"tensors": (relu.output, adapter.block.inputs[0]), "dim": 1}
    assert adapter.block.outputs == (cat.output,) and adapter.form == "torchscript"
    with pytest.raises(PartitionError, match="is no constant of the model"):
        adapter.read(cat.output)


EXPECTED = dict.fromkeys(("scripted", "traced"), "batch_norm relu flatten dropout linear") | {"frozen": "relu flatten linear"}


@pytest.mark.parametrize("form", EXPECTED)
def test_scripted_traced_and_frozen_modules(form: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(64, 5)).eval()
    x = torch.randn(2, 3, 6, 6)
    module = torch.jit.trace(model, x) if form == "traced" else torch.jit.script(model)
    if form == "frozen":
        module = torch.jit.freeze(module)
    before = text(module)
    toy = Toy()
    made, regions = partitioned(module, (x,), toy)
    ((first, *others),) = [[node.op.removeprefix("aten.") for node in region.nodes] for region in regions]
    assert first in ("conv2d", "_convolution") and others == EXPECTED[form].split()
    assert all(value.type is not None and value.type.known for region in regions for value in region.outputs)
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(made(x), module(x)) and torch.allclose(made(x), model(x), atol=1e-6)
        assert torch.equal(made(x[:1]), module(x[:1])), "another batch runs too"
    assert toy.calls and text(module) == before, "the user's module is not changed"


def test_dynamic_dimensions() -> None:
    module = scripted("y = torch.mm(x, self.weight).relu()\nreturn y.view(x.size(0), 2, 2), torch.cat([y, y], 0)")
    adapter = TorchScriptAdapter(module, (X,), {"x": (0,)})
    types = {node.op: str(node.outputs[0].type) for node in adapter.block.nodes if node.outputs[0].type}
    assert types == {"aten.mm": "float32[?x4]", "aten.relu": "float32[?x4]", "aten.view": "float32[?x2x2]", "aten.cat": "float32[?x4]"}
    made, _ = partitioned(module, (X,), Toy(), dynamic={0: (-2,)})
    assert_same(module, made, [X], [X[:1]], [torch.randn(9, 4)])
    static = Toy("static")
    static.dynamic = False
    adapter = TorchScriptAdapter(module, (X,), {"x": (0,)})
    _, regions = cut(adapter.block, [static])
    assert not regions and "has an extent that is known at the run only" in adapter.block.nodes[0].reason
    for wrong in ({"z": (0,)}, {3: (0,)}):
        with pytest.raises(PartitionError, match="no argument of forward"):
            TorchScriptAdapter(module, (X,), wrong)
    with pytest.raises(PartitionError, match="dynamic names dimensions"):
        TorchScriptAdapter(module, (X,), {"x": (5,)})


def test_types_in_branches_and_loops() -> None:
    module = scripted(
        """
        if bool(x.sum() > 0):
            y = x[0:2]
        else:
            y = x[0:3]
        z = x
        for i in range(4):
            z = torch.cat([z, x], 0)
        w = x
        for i in range(2):
            w = w.sum(0) if w.dim() > 1 else w.unsqueeze(0)
        return y, z, w, x[:, int(x[0, 0])]
        """
    )
    adapter = TorchScriptAdapter(module, (X,))
    assert [str(value.type) for value in adapter.block.outputs] == ["float32[?x4]", "float32[?x4]", "?[?]", "float32[4]"]


def test_a_strict_backend_gets_other_shapes_served_in_plain_aten() -> None:
    toy = Toy(strict=True)
    module = scripted("return (x + 1).relu() * self.shift")
    made, _ = partitioned(module, (X,), toy)
    assert_same(module, made, [torch.randn(7, 4)])
    assert not toy.calls
    assert_same(module, made, [X])
    assert toy.calls


def test_a_pass_may_change_arguments_and_put_in_nodes_and_constants() -> None:
    module = scripted("y = torch.cat([x, x + 1], 0)\nif bool(x.relu().any()):\n    y = y.sum(1, keepdim=True)\nreturn y * 2")
    adapter = TorchScriptAdapter(module, (X,))
    cat, total = find(adapter.block, "aten.cat"), find(adapter.block, "aten.sum")
    cat.arguments = {"tensors": tuple(reversed(cat.arguments["tensors"])), "dim": 1}  # type: ignore[arg-type]
    total.arguments = {**total.arguments, "dim": (0,)}
    half = adapter.constant(torch.full((4, 8), 0.5), "the half")
    added = make("aten.add", "Tensor", {"self": cat.output, "other": half}, name="added", outputs=[half.type])
    total.arguments = {**total.arguments, "self": added.output}
    block = adapter.block
    place = block.nodes.index(cat) + 1
    rewritten = Block(block.inputs, [*block.nodes[:place], added, *block.nodes[place:]], block.outputs, block.mutated)
    made = adapter.realise(rewritten)
    with torch.no_grad():
        assert torch.equal(made(X), (torch.cat([X + 1, X], 1) + 0.5).sum(0, keepdim=True) * 2)
        assert torch.equal(made(X - 3), torch.cat([X - 3 + 1, X - 3], 1) * 2)
    assert torch.equal(made.the_half, torch.full((4, 8), 0.5)) and not hasattr(module, "the_half")
    assert [adapter.constant(torch.ones(1), name).name for name in ("the half", "half")] == ["the_half_1", "half_1"], "none hides another"


def test_a_region_uses_a_constant_that_only_another_block_read() -> None:
    module = scripted("y = x\nif bool(x.sum() > 0):\n    y = y + self.shift\nelse:\n    y = y * self.shift\nreturn y + self.shift")
    made, regions = partitioned(module, (X,), Toy())
    assert sum(len(region.constants) for region in regions) == 3
    assert_same(module, made, [X + 3], [X - 3])


def test_blocks_that_cannot_run_are_refused() -> None:
    module = scripted("y = x + 1\nz = y * 2\nreturn z")
    for order, what in (((1, 0), "not sound|before it is computed"), ((1,), "computes it|not in the block|used")):
        adapter = TorchScriptAdapter(module, (X,))
        block = adapter.block
        with pytest.raises(PartitionError, match=what):
            adapter.realise(Block(block.inputs, [block.nodes[place] for place in order], block.outputs, block.mutated))
    adapter = TorchScriptAdapter(module, (X,))
    block = adapter.block
    with pytest.raises(PartitionError, match="returns 2 values and must return 1"):
        adapter.realise(Block(block.inputs, block.nodes, block.outputs * 2, block.mutated))


def test_bad_input_is_refused() -> None:
    with pytest.raises(PartitionError, match="a ReLU is no ScriptModule"):
        TorchScriptAdapter(nn.ReLU(), (X,))  # type: ignore[arg-type]
    with pytest.raises(PartitionError, match="takes 1 arguments, 2 examples"):
        TorchScriptAdapter(scripted("return x"), (X, X))
    with pytest.raises(PartitionError, match="example number 0 is a int, forward takes a tensor for x"):
        TorchScriptAdapter(scripted("return x"), (3,))


def test_save_reload_and_train_in_a_new_process(tmp_path: Path) -> None:
    module = scripted(
        """
        y = torch.nn.functional.linear(x, self.weight, self.shift).tanh()
        for i in range(2):
            y = y * self.weight + 1
        return y, y.sum()
        """
    )
    made, regions = partitioned(module, (X,), Toy())
    file = tmp_path / "model.pt"
    save(made, file, {"backends": ["toy"], "regions": [region.name for region in regions]})
    code = f"""
        import sys, torch
        sys.path.insert(0, {str(ROOT / "tests")!r})
        from tcjit.byoc.torchscript import load
        from tcjit.errors import PartitionError
        try:
            load({str(file)!r})
        except PartitionError as error:
            assert "needs backend toy; here are tcjit, vendor" in str(error), error
        else:
            raise SystemExit("the missing backend was not missed")
        from support.byoc.scripts import Toy
        toy = Toy()
        model, manifest = load({str(file)!r})
        assert manifest["backends"] == ["toy"] and manifest["tcjit"] and len(manifest["regions"]) == {len(regions)}
        x = torch.linspace(-2, 2, 16).view(4, 4)
        with torch.no_grad():
            torch.save(model(x)[0], {str(tmp_path / "y.pt")!r})
        assert toy.calls
        optimiser = torch.optim.SGD(model.train().parameters(), 0.1)
        model(x)[1].backward()
        optimiser.step()
        torch.save([*model.parameters()], {str(tmp_path / "trained.pt")!r})
        """
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    with torch.no_grad():
        assert torch.equal(torch.load(tmp_path / "y.pt"), module(X)[0])
    optimiser = torch.optim.SGD(module.parameters(), 0.1)
    module(X)[1].backward()
    optimiser.step()
    (trained,) = torch.load(tmp_path / "trained.pt")
    assert torch.equal(trained, module.weight) and not torch.equal(trained, made.weight)


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PartitionError, match="there is no file"):
        load(tmp_path / "nothing.pt")
    (tmp_path / "text.pt").write_text("no model")
    with pytest.raises(PartitionError, match="is no model, or damaged"):
        load(tmp_path / "text.pt")
    scripted("return x").save(str(tmp_path / "plain.pt"))
    with pytest.raises(PartitionError, match="a model that tcjit did not write"):
        load(tmp_path / "plain.pt")
    save(scripted("return x"), tmp_path / "later.pt", {"format": 9})
    with pytest.raises(PartitionError, match="whose format 9 is not known here"):
        load(tmp_path / "later.pt")
    save(scripted("return x"), tmp_path / "cuda.pt", {"devices": ["cuda:0"]})
    if not torch.cuda.is_available():
        with pytest.raises(PartitionError, match="needs a CUDA device"):
            load(tmp_path / "cuda.pt")
    with pytest.raises(PartitionError, match="cannot be written"):
        save(scripted("return x"), tmp_path / "no" / "folder.pt", {})
    with pytest.raises(PartitionError, match="cannot be written"), written(tmp_path / "no" / "folder.pt"):
        pass


def test_a_file_is_replaced_only_by_a_whole_one(tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    file.write_text("before")
    with pytest.raises(KeyboardInterrupt), written(file) as target:
        target.write_text("half")
        raise KeyboardInterrupt
    assert file.read_text() == "before" and [each.name for each in tmp_path.iterdir()] == ["model.pt"]
    with written(file) as target:
        target.write_text("after")
    assert file.read_text() == "after" and [each.name for each in tmp_path.iterdir()] == ["model.pt"]


def test_the_time_of_three_thousand_nodes_is_about_linear() -> None:
    """Six times as many nodes take at most nine times as long, in the best of two readings: machines differ, and may be busy."""

    def seconds(nodes: int) -> float:
        lines = ["y = x", *(f"y = torch.{('relu', 'tanh', 'neg')[place % 3]}(y)" for place in range(nodes)), "return y"]
        module = scripted("\n".join(lines))
        gc.collect()
        gc.disable()  # a collection takes as long as the tests before have left objects
        start = time.process_time()
        _, regions = partitioned(module, (X,), Toy())
        taken = time.process_time() - start
        gc.enable()
        assert len(regions) == 1 and len(regions[0].nodes) == nodes
        return taken

    seconds(10)
    readings = [(seconds(500), seconds(3000))]
    if not readings[0][1] < 9 * readings[0][0]:
        readings.append((seconds(500), seconds(3000)))
    few, many = map(min, zip(*readings))
    assert many < 9 * few, f"{few:.2f} s, {many:.2f} s"


# a view that leaves in a sum of lists; what a dropout without effect gives, written to behind it
FAILED_ONCE = (3312102627279038, 3312102627279382)


def test_random_programs() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        import fuzz_scripts
    finally:
        sys.path.pop(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [(seed, *fuzz_scripts.check(seed)) for seed in (*range(30), *FAILED_ONCE)]
    assert [(seed, wrong) for seed, wrong, _ in found if wrong] == []
    assert sum(regions for _, _, regions in found) > 30
