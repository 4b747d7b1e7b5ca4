"""The order of stages, told by each rank's own clock alone.

A microbatch goes down the pipeline and comes back, so on every rank the time from the end of
its F to the start of its B holds all that happens further down, and these times nest strictly::

    virtual stage 0   F├──────────────────────────┤B
    virtual stage 1      F├────────────────────┤B
    virtual stage 2         F├──────────────┤B

One sort of (rank, chunk) by that time gives stages, chunks and the direction of a V. What lies
between two neighbours of one pipeline is at least the F and B of the lower one; copies of a stage
(tensor or data parallel) wait equally long, and share their virtual stage.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from bubbleviz.align.arrivals import arrivals
from bubbleviz.model.columns import NONE, Ints, Table, joined
from bubbleviz.model.grouping import groups_of, places_in
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phases import COUNTED, Phase

_BACKWARD = (Phase.B, Phase.BW)


@dataclass(frozen=True)
class VirtualStages(Table):
    """Which (rank, chunk as named) holds which virtual stage; -1 where it cannot be told."""

    rank: Ints
    chunk: Ints
    virtual_stage: Ints


def forward_and_backward(
    operations: RankOperations, forward: Ints, backward: Ints
) -> tuple[Ints, Ints]:
    """Return (microbatch, chunk) that the rows run forward, then those that they run backward.

    An FB is the forward of its first microbatch and the backward of its second.
    """
    both = operations.phase[backward] == Phase.FB
    microbatch = np.where(
        both, operations.second_microbatch[backward], operations.microbatch[backward]
    )
    chunk = np.where(both, operations.second_chunk[backward], operations.chunk[backward])
    return (
        np.concatenate((operations.microbatch[forward], microbatch)),
        np.concatenate((operations.chunk[forward], chunk)),
    )


@dataclass(frozen=True)
class Waits(Table):
    """How long a microbatch is away from a (rank, chunk).

    Attributes:
        rank: the rank.
        chunk: model chunk, as named.
        microbatch: the microbatch.
        sequence: sequence split; -1 none.
        iteration: the rank's own iteration; -1 where it is a median over these (and splits).
        waited_ns: from the end of its F until its gradient is there, else to the start of its B.
        worked_ns: how long these two keep the rank busy.
    """

    rank: Ints
    chunk: Ints
    microbatch: Ints
    sequence: Ints
    iteration: Ints
    waited_ns: Ints
    worked_ns: Ints


def waits(operations: RankOperations, *, doubtful: bool = False) -> Waits:
    """Return the waits of all first occurrences with a device span.

    Args:
        operations: of all ranks.
        doubtful: whether to take the start of a span for the arrival of its input where a receive
            that may be its own ends later.
    """
    # What a span begins with before its input is there is neither waiting nor work on it. Where a
    # receive that may be its own, or another one's, ends after its start, nothing tells.
    found = arrivals(operations)
    ready_ns = np.maximum(operations.start_ns, found.exact_ns)
    busy_ns = np.clip(operations.end_ns - ready_ns, 0, operations.busy_ns)
    usable = (operations.has_span == 1) & (operations.occurrence == 0)
    usable &= (found.latest_ns <= ready_ns) | doubtful
    # Of an operation that overlaps both, half is one of them.
    busy_ns //= np.where(operations.phase == Phase.FB, 2, 1)
    forward = np.flatnonzero(usable & np.isin(operations.phase, (Phase.F, Phase.FB)))
    backward = np.flatnonzero(usable & np.isin(operations.phase, (*_BACKWARD, Phase.FB)))
    both = np.concatenate((forward, backward))
    microbatch, chunk = forward_and_backward(operations, forward, backward)
    key = np.stack(
        (
            operations.rank[both],
            chunk,
            microbatch,
            operations.sequence[both],
            operations.iteration[both],
        )
    )
    number = groups_of(*key).of_row
    of_forward, of_backward = number[: len(forward)], number[len(forward) :]
    _, at_forward, at_backward = np.intersect1d(of_forward, of_backward, return_indices=True)
    forward, backward = forward[at_forward], backward[at_backward]
    rank, chunk, microbatch, sequence, iteration = key[:, at_forward]
    return Waits(
        rank=rank,
        chunk=chunk,
        microbatch=microbatch,
        sequence=sequence,
        iteration=iteration,
        waited_ns=ready_ns[backward] - operations.end_ns[forward],
        worked_ns=busy_ns[forward] + busy_ns[backward],
    )


def usual_waits(operations: RankOperations, *, doubtful: bool = False) -> Waits:
    """Return the median wait of every microbatch of each (rank, chunk), as :func:`waits` do."""
    found = waits(operations, doubtful=doubtful)
    groups = groups_of(found.rank, found.chunk, found.microbatch)
    none = np.full(len(groups), NONE, np.int64)
    return Waits(
        rank=found.rank[groups.first],
        chunk=found.chunk[groups.first],
        microbatch=found.microbatch[groups.first],
        sequence=none,
        iteration=none.copy(),
        waited_ns=_medians(groups.of_row, found.waited_ns, len(groups)),
        worked_ns=_medians(groups.of_row, found.worked_ns, len(groups)),
    )


def _medians(group: Ints, values: Ints, groups: int) -> Ints:
    """Return the lower median of each group's values."""
    order = np.lexsort((values, group))
    counts = np.bincount(group, minlength=groups)
    first = np.concatenate(([0], np.cumsum(counts)[:-1])).astype(np.int64)
    return values[order][first + (counts - 1) // 2] if len(values) else values


def order_virtual_stages(operations: RankOperations) -> VirtualStages:
    """Return the virtual stage of every (rank, chunk) that ran forward and backward.

    Compared are the microbatches that all of them have. The order is unknown where there are
    none, and where some wait about equally long without being as many copies as all others.
    """
    told = _order(operations, usual_waits(operations))
    if (told.virtual_stage >= 0).all() and len(told.virtual_stage):
        return told
    # Receives that do not say what they receive may leave no wait that is sure. What the others
    # tell is an order if it tells all stages apart.
    guessed = _order(operations, usual_waits(operations, doubtful=True))
    return guessed if len(np.unique(guessed.virtual_stage)) == len(guessed.rank) else told


def _order(operations: RankOperations, found: Waits) -> VirtualStages:
    """Return the virtual stages that these waits give; unknown where they give no order."""
    groups = groups_of(found.rank, found.chunk)
    pair = groups.of_row
    rank, chunk = found.rank[groups.first], found.chunk[groups.first]
    unknown = VirtualStages(rank, chunk, np.full(len(rank), NONE, np.int64))
    numbers, counts = np.unique(found.microbatch, return_counts=True)
    shared = np.isin(found.microbatch, numbers[counts == len(rank)])
    # One that never has a microbatch back could stand anywhere among the others.
    work = np.isin(operations.phase, (Phase.F, *_BACKWARD, Phase.FB)) & (operations.has_span == 1)
    everyone = groups_of(operations.rank[work], operations.chunk[work])
    if not shared.any() or len(everyone) > len(rank):
        return unknown
    waited, worked = np.zeros(len(rank), np.int64), np.zeros(len(rank), np.int64)
    np.add.at(waited, pair[shared], found.waited_ns[shared])
    np.add.at(worked, pair[shared], found.worked_ns[shared])
    order = np.lexsort((chunk, rank, -waited))
    level = _levels(waited[order], worked[order])
    # Copies of a single stage wait for nobody.
    if level[-1] == 0 < len(level) - 1 and waited.max() > worked.max():
        return unknown
    copies = np.bincount(level)
    distinct = len(groups_of(level, rank[order])) == len(rank)
    if not distinct or (copies != copies[0]).any():
        return unknown
    stage = np.empty(len(order), np.int64)
    stage[order] = level
    if copies[0] > 1 and not _run_alike(operations, rank, stage):
        return unknown
    return VirtualStages(rank, chunk, stage)


def _run_alike(operations: RankOperations, rank: Ints, stage: Ints) -> bool:
    """Tell whether ranks that share a stage run the same operations in the same order.

    Copies do; neighbours of a pipeline begin with fewer forwards the further down they are.

    Args:
        operations: of all ranks.
        rank: ranks.
        stage: what those of them share that should run alike.
    """
    counted = np.isin(operations.phase, COUNTED) & (operations.iteration >= 0)
    rows = np.flatnonzero(counted & (operations.occurrence == 0))
    rows = rows[
        np.lexsort(
            (operations.host_start_ns[rows], operations.iteration[rows], operations.rank[rows])
        )
    ]
    what = np.stack((operations.phase, operations.microbatch, operations.chunk), axis=1)[rows]
    groups = groups_of(operations.rank[rows], operations.iteration[rows])
    orders: dict[int, Counter[bytes]] = {}
    for first, own in zip(groups.first, np.split(what, groups.first[1:]), strict=True):
        orders.setdefault(int(operations.rank[rows[first]]), Counter())[own.tobytes()] += 1
    usual = {own: found.most_common(1)[0][0] for own, found in orders.items()}
    alike = {(s, usual[r]) for r, s in zip(rank.tolist(), stage.tolist(), strict=True)}
    return len(alike) == len(np.unique(stage))


def order_by_number(operations: RankOperations, number: Ints) -> VirtualStages | None:
    """Return the same where the ranks' numbers tell which form a pipeline; None if they do not.

    With some number of copies each pipeline (of ranks so far apart) must nest in the order of the
    numbers, all of them alike. That holds where replicas are not equally fast, too.

    Args:
        operations: of all ranks.
        number: of each rank, in Megatron's order: those of one stage follow each other.
    """
    place = places_in(np.argsort(number))
    if len(np.unique(operations.microbatch[np.isin(operations.phase, COUNTED)])) < 2:
        return None  # with one microbatch all ranks run alike
    for copies in range(2, len(number) // 2 + 1):
        if len(number) % copies:
            continue
        found = []
        for pipeline in range(copies):
            own = np.flatnonzero(place % copies == pipeline)
            rows = operations.take(np.isin(operations.rank, own))
            found.append(_order(rows, usual_waits(rows)))
        shapes = {_shape(stages, place // copies) for stages in found}
        if len(shapes) != 1 or not _is_pipeline(found[0], place // copies):
            continue
        every = joined(found)
        if _run_alike(operations, every.rank, place[every.rank] // copies):
            return every
    return None


def _shape(stages: VirtualStages, place: Ints) -> tuple[tuple[int, int, int], ...]:
    """Return which (place in the pipeline, chunk) has which virtual stage, in order."""
    columns = place[stages.rank].tolist(), stages.chunk.tolist(), stages.virtual_stage.tolist()
    return tuple(sorted(zip(*columns, strict=True)))


def _is_pipeline(stages: VirtualStages, place: Ints) -> bool:
    """Tell whether virtual stages are all known and distinct, and first ones in order of places."""
    known = np.unique(stages.virtual_stage)
    order = np.argsort(stages.virtual_stage, kind="stable")
    places = place[stages.rank[order]]
    first = places[np.sort(np.unique(places, return_index=True)[1])]
    return bool(
        len(known) == len(stages.virtual_stage)
        and (known >= 0).all()
        and (np.diff(first) > 0).all()
    )


def _levels(waited: Ints, worked: Ints) -> Ints:
    """Return numbers of those that wait about equally long: less apart than half of what they do.

    Args:
        waited: how long, from the longest to the shortest.
        worked: how long they work meanwhile.
    """
    level = np.zeros(len(waited), np.int64)
    longest = waited[0]
    for place in range(1, len(waited)):
        level[place] = level[place - 1]
        if longest - waited[place] >= worked[place] // 2:
            level[place] += 1
            longest = waited[place]
    return level


def following(upper: Waits, lower: Waits) -> tuple[Ints, Ints]:
    """Return rows of waits, ``chunk`` a virtual stage, and those of the next one that they hold.

    That is, of the same microbatch, sequence split and iteration.
    """
    number = groups_of(
        np.concatenate((upper.chunk + 1, lower.chunk)),
        *(
            np.concatenate((getattr(upper, name), getattr(lower, name)))
            for name in ("iteration", "microbatch", "sequence")
        ),
    ).of_row
    _, i, j = np.intersect1d(number[: len(upper)], number[len(upper) :], return_indices=True)
    return i, j


def slacks(operations: RankOperations, virtual_stage: Ints) -> list[tuple[int, int, int]]:
    """Return (virtual stage, how far the next one is, what one of them works).

    How far, that is how long a microbatch is away from the one and neither away from nor worked
    on by the next, of the microbatch for which it is least: two transfers if nobody is late.
    Copies of a stage are taken together.

    Args:
        operations: of all ranks.
        virtual_stage: of each operation; -1 unknown.
    """
    every = usual_waits(operations.changed(chunk=virtual_stage))
    found = []
    for upper in range(int(virtual_stage.max(initial=0))):
        above, below = every.take(every.chunk == upper), every.take(every.chunk == upper + 1)
        i, j = following(above, below)
        # At the turn of a V one rank holds both, and may do other work in between.
        if len(i) and not np.isin(above.rank, below.rank).any():
            slack = above.waited_ns[i] - below.waited_ns[j] - below.worked_ns[j]
            worked = np.minimum(above.worked_ns[i], below.worked_ns[j])
            found.append((upper, int(slack.min()), int(worked.min())))
    return found


def contradicted(
    operations: RankOperations, virtual_stage: Ints, iteration: Ints, machine: Ints, pipeline: Ints
) -> int:
    """Return how many neighbours in the order of stages cannot be neighbours of a pipeline.

    Two ranks of one machine share a clock, and there a forward cannot end before the one
    upstream has, and its own work on that input is done. A span may begin with kernels that need
    no input, so ends are compared: a pair counts if most of its microbatches end downstream less
    than a quarter of their own work after upstream, as copies of one stage (data or tensor
    parallel) do.

    Args:
        operations: of all ranks on one clock.
        virtual_stage: of each operation; -1 unknown.
        iteration: of each operation over all ranks.
        machine: a number for each rank's clock.
        pipeline: of each rank; -1 where copies cannot be told apart.
    """
    rows = np.flatnonzero(
        (operations.phase == Phase.F)
        & (operations.has_span == 1)
        & (operations.occurrence == 0)
        & (virtual_stage >= 0)
        & (iteration >= 0)
    )
    rows = rows[pipeline[operations.rank[rows]] >= 0]
    if len(rows) == 0:
        return 0
    of_row = operations.rank[rows]
    machine = machine[of_row]
    microbatch = groups_of(
        pipeline[of_row], iteration[rows], operations.microbatch[rows], operations.sequence[rows]
    ).of_row
    place = np.lexsort((virtual_stage[rows], microbatch))
    above, below = place[:-1], place[1:]
    neighbours = (
        (microbatch[above] == microbatch[below])
        & (virtual_stage[rows][below] == virtual_stage[rows][above] + 1)
        & (machine[above] == machine[below])
        & (operations.rank[rows][above] != operations.rank[rows][below])
    )
    above, below = above[neighbours], below[neighbours]
    end_ns, busy_ns = operations.end_ns[rows], operations.busy_ns[rows]
    early = end_ns[below] < end_ns[above] + busy_ns[below] // 4
    stage = virtual_stage[rows][above]
    pairs = np.bincount(stage, minlength=1)
    return int((2 * np.bincount(stage[early], minlength=len(pairs)) > pairs).sum())
