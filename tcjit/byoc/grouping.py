"""Which nodes a backend takes together: the rows of its table first, in order, then what it supports by itself."""
from __future__ import annotations

from collections.abc import Collection, Sequence

from tcjit.byoc.annotate import obstacles, reason, verdict
from tcjit.byoc.backends import Backend, Row
from tcjit.byoc.block_dependences import BlockDependences, note
from tcjit.byoc.graph import Block, Node
from tcjit.byoc.pattern_nodes import roots
from tcjit.byoc.patterns import Match, matches
from tcjit.byoc.regions import NodeGroup, Reach


def group(block: Block | BlockDependences, backends: Sequence[Backend], among: Collection[Node] | None = None) -> list[NodeGroup]:
    """Disjoint groups for ``merge``. Earlier backends win, in one backend earlier rows, for one row later results and larger matches.

    ``among`` keeps to some of the nodes. Nodes that nobody takes bear the reasons.
    """
    scope = block if isinstance(block, BlockDependences) else BlockDependences(block)
    free = dict.fromkeys(node for node in scope.nodes if among is None or node in among)
    reach = Reach(scope)
    found: list[NodeGroup] = []
    remarks: list[tuple[Node, str]] = []
    for node in free:
        node.reason = ""
    for backend in backends:
        barred = obstacles(scope, backend)
        for row in backend.patterns:
            ends = roots(row.pattern)
            for node in reversed(scope.nodes):
                if node not in free or barred[node] or not (ends is None or node.op in ends or f"{node.op}.{node.overload}" in ends):
                    continue
                taken, why = _take(row, node, scope, reach, free, barred)
                if taken is not None:
                    found.append(NodeGroup(backend.name, taken.nodes, row.name, taken, not backend.merges))
                    for each in taken.nodes:
                        del free[each]
                elif why:
                    remarks.append((node, f"{backend.name}, {row.name}: {why}"))
        for node in list(free):
            why = barred[node] or verdict(node, backend)
            if why:
                remarks.append((node, why))
            else:
                found.append(NodeGroup(backend.name, (node,), alone=not backend.merges))
                del free[node]
    for node, why in remarks:
        if node in free:
            note(node, why)
    return found


def _take(
    row: Row, root: Node, scope: BlockDependences, reach: Reach, free: dict[Node, None], barred: dict[Node, str]
) -> tuple[Match | None, str]:
    """The largest match of a row at a node that may be taken, or why there is none though the pattern fits."""
    why = ""
    for value in root.outputs:
        for each in matches(row.pattern, value, scope):
            refusal = _refusal(row, each, root, scope, free, barred)
            if not refusal and not reach.join(each.nodes):
                refusal = "a way between its parts leads outside"
            if not refusal:
                return each, ""
            why = why or refusal
    return None, why


def _refusal(row: Row, found: Match, root: Node, scope: BlockDependences, free: dict[Node, None], barred: dict[Node, str]) -> str:
    for node in found.nodes:
        if barred[node]:
            return f"{node.op} {barred[node]}"
        if node not in free:
            return f"{node.op} is taken already"
    if root not in found.nodes:
        return "the pattern names no operation"
    members = frozenset(found.nodes)
    for node in found.nodes:
        for value in node.outputs:
            if row.escapes == "refuse" and node is not root and scope.escapes(value, members):
                return f"%{value.name} is used outside of it as well"
    return "" if row.check is None else reason(row.check(found), "its check says no", f"the check of row {row.name}")
