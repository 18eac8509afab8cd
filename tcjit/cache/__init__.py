"""What tcjit keeps between processes: tuned options and compiled kernels, in a directory private to the user.

>>> import tcjit.cache
>>> tcjit.cache.verify()
[]
"""
from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tcjit import config
from tcjit.cache.directory import Trust, examine
from tcjit.cache.keys import call_key, code_version, live_versions, made_by, options_key, text_key
from tcjit.cache.storage import CacheWarning, Entry, Store, store
from tcjit.cache.tuned import Choice
from tcjit.checked import PATH, brief, checked
from tcjit.errors import ArgumentError

__all__ = [
    "CacheWarning", "Choice", "Entry", "Store", "Trust", "call_key", "choices", "clear", "code_version", "entries", "export", "gc",
    "import_", "made_by", "options_key", "path", "store", "text_key", "trusted", "verify",
]  # fmt: skip


@checked()
def path() -> Path:
    """The directory in use: the user's, or the temporary one that stands in for it."""
    return store().path


@checked()
def entries() -> tuple[Entry, ...]:
    """Every compiled kernel, most recently used first."""
    return tuple(store().entries())


@checked()
def choices() -> tuple[Choice, ...]:
    """Every choice of tuned options."""
    return tuple(choice for _, choice in store().choices())


@checked(file=PATH, programs=(list, tuple, set, frozenset, None))
def export(file: str | os.PathLike[str], programs: Collection[str] | None = None) -> int:
    """Write tuned options, never a binary, to a JSON file that can travel with a model; how many there were.

    All of them, or those of the defs whose ``signature.canonical`` is among ``programs``.
    """
    from tcjit.cache import exchange  # a warm start does without

    return exchange.write(store(), Path(file), programs)


@checked(file=PATH)
def import_(file: str | os.PathLike[str]) -> int:
    """Take in the options of an exported file where they are new or faster; how many. A CacheError if the file is not right."""
    from tcjit.cache import exchange

    return exchange.read(store(), Path(file))


@checked()
def clear() -> int:
    """Remove everything; how many things there were."""
    return store().clear()


@checked()
def verify() -> list[str]:
    """Check everything against its checksums and remove what is damaged; the names of what was."""
    return store().verify()


@checked(days=float, tools=(Mapping, None))
def gc(days: float = math.inf, tools: Mapping[str, Collection[str]] | None = None) -> tuple[int, int]:
    """Make room: apply the size limit now, and remove kernels that nobody can ask for again; how many things went, and their bytes.

    Those are the kernels of versions of tcjit that are no longer installed, and of targets in ``tools`` those made by none of the tools
    named there (``Target.identity``). ``days`` removes all but tuned options and logs that has not been used for so long.
    """
    if not all(isinstance(names, (list, tuple, set, frozenset)) for names in (tools or {}).values()):
        raise ArgumentError(f"gc(): tools must map targets to identities, not be {brief(tools)}", hint="help(tcjit.cache.gc)")
    versions = live_versions()
    known = {target: {made_by(tool)[1] for tool in names} for target, names in (tools or {}).items()}

    def useful(record: Mapping[str, Any]) -> bool:
        version, tool = record.get("tools", ("", ""))
        return version in versions and tool in known.get(record["target"], (tool,))

    return store().gc(days * 86400, useful)


@checked()
def trusted() -> Trust:
    """Whether the user's cache directory can be relied on, and if not, why and what to do."""
    return examine(config.cache_dir())
