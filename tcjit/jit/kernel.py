"""A compiled kernel: one def for one set of shapes, layouts and specialised values."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tcjit.checked import checked
from tcjit.dataclass import dataclass
from tcjit.errors import ArgumentError, LaunchError, MappingError, ShapeError, VerifyError
from tcjit.grammar.bind import refuse_beyond
from tcjit.jit import arguments, kernel_cache, targets
from tcjit.jit.arguments import BoundArguments, Value
from tcjit.jit.fast import Table
from tcjit.jit.kernel_cache import LoadedBinary
from tcjit.jit.launch import Key, runtime_numbers
from tcjit.jit.launch_record import failure
from tcjit.jit.signature import Signature
from tcjit.layout import memory_order
from tcjit.mapping.options import Options
from tcjit.runtime import tensors

if TYPE_CHECKING:
    from tcjit.grammar.ast import Program
    from tcjit.mapping.roofline import Roofline
    from tcjit.runtime.reference import Result

# a kernel's work on plain tensors: inputs in order, scalars by name, outputs that are contiguous and apart; raises what it flags
Work = Callable[[Sequence[torch.Tensor], Mapping[str, Value], Sequence[torch.Tensor]], None]


@dataclass(frozen=True)
class Check:
    """What ``Kernel.check`` found, per output.

    ``used`` is the largest difference from the reference as a part of what is allowed; ``undecided`` the number of elements, of
    ``elements``, that could not be compared: they hang on a comparison, or a rounding to an integer, of floats that nearly agree.
    """

    used: Mapping[str, float]
    undecided: Mapping[str, int]
    elements: Mapping[str, int]

    def __str__(self) -> str:
        return ", ".join(f"{name}: {part:.3g} of the error allowed{self._left_out(name)}" for name, part in self.used.items())

    def _left_out(self, name: str) -> str:
        return f" ({self.undecided[name]} of {self.elements[name]} not decidable)" if self.undecided[name] else ""


class Kernel:
    """Call it on arguments of its shapes, look at how it was made, or compare it with the reference.

    >>> import tcjit, torch
    >>> k = tcjit.compile("def twice(float(N) X) -> (Y) { Y(i) = 2 * X(i) }", "twice", torch.ones(3), target="reference")
    >>> k(torch.ones(3))
    tensor([2., 2., 2.])
    """

    @checked(text=str, signature=Signature, key=Key, record=Mapping, work=Callable, artifacts=Callable)
    def __init__(
        self,
        text: str,
        signature: Signature,
        key: Key,
        record: Mapping[str, Any],
        work: Work,
        artifacts: Callable[[], Mapping[str, str]],
        binary: LoadedBinary | None = None,
    ) -> None:
        self.text = text
        self.signature = signature
        self.key = key
        self.record = record
        self.work = work
        self.binary = binary  # None where there is none
        self._table = Table()
        self._call = self._table.call
        self._artifacts = artifacts

    def __repr__(self) -> str:
        shapes = ", ".join(f"{p.name}{list(s)}" for p, s in zip((p for p in self.signature.params if p.dims), self.key.shapes))
        return f"<tcjit.Kernel {self.signature.name}({shapes}) for {self.target}>"

    def _repr_html_(self) -> str:
        from tcjit import notebook  # what few processes need

        plain = type(self.options)().to_dict()
        chosen = {name: value for name, value in self.options.to_dict().items() if value != plain[name]}
        try:
            least = f"{self.roofline.flops} operations, {self.roofline.bytes} bytes"
        except MappingError as error:  # what is shown must not fail
            least = f"not known: {error.what}"
        facts = {
            "target": self.target,
            "options": ", ".join(f"{name}={value}" for name, value in chosen.items()) or "the defaults",
            "roofline": least,
            **{name: value for name, value in self.resources.items() if name != "seconds"},
        }
        return notebook.fragment(notebook.heading(repr(self)), notebook.listing(self.text.strip("\n")), notebook.facts(facts))

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.text, self.signature.name, self.key)

    # ------------------------------------------------------------ how it was made

    @cached_property
    def artifacts(self) -> Mapping[str, str]:
        """The text of every step of the compilation, by name."""
        return dict(self._artifacts())

    @property
    def source(self) -> str:
        """The generated code."""
        return self.artifacts.get("source", "")

    @property
    def tree(self) -> str:
        """The schedule tree that the code was generated from."""
        return self.artifacts.get("tree", "")

    @property
    def target(self) -> str:
        return self.key.target.name

    @cached_property
    def options(self) -> Options:
        """The options it was compiled with, the model's choices filled in."""
        return Options.from_dict(self.record["options"]) if self.record.get("options") else (self.key.options or Options())

    @property
    def resources(self) -> Mapping[str, Any]:
        """Bytes of workspace, whether the mapping was proved, the seconds of every step when it was compiled, how a CPU computes each of
        the ``reductions``, and what a GPU's compiler said: registers, bytes of shared memory and of spills, occupancy."""
        always = {name: self.record.get(name, empty) for name, empty in (("workspace", 0), ("verified", False), ("seconds", {}))}
        return {**always, **self.record.get("resources", {})}

    @property
    def nests(self) -> int:
        """How many reductions a CPU computes by register tiles over their exact domains."""
        return int(self.record.get("nests", 0))

    @cached_property
    def roofline(self) -> Roofline:
        """The least work: arithmetic operations, and bytes to and from memory; a MappingError where isl cannot count them."""
        from tcjit.mapping.roofline import roofline  # needs isl

        return roofline(self.program)

    @cached_property
    def program(self) -> Program:
        """The def for these shapes; parsed anew where the kernel came out of the cache."""
        return specialised(self.text, self.signature, self.key)

    # ------------------------------------------------------------ running it

    def __call__(self, *args: Any, out: Any = None, **named: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """One tensor, or a tuple in the order of the returns.

        ShapeError for shapes other than its own; ArgumentError for arguments that do not fit, and for tensors that are not plain
        (under vmap or a tracer call the def itself, which finds its way through torch's dispatcher).
        """
        args = arguments.positional(self.signature, args, named) if named else args
        result: torch.Tensor | tuple[torch.Tensor, ...] = self._call(args, out, not self.key.checked)
        return self._slow(args, out) if result is NotImplemented else result

    def _slow(self, args: tuple[Any, ...], out: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
        bound = self._bound(args)
        arguments.refuse_gradients(self.signature, bound.tensors)
        outs = arguments.outputs(self.signature, out, bound, self.output_shapes, self.key.target)
        inputs = self._inputs(bound)
        if not tensors.plain_state() or not all(map(tensors.plain, [*inputs, *(outs or ())])):
            raise ArgumentError(f"{self!r} runs on plain tensors only", hint=f"call {self.signature.name} itself, not its kernel")
        results = self.run(inputs, bound.scalars, outs)
        if self.binary is not None and all(a is b for a, b in zip(inputs, bound.tensors.values())):  # none was copied
            self._call = self._table.remember(self.signature, self.key, self.binary, bound)
        return packed(results)

    def _bound(self, args: tuple[Any, ...]) -> BoundArguments:
        bound = arguments.check(self.signature, arguments.imported(self.signature, args), self.key.target)
        if self.key.target.device_type and any(device not in (self.key.target.device, "meta") for device in bound.devices):
            raise ArgumentError(
                f"this kernel was compiled for tensors on {self.key.target.device}, not {bound.devices[0]}",
                hint=f"{self.signature.name}(...), which sees to it",
            )
        return bound

    @cached_property
    def output_shapes(self) -> list[tuple[int, ...]]:
        return [tuple(returned["shape"]) for returned in self.record["returns"]]

    def _inputs(self, bound: BoundArguments) -> list[torch.Tensor]:
        """The tensor arguments in layouts that the kernel reads, copied where theirs are others."""
        if bound.specialised != dict(self.key.scalars):
            wanted = ", ".join(f"{name} = {value}" for name, value in self.key.scalars)
            raise ArgumentError(f"this kernel was compiled for {wanted}", hint=f"{self.signature.name}.compile(...) for the new values")
        result = []
        for name, shape, wanted in zip(bound.tensors, self.key.shapes, self.key.layouts):
            tensor = bound.tensors[name]
            if tuple(tensor.shape) != shape:
                raise ShapeError(
                    f"this kernel was compiled for {name} of shape {shape}, not {tuple(tensor.shape)}",
                    hint=f"{self.signature.name}.compile(...) for the new shapes, or {self.signature.name}(...), which sees to it",
                )
            if self.key.target.reads(wanted, shape, tensor.stride()):
                result.append(tensor.resolve_neg())
            elif self.key.target.reads(wanted, shape, (copy := _copied(tensor, wanted)).stride()):
                result.append(copy)
            else:
                raise ArgumentError(
                    f"this kernel was compiled for {name} with layout {wanted}, and strides {tuple(tensor.stride())} are not of that kind",
                    hint=f"{self.signature.name}.compile(...) for the new strides",
                )
        return result

    def run(
        self, inputs: Sequence[torch.Tensor], scalars: Mapping[str, Value], outs: Sequence[torch.Tensor] | None = None
    ) -> list[torch.Tensor]:
        """The outputs for plain inputs of the kernel's shapes and layouts; ``outs`` have been checked and may be strided."""
        returns, on = self.signature.returns, self.key.target
        inputs = [tensor if on.accepts(tensor) else _copied(tensor, layout) for tensor, layout in zip(inputs, self.key.layouts)]
        if outs is None:
            results = [tensors.empty(shape, output.dtype, on.device, output.name) for output, shape in zip(returns, self.output_shapes)]
            self._work(inputs, scalars, results)
            return results
        direct = [out if out.is_contiguous() and tensors.plain(out) and on.accepts(out) else _copied(out, "contiguous") for out in outs]
        self._work(inputs, scalars, direct)
        with tensors.one_thread_after_fork(), torch.no_grad():
            for out, result in zip(outs, direct):
                if out is result:
                    tensors.bump(out)
                else:
                    out.copy_(result)
        return list(outs)

    def _work(self, inputs: Sequence[torch.Tensor], scalars: Mapping[str, Value], outs: Sequence[torch.Tensor]) -> None:
        """``work``; where there is no room for the temporaries, an error that names them."""
        try:
            self.work(inputs, scalars, outs)
        except tensors.OutOfMemory as error:
            inner = [t for t in self.program.definition.tensors if t.role == "temporary"]
            named = ", ".join(f"{t.name} of shape {self.program.shape(t.name)} in {t.dtype}" for t in inner)
            what = f"no memory for the temporaries of {self.signature.name}(): {named}; {error.what}"
            raise LaunchError(what, hint=error.hint) from error

    # ------------------------------------------------------------ comparing it

    def check(self, *args: Any, **named: Any) -> Check:
        """Run on ``args`` and compare with the reference; a VerifyError names the first element that is off by more than rounding.

        Outputs that accumulate start from ones.
        """
        bound = self._bound(arguments.positional(self.signature, args, named) if named else args)
        shapes = zip(self.signature.returns, self.output_shapes)
        initial = [torch.ones(shape, dtype=tensors.TORCH[output.dtype], device=self.key.target.device) for output, shape in shapes]
        accumulating = bool(self.signature.accumulates)
        with torch.no_grad():
            got = self.run(self._inputs(bound), bound.scalars, [t.clone() for t in initial] if accumulating else None)
            targets.synchronize()
            expected = reference(self.program, self.signature, list(bound.tensors.values()), bound.scalars, initial, self.key.checked, True)
        names = [output.name for output in self.signature.returns]
        used = {n: _compare(self, n, tensors.to_numpy(t), expected.values[n], expected.error[n]) for n, t in zip(names, got)}
        undecided = {n: int(np.isinf(expected.error[n]).sum()) for n in names}
        return Check(used, undecided, {n: int(expected.error[n].size) for n in names})


def _again(text: str, name: str, key: Key) -> Kernel:
    """The kernel of a pickle: out of the cache, or compiled for this machine."""
    return create(text, kernel_cache.signature(text, name), key)


def packed(results: Sequence[torch.Tensor]) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """What a call returns."""
    return results[0] if len(results) == 1 else tuple(results)


def _copied(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """In the memory order of a layout, or contiguous where that leaves strides open."""
    order = memory_order(layout, tensor.dim()) or tuple(range(tensor.dim()))
    with tensors.one_thread_after_fork(), torch.no_grad():
        copy = torch.empty_permuted(tensor.shape, order, dtype=tensor.dtype, device=tensor.device)
        return copy.copy_(tensor.detach().resolve_neg())


def _compare(kernel: Kernel, name: str, got: Any, expected: Any, error: Any) -> float:
    """The largest part of the allowed error that is used; a VerifyError above 1."""
    with np.errstate(all="ignore"):
        same = (got == expected) | ((got != got) & (expected != expected)) | np.isinf(error)
        distance = np.abs(got.astype(np.float64) - expected.astype(np.float64))
        part = np.where(same, 0.0, np.where(error > 0, distance / np.where(error > 0, error, 1.0), np.inf))
        part = np.where(np.isnan(part), np.inf, part)
    worst = float(part.max(initial=0.0))
    if worst > 1:
        index = tuple(int(i) for i in np.unravel_index(int(part.argmax()), part.shape))
        allowed = f"the reference says {expected[index]} with an error of {error[index]:.3g} allowed"
        raise VerifyError(
            f"{kernel!r}: {name}{list(index)} is {got[index]}, and {allowed}", hint="please report it with the program and its sizes"
        )
    return worst


# ---------------------------------------------------------------- two ways to work


def specialised(text: str, signature: Signature, key: Key) -> Program:
    """The program of a key, out of the text; raises the ShapeErrors that depend on sizes."""
    from tcjit.grammar.infer import specialise  # needs lark and isl
    from tcjit.jit.compile import definition

    names = [p.name for p in signature.params if p.dims]
    return specialise(definition(text, signature.name), dict(zip(names, key.shapes)), dict(key.scalars))


def create(text: str, signature: Signature, key: Key) -> Kernel:
    """The kernel of a key: out of the cache, or compiled now."""
    if key.target.interpreted:
        return interpreted(text, signature, key)
    return compiled(text, signature, key, kernel_cache.binary(text, signature, key))


def compiled(text: str, signature: Signature, key: Key, binary: LoadedBinary) -> Kernel:
    """A kernel out of a binary."""
    record, launch, artifacts = binary

    def work(inputs: Sequence[torch.Tensor], scalars: Mapping[str, Value], outs: Sequence[torch.Tensor]) -> None:
        flag = launch(outs, inputs, runtime_numbers(signature, record, inputs, scalars))
        if flag:
            raise failure(record, flag)

    return Kernel(text, signature, key, record, work, artifacts, binary)


def interpreted(text: str, signature: Signature, key: Key) -> Kernel:
    """A kernel that is the reference's interpretation of the program."""
    program = specialised(text, signature, key)

    def work(inputs: Sequence[torch.Tensor], scalars: Mapping[str, Value], outs: Sequence[torch.Tensor]) -> None:
        result = reference(program, signature, inputs, scalars, outs, key.checked, False)
        with tensors.one_thread_after_fork():
            for output, out in zip(signature.returns, outs):
                out.data.copy_(tensors.from_numpy(result.values[output.name], output.dtype))

    def artifacts() -> Mapping[str, str]:
        from tcjit.grammar.printer import show

        return {"source": show(program.definition), "tree": ""}

    returns = [{"name": r.name, "dtype": r.dtype, "shape": list(program.shape(r.name))} for r in signature.returns]
    return Kernel(text, signature, key, {"returns": returns}, work, artifacts)


def reference(
    program: Program,
    signature: Signature,
    inputs: Sequence[torch.Tensor],
    scalars: Mapping[str, Value],
    initial: Sequence[torch.Tensor],
    checked: bool,
    track: bool,
) -> Result:
    """The reference's result, as NumPy arrays by name."""
    from tcjit.runtime import reference as interpreter

    with tensors.one_thread_after_fork():
        arrays = {p.name: tensors.to_numpy(t) for p, t in zip((p for p in signature.params if p.dims), inputs)}
        before = {r.name: tensors.to_numpy(t) for r, t in zip(signature.returns, initial) if r.accumulates}
        return interpreter.run(program, arrays, scalars, before, checked, track)


def extents(signature: Signature, bound: BoundArguments) -> list[tuple[int, ...]]:
    """The outputs' shapes for bound arguments; a ShapeError for a negative extent."""
    try:
        shapes = signature.shapes(bound.values)
    except ZeroDivisionError:
        what = f"the shape of the result of {signature.name}() divides by zero"
        raise ShapeError(what, sizes=bound.values, hint="another divisor") from None
    for output, shape in zip(signature.returns, shapes):
        if any(extent < 0 for extent in shape):
            raise ShapeError(f"{output.name} would have shape {shape}", sizes=bound.values, hint="larger arguments")
        if all(type(extent) is int for extent in shape):
            refuse_beyond(output.name, shape, output.dtype, bound.values)
    return shapes

