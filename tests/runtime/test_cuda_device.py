"""The CUDA runtime on a device, through each package: torch's streams, autograd's threads, graphs, flags, shared memory above 48 KB."""
from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support import PYTHONPATH
from support.rings import cuda_stub as stub

pytestmark = pytest.mark.cuda
# one def with one output and one input, a workspace, an integer and a float: y = x * scale + shift, flagged where x is not finite
START = """
import threading, torch
from tcjit.codegen.source import KernelLaunch
from tcjit.errors import GatherError, LaunchError
from tcjit.jit.arguments import pattern
from tcjit.runtime import cuda, nvrtc
TEXT = '''
extern "C" __global__ void scale(float *__restrict__ y, const float *__restrict__ x, char *w, long long shift, double factor, int *flag) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (!(x[i] - x[i] == 0)) atomicMax(flag, 2);
  y[i] = x[i] * (float)factor + shift;
}
extern "C" __global__ void turned(float *__restrict__ y, const float *__restrict__ x, char *w, long long shift, double factor, int *flag) {
  extern __shared__ float block[];
  for (int i = threadIdx.x; i < 16384; i += 256) block[i] = y[i];
  __syncthreads();
  for (int i = threadIdx.x; i < 16384; i += 256) y[i] = block[16383 - i];
}
'''
N = 16384
scale, turned = KernelLaunch("scale", (N // 256, 1, 1), 256, 0), KernelLaunch("turned", (1, 1, 1), 256, 4 * N)
binary = nvrtc.compile(TEXT, ["scale", "turned"], cuda.device(0).name)
made = cuda.Module(binary.cubin, (scale, turned), 2, 2, lambda site: GatherError(f"site {site}"))
def call(x, shift=3, factor=2.0):
    y = torch.empty_like(x)
    stream = torch.cuda.current_stream(x.device).cuda_stream
    made.launch(x.device.index, stream, (y.data_ptr(), x.data_ptr()), (shift, pattern(factor, "float32")), 0)
    return y
def right(y, x):
    assert torch.equal(y, (x * 2 + 3).flip(0)), (y, x)
x = torch.randn(N, device="cuda")
right(call(x), x)
"""


@pytest.fixture(params=stub.PACKAGES)
def package(request: pytest.FixtureRequest) -> str:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    name: str = request.param
    stub.require(name)
    return name


def run(package: str, code: str) -> list[str]:
    environment = {**os.environ, "TCJIT_CUDA_DRIVER": package, "PYTHONPATH": PYTHONPATH}
    done = subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_streams(package: str) -> None:
    """Launches keep their place among torch's own on whatever stream is current."""
    code = """
side = torch.cuda.Stream()
for _ in range(100):
    with torch.cuda.stream(side):
        z = torch.randn(N, device="cuda").cumsum(0)
        y = call(z)
        right(y, z)
    torch.cuda.current_stream().wait_stream(side)
    right(call(y), y)
print("fine")
"""
    assert run(package, code) == ["fine"]


def test_autograd_threads_and_others(package: str) -> None:
    code = """
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return call(x)
    @staticmethod
    def backward(context, gradient):
        assert threading.current_thread() is not threading.main_thread()
        return call(gradient.contiguous())
leaf = x.clone().requires_grad_()
Scale.apply(leaf).backward(x)
right(leaf.grad, x)
threads = [threading.Thread(target=lambda: right(call(x), x)) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(torch.cuda.current_device())
"""
    assert run(package, code) == ["0"]


def test_graphs() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    stub.require("cuda-bindings")
    code = """
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = call(x)
for _ in range(3):
    x.normal_()
    graph.replay()
    right(y, x)
x[5] = float("nan")
graph.replay()
try:
    cuda.synchronize()
except GatherError as error:
    print(error)
late, another = cuda.Module(binary.cubin, (scale,), 2, 2), torch.cuda.CUDAGraph()
with torch.cuda.graph(another):
    z = x + 1
    try:
        late.launch(0, torch.cuda.current_stream().cuda_stream, (y.data_ptr(), x.data_ptr()), (0, 0), 0)
    except LaunchError as error:
        print("while a graph is captured" in str(error))
x.zero_()
another.replay()
assert torch.equal(z, x + 1)
"""
    assert run("cuda-bindings", code) == ["site 2", "True"]


def test_flags_and_limits(package: str) -> None:
    code = """
x[7] = float("inf")
call(x)
torch.cuda.synchronize()
for _ in range(2):
    try:
        call(torch.ones_like(x))
        print("launched")
    except GatherError as error:
        print(error)
cuda.synchronize()
found = made.attributes(0)
print(found["scale"].registers == binary.resources["scale"].registers, found["turned"].local)
limits, torchs = cuda.device(0), torch.cuda.get_device_properties(0)
print(limits.processors == torchs.multi_processor_count, limits.name == f"sm_{torchs.major}{torchs.minor}")
x[7] = 0  # a flag of one of these calls would be raised by a later one
print(0 < cuda.seconds(0, 0, lambda: [call(x) for _ in range(10)]) < 0.1)
"""
    assert run(package, code) == ["site 2", "launched", "True 0", "True True", "True"]


def test_several_devices(package: str) -> None:
    code = """
for ordinal in range(torch.cuda.device_count()):
    if cuda.device(ordinal).name == cuda.device(0).name:
        there = x.to(f"cuda:{ordinal}")
        right(call(there), there)
print(torch.cuda.current_device())
"""
    assert run(package, code) == ["0"]
