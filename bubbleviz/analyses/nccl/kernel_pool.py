"""Kernel pool: NCCL's kernels of all profiles, on one clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bubbleviz.analyses.nccl.kernels import kernel_family
from bubbleviz.analyses.nccl.profiles import NcclProfile
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.values import frozen

# Starts: where recorded operations and profiled kernels begin, and which can be the same.


#: Kernels last as long as their work but for this share of their length and this time: the two are
#: recorded at different points.
_LENGTH_SHARE, _LENGTH_SLACK_NS = 0.25, 50_000


@frozen
class Starts:
    """Where things begin on some clock: columns of one length.

    Attributes:
        start_ns: start of each, ascending.
        family: number of what it does; -1 for anything.
        length_ns: how long it lasts; -1 unknown.
    """

    start_ns: Ints
    family: Ints
    length_ns: Ints


@frozen
class StartPairs:
    """Recorded operations and the kernels that they may be.

    Attributes:
        operations: as recorded.
        kernels: as profiled.
        tolerance_ns: the largest distance of an operation and its kernel on one clock.
    """

    operations: Starts
    kernels: Starts
    tolerance_ns: int

    def alike(self, row: Ints | int, kernel: Ints | slice) -> Bools:
        """Whether operations can be kernels: of one family, and about as long."""
        family, kernel_family = self.operations.family[row], self.kernels.family[kernel]
        length_ns, kernel_ns = self.operations.length_ns[row], self.kernels.length_ns[kernel]
        slack_ns = _LENGTH_SHARE * kernel_ns + _LENGTH_SLACK_NS
        fits = (length_ns < 0) | (np.abs(kernel_ns - length_ns) <= slack_ns)
        same = (family == kernel_family) | (family < 0) | (kernel_family < 0)
        return np.asarray(fits & same, bool)


@frozen
class Place:
    """A GPU as a process of a profile sees it, and its kernels in the pool.

    Attributes:
        pid: the process.
        first: its first kernel's row of the pool.
        end: the row after its last kernel.
        host: name of the host that the profile was recorded on.
    """

    pid: int
    first: int
    end: int
    host: str


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


def pool_of(profiles: Sequence[NcclProfile], offsets_ns: Sequence[int]) -> KernelPool:
    """Return the kernels of profiles.

    Args:
        profiles: as read.
        offsets_ns: what to add to the times of each.
    """
    families: dict[str, int] = {}
    start, end, family = ([np.empty(0, np.int64)] for _ in range(3))
    places = []
    at = 0
    for profile, offset_ns in zip(profiles, offsets_ns, strict=True):
        kernels = profile.kernels
        start.append(kernels.start_ns + offset_ns)
        end.append(kernels.end_ns + offset_ns)
        names = [kernel_family(name) for name in kernels.names]
        numbers = [families.setdefault(n, len(families)) if n else NONE for n in names]
        family.append(np.array(numbers, np.int64)[kernels.name])
        for number, (pid, _) in enumerate(kernels.places):
            first, after = np.searchsorted(kernels.place, [number, number + 1]).tolist()
            places.append(Place(pid, at + first, at + after, profile.source.host))
        at += len(kernels)
    return KernelPool(
        start_ns=np.concatenate(start),
        end_ns=np.concatenate(end),
        places=tuple(places),
        family=np.concatenate(family),
        families=families,
    )
