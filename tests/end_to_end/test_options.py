"""Whatever the mapping options, a kernel computes what the program says; options themselves are checked and go through JSON."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from support.cases import Case, Fill
from support.compare import assert_agree
from support.fuzz.kernels import device
from support.fuzz.options import drawn, refused
from support.rings.targets import on
from support.run import call

import tcjit
from tcjit.errors import MappingError
from tcjit.jit.targets import find
from tcjit.mapping.options import ALIASES, PRESETS, RETIRED, Options

SEED = 20
TURNS = {"cpu": 3, "cuda_host": 1, "opencl": 1, "cuda": 4}  # how many options each program is mapped by


@dataclass(frozen=True)
class Sample:
    """A program and the shapes of its tensors; integers that index are drawn below ``below``."""

    text: str
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str] = field(default_factory=dict)
    scalars: Mapping[str, Any] = field(default_factory=dict)
    below: Mapping[str, int] = field(default_factory=dict)

    def case(self) -> Case:
        fills = {}
        for number, name in enumerate(self.shapes):
            dtype = self.dtypes.get(name, "float32")
            if name in self.below:
                fills[name] = Fill(dtype, "small", number, 0, self.below[name] - 1)
            else:
                fills[name] = Fill(dtype, "uniform" if "float" in dtype else "small", number, -3, 3)
        return Case(self.text, self.shapes, fills, self.scalars)


SAMPLES = {
    "matmul": Sample("def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }", {"A": (19, 23), "B": (23, 37)}),
    "matmul_transposed": Sample(
        "def f(float(K,M) A, float(N,K) B) -> (C) { C(m,n) +=! A(k,m) * B(n,k) }", {"A": (300, 9), "B": (21, 300)}
    ),
    "matmul_scaled": Sample(
        "def f(double(M,K) A, double(K,N) B, double s) -> (C) { C(m,n) +=! -(-A(m,k)) * B(k,n) * -s - A(m,k) }",
        {"A": (17, 5), "B": (5, 16)},
        {"A": "float64", "B": "float64"},
        {"s": 1.5},
    ),
    "convolution_padded": Sample(
        """def f(float(N,C,H,W) I, float(F,C,KH,KW) K) -> (O) {
            O(n, f, h, w) +=! (h + kh >= 1 && h + kh <= H && w + kw >= 1 && w + kw <= W ? I(n, c, h + kh - 1, w + kw - 1) : 0.0)
                * K(f, c, kh, kw) where h in 0:H, w in 0:W
        }""",
        {"I": (1, 3, 7, 9), "K": (5, 3, 3, 3)},
    ),
    "convolution_strided": Sample(
        "def f(float(C,H) I, float(F,C,K) W, int32 s) -> (O) { O(f, h) +=! I(c, s*h + k) * W(f, c, k) }",
        {"I": (4, 41), "W": (6, 4, 3)},
        scalars={"s": 2},
    ),
    "convolution_grouped": Sample(
        "def f(float(G,C,H) I, float(G,F,C,K) W) -> (O) { O(g, f, h) +=! I(g, c, h + k) * W(g, f, c, k) }",
        {"I": (3, 4, 20), "W": (3, 5, 4, 3)},
    ),
    "softmax": Sample(
        """def f(float(M,N) I) -> (O) {
            top(m) max=! I(m, n)
            O(m, n) = exp(I(m, n) - top(m))
            total(m) +=! O(m, n)
            O(m, n) = O(m, n) / total(m)
        }""",
        {"I": (11, 35)},
    ),
    "layernorm": Sample(
        """def f(float(M,N) I, float(N) g, float(N) b) -> (O) {
            mean(m) +=! I(m, n)
            mean(m) = mean(m) / N
            var(m) +=! (I(m, n) - mean(m)) * (I(m, n) - mean(m))
            O(m, n) = (I(m, n) - mean(m)) * rsqrt(var(m) / N + 1e-5) * g(n) + b(n)
        }""",
        {"I": (20, 33), "g": (33,), "b": (33,)},
    ),
    "mlp": Sample(
        """def f(float(B,I) X, float(O,I) W, float(O) b, float(P,O) V) -> (Z) {
            Y(n, o) +=! X(n, i) * W(o, i)
            Y(n, o) = fmax(Y(n, o) + b(o), 0.0)
            Z(n, p) +=! Y(n, o) * V(p, o)
        }""",
        {"X": (18, 40), "W": (24, 40), "b": (24,), "V": (5, 24)},
    ),
    "columns": Sample(
        "def f(float(M,N) X) -> (A, B) { A(n) +=! X(m, n) * X(m, n)  B(n) max=! X(m, n) + A(n) }", {"X": (50, 19)}
    ),
    "totals": Sample(
        """def f(float(M,N) X) -> (A, B, C) {
            A +=! X(m, n)  B min=! X(m, n) where n in 1:N  C +=! (n >= 1 ? X(m, n - 1) : 0.5) * n
        }""",
        {"X": (23, 67)},
    ),
    "halves": Sample(
        "def f(half(M,N) X, bfloat16(N) Y) -> (A, B, C) { A(m) +=! X(m, n)  B +=! Y(n) * Y(n)  C(n) max=! X(m, n) }",
        {"X": (13, 45), "Y": (45,)},
        {"X": "float16", "Y": "bfloat16"},
    ),
    "integers": Sample(
        """def f(uint8(M,N) X, int32(M,N) Y, bool(M,N) P) -> (A, B, C, D) {
            A(m) +=! X(m, n)  B(n) min=! Y(m, n) % (X(m, n) + 1)  C(m) max=! P(m, n)  D +=! P(m, n) ? Y(m, n) : 1
        }""",
        {"X": (14, 33), "Y": (14, 33), "P": (14, 33)},
        {"X": "uint8", "Y": "int32", "P": "bool"},
        below={"X": 255, "Y": 1 << 30},
    ),
    "gathers": Sample(
        """def f(float(E,D) T, int64(B,L) I, int32(B) J) -> (O, P) {
            O(b, d) +=! T(I(b, l), d)
            P(b, d) = b >= 1 ? O(J(b), d) + T(I(b, 0), (d + 1) % D) : T(J(b), d)
        }""",
        {"T": (9, 18), "I": (12, 5), "J": (12,)},
        {"I": "int64", "J": "int32"},
        below={"I": 9, "J": 9},
    ),
    "transposes": Sample(
        """def f(float(M,N) X) -> (Y, Z) {
            Y(n, m) = 2 * X(m, n)
            Z(m, n) = Y(n, m) + Y(N - 1 - n, M - 1 - m) + X(m, n)
        }""",
        {"X": (21, 34)},
    ),
    "parts": Sample(
        """def f(float(M,N) X, float(N) b) -> (A, B) {
            A(i, j) = X(i, j)
            A(i, j) += b(j) where i in 2:9, j in 3:N
            B(j) max=! A(i, j) where j in 0:N
            A(i, j) +=! X(i, k) * b(k) where i in 1:4, j in 4:7
            B(j) = B(j) + A(3, j) where j in 0:5
        }""",
        {"X": (12, 20), "b": (20,)},
    ),
}
ALWAYS = [PRESETS["naive"], Options(fusion="maximal", reduction_chunks=3), Options(fusion="minimal", vector_width=4)]


def tried(target: str, name: str, turn: int) -> Iterator[tuple[Options, dict[str, int]]]:
    """Options for a program, and changes to what a GPU target knows of its device; more of them, for where a device cannot serve the first.

    On the CPU they are fixed ones in the first turn, and drawn later.
    """
    kind = find(target).option_kind
    rng = random.Random(f"{SEED} {kind} {name} {turn}")
    if kind == "cpu" and turn == 0:
        yield ALWAYS[list(SAMPLES).index(name) % len(ALWAYS)], {}
    while True:
        yield drawn(rng, kind), {} if kind == "cpu" else device(rng)


RUNS = [on(target, name, turn) for name in SAMPLES for target, turns in TURNS.items() for turn in range(turns)]


@pytest.mark.sample(2)
@pytest.mark.parametrize("name, turn, on", RUNS)
def test_options_never_change_results(name: str, turn: int, on: str) -> None:
    for options, changes in tried(on, name, turn):
        case = replace(SAMPLES[name].case(), options=options, device=changes)
        program = case.program()
        try:
            found = call(case, program, on, layouts=False)
        except MappingError as error:
            if not refused(f"MappingError: {error}"):
                raise
            continue
        expected = case.expected(program)
        for returned, result in found.items():
            assert_agree(result, expected, returned)
        return


@pytest.mark.parametrize("kind, target", [("cpu", "cpu"), ("cuda", "cuda_host"), ("opencl", "opencl")])
def test_the_sample_draws_every_field(kind: str, target: str) -> None:
    listed = [next(tried(target, name, turn))[0].to_dict() for name in SAMPLES for turn in range(TURNS[target])]
    for name in (option.name for option in Options.described() if kind in option.metadata["targets"]):
        assert len({json.dumps(options[name]) for options in listed}) > 1, name


@pytest.mark.parametrize(
    "wrong",
    [
        {"fusion": "most"},
        {"fusion": None},
        {"tile": (4, -1)},
        {"tile": (1 << 21,)},
        {"tile": (1.5,)},
        {"tile": (True,)},
        {"tile": 4},
        {"tile": (1,) * 17},
        {"vector_width": 3},
        {"vector_width": -1},
        {"vector_width": 32},
        {"vector_width": 4.0},
        {"register_tile": (4,)},
        {"register_tile": (4, 0)},
        {"register_tile": (65, 1)},
        {"register_tile": 4},
        {"reduction_chunks": -1},
        {"reduction_chunks": 4097},
        {"reduction_chunks": True},
        {"parallel": 1},
        {"private_buffers": "yes"},
        {"pack": None},
    ],
    ids=str,
)
def test_invalid_options_name_the_field(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(MappingError, match=f"option {name} = ") as raised:
        Options(**wrong)
    assert raised.value.hint
    with pytest.raises(MappingError):
        Options().but(**wrong)


TEXTS = ["", "{", "[]", "3", '{"speed": 11}', '{"vector_width": "many"}', '{"tile": 3}', '{"vector_width": null}', '{"lanes": 3}']


@pytest.mark.parametrize("text", TEXTS)
def test_invalid_json_is_a_mapping_error(text: str) -> None:
    with pytest.raises(MappingError):
        Options.from_json(text)


def test_options_survive_json() -> None:
    rng = random.Random(SEED)
    for options in [*PRESETS.values(), *(drawn(rng) for _ in range(200))]:
        back = Options.from_json(options.to_json())
        assert back == options and hash(back) == hash(options)
        assert Options.from_dict(json.loads(json.dumps(options.to_dict()))) == options
    assert Options.from_json("{}") == Options()


def test_old_names_are_aliases() -> None:
    old = {"lanes": 8, "patch": [4, 2], "contract": False, "step": 16, "stages": 3}
    assert set(old) == set(ALIASES)
    new = Options.from_json(json.dumps(old))  # a file of an earlier version, which is nothing to warn of
    assert new.to_dict() == Options().to_dict() | {ALIASES[name]: value for name, value in old.items()}
    for name, value in old.items():
        with pytest.warns(DeprecationWarning, match=f"option {name} is called {ALIASES[name]} now") as warned:
            made = Options(**{name: value})
        assert made == Options(**{ALIASES[name]: value}) and warned[0].filename == __file__
        with pytest.warns(DeprecationWarning, match=f"option {name} is called") as warned:
            assert Options().but(**{name: value}) == made and warned[0].filename == __file__
        with pytest.warns(DeprecationWarning, match=f"option {name} is called") as warned:
            assert getattr(made, name) == getattr(made, ALIASES[name]) and warned[0].filename == __file__
    with pytest.raises(MappingError, match="vector_width is given twice"):
        Options.from_dict({"lanes": 8, "vector_width": 8})
    with pytest.raises(MappingError, match="vector_width is given twice"), pytest.warns(DeprecationWarning):
        Options(lanes=8, vector_width=8)
    assert not hasattr(Options(), "speed") and not set(ALIASES) & {option.name for option in Options.described()}


@pytest.mark.parametrize(
    ("name", "value"),
    [("nest", False), ("vector_dim", 2), ("lane", 2), ("unroll", 4), ("outer_loop", 1), ("outer", 1), ("accumulators", 8), ("sums", 8)],
)
def test_retired_options_are_dropped_with_a_word(name: str, value: Any) -> None:
    assert name in RETIRED and name not in {option.name for option in Options.described()} | Options().to_dict().keys()
    words = f"options without effect, of loops that nests have replaced: {name}$"
    with pytest.warns(DeprecationWarning, match=words) as warned:
        assert Options(**{name: value}, vector_width=8) == Options(vector_width=8)
    assert len(warned) == 1 and warned[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=words) as warned:
        assert Options().but(**{name: value}, tile=(4,)) == Options(tile=(4,))
    assert len(warned) == 1 and warned[0].filename == __file__
    for read in (Options.from_dict, lambda values: Options.from_json(json.dumps(values))):
        with pytest.warns(DeprecationWarning, match=words) as warned:
            assert read({name: value, "vector_width": 8}) == Options(vector_width=8)
        assert len(warned) == 1
    with warnings.catch_warnings():  # as a file of an earlier version has those that were not given
        warnings.simplefilter("error")
        assert Options.from_dict({name: RETIRED[name], "vector_width": 8}) == Options(vector_width=8)


def test_presets_are_known_by_name() -> None:
    assert set(PRESETS) == set("naive pointwise mlp conv group_conv reduction contraction".split())
    with pytest.raises(MappingError, match="unknown preset"):
        Options.preset("fastest")


def test_every_field_checks_its_values() -> None:
    for option in Options.described():
        with pytest.raises(MappingError, match=f"option {option.name} = .*object"):
            Options(**{option.name: object()})


def test_every_choice_of_a_field_is_valid() -> None:
    for option in Options.described():
        assert option.metadata["meaning"] and option.metadata["targets"]
        for choice in option.metadata["choices"]:
            assert getattr(Options(**{option.name: choice}), option.name) == choice


def test_a_kernel_keeps_its_options() -> None:
    options = Options(tile=(4, 16), fusion="minimal", reduction_chunks=1)
    tc = tcjit.define(SAMPLES["matmul"].text, options=options)
    assert tc.f.compile(torch.empty(8, 8), torch.empty(8, 8)).options == options
    other = Options(vector_width=1)
    assert tc.f.compile(torch.empty(8, 8), torch.empty(8, 8), options=other).options == other


def test_different_options_may_round_differently_but_each_is_reproducible() -> None:
    given = torch.from_numpy(np.random.default_rng(SEED).standard_normal(5000, dtype=np.float32))
    for chunks in (1, 7, 32):
        total = tcjit.define("def f(float(N) X) -> (S) { S +=! X(n) }", options=Options(reduction_chunks=chunks)).f
        assert len({total(given).item() for _ in range(50)}) == 1
