"""Computes the cost of an instruction as a statistic over its executions on all devices."""

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
    """Check a statistic given as an option, and return its name.

    Raises:
        UsageError: No statistic has this name.
    """
    if text not in _WORDS and not _PERCENTILE.fullmatch(text):
        raise UsageError(
            f"{option} {text[:60]!r}: must be one of {', '.join(_WORDS)}, or a percentile such as "
            "p90"
        )
    return text


def compute_statistic(text: str, ascending: Ints, first: Ints, count: Ints) -> Floats:
    """Compute a statistic over each group of values.

    The percentile p of n sorted values is the value at index floor(p/100 (n-1)), as in
    ``xla/python/aggregate_profile.cc``. The median of an even number of values is the mean of the
    two middle values.

    JAX takes the 90th percentile (``jax_pgle_aggregation_percentile`` in ``jax/_src/config.py``) of
    the means of several profiles. Unlike JAX, this function takes percentiles over single
    executions.

    Args:
        text: ``max``, ``min``, ``mean``, ``median`` or a percentile such as ``p90``.
        ascending: Values, sorted within each group, shape (rows,). Groups are consecutive.
        first: Index of the first value of each group, shape (groups,).
        count: Number of values in each group, at least one.
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
        name: XLA's name of the instruction.
        cost_us: Device time of one execution, in microseconds.
        executions: Number of executions on all devices.
        collective: Whether the instruction moves data between devices.
    """

    name: str
    cost_us: float
    executions: int
    collective: bool


@dataclass(frozen=True)
class Costs:
    """Instruction costs measured in a run.

    Attributes:
        instructions: Costs of the instructions, sorted by name.
        modules: For each module that ran, a tuple (label, number of instructions that have a cost,
            total time on all devices in ns), longest time first. The label is the module's name,
            followed by the program number if it was recorded.
        executions: Number of executions used to compute the costs.
        compilation: Number of executions left out because XLA was compiling.
        cut: Number of executions left out because their module is not completely inside the
            capture.
        warm_up: Number of executions left out as warm-up.
        devices: Number of devices that ran the executions used.
        aggregate: Statistic for compute instructions.
        aggregate_collectives: Statistic for collectives.
        limitations: What could not be measured, and what makes the costs wrong.
        device: Kind of device: ``GPU``, the name of another accelerator, or ``host``. If there are
            several kinds, ``GPU`` wins.
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
    """Concatenate the samples from several profiles, renumbering names and devices consistently."""
    devices, group_keys = 0, []
    for table in samples:
        group_keys.append(replace(table, device=table.device + devices))
        devices += int(table.device.max(initial=NONE)) + 1
    return merge_tables(group_keys, instructions=("instruction",), modules=("module",))


def compute_costs(
    samples: instructions.Samples, compute: str, collective: str
) -> tuple[InstructionCost, ...]:
    """Compute the cost of each instruction, sorted by name.

    An instruction is a collective if any of its executions is marked as a collective.

    Args:
        samples: Executions of instructions.
        compute: Statistic for compute instructions.
        collective: Statistic for collectives.
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
        compute_statistic(text, ascending, first, count) for text in (compute, collective)
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
