"""Draws the time axis below the rows, with a label at every tick."""

from __future__ import annotations

from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.drawing import make_group, px
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.lettering import text_width
from bubbleviz.render.picture.numbers import ticks
from bubbleviz.render.picture.page import Page

#: Maximum number of steps between ticks.
_MAX_STEPS = 10
#: Minimum distance between two labels, relative to the font size.
_MIN_GAP = 0.7


def place_axis_labels(layout: Layout, size: float, right: float) -> list[tuple[float, str]]:
    """Return the (x coordinate, text) pair of each tick label. The last label includes the unit.

    The axis has as many ticks as possible, up to ``_MAX_STEPS`` steps between them. Labels must not
    overlap, and the last label must not extend beyond ``right``. If even two labels do not fit,
    only the label of the first tick is returned.

    Args:
        layout: Layout of the rows.
        size: Font size of the labels.
        right: Maximum x coordinate of the right end of the last label.
    """
    for steps in range(_MAX_STEPS, 0, -1):
        times, unit = ticks(layout.span_ns, steps)
        labels = [(layout.x(layout.start_ns + time_ns), text) for time_ns, text in times]
        last_x, last_text = labels[-1]
        labels[-1] = last_x, f"{last_text}\u00a0{unit}"
        width = text_width(labels[-1][1], size)
        pitch = width + size
        if len(times) > 1:
            step_ns, _ = times[1]
            pitch = layout.width * step_ns / layout.span_ns
        if pitch >= width + _MIN_GAP * size and last_x + width / 2 <= right:
            return labels
    # If the plot is too narrow for two labels, only its left edge has a label.
    return labels[:1]


def draw_axis(page: Page, layout: Layout, bottom: float) -> None:
    """Draw the time axis with its ticks and labels, and move the page's cursor below the axis.

    Args:
        page: The page.
        layout: Layout of the rows, whose time scale the axis shares.
        bottom: The y coordinate of the lower edge of the rows.
    """
    size = page.style.letters.axis
    y = bottom + 0.5 * size
    look = {"fill": LIGHT.quiet, "class_": "bv-quiet"}
    group = make_group(font_size=size, text_anchor="middle", **look)
    path = f"M{px(layout.left)} {px(y)}H{px(layout.right)}"
    for x, text in place_axis_labels(layout, size, page.right):
        path += f"M{px(x)} {px(y)}v{px(0.4 * size)}"
        page.text(text, x, y + 1.4 * size, None, into=group, ink=None)
    page.rule(path)
    page.elements.append(group)
    page.y = y + 2.1 * size
