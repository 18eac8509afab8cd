"""What NVRTC makes of generated CUDA: instructions, registers and shared memory of the presets, checked without a GPU.

Modules: codegen.async_copy codegen.mma
"""
from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import pytest
from support.mapping import CONVOLUTION, GATHER, MATMUL, SOFTMAX, program
from support.pairs import pairs
from support.rings.banks import touches
from support.rings.nvrtc import RELEASES, using
from support.rings.sass import Instruction, bodies, count, histogram, innermost, loops, sass

from tcjit import library
from tcjit.codegen.dialect import CUDA
from tcjit.codegen.gpu_kernel import emit_gpu
from tcjit.mapping.machine import SM_80, SM_90, Device
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import Mapped, map_gpu
from tcjit.runtime import nvrtc

Shapes = Mapping[str, tuple[int, ...]]
SQUARE = {"A": (4096, 4096), "B": (4096, 4096)}
TRANSPOSED = "def tmm(float(M,K) A, float(N,K) B) -> (C) { C(m,n) +=! A(m,k) * B(n,k) }"
DEVICES = {device.name: device for device in (SM_80, SM_90)}
HALVES = "def mm(bfloat16(M,K) A, bfloat16(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"


@pytest.fixture(autouse=True, params=[RELEASES[0], *(pytest.param(one, marks=pytest.mark.whole) for one in RELEASES[1:])])
def release(request: pytest.FixtureRequest) -> Iterator[str]:
    """What a test is compiled with: each in turn, unless it says in which combinations; the suite itself has the first."""
    with using(request.param):
        yield request.param


def mapped(text: str, shapes: Shapes, device: Device = SM_90, **options: object) -> Mapped:
    return map_gpu(program(text, shapes), Options(**options), device, prove="none")  # type: ignore[arg-type]


def compiled(made: Mapped, device: Device = SM_90) -> tuple[nvrtc.CubinFile, list[Instruction]]:
    """The machine code of the last kernel, and the binary."""
    source = emit_gpu(made, CUDA, device, checked=True)
    binary = nvrtc.compile(source.text, [launch.symbol for launch in source.launches], device.name)
    return binary, sass(binary.cubin)[source.launches[-1].symbol]


@pairs(text={"AB": MATMUL, "ABt": TRANSPOSED}, device=DEVICES, release=RELEASES, indirect=["release"])
def test_the_matmul_preset(text: str, device: Device, release: str) -> None:
    made = mapped(text, SQUARE, device)
    binary, code = compiled(made, device)
    (resources,) = binary.resources.values()
    terms, results = 4, 64  # that a thread loads of a row at once
    inner = innermost(code)
    assert histogram(inner)["FFMA"] == terms * results and len(inner) <= terms * (results + 6)
    assert resources.spill_stores == resources.spill_loads == resources.stack == 0 and resources.registers <= 128  # of two blocks
    assert not {"LDL", "STL"} & set(histogram(code))
    assert histogram(code)["LDGSTS"] == count(code, "LDGSTS", "128") and not histogram(code)["STS"]
    # 8 and 8 operands for every term; now and then ptxas loads one of them twice
    assert terms * 4 == count(inner, "LDS", "128") <= count(inner, "LDS") <= terms * 4 + 2
    assert count(code, "STG") == results // (4 if text is MATMUL else 1)
    # rows that are read in eight different banks: in those of a copy, two meet
    assert all(touch.rounds <= (2 * touch.least if touch.writes else touch.least) for touch in touches(made, device))


def test_odd_sizes_run_the_inner_loop_of_even_ones() -> None:
    """Tiles at the edges and the last terms are zeros in shared memory: no condition, and no second copy of the loop. What is copied by
    elements is written out for a whole step, what is copied by 16 bytes for the four terms of these."""
    made = [mapped(MATMUL, {"A": (m, k), "B": (k, n)}) for m, k, n in ((4096, 4096, 4096), (4095, 4093, 4091))]
    codes = [compiled(one)[1] for one in made]
    for code, terms in zip(codes, (4, 16)):
        inner = innermost(code)
        assert histogram(inner)["FFMA"] == 64 * terms == histogram(code)["FFMA"]
        assert count(inner, "LDS", "128") == 4 * terms <= histogram(inner)["LDS"] <= 4 * terms + 2
    assert len(codes[1]) < 2 * len(codes[0]) + 64 * 16


def test_a_triangular_product_has_no_condition_in_the_loop_of_full_tiles() -> None:
    text = "def tri(float(N,N) L, float(N,M) B) -> (C) { C(i,j) +=! (k <= i) ? L(i,k) * B(k,j) : 0.0 }"
    _, code = compiled(mapped(text, {"L": (2048, 2048), "B": (2048, 2048)}))
    full = max(bodies(code), key=lambda body: histogram(body)["FFMA"])
    assert histogram(full)["FFMA"] == 4 * 64 and count(full, "LDS") <= 4 * 4 + 2
    assert not {"FSEL", "SEL", "FMUL"} & set(histogram(full)) and histogram(full)["ISETP"] <= 8
    assert histogram(code)["FFMA"] <= 17 * 64  # the copy for tiles on the diagonal is short


def test_a_row_of_a_softmax_is_read_once() -> None:
    made = mapped(SOFTMAX, {"I": (4096, 4096)})
    binary, code = compiled(made)
    threads = made.launches[0].threads
    assert count(code, "LDG") == count(code, "LDG", "128") == 4096 // threads // 4
    assert count(code, "STG") == count(code, "STG", "128") == 4096 // threads // 4
    (resources,) = binary.resources.values()
    assert resources.spill_stores == resources.spill_loads == resources.stack == 0


@pytest.mark.parametrize(
    ("device", "dtype", "keys", "kernels"),
    [  # each pair of values without `--whole`
        pytest.param(
            device, dtype, keys, 1 if keys == 128 else 2,
            marks=() if (device is SM_90) == ((dtype == "bfloat16") == (keys == 128)) else pytest.mark.whole,
        )
        for device, dtype, keys in itertools.product([SM_80, SM_90], ["float32", "bfloat16"], [128, 512])
        # there a block has room for 16 rows of scores, whose product takes longer than what one launch saves
        if (device, dtype, keys) != (SM_80, "float32", 512)
    ],
)  # fmt: skip
def test_attention_keeps_its_scores_in_shared_memory(device: Device, dtype: str, keys: int, kernels: int) -> None:
    heads = dict.fromkeys(("Query", "Key", "Value"), (8, 16, keys, 64))
    made = mapped(library.source("attention", dtype), heads, device)
    binary, code = compiled(made, device)
    assert len(binary.resources) == kernels
    assert all(r.spill_stores == r.spill_loads == r.stack == 0 for r in binary.resources.values())
    if keys == 128 and dtype == "float32":  # rows of the scores are read by neighbouring threads, some terms at once
        product = max(bodies(code), key=lambda body: histogram(body)["FFMA"] if histogram(body)["FFMA"] <= 512 else 0)
        assert count(product, "LDS", "128") >= 8 / 9 * count(product, "LDS")
    scores = [t for t in touches(made, device) if t.tensor in ("S", "S_before") and not t.writes]
    assert scores and all(touch.rounds == touch.least for touch in scores)


def test_scores_with_little_room_are_kernels_of_their_own() -> None:
    heads = dict.fromkeys(("Query", "Key", "Value"), (8, 16, 512, 64))
    binary, _ = compiled(mapped(library.source("attention", "float32"), heads, SM_80), SM_80)
    assert len(binary.resources) == 3


@pytest.mark.parametrize(
    ("text", "left", "right", "instruction"),
    [
        (
            "bfloat16(A,F,B,E) X, bfloat16(E,D,C,F) Y) -> (O) { O(a,b,c,d) +=! X(a,f,b,e) * Y(e,d,c,f)",
            (29, 12, 16, 43), (43, 33, 32, 12), "HMMA",
        ),
        ("float(A,E,B,F) X, float(D,F,C,E) Y) -> (O) { O(a,b,c,d) +=! X(a,e,b,f) * Y(d,f,c,e)", (72, 24, 72, 24), (72, 24, 72, 24), "FFMA"),
        ("float(D,A) X, float(D,B,C) Y) -> (O) { O(a,c,b) +=! X(d,a) * Y(d,b,c)", (2001, 256), (2001, 15, 89), "FFMA"),
    ],
    ids=["halves", "four", "turned"],
)  # fmt: skip
def test_contractions_that_are_packed(text: str, left: tuple[int, ...], right: tuple[int, ...], instruction: str) -> None:
    """Into products without spills, whose inner loop has hardly anything beside its arithmetic where steps are whole."""
    made = mapped(f"def f({text} }}", {"X": left, "Y": right})
    assert any("packed" in s.tensor for s in made.scop.statements)
    source = emit_gpu(made, CUDA, SM_90, checked=True)
    binary = nvrtc.compile(source.text, [launch.symbol for launch in source.launches], SM_90.name)
    assert all(r.spill_stores == r.spill_loads == r.stack == 0 for r in binary.resources.values())
    counts = [histogram(instructions)[instruction] for instructions in sass(binary.cubin).values()]
    assert max(counts) >= (8 if instruction == "HMMA" else 256)


@pytest.mark.parametrize("device", [SM_80, SM_90], ids=["sm_80", "sm_90"])
def test_half_precision_products_use_tensor_cores(device: Device) -> None:
    made = mapped(HALVES, SQUARE, device)
    binary, code = compiled(made, device)
    (resources,) = binary.resources.values()
    inner = innermost(code)
    assert histogram(inner)["HMMA"] == 4 * 4 * 8  # 64 terms, 64 by 64 results of a warp
    assert count(inner, "LDSM") == 4 * (4 + 4)
    assert count(inner, "LDG") == count(inner, "LDG", "128")
    assert resources.spill_stores == resources.spill_loads == 0
    assert all(touch.rounds == touch.least for touch in touches(made, device) if touch.writes)


def test_a_failed_check_is_a_plain_store() -> None:
    """Not an atomic operation, which mapped host memory may not have, nor the reduction over a warp that ptxas makes of one."""
    _, code = compiled(mapped(GATHER, {"T": (1000, 64), "I": (32, 20)}))
    assert not {"REDUX", "ATOM", "ATOMG", "RED", "VOTE"} & set(histogram(code))
    assert count(code, "STG", "STRONG", "SYS") + count(code, "ST", "STRONG", "SYS") == 1


@pytest.mark.parametrize(
    ("dtype", "operator", "instruction"),
    [
        ("int32", "+=", ("REDG", "ADD")),
        ("int64", "+=", ("REDG", "ADD", "64")),
        ("float", "+=", ("REDG", "ADD", "F32")),
        ("double", "+=", ("REDG", "ADD", "F64")),
        ("float", "max=", ("REDG", "MAX", "S32")),
        ("double", "min=", ("REDG", "MAX", "64")),
        ("uint32", "min=", ("REDG", "MIN")),
    ],
)
def test_updates_that_data_pick_are_one_instruction(dtype: str, operator: str, instruction: tuple[str, ...]) -> None:
    """Which gives back nothing that a thread would wait for."""
    text = f"def f(int64(N) I, {dtype}(N,D) X) -> (O) {{ O(I(n), d) {operator}! X(n, d) where I(n) in 0:500 }}"
    _, code = compiled(mapped(text, {"I": (3000,), "X": (3000, 48)}))
    assert count(code, *instruction) and not {"ATOM", "ATOMG", "BAR"} & set(histogram(code))


def test_loads_of_gathers_do_not_wait_for_checks() -> None:
    """A thread keeps what failed in a register: rows are loaded one after the other, without a branch between."""
    _, code = compiled(mapped(GATHER, {"T": (100000, 128), "I": (8192, 50)}))
    names = [instruction.name for instruction in code]
    between = names[names.index("LDG") : len(names) - names[::-1].index("LDG")]
    assert not {"ST", "STG", "CALL", "BSSY"} & set(between) and between.count("LDG") >= 32


@pytest.mark.parametrize("operator", ["rms_norm", "gelu"])
def test_halves_move_16_bytes_at_once(operator: str) -> None:
    shapes: dict[str, Shapes] = {"rms_norm": {"X": (8192, 4096), "gamma": (4096,)}, "gelu": {"X": (1 << 26,)}}
    _, code = compiled(mapped(library.source(operator, "bfloat16"), shapes[operator]))
    assert count(code, "LDG", "128") == count(code, "LDG") > 0 and count(code, "STG", "128") == count(code, "STG") > 0


def test_copies_ahead_are_asynchronous() -> None:
    _, code = compiled(mapped(HALVES, SQUARE, pipeline_stages=3))
    inner = innermost(code)
    assert count(inner, "LDGSTS", "128") == 2 * 128 * 64 // 8 // 128
    assert not count(inner, "LDG") and not count(inner, "STS")


def test_a_convolution_reads_its_window_without_conditions() -> None:
    shapes = {"I": (8, 64, 28, 28), "W1": (64, 64, 3, 3)}
    binary, code = compiled(mapped(CONVOLUTION, shapes))
    inner = histogram(innermost(code))
    assert inner["FFMA"] >= 8 * inner["LDS"]
    assert all(r.spill_stores == r.spill_loads == 0 for r in binary.resources.values())


def test_conditions_of_a_window_are_decided_where_they_can_be() -> None:
    """Of a convolution over a padded image, three columns of a filter: all but the first and the last results of a row have each term."""
    body = "Y(n,f,h,w) +=! (h + i >= 1 && h + i <= H && w + j >= 1 && w + j <= W ? X(n,c,h + i - 1,w + j - 1) * V(f,c,i,j) : 0.0)"
    text = f"def f(float(N,C,H,W) X, float(F,C,3,3) V) -> (Y) {{ {body} where h in 0:H, w in 0:W }}"
    _, code = compiled(mapped(text, {"X": (97, 41, 63, 32), "V": (195, 41, 3, 3)}))
    for inner in map(histogram, loops(code)):
        assert inner["FFMA"] >= 8 * inner["LDS"] and inner["FFMA"] >= 32 * inner["ISETP"]


def test_grouped_filters_are_loaded_as_neighbours() -> None:
    text = "def f(float(N,G,C,H,W) X, float(G,F,C,KH,KW) K) -> (Y) { Y(n,g,f,h,w) +=! X(n,g,c,h + i,w + j) * K(g,f,c,i,j) }"
    binary, code = compiled(mapped(text, {"X": (16, 16, 16, 18, 18), "K": (16, 16, 16, 3, 3)}))
    inner = innermost(code)
    assert histogram(inner)["FFMA"] >= 8 * histogram(inner)["LDS"] > 0 and count(inner, "LDS", "128") * 2 >= histogram(inner)["LDS"]
    assert all(r.spill_stores == r.spill_loads == r.stack == 0 for r in binary.resources.values())


def test_divisors_of_a_row_are_divided_by_once() -> None:
    """The machine's own division, of a few percent of its values, is one function behind a branch; there is no stack for its calls."""
    binary, code = compiled(mapped(SOFTMAX, {"I": (8192, 1024)}))
    assert histogram(code)["MUFU"] <= 32 + 8  # of the exponentials, and one or two reciprocals
    assert all(r.spill_stores == r.spill_loads == r.stack == 0 for r in binary.resources.values())


NORM = """def norm(float(N,D) X) -> (Y, m, v) {
    m(n) +=! X(n, d)
    v(n) +=! (X(n, d) - m(n)) * (X(n, d) - m(n))
    Y(n, d) = (X(n, d) - m(n)) / v(n)
}"""


@pairs(columns={"registers": 40 << 10, "odd": 65535, "memory": 65536}, device=DEVICES, release=RELEASES, indirect=["release"])
def test_long_rows_fit_the_registers(columns: int, device: Device, release: str) -> None:
    """A block of 1,024 threads has 64 registers for each: a row that leaves too few of them is read from memory again."""
    binary, code = compiled(mapped(NORM, {"X": (2048, columns)}, device), device)
    (resources,) = binary.resources.values()
    assert resources.spill_stores == resources.spill_loads == resources.stack == 0 and not {"LDL", "STL"} & set(histogram(code))


@pytest.mark.parametrize("device", [SM_80, SM_90], ids=["sm_80", "sm_90"])
def test_what_follows_a_product_on_tensor_cores_stays_in_registers(device: Device) -> None:
    text = """def linear(bfloat16(N,K) X, bfloat16(M,K) W, bfloat16(M) b) -> (Y) {
        Z(n, m) +=! float32(X(n, k) * W(m, k))
        Y(n, m) = bfloat16(0.5 * (Z(n, m) + b(m)) * (1.0 + erf((Z(n, m) + b(m)) * 0.70710678)))
    }"""
    made = mapped(text, {"X": (8192, 512), "W": (8192, 512), "b": (8192,)}, device)
    binary, code = compiled(made, device)
    (resources,) = binary.resources.values()
    assert histogram(code)["HMMA"] > 0 and resources.spill_stores == resources.spill_loads == resources.stack == 0
