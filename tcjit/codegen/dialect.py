"""What distinguishes the languages that kernels are printed in: tables, no behaviour.

A target is one ``Dialect``: the names of its scalar types, the qualifiers of its helper functions, and the name of each built-in at
both precisions. A name that starts with ``tc_`` is a helper of ours (``prelude``), any other the target's own.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

# Built-ins that every type has, with helpers per type: name -> number of arguments.
SIMPLE: dict[str, int] = {"abs": 1, "sign": 1, "relu": 1, "min": 2, "max": 2, "clamp": 3}

# What a machine's vector library may offer, and gcc may then call on whole registers. Each was measured by benchmarks/ulps.py: at most
# 4 ulp, and NaN, infinities, signed zeros and denormals as the scalar function has them. Those that fail are left out, and say why there.
VECTOR_MATH: frozenset[str] = frozenset()

_MANGLED = {
    "x86_64": ("_ZGVbN{two}{args}_{name}", "_ZGVcN{four}{args}_{name}", "_ZGVdN{four}{args}_{name}", "_ZGVeN{eight}{args}_{name}"),
    "aarch64": ("_ZGVnN{two}{args}_{name}",),
}
_TWO_ARGUMENTS = frozenset({"pow", "atan2", "hypot"})


def vector_math(machine: str, has: Callable[[str], bool]) -> frozenset[str]:
    """The trusted functions of which a vector library has every variant that compilers for ``machine`` may call.

    ``has`` answers for one symbol, named by the vector function ABI; a machine without such a library offers none.

    >>> vector_math("riscv64", lambda symbol: True)
    frozenset()
    """
    shapes = _MANGLED.get(machine, ())
    if not shapes:
        return frozenset()

    def complete(name: str) -> bool:
        single = name.endswith("f") and name != "erf"
        lanes = (4, 8, 16) if single else (2, 4, 8)
        args = "vv" if name.removesuffix("f") in _TWO_ARGUMENTS else "v"
        symbols = (s.format(two=lanes[0], four=lanes[1], eight=lanes[2], args=args, name=name) for s in shapes)
        return all(has(symbol) for symbol in symbols)

    return frozenset(name for name in VECTOR_MATH if complete(name))
