"""Convolutions, Winograd's among them, against PyTorch over strides, paddings, dilations and groups."""
from __future__ import annotations

import pytest
from support.library import TARGETS, Case, assert_agrees, assert_family_covered, cases, runs

PLAIN1 = {"stride": 1, "padding": 0, "dilation": 1}
WINDOWS1 = (PLAIN1, {"stride": 2, "padding": 1, "dilation": 1}, {"stride": 3, "padding": 4, "dilation": 2})
PLAIN2 = {"sh": 1, "sw": 1, "ph": 0, "pw": 0, "dh": 1, "dw": 1}
SAME2 = {**PLAIN2, "ph": 1, "pw": 1}
SKEW2 = {"sh": 2, "sw": 3, "ph": 2, "pw": 1, "dh": 2, "dw": 1}
WINDOWS2 = (PLAIN2, SAME2, SKEW2)

LINE = {"N": 2, "C": 3, "L": 19, "F": 4, "K": 3}
PLANE = {"N": 2, "C": 3, "H": 9, "W": 11, "F": 4, "KH": 3, "KW": 2}
POINT = {"N": 1, "C": 1, "H": 5, "W": 5, "F": 1, "KH": 1, "KW": 1}

CASES = [
    *(case for window in WINDOWS1 for case in cases("conv1d", LINE, {"N": 1, "C": 1, "L": 33, "F": 1, "K": 5}, scalars=window)),
    *(case for window in WINDOWS1 for case in cases("group_conv1d", {**LINE, "G": 2}, scalars=window)),
    *(case for window in WINDOWS2 for case in cases("conv2d", PLANE, POINT, scalars=window)),
    *cases("conv2d_valid", PLANE, POINT, {**PLANE, "H": 3, "W": 34}),
    *(case for window in WINDOWS2 for case in cases("group_conv2d", {**PLANE, "G": 3, "C": 2, "F": 2}, scalars=window)),
    *(
        case
        for groups in (1, 2, 4)
        for case in cases("conv2d_groups", {**PLANE, "C": 4, "D": 4 // groups, "F": 8}, scalars={**SKEW2, "groups": groups})
    ),
    *(case for window in WINDOWS2 for case in cases("depthwise_conv2d", {**PLANE, "C": 5}, scalars=window)),
    *cases("pointwise_conv2d", PLANE, POINT),
    *(case for window in WINDOWS2 for case in cases("conv_transpose2d", {**PLANE, "H": 4, "W": 5}, scalars=window)),
]
WINOGRAD = [
    *cases("winograd_conv2d", {"N": 2, "C": 3, "H": 8, "W": 6, "F": 4}, scalars={"ph": 0, "pw": 0}),
    *cases("winograd_conv2d", {"N": 1, "C": 1, "H": 3, "W": 3, "F": 1}, scalars={"ph": 0, "pw": 0}),
    *cases("winograd_conv2d", {"N": 1, "C": 2, "H": 7, "W": 9, "F": 3}, scalars={"ph": 1, "pw": 0}),
    *cases("winograd_conv2d", {"N": 1, "C": 2, "H": 5, "W": 5, "F": 2}, scalars={"ph": 2, "pw": 1}),
]


@pytest.mark.parametrize(("case", "dtype", "target"), runs(CASES + WINOGRAD))
def test_agrees_with_pytorch(case: Case, dtype: str, target: str) -> None:
    assert_agrees(case, dtype, target)


@pytest.mark.sample(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["conv2d", "depthwise_conv2d"])
def test_half_types_accumulate_wide(name: str, target: str) -> None:
    assert_agrees(Case(name, PLANE, SAME2), "bfloat16", target)


def test_every_operator_has_a_case() -> None:
    assert_family_covered("convolution", CASES)
    assert_family_covered("winograd", WINOGRAD)
