"""Launches: when the host launched what operations began with, and whether it came late."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.interpret.linking.links import Links
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Codes, Ints, Table
from bubbleviz.model.operations import (
    BusyIntervals,
    OperationKeys,
    OperationLaunches,
    RankOperations,
)
from bubbleviz.model.phases import COMPUTE
from bubbleviz.model.profile import CallLog


@dataclass(frozen=True)
class Begun:
    """The work that operations of a rank began with, and what they received last; -1 none.

    Attributes:
        rows: the rank's activities.
        first: of each operation, which of these its span starts with.
        receive: of each operation, which of these, launched inside it, ended last.
    """

    rows: Codes
    first: Codes
    receive: Codes

    def activity(self, which: Codes) -> Codes:
        """Return the activities; -1 none."""
        return np.where(which == NONE, NONE, np.append(self.rows, NONE)[which])


@dataclass(frozen=True)
class Late(Table):
    """Operations that were launched after their GPU, and their last receive, had come to an end.

    Attributes:
        operation: row of the operations.
        thread: thread that launched it.
        since_ns: when there was nothing more to wait for on the device.
        until_ns: when it was launched.
    """

    operation: Ints
    thread: Ints
    since_ns: Ints
    until_ns: Ints


def launches_of(
    begun: Begun, start_ns: Ints, links: Links, calls: CallLog
) -> tuple[OperationLaunches, Ints]:
    """Return the launches of a rank's operations, and the thread that made each; -1 unknown.

    Args:
        begun: what they began with.
        start_ns: when each of the rank's activities began.
        links: of all activities.
        calls: the profile's calls.
    """
    launched_ns, thread = _launched(begun.activity(begun.first), links, calls)
    received = begun.receive != NONE
    return (
        OperationLaunches(
            launched_ns=launched_ns,
            receive_launched_ns=_launched(begun.activity(begun.receive), links, calls)[0],
            receive_start_ns=np.where(received, np.append(start_ns, NONE)[begun.receive], NONE),
        ),
        thread,
    )


def _launched(activity: Codes, links: Links, calls: CallLog) -> tuple[Ints, Ints]:
    """Return when each of some activities (-1 none) was launched, and by which thread."""
    launched_ns = np.full(len(activity), NONE, np.int64)
    thread = launched_ns.copy()
    # The last place is that of no activity.
    known = np.flatnonzero((activity != NONE) & (np.append(links.call, NONE)[activity] != NONE))
    if len(known):
        used = links.calls_of(activity[known], calls)
        launched_ns[known], thread[known] = used.start_ns, used.thread
    return launched_ns, thread


def occupied_by(
    operations: OperationKeys, busy: BusyIntervals, outside: intervals.Intervals
) -> intervals.Intervals:
    """Return when a rank computed: in compute operations, or outside every one."""
    working = np.isin(operations.phase, COMPUTE)[busy.operation]
    return intervals.union(
        np.concatenate((busy.start_ns[working], outside[0])),
        np.concatenate((busy.end_ns[working], outside[1])),
    )


def late_launches(operations: RankOperations, thread: Ints, occupied: intervals.Intervals) -> Late:
    """Return the operations of a rank that the host launched while it had nothing to run.

    ::

        device     ████ F0 ████│           │████ F1 ████
        host                       launch F1
                               ├───┤  late

    Args:
        operations: of one rank.
        thread: that launched each; -1 unknown.
        occupied: when the rank computed.
    """
    compute = np.isin(operations.phase, COMPUTE)
    rows = np.flatnonzero(compute & (operations.has_span == 1) & (thread != NONE))
    at = np.searchsorted(occupied[0], operations.start_ns[rows]) - 1
    rows, at = rows[at >= 0], at[at >= 0]
    launched_ns, received_ns = operations.launched_ns[rows], operations.received_ns[rows]
    since_ns = occupied[1][at]
    waited = (received_ns != NONE) & (received_ns < launched_ns)
    since_ns = np.where(waited, np.maximum(since_ns, received_ns), since_ns)
    late = since_ns < launched_ns
    return Late(rows[late], thread[rows[late]], since_ns[late], launched_ns[late])


def last_received(received_ns: Ints, around: Ints, end_ns: Ints, rows: Ints) -> Codes:
    """Return for each operation the receive inside it that ended last; -1 none.

    Args:
        received_ns: when that was, of each operation.
        around: operation that each receive was launched inside of; -1 none.
        end_ns: end of each receive.
        rows: the receives.
    """
    last = np.full(len(received_ns), NONE, np.int32)
    held = np.flatnonzero(around >= 0)
    held = held[end_ns[held] == received_ns[around[held]]][::-1]
    last[around[held]] = rows[held]
    return last
