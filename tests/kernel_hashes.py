"""The hash of every kernel of a fixed set, printed: run before and after a change that must not change any, the two outputs are equal.

    python tests/kernel_hashes.py [--sets 20] [--programs 400] [--jobs 2] [--only PART] [--show NAME] > before.txt

Programs: the library, the conformance tests, the examples, the benchmark's operators, the golden kernels, those that take every way to
a GPU, and random ones of fixed seeds. Each is printed for a CPU with AVX-512, OpenCL, and CUDA's sm_80 and sm_90: with the default options
and ``--sets`` drawn ones, with its first size left open, and for a CPU with 16 registers of 32 bytes. Nothing is compiled or proved.

A line is ``HASH program target set``, the set by its number: the hash is of the text and of all that a caller must know to launch it;
``refused`` stands where the compiler says no. ``--only`` takes the programs whose name contains a text, ``--show`` prints the source of
the kernels whose line ends in a text. The last line counts the kernels and hashes the lines.
"""
from __future__ import annotations

import argparse
import ast
import hashlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tcjit.codegen.source import Source
    from tcjit.grammar.ast import Program
    from tcjit.mapping.options import Options

HOME = Path(__file__).resolve().parent
sys.path[:0] = [str(HOME.parent), str(HOME)]
TARGETS = ("cpu", "opencl", "sm_80", "sm_90")
TEXTS = ("tests/end_to_end/test_conformance.py", "examples")  # Python files whose programs are taken, at sizes of their own
EXTENTS = (37, 24, 65, 16, 7, 130)  # of the sizes of those, in turn


@dataclass(frozen=True)
class Subject:
    """A program at fixed sizes, with options of its own where it has some."""

    name: str
    text: str
    shapes: Mapping[str, tuple[int, ...]]
    scalars: Mapping[str, int]
    options: Options | None = None
    sets: int = 1 << 30  # drawn for it at most

    def program(self, dynamic: bool = False) -> Program:
        """``dynamic`` leaves the first size open."""
        from tcjit.grammar.bind import bind
        from tcjit.grammar.dynamic import generalise
        from tcjit.grammar.front import read
        from tcjit.grammar.infer import specialise

        found = read(self.text)[-1]
        scalars = {name: int(value) for name, value in self.scalars.items() if name in found.specialised}
        if not (dynamic and found.sizes):
            return specialise(found, self.shapes, scalars)
        sizes = bind(found.params, [self.shapes.get(param.name) for param in found.params])
        return generalise(found, sizes, scalars, {found.sizes[0]: (1, sizes[found.sizes[0]])})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=20, help="option sets drawn for each program (%(default)s)")
    parser.add_argument("--programs", type=int, default=400, help="random programs of each kind (%(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", metavar="PART", help="programs whose name contains this")
    parser.add_argument("--show", default="", metavar="NAME", help="print the source of the kernels whose line ends in this")
    options = parser.parse_args()
    names = [subject.name for subject in subjects(options.programs) if options.only in subject.name]
    digest, count, refused = hashlib.sha256(), 0, 0
    pieces = [names[at : at + 8] for at in range(0, len(names), 8)]
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for lines in pool.map(_piece, pieces, *zip(*[(options.sets, options.programs, options.show)] * len(pieces))):
            for line in lines:
                print(line, flush=True)
                digest.update(line.encode() + b"\n")
                count, refused = count + 1, refused + line.startswith("refused")
    print(f"{count - refused} kernels, {refused} refused, hash {digest.hexdigest()[:16]}")
    return 0


def _piece(names: list[str], sets: int, programs: int, show: str) -> list[str]:
    return [line for name in names for line in hashes(_by_name(programs)[name], sets, show)]


@cache
def _by_name(programs: int) -> Mapping[str, Subject]:
    """Drawn anew in each process."""
    return {subject.name: subject for subject in subjects(programs)}


# ---------------------------------------------------------------- programs


def subjects(programs: int) -> Iterator[Subject]:
    """All programs, each name once."""
    yield from _library()
    yield from _operators()
    yield from _fixed()
    for path in TEXTS:
        for file in sorted((HOME.parent / path).rglob("*.py")) if not path.endswith(".py") else [HOME.parent / path]:
            yield from _written(file)
    yield from _random(programs)


def _library() -> Iterator[Subject]:
    from support.library import inputs, listed

    from tcjit import library
    from tcjit.grammar import front

    for name, cases in listed().items():
        text = library.source(name, "float32", "int64")
        params = front.read(text)[-1].params
        for number, case in enumerate(cases):
            shapes = {tensor: tuple(value.shape) for tensor, value in inputs(case, params, "float32").items()}
            whole = {scalar: value for scalar, value in case.scalars.items() if isinstance(value, int)}
            yield Subject(f"library/{name}/{number}", text, shapes, whole, sets=1 if number else 1 << 30)


def _operators() -> Iterator[Subject]:
    sys.path.insert(0, str(HOME.parent / "benchmarks" / "peers"))
    from ops import OPS

    for name, op in OPS.items():
        yield Subject(f"operators/{name}", op.source, {given.name: given.shape for given in op.inputs}, {})


def _fixed() -> Iterator[Subject]:
    from support.mapping import GOLDEN
    from support.subjects import SUBJECTS

    from tcjit.mapping.options import Options

    for name, (text, shapes, asked) in GOLDEN.items():
        yield Subject(f"golden/{name}", text, shapes, {}, Options(**asked), 1)
    for name, subject in SUBJECTS.items():
        yield Subject(f"ways/{name.replace(' ', '_')}", subject.text, subject.shapes, {}, subject.options, 1)


def _written(file: Path) -> Iterator[Subject]:
    """The programs that stand as texts in a Python file, their sizes by position."""
    from tcjit.errors import TCError
    from tcjit.grammar.front import read
    from tcjit.grammar.polynomial import integer

    texts = [node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    for number, text in enumerate(dict.fromkeys(text for text in texts if "def " in text and "->" in text)):
        try:
            found = read(text)[-1]
        except TCError:
            continue  # a program that a test expects to be refused, or another text
        sizes = {name: EXTENTS[at % len(EXTENTS)] for at, name in enumerate(found.sizes)}
        shapes = {p.name: tuple(integer(extent, sizes) for extent in found.tensor(p.name).shape) for p in found.params if p.dims}
        yield Subject(f"{file.stem}/{number}", text, shapes, dict.fromkeys(found.specialised, 2))


def _random(programs: int) -> Iterator[Subject]:
    from support.fuzz.kernels import draw as draw_kernel
    from support.fuzz.programs import draw as draw_program

    drawn: Mapping[str, Callable[[random.Random], Any]] = {"random": draw_program, "kernels": draw_kernel}
    for kind, draw in drawn.items():
        for number in range(programs):
            case = draw(random.Random(f"{kind} {number}"))
            whole = {name: value for name, value in case.scalars.items() if isinstance(value, int)}
            yield Subject(f"{kind}/{number}", case.text, case.shapes, whole, sets=1)


# ---------------------------------------------------------------- kernels


def hashes(subject: Subject, sets: int, show: str = "") -> Iterator[str]:
    """The lines of one program."""
    from support.fuzz.options import drawn

    from tcjit.mapping.options import Options

    plain = subject.options or Options()
    for target in TARGETS:
        kind = target if target in ("cpu", "opencl") else "cuda"
        yield _line(subject, target, plain, "default", show)
        yield _line(subject, target, plain, "open size", show, dynamic=True)
        if target == "cpu":
            yield _line(subject, "cpu_avx2", plain, "default", show)
        for number in range(min(sets, subject.sets)):
            options = drawn(random.Random(f"{subject.name} {target} {number}"), kind)
            yield _line(subject, target, options, f"{number}", show)


def _line(subject: Subject, target: str, options: Options, words: str, show: str, dynamic: bool = False) -> str:
    from tcjit.errors import TCError

    words = f"{subject.name} {target} {words}"
    try:
        source = printed(subject.program(dynamic), target, options)
    except TCError:
        return f"refused          {words}"
    if show and words.endswith(show):
        print(f"{words}\n{source.text}", file=sys.stderr)
    facts = (source.text, source.symbol, source.numbers, source.workspace, source.sites, source.launches, source.aligned, source.host)
    return f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]} {words}"


def printed(program: Program, target: str, options: Options) -> Source:
    """A program's kernel as text, for machines that do not depend on the one at hand."""
    from tcjit.codegen import dialect
    from tcjit.codegen.c import emit_c
    from tcjit.codegen.gpu_kernel import emit_gpu
    from tcjit.mapping import machine
    from tcjit.mapping.pipeline import map_gpu, map_program

    if target.startswith("cpu"):
        chosen = machine.BASELINE if target == "cpu_avx2" else machine.Machine(vector_bytes=64, vector_registers=32)
        return emit_c(map_program(program, options, chosen, prove="none"), dialect.C, chosen, checked=True)
    few = replace(machine.SM_80, processors=2)  # so that small problems get large tiles
    device = {"opencl": machine.OPENCL, "sm_80": few, "sm_90": machine.SM_90}[target]
    language = dialect.OPENCL if target == "opencl" else dialect.CUDA
    return emit_gpu(map_gpu(program, options, device, prove="none"), language, device, checked=True)


if __name__ == "__main__":
    sys.exit(main())
