"""Split residues: one statement for each residue class of dimensions that a condition or an access divides.

A transposed convolution of stride 2 computes ``(h + 1 - kh) % 2 == 0`` for a quarter of its terms: in the four statements of the parities
of ``h`` and ``w`` the kernel's dimensions run over the terms that there are, without a condition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import gcd, lcm

import islpy as isl

from tcjit.errors import VerifyError
from tcjit.mapping.nest.statement import DIM, Statement

MAX_CLASSES = 16  # statements that one may become: each is code of its own


def moduli(domain: isl.Set, dims: tuple[str, ...]) -> dict[str, int]:
    """For each dimension that an equality takes modulo something, the number of its residue classes."""
    found: dict[str, int] = {}
    for basic in domain.get_basic_sets():
        for constraint in basic.get_constraints():
            if not constraint.is_equality():
                continue
            modulus = gcd(*(constraint.get_coefficient_val(DIM.div, at).to_python() for at in range(basic.dim(DIM.div))))
            for at, dim in enumerate(dims) if modulus > 1 else ():
                coefficient = constraint.get_coefficient_val(DIM.set, at).to_python()
                if coefficient % modulus:
                    found[dim] = lcm(found.get(dim, 1), modulus // gcd(coefficient, modulus))
    return found


def classes(domain: isl.Set, dims: tuple[str, ...]) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """The moduli with the residues of each class that has a point; none where a domain asks for no modulus, or for too many classes."""
    counts = moduli(domain, dims)
    total = 1
    for count in counts.values():
        total *= count
    if not 1 < total <= MAX_CLASSES:
        return
    for residues in product(*(range(count) for count in counts.values())):
        yield counts, dict(zip(counts, residues, strict=True))


def embedding(ctx: isl.Context, dims: tuple[str, ...], counts: dict[str, int], residues: dict[str, int]) -> isl.MultiAff:
    """From the points of a class to those of the whole: ``d -> count * d + residue``."""
    image = ", ".join(f"{counts[dim]} * {dim} + {residues[dim]}" if dim in counts else dim for dim in dims)
    return isl.MultiAff.read_from_str(ctx, f"{{ [{', '.join(dims)}] -> [{image}] }}")


def verify_split_residues(before: Statement, after: list[tuple[Statement, isl.MultiAff]]) -> None:
    """Prove that every point is in one class."""
    left = before.domain
    for s, points in after:
        image = s.domain.apply(isl.Map.from_multi_aff(points))
        if not image.is_subset(left) or replace(s, domain=before.domain).body is not before.body:
            raise VerifyError(f"split_residues: {before.name}: classes overlap, or leave the domain")
        left = left.subtract(image)
    if not left.is_empty():
        raise VerifyError(f"split_residues: {before.name}: points without a class")
