"""A partitioned model as a folder that C++ runs without Python.

    graph.json      the graph: operations, regions, constants
    src/            a C source per region (CUDA for those on a GPU), their header, and what is around them
    constants/      the parameters and buffers, a file each: contiguous, little-endian
    model.so        the regions as operators of LibTorch, which read their constants from the folder that it lies in
    model.pt        TorchScript, in which regions are those operators
    examples.pt     the example inputs, and the outputs of the model in plain ATen

``model.so`` needs LibTorch of version 2.10 or later and nothing else, and must be loaded before ``model.pt``. The kernels are for the
shapes of the example inputs: a call with others is refused. Regions without C source stand in ``model.pt`` as the ATen operations that they
are.

``graph.json`` has these entries:

- ``format``: 1; ``made_by``: the versions of tcjit and PyTorch; ``namespace``: of the operators in ``model.so``;
- ``graph``: a block. A block has ``inputs`` (values), ``nodes``, ``outputs`` (names). A value has a ``name`` and, if it is a tensor,
  ``dtype``, ``shape`` and ``device``, null where they are not known. A node has ``op``, ``overload``, ``arguments`` by their names,
  ``outputs`` (values), ``effect`` where it has one and ``blocks`` where it is a branch or loop. An argument is a JSON value, a list,
  ``{"value": name}``, ``{"float": "inf"}`` (``-inf``, ``nan``) or ``{"complex": [re, im]}``;
- ``regions``: those with source. ``name``, ``operator`` (null where ``model.so`` has none), ``target``, ``source``, ``symbol``, ``inputs``,
  ``constants`` (each with the name that it has in the region, and its own), ``outputs``, what the kernel is called with (``order``
  ``numbers`` ``workspace`` ``failures`` ``launches``, as in ``kernels.h``), and ``nodes``: what it computes in plain ATen, from inputs and
  constants to outputs;
- ``left``: regions that are ATen in ``model.pt``, with the reason;
- ``constants``: by name, with ``dtype``, ``shape``, ``file`` and ``bytes``;
- ``build``: the commands that made ``model.so``, run in ``src/``.
"""
from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tcjit import __version__
from tcjit.byoc.adapter import Adapter
from tcjit.byoc.exported import build, library, saved
from tcjit.byoc.exported.document import FORMAT, VariableNames, block_json, constant_json, region_json
from tcjit.byoc.exported.inline import CALL, claim, inlined, rewritten
from tcjit.byoc.exported.kernels import Argument, Exported, exported, shared
from tcjit.byoc.exported.library import Stored
from tcjit.byoc.exported.saved import SCRIPT
from tcjit.byoc.graph import Block, Node, Value
from tcjit.byoc.ops import dtype_name
from tcjit.byoc.partition_blocks import Partitioning
from tcjit.byoc.regions import identifier
from tcjit.byoc.spec import parse
from tcjit.errors import PartitionError


@dataclass(frozen=True)
class ExportResult:
    """What was written: the names of the regions that are operators, and of those that are not, with the reason."""

    path: Path
    namespace: str
    served: tuple[str, ...]
    left: Mapping[str, str]


def export(cut: Partitioning, adapter: Adapter, directory: Path, example_inputs: Sequence[Any]) -> ExportResult:
    """Writes a model as a folder, in place of one that an export made before; see the module's text.

    Raises PartitionError where the directory holds something else, a compiler is missing or refuses, or the model cannot be TorchScript.
    """
    folder = Path(directory).resolve()
    if adapter.form == "fx" and any(node.blocks for node in cut.block.nodes):
        raise PartitionError("branches and loops of an exported program have no TorchScript", hint=f"partition {SCRIPT}")
    try:
        old = _aside(folder)
    except OSError as error:
        raise PartitionError(f"cannot write to {folder}: {error.strerror}", hint="the name of a new directory") from error
    try:
        return _Export(cut.block, adapter, folder, tuple(example_inputs)).run()
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if old is not None:
            (old / "before").rename(folder)
        if isinstance(error, OSError):
            raise PartitionError(f"cannot write {folder}: {error.strerror}", hint="room there") from error
        raise
    finally:
        claim(cut.block)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)


class _Export:
    def __init__(self, block: Block, adapter: Adapter, folder: Path, inputs: tuple[Any, ...]) -> None:
        self._block, self._adapter, self._folder, self._inputs = block, adapter, folder, inputs
        self._held = _symbols(block)

    def run(self) -> ExportResult:
        regions, left = self._regions()
        stored = [self._stored(value, name) for value, name in self._held.items()]
        served = [region for region in regions.values() if region.target == "cpu"]
        used = {bound.constant for region in served for bound in region.constants}
        bound = [each for each in stored if each.argument.name in used]
        space = library.namespace(served, bound, __version__)
        (self._folder / "src").mkdir()
        for name, text in library.files(space, list(regions.values()), bound).items():
            (self._folder / "src" / name).write_text(text, encoding="utf-8")
        sources = ["machine.c", *dict.fromkeys(region.file for region in served)]
        build.build(self._folder, sources)
        self._load(space)
        operators = tuple(region.name for region in served)
        made = rewritten(self._block, lambda call: self._called(call, space, operators))
        document = {
            "format": FORMAT,
            "made_by": {"tcjit": __version__, "torch": torch.__version__},
            "namespace": space,
            "graph": block_json(made, VariableNames(self._held)),
            "regions": [region_json(region, space) for region in regions.values()],
            "left": left,
            "constants": {each.argument.name: constant_json(each) for each in stored},
            "build": build.portable(sources),
        }
        (self._folder / "graph.json").write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        saved.model(self._adapter.realise(made), self._adapter.form, self._inputs, self._folder / "model.pt", self._unused(made))
        plain = self._adapter.realise(rewritten(self._block, inlined))
        saved.examples(plain, self._adapter.form, self._inputs, self._folder / "examples.pt")
        return ExportResult(self._folder, space, operators, left)

    def _regions(self) -> tuple[dict[str, Exported], dict[str, str]]:
        """The regions that have a source, and why the others have none."""
        found: list[Exported] = []
        left: dict[str, str] = {}
        for block in self._block.every():
            for call in (node for node in block.nodes if node.op == CALL):
                try:
                    found.append(exported(call, self._held))
                except PartitionError as error:
                    left[parse(str(call.arguments["spec"]))["name"]] = error.what
        names = [region.name for region in found]
        if len(set(names)) < len(names):
            raise PartitionError(f"two regions have one name, of {', '.join(names)}", hint="number them through: merge(..., start=)")
        return {region.name: region for region in shared(found)}, left

    def _stored(self, value: Value, name: str) -> Stored:
        """Writes a constant to its file."""
        tensor = self._adapter.read(value).detach()
        if tensor.is_quantized:
            raise PartitionError(f"the constant %{value.name} is of {dtype_name(tensor.dtype)}, which has no plain form")
        dense = tensor if tensor.layout == torch.strided else tensor.to_dense()
        plain = dense.cpu().resolve_conj().resolve_neg().contiguous()
        file = f"constants/{name}.bin"
        (self._folder / "constants").mkdir(exist_ok=True)
        data = plain.reshape(-1).view(torch.uint8).numpy()
        data.tofile(self._folder / file)
        words = np.pad(data, (0, -len(data) % 8)).view("<u8")
        with np.errstate(over="ignore"):
            checksum = int((words * (2 * np.arange(len(words), dtype=np.uint64) + np.uint64(1))).sum(dtype=np.uint64))
        return Stored(Argument(name, dtype_name(plain.dtype), tuple(plain.shape)), file, len(data), checksum)

    def _unused(self, made: Block) -> list[str]:
        """The paths in a TorchScript model of constants that only regions read: those have them from their files."""
        held, used = ([getattr(value.origin, "path", "") for value in values] for values in (self._held, _symbols(made)))
        return [path for path in dict.fromkeys(held) if path and path not in used]

    def _load(self, space: str) -> None:
        """Makes the operators known here; under a name of its own, since loading a path for the second time gives what it was first."""
        made = self._folder / build.LIBRARY
        once = made.rename(self._folder / f"{space}.so")
        try:
            torch.ops.load_library(str(once))  # type: ignore[no-untyped-call]
        except OSError as error:
            raise PartitionError(f"the exported library cannot be loaded: {error}") from error
        finally:
            once.rename(made)

    def _called(self, call: Node, space: str, served: Sequence[str]) -> list[Node]:
        """A region's operator, which has its constants; or what it computes in plain ATen."""
        name = identifier(parse(str(call.arguments["spec"]))["name"])
        if name not in served:
            return inlined(call)
        inputs = [value for value in call.inputs if value not in self._held]
        return [Node(f"{space}.{name}", "default", {f"input{at}": value for at, value in enumerate(inputs)}, call.outputs)]


def _symbols(block: Block) -> dict[Value, str]:
    """The constants that a block uses, those of blocks inside too, with names of their own for C and for files."""
    found: dict[Value, str] = {}
    taken: set[str] = set()
    for inner in block.every():
        for value in (*(value for node in inner.nodes for value in node.inputs), *inner.outputs):
            if value.constant and value.type is not None and value not in found:
                base, number = identifier(value.name), 0
                name = base
                while name in taken:
                    number += 1
                    name = f"{base}_{number}"
                taken.add(name)
                found[value] = name
    return found


def _aside(folder: Path) -> Path | None:
    """Makes room for a folder: an earlier export goes aside, anything else stays where it is."""
    if not folder.exists():
        folder.mkdir(parents=True)
        return None
    if not folder.is_dir() or (any(folder.iterdir()) and not (folder / "graph.json").is_file()):
        raise PartitionError(f"{folder} is there, and no earlier export", hint="the name of a new directory")
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    folder.rename(old / "before")
    folder.mkdir()
    return old
