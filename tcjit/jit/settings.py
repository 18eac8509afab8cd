"""Checks of the target and the options that users pass."""
from __future__ import annotations

from typing import Any

from tcjit.errors import ArgumentError
from tcjit.jit import targets
from tcjit.mapping.options import Options


def checked_target(target: Any) -> str | None:
    """The target as given; an ArgumentError where this version has none of that name."""
    if target is None:
        return None
    if not isinstance(target, str):
        raise ArgumentError(f"a target is a str, not {type(target).__name__}", hint='target="cpu", or None for the device of the arguments')
    targets.find(target)
    return target


def checked_options(options: Any) -> Options | None:
    """The options as given; an ArgumentError for anything else than Options."""
    if options is None:
        return None
    if isinstance(options, Options):
        return options
    raise ArgumentError(
        f"options must be tcjit.Options, not {type(options).__name__}", hint="tcjit.Options(...) or tcjit.Options.preset(name)"
    )
