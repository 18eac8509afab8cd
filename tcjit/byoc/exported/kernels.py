"""From a region's spec to the text of its kernel, and what a caller must know to launch it."""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from tcjit.byoc.graph import Node, Value
from tcjit.byoc.regions import identifier
from tcjit.byoc.spec import parse
from tcjit.errors import PartitionError, TCError
from tcjit.jit.define import compile as compile_text
from tcjit.jit.kernel import Kernel
from tcjit.jit.launch import runtime_numbers
from tcjit.jit.launch_record import failure
from tcjit.runtime.tensors import TORCH

GPUS = ("cuda",)  # targets for which there is text, and no library yet


@dataclass(frozen=True)
class Argument:
    """A tensor of a region, contiguous."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements.

        >>> Argument("x", "float32", (2, 3, 4)).strides
        (12, 4, 1)
        """
        found, step = [], 1
        for extent in reversed(self.shape):
            found.append(step)
            step *= max(1, extent)
        return tuple(reversed(found))

    @property
    def plain(self) -> tuple[int, ...]:
        """The shape as kernels have it: one element for a tensor without dimensions."""
        return self.shape or (1,)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype} {list(self.shape)}, strides {list(self.strides)}"


@dataclass(frozen=True)
class BoundConstant:
    """A constant of the model, and the tensor of a region that it is."""

    constant: str
    argument: Argument


@dataclass(frozen=True)
class Exported:
    """A region with a kernel of its own.

    The kernel is given the outputs, then what ``order`` says: inputs, then constants, counted from 0; beside those ``numbers``, 64-bit
    patterns, and ``workspace`` bytes. ``failures`` says what its results 1, 2 and so on mean. ``launches`` are a GPU's: symbol, blocks,
    threads of a block, bytes of shared memory. ``nodes`` is what it computes in plain ATen, as its spec has it.
    """

    name: str
    target: str
    symbol: str
    source: str
    inputs: tuple[Argument, ...]
    constants: tuple[BoundConstant, ...]
    outputs: tuple[Argument, ...]
    order: tuple[int, ...]
    numbers: tuple[int, ...]
    workspace: int
    failures: tuple[str, ...]
    launches: tuple[tuple[str, tuple[int, ...], int, int], ...] = ()
    nodes: tuple[Mapping[str, Any], ...] = ()

    @property
    def file(self) -> str:
        """The name of its source."""
        return f"{self.symbol}.{'cu' if self.target in GPUS else 'c'}"


def exported(call: Node, held: Mapping[Value, str]) -> Exported:
    """The kernel behind a ``tcjit.call``; ``held`` are the constants of the model, with their symbols.

    Raises PartitionError, which says why, for a region that has none: another backend's, one of unknown shapes, one without inputs.
    """
    spec = parse(str(call.arguments["spec"]))
    name, given = identifier(spec["name"]), call.inputs
    if spec["backend"] != "tcjit":
        raise PartitionError(f"{name} is run by {spec['backend']}, which has no C source")
    words = [each["name"] for each in (*spec["inputs"], *spec["outputs"])]
    kinds = [_argument(name, value, word) for value, word in zip((*given, *call.outputs), words, strict=True)]
    taken, results = kinds[: len(given)], kinds[len(given) :]
    inputs = [number for number, value in enumerate(given) if value not in held]
    constants = [number for number, value in enumerate(given) if value in held]
    if not inputs:
        raise PartitionError(f"{name} has no inputs")
    devices = {value.type.device.partition(":")[0] for value in given if value.type is not None}
    target = next(iter(devices)) if len(devices) == 1 else "no single device"
    if target != "cpu" and target not in GPUS:
        raise PartitionError(f"{name} is for {target}", hint="a model on the CPU")
    metas = [torch.empty(kind.plain, dtype=TORCH[kind.dtype], device="meta") for kind in taken]
    kernel = _compiled(name, spec["code"], metas, target)
    numbers = runtime_numbers(kernel.signature, kernel.record, metas, {})
    _agree(name, kernel, results)
    place = {number: at for at, number in enumerate([*inputs, *constants])}
    return Exported(
        name,
        target,
        kernel.record["symbol"],
        kernel.source,
        tuple(taken[number] for number in inputs),
        tuple(BoundConstant(held[given[number]], taken[number]) for number in constants),
        tuple(results),
        tuple(place[number] for number in range(len(given))),
        tuple(numbers),
        int(kernel.record["workspace"]),
        tuple(failure(kernel.record, flag).what for flag in range(1, len(kernel.record["sites"]) + 1)),
        tuple((str(symbol), tuple(grid), int(threads), int(shared)) for symbol, grid, threads, shared in kernel.record["launches"]),
        tuple(spec["nodes"]),
    )


def shared(regions: Sequence[Exported]) -> list[Exported]:
    """The same, each kernel under a symbol that no other has; regions with one text have one kernel, the first one's."""
    symbols: dict[tuple[str, str], str] = {}
    found = []
    for region in regions:
        symbol = symbols.setdefault((region.target, region.source), f"tc_{region.name}")
        found.append(_renamed(region, symbol))
    return found


def _renamed(region: Exported, symbol: str) -> Exported:
    own = [launch[0] for launch in region.launches] or [region.symbol]
    names = {old: symbol + old.removeprefix(region.symbol) for old in own}
    text = re.sub(r"\b(?:" + "|".join(map(re.escape, names)) + r")(?=\()", lambda found: names[found[0]], region.source)
    launches = tuple((names[old], grid, threads, memory) for old, grid, threads, memory in region.launches)
    return replace(region, symbol=symbol, source=text, launches=launches)


def _compiled(name: str, code: Mapping[str, Any], metas: Sequence[torch.Tensor], target: str) -> Kernel:
    try:
        return compile_text(code["text"], code["entry"], *metas, target=target)
    except KeyError as error:
        raise PartitionError(f"the spec of {name} has no {error} among its code") from None
    except TCError as error:
        raise PartitionError(f"{name} cannot be compiled for its shapes: {error.what}") from error


def _argument(region: str, value: Value, name: str) -> Argument:
    kind = value.type
    if kind is None or kind.shape is None or not kind.known:
        raise PartitionError(f"{region}: the shape of %{value.name} is not known", hint="example inputs that give it")
    if kind.dtype not in TORCH:
        raise PartitionError(f"{region}: %{value.name} is of dtype {kind.dtype}, which kernels do not have")
    return Argument(name, kind.dtype, tuple(extent for extent in kind.shape if extent is not None))


def _agree(name: str, kernel: Kernel, results: Sequence[Argument]) -> None:
    """The kernel's results are the region's: as many, of the same dtypes and numbers of elements."""
    made = [(returned["dtype"], prod(returned["shape"])) for returned in kernel.record["returns"]]
    if made != [(result.dtype, prod(result.shape)) for result in results]:
        raise PartitionError(f"{name}: the kernel computes {made}, and the region {', '.join(map(str, results))}")
