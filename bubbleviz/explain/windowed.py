"""Windowed: a run, its counts and their explanation, cut to the iterations of a window.

Clocks, stages, overlap of iterations, and the start of the iteration after the window (where the
last period ends) come from the whole capture. Only the contents of the report are cut.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.count.count import Counts
from bubbleviz.count.ratios import Extents, Windows
from bubbleviz.explain.causes.cause_times import CauseTimes
from bubbleviz.explain.explained_rows import ExplainedRows, RowsOnDemand, renumbered
from bubbleviz.explain.explanation import Explanation
from bubbleviz.explain.phase_times import CommunicationTimes
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operations import Operations, RankIntervals
from bubbleviz.model.window import Window

#: Subject of the limitation for the rest of the capture.
OUTSIDE = "iterations outside the window"

IterationColumns = TypeVar("IterationColumns", Extents, Windows, CommunicationTimes)


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
    numbers = _numbered(counts.inside)
    rows = _numbered(np.append(counts.inside, False)[run.operations.iteration])
    cut = _cut_run(run, counts, numbers, rows)
    note = _left_out(window, counts)
    return (
        replace(cut, limitations=(*note, *run.limitations)),
        _cut_counts(counts, numbers[0]),
        _cut_explanation(explanation, numbers, rows, cut.operations),
    )


def _numbered(kept: Bools) -> tuple[Ints, Ints]:
    """Return what is kept, and the new number of each of all; -1 for others, and for -1."""
    number = np.where(kept, np.cumsum(kept) - 1, NONE)
    return np.flatnonzero(kept), np.append(number, NONE)


def _of_iterations(columns: IterationColumns, iterations: Ints) -> IterationColumns:
    """Return columns of shape (iterations, ...) of some iterations."""
    some: dict[str, Any] = {
        n: None if column is None else column[iterations] for n, column in vars(columns).items()
    }
    return replace(columns, **some)


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


def _cut_run(run: Run, counts: Counts, numbers: tuple[Ints, Ints], rows: tuple[Ints, Ints]) -> Run:
    (iterations, number), (kept, row) = numbers, rows
    # From the first start to the last end of the windows of all ratios.
    extents, present = counts.extents, counts.extents.present & counts.inside[:, None]
    starts, ends = [extents.first_ns[present]], [extents.step_last_ns[present]]
    for window in counts.windows.values():
        known = present & window.known[:, None]
        starts.append(window.start_ns[known])
        ends.append(window.end_ns[known])
    extent_ns = (
        (int(np.concatenate(starts).min()), int(np.concatenate(ends).max()))
        if present.any()
        else (0, 0)
    )

    def clipped(times: RankIntervals) -> RankIntervals:
        start_ns, end_ns = np.clip(times.start_ns, *extent_ns), np.clip(times.end_ns, *extent_ns)
        some = end_ns > start_ns
        return RankIntervals(times.rank[some], start_ns[some], end_ns[some])

    operations = run.operations.take(kept)
    busy = run.busy.take(row[run.busy.operation] >= 0)
    hosts = run.hosts.take((run.hosts.operation == NONE) | (row[run.hosts.operation] >= 0))
    met = run.collectives.take(number[run.collectives.iteration] >= 0)
    return replace(
        run,
        operations=operations.changed(iteration=number[operations.iteration]),
        busy=replace(busy, operation=row[busy.operation]),
        active_ns=run.active_ns[iterations],
        kernel_ns=run.kernel_ns[iterations],
        gap_ns=run.gap_ns[iterations],
        collective_gap_ns=run.collective_gap_ns[iterations],
        unattributed=clipped(run.unattributed),
        exposed=clipped(run.exposed),
        collectives=met.changed(iteration=number[met.iteration], operation=row[met.operation]),
        overheads=clipped(run.overheads),
        pauses=clipped(run.pauses),
        hosts=replace(hosts, operation=row[hosts.operation]),
        iteration_names=tuple(run.iteration_names[k] for k in iterations.tolist()),
    )


def _cut_counts(counts: Counts, iterations: Ints) -> Counts:
    whole = [counts.iterations[k] for k in iterations.tolist()]
    return replace(
        counts,
        iterations=tuple(replace(i, index=index) for index, i in enumerate(whole)),
        extents=_of_iterations(counts.extents, iterations),
        windows={name: _of_iterations(w, iterations) for name, w in counts.windows.items()},
        one_clock=counts.one_clock[iterations],
        inside=counts.inside[iterations],
    )


def _cut_explanation(
    explanation: Explanation,
    numbers: tuple[Ints, Ints],
    rows: tuple[Ints, Ints],
    operations: Operations,
) -> Explanation:
    (iterations, number), (kept, row) = numbers, rows
    times, path, idle_ns = explanation.phase_times, explanation.path, explanation.causes.idle_ns
    source, replayed = explanation.slowdown_source, explanation.replayed_source
    stragglers = (replace(s, operation=int(row[s.operation])) for s in times.stragglers)
    return replace(
        explanation,
        causes=CauseTimes({name: idle[iterations] for name, idle in idle_ns.items()}),
        explained=RowsOnDemand(partial(_cut_rows, explanation, number, row, operations)),
        received=explanation.received[iterations],
        communication=_of_iterations(explanation.communication, iterations),
        phase_times=replace(times, stragglers=tuple(stragglers)),
        path=path
        and replace(
            path,
            iteration=int(number[path.iteration]),
            operations=row[path.operations],
            slack_ns=path.slack_ns[kept],
        ),
        slowdown_source=source and replace(source, numbers=number[:-1]),
        replayed_source=replayed and replace(replayed, numbers=number[:-1]),
    )


def _cut_rows(
    explanation: Explanation, number: Ints, row: Ints, operations: Operations
) -> ExplainedRows:
    """Return the bubbles and receives of the window; what is replayed has its own rows.

    Bubbles keep no references to operations outside it.
    """
    rows = explanation.explained.rows
    receives = rows.receives.take(row[rows.receives.operation] >= 0)
    bubbles = rows.bubbles.take(number[rows.bubbles.iteration] >= 0)
    bubbles = renumbered(bubbles, row.__getitem__)
    bubbles = replace(bubbles, iteration=number[bubbles.iteration], operations=operations)
    return replace(rows, bubbles=bubbles, receives=renumbered(receives, row.__getitem__))
