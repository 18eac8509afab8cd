"""Programs that between them take every way through the mapping to a GPU, and their kernels in three rings: proofs, host, oclgrind.

A ``Subject`` is a program with arguments and options; ``compiled`` maps it for a language, with all that the proofs need at hand, and runs
no proof itself. Its text, or what a test made of it, then runs on the host (``on_host``) or under oclgrind (``in_oclgrind``), directly: no
cache, no PyTorch and no device stand between, so a device may be as small as makes the tiles of small problems whole.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from support.cases import Case, Fill
from support.compare import assert_agree
from support.mapping import CONVOLUTION, GATHER, MATMUL, SOFTMAX
from support.rings.cuda_host import Host
from support.rings.oclgrind import Finding, Inspector
from tcjit.codegen.dialect import CUDA, OPENCL
from tcjit.codegen.gpu_kernel import emit_gpu
from tcjit.codegen.source import KernelLaunch, Source
from tcjit.errors import VerifyError
from tcjit.mapping.dependences import dependences
from tcjit.mapping.machine import OPENCL as OPENCL_DEVICE
from tcjit.mapping.machine import SM_90, Device
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import Mapped, map_gpu
from tcjit.mapping.races import verify_races
from tcjit.mapping.scop import Scop
from tcjit.mapping.scop_builder import LoweredScop
from tcjit.mapping.value_flow import verify_lowering
from tcjit.mapping.verify import verify, verify_privates
from tcjit.runtime.numerics import Array
from tcjit.step import Steps

T = TypeVar("T")
Bits = np.ndarray[Any, Any]
LANGUAGES = {"cuda": (CUDA, SM_90), "opencl": (OPENCL, OPENCL_DEVICE)}
PROCESSORS = 2  # so that small problems get large tiles


@dataclass(frozen=True)
class _Peaked(Case):
    peaks: Mapping[str, tuple[tuple[int, ...], float]] = field(default_factory=dict)

    def inputs(self) -> dict[str, Array]:
        found = super().inputs()
        for name, (places, height) in self.peaks.items():
            for number, row in enumerate(found[name]):
                row[places[number % len(places)]] = height * (1 + number / 8)
        return found


@dataclass(frozen=True)
class Subject:
    """A program, the shapes of its tensors, how it is mapped, and which integers index: those below a number.

    ``peaks`` says where the rows of a tensor have their extremes, in turn: where all levels of a tree are needed to bring them from.
    """

    text: str
    shapes: Mapping[str, tuple[int, ...]]
    options: Options = Options()
    dtypes: Mapping[str, str] = field(default_factory=dict)
    below: Mapping[str, int] = field(default_factory=dict)
    peaks: Mapping[str, tuple[tuple[int, ...], float]] = field(default_factory=dict)

    def case(self) -> Case:
        fills = {}
        for number, name in enumerate(self.shapes):
            dtype = self.dtypes.get(name, "float32")
            kind = "uniform" if "float" in dtype else "small"
            fills[name] = Fill(dtype, kind, number, 0, self.below.get(name, 4) - 1)
        return _Peaked(self.text, self.shapes, fills, peaks=self.peaks)


SUBJECTS = {
    "tiles": Subject(MATMUL, {"A": (37, 20), "B": (20, 41)}, Options(threads=(4, 8), registers=(2, 4), reduction_tile=4)),
    "vectors": Subject(MATMUL, {"A": (32, 16), "B": (16, 64)}, Options(threads=(4, 8), registers=(4, 4), reduction_tile=8)),
    "stages": Subject(
        MATMUL, {"A": (19, 24), "B": (24, 36)}, Options(threads=(4, 8), registers=(2, 4), reduction_tile=4, pipeline_stages=2)
    ),
    "more stages": Subject(
        MATMUL, {"A": (20, 40), "B": (40, 32)}, Options(threads=(4, 8), registers=(4, 4), reduction_tile=4, pipeline_stages=3)
    ),
    "no copies": Subject(MATMUL, {"A": (19, 12), "B": (12, 33)}, Options(threads=(4, 8), registers=(2, 2), shared=False)),
    "padded window": Subject(CONVOLUTION, {"I": (1, 4, 9, 10), "W1": (5, 4, 3, 3)}, Options(threads=(4, 8), registers=(2, 2))),
    "window": Subject(
        "def f(float(C,H) I, float(F,C,K) W) -> (O) { O(f, h) +=! I(c, 2*h + k) * W(f, c, k) }",
        {"I": (4, 81), "W": (9, 4, 3)},
        Options(threads=(4, 8), registers=(2, 2), reduction_tile=6),
    ),
    "turned": Subject("def turn(float(M,N) A) -> (B) { B(j,i) = A(i,j) }", {"A": (35, 70)}),
    "both ways": Subject(
        "def f(float(M,N) X) -> (Y, Z) { Y(n, m) = 2 * X(m, n)  Z(m, n) = Y(n, m) + Y(N - 1 - n, M - 1 - m) + X(m, n) }",
        {"X": (21, 34)},
    ),
    "rows": Subject(SOFTMAX, {"I": (3, 600)}, Options(fusion="maximal", threads=(1, 128)), peaks={"I": ((511,), 3.0)}),
    "odd rows": Subject(SOFTMAX, {"I": (5, 75)}, Options(fusion="maximal", threads=(1, 64)), peaks={"I": ((63,), 3.0)}),
    "short rows": Subject(SOFTMAX, {"I": (40, 12)}, peaks={"I": ((4, 11), 3.0)}),
    "sums": Subject("def sums(float(M,N) A) -> (S) { S(m) +=! A(m, n) }", {"A": (12, 600)}, Options(threads=(1, 128))),
    "norm": Subject(
        """def f(float(M,N) I, float(N) g, float(N) b) -> (O) {
            mean(m) +=! I(m, n)
            mean(m) = mean(m) / N
            var(m) +=! (I(m, n) - mean(m)) * (I(m, n) - mean(m))
            O(m, n) = (I(m, n) - mean(m)) * rsqrt(var(m) / N + 1e-5) * g(n) + b(n)
        }""",
        {"I": (16, 70), "g": (70,), "b": (70,)},
    ),
    "columns": Subject("def columns(float(M,N) A) -> (S) { S(j) +=! A(i,j) }", {"A": (100, 40)}),
    "totals": Subject(
        "def f(float(M,N) X) -> (A, B) { A +=! X(m, n)  B min=! X(m, n) where n in 1:N }",
        {"X": (23, 67)},
        Options(reduction_chunks=8),
        peaks={"X": ((32,), -3.0)},
    ),
    "layers": Subject(
        """def f(float(B,I) X, float(O,I) W, float(O) b, float(P,O) V) -> (Z) {
            Y(n, o) +=! X(n, i) * W(o, i)
            Y(n, o) = fmax(Y(n, o) + b(o), 0.0)
            Z(n, p) +=! Y(n, o) * V(p, o)
        }""",
        {"X": (18, 20), "W": (24, 20), "b": (24,), "V": (5, 24)},
        Options(threads=(4, 8), registers=(2, 2)),
    ),
    "attention": Subject(
        """def f(float(B,Q,D) X, float(B,K,D) W, float(B,K,E) V) -> (Y, top) {
            S(b, q, k) +=! X(b, q, d) * W(b, k, d)
            top(b, q) max=! S(b, q, k)
            S(b, q, k) = exp(S(b, q, k) - top(b, q))
            total(b, q) +=! S(b, q, k)
            Y(b, q, e) +=! S(b, q, k) * V(b, k, e)
            Y(b, q, e) = Y(b, q, e) / total(b, q)
        }""",
        {"X": (2, 32, 8), "W": (2, 24, 8), "V": (2, 24, 12)},
    ),
    "rows of a product": Subject(
        """def f(float(M,K) X, float(N,K) W) -> (Y) {
            Y(m, n) +=! X(m, k) * W(n, k)
            mean(m) +=! Y(m, n)
            Y(m, n) = Y(m, n) - mean(m)
        }""",
        {"X": (20, 12), "W": (36, 12)},
    ),
    "gathers": Subject(GATHER, {"T": (9, 18), "I": (12, 5)}, dtypes={"I": "int64"}, below={"I": 9}),
    "halves": Subject(
        "def f(half(M,N) X, bfloat16(N) Y) -> (A, B, C) { A(m) +=! X(m, n)  B +=! Y(n) * Y(n)  C(n) max=! X(m, n) }",
        {"X": (13, 45), "Y": (45,)},
        dtypes={"X": "float16", "Y": "bfloat16"},
    ),
    "product of halves": Subject(
        "def mm(bfloat16(M,K) A, bfloat16(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }",
        {"A": (70, 32), "B": (32, 64)},
        dtypes={"A": "bfloat16", "B": "bfloat16"},
    ),
}


def watched(name: str) -> bool:
    """Whether oclgrind takes on a subject: without tensor cores a product of halves only takes it long."""
    return name != "product of halves"


@dataclass(frozen=True)
class Compiled:
    """A subject on its way: the program's own statements, those that the passes made of them, and the mapping."""

    subject: Subject
    language: str
    before: Scop
    lowered: LoweredScop
    mapped: Mapped

    @property
    def device(self) -> Device:
        return small(self.language)

    def source(self) -> Source:
        return emit_gpu(self.mapped, LANGUAGES[self.language][0], self.device, checked=True)


class Kept(Steps):
    """Steps that keep their results, and may have one of them changed."""

    def __init__(self, changes: Mapping[str, Callable[[Any], Any]]) -> None:
        super().__init__("kept")
        self.changes = changes
        self.results: dict[str, Any] = {}

    def run(self, name: str, function: Callable[..., T], *args: Any, **rest: Any) -> T:
        self.results[name] = self.changes.get(name, lambda same: same)(super().run(name, function, *args, **rest))
        return self.results[name]  # type: ignore[no-any-return]


def small(language: str) -> Device:
    return replace(LANGUAGES[language][1], processors=PROCESSORS)


def compiled(subject: Subject, language: str, **changes: Callable[[Any], Any]) -> Compiled:
    """A subject mapped without proofs; ``changes``, by the name of a step, are made to its result."""
    steps = Kept(changes)
    mapped = map_gpu(subject.case().program(), subject.options, small(language), prove="none", steps=steps)
    return Compiled(subject, language, steps.results["plan"].scop, steps.results["promote_to_shared"], mapped)


def refuted(made: Compiled) -> str:
    """By which proof a mapping falls, and what it says; empty for one that is right. The proofs are those of ``map_gpu``."""
    scop, tree, buffers = made.mapped.scop, made.mapped.tree, made.mapped.privates
    proofs: dict[str, Callable[[], None]] = {
        "lowering": lambda: verify_lowering(made.before, made.lowered.scop, made.lowered.aliases),
        "order": lambda: verify(scop, dependences(scop), tree),
        "buffers": lambda: verify_privates(scop, dependences(scop), tree, buffers),
        "races": lambda: verify_races(scop, tree, buffers, made.mapped.launches, warp=made.device.warp),
    }
    for name, proof in proofs.items():
        try:
            proof()
        except VerifyError as error:
            return f"{name}: {str(error).splitlines()[0]}"
    return ""


# ---------------------------------------------------------------- running a text


@dataclass(frozen=True)
class Arguments:
    """A subject's tensors as kernels take them, half types as their bits: the results, without values, and the inputs."""

    outputs: tuple[Bits, ...]
    inputs: tuple[Bits, ...]

    def fresh(self) -> list[Bits]:
        return [np.zeros_like(array) for array in self.outputs]


@cache
def arguments(name: str) -> Arguments:
    import torch

    from support.rings.cuda_target import bits
    from support.run import tensor

    case = SUBJECTS[name].case()
    program = case.program()
    definition, inputs = program.definition, case.inputs()
    outputs = (torch.zeros(program.shape(r), dtype=getattr(torch, definition.tensor(r).dtype)) for r in definition.returns)
    given = (tensor(inputs[p.name], p.dtype) for p in definition.params)
    return Arguments(tuple(map(bits, outputs)), tuple(map(bits, given)))


def assert_agrees(name: str, outputs: Sequence[Bits]) -> None:
    """AssertionError unless these are the results that the reference allows."""
    import torch

    from support.run import array

    case = SUBJECTS[name].case()
    program = case.program()
    expected = case.expected(program)
    for returned, found in zip(program.definition.returns, outputs, strict=True):
        values = torch.from_numpy(found.view(np.int16) if found.dtype == np.uint16 else found)
        as_stored: Array = array(values.view(getattr(torch, program.definition.tensor(returned).dtype)))
        assert_agree(as_stored, expected, returned)


def on_host(text: str, source: Source, given: Arguments) -> list[Bits]:
    """The results of CUDA text; a HostError says what it did that no kernel may do."""
    outputs = given.fresh()
    Host(text).run(source.launches, [*outputs, *given.inputs], (), source.workspace, unset=range(len(outputs)))
    return outputs


_LAUNCH = """
import numpy as np
from tcjit.codegen.source import KernelLaunch
from tcjit.runtime import opencl
stored = dict(np.load({file!r}))
arrays = [stored[f"a{{n}}"] for n in range({outputs} + {inputs})]
launches = [KernelLaunch(symbol, tuple(grid), threads, shared) for symbol, grid, threads, shared in {launches!r}]
program = opencl.LoadedProgram(opencl.build(open({text!r}).read(), launches[0].symbol), launches)
flag = program.run([opencl.HostMemory(a.ctypes.data, a.nbytes, n < {outputs}) for n, a in enumerate(arrays)], [], {workspace})
np.savez({file!r}, *arrays[:{outputs}])
answer = [flag]
"""


def in_oclgrind(inspector: Inspector, text: str, source: Source, given: Arguments) -> tuple[list[Bits], list[Finding], str]:
    """The results of OpenCL text, what oclgrind found, and how the process ended where it gave no answer."""
    with tempfile.TemporaryDirectory(prefix="tcjit-text-") as folder:
        file, kernel = os.path.join(folder, "arrays.npz"), Path(folder, "kernel.cl")
        kernel.write_text(text)
        arrays = {f"a{n}": array for n, array in enumerate([*given.fresh(), *given.inputs])}
        np.savez(file, **arrays)  # type: ignore[arg-type]
        facts = {"file": file, "text": str(kernel), "workspace": source.workspace, "launches": [_plain(one) for one in source.launches]}
        code = _LAUNCH.format(outputs=len(given.outputs), inputs=len(given.inputs), **facts)
        answer, found = inspector.ask(kind="code", code=code)
        if not isinstance(answer, list):
            return [], found, str(answer)
        with np.load(file) as stored:
            return [stored[f"arr_{n}"] for n in range(len(given.outputs))], found, ""


def _plain(launch: KernelLaunch) -> tuple[str, tuple[int, int, int], int, int]:
    return launch.symbol, launch.grid, launch.threads, launch.shared_bytes
