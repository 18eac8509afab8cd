"""Whether the derived adjoint of a region's program gives the gradients that PyTorch defines for its operations, and with which ties."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tcjit.errors import PartitionError

# operations whose results do not depend on their arguments for autograd
_CUT = frozenset(("aten.detach", "aten.detach_copy"))
# operations that give the gradient of an extreme to one element, the first, and that share it among equal ones
_FIRST = frozenset(
    f"aten.{name}"
    for rank in (1, 2, 3)
    for name in (f"max_pool{rank}d", f"max_pool{rank}d_with_indices", f"adaptive_max_pool{rank}d")
)
_EVEN = frozenset(("aten.amax", "aten.amin"))
_INDEXED = frozenset(("aten.max", "aten.min"))
_NORMS = frozenset(("aten.norm", "aten.linalg_vector_norm"))


def ties(nodes: Sequence[Mapping[str, Any]]) -> str:
    """``ties`` of the program of a spec's nodes; a PartitionError says why its adjoint is not what PyTorch defines."""
    found: dict[str, str] = {}
    for node in nodes:
        op, arguments = node["op"], node["arguments"]
        if op in _CUT:
            raise PartitionError(f"{op} has no gradient")
        if op in _FIRST or (op in _INDEXED and arguments.get("dim") is not None):
            found["first"] = op
        elif op in _EVEN or (op in _INDEXED and "other" not in arguments) or (op in _NORMS and _of_extremes(arguments)):
            found["even"] = op
    if len(found) > 1:
        raise PartitionError(f"{found['first']} gives the gradient to the first of equal elements, and {found['even']} shares it")
    return next(iter(found), "even")


def _of_extremes(arguments: Mapping[str, Any]) -> bool:
    return any(isinstance(arguments.get(name), Mapping) and "float" in arguments[name] for name in ("ord", "p"))
