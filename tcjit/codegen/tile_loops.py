"""The loops around the register tiles of a nest: a schedule tree over tiles, as text, whose loops isl generates.

Tile statements: ``I`` starts the accumulators, ``U`` updates them by a full tile, ``P`` by a partial one, ``O`` stores the results.
"""

from __future__ import annotations

import islpy as isl

from tcjit.mapping.nest.nest import Nest
from tcjit.mapping.nest.statement import DIM, Statement
from tcjit.mapping.nest.tile import Tiles


def tile_tree(s: Statement, nest: Nest, tiles: Tiles, parallel: int) -> isl.Schedule:
    """Loops over the results' digits, then the terms'; the mark ``parallel`` stands above the loop that threads share."""
    ctx = s.domain.get_ctx()
    results = [digit for digit, loop in zip(tiles.digits, nest.loops, strict=True) if loop.dim not in s.terms]
    terms = [digit for digit in tiles.digits if digit not in results]
    assert list(tiles.digits) == [*results, *terms], "the terms are inside"
    outputs = tiles.box.project_out(DIM.set, len(results), len(terms) + len(tiles.inside))
    domains = {
        "I": (results, outputs), "U": (list(tiles.digits), tiles.full), "P": (list(tiles.digits), tiles.partial), "O": (results, outputs),
    }  # fmt: skip
    domain = isl.UnionSet.empty(outputs.get_space().params())
    for name, (_, where) in domains.items():
        domain = domain.union(where.set_tuple_name(name).to_union_set())

    def band(digit: str, below: str) -> str:
        parts = [f"{name}[{', '.join(dims)}] -> [({digit})]" for name, (dims, _) in domains.items() if digit in dims]
        return f'schedule: "[{{ {"; ".join(parts)} }}]", child: {{ {below} }}'

    def leaf(names: str) -> str:
        listed = [f"{name}[{', '.join(domains[name][0])}]" for name in names]
        return f'filter: "{{ {"; ".join(listed)} }}"'

    inner = ""
    for digit in reversed(terms):
        parts = [f"{name}[{', '.join(tiles.digits)}] -> [({digit})]" for name in "UP"]
        inner = f'child: {{ schedule: "[{{ {"; ".join(parts)} }}]"{", " + inner if inner else ""} }}'
    text = f'sequence: [ {{ {leaf("I")} }}, {{ {leaf("UP")}{", " + inner if inner else ""} }}, {{ {leaf("O")} }} ]'
    for number, digit in reversed(list(enumerate(results))):
        text = band(digit, text)
        if number == parallel:
            text = f'mark: "parallel", child: {{ {text} }}'
    return isl.Schedule.read_from_str(ctx, f'{{ domain: "{domain.to_str()}", child: {{ {text} }} }}')
