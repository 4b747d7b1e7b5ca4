"""Replayed ranks: the pipelines of a large run that are replayed, since they bound its iterations.

Pipelines wait for each other only at the end of an iteration, so the slowest ones decide how long
it takes, and what it would take without a fault. Others show what is usual::

    pipelines by when they end    ████████████████▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏
    replayed                      ████████████████   ▏    ▏    ▏    ▏    ▏    ▏    ▏    ▏
                                  the slowest        as many, evenly spread over the others
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.count import rank_slices
from bubbleviz.model import operations as tables
from bubbleviz.model.columns import Bools, make_mask
from bubbleviz.model.grouping import (
    find_run_starts,
    group_rows,
    invert_permutation,
    sort_rows,
)
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import WORK

#: Maximum number of forwards and backwards of a run that is replayed as a whole. Of a larger run,
#: about as many are replayed.
MAX_REPLAYED_OPERATIONS = 100_000
#: Minimum number of pipelines that are replayed.
_MIN_PIPELINES = 4


@dataclass(frozen=True)
class ReplayedRanks:
    """Which ranks of a run are replayed.

    Attributes:
        chosen: Mask of the ranks that are replayed.
        pipelines: Number of pipelines that are replayed.
        of: Number of all pipelines.
    """

    chosen: Bools
    pipelines: int
    of: int


def choose_replayed_ranks(
    operations: tables.Operations, ranks: Sequence[tables.Rank], included: Bools
) -> ReplayedRanks | None:
    """Return the ranks that are replayed, or None if all of them are.

    Args:
        operations: Operations of all ranks.
        ranks: The ranks, by index.
        included: Mask of the iterations that count.
    """
    number = rank_slices.list_stages_and_pipelines(ranks)[1]
    if number.min(initial=0) < 0:
        return None
    pipelines = group_rows(number)
    pipeline, count = pipelines.of_row, len(pipelines)
    rows = np.flatnonzero(
        np.append(included, False)[operations.iteration] & mask_phases(operations.phase, WORK)
    )
    wanted = max(_MIN_PIPELINES, MAX_REPLAYED_OPERATIONS * count // max(len(rows), 1))
    if wanted >= count or len(rows) <= MAX_REPLAYED_OPERATIONS:
        return None
    end_ns = np.full((count, len(included)), np.iinfo(np.int64).min)
    # Operations of a rank and an iteration mostly follow each other.
    cell = pipeline[operations.rank[rows]] * len(included) + operations.iteration[rows]
    first = find_run_starts(cell)
    latest_ns = np.maximum.reduceat(operations.end_ns[rows], first)
    np.maximum.at(end_ns.reshape(-1), cell[first], latest_ns)
    # By the best place that a pipeline has in any iteration, by latest end. Turned around bit by
    # bit: the earliest of all times has no negative.
    places = [invert_permutation(sort_rows(~column)) for column in end_ns[:, included].T]
    order = sort_rows(np.min(places, axis=0), np.sum(places, axis=0))
    slowest, others = order[: wanted // 2], order[wanted // 2 :]
    spread = others[np.arange(wanted - len(slowest)) * len(others) // (wanted - len(slowest))]
    chosen = make_mask(count, np.concatenate((slowest, spread)))
    return ReplayedRanks(chosen[pipeline], int(chosen.sum()), count)
