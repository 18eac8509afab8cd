"""Random expressions of one statement: reads that stay inside their tensors, arithmetic, built-ins, choices, conversions."""
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from support.cases import Fill
from support.fuzz.scope import FLOATS, INTEGERS, Idx, Scope, Ten
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.dtypes import promote as promotion

# where each argument is safe; a read is clamped into it
DOMAINS: dict[str, tuple[tuple[float, float], ...]] = {
    **dict.fromkeys("acos asin atanh erfinv".split(), ((-0.9, 0.9),)),
    **dict.fromkeys("asinh atan cbrt cos cosh cospi cyl_bessel_i0 cyl_bessel_i1 erf erfc erfcx".split(), ((-3.0, 3.0),)),
    **dict.fromkeys("exp exp10 exp2 expm1 j0 j1 normcdf sigmoid sin sinh sinpi tanh".split(), ((-3.0, 3.0),)),
    **dict.fromkeys("digamma lgamma log log10 log2 rcbrt rsqrt sqrt tgamma y0 y1".split(), ((0.2, 4.0),)),
    "acosh": ((1.2, 5.0),),
    "erfcinv": ((0.1, 1.9),),
    "log1p": ((-0.8, 4.0),),
    "normcdfinv": ((0.1, 0.9),),
    "tan": ((-1.2, 1.2),),
    "atan2": ((-3.0, 3.0), (0.3, 3.0)),
    "pow": ((0.2, 3.0), (-2.0, 2.0)),
    "polygamma": ((1.0, 1.0), (0.3, 4.0)),
    "hypot": ((-3.0, 3.0), (0.2, 3.0)),
    "rhypot": ((-3.0, 3.0), (0.5, 3.0)),
    "fdivide": ((-3.0, 3.0), (0.5, 3.0)),
    "fdim": ((-3.0, 3.0), (-3.0, 3.0)),
    "fma": ((-3.0, 3.0), (-3.0, 3.0), (-3.0, 3.0)),
    "norm3d": ((0.1, 3.0),) * 3,
    "rnorm3d": ((0.1, 3.0),) * 3,
    "norm4d": ((0.1, 3.0),) * 4,
    "rnorm4d": ((0.1, 3.0),) * 4,
}
ANYWHERE = {"fabs": 1, "abs": 1, "relu": 1, "fmax": 2, "fmin": 2, "max": 2, "min": 2, "clamp": 3}  # safe on every number
STEPS = {"ceil": 1, "floor": 1, "round": 1, "trunc": 1, "sign": 1, "logb": 1, "fmod": 2, "remainder": 2, "copysign": 2, "nextafter": 2}
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
Typed = tuple[str, str]  # dtype and text


class Expressions:
    """Draws the parts of one statement over ``indices``; never reads ``forbidden``, the tensor that is written."""

    def __init__(self, scope: Scope, indices: Sequence[Idx], forbidden: str) -> None:
        self.scope, self.rng, self.forbidden = scope, scope.rng, forbidden
        self.indices = list(indices)
        self.clauses: list[str] = []
        self.plain_reads: list[str] = []
        self.let: Typed | None = None
        self.letting = False
        self.late: set[str] = set()  # solved in a later round: a subscript of their own would give them a larger range earlier

    # ------------------------------------------------------------ ranges

    def range_clause(self, index: Idx) -> str:
        lower, upper = str(index.lower), self.scope.extent_text(index.upper)
        if index.upper and self.rng.random() < 0.05:
            self.clauses.append(f"{index.name} in 0:{index.upper + self.rng.randrange(3)}")
        if upper.isdigit() and self.rng.random() < 0.3:
            for name, value in self.scope.sizes.items():
                if value > index.upper:
                    upper = f"{name} - {value - index.upper}"
        return f"{index.name} in {lower}:{upper}"

    def anchors(self) -> Iterator[Typed]:
        """Reads that give every index without a clause its range."""
        waiting = [i for i in self.indices if not i.ranged and not i.known]
        others = [i for i in self.indices if i not in waiting]
        self.late = {i.name for i in waiting}
        while waiting:
            index = waiting.pop()
            window = self._window(index, others)
            if window is not None:
                yield window
            else:
                yield self._anchor(index)
                self.late.discard(index.name)
            others.append(index)

    def _window(self, index: Idx, others: Sequence[Idx]) -> Typed | None:
        """``X(a*i + b*k)`` with ``k`` known: what is left for ``i``."""
        known = [k for k in others if k.upper > k.lower == 0 and not k.left]
        if not known or not index.left or self.rng.random() < 0.5:
            return None
        k, a, b = self.rng.choice(known), self.rng.randint(1, 3), self.rng.randint(1, 2)
        if index.upper == 0:
            return None
        extent = a * (index.upper - 1) + b * k.last + 1 + self.rng.randrange(a)
        step = str(a)
        if a > 1 and self.rng.random() < 0.5:
            step = self.scope.scalar("int32", a)
        text = f"{step}*{index.name} + {f'{b}*' if b > 1 else ''}{k.name}"
        dtype = self.dtype()
        return dtype, f"{self.scope.input(dtype, (extent,))}({text})"

    def _anchor(self, index: Idx) -> Typed:
        """A read whose subscripts hold ``index`` alone, in a tensor of exactly its extent."""
        places = [
            (t, d) for t in self.scope.tensors.values() if t.name != self.forbidden for d, e in enumerate(t.extents) if e == index.upper
        ]
        if places and self.rng.random() < 0.6:
            tensor, dimension = self.rng.choice(places)
            subscripts = [index.name if d == dimension else self.subscript(e) for d, e in enumerate(tensor.extents)]
            if None not in subscripts:
                return tensor.dtype, f"{tensor.name}({', '.join(map(str, subscripts))})"
        dtype = self.dtype()
        others = [i for i in self.indices if i.name != index.name and (i.ranged or i.known)]
        chosen = self.rng.sample(others, min(len(others), self.rng.randint(0, 2)))
        subscripts = [(index.name, index.upper), *((i.name, i.last + 1) for i in chosen)]
        self.rng.shuffle(subscripts)
        name = self.scope.input(dtype, tuple(e for _, e in subscripts))
        self.plain_reads.append(f"{name}({', '.join(s for s, _ in subscripts)})")
        return dtype, self.plain_reads[-1]

    # ------------------------------------------------------------ subscripts

    def subscript(self, extent: int, dim: str | None = None) -> str | None:
        """A subscript inside [0, extent) over the whole domain, or None."""
        fits = [i for i in self.indices if i.last < extent and (i.name not in self.late or i.upper == extent)]
        fits = fits or [i for i in self.indices if i.upper <= i.lower and i.upper <= extent]
        if extent == 0:
            return fits[0].name if fits else None
        roll = self.rng.random()
        if fits and roll < 0.55:
            return self.rng.choice(fits).name
        if not self.indices or roll < 0.62:
            return str(self.rng.randrange(min(extent, 4)))
        index, other = self.rng.choice(self.indices), self.rng.choice(self.indices)
        if roll < 0.78 and not self.late & {index.name, other.name}:
            return self._affine(index, other, extent)
        if roll < 0.84 and index.ranged and index.last < extent:
            return f"{dim or extent} - 1 - {index.name}"
        if roll < 0.90:
            return f"({index.name} + {other.name} + {self.rng.randrange(3)}) % {dim or extent}"
        if roll < 0.95:
            divisor = max(2, index.last // extent + 1) + self.rng.randrange(2)
            return f"{index.name} / {divisor}"
        return f"min(max({index.name} - 1, 0), {extent - 1})"

    def _affine(self, index: Idx, other: Idx, extent: int) -> str | None:
        for _ in range(6):
            a, b, c = self.rng.randint(1, 3), self.rng.randint(0, 2), self.rng.randrange(3)
            if a * index.last + b * other.last + c < extent:
                parts = [f"{a}*{index.name}" if a > 1 else index.name, f"{b}*{other.name}" if b else "", str(c) if c else ""]
                return " + ".join(p for p in parts if p)
        return f"{index.name} % {extent}"

    # ------------------------------------------------------------ reads

    def dtype(self) -> str:
        return self.rng.choice(self.rng.choice((FLOATS, FLOATS, INTEGERS)))

    def read(self, dtype: str, new: float = 0.35) -> str:
        """A read of a tensor of ``dtype``, new or there."""
        there = [t for t in self.scope.tensors.values() if t.dtype == dtype and t.name != self.forbidden]
        if there and self.rng.random() >= new:
            text = self._read(self.rng.choice(there))
            if text is not None:
                return text
        roll = self.rng.random()
        if roll < 0.15 and self.indices:
            return self._gather(dtype)
        if roll < 0.27:
            padded = self._padded(dtype)
            if padded is not None:
                return padded
        return self._new_read(dtype, nonzero=False)

    def _read(self, tensor: Ten) -> str | None:
        subscripts = [self.subscript(e, tensor.dims[d] if tensor.dims else None) for d, e in enumerate(tensor.extents)]
        if None in subscripts:
            return None
        if not subscripts:
            return tensor.name
        return f"{tensor.name}({', '.join(map(str, subscripts))})"

    def _new_read(self, dtype: str, nonzero: bool) -> str:
        chosen = self.rng.sample(self.indices, min(len(self.indices), self.rng.choice((1, 1, 2))))
        subscripts, extents = [], []
        for index in chosen:
            a, c = (1, 0) if self.rng.random() < 0.7 or index.name in self.late else (self.rng.randint(1, 2), self.rng.randrange(3))
            subscripts.append((f"{a}*" if a > 1 else "") + index.name + (f" + {c}" if c else ""))
            slack = self.rng.randrange(3) if index.ranged and self.rng.random() < 0.3 else 0
            extents.append(a * index.last + c + 1 + slack if index.upper > index.lower or a > 1 or c else index.upper)
        if not chosen:
            extents, subscripts = [3], [str(self.rng.randrange(3))]
        name = self.scope.input(dtype, tuple(extents), nonzero=nonzero)
        text = f"{name}({', '.join(subscripts)})"
        if all(s.isalpha() for s in subscripts):
            self.plain_reads.append(text)
        return text

    def _gather(self, dtype: str) -> str:
        """A read through an integer tensor."""
        rng = self.rng
        extent = rng.randint(1, 12)
        index_dtype = rng.choice(("int32", "int64", "int64", "uint8", "int16"))
        low, high = (-1, extent) if self.scope.faults == "gather" and not index_dtype.startswith("u") else (0, extent - 1)
        index = rng.choice(self.indices)
        fill = Fill(index_dtype, "small", rng.getrandbits(32), low, high)
        table = self.scope.input(index_dtype, (index.last + 1 if index.upper else 0,), fill=fill, indexing=True)
        inner = f"{table}({index.name})"
        if rng.random() < 0.2:
            inner = f"({inner} + {rng.choice(self.indices).name}) % {extent}"
        second = rng.choice(self.indices)
        if rng.random() < 0.5 and second.upper > second.lower:
            return f"{self.scope.input(dtype, (extent, second.last + 1))}({inner}, {second.name})"
        return f"{self.scope.input(dtype, (extent,))}({inner})"

    def _padded(self, dtype: str) -> str | None:
        """A read outside its tensor at the edges, guarded by a condition on indices."""
        ranged = [i for i in self.indices if i.ranged and i.upper > i.lower]
        if not ranged:
            return None
        index, rng = self.rng.choice(ranged), self.rng
        other = rng.choice(ranged)
        shift = rng.randint(0, 2)
        text = index.name if other.name == index.name or rng.random() < 0.5 else f"{index.name} + {other.name}"
        extent = max(1, index.upper - rng.randint(0, 2))
        name = self.scope.input(dtype, (extent,))
        size = self.scope.tensors[name].dims
        assert size is not None
        at = f"{text} - {shift}" if shift else text
        conditions = [f"{text} >= {shift}", f"{at} < {size[0]}"]
        if rng.random() < 0.3:
            return f"({text} < {shift} || {at} >= {size[0]} ? {self.literal(dtype)} : {name}({at}))"
        return f"({' && '.join(conditions)} ? {name}({at}) : {self.literal(dtype)})"

    # ------------------------------------------------------------ values

    def mentions(self, text: str, index: str) -> bool:
        texts = [text, *(c for c in self.clauses if re.match(r"\w+ =", c))]
        return any(re.search(rf"\b{index}\b", t) for t in texts)

    def literal(self, dtype: str) -> str:
        """A weak literal that the dtype takes."""
        kind = DTYPES[dtype].kind
        if kind == "bool":
            return self.rng.choice(("true", "false"))
        if kind == "float" and not self.scope.exact and self.rng.random() < 0.6:
            return self.rng.choice(("0.5", "0.1", "1.5", "2e-1", "-0.75", "0.0", "3.0"))
        number = self.rng.randint(0, 4)
        return f"{number}.0" if kind == "float" and self.rng.random() < 0.5 else str(number)

    def joined(self, value: str, extra: Typed, dtype: str) -> str:
        """``value``, of ``dtype``, combined with another."""
        other = self.converted(extra, dtype, promote=True)
        if dtype == "bool":
            return f"({value} {self.rng.choice(('||', '&&', '==', '!='))} {other})"
        operator = self.rng.choice(("+", "-", "*", "+", "*", "max", "min"))
        return f"{operator}({value}, {other})" if operator.isalpha() else f"({value} {operator} {other})"

    def converted(self, value: Typed, dtype: str, promote: bool = False) -> str:
        """The text of a value as ``dtype``; ``promote`` says that what stands beside it has that type."""
        source, text = value
        if source == dtype:
            return text
        if self.scope.exact and DTYPES[source].kind == "float" and DTYPES[dtype].kind not in ("float", "bool"):
            return f"{dtype}(clamp({text}, 0, 3))"
        implicit = promote and promotion(source, dtype) == dtype and "bool" not in (source, dtype)
        return text if implicit and self.rng.random() < 0.5 else f"{dtype}({text})"

    def value(self, dtype: str, depth: int) -> str:
        """An expression of exactly ``dtype``."""
        if depth == 0:
            return self._leaf(dtype)
        kind = DTYPES[dtype].kind
        roll = self.rng.random()
        if roll < 0.08 and not self.letting:
            self.letting, let = True, self.dtype()
            self.clauses.append(f"v = {self.value(let, depth - 1)}")
            self.let = (let, "v")
            return self.converted(self.let, dtype)
        if roll < 0.2:
            return f"({self.condition(depth - 1)} ? {self.value(dtype, depth - 1)} : {self._operand(dtype, depth - 1)})"
        if kind == "bool":
            return self.condition(depth)
        if roll < 0.3:
            other = self.dtype()
            return self.converted((other, self.value(other, depth - 1)), dtype)
        if roll < 0.5 and not self.scope.exact and kind == "float":
            return self._builtin(dtype, depth)
        if roll < 0.6 and not self.scope.exact:
            return self._divided(dtype, depth)
        if roll < 0.68:
            return self._extreme(dtype, depth)
        if roll < 0.73 and kind != "unsigned":
            return f"(-{self.value(dtype, depth - 1)})"
        operator = self.rng.choice(("+", "-", "*"))
        left, right = self.value(dtype, depth - 1), self._operand(dtype, depth - 1)
        if self.rng.random() < 0.5:
            left, right = right, left
        return f"({left} {operator} {right})"

    def _leaf(self, dtype: str) -> str:
        roll = self.rng.random()
        if self.let is not None and self.let[0] == dtype and roll < 0.5:
            return self.let[1]
        if roll < 0.75:
            return self.read(dtype)
        if roll < 0.85 and dtype != "bool" and (names := [i.name for i in self.indices] + [*self.scope.sizes][:1]):
            return f"{dtype}({self.rng.choice(names)})"
        if roll < 0.9:
            return self.scope.scalar(dtype)
        other = self.dtype()
        return self.converted((other, self.read(other)), dtype)

    def _operand(self, dtype: str, depth: int) -> str:
        """What stands beside an expression of ``dtype``."""
        roll = self.rng.random()
        if roll < 0.25:
            return self.literal(dtype)
        if roll < 0.35 and dtype != "bool":
            narrower = self.dtype()
            return self.converted((narrower, self.read(narrower)), dtype, promote=True)
        return self.value(dtype, depth)

    def condition(self, depth: int) -> str:
        roll = self.rng.random()
        if depth > 0 and roll < 0.3:
            return f"({self.condition(depth - 1)} {self.rng.choice(('&&', '||'))} {self.condition(depth - 1)})"
        if depth > 0 and roll < 0.37:
            return f"!({self.condition(depth - 1)})"
        if roll < 0.55 and self.indices:
            left = self.rng.choice(self.indices).name
            right = self.rng.choice([i.name for i in self.indices] + [str(self.rng.randint(0, 9)), *self.scope.sizes])
            return f"({left} {self.rng.choice(COMPARISONS)} {right})"
        if roll < 0.62:
            return self.read("bool")
        dtype = self.dtype()
        return f"({self.read(dtype)} {self.rng.choice(COMPARISONS)} {self._operand(dtype, 0)})"

    def _builtin(self, dtype: str, depth: int) -> str:
        rng, roll = self.rng, self.rng.random()
        if roll < 0.25:
            name = rng.choice(sorted(STEPS))
            return f"{name}({', '.join(self._new_read(dtype, nonzero=False) for _ in range(STEPS[name]))})"
        if roll < 0.33:
            raw = rng.choice([n for n, d in sorted(DOMAINS.items()) if len(d) == 1])
            return f"{raw}({self.read(dtype)})"
        name = rng.choice(sorted(DOMAINS))
        args = [f"clamp({self.value(dtype, depth - 1)}, {low}, {high})" for low, high in DOMAINS[name]]
        return f"{name}({', '.join(args)})"

    def _extreme(self, dtype: str, depth: int) -> str:
        floats = DTYPES[dtype].kind == "float"
        name = self.rng.choice(sorted(ANYWHERE) if floats else ["min", "max", "clamp", "abs", "relu", "sign"])
        if self.scope.exact and not floats and name == "sign":
            name = "max"
        count = ANYWHERE.get(name, 1)
        if name == "clamp":
            return f"clamp({self.value(dtype, depth - 1)}, 0, {self.rng.randint(1, 5)})"
        args = [self.value(dtype, depth - 1), *(self._operand(dtype, depth - 1) for _ in range(count - 1))]
        return f"{name}({', '.join(args)})"

    def _divided(self, dtype: str, depth: int) -> str:
        rng, left = self.rng, self.value(dtype, depth - 1)
        if DTYPES[dtype].kind == "float":
            if rng.random() < 0.15:
                return f"({self.read(dtype)} % {rng.choice((self.literal(dtype), '0.75', '2.0'))})"
            right = rng.choice((self.literal(dtype).replace("-", "") + " + 1.0", f"abs({self.value(dtype, depth - 1)}) + 0.5"))
            return f"({left} / ({right}))"
        operator = rng.choice("/%")
        roll = rng.random()
        if self.scope.faults == "division" and roll < 0.3:
            return f"({left} {operator} {self.read(dtype)})"
        if roll < 0.4:
            return f"({left} {operator} {rng.randint(1, 7)})"
        if roll < 0.6:
            return f"({left} {operator} max({self.value(dtype, depth - 1)}, 1))"
        return f"({left} {operator} {self._new_read(dtype, nonzero=True)})"
