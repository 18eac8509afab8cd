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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from generality.measure import Settings
    from generality.written_operators.operator import WrittenOperator

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

    from generality.measure import Settings

    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    run = Run(options.quick, options.sizes, Settings(rounds=options.rounds, seconds=options.seconds))
    print(f"{'operator':30s}{'tcjit us':>10s}{'eager us':>10s}{'compile us':>11s}{'ratio':>8s}")
    for one in run.operators(options.only):
        if options.backward:
            run.gradients(one)
        else:
            with torch.no_grad():
                run.results(one)
    print(run.summary())
    return bool(run.wrong)


@dataclass
class Run:
    """The operators that are timed: ``quick``: beside eager alone; ``sizes``: the seed of others than their own, if any."""

    quick: bool
    sizes: int | None
    settings: Settings
    ratios: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    refused: int = 0

    def operators(self, names: str) -> Iterator[WrittenOperator]:
        """Those of some names, all where there are none; who cannot be resized is named."""
        from generality.resized import NotResized, resized
        from generality.written_operators import OPERATORS

        for one in [OPERATORS[name] for name in names.split(",")] if names else OPERATORS.values():
            try:
                yield resized(one, self.sizes) if self.sizes is not None else one
            except NotResized as reason:
                self.tell(one, str(reason))

    def gradients(self, one: WrittenOperator) -> None:
        """Check and time the gradients of an operator that has some."""
        import tcjit
        from generality.backward import NoGradients, backwards, checked_gradients
        from generality.measure import in_turns

        tensors = one.tensors()
        try:
            error, limit = checked_gradients(one, tensors)
        except NoGradients as none:
            self.tell(one, _line(none))
            return
        except (tcjit.ShapeError, tcjit.GatherError) as unfit:
            self.refuse(one, unfit)
            return
        if not error <= limit:
            self.differs(one, f" {error:.1e}")
            return
        both = backwards({"tcjit": (tcjit.define(one.text)[one.entry], tensors), "eager": (one.reference, tensors)})
        self.keep(one, in_turns(dict(both), self.settings))

    def results(self, one: WrittenOperator) -> None:
        """Check and time the results of an operator."""
        import tcjit
        from generality.measure import in_turns
        from generality.resized import shapes
        from generality.written_operators.operator import several

        tensors = one.tensors()
        function = tcjit.define(one.text)[one.entry]
        one.reference(*tensors)  # of PyTorch's first sines some are wrong in the fourth digit, until MKL's threads know the mode
        try:
            result = function(*tensors)
        except (tcjit.ShapeError, tcjit.GatherError) as unfit:
            self.refuse(one, unfit)
            return
        expected = one.reference(*tensors)
        if self.sizes is not None and shapes(several(result)) != shapes(several(expected)):
            self.tell(one, "PyTorch's form: results of another shape")
            return
        if not one.error(result, expected) <= one.tolerance:
            self.differs(one)
            return
        calls: dict[str, Callable[[], Any]] = {"tcjit": partial(function, *tensors), "eager": partial(one.reference, *tensors)}
        if not self.quick and (compiled := _compiled(one, tensors)) is not None:
            calls["compile"] = compiled
        self.keep(one, in_turns(calls, self.settings), f"  {shapes(tensors)}" if self.sizes is not None else "")

    def tell(self, one: WrittenOperator, what: str) -> None:
        print(f"{one.name:30s} {what}", flush=True)

    def refuse(self, one: WrittenOperator, error: Exception) -> None:
        """Count an operator that sizes which were drawn do not fit; with its own sizes it is an error."""
        if self.sizes is None:
            raise error
        self.refused += 1
        self.tell(one, f"REFUSED {type(error).__name__} {_line(error)}")

    def differs(self, one: WrittenOperator, by: str = "") -> None:
        self.wrong.append(one.name)
        self.tell(one, f"WRONG{by}")

    def keep(self, one: WrittenOperator, record: Mapping[str, Any], sizes: str = "") -> None:
        self.ratios[one.name] = record["ratio"]
        other = f"{record['compile_us']:11.1f}" if "compile_us" in record else f"{'-':>11s}"
        print(f"{one.name:30s}{record['tcjit_us']:10.1f}{record['eager_us']:10.1f}{other}{record['ratio']:8.2f}{sizes}", flush=True)

    def summary(self) -> str:
        ordered = sorted(self.ratios.values())
        mean = math.exp(sum(map(math.log, ordered)) / len(ordered)) if ordered else 0.0
        low = ordered[len(ordered) // 20] if ordered else 0.0
        below = ", ".join(f"{name} {ratio:.2f}" for name, ratio in sorted(self.ratios.items(), key=lambda pair: pair[1]) if ratio < 0.93)
        counts = f"{len(self.wrong)} wrong, {self.refused} refused"
        return f"{len(ordered)} operators: geometric mean {mean:.3f}, 5th percentile {low:.2f}, {counts}\nbelow 0.93: {below or 'none'}"


def _line(error: Exception) -> str:
    return str(error).splitlines()[0][:100]


def _compiled(one: WrittenOperator, tensors: Sequence[torch.Tensor]) -> Callable[[], Any] | None:
    """PyTorch's form behind its compiler; None where that fails, or takes too long, which is noted, and does not count."""
    import torch

    from generality.measure import limited

    torch._dynamo.reset()
    compiled = partial(torch.compile(one.reference, dynamic=False), *tensors)
    try:
        with limited(COMPILE_S):
            compiled()
    except Exception as error:
        print(f"{one.name}: torch.compile: {type(error).__name__}: {error}"[:140])
        return None
    return compiled


if __name__ == "__main__":
    sys.exit(main())
