"""Compiles typed expressions into one small C function and runs them over arrays, element by element."""
from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tcjit.codegen import prelude
from tcjit.codegen.dialect import C, Dialect
from tcjit.codegen.expression import ExpressionPrinter, ctype
from tcjit.grammar.ast import Access, Expr
from tcjit.runtime import host

Array = np.ndarray[Any, Any]
STORAGE = {"float16": "uint16", "bfloat16": "uint16"}  # how a test holds the bits of an element
SIGNATURE = "int64_t run(void *const *inputs, void *const *outputs, int64_t n)"


@dataclass
class Outcome:
    values: list[Array]  # one per expression, in the storage of its dtype
    flag: int
    sites: list[dict[str, Any]]
    text: str


def stored(dtype: str, values: Any) -> Array:
    """Python or NumPy numbers as elements of ``dtype``, exact values assumed for the half types."""
    if dtype == "bfloat16":
        return (np.asarray(values, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype == "float16":
        return np.asarray(values, dtype=np.float16).view(np.uint16)
    return np.asarray(values, dtype=dtype)


def plain(dtype: str, elements: Array) -> Array:
    """Elements of ``dtype`` as NumPy numbers, the half types as float32."""
    if dtype == "bfloat16":
        return (elements.astype(np.uint32) << 16).view(np.float32)
    return elements.view(np.float16).astype(np.float32) if dtype == "float16" else elements


def program(
    expressions: Sequence[Expr], inputs: Mapping[str, str], dialect: Dialect = C, checked: bool = True, simd: bool = False
) -> tuple[str, ExpressionPrinter]:
    """The C text that stores each expression, and its printer; ``inputs`` maps the names read at [i] to their dtypes."""
    printer = ExpressionPrinter(
        dialect, lambda access, p: p.load(inputs[access.tensor], f"{access.tensor}[i]"), lambda kind, name: name, checked=checked
    )
    lines = [SIGNATURE + " {", "  int64_t tc_flag = 0;"]
    lines += [f"  const {ctype(dtype)} *restrict {name} = inputs[{k}];" for k, (name, dtype) in enumerate(inputs.items())]
    lines += [f"  {ctype(e.dtype)} *restrict result{k} = outputs[{k}];" for k, e in enumerate(expressions)]
    lines += ["#pragma omp simd"] * simd + ["  for (int64_t i = 0; i < n; ++i) {"]
    lines += [f"    {printer.store(e.dtype, f'result{k}[i]', printer.value(e))}" for k, e in enumerate(expressions)]
    lines += ["  }", "  return tc_flag;", "}"]
    return prelude.text(printer.used, dialect) + "\n".join(lines) + "\n", printer


def evaluate(expressions: Sequence[Expr], inputs: Mapping[str, tuple[str, Any]], checked: bool = True) -> Outcome:
    """Run ``expressions`` over ``inputs``: name -> (dtype, elements); ``i`` is the only index."""
    arrays = [np.ascontiguousarray(stored(dtype, values)) for dtype, values in inputs.values()]
    count = len(arrays[0]) if arrays else 1
    text, printer = program(expressions, {name: dtype for name, (dtype, _) in inputs.items()}, checked=checked)
    results = [np.empty(count, STORAGE.get(e.dtype, e.dtype)) for e in expressions]
    flag = call(text, "run", arrays, results, count)
    return Outcome(results, flag, printer.sites, text)


def call(text: str, symbol: str, inputs: Sequence[Array], outputs: Sequence[Array], count: int) -> int:
    """Compile and call a function of ``SIGNATURE``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.so"
        path.write_bytes(host.build(text, symbol))
        function = getattr(ctypes.CDLL(str(path)), symbol)
    function.restype = ctypes.c_int64
    pointers = [(ctypes.c_void_p * max(1, len(group)))(*[a.ctypes.data for a in group]) for group in (inputs, outputs)]
    return int(function(*pointers, ctypes.c_int64(count)))


def read(name: str, dtype: str) -> Access:
    return Access(name, (), dtype=dtype)


def assembly(text: str, flags: Sequence[str] = ()) -> str:
    """What the compiler makes of a text, as assembly."""
    tool = host.compiler()
    command = [*tool.command, *tool.flags, *flags, "-S", "-x", "c", "-", "-o", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def has_gcc_with_avx2() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "gcc" in host.compiler().version and " avx2" in flags
