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
class TreePattern:
    """``kinds``: node types that fit, all if empty; ``children`` None: whatever stands below fits."""

    kinds: tuple[isl.schedule_node_type, ...] = ()
    children: tuple[TreePattern, ...] | None = None
    rest: TreePattern | None = None  # fits every child after the listed ones; None: there are none
    test: Test | None = None
    name: str = ""

    def named(self, name: str) -> TreePattern:
        """The pattern, binding its node to a name."""
        return replace(self, name=name)

    def where(self, test: Test) -> TreePattern:
        """The pattern for nodes that pass a test as well."""
        return replace(self, test=test)


def anything(name: str = "") -> TreePattern:
    return TreePattern(name=name)


def leaf() -> TreePattern:
    return TreePattern((KIND.leaf,), ())


def band(child: TreePattern | None = None) -> TreePattern:
    return TreePattern((KIND.band,), None if child is None else (child,))


def domain(child: TreePattern) -> TreePattern:
    return TreePattern((KIND.domain,), (child,))


def filter(child: TreePattern) -> TreePattern:
    return TreePattern((KIND.filter,), (child,))


def mark(wanted: Mark, child: TreePattern | None = None) -> TreePattern:
    return TreePattern((KIND.mark,), None if child is None else (child,), test=lambda node: mark_of(node) == wanted)


def sequence(*children: TreePattern, rest: TreePattern | None = None) -> TreePattern:
    return TreePattern((KIND.sequence,), children, rest)


def match(node: isl.ScheduleNode, pattern: TreePattern) -> dict[str, isl.ScheduleNode] | None:
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
