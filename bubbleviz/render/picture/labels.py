"""Draws the labels next to rows: stages, rank names and bubble ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bubbleviz.model.texts import to_one_line
from bubbleviz.render.picture.clock_marks import list_clock_notes
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.lettering import text_width, truncate_text
from bubbleviz.render.picture.numbers import percent
from bubbleviz.render.picture.page import Page
from bubbleviz.render.picture.style import PictureStyle
from bubbleviz.render.rows import RankRow
from bubbleviz.render.selection import Selection, choose_row_marks, measure_row_ratios
from bubbleviz.report.labels import MARK
from bubbleviz.report.measure import name_measure
from bubbleviz.report.report import Report

#: Maximum width of the name column, as a fraction of the page width.
_MAX_NAME_WIDTH = 0.175
#: Minimum width of the ratio column in the screen style, in page units.
_RATIO_COLUMN = 50


@dataclass(frozen=True)
class RowLabels:
    """The texts next to the rows of a timeline.

    Attributes:
        stages: Label with each row's pipeline and stage, or "" if they are unknown.
        names: Name of the rank drawn in each row, or "".
        ratios: Bubble ratio of each row as text.
        ratio_title: Heading of the ratio column.
    """

    stages: Sequence[str]
    names: Sequence[str]
    ratios: Sequence[str]
    ratio_title: str

    def place_columns(self, page: Page, size: float) -> tuple[float, float, float]:
        """Compute the positions of the text columns and the plot.

        The name column takes at most ``_MAX_NAME_WIDTH`` of the page width.

        Args:
            page: The page.
            size: Font size of the labels.

        Returns:
            name_x: Left edge of the name column.
            left: Minimum left edge of the plot.
            right: Maximum right edge of the plot.
        """
        style = page.style
        stage_width = max(text_width(stage, size) for stage in self.stages)
        widest_name = max(text_width(name, style.name_size(size)) for name in self.names)
        name_width = min(widest_name, _MAX_NAME_WIDTH * style.width)
        gap = 0.8 * size if stage_width and name_width else 0
        name_x = page.left + stage_width + gap
        left = math.ceil(name_x + name_width + 0.6 * size)
        ratio_width = max(text_width(ratio, size) for ratio in self.ratios)
        title_width = text_width(self.ratio_title, style.letters.axis)
        right = page.right - 0.6 * size - max(title_width, ratio_width)
        if not style.millimeters:
            right = min(right, page.right - _RATIO_COLUMN)
        return name_x, left, right


def label_rows(report: Report, selection: Selection, style: PictureStyle) -> RowLabels:
    """Return the stage, name and ratio of each row, and the heading of the ratio column.

    If several iterations are drawn, the ratios are means. If the style has no names, or if names
    are too wide for paper, :func:`_number_rows` replaces them with rank numbers or empty strings.
    """
    ratios = measure_row_ratios(report, selection)
    stages = _label_stages(report, selection, style)
    names = _name_rows(report, selection, style, [ends for _, ends in ratios])
    widest = max(text_width(name, style.letters.label) for name in names)
    # On a screen, names are truncated instead. Most of each name usually fits.
    is_too_wide = style.millimeters and widest > _MAX_NAME_WIDTH * style.width
    if not style.names or is_too_wide:
        names = _number_rows(selection, stages)
    mark = " !" if report.contradicted(report.headline) else ""
    mean = "mean " if len(selection.iterations) > 1 else ""
    ratio_texts = [percent(ratio) + mark for ratio, _ in ratios]
    return RowLabels(stages, names, ratio_texts, f"{mean}{name_measure(report).idle}")


def _label_stages(report: Report, selection: Selection, style: PictureStyle) -> list[str]:
    """Return the stage label of each row, made up of a mark, the pipeline and the stage.

    In styles with notes, a row is marked if it represents a marked rank; see
    :func:`.choose_row_marks`. The pipeline is named if the run has several pipelines. The labels
    of rows that show the spread of replicas never name a pipeline.
    """
    marked = set(choose_row_marks(report, selection).ranks) if style.notes else set()
    has_several = len({rank.pipeline for rank in report.ranks}) > 1
    stages = []
    for row in selection.rows:
        rank = row.rank
        stage = "" if rank.stage is None else f"stage {rank.stage}"
        # A row that shows the spread of replicas represents several pipelines.
        if rank.pipeline is not None and has_several and not row.spread:
            stage = f"p{rank.pipeline} {stage}".strip()
        is_marked = not marked.isdisjoint(row.replicas)
        stages.append(f"{MARK} {stage}".strip() if is_marked else stage)
    return stages


def _name_rows(
    report: Report,
    selection: Selection,
    style: PictureStyle,
    ratio_ranges: Sequence[tuple[float, float] | None],
) -> list[str]:
    """Return text that names the rank or replicas of each row.

    If a row shows the spread of replicas, the text contains the number of replicas and the range of
    their ratios. Otherwise the text is the name of the drawn rank. In styles with notes, the clock
    uncertainty follows this name, unless the row above has the same clock.

    Args:
        report: The report.
        selection: The rows that are drawn.
        style: The style.
        ratio_ranges: (minimum, maximum) ratio over each row's replicas, or None if unknown.
    """
    ranks = selection.ranks
    clocks = list_clock_notes(report, selection, style.width) if style.notes else [""] * len(ranks)
    names = []
    for index, (row, suffixes) in enumerate(zip(selection.rows, ratio_ranges, strict=True)):
        if row.spread:
            names.append(_name_replicas(row, suffixes))
            continue
        above = ranks[index - 1] if index else None
        is_new_clock = above is None or (
            report.clock(above.profile) != report.clock(row.rank.profile)
        )
        names.append(_name_row(row, clocks[index] if is_new_clock else ""))
    return names


def _name_replicas(row: RankRow, ratio_range: tuple[float, float] | None) -> str:
    """Return a row's replica count and the range of the replicas' ratios as text.

    If the range is None, the text contains only the number.
    """
    ranks = f"{len(row.replicas):,} ranks"
    if ratio_range is None:
        return ranks
    low, high = ratio_range
    return f"{ranks}: {100 * low:.1f} to {percent(high)}"


def _name_row(row: RankRow, clock: str) -> str:
    """Return the name of a row that shows one rank.

    If the row was added because its rank stands out, the name is the reason. Otherwise the name is
    the label of the rank. If the row has several replicas, the label is preceded by their number.

    Args:
        row: The row.
        clock: Note about the clock to append, or "".
    """
    if row.reason:
        return to_one_line(row.reason, 80)
    replicas = f"one of {len(row.replicas)}: " if len(row.replicas) > 1 else ""
    note = f", {clock}" if clock else ""
    return to_one_line(f"{replicas}{to_one_line(row.rank.label, 60)}{note}", 80)


def _number_rows(selection: Selection, stages: Sequence[str]) -> list[str]:
    """Return the rank number of each row as text, such as "3", or "rank 3" in rows without a stage.

    If every row has a stage label and all labels are different, rank numbers are not needed, and
    every text is "".

    Args:
        selection: The rows that are drawn.
        stages: Stage label of each row, or "" if its stage is unknown.
    """
    if "" not in stages and len(set(stages)) == len(stages):
        return [""] * len(stages)
    return [
        str(rank.number) if stage else f"rank {rank.number}"
        for rank, stage in zip(selection.ranks, stages, strict=True)
    ]


def draw_labels(page: Page, labels: RowLabels, layout: Layout) -> None:
    """Draw the stage, name and bubble ratio of every ``layout.step``-th row.

    Names that are too wide are truncated. The heading of the ratio column is above the first ratio.
    """
    size = layout.size
    name_size = page.style.name_size(size)
    name_width = layout.left - 0.6 * size - layout.name_x
    rows = list(zip(labels.stages, labels.names, labels.ratios, layout.tops, strict=True))
    for stage, full_name, ratio, top in rows[:: layout.step]:
        y = top + layout.row / 2 + size * 0.36
        if stage:
            page.text(stage, page.left, y, size)
        if name := truncate_text(full_name, name_size, name_width):
            page.text(name, layout.name_x, y, name_size, ink="quiet")
        page.text(ratio, page.right, y, size, text_anchor="end")
    # Leave enough space above the first ratio, even if its letters are taller than the row.
    min_gap = 8.0 if page.style.titled else 4.0
    y = layout.tops[0] - max(min_gap, (size - layout.row) / 2 + 3)
    look = {"ink": "quiet", "text_anchor": "end"}
    page.text(labels.ratio_title, page.right, y, page.style.letters.axis, **look)
