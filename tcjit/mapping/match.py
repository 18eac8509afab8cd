"""Patterns that look like the schedule trees they match.

    sequence(filter(band(leaf())), ..., rest=anything)      a sequence whose first child is an innermost band
    mark(TileLoops(), band(anything("body")))                   names bind the nodes that they stand for

``match(node, pattern)`` gives the bound nodes, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import islpy as isl

from tcjit.mapping.marks import Mark
from tcjit.mapping.tree import KIND, kind, mark_of

Test = Callable[[isl.ScheduleNode], bool]


@dataclass(frozen=True)
class Pattern:
    """``kinds``: node types that fit, all if empty; ``children`` None: whatever stands below fits."""

    kinds: tuple[isl.schedule_node_type, ...] = ()
    children: tuple[Pattern, ...] | None = None
    rest: Pattern | None = None  # fits every child after the listed ones; None: there are none
    test: Test | None = None
    name: str = ""

    def named(self, name: str) -> Pattern:
        """The pattern, binding its node to a name."""
        return replace(self, name=name)

    def where(self, test: Test) -> Pattern:
        """The pattern for nodes that pass a test as well."""
        return replace(self, test=test)


def anything(name: str = "") -> Pattern:
    return Pattern(name=name)


def leaf() -> Pattern:
    return Pattern((KIND.leaf,), ())


def band(child: Pattern | None = None) -> Pattern:
    return Pattern((KIND.band,), None if child is None else (child,))


def domain(child: Pattern) -> Pattern:
    return Pattern((KIND.domain,), (child,))


def filter(child: Pattern) -> Pattern:
    return Pattern((KIND.filter,), (child,))


def mark(wanted: Mark, child: Pattern | None = None) -> Pattern:
    return Pattern((KIND.mark,), None if child is None else (child,), test=lambda node: mark_of(node) == wanted)


def sequence(*children: Pattern, rest: Pattern | None = None) -> Pattern:
    return Pattern((KIND.sequence,), children, rest)


def match(node: isl.ScheduleNode, pattern: Pattern) -> dict[str, isl.ScheduleNode] | None:
    """The named nodes of a pattern that fits at a node, or None."""
    if pattern.kinds and kind(node) not in pattern.kinds:
        return None
    if pattern.test is not None and not pattern.test(node):
        return None
    bound = {pattern.name: node} if pattern.name else {}
    if pattern.children is None:
        return bound
    count = node.n_children()
    if count < len(pattern.children) or (count > len(pattern.children) and pattern.rest is None):
        return None
    for position in range(count):
        below = pattern.children[position] if position < len(pattern.children) else pattern.rest
        assert below is not None  # by the count above
        inner = match(node.child(position), below)
        if inner is None:
            return None
        bound |= inner
    return bound
