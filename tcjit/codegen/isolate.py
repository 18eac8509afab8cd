"""Full and partial tiles: a block whose tile lies inside the tensors runs without the guards that the others need.

A guard of a thread's loops is a fact ``expression >= 0``. With every variable of threads and loops at its worst, what remains is a fact
about the variables that all threads share, known before the tile starts. Where such facts hold together, one copy of the code needs none
of these guards; the other copy keeps them. Inside a full tile the steps of a loop are told apart the same way. A second copy is worth its
size for statements in inner loops, not for the guards of copies and stores alone. Loops in, loops out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce

from tcjit.codegen.inequalities import comparison, facts, split, tightened
from tcjit.codegen.loops import BooleanOp, Condition, For, If, MarkNode, Node, Run, runs
from tcjit.codegen.scope import inside
from tcjit.codegen.unroll import constant_trips
from tcjit.grammar.dynamic import PREFIX
from tcjit.grammar.linear import Linear, Ranges, Term, limits, simplified
from tcjit.mapping.marks import Threads

Terms = tuple[Term, ...]
Facts = Mapping[Terms, int]  # a sum's terms -> the constant that makes it at least 0


def separate(nodes: tuple[Node, ...], shared: frozenset[str], ranges: Ranges, worth: Callable[[Run], bool]) -> tuple[Node, ...]:
    """The nodes, where it pays as ``if (full) {...} else {...}``, at the outermost level where it does and again inside what is full.

    ``shared`` are the variables above, all with the same value in every thread of a block, and ``ranges`` theirs; ``worth`` says which
    statements are worth it.
    """
    asked = _Level(shared, ranges, {}, worth)
    asked.visit(nodes, ranges, None)
    found: dict[Terms, int] = {}
    for fact in asked.wanted:
        found[fact.terms] = min(found.get(fact.terms, fact.constant), fact.constant)
    if not found or not asked.worthy:
        return tuple(_inside(node, shared, ranges, worth) for node in nodes)
    wanted: list[Condition] = [comparison(Linear(terms, constant)) for terms, constant in sorted(found.items(), key=str)]
    condition = reduce(lambda left, right: BooleanOp(left, "&&", right), wanted)
    full = _Level(shared, ranges, found, worth).visit(nodes, ranges, None)
    # steps inside a full tile may still be partial: the last one of a reduction
    return (If(condition, tuple(_inside(node, shared, ranges, worth) for node in full), nodes),)


def _inside(node: Node, shared: frozenset[str], ranges: Ranges, worth: Callable[[Run], bool]) -> Node:
    if isinstance(node, MarkNode) and not isinstance(node.mark, Threads):
        return replace(node, body=separate(node.body, shared, ranges, worth))
    if isinstance(node, For):
        return replace(node, body=separate(node.body, shared | {node.variable}, inside(node, ranges), worth))
    return node


class _Level:
    """A place where ``shared`` variables are known: drops the guards that are idle by ``known`` facts, and notes what others want, and
    whether a statement that is worth a copy is among those."""

    def __init__(self, shared: frozenset[str], ranges: Ranges, known: Facts, worth: Callable[[Run], bool]) -> None:
        self.shared = shared
        self.ranges = ranges
        self.known = known
        self.worth = worth
        self.wanted: list[Linear] = []
        self.worthy = False

    def visit(self, nodes: tuple[Node, ...], ranges: Ranges, sizes: tuple[int, ...] | None) -> tuple[Node, ...]:
        """``sizes``: the digits of the thread's number whose loops are still to come; None outside a region of threads."""
        result: list[Node] = []
        for node in nodes:
            if isinstance(node, MarkNode):
                digits = node.mark.radices if isinstance(node.mark, Threads) else sizes
                before = len(self.wanted)
                result.append(replace(node, body=self.visit(node.body, ranges, digits)))
                if isinstance(node.mark, Threads) and len(self.wanted) > before:
                    self.worthy = self.worthy or any(self.worth(run) for run in runs(node.body))
            elif isinstance(node, If):
                then = self.visit(node.then, ranges, sizes)
                if sizes is not None and not node.other and self.idle(facts(node.condition), ranges):
                    result += then
                else:
                    result.append(If(node.condition, then, self.visit(node.other, ranges, sizes)))
            elif isinstance(node, For):
                result.append(self.loop(node, ranges, sizes))
            else:
                result.append(node)
        return tuple(result)

    def loop(self, node: For, ranges: Ranges, sizes: tuple[int, ...] | None) -> For:
        if sizes:
            return self.digit(node, ranges, sizes)
        found = constant_trips(node, ranges) if sizes is not None else None
        if found is None:
            return replace(node, body=self.visit(node.body, inside(node, ranges), sizes))
        loop, guards = found
        inner = inside(loop, ranges)
        body = self.visit(loop.body, inner, sizes)
        for guard in guards:
            if not self.idle(facts(guard), inner):
                body = (If(guard, body),)
        return replace(loop, body=body)

    def digit(self, node: For, ranges: Ranges, sizes: tuple[int, ...]) -> For:
        """A loop that the threads of a block run, with guards where its bounds are narrower than the digit."""
        body = self.visit(node.body, {**ranges, node.variable: (0, sizes[0] - 1)}, sizes[1:])
        wanted = split(node.lower.times(-1)) + split(node.upper - (sizes[0] - 1))
        if node.step == 1 and node.lower != node.upper and self.idle(wanted, ranges):
            return For(node.variable, Linear.of(0), Linear.of(sizes[0] - 1), 1, body)
        return replace(node, body=body)

    def idle(self, expressions: list[Linear] | None, ranges: Ranges) -> bool:
        """Whether expressions are at least 0 by the known facts; notes the facts that would make them so, if any could."""
        if expressions is None:
            return False
        needed: list[Linear] = []
        for expression in expressions:
            for piece in split(simplified(expression, ranges)):
                worst = self.worst(piece, ranges)
                reach = None if worst is None else limits(worst, self.ranges)
                if worst is None or reach is None or reach[1] < 0 or _of_sizes(worst, reach):
                    return False
                needed += [] if worst.is_constant else [worst]
        self.wanted += needed
        return all(fact.terms in self.known and self.known[fact.terms] <= fact.constant for fact in needed)

    def worst(self, value: Linear, ranges: Ranges) -> Linear | None:
        """The least value over all that threads do not share."""
        result = Linear.of(value.constant)
        for atom, coefficient in value.terms:
            part = Linear(((atom, coefficient),))
            if not part.variables <= self.shared:
                found = limits(part, ranges)
                if found is None:
                    return None
                part = Linear.of(found[0])
            result = result + part
        return tightened(Linear(tuple(sorted(result.terms, key=lambda term: Linear((term,)).text)), result.constant))


def _of_sizes(fact: Linear, reach: tuple[int, int]) -> bool:
    """Whether a fact that may fail is about dynamic sizes alone: it would hold for a few of them, and for all blocks or none."""
    return reach[0] < 0 and bool(fact.variables) and all(name.startswith(PREFIX) for name in fact.variables)
