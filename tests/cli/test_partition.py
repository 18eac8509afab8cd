"""What `tcjit partition` says of files that it cannot read or write."""
from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from tcjit.byoc.partition import partition
from tcjit.cli.partition import loaded, written
from tcjit.errors import PartitionError


def test_inputs_from_a_file(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    torch.save((x, 3), tmp_path / "inputs.pt")
    torch.save(x, tmp_path / "one.pt")
    found = loaded(tmp_path / "inputs.pt")
    assert torch.equal(found[0], x) and found[1] == 3 and torch.equal(loaded(tmp_path / "one.pt")[0], x)
    (tmp_path / "other.pt").write_text("no tensors")
    for name in ("missing.pt", "other.pt"):
        with pytest.raises(PartitionError, match=f"--example: cannot read .*{name}"):
            loaded(tmp_path / name)


def test_a_picture_that_cannot_be_written(tmp_path: Path) -> None:
    done = partition(torch.nn.ReLU(), (torch.randn(2, 4),), dry_run=True)
    assert list(written(done, None, None, tmp_path / "graph.svg")) == [f"drawn: {tmp_path / 'graph.svg'}"]
    with pytest.raises(PartitionError, match="cannot write .*: No such file or directory"):
        list(written(done, None, None, tmp_path / "missing" / "graph.svg"))


@pytest.mark.parametrize("form", ["torchscript", "exported"])
def test_an_example_that_the_model_cannot_take(form: str, tmp_path: Path) -> None:
    model: Any = torch.nn.Linear(8, 4).eval()
    if form == "exported":
        torch.export.save(torch.export.export(model, (torch.ones(2, 8),)), tmp_path / "model.pt2")
    else:
        torch.jit.trace(model, torch.ones(2, 8)).save(tmp_path / "model.pt2")
    ended = command(tmp_path, "--example", "2x5")
    assert ended.returncode == 2 and not ended.stdout
    said = "aten.linear" if form == "torchscript" else "exported for input of shape [2, 8], not [2, 5]"
    assert said in ended.stderr and "Traceback" not in ended.stderr
    assert command(tmp_path, "--example", "2x8").returncode == 0


def test_files_that_can_run_code_are_loaded_where_they_are_trusted(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2, 8),))
    program.example_inputs = ((Fraction(1),), {})  # a class that only pickles know
    torch.export.save(program, tmp_path / "model.pt2")
    ended = command(tmp_path, "--example", "2x8")
    assert ended.returncode == 2 and "data/sample_inputs/model.pt holds more than tensors" in ended.stderr and "--trust" in ended.stderr
    trusted = command(tmp_path, "--example", "2x8", "--trust")
    assert trusted.returncode == 0 and "covered" in trusted.stdout, trusted.stderr


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).resolve().parents[2]
    line = [sys.executable, "-m", "tcjit", "partition", str(folder / "model.pt2"), *words]
    paths = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    return subprocess.run(line, cwd=root, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=120)
