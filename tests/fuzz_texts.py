"""Mutated texts of programs: reading each gives a program or a TCError, within five seconds of the processor.

    python tests/fuzz_texts.py [--texts 100000] [--seed S]

prints ``N texts, M failures, slowest T s, seed S``, and before that each text that failed; the status is then 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

HOME = Path(__file__).resolve().parent
sys.path[:0] = [str(HOME.parent), str(HOME)]

from support.fuzz.mutated_texts import mutated, reading_failure  # noqa: E402


def run(texts: int, seed: int) -> tuple[list[str], float]:
    """What failed, with its text; the seconds of the processor that the slowest took."""
    failures, slowest = [], 0.0
    for number in range(texts):
        text = mutated(random.Random(f"{seed} {number}"))
        start = time.process_time()
        failure = reading_failure(text)
        slowest = max(slowest, time.process_time() - start)
        if failure:
            failures.append(f"text {number}: {failure}\n{text}")
    return failures, slowest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    given = parser.parse_args()
    failures, slowest = run(given.texts, given.seed)
    print("\n".join(failures[:20]), end="\n" if failures else "")
    print(f"{given.texts} texts, {len(failures)} failures, slowest {slowest:.2f} s, seed {given.seed}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
