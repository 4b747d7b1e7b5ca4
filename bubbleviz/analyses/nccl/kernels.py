"""Kernels: those of NCCL in a profile, and others that the user calls communication."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from bubbleviz.conventions.kinds import Kinds, is_nccl, matching
from bubbleviz.model.columns import Bools, Ints, Table
from bubbleviz.model.profile import Activities, pid_of
from bubbleviz.model.values import frozen


@frozen
class Kernels(Table):
    """Kernels of NCCL, and added ones: by (place, start).

    Attributes:
        start_ns: start on the device.
        end_ns: end on the device.
        place: row of ``places``.
        name: row of ``names``.
        of_nccl: which are NCCL's.
        names: of kernels.
        places: process id and number of the device.
    """

    start_ns: Ints
    end_ns: Ints
    place: Ints
    name: Ints
    of_nccl: Bools
    names: tuple[str, ...] = field(metadata={"shared": True})
    places: tuple[tuple[int, int], ...] = field(metadata={"shared": True})


def kernels_of(activities: Activities, kinds: Kinds) -> tuple[Kernels, Ints]:
    """Return the kernels of NCCL by place and time, and their rows of the activities.

    Args:
        activities: kernels, then copies.
        kinds: lists of what kernels are; what a user added to them counts as well.
    """
    of_nccl = np.array([is_nccl(name) for name in activities.names], bool)
    listed = of_nccl | matching(activities.names, kinds.added_communication)
    rows = np.flatnonzero(listed[activities.name_id[: activities.kernels]])
    rows = rows[np.lexsort((activities.start_ns[rows], activities.rank[rows]))]
    used, name = np.unique(activities.name_id[rows], return_inverse=True)
    kernels = Kernels(
        start_ns=activities.start_ns[rows],
        end_ns=activities.end_ns[rows],
        place=activities.rank[rows].astype(np.int64),
        name=name.reshape(-1).astype(np.int64),
        of_nccl=of_nccl[activities.name_id[rows]],
        names=tuple(activities.names[number] for number in used.tolist()),
        places=tuple((pid_of(process), device) for process, device in activities.ranks.tolist()),
    )
    return kernels, rows
