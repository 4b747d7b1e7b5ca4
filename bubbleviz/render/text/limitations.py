"""Limitations of a report, a line each."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from bubbleviz.model.texts import one_line
from bubbleviz.render.text.tables import BulletList

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import RenderableType

    from bubbleviz.model.limitations import Limitation
    from bubbleviz.report.report import Report

_MOST_LINES = 12


def limitations(report: Report) -> Iterator[RenderableType]:
    """Yield the limitations, if any."""
    from rich.text import Text

    if not report.limitations:
        return
    yield Text("\nLimitations", style="bold")
    yield BulletList(limitation_lines(report))


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
