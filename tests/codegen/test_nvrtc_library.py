"""NVRTC takes what is generated for NVIDIA GPUs: the library's operators, for one of two architectures in turn, and the golden kernels."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.library import inputs, listed
from support.mapping import GOLDEN, program
from support.rings.nvrtc import RELEASES, using

import tcjit
from tcjit import library
from tcjit.codegen.dialect import CUDA
from tcjit.codegen.gpu_kernel import emit_gpu
from tcjit.grammar import front
from tcjit.mapping.machine import SM_80, SM_90, Device
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import map_gpu
from tcjit.runtime import nvrtc

DEVICES = (SM_80, SM_90)
NAMES = [pytest.param(name, DEVICES[number % 2], id=f"{name}-{DEVICES[number % 2].name}") for number, name in enumerate(library.names())]


@pytest.fixture(scope="module", autouse=True, params=RELEASES)
def release(request: pytest.FixtureRequest) -> Iterator[str]:
    with using(request.param):
        yield request.param


@pytest.mark.parametrize(("name", "device"), NAMES)
def test_the_library_compiles(name: str, device: Device, release: str) -> None:
    case = listed()[name][0]
    params = front.read(library.source(name))[-1].params
    tensors = inputs(case, params, "float32")
    arguments = [tensors[param.name] if param.dims else case.scalars[param.name] for param in params]
    text = f"{library.source(name)}\n# {release}"  # a process keeps the kernels of a text
    kernel = getattr(tcjit.define(text, target=f"cuda:{device.name}"), name).compile(*arguments)
    assert "__global__" in kernel.source and kernel.resources["registers"] > 0
    assert kernel.resources["stack_bytes"] == kernel.resources["spill_bytes"] == 0


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_kernels_compile(name: str, device: Device) -> None:
    text, shapes, options = GOLDEN[name]
    made = map_gpu(program(text, shapes), Options(**options), device, prove="none")
    source = emit_gpu(made, CUDA, device, checked=True)
    binary = nvrtc.compile(source.text, [launch.symbol for launch in source.launches], device.name)
    assert set(binary.resources) == {launch.symbol for launch in source.launches}
    assert all(found.spill_stores == found.spill_loads == found.stack == 0 for found in binary.resources.values())
