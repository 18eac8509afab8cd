"""The loops around the register tiles of a nest: a schedule tree over tile statements, as text, whose loops isl generates."""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from tcjit.mapping.marks import Accumulators, Mark, Parallel, TileLoops
from tcjit.mapping.nest.statement import DIM
from tcjit.mapping.nest.tiled_statement import KINDS, TiledStatement


def tile_tree(tiled: TiledStatement, ctx: isl.Context, *, parallel: bool) -> isl.Schedule:
    """Loops over the results' digits, the accumulators, then loops over the terms' digits; threads share the outermost loops over results,
    if they share any."""
    tiles, nest = tiled.tiles, tiled.nest
    count, block = nest.accumulated(tiled.statement), nest.block_loop(tiled.statement)
    block = count if block is None else block
    outside, terms = list(tiles.digits[:count]), list(tiles.digits[count:])
    outputs = tiles.box.project_out(DIM.set, len(outside), len(terms) + len(tiles.inside))
    start, full, partial, store = (tiled.tile_statement(kind) for kind in KINDS)
    domains = {
        start: (outside, outputs), full: (list(tiles.digits), tiles.full), partial: (list(tiles.digits), tiles.partial),
        store: (outside, outputs),
    }  # fmt: skip
    domain = isl.UnionSet.empty(outputs.get_space().params())
    for name, (_, where) in domains.items():
        domain = domain.union(where.set_tuple_name(name).to_union_set())

    def band(digit: str, child: str, options: str = "") -> str:
        if digit not in loops:
            return child
        parts = [f"{name}[{', '.join(dims)}] -> [({digit})]" for name, (dims, _) in domains.items() if digit in dims]
        return f'schedule: "[{{ {"; ".join(parts)} }}]"{options}{f", child: {{ {child} }}" if child else ""}'

    def marked(mark: Mark, child: str) -> str:
        return f'mark: "{mark}", child: {{ {child} }}'

    def filter_of(*names: str) -> str:
        listed = [f"{name}[{', '.join(domains[name][0])}]" for name in names]
        return f'filter: "{{ {"; ".join(listed)} }}"'

    loops = [digit for digit, count in zip(tiles.digits, tiles.counts, strict=True) if count > 1]
    inner = ""
    for digit in reversed(terms):
        inner = band(digit, inner)
    inner = f", child: {{ {inner} }}" if inner else ""
    text = f"sequence: [ {{ {filter_of(start)} }}, {{ {filter_of(full, partial)}{inner} }}, {{ {filter_of(store)} }} ]"
    def around(digits: Sequence[str], child: str, shared: bool) -> str:
        for digit in reversed(digits):
            child = band(digit, child)
        return marked(Parallel(), child) if shared and set(digits) & set(loops) else child

    accumulators = Accumulators(tiled.name)
    before, blocks, after = outside[:block], outside[block : block + 1], outside[block + 1 :]
    if tiled.has_results_in_blocks:  # which no threads share
        meet = tiled.threads_meet
        text = around(blocks, around(after, marked(accumulators, text), parallel and meet), shared=False)
        text = around(before, marked(TileLoops(), text), parallel and not meet)
    else:  # one loop over blocks of terms, those without a tile that counts included
        for digit in blocks:
            text = band(digit, text, ', options: "{ atomic[0] }"')
        text = around(before, marked(accumulators, text), parallel)
    return isl.Schedule.read_from_str(ctx, f'{{ domain: "{domain.to_str()}", child: {{ {text} }} }}')
