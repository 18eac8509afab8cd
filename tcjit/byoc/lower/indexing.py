"""Reading through integer tensors, and putting tensors side by side. A place outside of a tensor is an error of the kernel."""
from __future__ import annotations

from collections.abc import Sequence

from tcjit.byoc.graph import Argument, Value
from tcjit.byoc.lower.builder import Element, NodeCall, broadcast, cast, converted, literal, wide
from tcjit.byoc.lower.elementwise import operand
from tcjit.byoc.lower.indices import from_text, inside, interval
from tcjit.byoc.lower.rules import rule
from tcjit.byoc.lower.views import unsqueeze
from tcjit.errors import PartitionError
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear

# any integer at all: nothing is concluded from a place before it is checked
_ANY = 1 << 62


def _table(call: NodeCall, name: str) -> Element:
    """What is read from: a tensor of its own, whose extents the kernel checks places against."""
    found = call.materialised(name)
    return found if call.builder.plain(found) else call.builder.store(found)


def integer_tensor(call: NodeCall, name: str) -> Element:
    """A tensor of integers."""
    found = call.tensor(name)
    if not DTYPES[found.dtype].is_integer:
        raise PartitionError(f"its {name} are {found.dtype}")
    return found


def through(index: Element, subscripts: Sequence[Linear]) -> Linear:
    """A subscript that is read from a tensor."""
    return from_text(index.at(subscripts), -_ANY, _ANY)


@rule("embedding")
def embedding(call: NodeCall) -> Element:
    table, index = _table(call, "weight"), integer_tensor(call, "indices")
    return Element(table.dtype, call.shape, lambda at: table.at([through(index, at[:-1]), at[-1]]), index.cost + 2)


@rule("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(call: NodeCall) -> list[Element | str]:
    """Sums or means of rows, where the model itself says that all bags are of one size: by offsets that count in steps."""
    table, index, mode = _table(call, "weight"), integer_tensor(call, "indices"), call.integer("mode", 0)
    bags = call.shape[0]
    length = _steady(call.argument("offsets"), bags, index.size)
    if not length or call.flag("include_last_offset"):
        raise PartitionError("its bags are known at the run only")
    if mode not in (0, 1) or call.argument("per_sample_weights") is not None or call.integer("padding_idx", -1) != -1:
        raise PartitionError("weighs its rows, leaves some out or takes the greatest")
    dtype = wide(call.dtype)

    def body(left: list[Linear], right: list[Linear]) -> str:
        place = through(index, [left[0].times(length) + right[0]])
        return cast(table.at([place, left[1]]), table.dtype, dtype)

    found = call.builder.reduce("+", dtype, call.shape, [length], body)
    if mode == 1:
        total = found
        found = Element(dtype, total.shape, lambda at: f"({total.at(at)} / {literal(length, dtype)})", 4)
    return [converted(found, call.dtype), *["the rest of its results is for its gradient"] * 3]


def _steady(offsets: Argument, bags: int, rows: int) -> int:
    """The size of each bag; 0 where that is not known."""
    node = offsets.producer if isinstance(offsets, Value) else None
    if node is None or node.op != "aten.arange":
        return 0
    start, step = node.arguments.get("start") or 0, node.arguments.get("step", 1)
    return step if start == 0 and isinstance(step, int) and step * bags == rows else 0


@rule("index_select")
def index_select(call: NodeCall) -> Element:
    table, index = _table(call, "self"), integer_tensor(call, "index")
    dim = call.axis("dim", len(table.shape))
    if not table.shape or not index.shape:
        raise PartitionError("a tensor without dimensions")
    return Element(
        table.dtype, call.shape, lambda at: table.at([*at[:dim], through(index, [at[dim]]), *at[dim + 1 :]]), index.cost + 2
    )


@rule("gather", "take_along_dim")
def gather(call: NodeCall) -> Element:
    if call.node.op == "aten.take_along_dim":
        raise PartitionError("its places may count from the end")
    table, index = _table(call, "self"), integer_tensor(call, "index")
    dim = call.axis("dim", len(table.shape))
    if not table.shape or not index.shape:
        raise PartitionError("a tensor without dimensions")
    return Element(table.dtype, call.shape, lambda at: table.at([*at[:dim], through(index, at), *at[dim + 1 :]]), index.cost + 2)


@rule("index", "_unsafe_index")
def index_tensors(call: NodeCall) -> Element:
    """Advanced indexing: the places broadcast together; their dimensions stand where the first was if they are neighbours, else first."""
    table, given = _table(call, "self"), call.argument("indices")
    if not isinstance(given, tuple) or not all(each is None or isinstance(each, Value) for each in given):
        raise PartitionError("its indices are known at the run only")
    positions: dict[int, Element] = {}
    for dim, each in enumerate(given):
        if isinstance(each, Value):
            found = call.builder.settle(each)
            if not DTYPES[found.dtype].is_integer:
                raise PartitionError(f"indexes by {found.dtype}")
            positions[dim] = found
    dims = list(positions)
    rest = [dim for dim in range(len(table.shape)) if dim not in positions]
    common = len(call.shape) - len(rest)
    start = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    shape = call.shape[start : start + common]
    spread = {dim: broadcast(call.builder, each, shape) for dim, each in positions.items()}

    def at(subscripts: Sequence[Linear]) -> str:
        inner, outer = subscripts[start : start + common], [*subscripts[:start], *subscripts[start + common :]]
        found = dict(zip(rest, outer))
        for dim, each in spread.items():
            text = each.at(inner)
            found[dim] = from_text(f"({text} < 0) ? {text} + {table.shape[dim]} : {text}", -_ANY, _ANY)
        return table.at([found[dim] for dim in range(len(table.shape))])

    return Element(table.dtype, call.shape, at, 4)


# ---------------------------------------------------------------- side by side


@rule("cat", "concat", "concatenate")
def cat(call: NodeCall) -> Element:
    dim = call.axis("dim" if "dim" in call.node.arguments else "axis", len(call.shape), 0)
    parts = [converted(each, call.dtype) for each in call.tensors("tensors")]
    starts = [0]
    for each in parts:
        starts.append(starts[-1] + each.shape[dim])

    def at(subscripts: Sequence[Linear]) -> str:
        text = ""
        for start, part in reversed(list(zip(starts, parts))):
            tests = inside(subscripts[dim], start, start + part.shape[dim])
            if tests is None:
                continue
            own = part.at([*subscripts[:dim], subscripts[dim] - start, *subscripts[dim + 1 :]])
            # those after it hold the rest
            text = f"(({' && '.join(tests)}) ? {own} : {text})" if text and tests else own
        return text

    return Element(call.dtype, call.shape, at, max(each.cost for each in parts) + len(parts) - 1)


@rule("stack")
def stack(call: NodeCall) -> Element:
    dim = call.axis("dim", len(call.shape), 0)
    parts = [unsqueeze(converted(each, call.dtype), dim) for each in call.tensors("tensors")]

    def at(subscripts: Sequence[Linear]) -> str:
        place, zero = subscripts[dim], [*subscripts[:dim], Linear.of(0), *subscripts[dim + 1 :]]
        text = parts[-1].at(zero)
        for count in reversed(range(len(parts) - 1)):
            text = f"(({place} < {count + 1}) ? {parts[count].at(zero)} : {text})"  # those before it hold the rest
        if not place.terms:
            text = parts[place.constant].at(zero)
        return text

    return Element(call.dtype, call.shape, at, max(each.cost for each in parts) + len(parts) - 1)


@rule("constant_pad_nd", "pad", "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d")
@rule("reflection_pad3d", "replication_pad3d")
def pad(call: NodeCall) -> Element:
    name = call.node.op.removeprefix("aten.")
    mode = name.partition("_")[0] if "_pad" in name else call.word("mode") or "constant"
    x, amounts = call.tensor("self"), call.integers("pad" if "pad" in call.node.arguments else "padding")
    before = [0] * len(x.shape)
    for place in range(len(amounts) // 2):
        before[-1 - place] = amounts[2 * place]
    if mode == "constant":
        value = operand(call, "value") if call.argument("value") is not None else 0
        if isinstance(value, Element):
            raise PartitionError("pads with a tensor")
        return _zeros_around(call, x, before, literal(value, call.dtype))
    if mode not in ("reflect", "reflection", "replicate", "replication", "circular"):
        raise PartitionError(f"pads by {mode}")
    found = call.builder.keep(x) if x.cost > 2 else x
    for dim, amount in enumerate(before):
        if found.shape[dim] != call.shape[dim]:
            found = _wrapped(found, dim, amount, call.shape[dim], mode)
    return found


def _zeros_around(call: NodeCall, x: Element, before: Sequence[int], value: str) -> Element:
    def at(subscripts: Sequence[Linear]) -> str:
        positions = [each - amount for each, amount in zip(subscripts, before)]
        tests: list[str] = []
        for place, extent in zip(positions, x.shape):
            found = inside(place, 0, extent)
            if found is None:
                return value
            tests += found
        text = x.at(positions)
        return f"(({' && '.join(tests)}) ? {text} : {value})" if tests else text

    return Element(x.dtype, call.shape, at, x.cost + 1)


def _wrapped(x: Element, dim: int, amount: int, length: int, mode: str) -> Element:
    extent = x.shape[dim]
    shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])

    def at(subscripts: Sequence[Linear]) -> str:
        place = subscripts[dim] - amount
        if mode == "circular":
            return x.at([*subscripts[:dim], place % extent, *subscripts[dim + 1 :]])

        def read(there: Linear) -> str:
            return x.at([*subscripts[:dim], there, *subscripts[dim + 1 :]])

        reflects = mode.startswith("reflect")
        least, greatest = interval(place)
        text = read(place)
        if greatest >= extent:
            text = f"(({place} < {extent}) ? {text} : {read(place.times(-1) + (2 * extent - 2) if reflects else Linear.of(extent - 1))})"
        return f"(({place} >= 0) ? {text} : {read(place.times(-1) if reflects else Linear.of(0))})" if least < 0 else text

    return Element(x.dtype, shape, at, x.cost + 1)


@rule("tril", "triu")
def triangle(call: NodeCall) -> Element:
    x, diagonal = call.tensor("self"), call.integer("diagonal", 0)
    sign = "<=" if call.node.op == "aten.tril" else ">="

    def at(subscripts: Sequence[Linear]) -> str:
        return f"(({subscripts[-1]} {sign} {subscripts[-2] + diagonal}) ? {x.at(subscripts)} : {literal(0, x.dtype)})"

    return Element(x.dtype, call.shape, at, x.cost + 1)


@rule("slice_scatter", "select_scatter")
def scattered(call: NodeCall) -> Element:
    """A copy with a part replaced."""
    x, source = call.tensor("self"), converted(call.tensor("src"), call.dtype)
    dim = call.axis("dim", len(x.shape), 0)
    extent, step, length = x.shape[dim], 1, 1
    if call.node.op == "aten.select_scatter":
        start = call.integer("index")
        source = unsqueeze(source, dim)
    else:
        start, step, length = call.integer("start", 0), call.integer("step", 1), source.shape[dim]
    start = min(max(start + extent if start < 0 else start, 0), extent)

    def at(subscripts: Sequence[Linear]) -> str:
        place = subscripts[dim] - start
        tests = inside(place, 0, step * (length - 1) + 1)
        if tests is None:
            return x.at(subscripts)
        if step > 1:
            tests.append(f"{place % step} == 0")
        own = source.at([*subscripts[:dim], place // step, *subscripts[dim + 1 :]])
        return f"(({' && '.join(tests)}) ? {own} : {x.at(subscripts)})" if tests else own

    return Element(x.dtype, call.shape, at, x.cost + source.cost + 1)


