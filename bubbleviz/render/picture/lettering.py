"""Lettering: how wide a text is, before any program has set it, and what of it fits."""

from __future__ import annotations

import unicodedata

#: Advances of characters as shares of the font size: of DejaVu Sans or Arial, the wider one.
_ADVANCES = {
    character: advance
    for advance, characters in (
        (0.28, "'ijl"),
        (0.3, "I"),
        (0.32, " ,.·\u00a0"),
        (0.34, "/:;\\|"),
        (0.36, "-f"),
        (0.39, "()[]"),
        (0.4, "!t"),
        (0.42, "r"),
        (0.46, '"'),
        (0.5, "*`J"),
        (0.53, "sz"),
        (0.56, "cL?_\u2013"),
        (0.58, "k"),
        (0.6, "vxy"),
        (0.62, "aeoFT"),
        (0.64, "$0123456789bdghnpqu{}µ"),
        (0.67, "EKPSVY"),
        (0.69, "ABXZ"),
        (0.73, "CR"),
        (0.76, "UNH"),
        (0.78, "DG&"),
        (0.79, "OQ"),
        (0.82, "w"),
        (0.84, "#+<=>^~±→\u00d7"),
        (0.87, "M"),
        (0.95, "%"),
        (0.99, "mW"),
        (1.02, "@…"),
    )
    for character in characters
}
#: Bold letters are so much wider.
BOLD = 1.12


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return an upper estimate of the width of ``text``, for the usual sans-serif fonts."""
    return size * sum(map(_advance, text)) * (BOLD if bold else 1.0)


def _advance(character: str) -> float:
    known = _ADVANCES.get(character)
    if known is not None:
        return known
    if unicodedata.east_asian_width(character) in "WF":
        return 1.3
    return 0.8 if character.isupper() else 0.7


def fitted(text: str, size: float, width: float) -> str:
    """Return ``text``, cut so that it is at most ``width`` px wide."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…" if text else ""
