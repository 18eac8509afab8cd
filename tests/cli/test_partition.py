"""What `tcjit partition` says of files that it cannot read or write."""
from __future__ import annotations

from pathlib import Path

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
