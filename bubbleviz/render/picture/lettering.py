"""Estimates the width of text in a picture. The exact width depends on the viewer's fonts."""

from __future__ import annotations

import unicodedata

from bubbleviz.render.wrapping import truncate_to_width

#: Font families of pictures, in order of preference.
FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
#: Width of bold letters relative to regular letters.
BOLD = 1.12
#: Characters, keyed by their advance width relative to the font size.
#: The advance width is the maximum of the widths in DejaVu Sans and Arial.
_CHARACTERS = {
    0.32: "'ijlI ,.·\u00a0",
    0.36: "/:;\\|-f",
    0.42: "()[]!tr",
    0.53: '"*`Jsz',
    0.58: "cL?_\u2013k",
    0.64: "vxyaeoFT$0123456789bdghnpqu{}µ",
    0.69: "EKPSVYABXZ",
    0.79: "CRUNHDG&OQ",
    0.87: "w#+<=>^~±→\u00d7M",
    1.02: "%mW@…",
}
_ADVANCES = {
    character: advance for advance, characters in _CHARACTERS.items() for character in characters
}


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return an upper estimate of the text width in common sans-serif fonts, in page units."""
    return size * sum(map(_get_advance, text)) * (BOLD if bold else 1.0)


def _get_advance(character: str) -> float:
    """Return the advance width of a character relative to the font size.

    For characters missing from the table, the width is estimated: 1.3 for wide East Asian
    characters, 0.8 for upper case, and 0.7 for all others.
    """
    advance = _ADVANCES.get(character)
    if advance is not None:
        return advance
    if unicodedata.east_asian_width(character) in "WF":
        return 1.3
    return 0.8 if character.isupper() else 0.7


def truncate_text(text: str, size: float, width: float) -> str:
    """Truncate text that is wider than ``width``, ending it with an ellipsis.

    Args:
        text: The text.
        size: Font size in page units.
        width: Maximum width in page units, including the ellipsis.
    """
    return truncate_to_width(text, width, lambda part: text_width(part, size))
