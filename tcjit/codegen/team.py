"""Parallel loops one after the other, run by one team of threads: it is woken once, and waits only where a loop needs what others wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tcjit.codegen.loops import Node, runs
from tcjit.mapping.scop import Scop

ALONE = "#pragma omp parallel for"
_THREADS = " num_threads(threads)"


@dataclass(frozen=True)
class Loop:
    """A parallel loop as it stands alone, its pragma first, and the tensors that it writes and reads."""

    lines: tuple[str, ...]
    written: frozenset[str]
    read: frozenset[str]

    def waits_for(self, other: Loop) -> bool:
        """Whether this loop must not begin before another one is done."""
        return bool(other.written & (self.read | self.written) or self.written & other.read)


def loop(lines: Sequence[str], node: Node, scop: Scop) -> Loop | None:
    """The lines of a node as a loop of a team; None where they are no parallel loop, or more than that, or one only for some sizes."""
    if not lines or not lines[0].startswith(ALONE) or " if (" in lines[0] or not _one_loop(lines[1:]):
        return None
    statements = [scop.statement(run.statement) for run in runs((node,))]
    written = frozenset(s.tensor for s in statements)
    return Loop(tuple(lines), written, frozenset(a.tensor for s in statements for a, _ in s.reads()))


def _one_loop(lines: Sequence[str]) -> bool:
    """Whether lines are one loop and nothing else, which every thread of a team would run."""
    pad = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    heads = [line for line in lines if not line.startswith(("#", pad + " "))]
    return len(heads) == 2 and heads[0].lstrip().startswith("for (") and heads[1].strip() == "}" and heads[1] is lines[-1]


def team(loops: Sequence[Loop], pad: str) -> list[str]:
    """The lines of loops that follow one another directly, at a depth that ``pad`` stands for."""
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
