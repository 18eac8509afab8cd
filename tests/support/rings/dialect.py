"""Runs typed expressions as kernels of a GPU dialect, one thread per element.

OpenCL runs on PoCL in the process of ``support.rings.opencl``, CUDA on the fibers of ``support.rings.cuda_host``.
"""
from __future__ import annotations

import pickle
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from support.rings import cuda_host, opencl
from support.rings.c import STORAGE, Array, Outcome, stored
from tcjit.codegen import prelude
from tcjit.codegen.dialect import GpuDialect
from tcjit.codegen.expression import ExpressionPrinter, ctype
from tcjit.codegen.source import KernelLaunch
from tcjit.grammar.ast import Expr

THREADS = 64
Group = tuple[Sequence[Expr], Mapping[str, tuple[str, Any]]]  # expressions, and name -> (dtype, elements)


def signature(symbol: str, inputs: Sequence[str], outputs: Sequence[str], dialect: GpuDialect) -> str:
    """The head of a kernel that reads arrays A0... of these types and writes R0..., like one of ours but for a count ``n``."""
    at = dialect.pointer + " " if dialect.pointer else ""
    parameters = [f"{at}const {kind} *{dialect.restrict} A{k}" for k, kind in enumerate(inputs)]
    parameters += [f"{at}{kind} *{dialect.restrict} R{k}" for k, kind in enumerate(outputs)]
    parameters += [f"{at}char *workspace", "int64_t n", f"{at}int *tc_flag"]
    return f"{dialect.kernel.format(threads=THREADS)} {symbol}({', '.join(parameters)})"


def kernel(symbol: str, group: Group, dialect: GpuDialect, checked: bool = True) -> tuple[str, ExpressionPrinter]:
    """The kernel that stores each expression, and its printer."""
    expressions, inputs = group
    places = {name: f"A{k}" for k, name in enumerate(inputs)}
    printer = ExpressionPrinter(
        dialect,
        lambda access, p: p.load(inputs[access.tensor][0], f"{places[access.tensor]}[i]"),
        lambda kind, name: name,
        checked=checked,
    )
    lines = [f"    {printer.store(e.dtype, f'R{k}[i]', printer.value(e))}" for k, e in enumerate(expressions)]
    kinds = [ctype(dtype, dialect) for dtype, _ in inputs.values()], [ctype(e.dtype, dialect) for e in expressions]
    number = f"  const int i = {dialect.blocks[0]} * {THREADS} + {dialect.thread};"
    failed, raised = "  int32_t tc_failed = 0;", f"  if (tc_failed != 0) {printer.helper('tc_raise')}(tc_failed, tc_flag);"
    text = [signature(symbol, *kinds, dialect) + " {", number, failed, "  if (i < n) {", *lines, "  }", raised, "}", ""]
    return "\n".join(text), printer


def evaluate(groups: Sequence[Group], dialect: GpuDialect, checked: bool = True) -> list[Outcome]:
    """Run each group of expressions over its inputs, with ``i`` the only index, as a kernel of one program."""
    made = [kernel(f"run{k}", group, dialect, checked) for k, group in enumerate(groups)]
    text = prelude.text([name for _, printer in made for name in printer.used], dialect) + "\n".join(part for part, _ in made)
    arrays = []
    for expressions, inputs in groups:
        given = [np.ascontiguousarray(stored(dtype, values)) for dtype, values in inputs.values()]
        count = len(given[0]) if given else 1
        arrays.append([*given, *(np.zeros(count, STORAGE.get(e.dtype, e.dtype)) for e in expressions)])
    found = run(text, arrays, [len(inputs) for _, inputs in groups], dialect)
    return [
        Outcome(after[len(inputs) :], flag, printer.sites, part)
        for (flag, after), (_, inputs), (part, printer) in zip(found, groups, made, strict=True)
    ]


def run(text: str, arrays: Sequence[Sequence[Array]], inputs: Sequence[int], dialect: GpuDialect) -> list[tuple[int, list[Array]]]:
    """Run kernels run0, run1... of ``text``, each with its arrays, of which so many are inputs: flags, and the arrays afterwards."""
    if dialect.name == "opencl":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernels"
            path.write_bytes(pickle.dumps((text, arrays, inputs)))
            code = f"from support.rings import dialect; answer = dialect.work({str(path)!r})"
            answer = opencl.worker().ask(kind="code", code=code)
            assert answer == "done", answer
            results: list[tuple[int, list[Array]]] = pickle.loads(path.read_bytes())
            return results
    host = cuda_host.Host(text)
    found = []
    for k, group in enumerate(arrays):
        after = [a.copy() for a in group]
        found.append((host.run([_launch(k, group)], after, [_count(group)], orders=(cuda_host.FORWARD,)), after))
    return found


def work(path: str) -> str:
    """What ``run`` does in the process that has OpenCL; the results replace the file."""
    from tcjit.runtime import opencl

    text, arrays, inputs = pickle.loads(Path(path).read_bytes())
    content = opencl.build(text, "run0")
    found = []
    for k, (group, first) in enumerate(zip(arrays, inputs, strict=True)):
        memory = [opencl.HostMemory(a.ctypes.data, a.nbytes, written=j >= first) for j, a in enumerate(group)]
        found.append((opencl.LoadedProgram(content, [_launch(k, group)]).run(memory, [_count(group)], 0), group))
    Path(path).write_bytes(pickle.dumps(found))
    return "done"


def _count(arrays: Sequence[Array]) -> int:
    return max(a.size for a in arrays)


def _launch(number: int, arrays: Sequence[Array]) -> KernelLaunch:
    return KernelLaunch(f"run{number}", (-(-_count(arrays) // THREADS), 1, 1), THREADS, 0)
