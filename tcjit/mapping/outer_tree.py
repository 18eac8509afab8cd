"""The schedule tree of statements under outer loops that they share: one band above all of theirs."""

from __future__ import annotations

import islpy as isl

from tcjit.grammar.affine import isl_name
from tcjit.mapping.isl import member, stack
from tcjit.mapping.marks import Mark, Parallel, TileLoops
from tcjit.mapping.nest.tiled_statement import KINDS
from tcjit.mapping.scop import Scop
from tcjit.mapping.tree import insert_mark


def outer_tree(scop: Scop, inside: isl.Schedule, mark: Mark, *, parallel: bool) -> isl.Schedule:
    """The tree ``inside`` under the outer loops of a scop whose statements share them; ``mark`` stands above one iteration."""
    levels: list[dict[str, tuple[tuple[str, ...], str]]] = []
    depth = max(len(s.outer.dims) for s in scop.statements if s.outer)
    for level in range(depth):
        values: dict[str, tuple[tuple[str, ...], str]] = {}
        for s in scop.statements:
            assert s.outer is not None
            if not s.tiled and not s.fused:
                values[s.name] = s.isl_dims, isl_name(s.outer.dims[level])
            for tiled in s.tiled:
                digits, count = tiled.tiles.digits, tiled.nest.accumulated(tiled.statement)
                for kind in KINDS:
                    own = digits if kind in ("full", "partial") else digits[:count]
                    values[tiled.tile_statement(kind)] = own, own[level]
        levels.append(values)
    loops = stack(scop.ctx, [member(scop.ctx, level) for level in levels])
    node = insert_mark(inside.get_root().child(0), mark).insert_partial_schedule(loops)
    node = insert_mark(node, TileLoops())
    return (insert_mark(node, Parallel()) if parallel else node).get_schedule()
