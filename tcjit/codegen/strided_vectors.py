"""C functions over vectors whose lanes are a few elements apart in memory: whole vectors are loaded and stored, and shuffled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

SHUFFLED = (2, 3, 4)  # the steps between lanes that have such functions

_EVERY = """
TC_TILE $V tc_every$S$N(const $E *p) {
  $V r = tc_load$N(p);
$SHUFFLES  return r;
}
"""

_EVERY_PLAIN = """
TC_TILE $V tc_every$S$N(const $E *p) { return tc_strided$N(p, $S); }
"""

# lanes that count follow one another: what lies between their elements may be read
_EVERY_MASKED = """
TC_TILE $V tc_every$S_masked$N(const $E *p, tc_mask$N m) {
  if (!m) return ($V){0};
  const uint64_t read = ((2ull << $S * (31 - __builtin_clz(m))) - 1) & -(1ull << $S * __builtin_ctz(m));
  $V r = tc_load_masked$N(p, tc_opaque$N((tc_mask$N)read));
$SHUFFLES  return r;
}
"""

# the same of masks that are vectors
_EVERY_LANE_MASKED = """
#if defined(__AVX2__) && !defined(__clang__)
TC_TILE $V tc_every$S_masked$N(const $E *p, tc_mask$N m) {
  $V r = $FIRST;
$SHUFFLES  return r;
}
#else
$PLAIN
#endif
"""

_EVERY_MASKED_PLAIN = """
TC_TILE $V tc_every$S_masked$N(const $E *p, tc_mask$N m) { return tc_strided_masked$N(p, $S, m); }
"""

# lanes that are $S apart, some of which count: whole vectors are shuffled and stored under masks
_SPREAD = """
TC_TILE void tc_spread$S$N($E *p, $V v, tc_mask$N m) {
#if defined(__BMI2__)
  const uint64_t kept = __builtin_ia32_pdep_di(m, $EVERY);
$STORES#else
  tc_scatter$N(p, $S, v, m);
#endif
}
"""

_SPREAD_PLAIN = """
TC_TILE void tc_spread$S$N($E *p, $V v, tc_mask$N m) { tc_scatter$N(p, $S, v, m); }
"""


def loads(width: int, *, halves: bool) -> list[str]:
    """The texts of loads into vectors of ``width`` lanes; ``halves``: of 16 bytes each."""
    load = "tc_load$N(p + {})".format
    return [_text(_EVERY, step, SHUFFLES=_shuffles(step, width, load, halves=halves)) for step in SHUFFLED]


def masked(width: int) -> list[str]:
    """The texts of loads and stores under masks."""
    found = [_text(_EVERY_MASKED, step, SHUFFLES=_shuffles(step, width, _load_under_bits)) for step in SHUFFLED]
    return found + [_text(_SPREAD, step, STORES=_stores(step, width), EVERY=_every_bit(step, width)) for step in SHUFFLED]


def plain_loads() -> list[str]:
    """Loads lane by lane."""
    return [_text(_EVERY_PLAIN, step) for step in SHUFFLED]


def lane_masked(width: int, *, halves: bool) -> list[str]:
    """The same of masks that are vectors, where the processor has loads under them."""
    found = []
    for step in SHUFFLED:
        load = partial(_load_lanes, step, width)
        text = _EVERY_LANE_MASKED.replace("$PLAIN", _EVERY_MASKED_PLAIN.strip("\n"))
        found.append(_text(text, step, FIRST=load(0), SHUFFLES=_shuffles(step, width, load, halves=halves)))
    return found + [_text(_SPREAD_PLAIN, step) for step in SHUFFLED]


def plain_masked() -> list[str]:
    """Loads and stores lane by lane, under masks."""
    return [_text(text, step) for text in (_EVERY_MASKED_PLAIN, _SPREAD_PLAIN) for step in SHUFFLED]


def _text(text: str, step: int, **more: str) -> str:
    for name, value in more.items():
        text = text.replace(f"${name}", value)
    return text.replace("$S", str(step))


def _load_under_bits(first: int) -> str:
    return f"tc_load_masked$N(p + {first}, tc_opaque$N((tc_mask$N)(read >> {first})))"


def _load_lanes(step: int, width: int, first: int) -> str:
    """A load of the vector ``first`` elements behind ``p``, of the lanes that ``m`` has among every ``step``-th of them."""
    lanes = ", ".join(str(min((first + place) // step, width - 1)) for place in range(width))
    chosen = ", ".join("0" if (first + place) % step else "-1" for place in range(width))
    return f"tc_load_masked$N(p + {first}, TC_SHUFFLE(m, ((tc_lanes$N){{{lanes}}})) & (tc_lanes$N){{{chosen}}})"


def _shuffles(step: int, width: int, load: Callable[[int], str], *, halves: bool = False) -> str:
    """Lines that make of ``r``, the vector at ``p``, every ``step``-th element from there, of others that ``load`` gives, so many elements
    behind ``p``: the last vector ends with the last of them. ``halves``: of 16 bytes each."""
    last = step * (width - 1) + 1 - width
    places = [step * lane for lane in range(width)]  # in ``p``, and then in ``r``
    source = [min(place // width, step - 1) for place in places]
    lines = []
    if halves and step == 2:  # AVX2 moves words between its halves by pairs alone where it takes them from two vectors
        quarter = width // 4
        chosen = [half * 2 * quarter + 2 * lane + of * (width + 1) for half in (0, 1) for of in (0, 1) for lane in range(quarter)]
        order = [part * quarter + lane for part in (0, 2, 1, 3) for lane in range(quarter)]
        both, once = (", ".join(map(str, lanes)) for lanes in (chosen, order))
        return (
            f"  r = TC_SHUFFLE2(r, {load(width - 1)}, ((tc_lanes$N){{{both}}}));\n"
            f"  r = TC_SHUFFLE(r, ((tc_lanes$N){{{once}}}));\n"
        )
    if halves and width <= 8 and (parts := _parts_to_blend(step, width)) is not None:  # AVX2 blends in one instruction
        (_, own), *others = parts
        places = [step * lane if lane in own else 0 for lane in range(width)]
        for first, lanes in others:
            blended = {step * lane - first: width + step * lane - first for lane in lanes}
            chosen = [blended.get(place, place) for place in range(width)]
            lines.append(f"  r = __builtin_shuffle(r, {load(first)}, (tc_lanes$N){{{', '.join(map(str, chosen))}}});\n")
            places = [step * lane - first if lane in lanes else place for lane, place in enumerate(places)]
        return "".join([*lines, f"  r = TC_SHUFFLE(r, ((tc_lanes$N){{{', '.join(map(str, places))}}}));\n"])
    for number in sorted(set(source) - {0}):
        first = min(number * width, last)
        chosen = [width + step * lane - first if source[lane] == number else places[lane] % width for lane in range(width)]
        lines.append(f"  r = __builtin_shuffle(r, {load(first)}, (tc_lanes$N){{{', '.join(map(str, chosen))}}});\n")
        places = [*range(width)]
    return "".join(lines)


def _parts_to_blend(step: int, width: int) -> list[tuple[int, list[int]]] | None:
    """Where vectors begin that have every ``step``-th element, each in a place of its own, and the lanes that each has: the first ones'
    vector at the first element, none that reads beyond the last. None where there are no such of ``step`` vectors."""
    last = step * (width - 1) + 1 - width

    def cover(lanes: Sequence[int], free: AbstractSet[int], count: int) -> list[tuple[int, list[int]]] | None:
        if not lanes or not count:
            return None if lanes else []
        ahead = step * lanes[0]
        for first in range(min(ahead, last), max(-1, ahead - width), -1) if len(lanes) < width else [0]:
            inside = [lane for lane in lanes if step * lane - first in free]
            rest = cover([lane for lane in lanes if lane not in inside], free - {step * lane - first for lane in inside}, count - 1)
            if lanes[0] in inside and rest is not None:
                return [(first, inside), *rest]
        return None

    return cover(range(width), {*range(width)}, step)


def _stores(step: int, width: int) -> str:
    """Lines that store the lanes of ``v`` at every ``step``-th element from ``p`` on, those that ``kept`` has a bit for there."""
    lines = []
    for first in range(0, step * width, width):
        lanes = ", ".join(str((first + place) // step) for place in range(width))
        mask = f"tc_opaque$N((tc_mask$N)(kept >> {first}))"
        lines.append(f"  tc_store_masked$N(p + {first}, TC_SHUFFLE(v, ((tc_lanes$N){{{lanes}}})), {mask});\n")
    return "".join(lines)


def _every_bit(step: int, width: int) -> str:
    """The mask of every ``step``-th bit."""
    return f"{sum(1 << step * lane for lane in range(width)):#x}ull"
