"""What NVRTC and ptxas make of a program: registers, memory and the instructions of each kernel's inner loop, as rows of a table."""
from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from gpu_code.programs import Subject
from gpu_code.sass import Instruction, bodies, count, histogram, sass
from tcjit.codegen.dialect import CUDA
from tcjit.codegen.gpu_kernel import emit_gpu
from tcjit.codegen.source import KernelLaunch
from tcjit.errors import TCError
from tcjit.grammar.front import read
from tcjit.grammar.infer import specialise
from tcjit.mapping.machine import SM_90
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import map_gpu
from tcjit.runtime import nvrtc
from tcjit.runtime.nvrtc_log import Resources, occupancy

PATIENCE = 120.0  # seconds for one program
ARITHMETIC = ("FFMA", "HMMA")
COUNTED = (
    "FFMA", "HMMA", "FMUL", "FADD", "MUFU", "LDS", "LDSM", "STS", "LDG", "LDGSTS", "STG", "BAR", "ISETP", "SEL", "FSEL", "BRA", "CALL",
)  # fmt: skip
WIDE = ("LDS", "LDG", "LDGSTS", "STG", "STS")


@dataclass(frozen=True)
class Row:
    """One kernel of a program; ``inner`` counts the instructions of its inner loop by name, the 16-byte ones by ``NAME.128``."""

    program: str
    launch: KernelLaunch
    resources: Resources
    blocks: int  # resident on a multiprocessor
    nvrtc: float  # seconds, of all kernels of the program together
    instructions: int
    looped: bool  # whether ``inner`` is a loop, and not all of a kernel that has none
    inner: dict[str, int]


def inspected(subject: Subject) -> list[Row]:
    """The rows of a program's kernels for an H100. A TCError where it does not compile."""
    definition = read(subject.text)[-1]
    program = specialise(definition, subject.shapes, subject.scalars)
    source = emit_gpu(map_gpu(program, Options(**subject.options), SM_90, prove="none"), CUDA, SM_90, checked=True)
    began = time.thread_time()
    binary = nvrtc.compile(source.text, [launch.symbol for launch in source.launches], SM_90.name)
    seconds = time.thread_time() - began
    code = sass(binary.cubin)
    rows = []
    for launch in source.launches:
        used, whole = binary.resources[launch.symbol], code[launch.symbol]
        resident = occupancy(used, launch.threads, SM_90, launch.shared_bytes - used.shared).blocks
        inner = heart(whole)
        rows.append(Row(subject.name, launch, used, resident, seconds, len(whole), bool(inner), counted(inner or whole)))
    return rows


def heart(code: Sequence[Instruction]) -> list[Instruction]:
    """The loop with the most multiply-adds, without loops inside it, the longest one where none has any; nothing without a loop."""
    return max(bodies(code), key=lambda body: (sum(histogram(body)[name] for name in ARITHMETIC), len(body)), default=[])


def counted(code: Sequence[Instruction]) -> dict[str, int]:
    """The instructions of a piece of code: all of them, and by name."""
    numbers = histogram(code)
    found = {"all": len(code)} | {name: numbers[name] for name in COUNTED if numbers[name]}
    return found | {f"{name}.128": wide for name in WIDE if (wide := count(code, name, "128"))}


def within(subject: Subject, patience: float) -> list[Row] | str:
    """The rows, made in a process of its own; what went wrong where there are none."""
    here, there = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_send, args=(there, subject))
    process.start()
    there.close()
    try:
        answer: list[Row] | str = here.recv() if here.poll(patience) else f"not within {patience:.0f} s"
    except EOFError:
        answer = "the process died"
    process.kill()
    process.join()
    return answer


def _send(connection: Connection, subject: Subject) -> None:
    try:
        connection.send(inspected(subject))
    except TCError as error:
        connection.send(str(error).partition("\n")[0])


def table(found: Sequence[tuple[Subject, list[Row] | str]]) -> Iterator[str]:
    """The lines of a table in Markdown, a row for each kernel."""
    yield "| program | grid x threads | registers | shared bytes | blocks/SM | stack | spills | NVRTC s | SASS | inner loop |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|---|"
    for subject, rows in found:
        if isinstance(rows, str):
            yield f"| {subject.name} | {rows} | | | | | | | | |"
            continue
        for number, row in enumerate(rows):
            used = row.resources
            grid = "x".join(str(extent) for extent in row.launch.grid if extent > 1) or "1"
            name, seconds = (row.program, f"{row.nvrtc:.1f}") if number == 0 else ("", "")
            yield (
                f"| {name} | {grid} x {row.launch.threads} | {used.registers} | {row.launch.shared_bytes} | {row.blocks} | {used.stack} | "
                f"{used.spill_stores + used.spill_loads} | {seconds} | {row.instructions} | {_shown(row)} |"
            )


def _shown(row: Row) -> str:
    numbers = dict(row.inner)
    total = numbers.pop("all")
    texts = []
    for name in COUNTED:
        if name in numbers:
            wide = numbers.get(f"{name}.128", 0)
            texts.append(f"{numbers[name]} {name}" + (f" ({wide} of 16 bytes)" if wide else ""))
    return f"{'' if row.looped else 'no loop, '}{total}: {', '.join(texts)}"
