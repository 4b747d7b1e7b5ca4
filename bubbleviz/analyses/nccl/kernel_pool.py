"""Kernel pool: NCCL's kernels of all profiles, on one clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bubbleviz.analyses.nccl.kernel_names import kernel_family
from bubbleviz.analyses.nccl.profiles import NcclProfile
from bubbleviz.analyses.nccl.starts import Starts
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.values import frozen


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
