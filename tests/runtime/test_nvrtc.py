"""NVRTC: found, told what to compile, its refusals; resources and occupancy; and the tools that look at machine code.

Modules: runtime.nvrtc_log
"""
from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from support.rings import sass as tools
from support.rings.nvrtc import RELEASES, require, using

from tcjit.errors import CompileError
from tcjit.mapping.machine import SM_80, SM_90
from tcjit.runtime import host, nvrtc, nvrtc_log
from tcjit.runtime.nvrtc_log import Occupancy, Resources, occupancy, resources

TRIVIAL = 'extern "C" __global__ void twice(float *y, const float *x) { y[threadIdx.x] = 2 * x[threadIdx.x]; }\n'
SGEMM = """
extern "C" __global__ void __launch_bounds__(256)
sgemm(float *__restrict__ c, const float *__restrict__ a, const float *__restrict__ b) {
  enum { N = 1024, K = 1024, BM = 128, BN = 128, BK = 8 };
  __shared__ __align__(16) float as[BK][BM], bs[BK][BN];
  int t = threadIdx.x, tr = t / 16, tc = t % 16;
  float acc[8][8] = {};
  const float *ap = a + blockIdx.y * BM * K, *bp = b + blockIdx.x * BN;
  for (int k0 = 0; k0 < K; k0 += BK) {
    float4 va = *(const float4 *)(ap + t / 2 * K + k0 + t % 2 * 4);
    float4 vb = *(const float4 *)(bp + (k0 + t / 32) * N + t % 32 * 4);
    __syncthreads();
    as[t % 2 * 4][t / 2] = va.x, as[t % 2 * 4 + 1][t / 2] = va.y, as[t % 2 * 4 + 2][t / 2] = va.z, as[t % 2 * 4 + 3][t / 2] = va.w;
    *(float4 *)&bs[t / 32][t % 32 * 4] = vb;
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < BK; k++) {
      float x[8], y[8];
      #pragma unroll
      for (int i = 0; i < 8; i++) x[i] = as[k][tr * 8 + i], y[i] = bs[k][tc * 8 + i];
      #pragma unroll
      for (int i = 0; i < 8; i++)
        #pragma unroll
        for (int j = 0; j < 8; j++) acc[i][j] += x[i] * y[j];
    }
  }
  #pragma unroll
  for (int i = 0; i < 8; i++)
    #pragma unroll
    for (int j = 0; j < 8; j++) c[(blockIdx.y * BM + tr * 8 + i) * N + blockIdx.x * BN + tc * 8 + j] = acc[i][j];
}
"""
LOCAL = """
extern "C" __global__ void local(float *y, const float *x, int n) {
  float kept[40];
  for (int i = 0; i < 40; i++) kept[i] = x[i * n];
  for (int i = 0; i < n; i++) y[i] = kept[(int)y[i]];
}
"""
LOG = """kernel.cu(3): warning #177-D: variable "u" was declared but never referenced
ptxas info    : 12 bytes gmem
ptxas info    : Compiling entry function 'f' for 'sm_90'
ptxas info    : Function properties for f
    64 bytes stack frame, 8 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 400 bytes cumulative stack size, 8192 bytes smem, 376 bytes cmem[0]
ptxas info    : Function properties for helper
ptxas         .     16 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Compiling entry function 'g' for 'sm_90'
ptxas info    : Function properties for g
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
"""


# what libnvrtc does with its built-in functions: it opens them by their bare name, in the first compilation
WITHOUT_RUN_PATH = """
#include <dlfcn.h>
int nvrtcVersion(int *a, int *b) { *a = 13, *b = 0; return 0; }
int nvrtcGetNumSupportedArchs(int *n) { *n = 1; return 0; }
int nvrtcGetSupportedArchs(int *a) { *a = 90; return 0; }
const char *nvrtcGetErrorString(int status) { return "builtin operation failure"; }
int nvrtcCreateProgram(void **p, ...) { return 0; }
int nvrtcCompileProgram(void *p, ...) { return dlopen("libtcjit-test-builtins.so.13.0", RTLD_LAZY) ? 0 : 7; }
int nvrtcDestroyProgram(void **p) { return 0; }
int nvrtcGetProgramLogSize(void *p, unsigned long *n) { *n = 1; return 0; }
int nvrtcGetProgramLog(void *p, char *to) { *to = 0; return 0; }
int nvrtcGetCUBINSize(void *p, unsigned long *n) { *n = 1; return 0; }
int nvrtcGetCUBIN(void *p, char *to) { *to = 'x'; return 0; }
"""


@pytest.fixture(autouse=True)
def there() -> None:
    require()


class Notes:
    def __init__(self) -> None:
        self.notes: dict[str, dict[str, Any]] = {}

    def note(self, name: str) -> dict[str, Any] | None:
        return self.notes.get(name)

    def put_note(self, name: str, note: dict[str, Any]) -> None:
        self.notes[name] = note


def test_compiles_for_every_architecture_asked() -> None:
    for architecture in ("sm_80", "sm_90", "sm_90a"):
        binary = nvrtc.compile(TRIVIAL, ["twice"], architecture)
        assert binary.cubin.startswith(b"\x7fELF") and b".text.twice\0" in binary.cubin
        taken = binary.resources["twice"]
        assert 0 < taken.registers <= 32 and taken == Resources(taken.registers)
    assert {"sm_80", "sm_90"} <= set(nvrtc.architectures())
    assert nvrtc.version().split(",")[0].replace(".", "").isdigit()


def test_the_same_text_gives_the_same_code() -> None:
    assert nvrtc.compile(TRIVIAL, ["twice"], "sm_80").cubin == nvrtc.compile(TRIVIAL, ["twice"], "sm_80").cubin


def test_options_reach_the_compiler() -> None:
    text = SGEMM.replace("__launch_bounds__(256)", "")
    few = nvrtc.compile(text, ["sgemm"], "sm_90", ["--maxrregcount=64"]).resources["sgemm"]
    assert few.registers <= 64 and few.spill_stores > 0 and few.spill_loads > 0
    with pytest.raises(CompileError, match="--no-such-option"):
        nvrtc.compile(TRIVIAL, ["twice"], "sm_90", ["--no-such-option"])


@pytest.mark.parametrize("architecture", ["sm_30", "sm_9", "compute_90", "90", "sm_90b", ""])
def test_an_architecture_that_it_does_not_know(architecture: str) -> None:
    with pytest.raises(CompileError, match=f"does not compile for {architecture}\n(.|\n)*one of sm_[0-9, sm_]+sm_80, .*sm_90"):
        nvrtc.compile(TRIVIAL, ["twice"], architecture)


def test_refused_code_keeps_its_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    text = 'extern "C" __global__ void f() { undeclared_thing(); }\n'
    with pytest.raises(CompileError, match=r"refused the code generated for f:\nkernel\.cu\(1\): error.*undeclared_thing") as caught:
        nvrtc.compile(text, ["f"], "sm_90")
    (kept,) = tmp_path.rglob("kernel.cu")
    assert kept.read_text() == text and str(kept) in caught.value.hint
    nvrtc.compile(TRIVIAL, ["twice"], "sm_90")
    assert list(tmp_path.rglob("kernel.cu")) == [kept]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(CompileError, match="no temporary directory"):
        nvrtc.compile(text, ["f"], "sm_90")


def test_long_complaints_are_shortened() -> None:
    with pytest.raises(CompileError, match=r"\.\.\. \d+ more lines"):
        nvrtc.compile("\n".join(f"int f{i}() {{ return x{i}; }}" for i in range(40)), ["f"], "sm_90")


def test_short_complaints_are_whole() -> None:
    with pytest.raises(CompileError) as caught:
        nvrtc.compile("int f() { return x; }", ["f"], "sm_90")
    assert "undefined" in caught.value.what and "more lines" not in caught.value.what


def test_a_kernel_that_is_not_there() -> None:
    with pytest.raises(CompileError, match="has no kernel thrice"):
        nvrtc.compile(TRIVIAL, ["twice", "thrice"], "sm_90")


def test_arithmetic_is_exact() -> None:
    """Division rounds correctly, denormals stay, NaN is not reasoned away: nothing of --use_fast_math."""
    kernels = {"product": "x[0] * x[1]", "quotient": "x[0] / x[1]", "unordered": "x[0] != x[0] ? 1.0f : 0.0f"}
    texts = [f'extern "C" __global__ void {name}(float *y, const float *x) {{ y[0] = {value}; }}' for name, value in kernels.items()]
    code = tools.sass(nvrtc.compile("\n".join(texts), list(kernels), "sm_90").cubin)
    assert tools.count(code["product"], "FMUL") == 1 and tools.count(code["product"], "FMUL", "FTZ") == 0
    assert tools.count(code["quotient"], "FCHK") == 1, "a division that looks at its operands"
    assert tools.count(code["unordered"], "FSETP") + tools.count(code["unordered"], "FSET") == 1


def test_threads_compile_side_by_side() -> None:
    names = [f"k{number}" for number in range(4)]
    found: dict[str, nvrtc.CubinFile] = {}

    def work(name: str) -> None:
        found[name] = nvrtc.compile(TRIVIAL.replace("twice", name), [name], "sm_90")

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(list(found[name].resources) == [name] for name in names)


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_compiles(release: str) -> None:
    with using(release):
        assert nvrtc.compile(TRIVIAL, ["twice"], "sm_90").resources["twice"].registers > 0
        assert release not in RELEASES[1:] or nvrtc.version().startswith(f"{release}, ")


@pytest.mark.parametrize("release", RELEASES)
def test_a_text_that_was_compiled_before_has_a_log(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC from 12.9 on caches, on a machine with a driver, and says nothing of registers and spills then."""
    with using(release):
        tool, asked = nvrtc._library(), list[str]()
        run = tool.run
        monkeypatch.setattr(tool, "run", lambda text, options: asked.extend(options) or run(text, options))
        for _ in range(2):
            assert nvrtc.compile(TRIVIAL, ["twice"], "sm_90").resources["twice"].registers > 0
        major, minor = map(int, tool.version.split("."))
        assert asked.count("--no-cache") == (2 if (major, minor) >= (12, 9) else 0)


def test_builtins_beside_a_library_without_run_path(tmp_path: Path) -> None:
    """In a process of its own: what is loaded stays."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the host ring has a C compiler"
    source = tmp_path / "nvrtc.c"
    source.write_text(WITHOUT_RUN_PATH)
    shared = [compiler, "-shared", "-fPIC", "-x", "c", "-w"]
    subprocess.run([*shared, str(source), "-o", str(tmp_path / "libnvrtc.so.13"), "-ldl"], check=True)
    builtins = tmp_path / "libnvrtc-builtins.so.13.0"
    subprocess.run([*shared, "/dev/null", "-Wl,-soname,libtcjit-test-builtins.so.13.0", "-o", str(builtins)], check=True)
    (tmp_path / "libnvrtc-builtins.so.13.1").write_text("no library")
    code = f"from tcjit.runtime import nvrtc; print(nvrtc._Library({str(tmp_path / 'libnvrtc.so.13')!r}).run('', []))"
    for expected in ("(0, '', b'x')", "(7, '', b'')"):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected
        builtins.unlink(missing_ok=True)
    code = f"from tcjit.runtime import nvrtc; print(nvrtc._Library({str(tmp_path / 'libnvrtc.so.13')!r}).cure('failed to open x-builtins'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"libnvrtc-builtins.so.13.0 belongs beside {tmp_path}" in done.stdout


class TestFinding:
    @pytest.fixture(autouse=True)
    def nowhere(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        """No library in any of the usual places."""
        monkeypatch.setattr(nvrtc, "_of_package", lambda package, folder: [])
        monkeypatch.setattr(nvrtc, "_of_toolkits", lambda: [])
        monkeypatch.setattr(nvrtc, "_MAJORS", ())
        nvrtc.find.cache_clear()
        yield
        nvrtc.find.cache_clear()

    def put(self, folder: Path, *names: str) -> list[Path]:
        folder.mkdir()
        for name in names:
            (folder / name).touch()
        return [folder]

    def test_none(self) -> None:
        with pytest.raises(CompileError, match=r"no NVRTC(.|\n)*pip install nvidia-cuda-nvrtc"):
            nvrtc.find()

    def test_what_torch_brings_comes_first(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        places = {
            "torch": self.put(tmp_path / "torch", "libnvrtc-672ee683.so.12", "libnvrtc-builtins.so.12.6"),
            "nvidia": self.put(tmp_path / "wheel", "libnvrtc.so.13", "libnvrtc-builtins.so.13.5", "libnvrtc.alt.so.13"),
        }
        monkeypatch.setattr(nvrtc, "_of_package", lambda package, folder: places[package])
        assert nvrtc.find() == str(tmp_path / "torch" / "libnvrtc-672ee683.so.12")

    @pytest.mark.parametrize(("driver", "found"), [(None, 13), ((13, 0), 13), ((12, 8), 12), ((11, 8), 13)])
    def test_no_later_than_the_driver(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver: tuple[int, int] | None, found: int
    ) -> None:
        """A driver that is older than all of them loads nothing anyway; compiling still works."""
        places = self.put(tmp_path / "a", "libnvrtc.so.12", "libnvrtc.so.12.9.86") + self.put(tmp_path / "b", "libnvrtc.so.13")
        monkeypatch.setattr(nvrtc, "_of_package", lambda package, folder: places if package == "nvidia" else [])
        monkeypatch.setattr(nvrtc, "driver_version", lambda: driver)
        assert nvrtc.find() == str(tmp_path / {12: "a", 13: "b"}[found] / f"libnvrtc.so.{found}")

    def test_old_releases_are_passed_over(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        places = self.put(tmp_path / "a", "libnvrtc.so.11.2") + self.put(tmp_path / "b", "libnvrtc.so.12")
        monkeypatch.setattr(nvrtc, "_of_toolkits", lambda: places)
        assert nvrtc.find() == str(tmp_path / "b" / "libnvrtc.so.12")
        text = "int nvrtcVersion(int *a, int *b) { *a = 12, *b = 3; return 0; }\nint nvrtcGetNumSupportedArchs(int *n) { return *n = 0; }\n"
        text += "int nvrtcGetSupportedArchs(int *a) { return 0; }"
        (tmp_path / "b" / "libnvrtc.so.12").write_bytes(host.build(text, "nvrtc"))
        with pytest.raises(CompileError, match=r"NVRTC 12\.3 in .*libnvrtc\.so\.12 is too old"):
            nvrtc._Library(nvrtc.find())

    def test_identity_follows_the_file(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        notes = Notes()
        assert nvrtc.identity() == nvrtc.identity(notes) == "none"
        monkeypatch.setattr(nvrtc, "_of_toolkits", lambda: [tmp_path])
        (tmp_path / "libnvrtc.so.13").touch()
        first = nvrtc.identity(notes)
        assert first == nvrtc.identity() != "none"
        (tmp_path / "libnvrtc.so.13").write_text("another")
        second = nvrtc.identity(notes)
        assert second != first
        (tmp_path / "libnvrtc.so.13").unlink()
        nvrtc.find.cache_clear()
        assert nvrtc.identity(notes) == second, "what it built is still good"
        assert nvrtc.identity() == "none"

    def test_a_file_that_is_no_library(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(nvrtc, "_of_toolkits", lambda: self.put(tmp_path / "x", "libnvrtc.so.12"))
        nvrtc._library.cache_clear()
        with pytest.raises(CompileError, match=r"libnvrtc\.so\.12 cannot be used"):
            nvrtc.compile(TRIVIAL, ["twice"], "sm_90")

    def test_packages_are_not_imported(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.undo()
        package = tmp_path / "tcjit_test_package"
        (package / "lib").mkdir(parents=True)
        (package / "__init__.py").write_text("raise AssertionError('imported')")
        monkeypatch.syspath_prepend(str(tmp_path))
        assert nvrtc._of_package("tcjit_test_package", "lib") == [package / "lib"]
        assert nvrtc._of_package("tcjit_no_such_package", "lib") == []


# ---------------------------------------------------------------- resources and occupancy


def test_log() -> None:
    assert resources(LOG, ["g", "f"]) == {
        "g": Resources(10),
        "f": Resources(255, stack=80, spill_stores=12, spill_loads=20, shared=8192),
    }
    with pytest.raises(CompileError, match="no kernel h, i"):
        resources(LOG, ["f", "h", "i"])


def test_resources_of_real_kernels() -> None:
    taken = nvrtc.compile(SGEMM + LOCAL, ["sgemm", "local"], "sm_90").resources
    assert taken["sgemm"].shared == 2 * 8 * 128 * 4 and taken["sgemm"].stack == taken["sgemm"].spill_loads == 0
    assert 64 < taken["sgemm"].registers <= 255
    assert taken["local"].stack >= 160 and taken["local"].shared == 0


# from NVIDIA's cuda_occupancy.h: registers, static and dynamic shared bytes, threads -> blocks
@pytest.mark.parametrize(
    ("device", "registers", "static", "dynamic", "threads", "blocks", "limit"),
    [
        (SM_90, 32, 0, 0, 256, 8, "threads"),
        (SM_90, 16, 0, 0, 32, 32, "blocks"),
        (SM_90, 117, 8192, 0, 256, 2, "registers"),
        (SM_90, 255, 0, 0, 256, 1, "registers"),
        (SM_90, 255, 0, 0, 512, 0, "registers"),
        (SM_90, 64, 0, 100 << 10, 128, 2, "shared"),
        (SM_80, 64, 0, 100 << 10, 128, 1, "shared"),
        (SM_80, 40, 16384, 0, 192, 8, "registers"),
        (SM_80, 40, 20000, 0, 160, 7, "shared"),
    ],
)
def test_occupancy(device: Any, registers: int, static: int, dynamic: int, threads: int, blocks: int, limit: str) -> None:
    found = occupancy(Resources(registers, shared=static), threads, device, dynamic)
    warps = blocks * -(-threads // 32)
    assert found == Occupancy(blocks, warps, warps / 64, limit)


def test_the_system_takes_shared_memory_of_every_block() -> None:
    assert nvrtc_log.RESERVED == 1024
    assert occupancy(Resources(16, shared=113 << 10), 32, SM_90).blocks == 2
    assert occupancy(Resources(16, shared=114 << 10), 32, SM_90).blocks == 1


# ---------------------------------------------------------------- machine code


@pytest.fixture(scope="module")
def sgemm() -> list[tools.Instruction]:
    return tools.sass(nvrtc.compile(SGEMM, ["sgemm"], "sm_90").cubin)["sgemm"]


def test_the_inner_loop_of_a_matrix_product(sgemm: list[tools.Instruction]) -> None:
    inner = tools.innermost(sgemm)
    assert tools.histogram(inner)["FFMA"] == 8 * 8 * 8
    assert tools.count(inner, "LDS") == tools.count(inner, "LDS", "128") == 8 * (2 + 2)
    assert tools.count(inner, "LDG") == tools.count(inner, "LDG", "128") == 2
    assert tools.count(inner, "STS") == 5 and tools.count(inner, "STS", "128") == 1
    assert tools.count(inner, "BAR") == 2
    assert tools.count(sgemm, "STG") == 64 and tools.count(inner, "STG") == 0
    assert tools.count(sgemm, "LDL") == tools.count(sgemm, "STL") == 0


def test_local_memory_shows() -> None:
    code = tools.sass(nvrtc.compile(LOCAL, ["local"], "sm_80").cubin)["local"]
    assert tools.count(code, "STL") > 0 and tools.count(code, "LDL") > 0
    assert len(tools.loops(code)) >= 1


def test_instructions_are_read_whole(sgemm: list[tools.Instruction]) -> None:
    assert [i.address for i in sgemm] == list(range(0, 16 * len(sgemm), 16))
    (branch,) = (i for i in tools.innermost(sgemm) if i.name == "BRA")
    assert branch.predicate in ("P0", "!P0") and branch.target == tools.innermost(sgemm)[0].address
    assert sum(i.name == "EXIT" for i in sgemm) == 1


def test_innermost_loops_only() -> None:
    text = """extern "C" __global__ void nest(float *y, int n) {
      #pragma unroll 1
      for (int i = 0; i < n; i++) {
        y[i] = 0;
        #pragma unroll 1
        for (int j = 0; j < n; j++) y[i] = y[i] * 2.0f + __ldg(&y[j + n]);
      }
    }"""
    code = tools.sass(nvrtc.compile(text, ["nest"], "sm_90").cubin)["nest"]
    (loop,) = tools.loops(code)
    assert loop == tools.innermost(code) and tools.count(loop, "FFMA") == 1 and tools.count(loop, "BRA") == 1
    assert tools.innermost([]) == []
