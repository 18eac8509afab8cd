"""CUDA text on the host as a target, ``cuda_host``: the whole way of a call, with no driver and no GPU.

Importing this registers it. ``support.run.assert_right(case, TARGET)``, ``support.library.assert_agrees(case, dtype, TARGET)`` and
``tcjit.define(text, target=TARGET)`` then map, print and run programs as ``cuda`` does, for the architecture behind the colon
(``cuda_host:sm_80``; without one sm_90); where a kernel does what it may not, a ``HostError`` says so.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from support.rings.cuda_host import Array, Host
from tcjit.codegen.dialect import CUDA
from tcjit.codegen.source import Source
from tcjit.errors import CompileError
from tcjit.jit.signature import of
from tcjit.jit.targets import KINDS, LoadedKernel, Target, cuda, gpu
from tcjit.runtime import nvrtc

if TYPE_CHECKING:
    import torch

    from tcjit.grammar.ast import Program
    from tcjit.mapping.machine import Device
    from tcjit.mapping.options import Options
    from tcjit.mapping.pipeline import Mapped, Proof
    from tcjit.step import Steps

TARGET = "cuda_host"
_COMPILING: list[str] = []  # not empty: NVRTC compiles what runs here, and finds neither stack nor spills


@contextmanager
def compiled_as_well() -> Iterator[None]:
    """NVRTC, where there is one, compiles every new kernel of the target, which then must need no local memory."""
    try:
        _COMPILING.append(nvrtc.find())
    except CompileError:
        yield
        return
    try:
        yield
    finally:
        _COMPILING.pop()


@dataclass(frozen=True)
class CudaHost(Target):
    """An architecture whose kernels run here."""

    arch: str
    deterministic: bool = False
    device_type = device = "cpu"
    supports_dynamic = True
    option_kind = "cuda"

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{TARGET}:{self.arch}"

    @property
    def model(self) -> Device:
        return gpu.as_asked(cuda.described(self.arch), self.deterministic)

    def identity(self) -> str:
        return gpu.facts(self.model)

    def accepts(self, tensor: torch.Tensor) -> bool:
        return True  # the arrays that a kernel gets here are copies, as aligned as on a device

    def emit(
        self, program: Program, options: Options, layouts: Mapping[str, str], *, checked: bool, prove: Proof, steps: Steps
    ) -> tuple[Mapped, Source]:
        return gpu.emitted(program, options, layouts, self.model, CUDA, file="kernel.cu", checked=checked, prove=prove, steps=steps)

    def build(self, source: Source, program: Program) -> tuple[bytes, Mapping[str, Any]]:
        returns = of(program.definition).returns
        if _COMPILING and source.launches:
            taken = nvrtc.compile(source.text, [launch.symbol for launch in source.launches], self.arch).resources
            assert all(one.stack == one.spill_stores == one.spill_loads == 0 for one in taken.values()), (taken, source.text)
        return source.text.encode(), {"unset": [n for n, output in enumerate(returns) if not output.accumulates]}

    def load(self, record: Mapping[str, Any], library: Path) -> LoadedKernel:
        return Loaded(library.read_text(), json.dumps(record), int(self.arch.removeprefix("sm_")) * 10)


@dataclass(frozen=True)
class Loaded:
    """A text with its launches."""

    text: str
    facts: str
    arch: int
    address: int = 0

    def __call__(self, outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], numbers: Sequence[int]) -> int:
        record = json.loads(self.facts)
        launches = gpu.launches(record)
        if not launches:
            return 0
        arrays = [bits(tensor) for tensor in (*outs, *inputs)]
        sizes = gpu.LaunchSizes.of(record)
        launches = tuple(replace(launch, grid=grid) for launch, grid in zip(launches, sizes.grids(numbers) or sizes.fixed))
        values = [_number(kind, last, value) for (kind, _, last), value in zip(record["numbers"][: sizes.kernel], numbers)]
        host, scratch = Host(self.text, self.arch), sizes.workspace.bytes(numbers)
        return host.run(launches, arrays, values, scratch, unset=record["resources"]["unset"], align=cuda.ALIGNMENT)


def bits(tensor: torch.Tensor) -> Array:
    """A tensor's own memory as an array; half types as their bits."""
    import torch

    whole: Array = (tensor.view(torch.int16) if tensor.dtype in (torch.float16, torch.bfloat16) else tensor).numpy()
    return whole.view(np.uint16) if whole.dtype == np.int16 else whole


def _number(kind: str, dtype: str | int, pattern: int) -> int | float:
    """A pattern of 64 bits as the kernel declares it: floats as double."""
    if kind == "scalar" and str(dtype) in ("float16", "bfloat16", "float32", "float64"):
        value: float = struct.unpack("<d", struct.pack("<q", pattern))[0]
        return value
    return pattern


KINDS[TARGET] = lambda detail, device: CudaHost(detail or "sm_90", gpu.deterministic())
