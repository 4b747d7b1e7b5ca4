"""Costs: one number an instruction, of all its executions on all devices."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bubbleviz.analyses.pgle import instructions
from bubbleviz.conventions.convention_file import extended_kinds, find_conventions
from bubbleviz.errors import NothingToAnalyseError, ProfileError, UsageError
from bubbleviz.interpret.fleet.run_recordings import Fleet, refuse_same_content
from bubbleviz.interpret.record import opened_profile, renamed_limitations
from bubbleviz.model import grouping, texts
from bubbleviz.model.columns import NONE, Bools, Floats, Ints, marked
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import Profile
from bubbleviz.progress import Progress, Watch
from bubbleviz.sources.paths import find_profiles, read_each
from bubbleviz.sources.readers import OpenFile

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
    return grouping.numbered_together(apart, instructions=("instruction",), modules=("module",))


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
    groups = grouping.groups_of(samples.instruction)
    order = np.lexsort((samples.cost_ns, groups.of_row))
    ascending = samples.cost_ns[order]
    count = np.bincount(groups.of_row, minlength=len(groups))
    first = np.cumsum(count) - count
    moves = marked(len(groups), groups.of_row[samples.collective])
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


# Comparison: the costs in a file against those measured in a profile.


COLUMNS = ("instruction", "estimated_us", "measured_us", "ratio", "off_us", "executions")


#: Estimated costs against measured ones: the measured cost of each instruction with both and the
#: estimated one, in microseconds, the largest difference first; estimates of instructions that are
#: not in the profile, by name; and costs of instructions that are not in the file.
CostComparison = tuple[
    Sequence[tuple[InstructionCost, float]], Mapping[str, float], Mapping[str, float]
]


def compare_costs(
    costs: Sequence[InstructionCost], estimates: Mapping[str, float]
) -> CostComparison:
    """Return the differences between estimated and measured costs.

    Args:
        costs: as measured.
        estimates: microseconds by instruction; a module's fingerprint before the name, as JAX's
            own profiler writes it (``fingerprint::fusion.1``, in
            ``xla/python/xplane_to_profile_instructions.cc``), is removed, since exports
            of nsys hold none; of several modules' estimates the last counts.
    """
    estimates = {name.rpartition("::")[2]: cost_us for name, cost_us in estimates.items()}
    both = [(cost, estimates[cost.name]) for cost in costs if cost.name in estimates]
    both.sort(key=lambda pair: (-abs(pair[0].cost_us - pair[1]), pair[0].name))
    measured = {cost.name: cost.cost_us for cost in costs}
    unmeasured = {n: us for n, us in sorted(estimates.items()) if n not in measured}
    unestimated = {n: us for n, us in sorted(measured.items()) if n not in estimates}
    return both, unmeasured, unestimated


def csv_of_comparison(comparison: CostComparison) -> str:
    """Return a comparison as CSV, one row an instruction; empty cells for what is unknown."""
    rows = (
        (
            texts.inert(cost.name),
            estimated_us,
            cost.cost_us,
            cost.cost_us / estimated_us if estimated_us else None,
            cost.cost_us - estimated_us,
            cost.executions,
        )
        for cost, estimated_us in comparison[0]
    )
    return texts.csv_text(COLUMNS, rows)


# The analysis of instruction costs, from profiles to costs and cost files. It never prints.


#: The percentile that JAX aggregates with, ``jax_pgle_aggregation_percentile``.
AGGREGATE = "p90"


def measure_costs(
    paths: str | Path | Sequence[str | Path],
    *,
    aggregate: str = AGGREGATE,
    aggregate_collectives: str | None = None,
    modules: Sequence[str] = (),
    skip: int = 1,
    convention: str | Path | Sequence[str | Path] = (),
    keep_export: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Costs:
    """Return the cost of each XLA instruction of a JAX run, in microseconds on its device.

    Args:
        paths: profiles; a directory stands for those in it, a pattern for its matches.
        aggregate: how executions on devices become one cost: ``max``, ``min``, ``mean``,
            ``median``, or a percentile as ``p90``.
        aggregate_collectives: the same for collectives; None for the same statistic.
        modules: names or labels of the modules to take; empty for all.
        skip: executions of each module on each device to leave out as its warm-up.
        convention: conventions whose lists of communication kernels extend the built-in one: names,
            or paths of TOML files; an instruction is a collective if it, or one of its kernels,
            has such a name.
        keep_export: leave the exports made of ``.nsys-rep`` reports beside them.
        jobs: threads that read a profile.
        progress: receives how much of each profile has been read.

    Raises:
        BubblevizError: what, where and what to do next; see :mod:`bubbleviz.errors`.
    """
    compute = check_statistic(aggregate, "--aggregate")
    collective = check_statistic(aggregate_collectives or aggregate, "--aggregate-collectives")
    if skip < 0:
        raise UsageError(f"--skip {skip}: must be 0 or more")
    inputs = [paths] if isinstance(paths, (str, Path)) else paths
    files = find_profiles([str(path) for path in inputs])
    refuse_same_content(Fleet(1), [file.path for file in files])
    kinds = extended_kinds(find_conventions(convention))

    def read(
        path: str, watch: Watch
    ) -> tuple[instructions.Samples, Counter[str], tuple[Limitation, ...], str]:
        with opened_profile(path, jobs, watch, keep_export=keep_export) as (file, export):
            profile = _profile_in(file)
            measured, left_out, lost = instructions.measure(profile, kinds, skip)
        # A temporary export goes by its report's name.
        return measured, left_out, renamed_limitations(lost, export, path), profile.source.device

    profiles, unreadable = read_each(files, read, progress)
    samples = merge_samples([measured for measured, *_ in profiles])
    totals = _modules(samples)
    if modules:
        samples = samples.take(_chosen(samples, modules))
    costs = costs_of(samples, compute, collective)
    if not costs:
        raise NothingToAnalyseError(
            f"{files[0].path}: no execution of an instruction is whole, after warm-up and "
            f"compilation; record more steps{', or give --skip 0' if skip else ''}"
        )
    left_out = sum((counts for _, counts, *_ in profiles), Counter[str]())
    return Costs(
        instructions=costs,
        modules=totals,
        executions=len(samples),
        compilation=left_out["compilation"],
        cut=left_out["cut"],
        warm_up=left_out["warm_up"],
        devices=len(grouping.distinct(samples.device)),
        aggregate=compute,
        aggregate_collectives=collective,
        limitations=(
            *unreadable,
            *(limitation for _, _, lost, _ in profiles for limitation in lost),
            *_shared_names(samples),
        ),
        device=min((device for *_, device in profiles), key=lambda name: name != "GPU"),
    )


def _profile_in(file: OpenFile) -> Profile:
    """Return the profile of an open file, with the ranges of XLA.

    Raises:
        NothingToAnalyseError: it cannot be analysed; what it lacks matters to runs of XLA alone.
    """
    try:
        return file.read(instructions.GLOBS)
    except NothingToAnalyseError as error:
        try:
            profile = file.read(instructions.GLOBS, partial=True)
        except ProfileError:
            raise error from None
        if len(profile.ranges):
            raise
        raise instructions.without_instructions(profile) from error


def _modules(samples: instructions.Samples) -> tuple[tuple[str, int, int], ...]:
    """Return the modules that ran, the longest first."""
    totals = []
    for number, label in enumerate(samples.modules):
        own = samples.take(samples.module == number)
        if len(own):
            totals.append((label, len(grouping.distinct(own.instruction)), int(own.cost_ns.sum())))
    return tuple(sorted(totals, key=lambda total: (-total[2], total[0])))


def _chosen(samples: instructions.Samples, wanted: Sequence[str]) -> Bools:
    """Tell which samples belong to some modules.

    Args:
        samples: of all modules.
        wanted: names or labels.

    Raises:
        UsageError: no module has such a name.
    """
    # A label is a name, and the number of its program.
    named = {label: {label, re.sub(r"\([0-9]+\)\Z", "", label)} for label in samples.modules}
    for name in wanted:
        if not any(name in names for names in named.values()):
            known = ", ".join(label[:60] for label in samples.modules[:20]) or "none"
            raise UsageError(
                f"--module {name[:60]!r}: no such module ran; the profiles hold {known}"
            )
    rows = [at for at, label in enumerate(samples.modules) if named[label] & set(wanted)]
    return np.isin(samples.module, rows)


def _shared_names(samples: instructions.Samples) -> Iterator[Limitation]:
    """Yield that several modules have instructions of one name, if that is so."""
    known = samples.module != NONE
    pairs = grouping.groups_of(samples.instruction[known], samples.module[known])
    instruction = samples.instruction[known][pairs.first]
    count = int((np.unique(instruction, return_counts=True)[1] > 1).sum())
    if count:
        yield Limitation(
            "instructions whose name several modules have",
            "XLA looks costs up by name, and these are of all the modules together; take one "
            "with --module NAME",
            count,
            LimitationKind.COSTS,
        )
