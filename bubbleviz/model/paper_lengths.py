"""Parsing of lengths on paper, such as ``89mm``, ``8.9cm``, ``3.5in`` and ``252pt``."""

from __future__ import annotations

import re

from bubbleviz.errors import UsageError

_FORM = re.compile(r"\s*([0-9]{1,5}(?:\.[0-9]{1,6})?)\s*(mm|cm|in|pt)\s*")
_MM = {"mm": 1.0, "cm": 10.0, "in": 25.4, "pt": 25.4 / 72}
#: Minimum and maximum picture width in mm: a small figure, and the long side of an A0 poster.
MIN_WIDTH_MM, MAX_WIDTH_MM = 40.0, 1189.0


def parse_millimeters(text: str, option: str, min_mm: float = MIN_WIDTH_MM) -> float:
    """Parse a length such as ``89mm`` or ``3.5in``, and return it in millimeters.

    The units are mm, cm, in (25.4 mm) and pt (1/72 in).

    Args:
        text: Text entered by the user.
        option: Command-line option that takes the text, used in messages.
        min_mm: Minimum length in mm. The maximum is ``MAX_WIDTH_MM``.

    Raises:
        UsageError: The text is not a length, or the length is out of range.
    """
    quoted = repr(text[:60])
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{option} {quoted}: must be a length with a unit, such as 89mm (or cm, in, pt)"
        )
    length = float(match[1]) * _MM[match[2]]
    if not min_mm <= length <= MAX_WIDTH_MM:
        raise UsageError(
            f"{option} {quoted}: must be between {min_mm:g} and {MAX_WIDTH_MM:g} mm; one column is "
            "about 89mm, two are 183mm"
        )
    return length
