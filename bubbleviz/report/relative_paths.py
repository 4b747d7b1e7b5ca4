"""Paths as published: relative to the directory where the command ran, not to the root."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from bubbleviz.report.report import Report

ReportT = TypeVar("ReportT", bound=Report)


def relative(path: str) -> str:
    """Return a path relative to the current directory; its name where there is no such path."""
    if not Path(path).is_absolute():
        return path
    try:
        return os.path.relpath(path)
    except (OSError, ValueError):  # the directory is gone, or on another drive
        return Path(path).name


def with_relative_paths(report: ReportT) -> ReportT:
    """Return a report whose profiles and limitations name files relative to the current directory.

    A profile that could not be read is named only at the head of its limitation.
    """
    heads = {entry.reason.split(": ", 1)[0] for entry in report.limitations}
    paths = {profile.path for profile in report.profiles} | heads
    shown = {path: relative(path) for path in paths if Path(path).is_absolute()}
    if not shown:
        return report
    longest_first = "|".join(re.escape(path) for path in sorted(shown, key=len, reverse=True))
    pattern = re.compile(rf"(?<![^\s(])(?:{longest_first})(?=$|[\s:;,)])")

    def shorter(text: str) -> str:
        return pattern.sub(lambda match: shown[match[0]], text)

    return replace(
        report,
        profiles=tuple(replace(p, path=relative(p.path)) for p in report.profiles),
        limitations=tuple(
            replace(entry, what=shorter(entry.what), reason=shorter(entry.reason))
            for entry in report.limitations
        ),
    )
