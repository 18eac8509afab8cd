"""What a run says: a line per operator, and at its end means, percentiles and the worst."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tcjit.runtime import timing

Record = dict[str, Any]
HEADER = " ".join(
    [f"{'operator':<28}", *(f"{name + ' us':>10}" for name in ("tcjit", "eager", "compile")), f"{'ratio':>6}"]
    + [f"{'floor us':>10}", f"{'bound':<10}", f"{'pool':<4}", f"{'first s':>7}", " name"]
)
KINDS = ("timed", "checked", "refused", "wrong", "failed")
WORST = 10
FOREIGN_LIMIT = 0.12  # of a core: a row whose contenders shared the machine with more than that bears a ~


def line(record: Record) -> str:
    """One row of the table; what kept an operator from being timed in place of its times."""
    dirty = "~" if record.get("foreign", 0.0) > FOREIGN_LIMIT else ""
    head = f"{record['id'] + dirty:<28} "
    if record["kind"] != "timed":
        return f"{head}{record['kind'].upper()} {_first_line(record.get('error', ''))}  {record['name']}"
    times = " ".join(_micros(record.get(f"{who}_us")) for who in ("tcjit", "eager", "compile"))
    ratio = f"{'-':>6}" if record["ratio"] is None else f"{record['ratio']:6.{2 if record['ratio'] >= 0.1 else 4}f}"
    pooled = "yes" if record["pooled"] else "no"
    floor = f"{_micros(record['floor_us'])} {record['bound']:<10}"
    return f"{head}{times} {ratio} {floor} {pooled:<4} {record['first_s']:7.2f}  {record['name']}"


def _micros(value: float | None) -> str:
    return f"{'-':>10}" if value is None else f"{value:10.1f}" if value < 1e4 else f"{value:10.0f}"


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def timed(records: Sequence[Record]) -> list[Record]:
    return [r for r in records if r["kind"] == "timed" and r.get("ratio") is not None]


def statistics(records: Sequence[Record]) -> Record:
    """Geometric mean and 5th percentile of the ratios, how many are low; a refused operator counts as 0 but in the means."""
    done = timed(records)
    refused = [r for r in records if r["kind"] == "refused"]
    ratios = sorted([0.0] * len(refused) + [r["ratio"] for r in done])
    kinds = [r["kind"] for r in records]
    result: Record = {kind: kinds.count(kind) for kind in KINDS}
    result["dirty"] = sum(r.get("foreign", 0.0) > FOREIGN_LIMIT for r in done)
    if done:
        families = sorted({r["family"] for r in done})
        result |= {
            "mean": timing.geometric_mean([r["ratio"] for r in done]),
            "fifth_percentile": timing.percentile(ratios, 0.05),
            "below_0.75": sum(ratio < 0.75 for ratio in ratios),
            "below_0.4": sum(ratio < 0.4 for ratio in ratios),
            "families": {name: timing.geometric_mean([r["ratio"] for r in done if r["family"] == name]) for name in families},
        }
    return result


def worst(records: Sequence[Record], count: int = WORST) -> list[Record]:
    """Those with the least ratio, the least first."""
    return sorted(timed(records), key=lambda r: float(r["ratio"]))[:count]


def details(record: Record) -> str:
    """An operator with its definition, sizes, options and plan."""
    lines = [line(record), *record["text"].splitlines(), "arguments: " + ", ".join(record["arguments"])]
    if "plan" in record:
        lines.append(f"options: {record['options'] or 'the defaults'}; {record['resources']}")
        lines += [f"plan: {way}" for way in record["plan"]]
    return "\n    ".join(lines)


def summary(records: Sequence[Record]) -> str:
    """The end of the report."""
    found = statistics(records)
    parts = [", ".join(f"{found[kind]} {kind}" for kind in KINDS)]
    for kind in ("wrong", "failed", "refused"):
        parts += [f"{kind.upper()}: {details(r)}\n    {r['error']}" for r in records if r["kind"] == kind]
    if "mean" not in found:
        return "\n".join(parts)
    means = sorted(found["families"].items(), key=lambda item: float(item[1]))
    return "\n".join([
        *parts,
        f"ratio of the best peer's time to tcjit's: geometric mean {found['mean']:.3f}, 5th percentile {found['fifth_percentile']:.3f}, "
        f"{found['below_0.75']} below 0.75, {found['below_0.4']} below 0.4; {found['dirty']} timed while others used the machine (~)",
        "by family: " + ", ".join(f"{name} {mean:.2f}" for name, mean in means),
        "",
        "the worst:",
        *(details(r) for r in worst(records)),
    ])
