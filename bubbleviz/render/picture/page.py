"""The page on which a picture is drawn, from top to bottom.

SVG element attributes contain the colors for paper, so programs that ignore CSS draw the right
colors. On a dark screen, a style sheet changes the colors of the classes ``bv-*``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from string import Template
from typing import Any

from bubbleviz.errors import UsageError
from bubbleviz.render.palette import CAUSE_HATCHES, CAUSES, DARK, LIGHT, Paint, measure_luminance
from bubbleviz.render.picture.drawing import (
    Element,
    make_bubble_hatch,
    make_cause_hatch,
    make_circle,
    make_gradient,
    make_path,
    make_text,
    px,
    write_document,
)
from bubbleviz.render.picture.lettering import BOLD, text_width, truncate_text
from bubbleviz.render.picture.style import MIN_POINTS, SCREEN, PictureStyle
from bubbleviz.render.wrapping import wrap_text

#: Style sheet for dark screens.
_DARK_SHEET = Template(
    "@media screen and (prefers-color-scheme:dark){"
    ".bv-paper{fill:$paper}.bv-text{fill:$text}.bv-quiet{fill:$quiet}.bv-frame{stroke:$frame}"
    ".bv-band{fill:$band}.bv-hatch{stroke:$hatch}.bv-gap{fill:$gap}.bv-grid{stroke:$grid}"
    ".bv-rule{stroke:$quiet}.bv-mark{stroke:$text}.bv-pale{fill-opacity:0.25}"
    "}"
).substitute(asdict(DARK))
#: Luminance above which an idle-time color is too bright for a dark screen.
_PALE = 0.48


class Page:
    """An SVG page that is filled from top to bottom.

    The attribute ``y`` is the cursor: the y coordinate below which the next part is drawn.

    Args:
        ids: Prefix for element ids. Pictures in the same HTML document need different prefixes.
        style: Picture sizes, and which optional parts are drawn.
    """

    def __init__(self, ids: str = "bv-", style: PictureStyle = SCREEN) -> None:
        self.ids = ids
        self.style = style
        self.y = style.margin
        self.elements: list[Element] = []
        self.definitions: dict[str, Element] = {}
        self.title = "bubbleviz"
        self.description = ""

    @property
    def left(self) -> float:
        """Left edge of the area inside the margins."""
        return self.style.margin

    @property
    def right(self) -> float:
        """Right edge of the area inside the margins."""
        return self.style.width - self.style.margin

    def text(
        self,
        text: str,
        x: float,
        y: float,
        size: float | None = 11,
        *,
        into: Element = None,
        ink: str | None = "text",
        **attributes: Any,
    ) -> None:
        """Write one line of text.

        Args:
            text: The text.
            x: The x coordinate of the text anchor. By default, this is the left end of the text.
            y: The y coordinate of the baseline.
            size: Font size, or None to inherit the font size from the group.
            into: Group to which the text is added, or None for the page.
            ink: Name of a color that depends on dark mode (an attribute of :class:`.Ink`). None
                means to inherit the color from the group, or to use the attribute ``fill``.
            attributes: Other attributes of the SVG element.
        """
        if ink is not None:
            attributes |= {"class_": f"bv-{ink}", "fill": getattr(LIGHT, ink)}
        size = None if size is None else px(size)
        element = make_text(text, size, px(x), px(y), **attributes)
        (self.elements if into is None else into).append(element)

    def heading(self, text: str) -> None:
        """Write a bold heading below the cursor, and move the cursor to its baseline.

        A heading that is wider than the page is truncated.
        """
        size = self.style.letters.heading
        self.y += 0.875 * size
        line = truncate_text(text, size * BOLD, self.right - self.left)
        self.text(line, self.left, self.y, size, font_weight="bold")

    def path(self, path: str, **look: Any) -> None:
        """Draw a path, unless it is empty."""
        if path:
            self.elements.append(make_path(path, **look))

    def path_behind(self, path: str, **look: Any) -> None:
        """Draw a path behind all elements already on the page."""
        self.elements.insert(0, make_path(path, **look))

    def circle(self, x: float, y: float, radius: float, **look: Any) -> None:
        """Draw a circle."""
        self.elements.append(make_circle(px(x), px(y), radius, **look))

    def rule(self, path: str) -> None:
        """Draw a thin line along a path."""
        self.path(path, fill="none", stroke=LIGHT.quiet, stroke_width=0.8, class_="bv-rule")

    def line(self, path: str, ink: str, width: float = 1, **look: Any) -> None:
        """Draw a line of a graph.

        Args:
            path: Path of the line.
            ink: ``grid`` for the grid-line color, or ``mark`` for the text color.
            width: Width of the line.
            look: Other attributes of the SVG element.
        """
        color = LIGHT.grid if ink == "grid" else LIGHT.text
        stroke = {"stroke": color, "stroke_width": width, "fill": "none", "class_": f"bv-{ink}"}
        self.path(path, **stroke, **look)

    def paragraph(self, text: str, size: float, *, ink: str = "quiet", lines: int = 2) -> None:
        """Write wrapped text below the cursor, and move the cursor below the text.

        Args:
            text: The text. Truncated if it needs more than ``lines`` lines.
            size: Font size.
            ink: Color of the text; see :meth:`text`.
            lines: Maximum number of lines.
        """
        width = self.right - self.left
        for line in wrap_text(
            text, width, max_lines=lines, measure=lambda part: text_width(part, size)
        ):
            self.y += size * 1.35
            self.text(line, self.left, self.y - size * 0.3, size, ink=ink)

    def fill(self, paint: Paint) -> str:
        """Return the value of the SVG attribute ``fill`` for a paint.

        If the paint has several bands, a gradient made of them is added to ``definitions``. The
        returned value then refers to the gradient.
        """
        if len(paint.bands) == 1:
            return paint.main
        name = f"{self.ids}{paint.name}"
        if name not in self.definitions:
            self.definitions[name] = make_gradient(name, paint.bands)
        return f"url(#{name}) {paint.main}"

    def length(self, units: float) -> str:
        """Convert a length in page units to text.

        The text is in mm if the page has a physical size, and otherwise in px.
        """
        if self.style.millimeters is None:
            return f"{units:g} px"
        return f"{units / self.style.width * self.style.millimeters:.2g} mm"

    def cause_boxes(self, path: str, label: str) -> None:
        """Draw idle-time boxes in the color of a cause, with the cause's hatch on top.

        Args:
            path: SVG path of the boxes.
            label: Label of the cause, a key of ``CAUSES``.
        """
        name, color = f"{self.ids}cause-{label}", CAUSES[label]
        if name not in self.definitions:
            hatch = CAUSE_HATCHES[label]
            self.definitions[name] = make_cause_hatch(name, hatch, hatch.choose_ink(color))
        pale = "bv-pale" if measure_luminance(color) > _PALE else None
        self.path(path, fill=color, class_=pale)
        self.path(path, fill=f"url(#{name})")

    def hatch(self) -> str:
        """Return the value of the SVG attribute ``fill`` for bubbles.

        On the first call, the bubble hatch is added to ``definitions``.
        """
        name = f"{self.ids}bubble"
        if name not in self.definitions:
            self.definitions[name] = make_bubble_hatch(name)
        return f"url(#{name}) {LIGHT.band}"

    @property
    def height(self) -> float:
        """Height of the page content, including margins, rounded up to whole page units."""
        return math.ceil(self.y + max(self.style.margin * 0.75, 1))

    def svg(self) -> str:
        """Return the page as an SVG document.

        Unless the style specifies a height, the document is as tall as its content.
        """
        style = self.style
        width, height = style.width, px(style.height or self.height)
        printed_size = None
        if style.millimeters is not None:
            height_mm = px(height / width * style.millimeters)
            printed_size = f"{px(style.millimeters)}mm", f"{height_mm}mm"
        return write_document(
            self.elements,
            [definition for _, definition in sorted(self.definitions.items())],
            size=(px(width), height),
            printed_size=printed_size,
            font=style.font,
            css=_DARK_SHEET if style.dark else "",
            title=self.title,
            description=self.description,
        )


def draw_page(style: PictureStyle, draw: Callable[[PictureStyle], Page]) -> Page:
    """Draw a page with rows as tall as the page height allows.

    The row height is extrapolated from two trial pages, and then reduced until the page fits.

    Args:
        style: The style. If the style specifies no page height, the page is drawn once, with the
            style's row heights.
        draw: Function that draws the page in a given style. May be called several times.

    Raises:
        UsageError: The page would be too tall even with labels in the minimum font size.
    """
    target_height = style.height
    if target_height is None:
        return draw(style)
    min_label = style.min_label_size
    style = replace(style, letters=replace(style.letters, min_label=min_label))
    # The height of all other parts does not depend on the row height.
    row = 0.8 * min_label
    trial_page, taller_page = (draw(style.with_rows(height)) for height in (row, 2 * row))
    if trial_page.height > target_height:
        raise _make_height_error(style, trial_page.height)
    growth = taller_page.height - trial_page.height
    row *= 1 + (target_height - trial_page.height) / max(growth, 1)
    page = draw(style.with_rows(row))
    while page.height > target_height:
        row -= 0.25
        page = draw(style.with_rows(row))
    return page


def _make_height_error(style: PictureStyle, min_height: float) -> UsageError:
    """Return the error to raise for a page height that is too small.

    Args:
        style: The style with the requested height.
        min_height: Minimum height of the page, in page units.
    """
    mm = style.mm_per_unit
    height_mm, min_height_mm = (style.height or 0) * mm, math.ceil(min_height * mm)
    return UsageError(
        f"--style height={height_mm:.4g}mm: the minimum height with labels of {MIN_POINTS:g} pt is "
        f"{min_height_mm}mm; use that, or draw fewer rows with --stages or --rows stage"
    )
