"""Moved times: joined recordings on other clocks, row by row, rather than joined once more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from bubbleviz.align.bounds.clocks import ProfileClock
from bubbleviz.align.merge import TIMES, JoinedRecordings
from bubbleviz.interpret.collectives import ReplicaCollectives
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.operations import HostActivities, RankIntervals, RunningTimes

IntervalsT = TypeVar(
    "IntervalsT",
    RankIntervals,
    RunningTimes,
    ReplicaCollectives,
    HostActivities,
    CollectiveIntervals,
)


def on_clocks(
    joined: JoinedRecordings, before: Sequence[ProfileClock], after: Sequence[ProfileClock]
) -> JoinedRecordings:
    """Return recordings that were joined on some clocks as they are on others.

    Args:
        joined: the recordings.
        before: the clocks of the profiles, none of which drifts.
        after: what they are to be.
    """
    moves = _Moves(joined, before, after)
    operations, busy = joined.operations, joined.busy
    rank, spanned = operations.rank, operations.has_span == 1
    columns = {}
    for name in TIMES:
        column = getattr(operations, name)
        known = spanned if name in ("start_ns", "end_ns") else column != NONE
        always = name.startswith("host") or bool(known.all())
        columns[name] = moves.of(rank, column, None if always else known)
    if busy.start_ns is operations.start_ns and busy.end_ns is operations.end_ns:
        busy = replace(busy, start_ns=columns["start_ns"], end_ns=columns["end_ns"])
    else:
        owner = rank[busy.operation]
        busy = replace(
            busy, start_ns=moves.of(owner, busy.start_ns), end_ns=moves.of(owner, busy.end_ns)
        )
    every = np.arange(len(joined.ranks))
    return replace(
        joined,
        recorded_start_ns=moves.of(every, joined.recorded_start_ns),
        recorded_end_ns=moves.of(every, joined.recorded_end_ns),
        operations=operations.changed(**columns),
        busy=busy,
        unattributed=moves.intervals(joined.unattributed),
        exposed=moves.intervals(joined.exposed),
        overheads=moves.intervals(joined.overheads),
        pauses=moves.intervals(joined.pauses),
        hosts=moves.intervals(joined.hosts),
        running=moves.intervals(joined.running),
        replica_collectives=moves.intervals(joined.replica_collectives),
        collectives=moves.intervals(joined.collectives),
    )


class _Moves:
    """By what times of each rank are moved; arguments as of :func:`on_clocks`."""

    def __init__(
        self,
        joined: JoinedRecordings,
        before: Sequence[ProfileClock],
        after: Sequence[ProfileClock],
    ) -> None:
        profile = np.array([rank.profile for rank in joined.ranks], np.int64)
        self._before_ns = np.array([clock.offset_ns for clock in before], np.int64)[profile]
        self._after_ns = np.array([clock.offset_ns for clock in after], np.int64)[profile]
        self._drift_ppm = np.array([clock.drift_ppm for clock in after])[profile]
        self._t0_ns = np.array([clock.t0_ns for clock in after], np.int64)[profile]
        self._done: dict[int, tuple[Ints, Ints]] = {}

    def of(self, rank: Ints, times_ns: Ints, known: Bools | None = None) -> Ints:
        """Return times of some ranks on the clocks after; where they are not known, none."""
        if id(times_ns) not in self._done:
            # Where a column is two things, it stays one. It is kept, so that its id stays its own.
            self._done[id(times_ns)] = times_ns, self._moved(rank, times_ns, known)
        return self._done[id(times_ns)][1]

    def _moved(self, rank: Ints, times_ns: Ints, known: Bools | None) -> Ints:
        if known is not None and not known.any():
            return times_ns
        moved = times_ns + (self._after_ns - self._before_ns)[rank]
        if self._drift_ppm.any():
            own_ns = times_ns - self._before_ns[rank]
            drifted = (own_ns - self._t0_ns[rank]) * self._drift_ppm[rank] * 1e-6
            moved += np.rint(drifted).astype(np.int64)
        return moved if known is None else np.where(known, moved, NONE)

    def intervals(self, table: IntervalsT) -> IntervalsT:
        """Return intervals of ranks on the clocks after."""
        if len(table) == 0:
            return table
        return replace(
            table,
            start_ns=self.of(table.rank, table.start_ns),
            end_ns=self.of(table.rank, table.end_ns),
        )
