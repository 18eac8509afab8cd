"""Every fault in every subject (see fuzz/faults.py), each judged by the proofs and by the ring of its language; prints who sees which.

    python tests/mutations.py [--jobs 2] [--language cuda] [subject ...]

A fault that nobody sees must be one of those that, for a reason known beforehand, may be none. Any other is listed under the table, and
the exit status is then 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

HOME = Path(__file__).resolve().parent
sys.path[:0] = [str(HOME.parent), str(HOME)]

if TYPE_CHECKING:
    from support.fuzz.faults import Mutant, Verdict

Judgement = tuple[str, str, str, str, str, "Verdict"]  # subject, language, fault, where, why it may be idle, and what was said
HEAD = ["fault", "mutants", "no fault", "proofs", "host", "host's results", "oclgrind", "its results", "nobody"]


def judge(subject: str, language: str) -> list[Judgement]:
    """All faults of one subject in one language."""
    from support.fuzz.faults import judged, of_mapping
    from support.fuzz.text_faults import of_text

    mutants: Iterable[Mutant] = [*of_mapping(subject, language), *of_text(subject, language)]
    return [(m.subject, m.language, m.fault, m.where, m.idle, judged(m)) for m in mutants]


def table(found: Iterable[Judgement]) -> str:
    """Per kind of fault: how many, how many are none, and how many each ring sees; a mutant of a mapping is seen by several."""
    rows: dict[str, Counter[str]] = {}
    for _, language, fault, _, idle, verdict in found:
        row = rows.setdefault(fault, Counter())
        ring = "host" if language == "cuda" else "oclgrind"
        row["mutants"] += 1
        row["proofs"] += bool(verdict.proof)
        row[ring] += bool(verdict.refused)
        row["host's results" if language == "cuda" else "its results"] += bool(verdict.differs)
        row["no fault"] += not verdict.caught and bool(idle)
        row["nobody"] += not verdict.caught and not idle
    whole = sum(rows.values(), Counter())
    lines = [HEAD, ["---"] * len(HEAD)]
    lines += [[fault, *(str(row[name]) for name in HEAD[1:])] for fault, row in [*sorted(rows.items(), key=_order), ("all", whole)]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _order(row: tuple[str, Counter[str]]) -> tuple[bool, str]:
    return row[0].startswith("text"), row[0]


def main() -> int:
    from support.subjects import LANGUAGES, SUBJECTS, watched

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--language", choices=[*LANGUAGES], help="only this one")
    parser.add_argument("subjects", nargs="*", default=[], choices=[*SUBJECTS, []], help="only these programs")
    options = parser.parse_args()
    languages = [options.language] if options.language else [*LANGUAGES]
    wanted = [(n, each) for n in options.subjects or SUBJECTS for each in languages if each == "cuda" or watched(n)]
    found: list[Judgement] = []
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for done in as_completed([pool.submit(judge, *one) for one in wanted]):
            found += done.result()
            print(f"{len(found)} mutants, {found[-1][0]} in {found[-1][1]} done", file=sys.stderr, flush=True)
    print(table(found))
    for reason, count in sorted(Counter(idle for *_, idle, verdict in found if idle and not verdict.caught).items()):
        print(f"no fault: {count} times {reason}")
    missed = [one for one in found if not one[4] and not one[5].caught]
    for subject, language, fault, where, *_ in missed:
        print(f"NOBODY sees: {subject} in {language}: {fault}: {where}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
