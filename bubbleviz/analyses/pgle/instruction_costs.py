"""Instruction costs: one number an instruction, of all its executions on all devices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bubbleviz.analyses.pgle.instructions import LeftOut, Samples
from bubbleviz.errors import UsageError
from bubbleviz.model.columns import NONE, Ints, joined
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import Limitation

Floats = npt.NDArray[np.float64]

_WORDS = ("max", "min", "mean", "median")
_PERCENTILE = re.compile(r"p([0-9]{1,2}|100)")


@dataclass(frozen=True)
class Rule:
    """How the executions of an instruction become one cost.

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
        if found := _PERCENTILE.fullmatch(self.text):
            percent = int(found[1])
        at = first + percent * (count - 1) // 100
        return np.asarray(ascending[at], np.float64)


def rule_of(text: str, option: str) -> Rule:
    """Return the rule of an option.

    Raises:
        UsageError: there is no such rule.
    """
    if text not in _WORDS and not _PERCENTILE.fullmatch(text):
        raise UsageError(
            f"{option} {text[:60]!r}: not one of {', '.join(_WORDS)}, or a percentile as p90"
        )
    return Rule(text)


@dataclass(frozen=True)
class InstructionCost:
    """What an instruction takes.

    Attributes:
        name: the instruction, as XLA names it.
        module: label of its module; None where modules are not kept apart.
        cost_us: microseconds on a device, of one execution.
        executions: how many that is of, over all devices.
        collective: whether it moves data between devices.
    """

    name: str
    module: str | None
    cost_us: float
    executions: int
    collective: bool


@dataclass(frozen=True)
class ModuleSeen:
    """A module that ran.

    Attributes:
        label: its name, and the number of its program if that is told.
        instructions: how many of its instructions have costs.
        gpu_ns: what all their executions took, over all devices.
    """

    label: str
    instructions: int
    gpu_ns: int


@dataclass(frozen=True)
class Costs:
    """Instruction costs of a run.

    Attributes:
        instructions: by module and name.
        modules: that ran, the one that took longest first.
        executions: how many executions of instructions count.
        left_out: how many do not.
        devices: how many devices ran them.
        aggregate: the rule for compute.
        aggregate_collectives: the rule for collectives.
        limitations: what could not be told, and what makes costs wrong.
    """

    instructions: tuple[InstructionCost, ...]
    modules: tuple[ModuleSeen, ...]
    executions: int
    left_out: LeftOut
    devices: int
    aggregate: str
    aggregate_collectives: str
    limitations: tuple[Limitation, ...]


def together(samples: Sequence[Samples]) -> Samples:
    """Return the samples of several profiles, with one number for each name and device."""
    instructions: dict[str, int] = {}
    modules: dict[str, int] = {}
    devices = 0
    renumbered = []
    for own in samples:
        instruction = [instructions.setdefault(n, len(instructions)) for n in own.instructions]
        module = [modules.setdefault(n, len(modules)) for n in own.modules]
        renumbered.append(
            replace(
                own,
                instruction=np.array(instruction, np.int64)[own.instruction],
                # The last place is that of no module.
                module=np.array([*module, NONE], np.int64)[own.module],
                device=own.device + devices,
            )
        )
        devices += int(own.device.max(initial=NONE)) + 1
    return replace(joined(renumbered), instructions=tuple(instructions), modules=tuple(modules))


def shared_names(samples: Samples) -> int:
    """Return how many instructions' names several modules have."""
    told = samples.module != NONE
    pairs = groups_of(samples.instruction[told], samples.module[told])
    instruction = samples.instruction[told][pairs.first]
    return int((np.unique(instruction, return_counts=True)[1] > 1).sum())


def costs_of(
    samples: Samples, compute: Rule, collective: Rule, *, apart: bool
) -> tuple[InstructionCost, ...]:
    """Return the cost of each instruction, by module and name.

    Args:
        samples: executions.
        compute: rule for instructions that compute.
        collective: rule for those that move data between devices.
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
    found = [
        InstructionCost(
            name=samples.instructions[instruction],
            module=samples.modules[of_module] if of_module != NONE else None,
            cost_us=own_ns / 1000,
            executions=executions,
            collective=is_collective,
        )
        for instruction, of_module, own_ns, executions, is_collective in zip(
            samples.instruction[groups.first].tolist(),
            module[groups.first].tolist(),
            cost_ns.tolist(),
            count.tolist(),
            moves.tolist(),
            strict=True,
        )
    ]
    return tuple(sorted(found, key=lambda own: (own.module or "", own.name)))


@dataclass(frozen=True)
class Difference:
    """An instruction that was estimated and measured.

    Attributes:
        name: the instruction.
        estimated_us: its cost in the file.
        measured_us: its cost in the profile.
        ratio: measured over estimated; None where that was 0.
        executions: how many were measured.
    """

    name: str
    estimated_us: float
    measured_us: float
    ratio: float | None
    executions: int

    @property
    def off_us(self) -> float:
        """How much longer it takes than estimated."""
        return self.measured_us - self.estimated_us


@dataclass(frozen=True)
class Comparison:
    """Estimates held against a profile.

    Attributes:
        differences: instructions that both hold, the farthest apart first.
        unmeasured: instructions of the file that the profile does not hold.
        unestimated: instructions of the profile that the file does not hold.
        estimated_us: sum over ``differences``, each counted once.
        measured_us: the same of what was measured.
        off_us: sum of the distances between them.
        unmeasured_us: sum of the estimates of ``unmeasured``.
        unestimated_us: sum of the costs of ``unestimated``.
    """

    differences: tuple[Difference, ...]
    unmeasured: tuple[str, ...]
    unestimated: tuple[str, ...]
    estimated_us: float
    measured_us: float
    off_us: float
    unmeasured_us: float
    unestimated_us: float


def compared(costs: Sequence[InstructionCost], estimates: Mapping[str, float]) -> Comparison:
    """Return how far estimates are off.

    Args:
        costs: as measured, one a name.
        estimates: microseconds by instruction; a module's fingerprint before the name, as JAX's
            own profiler writes it (``fingerprint::fusion.1``, in
            ``xla/python/xplane_to_profile_instructions.cc``), is taken off, since exports of
            nsys hold none; of several modules' estimates the last counts.
    """
    estimates = {name.rpartition("::")[2]: own_us for name, own_us in estimates.items()}
    measured = {own.name: own for own in costs}
    both = [
        Difference(
            name=name,
            estimated_us=estimated_us,
            measured_us=measured[name].cost_us,
            ratio=measured[name].cost_us / estimated_us if estimated_us else None,
            executions=measured[name].executions,
        )
        for name, estimated_us in estimates.items()
        if name in measured
    ]
    both.sort(key=lambda own: (-abs(own.off_us), own.name))
    unmeasured = sorted(name for name in estimates if name not in measured)
    unestimated = sorted(name for name in measured if name not in estimates)
    return Comparison(
        differences=tuple(both),
        unmeasured=tuple(unmeasured),
        unestimated=tuple(unestimated),
        estimated_us=sum(own.estimated_us for own in both),
        measured_us=sum(own.measured_us for own in both),
        off_us=sum(abs(own.off_us) for own in both),
        unmeasured_us=sum(estimates[name] for name in unmeasured),
        unestimated_us=sum(measured[name].cost_us for name in unestimated),
    )
