"""Operators that were written by hand, without a look at any benchmark of tcjit."""
from __future__ import annotations

from generality.written_operators import learning, science

OPERATORS = {operator.name: operator for operator in (*learning.OPERATORS, *science.OPERATORS)}
