"""Evidence: what faults are looked for in."""

from __future__ import annotations

from dataclasses import field
from functools import cached_property

import numpy as np

from bubbleviz.explain.diagnosis.effects import Effects
from bubbleviz.explain.diagnosis.rank_paces import RankPaces, rank_paces_of
from bubbleviz.explain.slowdown.work import Work
from bubbleviz.model.columns import Floats, Ints
from bubbleviz.model.operations import HostActivities
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen


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
