"""Costs: one number an instruction, of all its executions on all devices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.analyses.pgle.instructions import Samples
from bubbleviz.errors import UsageError
from bubbleviz.model.columns import NONE, Floats, Ints, joined
from bubbleviz.model.grouping import Numbering, groups_of
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.texts import csv_text, inert
from bubbleviz.model.values import frozen

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
    modules: tuple[ModuleTotal, ...]
    executions: int
    compilation: int
    cut: int
    warm_up: int
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


def costs_of(
    samples: Samples, compute: str, collective: str, *, apart: bool
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
    of_compute, of_collectives = (
        statistic(text, ascending, first, count) for text in (compute, collective)
    )
    cost_ns = np.where(moves, of_collectives, of_compute)
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


# Comparison: the costs in a file against those measured in a profile.


COLUMNS = ("instruction", "estimated_us", "measured_us", "ratio", "off_us", "executions")


@frozen
class CostDifference:
    """The estimated and the measured cost of an instruction.

    Attributes:
        name: the instruction.
        estimated_us: its cost in the file.
        measured_us: its cost in the profile.
        ratio: measured over estimated; None where that was 0.
        executions: number of measured ones.
    """

    name: str
    estimated_us: float
    measured_us: float
    ratio: float | None
    executions: int

    @property
    def off_us(self) -> float:
        """Measured minus estimated."""
        return self.measured_us - self.estimated_us


@frozen
class CostComparison:
    """Estimated costs against measured ones.

    Attributes:
        differences: instructions with both costs, the largest difference first.
        unmeasured: instructions of the file that are not in the profile.
        unestimated: instructions of the profile that are not in the file.
        estimated_us: sum over ``differences``, each counted once.
        measured_us: the same of what was measured.
        off_us: sum of the absolute differences.
        unmeasured_us: sum of the estimates of ``unmeasured``.
        unestimated_us: sum of the costs of ``unestimated``.
    """

    differences: tuple[CostDifference, ...]
    unmeasured: tuple[str, ...]
    unestimated: tuple[str, ...]
    estimated_us: float
    measured_us: float
    off_us: float
    unmeasured_us: float
    unestimated_us: float


def compare_costs(
    costs: Sequence[InstructionCost], estimates: Mapping[str, float]
) -> CostComparison:
    """Return the differences between estimated and measured costs.

    Args:
        costs: as measured, one a name.
        estimates: microseconds by instruction; a module's fingerprint before the name, as JAX's
            own profiler writes it (``fingerprint::fusion.1``, in
            ``xla/python/xplane_to_profile_instructions.cc``), is removed, since exports
            of nsys hold none; of several modules' estimates the last counts.
    """
    estimates = {name.rpartition("::")[2]: cost_us for name, cost_us in estimates.items()}
    measured = {cost.name: cost for cost in costs}
    both = [
        CostDifference(
            name=name,
            estimated_us=estimated_us,
            measured_us=measured[name].cost_us,
            ratio=measured[name].cost_us / estimated_us if estimated_us else None,
            executions=measured[name].executions,
        )
        for name, estimated_us in estimates.items()
        if name in measured
    ]
    both.sort(key=lambda difference: (-abs(difference.off_us), difference.name))
    unmeasured = sorted(name for name in estimates if name not in measured)
    unestimated = sorted(name for name in measured if name not in estimates)
    return CostComparison(
        differences=tuple(both),
        unmeasured=tuple(unmeasured),
        unestimated=tuple(unestimated),
        estimated_us=sum(difference.estimated_us for difference in both),
        measured_us=sum(difference.measured_us for difference in both),
        off_us=sum(abs(difference.off_us) for difference in both),
        unmeasured_us=sum(estimates[name] for name in unmeasured),
        unestimated_us=sum(measured[name].cost_us for name in unestimated),
    )


def csv_of_comparison(comparison: CostComparison) -> str:
    """Return a comparison as CSV, one row an instruction; empty cells for what is unknown."""
    return csv_text(
        COLUMNS,
        (
            (inert(d.name), d.estimated_us, d.measured_us, d.ratio, d.off_us, d.executions)
            for d in comparison.differences
        ),
    )
