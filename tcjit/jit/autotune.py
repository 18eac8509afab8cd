"""Autotuning of a def: from arguments to a search, and from its result to the cache. Importing it imports optuna."""
from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tcjit import cache, scratch
from tcjit.errors import ArgumentError, TuneError
from tcjit.jit import arguments, targets
from tcjit.jit.arguments import BoundArguments
from tcjit.jit.kernel_cache import family
from tcjit.jit.launch import Key
from tcjit.mapping.options import PRESETS, Options
from tcjit.runtime import host
from tcjit.tuner.config import TunerConfig
from tcjit.tuner.progress import shown
from tcjit.tuner.result import TuneResult
from tcjit.tuner.search import Task, search
from tcjit.tuner.space import Space

if TYPE_CHECKING:
    from tcjit.jit.signature import Signature
    from tcjit.jit.targets import Target

WORKERS = "tcjit.jit.tune_worker"


def autotune(
    text: str,
    signature: Signature,
    target: str | None,
    sets: Sequence[Sequence[Any]],
    config: TunerConfig | None,
    keep: bool,
    progress: bool | None,
) -> TuneResult:
    """Search the best options for one or several sets of arguments; kept in the cache for the shapes of each if ``keep``."""
    if config is not None and not isinstance(config, TunerConfig):
        raise ArgumentError(f"config must be tcjit.TunerConfig, not {type(config).__name__}", hint="tcjit.TunerConfig(seconds=60)")
    config, began = config or TunerConfig(), time.monotonic()
    asked = targets.find(target) if target else None
    bounds = [arguments.check(signature, args, asked) for args in sets]
    on = targets.resolve(target, bounds[0].devices)
    if not on.device_type or on.option_kind == "reference":
        raise TuneError(f"target {on.name} does not run here, so nothing can be timed", hint='target="cpu", "opencl" or "cuda"')
    if any(targets.resolve(target, bound.devices) != on for bound in bounds[1:]):
        raise ArgumentError("the sets of arguments are on different devices", hint="one search per device")
    with scratch.folder("given") as folder:
        with host.limited(math.inf if config.seconds is None else began + config.seconds + config.timeout):
            task = _task(text, signature, on, bounds, Path(folder))
        with shown(task.label, progress) as watch:
            result = search(task, config, watch, began=began)
    if keep:
        for bound in bounds:
            _keep(signature, on, bound, result)
    return result


def _task(text: str, signature: Signature, on: Target, bounds: Sequence[BoundArguments], folder: Path) -> Task:
    keys = [Key.of(bound, True, on, None) for bound in bounds]
    name = cache.call_key(
        on.code,
        on.identity(),
        program=signature.canonical,
        problems=[[key.shapes, key.layouts, dict(key.scalars)] for key in keys],
        threads=torch.get_num_threads(),
    )
    space = Space.of(on.option_kind, signature.traits, signature.loops)
    opening = {
        "problems": [_problem(text, signature, on, bound, key, folder / f"{n}.npz") for n, (bound, key) in enumerate(zip(bounds, keys))],
        "threads": torch.get_num_threads(),
    }
    shapes = "; ".join(" ".join("x".join(map(str, shape)) for shape in key.shapes) for key in keys)
    seeds = (Options(), *_neighbours(signature, keys), *PRESETS.values())
    label = f"{signature.name} {shapes} on {on.name}"
    return Task(name[:32], label, space, seeds, WORKERS, opening, on.device, {"target": on.name, "threads": torch.get_num_threads()})


def _problem(text: str, signature: Signature, on: Target, bound: BoundArguments, key: Key, file: Path) -> dict[str, Any]:
    """All that a process needs to make the arguments again: sizes and strides, and integers as they are; floats come from a seed."""
    integers = {
        name: tensor.detach().cpu().numpy()
        for name, tensor in bound.tensors.items()
        if not tensor.dtype.is_floating_point and tensor.device.type != "meta"
    }
    if integers:
        np.savez(file, allow_pickle=False, **integers)
    return {
        "text": text,
        "name": signature.name,
        "target": on.name,
        "device": on.device,
        "shapes": [list(shape) for shape in key.shapes],
        "strides": [_strides(tensor) for tensor in bound.tensors.values()],
        "layouts": list(key.layouts),
        "scalars": dict(key.scalars),
        "values": dict(bound.scalars),
        "checked": key.checked,
        "given": str(file) if integers else "",
        "seed": 0,
    }


def _strides(tensor: torch.Tensor) -> list[int]:
    return list(tensor.stride())


def _neighbours(signature: Signature, keys: Sequence[Key]) -> list[Options]:
    """What was best at the nearest shapes."""
    near = [cache.store().nearest(family(signature, key), key.shapes) for key in keys]
    return [Options.from_dict(choice.options) for choice in near if choice is not None]


def _keep(signature: Signature, on: Target, bound: BoundArguments, result: TuneResult) -> None:
    """The winner for these shapes, for this and other processes."""
    key = Key.of(bound, True, on, None)
    numbers = {"seconds": result.seconds, "default": result.default_seconds, "trials": float(len(result.history))}
    choice = cache.Choice(result.options.to_dict(), numbers, result.label[:200], key.shapes)
    cache.store().put_choice(family(signature, key), choice)
