"""Attribution: every nanosecond in which a device was idle, put down to what its host did.

The parts of a gap, first that fits:

1. ``profiler``: under the profiler's own overhead.
2. ``short gaps``: the gap is too short to be put down to anything.
3. ``unlinked``: it is unknown who launched the work after it.
4. Up to that call: what the launching thread did; where nothing is recorded of it, the thread
   that launches most, then the process's main thread; then ``untraced``.
5. In the call, and as long as a launch takes: ``launch``, or ``transfer`` for a copy.
6. From there on: ``device``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bubbleviz.analyses.idle.call_notes import CallNotes
from bubbleviz.analyses.idle.host_timeline import Doings, Stretches, collapsed, told
from bubbleviz.analyses.idle.idle_gaps import Gaps, Launched, covered, cuts_of, split
from bubbleviz.conventions.host_activities import (
    DEVICE,
    FRAME,
    KNOWN,
    LAUNCH,
    OTHER_DEVICE,
    PROFILER,
    SHORT,
    TRANSFER,
    UNLINKED,
    UNTRACED,
    ActivityLookup,
)
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints, Table, joined
from bubbleviz.model.profile import Activities, CallLog, Calls, Ranges


@dataclass
class ActivityNumbers:
    """Numbers of the names of activities, in the order in which they come."""

    numbers: dict[str, int] = field(default_factory=dict)

    def of(self, name: str) -> int:
        """Return the number of a name."""
        return self.numbers.setdefault(name, len(self.numbers))

    def names(self) -> tuple[str, ...]:
        """Return the names, by number."""
        return tuple(self.numbers)


@dataclass(frozen=True)
class Host:
    """What the threads of a profile did, as far as gaps are told by it.

    Attributes:
        ranges: ranges of threads that launch, and of main threads, without steps.
        calls: calls in gaps that launched nothing.
        launches: calls in gaps that launched something.
        launched: the activity that each of these launched.
    """

    ranges: Doings
    calls: Doings
    launches: Doings
    launched: Ints


def host_of(
    ranges: Ranges, notes: CallNotes, log: CallLog, lookup: ActivityLookup, numbers: ActivityNumbers
) -> Host:
    """Return what threads did.

    Args:
        ranges: that tell it.
        notes: calls that do.
        log: of the profile's calls, for their names.
        lookup: of activities by name.
        numbers: numbers activities.
    """
    calls = notes.calls
    lasting = calls.end_ns - calls.start_ns >= notes.shortest_ns
    launching = notes.launched != NONE
    others = calls.take(lasting & ~launching)
    launches = calls.take(lasting & launching)
    names = log.names(others.row)
    of_call = {name: lookup.call(name) for name in set(names)}
    of_range = [lookup.of(name) for name in ranges.names]
    ranged = _doings(
        ranges,
        np.array([numbers.of(name) for name, _ in of_range], np.int64)[ranges.name_id],
        np.array([strength for _, strength in of_range], np.int64)[ranges.name_id],
    )
    return Host(
        ranges=collapsed(ranged, FRAME),
        calls=_doings(
            others,
            np.array([numbers.of(of_call[name][0]) for name in names], np.int64),
            np.array([of_call[name][1] for name in names], np.int64),
        ),
        launches=_doings(
            launches, np.zeros(len(launches), np.int64), np.full(len(launches), KNOWN)
        ),
        launched=notes.launched[lasting & launching],
    )


def _doings(of: Ranges | Calls, activity: Ints, strength: Ints) -> Doings:
    return Doings(of.thread, of.start_ns, of.end_ns, activity, strength)


def doings_for(
    host: Host, activities: Activities, rank: int, threads: Ints, numbers: ActivityNumbers
) -> Doings:
    """Return what some threads did, as it counts for one rank.

    Args:
        host: what all threads did.
        activities: kernels and copies.
        rank: that was idle meanwhile.
        threads: that may have kept it waiting.
        numbers: numbers activities.
    """
    elsewhere = activities.rank[host.launched] != rank
    activity = np.where(
        elsewhere,
        numbers.of(OTHER_DEVICE),
        np.where(host.launched >= activities.kernels, numbers.of(TRANSFER), numbers.of(LAUNCH)),
    )
    launches = host.launches
    mine = Doings(launches.thread, launches.start_ns, launches.end_ns, activity, launches.strength)
    some = [own.take(np.isin(own.thread, threads)) for own in (host.ranges, host.calls, mine)]
    return joined(some)


@dataclass(frozen=True)
class Attributed(Table):
    """Idle time of a rank in pieces, disjoint and ascending; they add up to it.

    Attributes:
        gap: of each piece.
        start_ns: start.
        end_ns: end.
        activity: what it is put down to.
    """

    gap: Ints
    start_ns: Ints
    end_ns: Ints
    activity: Ints


def attribute(
    gaps: Gaps,
    launched: Launched,
    doings: Doings,
    others: Sequence[int],
    overhead: intervals.Intervals,
    shortest_ns: int,
    numbers: ActivityNumbers,
) -> Attributed:
    """Put the idle time of a device down to what its host did.

    Args:
        gaps: its idle gaps.
        launched: who launched the work after each.
        doings: what threads did.
        others: threads that are looked at where nothing is recorded of the launching one.
        overhead: when the profiler held the process up.
        shortest_ns: shorter gaps are short.
        numbers: numbers activities.
    """
    cuts = cuts_of(gaps, launched)
    short = gaps.end_ns - gaps.start_ns < shortest_ns
    known = launched.thread != NONE
    row = np.arange(len(gaps))
    whole = np.where(short, numbers.of(SHORT), numbers.of(UNLINKED))
    in_call = np.where(launched.copies, numbers.of(TRANSFER), numbers.of(LAUNCH))
    device = np.full(len(gaps), numbers.of(DEVICE))
    looked_into = ~short & known
    asked = _told_host(
        Stretches(row, launched.thread, gaps.start_ns, cuts.entered_ns, np.full(len(row), NONE)),
        looked_into,
        doings,
        others,
    )
    told_of = np.where(asked.activity == NONE, numbers.of(UNTRACED), asked.activity)
    pieces = [
        (asked.owner, asked.start_ns, asked.end_ns, told_of),
        *(
            (row[some], start[some], end[some], activity[some])
            for some, start, end, activity in (
                (~looked_into, gaps.start_ns, gaps.end_ns, whole),
                (looked_into, cuts.entered_ns, cuts.under_way_ns, in_call),
                (looked_into, cuts.under_way_ns, gaps.end_ns, device),
            )
        ),
    ]
    gap, start_ns, end_ns, activity = (np.concatenate(c) for c in zip(*pieces, strict=True))
    order = np.argsort(start_ns, kind="stable")
    order = order[(end_ns > start_ns)[order]]
    found = Attributed(gap[order], start_ns[order], end_ns[order], activity[order])
    return _merged(_without(found, overhead, numbers))


def _told_host(
    asked: Stretches, looked_into: Bools, doings: Doings, others: Sequence[int]
) -> Stretches:
    """Return what the launching thread of each gap did, or else one of some other threads."""
    asked = asked.take(looked_into & (asked.end_ns > asked.start_ns))
    asked = told(asked, doings)
    for thread in others:
        same = (asked.activity == NONE) & (asked.thread != thread)
        other = asked.take(same)
        moved = Stretches(
            other.owner,
            np.full(len(other), thread, np.int64),
            other.start_ns,
            other.end_ns,
            other.activity,
        )
        asked = joined((asked.take(~same), told(moved, doings)))
    return asked


def _without(
    found: Attributed, overhead: intervals.Intervals, numbers: ActivityNumbers
) -> Attributed:
    """Return pieces of which those under the profiler's overhead are its own."""
    if len(overhead[0]) == 0:
        return found
    row, start_ns, end_ns = split(found.start_ns, found.end_ns, np.union1d(*overhead))
    held = covered(overhead, start_ns)
    activity = np.where(held, numbers.of(PROFILER), found.activity[row])
    return Attributed(found.gap[row], start_ns, end_ns, activity)


def _merged(found: Attributed) -> Attributed:
    """Return pieces in which neighbours of one activity in one gap are one."""
    first = np.ones(len(found.gap), bool)
    first[1:] = (found.gap[1:] != found.gap[:-1]) | (found.activity[1:] != found.activity[:-1])
    last = np.append(first[1:], True)[: len(first)]
    return Attributed(
        found.gap[first], found.start_ns[first], found.end_ns[last], found.activity[first]
    )


def names_around(ranges: Ranges, thread: int, start_ns: int, end_ns: int) -> tuple[str, ...]:
    """Return the ranges of a thread around a stretch of time, outermost first."""
    own = np.flatnonzero(
        (ranges.thread == thread) & (ranges.start_ns <= start_ns) & (end_ns <= ranges.end_ns)
    )
    length_ns = ranges.end_ns[own] - ranges.start_ns[own]
    order = np.lexsort((own, ranges.start_ns[own], -length_ns))
    return tuple(ranges.names[name] for name in ranges.name_id[own[order]].tolist())
