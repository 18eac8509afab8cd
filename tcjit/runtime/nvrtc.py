"""NVRTC, NVIDIA's compiler as a library: found once a process, called through ctypes, no header and no driver needed.

It is looked for where PyTorch brings it, then in the wheels ``nvidia-cuda-nvrtc`` (CUDA 13 has ``nvidia/cu13/lib``, CUDA 12
``nvidia/cuda_nvrtc/lib``), then in the toolkit, then wherever the loader looks. Arithmetic keeps NaN, infinity, signed zero and
denormals: no option here ever implies ``--use_fast_math``.
"""
from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tcjit import scratch
from tcjit.dataclass import dataclass
from tcjit.errors import CompileError
from tcjit.runtime.cuda_driver import driver_version
from tcjit.runtime.host import Notes
from tcjit.runtime.nvrtc_log import Resources, resources

INSTALL = "pip install nvidia-cuda-nvrtc (CUDA 13) or nvidia-cuda-nvrtc-cu12, or set CUDA_HOME to a toolkit that has it"
# --minimal leaves out texture types and the device runtime, which take 10 ms of every compilation
OPTIONS = ("--std=c++17", "--minimal", "-default-device", "--ptxas-options=-v")
_FILE = re.compile(r"libnvrtc(-[0-9a-f]{8})?\.so\.(\d+)(\.\d+)*")
_BUILTINS = re.compile(r"libnvrtc-builtins(-[0-9a-f]{8})?\.so\.(\d+)(\.\d+)*")
_MAJORS = (13, 12)
_OLDEST = (12, 4)  # the first with --minimal, and what PyTorch 2.6 brings
_CACHING = (12, 9)  # the first with a cache of its own, which gives no log for what it holds: no registers, no spills
_ARCHITECTURE = re.compile(r"sm_(\d+)[af]?")
_REFUSALS = (5, 6)  # of an option, and of the text; other statuses are troubles of its own
_NOTE = "nvrtc"


@dataclass(frozen=True)
class CubinFile:
    """Machine code for one architecture, the compiler's log, and what each kernel takes."""

    cubin: bytes
    log: str
    resources: dict[str, Resources]


def compile(text: str, symbols: Sequence[str], architecture: str, options: Sequence[str] = ()) -> CubinFile:
    """Compile CUDA text with the kernels ``symbols`` for an architecture such as ``sm_90``.

    A refusal is a CompileError with the compiler's words; the source then stays in the file that the error names. So are an
    architecture that this NVRTC does not know, and no NVRTC at all. The GIL is released meanwhile.
    """
    tool = _library()
    wanted = _ARCHITECTURE.fullmatch(architecture)
    if wanted is None or int(wanted[1]) not in tool.architectures:
        known = ", ".join(f"sm_{number}" for number in tool.architectures)
        raise CompileError(f"NVRTC {tool.version} does not compile for {architecture}", hint=f"one of {known}; or another release of NVRTC")
    arguments = [f"--gpu-architecture={architecture}", *OPTIONS, *tool.without_cache, *options]
    status, log, cubin = tool.run(text, arguments)
    if status:
        words = log.strip() or tool.words(status)
        what = f"NVRTC {tool.version} refused the code generated for {', '.join(symbols)}:\n{_shortened(words)}"
        hint = f"please report it with the source, kept in {_kept(text)}" if status in _REFUSALS else tool.cure(words)
        raise CompileError(what, hint=hint)
    return CubinFile(cubin, log, resources(log, symbols))


def architectures() -> tuple[str, ...]:
    """The architectures that this NVRTC compiles for, oldest first; a CompileError without one."""
    return tuple(f"sm_{number}" for number in _library().architectures)


def version() -> str:
    """Release and place of the library in use; a CompileError without one."""
    tool = _library()
    return f"{tool.version}, {tool.path}"


def identity(memory: Notes | None = None) -> str:
    """The compiler's library and options as a part of cache keys; the library is found but not loaded.

    Where there is none any more it is that of the one before, from ``memory``: what it built remains good. Else ``"none"``.
    """
    note = memory.note(_NOTE) if memory is not None else None
    try:
        path = find()
    except CompileError:
        return str(note["identity"]) if note else "none"
    try:
        status = os.stat(path)
        facts: tuple[Any, ...] = (os.path.realpath(path), status.st_mtime_ns, status.st_size, OPTIONS)
    except OSError:  # a bare name, which only the loader can place
        facts = (path, _library().version, OPTIONS)
    here = hashlib.sha256(repr(facts).encode("utf-8", "surrogateescape")).hexdigest()
    if memory is not None and (note or {}).get("identity") != here:
        memory.put_note(_NOTE, {"identity": here})
    return here


# ---------------------------------------------------------------- where it is


@functools.lru_cache(maxsize=1)
def find() -> str:
    """The path of the library, or a name that the loader finds; a CompileError without one.

    A driver does not load what a later major release of CUDA compiled, so such a library is the last choice.
    """
    release = driver_version()
    late = []
    for major, path in _candidates():
        if release is None or major <= release[0]:
            return path
        late.append(path)
    if late:
        return late[0]
    raise CompileError("there is no NVRTC, the compiler for CUDA", hint=INSTALL)


def _candidates() -> Iterator[tuple[int, str]]:
    """Major release and path of every library found, in the order of preference."""
    for folders in (_of_package("torch", "lib"), _of_package("nvidia", "*/lib"), _of_toolkits()):
        libraries = [(int(match[2]), str(path)) for folder in folders for path, match in _in(folder)]
        yield from sorted(libraries, key=lambda entry: -entry[0])
    for major in _MAJORS:
        name = f"libnvrtc.so.{major}"
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        yield major, name


def _in(folder: Path) -> list[tuple[Path, re.Match[str]]]:
    """The libraries in a folder: one of each major release, not the static parts and variants that lie beside it."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    matches = [(folder / name, match) for name in names if (match := _FILE.fullmatch(name)) and int(match[2]) >= _OLDEST[0]]
    return [(path, match) for path, match in matches if path.is_file()]


def _of_package(package: str, folder: str) -> list[Path]:
    """The folders of an installed package, which is not imported."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    places = spec.submodule_search_locations if spec is not None else None
    return [path for root in places or () for path in sorted(Path(root).glob(folder))]


def _of_toolkits() -> list[Path]:
    roots = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    return [Path(root, folder) for root in roots if root for folder in ("lib64", "lib")]


# ---------------------------------------------------------------- the library itself


class _Library:
    """NVRTC, loaded. Safe from several threads, as the library is."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._builtins = _load_builtins(Path(path))
        try:
            self._lib = ctypes.CDLL(path)
            major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
            self._lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
            self._lib.nvrtcGetNumSupportedArchs(ctypes.byref(count))
            numbers = (ctypes.c_int * count.value)()
            self._lib.nvrtcGetSupportedArchs(numbers)
        except (OSError, AttributeError) as error:
            raise CompileError(f"{path} cannot be used: {error}", hint=INSTALL) from None
        self.version = f"{major.value}.{minor.value}"
        if (major.value, minor.value) < _OLDEST:
            raise CompileError(f"NVRTC {self.version} in {path} is too old", hint=INSTALL)
        self.architectures = tuple(numbers)
        self.without_cache = ("--no-cache",) if (major.value, minor.value) >= _CACHING else ()
        self._lib.nvrtcGetErrorString.restype = ctypes.c_char_p

    def words(self, status: int) -> str:
        return bytes(self._lib.nvrtcGetErrorString(status)).decode()

    def cure(self, words: str) -> str:
        """The hint for an error of the library's own."""
        if "builtins" not in words:
            return INSTALL
        return f"its file libnvrtc-builtins.so.{self.version} belongs beside {self.path}: install the package anew, or {INSTALL}"

    def run(self, text: str, options: Sequence[str]) -> tuple[int, str, bytes]:
        """The compiler's status, its log, and the machine code where the status is 0."""
        program = ctypes.c_void_p()
        arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = self._lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None)
        if status:
            return int(status), "", b""
        try:
            status = self._lib.nvrtcCompileProgram(program, len(options), arguments)
            log = self._content(program, "nvrtcGetProgramLog").rstrip(b"\0").decode("utf-8", "replace")
            return int(status), log, b"" if status else self._content(program, "nvrtcGetCUBIN")
        finally:
            self._lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _content(self, program: ctypes.c_void_p, getter: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(self._lib, f"{getter}Size")(program, ctypes.byref(size))
        content = ctypes.create_string_buffer(max(1, size.value))
        getattr(self._lib, getter)(program, content)
        return content.raw[: size.value]


def _load_builtins(library: Path) -> list[ctypes.CDLL]:
    """The libraries of built-in functions in the folder of NVRTC's own, loaded.

    NVRTC opens the one of its release by its bare name in the first compilation. The wheel of 13.0 has no run path, so the loader looks
    beside it only where such a name is loaded already. An NVRTC that is itself a bare name is one of the loader's folders.
    """
    loaded = []
    for path in sorted(library.parent.glob("libnvrtc-builtins*")) if library.is_absolute() else ():
        if _BUILTINS.fullmatch(path.name):
            with contextlib.suppress(OSError):  # a broken one matters where NVRTC asks for it, and is then named in its log
                loaded.append(ctypes.CDLL(str(path)))
    return loaded


@functools.lru_cache(maxsize=1)
def _library() -> _Library:
    return _Library(find())


def _kept(text: str) -> Path:
    try:
        file = Path(scratch.refused(), "kernel.cu")
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        what = f"no temporary directory to keep a source in: {error}"
        raise CompileError(what, hint="room in /tmp, or TMPDIR set to a directory") from None
    return file


def _shortened(words: str, lines: int = 30) -> str:
    every = words.splitlines()
    return "\n".join(every[:lines] + ([f"... {len(every) - lines} more lines"] if len(every) > lines else []))
