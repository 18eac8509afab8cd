"""Files of partitioned models: with a manifest that says what they need, checked before they are loaded."""
from __future__ import annotations

import io
import json
import os
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from tcjit import __version__
from tcjit.byoc import runtime  # noqa: F401  defines the operator that the files call
from tcjit.byoc.backends import known
from tcjit.errors import PartitionError

MANIFEST = "tcjit.json"
FORMAT = 1


def save(model: torch.jit.ScriptModule | ExportedProgram, file: str | os.PathLike[str], manifest: Mapping[str, Any]) -> None:
    """Writes a model with its manifest: what its maker wants to be known, and the version, ``backends`` and ``devices`` that it needs.

    Raises PartitionError where it cannot be written.
    """
    form = "exported" if isinstance(model, ExportedProgram) else "torchscript"
    versions = {"format": FORMAT, "form": form, "tcjit": __version__, "torch": torch.__version__}
    extra = {MANIFEST: json.dumps({**versions, "backends": [], "devices": ["cpu"], **manifest})}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of TorchScript's age
            if isinstance(model, ExportedProgram):
                content = io.BytesIO()  # given a path, it insists on how that ends
                torch.export.save(model, content, extra_files=extra)
                Path(file).write_bytes(content.getbuffer())
            else:
                torch.jit.save(model, os.fspath(file), _extra_files=extra)
    except (RuntimeError, OSError, TypeError, ValueError) as error:
        raise PartitionError(f"{os.fspath(file)} cannot be written: {str(error).splitlines()[0]}") from error


def load(file: str | os.PathLike[str]) -> tuple[torch.jit.ScriptModule | ExportedProgram, dict[str, Any]]:
    """A model that ``save`` wrote, and its manifest; PartitionError says what is missing to run it."""
    manifest = manifest_of(file)
    lacking = [f"backend {name}" for name in manifest.get("backends", ()) if name not in known()]
    if "cuda" in {device.partition(":")[0] for device in manifest.get("devices", ())} and not torch.cuda.is_available():
        lacking.append("a CUDA device")
    if lacking:
        hint = "import the module that registers the backend, or partition the model for this machine"
        raise PartitionError(f"{os.fspath(file)} needs {', '.join(lacking)}; here are {', '.join(known())}", hint=hint)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if manifest.get("form") == "exported":
                return torch.export.load(io.BytesIO(Path(file).read_bytes())), manifest
            return torch.jit.load(os.fspath(file)), manifest  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise PartitionError(f"{os.fspath(file)} cannot be loaded: {str(error).splitlines()[0]}") from error


def manifest_of(file: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file says of itself; raises PartitionError where it is no file of ``save``, or of a later format."""
    path = os.fspath(file)
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(f"/extra/{MANIFEST}")]
            content = json.loads(archive.read(names[0])) if names else None
    except FileNotFoundError as error:
        raise PartitionError(f"there is no file {path}") from error
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        raise PartitionError(f"{path} is no model, or damaged: {error}") from error
    if not isinstance(content, dict):
        raise PartitionError(f"{path} is a model that tcjit did not write", hint="torch.jit.load or torch.export.load reads it")
    if content.get("format", 0) > FORMAT:
        made = content.get("tcjit")
        raise PartitionError(f"{path} was written by tcjit {made}, whose format {content['format']} is not known here", hint="update tcjit")
    return content


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
