"""Measures the device time of every execution of every XLA instruction.

A kernel or copy belongs to the innermost instruction around its launching call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from bubbleviz.analyses.pgle.range_names import RangeKind, parse_range_names
from bubbleviz.analyses.pgle.thunks import Thunks, find_thunks
from bubbleviz.conventions.kinds import GRAPH_LAUNCHES, Kinds, match_any
from bubbleviz.errors import NothingToAnalyzeError
from bubbleviz.interpret import iterations, linking, record
from bubbleviz.interpret.communication import add_communication
from bubbleviz.model import intervals, texts
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import find_distinct, group_rows
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import Activities, Profile, Ranges

#: Share of the collective time that may appear to overlap compute because of clock resolution.
_OVERLAPPED = 0.01
OVERLAP = "collectives overlap compute"
PAIRS = "asynchronous collectives"
GRAPHS = "instructions inside CUDA graphs"


@dataclass(frozen=True, eq=False, repr=False)
class Samples(Table):
    """Executions of instructions, one row per execution and device.

    Attributes:
        instruction: The instruction, as an index into ``instructions``.
        module: The module, as an index into ``modules``, or -1 if unknown.
        device: Device number within the profile.
        cost_ns: Total duration of the execution's kernels, copies and memsets.
        collective: Whether the instruction moves data between devices, according to its name and
            the names of its kernels.
        instructions: Instruction names.
        modules: Labels of modules.
    """

    instruction: Ints
    module: Ints
    device: Ints
    cost_ns: Ints
    collective: Bools
    instructions: tuple[str, ...] = field(metadata={"shared": True})
    modules: tuple[str, ...] = field(metadata={"shared": True})


@dataclass(frozen=True, eq=False, repr=False)
class _InstructionWork(Table):
    """Kernels and copies that belong to an instruction, one row each.

    Attributes:
        activity: Row of the kernel or copy in the profile.
        thunk: Row of the instruction's range.
        instruction: Index of the instruction.
        execution: Index of the execution on a device.
        is_communication: Whether the work is a communication kernel, according to its name.
    """

    activity: Ints
    thunk: Ints
    instruction: Ints
    execution: Ints
    is_communication: Bools


def measure(
    profile: Profile, kinds: Kinds, skip: int = 1
) -> tuple[Samples, Counter[str], tuple[Limitation, ...]]:
    """Measure the device time of every execution of an instruction.

    Args:
        profile: Profile with the ranges that match :data:`.range_names.GLOBS`.
        kinds: Name patterns that identify communication kernels and collective instructions.
        skip: Number of initial runs, per module and device, that are warm-up (lazy loading,
            communication setup). If no device runs a module more often than this, none of the
            module's runs are left out as warm-up.

    Returns:
        samples: The executions from which costs are computed.
        left_out: Number of executions left out for each reason: ``compilation`` (launched while
            XLA compiled, such as autotuning), ``cut`` (the module is not completely inside the
            capture) and ``warm_up``.
        limitations: What could not be measured, and why.

    Raises:
        NothingToAnalyzeError: No instruction has GPU work.
    """
    path = profile.source.path
    names = parse_range_names(profile.ranges.names)
    rows = np.flatnonzero(names.kind[profile.ranges.name_id] == RangeKind.INSTRUCTION)
    if len(rows) == 0:
        raise explain_no_instructions(profile)
    linked = linking.link(add_communication(profile, kinds), profile.ranges.take(rows))
    activities = linked.profile.activities
    thunks, n_apart = find_thunks(profile.ranges, rows, names)
    work = _list_work(linked, thunks, kinds)
    if len(work) == 0:
        raise NothingToAnalyzeError(
            f"{path}: no XLA instruction has GPU work; record at least one complete step with: "
            "nsys profile -t cuda,nvtx"
        )
    first = work.take(group_rows(work.execution).first)
    is_collective = match_any(names.instructions, kinds.communication)
    is_collective[work.instruction[work.is_communication]] = True
    samples = Samples(
        instruction=first.instruction,
        module=thunks.module[first.thunk],
        device=activities.rank[first.activity].astype(np.int64),
        cost_ns=_sum_costs(activities, work),
        collective=is_collective[first.instruction],
        instructions=names.instructions,
        modules=names.modules,
    )
    in_modules = bool((thunks.within != NONE).any())
    keep, left_out, n_warm_modules = _select_executions(
        thunks.take(first.thunk), samples.device, profile.ranges, skip, in_modules=in_modules
    )
    counted = work.take(keep[work.execution])
    notes = (
        *_describe_overlap(path, activities, counted.activity, counted.is_communication),
        *_describe_pairs(path, n_apart),
        *_describe_graphs(
            path, _count_graph_launches(profile, work.instruction, linked.work, work.activity)
        ),
        *_describe_work_without_costs(path, activities, linked.work),
        *_describe_warm_modules(path, n_warm_modules, skip),
    )
    limitations = (*linked.profile.limitations, *linked.limitations, *notes)
    return samples.take(keep), left_out, limitations


def _list_work(linked: linking.LinkedProfile, thunks: Thunks, kinds: Kinds) -> _InstructionWork:
    """List the kernels and copies that belong to an instruction.

    Args:
        linked: The profile, linked to the ranges of the instructions.
        thunks: The instructions' ranges.
        kinds: Name patterns that identify communication kernels.
    """
    activities = linked.profile.activities
    activity = np.flatnonzero(linked.work.range != NONE)
    thunk = linked.work.range[activity].astype(np.int64)
    device = activities.rank[activity].astype(np.int64)
    # Copies have no name. Their name index is -1, which selects the last element.
    is_communication_name = np.append(match_any(activities.names, kinds.communication), False)
    return _InstructionWork(
        activity=activity,
        thunk=thunk,
        instruction=thunks.instruction[thunk],
        execution=group_rows(thunks.execution[thunk], device).of_row,
        is_communication=is_communication_name[activities.name_id[activity]],
    )


def _sum_costs(activities: Activities, work: _InstructionWork) -> Ints:
    """Return the total duration of each execution's kernels and copies, in ns."""
    length_ns = activities.end_ns[work.activity] - activities.start_ns[work.activity]
    n_executions = int(work.execution.max()) + 1
    return intervals.group_sum(work.execution, n_executions, length_ns)


def _describe_overlap(
    path: str, activities: Activities, work: Ints, is_communication: Bools
) -> Iterator[Limitation]:
    """Yield a limitation if collectives overlap compute kernels for a large part of their time.

    Args:
        path: Path to the profile.
        activities: All kernels in the profile, followed by all copies.
        work: Rows of the activities that belong to executions used for costs.
        is_communication: Mask of the communication kernels among ``work``.
    """
    n_devices = len(activities.ranks)
    device = activities.rank[work].astype(np.int64)
    spans = device, n_devices, activities.start_ns[work], activities.end_ns[work]
    is_compute = (work < activities.kernels) & ~is_communication
    compute = intervals.GroupCover(intervals.group_union(*spans, is_compute), n_devices)
    owner, start_ns, end_ns = intervals.group_union(*spans, is_communication)
    collectives_ns = int((end_ns - start_ns).sum())
    overlapped_ns = int(compute.within(owner, start_ns, end_ns).sum())
    if overlapped_ns > _OVERLAPPED * collectives_ns:
        overlap_percent = 100 * overlapped_ns / max(collectives_ns, 1)
        yield Limitation(
            OVERLAP,
            f"{path}: they overlap compute kernels for {overlap_percent:.1f} % of their time, "
            "which slows down both; record without the latency-hiding scheduler and without "
            "asynchronous collectives",
            1,
            LimitationKind.WRONG_COSTS,
        )


def _describe_pairs(path: str, n_apart: int) -> Iterator[Limitation]:
    """Yield a limitation if other instructions run between a collective's start and done.

    Args:
        path: Path to the profile.
        n_apart: Number of ``done`` instructions that do not directly follow their ``start``.
    """
    if n_apart:
        yield Limitation(
            PAIRS,
            f"{path}: the latency-hiding scheduler put other instructions between their start and "
            "done, so costs would be wrong; record with the scheduler turned off",
            n_apart,
            LimitationKind.WRONG_COSTS,
        )


def _count_graph_launches(
    profile: Profile, instruction: Ints, linked_work: linking.LinkedWork, work: Ints
) -> int:
    """Count the instructions that launch CUDA graphs.

    An instruction that launches a graph makes only one launching call, so checking the call of the
    instruction's first activity is sufficient.

    Args:
        profile: The profile.
        instruction: Instruction of each activity in ``work``.
        linked_work: Range, call and rule of each activity.
        work: Rows of the activities of all executions.
    """
    _, row = np.unique(instruction, return_index=True)
    called = find_distinct(linked_work.call[work[row]])
    calls = profile.calls.names(called[called != NONE].astype(np.int64))
    return sum(name.startswith(GRAPH_LAUNCHES) for name in calls)


def _describe_graphs(path: str, n_graphs: int) -> Iterator[Limitation]:
    """Yield a limitation if instructions launch CUDA graphs."""
    if n_graphs:
        launches = (
            f"{n_graphs} instructions launch CUDA graphs"
            if n_graphs > 1
            else "1 instruction launches a CUDA graph"
        )
        yield Limitation(
            GRAPHS,
            f"{path}: {launches}, and the costs of instructions inside a graph cannot be "
            "measured; record with --xla_gpu_enable_command_buffer=",
            n_graphs,
            LimitationKind.WRONG_COSTS,
        )


def _describe_work_without_costs(
    path: str, activities: Activities, linked_work: linking.LinkedWork
) -> Iterator[Limitation]:
    """Yield limitations about work that belongs to no instruction.

    One limitation counts work that was launched outside of all instructions. The other one counts
    kernels whose launching call is unknown.
    """
    length_ns = activities.end_ns - activities.start_ns
    for subject, rule, clause in (
        (
            "work outside of all instructions",
            linking.LinkRule.OUTSIDE,
            "no cost includes this work",
        ),
        (
            "kernels without their launching call",
            linking.LinkRule.UNLINKED,
            "no cost includes these kernels",
        ),
    ):
        is_left_out = linked_work.rule == rule
        count = int(is_left_out.sum())
        if count:
            reason = f"{path}: {length_ns[is_left_out].sum() / 1e6:,.3f} ms; {clause}"
            yield Limitation(subject, reason, count, LimitationKind.COSTS)


def _describe_warm_modules(path: str, n_modules: int, skip: int) -> Iterator[Limitation]:
    """Yield a limitation if any modules ran so rarely that their costs include the warm-up."""
    if n_modules:
        yield Limitation(
            "modules whose costs include the warm-up",
            f"{path}: no device ran them more than {texts.format_count(skip, 'time')}, so their "
            "warm-up was not excluded",
            n_modules,
            LimitationKind.COSTS,
        )


def explain_no_instructions(profile: Profile) -> NothingToAnalyzeError:
    """Return the error for a profile without XLA instructions, saying what input to give."""
    path = profile.source.path
    alternatives = record.suggest_other_commands(profile, path)
    return NothingToAnalyzeError(
        f"{path}: contains no names of XLA instructions (TSL:Thunk:#...hlo_op=...); pass a JAX run "
        "on GPUs recorded with nsys profile -t cuda,nvtx, or the .xplane.pb file of a run on a "
        f"device{f'; {alternatives}' if alternatives else ''}"
    )


def _select_executions(
    thunks: Thunks, device: Ints, ranges: Ranges, skip: int, *, in_modules: bool
) -> tuple[Bools, Counter[str], int]:
    """Select the executions from which costs are computed.

    An execution is left out if:

    - XLA was compiling,
    - the capture cuts the execution or its module,
    - the execution is in no module although the profile names modules, or
    - it belongs to one of its module's first ``skip`` runs on the device.

    Args:
        thunks: One range of each execution on a device.
        device: Device of each execution.
        ranges: All ranges in the profile.
        skip: Number of initial runs of each module on each device that are warm-up.
        in_modules: Whether the profile contains module ranges.

    Returns:
        is_kept: Mask of the selected executions.
        left_out: Number of executions left out, by reason; see :func:`measure`.
        n_rare: Number of modules that no device runs more than ``skip`` times. For such modules, no
            warm-up is left out.
    """
    is_cut = (thunks.cut | ((thunks.within == NONE) & in_modules)) & ~thunks.compiling
    is_kept = ~thunks.compiling & ~is_cut
    rows = np.flatnonzero(is_kept)
    module, run_index, n_runs = _number_runs(thunks.take(rows), device[rows], ranges)
    max_runs = np.zeros(int(module.max(initial=NONE)) + 1, np.int64)
    np.maximum.at(max_runs, module, n_runs)
    is_rare = max_runs <= skip
    is_warm_up = (run_index < skip) & ~is_rare[module]
    is_kept[rows[is_warm_up]] = False
    left_out = Counter(
        compilation=int(thunks.compiling.sum()),
        cut=int(is_cut.sum()),
        warm_up=int(is_warm_up.sum()),
    )
    return is_kept, left_out, int(is_rare[find_distinct(module)].sum()) if skip else 0


def _number_runs(thunks: Thunks, device: Ints, ranges: Ranges) -> tuple[Ints, Ints, Ints]:
    """Count each module's runs on each device, and find the run to which each execution belongs.

    An instruction outside of all module ranges is treated as a separate module, and each of its
    executions as a run of this module.

    Args:
        thunks: One range of each execution on a device.
        device: Device of each execution.
        ranges: All ranges in the profile.

    Returns:
        module: For each execution, an integer id of its module, or of its instruction if it is
            outside of all module ranges.
        run_index: For each execution, the number of earlier runs of its module on the device.
        n_runs: For each execution, the total number of runs of its module on the device.
    """
    in_module = thunks.within != NONE
    n_modules = int(thunks.module.max(initial=NONE)) + 1
    module = np.where(in_module, thunks.module, n_modules + thunks.instruction)
    run = np.where(in_module, thunks.within, len(ranges) + thunks.execution)
    # Runs are numbered by start time, because the ranges may be in a different order.
    start_ns = np.append(ranges.start_ns, 0)[np.where(in_module, thunks.within, NONE)]
    runs = group_rows(device, module, start_ns, run)
    of_module = (device[runs.first], module[runs.first])
    run_index = iterations.number_occurrences(of_module)[runs.of_row]
    module_of_run = group_rows(*of_module).of_row
    n_runs = np.bincount(module_of_run, minlength=1)[module_of_run][runs.of_row]
    return module, run_index, n_runs
