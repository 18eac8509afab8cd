"""A Markdown page from result files: milliseconds by op and peer, ratios, first calls, tcjit against the best peer, the roofline."""
from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import FOREIGN_LIMIT
from ops import OPS, Op

BASE = "torch_eager"  # ratios are taken to it, inside each run
OURS = "tcjit"
GOAL = 3.0  # times the best peer
TIE = 1.05


@dataclass(frozen=True)
class Ceilings:
    """What the machine can do at most, as micro/ceil measured it."""

    gflops: float
    bandwidths: tuple[tuple[float, float], ...]  # working set in bytes, GB/s; ascending

    @classmethod
    def read(cls, file: Path, threads: int) -> Ceilings | None:
        """From micro/ceil's lines for that many threads; None where the file or such lines are missing."""
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        speeds = [line["best"] for line in lines if line["name"].startswith("fma_fp32") and line["name"].endswith(f"_{threads}T")]
        rates = [
            (float(line["name"].removeprefix("bw_ws").partition("KB")[0]) * 1024, max(line["triad"], line["triad_nt"]))
            for line in lines
            if line["name"].startswith("bw_ws") and line["name"].endswith(f"_{threads}T")
        ]
        return cls(max(speeds), tuple(sorted(rates))) if speeds and rates else None

    def roofline_ms(self, op: Op) -> float:
        """The least time: arithmetic at full speed, or compulsory traffic at the bandwidth of the memory that holds it."""
        fitting = [rate for size, rate in self.bandwidths if size >= op.bytes]
        rate = fitting[0] if fitting else self.bandwidths[-1][1]
        return max(op.flops / self.gflops, op.bytes / rate) / 1e6


@dataclass(frozen=True)
class Cell:
    """One op on one peer, over all files given."""

    ms: float | None  # None: not measured
    dirty: bool = False  # too few clean rounds
    correct: bool = True
    ratio: float | None = None  # to BASE in the same run
    first_s: float | None = None  # build and first call
    percall_us: float | None = None
    kind: str = ""  # why there is no time

    def __str__(self) -> str:
        if self.ms is None:
            return {"": "", "unsupported": "n/a"}.get(self.kind, "ERR")
        return milliseconds(self.ms) + ("~" if self.dirty else "") + ("" if self.correct else " WRONG")


NOTHING = Cell(None)
Cells = dict[str, dict[str, Cell]]


def milliseconds(ms: float) -> str:
    digits = 0 if ms >= 100 else 1 if ms >= 10 else 2 if ms >= 1 else 3
    return f"{ms:.{digits}f}"


def robust(record: dict[str, Any] | None) -> tuple[float | None, bool]:
    """Milliseconds, and whether they are dirty: the median of the clean rounds, else of the three fastest."""
    rounds = (record or {}).get("rounds") or []
    if not rounds or record is None or not record["ok"]:
        return None, True
    clean = [one["med"] for one in rounds if one["foreign"] < FOREIGN_LIMIT]
    if len(clean) >= 2:
        return statistics.median(clean) * 1e3, False
    return statistics.median(sorted(one["med"] for one in rounds)[:3]) * 1e3, True


def cell(records: Sequence[tuple[dict[str, Any], dict[str, Any] | None]]) -> Cell:
    """One peer's records of one op, each with BASE's of the same run, joined: the median over the clean runs (never the fastest
    run: that would favour peers measured more often), ratios taken inside each run and their median then."""
    measured = []
    for record, base in records:
        ms, dirty = robust(record)
        base_ms, base_dirty = robust(base)
        if ms is not None:
            measured.append((ms, dirty, ms / base_ms if base_ms else None, dirty or base_dirty, record))
    if not measured:
        first = records[0][0]
        first_s = first["build_s"] + first["first_call_s"] if first["ok"] else None
        return Cell(None, kind=first.get("kind", ""), first_s=first_s)
    used = [one for one in measured if not one[1]] or measured
    ratios = [one[2] for one in used if one[2] and not one[3]] or [one[2] for one in used if one[2]]
    record = used[0][4]
    return Cell(
        ms=statistics.median(one[0] for one in used),
        dirty=used[0][1],
        correct=all(one[4]["correct"] for one in measured),
        ratio=statistics.median(ratios) if ratios else None,
        first_s=measured[0][4]["build_s"] + measured[0][4]["first_call_s"],
        percall_us=record.get("percall_us"),
    )


def join(runs: Sequence[dict[str, Any]]) -> Cells:
    """Cells by op and peer, ops in the order of the registry."""
    cells: Cells = {}
    for name in OPS:
        seen = [run["ops"][name] for run in runs if name in run["ops"]]
        for peer in dict.fromkeys(peer for records in seen for peer in records):
            pairs = [(records[peer], records.get(BASE)) for records in seen if peer in records]
            cells.setdefault(name, {})[peer] = cell(pairs)
    return cells


def fastest(row: dict[str, Cell], peers: Iterable[str]) -> tuple[str, float] | None:
    """The peer with the least time among those with a right result."""
    times = [(one.ms, peer) for peer in peers if (one := row.get(peer, NOTHING)).ms is not None and one.correct]
    return (min(times)[1], min(times)[0]) if times else None  # type: ignore[type-var,return-value]


def line(*columns: str) -> str:
    return "| " + " | ".join(columns) + " |"


def header(*columns: str) -> Iterator[str]:
    yield line(*columns)
    yield line(*["---"] * len(columns))


def times(cells: Cells, peers: Sequence[str], ceilings: Ceilings | None) -> Iterator[str]:
    yield from header("op", *peers, "best", *(["roofline ms", "best/roof"] if ceilings else []))
    for name, row in cells.items():
        best = fastest(row, peers)
        if best is None:
            yield line(name, *(str(row.get(peer, NOTHING)) for peer in peers), "", *(["", ""] if ceilings else []))
            continue
        winner, ms = best
        shown = [f"**{row[peer]}**" if peer == winner else str(row.get(peer, NOTHING)) for peer in peers]
        ties = [p for p in peers if p != winner and (one := row.get(p, NOTHING)).ms is not None and one.correct and one.ms < TIE * ms]
        columns = [winner + (f" (tie: {', '.join(ties)})" if ties else "")]
        if ceilings:
            roof = ceilings.roofline_ms(OPS[name])
            columns += ["", ""] if name == "tiny" else [milliseconds(roof), f"{100 * roof / ms:.0f}%"]
        yield line(name, *shown, *columns)


def against_peers(cells: Cells, peers: Sequence[str]) -> Iterator[str]:
    """tcjit's time over the best other peer's, and how many ops are within the goal."""
    rivals = [peer for peer in peers if peer != OURS]
    within = ahead = compared = 0
    yield from header("op", f"{OURS} ms", "best peer", "its ms", "ratio", f"within {GOAL:g}x")
    for name, row in cells.items():
        best, ours = fastest(row, rivals), row.get(OURS, NOTHING)
        if best is None:
            continue
        compared += 1
        if ours.ms is None or not ours.correct:
            yield line(name, str(ours), best[0], milliseconds(best[1]), "", "no")
            continue
        ratio = ours.ms / best[1]
        within += ratio <= GOAL
        ahead += ratio <= 1
        yield line(name, str(ours), best[0], milliseconds(best[1]), f"{ratio:.2f}", "yes" if ratio <= GOAL else "no")
    yield ""
    yield f"{OURS} is within {GOAL:g}x of the best peer on {within} of {compared} ops, and ahead on {ahead}."


def ratios(cells: Cells, peers: Sequence[str]) -> Iterator[str]:
    yield from header("op", *peers)
    for name, row in cells.items():
        yield line(name, *(f"{ratio:.2f}" if (ratio := row.get(peer, NOTHING).ratio) else "" for peer in peers))


def first_calls(cells: Cells, peers: Sequence[str]) -> Iterator[str]:
    yield from header("op", *peers)
    for name, row in cells.items():
        yield line(name, *("" if (first := row.get(peer, NOTHING).first_s) is None else f"{first:.2f}" for peer in peers))


def per_peer(cells: Cells, peers: Sequence[str], known: dict[str, Any]) -> Iterator[str]:
    yield from header("peer", "versions", "start and import, s", "median first call, s", "longest", "per call of tiny, us")
    for peer in peers:
        facts = known[peer]
        if not facts["ok"]:
            yield line(peer, "skipped: " + facts["error"], "", "", "", "")
            continue
        firsts = [one.first_s for row in cells.values() if (one := row.get(peer, NOTHING)).first_s is not None]
        percall = cells.get("tiny", {}).get(peer, NOTHING).percall_us
        yield line(
            peer,
            ", ".join(f"{name} {version}" for name, version in facts["versions"].items()),
            f"{facts['start_s']:.2f}",
            f"{statistics.median(firsts):.2f}" if firsts else "",
            f"{max(firsts):.2f}" if firsts else "",
            f"{percall:.1f}" if percall else "",
        )


def page(files: Sequence[Path], ceilings_file: Path) -> str:
    """The whole page for one or more result files."""
    runs = [json.loads(file.read_text()) for file in files]
    known: dict[str, Any] = {}
    for run in runs:
        known = {**run["peers"], **known}
    cells = join(runs)
    peers = [peer for peer in known if any(peer in row for row in cells.values())]
    meta = runs[0]["meta"]
    ceilings = Ceilings.read(ceilings_file, meta["threads"])
    facts = meta["machine"]
    sections: list[tuple[str, Iterable[str]]] = [
        (
            f"# {facts['cpu']}, {facts['cores']} cores",
            [
                f"{facts['memory_gb']} GB, {facts['system']}; {meta['threads']} threads, float32, {meta['rounds']} interleaved rounds"
                + (", warm heap" if meta["warm_heap"] else "")
                + f", {meta['time']}.",
                "Median milliseconds of clean rounds; `~`: other processes in too many rounds. Every result is checked against float64.",
                "Quote only ratios from one run; gaps under 15 % are ties.",
            ],
        ),
        ("## Milliseconds", times(cells, peers, ceilings)),
    ]
    if OURS in peers and len(peers) > 1:
        sections.append(("## tcjit against the best peer", against_peers(cells, peers)))
    if BASE in peers:
        sections.append((f"## Time over {BASE}'s in the same run", ratios(cells, peers)))
    sections += [
        ("## First call, build included, seconds", first_calls(cells, peers)),
        ("## Peers", per_peer(cells, list(known), known)),
    ]
    return "\n\n".join(title + "\n\n" + "\n".join(lines) for title, lines in sections) + "\n"
