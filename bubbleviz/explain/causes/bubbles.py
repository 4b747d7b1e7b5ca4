"""Bubbles: the idle intervals in the windows of one ratio, with their cause, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field, replace

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.arrow import ArrowTable, Column, coded, identifiers, numbers
from bubbleviz.model.columns import NONE, Ints, Table
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
        peer_operation: row of the operation on another rank whose result the next one takes.
        host_call_id: row of the operations' ``names``: the CUDA call that the launching thread was
            in, where the host is the cause.
        host_range_id: likewise the innermost range.
        ratio: name of the ratio.
        operations: the table that rows and names refer to.
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
    host_call_id: Ints
    host_range_id: Ints
    ratio: str = field(metadata={"shared": True})
    operations: Operations = field(metadata={"shared": True})

    @classmethod
    def none(cls, ratio: str, operations: Operations) -> Bubbles:
        """Return the table of a ratio without any rows."""
        columns: dict[str, Ints] = {name: np.empty(0, np.int64) for name in cls.column_names()}
        return cls(**columns, ratio=ratio, operations=operations)

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
    call_id, range_id = bubbles.host_call_id.copy(), bubbles.host_range_id.copy()
    late = np.flatnonzero((bubbles.cause == Cause.HOST) & np.isin(bubbles.after, hosts.operation))
    # At most as many as late operations are recorded: some thousand a profile.
    for row in late.tolist():
        low, high = np.searchsorted(hosts.operation, (bubbles.after[row], bubbles.after[row] + 1))
        activities = hosts.take(slice(int(low), int(high)))
        start_ns, end_ns = bubbles.start_ns[row], bubbles.end_ns[row]
        half_ns = (end_ns - start_ns) / 2
        overlap_ns = np.minimum(activities.end_ns, end_ns) - np.maximum(
            activities.start_ns, start_ns
        )
        total_ns: Counter[int] = Counter()
        for name, spent_ns, is_call in zip(
            activities.name_id.tolist(), overlap_ns.tolist(), activities.call.tolist(), strict=True
        ):
            if is_call and spent_ns > 0:
                total_ns[name] += spent_ns
        name, most_ns = max(
            total_ns.items(), key=lambda pair: (pair[1], -pair[0]), default=(NONE, 0)
        )
        call_id[row] = name if most_ns >= half_ns else NONE
        ranges = np.flatnonzero((activities.call == 0) & (overlap_ns >= half_ns))
        if len(ranges):
            shortest = ranges[np.argmin((activities.end_ns - activities.start_ns)[ranges])]
            range_id[row] = activities.name_id[shortest]
    return replace(bubbles, host_call_id=call_id, host_range_id=range_id)
