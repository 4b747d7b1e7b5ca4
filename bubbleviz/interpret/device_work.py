"""Device work: what ran on devices, each kernel and copy with its rank and its range."""

from __future__ import annotations

import numpy as np

from bubbleviz.conventions.kinds import Kinds, matching
from bubbleviz.conventions.range_names import NameMeanings
from bubbleviz.interpret.linking.links import Links
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COMMUNICATION
from bubbleviz.model.profile import Activities, Ranges
from bubbleviz.model.values import frozen


@frozen
class DeviceWork(Table):
    """Kernels, then copies: when and where they ran, and the range they belong to."""

    start_ns: Ints
    end_ns: Ints
    rank: Codes
    range: Codes
    compute: Bools
    communication: Bools
    receive: Bools

    @property
    def copy(self) -> Bools:
        """Which are copies or memsets."""
        return ~self.compute & ~self.communication


@frozen
class RankWork:
    """What ran on a rank, or on several side by side, and the operations that own it.

    Attributes:
        ranks: indices of the ranks in their profile.
        rows: their activities among those of the profile, in order of (rank, row).
        work: these activities.
        name_id: kernel name of each; -1 none.
        owner: operation of its rank that each belongs to; -1 none.
        received: rows of ``work`` that are receives, one for each operation around their launch.
        around: operation that each of ``received`` was launched inside of; -1 none.
    """

    ranks: range
    rows: Codes
    work: DeviceWork
    name_id: Codes
    owner: Codes
    received: Ints
    around: Ints


def work_of(
    activities: Activities, links: Links, named: Ranges, names: NameMeanings, kinds: Kinds
) -> DeviceWork:
    """Return kernels, then copies, with what each is and the range it belongs to."""
    kernels = activities.name_id[: activities.kernels]
    by_name = matching(activities.names, kinds.communication)
    compute, communication = np.zeros(len(activities), bool), np.zeros(len(activities), bool)
    communication[: activities.kernels] = by_name[kernels]
    compute[: activities.kernels] = ~by_name[kernels]
    # A communication range names its direction; elsewhere the kernel's name has to.
    rows = np.flatnonzero(communication)
    receiving = matching(activities.names, kinds.receives)
    receives = receiving[activities.name_id[rows]]
    of_range = links.range[rows]
    inside = np.flatnonzero(of_range != NONE)
    name_id = named.name_id[of_range[inside]]
    communicates = among(names.phase[name_id], COMMUNICATION)
    receives[inside[communicates]] = names.receives[name_id[communicates]]
    receive = np.zeros(len(activities), bool)
    receive[rows] = receives
    return DeviceWork(
        activities.start_ns,
        activities.end_ns,
        activities.rank,
        links.range,
        compute,
        communication,
        receive,
    )
