"""Labels beside the rows: stages, names of ranks, and bubble ratios."""

from __future__ import annotations

from bubbleviz.model.texts import one_line
from bubbleviz.render.picture.clock_marks import clock_notes
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.page import (
    Page,
    PictureStyle,
    fitted,
    percent,
    text_width,
)
from bubbleviz.render.rows import RankRow, Selection, row_ratios
from bubbleviz.report.advice import advise
from bubbleviz.report.labels import MARK
from bubbleviz.report.measure import name_measure
from bubbleviz.report.report import Report

#: Maximum width of names, as a share of the width of the page.
WIDEST_NAME = 0.175


def ratio_title(report: Report, selection: Selection) -> str:
    """Return the title of the column of ratios, which are means if several iterations are drawn."""
    idle = name_measure(report).idle
    return f"mean {idle}" if len(selection.iterations) > 1 else idle


def labels_of(
    report: Report, selection: Selection, style: PictureStyle
) -> tuple[list[str], list[str], list[str]]:
    """Return the stage, the name and the ratio of each row; see :class:`.Layout`."""
    ranks = selection.ranks
    marked = advise(report).marked_ranks if style.notes else ()
    clocks = clock_notes(report, selection) if style.notes else [""] * len(ranks)
    # Rows of many replicas have no pipeline.
    single = {own.rank.pipeline for own in selection.rows if not own.spread}
    several = len(single) > 1 or len(single) < len({rank.pipeline for rank in ranks})
    ratios = row_ratios(report, selection)
    stages, names = [], []
    for row, (own, (_, ends)) in enumerate(zip(selection.rows, ratios, strict=True)):
        rank = own.rank
        stage = "" if rank.stage is None else f"stage {rank.stage}"
        if rank.pipeline is not None and several and not own.spread:
            stage = f"p{rank.pipeline} {stage}".strip()
        stages.append(f"{MARK} {stage}".strip() if {*own.replicas} & {*marked} else stage)
        if own.spread:
            between = "" if ends is None else f": {100 * ends[0]:.1f} to {percent(ends[1])}"
            names.append(f"{len(own.replicas):,} ranks{between}")
            continue
        changed = row == 0 or report.clock(ranks[row - 1].profile) != report.clock(rank.profile)
        names.append(_name(own, clocks[row] if changed else ""))
    widest = max(text_width(name, style.letters.label) for name in names)
    # A screen has room for most of each name.
    if not style.names or (style.millimetres and widest > WIDEST_NAME * style.width):
        # Names by number, and none where stages tell the rows apart.
        apart = "" not in stages and len(set(stages)) == len(stages)
        numbers = (
            str(r.number) if own else f"rank {r.number}"
            for r, own in zip(ranks, stages, strict=True)
        )
        names = ["" if apart else number for number in numbers]
    mark = " !" if report.contradicted(report.headline) else ""
    return stages, names, [percent(ratio) + mark for ratio, _ in ratios]


def _name(row: RankRow, clock: str) -> str:
    """Return the name of the rank of a row, followed by a note on its clock, which may be empty."""
    if row.why:
        return one_line(row.why, 80)
    copies = f"1 of {len(row.replicas)}: " if len(row.replicas) > 1 else ""
    note = f", {clock}" if clock else ""
    return one_line(f"{copies}{one_line(row.rank.label, 60)}{note}", 80)


def draw_labels(page: Page, layout: Layout) -> None:
    """Draw the stage, the name and the bubble ratio of each row."""
    size, quiet = layout.size, page.style.letters.axis
    small = page.style.name_size(size)
    rows = list(zip(layout.stages, layout.names, layout.ratios, layout.tops, strict=True))
    for stage, full_name, ratio, top in rows[:: layout.step]:
        y = top + layout.row / 2 + size * 0.36
        if stage:
            page.text(stage, page.left, y, size)
        if name := fitted(full_name, small, layout.left - 0.6 * size - layout.name_x):
            page.text(name, layout.name_x, y, small, ink="quiet")
        page.text(ratio, page.right, y, size, text_anchor="end")
    # The title is above the first ratio, also if letters are higher than the row.
    y = layout.tops[0] - max(8.0 if page.style.titled else 4.0, (size - layout.row) / 2 + 3)
    page.text(layout.ratio_title, page.right, y, quiet, ink="quiet", text_anchor="end")
