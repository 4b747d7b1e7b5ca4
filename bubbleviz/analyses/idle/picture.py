"""The picture of idle time: one strip per device, what it ran, and what its host did meanwhile.

A strip is cut into slices about as wide as a pixel, and each is filled from the top by the shares
of its time: compute, communication, copies, then the activities of idle time. Below it lie the
steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from bubbleviz.analyses.idle.advice import title_of
from bubbleviz.analyses.idle.report import BUSY, MAX_SHOWN_DEVICES, REST, IdleMeasurement, RankIdle
from bubbleviz.model.texts import to_one_line
from bubbleviz.render.palette import ACTIVITIES, LIGHT, MORE_ACTIVITIES
from bubbleviz.render.picture.drawing import box, px
from bubbleviz.render.picture.lettering import text_width, truncate_text
from bubbleviz.render.picture.numbers import percent, ticks
from bubbleviz.render.picture.page import Page

Edges = npt.NDArray[np.floating[Any]]
#: Maximum number of bars.
_MOST_BARS = 128
#: The longest so many activities have a colour; the others share one.
_COLOURED = 9
#: A smaller share of the time is not worth a place in the legend.
_NOTHING = 0.0005
REST_COLOUR = "#d3d8de"
#: px: height of a bar, and from one to the next.
_BAR, _PITCH = 13.0, 16.0
#: px: height of a strip with few and with many of them, of the steps below, gap, columns beside.
_STRIP, _LOW_STRIP, _STEPS, _GAP, _WIDEST, _DUTY = 56.0, 20.0, 13.0, 12.0, 210.0, 62.0


def draw_idle(measurement: IdleMeasurement) -> str:
    """Return the SVG document of a report."""
    page = Page("bvg-")
    count = len(measurement.ranks)
    page.title = title_of(measurement, percent)
    page.description = "One strip per device; each slice is filled by the shares of its time."
    page.heading(page.title)
    page.y += 4
    page.paragraph(
        "Each slice: from the top what the device ran, then what its host did while it was idle. "
        "Steps lie below. Duty: share of time in which anything ran.",
        10.5,
    )
    page.y += 12
    ranks = measurement.ranks[:MAX_SHOWN_DEVICES]
    colours = colours_of(measurement)
    size = 11.0
    labels = [to_one_line(rank.label, 60) for rank in ranks]
    room = min(_WIDEST, max((text_width(label, size) for label in labels), default=0) + 12)
    left, right = page.left + room, page.right - _DUTY
    origin = {
        rank.path: min(other.start_ns for other in ranks if other.path == rank.path)
        for rank in ranks
    }
    whole_ns = max(rank.end_ns - origin[rank.path] for rank in ranks)
    scale = (right - left) / max(whole_ns, 1)
    height = _STRIP if len(ranks) <= 8 else _LOW_STRIP
    page.text("duty", right + 10, page.y - 4, 9.5, ink="quiet")
    top = page.y
    for rank, label in zip(ranks, labels, strict=True):
        start = left + (rank.start_ns - origin[rank.path]) * scale
        _draw_strip(page, rank, start, rank.span_ns * scale, height, colours)
        middle = page.y + height / 2 + 4
        page.text(truncate_text(label, size, room - 8), page.left, middle, size)
        page.text(percent(rank.duty_cycle), right + 10, middle, size)
        page.y += height
        if any(step.name is not None for step in rank.steps):
            _draw_steps(page, rank, left, origin[rank.path], scale)
            page.y += _STEPS
        page.y += _GAP
    _draw_axis(page, left, right, top, whole_ns)
    _draw_legend(page, measurement, colours)
    _draw_side_by_side(page, measurement, colours, left, right)
    if count > MAX_SHOWN_DEVICES:
        page.paragraph(f"and {count - MAX_SHOWN_DEVICES:,} more devices", 9.5)
    if measurement.limitations:
        page.paragraph(_limitation_line(measurement), 9.5, lines=3)
    return page.svg()


def _limitation_line(measurement: IdleMeasurement) -> str:
    """Return a line that lists the limitations without reasons, which would name files."""
    counts = Counter[str]()
    for limitation in measurement.limitations:
        counts[limitation.what] += limitation.count
    named = (
        f"{to_one_line(what, 160)} ({count:,})" if count != 1 else to_one_line(what, 160)
        for what, count in counts.items()
    )
    return f"Limitations: {'; '.join(named)}."


def colours_of(measurement: IdleMeasurement) -> dict[str, str]:
    """Return the colour of everything that has one of its own."""
    names = [*BUSY, *(total.activity for total in measurement.activities[:_COLOURED])]
    others = iter(MORE_ACTIVITIES * _COLOURED)
    colours = {name: ACTIVITIES[name] if name in ACTIVITIES else next(others) for name in names}
    # Activities of hosts without a device are not in the report's list.
    others_shown = len(measurement.activities) > _COLOURED or len(measurement.devices) < len(
        measurement.ranks
    )
    return {**colours, REST: REST_COLOUR} if others_shown else colours


def _draw_strip(
    page: Page, rank: RankIdle, left: float, width: float, height: float, colours: dict[str, str]
) -> None:
    spent = rank.slices(list(colours))
    whole = np.maximum(spent.sum(axis=0), 1)
    # Whole tenths of a pixel, so that what lies beside each other meets.
    edges = np.rint(np.cumsum(spent, axis=0) / whole * height * 10) / 10
    step = width / spent.shape[1]
    for number, colour in enumerate(colours.values()):
        low = edges[number - 1] if number else np.zeros(spent.shape[1])
        path = "".join(
            box(left + first * step, page.y + over, left + last * step, page.y + under)
            for first, last, over, under in _runs(low, edges[number])
        )
        page.path(path, fill=colour)


def _runs(low: Edges, high: Edges) -> Iterator[tuple[int, int, float, float]]:
    """Yield (first, last, low, high) of neighbouring slices that are alike, empty ones left out."""
    change = np.flatnonzero((low[1:] != low[:-1]) | (high[1:] != high[:-1])) + 1
    bounds = [0, *change.tolist(), len(low)]
    for first, last in pairwise(bounds):
        if high[first] > low[first]:
            yield first, last, float(low[first]), float(high[first])


def _draw_steps(page: Page, rank: RankIdle, left: float, origin_ns: int, scale: float) -> None:
    """Draw steps as a band below a strip, with their names where these fit."""
    boxes: tuple[list[str], list[str]] = ([], [])
    steps = [step for step in rank.steps if step.name is not None and step.length_ns]
    reached = left
    for number, step in enumerate(steps):
        start, end = (left + ((ns or 0) - origin_ns) * scale for ns in (step.start_ns, step.end_ns))
        if end - reached < 0.5:
            continue
        boxes[number % 2].append(box(start, page.y + 2, end, page.y + _STEPS))
        reached = end
        name = to_one_line(step.name or "", 40)
        if name and text_width(name, 9) < end - start - 4:
            middle, line = (start + end) / 2, page.y + _STEPS - 2.5
            page.text(name, middle, line, 9, ink="quiet", text_anchor="middle")
    for band_boxes, ink in zip(boxes, ("band", "grid"), strict=True):
        if band_boxes:
            look = {"fill": getattr(LIGHT, ink), "class_": f"bv-{ink}"}
            page.path_behind("".join(band_boxes), **look)


def _draw_axis(page: Page, left: float, right: float, top: float, whole_ns: int) -> None:
    marks, unit = ticks(whole_ns, 10)
    lines = []
    for time_ns, text in marks:
        x = left + (right - left) * time_ns / max(whole_ns, 1)
        lines.append(f"M{px(x)} {px(top)}V{px(page.y - 4)}")
        page.text(text, x, page.y + 8, 9.5, ink="quiet", text_anchor="middle")
    grid = {"stroke": LIGHT.grid, "stroke_width": 1, "fill": "none", "class_": "bv-grid"}
    page.path_behind("".join(lines), **grid)
    page.text(unit, right + 20, page.y + 8, 9.5, ink="quiet")
    page.y += 22


def _draw_legend(page: Page, measurement: IdleMeasurement, colours: dict[str, str]) -> None:
    """Draw the meaning of colours, each with its share of all time."""
    names = list(colours)
    totals_ns = np.zeros(len(names), np.int64)
    for rank in measurement.ranks:
        totals_ns += rank.slices(names).sum(axis=1)
    x, line = page.left, 18.0
    for (name, colour), total_ns in zip(colours.items(), totals_ns.tolist(), strict=True):
        share = total_ns / measurement.span_ns if measurement.span_ns else 0.0
        if share < _NOTHING:
            continue
        text = f"{to_one_line(name, 44)}  {percent(share)}"
        width = text_width(text, 10.5) + 30
        if x + width > page.right:
            x, page.y = page.left, page.y + line
        page.path(box(x, page.y, x + 12, page.y + 12), fill=colour)
        page.text(text, x + 17, page.y + 10, 10.5)
        x += width
    page.y += line


def _draw_side_by_side(
    page: Page, measurement: IdleMeasurement, colours: dict[str, str], left: float, right: float
) -> None:
    """Draw one bar per device, all equally long, divided as its time was; none for one alone."""
    ranks, names, shares = measurement.device_shares(_COLOURED)
    idle = shares[:, len(BUSY) :].sum(axis=1)
    count = min(len(ranks), _MOST_BARS)
    if count < 2:
        return
    page.y += 16
    page.text("Devices side by side: share of each one's time", page.left, page.y, 12)
    page.y += 10
    page.text("idle", right + 10, page.y - 4, 9.5, ink="quiet")
    top, size = page.y, 10.5
    for row, at in enumerate(ranks[:count]):
        base = top + row * _PITCH + _BAR - 3
        label = truncate_text(
            to_one_line(measurement.ranks[at].label, 60), size, left - page.left - 8
        )
        page.text(label, page.left, base, size)
        page.text(percent(float(idle[row])), right + 10, base, size)
    # From the left edge of the first part to the right edge of the last.
    edges = left + (right - left) * np.pad(np.cumsum(shares, axis=1), ((0, 0), (1, 0)))
    for column, name in enumerate(names):
        path = "".join(
            box(start, top + row * _PITCH, end, top + row * _PITCH + _BAR)
            for row, (start, end) in enumerate(edges[:count, column : column + 2].tolist())
            if shares[row, column] > 0
        )
        page.path(path, fill=colours.get(name, REST_COLOUR))
    page.y += count * _PITCH
    if len(ranks) > count:
        page.paragraph(f"and {len(ranks) - count:,} more devices", 9.5)
