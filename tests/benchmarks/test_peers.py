"""The peers' harness: its registry, one tiny measurement from end to end, its page."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tcjit.grammar.parse import parse

HARNESS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness's modules importable, as they are when bench.py runs."""
    monkeypatch.syspath_prepend(str(HARNESS))


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PEER_")}
    return subprocess.run([sys.executable, str(HARNESS / "bench.py"), *arguments], capture_output=True, text=True, env=environment)


def record(ms: float, foreign: float = 0.0, correct: bool = True) -> dict[str, Any]:
    rounds = [{"n": 3, "med": ms / 1e3, "min": ms / 1e3, "p90": ms / 1e3, "foreign": foreign}] * 3
    return {"ok": True, "correct": correct, "build_s": 0.5, "first_call_s": 0.25, "rounds": rounds}


def test_a_tiny_op_from_end_to_end(tmp_path: Path) -> None:
    out = tmp_path / "tiny.json"
    quick = ("quick", "--peers", "torch_eager", "--ops", "tiny", "--rounds", "2", "--budget", "0.005", "--quiet", "0", "--out", str(out))
    done = bench(*quick)
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    eager = results["ops"]["tiny"]["torch_eager"]
    assert eager["ok"] and eager["correct"]
    assert eager["median_ms"] > 0 and eager["percall_us"] > 0
    assert len(eager["rounds"]) == 2
    page = out.with_suffix(".md").read_text()
    assert page.startswith(f"# {results['meta']['machine']['cpu']}")
    assert "| tiny | **" in page


def test_unknown_ops_are_named() -> None:
    done = bench("run", "--peers", "torch_eager", "--ops", "tiny,nonsense", "--out", os.devnull)
    assert done.returncode == 1
    assert "no op nonsense" in done.stderr


@pytest.mark.usefixtures("harness")
def test_every_source_is_in_the_language() -> None:
    from ops import OPS

    for op in OPS.values():
        definition = parse(op.source)[-1]
        assert definition.name == op.entry
        assert [param.name for param in definition.params] == [given.name for given in op.inputs]
        assert set(op.outputs) <= {output.name for output in definition.returns}


@pytest.mark.usefixtures("harness")
def test_an_unavailable_peer_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import measure

    monkeypatch.setenv("PEER_VENVS", str(tmp_path))
    monkeypatch.delenv("PEER_PY_halide_adams", raising=False)
    monkeypatch.setattr(measure.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LookupError, match="no halide in this environment"):
        measure.interpreter("halide_adams")
    with pytest.raises(LookupError, match="no such peer"):
        measure.interpreter("nonsense")


@pytest.mark.usefixtures("harness")
def test_the_page_compares_with_the_best_peer(tmp_path: Path) -> None:
    import report

    run = {
        "meta": {
            "machine": {"cpu": "Test", "cores": 2, "memory_gb": 4, "system": "None"},
            "threads": 2,
            "rounds": 3,
            "time": "now",
            "warm_heap": False,
        },
        "peers": {peer: {"ok": True, "versions": {peer: "1"}, "start_s": 1.0} for peer in ("torch_eager", "numba_par", "tcjit")},
        "ops": {
            "tmm_s": {"torch_eager": record(2.0), "numba_par": record(1.0, correct=False), "tcjit": record(5.0)},
            "mlp1": {"torch_eager": record(2.0), "numba_par": record(1.0), "tcjit": record(5.0, foreign=0.5)},
            "tiny": {"torch_eager": record(0.002), "tcjit": {"ok": False, "kind": "error", "error": "no"}},
        },
    }
    file = tmp_path / "run.json"
    file.write_text(json.dumps(run))
    page = report.page([file], tmp_path / "absent")
    assert "| tmm_s | **2.00** | 1.00 WRONG | 5.00 | torch_eager |" in page
    assert "| tmm_s | 5.00 | torch_eager | 2.00 | 2.50 | yes |" in page
    assert "| mlp1 | 5.00~ | numba_par | 1.00 | 5.00 | no |" in page
    assert "| tiny | ERR | torch_eager | 0.002 |  | no |" in page
    assert "within 3x of the best peer on 1 of 3 ops, and ahead on 0" in page


@pytest.mark.usefixtures("harness")
def test_the_roofline_comes_from_this_machine_s_ceilings(tmp_path: Path) -> None:
    import report
    from ops import OPS

    file = tmp_path / "ceilings.jsonl"
    lines = [
        {"name": "fma_fp32_avx512_2T", "best": 400.0},
        {"name": "fma_fp32_avx2_2T", "best": 200.0},
        {"name": "bw_ws48KB_2T", "triad": 100.0, "triad_nt": 50.0},
        {"name": "bw_ws24576KB_2T", "triad": 10.0, "triad_nt": 20.0},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ceilings = report.Ceilings.read(file, threads=2)
    assert ceilings is not None
    assert report.Ceilings.read(file, threads=4) is None
    assert ceilings.roofline_ms(OPS["mm_1024"]) == pytest.approx(2 * 1024**3 / 400e6)
    assert ceilings.roofline_ms(OPS["softmax"]) == pytest.approx(OPS["softmax"].bytes / 20e6)
