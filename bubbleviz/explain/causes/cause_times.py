"""Cause times: how long ranks were idle for each cause, in each window; they add up exactly.

Idle time before a rank's first operation of an iteration is its warm-up, and after its last one its
drain, unless the profiler or a collective that moves data takes it; in between, idle time keeps its
own cause::

    window   ├── warmup ──┤ first operation ... last operation ├── drain ──┤
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from bubbleviz.align.waits import Arrivals
from bubbleviz.count.ratios import CountedWork, RatioDefinition, ratio_definitions
from bubbleviz.explain.causes.cause import ALWAYS, Cause
from bubbleviz.explain.causes.idle import IdleIntervals, forward_waits, idle_of
from bubbleviz.explain.dependencies import Dependencies, Inputs
from bubbleviz.explain.stretch import Stretch
from bubbleviz.model import intervals
from bubbleviz.model.arrow import ArrowTable, Column, column_of
from bubbleviz.model.columns import NONE, Bools, Ints, Table, constant
from bubbleviz.model.grouping import CodedTexts, expanded, first_of_each, found_in, groups_of
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.operations import HostActivities, Operations

# Bubbles: the idle intervals in the windows of one ratio, with their cause, as a table.


@dataclass(frozen=True, eq=False, repr=False)
class Bubbles(Table, ArrowTable):
    """Idle intervals in the windows of one ratio, one row per cause; -1 for none.

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
            collective, that before which the last rank entered; of a queued transfer, the one in
            front.
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
    def empty(cls, ratio: str, operations: Operations, kinds: tuple[str, ...] = ()) -> Bubbles:
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

    def shown_columns(self) -> dict[str, Ints | CodedTexts]:
        """Return the columns of ``--bubbles`` by name, operations by their rows; -1 for none."""
        operations = self.operations
        peer = np.append(operations.rank, NONE)[self.peer_operation]
        return {
            "ratio": CodedTexts(np.zeros(len(self), np.int64), [self.ratio]),
            "iteration": self.iteration,
            "rank": self.rank,
            "stage": operations.stage_of(self.rank),
            "interval": self.interval,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "idle_ns": self.end_ns - self.start_ns,
            "cause": CodedTexts(self.cause, [cause.label for cause in Cause]),
            "before": self.before,
            "after": self.after,
            "peer_operation": self.peer_operation,
            "peer_rank": peer,
            "peer_stage": operations.stage_of(peer),
            "collective": CodedTexts(self.collective, self.collectives),
            "host_call": CodedTexts(self.host_call_id, operations.names),
            "host_range": CodedTexts(self.host_range_id, operations.names),
            "global_rank": operations.global_rank_of(self.rank),
            "peer_global_rank": operations.global_rank_of(peer),
        }

    def arrow_columns(self) -> Mapping[str, Column]:
        """Return the same columns for Arrow's libraries."""
        return {name: column_of(name, column) for name, column in self.shown_columns().items()}


def with_host_activity(bubbles: Bubbles, hosts: HostActivities) -> Bubbles:
    """Return bubbles with the call and the range that the host was in, where it is the cause.

    A call is named where calls of its name take half of the bubble or more, a range where it is
    the shortest that does.

    Args:
        bubbles: idle intervals, by cause.
        hosts: what launching threads did, in order of the operation that was launched late.
    """
    hosts = hosts.take(hosts.operation != NONE)
    late = np.flatnonzero(
        (bubbles.cause == Cause.HOST) & (found_in(hosts.operation, bubbles.after) != NONE)
    )
    if not len(late):
        return bubbles
    # Pairs of a bubble and an activity of the host before the operation that ends it.
    low = np.searchsorted(hosts.operation, bubbles.after[late])
    high = np.searchsorted(hosts.operation, bubbles.after[late], side="right")
    pair, row = expanded(low, high)
    bubble, name_id, is_call = late[pair], hosts.name_id[row], hosts.call[row] == 1
    start_ns, end_ns = bubbles.start_ns[bubble], bubbles.end_ns[bubble]
    shared_ns = np.minimum(hosts.end_ns[row], end_ns) - np.maximum(hosts.start_ns[row], start_ns)
    idle_ns, length_ns = end_ns - start_ns, hosts.end_ns[row] - hosts.start_ns[row]
    call_id, range_id = bubbles.host_call_id.copy(), bubbles.host_range_id.copy()
    call_id[late] = NONE
    calls = np.flatnonzero(is_call & (shared_ns > 0))
    names = groups_of(bubble[calls], name_id[calls])
    total_ns = group_sum(names.of_row, len(names), shared_ns[calls])
    first = calls[names.first]
    most = first_of_each(bubble[first], -total_ns, name_id[first])
    most = most[2 * total_ns[most] >= idle_ns[first[most]]]
    call_id[bubble[first[most]]] = name_id[first[most]]
    ranges = np.flatnonzero(~is_call & (2 * shared_ns >= idle_ns))
    ranges = ranges[first_of_each(bubble[ranges], length_ns[ranges])]
    range_id[bubble[ranges]] = name_id[ranges]
    return replace(bubbles, host_call_id=call_id, host_range_id=range_id)


#: Causes that count in every region of a window.
_COUNTS_ALWAYS = np.isin(np.arange(len(Cause)), ALWAYS)
_LABELS = tuple(cause.label for cause in Cause)


@dataclass(frozen=True)
class CauseTimes:
    """How long ranks were idle for each cause.

    Attributes:
        idle_ns: by name of the ratio whose window it is, shape (iterations, ranks, causes).
    """

    idle_ns: Mapping[str, Ints]

    def of_ranks(self, ratio: str, iteration: int, rank: Ints) -> list[dict[str, int]]:
        """Return nanoseconds by cause of some ranks in an iteration's window."""
        return list(map(_by_label, self.idle_ns[ratio][iteration][rank].tolist()))

    def of_iteration(self, ratio: str, iteration: int) -> dict[str, int]:
        """Return nanoseconds by cause, summed over the ranks."""
        return _by_label(self.idle_ns[ratio][iteration].sum(axis=0).tolist())

    def of_iterations(self, ratio: str, iterations: Ints) -> dict[str, int]:
        """Return nanoseconds by cause, summed over ranks and some iterations."""
        return _by_label(self.idle_ns[ratio][iterations].sum(axis=(0, 1)).tolist())


def _by_label(idle_ns: list[int]) -> dict[str, int]:
    return dict(zip(_LABELS, idle_ns, strict=True))


def causes_of(
    stretch: Stretch, inputs: Inputs, known: Arrivals
) -> tuple[CauseTimes, Bubbles, IdleIntervals, Dependencies]:
    """Return idle times by cause, the bubbles of the kept ranks, and all idle intervals.

    The last is which steps waited for the token of another one, in runs that only go forward.

    Args:
        stretch: of a run.
        inputs: what its operations waited for.
        known: when receives show that it was there.
    """
    shape = (*stretch.extents.present.shape, len(Cause))
    bubbles = Bubbles.empty(stretch.listed, stretch.operations, stretch.collectives.kinds)
    idle, tokens = idle_of(stretch, inputs, known), Dependencies.none()
    if stretch.forward:
        idle, tokens = forward_waits(stretch.operations, stretch.ranks, inputs, idle)
    idle_ns = {name: np.zeros(shape, np.int64) for name in stretch.windows}
    for ratio in ratio_definitions():
        if ratio.name not in stretch.windows:
            continue
        regions = _regions(stretch, ratio)
        rank, iteration, *cut = regions
        windows = rank, iteration * shape[1] + rank, *cut
        idle_ns[ratio.name] = _time_by_cause(idle, windows, prod(shape[:2])).reshape(shape)
        if ratio.name == stretch.listed:
            listed = np.flatnonzero(stretch.kept[rank])
            rank, iteration, *_ = own_regions = tuple(column[listed] for column in regions)
            region, row, start_ns, end_ns, cause = _pieces(idle, own_regions)
            own = idle.cause[row]
            none = constant(NONE, len(row))
            # Where a rank warms up or drains, that alone is the cause.
            kept = (own == cause) | (own != Cause.QUEUED)
            bubbles = bubbles.changed(
                rank=rank[region],
                iteration=iteration[region],
                interval=idle.interval[row],
                start_ns=start_ns,
                end_ns=end_ns,
                cause=cause,
                before=idle.before[row],
                after=idle.after[row],
                peer_operation=np.where(kept, idle.peer_operation[row], NONE),
                collective=idle.collective[row],
                host_call_id=none,
                host_range_id=none,
            )
            bubbles = _whole(bubbles, inputs.producer)
    return CauseTimes(idle_ns), bubbles, idle, tokens


def idle_by_cause(idle: IdleIntervals, rank: Ints, low_ns: Ints, high_ns: Ints) -> Ints:
    """Return how long ranks were idle in windows [low, high] of theirs, shape (windows, causes)."""
    count = len(rank)
    windows = rank, np.arange(count), low_ns, high_ns, np.full(count, NONE, np.int64)
    return _time_by_cause(idle, windows, count)


def _time_by_cause(idle: IdleIntervals, windows: tuple[Ints, ...], cells: int) -> Ints:
    """Return how long ranks were idle in windows, shape (cells, causes).

    Args:
        idle: of all ranks.
        windows: the rank, the cell, start and end of each, and the cause of all idle time in it; -1
            where this keeps its own.
        cells: how many there are.
    """
    _, cell, *_ = windows
    first, shape = cell * len(Cause), (cells, len(Cause))
    region, _, start_ns, end_ns, cause = _pieces(idle, windows)
    return group_sum(first[region] + cause, prod(shape), end_ns - start_ns).reshape(shape)


def _pieces(idle: IdleIntervals, regions: tuple[Ints, ...]) -> tuple[Ints, ...]:
    """Return the region and row of each idle interval in a region, start and end there, and cause.

    Args:
        idle: of all ranks.
        regions: as of :func:`_time_by_cause`.
    """
    rank, _, low, high, given = regions
    # The last that ended by then, and the last that begins before the end.
    over = intervals.last_before(idle.rank, idle.end_ns, rank, low, or_at=True)
    last = intervals.last_before(idle.rank, idle.start_ns, rank, high)
    first = np.where(over == NONE, np.searchsorted(idle.rank, rank), over + 1)
    region, row = expanded(first, np.maximum(first, last + 1))
    own, of_region = idle.cause[row], given[region]
    keeps_cause = _COUNTS_ALWAYS[own] | (idle.unrecorded[row] == 1)
    cause = np.where((of_region == NONE) | keeps_cause, own, of_region)
    start_ns = np.maximum(idle.start_ns[row], low[region])
    return region, row, start_ns, np.minimum(idle.end_ns[row], high[region]), cause


def _regions(stretch: Stretch, ratio: RatioDefinition) -> tuple[Ints, ...]:
    """Return where the windows of a ratio are cut.

    ::

        low    first         last    drained        filling     high
         ├warmup┤  own cause  ├─drain─┤  own cause   ├──warmup──┤
                                                     of the next iteration, in ``period`` alone

    Returns:
        Rank, iteration, start and end of each region, and the cause of idle time in it; -1 where
        this keeps its own.
    """
    window, extents = stretch.windows[ratio.name], stretch.extents
    known = (window.known[:, None] & extents.present).T
    low = np.where(known, window.start_ns.T, 0)
    high = np.maximum(np.where(known, window.end_ns.T, 0), low)
    last = extents.last_ns if ratio.work is CountedWork.ITERATION else extents.step_last_ns
    first_ns = np.clip(extents.first_ns.T, low, high)
    last_ns = np.clip(last.T, first_ns, high)
    drained = filling = high
    if ratio.work is CountedWork.EVERYTHING:
        # Between its iterations a run that only goes forward does not drain.
        drained = last_ns if stretch.forward else np.clip(stretch.ended_ns, last_ns, high)
        filling = high if stretch.forward else np.clip(stretch.begun_ns, drained, high)
    cuts = np.stack((low, first_ns, last_ns, drained, filling, high), axis=2)
    rank, iteration, region = np.nonzero(cuts[:, :, :-1] < cuts[:, :, 1:])
    causes = np.array((Cause.WARMUP, NONE, Cause.DRAIN, NONE, Cause.WARMUP), np.int64)
    since, until = cuts[rank, iteration, region], cuts[rank, iteration, region + 1]
    return rank, iteration, since, until, causes[region]


def _whole(pieces: Bubbles, producer: Ints) -> Bubbles:
    """Return bubbles of which adjacent pieces with the same cause are one row.

    Args:
        pieces: whose ``peer_operation`` is that before which the last rank entered a collective.
        producer: of the input of each operation.
    """
    if len(pieces) == 0:
        return pieces
    continues = pieces.start_ns[1:] == pieces.end_ns[:-1]
    for name in ("rank", "iteration", "interval", "cause", "peer_operation", "collective"):
        column = getattr(pieces, name)
        continues &= column[1:] == column[:-1]
    shown = pieces.take(np.append(True, ~continues))
    # The operation after the drain is of the next iteration: nothing waited for it.
    after = np.where(shown.cause == Cause.DRAIN, NONE, shown.after)
    takes = (after != NONE) & (shown.collective == NONE)
    peer = np.where(takes, np.append(producer, NONE)[after], NONE)
    waits = (shown.peer_operation != NONE) & (shown.cause != Cause.PROFILER)
    return shown.changed(
        end_ns=pieces.end_ns[np.append(~continues, True)],
        after=after,
        peer_operation=np.where(waits, shown.peer_operation, peer),
    ).compacted()
