"""NVIDIA GPUs as targets: the device of the tensors, on torch's current stream; or an architecture, for compiling only.

A call returns before its kernels are done. What they flag (a gather's or a divisor's site) is raised by a later call of the same kernel
or by ``tcjit.synchronize``.
"""
from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcjit import cache
from tcjit.codegen.source import KernelLaunch, Source
from tcjit.errors import ArgumentError, LaunchError
from tcjit.jit.launch_record import failure
from tcjit.jit.targets import KINDS, WAITS, LoadedKernel, Target, gpu
from tcjit.mapping.machine import SM_80, SM_90, Device
from tcjit.runtime import cuda, nvrtc
from tcjit.runtime.nvrtc_log import Resources, occupancy

if TYPE_CHECKING:
    import torch

    from tcjit.grammar.ast import Program
    from tcjit.mapping.options import Options
    from tcjit.mapping.pipeline import Mapped, Proof
    from tcjit.step import Steps

ALIGNMENT = 16  # bytes: kernels read and write contiguous tensors in vectors of so many
_ARCHITECTURE = re.compile(r"sm_(\d+)([af]?)")
OLDEST = 80  # generated code uses what came with it: min and max that keep NaN, conversions of bfloat16
# architectures that differ from their elders: shared bytes of a block and threads and blocks of a multiprocessor, at most
_LIMITS = {80: (163, 2048, 32), 86: (99, 1536, 16), 87: (163, 1536, 16), 89: (99, 1536, 24),
           90: (227, 2048, 32), 100: (227, 2048, 32), 120: (99, 1536, 24)}  # fmt: skip


@dataclass(frozen=True)
class Cuda(Target):
    """The GPU called ``where``; without a name the current one. ``deterministic``: no kernel adds floats atomically."""

    where: str = ""
    deterministic: bool = False
    name = device_type = "cuda"
    supports_dynamic = True

    @property
    def device(self) -> str:  # type: ignore[override]
        return self.where or f"cuda:{_current()}"

    def pinned(self) -> Cuda:
        return replace(self, where=self.device)

    @property
    def ordinal(self) -> int:
        return int(self.device.partition(":")[2])

    @property
    def model(self) -> Device:
        """What is known of the device."""
        return gpu.as_asked(cuda.device(self.ordinal), self.deterministic)

    @property
    def code(self) -> str:
        return f"cuda:{self.model.name}"

    def identity(self) -> str:
        return nvrtc.identity(cache.store()) + gpu.facts(self.model)

    def hardware(self) -> str:
        return gpu.hardware(self.model)

    def accepts(self, tensor: torch.Tensor) -> bool:
        return tensor.data_ptr() % ALIGNMENT == 0 or not tensor.is_contiguous()

    def seeds(self, program: Program, layouts: Mapping[str, str], traits: Collection[str]) -> list[Options]:
        return gpu.seeds(traits)

    def emit(
        self, program: Program, options: Options, layouts: Mapping[str, str], *, checked: bool, prove: Proof, steps: Steps
    ) -> tuple[Mapped, Source]:
        return _emitted(self.model, program, options, layouts, checked=checked, prove=prove, steps=steps)

    def build(self, source: Source, program: Program) -> tuple[bytes, Mapping[str, Any]]:
        return _built(source, self.model)

    def load(self, record: Mapping[str, Any], library: Path) -> LoadedKernel:
        WAITS["cuda"] = cuda.synchronize
        module = None
        if launches := gpu.launches(record):
            pointers = len(record["returns"]) + sum(param["shape"] is not None for param in record["params"])
            count = len(record["numbers"]) - record["host"]
            module = cuda.Module(library.read_bytes(), launches, pointers, count, partial(failure, record))
        return CudaKernel(module, self.device, self.ordinal, gpu.LaunchSizes.of(record))


@dataclass(frozen=True)
class CudaKernel:
    """A module on a device; None where there is nothing to run."""

    module: cuda.Module | None
    device: str
    ordinal: int
    sizes: gpu.LaunchSizes
    address: int = 0

    def __call__(self, outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], numbers: Sequence[int]) -> int:
        import torch

        from tcjit.runtime import tensors

        if self.module is None:
            return 0
        stream = torch.cuda.current_stream(self.ordinal).cuda_stream
        # in the order of the stream, so that torch may give it to the next kernel of this stream as soon as it is dropped
        size = self.sizes.workspace.bytes(numbers)
        scratch = tensors.empty((size,), "uint8", self.device, "the workspace") if size else None
        pointers = [tensor.data_ptr() for tensor in (*outs, *inputs)]
        where = scratch.data_ptr() if scratch is not None else 0
        self.module.launch(self.ordinal, stream, pointers, numbers[: self.sizes.kernel], where, self.sizes.grids(numbers))
        return 0


@dataclass(frozen=True)
class Architecture(Target):
    """GPUs of an architecture, none of which need be here."""

    arch: str
    deterministic: bool = False
    device_type = ""  # shapes may come from any tensors
    device = "cpu"
    supports_dynamic = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"cuda:{self.arch}"

    @property
    def model(self) -> Device:
        """What is known of them."""
        return gpu.as_asked(described(self.arch), self.deterministic)

    def identity(self) -> str:
        return nvrtc.identity(cache.store()) + gpu.facts(self.model)

    def hardware(self) -> str:
        return gpu.hardware(self.model)

    def emit(
        self, program: Program, options: Options, layouts: Mapping[str, str], *, checked: bool, prove: Proof, steps: Steps
    ) -> tuple[Mapped, Source]:
        return _emitted(self.model, program, options, layouts, checked=checked, prove=prove, steps=steps)

    def build(self, source: Source, program: Program) -> tuple[bytes, Mapping[str, Any]]:
        return _built(source, self.model)

    def load(self, record: Mapping[str, Any], library: Path) -> LoadedKernel:
        return CompileOnlyKernel(self.name)


@dataclass(frozen=True)
class CompileOnlyKernel:
    """A kernel for a machine that is not this one."""

    name: str
    address: int = 0

    def __call__(self, outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], numbers: Sequence[int]) -> int:
        raise LaunchError(f"target {self.name} compiles and does not run", hint='target="cuda", with tensors on the GPU')


def described(arch: str) -> Device:
    """The device model of an architecture; one that is not listed has the limits of the next older."""
    match = _ARCHITECTURE.fullmatch(arch)
    assert match, arch
    number = int(match[1])
    known = max(elder for elder in _LIMITS if elder <= number)
    shared, threads, blocks = _LIMITS[known]
    model = SM_90 if number >= 90 else SM_80
    return replace(model, name=arch, max_shared_bytes=shared << 10, resident_threads=threads, resident_blocks=blocks)


def _emitted(
    device: Device, program: Program, options: Options, layouts: Mapping[str, str], *, checked: bool, prove: Proof, steps: Steps
) -> tuple[Mapped, Source]:
    from tcjit.codegen.dialect import CUDA

    return gpu.emitted(program, options, layouts, device, CUDA, file="kernel.cu", checked=checked, prove=prove, steps=steps)


def _built(source: Source, device: Device) -> tuple[bytes, Mapping[str, Any]]:
    if not source.launches:  # no statement has an instance
        return b"", {}
    built = nvrtc.compile(source.text, [launch.symbol for launch in source.launches], device.name)
    return built.cubin, _resources(built.resources, source.launches, device)


def _resources(taken: Mapping[str, Resources], launches: Sequence[KernelLaunch], device: Device) -> dict[str, Any]:
    """The greatest of all kernels, the least occupancy, and each kernel's own."""
    kernels: dict[str, dict[str, Any]] = {}
    for launch in launches:
        of = taken[launch.symbol]
        dynamic = launch.shared_bytes if launch.shared_bytes > device.shared_bytes else 0
        resident = occupancy(of, launch.threads, device, dynamic)
        kernels[launch.symbol] = {
            "registers": of.registers,
            "shared_bytes": max(of.shared, launch.shared_bytes),
            "stack_bytes": of.stack,
            "spill_bytes": of.spill_stores + of.spill_loads,
            "occupancy": resident.fraction,
            "resident_blocks": resident.blocks,
            "limit": resident.limit,
            "grid": list(launch.grid),
            "threads": launch.threads,
        }
    worst = {name: max(k[name] for k in kernels.values()) for name in ("registers", "shared_bytes", "stack_bytes", "spill_bytes")}
    return {**worst, "occupancy": min(k["occupancy"] for k in kernels.values()), "kernels": kernels}


def _current() -> int:
    """The number of torch's current GPU; a LaunchError where there is none."""
    import torch

    if not torch.cuda.is_available():
        raise LaunchError("torch sees no NVIDIA GPU", hint='tcjit doctor; "cuda:sm_90" compiles for one that is elsewhere')
    return torch.cuda.current_device()


def _make(detail: str, device: str) -> Target:
    if not detail:
        return Cuda(device if device.startswith("cuda") else "", gpu.deterministic())
    match = _ARCHITECTURE.fullmatch(detail)
    if match is None:
        hint = '"cuda" for the device of the tensors, or an architecture: "cuda:sm_90"'
        raise ArgumentError(f'there is no target "cuda:{detail}"', hint=hint)
    if int(match[1]) < OLDEST:
        raise ArgumentError(f'"cuda:{detail}" is older than generated code needs', hint=f'"cuda:sm_{OLDEST}" or later')
    return Architecture(detail, gpu.deterministic())


KINDS["cuda"] = _make
