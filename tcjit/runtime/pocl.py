"""PoCL on processors that are newer than the LLVM in it.

LLVM calls an x86 processor that it does not know "generic"; PoCL hands that name to clang, which takes it for no processor and
refuses every program (https://github.com/pocl/pocl/issues/1049). No option or variable of PoCL names another. So the name is looked up
in the device's own structure and replaced by the level of the x86-64 ABI that the processor has, which clang does know.
"""
from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Collection

from tcjit.runtime import host

PLATFORM = "Portable Computing Language"
UNKNOWN = "generic"
REFUSED = "unknown target CPU"  # what clang says then
SEARCHED = 2048  # bytes from a structure's start, perhaps more than it has; in PoCL 3.0 the two pointers are at bytes 632 and 640
_WORD = struct.calcsize("P")
# the third level of the x86-64 ABI, in Linux's words
_LEVEL_3 = frozenset({"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"})


def level(features: Collection[str]) -> str:
    """The processor to compile for, by its features as Linux names them: one that every LLVM from 12 on knows.

    >>> level({"sse2", "avx"})
    'x86-64'
    """
    return "x86-64-v3" if set(features) >= _LEVEL_3 else "x86-64"


def name_processor(version: str, address: int) -> bool:
    """Give a device of PoCL, whose structure is at ``address``, a processor that clang knows, if ``version`` says that it has none.

    Whether it has another name now. ``version`` ends with the triple and the name.
    """
    known = re.search(rf"-(x86_64-[^ ]*)-{UNKNOWN}$", version)
    return known is not None and renamed(address, known[1], UNKNOWN, level(host.cpu_features()))


def renamed(address: int, triple: str, old: str, new: str) -> bool:
    """Let the pointer to the text ``old`` that follows a pointer to ``triple`` in the structure at ``address`` point to ``new``.

    Only the first such pair counts, and only if they are neighbours: beyond the structure lies memory that is not the device's, where
    anything may point at either text. False, and nothing changed, without such a pair.
    """
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY)  # reads of what is not mapped fail there, and do not end the process
    except OSError:
        return False
    try:
        words = _read(memory, address, SEARCHED)
        pointers = struct.unpack(f"{len(words) // _WORD}P", words[: len(words) // _WORD * _WORD])
        at = next((number for number, pointer in enumerate(pointers) if _points(memory, pointer, triple)), len(pointers)) + 1
        if at >= len(pointers) or not _points(memory, pointers[at], old):
            return False
    finally:
        os.close(memory)
    # from the C library, as PoCL's own is, in case PoCL frees it
    duplicate = ctypes.CDLL(None).strdup
    duplicate.restype, duplicate.argtypes = ctypes.c_void_p, (ctypes.c_char_p,)
    ctypes.c_void_p.from_address(address + _WORD * at).value = duplicate(new.encode())
    return True


def _points(memory: int, pointer: int, text: str) -> bool:
    expected = text.encode() + b"\0"
    return pointer != 0 and _read(memory, pointer, len(expected)) == expected


def _read(memory: int, address: int, count: int) -> bytes:
    """At most ``count`` bytes of the process's memory at an address; fewer, or none, where it is not mapped."""
    try:
        return os.pread(memory, count, address)
    except (OSError, OverflowError):
        return b""
