"""Drift: a rank, or all of them, become slower from iteration to iteration, or at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.explain.diagnosis.evidence import Evidence
from bubbleviz.explain.diagnosis.fault import Fault, FaultKind
from bubbleviz.explain.diagnosis.trends import Jumps, jumps, lines, rises
from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.model.grouping import Groups, distinct, groups_of
from bubbleviz.model.values import frozen


@frozen
class _Paces:
    """How slow each rank is in each iteration.

    Attributes:
        ranks: the ranks of the paces.
        rank: number of each of ``ranks``.
        number: of the iteration of each pace, from 0.
        iteration: its row in the report.
        of_row: pace of each row of ``effects.rows``.
        slope: of the logarithm of each rank's pace, by iteration.
        explained: share of its variance that this slope explains.
        jump: of the same logarithm.
    """

    ranks: Groups
    rank: Ints
    number: Ints
    iteration: Ints
    of_row: Ints
    slope: Floats
    explained: Floats
    jump: Jumps

    @property
    def slowed(self) -> Bools:
        """Which ranks slowed at once, rather than steadily."""
        return self.jump.stands_out & (self.jump.explained > self.explained)


def faults(seen: Evidence) -> Iterator[Fault]:
    """Yield the ranks whose computes take longer and longer, and those that slowed at once."""
    paces = _paces(seen)
    slowed = paces.slowed
    drifting = rises(np.bincount(paces.ranks.of_row), paces.slope, paces.explained) & ~slowed
    if drifting.any():
        yield _drift(seen, paces, drifting)
    for begin in distinct(paces.jump.begin[slowed].astype(np.int64)).tolist():
        yield _slowed(seen, paces, slowed & (paces.jump.begin == begin), begin)


def since_slowed(seen: Evidence) -> Floats:
    """Return by which factor each pace is slow since its rank slowed at once; 1 for others."""
    paces = _paces(seen)
    own = paces.ranks.of_row
    since = paces.slowed[own] & (paces.number >= paces.jump.begin[own])
    return np.where(since, np.exp(paces.jump.change[own]), 1.0)


def _paces(seen: Evidence) -> _Paces:
    effects, work = seen.effects, seen.work
    first = effects.rows[effects.paces.first]
    shared = effects.iteration_effect[effects.iterations.of_row[effects.paces.first]]
    series = np.log(effects.pace * shared)
    ranks = groups_of(work.rank[first])
    number = groups_of(work.iteration[first]).of_row
    slope, explained = lines(ranks.of_row, number.astype(np.float64), series)
    return _Paces(
        ranks=ranks,
        rank=work.rank[first[ranks.first]],
        number=number,
        iteration=work.iteration[first],
        of_row=effects.paces.of_row,
        slope=slope,
        explained=explained,
        jump=jumps(ranks.of_row, number.astype(np.float64), series),
    )


def _drift(seen: Evidence, paces: _Paces, which: Bools) -> Fault:
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


def _slowed(seen: Evidence, paces: _Paces, which: Bools, begin: int) -> Fault:
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
