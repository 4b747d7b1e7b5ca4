"""Brackets: name, ratio and length above every iteration, and dashes where the next one begins."""

from __future__ import annotations

from collections.abc import Iterator

import drawsvg

from bubbleviz.count.iterations import Iteration
from bubbleviz.model.texts import one_line
from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.lettering import text_width
from bubbleviz.render.picture.page import UNKNOWN, Page, duration, px
from bubbleviz.render.picture.ratios import iteration_ratio
from bubbleviz.render.picture.style import PictureStyle
from bubbleviz.render.selection import Selection
from bubbleviz.report.report import Report

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
        page.elements.append(
            drawsvg.Path(
                dashes,
                stroke=LIGHT.text,
                stroke_width=0.9,
                stroke_dasharray="4 3",
                class_="bv-mark",
            )
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
