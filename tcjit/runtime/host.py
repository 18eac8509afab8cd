"""The system's C compiler: found once, asked once what it can do, then run on kernels; and the loading of what it built.

Kernels use OpenMP through the ``libgomp.so.1`` that the process already has. PyTorch brings its own copy, so a kernel must be loaded
after ``import torch``: then both share one pool of threads. The caller sees to that; nothing here imports torch.

Floating-point arithmetic keeps NaN, infinity, signed zero and the order of operations, so no flag here ever implies ``-ffast-math``
(given to the linker it would also set flush-to-zero for the whole process).
"""
from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from tcjit import config, scratch
from tcjit.dataclass import dataclass
from tcjit.errors import CompileError, LaunchError

NAMES = ("cc", "gcc", "clang")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")  # os.sysconf has no names for them
TIME_LIMIT = 600.0  # seconds for one compilation
VECTOR_FLAGS = ("sse4", "avx", "fma", "f16c", "amx", "asimd", "sve", "sme", "rv64")  # how the names of vector units start
VECTOR_LIBRARY = "libmvec.so.1"  # glibc's mathematical functions on whole vector registers

_BASE = (
    "-O2", "-std=gnu11", "-fPIC", "-shared", "-fwrapv", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast",
)  # fmt: skip
# asked for where the compiler takes them; gcc's predictive commoning would carry the operands of one step of a convolution over to the
# next, in more registers than there are
_OPTIONAL = ("-fopenmp", "-pipe", "-fno-predictive-commoning")
# On x86-64, asked for as well. Where all of a leaf function's frame fits into the red zone, gcc (bug 109780, seen with 12.2) forgets that a
# slot which it reaches through another register than the stack pointer is aligned: the aligned store that clears the private copies of an
# ``omp simd`` reduction then faults. A frame outside the red zone keeps its alignment.
_X86 = ("-mno-red-zone",)
# Ways to link, the first that works. Without start files and default libraries a link takes 33 instead of 38 ms (gcc 12): libc's
# own symbols are then found at load, in the process.
_PLAIN_LINKS: tuple[tuple[str, ...], ...] = (("-Wl,--as-needed", "-lmvec", "-lm"), ("-lm",), ())
_LINKS = (
    ("-nostdlib", "-fno-use-linker-plugin", "-Wl,--as-needed", "-lgomp", "-lmvec", "-lm", "-lgcc"),
    ("-nostdlib", "-fno-use-linker-plugin", "-Wl,--as-needed", "-lgomp", "-lm", "-lgcc"),
    *_PLAIN_LINKS,
)
_FULL = ("No space left on device", "Disk quota exceeded", "File too large")
_TRIAL = """
float expf(float);
long tcjit_trial(float *a, long n, int threads) {
  (void)threads;
  #pragma omp parallel for num_threads(threads)
  for (long i = 0; i < n; i++) a[i] = expf(a[i]) * 2.0f;
  return n;
}
"""


_until: ContextVar[float] = ContextVar("until", default=math.inf)  # time.monotonic() at which programs are ended


class TimedOut(CompileError):
    """A compiler was still running when the time was over in which it should have ended."""


@contextmanager
def limited(until: float) -> Iterator[None]:
    """Within it, programs are ended when ``time.monotonic()`` is ``until``, and none starts later: TimedOut."""
    token = _until.set(min(until, _until.get()))
    try:
        yield
    finally:
        _until.reset(token)


class Notes(Protocol):
    """Keeps small JSON facts between processes; the cache's store is one."""

    def note(self, name: str) -> dict[str, Any] | None: ...

    def put_note(self, name: str, note: dict[str, Any]) -> None: ...


Stamp = tuple[str, int, int, int]  # path, mtime and ctime in ns, size


@dataclass(frozen=True)
class Compiler:
    """A working C compiler. ``command`` starts with its absolute path; ``flags`` go before the source, ``libraries`` after it."""

    command: tuple[str, ...]
    version: str
    target: str  # the target triple
    cpu: str
    flags: tuple[str, ...]
    libraries: tuple[str, ...]
    openmp: bool  # without it kernels run on one thread
    stamps: tuple[Stamp, ...]  # of the files that make it up
    script: str = ""  # a hash of the program's text, where it is a wrapper

    @property
    def path(self) -> str:
        return self.command[0]

    @property
    def identity(self) -> str:
        """One text that changes whenever the code that this compiler generates might."""
        # without the ctime, which tells when a file was put here: the same compiler in an image that was copied is the same compiler
        files = tuple((path, mtime, size) for path, mtime, _, size in self.stamps)
        facts = (self.command, self.version, self.target, self.cpu, self.flags, self.libraries, files, self.script)
        return hashlib.sha256(repr(facts).encode("utf-8", "surrogateescape")).hexdigest()

    @property
    def vector_bytes(self) -> int:
        """The width of the vector registers that its flags make use of."""
        if "-mprefer-vector-width=512" in self.flags:
            return 64
        return 32 if "-march=native" in self.flags and not self.target.startswith(("aarch64", "arm64")) else 16

    @property
    def fresh(self) -> bool:
        """Whether its files are still those that were asked."""
        return all(_stamp(stamp[0]) == stamp for stamp in self.stamps)


def compiler(memory: Notes | None = None) -> Compiler:
    """The C compiler: ``CC`` if set, else the first of cc, gcc, clang on ``PATH``; a CompileError where there is none.

    It is asked once what it can do; the answer is kept in ``memory`` and in the process until ``CC``, ``PATH``, the processor or
    the compiler's files change.
    """
    key = _memory_key()
    noted = _noted(key, memory)
    known = noted or _known.get(key)
    if known is None or not known.fresh:
        known = _probe(_search())
    _known[key] = known
    if memory is not None and known is not noted:
        memory.put_note(key, asdict(known))
    return known


def is_known(memory: Notes | None = None) -> bool:
    """Whether the compiler, or one before it, has been asked."""
    key = _memory_key()
    return key in _known or _noted(key, memory) is not None


def identity(memory: Notes | None = None) -> str:
    """Compiler, flags and processor as a part of cache keys: equal where binaries are interchangeable.

    Where the compiler that built the cached binaries is gone and there is no other, they remain good: it is that compiler's
    identity, and without any compiler ever seen ``"none"``.
    """
    key = _memory_key()
    known = _noted(key, memory)
    if known is not None and known.fresh:
        return known.identity
    try:
        return compiler(memory).identity
    except CompileError:
        known = known or _known.get(key)
        return known.identity if known is not None else "none"


def build(units: str | Sequence[str], symbol: str, extra_flags: Sequence[str] = (), memory: Notes | None = None) -> bytes:
    """Compile C text, or that of several translation units side by side, and return the bytes of the shared object.

    A refusal is a CompileError with the compiler's own words; the source then stays in the directory that the error names.
    """
    tool = compiler(memory)
    held = _temporary()
    folder = Path(held.path)
    texts = [units] if isinstance(units, str) else units
    names = ["kernel.c", *(f"kernel{n}.c" for n in range(1, len(texts)))]  # relative: the directory's own must not reach the binary

    def run(inputs: Sequence[str], output: str, flags: Sequence[str], libraries: Sequence[str] = ()) -> None:
        status, words = execute((*tool.command, *flags, *extra_flags, *inputs, "-o", output, *libraries), folder)
        if status != 0:
            hint = _room(words, held) or f"please report it with the source, kept in {os.path.join(held.keep(), inputs[0])}"
            raise CompileError(f"{tool.path} refused the code generated for {symbol}:\n{shortened(words)}", hint=hint)

    try:
        for name, text in zip(names, texts, strict=True):
            (folder / name).write_text(text, encoding="utf-8")
        if len(names) > 1:
            flags, objects = [*(flag for flag in tool.flags if flag != "-shared"), "-c"], [name.replace(".c", ".o") for name in names]
            with ThreadPoolExecutor(len(names)) as pool:
                tasks = [pool.submit(copy_context().run, run, [name], made, flags) for name, made in zip(names, objects, strict=True)]
            for task in tasks:
                task.result()
            names = objects
        run(names, "kernel.so", tool.flags, tool.libraries)
        return (folder / "kernel.so").read_bytes()
    except OSError as error:
        raise CompileError(f"cannot compile {symbol} in {folder}: {error.strerror}", hint="room in TMPDIR") from error
    finally:
        held.remove()


def load(path: Path | str, symbol: str) -> int:
    """The address of ``symbol`` in a shared object, which stays loaded; a LaunchError where it cannot be loaded.

    Import torch first (see above), and give only files that were checked: loading one runs code.
    """
    name = os.fspath(path)
    library = _loaded.get(name)
    if library is None:
        try:
            library = _loaded[name] = ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            raise LaunchError(f"cannot load {name}: {error}", hint="tcjit.cache.verify() drops damaged kernels") from error
    try:
        address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    except AttributeError:
        address = None
    if address is None:
        raise LaunchError(f"{name} has no function {symbol}", hint="tcjit.cache.verify() drops damaged kernels")
    return address


def identities(memory: Notes, notes: Iterable[Mapping[str, Any]]) -> list[str]:
    """The identities of the current compiler and of the noted ones whose files are unchanged, which other environments may use."""
    known = [identity(memory)]
    for note in notes:
        with suppress(KeyError, TypeError, ValueError):
            noted = _from_note(dict(note))
            if noted.fresh and noted.identity not in known:
                known.append(noted.identity)
    return known


def cpu() -> str:
    """The processor as far as generated code depends on it: its model and a hash of what it can do."""
    facts, machine = _processor(), os.uname().machine
    digest = hashlib.sha256(repr(sorted(facts.items())).encode()).hexdigest()[:12]
    return f"{facts.get('model name', machine)} ({machine} {digest})"


def hardware() -> str:
    """The processor as far as it decides which options are best: its model, vector units and number. A new kernel of the system may tell
    more of what it can do, and changes nothing here."""
    able = sorted(feature for feature in cpu_features() if feature.startswith(VECTOR_FLAGS))
    return f"{_processor().get('model name', '')} ({os.uname().machine}), {os.cpu_count()} processors, {' '.join(able)}"


def cores() -> int:
    """The number of processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_features() -> set[str]:
    """The processor's instruction-set features, by the system's names."""
    return {feature for name in ("flags", "Features", "isa") for feature in _processor().get(name, "").split()}


def cache_bytes(level: int) -> int:
    """Of a core's cache for data of the first or second level; 0 where the system does not tell."""
    for cache in sorted(CACHES.glob("index*")):
        with suppress(OSError, ValueError, KeyError):  # of a cache that says less
            kind, size = ((cache / name).read_text(encoding="ascii").strip() for name in ("type", "size"))
            if kind in ("Data", "Unified") and int((cache / "level").read_text(encoding="ascii")) == level:
                return int(size[:-1]) << {"K": 10, "M": 20}[size[-1:]]
    return 0


@functools.lru_cache(maxsize=1)
def _processor() -> dict[str, str]:
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "isa", "uarch", "cpu")
    facts: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if not line.strip():
                    break  # the first processor is enough, and on large machines much faster
                if name.strip() in wanted or name.startswith("CPU "):
                    facts[name.strip()] = value.strip()
    except OSError:
        pass
    return facts


def c_library(memory: Notes | None = None) -> str:
    """The C library as far as kernels depend on it: glibc's version, which decides what its libmvec offers, and whether that is there.

    Told by these two instead of by every symbol (``vector_math``), and the second by ``memory`` where that knows this version: loading
    the library would take a warm process another millisecond.
    """
    try:
        version = os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
    except (AttributeError, OSError, ValueError):
        return "unknown"
    key = "c-library-" + hashlib.sha256(f"{version} {VECTOR_LIBRARY} {cpu()}".encode()).hexdigest()[:32]
    noted = memory.note(key) if memory is not None else None
    vectors = noted.get("vectors") if noted is not None else None
    if type(vectors) is not bool:
        try:
            ctypes.CDLL(VECTOR_LIBRARY)
            vectors = True
        except OSError:
            vectors = False
        if memory is not None:
            memory.put_note(key, {"vectors": vectors})
    return f"{version} with {VECTOR_LIBRARY}" if vectors else version


# What this process has learned and loaded: compilers by what they were asked for, libraries by path (never unloaded, since
# addresses in them have been given out).
_known: dict[str, Compiler] = {}
_loaded: dict[str, ctypes.CDLL] = {}


def _memory_key() -> str:
    asked = "\0".join((os.environ.get("CC", ""), os.environ.get("PATH", os.defpath), cpu(), *_BASE, *_OPTIONAL, *_X86))
    return "compiler-" + hashlib.sha256(asked.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _noted(key: str, memory: Notes | None) -> Compiler | None:
    note = memory.note(key) if memory is not None else None
    if note is None:
        return None
    try:
        return _from_note(note)
    except (KeyError, TypeError, ValueError):
        return None  # written by another version of tcjit


def _from_note(note: dict[str, Any]) -> Compiler:
    return Compiler(
        command=tuple(map(str, note["command"])),
        version=str(note["version"]),
        target=str(note["target"]),
        cpu=str(note["cpu"]),
        flags=tuple(map(str, note["flags"])),
        libraries=tuple(map(str, note["libraries"])),
        openmp=bool(note["openmp"]),
        stamps=tuple((str(path), int(mtime), int(ctime), int(size)) for path, mtime, ctime, size in note["stamps"]),
        script=str(note["script"]),
    )


def _stamp(path: str) -> Stamp | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return path, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _script(path: str) -> str:
    """A hash of a program that is a script: one edited with size and mtime kept is another."""
    with suppress(OSError), open(path, "rb") as file:
        if file.read(2) == b"#!":
            return hashlib.sha256(file.read()).hexdigest()
    return ""


def _search() -> tuple[str, ...]:
    """The command of the first compiler there is, its program as an absolute path."""
    asked = os.environ.get("CC", "").strip()
    try:
        candidates = [tuple(shlex.split(asked))] if asked else [(name,) for name in NAMES]
    except ValueError as error:
        raise config.refused("CC", asked, f"is no command: {error}", "CC=gcc", CompileError) from error
    for command in candidates:
        path = shutil.which(command[0]) if command else None
        if path is not None:
            return (os.path.abspath(path), *command[1:])
    if asked:
        raise config.refused("CC", asked, "is not a program that can be run, so there is no C compiler", _how_to_get(), CompileError)
    raise CompileError(f"no C compiler: none of {', '.join(NAMES)} is on PATH", hint=_how_to_get())


def _how_to_get() -> str:
    if sys.platform == "darwin":
        return "xcode-select --install, or set CC to a C compiler"
    return "apt install gcc libc6-dev (Debian, Ubuntu), dnf install gcc glibc-devel (Fedora), or set CC to a C compiler"


def _probe(command: tuple[str, ...]) -> Compiler:
    """Ask a compiler what it is and which flags it takes; a CompileError if it cannot build a small program at all."""
    held = _temporary()
    folder = Path(held.path)
    try:
        (folder / "trial.c").write_text(_TRIAL, encoding="utf-8")
        native, words = _native(command, folder)
        optional = [native] if native else []
        if bits := 512 if "__AVX512F__" in words else 256 if "__AVX__" in words else 0:
            optional.append(f"-mprefer-vector-width={bits}")
            if "gcc version" in words:  # it moves short arrays by less for some processors, and a read of a vector waits for such stores
                optional += [f"-mmove-max={bits}", f"-mstore-max={bits}"]
                optional += [f"-mno-avx256-split-unaligned-{access}" for access in ("load", "store")]  # nor stores of a vector
        optional += _OPTIONAL
        if "__x86_64__" in words:
            optional += _X86
        flags, libraries = _accepted(command, optional, held)
        version = next((line for line in words.splitlines() if " version " in line), command[0])
        target = next((line.split(":", 1)[1].strip() for line in words.splitlines() if line.startswith("Target:")), "")
        return Compiler(
            command=command,
            version=version.strip(),
            target=target,
            cpu=cpu(),
            flags=flags,
            libraries=libraries,
            openmp="-fopenmp" in flags,
            stamps=tuple(stamp for stamp in (_stamp(command[0]), _stamp(_front_end(words))) if stamp),
            script=_script(command[0]),
        )
    except OSError as error:
        raise CompileError(f"cannot try {command[0]} in {folder}: {error.strerror}", hint="room in TMPDIR") from error
    finally:
        held.remove()


def _native(command: tuple[str, ...], folder: Path) -> tuple[str, str]:
    """The flag for "this processor", or none, and what the compiler says of itself and of its macros under it."""
    words = ""
    for flag in ("-march=native", "-mcpu=native"):
        status, words = execute((*command, flag, "-v", "-dM", "-E", "trial.c"), folder)
        if status == 0:
            return flag, words
    return "", execute((*command, "-v", "-dM", "-E", "trial.c"), folder)[1]


def _front_end(words: str) -> str:
    """The path of the program behind the driver (gcc's cc1), which a wrapper such as ccache hides; from the output of ``-v``."""
    for line in words.splitlines():
        if line.startswith((" /", ' "/')):
            try:
                return shlex.split(line)[0]
            except ValueError:
                continue
    return ""


def _accepted(command: tuple[str, ...], optional: list[str], held: scratch.LockedFolder) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The flags and libraries with which the trial program links: all at once if possible, else each flag on its own trial."""
    folder = Path(held.path)
    for libraries in _LINKS:
        if _try(command, (*_BASE, *optional), libraries, folder)[0] == 0:
            return (*_BASE, *optional), libraries
    words = ""
    for libraries in _PLAIN_LINKS:
        status, words = _try(command, _BASE, libraries, folder)
        if status == 0:
            taken = (flag for flag in optional if _try(command, (*_BASE, flag), libraries, folder)[0] == 0)
            return (*_BASE, *taken), libraries
    hint = _room(words, held) or _how_to_get()
    raise CompileError(f"{command[0]} cannot build a small program:\n{shortened(words)}", hint=hint)


def _try(command: tuple[str, ...], flags: tuple[str, ...], libraries: tuple[str, ...], folder: Path) -> tuple[int, str]:
    # undefined symbols would only show at load; with libc named, none may remain
    strict = ("-Wl,-z,defs", "-lc") if "-nostdlib" in libraries else ()
    return execute((*command, *flags, "trial.c", "-o", "trial.so", *libraries, *strict), folder)


def _room(words: str, held: scratch.LockedFolder) -> str:
    """The hint for a full disk, which the compiler's message or the folder shows; empty where the disk has room."""
    try:
        with open(os.path.join(held.path, "room"), "wb") as file:
            file.write(bytes(1 << 16))
    except OSError:
        return f"room in TMPDIR: the disk of {os.path.dirname(held.path)} is full"
    return f"room in TMPDIR: {os.path.dirname(held.path)}" if any(full in words for full in _FULL) else ""


def _temporary() -> scratch.LockedFolder:
    try:
        return scratch.LockedFolder("build")
    except OSError as error:
        raise CompileError(f"no temporary directory to compile in: {error}", hint="room in /tmp, or TMPDIR set to a directory") from error


def execute(command: Sequence[str], folder: Path) -> tuple[int, str]:
    """Run a program, never through a shell; its exit status and everything it said."""
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)}
    left = _until.get() - time.monotonic()
    try:
        if left <= 0:
            raise subprocess.TimeoutExpired(command, 0)
        done = subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=min(TIME_LIMIT, left), check=False
        )
    except subprocess.TimeoutExpired:
        if left < TIME_LIMIT:
            raise TimedOut(f"{command[0]} did not end in the time that was left for it", hint="more seconds=, or CC=gcc") from None
        return 1, f"no end after {TIME_LIMIT:.0f} s"
    except (OSError, ValueError) as error:
        raise CompileError(f"cannot run {command[0]}: {error}", hint="set CC to a C compiler") from error
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace")


def shortened(words: str, lines: int = 30) -> str:
    every = words.strip().splitlines()
    return "\n".join(every[:lines] + ([f"... {len(every) - lines} more lines"] if len(every) > lines else []))
