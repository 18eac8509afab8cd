"""Save: temporaries that a def hands on to its adjoint, which then need not compute them again.

Statistics of rows are saved, sums and extremes along a part of a tensor that the def reads: they have fewer elements than it, and it would
be read again for them. So are long sums of products that are not much larger than what the def reads and returns, as those of a layer
before its activation. What has more elements, scores of attention for one, is computed again.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tcjit.errors import CheckError
from tcjit.grammar.ast import Access, Binary, Def, Expr, Index, Statement, Tensor
from tcjit.grammar.batch import meaning
from tcjit.grammar.differentiate.size_hints import Extent, SizeHints
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.front import read
from tcjit.grammar.polynomial import Value, integer
from tcjit.grammar.printer import show
from tcjit.grammar.walk import walk

LONG = 200  # multiply-adds of float32 that take longer than an element takes to be stored and read again
WIDER = {"float64": 2}  # times as long as a multiply-add of float32 those of another type take
INTEGER = 4  # and of integers: they are widened first, and the processor has none in one instruction
ROOM = 4  # times the elements of inputs and results that a sum may have: hidden layers of four times the width are saved, scores seldom


def statistics(definition: Def) -> list[str]:
    """The temporaries that are statistics of rows."""
    return [t.name for t, s in _temporaries(definition) if _is_along_a_part(s)]


def contractions(definition: Def, size_hints: SizeHints) -> list[str]:
    """The temporaries that are long sums of products, for sizes as hinted, and not much larger than all inputs and results together."""
    sums = [(t, s) for t, s in _temporaries(definition) if s.operator == "+=" and s.reduction and _multiplies(s)]
    given: Value = 0
    for t in definition.tensors if sums else ():
        elements = _product(t.shape) if t.role != "temporary" else 0
        if elements is None:
            return []
        given += elements
    found = []
    for t, s in sums:
        terms = _product(Binary("-", r.upper, r.lower, dtype="int64") for r in s.domain if r.index in s.reduction)
        elements = _product(t.shape)
        if terms is None or not all(map(size_hints.knows, (terms, elements, given))):
            continue
        if size_hints.order(terms * _multiply_adds(s), LONG) >= 0:
            found += [t.name] if size_hints.order(elements, given * ROOM) <= 0 else []
    return found


def _temporaries(definition: Def) -> list[tuple[Tensor, Statement]]:
    """Those that have dimensions, each with the first statement that writes it."""
    first: dict[str, Statement] = {}
    for s in definition.statements:
        first.setdefault(s.tensor, s)
    return [(t, first[t.name]) for t in definition.tensors if t.role == "temporary" and t.rank]


def _product(extents: Iterable[Expr]) -> Extent:
    """None where an extent is no polynomial of sizes."""
    found: Extent = 1
    for extent in extents:
        value = integer(extent)
        found = None if value is None or found is None else found * value
    return found


def _multiply_adds(s: Statement) -> int:
    """Those of float32 that each term of a sum takes as long as: what tensors are combined by, and what is done twice counted once."""
    operations = {node for node in walk(s.value) if isinstance(node, Binary) and _combines(node)}
    dtype = s.value.dtype
    return len(operations) * (WIDER.get(dtype, 1) if DTYPES[dtype].kind == "float" else INTEGER)


def _multiplies(s: Statement) -> bool:
    """Whether elements of tensors are multiplied with one another."""
    return any(isinstance(node, Binary) and node.op == "*" and _combines(node) for node in walk(s.value))


def _combines(node: Binary) -> bool:
    """Whether both operands read tensors."""
    return all(any(isinstance(part, Access) for part in walk(side)) for side in (node.left, node.right))


def _is_along_a_part(s: Statement) -> bool:
    """Whether a reduction has its results along some dimensions of a tensor, and its terms along others."""
    results = _indices(s.subscripts)
    read = (_indices(node.subscripts) for node in walk(s.value) if isinstance(node, Access))
    return bool(s.reduction) and results is not None and any(found is not None and results < found for found in read)


def _indices(subscripts: Sequence[object]) -> set[str] | None:
    """The names of subscripts that are indices, each another one."""
    names = {sub.name for sub in subscripts if isinstance(sub, Index)}
    return names if len(names) == len(subscripts) else None


def returning(definition: Def, names: Sequence[str]) -> str:
    """The text of an inferred def that returns temporaries, too, behind its own results, under its own name, which errors name. Empty
    where no text says the same, as where literals alone make a value that is wider than they are."""
    results = [definition.tensor(name) for name in definition.returns] + [replace(definition.tensor(name), role="output") for name in names]
    rest = [t for t in definition.tensors if t.name not in names and t.role != "output"]
    tensors = (*(t for t in rest if t.role == "input"), *results, *(t for t in rest if t.role == "temporary"))
    intended = replace(definition, returns=(*definition.returns, *names), tensors=tensors)
    text = show(intended)
    try:
        (made,) = read(text)
    except CheckError:
        return ""
    return text if meaning(made) == meaning(intended) else ""
