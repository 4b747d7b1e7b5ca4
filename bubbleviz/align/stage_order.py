"""The order of stages, inferred from each rank's own clock alone.

A microbatch goes down the pipeline and comes back, so on every rank the time from the end of
its F to the start of its B holds all that happens further down, and these times nest strictly::

    virtual stage 0   F├──────────────────────────┤B
    virtual stage 1      F├────────────────────┤B
    virtual stage 2         F├──────────────┤B

One sort of (rank, chunk) by that time gives stages, chunks and the direction of a V. What lies
between two neighbours of one pipeline is at least the F and B of the lower one; replicas of a stage
(tensor or data parallel) wait equally long, and share their virtual stage.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.align.merge import JoinedRecordings
from bubbleviz.align.pipelines import RankNumbers
from bubbleviz.align.rank_chains import lack_many, moved_chunks, orders_of, stages_by_tokens
from bubbleviz.align.waits import Arrivals, Waits, usual_waits
from bubbleviz.interpret.iterations import occurrences
from bubbleviz.model.columns import NONE, Ints, Table, joined
from bubbleviz.model.grouping import (
    distinct,
    distinct_rows,
    groups_of,
    looked_up,
    places_in,
    sorted_rows,
)
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COUNTED, Phase
from bubbleviz.model.values import frozen

# Virtual stages: which chunk of which rank holds each, by names or by the user's order.


@frozen
class VirtualStages(Table):
    """Which (rank, chunk as named) holds which virtual stage; -1 unknown."""

    rank: Ints
    chunk: Ints
    virtual_stage: Ints


def named_stages(joined: JoinedRecordings) -> VirtualStages | None:
    """Return the virtual stages that names give, if they give them for all work."""
    operations, stage = joined.operations, joined.named_stage
    work = among(operations.phase, COUNTED)
    if not work.any() or (stage[work] < 0).any():
        return None
    rows = distinct_rows(operations.rank[work], operations.chunk[work], stage[work])
    return VirtualStages(rows[0], rows[1], rows[2])


def told_stages(joined: JoinedRecordings) -> Ints | None:
    """Return the place in the pipeline of each rank by tables of operations.

    None where some rank that works has none; of one that does not work it is 0.
    """
    told = [None if rank.local.told is None else rank.local.told.stage for rank in joined.ranks]
    stage = np.array([NONE if place is None else place for place in told], np.int64)
    working = distinct(joined.operations.rank[among(joined.operations.phase, COUNTED)])
    if len(working) == 0 or (stage[working] < 0).any():
        return None
    return np.maximum(stage, 0)


def stages_in_order(
    joined: JoinedRecordings, inputs: Arrivals, place: Ints, devices: int
) -> VirtualStages:
    """Return the virtual stages of ranks whose places in the pipeline are given.

    Further chunks run the same way or, in a V, back: there their waiting times shrink the other
    way than the order.

    Args:
        joined: the recordings.
        inputs: when the inputs of operations were there.
        place: of each rank in its pipeline.
        devices: how many places there are.
    """
    work = among(joined.operations.phase, COUNTED)
    pairs = distinct_rows(joined.operations.rank[work], joined.operations.chunk[work])
    waits = usual_waits(joined.operations, inputs)
    stages = np.empty(pairs.shape[1], np.int64)
    for index, name in enumerate(distinct(pairs[1]).tolist()):
        rows = pairs[1] == name
        of_chunk = waits.chunk == name
        at, wait = place[waits.rank[of_chunk]], waits.waited_ns[of_chunk]
        rising = len(at) > 1 and float(((at - at.mean()) * (wait - wait.mean())).sum()) > 0
        back = index > 0 and rising
        along = place[pairs[0, rows]]
        stages[rows] = index * devices + (devices - 1 - along if back else along)
    return VirtualStages(pairs[0], pairs[1], stages)


def first_stages(stages: VirtualStages, count: int) -> Ints:
    """Return the smallest virtual stage of each rank; -1 unknown."""
    big = np.iinfo(np.int64).max
    first = np.full(count, big)
    known = stages.virtual_stage >= 0
    np.minimum.at(first, stages.rank[known], stages.virtual_stage[known])
    return np.where(first == big, NONE, first)


def with_model_chunks(
    operations: RankOperations, stages: VirtualStages, by_name: bool
) -> tuple[RankOperations, Ints]:
    """Return the operations with chunks counted in the model's order, and virtual stages.

    Where names give stages (``by_name``), the chunk columns may hold these.
    """
    known = np.flatnonzero(stages.virtual_stage >= 0)
    known = known[sorted_rows(stages.rank[known], stages.virtual_stage[known])]
    rank, name = stages.rank[known], stages.chunk[known]
    index = occurrences((rank,))
    # Names that count a rank's chunks in the model's order are kept, gaps and all.
    falling = (rank[1:] == rank[:-1]) & (name[1:] <= name[:-1])
    counted = np.isin(rank, rank[1:][falling]) | by_name
    renamed = np.where(counted, index, name)
    pairs = rank, name
    virtual_stage = looked_up(
        pairs, stages.virtual_stage[known], (operations.rank, operations.chunk)
    )
    if np.array_equal(renamed, name):
        return operations, virtual_stage
    chunk = looked_up(pairs, renamed, (operations.rank, operations.chunk))
    second_chunk = looked_up(pairs, renamed, (operations.rank, operations.second_chunk))
    return (
        operations.changed(
            chunk=np.where(chunk >= 0, chunk, operations.chunk),
            second_chunk=np.where(second_chunk >= 0, second_chunk, operations.second_chunk),
        ),
        virtual_stage,
    )


_BACKWARD = (Phase.B, Phase.BW)
#: One of so many pipelines must be whole to show what the others are.
_WHOLE = 4


def order_virtual_stages(operations: RankOperations, inputs: Arrivals) -> VirtualStages:
    """Return the virtual stage of every (rank, chunk) that ran forward and backward.

    Compared are the microbatches that all of them have. The order is unknown where there are
    none, and where some wait about equally long without being as many replicas as all others.

    Args:
        operations: of all ranks.
        inputs: when their inputs were there.
    """
    sure = _order(operations, usual_waits(operations, inputs))
    if (sure.virtual_stage >= 0).all() and len(sure.virtual_stage):
        return sure
    # Receives that do not name what they receive may leave no wait that is sure. The others give
    # an order if it distinguishes all stages.
    guessed = _order(operations, usual_waits(operations, inputs, doubtful=True))
    return guessed if len(distinct(guessed.virtual_stage)) == len(guessed.rank) else sure


def _order(operations: RankOperations, waits: Waits) -> VirtualStages:
    """Return the virtual stages that these waits give; unknown where they give no order."""
    stages = _levelled(waits, len(_working(operations)[0]), lacking=True)
    levels = distinct(stages.virtual_stage)
    replicated = len(levels) < len(stages.virtual_stage) and (levels >= 0).all()
    if replicated and not _run_alike(operations, stages.rank, stages.virtual_stage):
        return replace(stages, virtual_stage=np.full(len(stages.rank), NONE, np.int64))
    return stages


def _working(operations: RankOperations) -> Ints:
    """Return every (rank, chunk) that runs forward or backward, shape (2, pairs)."""
    work = among(operations.phase, (Phase.F, *_BACKWARD, Phase.FB)) & (operations.has_span == 1)
    return distinct_rows(operations.rank[work], operations.chunk[work])


def _levelled(waits: Waits, working: int, *, lacking: bool = False) -> VirtualStages:
    """Return the virtual stages that these waits give, whatever else replicas have in common.

    Args:
        waits: of some ranks.
        working: how many (rank, chunk) of theirs run forward or backward.
        lacking: whether few replicas may be missing.
    """
    groups = groups_of(waits.rank, waits.chunk)
    pair = groups.of_row
    rank, chunk = waits.rank[groups.first], waits.chunk[groups.first]
    unknown = VirtualStages(rank, chunk, np.full(len(rank), NONE, np.int64))
    numbers, counts = np.unique(waits.microbatch, return_counts=True)
    shared = np.isin(waits.microbatch, numbers[counts == len(rank)])
    # One that never has a microbatch back could stand anywhere among the others.
    if not shared.any() or working > len(rank):
        return unknown
    waited, worked = np.zeros(len(rank), np.int64), np.zeros(len(rank), np.int64)
    np.add.at(waited, pair[shared], waits.waited_ns[shared])
    np.add.at(worked, pair[shared], waits.worked_ns[shared])
    order = sorted_rows(-waited, rank, chunk)
    level = _levels(waited[order], worked[order])
    # Replicas of a single stage wait for nobody.
    if level[-1] == 0 < len(level) - 1 and waited.max() > worked.max():
        return unknown
    replicas = np.bincount(level)
    distinct = len(groups_of(level, rank[order])) == len(rank)
    alike = (replicas == replicas[0]).all()
    if not distinct or not (alike or (lacking and not lack_many(replicas.tolist()))):
        return unknown
    stage = np.empty(len(order), np.int64)
    stage[order] = level
    return VirtualStages(rank, chunk, stage)


def _run_alike(operations: RankOperations, rank: Ints, stage: Ints) -> bool:
    """Return whether ranks that share a stage run the same operations in the same order.

    Replicas do; neighbours of a pipeline begin with fewer forwards the further down they are.

    Args:
        operations: of all ranks.
        rank: ranks.
        stage: what those of them share that should run alike.
    """
    ranks, usual = orders_of(operations).usual()
    order = looked_up((ranks,), usual, (rank,))
    return len(groups_of(stage, order)) == len(distinct(stage))


def order_by_number(
    operations: RankOperations, inputs: Arrivals, number: Ints, world: int
) -> VirtualStages | None:
    """Return the virtual stages by the ranks' numbers; None where they show no pipelines.

    With some number of replicas each pipeline (of ranks so far apart) must nest in the order of the
    numbers, all of them alike. That holds where replicas are not equally fast, too. Of a run that
    lacks ranks a quarter of the pipelines must be whole; the others are taken to be alike.

    Args:
        operations: of all ranks.
        inputs: when their inputs were there.
        number: of each rank, in Megatron's order: those of one stage follow each other.
        world: how many ranks the run has, as far as is known.
    """
    if len(distinct(operations.microbatch[among(operations.phase, COUNTED)])) < 2:
        return None  # with one microbatch all ranks run alike
    evidence = operations, usual_waits(operations, inputs), _working(operations)
    found = _by_places(*evidence, places_in(np.argsort(number)), len(number))
    if found is None and len(number) < world and number.max() < world:
        found = _by_places(*evidence, number, world)
    return found


def _by_places(
    operations: RankOperations, waits: Waits, working: Ints, place: Ints, size: int
) -> VirtualStages | None:
    """Return the virtual stages by the places of ranks among ``size``; see :func:`order_by_number`.

    Args:
        operations: of all ranks.
        waits: of these.
        working: every (rank, chunk) of theirs.
        place: of each rank.
        size: how many places there are.
    """
    for replicas in range(2, size // 2 + 1):
        if size % replicas:
            continue
        stages = _alike(waits, working, place, (replicas, size // replicas))
        if stages is not None and _run_alike(
            operations, stages.rank, place[stages.rank] // replicas
        ):
            return stages
    return None


def _alike(
    waits: Waits, working: Ints, place: Ints, shape: tuple[int, int]
) -> VirtualStages | None:
    """Return the virtual stages if all whole pipelines nest alike; None where they do not.

    Args:
        waits: of all ranks.
        working: every (rank, chunk).
        place: of each rank.
        shape: how many pipelines there are, and how many ranks a whole one has.
    """
    replicas, length = shape
    whole = np.bincount(place % replicas, minlength=replicas) == length
    if _WHOLE * np.count_nonzero(whole) < replicas:
        return None
    owner = place[waits.rank] % replicas
    order = sorted_rows(owner)
    bounds = np.searchsorted(owner[order], np.arange(replicas + 1)).tolist()
    pairs = np.bincount(place[working[0]] % replicas, minlength=replicas).tolist()
    found: list[VirtualStages] = []
    for pipeline in np.flatnonzero(whole).tolist():
        rows = np.sort(order[bounds[pipeline] : bounds[pipeline + 1]])
        stages = _levelled(waits.take(rows), pairs[pipeline])
        if not found and not _is_pipeline(stages, place // replicas):
            return None
        if found and _shape(stages, place // replicas) != _shape(found[0], place // replicas):
            return None
        found.append(stages)
    if not whole.all():
        rest = working[:, ~whole[place[working[0]] % replicas]]
        known = (place[found[0].rank] // replicas, found[0].chunk), found[0].virtual_stage
        stage = looked_up(*known, (place[rest[0]] // replicas, rest[1]))
        if (stage < 0).any():
            return None
        found.append(VirtualStages(rest[0], rest[1], stage))
    return joined(found)


def _shape(stages: VirtualStages, place: Ints) -> tuple[tuple[int, int, int], ...]:
    """Return which (place in the pipeline, chunk) has which virtual stage, in order."""
    columns = place[stages.rank].tolist(), stages.chunk.tolist(), stages.virtual_stage.tolist()
    return tuple(sorted(zip(*columns, strict=True)))


def _is_pipeline(stages: VirtualStages, place: Ints) -> bool:
    """Return whether virtual stages are known and distinct, first ones in order of places."""
    known = distinct(stages.virtual_stage)
    order = sorted_rows(stages.virtual_stage)
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


# The order of stages of a run that only goes forward, by what no clock of one machine allows.
#
# Nothing comes back that would show how long a chunk was away. But ranks of one machine share a
# clock, and there a chunk cannot begin on a stage before it ended on the one before::
#
#     virtual stage 0   ██ F0 ██ ██ F1 ██
#     virtual stage 1            ██ F0 ██ ██ F1 ██
#     virtual stage 2                     ██ F0 ██ ██ F1 ██
#
# Replicas of a stage run a chunk at the same time. Where ranks are on several machines, the numbers
# that names give them decide.


#: Two chunks at least, and nearly all of them, show an order.
_FEWEST, _MOST = 2, 0.95
#: An operation may begin with work that needs no input: so much of its busy time.
_EARLY = 4


def forward_order(
    operations: RankOperations, machine: Ints, numbers: RankNumbers, *, counted: bool
) -> VirtualStages:
    """Return the virtual stage of every rank that goes forward; unknown (-1) where nothing shows.

    Only ranks with one model chunk each can be ordered.

    Args:
        operations: of all ranks, with iterations that are the same on all of them.
        machine: a number for the clock of each rank.
        numbers: of the ranks.
        counted: whether chunks are numbered by their order, and by nothing else.
    """
    rows = np.flatnonzero((operations.phase == Phase.F) & (operations.has_span == 1))
    rank, chunk = distinct_rows(operations.rank[rows], operations.chunk[rows])
    unknown = VirtualStages(rank, chunk, np.full(len(rank), NONE, np.int64))
    if len(rank) == 0 or len(distinct(rank)) < len(rank):
        return unknown
    if len(rank) == 1:
        return VirtualStages(rank, chunk, np.zeros(1, np.int64))
    if len(distinct(machine[rank])) > 1:
        if not numbers.named:
            return unknown
        return VirtualStages(rank, chunk, places_in(np.argsort(numbers.number[rank])))
    if counted:
        level = _of_counted(operations, rank, machine, numbers)
    else:
        level = _forward_order_levels(*_times(operations, rows, rank))
    return unknown if level is None else VirtualStages(rank, chunk, level)


def _of_counted(
    operations: RankOperations, rank: Ints, machine: Ints, numbers: RankNumbers
) -> Ints | None:
    """Return the stages of ranks that count their chunks; None where nothing shows them.

    Where the recording began mid-stream, the first chunk of one rank is another one than that of
    another. A pipeline that is seen to fill decides, then tokens, then the numbers of ranks.
    """
    rows = np.flatnonzero((operations.phase == Phase.F) & (operations.has_span == 1))
    start_ns, end_ns, busy_ns = _times(operations, rows, rank)
    level = _forward_order_levels(start_ns, end_ns, busy_ns)
    if level is not None:
        first = np.unique(level, return_index=True)[1]
        waited_ns = start_ns[first[1:], 0] - end_ns[first[:-1], 0]
        if (waited_ns <= busy_ns[first[1:], 0] // _EARLY).all():
            return level
    level = stages_by_tokens(operations, rank, machine)
    if level is None and numbers.named:
        level = places_in(np.argsort(numbers.number[rank]))
    return None if level is None else _checked(operations, rank, level, machine)


def _checked(operations: RankOperations, rank: Ints, level: Ints, machine: Ints) -> Ints | None:
    """Return stages of ranks, if chunks can pass them in that order; None if not."""
    stage = np.full(len(machine), NONE, np.int64)
    stage[rank] = level
    return level if moved_chunks(operations, stage, machine)[1] else None


def _times(operations: RankOperations, rows: Ints, rank: Ints) -> tuple[Ints, Ints, Ints]:
    """Return starts, ends, busy times of the chunks that all ranks ran, shape (ranks, chunks)."""
    first = rows[operations.occurrence[rows] == 0]
    chunks = groups_of(
        operations.iteration[first], operations.microbatch[first], operations.sequence[first]
    )
    place = np.searchsorted(rank, operations.rank[first])
    held = np.full((len(rank), len(chunks)), NONE, np.int64)
    held[place, chunks.of_row] = first
    held = held[:, (held >= 0).all(axis=0)]
    return operations.start_ns[held], operations.end_ns[held], operations.busy_ns[held]


def _forward_order_levels(start_ns: Ints, end_ns: Ints, busy_ns: Ints) -> Ints | None:
    """Return the stage of each rank: one after the other, or side by side; None if neither."""
    chunks = start_ns.shape[1]
    if chunks < _FEWEST:
        return None
    order = sorted_rows(np.median(start_ns + end_ns, axis=1))
    level = np.zeros(len(order), np.int64)
    for above, below in zip(order[:-1].tolist(), order[1:].tolist(), strict=True):
        early_ns = busy_ns[below] // _EARLY
        follows = (start_ns[below] + early_ns >= end_ns[above]).sum()
        beside = (start_ns[below] < end_ns[above] - busy_ns[above] // 2).sum()
        if follows >= _MOST * chunks:
            level[below] = level[above] + 1
        elif beside >= _MOST * chunks:
            level[below] = level[above]
        else:
            return None
    replicas = np.bincount(level)
    alike = bool((replicas == replicas[0]).all())
    return level if alike and len(replicas) > 1 else None
