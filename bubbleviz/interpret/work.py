"""Work: what ran on a profile's devices, each kernel and copy with its rank and its range."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.conventions.kinds import Kinds, matching
from bubbleviz.conventions.range_names import NameMeanings
from bubbleviz.interpret.linking.links import Links
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table
from bubbleviz.model.phases import COMMUNICATION
from bubbleviz.model.profile import Activities, Ranges


@dataclass(frozen=True)
class Work(Table):
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
        """Which are copies or fills."""
        return ~self.compute & ~self.communication


def work_of(
    activities: Activities, links: Links, named: Ranges, names: NameMeanings, kinds: Kinds
) -> Work:
    """Return kernels, then copies, with what each is and the range it belongs to."""
    kernels = activities.name_id[: activities.kernels]
    by_name = matching(activities.names, kinds.communication)
    compute, communication = np.zeros(len(activities), bool), np.zeros(len(activities), bool)
    communication[: activities.kernels] = by_name[kernels]
    compute[: activities.kernels] = ~by_name[kernels]
    # A communication range says whether it receives; elsewhere the kernel's name must tell.
    rows = np.flatnonzero(communication)
    receiving = matching(activities.names, kinds.receives)
    receives = receiving[activities.name_id[rows]]
    of_range = links.range[rows]
    held = np.flatnonzero(of_range != NONE)
    name_id = named.name_id[of_range[held]]
    says = np.isin(names.phase[name_id], COMMUNICATION)
    receives[held[says]] = names.receives[name_id[says]]
    receive = np.zeros(len(activities), bool)
    receive[rows] = receives
    return Work(
        activities.start_ns,
        activities.end_ns,
        activities.rank,
        links.range,
        compute,
        communication,
        receive,
    )
