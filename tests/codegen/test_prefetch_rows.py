"""Short rows far apart are asked for early, and nothing else is.

Modules: codegen.prefetch_rows
"""

from __future__ import annotations

import pytest
import torch

import tcjit
from tcjit.mapping.options import Options

WIDE = (300, 2000)


@pytest.mark.parametrize(
    ("body", "shape", "lines"),
    [
        ("X(i,j+40) where j in 0:20", WIDE, 2),
        ("X(i,j+40) where j in 0:64", WIDE, 4),
        ("X(i,j+40) * X(i,j+40) where j in 0:20", WIDE, 2),  # once
        ("X(i,j+40) where j in 0:200", WIDE, 0),  # the processor follows these
        ("X(i,j+40) where j in 0:20", (300, 100), 0),  # half a page at a step: these as well
        ("X(i,2*j) where j in 0:20", WIDE, 0),  # no row
        ("X(i,0) > 0.0 ? X(i,j) : 0.0 where j in 0:20", WIDE, 0),  # what need not be read
    ],
)
def test_rows(body: str, shape: tuple[int, int], lines: int) -> None:
    found = tcjit.define(f"def rows(float(M,N) X) -> (O) {{ O(i,j) = exp({body.replace(' where', ') where', 1)} }}").rows
    x = torch.randn(20 * shape[0], shape[1])
    kernel = found.compile(x, options=Options(tile=()))
    assert kernel.source.count("__builtin_prefetch") == lines
    torch.testing.assert_close(kernel(x), found.compile(x, target="reference")(x))


def test_what_the_second_cache_holds_is_not_asked_for() -> None:
    found = tcjit.define("def rows(float(M,N) X) -> (O) { O(i,j) = exp(X(i,j)) where j in 0:20 }").rows
    assert "__builtin_prefetch" not in found.compile(torch.randn(16, 2000)).source
