"""What the device can do at most: copies, multiply-adds, the vendor's products, launches. One that fails is recorded with its error."""
from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from gpu.device import Cuda, Device, tf32
from gpu.figures import summary

CHAINS, REPEATS, THREADS = 16, 8, 256
FFMA = f"""
extern "C" __global__ void __launch_bounds__({THREADS})
ffma_peak(float *__restrict__ out, char *__restrict__ workspace, long long rounds, int *__restrict__ flag) {{
  float sum[{CHAINS}], factor = 1.0f - 1e-7f * threadIdx.x, step = 1e-7f * blockIdx.x, total = 0;
#pragma unroll
  for (int chain = 0; chain < {CHAINS}; chain++) sum[chain] = chain * 0.5f + threadIdx.x;
#pragma unroll 1
  for (int round = 0; round < rounds; round++) {{
#pragma unroll
    for (int n = 0; n < {CHAINS * REPEATS}; n++) sum[n % {CHAINS}] = __fmaf_rn(sum[n % {CHAINS}], factor, step);
  }}
#pragma unroll
  for (int chain = 0; chain < {CHAINS}; chain++) total += sum[chain];
  out[blockIdx.x * {THREADS} + threadIdx.x] = total;
}}
"""
EMPTY = 'extern "C" __global__ void nothing(char *__restrict__ workspace, int *__restrict__ flag) {}'
ROUNDS = 8192
LAUNCHES = 500


def measure(device: Device, quick: bool = False, small: bool = False) -> dict[str, Any]:
    """By name: GB/s of a copy (bytes read plus bytes written), TFLOP/s, microseconds of launches."""
    extent = 256 if small else 4096 if quick else 8192
    tasks: dict[str, Callable[[], float]] = {
        "copy_gbs": lambda: copy(device, 1 << 22 if small else 4 << 30),
        "fp32_tflops": lambda: product(device, extent, torch.float32, False),
        "tf32_tflops": lambda: product(device, extent, torch.float32, True),
        "bf16_tflops": lambda: product(device, extent, torch.bfloat16, False),
    }
    if isinstance(device, Cuda):
        tasks |= {"ffma_tflops": lambda: ffma(device), "launch_us": launch_host}
        tasks |= {"back_to_back_us": launch_device, "graph_node_us": launch_graph}
    found: dict[str, Any] = {}
    device.warm_up()
    for name, task in tasks.items():
        try:
            found[name] = task()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def copy(device: Device, size: int) -> float:
    """GB/s of the device's own copy of several gigabytes."""
    if isinstance(device, Cuda):
        size = min(size, torch.cuda.mem_get_info()[0] // 4)
    source = torch.randn(size // 4, device=device.place)
    target = torch.empty_like(source)
    us = summary(device.interleaved({"copy": lambda: target.copy_(source)}, 10)["copy"]).us
    return 2 * source.nbytes / us / 1e3


def product(device: Device, extent: int, dtype: torch.dtype, allowed: bool) -> float:
    """TFLOP/s of the vendor's library on normal numbers, in a square product."""
    left, right = (torch.randn(extent, extent, device=device.place).to(dtype) for _ in range(2))
    with tf32(allowed):
        for _ in range(3):
            left @ right
        us = summary(device.interleaved({"product": lambda: left @ right}, 10)["product"]).us
    return 2 * extent**3 / us / 1e6


def _module(text: str, symbol: str, blocks: int, threads: int, pointers: int, numbers: int) -> Any:
    """A hand-written kernel through tcjit's own compiler and driver."""
    from tcjit.codegen.source import KernelLaunch
    from tcjit.runtime import cuda, nvrtc

    cubin = nvrtc.compile(text, [symbol], cuda.device(torch.cuda.current_device()).name).cubin
    return cuda.Module(cubin, [KernelLaunch(symbol, (blocks, 1, 1), threads, 0)], pointers, numbers)


def _launcher(module: Any, pointers: list[int], numbers: list[int]) -> Callable[[], None]:
    ordinal = torch.cuda.current_device()
    return lambda: module.launch(ordinal, torch.cuda.current_stream().cuda_stream, pointers, numbers, 0)


def ffma(device: Device) -> float:
    """TFLOP/s of multiply-adds that depend on nothing but registers."""
    blocks = torch.cuda.get_device_properties(0).multi_processor_count * (2048 // THREADS)
    out = torch.empty(blocks * THREADS, device=device.place)
    call = _launcher(_module(FFMA, "ffma_peak", blocks, THREADS, 1, 1), [out.data_ptr()], [ROUNDS])
    call()
    us = summary(device.interleaved({"ffma": call}, 10)["ffma"]).us
    return 2 * CHAINS * REPEATS * ROUNDS * blocks * THREADS / us / 1e6


def _nothing() -> Callable[[], None]:
    call = _launcher(_module(EMPTY, "nothing", 1, 32, 0, 0), [], [])
    call()
    torch.cuda.synchronize()
    return call


def _between(work: Callable[[], object]) -> float:
    """Microseconds between events around work."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3


def launch_host() -> float:
    """Microseconds of the host for one launch of an empty kernel through tcjit's driver."""
    call = _nothing()
    runs = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(LAUNCHES):
            call()
        runs.append((time.perf_counter() - start) / LAUNCHES * 1e6)
        torch.cuda.synchronize()
    return summary(runs).us


def launch_device() -> float:
    """Microseconds from one empty kernel to the next in a stream."""
    call = _nothing()
    return summary([_between(lambda: [call() for _ in range(LAUNCHES)]) / LAUNCHES for _ in range(5)]).us


def launch_graph() -> float:
    """Microseconds for one empty kernel of a graph."""
    call = _nothing()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            call()
    graph.replay()
    return summary([_between(graph.replay) / LAUNCHES for _ in range(5)]).us
