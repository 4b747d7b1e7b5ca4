"""Notes below a picture: what its marks mean."""

from __future__ import annotations

from bubbleviz.model.texts import percent_bounds
from bubbleviz.render.picture.brackets import MOST_BRACKETS
from bubbleviz.render.picture.clock_marks import clock_notes
from bubbleviz.render.picture.timeline import TimelinePainter
from bubbleviz.render.picture.title import shows_lower_bound
from bubbleviz.report.advice import advise
from bubbleviz.report.labels import MARK, shortened
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import write_advice
from bubbleviz.report.view import View


def notes_of(timeline: TimelinePainter) -> list[str]:
    """Return a sentence on each mark in the picture that needs an explanation."""
    page, report, selection = timeline.page, timeline.report, timeline.selection
    rows, drawn, headline = timeline.rows, selection.iterations, report.headline
    brackets = len(drawn) <= MOST_BRACKETS
    shown = {rank.index for rank in selection.ranks}
    windows = (len({w for rank, w in by.items() if rank in shown}) for by in selection.windows)
    spanless = sum(map(len, rows.spanless.values()))
    ratio = drawn[0].ratios.get(headline) if len(drawn) == 1 else None
    low, high = (ratio and ratio.interval) or (0.0, 0.0)
    ends = percent_bounds((low, high), 1, 3) if low < high else ()
    bounds = [f"{end}\u00a0%" for end in ends]
    # The title of the picture has the mean of all iterations, which may lie outside.
    of_one = f" of iteration {shortened(drawn[0].name)}" if report.summary.iterations > 1 else ""
    spread = any(row.spread for row in selection.rows)
    copies = any(len(row.replicas) > 1 for row in selection.rows)
    is_first = all(row.rank.index == row.replicas[0] for row in selection.rows)
    replica = "first replica" if is_first else "replica in the pipeline of the advice"
    advised = advise(report).marked
    drawn_ranks = {rank for row in selection.rows for rank in row.replicas}
    is_marked = not drawn_ranks.isdisjoint(advise(report).marked_ranks)
    to_do = "" if advised is None or not is_marked else write_advice(report, advised).short
    sentences = (
        (len(rows.chunks) > 1, "Chunks run from dark to light (numbers in the legend)."),
        (
            brackets and max(windows) > 1,
            "Windows differ by row: brackets show the first row's and the mean length.",
        ),
        (
            timeline.critical,
            "Line along operations: the critical path, which bounds the iteration.",
        ),
        (brackets and len(drawn) > 1, "Dashed: first work of an iteration."),
        (spanless, f"Hollow mark: {spanless:,} without GPU work and so without device time."),
        (
            rows.merged_words,
            f"Dotted below: {rows.merged_words} narrower than {page.length(rows.narrower)}, merged "
            "by phase; height: share of time, the rest is bubble.",
        ),
        (shows_lower_bound(ratio), "The lower ratio counts unattributed compute as work."),
        (any(clock_notes(report, selection)), "± and bars: clock uncertainty of a host."),
        (to_do, f"{MARK} {to_do}."),
        (report.contradicted(headline), "! depends on clocks that contradict each other."),
        (bounds, f"Clock bounds{of_one}: {' to '.join(bounds)}."),
        (
            spread,
            "Rows: stages, each drawn as its replica with the median ratio, beside the minimum and "
            "maximum ratio of all its replicas and the ratio of the drawn one; the area below "
            "shows the share of replicas at work.",
        ),
        (
            spread and any(row.why for row in selection.rows),
            "Rows below: ranks that stand out, against the median of their stage.",
        ),
        (
            copies and not spread,
            f"Rows: stages, each drawn as its {replica}, with the ratio of that replica.",
        ),
    )
    return [sentence for told, sentence in sentences if told]


def nothing_to_draw(report: Report, view: View) -> str:
    """Return the reason why a view of a report selects nothing."""
    if not report.ranks:
        missing = "no GPU has any operation"
    elif not report.iterations:
        missing = "no iteration was found"
    else:
        missing = f"no such {'iteration or ' if view.iterations else ''}rank"
    return f"Nothing to draw: {missing}"
