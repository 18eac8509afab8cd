"""Arguments of public functions: one decorator that turns whatever does not fit into an ArgumentError, as a call of a def does."""
from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from tcjit.errors import ArgumentError, TCError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Kind = Any  # a type, None, or a tuple of these; `Callable`, which is neither to mypy
PATH = (str, os.PathLike)


def brief(value: object) -> str:
    """``repr`` on one line for a message: cut where it is long, the type where it fails (integers of thousands of digits, tensors)."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # whatever a stranger's __repr__ raises
        return _article(type(value).__name__)
    return text if len(text) <= 80 else text[:77] + "..."


def checked(**kinds: Kind) -> Callable[[F], F]:
    """Check how a function is called: the number and names of its arguments, and those named here by type.

    An ``int`` is also a ``float``, a ``bool`` is no ``int``, and None stands for itself.

    >>> @checked(name=str, times=(int, None))
    ... def greet(name, times=None):
    ...     return name * (times or 1)
    >>> greet("ab", times=2)
    'abab'
    >>> greet(3)
    Traceback (most recent call last):
    tcjit.errors.ArgumentError: greet(): name must be a str, not an int: 3
    try: help(greet)
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        name = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            try:
                bound = signature.bind(*args, **named).arguments
            except TypeError as error:
                raise ArgumentError(f"{name}(): {error}", hint=_hint(name)) from None
            for argument, kind in kinds.items():
                if argument not in bound:
                    continue
                values = bound[argument] if signature.parameters[argument].kind is inspect.Parameter.VAR_POSITIONAL else (bound[argument],)
                if wrong := [value for value in values if not fits(value, kind)]:
                    value = wrong[0]
                    what = f"{name}(): {argument} must be {described(kind)}, not {_article(type(value).__name__)}: {brief(value)}"
                    raise ArgumentError(what, hint=_hint(name))
            return function(*args, **named)

        return call  # type: ignore[return-value]

    return decorate


def settings(kind: type[T]) -> type[T]:
    """For a dataclass of settings that checks its fields: whatever else its constructor raises is an ArgumentError, too."""
    initialise = kind.__init__

    @functools.wraps(initialise)
    def checked_init(self: T, *args: Any, **named: Any) -> None:
        try:
            initialise(self, *args, **named)
        except TCError:
            raise
        except Exception as error:  # an unknown field, or a value that cannot even be compared
            what = str(error).replace(f"{kind.__name__}.__init__()", f"{kind.__name__}()")
            raise ArgumentError(what if kind.__name__ in what else f"{kind.__name__}(): {what}", hint=_hint(kind.__name__)) from error

    kind.__init__ = checked_init  # type: ignore[method-assign, assignment]
    return kind


def fits(value: object, kind: Kind) -> bool:
    """Whether a value is of a kind."""
    if isinstance(kind, tuple):
        return any(fits(value, one) for one in kind) and (os.PathLike not in kind or value is None or _is_path(value))
    if kind is None:
        return value is None
    if kind in (int, float) and isinstance(value, bool):
        return False
    if kind is float and isinstance(value, int):
        return abs(value) <= sys.float_info.max
    return isinstance(value, kind)


def _is_path(value: Any) -> bool:
    """Whether the system can be asked for a file of this name."""
    try:
        return "\0" not in os.fspath(value) and bool(os.fsencode(value))
    except (TypeError, ValueError):
        return False


def described(kind: Kind) -> str:
    """A kind in words: ``a str, a PathLike or None``."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    words = ["None" if one is None else _article(one.__name__) for one in kinds]
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}" if noun != "NoneType" else "None"


def _hint(name: str) -> str:
    return f"help({name})"
