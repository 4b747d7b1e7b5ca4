"""Host state: which call and which range a host was in while its GPU had run dry."""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.operations import HostActivities
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen


@frozen
class HostState:
    """Where a launching thread was for half of a time or more.

    Attributes:
        call_id: row of the operations' ``names``: the CUDA call; -1 none.
        range_id: likewise the shortest range; -1 none.
    """

    call_id: int = NONE
    range_id: int = NONE

    @property
    def known(self) -> bool:
        """Whether anything is recorded of it."""
        return self.call_id != NONE or self.range_id != NONE


def beside_operations(hosts: HostActivities, name_id: Ints, phase: Ints) -> HostActivities:
    """Return what hosts did before late collectives and optimizers, and inside operations.

    Args:
        hosts: all that is recorded of them.
        name_id: names of operations, whose own ranges tell nothing more.
        phase: of each row of the operations table.
    """
    other = (hosts.call == 1) | ~np.isin(hosts.name_id, name_id)
    last = (hosts.operation == NONE) | (np.append(phase, NONE)[hosts.operation] == Phase.OPTIMIZER)
    kept = hosts.take(last & other)
    columns = (kept.rank, kept.start_ns, kept.end_ns, kept.call, kept.name_id)
    return kept.take(groups_of(*columns).first)


def host_during(
    hosts: HostActivities, rank: int, start_ns: int, end_ns: int, lost_ns: float
) -> HostState:
    """Return where the host of a rank was in a time of which some was lost.

    Args:
        hosts: what launching threads did.
        rank: whose host.
        start_ns: start of the time.
        end_ns: end of it.
        lost_ns: how much of it was.
    """
    overlap_ns = np.minimum(hosts.end_ns, end_ns) - np.maximum(hosts.start_ns, start_ns)
    during = (hosts.rank == rank) & (overlap_ns > 0)
    return HostState(
        _name(hosts, overlap_ns, during & (hosts.call == 1), lost_ns),
        _name(hosts, overlap_ns, during & (hosts.call == 0), lost_ns),
    )


def _name(hosts: HostActivities, overlap_ns: Ints, chosen: Bools, lost_ns: float) -> int:
    """Return the name that takes half of what was lost, of several the shortest; -1 for none."""
    rows = np.flatnonzero(chosen)
    names = groups_of(hosts.name_id[rows])
    spent_ns = group_sum(names.of_row, len(names), overlap_ns[rows])
    whole_ns = group_sum(names.of_row, len(names), (hosts.end_ns - hosts.start_ns)[rows])
    long = np.flatnonzero(2 * spent_ns >= lost_ns)
    if not len(long):
        return NONE
    return int(hosts.name_id[rows[names.first[long[whole_ns[long].argmin()]]]])
