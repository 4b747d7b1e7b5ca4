"""Functions that make SVG elements and documents.

No other module uses drawsvg. The import takes 0.1 s, so drawsvg is imported only when the first
element is made.

drawsvg does not escape attribute values. Text from profiles must therefore be used only as the text
of an element or title.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any, TypeAlias

from bubbleviz.render.palette import LIGHT, Hatch

#: A drawsvg element or definition. The package has no type annotations.
Element: TypeAlias = Any


def px(value: float) -> float | int:
    """Round a coordinate to two decimals. The result is an int if the decimals are zero."""
    rounded = round(float(value), 2)
    return int(rounded) if rounded == int(rounded) else rounded


def box(left: float, top: float, right: float, bottom: float) -> str:
    """Return the SVG path of a rectangle.

    Rectangles that share an edge still share it after rounding.
    """
    x, y = px(left), px(top)
    width, height = px(round(right, 2) - round(left, 2)), px(bottom - top)
    return f"M{x} {y}h{width}v{height}h{px(-width)}z"


def make_group(**attributes: Any) -> Element:
    """Return an empty SVG group."""
    import drawsvg

    return drawsvg.Group(**attributes)


def make_path(path: str, **attributes: Any) -> Element:
    """Return an SVG path element."""
    import drawsvg

    return drawsvg.Path(path, **attributes)


def make_circle(x: float, y: float, radius: float, **attributes: Any) -> Element:
    """Return an SVG circle element."""
    import drawsvg

    return drawsvg.Circle(x, y, radius, **attributes)


def make_text(text: str, size: float | None, x: float, y: float, **attributes: Any) -> Element:
    """Return an SVG text element with one line of text.

    Args:
        text: The text.
        size: Font size, or None to inherit the font size from the group.
        x: The x coordinate of the text anchor. By default, this is the left end of the text.
        y: The y coordinate of the baseline.
        attributes: Other attributes of the SVG element.
    """
    import drawsvg

    return drawsvg.Text(text, size, x, y, **attributes)


def make_gradient(name: str, bands: Iterable[tuple[float, str]]) -> Element:
    """Return the SVG definition of a fill made of horizontal bands with sharp edges.

    Args:
        name: Id of the definition.
        bands: (height, color) of each band, from top to bottom. Heights are fractions of 1.
    """
    import drawsvg

    gradient = drawsvg.LinearGradient(0, 0, 0, 1, gradientUnits="objectBoundingBox", id=name)
    offset = 0.0
    for fraction, color in bands:
        gradient.add_stop(px(offset), color)
        offset += fraction
        gradient.add_stop(px(offset), color)
    return gradient


def make_bubble_hatch(name: str) -> Element:
    """Return the SVG definition of the hatch pattern for bubbles.

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
    """Return the SVG definition of the hatch pattern for a cause of idle time.

    Args:
        name: Id of the definition.
        hatch: Size, rotation and content of the repeated tile.
        ink: Color of the lines or dots.
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
    """Return an SVG document with a paper-colored background.

    Args:
        elements: SVG elements, ordered from back to front.
        definitions: Definitions of the gradients and patterns that the elements refer to.
        size: (width, height) in page units.
        printed_size: (width, height) as strings with units, such as "89mm", or None if page units
            are pixels.
        font: Comma-separated font families.
        css: Style sheet, or "" for none.
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
