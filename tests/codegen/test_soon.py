"""What rounds ask for before it is needed.

Modules: codegen.trip_counts
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from support.mapping import AVX512, program

from tcjit.codegen.c import emit_c
from tcjit.codegen.dialect import C
from tcjit.grammar.dynamic import generalise
from tcjit.grammar.front import read
from tcjit.mapping.machine import Machine
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import map_program

GROUPS = """def gconv(float(N,G,C,H,W) I, float(G,F,C,KH,KW) W1, float(G,F) B) -> (O) {
    O(n,g,f,h,w) +=! I(n,g,c,h + kh,w + kw) * W1(g,f,c,kh,kw)
    O(n,g,f,h,w) = O(n,g,f,h,w) + B(g,f)
}"""
SHAPES = {"I": (32, 32, 16, 14, 14), "W1": (32, 16, 16, 3, 3), "B": (32, 16)}
CALL = re.compile(r"(tc_soon(?:_written)?)\(&(\w+)\[(.+)\], (\d+)\);")


def asked(text: str = GROUPS, shapes: dict[str, tuple[int, ...]] = SHAPES, machine: Machine = AVX512) -> list[tuple[str, ...]]:
    """Function, tensor, place and lines of each request."""
    return CALL.findall(emit_c(map_program(program(text, shapes), Options(nest=False), machine), C, machine, checked=True).text)


def test_the_next_image_s_group_and_this_one_s_results() -> None:
    read_, written = asked()
    assert read_[:2] == ("tc_soon", "I") and written[:2] == ("tc_soon_written", "O")


@pytest.mark.parametrize("number", [0, 1])
def test_requests_of_a_round_are_for_all_of_its_part_and_for_little_else(number: int) -> None:
    """The places are evaluated as C would, for every round and each step of its first loop."""
    part, whole = ((16 * 14 * 14), 32 * 32 * 16 * 14 * 14) if number == 0 else (16 * 12 * 12, 32 * 32 * 16 * 12 * 12)
    _, _, place, lines = asked()[number]
    python = re.sub(r"\((c\d+) < (\d+) \? (\d+) : 0\)", r"(\3 if \1 < \2 else 0)", place)
    steps = 12  # rows
    for n, g in ((0, 0), (3, 7), (31, 30), (31, 31)):
        places = [eval(python, {"c0": n, "c1": g, "c2": step}) for step in range(steps)]
        round_ = 32 * n + g + (number == 0 and g < 31)
        assert places[0] == round_ * part, "where the part begins"
        assert {b - a for a, b in zip(places, places[1:])} == {int(lines) * 16}, "each step goes on where the one before ended"
        assert part <= steps * int(lines) * 16 < part + steps * 16
        assert round_ * part + part <= whole


def test_a_part_that_begins_inside_is_asked_for_from_there() -> None:
    """Rows from the twentieth on: as many lines as of the same rows from the first on."""
    rows = GROUPS.replace("kw)\n", "kw) where h in 0:12\n").replace("B(g,f)\n", "B(g,f) where h in 0:12\n")
    (_, _, place, lines), _ = asked(rows, {**SHAPES, "I": (32, 32, 16, 34, 14)})
    (_, _, later, same), _ = asked(rows.replace("h + kh", "h + kh + 20"), {**SHAPES, "I": (32, 32, 16, 34, 14)})
    assert "+ 280 " in later and "+ 280 " not in place and same == lines


@pytest.mark.parametrize(
    "other",
    [
        {"machine": replace(AVX512, cache_bytes=1 << 26)},  # the tensors stay in cache
        {"machine": replace(AVX512, cache_bytes=1 << 16)},  # a part is no small part of it
        {"shapes": {**SHAPES, "W1": (32, 16, 16, 1, 1)}},  # little is computed for each line
        {
            "text": "def bmm(float(B,N,K) X, float(B,M,K) Y) -> (Z) { Z(b,n,m) +=! X(b,n,k) * Y(b,m,k) }",
            "shapes": {"X": (500, 26, 72), "Y": (500, 26, 72)},
        },
        {"text": "def scale(float(N,M) X) -> (Y) { Y(n,m) = 2 * X(n,m) }", "shapes": {"X": (4096, 1024)}},
    ],
    ids=["near", "large", "light", "batches", "copy"],
)
def test_nothing_is_asked_for_where_it_would_not_pay(other: dict[str, object]) -> None:
    assert not asked(**other)  # type: ignore[arg-type]


def test_the_last_round_of_a_size_that_only_the_call_knows() -> None:
    sizes = {"N": 64, "G": 32, "C": 16, "F": 16, "H": 14, "W": 14, "KH": 3, "KW": 3}
    made = map_program(generalise(read(GROUPS)[0], sizes, {}, {"N": (33, 64)}), Options(nest=False), AVX512)
    (first, _) = CALL.findall(emit_c(made, C, AVX512, checked=True).text)
    assert first[1] == "I" and "< 31 ? 3136 : 0" in first[2]
    sizes |= {"G": 1, "C": 64, "F": 64}
    made = map_program(generalise(read(GROUPS)[0], sizes, {}, {"N": (33, 64)}), Options(nest=False), AVX512)
    (first, _) = CALL.findall(emit_c(made, C, AVX512, checked=True).text)
    assert first[2].endswith("(c0 < tc_size_N - 1 ? 12544 : 0)"), "nothing beyond the tensor"
