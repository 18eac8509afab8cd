"""Random TorchScript programs, cut at random: results, inputs and buffers afterwards, and what shares memory must be as without.

`python tests/byoc/fuzz_scripts.py --count 10000 --seed 1` runs many; the same seed gives the same programs.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.byoc.scripts import Toy, defined, partitioned, sharing, tensors_of, text  # noqa: E402

from tcjit.byoc.backends import Backend  # noqa: E402
from tcjit.byoc.graph import Node  # noqa: E402

UNARY = "relu sigmoid tanh neg abs cos".split()
BINARY = "{a} + {b}|{a} * {b}|{a} - 0.5 * {b}|torch.maximum({a}, {b})|torch.mm({a}, {b}) * 0.1|torch.where({a} > {b}, {a}, {b})".split("|")
VIEWS = (
    "{a}.t()|{a}.view(16).view(4, 4)|{a}.transpose(0, 1)|{a}.reshape(2, 8).reshape(4, 4)|{a}.flatten().view({a}.size(0), -1)"
    "|{a}.contiguous()|{a}.unsqueeze(0).squeeze(0)|{a}.expand(4, 4)|torch.dropout({a}, 0.5, False)|{a}[0:4]|{a}.detach()"
    "|{a}.to(torch.float32)"
).split("|")
PARTS = (
    "torch.cat([{a}, {b}], 0)[2:6]|torch.stack([{a}, {b}]).sum(0)|{a}[{i} % 4].unsqueeze(0) + {b}|torch.cat({a}.chunk(2, 0), 0)"
    "|{a}.sum(1, keepdim=True) * 0.1 + {b}|torch.softmax({a}, 1)|torch.nn.functional.linear({a}, self.weight, self.bias)|{a} * self.scale"
    "|{a} + self.table|{a}.select(0, {i} % 4).unsqueeze(1) * {b}|torch.zeros_like({a}) + {i}|{a} + float({i}) / 3.0"
).split("|")
WRITES = (
    "{a}.add_({b})|{a}.mul_(0.5)|{a}.t().add_(0.25)|{a}[1:3].neg_()|{a}.relu_()|{a}[{i} % 4].fill_(0.5)|self.table.add_({a})"
    "|{a}.view(-1)[0:3].zero_()|{a}.copy_({b})|torch.add({a}, {b}, out={a})"
).split("|")
LISTS = "held.append({a})|held[0] = {a}|held = [{a}, {b}]|held = held + [{a}]|{new} = held[i % len(held)]".split("|")
# how a call fails that may run once its tensors come out of regions, which are contiguous
STRIDES = "view size is not compatible"
# and how PyTorch's executor fails of itself, after an `if` that went one way without a loop and then the other way with one
UPSTREAM = "Expected Tensor but got None"
TESTS = "flag|n > {k}|{i} % 2 == 0|bool({a}.sum() > 0.0)|{a}.size(0) > {k}|len(held) > {k}".split("|")


class Program:
    """The text of a random program, from a seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.count = 0
        self.lines = ["def forward(self, x, y, n: int, flag: bool):", "    held = [x]", "    i = n"]
        tensors = self.body(["x", "y"], 1, self.draw.randint(3, 10))
        shown = [self.draw.choice(tensors) for _ in range(self.draw.randint(1, 4))]
        ends = [*shown, "held"] if self.draw.random() < 0.3 else shown
        if self.draw.random() < 0.3:
            ends.append(f"({self.draw.choice(tensors)}, i)")
        self.lines.append(f"    return {ends[0] if len(ends) == 1 else ', '.join(ends)}")
        self.text = "\n".join(self.lines) + "\n"

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def fill(self, form: str, tensors: list[str]) -> str:
        a, b = (self.draw.choice(tensors[-4:] if self.draw.random() < 0.7 else tensors) for _ in range(2))
        return form.format(a=a, b=b, i="i", k=self.draw.randint(0, 4))

    def body(self, tensors: list[str], depth: int, count: int) -> list[str]:
        """Statements; the names of tensors that are known after them."""
        tensors = list(tensors)
        for _ in range(count):
            self.statement(tensors, depth)
        return tensors

    def statement(self, tensors: list[str], depth: int) -> None:
        pad, draw = "    " * depth, self.draw
        kind = draw.choices(
            ("value", "view", "part", "write", "if", "loop", "while", "list", "tuple", "split", "number", "again"),
            (30, 14, 16, 9, 8 * (depth < 4), 5 * (depth < 3), 2 * (depth < 3), 7, 5, 5, 5, 5),
        )[0]
        if kind == "value":
            form = f"torch.{draw.choice(UNARY)}({{a}})" if draw.random() < 0.5 else draw.choice(BINARY)
            self.assign(tensors, form, pad)
        elif kind in ("view", "part"):
            self.assign(tensors, draw.choice(VIEWS if kind == "view" else PARTS), pad)
        elif kind == "write":
            self.lines.append(pad + self.fill(draw.choice(WRITES), tensors))
        elif kind == "again":  # a name gets another value, seen after branches and loops
            self.lines.append(f"{pad}{draw.choice(tensors)} = {self.fill(draw.choice((*BINARY, *VIEWS, *PARTS)), tensors)}")
        elif kind == "number":
            self.lines.append(f"{pad}i = {draw.choice(('i + 1', 'i * 2 % 7', 'n - i', 'held[0].size(0)', 'len(held)'))}")
        elif kind == "list":
            form = draw.choice(LISTS)
            if "{new}" in form:
                tensors.append(self.name())
                form = form.replace("{new}", tensors[-1])
            self.lines.append(pad + self.fill(form, tensors[:-1] or tensors))
        elif kind == "tuple":
            pair, one, other = self.name(), self.name(), self.name()
            self.lines.append(f"{pad}{pair} = {self.fill('({a}, {b})', tensors)}")
            opened = [f"{one}, {other} = {pair}"] if draw.random() < 0.5 else [f"{one} = {pair}[0]", f"{other} = {pair}[1]"]
            self.lines += [pad + each for each in opened]
            tensors += [one, other]
        elif kind == "split":
            one, other, whole = self.name(), self.name(), self.name()
            form = draw.choice(("torch.chunk({a}, 2, 0)", "torch.split({a}, [2, 2])"))
            self.lines.append(f"{pad}{one}, {other} = {self.fill(form, tensors)}")
            self.lines.append(f"{pad}{whole} = torch.cat([{other}, torch.relu({one})], 0)")
            tensors.append(whole)
        else:
            self.nested(tensors, depth, kind)

    def assign(self, tensors: list[str], form: str, pad: str) -> None:
        name = self.name()
        self.lines.append(f"{pad}{name} = {self.fill(form, tensors)}")
        tensors.append(name)

    def nested(self, tensors: list[str], depth: int, kind: str) -> None:
        pad, draw = "    " * depth, self.draw
        if kind == "if":
            result = self.name()
            self.lines.append(f"{pad}if {self.fill(draw.choice(TESTS), tensors)}:")
            inner = self.body(tensors, depth + 1, draw.randint(1, 4))
            self.lines.append(f"{pad}    {result} = {draw.choice(inner)}")
            self.lines.append(f"{pad}else:")
            inner = self.body(tensors, depth + 1, draw.randint(1, 3))
            self.lines.append(f"{pad}    {result} = {draw.choice(inner)}")
            tensors.append(result)
            return
        carried = draw.choice(tensors)
        if kind == "loop":
            self.lines.append(f"{pad}for {self.name()} in range({draw.choice(('2', 'n % 3', '3'))}):")
        else:
            counter = self.name()
            self.lines += [f"{pad}{counter} = 0", f"{pad}while {counter} < 2:", f"{pad}    {counter} = {counter} + 1"]
        inner = self.body(tensors, depth + 1, draw.randint(1, 4))
        self.lines.append(f"{pad}    {carried} = torch.tanh({draw.choice(inner)})")


def model(source: str) -> torch.jit.ScriptModule:
    """A module with two parameters, a buffer and a number, and a program as its forward."""
    draw = torch.Generator().manual_seed(0)
    weight, bias = (torch.nn.Parameter(torch.randn(shape, generator=draw), requires_grad=False) for shape in ((4, 4), (4,)))
    return defined(source, weight=weight, bias=bias, table=torch.randn(4, 4, generator=draw), scale=torch.jit.Attribute(0.5, float))


def inputs(seed: int) -> list[tuple[Any, ...]]:
    """Arguments of two calls."""
    draw = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(4, 4, generator=draw) for _ in range(4)]
    return [(tensors[2 * call], tensors[2 * call + 1], seed % 5 + call, (seed + call) % 2 == 0) for call in range(2)]


def outcome(module: torch.jit.ScriptModule, calls: list[tuple[Any, ...]]) -> list[Any]:
    """What calls give and leave behind, or that they fail."""
    found: list[Any] = []
    for arguments in calls:
        given = [each.clone() if isinstance(each, torch.Tensor) else each for each in arguments]
        try:
            result = module(*given)
        except RuntimeError as error:
            found.append(next((known for known in (STRIDES, UPSTREAM) if known in str(error)), "fails"))
            continue
        tensors = [*tensors_of(given), *tensors_of(result)]
        found.append(([each.clone() for each in tensors], sharing(tensors), [each.clone() for each in module.buffers()], _others(result)))
    return found


def _others(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_others(each) for each in value]
    return "tensor" if isinstance(value, torch.Tensor) else value


def difference(one: list[Any], other: list[Any], tolerance: float) -> str:
    """How two outcomes differ, or nothing."""
    for number, (first, second) in enumerate(zip(one, other)):
        if isinstance(first, str) or isinstance(second, str):
            if first in (second, STRIDES, UPSTREAM):
                continue
            said = [each if isinstance(each, str) else "runs" for each in (first, second)]
            return f"call {number}: {said[0]} without, {said[1]} with"
        if first[3] != second[3] or len(first[0]) != len(second[0]):
            return f"call {number}: {first[3]} without, {second[3]} with"
        for place, (a, b) in enumerate(zip((*first[0], *first[2]), (*second[0], *second[2]))):
            if a.shape != b.shape or a.dtype != b.dtype or not torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True):
                return f"call {number}: tensor {place} differs"
        if first[1] != second[1]:
            return f"call {number}: memory is shared as {first[1]} without, {second[1]} with"
    return ""


def check(seed: int, backend: Backend | None = None, tolerance: float = 0.0) -> tuple[str, int]:
    """What is wrong with the program of a seed once it is cut, nothing if all is well, and the number of its regions."""
    source = Program(seed).text
    original = model(source)
    calls = inputs(seed)
    draw = random.Random(seed)
    share = draw.choice((0.5, 0.8, 1.0))
    verdicts: dict[Node, bool] = {}

    def takes(node: Node) -> bool:
        return verdicts.setdefault(node, draw.random() < share)

    backends = [backend] if backend is not None else [Toy("toy", takes), Toy("other", lambda node: draw.random() < 0.5)]
    made, regions = partitioned(original, calls[0], *backends)
    if not regions and text(made) != text(original):
        return "the graph changed though there is no region", 0
    found = outcome(made, calls)
    wrong = difference(outcome(original, calls), found, tolerance)
    if wrong:  # PyTorch's own optimiser takes what a dropout leaves as it is for new memory, and moves writes across it
        with torch.jit.optimized_execution(False):
            wrong = difference(outcome(model(source), calls), found, tolerance)
    return wrong, len(regions)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32), help="a fresh one by default")
    parser.add_argument("--tcjit", type=int, default=20, help="every so many programs with the backend of tcjit as well, 0 for none")
    asked = parser.parse_args(arguments)
    silence()
    failed = regions = 0
    for number in range(asked.count):
        seed = asked.seed * 1_000_003 + number
        runs: list[Callable[[], tuple[str, int]]] = [lambda seed=seed: check(seed)]  # type: ignore[misc]
        if asked.tcjit and number % asked.tcjit == 0:
            from tcjit.byoc.backends import find

            runs.append(lambda seed=seed: check(seed, find("tcjit"), 1e-4))  # type: ignore[misc]
        for run in runs:
            try:
                wrong, count = run()
            except Exception as error:
                wrong, count = f"{type(error).__name__}: {error}", 0
            regions += count
            if wrong:
                failed += 1
                print(f"seed {seed}: {wrong}\n{Program(seed).text}\n", flush=True)
    print(f"{asked.count} run, {failed} failed, {regions} regions, seed {asked.seed}")
    return 1 if failed else 0


def silence() -> None:
    """The executor's fuser of tensor expressions mixes up branches with and without loops, in plain ATen too: off."""
    torch._C._jit_set_texpr_fuser_enabled(False)
    warnings.simplefilter("ignore")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
