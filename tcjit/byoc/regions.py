"""Regions: supported groups of nodes, merged as far as each can still run as one.

A set of nodes can run as one if no way between two of them leads outside. For several such sets that is not enough: each may be fine and
yet need a result of the other. So the question is asked of the contracted graph, where sets are single nodes: it must have no circle.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from heapq import heapify, heappop, heappush
from operator import or_
from typing import TypeAlias

from tcjit.byoc.block_dependences import BlockDependences, note, operands
from tcjit.byoc.graph import Block, Node, Value
from tcjit.byoc.patterns import Match
from tcjit.errors import PartitionError

Fits: TypeAlias = Callable[[str, Sequence[Node]], bool]  # whether a backend can hold these nodes as one region


@dataclass(frozen=True, eq=False)
class NodeGroup:
    """Nodes that a backend takes together: what a row of its table matched, or a single node without one. ``alone``: never merged."""

    backend: str
    nodes: tuple[Node, ...]
    row: str = ""
    match: Match | None = field(default=None, repr=False)
    alone: bool = False


@dataclass(frozen=True, eq=False)
class Region:
    """Nodes that run as one, in the order of their block. ``inputs`` are values computed outside, ``constants`` those that the model holds,
    both in the order of their first use and each once; ``outputs`` are the values used outside, in the order in which they are computed.

    ``name`` is an identifier, and unique in a block.
    """

    backend: str
    name: str
    groups: tuple[NodeGroup, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    constants: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows of the backend's table that matched in it, in the order of the nodes."""
        return tuple(group.row for group in self.groups if group.row)

    def __repr__(self) -> str:
        ops = " ".join(node.op for node in self.nodes[:8]) + (" ..." if len(self.nodes) > 8 else "")
        return f"<region {self.name}: {len(self.nodes)} nodes, {len(self.inputs)} in, {len(self.outputs)} out: {ops}>"


def merge(block: Block | BlockDependences, groups: Sequence[NodeGroup], *, start: int = 0, fits: Fits | None = None) -> list[Region]:
    """The regions of a block, in an order in which they can run; numbered from ``start``.

    Neighbours of one backend and device become one region wherever that makes no circle; of two that exclude each other the earlier wins.
    ``fits`` says where a region would become too large for its backend. A group that cannot run as one is dropped, its nodes bear the
    reason. Raises PartitionError where two groups share a node.

    Groups go in one by one in topological order, each with the set of cells that it depends on, as bits. Only a way through another of
    its own inputs can lead from a region to the newcomer from outside, and regions that were kept apart once stay apart: what is between
    them belongs to neither. So joining takes a look at the inputs, and only those that depend on a grown region are told.
    """
    scope = block if isinstance(block, BlockDependences) else BlockDependences(block)
    units = _admitted(scope, groups)
    cells, needs = _contracted(scope, [unit.nodes for unit in units])
    sequence = _sorted(cells, needs)
    assert sequence is not None, "an admitted group closes a circle"
    # a cell that is no unit has no colour; cells of one colour merge
    colours = [unit.colour for unit in units] + [None] * (len(cells) - len(units))
    root = list(range(len(cells)))
    bits, before = [0] * len(cells), [0] * len(cells)
    live: dict[int, None] = {}

    def find(cell: int) -> int:
        while root[cell] != cell:
            root[cell] = root[root[cell]]
            cell = root[cell]
        return cell

    members = dict(enumerate(map(list, cells[: len(units)])))
    for place, cell in enumerate(sequence):
        inputs = list(dict.fromkeys(map(find, needs[cell])))
        bits[cell] = 1 << place
        before[cell] = reduce(or_, (bits[each] | before[each] for each in inputs), 0)
        colour = colours[cell]
        joined = []
        for each in inputs if colour is not None else ():
            if colours[each] != colour or any(before[other] & bits[each] for other in inputs if other != each):
                continue
            if fits is None or fits(units[cell].backend, [*members[each], *members[cell]]):
                joined.append(each)
                members[cell] += members.pop(each)
        own = reduce(or_, (bits[each] for each in joined), bits[cell])
        after = reduce(or_, (before[each] for each in joined), before[cell]) & ~own
        grown = reduce(or_, (bits[each] for each in joined if after & ~before[each]), 0)
        for each in joined:
            root[each] = cell
            del live[each]
        if grown:
            for other in live:
                if before[other] & grown:
                    before[other] |= after
        bits[cell], before[cell] = own, after
        live[cell] = None
    parts: dict[int, list[NodeGroup]] = {}
    for number, unit in enumerate(units):
        parts.setdefault(find(number), []).extend(unit.groups)
    made = [region for region in (_region(scope, each) for each in parts.values()) if region is not None]
    ordered = [each for each in order(scope, made) if isinstance(each, Region)]
    return [_named(region, start + number) for number, region in enumerate(ordered)]


def order(block: Block | BlockDependences, regions: Sequence[Region]) -> list[Node | Region]:
    """All of a block in an order in which it can run, regions in one piece, otherwise as near to its own order as that allows.

    Raises PartitionError where there is none.
    """
    scope = block if isinstance(block, BlockDependences) else BlockDependences(block)
    cells, needs = _contracted(scope, [region.nodes for region in regions])
    sequence = _sorted(cells, needs)
    if sequence is None:
        raise PartitionError(f"regions need one another's results: {', '.join(region.name for region in regions)}")
    return [regions[cell] if cell < len(regions) else cells[cell][0] for cell in sequence]


class Reach:
    """Which sets of nodes can run as one, next to all those that were joined before."""

    def __init__(self, scope: BlockDependences) -> None:
        self._scope = scope
        self._before: list[int] = []  # per node, what it depends on once the joined sets are single cells, as bits

    def join(self, nodes: Sequence[Node]) -> bool:
        """Joins nodes, if that closes no circle."""
        members = frozenset(nodes)
        if self._tight(members):
            return True  # every way through it was one before
        if not self._before:
            self._before = []
            for needs in self._scope.needs:
                self._before.append(reduce(or_, ((1 << each) | self._before[each] for each in needs), 0))
        own = reduce(or_, (1 << node.number for node in members), 0)
        outside = reduce(or_, (self._before[node.number] for node in members), 0) & ~own
        if any(self._before[number] & own for number in _numbers(outside)):
            return False
        for number, before in enumerate(self._before):
            if before & own or own >> number & 1:
                self._before[number] = before | own | outside
        return True

    def _tight(self, members: frozenset[Node]) -> bool:
        """Whether only one member's results leave, all others lead to it, and no memory is in play."""
        if len(members) == 1:
            return True
        leaving = [node for node in members if any(self._scope.escapes(value, members) for value in node.outputs)]
        dead = [node for node in members if node not in leaving and not any(value.users for value in node.outputs)]
        return len(leaving) + len(dead) == 1 and not any(node in self._scope.bound for node in members)


def identifier(text: str) -> str:
    """A text as a name that C, Python and TC accept.

    >>> identifier("aten::conv2d.relu/1"), identifier("2d"), identifier("")
    ('aten_conv2d_relu_1', '_2d', '_')
    """
    name = re.sub(r"[^0-9A-Za-z]+", "_", text)
    return f"_{name}" if not name or name[0].isdigit() else name


@dataclass
class _Unit:
    """Groups that must stay together."""

    groups: list[NodeGroup]
    number: int

    @property
    def backend(self) -> str:
        return self.groups[0].backend

    @property
    def nodes(self) -> list[Node]:
        return [node for group in self.groups for node in group.nodes]

    @property
    def colour(self) -> tuple[str, str, int] | None:
        device = next((v.type.device for node in self.nodes for v in (*node.outputs, *node.inputs) if v.type is not None), "")
        return (self.backend, device, self.number if any(group.alone for group in self.groups) else -1)


def _admitted(scope: BlockDependences, groups: Sequence[NodeGroup]) -> list[_Unit]:
    """The groups that can run as one, those joined that pass each other something else than tensors."""
    units: dict[int, _Unit] = {number: _Unit([group], number) for number, group in enumerate(groups)}
    owner: dict[Node, int] = {}
    for number, group in enumerate(groups):
        for node in group.nodes:
            if node in owner:
                raise PartitionError(f"{node.op} is in two groups of nodes, of {groups[owner[node]].backend} and {group.backend}")
            if not scope.holds(node):
                raise PartitionError(f"{node.op} of a group of {group.backend} stands in another block")
            owner[node] = number

    def drop(numbers: set[int], reason: str) -> None:
        for number in sorted(numbers):
            for node in units.pop(number).nodes:
                del owner[node]
                note(node, reason)

    # regions exchange tensors only
    others: dict[Value, list[Node]] = {}  # with who takes part in it here: blocks around do not list those among the users
    for node in owner:
        for value in (*operands(node), *node.outputs):
            if value.type is None and not value.constant:
                others.setdefault(value, []).append(node)
    changed = True
    while changed:
        changed = False
        for value in others:
            ends = [*value.users, *others[value], *([value.producer] if value.producer else [])]
            holders = {owner.get(node, -1) for node in ends}
            if value in scope.leaving or not scope.holds(value.producer):
                holders.add(-1)
            inside = holders - {-1}
            if len(holders) < 2 or not inside:
                continue
            changed = True
            first = min(inside)
            if -1 in holders or len({units[number].colour for number in inside}) > 1:
                drop(inside, f"%{value.name}, no tensor, would cross the border of a region")
                continue
            for number in sorted(inside - {first}):
                units[first].groups += units.pop(number).groups
            owner.update(dict.fromkeys(units[first].nodes, first))
    reach = Reach(scope)
    for number in sorted(units):
        if not reach.join(units[number].nodes):
            drop({number}, "a way between its parts leads outside")
    return list(units.values())


def _contracted(scope: BlockDependences, sets: Sequence[Sequence[Node]]) -> tuple[list[list[Node]], list[list[int]]]:
    """Cells, first the sets and then every other node, and which cells each needs, ascending."""
    cells = [sorted(nodes, key=lambda node: node.number) for nodes in sets]
    owner = [-1] * len(scope.nodes)
    for cell, nodes in enumerate(cells):
        for node in nodes:
            owner[node.number] = cell
    for node in scope.nodes:
        if owner[node.number] < 0:
            owner[node.number] = len(cells)
            cells.append([node])
    needs = [sorted({owner[each] for node in nodes for each in scope.needs[node.number]} - {cell}) for cell, nodes in enumerate(cells)]
    return cells, needs


def _sorted(cells: Sequence[Sequence[Node]], needs: Sequence[Sequence[int]]) -> list[int] | None:
    """The cells in an order in which they can run, the one with the earliest node first; None where there is none."""
    waits = [len(each) for each in needs]
    users: list[list[int]] = [[] for _ in cells]
    for cell, each in enumerate(needs):
        for need in each:
            users[need].append(cell)
    ready = [(cells[cell][0].number, cell) for cell, count in enumerate(waits) if not count]
    heapify(ready)
    found = []
    while ready:
        _, cell = heappop(ready)
        found.append(cell)
        for user in users[cell]:
            waits[user] -= 1
            if not waits[user]:
                heappush(ready, (cells[user][0].number, user))
    return found if len(found) == len(cells) else None


def _region(scope: BlockDependences, groups: Sequence[NodeGroup]) -> Region | None:
    """A region without its name, or None where nothing of it is left or used."""
    groups = _trimmed(scope, groups)
    if not groups:
        return None
    nodes = sorted((node for group in groups for node in group.nodes), key=lambda node: node.number)
    members = frozenset(nodes)
    taken = list(dict.fromkeys(value for node in nodes for value in node.inputs if value.producer not in members))
    outputs = tuple(value for node in nodes for value in node.outputs if scope.escapes(value, members))
    if not outputs:
        for node in nodes:
            note(node, "nothing uses what it computes")
        return None
    inputs, constants = (tuple(v for v in taken if v.constant == held) for held in (False, True))
    groups = sorted(groups, key=lambda group: group.nodes[0].number)
    return Region(groups[0].backend, "", tuple(groups), tuple(nodes), inputs, constants, outputs)


def _trimmed(scope: BlockDependences, groups: Sequence[NodeGroup]) -> list[NodeGroup]:
    """The groups without views at the end whose memory is outside anyway: there they cost nothing, and inside a copy each."""
    left = list(groups)
    while True:
        members = {node for group in left for node in group.nodes}
        ends = [group for group in left if not group.row and _view(group.nodes[0]) and not members.intersection(_users(group.nodes[0]))]
        inside = members - {group.nodes[0] for group in ends}
        gone = []
        for group in ends:
            (node,) = group.nodes
            bases = [value for value in operands(node) if value.type is not None]
            if all(base.producer not in members or scope.escapes(base, inside | {node}) for base in bases):
                note(node, "a view of memory outside of the region")
                gone.append(group)
        if not gone:
            return left
        left = [group for group in left if group not in gone]


def _view(node: Node) -> bool:
    """Whether it only looks at tensors, and gives some."""
    return node.effect == "view" and all(value.type is not None or value.constant for value in (*node.inputs, *node.outputs))


def _users(node: Node) -> list[Node]:
    return [user for value in node.outputs for user in value.users]


def _named(region: Region, number: int) -> Region:
    words = [group.row or group.nodes[0].op.rpartition(".")[2] for group in region.groups[:4]]
    name = identifier("_".join([region.backend, str(number), *words]))[:60].rstrip("_")
    return Region(region.backend, name, region.groups, region.nodes, region.inputs, region.constants, region.outputs)


def _numbers(bits: int) -> list[int]:
    """The places of the ones."""
    return [place for place, digit in enumerate(reversed(bin(bits)[2:])) if digit == "1"]
