"""What of a def decides which mapping options can matter to it, whatever its sizes."""

from __future__ import annotations

from tcjit.grammar.ast import Access, Def
from tcjit.grammar.walk import walk

TRAITS = ("reduction", "several", "temporary")


def traits(definition: Def) -> tuple[str, ...]:
    """Those of ``TRAITS`` that a def has: it sums up along some index; lowering makes several statements of it, or buffers of its own.

    Wide sums and partial results come with reductions only, copies of operands also with values that are more than one access.
    """
    statements = definition.statements
    reduces = any(s.reduction for s in statements)
    copies = reduces or any(isinstance(a, Access) and len(a.subscripts) > 1 and a is not s.value for s in statements for a in walk(s.value))
    found = {
        "reduction": reduces,
        "several": copies or len(statements) > 1 or any(s.initialise for s in statements),
        "temporary": copies or any(t.role == "temporary" for t in definition.tensors),
    }
    return tuple(name for name in TRAITS if found[name])


def loops(definition: Def) -> int:
    """No more loops than this can be shared: a statement's own and one over chunks, or those of a copied operand."""
    copied = (len(part.subscripts) for s in definition.statements for part in walk(s.value) if isinstance(part, Access))
    return max([*(len(s.domain) + 1 for s in definition.statements), *copied], default=0)
