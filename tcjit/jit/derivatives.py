"""Which defs are the adjoints and tangents of others: what a user says at ``define``, matched by name.

An adjoint's parameters are ``d_<return>`` for the cotangents of returns, and those parameters, returns and sizes of the forward def that it
reads, under their own names; its returns are ``d_<parameter>``. A tangent's are ``t_<parameter>`` and ``t_<return>``. Where the forward def
has such a name itself, the prefix is ``dd_``, ``ddd_``... or ``tt_``...
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from tcjit.checked import brief
from tcjit.errors import ArgumentError, CheckError, Where
from tcjit.grammar.ast import Param
from tcjit.grammar.dtypes import DTYPES
from tcjit.jit.signature import Output, Signature

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Derivatives:
    """How defs are differentiated: the names of adjoints and tangents, by the names of the defs that they belong to; for derived adjoints
    the temporaries that are saved, None for those worth it, and who gets the cotangent of a ``max`` or ``min`` of equal elements."""

    backward: Pairs = ()
    tangent: Pairs = ()
    saved: tuple[str, ...] | None = None
    ties: str = "even"

    def of(self, name: str) -> Derivatives:
        """Those that differentiating one def may come to, whatever the order."""
        steps = (*self.backward, *self.tangent)
        reached = {name}
        while more := {other for one, other in steps if one in reached} - reached:
            reached |= more
        backward, tangent = (tuple(pair for pair in pairs if pair[0] in reached) for pairs in (self.backward, self.tangent))
        return Derivatives(backward, tangent, self.saved, self.ties)


NONE = Derivatives()
TIES = ("even", "first")  # those of grammar.differentiate, which needs isl


@dataclass(frozen=True)
class DerivativeNames:
    """What the names of an adjoint or tangent stand for: ``inputs`` the derivatives that it takes, by the forward's names, and ``results``
    those that it returns."""

    inputs: Mapping[str, str]
    results: Mapping[str, str]


def checked(
    text: str, signatures: Mapping[str, Signature], backward: Any, tangent: Any, saved: Any = None, ties: Any = "even"
) -> Derivatives:
    """What a user passed; an ArgumentError for what is no mapping between names of defs, or names no temporary, a CheckError where the two
    defs do not match."""
    if ties not in TIES:
        raise ArgumentError(f"ties= is {brief(ties)}", hint=" or ".join(map(repr, TIES)))
    names = _saved(text, signatures, saved)
    derivatives = Derivatives(_pairs("backward", signatures, backward), _pairs("tangent", signatures, tangent), names, ties)
    for name, other in derivatives.backward:
        match_adjoint(text, signatures[name], signatures[other])
    for name, other in derivatives.tangent:
        match_tangent(text, signatures[name], signatures[other])
    return derivatives


def _saved(text: str, signatures: Mapping[str, Signature], saved: Any) -> tuple[str, ...] | None:
    if saved is None:
        return None
    if not isinstance(saved, (list, tuple)) or not all(isinstance(name, str) for name in saved):
        raise ArgumentError(f"saved= takes names of temporaries, not {brief(saved)}", hint='saved=["Total"]')
    if saved:
        from tcjit.jit.compile import definition  # needs isl and lark

        tensors = [tensor for name in signatures for tensor in definition(text, name).tensors]
        known = dict.fromkeys(tensor.name for tensor in tensors if tensor.role == "temporary")
        for name in saved:
            if name not in known:
                hint = f"of {', '.join(known)}" if known else "no saved=: results are there anyway"
                raise ArgumentError(f"saved= names {brief(name)}, and no def has such a temporary", hint=hint)
    return tuple(dict.fromkeys(saved))


def _pairs(what: str, signatures: Mapping[str, Signature], given: Any) -> Pairs:
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise ArgumentError(f"{what}= takes a dict from names of defs to names of defs, not {brief(given)}", hint=f'{what}={{"f": "g"}}')
    for pair in given.items():
        for name in pair:
            if not isinstance(name, str) or name not in signatures:
                known = ", ".join(signatures)
                raise ArgumentError(f"{what}= names {brief(name)}, and the text has no such def", hint=f"one of {known}")
    return tuple(given.items())


def match_adjoint(text: str, forward: Signature, adjoint: Signature) -> DerivativeNames:
    """What the names of an adjoint stand for."""
    parameters = [param.name for param in forward.params]
    prefix = _prefix("d", forward, lambda p: any(r.name.startswith(p) and r.name[len(p) :] in parameters for r in adjoint.returns))
    pair = _Matching(text, "backward", forward, adjoint, prefix)
    takes, gives = ("the cotangent of a return", "the gradient of a parameter")
    return DerivativeNames(pair.inputs(_shown(forward.returns), takes), pair.results(_shown(forward.params), gives))


def match_tangent(text: str, forward: Signature, tangent: Signature) -> DerivativeNames:
    """What the names of a tangent stand for: the derivatives of all returns that have some."""
    parameters = [param.name for param in forward.params]
    prefix = _prefix("t", forward, lambda p: any(q.name.startswith(p) and q.name[len(p) :] in parameters for q in tangent.params))
    pair = _Matching(text, "tangent", forward, tangent, prefix)
    results = pair.results(_shown(forward.returns), "the tangent of a return")
    for output in forward.returns:
        if DTYPES[output.dtype].kind == "float" and output.name not in results:
            raise pair.fault("", f"{tangent.name}() does not return {prefix}{output.name}, the tangent of {output.name}")
    return DerivativeNames(pair.inputs(_shown(forward.params), "the tangent of a parameter"), results)


@dataclass(frozen=True)
class _Variable:
    """A parameter or return with its type; ``dims`` is its number of dimensions."""

    name: str
    dtype: str
    dims: int

    def __str__(self) -> str:
        return f"{self.dtype} with {self.dims} dimensions" if self.dims else f"a {self.dtype} without dimensions"


def _shown(variables: Sequence[Param] | Sequence[Output]) -> dict[str, _Variable]:
    return {v.name: _Variable(v.name, v.dtype, len(v.dims if isinstance(v, Param) else v.shape)) for v in variables}


def _prefix(letter: str, forward: Signature, fits: Callable[[str], bool]) -> str:
    """The first prefix that makes no name which the forward def has itself, if possible one that fits."""
    names = {*forward.sizes, *(p.name for p in forward.params), *(r.name for r in forward.returns)}
    free = (p for n in count(1) if not any((p := letter * n + "_") + name in names for name in names))
    first = list(islice(free, 4))
    return next(filter(fits, first), first[0])


@dataclass(frozen=True)
class _Matching:
    """A def and another one that is to be its adjoint or tangent."""

    text: str
    what: str
    forward: Signature
    other: Signature
    prefix: str

    def __post_init__(self) -> None:
        for signature in (self.forward, self.other):
            if signature.accumulates:
                raise self.fault("", f"{signature.name}() adds to values of {', '.join(signature.accumulates)} that the caller passes")

    def inputs(self, differentiated: Mapping[str, _Variable], what: str) -> dict[str, str]:
        """The derivatives among the parameters; a CheckError for a parameter that is nothing."""
        found: dict[str, str] = {}
        known = {**_shown(self.forward.params), **_shown(self.forward.returns)}
        known |= {size: _Variable(size, "int32", 0) for size in self.forward.sizes if size not in known}
        for name, own in _shown(self.other.params).items():
            base = name.removeprefix(self.prefix)
            if base != name and base in differentiated:
                self._same(own, differentiated[base], True)
                found[base] = name
            elif name in known:
                self._same(own, known[name], False)
            else:
                what = f"the parameter {name} is neither {what} of {self.forward.name}() nor one of its parameters, returns and sizes"
                raise self.fault(name, what, f"one of {', '.join([*(self.prefix + n for n in differentiated), *known])}")
        if not found:
            one = ", ".join(self.prefix + name for name in differentiated)
            raise self.fault("", f"{self.other.name}() takes no derivative: none of its parameters is {what} of {self.forward.name}()", one)
        return found

    def results(self, differentiated: Mapping[str, _Variable], what: str) -> dict[str, str]:
        """The derivatives among the returns; a CheckError for a return that is none."""
        found: dict[str, str] = {}
        for name, own in _shown(self.other.returns).items():
            base = name.removeprefix(self.prefix)
            if base == name or base not in differentiated:
                hint = f"one of {', '.join(self.prefix + n for n in differentiated)}"
                raise self.fault(name, f"the return {name} is not {what} of {self.forward.name}()", hint)
            self._same(own, differentiated[base], True)
            found[base] = name
        return found

    def _same(self, own: _Variable, wanted: _Variable, derivative: bool) -> None:
        shown = f"{wanted.name} of {self.forward.name}()"
        if derivative and DTYPES[wanted.dtype].kind != "float":
            raise self.fault(own.name, f"{shown} is {wanted.dtype}, which has no derivative")
        if (own.dtype, own.dims) != (wanted.dtype, wanted.dims):
            raise self.fault(own.name, f"{own.name} is {own}, and {shown} is {wanted}", "the same type")

    def fault(self, name: str, what: str, hint: str = "") -> CheckError:
        """The error for a parameter or return of the other def, or for the whole def."""
        said = f"{what}: {self.what}={{{self.forward.name!r}: {self.other.name!r}}}"
        return CheckError(said, where=self._where(name), hint=hint or f"another def, or no {self.what}= for {self.forward.name}")

    def _where(self, name: str) -> Where | None:
        from tcjit.grammar.parse import parse  # needs lark

        for definition in parse(self.text):
            if definition.name == self.other.name:
                places = {p.name: p.where for p in definition.params} | {r.name: r.where for r in definition.returns}
                return places.get(name) or definition.where
        return None

