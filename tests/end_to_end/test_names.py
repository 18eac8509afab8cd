"""Any identifier may name a def, a tensor, a size or an index, whatever it means to C, CUDA, OpenCL, isl, or the code around it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.rings.targets import assert_agrees, everywhere, only, small

import tcjit
from tcjit.mapping.options import Options

EVERYWHERE = pytest.mark.parametrize("on", everywhere())
C_WORDS = """
int for main while do auto struct union static const void return double_ goto switch case default break continue sizeof enum typedef asm
inline restrict register typeof static_assert thread_local nullptr constexpr alignas complex imaginary volatile extern short long signed
unsigned char linux unix errno malloc memcpy NULL assert offsetof stdin EOF FILE uint8_t int64_t size_t intptr_t INT8_MAX INT_MAX
INTMAX_MAX INT_LEAST8_MAX WCHAR_MAX SIZE_MAX UINT64_MAX M_PI
""".split()
GPU_WORDS = """
kernel global local private generic read_only write_only pipe uint uchar ulong float4 uint4 event_t sampler_t image2d_t barrier mad dot
as_float get_local_id CLK_LOCAL_MEM_FENCE M_PI_F printf atomic_max vload_half convert_int threadIdx blockIdx gridDim warpSize dim3
atomicMax clock __global__ this new delete template typename operator namespace using virtual friend mutable decltype export try catch
xor bitand compl wchar_t tc_shared tc_thread tc_block0 tc_x0 tc_y tc_scratch tc_ahead_16 launch block grid vector
""".split()
ISL_WORDS = "and or not implies mod floor ceil floord ceild rat infty infinity NaN nan".split()
OUR_WORDS = """
c0 c1 s1 s0_16 v2 x0 x1 threads numbers tensors workspace tc_flag tc_sum tc_at0 tc_g0_0 tc_v0 tc_ok0 tc_fdiv tc_max_f32 TC_FLAG
TC_INLINE INFINITY NAN _x __x _Bool X_p X_bits X_stride0 omp omp_out omp_in omp_priv S0 S1 S2 chunk any0 a0 y0_ tile0 tiles lanes unroll
registers parallel tc_float16 tc_sum_float16 tc_min_float tc_value e1 E10 expf fmaxf sqrtf True False None self lambda class P_wide
P_part
""".split()
BUILT_INS = "exp log sqrt fmax abs j0 y1 relu".split()
WORDS = [*C_WORDS, *GPU_WORDS, *ISL_WORDS, *OUR_WORDS]
TENSOR_WORDS = [w for w in WORDS if w not in ("floor", "ceil", "infinity")]  # names of built-ins are no names of tensors
DEF_WORDS = "fdiv bits_f32 float_to_half float8 sum_float8 flag int main and mod exp _x lambda shared kernel this".split()
BATCH = 22


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Programs that differ in names alone share kernels: here each is to have its own."""
    monkeypatch.setenv("TCJIT_CACHE_DIR", str(tmp_path))


def batches(words: list[str], size: int = BATCH) -> list[list[str]]:
    return [words[start : start + size] for start in range(0, len(words), size)]


@EVERYWHERE
@pytest.mark.parametrize("words", batches(TENSOR_WORDS, 2 * BATCH), ids=lambda w: w[0])
def test_any_name_for_inputs_and_scalars(on: str, words: list[str]) -> None:
    params = ", ".join(f"float(N) {w}" for w in words)
    value = " + ".join(f"{n + 1} * {w}(i)" for n, w in enumerate(words))
    xs = [small(20, seed=n) for n in range(len(words))]
    gathering = only(f"def f({params}, int64(N) Jx) -> (Q) {{ Q(i) = {value} + {words[0]}(Jx(i)) }}", target=on)
    found = gathering(*xs, torch.arange(20))
    assert torch.equal(found, torch.stack([(n + 1) * x for n, x in enumerate(xs)]).sum(0) + xs[0])
    params = ", ".join(f"half {w}" for w in words)
    value = " + ".join(f"{n + 1} * float({w})" for n, w in enumerate(words))
    text = f"def f({params}, half(N) X) -> (P) {{ P +=! X(i) * half({value}) }}"
    found = only(text, target=on, options=Options(reduction_chunks=2))(*[1.0] * len(words), torch.ones(4, dtype=torch.half))
    assert found.item() == 4 * len(words) * (len(words) + 1) / 2


@EVERYWHERE
@pytest.mark.parametrize("words", batches(TENSOR_WORDS), ids=lambda w: w[0])
def test_any_name_for_outputs_and_temporaries(on: str, words: list[str]) -> None:
    chain = " ".join(f"{w}(i) = {before}(i) + {n}" for n, (before, w) in enumerate(zip(["Xin", *words], words)))
    returned = [words[-1], *words[::3]]
    found = tcjit.define(f"def f(float(N) Xin) -> ({', '.join(dict.fromkeys(returned))}) {{ {chain} }}", target=on).f(torch.zeros(20))
    for w, result in zip(dict.fromkeys(returned), found, strict=True):
        assert result[3] == sum(range(words.index(w) + 1)), w


@EVERYWHERE
@pytest.mark.parametrize("words", batches([*ISL_WORDS, *OUR_WORDS, *BUILT_INS, "int", "for"]), ids=lambda w: w[0])
def test_any_name_for_sizes_and_indices(on: str, words: list[str]) -> None:
    dims = [min(n % 3 + 1, 2) for n in range(len(words))]
    params = ", ".join(f"float({w}) Z{n}" for n, w in enumerate(words))
    zs = [torch.ones(d) for d in dims]
    found = tcjit.define(f"def f({params}) -> (Q) {{ Q = {' + '.join(words)} + Z0(0) }}", target=on).f(*zs)
    assert found.item() == sum(dims) + 1
    lines = " ".join(f"T{n}({w}) +=! X({w}, Kx) * {w} + ({w} >= 1 ? X({w} / 2, Kx) : 1.0)" for n, w in enumerate(words[:6]))
    last = " + ".join(f"T{n}(i)" for n in range(len(words[:6])))
    assert_agrees(on, f"def f(float(M,K) X) -> (Q) {{ {lines} Q(i) = {last} }}", small(9, 4))
    for n, w in enumerate(words[6:]):
        other = words[n]
        if n % 4 == 0:
            assert_agrees(on, f"def f(float(M,M) X) -> (Q) {{ Q({w}, {other}) = X({other}, {w}) + {w} - 2 * ({other} % 3) }}", small(3, 3))


@EVERYWHERE
@pytest.mark.parametrize("name", DEF_WORDS)
def test_any_name_for_a_def(on: str, name: str) -> None:
    terms = "k in 0:K" if on == "cpu" else "k in 0:1"  # only C has helpers for vectors of eight, whose names could be those of defs
    text = f"""def {name}(float(M,K) A, float(K,N) B, half(M) H) -> (C, D) {{
        C(m,n) +=! A(m,k) * B(k,n) where {terms}  D(i) = H((i + 1) % M) / 2 where i in 0:M
    }}"""
    a, b = small(9, 8), small(8, 16)
    product, moved = getattr(tcjit.define(text, target=on, options=Options(vector_width=8)), name)(a, b, torch.ones(9, dtype=torch.half))
    assert torch.equal(product, a @ b if on == "cpu" else a[:, :1] @ b[:1]) and torch.equal(moved, torch.full((9,), 0.5, dtype=torch.half))


@pytest.mark.parametrize("word", "def where in exists min max true false bool float half int32 2x a-b é".split())
def test_words_of_the_language_are_refused(word: str) -> None:
    for text in (
        f"def {word}(float(N) X) -> (Y) {{ Y(i) = X(i) }}",
        f"def f(float(N) {word}) -> (Y) {{ Y(i) = {word}(i) }}",
        f"def f(float(N) X) -> ({word}) {{ {word}(i) = X(i) }}",
        f"def f(float(N) X) -> (Y) {{ Y({word}) = X({word}) }}",
    ):
        with pytest.raises(tcjit.TCError):
            tcjit.define(text)
