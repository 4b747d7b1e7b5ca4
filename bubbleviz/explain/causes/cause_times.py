"""Cause times: how long ranks were idle for each cause, in each window; they add up exactly.

Idle time before a rank's first operation of an iteration is its warm-up, and after its last one its
drain, unless the profiler or a collective takes it; in between, idle time keeps its own cause::

    window   ├── warmup ──┤ first operation ... last operation ├── drain ──┤
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.align.run import Run
from bubbleviz.count.count import Counts
from bubbleviz.count.ratios import CountedWork, ratio_definitions
from bubbleviz.explain.causes.bubbles import Bubbles
from bubbleviz.explain.causes.cause import Cause, Region
from bubbleviz.explain.causes.idle import IdleIntervals, idle_of
from bubbleviz.explain.dependencies import Inputs
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints, joined
from bubbleviz.model.values import frozen

_LABELS = tuple(cause.label for cause in Cause)


@frozen
class CauseTimes:
    """How long ranks were idle for each cause.

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
    return dict(zip(_LABELS, idle_ns.tolist(), strict=True))


@frozen
class _Regions:
    """Where a rank's windows are cut, shape (iterations,) each, ascending.

    ::

        low    first         last    drained        filling     high
         ├warmup┤  own cause  ├─drain─┤  own cause   ├──warmup──┤
                                                     of the next iteration, in ``period`` alone
    """

    low: Ints
    first: Ints
    last: Ints
    drained: Ints
    filling: Ints
    high: Ints

    def each(self) -> Iterator[tuple[Ints, Ints, Cause | None]]:
        """Yield (low, high, cause) of each region; None where idle time keeps its own."""
        yield self.low, self.first, Cause.WARMUP
        yield self.first, self.last, None
        yield self.last, self.drained, Cause.DRAIN
        yield self.drained, self.filling, None
        yield self.filling, self.high, Cause.WARMUP


#: Causes that count in every region of a window.
_ALWAYS = tuple(cause for cause in Cause if cause.region is Region.WINDOW)
#: Causes that count between a rank's first and last operation.
_WITHIN = tuple(cause for cause in Cause if cause.region is Region.OPERATIONS)


def causes_of(
    run: Run, counts: Counts, inputs: Inputs
) -> tuple[CauseTimes, Bubbles, tuple[IdleIntervals, ...]]:
    """Return idle times by cause, the bubbles of one ratio, and the idle intervals of each rank.

    Args:
        run: the merged profiles.
        counts: windows of the ratios.
        inputs: what operations waited for.
    """
    shape = (len(run.iteration_names), len(run.ranks), len(Cause))
    idle_ns = {name: np.zeros(shape, np.int64) for name in counts.windows}
    listed = _listed_ratio(counts)
    nothing = Bubbles.none(listed, run.operations)
    bubbles, idle_of_ranks = [], []
    for rank, idle in enumerate(idle_of(run, counts, inputs)):
        idle_of_ranks.append(idle)
        by_cause = {cause: idle.of((cause,)) for cause in (*_ALWAYS, *_WITHIN)}
        within = idle.of(_WITHIN)
        for name in counts.windows:
            regions = _regions(counts, name, rank)
            idle_ns[name][:, rank] = _sums(by_cause, within, regions)
            if name == listed:
                bubbles.append(_bubbles(idle, regions, rank, inputs.producer, nothing))
    return CauseTimes(idle_ns), joined(bubbles or [nothing]), tuple(idle_of_ranks)


def _listed_ratio(counts: Counts) -> str:
    """Return the ratio whose bubbles are listed: the headline, or another one that ranks have."""
    ranks = [rank for iteration in counts.iterations for rank in iteration.ranks]
    names = (counts.headline, *(ratio.name for ratio in ratio_definitions()))
    return next((n for n in names if any(n in rank.accounts for rank in ranks)), counts.headline)


def _regions(counts: Counts, name: str, rank: int) -> _Regions:
    """Return where the windows of a ratio are cut on a rank; empty ones where there is none."""
    window, extents = counts.windows[name], counts.extents
    ratio = next(s for s in ratio_definitions() if s.name == name)
    known = window.known & extents.present[:, rank]
    low = np.where(known, window.start_ns[:, rank], 0)
    high = np.maximum(np.where(known, window.end_ns[:, rank], 0), low)
    last = extents.last_ns if ratio.work is CountedWork.ITERATION else extents.step_last_ns
    first_ns = np.clip(extents.first_ns[:, rank], low, high)
    last_ns = np.clip(last[:, rank], first_ns, high)
    if ratio.work is not CountedWork.EVERYTHING:
        return _Regions(low, first_ns, last_ns, high, high, high)
    ended, begun = _ends_and_starts(counts)
    drained = np.clip(ended, last_ns, high)
    return _Regions(low, first_ns, last_ns, drained, np.clip(begun, drained, high), high)


def _ends_and_starts(counts: Counts) -> tuple[Ints, Ints]:
    """Return when each iteration ended on all ranks, and when the next one began on any.

    Where clocks cannot be compared, it is unknown: the earliest and the latest possible time.
    """
    extents, never, always = counts.extents, NEVER, np.iinfo(np.int64).max
    if not extents.present.size:
        return np.zeros(len(extents.first_ns), np.int64), np.zeros(len(extents.first_ns), np.int64)
    ended = np.where(extents.present, extents.step_last_ns, never).max(axis=1)
    begun = np.where(extents.present, extents.first_ns, always).min(axis=1)
    ended = np.where(counts.one_clock, ended, never)
    begun = np.where(counts.one_clock, begun, always)
    return ended, np.append(begun[1:], always)


def _sums(
    by_cause: Mapping[Cause, intervals.Intervals],
    within: intervals.Intervals,
    regions: _Regions,
) -> Ints:
    """Return idle time by cause in each window, shape (iterations, causes).

    Args:
        by_cause: idle intervals of each cause.
        within: those of all causes that count between the first and the last operation.
        regions: where the windows are cut.
    """
    total_ns = np.zeros((len(regions.low), len(Cause)), np.int64)
    for cause in _ALWAYS:
        total_ns[:, cause] = intervals.measure_within(by_cause[cause], regions.low, regions.high)
    for low, high, region_cause in regions.each():
        if region_cause is not None:
            total_ns[:, region_cause] += intervals.measure_within(within, low, high)
            continue
        for cause in _WITHIN:
            total_ns[:, cause] += intervals.measure_within(by_cause[cause], low, high)
    return total_ns


def _bubbles(
    idle: IdleIntervals, regions: _Regions, rank: int, producer: Ints, nothing: Bubbles
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
            inside = idle.take(rows)
            always = np.isin(inside.cause, _ALWAYS)
            kind = inside.cause if cause is None else np.where(always, inside.cause, cause)
            parts.append((np.full(len(rows), k), inside, low, high, kind))
    if not parts:
        return nothing
    iteration = np.concatenate([part[0] for part in parts])
    idle = joined([part[1] for part in parts])
    start_ns = np.concatenate([np.maximum(p.start_ns, low) for _, p, low, _, _ in parts])
    end_ns = np.concatenate([np.minimum(p.end_ns, high) for _, p, _, high, _ in parts])
    kind = np.concatenate([part[4] for part in parts])
    # Adjacent pieces of one interval with the same cause are one row.
    continues = (iteration[1:] == iteration[:-1]) & (idle.interval[1:] == idle.interval[:-1])
    continues &= (kind[1:] == kind[:-1]) & (start_ns[1:] == end_ns[:-1])
    first = np.append(True, ~continues)[: len(kind)]
    last = np.append(first[1:], True)[: len(kind)]
    # The operation after the drain is of the next iteration: nothing waited for it.
    after = np.where(kind[first] == Cause.DRAIN, NONE, idle.after[first])
    return replace(
        nothing,
        rank=np.full(int(first.sum()), rank),
        iteration=iteration[first],
        interval=idle.interval[first],
        start_ns=start_ns[first],
        end_ns=end_ns[last],
        cause=kind[first],
        before=idle.before[first],
        after=after,
        peer_operation=np.append(producer, NONE)[after],
        host_call_id=np.full(len(after), NONE),
        host_range_id=np.full(len(after), NONE),
    )
