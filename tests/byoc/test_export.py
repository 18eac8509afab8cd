"""Exported folders: run by C++ without Python, read by anything that reads JSON, checked against wrong shapes and damaged files.

Modules: byoc.exported.build byoc.exported.document byoc.exported.inline byoc.exported.kernels byoc.exported.library byoc.exported.saved
byoc.exported.traced
"""
from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.byoc.toy import Toy, outlined
from torch import Tensor, nn
from torch.nn import functional

from tcjit.byoc import tcjit_backend  # noqa: F401  registers the backend
from tcjit.byoc.adapter import Adapter
from tcjit.byoc.backends import Backend, find, unregister
from tcjit.byoc.diagram import picture
from tcjit.byoc.export import ExportResult, export
from tcjit.byoc.exported import build, kernels
from tcjit.byoc.exported.inline import CALL
from tcjit.byoc.exported.kernels import Argument, Exported, exported, shared
from tcjit.byoc.fx import FxAdapter
from tcjit.byoc.graph import Block, Node, TensorType, Value
from tcjit.byoc.ops import run
from tcjit.byoc.partition_blocks import Partitioning
from tcjit.byoc.spec import seal
from tcjit.byoc.torchscript import TorchScriptAdapter
from tcjit.errors import PartitionError

pytestmark = pytest.mark.host

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "export_cpp"
LIBTORCH = Path(torch.__file__).parent


class Branches(nn.Module):
    """Regions in a branch and in a loop, a number as argument, several results, one without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(12, 20), nn.LayerNorm(20)
        self.scale = nn.Parameter(torch.rand(20))

    def forward(self, x: Tensor, times: int) -> tuple[Tensor, Tensor, list[Tensor]]:
        y = functional.gelu(self.norm(self.first(x)) * self.scale)
        if bool(y.sum() > 0):
            y = torch.exp(y * 0.1) - self.scale
        else:
            y = torch.tanh(y + 1) * 2
        for _ in range(times):
            y = torch.sigmoid(y) * self.scale + 0.5
        return y, (y * y).mean(), [y[:, :3], torch.cumsum(y, 0)]


class Looked(nn.Module):
    """A table read by index, other dtypes, a view that is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.register_buffer("part", torch.rand(8).to(torch.bfloat16))
        self.register_buffer("mask", torch.rand(8) > 0.5)

    def forward(self, index: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        found = self.table(index) * 2 + self.part.float()
        fft = torch.fft.fft(x.t()).real.t()
        return torch.where(self.mask, found, -found), torch.softmax(fft + x, -1)


class Small(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.register_buffer("factor", torch.full((6,), factor))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x * self.factor) + 1


def made(adapter: Adapter, inputs: Sequence[Any], folder: Path, backend: Backend | None = None) -> tuple[ExportResult, Partitioning]:
    block, regions = outlined(adapter.block, backend or find("tcjit"))
    cut = Partitioning(block, tuple(regions), ())
    return export(cut, adapter, folder, tuple(inputs)), cut


def scripted(module: nn.Module, inputs: Sequence[Any], folder: Path) -> ExportResult:
    return made(TorchScriptAdapter(torch.jit.script(module.eval()), inputs), inputs, folder)[0]


def loaded(folder: Path) -> torch.jit.ScriptModule:
    torch.ops.load_library(str(folder / "model.so"))
    return torch.jit.load(str(folder / "model.pt"))


def document(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "graph.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def runner(pytestconfig: pytest.Config) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The example program, compiled as its Makefile says; that takes 15 s, so it is kept with what else pytest keeps between runs."""
    texts = {name: (EXAMPLE / name).read_bytes() for name in ("main.cpp", "Makefile")}
    key = hashlib.sha256(repr((texts, torch.__version__, str(LIBTORCH))).encode()).hexdigest()[:16]
    assert pytestconfig.cache is not None
    place = pytestconfig.cache.mkdir(f"tcjit-export-{key}")
    if not (place / "run").is_file():
        with tempfile.TemporaryDirectory(dir=place) as here:
            for name, text in texts.items():
                Path(here, name).write_bytes(text)
            done = subprocess.run(["make", "CXXFLAGS=-O0", f"LIBTORCH={LIBTORCH}"], cwd=here, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            Path(here, "run").replace(place / "run")

    def call(folder: Path, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command, environment = [str(place / "run"), str(folder), *more], {"OMP_NUM_THREADS": "2", **environment}
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    return call


@pytest.fixture(scope="module")
def branches(tmp_path_factory: pytest.TempPathFactory) -> tuple[Branches, ExportResult]:
    torch.manual_seed(1)
    model = Branches().eval()
    return model, scripted(model, (torch.randn(9, 12), 3), tmp_path_factory.mktemp("branches") / "out")


def test_branches_and_loops_without_python(branches: tuple[Branches, ExportResult], runner: Any, tmp_path: Path) -> None:
    model, folder = branches
    assert len(folder.served) >= 4 and not folder.left
    done = runner(folder.path, LD_DEBUG="files", LD_DEBUG_OUTPUT=str(tmp_path / "files"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["input CPUFloatType [9, 12]", "the outputs are those saved"]
    opened = "".join(path.read_text() for path in tmp_path.glob("files.*"))
    assert "model.so" in opened and "libtorch_cpu.so" in opened and "python3" not in opened.replace(str(LIBTORCH), "")
    assert len(set(re.findall(r"\S*/libgomp\S*\.so[.\d]*", opened))) <= 1  # kernels share LibTorch's threads
    assert "libpython" not in opened and "libtorch_python" not in opened


def test_an_exported_program_without_python(runner: Any, tmp_path: Path) -> None:
    torch.manual_seed(2)
    model, inputs = Looked().eval(), (torch.randint(0, 10, (4, 5)), torch.randn(5, 8))
    folder, _ = made(FxAdapter(torch.export.export(model, inputs)), inputs, tmp_path / "out")
    assert folder.served and not folder.left
    done = runner(folder.path, "0.05")
    assert done.returncode == 0 and "us a call" in done.stdout, done.stderr
    mine = loaded(folder.path)
    for got, want in zip(mine(*inputs), model(*inputs)):
        torch.testing.assert_close(got, want)
    with pytest.raises(torch.jit.Error, match=r"exported for an input of shape \[5, 8\], not \[6, 8\]"):  # type: ignore[attr-defined]
        mine(inputs[0], torch.randn(6, 8))
    with pytest.raises(RuntimeError, match="outside of it"):
        mine(inputs[0] + 7, inputs[1])


def test_regions_refuse_what_they_are_not_for(branches: tuple[Branches, ExportResult]) -> None:
    model, folder = branches
    mine = loaded(folder.path)
    x = torch.randn(9, 12)
    for flipped in (x, -x):  # both branches
        got, want = mine(flipped, 2), model(flipped, 2)
        torch.testing.assert_close((got[0], got[1], *got[2]), (want[0], want[1], *want[2]))
    spread = torch.randn(9, 24)[:, ::2]
    torch.testing.assert_close(mine(spread, 1)[0], model(spread, 1)[0])
    with pytest.raises(RuntimeError, match=r"was exported for \w+ of shape \[9, 12\], and was called with \[8, 12\]: export it"):
        mine(torch.randn(8, 12), 1)
    with pytest.raises(RuntimeError, match=r"was exported for \w+ of dtype float32, and was called with another"):
        mine(x.double(), 1)
    name = f"{folder.namespace}::{folder.served[0]}"
    operator = getattr(getattr(torch.ops, folder.namespace), folder.served[0]).default
    assert name in str(operator._schema) and operator(x.to("meta"))[0].shape == (9, 20)


def test_the_files_hold_what_only_regions_read_and_the_model_does_not(branches: tuple[Branches, ExportResult]) -> None:
    model, folder = branches
    constants = document(folder.path)["constants"]
    names = {name: entry for name, entry in constants.items() if entry["shape"] == [20, 12]}
    ((_, weight),) = names.items()
    data = np.fromfile(folder.path / weight["file"], dtype="<f4").reshape(weight["shape"])
    assert weight["bytes"] == data.nbytes and np.array_equal(data, model.first.weight.detach().numpy())
    parameters = dict(loaded(folder.path).named_parameters())
    assert parameters["first.weight"].numel() == 0 and not any(each.requires_grad for each in parameters.values())


def test_the_graph_is_all_that_an_executor_needs(tmp_path: Path) -> None:
    """A model run from graph.json and constants/, by a few lines that know nothing of tcjit's own operators."""
    torch.manual_seed(3)
    model, inputs = Looked().eval(), (torch.randint(0, 10, (3,)), torch.randn(7, 8))
    folder = scripted(model, inputs, tmp_path / "out").path
    found = document(folder)
    held: dict[str, Any] = {}
    for name, entry in found["constants"].items():
        data = torch.frombuffer(bytearray((folder / entry["file"]).read_bytes()), dtype=getattr(torch, entry["dtype"]))
        held[name] = data.reshape(entry["shape"])
    held |= dict(zip((each["name"] for each in found["graph"]["inputs"]), inputs))
    regions = {each["operator"]: each for each in found["regions"]}

    def value(given: Any, known: Mapping[str, Any]) -> Any:
        if isinstance(given, dict):
            return known[given["value"]] if "value" in given else float(given["float"])
        return [value(each, known) for each in given] if isinstance(given, list) else given

    def play(nodes: Sequence[Mapping[str, Any]], known: dict[str, Any]) -> None:
        for node in nodes:
            given = {name: value(each, known) for name, each in node["arguments"].items()}
            names = [each["name"] if isinstance(each, dict) else each for each in node["outputs"]]
            region = regions.get(node["op"].replace(".", "::"))
            if region is not None:
                inner = dict(zip((each["name"] for each in region["inputs"]), given.values()))
                inner |= {each["name"]: held[each["constant"]] for each in region["constants"]}
                play(region["nodes"], inner)
                known.update(zip(names, (inner[each["name"]] for each in region["outputs"])))
            elif node["op"] == "prim.TupleConstruct":
                known[names[0]] = tuple(next(iter(given.values())) if len(given) == 1 else given.values())
            else:
                known.update(zip(names, run(node["op"], node["overload"], given)))

    play(found["graph"]["nodes"], held)
    results = [held[name] for name in found["graph"]["outputs"]]
    results = list(results[0]) if isinstance(results[0], tuple) else results
    assert any(region["constants"] for region in regions.values())
    for got, want in zip(results, model(*inputs)):
        torch.testing.assert_close(got, want)


def test_the_sources_are_plain_c(branches: tuple[Branches, ExportResult], tmp_path: Path) -> None:
    """Without OpenMP, by their header alone; and a kernel called from its address."""
    _, folder = branches
    found = document(folder.path)
    region = next(each for each in found["regions"] if not each["constants"] and len(each["outputs"]) == 1 and len(each["inputs"]) == 1)
    include = tmp_path / "include.c"
    include.write_text('#include "kernels.h"\n#include "kernels.h"\n', encoding="utf-8")
    source = folder.path / region["source"]
    flags = ["-std=gnu11", "-O1", "-Wall", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused", "-fPIC", f"-I{folder.path / 'src'}"]
    subprocess.run(["cc", *flags, "-shared", str(source), str(include), "-o", str(tmp_path / "k.so"), "-lm"], check=True)
    kernel = getattr(ctypes.CDLL(str(tmp_path / "k.so")), region["symbol"])
    kernel.restype = ctypes.c_int64
    (given,), (result,) = region["inputs"], region["outputs"]
    x, y = torch.randn(given["shape"]), torch.empty(result["shape"])
    scratch = torch.empty(max(1, region["workspace"]), dtype=torch.uint8)
    tensors = (ctypes.c_void_p * 2)(y.data_ptr(), x.data_ptr())
    assert kernel(tensors, None, ctypes.c_void_p(scratch.data_ptr()), 1) == 0
    operator = getattr(getattr(torch.ops, folder.namespace), region["name"])
    torch.testing.assert_close(y, operator(x))


def test_damaged_constants_are_noticed(runner: Any, tmp_path: Path) -> None:
    folder = scripted(Small(2.0), (torch.randn(4, 6),), tmp_path / "out").path
    (file,) = (folder / "constants").iterdir()
    whole = file.read_bytes()
    assert runner(folder).returncode == 0
    for damaged in (whole[:-1], whole + b"\0", whole[:3] + b"\1" + whole[4:], whole[4:] + whole[:4][::-1]):
        file.write_bytes(damaged)
        done = runner(folder)
        assert done.returncode == 1 and "is not the constant that this library was exported with" in done.stderr
    file.unlink()
    done = runner(folder)
    assert done.returncode == 1 and "cannot read the constant" in done.stderr


def test_several_exports_live_in_one_process(tmp_path: Path) -> None:
    """Libraries that differ in a constant only; the same one from two places; a new one in the place of an old one."""
    x = torch.randn(4, 6)
    two, three = (scripted(Small(factor), (x,), tmp_path / str(factor)) for factor in (2.0, 3.0))
    assert two.namespace != three.namespace and two.served == three.served
    for factor, folder in ((2, two), (3, three)):
        torch.testing.assert_close(loaded(folder.path)(x), torch.relu(x * factor) + 1)
    shutil.copytree(two.path, tmp_path / "copy")
    torch.testing.assert_close(loaded(tmp_path / "copy")(x), torch.relu(x * 2) + 1)
    again = scripted(Small(5.0), (x,), two.path)
    assert again.namespace != two.namespace
    torch.testing.assert_close(loaded(two.path)(x), torch.relu(x * 5) + 1)
    assert scripted(Small(3.0), (x,), tmp_path / "same").namespace == three.namespace
    torch.testing.assert_close(loaded(tmp_path / "same")(x), torch.relu(x * 3) + 1)


def test_regions_of_others_stay_aten(runner: Any, tmp_path: Path) -> None:
    toy, x = Toy(), torch.randn(4, 6)
    try:
        folder, cut = made(TorchScriptAdapter(torch.jit.script(Small(2.0).eval()), (x,)), (x,), tmp_path / "out", toy)
    finally:
        unregister("toy")
    assert not folder.served and list(folder.left.values()) == [f"{cut.regions[0].name} is run by toy, which has no C source"]
    found = document(folder.path)
    assert found["left"] == dict(folder.left) and [node["op"] for node in found["graph"]["nodes"]] == ["aten.mul", "aten.relu", "aten.add"]
    assert runner(folder.path).returncode == 0 and not toy.calls


def test_the_cut_model_is_as_before(tmp_path: Path) -> None:
    x = torch.randn(4, 6)
    adapter = TorchScriptAdapter(torch.jit.script(Small(2.0).eval()), (x,))
    block, regions = outlined(adapter.block, find("tcjit"))
    before, drawn = str(block), picture(block, regions)
    export(Partitioning(block, tuple(regions), ()), adapter, tmp_path / "out", (x,))
    assert str(block) == before and picture(block, regions) == drawn
    torch.testing.assert_close(adapter.realise(block)(x), torch.relu(x * 2) + 1)


def test_what_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 6)
    folder = scripted(Small(2.0), (x,), tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(PartitionError, match="full is there, and no earlier export"):
        scripted(Small(2.0), (x,), tmp_path / "full")
    with pytest.raises(PartitionError, match="thesis.txt"):
        scripted(Small(2.0), (x,), tmp_path / "full" / "thesis.txt")
    kept = sorted(path.relative_to(folder.path) for path in folder.path.rglob("*"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(PartitionError, match="no C.. compiler: CXX='no-such-compiler'"):
        scripted(Small(4.0), (x,), tmp_path / "out")
    assert sorted(path.relative_to(folder.path) for path in folder.path.rglob("*")) == kept
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(PartitionError, match="cannot build the exported library"):
        scripted(Small(4.0), (x,), tmp_path / "new")
    assert not (tmp_path / "new").exists() and len(list(tmp_path.iterdir())) == 2
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(build.torch, "__version__", "2.9.1+cpu")
    with pytest.raises(PartitionError, match="no headers of the stable ABI of 2.10"):
        scripted(Small(4.0), (x,), tmp_path / "new")


def test_branches_of_exported_programs_are_refused(tmp_path: Path) -> None:
    class Chooses(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))

    x = torch.randn(4)
    with pytest.raises(PartitionError, match="branches and loops of an exported program"):
        made(FxAdapter(torch.export.export(Chooses(), (x,))), (x,), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def call_of(text: str, name: str, shape: tuple[int | None, ...] = (4,), device: str = "cpu", constant: bool = False) -> Node:
    """A ``tcjit.call`` of a def ``f`` on one tensor."""
    x, y = Value("x", TensorType("float32", shape, device), constant=constant), Value("y", TensorType("float32", (4,), device))
    described = [{"name": v.name, "dtype": "float32", "shape": list(shape), "device": device, "constant": constant} for v in (x, y)]
    content = {"version": 1, "backend": "tcjit", "name": name, "inputs": described[:1], "outputs": described[1:], "nodes": []}
    return Node(CALL, "default", {"spec": seal({**content, "code": {"text": text, "entry": "f"}}), "inputs": (x,)}, (y,))


DOUBLE = "def f(float(N) X) -> (Y) { Y(i) = 2 * X(i) }"


def test_why_a_region_has_no_source() -> None:
    with pytest.raises(PartitionError, match="the shape of %x is not known"):
        exported(call_of(DOUBLE, "r", (None,)), {})
    with pytest.raises(PartitionError, match="r has no inputs"):
        call = call_of(DOUBLE, "r", constant=True)
        exported(call, {call.inputs[0]: "x"})
    with pytest.raises(PartitionError, match="the kernel computes"):
        exported(call_of("def f(float(N) X) -> (Y) { Y(i) = X(i) where i in 0:3 }", "r"), {})
    with pytest.raises(PartitionError, match="r cannot be compiled for its shapes"):
        exported(call_of("def f(float(N, M) X) -> (Y) { Y(i) = X(i, i) }", "r"), {})
    with pytest.raises(PartitionError, match="r is for mps"):
        exported(call_of(DOUBLE, "r", device="mps"), {})


def test_kernels_with_one_text_are_one() -> None:
    texts = {"a": DOUBLE, "b": DOUBLE, "c": DOUBLE.replace("2", "3")}
    one, two, three = shared([exported(call_of(text, name), {}) for name, text in texts.items()])
    assert (one.symbol, two.symbol, three.symbol) == ("tc_a", "tc_a", "tc_c") and one.source == two.source
    assert "int64_t tc_a(void *const *tensors" in one.source and "tc_f(" not in one.source + three.source


def test_kernels_for_a_gpu_are_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled here for an architecture, since there may be no GPU."""
    compiled = kernels.compile_text
    monkeypatch.setattr(kernels, "compile_text", lambda *args, target: compiled(*args, target=f"{target}:sm_90"))
    (region,) = shared([exported(call_of(DOUBLE, "r", device="cuda:0"), {})])
    assert region.target == "cuda" and region.file == "tc_r.cu" and region.launches
    for symbol, grid, threads, memory in region.launches:
        assert symbol.startswith("tc_r") and f"{symbol}(" in region.source and min(*grid, threads) > 0 and memory >= 0


def test_several_launches_keep_their_order() -> None:
    launches = (("tc_f", (1, 1, 1), 32, 0), ("tc_f_1", (2, 1, 1), 32, 0))
    argument = Argument("x", "float32", (4,))
    text = "void tc_f_1(float *x) { tc_fmax(x); } void tc_f(float *x) {}"
    region = Exported("r", "cuda", "tc_f", text, (argument,), (), (argument,), (0,), (), 0, (), launches)
    (found,) = shared([region])
    assert found.source == "void tc_r_1(float *x) { tc_fmax(x); } void tc_r(float *x) {}"
    assert [launch[0] for launch in found.launches] == ["tc_r", "tc_r_1"]


def test_two_regions_of_one_name(tmp_path: Path) -> None:
    calls = [call_of(DOUBLE, "r"), call_of(DOUBLE.replace("2", "3"), "r")]
    block = Block(tuple(call.inputs[0] for call in calls), calls, tuple(call.output for call in calls))

    class Nothing:
        form, block = "torchscript", Block((), [], ())

    with pytest.raises(PartitionError, match="two regions have one name, of r, r"):
        export(Partitioning(block, (), ()), Nothing(), tmp_path / "out", ())  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []
