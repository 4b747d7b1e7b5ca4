"""Kernels: those of NCCL in profiles, and others that the user calls communication."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np

from bubbleviz.conventions.kinds import Kinds, is_nccl, matching, plain_name
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.profile import Activities, pid_of
from bubbleviz.model.values import frozen

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
    found = (part.search(kernel) for part in (_FAMILY, _ALGORITHM, _PROTOCOL))
    operation, algorithm, protocol = (match[1] if match else "" for match in found)
    return "" if operation == "Generic" else operation, algorithm, protocol


def kernel_family(kernel: str) -> str:
    """Return the family of a kernel, as :func:`family_of` has it; "" unknown."""
    return family_of(parse_kernel_name(kernel)[0])


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


@frozen
class Starts:
    """Where recorded operations or profiled kernels begin on some clock, ascending.

    Attributes:
        start_ns: start of each.
        family: number of what it does; -1 for anything.
        length_ns: how long it lasts; -1 unknown.
    """

    start_ns: Ints
    family: Ints
    length_ns: Ints


@frozen
class Place:
    """A GPU as a process of a profile sees it, and its kernels in the pool.

    Attributes:
        pid: the process.
        host: name of the host that the profile was recorded on.
        first: its first kernel's row of the pool.
        end: the row after its last kernel.
    """

    pid: int
    host: str
    first: int
    end: int


@frozen
class KernelPool:
    """Kernels of all profiles, on the report's clock.

    Attributes:
        start_ns: start, in the order of the profiles.
        end_ns: end.
        places: by profile and device.
        family: number of what each does; -1 anything.
        families: these by name.
    """

    start_ns: Ints
    end_ns: Ints
    places: tuple[Place, ...]
    family: Ints
    families: Mapping[str, int]

    def place_of(self, kernel: Ints) -> Ints:
        """Return the row of ``places`` of each of some kernels; -1 for none."""
        ends = np.array([place.end for place in self.places], np.int64)
        return np.where(kernel == NONE, NONE, np.searchsorted(ends, kernel, side="right"))

    def starts_of(self, place: Place) -> Starts:
        """Return the kernels of a place."""
        rows = slice(place.first, place.end)
        length_ns = self.end_ns[rows] - self.start_ns[rows]
        return Starts(self.start_ns[rows], self.family[rows], length_ns)


def pool_of(profiles: Sequence[tuple[Kernels, str, int]]) -> KernelPool:
    """Return the kernels of profiles; of each its kernels, host, and what to add to its times."""
    families: dict[str, int] = {}
    start, end, family = ([np.empty(0, np.int64)] for _ in range(3))
    places = []
    at = 0
    for kernels, host, offset_ns in profiles:
        start.append(kernels.start_ns + offset_ns)
        end.append(kernels.end_ns + offset_ns)
        names = [kernel_family(name) for name in kernels.names]
        numbers = [families.setdefault(n, len(families)) if n else NONE for n in names]
        family.append(np.array(numbers, np.int64)[kernels.name])
        for number, (pid, _) in enumerate(kernels.places):
            first, after = np.searchsorted(kernels.place, [number, number + 1]).tolist()
            places.append(Place(pid, host, at + first, at + after))
        at += len(kernels)
    start_ns, end_ns, every_family = map(np.concatenate, (start, end, family))
    return KernelPool(start_ns, end_ns, tuple(places), every_family, families)
