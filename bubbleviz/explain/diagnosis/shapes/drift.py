"""Drift: a rank, or all of them, become slower from iteration to iteration, or at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.explain.diagnosis.fault import Fault, FaultKind, rises
from bubbleviz.explain.diagnosis.rank_paces import Evidence, RankPaces
from bubbleviz.model.columns import Bools
from bubbleviz.model.grouping import distinct


def faults(seen: Evidence) -> Iterator[Fault]:
    """Yield the ranks whose computes take longer and longer, and those that slowed at once."""
    paces = seen.paces
    slowed = paces.slowed
    drifting = rises(np.bincount(paces.ranks.of_row), paces.slope, paces.explained) & ~slowed
    if drifting.any():
        yield _drift(seen, paces, drifting)
    for begin in distinct(paces.jump.begin[slowed].astype(np.int64)).tolist():
        yield _slowed(seen, paces, slowed & (paces.jump.begin == begin), begin)


def _drift(seen: Evidence, paces: RankPaces, which: Bools) -> Fault:
    slope, count = paces.slope, np.bincount(paces.ranks.of_row)
    risen = (slope[paces.ranks.of_row] * paces.number)[paces.of_row]
    at = np.flatnonzero(which[paces.ranks.of_row][paces.of_row])
    slowest = float(np.exp((slope * (count - 1))[which].max()))
    return Fault(
        FaultKind.DRIFT,
        "drift",
        seen.effects.rows[at],
        np.exp(-risen[at]),
        ranks=tuple(paces.rank[which].tolist()),
        phases=(("", slowest),),
        what="all" if which.all() else "",
    )


def _slowed(seen: Evidence, paces: RankPaces, which: Bools, begin: int) -> Fault:
    """Return the fault of ranks that have been slow since an iteration, numbered from 0."""
    since = which[paces.ranks.of_row] & (paces.number >= begin)
    at = np.flatnonzero(since[paces.of_row])
    change = paces.jump.change
    by_pace = change[paces.ranks.of_row]
    return Fault(
        FaultKind.SLOWED,
        f"slowed-{begin}",
        seen.effects.rows[at],
        np.exp(-by_pace[paces.of_row[at]]),
        ranks=tuple(paces.rank[which].tolist()),
        iterations=tuple(distinct(paces.iteration[since]).tolist()),
        phases=(("", float(np.exp(change[which].max()))),),
        what="all" if which.all() else "",
    )
