"""Causes: how long ranks were idle for which cause, in each window; they add up exactly.

What lies before a rank's first and after its last operation of an iteration is its warm-up and its
drain, unless the profiler or a collective takes it; within, idle time has causes of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.align.run import Run
from bubbleviz.count.count import Counts
from bubbleviz.count.ratios import Counted, ratio_definitions
from bubbleviz.explain.dependencies import Inputs
from bubbleviz.explain.idle import Cause, Idle, idle_of
from bubbleviz.model import intervals
from bubbleviz.model.arrow import ArrowTable, Column, coded, identifiers, numbers
from bubbleviz.model.columns import NONE, Ints, Table, joined
from bubbleviz.model.operations import Operations


@dataclass(frozen=True)
class Causes:
    """How long ranks were idle for which cause.

    Attributes:
        idle_ns: by name of the ratio whose window it is, shape (iterations, ranks, causes).
    """

    idle_ns: Mapping[str, Ints]

    def of_rank(self, ratio: str, iteration: int, rank: int) -> dict[str, int]:
        """Return nanoseconds by cause of a rank in an iteration's window."""
        return _by_label(self.idle_ns[ratio][iteration, rank])

    def of_iteration(self, ratio: str, iteration: int) -> dict[str, int]:
        """Return nanoseconds by cause, summed over the ranks."""
        return _by_label(self.idle_ns[ratio][iteration].sum(axis=0))

    def of_iterations(self, ratio: str, iterations: Ints) -> dict[str, int]:
        """Return nanoseconds by cause, summed over ranks and some iterations."""
        return _by_label(self.idle_ns[ratio][iterations].sum(axis=(0, 1)))


def _by_label(idle_ns: Ints) -> dict[str, int]:
    return {cause.label: int(idle_ns[cause]) for cause in Cause}


@dataclass(frozen=True, repr=False)
class Bubbles(Table, ArrowTable):
    """Idle intervals in the windows of one ratio, a row for each cause; -1 none.

    In order of (rank, iteration, start). Rows of one idle interval have the same ``interval``.
    For Arrow's libraries (``polars.DataFrame(report.bubbles)``) a row is the same, with the columns
    of ``--bubbles``; but ``before``, ``after`` and ``peer_operation`` are row numbers of the
    operations, from 0.

    Attributes:
        rank: that was idle.
        iteration: whose window it is.
        interval: number of the idle interval within the rank.
        start_ns: start on the report's clock.
        end_ns: end.
        cause: code of :class:`Cause`.
        before: row of the operation that ended last before the idle interval.
        after: row of the next one.
        peer_operation: row of the operation on another rank whose result that one takes.
        host_call_id: row of the operations' ``names``: the CUDA call that the launching thread was
            in, where the host is the cause.
        host_range_id: likewise the innermost range.
        ratio: name of the ratio.
        operations: that rows and names are those of.
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

    def doing(self, host_call_id: Ints, host_range_id: Ints) -> Bubbles:
        """Return the gaps with what the host did."""
        return replace(self, host_call_id=host_call_id, host_range_id=host_range_id)


@dataclass(frozen=True)
class _Regions:
    """Where a rank's windows are cut, shape (iterations,) each, ascending.

    Between ``low`` and ``first`` lies the warm-up, between ``last`` and ``drained`` the drain, and
    between ``filling`` and ``high`` the warm-up of the next iteration (of ``period`` alone).
    """

    low: Ints
    first: Ints
    last: Ints
    drained: Ints
    filling: Ints
    high: Ints

    def each(self) -> Iterator[tuple[Ints, Ints, Cause | None]]:
        """Yield (low, high, cause) of each region; None where the idle time's own cause holds."""
        yield self.low, self.first, Cause.WARMUP
        yield self.first, self.last, None
        yield self.last, self.drained, Cause.DRAIN
        yield self.drained, self.filling, None
        yield self.filling, self.high, Cause.WARMUP


#: Causes that hold whatever the window is.
_ALWAYS = (Cause.PROFILER, Cause.COLLECTIVE)
_WITHIN = (Cause.DEPENDENCY, Cause.HOST, Cause.COMMUNICATION, Cause.OTHER)


def causes_of(run: Run, counts: Counts, inputs: Inputs) -> tuple[Causes, Bubbles, tuple[Idle, ...]]:
    """Return how long ranks were idle for which cause, the idle intervals of the headline, and all.

    Args:
        run: the profiles put together.
        counts: windows of the ratios.
        inputs: what operations waited for.
    """
    shape = (len(run.iteration_names), len(run.ranks), len(Cause))
    idle_ns = {name: np.zeros(shape, np.int64) for name in counts.windows}
    headline = _told(counts)
    nothing = _no_bubbles(headline, run.operations)
    bubbles, idle = [], []
    for rank, own in enumerate(idle_of(run, counts, inputs)):
        idle.append(own)
        sets = {cause: own.of((cause,)) for cause in (*_ALWAYS, *_WITHIN)}
        either = own.of(_WITHIN)
        for name in counts.windows:
            regions = _regions(counts, name, rank)
            idle_ns[name][:, rank] = _tally(sets, either, regions)
            if name == headline:
                bubbles.append(_bubbles(own, regions, rank, inputs.producer, nothing))
    return Causes(idle_ns), joined(bubbles or [nothing]), tuple(idle)


def _told(counts: Counts) -> str:
    """Return the ratio whose gaps are listed: the headline, or another one that ranks have."""
    ranks = [own for iteration in counts.iterations for own in iteration.ranks]
    names = (counts.headline, *(s.name for s in ratio_definitions()))
    return next((n for n in names if any(n in own.accounts for own in ranks)), counts.headline)


def _regions(counts: Counts, name: str, rank: int) -> _Regions:
    """Return where the windows of a ratio are cut on a rank; empty ones where there is none."""
    window, extents = counts.windows[name], counts.extents
    ratio = next(s for s in ratio_definitions() if s.name == name)
    known = window.known & extents.present[:, rank]
    low = np.where(known, window.start_ns[:, rank], 0)
    high = np.maximum(np.where(known, window.end_ns[:, rank], 0), low)
    last = extents.last_ns if ratio.work is Counted.ITERATION else extents.step_last_ns
    first_ns = np.clip(extents.first_ns[:, rank], low, high)
    last_ns = np.clip(last[:, rank], first_ns, high)
    if ratio.work is not Counted.EVERYTHING:
        return _Regions(low, first_ns, last_ns, high, high, high)
    ended, begun = _ends_and_starts(counts)
    drained = np.clip(ended, last_ns, high)
    return _Regions(low, first_ns, last_ns, drained, np.clip(begun, drained, high), high)


def _ends_and_starts(counts: Counts) -> tuple[Ints, Ints]:
    """Return when each iteration ended on all ranks, and when the next one began on any.

    Where clocks cannot be compared, nothing is known: the earliest and the latest time there is.
    """
    extents, never, always = counts.extents, NEVER, np.iinfo(np.int64).max
    if not extents.present.size:
        return np.zeros(len(extents.first_ns), np.int64), np.zeros(len(extents.first_ns), np.int64)
    ended = np.where(extents.present, extents.step_last_ns, never).max(axis=1)
    begun = np.where(extents.present, extents.first_ns, always).min(axis=1)
    ended = np.where(counts.one_clock, ended, never)
    begun = np.where(counts.one_clock, begun, always)
    return ended, np.append(begun[1:], always)


def _tally(
    sets: Mapping[Cause, intervals.Intervals], either: intervals.Intervals, regions: _Regions
) -> Ints:
    """Return idle time by cause in each window, shape (iterations, causes).

    Args:
        sets: idle time by the causes that hold in any window, or within an iteration.
        either: that of all of the latter.
        regions: where the windows are cut.
    """
    total = np.zeros((len(regions.low), len(Cause)), np.int64)
    for always in _ALWAYS:
        total[:, always] = intervals.measure_within(sets[always], regions.low, regions.high)
    for low, high, cause in regions.each():
        if cause is not None:
            total[:, cause] += intervals.measure_within(either, low, high)
            continue
        for one in _WITHIN:
            total[:, one] += intervals.measure_within(sets[one], low, high)
    return total


def _bubbles(
    idle: Idle, regions: _Regions, rank: int, peer_operation: Ints, nothing: Bubbles
) -> Bubbles:
    """Return the idle intervals in a rank's windows, by cause; ``nothing`` if there are none."""
    parts = []
    cuts = [(low.tolist(), high.tolist(), cause) for low, high, cause in regions.each()]
    for k in range(len(regions.low)):
        for lows, highs, cause in cuts:
            low, high = lows[k], highs[k]
            if low >= high:
                continue
            rows = np.arange(
                np.searchsorted(idle.end_ns, low, side="right"),
                np.searchsorted(idle.start_ns, high),
            )
            own = idle.take(rows)
            always = np.isin(own.cause, _ALWAYS)
            kind = own.cause if cause is None else np.where(always, own.cause, cause)
            parts.append((np.full(len(rows), k), own, low, high, kind))
    if not parts:
        return nothing
    iteration = np.concatenate([part[0] for part in parts])
    own = joined([part[1] for part in parts])
    start_ns = np.concatenate([np.maximum(p.start_ns, low) for _, p, low, _, _ in parts])
    end_ns = np.concatenate([np.minimum(p.end_ns, high) for _, p, _, high, _ in parts])
    kind = np.concatenate([part[4] for part in parts])
    # What one cause explains without a break is one row.
    goes_on = (iteration[1:] == iteration[:-1]) & (own.interval[1:] == own.interval[:-1])
    goes_on &= (kind[1:] == kind[:-1]) & (start_ns[1:] == end_ns[:-1])
    first = np.append(True, ~goes_on)[: len(kind)]
    last = np.append(first[1:], True)[: len(kind)]
    # What comes after the drain is of the next iteration, and was not waited for.
    after = np.where(kind[first] == Cause.DRAIN, NONE, own.after[first])
    return replace(
        nothing,
        rank=np.full(int(first.sum()), rank),
        iteration=iteration[first],
        interval=own.interval[first],
        start_ns=start_ns[first],
        end_ns=end_ns[last],
        cause=kind[first],
        before=own.before[first],
        after=after,
        peer_operation=np.append(peer_operation, NONE)[after],
        host_call_id=np.full(len(after), NONE),
        host_range_id=np.full(len(after), NONE),
    )


def _no_bubbles(ratio: str, operations: Operations) -> Bubbles:
    nothing: dict[str, Ints] = {name: np.empty(0, np.int64) for name in Bubbles.column_names()}
    return Bubbles(**nothing, ratio=ratio, operations=operations)
