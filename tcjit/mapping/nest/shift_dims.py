"""Shift dimensions: all of them start at 0, so that a tile's number times its size is where it begins."""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from tcjit.mapping.nest.statement import FlatStatement


def shift_dims(s: FlatStatement) -> FlatStatement:
    """The statement over ``d - least(d)`` for each dimension ``d``."""
    least = {dim: lower for dim in s.dims if (lower := s.range(dim)[0])}
    if not least:
        return s

    def back(dims: tuple[str, ...]) -> isl.MultiAff:
        images = ", ".join(f"{dim} + {least.get(dim, 0)}" for dim in dims)
        return isl.MultiAff.read_from_str(s.domain.get_ctx(), f"{{ [{', '.join(dims)}] -> [{images}] }}")

    domain, results = s.domain.preimage_multi_aff(back(s.dims)), s.results.preimage_multi_aff(back(s.outputs))
    dynamic = {dim: f"({text}) - {least[dim]}" if dim in least else text for dim, text in s.dynamic.items()}
    return replace(s.with_forms(lambda flat: flat.moved(least)), domain=domain, results=results, dynamic=dynamic)
