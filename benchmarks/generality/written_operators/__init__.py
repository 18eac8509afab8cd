"""Operators that were written by hand, without a look at any benchmark of tcjit."""
from __future__ import annotations

from generality.written_operators import (
    analysis,
    applications,
    architectures,
    arrays,
    attention,
    blocks,
    decoding,
    estimation,
    evaluation,
    features,
    fitting,
    imaging,
    kernels,
    layers,
    learning,
    likelihoods,
    losses,
    materials,
    mechanics,
    methods,
    models,
    networks,
    numerics,
    packages,
    perception,
    physics,
    recent,
    science,
    selection,
    sequences,
    signals,
    simulation,
    trainable,
    training,
    waves,
)
from generality.written_operators.operator import WrittenOperator

__all__ = ["OPERATORS", "WrittenOperator"]

MODULES = (
    learning, science, models, features, losses, simulation, signals, training, physics,
    networks, sequences, applications, imaging, numerics, blocks, attention, packages,
    architectures, arrays, methods, estimation, selection, evaluation,
    layers, likelihoods, decoding, waves,
    trainable, fitting, perception, materials, kernels, analysis, recent, mechanics,
)  # fmt: skip
OPERATORS = {operator.name: operator for module in MODULES for operator in module.OPERATORS}
