"""Ranges of values, found by running a model on examples: an observer after each value of interest, on a copy of the block."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tcjit.byoc.adapter import Adapter
from tcjit.byoc.graph import Block, Node, Value
from tcjit.byoc.passes.editing import rebuilt, renamed
from tcjit.errors import PartitionError

METHODS = ("minmax", "percentile", "entropy")
BINS = 2048
_LEVELS = 256

_LIBRARY: Any = torch.library.Library("tcjit", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("observe(Tensor x, str key) -> Tensor")
_WATCHING: dict[str, Callable[[torch.Tensor], None]] = {}


def _observe(x: torch.Tensor, key: str) -> torch.Tensor:
    _WATCHING[key](x)
    return x.clone()


_LIBRARY.impl("observe", _observe, "CompositeExplicitAutograd")
_LIBRARY.impl("observe", lambda x, key: torch.empty_like(x), "Meta")


@dataclass(frozen=True)
class Calibration:
    """How ranges are found: ``samples`` are tuples of a model's arguments. ``minmax`` covers all values; ``percentile`` leaves out the part
    of them that lies outside the given percentile, at both ends together; ``entropy`` cuts off where 256 levels tell the distribution
    of the values best, after Kullback and Leibler (1951).
    """

    samples: Sequence[Sequence[Any]]
    method: str = "minmax"
    percentile: float = 99.99

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise PartitionError(f"calibration by {self.method!r}", hint=f"known: {', '.join(METHODS)}")
        if not 50 < self.percentile <= 100:
            raise PartitionError(f"percentile {self.percentile!r}", hint="above 50, at most 100")
        tuples = isinstance(self.samples, (list, tuple)) and all(isinstance(each, (list, tuple)) for each in self.samples)
        if not tuples or not self.samples:
            raise PartitionError("calibration needs samples", hint="a list of tuples, each the arguments of one call")

    def ranges(self, block: Block, adapter: Adapter, values: Iterable[Value]) -> dict[Value, tuple[float, float]]:
        """The range of each value; none of those that never got a number. Raises PartitionError where a value is not finite."""
        wanted = list(dict.fromkeys(values))
        extremes: dict[Value, tuple[float, float]] = {}

        def widen(value: Value, x: torch.Tensor) -> None:
            if not x.numel():
                return
            low, high = (float(each) for each in torch.aminmax(x.detach().float()))
            if not (abs(low) < float("inf") and abs(high) < float("inf")):
                raise PartitionError(f"%{value.name} has values that are not finite", hint="look at the samples of the calibration")
            before = extremes.get(value, (low, high))
            extremes[value] = (min(low, before[0]), max(high, before[1]))

        self._watch(block, adapter, wanted, widen)
        if self.method == "minmax":
            return extremes
        counts = {value: torch.zeros(BINS, dtype=torch.float64) for value in extremes}

        def count(value: Value, x: torch.Tensor) -> None:
            low, high = extremes[value]
            counts[value] += torch.histc(x.detach().float().cpu(), BINS, low, high).double() if high > low else 0

        self._watch(block, adapter, list(extremes), count)
        chosen = _inner if self.method == "percentile" else _telling
        return {value: chosen(counts[value], *extremes[value], self.percentile) for value in extremes}

    def _watch(self, block: Block, adapter: Adapter, values: Sequence[Value], see: Callable[[Value, torch.Tensor], None]) -> None:
        """Runs the model on the samples; ``see`` is told every tensor that a value is."""
        keys = {value: str(number) for number, value in enumerate(values)}
        _WATCHING.update({keys[value]: (lambda x, value=value: see(value, x)) for value in values})  # type: ignore[misc]
        try:
            made: Any = adapter.realise(_observed(block, keys, set(), {}))
            run = made.module() if isinstance(made, torch.export.ExportedProgram) else made
            with torch.no_grad():
                for sample in self.samples:
                    run(*sample)
        finally:
            _WATCHING.clear()
            _restore(block)


def _observed(block: Block, keys: Mapping[Value, str], seen: set[Value], around: Mapping[Value, Value]) -> Block:
    """A copy of a block whose values go through observers on their way to all uses; ``seen`` are those that have one already, ``around``
    says what those of the blocks around have become."""
    now = dict(around)
    nodes: list[Node] = []

    def watch(values: Iterable[Value]) -> None:
        for value in values:
            if value in keys and value not in seen:
                seen.add(value)
                found = Value(f"{value.name}_seen", value.type)
                nodes.append(Node("tcjit.observe", "default", {"x": value, "key": keys[value]}, (found,)))
                now[value] = found

    watch(block.inputs)
    for node in block.nodes:
        arguments = renamed(node.arguments, lambda value: now.get(value, value)) if any(v in now for v in node.inputs) else node.arguments
        nodes.append(replace(node, arguments=arguments, blocks=tuple(_observed(each, keys, seen, now) for each in node.blocks)))
        watch(node.outputs)
    return rebuilt(block, nodes, tuple(now.get(value, value) for value in block.outputs))


def _restore(block: Block) -> None:
    """Gives the values of a block back to its own nodes, from a copy."""
    for node in block.nodes:
        for each in node.blocks:
            _restore(each)
    rebuilt(block, block.nodes)


def _inner(counts: torch.Tensor, low: float, high: float, percentile: float) -> tuple[float, float]:
    """The range without the outermost values, at the end where there are fewer first."""
    allowed, first, last = float(counts.sum()) * (1 - percentile / 100), 0, len(counts) - 1
    while first < last:
        step = min(float(counts[first]), float(counts[last]))
        if step > allowed:
            break
        allowed -= step
        first, last = (first + 1, last) if float(counts[first]) <= float(counts[last]) else (first, last - 1)
    width = (high - low) / len(counts)
    return low + first * width, low + (last + 1) * width


def _telling(counts: torch.Tensor, low: float, high: float, percentile: float) -> tuple[float, float]:
    """The range, shrunk towards 0 at both ends alike, whose 256 levels tell the distribution best."""
    if high <= low:
        return low, high
    width, counts = (high - low) / len(counts), counts.clone()
    if low <= 0 <= high:
        counts[min(len(counts) - 1, int(-low / width))] = 0  # zeros, of which a relu makes many, are told exactly by any range
    best, found = float("inf"), (low, high)
    for part in range(128, 31, -1):
        first = max(0, round((low * part / 128 - low) / width)) if low < 0 else 0
        last = min(len(counts), round((high * part / 128 - low) / width)) if high > 0 else len(counts)
        if last - first < _LEVELS:
            break
        told = counts[first:last].clone()
        told[0] += counts[:first].sum()
        told[-1] += counts[last:].sum()
        loss = _divergence(told, counts[first:last])
        if loss < best:
            best, found = loss, (low + first * width, low + last * width)
    return found


def _divergence(told: torch.Tensor, counts: torch.Tensor) -> float:
    """How badly 256 levels, each spread over its bins that hold anything, tell a distribution."""
    level = torch.arange(len(counts)) * _LEVELS // len(counts)
    filled = (counts > 0).double()
    sums, bins = (torch.zeros(_LEVELS, dtype=torch.float64).index_add_(0, level, each) for each in (counts, filled))
    spread = (sums / bins.clamp(min=1))[level] * filled
    p, q = told / told.sum().clamp(min=1e-300), spread / spread.sum().clamp(min=1e-300)
    # what is cut off must be told by somebody: a little everywhere
    q = (q + 1e-9) / (1 + 1e-9 * len(q))
    return float((p[p > 0] * (p[p > 0] / q[p > 0]).log()).sum())
