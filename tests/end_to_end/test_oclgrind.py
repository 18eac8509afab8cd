"""oclgrind has nothing to say of programs that between them take every way through the mapping, and neither has the host's ring.

No data race, no value that nothing has written, no access outside an array or a buffer, no barrier that a thread misses.
"""

from __future__ import annotations

import pytest
from support.fuzz.faults import right
from support.rings.cuda_host import COMPILER
from support.rings.opencl import require
from support.subjects import SUBJECTS, assert_agrees, compiled, refuted, watched

from tcjit.mapping.isl import descendants
from tcjit.mapping.marks import Sync, WaitGroup
from tcjit.mapping.tree import mark_of

WATCHED = [name for name in SUBJECTS if watched(name)]


@pytest.mark.opencl
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", WATCHED)
def test_oclgrind_finds_nothing(name: str) -> None:
    require("oclgrind")
    made, _, results = right(name, "opencl")
    assert not refuted(made)
    assert_agrees(name, results)


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize("name", SUBJECTS)
def test_the_host_finds_nothing(name: str) -> None:
    made, _, results = right(name, "cuda")
    assert not refuted(made)
    assert_agrees(name, results)


def covered(language: str, name: str) -> set[str]:
    """What of the mapping a subject shows: marks of its tree, kinds of the statements that passes added, of buffers, launches."""
    made = compiled(SUBJECTS[name], language).mapped
    marks = {str(mark) if isinstance(mark, Sync) else mark.word for node in descendants(made.tree.get_root()) if (mark := mark_of(node))}
    kinds = {f"statement {s.name[0]}" for s in made.scop.statements}
    stages = {f"{made.options.pipeline_stages} stages"} if WaitGroup.word in marks else set()
    places = {f"{b.space} buffer" for b in made.privates}
    kept = {b.tensor for b in made.privates}
    workspace = {"workspace" for t in made.scop.tensors if t.role == "temporary" and t.name not in kept}
    return marks | kinds | stages | places | workspace | {"several launches" for _ in made.launches[1:]}


# statements: S the program's, C copies to shared memory, Z zeros beside them, L loads and W writes of what is held in registers,
# I starts and R ends of partial results
EVERYWHERE = {*"launch grid block threads reduce async_copy wait_group unroll vector".split()}
EVERYWHERE |= {"sync block", "thread buffer", "shared buffer"}
EVERYWHERE |= {"workspace", "several launches", "2 stages", "3 stages", *(f"statement {letter}" for letter in "SCZLWIR")}


@pytest.mark.text
def test_the_set_covers_every_pass() -> None:
    assert set().union(*(covered("opencl", name) for name in WATCHED)) == EVERYWHERE
    assert set().union(*(covered("cuda", name) for name in SUBJECTS)) == EVERYWHERE | {"sync warp", "mma", "0 stages"}
