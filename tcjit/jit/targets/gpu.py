"""What the GPU targets share: a program mapped and printed for a device, and launch records of it."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tcjit.codegen.source import KernelLaunch, Source
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
    from tcjit.codegen.gpu import emit_gpu  # needs isl
    from tcjit.mapping.pipeline import map_gpu

    mapped = map_gpu(program, options, device, layouts, prove=prove, steps=steps)
    return mapped, steps.run("code", lambda: emit_gpu(mapped, dialect, device, checked=checked), show=lambda s: s.text, file=file)


def launches(record: Mapping[str, Any]) -> tuple[KernelLaunch, ...]:
    """The launches of a record."""
    return tuple(KernelLaunch(symbol, (x, y, z), threads, shared) for symbol, (x, y, z), threads, shared in record["launches"])


def facts(device: Device) -> str:
    """All that is known of a device, as one text, for the key of the cache."""
    return repr({name: sorted(value) if isinstance(value, frozenset) else value for name, value in asdict(device).items()})
