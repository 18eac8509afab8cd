"""Operators that were written by hand, as researchers would, beside eager PyTorch and ``torch.compile``:
``python benchmarks/generality/written.py [--only dft_power,swin_attention_probs] [--quick] [--backward]``.

Results are compared with PyTorch's, in the same type. The exit status is 1 where one differs. ``--backward`` times the gradients of the
operators that have some, beside eager PyTorch's alone. ``--sizes 7`` draws the operators' sizes anew, for that seed: an operator whose
PyTorch form is written for its own sizes is named and left out where that raises an error, or has results of another shape; one whose own
numbers stand in the form, or that picks among equal elements, is named as one that differs. Those that the sizes do not fit are named with
tcjit's error, and counted; any other error ends the run.
"""
from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE.parent), str(HERE.parent / "peers"), str(HERE.parents[1])]

COMPILE_S = 60.0  # the longest that torch.compile may take


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names, with commas between them")
    parser.add_argument("--quick", action="store_true", help="beside eager only")
    parser.add_argument("--backward", action="store_true", help="gradients, beside eager")
    parser.add_argument("--sizes", type=int, metavar="SEED", help="draw the sizes anew")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="of all rounds of an operator together")
    options = parser.parse_args()
    os.environ.setdefault("TCJIT_CACHE_DIR", tempfile.mkdtemp())
    threads = len(os.sched_getaffinity(0))
    os.environ |= {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}  # as for all peers: two threads on one core wait for whole quanta
    import torch

    import tcjit
    from generality.backward import NoGradients, backwards, checked_gradients
    from generality.measure import Settings, in_turns, limited
    from generality.resized import NotResized, resized, shapes
    from generality.written_operators import OPERATORS
    from generality.written_operators.operator import WrittenOperator, several

    unfit = (tcjit.ShapeError, tcjit.GatherError)  # what sizes that were drawn may not fit
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    chosen = [OPERATORS[name] for name in options.only.split(",")] if options.only else list(OPERATORS.values())
    ratios, wrong, refused = {}, [], 0

    def operators() -> Iterator[WrittenOperator]:
        for one in chosen:
            try:
                yield resized(one, options.sizes) if options.sizes is not None else one
            except NotResized as reason:
                print(f"{one.name:30s} {reason}", flush=True)

    print(f"{'operator':30s}{'tcjit us':>10s}{'eager us':>10s}{'compile us':>11s}{'ratio':>8s}")
    for one in operators() if options.backward else ():
        tensors = one.tensors()
        try:
            error, limit = checked_gradients(one, tensors)
        except (NoGradients, *unfit) as none:
            if options.sizes is None and not isinstance(none, NoGradients):
                raise
            print(f"{one.name:30s} {str(none).splitlines()[0][:100]}", flush=True)
            continue
        if not error <= limit:
            wrong.append(one.name)
            print(f"{one.name:30s} WRONG {error:.1e}", flush=True)
            continue
        both = backwards({"tcjit": (tcjit.define(one.text)[one.entry], tensors), "eager": (one.reference, tensors)})
        record = in_turns(dict(both), Settings(rounds=options.rounds, seconds=options.seconds))
        ratios[one.name] = record["ratio"]
        print(f"{one.name:30s}{record['tcjit_us']:10.1f}{record['eager_us']:10.1f}{'-':>11s}{record['ratio']:8.2f}", flush=True)
    with torch.no_grad():
        for one in () if options.backward else operators():
            tensors = one.tensors()
            function = tcjit.define(one.text)[one.entry]
            one.reference(*tensors)  # of PyTorch's first sines some are wrong in the fourth digit, until MKL's threads know the mode
            try:
                result = function(*tensors)
            except unfit as error:
                if options.sizes is None:
                    raise
                refused += 1
                print(f"{one.name:30s} REFUSED {type(error).__name__} {str(error).splitlines()[0][:100]}", flush=True)
                continue
            expected = one.reference(*tensors)
            if options.sizes is not None and shapes(several(result)) != shapes(several(expected)):
                print(f"{one.name:30s} PyTorch's form: results of another shape", flush=True)
                continue
            if not one.error(result, expected) <= one.tolerance:
                wrong.append(one.name)
                print(f"{one.name:30s} WRONG", flush=True)
                continue
            calls = {"tcjit": partial(function, *tensors), "eager": partial(one.reference, *tensors)}
            if not options.quick:
                torch._dynamo.reset()
                compiled = partial(torch.compile(one.reference, dynamic=False), *tensors)
                try:
                    with limited(COMPILE_S):
                        compiled()
                    calls["compile"] = compiled
                except Exception as error:  # another's failure is noted, and does not count
                    print(f"{one.name}: torch.compile: {type(error).__name__}: {error}"[:140])
            record = in_turns(calls, Settings(rounds=options.rounds, seconds=options.seconds))
            ratios[one.name] = record["ratio"]
            other = f"{record['compile_us']:11.1f}" if "compile" in calls else f"{'-':>11s}"
            sizes = f"  {shapes(tensors)}" if options.sizes is not None else ""
            print(f"{one.name:30s}{record['tcjit_us']:10.1f}{record['eager_us']:10.1f}{other}{record['ratio']:8.2f}{sizes}", flush=True)
    ordered = sorted(ratios.values())
    mean = math.exp(sum(map(math.log, ordered)) / len(ordered)) if ordered else 0.0
    low = ordered[len(ordered) // 20] if ordered else 0.0
    below = ", ".join(f"{name} {ratio:.2f}" for name, ratio in sorted(ratios.items(), key=lambda pair: pair[1]) if ratio < 0.93)
    print(f"{len(ordered)} operators: geometric mean {mean:.3f}, 5th percentile {low:.2f}, {len(wrong)} wrong, {refused} refused")
    print(f"below 0.93: {below or 'none'}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
