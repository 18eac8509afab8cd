"""Reports and charts of a search.

Modules: tuner.charts tuner.importance tuner.result tuner.trials
"""

from __future__ import annotations

import dataclasses
import math
import random
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.tuner.results import FACTORS, result

from tcjit.errors import TuneError
from tcjit.mapping.options import Options
from tcjit.tuner import charts, report
from tcjit.tuner.importance import importance
from tcjit.tuner.result import TuneResult
from tcjit.tuner.trials import Trial

VOID = {"meta", "line", "circle", "path", "rect"}


class Page(HTMLParser):
    """Reads a page strictly: every element is closed in its turn, nothing comes from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.classes: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe")
        given = dict(attributes)
        assert not {"src", "href", "onload"} & given.keys()
        self.classes += str(given.get("class", "")).split()
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag in VOID
        self.classes += str(dict(attributes).get("class", "")).split()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.texts.append(data)
            if "td" in self.open or "th" in self.open:
                self.tables[-1][-1][-1] += data


def without(found: TuneResult, *states: str) -> TuneResult:
    return dataclasses.replace(found, history=tuple(trial for trial in found.history if trial.state not in states))


def timed(values: dict[str, str], seconds: float, number: int = 0) -> Trial:
    return Trial(number, values, seconds, "measured", code=str(number))


# ---------------------------------------------------------------- importance


def test_importance_is_that_of_the_formula() -> None:
    """With the search's own bias: good choices are tried together and more often."""
    for seed in range(5):
        effects = {effect.name: effect for effect in importance(result(200, seed).history)}
        logs = {name: [math.log(factor) for factor in choices.values()] for name, choices in FACTORS.items()}
        variances = {name: sum((x - sum(xs) / len(xs)) ** 2 for x in xs) / len(xs) for name, xs in logs.items()}
        total = sum(variances.values())
        for name, choices in FACTORS.items():
            assert effects[name].share == pytest.approx(variances[name] / total, abs=0.08), (seed, name)
            if max(choices.values()) > 1.1:
                assert effects[name].best in [choice for choice, factor in choices.items() if factor < 1.06]
                assert effects[name].worst == max(choices, key=choices.__getitem__)
                assert effects[name].factor == pytest.approx(max(choices.values()), rel=0.2)


def test_importance_is_not_that_of_a_companion() -> None:
    """``b`` follows ``a`` nine times out of ten and does nothing."""
    draw = random.Random(1)
    trials = []
    for number in range(100):
        a = draw.choice("xy")
        b = a if draw.random() < 0.9 else draw.choice("xy")
        trials.append(timed({"a": a, "b": b}, (1.0 if a == "x" else 3.0) * draw.gauss(1, 0.02), number))
    first, second = importance(trials)
    assert (first.name, second.name) == ("a", "b") and second.share < 0.02


@pytest.mark.parametrize("count", [0, 1, 7])
def test_few_times_say_nothing(count: int) -> None:
    assert importance([timed({"a": str(n)}, 1.0 + n, n) for n in range(count)]) == ()


def test_equal_times_say_nothing() -> None:
    assert importance([timed({"a": str(n % 3)}, 1.0, n) for n in range(20)]) == ()
    assert importance([timed({"a": "1"}, 1.0 + n, n) for n in range(20)]) == ()


def test_options_that_some_candidates_lack_are_left_out() -> None:
    trials = [timed({"a": str(n % 2), **({"b": str(n % 3)} if n > 3 else {})}, 1.0 + n % 2, n) for n in range(20)]
    assert [effect.name for effect in importance(trials)] == ["a"]


# ---------------------------------------------------------------- charts


def test_best_so_far() -> None:
    history = [Trial(n, {}, seconds, "measured" if seconds else "failed") for n, seconds in enumerate([None, 3.0, 4.0, 2.0, 2.0, None])]
    assert charts.best_so_far(history) == [(1, 3.0), (3, 2.0), (5, 2.0)]
    assert charts.best_so_far(history[::-1]) == charts.best_so_far(history)
    assert charts.best_so_far(history[:1]) == [] and charts.best_so_far([]) == []


@pytest.mark.parametrize("low", [3e-7, 1e-3, 0.9, 40.0])
@pytest.mark.parametrize("ratio", [1.0001, 1.02, 1.5, 3.0, 30.0, 1e4])
def test_ticks_are_few_and_inside(low: float, ratio: float) -> None:
    ticks = charts.round_times(low, low * ratio)
    assert 2 <= len(ticks) <= 16 and ticks == sorted(set(ticks)) and low <= ticks[0] * 1.0000001 and ticks[-1] <= low * ratio * 1.0000001


# ---------------------------------------------------------------- the page


def test_a_page_says_everything() -> None:
    found = result()
    page = Page(report.html(found))
    assert "matmul & <friends>" in page.texts and "1.44×" in page.texts and "14.2 s" in page.texts
    chosen, best, failures, facts = page.tables
    assert [row[:3] for row in chosen] == [["option", "winner", "default"], ["tile", "4x32", "auto"], ["vector_width", "8", "0"]]
    assert len(best) == 1 + report.BEST and best[0][:3] == ["candidate", "time", "to the best"]
    codes = {trial.number: trial.code for trial in found.history}
    assert len({codes[int(row[0])] for row in best[1:]}) == report.BEST
    assert [row[2] for row in best[1:]] == sorted(row[2] for row in best[1:])
    assert any("All of them: " in text for text in page.texts) and "parallel=True" in page.texts
    counts = {row[2]: int(row[0]) for row in failures[1:]}
    assert sum(counts.values()) == found.trials["failed"] + found.trials["pruned"]
    assert "tile = (64, 64) needs 262144 bytes of <shared> memory, the device has 101376" in counts
    assert ["machine", "some CPU, 2 cores"] in facts and ["seconds", "–"] in facts
    for state, count in found.trials.items():
        assert page.classes.count(state) == count + 1  # and one in the legend
    assert page.classes.count("bar") == len(FACTORS) and page.classes.count("curve") == 2


@pytest.mark.parametrize(
    "found",
    [
        result(1),
        result(6),
        without(result(), "failed", "pruned"),
        without(result(), "measured", "same"),
        dataclasses.replace(result(), history=(), facts={}, label="", options=Options()),
        dataclasses.replace(result(9), default_seconds=1e-9, seconds=3e3, elapsed=1e5),
    ],
    ids=["one", "few", "all ran", "none ran", "empty", "far apart"],
)
def test_pages_of_odd_searches(found: TuneResult) -> None:
    text = report.html(found)
    page = Page(text)
    assert "nan" not in text and "inf" not in re.sub(r"[a-z]*inf[a-z]+", "", text) and page.texts


def test_what_users_wrote_cannot_become_markup() -> None:
    found = result(20)
    evil = "<script>alert('x')</script>&\"'"
    trial = Trial(99, {evil: evil}, None, "failed", evil)
    page = Page(report.html(dataclasses.replace(found, label=evil, facts={evil: evil}, history=(*found.history, trial))))
    assert page.texts.count(evil) >= 4


# ---------------------------------------------------------------- the figure


def test_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = result()
    drawing = found.plot(tmp_path / "search.svg")
    left, right = drawing.axes
    assert left.get_yscale() == "log" and left.get_title() == "matmul & <friends>"
    assert [text.get_text() for text in drawing.legends[0].get_texts()] == [*charts.MEANING.values(), "best so far", "untuned"]
    assert [tick.get_text() for tick in right.get_yticklabels()][::-1] == [effect.name for effect in importance(found.history)]
    assert "<svg" in (tmp_path / "search.svg").read_text()
    assert result(3).plot().axes[1].get_title() == "too few times to compare options"
    report.figure(dataclasses.replace(found, history=()), tmp_path / "none.png")
    for file in (tmp_path / "a" / "b.png", tmp_path / "plot.nokind"):
        with pytest.raises(TuneError, match="cannot be written"):
            found.plot(file)


def test_without_matplotlib_a_plot_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(TuneError, match=r"(?s)matplotlib, which is not installed.*pip install matplotlib"):
        result(3).plot()


@pytest.mark.cold
def test_a_page_needs_neither_matplotlib_nor_optuna() -> None:
    code = "import sys, tcjit.tuner.report; print(sorted({'matplotlib', 'optuna', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
