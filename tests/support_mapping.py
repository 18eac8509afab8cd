"""From text to a scop, a tree or a mapped program in one call, for the tests of the mapping."""

from __future__ import annotations

from collections.abc import Mapping

from tcjit.grammar.ast import Program
from tcjit.grammar.front import read
from tcjit.grammar.infer import specialise
from tcjit.mapping.machine import Machine
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import Mapped, map_program
from tcjit.mapping.scop import Scop, build

AVX512 = Machine(vector_bytes=64, vector_registers=32)

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


def program(text: str, shapes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, int] | None = None) -> Program:
    return specialise(read(text)[-1], shapes, scalars or {})


def scop(text: str, shapes: Mapping[str, tuple[int, ...]], options: Options | None = None) -> Scop:
    return build(program(text, shapes), options or Options())


def mapped(text: str, shapes: Mapping[str, tuple[int, ...]], options: Options | None = None) -> Mapped:
    return map_program(program(text, shapes), options or Options(), AVX512)
