"""A table of bubbles: the idle time in the windows of one ratio, split by cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.idle import IdleIntervals, merge_pieces
from bubbleviz.model.arrow import ArrowTable, Column, convert_column
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import expand_ranges, find_first_rows, find_positions, group_rows
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.numbering import CodedTexts
from bubbleviz.model.operations import HostActivities, Operations


@dataclass(frozen=True, eq=False, repr=False)
class Bubbles(IdleIntervals, ArrowTable):
    """Idle intervals in the windows of one ratio, split by cause.

    Rows are sorted by (rank, iteration, start). All rows cut from the same idle interval have the
    same number in ``interval``.

    Arrow libraries (``polars.DataFrame(report.bubbles)``) get the same rows with the columns of
    ``--bubbles``, but ``before``, ``after`` and ``peer_operation`` are zero-based row numbers of
    the operations.

    Attributes:
        iteration: Iteration whose window contains the interval.
        peer_operation: Row of the operation that the rank waits for, or -1 if there is none. The
            awaited operation is the producer of the next operation's input, or the transfer ahead
            in the queue. In a collective, the awaited operation is the last one that the last
            member started before it entered the collective.
        collective: Row in ``kinds`` of the collective that the rank is in, or -1 if it is not in a
            collective.
        host_call: If the host is the cause, the CUDA call that the launching thread was in, as an
            index into the operations' ``names``. -1 otherwise.
        host_range: If the host is the cause, the innermost range that the launching thread was in,
            as an index into the operations' ``names``. -1 otherwise.
        ratio: Name of the ratio.
        operations: The table that contains the rows and names.
        kinds: NCCL name of each collective kind, or "" for a kind without a name.
    """

    iteration: Ints
    ratio: str = field(metadata={"shared": True})
    operations: Operations = field(metadata={"shared": True})
    kinds: tuple[str, ...] = field(default=(), metadata={"shared": True})

    @classmethod
    def of(
        cls,
        idle: IdleIntervals,
        iteration: Ints,
        *,
        ratio: str,
        operations: Operations,
        kinds: tuple[str, ...] = (),
    ) -> Bubbles:
        """Build a table of bubbles from idle time in the windows of a ratio.

        Args:
            idle: Pieces of idle time, each within a single window.
            iteration: Iteration whose window contains each piece.
            ratio: Name of the ratio.
            operations: The table that contains the rows and names.
            kinds: NCCL name of each collective kind.
        """
        columns = {name: getattr(idle, name) for name in IdleIntervals.column_names()}
        return cls(**columns, iteration=iteration, ratio=ratio, operations=operations, kinds=kinds)

    @classmethod
    def empty(cls, ratio: str, operations: Operations, kinds: tuple[str, ...] = ()) -> Bubbles:
        """Return an empty table for a ratio."""
        nothing = np.empty(0, np.int64)
        idle = IdleIntervals.make_empty()
        return cls.of(idle, nothing, ratio=ratio, operations=operations, kinds=kinds)

    @property
    def collectives(self) -> tuple[str, ...]:
        """Display name of each collective kind."""
        return tuple(kind or "other" for kind in self.kinds)

    @property
    def waits_in_collective(self) -> Bools:
        """Mask of the bubbles in which the rank waits for the last member of a collective to enter.

        A bubble inside a collective is marked if its cause is neither COLLECTIVE nor PROFILER.
        """
        within = (self.collective != NONE) & (self.cause != Cause.PROFILER)
        return np.asarray(within & (self.cause != Cause.COLLECTIVE), bool)

    def list_columns(self) -> dict[str, Ints | CodedTexts]:
        """Return the columns of ``--bubbles``, keyed by name.

        Operations are given by their row in ``operations``, or -1 if unknown.
        """
        operations = self.operations
        peer = np.append(operations.rank, NONE)[self.peer_operation]
        return {
            "ratio": CodedTexts(np.zeros(len(self), np.int64), [self.ratio]),
            "iteration": self.iteration,
            "rank": self.rank,
            "stage": operations.get_stages(self.rank),
            "interval": self.interval,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "idle_ns": self.end_ns - self.start_ns,
            "cause": CodedTexts(self.cause, [cause.label for cause in Cause]),
            "before": self.before,
            "after": self.after,
            "peer_operation": self.peer_operation,
            "peer_rank": peer,
            "peer_stage": operations.get_stages(peer),
            "collective": CodedTexts(self.collective, self.collectives),
            "host_call": CodedTexts(self.host_call, operations.names),
            "host_range": CodedTexts(self.host_range, operations.names),
            "global_rank": operations.get_global_ranks(self.rank),
            "peer_global_rank": operations.get_global_ranks(peer),
        }

    def arrow_columns(self) -> Mapping[str, Column]:
        """Return the columns of :meth:`list_columns` as Arrow columns."""
        return {name: convert_column(name, column) for name, column in self.list_columns().items()}


def add_host_activity(bubbles: Bubbles, hosts: HostActivities) -> Bubbles:
    """Set the host call and the host range of the bubbles that the host caused.

    Only bubbles whose cause is HOST change, and only if ``hosts`` has activities before the launch
    of the next operation:

    - ``host_call`` becomes the call name that takes the most time in the bubble, or -1 if it takes
      less than half of the bubble. The smaller name id wins ties.
    - ``host_range`` becomes the shortest range that takes at least half of the bubble. If there is
      none, ``host_range`` does not change.

    Args:
        bubbles: Bubbles with their causes.
        hosts: Activities of launching threads, sorted by the operation that was launched late.
    """
    hosts = hosts.take(hosts.operation != NONE)
    is_host = bubbles.cause == Cause.HOST
    host_bubbles = np.flatnonzero(
        is_host & (find_positions(hosts.operation, bubbles.after) != NONE)
    )
    if not len(host_bubbles):
        return bubbles
    pairs = _pair_with_activities(bubbles, host_bubbles, hosts)
    call_id, range_id = bubbles.host_call.copy(), bubbles.host_range.copy()
    call_id[host_bubbles] = NONE
    calls = _find_dominant_calls(pairs)
    call_id[pairs.bubble[calls]] = pairs.name_id[calls]
    ranges = _find_shortest_ranges(pairs)
    range_id[pairs.bubble[ranges]] = pairs.name_id[ranges]
    return replace(bubbles, host_call=call_id, host_range=range_id)


@dataclass(frozen=True, eq=False, repr=False)
class _HostPairs:
    """Pairs of a bubble and a host activity that precedes the launch of the next operation.

    Attributes:
        bubble: Row of the bubble.
        idle_ns: Length of the bubble.
        name_id: Index of the activity's name in the operations' ``names``.
        is_call: Whether the activity is a CUDA call rather than a range.
        length_ns: Length of the activity.
        overlap_ns: Time for which the bubble and the activity overlap; zero or negative if they do
            not overlap.
    """

    bubble: Ints
    idle_ns: Ints
    name_id: Ints
    is_call: Bools
    length_ns: Ints
    overlap_ns: Ints


def _pair_with_activities(
    bubbles: Bubbles, host_bubbles: Ints, hosts: HostActivities
) -> _HostPairs:
    """Pair each bubble with the host activities that precede the launch of the next operation.

    These activities are the rows of ``hosts`` whose ``operation`` equals the bubble's ``after``.

    Args:
        bubbles: Bubbles with their causes.
        host_bubbles: Rows of the bubbles to pair.
        hosts: Activities of launching threads, sorted by the operation that was launched late.
    """
    next_operation = bubbles.after[host_bubbles]
    low = np.searchsorted(hosts.operation, next_operation)
    high = np.searchsorted(hosts.operation, next_operation, side="right")
    pair, row = expand_ranges(low, high)
    bubble, activity = host_bubbles[pair], hosts.take(row)
    start_ns, end_ns = bubbles.start_ns[bubble], bubbles.end_ns[bubble]
    return _HostPairs(
        bubble=bubble,
        idle_ns=end_ns - start_ns,
        name_id=activity.name_id,
        is_call=activity.call == 1,
        length_ns=activity.end_ns - activity.start_ns,
        overlap_ns=np.minimum(activity.end_ns, end_ns) - np.maximum(activity.start_ns, start_ns),
    )


def _find_dominant_calls(pairs: _HostPairs) -> Ints:
    """Find the call name that takes the most time in each bubble.

    The time of a name is the total overlap of its calls with the bubble. The smaller name id wins
    ties. A bubble is left out if this time is less than half the bubble's length.

    Args:
        pairs: Pairs of a bubble and a host activity.

    Returns:
        One row of ``pairs`` per remaining bubble, sorted by bubble. The row is the first call with
        that name.
    """
    calls = np.flatnonzero(pairs.is_call & (pairs.overlap_ns > 0))
    names = group_rows(pairs.bubble[calls], pairs.name_id[calls])
    total_ns = group_sum(names.of_row, len(names), pairs.overlap_ns[calls])
    first = calls[names.first]
    longest = find_first_rows(pairs.bubble[first], -total_ns, pairs.name_id[first])
    longest = longest[2 * total_ns[longest] >= pairs.idle_ns[first[longest]]]
    return first[longest]


def _find_shortest_ranges(pairs: _HostPairs) -> Ints:
    """Find the shortest range that overlaps with at least half of each bubble.

    The first range wins ties. Bubbles without such a range are left out.

    Args:
        pairs: Pairs of a bubble and a host activity.

    Returns:
        One row of ``pairs`` per remaining bubble, sorted by bubble.
    """
    ranges = np.flatnonzero(~pairs.is_call & (2 * pairs.overlap_ns >= pairs.idle_ns))
    return ranges[find_first_rows(pairs.bubble[ranges], pairs.length_ns[ranges])]


def merge_bubbles(pieces: Bubbles, producer: Ints) -> Bubbles:
    """Merge adjacent pieces with the same cause, and set the operation that each bubble waits for.

    Pieces are merged only if they are equal in rank, iteration, interval, cause, peer operation and
    collective. Then ``peer_operation`` is set as follows:

    - If it is already set, it is kept, unless the cause is PROFILER.
    - If the bubble is in a collective or its cause is DRAIN, it is -1.
    - Otherwise, it is the producer of the next operation's input.

    For bubbles whose cause is DRAIN, ``after`` is set to -1.

    Args:
        pieces: Bubbles whose ``peer_operation`` is set only for collectives and queued transfers.
        producer: For each operation, the row of the operation on another rank that produced its
            input, or -1 if there is none.
    """
    if len(pieces) == 0:
        return pieces
    merged = merge_pieces(
        pieces, *("rank", "iteration", "interval", "cause", "peer_operation", "collective")
    )
    # The operation after the drain belongs to the next iteration, so it does not end a wait.
    next_operation = np.where(merged.cause == Cause.DRAIN, NONE, merged.after)
    takes_input = (next_operation != NONE) & (merged.collective == NONE)
    peer = np.where(takes_input, np.append(producer, NONE)[next_operation], NONE)
    has_peer = (merged.peer_operation != NONE) & (merged.cause != Cause.PROFILER)
    return merged.replace_columns(
        after=next_operation, peer_operation=np.where(has_peer, merged.peer_operation, peer)
    ).compact()
