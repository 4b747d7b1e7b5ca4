"""Draws a bracket with text above each iteration, and dashed lines between iterations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bubbleviz.count.iterations import Iteration
from bubbleviz.model.texts import to_one_line
from bubbleviz.render.palette import LIGHT
from bubbleviz.render.picture.drawing import px
from bubbleviz.render.picture.layout import Layout
from bubbleviz.render.picture.lettering import text_width
from bubbleviz.render.picture.numbers import UNKNOWN, duration
from bubbleviz.render.picture.page import Page
from bubbleviz.render.picture.style import PictureStyle
from bubbleviz.render.picture.title import format_iteration_ratio
from bubbleviz.render.selection import Selection
from bubbleviz.report.report import Report

#: Maximum number of iterations for which brackets and dashed lines are drawn.
MAX_BRACKETS = 60
#: Number of lines for placing overlapping brackets, and height of a line.
_LINES = 3
_LINE_HEIGHT = 15


def has_brackets(n_iterations: int, style: PictureStyle) -> bool:
    """Return whether a picture of this many iterations has brackets.

    There are no brackets if there are more than ``MAX_BRACKETS`` iterations, or if there is a
    single iteration and the style has no titles.
    """
    return n_iterations <= MAX_BRACKETS and (n_iterations > 1 or style.titled)


class _Bracket(NamedTuple):
    """The bracket of an iteration: its bounds in ns, and the index of the line that contains it."""

    iteration: Iteration
    start_ns: int
    end_ns: int
    line: int


def measure_brackets(selection: Selection, style: PictureStyle) -> int:
    """Return the total height of all bracket lines. There is at least one line.

    The space is needed even without brackets, because it also holds the ratio heading.
    """
    lines = max((bracket.line for bracket in _place_brackets(selection, style)), default=0)
    return _LINE_HEIGHT * (lines + 1) - (0 if style.titled else 3)


def _place_brackets(selection: Selection, style: PictureStyle) -> list[_Bracket]:
    """Return the time span and the line of each iteration's bracket.

    - A bracket spans the iteration's window on the first row that has one. If no row has a window,
      it spans the entire iteration.
    - Brackets are on line 0. A bracket that overlaps the previous one goes on the next line
      instead. After the last line, line 0 is used again.
    - There are no brackets if :func:`has_brackets` returns False.
    """
    if not has_brackets(len(selection.iterations), style):
        return []
    brackets: list[_Bracket] = []
    for iteration, by_rank in zip(selection.iterations, selection.windows, strict=True):
        windows = (by_rank[rank.index] for rank in selection.ranks if rank.index in by_rank)
        start_ns, end_ns = next(windows, (iteration.start_ns, iteration.end_ns))
        line = 0
        if brackets and start_ns < brackets[-1].end_ns:
            line = (brackets[-1].line + 1) % _LINES
        brackets.append(_Bracket(iteration, start_ns, end_ns, line))
    return brackets


def draw_brackets(page: Page, report: Report, selection: Selection, layout: Layout) -> None:
    """Draw each iteration's bracket, and a dashed line at the start of each iteration.

    There is no dashed line at the start of the first iteration.
    """
    brackets = _place_brackets(selection, page.style)
    top, bottom = px(layout.tops[0] - 4), px(layout.bottom + 4)
    starts = [layout.x(bracket.iteration.start_ns) for bracket in brackets[1:]]
    dashes = "".join(f"M{px(x)} {top}V{bottom}" for x in starts)
    dashed = {"stroke_dasharray": "4 3", "class_": "bv-mark"}
    page.path(dashes, stroke=LIGHT.text, stroke_width=0.9, **dashed)
    for bracket in brackets:
        _draw_bracket(page, report, layout, bracket)


def _draw_bracket(page: Page, report: Report, layout: Layout, bracket: _Bracket) -> None:
    """Draw an iteration's bracket, with a vertical tick at each end.

    The longest text that fits is written in a gap in the middle of the bracket. If not even the
    shortest text fits, the bracket has no text and no gap.
    """
    left, right = layout.x(bracket.start_ns), layout.x(bracket.end_ns)
    y = layout.brackets + _LINE_HEIGHT * bracket.line + 9
    size = page.style.letters.axis
    max_width = right - left - 3 * size
    texts = _list_texts(report, bracket.iteration)
    text = next((text for text in texts if text_width(text, size) <= max_width), "")
    line = f"H{px(right)}"
    if text:
        middle, half = (left + right) / 2, (text_width(text, size) + size) / 2
        line = f"H{px(middle - half)}M{px(middle + half)} {px(y)}" + line
        page.text(text, middle, y + 0.35 * size, size, text_anchor="middle")
    top = px(y - 4)
    segments = f"M{px(left)} {top}v8M{px(right)} {top}v8"
    page.rule(f"{segments}M{px(left)} {px(y)}{line}")


def _list_texts(report: Report, iteration: Iteration) -> Iterator[str]:
    """Yield candidate texts for an iteration's bracket, longest first.

    All texts contain the iteration's name. If the primary ratio is known, the longer texts also
    contain the ratio and the length of its window.
    """
    name, value = to_one_line(iteration.name, 40), format_iteration_ratio(report, iteration)
    if value != UNKNOWN:
        ratio = iteration.ratios.get(report.headline)
        if ratio is not None and ratio.window_ns is not None:
            length = f"{duration(ratio.window_ns)} ({report.headline} window)"
            yield f"iteration {name}: {value} of {length}"
        yield f"iteration {name}: {value}"
        yield f"{name}: {value}"
    yield f"iteration {name}"
    yield name
