"""``tcjit partition``: a saved model cut into regions, reported, saved again, exported or drawn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from tcjit.byoc.partition import PartitionedModule, partition
from tcjit.byoc.script_file import read
from tcjit.byoc.settings import PartitionConfig
from tcjit.errors import PartitionError

_EXAMPLE = re.compile(r"(?:(?P<dtype>[a-z]+\d*):)?(?P<shape>\d+(?:x\d+)*|)")


def cut(
    model: Path, example: str, seed: int, config: PartitionConfig, measure: bool, dry_run: bool,
    out: Path | None, export: Path | None, svg: Path | None, report: bool, trust: bool,
) -> Iterator[str]:  # fmt: skip
    """Partition and write what is asked for; the lines to print."""
    if dry_run and (out or export):
        raise PartitionError("a dry run makes nothing that could be written", hint="leave --dry-run, or --out and --export, away")
    inputs = loaded(Path(example[1:])) if example.startswith("@") else examples(example, seed)
    done = partition(read(model, trust=trust), tuple(inputs), config, dry_run=dry_run, measure=measure)
    yield done.report() if report else done.summary()
    yield from written(done, out, export, svg)


def written(done: PartitionedModule, out: Path | None, export: Path | None, svg: Path | None) -> Iterator[str]:
    """Write files and directories; a line for each."""
    if out is not None:
        done.save(out)
        yield f"saved: {out}"
    if export is not None:
        done.export(export)
        yield f"exported: {export}"
    if svg is not None:
        try:
            svg.write_text(done.svg(), encoding="utf-8")
        except OSError as error:
            raise PartitionError(f"cannot write {svg}: {error.strerror}", hint="name a file in a directory that is there") from error
        yield f"drawn: {svg}"


def loaded(file: Path) -> Sequence[Any]:
    """The inputs in a file."""
    try:
        content = torch.load(file, weights_only=True)
    except Exception as error:  # a file that is not there, or whatever reading one of another kind comes upon
        reason = str(error).partition(". ")[0].splitlines()[0] if str(error) else type(error).__name__
        raise PartitionError(f"--example: cannot read {file}: {reason}", hint="a file of torch.save((x, y), file)") from error
    return content if isinstance(content, (list, tuple)) else (content,)


def examples(text: str, seed: int) -> list[Any]:
    """Random tensors: ``1x3x224x224,int64:8x16`` are one of floats and one of zeros and ones; ``float32:`` has no dimensions.

    >>> [tuple(t.shape) for t in examples("2x3,int64:4", 0)]
    [(2, 3), (4,)]
    """
    random = torch.Generator().manual_seed(seed)
    return [_tensor(part.strip(), random) for part in text.split(",")]


def _tensor(text: str, random: torch.Generator) -> torch.Tensor:
    match = _EXAMPLE.fullmatch(text)
    dtype = getattr(torch, (match["dtype"] or "float32"), None) if match else None
    if match is None or not isinstance(dtype, torch.dtype) or not text:
        raise PartitionError(f"--example: {text!r} is no tensor", hint="1x3x224x224 or int64:8x16, several with commas, or @inputs.pt")
    shape = [int(extent) for extent in match["shape"].split("x") if extent]
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=random).to(dtype)
    return torch.randint(0, 2, shape, generator=random).to(dtype)
