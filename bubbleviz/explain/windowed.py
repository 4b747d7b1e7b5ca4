"""Windowed: a run, its counts and their explanation, cut to the iterations of a window.

Clocks, stages, overlap of iterations, and the start of the iteration after the window (where the
last period ends) come from the whole capture. Only the contents of the report are cut.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.count.count import Counts
from bubbleviz.count.ratios import Extents, Windows
from bubbleviz.explain.causes.cause_times import Bubbles, CauseTimes
from bubbleviz.explain.explained_rows import ExplainedRows, RowsOnDemand
from bubbleviz.explain.explanation import Explanation
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operations import Operations, RankIntervals
from bubbleviz.model.values import frozen
from bubbleviz.model.window import Window

#: Subject of the limitation for the rest of the capture.
OUTSIDE = "iterations outside the window"


@frozen
class _Selection:
    """The iterations and operations in the window, and their new numbers; -1 for the others."""

    iterations: Ints
    operations: Ints
    iteration: Ints
    operation: Ints

    def renumbered(self, iteration: Ints) -> Ints:
        """Return the new numbers of iterations."""
        return np.append(self.iteration, NONE)[iteration]

    def new_rows(self, row: Ints) -> Ints:
        """Return the new rows of operations."""
        return np.append(self.operation, NONE)[row]


def windowed(
    window: Window | None, run: Run, counts: Counts, explanation: Explanation
) -> tuple[Run, Counts, Explanation]:
    """Return a run, its counts and their explanation, cut to the iterations inside a window.

    Args:
        window: of the report; None for the whole run.
        run: the merged profiles.
        counts: its ratios, counted with this window.
        explanation: of the run.
    """
    if window is None or counts.inside.all():
        return run, counts, explanation
    selection = _selection(run.operations, counts.inside)
    extent_ns = _extent(counts)
    cut = _run(run, selection, extent_ns)
    note = _left_out(window, counts)
    return (
        replace(cut, limitations=(*note, *run.limitations)),
        _counts(counts, selection),
        _explanation(explanation, selection, cut.operations),
    )


def _selection(operations: Operations, inside: Bools) -> _Selection:
    iterations = np.flatnonzero(inside)
    rows = np.flatnonzero(np.append(inside, False)[operations.iteration])
    iteration = np.full(len(inside), NONE, np.int64)
    iteration[iterations] = np.arange(len(iterations))
    operation = np.full(len(operations), NONE, np.int64)
    operation[rows] = np.arange(len(rows))
    return _Selection(iterations, rows, iteration, operation)


def _extent(counts: Counts) -> tuple[int, int]:
    """Return the first start and the last end of the windows of all ratios."""
    extents, inside = counts.extents, counts.inside[:, None]
    present = extents.present & inside
    starts = [extents.first_ns[present]]
    ends = [extents.step_last_ns[present]]
    for window in counts.windows.values():
        known = present & window.known[:, None]
        starts.append(window.start_ns[known])
        ends.append(window.end_ns[known])
    start_ns, end_ns = np.concatenate(starts), np.concatenate(ends)
    return (int(start_ns.min()), int(end_ns.max())) if len(start_ns) else (0, 0)


def _left_out(window: Window, counts: Counts) -> tuple[Limitation, ...]:
    """Return the limitation for the rest of the capture."""
    outside = int((~counts.inside).sum())
    start_ns = np.array([i.start_ns for i in counts.iterations], np.int64)
    end_ns = np.array([i.end_ns for i in counts.iterations], np.int64)
    cut = int((window.touches(start_ns, end_ns) & ~counts.inside).sum())
    partly = f" ({cut} of them lie partly in it)" if cut else ""
    reason = (
        f"--window {window.text} leaves them out{partly}; what is reported of whole profiles, such "
        "as the share of attributed kernel time, covers the whole capture"
    )
    return (Limitation(OUTSIDE, reason, outside),)


def _run(run: Run, selection: _Selection, extent_ns: tuple[int, int]) -> Run:
    operations = run.operations.take(selection.operations)
    operations = operations.changed(iteration=selection.renumbered(operations.iteration))
    busy = run.busy.take(selection.new_rows(run.busy.operation) >= 0)
    inside = (run.hosts.operation == NONE) | (selection.new_rows(run.hosts.operation) >= 0)
    hosts = run.hosts.take(inside)
    return replace(
        run,
        operations=operations,
        busy=replace(busy, operation=selection.new_rows(busy.operation)),
        active_ns=run.active_ns[selection.iterations],
        kernel_ns=run.kernel_ns[selection.iterations],
        gap_ns=run.gap_ns[selection.iterations],
        collective_gap_ns=run.collective_gap_ns[selection.iterations],
        unattributed=_clipped(run.unattributed, extent_ns),
        exposed=_clipped(run.exposed, extent_ns),
        collectives=_collectives(run.collectives, selection),
        overheads=_clipped(run.overheads, extent_ns),
        pauses=_clipped(run.pauses, extent_ns),
        hosts=replace(hosts, operation=selection.new_rows(hosts.operation)),
        iteration_names=tuple(run.iteration_names[k] for k in selection.iterations.tolist()),
    )


def _collectives(collectives: CollectiveIntervals, selection: _Selection) -> CollectiveIntervals:
    inside = collectives.take(selection.renumbered(collectives.iteration) >= 0)
    return inside.changed(
        iteration=selection.renumbered(inside.iteration),
        operation=selection.new_rows(inside.operation),
    )


def _clipped(times: RankIntervals, extent_ns: tuple[int, int]) -> RankIntervals:
    start_ns, end_ns = np.clip(times.start_ns, *extent_ns), np.clip(times.end_ns, *extent_ns)
    some = end_ns > start_ns
    return RankIntervals(times.rank[some], start_ns[some], end_ns[some])


def _counts(counts: Counts, selection: _Selection) -> Counts:
    rows, extents = selection.iterations, counts.extents
    whole = [counts.iterations[k] for k in rows.tolist()]
    return replace(
        counts,
        iterations=tuple(replace(i, index=index) for index, i in enumerate(whole)),
        extents=Extents(
            extents.first_ns[rows],
            extents.last_ns[rows],
            extents.step_last_ns[rows],
            extents.present[rows],
            None if extents.paused is None else extents.paused[rows],
        ),
        windows={
            name: Windows(w.start_ns[rows], w.end_ns[rows], w.known[rows])
            for name, w in counts.windows.items()
        },
        one_clock=counts.one_clock[rows],
        inside=counts.inside[rows],
    )


def _explanation(
    explanation: Explanation, selection: _Selection, operations: Operations
) -> Explanation:
    times, path = explanation.phase_times, explanation.path
    communication = explanation.communication
    source, replayed = explanation.slowdown_source, explanation.replayed_source
    return replace(
        explanation,
        causes=CauseTimes(
            {n: idle[selection.iterations] for n, idle in explanation.causes.idle_ns.items()}
        ),
        explained=RowsOnDemand(partial(_rows, explanation.explained, selection, operations)),
        received=explanation.received[selection.iterations],
        communication=replace(
            communication,
            **{name: column[selection.iterations] for name, column in vars(communication).items()},
        ),
        phase_times=replace(
            times,
            stragglers=tuple(
                replace(s, operation=int(selection.operation[s.operation]))
                for s in times.stragglers
            ),
        ),
        path=path
        and replace(
            path,
            iteration=int(selection.iteration[path.iteration]),
            operations=selection.new_rows(path.operations),
            slack_ns=path.slack_ns[selection.operations],
        ),
        slowdown_source=source and replace(source, numbers=selection.iteration),
        replayed_source=replayed and replace(replayed, numbers=selection.iteration),
    )


def _rows(explained: RowsOnDemand, selection: _Selection, operations: Operations) -> ExplainedRows:
    """Return the bubbles and receives of the window; what is replayed has its own rows."""
    rows = explained.rows
    receives = rows.receives.take(selection.new_rows(rows.receives.operation) >= 0)
    return replace(
        rows,
        bubbles=_bubbles(rows.bubbles, selection, operations),
        receives=replace(receives, operation=selection.new_rows(receives.operation)),
    )


def _bubbles(bubbles: Bubbles, selection: _Selection, operations: Operations) -> Bubbles:
    """Return the bubbles of the window, without references to operations outside it."""
    inside = bubbles.take(selection.renumbered(bubbles.iteration) >= 0)
    return replace(
        inside,
        iteration=selection.renumbered(inside.iteration),
        before=selection.new_rows(inside.before),
        after=selection.new_rows(inside.after),
        peer_operation=selection.new_rows(inside.peer_operation),
        operations=operations,
    )
