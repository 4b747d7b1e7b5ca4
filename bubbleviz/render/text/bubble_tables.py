"""Tables of bubbles: the causes of bubbles, the parts of a step, and the longest bubbles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bubbleviz.model.texts import format_percent, to_one_line
from bubbleviz.render import document as doc
from bubbleviz.render.text.first_screen import describe_utilization
from bubbleviz.report.bubble_parts import (
    BubblePart,
    choose_step_window,
    compute_bubble_parts,
    compute_step_parts,
    round_shares,
)
from bubbleviz.report.long_bubbles import describe_longest_implied, find_longest_bubbles
from bubbleviz.report.measure import name_measure
from bubbleviz.report.report import Report

#: Minimum pause between iterations, during which all ranks are idle, that is mentioned. It is a
#: fraction of the period.
_MIN_PAUSE = 0.01


def make_cause_table(report: Report) -> doc.Table:
    """Return a table of the bubble's causes in the averaged iterations, with their sum.

    The table has no rows if no causes are known.
    """
    idle, window = name_measure(report).idle, report.explanation.listed_ratio
    title = f"What the {idle} is made of ({window} window)"
    parts = compute_bubble_parts(report)
    total = sum(part.share for part in parts)
    of_bubble = round_shares([part.share / total for part in parts]) if total else []
    return _make_parts_table(
        title, parts, {"% of bubble": [*of_bubble, doc.format_percent_cell(1.0)]}
    )


def list_step_parts(report: Report) -> Iterator[doc.Block]:
    """Yield a table of how a step's time is spent, idle time between iterations, and FLOPs used.

    A sentence gives the idle time between iterations if it is at least ``_MIN_PAUSE`` of the
    period. Another sentence gives the GPUs' FLOPs utilization if FLOPs are given. The table is left
    out if the parts are unknown.
    """
    if parts := compute_step_parts(report):
        window = choose_step_window(report)
        yield _make_parts_table(f"Where the time of a step goes ({window} window)", parts, {})
    diagnosis = report.explanation.diagnosis
    if diagnosis is not None and diagnosis.pause_ratio >= _MIN_PAUSE:
        yield doc.Sentence(
            f"All ranks are idle between iterations for {format_percent(diagnosis.pause_ratio)} of "
            "the period (included in the causes above)"
        )
    if used := describe_utilization(report):
        yield doc.Sentence(used)


def _make_parts_table(
    title: str, parts: Sequence[BubblePart], more_columns: Mapping[str, Sequence[str]]
) -> doc.Table:
    """Return a table of the time spent in each part of a window, ending with a row for the sum.

    Args:
        title: Start of the table title. The words ", mean of ranks and averaged iterations" are
            appended.
        parts: Parts in display order. If there are none, the table has no rows.
        more_columns: Additional columns, keyed by header. Each column has one cell per part,
            followed by the cell for the sum.
    """
    shares = [part.share for part in parts]
    times_ns = [part.time_ns for part in parts]
    cells = {
        "cause" if more_columns else "part": [*(part.name for part in parts), "all"],
        "% of window": [*round_shares(shares), doc.format_percent_cell(sum(shares))],
        **more_columns,
        "ms": [doc.format_ms(time_ns) for time_ns in [*times_ns, sum(times_ns)]],
        "meaning": [*(part.meaning for part in parts), ""],
    }
    rows = [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
    return doc.Table(
        f"{title}, mean of ranks and averaged iterations",
        rows if parts else [],
        left=("cause", "part", "meaning"),
        wrap=("meaning",),
        drop_order=("% of bubble",),
    )


def list_longest_bubbles(report: Report) -> Iterator[doc.Block]:
    """Yield a list of the longest bubbles not implied by the schedule.

    The last entry is the longest bubble that the schedule implies. If the schedule implies all
    bubbles, the list contains the longest of all bubbles. Only averaged iterations are considered.
    """
    intervals, implied = find_longest_bubbles(report), describe_longest_implied(report)
    if not intervals:
        return
    qualifier = "" if implied is None else " that the schedule does not imply"
    yield doc.make_heading(f"Longest idle intervals{qualifier} (full list: -o idle.bubbles.csv)")
    lines = [to_one_line(sentence, 400) for _, sentence in intervals]
    if implied is not None:
        lines.append(f"the longest that the schedule implies: {to_one_line(implied, 400)}")
    yield doc.make_bullets(lines)
