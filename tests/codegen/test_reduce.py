"""Reductions across the threads of a block, as text and run on the host: shuffles, scratch arrays, masks, barriers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.gpu import lines, mapped, run, source
from support.rings.cuda_host import COMPILER, HostError

from tcjit.codegen.dialect import OPENCL
from tcjit.errors import MappingError
from tcjit.mapping.machine import OPENCL as PLAIN
from tcjit.mapping.pipeline import Mapped

host = pytest.mark.skipif(COMPILER is None, reason="needs g++")


def rows(operator: str, dtype: str, m: int, n: int, count: int, together: int) -> Mapped:
    """Row reductions by ``count`` threads each, ``together`` rows to a block of 128 threads or more."""
    text = f"def rows({dtype}(M,N) X) -> (S) {{ S(m) {operator}! X(m,n) }}"
    path = [
        "launch 0", "grid", [f"floor(m/{together})"], "block 0",
        {
            "S0": [f"threads {together}x{count}", [f"m mod {together}", "0"]],
            "S1": ["sync block", "reduce", f"threads {together}x{count}", [f"m mod {together}", "n"]],
        },
    ]  # fmt: skip
    return mapped(text, {"X": (m, n)}, path, threads=[max(128, together * count)])  # type: ignore[arg-type]


NUMPY = {"float": np.float32, "double": np.float64, "int64": np.int64, "int32": np.int32, "uint8": np.uint8, "int16": np.int16}
COMBINE = {"+=": np.sum, "min=": np.min, "max=": np.max, "*=": np.prod}


@host
@pytest.mark.parametrize(
    "n, count, together", [(32, 32, 4), (50, 64, 2), (128, 128, 1), (7, 8, 5), (1, 1, 3), (1000, 1024, 1), (256, 256, 2)]
)
@pytest.mark.parametrize("operator, dtype", [("+=", "float"), ("max=", "double")])
def test_rows_of_every_length(operator: str, dtype: str, n: int, count: int, together: int) -> None:
    assert_rows(operator, dtype, 11, n, count, together)


@host
@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("operator", COMBINE)
def test_rows_of_every_type(operator: str, dtype: str) -> None:
    assert_rows(operator, dtype, 3, 100, 128, 1)


def assert_rows(operator: str, dtype: str, m: int, n: int, count: int, together: int) -> None:
    kind = NUMPY[dtype]
    x = np.random.default_rng(n).integers(-9 if np.dtype(kind).kind != "u" else 0, 10, (m, n)).astype(kind)
    s = np.empty(m, kind)
    with np.errstate(over="ignore"):
        if operator == "*=":
            x[:, 5:] = 1
        expected = COMBINE[operator](x, axis=1, dtype=kind) if operator in ("+=", "*=") else COMBINE[operator](x, axis=1)
    assert run(source(rows(operator, dtype, m, n, count, together)), [s], [x]) == 0
    assert (s == expected).all()


def test_a_reduction_in_a_loop_waits_for_the_readers_of_its_scratch_array() -> None:
    """The next row may not overwrite what threads of other warps still combine."""
    path = ["launch 0", "block 0", ["m"], {"S0": ["threads 1x1", ["0", "0"]], "S1": ["reduce", "threads 1x128", ["0", "n"]]}]
    made = source(mapped("def rows(float(M,N) X) -> (S) { S(m) +=! X(m,n) }", {"X": (5, 128)}, path, threads=[128]))  # type: ignore[arg-type]
    found = lines(made)
    write = found.index("tc_scratch_float[tc_thread / 32] = tc_value;")
    assert found[write - 2] == "__syncthreads();" and found.count("__syncthreads();") == 2
    if COMPILER:
        x, s = np.random.default_rng(3).integers(-9, 10, (5, 128)).astype(np.float32), np.empty(5, np.float32)
        assert run(made, [s], [x]) == 0 and (s == x.sum(axis=1)).all()
        first = made.text.index("__syncthreads();")
        without = replace(made, text=made.text[:first] + made.text[first + len("__syncthreads();") :])
        with pytest.raises(HostError, match="race: thread .* tc_scratch_float"):
            run(without, [s], [x])


@host
def test_a_maximum_keeps_nan() -> None:
    x = np.zeros((2, 100), np.float32)
    x[1, 77] = np.nan
    s = np.empty(2, np.float32)
    run(source(rows("max=", "float", 2, 100, 128, 1)), [s], [x])
    assert s[0] == 0 and np.isnan(s[1])


def test_within_a_warp_nobody_waits() -> None:
    found = lines(source(rows("+=", "float", 8, 30, 32, 4)))
    assert sum("tc_shuffle_xor_f32(tc_value, " in line for line in found) == 5
    assert found.count("__syncthreads();") == 1  # that of the mark
    assert "tc_value = X[120 * c0 + 30 * c1 + c2];" in found and "if (tc_thread % 32 == 0) {" in found


def test_warps_meet_in_shared_memory() -> None:
    made = source(rows("+=", "float", 8, 200, 256, 1))
    found = lines(made)
    assert "__shared__ __align__(16) float tc_scratch_float[8];" in found and made.launches[0].shared_bytes == 32
    assert "tc_scratch_float[tc_thread / 32] = tc_value;" in found and found.count("__syncthreads();") == 2
    assert sum("tc_shuffle_xor_f32(tc_value, " in line for line in found) == 5 + 3


@pytest.mark.parametrize(
    ("threads", "mask"), [(32, "0xffffffffu"), (96, "0xffffffffu"), (8, "0xffu"), (40, "(tc_thread < 32 ? 0xffffffffu : 0xffu)")]
)
def test_masks_name_the_lanes_that_exist(threads: int, mask: str) -> None:
    """A block may be smaller than a warp, or fill its last one partly."""
    path = ["launch 0", "grid", ["m"], "block 0", {
        "S0": ["threads 1x1", ["0", "0"]], "S1": ["sync block", "reduce", "threads 1x8", ["0", "n"]],
    }]  # fmt: skip
    made = source(mapped("def rows(float(M,N) X) -> (S) { S(m) +=! X(m,n) }", {"X": (2, 8)}, path, threads=[threads]))  # type: ignore[arg-type]
    assert [line for line in lines(made) if "shuffle" in line] == [
        f"tc_value = tc_value + tc_shuffle_xor_f32(tc_value, {distance}, {mask});" for distance in (4, 2, 1)
    ]
    if COMPILER:
        x, s = np.arange(16, dtype=np.float32).reshape(2, 8), np.empty(2, np.float32)
        assert run(made, [s], [x]) == 0 and (s == x.sum(axis=1)).all()


def test_without_shuffles_values_meet_in_shared_memory() -> None:
    given = rows("+=", "float", 8, 30, 32, 4)
    for made in (source(given, OPENCL, PLAIN), source(given, capabilities=frozenset())):
        found = lines(made)
        assert made.launches[0].shared_bytes == 4 * 128 and not any("shuffle" in line for line in found)
        assert "for (int tc_lanes = 16; tc_lanes > 0; tc_lanes /= 2) {" in found
    if COMPILER:
        x = np.random.default_rng(3).integers(-9, 10, (8, 30)).astype(np.float32)
        s = np.empty(8, np.float32)
        run(made, [s], [x])
        assert (s == x.sum(axis=1)).all()


def test_a_reduction_of_another_form_is_refused() -> None:
    path = ["launch 0", "block 0", {"S0": ["threads 32", ["0"]], "S1": ["reduce", ["n"], "threads 32", ["0"]]}]
    made = mapped("def f(float(N) X) -> (S) { S +=! X(n) }", {"X": (32,)}, path, threads=[32])  # type: ignore[arg-type]
    with pytest.raises(MappingError, match="no single update"):
        source(made)
