"""Regions as TC programs: the rules by family of operations, and what puts their statements together."""
from __future__ import annotations

from tcjit.byoc.lower import (
    activations,
    attention,
    contractions,
    convolutions,
    elementwise,
    indexing,
    losses,
    normalisation,
    pooling,
    reductions,
    views,
)
from tcjit.byoc.lower.rules import RULES, program, refusal

__all__ = ["FAMILIES", "RULES", "program", "refusal"]

# importing them fills the table of rules
FAMILIES = (elementwise, activations, reductions, normalisation, contractions, convolutions, pooling, views, indexing, attention, losses)
