"""What CUDA kernels do, on the host: random programs against the reference, broken kernels caught.

Every access is watched (see cuda_memory.h), and each kernel runs in two orders of threads and blocks with the same result.
`make soak` draws fresh programs.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
import torch
from support.cases import REGRESSIONS, load
from support.fuzz.kernels import strided
from support.fuzz.programs import draw
from support.library import Case, assert_agrees
from support.mapping import CONVOLUTION, MATMUL, SOFTMAX
from support.rings.cuda_host import COMPILER, HostError
from support.rings.cuda_target import TARGET, Loaded
from support.run import assert_right

import tcjit
from tcjit.errors import TCError
from tcjit.jit.kernel import Kernel

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")
PROGRAMS, SHARDS, SEED = 18, 6, "cuda 20240601"
SAVED = sorted(REGRESSIONS.glob("*.tc"))
COLUMNS = "def columns(float(N,D) X) -> (S) { S(d) +=! X(n, d) }"
TOTAL = "def total(float(N) X) -> (S) { S +=! X(n) }"
TRANSPOSE = "def transpose(float(N,M) X) -> (Y) { Y(m, n) = X(n, m) }"


@pytest.mark.sample(2)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_agrees_with_the_reference(shard: int) -> None:
    for number in range(shard, PROGRAMS, SHARDS):
        case = draw(random.Random(f"{SEED} {number}"))
        try:
            assert_right(case, TARGET)
        except (AssertionError, TCError) as error:
            raise AssertionError(f"program {number}: {error}\n{case}\n{case.text}") from error


@pytest.mark.parametrize("path", SAVED, ids=[p.stem for p in SAVED])
def test_programs_that_once_failed(path: Path) -> None:
    assert_right(load(path), TARGET)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", ["matmul_nn", "matmul_tt"])
def test_products_of_other_types(name: str, dtype: str) -> None:
    assert_agrees(Case(name, {"M": 37, "K": 70, "N": 21}), dtype, TARGET)


HALVES = {
    "product": ("def f({t}(M,K) A, {t}(K,N) B) -> (C) {{ C(m,n) +=! A(m,k) * B(k,n) }}", (37, 50), (50, 41)),
    "one_step": ("def f({t}(M,K) A, {t}(N,K) B) -> (C) {{ C(m,n) +=! A(m,k) * B(n,k) }}", (70, 21), (33, 21)),
    "rounded": ("def f(float(M,K) A, {t}(K,N) B) -> (float32(M,N) C) {{ C(m,n) +=! float32({t}(A(m,k)) * B(k,n)) }}", (37, 150), (150, 41)),
    "window": ("def f({t}(C,W) A, {t}(F,C,K) B) -> (O) {{ O(f,w) +=! A(c, w + k) * B(f,c,k) }}", (20, 40), (18, 20, 3)),
    "windows": ("def f({t}(C,H,W) A, {t}(F,C,3,3) B) -> (O) {{ O(f,h,w) +=! A(c,h+i,w+j) * B(f,c,i,j) }}", (16, 7, 29), (33, 16, 3, 3)),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", HALVES)
def test_parts_of_atoms_are_zeros(name: str, dtype: str) -> None:
    text, *shapes = HALVES[name]
    generator = torch.Generator().manual_seed(1)
    kinds = [torch.float32 if name == "rounded" else getattr(torch, dtype), getattr(torch, dtype)]
    tensors = [torch.randint(-4, 5, shape, generator=generator).to(kind) for shape, kind in zip(shapes, kinds)]
    kernel = tcjit.define(text.format(t=dtype), target=TARGET).f.compile(*tensors)
    assert "tc_mma_" in kernel.source
    wanted = tcjit.define(text.format(t=dtype), target="reference").f(*tensors)
    torch.testing.assert_close(kernel(*tensors).float(), torch.as_tensor(wanted).float())


RESTRICTED = {
    "triangle": ("(k <= i) ? A(i,k) * B(k,j) : 0.0", lambda i, k: k <= i),
    "else": ("(k > i) ? 0.0 : A(i,k) * B(k,j)", lambda i, k: k <= i),
    "band": ("(k <= i && k + 20 >= i) ? A(i,k) * B(k,j) : 0.0", lambda i, k: (k <= i) & (k + 20 >= i)),
    "beyond": ("(k >= i + 40) ? A(i,k) * B(k,j) : 0.0", lambda i, k: k >= i + 40),
}


@pytest.mark.parametrize("extent", [96, 83])
@pytest.mark.parametrize("name", RESTRICTED)
def test_terms_that_a_condition_leaves_out_are_not_computed(name: str, extent: int) -> None:
    """What stands there may be no number."""
    term, inside = RESTRICTED[name]
    kernel, (a, b) = made(f"def f(float(N,N) A, float(N,M) B) -> (C) {{ C(i,j) +=! {term} }}", (extent, extent), (extent, 72))
    row, column = torch.arange(extent)[:, None], torch.arange(extent)[None]
    wanted = torch.where(inside(row, column), a, 0.0) @ b
    torch.testing.assert_close(kernel(torch.where(inside(row, column), a, torch.nan), b), wanted)


@pytest.mark.parametrize(("dtype", "extent"), [("float", 96), ("float", 83), ("bfloat16", 96), ("float16", 75)])
def test_results_that_a_condition_leaves_out_are_zeros(dtype: str, extent: int) -> None:
    """Also where the tile that computes them holds something else."""
    text = f"def f({dtype}(N,K) A, {dtype}(K,M) B) -> (float32(N,M) C) {{ C(i,j) +=! (j <= i) ? float32(A(i,k) * B(k,j)) : 0.0 }}"
    kind = torch.float32 if dtype == "float" else getattr(torch, dtype)
    random = torch.Generator().manual_seed(1)
    a, b = (torch.randint(-4, 5, shape, generator=random).to(kind) for shape in ((extent, 64), (64, 2 * extent)))
    b[3, 40] = torch.inf
    kernel = tcjit.define(text, target=TARGET).f.compile(a, b)
    assert ("tc_mma_" in kernel.source) == (dtype != "float")
    inside = torch.arange(2 * extent)[None] <= torch.arange(extent)[:, None]
    wanted = torch.where(inside, a.float() @ b.float(), 0.0)
    torch.testing.assert_close(kernel(a, b), wanted, equal_nan=True)


@pytest.mark.parametrize(("stride", "dilation", "terms", "padding"), [(2, 1, 3, 1), (3, 1, 2, 0), (2, 2, 3, 2), (3, 2, 4, 1), (4, 6, 3, 3)])
def test_transposed_convolutions(stride: int, dilation: int, terms: int, padding: int) -> None:
    """Every residue class, those without terms among them; what no term reads may be no number."""
    text = f"""def f(float(C,W) X, float(C,F,K) V) -> (O) {{
        O(f,w) +=! (x >= 0 && x < {stride}*W && x % {stride} == 0) ? X(c, x / {stride}) * V(c, f, k) : 0.0
            where w in 0:L, x = w + {padding} - {dilation} * k }}"""
    length = (21 - 1) * stride - 2 * padding + dilation * (terms - 1) + 1
    kernel, (x, v) = made(text.replace("0:L", f"0:{length}"), (12, 21), (12, 18, terms))
    assert 2 <= kernel.source.count("__global__") <= stride
    wanted = torch.nn.functional.conv_transpose1d(x[None], v, stride=stride, padding=padding, dilation=dilation)[0]
    torch.testing.assert_close(kernel(x, v), wanted)


@pytest.mark.sample(2)
@pytest.mark.parametrize("number", range(6))
def test_strided_windows(number: int) -> None:
    assert_right(strided(random.Random(f"{SEED} strided {number}")), TARGET)


EXTENTS = {"whole": (64, 64, 32, 32), "odd": (50, 70, 24, 20), "long": (20, 300, 16, 40)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("extents", EXTENTS)
@pytest.mark.parametrize("name", ["attention", "causal_attention"])
def test_attention_in_one_kernel(name: str, extents: str, dtype: str) -> None:
    sizes = dict(zip("QKDE", EXTENTS[extents], strict=True)) | {"B": 1, "H": 2}
    if name == "causal_attention":
        sizes["K"] = sizes["Q"]
    assert_agrees(Case(name, sizes, {"scale": 0.25}), dtype, TARGET)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_both_products_of_attention_on_tensor_cores(dtype: str) -> None:
    text = f"""def f({dtype}(B,Q,D) X, {dtype}(B,K,D) W, {dtype}(B,K,E) V) -> (float32(B,Q,E) Y) {{
        S(b, q, k) +=! float32(X(b, q, d) * W(b, k, d))
        top(b, q) max=! S(b, q, k)
        S(b, q, k) = exp(S(b, q, k) - top(b, q))
        total(b, q) +=! S(b, q, k)
        O(b, q, e) +=! float32({dtype}(S(b, q, k)) * V(b, k, e))
        Y(b, q, e) = O(b, q, e) / total(b, q)
    }}"""
    generator = torch.Generator().manual_seed(1)
    shapes = ((2, 64, 32), (2, 128, 32), (2, 128, 48))
    tensors = [torch.randint(-4, 5, shape, generator=generator).div(8).to(getattr(torch, dtype)) for shape in shapes]
    kernel = tcjit.define(text, target=TARGET).f.compile(*tensors)
    assert kernel.source.count("__global__") == 1
    assert len(re.findall(r"^ *tc_mma_", kernel.source, re.MULTILINE)) >= 2
    x, w, v = (tensor.float() for tensor in tensors)
    torch.testing.assert_close(kernel(*tensors).float(), torch.softmax(x @ w.mT, 2) @ v, rtol=2e-2, atol=2e-2)


FUSED = {
    "softmax": """def f(float(M,K) X, float(N,K) W) -> (Y) {
        S(m, n) +=! X(m, k) * W(n, k)
        top(m) max=! S(m, n)
        S(m, n) = exp(S(m, n) - top(m))
        total(m) +=! S(m, n)
        Y(m, n) = S(m, n) / total(m)
    }""",
    "norm_in_place": """def f(float(M,K) X, float(N,K) W) -> (Y) {
        Y(m, n) +=! X(m, k) * W(n, k)
        mean(m) +=! Y(m, n)
        mean(m) = mean(m) / N
        var(m) +=! (Y(m, n) - mean(m)) * (Y(m, n) - mean(m))
        Y(m, n) = (Y(m, n) - mean(m)) * rsqrt(var(m) / N + 1e-5)
    }""",
    "layers": """def f(float(M,K) X, float(N,K) W) -> (Z) {
        Y(m, n) +=! X(m, k) * W(n, k)
        Y(m, n) = fmax(Y(m, n), 0.0)
        Z(m, p) +=! Y(m, n) * W(n, p) where p in 0:K
    }""",
}


@pytest.mark.parametrize("rows", [64, 70])
@pytest.mark.parametrize("name", FUSED)
def test_what_follows_a_product_in_its_kernel(name: str, rows: int) -> None:
    tensors = [torch.randn(shape, generator=torch.Generator().manual_seed(1)) for shape in ((rows, 36), (40, 36))]
    kernel = tcjit.define(FUSED[name], target=TARGET).f.compile(*tensors)
    assert kernel.source.count("__global__") == 1
    wanted = tcjit.define(FUSED[name], target="reference").f(*tensors)
    torch.testing.assert_close(kernel(*tensors), torch.as_tensor(wanted), rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- broken kernels


def made(text: str, *shapes: tuple[int, ...]) -> tuple[Kernel, list[torch.Tensor]]:
    name = re.search(r"def (\w+)", text)
    assert name
    tensors = [torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(1)).float() for shape in shapes]
    kernel: Kernel = getattr(tcjit.define(text, target=TARGET), name[1]).compile(*tensors)
    return kernel, tensors


def run(kernel: Kernel, tensors: list[torch.Tensor], text: str) -> list[torch.Tensor]:
    """What another text than the kernel's own leaves."""
    outs = [torch.full(tuple(returned["shape"]), torch.nan) for returned in kernel.record["returns"]]
    Loaded(text, json.dumps(kernel.record), 900)(outs, tensors, [])
    return outs


MUTATED = {
    "matmul": (MATMUL, (37, 100), (100, 41)),
    "softmax": (SOFTMAX, (3, 3000)),
    "convolution": (CONVOLUTION, (1, 3, 12, 12), (4, 3, 3, 3)),
    "columns": (COLUMNS, (300, 70)),
    "total": (TOTAL, (9000,)),
    "transpose": (TRANSPOSE, (65, 70)),
}


@pytest.mark.parametrize("program", MUTATED)
def test_every_barrier_is_missed(program: str) -> None:
    """Without one of them there is a race, or a read of what is not there yet; but the first before a tree's scratch may be idle."""
    kernel, tensors = made(*MUTATED[program])
    barriers = [match.span() for match in re.finditer(r"__sync(threads|warp)\(\);", kernel.source)]
    caught = 0
    for start, end in barriers:
        try:
            run(kernel, tensors, kernel.source[:start] + kernel.source[end:])
        except HostError as error:
            assert re.search("race: |which nothing has written", str(error)), error
            caught += 1
        else:
            assert re.match(r"\s*if \([^)]*\) {\s*tc_scratch", kernel.source[end:]), f"{kernel.source[:start]}<-- needs no barrier"
    assert caught or not barriers
    assert barriers or program not in ("matmul", "transpose")


def test_shifted_copies_and_dropped_guards_are_caught() -> None:
    kernel, tensors = made(*MUTATED["matmul"])
    want = kernel(*tensors)
    torch.testing.assert_close(run(kernel, tensors, kernel.source)[0], want)
    stores = list(re.finditer(r"\w+_p\[([^\]]*)\](?= = )", kernel.source))
    caught = 0
    for match in stores:
        text = kernel.source[: match.end(1)] + " + 1" + kernel.source[match.end(1) :]
        try:
            results = run(kernel, tensors, text)
        except HostError as error:
            assert re.search("out of|nothing has written|race", str(error)), error
            caught += 1
        else:  # another result, or the copy of the code for full or for partial tiles that no block of this size runs
            caught += not torch.equal(results[0], want)
    assert caught > 3 and caught >= len(stores) // 2, f"{caught} of {len(stores)}"


def test_levels_of_a_tree_are_missed() -> None:
    """A shuffle over another distance gives another sum."""
    kernel, tensors = made(*MUTATED["total"])
    want = tensors[0].sum()
    distances = list(re.finditer(r"(tc_shuffle_\w+\(tc_value, )(\d+)", kernel.source))
    assert distances
    for match in distances:
        text = kernel.source[: match.start(2)] + str(int(match[2]) * 2 % 32 or 1) + kernel.source[match.end(2) :]
        assert run(kernel, tensors, text)[0] != want
    assert run(kernel, tensors, kernel.source)[0] == want


def test_updates_that_are_not_atomic_are_races() -> None:
    text = "def f(float(N) X, float(N,D) Y) -> (O) { O(int32(X(n)) + 4, d) +=! Y(n, d) where int32(X(n)) + 4 in 0:500 }"
    kernel, tensors = made(text, (3000,), (3000, 8))
    assert run(kernel, tensors, kernel.source)[0].sum() == tensors[1].sum()
    update = re.search(r"tc_atomic_add_f32\(&(O\[.*?\]), (.*)\);$", kernel.source, re.MULTILINE)
    assert update
    with pytest.raises(HostError, match="race: "):
        run(kernel, tensors, kernel.source.replace(update[0], f"{update[1]} = {update[1]} + {update[2]};"))
