"""An OpenCL device as a target; its tensors are the CPU's."""
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcjit.codegen.source import Source
from tcjit.jit.targets import KINDS, LoadedKernel, Target, gpu, single
from tcjit.mapping.machine import Device
from tcjit.runtime import opencl

if TYPE_CHECKING:
    import torch

    from tcjit.grammar.ast import Program
    from tcjit.mapping.options import Options
    from tcjit.mapping.pipeline import Mapped, Proof
    from tcjit.step import Steps


@dataclass(frozen=True)
class OpenCL(Target):
    deterministic: bool = False
    name = "opencl"
    device_type = device = "cpu"
    supports_dynamic = True

    @property
    def model(self) -> Device:
        """What is known of the device."""
        return gpu.as_asked(opencl.describe(), self.deterministic)

    def identity(self) -> str:
        return opencl.identity() + gpu.facts(self.model)

    def hardware(self) -> str:
        return opencl.hardware()

    def seeds(self, program: Program, layouts: Mapping[str, str], traits: Collection[str]) -> list[Options]:
        return gpu.seeds(traits)

    def emit(
        self, program: Program, options: Options, layouts: Mapping[str, str], *, checked: bool, prove: Proof, steps: Steps
    ) -> tuple[Mapped, Source]:
        from tcjit.codegen.dialect import OPENCL

        return gpu.emitted(program, options, layouts, self.model, OPENCL, file="kernel.cl", checked=checked, prove=prove, steps=steps)

    def build(self, source: Source, program: Program) -> tuple[bytes, Mapping[str, Any]]:
        if not source.launches:  # no statement has an instance
            return b"", {}
        return opencl.build(source.text, source.symbol), {"shared_bytes": max(launch.shared_bytes for launch in source.launches)}

    def load(self, record: Mapping[str, Any], library: Path) -> LoadedKernel:
        return OpenCLKernel(opencl.LoadedProgram(library.read_bytes(), gpu.launches(record)), gpu.LaunchSizes.of(record))


@dataclass(frozen=True)
class OpenCLKernel:
    """A program in the device, which works on the tensors' own memory where it can."""

    program: opencl.LoadedProgram
    sizes: gpu.LaunchSizes
    address: int = 0

    def __call__(self, outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], numbers: Sequence[int]) -> int:
        from tcjit.runtime import tensors

        def region(tensor: torch.Tensor, written: bool) -> opencl.HostMemory:
            start, end = tensors.span(tensor)
            return opencl.HostMemory(start, end - start, written)

        memory = [*(region(out, True) for out in outs), *(region(tensor, False) for tensor in inputs)]
        return self.program.run(memory, numbers[: self.sizes.kernel], self.sizes.workspace.bytes(numbers), self.sizes.grids(numbers))


KINDS["opencl"] = lambda detail, device: single(detail, OpenCL(gpu.deterministic()))
