"""Quotients by a divisor that a thread uses again: those of IEEE division, bit for bit.

Modules: codegen.quotients
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from support.gpu import run
from support.mapping import SOFTMAX, program
from support.rings.c import has_gcc_with_avx2
from support.rings.cuda_host import COMPILER

import tcjit
from tcjit.codegen import prelude
from tcjit.codegen.dialect import CUDA, OPENCL
from tcjit.codegen.gpu_kernel import emit_gpu
from tcjit.mapping.machine import OPENCL as PLAIN
from tcjit.mapping.machine import SM_90
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import map_gpu

host = pytest.mark.skipif(COMPILER is None, reason="needs g++")
ROWS = """def rows(float(M,N) X, float(M,N) Z) -> (D, Y) {
    D(m) +=! Z(m,n)
    Y(m,n) = X(m,n) / D(m)
}"""
AVERAGE = "def average(float(N) X) -> (Y) { Y(n) = X(n) / 9.0 }"
IN_PLACE = """def rows(float(M,N) X, float(M,N) Z) -> (D, Y) {
    Y(m,n) = fabs(X(m,n))
    D(m) +=! Z(m,n) * ((Y(m,n) < 0.0) ? 1.0 : 2.0)
    Y(m,n) = Y(m,n) / D(m)
}"""


def text(definition: str, shapes: dict[str, tuple[int, ...]]) -> str:
    return emit_gpu(map_gpu(program(definition, shapes), Options(), SM_90), CUDA, SM_90, checked=True).text


def test_which_divisions_have_the_reciprocal_of_their_divisor() -> None:
    wide = {"X": (1 << 14, 1 << 12)}
    assert "tc_quotient_f32" in text(SOFTMAX, {"I": (8192, 1024)})  # in registers, and in place
    assert "tc_checked_quotient_f32" in text(AVERAGE, {"X": (1 << 24,)})
    # a power of two is multiplied by, one element is divided once, and what reads its own result cannot run twice
    assert "tc_quotient_f32" not in text(AVERAGE.replace("9.0", "8.0"), {"X": (1 << 24,)})
    assert "tc_quotient_f32" not in text(AVERAGE, {"X": (100,)})
    assert "tc_quotient_f32" not in text("def f(float(M,N) X, float(M,N) D) -> (Y) { Y(m,n) = X(m,n) / D(m,n) }", {**wide, "D": wide["X"]})
    assert "tc_quotient_f32" not in text("def f(double(M,N) X, double(M) D) -> (Y) { Y(m,n) = X(m,n) / D(m) }", {**wide, "D": (1 << 14,)})
    opencl = emit_gpu(map_gpu(program(SOFTMAX, {"I": (64, 1024)}), Options(), PLAIN), OPENCL, PLAIN, checked=True).text
    assert "tc_quotient_f32" not in opencl and not prelude.known("tc_quotient_f32", OPENCL)


SPECIAL = np.array(
    [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 3, 1e-45, -1e-45, 1.1754944e-38, 1.1754942e-38, 2.0**-100, 2.0**-101, 2.0**100, 2.0**101,
     3.4028235e38, -3.4028235e38, 2.0**-125, 1.5 * 2.0**-24, 2.0**127],
    dtype=np.float32,
)  # fmt: skip


@host
@pytest.mark.parametrize(("definition", "helper"), [(ROWS, "= tc_checked_quotient_f32("), (IN_PLACE, " tc_range_f32(Y")])
@pytest.mark.parametrize("columns", [64, 1023])
def test_quotients_are_those_of_division(definition: str, helper: str, columns: int) -> None:
    """Of random bits by random bits, and of special values by special values; where a value is out of range, so are its neighbours'."""
    bits = np.random.default_rng(5).integers(0, 1 << 32, (512, columns), dtype=np.uint32)
    x = bits.view(np.float32).copy()
    d = np.random.default_rng(6).integers(0, 1 << 32, 512, dtype=np.uint32).view(np.float32).copy()
    usual = 256  # rows without a value out of range, but for zeros
    x[:usual] = np.random.default_rng(7).uniform(-1, 1, (usual, columns)).astype(np.float32)
    x[:usual, ::7] = 0
    x[1:usual:2, ::9] = -0.0
    d[:usual] = np.random.default_rng(8).uniform(0.5, 2000, usual).astype(np.float32)
    d[usual : usual + len(SPECIAL)] = SPECIAL
    x[usual : usual + len(SPECIAL), : len(SPECIAL)] = SPECIAL
    z = np.zeros_like(x)
    z[:, 0] = d
    d, y = np.empty(512, np.float32), np.empty_like(x)
    made = emit_gpu(map_gpu(program(definition, {"X": x.shape, "Z": x.shape}), Options(), SM_90), CUDA, SM_90, checked=True)
    assert helper in made.text
    assert run(made, [d, y], [x, z]) == 0
    with np.errstate(all="ignore"):
        wanted = (np.abs(x) if definition is IN_PLACE else x) / d[:, None]
    missing = np.isnan(wanted)
    assert (np.isnan(y) == missing).all()
    assert (y.view(np.uint32) == wanted.view(np.uint32))[~missing].all()


HARD = r"""
#include <stdint.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
static inline uint32_t tc_bits_f32(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }
%s
/* Dividends whose quotient by Mb 2^-23 is next to the middle of two floats, 2 Ma 2^s = (2 q + 1) Mb + c with a small c: of these, and of no
   others, the error of a corrected product might pick the wrong one. */
long wrong(long first, long step, long *tried) {
  long found = 0;
  for (uint64_t Mb = (1u << 23) + first; Mb < 1u << 24; Mb += step) {
    int twos = __builtin_ctzll(Mb);
    if (twos > 3) continue;
    uint64_t odd = Mb >> twos, inverse = odd;
    for (int i = 0; i < 6; ++i) inverse *= 2 - odd * inverse;
    float d = ldexpf((float)Mb, -23), r = 1.0f / d;
    for (int s = 23; s <= 24; ++s)
      for (int64_t c = -8; c <= 8; ++c) {
        if (c & ((1 << twos) - 1)) continue;
        uint64_t modulus = 1ull << (s + 1 - twos), q = (uint64_t)-(c >> twos) * inverse & (modulus - 1);
        if (!(q & 1)) continue;
        for (q += ((1ull << 24) - (q < 1u << 24 ? q : 1u << 24) + modulus - 1) / modulus * modulus; q < 1u << 25; q += modulus) {
          uint64_t Ma = (q * Mb + (uint64_t)c) >> (s + 1);
          if (Ma < 1u << 23 || Ma >= 1u << 24) continue;
          float a = ldexpf((float)Ma, -23), y = tc_quotient_f32(a, d, r), high = 0;
          uint32_t low = ~0u;
          tc_range_f32(a, &low, &high);
          ++*tried;
          found += !tc_divides_f32(d, low, high) || tc_bits_f32(y) != tc_bits_f32(tc_divided_f32(a, d));
        }
      }
  }
  return found;
}
"""


@pytest.mark.skipif(not has_gcc_with_avx2(), reason="needs a fused multiply-add")
def test_quotients_next_to_the_middle_of_two_floats(tmp_path: Path) -> None:
    """The product has an error of less than 1.5 units, so that its correction is off by 2^-24 of that: the divisors' dividends at less than
    8 / (2 Mb) units from a middle are the only ones that it could round the other way. Every 61st divisor here; all were tried once."""
    names = ("tc_range_f32", "tc_divides_f32", "tc_quotient_f32", "tc_divided_f32")
    top = prelude.text(list(names), CUDA)
    helpers = [block for block in top.replace("\nTC_INLINE", "\n\nTC_INLINE").replace("\nstatic", "\n\nstatic").split("\n\n")
               if any(f" {name}(" in block.split("{")[0] for name in names)]  # fmt: skip
    assert len(helpers) == len(names)
    code = "\n".join(helpers).replace("TC_INLINE", "static inline").replace("__device__ __noinline__", "")
    (tmp_path / "hard.c").write_text(HARD % code)
    flags = ["-O2", "-mfma", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "hard.c", "-o", "hard.so", "-lm"], cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "hard.so"))
    library.wrong.restype, library.wrong.argtypes = ctypes.c_long, [ctypes.c_long, ctypes.c_long, ctypes.POINTER(ctypes.c_long)]
    tried = ctypes.c_long(0)
    assert library.wrong(1, 61, ctypes.byref(tried)) == 0
    assert tried.value > 500_000


# ---------------------------------------------------------------- on a CPU

ROWS_OF_A_CPU = "def rows(float(N) X, float(M) D) -> (Y) { Y(m,n) = X(n) / D(m) }"


def test_a_loop_over_lanes_multiplies_by_the_inverse_of_its_divisor() -> None:
    rows = tcjit.define(ROWS_OF_A_CPU, target="cpu").rows
    made = rows.compile(torch.ones(1000), torch.ones(8)).source
    assert made.count("tc_scaled_quotient_f32(X[") == made.count("1.0f / tc_d0_scaled") == 1
    for text in (ROWS_OF_A_CPU.replace("D(m) }", "(D(m) + Z(n)) }").replace("(M) D", "(M) D, float(N) Z"), AVERAGE.replace("9.0", "8.0")):
        function = tcjit.define(text, target="cpu")
        given = [torch.ones(1000), torch.ones(8), torch.ones(1000)] if "Z" in text else [torch.ones(1000)]
        (kernel,) = (getattr(function, name).compile(*given) for name in ("rows", "average") if hasattr(function, name))
        assert "tc_scaled_quotient_f32" not in kernel.source


@pytest.mark.parametrize("divisor", ["(1.0 + fabs(D(m)))", "(D(m) - 3.0 * D(m))", "(D(m) > 0.0 ? D(m) : 2.0 - D(m))", "-D(m)", "7.0"])
def test_divisors_that_are_computed(divisor: str) -> None:
    torch.manual_seed(0)
    x, d = torch.randn(500), torch.randn(7)
    text = ROWS_OF_A_CPU.replace("X(n) / D(m)", f"X(n) / {divisor} + D(m) / {divisor}")
    y = tcjit.define(text, target="cpu").rows(x, d)
    by = {"(1": 1 + d.abs(), "(D(m) -": -2 * d, "(D(m) >": torch.where(d > 0, d, 2 - d), "-": -d, "7": torch.full_like(d, 7.0)}
    value = next(value for begin, value in by.items() if divisor.startswith(begin))[:, None]
    torch.testing.assert_close(y, x / value + d[:, None] / value, rtol=1e-6, atol=1e-6)


def test_quotients_of_a_cpu_are_those_of_ieee_division() -> None:
    """Bit for bit from 2^-100 on, within two units in the last place below; signs of zeros included."""
    torch.manual_seed(0)
    special = torch.from_numpy(SPECIAL)
    x, d = (torch.cat([special, torch.randn(n) * torch.exp2(torch.randint(-126, 127, (n,)).float())]) for n in (4000, 400))
    quotients, expected = tcjit.define(ROWS_OF_A_CPU, target="cpu").rows(x, d), x / d[:, None]
    assert torch.equal(quotients.isnan(), expected.isnan())
    assert torch.equal(quotients.signbit() & (quotients == 0), expected.signbit() & (quotients == 0))
    bits, wanted = (one.view(torch.int32).long() for one in (quotients, expected))
    apart = (bits - wanted).abs()[~expected.isnan()]
    large = (expected.abs() >= 2.0**-100)[~expected.isnan()]
    assert not apart[large].any() and apart.max() <= 2


def test_a_quotient_that_a_value_has_several_times() -> None:
    """Of one expression in the syntax tree, as a name of a `where` is."""
    t = tcjit.define("""def f(float(N) D, float(R,X) T) -> (I) {
        I(x) +=! (t < 99.0) ? t * D(int32(t)) + t * D(int32(t) + 1) : 0.0 where t = T(r, x) / 0.004 }""")
    d, times = torch.randn(751), torch.rand(48, 90) * 0.3
    place = (times / 0.004).int()
    wanted = (times / 0.004).double() * (d.double()[place] + d.double()[place + 1])
    torch.testing.assert_close(t.f(d, times), wanted.sum(0).float(), rtol=1e-5, atol=1e-3)
