"""What linking gives: the call and the range of each activity, and the calls without work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from bubbleviz.interpret.linking.lost_kernels import LostKernels
from bubbleviz.interpret.linking.row_check import RowCheck
from bubbleviz.interpret.linking.time_check import PlaceCheck, TimeCheck
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import Activities, CallLog, Calls, Source, impossible_times
from bubbleviz.model.values import frozen

#: What stands for the launch of work whose launch is unknown: the end of time.
NEVER = int(np.iinfo(np.int64).max)


class LinkRule(IntEnum):
    """The rule by which an activity got its operation."""

    UNLINKED = 0
    OUTSIDE = 1
    OWN_THREAD = 2
    CROSS_THREAD = 3
    AMBIGUOUS = 4
    HELPER_THREAD = 5


@frozen
class Links(Table):
    """For each activity (kernel or copy): its call and its range; -1 is none.

    Attributes:
        call: row of the launching call.
        launched_ns: when that began; means nothing where there is none.
        thread: row of ``threads``; as ``launched_ns``.
        range: row of the range whose operation it belongs to.
        rule: code of :class:`LinkRule`.
        threads: that made calls.
    """

    call: Codes
    launched_ns: Ints
    thread: Codes
    range: Codes
    rule: npt.NDArray[np.int8]
    threads: Ints = field(metadata={"shared": True})

    def without_calls(self) -> Links:
        """Return the links without the launching calls."""
        return replace(self, call=np.full(len(self), NONE, np.int32))

    def calls_of(self, rows: Codes, calls: CallLog) -> Calls:
        """Return the call of each of some activities, none of which lacks one."""
        called, of_row = np.unique(self.call[rows], return_inverse=True)
        return calls.at(called.astype(np.int64)).take(of_row)

    def launch_times_ns(self, rows: Codes) -> Ints:
        """Return when the host launched some activities; the end of time where that is unknown."""
        known = self.call[rows] != NONE
        return np.where(known, self.launched_ns[rows], NEVER)


@frozen
class CallStarts:
    """When the host entered some calls, as short offsets from one time.

    Attributes:
        owner: number of the thread or process that made them.
        base_ns: the earliest of the times.
        after_ns: how long after it each call began, in as few bits as that needs.
    """

    owner: int
    base_ns: int
    after_ns: npt.NDArray[np.unsignedinteger[Any]]

    @classmethod
    def of(cls, owner: int, start_ns: Ints) -> CallStarts:
        """Return the starts of calls (at least one)."""
        base_ns = int(start_ns.min())
        after_ns = start_ns - base_ns
        return cls(owner, base_ns, after_ns.astype(np.min_scalar_type(int(after_ns.max()))))

    @property
    def start_ns(self) -> Ints:
        """When the host entered each call, shape (calls,)."""
        return self.after_ns.astype(np.int64) + self.base_ns


@frozen
class WorklessCalls:
    """Calls without work in the profile, of threads that launched some.

    Attributes:
        starts: of these calls, by process.
    """

    starts: tuple[CallStarts, ...]

    def starts_ns(self, process: int) -> Ints:
        """Return when the host entered the calls of a process, ascending."""
        times = [starts.start_ns for starts in self.starts if starts.owner == process]
        return np.sort(np.concatenate(times)) if times else np.empty(0, np.int64)


@frozen
class LinkResult:
    """What the calls of a profile give.

    Attributes:
        activities: kernels, then copies, whose times and places can be.
        links: of each of these.
        sound: which of the profile's work these are; None for all.
        times: what was left out for its times.
        places: what was left out for its process or device.
        workless: calls without work.
        lost: kernels that were launched and are not there; None where no host's calls are known.
        rows: what is recorded twice, or without a length; None where no host's calls are known.
        start_ns: when the first call began.
        end_ns: when the last one ended.
        long_calls: calls in which a thread spent real time; None where there are none.
        impossible: how many calls were left out for their times.
    """

    activities: Activities
    links: Links
    sound: Bools | None
    times: TimeCheck
    places: PlaceCheck
    workless: WorklessCalls
    lost: LostKernels | None
    rows: RowCheck | None
    start_ns: int
    end_ns: int
    long_calls: Calls | None
    impossible: int

    def limitations(self, source: Source, known: Sequence[Limitation]) -> Iterator[Limitation]:
        """Yield what a profile lacks, and what was left out of it for its times and places.

        Args:
            source: of the profile.
            known: what was noticed as it was read.
        """
        if self.lost:
            left_out = [n.count for n in known if n.kind is LimitationKind.KERNELS_LEFT_OUT]
            yield from self.lost.limitations(source.path, sum(left_out))
        yield from impossible_times(source.path, {f"{source.api} API calls": self.impossible})
        yield from self.times.limitations(source.path)
        yield from self.places.limitations(source)
        if self.rows:
            yield from self.rows.limitations(source.path)
