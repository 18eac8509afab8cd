"""Calling: from a text to callables on torch tensors."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

# the function hides the module of its name, which is reached by its full path; imported here, so that nothing rebinds it later
from tcjit.jit.define import define

if TYPE_CHECKING:
    from tcjit.jit.call import Function
    from tcjit.jit.kernel import Kernel

__all__ = ["Function", "Kernel", "define"]


def __getattr__(name: str) -> Any:
    """The names that need torch."""
    if name == "Function":
        from tcjit.jit.call import Function

        return Function
    if name == "Kernel":
        from tcjit.jit.kernel import Kernel

        return Kernel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
