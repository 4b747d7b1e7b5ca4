"""Replayed ranks: the pipelines of a large run that are replayed, since they bound its iterations.

Pipelines wait for each other at the end of an iteration alone, so that the slowest ones decide how
long it takes, and what it would take without a fault. Others show what is usual::

    pipelines by when they end    ████████████████▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏
    replayed                      ████████████████   ▏    ▏    ▏    ▏    ▏    ▏    ▏    ▏
                                  the slowest        as many, evenly spread over the others
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import groups_of, places_in
from bubbleviz.model.operations import Operations, Rank
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import WORK
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen

#: Runs with more forwards and backwards than this are replayed in part: about so many.
MOST = 100_000
#: The fewest pipelines that are replayed of a run of which there are more.
_LEAST = 4


@frozen
class ReplayedRanks:
    """Which ranks of a run are replayed.

    Attributes:
        chosen: of each rank.
        pipelines: how many that are.
        of: of how many.
    """

    chosen: Bools
    pipelines: int
    of: int


def replayed_ranks(
    operations: Operations, ranks: Sequence[Rank], included: Bools
) -> ReplayedRanks | None:
    """Return which ranks are replayed; None for all.

    Args:
        operations: of all ranks.
        ranks: by number.
        included: of each iteration, whether it counts.
    """
    if any(rank.pipeline is None for rank in ranks):
        return None
    numbers = [NONE if rank.pipeline is None else rank.pipeline for rank in ranks]
    pipelines = groups_of(np.array(numbers, np.int64))
    pipeline, count = pipelines.of_row, len(pipelines)
    rows = np.flatnonzero(
        np.append(included, False)[operations.iteration] & among(operations.phase, WORK)
    )
    wanted = max(_LEAST, MOST * count // max(len(rows), 1))
    if wanted >= count or len(rows) <= MOST:
        return None
    end_ns = np.full((count, len(included)), np.iinfo(np.int64).min)
    # Operations of a rank and an iteration mostly follow each other.
    cell = pipeline[operations.rank[rows]] * len(included) + operations.iteration[rows]
    first = np.append(0, np.flatnonzero(cell[1:] != cell[:-1]) + 1)
    latest_ns = np.maximum.reduceat(operations.end_ns[rows], first)
    np.maximum.at(end_ns.reshape(-1), cell[first], latest_ns)
    order = _slowest_first(end_ns[:, included])
    slowest, others = order[: wanted // 2], order[wanted // 2 :]
    spread = others[np.arange(wanted - len(slowest)) * len(others) // (wanted - len(slowest))]
    chosen = np.zeros(count, bool)
    chosen[slowest], chosen[spread] = True, True
    return ReplayedRanks(chosen[pipeline], int(chosen.sum()), count)


def _slowest_first(end_ns: Ints) -> Ints:
    """Return the pipelines by the best place that they have in any iteration, by latest end.

    Args:
        end_ns: of each pipeline in each iteration.
    """
    # Turned around bit by bit: the earliest of all times has no negative.
    places = [places_in(sorted_rows(~column)) for column in end_ns.T]
    return sorted_rows(np.min(places, axis=0), np.sum(places, axis=0))
