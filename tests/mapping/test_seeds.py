"""Where searches begin."""
from __future__ import annotations

import pytest

from tcjit.grammar.front import read
from tcjit.grammar.infer import specialise
from tcjit.mapping.machine import SM_90, Machine
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import map_gpu, map_program
from tcjit.mapping.seeds import cpu_seeds, gpu_seeds

MATMUL = "def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"
ADD = "def f(float(N) A, float(N) B) -> (C) { C(i) = A(i) + B(i) }"


def test_a_nest_begins_with_the_register_tiles_that_the_model_ranks_next() -> None:
    program = specialise(read(MATMUL)[0], {"A": (100, 64), "B": (64, 96)}, {})
    machine = Machine()
    tiles = [seed.register_tile for seed in cpu_seeds(program, machine, {}, ("reduction",)) if seed.register_tile]
    assert len(tiles) == len(set(tiles)) == 6
    found = {str(map_program(program, Options(register_tile=tile), machine, prove="every").tree) for tile in ((), *tiles)}
    assert len(found) >= 5


def test_what_does_not_contract_has_seeds_too() -> None:
    program = specialise(read(ADD)[0], {"A": (100,), "B": (100,)}, {})
    found = cpu_seeds(program, Machine(), {}, ())
    assert len(found) >= 3 and not any(seed.register_tile or seed.reduction_chunks for seed in found)


@pytest.mark.parametrize("seed", gpu_seeds(("reduction", "several", "temporary")), ids=str)
def test_seeds_of_a_gpu_can_be_mapped(seed: Options) -> None:
    program = specialise(read(MATMUL)[0], {"A": (256, 256), "B": (256, 256)}, {})
    assert map_gpu(program, seed, SM_90, prove="last").launches
