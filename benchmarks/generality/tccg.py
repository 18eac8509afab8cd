"""The 48 contractions of the TCCG benchmark on one thread: ``python benchmarks/generality/tccg.py [--only 1-11,31] [--json FILE]``.

Each is set against ``torch.mm`` of equal arithmetic (rows, columns and terms of the matrix product that the contraction is) and
``torch.einsum``. Indices: Springer and Bientinesi, "Design of a high-performance GEMM-like tensor-tensor multiplication", 2018; sizes:
Kim et al., "A code generator for high-performance tensor contractions on GPUs", CGO 2019. Both store the first index innermost, so that
a tensor here has the indices of its string from the last to the first. All float32.
"""
from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE.parent), str(HERE.parent / "peers"), str(HERE.parents[1])]

# result-left-right, and the extents of a, b, c, ...
TABLE = """
abc-bda-dc 312 312 24 312        abc-dca-bd 312 24 296 312        abcd-dbea-ec 72 72 24 72 72      abcd-deca-be 72 24 72 72 72
abcd-ebad-ce 72 72 24 72 72      abcde-efbad-cf 48 32 24 32 48 32 abcde-ecbfa-fd 48 32 32 24 48 48 abcde-efcad-bf 48 24 32 32 48 32
abcd-ea-ebcd 72 72 72 72 72      abcd-eb-aecd 72 72 72 72 72      abcd-ec-abed 72 72 72 72 72      ab-ac-cb 5136 5120 5136
ab-acd-dbc 312 296 296 312       ab-cad-dcb 312 296 312 312       abc-acd-db 312 296 296 312       abc-ad-bdc 312 312 296 296
abc-adc-bd 312 312 296 296       abc-adc-db 312 296 296 312       abc-adec-ebd 72 72 72 72 72
abcd-aebf-dfce 72 72 72 72 72 72 abcd-aebf-fdec 72 72 72 72 72 72 abcd-aecf-bfde 72 72 72 72 72 72 abcd-aecf-fbed 72 72 72 72 72 72
abcd-aedf-bfce 72 72 72 72 72 72 abcd-aedf-fbec 72 72 72 72 72 72 abcd-aefb-fdce 72 72 72 72 72 72 abcd-aefc-fbed 72 72 72 72 72 72
abcd-eafb-fdec 72 72 72 72 72 72 abcd-eafc-bfde 72 72 72 72 72 72 abcd-eafd-fbec 72 72 72 72 72 72
abcdef-dega-gfbc 24 16 16 24 16 16 24 abcdef-degb-gfac 24 16 16 24 16 16 24 abcdef-degc-gfab 24 16 16 24 16 16 24
abcdef-dfga-gebc 24 16 16 24 16 16 24 abcdef-dfgb-geac 24 16 16 24 16 16 24 abcdef-dfgc-geab 24 16 16 24 16 16 24
abcdef-efga-gdbc 24 16 16 16 24 16 24 abcdef-efgb-gdac 24 16 16 16 24 16 24 abcdef-efgc-gdab 24 16 16 16 24 16 24
abcdef-gdab-efgc 24 16 16 16 24 16 24 abcdef-gdac-efgb 24 16 16 16 24 16 24 abcdef-gdbc-efga 24 16 16 16 24 16 24
abcdef-geab-dfgc 24 16 16 24 16 16 24 abcdef-geac-dfgb 24 16 16 24 16 16 24 abcdef-gebc-dfga 24 16 16 24 16 16 24
abcdef-gfab-degc 24 16 16 24 16 16 24 abcdef-gfac-degb 24 16 16 24 16 16 24 abcdef-gfbc-dega 24 16 16 24 16 16 24
"""
TOLERANCE = 1e-4  # largest error over largest magnitude, of what is compared
READING_S = 5e-3  # a reading is as many calls as take so long
COMPARED = 4096  # elements of the result that are compared with float64


@dataclass(frozen=True)
class Contraction:
    """Indices of the result and of both operands, outermost first, and the extent of each."""

    number: int
    result: str
    left: str
    right: str
    size: dict[str, int]

    @property
    def name(self) -> str:
        return "-".join(indices[::-1] for indices in (self.result, self.left, self.right))

    def shape(self, indices: str) -> tuple[int, ...]:
        return tuple(self.size[i] for i in indices)

    @property
    def product(self) -> tuple[int, int, int]:
        """Rows, columns and terms."""
        terms = set(self.left) & set(self.right)
        return self._extent(set(self.left) - terms), self._extent(set(self.right) - terms), self._extent(terms)

    def _extent(self, indices: set[str]) -> int:
        return math.prod(self.size[i] for i in indices)

    @property
    def flops(self) -> int:
        return 2 * math.prod(self.product)

    @property
    def equation(self) -> str:
        return f"{self.left},{self.right}->{self.result}"

    @property
    def text(self) -> str:
        left, right, result = (",".join(indices) for indices in (self.left, self.right, self.result))
        given = f"float({left.upper()}) X, float({right.upper()}) U"
        return f"def contraction({given}) -> (O) {{\n    O({result}) +=! X({left}) * U({right})\n}}"

    def scaled(self, most: int) -> Contraction:
        """The same with no extent above ``most``."""
        return Contraction(self.number, self.result, self.left, self.right, {i: min(n, most) for i, n in self.size.items()})


def table() -> list[Contraction]:
    """All 48, in the order of the second paper.

    >>> table()[0].equation, table()[0].shape("adb")
    ('adb,cd->cba', (312, 312, 312))
    """
    found: list[Contraction] = []
    for word in TABLE.split():
        if "-" in word:
            result, left, right = (indices[::-1] for indices in word.split("-"))
            found.append(Contraction(len(found) + 1, result, left, right, {}))
        else:
            size = found[-1].size
            size["abcdefg"[len(size)]] = int(word)
    return found


def selected(text: str) -> list[int]:
    """The numbers that a list of numbers and ranges names.

    >>> selected("1-3,7")
    [1, 2, 3, 7]
    """
    spans = (part.partition("-") for part in text.split(","))
    return [n for low, _, high in spans for n in range(int(low), int(high or low) + 1)]


def measure(case: Contraction, rounds: int, seconds: float) -> dict[str, Any]:
    """Compile, compare, and time the three by turns."""
    import torch

    import tcjit
    from generality.measure import on_quiet_machine
    from tcjit.runtime import timing

    torch.manual_seed(case.number)
    x, u = torch.randn(case.shape(case.left)), torch.randn(case.shape(case.right))
    m, n, k = case.product
    a, b = torch.randn(m, k), torch.randn(k, n)
    record: dict[str, Any] = {"number": case.number, "name": case.name, "equation": case.equation, "product": case.product}
    function = tcjit.define(case.text)["contraction"]
    with torch.no_grad():
        start = time.perf_counter()
        try:
            result = function(x, u)
        except tcjit.TCError as error:
            return record | {"kind": "refused", "error": str(error)}
        record["first_s"] = time.perf_counter() - start
        if (error := sampled_error(case, x, u, result)) > TOLERANCE:
            return record | {"kind": "wrong", "error": f"off by {error:.2g} of the largest magnitude"}
        del result
        calls = {
            "tcjit": partial(function, x, u),
            "mm": partial(torch.mm, a, b),
            "einsum": partial(torch.einsum, case.equation, x, u),
        }
        times = on_quiet_machine(calls, rounds, seconds, reading_s=READING_S, least=1)
    over = {name: statistics.median(timing.ratios(times[name], times["tcjit"])) for name in ("mm", "einsum")}
    middle = {f"{name}_ms": 1e3 * statistics.median(readings) for name, readings in times.items()}
    return record | {"kind": "timed", "over_mm": over["mm"], "over_einsum": over["einsum"]} | middle


def sampled_error(case: Contraction, x: Any, u: Any, result: Any) -> float:
    """The largest error of some elements of the result, drawn at random, over their largest magnitude."""
    import torch

    generator = torch.Generator().manual_seed(case.number)
    spots = {i: torch.randint(case.size[i], (COMPARED,), generator=generator) for i in case.result}
    terms = [i for i in case.left if i not in case.result]
    worst, scale = 0.0, 1e-30
    for part in torch.arange(COMPARED).split(64):
        one, two = (_fixed(t, indices, spots, part, terms) for t, indices in ((x, case.left), (u, case.right)))
        expected = (one.double() * two.double()).sum(1)
        got = result[tuple(spots[i][part] for i in case.result)]
        worst = max(worst, float((got - expected).abs().max()))
        scale = max(scale, float(expected.abs().max()))
    return worst / scale


def _fixed(tensor: Any, indices: str, spots: dict[str, Any], part: Any, terms: list[str]) -> Any:
    """Of so many elements of the result all terms of one operand, as a matrix."""
    kept = [d for d, i in enumerate(indices) if i not in terms]
    order = kept + [indices.index(i) for i in terms]
    moved = tensor.permute(order)
    return moved[tuple(spots[indices[d]][part] for d in kept)].reshape(len(part), -1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=selected, default=list(range(1, 49)), help="numbers and ranges of them")
    parser.add_argument("--most", type=int, default=1 << 30, help="no extent above this")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0, help="no more rounds of a contraction after so long")
    parser.add_argument("--json", type=Path, help="a file for all rows, written after each")
    given = parser.parse_args()
    # read when torch is imported, so before that
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    import machine

    records = []
    print(f"{machine.name()}, one thread")
    times = " ".join(f"{name:>9}" for name in ("tcjit ms", "mm ms", "einsum ms"))
    print(f"{'':>2} {'contraction':<18} {'rows x columns x terms':<22} {times} {'mm':>5} {'einsum':>6} first s")
    with tempfile.TemporaryDirectory(prefix="tcjit-tccg-") as folder:
        os.environ["TCJIT_CACHE_DIR"] = folder
        for case in table():
            if case.number in given.only:
                records.append(measure(case.scaled(given.most), given.rounds, given.seconds))
                print(row(records[-1]), flush=True)
                if given.json:
                    given.json.write_text(json.dumps({"machine": machine.describe(), "rows": records}, indent=1) + "\n")
    print(summary(records))
    return 1 if any(record["kind"] == "wrong" for record in records) else 0


def row(record: dict[str, Any]) -> str:
    head = f"{record['number']:>2} {record['name']:<18} {'x'.join(map(str, record['product'])):<22} "
    if record["kind"] != "timed":
        return f"{head}{record['kind'].upper()}: {record['error']}"
    times = " ".join(f"{record[f'{name}_ms']:9.2f}" for name in ("tcjit", "mm", "einsum"))
    return f"{head}{times} {record['over_mm']:5.2f} {record['over_einsum']:6.2f} {record['first_s']:7.2f}"


def summary(records: list[dict[str, Any]]) -> str:
    """The median of the time of the equal product over tcjit's, and the geometric mean of einsum's over tcjit's."""
    from tcjit.runtime import timing

    done = [r for r in records if r["kind"] == "timed"]
    lines = [f"{len(done)} timed, {len(records) - len(done)} not"]
    if done:
        lines.append(
            f"mm of equal arithmetic over tcjit: median {statistics.median(r['over_mm'] for r in done):.3f}; "
            f"einsum over tcjit: geometric mean {timing.geometric_mean([r['over_einsum'] for r in done]):.3f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
