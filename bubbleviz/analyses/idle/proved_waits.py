"""Proved waits: what streams and hosts waited for, summed by who waited and for which work."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.analyses.idle.attribution import AttributedIdle
from bubbleviz.analyses.idle.blocked_gaps import KIND_NAMES, BlockedGaps, Kind
from bubbleviz.analyses.idle.devices import DeviceTime
from bubbleviz.analyses.idle.held_work import HeldWork, Waiting
from bubbleviz.analyses.idle.host_record import SynchronisedCalls
from bubbleviz.analyses.idle.waits import COPY, Awaited, ProvedWait, order_of
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.profile import Activities, Source
from bubbleviz.model.values import frozen


@frozen
class WaitNames:
    """Writes what waits name: streams, and work.

    Attributes:
        activities: of the profile.
        streams: of each activity.
        source: of the profile.
        rank: of the device that waits.
    """

    activities: Activities
    streams: Ints
    source: Source
    rank: int

    def stream(self, row: int) -> str:
        """Return the stream of an activity, with its device where that is another."""
        text = f"stream {int(self.streams[row])}"
        rank = int(self.activities.rank[row])
        if rank == self.rank:
            return text
        return f"{self.source.place(int(self.activities.ranks[rank, 1]))} {text}"

    def work(self, row: int) -> str:
        """Return the name of an activity."""
        name = int(self.activities.name_id[row])
        return COPY if name == NONE else self.activities.names[name]


@frozen
class RankWaits:
    """The waits of a device's streams, and of hosts while it was idle.

    Attributes:
        device: that they delayed.
        waiting: what the profile proves of waiting.
        kind: code of :class:`Kind` of what held work waited for.
        call_kind: of what the synchronised calls of hosts waited for.
        calls: synchronised calls of hosts.
        names: write what they name.
    """

    device: DeviceTime
    waiting: Waiting
    kind: Ints
    call_kind: Ints
    calls: SynchronisedCalls
    names: WaitNames

    def waits(self, blocked: BlockedGaps, idle: AttributedIdle) -> tuple[ProvedWait, ...]:
        """Return the waits, those with most time without compute first.

        Args:
            blocked: how long the stream of the work after each gap waited.
            idle: the device's idle time, attributed.
        """
        found = [*self._of_streams(blocked, idle), *self._of_hosts(idle)]
        return tuple(sorted(found, key=order_of))

    def awaited(self) -> Awaited:
        """Return how much of the exposed communication and copies streams waited for."""
        held, low_ns, high_ns = self._held()
        _, communication, copies = self.device.exposed()

        def shared(part: intervals.Intervals, kind: Kind) -> int:
            rows = self.kind[held] == kind
            waits = intervals.union(low_ns[rows], high_ns[rows])
            return intervals.measure(part) - intervals.measure(intervals.difference(part, waits))

        return Awaited(shared(communication, Kind.COMMUNICATION), shared(copies, Kind.COPY))

    def _held(self) -> tuple[Ints, Ints, Ints]:
        """Return the rows of the held work of the device, from when and until when it waited."""
        held: HeldWork = self.waiting.held
        rows = np.flatnonzero(self.names.activities.rank[held.work] == self.device.rank)
        low_ns = np.clip(held.start_ns[rows], *self.device.span_ns)
        high_ns = np.clip(held.end_ns[rows], *self.device.span_ns)
        lasting = high_ns > low_ns
        return rows[lasting], low_ns[lasting], high_ns[lasting]

    def _of_streams(self, blocked: BlockedGaps, idle: AttributedIdle) -> Iterator[ProvedWait]:
        held, low_ns, high_ns = self._held()
        if len(held) == 0:
            return
        table, activities = self.waiting.held, self.names.activities
        work, by = table.work[held], table.by[held]
        each = groups_of(
            self.waiting.streams[work],
            activities.rank[by].astype(np.int64),
            self.waiting.streams[by],
            activities.name_id[by].astype(np.int64),
            self.kind[held],
        )
        blocked_ns = intervals.group_sum(each.of_row, len(each), high_ns - low_ns)
        computing_ns = intervals.measure_within(self.device.busy.compute_ns, low_ns, high_ns)
        computing_ns = intervals.group_sum(each.of_row, len(each), computing_ns)
        idle_ns = self._idle_by_held(blocked, idle)[held]
        idle_ns = intervals.group_sum(each.of_row, len(each), idle_ns)
        count = np.bincount(each.of_row, minlength=len(each))
        columns = (each.first, count, blocked_ns, blocked_ns - computing_ns, idle_ns)
        for first, waits, spent, without_compute, idled in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            yield ProvedWait(
                waiting=self.names.stream(int(work[first])),
                stream=self.names.stream(int(by[first])),
                work=self.names.work(int(by[first])),
                kind=KIND_NAMES[Kind(int(self.kind[held[first]]))],
                waits=waits,
                blocked_ns=spent,
                without_compute_ns=without_compute,
                idle_ns=idled,
            )

    def _idle_by_held(self, blocked: BlockedGaps, idle: AttributedIdle) -> Ints:
        """Return the idle time that is attributed to each held work's wait."""
        held = blocked.held[idle.gap]
        begun_ns, until_ns = idle.start_ns, blocked.until_ns[idle.gap]
        rows = np.flatnonzero((held != NONE) & idle.blocked & (begun_ns < until_ns))
        spent_ns = np.zeros(len(self.waiting.held), np.int64)
        np.add.at(spent_ns, held[rows], idle.end_ns[rows] - idle.start_ns[rows])
        return spent_ns

    def _of_hosts(self, idle: AttributedIdle) -> Iterator[ProvedWait]:
        rows = np.flatnonzero(idle.synchronised != NONE)
        if len(rows) == 0:
            return
        calls, activities = self.calls, self.names.activities
        call = idle.synchronised[rows]
        by = calls.by[call]
        each = groups_of(
            calls.name_id[call],
            activities.rank[by].astype(np.int64),
            self.waiting.streams[by],
            activities.name_id[by].astype(np.int64),
            self.call_kind[call],
        )
        spent_ns = idle.end_ns[rows] - idle.start_ns[rows]
        spent_ns = intervals.group_sum(each.of_row, len(each), spent_ns)
        # A call may be in several gaps.
        pairs = groups_of(each.of_row, call)
        count = np.bincount(each.of_row[pairs.first], minlength=len(each))
        for first, waits, spent in zip(
            each.first.tolist(), count.tolist(), spent_ns.tolist(), strict=True
        ):
            yield ProvedWait(
                waiting=f"host, {calls.names[int(calls.name_id[call[first]])]}",
                stream=self.names.stream(int(by[first])),
                work=self.names.work(int(by[first])),
                kind=KIND_NAMES[Kind(int(self.call_kind[call[first]]))],
                waits=waits,
                blocked_ns=spent,
                without_compute_ns=spent,
                idle_ns=spent,
            )
