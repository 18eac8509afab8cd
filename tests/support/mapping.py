"""From text to a scop, a tree or a mapped program in one call, for the tests of the mapping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tcjit.grammar.ast import Program
from tcjit.grammar.front import read
from tcjit.grammar.infer import specialise
from tcjit.mapping.machine import SM_90, Costs, Machine
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import Mapped, build_scop, map_program
from tcjit.mapping.scop import Scop

COSTS = Costs(fma_rate=1.0, vector_load=1.0, parallel_region=3e-6)  # plans of the tests rest on these, whatever the defaults are
AVX512 = Machine(vector_bytes=64, vector_registers=32, costs=COSTS)

MATMUL = "def matmul(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"
SOFTMAX = """
def softmax(float(M,N) I) -> (O) {
    top(m) max=! I(m, n)
    O(m, n) = exp(I(m, n) - top(m))
    total(m) +=! O(m, n)
    O(m, n) = O(m, n) / total(m)
}"""
CONVOLUTION = """
def conv(float(N,C,H,W) I, float(F,C,KH,KW) W1) -> (O) {
    O(n, f, h, w) +=! (inside ? I(n, c, h + kh - 1, w + kw - 1) : 0.0) * W1(f, c, kh, kw)
        where h in 0:H, w in 0:W, inside = h + kh >= 1 && h + kh <= H && w + kw >= 1 && w + kw <= W
}"""
GATHER = "def bag(float(E,D) T, int64(B,L) I) -> (O) { O(b, d) +=! T(I(b, l), d) }"

HALVES = "def mm(bfloat16(M,K) A, bfloat16(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"
TRANSPOSED = "def turn(float(M,N) A) -> (B) { B(j,i) = A(i,j) }"
COLUMNS = "def columns(float(M,N) A) -> (S) { S(j) +=! A(i,j) }"
TOTAL = "def total(float(M,N) A) -> (S) { S +=! A(i,j) }"
LAYER = """def layer(float(B,I) X, float(O,I) W, float(O) b) -> (Y) {
    Y(n,o) +=! X(n,i) * W(o,i)
    Y(n,o) = fmax(Y(n,o) + b(o), 0.0)
}"""
SMALL = replace(SM_90, name="small", processors=2)  # so that small problems get large tiles
# the golden kernels of a GPU: text, shapes and options
GOLDEN: Mapping[str, tuple[str, dict[str, tuple[int, ...]], dict[str, Any]]] = {
    "matmul": (MATMUL, {"A": (256, 64), "B": (64, 256)}, {}),
    "odd_matmul": (MATMUL, {"A": (100, 30), "B": (30, 70)}, {"threads": (8, 8), "registers": (2, 4), "reduction_tile": 4}),
    "pipelined": (MATMUL, {"A": (256, 64), "B": (64, 256)}, {"pipeline_stages": 3}),
    "layer": (LAYER, {"X": (128, 96), "W": (64, 96), "b": (64,)}, {}),
    "halves": (HALVES, {"A": (128, 64), "B": (64, 128)}, {}),
    "softmax": (SOFTMAX, {"I": (1000, 2048)}, {}),
    "short_softmax": (SOFTMAX, {"I": (1000, 50)}, {}),
    "convolution": (CONVOLUTION, {"I": (2, 16, 28, 28), "W1": (32, 16, 3, 3)}, {}),
    "transposed": (TRANSPOSED, {"A": (100, 200)}, {}),
    "columns": (COLUMNS, {"A": (1000, 48)}, {}),
    "total": (TOTAL, {"A": (512, 1024)}, {}),
    "gather": (GATHER, {"T": (1000, 64), "I": (32, 20)}, {}),
}


def program(text: str, shapes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, int] | None = None) -> Program:
    return specialise(read(text)[-1], shapes, scalars or {})


def scop(text: str, shapes: Mapping[str, tuple[int, ...]], options: Options | None = None) -> Scop:
    return build_scop(program(text, shapes), options or Options(vector_width=1))


def mapped(text: str, shapes: Mapping[str, tuple[int, ...]], options: Options | None = None) -> Mapped:
    return map_program(program(text, shapes), options or Options(vector_width=1), AVX512)
