"""All that is measured, by name."""
from __future__ import annotations

from collections.abc import Sequence

from gpu import contractions, products, rows, tc
from gpu.case import Entry

ENTRIES: dict[str, Entry] = {
    entry.name: entry for entry in (*tc.ENTRIES, *rows.ENTRIES, *products.ENTRIES, *contractions.ENTRIES)
}
SUITES = tuple(dict.fromkeys(entry.suite for entry in ENTRIES.values()))


def choose(only: Sequence[str] = (), quick: bool = False) -> list[Entry]:
    """The entries with these names or of these suites, else all or the quick ones; SystemExit names one that does not exist."""
    if unknown := [name for name in only if name not in ENTRIES and name not in SUITES]:
        raise SystemExit(f"no operator or suite {', '.join(unknown)}; there are {', '.join((*SUITES, *ENTRIES))}")
    if only:
        return [entry for entry in ENTRIES.values() if entry.name in only or entry.suite in only]
    return [entry for entry in ENTRIES.values() if entry.quick or not quick]
