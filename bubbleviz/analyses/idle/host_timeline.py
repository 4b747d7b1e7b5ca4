"""Host timeline: what threads did at every instant of some stretches of time.

Of the ranges and calls around an instant the strongest tells, of equally strong ones the
innermost::

    range       ├─data loading (3)──────────────┤
    call            ├─cudaMemcpy (2)─┤            ├─cudaMalloc (2)─┤
    asked       ├───────────────────────────────────────────────────────┤
    told        ├─data loading──────────────────┤.├─cudaMalloc─────┤....    . nothing
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.analyses.idle.idle_gaps import split
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints, Table, joined
from bubbleviz.model.containment import Innermost, disjoint_layers


@dataclass(frozen=True)
class Doings(Table):
    """Ranges and calls of threads.

    Attributes:
        thread: whose.
        start_ns: start.
        end_ns: end.
        activity: number of what the host does in it.
        strength: how strongly that is told.
    """

    thread: Ints
    start_ns: Ints
    end_ns: Ints
    activity: Ints
    strength: Ints


def collapsed(doings: Doings, strength: int) -> Doings:
    """Return the same with what is so strong united on each thread, if it is all one activity.

    Frames of Python lie a hundred deep, and all tell the same.
    """
    alike = doings.strength == strength
    one = doings.take(alike)
    if len(one) == 0 or (one.activity != one.activity[0]).any():
        return doings
    threads, of = np.unique(one.thread, return_inverse=True)
    group, start_ns, end_ns = intervals.group_union(of, len(threads), one.start_ns, one.end_ns)
    activity, strengths = (
        np.full(len(group), value) for value in (one.activity[0], np.int64(strength))
    )
    united = Doings(threads[group], start_ns, end_ns, activity, strengths)
    return joined((doings.take(~alike), united))


@dataclass(frozen=True)
class Stretches(Table):
    """Stretches of time, those of one owner disjoint.

    Attributes:
        owner: what they belong to: a gap.
        thread: of which it is asked what it did.
        start_ns: start.
        end_ns: end.
        activity: what was told; -1 nothing.
    """

    owner: Ints
    thread: Ints
    start_ns: Ints
    end_ns: Ints
    activity: Ints


def told(asked: Stretches, doings: Doings) -> Stretches:
    """Return stretches cut where what is told changes, in order of (thread, start).

    Args:
        asked: stretches, those of one thread disjoint, none of them empty; one that an activity
            is told of already is left as it is.
        doings: ranges and calls.
    """
    done = asked.take(asked.activity != NONE)
    asked = asked.take(asked.activity == NONE)
    if len(asked) == 0 or len(doings) == 0:
        return joined((done, asked))
    asked = asked.take(np.lexsort((asked.start_ns, asked.thread)))
    threads, number = np.unique(asked.thread, return_inverse=True)
    extents = intervals.group_extents(number, len(threads), asked.start_ns, asked.end_ns)
    line = intervals.Packing.of(*extents)
    start, end = line.place(number, asked.start_ns), line.place(number, asked.end_ns)
    doings = doings.take(np.isin(doings.thread, threads))
    of = np.searchsorted(threads, doings.thread)
    doings_start = line.place(of, np.clip(doings.start_ns, extents[0][of], extents[1][of]))
    doings_end = line.place(of, np.clip(doings.end_ns, extents[0][of], extents[1][of]))
    near = np.flatnonzero(
        np.searchsorted(end, doings_start, side="right") < np.searchsorted(start, doings_end)
    )
    doings, doings_start, doings_end = doings.take(near), doings_start[near], doings_end[near]
    row, begin, stop = split(start, end, np.union1d(doings_start, doings_end))
    around = _strongest(doings, doings_start, doings_end).around(begin, stop)
    cut = Stretches(
        owner=asked.owner[row],
        thread=asked.thread[row],
        start_ns=begin - start[row] + asked.start_ns[row],
        end_ns=stop - start[row] + asked.start_ns[row],
        activity=np.append(doings.activity, NONE)[around],
    )
    return joined((done, cut))


def _strongest(doings: Doings, start: Ints, end: Ints) -> Innermost:
    """Return what finds the strongest around a stretch, of equally strong ones the innermost."""
    row = np.arange(len(doings))
    length_ns = doings.end_ns - doings.start_ns
    weakest_first = np.lexsort((row, doings.start_ns, -length_ns, doings.strength))
    depth = np.empty(len(row), np.int64)
    depth[weakest_first] = row
    return Innermost(start, end, depth, disjoint_layers(start, end))
