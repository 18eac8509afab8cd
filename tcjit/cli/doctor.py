"""``tcjit doctor``: what this machine has for tcjit, what is missing, and how to get it.

Whatever may be broken rather than absent (torch, OpenCL, a CUDA driver) is asked in a child process: a library that crashes at
import then costs one line of the report.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any, Literal

from tcjit import cache as store
from tcjit.errors import CompileError, TCError
from tcjit.mapping.machine import Costs
from tcjit.runtime import host
from tcjit.runtime.calibrate import costs_of_host, keep
from tcjit.runtime.matrix_unit import matrix_types

State = Literal["ok", "missing", "problem"]
PATIENCE = 120.0  # seconds for one child process; a first `import torch` from a cold disk takes long

TORCH = """
import json, torch
print(json.dumps({"version": torch.__version__, "threads": torch.get_num_threads(), "openmp": torch.backends.openmp.is_available(),
                  "cuda": torch.version.cuda or ""}))
"""
CALIBRATE = """
import json
from dataclasses import asdict
try:
    import torch  # kernels share its OpenMP runtime
except ImportError:
    pass
from tcjit.runtime.calibrate import calibrate
print(json.dumps(asdict(calibrate())))
"""
ISL = """
import json, islpy
read = islpy.Set.read_from_str
ctx = islpy.Context()
works = read(ctx, "{ [i] : 0 <= i < 8 }").lexmax().is_equal(read(ctx, "{ [7] }"))
print(json.dumps({"version": islpy.version.VERSION_TEXT, "works": bool(works)}))
"""
OPENCL = """
import json, pyopencl
from tcjit.codegen.source import KernelLaunch
from tcjit.errors import TCError
from tcjit.runtime import opencl
devices, chosen, problem = [str(found) for found in opencl.devices()], "", ""
try:
    chosen = str(opencl.choose())
    text = "__kernel void tcjit_doctor(__global char *workspace, __global int *flag) { *flag = 42; }"
    launch = KernelLaunch("tcjit_doctor", (1, 1, 1), 1, 0)
    answer = opencl.LoadedProgram(opencl.build(text, launch.symbol), [launch]).run([], [], 0)
    problem = "" if answer == 42 else f"{chosen} computes {answer} for 42"
except TCError as error:
    problem = error.what
print(json.dumps({"version": pyopencl.VERSION_TEXT, "devices": devices, "chosen": chosen, "problem": problem}))
"""
CUDA = """
import json
from tcjit.errors import TCError
from tcjit.runtime import cuda
facts = {"version": ".".join(map(str, cuda.driver_version() or ())), "devices": [], "problem": "", "advice": "", "torch": ""}
try:
    facts["devices"] = [cuda.describe(number) for number in range(cuda.count())]
except TCError as error:
    facts.update(problem=error.what, advice=error.hint)
try:
    import torch
    facts["torch"] = "" if torch.cuda.is_available() else f"torch {torch.__version__} sees no GPU"
except ImportError as error:
    facts["torch"] = str(error)
print(json.dumps(facts))
"""
NVRTC = """
import json
from tcjit.runtime import nvrtc
text = 'extern "C" __global__ void tcjit_doctor(int *flag) { *flag = 42; }'
known = nvrtc.architectures()
nvrtc.compile(text, ["tcjit_doctor"], known[-1])
print(json.dumps({"version": nvrtc.version(), "known": known}))
"""
# the result is right only if every thread took part of the loop
TRIAL = """
#include <stdint.h>
int64_t tcjit_doctor(int64_t n, int64_t threads) {
  int64_t sum = 0;
  #pragma omp parallel for num_threads(threads) reduction(+: sum)
  for (int64_t i = 0; i < n; i++) sum += i;
  return sum;
}
"""


@dataclass(frozen=True)
class Finding:
    """One line: ``missing`` means absent, ``problem`` present but not usable as it is.

    While a ``required`` one is missing, the CPU target cannot work.
    """

    name: str
    state: State
    found: str
    advice: str = ""
    required: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def examine() -> list[Finding]:
    """Every finding, in the order in which a newcomer would need things. Takes seconds: torch is imported in a child process."""
    checks: tuple[Callable[[], Finding], ...] = (
        python,
        torch,
        isl,
        libraries,
        compiler,
        launcher,
        processor,
        cache,
        opencl,
        cuda,
        nvrtc,
        tuner,
    )
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda check: check(), checks))


def ask(code: str) -> dict[str, Any] | str:
    """The JSON that a child process printed, or the last line of its error output."""
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return f"no answer within {PATIENCE:.0f} s"
    if done.returncode < 0:
        return f"crashed with signal {-done.returncode}"
    if done.returncode > 0:
        return (done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"])[-1]
    facts = json.loads(done.stdout.strip().splitlines()[-1])
    assert isinstance(facts, dict)
    return facts


def python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    fits = (3, 10) <= sys.version_info[:2] <= (3, 13)
    return Finding("Python", "ok" if fits else "problem", f"{version}, {sys.executable}", "" if fits else "Python 3.10 to 3.13")


def torch() -> Finding:
    facts = ask(TORCH)
    if isinstance(facts, str):
        return Finding("PyTorch", "missing", facts, "pip install torch", required=True)
    threads = f"{facts['threads']} threads{'' if facts['openmp'] else ', built without OpenMP'}"
    return Finding("PyTorch", "ok", f"{facts['version']}, {threads}", required=True)


def isl() -> Finding:
    facts = ask(ISL)
    if isinstance(facts, str) or not facts["works"]:
        return Finding("isl", "missing", facts if isinstance(facts, str) else "gives wrong answers", "pip install islpy", required=True)
    return Finding("isl", "ok", f"islpy {facts['version']}", required=True)


def libraries() -> Finding:
    versions = {name: _installed(name) for name in ("numpy", "lark", "optuna", "rich", "typer")}
    lost = [name for name, version in versions.items() if not version]
    have = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    if lost:
        return Finding("Libraries", "missing", f"{', '.join(lost)}; have {have}", f"pip install {' '.join(lost)}", required=True)
    return Finding("Libraries", "ok", have, required=True)


def compiler() -> Finding:
    """Builds a small parallel program and runs it, as a kernel would be."""
    try:
        tool = host.compiler()
        wrong = _trial()
    except TCError as error:
        return Finding("C compiler", "missing", error.what, error.hint, required=True)
    what = f"{tool.version}, {tool.path}\n{' '.join(tool.flags)}"
    if wrong:
        return Finding("C compiler", "missing", f"{what}\n{wrong}", "another compiler, named in CC", required=True)
    if not tool.openmp:
        return Finding(
            "C compiler", "problem", f"{what}\nno OpenMP: kernels run on one thread", "a compiler with OpenMP, named in CC", required=True
        )
    return Finding("C compiler", "ok", f"{what}\nOpenMP works", required=True)


def _trial() -> str:
    """The error of a trial build and run, or nothing."""
    built = host.build(TRIAL, "tcjit_doctor")
    code = f"""
import ctypes, json, tempfile
try:
    import torch  # kernels share its OpenMP runtime
except ImportError:
    pass
with tempfile.NamedTemporaryFile(suffix=".so") as file:
    file.write(bytes.fromhex({built.hex()!r}))
    file.flush()
    function = ctypes.CDLL(file.name).tcjit_doctor
    function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_int64, ctypes.c_int64]
    print(json.dumps({{"sum": function(1000, 2)}}))
"""
    facts = ask(code)
    if isinstance(facts, str):
        return f"what it built does not run: {facts}"
    return "" if facts["sum"] == 499500 else f"what it built computes {facts['sum']} for 499500"


def launcher() -> Finding:
    header = Path(sysconfig.get_path("include"), "Python.h")
    if header.exists():
        return Finding("Fast calls", "ok", f"{header}")
    return Finding(
        "Fast calls",
        "missing",
        "no Python.h: calls go through ctypes, some microseconds each",
        "the headers of this Python, python3-dev or python3-devel",
    )


def processor() -> Finding:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    facts = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in text.partition("\n\n")[0].splitlines())}
    flags = set(facts.get("flags", facts.get("Features", "")).split())
    known = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "asimdhp", "sve", "bf16")
    name = facts.get("model name", os.uname().machine)
    units = " ".join(f for f in known if f in flags) or "no vector unit known"
    kept = "the system keeps the matrix unit from this process\n" if "amx_bf16" in flags and not matrix_types() else ""
    return Finding("Processor", "ok", f"{name}, {host.cores()} cores to use, {units}\n{kept}{constants()}")


def constants() -> str:
    """The constants of the cost models that were measured here, or those in their place."""
    try:
        costs = costs_of_host(store.store())
    except TCError:
        costs = None
    if costs is None:
        return "cost models use the constants of another processor: tcjit doctor --calibrate measures this one's"
    return (
        f"measured: {costs.frequency / 1e9:.2f} GHz, {costs.fma_rate:.1f} multiply-adds a cycle, reads {costs.memory_read / 1e9:.1f} GB/s"
        f" from memory, {costs.parallel_region * 1e6:.1f} us for a parallel region"
    )


def calibrate() -> list[str]:
    """Measure the constants of this machine and keep them; a line for each. A CompileError where they cannot be measured."""
    facts = ask(CALIBRATE)
    costs = Costs.of_note(facts) if isinstance(facts, dict) else None
    if costs is None:
        raise CompileError(f"this processor's constants cannot be measured: {facts}", hint="tcjit doctor, which tries the C compiler")
    keep(store.store(), costs)
    return [f"{constant.name} {getattr(costs, constant.name):.4g} {constant.metadata['unit']}" for constant in Costs.described()]


def cache() -> Finding:
    """Whether kernels will survive the process."""
    try:
        trust = store.trusted()
        if not trust.ok:
            return Finding("Cache", "problem", f"{trust.problem}: not used, kernels are lost with the process", trust.hint)
        if not trust.writable:
            return Finding("Cache", "problem", f"{trust.path} cannot be written", "another directory, in TCJIT_CACHE_DIR")
        kernels = store.entries()
    except TCError as error:
        return Finding("Cache", "problem", error.what, error.hint)
    size = sum(entry.library.stat().st_size for entry in kernels)
    return Finding("Cache", "ok", f"{trust.path}, {len(kernels)} kernels, {size / 1000:.0f} kB")


def opencl() -> Finding:
    """Builds and runs a kernel on the device in use."""
    facts = ask(OPENCL)
    advice = "pip install 'tcjit[opencl]', which brings PoCL, an OpenCL for the CPU"
    if isinstance(facts, str):
        return Finding("OpenCL", "missing", facts, advice)
    if not facts["devices"]:
        return Finding("OpenCL", "missing", f"pyopencl {facts['version']} finds no device", advice)
    lines = [f"{number}: {name}{', in use' if name == facts['chosen'] else ''}" for number, name in enumerate(facts["devices"])]
    summary = "\n".join([f"pyopencl {facts['version']}", *lines, *filter(None, [facts["problem"]])])
    if facts["problem"]:
        return Finding("OpenCL", "problem", summary, "another device, by number or name in TCJIT_OPENCL_DEVICE")
    return Finding("OpenCL", "ok", summary)


def cuda() -> Finding:
    facts = ask(CUDA)
    if isinstance(facts, str):
        return Finding("CUDA driver", "missing", facts, "an NVIDIA GPU and its driver")
    release = f"for CUDA {facts['version']}"
    if not facts["version"]:
        return Finding("CUDA driver", "missing", facts["problem"], facts["advice"] or "an NVIDIA GPU and its driver")
    if facts["problem"]:
        return Finding("CUDA driver", "problem", f"{release}: {facts['problem']}", facts["advice"] or "nvidia-smi, to see why")
    if not facts["devices"]:
        return Finding("CUDA driver", "problem", f"{release}: no GPU", "nvidia-smi, to see why")
    if facts["torch"]:
        return Finding("CUDA driver", "problem", f"{'; '.join(facts['devices'])}\n{facts['torch']}", "a torch that is built for CUDA")
    return Finding("CUDA driver", "ok", "; ".join(facts["devices"]))


def nvrtc() -> Finding:
    """Compiles a kernel; no GPU is needed for that."""
    facts = ask(NVRTC)
    if isinstance(facts, str):
        return Finding("NVRTC", "missing", facts, "pip install nvidia-cuda-nvrtc")
    return Finding("NVRTC", "ok", f"{facts['version']}\n{' '.join(facts['known'])}")


def tuner() -> Finding:
    version = _installed("xgboost-cpu") or _installed("xgboost")
    if not version:
        return Finding("Tuner's model", "missing", "no xgboost", "pip install 'tcjit[tuner]'")
    return Finding("Tuner's model", "ok", f"xgboost {version}")


def _installed(name: str) -> str:
    try:
        return installed(name)
    except PackageNotFoundError:
        return ""
