"""``tcjit.partition`` and ``tcjit.load``: a model in, one of the same results out, its regions run by the backends that serve them best."""
from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch

from tcjit import notebook
from tcjit.byoc import torchscript
from tcjit.byoc.adapter import Adapter
from tcjit.byoc.choose import Chosen, estimated, fastest, runnable, twin
from tcjit.byoc.cut import Cut, cut
from tcjit.byoc.export import Folder, export
from tcjit.byoc.fx import FxAdapter
from tcjit.byoc.measure import Measured
from tcjit.byoc.picture import picture
from tcjit.byoc.report import Coverage, coverage, report, rows
from tcjit.byoc.settings import PartitionConfig
from tcjit.checked import PATH, checked
from tcjit.errors import PartitionError

Model: TypeAlias = "torch.nn.Module | torch.export.ExportedProgram"


@dataclass(frozen=True)
class Making:
    """What a model was made of."""

    adapter: Adapter
    cut: Cut
    inputs: tuple[Any, ...]


class PartitionedModule(torch.nn.Module):
    """A partitioned model: called as the original, with the original's results.

    ``model`` is what runs: a ScriptModule, an ExportedProgram's module, the original where nothing of it was changed, or None after a dry
    run. What a file does not hold is gone after
    ``tcjit.load``: such a model can be saved and run, not exported or drawn.
    """

    @checked(manifest=Mapping)
    def __init__(self, made: Any, manifest: Mapping[str, Any], making: Making | None = None, model: Any = None) -> None:
        if missing := {"training", "regions", "coverage", "rows", "report"} - set(manifest):
            raise PartitionError(f"a partitioned model without {min(missing)}", hint="tcjit.partition makes such models")
        super().__init__()
        self._made, self._manifest, self._making = made, dict(manifest), making
        self.model = runnable(made) if model is None and made is not None else model
        self.training = bool(self._manifest["training"])

    def __repr__(self) -> str:
        first = next(iter(self.report().splitlines()), "")
        return f"<tcjit.PartitionedModule of {len(self.regions)} regions: {first}>"

    def _repr_html_(self) -> str:
        cells = [[escape(str(row[name] or "")) for name in ("op", "output", "region", "backend", "reason")] for row in self.rows[:100]]
        more = f"<p>and {len(self.rows) - 100} more operations</p>" if len(self.rows) > 100 else ""
        operations = notebook.table(("operation", "output", "region", "backend", "why"), cells, long=(4,))
        return notebook.fragment(f"<pre>{escape(self.summary())}</pre>", operations, more)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the original computes."""
        if self.model is None:
            raise PartitionError("a dry run makes no model to be called", hint="leave dry_run=True away")
        return self.model(*args, **kwargs)

    @checked(mode=bool)
    def train(self, mode: bool = True) -> PartitionedModule:
        """Only the mode in which the model was partitioned: PartitionError otherwise."""
        if mode != self._manifest["training"]:
            was = "training" if self._manifest["training"] else "evaluation"
            raise PartitionError(f"the model was partitioned in {was} mode", hint="call .train() or .eval() before tcjit.partition")
        return self

    @property
    def regions(self) -> tuple[str, ...]:
        """The names of the regions."""
        return tuple(self._manifest["regions"])

    @property
    def coverage(self) -> Coverage:
        """The parts of the model's tensor operations, of its FLOPs and of the bytes it moves that are in regions, from 0 to 1."""
        return Coverage(**self._manifest["coverage"])

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every operation: ``op output flops bytes depth region backend reason``."""
        return list(self._manifest["rows"])

    @checked()
    def report(self) -> str:
        """Coverage, passes, regions with estimated and measured seconds, and for every operation its region or why it has none."""
        return str(self._manifest["report"])

    @checked()
    def summary(self) -> str:
        """The first lines of the report."""
        return self.report().partition("\n\n")[0]

    @checked()
    def svg(self) -> str:
        """A picture of the graph with its regions."""
        making = self._known("drawn")
        return picture(making.cut.block, making.cut.regions)

    @checked(file=PATH)
    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the model to a file for ``tcjit.load``: TorchScript for what came as TorchScript, else an exported program."""
        if not isinstance(self._made, (torch.export.ExportedProgram, torch.jit.ScriptModule)):
            raise PartitionError("a GraphModule and a dry run have no file", hint="partition the torch.export.export of the model")
        with torchscript.written(Path(file)) as target:
            torchscript.save(self._made, target, self._manifest)

    @checked(directory=PATH)
    def export(self, directory: str | os.PathLike[str]) -> Folder:
        """Write the model as a directory that C++ runs without Python; see ``tcjit.byoc.export``. What was served, and what was not."""
        making = self._known("exported")
        return export(making.cut, making.adapter, Path(directory), making.inputs)

    def _known(self, done: str) -> Making:
        if self._making is None:
            raise PartitionError(f"a model from a file cannot be {done}", hint="partition the original again")
        return self._making


@checked(dry_run=bool, measure=bool)
def partition(
    model: Model, example_inputs: Sequence[Any], config: PartitionConfig | None = None, *, dry_run: bool = False, measure: bool = False
) -> PartitionedModule:
    """Cut a model into regions.

    ``model`` is a ScriptModule, an ExportedProgram, or any other module, which is exported or, where that fails, scripted; it is not
    changed. ``example_inputs`` are its arguments: they give dtypes and shapes, and with ``measure`` they are run, each region on every
    backend and on plain ATen, and the fastest stays; what was measured is kept. ``dry_run`` compiles nothing and gives a model that has a
    report only. Raises PartitionError.
    """
    config = PartitionConfig() if config is None else config
    if not isinstance(config, PartitionConfig):
        raise PartitionError(f"config must be tcjit.PartitionConfig, not {type(config).__name__}", hint="tcjit.PartitionConfig(cost=False)")
    inputs = tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    opened = opener(model, inputs)
    if dry_run:
        adapter = opened()
        way = Chosen(adapter, cut(adapter, config), None, None)
    elif measure:
        way = fastest(model, opened, config, inputs)
    else:
        way = estimated(opened, config)
    training = isinstance(model, torch.nn.Module) and bool(getattr(model, "training", False))  # a frozen one does not say
    running = way.model
    if running is not None and not way.cut.regions and not way.cut.passes:
        running = twin(model, opened)  # nothing is changed, so that nothing may cost anything
    return PartitionedModule(way.made, _manifest(way.cut, way.measured, training), Making(way.adapter, way.cut, inputs), running)


@checked(file=PATH)
def load(file: str | os.PathLike[str]) -> PartitionedModule:
    """A model that ``PartitionedModule.save`` wrote, in any process; PartitionError says what is missing to run it."""
    return PartitionedModule(*torchscript.load(file))


@checked(file=PATH)
def read(file: str | os.PathLike[str]) -> Model:
    """A model of TorchScript or of torch.export in a file, to be partitioned; raises PartitionError where it is neither."""
    try:
        content = Path(file).read_bytes()
    except OSError as error:
        raise PartitionError(f"cannot read {os.fspath(file)}: {error.strerror}") from error
    readers: dict[str, Callable[[io.BytesIO], Any]] = {"torch.jit.load": torch.jit.load, "torch.export.load": torch.export.load}
    said = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, load_as in readers.items():
            try:
                return cast("Model", load_as(io.BytesIO(content)))
            except Exception as error:  # whatever reading a file of another kind comes upon
                said.append(f"{name}: {_first_line(error).split('. ')[0]}")
    raise PartitionError(f"{os.fspath(file)} is no model: {'; '.join(said)}", hint="a file of torch.jit.save or torch.export.save")


def _manifest(done: Cut, found: Measured | None, training: bool) -> dict[str, Any]:
    devices = {value.type.device for region in done.regions for value in (*region.inputs, *region.outputs) if value.type}
    return {
        "training": training,
        "backends": sorted({region.backend for region in done.regions if region.name in done.specs}),
        "devices": sorted(devices) or ["cpu"],
        "regions": [region.name for region in done.regions],
        "coverage": asdict(coverage(done)),
        "rows": rows(done),
        "report": report(done, {region.name: found.times(region) for region in done.regions} if found else {}),
    }


def opener(model: Model, inputs: tuple[Any, ...]) -> Callable[[], Adapter]:
    """What opens a model afresh each time; exporting or scripting is done once."""
    if isinstance(model, torch.jit.ScriptModule):
        return lambda: torchscript.TorchScriptAdapter(model, inputs)
    if isinstance(model, (torch.export.ExportedProgram, torch.fx.GraphModule)):
        return lambda: FxAdapter(model, inputs)
    if not isinstance(model, torch.nn.Module):
        raise PartitionError(f"cannot partition a {type(model).__name__}", hint="a ScriptModule, an ExportedProgram or another Module")
    return opener(_captured(model, inputs), inputs)


def _captured(model: torch.nn.Module, inputs: tuple[Any, ...]) -> Model:
    try:
        return torch.export.export(model, inputs, strict=False)
    except Exception as exported:  # whatever the model's own code raises under it
        try:
            return torch.jit.script(model)
        except Exception as scripted:
            said = f"torch.export: {_first_line(exported)}; torch.jit.script: {_first_line(scripted)}"
            raise PartitionError(f"{type(model).__name__} can be neither exported nor scripted: {said}") from exported


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
