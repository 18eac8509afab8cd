"""Compiling an exported library: kernels with the system's C compiler, what is around them with its C++ compiler."""
from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from tcjit import cache
from tcjit.errors import CompileError, PartitionError
from tcjit.runtime import host

OLDEST = (2, 10)  # LibTorch's stable ABI has all that runtime.h uses from there on
LIBRARY = "model.so"


def commands(sources: Sequence[str]) -> list[list[str]]:
    """What is run in a folder's ``src/`` to make the library of C sources there; raises PartitionError where a compiler is missing."""
    tool, plus = _c(), _plus()
    root = Path(torch.__file__).parent
    if not (root / "include/torch/csrc/stable/library.h").is_file() or _version() < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise PartitionError(f"PyTorch {torch.__version__} has no headers of the stable ABI of {wanted}", hint=f"PyTorch {wanted} or later")
    flags = [flag for flag in tool.flags if flag != "-shared"]
    openmp = ["-fopenmp"] if tool.openmp else []
    mathematics = [flag for flag in tool.libraries if flag in ("-lmvec", "-lm")]
    target = f"-DTORCH_TARGET_VERSION=0x{OLDEST[0]:02x}{OLDEST[1]:02x}000000000000"
    objects = [Path(source).with_suffix(".o").name for source in sources]
    link = ["-Wl,-Bsymbolic", "-Wl,-z,nodelete", f"-L{root / 'lib'}", "-Wl,--no-as-needed", "-ltorch_cpu", "-Wl,--as-needed"]
    return [
        [*tool.command, *flags, "-c", *sources],
        [*plus, "-std=c++17", "-O1", "-fPIC", "-fvisibility-inlines-hidden", target, f"-isystem{root / 'include'}", "-c", "library.cpp"],
        [*plus, "-shared", *openmp, "-o", f"../{LIBRARY}", "library.o", *objects, *link, *mathematics],
    ]


def build(folder: Path, sources: Sequence[str]) -> None:
    """Makes the library of a folder; raises PartitionError with the compiler's own words where it refuses."""
    try:
        for command in commands(sources):
            status, words = host.execute(command, folder / "src")
            if status:
                raise PartitionError(f"{command[0]} cannot build the exported library:\n{host.shortened(words)}")
    except CompileError as error:
        raise PartitionError(error.what, hint=error.hint) from error
    finally:
        for made in (folder / "src").glob("*.o"):
            made.unlink()


def portable(sources: Sequence[str]) -> list[str]:
    """The same commands as lines for a person, with words in place of what is particular to this machine."""
    root = str(Path(torch.__file__).parent)
    return [shlex.join(command).replace(root, "$LIBTORCH") for command in commands(sources)]


def _c() -> host.Compiler:
    try:
        return host.compiler(cache.store())
    except CompileError as error:
        raise PartitionError(error.what, hint=error.hint) from error


def _plus() -> list[str]:
    """The C++ compiler: ``CXX`` if set, else the one that belongs to the C compiler."""
    asked = os.environ.get("CXX", "").strip()
    clang = "clang" in Path(_c().path).name
    candidates = [shlex.split(asked)] if asked else [[name] for name in (("clang++", "c++") if clang else ("g++", "c++", "clang++"))]
    for command in candidates:
        path = shutil.which(command[0])
        if path is not None:
            return [path, *command[1:]]
    tried = f"CXX={asked!r} is not a program that can be run" if asked else f"none of {', '.join(c[0] for c in candidates)} is on PATH"
    raise PartitionError(f"no C++ compiler: {tried}", hint="apt install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora), or set CXX")


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
