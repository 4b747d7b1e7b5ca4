"""The idle time picture: one strip per device that shows its work and its host's activities.

A strip consists of slices about one pixel wide. The height of a slice is divided among compute,
communication, copies, and the activities of idle time, from top to bottom, in proportion to their
time. Steps are drawn below the strip.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from bubbleviz.analyses.idle.advice import make_title
from bubbleviz.analyses.idle.report import BUSY, MAX_SHOWN_DEVICES, REST, IdleMeasurement, RankIdle
from bubbleviz.model.texts import to_one_line
from bubbleviz.render.palette import ACTIVITIES, LIGHT, MORE_ACTIVITIES
from bubbleviz.render.picture.drawing import box, px
from bubbleviz.render.picture.lettering import text_width, truncate_text
from bubbleviz.render.picture.numbers import percent, ticks
from bubbleviz.render.picture.page import Page

Edges = npt.NDArray[np.floating[Any]]
#: Maximum number of devices drawn as stacked bars.
_MAX_BARS = 128
#: Number of activities that get their own color, longest first. All others share one color.
_N_COLORS = 9
#: Minimum fraction of the total time for a name to be listed in the legend.
_MIN_LEGEND_SHARE = 0.0005
REST_COLOR = "#d3d8de"
#: Height of a bar, and distance between the tops of two bars, in px.
_BAR, _PITCH = 13.0, 16.0
#: Layout in px: height of a strip with few and with many devices, height of the steps below a
#: strip, gap between strips, maximum label width on the left, and width of the column on the right.
_STRIP, _LOW_STRIP, _STEPS, _GAP, _WIDEST, _DUTY = 56.0, 20.0, 13.0, 12.0, 210.0, 62.0


def draw_idle(measurement: IdleMeasurement) -> str:
    """Draw the report on idle time as an SVG document.

    At most ``MAX_SHOWN_DEVICES`` devices get a strip. Times are relative to the first work in the
    same profile, because profiles need not share a clock.
    """
    page = Page("bvg-")
    count = len(measurement.ranks)
    page.title = make_title(measurement, percent)
    page.description = "One strip per device; each slice shows how its time was used."
    page.heading(page.title)
    page.y += 4
    page.paragraph(
        "Each slice shows, from the top, what the device ran, then what its host did while the "
        "device was idle. Steps are below each strip. Duty: share of time in which anything ran.",
        10.5,
    )
    page.y += 12
    ranks = measurement.ranks[:MAX_SHOWN_DEVICES]
    colors = choose_colors(measurement)
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
        _draw_strip(page, rank, start, rank.span_ns * scale, height, colors)
        middle = page.y + height / 2 + 4
        page.text(truncate_text(label, size, room - 8), page.left, middle, size)
        page.text(percent(rank.duty_cycle), right + 10, middle, size)
        page.y += height
        if any(step.name is not None for step in rank.steps):
            _draw_steps(page, rank, left, origin[rank.path], scale)
            page.y += _STEPS
        page.y += _GAP
    _draw_axis(page, left, right, top, whole_ns)
    _draw_legend(page, measurement, colors)
    _draw_side_by_side(page, measurement, colors, left, right)
    if count > MAX_SHOWN_DEVICES:
        page.paragraph(f"and {count - MAX_SHOWN_DEVICES:,} more devices", 9.5)
    if measurement.limitations:
        page.paragraph(_list_limitations(measurement), 9.5, lines=3)
    return page.svg()


def _list_limitations(measurement: IdleMeasurement) -> str:
    """Return a line that lists the limitations without their reasons, because reasons name files.

    Counts of limitations with the same subject are added. A count is shown unless it is 1.
    """
    counts = Counter[str]()
    for limitation in measurement.limitations:
        counts[limitation.what] += limitation.count
    texts = (
        f"{to_one_line(what, 160)} ({count:,})" if count != 1 else to_one_line(what, 160)
        for what, count in counts.items()
    )
    return f"Limitations: {'; '.join(texts)}."


def choose_colors(measurement: IdleMeasurement) -> dict[str, str]:
    """Return a color for each kind of work and for the ``_N_COLORS`` longest activities, by name.

    An activity without a fixed color gets the next color from ``MORE_ACTIVITIES``. If there are
    further activities, or hosts without a device, an entry for everything else comes last.
    """
    names = [*BUSY, *(total.activity for total in measurement.activities[:_N_COLORS])]
    more_colors = iter(MORE_ACTIVITIES * _N_COLORS)
    colors = {name: ACTIVITIES[name] if name in ACTIVITIES else next(more_colors) for name in names}
    # The report's list does not include activities of hosts without a device.
    has_rest = len(measurement.activities) > _N_COLORS or len(measurement.devices) < len(
        measurement.ranks
    )
    return {**colors, REST: REST_COLOR} if has_rest else colors


def _draw_strip(
    page: Page, rank: RankIdle, left: float, width: float, height: float, colors: dict[str, str]
) -> None:
    """Draw the strip of a device, one path per color.

    Args:
        page: The page. The strip starts at the current position.
        rank: The device.
        left: Left edge of the strip.
        width: Width of the strip.
        height: Height of the strip.
        colors: Colors keyed by name, ordered from top to bottom.
    """
    spent = rank.sum_slices(list(colors))
    total_ns = np.maximum(spent.sum(axis=0), 1)
    # Rounding to tenths of a pixel leaves no gap between adjacent areas.
    edges = np.rint(np.cumsum(spent, axis=0) / total_ns * height * 10) / 10
    step = width / spent.shape[1]
    for number, color in enumerate(colors.values()):
        low = edges[number - 1] if number else np.zeros(spent.shape[1])
        path = "".join(
            box(left + first * step, page.y + over, left + last * step, page.y + under)
            for first, last, over, under in _merge_runs(low, edges[number])
        )
        page.path(path, fill=color)


def _merge_runs(low: Edges, high: Edges) -> Iterator[tuple[int, int, float, float]]:
    """Yield (first, stop, low, high) for each run of slices with equal edges, if high > low."""
    change = np.flatnonzero((low[1:] != low[:-1]) | (high[1:] != high[:-1])) + 1
    bounds = [0, *change.tolist(), len(low)]
    for first, stop in pairwise(bounds):
        if high[first] > low[first]:
            yield first, stop, float(low[first]), float(high[first])


def _draw_steps(page: Page, rank: RankIdle, left: float, origin_ns: int, scale: float) -> None:
    """Draw the steps as a band below a strip, labeled where the names fit.

    A step that ends less than half a pixel after the last drawn step is left out.
    """
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
            middle = (start + end) / 2
            page.text(name, middle, page.y + _STEPS - 2.5, 9, ink="quiet", text_anchor="middle")
    for band_boxes, ink in zip(boxes, ("band", "grid"), strict=True):
        if band_boxes:
            look = {"fill": getattr(LIGHT, ink), "class_": f"bv-{ink}"}
            page.path_behind("".join(band_boxes), **look)


def _draw_axis(page: Page, left: float, right: float, top: float, total_ns: int) -> None:
    """Draw the time axis below the strips and grid lines up to ``top``, then move down."""
    marks, unit = ticks(total_ns, 10)
    lines = []
    for time_ns, text in marks:
        x = left + (right - left) * time_ns / max(total_ns, 1)
        lines.append(f"M{px(x)} {px(top)}V{px(page.y - 4)}")
        page.text(text, x, page.y + 8, 9.5, ink="quiet", text_anchor="middle")
    grid = {"stroke": LIGHT.grid, "stroke_width": 1, "fill": "none", "class_": "bv-grid"}
    page.path_behind("".join(lines), **grid)
    page.text(unit, right + 20, page.y + 8, 9.5, ink="quiet")
    page.y += 22


def _draw_legend(page: Page, measurement: IdleMeasurement, colors: dict[str, str]) -> None:
    """Draw the legend: each color with its name and its fraction of the devices' total time.

    Names whose fraction is below ``_MIN_LEGEND_SHARE`` are left out.
    """
    names = list(colors)
    totals_ns = np.zeros(len(names), np.int64)
    for rank in measurement.ranks:
        totals_ns += rank.sum_slices(names).sum(axis=1)
    x, line = page.left, 18.0
    for (name, color), total_ns in zip(colors.items(), totals_ns.tolist(), strict=True):
        fraction = total_ns / measurement.span_ns if measurement.span_ns else 0.0
        if fraction < _MIN_LEGEND_SHARE:
            continue
        text = f"{to_one_line(name, 44)}  {percent(fraction)}"
        width = text_width(text, 10.5) + 30
        if x + width > page.right:
            x, page.y = page.left, page.y + line
        page.path(box(x, page.y, x + 12, page.y + 12), fill=color)
        page.text(text, x + 17, page.y + 10, 10.5)
        x += width
    page.y += line


def _draw_side_by_side(
    page: Page, measurement: IdleMeasurement, colors: dict[str, str], left: float, right: float
) -> None:
    """Draw one bar per device, divided by kind of work and activity, if there are several devices.

    At most ``_MAX_BARS`` devices are drawn.
    """
    ranks, names, shares = measurement.device_shares(_N_COLORS)
    idle = shares[:, len(BUSY) :].sum(axis=1)
    count = min(len(ranks), _MAX_BARS)
    if count < 2:
        return
    page.y += 16
    page.text("Devices side by side: share of each device's time", page.left, page.y, 12)
    page.y += 10
    page.text("idle", right + 10, page.y - 4, 9.5, ink="quiet")
    top, size = page.y, 10.5
    for row, rank_index in enumerate(ranks[:count]):
        base = top + row * _PITCH + _BAR - 3
        label = truncate_text(
            to_one_line(measurement.ranks[rank_index].label, 60), size, left - page.left - 8
        )
        page.text(label, page.left, base, size)
        page.text(percent(float(idle[row])), right + 10, base, size)
    part_colors = [colors.get(name, REST_COLOR) for name in names]
    _draw_bars(page, shares[:count], part_colors, left, right)
    page.y += count * _PITCH
    if len(ranks) > count:
        page.paragraph(f"and {len(ranks) - count:,} more devices", 9.5)


def _draw_bars(page: Page, shares: Edges, colors: Sequence[str], left: float, right: float) -> None:
    """Draw stacked horizontal bars from top to bottom, starting at the page's current position.

    Args:
        page: The page. Its current position does not change.
        shares: Fraction of the width that each part takes, shape (bars, parts).
        colors: Color of each part.
        left: Left edge of the bars.
        right: Right edge of a bar with shares that add up to 1.
    """
    # Edges of all parts, from the left edge of the first part to the right edge of the last part.
    edges = left + (right - left) * np.pad(np.cumsum(shares, axis=1), ((0, 0), (1, 0)))
    for part, color in enumerate(colors):
        path = "".join(
            box(start, page.y + row * _PITCH, end, page.y + row * _PITCH + _BAR)
            for row, (start, end) in enumerate(edges[:, part : part + 2].tolist())
            if shares[row, part] > 0
        )
        page.path(path, fill=color)
