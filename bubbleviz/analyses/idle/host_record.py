"""Host record: the ranges and calls of threads, as activities of hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from bubbleviz.analyses.idle.gap_calls import GapCalls
from bubbleviz.analyses.idle.held_work import HostWaits
from bubbleviz.analyses.idle.host_timeline import HostIntervals, collapsed
from bubbleviz.conventions.host_activities import (
    FRAME,
    KNOWN,
    LAUNCH,
    OTHER_DEVICE,
    TRANSFER,
    WAITING,
    ActivityLookup,
)
from bubbleviz.model.columns import NONE, Ints, Table, joined
from bubbleviz.model.grouping import looked_up
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.profile import Activities, CallLog, Calls, Ranges, process_of
from bubbleviz.model.values import frozen

#: Numbers of activities from here on are calls in which a host waited for known work.
SYNCHRONISED = 1 << 40


@frozen
class SynchronisedCalls(Table):
    """Calls in which a host waited for work that is known.

    Attributes:
        by: row of the activities: the work.
        name_id: row of ``names``.
        names: distinct names of calls.
    """

    by: Ints
    name_id: Ints
    names: tuple[str, ...] = field(metadata={"shared": True})


@frozen
class HostRecord:
    """What the threads of a profile did around gaps.

    Attributes:
        ranges: ranges of threads that launch, and of main threads, without steps.
        calls: calls in gaps that launched nothing.
        launches: calls in gaps that launched an activity.
        launched: the activity that each of these launched.
        synchronised: calls in gaps that waited for known work; the activities of ``calls`` that are
            :data:`SYNCHRONISED` or more count from there in them.
    """

    ranges: HostIntervals
    calls: HostIntervals
    launches: HostIntervals
    launched: Ints
    synchronised: SynchronisedCalls


def host_record_of(
    ranges: Ranges,
    gap_calls: GapCalls,
    log: CallLog,
    lookup: ActivityLookup,
    numbers: Numbering[str],
    waits: HostWaits,
) -> HostRecord:
    """Return the ranges and calls of threads as activities.

    Args:
        ranges: of threads that launch, and of main threads, without steps.
        gap_calls: the calls that matter.
        log: of the profile's calls, for their names.
        lookup: activities of names.
        numbers: of the activities' names.
        waits: calls in which a host waited for work that is known.
    """
    calls = gap_calls.calls
    lasting = calls.end_ns - calls.start_ns >= gap_calls.shortest_ns
    launching = gap_calls.launched != NONE
    others = calls.take(lasting & ~launching)
    launches = calls.take(lasting & launching)
    of_range = [lookup.of(name) for name in ranges.names]
    range_activity = np.array([numbers.number(name) for name, _ in of_range], np.int64)
    range_strength = np.array([strength for _, strength in of_range], np.int64)
    calls_in_gaps, synchronised = _calls(others, log.names(others.row), lookup, numbers, waits)
    return HostRecord(
        ranges=collapsed(
            _intervals(ranges, range_activity[ranges.name_id], range_strength[ranges.name_id]),
            FRAME,
        ),
        calls=calls_in_gaps,
        launches=_intervals(
            launches, np.zeros(len(launches), np.int64), np.full(len(launches), KNOWN)
        ),
        launched=gap_calls.launched[lasting & launching],
        synchronised=synchronised,
    )


def _calls(
    calls: Calls,
    names: Sequence[str],
    lookup: ActivityLookup,
    numbers: Numbering[str],
    waits: HostWaits,
) -> tuple[HostIntervals, SynchronisedCalls]:
    """Return calls that launched nothing as activities, and those that waited for known work.

    Args:
        calls: in gaps.
        names: of them.
        lookup: activities of names.
        numbers: of the activities' names.
        waits: calls in which a host waited for work that is known.
    """
    of_call = {name: lookup.call(name) for name in set(names)}
    activity = np.array([numbers.number(of_call[name][0]) for name in names], np.int64)
    strength = np.array([of_call[name][1] for name in names], np.int64)
    rows = np.flatnonzero(np.array([of_call[name][0] == WAITING for name in names], bool))
    rows = rows if len(waits) else rows[:0]
    ids = process_of(calls.thread[rows]), calls.correlation_id[rows].astype(np.int64)
    keys = waits.process, waits.correlation_id
    by = looked_up(keys, waits.by, ids) if len(rows) else rows
    rows, by = rows[by != NONE], by[by != NONE]
    activity[rows] = SYNCHRONISED + np.arange(len(rows))
    texts = Numbering[str]()
    name_id = np.array([texts.number(names[row]) for row in rows.tolist()], np.int64)
    synchronised = SynchronisedCalls(by, name_id, texts.values)
    return _intervals(calls, activity, strength), synchronised


def _intervals(rows: Ranges | Calls, activity: Ints, strength: Ints) -> HostIntervals:
    return HostIntervals(rows.thread, rows.start_ns, rows.end_ns, activity, strength)


def host_of_rank(
    record: HostRecord, activities: Activities, rank: int, threads: Ints, numbers: Numbering[str]
) -> HostIntervals:
    """Return the ranges and calls of some threads as activities, seen from one rank.

    Args:
        record: what all threads did.
        activities: kernels and copies.
        rank: that was idle meanwhile; launches for others are ``other device``.
        threads: that may have kept it waiting.
        numbers: of the activities' names.
    """
    elsewhere = activities.rank[record.launched] != rank
    copies = record.launched >= activities.kernels
    activity = np.where(
        elsewhere,
        numbers.number(OTHER_DEVICE),
        np.where(copies, numbers.number(TRANSFER), numbers.number(LAUNCH)),
    )
    calls = record.launches
    launches = HostIntervals(calls.thread, calls.start_ns, calls.end_ns, activity, calls.strength)
    tables = (record.ranges, record.calls, launches)
    return joined([table.take(np.isin(table.thread, threads)) for table in tables])
