"""Select the pipelines of a large run that are replayed.

Pipelines wait for each other only at the end of an iteration. So the slowest pipelines determine
the length of the iteration, with and without a fault. An equally large sample of the remaining
pipelines shows the usual times::

    pipelines by when they end    ████████████████▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏
    replayed                      ████████████████   ▏    ▏    ▏    ▏    ▏    ▏    ▏    ▏
                                  the slowest        equally many, spread over the others
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.count import rank_slices
from bubbleviz.model import operations as tables
from bubbleviz.model.columns import Bools, Ints, make_mask
from bubbleviz.model.grouping import (
    find_run_starts,
    group_rows,
    invert_permutation,
    sort_rows,
)
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import WORK

#: Maximum number of forwards and backwards in a run that is replayed as a whole. In a larger run,
#: pipelines with about this number of operations in total are replayed.
MAX_REPLAYED_OPERATIONS = 100_000
#: Minimum number of replayed pipelines.
_MIN_PIPELINES = 4


@dataclass(frozen=True)
class ReplayedRanks:
    """The ranks of a run that are replayed.

    Attributes:
        is_replayed: Mask of the replayed ranks.
        pipelines: Number of replayed pipelines.
        of: Total number of pipelines in the run.
    """

    is_replayed: Bools
    pipelines: int
    of: int


def choose_replayed_ranks(
    operations: tables.Operations, ranks: Sequence[tables.Rank], included: Bools
) -> ReplayedRanks | None:
    """Choose the pipelines whose ranks are replayed, or return None if all ranks are replayed.

    The chosen pipelines contain about ``MAX_REPLAYED_OPERATIONS`` forwards and backwards in total,
    but there are at least ``_MIN_PIPELINES`` of them. Half of them, rounded down, are the slowest
    ones: they come first in :func:`_order_by_latest_end`. The other half is evenly spaced in the
    rest of this order.

    Args:
        operations: Operations of all ranks.
        ranks: The ranks, by index.
        included: Mask of the iterations whose operations are counted.

    Returns:
        The choice. None if all ranks are replayed, because the run is small or the pipeline of a
        rank is unknown.
    """
    number = rank_slices.list_stages_and_pipelines(ranks)[1]
    if number.min(initial=0) < 0:
        return None
    pipelines = group_rows(number)
    count = len(pipelines)
    rows = np.flatnonzero(
        np.append(included, False)[operations.iteration] & mask_phases(operations.phase, WORK)
    )
    n_replayed = max(_MIN_PIPELINES, MAX_REPLAYED_OPERATIONS * count // max(len(rows), 1))
    if n_replayed >= count or len(rows) <= MAX_REPLAYED_OPERATIONS:
        return None
    order = _order_by_latest_end(operations, rows, pipelines.of_row, count, included)
    slowest, remaining = order[: n_replayed // 2], order[n_replayed // 2 :]
    n_spread = n_replayed - len(slowest)
    spread = remaining[np.arange(n_spread) * len(remaining) // n_spread]
    is_replayed = make_mask(count, np.concatenate((slowest, spread)))
    return ReplayedRanks(is_replayed[pipelines.of_row], int(is_replayed.sum()), count)


def _order_by_latest_end(
    operations: tables.Operations, rows: Ints, pipeline: Ints, count: int, included: Bools
) -> Ints:
    """Return the pipeline numbers, sorted so that pipelines that end late come first.

    In each iteration, the pipeline that ends last gets place 0, the one that ends before it gets
    place 1, and so on. Pipelines are sorted by their smallest place in any iteration, then by the
    sum of their places.

    Args:
        operations: Operations of all ranks.
        rows: Rows of the forwards and backwards in the included iterations.
        pipeline: Zero-based pipeline number of each rank.
        count: Number of pipelines.
        included: Mask of the iterations to include.
    """
    end_ns = np.full((count, len(included)), np.iinfo(np.int64).min)
    # Operations of a rank and an iteration are mostly consecutive. So each run of consecutive rows
    # is first reduced to its latest end.
    cell = pipeline[operations.rank[rows]] * len(included) + operations.iteration[rows]
    first = find_run_starts(cell)
    latest_ns = np.maximum.reduceat(operations.end_ns[rows], first)
    np.maximum.at(end_ns.reshape(-1), cell[first], latest_ns)
    # ``~`` reverses the order like ``-``, and does not overflow for the smallest integer.
    places = [invert_permutation(sort_rows(~column)) for column in end_ns[:, included].T]
    return sort_rows(np.min(places, axis=0), np.sum(places, axis=0))
