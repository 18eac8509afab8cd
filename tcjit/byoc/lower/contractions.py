"""Products: matrices, batches of them, linear layers and einsum. Operands are stored first unless they are mere accesses."""
from __future__ import annotations

from collections.abc import Sequence

from tcjit.byoc.lower.builder import Element, NodeCall, broadcast, cast, wide
from tcjit.byoc.lower.elementwise import formula
from tcjit.byoc.lower.indices import variable
from tcjit.byoc.lower.reductions import finish
from tcjit.byoc.lower.rules import rule
from tcjit.byoc.lower.views import unsqueeze
from tcjit.errors import PartitionError
from tcjit.grammar.linear import Linear


def contract(call: NodeCall, operands: Sequence[tuple[Element, str]], out: str) -> Element:
    """The sum of products over the letters that are not in ``out``; each operand has a letter per dimension. A dimension of one element
    goes with any extent. Half types are multiplied and summed in float32, and the result is left so."""
    dtype = wide(call.dtype)
    extents: dict[str, int] = {}
    for element, letters in operands:
        for letter, extent in zip(letters, element.shape, strict=True):
            if extents.get(letter, 1) != extent and 1 not in (extents.get(letter, 1), extent):
                raise PartitionError(f"extents {extents[letter]} and {extent} of one index")
            extents[letter] = max(extent, extents.get(letter, 1))
    summed = [letter for letter in extents if letter not in out]

    def body(left: list[Linear], right: list[Linear]) -> str:
        places = dict(zip([*out, *summed], [*left, *right]))
        factors = []
        for element, letters in operands:
            subscripts = [Linear.of(0) if extent == 1 else places[letter] for letter, extent in zip(letters, element.shape)]
            factors.append(cast(element.at(subscripts), element.dtype, call.dtype))
        text = " * ".join(factors)
        return text if dtype == call.dtype else f"{dtype}({text})"

    if call.dtype == "bool":
        raise PartitionError("a product of bools")
    return call.builder.reduce("+", dtype, [extents[each] for each in out], [extents[each] for each in summed], body)


def _operand(call: NodeCall, name: str) -> Element:
    return _straight(call, call.materialised(name))


def _straight(call: NodeCall, element: Element) -> Element:
    """An operand whose subscripts have neither quotients nor remainders, which would keep its rows from being read in a stride."""
    text = element.at([variable(f"i{place}", extent) for place, extent in enumerate(element.shape)])
    return call.builder.store(element) if "/" in text or "%" in text else element


@rule("mm", "bmm", "mv", "dot", "vdot", "inner", "matmul")
def products(call: NodeCall) -> Element:
    left = _operand(call, "self")
    right = _operand(call, next(name for name in ("other", "mat2", "vec", "tensor") if name in call.node.arguments))
    if call.node.op == "aten.inner" and len(right.shape) > 1:
        raise PartitionError("an inner product of matrices")
    return finish(call, _matmul(call, left, right))


def _matmul(call: NodeCall, left: Element, right: Element) -> Element:
    """The product without dimensions that a vector stands in for."""
    ranks = len(left.shape), len(right.shape)
    if 0 in ranks:
        raise PartitionError("a product with a number")
    batch = _batch(max(*ranks, 2) - 2)
    names = [batch[len(batch) - rank + 2 :] if rank > 2 else "" for rank in ranks]
    first, second = names[0] + "MK"[-min(ranks[0], 2) :], names[1] + "KN"[: min(ranks[1], 2)]
    return contract(call, [(left, first), (right, second)], batch + ("M" if ranks[0] > 1 else "") + ("N" if ranks[1] > 1 else ""))


def _batch(count: int) -> str:
    return "abcdefgh"[:count]


def _added(call: NodeCall, base: Element, found: Element) -> Element:
    """beta times one thing plus alpha times another; a beta of zero leaves the first unread, NaN and all."""
    beta, alpha = call.number("beta", 1), call.number("alpha", 1)
    scaled = "{0}" if alpha == 1 else "{2} * {0}"
    if beta == 0:
        return formula(call, scaled, [found, base, alpha], 1, wide(call.dtype))
    text = f"{scaled} + {{1}}" if beta == 1 else f"{scaled} + {{3}} * {{1}}"
    return formula(call, text, [found, base, alpha, beta], 2, wide(call.dtype))


@rule("addmm", "addmv", "baddbmm")
def added_products(call: NodeCall) -> Element:
    names = {"aten.addmm": ("mat1", "mat2"), "aten.addmv": ("mat", "vec"), "aten.baddbmm": ("batch1", "batch2")}[call.node.op]
    left, right = (_operand(call, name) for name in names)
    return _added(call, call.tensor("self"), _matmul(call, left, right))


@rule("addbmm")
def added_batches(call: NodeCall) -> Element:
    found = contract(call, [(_operand(call, "batch1"), "aMK"), (_operand(call, "batch2"), "aKN")], "MN")
    return _added(call, call.tensor("self"), found)


@rule("linear")
def linear(call: NodeCall) -> Element:
    x, weight = _operand(call, "input"), _operand(call, "weight")
    batch = _batch(len(x.shape) - 1)
    out = "N" if len(weight.shape) > 1 else ""
    found = contract(call, [(x, batch + "K"), (weight, out + "K")], batch + out)
    bias = call.optional("bias")
    return finish(call, found) if bias is None else formula(call, "{0} + {1}", [found, bias], 1, wide(call.dtype))


@rule("outer", "ger")
def outer(call: NodeCall) -> Element:
    left, right = call.tensor("self"), call.tensor("vec2")
    return formula(call, "{0} * {1}", [unsqueeze(left, 1), broadcast(call.builder, right, call.shape)], 1)


@rule("einsum")
def einsum(call: NodeCall) -> Element:
    equation, given = call.word("equation").replace(" ", ""), call.node.arguments.get("tensors")
    values = given if isinstance(given, tuple) else ()
    if "." in equation or not 1 <= len(values) <= 2:
        raise PartitionError(f"einsum({equation!r}) over {len(values)} tensors")
    inputs, arrow, out = equation.partition("->")
    letters = inputs.split(",")
    if not arrow:
        out = "".join(sorted({letter for letter in inputs if letter.isalpha() and inputs.count(letter) == 1}))
    operands = [_straight(call, call.builder.keep(element)) for element in call.tensors("tensors")]
    return finish(call, contract(call, list(zip(operands, letters, strict=True)), out))
