"""Adjoints of extremes ask which element equals the extreme: both are computed once, in one kernel, or both were saved, so that a winner is
found whatever the C compiler contracts to fma.
"""
from __future__ import annotations

from typing import Any

import pytest
import torch
from support.mapping import AVX512, program
from torch.autograd import grad

import tcjit
from tcjit.grammar.ast import Const
from tcjit.jit.derivative import derived_adjoint
from tcjit.mapping.options import FUSIONS, Options
from tcjit.mapping.pipeline import build_scop
from tcjit.runtime import host

pytestmark = pytest.mark.host
# the producer is a sum of two products: either may be the fma's, or none
TEXTS = {
    "rows": "def f(float(N,M) A, float(N,M) B, float(N,M) C) -> (Y) { Y(n) max=! A(n, m) * B(n, m) + B(n, m) * B(n, m) + C(n, m) }",
    "least": "def f(float(N,M) A, float(N,M) B, float(N,M) C) -> (Y) { Y(n) min=! A(n, m) * B(n, m) + B(n, m) * B(n, m) + C(n, m) }",
    "named": """def f(float(N,M) A, float(N,M) B, float(N,M) C) -> (Y) {
        E(n, m) = A(n, m) * B(n, m) + B(n, m) * B(n, m) + C(n, m)
        T(n) max=! E(n, m)
        Y(n) = T(n) * 1.0
    }""",
    "windows": """def f(float(N,M) A, float(N,M) B, float(N,M) C) -> (Y) {
        Y(n, w) max=! A(n, w + k) * B(n, w + k) + B(n, w + k) * B(n, w + k) + C(n, w + k) where k in 0:3
    }""",
}


@pytest.fixture(params=["-ffp-contract=fast", "-ffp-contract=off"])
def other_compiler(request: pytest.FixtureRequest) -> Any:
    """What sets the contraction for what is compiled from then on."""

    def change(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(host, "_BASE", tuple(request.param if "contract" in flag else flag for flag in host._BASE))

    return change


@pytest.mark.sample(2)
@pytest.mark.parametrize("ties", ["even", "first"])
@pytest.mark.parametrize(("name", "saved"), [*((name, None) for name in TEXTS), *(("named", one) for one in (["E"], ["T"], ["E", "T"]))])
def test_each_row_has_its_winners(name: str, saved: Any, ties: str, other_compiler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    f = tcjit.define(TEXTS[name], saved=saved, ties=ties).f
    for columns in (7, 64, 133):  # vectors, and what is left over
        generator = torch.Generator().manual_seed(columns)
        a, b, c = (torch.randn(31, columns, generator=generator).requires_grad_() for _ in range(3))
        result = f(a, b, c)
        with monkeypatch.context() as patch:
            other_compiler(patch)
            (shares,) = grad(result, c, torch.ones_like(result))
        # the shares of a row add up to the number of results that it has
        torch.testing.assert_close(shares.sum(1), torch.full((31,), float(result[0].numel())))


@pytest.mark.parametrize("ties", ["even", "first"])
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("fusion", FUSIONS)
def test_no_pass_computes_a_compared_tensor_twice(name: str, ties: str, fusion: str) -> None:
    """Substitution puts values in the place of tensors that one statement reads; these are read by two: the extreme and the comparison.
    Statements of its own for each point of a window compute no point twice."""
    text = derived_adjoint(TEXTS[name], "f", None, {}, ties).text
    shapes = {"A": (64, 4096), "B": (64, 4096), "C": (64, 4096), "d_Y": (64, 4094) if name == "windows" else (64,)}
    scop = build_scop(program(text, shapes), Options(fusion=fusion), target=AVX512, prove="every")
    written = [each.tensor for each in scop.statements]
    (compared,) = {tensor for tensor in written if tensor == "E" or tensor.startswith("e_Y")}
    last = [each.subscripts[-1] for each in scop.statements if each.tensor == compared]
    assert len({sub.value if isinstance(sub, Const) else None for sub in last}) == len(last) and (len(last) == 1 or name == "windows")
