"""Draws a stacked bar in the terminal: segments side by side, followed by a legend."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.render import palette
from bubbleviz.render.document import Line, Span
from bubbleviz.render.text.terminal import Display, flow_entries

#: Luminance above which a color is too close to white, and below which it is too close to black.
_PALE, _DARK = 0.75, 0.07
#: Fill characters of the parts, in order, so that adjacent parts differ even without colors.
_SHADES = "█▒░▓▚▄▞▀▐▌"


def draw_stacked_bar(parts: Sequence[tuple[str, float, str, str]], display: Display) -> list[Line]:
    """Return the lines of a stacked bar and its legend.

    The bar is as wide as the sentences on the terminal. Each segment has at least one character.
    Parts whose share would be printed as zero are left out. If there are no parts, no lines are
    returned.

    Args:
        parts: (name, share, text of the share, color) of each part. The legend shows the name and
            the text. The color has the form ``#397af2``.
        display: The terminal.
    """
    parts = [part for part in parts if any(digit in part[2] for digit in "123456789")]
    if not parts:
        return []
    glyphs = _choose_glyphs([name for name, *_ in parts], display)
    colors = [make_legible(color) if display.color else "" for *_, color in parts]
    edges = np.cumsum([0.0, *(fraction for _, fraction, *_ in parts)])
    lengths = np.diff(np.round(edges / edges[-1] * display.text_width)).astype(np.int64)
    # Segments of length 0 are extended to one cell, and the longest segment is shortened to make
    # room.
    lengths[lengths.argmax()] -= np.count_nonzero(lengths == 0)
    segments = zip(glyphs, colors, np.maximum(lengths, 1).tolist(), strict=True)
    bar = tuple(Span(glyph * length, color) for glyph, color, length in segments)
    legend = []
    for (name, _, fraction, _), glyph, color in zip(parts, glyphs, colors, strict=True):
        legend.append((Span(glyph, color), Span(f" {name} {fraction}")))
    return [bar, *flow_entries(legend, display)]


def _choose_glyphs(names: Sequence[str], display: Display) -> list[str]:
    """Return the fill character of each part: a shade, or a letter on an ASCII-only terminal.

    The letter is the first one in the part's name that no earlier part uses, in upper case. If all
    letters of the name are already used, the character is ``#``.
    """
    if display.unicode:
        return [_SHADES[number % len(_SHADES)] for number in range(len(names))]
    glyphs: list[str] = []
    for name in names:
        letters = (letter for letter in name.upper() if letter.isascii() and letter.isalpha())
        glyphs.append(next((letter for letter in letters if letter not in glyphs), "#"))
    return glyphs


def make_legible(color: str) -> str:
    """Return a color that is legible on a terminal.

    A color that is nearly white is darkened, a color that is nearly black is lightened, and all
    other colors are returned unchanged.
    """
    if palette.measure_luminance(color) > _PALE:
        return palette.mix(color, palette.BLACK, 0.14)
    return (
        palette.mix(color, palette.WHITE, 0.2)
        if palette.measure_luminance(color) < _DARK
        else color
    )
