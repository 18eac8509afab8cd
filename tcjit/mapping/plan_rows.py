"""Rows: neighbours in memory lie along a dimension that the statements do not share, so the threads of a block take a row together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tcjit.mapping.gpu_nest import Distribution, GroupPlan
from tcjit.mapping.plan_facts import BLOCK, ROW_ELEMENTS, Facts, bounds
from tcjit.mapping.scop import ScopStatement
from tcjit.mapping.strides import accesses, stride


def rows(facts: Facts) -> GroupPlan | None:
    """The threads of a block along a row; None where neighbours lie along a column."""
    main = facts.main
    lanes = {s.name: dim for s in facts.statements if (dim := _lane(facts, s))}
    if main.name not in lanes:
        return None
    best_column = max((facts.nearness(main, dim) for dim in facts.dims(main)), default=(-(1 << 62), False, 0))
    if best_column[0] >= facts.nearness(main, lanes[main.name])[0] and facts.points >= 32:
        return None
    windows = all(s.reduction and facts.shifts(s, lanes[s.name]) for s in facts.statements if s.name in lanes)
    if windows and facts.points >= facts.device.processors * BLOCK:
        return None  # neighbours along a window are read again for its neighbours: each thread has one of its own
    longest = max(facts.scop.statement(name).extent(dim) for name, dim in lanes.items())
    ranges = {name: bounds(facts.scop.statement(name), dim) for name, dim in lanes.items()}
    # what runs along other lanes has vectors of its own, and shares no registers
    vectors = {of: _vector(facts, {name: dim for name, dim in lanes.items() if ranges[name] == of}) for of in set(ranges.values())}
    threads = _threads(facts, -(-longest // vectors[ranges[main.name]]), longest)
    # several short rows for a block, as long as every processor has one
    left = max(1, min((facts.options.block or 128) // threads, facts.points // facts.device.processors))
    if facts.block:
        left = max(1, facts.block.threads // threads)
    shares: dict[int, Distribution] = {}
    for c in reversed(facts.columns):
        count = min(left, facts.most(c))
        shares[c] = facts.share(c, count, count)
        left //= count
    columns = tuple(shares[c] for c in facts.columns)
    items = []
    for item in facts.items():
        if dim := lanes.get(item.statement):
            lower, upper = bounds(facts.scop.statement(item.statement), dim)
            item = replace(item, lane=(dim, Distribution(lower, upper - lower, upper - lower, threads, vectors[lower, upper])))
        items.append(item)
    order = tuple(c for c in facts.columns if columns[c].shared_out)
    return GroupPlan(columns, order, tuple(items), lane_threads=threads)


def _lane(facts: Facts, s: ScopStatement) -> str | None:
    rest = [d for d in s.dims if d not in facts.dims(s) and s.extent(d) > 1]
    return max(rest, key=lambda d: facts.nearness(s, d)) if rest else None


def _vector(facts: Facts, lanes: Mapping[str, str]) -> int:
    """Neighbours that a thread takes at once: as many as fill 16 bytes, where all rows allow it."""
    wide = facts.options.vector or facts.together((facts.scop.statement(name), dim) for name, dim in lanes.items())
    for name, dim in lanes.items():
        s = facts.scop.statement(name)
        lower, upper = bounds(s, dim)
        if any(stride(facts.scop, a, dim) not in (0, 1) for a in accesses(s)):
            return 1
        while wide > 1 and (lower % wide or upper % wide):
            wide //= 2
    return wide


def _threads(facts: Facts, pieces_of_row: int, longest: int) -> int:
    """A power of two: part of a warp for short rows, a warp up to a length, then more."""
    most = min(facts.options.block or 1024, facts.device.max_threads)
    wanted = facts.options.threads[-1] if facts.options.threads else 0
    if not wanted:
        wanted = min(pieces_of_row, 32) if longest <= 32 * 2 * ROW_ELEMENTS else -(-longest // ROW_ELEMENTS)
    return 1 << min(max(0, wanted - 1).bit_length(), most.bit_length() - 1)
