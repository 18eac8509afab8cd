"""Tuned options as a file that travels with a model: options and numbers, never binaries; what comes in is checked like any input."""
from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tcjit.cache.keys import is_of_program
from tcjit.cache.storage import Store
from tcjit.cache.tuned import Choice
from tcjit.errors import CacheError, MappingError
from tcjit.mapping.options import Options

FORMAT = "tcjit options 2"
LARGEST = 64 << 20  # bytes of a file to import
_FAMILY = re.compile(r"[0-9a-f]{64}")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ .-]{0,63}")


def write(store: Store, file: Path, programs: Collection[str] | None = None) -> int:
    """Write choices of options to ``file``, those of the defs with these canonical hashes or all; how many there were.

    A CacheError if it cannot be written.
    """
    entries = [
        {
            "family": family,
            "shapes": choice.shapes,
            "options": choice.options,
            "numbers": choice.numbers,
            "label": choice.label,
        }
        for family, choice in store.choices()
        if programs is None or any(is_of_program(family, program) for program in programs)
    ]
    text = json.dumps({"format": FORMAT, "entries": entries}, indent=1, sort_keys=True) + "\n"
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8")
        os.replace(aside, file)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise CacheError(f"cannot write {file}: {error.strerror}", hint="a file in a directory that can be written") from error
    return len(entries)


def read(store: Store, file: Path) -> int:
    """Take in the choices of a file that ``write`` made; how many were new or faster than the known ones.

    Nothing is taken from a file that is not right from end to end: that is a CacheError saying where.
    """
    taken = 0
    for family, choice in _parsed(file):
        known = store.choice(family, choice.shapes)
        if known is None or choice.numbers.get("seconds", math.inf) < known.numbers.get("seconds", math.inf):
            store.put_choice(family, choice)
            taken += 1
    return taken


def choices_in(file: Path) -> int:
    """How many choices a file that ``write`` made holds; a CacheError as from ``read``."""
    return len(_parsed(file))


def _parsed(file: Path) -> list[tuple[str, Choice]]:
    try:
        with open(file, "rb") as stream:
            text = stream.read(LARGEST + 1)
    except OSError as error:
        raise CacheError(f"cannot read {file}: {error.strerror}") from error
    if len(text) > LARGEST:
        raise CacheError(f"{file} is larger than {LARGEST} bytes", hint="a file that tcjit.cache.export wrote")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CacheError(f"{file} is not JSON: {error}", hint="a file that tcjit.cache.export wrote") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT or not isinstance(document.get("entries"), list):
        raise CacheError(f"{file} does not hold tcjit's options (format {FORMAT!r})", hint="a file that tcjit.cache.export wrote")
    return [_entry(entry, f"{file}, entry {number}") for number, entry in enumerate(document["entries"], 1)]


def _entry(entry: Any, where: str) -> tuple[str, Choice]:
    complete = isinstance(entry, dict) and set(entry) == {"family", "shapes", "options", "numbers", "label"}
    _require(complete, where, "it must have family, shapes, options, numbers, label")
    family, shapes, options, numbers, label = (entry[name] for name in ("family", "shapes", "options", "numbers", "label"))
    _require(isinstance(family, str) and _FAMILY.fullmatch(family) is not None, where, "the family must be 64 hexadecimal digits")
    listed = isinstance(shapes, list) and len(shapes) <= 256 and all(isinstance(shape, list) and len(shape) <= 64 for shape in shapes)
    _require(listed, where, "shapes must be a list of lists, one for each tensor argument")
    fit = all(type(extent) is int and 0 <= extent < 1 << 63 for shape in shapes for extent in shape)
    _require(fit, where, "an extent must be a whole number from 0")
    _require(isinstance(label, str) and len(label) <= 200 and label.isprintable(), where, "the label must be a short printable text")
    _require(isinstance(numbers, dict) and len(numbers) <= 64, where, "numbers must be an object of at most 64 numbers")
    for name, value in numbers.items():
        _require(_WORD.fullmatch(name) is not None, where, f"{name[:80]!r} cannot name a number")
        fine = type(value) in (int, float) and abs(value) < 1e300 and (name != "seconds" or value > 0)
        _require(fine, where, f"{name} must be a finite number, seconds a positive one")
    _require(isinstance(options, dict), where, "options must be an object")
    try:
        checked = Options.from_dict(options)
    except (MappingError, TypeError, ValueError) as error:
        raise CacheError(f"{where}: {error}", hint="export again with this version of tcjit") from error
    floats = {name: float(value) for name, value in numbers.items()}
    return family, Choice(checked.to_dict(), floats, label, tuple(map(tuple, shapes)))


def _require(fine: bool, where: str, rule: str) -> None:
    if not fine:
        raise CacheError(f"{where}: {rule}", hint="a file that tcjit.cache.export wrote")
