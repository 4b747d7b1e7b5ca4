"""Truncates and wraps text to a width, measured in terminal columns or page units."""

from __future__ import annotations

import re
from collections.abc import Callable
from unicodedata import combining, east_asian_width

#: Matches a blank between a number and its unit, where a line must not be broken.
_GLUE = re.compile(r"(?<=\d) (?=(?:%|ms|us)(?:\W|$))|(?<=±) (?=\d)")


def measure_cells(text: str) -> int:
    """Return the number of terminal columns occupied by the text.

    Wide East Asian characters occupy two columns, and combining characters occupy none.
    """
    if text.isascii():
        return len(text)
    widths = (1 + (east_asian_width(c) in "WF") for c in text if not combining(c))
    return sum(widths)


def truncate_to_width(
    text: str, width: float, measure: Callable[[str], float] = measure_cells
) -> str:
    """Truncate text that is wider than ``width``, ending it with an ellipsis.

    The result is "" if there is no space for a character and an ellipsis.

    Args:
        text: The text.
        width: Maximum width, including the ellipsis.
        measure: Function that returns the width of a string, by default in terminal columns.
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
    """Wrap text to lines of a maximum width. Lines are broken only between words.

    A line is not broken between a number and its unit. Text without words yields no lines.

    Args:
        text: The text. Consecutive whitespace is treated as a single blank.
        width: Maximum width of a line.
        max_lines: Maximum number of lines, or None for no limit. If the text needs more lines, the
            last line ends with an ellipsis.
        hanging_indent: Number of blanks at the start of each line except the first.
        keep_long_words: Whether to keep words wider than a line instead of truncating them.
        measure: Function that returns the width of a string, by default in terminal columns.
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
    """Return the line's first words, as many as fit, followed by an ellipsis.

    If not even the first word fits, the word is truncated. A word that contains a digit is left out
    instead, because a truncated number would be a different number.

    Args:
        line: The line.
        width: Maximum width, including the ellipsis.
        measure: Function that returns the width of a string.
    """
    while measure(f"{line} …") > width and " " in line.strip():
        line = line.rpartition(" ")[0]
    truncated = f"{line} …"
    # A truncated number would be a different number.
    if measure(truncated) > width and any(letter.isdigit() for letter in line):
        truncated = "…"
    return truncate_to_width(truncated, width, measure)
