"""What a region is at run time: a text that says what it computes, in plain ATen, and what its backend made of it.

    {"version": 1, "backend": "mine", "name": "mine_0_add_relu",
     "inputs": [{"name": "x", "dtype": "float32", "shape": [2, 3], "device": "cpu", "constant": false}, ...], "outputs": [...],
     "nodes": [{"op": "aten.add", "overload": "Tensor", "arguments": {"self": {"value": "x"}, ...}, "outputs": ["y"]}, ...],
     "code": {...}, "digest": "..."}

An argument is a JSON value, a list, ``{"value": name}``, ``{"float": "inf"}`` (``-inf``, ``nan``) or ``{"complex": [re, im]}``. The digest
of all before it ends the text, so that looking up a long spec costs no more than a short one.
"""
from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from tcjit.byoc.graph import Argument, Value
from tcjit.byoc.ops import call, dtype_name, effect_of, results
from tcjit.byoc.regions import Region, identifier
from tcjit.errors import PartitionError

VERSION = 1
# how many characters at the end of a spec tell it from all others: 32 hexadecimal digits and `"}`
TAIL = 34

Spec: TypeAlias = dict[str, Any]
Runner: TypeAlias = Callable[[Sequence[Tensor]], Sequence[Tensor]]


class Unserved(PartitionError):
    """Raised by a backend's runner for tensors that it cannot take: the region then runs in plain ATen."""


def spec(region: Region, code: Mapping[str, Any]) -> str:
    """The text of a region; ``code`` is what its backend's ``lower`` gave."""
    names: dict[Value, str] = {}
    taken: set[str] = set()

    def name(value: Value) -> str:
        if value not in names:
            base = identifier(value.name)
            names[value] = next(each for each in _variants(base) if each not in taken)
            taken.add(names[value])
        return names[value]

    def described(values: Iterable[Value]) -> list[dict[str, Any]]:
        return [_described(name(value), value) for value in values]

    inputs = described((*region.inputs, *region.constants))
    nodes = [
        {
            "op": node.op,
            "overload": node.overload,
            "arguments": {key: written(each, name) for key, each in node.arguments.items()},
            "outputs": list(map(name, node.outputs)),
        }
        for node in region.nodes
    ]
    return seal(
        {
            "version": VERSION,
            "backend": region.backend,
            "name": region.name,
            "inputs": inputs,
            "outputs": described(region.outputs),
            "nodes": nodes,
            "code": dict(code),
        }
    )


def seal(content: Mapping[str, Any]) -> str:
    """A spec's content as text, with its digest."""
    try:
        body = json.dumps({key: value for key, value in content.items() if key != "digest"}, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        hint = "`lower` gives numbers, texts, lists and dicts"
        raise PartitionError(f"the spec of {content.get('name')} cannot be written as JSON: {error}", hint=hint) from error
    return f'{body[:-1]},"digest":"{_digest(body)}"}}'


def parse(text: str) -> Spec:
    """What a spec says; raises PartitionError where it is none, was edited, or is of another version."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise PartitionError(f"this is no spec of a region: {text[:40]!r}...", hint="the model's file may be damaged") from error
    if not isinstance(found, dict) or found.get("version") != VERSION:
        version = found.get("version") if isinstance(found, dict) else None
        raise PartitionError(f"a region's spec has version {version}, this tcjit reads {VERSION}", hint="partition the model again")
    name = found.get("name")
    body, _, tail = text.rpartition(',"digest":"')
    if tail != f'{_digest(body + "}")}"}}':
        raise PartitionError(f"the spec of region {name} is not as it was written", hint="write it with tcjit.byoc.spec.seal")
    missing = [key for key in ("backend", "name", "inputs", "outputs", "nodes", "code") if key not in found]
    if missing:
        raise PartitionError(f"the spec of region {name} lacks {', '.join(missing)}")
    return found


def fits(parsed: Spec, tensors: Sequence[Tensor]) -> bool:
    """Whether tensors have the dtypes, devices and extents that a spec speaks of; extents it does not know may be any."""
    if len(tensors) != len(parsed["inputs"]):
        return False
    for known, tensor in zip(parsed["inputs"], tensors):
        if known["dtype"] and known["dtype"] != dtype_name(tensor.dtype):
            return False
        if known["device"] and known["device"].partition(":")[0] != tensor.device.type:
            return False
        shape = known["shape"]
        if shape is not None and (len(shape) != tensor.dim() or any(a is not None and a != b for a, b in zip(shape, tensor.shape))):
            return False
    return True


def replay(parsed: Spec, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Runs a region in plain ATen, on its inputs and constants."""
    return plan(parsed)(tensors)


def plan(parsed: Spec) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    """What runs a region in plain ATen. Tensors are let go after their last use.

    Raises PartitionError where PyTorch lacks an operator, or the spec uses what it does not compute.
    """
    slots: dict[str, _Slot] = {}
    for each in parsed["inputs"]:
        slots[each["name"]] = _Slot(len(slots))
    count = len(slots)
    steps: list[_Instruction] = []
    for node in parsed["nodes"]:
        arguments = {key: read(each, slots, parsed["name"]) for key, each in node["arguments"].items()}
        operator, args, kwargs = call(node["op"], node["overload"], arguments)
        outputs = []
        for name in node["outputs"]:
            slots[name] = _Slot(len(slots))
            outputs.append(slots[name].index)
        steps.append(_Instruction(operator, args, kwargs, tuple(outputs)))
    kept = [read({"value": each["name"]}, slots, parsed["name"]).index for each in parsed["outputs"]]
    shared = _shared(steps, range(count), kept)
    last = {index: number for number, step in enumerate(steps) for index in (*_used([step.args, *step.kwargs.values()]), *step.outputs)}
    dead: list[list[int]] = [[] for _ in steps]
    for index, number in last.items():
        if index not in kept:
            dead[number].append(index)

    def run(tensors: Sequence[Tensor]) -> list[Tensor]:
        if len(tensors) != count:
            raise PartitionError(f"region {parsed['name']} takes {count} tensors, not {len(tensors)}")
        held: list[Any] = [*tensors, *[None] * (len(slots) - count)]
        for step, gone in zip(steps, dead):
            named = {key: _filled(each, held) for key, each in step.kwargs.items()}
            found = results(step.operator, step.operator(*[_filled(each, held) for each in step.args], **named))
            if len(found) != len(step.outputs):
                raise PartitionError(f"{step.operator} in region {parsed['name']} gave {len(found)} results, not {len(step.outputs)}")
            for index, value in zip(step.outputs, found):
                held[index] = value
            for index in gone:
                held[index] = None
        found = [held[index] for index in kept]
        return _copied_where_shared(tensors, found) if shared else found

    return run


@dataclass(frozen=True)
class _Slot:
    """Where a value lies while a region runs."""

    index: int


@dataclass(frozen=True)
class _Instruction:
    operator: Any
    args: list[Any]
    kwargs: dict[str, Any]
    outputs: tuple[int, ...]


def _shared(steps: Sequence[_Instruction], inputs: Iterable[int], kept: Sequence[int]) -> bool:
    """Whether a result may share memory with an input or with another result."""
    memory: dict[int, int] = {}

    def find(index: int) -> int:
        while index in memory:
            index = memory[index]
        return index

    for step in steps:
        if effect_of(step.operator):
            first, *others = (*step.outputs, *_used([step.args, *step.kwargs.values()]))
            for index in others:
                if find(index) != find(first):
                    memory[find(index)] = find(first)
    seen = set(map(find, inputs))
    ends = [find(index) for index in kept]
    return not seen.isdisjoint(ends) or len(set(ends)) < len(ends)


def _copied_where_shared(tensors: Sequence[Tensor], found: Sequence[Tensor]) -> list[Tensor]:
    """Results in memory of their own, as kernels give them and as PyTorch asks of an operator."""
    try:
        seen = {each.untyped_storage()._cdata for each in tensors}
        made = []
        for each in found:
            where = each.untyped_storage()._cdata
            made.append(each.clone() if where in seen else each)
            seen.add(where)
        return made
    except NotImplementedError:  # under torch.func tensors show no memory
        return list(found)


def _filled(argument: Any, held: Sequence[Any]) -> Any:
    if isinstance(argument, _Slot):
        return held[argument.index]
    return [_filled(each, held) for each in argument] if isinstance(argument, list) else argument


def _used(argument: Any) -> list[int]:
    if isinstance(argument, list):
        return [index for each in argument for index in _used(each)]
    return [argument.index] if isinstance(argument, _Slot) else []


def _described(name: str, value: Value) -> dict[str, Any]:
    kind = value.type
    if kind is None:
        raise PartitionError(f"%{value.name} is no tensor, and would cross the border of a region")
    shape = None if kind.shape is None else list(kind.shape)
    return {"name": name, "dtype": kind.dtype, "shape": shape, "device": kind.device, "constant": value.constant}


def written(argument: Argument, name: Callable[[Value], str]) -> Any:
    """An argument as a spec has it; ``name`` gives the names of values."""
    if isinstance(argument, Value):
        return {"value": name(argument)}
    if isinstance(argument, tuple):
        return [written(each, name) for each in argument]
    if isinstance(argument, float) and not math.isfinite(argument):
        return {"float": str(argument)}
    if isinstance(argument, complex):
        return {"complex": [written(argument.real, name), written(argument.imag, name)]}
    return argument


def read(argument: Any, slots: Mapping[str, Any], region: str) -> Any:
    """An argument as a spec has it, with what stands for its values; lists stay lists."""
    if isinstance(argument, list):
        return [read(each, slots, region) for each in argument]
    if not isinstance(argument, dict):
        return argument
    if "value" in argument:
        if argument["value"] not in slots:
            raise PartitionError(f"region {region} uses {argument['value']}, which nothing before computes")
        return slots[argument["value"]]
    if "float" in argument:
        return float(argument["float"])
    return complex(*(read(each, slots, region) for each in argument["complex"]))


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:32]


def _variants(base: str) -> Iterable[str]:
    yield base
    number = 1
    while True:
        yield f"{base}_{number}"
        number += 1
