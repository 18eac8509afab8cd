"""Regions as TC programs: the rules by family of operations, and what puts their statements together."""
from __future__ import annotations

from tcjit.byoc.lower import (
    activation_gradients,
    activations,
    attention,
    contractions,
    convolutions,
    elementwise,
    indexing,
    loss_gradients,
    losses,
    normalisation,
    normalisation_gradients,
    pooling,
    pooling_gradients,
    reductions,
    views,
)
from tcjit.byoc.lower.rules import RULES, program, refusal

__all__ = ["FAMILIES", "GRADIENTS", "RULES", "program", "refusal"]

# importing them fills the table of rules
FAMILIES = (elementwise, activations, reductions, normalisation, contractions, convolutions, pooling, views, indexing, attention, losses)
GRADIENTS = (activation_gradients, normalisation_gradients, pooling_gradients, loss_gradients)
