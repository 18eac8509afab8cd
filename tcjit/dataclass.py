"""Dataclasses that a process makes in a third of the time: all methods but ``__init__`` are the same functions for every class.

The standard library writes and compiles the text of six methods for each frozen class, in over 1 ms, and an ``__init__`` that sets every
field by ``object.__setattr__``; there are some 200 such classes between ``import tcjit`` and a first kernel. What they give up is an error
at run time where a field is assigned to: in the compiler's own code a type checker finds that. What users make or are given, and
what ``torch.compile`` traces, is of the standard library.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]


def _dataclass(cls: Any = None, /, *, frozen: bool = False, eq: bool = True, repr: bool = True, **options: bool) -> Any:
    """As ``dataclasses.dataclass``, with its parameters; ``frozen`` classes have a hash, and no field of theirs may be assigned to."""

    def decorate(cls: Any) -> Any:
        own = cls.__dict__
        dataclasses.dataclass(cls, repr=False, eq=False, **options)
        fields = dataclasses.fields(cls)
        if repr and "__repr__" not in own:
            cls.__repr__ = _representation([field.name for field in fields if field.repr])
        if eq:
            values = _values([field.name for field in fields if field.compare])
            if "__eq__" not in own:
                cls.__eq__ = _equality(values)
            if own.get("__hash__") is None:
                cls.__hash__ = _hash(values) if frozen else None
        return cls

    return decorate if cls is None else decorate(cls)


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """The fields of an instance that make it what it is."""
    if len(names) > 1:
        return attrgetter(*names)  # gives a tuple
    return lambda instance: tuple(getattr(instance, name) for name in names)


def _equality(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], bool]:
    def __eq__(self: Any, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _representation(names: list[str]) -> Callable[[Any], str]:
    @recursive_repr()
    def __repr__(self: Any) -> str:
        return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return __repr__


if TYPE_CHECKING:  # which knows this name, and what it means
    from dataclasses import dataclass
else:
    dataclass = _dataclass
