"""A stacked bar in a terminal: the parts of a whole beside each other, and their legend."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bubbleviz.model.texts import one_line
from bubbleviz.model.values import frozen
from bubbleviz.render.document import Line, Span
from bubbleviz.render.palette import BLACK, WHITE, luminance, mix
from bubbleviz.render.text.terminal import Display, flowing

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubbleviz.model.limitations import Limitation
    from bubbleviz.report.report import Report


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


# Limitations of a report, a line each.


_MOST_LINES = 12


def limitation_lines(
    report: Report,
    chosen: Sequence[Limitation] | None = None,
    most: int | None = _MOST_LINES,
) -> list[str]:
    """Return the limitations, a line for those of one reason, and no more than people read.

    Args:
        report: any report.
        chosen: some of its limitations; None for all.
        most: lines; None for any number.
    """
    merged: dict[str, tuple[list[str], int]] = {}
    shorter = _shorter_paths(report)
    for entry in report.limitations if chosen is None else chosen:
        what, reason = shorter(entry.what), shorter(entry.reason)
        subjects, count = merged.get(reason, ([], 0))
        if what not in subjects:
            subjects.append(what)
        merged[reason] = (subjects, count + entry.count)
    lines = [
        f"{one_line('; '.join(subjects), 160)}{f' ({count:,})' if count != 1 else ''}: "
        f"{one_line(reason, 400)}"
        for reason, (subjects, count) in merged.items()
    ]
    if most is not None and len(lines) > most:
        lines[most:] = [f"and {len(lines) - most} more in --json"]
    return lines


def _shorter_paths(report: Report) -> Callable[[str], str]:
    """Return a function that shortens the paths of profiles to file names, where these differ."""
    paths = {profile.path for profile in report.profiles}
    folders = {Path(path).parent for path in paths}
    # A profile that could not be read is named only at the head of its refusal.
    heads = {entry.reason.split(": ", 1)[0] for entry in report.limitations}
    paths |= {head for head in heads if Path(head).parent in folders and Path(head).name}
    names = Counter(Path(path).name for path in paths)
    # A pattern of thousands of paths takes seconds to compile; few are in any text.
    text = "\n".join(f"{entry.what}\n{entry.reason}" for entry in report.limitations)
    short = {
        path: Path(path).name for path in paths if path in text and names[Path(path).name] == 1
    }
    longest_first = "|".join(re.escape(path) for path in sorted(short, key=len, reverse=True))
    pattern = re.compile(rf"(?<!\S)(?:{longest_first})(?=$|[\s:;,)])") if short else None
    return lambda text: pattern.sub(lambda match: short[match[0]], text) if pattern else text
