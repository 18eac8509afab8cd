"""What the partitioner asks of a model, whatever it came as: to be read as Blocks, and written back from Blocks."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from tcjit.byoc.graph import Block, Value

if TYPE_CHECKING:
    import torch


class Adapter(Protocol):
    """A model opened for rewriting; the user's own is never changed.

    ``block`` is the outermost one; those of ``if`` and loops hang on the nodes that have them. ``form`` is ``torchscript`` or ``fx``.
    """

    form: str
    block: Block

    def read(self, value: Value) -> torch.Tensor:
        """What a constant of the model holds; raises PartitionError where the value is none."""
        ...

    def constant(self, tensor: torch.Tensor, name: str) -> Value:
        """A new constant of the model, a buffer, under a name made unique."""
        ...

    def realise(self, block: Block) -> Callable[..., Any]:
        """A new model that computes exactly this block."""
        ...
