"""Look-ups, gathers and rearrangements against PyTorch."""
from __future__ import annotations

import pytest
from support.library import TARGETS, Case, assert_agrees, assert_family_covered, below, cases, coin, normal, runs

BAGS = ({"E": 11, "D": 5, "B": 3, "L": 4}, {"E": 1, "D": 1, "B": 1, "L": 1}, {"E": 50, "D": 33, "B": 2, "L": 17})


def looked_up(name: str) -> list[Case]:
    return [case for sizes in BAGS for case in cases(name, sizes, draws={"Index": below(sizes["E"])})]


EMBEDDING = [
    case
    for name in ("embedding", "embedding_bag_sum", "embedding_bag_mean", "embedding_bag_max", "embedding_bag_weighted")
    for case in looked_up(name)
]
MATRIX = {"M": 9, "N": 7, "K": 5}
INDEXING = [
    *cases("select_rows", MATRIX, {"M": 1, "N": 1, "K": 40}, draws={"Index": below(1)}),
    *cases("select_rows", MATRIX, draws={"Index": below(9)}),
    *cases("select_columns", MATRIX, draws={"Index": below(7)}),
    *cases("gather_rows", MATRIX, draws={"Index": below(9)}),
    *cases("gather_columns", MATRIX, draws={"Index": below(7)}),
    *cases("masked_fill", {"M": 9, "N": 7}, scalars={"value": -2.5}, draws={"Mask": coin}),
    *cases("one_hot_product", {"N": 12, "C": 5, "D": 3}, draws={"Class": below(5)}),
]
PLANE = ({"N": 2, "C": 3, "H": 5, "W": 4}, {"N": 1, "C": 1, "H": 1, "W": 7})
REARRANGEMENT = [
    *cases("transpose", {"M": 5, "N": 70}, {"M": 1, "N": 1}),
    *cases("swap_inner_axes", {"A": 2, "B": 3, "C": 4, "D": 5}, {"A": 1, "B": 1, "C": 2, "D": 1}),
    *(case for name in ("channels_last", "channels_first") for case in cases(name, *PLANE)),
    *cases("concat_rows", {"M": 3, "N": 5, "P": 4}, {"M": 1, "N": 1, "P": 9}),
    *cases("concat_columns", {"M": 3, "N": 5, "P": 4}, {"M": 1, "N": 9, "P": 1}),
    *cases("pad2d", *PLANE, scalars={"left": 1, "right": 2, "top": 0, "bottom": 3, "value": 1.5}),
    *cases("flip_columns", {"M": 3, "N": 8}, {"M": 1, "N": 1}),
    *cases("lower_triangle", {"M": 6, "N": 6}, {"M": 3, "N": 8}, {"M": 8, "N": 3}),
    *cases("upsample_nearest2d", *PLANE, scalars={"r": 3}),
    *cases("pixel_shuffle", {"N": 2, "C": 12, "H": 3, "W": 4}, {"N": 1, "C": 4, "H": 1, "W": 1}, scalars={"r": 2}),
    *cases("unfold2d", *PLANE, scalars={"kh": 2, "kw": 3, "sh": 2, "sw": 1, "ph": 1, "pw": 1}),
]


@pytest.mark.parametrize(("case", "dtype", "target"), runs(EMBEDDING + INDEXING + REARRANGEMENT))
def test_agrees_with_pytorch(case: Case, dtype: str, target: str) -> None:
    assert_agrees(case, dtype, target)


@pytest.mark.sample(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("index", ["int32", "uint8", "int16"])
def test_indices_of_any_width(index: str, target: str) -> None:
    sizes = {"E": 11, "D": 5, "B": 3, "L": 4}
    assert_agrees(Case("embedding_bag_sum", sizes, draws={"Index": below(11), "Table": normal}), "float32", target, index)


def test_every_operator_has_a_case() -> None:
    assert_family_covered("embedding", EMBEDDING)
    assert_family_covered("indexing", INDEXING)
    assert_family_covered("rearrangement", REARRANGEMENT)
