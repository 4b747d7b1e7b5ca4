"""Brackets above iterations, with name, ratio and length, and dashes where the next one begins."""

from __future__ import annotations

from bubbleviz.count.iterations import Iteration
from bubbleviz.model.texts import one_line
from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.page import (
    UNKNOWN,
    Page,
    PictureStyle,
    duration,
    px,
    text_width,
)
from bubbleviz.render.picture.title import iteration_ratio
from bubbleviz.render.rows import Selection
from bubbleviz.report.report import Report

#: Maximum number of iterations with a bracket and a boundary.
MOST_BRACKETS = 60
#: Number of lines for brackets that overlap, and the height of a line.
_LINES = 3
_LINE_HEIGHT = 15


def brackets_height(selection: Selection, style: PictureStyle) -> int:
    """Return the height of the lines of brackets, which share it with the title of the ratios."""
    lines = max((line for *_, line in _brackets(selection, style)), default=0)
    return _LINE_HEIGHT * (lines + 1) - (0 if style.titled else 3)


def _brackets(selection: Selection, style: PictureStyle) -> list[tuple[Iteration, int, int, int]]:
    """Return iterations with start and end of their brackets, in ns, and their lines.

    A bracket spans the window of the first row that has a window. Brackets that overlap take turns
    on the lines. There are none if iterations are many, or one without a title.
    """
    count = len(selection.iterations)
    if count > MOST_BRACKETS or (count == 1 and not style.titled):
        return []
    brackets: list[tuple[Iteration, int, int, int]] = []
    for it, by_rank in zip(selection.iterations, selection.windows, strict=True):
        windows = (by_rank[rank.index] for rank in selection.ranks if rank.index in by_rank)
        start, end = next(windows, (it.start_ns, it.end_ns))
        line = 0
        if brackets and start < brackets[-1][2]:
            line = (brackets[-1][3] + 1) % _LINES
        brackets.append((it, start, end, line))
    return brackets


def draw_brackets(page: Page, report: Report, selection: Selection, layout: Layout) -> None:
    """Draw the boundaries between iterations and the brackets above them."""
    brackets = _brackets(selection, page.style)
    dashes = "".join(
        f"M{px(layout.x(it.start_ns))} {px(layout.tops[0] - 4)}V{px(layout.bottom + 4)}"
        for it, *_ in brackets[1:]
    )
    dashed = {"stroke_dasharray": "4 3", "class_": "bv-mark"}
    page.path(dashes, stroke=LIGHT.text, stroke_width=0.9, **dashed)
    size = page.style.letters.axis
    for it, start, end, place in brackets:
        # A line over the window, with as much of name, ratio and length as fits in its middle.
        left, right, y = layout.x(start), layout.x(end), layout.brackets + _LINE_HEIGHT * place + 9
        name, value = one_line(it.name, 40), iteration_ratio(report, it)
        ratio = it.ratios.get(report.headline)
        texts = [f"iteration {name}", name, ""]
        if value != UNKNOWN:
            texts = [f"iteration {name}: {value}", f"{name}: {value}", *texts]
            if ratio is not None and ratio.window_ns is not None:
                length = f"{duration(ratio.window_ns)} ({report.headline} window)"
                texts.insert(0, f"{texts[0]} of {length}")
        text = next(t for t in texts if not t or text_width(t, size) + 3 * size <= right - left)
        middle, line = (left + right) / 2, f"H{px(right)}"
        if text:
            half = (text_width(text, size) + size) / 2
            line = f"H{px(middle - half)}M{px(middle + half)} {px(y)}{line}"
            page.text(text, middle, y + 0.35 * size, size, text_anchor="middle")
        top = px(y - 4)
        page.rule(f"M{px(left)} {top}v8M{px(right)} {top}v8M{px(left)} {px(y)}{line}")
