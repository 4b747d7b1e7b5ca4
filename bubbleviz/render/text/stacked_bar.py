"""A stacked bar for the terminal: side-by-side segments followed by a legend."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.render import palette
from bubbleviz.render.document import Line, Span
from bubbleviz.render.text.terminal import Display, flow_entries

#: Luminance above which a colour is too close to white, and below which too close to black.
_PALE, _DARK = 0.75, 0.07
#: Characters of the parts, in order. Adjacent parts also look different without colours.
_SHADES = "█▒░▓▚▄▞▀▐▌"


def draw_stacked_bar(parts: Sequence[tuple[str, float, str, str]], display: Display) -> list[Line]:
    """Return the bar and its legend, without parts that the legend would print as zero.

    Each part has at least one character. Without any part, no lines are returned.

    Args:
        parts: Name, share, text of the share in the legend, and colour as ``#397af2``.
        display: The display to fit.
    """
    parts = [part for part in parts if any(digit in part[2] for digit in "123456789")]
    if not parts:
        return []
    glyphs = _choose_glyphs([name for name, *_ in parts], display)
    colours = [make_legible(colour) if display.colour else "" for *_, colour in parts]
    edges = np.cumsum([0.0, *(fraction for _, fraction, *_ in parts)])
    lengths = np.diff(np.round(edges / edges[-1] * display.text_width)).astype(np.int64)
    # Each part has at least one cell; the longest part makes up for it.
    lengths[lengths.argmax()] -= np.count_nonzero(lengths == 0)
    segments = zip(glyphs, colours, np.maximum(lengths, 1).tolist(), strict=True)
    bar = tuple(Span(glyph * length, colour) for glyph, colour, length in segments)
    legend = []
    for (name, _, fraction, _), glyph, colour in zip(parts, glyphs, colours, strict=True):
        legend.append((Span(glyph, colour), Span(f" {name} {fraction}")))
    return [bar, *flow_entries(legend, display)]


def _choose_glyphs(names: Sequence[str], display: Display) -> list[str]:
    """Return a character for each part: a shade, or in ASCII a letter.

    The letter is the first letter of the part's name that no earlier part uses, or ``#`` if all its
    letters are used.
    """
    if display.unicode:
        return [_SHADES[number % len(_SHADES)] for number in range(len(names))]
    glyphs: list[str] = []
    for name in names:
        letters = (letter for letter in name.upper() if letter.isascii() and letter.isalpha())
        glyphs.append(next((letter for letter in letters if letter not in glyphs), "#"))
    return glyphs


def make_legible(colour: str) -> str:
    """Return a colour, darkened if it is nearly white, or lightened if it is nearly black."""
    if palette.measure_luminance(colour) > _PALE:
        return palette.mix(colour, palette.BLACK, 0.14)
    return (
        palette.mix(colour, palette.WHITE, 0.2)
        if palette.measure_luminance(colour) < _DARK
        else colour
    )
