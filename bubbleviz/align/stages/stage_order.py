"""Stage order: infer the order of stages from durations, each measured on a single rank's clock.

A microbatch passes down the pipeline and comes back. On every rank, the time from the end of its F
to the start of its B therefore includes all work on later stages, and these times nest::

    virtual stage 0   F├──────────────────────────┤B
    virtual stage 1      F├────────────────────┤B
    virtual stage 2         F├──────────────┤B

Sorting all (rank, chunk) pairs by this time reveals the stages, the chunks and the direction of a
V. The times of consecutive stages differ by at least the F and B of the later stage. A stage's
replicas (tensor or data parallel) wait equally long and share a virtual stage.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.align.arrivals import Arrivals
from bubbleviz.align.profile_clocks import DRIFT, GRAIN_NS
from bubbleviz.align.stages.rank_orders import Orders, find_usual_orders
from bubbleviz.align.stages.virtual_stages import VirtualStages
from bubbleviz.align.waits import measure_median_waits, measure_waits, pair_consecutive_stages
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Bools, Ints, scatter
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import TRANSFERS, Phase

#: At most 1 / ``_MAX_MISSING_DIVISOR`` of the ranks may be missing, and more than half of each
#: stage must be present. If the ranks on one stage were mistaken for two stages, one of the two
#: would have at most half of them.
_MAX_MISSING_DIVISOR = 8
#: Minimum number of ranks on a large stage.
#: The smallest of several large stages may lack at most 1 / ``_CLOSE_DIVISOR`` of the largest size.
_MIN_LARGE, _CLOSE_DIVISOR = 64, 8
#: Maximum fraction of an operation's work that may run after its result has been sent.
_MAX_LATE_FRACTION = 0.25


def order_virtual_stages(operations: Operations, inputs: Arrivals) -> VirtualStages:
    """Infer the virtual stage of every (rank, chunk) with forwards and backwards from its waits.

    Early stages wait longest for a microbatch to come back. The median waits of each (rank, chunk)
    are added up over the microbatches that every (rank, chunk) runs. The sums are sorted in
    descending order, and similar sums are grouped (:func:`_group_by_wait`). Each group becomes a
    virtual stage, numbered from zero. This function does not check whether ranks on the same stage
    run the same order of operations.

    Args:
        operations: Operations of all ranks, sorted by rank.
        inputs: Arrival times of all operations' inputs.

    Returns:
        Virtual stage of each (rank, chunk). All stages are -1 in each of the following cases:

        - No microbatch is run by every (rank, chunk).
        - A (rank, chunk) works but has no wait, because it never gets a microbatch back.
        - Two chunks of a rank are in one group.
        - The sizes of the groups are too uneven (:func:`has_uneven_sizes`).
        - There is a single group with several members, and their longest wait exceeds their longest
          work.
    """
    usual = measure_median_waits(operations, inputs)
    groups = grouping.group_rows(usual.rank, usual.chunk)
    rank, chunk = usual.rank[groups.first], usual.chunk[groups.first]
    unknown = VirtualStages(rank, chunk, np.full(len(rank), NONE, np.int64))
    is_shared = _mask_shared(usual.microbatch, len(rank))
    # A chunk that never gets a microbatch back could be on any stage.
    if not is_shared.any() or _count_working_chunks(operations) > len(rank):
        return unknown
    pair = groups.of_row[is_shared]
    waited_ns = group_sum(pair, len(rank), usual.waited_ns[is_shared])
    worked_ns = group_sum(pair, len(rank), usual.worked_ns[is_shared])
    order = grouping.sort_rows(-waited_ns, rank, chunk)
    level = _group_by_wait(waited_ns[order], worked_ns[order])
    # If there is a single stage, its replicas do not wait for other ranks.
    if level[-1] == 0 < len(level) - 1 and waited_ns.max() > worked_ns.max():
        return unknown
    is_one_stage_per_rank = len(grouping.group_rows(level, rank[order])) == len(rank)
    if not is_one_stage_per_rank or has_uneven_sizes(np.bincount(level).tolist()):
        return unknown
    return VirtualStages(rank, chunk, scatter(len(order), order, level))


def _mask_shared(microbatch: Ints, n_chunks: int) -> Bools:
    """Return a mask of the waits whose microbatch is run by every (rank, chunk).

    Args:
        microbatch: Microbatch of each wait. A (rank, chunk) has one wait per microbatch.
        n_chunks: Number of distinct (rank, chunk) pairs.
    """
    numbers, counts = np.unique(microbatch, return_counts=True)
    return np.isin(microbatch, numbers[counts == n_chunks])


def _count_working_chunks(operations: Operations) -> int:
    """Return the number of distinct (rank, chunk) pairs that run a forward or a backward."""
    phases = (Phase.F, Phase.B, Phase.BW, Phase.FB)
    work = mask_phases(operations.phase, phases) & (operations.has_span == 1)
    return len(grouping.find_distinct_rows(operations.rank, operations.chunk, mask=work).T)


def have_equal_orders(orders: Orders, rank: Ints, stage: Ints) -> bool:
    """Return whether ranks that share a stage run the same operations in the same order.

    The usual orders of the ranks are compared (:func:`find_usual_orders`). Replicas of a stage run
    equal orders. Consecutive stages of a pipeline run different orders, because later stages run
    fewer forwards before their first backward.

    Args:
        orders: Orders of all ranks, as returned by :func:`find_orders`.
        rank: Ranks to compare.
        stage: Stage of each rank in ``rank``.
    """
    ranks, usual = find_usual_orders(orders)
    order = grouping.lookup_values((ranks,), usual, (rank,))
    return len(grouping.group_rows(stage, order)) == len(grouping.find_distinct(stage))


def _group_by_wait(waited_ns: Ints, worked_ns: Ints) -> Ints:
    """Group rows whose waits have similar lengths.

    Let ``longest`` be the wait of the first row in a group. The next row belongs to the same group
    if ``longest - waited_ns < worked_ns // 2`` for this row. Otherwise, the row begins a new group.

    Args:
        waited_ns: Total wait of each row, in descending order. Must not be empty.
        worked_ns: Total work of each row.

    Returns:
        Zero-based group number of each row, in ascending order.
    """
    level = np.zeros(len(waited_ns), np.int64)
    longest = waited_ns[0]
    for index in range(1, len(waited_ns)):
        level[index] = level[index - 1]
        if longest - waited_ns[index] >= worked_ns[index] // 2:
            level[index] += 1
            longest = waited_ns[index]
    return level


def has_uneven_sizes(sizes: Sequence[int]) -> bool:
    """Return whether stage sizes differ by more than a few missing ranks could explain.

    Stages that are smaller than the largest stage are assumed to lack ranks. The result is False if
    all sizes are equal, or if few ranks are missing and many stages are complete:

    - At most 1 / ``_MAX_MISSING_DIVISOR`` of the ranks are missing, and every stage has more than
      half of the largest size.
    - At least half of the stages, and at least two, have the largest size. Alternatively, the
      largest stage has at least ``_MIN_LARGE`` ranks, and every stage is smaller than the largest
      one by at most a fraction 1 / ``_CLOSE_DIVISOR``.

    Args:
        sizes: Number of ranks on each stage. If empty, the result is True.
    """
    largest = max(sizes, default=0)
    n_complete = sum(size == largest for size in sizes)
    if n_complete == len(sizes) > 0:
        return False
    n_missing = largest * len(sizes) - sum(sizes)
    smallest = min(sizes, default=0)
    is_few = n_missing * _MAX_MISSING_DIVISOR <= largest * len(sizes) and 2 * smallest > largest
    has_typical_size = 2 * n_complete >= len(sizes) and n_complete > 1
    is_close = largest >= _MIN_LARGE and (largest - smallest) * _CLOSE_DIVISOR <= largest
    return not (is_few and (has_typical_size or is_close))


def transfers_or_orders_differ(operations: Operations, orders: Orders) -> bool:
    """Return whether transfers or orders show that the ranks are stages of a pipeline.

    Unlike the ranks of a pipeline, data-parallel replicas transfer no activations and run the same
    order of operations. Waiting times alone cannot distinguish replicas from stages: replicas also
    wait for each other, and a late or slow replica looks like another stage.

    Only range names are used to find transfers. Kernels are not used, because an all-to-all also
    consists of sends and receives.

    Args:
        operations: Operations of all ranks.
        orders: Orders of all ranks, as returned by :func:`find_orders`.

    Returns:
        True if a range names a transfer that ran. Also True if several ranks run both forwards and
        backwards in an iteration, and no order is common to all such ranks.
    """
    if (mask_phases(operations.phase, TRANSFERS) & (operations.has_span == 1)).any():
        return True
    rank, order, _, trains = orders
    ranks = len(grouping.find_distinct(rank[trains]))
    return ranks > 1 and bool(np.bincount(order[trains]).max() < ranks)


def can_nest(operations: Operations, inputs: Arrivals) -> bool:
    """Return whether each microbatch's wait covers the time it takes on the next stage.

    For each microbatch, ``wait >= wait on next stage + work on next stage`` must hold, with a
    tolerance of ``GRAIN_NS`` plus ``DRIFT * wait`` plus ``_MAX_LATE_FRACTION`` of the work on the
    next stage, which may run after a send. If replicas with different speeds were mistaken for
    stages, some microbatch violates this condition. The result is False if no microbatch has waits
    on two consecutive virtual stages.

    Args:
        operations: Operations of all ranks, with their virtual stages, and with iterations numbered
            separately for each rank.
        inputs: Arrival times of all operations' inputs.
    """
    waits = measure_waits(operations.replace_columns(chunk=operations.virtual_stage), inputs)
    upper, lower = pair_consecutive_stages(waits)
    worked_ns = waits.worked_ns[lower]
    slack_ns = waits.waited_ns[upper] - waits.waited_ns[lower] - worked_ns
    grain_ns = GRAIN_NS + DRIFT * waits.waited_ns[upper] + _MAX_LATE_FRACTION * worked_ns
    return len(upper) > 0 and bool((slack_ns >= -grain_ns).all())
