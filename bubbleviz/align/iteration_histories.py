"""Histories: one rank through its iterations, and the events that two ranks have in common."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.align.bounds.clock_segments import Floats
from bubbleviz.model.columns import Bools, Ints, Table
from bubbleviz.model.grouping import distinct
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import PASSED_ON, Phase
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen

#: So many events of an iteration are compared, spread evenly over all.
_EVENTS = 64


@frozen
class OperationEnds(Table):
    """F and B of one rank with spans: which, when their input was there, and when they ended."""

    iteration: Ints
    microbatch: Ints
    virtual_stage: Ints
    is_backward: Ints
    ready_ns: Ints
    end_ns: Ints

    @property
    def events(self) -> Ints:
        """One number for (microbatch, is_backward)."""
        return (self.microbatch + 1) << 1 | self.is_backward


@frozen
class RankHistory:
    """One rank through its iterations.

    Attributes:
        ends: of its F and B.
        start_ns: when each of its iterations starts.
        length_ns: of a typical iteration.
        optimizer_ns: when the Optimizer of each starts; NaN where it is not seen.
        recorded_ns: when its profile's first and last kernel or call were.
    """

    ends: OperationEnds
    start_ns: Ints
    length_ns: int
    optimizer_ns: Floats
    recorded_ns: tuple[int, int]

    @property
    def shapes(self) -> Ints:
        """A number for how many F and B each iteration has."""
        count = len(self.start_ns)
        forward = np.bincount(self.ends.iteration[self.ends.is_backward == 0], minlength=count)
        backward = np.bincount(self.ends.iteration[self.ends.is_backward == 1], minlength=count)
        return (forward << 20 | backward).astype(np.int64)

    @property
    def inner_shapes(self) -> Ints:
        """The same; -1 where a capture may have cut the iteration."""
        shapes = self.shapes
        shapes[:1] = shapes[-1:] = -1
        return shapes

    @property
    def whole_start_ns(self) -> Floats:
        """When iterations start; NaN for a first one that is not like the second."""
        starts = self.start_ns.astype(np.float64)
        if len(starts) > 1 and self.shapes[0] != self.shapes[1]:
            starts[0] = np.nan
        return starts

    def moved(self, by_ns: int) -> RankHistory:
        """Return the history on a clock that shows so much more."""
        return RankHistory(
            replace(
                self.ends,
                ready_ns=np.where(self.ends.ready_ns == NEVER, NEVER, self.ends.ready_ns + by_ns),
                end_ns=self.ends.end_ns + by_ns,
            ),
            self.start_ns + by_ns,
            self.length_ns,
            self.optimizer_ns + by_ns,
            (self.recorded_ns[0] + by_ns, self.recorded_ns[1] + by_ns),
        )


def history_of(
    operations: RankOperations,
    virtual_stage: Ints,
    ready_ns: Ints,
    recorded_ns: tuple[int, int],
) -> RankHistory:
    """Return the history of the one rank whose operations these are.

    Args:
        operations: of the rank.
        virtual_stage: of each; -1 unknown.
        ready_ns: when the input of each was there; the smallest number where that is not known.
        recorded_ns: when its profile's first and last kernel or call were.
    """
    spanned = (operations.has_span == 1) & (operations.iteration >= 0)
    count = int(operations.iteration.max(initial=-1)) + 1
    starts: Ints = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(starts, operations.iteration[spanned], operations.start_ns[spanned])
    # An iteration without any span starts with the next one that has.
    starts = np.minimum.accumulate(starts[::-1])[::-1]
    length_ns = 0
    if spanned.any():
        span = int(operations.end_ns[spanned].max()) - int(operations.start_ns[spanned].min())
        length_ns = span // count
    rows = np.flatnonzero(
        spanned
        & among(operations.phase, PASSED_ON)
        & (operations.occurrence == 0)
        & (operations.cut == 0)
        & (virtual_stage >= 0)
    )
    ends = OperationEnds(
        iteration=operations.iteration[rows],
        microbatch=operations.microbatch[rows],
        virtual_stage=virtual_stage[rows],
        is_backward=(operations.phase[rows] != Phase.F).astype(np.int64),
        ready_ns=ready_ns[rows],
        end_ns=operations.end_ns[rows],
    )
    optimizer_ns = np.full(count, np.nan)
    rows = np.flatnonzero(spanned & (operations.phase == Phase.OPTIMIZER))
    rows = rows[sorted_rows(-operations.start_ns[rows])]
    optimizer_ns[operations.iteration[rows]] = operations.start_ns[rows]
    return RankHistory(ends, starts, length_ns, optimizer_ns, recorded_ns)


@frozen
class CommonEvents:
    """Events of two ranks of which one waits for the other, shape (iterations, events).

    Attributes:
        a_ns: times on the first rank's clock; NaN unknown.
        b_ns: times on the second's.
        a_end_ns: ends of the same operations.
        b_end_ns: likewise.
        a_leads: by event, whether the second rank waits for the first.
    """

    a_ns: Floats
    b_ns: Floats
    a_end_ns: Floats
    b_end_ns: Floats
    a_leads: Bools

    def bounds(self, move: int) -> tuple[Floats, Floats]:
        """Return for each pair of iterations the least and the most to add to b's clock.

        Infinite where nothing bounds it.
        """
        return self._extremes(self.a_ns, self.b_ns, move)

    def loose_bounds(self, move: int) -> tuple[float, float]:
        """Return the same over all pairs, by ends alone.

        A span may begin with kernels that need no input.
        """
        least, most = self._extremes(self.a_end_ns, self.b_end_ns, move)
        return float(least.max(initial=-np.inf)), float(most.min(initial=np.inf))

    def _extremes(self, a_ns: Floats, b_ns: Floats, move: int) -> tuple[Floats, Floats]:
        low, high = max(0, move), min(len(a_ns), len(b_ns) + move)
        apart = a_ns[low:high] - b_ns[low - move : high - move]
        seen = ~np.isnan(apart)
        least = np.where(seen, apart, -np.inf)[:, self.a_leads].max(axis=1, initial=-np.inf)
        most = np.where(seen, apart, np.inf)[:, ~self.a_leads].min(axis=1, initial=np.inf)
        return least, most


def common_events(a: RankHistory, b: RankHistory) -> CommonEvents:
    """Return the F and B of two ranks of one pipeline, those of virtual stages next to each other.

    Every F on the upstream one ends before the other rank's input is there, and every B likewise
    the other way.
    """
    stages_b = distinct(b.ends.virtual_stage)
    own, other, leads = [], [], []
    for stage in distinct(a.ends.virtual_stage).tolist() if len(stages_b) else ():
        nearest = int(stages_b[np.argmin(np.abs(stages_b - stage))])
        ours = a.ends.take(a.ends.virtual_stage == stage)
        theirs = b.ends.take(b.ends.virtual_stage == nearest)
        once = distinct(ours.events), distinct(theirs.events)
        # Without assume_unique NumPy loads its masked arrays.
        shared = np.intersect1d(*once, assume_unique=True)
        own.append(_table(ours, shared, len(a.start_ns)))
        other.append(_table(theirs, shared, len(b.start_ns)))
        leads.append((shared & 1 == 0) == (stage < nearest))
    if not own:
        none = np.full((0, 0), np.nan)
        return CommonEvents(none, none, none, none, np.zeros(0, bool))
    a_leads = np.concatenate(leads)
    count = len(a_leads)
    chosen = np.arange(min(count, _EVENTS)) * max(count, 1) // min(max(count, 1), _EVENTS)
    a_ready, a_end = np.concatenate(own, axis=2)[:, :, chosen]
    b_ready, b_end = np.concatenate(other, axis=2)[:, :, chosen]
    a_leads = a_leads[chosen]
    return CommonEvents(
        _inner(np.where(a_leads, a_end, a_ready)),
        _inner(np.where(a_leads, b_ready, b_end)),
        a_end,
        b_end,
        a_leads,
    )


def _table(ends: OperationEnds, shared: Ints, iterations: int) -> Floats:
    """Return when inputs were there, and ends, shape (2, iterations, events); NaN unknown."""
    table = np.full((2, iterations, len(shared)), np.nan)
    kept = np.isin(ends.events, shared)
    at = ends.iteration[kept], np.searchsorted(shared, ends.events[kept])
    ready_ns = ends.ready_ns[kept]
    table[0][at] = np.where(ready_ns == NEVER, np.nan, ready_ns)
    table[1][at] = ends.end_ns[kept]
    return table


def _inner(times_ns: Floats) -> Floats:
    """Return the times without the first and the last: a capture may have cut those operations."""
    if np.isnan(times_ns).all():
        return times_ns
    edge = (times_ns == np.nanmin(times_ns)) | (times_ns == np.nanmax(times_ns))
    return np.where(edge, np.nan, times_ns)
