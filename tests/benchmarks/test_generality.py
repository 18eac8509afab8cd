"""The benchmark of drawn operators: its families, its statistics, its gate, and the two suites beside it."""
from __future__ import annotations

import dataclasses
import json
import math
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tcjit
from tcjit.grammar import front

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
FAMILIES = """contraction convolution transposed_convolution border pool reduction norm softmax stencil triangular masked band scan gather
one_hot int8 bfloat16 permutation broadcast program""".split()
TINY = 1e-8  # seconds of work: extents are the least that a family has


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package importable, as it is when its scripts run; what it imported by short names is forgotten."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(BENCHMARKS)):
            del sys.modules[name]


def drawn(family: str, number: int, seconds: float | None = TINY) -> Any:
    from generality.families import draw

    return draw(family, random.Random(f"{family} {number}"), seconds)


def test_the_families() -> None:
    from generality.families import FAMILIES as there

    assert list(there) == FAMILIES


@pytest.mark.host
@pytest.mark.parametrize("family", FAMILIES)
def test_shapes_are_those_of_the_reference(family: str) -> None:
    for number in range(20):
        op = drawn(family, number)
        function = tcjit.define(op.text)[op.entry]
        tensors = op.tensors(number)
        values = {
            size: extent for given, tensor in zip(function.signature.params, tensors) for size, extent in zip(given.dims, tensor.shape)
        }
        results = op.reference(*tensors)
        expected = [results] if isinstance(results, torch.Tensor) else results
        assert [tuple(shape) for shape in function.signature.shapes(values)] == [tuple(result.shape) for result in expected], op


@pytest.mark.host
@pytest.mark.parametrize("family", FAMILIES)
def test_the_notation_and_pytorch_mean_the_same(family: str) -> None:
    """By the interpreter, of some operators of each family."""
    from generality.measure import difference

    for number in range(6):
        op = drawn(family, number)
        tensors = op.tensors(number)
        result = tcjit.define(op.text, target="reference")[op.entry](*tensors)
        assert difference(op, tensors, result) == "", op


@pytest.mark.host
@pytest.mark.parametrize("family", ["contraction", "convolution", "gather", "int8"])
def test_a_kernel_agrees(family: str) -> None:
    from generality.measure import compiled, difference

    op = drawn(family, 1)
    tensors = op.tensors(1)
    _, _, result, _ = compiled(op, tensors)
    assert difference(op, tensors, result) == "", op


@pytest.mark.text
@pytest.mark.parametrize("family", FAMILIES)
def test_operators_of_all_sizes_are_read(family: str) -> None:
    from generality.operators import drawn_for

    for number in range(20):
        op = drawn(family, number, None)
        assert front.read(op.text)
        assert drawn_for().least <= op.work.seconds <= drawn_for().most


@pytest.mark.text
def test_a_seed_means_the_same_operators() -> None:
    from generality.families import numbered

    def facts(seed: int) -> list[Any]:
        return [dataclasses.replace(numbered(seed, family, 2), reference=len) for family in FAMILIES]

    assert facts(5) == facts(5)
    assert facts(5) != facts(6)


@pytest.mark.text
def test_extents_are_odd_as_often_as_round() -> None:
    from generality.operators import Work
    from generality.sizes import extents

    rng = random.Random(0)
    drawn = [n for _ in range(200) for n in extents(rng, 1e-3, lambda a, b: Work(2 * a * b * 1e3, 0), [2, 2]) if n >= 8]
    assert 0.35 < sum(n % 2 for n in drawn) / len(drawn) < 0.65


@pytest.mark.text
def test_operators_for_a_gpu_are_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    from generality import operators
    from generality.families import numbered

    monkeypatch.setattr(operators, "_drawn_for", operators.PLACES["cpu"])  # undone behind the test
    small = numbered(5, "permutation", 2)
    operators.draw_for("cuda")
    large = numbered(5, "permutation", 2)
    assert large.work.bytes > 4 * small.work.bytes
    assert operators.PLACES["cuda"].least <= large.work.seconds <= operators.PLACES["cuda"].most


@pytest.mark.host
def test_a_dry_run_on_the_cpu_of_what_a_gpu_is_timed_by(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "generality" / "on_gpu.py"), "--dry-run", "--count", "4", "--seed", "3", "--jobs", "2"]
    written = ["--only", "kalman_update_2d,masked_zonal_anomaly"]  # gradients of a symmetric matrix, and one that is zero but for rounding
    files = ["--json", str(tmp_path / "rows.json"), "--page", str(tmp_path / "page.md")]
    rest = ["--family", "permutation,scan,written,gradient", *written, *files]
    done = subprocess.run([*command, *rest], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    names = [f"{kind}/{name}" for kind in ("written", "gradient") for name in ("kalman_update_2d", "masked_zonal_anomaly")]
    assert [row["id"] for row in rows] == ["permutation/0", "scan/0", "permutation/1", "scan/1", *names]
    assert all(row["ratio"] > 0 and row["wrong"] == "" for row in rows) and "8 timed: geometric mean" in done.stdout
    assert (tmp_path / "page.md").read_text().count("\n| written/") == 2


@pytest.mark.host
def test_an_argument_stored_in_another_order() -> None:
    from generality.operators import Argument

    made = Argument("X", (2, 3, 4), order=(2, 0, 1)).tensor(torch.Generator())
    assert made.shape == (2, 3, 4)
    assert made.stride() == (3, 1, 6)


# ---------------------------------------------------------------- what it says


def record(ratio: float, family: str = "scan", kind: str = "timed") -> dict[str, Any]:
    times = {"tcjit_us": 10.0, "eager_us": 10.0 * ratio, "floor_us": 1.0, "bound": "memory", "first_s": 0.5, "ratio": ratio}
    made = {"id": f"{family}/{ratio}", "family": family, "name": f"with {ratio}", "text": "def f", "arguments": ["X float[2]"]}
    plan = {"pooled": False, "options": {}, "resources": {}, "plan": ["parallel, 1 loop"]}
    return made | {"kind": kind} | (times | plan if kind == "timed" else {"error": "no way\nat all"})


@pytest.mark.text
def test_the_statistics() -> None:
    from generality import report

    records = [record(0.25, "scan"), {**record(1.0, "scan"), "foreign": 0.5}, record(4.0, "pool"), record(0.0, "pool", "refused")]
    found = report.statistics(records)
    assert found["mean"] == pytest.approx(1.0)
    assert found["families"] == {"pool": pytest.approx(4.0), "scan": pytest.approx(0.5)}
    assert found["fifth_percentile"] == pytest.approx(0.15 * 0.25)  # a refusal counts as 0
    assert (found["below_0.75"], found["below_0.4"], found["refused"], found["dirty"]) == (2, 2, 1, 1)
    assert [report.line(r).partition(" ")[0] for r in records[:2]] == ["scan/0.25", "scan/1.0~"]
    lines = [report.line({**record(1.0), "pooled": pooled}) for pooled in (True, False)]
    assert [line[report.HEADER.index("pool ") :].split()[0] for line in lines] == ["yes", "no"]


@pytest.mark.text
def test_the_worst_come_first_with_their_plan() -> None:
    from generality import report

    records = [record(n / 10) for n in range(30, 0, -1)]
    assert [r["ratio"] for r in report.worst(records)] == [n / 10 for n in range(1, 11)]
    text = report.summary([*records, record(0.0, kind="wrong")])
    assert "30 timed, 0 checked, 0 refused, 1 wrong" in text
    assert text.count("plan: parallel, 1 loop") == 10
    assert "WRONG: scan/0.0" in text and "at all" in text


@pytest.mark.text
def test_the_outline_of_a_tree() -> None:
    from generality.measure import outline

    tree = """domain: "{ S0[i]; S1[i, j] }"
child:
  mark: "parallel"
  child:
    schedule: "[{ S0[i] -> [(i)]; S1[i, j] -> [(i)] }]"
    child:
      sequence:
      - filter: "{ S0[i] }"
      - filter: "{ S1[i, j] }"
        child:
          mark: "simd"
          child:
            schedule: "[{ S1[i, j] -> [(j)] }, { S1[i, j] -> [(i)] }]"
"""
    assert outline(tree) == ["parallel, i", "parallel, i, simd, j x i"]


# ---------------------------------------------------------------- the gate


@pytest.mark.host
def test_the_gate() -> None:
    from generality.measure import difference

    op = drawn("broadcast", 0)
    tensors = op.tensors(0)
    right = op.reference(*tensors)
    assert difference(op, tensors, right) == ""
    assert "largest error" in difference(op, tensors, right + 0.01 * right.abs().max())
    assert "inf" in difference(op, tensors, right * math.nan)
    assert "shape" in difference(op, tensors, right[None])
    counts = next(op for op in (drawn("int8", n) for n in range(20)) if op.dtype == "int32")
    tensors = counts.tensors(0)
    assert "elements differ" in difference(counts, tensors, counts.reference(*tensors) + 1)


def run_script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, with the path that it makes for itself."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("generality_run", BENCHMARKS / "generality" / "run.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec.loader.exec_module(module)
    return module


@pytest.mark.host
def test_a_mismatch_fails_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from generality import ceilings

    run = run_script(monkeypatch)
    monkeypatch.setattr(ceilings, "measure", lambda: ceilings.Ceilings(1e11, ((1 << 20, 1e10),)))
    records = [record(1.0), record(2.0)]
    monkeypatch.setattr(run, "children", lambda *_: iter(records))
    out = tmp_path / "rows.json"
    assert run.main(["--quick", "--seed", "7", "--json", str(out)]) == 0
    assert "seed 7" in capsys.readouterr().out
    assert len(json.loads(out.read_text())["rows"]) == 2
    for kind in ("wrong", "failed"):
        records[0] = record(0.0, kind=kind)
        assert run.main(["--quick"]) == 1
        assert kind.upper() in capsys.readouterr().out


@pytest.mark.host
def test_one_operator_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = run_script(monkeypatch)
    given = run.arguments(["--quick", "--seed", "7", "--rounds", "3"])
    given.ceilings = "[1e11, [[1048576, 1e10]]]"
    environment = {**run.environment(1, str(tmp_path)), "TMPDIR": str(tmp_path)}
    (made,) = run.children(["broadcast/0"], given, environment, math.inf)
    assert made["kind"] == "timed" and made["best"] == "eager" and made["ratio"] > 0 and made["plan"]


@pytest.mark.host
def test_a_process_that_dies_costs_one_operator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = run_script(monkeypatch)
    given = run.arguments(["--quick", "--seed", "7"])
    given.ceilings = ""
    done = json.dumps({"id": "scan/0", "kind": "timed"})
    # the process after that has nothing to do with the operators that are done
    text = f"""#!/bin/sh
case $3 in
scan/0) echo 'begin: scan/0'; echo 'result: {done}'; echo 'begin: pool/0'; echo 'a last word' >&2; kill -9 $$ ;;
norm/0) echo 'begin: norm/0'; echo 'result: {done.replace("scan", "norm")}' ;;
esac
"""
    stub = tmp_path / "python"
    stub.write_text(text)
    stub.chmod(0o755)
    monkeypatch.setattr(run.sys, "executable", str(stub))
    records = list(run.children(["scan/0", "pool/0", "norm/0"], given, {}, math.inf))
    assert [(r["id"], r["kind"]) for r in records] == [("scan/0", "timed"), ("pool/0", "failed"), ("norm/0", "timed")]
    assert records[1]["error"] == "its process ended with status -9: a last word"
    assert records[1]["text"].startswith("def pool")
    assert list(run.children(["scan/0"], given, {}, 0.0)) == []  # the time is over


@pytest.mark.host
def test_a_limit_in_seconds() -> None:
    import time

    from generality.measure import limited

    with pytest.raises(TimeoutError), limited(0.05):
        time.sleep(5)
    with limited(60):
        pass


# ---------------------------------------------------------------- the two suites


@pytest.mark.text
def test_the_contractions_of_tccg() -> None:
    from generality import tccg

    cases = tccg.table()
    assert len(cases) == len({case.name for case in cases}) == 48
    for case in cases:
        indices = [set(case.result), set(case.left), set(case.right)]
        assert set(case.size) == set().union(*indices)
        assert indices[0] == indices[1] ^ indices[2], case  # what both operands have is summed, nothing else
        assert math.prod(case.product) == math.prod(case.size.values())
        assert max(math.prod(case.shape(part)) for part in (case.result, case.left, case.right)) <= 2 * 10**8
        assert front.read(case.text)


@pytest.mark.host
def test_a_contraction_of_tccg_is_compared_by_samples() -> None:
    from generality import tccg

    case = tccg.table()[5].scaled(6)
    x, u = torch.randn(case.shape(case.left)), torch.randn(case.shape(case.right))
    right = tcjit.define(case.text)["contraction"](x, u)
    torch.testing.assert_close(right, torch.einsum(case.equation, x, u), rtol=1e-4, atol=1e-4)
    assert tccg.sampled_error(case, x, u, right) < tccg.TOLERANCE
    assert tccg.sampled_error(case, x, u, right + 0.1) > tccg.TOLERANCE


@pytest.mark.host
def test_the_loops_of_polybench_mean_what_the_notation_means(tmp_path: Path) -> None:
    """By the interpreter."""
    from generality import polybench
    from generality.polybench_kernels import KERNELS

    for name, kernel in KERNELS.items():
        size = polybench.sizes(kernel, "mini")
        inputs = polybench.tensors(kernel, size)
        results = tcjit.define(kernel.text(name), target="reference")[name](*inputs)
        call = polybench.built(kernel, size, ["gcc", "-O0"], str(tmp_path), name)
        results = results if isinstance(results, tuple) else (results,)
        assert polybench.difference(results, call(*inputs)) < polybench.TOLERANCE, name


@pytest.mark.host
def test_a_kernel_of_polybench_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import machine
    from generality import polybench

    monkeypatch.setattr(machine, "LOCK", tmp_path / "lock")
    made = polybench.measure("gesummv", "mini", {"gcc": ["gcc", "-O1"]}, str(tmp_path), rounds=2, seconds=0.1)
    assert made["kind"] == "timed" and made["over_gcc"] > 0
    assert re.fullmatch(r"gesummv +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+", polybench.row(made, ["gcc"]))
    assert polybench.summary([made], ["gcc"]).startswith("1 timed, 0 not; gcc over tcjit: geometric mean")


def test_products_are_drawn_and_compared(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from generality import products

    names = list(products.drawn(3, 2))
    assert names == list(products.drawn(3, 2)) != list(products.drawn(4, 2))
    assert [name.split(":")[0] for name in names] == ["NN", "NN", "NT", "NT", "TN", "TN", "TT", "TT"]
    monkeypatch.setenv("TCJIT_CACHE_DIR", "")
    assert products.main(["--only", "TT:24x40x300:double", "--rounds", "1", "--seconds", "0.05", "--threads", "1"]) == 0
    assert "1 products: geometric mean" in capsys.readouterr().out
    assert all(name.split(":")[1].count("x") == 3 for name in products.drawn(3, 2, True))
    assert products.main(["--only", "NT:5x24x40x30:float", "--rounds", "1", "--seconds", "0.05", "--threads", "1"]) == 0
    assert "C: loops b" in capsys.readouterr().out
    monkeypatch.setattr(products, "TOLERANCE", {"float": 0.0})
    with pytest.raises(AssertionError, match="an error of"):
        products.main(["--only", "NN:40x40x40:float", "--threads", "1"])
