"""On a GPU: the library's operators against PyTorch. What every target promises, and programs at random: ``tests/end_to_end``."""
from __future__ import annotations

import pytest
from support import TESTS
from support.rings.cuda import asked, operators

from tcjit import library

pytestmark = pytest.mark.cuda

FILES = [path.stem for path in sorted((TESTS / "library").glob("test_*.py"))]
LIBRARY = [pytest.param(file, name, id=name) for file in FILES for name in operators(file)]
HALVES = "matmul_nn matmul_nt matmul_tn matmul_tt linear_relu softmax layer_norm rms_norm conv2d attention row_sum".split()


@pytest.mark.parametrize(("file", "name"), LIBRARY)
def test_operators_agree_with_pytorch(file: str, name: str) -> None:
    dtypes = ["float32", "float64", *(["float16", "bfloat16"] if name in HALVES else [])]
    wrong = asked(f"answer = compared({file!r}, {name!r}, {dtypes!r})")
    assert wrong == "", wrong


@pytest.mark.host
def test_every_operator_is_there() -> None:
    assert {param.values[1] for param in LIBRARY} == set(library.names()) >= set(HALVES)
