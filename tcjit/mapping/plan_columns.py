"""Columns: neighbours in memory lie along a dimension that the statements share, so there is a thread for each element, or for a few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tcjit.grammar.ast import Access
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.gpu_nest import Distribution, GroupPlan
from tcjit.mapping.plan_facts import BLOCK, ROW_ELEMENTS, Facts, bounds
from tcjit.mapping.strides import KEPT, accesses, affine_form, stride

SQUARE = 32  # side of the tile that turns a transposed read
IN_FLIGHT = 4  # elements of a thread whose loads are under way at once, at least
SHARED_TERMS, LEAST_TERMS = 32, 4  # of a sum from which several threads share it, and of one of these threads


def columns(facts: Facts) -> GroupPlan:
    """A thread for each element of the columns; a few long reductions are shared by several."""
    s = facts.main
    dims = facts.dims(s)
    ranked = sorted(facts.columns, key=lambda c: facts.nearness(s, dims[c]), reverse=True)
    ranked = ranked[:1] + sorted(ranked[1:], reverse=True)
    turned = _turned(facts, ranked[0]) if ranked else None
    if turned is not None:
        return _square(facts, ranked[0], *turned)
    rest = prod(s.extent(d) for d in s.reduction)
    lane = max(s.reduction, key=s.extent, default="")
    few = not facts.block and facts.points < facts.device.processors * BLOCK and rest >= SHARED_TERMS and s.extent(lane) >= 16
    kept = _kept(facts, lane) if not few and ranked else {}
    vector = _vector(facts, ranked[0]) if ranked and not (few or kept) else 1
    threads = min(32, facts.most_threads) if few or kept else facts.most_threads
    shares: dict[int, Distribution] = {}
    for place, c in enumerate(ranked):
        wide = vector if place == 0 and facts.most(c) % vector == 0 else 1
        count = min(threads, -(-facts.most(c) // wide))
        shares[c] = facts.share(c, min(count * wide, facts.most(c)), count, wide)
        threads //= count
    if not few and not s.reduction and not facts.block:
        _more(facts, ranked, shares, IN_FLIGHT // vector)
    order = tuple(reversed([c for c in ranked if shares[c].shared_out]))
    items = list(facts.items())
    lane_threads = 1
    if few or kept:
        used = prod(shares[c].threads for c in order)
        count = min(_threads(facts, -(-facts.points // used)) // used, s.extent(lane), rest // LEAST_TERMS)
        lane_threads = 1 << (max(1, count).bit_length() - 1)
        if kept:
            lane_threads = 1 << (-(-s.extent(lane) // ROW_ELEMENTS) - 1).bit_length()
        lower, upper = bounds(s, lane)
        share = Distribution(lower, upper - lower, upper - lower, lane_threads)
        lanes = kept or {s.name: lane}
        items = [replace(item, lane=(lanes[item.statement], share)) if item.statement in lanes else item for item in items]
    shared_out = tuple(shares[c] for c in facts.columns)
    return GroupPlan(shared_out, order, tuple(items), lane_threads=lane_threads, lane_first=True)


def _kept(facts: Facts, lane: str) -> dict[str, str]:
    """The dimensions along which threads share what statements of the same range read again, so that it stays in their registers; nothing
    where one thread can keep it, where that is too long, or not all that the group does."""
    s = facts.main
    most = ROW_ELEMENTS * facts.device.max_threads // 32
    if not lane or facts.block or not KEPT < s.extent(lane) <= most or facts.options.block or facts.points < 32 * facts.device.processors:
        return {}
    lanes: dict[str, str] = {}
    used: list[str] = []
    for each in facts.statements:
        rest = [d for d in each.dims if d not in facts.dims(each) and each.extent(d) > 1]
        if rest:
            if len(rest) > 1 or bounds(each, rest[0]) != bounds(s, lane) or each.constraints or each.dynamic_bounds:
                return {}
            lanes[each.name] = rest[0]
            used += {a.tensor for a in accesses(each) if facts.moves_with(a, rest[0]) and len(a.subscripts) > len(facts.columns)}
    return lanes if len(set(used)) < len(used) else {}


def _more(facts: Facts, ranked: Sequence[int], shares: dict[int, Distribution], times: int) -> None:
    """Up to so many elements a thread instead of one, along a column that blocks share: their loads are under way together."""
    while times > 1 and facts.points < times * facts.device.processors * facts.device.resident_threads:
        times //= 2
    if times < 2:
        return
    wide = [c for c in ranked if shares[c].tiles >= 2 * times]
    whole = [c for c in wide if shares[c].extent % (times * shares[c].tile) == 0]
    for c in [*whole, *wide][:1]:
        shares[c] = replace(shares[c], tile=times * shares[c].tile)


def _threads(facts: Facts, blocks: int) -> int:
    """Threads of a block where there are few blocks: as many as keep the processors' loads under way."""
    if facts.options.block:
        return facts.most_threads
    resident = facts.device.processors * facts.device.resident_threads
    return max(facts.most_threads, min(facts.device.max_threads, resident // blocks))


def _vector(facts: Facts, column: int) -> int:
    """Neighbours that a thread takes at once, where every statement moves by 0 or 1 and there is work enough."""
    wide = facts.options.vector or facts.together((s, facts.dims(s)[column]) for s in facts.statements)
    for s in facts.statements:
        moves = [stride(facts.scop, a, facts.dims(s)[column]) for a in accesses(s)]
        if any(m not in (0, 1) for m in moves) or facts.lower(column):
            return 1
    while wide > 1 and (facts.extent(column) % wide or facts.points // wide < facts.device.processors * BLOCK):
        wide //= 2
    return wide


def _turned(facts: Facts, near: int) -> tuple[int, Access] | None:
    """A read whose neighbours in memory lie along another column, and that column."""
    s = facts.main
    if s.reduction or facts.block or not facts.options.shared or facts.extent(near) < SQUARE or facts.most_threads < SQUARE:
        return None
    for a in accesses(s)[1:]:
        if any(affine_form(sub, facts.scop.values) is None for sub in a.subscripts):
            continue
        if SQUARE * (SQUARE + 1) * DTYPES[a.dtype].bytes > facts.device.shared_bytes:
            continue
        if stride(facts.scop, a, facts.dims(s)[near]) in (0, 1):
            continue
        for c, dim in enumerate(facts.dims(s)):
            if c != near and stride(facts.scop, a, dim) == 1 and facts.extent(c) >= SQUARE:
                return c, a
    return None


def _square(facts: Facts, near: int, other: int, access: Access) -> GroupPlan:
    """A square tile that is read along one side and written along the other."""
    down = min(facts.most_threads // SQUARE, SQUARE)
    # a thread has two elements of 2 bytes, so that a warp reads and writes 128 bytes of a row
    pair = DTYPES[access.dtype].bytes <= 2 and facts.options.vector != 1 and not facts.lower(near)
    pair = pair and facts.extent(near) % 2 == 0 and min(facts.extent(near), facts.extent(other)) >= 2 * SQUARE
    each = 2 if pair else 1
    shares = {
        near: Distribution(facts.lower(near), facts.extent(near), each * SQUARE, SQUARE, each),
        other: Distribution(facts.lower(other), facts.extent(other), each * SQUARE, down),
    }
    shared_out = tuple(shares.get(c) or facts.whole(c) for c in facts.columns)
    return GroupPlan(shared_out, (other, near), facts.items(), shared=((facts.main.name, access),))
