"""Matrix products and dense layers against PyTorch."""
from __future__ import annotations

import pytest
from support.library import TARGETS, Case, assert_agrees, assert_family_covered, cases, runs

PRODUCT = ({"M": 5, "K": 7, "N": 3}, {"M": 1, "K": 1, "N": 1}, {"M": 33, "K": 65, "N": 17}, {"M": 4, "K": 1, "N": 70})
BATCHED = tuple({"B": batch, **sizes} for batch, sizes in zip((3, 1, 2, 5), PRODUCT))
DENSE = ({"B": 5, "I": 7, "O": 3}, {"B": 1, "I": 33, "O": 1}, {"B": 17, "I": 40, "O": 35})

CASES = [
    *(case for layout in ("nn", "nt", "tn", "tt") for case in cases(f"matmul_{layout}", *PRODUCT)),
    *(case for layout in ("nn", "nt", "tn", "tt") for case in cases(f"batched_matmul_{layout}", *BATCHED)),
    *cases("matvec", {"M": 5, "K": 7}, {"M": 1, "K": 100}, {"M": 65, "K": 1}),
    *cases("addmm", *PRODUCT, scalars={"beta": 0.5, "alpha": -1.25}),
    *(case for name in ("linear", "linear_relu", "linear_gelu") for case in cases(name, *DENSE)),
    *cases("mlp", {"B": 5, "I": 7, "H": 9, "O": 3}, {"B": 1, "I": 1, "H": 40, "O": 2}),
]


@pytest.mark.parametrize(("case", "dtype", "target"), runs(CASES))
def test_agrees_with_pytorch(case: Case, dtype: str, target: str) -> None:
    assert_agrees(case, dtype, target)


@pytest.mark.sample(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["matmul_nn", "matmul_nt"])
def test_half_types_accumulate_wide(name: str, dtype: str, target: str) -> None:
    assert_agrees(Case(name, {"M": 9, "K": 70, "N": 5}), dtype, target)


def test_every_operator_has_a_case() -> None:
    assert_family_covered("matmul", CASES)
