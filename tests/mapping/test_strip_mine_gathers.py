"""Reductions that gather at quotients of their indices.

Modules: mapping.passes.strip_mine_gathers
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.mapping import program

import tcjit
from tcjit.errors import GatherError, VerifyError
from tcjit.mapping.extract import extract
from tcjit.mapping.passes.strip_mine_gathers import strip_mine_gathers
from tcjit.mapping.verify_assignments import verify_assignments

SCORES = """def f(float(T,D) Q, float(N,D) K, int64(T/16,S) B) -> (P) {
    P(t,s,j) +=! Q(t,d) * K(16 * B(t/16,s) + j, d) where t in 0:T, j in 0:16
}"""


def test_blocks_share_what_they_gather() -> None:
    before = extract(program(SCORES, {"Q": (96, 20), "K": (80, 20), "B": (6, 3)}))
    after = strip_mine_gathers(before)
    verify_assignments("strip_mine_gathers", before, after)
    (a,) = after.assignments
    assert a.ranges["t"] == (0, 16) and a.ranges["t_block"] == (0, 6) and "B(t_block, s)" in a.show()
    wrong = (replace(a, bounds=tuple((name, lower, 5 if name == "t_block" else upper) for name, lower, upper in a.bounds)),)
    with pytest.raises(VerifyError, match="strip_mine_gathers"):
        verify_assignments("strip_mine_gathers", before, replace(after, assignments=wrong, replaced=(wrong,)))


OTHERS = [
    SCORES.replace("B(t/16,s)", "B(t % 6,s)"),  # no quotient
    SCORES.replace("16 * B(t/16,s) + j, d) where", "t/16 + j, d) where s in 0:3,"),  # no gather
]


@pytest.mark.parametrize("text", OTHERS)
def test_what_stays(text: str) -> None:
    before = extract(program(text, {"Q": (96, 20), "K": (80, 20), "B": (6, 3)}))
    assert strip_mine_gathers(before).assignments == before.assignments


def test_numbers_and_what_is_outside() -> None:
    g = torch.Generator().manual_seed(0)
    q, k, blocks = torch.randn(96, 20, generator=g), torch.randn(80, 20, generator=g), torch.randint(0, 5, (6, 3), generator=g)
    f = tcjit.define(SCORES).f
    rows = k.view(5, 16, 20)[blocks].repeat_interleave(16, 0)
    torch.testing.assert_close(f(q, k, blocks), torch.einsum("td,tsjd->tsj", q, rows), rtol=1e-4, atol=1e-5)
    assert any("P: loops" in line for line in f.compile(q, k, blocks).resources["reductions"])
    blocks[4, 1] = 5
    with pytest.raises(GatherError):
        f(q, k, blocks)
