"""Labels: host, stage and rank left of every row, and its bubble ratio on the right."""

from __future__ import annotations

from itertools import groupby

from bubbleviz.model.texts import one_line
from bubbleviz.model.values import frozen
from bubbleviz.render.picture.clocks import RowClocks, row_clocks
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.page import MARGIN, WIDTH, Page, fitted, percent, px, text_width
from bubbleviz.render.picture.ratios import row_ratios
from bubbleviz.render.picture.selection import Selection
from bubbleviz.report.report import Report

_WIDEST_NAME = 210.0
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
    """

    stages: tuple[str, ...]
    names: tuple[str, ...]
    hosts: tuple[HostRows, ...]

    def stage_width(self, size: float) -> float:
        """Return the width of the column of stages at a font size, px."""
        return max(text_width(stage, size) for stage in self.stages)

    def name_width(self, size: float) -> float:
        """Return the width of the column of names at a font size, px."""
        return min(max(text_width(name, size * 0.9) for name in self.names), _WIDEST_NAME)


def labels_of(report: Report, selection: Selection, pitch: float) -> Labels:
    """Return the labels of rows, each ``pitch`` px below the one before."""
    ranks = selection.ranks
    hosts = []
    for host, members in groupby(range(len(ranks)), key=lambda row: ranks[row].host):
        rows = list(members)
        hosts.append(HostRows(host, rows[0], rows[-1]))
    if len(hosts) < 2 or any((h.last - h.first + 1) * pitch < _SHORTEST_HOST for h in hosts):
        hosts = []
    clocks = row_clocks(report, selection)
    return Labels(
        tuple(_stage(selection, row) for row in range(len(ranks))),
        tuple(_name(selection, row, clocks, with_host=not hosts) for row in range(len(ranks))),
        tuple(hosts),
    )


def _stage(selection: Selection, row: int) -> str:
    ranks = selection.ranks
    stage = "" if ranks[row].stage is None else f"stage {ranks[row].stage}"
    pipeline = ranks[row].pipeline
    if pipeline is not None and len({rank.pipeline for rank in ranks}) > 1:
        return f"p{pipeline} {stage}".strip()
    return stage


def _name(selection: Selection, row: int, clocks: RowClocks, *, with_host: bool) -> str:
    rank = selection.ranks[row]
    label, replicas = rank.label, len(selection.rows[row].replicas)
    if not with_host and label.startswith((f"{rank.host} ", f"{rank.host}:")):
        label = label[len(rank.host) + 1 :]
    if replicas > 1:
        label = f"1 of {replicas}: {label}"
    if clocks.first[row]:
        label = f"{one_line(label, 60)} {clocks.notes[row]}".rstrip()
    return one_line(label, 80)


def draw_labels(
    page: Page, report: Report, selection: Selection, labels: Labels, layout: Layout
) -> None:
    """Draw stage, name and bubble ratio of every row, and the hosts beside them."""
    size = layout.size
    mark = " !" if report.contradicted(report.headline) else ""
    ratios = row_ratios(report, selection)
    for stage, full_name, ratio, top in zip(
        labels.stages, labels.names, ratios, layout.tops, strict=True
    ):
        y = top + layout.row / 2 + size * 0.36
        if stage:
            page.text(stage, layout.stage_x, y, size)
        name = fitted(full_name, size * 0.9, layout.left - 12 - layout.name_x)
        page.text(name, layout.name_x, y, size * 0.9, ink="quiet")
        page.text(percent(ratio) + mark, WIDTH - MARGIN, y, size, text_anchor="end")
    y = layout.tops[0] - 8
    page.text("bubble", WIDTH - MARGIN, y, 10, ink="quiet", text_anchor="end")
    for host in labels.hosts:
        _draw_host(page, host, layout)


def _draw_host(page: Page, host: HostRows, layout: Layout) -> None:
    top, bottom = layout.tops[host.first], layout.tops[host.last] + layout.row
    x, middle = MARGIN + 8, (top + bottom) / 2
    page.text(
        fitted(one_line(host.host, 80), 10, bottom - top),
        x,
        middle,
        10,
        text_anchor="middle",
        transform=f"rotate(-90 {px(x)} {px(middle)})",
    )
    page.rule(f"M{x + 4} {px(top)}V{px(bottom)}")
