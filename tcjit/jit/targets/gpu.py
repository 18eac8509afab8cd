"""What the GPU targets share: a program mapped and printed for a device, and launch records of it."""
from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from tcjit.codegen.source import KernelLaunch, Source
from tcjit.jit.targets import Workspace
from tcjit.mapping.machine import Device

if TYPE_CHECKING:
    from tcjit.codegen.dialect import GpuDialect
    from tcjit.grammar.ast import Program
    from tcjit.mapping.options import Options
    from tcjit.mapping.pipeline import Mapped, Proof
    from tcjit.step import Steps


def emitted(
    program: Program,
    options: Options,
    layouts: Mapping[str, str],
    device: Device,
    dialect: GpuDialect,
    *,
    file: str,
    checked: bool,
    prove: Proof,
    steps: Steps,
) -> tuple[Mapped, Source]:
    """Map and print a program; ``file`` is the name of its text among the dumps."""
    from tcjit.codegen.gpu_kernel import emit_gpu  # needs isl
    from tcjit.mapping.pipeline import map_gpu

    mapped = map_gpu(program, options, device, layouts, prove=prove, steps=steps)
    return mapped, steps.run("code", lambda: emit_gpu(mapped, dialect, device, checked=checked), show=lambda s: s.text, file=file)


def seeds(traits: Collection[str]) -> list[Options]:
    """Where a search begins on a GPU."""
    from tcjit.mapping.seeds import gpu_seeds  # needs isl

    return gpu_seeds(traits)


def launches(record: Mapping[str, Any]) -> tuple[KernelLaunch, ...]:
    """The launches of a record."""
    return tuple(KernelLaunch(symbol, (x, y, z), threads, shared) for symbol, (x, y, z), threads, shared in record["launches"])


@dataclass(frozen=True)
class LaunchSizes:
    """What of a launch follows from dynamic sizes, by position among the numbers of a call: ``kernel`` of these are for the kernels, then
    come bytes of workspace, and blocks as (launch, axis, position)."""

    kernel: int
    workspace: Workspace
    fixed: tuple[tuple[int, int, int], ...]
    blocks: tuple[tuple[int, int, int], ...]

    @staticmethod
    def of(record: Mapping[str, Any]) -> LaunchSizes:
        kernel = len(record["numbers"]) - record["host"]
        named = [(name.split(), slot) for slot, (_, name, _) in enumerate(record["numbers"][kernel:], kernel)]
        blocks = tuple((int(words[1]), "xyz".index(words[2]), slot) for words, slot in named if words[0] == "grid")
        return LaunchSizes(kernel, Workspace.of(record), tuple(launch.grid for launch in launches(record)), blocks)

    def grids(self, numbers: Sequence[int]) -> list[tuple[int, int, int]]:
        """The blocks of each launch; nothing where they are always the same."""
        grids = [list(grid) for grid in self.fixed] if self.blocks else []
        for launch, axis, slot in self.blocks:
            grids[launch][axis] = numbers[slot]
        return [(x, y, z) for x, y, z in grids]


def deterministic() -> bool:
    """Whether this process asks torch for deterministic algorithms."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.are_deterministic_algorithms_enabled()


def as_asked(device: Device, deterministic: bool) -> Device:
    """A device with what kernels may use of it: deterministic ones have no sums whose order differs from run to run."""
    return replace(device, capabilities=device.capabilities - {"atomic_float_sums"}) if deterministic else device


def facts(device: Device) -> str:
    """All that is known of a device, as one text, for the key of the cache."""
    return repr({name: sorted(value) if isinstance(value, frozenset) else value for name, value in asdict(device).items()})


def hardware(device: Device) -> str:
    """What of a device decides which options are best; later versions may know more of it."""
    return f"{device.name}, {device.processors} processors, {device.max_shared_bytes} shared bytes"
