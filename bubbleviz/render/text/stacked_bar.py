"""A stacked bar in a terminal: the parts of a whole beside each other, and their legend."""

from __future__ import annotations

from collections.abc import Sequence

from bubbleviz.model.values import frozen
from bubbleviz.render.palette import BLACK, WHITE, luminance, mix
from bubbleviz.render.text.display import Display, Line, Span, flowing

#: Luminance of colours that are too near to white, or to black.
_PALE, _DARK = 0.75, 0.07
#: Of parts in order, where there is no colour.
_SHADES = "█▒░▓▚▄▞▀▐▌"


@frozen
class BarPart:
    """A part of a bar.

    Attributes:
        name: in the legend.
        share: of anything; the parts' sum is the bar's length.
        shown: its share as the legend prints it.
        colour: as in ``#397af2``.
    """

    name: str
    share: float
    shown: str
    colour: str


def stacked_bar(parts: Sequence[BarPart], display: Display) -> list[Line]:
    """Return the bar and its legend, without parts that the legend would print as nothing."""
    parts = [part for part in parts if any(digit in part.shown for digit in "123456789")]
    if not parts:
        return []
    glyphs = _glyphs(parts, display)
    colours = [legible(part.colour) if display.colour else "" for part in parts]
    lengths = _lengths([part.share for part in parts], display.text_width)
    bar = tuple(
        Span(glyph * length, colour)
        for glyph, colour, length in zip(glyphs, colours, lengths, strict=True)
        if length
    )
    legend = [
        (Span(glyph, colour), Span(f" {part.name} {part.shown}"))
        for part, glyph, colour in zip(parts, glyphs, colours, strict=True)
    ]
    return [bar, *flowing(legend, display)]


def _glyphs(parts: Sequence[BarPart], display: Display) -> list[str]:
    if display.unicode:
        count = len(parts)
        return (
            ["█"] * count if display.colour else [_SHADES[n % len(_SHADES)] for n in range(count)]
        )
    taken: list[str] = []
    for part in parts:
        letters = (letter for letter in part.name.upper() if letter.isascii() and letter.isalpha())
        taken.append(next((letter for letter in letters if letter not in taken), "#"))
    return taken


def legible(colour: str) -> str:
    """Return a colour that is seen on a light terminal and on a dark one."""
    if luminance(colour) > _PALE:
        return mix(colour, BLACK, 0.12)
    return mix(colour, WHITE, 0.25) if luminance(colour) < _DARK else colour


def _lengths(shares: Sequence[float], width: int) -> list[int]:
    """Return the length of each part; those that would be none but one rounding are one cell."""
    total = sum(shares)
    lengths, used, upto = [], 0, 0.0
    for share in shares:
        upto += share
        end = round(upto / total * width) if total else 0
        lengths.append(max(end - used, 0))
        used = max(end, used)
    for at, share in enumerate(shares):
        longest = max(range(len(lengths)), key=lambda place: lengths[place])
        if share > 0 and lengths[at] == 0 and lengths[longest] > 2:
            lengths[at], lengths[longest] = 1, lengths[longest] - 1
    return lengths
