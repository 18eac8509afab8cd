"""Dead code: what nobody uses goes, what does anything but compute stays."""
from __future__ import annotations

from tcjit.byoc.adapter import Adapter
from tcjit.byoc.graph import Block, Node
from tcjit.byoc.passes.editing import inside, pruned


def remove_dead(block: Block, adapter: Adapter) -> Block:
    """Without nodes whose results nobody uses. A node that writes, draws random numbers or acts on the world stays, and so does a loop,
    which may never end; an ``if`` goes where nothing in its branches must stay."""
    inside(block, lambda each: remove_dead(each, adapter))
    return pruned(block, {node for node in block.nodes if _pure(node)})


def _pure(node: Node) -> bool:
    """Whether a node may go where nobody uses its results."""
    if node.op == "prim.If":
        return all(_pure(each) for block in node.blocks for each in block.nodes)
    return node.effect in ("", "view") and bool(node.outputs) and not node.blocks
