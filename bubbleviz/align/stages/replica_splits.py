"""Splits: ranks that share a stage, if replicas are not equally fast.

A slow rank makes its whole pipeline wait, so sorting all waits mixes the pipelines. But:

- replicas of a stage run the same operations in the same order, with the same transfers;
- if no two of these ranks can follow each other in a pipeline, they form one stage, and there are
  as many of them as pipelines;
- over all replicas together, waits shrink from each stage to the next;
- ranks of a stage can be paired with ranks of the next stage so that each follows its partner.

If ranks of several stages run alike (all forwards, then all backwards), they are split by their
numbers, provided that this is possible in one way only.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from bubbleviz.align.arrivals import Arrivals
from bubbleviz.align.stages.rank_orders import Orders, orders_of, usual_orders
from bubbleviz.align.stages.replicas import MOST_REPLICAS, select_usable
from bubbleviz.align.stages.stage_order import transfers_or_orders_differ
from bubbleviz.align.stages.timetables import Timetable, follows, neighbours, timetable
from bubbleviz.align.stages.virtual_stages import VirtualStages
from bubbleviz.align.waits import measure_waits
from bubbleviz.model.columns import NONE, Bools, Ints, scatter
from bubbleviz.model.grouping import (
    find_distinct,
    find_distinct_rows,
    group_rows,
    invert_permutation,
    sort_rows,
)
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COUNTED, TRANSFERS

#: A span may begin before its input arrives: with so much of its work.
_GIVE = 0.25


def split(
    operations: Operations, inputs: Arrivals, number: Ints, machine: Ints
) -> tuple[VirtualStages, bool] | None:
    """Return the only split into stages and replicas that fits, and whether by ranks' numbers.

    These decide between ranks that run alike. None where there is no such split, where several
    fit, and for a single pipeline.

    Args:
        operations: of all ranks, with iterations that are the same on all of them.
        inputs: when their inputs were there.
        number: of each rank in the run.
        machine: a number for the clock of each rank.
    """
    work = mask_phases(operations.phase, COUNTED)
    several = find_distinct(operations.microbatch[work & (operations.microbatch >= 0)])
    if len(several) < 2:
        return None
    orders = orders_of(operations)
    if not transfers_or_orders_differ(operations, orders):
        return None
    kinds = _kinds(operations, orders, len(machine))
    needed = find_distinct_rows(operations.rank[work], operations.chunk[work])
    every = select_usable(measure_waits(operations, inputs))
    held = find_distinct_rows(every.rank, every.chunk)
    if not np.array_equal(needed, held) or not needed.shape[1]:
        return None
    return _split(timetable(every, machine, give=_GIVE), kinds, number)


def _kinds(operations: Operations, orders: Orders, ranks: int) -> Ints:
    """Return a number that ranks share which run alike; -1 for those that do not train.

    Alike are the order of operations, and which transfers they name for which chunks.
    """
    kind = np.full(ranks, NONE, np.int64)
    rows = np.flatnonzero(mask_phases(operations.phase, TRANSFERS))
    transfers: dict[int, set[tuple[int, int]]] = {}
    columns = find_distinct_rows(
        *(c[rows] for c in (operations.rank, operations.phase, operations.chunk))
    )
    for rank, phase, chunk in columns.T.tolist():
        transfers.setdefault(rank, set()).add((phase, chunk))
    numbers: dict[tuple[int, frozenset[tuple[int, int]]], int] = {}
    usual = usual_orders(orders, training=True)
    for rank, order in zip(*(column.tolist() for column in usual), strict=True):
        alike = order, frozenset(transfers.get(rank, ()))
        kind[rank] = numbers.setdefault(alike, len(numbers))
    return kind


def _split(table: Timetable, kinds: Ints, number: Ints) -> tuple[VirtualStages, bool] | None:
    """Return the split that a timetable gives; None unknown."""
    ranks = np.flatnonzero(table.held.any(axis=(1, 2)))
    sizes = np.bincount(kinds[ranks] + 1)
    if sizes[0] or len(sizes) < 3:
        return None
    replicas = _replicas(table, kinds)
    if replicas < 2 or (sizes[1:] % replicas).any():
        return None
    if (sizes[1:] == replicas).all():
        stages = _stages(table, ranks, kinds)
        return None if stages is None else (stages, False)
    numbered = _by_numbers(ranks, kinds, number, replicas)
    fitting = [_stages(table, ranks, sharing) for sharing in numbered]
    found = [stages for stages in fitting if stages is not None]
    return (found[0], True) if len(found) == 1 else None


def _replicas(table: Timetable, kinds: Ints) -> int:
    """Return how many pipelines there are; 0 unknown.

    Ranks that run alike hold as many of each stage as there are pipelines. Of a kind none of whose
    ranks can follow another one, there is just one stage.
    """
    found = set()
    for kind in find_distinct(kinds[kinds >= 0]).tolist():
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
    order = sort_rows(-waited.reshape(-1))
    stage_of = invert_permutation(order).reshape(waited.shape)
    p = len(members)
    blocks = stage_of // p
    if (blocks != blocks[0]).any():
        return None  # each chunk runs through all stages
    held = scatter((len(table.machine), len(table.chunks)), ranks, stage_of[of_rank])
    in_order = (order // len(table.chunks)).tolist()
    for upper, lower in pairwise(in_order):
        if upper == lower:
            continue
        if not _pair_up(neighbours(table, members[upper], members[lower], held)):
            return None
    chunk = np.tile(table.chunks, len(ranks))
    return VirtualStages(np.repeat(ranks, len(table.chunks)), chunk, held[ranks].reshape(-1))


def _by_numbers(ranks: Ints, kinds: Ints, number: Ints, replicas: int) -> list[Ints]:
    """Return the stages by the ranks' numbers, as far as ranks of a stage run alike.

    Frameworks number ranks ``tp + TP (pp + PP dp)``: with TP = 1 pipelines are blocks of ranks,
    with all replicas in TP stages are.
    """
    place = invert_permutation(np.argsort(number[ranks]))
    stages = len(ranks) // replicas
    found = []
    for together in (n for n in range(1, replicas + 1) if replicas % n == 0):
        stage = scatter(len(number), ranks, place // together % stages)
        pairs = group_rows(stage[ranks], kinds[ranks])
        if len(pairs) == stages:
            found.append(stage)
    return found


def _pair_up(fits: Bools) -> bool:
    """Tell whether each row can have a column of its own, of as many, that fits it."""
    # Mostly those in the order of ranks do, and scipy takes 0.1 s to import.
    if fits.diagonal().all():
        return True
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    return bool((maximum_bipartite_matching(csr_array(fits)) >= 0).all())
