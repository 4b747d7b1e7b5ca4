"""Paths as published: relative to the directory where the command ran, not to the root."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from bubbleviz.model.texts import not_option
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
    """Return a report whose files are named relative to the current directory.

    These are its profiles, those in its limitations, and those of its command line. A profile that
    could not be read is named only at the head of its limitation.
    """
    heads = {entry.reason.split(": ", 1)[0] for entry in report.limitations}
    paths = {profile.path for profile in report.profiles} | heads
    shown = {path: relative(path) for path in paths if Path(path).is_absolute()}
    report = replace(report, command=_relative_command(report.command))
    if not shown:
        return report
    return _with_shown_paths(report, shown)


def _relative_command(command: str) -> str:
    """Return a command line whose words, and values of options, are no absolute paths."""
    try:
        words = shlex.split(command)
    except ValueError:  # a report made in Python may have anything in its place
        return command
    return shlex.join(map(_relative_word, words))


def _relative_word(word: str) -> str:
    if word.startswith("-"):
        option, sign, value = word.partition("=")
        return f"{option}{sign}{relative(value)}"
    return not_option(relative(word))


def _with_shown_paths(report: ReportT, shown: Mapping[str, str]) -> ReportT:
    """Return a report with other paths; ``shown`` gives them by those that it holds."""
    # A pattern of thousands of paths takes seconds to compile; few are in any text.
    text = "\n".join(f"{entry.what}\n{entry.reason}" for entry in report.limitations)
    longest_first = sorted((path for path in shown if path in text), key=len, reverse=True)
    either = "|".join(map(re.escape, longest_first))
    pattern = re.compile(rf"(?<![^\s(])(?:{either})(?=$|[\s:;,)])")

    def shorter(text: str) -> str:
        return pattern.sub(lambda match: shown[match[0]], text) if either else text

    return replace(
        report,
        profiles=tuple(replace(p, path=relative(p.path)) for p in report.profiles),
        limitations=tuple(
            replace(entry, what=shorter(entry.what), reason=shorter(entry.reason))
            for entry in report.limitations
        ),
    )
