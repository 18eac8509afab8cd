"""What rules write with: elements, which are ways to compute one number of a value, and the statements that store some of them."""
from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from tcjit.byoc.graph import Argument, Node, TensorType, Value
from tcjit.byoc.lower.indices import variable
from tcjit.errors import PartitionError
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear

At: TypeAlias = Callable[[Sequence[Linear]], str]

# a computation of so many operations is repeated rather than stored for a second use
CHEAP = 12
# and one of more is stored even for a single use, which keeps statements readable
LONG = 80
# a reduction of so many terms is kept for gradients: computing it again takes longer than writing and reading it
SAVED = 16


@dataclass(frozen=True)
class Element:
    """One number of a tensor as an expression of type ``dtype``, by its subscripts. ``cost`` counts the operations of one reading, a
    function as several; 0 is a mere access, of whatever view."""

    dtype: str
    shape: tuple[int, ...]
    at: At
    cost: int = 0

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class LoweredDef:
    """A def and what it takes: ``shapes`` of its parameters, where a tensor without dimensions is passed as one of one element. ``saved``
    are the temporaries to keep for gradients."""

    text: str
    shapes: tuple[tuple[int, ...], ...]
    results: int
    saved: tuple[str, ...] = ()


class DefBuilder:
    """Collects the statements of one def. ``uses`` says how often each value is used inside, ``leaving`` which are used outside too."""

    def __init__(self, uses: Mapping[Value, int], leaving: Sequence[Value]) -> None:
        self._uses, self._leaving = uses, frozenset(leaving)
        self._elements: dict[Value, Element] = {}
        self._absent: dict[Value, str] = {}
        self._params: list[str] = []
        self._shapes: list[tuple[int, ...]] = []
        self._statements: list[str] = []
        self._stored: dict[At, str] = {}
        self._given: set[At] = set()
        self._long: list[str] = []  # reductions of many terms
        self._count = 0

    # ------------------------------------------------------------ values

    def parameter(self, value: Value) -> Element:
        """Takes a value from outside."""
        kind = known(value)
        name = f"x{len(self._params)}"
        shape = kind[1] or (1,)
        self._params.append(f"{kind[0]}({', '.join(map(str, shape))}) {name}")
        self._shapes.append(shape)
        self._elements[value] = made = Element(*kind, _reading(name, bool(kind[1])))
        self._given.add(made.at)
        return made

    def element(self, value: Value) -> Element:
        if value in self._absent:
            raise PartitionError(self._absent[value])
        if value not in self._elements:
            self.parameter(value)
        return self._elements[value]

    def needs(self, value: Value) -> bool:
        """Whether anything uses it."""
        return value in self._leaving or bool(value.users)

    def plain(self, element: Element) -> bool:
        """Whether it is a tensor of its own, with dimensions, read as it is."""
        return element.at in self._stored or element.at in self._given

    def define(self, node: Node, results: Sequence[Element | str]) -> None:
        """Says what a node's outputs are, or why there is none; those that are worth it are stored."""
        for value, result in zip(node.outputs, results, strict=True):
            if isinstance(result, str):
                self._absent[value] = result
                continue
            if known(value) != (result.dtype, result.shape):
                raise PartitionError(f"%{value.name} is {value.type}, and the rule for {node.op} makes {result.dtype}{list(result.shape)}")
            again = self._uses.get(value, 0) > 1 or value in self._leaving
            self._elements[value] = self.keep(result) if result.cost > (CHEAP if again else LONG) else result

    def settle(self, value: Value) -> Element:
        """The element of a value, stored unless it is a mere access."""
        found = self._elements[value] = self.keep(self.element(value))
        return found

    # ------------------------------------------------------------ statements

    def keep(self, element: Element) -> Element:
        """An element that costs nothing: itself, or stored."""
        return self.store(element) if element.cost else element

    def store(self, element: Element) -> Element:
        """A tensor of its own for an element."""
        name, indices, subscripts = self._left(element.shape)
        return self._state(name, element, "=", element.at(subscripts), _ranges(indices, element.shape))

    def reduce(
        self, operator: str, dtype: str, shape: Sequence[int], extents: Sequence[int], body: Callable[[list[Linear], list[Linear]], str]
    ) -> Element:
        """A tensor that starts as the operator's identity and takes in the body, of type ``dtype``, over indices of these extents."""
        name, indices, left = self._left(shape)
        names = [f"r{place}" for place in range(len(extents))]
        text = body(left, [variable(each, extent) for each, extent in zip(names, extents)])
        for each, extent in zip(names, extents):
            if extent > 1 and not re.search(rf"\b{each}\b", text):
                text = f"({each} >= 0) ? {text} : {text}"  # an index has to stand somewhere
        ranges = _ranges(indices, shape) + [f"{each} in 0:{extent}" for each, extent in zip(names, extents) if extent > 1]
        if prod(extents) >= SAVED:
            self._long.append(name)
        return self._state(name, Element(dtype, tuple(shape), _reading("", True)), f"{operator}=!", text, ranges)

    def text(self, outputs: Sequence[Value]) -> LoweredDef:
        """The def that returns some values."""
        names: list[str] = []
        for value in outputs:
            element = self.element(value)
            name = self._stored.get(element.at)
            if name is None or name in names:
                element = self.store(element)
                name = self._stored[element.at]
            names.append(name)
        body = "\n".join(f"    {statement}" for statement in self._statements)
        text = f"def fused({', '.join(self._params)}) -> ({', '.join(names)}) {{\n{body}\n}}\n"
        return LoweredDef(text, tuple(self._shapes), len(names), tuple(name for name in self._long if name not in names))

    def _left(self, shape: Sequence[int]) -> tuple[str, list[str], list[Linear]]:
        self._count += 1
        indices = [f"i{place}" for place in range(len(shape))]
        return f"t{self._count - 1}", indices, [variable(index, extent) for index, extent in zip(indices, shape)]

    def _state(self, name: str, like: Element, operator: str, text: str, ranges: Sequence[str]) -> Element:
        clause = f" where {', '.join(ranges)}" if ranges else ""
        left = f"{name}({', '.join(f'i{place}' for place in range(len(like.shape)))})"
        self._statements.append(f"{left} {operator} {text}{clause}")
        made = Element(like.dtype, like.shape, _reading(name, True))
        self._stored[made.at] = name
        return made


class NodeCall:
    """The arguments of a node, as rules ask for them; whatever is not written in the model is a PartitionError."""

    def __init__(self, builder: DefBuilder, node: Node) -> None:
        self.builder, self.node = builder, node
        self.dtype, self.shape = known(node.outputs[0])

    def argument(self, name: str) -> Argument:
        return self.node.arguments.get(name)

    def tensor(self, name: str) -> Element:
        return self.builder.element(self._value(name))

    def materialised(self, name: str) -> Element:
        """A tensor that is read more than once per result."""
        return self.builder.settle(self._value(name))

    def optional(self, name: str) -> Element | None:
        return None if self.argument(name) is None else self.tensor(name)

    def tensors(self, name: str) -> list[Element]:
        """A list of tensors."""
        given = self.argument(name)
        if not isinstance(given, tuple) or not all(isinstance(each, Value) for each in given):
            raise PartitionError(f"its {name} is no list of tensors written in the model")
        return [self.builder.element(each) for each in given if isinstance(each, Value)]

    def number(self, name: str, default: int | float | None = None) -> int | float:
        found = default if self.argument(name) is None else self.argument(name)
        if not isinstance(found, (int, float)):
            raise PartitionError(f"its {name} is known at the run only" if isinstance(found, Value) else f"its {name} is {found!r}")
        return found

    def integer(self, name: str, default: int | None = None) -> int:
        found = self.number(name, default)
        if not isinstance(found, int):
            raise PartitionError(f"its {name} is {found!r}")
        return int(found)

    def flag(self, name: str) -> bool:
        return bool(self.integer(name, 0))

    def word(self, name: str) -> str:
        found = self.argument(name)
        if isinstance(found, Value):
            raise PartitionError(f"its {name} is known at the run only")
        return found if isinstance(found, str) else ""

    def integers(self, name: str, count: int = 0, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """A list of integers; a number or a list of one stands for ``count`` of them, an empty list for the default."""
        found = self.argument(name)
        if isinstance(found, int):
            found = (found,)
        if (found is None or found == ()) and default is not None:
            found = tuple(default)
        if not isinstance(found, tuple) or not all(isinstance(each, int) for each in found):
            raise PartitionError(f"its {name} is known at the run only")
        numbers = tuple(int(each) for each in found if isinstance(each, int))
        return numbers * count if len(numbers) == 1 and count else numbers

    def axis(self, name: str, rank: int, default: int | None = None) -> int:
        """A dimension, counted from the front."""
        return axis(self.integer(name, default), rank)

    def _value(self, name: str) -> Value:
        found = self.argument(name)
        if not isinstance(found, Value) or found.type is None:
            raise PartitionError(f"its {name} is no tensor")
        return found


def axis(dim: int, rank: int) -> int:
    found = dim + rank if dim < 0 else dim
    if not 0 <= found < max(rank, 1):
        raise PartitionError(f"dimension {dim} of {rank}")
    return found


def known(value: Value) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape of a value; a PartitionError where the language or this backend has none such."""
    kind = value.type or TensorType()
    if kind.dtype not in DTYPES:
        raise PartitionError(f"%{value.name} is of {kind.dtype or 'unknown'} type, which the language lacks")
    if kind.shape is None or None in kind.shape:
        raise PartitionError(f"%{value.name}: {kind} has an extent that is known at the run only")
    shape = tuple(extent for extent in kind.shape if extent is not None)
    if 0 in shape:
        raise PartitionError(f"%{value.name} is empty")
    if len(shape) > 8:
        raise PartitionError(f"%{value.name} has {len(shape)} dimensions")
    if prod(shape) >= 1 << 31:
        raise PartitionError(f"%{value.name} has {prod(shape)} elements")
    return kind.dtype, shape


def wide(dtype: str) -> str:
    """The type in which sums and functions of a type are computed."""
    return "float32" if DTYPES[dtype].kind == "float" and DTYPES[dtype].bits == 16 else dtype


def cast(text: str, origin: str, dtype: str) -> str:
    """An expression of one type as one of another, as ``Tensor.to`` converts."""
    if origin == dtype:
        return text
    if dtype == "bool":
        return f"({text} != {literal(0, origin)})"
    return f"{dtype}({text})"


def literal(value: int | float, dtype: str) -> str:
    """A number as an expression of a type."""
    kind = DTYPES[dtype].kind
    if kind == "bool":
        return "true" if value else "false"
    if kind != "float":
        return f"{dtype}({int(value)})"
    value = float(value)
    if math.isnan(value):
        return f"{dtype}(0.0 / 0.0)"
    if math.isinf(value):
        return f"{dtype}({'-' if value < 0 else ''}infinity())"
    return f"{dtype}({value!r})"


def broadcast(builder: DefBuilder, element: Element, shape: Sequence[int]) -> Element:
    """An element at the subscripts of a shape that its own broadcasts to."""
    own = element.shape
    if own == tuple(shape):
        return element
    if len(own) > len(shape) or any(a not in (1, b) for a, b in zip(own[::-1], tuple(shape)[::-1])):
        raise PartitionError(f"{list(own)} does not broadcast to {list(shape)}")
    if element.size < prod(shape) and element.cost > 2:
        element = builder.keep(element)
    inner, skip = element.at, len(shape) - len(own)

    def at(subscripts: Sequence[Linear]) -> str:
        return inner([Linear.of(0) if extent == 1 else each for extent, each in zip(own, subscripts[skip:])])

    return Element(element.dtype, tuple(shape), at, element.cost)


def converted(element: Element, dtype: str) -> Element:
    """An element of another type."""
    if element.dtype == dtype:
        return element
    return Element(dtype, element.shape, lambda subscripts: cast(element.at(subscripts), element.dtype, dtype), element.cost + 1)


def _reading(name: str, ranked: bool) -> At:
    """How a tensor is read; one without dimensions comes as one of one element."""
    return lambda subscripts: f"{name}({', '.join(map(str, subscripts)) if ranked else '0'})"


def _ranges(indices: Sequence[str], shape: Sequence[int]) -> list[str]:
    return [f"{index} in 0:{extent}" for index, extent in zip(indices, shape)]
