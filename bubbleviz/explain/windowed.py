"""Restrict a run, its counts and its explanation to the iterations in a window.

Only the contents of the report are restricted. The whole capture is still used to determine clock
corrections, stages and whether iterations overlap. It also determines the end of the last period,
which is the start of the first iteration after the window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.count.count import Counts
from bubbleviz.count.ratios import Extents, Windows
from bubbleviz.explain.causes.cause_times import CauseTimes
from bubbleviz.explain.communication_times import CommunicationTimes
from bubbleviz.explain.explanation import Explanation, read_once
from bubbleviz.explain.slowdown.replayed_run import ExplainedRows, renumber
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operations import Operations, RankIntervals
from bubbleviz.model.texts import format_count
from bubbleviz.model.window import Window

#: Subject of the limitation for iterations outside the window.
OUTSIDE = "iterations outside the window"

IterationColumns = TypeVar("IterationColumns", Extents, Windows, CommunicationTimes)


def _select_rows(
    explained: Callable[[], ExplainedRows],
    new_iteration: Ints,
    new_row: Ints,
    operations: Operations,
) -> ExplainedRows:
    """Restrict the bubbles and receives of a run to a window, and renumber their references.

    Operation rows and iteration indices in the two tables are renumbered with ``new_row`` and
    ``new_iteration``. All other tables are returned unchanged: they describe the whole run and use
    its row numbers.

    Args:
        explained: Function that returns the per-operation tables of the whole run.
        new_iteration: New index of each iteration, or -1 if it is outside the window. An additional
            last entry of -1 maps the index -1 to itself.
        new_row: New row of each operation, or -1 if it is outside the window. An additional last
            entry of -1 maps the row -1 to itself.
        operations: Operations inside the window.
    """
    all_rows = explained()
    receives = all_rows.receives.take(new_row[all_rows.receives.operation] >= 0)
    bubbles = all_rows.bubbles.take(new_iteration[all_rows.bubbles.iteration] >= 0)
    # References to operations outside the window become -1.
    bubbles = renumber(bubbles, new_row.__getitem__)
    bubbles = replace(bubbles, iteration=new_iteration[bubbles.iteration], operations=operations)
    receives = renumber(receives, new_row.__getitem__)
    return replace(all_rows, bubbles=bubbles, receives=receives)


def select_window(
    window: Window | None, run: Run, counts: Counts, explanation: Explanation
) -> tuple[Run, Counts, Explanation]:
    """Restrict a run, its counts and its explanation to the iterations inside a window.

    The returned run has an additional limitation that gives the number of iterations outside the
    window. If every iteration is inside, all three are returned unchanged.

    Args:
        window: Window of the report, or None for the whole run.
        run: The merged profiles.
        counts: The ratios of the run, counted with this window.
        explanation: Explanation of the run.
    """
    if window is None or counts.is_in_window.all():
        return run, counts, explanation
    is_inside = counts.is_in_window
    iterations = np.flatnonzero(is_inside)
    is_kept = np.append(is_inside, False)[run.operations.iteration]
    # New number of each iteration and operation, or -1 if it is outside the window. The last entry
    # maps -1 to -1.
    new_iteration, new_row = (
        np.append(np.where(is_selected, np.cumsum(is_selected) - 1, NONE), NONE)
        for is_selected in (is_inside, is_kept)
    )
    cut_run = _cut_run(run, counts, iterations, new_iteration, new_row)
    left_out = _describe_left_out(window, counts)
    return (
        replace(cut_run, limitations=(left_out, *run.limitations)),
        _cut_counts(counts, iterations),
        _cut_explanation(explanation, cut_run.operations, iterations, new_iteration, new_row),
    )


def _cut_counts(counts: Counts, iterations: Ints) -> Counts:
    """Return counts restricted to the given iterations, which are renumbered from 0."""
    return replace(
        counts,
        iterations=tuple(
            replace(counts.iterations[k], index=index)
            for index, k in enumerate(iterations.tolist())
        ),
        extents=_select_iterations(counts.extents, iterations),
        windows={name: _select_iterations(w, iterations) for name, w in counts.windows.items()},
        one_clock=counts.one_clock[iterations],
        is_in_window=counts.is_in_window[iterations],
        is_uniform=counts.is_uniform[iterations],
    )


def _cut_explanation(
    explanation: Explanation,
    operations: Operations,
    iterations: Ints,
    new_iteration: Ints,
    new_row: Ints,
) -> Explanation:
    """Return an explanation restricted to the given iterations.

    Tables with one row per iteration are restricted to these iterations. References to iterations
    and operations are renumbered.

    Args:
        explanation: Explanation of the whole run.
        operations: Operations inside the window.
        iterations: Indices of the iterations inside the window.
        new_iteration: New index of each iteration, or -1 if it is outside the window. An additional
            last entry of -1 maps the index -1 to itself.
        new_row: New row of each operation, or -1 if it is outside the window. An additional last
            entry of -1 maps the row -1 to itself.
    """
    rows = partial(_select_rows, explanation.explained, new_iteration, new_row, operations)
    times, path, idle_ns = explanation.phase_times, explanation.path, explanation.causes.idle_ns
    source, replayed = explanation.slowdown_source, explanation.replayed_source
    step = explanation.first_step
    if step is not None:
        index = int(new_iteration[step.iteration])
        step = replace(step, iteration=index) if index >= 0 else None
    stragglers = ((int(new_row[operation]), many) for operation, many in times.stragglers)
    return replace(
        explanation,
        causes=CauseTimes({name: idle[iterations] for name, idle in idle_ns.items()}),
        explained=partial(read_once, rows, []),
        received=explanation.received[iterations],
        communication=_select_iterations(explanation.communication, iterations),
        phase_times=replace(times, stragglers=tuple(stragglers)),
        path=path
        and replace(
            path,
            iteration=int(new_iteration[path.iteration]),
            operations=new_row[path.operations],
            replayed=new_row[path.replayed],
        ),
        first_step=step,
        slowdown_source=source and replace(source, numbers=new_iteration[:-1]),
        replayed_source=replayed and replace(replayed, numbers=new_iteration[:-1]),
    )


def _select_iterations(columns: IterationColumns, iterations: Ints) -> IterationColumns:
    """Return a table restricted to the given iterations.

    The first axis of each column is the iteration. Columns that are None stay None.
    """
    selected: dict[str, Any] = {
        n: None if column is None else column[iterations] for n, column in vars(columns).items()
    }
    return replace(columns, **selected)


def _describe_left_out(window: Window, counts: Counts) -> Limitation:
    """Return the limitation that gives the number of iterations outside the window.

    Its text also gives the number of these iterations that overlap the window, if any.
    """
    start_ns = np.array([i.start_ns for i in counts.iterations], np.int64)
    end_ns = np.array([i.end_ns for i in counts.iterations], np.int64)
    n_overlapping = int((window.mask_overlapping(start_ns, end_ns) & ~counts.is_in_window).sum())
    partly = ""
    if n_overlapping:
        partly = (
            f", including {format_count(n_overlapping, 'iteration')} that it only partly covers"
        )
    reason = (
        f"--window {window.text} excludes them{partly}. Numbers about whole profiles, such as "
        "coverage, still describe the whole capture"
    )
    return Limitation(OUTSIDE, reason, int((~counts.is_in_window).sum()))


def _cut_run(run: Run, counts: Counts, iterations: Ints, new_iteration: Ints, new_row: Ints) -> Run:
    """Return a run restricted to the given iterations.

    Tables that contain the iteration or operation of each row are restricted to the rows inside the
    window. Interval tables that do not contain iterations are clipped to one time range. This range
    starts at the first start and stops at the last end of the selected iterations and their
    measurement windows.

    Args:
        run: The run, including the iterations outside the window.
        counts: The ratios of the run.
        iterations: Indices of the iterations inside the window.
        new_iteration: New index of each iteration, or -1 if it is outside the window. An additional
            last entry of -1 maps the index -1 to itself.
        new_row: New row of each operation, or -1 if it is outside the window. An additional last
            entry of -1 maps the row -1 to itself.
    """
    extents, present = counts.extents, counts.extents.present & counts.is_in_window[:, None]
    starts, end_times = [extents.first_ns[present]], [extents.step_last_ns[present]]
    for window in counts.windows.values():
        is_known = present & window.is_known[:, None]
        starts.append(window.start_ns[is_known])
        end_times.append(window.end_ns[is_known])
    extent_ns = (
        (int(np.concatenate(starts).min()), int(np.concatenate(end_times).max()))
        if present.any()
        else (0, 0)
    )

    def clip_to_extent(times: RankIntervals) -> RankIntervals:
        start_ns, end_ns = np.clip(times.start_ns, *extent_ns), np.clip(times.end_ns, *extent_ns)
        has_length = end_ns > start_ns
        return RankIntervals(times.rank[has_length], start_ns[has_length], end_ns[has_length])

    operations = run.operations.take(new_row[:-1] >= 0)
    busy = run.busy.take(new_row[run.busy.operation] >= 0)
    hosts = run.hosts.take((run.hosts.operation == NONE) | (new_row[run.hosts.operation] >= 0))
    collectives = run.collectives.take(new_iteration[run.collectives.iteration] >= 0)
    return replace(
        run,
        operations=operations.replace_columns(iteration=new_iteration[operations.iteration]),
        busy=replace(busy, operation=new_row[busy.operation]),
        active_ns=run.active_ns[iterations],
        kernel_ns=run.kernel_ns[iterations],
        gap_ns=run.gap_ns[iterations],
        collective_gap_ns=run.collective_gap_ns[iterations],
        unattributed=clip_to_extent(run.unattributed),
        exposed=clip_to_extent(run.exposed),
        collectives=collectives.replace_columns(
            iteration=new_iteration[collectives.iteration], operation=new_row[collectives.operation]
        ),
        overheads=clip_to_extent(run.overheads),
        unrecorded=clip_to_extent(run.unrecorded),
        pauses=clip_to_extent(run.pauses),
        hosts=replace(hosts, operation=new_row[hosts.operation]),
        iteration_names=tuple(run.iteration_names[k] for k in iterations.tolist()),
    )
