"""``tcjit cache``: lists, checks, trims and exchanges the files of the cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tcjit import cache
from tcjit.cache import Choice, exchange
from tcjit.errors import ArgumentError, CacheError
from tcjit.jit.kernel_cache import signatures
from tcjit.jit.targets import cpu


def listing() -> list[str]:
    """A line per choice of tuned options and per kernel, most recently used first, then where and how much they are in all."""
    _trusted()
    options = [f"options       {line}" for line in _choices(list(cache.store().choices()))]
    kernels, total = [], 0
    for entry in cache.entries():
        size = entry.library.stat().st_size
        total += size
        proof = "verified" if entry.record["verified"] else "not verified"
        kernels.append(f"{entry.key[:12]}  {_signature(entry.record)}  {size / 1000:.1f} kB, {proof}")
    counts = f"{_count(len(options), 'choice')} of options, {_count(len(kernels), 'kernel')}, {total / 1000:.1f} kB"
    return [*options, *kernels, f"{counts}, in {cache.path()}"]


def verify() -> tuple[list[str], bool]:
    """Lines that name the damaged files, which were removed, and whether there were none."""
    _trusted()
    damaged = cache.verify()
    if not damaged:
        return [f"All is sound in {cache.path()}."], True
    return [*(f"damaged, removed: {name}" for name in damaged), "What is missing now is made again when it is needed."], False


def clear() -> str:
    """Empty the cache."""
    _trusted()
    return f"Removed {_count(cache.clear(), 'file')} from {cache.path()}."


def export(file: Path, texts: Sequence[str]) -> str:
    """Write the tuned options to ``file``: those of the defs of ``texts``, or all without any."""
    _trusted()
    programs = [signature.canonical for text in texts for signature in signatures(text)] if texts else None
    return f"Wrote {_count(cache.export(file, programs), 'choice')} of options to {file}."


def gc(days: float | None) -> str:
    """Apply the size limit now, and drop what cannot be asked for again or was not used for so many days."""
    _trusted()
    if days is not None and not days >= 0:
        raise ArgumentError(f"--older-than takes a number of days from 0, not {days}", hint="--older-than 30")
    count, size = cache.gc(math.inf if days is None else days, {"cpu": cpu.identities()})
    return f"Removed {_count(count, 'file')}, {size / 1000:.1f} kB, from {cache.path()}."


def import_(file: Path) -> str:
    """Take in the options of ``file``."""
    _trusted()
    held = exchange.choices_in(file)
    taken = cache.import_(file)
    left = held - taken
    why = f" The other {left} are known here" if taken else f" It holds {_count(held, 'choice')}, known here"
    return f"Took {_count(taken, 'choice')} of options from {file}." + (f"{why} with times that are as good or better." if left else "")


def _trusted() -> None:
    """A CacheError where the user's directory cannot be relied on: these commands are about it, not about a stand-in."""
    trust = cache.trusted()
    if not trust.ok:
        raise CacheError(trust.problem, hint=trust.hint)


def _choices(choices: Sequence[tuple[str, Choice]]) -> list[str]:
    """A line for each, with what tells it from others of the same label: its shapes, and if these do not, its family."""
    labels = [_label(choice) for _, choice in choices]
    wider = [f"{label} for {_shapes(choice)}" if labels.count(label) > 1 else label for label, (_, choice) in zip(labels, choices)]
    names = [f"{label} ({family[:8]})" if wider.count(label) > 1 else label for label, (family, _) in zip(wider, choices)]
    return [name + _gain(choice) for name, (_, choice) in zip(names, choices)]


def _shapes(choice: Choice) -> str:
    return " ".join("x".join(map(str, shape)) for shape in choice.shapes)


def _label(choice: Choice) -> str:
    """``mlp 8x16 4x16 on cpu``."""
    return choice.label if _shapes(choice) in choice.label else f"{choice.label} {_shapes(choice)}".strip()


def _gain(choice: Choice) -> str:
    """``  1.84x the default, 12.3 us``."""
    seconds, default = choice.numbers.get("seconds"), choice.numbers.get("default")
    gain = f"{default / seconds:.2f}x the default, " if seconds and default else ""
    return f"  {gain}{1e6 * seconds:.1f} us" if seconds else ""


def _signature(record: dict[str, Any]) -> str:
    """``mlp(float32 8x16, float32 4x16, float32) -> float32 8x4``."""
    params, returns = (", ".join(map(_kind, record[part])) for part in ("params", "returns"))
    return f"{record['symbol'].removeprefix('tc_')}({params}) -> {returns}"


def _kind(tensor: dict[str, Any]) -> str:
    return f"{tensor['dtype']} {'x'.join(map(str, tensor['shape'] or ()))}".strip()


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
