"""Windowed: what was counted and explained, cut to the iterations of a window.

Everything was told with the whole capture in sight: clocks, stages, which iterations overlap, and
when the iteration behind the last one of the window began, to which its period lasts. What is cut
is what stands in the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.align.bounds.clocks import ProfileClock
from bubbleviz.align.run import Run
from bubbleviz.count.count import Counts
from bubbleviz.count.iterations import Iteration
from bubbleviz.count.ratios import Extents, Windows
from bubbleviz.explain.causes import Bubbles, Causes
from bubbleviz.explain.explanation import Explanation
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.operations import Limitation, Operations, ProfileSummary, RankIntervals
from bubbleviz.model.window import Window

#: What the limitation is about that tells of a window.
OUTSIDE = "iterations outside the window"


def extents_of(
    window: Window, iterations: Iterable[Iteration], profiles: Sequence[ProfileSummary]
) -> tuple[tuple[int, int], ...]:
    """Return for each profile from when to when (exclusive) a window lasts, on its own clock.

    A window of iterations lasts from the first start of their work on any rank to the last end,
    Optimizer included.

    Args:
        window: of the run.
        iterations: of the report, of the whole run or of the window.
        profiles: of the report, which tell the clocks.

    Raises:
        InputError: the window holds no iteration.
    """
    if window.times_ns is None:
        known = list(iterations)
        start_ns = np.array([i.start_ns for i in known], np.int64)
        end_ns = np.array([i.end_ns for i in known], np.int64)
        held = window.holds([i.name for i in known], start_ns, end_ns)
        ends = int(start_ns[held].min()), int(end_ns[held].max())
    else:
        ends = window.times_ns
    found = []
    for own in profiles:
        clock = ProfileClock(
            own.clock_offset_ns, own.clock_uncertainty_ns, own.clock_drift_ppm, own.clock_t0_ns
        )
        since_ns, until_ns = clock.back(np.array(ends, np.int64)).tolist()
        found.append((since_ns, until_ns))
    return tuple(found)


@dataclass(frozen=True)
class _Kept:
    """Which iterations and operations are kept, and their new numbers; -1 for the others."""

    iterations: Ints
    operations: Ints
    iteration: Ints
    operation: Ints

    def renumbered(self, iteration: Ints) -> Ints:
        """Return the new numbers of iterations."""
        return np.append(self.iteration, NONE)[iteration]

    def moved(self, row: Ints) -> Ints:
        """Return the new rows of operations."""
        return np.append(self.operation, NONE)[row]


def windowed(
    window: Window | None, run: Run, counts: Counts, explanation: Explanation
) -> tuple[Run, Counts, Explanation]:
    """Return a run, its counts and their explanation, cut to what ``counts.inside`` tells.

    Args:
        window: that was asked for; None for the whole run.
        run: the profiles put together.
        counts: its ratios, counted with this window.
        explanation: of these.
    """
    if window is None or counts.inside.all():
        return run, counts, explanation
    kept = _kept(run.operations, counts.inside)
    extent_ns = _extent(counts)
    cut = _run(run, kept, extent_ns)
    note = _left_out(window, counts)
    return (
        replace(cut, limitations=(*note, *run.limitations)),
        _counts(counts, kept),
        _explanation(explanation, kept, cut.operations),
    )


def _kept(operations: Operations, inside: Bools) -> _Kept:
    iterations = np.flatnonzero(inside)
    rows = np.flatnonzero(np.append(inside, False)[operations.iteration])
    iteration = np.full(len(inside), NONE, np.int64)
    iteration[iterations] = np.arange(len(iterations))
    operation = np.full(len(operations), NONE, np.int64)
    operation[rows] = np.arange(len(rows))
    return _Kept(iterations, rows, iteration, operation)


def _extent(counts: Counts) -> tuple[int, int]:
    """Return from when to when the windows of all ratios last."""
    extents, inside = counts.extents, counts.inside[:, None]
    present = extents.present & inside
    starts = [extents.first_ns[present]]
    ends = [extents.step_last_ns[present]]
    for one in counts.windows.values():
        known = present & one.known[:, None]
        starts.append(one.start_ns[known])
        ends.append(one.end_ns[known])
    start_ns, end_ns = np.concatenate(starts), np.concatenate(ends)
    return (int(start_ns.min()), int(end_ns.max())) if len(start_ns) else (0, 0)


def _left_out(window: Window, counts: Counts) -> tuple[Limitation, ...]:
    """Return what is said of the rest of the capture."""
    outside = int((~counts.inside).sum())
    start_ns = np.array([i.start_ns for i in counts.iterations], np.int64)
    end_ns = np.array([i.end_ns for i in counts.iterations], np.int64)
    cut = int((window.touches(start_ns, end_ns) & ~counts.inside).sum())
    partly = f" ({cut} of them lie partly in it)" if cut else ""
    reason = (
        f"--window {window.text} leaves them out{partly}; what is told of whole profiles, as how "
        "much of their kernels operations explain, is of the whole capture"
    )
    return (Limitation(OUTSIDE, reason, outside),)


def _run(run: Run, kept: _Kept, extent_ns: tuple[int, int]) -> Run:
    own = run.operations.take(kept.operations)
    operations = own.changed(iteration=kept.renumbered(own.iteration))
    busy = run.busy.take(kept.moved(run.busy.operation) >= 0)
    hosts = run.hosts.take(kept.moved(run.hosts.operation) >= 0)
    return replace(
        run,
        operations=operations,
        busy=replace(busy, operation=kept.moved(busy.operation)),
        active_ns=run.active_ns[kept.iterations],
        communication_ns=run.communication_ns[kept.iterations],
        overlapped_ns=run.overlapped_ns[kept.iterations],
        unattributed=_clipped(run.unattributed, extent_ns),
        exposed=_clipped(run.exposed, extent_ns),
        overheads=_clipped(run.overheads, extent_ns),
        hosts=replace(hosts, operation=kept.moved(hosts.operation)),
        iteration_names=tuple(run.iteration_names[k] for k in kept.iterations.tolist()),
    )


def _clipped(times: RankIntervals, extent_ns: tuple[int, int]) -> RankIntervals:
    start_ns, end_ns = np.clip(times.start_ns, *extent_ns), np.clip(times.end_ns, *extent_ns)
    some = end_ns > start_ns
    return RankIntervals(times.rank[some], start_ns[some], end_ns[some])


def _counts(counts: Counts, kept: _Kept) -> Counts:
    rows, extents = kept.iterations, counts.extents
    whole = [counts.iterations[k] for k in rows.tolist()]
    return replace(
        counts,
        iterations=tuple(replace(own, index=index) for index, own in enumerate(whole)),
        extents=Extents(
            extents.first_ns[rows],
            extents.last_ns[rows],
            extents.step_last_ns[rows],
            extents.present[rows],
        ),
        windows={
            name: Windows(one.start_ns[rows], one.end_ns[rows], one.known[rows])
            for name, one in counts.windows.items()
        },
        one_clock=counts.one_clock[rows],
        inside=counts.inside[rows],
    )


def _explanation(found: Explanation, kept: _Kept, operations: Operations) -> Explanation:
    times, path = found.phase_times, found.path
    communication = found.communication
    receives = found.receives.take(kept.moved(found.receives.operation) >= 0)
    return replace(
        found,
        causes=Causes({n: idle[kept.iterations] for n, idle in found.causes.idle_ns.items()}),
        bubbles=_bubbles(found.bubbles, kept, operations),
        receives=replace(receives, operation=kept.moved(receives.operation)),
        communication=replace(
            communication,
            **{name: column[kept.iterations] for name, column in vars(communication).items()},
        ),
        phase_times=replace(
            times,
            stragglers=tuple(
                replace(one, operation=int(kept.operation[one.operation]))
                for one in times.stragglers
            ),
            times_median=times.times_median[kept.operations],
        ),
        path=path
        and replace(
            path,
            iteration=int(kept.iteration[path.iteration]),
            operations=kept.moved(path.operations),
            slack_ns=path.slack_ns[kept.operations],
        ),
    )


def _bubbles(bubbles: Bubbles, kept: _Kept, operations: Operations) -> Bubbles:
    """Return the idle intervals of the window; an operation outside it, beside one, is none."""
    own = bubbles.take(kept.renumbered(bubbles.iteration) >= 0)
    return replace(
        own,
        iteration=kept.renumbered(own.iteration),
        before=kept.moved(own.before),
        after=kept.moved(own.after),
        peer_operation=kept.moved(own.peer_operation),
        operations=operations,
    )
