"""Notes below a picture: what its marks mean, and the limitations of its report."""

from __future__ import annotations

from collections.abc import Iterator

from bubbleviz.model.texts import counted, one_line
from bubbleviz.render.picture.brackets import MOST_BRACKETS
from bubbleviz.render.picture.clocks import row_clocks
from bubbleviz.render.picture.page import Page
from bubbleviz.render.picture.ratios import shows_lower_bound
from bubbleviz.render.picture.timeline import TimelineContents
from bubbleviz.render.selection import Selection
from bubbleviz.report.relative_paths import with_relative_paths
from bubbleviz.report.report import Report, distinct_percents
from bubbleviz.report.view import View

#: Limitations printed under the picture.
_MOST_LIMITATIONS = 5


def notes_of(
    page: Page, report: Report, selection: Selection, contents: TimelineContents
) -> list[str]:
    """Return a sentence on each thing in the picture that needs one."""
    return [
        *_on_colours(contents),
        *_on_windows(report, selection, contents),
        *_on_marks(contents, page),
        *_on_ratios(report, selection),
    ]


def _on_colours(contents: TimelineContents) -> Iterator[str]:
    paints = contents.rows.paints
    if paints.shades > 1:
        numbered = paints.shades == len(paints.chunks)
        yield f"Chunks run from dark to light{' (numbers in the legend)' if numbered else ''}."
    if contents.rows.boxes.others:
        yield "Faded: neighbouring iterations."


def _on_windows(report: Report, selection: Selection, contents: TimelineContents) -> Iterator[str]:
    brackets = len(selection.iterations) <= MOST_BRACKETS
    if brackets and _windows_differ(selection):
        yield (
            "Rows have different windows: brackets span the first row's and give the mean length."
        )
    if _lacks_headline(report, selection):
        headline = one_line(report.headline, 40)
        yield f"Where an iteration has no {headline}, its schedule window is hatched."
    if contents.gaps.hidden:
        yield "Gaps between iterations that are too narrow to be seen are hatched, too."
    if contents.critical:
        yield "Line along operations: the critical path, which bounds the iteration."
    if brackets and len(selection.iterations) > 1:
        yield "Dashed: first work of an iteration."


def _windows_differ(selection: Selection) -> bool:
    """Return whether the rows have windows of their own."""
    drawn = {rank.index for rank in selection.ranks}
    return any(
        len({window for rank, window in by_rank.items() if rank in drawn}) > 1
        for by_rank in selection.windows
    )


def _lacks_headline(report: Report, selection: Selection) -> bool:
    """Return whether a rank has no headline window, so that its ``schedule`` window is hatched."""
    headline = report.headline
    return headline != "schedule" and any(
        headline not in rank.accounts and "schedule" in rank.accounts
        for it in selection.iterations
        for rank in it.ranks
    )


def _on_marks(contents: TimelineContents, page: Page) -> Iterator[str]:
    rows = contents.rows
    if rows.boxes.cut:
        yield "Torn edge: cut by the end of the capture."
    if spanless := len(rows.spanless):
        yield f"Hollow mark: {spanless:,} without GPU work and so without device time."
    if rows.merged_words:
        yield (
            f"Dotted below: {rows.merged_words} narrower than {page.length(rows.narrower)}, "
            "merged by phase; the height of a colour is its share of time, the rest is bubble."
        )


def _on_ratios(report: Report, selection: Selection) -> Iterator[str]:
    drawn = selection.iterations
    ratio = drawn[0].ratios.get(report.headline) if len(drawn) == 1 else None
    if shows_lower_bound(ratio):
        yield "The lower ratio counts unattributed compute as work."
    if row_clocks(report, selection).several:
        yield "± and bars: clock uncertainty of a host."
    if report.contradicted(report.headline):
        yield "! depends on clocks that contradict each other."
    interval = None if ratio is None else ratio.interval
    if interval is not None and interval[0] < interval[1]:
        ends = " to ".join(f"{end}\u00a0%" for end in distinct_percents(interval, 1, 3))
        yield f"Clock bounds: {ends}."
    if any(row.spread for row in selection.rows):
        yield (
            "Rows: stages; each is drawn as the copy with the median ratio ran, beside the least "
            "and the most of its copies' ratios and their mean; the height of the area below is "
            "the share of the copies at work."
        )
        if any(row.why for row in selection.rows):
            yield "Rows below: ranks that stand out, against the median of their stage."
    elif any(len(row.replicas) > 1 for row in selection.rows):
        yield (
            "Rows: stages; each is drawn as its first replica ran, and its ratio is the mean of "
            "its replicas."
        )


def draw_limitations(page: Page, report: Report) -> None:
    """Write the limitations below what is on the page, no more than people read."""
    report, size = with_relative_paths(report), page.style.letters.note
    for limitation in report.limitations[:_MOST_LIMITATIONS]:
        times = f" ({limitation.count:,} times)" if limitation.count > 1 else ""
        what, reason = one_line(limitation.what, 160), one_line(limitation.reason, 500)
        page.paragraph(f"{what}{times}: {reason}", size, lines=2)
    if (more := len(report.limitations) - _MOST_LIMITATIONS) > 0:
        page.paragraph(f"and {counted(more, 'more limitation')}", size, lines=1)


def nothing_to_draw(report: Report, view: View) -> str:
    """Return why a view of a report selects nothing."""
    if not report.ranks:
        missing = "no GPU has any operation"
    elif not report.iterations:
        missing = "no iteration was found"
    else:
        missing = f"no such {'iteration or ' if view.iterations else ''}rank"
    return f"Nothing to draw: {missing}"
