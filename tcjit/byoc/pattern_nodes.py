"""What patterns are made of, and how they print. ``patterns.py`` has the words to write them with, and the matcher."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import EllipsisType
from typing import TypeAlias

from tcjit.byoc.graph import Argument, Node, TensorType
from tcjit.errors import PartitionError

# what stands for a pattern among arguments: the thing itself, to be met exactly, or a tuple of such
Given: TypeAlias = "Pattern | int | float | bool | str | complex | tuple[Given, ...] | list[Given] | None"


@dataclass(frozen=True, eq=False)
class Pattern:
    """What may stand at one place; compared by identity. Its methods give new patterns around it."""

    def named(self, name: str) -> Pattern:
        """Binds what stands here to a name; two places of one name must hold the same."""
        return Named(self, name)

    def output(self, index: int) -> Pattern:
        """One of several results of an operation, or an element of the tuple that it gives."""
        return OutputPattern(self, index)

    def optional(self, tail: Callable[[Pattern], Pattern]) -> Pattern:
        """``tail`` of this pattern, or this pattern alone: ``conv.optional(is_op("aten.relu"))``."""
        return Optional(tail(self), self)

    def has_attr(self, /, **attributes: Given) -> Pattern:
        """Computed by an operation with these arguments, by name: ``has_attr(groups=1)``."""
        return AttributePattern(self, tuple((name, as_pattern(value)) for name, value in attributes.items()))

    def has_dtype(self, *dtypes: str) -> Pattern:
        """A tensor of one of these dtypes."""
        return TypePattern(self, f"has_dtype({', '.join(dtypes)})", lambda kind: kind.dtype in dtypes)

    def has_shape(self, *shape: int | None | EllipsisType) -> Pattern:
        """A tensor of this shape: None is any extent, ``...`` any number of them. An extent not known is not met by a number."""
        if shape.count(...) > 1:
            raise PartitionError("has_shape takes one ... at most")
        words = ["..." if extent is ... else "?" if extent is None else str(extent) for extent in shape]
        return TypePattern(self, f"has_shape({', '.join(words)})", lambda kind: _shape_fits(shape, kind.shape))

    def same_shape_as(self, other: Pattern) -> Pattern:
        """A tensor of the shape of what ``other``, a pattern somewhere in the whole, stands for; both shapes known."""
        return SameShape(self, other)

    def used_by(self, user: Pattern) -> Pattern:
        """Some user fits ``user``; it belongs to the match only if it stands in it elsewhere."""
        return Used(self, user, only=False)

    def only_used_by(self, user: Pattern) -> Pattern:
        """Every user fits ``user``, and there is one."""
        return Used(self, user, only=True)

    def dominates(self, parent: Pattern, path: Pattern | None = None) -> Pattern:
        """A result that all uses of ``parent`` lead to, through operations that each fit ``path`` (any if None).

        >>> str(Op(("aten.add",))(Wildcard(), Wildcard()).dominates(Op(("aten.conv2d",)), Op(("aten.relu", "aten.neg"))))
        'aten.add(*, *).dominates(aten.conv2d, path=aten.relu|aten.neg)'
        """
        return Dominates(self, parent, Wildcard() if path is None else path)

    def __or__(self, other: Pattern) -> Pattern:
        return Either((self, other))

    def __and__(self, other: Pattern) -> Pattern:
        return BothPattern((self, other))

    def __invert__(self) -> Pattern:
        return Not(self)

    def __str__(self) -> str:
        return show(self)

    def __repr__(self) -> str:
        return show(self)


@dataclass(frozen=True, eq=False, repr=False)
class Wildcard(Pattern):
    pass


@dataclass(frozen=True, eq=False, repr=False)
class ConstantPattern(Pattern):
    """Something written in the model, or a parameter or buffer."""


@dataclass(frozen=True, eq=False, repr=False)
class Literal(Pattern):
    """Exactly this, written in the model."""

    value: Argument


@dataclass(frozen=True, eq=False, repr=False)
class Op(Pattern):
    """The first result of an operation, whatever its arguments; calling it says what they are."""

    names: tuple[str, ...]

    def __call__(self, /, *arguments: Given, **named: Given) -> Pattern:
        return CallPattern(self, tuple(map(as_pattern, arguments)), tuple((name, as_pattern(value)) for name, value in named.items()))

    def fits(self, node: Node) -> bool:
        return node.op in self.names or f"{node.op}.{node.overload}" in self.names


@dataclass(frozen=True, eq=False, repr=False)
class CallPattern(Pattern):
    """Arguments by position, then by name; those not mentioned may be anything."""

    op: Op
    arguments: tuple[Pattern, ...]
    named_arguments: tuple[tuple[str, Pattern], ...]


@dataclass(frozen=True, eq=False, repr=False)
class Either(Pattern):
    options: tuple[Pattern, ...]


@dataclass(frozen=True, eq=False, repr=False)
class BothPattern(Pattern):
    parts: tuple[Pattern, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Not(Pattern):
    base: Pattern


@dataclass(frozen=True, eq=False, repr=False)
class Optional(Pattern):
    """``base``, tried first, or ``otherwise``; where that is None, nothing: an argument that is None or not given.

    An optional operation is called with what it may follow: ``optional(is_op("aten.relu"))(conv)``.
    """

    base: Pattern
    otherwise: Pattern | None = None

    def __call__(self, before: Pattern, /, *arguments: Given, **named: Given) -> Pattern:
        if not isinstance(self.base, Op):
            raise PartitionError(f"{self.base} takes no arguments", hint='optional(is_op("aten.relu"))(before), before.optional(tail)')
        return Optional(self.base(before, *arguments, **named), before)


@dataclass(frozen=True, eq=False, repr=False)
class Tuple(Pattern):
    items: tuple[Pattern, ...]


@dataclass(frozen=True, eq=False, repr=False)
class OutputPattern(Pattern):
    base: Pattern
    index: int


@dataclass(frozen=True, eq=False, repr=False)
class Named(Pattern):
    base: Pattern
    name: str


@dataclass(frozen=True, eq=False, repr=False)
class AttributePattern(Pattern):
    base: Pattern
    attributes: tuple[tuple[str, Pattern], ...]


@dataclass(frozen=True, eq=False, repr=False)
class TypePattern(Pattern):
    """A tensor whose type passes a test; ``description`` says which."""

    base: Pattern
    description: str
    test: Callable[[TensorType], bool]


@dataclass(frozen=True, eq=False, repr=False)
class SameShape(Pattern):
    base: Pattern
    other: Pattern


@dataclass(frozen=True, eq=False, repr=False)
class Used(Pattern):
    base: Pattern
    user: Pattern
    only: bool


@dataclass(frozen=True, eq=False, repr=False)
class Dominates(Pattern):
    child: Pattern
    parent: Pattern
    path: Pattern


def as_pattern(value: Given) -> Pattern:
    """What stands for a pattern, as a pattern."""
    if isinstance(value, Pattern):
        return value
    if isinstance(value, (tuple, list)):
        return Tuple(tuple(map(as_pattern, value)))
    return Literal(value)


def parts(pattern: Pattern) -> tuple[Pattern, ...]:
    """The patterns that a pattern is made of, in the order in which they are written."""
    match pattern:
        case CallPattern():
            return (*pattern.arguments, *(each for _, each in pattern.named_arguments))
        case Either():
            return pattern.options
        case BothPattern():
            return pattern.parts
        case Tuple():
            return pattern.items
        case AttributePattern():
            return (pattern.base, *(each for _, each in pattern.attributes))
        case SameShape():
            return (pattern.base, pattern.other)
        case Used():
            return (pattern.base, pattern.user)
        case Dominates():
            return (pattern.child, pattern.parent, pattern.path)
        case Optional():
            return (pattern.base,) if pattern.otherwise is None else (pattern.base, pattern.otherwise)
        case Not() | OutputPattern() | Named() | TypePattern():
            return (pattern.base,)
    return ()


def roots(pattern: Pattern) -> frozenset[str] | None:
    """The names of operations that a match can end with; None: any."""
    match pattern:
        case Op():
            return frozenset(pattern.names)
        case CallPattern():
            return frozenset(pattern.op.names)
        case Either():
            found = [roots(option) for option in pattern.options]
            return None if None in found else frozenset().union(*(each for each in found if each is not None))
        case Optional():
            ends = (roots(pattern.base), frozenset[str]() if pattern.otherwise is None else roots(pattern.otherwise))
            return None if ends[0] is None or ends[1] is None else ends[0] | ends[1]
        case BothPattern():
            known = [each for each in map(roots, pattern.parts) if each is not None]
            return frozenset.intersection(*known) if known else None
        case Named() | AttributePattern() | TypePattern() | SameShape() | Used():
            return roots(pattern.base)
        case Dominates():
            return roots(pattern.child)
    return None


def show(pattern: Pattern) -> str:
    """A pattern as text: ``*`` anything, ``const``, ``(a | b)``, ``(a & b)``, ``~a``, ``a[1]`` a result by number.

    What is used twice bears a number, and is written out once.

    >>> x = Wildcard()
    >>> print(Op(("aten.mul",))(x, Op(("aten.sigmoid",))(x)))
    aten.mul(*#1, aten.sigmoid(#1))
    """
    uses: dict[Pattern, int] = {}

    def count(each: Pattern) -> None:
        uses[each] = uses.get(each, 0) + 1
        if uses[each] == 1:
            for part in parts(each):
                # an optional operation is written around what it may follow
                if not (isinstance(each, Optional) and part is each.otherwise):
                    count(part)

    count(pattern)
    numbers: dict[Pattern, int] = {}

    def text(each: Pattern) -> str:
        if each in numbers:
            return f"#{numbers[each]}"
        words = _described(each, text)
        if uses.get(each, 0) < 2 or isinstance(each, Literal):
            return words
        numbers[each] = len(numbers) + 1
        return f"{words}#{numbers[each]}"

    return text(pattern)


def _described(pattern: Pattern, text: Callable[[Pattern], str]) -> str:
    def named(items: tuple[tuple[str, Pattern], ...]) -> list[str]:
        return [f"{name}={text(each)}" for name, each in items]

    match pattern:
        case Wildcard():
            return "*"
        case ConstantPattern():
            return "const"
        case Literal():
            return repr(pattern.value)
        case Op():
            return "|".join(pattern.names)
        case CallPattern():
            return f"{'|'.join(pattern.op.names)}({', '.join([*map(text, pattern.arguments), *named(pattern.named_arguments)])})"
        case Either():
            return f"({' | '.join(map(text, pattern.options))})"
        case BothPattern():
            return f"({' & '.join(map(text, pattern.parts))})"
        case Tuple():
            return f"({', '.join(map(text, pattern.items))}{',' if len(pattern.items) == 1 else ''})"
        case Not():
            return f"~{text(pattern.base)}"
        case Optional():
            return f"optional({text(pattern.base)})"
        case OutputPattern():
            return f"{text(pattern.base)}[{pattern.index}]"
        case Named():
            return f"{text(pattern.base)} as {pattern.name}"
        case AttributePattern():
            return f"{text(pattern.base)}.has_attr({', '.join(named(pattern.attributes))})"
        case TypePattern():
            return f"{text(pattern.base)}.{pattern.description}"
        case SameShape():
            return f"{text(pattern.base)}.same_shape_as({text(pattern.other)})"
        case Used():
            return f"{text(pattern.base)}.{'only_used_by' if pattern.only else 'used_by'}({text(pattern.user)})"
        case Dominates():
            return f"{text(pattern.child)}.dominates({text(pattern.parent)}, path={text(pattern.path)})"
    raise PartitionError(f"{type(pattern).__name__} is no pattern", hint="use the words of tcjit.byoc.patterns")


def _shape_fits(wanted: tuple[int | None | EllipsisType, ...], shape: tuple[int | None, ...] | None) -> bool:
    if shape is None:
        return False
    if ... in wanted:
        place = wanted.index(...)
        missing = len(shape) - (len(wanted) - 1)
        if missing < 0:
            return False
        wanted = (*wanted[:place], *[None] * missing, *wanted[place + 1 :])
    return len(wanted) == len(shape) and all(want is None or want == extent for want, extent in zip(wanted, shape))
