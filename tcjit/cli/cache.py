"""``tcjit cache``: what is kept on disk, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tcjit import cache
from tcjit.errors import CacheError


def listing() -> list[str]:
    """A line per kernel, most recently used first, then where and how much they are in all."""
    _trusted()
    lines, total = [], 0
    for entry in cache.entries():
        size = entry.library.stat().st_size
        total += size
        proof = "verified" if entry.record["verified"] else "not verified"
        lines.append(f"{entry.key[:12]}  {_signature(entry.record)}  {size / 1000:.1f} kB, {proof}")
    return [*lines, f"{_count(len(lines), 'kernel')}, {total / 1000:.1f} kB, in {cache.path()}"]


def verify() -> tuple[list[str], bool]:
    """What was damaged and has been removed, and whether everything was sound."""
    _trusted()
    damaged = cache.verify()
    if not damaged:
        return [f"All is sound in {cache.path()}."], True
    return [*(f"damaged, removed: {name}" for name in damaged), "What is missing now is made again when it is needed."], False


def clear() -> str:
    """Empty the cache."""
    _trusted()
    return f"Removed {_count(cache.clear(), 'file')} from {cache.path()}."


def export(file: Path) -> str:
    """Write the tuned options to ``file``."""
    _trusted()
    return f"Wrote {_count(cache.export(file), 'choice')} of options to {file}."


def import_(file: Path) -> str:
    """Take in the options of ``file``."""
    _trusted()
    return f"Took {_count(cache.import_(file), 'choice')} of options from {file}."


def _trusted() -> None:
    """A CacheError where the user's directory cannot be relied on: these commands are about it, not about a stand-in."""
    trust = cache.trusted()
    if not trust.ok:
        raise CacheError(trust.problem, hint=trust.hint)


def _signature(record: dict[str, Any]) -> str:
    """``mlp(float32 8x16, float32 4x16, float32) -> float32 8x4``."""
    params, returns = (", ".join(map(_kind, record[part])) for part in ("params", "returns"))
    return f"{record['symbol'].removeprefix('tc_')}({params}) -> {returns}"


def _kind(tensor: dict[str, Any]) -> str:
    return f"{tensor['dtype']} {'x'.join(map(str, tensor['shape'] or ()))}".strip()


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
