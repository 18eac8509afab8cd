"""Machine code of a cubin as instructions, by nvdisasm (``pip install nvidia-cuda-nvdisasm``), and what can be counted in it."""
from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SECTION = re.compile(r"\s*\.section\s+\.text\.([^,\s]+)")
_LABEL = re.compile(r"(\.L_[\w.]+|\$[\w$.]+):")
_CODE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+\{?\s*(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_TARGET = re.compile(r"`\(([^)]+)\)")


@dataclass(frozen=True)
class Instruction:
    """``opcode`` with all its suffixes, as in ``LDG.E.128.CONSTANT``; ``target``: where a branch goes, as an address."""

    address: int
    predicate: str
    opcode: str
    operands: str
    target: int | None = None

    @property
    def name(self) -> str:
        return self.opcode.partition(".")[0]

    def has(self, name: str, *suffixes: str) -> bool:
        parts = self.opcode.split(".")
        return parts[0] == name and all(suffix in parts for suffix in suffixes)


def disassembler() -> str | None:
    """The path of nvdisasm: the wheel's, else the one on PATH or of the toolkit; None where there is none."""
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(place).glob("*/bin/nvdisasm"), reverse=True):
            return str(path)
    return shutil.which("nvdisasm", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/cuda/bin")))


def sass(cubin: bytes) -> dict[str, list[Instruction]]:
    """The instructions of every kernel, in order. FileNotFoundError without nvdisasm."""
    tool = disassembler()
    if tool is None:
        raise FileNotFoundError("no nvdisasm: pip install nvidia-cuda-nvdisasm")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        listing = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True).stdout
    kernels: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in listing.splitlines():
        section = _SECTION.match(line)
        if section:
            lines = kernels.setdefault(section[1], [])
        lines.append(line)
    return {symbol: _parse(lines) for symbol, lines in kernels.items()}


def _parse(lines: Sequence[str]) -> list[Instruction]:
    found = [(line, match) for line in lines if (match := _CODE.match(line))]
    addresses: dict[str, int] = {}
    waiting: list[str] = []
    for line in lines:
        label, code = _LABEL.match(line.strip()), _CODE.match(line)
        if label:
            waiting.append(label[1])
        if code:
            addresses.update(dict.fromkeys(waiting, int(code[1], 16)))
            waiting = []
    result = []
    for _, match in found:
        if match[2] == "!PT":  # never runs
            continue
        target = _TARGET.search(match[4])
        result.append(Instruction(int(match[1], 16), match[2] or "", match[3], match[4], addresses.get(target[1]) if target else None))
    return result


def histogram(instructions: Sequence[Instruction]) -> Counter[str]:
    """How often each instruction occurs, by its name without suffixes."""
    return Counter(instruction.name for instruction in instructions)


def count(instructions: Sequence[Instruction], name: str, *suffixes: str) -> int:
    """How many instructions have the name and all the suffixes: ``count(code, "LDG", "128")``."""
    return sum(instruction.has(name, *suffixes) for instruction in instructions)


def loops(instructions: Sequence[Instruction]) -> list[list[Instruction]]:
    """The innermost loops, the longest first: from where a backward branch goes to the branch, with no other such branch between."""
    spans = sorted({(i.target, i.address) for i in instructions if i.name == "BRA" and i.target is not None and i.target < i.address})
    inner = [(start, end) for start, end in spans if not any((s, e) != (start, end) and start <= s and e <= end for s, e in spans)]
    bodies = [[i for i in instructions if start <= i.address <= end] for start, end in inner]
    return sorted(bodies, key=len, reverse=True)


def bodies(instructions: Sequence[Instruction]) -> list[list[Instruction]]:
    """Every loop without the loops inside it."""
    spans = sorted({(i.target, i.address) for i in instructions if i.name == "BRA" and i.target is not None and i.target < i.address})
    found = []
    for span in spans:
        start, end = span
        inner = [other for other in spans if other != span and start <= other[0] and other[1] <= end]
        inside = [i for i in instructions if start <= i.address <= end]
        found.append([i for i in inside if not any(s <= i.address <= e for s, e in inner)])
    return found


def innermost(instructions: Sequence[Instruction]) -> list[Instruction]:
    """The longest innermost loop; nothing where the code has no loop."""
    return next(iter(loops(instructions)), [])
