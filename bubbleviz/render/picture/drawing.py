"""The picture: a title, one row a GPU with its operations to scale, a time axis and a legend.

Laid out from the top down on a page of fixed width; as high as its rows need.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TypedDict

import drawsvg

from bubbleviz.count.count import Iteration
from bubbleviz.explain.idle import Cause
from bubbleviz.model.texts import one_line
from bubbleviz.render.picture.boxes import LANE_GAP, Boxes
from bubbleviz.render.picture.cause_bands import draw_causes
from bubbleviz.render.picture.critical_line import draw_critical_line
from bubbleviz.render.picture.heat_map import draw_heat_maps
from bubbleviz.render.picture.legend import draw_legend
from bubbleviz.render.picture.merging import NARROWEST
from bubbleviz.render.picture.page import (
    MARGIN,
    UNKNOWN,
    WIDTH,
    Page,
    at_most,
    box,
    duration,
    fitted,
    percent,
    px,
    text_width,
    ticks,
)
from bubbleviz.render.picture.palette import LIGHT
from bubbleviz.render.picture.scene import Selection, select
from bubbleviz.report.report import Report, View, told_apart

#: Up to so many iterations have a bracket and a boundary.
MOST_BRACKETS = 60
#: Up to so many windows are hatched one by one.
MOST_WINDOWS = 20_000
#: Brackets that overlap stand on so many lines.
BRACKET_LINES = 3
BRACKET_LINE = 15
#: Limitations printed under the picture.
MOST_LIMITATIONS = 5
#: An error bar is drawn if it reaches so many px to each side.
SMALLEST_ERROR_BAR = 1.5
#: Two ratios are told apart from here on.
RATIO_GRAIN = 0.01

# (rows at most, height of a row, gap below it), px
_ROWS = ((4, 30.0, 7.0), (8, 26.0, 6.0), (16, 21.0, 5.0), (32, 16.0, 4.0), (64, 11.0, 3.0))
_SMALLEST_ROW = (7.0, 2.0)
_WIDEST_NAME = 210.0
_RATIO_COLUMN = 50


def picture(report: Report, view: View, ids: str = "bv-") -> str:
    """Return the SVG document of what ``view`` shows of ``report``; its ids begin with ``ids``."""
    selection = select(report, view)
    page = Page(ids)
    if selection is None:
        _draw_nothing(page, report, view)
    else:
        Timeline(page, report, view, selection).draw()
    return page.svg()


def _draw_nothing(page: Page, report: Report, view: View) -> None:
    page.title = nothing_to_draw(report, view)
    page.description = "An empty picture."
    page.y += 14
    page.text(page.title, MARGIN, page.y, 16, font_weight="bold")
    page.y += 6
    draw_limitations(page, report)


def nothing_to_draw(report: Report, view: View) -> str:
    """Return why a view of a report selects nothing."""
    if not report.ranks:
        missing = "no GPU has any operation"
    elif not report.iterations:
        missing = "no iteration was found"
    else:
        missing = f"no such {'iteration or ' if view.iterations else ''}rank"
    return f"Nothing to draw: {missing}"


def draw_limitations(page: Page, report: Report) -> None:
    """Write below what is on the page what could not be told."""
    for limitation in report.limitations[:MOST_LIMITATIONS]:
        times = f" ({limitation.count:,} times)" if limitation.count > 1 else ""
        what, reason = one_line(limitation.what, 160), one_line(limitation.reason, 500)
        page.paragraph(f"{what}{times}: {reason}", 9.5, lines=2)
    if (more := len(report.limitations) - MOST_LIMITATIONS) > 0:
        page.paragraph(f"and {more:,} more limitation{'s' if more > 1 else ''}", 9.5, lines=1)


def _bridged(edges: list[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Return (left, right) pairs in their order; those with a smaller gap between them are one."""
    joined: list[tuple[float, float]] = []
    for left, right in edges:
        if joined and left - joined[-1][1] < gap:
            joined[-1] = (joined[-1][0], max(right, joined[-1][1]))
        else:
            joined.append((left, right))
    return joined


@dataclass(frozen=True)
class Layout:
    """Where things are, px on the page.

    Attributes:
        stage_x: left edge of the column of stages.
        name_x: left edge of the column of ranks' labels.
        left: left edge of the plot.
        right: right edge of the plot.
        brackets: top of the brackets.
        row: height of a row.
        lane: height of the communication lane below it, 0 for none.
        size: of the letters beside a row.
        tops: top of every row.
    """

    stage_x: float
    name_x: float
    left: float
    right: float
    brackets: float
    row: float
    lane: float
    size: float
    tops: tuple[float, ...]

    @property
    def width(self) -> float:
        """Width of the plot."""
        return self.right - self.left

    @property
    def bottom(self) -> float:
        """Lower edge of the last row."""
        return self.tops[-1] + self.row + (self.lane + LANE_GAP if self.lane else 0)


class _Place(TypedDict):
    """Edges of the plot, of the rows, and their height, px."""

    left: float
    width: float
    tops: tuple[float, ...]
    height: float


class Timeline:
    """Draws one selection of a report, from the title down to the limitations.

    What several of them need to share a page and an axis is public.
    """

    def __init__(self, page: Page, report: Report, view: View, selection: Selection) -> None:
        self.page = page
        self.report = report
        self.selection = selection
        self.clocks = [report.clock(rank.profile) for rank in selection.ranks]
        self.view = view
        self.communication = view.communication
        self.bridged = False
        self.causes: tuple[Cause, ...] = ()
        self.critical = False
        drawn, headline = selection.iterations, report.headline
        self._averaged = [
            {own.rank: own.bubble_ratio.get(headline) for own in iteration.ranks}
            for iteration in [i for i in drawn if i.averaged] or drawn
        ]
        self.hosts = [
            (host, [row for row, _ in rows])
            for host, rows in groupby(enumerate(selection.ranks), key=lambda pair: pair[1].host)
        ]

    def draw(self) -> None:
        """Draw it."""
        self._title()
        layout = self.layout()
        boxes, gaps = self.draw_rows(layout)
        self.draw_axis(layout, layout.bottom)
        draw_legend(self.page, (boxes,), gaps=gaps, causes=self.causes)
        if self.view.heat_map:
            draw_heat_maps(self.page, self.report, self.selection)
        if texts := self.notes(boxes):
            self.page.paragraph(" ".join(texts), 9.5, lines=3)
        draw_limitations(self.page, self.report)

    def draw_rows(self, layout: Layout) -> tuple[Boxes, bool]:
        """Draw the rows and what belongs to them; the page's cursor stays.

        Returns:
            what the rows hold, and whether there are gaps between the windows of a row.
        """
        boxes = Boxes(self.page, self.report, self.selection, layout.width, layout.row)
        if self.communication:
            boxes.add_lane(self.report, layout.width, layout.lane)
        gaps = self._bands(layout)
        if self.view.causes:
            self.causes = draw_causes(self.page, self.report, self.selection, **self._place(layout))
        self._row_labels(layout)
        self._hosts(layout)
        for row, top in enumerate(layout.tops):
            boxes.draw(row, layout.left, top)
        if self.view.critical:
            self.critical = draw_critical_line(
                self.page, self.report, self.selection, **self._place(layout)
            )
        self._error_bars(layout)
        self._boundaries(layout)
        return boxes, gaps

    # Title

    def headings(self) -> tuple[str, str]:
        """Return the ratio as a heading, and what it is of."""
        report, drawn = self.report, self.selection.iterations
        head = f"{one_line(report.headline, 40)} bubble ratio "
        parts = []
        value = percent(None)
        if len(drawn) == 1:
            value = self._ratio(drawn[0])
            parts.append(f"iteration {one_line(drawn[0].name, 40)}")
        spread = report.summary.bubble_ratio.get(report.headline)
        if spread is not None and spread.mean is not None and spread.n > 0:
            bounds = f" ± {percent(spread.ci95)} (95 % CI)" if spread.ci95 is not None else ""
            over = f"{spread.n} iteration{'s' if spread.n > 1 else ''}"
            if value == UNKNOWN:
                value = percent(spread.mean) + bounds
                parts = [f"mean over {over}", *(f"drawn: {part}" for part in parts)]
            elif spread.n > 1:
                parts.append(f"mean {percent(spread.mean)}{bounds} over {over}")
        head += "unknown" if value == UNKNOWN else value
        return head, " · ".join(parts)

    def _title(self) -> None:
        report, page = self.report, self.page
        head, rest = self.headings()
        page.title = f"{head}, {rest}" if rest else head
        ranks, length = len(self.selection.ranks), self.span_ns
        reason = one_line(report.headline_reason, 300)
        page.description = (
            f"Timeline of {ranks} GPU{'s' if ranks > 1 else ''}, one row each, over "
            f"{duration(length)}. {reason}"
        )
        page.y += 14
        page.text(head, MARGIN, page.y, 16, font_weight="bold")
        x = MARGIN + text_width(head, 16) * 1.06 + 14
        page.text(fitted(rest, 11.5, WIDTH - MARGIN - x), x, page.y, 11.5, ink="quiet")
        page.y += 4
        if reason:
            page.paragraph(reason, 10)
        page.y += 4

    @property
    def span_ns(self) -> int:
        """Length of the time that is drawn."""
        return self.selection.end_ns - self.selection.start_ns

    def _ratio(self, iteration: Iteration) -> str:
        """Return the headline ratio, as a range where unattributed compute changes it."""
        ratio = iteration.ratios.get(self.report.headline)
        if ratio is None or ratio.value is None:
            return UNKNOWN
        mark = " !" if ratio.contradicted else ""
        if ratio.low is not None and ratio.value - ratio.low > RATIO_GRAIN:
            return f"{100 * ratio.low:.1f} to {percent(ratio.value)}{mark}"
        return percent(ratio.value) + mark

    # Place

    def layout(self, *, left: float = 0.0, share: float = 1.0, rows: int = 0) -> Layout:
        """Return where things are, from the page's cursor down.

        Args:
            left: the plot begins there, or further right where labels need it.
            share: of the width there is, that the plot takes.
            rows: as high as for so many rows, or for its own where these are more.
        """
        ranks = self.selection.ranks
        count = max(len(ranks), rows)
        row, gap = next(
            ((height, gap) for most, height, gap in _ROWS if count <= most), _SMALLEST_ROW
        )
        lane = max(2.5, round(row * 0.2)) if self.communication else 0.0
        size = max(5.5, min(11.0, row * 0.68))
        if not self._hosts_have_room(row + gap):
            self.hosts = []
        stage_width = max(text_width(self._stage(row), size) for row in range(len(ranks)))
        name_width = max(text_width(self._name(row), size * 0.9) for row in range(len(ranks)))
        stage_x = MARGIN + (18 if self.hosts else 0)
        name_x = stage_x + stage_width + (9 if stage_width else 0)
        left = max(left, math.ceil(name_x + min(name_width, _WIDEST_NAME) + 14))
        brackets = self.page.y
        top = brackets + BRACKET_LINE * (max(self._bracket_lines(), default=0) + 1) + 5
        tops = []
        for before, rank in zip((None, *ranks), ranks, strict=False):
            if before is not None and before.pipeline != rank.pipeline:
                top += max(gap, 5.0)
            tops.append(top)
            top += row + gap + (lane + 2 if lane else 0)
        right = left + (WIDTH - MARGIN - _RATIO_COLUMN - left) * share
        return Layout(stage_x, name_x, left, right, brackets, row, lane, size, tuple(tops))

    def _x(self, layout: Layout, time_ns: int) -> float:
        place = (time_ns - self.selection.start_ns) / self.span_ns
        return layout.left + layout.width * min(max(place, 0.0), 1.0)

    def _hosts_have_room(self, pitch: float) -> bool:
        """Return whether hosts can be written upwards beside their rows; labels tell them too."""
        return len(self.hosts) > 1 and all(len(rows) * pitch >= 40 for _, rows in self.hosts)

    def _stage(self, row: int) -> str:
        ranks = self.selection.ranks
        stage = "" if ranks[row].stage is None else f"stage {ranks[row].stage}"
        pipeline = ranks[row].pipeline
        if pipeline is not None and len({rank.pipeline for rank in ranks}) > 1:
            return f"p{pipeline} {stage}".strip()
        return stage

    def _name(self, row: int) -> str:
        rank = self.selection.ranks[row]
        label, copies = rank.label, len(self.selection.rows[row].copies)
        if self.hosts and label.startswith((f"{rank.host} ", f"{rank.host}:")):
            label = label[len(rank.host) + 1 :]
        if copies > 1:
            label = f"1 of {copies}: {label}"
        if row == 0 or self.clocks[row - 1] != self.clocks[row]:
            label = f"{one_line(label, 60)} {self._clock(row)}".rstrip()
        return one_line(label, 80)

    def _clock(self, row: int) -> str:
        """Return how far the clock of a row's host can be off, where there are several."""
        rank = self.selection.ranks[row]
        if len(set(self.clocks)) < 2:
            return ""
        uncertainty_ns = self.report.clock_uncertainty_ns(rank)
        if not uncertainty_ns:
            return "± ?" if uncertainty_ns is None else "± 0"
        return f"± {at_most(uncertainty_ns)}"

    # Beside and behind the rows

    def _bands(self, layout: Layout) -> bool:
        """Draw the windows that are counted as hatch: what is left of it is bubble.

        Returns:
            whether there are gaps between the windows of a row.
        """
        hatches, gaps = [], []
        for top, edges in zip(layout.tops, self._window_edges(layout), strict=True):
            bottom = top + layout.row
            hatches += [box(left, top, right, bottom) for left, right in edges]
            gaps += [box(left, top, right, bottom) for (_, left), (right, _) in pairwise(edges)]
        for boxes, look in (
            (gaps, {"fill": LIGHT.gap, "class_": "bv-gap"}),
            (hatches, {"fill": self.page.hatch()}),
        ):
            if boxes:
                self.page.elements.append(drawsvg.Path("".join(boxes), **look))
        return bool(gaps)

    @staticmethod
    def _place(layout: Layout) -> _Place:
        """Return where the rows are, for what is drawn on them."""
        return {
            "left": layout.left,
            "width": layout.width,
            "tops": layout.tops,
            "height": layout.row,
        }

    def _window_edges(self, layout: Layout) -> list[list[tuple[float, float]]]:
        """Return the windows of every row in px; those with less than a gap between them are one.

        A gap has the width of the narrowest operation, and more where there were too many.
        """
        edges = [
            [
                (self._x(layout, start), self._x(layout, end))
                for start, end in self._row_windows(row)
            ]
            for row in range(len(layout.tops))
        ]
        before, gap = sum(map(len, edges)), NARROWEST
        while True:
            edges = [_bridged(own, gap) for own in edges]
            if (left := sum(map(len, edges))) <= MOST_WINDOWS or gap > layout.width:
                self.bridged = left < before
                return edges
            gap *= 2

    def _row_windows(self, row: int) -> list[tuple[int, int]]:
        """Return the windows of a row from left to right; those that touch are one."""
        rank = self.selection.ranks[row].index
        merged: list[tuple[int, int]] = []
        for start, end in sorted(own[rank] for own in self.selection.windows if rank in own):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], end))
            else:
                merged.append((start, end))
        return merged

    def _row_labels(self, layout: Layout) -> None:
        page, size = self.page, layout.size
        mark = " !" if self.report.contradicted(self.report.headline) else ""
        for row, top in enumerate(layout.tops):
            y = top + layout.row / 2 + size * 0.36
            if stage := self._stage(row):
                page.text(stage, layout.stage_x, y, size)
            name = fitted(self._name(row), size * 0.9, layout.left - 12 - layout.name_x)
            page.text(name, layout.name_x, y, size * 0.9, ink="quiet")
            ratio = percent(self._row_ratio(row)) + mark
            page.text(ratio, WIDTH - MARGIN, y, size, text_anchor="end")
        y = layout.tops[0] - 8
        page.text("bubble", WIDTH - MARGIN, y, 10, ink="quiet", text_anchor="end")

    def _row_ratio(self, row: int) -> float | None:
        """Return the rank's own ratio in the iterations drawn, their mean where several.

        Of several only those that are averaged count, as in the caption. A row of several copies
        has their mean.
        """
        copies, found = self.selection.rows[row].copies, []
        for by_rank in self._averaged:
            own = [by_rank[rank] for rank in copies if rank in by_rank]
            known = [value for value in own if value is not None]
            # As in the table: what one copy lacks, their mean lacks.
            if known and len(known) == len(own):
                found.append(sum(known) / len(known))
        return sum(found) / len(found) if found else None

    def _error_bars(self, layout: Layout) -> None:
        """Draw, where it can be seen, how far each row can be off: around its first start."""
        first = {own.rank: own.first_ns for own in self.selection.iterations[0].ranks}
        path = ""
        for row, top in enumerate(layout.tops):
            rank = self.selection.ranks[row]
            if not self._clock(row) or rank.index not in first:
                continue
            reach = layout.width * (self.report.clock_uncertainty_ns(rank) or 0) / self.span_ns
            if reach < SMALLEST_ERROR_BAR:
                continue
            middle = self._x(layout, first[rank.index])
            left, right = max(middle - reach, layout.left), min(middle + reach, layout.right)
            tick = layout.row / 10
            y = top + layout.row - tick - 1
            path += f"M{px(left)} {px(y)}H{px(right)}"
            path += "".join(f"M{px(x)} {px(y - tick)}V{px(y + tick)}" for x in (left, right))
        if path:
            look = {"stroke": LIGHT.text, "stroke_width": 1, "class_": "bv-mark"}
            self.page.elements.append(drawsvg.Path(path, fill="none", **look))

    def _hosts(self, layout: Layout) -> None:
        for host, rows in self.hosts:
            top, bottom = layout.tops[rows[0]], layout.tops[rows[-1]] + layout.row
            x, middle = MARGIN + 8, (top + bottom) / 2
            self.page.text(
                fitted(one_line(host, 80), 10, bottom - top),
                x,
                middle,
                10,
                text_anchor="middle",
                transform=f"rotate(-90 {px(x)} {px(middle)})",
            )
            self._rule(f"M{x + 4} {px(top)}V{px(bottom)}")

    def _rule(self, path: str) -> None:
        self.page.elements.append(
            drawsvg.Path(path, fill="none", stroke=LIGHT.quiet, stroke_width=0.8, class_="bv-rule")
        )

    # Iterations and time

    def _windows(self) -> Iterator[tuple[int, int]]:
        """Yield what the bracket of every iteration spans: the first row's window in it."""
        for it, own in zip(self.selection.iterations, self.selection.windows, strict=True):
            of_rows = (own[rank.index] for rank in self.selection.ranks if rank.index in own)
            yield next(of_rows, (it.start_ns, it.end_ns))

    def _falls_back(self) -> bool:
        """Return whether an iteration is hatched by ``schedule`` for want of the headline."""
        headline = self.report.headline
        return headline != "schedule" and any(
            headline not in own.accounts and "schedule" in own.accounts
            for it in self.selection.iterations
            for own in it.ranks
        )

    def _windows_differ(self) -> bool:
        """Return whether the rows have windows of their own."""
        drawn = {rank.index for rank in self.selection.ranks}
        return any(
            len({window for rank, window in own.items() if rank in drawn}) > 1
            for own in self.selection.windows
        )

    def _bracket_lines(self) -> list[int]:
        """Return the line of every iteration's bracket: overlapping ones take turns."""
        if len(self.selection.iterations) > MOST_BRACKETS:
            return []
        ends: list[int] = []
        lines = []
        for start, end in self._windows():
            free = (line for line, last in enumerate(ends) if last <= start)
            line = next(free, min(len(ends), BRACKET_LINES - 1))
            ends[line : line + 1] = [end]
            lines.append(line)
        return lines

    def _boundaries(self, layout: Layout) -> None:
        if len(self.selection.iterations) > MOST_BRACKETS:
            return
        dashes = "".join(
            f"M{px(self._x(layout, it.start_ns))} {px(layout.tops[0] - 4)}V{px(layout.bottom + 4)}"
            for it in self.selection.iterations[1:]
        )
        if dashes:
            self.page.elements.append(
                drawsvg.Path(
                    dashes,
                    stroke=LIGHT.text,
                    stroke_width=0.9,
                    stroke_dasharray="4 3",
                    class_="bv-mark",
                )
            )
        for it, (start, end), line in zip(
            self.selection.iterations, self._windows(), self._bracket_lines(), strict=True
        ):
            y = layout.brackets + BRACKET_LINE * line + 9
            self._bracket(it, self._x(layout, start), self._x(layout, end), y)

    def _bracket(self, it: Iteration, left: float, right: float, y: float) -> None:
        """Draw a line over the window with what fits of name, ratio and length in its middle."""
        name, value = one_line(it.name, 40), self._ratio(it)
        ratio = it.ratios.get(self.report.headline)
        texts = [f"iteration {name}", name, ""]
        if value != UNKNOWN:
            texts = [f"iteration {name}: {value}", f"{name}: {value}", *texts]
            if ratio is not None and ratio.window_ns is not None:
                texts.insert(0, f"{texts[0]} of {duration(ratio.window_ns)}")
        text = next(t for t in texts if not t or text_width(t, 10) + 30 <= right - left)
        middle = (left + right) / 2
        line = f"H{px(right)}"
        if text:
            half = text_width(text, 10) / 2 + 5
            line = f"H{px(middle - half)}M{px(middle + half)} {px(y)}{line}"
            self.page.text(text, middle, y + 3.5, 10, text_anchor="middle")
        top = px(y - 4)
        self._rule(f"M{px(left)} {top}v8M{px(right)} {top}v8M{px(left)} {px(y)}{line}")

    def draw_axis(self, layout: Layout, bottom: float) -> None:
        """Draw the axis of time below ``bottom``, and move the cursor below it."""
        page = self.page
        y = bottom + 6
        times, unit = ticks(self.span_ns, 10)
        title = f"time ({unit}) →"
        free = WIDTH - MARGIN - text_width(title, 10) - 4
        labels = drawsvg.Group(
            font_size=10, text_anchor="middle", fill=LIGHT.quiet, class_="bv-quiet"
        )
        path = f"M{px(layout.left)} {px(y)}H{px(layout.right)}"
        for time, text in times:
            x = self._x(layout, self.selection.start_ns + time)
            path += f"M{px(x)} {px(y)}v5"
            if x + text_width(text, 10) / 2 <= free:
                page.text(text, x, y + 15, None, into=labels, ink=None)
        self._rule(path)
        page.elements.append(labels)
        page.text(title, WIDTH - MARGIN, y + 15, 10, ink="quiet", text_anchor="end")
        page.y = y + 24

    # Below

    def notes(self, boxes: Boxes) -> list[str]:
        """Return sentences on what the picture shows that does not speak for itself."""
        drawn = self.selection.iterations
        spanless = sum(boxes.spanless.values())
        numbered = boxes.shades == len(boxes.chunks)
        ratio = drawn[0].ratios.get(self.report.headline) if len(drawn) == 1 else None
        value, low, interval = None, None, None
        if ratio is not None:
            value, low, interval = ratio.value, ratio.low, ratio.interval
        notes = {
            f"Chunks run from dark to light{' (numbers in the legend)' if numbered else ''}.": (
                boxes.shades > 1
            ),
            "Paler: operations of other iterations.": boxes.others,
            "Each row counts a window of its own: brackets span the first row's, and tell the mean "
            "length.": self._windows_differ() and len(drawn) <= MOST_BRACKETS,
            f"Where an iteration has no {one_line(self.report.headline, 40)}, its schedule window "
            "is hatched.": self._falls_back(),
            "Hatched as well: what lies between iterations, where it is too narrow to be seen.": (
                self.bridged
            ),
            "Line along operations: the critical path, which bounds the iteration.": self.critical,
            "Dashed: first work of an iteration.": 1 < len(drawn) <= MOST_BRACKETS,
            "Torn edge: cut by the end of the capture.": boxes.cut,
            f"Hollow mark: {spanless:,} without GPU work and so without device time.": spanless,
            f"Dotted below: {boxes.merged_words} narrower than {boxes.narrower:g} px, merged by "
            "phase; the height of a colour is its share of time, the rest is bubble.": (
                boxes.merged_words
            ),
            "The lower ratio counts unattributed compute as work.": (
                value is not None and low is not None and value - low > RATIO_GRAIN
            ),
        }
        texts = [text for text, applies in notes.items() if applies]
        if len(set(self.clocks)) > 1:
            texts.append("± and bars: how far the clock of a host can be off.")
        if self.report.contradicted(self.report.headline):
            texts.append("! needs clocks that contradict each other.")
        if interval is not None and interval[0] < interval[1]:
            ends = " to ".join(f"{end}\u00a0%" for end in told_apart(interval, 1, 3))
            texts.append(f"The clocks allow ratios from {ends}.")
        if len(self.selection.rows) < sum(len(row.copies) for row in self.selection.rows):
            texts.append(
                "Copies of a stage share a row: it is drawn as the first of them ran, and its "
                "ratio is their mean."
            )
        return texts
