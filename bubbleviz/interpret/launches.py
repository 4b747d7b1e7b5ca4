"""Launches: when the host launched what operations began with, and their last receive."""

from __future__ import annotations

import numpy as np

from bubbleviz.interpret.linking.links import Links
from bubbleviz.model.columns import NONE, Codes, Ints
from bubbleviz.model.operations import OperationLaunches
from bubbleviz.model.values import frozen


@frozen
class FirstWork:
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


def launches_of(work: FirstWork, start_ns: Ints, links: Links) -> tuple[OperationLaunches, Ints]:
    """Return the launches of a rank's operations, and the thread that made each; -1 unknown.

    Args:
        work: what they began with.
        start_ns: when each of the rank's activities began.
        links: of all activities.
    """
    launched_ns, thread = launched_by(work.activity(work.first), links)
    received = work.receive != NONE
    launches = OperationLaunches(
        launched_ns=launched_ns,
        receive_launched_ns=launched_by(work.activity(work.receive), links)[0],
        receive_start_ns=np.where(received, np.append(start_ns, NONE)[work.receive], NONE),
    )
    return launches, thread


def launched_by(activity: Codes, links: Links) -> tuple[Ints, Ints]:
    """Return when each of some activities (-1 none) was launched, and by which thread."""
    launched_ns = np.full(len(activity), NONE, np.int64)
    thread = launched_ns.copy()
    known = np.flatnonzero(activity != NONE)
    known = known[links.call[activity[known]] != NONE]
    launched = activity[known]
    launched_ns[known] = links.launched_ns[launched]
    thread[known] = links.threads[links.thread[launched]]
    return launched_ns, thread


def last_received(received_ns: Ints, around: Ints, end_ns: Ints, rows: Ints) -> Codes:
    """Return for each operation the receive inside it that ended last; -1 none.

    Args:
        received_ns: when that was, of each operation.
        around: operation that each receive was launched inside of; -1 none.
        end_ns: end of each receive.
        rows: the receives.
    """
    last = np.full(len(received_ns), NONE, np.int32)
    inside = np.flatnonzero(around >= 0)
    inside = inside[end_ns[inside] == received_ns[around[inside]]][::-1]
    last[around[inside]] = rows[inside]
    return last
