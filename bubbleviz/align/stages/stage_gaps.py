"""Stage gaps: missing stages (stages without a profile) between or after the recorded stages.

Range names and transfers do not always reveal missing stages. There are three kinds of evidence for
missing stages.

Time. A microbatch is away from both neighboring stages, but not in a transfer, for as long as a
missing stage would take::

    stage 0   F0                          B0
    stage 1      └ F0 (no profile)    B0 ┘
    stage 2           F0           B0

Rank numbers. If only ranks 0 and 3 have profiles, they may be two stages with ranks 1 and 2 as
replicas, or the first and the last of four stages.

The order of operations. While a microbatch is away, its rank runs more forwards. In most schedules,
it runs at most one forward for each stage that the microbatch passes. A rank that runs more
forwards than that is waiting for missing stages::

    last stage of all       F0 B0 F1 B1 ..
    last stage of a part    F0 F1 F2 B0 F3 B1 ..
    V, last rank of all     F0 f0 F1 f1 ..          f: forwards of the second chunk
    V, last rank of a part  F0 F1 F2 f0 F3 f1 ..

In schedules that run all forwards of a chunk first, such as GPipe, the order of operations provides
no evidence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.align.arrivals import Arrivals
from bubbleviz.align.join import JoinedRecordings
from bubbleviz.align.profile_clocks import GRAIN_NS
from bubbleviz.align.waits import (
    Waits,
    measure_median_waits,
    measure_waits,
    pair_consecutive_stages,
)
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import Phase

#: Minimum time between two stages that suggests a missing stage, as a fraction of a stage's work.
_OF_ANOTHER_STAGE = 0.75
#: Fraction used instead of ``_OF_ANOTHER_STAGE`` if transfers are not recorded.
#: The time between two stages then includes the transfers.
_OF_STAGE_AND_TRANSFERS = 1.0
#: Maximum number of ranks to check per stage.
_MAX_RANKS = 16
#: Minimum time for which a microbatch is away on a later stage, as a fraction of its F and B.
_AWAY = 0.75


#: Maximum median idle time before all backwards, as a fraction of the median idle time before the
#: first backward of each iteration. A larger fraction indicates that the host is late.
_MAX_IDLE_FRACTION = 0.5
#: Columns that identify an iteration of a rank.
_ITERATION = ("rank", "iteration")


def find_stages_before_gaps(
    operations: Operations,
    inputs: Arrivals,
    machine: Ints,
    pipeline: Ints,
    iteration: Ints | None,
) -> tuple[int, ...]:
    """Return the virtual stages to which microbatches return suspiciously late.

    The slack of a microbatch is the part of its time away from a stage that the next recorded stage
    does not explain: the time away, minus recorded transfers, the work on the next stage, and the
    time away from the next stage. If no stage is missing, the slack is the duration of two
    transfers, or 0 if transfers are recorded and no rank is late. A stage may be missing if even
    the microbatch with the smallest slack has enough time for another stage
    (:func:`_find_stages_with_slack`).

    If the ranks on the second stage also run an earlier stage as another chunk, microbatches may
    have to wait until these ranks have run other chunks. In this case, a gap is reported only if
    the ranks run unusually many forwards on the earlier chunk (:func:`runs_ahead_of_chunk`).

    Args:
        operations: Operations of all ranks, with their virtual stages, and with iterations numbered
            separately for each rank.
        inputs: Arrival times of all operations' inputs.
        machine: Machine of each rank. Ranks on the same machine share its clock.
        pipeline: Pipeline of each rank, or -1 if unknown.
        iteration: Common iteration of each operation, or None if unknown. If common iterations are
            known, the transits in both directions must also be long enough for another stage
            (:func:`_has_time_for_stage`).

    Returns:
        Virtual stages that are followed by a gap, in ascending order.
    """
    staged = operations.replace_columns(chunk=operations.virtual_stage)
    is_sent = _is_sent(staged, inputs)
    sending = grouping.find_distinct(operations.virtual_stage[is_sent])
    median_waits = _separate_pipelines(measure_median_waits(staged, inputs), pipeline)
    until_sent = _extend_until_sent(staged, inputs, is_sent)
    sent = measure_median_waits(until_sent, inputs)
    gaps = []
    for stage in _find_stages_with_slack(median_waits, sent, sending):
        if iteration is not None and not _has_time_for_stage(
            until_sent.replace_columns(iteration=iteration), inputs, stage, machine, pipeline
        ):
            continue
        next_ranks = median_waits.rank[median_waits.chunk == stage + 1]
        has_earlier_chunk = np.isin(
            next_ranks, median_waits.rank[median_waits.chunk <= stage]
        ).any()
        if not has_earlier_chunk or runs_ahead_of_chunk(operations, inputs, stage + 1):
            gaps.append(stage)
    return tuple(gaps)


def _separate_pipelines(waits: Waits, pipeline: Ints) -> Waits:
    """Return waits whose iterations are numbered so that waits of different pipelines do not pair.

    Args:
        waits: Waits of all ranks.
        pipeline: Pipeline of each rank, or -1 if unknown.
    """
    groups = grouping.group_rows(waits.iteration, pipeline[waits.rank])
    return waits.replace_columns(iteration=groups.of_row)


def _find_stages_with_slack(waits: Waits, sent: Waits, sending: Ints) -> list[int]:
    """Return the virtual stages after which every microbatch has time for another stage.

    The slack of a microbatch after a stage is ``wait - (wait on next stage + work on next stage)``,
    with waits counted from the end of the send. A stage is returned if the smallest slack exceeds
    ``_OF_ANOTHER_STAGE`` times the smallest work of a microbatch on either stage. If the stage has
    no recorded sends, the factor is ``_OF_STAGE_AND_TRANSFERS``.

    Args:
        waits: Median waits of all ranks, with separate iterations for each pipeline. The ``chunk``
            column contains virtual stages.
        sent: Median waits of all ranks, counted from the end of recorded sends.
        sending: Virtual stages that have recorded sends.
    """
    upper, lower = pair_consecutive_stages(waits)
    slack_ns = sent.waited_ns[upper] - sent.waited_ns[lower] - sent.worked_ns[lower]
    worked_ns = np.minimum(waits.worked_ns[upper], waits.worked_ns[lower])
    stages = []
    for stage in grouping.find_distinct(waits.chunk[upper]).tolist():
        is_of_stage = waits.chunk[upper] == stage
        part = _OF_ANOTHER_STAGE if stage in sending else _OF_STAGE_AND_TRANSFERS
        if slack_ns[is_of_stage].min() > part * worked_ns[is_of_stage].min():
            stages.append(stage)
    return stages


def _has_time_for_stage(
    operations: Operations, inputs: Arrivals, stage: int, machine: Ints, pipeline: Ints
) -> bool:
    """Return whether there is time for another stage between two stages, in both directions.

    Transit from the first stage to the second must take longer than ``_OF_ANOTHER_STAGE`` times the
    shortest forward. Transit back must take longer than ``_OF_ANOTHER_STAGE`` times the shortest
    backward. Microbatches that arrive at a busy rank wait there, so only the fastest microbatch in
    each iteration and direction is used (:func:`_measure_transits`). If there are several
    pipelines, it is the fastest microbatch of all pipelines.

    The result is also True if the transits cannot be measured, for one of the following reasons:

    - The two stages have no common microbatch, or different clocks in every pipeline.
    - A pipeline has several ranks on either stage, for example because the pipelines are unknown. A
      microbatch may then come from any of them.
    - A microbatch arrives more than ``GRAIN_NS`` before it was sent.

    Args:
        operations: Operations of all ranks, each extended until its result has been sent. The
            ``chunk`` column contains virtual stages, and ``iteration`` contains common iterations.
        inputs: Arrival times of all operations' inputs.
        stage: The first of the two virtual stages.
        machine: Machine of each rank.
        pipeline: Pipeline of each rank, or -1 if unknown.
    """
    rows = np.flatnonzero(np.isin(operations.chunk, (stage, stage + 1)))
    rows = rows[operations.iteration[rows] >= 0]
    of_stages = measure_waits(operations.take(rows), inputs.take(rows))
    sent, received = _pair_on_same_clock(of_stages, machine, pipeline)
    if _has_shared_stage(of_stages, pipeline) or not len(sent):
        return True
    there_ns, back_ns = _measure_transits(sent, received)
    if min(there_ns, back_ns) < -GRAIN_NS:
        return True
    forward_ns = min(sent.forward_ns.min(), received.forward_ns.min())
    backward_ns = min(_measure_backwards(sent).min(), _measure_backwards(received).min())
    is_there_long = there_ns > _OF_ANOTHER_STAGE * forward_ns
    return bool(is_there_long and back_ns > _OF_ANOTHER_STAGE * backward_ns)


def _pair_on_same_clock(waits: Waits, machine: Ints, pipeline: Ints) -> tuple[Waits, Waits]:
    """Return the waits of each microbatch on two consecutive stages of one machine.

    Args:
        waits: Waits on both stages.
        machine: Machine of each rank.
        pipeline: Pipeline of each rank, or -1 if unknown.

    Returns:
        sent: Waits on the first stage.
        received: Waits of the same microbatches on the second stage, in the same order.
    """
    upper, lower = pair_consecutive_stages(_separate_pipelines(waits, pipeline))
    has_same_clock = machine[waits.rank[upper]] == machine[waits.rank[lower]]
    return waits.take(upper[has_same_clock]), waits.take(lower[has_same_clock])


def _has_shared_stage(waits: Waits, pipeline: Ints) -> bool:
    """Return whether any pipeline has several ranks on the same stage.

    Args:
        waits: Waits of the ranks, whose ``chunk`` column contains virtual stages.
        pipeline: Pipeline of each rank, or -1 if unknown.
    """
    stages, ranks = grouping.find_distinct_rows(waits.chunk, waits.rank)
    n_ranks = np.bincount(grouping.group_rows(stages, pipeline[ranks]).of_row)
    return bool((n_ranks > 1).any())


def _measure_transits(sent: Waits, received: Waits) -> tuple[float, float]:
    """Return the transit times, in ns, of microbatches to the next stage and back.

    In each direction, the result is the median, over iterations, of the fastest transit.

    Args:
        sent: Waits on the first stage, one row per microbatch and iteration.
        received: Waits of the same microbatches on the next stage, in the same order.
    """
    arrived_ns = received.left_ns - received.forward_ns
    there_ns = _measure_fastest(sent.iteration, arrived_ns - sent.left_ns)
    returned_ns = sent.left_ns + sent.waited_ns
    back_ns = _measure_fastest(sent.iteration, returned_ns - _find_backward_ends(received))
    return there_ns, back_ns


def _measure_backwards(of_stage: Waits) -> Ints:
    """Return how long the backward of each microbatch keeps its rank busy, in ns."""
    return of_stage.worked_ns - of_stage.forward_ns


def _find_backward_ends(of_stage: Waits) -> Ints:
    """Return the time at which each microbatch's backward ends if it runs without a pause."""
    return of_stage.left_ns + of_stage.waited_ns + _measure_backwards(of_stage)


def _measure_fastest(iteration: Ints, transit_ns: Ints) -> float:
    """Return the median over iterations of the shortest transit of a microbatch, in ns.

    Args:
        iteration: Iteration of each microbatch. Must not be empty.
        transit_ns: Time that each microbatch takes from one stage to the other.
    """
    groups = grouping.group_rows(iteration)
    fastest_ns, _ = group_extents(groups.of_row, len(groups), transit_ns, transit_ns)
    return float(np.median(fastest_ns))


def _is_sent(operations: Operations, inputs: Arrivals) -> Bools:
    """Return a mask of the operations whose result was transferred by a recorded send."""
    has_span = np.append(operations.has_span, 0) == 1
    return np.asarray((inputs.send >= 0) & has_span[inputs.send], np.bool_)


def _extend_until_sent(operations: Operations, inputs: Arrivals, is_sent: Bools) -> Operations:
    """Return the operations, extended until their recorded send ends.

    The end and the busy time grow by the same amount. Operations that end after their send, or have
    no recorded send, are unchanged.

    Args:
        operations: Operations of all ranks.
        inputs: Arrivals, which include the row of each operation's send.
        is_sent: Mask of the operations with a recorded send.
    """
    sent_ns = operations.end_ns.copy()
    sent_ns[is_sent] = operations.end_ns[inputs.send[is_sent]]
    sending_ns = np.maximum(sent_ns - operations.end_ns, 0)
    return operations.replace_columns(
        end_ns=operations.end_ns + sending_ns, busy_ns=operations.busy_ns + sending_ns
    )


def describe_gaps(stages: Sequence[int]) -> Limitation:
    """Return the limitation for stages that may be missing after the given virtual stages."""
    pairs = ", ".join(f"{stage} and {stage + 1}" for stage in stages)
    reason = (
        f"each microbatch spends more time between virtual stages {pairs} than F and B of another "
        "stage would take; if profiles are missing, ratios and stages do not include them"
    )
    kind = LimitationKind.STAGES_MAY_BE_MISSING
    return Limitation("stages that may be missing", reason, len(stages), kind)


def find_numbered_gaps(
    stages: Sequence[int], operations: Operations, number: Ints
) -> tuple[tuple[int, int], ...]:
    """Find the gaps between stages that are confirmed by rank numbers.

    A gap is confirmed if there are unused rank numbers between the stage before it and the stage
    after it.

    Args:
        stages: Virtual stages that are followed by a gap, according to times.
        operations: Operations of all ranks, with their virtual stages.
        number: Rank number of each rank.

    Returns:
        For each confirmed gap, the largest rank number on the stage before it and the smallest rank
        number on the stage after it.
    """
    rows = np.flatnonzero(operations.virtual_stage >= 0)
    stage = operations.virtual_stage[rows]
    rank_number = number[operations.rank[rows]]
    n_stages = int(stage.max(initial=NONE)) + 1
    first, last = group_extents(stage, n_stages, rank_number, rank_number)
    pairs = [(int(last[before]), int(first[before + 1])) for before in stages]
    return tuple((before, after) for before, after in pairs if after - before > 1)


def describe_numbered_gaps(gaps: Sequence[tuple[int, int]]) -> Limitation:
    """Return the limitation for stages missing between the given pairs of rank numbers."""
    pairs = ", ".join(f"{before} and {after}" for before, after in gaps)
    reason = (
        f"each microbatch spends more time between ranks {pairs} than F and B of another stage "
        "would take, and no profile contains the ranks in between. Ratios are therefore "
        "incomplete, and stage numbers count only the recorded stages"
    )
    kind = LimitationKind.INNER_STAGES_UNKNOWN
    return Limitation("stages without a profile", reason, len(gaps), kind)


def describe_first_number(number: Ints, stage_of_rank: Ints) -> Limitation | None:
    """Return a limitation if the rank numbers leave room for stages before stage 0, or None.

    Frameworks number ranks stage by stage, so the lowest rank numbers on the stages increase in
    equal steps, for example 8, 12, 16. If the lowest number on stage 0 is at least one step, lower
    numbers belong to earlier stages, or to another pipeline if ranks are numbered pipeline by
    pipeline. The result is None if the steps are not equal and positive, or if there are fewer than
    two stages.

    Args:
        number: Rank number of each rank.
        stage_of_rank: First virtual stage of each rank, or -1 if unknown.
    """
    is_staged = stage_of_rank >= 0
    n_stages = int(stage_of_rank.max(initial=-1)) + 1
    if n_stages < 2:
        return None
    numbers = number[is_staged]
    first, _ = group_extents(stage_of_rank[is_staged], n_stages, numbers, numbers)
    steps = np.diff(first)
    if steps.min() < 1 or steps.min() != steps.max() or first[0] < steps[0]:
        return None
    reason = (
        f"rank numbers on the first stage start at {int(first[0])}, so lower ranks run earlier "
        "stages or another pipeline; if they run earlier stages, ratios and stages do not include "
        "them. To set the sizes of the run, pass --parallel tp=,pp=,dp="
    )
    kind = LimitationKind.STAGES_MAY_BE_MISSING
    return Limitation("stages that may be missing", reason, int(first[0] // steps[0]), kind)


def find_turns(operations: Operations) -> frozenset[int]:
    """Return the virtual stages whose next virtual stage is on the same rank.

    An example is the last stage before the turn of a V schedule.

    Args:
        operations: Operations of all ranks, with their virtual stages.
    """
    virtual_stage = operations.virtual_stage
    is_known = virtual_stage >= 0
    rank, stage = grouping.find_distinct_rows(operations.rank, virtual_stage, mask=is_known)
    is_same_rank = rank[1:] == rank[:-1]
    is_followed = is_same_rank & (stage[1:] == stage[:-1] + 1)
    return frozenset(stage[:-1][is_followed].tolist())


def runs_ahead_of_chunk(operations: Operations, inputs: Arrivals, stage: int) -> bool:
    """Return whether ranks run unusually many forwards on one model chunk before the next one.

    Forwards on the previous chunk are counted if they end no later than the iteration's first
    forward on the next chunk. If no stage is missing, their number usually does not exceed the
    number of virtual stages from one chunk to the next. The result is True if, in more than half of
    the iterations, the forwards of more microbatches than that are counted, but not the forwards of
    all microbatches. The result is False if the ranks have no earlier chunk.

    Args:
        operations: Operations of all ranks, with their virtual stages.
        inputs: Arrival times of all operations' inputs.
        stage: Virtual stage that the ranks run as their next chunk.
    """
    of_ranks = _take_waits(operations, inputs, stage)
    previous_chunk = int(of_ranks.chunk[of_ranks.chunk < stage].max(initial=NONE))
    if previous_chunk < 0:
        return False
    forward = of_ranks.take(of_ranks.chunk == previous_chunk)
    later = of_ranks.take(of_ranks.chunk == stage)
    return _runs_ahead(forward, later, later.left_ns, stage - previous_chunk)


def runs_ahead_of_backward(operations: Operations, inputs: Arrivals, stage: int) -> bool:
    """Return whether ranks on the last stage usually run several forwards before a backward.

    In more than half of the iterations, more than one forward must end before the input of the
    first backward arrives. Iterations that run all forwards first are not counted.

    Args:
        operations: Operations of all ranks, with their virtual stages.
        inputs: Arrival times of all operations' inputs.
        stage: The last virtual stage.
    """
    of_ranks = _take_waits(operations, inputs, stage)
    forward = of_ranks.take(of_ranks.chunk == stage)
    return _runs_ahead(forward, forward, forward.left_ns + forward.waited_ns, 1)


def _take_waits(operations: Operations, inputs: Arrivals, stage: int) -> Waits:
    """Return the waits of the ranks that run a stage, on all stages that they run.

    Only the first ``_MAX_RANKS`` ranks are used. The ``chunk`` column of the result contains
    virtual stages.
    """
    is_of_stage = operations.virtual_stage == stage
    ranks = grouping.find_distinct(operations.rank[is_of_stage])[:_MAX_RANKS]
    rows = np.flatnonzero(np.isin(operations.rank, ranks))
    staged = operations.replace_columns(chunk=operations.virtual_stage)
    return measure_waits(staged.take(rows), inputs.take(rows))


def _runs_ahead(forward: Waits, later: Waits, begun_ns: Ints, max_usual: int) -> bool:
    """Return whether most iterations run unusually many forwards before some later work begins.

    A rank's iteration runs unusually many forwards if the forwards of more than ``max_usual``
    microbatches, but not all of them, end before the later work begins. The result is True if this
    is the case in more than half of the iterations that have a forward.

    Args:
        forward: Waits whose forwards are counted.
        later: Waits of the later work.
        begun_ns: For each row of ``later``, the time by which the later work has begun.
        max_usual: Largest number of forwards that is still considered usual.
    """
    keys = tuple(
        np.concatenate((getattr(forward, column), getattr(later, column))) for column in _ITERATION
    )
    groups = grouping.group_rows(*keys)
    group, count = groups.of_row[: len(forward)], len(groups)
    first_ns, _ = group_extents(groups.of_row[len(forward) :], count, begun_ns, begun_ns)
    is_before = forward.left_ns <= first_ns[group]
    n_ahead = _count_microbatches(forward, group, is_before, count)
    n_total = _count_microbatches(forward, group, np.ones(len(forward), np.bool_), count)
    is_ahead = (n_ahead > max_usual) & (n_ahead < n_total)
    return bool(2 * is_ahead.sum() > (n_total > 0).sum())


def _count_microbatches(forward: Waits, group: Ints, is_counted: Bools, count: int) -> Ints:
    """Count the distinct microbatches in each group.

    Args:
        forward: Waits, one row per microbatch and sequence split.
        group: Group of each wait.
        is_counted: Mask of the waits to count.
        count: Number of groups.
    """
    pairs = grouping.find_distinct_rows(group, forward.microbatch, mask=is_counted)
    return np.bincount(pairs[0], minlength=count)


def are_adjacent_by_order(stages: Sequence[int], operations: Operations) -> bool:
    """Return whether operation orders show that no stage is missing after any given stage.

    In 1F1B, each stage runs exactly one more forward before its first backward than the next stage
    does (:func:`_count_warmup`). The result is True if this holds for every given stage. For
    schedules that run all forwards first, or as many as fit in memory, the result is False, because
    their orders do not depend on the number of stages.

    Args:
        stages: Virtual stages to check.
        operations: Operations of all ranks, with their virtual stages.
    """
    return all(
        _count_warmup(operations, stage) - _count_warmup(operations, stage + 1) == 1
        for stage in stages
    )


def _count_warmup(operations: Operations, stage: int) -> float:
    """Return how many forwards a stage runs before its first backward in a typical iteration.

    The result is the median over all ranks' iterations with a backward on the stage, or NaN if
    there are none.
    """
    is_of_stage = (operations.has_span == 1) & (operations.virtual_stage == stage)
    forward = np.flatnonzero(is_of_stage & (operations.phase == Phase.F))
    backward = np.flatnonzero(is_of_stage & mask_phases(operations.phase, (Phase.B, Phase.BW)))
    rows = np.concatenate((forward, backward))
    groups = grouping.group_rows(operations.rank[rows], operations.iteration[rows])
    of_forward, of_backward = np.split(groups.of_row, [len(forward)])
    never_ns = np.iinfo(np.int64).max
    first_ns = np.full(len(groups), never_ns)
    np.minimum.at(first_ns, of_backward, operations.start_ns[backward])
    is_before = operations.start_ns[forward] < first_ns[of_forward]
    n_before = np.bincount(of_forward[is_before], minlength=len(groups))[first_ns < never_ns]
    return float(np.median(n_before)) if len(n_before) else np.nan


def waits_like_earlier_stage(recordings: JoinedRecordings) -> bool:
    """Return whether the last recorded stage waits for its backwards like earlier stages do.

    The true last stage starts a microbatch's backward as soon as its forward is done, or runs other
    work first. A stage that precedes missing stages runs more forwards and then idles until the
    first backward, for as long as the missing stages take::

        last            ├ F0 ┤├ B0 ┤├ F1 ┤├ B1 ┤       with gaps if the host is late
        not the last    ├ F0 ┤├ F1 ┤  idle  ├ B0 ┤├ F2 ┤├ B1 ┤

    The result is True if both of the following conditions hold for the last recorded virtual stage:

    - The shortest median wait of a microbatch is at least ``_AWAY`` times the smallest median work
      (forward and backward).
    - Either its ranks run several forwards before a backward (:func:`runs_ahead_of_backward`), or
      all of its first ``_MAX_RANKS`` ranks idle before backwards
      (:func:`_idles_before_backwards`).

    The result is False if there is only one virtual stage, or if receives were recorded, which show
    missing stages more reliably.

    Args:
        recordings: The recordings, with virtual stages.
    """
    operations, inputs = recordings.operations, recordings.arrivals
    last = int(operations.virtual_stage.max(initial=NONE))
    if last < 1 or inputs.receives.any():
        return False
    rows = np.flatnonzero(operations.virtual_stage == last)
    usual = measure_median_waits(operations.take(rows), inputs.take(rows))
    if not len(usual) or usual.waited_ns.min() < _AWAY * usual.worked_ns.min():
        return False
    if runs_ahead_of_backward(operations, inputs, last):
        return True
    ranks = grouping.find_distinct(usual.rank)[:_MAX_RANKS].tolist()
    return all(_idles_before_backwards(recordings, rank, last) for rank in ranks)


def _idles_before_backwards(recordings: JoinedRecordings, rank: int, stage: int) -> bool:
    """Return whether a rank usually idles before an iteration's first backward on a stage.

    The result is True if all of the following conditions hold:

    - The median idle time before the first backward of an iteration exceeds ``_AWAY`` times the
      median busy time of a backward.
    - In every iteration, the operation before the first backward belongs to a different microbatch.
    - The median idle time before all backwards is at most ``_MAX_IDLE_FRACTION`` times the median
      idle time before first backwards. Otherwise, the host is late.

    A backward that is the rank's first operation is ignored. If there are no other backwards, the
    result is False.

    Args:
        recordings: The recordings, with virtual stages.
        rank: Rank to check.
        stage: Virtual stage of the backwards.
    """
    operations = recordings.operations
    ordered = _sort_by_start(operations, rank)
    is_backward = mask_phases(operations.phase[ordered], (Phase.B, Phase.BW))
    index = np.flatnonzero(is_backward & (operations.virtual_stage[ordered] == stage))
    index = index[index > 0]
    if not len(index):
        return False
    row, previous_row = ordered[index], ordered[index - 1]
    idle_ns = _measure_idle_before(recordings, rank, ordered, index)
    first = grouping.find_first_rows(operations.iteration[row], operations.start_ns[row])
    is_other = operations.microbatch[previous_row[first]] != operations.microbatch[row[first]]
    first_idle_ns, worked_ns = np.median(idle_ns[first]), np.median(operations.busy_ns[row])
    is_host_late = np.median(idle_ns) > _MAX_IDLE_FRACTION * first_idle_ns
    return bool(is_other.all() and not is_host_late and first_idle_ns > _AWAY * worked_ns)


def _sort_by_start(operations: Operations, rank: int) -> Ints:
    """Return the rows of a rank's operations that have a device span, sorted by start."""
    rows = np.flatnonzero((operations.rank == rank) & (operations.has_span == 1))
    return rows[np.argsort(operations.start_ns[rows], kind="stable")]


def _measure_idle_before(
    recordings: JoinedRecordings, rank: int, ordered: Ints, index: Ints
) -> Ints:
    """Measure how long a rank was idle, in ns, before each of several operations.

    The idle time begins when all earlier work has ended: operations, kernels outside operations,
    and exposed collectives that started before the operation. The idle time is negative if earlier
    work ends after the operation starts.

    Args:
        recordings: The recordings of all ranks.
        rank: Rank to measure.
        ordered: Rows of all operations of the rank, sorted by start.
        index: Indices in ``ordered`` of the operations to measure. Must not contain 0.
    """
    operations = recordings.operations
    start_ns = operations.start_ns[ordered[index]]
    idle_from_ns = np.maximum.accumulate(operations.end_ns[ordered])[index - 1]
    for table in (recordings.unattributed, recordings.exposed):
        of_rank = table.take(table.rank == rank)
        n_started = np.searchsorted(of_rank.start_ns, start_ns)
        idle_from_ns = np.maximum(idle_from_ns, np.append(of_rank.end_ns, NONE)[n_started - 1])
    return start_ns - idle_from_ns
