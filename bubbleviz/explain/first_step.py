"""The extra time of the first iteration, and which part of it starting together would save.

In the first iteration, code is compiled, kernels are loaded and communicators are created when they
are first used. In a pipeline, a stage first uses them when its first input arrives, so the stages
warm up one after another: forwards from the first stage to the last, then backwards in reverse::

    stage 0   compile F │ F0 F1 ...                                             compile B │ B0
    stage 1             compile F │ F0                              compile B │ B0
    stage 2                       compile F │ F0 compile B │ B0

If every stage ran one forward and one backward before the first iteration, all stages would warm up
at the same time.

The time of an operation is measured from the moment at which it could start, which is the latest
end of its inputs and of the rank's previous operation. So waiting for other ranks does not count.
The extra time of an operation is its time in the first iteration minus the median time of the same
operation in later iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.align.run import Run
from bubbleviz.count.count import Counts
from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_slices import list_stages_and_pipelines
from bubbleviz.explain.dependencies import find_dependencies, find_inputs
from bubbleviz.explain.slowdown.work import group_medians
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Floats, Ints, Table
from bubbleviz.model.grouping import find_distinct, group_rows
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.operations import HostActivities, Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COMPUTE, WORK, Phase
from bubbleviz.model.run_kinds import TRAINING

#: Minimum and maximum number of later iterations with which the first one is compared.
_MIN_LATER, _MAX_LATER = 2, 8
#: Minimum length of the first iteration, as a multiple of the median of the later ones.
_MIN_LENGTH = 2.0
#: An operation warms up if its time exceeds the usual time by this fraction of the usual time, and
#: by this fraction of a usual iteration.
_MIN_EXTRA, _MIN_EXTRA_SHARE = 0.5, 0.001
#: Stages warm up one after another if the time during which any of them does is at least this
#: fraction of the sum of all. They warm up at the same time if it is at most this multiple of the
#: longest.
_SERIAL_SHARE, _TOGETHER_MULTIPLE = 0.9, 1.2
_BACKWARDS = (Phase.B, Phase.W, Phase.BW, Phase.FB)


@dataclass(frozen=True)
class WarmUp:
    """The extra time that a stage takes in the first iteration.

    Attributes:
        stage: Stage, or -1 if unknown.
        rank: Index of the stage's rank with the most extra time.
        forward_ns: Extra time of this rank's forwards and recomputations, in ns.
        backward_ns: Extra time of this rank's backwards, in ns.
        activity: Name of the range or API call in which the rank's launching thread spent most of
            the time before late launches, or "" if unknown.
    """

    stage: int
    rank: int
    forward_ns: int
    backward_ns: int
    activity: str = ""

    @property
    def extra_ns(self) -> int:
        """Extra time of the stage, in ns."""
        return self.forward_ns + self.backward_ns


@dataclass(frozen=True)
class FirstStep:
    """The extra time of the first iteration, by stage.

    Attributes:
        iteration: Index of the iteration.
        length_ns: Time from the moment at which the first operation could start to the last end.
        usual_ns: Median of this time over the later iterations.
        stages: Stages with extra time, in ascending order.
        elapsed_ns: Time during which at least one rank spent extra time.
    """

    iteration: int
    length_ns: int
    usual_ns: int
    stages: tuple[WarmUp, ...]
    elapsed_ns: int

    @property
    def extra_ns(self) -> int:
        """Time by which the first iteration is longer than the later ones, in ns."""
        return self.length_ns - self.usual_ns

    @property
    def total_ns(self) -> int:
        """Sum of the extra times of all stages, in ns."""
        return sum(stage.extra_ns for stage in self.stages)

    @property
    def longest_ns(self) -> int:
        """Longest extra time of any stage, in ns."""
        return max((stage.extra_ns for stage in self.stages), default=0)

    @property
    def is_serial(self) -> bool:
        """Whether the stages warm up one after another."""
        return len(self.stages) > 1 and self.elapsed_ns >= _SERIAL_SHARE * self.total_ns

    @property
    def is_together(self) -> bool:
        """Whether the stages warm up at the same time."""
        return len(self.stages) > 1 and self.elapsed_ns <= _TOGETHER_MULTIPLE * self.longest_ns

    @property
    def saving_ns(self) -> int:
        """Time that would be saved if all stages warmed up at the same time, in ns.

        The first iteration would then have the usual length, and the warm-up would take as long as
        the slowest stage needs to warm up.
        """
        return max(min(self.extra_ns, self.elapsed_ns) - self.longest_ns, 0)


def measure_first_step(run: Run, counts: Counts) -> FirstStep | None:
    """Measure the extra time of the first recorded iteration, by stage.

    The result is None in each of the following cases:

    - The first iteration is not longer than later ones by at least the length of one.
    - The first iteration is incomplete, does not train, or does not have a common clock.
    - There are fewer than two later iterations with the same number of microbatches.
    - The iterations or stages of the ranks are unknown.

    Args:
        run: The merged profiles.
        counts: Counted iterations of the run and their ratios.
    """
    compared = _select_iterations(run, counts)
    if len(compared) <= _MIN_LATER or not _may_be_long(run.operations, counts, compared):
        return None
    is_compared = np.isin(run.operations.iteration, compared)
    is_compared &= (run.operations.has_span == 1) & mask_phases(run.operations.phase, COMPUTE)
    times = _measure_times(run, np.flatnonzero(is_compared))
    length_ns, *later_ns = _measure_lengths(times, compared)
    usual_ns = sorted(later_ns)[(len(later_ns) - 1) // 2]
    if length_ns < _MIN_LENGTH * usual_ns:
        return None
    extra = _find_extra_times(times, compared[0], usual_ns)
    elapsed = intervals.union(extra.ready_ns, extra.ready_ns + extra.extra_ns)
    return FirstStep(
        iteration=compared[0],
        length_ns=length_ns,
        usual_ns=usual_ns,
        stages=_list_stages(run, extra),
        elapsed_ns=intervals.measure(elapsed),
    )


def _select_iterations(run: Run, counts: Counts) -> list[int]:
    """Return the first iteration and the later iterations to compare it with, or [] if unknown."""
    stage, _ = list_stages_and_pipelines(run.ranks)
    first = counts.iterations[0] if counts.iterations else None
    if first is None or not run.paired or run.stages_missing or (stage < 0).any():
        return []

    def is_comparable(iteration: Iteration) -> bool:
        is_whole = iteration.complete and iteration.kind == TRAINING
        return is_whole and bool(counts.one_clock[iteration.index])

    later = [
        iteration.index
        for iteration in counts.iterations[1:]
        if is_comparable(iteration) and iteration.microbatches == first.microbatches
    ]
    return [first.index, *later[:_MAX_LATER]] if is_comparable(first) else []


def _may_be_long(operations: Operations, counts: Counts, compared: Sequence[int]) -> bool:
    """Return whether the first iteration may be long enough, without finding any dependency.

    Its length is at most the time from the first start of a range on the host to the last end.
    """
    extents = counts.extents
    latest = np.iinfo(np.int64).max
    starts_ns = np.where(extents.present, extents.first_ns, latest).min(axis=1)[compared]
    ends_ns = np.where(extents.present, extents.step_last_ns, NEVER).max(axis=1)[compared]
    lengths_ns = ends_ns - starts_ns
    host_ns = operations.host_start_ns[operations.iteration == compared[0]]
    earliest_ns = min(int(host_ns.min(initial=latest)), int(starts_ns[0]))
    usual_ns = np.sort(lengths_ns[1:])[(len(lengths_ns) - 2) // 2]
    return bool(ends_ns[0] - earliest_ns >= _MIN_LENGTH * usual_ns)


@dataclass(frozen=True, eq=False, repr=False)
class _Times(Table):
    """Operations of the compared iterations, and when they could start.

    Attributes:
        row: Row in the operations of the run.
        rank: Index of the rank.
        iteration: Index of the iteration.
        phase: Phase of the operation.
        kind: Number shared by the same operation of all iterations.
        ready_ns: Time at which the operation could start.
        end_ns: End of the operation.
    """

    row: Ints
    rank: Ints
    iteration: Ints
    phase: Ints
    kind: Ints
    ready_ns: Ints
    end_ns: Ints


def _measure_times(run: Run, rows: Ints) -> _Times:
    """Return when each operation could start.

    An operation could start once its inputs and the previous operation of its rank had ended. If
    it is the rank's first operation and has no known input, it could start when its range started
    on the host.

    Args:
        run: The merged profiles.
        rows: Rows of the compute operations of the compared iterations.
    """
    operations = run.operations.take(rows)
    input_ns = find_inputs(operations, find_dependencies(operations, run.ranks)).ready_ns
    rank, iteration = operations.rank, operations.iteration
    previous_ns = np.append(NEVER, operations.end_ns[:-1])
    follows = np.append(False, rank[1:] == rank[:-1])
    follows_in_iteration = follows & np.append(False, iteration[1:] == iteration[:-1])
    previous_ns = np.where(follows, previous_ns, NEVER)
    host_ns = np.where(
        operations.host_start_ns == NONE, operations.start_ns, operations.host_start_ns
    )
    ready_ns = np.maximum(previous_ns, input_ns)
    is_unknown = (input_ns == NEVER) & ~follows_in_iteration
    ready_ns = np.where(is_unknown, np.maximum(ready_ns, host_ns), ready_ns)
    key = rank, operations.phase, operations.chunk, operations.microbatch
    return _Times(
        row=rows,
        rank=rank,
        iteration=iteration,
        phase=operations.phase.astype(np.int64),
        kind=group_rows(*key, operations.sequence, operations.occurrence).of_row,
        ready_ns=np.minimum(ready_ns, operations.end_ns),
        end_ns=operations.end_ns,
    )


def _measure_lengths(times: _Times, compared: Sequence[int]) -> list[int]:
    """Return the time from the first possible start to the last end of each iteration, in ns."""
    number = np.searchsorted(compared, times.iteration)
    low_ns, high_ns = intervals.group_extents(number, len(compared), times.ready_ns, times.end_ns)
    lengths_ns: list[int] = (high_ns - low_ns).tolist()
    return lengths_ns


@dataclass(frozen=True, eq=False, repr=False)
class _ExtraTimes(Table):
    """Operations of the first iteration that take longer than usual.

    Attributes:
        row: Row in the operations of the run.
        rank: Index of the rank.
        ready_ns: Time at which the operation could start.
        extra_ns: Time by which the operation takes longer than usual.
        is_backward: Whether the operation is a backward.
    """

    row: Ints
    rank: Ints
    ready_ns: Ints
    extra_ns: Ints
    is_backward: Bools


def _find_extra_times(times: _Times, first: int, usual_ns: int) -> _ExtraTimes:
    """Return the operations of the first iteration that take longer than usual.

    Optimizers are left out, because they wait for each other.

    Args:
        times: Operations of the compared iterations.
        first: Index of the first iteration.
        usual_ns: Median length of the later iterations.
    """
    time_ns = (times.end_ns - times.ready_ns).astype(float)
    is_later = times.iteration != first
    n_kinds = int(times.kind.max(initial=NONE)) + 1
    median_ns: Floats = group_medians(times.kind[is_later], n_kinds, time_ns[is_later])
    expected_ns = median_ns[times.kind]
    extra_ns = time_ns - expected_ns
    is_first = ~is_later & mask_phases(times.phase, WORK)
    # The comparison with NaN is False, so operations without a later one are left out.
    is_long = (extra_ns > _MIN_EXTRA * expected_ns) & (extra_ns > _MIN_EXTRA_SHARE * usual_ns)
    rows = np.flatnonzero(is_first & is_long)
    return _ExtraTimes(
        row=times.row[rows],
        rank=times.rank[rows],
        ready_ns=times.ready_ns[rows],
        extra_ns=np.rint(extra_ns[rows]).astype(np.int64),
        is_backward=mask_phases(times.phase[rows], _BACKWARDS),
    )


def _list_stages(run: Run, extra: _ExtraTimes) -> tuple[WarmUp, ...]:
    """Return the extra time of each stage that has any, in ascending order of stages.

    A stage takes as long as its rank with the most extra time, because its ranks run at the same
    time.
    """
    n_ranks = len(run.ranks)
    stage, _ = list_stages_and_pipelines(run.ranks)
    by_phase = [
        group_sum(extra.rank[mask], n_ranks, extra.extra_ns[mask])
        for mask in (~extra.is_backward, extra.is_backward)
    ]
    total_ns = by_phase[0] + by_phase[1]
    order = np.lexsort((-total_ns, stage))
    slowest = order[np.append(True, stage[order][1:] != stage[order][:-1])]
    return tuple(
        WarmUp(
            stage=int(stage[rank]),
            rank=rank,
            forward_ns=int(by_phase[0][rank]),
            backward_ns=int(by_phase[1][rank]),
            activity=_find_activity(run.hosts, run.operations, extra.take(extra.rank == rank)),
        )
        for rank in slowest[total_ns[slowest] > 0].tolist()
    )


def _find_activity(hosts: HostActivities, operations: Operations, extra: _ExtraTimes) -> str:
    """Return the name of the longest range or API call before late launches, or "" if unknown.

    Ranges of operations are left out. If several ranges or calls have the same name, their times
    are added. On ties, the name that occurs first in ``operations.names`` wins.

    Args:
        hosts: What launching threads did before late launches.
        operations: Operations of the run.
        extra: Operations of one rank that take longer than usual.
    """
    is_inside = ~np.isin(hosts.name_id, operations.name_id)
    of_rank = hosts.take(is_inside & np.isin(hosts.rank, extra.rank))
    late = extra.ready_ns, operations.end_ns[extra.row]
    rows, _ = intervals.find_overlaps((of_rank.start_ns, of_rank.end_ns), late)
    rows = find_distinct(rows)
    if not len(rows):
        return ""
    names = group_rows(of_rank.name_id[rows])
    lengths_ns = (of_rank.end_ns - of_rank.start_ns)[rows]
    longest = int(group_sum(names.of_row, len(names), lengths_ns).argmax())
    return operations.names[int(of_rank.name_id[rows[names.first[longest]]])]
