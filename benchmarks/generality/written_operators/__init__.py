"""Operators that were written by hand, without a look at any benchmark of tcjit."""
from __future__ import annotations

from generality.written_operators import learning, models, physics, science, simulation, training
from generality.written_operators.operator import WrittenOperator

__all__ = ["OPERATORS", "WrittenOperator"]

OPERATORS = {
    operator.name: operator for module in (learning, science, models, simulation, training, physics) for operator in module.OPERATORS
}
