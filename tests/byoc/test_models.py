"""The models of the benchmark, small: sound in themselves; partitioned they compute the same, also from a file in a new process.

Modules: byoc.lower.attention
"""
from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.byoc.models import BENCHMARKS, MODELS, detections, largest, results

import tcjit

ROOT = BENCHMARKS.parent
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
each = pytest.mark.parametrize("name", list(MODELS))
# one of each kind: residual and depthwise convolutions, a detector with loops, attention, joined scales, embeddings
KINDS = ["resnet18", "mobilenet_v2", "ssd300_resnet34", "bert_base", "unet", "dlrm"]

# what a new process does with every file of a folder; prints the name and how far its results are from eager ones
READER = """
import sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
import torch
import tcjit
from models import MODELS
from models.compare import results
with torch.no_grad():
    for file in sorted(Path(sys.argv[2]).iterdir()):
        model, inputs = MODELS[file.stem], MODELS[file.stem].inputs(True)
        print(file.stem, model.error(results(model.make(True)(*inputs)), results(tcjit.load(file)(*inputs))))
"""


@pytest.fixture(scope="module", autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@each
def test_sound(name: str) -> None:
    """Finite, the same each time, of a scale of its own; scripted the same; a full batch is what its examples are."""
    chosen = MODELS[name]
    model, inputs = chosen.make(True), chosen.inputs(True)
    assert not any(module.training for module in model.modules())
    expected = results(model(*inputs))
    again = results(chosen.make(True)(*chosen.inputs(True)))
    assert all(torch.equal(one, other) for one, other in zip(expected, again, strict=True))
    for value in expected:
        assert bool(torch.isfinite(value).all()) and value.numel()
        assert not value.is_floating_point() or (1e-2 < float(value.abs().max()) < 100 and float(value.std()) > 1e-3)
    scripted = torch.jit.script(model)
    for _ in range(3):  # the second run is profiled, the third is of optimised code
        found = results(scripted(*inputs))
        assert chosen.error(expected, found) < 1e-5 and len(found[0]) == len(expected[0])


@each
@pytest.mark.sample(3)
def test_exported(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """All but those whose loops depend on data, which say so."""
    chosen = MODELS[name]
    model, inputs = chosen.make(True), chosen.inputs(True)
    if chosen.export:
        with pytest.raises(Exception, match="data-dependent"):
            torch.export.export(model, inputs)
        return
    program = torch.export.export(model, inputs)
    assert chosen.error(results(model(*inputs)), results(program.module()(*inputs))) < 1e-6


def test_detectors_find_boxes_of_every_image() -> None:
    for name in ("ssd512_mobilenet", "ssd300_resnet34", "faster_rcnn_resnet50"):
        model, inputs = MODELS[name].make(True), MODELS[name].inputs(True, 3)
        boxes, scores, kinds, owners = model(*inputs)
        assert sorted(set(owners.tolist())) == [0, 1, 2] and len(set(kinds.tolist())) > 1
        assert bool((boxes[:, 2:] >= boxes[:, :2]).all()) and float(boxes.max()) <= inputs[0].shape[3] and 0 < float(scores.min())


def test_suppression_keeps_the_best_of_a_kind() -> None:
    from models.boxes import nms  # type: ignore[import-not-found]

    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 0, 11, 10], [0, 0, 10, 10], [20, 0, 30, 10], [2, 0, 12, 10]])
    scores, kinds = torch.tensor([0.5, 0.9, 0.8, 0.1, 0.7]), torch.tensor([0, 0, 1, 0, 0])
    for run in (nms, torch.jit.script(nms)):
        assert run(boxes, scores, kinds, 0.45).tolist() == [1, 2, 3]
        assert run(boxes, scores, kinds, 0.9).tolist() == [1, 2, 4, 0, 3]


def test_features_under_a_box() -> None:
    """Of a map that grows with its columns, the mean under a cell is the column of its middle."""
    from models.boxes import roi_align  # type: ignore[import-not-found]

    columns = torch.arange(32.0).expand(2, 3, 32, 32) + 100 * torch.arange(2.0)[:, None, None, None]
    boxes, image = torch.tensor([[8.0, 8, 24, 24], [4.0, 0, 8, 16]]), torch.tensor([0, 1])
    found = roi_align(columns, boxes, image, 1.0, 4)
    assert found.shape == (2, 3, 4, 4)
    torch.testing.assert_close(found[0], torch.tensor([9.5, 13.5, 17.5, 21.5]).expand(3, 4, 4))
    torch.testing.assert_close(found[1], 100 + torch.tensor([4.0, 5.0, 6.0, 7.0]).expand(3, 4, 4))


def test_errors_are_seen() -> None:
    x = torch.tensor([1.0, -4.0])
    assert largest([x], [x]) == 0 and largest([x], [x + 0.4]) == pytest.approx(0.1)
    assert largest([x], [x[:1]]) == largest([x], [x.double()]) == largest([x], [x * float("nan")]) == float("inf")
    found = torch.tensor([[0.0, 0, 8, 8], [1, 1, 4, 10]]), torch.tensor([0.9, 0.8]), torch.tensor([1, 2]), torch.tensor([0, 0])
    swapped = [value.flip(0) for value in found]
    assert detections(found, found) == detections(found, swapped) == 0
    assert detections(found, (found[0] + 0.1, *found[1:])) == pytest.approx(0.01, rel=1e-4)
    assert detections(found, (*found[:2], torch.tensor([1, 3]), found[3])) > 1 and detections(found, [value[:1] for value in found]) > 0.1


@pytest.mark.parametrize(
    "names", [KINDS, pytest.param([name for name in MODELS if name not in KINDS], marks=pytest.mark.whole)], ids=["kinds", "others"]
)
def test_partitioned_saved_and_run_in_a_new_process(names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process for all files; every model agrees with eager before and after."""
    monkeypatch.setenv("TCJIT_VERIFY", "0")  # well over a hundred kernels: proofs of such programs are the matter of test_lower_*.py
    apart = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, chosen in ((name, MODELS[name]) for name in names):
            model, inputs = chosen.make(True), chosen.inputs(True)
            before = [value.clone() for value in inputs]
            done = tcjit.partition(model, inputs)
            assert done.regions and 0 < done.coverage.nodes <= 1 and 0 < done.coverage.flops <= 1, name
            apart[name] = chosen.error(results(model(*inputs)), results(done(*inputs)))
            assert all(torch.equal(one, other) for one, other in zip(inputs, before)), name
            done.save(tmp_path / f"{name}.pt")
    assert {name: error for name, error in apart.items() if not error < 1e-4} == {}
    command = [sys.executable, "-c", READER, str(BENCHMARKS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = dict(line.split() for line in done.stdout.splitlines())
    assert sorted(found) == sorted(names)
    assert {name: error for name, error in found.items() if not float(error) < 1e-4} == {}
