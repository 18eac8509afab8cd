"""Measures the error of every built-in against mpmath, in units in the last place.

    python benchmarks/ulps.py --write docs/numerics.md     # the table of the book: targets cpu and opencl
    python benchmarks/ulps.py --targets cuda exp tanh      # on a GPU
    python benchmarks/ulps.py --vector                     # which functions of libmvec deserve trust (dialect.VECTOR_MATH)
    python benchmarks/ulps.py exp tanh --samples 200000
"""
from __future__ import annotations

import argparse
import ctypes
import math
import platform
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import torch

import tcjit
from tcjit.codegen import prelude
from tcjit.codegen.dialect import C_FUNCTIONS, CUDA, NARROWED, OPENCL, C, Dialect
from tcjit.codegen.expression import ExpressionPrinter, ctype
from tcjit.grammar.ast import Access, Call, Expr
from tcjit.grammar.builtins import BUILTINS
from tcjit.runtime import cuda, host, opencl
from tcjit.runtime.vector_math import available, vector_math_symbols

Array = np.ndarray[Any, Any]
EXACT = "abs ceil clamp copysign fabs floor fmax fmin fmod logb max min nextafter relu remainder round sign trunc".split()
DIGITS = {"float32": (24, -149), "float64": (53, -1074)}  # of the significand, exponent of the least number


@dataclass(frozen=True)
class Case:
    """A built-in: its exact value, the intervals from which each argument is drawn, what of the samples it can afford, and how many
    arguments, from the first, are whole numbers."""

    exact: Callable[..., Any]
    domain: tuple[tuple[float, float], ...]
    share: float = 1.0
    whole: int = 0


def _case(exact: Callable[..., Any], *domain: tuple[float, float], share: float = 1.0, whole: int = 0) -> Case:
    return Case(exact, domain, share, whole)


def _reciprocal(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *x: 1 / function(*x)


def _norm(*x: Any) -> Any:
    return mpmath.sqrt(sum(a * a for a in x))


def _erfcinv(x: Any) -> Any:
    if x > mpmath.mpf("0.1"):
        return mpmath.erfinv(1 - x)
    start = mpmath.sqrt(-mpmath.log(x))
    for _ in range(12):  # Newton on the logarithm
        value = mpmath.erfc(start)
        start += (mpmath.log(value) - mpmath.log(x)) * value * mpmath.sqrt(mpmath.pi) / 2 * mpmath.exp(start * start)
    return start


def _normcdfinv(p: Any) -> Any:
    sign = -1 if p < 0.5 else 1
    return sign * mpmath.sqrt(2) * _erfcinv(2 * min(p, 1 - p))


ANY = (-math.inf, math.inf)
POSITIVE = (0.0, math.inf)
CASES: dict[str, Case] = {
    **{name: _case(getattr(mpmath, name), (-1.0, 1.0)) for name in ("acos", "asin", "atanh")},
    **{name: _case(getattr(mpmath, name), ANY) for name in ("asinh", "atan", "erf", "tanh")},
    **{name: _case(getattr(mpmath, name), (-720.0, 720.0)) for name in ("cosh", "exp", "expm1", "sinh")},
    **{name: _case(getattr(mpmath, name), (-1e6, 1e6)) for name in ("cos", "sin", "tan")},
    **{name: _case(getattr(mpmath, name), POSITIVE) for name in ("log", "log10", "sqrt")},
    "acosh": _case(mpmath.acosh, (1.0, math.inf)),
    "atan2": _case(mpmath.atan2, ANY, ANY),
    "cbrt": _case(lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)), ANY),
    "cospi": _case(mpmath.cospi, (-1e4, 1e4)),
    "cyl_bessel_i0": _case(lambda x: mpmath.besseli(0, x), (-720.0, 720.0), share=0.1),
    "cyl_bessel_i1": _case(lambda x: mpmath.besseli(1, x), (-720.0, 720.0), share=0.1),
    "erfc": _case(mpmath.erfc, (-10.0, 28.0)),
    "erfcinv": _case(_erfcinv, (0.0, 2.0), share=0.05),
    "erfcx": _case(lambda x: mpmath.exp(x * x) * mpmath.erfc(x), (-26.0, 200.0), share=0.2),
    "erfinv": _case(mpmath.erfinv, (-1.0, 1.0), share=0.05),
    "exp10": _case(lambda x: mpmath.power(10, x), (-320.0, 310.0)),
    "exp2": _case(lambda x: mpmath.power(2, x), (-1080.0, 1025.0)),
    "fdim": _case(lambda x, y: max(x - y, mpmath.mpf(0)), ANY, ANY),
    "fdivide": _case(lambda x, y: x / y, ANY, ANY),
    "fma": _case(lambda x, y, z: x * y + z, (-1e9, 1e9), (-1e9, 1e9), (-1e18, 1e18)),
    "hypot": _case(_norm, ANY, ANY),
    "j0": _case(lambda x: mpmath.besselj(0, x), (-100.0, 100.0), share=0.1),
    "j1": _case(lambda x: mpmath.besselj(1, x), (-100.0, 100.0), share=0.1),
    "lgamma": _case(lambda x: mpmath.log(abs(mpmath.gamma(x))), (-50.0, 1e5), share=0.1),
    "log1p": _case(mpmath.log1p, (-1.0, math.inf)),
    "log2": _case(lambda x: mpmath.log(x, 2), POSITIVE),
    "norm3d": _case(_norm, ANY, ANY, ANY),
    "norm4d": _case(_norm, ANY, ANY, ANY, ANY),
    "normcdf": _case(mpmath.ncdf, (-38.0, 10.0), share=0.3),
    "normcdfinv": _case(_normcdfinv, (0.0, 1.0), share=0.05),
    "pow": _case(mpmath.power, (1e-3, 1e3), (-90.0, 90.0)),
    "rcbrt": _case(lambda x: mpmath.sign(x) / mpmath.cbrt(abs(x)), ANY),
    "rhypot": _case(_reciprocal(_norm), ANY, ANY),
    "rnorm3d": _case(_reciprocal(_norm), ANY, ANY, ANY),
    "rnorm4d": _case(_reciprocal(_norm), ANY, ANY, ANY, ANY),
    "rsqrt": _case(_reciprocal(mpmath.sqrt), POSITIVE),
    "sigmoid": _case(lambda x: 1 / (1 + mpmath.exp(-x)), (-760.0, 100.0)),
    "sinpi": _case(mpmath.sinpi, (-1e4, 1e4)),
    "digamma": _case(lambda x: mpmath.psi(0, x), (-50.0, 1e5), share=0.1),
    "polygamma": _case(lambda n, x: mpmath.psi(int(n), x), (0.5, 5.5), (0.0, 1e5), share=0.05, whole=1),
    "tgamma": _case(mpmath.gamma, (-170.0, 172.0), share=0.2),
    "y0": _case(lambda x: mpmath.bessely(0, x), (0.0, 100.0), share=0.1),
    "y1": _case(lambda x: mpmath.bessely(1, x), (0.0, 100.0), share=0.1),
}


@dataclass(frozen=True)
class Error:
    ulps: float
    at: tuple[float, ...]


# ---------------------------------------------------------------- kernels


def source(functions: Sequence[tuple[str, str]], dialect: Dialect) -> str:
    """One C function for each (built-in, dtype): ``void NAME_DTYPE(x, y, z, w, result, n)``."""
    used: list[str] = []
    bodies = []
    for name, dtype in functions:
        printer = ExpressionPrinter(dialect, lambda access, _: f"{access.tensor}[i]", lambda kind, what: what)
        args: tuple[Expr, ...] = tuple(Access(a, (), dtype=dtype) for a in "xyzw"[: BUILTINS[name].arity])
        value = printer.value(Call(name, args, dtype=dtype))
        used += printer.used
        inputs = ", ".join(f"const {ctype(dtype)} *restrict {a}" for a in "xyzw")
        bodies.append(
            f"void {name}_{dtype}({inputs}, {ctype(dtype)} *restrict result, int64_t n) {{\n"
            f"#pragma omp simd\n  for (int64_t i = 0; i < n; ++i) result[i] = {value};\n}}\n"
        )
    return prelude.text(used, dialect) + "\n" + "\n".join(bodies)


class Kernels:
    """All built-ins, compiled."""

    def __init__(self, functions: Sequence[tuple[str, str]], dialect: Dialect, flags: Sequence[str] = ()) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="tcjit-ulps-")
        path = Path(self.folder.name) / "ulps.so"
        path.write_bytes(host.build(source(functions, dialect), "ulps", flags))
        self.library = ctypes.CDLL(str(path))

    def run(self, name: str, dtype: str, args: Sequence[Array]) -> Array:
        result = np.empty_like(args[0])
        padded = [*args, *[args[0]] * (4 - len(args))]
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*padded, result)]
        getattr(self.library, f"{name}_{dtype}")(*pointers, ctypes.c_int64(len(result)))
        return result


class Calls:
    """Any built-in on a target, called as a user calls it."""

    def __init__(self, target: str) -> None:
        self.target = target

    def run(self, name: str, dtype: str, args: Sequence[Array]) -> Array:
        letters = "xyzw"[: len(args)]
        params = ", ".join(f"{dtype}(N) {a}" for a in letters)
        value = ", ".join(f"{a}(i)" for a in letters)
        called = tcjit.define(f"def called({params}) -> (r) {{ r(i) = {name}({value}) }}", target=self.target).called
        place = "cuda" if self.target == "cuda" else "cpu"
        result: Array = called(*(torch.from_numpy(a).to(place) for a in args)).cpu().numpy()
        return result


Runs = Kernels | Calls


# ---------------------------------------------------------------- samples and errors


def samples(case: Case, dtype: str, count: int, seed: int) -> list[Array]:
    """Arguments drawn from the case's intervals: half of them evenly, half with every exponent alike likely."""
    random = np.random.default_rng(seed)
    info = np.finfo(dtype)
    drawn = []
    for low, high in case.domain:
        low, high = max(low, float(info.min)), min(high, float(info.max))
        wide = min(high, 1e4) - max(low, -1e4)
        even = max(low, -1e4) + wide * random.random(count)
        largest = math.log2(max(abs(low), abs(high)))
        least = DIGITS[dtype][1] if min(abs(low), abs(high)) == 0 or low < 0 < high else math.log2(min(abs(low), abs(high)) or 1)
        spread = np.exp2(least + (largest - least) * random.random(count)) * np.where(random.random(count) < 0.5, -1, 1)
        spread = np.where((spread < low) | (spread > high), -spread, spread)
        chosen = np.where(random.random(count) < 0.5, even, np.clip(spread, low, high)).astype(dtype)
        drawn.append(np.rint(chosen) if len(drawn) < case.whole else chosen)
    inside = np.ones(count, dtype=bool)
    for chosen, (low, high) in zip(drawn, case.domain, strict=True):
        inside &= (chosen > low) & (chosen < high) & (chosen != 0)
    return [np.ascontiguousarray(chosen[inside]) for chosen in drawn]


def exactly(case: Case, args: Sequence[Array]) -> list[Any]:
    """The exact values; None at a pole, and where there is no real one."""
    found: list[Any] = []
    with mpmath.workprec(160):
        for x in zip(*args, strict=True):
            try:
                value = case.exact(*(mpmath.mpf(float(a)) for a in x))
            except ZeroDivisionError:
                value = None
            found.append(value if isinstance(value, mpmath.mpf) else None)
    return found


def error(case: Case, dtype: str, args: Sequence[Array], results: Array, right: Sequence[Any] | None = None) -> Error:
    """The greatest error, in units in the last place of the exact value; ``right``: the exact values, where they are known."""
    digits, least = DIGITS[dtype]
    greatest = mpmath.mpf(float(np.finfo(dtype).max)) * (1 + mpmath.mpf(2) ** (-digits - 1))
    worst = Error(0.0, ())
    with mpmath.workprec(160):
        for *x, result, exact in zip(*args, results, right or exactly(case, args), strict=True):
            if exact is None:
                continue
            if abs(exact) >= greatest:
                if np.isfinite(result) and abs(float(result)) < float(np.finfo(dtype).max):
                    worst = Error(math.inf, tuple(map(float, x)))
                continue
            exponent = max(mpmath.frexp(exact)[1] - digits, least) if exact else least
            ulps = float(abs(mpmath.mpf(float(result)) - exact) / mpmath.mpf(2) ** exponent) if np.isfinite(result) else math.inf
            if not ulps <= worst.ulps:
                worst = Error(ulps, tuple(map(float, x)))
    return worst


def measure(kernels: Runs, name: str, dtype: str, count: int) -> Error:
    return compare([kernels], name, dtype, count)[0]


def compare(runs: Sequence[Runs], name: str, dtype: str, count: int) -> list[Error]:
    """The greatest error of each, at the same points."""
    case = CASES[name]
    args = samples(case, dtype, int(count * case.share), seed=sum(map(ord, name)))
    right = exactly(case, args)
    return [error(case, dtype, args, one.run(name, dtype, args), right) for one in runs]


def sweep(kernels: Runs, name: str, step: int = 1021) -> Error:
    """The worst of every ``step``-th float32, found with the float64 built-in and then measured; for one argument."""
    (low, high), = CASES[name].domain
    every = np.arange(0, 1 << 32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = every[(every > low) & (every < high)]
    exact = kernels.run(name, "float64", [x.astype(np.float64)])
    result = kernels.run(name, "float32", [x]).astype(np.float64)
    with np.errstate(invalid="ignore"):
        ulps = np.abs(result - exact) / np.ldexp(1.0, np.maximum(np.frexp(exact)[1] - DIGITS["float32"][0], DIGITS["float32"][1]))
    worst = np.argsort(np.nan_to_num(ulps, posinf=0.0))[-8:]
    args = [np.ascontiguousarray(x[worst])]
    return error(CASES[name], "float32", args, kernels.run(name, "float32", args))


# ---------------------------------------------------------------- the vector library


SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-310, -1e-310, 1e-40, -1e-40, 1.0, -1.0, 1e300, -1e300, 3e38, 0.5, 2.0, 1e-300]


def differences(vector: Kernels, scalar: Kernels, name: str, dtype: str) -> list[str]:
    """Where the vector function strays from the scalar one in kind, sign of zero, or by 8 ulp: special values, random bit patterns."""
    with np.errstate(over="ignore"):
        one = np.array(SPECIAL * 4, dtype=dtype)
    arity = BUILTINS[name].arity
    random = np.random.default_rng(1)
    size = np.dtype(dtype).itemsize
    patterns = [random.integers(0, 256, size * 20_000, dtype=np.uint8).view(dtype) for _ in range(arity)]
    grid = [np.concatenate([a.ravel(), b]) for a, b in zip(np.meshgrid(*[one] * arity), patterns, strict=True)]
    got, expected = vector.run(name, dtype, grid), scalar.run(name, dtype, grid)
    wrong = {f"({', '.join(map(str, x))}) -> {r}, not {s}": None for *x, r, s in zip(*grid, got, expected) if not _agree(r, s)}
    return list(wrong)


def _agree(a: Any, b: Any) -> bool:
    if np.isnan(a) or np.isnan(b):
        return bool(np.isnan(a) and np.isnan(b))
    if a == b:
        return bool(np.signbit(a) == np.signbit(b))
    return bool(np.isfinite(a) and np.isfinite(b) and b != 0 and abs(a - b) <= 8 * np.spacing(abs(b)))


def vector_report(count: int) -> None:
    """Each function that the library has, at two widths: its error, and the special values that it gets wrong."""
    plain = [(name, dtype) for name in CASES for dtype in DIGITS]
    named = {pair: (pair[0] + ("f" if pair[1] == "float32" else "")) for pair in plain}
    present = available(named.values())
    pairs = [pair for pair in plain if named[pair] in present and prelude.known(named[pair])]
    through = {name: (name + "f", name) for name, _ in pairs}
    scalar = replace(C, functions={**C_FUNCTIONS, **through})
    builds = {bits: Kernels(pairs, replace(scalar, vector_math=present), [f"-mprefer-vector-width={bits}"]) for bits in (256, 512)}
    alone = Kernels(pairs, scalar, ["-fno-tree-vectorize"])
    trusted = []
    for name, dtype in pairs:
        errors = [measure(kernels, name, dtype, count) for kernels in builds.values()]
        wrong = [line for kernels in builds.values() for line in differences(kernels, alone, name, dtype)]
        print(f"{named[name, dtype]:8} {' '.join(f'{e.ulps:8.2f}' for e in errors)}  {wrong[:3]}", flush=True)
        if max(e.ulps for e in errors) <= 4 and not wrong:
            trusted.append(named[name, dtype])
    print("trusted:", " ".join(sorted(trusted)))


# ---------------------------------------------------------------- the table


HEAD = """# Numerics: how exact the built-ins are

The greatest errors seen on the targets `cpu` and `opencl`, in ulp, units in the last place of the result: 0.5 is the best possible. Each
built-in and type was compared with mpmath at {points} drawn points (fewer where that is costly), half of them spread evenly over the
interval (within ±10⁴), half with every exponent alike likely, denormals included; the float32 built-ins of one argument besides at four
million. Next to the zeros of the Bessel functions their float64 errors are small in themselves but many times the tiny result's ulp.
`float16` and `bfloat16` compute in `float32` and round once more.

NaN gives NaN of either sign, infinities and signed zeros are those of C, and denormals are kept, on OpenCL where the device has them;
`min max relu clamp` keep NaN, `fmax fmin` drop it.
Exact, and therefore not in the table, are
{exact}.
The wrapping, flooring and saturating integer operations and casts of the language have no error at all.

**cpu.** The float32 `exp log tanh erf sigmoid` are ours: without branch, table or call, so that loops over them vectorise on any
processor.
A loop that divides float32 by one number multiplies by its inverse and corrects the product: that is rounded correctly from 2^-100 on, and
within two units in the last place below.
{vector}Powers whose exponents are constants or functions of indices, and small whole numbers, are products: in float32 from -63 to 63, of
doubles and rounded once, in float64 from -7 to 10, within 6 ulp.
Without a vector library (musl, macOS, glibc before 2.35) the scalar functions are called, with smaller errors.

**opencl.** In both types
{opencl_both}
are ours, in float32 also
{opencl_single}.
The rest is the library of the OpenCL at hand; the limits are in the table *Relative error as ULPs* of the OpenCL C specification. Division
and `sqrt` of float32 are rounded correctly where the device offers it; elsewhere OpenCL allows 2.5 and 3 ulp.

**cuda.** In both types
{cuda_both}
are ours, in float32 also
{cuda_single}.
The rest is CUDA's own; the appendix *Mathematical Functions* of NVIDIA's CUDA C++ Programming Guide lists the maximum error of each. The
compiler gets no option that trades exactness for speed: denormals are kept, division and `sqrt` are rounded correctly. A product and a sum
may become one multiply-add, which rounds once. `python benchmarks/ulps.py --targets cuda` measures the device at hand.

**Reductions.** The order is fixed by the program, its sizes, the layouts of its arguments, the options and the device. On a GPU the tree
shows it (`kernel.tree`): each thread takes its own terms in turn; the parts of several threads are combined in a fixed tree, or one after
the other; the parts of a reduction that several blocks share are combined by a later launch. Where data pick the results of terms, on a GPU
the threads that have these may update results atomically, in any order: integers, minima and maxima are the same bits in every run, sums of
floats are not in their last ones, and on NVIDIA's GPUs those of `float32` take denormals for zeros. As in PyTorch,
`torch.use_deterministic_algorithms(True)` has kernels compiled that add no floats atomically. All others give the same bits in every run.
Another target, another device or other options may group the terms differently.

| built-in | arguments |{targets}
|---|---|{rules}
"""
FOOT = """
`python benchmarks/ulps.py --write docs/numerics.md` wrote this page{devices}.
"""


def table(names: Sequence[str], count: int, targets: Sequence[str]) -> list[str]:
    """Lines ``| built-in | arguments | float32 | float64 | ...``, two columns for each target."""
    with_vectors = replace(C, vector_math=vector_math_symbols())
    pairs = [(name, dtype) for name in names for dtype in DIGITS]
    runs: list[Runs] = [Kernels(pairs, with_vectors) if target == "cpu" else Calls(target) for target in targets]
    lines = []
    for name in names:
        single, double = (compare(runs, name, dtype, count) for dtype in DIGITS)
        if len(CASES[name].domain) == 1 and name not in NARROWED:
            single = [max(one, sweep(run, name), key=lambda e: e.ulps) for one, run in zip(single, runs, strict=True)]
        found = [error for pair in zip(single, double, strict=True) for error in pair]
        # rounded up, so that the table never promises more than was seen
        cells = [f"{math.ceil(e.ulps * 100) / 100:.2f}" if e.ulps < 1000 else f"{e.ulps:.0e}" for e in found]
        print(f"{name:14} {' '.join(f'{c:>8}' for c in cells)}   worst at {' '.join(str(e.at) for e in found)}", flush=True)
        intervals = ", ".join("any" if d == ANY else "positive" if d == POSITIVE else f"[{d[0]:g}, {d[1]:g}]" for d in CASES[name].domain)
        lines.append(f"| `{name}` | {intervals} | {' | '.join(cells)} |")
    return lines


def ours(dialect: Dialect) -> tuple[str, str]:
    """The built-ins that are ours in both types, and those that are in float32 only; the exact ones left out."""
    both, single = [], []
    for name in sorted(CASES):
        first, second = (known.startswith("tc_") for known in dialect.functions.get(name, ("", "")))
        if first:
            (both if second else single).append(name)
    return f"`{' '.join(both)}`", f"`{' '.join(single)}`"


def page(lines: Sequence[str], count: int, targets: Sequence[str]) -> str:
    """The page on numerics around the lines of a table."""
    vector = "Of the others, those that glibc's libmvec has are called on whole registers.\n" if vector_math_symbols() else ""
    (opencl_both, opencl_single), (cuda_both, cuda_single) = ours(OPENCL), ours(CUDA)
    head = HEAD.format(
        points=f"{count:,}",
        exact=f"`{' '.join(EXACT)}`",
        vector=vector,
        opencl_both=opencl_both,
        opencl_single=opencl_single,
        cuda_both=cuda_both,
        cuda_single=cuda_single,
        targets="".join(f" {target} float32 | float64 |" for target in targets),
        rules="---|---|" * len(targets),
    )
    early = "\n`inf`: a result overflowed whose exact value does not.\n" if any("| inf |" in line for line in lines) else ""
    return head + "\n".join(lines) + "\n" + early + FOOT.format(devices="".join(f", `{t}` on {device(t)}" for t in targets))


def device(target: str) -> str:
    """What a target's numbers were measured with."""
    if target == "opencl":
        found = opencl.choose()
        return f"{found.platform.name.strip()} {found.device.driver_version.strip()}, {found.device.name.strip()}"
    if target == "cuda":
        return cuda.describe(torch.cuda.current_device())
    return f"{host.compiler().version}, glibc {platform.libc_ver()[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="built-ins; all of them without any")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--targets", default="cpu,opencl", help="what is measured, comma between: cpu, opencl, cuda (%(default)s)")
    parser.add_argument("--vector", action="store_true", help="measure the vector library function by function")
    parser.add_argument("--write", type=Path, help="write the table to a page")
    options = parser.parse_args()
    if options.vector:
        vector_report(options.samples)
        return
    targets = options.targets.split(",")
    lines = table(options.names or sorted(CASES), options.samples, targets)
    if options.write:
        options.write.write_text(page(lines, options.samples, targets), encoding="utf-8")


if __name__ == "__main__":
    main()
