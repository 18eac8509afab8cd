"""Files of partitioned models: with a manifest that says what they need, checked before they are loaded."""
from __future__ import annotations

import io
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from tcjit import __version__
from tcjit.byoc import runtime, safe_contents  # noqa: F401  the latter defines the operator that the files call
from tcjit.byoc.archive import Archive, first_line, opened, unpacked
from tcjit.byoc.backends import known
from tcjit.byoc.manifest import FORMAT, MANIFEST, manifest_of
from tcjit.errors import PartitionError

_LOGS = ("torch.export", "torch._export.serde.serialize", "torch.export.pt2_archive._package")


def save(model: torch.jit.ScriptModule | ExportedProgram, file: str | os.PathLike[str], manifest: Mapping[str, Any]) -> None:
    """Writes a model with its manifest: what its maker wants to be known, and the version, ``backends`` and ``devices`` that it needs.

    Example inputs stay out of the file. Raises PartitionError where it cannot be written.
    """
    content = stored(model, manifest)
    try:
        Path(file).write_bytes(content)
    except OSError as error:
        raise PartitionError(f"{os.fspath(file)} cannot be written: {error.strerror}") from error


def stored(model: torch.jit.ScriptModule | ExportedProgram, manifest: Mapping[str, Any]) -> bytes:
    """What ``save`` writes."""
    form = "exported" if isinstance(model, ExportedProgram) else "torchscript"
    versions = {"format": FORMAT, "form": form, "tcjit": __version__, "torch": torch.__version__}
    extra = {MANIFEST: json.dumps({**versions, "backends": [], "devices": ["cpu"], **manifest})}
    content = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of TorchScript's age
            if isinstance(model, ExportedProgram):
                with _without_examples(model):
                    torch.export.save(model, content, extra_files=extra)
            else:
                torch.jit.save(model, content, _extra_files=extra)
    except Exception as error:  # its makers' own, for whatever has no place in a file
        hint = "classes of inputs and outputs that are registered with torch.utils._pytree"
        raise PartitionError(f"the model cannot be written: {first_line(error)}", hint=hint) from error
    return content.getvalue()


def restored(content: bytes) -> tuple[torch.jit.ScriptModule | ExportedProgram, dict[str, Any]]:
    """The model and manifest of what ``stored`` gave in this process or one that is trusted."""
    archive = unpacked(content, "a copy")
    manifest = manifest_of(archive)
    return loaded(archive, manifest["form"], True), manifest


def load(file: str | os.PathLike[str], *, trust: bool = False) -> tuple[torch.jit.ScriptModule | ExportedProgram, dict[str, Any]]:
    """A model that ``save`` wrote, and its manifest; PartitionError says what is missing to run it, or what in it is damaged.

    Nothing but operations on tensors is taken from a file without ``trust``: what needs more is refused before PyTorch sees it.
    """
    archive = opened(file)
    manifest = manifest_of(archive)
    lacking = [f"backend {name}" for name in manifest["backends"] if name not in known()]
    if "cuda" in {device.partition(":")[0] for device in manifest["devices"]} and not torch.cuda.is_available():
        lacking.append("a CUDA device")
    if lacking:
        hint = "import the module that registers the backend, or partition the model for this machine"
        raise PartitionError(f"{os.fspath(file)} needs {', '.join(lacking)}; here are {', '.join(known())}", hint=hint)
    return loaded(archive, manifest["form"], trust), manifest


def read(file: str | os.PathLike[str], *, trust: bool = False) -> torch.jit.ScriptModule | ExportedProgram:
    """A model of ``torch.jit.save`` or ``torch.export.save``; raises PartitionError, as ``load`` does where the file holds more."""
    archive = opened(file)
    form = next((form for name, form in (("data.pkl", "torchscript"), (safe_contents.MODEL, "exported")) if name in archive.members), None)
    if form is None or (form == "torchscript" and not any(name.startswith("code/") for name in archive.members)):
        raise PartitionError(f"{archive.path} is no model", hint="a file of torch.jit.save or torch.export.save")
    return loaded(archive, form, trust)


def loaded(archive: Archive, form: str, trust: bool) -> torch.jit.ScriptModule | ExportedProgram:
    """The model of an archive, which is looked through first unless it is trusted."""
    if not trust:
        safe_contents.check(archive, form)
    with failing(archive.path), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if form == "exported":
            program: ExportedProgram = torch.export.load(io.BytesIO(archive.content))
            _given_examples(program)
            return program
        module: torch.jit.ScriptModule = torch.jit.load(io.BytesIO(archive.content))  # type: ignore[no-untyped-call]
    if not trust:
        with archive.failing("code/"):
            safe_contents.check_script(archive, module)
    return module


@contextmanager
def _without_examples(program: ExportedProgram) -> Iterator[None]:
    """They are their user's data, may be of classes that only pickles hold, and no one needs them to run the model."""
    examples, program.example_inputs = program.example_inputs, None
    try:
        yield
    finally:
        program.example_inputs = examples


def _given_examples(program: ExportedProgram) -> None:
    """Stand-ins for example inputs, by which PyTorch finds the places of inputs in the conditions that it checks in each call."""
    if program.example_inputs is None or not program.example_inputs[0] and not program.example_inputs[1]:
        nodes = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
        given = [nodes.get(name, name) for name in program.graph_signature.user_inputs]
        spec = program.call_spec.in_spec
        if spec is not None:
            program.example_inputs = pytree.tree_unflatten(given, spec)


@contextmanager
def failing(path: str) -> Iterator[None]:
    """What PyTorch raises, and what it logs in place of raising it, as one PartitionError."""
    heard: list[str] = []

    def hear(record: logging.LogRecord) -> bool:
        cause = record.exc_info[1] if record.exc_info else None
        heard.append(first_line(cause) if cause is not None else str(record.msg))
        return False

    logs = [logging.getLogger(name) for name in _LOGS]
    for log in logs:
        log.addFilter(hear)
    try:
        yield
    except Exception as error:  # of every kind that there is, where a file is damaged
        said = heard[-1] if heard else first_line(error)
        raise PartitionError(f"{path} cannot be loaded: {said}", hint="save the model again, with this version of PyTorch") from error
    finally:
        for log in logs:
            log.removeFilter(hear)


@contextmanager
def written(file: Path) -> Iterator[Path]:
    """A path to write to; what is there takes the place of the file once all went well. Raises PartitionError."""
    try:
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".part")
    except OSError as error:
        raise PartitionError(f"{file} cannot be written: {error.strerror}") from error
    os.close(handle)
    try:
        yield Path(name)
        os.replace(name, file)
    except OSError as error:
        raise PartitionError(f"{file} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            os.unlink(name)
