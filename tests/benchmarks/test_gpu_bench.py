"""The GPU benchmark's own logic, without a GPU: figures, operators, measuring on a device that answers from a script."""
from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from support.gpu_bench import (
    CEILINGS,
    Case,
    Entry,
    ceilings,
    contenders,
    device,
    entry,
    error,
    figures,
    main,
    measure,
    reference,
    results,
    suites,
)
from support.rings.sass import count, innermost, sass

import tcjit
from tcjit.runtime import nvrtc


class Scripted:
    """A device on which every call takes the microseconds of a script, and a graph of many calls that many times as long."""

    place = "cpu"

    def __init__(self, script: Mapping[str, Sequence[float]], graphs: bool = True) -> None:
        self.script, self.graphs = script, graphs
        self.captures, self.asked, self.poisoned = 0, [], []  # type: ignore[var-annotated]
        self.broken = False

    def facts(self) -> dict[str, Any]:
        return {"name": "scripted", "device": "Scripted"}

    def synchronize(self) -> None:
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def warm_up(self) -> None:
        return

    def interleaved(self, calls: Mapping[str, Callable[[], object]], samples: int, pad: int = 1) -> dict[str, list[float]]:
        self.asked.append((list(calls), samples, pad))
        times = measure.ROTATED if self.captures else 1
        return {name: [self.script[name][n % len(self.script[name])] * times for n in range(samples)] for name in calls}

    def captured(self, call: Callable[[], object]) -> Callable[[], object]:
        if not self.graphs:
            raise NotImplementedError("no graphs")
        self.captures += 1
        call()
        return call

    def poison(self, outputs: Sequence[torch.Tensor]) -> None:
        self.poisoned += [(tuple(one.shape), one.dtype) for one in outputs]


def contender(name: str, compute: Callable[..., Any], **facts: Any) -> contenders.Contender:
    def prepare(case: Case, arguments: Sequence[Any], on: device.Device, quick: bool) -> contenders.Prepared:
        return contenders.Prepared(lambda *given: results(compute(*given)), facts=facts)

    return contenders.Contender(name, prepare)


def measured(
    monkeypatch: pytest.MonkeyPatch, on: Scripted, those: Sequence[contenders.Contender], which: Entry | None = None, **excluded: str
) -> tuple[dict[str, Any], list[str]]:
    monkeypatch.setattr(measure, "CONTENDERS", {one.name: one for one in those})
    stages: list[str] = []
    settings = measure.Settings(tuple(one.name for one in those))
    return measure.measure(which or entry(), on, settings, CEILINGS, excluded, stages.append), stages


# ---------------------------------------------------------------- figures


def test_medians_and_percentiles() -> None:
    found = figures.summary([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (found.us, found.p10, found.p90, found.samples) == (3.0, pytest.approx(1.4), pytest.approx(4.6), 5)
    assert figures.summary([2.0, 4.0]).us == 3.0
    assert figures.summary([7.0]) == figures.Summary(7.0, 7.0, 7.0, 1)


def test_the_least_time_is_the_larger_of_two() -> None:
    assert figures.floor_us(6e9, 4e6, "float32", CEILINGS) == pytest.approx(100.0)  # 6 GFLOP at 60 TFLOP/s
    assert figures.floor_us(6e6, 4e9, "float32", CEILINGS) == pytest.approx(1000.0)  # 4 GB at 4 TB/s
    assert figures.floor_us(7e9, 0, "bfloat16", CEILINGS) == pytest.approx(10.0)
    failed = {**CEILINGS, "ffma_tflops": "LaunchError: no driver"}
    assert figures.floor_us(5e9, 0, "float32", failed) == pytest.approx(100.0)  # the vendor's product instead
    assert figures.floor_us(1, 1, "float32", {"ffma_tflops": 60.0}) is None


def test_ratios_need_right_results() -> None:
    row = {
        "floor_us": 5.0,
        "contenders": {
            "eager": {"us": 30.0, "correct": True},
            "compile": {"us": 2.0, "correct": False},
            "triton": {"skipped": "no kernel"},
            "tcjit": {"us": 10.0, "correct": True},
        },
    }
    assert figures.ratio(row, "eager") == 3.0 and figures.fraction(row, "tcjit") == 0.5
    assert figures.ratio(row, "compile") is None and figures.fraction(row, "compile") is None
    assert figures.ratio(row, "triton") is None and figures.ratio(row, "nobody") is None


def test_errors_are_norms() -> None:
    right = [torch.tensor([3.0, 4.0]).double()]
    assert error([torch.tensor([3.0, 4.5])], right) == pytest.approx(0.1)
    assert math.isnan(error([torch.tensor([3.0, math.nan])], right))
    assert error([torch.ones(3)], right) == math.inf
    assert error([torch.zeros(2)], [torch.zeros(2).double()]) == 0
    assert error([right[0], torch.ones(1)], [*right, torch.zeros(1).double()]) == 1


# ---------------------------------------------------------------- the operators


@pytest.mark.parametrize("name", suites.ENTRIES)
def test_every_source_computes_what_pytorch_does(name: str) -> None:
    case = suites.ENTRIES[name].case(small=True)
    arguments = case.arguments("cpu")
    function = getattr(tcjit.define(case.source, target="reference"), case.entry)
    names = [output.name for output in function.signature.returns]
    found = results(function(*arguments))
    assert error([found[names.index(output)] for output in case.outputs], reference(case, arguments)) <= case.tolerance


def test_sizes_are_those_of_the_literature() -> None:
    entries = suites.ENTRIES
    assert [e.dims["M"] for name, e in entries.items() if re.fullmatch(r"sgemm_\d+", name)] == [512, 1024, 2048, 4096, 8192]
    assert dict(entries["tmm_m"].dims) == {"M": 128, "K": 1024, "N": 1024}
    assert dict(entries["gconv_14"].dims) == {"N": 32, "G": 32, "C": 16, "F": 16, "H": 14, "W": 14, "KH": 3, "KW": 3}
    assert entries["lut1"].dims["E"] == 10_000_000
    assert entries["layernorm_4.2M"].dims == {"M": 16, "N": 1 << 22}
    assert sum(one.quick for one in entries.values()) < 35 and all(one.quick for one in entries.values() if one.suite == "tc")


def test_work_is_counted_once() -> None:
    softmax = suites.ENTRIES["softmax_4096"].case()
    assert softmax.read == 4 * 32768 * 4096 and softmax.flops == 5 * 32768 * 4096
    product = suites.ENTRIES["bf16_4096"].case()
    assert product.dtype == "bfloat16" and product.read == 2 * 2 * 4096**2 and product.flops == 2 * 4096**3
    assert suites.ENTRIES["lut1"].case().read == 4 * (128 * 50 * 64 + 128 * 50)  # the rows that are looked up
    assert suites.ENTRIES["cross_entropy_4096"].case().inputs[1].draw == 4096
    assert suites.ENTRIES["abcd-aebf-dfce"].case().flops == 2 * 72**4 * 24**2


def test_inputs_are_fresh_and_the_same_for_a_seed() -> None:
    case = suites.ENTRIES["lut1"].case(small=True)
    first, again, other = case.arguments("cpu"), case.arguments("cpu"), case.arguments("cpu", 7, {0: torch.ones(1)})
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert torch.equal(other[0], torch.ones(1)) and not torch.equal(other[1], first[1])
    assert 0 <= int(first[1].min()) and int(first[1].max()) < 7 and first[0].std() > 0.5


def test_choosing() -> None:
    assert {one.suite for one in suites.choose(["sgemm"])} == {"sgemm"}
    assert [one.name for one in suites.choose(["softmax_393k", "mlp3"], quick=True)] == ["mlp3", "softmax_393k"]
    assert suites.choose(quick=True) == [one for one in suites.choose() if one.quick]
    with pytest.raises(SystemExit, match="no operator or suite nonsense"):
        suites.choose(["tc", "nonsense"])
    with pytest.raises(SystemExit, match="no contender nobody"):
        main.peers("eager,nobody", False)
    assert main.peers("tcjit,eager", True) == ("eager", "max-autotune", "tcjit")


# ---------------------------------------------------------------- measuring


def test_contenders_are_checked_then_timed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    on = Scripted({"eager": [50.0], "ours": [40.0, 44.0, 48.0]})
    row, stages = measured(monkeypatch, on, [contender("eager", lambda x: 2 * x), contender("ours", lambda x: x + x, trials=3)])
    assert stages == ["inputs", "eager", "ours", "timing"]
    assert row["bytes"] == 8000 and row["floor_us"] == pytest.approx(0.002) and row["dims"] == {"N": 1000}
    ours = row["contenders"]["ours"]
    assert ours["correct"] and ours["error_norm"] < 1e-7 and ours["how"] == "events" and ours["trials"] == 3
    assert ours["us"] == 44.0 and ours["p10"] == 40.0 and ours["p90"] == 48.0 and ours["first_s"] > 0
    assert on.asked[0][:2] == (["eager", "ours"], 3) and on.asked[1][1] == ours["samples"] == measure.MOST
    assert on.poisoned == [((1000,), torch.float32)] * 2 and on.captures == 0


def test_short_kernels_are_timed_in_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def twice(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.data_ptr())
        return 2 * x

    on = Scripted({"ours": [5.0], "eager": [90.0]})
    row, _ = measured(monkeypatch, on, [contender("ours", twice), contender("eager", lambda x: 2 * x)])
    assert on.captures == 2
    assert row["contenders"]["ours"]["us"] == 5.0 and row["contenders"]["ours"]["how"] == f"a graph of {measure.ROTATED} calls"
    assert row["contenders"]["eager"]["us"] == 90.0
    assert len(set(seen)) == measure.ROTATED  # each call has an input of its own


def test_what_cannot_be_captured_is_timed_without(monkeypatch: pytest.MonkeyPatch) -> None:
    row, _ = measured(monkeypatch, Scripted({"ours": [5.0]}, graphs=False), [contender("ours", lambda x: 2 * x)])
    assert row["contenders"]["ours"]["us"] == 5.0
    assert row["contenders"]["ours"]["how"] == "events, no graph: NotImplementedError: no graphs"


def test_failures_wrong_results_and_gaps_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("does not map")

    def nothing(case: Case, arguments: Sequence[Any], on: device.Device, quick: bool) -> contenders.Prepared:
        raise contenders.Unsupported("no kernel was written for it")

    those = [
        contender("fails", broken),
        contender("nan", lambda x: x * math.nan),
        contender("tf32", lambda x: 2.001 * x),
        contenders.Contender("triton", nothing),
        contenders.Contender("absent", nothing, lambda on: "not installed"),
        contender("crashed", lambda x: 2 * x),
        contender("eager", lambda x: 2 * x),
    ]
    row, stages = measured(monkeypatch, Scripted({n: [50.0] for n in ("nan", "tf32", "eager")}), those, crashed="SIGSEGV")
    found = row["contenders"]
    assert found["fails"] == {"error": "ValueError: does not map"} and found["crashed"] == {"error": "SIGSEGV"}
    assert found["triton"] == {"skipped": "no kernel was written for it"} and found["absent"] == {"skipped": "not installed"}
    assert found["nan"]["error_norm"] == "nan" and not found["nan"]["correct"]
    assert found["tf32"]["error_norm"] == pytest.approx(5e-4, rel=0.01) and not found["tf32"]["correct"]
    assert found["eager"]["correct"] and found["tf32"]["us"] == 50.0 and "crashed" not in stages


def test_a_broken_device_names_who_broke_it(monkeypatch: pytest.MonkeyPatch) -> None:
    on = Scripted({})

    def breaks(x: torch.Tensor) -> torch.Tensor:
        on.broken = True
        raise RuntimeError("an illegal memory access")

    with pytest.raises(measure.Lost) as lost:
        measured(monkeypatch, on, [contender("ours", breaks)])
    assert lost.value.args == ("ours", "RuntimeError: an illegal memory access")


def test_orders_rotate() -> None:
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in "abc"}
    found = device.Host().interleaved(calls, 4)
    assert "".join(order) == "abcbcacababc" and all(len(times) == 4 and min(times) >= 0 for times in found.values())


def test_tf32_is_put_back() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    with device.tf32(True):
        assert torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


def test_a_ceiling_that_fails_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> float:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(ceilings, "copy", fails)
    found = ceilings.measure(device.Host(), small=True)
    assert found["copy_gbs"] == "RuntimeError: out of memory" and found["fp32_tflops"] > 0 and "ffma_tflops" not in found


def test_the_multiply_adds_are_all_there() -> None:
    """In machine code: a loop of nothing else, no spills."""
    binary = nvrtc.compile(ceilings.FFMA, ["ffma_peak"], "sm_90")
    loop = innermost(sass(binary.cubin)["ffma_peak"])
    assert count(loop, "FFMA") == ceilings.CHAINS * ceilings.REPEATS and len(loop) < 1.1 * count(loop, "FFMA")
    assert binary.resources["ffma_peak"].spill_stores == 0 and binary.resources["ffma_peak"].registers <= 32
    assert nvrtc.compile(ceilings.EMPTY, ["nothing"], "sm_80").cubin
