"""Parallel loops one after the other, run by one team of threads: it is woken once, and waits only where a loop needs what others wrote.

A loop that only some sizes make worth threads is written twice, for a team and for the calling thread: a region that its ``if`` clause
leaves to one thread still costs the calls into OpenMP, as much as a short loop does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from tcjit.codegen.loops import Node, runs
from tcjit.mapping.scop import Scop

ALONE = "#pragma omp parallel for"
_THREADS = " num_threads(threads)"
_WORTH = re.compile(r" if \((.*)\)(?= num_threads)")


@dataclass(frozen=True)
class Loop:
    """A parallel loop as it stands alone, its pragma first; when it is worth threads ("": always), and the tensors it writes and reads."""

    lines: tuple[str, ...]
    worth: str
    written: frozenset[str]
    read: frozenset[str]

    def waits_for(self, other: Loop) -> bool:
        """Whether this loop must not begin before another one is done."""
        return bool(other.written & (self.read | self.written) or self.written & other.read)


def loop(lines: Sequence[str], node: Node, scop: Scop) -> Loop | None:
    """The lines of a node as a loop of a team; None where they are no parallel loop, or more than that."""
    if not lines or not lines[0].startswith(ALONE) or not _one_loop(lines[1:]):
        return None
    statements = [scop.statement(run.statement) for run in runs((node,))]
    written = frozenset(s.tensor for s in statements)
    worth = _WORTH.search(lines[0])
    own = (_WORTH.sub("", lines[0]), *lines[1:])
    return Loop(own, worth[1] if worth else "", written, frozenset(a.tensor for s in statements for a, _ in s.reads()))


def _one_loop(lines: Sequence[str]) -> bool:
    """Whether lines are one loop and nothing else, which every thread of a team would run."""
    pad = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    heads = [line for line in lines if not line.startswith(("#", pad + " "))]
    return len(heads) == 2 and heads[0].lstrip().startswith("for (") and heads[1].strip() == "}" and heads[1] is lines[-1]


def teams(loops: Sequence[Loop], pad: str) -> list[str]:
    """The lines of loops that follow one another directly, at a depth that ``pad`` stands for."""
    lines: list[str] = []
    for worth, group in groupby(loops, key=lambda one: one.worth):
        together = list(group)
        if not worth:
            lines += _team(together, pad)
            continue
        alone = [line for one in together for line in one.lines[1:]]
        lines += [f"{pad}if ({worth}) {{", *_team(together, pad), f"{pad}}} else {{", *alone, f"{pad}}}"]
    return lines


def _team(loops: Sequence[Loop], pad: str) -> list[str]:
    """The lines of loops that are all worth threads."""
    if len(loops) < 2:
        return [line for one in loops for line in one.lines]
    lines = [f"#pragma omp parallel{_THREADS}", pad + "{"]
    running: list[Loop] = []
    for one, following in zip(loops, [*loops[1:], None], strict=True):
        running.append(one)
        wait = following is not None and any(following.waits_for(each) for each in running)
        if wait:
            running = []
        pragma = one.lines[0].replace(ALONE, "#pragma omp for").replace(_THREADS, "")
        lines += [pragma + ("" if wait else " nowait"), *(line if line.startswith("#") else "  " + line for line in one.lines[1:])]
    return [*lines, pad + "}"]
