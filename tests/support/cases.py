"""A program with arguments for it: how they are made from seeds, run by the reference, and kept in a file."""
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from support import TESTS
from support.fuzz.options import changed
from tcjit.grammar.ast import Def, Program
from tcjit.grammar.dtypes import DTYPES, FORMATS
from tcjit.grammar.front import read
from tcjit.grammar.infer import specialise
from tcjit.mapping.options import Options
from tcjit.runtime import reference
from tcjit.runtime.numerics import Array, rounded

REGRESSIONS = TESTS / "regressions"
_MARK = "# case: "


@dataclass(frozen=True)
class Fill:
    """How an argument's elements are drawn: ``kind`` is small (integers from low to high, both included), uniform (in [-2, 2]),
    special (uniform with NaN, infinities, zeros of both signs, denormals) or wide (every bit pattern of an integer type)."""

    dtype: str
    kind: str
    seed: int
    low: int = 0
    high: int = 1
    nonzero: bool = False

    def array(self, shape: tuple[int, ...]) -> Array:
        """The elements: floats as float64 that the dtype holds, other types as themselves."""
        rng, dtype = np.random.default_rng(self.seed), DTYPES[self.dtype]
        if dtype.kind == "bool":
            return rng.random(shape) < 0.5
        if dtype.kind != "float":
            low, high = max(self.low, dtype.least), min(self.high, dtype.greatest)
            if self.kind == "wide":
                low, high = dtype.least, dtype.greatest
            values = rng.integers(low, high, shape, dtype=np.dtype(self.dtype), endpoint=True)
            return np.where(values == 0, values.dtype.type(1), values) if self.nonzero else values
        if self.kind == "small":
            return rng.integers(self.low, self.high, shape, endpoint=True).astype(np.float64)
        values = rounded(rng.uniform(-2.0, 2.0, shape), self.dtype)
        if self.kind == "special":
            form = FORMATS[self.dtype]
            odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, form.tiny, -form.tiny, form.greatest, 1.0, -1.0])
            values = np.where(rng.random(shape) < 0.2, rng.choice(odd, shape), values)
        return values


@dataclass(frozen=True)
class Case:
    """The last def of ``text`` is called. ``initial`` fills the outputs passed in through ``out=``; ``exact`` says that every value
    is a small integer; ``faults`` names what may go wrong: gather, division or nothing. A case with ``options`` is mapped by them, and
    threads share even its small loops. ``device`` holds changes to what GPU targets know of theirs, ``dynamic`` sizes left open."""

    text: str
    shapes: Mapping[str, tuple[int, ...]]
    fills: Mapping[str, Fill]
    scalars: Mapping[str, int | float | bool] = field(default_factory=dict)
    initial: Mapping[str, Fill] = field(default_factory=dict)
    exact: bool = False
    faults: str = ""
    options: Options | None = None
    device: Mapping[str, int] = field(default_factory=dict)
    dynamic: tuple[str, ...] = ()

    def inputs(self) -> dict[str, Array]:
        return {name: self.fills[name].array(shape) for name, shape in self.shapes.items()}

    def outputs(self, program: Program) -> dict[str, Array]:
        """What is passed in through ``out=``."""
        return {name: fill.array(program.shape(name)) for name, fill in self.initial.items()}

    def definition(self) -> Def:
        """The def that is called. Raises TCError where the text is not valid."""
        return read(self.text)[-1]

    def program(self) -> Program:
        """Raises TCError where the case is not valid."""
        definition = self.definition()
        return specialise(definition, self.shapes, {n: int(v) for n, v in self.scalars.items() if n in definition.specialised})

    def expected(self, program: Program, checked: bool = True) -> reference.Result:
        return reference.run(program, self.inputs(), self.scalars, self.outputs(program), checked)


def save(case: Case, path: Path, comment: str = "") -> None:
    """Write a case as a program whose comments hold its arguments."""
    facts = {name: value for name, value in asdict(case).items() if name not in ("text", "options")}
    if case.options is not None:
        facts["options"] = changed(case.options)
    note = "".join(f"# {line}\n" for line in comment.splitlines())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{note}{_MARK}{json.dumps(facts)}\n{case.text.rstrip()}\n")


def load(path: Path) -> Case:
    """Read what ``save`` wrote; options that the file does not name have their defaults."""
    lines = path.read_text().splitlines(keepends=True)
    mark = next(i for i, line in enumerate(lines) if line.startswith(_MARK))
    facts = json.loads(lines[mark].removeprefix(_MARK))
    facts["shapes"] = {name: tuple(shape) for name, shape in facts["shapes"].items()}
    for key in ("fills", "initial"):
        facts[key] = {name: Fill(**fill) for name, fill in facts[key].items()}
    facts["dynamic"] = tuple(facts.get("dynamic", ()))
    if "options" in facts:
        facts["options"] = Options.from_dict(facts["options"])
    return Case("".join(lines[mark + 1 :]), **facts)
