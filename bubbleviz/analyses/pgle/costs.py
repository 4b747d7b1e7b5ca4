"""Costs: one number an instruction, of all its executions on all devices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.analyses.pgle.instructions import LeftOut, Samples
from bubbleviz.errors import UsageError
from bubbleviz.model.columns import NONE, Floats, Ints, joined
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.values import frozen

_WORDS = ("max", "min", "mean", "median")
_PERCENTILE = re.compile(r"p([0-9]{1,2}|100)")


@frozen
class Aggregation:
    """The statistic over the executions of an instruction that becomes its cost.

    The percentile p of n ascending values is the one at floor(p/100 (n-1)), counted from 0, as in
    ``xla/python/aggregate_profile.cc``. JAX takes 90 (``jax_pgle_aggregation_percentile`` in
    ``jax/_src/config.py``), of means of several profiles; here it is of executions on devices.

    Attributes:
        text: ``max``, ``min``, ``mean``, ``median`` or ``p90``.
    """

    text: str

    def of(self, ascending: Ints, first: Ints, count: Ints) -> Floats:
        """Return the value of each group, of values that ascend within their groups.

        Args:
            ascending: values, shape (rows,), group after group.
            first: place of each group's first value, shape (groups,).
            count: how many values each group has, at least one.
        """
        if self.text == "mean":
            return np.asarray(np.add.reduceat(ascending, first) / count, np.float64)
        if self.text == "median":
            middle = ascending[first + (count - 1) // 2] + ascending[first + count // 2]
            return np.asarray(middle / 2, np.float64)
        percent = {"max": 100, "min": 0}.get(self.text, 0)
        if percentile := _PERCENTILE.fullmatch(self.text):
            percent = int(percentile[1])
        at = first + percent * (count - 1) // 100
        return np.asarray(ascending[at], np.float64)


def aggregation_of(text: str, option: str) -> Aggregation:
    """Return the statistic that an option names.

    Raises:
        UsageError: there is no such statistic.
    """
    if text not in _WORDS and not _PERCENTILE.fullmatch(text):
        raise UsageError(
            f"{option} {text[:60]!r}: not one of {', '.join(_WORDS)}, or a percentile as p90"
        )
    return Aggregation(text)


@frozen
class InstructionCost:
    """The cost of an instruction.

    Attributes:
        name: the instruction, as XLA names it.
        module: label of its module; None where modules are not kept apart.
        cost_us: microseconds on a device, of one execution.
        executions: number of them, over all devices.
        collective: whether it moves data between devices.
    """

    name: str
    module: str | None
    cost_us: float
    executions: int
    collective: bool


@frozen
class ModuleTotal:
    """A module that ran.

    Attributes:
        label: its name, and the number of its program if it is recorded.
        instructions: number of its instructions with costs.
        gpu_ns: time of all their executions, over all devices.
    """

    label: str
    instructions: int
    gpu_ns: int


@frozen
class Costs:
    """Instruction costs of a run.

    Attributes:
        instructions: by module and name.
        modules: that ran, the longest first.
        executions: number of those that count.
        left_out: number of those that do not.
        devices: number of devices that ran them.
        aggregate: the statistic for compute.
        aggregate_collectives: the statistic for collectives.
        limitations: what could not be measured, and what makes costs wrong.
        device: what its devices are: ``GPU``, another accelerator's name, or ``host``; of several
            kinds ``GPU`` where it is among them.
    """

    instructions: tuple[InstructionCost, ...]
    modules: tuple[ModuleTotal, ...]
    executions: int
    left_out: LeftOut
    devices: int
    aggregate: str
    aggregate_collectives: str
    limitations: tuple[Limitation, ...]
    device: str = "GPU"


def merge_samples(samples: Sequence[Samples]) -> Samples:
    """Return the samples of several profiles, with one number for each name and device."""
    instructions, modules = Numbering[str](), Numbering[str]()
    devices = 0
    renumbered = []
    for table in samples:
        instruction = instructions.numbers(table.instructions)
        # The last place is that of no module.
        module = np.append(modules.numbers(table.modules), NONE)
        renumbered.append(
            replace(
                table,
                instruction=instruction[table.instruction],
                module=module[table.module],
                device=table.device + devices,
            )
        )
        devices += int(table.device.max(initial=NONE)) + 1
    return replace(joined(renumbered), instructions=instructions.values, modules=modules.values)


def shared_names(samples: Samples) -> int:
    """Return the number of instruction names that several modules have."""
    known = samples.module != NONE
    pairs = groups_of(samples.instruction[known], samples.module[known])
    instruction = samples.instruction[known][pairs.first]
    return int((np.unique(instruction, return_counts=True)[1] > 1).sum())


def costs_of(
    samples: Samples, compute: Aggregation, collective: Aggregation, *, apart: bool
) -> tuple[InstructionCost, ...]:
    """Return the cost of each instruction, by module and name.

    Args:
        samples: executions.
        compute: statistic for instructions that compute.
        collective: statistic for those that move data between devices.
        apart: whether instructions of one name in several modules are several.
    """
    if len(samples) == 0:
        return ()
    module = samples.module if apart else np.full(len(samples), NONE, np.int64)
    groups = groups_of(module, samples.instruction)
    order = np.lexsort((samples.cost_ns, groups.of_row))
    ascending = samples.cost_ns[order]
    count = np.bincount(groups.of_row, minlength=len(groups))
    first = np.cumsum(count) - count
    moves = np.zeros(len(groups), bool)
    moves[groups.of_row[samples.collective]] = True
    cost_ns = np.where(
        moves, collective.of(ascending, first, count), compute.of(ascending, first, count)
    )
    costs = [
        InstructionCost(
            name=samples.instructions[instruction],
            module=samples.modules[of_module] if of_module != NONE else None,
            cost_us=each_ns / 1000,
            executions=executions,
            collective=is_collective,
        )
        for instruction, of_module, each_ns, executions, is_collective in zip(
            samples.instruction[groups.first].tolist(),
            module[groups.first].tolist(),
            cost_ns.tolist(),
            count.tolist(),
            moves.tolist(),
            strict=True,
        )
    ]
    return tuple(sorted(costs, key=lambda cost: (cost.module or "", cost.name)))
