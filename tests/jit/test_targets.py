"""Targets: how one is found, what a new one has to say, compiling for an architecture that is not here, CUDA as far as it goes alone.

Modules: jit.python_dispatch jit.targets.cpu jit.targets.cuda jit.targets.gpu jit.targets.opencl jit.targets.reference
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.calls import TEXT, assert_fast, assert_refused, defs, knows

import tcjit
from tcjit import cache
from tcjit.jit import targets
from tcjit.jit.targets import KINDS, WAITS, LoadedKernel, Target, Workspace, gpu
from tcjit.jit.targets import cpu as on_cpu
from tcjit.jit.targets import cuda as on_cuda
from tcjit.jit.targets.cpu import Cpu
from tcjit.mapping.machine import Costs, Machine
from tcjit.runtime import calibrate, cuda, host, nvrtc


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


# ---------------------------------------------------------------- finding one


def test_targets_by_name() -> None:
    assert {"cpu", "cuda", "opencl", "reference"} <= set(targets.known())
    for name, code, device in (("cpu", "cpu", "cpu"), ("reference", "reference", "cpu"), ("opencl", "opencl", "cpu")):
        found = targets.find(name)
        assert (found.name, found.code, found.device_type, found.device) == (name, code, device, "cpu")
        assert found == targets.find(name) and hash(found) == hash(targets.find(name))
    assert targets.find("cuda", "cuda:1").device == "cuda:1" and targets.find("cuda", "cuda:1") != targets.find("cuda", "cuda:0")
    for name in ("gpu", "", "cuda:0", "cuda:sm_", "cpu:avx2", "opencl:1", "reference:x"):
        assert_refused(lambda name=name: targets.find(name), tcjit.ArgumentError, "there is no target")


def test_targets_whose_kernels_serve_many_sizes() -> None:
    served = {name: targets.find(name).supports_dynamic for name in ("cpu", "opencl", "cuda", "cuda:sm_90", "reference")}
    assert served == {"cpu": True, "opencl": True, "cuda": True, "cuda:sm_90": True, "reference": False}


def test_the_target_of_a_call() -> None:
    assert targets.resolve(None, []).name == targets.resolve(None, ["cpu"]).name == targets.resolve(None, ["meta"]).name == "cpu"
    assert targets.resolve(None, ["meta", "cuda:1"]) == targets.find("cuda", "cuda:1")
    assert targets.resolve("opencl", ["cpu"]).name == "opencl" and targets.resolve("cuda:sm_90", ["cpu"]).code == "cuda:sm_90"


def test_kernels_are_planned_and_kept_by_the_constants_of_their_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A calibration asks for kernels of its own; those from before can be asked for again once it is gone."""

    def machine() -> Machine:
        return on_cpu.machine_of(host.compiler())

    monkeypatch.setenv("TCJIT_CACHE_DIR", str(tmp_path / "fresh"))
    before = Cpu().identity()
    assert machine().costs == Costs() and before in on_cpu.identities()
    monkeypatch.setenv("TCJIT_CACHE_DIR", str(tmp_path / "calibrated"))
    calibrate.keep(cache.store(), Costs(fma_latency=5.0))
    assert machine().costs == Costs(fma_latency=5.0) and Cpu().identity() != before
    assert {before, Cpu().identity()} <= set(on_cpu.identities())
    calibrate.keep(cache.store(), Costs(fma_latency=6.0))
    assert machine().costs == Costs(fma_latency=5.0), "a process plans all its kernels by the same"


def test_a_machine_has_no_more_of_the_last_cache_than_its_cores_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine is told of the cache of a whole processor."""
    monkeypatch.setattr(on_cpu.os, "cpu_count", lambda: 2)
    for told, kept in ((480 << 20, 64 << 20), (8 << 20, 8 << 20), (0, Machine.shared_bytes)):
        monkeypatch.setattr(host, "cache_bytes", lambda level, told=told: {1: 1 << 15, 2: 1 << 20, 3: told}[level])
        assert on_cpu.machine_of(host.compiler()).shared_bytes == kept


def test_tensors_in_the_wrong_place() -> None:
    x = torch.ones(3)
    assert_refused(lambda: defs("cuda").sum(torch.ones(2, 3)), tcjit.ArgumentError, "target cuda works on cuda tensors")
    if not torch.cuda.is_available():
        assert_refused(lambda: tcjit.define("def f(float a) -> (Y) { Y = a }", target="cuda").f(1.0), tcjit.LaunchError, "no NVIDIA GPU")
        assert_refused(lambda: defs().mm.compile(meta(2, 2), meta(2, 2), target="cuda"), tcjit.LaunchError, "no NVIDIA GPU")
        return
    for target in ("cpu", "reference", "opencl"):
        message = f"target {target} works on cpu tensors"
        assert_refused(lambda target=target: defs(target).add(x.cuda(), x.cuda()), tcjit.ArgumentError, message)
    assert_refused(lambda: defs().add(x, x.cuda()), tcjit.ArgumentError, "different devices")


# ---------------------------------------------------------------- a new one


@dataclass(frozen=True)
class Slow:
    """The CPU's code, which the C launcher is not told of."""

    code: LoadedKernel
    address: int = 0

    def __call__(self, outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], numbers: Sequence[int]) -> int:
        return self.code(outs, inputs, numbers)


@dataclass(frozen=True)
class Aligned(Cpu):
    """The CPU as a target that is picky about memory and takes the way of the others."""

    name = "aligned"

    def accepts(self, tensor: torch.Tensor) -> bool:
        return tensor.data_ptr() % 16 == 0 or not tensor.is_contiguous()

    def load(self, record: Mapping[str, Any], library: Path) -> LoadedKernel:
        return Slow(super().load(record, library))


@pytest.fixture
def tc(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(KINDS, "aligned", lambda detail, device: targets.single(detail, Aligned()))
    return defs("aligned")


def test_a_registered_target_is_used_from_end_to_end(tc: Any) -> None:
    a, b = torch.randn(9, 7), torch.randn(7, 8)
    assert torch.allclose(assert_fast(tc.mm, a, b), a @ b, atol=1e-5) and knows(tc.mm, a, b)
    k = tc.mm.compile(a, b)
    assert repr(k) == "<tcjit.Kernel mm(A[9, 7], B[7, 8]) for aligned>" and k.key.target == Aligned() and k.check(a, b).used["C"] <= 1
    assert torch.allclose(assert_fast(k, a, b), a @ b, atol=1e-5) and knows(k, a, b)


def test_memory_that_does_not_suit_is_copied(tc: Any) -> None:
    base = torch.randn(41)
    x, y, out = base[1:21], base[20:40], torch.zeros(21)[1:]
    seen: list[bool] = []
    k = tc.add.compile(x, y)
    really = k.work
    k.work = lambda inputs, scalars, outs: (seen.extend(t.data_ptr() % 16 == 0 for t in (*inputs, *outs)), really(inputs, scalars, outs))
    before = out._version
    assert torch.equal(k(x, y), x + y) and k(x, y, out=out) is out and torch.equal(out, x + y) and out._version > before
    assert seen == [True] * 6
    strided = torch.randn(20, 2)[:, 1]
    assert torch.equal(tc.add(strided, y), strided + y)
    assert torch.equal(assert_fast(tc.add, base[:20], base[20:40]), base[:20] + base[20:40])


def test_repeated_calls_look_at_every_argument(tc: Any) -> None:
    x, y = torch.randn(20), torch.randn(20)
    assert_fast(tc.add, x, y)
    assert knows(tc.add, x, y) and not knows(tc.add, x[:19], y[:19]) and not knows(tc.add, x.double(), y) and not knows(tc.add, x)
    assert not knows(tc.add, torch._neg_view(x), y) and not knows(tc.add, x, y, out=torch.empty(20)) and not knows(tc.add, 3, y)
    assert not knows(tc.add, x, y, unchecked=True) and not knows(tc.add, torch.randn(60)[::3], y) and not knows(tc.add, x.to("meta"), y)
    assert torch.equal(tc.add(torch._neg_view(x), y), y - x)
    assert not knows(tc.add, x, y.clone().requires_grad_()) and tc.add(x, y.clone().requires_grad_()).requires_grad
    with torch.no_grad():
        assert knows(tc.add, x, y.clone().requires_grad_())
    assert torch.equal(torch.vmap(tc.add)(torch.stack([x, y]), torch.stack([y, y])), torch.stack([x + y, y + y]))
    freed = torch.randn(20)
    freed.untyped_storage().resize_(0)
    assert_refused(lambda: tc.add(freed, y), tcjit.ArgumentError, "no memory")


def test_repeated_calls_with_scalars(tc: Any) -> None:
    x = torch.randn(8)
    for a, s in ((0.5, 2), (3, 2), (0.5, 4), (torch.tensor(2.0), 4), (1.5, 2)):
        assert torch.equal(assert_fast(tc.step, a, x, s), a * x[::s])
    assert_refused(lambda: tc.step("1", x, 2), tcjit.ArgumentError)
    assert_refused(lambda: tc.step(1.0, x, 2.5), tcjit.ArgumentError)
    table, index = torch.randn(4, 3), torch.tensor([0, 3])
    assert torch.equal(assert_fast(tc.pick, table, index), table[index])
    assert_refused(lambda: tc.pick(table, index + 1), tcjit.GatherError)
    total = torch.ones(3)
    assert torch.equal(tc.onto(torch.ones(3, 2), out=total), torch.full((3,), 3.0)) and not knows(tc.onto, torch.ones(3, 2))


def test_only_so_many_calls_are_remembered(tc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tcjit.jit import python_dispatch

    monkeypatch.setattr(python_dispatch, "ENTRIES", 3)
    xs = [torch.randn(n) for n in range(1, 6)]
    for x in xs:
        tc.both(x)
    assert [knows(tc.both, x) for x in xs] == [False, False, True, True, True]


def test_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    monkeypatch.setitem(WAITS, "one", lambda: waited.append(1))
    monkeypatch.setitem(WAITS, "two", lambda: waited.append(2))
    assert tcjit.synchronize() is None and waited == [1, 2]


def test_operators_are_there_for_every_device() -> None:
    name = defs().add._overload.name()
    assert all(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in ("CPU", "CUDA", "Meta", "Autograd"))


# ---------------------------------------------------------------- another architecture


@pytest.fixture(scope="module")
def compiler() -> Iterator[None]:
    try:
        nvrtc.architectures()
    except tcjit.CompileError as error:
        pytest.skip(error.what)
    yield


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_compiling_for_a_gpu_that_is_not_here(architecture: str) -> None:
    tc = defs(f"cuda:{architecture}")
    k = tc.mm.compile(meta(64, 64), torch.ones(64, 64))
    assert k.target == f"cuda:{architecture}" and k.record["target"] == k.target and "__global__" in k.source and "block" in k.tree
    resources = k.resources
    assert 0 < resources["registers"] <= 255 and resources["spill_bytes"] == 0 and 0 < resources["occupancy"] <= 1
    (kernel,) = resources["kernels"].values()
    assert kernel["registers"] == resources["registers"] and kernel["threads"] % 32 == 0 and kernel["grid"][0] >= 1
    assert resources["shared_bytes"] == k.record["launches"][0][3] > 0 and resources["verified"]
    for call in (k, tc.mm):
        assert_refused(lambda call=call: call(torch.ones(64, 64), torch.ones(64, 64)), tcjit.LaunchError, "compiles and does not run")
    assert_refused(lambda: k(torch.ones(64, 63), torch.ones(63, 64)), tcjit.ShapeError)


@pytest.mark.usefixtures("compiler")
def test_an_unknown_architecture() -> None:
    assert_refused(lambda: defs("cuda:sm_999").add.compile(meta(3), meta(3)), tcjit.CompileError, "sm_999")


@pytest.mark.usefixtures("compiler")
def test_a_program_without_work() -> None:
    k = defs("cuda:sm_90").both.compile(meta(0))
    assert k.record["launches"] == [] and k.resources["workspace"] == 0


def test_what_is_known_of_architectures() -> None:
    described = on_cuda.described
    assert described("sm_90").max_shared_bytes == described("sm_90a").max_shared_bytes == 227 << 10
    assert described("sm_86").max_shared_bytes == 99 << 10 and described("sm_86").resident_threads == 1536
    assert [described(f"sm_{number}").resident_blocks for number in (80, 86, 87, 88, 89, 90)] == [32, 16, 16, 16, 24, 32]
    assert {"mma", "async_copy", "bfloat"} <= described("sm_80").capabilities  # older ones are refused before they are described
    assert described("sm_103").name == "sm_103" and described("sm_103").resident_threads == 2048


def test_deterministic_kernels_are_others() -> None:
    """Of sums of floats that data pick; those of integers are the same in any order."""
    index, values = torch.empty(3000, dtype=torch.int64, device="meta"), torch.empty(3000, 12, device="meta")
    for kind, always in (("float", False), ("int32", True)):
        text = f"def f(int64(N) I, {kind}(N,D) X) -> (O) {{ O(I(n), d) +=! X(n, d) where I(n) in 0:500 }}"
        f = tcjit.define(text, target="cuda:sm_90").f
        for asked in (False, True, False):
            torch.use_deterministic_algorithms(asked)
            try:
                kernel = f.compile(index, values.to(getattr(torch, kind)))
            finally:
                torch.use_deterministic_algorithms(False)
            assert ("atomicAdd" in kernel.source) == (always or not asked)
    identities = {on_cuda.Architecture("sm_90", asked).identity() for asked in (False, True)}
    assert len(identities) == 2


def test_grids_are_those_of_the_record_but_for_dynamic_sizes() -> None:
    fixed = ((4, 1, 1), (2, 3, 1))
    assert gpu.LaunchSizes(2, Workspace(0), fixed, ()).grids([5, 6]) == []
    assert gpu.LaunchSizes(2, Workspace(0), fixed, ((1, 0, 2), (1, 2, 3))).grids([5, 6, 7, 8]) == [(4, 1, 1), (7, 3, 8)]


# ---------------------------------------------------------------- CUDA with nobody behind it


@dataclass(frozen=True)
class HostCuda(on_cuda.Cuda):
    """The CUDA target with tensors of the CPU."""

    where: str = "cuda:0"
    name = "hostcuda"
    device_type = device = "cpu"

    @property
    def ordinal(self) -> int:
        return 0


class Module:
    """What is asked of a loaded module."""

    made: list[Module] = []

    def __init__(self, cubin: bytes, launches: Any, pointers: int, numbers: int, fail: Any) -> None:
        assert cubin[:4] == b"\x7fELF"
        self.launches, self.counts, self.fail = launches, (pointers, numbers), fail
        self.calls: list[tuple[Any, ...]] = []
        Module.made.append(self)

    def launch(
        self, ordinal: int, stream: int, pointers: Sequence[int], numbers: Sequence[int], workspace: int, grids: Sequence[Any] = ()
    ) -> None:
        assert (len(pointers), len(numbers)) == self.counts and len(grids) in (0, len(self.launches))
        self.calls.append((ordinal, stream, list(pointers), list(numbers), workspace))


@pytest.fixture
def host_cuda(compiler: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    target: Target = HostCuda()
    monkeypatch.setitem(KINDS, "hostcuda", lambda detail, device: target)
    monkeypatch.setattr(cuda, "Module", Module)
    monkeypatch.setattr(cuda, "device", lambda ordinal: on_cuda.described("sm_90"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda ordinal: SimpleNamespace(cuda_stream=77 + ordinal))
    monkeypatch.setattr(Module, "made", [])
    return tcjit.define(TEXT, target="hostcuda")


@pytest.mark.usefixtures("compiler")
def test_a_cuda_launch(host_cuda: Any) -> None:
    """On torch's stream, with outputs, inputs, workspace and numbers where the kernel expects them; nothing is waited for."""
    x = torch.randn(8)
    y = host_cuda.step(0.5, x, 2)
    (module,) = Module.made
    (call,) = module.calls
    assert call[0] == 0 and call[1] == 77 and call[2][1] == x.data_ptr() and call[2][0] == y.data_ptr() and y.shape == (4,)
    assert call[3] == [0x3FE0000000000000] and call[4] == 0
    assert host_cuda.step.compile(0.5, x, 2).record["target"] == "cuda:sm_90"
    misaligned = torch.randn(9)[1:]
    host_cuda.step(1, misaligned, 2)
    host_cuda.step(2, x, 2)
    copied, again = module.calls[1:]
    assert copied[2][1] != misaligned.data_ptr() and copied[2][1] % 16 == 0 and again[2][1] == x.data_ptr()
    assert again[3] == [0x4000000000000000]


@pytest.mark.usefixtures("compiler")
def test_a_cuda_flag_has_an_error(host_cuda: Any) -> None:
    host_cuda.pick(torch.randn(4, 3), torch.tensor([0, 9]))  # nobody looked yet
    (module,) = Module.made
    assert isinstance(module.fail(1), tcjit.GatherError) and isinstance(module.fail(99), tcjit.LaunchError)
    assert "cuda" in WAITS
    assert host_cuda.both(torch.empty(0))[0].shape == (0,) and len(Module.made) == 1  # there is nothing to run
