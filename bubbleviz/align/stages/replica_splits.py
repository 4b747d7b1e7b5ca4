"""Replica splits: divide ranks into stages and replicas when replicas are not equally fast.

A slow rank makes its whole pipeline wait, so sorting all ranks by their waits would mix up the
pipelines. The following properties reveal the stages:

- A stage's replicas run the same operations in the same order, with the same transfers.
- Ranks with the same operations form a single stage if no two of those ranks can follow each other
  in a pipeline. The number of ranks in such a stage is the number of pipelines.
- Waits, added up over all replicas of a stage, decrease from each stage to the next.
- Ranks on one stage can be paired with ranks on the next stage so that each rank follows its
  partner.

If ranks on several stages run the same order (all forwards, then all backwards), they are divided
by rank number, provided that only one division fits.
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

#: Maximum fraction of an operation's work that may run before the input arrives.
_MAX_EARLY_FRACTION = 0.25


def find_division(
    operations: Operations, inputs: Arrivals, number: Ints, machine: Ints
) -> tuple[VirtualStages, bool] | None:
    """Find the division of the ranks into stages and replicas, provided that exactly one fits.

    Ranks that run the same operations and transfers are grouped (:func:`_group_by_timetable`). The
    groups are then divided into stages, which are ordered by their waits (:func:`_divide_ranks`).

    Args:
        operations: Operations of all ranks, with iteration numbers that mean the same on all ranks.
        inputs: Arrival times of all operations' inputs.
        number: Number of each rank in the run.
        machine: Machine of each rank. Ranks on the same machine share its clock.

    Returns:
        stages: Virtual stage of each (rank, chunk).
        by_number: Whether rank numbers were needed to divide ranks that run the same operations.

        The entire result is None in each of these cases:

        - No division fits, or several divisions fit.
        - There is a single pipeline.
        - There are fewer than two microbatches.
        - Neither transfers nor orders show that ranks are stages
          (:func:`transfers_or_orders_differ`).
        - A (rank, chunk) runs forwards or backwards but has no wait.
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
    """Group the ranks by their usual order of operations and by their named transfers.

    Two ranks are in the same group if their most frequent orders with both forwards and backwards
    are equal and their transfers have the same set of (phase, chunk).

    Args:
        operations: Operations of all ranks.
        orders: Orders of all ranks, as returned by :func:`find_orders`.
        ranks: Number of ranks.

    Returns:
        Group of each rank, or -1 for a rank that has no iteration with both forwards and backwards.
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
    """Divide ranks into stages and replicas by their timetable.

    Ranks that run the same operations form a group. If the size of every group equals the number of
    pipelines, each group is a stage. Larger groups contain several stages and are divided by rank
    numbers, provided that exactly one division fits.

    Args:
        table: Timetable of all ranks.
        kinds: For each rank, the group of ranks that run the same operations, or -1 if it belongs
            to none.
        number: Number of each rank in the run.

    Returns:
        The stages and ``by_number``, as returned by :func:`find_division`. The result is None in
        each of these cases:

        - No division fits, or several divisions fit.
        - A rank belongs to no group, or there is only one group.
        - There are fewer than two pipelines, or their number is unknown.
        - The size of a group is not a multiple of the number of pipelines.
    """
    ranks = np.flatnonzero(table.has_microbatch.any(axis=(1, 2)))
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
    """Return the number of pipelines, or 0 if unknown.

    A group is a single stage if none of its ranks can follow another of its ranks in a pipeline.
    The number of pipelines is the size of this group. The number is unknown if no group is a single
    stage, or if the groups that are single stages differ in size. Groups of one rank, or of more
    than ``MAX_REPLICAS`` ranks, are ignored.

    Args:
        table: Timetable of all ranks.
        kinds: For each rank, the group of ranks that run the same operations, or -1 if it belongs
            to none.
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
        # Two ranks in the same pipeline follow each other in every chunk, in one direction or the
        # other.
        if (never & never.T)[is_pair].all():
            counts.add(len(members))
    return counts.pop() if len(counts) == 1 else 0


def _order_groups(table: Timetable, ranks: Ints, group: Ints) -> VirtualStages | None:
    """Order groups of ranks by their waits, longest first. Each group becomes a stage.

    The waits of each (group, chunk) pair are added up over its ranks and over the microbatches that
    all ranks run in every chunk. The pairs are sorted by this sum in descending order. The position
    of a pair is its virtual stage.

    Args:
        table: Timetable of all ranks.
        ranks: Ranks to order.
        group: Group of each rank in the run. All groups must have the same number of members in
            ``ranks``.

    Returns:
        Virtual stage of each (rank, chunk). The result is None in each of these cases:

        - No microbatch is run by all ranks in every chunk.
        - The virtual stages of a chunk are not consecutive.
        - The ranks of two consecutive stages cannot be paired (:func:`_can_pair`).
    """
    numbers, of_rank = np.unique(group[ranks], return_inverse=True)
    members = [ranks[of_rank == stage] for stage in range(len(numbers))]
    # Sums are comparable only over microbatches that all ranks run in every chunk.
    common = table.has_microbatch[ranks].all(axis=(0, 1))
    if not common.any():
        return None
    total_wait_ns = np.stack(
        [table.waited_ns[of_stage][:, :, common].sum(axis=(0, 2)) for of_stage in members]
    )
    order = sort_rows(-total_wait_ns.reshape(-1))
    stage_of = invert_permutation(order).reshape(total_wait_ns.shape)
    # Each chunk runs through all stages before the next one.
    chunk_position = stage_of // len(members)
    if (chunk_position != chunk_position[0]).any():
        return None
    virtual_stage = scatter((len(table.machine), len(table.chunks)), ranks, stage_of[of_rank])
    in_order = (order // len(table.chunks)).tolist()
    for upper, lower in pairwise(in_order):
        if upper == lower:
            continue
        if not _can_pair(match_stages(table, members[upper], members[lower], virtual_stage)):
            return None
    return VirtualStages(
        np.repeat(ranks, len(table.chunks)),
        np.tile(table.chunks, len(ranks)),
        virtual_stage[ranks].reshape(-1),
    )


def _group_by_number(ranks: Ints, kinds: Ints, number: Ints, replicas: int) -> list[Ints]:
    """Divide ranks into stages by rank number, so that all ranks on a stage are of the same kind.

    Frameworks number ranks ``tp + TP (pp + PP dp)``. With TP = 1, each pipeline is a block of
    consecutive ranks. If all replicas are tensor-parallel, each stage is a block of consecutive
    ranks. All sizes TP that divide ``replicas`` are tried, in ascending order.

    Args:
        ranks: Ranks to divide.
        kinds: For each rank of the run, the group of ranks that run the same operations.
        number: Number of each rank in the run.
        replicas: Number of ranks per stage.

    Returns:
        One array per possible division, containing the stage of each rank in the run, or -1 for a
        rank that is not in ``ranks``.
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
    """Return whether all rows can be matched with different columns (perfect matching).

    Args:
        fits: Mask of the possible matches, a square matrix.
    """
    # The diagonal is usually a perfect matching, and importing scipy takes 0.1 s.
    if fits.diagonal().all():
        return True
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    return bool((maximum_bipartite_matching(csr_array(fits)) >= 0).all())
