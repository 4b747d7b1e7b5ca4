"""Hatches: how a page fills idle time, in all of a picture or by cause."""

from __future__ import annotations

from typing import Any

import drawsvg

from bubbleviz.render.palette import LIGHT, Hatch


def bubble_hatch(name: str) -> Any:
    """Return the pattern of bubbles, which is dark on a dark screen."""
    pattern = drawsvg.Pattern(5, 5, patternTransform="rotate(45)", id=name)
    pattern.append(drawsvg.Rectangle(0, 0, 5, 5, fill=LIGHT.band, class_="bv-band"))
    line = {"stroke": LIGHT.hatch, "stroke_width": 0.8, "class_": "bv-hatch"}
    pattern.append(drawsvg.Line(2.5, 0, 2.5, 5, **line))
    return pattern


def hatched(name: str, colour: str, hatch: Hatch) -> Any:
    """Return the pattern of the lines of a hatch, a square tile that is turned."""
    tile, ink = hatch.spacing, hatch.ink(colour)
    pattern = drawsvg.Pattern(tile, tile, patternTransform=f"rotate({hatch.angle})", id=name)
    middle = tile / 2
    if hatch.dots:
        pattern.append(drawsvg.Circle(middle, middle, hatch.line, fill=ink))
        return pattern
    lines = f"M{middle} 0V{tile}" if hatch.line else ""
    lines += f"M0 {middle}H{tile}" if hatch.crossed else ""
    if lines:
        pattern.append(drawsvg.Path(lines, stroke=ink, stroke_width=hatch.line, fill="none"))
    return pattern
