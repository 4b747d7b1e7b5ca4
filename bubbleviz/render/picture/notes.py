"""Writes the notes below a picture that explain the marks in it."""

from __future__ import annotations

from collections.abc import Iterator

from bubbleviz.model.texts import format_percent_bounds
from bubbleviz.render.picture.brackets import has_brackets
from bubbleviz.render.picture.clock_marks import list_clock_notes
from bubbleviz.render.picture.timeline import TimelinePainter
from bubbleviz.render.picture.title import shows_lower_bound
from bubbleviz.render.selection import Selection, choose_row_marks
from bubbleviz.report.captions import describe_slow_iteration
from bubbleviz.report.labels import MARK, truncate_name
from bubbleviz.report.profiled_run import list_profiling_sentences
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import write_marked_advice
from bubbleviz.report.view import View

#: Minimum width of clock bounds that are given: one unit of the last printed digit of a ratio.
_MIN_BOUNDS_WIDTH = 0.001


def explain_marks(timeline: TimelinePainter) -> list[str]:
    """Return a sentence about each kind of mark in the picture that needs explaining."""
    return [
        *_explain_operations(timeline),
        *_explain_ratios(timeline),
        *_explain_rows(timeline.report, timeline.selection),
    ]


def _explain_operations(timeline: TimelinePainter) -> Iterator[str]:
    """Yield sentences about operations, the critical path and brackets.

    The sentences explain chunk shades, windows that differ between rows, the critical path, dashed
    lines between iterations, hollow marks, and merged operations. Only things that appear in the
    picture are explained.
    """
    page, rows, selection = timeline.page, timeline.rows, timeline.selection
    are_bracketed = has_brackets(len(selection.iterations), page.style)
    if len(rows.chunks) > 1:
        yield "Chunks are shaded from dark to light (numbers in the legend)."
    if are_bracketed and _has_different_windows(selection):
        yield "Windows differ by row: brackets show the first row's window and the mean length."
    if timeline.critical:
        yield "Line along operations: the critical path, which determines the iteration's length."
    if are_bracketed and len(selection.iterations) > 1:
        yield "Dashed: first work of an iteration."
    if spanless := sum(map(len, rows.spanless.values())):
        yield f"Hollow mark: {spanless:,} without GPU work, and therefore without device time."
    if rows.merged_words:
        merged = "merged operations"
        if not page.style.legend:
            width = page.length(rows.max_merged_width)
            merged = f"{rows.merged_words} narrower than {width}, merged by phase"
        yield f"Dotted below: {merged}. Height: share of time; the rest is bubble."


def _has_different_windows(selection: Selection) -> bool:
    """Return whether the drawn ranks' windows differ in any iteration."""
    selected = [rank.index for rank in selection.ranks]
    windows = (
        {by_rank[rank] for rank in selected if rank in by_rank} for by_rank in selection.windows
    )
    return any(len(distinct) > 1 for distinct in windows)


def _explain_ratios(timeline: TimelinePainter) -> Iterator[str]:
    """Yield sentences about ratio bounds, the profiler, clocks, marked ranks and a slow iteration.

    Bounds are explained only if a single iteration is drawn. Clock bounds are given only if they
    are at least ``_MIN_BOUNDS_WIDTH`` apart. Styles without notes have no marks of clocks and
    ranks, so these are not explained.
    """
    report, selection, style = timeline.report, timeline.selection, timeline.page.style
    iterations = selection.iterations
    ratio = iterations[0].ratios.get(report.headline) if len(iterations) == 1 else None
    if style.titled and shows_lower_bound(ratio):
        yield "The lower ratio counts unattributed compute as work."
    if style.notes and any(list_clock_notes(report, selection, style.width)):
        yield "± and bars: clock uncertainty of the host."
    if style.notes:
        yield from _explain_marked_ranks(report, selection)
    slow_iteration = describe_slow_iteration(report, iterations)
    if slow_iteration:
        yield slow_iteration
    if report.contradicted(report.headline):
        yield "!: the ratio depends on clocks that contradict each other."
    for sentence in list_profiling_sentences(report):
        yield f"{sentence}."
    low, high = (ratio and ratio.interval) or (0.0, 0.0)
    if high - low >= _MIN_BOUNDS_WIDTH:
        # Name the iteration, because the title shows the mean over all iterations.
        # The mean over all iterations may be outside the bounds of one iteration.
        name = truncate_name(iterations[0].name)
        where = f" of iteration {name}" if report.summary.iterations > 1 else ""
        bounds = " to ".join(f"{end}\u00a0%" for end in format_percent_bounds((low, high), 1, 3))
        yield f"Clock bounds{where}: {bounds}."


def _explain_marked_ranks(report: Report, selection: Selection) -> Iterator[str]:
    """Yield a sentence about the marked ranks, if a row represents one of them."""
    drawn_ranks = {rank for row in selection.rows for rank in row.replicas}
    advice = write_marked_advice(report)
    if advice is not None and advice.short and not drawn_ranks.isdisjoint(advice.ranks):
        yield f"{MARK} {advice.short}."
    outliers = [
        outlier.sentence
        for outlier in choose_row_marks(report, selection).outliers
        if not drawn_ranks.isdisjoint(outlier.ranks)
    ]
    if outliers:
        yield f"{MARK} Outliers: {'; '.join(outliers)}."


def _explain_rows(report: Report, selection: Selection) -> Iterator[str]:
    """Yield sentences about rows that represent several ranks.

    The sentences say which replica is drawn: the replica with the median ratio, the first replica,
    or the replica in the pipeline with the most marked ranks. Yields nothing if each row represents
    a single rank.
    """
    rows = selection.rows
    if any(row.spread for row in rows):
        yield (
            "Rows: stages, each drawn as its replica with the median ratio. Labels: minimum and "
            "maximum ratio of all replicas, and the ratio of the drawn replica. Area below each "
            "of these rows: share of replicas at work."
        )
        if any(row.reason for row in rows):
            yield "Rows below: ranks that stand out, compared with the median of their stage."
    elif any(len(row.replicas) > 1 for row in rows):
        is_first = all(row.rank.index == row.replicas[0] for row in rows)
        has_outliers = bool(choose_row_marks(report, selection).outliers)
        subject = "with the outlier" if has_outliers else "that the advice is about"
        replica = "first replica" if is_first else f"replica in the pipeline {subject}"
        yield f"Rows: stages, each drawn as its {replica}, with the ratio of that replica."


def explain_empty_picture(report: Report, view: View) -> str:
    """Return a sentence that says why a view selects nothing to draw from a report.

    The possible reasons are that the report has no ranks or no iterations, or that the selected
    ranks or iterations do not exist.
    """
    if not report.ranks:
        missing = "no GPU ran any operation"
    elif not report.iterations:
        missing = "no iteration was found"
    else:
        missing = f"no such {'iteration or ' if view.iterations else ''}rank"
    return f"Nothing to draw: {missing}"
