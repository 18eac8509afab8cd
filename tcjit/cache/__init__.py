"""What tcjit keeps between processes: tuned options and compiled kernels, in a directory private to the user.

>>> import tcjit.cache
>>> tcjit.cache.verify()
[]
"""
from __future__ import annotations

import os
from pathlib import Path

from tcjit import config
from tcjit.cache.directory import Trust, examine
from tcjit.cache.keys import call_key, code_version, options_key, text_key
from tcjit.cache.storage import CacheWarning, Choice, Entry, Store, store

__all__ = [
    "CacheWarning", "Choice", "Entry", "Store", "Trust", "call_key", "clear", "code_version", "entries", "export", "import_",
    "options_key", "path", "store", "text_key", "trusted", "verify",
]  # fmt: skip


def path() -> Path:
    """The directory in use: the user's, or the temporary one that stands in for it."""
    return store().path


def entries() -> tuple[Entry, ...]:
    """Every compiled kernel, most recently used first."""
    return tuple(store().entries())


def export(file: str | os.PathLike[str]) -> int:
    """Write the tuned options, never a binary, to a JSON file; how many there were."""
    from tcjit.cache import exchange  # a warm start does without

    return exchange.write(store(), Path(file))


def import_(file: str | os.PathLike[str]) -> int:
    """Take in the options of an exported file where they are new or faster; how many. A CacheError if the file is not right."""
    from tcjit.cache import exchange

    return exchange.read(store(), Path(file))


def clear() -> int:
    """Remove everything; how many things there were."""
    return store().clear()


def verify() -> list[str]:
    """Check everything against its checksums and remove what is damaged; the names of what was."""
    return store().verify()


def trusted() -> Trust:
    """Whether the user's cache directory can be relied on, and if not, why and what to do."""
    return examine(config.cache_dir())
