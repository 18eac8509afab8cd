"""Derivatives of defs as defs: ``differentiate`` in reverse mode, ``tangent`` in forward mode."""
from tcjit.grammar.differentiate.adjoint import Adjoint, differentiate
from tcjit.grammar.differentiate.tangent import Tangent, tangent

__all__ = ["Adjoint", "Tangent", "differentiate", "tangent"]
