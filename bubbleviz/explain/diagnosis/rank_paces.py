"""Rank paces: how slow each rank is in each iteration, and since when."""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.diagnosis.effects import Effects
from bubbleviz.explain.diagnosis.trends import Jumps, jumps, lines
from bubbleviz.explain.slowdown.work import Work
from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.model.grouping import Groups, groups_of
from bubbleviz.model.values import frozen


@frozen
class RankPaces:
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

    @property
    def since_slowed(self) -> Floats:
        """By which factor each pace is slow since its rank slowed at once; 1 for others."""
        own = self.ranks.of_row
        since = self.slowed[own] & (self.number >= self.jump.begin[own])
        return np.where(since, np.exp(self.jump.change[own]), 1.0)


def rank_paces_of(work: Work, effects: Effects) -> RankPaces:
    """Return how slow each rank is in each iteration.

    Args:
        work: of all ranks, in the iterations that count.
        effects: of its computes.
    """
    first = effects.rows[effects.paces.first]
    shared = effects.iteration_effect[effects.iterations.of_row[effects.paces.first]]
    series = np.log(effects.pace * shared)
    ranks = groups_of(work.rank[first])
    number = groups_of(work.iteration[first]).of_row
    slope, explained = lines(ranks.of_row, number.astype(np.float64), series)
    return RankPaces(
        ranks=ranks,
        rank=work.rank[first[ranks.first]],
        number=number,
        iteration=work.iteration[first],
        of_row=effects.paces.of_row,
        slope=slope,
        explained=explained,
        jump=jumps(ranks.of_row, number.astype(np.float64), series),
    )
