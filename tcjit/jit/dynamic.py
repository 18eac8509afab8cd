"""Dynamic sizes of a def, and the range of values that each of its kernels serves.

A size is dynamic where the caller says so, where torch.compile has a symbol for it, and by itself once calls brought a ninth value of it; a
sixty-fifth where the dynamic kernel turns out to compute some reduction in plain loops that fixed ones have a nest for. A dynamic kernel
serves the values between two limits, one four times the other: a hundred values cost a few compilations, and what a kernel is made for is
never far from what it is used for.
"""
from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence

from tcjit.jit import kernel
from tcjit.jit.kernel_cache import LoadedBinary
from tcjit.jit.launch import Key
from tcjit.jit.signature import Signature, evaluate

FIXED_VALUES = 8  # values of a size that get kernels of their own before it is dynamic, as many as torch.compile's recompile limit
FIXED_VALUES_SLOW = 64  # the same where a dynamic kernel lacks nests that those have: it may take many times as long
UNWARNED_SHAPES = 16  # distinct compiled shapes of a def before a warning
OWN_VALUES = 1  # values up to here have kernels of their own: a loop that runs once is none, as a product with a vector is another one
FIRST_LIMIT = 8  # values up to here share a kernel
FACTOR = 4  # greatest over least value of the others
LARGEST = 1 << 30


def limits(value: int) -> tuple[int, int] | None:
    """The range of values that one kernel serves, by a value in it; None for values with kernels of their own.

    >>> limits(1), limits(2), limits(33)
    (None, (2, 8), (33, 128))
    """
    least, greatest = OWN_VALUES + 1, FIRST_LIMIT
    while greatest < value <= LARGEST:
        least, greatest = greatest + 1, greatest * FACTOR
    return (least, greatest) if least <= value <= greatest else None


class SizeHistory:
    """The sizes of a def's calls so far, which decide what becomes dynamic.

    Its methods are called under the lock of a key; a lost race costs a kernel.
    """

    def __init__(self, signature: Signature, declared: Sequence[str]) -> None:
        self.signature = signature
        self.declared = tuple(declared)
        self.found: dict[str, None] = {}
        self._seen: dict[str, dict[int, None]] = {size: {} for size in signature.sizes if size not in signature.specialised}
        self._shapes: dict[tuple[tuple[int, ...], ...], None] = {}
        self._nests = 0
        self._fixed_values = FIXED_VALUES

    def symbolic(self, size: str) -> None:
        """Make a size dynamic for which a tracer has a symbol."""
        if size in self._seen:
            self.found[size] = None

    def see(self, values: Mapping[str, int]) -> None:
        """Count the sizes of a call with new shapes; one with more values than get kernels of their own becomes dynamic."""
        for size, seen in self._seen.items():
            if len(seen) < self._fixed_values:
                seen[values[size]] = None
            elif values[size] not in seen:
                self.found[size] = None

    def refuse(self, why: str) -> None:
        """Make all sizes static again, because a dynamic kernel cannot be compiled; a warning where the caller asked for one."""
        for size in self.found:
            self._seen.pop(size, None)
        self.found = {}
        if self.declared:
            names, self.declared = ", ".join(self.declared), ()
            warnings.warn(f"{self.signature.name}() gets a kernel for every value of {names}: {why}", stacklevel=_caller())

    def limits_of(self, values: Mapping[str, int], all_of_them: bool) -> dict[str, tuple[int, int]]:
        """The ranges of a call's dynamic sizes: of those declared, or also of those that became dynamic by themselves."""
        names = [*self.declared, *self.found] if all_of_them else list(self.declared)
        return {size: served for size in self.signature.sizes if size in names and (served := limits(values[size])) is not None}

    def compiled(self, key: Key, nests: int) -> None:
        """Count a compiled kernel, which has so many ``nests``; warns once when there are more than ``UNWARNED_SHAPES``."""
        if not key.dynamic:
            self._nests = max(self._nests, nests)
        elif nests < self._nests:
            self.found, self._fixed_values = {}, FIXED_VALUES_SLOW
        before = len(self._shapes)
        if before <= UNWARNED_SHAPES:
            self._shapes[key.shapes] = None
        if before == UNWARNED_SHAPES < len(self._shapes):
            fixed = [size for size in self.signature.sizes if size not in self.signature.specialised]
            hint = f"define(..., dynamic={fixed}) would compile a few for all" if fixed else "its sizes are part of the code"
            warnings.warn(f"{self.signature.name}() has been compiled for more than {UNWARNED_SHAPES} shapes; {hint}", stacklevel=_caller())


def instance(text: str, signature: Signature, key: Key, binary: LoadedBinary) -> kernel.Kernel | None:
    """A dynamic kernel for the shapes of one key, None where it does not serve them; the ShapeErrors of these shapes."""
    sizes = _values(signature, key)
    if not binary.record["total"]:
        kernel.specialised(text, signature, key)
        from tcjit.mapping.isl import holds  # needs isl

        names, positions, facts = binary.record["context"]
        if not holds(facts, {name: sizes[signature.sizes[position]] for name, position in zip(names, positions)}):
            return None
    known = {**sizes, **dict(key.scalars)}
    shapes = iter(key.shapes)
    positions = {str(number): sizes[size] for number, size in enumerate(signature.sizes)}
    workspace = [evaluate(last, positions) for kind, name, last in binary.record["numbers"] if (kind, name) == ("value", "workspace")]
    record = {
        **binary.record,
        "params": [{**p, "shape": list(next(shapes))} if p["shape"] is not None else p for p in binary.record["params"]],
        "returns": [{**r, "shape": list(shape)} for r, shape in zip(binary.record["returns"], signature.shapes(known))],
        "workspace": workspace[0] if workspace else binary.record["workspace"],
    }
    return kernel.compiled(text, signature, key, binary._replace(record=record))


def _caller() -> int:
    """The level of the user's own line, for a warning."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "tcjit":
        frame, level = frame.f_back, level + 1
    return level


def _values(signature: Signature, key: Key) -> dict[str, int]:
    dims = [param.dims for param in signature.params if param.dims]
    return {dim: extent for named, shape in zip(dims, key.shapes) for dim, extent in zip(named, shape) if isinstance(dim, str)}
