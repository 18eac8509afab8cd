"""The C text of a few kernels, kept beside the tests so that every change of generated code is seen and reviewed."""

from __future__ import annotations

from collections.abc import Callable

from support.mapping import CONVOLUTION, GATHER, MATMUL, SOFTMAX, program

from tcjit.codegen.c import emit_c
from tcjit.codegen.dialect import C
from tcjit.grammar.dynamic import generalise
from tcjit.grammar.front import read
from tcjit.mapping.machine import Machine
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import map_program

AVX512 = Machine(vector_bytes=64, vector_registers=32)
AVX2 = Machine(vector_bytes=32, vector_registers=16)
Golden = Callable[[str], None]


def text(source: str, shapes: dict[str, tuple[int, ...]], machine: Machine, options: Options | None = None) -> str:
    """The kernel, without what the library of vector functions at hand would add."""
    return emit_c(map_program(program(source, shapes), options or Options(), machine), C, machine, checked=True).text


def test_matmul_avx512(golden: Golden) -> None:
    golden(text(MATMUL, {"A": (64, 48), "B": (48, 64)}, AVX512))


def test_matmul_avx2_with_remainders(golden: Golden) -> None:
    golden(text(MATMUL, {"A": (31, 48), "B": (48, 37)}, AVX2))


def test_softmax(golden: Golden) -> None:
    golden(text(SOFTMAX, {"I": (256, 300)}, AVX512))


def test_padded_convolution(golden: Golden) -> None:
    golden(text(CONVOLUTION, {"I": (1, 8, 14, 14), "W1": (16, 8, 3, 3)}, AVX2))


def test_embedding_bag(golden: Golden) -> None:
    golden(text(GATHER, {"T": (1000, 64), "I": (32, 20)}, AVX512))


def test_chunked_total_in_half_precision(golden: Golden) -> None:
    source = "def total(bfloat16(N) X, int32(N) Y) -> (S, R) { S +=! X(i)  R max=! Y(i) / Y(N - 1 - i) }"
    golden(text(source, {"X": (1 << 18,), "Y": (1 << 18,)}, AVX2, Options(reduction_chunks=8)))


def test_matmul_with_a_dynamic_size(golden: Golden) -> None:
    made = map_program(generalise(read(MATMUL)[0], {"M": 5, "N": 64, "K": 48}, {}, {"M": (33, 1024)}), Options(), AVX2)
    golden(emit_c(made, C, AVX2, checked=True).text)


def test_softmax_with_dynamic_sizes(golden: Golden) -> None:
    made = map_program(generalise(read(SOFTMAX)[0], {"M": 5, "N": 300}, {}, {"M": (1, 32), "N": (33, 1024)}), Options(), AVX512)
    golden(emit_c(made, C, AVX512, checked=True).text)
