"""Pooling against PyTorch over windows, strides, paddings and dilations."""
from __future__ import annotations

import pytest
from support.library import Case, assert_agrees, assert_family_covered, cases, runs

PLANE = ({"N": 2, "C": 3, "H": 9, "W": 11}, {"N": 1, "C": 1, "H": 4, "W": 5})
WINDOWS = (
    {"kh": 2, "kw": 2, "sh": 2, "sw": 2, "ph": 0, "pw": 0},
    {"kh": 3, "kw": 4, "sh": 2, "sw": 1, "ph": 1, "pw": 2},
    {"kh": 1, "kw": 3, "sh": 3, "sw": 2, "ph": 0, "pw": 1},
)

CASES = [
    *cases("max_pool1d", {"N": 2, "C": 3, "L": 17}, scalars={"kernel": 3, "stride": 2, "padding": 1, "dilation": 2}),
    *cases("max_pool1d", {"N": 1, "C": 1, "L": 8}, scalars={"kernel": 2, "stride": 2, "padding": 0, "dilation": 1}),
    *(case for window in WINDOWS for case in cases("max_pool2d", *PLANE, scalars={**window, "dh": 1, "dw": 1})),
    *cases("max_pool2d", PLANE[0], scalars={"kh": 2, "kw": 3, "sh": 1, "sw": 2, "ph": 1, "pw": 1, "dh": 3, "dw": 2}),
    *(case for window in WINDOWS for case in cases("avg_pool2d", *PLANE, scalars=window)),
    *(case for window in WINDOWS for case in cases("avg_pool2d_inside", *PLANE, scalars=window)),
    *cases("global_avg_pool2d", *PLANE),
    *cases("adaptive_avg_pool2d", *PLANE, scalars={"oh": 4, "ow": 3}),
    *cases("adaptive_avg_pool2d", PLANE[0], scalars={"oh": 1, "ow": 11}),
]


@pytest.mark.parametrize(("case", "dtype", "target"), runs(CASES))
def test_agrees_with_pytorch(case: Case, dtype: str, target: str) -> None:
    assert_agrees(case, dtype, target)


def test_every_operator_has_a_case() -> None:
    assert_family_covered("pooling", CASES)
