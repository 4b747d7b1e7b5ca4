"""Bubbles: the idle intervals in the windows of one ratio, with their cause, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.arrow import ArrowTable, Column, coded, identifiers, numbers
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import expanded, first_of_each, groups_of
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.operations import HostActivities, Operations
from bubbleviz.model.values import frozen


@frozen(shown=False)
class Bubbles(Table, ArrowTable):
    """Idle intervals in the windows of one ratio, one row a cause; -1 for none.

    In order of (rank, iteration, start). Rows of one idle interval have the same ``interval``.
    For Arrow's libraries (``polars.DataFrame(report.bubbles)``) a row is the same, with the columns
    of ``--bubbles``; but ``before``, ``after`` and ``peer_operation`` are row numbers of the
    operations, from 0.

    Attributes:
        rank: the idle rank.
        iteration: whose window it is.
        interval: number of the idle interval within the rank.
        start_ns: start on the report's clock.
        end_ns: end.
        cause: code of :class:`Cause`.
        before: row of the operation that ended last before the idle interval.
        after: row of the next operation.
        peer_operation: row of the operation on another rank whose result the next one takes; in a
            collective, that before which the last rank entered.
        collective: row of ``kinds``: the collective that runs, waiting or moving.
        host_call_id: row of the operations' ``names``: the CUDA call that the launching thread was
            in, where the host is the cause.
        host_range_id: likewise the innermost range.
        ratio: name of the ratio.
        operations: the table that rows and names refer to.
        kinds: NCCL's names of collectives; "" for what has none.
    """

    rank: Ints
    iteration: Ints
    interval: Ints
    start_ns: Ints
    end_ns: Ints
    cause: Ints
    before: Ints
    after: Ints
    peer_operation: Ints
    collective: Ints
    host_call_id: Ints
    host_range_id: Ints
    ratio: str = field(metadata={"shared": True})
    operations: Operations = field(metadata={"shared": True})
    kinds: tuple[str, ...] = field(default=(), metadata={"shared": True})

    @classmethod
    def none(cls, ratio: str, operations: Operations, kinds: tuple[str, ...] = ()) -> Bubbles:
        """Return the table of a ratio without any rows."""
        columns: dict[str, Ints] = {name: np.empty(0, np.int64) for name in cls.column_names()}
        return cls(**columns, ratio=ratio, operations=operations, kinds=kinds)

    @property
    def collectives(self) -> tuple[str, ...]:
        """The names of the kinds of collectives, for people."""
        return tuple(kind or "other" for kind in self.kinds)

    @property
    def waits_in_collective(self) -> Bools:
        """Which are a collective's time before its last member entered."""
        within = (self.collective != NONE) & (self.cause != Cause.PROFILER)
        return np.asarray(within & (self.cause != Cause.COLLECTIVE), bool)

    def arrow_columns(self) -> Mapping[str, Column]:
        """Return the columns of ``--bubbles`` by name, operations by their rows."""
        operations = self.operations
        peer = np.append(operations.rank, NONE)[self.peer_operation]
        return {
            "ratio": coded(np.zeros(len(self), np.int64), [self.ratio]),
            "iteration": identifiers(self.iteration),
            "rank": numbers(self.rank),
            "stage": identifiers(operations.stage_of(self.rank)),
            "interval": numbers(self.interval),
            "start_ns": numbers(self.start_ns),
            "end_ns": numbers(self.end_ns),
            "idle_ns": numbers(self.end_ns - self.start_ns),
            "cause": coded(self.cause, [cause.label for cause in Cause]),
            "before": identifiers(self.before),
            "after": identifiers(self.after),
            "peer_operation": identifiers(self.peer_operation),
            "peer_rank": identifiers(peer),
            "peer_stage": identifiers(operations.stage_of(peer)),
            "collective": coded(self.collective, self.collectives),
            "host_call": coded(self.host_call_id, operations.names),
            "host_range": coded(self.host_range_id, operations.names),
        }


def with_host_activity(bubbles: Bubbles, hosts: HostActivities) -> Bubbles:
    """Return bubbles with the call and the range that the host was in, where it is the cause.

    A call is named where calls of its name take half of the bubble or more, a range where it is
    the shortest that does.

    Args:
        bubbles: idle intervals, by cause.
        hosts: what launching threads did, in order of the operation that was launched late.
    """
    hosts = hosts.take(hosts.operation != NONE)
    late = np.flatnonzero((bubbles.cause == Cause.HOST) & np.isin(bubbles.after, hosts.operation))
    if not len(late):
        return bubbles
    call_id, range_id = bubbles.host_call_id.copy(), bubbles.host_range_id.copy()
    call_id[late] = NONE
    spent = _spent_in(bubbles, late, hosts)
    calls = _most_of(spent.take(spent.call & (spent.overlap_ns > 0)))
    call_id[calls.bubble] = calls.name_id
    ranges = spent.take(~spent.call & (2 * spent.overlap_ns >= spent.idle_ns))
    ranges = ranges.take(first_of_each(ranges.bubble, ranges.length_ns))
    range_id[ranges.bubble] = ranges.name_id
    return replace(bubbles, host_call_id=call_id, host_range_id=range_id)


@frozen
class _HostTime(Table):
    """Pairs of a bubble and an activity of the host before the operation that ends it.

    Attributes:
        bubble: row of the bubbles.
        idle_ns: its length.
        call: whether the activity is a call; else it is a range.
        name_id: its name.
        length_ns: its length.
        overlap_ns: how much of the bubble it takes, or how far from it it is.
    """

    bubble: Ints
    idle_ns: Ints
    call: Bools
    name_id: Ints
    length_ns: Ints
    overlap_ns: Ints


def _spent_in(bubbles: Bubbles, late: Ints, hosts: HostActivities) -> _HostTime:
    """Return what the host did before the operations that end some bubbles."""
    low = np.searchsorted(hosts.operation, bubbles.after[late])
    high = np.searchsorted(hosts.operation, bubbles.after[late], side="right")
    pair, row = expanded(low, high)
    bubble = late[pair]
    start_ns, end_ns = bubbles.start_ns[bubble], bubbles.end_ns[bubble]
    host_start_ns, host_end_ns = hosts.start_ns[row], hosts.end_ns[row]
    return _HostTime(
        bubble=bubble,
        idle_ns=end_ns - start_ns,
        call=hosts.call[row] == 1,
        name_id=hosts.name_id[row],
        length_ns=host_end_ns - host_start_ns,
        overlap_ns=np.minimum(host_end_ns, end_ns) - np.maximum(host_start_ns, start_ns),
    )


def _most_of(calls: _HostTime) -> _HostTime:
    """Return a call of the name that takes most of each bubble, where that is half or more."""
    names = groups_of(calls.bubble, calls.name_id)
    total_ns = group_sum(names.of_row, len(names), calls.overlap_ns)
    calls = calls.take(names.first)
    most = first_of_each(calls.bubble, -total_ns, calls.name_id)
    return calls.take(most[2 * total_ns[most] >= calls.idle_ns[most]])
