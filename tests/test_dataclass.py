"""The compiler's dataclasses against the standard library's.

Modules: dataclass
"""
from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any

import pytest

from tcjit.dataclass import dataclass


def both(**options: bool) -> list[Callable[[type[Any]], Any]]:
    return [dataclass(**options), dataclasses.dataclass(**options)]


def made(decorate: Callable[[type[Any]], Any]) -> Any:
    class Point:
        """Two numbers and a remark."""

        x: int
        y: int = 2
        remark: str = field(default="", compare=False, repr=False, kw_only=True)

    Point.__qualname__ = "Point"
    return decorate(Point)


@pytest.mark.parametrize("decorate", both(frozen=True), ids=["tcjit", "standard"])
def test_frozen_classes_compare_by_their_fields_and_have_a_hash(decorate: Callable[[type[Any]], Any]) -> None:
    point = made(decorate)
    assert point(1) == point(1, 2, remark="another") != point(1, 3) and hash(point(1)) == hash(point(1, remark="another"))
    assert point(1) != (1, 2) and len({point(1), point(1, 2), point(2)}) == 2
    assert repr(point(1, remark="none")) == "Point(x=1, y=2)"
    assert dataclasses.replace(point(1), y=5) == point(1, 5) and point.__match_args__ == ("x", "y")
    assert [one.name for one in dataclasses.fields(point)] == ["x", "y", "remark"]


@pytest.mark.parametrize("decorate", both(), ids=["tcjit", "standard"])
def test_others_compare_and_have_no_hash(decorate: Callable[[type[Any]], Any]) -> None:
    point = made(decorate)
    assert point(1) == point(1, 2) != point(2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(point(1))


@pytest.mark.parametrize("decorate", both(frozen=True, eq=False, repr=False), ids=["tcjit", "standard"])
def test_what_is_not_asked_for_stays_the_object_s(decorate: Callable[[type[Any]], Any]) -> None:
    point = made(decorate)
    one, other = point(1), point(1)
    assert one != other and {one, other} == {other, one} and len({one, other}) == 2
    assert repr(one).endswith(f"object at {id(one):#x}>")


@pytest.mark.parametrize("decorate", both(frozen=True), ids=["tcjit", "standard"])
def test_methods_of_a_class_and_what_it_inherits(decorate: Callable[[type[Any]], Any]) -> None:
    @decorate
    class Named:
        name: str

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return f"<{self.name}>"

    @decorate
    class Sized(Named):
        size: tuple[int, ...] = ()

    assert hash(Named("a")) == 7 and repr(Named("a")) == "<a>"
    assert hash(Sized("a")) == hash(Sized("a")) != 7 and Sized("a", (1,)) == Sized("a", (1,)) != Sized("b", (1,))
    assert Sized("a") != Named("a") and repr(Sized("a")).endswith("Sized(name='a', size=())")


@dataclass(frozen=True)
class One:
    """A single field, and one that refers to itself."""

    values: list[Any]


@dataclass(frozen=True)
class Empty:
    """No field."""


def test_few_fields_and_pickles() -> None:
    assert One([1]) == One([1]) != One([2]) and Empty() == Empty() and hash(Empty()) == hash(Empty())
    with pytest.raises(TypeError, match="unhashable"):
        hash(One([1]))
    assert pickle.loads(pickle.dumps(One([1]))) == One([1])
    one = One([])
    one.values.append(one)
    assert repr(one) == "One(values=[...])" and repr(Empty()) == "Empty()"
