"""Strip-mine products: on a GPU, dimensions of results that a product's operands divide by numbers become their digits, for a tile.

``A(h, s) +=! Q(h, d) * K(h / 4, s, d)``, heads that share keys, reads no operand again along ``h``. Over ``4 * g + h`` it does: the four
``h`` of a ``g`` are rows of a matrix product with the columns ``s``. So are the filters of a group of a convolution.
"""

from __future__ import annotations

from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.machine import Device
from tcjit.mapping.nest.strip_mine import split_divisions
from tcjit.mapping.options import Options
from tcjit.mapping.passes.chunk_reductions import guarded_sides
from tcjit.mapping.passes.pack_operands import WORTH, cycles_alone


def strip_mine_products(before: Assignments, options: Options, device: Device) -> Assignments:
    """The program with digits in sums of products that are matrix products in these alone, and faster."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        split, strips = split_divisions(a, before.values)
        if not strips or a.dynamic or guarded_sides(a, before) is not None or guarded_sides(split, before) is None:
            return [a]
        whole, parts = (cycles_alone([one], temporaries, before, options, device) for one in (a, split))
        return [split] if parts < WORTH * whole else [a]

    return rewrite(before, visit)
