"""Place check: work of a process or device that nothing else in the profile mentions is left out.

A damaged identifier gives a kernel a process, or a device, of its own::

    calls of      process 1   process 2
    devices of    process 1   process 2
    kernels of    process 1   process 2   process 7     a few: left out
                   GPU 0       GPU 1       GPU 1

Where many kernels ran there, it is the lists that lack something: they are kept, and that is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import Activities, Device, Source, pid_of
from bubbleviz.model.texts import counted, listed
from bubbleviz.model.values import frozen

#: Work of an unknown place is damaged if it is no more than such a part of all work.
_FEW = 100
#: Rows that are counted together: numpy counts in columns of 64 bits.
_PIECE = 1 << 16
#: Places that a limitation lists.
_LISTED = 4


@frozen
class PlaceCheck:
    """Which work ran where something can have run.

    Attributes:
        places: process, device and amount of work of each rank.
        left_out: which ranks are left out.
        unlisted: which others have a device that the profile does not list.
    """

    places: tuple[tuple[int, int, int], ...]
    left_out: Bools
    unlisted: Bools

    def kept(self, activities: Activities) -> Bools | None:
        """Return which work is kept; None for all."""
        return ~self.left_out[activities.rank] if self.left_out.any() else None

    def without_ranks(self, activities: Activities) -> Activities:
        """Return kept work, with ranks numbered anew."""
        if not self.left_out.any():
            return activities
        number = (np.cumsum(~self.left_out) - 1).astype(activities.rank.dtype)
        return replace(
            activities, rank=number[activities.rank], ranks=activities.ranks[~self.left_out]
        )

    def limitations(self, source: Source) -> Iterator[Limitation]:
        """Yield what was left out of a profile, and what its lists lack."""
        count = self._work(self.left_out)
        if count:
            reason = (
                f"{source.path}: {self._listed(self.left_out, source)}: no call and no list of "
                "devices mentions these, so an identifier is damaged; they are left out"
            )
            yield Limitation(
                "kernels and copies of unknown processes or devices",
                reason,
                count,
                LimitationKind.COSTS,
            )
        if self.unlisted.any():
            reason = (
                f"{source.path}: {self._listed(self.unlisted, source)}: "
                f"{counted(self._work(self.unlisted), 'kernel or copy', 'kernels and copies')} "
                "ran there, and are kept"
            )
            yield Limitation(
                "devices that the profile does not list", reason, int(self.unlisted.sum())
            )

    def _work(self, ranks: Bools) -> int:
        return sum(self.places[rank][2] for rank in np.flatnonzero(ranks).tolist())

    def _listed(self, ranks: Bools, source: Source) -> str:
        """Return some ranks in words."""
        chosen = [self.places[rank] for rank in np.flatnonzero(ranks).tolist()]
        words = [f"pid {pid_of(process)} {source.place(device)}" for process, device, _ in chosen]
        return listed(words, _LISTED)


def check_places(
    activities: Activities, devices: Sequence[Device], calling: Ints | None
) -> PlaceCheck:
    """Hold the processes and devices of work against the lists of devices, and the calls.

    Args:
        activities: kernels, then copies.
        devices: that the profile lists; empty where it lists none.
        calling: processes that made calls; None where no host's calls are known.
    """
    count = len(activities.ranks)
    work = _work_by_rank(activities, count)
    listed = {(device.pid, device.device_id) for device in devices}
    unlisted = np.array(
        [
            not listed & {(None, device), (pid_of(process), device)}
            for process, device in activities.ranks.tolist()
        ],
        bool,
    )
    if not listed or unlisted.all():
        unlisted[:] = False
    silent = np.zeros(count, bool)
    if calling is not None and len(calling):
        silent = ~np.isin(activities.ranks[:, 0], calling)
    few = work <= max(1, len(activities) // _FEW)
    left_out = (unlisted | silent) & few
    if left_out.all():
        left_out[:] = False
    places = tuple(
        (process, device, own)
        for (process, device), own in zip(activities.ranks.tolist(), work.tolist(), strict=True)
    )
    return PlaceCheck(places, left_out, unlisted & ~left_out)


def _work_by_rank(activities: Activities, count: int) -> Ints:
    """Return how much work each rank has; in pieces, as memory is short."""
    work = np.zeros(count, np.int64)
    for at in range(0, len(activities), _PIECE):
        work += np.bincount(activities.rank[at : at + _PIECE], minlength=count)
    return work
