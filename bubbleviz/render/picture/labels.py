"""Labels: host, stage and rank left of every row, and its bubble ratio on the right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from bubbleviz.model.operations import Rank
from bubbleviz.model.texts import one_line
from bubbleviz.model.values import frozen
from bubbleviz.render.picture.clocks import RowClocks, row_clocks
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.lettering import fitted, text_width
from bubbleviz.render.picture.page import Page, percent, px
from bubbleviz.render.picture.ratios import ratio_ranges, row_ratios
from bubbleviz.render.picture.style import PictureStyle
from bubbleviz.render.selection import Selection
from bubbleviz.report.report import Report

#: Names take so much of the width of the page at most.
_WIDEST_NAME = 0.175
#: What the column of ratios is called.
_RATIO = "bubble"
#: Size of a rank's name to that of its stage, on a screen.
_NAME_SIZE = 0.9
#: A host is written upwards beside rows that are so high together, px.
_SHORTEST_HOST = 40


@frozen
class HostRows:
    """A host, and its first and last row."""

    host: str
    first: int
    last: int


@frozen
class Labels:
    """What is written left of the rows.

    Attributes:
        stages: by row, its pipeline and stage; empty where unknown.
        names: by row, the label of its rank.
        hosts: what is written upwards beside the rows; empty where the names hold the hosts.
        ratios: by row, its bubble ratio.
        style: of the picture.
    """

    stages: tuple[str, ...]
    names: tuple[str, ...]
    hosts: tuple[HostRows, ...]
    ratios: tuple[str, ...]
    style: PictureStyle

    def stage_width(self, size: float) -> float:
        """Return the width of the column of stages at a font size, px."""
        return max(text_width(stage, size) for stage in self.stages)

    def name_width(self, size: float) -> float:
        """Return the width of the column of names at a font size, px."""
        widest = max(text_width(name, self.name_size(size)) for name in self.names)
        return min(widest, _WIDEST_NAME * self.style.width)

    def name_size(self, size: float) -> float:
        """Return the font size of names beside stages of a font size."""
        return size if self.style.millimetres else size * _NAME_SIZE

    def ratio_width(self, size: float) -> float:
        """Return the width of the column of ratios at a font size, with its title."""
        axis = text_width(_RATIO, self.style.letters.axis)
        return max(axis, *(text_width(ratio, size) for ratio in self.ratios))


def labels_of(report: Report, selection: Selection, pitch: float, style: PictureStyle) -> Labels:
    """Return the labels of rows, each ``pitch`` below the one before."""
    ranks = selection.ranks
    hosts = []
    for host, members in groupby(range(len(ranks)), key=lambda row: ranks[row].host):
        rows = list(members)
        hosts.append(HostRows(host, rows[0], rows[-1]))
    if (
        len(hosts) < 2
        or not style.names
        or any(own.spread for own in selection.rows)
        or any((h.last - h.first + 1) * pitch < _SHORTEST_HOST for h in hosts)
    ):
        hosts = []
    clocks = row_clocks(report, selection, shown=style.notes)
    stages = tuple(_stage(selection, row) for row in range(len(ranks)))
    names = [
        _copies(len(selection.rows[row].replicas), ends)
        if selection.rows[row].spread
        else _name(selection, row, clocks, with_host=not hosts)
        for row, ends in enumerate(ratio_ranges(report, selection))
    ]
    if not style.names or not _fit(names, style):
        names = list(_short_names(ranks, stages))
    mark = " !" if report.contradicted(report.headline) else ""
    ratios = tuple(percent(ratio) + mark for ratio in row_ratios(report, selection))
    return Labels(stages, tuple(names), tuple(hosts), ratios, style)


def _fit(names: Sequence[str], style: PictureStyle) -> bool:
    """Return whether names can stand beside rows; a screen has room for most of each."""
    widest = max(text_width(name, style.letters.label) for name in names)
    return style.millimetres is None or widest <= _WIDEST_NAME * style.width


def _short_names(ranks: Sequence[Rank], stages: Sequence[str]) -> Iterator[str]:
    """Yield names by number, and none where stages tell the rows apart."""
    apart = "" not in stages and len(set(stages)) == len(stages)
    for rank, stage in zip(ranks, stages, strict=True):
        number = str(rank.index) if stage else f"rank {rank.index}"
        yield "" if apart else number


def _stage(selection: Selection, row: int) -> str:
    ranks = selection.ranks
    stage = "" if ranks[row].stage is None else f"stage {ranks[row].stage}"
    pipeline = ranks[row].pipeline
    drawn = {own.rank.pipeline for own in selection.rows if not own.spread}
    several = len(drawn) > 1 or len(drawn) < len({rank.pipeline for rank in ranks})
    if pipeline is not None and several and not selection.rows[row].spread:
        return f"p{pipeline} {stage}".strip()
    return stage


def _copies(replicas: int, ends: tuple[float, float] | None) -> str:
    """Return how many copies a row stands for, and the least and the most of their ratios."""
    count = f"{replicas:,} ranks"
    return count if ends is None else f"{count}: {100 * ends[0]:.1f} to {percent(ends[1])}"


def _name(selection: Selection, row: int, clocks: RowClocks, *, with_host: bool) -> str:
    rank = selection.ranks[row]
    if selection.rows[row].why:
        return one_line(selection.rows[row].why, 80)
    label, replicas = rank.label, len(selection.rows[row].replicas)
    if not with_host and label.startswith((f"{rank.host} ", f"{rank.host}:")):
        label = label[len(rank.host) + 1 :]
    if replicas > 1:
        label = f"1 of {replicas}: {label}"
    if clocks.first[row]:
        label = f"{one_line(label, 60)} {clocks.notes[row]}".rstrip()
    return one_line(label, 80)


def draw_labels(page: Page, labels: Labels, layout: Layout) -> None:
    """Draw stage, name and bubble ratio of every row, and the hosts beside them."""
    size = layout.size
    small, quiet = labels.name_size(size), page.style.letters.axis
    rows = list(zip(labels.stages, labels.names, labels.ratios, layout.tops, strict=True))
    for stage, full_name, ratio, top in rows[:: layout.step]:
        y = top + layout.row / 2 + size * 0.36
        if stage:
            page.text(stage, layout.stage_x, y, size)
        if name := fitted(full_name, small, layout.left - 0.6 * size - layout.name_x):
            page.text(name, layout.name_x, y, small, ink="quiet")
        page.text(ratio, page.right, y, size, text_anchor="end")
    # Above the first ratio, and clear of it where letters are higher than the row.
    y = layout.tops[0] - max(8.0 if page.style.titled else 4.0, (size - layout.row) / 2 + 3)
    page.text(_RATIO, page.right, y, quiet, ink="quiet", text_anchor="end")
    for host in labels.hosts:
        _draw_host(page, host, layout)


def _draw_host(page: Page, host: HostRows, layout: Layout) -> None:
    top, bottom = layout.tops[host.first], layout.tops[host.last] + layout.row
    size = page.style.letters.axis
    x, middle = page.left + 0.8 * size, (top + bottom) / 2
    page.text(
        fitted(one_line(host.host, 80), size, bottom - top),
        x,
        middle,
        size,
        text_anchor="middle",
        transform=f"rotate(-90 {px(x)} {px(middle)})",
    )
    page.rule(f"M{px(x + 0.4 * size)} {px(top)}V{px(bottom)}")
