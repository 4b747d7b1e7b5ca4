"""The idle time picture: four lanes per device that show its work and its host's activities.

The lanes are compute, communication, copies and idle time. A lane consists of slices about one
pixel wide, which are filled in proportion to the time. Communication and copies are pale while a
kernel hides them. In the lane of idle time, the height of a slice is divided among the activities
of the host. Steps are drawn below the lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from bubbleviz.analyses.idle.advice import describe_division, make_title
from bubbleviz.analyses.idle.report import BUSY, MAX_SHOWN_DEVICES, REST, IdleMeasurement, RankIdle
from bubbleviz.model.columns import Floats
from bubbleviz.model.limitations import list_harmful_subjects
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
#: Color of all activities that have no color of their own.
REST_COLOR = "#d3d8de"
#: Font sizes of device names, and of the names and shares of lanes.
_SIZE, _SMALL = 11.0, 10.0
#: Height of a bar, and distance between the tops of two bars, in px.
_BAR, _PITCH = 13.0, 16.0
#: Heights of the lanes in px, with few and with many devices.
_LANES, _LOW_LANES = (18.0, 12.0, 12.0, 24.0), (8.0, 5.0, 5.0, 9.0)
#: Names of the lanes on the left, and maximum number of devices for which they are drawn.
_LANE_NAMES, _MAX_NAMED = ("compute", "communication", "copies", "idle"), 8
#: Layout in px: gap between lanes, height of the steps below a strip, gap between strips, maximum
#: label width on the left, and width of the column on the right.
_LANE_GAP, _STEPS, _GAP, _WIDEST, _SHARE = 2.0, 13.0, 14.0, 210.0, 62.0
#: Opacity of communication and copies that are hidden by kernels.
_HIDDEN = 0.4
#: Names of exposed work in the legend.
_LEGEND_NAMES = {"communication": "exposed communication", "copies": "exposed copies"}


def draw_idle(measurement: IdleMeasurement) -> str:
    """Draw the report on idle time as an SVG document.

    At most ``MAX_SHOWN_DEVICES`` devices get a strip. Times are relative to the first work in the
    same profile, because profiles need not share a clock.
    """
    page = Page("bvg-")
    count = len(measurement.shown_ranks)
    page.title = make_title(measurement)
    page.description = "Four lanes per device; each slice shows how its time was used."
    page.heading(page.title)
    page.y += 4
    if measurement.span_ns:
        page.paragraph(describe_division(measurement), 11.5, ink="text")
    page.paragraph(
        "Lanes of a device, from the top: compute, communication, copies, and what the host did "
        "while the device was idle, with the share of time on the right. Pale: hidden by kernels.",
        10.5,
    )
    page.y += 12
    colors = choose_colors(measurement)
    _draw_strips(page, measurement.shown_ranks[:MAX_SHOWN_DEVICES], colors)
    _draw_legend(page, measurement, colors)
    _draw_side_by_side(page, measurement, colors, page.right - _SHARE)
    if count > MAX_SHOWN_DEVICES:
        page.paragraph(f"and {count - MAX_SHOWN_DEVICES:,} more devices", 9.5)
    if subjects := list_harmful_subjects(measurement.limitations):
        page.paragraph(f"Limitations: {subjects}.", 9.5, lines=3)
    return page.svg()


def _draw_strips(page: Page, ranks: Sequence[RankIdle], colors: dict[str, str]) -> None:
    """Draw the lanes and steps of each device, and a common time axis below.

    Args:
        page: The page. The strips start at its current position.
        ranks: The devices to draw.
        colors: Colors by kind of work and activity.
    """
    is_named = len(ranks) <= _MAX_NAMED
    room = _measure_label_room(ranks, is_named=is_named)
    left, right = page.left + room, page.right - _SHARE
    origin_ns = {
        rank.path: min(other.start_ns for other in ranks if other.path == rank.path)
        for rank in ranks
    }
    total_ns = max(rank.end_ns - origin_ns[rank.path] for rank in ranks)
    scale = (right - left) / max(total_ns, 1)
    top = page.y
    for rank in ranks:
        start = left + (rank.start_ns - origin_ns[rank.path]) * scale
        _draw_device_label(page, rank, room, is_named=is_named)
        _draw_lanes(page, rank, (start, rank.span_ns * scale), right, colors, is_named=is_named)
        if any(step.name is not None for step in rank.steps):
            _draw_steps(page, rank, left, origin_ns[rank.path], scale)
            page.y += _STEPS
        page.y += _GAP
    _draw_axis(page, left, right, top, total_ns)


def _draw_device_label(page: Page, rank: RankIdle, room: float, *, is_named: bool) -> None:
    """Draw a device's label above its lanes, or to the left of them if the lanes have no names.

    Args:
        page: The page. If the lanes have names, its current position moves below the label.
        rank: The device.
        room: Width of the column to the left of the lanes.
        is_named: Whether the column on the left contains the names of lanes.
    """
    if is_named:
        page.y += _SIZE
        page.text(to_one_line(rank.label, 100), page.left, page.y, _SIZE, font_weight="bold")
        page.y += 5
    else:
        label = truncate_text(to_one_line(rank.label, 60), _SIZE, room - 8)
        page.text(label, page.left, page.y + 12, _SIZE)


def choose_colors(measurement: IdleMeasurement) -> dict[str, str]:
    """Return a color for each kind of work and for the ``_N_COLORS`` longest activities, by name.

    An activity without a fixed color gets the next color from ``MORE_ACTIVITIES``. If there are
    further activities, or hosts without a device, an entry for everything else comes last.
    """
    names = [*BUSY, *(total.activity for total in measurement.activities[:_N_COLORS])]
    more_colors = iter(MORE_ACTIVITIES * _N_COLORS)
    colors = {name: ACTIVITIES[name] if name in ACTIVITIES else next(more_colors) for name in names}
    # The report's list does not include activities of hosts without a device.
    has_rest = len(measurement.activities) > _N_COLORS or not measurement.devices
    return {**colors, REST: REST_COLOR} if has_rest else colors


def _measure_label_room(ranks: Sequence[RankIdle], *, is_named: bool) -> float:
    """Return the width of the column on the left, which contains the names of lanes or devices."""
    if is_named:
        return max(text_width(name, _SMALL) for name in _LANE_NAMES) + 12
    widths = (text_width(to_one_line(rank.label, 60), _SIZE) for rank in ranks)
    return min(_WIDEST, max(widths, default=0.0) + 12)


def _draw_lanes(
    page: Page,
    rank: RankIdle,
    extent: tuple[float, float],
    right: float,
    colors: dict[str, str],
    *,
    is_named: bool,
) -> None:
    """Draw the lanes of a device, and move below them.

    Args:
        page: The page. The lanes start at the current position.
        rank: The device.
        extent: Left edge and width of the lanes.
        right: Right edge of the longest lanes. The shares of time are to the right of it.
        colors: Colors keyed by name: the kinds of work, followed by the activities.
        is_named: Whether there is space for the name and the share of each lane.
    """
    left, width = extent
    slice_ns = np.maximum(rank.slice_ns.sum(axis=0), 1)
    n_kinds = len(BUSY)
    exposed_ns = rank.sum_slices(list(colors))
    shares = [*rank.lane_slice_ns / slice_ns, exposed_ns[n_kinds:].sum(axis=0) / slice_ns]
    means = [float(share @ slice_ns) / max(int(slice_ns.sum()), 1) for share in shares]
    for lane, height in enumerate(_LANES if is_named else _LOW_LANES):
        page.path_behind(
            box(left, page.y, left + width, page.y + height), fill=LIGHT.band, class_="bv-band"
        )
        if lane < n_kinds:
            color = colors[BUSY[lane]]
            _draw_area(page, [shares[lane]], [color], left, width, height, fill_opacity=_HIDDEN)
            _draw_area(page, [exposed_ns[lane] / slice_ns], [color], left, width, height)
        else:
            idle_shares = exposed_ns[n_kinds:] / slice_ns
            _draw_area(page, idle_shares, [*colors.values()][n_kinds:], left, width, height)
        if is_named:
            base = page.y + height / 2 + 3.5
            page.text(_LANE_NAMES[lane], page.left, base, _SMALL, ink="quiet")
            if rank.is_measured:
                page.text(percent(means[lane]), right + 10, base, _SMALL)
        page.y += height + _LANE_GAP
    if not is_named and rank.is_measured:
        page.text(percent(means[-1]), right + 10, page.y - _LANE_GAP - 1, _SMALL)


def _draw_area(
    page: Page,
    shares: Sequence[Edges] | Edges,
    colors: Sequence[str],
    left: float,
    width: float,
    height: float,
    **look: Any,
) -> None:
    """Draw stacked areas in a lane that starts at the current position, one path per color.

    Args:
        page: The page. Its current position does not change.
        shares: Share of the lane's height that each color fills in each slice, from the bottom up,
            shape (colors, slices).
        colors: Colors of the areas.
        left: Left edge of the lane.
        width: Width of the lane.
        height: Height of the lane.
        look: Other attributes of the SVG elements.
    """
    if not len(shares):
        return
    # Rounding to tenths of a pixel leaves no gap between adjacent areas.
    levels = np.rint(np.cumsum(np.stack([*shares]), axis=0) * height * 10) / 10
    step = width / levels.shape[1]
    below = np.zeros(levels.shape[1])
    for level, color in zip(levels, colors, strict=True):
        path = "".join(
            box(
                left + first * step,
                page.y + height - high,
                left + last * step,
                page.y + height - low,
            )
            for first, last, low, high in _merge_runs(below, level)
        )
        page.path(path, fill=color, **look)
        below = level


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
    drawn_to = left
    for number, step in enumerate(steps):
        start, end = (left + ((ns or 0) - origin_ns) * scale for ns in (step.start_ns, step.end_ns))
        if end - drawn_to < 0.5:
            continue
        boxes[number % 2].append(box(start, page.y + 2, end, page.y + _STEPS))
        drawn_to = end
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
    """Draw the legend: each color with its name and its fraction of the devices' time.

    Names with less than ``_MIN_LEGEND_SHARE`` of the time that is drawn are left out.
    """
    x, line_height = page.left, 18.0
    drawn_shares, fractions = _measure_legend_shares(measurement, list(colors))
    entries = zip(colors.items(), drawn_shares.tolist(), fractions.tolist(), strict=True)
    for (name, color), drawn_share, fraction in entries:
        if drawn_share < _MIN_LEGEND_SHARE:
            continue
        text = f"{to_one_line(_LEGEND_NAMES.get(name, name), 44)}  {percent(fraction)}"
        width = text_width(text, 10.5) + 30
        if x + width > page.right:
            x, page.y = page.left, page.y + line_height
        page.path(box(x, page.y, x + 12, page.y + 12), fill=color)
        page.text(text, x + 17, page.y + 10, 10.5)
        x += width
    page.y += line_height


def _measure_legend_shares(
    measurement: IdleMeasurement, names: Sequence[str]
) -> tuple[Floats, Floats]:
    """Measure how much of the devices' time each kind of work and each activity takes.

    Returns:
        drawn_shares: Fractions of the time that is drawn.
        fractions: Fractions of the time of measured devices. As in the title, devices with a single
            kernel or copy do not count, unless there are no other devices.
    """
    ranks = measurement.shown_ranks
    totals_ns = np.array([rank.sum_slices(names).sum(axis=1) for rank in ranks], np.int64)
    is_measured = np.array([rank.is_measured for rank in ranks], bool)
    drawn_ns = totals_ns.sum(axis=0)
    counted_ns = totals_ns[is_measured].sum(axis=0) if is_measured.any() else drawn_ns
    return drawn_ns / max(int(drawn_ns.sum()), 1), counted_ns / max(int(counted_ns.sum()), 1)


def _draw_side_by_side(
    page: Page, measurement: IdleMeasurement, colors: dict[str, str], right: float
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
    shown = [measurement.ranks[rank_index] for rank_index in ranks[:count]]
    left = page.left + _measure_label_room(shown, is_named=False)
    for row, rank in enumerate(shown):
        base = top + row * _PITCH + _BAR - 3
        label = truncate_text(to_one_line(rank.label, 60), size, left - page.left - 8)
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
