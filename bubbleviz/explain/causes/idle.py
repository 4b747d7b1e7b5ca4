"""Idle intervals: when ranks ran nothing, cut by cause, independent of any window.

An idle interval before an operation is cut where the operation's input becomes ready, where the
receive is launched, and where the receive ends::

    last work ├──────────┬─────────┬───────────────┬──────┤ next operation
               dependency    host    communication   other
                         ready     launched      received

Where the stages are unknown, so is whether the input of an operation without a receive was ready.
Time under the profiler's own work goes to it first. Under a collective, a rank depends on the last
member until that has entered; from then on the collective is the cause. Where a receive was
recorded, its launch and end are the cuts; the operation's own launch counts from there on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bubbleviz.align.arrivals import NEVER, Arrivals
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.idle_intervals import IdleIntervals, in_collectives, overlaid
from bubbleviz.explain.causes.rank_line import RankLine, line_of
from bubbleviz.explain.dependencies import Inputs
from bubbleviz.explain.stretch import Stretch
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints, Table, constant, joined
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COMPUTE
from bubbleviz.model.values import frozen

#: Busy intervals of the ranks that are laid on one line at a time: few enough for little memory.
_ON_A_LINE = 1 << 19


def idle_of(stretch: Stretch, inputs: Inputs, known: Arrivals) -> IdleIntervals:
    """Return the idle intervals of each rank between its earliest and its latest window."""
    operations, ranks = stretch.operations, len(stretch.ranks)
    waits = _waits(operations, inputs, known)
    windows = _outermost(stretch)
    computing = stretch.busy.take(among(operations.phase, COMPUTE)[stretch.busy.operation])
    bounds = np.searchsorted(operations.rank[computing.operation], np.arange(ranks + 1))
    idle = [
        _idle_on_line(
            line_of(
                stretch,
                computing.take(slice(*bounds[[first, end]].tolist())),
                windows,
                (first, end),
            ),
            waits,
        )
        for first, end in _on_a_line(bounds)
    ]
    return joined(idle or [IdleIntervals.none()]).compacted()


def _on_a_line(bounds: Ints) -> Iterator[tuple[int, int]]:
    """Yield the ranks (first, end) that are worked out together, by where their rows begin."""
    first, ranks = 0, len(bounds) - 1
    while first < ranks:
        end = int(np.searchsorted(bounds, bounds[first] + _ON_A_LINE, side="right")) - 1
        end = max(first + 1, end)
        yield first, end
        first = end


def _outermost(stretch: Stretch) -> tuple[Ints, Ints]:
    """Return the earliest start and the latest end of each rank's windows.

    Where it has none, its start is after its end.
    """
    present = stretch.extents.present
    latest, earliest = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    low_ns = np.full(present.shape[1], latest)
    high_ns = np.full(present.shape[1], earliest)
    for window in stretch.windows.values():
        known = window.known[:, None] & present
        starts_ns = np.where(known, window.start_ns, latest)
        ends_ns = np.where(known, window.end_ns, earliest)
        low_ns = np.minimum(low_ns, starts_ns.min(axis=0, initial=latest))
        high_ns = np.maximum(high_ns, ends_ns.max(axis=0, initial=earliest))
    return low_ns, high_ns


def _idle_on_line(line: RankLine, waits: _Waits) -> IdleIntervals:
    """Return the idle intervals of ranks that lie on a line, at their own times."""
    gaps = line.gaps
    rank = line.packing.groups(gaps[0])
    after = line.next_operation(gaps[1], rank)
    before = line.previous_operation(gaps[0], rank)
    idle = _cut(waits.take(after), gaps, line.packing.shift_ns[rank])
    # Intervals count from the first of their rank.
    number = np.arange(len(rank)) - np.searchsorted(rank, rank)
    idle = replace(
        idle,
        rank=rank[idle.interval],
        before=before[idle.interval],
        after=after[idle.interval],
        interval=number[idle.interval],
    )
    idle = in_collectives(idle, line.exposed, line.collectives)
    idle = overlaid(idle, line.overheads, Cause.PROFILER)
    shift_ns = line.packing.shift_ns[idle.rank]
    return replace(
        idle,
        rank=idle.rank + line.first,
        start_ns=idle.start_ns - shift_ns,
        end_ns=idle.end_ns - shift_ns,
    )


@frozen
class _Waits(Table):
    """What each operation waited for, in this order; the last row stands for no operation.

    Attributes:
        ready_ns: until its input was ready on another rank; ``NEVER`` where it needs none.
        receive_launched_ns: until its receive was launched.
        received_ns: until the receive ended.
        launched_ns: until the operation itself was launched.
        remote: whether it takes anything from another rank.
        unknown: whether it may, and neither its producer nor a receive shows until when.
    """

    ready_ns: Ints
    receive_launched_ns: Ints
    received_ns: Ints
    launched_ns: Ints
    remote: Bools
    unknown: Bools


def _waits(operations: Operations, inputs: Inputs, arrived: Arrivals) -> _Waits:
    """Return the waits of operations."""
    receive_launched_ns, received_ns = _received(operations, arrived)
    known = inputs.ready_ns != NEVER
    # With an unknown producer, waiting and transfer look the same: the receive counts as waiting.
    ready_ns = np.where(known, inputs.ready_ns, received_ns)
    launched_ns = np.where(operations.launched_ns == NONE, NEVER, operations.launched_ns)
    return _Waits(
        np.append(ready_ns, NEVER),
        np.append(receive_launched_ns, NEVER),
        np.append(received_ns, NEVER),
        np.append(launched_ns, NEVER),
        np.append(known | (received_ns != NEVER), False),
        np.append(inputs.unknown & (received_ns == NEVER), False),
    )


def _cut(wait: _Waits, gaps: intervals.Intervals, shift_ns: Ints) -> IdleIntervals:
    """Return idle intervals cut by what the operation after them waited for.

    Their ranks and operations are to be filled in.

    Args:
        wait: of the operation after each gap.
        gaps: on a line.
        shift_ns: by how much times on it are later than the rank's own.
    """
    low, high = gaps
    kinds = (Cause.DEPENDENCY, Cause.HOST, Cause.COMMUNICATION, Cause.HOST)
    ends = wait.ready_ns, wait.receive_launched_ns, wait.received_ns, wait.launched_ns
    cuts, causes, cut = [low], [], low
    for end_ns, kind in zip(ends, kinds, strict=True):
        if not (end_ns != NEVER).any():
            continue  # most tables tell of no receives and launches
        placed_ns = np.where(end_ns == NEVER, NEVER, end_ns + shift_ns)
        cut = np.clip(placed_ns, cut, high)
        cuts.append(cut)
        causes.append(np.full(len(low), kind, np.int64))
    causes.append(np.where(wait.remote, Cause.COMMUNICATION, Cause.OTHER).astype(np.int64))
    start_ns, end_ns = np.stack(cuts, axis=1), np.stack((*cuts[1:], high), axis=1)
    some = end_ns > start_ns
    cause = np.where(wait.unknown[:, None], Cause.UNKNOWN, np.stack(causes, axis=1))[some]
    interval = np.broadcast_to(np.arange(len(low))[:, None], some.shape)[some]
    none = constant(NONE, len(interval))
    return IdleIntervals(
        rank=none,
        start_ns=start_ns[some],
        end_ns=end_ns[some],
        cause=cause,
        interval=interval,
        before=none,
        after=none,
        peer_operation=none,
        collective=none,
    )


def _received(operations: Operations, known: Arrivals) -> tuple[Ints, Ints]:
    """Return when the last receive of each operation was launched, and when it ended."""
    inside = operations.received_ns != NONE
    launched_ns = np.where(inside, operations.receive_launched_ns, NONE)
    named = (known.receive >= 0) & (np.append(operations.has_span, 0)[known.receive] == 1)
    of_name = np.append(operations.launched_ns, NONE)[known.receive]
    ended_ns = np.append(operations.end_ns, NONE)[known.receive]
    later = named & (~inside | (ended_ns > operations.received_ns))
    launched_ns = np.where(later, of_name, launched_ns)
    return np.where(launched_ns == NONE, NEVER, launched_ns), known.exact_ns
