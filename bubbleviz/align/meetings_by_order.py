"""Match collectives of unknown kind and group in a run whose ranks all do the same work.

Recordings of training loops without a pipeline mark waits for other ranks, but not the kind or the
group of the collective. The n-th waits of all ranks in an iteration are taken for one collective if
the ranks leave together. Clocks that cannot be compared differ by a constant, so their ranks leave
together if the difference between the ends is the same at every collective::

    rank 0   ├──────────────┤        ├───┤
    rank 1        ├─────────┤  ├─────────┤      the starts are far apart, and the ends are not
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.clocks.timebase import Timebase
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Ints, scatter
from bubbleviz.model.grouping import group_rows, sort_rows

#: Ends that are at most this many ns apart are simultaneous. Times on GPUs that a recorder measures
#: agree to within a few tens of microseconds.
_MAX_SPREAD_NS = 100_000
#: Ends are also simultaneous if the starts are at least this many times as far apart.
_MIN_SPREAD_RATIO = 4
#: Minimum fraction of the collectives whose ends must be simultaneous.
_MIN_SIMULTANEOUS = 0.5
#: Minimum number of collectives, because a few may end together by chance.
_MIN_MEETINGS = 3


def match_equal_ranks(
    collectives: CollectiveIntervals, rows: Ints, n_ranks: int, time: Timebase
) -> Ints:
    """Match collectives by their order in the iteration, if all ranks leave them together.

    Args:
        collectives: Collectives of all ranks.
        rows: Rows to match.
        n_ranks: Number of ranks that do the same work. All of them must take part in a collective.
        time: The common clock, along with each machine's uncertainty.

    Returns:
        Meeting number of each collective. All numbers are -1 if there are fewer than three
        collectives, if a rank is missing from any of them, or if more than half of them do not end
        together.
    """
    unmatched = np.full(len(collectives), NONE, np.int64)
    columns = (collectives.iteration[rows], collectives.kind[rows], collectives.order[rows])
    groups = group_rows(*columns)
    if len(groups) < _MIN_MEETINGS or not _is_complete(collectives, rows, groups.of_row, n_ranks):
        return unmatched
    # One row per rank in each group.
    order = sort_rows(groups.of_row, collectives.rank[rows])
    start_ns, end_ns = (
        column[rows][order].reshape(len(groups), n_ranks)
        for column in (collectives.start_ns, collectives.end_ns)
    )
    is_comparable = time.comparable & (time.uncertainty_ns >= 0)
    machine = time.machine[collectives.rank[rows][order][:n_ranks]]
    is_same_clock = is_comparable[machine] | (machine == machine[0])
    difference_ns = np.median(end_ns - end_ns[:, :1], axis=0)
    shift_ns = np.where(is_same_clock, 0.0, difference_ns)
    spread_of_ends_ns = np.ptp(end_ns - shift_ns, axis=1)
    spread_of_starts_ns = np.ptp(start_ns - shift_ns, axis=1)
    max_spread_ns = np.maximum(_MAX_SPREAD_NS, spread_of_starts_ns / _MIN_SPREAD_RATIO)
    if (spread_of_ends_ns <= max_spread_ns).mean() < _MIN_SIMULTANEOUS:
        return unmatched
    return scatter(len(collectives), rows, groups.of_row)


def _is_complete(collectives: CollectiveIntervals, rows: Ints, group: Ints, n_ranks: int) -> bool:
    """Return whether each group contains exactly one row of each rank.

    Args:
        collectives: Collectives of all ranks.
        rows: Rows of the collectives.
        group: Group of each of ``rows``.
        n_ranks: Number of ranks.
    """
    members = group_rows(group, collectives.rank[rows])
    n_members = np.bincount(group[members.first])
    return len(members) == len(rows) and bool((n_members == n_ranks).all())
