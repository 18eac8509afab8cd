"""What a region costs as one call and what its nodes cost one by one; regions that gain nothing are given back.

A roofline with a price per call: seconds = calls + max(bytes / bandwidth, flops / peak), per call. An extent that is not known counts
as 1, so that only what is sure is counted. Measuring decides better, and costs more.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod

from tcjit.byoc.block_dependences import note, operands
from tcjit.byoc.graph import Node, TensorType, Value
from tcjit.byoc.regions import Fits, Region
from tcjit.cache import store
from tcjit.mapping.machine import Costs
from tcjit.runtime.calibrate import costs_of_host
from tcjit.runtime.host import compiler, cores

BYTES = {
    name: count
    for count, names in (
        (1, "bool uint8 int8 quint8 qint8"),
        (2, "int16 uint16 float16 bfloat16"),
        (4, "int32 uint32 qint32 float32 complex32"),
        (8, "int64 uint64 float64 complex64"),
        (16, "complex128"),
    )
    for name in names.split()
}


# Seconds of a core for an element of float32 beyond moving it, in ATen and in a kernel of tcjit, of operations that take long: by
# benchmarks/elementwise.py, EPYC (Zen 5)
ELEMENT_S: Mapping[str, tuple[float, float]] = {
    f"aten.{name}": (aten * 1e-9, own * 1e-9)
    for name, aten, own in (
        ("tanh", 2.0, 0.2), ("atan", 2.1, 0.3), ("mish", 3.0, 1.3), ("erfc", 1.4, 0.7), ("tan", 1.2, 0.3), ("sin", 1.0, 0.2),
        ("cos", 1.1, 0.2), ("erf", 1.0, 0.3), ("softplus", 1.0, 0.8), ("elu", 0.8, 0.3), ("selu", 0.8, 0.3), ("celu", 0.8, 0.3),
        ("sinh", 0.8, 0.3),
        ("cosh", 0.8, 0.2), ("log2", 0.8, 0.2), ("log", 0.7, 0.3), ("expm1", 0.6, 0.2), ("exp", 0.6, 0.2), ("log1p", 0.4, 0.3),
        ("gelu", 0.3, 0.4), ("sigmoid", 0.2, 0.3), ("silu", 0.2, 0.3),
    )
}  # fmt: skip


@dataclass(frozen=True)
class HostCosts:
    """What ATen runs on: bytes and operations per second, seconds that one ATen operation and one region call take to start, and cores.

    The seconds are measured ones, 0.9 us for an ATen operation and 2.6 us for an operator of `torch.library.Library` in Python; bandwidth
    and peak are those of a few cores.
    """

    bandwidth: float = 2e10
    flops: float = 1e11
    operation: float = 0.9e-6
    call: float = 2.6e-6
    cores: int = 2


@cache
def host_costs() -> HostCosts:
    """Those of this machine where ``tcjit doctor --calibrate`` measured it; asked for once in a process."""
    costs = costs_of_host(store())
    return HostCosts() if costs is None else measured_costs(costs, compiler(store()).vector_bytes // 4, cores())


def measured_costs(costs: Costs, lanes: int, cores: int) -> HostCosts:
    """What ATen has of measured constants, on so many cores with so many lanes of float32."""
    return HostCosts(bandwidth=costs.memory_read, flops=costs.peak_flops(lanes, cores), cores=cores)


@dataclass(frozen=True)
class Limits:
    """What a backend can do. ``memory``: bytes on the chip for all that a region holds at once; ``units``: how many units it has, of which
    each operation takes as many as ``takes`` says, one if it says nothing and none if it only looks at memory. ``bandwidth``, ``flops``,
    ``call``: as for the machine, where they differ from it; ``speeds``: the part of ``flops`` that an operation reaches, all if it says
    nothing; ``element_s``: seconds of a core for each result of an operation that takes long. A region must gain more than ``gain``
    seconds; minus infinity keeps all.
    """

    memory: int | None = None
    units: int | None = None
    takes: Mapping[str, int] = field(default_factory=dict)
    bandwidth: float | None = None
    flops: float | None = None
    call: float | None = None
    speeds: Mapping[str, float] = field(default_factory=dict)
    element_s: Mapping[str, float] = field(default_factory=dict)
    gain: float = 0.0


@dataclass(frozen=True)
class Cost:
    """Bytes moved between memory and the chip, arithmetic operations, calls, and seconds, estimated."""

    bytes: int
    flops: int
    launches: int
    seconds: float

    def __str__(self) -> str:
        calls = "1 call" if self.launches == 1 else f"{self.launches} calls"
        return f"{self.seconds * 1e6:.1f} us ({calls}, {self.bytes} bytes, {self.flops} flops)"


@dataclass(frozen=True)
class Comparison:
    """A region as one call against its nodes one by one."""

    together: Cost
    unfused: Cost

    @property
    def seconds(self) -> float:
        """Seconds that the region saves; negative where it costs some."""
        return self.unfused.seconds - self.together.seconds

    @property
    def bytes(self) -> int:
        """Bytes that the region keeps from moving: what its nodes hand one another."""
        return self.unfused.bytes - self.together.bytes


@dataclass(frozen=True)
class Pruned:
    """The regions that stay, and those given back with the reason."""

    kept: tuple[Region, ...]
    given_back: tuple[tuple[Region, str], ...]


def estimate(region: Region, limits: Limits | None = None, machine: HostCosts | None = None) -> Cost:
    """A region as one call of its backend: what goes in and out moves once, what stays inside does not."""
    limits, machine = limits or Limits(), machine or host_costs()
    moved = sum(map(size, (*region.inputs, *region.constants, *region.outputs)))
    work = sum(map(flops, region.nodes))
    call = machine.call if limits.call is None else limits.call
    busy = sum(flops(node) / limits.speeds.get(node.op, 1.0) for node in region.nodes) / (limits.flops or machine.flops)
    busy += sum(elements(node) * limits.element_s.get(node.op, 0.0) for node in region.nodes) / machine.cores
    return Cost(moved, work, 1, call + max(moved / (limits.bandwidth or machine.bandwidth), busy))


def unfused(nodes: Sequence[Node], machine: HostCosts | None = None) -> Cost:
    """Nodes as ATen runs them, one by one."""
    machine = machine or host_costs()
    moved = work = 0
    seconds = 0.0
    for node in nodes:
        here, count = traffic(node), flops(node)
        moved, work = moved + here, work + count
        busy = elements(node) * ELEMENT_S.get(node.op, (0.0, 0.0))[0] / machine.cores
        seconds += machine.operation + max(here / machine.bandwidth, count / machine.flops + busy)
    return Cost(moved, work, len(nodes), seconds)


def compare(region: Region, limits: Limits | None = None, machine: HostCosts | None = None) -> Comparison:
    """A region against its nodes."""
    return Comparison(estimate(region, limits, machine), unfused(region.nodes, machine))


def prune(regions: Sequence[Region], limits: Mapping[str, Limits] | None = None, machine: HostCosts | None = None) -> Pruned:
    """Gives back regions that their backend cannot hold, or that gain nothing; ``limits`` by backend. Their nodes bear the reason."""
    kept: list[Region] = []
    given_back: list[tuple[Region, str]] = []
    for region in regions:
        bounds = (limits or {}).get(region.backend, Limits())
        why = exceeds(region.nodes, bounds)
        if not why:
            found = compare(region, bounds, machine)
            if found.seconds > bounds.gain:
                kept.append(region)
                continue
            wanted = f", less than the {bounds.gain * 1e6:.1f} us asked for" if bounds.gain > 0 else ""
            why = f"no gain{wanted}: {found.together} as a region of {region.backend}, {found.unfused} without"
        given_back.append((region, why))
        for node in region.nodes:
            note(node, why)
    return Pruned(tuple(kept), tuple(given_back))


def within(limits: Mapping[str, Limits]) -> Fits:
    """For ``merge``: whether nodes stay within the limits of their backend, by its name."""
    return lambda backend, nodes: backend not in limits or not exceeds(nodes, limits[backend])


def exceeds(nodes: Sequence[Node], limits: Limits) -> str:
    """Which limit nodes break as one region, or nothing."""
    if limits.units is not None:
        units = sum(limits.takes.get(node.op, 0 if node.effect == "view" else 1) for node in nodes)
        if units > limits.units:
            return f"takes {units} units where there are {limits.units}"
    if limits.memory is not None:
        held = working_set(nodes)
        if held > limits.memory:
            return f"holds {held} bytes at once where {limits.memory} fit on the chip"
    return ""


def working_set(nodes: Sequence[Node]) -> int:
    """Bytes that a region holds at once, at most: what goes in and out throughout, what its nodes hand one another while it is needed."""
    ordered = sorted(nodes, key=lambda node: node.number)
    members = frozenset(ordered)
    last = {value: node.number for node in ordered for value in operands(node)}
    held = sum(size(value) for value in last if value.producer not in members)
    peak = held
    for node in ordered:
        held += 0 if node.effect == "view" else sum(map(size, node.outputs))
        peak = max(peak, held)
        for value in operands(node):
            inside = value.producer in members and value.producer is not None and value.producer.effect != "view"
            if inside and last[value] == node.number and all(user in members and user.effect != "view" for user in value.users):
                held -= size(value)
    return peak


def size(value: Value) -> int:
    """Bytes of a tensor; 0 for what is none."""
    return 0 if value.type is None else BYTES.get(value.type.dtype, 4) * prod(_extents(value.type))


def traffic(node: Node) -> int:
    """Bytes that an operation reads and writes by itself."""
    return 0 if node.effect == "view" else sum(map(size, (*operands(node), *node.outputs)))


def elements(node: Node) -> int:
    """Results of an operation on a CPU, which `ELEMENT_S` is about."""
    kinds = [value.type for value in node.outputs[:1] if value.type is not None and value.type.device == "cpu"]
    return 0 if node.effect == "view" else sum(prod(_extents(kind)) for kind in kinds)


def flops(node: Node) -> int:
    """Arithmetic operations of a node, a multiplication and an addition being two; one per element where the table has no entry."""
    if node.effect == "view":
        return 0
    return _FLOPS.get(node.op, _per_output(1))(node)


def _extents(kind: TensorType) -> list[int]:
    return [1 if extent is None else extent for extent in kind.shape or ()]


def _shape(node: Node, *names: str) -> list[int]:
    """The extents of an argument, by any of its names, or of the result where there is no name; empty where there is none."""
    for name in names:
        argument = node.arguments.get(name)
        if isinstance(argument, Value) and argument.type is not None:
            return _extents(argument.type)
    if names or not node.outputs or node.outputs[0].type is None:
        return []
    return _extents(node.outputs[0].type)


def _per_output(count: int) -> Callable[[Node], int]:
    return lambda node: count * sum(prod(_extents(value.type)) for value in node.outputs[:1] if value.type is not None)


def _per_input(count: int) -> Callable[[Node], int]:
    return lambda node: count * sum(prod(_extents(value.type)) for value in node.inputs[:1] if value.type is not None)


def _product(node: Node) -> int:
    """Matrix products and linear layers: two operations per result and element of the left side's last dimension, one for a sum."""
    summed = node.arguments.get("bias") is not None or any(name in node.arguments for name in ("mat1", "mat", "batch1"))
    left = _shape(node, "mat1", "mat", "batch1", "input", "self") or [1]
    return (2 * left[-1] + summed) * prod(_shape(node))


def _convolution(node: Node) -> int:
    """Weights are (out, in / groups, ...), of a transposed convolution (in, out / groups, ...): the rest of them meets each pixel."""
    weight, bias = _shape(node, "weight"), node.arguments.get("bias") is not None
    transposed = node.arguments.get("transposed") is True or "transpose" in node.op
    pixels = prod(_shape(node, "input", "self") if transposed else _shape(node))
    return 2 * pixels * prod(weight[1:]) + bias * prod(_shape(node))


def _attention(node: Node) -> int:
    """Scores and their sum over the values, each a matrix product, and the softmax between: queries (..., L, E), keys (..., S, E)."""
    query, key, value = (_shape(node, name) for name in ("query", "key", "value"))
    if min(map(len, (query, key, value))) < 2:
        return _per_output(1)(node)
    scores = prod(query[:-1]) * key[-2]
    return scores * (2 * query[-1] + 2 * value[-1] + 5)


def _pooling(node: Node) -> int:
    kernel = node.arguments.get("kernel_size")
    extents = [each for each in (kernel if isinstance(kernel, tuple) else (kernel,)) if isinstance(each, int)]
    if len(extents) == 1 and node.op.endswith(("2d", "3d")):
        extents *= int(node.op[-2])
    return prod(extents) * prod(_shape(node))


def _none(node: Node) -> int:
    return 0


_FLOPS: dict[str, Callable[[Node], int]] = {
    f"aten.{name}": rule
    for names, rule in (
        ("mm bmm matmul mv dot linear addmm addmv baddbmm", _product),
        ("conv1d conv2d conv3d convolution _convolution conv_transpose1d conv_transpose2d conv_transpose3d", _convolution),
        ("scaled_dot_product_attention", _attention),
        ("max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d", _pooling),
        ("sum mean amax amin max min prod argmax argmin any all cumsum adaptive_avg_pool2d adaptive_max_pool2d", _per_input(1)),
        ("var std norm linalg_vector_norm logsumexp", _per_input(3)),
        ("softmax _softmax log_softmax _log_softmax", _per_input(5)),
        ("layer_norm native_layer_norm group_norm native_group_norm instance_norm rms_norm", _per_input(8)),
        ("_softmax_backward_data _log_softmax_backward_data", _per_input(6)),
        ("native_layer_norm_backward native_group_norm_backward native_batch_norm_backward", _per_input(14)),
        ("max_pool2d_with_indices_backward avg_pool2d_backward", _pooling),
        ("batch_norm native_batch_norm _native_batch_norm_legit_no_training", _per_input(2)),
        ("exp log sigmoid tanh gelu silu elu selu mish erf sin cos softplus hardswish pow rsqrt sqrt", _per_output(4)),
        ("cat stack pad constant_pad_nd clone copy contiguous embedding index_select index gather where flip roll repeat", _none),
        ("zeros ones full empty arange zeros_like ones_like full_like empty_like", _none),
    )
    for name in names.split()
}
