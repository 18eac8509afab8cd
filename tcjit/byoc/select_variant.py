"""Which way a model is cut, by the clock: as asked for, with its convolutions in channels last, or not at all."""
from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from statistics import median
from typing import Any

import torch
from torch import Tensor

from tcjit.byoc.adapter import Adapter
from tcjit.byoc.calling import Inputs
from tcjit.byoc.measure import QUANTILE, Measured, interleaved_timing, measured
from tcjit.byoc.partition_blocks import Partitioning, cut
from tcjit.byoc.passes import standard
from tcjit.byoc.settings import PartitionConfig
from tcjit.errors import PartitionError
from tcjit.runtime.timing import quantile_ratio

Opened = Callable[[], Adapter]
RACES, READING = 4, 1e-2  # of whole models at most, whose readings cover so many seconds: neighbours on the machine disturb short ones
WARM = 3  # calls before the first that is timed: TorchScript looks at the first ones, and is slow in them
LAYOUT, LAYOUTS = "channels_last", 3  # the pass that changes layouts, and the level from which it runs


@dataclass(frozen=True)
class Variant:
    """A model cut in one way. ``model`` is what runs; ``measured`` None where nothing was."""

    adapter: Adapter
    cut: Partitioning
    partitioned: Any
    model: Any
    measured: Measured | None = None


def runnable(made: Any) -> Callable[..., Any]:
    """What can be called of what an adapter made."""
    found: Callable[..., Any] = made.module() if isinstance(made, torch.export.ExportedProgram) else made
    return found


def estimated(opened: Opened, config: PartitionConfig) -> Variant:
    """The cut that is asked for, its regions chosen by what they are estimated to cost."""
    adapter = opened()
    done = cut(adapter, config)
    made = adapter.realise(done.block)
    return Variant(adapter, done, made, runnable(made))


def fastest(model: Any, opened: Opened, config: PartitionConfig, inputs: Inputs) -> Variant:
    """The way in which a model ran fastest on copies of its example inputs; the model itself where no way is surely faster.

    What the calls of regions cost in their places can be more than what the regions save by themselves, hence the whole model is timed.
    """
    config = replace(config, backends=config.serving(measure=True))
    with _unwritten(model):
        whole = independent_copy(model, opened)
        _tried(whole, inputs.copies())
        ways = [_way(opened, each, inputs) for each in _configs(config)]
        ways = [way for way in ways if way.cut.regions or LAYOUT in way.cut.passes]
        runs = {"whole": whole, **{str(number): way.model for number, way in enumerate(ways)}}
        given = inputs.copies()
        with torch.no_grad():
            for run in runs.values():
                for _ in range(WARM):
                    given.given_to(run)
            times = _raced({name: partial(given.given_to, run) for name, run in runs.items()})
    pays = [number for number in range(len(ways)) if quantile_ratio(times[str(number)], times["whole"], QUANTILE) < 1]
    if pays:
        return ways[min(pays, key=lambda number: median(times[str(number)]))]
    seconds = {key: value for way in ways if way.measured for key, value in way.measured.seconds.items()}
    plain = estimated(opened, replace(config, backends=(), opt_level=0))
    return replace(plain, model=whole, measured=Measured(seconds, frozenset(), {}))


def _raced(runs: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """The times of whole models, ``whole`` the one as it was; again while one is mostly faster than that, and none surely."""
    times: dict[str, list[float]] = {name: [] for name in runs}

    def best(part: float) -> float:
        return min((quantile_ratio(times[name], times["whole"], part) for name in runs if name != "whole"), default=1.0)

    for _ in range(RACES):
        for name, each in interleaved_timing(runs, READING).items():
            times[name] += each
        if best(QUANTILE) < 1 or best(0.5) >= 1:
            break
    return times


def _tried(run: Callable[..., Any], inputs: Inputs) -> None:
    """Runs a model once; a PartitionError where it fails."""
    try:
        with torch.no_grad():
            inputs.given_to(run)
    except Exception as error:  # whatever the model's own code raises
        said = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        hint = "measuring runs the model: give example inputs that it takes"
        raise PartitionError(f"the model fails on its example inputs: {said[-1]}", hint=hint) from error


def independent_copy(model: Any, opened: Opened) -> Any:
    """What runs as a model does now, whatever is set at that one later; a module's parameters and buffers are shared."""
    if isinstance(model, torch.nn.Module) and not isinstance(model, torch.jit.ScriptModule):
        with suppress(Exception):  # whatever a module's own way of being copied raises
            return copy.deepcopy(model, {id(each): each for each in chain(model.parameters(), model.buffers())})
    adapter = opened()
    return runnable(adapter.realise(adapter.block))


def _configs(config: PartitionConfig) -> list[PartitionConfig]:
    """The settings asked for, and the same with layouts changed, where passes change a model at all."""
    named = (config.pipeline or standard()).names
    other = 0 < config.opt_level < LAYOUTS and LAYOUT in named and LAYOUT not in config.without
    return [config, replace(config, opt_level=LAYOUTS)] if other else [config]


def _way(opened: Opened, config: PartitionConfig, inputs: Inputs) -> Variant:
    found = measured(opened, config, inputs)
    adapter = opened()
    done = cut(adapter, config, found.judge)
    made = adapter.realise(done.block)
    return Variant(adapter, done, made, runnable(made), found)


@contextmanager
def _unwritten(model: Any) -> Iterator[None]:
    """What runs of a model write to its buffers is undone."""
    buffers: list[Tensor] = list(model.buffers()) if isinstance(model, torch.nn.Module) else [each for _, each in model.named_buffers()]
    before = [(each, each._version, each.clone()) for each in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for each, version, old in before:
                if each._version != version:
                    each.copy_(old)
