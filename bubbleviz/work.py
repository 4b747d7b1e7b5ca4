"""Work: what ran on a profile's devices, each kernel and copy with its rank and its range."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.columns import Bools, Ints, Table
from bubbleviz.conventions import Names
from bubbleviz.grouping import groups_of
from bubbleviz.kinds import Kinds, matching
from bubbleviz.link import Activities, Links
from bubbleviz.phases import COMMUNICATION
from bubbleviz.profile import Profile, Ranges


@dataclass(frozen=True)
class Work(Table):
    """Kernels, then copies: when and where they ran, and the range they belong to."""

    start_ns: Ints
    end_ns: Ints
    rank: Ints
    range: Ints
    compute: Bools
    communication: Bools
    receive: Bools

    @property
    def copy(self) -> Bools:
        """Which are copies or fills."""
        return ~self.compute & ~self.communication


def activities_of(profile: Profile) -> Activities:
    """Return the profile's kernels, then its copies, as what calls launched."""
    kernels, copies = profile.kernels, profile.copies
    return Activities(
        process=np.concatenate((kernels.process, copies.process)),
        correlation_id=np.concatenate((kernels.correlation_id, copies.correlation_id)),
        device_id=np.concatenate((kernels.device_id, copies.device_id)),
        is_kernel=np.arange(len(kernels) + len(copies)) < len(kernels),
    )


def ranks_of(activities: Activities) -> tuple[Ints, Ints]:
    """Return the (process, device) pairs that ran kernels or copies, and each activity's pair."""
    pairs = np.stack((activities.process, activities.device_id), axis=1)
    groups = groups_of(activities.process, activities.device_id)
    return pairs[groups.first], groups.of_row


def work_of(
    profile: Profile, links: Links, rank: Ints, named: Ranges, names: Names, kinds: Kinds
) -> Work:
    """Return kernels, then copies, with what each is and the range it belongs to."""
    kernels, copies = profile.kernels, profile.copies
    extra = np.zeros(len(copies), bool)
    communication = matching(kernels.names, kinds.communication)
    receiving = communication & matching(kernels.names, kinds.receives)
    is_communication = np.concatenate((communication[kernels.name_id], extra))
    by_name = np.concatenate((receiving[kernels.name_id], extra))
    # A communication range says whether it receives; elsewhere the kernel's name must tell.
    held = links.range >= 0
    of_range = named.name_id[links.range[held]]
    in_communication, receives = np.zeros(len(held), bool), np.zeros(len(held), bool)
    in_communication[held] = np.isin(names.phase[of_range], COMMUNICATION)
    receives[held] = names.receives[of_range]
    return Work(
        start_ns=np.concatenate((kernels.start_ns, copies.start_ns)),
        end_ns=np.concatenate((kernels.end_ns, copies.end_ns)),
        rank=rank,
        range=links.range,
        compute=np.concatenate((~communication[kernels.name_id], extra)),
        communication=is_communication,
        receive=is_communication & np.where(in_communication, receives, by_name),
    )
