"""Patterns that look like the expressions they match, and the matcher.

    x, w = wildcard(), is_const().named("weight")
    conv = is_op("aten.conv2d")(x, w, stride=(1, 1))
    optional(is_op("aten.relu"))(is_op("aten.add")(conv, wildcard()))

``match(pattern, value)`` gives the largest match whose result is the value, or None. A pattern used twice means the same value twice;
two patterns may well mean one value. ``aten.add`` and its like match in either order (``COMMUTATIVE``), where arguments are given by
position. Alternatives are tried in all combinations. An argument that an operation is not given is None. The words are those of
TVM's dataflow patterns.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from tcjit.byoc.block_dependences import BlockDependences
from tcjit.byoc.graph import Argument, Node, Value, values_of
from tcjit.byoc.pattern_nodes import (
    AttributePattern,
    BothPattern,
    CallPattern,
    ConstantPattern,
    Dominates,
    Either,
    Given,
    Literal,
    Named,
    Not,
    Op,
    Optional,
    OutputPattern,
    Pattern,
    SameShape,
    Tuple,
    TypePattern,
    Used,
    Wildcard,
    as_pattern,
    show,
)
from tcjit.checked import checked
from tcjit.errors import PartitionError

__all__ = ["COMMUTATIVE", "Match", "Pattern", "both", "either", "is_const", "is_op", "match", "matches", "not_", "optional", "show"]
__all__ += ["tuple_of", "wildcard"]

# operations whose first two arguments may be swapped
_NAMES = "add mul maximum minimum fmax fmin eq ne logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor hypot"
COMMUTATIVE = frozenset(f"aten.{name}" for name in _NAMES.split())
# operations that take an element out of a tuple, spread one, and make one
PROJECTIONS = frozenset({"operator.getitem", "prim.TupleIndex", "aten.__getitem__"})
UNPACKS = frozenset({"prim.TupleUnpack", "prim.ListUnpack"})
CONSTRUCTS = frozenset({"prim.TupleConstruct", "prim.ListConstruct"})
# so many ways in which one pattern fits one value are looked at, for the largest
LIMIT = 1024
# a parent that is dominated is looked for among so many values, nearest first
REACH = 64


@checked()
def wildcard() -> Pattern:
    """Anything at all; used twice, the same thing."""
    return Wildcard()


@checked(names=str)
def is_op(*names: str) -> Op:
    """An operation of one of these names, ``aten.add`` or, with its overload, ``aten.add.Tensor``."""
    return Op(names)


@checked()
def is_const(*value: Argument) -> Pattern:
    """A number, text or flag written in the model, a parameter or a buffer; with an argument, exactly that. None only if asked for."""
    if len(value) > 1:
        raise PartitionError(f"is_const takes one value, not {len(value)}", hint="either(is_const(a), is_const(b))")
    return Literal(value[0]) if value else ConstantPattern()


@checked()
def either(*options: Given) -> Pattern:
    """One of the patterns."""
    return Either(tuple(map(as_pattern, options)))


@checked()
def both(*parts: Given) -> Pattern:
    """All of the patterns."""
    return BothPattern(tuple(map(as_pattern, parts)))


@checked()
def not_(pattern: Given) -> Pattern:
    """Whatever the pattern does not match; it binds nothing."""
    return Not(as_pattern(pattern))


@checked(pattern=Pattern)
def optional(pattern: Pattern) -> Optional:
    """As an argument: the pattern, or nothing. Around an operation and called: that operation, or what it is called with.

    >>> str(is_op("aten.linear")(wildcard(), is_const(), optional(is_const().named("bias"))))
    'aten.linear(*, const, optional(const as bias))'
    """
    return Optional(pattern)


@checked()
def tuple_of(*items: Given) -> Pattern:
    """A list or tuple of just these elements: ``is_op("aten.cat")(tuple_of(a, b), 1)``."""
    return Tuple(tuple(map(as_pattern, items)))


@dataclass(frozen=True, eq=False)
class Match:
    """A place that a pattern fits. ``nodes`` are the operations that it names, in the order of the block; ``inputs`` the values that they
    take from elsewhere, each once; ``bindings`` what its names stand for, without those of alternatives that were not taken."""

    pattern: Pattern
    output: Value
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    bindings: Mapping[str, Argument]
    bound: Mapping[Pattern, Argument] = field(repr=False)

    def __getitem__(self, what: str | Pattern) -> Argument:
        """What a name or a pattern of the whole stands for; None where it took no part."""
        return self.bindings.get(what) if isinstance(what, str) else self.bound.get(what)


@checked(pattern=Pattern, value=Value, scope=(BlockDependences, None))
def match(pattern: Pattern, value: Value, scope: BlockDependences | None = None) -> Match | None:
    """The largest match whose result is ``value``; among equals the first. ``scope`` keeps it to one block and knows what leaves it."""
    return next(iter(matches(pattern, value, scope)), None)


@checked(pattern=Pattern, value=Value, scope=(BlockDependences, None))
def matches(pattern: Pattern, value: Value, scope: BlockDependences | None = None) -> list[Match]:
    """All ways in which a pattern fits a value, largest first."""
    start = _MatchState(scope)
    states = (state for state in _solve(pattern, value, start) if _shapes_agree(state, start))
    found = [_match_of(pattern, value, state) for state in islice(states, LIMIT)]
    return sorted(found, key=lambda each: -len(each.nodes))


def _match_of(pattern: Pattern, value: Value, state: _MatchState) -> Match:
    nodes = tuple(sorted(set(state.nodes), key=lambda node: node.number))
    inputs = dict.fromkeys(v for node in nodes for v in node.inputs if v.producer not in nodes)
    names = {key: argument for key, argument in state.bound.items() if isinstance(key, str)}
    bound = {key: argument for key, argument in state.bound.items() if isinstance(key, Pattern)}
    return Match(pattern, value, nodes, tuple(inputs), names, bound)


@dataclass(frozen=True)
class _MatchState:
    """What has been matched so far; ``pending`` are pairs of a value and the pattern whose shape it must have."""

    scope: BlockDependences | None
    bound: Mapping[Pattern | str, Argument] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()
    pending: tuple[tuple[Value, Pattern], ...] = ()

    def bind(self, key: Pattern | str, argument: Argument) -> _MatchState:
        return _MatchState(self.scope, {**self.bound, key: argument}, self.nodes, self.pending)

    def with_node(self, node: Node) -> _MatchState:
        return _MatchState(self.scope, self.bound, (*self.nodes, node), self.pending)

    def here(self, node: Node | None) -> bool:
        return node is not None and (self.scope is None or self.scope.holds(node))


def _solve(pattern: Pattern, argument: Argument, state: _MatchState) -> Iterator[_MatchState]:
    """Every way in which a pattern fits an argument."""
    if pattern in state.bound:
        if _same(state.bound[pattern], argument):
            yield state
        return
    for after in _fitting(pattern, argument, state):
        yield after.bind(pattern, argument)


def _fitting(pattern: Pattern, argument: Argument, state: _MatchState) -> Iterator[_MatchState]:
    match pattern:
        case Wildcard():
            yield state
        case ConstantPattern():
            if argument is not None and _constant(argument):
                yield state
        case Literal():
            if _same(pattern.value, argument):
                yield state
        case Op():
            yield from _call(pattern, (), (), argument, state)
        case CallPattern():
            yield from _call(pattern.op, pattern.arguments, pattern.named_arguments, argument, state)
        case Either():
            for option in pattern.options:
                yield from _solve(option, argument, state)
        case BothPattern():
            yield from _match_all([(part, argument) for part in pattern.parts], state)
        case Not():
            if not _fits(pattern.base, argument, state):
                yield state
        case Optional():
            yield from _solve(pattern.base, argument, state)
            if pattern.otherwise is not None:
                yield from _solve(pattern.otherwise, argument, state)
            elif argument is None:
                yield state
        case Named():
            for after in _solve(pattern.base, argument, state):
                if pattern.name not in after.bound:
                    yield after.bind(pattern.name, argument)
                elif _same(after.bound[pattern.name], argument):
                    yield after
        case _:
            yield from _structured(pattern, argument, state)


def _structured(pattern: Pattern, argument: Argument, state: _MatchState) -> Iterator[_MatchState]:
    """Tuples, and what only a value can fit."""
    if isinstance(pattern, Tuple):
        yield from _tuple(pattern, argument, state)
        return
    if not isinstance(argument, Value):
        return
    match pattern:
        case OutputPattern():
            yield from _output(pattern, argument, state)
        case TypePattern():
            if argument.type is not None and pattern.test(argument.type):
                yield from _solve(pattern.base, argument, state)
        case AttributePattern():
            if argument.producer is not None:
                arguments = argument.producer.arguments
                wanted = [(each, arguments.get(name)) for name, each in pattern.attributes]
                yield from _match_all([(pattern.base, argument), *wanted], state)
        case SameShape():
            for after in _solve(pattern.base, argument, state):
                yield _MatchState(after.scope, after.bound, after.nodes, (*after.pending, (argument, pattern.other)))
        case Used():
            yield from _used(pattern, argument, state)
        case Dominates():
            yield from _dominating(pattern, argument, state)


def _match_all(pairs: Sequence[tuple[Pattern, Argument]], state: _MatchState) -> Iterator[_MatchState]:
    if not pairs:
        yield state
        return
    for after in _solve(*pairs[0], state):
        yield from _match_all(pairs[1:], after)


def _call(
    op: Op, positional: tuple[Pattern, ...], named: tuple[tuple[str, Pattern], ...], argument: Argument, state: _MatchState
) -> Iterator[_MatchState]:
    if not isinstance(argument, Value) or argument.position or not state.here(argument.producer):
        return
    node = argument.producer
    assert node is not None
    if not op.fits(node):
        return
    by_name: list[tuple[Pattern, Argument]] = [(each, node.arguments.get(name)) for name, each in named]
    state = state.with_node(node)
    for arguments in _orders(node, bool(positional)):
        filled = [*arguments, *[None] * (len(positional) - len(arguments))]
        yield from _match_all([*zip(positional, filled), *by_name], state)


def _orders(node: Node, positional: bool) -> Iterator[list[Argument]]:
    """The arguments, and again with the first two swapped where that changes nothing but their order."""
    arguments = list(node.arguments.values())
    yield arguments
    swaps = positional and node.op in COMMUTATIVE and len(arguments) > 1 and node.arguments.get("alpha", 1) in (1, None)
    if swaps and not _same(arguments[0], arguments[1]):
        yield [arguments[1], arguments[0], *arguments[2:]]


def _tuple(pattern: Tuple, argument: Argument, state: _MatchState) -> Iterator[_MatchState]:
    if isinstance(argument, Value):
        node = argument.producer
        if node is None or node.op not in CONSTRUCTS or not state.here(node):
            return
        argument, state = tuple(node.arguments.values()), state.with_node(node)
    if isinstance(argument, tuple) and len(argument) == len(pattern.items):
        yield from _match_all(list(zip(pattern.items, argument)), state)


def _output(pattern: OutputPattern, value: Value, state: _MatchState) -> Iterator[_MatchState]:
    """A result by number: of an operation with several, or taken out of its tuple by an operation of its own."""
    node = value.producer
    if node is None or not state.here(node):
        return
    if node.op in UNPACKS:
        if value.position == pattern.index:
            yield from _solve(pattern.base, node.inputs[0], state.with_node(node))
    elif node.op in PROJECTIONS:
        whole, index, *_ = node.arguments.values()
        if index == pattern.index:
            yield from _solve(pattern.base, whole, state.with_node(node))
    elif value.position == pattern.index:
        yield from _solve(pattern.base, node.outputs[0], state)


def _used(pattern: Used, value: Value, state: _MatchState) -> Iterator[_MatchState]:
    users = [node for node in dict.fromkeys(value.users) if state.here(node)]
    leaves = state.scope is not None and value in state.scope.leaving
    for after in _solve(pattern.base, value, state):
        if pattern.only:
            if users and not leaves and all(node.outputs and _fits(pattern.user, node.outputs[0], after) for node in users):
                yield after
            continue
        for node in users:
            for found in _solve(pattern.user, node.outputs[0], after) if node.outputs else ():
                yield _MatchState(found.scope, found.bound, after.nodes, found.pending)


def _dominating(pattern: Dominates, value: Value, state: _MatchState) -> Iterator[_MatchState]:
    """Walks up from the child through operations that fit the path; whatever fits the parent must lead to the child by all its uses."""
    for after in _solve(pattern.child, value, state):
        end = set(after.nodes) - set(state.nodes)
        reached = dict.fromkeys(v for node in sorted(end, key=lambda n: -n.number) for v in node.inputs if v.producer not in end)
        queue = list(reached)
        for count, each in enumerate(queue):  # it grows
            if count == REACH:
                break
            if not state.here(each.producer):
                continue
            between = _between(pattern, each, end, after)
            if between is not None:
                for found in _solve(pattern.parent, each, after):
                    yield _MatchState(found.scope, found.bound, (*found.nodes, *between), found.pending)
            assert each.producer is not None
            if _fits(pattern.path, each, after):
                more = [v for v in each.producer.inputs if v not in reached]
                reached.update(dict.fromkeys(more))
                queue += dict.fromkeys(more)


def _between(pattern: Dominates, parent: Value, end: set[Node], state: _MatchState) -> list[Node] | None:
    """The nodes on the ways from a value to those at the end, or None where a way leads elsewhere or does not fit the path."""
    last = max(node.number for node in end)
    found: dict[Node, None] = {}
    values = [parent]
    for value in values:  # it grows
        if not value.users or (state.scope is not None and value in state.scope.leaving):
            return None
        for user in value.users:
            if user in end or user in found:
                continue
            if len(found) == REACH or user.number > last or not user.outputs or not state.here(user):
                return None
            if not _fits(pattern.path, user.outputs[0], state):
                return None
            found[user] = None
            values += user.outputs
    return list(found)


def _fits(pattern: Pattern, argument: Argument, state: _MatchState) -> bool:
    """Whether there is any way, without taking it."""
    return any(_shapes_agree(after, state) for after in _solve(pattern, argument, state))


def _shapes_agree(state: _MatchState, before: _MatchState) -> bool:
    """Whether the shapes that had to be the same since ``before`` are known and the same."""
    for value, pattern in state.pending[len(before.pending) :]:
        other = state.bound.get(pattern)
        if not isinstance(other, Value) or value.type is None or other.type is None:
            return False
        if value.type.elements is None or value.type.shape != other.type.shape:
            return False
    return True


def _constant(argument: Argument) -> bool:
    return all(value.constant for value in values_of(argument))


def _same(one: Argument, other: Argument) -> bool:
    """The same value, or equal as written; 1 is 1.0, but not True."""
    if isinstance(one, Value) or isinstance(other, Value):
        return one is other
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    return one == other or (one != one and other != other)
