"""What defs share: one kernel for a program in whatever words, and the options that were tuned for it.

Modules: cli.explain jit.example_inputs jit.launch_record jit.recent
"""
from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.cache import python
from support.calls import assert_refused, child

import tcjit
import tcjit.jit.compile as compiling
from tcjit import Options, cache
from tcjit.cache import CacheWarning, Choice
from tcjit.errors import GatherError, MappingError
from tcjit.jit import call, example_inputs, kernel_cache, targets
from tcjit.jit.launch import Key

ONE = """
def pick(float(V, D) Table, int64(B) Which, float a, int32 s) -> (Out) { Out(b, d) = a * Table(Which(b), d) + s }
"""
OTHER = """
# the same, in other words
def choose(float(Rows, Columns) X,

           int64(N) J, float factor, int32 offset) -> (Y) {
    Y(i, j) = factor *
              X(J(i), j) + offset
}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TCJIT_CACHE_DIR", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "cache"
    forget()


def forget() -> None:
    """As if the process had just started."""
    for function in list(call._functions.values()):
        function._forget()
    cache.storage._opened.cache_clear()


def test_the_kernels_at_hand_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that somebody holds goes on; one that went is found in the cache again, and its prepared call was there all the time."""
    monkeypatch.setattr(call, "KERNELS", 8)
    tc = tcjit.define("def bounded(float(N) X) -> (Y) { Y(i) = 2 * X(i) }", target="cpu", dynamic=["N"])
    x = torch.randn(3)
    held = tc.bounded.compile(x)
    for size in range(1, 60):
        assert torch.equal(tc.bounded(torch.ones(size)), torch.full((size,), 2.0))
        assert len(tc.bounded._kernels) <= 8
    assert torch.equal(held(x), 2 * x)
    assert tc.bounded.compile(x) is not held and torch.equal(tc.bounded(x), 2 * x)
    known = len(tc.bounded._table._known)
    tc.bounded._kernels.clear()
    assert torch.equal(tc.bounded._slow((torch.ones(59),), None, False), torch.full((59,), 2.0))
    assert len(tc.bounded._table._known) == known == len(tc.bounded._table._launcher or ()), "nothing is prepared twice"
    assert len(tc.bounded._sizes._shapes) <= 17


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the defs that were compiled."""
    names: list[str] = []
    really = compiling.compile_kernel

    def counted(text: str, name: str, *args: Any, **named: Any) -> Any:
        names.append(name)
        return really(text, name, *args, **named)

    monkeypatch.setattr(compiling, "compile_kernel", counted)
    return names


def arguments() -> tuple[Any, ...]:
    return torch.randn(7, 3), torch.tensor([6, 0, 3, 3]), 1.5, 2


def test_other_words_share_a_kernel(compiled: list[str]) -> None:
    one, other = tcjit.define(ONE).pick, tcjit.define(OTHER).choose
    for _ in range(3):
        table, which, a, s = arguments()
        expected = a * table[which] + s
        assert all(torch.allclose(function(table, which, a, s), expected, atol=1e-6) for function in (one, other))
        strided = torch.randn(3, 7).t()
        assert torch.allclose(other(strided, which, a, s), a * strided[which] + s, atol=1e-6)
    assert compiled == ["pick", "choose"], "the second for a layout that the first has not met"
    assert len(cache.entries()) == 2


def test_errors_are_in_the_callers_words(compiled: list[str]) -> None:
    table, _, a, s = arguments()
    bad = torch.tensor([1, 7])
    first = assert_refused(lambda: tcjit.define(ONE).pick(table, bad, a, s), GatherError)
    assert "line 2, column 90: an index into Table" in first
    for _ in range(3):
        second = assert_refused(lambda: tcjit.define(OTHER).choose(table, bad, a, s), GatherError)
        assert "line 7, column 15: an index into X is outside" in second and "X(J(i), j) + offset" in second
    assert compiled == ["pick"]


def test_a_kernel_says_for_whom_it_was_compiled(compiled: list[str]) -> None:
    args = arguments()
    one, other = tcjit.define(ONE).pick.compile(*args), tcjit.define(OTHER).choose.compile(*args)
    assert compiled == ["pick"]
    assert other.source.startswith("// compiled for pick(float32(V, D) Table") and other.source.endswith(one.source)
    assert [p["name"] for p in other.record["params"]] == ["X", "J", "factor", "offset"]
    assert [r["name"] for r in other.record["returns"]] == ["Y"] and other.check(*args)
    forget()
    assert tcjit.define(ONE).pick.compile(*args).source == one.source


def test_explain_speaks_the_callers_words() -> None:
    from tcjit.cli.explain import Stage, explain

    first = dict(explain(ONE, "Table=7x3,Which=4,a=1.5,s=2", None, None))
    second = dict(explain(OTHER, "X=7x3,J=4,factor=1.5,offset=2", None, None))
    assert "Table" in first[Stage.code] and first[Stage.options].startswith("the model's")
    for stage, text in second.items():
        assert text and not any(word in text for word in ("Table", "Which", "pick")), stage
    assert "choose" in second[Stage.code] and "X" in second[Stage.domains]


def test_a_shared_kernel_in_another_process() -> None:
    tcjit.define(ONE).pick(*arguments())
    code = f"""
import sys, torch, tcjit
tc = tcjit.define({OTHER!r})
x = torch.rand(7, 3)  # positive: sums near 0 would have few right digits
assert torch.allclose(tc.choose(x, torch.tensor([6, 0, 3, 3]), 1.5, 2), 1.5 * x[[6, 0, 3, 3]] + 2)
try:
    tc.choose(x, torch.tensor([6, 0, 3, 9]), 1.5, 2)
except tcjit.GatherError as error:
    print("into X" in str(error), len(tcjit.cache.entries()))
"""
    assert child(code) == "True 1"


# ---------------------------------------------------------------- tuned options

MM = "def mm(float(M, K) A, float(K, N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }"
RENAMED = "def product(float(R, S) Left, float(S, T) Right) -> (Out) { Out(i, j) +=! Left(i, r) * Right(r, j) }"


def shaped(n: int, m: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, m), torch.randn(m, n)


def tune(n: int, text: str = MM, m: int = 16, **changes: Any) -> None:
    """As a search would: keep options for the product of n x m and m x n."""
    (signature,) = kernel_cache.signatures(text)
    key = Key(((n, m), (m, n)), ("contiguous", "contiguous"), (), True, targets.find("cpu"), None)
    options = Options(**changes).to_dict()
    cache.store().put_choice(kernel_cache.family(signature, key), Choice(options, {"seconds": 1.0}, "mm", key.shapes))


def used(n: int, text: str = MM, m: int = 16, **named: Any) -> tuple[tuple[int, ...], str]:
    """The tile that a kernel is compiled with, and where it comes from; the kernel must be right."""
    forget()
    tc = tcjit.define(text)
    kernel = tc[next(iter(tc))].compile(*shaped(n, m), **named)
    kernel.check(*shaped(n, m))
    return Options.from_dict(kernel.record["asked"]).tile, kernel.record["origin"]


def test_tuned_options_are_used() -> None:
    assert used(16) == ((), "the model's")
    tune(16, tile=(4, 16))
    assert used(16) == ((4, 16), "tuned for these shapes")
    assert used(16, RENAMED) == ((4, 16), "tuned for these shapes"), "whatever the words"
    assert used(16, unchecked=True) == ((4, 16), "tuned for these shapes")
    assert used(16, options=Options()) == ((), "given") and used(16, options=Options(tile=(8, 16))) == ((8, 16), "given")
    assert used(16, MM.replace("* B", "+ B")) == ((), "the model's"), "another program"


def test_the_nearest_tuned_shape_serves_others() -> None:
    tune(16, tile=(4, 16))
    tune(128, tile=(8, 32))
    assert used(20) == ((4, 16), "tuned for 16x16 16x16")
    assert used(100) == ((8, 32), "tuned for 128x16 16x128")
    assert used(64) == ((8, 32), "tuned for 128x16 16x128")
    assert used(600) == ((), "the model's"), "too far from either"
    assert used(16, m=65) == ((), "the model's")
    tune(600, tile=(12, 64))
    assert used(600) == ((12, 64), "tuned for these shapes")


def test_a_stride_is_another_problem() -> None:
    tune(16, tile=(4, 16))
    kernel = tcjit.define(MM).mm.compile(torch.randn(16, 16), torch.randn(16, 16).t())
    assert kernel.record["origin"] == "the model's"


def test_tuned_options_that_do_not_serve(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """They were tuned for other shapes or another version: the model's step in, once, unless they are asked for by name."""
    really = compiling.compile_kernel

    def picky(*args: Any, **named: Any) -> Any:
        if named["options"].tile == (4, 16):
            raise MappingError("a tile of 4 x 16 does not fit")
        return really(*args, **named)

    monkeypatch.setattr(compiling, "compile_kernel", picky)
    tune(16, tile=(4, 16))
    origin = "the model's, since those tuned for 16x16 16x16 do not serve: a tile of 4 x 16 does not fit"
    assert used(20) == ((), origin) and compiled == ["mm"]
    assert used(20) == ((), origin) and compiled == ["mm"], "found in the cache"
    assert_refused(lambda: used(20, options=Options(tile=(4, 16))), MappingError, "does not fit")


def test_options_of_another_version() -> None:
    (signature,) = kernel_cache.signatures(MM)
    key = Key(((16, 16), (16, 16)), ("contiguous", "contiguous"), (), True, targets.find("cpu"), None)
    family = kernel_cache.family(signature, key)
    for options in ({"loop_polish": 3}, {"tile": "large"}, {"vector_width": 7}):
        cache.store().put_choice(family, Choice(options, {}, "", key.shapes))
        assert used(16) == ((), "the model's, since those tuned are of another version")


@pytest.mark.bare
def test_nothing_is_scheduled_for_a_tuned_kernel_that_is_there() -> None:
    """Neither for the tuned shape nor, by its options, for one nearby."""
    tune(16, tile=(4, 16))
    for n in (16, 20):
        used(n)
    code = f"""
import sys, torch, tcjit
tc = tcjit.define({MM!r})
kernels = [tc.mm.compile(torch.ones(n, 16), torch.ones(16, n)) for n in (16, 20)]
assert bool((tc.mm(torch.ones(20, 16), torch.ones(16, 20)) == 16).all())
print([k.record["origin"] for k in kernels], [m for m in ("lark", "islpy", "optuna") if m in sys.modules])
"""
    assert child(code) == "['tuned for these shapes', 'tuned for 16x16 16x16'] []"


def test_what_travels_with_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Export, another machine's cache, import: the options are used there."""
    tune(16, tile=(4, 16))
    tune(16, "def t(float(N, M) A, float(M, N) B) -> (C) { C(i, j) = A(i, j) + B(j, i) }", tile=(8, 8))
    file = tmp_path / "tuned.json"
    assert cache.export(file, [tcjit.define(RENAMED).product.signature.canonical]) == 1
    monkeypatch.setenv("TCJIT_CACHE_DIR", str(tmp_path / "another"))
    assert used(16) == ((), "the model's")
    assert cache.import_(file) == 1 and used(16) == ((4, 16), "tuned for these shapes")


# ---------------------------------------------------------------- whatever happens to the files


@pytest.mark.parametrize("count", [4, pytest.param(8, marks=pytest.mark.whole)])
def test_several_processes_at_once(count: int) -> None:
    """All of them compile one kernel, some in other words, and one of their own: right everywhere, one file for each kernel."""
    code = """
import sys, torch, tcjit, warnings
warnings.simplefilter("error")
number, text = int(sys.argv[1]), sys.argv[2]
tc = tcjit.define(text + f"def own(float(N) X) -> (Y) {{ Y(i) = X(i) * {number}.5 }}")
a, b, x = torch.randn(9, 7), torch.randn(7, 11), torch.randn(13)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(3):
    assert torch.allclose(tc[list(tc)[0]](a, b), a @ b, atol=1e-5)
    assert torch.equal(tc.own(x), x * (number + 0.5))
assert tcjit.cache.verify() == []
"""
    running = [python(code, str(number), (MM, RENAMED)[number % 2]) for number in range(count)]
    for process in running:
        assert process.stdout and process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    for process in running:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    assert cache.verify() == [] and len(cache.entries()) == count + 1


def test_every_file_of_a_real_cache_damaged(own_cache: Path) -> None:
    """A flipped bit anywhere: the right numbers, at worst made again, and one warning."""
    tune(16, tile=(4, 16))
    a, b = shaped(16)
    expected = a @ b

    def use() -> list[str]:
        forget()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            kernel_cache.launcher_library()
            assert torch.allclose(tcjit.define(MM).mm(a, b), expected, atol=1e-4)
            cache.store().log("measured").read()
        assert all(w.category is CacheWarning for w in caught)
        return [str(w.message) for w in caught]

    cache.store().log("measured").append([{"n": n} for n in range(3)])
    assert use() == []
    cold = {path: path.read_bytes() for path in sorted(own_cache.rglob("*")) if path.is_file()}
    kinds = {path.parent.name for path in cold}
    assert kinds == {"texts", "options", "notes", "kernels", "blobs", "logs"}
    for path, content in cold.items():
        for at in (0, 40, len(content) // 2, len(content) - 2):
            spoiled = bytearray(content)
            spoiled[at % len(content)] ^= 1 << (at % 8)
            path.write_bytes(bytes(spoiled))
            said = use()
            assert len(said) == (path.parent.name != "logs"), (path, at, said)
            assert use() == [], "made again, or dropped"
            for file, whole in cold.items():
                file.write_bytes(whole)
                file.chmod(0o600)


def test_drawn_arguments_have_both_truth_values_and_divisors() -> None:
    text = "def f(bool(N) M, int32(N) D, int64(N) I, float(V) X) -> (Y) { Y(i) = (M(i) ? X(I(i)) : 0.0) / float(D(i)) }"
    definition = compiling.definition(text, "f")
    truths, divisors, indices, floats = example_inputs.arguments(definition, {"M": (200,), "D": (200,), "I": (200,), "X": (3,)}, {})
    drawn = [set(each.tolist()) for each in (truths, divisors, indices) if isinstance(each, torch.Tensor)]
    assert drawn == [{False, True}, set(range(1, 9)), {0, 1, 2}]
    assert isinstance(floats, torch.Tensor) and floats.shape == (3,)


def test_canonical_and_places_survive_the_cache() -> None:
    made = kernel_cache.signatures(ONE)
    forget()
    assert kernel_cache.signatures(ONE) == made and made[0].canonical == kernel_cache.signatures(OTHER)[0].canonical
    assert json.loads(json.dumps(made[0].to_json())) == made[0].to_json() and len(made[0].places) == 1
