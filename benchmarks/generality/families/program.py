"""What a program of several statements is: its text, its PyTorch form, and how much it does."""
from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from generality.operators import Work, size_of

_PARAMETER = re.compile(r"(\w+)\(([\w,]+)\) (\w+)")


@dataclass(frozen=True)
class Program:
    """A def's parameters and statements, what PyTorch writes for it, operations and elements of results as texts over its sizes.

    ``bounds``: the size below which the values of an index tensor are, and ``least`` the least values of sizes that cannot be 2.
    """

    parameters: str
    statements: str
    flops: str
    results: str
    reference: Callable[..., Any]
    returns: str = "Y"
    bounds: dict[str, str] = field(default_factory=dict)
    least: dict[str, int] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return f"def program({self.parameters}) -> ({self.returns}) {{\n  {self.statements}\n}}"

    @property
    def tensors(self) -> list[tuple[str, str, list[str]]]:
        """Type, name and dimensions of the parameters."""
        return [(dtype, name, dims.split(",")) for dtype, dims, name in _PARAMETER.findall(self.parameters)]

    @property
    def sizes(self) -> list[str]:
        return list(dict.fromkeys(dim for _, _, dims in self.tensors for dim in dims if not dim.isdigit()))

    def work(self, sizes: dict[str, float]) -> Work:
        def value(text: str) -> float:
            return float(eval(text, {"__builtins__": {}}, sizes))

        moved = sum(size_of(dtype) * math.prod(value(dim) for dim in dims) for dtype, _, dims in self.tensors)
        return Work(value(self.flops), moved + 4 * value(self.results))
