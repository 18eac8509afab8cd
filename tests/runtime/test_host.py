"""The C compiler: found, asked once, run on kernels; what it built is loaded into the OpenMP runtime that torch uses."""
from __future__ import annotations

import ctypes
import dataclasses
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support import PYTHONPATH

from tcjit.errors import CompileError, LaunchError
from tcjit.runtime import host

ADD = """
#include <stdint.h>
int64_t add_one(void *const *tensors, const int64_t *numbers, void *workspace, int threads) {
  float *a = tensors[0];
  (void)workspace;
  #pragma omp parallel for num_threads(threads)
  for (int64_t i = 0; i < numbers[0]; i++) a[i] += 1.0f;
  return 7;
}
"""


class Notes:
    """A memory for one test; counts what was asked of it."""

    def __init__(self) -> None:
        self.notes: dict[str, dict[str, Any]] = {}
        self.puts = 0

    def note(self, name: str) -> dict[str, Any] | None:
        return self.notes.get(name)

    def put_note(self, name: str, note: dict[str, Any]) -> None:
        self.puts += 1
        self.notes[name] = note


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_known", {})


def wrapper(path: Path, body: str = 'exec gcc "$@"') -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def call(path: Path, symbol: str, values: list[float]) -> tuple[int, list[float]]:
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    data = (ctypes.c_float * len(values))(*values)
    tensors = (ctypes.c_void_p * 1)(ctypes.addressof(data))
    numbers = (ctypes.c_int64 * 1)(len(values))
    return kind(host.load(path, symbol))(tensors, numbers, None, 2), list(data)


def test_build_load_call(tmp_path: Path) -> None:
    library = host.build(ADD, "add_one")
    assert host.build(ADD, "add_one") == library, "the same text gives the same bytes"
    assert str(tmp_path.parent).encode() not in library and b"/tcjit-" not in library
    path = tmp_path / "add.so"
    path.write_bytes(library)
    assert call(path, "add_one", [1.0, 2.5, -1.0]) == (7, [2.0, 3.5, 0.0])
    assert host.load(path, "add_one") == host.load(str(path), "add_one")


def test_flags() -> None:
    tool = host.compiler()
    assert os.path.isabs(tool.path) and os.access(tool.path, os.X_OK)
    assert " version " in tool.version and tool.target and tool.cpu
    assert tool.openmp == ("-fopenmp" in tool.flags)
    for flag in ("-O2", "-fwrapv", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fPIC", "-shared", "-std=gnu11"):
        assert flag in tool.flags
    assert not any("fast-math" in flag or flag == "-Ofast" for flag in (*tool.flags, *tool.libraries))
    features = Path("/proc/cpuinfo").read_text().split() if os.path.exists("/proc/cpuinfo") else []
    assert ("-mprefer-vector-width=512" in tool.flags) == ("avx512f" in features)
    assert ("-mprefer-vector-width=256" in tool.flags) == ("avx" in features and "avx512f" not in features)


def test_short_arrays_are_moved_whole(tmp_path: Path) -> None:
    """gcc 12 fills an array in two stores of half of it where it takes the processor for an old one, and a read of all waits for both."""
    tool = host.compiler()
    if tool.vector_bytes < 32:
        pytest.skip("vectors of 32 bytes and more are what it is about")
    text = """
typedef float vector __attribute__((vector_size(BYTES)));
typedef float unaligned __attribute__((vector_size(BYTES), aligned(4), may_alias));
void f(float *restrict y, const float *restrict x, long n) {
  vector sum = {0};
  for (long i = 0; i < n; ++i) {
    float terms[BYTES / 4] __attribute__((aligned(64)));
#pragma omp simd
    for (int l = 0; l < BYTES / 4; ++l) terms[l] = x[17 * i + l];
    sum = sum + *(const unaligned *)terms;
  }
  *(unaligned *)y = sum;
}
"""
    (tmp_path / "f.c").write_text(text)
    flags = [*(flag for flag in tool.flags if flag != "-shared"), f"-DBYTES={tool.vector_bytes}"]
    subprocess.run([*tool.command, *flags, "-S", "f.c", "-o", "f.s"], cwd=tmp_path, check=True)
    half = {32: "xmm", 64: "ymm"}[tool.vector_bytes]
    assert not re.search(rf"\(.*%{half}|%{half}.*\(", (tmp_path / "f.s").read_text())


# gcc 12 keeps a slot for the private copies of `sum` in the red zone, clears it with an aligned store, and does not align it
SHORT_SUM = """
#include <stdint.h>
int64_t f(void *const *tensors, const int64_t *numbers, void *workspace, int threads) {
  int *restrict z = tensors[0];
  const int *restrict x = tensors[1];
  const double *restrict y = tensors[2];
  const int64_t s0 = numbers[0], s1 = numbers[1];
  for (int64_t i = 0; i < 3; i++) {
    z[i] = 0;
    {
      int sum = z[i];
      #pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k < 5; k++) sum += x[i * s0 + (2 * k + 2) * s1] + (int)y[3 * i + k];
      z[i] = sum;
    }
  }
  return 0;
}
"""
CALLED = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
z, x, y = (ctypes.c_int * 3)(), (ctypes.c_int * 40)(*range(40)), (ctypes.c_double * 16)(*range(16))
tensors = (ctypes.c_void_p * 3)(*map(ctypes.addressof, (z, x, y)))
library.f(tensors, (ctypes.c_int64 * 2)(11, 1), None, 1)
print(*z)
"""


def test_slots_on_the_stack_are_aligned(tmp_path: Path) -> None:
    path = tmp_path / "sum.so"
    path.write_bytes(host.build(SHORT_SUM, "f"))
    result = subprocess.run([sys.executable, "-c", CALLED, str(path)], capture_output=True, text=True, check=False)
    expected = [sum(11 * i + 2 * k + 2 + 3 * i + k for k in range(5)) for i in range(3)]
    assert (result.returncode, result.stdout) == (0, " ".join(map(str, expected)) + "\n"), result.stderr


def test_library_calls_are_found_at_load(tmp_path: Path) -> None:
    text = """
    float expf(float); double pow(double, double); void *memset(void *, int, unsigned long);
    long f(float *a, long n) { memset(a, 0, n * sizeof *a); a[0] = expf(1.0f) + pow(a[1], 0.5); return sizeof(__int128); }
    unsigned __int128 divide(unsigned __int128 a, unsigned __int128 b) { return a / b; }
    """
    path = tmp_path / "f.so"
    path.write_bytes(host.build(text, "f"))
    data = (ctypes.c_float * 64)(*[3.0] * 64)
    assert ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_long)(host.load(path, "f"))(data, 64) == 16
    assert data[0] == pytest.approx(2.7182817) and data[63] == 0.0


def test_denormals_and_nan_survive_a_loaded_kernel(tmp_path: Path) -> None:
    path = tmp_path / "add.so"
    path.write_bytes(host.build(ADD, "add_one"))
    host.load(path, "add_one")
    tiny = sys.float_info.min / 4
    assert tiny * 2 / 2 == tiny != 0.0, "a library linked with -ffast-math would flush this to zero"


def test_refused_code_keeps_its_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    text = "long f(void) { return undeclared_thing; }\n"
    with pytest.raises(CompileError, match=r"refused the code generated for f:(.|\n)*kernel\.c:1.*undeclared_thing") as caught:
        host.build(text, "f")
    kept = list(tmp_path.rglob("kernel.c"))
    assert len(kept) == 1 and kept[0].read_text() == text
    assert str(kept[0]) in caught.value.hint
    host.build(ADD, "add_one")
    assert list(tmp_path.rglob("kernel.c")) == kept, "what compiles leaves nothing behind"


def test_several_units_are_one_library(tmp_path: Path) -> None:
    """Each is compiled by itself; what one refuses is said as of one, and the source of that is kept."""
    texts = ["long g(void);\nlong f(void) { return g() + 1; }\n", '__attribute__((visibility("hidden"))) long g(void) { return 41; }\n']
    library = host.build(texts, "f")
    assert host.build(texts, "f") == library and b"/tcjit-" not in library
    path = tmp_path / "units.so"
    path.write_bytes(library)
    assert ctypes.CFUNCTYPE(ctypes.c_long)(host.load(path, "f"))() == 42
    assert not hasattr(ctypes.CDLL(str(path)), "g")


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_refused_unit_keeps_its_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: int) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    texts = ["long f(void) { return 1; }\n", "long g(void) { return 2; }\n"]
    texts[wrong] = "long h(void) { return undeclared_thing; }\n"
    name = ["kernel.c", "kernel1.c"][wrong]
    with pytest.raises(CompileError, match=rf"refused the code generated for f:(.|\n)*{name}:1.*undeclared_thing") as caught:
        host.build(texts, "f")
    (kept,) = tmp_path.rglob(name)
    assert kept.read_text() == texts[wrong] and str(kept) in caught.value.hint


def test_every_fact_of_a_compiler_is_part_of_its_identity() -> None:
    tool = host.compiler()
    others = {"command": ("x",), "version": "x", "target": "x", "cpu": "x", "flags": (), "libraries": (), "stamps": (), "script": "x"}
    assert others.keys() | {"openmp"} == {field.name for field in dataclasses.fields(tool)}, "openmp follows from the flags"
    identities = [dataclasses.replace(tool, **{name: value}).identity for name, value in others.items()]
    assert len({tool.identity, *identities}) == len(others) + 1


@pytest.mark.parametrize("when", ["*", "*kernel.c*"])
def test_a_full_disk_is_not_the_compilers_fault(forgetful: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, when: str) -> None:
    body = f'case "$*" in {when}) echo "as: cannot write: No space left on device" >&2; exit 1;; esac\nexec gcc "$@"'
    monkeypatch.setenv("CC", str(wrapper(tmp_path / "cc", body)))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(CompileError, match="No space left") as caught:
        host.build(ADD, "add_one")
    assert caught.value.hint == f"room in TMPDIR: {tmp_path}"
    assert not list(tmp_path.glob("tcjit-*"))


def test_programs_end_when_their_time_is_over(forgetful: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host.compiler()
    began = time.monotonic()
    with host.limited(began + 0.5), pytest.raises(host.TimedOut, match="did not end in the time"):
        host.execute(("sleep", "60"), tmp_path)
    with host.limited(began), host.limited(began + 60), pytest.raises(host.TimedOut):
        host.execute(("true",), tmp_path)
    assert time.monotonic() - began < 10 and host.execute(("true",), tmp_path) == (0, "")


def test_the_c_library_is_told_by_version_and_vector_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    here = host.c_library()
    assert here == host.c_library() and (not sys.platform.startswith("linux") or here)
    monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.99")
    newer = host.c_library()
    assert newer != here and newer.startswith("glibc 2.99")
    monkeypatch.setattr(host, "VECTOR_LIBRARY", "libno-such-thing.so.9")
    assert host.c_library() == "glibc 2.99"

    def refuse(name: str) -> str:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "confstr", refuse)  # musl, macOS
    assert host.c_library() == "unknown"


def test_what_is_known_of_a_c_library_is_not_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: dict[str, dict[str, Any]] = {}

    class Notes:
        def note(self, name: str) -> dict[str, Any] | None:
            return notes.get(name)

        def put_note(self, name: str, note: dict[str, Any]) -> None:
            notes[name] = note

    monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.99")
    first = host.c_library(Notes())
    monkeypatch.setattr(ctypes, "CDLL", None)
    assert len(notes) == 1 and host.c_library(Notes()) == first
    monkeypatch.undo()
    (key,) = notes
    notes[key] = {"vectors": "damaged"}
    monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.99")
    assert host.c_library(Notes()) == first and type(notes[key]["vectors"]) is bool


def test_no_temporary_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host.compiler()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(CompileError, match="no temporary directory"):
        host.build(ADD, "add_one")


def test_loading_what_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(b"not a library")
    with pytest.raises(LaunchError, match="cannot load"):
        host.load(tmp_path / "x.so", "f")
    with pytest.raises(LaunchError, match="cannot load"):
        host.load(tmp_path / "missing.so", "f")
    (tmp_path / "add.so").write_bytes(host.build(ADD, "add_one"))
    with pytest.raises(LaunchError, match="has no function other"):
        host.load(tmp_path / "add.so", "other")


@pytest.mark.usefixtures("forgetful")
class TestSearch:
    def test_none(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(CompileError, match="none of cc, gcc, clang is on PATH") as caught:
            host.compiler()
        assert "apt install" in caught.value.hint or "xcode-select" in caught.value.hint
        assert host.identity() == "none"

    def test_wrong_cc(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CC", "no-such-compiler -m64")
        with pytest.raises(CompileError, match="CC='no-such-compiler -m64' is not a program"):
            host.compiler()
        monkeypatch.setenv("CC", "gcc 'unfinished")
        with pytest.raises(CompileError, match="is no command"):
            host.compiler()

    def test_cc_is_not_a_shell_line(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("CC", f"gcc; touch {tmp_path}/oops")
        with pytest.raises(CompileError):
            host.compiler()
        assert list(tmp_path.iterdir()) == []

    def test_cc_that_cannot_compile(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("CC", str(wrapper(tmp_path / "broken", "echo out of luck >&2; exit 1")))
        with pytest.raises(CompileError, match="cannot build a small program:\nout of luck"):
            host.compiler()

    def test_cc_with_arguments_and_by_order(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        wrapper(tmp_path / "mine")
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setenv("CC", "mine -DX=1")
        assert host.compiler().command == (str(tmp_path / "mine"), "-DX=1")
        monkeypatch.delenv("CC")
        wrapper(tmp_path / "clang")
        assert host.compiler().path.endswith("cc"), "cc comes before clang, wherever they are"
        wrapper(tmp_path / "cc")
        monkeypatch.setattr(host, "_known", {})
        assert host.compiler().path == str(tmp_path / "cc")

    def test_a_compiler_with_few_flags(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """No OpenMP and no vector width: the rest is kept, kernels run on one thread."""
        body = 'for a in "$@"; do case "$a" in -fopenmp|-mprefer*|-nostdlib) exit 1;; esac; done; exec gcc "$@"'
        monkeypatch.setenv("CC", str(wrapper(tmp_path / "plain", body)))
        tool = host.compiler()
        assert not tool.openmp and "-fopenmp" not in tool.flags
        assert "-march=native" in tool.flags and "-O2" in tool.flags
        path = tmp_path / "add.so"
        path.write_bytes(host.build(ADD, "add_one"))
        assert call(path, "add_one", [1.0])[1] == [2.0]


@pytest.mark.usefixtures("forgetful")
class TestMemory:
    def test_asked_once(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        log = tmp_path / "log"
        script = wrapper(tmp_path / "cc", f'echo run >> {log}; exec gcc "$@"')
        monkeypatch.setenv("CC", str(script))
        notes = Notes()
        first = host.compiler(notes)
        asked = log.read_text()
        monkeypatch.setattr(host, "_known", {})  # as in a new process
        assert host.compiler(notes) == first and host.identity(notes) == first.identity
        assert log.read_text() == asked and notes.puts == 1
        os.utime(script, ns=(1, 1))
        assert host.identity(notes) != first.identity, "another compiler may stand there now"
        assert log.read_text() != asked and notes.puts == 2
        monkeypatch.setenv("CC", "gcc")
        assert host.compiler(notes).path != str(script)

    def test_a_wrapper_edited_with_size_and_time_kept(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        script = wrapper(tmp_path / "cc", 'exec gcc -DX=1 "$@"')
        monkeypatch.setenv("CC", str(script))
        notes = Notes()
        first, status = host.compiler(notes), script.stat()
        assert host.compiler(notes).fresh
        wrapper(script, 'exec gcc -DX=2 "$@"')
        os.utime(script, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert (script.stat().st_size, script.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
        assert not first.fresh and host.identity(notes) != first.identity

    def test_a_compiler_that_was_only_moved_is_the_same(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """As in the image of a container, whose files have a ctime of their own on every machine: what was compiled stays good."""
        script = wrapper(tmp_path / "cc")
        monkeypatch.setenv("CC", str(script))
        first = host.compiler(Notes())
        script.chmod(0o700), script.chmod(0o755)
        assert not first.fresh and host.compiler(Notes()).identity == first.identity

    def test_known_in_the_process_first(self) -> None:
        found = host.compiler()
        notes = Notes()
        assert host.compiler(notes) is found
        assert notes.puts == 1, "later processes learn it too"

    def test_a_compiler_that_has_gone(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Binaries made by it are still good where there is no other: a machine image without a compiler."""
        script = wrapper(tmp_path / "cc")
        monkeypatch.setenv("CC", str(script))
        notes = Notes()
        identity = host.compiler(notes).identity
        script.unlink()
        monkeypatch.setattr(host, "_known", {})
        assert host.identity(notes) == identity
        with pytest.raises(CompileError, match="no C compiler"):
            host.compiler(notes)

    def test_notes_of_another_version(self) -> None:
        notes = Notes()
        host.compiler(notes)
        good = next(iter(notes.notes.values()))
        for bad in ({}, {**good, "stamps": [1]}, {**good, "stamps": [["x", "y", "z"]]}, {**good, "flags": 3}):
            notes.notes = {name: dict(bad) for name in notes.notes}
            assert host.compiler(notes).version == good["version"]


def test_one_openmp_runtime_with_torch(tmp_path: Path) -> None:
    """A kernel loaded after torch calls the libgomp that torch brought."""
    path = tmp_path / "where.so"
    text = "int omp_get_max_threads(void); long where(void) { return (long)&omp_get_max_threads; }"
    path.write_bytes(host.build(text, "where"))
    code = f"""
import torch, ctypes
from pathlib import Path
from tcjit.runtime import host
address = ctypes.CFUNCTYPE(ctypes.c_long)(host.load({str(path)!r}, "where"))()
lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
mine = next(p[-1] for p in lines if int(p[0].split("-")[0], 16) <= address < int(p[0].split("-")[1], 16))
assert "gomp" in mine, mine
assert len({{p[-1] for p in lines if "libgomp" in p[-1]}}) == 1, "two OpenMP runtimes"
assert "torch" in mine or not any(Path(torch.__file__).parent.rglob("libgomp*"))
print("same")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": PYTHONPATH})
    assert done.stdout == "same\n", done.stderr


def test_caches_are_what_the_system_says_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "CACHES", tmp_path)
    assert host.cache_bytes(1) == 0, "nothing is said"
    caches = [("1", "Instruction", "64K"), ("1", "Data", "48K"), ("2", "Unified", "2M"), ("3", "Unified", "much")]
    for number, (level, kind, size) in enumerate(caches):
        (tmp_path / f"index{number}").mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (tmp_path / f"index{number}" / name).write_text(text + "\n")
    (tmp_path / "index4").mkdir()
    assert [host.cache_bytes(level) for level in (1, 2, 3, 4)] == [48 << 10, 2 << 20, 0, 0]
