"""Splits: which ranks share a stage where replicas are unequally fast.

A slow rank makes its whole pipeline wait, so one sort of all waits mixes the pipelines. But:

- replicas of a stage run the same operations in the same order, and the same transfers;
- where no two of such ranks can follow each other in a pipeline, they are one stage, and as many
  as there are pipelines;
- over all replicas together, waits shrink from each stage to the next;
- ranks of a stage can be paired with those of the next one so that each follows its partner.

Where ranks of several stages run alike (all forwards, then all backwards), they are split by how
many ranks can stand before and after each, if that leaves only one place, else by their numbers.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from bubbleviz.align.neighbours import Timetable, follows, matching, timetable
from bubbleviz.align.offsets import DRIFT, GRAIN_NS
from bubbleviz.align.rank_chains import lack_many, orders_of, pipelines_of
from bubbleviz.align.stage_order import VirtualStages
from bubbleviz.align.waits import (
    Arrivals,
    Passages,
    Waits,
    following,
    passages,
    waits,
    waits_of_neighbours,
)
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct, distinct_rows, groups_of, places_in, sorted_rows
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COUNTED, TRANSFERS, Phase
from bubbleviz.model.values import frozen

# Replicas: which of those of neighbouring stages pass microbatches to each other.
#
# While a microbatch is away from one stage, the next one waits for it and works on it. So of a pair
# that belongs together the longer time holds the shorter one, of every microbatch, each on its own
# clock; replicas that are not in step reveal those that do not belong together::
#
#     stage 0, first replica     F├──────────────┤B
#     stage 1, first replica         F██├────┤██B       belongs there
#     stage 1, second replica      F██├─────────┤██B    does not fit


#: With more replicas than this, the user has to give the sizes of the run: each is compared with
#: each.
MOST_REPLICAS = 4096
#: A span may end a little after what the next stage waits for was sent: so much of it.
GIVE = 0.25


def matched(
    operations: RankOperations,
    inputs: Arrivals,
    virtual_stage: Ints,
    stage: Ints,
    number: Ints,
    machine: Ints,
) -> Ints:
    """Return the pipeline of each rank, -1 for all where more than one matching is possible.

    Args:
        operations: of all ranks, with iterations that are the same on all of them.
        inputs: when their inputs were there.
        virtual_stage: of each operation; -1 unknown.
        stage: of each rank; -1 for ranks that take no part.
        number: of each rank; pipelines are counted in its order.
        machine: a number for the clock of each rank.
    """
    unknown = np.full(len(stage), NONE, np.int64)
    by_number = np.argsort(number)
    stages = [by_number[stage[by_number] == s] for s in distinct(stage[stage >= 0]).tolist()]
    every = passages(operations, inputs)
    every = every.take((every.iteration >= 0) & (every.chunk >= 0))
    most = max(map(len, stages), default=0)
    if most > MOST_REPLICAS or len(every) == 0 or lack_many([len(own) for own in stages]):
        return unknown
    table = timetable(every, machine)
    held = stages_held(operations, virtual_stage, len(stage), table.chunks)

    def fits(ranks: Ints, others: Ints) -> Bools:
        return neighbours(table, ranks, others, held)

    found = pipelines_of(stages, fits, len(stage))
    return unknown if found is None else found


def stages_held(operations: RankOperations, virtual_stage: Ints, ranks: int, chunks: Ints) -> Ints:
    """Return the virtual stage of each chunk of each rank, shape (ranks, chunks); -1 none."""
    held = np.full((ranks, len(chunks)), NONE, np.int64)
    rows = np.flatnonzero(among(operations.phase, COUNTED) & np.isin(operations.chunk, chunks))
    held[operations.rank[rows], np.searchsorted(chunks, operations.chunk[rows])] = virtual_stage[
        rows
    ]
    return held


def neighbours(table: Timetable, ranks: Ints, others: Ints, held: Ints) -> Bools:
    """Return which ranks of one stage can form a pipeline with which ones of another.

    They are next to each other wherever the virtual stages of these follow each other, in either
    direction, as the second chunks of a V run back. Where ranks between them are missing, none do,
    and microbatches pass from each chunk to the same one of the other rank.

    Args:
        table: when microbatches pass.
        ranks: of one stage, the rows of the answer.
        others: of another one, its columns.
        held: the virtual stage of each chunk of each rank; -1 none.
    """
    fits = np.ones((len(ranks), len(others)), bool)
    pairs = [
        (i, j, stage, other)
        for i, stage in enumerate(held[ranks[0]].tolist())
        for j, other in enumerate(held[others[0]].tolist())
        if min(stage, other) >= 0
    ]
    near = [pair for pair in pairs if abs(pair[2] - pair[3]) == 1]
    for i, j, stage, other in near or [pair for pair in pairs if pair[0] == pair[1]]:
        if stage < other:
            fits &= follows(table, ranks, others, (i, j))[0]
        else:
            fits &= follows(table, others, ranks, (j, i))[0].T
    return fits


def nests(operations: RankOperations, inputs: Arrivals, virtual_stage: Ints) -> bool:
    """Return whether each virtual stage of a single pipeline can be the one before the next.

    Unequally fast replicas that were taken for stages of one pipeline show here: of
    some microbatch the shorter wait is not inside the longer one.

    Args:
        operations: of all ranks, with each rank's own iteration numbers.
        inputs: when their inputs were there.
        virtual_stage: of each operation; -1 unknown.
    """
    every = waits(operations.changed(chunk=virtual_stage), inputs)
    return all(_holds(above, below, give=GIVE) for _, above, below in waits_of_neighbours(every))


def _holds(upper: Waits, lower: Waits, give: float = 0.0) -> bool:
    """Return whether every wait of a virtual stage holds those of the next one on the other rank.

    It may miss by ``give`` of what the other works.
    """
    i, j = following(upper, lower)
    slack = upper.waited_ns[i] - lower.waited_ns[j] - lower.worked_ns[j]
    grain = GRAIN_NS + DRIFT * upper.waited_ns[i] + give * lower.worked_ns[j]
    return bool((slack >= -grain).all())


# Evidence: what shows that ranks are stages of a pipeline, where no name and no user says so.
#
# Waiting times give stages an order. But data-parallel replicas wait for each other, too, and
# unequally where one is late or slow, so that one of them may look like the upstream one of two.
# These run one and the same order; ranks of a pipeline transfer, or run orders of their own, or
# keep
# every one of several microbatches for as long as the next stage has it.


def transfers_or_orders_differ(operations: RankOperations) -> bool:
    """Return whether ranges name a transfer that ran, or no order is common to all ranks.

    Kernels alone show no transfer between stages: all-to-all is sends and receives as well.

    Args:
        operations: of all ranks, with each rank's own iteration numbers.
    """
    if (among(operations.phase, TRANSFERS) & (operations.has_span == 1)).any():
        return True
    orders = orders_of(operations, training=True)
    return len(distinct(orders.rank)) > 1 and not orders.in_common


def microbatches_nest(operations: RankOperations, inputs: Arrivals, virtual_stage: Ints) -> bool:
    """Return whether each of several microbatches is away for as long as the next stage has it.

    Of a single microbatch an iteration that says little: one late replica looks the same.

    Args:
        operations: of all ranks, with each rank's own iteration numbers.
        inputs: when their inputs were there.
        virtual_stage: of each operation; -1 unknown.
    """
    work = among(operations.phase, COUNTED) & (operations.microbatch >= 0)
    several = len(distinct(operations.microbatch[work])) > 1
    return several and nests(operations, inputs, virtual_stage)


#: Of more ranks, not each is compared with each.
_MOST_COMPARED = 512


@frozen
class Split:
    """A split of ranks into stages, and whether their numbers decided between ranks that run alike.

    Attributes:
        stages: which (rank, chunk) holds which virtual stage.
        by_number: see there.
    """

    stages: VirtualStages
    by_number: bool = False


def split(
    operations: RankOperations, inputs: Arrivals, number: Ints, machine: Ints
) -> Split | None:
    """Return the only split into stages and replicas that fits.

    None where there is no such split, where several fit, and for a single pipeline.

    Args:
        operations: of all ranks, with iterations that are the same on all of them.
        inputs: when their inputs were there.
        number: of each rank in the run.
        machine: a number for the clock of each rank.
    """
    work = among(operations.phase, COUNTED)
    several = distinct(operations.microbatch[work & (operations.microbatch >= 0)])
    if len(several) < 2 or not transfers_or_orders_differ(operations):
        return None
    kinds = _kinds(operations, len(machine))
    # Receives that do not name what they receive may leave no passage that is sure.
    for doubtful in (False, True):
        every = passages(operations, inputs, doubtful=doubtful)
        every = every.take((every.iteration >= 0) & (every.chunk >= 0))
        if _covers(operations, every):
            table = timetable(every, machine, give=GIVE)
            found = _split(operations, table, kinds, number)
            if found is not None:
                return found
    return None


def _covers(operations: RankOperations, every: Passages) -> bool:
    """Return whether each (rank, chunk) that works has passages."""
    work = among(operations.phase, COUNTED)
    needed = distinct_rows(operations.rank[work], operations.chunk[work])
    held = distinct_rows(every.rank, every.chunk)
    return np.array_equal(needed, held) and needed.shape[1] > 0


def _kinds(operations: RankOperations, ranks: int) -> Ints:
    """Return a number that ranks share which run alike; -1 for those that do not train.

    Alike are the order of operations, and which transfers they name for which chunks.
    """
    kind = np.full(ranks, NONE, np.int64)
    rows = np.flatnonzero(among(operations.phase, TRANSFERS))
    transfers: dict[int, set[tuple[int, int]]] = {}
    columns = distinct_rows(
        *(c[rows] for c in (operations.rank, operations.phase, operations.chunk))
    )
    for rank, phase, chunk in columns.T.tolist():
        transfers.setdefault(rank, set()).add((phase, chunk))
    numbers: dict[tuple[int, frozenset[tuple[int, int]]], int] = {}
    usual = orders_of(operations, training=True).usual_whatever_came_first()
    for rank, order in zip(*(column.tolist() for column in usual), strict=True):
        alike = order, frozenset(transfers.get(rank, ()))
        kind[rank] = numbers.setdefault(alike, len(numbers))
    return kind


def _split(operations: RankOperations, table: Timetable, kinds: Ints, number: Ints) -> Split | None:
    """Return the split that a timetable gives; None unknown."""
    ranks = np.flatnonzero(table.held.any(axis=(1, 2)))
    sizes = np.bincount(kinds[ranks] + 1)
    if sizes[0] or len(sizes) < 3:
        return None
    replicas = _replicas(table, kinds)
    if replicas < 2 or (sizes[1:] % replicas).any():
        return None
    sharing: Ints | None = kinds
    if (sizes[1:] != replicas).any():
        sharing = _by_places(operations, table, ranks, replicas)
    if sharing is not None:
        stages = _stages(table, ranks, sharing)
        return None if stages is None else Split(stages)
    numbered = _by_numbers(ranks, kinds, number, replicas)
    fitting = [_stages(table, ranks, sharing) for sharing in numbered]
    found = [stages for stages in fitting if stages is not None]
    return Split(found[0], by_number=True) if len(found) == 1 else None


def _replicas(table: Timetable, kinds: Ints) -> int:
    """Return how many pipelines there are; 0 unknown.

    Ranks that run alike hold as many of each stage as there are pipelines. Of a kind none of whose
    ranks can follow another one, there is just one stage.
    """
    found = set()
    for kind in distinct(kinds[kinds >= 0]).tolist():
        alike = np.flatnonzero(kinds == kind)
        if not 2 <= len(alike) <= MOST_REPLICAS:
            continue
        apart = ~np.eye(len(alike), dtype=bool)
        never = np.zeros_like(apart)
        for chunk in range(len(table.chunks)):
            never |= follows(table, alike, alike, (chunk, chunk))[1]
        # A pair of one pipeline follows in every chunk, one way or the other.
        if (never & never.T)[apart].all():
            found.add(len(alike))
    return found.pop() if len(found) == 1 else 0


def _stages(table: Timetable, ranks: Ints, sharing: Ints) -> VirtualStages | None:
    """Return the virtual stages of ranks that share a stage; None where they form no pipelines.

    Args:
        table: when microbatches pass.
        ranks: that take part.
        sharing: a number that ranks of one stage share, equally many each.
    """
    numbers, of_rank = np.unique(sharing[ranks], return_inverse=True)
    members = [ranks[of_rank == stage] for stage in range(len(numbers))]
    # Only what all ranks have of every chunk can be added up.
    common = table.held[ranks].all(axis=(0, 1))
    if not common.any():
        return None
    waited = np.stack([table.waited_ns[own][:, :, common].sum(axis=(0, 2)) for own in members])
    order = sorted_rows(-waited.reshape(-1))
    stage_of = places_in(order).reshape(waited.shape)
    p = len(members)
    blocks = stage_of // p
    if (blocks != blocks[0]).any():
        return None  # each chunk runs through all stages
    held = np.full((len(table.machine), len(table.chunks)), NONE, np.int64)
    held[ranks] = stage_of[of_rank]
    in_order = (order // len(table.chunks)).tolist()
    for upper, lower in pairwise(in_order):
        if upper != lower:
            fits = neighbours(table, members[upper], members[lower], held)
            if matching(fits) is None:
                return None
    chunk = np.tile(table.chunks, len(ranks))
    return VirtualStages(np.repeat(ranks, len(table.chunks)), chunk, held[ranks].reshape(-1))


def _by_places(
    operations: RankOperations, table: Timetable, ranks: Ints, replicas: int
) -> Ints | None:
    """Return the stage of each rank where only one is left to each; else None.

    A rank can stand no further down than ranks can stand above it one after another, and no
    further up than they can below it.
    """
    if len(ranks) > _MOST_COMPARED:
        return None
    first = int(table.waited_ns[ranks].sum(axis=(0, 2)).argmax())
    after = follows(table, ranks, ranks, (first, first))[0]
    after &= _passed_on(operations, ranks, int(table.chunks[first]))
    order = sorted_rows(-table.waited_ns[ranks, first].sum(axis=1))
    after = after[np.ix_(order, order)]
    if np.tril(after).any():
        return None  # not in the order of waits
    above = _longest(after.T)
    below = _longest(after[::-1, ::-1])[::-1]
    stages = len(ranks) // replicas
    if (above + below != stages - 1).any() or (np.bincount(above) != replicas).any():
        return None
    stage = np.full(len(table.machine), NONE, np.int64)
    stage[ranks[order]] = above
    return stage


def _longest(before: Bools) -> Ints:
    """Return how many ranks can stand before each, one after another.

    Args:
        before: whether a rank (row) can follow another (column), which is earlier in the rows.
    """
    length = np.zeros(len(before), np.int64)
    for row in range(1, len(before)):
        earlier = length[:row][before[row, :row]]
        length[row] = earlier.max(initial=-1) + 1
    return length


def _passed_on(operations: RankOperations, ranks: Ints, chunk: int) -> Bools:
    """Return which ranks can pass forwards on to which, by the transfers that they name.

    Where any rank names receives or sends of the chunk, those that do not have none.
    """
    ends = []
    for phase in (Phase.SEND_F, Phase.RECV_F):
        of_chunk = (operations.phase == phase) & (operations.chunk == chunk)
        own = np.isin(ranks, operations.rank[of_chunk])
        ends.append(own if own.any() else np.ones(len(ranks), bool))
    return ends[0][:, None] & ends[1][None, :]


def _by_numbers(ranks: Ints, kinds: Ints, number: Ints, replicas: int) -> list[Ints]:
    """Return the stages by the ranks' numbers, as far as ranks of a stage run alike.

    Frameworks number ranks ``tp + TP (pp + PP dp)``: with TP = 1 pipelines are blocks of ranks,
    with all replicas in TP stages are.
    """
    place = places_in(np.argsort(number[ranks]))
    stages = len(ranks) // replicas
    found = []
    for together in (n for n in range(1, replicas + 1) if replicas % n == 0):
        stage = np.full(len(number), NONE, np.int64)
        stage[ranks] = place // together % stages
        pairs = groups_of(stage[ranks], kinds[ranks])
        if len(pairs) == stages:
            found.append(stage)
    return found
