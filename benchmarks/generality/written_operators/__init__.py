"""Operators that were written by hand, without a look at any benchmark of tcjit."""
from __future__ import annotations

from generality.written_operators import (
    applications,
    imaging,
    learning,
    losses,
    models,
    networks,
    numerics,
    physics,
    science,
    simulation,
    training,
)
from generality.written_operators.operator import WrittenOperator

__all__ = ["OPERATORS", "WrittenOperator"]

MODULES = (learning, science, models, losses, simulation, training, physics, networks, applications, imaging, numerics)
OPERATORS = {operator.name: operator for module in MODULES for operator in module.OPERATORS}
