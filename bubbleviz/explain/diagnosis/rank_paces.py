"""Rank paces: how slow each rank is in each iteration, and since when."""

from __future__ import annotations

from dataclasses import field
from functools import cached_property

import numpy as np

from bubbleviz.explain.diagnosis.fault import Effects, Jumps, jumps, lines
from bubbleviz.explain.slowdown.replay import Work
from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.model.grouping import Groups, groups_of, sorted_rows
from bubbleviz.model.operations import HostActivities
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


# Evidence: what faults are looked for in.


@frozen(eq=False, shown=False)
class Evidence:
    """A run, its effects, and what is known beyond times.

    Attributes:
        work: of all ranks, in the iterations that count.
        own_ns: how long each row took itself; of communication, its transfer.
        effects: of the computes.
        host_of_rank: number of the host of each rank; empty where hosts are unknown.
        late_ns: how late each row started since the host had not launched it; 0 elsewhere.
        profiler_ns: likewise since the profiler held its process up.
        gap_ns: how long no kernel ran inside each row; 0 for what is no operation.
        hosts: what hosts did before collectives that they launched late, and inside operations.
    """

    work: Work
    own_ns: Ints
    effects: Effects
    host_of_rank: Ints
    late_ns: Ints
    profiler_ns: Ints
    gap_ns: Ints
    hosts: HostActivities = field(default_factory=HostActivities.none)

    @cached_property
    def paces(self) -> RankPaces:
        """How slow each rank is in each iteration."""
        return rank_paces_of(self.work, self.effects)

    def phase(self, kind: int) -> str:
        """Return the phase that a kind of work is reported under."""
        return self.work.kinds[kind].phase


def losing(rank: Ints, lost: Floats) -> list[int]:
    """Return the ranks that lose anything, those that lose most first.

    Args:
        rank: of each row.
        lost: by each row.
    """
    of_rank = np.bincount(rank, lost)
    order = sorted_rows(-of_rank)
    return [int(one) for one in order[of_rank[order] > 0]]
