"""From text to callables: ``define`` for a namespace, ``compile`` for one kernel. Neither imports torch before it must."""
from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tcjit.checked import brief, checked
from tcjit.errors import ArgumentError, TCWarning
from tcjit.jit import derivatives, targets
from tcjit.jit.derivatives import Derivatives
from tcjit.jit.kernel_cache import signatures
from tcjit.jit.settings import checked_options, checked_target

if TYPE_CHECKING:
    from tcjit.jit.call import Function
    from tcjit.jit.kernel import Kernel
    from tcjit.jit.signature import Signature
    from tcjit.mapping.options import Options
    from tcjit.tuner.result import TuneResult


class Namespace:
    """The defs of a text as attributes; iterating gives their names in the order of the text, ``tc["name"]`` is ``tc.name``."""

    __state: tuple[str, str | None, Options | None, tuple[str, ...], Derivatives]
    __signatures: dict[str, Signature]

    def __init__(
        self,
        source: str,
        target: str | None,
        options: Options | None,
        dynamic: tuple[str, ...],
        backward: Any,
        tangent: Any,
        saved: Any,
        ties: Any,
    ) -> None:
        by_name = {s.name: s for s in signatures(source)}
        given = derivatives.checked(source, by_name, backward, tangent, saved, ties)
        self.__dict__.update(_Namespace__state=(source, target, options, dynamic, given), _Namespace__signatures=by_name)
        _check_dynamic(list(by_name.values()), dynamic)
        for signature in by_name.values():
            if signature.warning:
                warnings.warn(f"{signature.name}: {signature.warning}", TCWarning, stacklevel=4)  # where define was called
        if sys.modules.get("torch") is not None:
            for name in by_name:
                self[name]

    def __getitem__(self, name: str) -> Function:
        if not isinstance(name, str) or name not in self.__signatures:
            known = ", ".join(self.__signatures)
            raise ArgumentError(f"the text has no def called {brief(name)}", hint=f"one of {known}")
        source, target, options, dynamic, given = self.__state
        sizes = tuple(size for size in dynamic if size in self.__signatures[name].sizes)
        function = _function(source, name, target, options, sizes, given.of(name))
        self.__dict__[name] = function
        return function

    def __getattr__(self, name: str) -> Function:
        if name.startswith("_Namespace__") or name not in self.__signatures:
            raise AttributeError(f"the text has no def called {name!r}", name=name, obj=self)
        return self[name]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"the defs of a namespace are those of its text: {name} cannot be set; try: tcjit.define of another text")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"the defs of a namespace are those of its text: {name} cannot be deleted")

    def __iter__(self) -> Iterator[str]:
        return iter(self.__signatures)

    def __len__(self) -> int:
        return len(self.__signatures)

    def __dir__(self) -> list[str]:
        return list(self.__signatures)

    def __repr__(self) -> str:
        return "<tcjit\n" + "".join(f"  {signature}\n" for signature in self.__signatures.values()) + ">"

    def _repr_html_(self) -> str:
        from html import escape

        from tcjit import notebook  # as html, what few processes need

        source, target, options, *_ = self.__state
        settings = f"for {target or 'the device of the arguments'}" + (f", {options}" if options else "")
        text = notebook.listing(source.strip("\n"))
        return notebook.fragment(notebook.heading(f"tcjit: {', '.join(self)}"), text, f"<p>{escape(settings)}</p>")

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, self.__state


def _again(
    source: str, target: str | None, options: Options | None, dynamic: tuple[str, ...] = (), given: Derivatives = derivatives.NONE
) -> Namespace:
    return define(
        source,
        target=target,
        options=options,
        dynamic=dynamic,
        backward=dict(given.backward),
        tangent=dict(given.tangent),
        saved=given.saved,
        ties=given.ties,
    )


@checked()
def define(
    source: str,
    *,
    target: str | None = None,
    options: Options | None = None,
    dynamic: Sequence[str] = (),
    backward: Mapping[str, str] | None = None,
    tangent: Mapping[str, str] | None = None,
    saved: Sequence[str] | None = None,
    ties: str = "even",
) -> Namespace:
    """The defs of ``source`` as callables; nothing is compiled before the first call.

    ``target`` is ``"cpu"``, ``"cuda"``, ``"opencl"``, ``"reference"``, or None for the device of the arguments; ``"cuda:sm_90"`` compiles
    for an architecture without running. ``dynamic`` names sizes that kernels take as they come, of every def that has them: one compilation
    serves many values. Without it, a size becomes dynamic on its ninth value, or its sixty-fifth where fixed sizes give faster kernels.
    ``backward={"f": "g"}`` says that the def ``g`` computes the gradients of ``f``, ``tangent`` the same of derivatives in forward mode.
    ``saved`` names the temporaries that a call which records gradients keeps for them, of every def that has them; by default statistics
    of rows, and long sums of products.
    ``ties="first"`` gives the gradient of a ``max`` or ``min`` over equal elements to the first of them, instead of even shares. A
    ParseError or CheckError says where the text is wrong, an ArgumentError that an argument here is; a TCWarning points at a comparison of
    floats that may not be what it seems.

    >>> import torch
    >>> tc = define("def add(float(N) A, float(N) B) -> (C) { C(i) = A(i) + B(i) }", target="reference")
    >>> tc
    <tcjit
      add(float32(N) A, float32(N) B) -> (C)
    >
    >>> tc.add(torch.ones(2), torch.ones(2))
    tensor([2., 2.])
    """
    _checked(source, target, options)
    if not isinstance(dynamic, (list, tuple)) or not all(isinstance(size, str) for size in dynamic):
        raise ArgumentError(f"dynamic= takes names of sizes, not {brief(dynamic)}", hint='dynamic=["B"]')
    return Namespace(source, target, options, tuple(dict.fromkeys(dynamic)), backward, tangent, saved, ties)


def _check_dynamic(signatures: Sequence[Signature], dynamic: Sequence[str]) -> None:
    """Every name is a size of some def, and of none in which it is part of the code."""
    for size in dynamic:
        having = [signature for signature in signatures if size in signature.sizes]
        if not having:
            known = ", ".join(dict.fromkeys(name for signature in signatures for name in signature.sizes))
            raise ArgumentError(f"dynamic= names {size!r}, and no def has such a size", hint=f"of {known}" if known else "no dynamic=")
        for signature in having:
            if size in signature.specialised:
                raise ArgumentError(
                    f"the size {size} of {signature.name}() cannot be dynamic: it is a factor, divisor or modulus in index arithmetic",
                    hint=f"dynamic= without {size!r}; a kernel is then compiled for every value",
                )


@checked(name=str)
def compile(
    source: str,
    name: str,
    *args: Any,
    target: str | None = None,
    options: Options | None = None,
    unchecked: bool = False,
    **named: Any,
) -> Kernel:
    """The kernel of the def ``name`` for these arguments, without running it; meta tensors do for shapes."""
    _checked(source, target, options)
    return _function(source, name, target, options).compile(*args, unchecked=unchecked, **named)


@checked(name=str)
def autotune(source: str, name: str, *args: Any, target: str | None = None, **settings: Any) -> TuneResult:
    """``tcjit.define(source).name.autotune(*args, ...)``: search the best mapping options of a def for these arguments."""
    _checked(source, target, None)
    return _function(source, name, target, None).autotune(*args, **settings)


@checked()
def synchronize() -> None:
    """Wait for the kernels in flight, and raise what they flagged: on a CPU every call has done both when it returns."""
    targets.synchronize()


def _function(
    source: str,
    name: str,
    target: str | None,
    options: Options | None,
    dynamic: tuple[str, ...] = (),
    given: Derivatives = derivatives.NONE,
) -> Function:
    from tcjit.jit.call import function  # imports torch

    return function(source, name, target, options, dynamic, given)


def _checked(source: Any, target: Any, options: Any) -> None:
    if not isinstance(source, str):
        raise ArgumentError(f"a program is a str, not {type(source).__name__}", hint='tcjit.define("def ...")')
    checked_target(target)
    checked_options(options)
