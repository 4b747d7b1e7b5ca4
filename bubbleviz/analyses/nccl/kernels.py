"""Kernels: those of NCCL in a profile, and others that the user calls communication."""

from __future__ import annotations

import re
from dataclasses import field

import numpy as np

from bubbleviz.conventions.kinds import Kinds, is_nccl, matching, plain_name
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


# Kernel names: the operation, algorithm and protocol that a kernel of NCCL is named after.


_FAMILY = re.compile(r"nccl(?:(?!nccl)\w)*?Kernel_?([A-Z][A-Za-z]*)")
#: Operations that kernels named SendRecv carry out.
_PASSING = frozenset(("Send", "Recv", "SendRecv", "AlltoAll", "AllToAll", "Gather", "Scatter"))
_ALGORITHM = re.compile(r"_(TREE|RING|COLLNET_DIRECT|COLLNET_CHAIN|NVLS_TREE|NVLS|PAT)(?=_|\(|$)")
_PROTOCOL = re.compile(r"_(LL128|LL|SIMPLE)(?=_|\(|$)")


def family_of(name: str) -> str:
    """Return the family of an operation's kernels; sends, receives and the like share one."""
    name = {"Bcast": "Broadcast"}.get(name, name)
    return "SendRecv" if name in _PASSING else name


def parse_kernel_name(kernel: str) -> tuple[str, str, str]:
    """Return operation, algorithm and protocol from a kernel's name; "" unknown.

    The operation of a kernel that is none of NCCL's is its plain name.
    """
    if not is_nccl(kernel):
        return plain_name(kernel), "", ""
    family = _FAMILY.search(kernel)
    algorithm, protocol = _ALGORITHM.search(kernel), _PROTOCOL.search(kernel)
    operation = family[1] if family else ""
    return (
        "" if operation == "Generic" else operation,
        algorithm[1] if algorithm else "",
        protocol[1] if protocol else "",
    )


def kernel_family(kernel: str) -> str:
    """Return the family of a kernel, as :func:`family_of` has it; "" unknown."""
    return family_of(parse_kernel_name(kernel)[0])
