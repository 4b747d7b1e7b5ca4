"""The axis of time below the rows: a label at every tick, the last one included."""

from __future__ import annotations

from itertools import pairwise

import drawsvg

from bubbleviz.model.values import frozen
from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.lettering import text_width
from bubbleviz.render.picture.page import Page, px, ticks

#: Most steps between ticks.
_MOST_STEPS = 10
#: Between two labels at least, as a share of their font size.
_APART = 0.7


@frozen
class AxisLabel:
    """A text centred at ``x``, its width, and its tick; the title of the axis has none."""

    x: float
    text: str
    width: float
    tick: float | None = None

    @property
    def left(self) -> float:
        """Left edge."""
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        """Right edge."""
        return self.x + self.width / 2


def axis_labels(layout: Layout, size: float, *, left: float, right: float) -> list[AxisLabel]:
    """Return the labels of the ticks from left to right, and the title if there is room for one.

    The title stands before the first tick, or behind the last one; where neither has room, the
    last label has the unit.

    Args:
        layout: of the rows.
        size: of the letters.
        left: nothing stands left of this.
        right: nothing stands right of this.
    """
    gap = _APART * size
    for steps in range(_MOST_STEPS, 0, -1):
        times, unit = ticks(layout.span_ns, steps)
        labels = [
            AxisLabel(x, text, text_width(text, size), x)
            for time_ns, text in times
            for x in [layout.x(layout.start_ns + time_ns)]
        ]
        name = f"time ({unit})"
        width = text_width(name, size)
        if labels[0].left - gap - width >= left:
            title = AxisLabel(labels[0].left - gap - width / 2, name, width)
            labels.insert(0, title)
        elif labels[-1].right + gap + width <= right:
            labels.append(AxisLabel(right - width / 2, name, width))
        else:
            # The number stays centred on its tick.
            last, behind = labels[-1], f"\u00a0{unit}"
            more = text_width(behind, size)
            x = last.x + more / 2
            labels[-1] = AxisLabel(x, last.text + behind, last.width + more, last.tick)
        if labels[-1].right <= right and all(
            after.left - before.right >= gap for before, after in pairwise(labels)
        ):
            return labels
    # A plot too narrow for two labels has the one at its left edge.
    return [label for label in labels if label.tick is not None][:1]


def draw_axis(page: Page, layout: Layout, bottom: float) -> None:
    """Draw the axis below ``bottom``, and move the page's cursor below it."""
    size = page.style.letters.axis
    y = bottom + 0.5 * size
    labels = axis_labels(layout, size, left=page.left, right=page.right)
    group = drawsvg.Group(font_size=size, text_anchor="middle", fill=LIGHT.quiet, class_="bv-quiet")
    path = f"M{px(layout.left)} {px(y)}H{px(layout.right)}"
    for label in labels:
        if label.tick is not None:
            path += f"M{px(label.tick)} {px(y)}v{px(0.4 * size)}"
        page.text(label.text, label.x, y + 1.4 * size, None, into=group, ink=None)
    page.rule(path)
    page.elements.append(group)
    page.y = y + 2.1 * size
