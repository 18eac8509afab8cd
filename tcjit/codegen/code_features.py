"""Features of a printed kernel, as numbers: the input of a learned model of speed."""
from __future__ import annotations

import math

from tcjit.codegen.source import Source

PLAIN = ("depth", "regions")  # numbers that are no logarithms


def features(source: Source) -> dict[str, float]:
    """The numbers of a kernel, most of them base 2 logarithms: a program at other sizes differs by differences.

    ``runs`` counts statements as often as they run, ``sums`` and ``loads`` those on explicit vectors, ``stores`` those that write elements,
    ``strided`` the subscripts of these that an innermost loop takes apart, ``loops`` iterations, ``tested`` branches, ``waits`` barriers.
    """
    launches = source.launches
    counts = {
        **source.profile,
        "workspace": source.workspace,
        "blocks": sum(math.prod(launch.grid) for launch in launches),
        "threads": max((launch.threads for launch in launches), default=0),
        "shared": max((launch.shared_bytes for launch in launches), default=0),
    }
    return {name: float(count) if name in PLAIN else round(math.log2(1 + count), 3) for name, count in counts.items()}
