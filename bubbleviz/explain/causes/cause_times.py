"""Cause times: how long ranks were idle for each cause, in each window; they add up exactly.

Idle time before a rank's first operation of an iteration is its warm-up, and after its last one its
drain, unless the profiler or a collective that moves data takes it; in between, idle time keeps its
own cause::

    window   ├── warmup ──┤ first operation ... last operation ├── drain ──┤
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from bubbleviz.align.arrivals import Arrivals
from bubbleviz.count.ratios import CountedWork, RatioDefinition, ratio_definitions
from bubbleviz.explain.causes.bubbles import Bubbles
from bubbleviz.explain.causes.cause import Cause, Region
from bubbleviz.explain.causes.forward_waits import TokenWaits, forward_waits
from bubbleviz.explain.causes.idle import idle_of
from bubbleviz.explain.causes.idle_intervals import IdleIntervals
from bubbleviz.explain.dependencies import Inputs
from bubbleviz.explain.stretch import Stretch
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints, Table, constant
from bubbleviz.model.grouping import expanded
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
    """Where windows are cut, shape (ranks, iterations) each, ascending.

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

    def each(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """Return (rank, iteration, low, high, cause) of each region of each window.

        The cause is -1 where idle time keeps its own.
        """
        ends = np.stack(
            (self.low, self.first, self.last, self.drained, self.filling, self.high), axis=2
        )
        low, high = ends[:, :, :-1], ends[:, :, 1:]
        rank, iteration, region = np.nonzero(low < high)
        causes = np.array((Cause.WARMUP, NONE, Cause.DRAIN, NONE, Cause.WARMUP), np.int64)
        some = rank, iteration, region
        return rank, iteration, low[some], high[some], causes[region]


#: Causes that count in every region of a window.
_COUNTS_ALWAYS = np.array([cause.region is Region.WINDOW for cause in Cause])


@frozen
class _Pieces(Table):
    """Idle time in the windows of a ratio, by rank and iteration, each in order of time.

    Attributes:
        rank: the rank.
        iteration: whose window it is.
        idle: row of the idle intervals.
        start_ns: start.
        end_ns: end.
        cause: code of :class:`Cause` in this window.
    """

    rank: Ints
    iteration: Ints
    idle: Ints
    start_ns: Ints
    end_ns: Ints
    cause: Ints


def causes_of(
    stretch: Stretch, inputs: Inputs, known: Arrivals
) -> tuple[CauseTimes, Bubbles, IdleIntervals, TokenWaits]:
    """Return idle times by cause, the bubbles of the kept ranks, and all idle intervals.

    The last is which steps waited for the token of another one, in runs that only go forward.

    Args:
        stretch: of a run.
        inputs: what its operations waited for.
        known: when receives show that it was there.
    """
    shape = (*stretch.extents.present.shape, len(Cause))
    listed = stretch.shared.listed
    bubbles = Bubbles.none(listed, stretch.operations, stretch.collectives.kinds)
    idle, tokens = idle_of(stretch, inputs, known), TokenWaits.none()
    if stretch.shared.forward:
        idle, tokens = forward_waits(stretch.operations, stretch.ranks, inputs, idle)
    idle_ns = {name: np.zeros(shape, np.int64) for name in stretch.windows}
    line = _IdleLine(idle, shape[1])
    for ratio in ratio_definitions():
        if ratio.name in stretch.windows:
            pieces = _pieces(idle, line, _regions(stretch, ratio))
            cell = (pieces.iteration * shape[1] + pieces.rank) * shape[2] + pieces.cause
            length_ns = pieces.end_ns - pieces.start_ns
            idle_ns[ratio.name] = intervals.group_sum(cell, prod(shape), length_ns).reshape(shape)
            if ratio.name == listed:
                if not stretch.kept.all():
                    pieces = pieces.take(stretch.kept[pieces.rank])
                bubbles = _bubbles(idle, pieces, inputs.producer, bubbles)
    return CauseTimes(idle_ns), bubbles, idle, tokens


def _regions(stretch: Stretch, ratio: RatioDefinition) -> _Regions:
    """Return where the windows of a ratio are cut; empty ones where there is none."""
    window, extents = stretch.windows[ratio.name], stretch.extents
    known = (window.known[:, None] & extents.present).T
    low = np.where(known, window.start_ns.T, 0)
    high = np.maximum(np.where(known, window.end_ns.T, 0), low)
    last = extents.last_ns if ratio.work is CountedWork.ITERATION else extents.step_last_ns
    first_ns = np.clip(extents.first_ns.T, low, high)
    last_ns = np.clip(last.T, first_ns, high)
    if ratio.work is not CountedWork.EVERYTHING:
        return _Regions(low, first_ns, last_ns, high, high, high)
    shared = stretch.shared
    if shared.forward:
        # Between its iterations it does not drain.
        return _Regions(low, first_ns, last_ns, last_ns, high, high)
    drained = np.clip(shared.ended_ns, last_ns, high)
    filling = np.clip(shared.begun_ns, drained, high)
    return _Regions(low, first_ns, last_ns, drained, filling, high)


class _IdleLine:
    """Idle intervals of ranks side by side on a line, where windows of ranks are looked for.

    Args:
        idle: of the ranks.
        ranks: how many there are.
    """

    def __init__(self, idle: IdleIntervals, ranks: int) -> None:
        low, high = intervals.group_extents(idle.rank, ranks, idle.start_ns, idle.end_ns)
        self._extents = low, np.maximum(low, high)
        self._packing = intervals.Packing.of(*self._extents)
        self._start = self._packing.place(idle.rank, idle.start_ns)
        self._end = self._packing.place(idle.rank, idle.end_ns)

    def within(self, rank: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
        """Return the first idle interval in each window of a rank, and the end of those in it."""
        extents = self._extents[0][rank], self._extents[1][rank]
        from_ns, to_ns = (self._packing.place(rank, np.clip(t, *extents)) for t in (low, high))
        first = np.searchsorted(self._end, from_ns, side="right")
        return first, np.maximum(first, np.searchsorted(self._start, to_ns))


def _pieces(idle: IdleIntervals, line: _IdleLine, regions: _Regions) -> _Pieces:
    """Return idle intervals, cut where the windows of their ranks and their regions are."""
    rank, iteration, low, high, of_region = regions.each()
    cut, row = expanded(*line.within(rank, low, high))
    own, given = idle.cause[row], of_region[cut]
    return _Pieces(
        rank=rank[cut],
        iteration=iteration[cut],
        idle=row,
        start_ns=np.maximum(idle.start_ns[row], low[cut]),
        end_ns=np.minimum(idle.end_ns[row], high[cut]),
        cause=np.where((given == NONE) | _COUNTS_ALWAYS[own], own, given),
    )


def _bubbles(idle: IdleIntervals, pieces: _Pieces, producer: Ints, nothing: Bubbles) -> Bubbles:
    """Return the idle time in windows, by cause; ``nothing`` if there is none."""
    if len(pieces) == 0:
        return nothing
    interval = idle.interval[pieces.idle]
    # Adjacent pieces of one interval with the same cause are one row.
    continues = (pieces.rank[1:] == pieces.rank[:-1]) & (interval[1:] == interval[:-1])
    continues &= pieces.iteration[1:] == pieces.iteration[:-1]
    continues &= (pieces.cause[1:] == pieces.cause[:-1]) & (
        pieces.start_ns[1:] == pieces.end_ns[:-1]
    )
    waits_for, collective = idle.peer_operation[pieces.idle], idle.collective[pieces.idle]
    continues &= (waits_for[1:] == waits_for[:-1]) & (collective[1:] == collective[:-1])
    first, last = np.append(True, ~continues), np.append(~continues, True)
    shown = pieces.take(first)
    # The operation after the drain is of the next iteration: nothing waited for it.
    after = np.where(shown.cause == Cause.DRAIN, NONE, idle.after[shown.idle])
    waits_for, collective = waits_for[first], collective[first]
    peer = np.where((after != NONE) & (collective == NONE), np.append(producer, NONE)[after], NONE)
    waits = (waits_for != NONE) & (shown.cause != Cause.PROFILER)
    peer = np.where(waits, waits_for, peer)
    return replace(
        nothing,
        rank=shown.rank,
        iteration=shown.iteration,
        interval=interval[first],
        start_ns=shown.start_ns,
        end_ns=pieces.end_ns[last],
        cause=shown.cause,
        before=idle.before[shown.idle],
        after=after,
        peer_operation=peer,
        collective=collective,
        host_call_id=constant(NONE, len(after)),
        host_range_id=constant(NONE, len(after)),
    ).compacted()
