"""A mapped program as the kernels of a GPU: CUDA C and OpenCL C from one walk, which a table of words tells apart."""

from __future__ import annotations

from tcjit.codegen import integers, prelude
from tcjit.codegen.build import build
from tcjit.codegen.dialect import GpuDialect
from tcjit.codegen.expression import FAILED, ctype, vtype
from tcjit.codegen.gpu_body import GpuBodyEmitter
from tcjit.codegen.gpu_emitter import THREAD
from tcjit.codegen.loops import If, MarkNode, Node, marks_below, runs
from tcjit.codegen.memory import symbol as kernel_symbol
from tcjit.codegen.source import KernelLaunch, Source
from tcjit.errors import MappingError
from tcjit.grammar.ast import Expr, Size
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.gpu_nest import LaunchBounds
from tcjit.mapping.machine import Device
from tcjit.mapping.marks import Launch
from tcjit.mapping.pipeline import Mapped

BOUNDARY = 16  # bytes, on which shared arrays start, and arguments that are read several elements at once


def emit_gpu(mapped: Mapped, dialect: GpuDialect, device: Device, *, checked: bool) -> Source:
    """The kernels of a mapped program; ``checked`` tests gathers and integer divisors at run time.

    A kernel that needs more shared memory than the device has is a MappingError.
    """
    return _GpuKernelEmitter(mapped, dialect, device, checked).source()


class _GpuKernelEmitter(GpuBodyEmitter):
    """Puts signatures, pointers and shared arrays around what ``GpuBodyEmitter`` writes."""

    def source(self) -> Source:
        definition = self.mapped.scop.program.definition
        symbol = kernel_symbol(definition.name, self.dialect)
        nodes = build(self.mapped)
        texts, launches, fewer = [], [], []
        aligned: set[str] = set()
        below = [_below(nodes, launch.mark) for launch in self.mapped.launches]
        if len(list(runs(nodes))) != sum(len(list(runs(found))) for found in below):
            raise MappingError("a part of the loops is in no launch", hint="report this: the program is fine, the mapping is not")
        for number, launch in enumerate(self.mapped.launches):
            text, made = self.kernel(launch, f"{symbol}_{number}" if number else symbol, below[number])
            texts.append(text)
            launches.append(made)
            fewer += [(f"grid {number} {axis}", blocks) for axis, blocks in self.fewer]
            aligned |= set(self.aligned)
        text = "\n".join(texts)
        return Source(
            "\n".join([f"/* {self.title()} */", prelude.text(self.printer.used, self.dialect), text]),
            symbol,
            self.memory.numbers,
            self.memory.workspace,
            tuple(self.printer.sites),
            tuple(launches),
            tuple(name for name in self.memory.arguments if name in aligned),
            (*self.memory.host, *fewer),
            {**self.profile.totals(), "lines": text.count("\n")},
        )

    def kernel(self, launch: LaunchBounds, symbol: str, nodes: tuple[Node, ...]) -> tuple[str, KernelLaunch]:
        """The text of one kernel, and how to launch it."""
        self.begin(launch.threads)
        self.marks = (launch.mark,)
        checks = self.printer.checks
        self.block(nodes)
        body, self.lines = self.lines, []
        shared = self.shared_arrays(nodes, symbol)
        self.pointers()
        if self.printer.checks > checks:
            body = [f"  int32_t {FAILED} = 0;", *body, f"  if ({FAILED} != 0) {self.printer.helper('tc_raise')}({FAILED}, tc_flag);"]
        opening = f"{self.gpu.kernel.format(threads=launch.threads)} {symbol}({', '.join(self.parameters())}) {{"
        return "\n".join([opening, *self.lines, *body, "}", ""]), KernelLaunch(symbol, self.grid, launch.threads, shared)

    # ------------------------------------------------------------ parameters, the same for every kernel

    def parameters(self) -> list[str]:
        found = [f"{self.pointer_type(name)} {self.memory.names[name]}" for name in self.memory.arguments]
        found.append(f"{self.global_memory('char')} *{self.gpu.restrict} workspace")
        return [*found, *map(self.number, self.memory.numbers), f"{self.global_memory('int')} *tc_flag"]

    def global_memory(self, kind: str) -> str:
        return f"{self.gpu.pointer} {kind}".strip()

    def pointer_type(self, tensor: str, const: bool = False) -> str:
        storage = self.mapped.scop.tensor(tensor)
        kind = ctype(storage.dtype, self.dialect)
        return f"{self.global_memory(f'const {kind}' if const or storage.role == 'input' else kind)} *{self.gpu.restrict}"

    def number(self, number: tuple[str, str, str | int | Expr]) -> str:
        """The parameter of a number that a call passes."""
        match number:
            case "scalar", name, str(dtype):
                return f"const {'double' if DTYPES[dtype].kind == 'float' else 'int64_t'} {self.memory.names[name]}_bits"
            case "stride", name, int(axis):
                return f"const int64_t {self.memory.stride_name(self.mapped.scop.tensor(name), axis)}"
        return f"const int64_t {number[1]}{'_bits' if isinstance(number[2], Size) else ''}"

    # ------------------------------------------------------------ what a kernel starts with

    def pointers(self) -> None:
        """The thread's number, scalars, and pointers to temporaries, as far as the body names them."""
        scop = self.mapped.scop
        lines = {THREAD: f"const int {THREAD} = {self.gpu.thread};"}
        for d in scop.program.dynamic:
            kind = "int" if d.greatest <= integers.GREATEST else "int64_t"
            lines[d.name] = f"const {kind} {d.name} = ({kind}){d.name}_bits;"
        for p in scop.program.definition.params:
            if not p.dims and p.name not in scop.values:
                name, kind = self.memory.names[p.name], vtype(p.dtype, self.dialect)
                lines[name] = f"const {kind} {name} = ({kind}){name}_bits;"
        for tensor, offset in self.memory.places.items():
            name, kind = self.memory.names[tensor], self.pointer_type(tensor, tensor not in self.written)
            lines[name] = f"{kind} {name} = ({kind.removesuffix(self.gpu.restrict)})(workspace + {offset});"
        for name, line in lines.items():
            if name in self.mentioned:
                self.write(line)

    def shared_arrays(self, nodes: tuple[Node, ...], symbol: str) -> int:
        """Declare the arrays that the threads of a block share; their bytes."""
        arrays = []
        for private in self.memory.privates.values():
            if private.space == "shared" and private.mark in marks_below(nodes):
                dtype = self.mapped.scop.tensor(private.tensor).dtype
                arrays.append((ctype(dtype, self.dialect), self.memory.private_name(private), private.elements, DTYPES[dtype].bytes))
        arrays += [(kind, name, elements, size) for name, (kind, elements, size) in self.scratch.items()]
        total = sum(_rounded(elements * size) for _, _, elements, size in arrays)
        most = self.device.max_shared_bytes
        if total > most:
            raise MappingError(
                f"the kernel {symbol} needs {total} bytes of shared memory, and a block on {self.device.name} has {most}",
                hint="smaller tiles",
            )
        dynamic = bool(self.gpu.dynamic) and total > self.device.shared_bytes
        if dynamic:
            self.write(self.gpu.dynamic)
        offset = 0
        for kind, name, elements, size in arrays:
            if dynamic:
                self.write(f"{kind} *const {name} = ({kind} *)(tc_shared + {offset});")
                offset += _rounded(elements * size)
            else:
                self.array(f"{self.gpu.shared} {self.gpu.aligned.format(bytes=BOUNDARY)} {kind} {name}", elements)
        return total


def _rounded(size: int) -> int:
    return -(-size // BOUNDARY) * BOUNDARY


def _below(nodes: tuple[Node, ...], mark: Launch) -> tuple[Node, ...]:
    """The nodes below the mark of a launch, under the conditions that isl puts around it where sizes are dynamic."""
    found: list[Node] = []
    for node in nodes:
        if isinstance(node, MarkNode) and node.mark == mark:
            found += node.body
        elif isinstance(node, If) and (sides := (_below(node.then, mark), _below(node.other, mark))) != ((), ()):
            found.append(If(node.condition, *sides))
    return tuple(found)
