"""Make the paths in a report relative to the current directory before they are published."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.texts import escape_leading_dash, format_count, to_one_line
from bubbleviz.report.report import Report

ReportT = TypeVar("ReportT", bound=Report)


def make_relative(path: str) -> str:
    """Return a path relative to the current directory.

    A path that is already relative is returned unchanged. If the path cannot be made relative, only
    its file name is returned.
    """
    if not Path(path).is_absolute():
        return path
    try:
        return os.path.relpath(path)
    except (OSError, ValueError):  # the directory is gone, or on another drive
        return Path(path).name


def make_paths_relative(report: ReportT) -> ReportT:
    """Return a copy of a report with all paths relative to the current directory.

    Paths appear in profiles, limitations and the command line. If a profile could not be read, its
    path appears only at the start of its limitation.
    """
    paths = {profile.path for profile in report.profiles}
    # Only the start of a reason that has a colon can be the path of a file without a profile.
    reasons = [entry.reason for entry in report.limitations if ": " in entry.reason]
    reason_starts = {reason.split(": ", 1)[0] for reason in reasons}
    profile_starts = tuple(f"{path} " for path in paths)
    paths |= {start for start in reason_starts if not start.startswith(profile_starts)}
    published = {path: make_relative(path) for path in paths if Path(path).is_absolute()}
    report = replace(report, command=_make_command_relative(report.command))
    return _replace_paths(report, published) if published else report


def _make_command_relative(command: str) -> str:
    """Make the absolute paths in a command line relative, including those in option values.

    A text that is not a valid command line is returned unchanged.
    """
    try:
        words = shlex.split(command)
    except ValueError:  # in reports created with Python, the text may not be a command line
        return command
    return shlex.join(map(_make_word_relative, words))


def _make_word_relative(word: str) -> str:
    if word.startswith("-"):
        option, sign, value = word.partition("=")
        return f"{option}{sign}{make_relative(value)}"
    return escape_leading_dash(make_relative(word))


def _replace_paths(report: ReportT, published: Mapping[str, str]) -> ReportT:
    """Replace the paths in the profiles and limitations of a report.

    Args:
        report: The report.
        published: Relative paths, keyed by the absolute paths in the report.
    """
    # A pattern of thousands of paths takes seconds to compile, but few paths occur in the texts.
    text = "\n".join(f"{entry.what}\n{entry.reason}" for entry in report.limitations)
    longest_first = sorted((path for path in published if path in text), key=len, reverse=True)
    alternatives = "|".join(map(re.escape, longest_first))
    pattern = re.compile(rf"(?<![^\s(])(?:{alternatives})(?=$|[\s:;,)])")

    def replace_all(text: str) -> str:
        return pattern.sub(lambda match: published[match[0]], text) if alternatives else text

    limitations = (
        replace(entry, what=replace_all(entry.what), reason=replace_all(entry.reason))
        for entry in report.limitations
    )
    return replace(
        report,
        profiles=tuple(replace(p, path=make_relative(p.path)) for p in report.profiles),
        limitations=tuple(limitations),
    )


def list_limitation_lines(
    report: Report, max_lines: int = 12, *, without: Collection[LimitationKind] = ()
) -> list[str]:
    """Return a report's limitations, one line per reason, with relative paths.

    A line contains the subjects, the number of affected items unless it is 1, and the reason, for
    example ``kernels; copies (12): reason``. If several profiles have the same limitation, the
    number of profiles follows the reason. Long texts are shortened.

    Args:
        report: The report.
        max_lines: Maximum number of reasons to list. If there are more, an additional line says how
            many were omitted.
        without: Kinds of limitations to leave out.
    """
    report = make_paths_relative(report)
    paths = {profile.path for profile in report.profiles}
    of_reason: dict[tuple[bool, str], list[tuple[str, Limitation]]] = {}
    for entry in report.limitations:
        if entry.kind not in without:
            path, reason = _split_path(entry.reason, paths)
            of_reason.setdefault((path != "", reason), []).append((path, entry))
    lines = []
    for (_, reason), entries in of_reason.items():
        subjects = to_one_line("; ".join(dict.fromkeys(entry.what for _, entry in entries)), 160)
        total = sum(entry.count for _, entry in entries)
        times = f" ({total:,})" if total != 1 else ""
        text = _name_profiles(reason, list(dict.fromkeys(path for path, _ in entries)))
        lines.append(f"{subjects}{times}: {to_one_line(text, 400)}")
    if len(lines) > max_lines:
        lines[max_lines:] = [f"and {len(lines) - max_lines} more (all of them with -o report.json)"]
    return lines


def _split_path(reason: str, paths: Collection[str]) -> tuple[str, str]:
    """Split the reason of a limitation into the path of a profile and the remaining text.

    If the reason does not start with the path of a profile and a space, the path is "".
    """
    end = reason.find(" ")
    while end >= 0:
        if reason[:end] in paths:
            return reason[:end], reason[end + 1 :]
        end = reason.find(" ", end + 1)
    return "", reason


def _name_profiles(reason: str, paths: Sequence[str]) -> str:
    """Return a reason with the path of its profile, or the first path and the number of others."""
    path, *others = paths
    if others:
        return f"{reason} ({path} and {format_count(len(others), 'other file')})"
    return f"{path} {reason}".lstrip()
