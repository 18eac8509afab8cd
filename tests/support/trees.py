"""Schedule trees of GPU mappings, written by hand as text, and a tiled matrix product for the proofs to judge."""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from support.mapping import scop
from tcjit.errors import VerifyError
from tcjit.mapping import tree as trees
from tcjit.mapping.dependences import dependences
from tcjit.mapping.gpu_nest import LaunchBounds
from tcjit.mapping.marks import GridBlock, Launch
from tcjit.mapping.options import Options
from tcjit.mapping.races import verify_races
from tcjit.mapping.scop import Scop
from tcjit.mapping.storage import Axis, Buffer
from tcjit.mapping.verify import verify, verify_privates

BARE = Options(vector_width=1, pack=False, reduction_chunks=1)
Member = dict[str, str]
LAUNCH = (LaunchBounds(Launch(0), 256),)

# ---------------------------------------------------------------- trees as text


def mark(name: str, child: str) -> str:
    """A node under a mark; no mark for an empty name."""
    return f'{{ mark: "{name}", child: {child} }}' if name else child


def band(members: Sequence[Member], child: str = "") -> str:
    text = ", ".join("{ " + "; ".join(f"{point} -> [({e})]" for point, e in m.items()) + " }" for m in members)
    return f'{{ schedule: "[{text}]"' + (f", child: {child}" if child else "") + " }"


def sequence(*parts: tuple[str, str]) -> str:
    return "{ sequence: [ " + ", ".join(f'{{ filter: "{{ {points} }}", child: {child} }}' for points, child in parts) + " ] }"


def threads(sizes: str, digits: Sequence[Member], child: str = "") -> str:
    return mark(f"threads {sizes}", band(digits, child))


def tree(made: Scop, child: str) -> isl.Schedule:
    return trees.read(made.ctx, f'{{ domain: "{made.domain}", child: {child} }}')


def prove(made: Scop, mapped: isl.Schedule, buffers: Sequence[Buffer] = (), launches: Sequence[LaunchBounds] = LAUNCH) -> None:
    """All that is proved of a tree."""
    deps = dependences(made)
    verify(made, deps, mapped)
    verify_privates(made, deps, mapped, buffers)
    verify_races(made, mapped, buffers, launches)


def refusal(made: Scop, mapped: isl.Schedule, buffers: Sequence[Buffer] = (), launches: Sequence[LaunchBounds] = LAUNCH) -> str:
    """Why a tree is not proved; empty if it is."""
    try:
        prove(made, mapped, buffers, launches)
    except VerifyError as error:
        return str(error)
    return ""


def folds(*parts: tuple[tuple[int, int, int], ...]) -> tuple[Axis, ...]:
    return tuple(Axis(0, part) for part in parts)


# ---------------------------------------------------------------- a tiled product

S0, CA, CB, S3, S4 = "S0[m,n]", "S1[p,q,s,l,c]", "S2[p,q,s,c,l]", "S3[m,n,k]", "S4[m,n]"


def product(m: int, n: int, k: int, tile: int, step: int) -> Scop:
    """A product of matrices as a lowering makes it: accumulators, and copies of pieces for each block and step."""
    text = f"""
def mm(float(M,K) A, float(K,N) B) -> (C) {{
    C_acc(m, n) = 0.0 where m in 0:M, n in 0:N
    A_sh(p, q, s, l, c) = A({tile} * p + l, {step} * s + c)
        where p in 0:{m // tile}, q in 0:{n // tile}, s in 0:{k // step}, l in 0:{tile}, c in 0:{step}
    B_sh(p, q, s, c, l) = B({step} * s + c, {tile} * q + l)
        where p in 0:{m // tile}, q in 0:{n // tile}, s in 0:{k // step}, l in 0:{tile}, c in 0:{step}
    C_acc(m, n) += A_sh(m/{tile}, n/{tile}, k/{step}, m%{tile}, k%{step}) * B_sh(m/{tile}, n/{tile}, k/{step}, k%{step}, n%{tile})
        where m in 0:M, n in 0:N, k in 0:K
    C(m, n) = C_acc(m, n) where m in 0:M, n in 0:N
}}"""
    return scop(text, {"A": (m, k), "B": (k, n)}, BARE)


def patch(point: str, tile: int, child: str = "") -> str:
    """The threads of a patch of results: 16 x 16, each with every sixteenth row and column."""
    inner = band([{point: f"floor((m mod {tile})/16)"}, {point: f"floor((n mod {tile})/16)"}])
    return threads("16x16", [{point: "m mod 16"}, {point: "n mod 16"}], band([{point: child}], inner) if child else inner)


def product_tree(
    made: Scop,
    tile: int,
    step: int,
    first: str = "sync block",
    second: str = "sync block",
    a_digits: str = f"32x{8}",
    ahead: int = 0,
    swapped: bool = False,
    store: str = "",
    wait: str = "",
) -> isl.Schedule:
    """A loop of steps, each with a barrier, the two copies, a barrier, and the products."""
    copy_a = threads(a_digits, [{CA: "l mod 32"}, {CA: "c"}], band([{CA: "floor(l/32)"}]))
    copy_b = threads("2x128", [{CB: "c mod 2"}, {CB: "l mod 128"}], band([{CB: "floor(c/2)"}, {CB: "floor(l/128)"}]))
    if wait:
        copy_a, copy_b = mark("async_copy", copy_a), mark("async_copy", copy_b)
    copies = sequence((CA, copy_a), (CB, copy_b))
    parts = [(f"{CA}; {CB}", copies if wait else mark(first, copies)), (S3, mark(second, patch(S3, tile, f"k mod {step}")))]
    body = sequence(*(reversed(parts) if swapped else parts))
    loop = band([{CA: f"s - {ahead}", CB: f"s - {ahead}", S3: f"floor(k/{step})"}], mark(wait, mark("sync block", body)) if wait else body)
    inside = sequence((S0, patch(S0, tile)), (f"{CA}; {CB}; {S3}", loop), (S4, store or patch(S4, tile)))
    blocks = [dict.fromkeys((S0, S3, S4), f"floor({d}/{tile})") | {CA: b, CB: b} for d, b in (("m", "p"), ("n", "q"))]
    return tree(made, mark("launch 0", mark("grid", band(blocks, mark("block 0", inside)))))


def product_buffers(tile: int, step: int, stages: int = 1) -> tuple[Buffer, Buffer, Buffer]:
    piece = tile * step
    stage = ((1, stages, piece),) if stages > 1 else ()
    each = tile // 16
    return (
        Buffer("A_sh", GridBlock(0), "shared", folds((), (), stage, ((1, tile, 1),), ((1, step, tile),)), piece * stages),
        Buffer("B_sh", GridBlock(0), "shared", folds((), (), stage, ((1, step, tile),), ((1, tile, 1),)), piece * stages),
        Buffer("C_acc", GridBlock(0), "thread", folds(((16, each, each),), ((16, each, 1),)), each * each),
    )


SIZES = (64, 128, 32, 32, 8)  # m, n, k, tile, step
CUT = SIZES[3:]
