"""Random kernels of the kinds that a GPU's mapping distinguishes, with extents that make tiles, partial tiles and several steps.

``draw(rng)`` gives a valid case: a contraction, a convolution, rows, columns, a transposition, a gather, a scatter, windows, or a chain
of two.
``mixed(rng)`` gives one whose tensors and values have types of their own. ``device(rng)`` gives changes to a device that let even small
problems have large tiles, or none.
"""
from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import prod

from support.caches import small_caches
from support.cases import Case, Fill
from tcjit.errors import CheckError, ShapeError
from tcjit.jit.targets import cuda
from tcjit.mapping.machine import Device
from tcjit.runtime import opencl

EXTENTS = (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 32, 33, 40, 48, 63, 64, 65, 96, 100, 127, 128, 129, 160, 200)
LENGTHS = (1, 2, 3, 7, 16, 31, 32, 33, 64, 100, 128, 255, 256, 257, 500, 512, 1000, 1024, 1025, 2048, 3000, 4096, 5000)
DTYPES = ("float32", "float32", "float32", "float16", "bfloat16", "float64", "int32", "int8", "uint8", "int64")
MIXED = {True: ("float32", "float64", "float16", "bfloat16", "int8"), False: ("int32", "int8", "uint8", "int64", "int16")}
ASSIGNMENT = re.compile(r"(?P<head>[^=!+*?]* (?:[-+*]|max|min)?=!? )(?P<value>.*?)(?P<where> where .*)?$")
WORK = 300_000  # instances of one statement
PROCESSORS = (1, 2, 4)


def draw(rng: random.Random) -> Case:
    """A case without options."""
    while True:
        made = _Kernel(rng)
        if rng.choice(FAMILIES)(made):
            return made.case()


def mixed(rng: random.Random) -> Case:
    """A case whose inputs have types of their own, and in which some values are converted. What the language refuses is drawn again."""
    while True:
        made = _Kernel(rng)
        made.mixed = True
        if not rng.choice(FAMILIES)(made):
            continue
        made.body = [made.converted(line) for line in made.body]
        case = made.case()
        with suppress(CheckError, ShapeError):
            definition = case.program().definition
            held = {name: replace(fill, dtype=definition.tensor(name).dtype) for name, fill in case.initial.items()}
            return replace(case, initial=held)


def layers(rng: random.Random) -> Case:
    """Two products under a batch, or of many rows, and what stands between them; for a processor with a small cache, on which they share
    their outer loops."""
    while True:
        made = _Kernel(rng)
        if _layers(made):
            return replace(made.case(), device={"cache_bytes": rng.choice((64, 512, 2048, 8192))})


def sweeps(rng: random.Random) -> Case:
    """What runs row by row, and reductions over the rows; for a processor with a small cache, on which they share chunks of rows."""
    while True:
        made = _Kernel(rng)
        if _sweep(made):
            return replace(made.case(), device={"cache_bytes": rng.choice((64, 2048, 8192))})


def strided(rng: random.Random) -> Case:
    """Sums over the windows of a stride that an element is in, as backwards have them; for a processor with a small cache, on which they
    share their outer loops with what they read."""
    while True:
        made = _Kernel(rng)
        if _strided(made):
            return replace(made.case(), device={"cache_bytes": rng.choice((64, 512, 8192, 1 << 20))})


def device(rng: random.Random) -> dict[str, int]:
    """Fewer processors, so that few blocks are enough for large ones; perhaps smaller blocks and less shared memory."""
    changes = {"processors": rng.choice(PROCESSORS)} if rng.random() < 0.7 else {}
    if rng.random() < 0.15:
        changes["max_threads"] = rng.choice((64, 128, 256))
    if rng.random() < 0.15:
        changes["shared_bytes"] = rng.choice((8192, 16384))
        changes["max_shared_bytes"] = changes["shared_bytes"] * rng.choice((1, 8))
    return changes


@contextmanager
def changed_device(changes: dict[str, int]) -> Iterator[None]:
    """The GPU targets describe their devices with these changes; ``cache_bytes`` is of a core of the CPU, which then fuses small loops."""
    if "cache_bytes" in changes:
        with small_caches(changes["cache_bytes"]):
            yield
        return
    architecture, platform = cuda.described, opencl.describe

    def described(arch: str) -> Device:
        return replace(architecture(arch), **changes)  # type: ignore[arg-type]

    def describe() -> Device:
        return replace(platform(), **changes)  # type: ignore[arg-type]

    if changes:
        cuda.described, opencl.describe = described, describe  # type: ignore[assignment]
    try:
        yield
    finally:
        cuda.described, opencl.describe = architecture, platform  # type: ignore[assignment]


class _Kernel:
    """A def in the making. Sizes have names, and every tensor is drawn by itself."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.params: list[str] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.fills: dict[str, Fill] = {}
        self.initial: dict[str, Fill] = {}
        self.returns = ["Y"]
        self.body: list[str] = []
        self.dtype = rng.choice(DTYPES)
        self.mixed = False  # inputs have types of their own
        self.small = rng.random() < 0.4
        self.sizes: dict[str, int] = {}

    @property
    def floating(self) -> bool:
        return "float" in self.dtype

    def size(self, name: str, among: Sequence[int] = EXTENTS, most: int = 200) -> int:
        self.sizes[name] = self.rng.choice([n for n in among if n <= most])
        return self.sizes[name]

    def fits(self, *names: str, times: int = 1) -> bool:
        return times * prod(self.sizes[n] for n in names) <= WORK

    def tensor(self, name: str, *dims: str | int, dtype: str = "", below: int = 0) -> None:
        """An input; of integers below a bound where there is one."""
        kind = dtype or (self.rng.choice((self.dtype, *MIXED[self.floating])) if self.mixed else self.dtype)
        self.params.append(f"{kind}({', '.join(map(str, dims))}) {name}")
        self.shapes[name] = tuple(d if isinstance(d, int) else self.sizes[d] for d in dims)
        self.fills[name] = self.fill(kind, below)

    def fill(self, kind: str, below: int = 0) -> Fill:
        seed = self.rng.getrandbits(30)
        if below:
            return Fill(kind, "small", seed, 0, below - 1)
        return Fill(kind, "uniform" if "float" in kind and not self.small else "small", seed, -3, 3)

    def converted(self, statement: str) -> str:
        """The same, or its value in another type."""
        parts = ASSIGNMENT.fullmatch(statement)
        if parts is None or self.rng.random() < 0.5:
            return statement
        types = [dtype for dtype in MIXED[self.floating] if not self.floating or "float" in dtype]  # as an integer, a divisor may be zero
        return f"{parts['head']}{self.rng.choice(types)}({parts['value']}){parts['where'] or ''}"

    def operator(self, plain: str = "+") -> str:
        """An update that starts at its identity, or at what the output holds."""
        if self.rng.random() < 0.1 and self.returns[-1] == "Y":
            self.initial["Y"] = self.fill(self.dtype)
            return f"{plain}="
        return f"{plain}=!"

    def permuted(self, *dims: str) -> list[str]:
        chosen = list(dims)
        if self.rng.random() < 0.4:
            self.rng.shuffle(chosen)
        return chosen

    def epilogue(self, left: Sequence[str], near: str) -> None:
        """Statements on the results: a bias, a residual, an activation."""
        at = ", ".join(left)
        for _ in range(self.rng.choice((0, 0, 1, 1, 2))):
            kind = self.rng.choice(("bias", "residual", "activation", "scale"))
            if kind == "bias" and "bias" not in self.shapes:
                self.tensor("bias", near.upper())
                self.body.append(f"Y({at}) = Y({at}) + bias({near})")
            elif kind == "residual" and "R" not in self.shapes:
                self.tensor("R", *(d.upper() for d in left))
                self.body.append(f"Y({at}) = Y({at}) + R({at})")
            elif kind == "activation" and self.floating:
                value = self.rng.choice(("fmax(Y({at}), 0)", "tanh(Y({at}))", "Y({at}) / (1 + exp(-Y({at})))"))
                self.body.append(f"Y({at}) = {value.format(at=at)}")
            else:
                self.body.append(f"Z({at}) = Y({at}) * 2")
                self.returns = ["Y", "Z"] if self.rng.random() < 0.7 or self.initial else ["Z"]
                return

    def case(self) -> Case:
        lines = "".join(f"    {line}\n" for line in self.body)
        text = f"def main({', '.join(self.params)}) -> ({', '.join(self.returns)}) {{\n{lines}}}\n"
        return Case(text, self.shapes, self.fills, {}, self.initial)


def _contraction(k: _Kernel) -> bool:
    """Two or three operands; with batches, in any layout."""
    rng = k.rng
    if k.dtype in ("float16", "bfloat16") and rng.random() < 0.7:  # whole instructions of a tensor core
        for name in "MN":
            k.size(name, (16, 32, 48, 64, 65, 72, 96, 128, 129))
        k.size("K", (16, 32, 48, 64, 80, 128))
    else:
        for name in "MNK":
            k.size(name)
    batch = ["u", "v"][: rng.choice((0, 0, 0, 1, 1, 2))]
    for name in batch:
        k.size(name.upper(), (1, 2, 3, 5))
    terms = ["k"]
    if rng.random() < 0.15:
        k.size("L", (1, 2, 3, 8))
        terms.append("l")
    if not k.fits("M", "N", "K", *(n.upper() for n in [*batch, *terms[1:]])):
        return False
    alone = rng.random() < 0.2  # the second operand is the same for the whole batch
    first = k.permuted(*batch, "m", *terms)
    second = k.permuted(*([] if alone else batch), *terms, "n")
    k.tensor("A", *(d.upper() for d in first))
    k.tensor("B", *(d.upper() for d in second))
    left = k.permuted(*batch, "m", "n")
    backwards = "K - 1 - k" if rng.random() < 0.08 else "k"
    a = ", ".join(backwards if d == "k" else d for d in first)
    value = f"A({a}) * B({', '.join(second)})"
    if rng.random() < 0.1:
        k.tensor("S", "K")
        value += " * S(k)"
    k.body.append(f"Y({', '.join(left)}) {k.operator()} {value}" + (" where k in 0:K" if backwards != "k" else ""))
    k.epilogue(left, rng.choice("mn"))
    return True


def _atoms(k: _Kernel) -> bool:
    """A contraction of halves."""
    k.dtype = k.rng.choice(("float16", "bfloat16"))
    return _contraction(k)


def _convolution(k: _Kernel) -> bool:
    """One or two dimensions of space, with strides, dilation, padding and groups."""
    rng = k.rng
    space = rng.choice((1, 1, 2))
    stride, dilation, pad = rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 2)), rng.choice((0, 0, 1, 2))
    for name in "FC":
        k.size(name, (1, 2, 3, 4, 8, 16, 17, 32, 48))
    k.size("N", (1, 2, 4))
    window = rng.choice((1, 2, 3, 5))
    inside = [rng.choice((1, 2, 5, 7, 8, 14, 16, 30, 33, 64) if space == 1 else (1, 2, 5, 7, 8, 14)) for _ in range(space)]
    reach = [stride * (n - 1) + dilation * (window - 1) + 1 - 2 * pad for n in inside]
    if min(reach) < 1 or prod(inside) * window**space * prod(k.sizes.values()) > WORK:
        return False
    grouped = rng.random() < 0.2
    groups = ["G"] if grouped else []
    if grouped:
        k.size("G", (1, 2, 3))
    k.tensor("X", "N", *groups, "C", *reach)
    k.tensor("W", *groups, "F", "C", *([window] * space))
    letters = ["h", "w"][:space]
    g = ["g"] if grouped else []
    places = [f"{stride} * {d} + {dilation} * k{d}" + (f" - {pad}" if pad else "") for d in letters]
    read = f"X({', '.join(['n', *g, 'c', *places])})"
    if pad:
        test = " && ".join(f"{p} >= 0 && {p} < {extent}" for p, extent in zip(places, reach))
        read = f"({test} ? {read} : 0)"
    left = ["n", *g, "f", *letters]
    ranges = ", ".join(f"{d} in 0:{n}" for d, n in zip(letters, inside))
    weight = f"W({', '.join([*g, 'f', 'c', *(f'k{d}' for d in letters)])})"
    k.body.append(f"Y({', '.join(left)}) {k.operator()} {read} * {weight} where {ranges}")
    if rng.random() < 0.4:
        k.tensor("bias", "F")
        k.body.append(f"Y({', '.join(left)}) = Y({', '.join(left)}) + bias(f)")
    return True


def _rows(k: _Kernel) -> bool:
    """What is done along rows: sums, norms, softmax; several statements that share them."""
    rng = k.rng
    k.size("M", (1, 2, 3, 5, 8, 17, 40, 100, 200))
    k.size("N", LENGTHS, most=5000)
    outer = ["B"] if rng.random() < 0.3 else []
    if outer:
        k.size("B", (1, 2, 3))
    if not k.fits("M", "N", *outer):
        return False
    k.tensor("X", *outer, "M", "N")
    at, row = ", ".join([*(["b"] if outer else []), "m", "n"]), ", ".join([*(["b"] if outer else []), "m"])
    kind = rng.choice(("sum", "both", "least", "place", "softmax", "norm", "scaled", "part"))
    if kind == "sum":
        k.body.append(f"Y({row}) {k.operator()} X({at}) * X({at})")
    elif kind == "both":
        k.body += [f"Y({row}) {k.operator()} X({at})", f"Z({row}) max=! X({at})"]
        k.returns.append("Z")
    elif kind == "least":
        k.body += [f"Z({row}) min=! X({at})", f"Y({at}) = X({at}) - Z({row})"]
    elif kind == "place":
        k.body += [f"t({row}) max=! X({at})", f"Y({row}) min=! (X({at}) == t({row})) ? n : N"]
    elif kind == "part":
        low, high = sorted(rng.sample(range(k.sizes["N"] + 1), 2)) if k.sizes["N"] > 1 else (0, 1)
        if high - low < 1:
            return False
        k.body += [f"Y({row}) {k.operator()} X({at}) where n in {low}:{high}"]
        if rng.random() < 0.5:
            k.body.append(f"Z({at}) = X({at}) + Y({row})")
            k.returns.append("Z")
    elif kind == "scaled" or not k.floating:
        k.tensor("g", "N")
        k.body += [f"t({row}) +=! X({at}) * g(n)", f"Y({at}) = X({at}) * g(n) + t({row})"]
        k.returns += ["t"] if rng.random() < 0.5 else []
    elif kind == "softmax":
        k.body += [f"t({row}) max=! X({at})", f"Y({at}) = exp(X({at}) - t({row}))"]
        k.body += [f"s({row}) +=! Y({at})", f"Y({at}) = Y({at}) / s({row})"]
        k.returns += ["s"] if rng.random() < 0.3 else []
    else:
        k.tensor("g", "N")
        k.body += [f"t({row}) +=! X({at})", f"t({row}) = t({row}) / N", f"v({row}) +=! (X({at}) - t({row})) * (X({at}) - t({row}))"]
        k.body.append(f"Y({at}) = (X({at}) - t({row})) * rsqrt(v({row}) / N + 0.1) * g(n)")
    return True


def _columns(k: _Kernel) -> bool:
    """Reductions across memory, and totals."""
    rng = k.rng
    k.size("M", LENGTHS, most=5000)
    k.size("N")
    if not k.fits("M", "N"):
        return False
    k.tensor("X", "M", "N")
    operator = rng.choice(("+", "+", "max", "min"))
    if rng.random() < 0.3:
        k.body.append(f"Y {k.operator(operator)} X(m, n)")
        return True
    k.body.append(f"Y(n) {k.operator(operator)} X(m, n)")
    if rng.random() < 0.4:
        k.body.append("Z(n) +=! X(m, n) * X(m, n)" if rng.random() < 0.5 else "Z(m, n) = X(m, n) - Y(n)")
        k.returns.append("Z")
    return True


def _transposition(k: _Kernel) -> bool:
    rng = k.rng
    dims = ["a", "b", "c", "d"][: rng.choice((2, 2, 3, 4))]
    for d in dims:
        k.size(d.upper(), EXTENTS if len(dims) < 4 else (1, 2, 3, 5, 16, 33))
    if not k.fits(*(d.upper() for d in dims)):
        return False
    k.dtype = rng.choice((*DTYPES, "bool"))
    k.tensor("X", *(d.upper() for d in dims))
    left = rng.sample(dims, len(dims))
    value = f"X({', '.join(dims)})"
    if k.dtype != "bool" and rng.random() < 0.4:
        other = rng.sample(dims, len(dims))
        k.tensor("Z", *(d.upper() for d in other))
        value += f" + Z({', '.join(other)})"
    k.body.append(f"Y({', '.join(left)}) = {value}")
    if rng.random() < 0.2:
        k.body.append(f"T({', '.join(dims)}) = Y({', '.join(left)})")
        k.returns.append("T")
    return True


def _gather(k: _Kernel) -> bool:
    rng = k.rng
    k.size("E", (1, 3, 9, 50, 200))
    k.size("B", (1, 2, 7, 33, 64))
    k.size("L", (1, 2, 5, 17))
    k.size("D")
    if not k.fits("B", "L", "D"):
        return False
    k.tensor("T", "E", "D")
    kind = rng.choice(("one", "bag", "weighted", "row"))
    index = rng.choice(("int32", "int64"))
    if kind == "one":
        k.tensor("I", "B", dtype=index, below=k.sizes["E"])
        k.body.append("Y(b, d) = T(I(b), d)")
    elif kind == "row":
        k.tensor("I", "B", "L", dtype=index, below=k.sizes["D"])
        k.tensor("J", "B", dtype=index, below=k.sizes["E"])
        k.body.append(f"Y(b) {k.operator(rng.choice(('+', 'max')))} T(J(b), I(b, l))")
    else:
        k.tensor("I", "B", "L", dtype=index, below=k.sizes["E"])
        weight = ""
        if kind == "weighted":
            k.tensor("w", "B", "L")
            weight = " * w(b, l)"
        k.body.append(f"Y(b, d) {k.operator()} T(I(b, l), d){weight}")
        k.epilogue(["b", "d"], "d")
    return True


def _scatter(k: _Kernel) -> bool:
    """Results that data pick: counts, sums and extremes of rows, with batches, of pairs of indices."""
    rng = k.rng
    k.size("V", (1, 3, 9, 50, 200))
    k.size("B", (1, 2, 7, 33, 64))
    k.size("L", (1, 2, 5, 17))
    k.size("D", (1, 3, 16, 33, 65, 130))
    if not k.fits("B", "L", "D"):
        return False
    k.tensor("I", "B", "L", dtype=rng.choice(("int32", "int64", "int16")), below=k.sizes["V"])
    k.tensor("X", "B", "L", "D")
    k.tensor("G", "V", "D")
    operator = rng.choice(("+", "+", "max", "min"))
    kind = rng.choice(("rows", "counts", "batch", "last", "pairs", "updated"))
    if kind == "rows":
        k.body.append(f"Y(I(b, l), d) {k.operator(operator)} X(b, l, d) where I(b, l) in 0:V")
        k.epilogue(["v", "d"], "d")
    elif kind == "counts":
        k.body += ["C(I(b, l)) +=! 1 where I(b, l) in 0:V", "Y(v, d) = G(v, d) * C(v)"]
    elif kind == "batch":
        k.body.append(f"Y(b, I(b, l), d) {k.operator(operator)} X(b, l, d) where I(b, l) in 0:V")
    elif kind == "last":
        k.body.append(f"Y(b, I(b, l)) {k.operator(operator)} X(b, l, d) where I(b, l) in 0:V")
    elif kind == "pairs":
        k.tensor("J", "L", dtype="int64", below=3)
        k.body.append(f"Y(J(l), I(b, l)) {k.operator(operator)} X(b, l, d) where I(b, l) in 0:V, J(l) in 0:3")
    else:
        k.body += ["Y(v, d) = G(v, d)", f"Y(I(b, l), d) {operator}= X(b, l, d)"]
    return True


def _windows(k: _Kernel) -> bool:
    rng = k.rng
    k.size("N", (1, 2, 5, 16))
    stride, window = rng.choice((1, 2, 3)), rng.choice((1, 2, 3, 5))
    for name in "HW":
        k.size(name, (8, 13, 16, 30, 33, 64))
    if not k.fits("N", "H", "W", times=window * window):
        return False
    k.tensor("X", "N", "H", "W")
    operator = rng.choice(("max", "+", "min"))
    k.body.append(f"Y(n, h, w) {k.operator(operator)} X(n, {stride} * h + i, {stride} * w + j) where i in 0:{window}, j in 0:{window}")
    return True


def _chain(k: _Kernel) -> bool:
    """Two products in a row, perhaps with what stands between them in attention."""
    rng = k.rng
    for name in "MKN":
        k.size(name, EXTENTS[:-4])
    k.size("P", EXTENTS[:-8])
    if not (k.fits("M", "K", "N") and k.fits("M", "N", "P")):
        return False
    k.dtype = rng.choice(("float32", "float32", "float16", "bfloat16", "float64"))
    k.tensor("A", "M", "K")
    k.tensor("B", *(["N", "K"] if (turned := rng.random() < 0.5) else ["K", "N"]))
    k.tensor("C", "N", "P")
    k.body.append(f"S(m, n) +=! A(m, k) * {'B(n, k)' if turned else 'B(k, n)'}")
    if rng.random() < 0.4:
        k.body += ["t(m) max=! S(m, n)", "E(m, n) = exp(S(m, n) - t(m))", "s(m) +=! E(m, n)", "Y(m, p) +=! E(m, n) / s(m) * C(n, p)"]
    else:
        k.body += [rng.choice(("S(m, n) = fmax(S(m, n), 0)", "S(m, n) = S(m, n) * 0.5")), "Y(m, p) +=! S(m, n) * C(n, p)"]
    k.returns += ["S"] if rng.random() < 0.3 else []
    return True


def _layers(k: _Kernel) -> bool:
    """A chain in which every tensor may have the batch, in any place."""
    rng = k.rng
    batch = ["u", "v"][: rng.choice((0, 1, 1, 2))]
    for name in batch:
        k.size(name.upper(), (2, 3, 4, 6, 8, 12))
    for name in "MKNP":
        k.size(name, (1, 2, 3, 5, 8, 13, 16, 17, 24, 31, 32, 33, 40, 48, 64))
    names = [name.upper() for name in batch]
    if not (k.fits(*names, *"MKN") and k.fits(*names, *"MNP")):
        return False
    k.dtype = rng.choice(("float32", "float32", "float32", "float64", "bfloat16", "int32"))
    shared = [[] if rng.random() < 0.3 else batch for _ in range(2)]  # operands that are the same for the whole batch
    first, second, third = k.permuted(*batch, "m", "k"), k.permuted(*shared[0], "k", "n"), k.permuted(*shared[1], "n", "p")
    for name, dims in (("A", first), ("B", second), ("C", third)):
        k.tensor(name, *(d.upper() for d in dims))
    s, row = ", ".join(k.permuted(*batch, "m", "n")), ", ".join([*batch, "m"])
    causal = rng.choice(("n <= m", "n <= m && m - n < 5", "m + n < 40", "!(n > m)")) if rng.random() < 0.25 else ""
    k.body.append(f"S({s}) +=! A({', '.join(first)}) * B({', '.join(second)})")
    if k.floating and rng.random() < 0.4:
        guarded = f"({causal} ? S({s}) : -1000.0)" if causal else f"S({s})"
        k.body += [f"t({row}) max=! {guarded}", f"E({s}) = exp({guarded} - t({row}))", f"z({row}) +=! E({s})"]
    else:
        changes = (f"S({s}) = max(S({s}), 0)", f"S({s}) = S({s}) * 2", f"S({s}) = S({s}) - 1  S({s}) = abs(S({s}))")
        k.body += [*([rng.choice(changes)] if rng.random() < 0.6 else []), f"E({s}) = S({s}) + 1" if rng.random() < 0.7 else ""]
    factor = "E" if k.body[-1].startswith(("E", "z")) else "S"
    left = k.permuted(*batch, "m", "p")
    product = f"{factor}({s}) * C({', '.join(third)})"
    k.body.append(f"Y({', '.join(left)}) +=! " + (f"({causal} ? {product} : 0)" if causal else product))
    k.epilogue(left, rng.choice("mp"))
    k.returns += ["S"] if rng.random() < 0.2 and "S" not in k.returns else []
    return True


def _pointwise(k: _Kernel) -> bool:
    """Statements one element at a time, with operands that are the same along some dimension."""
    rng = k.rng
    dims = ["a", "b", "c"][: rng.choice((1, 2, 2, 3))]
    for d in dims:
        k.size(d.upper(), LENGTHS if len(dims) == 1 else EXTENTS, most=5000)
    if not k.fits(*(d.upper() for d in dims)):
        return False
    at = ", ".join(dims)
    for name in "XZ":
        used = [d for d in dims if name == "X" or rng.random() < 0.5]
        k.tensor(name, *([d.upper() for d in used] or [1]))
        read = f"{name}({', '.join(used) or 0})"
        k.body.append(f"Y({at}) = {read} + 1" if name == "X" else f"Q({at}) = Y({at}) * {read}")
    k.returns = rng.choice((["Q"], ["Y", "Q"]))
    if rng.random() < 0.4:
        k.tensor("P", *(d.upper() for d in dims), dtype="bool")
        k.body.append(f"V({at}) = P({at}) ? Q({at}) : Y({at})")
        k.returns = [*k.returns, "V"]
    return True


def _sweep(k: _Kernel) -> bool:
    """Statements over the rows of a matrix, perhaps of a batch, in any order that what they need of one another allows."""
    rng = k.rng
    batch = ["b"] if rng.random() < 0.3 else []
    for name in batch:
        k.size(name.upper(), (1, 2, 3, 5))
    k.size("M", (4, 5, 7, 8, 13, 16, 31, 32, 40, 64, 100))
    k.size("N", (3, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 200))
    names = [*(name.upper() for name in batch), "M", "N"]
    if not k.fits(*names):
        return False
    k.dtype = rng.choice(("float32", "float32", "float64", "int32", "bfloat16", "float16"))
    k.tensor("X", *names)
    k.tensor("G", *names)
    k.tensor("w", "N")
    k.returns = []
    at, row = ", ".join([*batch, "m", "n"]), ", ".join([*batch, "m"])
    known, statistics = ["X", "G"], list[str]()
    for number in range(rng.choice((2, 3, 4, 5))):
        name, read = f"T{number}", f"{rng.choice(known)}({at})"
        other = rng.choice(("", " * w(n)", f" + {rng.choice(known)}({at})", *(f" - {s}({row})" for s in statistics)))
        kind = rng.choice(("statistic", "points", "columns", "columns"))
        if kind == "points":
            k.body.append(f"{name}({at}) = {read}{other}")
            known.append(name)
        else:
            left = row if kind == "statistic" else rng.choice(("n", "n", "n", ", ".join([*batch, "n"])))
            k.body.append(f"{name}({left}) {rng.choice(('+', '+', 'max', 'min'))}=! {read}{other}")
            statistics += [name] if kind == "statistic" else []
        k.returns += [name] if kind == "columns" or rng.random() < 0.5 else []
    return bool(k.returns)


def _strided(k: _Kernel) -> bool:
    """One or two dimensions, whose windows begin at multiples of a stride, perhaps under conditions on data."""
    rng = k.rng
    space = rng.choice((1, 2))
    k.size("N", (1, 3, 8))
    k.size("C", (1, 2, 5, 16))
    k.dtype = rng.choice(("float32", "float32", "float64", "int32", "bfloat16"))
    letters, tests, places, ranges, extents, count = ["h", "w"][:space], list[str](), list[str](), list[str](), list[tuple[int, int]](), 1
    for at in letters:
        step, window, shift = rng.choice((1, 2, 2, 3)), rng.choice((1, 2, 3, 4)), rng.choice((0, 0, 1, 2, -1))
        inside, outside = rng.choice((1, 3, 8, 13, 16, 27)), rng.choice((2, 7, 16, 30, 33, 56))
        moved = f"{at} + {shift} - k{at}" if shift >= 0 else f"{at} - {-shift} - k{at}"
        exact = rng.random() < 0.7
        tests += [f"({moved}) % {step} == 0"] if exact else []
        tests += [f"{moved} >= {rng.choice((0, 1)) if exact else 0}", f"{moved} < {step * inside - (rng.choice((0, 1)) if exact else 0)}"]
        places.append(f"({moved}) / {step}")
        ranges += [f"{at} in 0:{outside}", f"k{at} in 0:{window}"]
        extents.append((inside, outside))
        count *= outside * window
    if count * k.sizes["N"] * k.sizes["C"] > WORK:
        return False
    rng.shuffle(tests)
    k.tensor("S", "N", "C", *(inside for inside, _ in extents))
    read, at = ", ".join(["n", "c", *places]), ", ".join(["n", "c", *letters])
    value = "S"
    if rng.random() < 0.5:
        k.body.append(f"T(n, c, {', '.join(letters)}) = S(n, c, {', '.join(letters)}) + 1")
        value = "T"
    if rng.random() < 0.5:
        k.small = True
        k.tensor("X", "N", "C", *(outside for _, outside in extents))
        k.tensor("Z", "N", "C", *(inside for inside, _ in extents))
        tests.append(f"X({at}) {rng.choice(('==', '<', '!='))} Z({read})")  # which the others guard
    term = f"{value}({read})"
    if rng.random() < 0.3:
        k.tensor("W", "C", *(int(one.split(":")[1]) for one in ranges[1::2]))
        term += f" * W(c, {', '.join(f'k{letter}' for letter in letters)})"
    k.body.append(f"Y({at}) {k.operator()} {' && '.join(tests)} ? {term} : 0 where {', '.join(ranges)}")
    return True


FAMILIES: tuple[Callable[[_Kernel], bool], ...] = (
    _contraction, _contraction, _atoms, _convolution, _convolution, _rows, _rows, _columns, _transposition, _gather, _scatter, _windows,
    _chain, _pointwise,
)  # fmt: skip
