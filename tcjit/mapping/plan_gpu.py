"""The analytic model for GPUs: what each group's blocks, threads and registers get, from strides, reuse and extents."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tcjit.errors import MappingError
from tcjit.mapping.gpu_nest import GroupPlan
from tcjit.mapping.group import Group
from tcjit.mapping.machine import BUFFER_REGISTERS, Device
from tcjit.mapping.options import Options
from tcjit.mapping.plan_atoms import on_tensor_cores
from tcjit.mapping.plan_columns import columns
from tcjit.mapping.plan_contraction import contraction
from tcjit.mapping.plan_facts import Facts
from tcjit.mapping.plan_rows import rows
from tcjit.mapping.scop import Scop


def plan_gpu(scop: Scop, group: Group, options: Options, device: Device) -> GroupPlan:
    """The plan of one group."""
    _check(options, device)
    return plan_facts(Facts(scop, group, options, device))


def plan_facts(facts: Facts) -> GroupPlan:
    """The plan of one group: the first kind that suits it."""
    plan = on_tensor_cores(facts) or contraction(facts) or rows(facts) or columns(facts)
    return replace(plan, vector=facts.options.vector)


def _check(options: Options, device: Device) -> None:
    """A MappingError for options that the device cannot serve."""
    if options.block > device.max_threads:
        raise MappingError(
            f"option block = {options.block} is more than the {device.max_threads} threads that a block has on {device.name}",
            hint=f"block={device.max_threads}",
        )
    if options.threads and prod(options.threads) > device.max_threads:
        raise MappingError(
            f"option threads = {options.threads} asks for {prod(options.threads)} threads, and a block on {device.name} has at most "
            f"{device.max_threads}",
            hint="threads=(8, 8)",
        )
    if options.threads and options.block and prod(options.threads) > options.block:
        raise MappingError(
            f"option threads = {options.threads} asks for {prod(options.threads)} threads, and option block = {options.block} for fewer",
            hint=f"block={prod(options.threads)}, or none",
        )
    if options.registers and prod(options.registers) > BUFFER_REGISTERS:
        raise MappingError(
            f"option registers = {options.registers} asks for {prod(options.registers)} results of a thread, which can keep "
            f"{BUFFER_REGISTERS}",
            hint="registers=(8, 8)",
        )
