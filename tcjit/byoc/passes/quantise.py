"""int8 quantisation: layers on integers, with scales and zero points that the user gives or that calibration finds.

    scheme = Scheme(Calibration(samples, "entropy"))
    config = PartitionConfig(pipeline=standard().with_(quantisation(scheme), before="remove_dead"))

The arithmetic is that of ``qnn.py``. A value is quantised where a quantised layer needs it, and dequantised where anything else does.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tcjit.byoc.adapter import Adapter
from tcjit.byoc.block_dependences import note
from tcjit.byoc.graph import Block, Node, Value
from tcjit.byoc.passes import qnn
from tcjit.byoc.passes.affine import RANGES, Affine, covering, weights_of
from tcjit.byoc.passes.calibrate import Calibration
from tcjit.byoc.passes.editing import Emit, MemoryUses, inside, only_user, pruned, rebuilt
from tcjit.byoc.passes.pipeline import Pass
from tcjit.byoc.passes.qnn import Quantised
from tcjit.byoc.passes.quantisable import FOLLOWING, LAYERS, layer_of
from tcjit.errors import PartitionError


@dataclass(frozen=True)
class Scheme:
    """What is quantised, and how.

    - ``activations``: a Calibration, or what stands for each value, by its name in the block; values that are not named stay float;
    - ``weights``: what stands for a weight, by its name; the others get scales from their greatest values, zero point 0;
    - ``per_channel``: those others get a scale per output channel;
    - ``dtype``, ``bounds``: of calibrated activations; (0, 127) with uint8 suits processors whose 8-bit products saturate;
    - ``ops``: which operations, of ``LAYERS``; ``skip``: names of values that stay float though such an operation computes them.
    """

    activations: Calibration | Mapping[str, Affine]
    weights: Mapping[str, Affine] = field(default_factory=dict)
    per_channel: bool = True
    dtype: str = "uint8"
    bounds: tuple[int, int] | None = None
    ops: tuple[str, ...] = tuple(LAYERS)
    skip: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given: object = self.activations
        chosen = isinstance(given, Mapping) and all(isinstance(each, Affine) for each in given.values())
        if not isinstance(given, Calibration) and not chosen:
            raise PartitionError(f"activations are {given!r}", hint="Calibration(samples), or a mapping from names to Affine(...)")
        for name in self.ops:
            if name not in LAYERS:
                raise PartitionError(f"{name!r} cannot be quantised", hint=f"known: {', '.join(LAYERS)}")
        Affine(1.0, max(0, RANGES.get(self.dtype, (0,))[0] if self.bounds is None else self.bounds[0]), self.dtype, *(self.bounds or ()))


def quantisation(scheme: Scheme) -> Pass:
    """The pass that quantises by a scheme; stands best near the end, after batch norms are folded."""

    def run(block: Block, adapter: Adapter) -> Block:
        return quantised(block, adapter, scheme)

    return Pass("quantise", run, about=f"{', '.join(scheme.ops)} on integers")


def quantised(block: Block, adapter: Adapter, scheme: Scheme) -> Block:
    """The block with its layers on integers; nodes that stay float though their operation is chosen bear the reason."""
    memory = MemoryUses(block)
    steps = [step for each in block.every() for step in _steps(each, adapter, scheme, memory)]
    wanted = dict.fromkeys(value for step in steps for value in (*step.inputs, step.output))
    if isinstance(scheme.activations, Calibration):
        found = scheme.activations.ranges(block, adapter, wanted)
        known = {value: covering(*found[value], scheme.dtype, scheme.bounds) for value in wanted if value in found}
    else:
        known = {value: scheme.activations[value.name] for value in wanted if value.name in scheme.activations}
    return _Quantiser(adapter, scheme, {step.node: step for step in steps}, known, memory).done(block)


@dataclass(frozen=True)
class QuantisedLayer:
    """A layer to quantise, with the relu behind it if it has one; ``inputs`` are its activations."""

    node: Node
    inputs: tuple[Value, ...]
    relu: Node | None

    @property
    def output(self) -> Value:
        return (self.relu or self.node).output


def _steps(block: Block, adapter: Adapter, scheme: Scheme, memory: MemoryUses) -> Iterable[QuantisedLayer]:
    for node in block.nodes:
        if layer_of(node) not in scheme.ops:
            continue
        layer = LAYERS[layer_of(node)]
        why = layer.refuses(node) or ("something writes to its tensors" if memory.written(*node.inputs, *node.outputs) else "")
        why = why or ("it is to stay float" if node.output.name in scheme.skip else "")
        if why:
            note(node, f"not quantised: {why}")
            continue
        user = only_user(node.output, block, memory)
        relu = user if user is not None and user.op == "aten.relu" and not memory.written(user.output) else None
        yield QuantisedLayer(node, layer.activations(node), relu)


class _Quantiser:
    """A layer gives integers, and a dequantisation the value that the model has; what takes that value in integers takes the former, and a
    dequantisation that nobody needs goes."""

    def __init__(
        self, adapter: Adapter, scheme: Scheme, layers: Mapping[Node, QuantisedLayer], known: Mapping[Value, Affine], memory: MemoryUses
    ) -> None:
        self._adapter, self._scheme, self._layers, self._known, self._memory = adapter, scheme, layers, known, memory

    def done(self, block: Block) -> Block:
        inside(block, self.done)
        held: dict[Value, Quantised] = {}
        computed: set[Value] = set()  # integers that something computed, not those of a value that the model has in float
        emit, conversions, fused = Emit(), set[Node](), set[Node]()

        def integers(value: Value) -> Quantised:
            if value not in held:
                start = len(emit.nodes)
                held[value] = qnn.quantize(emit, value, self._known[value])
                conversions.update(emit.nodes[start:])
            return held[value]

        for node in block.nodes:
            if node in fused:
                continue
            step = self._layers.get(node)
            end, result = node, None
            if step is not None and self._served(step, computed, held):
                end = step.relu or node
                result = self._layer(emit, step, [integers(value) for value in step.inputs])
            elif self._follows(node, computed):
                result = FOLLOWING[node.op](emit, node, held[node.inputs[0]])
            if result is None:
                emit.nodes.append(node)
                continue
            fused.add(end)
            held[end.output] = result
            computed.add(end.output)
            start = len(emit.nodes)
            floats = qnn.dequantize(emit, result)
            assert floats.producer is not None
            floats.producer.outputs = (end.output,)
            conversions.update(emit.nodes[start:])
        return pruned(rebuilt(block, emit.nodes), conversions)

    def _follows(self, node: Node, computed: set[Value]) -> bool:
        """Whether a node takes integers, and can give some."""
        given = next(iter(node.arguments.values()), None)
        known = node.op in FOLLOWING and isinstance(given, Value) and given in computed and len(node.outputs) == 1
        return known and not self._memory.written(*node.inputs, *node.outputs)

    def _served(self, step: QuantisedLayer, computed: set[Value], held: Mapping[Value, Quantised]) -> bool:
        """Whether everything that a layer needs is known; sums and the like pay only next to integers."""
        layer = LAYERS[layer_of(step.node)]
        missing = [value for value in (*step.inputs, step.output) if value not in self._known and value not in held]
        if missing:
            note(step.node, f"not quantised: no scale is known for %{missing[0].name}")
            return False
        return layer.constants(step.node) is not None or any(value in computed for value in step.inputs)

    def _layer(self, emit: Emit, step: QuantisedLayer, inputs: list[Quantised]) -> Quantised | None:
        layer, to, w = LAYERS[layer_of(step.node)], self._known[step.output], None
        held = layer.constants(step.node)
        try:
            if held is not None:
                of = self._scheme.weights.get(held.weight.name)
                channel = held.channel if self._scheme.per_channel else None
                of = of or weights_of(self._adapter.read(held.weight).detach().float(), channel)
                w = qnn.weights(self._adapter, held, of, inputs[0].of, to)
            return layer.emit(emit, step.node, inputs, w, to, step.relu is not None)
        except PartitionError as error:
            note(step.node, f"not quantised: {error.what}")
            return None
