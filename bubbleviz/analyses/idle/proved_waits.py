"""Proved waits: what streams and hosts waited for, summed by who waited and for which work."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bubbleviz.analyses.idle.gaps import Device
from bubbleviz.analyses.idle.host import HostEvents
from bubbleviz.analyses.idle.waits import BLOCKED, KIND_NAMES, Waiting, kinds_of
from bubbleviz.conventions.kinds import Kinds
from bubbleviz.explain.idle import (
    IdleIntervals,
)
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE
from bubbleviz.model.grouping import Numbering, found_in, groups_of
from bubbleviz.model.profile import Activities, Profile
from bubbleviz.model.texts import printed_part
from bubbleviz.report.idle_summary import ProvedWait

#: The name of work that has none.
COPY_NAME = "copy or memset"


def work_name(activities: Activities, row: int) -> str:
    """Return the name of a kernel or copy."""
    name = int(activities.name_id[row])
    return COPY_NAME if name == NONE else printed_part(activities.names[name])


def proved_waits(
    device: Device,
    times: Mapping[str, intervals.Intervals],
    profile: Profile,
    waiting: Waiting,
    host: HostEvents,
    idle: IdleIntervals,
    numbers: Numbering[str],
    kinds: Kinds,
) -> tuple[tuple[ProvedWait, ...], int, int]:
    """Return the waits of a device's streams, and of hosts while it was idle.

    Args:
        device: that they delayed.
        times: When the device ran each kind of work.
        profile: with its work.
        waiting: what it proves of waiting.
        host: what threads did.
        idle: the device's idle time, attributed.
        numbers: of the activities' names.
        kinds: names of communication kernels.

    Returns:
        The waits, those with most time without compute first; then how much of the exposed
        communication, and of the exposed copies, streams waited for.
    """
    activities, held = profile.activities, waiting.held

    def stream(row: int) -> str:
        """Return the stream of an activity, with its device where that is another."""
        text, rank = f"stream {int(waiting.streams[row])}", int(activities.rank[row])
        if rank == device.rank:
            return text
        return f"{profile.source.place(int(activities.ranks[rank, 1]))} {text}"

    # Rows are waits of streams, then pieces of idle time in which a host waited.
    rows = np.flatnonzero(activities.rank[held.work] == device.rank)
    low_ns, high_ns = (np.clip(t[rows], *device.span_ns) for t in (held.start_ns, held.end_ns))
    lasting = high_ns > low_ns
    rows, low_ns, high_ns = rows[lasting], low_ns[lasting], high_ns[lasting]
    pieces = np.flatnonzero(idle.host_call != NONE)
    call, spent_ns = idle.host_call[pieces], idle.end_ns[pieces] - idle.start_ns[pieces]
    # A call may be in several gaps.
    once = np.zeros(len(pieces), np.int64)
    once[np.unique(call, return_index=True)[1]] = 1
    of_host = np.append(np.zeros(len(rows), np.int64), np.ones(len(pieces), np.int64))
    work, by = held.work[rows], np.append(held.by[rows], host.by[call])
    who = np.append(waiting.streams[work], host.call[call])
    kind = np.append(held.kind[rows], kinds_of(activities, host.by[call], kinds))
    computing_ns = intervals.measure_within(times["compute"], low_ns, high_ns)
    # Of the idle time before held work, what is attributed to its wait.
    at = found_in(held.work, idle.after)
    blocked = np.array([name in BLOCKED for name in numbers.values], bool)[idle.activity]
    before = np.flatnonzero(
        (at != NONE) & blocked & (idle.start_ns < np.append(held.end_ns, NONE)[at])
    )
    idle_ns = np.zeros(len(held), np.int64)
    np.add.at(idle_ns, at[before], idle.end_ns[before] - idle.start_ns[before])
    blocked_ns = high_ns - low_ns
    columns = (
        np.append(np.ones(len(rows), np.int64), once),
        np.append(blocked_ns, spent_ns),
        np.append(blocked_ns - computing_ns, spent_ns),
        np.append(idle_ns[rows], spent_ns),
    )
    rank, name = activities.rank[by].astype(np.int64), activities.name_id[by].astype(np.int64)
    each = groups_of(of_host, who, rank, waiting.streams[by], name, kind)
    sums = (intervals.group_sum(each.of_row, len(each), column).tolist() for column in columns)
    # A file may give a name several numbers, whose waits are the same.
    by_text: dict[tuple[str, str, str, str], list[int]] = {}
    for first, *spent in zip(each.first.tolist(), *sums, strict=True):
        key = (
            f"host, {host.calls[int(who[first])]}" if of_host[first] else stream(int(work[first])),
            stream(int(by[first])),
            work_name(activities, int(by[first])),
            KIND_NAMES[int(kind[first])],
        )
        earlier = by_text.get(key, [0] * len(spent))
        by_text[key] = [total + more for total, more in zip(earlier, spent, strict=True)]
    found = [ProvedWait(*key, *spent) for key, spent in by_text.items()]

    def awaited_ns(part: str, kind: str) -> int:
        of_kind = held.kind[rows] == KIND_NAMES.index(kind)
        waits = intervals.union(low_ns[of_kind], high_ns[of_kind])
        exposed = times[part]
        return intervals.measure(exposed) - intervals.measure(intervals.difference(exposed, waits))

    return (
        tuple(sorted(found, key=ProvedWait.order)),
        awaited_ns("exposed_communication", "communication"),
        awaited_ns("exposed_copy", "copy"),
    )
