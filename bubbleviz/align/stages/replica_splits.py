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
from bubbleviz.align.stages.rank_orders import Orders, find_orders, find_usual_orders
from bubbleviz.align.stages.replicas import MAX_REPLICAS, select_usable
from bubbleviz.align.stages.stage_order import transfers_or_orders_differ
from bubbleviz.align.stages.timetables import Timetable, build_timetable, match_ranks, match_stages
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
_MAX_EARLY_FRACTION = 0.25


def find_division(
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
    microbatches = find_distinct(operations.microbatch[work & (operations.microbatch >= 0)])
    if len(microbatches) < 2:
        return None
    orders = find_orders(operations)
    if not transfers_or_orders_differ(operations, orders):
        return None
    kinds = _group_by_timetable(operations, orders, len(machine))
    needed = find_distinct_rows(operations.rank[work], operations.chunk[work])
    waits = select_usable(measure_waits(operations, inputs))
    present = find_distinct_rows(waits.rank, waits.chunk)
    if not np.array_equal(needed, present) or not needed.shape[1]:
        return None
    return _divide_ranks(
        build_timetable(waits, machine, early_fraction=_MAX_EARLY_FRACTION), kinds, number
    )


def _group_by_timetable(operations: Operations, orders: Orders, ranks: int) -> Ints:
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
    usual = find_usual_orders(orders, training=True)
    for rank, order in zip(*(column.tolist() for column in usual), strict=True):
        key = order, frozenset(transfers.get(rank, ()))
        kind[rank] = numbers.setdefault(key, len(numbers))
    return kind


def _divide_ranks(table: Timetable, kinds: Ints, number: Ints) -> tuple[VirtualStages, bool] | None:
    """Return the split that a timetable gives; None unknown."""
    ranks = np.flatnonzero(table.held.any(axis=(1, 2)))
    sizes = np.bincount(kinds[ranks] + 1)
    if sizes[0] or len(sizes) < 3:
        return None
    replicas = _count_replicas(table, kinds)
    if replicas < 2 or (sizes[1:] % replicas).any():
        return None
    if (sizes[1:] == replicas).all():
        stages = _order_groups(table, ranks, kinds)
        return None if stages is None else (stages, False)
    groupings = _group_by_number(ranks, kinds, number, replicas)
    candidates = [_order_groups(table, ranks, sharing) for sharing in groupings]
    divisions = [stages for stages in candidates if stages is not None]
    return (divisions[0], True) if len(divisions) == 1 else None


def _count_replicas(table: Timetable, kinds: Ints) -> int:
    """Return how many pipelines there are; 0 unknown.

    Ranks that run alike hold as many of each stage as there are pipelines. Of a kind none of whose
    ranks can follow another one, there is just one stage.
    """
    counts = set()
    for kind in find_distinct(kinds[kinds >= 0]).tolist():
        members = np.flatnonzero(kinds == kind)
        if not 2 <= len(members) <= MAX_REPLICAS:
            continue
        is_pair = ~np.eye(len(members), dtype=bool)
        never = np.zeros_like(is_pair)
        for chunk in range(len(table.chunks)):
            never |= match_ranks(table, members, members, (chunk, chunk))[1]
        # A pair of one pipeline follows in every chunk, one way or the other.
        if (never & never.T)[is_pair].all():
            counts.add(len(members))
    return counts.pop() if len(counts) == 1 else 0


def _order_groups(table: Timetable, ranks: Ints, group: Ints) -> VirtualStages | None:
    """Return the virtual stages of ranks that share a stage; None where they form no pipelines.

    Args:
        table: when microbatches pass.
        ranks: that take part.
        group: a number that ranks of one stage share, equally many each.
    """
    numbers, of_rank = np.unique(group[ranks], return_inverse=True)
    members = [ranks[of_rank == stage] for stage in range(len(numbers))]
    # Only what all ranks have of every chunk can be added up.
    common = table.held[ranks].all(axis=(0, 1))
    if not common.any():
        return None
    total_wait_ns = np.stack(
        [table.waited_ns[own][:, :, common].sum(axis=(0, 2)) for own in members]
    )
    order = sort_rows(-total_wait_ns.reshape(-1))
    stage_of = invert_permutation(order).reshape(total_wait_ns.shape)
    p = len(members)
    blocks = stage_of // p
    if (blocks != blocks[0]).any():
        return None  # each chunk runs through all stages
    virtual_stage = scatter((len(table.machine), len(table.chunks)), ranks, stage_of[of_rank])
    in_order = (order // len(table.chunks)).tolist()
    for upper, lower in pairwise(in_order):
        if upper == lower:
            continue
        if not _can_pair(match_stages(table, members[upper], members[lower], virtual_stage)):
            return None
    chunk = np.tile(table.chunks, len(ranks))
    return VirtualStages(
        np.repeat(ranks, len(table.chunks)), chunk, virtual_stage[ranks].reshape(-1)
    )


def _group_by_number(ranks: Ints, kinds: Ints, number: Ints, replicas: int) -> list[Ints]:
    """Return the stages by the ranks' numbers, as far as ranks of a stage run alike.

    Frameworks number ranks ``tp + TP (pp + PP dp)``: with TP = 1 pipelines are blocks of ranks,
    with all replicas in TP stages are.
    """
    position = invert_permutation(np.argsort(number[ranks]))
    stages = len(ranks) // replicas
    groupings = []
    for n_adjacent in (n for n in range(1, replicas + 1) if replicas % n == 0):
        stage = scatter(len(number), ranks, position // n_adjacent % stages)
        pairs = group_rows(stage[ranks], kinds[ranks])
        if len(pairs) == stages:
            groupings.append(stage)
    return groupings


def _can_pair(fits: Bools) -> bool:
    """Tell whether each row can have a column of its own, of as many, that fits it."""
    # Mostly those in the order of ranks do, and scipy takes 0.1 s to import.
    if fits.diagonal().all():
        return True
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    return bool((maximum_bipartite_matching(csr_array(fits)) >= 0).all())
