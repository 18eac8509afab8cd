"""Scaled dot-product attention: scores, a softmax that is safe against overflow and empty rows, the weighted sum of the values."""
from __future__ import annotations

import math
from collections.abc import Sequence

from tcjit.byoc.lower.builder import Element, NodeCall, broadcast, cast, converted, literal, wide
from tcjit.byoc.lower.elementwise import floating
from tcjit.byoc.lower.normalisation import combined, dropped
from tcjit.byoc.lower.reductions import reduced
from tcjit.byoc.lower.rules import rule
from tcjit.errors import PartitionError
from tcjit.grammar.linear import Linear


@rule("scaled_dot_product_attention")
def attention(call: NodeCall) -> Element:
    query, key, value = (call.materialised(name) for name in ("query", "key", "value"))
    dtype, builder = wide(call.dtype), call.builder
    if call.number("dropout_p", 0) != 0:
        raise PartitionError("drops at random")
    if not floating(call.dtype):
        raise PartitionError(f"attention of {call.dtype}")
    *lead, rows, width = query.shape
    keys = key.shape[-2]
    given = call.argument("scale")
    factor = literal(1 / math.sqrt(width) if given is None else call.number("scale"), dtype)
    spread = [_batched(call, each, lead) for each in (key, value)]
    shape = (*lead, rows, keys)
    # without a read of the scores beyond the diagonal they are not computed there
    causal = call.flag("is_causal")

    def below(subscripts: Sequence[Linear], text: str, otherwise: str) -> str:
        return f"(({subscripts[-1]} <= {subscripts[-2]}) ? {text} : {otherwise})" if causal else text

    def product(left: list[Linear], right: list[Linear]) -> str:
        texts = [query.at([*left[:-1], *right]), spread[0].at([*left[:-2], left[-1], *right])]
        return below(left, " * ".join(cast(text, query.dtype, dtype) for text in texts), literal(0, dtype))

    raw = builder.reduce("+", dtype, shape, [width], product)
    mask = call.optional("attn_mask")
    over = None if mask is None else broadcast(builder, mask, shape)

    def score(subscripts: Sequence[Linear]) -> str:
        text = f"{raw.at(subscripts)} * {factor}"
        if over is not None and over.dtype == "bool":
            text = f"({over.at(subscripts)} ? {text} : -infinity())"
        elif over is not None:
            text = f"{text} + {cast(over.at(subscripts), over.dtype, dtype)}"
        return below(subscripts, text, "-infinity()")

    scores = builder.keep(Element(dtype, shape, score, 4))
    dim = len(shape) - 1
    top = dropped(reduced(builder, scores, [dim], "max", dtype), shape, [dim])
    powers = builder.keep(
        Element(
            dtype,
            shape,
            lambda at: below(at, _power(scores.at(at), top.at(at), over is not None), literal(0, dtype)),
            12,
        )
    )
    total = dropped(reduced(builder, powers, [dim], "+", dtype), call.shape, [dim])

    def weighted(left: list[Linear], right: list[Linear]) -> str:
        text = f"{powers.at([*left[:-1], *right])} * {cast(spread[1].at([*left[:-2], *right, left[-1]]), value.dtype, dtype)}"
        return below([*left[:-1], *right], text, literal(0, dtype))

    sums = builder.reduce("+", dtype, call.shape, [keys], weighted)
    text = "({1} == 0.0) ? 0.0 : {0} / {1}" if over is not None else "{0} / {1}"
    return converted(combined(text, dtype, call.shape, [sums, total], 4), call.dtype)


def _power(score: str, top: str, masked: bool) -> str:
    """A row in which everything is masked has no greatest score; PyTorch gives zeros for it."""
    return f"(({top} == -infinity()) ? 0.0 : exp({score} - {top}))" if masked else f"exp({score} - {top})"


def _batched(call: NodeCall, each: Element, lead: Sequence[int]) -> Element:
    """Keys or values for all leading dimensions; several heads of queries may share one of theirs."""
    shape = (*lead, *each.shape[-2:])
    if not call.flag("enable_gqa") or len(each.shape) < 3 or each.shape[-3] == lead[-1]:
        return broadcast(call.builder, each, shape)
    share = lead[-1] // each.shape[-3]

    def at(subscripts: Sequence[Linear]) -> str:
        return each.at([*subscripts[:-3], subscripts[-3] // share, *subscripts[-2:]])

    return Element(each.dtype, shape, at, each.cost)
