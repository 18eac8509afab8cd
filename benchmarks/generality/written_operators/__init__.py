"""Operators that were written by hand, without a look at any benchmark of tcjit."""
from __future__ import annotations

from generality.written_operators import learning, models, science, simulation
from generality.written_operators.operator import WrittenOperator

__all__ = ["OPERATORS", "WrittenOperator"]

OPERATORS = {
    operator.name: operator for module in (learning, science, models, simulation) for operator in module.OPERATORS
}
