"""What people see of our objects: repr, HTML in notebooks, and the log of a slow first call.

Modules: notebook
"""
from __future__ import annotations

import logging
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
import torch
from support.calls import defs

import tcjit
from tcjit.byoc.partition import PartitionedModule
from tcjit.errors import MappingError
from tcjit.jit import call
from tcjit.mapping import roofline
from tcjit.notebook import listing
from tcjit.tuner.result import TuneResult
from tcjit.tuner.trials import Trial

VOID = {"meta", "br", "hr", "img", "line", "circle", "path", "rect"}


class Balanced(HTMLParser):
    """Fails where tags do not match; keeps the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert tag not in ("script", "link", "img"), "notebooks show nothing from elsewhere"
        self.open += [tag] * (tag not in VOID)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)


def seen(shown: object) -> str:
    return "".join(Balanced(shown._repr_html_()).text)  # type: ignore[attr-defined]


HTML = "# <b>not bold</b> & so\ndef less(float(N) X, int32 s) -> (Y) { Y(i) = (X(i) < 1.5 && i < s) ? X(i) : 2.0 }"


def test_namespaces_and_defs() -> None:
    tc = tcjit.define(HTML, target="cpu", options=tcjit.Options(vector_width=1))
    assert "<b>not bold</b> & so" in seen(tc) and "X(i) < 1.5 && i < s" in seen(tc) and "vector_width=1" in seen(tc)
    assert "<b>not" not in tc._repr_html_() and '<span class="word">def</span>' in tc._repr_html_()
    tc.less(torch.ones(4), 2)
    assert "less(float32(N) X, int32 s) -> (Y)" in seen(tc.less) and "kernel for (4,)" in seen(tc.less)


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_kernels(target: str) -> None:
    kernel = defs(target).mm.compile(torch.ones(4, 5), torch.ones(5, 6), options=tcjit.Options(tile=(2,)))
    text = seen(kernel)
    assert repr(kernel) in text and "240 operations, 296 bytes" in text and "tile=(2,)" in text.replace("[2]", "(2,)") and target in text


def test_results_of_searches() -> None:
    trials = (Trial(0, {"vector_width": "1"}, 2e-6, "measured"), Trial(1, {"vector_width": "<8>"}, None, "failed", "a < b"))
    result = TuneResult(tcjit.Options(vector_width=1), 2e-6, 3e-6, trials, "trials", "f 8x16 <cpu>", 1.5)
    expected = "<tcjit.TuneResult f 8x16 <cpu>: 2 us, 1.50 times as fast as untuned (3 us), by vector_width=1; 1 measured"
    assert repr(result).startswith(expected)
    assert "f 8x16 <cpu>" in seen(result) and "1.50×" in seen(result) and "vector_width" in seen(result)


def test_partitioned_models() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    part = tcjit.partition(torch.jit.trace(model, torch.ones(2, 8)), (torch.ones(2, 8),), dry_run=True)
    assert repr(part).startswith("<tcjit.PartitionedModule of ") and part.report().splitlines()[0] in repr(part)
    assert part.summary().splitlines()[0] in seen(part) and "aten.relu" in seen(part)


@pytest.mark.parametrize(("count", "last", "more"), [(100, 99, None), (103, 99, "and 3 more operations")])
def test_many_operations_of_a_partitioned_model_are_counted(count: int, last: int, more: str | None) -> None:
    rows = [{"op": f"aten.op{number}_", "output": "y", "region": None, "backend": None, "reason": ""} for number in range(count)]
    manifest = {"training": False, "regions": [], "coverage": {}, "rows": rows, "report": "none\n"}
    shown = seen(PartitionedModule(None, manifest))
    assert f"aten.op{last}_" in shown and f"aten.op{last + 1}_" not in shown
    assert (more in shown) if more else ("more operations" not in shown)


def test_highlighting_keeps_the_text() -> None:
    text = "def f3(half(N) X2) -> (Y) {  # 3 <of> them\n  Y(i) min=! X2(i) * 1e-3 }"
    shown = listing(text)
    assert "".join(Balanced(shown).text) == text
    assert '<span class="number">1e-3</span>' in shown and '<span class="comment"># 3 &lt;of&gt; them</span>' in shown
    assert "f3(" in shown and "X2(i)" in shown


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every compilation takes long."""
    monkeypatch.setattr(call, "SLOW", 0.0)
    yield


@pytest.mark.usefixtures("slow")
def test_a_slow_first_call_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    tc = tcjit.define("def slowly(float(N) X) -> (Y) { Y(i) = X(i) * 7.5 }", target="cpu")
    with caplog.at_level(logging.INFO, "tcjit"):
        for size in (3, 3, 4):
            tc.slowly(torch.ones(size))
    assert len(caplog.messages) == 1 and "slowly(X[3]) for cpu> took" in caplog.messages[0]


def test_the_log_is_silent_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("tcjit").handlers)
    tc = tcjit.define("def quickly(float(N) X) -> (Y) { Y(i) = X(i) * 7.25 }", target="reference")
    with caplog.at_level(logging.INFO, "tcjit"):
        tc.quickly(torch.ones(3))
    assert not caplog.messages


def test_a_kernel_whose_work_cannot_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def uncounted(program: object) -> object:
        raise MappingError("there are too many points")

    monkeypatch.setattr(roofline, "roofline", uncounted)
    kernel = tcjit.define("def f(float(N) X) -> (Y) { Y(i) = X(i) + 0.25 }").f.compile(torch.ones(3))
    assert "not known: there are too many points" in seen(kernel)
