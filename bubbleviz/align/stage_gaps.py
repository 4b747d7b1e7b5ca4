"""Stage gaps: stages that no profile holds, between two stages of which profiles exist.

Range names and transfers may not mention them. What shows them is the time that a microbatch is
away: neither on the stage before the gap nor on the stage after it, nor in transfer::

    stage 0   F0                          B0
    stage 1      └ F0 (no profile)    B0 ┘
    stage 2           F0           B0

Rank numbers show them too: ranks 0 and 3 may be two stages of which ranks 1 and 2 are replicas, or
the first and last of four stages.

So does the order of operations. While a microbatch is away, its rank runs further forwards, in most
schedules at most one for each stage that the microbatch passes meanwhile. A rank that runs more of
them waits for stages that no profile holds::

    last stage of all       F0 B0 F1 B1 ..
    last stage of a part    F0 F1 F2 B0 F3 B1 ..
    V, last rank of all     F0 f0 F1 f1 ..          f: forwards of the second chunk
    V, last rank of a part  F0 F1 F2 f0 F3 f1 ..

Schedules that run all forwards of a chunk first, as GPipe does, show nothing in this way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.align.offsets import GRAIN_NS
from bubbleviz.align.waits import Arrivals, Waits, held_waits, usual_waits, waits
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import Phase

#: Part of the work of the lighter of two stages that another stage between them takes at least.
_OF_ANOTHER_STAGE = 0.75
#: The same where transfers are not recorded, and count as time between the stages.
_OF_STAGE_AND_TRANSFERS = 1.0
#: So many ranks of a stage are looked at; others run alike.
_LOOKED_AT = 16
#: Columns that tell the iterations of all ranks apart.
_ITERATION = ("rank", "iteration")


def stages_before_gaps(
    operations: RankOperations,
    inputs: Arrivals,
    virtual_stage: Ints,
    machine: Ints,
    iteration: Ints | None,
) -> tuple[int, ...]:
    """Return the virtual stages after which microbatches are away long enough for another stage.

    Compared is the time that a microbatch is away from one stage and neither away from nor worked
    on by the next, nor in a recorded transfer, of the microbatch for which it is least: none if
    transfers are recorded and nobody is late, and two transfers if they are not. Replicas of a
    stage are taken together. Where the next stage is a later chunk of ranks that hold an earlier
    one, microbatches may wait until these have run their other chunks. Such places show something
    only if these ranks run more forwards meanwhile than there are stages.

    Args:
        operations: Operations of all ranks, with the iteration numbers of each rank.
        inputs: When their inputs were there.
        virtual_stage: Virtual stage of each operation, or -1 if unknown.
        machine: Machine of each rank. Ranks of one machine share its clock.
        iteration: Iteration of each operation, the same for all ranks, or None if unknown.
    """
    staged = operations.changed(chunk=virtual_stage)
    is_sent = _is_sent(staged, inputs)
    sending = grouping.distinct(virtual_stage[is_sent])
    every = usual_waits(staged, inputs)
    until_sent = _until_sent(staged, inputs, is_sent)
    sent = usual_waits(until_sent, inputs)
    upper, lower = held_waits(every)
    slack_ns = sent.waited_ns[upper] - sent.waited_ns[lower] - sent.worked_ns[lower]
    worked_ns = np.minimum(every.worked_ns[upper], every.worked_ns[lower])
    far = []
    for stage in grouping.distinct(every.chunk[upper]).tolist():
        own = every.chunk[upper] == stage
        part = _OF_ANOTHER_STAGE if stage in sending else _OF_STAGE_AND_TRANSFERS
        if slack_ns[own].min() <= part * worked_ns[own].min():
            continue
        if iteration is not None and not _are_both_ways_long(
            until_sent.changed(iteration=iteration), inputs, stage, machine
        ):
            continue
        next_ranks = every.rank[every.chunk == stage + 1]
        loops = np.isin(next_ranks, every.rank[every.chunk <= stage]).any()
        if not loops or runs_ahead_of_chunk(operations, inputs, virtual_stage, stage + 1):
            far.append(stage)
    return tuple(far)


def _are_both_ways_long(
    operations: RankOperations, inputs: Arrivals, stage: int, machine: Ints
) -> bool:
    """Return whether the ways from a stage to the next and back leave time for another stage.

    The way there must be long enough for a forward, and the way back for a backward. A busy rank
    lets microbatches wait that have arrived, so the fastest one of an iteration counts on each way.

    The answer is yes where this is unknown: if the two stages have different clocks, or one clock
    by mistake, so that results arrive before they are sent, and if a stage has several replicas, as
    a microbatch may come from any of them.

    Args:
        operations: Operations of all ranks, each until its result is sent. Chunks are virtual
            stages, and iterations are the same for all ranks.
        inputs: When their inputs were there.
        stage: Virtual stage.
        machine: Machine of each rank.
    """
    rows = np.flatnonzero(np.isin(operations.chunk, (stage, stage + 1)))
    rows = rows[operations.iteration[rows] >= 0]
    every = waits(operations.take(rows), inputs.take(rows))
    upper, lower = held_waits(every)
    is_replicated = len(grouping.distinct_rows(every.chunk, every.rank).T) > 2
    if is_replicated or not len(upper):
        return True
    sent, received = every.take(upper), every.take(lower)
    if machine[sent.rank[0]] != machine[received.rank[0]]:
        return True
    there_ns = _fastest(sent.iteration, received.left_ns - received.forward_ns - sent.left_ns)
    back_ns = _fastest(sent.iteration, sent.left_ns + sent.waited_ns - _returned_ns(received))
    if min(there_ns, back_ns) < -GRAIN_NS:
        return True
    forward_ns = min(sent.forward_ns.min(), received.forward_ns.min())
    backward_ns = min(_backward_ns(sent).min(), _backward_ns(received).min())
    is_there_long = there_ns > _OF_ANOTHER_STAGE * forward_ns
    return bool(is_there_long and back_ns > _OF_ANOTHER_STAGE * backward_ns)


def _backward_ns(every: Waits) -> Ints:
    """Return how long the backwards of microbatches keep their rank busy."""
    return every.worked_ns - every.forward_ns


def _returned_ns(every: Waits) -> Ints:
    """Return when the backwards of microbatches end on their stage."""
    return every.left_ns + every.waited_ns + _backward_ns(every)


def _fastest(iteration: Ints, way_ns: Ints) -> float:
    """Return how long the fastest microbatch of an iteration usually takes on its way."""
    groups = grouping.groups_of(iteration)
    fastest_ns, _ = group_extents(groups.of_row, len(groups), way_ns, way_ns)
    return float(np.median(fastest_ns))


def _is_sent(operations: RankOperations, inputs: Arrivals) -> Bools:
    """Return for each operation whether the send of its result is recorded."""
    has_span = np.append(operations.has_span, 0) == 1
    return np.asarray((inputs.send >= 0) & has_span[inputs.send], np.bool_)


def _until_sent(operations: RankOperations, inputs: Arrivals, is_sent: Bools) -> RankOperations:
    """Return the operations, with each taken to last until its result is sent."""
    sent_ns = operations.end_ns.copy()
    sent_ns[is_sent] = operations.end_ns[inputs.send[is_sent]]
    sending_ns = np.maximum(sent_ns - operations.end_ns, 0)
    return operations.changed(
        end_ns=operations.end_ns + sending_ns, busy_ns=operations.busy_ns + sending_ns
    )


def gap_note(stages: Sequence[int]) -> Limitation:
    """Return the limitation for stages that may be missing after some virtual stages."""
    pairs = ", ".join(f"{stage} and {stage + 1}" for stage in stages)
    reason = (
        f"between virtual stages {pairs} every microbatch takes longer than one more F and B "
        "would; if the profiles of a server are missing, ratios and stages leave it out"
    )
    kind = LimitationKind.STAGES_MAY_BE_MISSING
    return Limitation("stages that may be missing", reason, len(stages), kind)


def numbered_gaps(
    stages: Sequence[int], operations: RankOperations, virtual_stage: Ints, number: Ints
) -> tuple[tuple[int, int], ...]:
    """Return the rank numbers next to gaps that rank numbers confirm.

    They do if numbers lie between those of the ranks of the two stages.

    Args:
        stages: Virtual stages before a gap, by time.
        operations: Operations of all ranks.
        virtual_stage: Virtual stage of each operation, or -1 if unknown.
        number: Rank number of each rank.

    Returns:
        For each confirmed gap the largest number before it and the smallest number after it.
    """
    known = np.flatnonzero(virtual_stage >= 0)
    owner = number[operations.rank[known]]
    count = int(virtual_stage.max(initial=-1)) + 1
    first, last = group_extents(virtual_stage[known], count, owner, owner)
    pairs = [(int(last[stage]), int(first[stage + 1])) for stage in stages]
    return tuple((before, behind) for before, behind in pairs if behind - before > 1)


def numbered_gap_note(gaps: Sequence[tuple[int, int]]) -> Limitation:
    """Return the limitation for stages that are missing between ranks of some numbers."""
    pairs = ", ".join(f"{before} and {behind}" for before, behind in gaps)
    reason = (
        f"between ranks {pairs} every microbatch takes longer than one more F and B would, and no "
        "profile holds the ranks between them; ratios are incomplete"
    )
    return Limitation("stages without a profile", reason, len(gaps))


def first_number_note(number: Ints, stage_of_rank: Ints) -> Limitation | None:
    """Return the limitation for earlier stages that rank numbers suggest, or None.

    Frameworks number the ranks of a stage after those of the stage before. If the ranks of stage 0
    have numbers that a later stage would have, earlier stages may be missing. A framework that
    numbers the stages of a pipeline first may have numbered another pipeline before.

    Args:
        number: Rank number of each rank, as its profile names it.
        stage_of_rank: First virtual stage of each rank, or -1 if unknown.
    """
    known = stage_of_rank >= 0
    n_stages = int(stage_of_rank.max(initial=-1)) + 1
    if n_stages < 2:
        return None
    first, _ = group_extents(stage_of_rank[known], n_stages, number[known], number[known])
    steps = np.diff(first)
    if steps.min() < 1 or steps.min() != steps.max() or first[0] < steps[0]:
        return None
    reason = (
        f"the ranks of the first stage are numbered from {int(first[0])}, so earlier ranks hold "
        "earlier stages, or another pipeline; if they hold stages, ratios and stages leave them "
        "out; --parallel tells the sizes of the run"
    )
    kind = LimitationKind.STAGES_MAY_BE_MISSING
    return Limitation("stages that may be missing", reason, int(first[0] // steps[0]), kind)


def turns(operations: RankOperations, virtual_stage: Ints) -> frozenset[int]:
    """Return the virtual stages of which the next one is on the same rank, as on the last of a V.

    Args:
        operations: Operations of all ranks.
        virtual_stage: Virtual stage of each operation, or -1 if unknown.
    """
    is_known = virtual_stage >= 0
    rank, stage = grouping.distinct_rows(operations.rank, virtual_stage, chosen=is_known)
    is_followed = (rank[1:] == rank[:-1]) & (stage[1:] == stage[:-1] + 1)
    return frozenset(stage[:-1][is_followed].tolist())


def runs_ahead_of_chunk(
    operations: RankOperations, inputs: Arrivals, virtual_stage: Ints, stage: int
) -> bool:
    """Return whether ranks run more forwards of a chunk before those of the next than usual.

    Usual is one for each stage from the one chunk to the other.

    Args:
        operations: Operations of all ranks.
        inputs: When their inputs were there.
        virtual_stage: Virtual stage of each operation, or -1 if unknown.
        stage: Virtual stage of the later chunk.
    """
    held = _waits_of_ranks(operations, inputs, virtual_stage, stage)
    before = int(held.chunk[held.chunk < stage].max(initial=NONE))
    if before < 0:
        return False
    forward, later = held.take(held.chunk == before), held.take(held.chunk == stage)
    return _runs_ahead(forward, later, later.left_ns, stage - before)


def runs_ahead_of_backward(
    operations: RankOperations, inputs: Arrivals, virtual_stage: Ints, stage: int
) -> bool:
    """Return whether ranks of the last stage run further forwards before the first backward.

    Args:
        operations: Operations of all ranks.
        inputs: When their inputs were there.
        virtual_stage: Virtual stage of each operation, or -1 if unknown.
        stage: The last virtual stage.
    """
    held = _waits_of_ranks(operations, inputs, virtual_stage, stage)
    forward = held.take(held.chunk == stage)
    return _runs_ahead(forward, forward, forward.left_ns + forward.waited_ns, 1)


def _waits_of_ranks(
    operations: RankOperations, inputs: Arrivals, virtual_stage: Ints, stage: int
) -> Waits:
    """Return the waits of the first ranks that hold a stage, by virtual stage."""
    ranks = grouping.distinct(operations.rank[virtual_stage == stage])[:_LOOKED_AT]
    rows = np.flatnonzero(np.isin(operations.rank, ranks))
    staged = operations.changed(chunk=virtual_stage)
    return waits(staged.take(rows), inputs.take(rows))


def _runs_ahead(forward: Waits, later: Waits, begun_ns: Ints, usual: int) -> bool:
    """Return whether ranks run more forwards than usual before what follows, and not all of them.

    Args:
        forward: Waits after the forwards.
        later: Waits of what follows.
        begun_ns: When what follows has begun, for each of these.
        usual: How many forwards are usual.
    """
    keys = tuple(np.concatenate((getattr(forward, k), getattr(later, k))) for k in _ITERATION)
    groups = grouping.groups_of(*keys)
    group, count = groups.of_row[: len(forward)], len(groups)
    first_ns, _ = group_extents(groups.of_row[len(forward) :], count, begun_ns, begun_ns)
    is_before = forward.left_ns <= first_ns[group]
    ahead = _microbatches(forward, group, is_before, count)
    total = _microbatches(forward, group, np.ones(len(forward), np.bool_), count)
    is_ahead = (ahead > usual) & (ahead < total)
    return bool(2 * is_ahead.sum() > (total > 0).sum())


def _microbatches(forward: Waits, group: Ints, chosen: Bools, count: int) -> Ints:
    """Return how many different microbatches each group has among the chosen waits."""
    pairs = grouping.distinct_rows(group, forward.microbatch, chosen=chosen)
    return np.bincount(pairs[0], minlength=count)


def adjoin_by_order(stages: Sequence[int], operations: RankOperations, virtual_stage: Ints) -> bool:
    """Return whether the orders of operations show that no stage is missing after any of these.

    Each stage of 1F1B runs one more forward than the next one before its first backward. In orders
    that run all forwards first, or as many as memory holds, the stages of a longer pipeline look
    like those of a shorter one.

    Args:
        stages: Virtual stages.
        operations: Operations of all ranks.
        virtual_stage: Virtual stage of each operation, or -1 if unknown.
    """
    counts = {
        stage: _warmup(operations, virtual_stage, stage) for s in stages for stage in (s, s + 1)
    }
    return all(counts[stage] - counts[stage + 1] == 1 for stage in stages)


def _warmup(operations: RankOperations, virtual_stage: Ints, stage: int) -> float:
    """Return how many forwards of a stage usually run before its first backward in an iteration."""
    spanned = (operations.has_span == 1) & (virtual_stage == stage)
    forward = np.flatnonzero(spanned & (operations.phase == Phase.F))
    backward = np.flatnonzero(spanned & among(operations.phase, (Phase.B, Phase.BW)))
    rows = np.concatenate((forward, backward))
    groups = grouping.groups_of(operations.rank[rows], operations.iteration[rows]).of_row
    count = int(groups.max(initial=-1)) + 1
    never = np.iinfo(np.int64).max
    first_ns = np.full(count, never)
    np.minimum.at(first_ns, groups[len(forward) :], operations.start_ns[backward])
    of_forward = groups[: len(forward)]
    before = operations.start_ns[forward] < first_ns[of_forward]
    counts = np.bincount(of_forward[before], minlength=count)[first_ns < never]
    return float(np.median(counts)) if len(counts) else np.nan
