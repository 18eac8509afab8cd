"""``tcjit.partition`` and ``tcjit.load``: a model in, one of the same results out, its regions run by the backends that serve them best."""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.compiler import is_dynamo_compiling

from tcjit import notebook
from tcjit.byoc import containers, torchscript, vendor_gradients
from tcjit.byoc.adapter import Adapter
from tcjit.byoc.archive import first_line
from tcjit.byoc.backends import find
from tcjit.byoc.calling import Calling, Dynamic, Inputs, calling_of, dimensions, inputs_of, refused, shapes_of
from tcjit.byoc.diagram import picture
from tcjit.byoc.export import ExportResult, export
from tcjit.byoc.fx import FxAdapter
from tcjit.byoc.infer import unreported
from tcjit.byoc.manifest import MANIFEST, WHOLE
from tcjit.byoc.partition_blocks import Partitioning, cut
from tcjit.byoc.report import Coverage, coverage, report, rows
from tcjit.byoc.script_file import failing
from tcjit.byoc.select_variant import Variant, estimated, fastest, independent_copy, runnable
from tcjit.byoc.settings import PartitionConfig
from tcjit.byoc.spec import parse
from tcjit.byoc.static_call import static_call
from tcjit.checked import PATH, checked
from tcjit.errors import PartitionError

Model: TypeAlias = "torch.nn.Module | torch.export.ExportedProgram"


@dataclass(frozen=True)
class Making:
    """What a model was made of."""

    adapter: Adapter
    cut: Partitioning
    inputs: Inputs


class PartitionedModule(torch.nn.Module):
    """A partitioned model: called as the original, with the original's results.

    ``model`` is what runs: a ScriptModule, an ExportedProgram's module, the original where nothing of it was changed, or None after a dry
    run. What a file does not hold is gone after ``tcjit.load``, and in copies of ``copy.deepcopy`` and ``pickle``: such a model can be
    saved and run, not exported or drawn.
    """

    @checked(manifest=Mapping)
    def __init__(
        self, made: Any, manifest: Mapping[str, Any], making: Making | None = None, model: Any = None, calling: Calling | None = None
    ) -> None:
        if missing := {"training", "regions", "coverage", "rows", "report"} - set(manifest):
            raise PartitionError(f"a partitioned model without {min(missing)}", hint="tcjit.partition makes such models")
        super().__init__()
        self._made, self._manifest, self._making = made, dict(manifest), making
        self._calling = calling_of(made) if model is None else calling
        self.model = runnable(made) if model is None and made is not None else model
        self._static = static_call(made, self.model)
        self._fused = any(row.get("backend") == "vendor" for row in self._manifest["rows"])
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
        """What the original computes. Raises ShapeError for sizes, ArgumentError for arguments that it was not partitioned for."""
        if self._static is not None and not kwargs and not is_dynamo_compiling():
            found = self._static(args)
            if found is not NotImplemented:
                return found
        if self._fused and torch.is_grad_enabled():
            vendor_gradients.register()
        if self.model is None:
            raise PartitionError("a dry run makes no model to be called", hint="leave dry_run=True away")
        if self._calling is None:
            return self.model(*args, **kwargs)
        args, kwargs = self._calling.bound(args, kwargs)
        try:
            return self.model(*args, **kwargs)
        except (AssertionError, ValueError, RuntimeError) as error:
            other = refused(error)
            if other is error:
                raise
            raise other from error

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are files: parameters are not shared."""
        return _restored, (self._stored(),)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> PartitionedModule:
        """Other dtypes and devices ask for other regions, and parameters are those of the original: PartitionError."""
        with torch.no_grad():
            if any(fn(each) is not each for each in chain(self.parameters(), self.buffers())):
                hint = "convert the original, and partition it again"
                raise PartitionError("a partitioned model keeps its dtype and device", hint=hint)
        return self

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
        content = self._stored()
        with torchscript.written(Path(file)) as target:
            target.write_bytes(content)

    def _stored(self) -> bytes:
        if not isinstance(self._made, (torch.export.ExportedProgram, torch.jit.ScriptModule)):
            raise PartitionError("a GraphModule and a dry run have no file", hint="partition the torch.export.export of the model")
        return torchscript.stored(self._made, self._manifest)

    @checked(directory=PATH)
    def export(self, directory: str | os.PathLike[str]) -> ExportResult:
        """Write the model as a directory that C++ runs without Python; see ``tcjit.byoc.export``. What was served, and what was not."""
        making = self._known("exported")
        if making.inputs.named:
            raise PartitionError("a C++ program gives inputs by place, and the example inputs are by name", hint="give them by place")
        return export(making.cut, making.adapter, Path(directory), making.inputs.args)

    def _known(self, done: str) -> Making:
        if self._making is None:
            raise PartitionError(f"a model from a file cannot be {done}", hint="partition the original again")
        return self._making


@checked(dry_run=bool, measure=bool)
def partition(
    model: Model, example_inputs: Sequence[Any] | Mapping[str, Any], config: PartitionConfig | None = None, *,
    kwargs: Mapping[str, Any] | None = None, dynamic: Dynamic = None, dry_run: bool = False, measure: bool = False,
) -> PartitionedModule:  # fmt: skip
    """Cut a model into regions.

    ``model`` is a ScriptModule, an ExportedProgram, or any other module, which is exported or, where that fails, scripted; it is not
    changed. ``example_inputs`` are its arguments, ``kwargs`` those by name; a mapping in place of the former is all of them by name. They
    give dtypes and shapes, and with ``measure`` they are run, each region on every backend and on plain ATen, and the fastest stays; what
    was measured is kept. ``dynamic`` says which extents may be others in calls, as ``dynamic_shapes`` of ``torch.export`` does: ``True`` is
    the first dimension of every tensor, ``{"x": {0: "batch"}}`` names them. ``dry_run`` compiles nothing and gives a model that has a
    report only. Raises PartitionError, and ArgumentError for inputs that the model does not take.
    """
    config = PartitionConfig() if config is None else config
    if not isinstance(config, PartitionConfig):
        raise PartitionError(f"config must be tcjit.PartitionConfig, not {type(config).__name__}", hint="tcjit.PartitionConfig(cost=False)")
    inputs = inputs_of(model, example_inputs, kwargs)
    opened = opener(model, inputs, dynamic)
    if dry_run:
        adapter = opened()
        way = Variant(adapter, cut(adapter, config), None, None)
    elif measure:
        way = fastest(model, opened, config, inputs)
    else:
        way = estimated(opened, config)
    training = isinstance(model, torch.nn.Module) and bool(getattr(model, "training", False))  # a frozen one does not say
    running = way.model
    if running is not None and not way.cut.regions and not way.cut.passes:
        running = independent_copy(model, opened)  # nothing is changed, so that nothing may cost anything
    calling = None if type(running) is type(model) else calling_of(way.partitioned, model)
    return PartitionedModule(way.partitioned, _manifest(way, training), Making(way.adapter, way.cut, inputs), running, calling)


@checked(file=PATH, trust=bool)
def load(file: str | os.PathLike[str], *, trust: bool = False) -> PartitionedModule:
    """A model that ``PartitionedModule.save`` wrote, in any process; PartitionError says what is missing to run it, or damaged.

    Loading and calling it runs operations on tensors only: a file that holds more is refused, unless you ``trust`` who made it, since it
    may then run any code. What it computes, how long and with how much memory, is the file's in either case.
    """
    made, manifest = torchscript.load(file, trust=trust)
    lacking = [name for name in WHOLE if name not in manifest]
    if lacking:
        what = f"{os.fspath(file)}: extra/{MANIFEST} lacks {', '.join(lacking)}"
        raise PartitionError(what, hint="a file that PartitionedModule.save wrote")
    with failing(os.fspath(file)):
        return PartitionedModule(made, manifest)


def _restored(content: bytes) -> PartitionedModule:
    """What a copy or a pickle holds; it came out of a pickle, which had to be trusted before."""
    made, manifest = torchscript.restored(content)
    return PartitionedModule(made, manifest)


def _manifest(way: Variant, training: bool) -> dict[str, Any]:
    done, found = way.cut, way.measured
    devices = {value.type.device for region in done.regions for value in (*region.inputs, *region.outputs) if value.type}
    return {
        "training": training,
        "backends": sorted({region.backend for region in done.regions if region.name in done.specs}),
        "devices": sorted(devices) or ["cpu"],
        "regions": [region.name for region in done.regions],
        "coverage": asdict(coverage(done)),
        "rows": rows(done),
        "report": report(done, {region.name: found.times(region) for region in done.regions} if found else {}, _notes(way)),
    }


def _notes(way: Variant) -> list[str]:
    """Which regions whose constants train run in plain ATen then."""
    notes = []
    for region in way.cut.regions:
        training = [value.name for value in region.constants if way.adapter.read(value).requires_grad]
        if region.name in way.cut.specs and training:
            why = find(region.backend).without_gradients(parse(way.cut.specs[region.name]))
            if why:
                notes.append(f"gradients: %{training[0]} trains, and while gradients are recorded, {region.name} runs in plain ATen: {why}")
    return notes


def opener(model: Model, inputs: Inputs, dynamic: Dynamic = None) -> Callable[[], Adapter]:
    """What opens a model afresh each time; exporting or scripting is done once."""
    if isinstance(model, torch.jit.ScriptModule):
        open_dims = dimensions(dynamic, model, inputs.args)
        return lambda: _script(model, inputs, open_dims)
    if isinstance(model, (torch.export.ExportedProgram, torch.fx.GraphModule)):
        if dynamic:
            hint = "torch.export.export(model, args, dynamic_shapes=...)"
            raise PartitionError(f"the extents of a {type(model).__name__} are its own already, dynamic cannot change them", hint=hint)
        return lambda: FxAdapter(model, inputs.args)
    if not isinstance(model, torch.nn.Module):
        raise PartitionError(f"cannot partition a {type(model).__name__}", hint="a ScriptModule, an ExportedProgram or another Module")
    captured = _captured(model, inputs, dynamic)
    if isinstance(captured, torch.jit.ScriptModule):
        return opener(captured, inputs_of(captured, inputs.args, inputs.named), dynamic)
    return opener(captured, inputs)


def _script(model: torch.jit.ScriptModule, inputs: Inputs, open_dims: Mapping[str | int, Sequence[int]]) -> Adapter:
    """A script opened. Where its inputs seem not to fit, it is run, so that it is certain; PartitionError where they do not."""
    adapter = torchscript.TorchScriptAdapter(model, inputs.args, open_dims)
    if adapter.refusal:
        again = torchscript.TorchScriptAdapter(model, inputs.args)
        try:
            with torch.no_grad():
                inputs.copies().given_to(again.realise(again.block))
        except Exception as error:  # whatever the model's own code raises
            hint = "example inputs of the shapes and dtypes that it takes"
            raise PartitionError(f"the model fails on its example inputs: {adapter.refusal}", hint=hint) from error
    return adapter


def _captured(model: torch.nn.Module, inputs: Inputs, dynamic: Dynamic) -> Model:
    containers.register()
    shapes = shapes_of(model, inputs, dynamic)
    try:
        with unreported():
            return torch.export.export(model, inputs.args, dict(inputs.named), dynamic_shapes=shapes, strict=False)
    except Exception as exported:  # whatever the model's own code raises under it
        try:
            return torch.jit.script(model)
        except Exception as scripted:
            said = f"torch.export: {first_line(exported)}; torch.jit.script: {first_line(scripted)}"
            hint = "register classes of inputs and outputs: torch.export.register_dataclass" if "register" in said else ""
            raise PartitionError(f"{type(model).__name__} can be neither exported nor scripted: {said}", hint=hint) from exported
