"""Time check: work whose times contradict its launching call, or the capture, is left out.

::

    calls          ├──────── capture ────────┤
    launch         │     ▼                   │
    sound          │      ████               │ ██     launched late in the capture, ended after it
    left out       │ ██                      │        began before its own launch
    left out   ██  │                         │    ███ lies outside the capture, and far from it

The clocks of a GPU and its host differ by microseconds, and by milliseconds where the profiler
corrects their drift badly. Such a difference shows in many kernels alike, and then nothing is left
out; a damaged time is alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.model.capture import outside_capture
from bubbleviz.model.columns import NONE, Bools, Codes, Ints
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import (
    IMPOSSIBLE_NS,
    Activities,
    Device,
    Source,
    outside_limitation,
    pid_of,
)
from bubbleviz.model.texts import counted, listed
from bubbleviz.model.values import frozen

#: Work may begin so much before its launching call, as clocks differ; ns.
_CLOCK_GRAIN_NS = 100_000
#: So much where many kernels do; ns.
_CLOCK_DRIFT_NS = 10_000_000
#: Such a part of all kernels are many.
_MANY = 20
#: Rows that are looked at together.
_PIECE = 1 << 16


@frozen
class TimeCheck:
    """Which work has times that can be.

    Attributes:
        sound: which kernels and copies are kept; None for all.
        early: how many are left out, for they began before their launching call.
        outside: how many more are left out, for they lie outside the capture.
        skewed: how many are kept though they began before their launching call, as clocks differ.
        skew_ns: how much before it at most.
    """

    sound: Bools | None
    early: int
    outside: int
    skewed: int
    skew_ns: int

    def limitations(self, path: str) -> Iterator[Limitation]:
        """Yield what was left out of a profile, and how far its clocks differ."""
        if self.early:
            reason = f"{path}: they start before the call that launched them; they are left out"
            yield Limitation(
                "kernels and copies before their launching call",
                reason,
                self.early,
                LimitationKind.KERNELS_LEFT_OUT,
            )
        if self.outside:
            kind = LimitationKind.KERNELS_LEFT_OUT
            yield outside_limitation("kernels and copies", path, self.outside, kind)
        if self.skewed:
            reason = (
                f"{path}: many start before the call that launched them, by up to "
                f"{self.skew_ns / 1e6:,.3f} ms, so the clocks of GPU and host differ; they are "
                "kept, and what the host did before them is uncertain by as much"
            )
            yield Limitation("the clock of the GPU", reason, self.skewed)


def check_times(
    activities: Activities, call: Codes, launched_ns: Ints, capture_ns: tuple[int, int] | None
) -> TimeCheck:
    """Hold the times of work against its launching call and the capture.

    Args:
        activities: kernels, then copies.
        call: the launching call of each; -1 unknown.
        launched_ns: when that began.
        capture_ns: start of the first call and end of the last; None where no host made them.
    """
    early = np.zeros(0, bool)
    skewed = skew_ns = 0
    if _any_early(activities.start_ns, call, launched_ns):
        early, skewed, skew_ns = _early(activities, call, launched_ns)
    outside = outside_capture(activities.start_ns, activities.end_ns, capture_ns)
    if not early.any() and outside is None:
        return TimeCheck(None, 0, 0, skewed, skew_ns)
    sound = np.ones(len(activities), bool)
    sound[: len(early)] = ~early
    beyond = 0
    if outside is not None:
        beyond = int((outside & sound).sum())
        sound &= ~outside
    return TimeCheck(sound, int(early.sum()), beyond, skewed, skew_ns)


def _any_early(start_ns: Ints, call: Codes, launched_ns: Ints) -> bool:
    """Tell whether any work begins before its call; in pieces, as memory is short."""
    pieces = (slice(at, at + _PIECE) for at in range(0, len(call), _PIECE))
    return any(
        bool(((start_ns[p] < launched_ns[p] - _CLOCK_GRAIN_NS) & (call[p] != NONE)).any())
        for p in pieces
    )


def _early(activities: Activities, call: Codes, launched_ns: Ints) -> tuple[Bools, int, int]:
    """Return which work began before its call, what is kept of it, and by how much (ns).

    The clock of each device is judged for itself.
    """
    early = np.zeros(len(activities), bool)
    skewed = skew_ns = 0
    for rank in range(len(activities.ranks)):
        rows = np.flatnonzero((activities.rank == rank) & (call != NONE))
        delay_ns = activities.start_ns[rows] - launched_ns[rows]
        left_out = delay_ns < -_allowed(delay_ns)
        kept = (delay_ns < -_CLOCK_GRAIN_NS) & ~left_out
        if kept.any():
            skewed += int(kept.sum())
            skew_ns = max(skew_ns, int(-delay_ns[kept].min()))
        early[rows[left_out]] = True
    return early, skewed, skew_ns


def _allowed(delay_ns: Ints) -> int:
    """Return how long before its call work may begin (ns); for ever where most of it does."""
    negative = int((delay_ns < 0).sum())
    before = int((delay_ns < -_CLOCK_GRAIN_NS).sum())
    if 2 * negative > len(delay_ns):
        return IMPOSSIBLE_NS
    many = before > max(1, len(delay_ns) // _MANY) or negative >= 2 * before > 0
    return _CLOCK_DRIFT_NS if many else _CLOCK_GRAIN_NS


# Place check: work of a process or device that nothing else in the profile mentions is left out.
#
# A damaged identifier gives a kernel a process, or a device, of its own::
#
#     calls of      process 1   process 2
#     devices of    process 1   process 2
#     kernels of    process 1   process 2   process 7     a few: left out
#                    GPU 0       GPU 1       GPU 1
#
# Where many kernels ran there, it is the lists that lack something: they are kept, and that is
# told.


#: Work of an unknown place is damaged if it is no more than such a part of all work.
_FEW = 100
#: Rows that are counted together: numpy counts in columns of 64 bits.
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
