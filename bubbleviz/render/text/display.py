"""What an output can show, and lines of styled words laid out for it, without loading rich."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from unicodedata import combining, east_asian_width

from bubbleviz.model.values import frozen

#: Sentences are easier to read in lines that are not endless.
_LONGEST_LINE = 100
#: What stands for a sign where the output has ASCII alone, dashes and quotation marks among them.
_ASCII = (
    str.maketrans(
        "\u2026\u00b7\u00d7\u00b5\u2013\u2500\u2212\u2022\u201c\u201d\u2018\u2019",
        "~.xu---*\"\"''",
    )
    | str.maketrans({"≥": ">=", "≤": "<=", "±": "+-"})
    | str.maketrans("▁▂▃▄▅▆▇█", ".:-=+*%#")
)
#: Blanks that no line breaks at: between a number and its unit.
_GLUE = re.compile(r"(?<=\d) (?=(?:%|ms|us)(?:\W|$))|(?<=±) (?=\d)")


@frozen
class Display:
    """What an output can show.

    Attributes:
        width: in columns.
        colour: whether it shows colours.
        unicode: whether it shows more than ASCII, block characters included.
    """

    width: int = 80
    colour: bool = False
    unicode: bool = True

    @property
    def text_width(self) -> int:
        """The width of sentences."""
        return min(self.width, _LONGEST_LINE)

    def shown(self, text: str) -> str:
        """Return a text in characters that the output has."""
        return text if self.unicode else in_ascii(text)


class Span(NamedTuple):
    """A piece of a line in one style, in rich's words: ``bold``, ``#397af2 on #ffffff``."""

    text: str
    style: str = ""


Line = tuple[Span, ...]


def in_ascii(text: str) -> str:
    """Return a text with ASCII for the signs that reports use; others are question marks."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def cell_width(text: str) -> int:
    """Return the columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 1 + (east_asian_width(c) in "WF") for c in text)


def plain_lines(lines: Iterable[Line]) -> str:
    """Return lines as text without styles."""
    return "".join("".join(span.text for span in line).rstrip() + "\n" for line in lines)


def fitting(text: str, width: int) -> str:
    """Return a text of at most so many columns, its end left out."""
    if cell_width(text) <= width:
        return text
    kept = text[: max(width - 1, 0)]
    while kept and cell_width(kept) > width - 1:
        kept = kept[:-1]
    return kept.rstrip() + "…"


def shortened(text: str, width: int) -> str:
    """Return a text of at most ``width`` characters; its middle is left out."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def wrapped(
    text: str, width: int, *, most: int | None = None, hanging: int = 0, whole: bool = False
) -> list[str]:
    """Return a text in lines that break between words alone.

    Args:
        text: on one line.
        width: of a line; a longer word is shortened.
        most: lines; the last one ends with an ellipsis where there are more.
        hanging: blanks in front of each line but the first.
        whole: whether a longer word stays as it is.
    """
    lines: list[str] = []
    line = ""
    for glued in _GLUE.sub("\0", text).split():
        word = glued.replace("\0", " ")
        lead = " " * hanging if lines else ""
        piece = word if whole else fitting(word, width - hanging)
        if line and cell_width(line) + 1 + cell_width(piece) > width:
            lines.append(line)
            line = " " * hanging + piece
        else:
            line = f"{line} {piece}" if line else lead + piece
    lines += [line] if line else []
    if most is not None and len(lines) > most:
        rest = f"{lines[most - 1]} …"
        lines[most - 1 :] = [rest if cell_width(rest) <= width else fitting(rest, width)]
    return lines


def paragraph(
    text: str,
    display: Display,
    *,
    style: str = "",
    lead: str = "",
    lead_style: str = "bold",
    most: int | None = None,
) -> list[Line]:
    """Return a text in lines for a display, its first words in a style of their own.

    Args:
        text: on one line.
        display: where it is shown.
        style: of the text.
        lead: words in front of it.
        lead_style: of these.
        most: lines, as in :func:`wrapped`.
    """
    whole = display.shown(f"{lead} {text}" if lead else text)
    lines = [
        display.shown(line) for line in wrapped(whole, display.text_width, most=most, hanging=2)
    ]
    lead = display.shown(lead)
    styled: list[Line] = [(Span(line, style),) for line in lines]
    if lead and lines and lines[0].startswith(lead):
        styled[0] = (Span(lead, lead_style), Span(lines[0][len(lead) :], style))
    return styled


def flowing(entries: Sequence[Line], display: Display, gap: str = "   ") -> list[Line]:
    """Return entries beside each other in as many lines as they need, none of them parted."""
    lines: list[list[Span]] = []
    used = 0
    for entry in entries:
        width = sum(cell_width(span.text) for span in entry)
        if lines and used + len(gap) + width <= display.width:
            lines[-1] += [Span(gap), *entry]
            used += len(gap) + width
        else:
            lines.append(list(entry))
            used = width
    return [tuple(line) for line in lines]
