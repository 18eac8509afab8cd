"""Every operator of the library with mapping options drawn at random, as CUDA text on the host or through PoCL; `make soak` draws more."""
from __future__ import annotations

import random

import pytest
from support.library import assert_agrees_drawn
from support.rings import cuda_target
from support.rings.cuda_host import COMPILER
from support.rings.opencl import require, worker

from tcjit import library

SEED = 20240601


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize("name", library.names()[::2])
def test_operators_on_the_host(name: str) -> None:
    assert_agrees_drawn(name, cuda_target.TARGET, random.Random(f"{SEED} {name}"))


@pytest.mark.opencl
@pytest.mark.parametrize("name", library.names()[1::2])
def test_operators_in_opencl(name: str) -> None:
    require("pocl")
    code = f"import random\nfrom support import library\nlibrary.assert_agrees_drawn({name!r}, 'opencl', random.Random('{SEED} {name}'))"
    wrong = worker().ask(kind="code", code=f"{code}\nanswer = ''")
    assert wrong == "", wrong
