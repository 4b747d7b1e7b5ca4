"""SVG elements and documents.

This is the only module that uses drawsvg. It imports drawsvg when the first element is made, so
commands that draw nothing avoid the import, which takes 0.1 s.

drawsvg does not escape attributes. Text from profiles may only become the text of an element or of
a title.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any, TypeAlias

from bubbleviz.render.palette import LIGHT, Hatch

#: An element or a definition of drawsvg, which has no types.
Element: TypeAlias = Any


def px(value: float) -> float | int:
    """Return ``value`` rounded to 0.01, as an integer if it has no decimals."""
    rounded = round(float(value), 2)
    return int(rounded) if rounded == int(rounded) else rounded


def box(left: float, top: float, right: float, bottom: float) -> str:
    """Return the path of a box. Boxes that share an edge also share it after rounding."""
    x, y = px(left), px(top)
    width, height = px(round(right, 2) - round(left, 2)), px(bottom - top)
    return f"M{x} {y}h{width}v{height}h{px(-width)}z"


def make_group(**attributes: Any) -> Element:
    """Return an empty group of elements."""
    import drawsvg

    return drawsvg.Group(**attributes)


def make_path(path: str, **attributes: Any) -> Element:
    """Return a path."""
    import drawsvg

    return drawsvg.Path(path, **attributes)


def make_circle(x: float, y: float, radius: float, **attributes: Any) -> Element:
    """Return a circle."""
    import drawsvg

    return drawsvg.Circle(x, y, radius, **attributes)


def make_text(text: str, size: float | None, x: float, y: float, **attributes: Any) -> Element:
    """Return a line of text with its baseline at ``y``.

    Args:
        text: The text.
        size: Font size, or None to inherit it from the group.
        x: Anchor of the text, by default its left edge.
        y: Baseline.
        attributes: Presentation attributes.
    """
    import drawsvg

    return drawsvg.Text(text, size, x, y, **attributes)


def make_gradient(name: str, bands: Iterable[tuple[float, str]]) -> Element:
    """Return the definition of a fill with horizontal bands that have sharp edges.

    Args:
        name: Id of the definition.
        bands: Share of the height and colour of each band, from top to bottom.
    """
    import drawsvg

    gradient = drawsvg.LinearGradient(0, 0, 0, 1, gradientUnits="objectBoundingBox", id=name)
    offset = 0.0
    for fraction, colour in bands:
        gradient.add_stop(px(offset), colour)
        offset += fraction
        gradient.add_stop(px(offset), colour)
    return gradient


def make_bubble_hatch(name: str) -> Element:
    """Return the definition of the hatch of bubbles.

    Args:
        name: Id of the definition.
    """
    import drawsvg

    pattern = drawsvg.Pattern(5, 5, patternTransform="rotate(45)", id=name)
    pattern.append(drawsvg.Rectangle(0, 0, 5, 5, fill=LIGHT.band, class_="bv-band"))
    look = {"stroke": LIGHT.hatch, "stroke_width": 0.8, "class_": "bv-hatch"}
    pattern.append(drawsvg.Line(2.5, 0, 2.5, 5, **look))
    return pattern


def make_cause_hatch(name: str, hatch: Hatch, ink: str) -> Element:
    """Return the definition of the hatch of a cause of idle time: a rotated square tile.

    Args:
        name: Id of the definition.
        hatch: Size and lines of the tile.
        ink: Colour of its lines or dots.
    """
    import drawsvg

    size, middle = hatch.spacing, hatch.spacing / 2
    turned = f"rotate({hatch.angle})"
    pattern = drawsvg.Pattern(size, size, patternTransform=turned, id=name)
    if hatch.dots:
        pattern.append(drawsvg.Circle(middle, middle, hatch.line, fill=ink))
        return pattern
    lines = f"M{middle} 0V{size}" if hatch.line else ""
    if hatch.crossed:
        lines += f"M0 {middle}H{size}"
    if lines:
        look = {"stroke": ink, "stroke_width": hatch.line, "fill": "none"}
        pattern.append(drawsvg.Path(lines, **look))
    return pattern


def write_document(
    elements: Iterable[Element],
    definitions: Iterable[Element],
    *,
    size: tuple[float, float],
    printed_size: tuple[str, str] | None,
    font: str,
    css: str,
    title: str,
    description: str,
) -> str:
    """Return an SVG document on a background in the colour of paper.

    Args:
        elements: The elements, from back to front.
        definitions: The definitions that they refer to.
        size: Width and height in page units.
        printed_size: Width and height with their units, or None if a page unit is a pixel.
        font: Font families.
        css: Style sheet, or "" if there is none.
        title: Title of the document.
        description: Description of the picture for screen readers.
    """
    import drawsvg

    drawing = drawsvg.Drawing(*size, class_="bubbleviz", role="img", font_family=font)
    if printed_size is not None:
        drawing.set_render_size(*printed_size)
    if css:
        drawing.append_css(css)
    drawing.append_title(title)
    drawing.append(drawsvg.Raw(f"<desc>{escape(description, quote=False)}</desc>"))
    for definition in definitions:
        drawing.append_def(definition)
    paper = drawsvg.Rectangle(0, 0, *size, fill=LIGHT.paper, class_="bv-paper")
    drawing.append(paper)
    drawing.extend(elements)
    return str(drawing.as_svg())
