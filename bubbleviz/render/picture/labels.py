"""Labels: host, stage and rank left of every row, and its bubble ratio on the right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from bubbleviz.count.iterations import Iteration
from bubbleviz.model.operations import Rank
from bubbleviz.model.texts import one_line
from bubbleviz.model.values import frozen
from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.chunk_costs import iteration_ratio, ratio_ranges, row_ratios
from bubbleviz.render.picture.lettering import fitted, text_width
from bubbleviz.render.picture.page import UNKNOWN, Page, at_most, duration, percent, px
from bubbleviz.render.picture.spread import Layout
from bubbleviz.render.picture.style import PictureStyle
from bubbleviz.render.rows import Selection
from bubbleviz.report.report import Report

# Clock uncertainty: a note beside the first row of each clock, and error bars on the rows.


#: An error bar is drawn if it reaches so many px to each side.
_SMALLEST_ERROR_BAR = 1.5


@frozen
class RowClocks:
    """The clocks of the drawn ranks.

    Attributes:
        several: whether the rows are on more than one clock.
        notes: by row, the uncertainty to print; empty where there is one clock.
        first: by row, whether its clock differs from that of the row above.
    """

    several: bool
    notes: tuple[str, ...]
    first: tuple[bool, ...]


def row_clocks(report: Report, selection: Selection, *, shown: bool = True) -> RowClocks:
    """Return the clocks of the drawn ranks; of one clock where they are not ``shown``."""
    ranks = selection.ranks
    clocks = [report.clock(rank.profile) for rank in ranks]
    several = shown and len(set(clocks)) > 1
    return RowClocks(
        several,
        tuple(_note(report, rank) if several else "" for rank in ranks),
        tuple(row == 0 or clocks[row - 1] != clocks[row] for row in range(len(ranks))),
    )


def _note(report: Report, rank: Rank) -> str:
    uncertainty_ns = report.clock_uncertainty_ns(rank)
    if not uncertainty_ns:
        return "± ?" if uncertainty_ns is None else "± 0"
    return f"± {at_most(uncertainty_ns)}"


def draw_error_bars(page: Page, report: Report, selection: Selection, layout: Layout) -> None:
    """Draw the clock uncertainty of each row around its first start, where it is visible."""
    first_ns = {entry.rank: entry.first_ns for entry in selection.iterations[0].ranks}
    notes = row_clocks(report, selection).notes
    path = ""
    for rank, note, top in zip(selection.ranks, notes, layout.tops, strict=True):
        if not note or rank.index not in first_ns:
            continue
        reach = layout.width * (report.clock_uncertainty_ns(rank) or 0) / layout.span_ns
        if reach < _SMALLEST_ERROR_BAR:
            continue
        middle = layout.x(first_ns[rank.index])
        left, right = max(middle - reach, layout.left), min(middle + reach, layout.right)
        tick = layout.row / 10
        y = top + layout.row - tick - 1
        path += f"M{px(left)} {px(y)}H{px(right)}"
        path += "".join(f"M{px(x)} {px(y - tick)}V{px(y + tick)}" for x in (left, right))
    if path:
        look = {"stroke": LIGHT.text, "stroke_width": 1, "class_": "bv-mark"}
        page.path(path, fill="none", **look)


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


# Brackets: name, ratio and length above every iteration, and dashes where the next one begins.


#: Up to so many iterations have a bracket and a boundary.
MOST_BRACKETS = 60
#: Brackets that overlap are on so many lines.
_LINES = 3
_LINE_HEIGHT = 15


def brackets_height(selection: Selection, style: PictureStyle) -> int:
    """Return the height of the brackets' lines and of the title of the ratios beside them."""
    lines = _lines(selection) if _has_brackets(selection, style) else []
    return _LINE_HEIGHT * (max(lines, default=0) + 1) - (0 if style.titled else 3)


def _has_brackets(selection: Selection, style: PictureStyle) -> bool:
    """Return whether the iterations have brackets: not very many, nor one without a title."""
    count = len(selection.iterations)
    return count <= MOST_BRACKETS and (style.titled or count > 1)


def _spans(selection: Selection) -> Iterator[tuple[int, int]]:
    """Yield the extent of every iteration's bracket: the window of the first row that has one."""
    for it, by_rank in zip(selection.iterations, selection.windows, strict=True):
        windows = (by_rank[rank.index] for rank in selection.ranks if rank.index in by_rank)
        yield next(windows, (it.start_ns, it.end_ns))


def _lines(selection: Selection) -> list[int]:
    """Return the line of every iteration's bracket: overlapping ones take turns."""
    if len(selection.iterations) > MOST_BRACKETS:
        return []
    ends: list[int] = []
    lines = []
    for start, end in _spans(selection):
        free = (line for line, last in enumerate(ends) if last <= start)
        line = next(free, min(len(ends), _LINES - 1))
        ends[line : line + 1] = [end]
        lines.append(line)
    return lines


def draw_brackets(page: Page, report: Report, selection: Selection, layout: Layout) -> None:
    """Draw the boundaries between iterations and the brackets above them, unless very many."""
    if not _has_brackets(selection, page.style):
        return
    dashes = "".join(
        f"M{px(layout.x(it.start_ns))} {px(layout.tops[0] - 4)}V{px(layout.bottom + 4)}"
        for it in selection.iterations[1:]
    )
    if dashes:
        page.path(
            dashes,
            stroke=LIGHT.text,
            stroke_width=0.9,
            stroke_dasharray="4 3",
            class_="bv-mark",
        )
    for it, (start, end), line in zip(
        selection.iterations, _spans(selection), _lines(selection), strict=True
    ):
        y = layout.brackets + _LINE_HEIGHT * line + 9
        _draw_bracket(page, report, it, left=layout.x(start), right=layout.x(end), y=y)


def _draw_bracket(
    page: Page, report: Report, it: Iteration, *, left: float, right: float, y: float
) -> None:
    """Draw a line over the window, with what fits of name, ratio and length in its middle."""
    name, value = one_line(it.name, 40), iteration_ratio(report, it)
    ratio = it.ratios.get(report.headline)
    size = page.style.letters.axis
    texts = [f"iteration {name}", name, ""]
    if value != UNKNOWN:
        texts = [f"iteration {name}: {value}", f"{name}: {value}", *texts]
        if ratio is not None and ratio.window_ns is not None:
            texts.insert(0, f"{texts[0]} of {duration(ratio.window_ns)}")
    text = next(t for t in texts if not t or text_width(t, size) + 3 * size <= right - left)
    middle = (left + right) / 2
    line = f"H{px(right)}"
    if text:
        half = (text_width(text, size) + size) / 2
        line = f"H{px(middle - half)}M{px(middle + half)} {px(y)}{line}"
        page.text(text, middle, y + 0.35 * size, size, text_anchor="middle")
    top = px(y - 4)
    page.rule(f"M{px(left)} {top}v8M{px(right)} {top}v8M{px(left)} {px(y)}{line}")
