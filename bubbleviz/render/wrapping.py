"""Truncation and wrapping of text to a width: columns of a terminal, or units of a page."""

from __future__ import annotations

import re
from collections.abc import Callable
from unicodedata import combining, east_asian_width

#: Blanks at which a line is not broken: between a number and its unit.
_GLUE = re.compile(r"(?<=\d) (?=(?:%|ms|us)(?:\W|$))|(?<=±) (?=\d)")


def measure_cells(text: str) -> int:
    """Return the number of columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    widths = (1 + (east_asian_width(c) in "WF") for c in text if not combining(c))
    return sum(widths)


def truncate_to_width(
    text: str, width: float, measure: Callable[[str], float] = measure_cells
) -> str:
    """Return a text, with its end replaced by an ellipsis if it is wider than ``width``.

    Args:
        text: The text.
        width: Maximum width.
        measure: Returns the width of a text, by default in columns of a terminal.
    """
    if measure(text) <= width:
        return text
    while text and measure(text + "…") > width:
        text = text[:-1]
    return f"{text.rstrip()}…" if text else ""


def wrap_text(
    text: str,
    width: float,
    *,
    max_lines: int | None = None,
    hanging_indent: int = 0,
    keep_long_words: bool = False,
    measure: Callable[[str], float] = measure_cells,
) -> list[str]:
    """Return a text in lines that are broken between words only.

    Args:
        text: The text, on one line.
        width: Maximum width of a line. A longer word is truncated.
        max_lines: Maximum number of lines, or None for any number. If there are more, the last
            line ends with an ellipsis after a complete word.
        hanging_indent: Number of blanks before each line but the first.
        keep_long_words: Whether words that are wider than a line stay complete.
        measure: Returns the width of a text, by default in columns of a terminal.
    """
    lines: list[str] = []
    line = ""
    indent = " " * hanging_indent
    for token in filter(None, re.split("[ \t\n]+", _GLUE.sub("\0", text))):
        word = token.replace("\0", " ")
        if not keep_long_words:
            word = truncate_to_width(word, width - hanging_indent, measure)
        if not line:
            line = (indent if lines else "") + word
        elif measure(f"{line} {word}") > width:
            lines.append(line)
            line = indent + word
        else:
            line = f"{line} {word}"
    if line:
        lines.append(line)
    if max_lines is not None and len(lines) > max_lines:
        lines[max_lines - 1 :] = [_truncate_line(lines[max_lines - 1], width, measure)]
    return lines


def _truncate_line(line: str, width: float, measure: Callable[[str], float]) -> str:
    """Return as many words of a line as fit before an ellipsis.

    If not even the first word fits, it is cut, or left out if it contains a digit, because a part
    of a number would be another number.

    Args:
        line: The line.
        width: Maximum width, including the ellipsis.
        measure: Returns the width of a text.
    """
    while measure(f"{line} …") > width and " " in line.strip():
        line = line.rpartition(" ")[0]
    truncated = f"{line} …"
    # A part of a number would be a different number.
    if measure(truncated) > width and any(letter.isdigit() for letter in line):
        truncated = "…"
    return truncate_to_width(truncated, width, measure)
