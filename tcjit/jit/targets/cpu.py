"""The CPU as a target: C for the system's compiler, called in the process."""
from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcjit import cache
from tcjit.jit.targets import KINDS, LoadedKernel, Target, Workspace, single
from tcjit.mapping.machine import Costs, Machine
from tcjit.runtime import calibrate, host, launcher
from tcjit.runtime.matrix_unit import matrix_types

if TYPE_CHECKING:
    import torch

    from tcjit.codegen.source import Source
    from tcjit.grammar.ast import Program
    from tcjit.mapping.options import Options
    from tcjit.mapping.pipeline import Mapped, Proof
    from tcjit.step import Steps

# Of the last cache, the bytes that count for a core: most processors have a few MB of it for each, a few tens. A rule of thumb, not a
# measurement: a virtual machine is told of the cache of a whole processor, of which it has a few cores; others use the rest.
LAST_FOR_CORE = 32 << 20


@dataclass(frozen=True)
class Cpu(Target):
    name = "cpu"
    device_type = device = "cpu"
    supports_dynamic = True
    first_launch_slack = 0.02  # pages of code and threads

    def identity(self) -> str:
        store = cache.store()
        if not host.is_known(store):  # a kernel will be compiled: its passes are imported while the compiler is asked what it can do
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(copy_context().run, host.compiler)  # in the time that is left
                import_module("tcjit.jit.compile")
                import_module("tcjit.codegen.c")
                asked.exception()  # is raised below
        return _identity(host.identity(store), costs_of(store))

    def hardware(self) -> str:
        return host.hardware()

    def seeds(self, program: Program, layouts: Mapping[str, str], traits: Collection[str]) -> list[Options]:
        from tcjit.mapping.seeds import cpu_seeds  # needs isl

        return cpu_seeds(program, machine_of(host.compiler(cache.store())), layouts, traits)

    def emit(
        self, program: Program, options: Options, layouts: Mapping[str, str], *, checked: bool, prove: Proof, steps: Steps
    ) -> tuple[Mapped, Source]:
        from tcjit.codegen.c import emit_c  # needs isl
        from tcjit.codegen.dialect import C
        from tcjit.mapping.pipeline import map_program
        from tcjit.runtime.vector_math import vector_math_symbols

        machine = machine_of(host.compiler(cache.store()))
        dialect = replace(C, vector_math=vector_math_symbols())
        mapped = map_program(program, options, machine, layouts, prove=prove, steps=steps)
        return mapped, steps.run("code", lambda: emit_c(mapped, dialect, machine, checked=checked), show=lambda s: s.text, file="kernel.c")

    def build(self, source: Source, program: Program) -> tuple[bytes, Mapping[str, Any]]:
        from tcjit.codegen.outline import translation_units

        units = translation_units(source.text, source.functions, host.cores())
        return host.build(units, source.symbol, memory=cache.store()), {}

    def load(self, record: Mapping[str, Any], library: Path) -> LoadedKernel:
        """Loading comes after ``import torch``, whose OpenMP the kernel shares."""
        return CpuKernel(host.load(library, record["symbol"]), Workspace.of(record))

    def repeated(
        self, launch: LoadedKernel, outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], numbers: Sequence[int]
    ) -> Callable[[], int]:
        assert isinstance(launch, CpuKernel)
        return launch.prepared(outs, inputs, numbers)


@dataclass(frozen=True)
class CpuKernel:
    """Machine code at an address."""

    address: int
    workspace: Workspace

    def __call__(self, outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], numbers: Sequence[int]) -> int:
        return self.prepared(outs, inputs, numbers)()

    def prepared(self, outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], numbers: Sequence[int]) -> Callable[[], int]:
        """The same call, to be made again and again on one workspace."""
        import torch

        from tcjit.runtime import tensors

        size = self.workspace.bytes(numbers)
        scratch = tensors.empty((size,), "uint8", name="the workspace") if size else None
        run = launcher.prepared(
            self.address,
            [tensor.data_ptr() for tensor in (*outs, *inputs)],
            numbers,
            scratch.data_ptr() if scratch is not None else 0,
            torch.get_num_threads(),
        )

        def call(workspace: torch.Tensor | None = scratch) -> int:  # which lives as long as what uses it
            return run()

        return call


def identities() -> list[str]:
    """The identities of all compilers at hand, with all constants that are known, under which cached kernels can still be asked for."""
    store = cache.store()
    tools = host.identities(store, (note for _, note in store.notes("compiler-")))
    noted = filter(None, (Costs.of_note(note) for _, note in store.notes("costs-")))
    return [_identity(tool, costs) for tool in tools for costs in dict.fromkeys([costs_of(store), Costs(), *noted])]


def _identity(tool: str, costs: Costs) -> str:
    """Of what makes kernels: a compiler, the C library, the constants by which they are planned, and what the system lets them use."""
    unit = " with a matrix unit" if matrix_types() else ""  # which this process was given
    return f"{tool} {host.c_library(cache.store())} {hashlib.sha256(repr(costs).encode()).hexdigest()[:16]}{unit}"


@lru_cache
def costs_of(store: cache.Store) -> Costs:
    """The constants of this processor; asked for once in a process, so that a kernel is kept under those by which it was planned."""
    return calibrate.costs_of_host(store) or Costs()


def machine_of(tool: host.Compiler) -> Machine:
    """The vector unit that the compiler's flags make use of, and this machine's cores."""
    costs, many = costs_of(cache.store()), tool.vector_bytes == 64 or tool.target.startswith(("aarch64", "arm64"))
    near, own = host.cache_bytes(1) or Machine.near_bytes, host.cache_bytes(2) or Machine.cache_bytes
    features = host.cpu_features() if tool.vector_bytes > 16 else set()
    ways = 4 if "avx512_vnni" in features else 2
    bfloat16_dots = "avx512_bf16" in features and tool.vector_bytes == 64 and "clang" not in tool.version
    cores = os.cpu_count() or 1
    shared = max(min(host.cache_bytes(3) or Machine.shared_bytes, cores * LAST_FOR_CORE), own)
    matrix = matrix_types() if bfloat16_dots and _knows_matrix_unit(tool.version) else frozenset[str]()
    return Machine(tool.vector_bytes, 32 if many else 16, cores, near, own, costs, ways, shared, bfloat16_dots, matrix)


def _knows_matrix_unit(version: str) -> bool:
    """Whether a compiler, by what it says of its version, tells a text of AMX for a processor that has it: gcc from 11 on."""
    found = re.search(r"gcc version (\d+)", version)
    return found is not None and int(found[1]) >= 11


KINDS["cpu"] = lambda detail, device: single(detail, Cpu())
