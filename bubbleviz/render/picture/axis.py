"""The axis of time below the rows."""

from __future__ import annotations

import drawsvg

from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.page import MARGIN, WIDTH, Page, px, text_width, ticks
from bubbleviz.render.picture.palette import LIGHT


def draw_axis(page: Page, layout: Layout, bottom: float) -> None:
    """Draw the axis below ``bottom``, and move the page's cursor below it."""
    y = bottom + 6
    times, unit = ticks(layout.span_ns, 10)
    title = f"time ({unit}) →"
    free = WIDTH - MARGIN - text_width(title, 10) - 4
    labels = drawsvg.Group(font_size=10, text_anchor="middle", fill=LIGHT.quiet, class_="bv-quiet")
    path = f"M{px(layout.left)} {px(y)}H{px(layout.right)}"
    for time_ns, text in times:
        x = layout.x(layout.start_ns + time_ns)
        path += f"M{px(x)} {px(y)}v5"
        if x + text_width(text, 10) / 2 <= free:
            page.text(text, x, y + 15, None, into=labels, ink=None)
    page.rule(path)
    page.elements.append(labels)
    page.text(title, WIDTH - MARGIN, y + 15, 10, ink="quiet", text_anchor="end")
    page.y = y + 24
