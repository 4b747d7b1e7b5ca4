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

from collections.abc import Sequence

import numpy as np

from bubbleviz.align.offsets import DRIFT, GRAIN_NS
from bubbleviz.align.pipelines import VirtualStages
from bubbleviz.align.waits import Arrivals, held_waits, usual_waits, waits
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Bools, Codes, Ints
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import BACKWARD, COUNTED, TRANSFERS, Phase

#: Of all ranks at most one of so many may be missing. More than half of each stage must be there:
#: of a stage that times divide in two, one part has half of it or less.
_OF_ALL = 8
#: Stages of so many ranks are replicas if none lacks more than one of so many.
_LARGE, _CLOSE = 64, 8
#: A span may end a little after what the next stage waits for was sent: so much of it.
_GIVE = 0.25


def order_virtual_stages(operations: Operations, inputs: Arrivals) -> VirtualStages:
    """Return the virtual stage of every (rank, chunk) that ran forward and backward.

    Compared are the microbatches that all of them have. The order is unknown where there are
    none, and where some wait about equally long without being as many replicas as all others.
    Whether those that share a stage run alike is not looked at.

    Args:
        operations: of all ranks.
        inputs: when their inputs were there.
    """
    usual = usual_waits(operations, inputs)
    groups = grouping.groups_of(usual.rank, usual.chunk)
    pair = groups.of_row
    rank, chunk = usual.rank[groups.first], usual.chunk[groups.first]
    unknown = VirtualStages(rank, chunk, np.full(len(rank), NONE, np.int64))
    numbers, counts = np.unique(usual.microbatch, return_counts=True)
    shared = np.isin(usual.microbatch, numbers[counts == len(rank)])
    # One that never has a microbatch back could stand anywhere among the others.
    if not shared.any() or _working(operations) > len(rank):
        return unknown
    waited = group_sum(pair[shared], len(rank), usual.waited_ns[shared])
    worked = group_sum(pair[shared], len(rank), usual.worked_ns[shared])
    order = grouping.sorted_rows(-waited, rank, chunk)
    level = _levels(waited[order], worked[order])
    # Replicas of a single stage wait for nobody.
    if level[-1] == 0 < len(level) - 1 and waited.max() > worked.max():
        return unknown
    single = len(grouping.groups_of(level, rank[order])) == len(rank)
    if not single or lack_many(np.bincount(level).tolist()):
        return unknown
    stage = np.empty(len(order), np.int64)
    stage[order] = level
    return VirtualStages(rank, chunk, stage)


def _working(operations: Operations) -> int:
    """Return how many (rank, chunk) run forward or backward."""
    phases = (Phase.F, Phase.B, Phase.BW, Phase.FB)
    work = among(operations.phase, phases) & (operations.has_span == 1)
    return len(grouping.distinct_rows(operations.rank, operations.chunk, chosen=work).T)


def run_alike(orders: Orders, rank: Ints, stage: Ints) -> bool:
    """Return whether ranks that share a stage run the same operations in the same order.

    Replicas do; neighbours of a pipeline begin with fewer forwards the further down they are.

    Args:
        orders: of all ranks.
        rank: ranks.
        stage: what those of them share that should run alike.
    """
    ranks, usual = usual_orders(orders)
    order = grouping.looked_up((ranks,), usual, (rank,))
    return len(grouping.groups_of(stage, order)) == len(grouping.distinct(stage))


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


def lack_many(sizes: Sequence[int]) -> bool:
    """Return whether stages hold too different numbers of ranks to be replicas of which few lack.

    As many are there of at least half of the stages, of two at least, and more of none. Of large
    stages most may lack some, where all are nearly as large.

    Args:
        sizes: how many ranks each stage has.
    """
    most = max(sizes, default=0)
    whole = sum(size == most for size in sizes)
    if whole == len(sizes) > 0:
        return False
    lacking = most * len(sizes) - sum(sizes)
    few = lacking * _OF_ALL <= most * len(sizes) and 2 * min(sizes, default=0) > most
    usual = 2 * whole >= len(sizes) and whole > 1
    close = most >= _LARGE and (most - min(sizes, default=0)) * _CLOSE <= most
    return not (few and (usual or close))


# Orders: in which order each rank runs the operations of its iterations, by its host.

#: Each rank and an order that it ran, numbered over all ranks, in how many iterations, and whether
#: it goes forward and comes back.
Orders = tuple[Ints, Ints, Ints, Bools]


def orders_of(operations: Operations) -> Orders:
    """Return how often each rank ran which order.

    Args:
        operations: of all ranks, with each rank's own iteration numbers.
    """
    kinds = grouping.groups_of(operations.phase, operations.microbatch, operations.chunk)
    # In as few bytes as they need, since whole orders are compared.
    codes = kinds.of_row.astype(np.min_scalar_type(len(kinds)))
    numbers: grouping.Numbering[bytes] = grouping.Numbering()
    parts = [
        _orders_in(operations.take(rows), codes[rows], numbers)
        for rows in grouping.stretches(operations.rank)
    ]
    rank, order, often = (np.concatenate(column) for column in zip(*parts, strict=True))
    held = [operations.phase[kinds.first[np.frombuffer(o, codes.dtype)]] for o in numbers.values]
    ways = (Phase.F, Phase.FB), (*BACKWARD, Phase.FB)
    trains = np.array([all(among(phase, way).any() for way in ways) for phase in held], bool)
    # Of several numbers that of a longer order is larger.
    longer = np.argsort(np.array([*map(len, held)], np.int64), kind="stable")
    trains, order = trains[order], grouping.places_in(longer)[order]
    rows = grouping.sorted_rows(rank, order)
    return rank[rows], order[rows], often[rows], trains[rows]


def _orders_in(
    operations: Operations, codes: Codes, numbers: grouping.Numbering[bytes]
) -> tuple[Ints, Ints, Ints]:
    """Return how often each rank of a stretch ran which order.

    Args:
        operations: of the ranks.
        codes: a number for the phase, microbatch and chunk of each.
        numbers: of the orders of all ranks so far.
    """
    counted = among(operations.phase, COUNTED) & (operations.iteration >= 0)
    rows = np.flatnonzero(counted & (operations.occurrence == 0))
    keys = operations.rank[rows], operations.iteration[rows]
    rows = rows[grouping.sorted_rows(*keys, operations.host_start_ns[rows])]
    rank = operations.rank[rows]
    first = grouping.heads(rank, operations.iteration[rows])
    lengths = np.diff(first, append=len(rows))
    order = np.empty(len(lengths), np.int64)
    for length in grouping.distinct(lengths).tolist():
        own = np.flatnonzero(lengths == length)
        data = codes[rows[first[own][:, None] + np.arange(length)]].tobytes()
        size = length * codes.itemsize
        order[own] = numbers.numbers([data[at : at + size] for at in range(0, len(data), size)])
    ran = grouping.groups_of(rank[first], order)
    often = np.bincount(ran.of_row, minlength=len(ran))
    return rank[first][ran.first], order[ran.first], often


def usual_orders(orders: Orders, *, training: bool = False) -> tuple[Ints, Ints]:
    """Return ranks, ascending, and the most frequent order of each; of several the longest.

    Args:
        orders: of ranks.
        training: whether to leave out those that do not both go forward and come back.
    """
    rank, order, often = (column[orders[3] | (not training)] for column in orders[:3])
    rows = grouping.first_of_each(rank, -often, -order)
    return rank[rows], order[rows]


# Evidence: what shows that ranks are stages of a pipeline, where no name and no user says so.
#
# Waiting times give stages an order. But data-parallel replicas wait for each other, too, and
# unequally where one is late or slow, so that one of them may look like the upstream one of two.
# These run one and the same order; ranks of a pipeline transfer, or run orders of their own, or
# keep every one of several microbatches for as long as the next stage has it.


def transfers_or_orders_differ(operations: Operations, orders: Orders) -> bool:
    """Return whether ranges name a transfer that ran, or no order is common to all ranks.

    Kernels alone show no transfer between stages: all-to-all is sends and receives as well.

    Args:
        operations: of all ranks.
        orders: of these.
    """
    if (among(operations.phase, TRANSFERS) & (operations.has_span == 1)).any():
        return True
    rank, order, _, trains = orders
    ranks = len(grouping.distinct(rank[trains]))
    return ranks > 1 and bool(np.bincount(order[trains]).max() < ranks)


def nests(operations: Operations, inputs: Arrivals) -> bool:
    """Return whether each virtual stage of a pipeline can be the one before the next.

    Unequally fast replicas that were taken for stages of one pipeline show here: of
    some microbatch the shorter wait is not inside the longer one.

    Args:
        operations: Operations of all ranks with their virtual stages, and with iterations
            numbered per rank.
        inputs: Times at which the inputs of operations were available.
    """
    every = waits(operations.changed(chunk=operations.virtual_stage), inputs)
    upper, lower = held_waits(every)
    worked_ns = every.worked_ns[lower]
    slack_ns = every.waited_ns[upper] - every.waited_ns[lower] - worked_ns
    grain_ns = GRAIN_NS + DRIFT * every.waited_ns[upper] + _GIVE * worked_ns
    return len(upper) > 0 and bool((slack_ns >= -grain_ns).all())
