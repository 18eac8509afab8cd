"""NVRTC takes what is generated for NVIDIA GPUs: the operators of the library and golden kernels, architectures and releases in turn."""
from __future__ import annotations

from itertools import cycle, product

import pytest
from support.library import inputs, listed
from support.mapping import GOLDEN, program
from support.pairs import pairs
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

DEVICES = {device.name: device for device in (SM_80, SM_90)}
TURNS = [pytest.param(name, *how, id=f"{name}-{'-'.join(how)}") for name, how in zip(library.names(), cycle(product(DEVICES, RELEASES)))]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "device", "release"), TURNS)
def test_the_library_compiles(name: str, device: str, release: str) -> None:
    case = listed()[name][0]
    params = front.read(library.source(name))[-1].params
    tensors = inputs(case, params, "float32")
    arguments = [tensors[param.name] if param.dims else case.scalars[param.name] for param in params]
    with using(release):
        kernel = getattr(tcjit.define(library.source(name), target=f"cuda:{device}"), name).compile(*arguments)
    assert "__global__" in kernel.source and kernel.resources["registers"] > 0
    assert kernel.resources["stack_bytes"] == kernel.resources["spill_bytes"] == 0


@pairs(name=list(GOLDEN), device=DEVICES, release=RELEASES)
def test_golden_kernels_compile(name: str, device: Device, release: str) -> None:
    text, shapes, options = GOLDEN[name]
    made = map_gpu(program(text, shapes), Options(**options), device, prove="none")
    source = emit_gpu(made, CUDA, device, checked=True)
    with using(release):
        binary = nvrtc.compile(source.text, [launch.symbol for launch in source.launches], device.name)
    assert set(binary.resources) == {launch.symbol for launch in source.launches}
    assert all(found.spill_stores == found.spill_loads == found.stack == 0 for found in binary.resources.values())
