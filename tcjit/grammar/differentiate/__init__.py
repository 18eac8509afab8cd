"""Derivatives of defs as defs: ``differentiate`` in reverse mode, ``tangent`` in forward mode."""
from tcjit.grammar.differentiate.adjoint import AdjointDef, differentiate
from tcjit.grammar.differentiate.save import contractions, returning, statistics
from tcjit.grammar.differentiate.size_hints import SizeHints
from tcjit.grammar.differentiate.tangent import TangentDef, tangent

__all__ = ["AdjointDef", "SizeHints", "TangentDef", "contractions", "differentiate", "returning", "statistics", "tangent"]
