"""What a file of a partitioned model says of itself: a JSON document, every field of which has a type and bounds."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tcjit.byoc.archive import Archive
from tcjit.errors import PartitionError

MANIFEST = "tcjit.json"
FORMAT = 1
FORMS = ("exported", "torchscript")
_LISTED = 1 << 20  # entries of a list
_WORD = 1 << 12  # characters of a name or a reason
_LARGEST = 1 << 62

Check = Callable[[Any], bool]


def _text(longest: int = _WORD) -> Check:
    return lambda value: isinstance(value, str) and len(value) <= longest


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST


def _part(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


def _listed(check: Check) -> Check:
    return lambda value: isinstance(value, list) and len(value) <= _LISTED and all(map(check, value))


def _object(fields: dict[str, Check]) -> Check:
    return lambda value: isinstance(value, dict) and set(value) == set(fields) and all(fields[name](each) for name, each in value.items())


_ROW = {name: _text() for name in ("op", "output", "region", "backend")} | dict.fromkeys(("flops", "bytes", "depth"), _whole)
# by name: what it must be, in words and as a check
_FIELDS: dict[str, tuple[str, Check]] = {
    "format": ("a whole number from 1", lambda value: _whole(value) and value > 0),
    "form": (f"one of {', '.join(FORMS)}", lambda value: isinstance(value, str) and value in FORMS),
    "tcjit": ("a version", _text(100)),
    "torch": ("a version", _text(100)),
    "backends": ("a list of names", _listed(_text())),
    "devices": ("a list of names", _listed(_text())),
    "training": ("true or false", lambda value: isinstance(value, bool)),
    "regions": ("a list of names", _listed(_text())),
    "coverage": ("parts from 0 to 1 of nodes, flops and bytes", _object(dict.fromkeys(("nodes", "flops", "bytes"), _part))),
    "rows": ("a list of operations", _listed(_object({**_ROW, "reason": _text(1 << 16)}))),
    "report": ("a text", _text(64 << 20)),
}
_ALWAYS = ("format", "form", "tcjit", "torch", "backends", "devices")
WHOLE = tuple(_FIELDS)


def manifest_of(archive: Archive, fields: tuple[str, ...] = _ALWAYS) -> dict[str, Any]:
    """What a file says of itself, at least these fields; raises PartitionError where tcjit did not write it, or a later format."""
    name = f"extra/{MANIFEST}"
    if name not in archive.members:
        raise PartitionError(f"{archive.path} is a model that tcjit did not write", hint="torch.jit.load or torch.export.load reads it")
    content = archive.json(name)
    if not isinstance(content, dict):
        raise PartitionError(f"{archive.path}: {name} is no object")
    wanted = ["format", *(each for each in _FIELDS if each in content or each in fields)]
    for field in dict.fromkeys(wanted):
        words, check = _FIELDS[field]
        if field not in content or not check(content[field]):
            raise PartitionError(f"{archive.path}: {name}: {field} must be {words}")
        if field == "format" and content["format"] > FORMAT:
            made = f"tcjit {str(content.get('tcjit'))[:100]}, whose format {content['format']} is not known here"
            raise PartitionError(f"{archive.path} was written by {made}", hint="update tcjit")
    return content
