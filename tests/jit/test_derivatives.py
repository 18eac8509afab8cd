"""``backward=`` and ``tangent=``: which defs they take, and what the names of an adjoint stand for."""
from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from support.calls import assert_refused
from support.gradients import BACKWARD, TEXT, defs

import tcjit
from tcjit.jit import kernel_cache
from tcjit.jit.derivatives import Derivatives, match_adjoint, match_tangent

FORWARD = "def f(float(N) X, float a, int64(N) I) -> (Y, s) { Y(i) = a * X(i) s +=! X(i) * float(I(i)) }\n"


def pair(other: str) -> tuple[str, Any, Any]:
    text = FORWARD + other
    return text, *kernel_cache.signatures(text)


def test_an_adjoint_is_matched_by_name() -> None:
    text, forward, adjoint = pair("def g(float(N) d_Y, float d_s, float a, float(N) Y) -> (d_X) { d_X(i) = a * d_Y(i) + Y(i) * d_s }")
    match = match_adjoint(text, forward, adjoint)
    assert match.inputs == {"Y": "d_Y", "s": "d_s"} and match.results == {"X": "d_X"}
    text, forward, adjoint = pair("def g(float(M) d_Y, int32 N) -> (d_X, d_a) { d_X(i) = d_Y(i) / N d_a +=! d_Y(i) }")
    assert match_adjoint(text, forward, adjoint).results == {"X": "d_X", "a": "d_a"}


def test_a_name_that_is_taken_lengthens_the_prefix() -> None:
    text = """
def f(float(N) X) -> (Y) { Y(i) = X(i) }
def f_back(float(N) X, float(N) d_Y) -> (d_X) { d_X(i) = d_Y(i) + 0.0 * X(i) }
def f_back_back(float(N) dd_d_X, float(N) d_Y) -> (dd_d_Y, dd_X) { dd_d_Y(i) = dd_d_X(i) dd_X(i) = 0.0 * d_Y(i) }
def f_back_tangent(float(N) t_d_Y, float(N) d_X) -> (t_d_X) { t_d_X(i) = t_d_Y(i) + 0.0 * d_X(i) }
"""
    _, back, again, tangent = kernel_cache.signatures(text)
    match = match_adjoint(text, back, again)
    assert match.inputs == {"d_X": "dd_d_X"} and match.results == {"d_Y": "dd_d_Y", "X": "dd_X"}
    assert match_tangent(text, back, tangent).inputs == {"d_Y": "t_d_Y"}


@pytest.mark.parametrize(
    "other, says, line_of",
    [
        ("def g(float(N) d_Z) -> (d_X) { d_X(i) = d_Z(i) }", "the parameter d_Z is neither", "d_Z"),
        ("def g(float(N) d_Y) -> (d_Z) { d_Z(i) = d_Y(i) }", "the return d_Z is not the gradient of a parameter of f()", "d_Z"),
        ("def g(float(N) d_Y) -> (Q) { Q(i) = d_Y(i) }", "the return Q is not the gradient", "Q"),
        ("def g(float(N, M) d_Y) -> (d_X) { d_X(i) +=! d_Y(i, j) }", "float32 with 2 dimensions, and Y of f() is float32 with 1", "d_Y"),
        ("def g(double(N) d_Y) -> (d_X) { d_X(i) = float(d_Y(i)) }", "d_Y is float64 with 1", "d_Y"),
        ("def g(float(N) d_Y, int32(N) I) -> (d_X) { d_X(i) = d_Y(i) + I(i) }", "I is int32 with 1 dimensions, and I of f() is int64", "I"),
        ("def g(float(N) d_Y) -> (d_I) { d_I(i) = int64(d_Y(i)) }", "I of f() is int64, which has no derivative", "d_I"),
        ("def g(float(N) d_Y) -> (d_X) { d_X(i, j) = d_Y(i) where j in 0:2 }", "d_X is float32 with 2", "d_X"),
        ("def g(float(N) X) -> (d_X) { d_X(i) = X(i) }", "takes no derivative", "g"),
        ("def g(float(N) d_Y) -> (d_X) { d_X(i) += d_Y(i) }", "adds to values of d_X that the caller passes", "g"),
    ],
)
def test_what_does_not_match(other: str, says: str, line_of: str) -> None:
    with pytest.raises(tcjit.CheckError, match="backward={'f': 'g'}") as caught:
        tcjit.define(FORWARD + other, backward={"f": "g"})
    assert says in str(caught.value) and caught.value.where is not None and caught.value.where.line == 2
    start = caught.value.where.column - 1
    assert line_of in other[start : start + caught.value.where.length]


def test_a_tangent_returns_every_tangent() -> None:
    other = "def g(float(N) t_X, float a) -> (t_Y) { t_Y(i) = a * t_X(i) }"
    assert_refused(lambda: tcjit.define(FORWARD + other, tangent={"f": "g"}), tcjit.CheckError, "does not return t_s, the tangent of s")


def test_wrong_arguments() -> None:
    for wrong in ("f", ["f"], {"f": "nothing"}, {"nothing": "f"}, {1: "f"}, {"f": None}, {"f": []}):
        assert_refused(lambda: tcjit.define(FORWARD, backward=wrong), tcjit.ArgumentError, "backward=")  # noqa: B023
        assert_refused(lambda: tcjit.define(FORWARD, tangent=wrong), tcjit.ArgumentError, "tangent=")  # noqa: B023


def test_outputs_that_accumulate_have_no_adjoint() -> None:
    text = "def f(float(N) X) -> (S) { S() += X(i) }\ndef g(float d_S) -> (d_X) { d_X(i) = d_S where i in 0:3 }"
    assert_refused(lambda: tcjit.define(text, backward={"f": "g"}), tcjit.CheckError, "adds to values of S that the caller passes")


def test_only_what_a_def_comes_to_counts() -> None:
    given = Derivatives((("f", "g"), ("g", "h"), ("x", "y")), (("g", "t"), ("y", "x")))
    assert given.of("f") == Derivatives((("f", "g"), ("g", "h")), (("g", "t"),))
    assert given.of("y") == Derivatives((("x", "y"),), (("y", "x"),)) and given.of("t") == Derivatives()


def test_functions_are_shared_copied_and_pickled() -> None:
    tc = defs("reference")
    assert tc.cube is defs("reference").cube and tc.cube is not tcjit.define(TEXT, target="reference").cube
    other = tcjit.define(TEXT, target="reference", backward=BACKWARD)
    assert other.mean is tc.mean and other.cube is not tc.cube  # of which the backward has no tangent
    assert pickle.loads(pickle.dumps(tc)).cube is tc.cube and copy.deepcopy(tc.cube) is tc.cube
    over_batch = tc.cube.batched(frozenset({"X"}))
    assert pickle.loads(pickle.dumps(over_batch)) is over_batch
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert torch.equal(tc.cube_back(x.detach(), torch.ones_like(x)), torch.autograd.grad(tc.cube(x).sum(), x)[0])
