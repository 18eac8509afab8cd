"""The page of a run: the ceilings, one table with a line for each operator, how often tcjit is ahead, what failed."""
from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpu.figures import fraction, ratio, timed

OURS = "tcjit"
CEILINGS = {
    "copy_gbs": ("copy of several GB, read plus written", "GB/s"),
    "ffma_tflops": ("float32 multiply-adds in registers", "TFLOP/s"),
    "fp32_tflops": ("vendor's float32 product, tf32 off", "TFLOP/s"),
    "tf32_tflops": ("vendor's float32 product, tf32 on", "TFLOP/s"),
    "bf16_tflops": ("vendor's bfloat16 product", "TFLOP/s"),
    "launch_us": ("one launch, host", "us"),
    "back_to_back_us": ("from kernel to kernel in a stream", "us"),
    "graph_node_us": ("one kernel of a graph", "us"),
}
MACHINE = {"arch": "", "processors": " multiprocessors", "memory_gb": " GB", "l2_mb": " MB of L2 cache"}
MEANING = """
Microseconds, the median; in brackets the tenth and ninetieth percentile of tcjit's. *least*: what the float32 multiply-adds (in bfloat16
the vendor's product) or the speed of a copy allow; *of ceiling*: that time over tcjit's, *best other*: over the fastest other's. *over X*:
how many times faster tcjit is than X. *error*: norm of tcjit's error over the norm of the result, against float64. *first*: seconds from
source to the first checked result, caches empty; Triton's holds the search among its configurations, tcjit is not tuned. *tcjit-options*
is the fastest of a few fixed sets of options, and no other.
`g`: from a CUDA graph of many calls, each on inputs of its own.
""".strip()


def number(value: float) -> str:
    """Three digits that count.

    >>> [number(x) for x in (0.1234, 12.345, 1234.5)]
    ['0.123', '12.3', '1234']
    """
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _row(*columns: str) -> str:
    return "| " + " | ".join(columns) + " |"


def _header(*columns: str) -> Iterator[str]:
    yield _row(*columns)
    yield _row(*["---"] * len(columns))


def cell(found: Mapping[str, Any] | None) -> str:
    """A contender's time, or why there is none."""
    if not found or "skipped" in found:
        return ""
    if "us" not in found:
        return "ERR"
    return number(found["us"]) + ("" if found["correct"] else " WRONG")


def sizes(row: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={extent}" for name, extent in row["dims"].items())


def contenders(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """All but tcjit as it is by default, in the order of the results."""
    return [name for name in dict.fromkeys(name for row in rows for name in row["contenders"]) if name != OURS]


def main_table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rivals = contenders(rows)
    compiling = [name for name in (*rivals, OURS) if name != "eager"]
    yield from _header(
        "operator", "sizes", "least", *rivals, OURS, "of ceiling", "best other", *(f"over {name}" for name in rivals), "error",
        *(f"first {name}, s" for name in compiling),
    )  # fmt: skip
    for row in rows:
        found = row["contenders"]
        own = found.get(OURS, {})
        spread = f" ({number(own['p10'])}-{number(own['p90'])})" if timed(own) else ""
        others = [part for name in rivals if not name.startswith(OURS) and (part := fraction(row, name)) is not None]
        mark = " `g`" if "graph of" in own.get("how", "") else ""
        yield _row(
            row["name"],
            sizes(row) + (f" {row['dtype']}" if row.get("dtype", "float32") != "float32" else ""),
            number(row["floor_us"]) if row.get("floor_us") else "",
            *(cell(found.get(name)) for name in rivals),
            (cell(own) or ("ERR" if "error" in row else "")) + spread + mark,
            f"{ours:.2f}" if (ours := fraction(row, OURS)) is not None else "",
            f"{max(others):.2f}" if others else "",
            *(f"{times:.2f}" if (times := ratio(row, name)) else "" for name in rivals),
            f"{own['error_norm']:.1e}" if isinstance(own.get("error_norm"), float) else str(own.get("error_norm", "")),
            *(f"{first:.1f}" if (first := found.get(name, {}).get("first_s")) is not None else "" for name in compiling),
        )


def ceilings(found: Mapping[str, Any]) -> Iterator[str]:
    yield from _header("ceiling", "measured", "")
    for name, (meaning, unit) in CEILINGS.items():
        value = found.get(name)
        if value is not None:
            yield _row(meaning, *((number(value), unit) if isinstance(value, float) else (value.splitlines()[0], "")))


def standing(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """How often tcjit is ahead of each rival, by suite; a result that is missing or wrong is a loss where the rival has one."""
    rivals = contenders(rows)
    yield from _header("suite", *(f"faster than {name}" for name in rivals), *(f"geometric mean over {name}" for name in rivals))
    for suite in dict.fromkeys(row["suite"] for row in rows):
        of_suite = [row for row in rows if row["suite"] == suite]
        counts, means = [], []
        for name in rivals:
            against = [row for row in of_suite if timed(row["contenders"].get(name)) is not None]
            times = [value for row in against if (value := ratio(row, name)) is not None]
            counts.append(f"{sum(value > 1 for value in times)} of {len(against)}" if against else "")
            means.append(f"{statistics.geometric_mean(times):.2f}" if times else "")
        yield _row(suite, *counts, *means)


def failures(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each contender that failed or was wrong, and for each row that could not be measured."""
    for row in rows:
        if "error" in row:
            yield f"- {row['name']}: {_short(row['error'])}"
        for name, found in row["contenders"].items():
            if "error" in found:
                yield f"- {row['name']}, {name}: {_short(found['error'])}"
            elif found.get("correct") is False:
                yield f"- {row['name']}, {name}: wrong, the error's norm is {found['error_norm']} of the result's"


def _short(words: str, most: int = 300) -> str:
    line = " ".join(words.split())
    return line if len(line) <= most else line[:most] + "..."


def skipped(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Who was not measured, and why: one line for each reason that holds everywhere."""
    for name in contenders(rows):
        reasons = {row["contenders"][name].get("skipped") for row in rows if name in row["contenders"]}
        if len(reasons) == 1 and (reason := reasons.pop()):
            yield f"{name} was skipped: {reason}."


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    meta, rows = results["meta"], results["rows"]
    machine = meta.get("machine", {})
    facts = [f"{machine[key]}{unit}" for key, unit in MACHINE.items() if key in machine]
    versions = ", ".join(f"{name} {version}" for name, version in machine.get("versions", {}).items())
    about = [
        "; ".join([*([", ".join(facts)] if facts else []), versions, meta["time"]]) + ".",
        f"tf32 is {'on' if meta['tf32'] else 'off'} for everyone; inputs are normal and fresh, results are checked against float64.",
        *skipped(rows),
    ]
    if meta.get("not_reached"):
        about.append("No time was left for " + ", ".join(meta["not_reached"]) + ".")
    sections = [(f"# {machine.get('device', 'no device')}", about)]
    if results["ceilings"]:
        sections.append(("## Ceilings", list(ceilings(results["ceilings"]))))
    if rows:
        sections += [("## Operators", [MEANING, "", *main_table(rows)]), ("## Standing", list(standing(rows)))]
    if failed := list(failures(rows)):
        sections.append(("## Failures", failed))
    return "\n\n".join(title + "\n\n" + "\n".join(lines) for title, lines in sections) + "\n"


def line(row: Mapping[str, Any]) -> str:
    """A row for a terminal."""
    parts = [f"{name} {cell(found) or 'skipped'}" for name, found in row["contenders"].items()]
    part = fraction(row, OURS)
    reached = [f"{part:.2f} of ceiling"] if part is not None else []
    trouble = [_short(row["error"], 80)] if "error" in row else []
    return f"{row['name']:20s} " + "  ".join([*parts, *reached, *trouble])
