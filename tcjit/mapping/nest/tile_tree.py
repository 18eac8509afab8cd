"""The loops around the register tiles of a nest: a schedule tree over tile statements, as text, whose loops isl generates."""

from __future__ import annotations

import islpy as isl

from tcjit.mapping.marks import Accumulators, Parallel
from tcjit.mapping.nest.statement import DIM
from tcjit.mapping.nest.tiled_statement import KINDS, TiledStatement


def tile_tree(tiled: TiledStatement, *, parallel: bool) -> isl.Schedule:
    """Loops over the results' digits, the accumulators, then loops over the terms' digits; threads share the outermost, if they share."""
    tiles, ctx = tiled.tiles, tiled.statement.domain.get_ctx()
    results = [digit for digit, loop in zip(tiles.digits, tiled.nest.loops, strict=True) if loop.dim not in tiled.statement.terms]
    terms = [digit for digit in tiles.digits if digit not in results]
    assert list(tiles.digits) == [*results, *terms], "the terms are inside"
    outputs = tiles.box.project_out(DIM.set, len(results), len(terms) + len(tiles.inside))
    start, full, partial, store = (tiled.tile_statement(kind) for kind in KINDS)
    domains = {
        start: (results, outputs), full: (list(tiles.digits), tiles.full), partial: (list(tiles.digits), tiles.partial),
        store: (results, outputs),
    }  # fmt: skip
    domain = isl.UnionSet.empty(outputs.get_space().params())
    for name, (_, where) in domains.items():
        domain = domain.union(where.set_tuple_name(name).to_union_set())

    def band(digit: str) -> str:
        parts = [f"{name}[{', '.join(dims)}] -> [({digit})]" for name, (dims, _) in domains.items() if digit in dims]
        return f'schedule: "[{{ {"; ".join(parts)} }}]"'

    def filter_of(*names: str) -> str:
        listed = [f"{name}[{', '.join(domains[name][0])}]" for name in names]
        return f'filter: "{{ {"; ".join(listed)} }}"'

    loops = [digit for digit, count in zip(tiles.digits, tiles.counts, strict=True) if count > 1]
    inner = ""
    for digit in reversed(terms):
        inner = f", child: {{ {band(digit)}{inner} }}" if digit in loops else inner
    text = f"sequence: [ {{ {filter_of(start)} }}, {{ {filter_of(full, partial)}{inner} }}, {{ {filter_of(store)} }} ]"
    text = f'mark: "{Accumulators(tiled.name)}", child: {{ {text} }}'
    for digit in reversed(results):
        text = f"{band(digit)}, child: {{ {text} }}" if digit in loops else text
    if parallel and set(results) & set(loops):
        text = f'mark: "{Parallel()}", child: {{ {text} }}'
    return isl.Schedule.read_from_str(ctx, f'{{ domain: "{domain.to_str()}", child: {{ {text} }} }}')
