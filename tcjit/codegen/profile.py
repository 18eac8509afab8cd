"""How much a kernel does: counts that a printer takes of the nodes it writes, weighted by how often their loops run; and its features, the
input of a learned model of speed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from tcjit.codegen.loops import For
from tcjit.codegen.source import Source
from tcjit.grammar.linear import Linear, Opaque

LANES = 8  # iterations of a vector loop that count as one
UNKNOWN = 8  # iterations of a loop whose bounds are no constants

PLAIN = ("depth", "regions")  # features that are no logarithms
COUNTS = ("runs", "sums", "loads", "stores", "strided", "loops", "tested", "waits", "accumulators", "private")


class Profile:
    """The counts of one kernel, and where in its loops the printer is. A loop runs as often as its body."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(COUNTS, 0.0)
        self.width = 1  # elements of the widest explicit vector
        self.depth = 0  # of the loops
        self.shares: list[float] = []  # of each loop that threads share, iterations
        self.vector = False  # the next loop is one over lanes
        self._around: list[tuple[str, float]] = []  # of the loops around: variable, how often the body runs

    @property
    def repeats(self) -> float:
        return self._around[-1][1] if self._around else 1.0

    @property
    def innermost(self) -> str:
        """The variable of the innermost loop around."""
        return self._around[-1][0] if self._around else ""

    def count(self, name: str, number: float = 1) -> None:
        """So many more of what happens as often as the loops around run."""
        self.counts[name] += number * self.repeats

    @contextmanager
    def loop(self, variable: str, trips: int) -> Iterator[None]:
        trips = math.ceil(trips / LANES) if self.vector else trips
        self.vector = False
        self._around.append((variable, self.repeats * trips))
        self.depth = max(self.depth, len(self._around))
        self.count("loops")
        yield
        self._around.pop()

    def totals(self) -> dict[str, float]:
        """All numbers."""
        shares = {"regions": len(self.shares), "share": max(self.shares, default=0.0)}
        return {**self.counts, "width": self.width, "depth": self.depth, **shares}


def trips(loop: For) -> int:
    """Iterations of a loop; of one that ends early at a border, those inside."""
    upper = loop.upper
    if upper.terms and not upper.constant and isinstance(last := upper.terms[-1][0], Opaque) and last.op == "min":
        upper = last.args[-1] if last.args[-1].is_constant else upper
    if not upper.is_constant:
        return UNKNOWN
    return max(1, (upper.constant - (loop.lower.constant if loop.lower.is_constant else 0)) // loop.step + 1)


def scaled(value: Linear) -> Iterator[str]:
    """The variables that a value has with a factor, each as often as its text does."""
    for atom, factor in value.terms:
        if isinstance(atom, Opaque):
            for argument in atom.args:
                yield from scaled(argument)
        elif abs(factor) != 1:
            yield atom


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
