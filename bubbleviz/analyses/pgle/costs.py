"""Costs: one number an instruction, of all its executions on all devices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.analyses.pgle import instructions
from bubbleviz.errors import UsageError
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Floats, Ints, make_mask
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.numbering import merge_tables

_WORDS = ("max", "min", "mean", "median")
_PERCENTILE = re.compile(r"p([0-9]{1,2}|100)")


def check_statistic(text: str, option: str) -> str:
    """Return the name of a statistic that an option gives.

    Raises:
        UsageError: there is no such statistic.
    """
    if text not in _WORDS and not _PERCENTILE.fullmatch(text):
        raise UsageError(
            f"{option} {text[:60]!r}: not one of {', '.join(_WORDS)}, or a percentile as p90"
        )
    return text


def statistic(text: str, ascending: Ints, first: Ints, count: Ints) -> Floats:
    """Return a statistic of each group, of values that ascend within their groups.

    The percentile p of n ascending values is the one at floor(p/100 (n-1)), counted from 0, as in
    ``xla/python/aggregate_profile.cc``. JAX takes 90 (``jax_pgle_aggregation_percentile`` in
    ``jax/_src/config.py``), of means of several profiles; here it is of executions on devices.

    Args:
        text: ``max``, ``min``, ``mean``, ``median`` or ``p90``.
        ascending: values, shape (rows,), group after group.
        first: place of each group's first value, shape (groups,).
        count: how many values each group has, at least one.
    """
    if text == "mean":
        return np.asarray(np.add.reduceat(ascending, first) / count, np.float64)
    if text == "median":
        middle = ascending[first + (count - 1) // 2] + ascending[first + count // 2]
        return np.asarray(middle / 2, np.float64)
    percent = {"max": 100, "min": 0}.get(text)
    percent = int(text.removeprefix("p")) if percent is None else percent
    return np.asarray(ascending[first + percent * (count - 1) // 100], np.float64)


@dataclass(frozen=True)
class InstructionCost:
    """The cost of an instruction.

    Attributes:
        name: the instruction, as XLA names it.
        cost_us: microseconds on a device, of one execution.
        executions: number of them, over all devices.
        collective: whether it moves data between devices.
    """

    name: str
    cost_us: float
    executions: int
    collective: bool


@dataclass(frozen=True)
class Costs:
    """Instruction costs of a run.

    Attributes:
        instructions: by name.
        modules: that ran, the longest first: label (name, and the number of its program if it is
            recorded), number of instructions with costs, and time of all their executions over all
            devices, in ns.
        executions: number of those that count.
        compilation: number of those left out that were launched while XLA compiled.
        cut: number of those left out whose module the capture cuts.
        warm_up: number of those left out in the first executions of their module.
        devices: number of devices that ran them.
        aggregate: the statistic for compute.
        aggregate_collectives: the statistic for collectives.
        limitations: what could not be measured, and what makes costs wrong.
        device: what its devices are: ``GPU``, another accelerator's name, or ``host``; of several
            kinds ``GPU`` where it is among them.
    """

    instructions: tuple[InstructionCost, ...]
    modules: tuple[tuple[str, int, int], ...]
    executions: int
    compilation: int
    cut: int
    warm_up: int
    devices: int
    aggregate: str
    aggregate_collectives: str
    limitations: tuple[Limitation, ...]
    device: str = "GPU"


def merge_samples(samples: Sequence[instructions.Samples]) -> instructions.Samples:
    """Return the samples of several profiles, with one number for each name and device."""
    devices, apart = 0, []
    for table in samples:
        apart.append(replace(table, device=table.device + devices))
        devices += int(table.device.max(initial=NONE)) + 1
    return merge_tables(apart, instructions=("instruction",), modules=("module",))


def costs_of(
    samples: instructions.Samples, compute: str, collective: str
) -> tuple[InstructionCost, ...]:
    """Return the cost of each instruction, by name.

    Args:
        samples: executions.
        compute: statistic for instructions that compute.
        collective: statistic for those that move data between devices.
    """
    if len(samples) == 0:
        return ()
    groups = grouping.group_rows(samples.instruction)
    order = np.lexsort((samples.cost_ns, groups.of_row))
    ascending = samples.cost_ns[order]
    count = np.bincount(groups.of_row, minlength=len(groups))
    first = np.cumsum(count) - count
    moves = make_mask(len(groups), groups.of_row[samples.collective])
    of_compute, of_collectives = (
        statistic(text, ascending, first, count) for text in (compute, collective)
    )
    cost_ns = np.where(moves, of_collectives, of_compute)
    columns = (samples.instruction[groups.first], cost_ns, count, moves)
    costs = [
        InstructionCost(
            samples.instructions[name],
            each_ns / 1000,
            executions,
            is_collective,
        )
        for name, each_ns, executions, is_collective in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]
    return tuple(sorted(costs, key=lambda cost: cost.name))
