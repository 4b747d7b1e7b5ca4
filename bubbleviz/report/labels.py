"""Labels: how sentences call operations, ranks and times."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.ratios import ratio_definitions
from bubbleviz.model.columns import NONE
from bubbleviz.model.grouping import CodedTexts, coded_texts
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import capitalised, counted, listed, not_option, one_line, rank_name
from bubbleviz.report.measure import is_idle_elsewhere, name_measure
from bubbleviz.report.methods import with_source
from bubbleviz.report.report import Report

#: Precedes the rows, and the advice, of ranks that the first advice is about.
MARK = "►"
#: Characters of a range's name in a sentence.
_LONGEST_NAME = 60
#: Maximum number of ranks that a sentence lists.
_MAX_RANKS = 3


def operation_label(report: Report, row: int) -> str:
    """Return the name of an operation: ``F3``, with its chunk where ranks have several."""
    operations = report.operations
    return _label(
        int(operations.phase[row]),
        int(operations.microbatch[row]),
        int(operations.second_microbatch[row]),
        int(operations.chunk[row]) if _has_chunks(report) else NONE,
    )


def operation_labels(report: Report) -> CodedTexts:
    """Return the names of all operations, by row."""
    operations, several = report.operations, _has_chunks(report)
    chunk = operations.chunk if several else np.full(len(operations), NONE, np.int64)
    return coded_texts(
        _label, operations.phase, operations.microbatch, operations.second_microbatch, chunk
    )


def _has_chunks(report: Report) -> bool:
    """Return whether any rank has several chunks."""
    return bool((report.operations.chunk > 0).any())


def _label(phase: int, first: int, second: int, chunk: int) -> str:
    numbers = ";".join(str(number) for number in (first, second) if number >= 0)
    where = f" of chunk {chunk}" if chunk >= 0 else ""
    return f"{Phase(phase).label}{numbers}{where}"


def rank_label(report: Report, rank: int) -> str:
    """Return the name of a rank in a sentence: its stage where no other rank has that stage."""
    stage = report.ranks[rank].stage
    alone = stage is not None and sum(r.stage == stage for r in report.ranks) == 1
    return f"stage {stage}" if alone else numbered_rank(report, rank)


def numbered_rank(report: Report, rank: int) -> str:
    """Return the number of a rank in its job, and where it is: ``rank 6 (node1 GPU 1)``."""
    own = report.ranks[rank]
    return rank_name(own.global_rank, own.index, own.label)


def name_ranks(report: Report, ranks: Sequence[int]) -> str:
    """Return the names of ranks in a sentence: all of one, or the first numbers of several.

    Args:
        report: Report of the run.
        ranks: Places of the ranks in the report, at least one.
    """
    if len(ranks) == 1:
        return numbered_rank(report, ranks[0])
    are_numbered = all(report.ranks[rank].global_rank is not None for rank in ranks)
    numbers = listed([str(number) for number in rank_numbers(report, ranks)], _MAX_RANKS)
    return f"ranks {numbers}{'' if are_numbered else ' in pipeline order'}"


def rank_numbers(report: Report, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of ranks in their job, in ascending order."""
    return tuple(sorted(report.ranks[rank].number for rank in ranks))


def subject(label: str) -> str:
    """Return the name of a rank at the beginning of a sentence; names of hosts stay as they are."""
    return capitalised(label) if label.startswith(("rank ", "stage ")) else label


def shortened(name: str) -> str:
    """Return a name short enough for a sentence."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def in_ms(time_ns: int) -> str:
    """Return a time in milliseconds."""
    return f"{time_ns / 1e6:,.3f} ms"


# The caption of a picture: one sentence on what it shows, and a note with the definitions.


def figure_caption(
    report: Report, iterations: Sequence[Iteration], rows: int, *, has_numbers: bool | None = None
) -> tuple[str, str]:
    """Return the caption of a timeline: a sentence, and a note of several, which may be empty.

    Args:
        report: any report.
        iterations: those that are drawn, at least one.
        rows: number of rows that are drawn.
        has_numbers: whether boxes have numbers, or None if that is unknown.
    """
    return _sentence(report, iterations, rows), " ".join(_note(report, has_numbers))


def _sentence(report: Report, iterations: Sequence[Iteration], rows: int) -> str:
    count = len(iterations)
    noun = report.iteration_noun
    what = f"One {noun}" if count == 1 else counted(count, noun)
    first = iterations[0]
    ran = report.schedule
    name = "" if ran is None or ran.name is None else f" of the schedule {one_line(ran.name, 60)}"
    stages = {rank.stage for rank in report.ranks} - {None}
    whole = report.no_pipeline is None and len(stages) > 1
    where = counted(len(stages), "pipeline stage") if whole else counted(rows, "GPU")
    microbatches = {it.microbatches for it in iterations} - {None}
    each = ""
    if len(microbatches) == 1:
        each = f" with {counted(microbatches.pop() or 0, 'microbatch', 'microbatches')}"
    ratio = first.ratios.get(report.headline)
    share = None if ratio is None or len(iterations) > 1 else ratio.value
    if share is None:
        spread = report.summary.bubble_ratio.get(report.headline)
        share = None if spread is None else spread.mean
    measured = ""
    if share is not None:
        whose = "its" if count == 1 else "their"
        idle = "idle between operations" if is_idle_elsewhere(report) else "idle"
        measured = f"; {100 * share:.1f} % of {whose} time is {'bubble' if whole else idle}"
    return f"{what}{name} on {where}{each}{measured}."


#: What numbers in boxes mean, as a clause, by whether boxes have numbers.
_NUMBERS = {
    True: "; the number in a box is its microbatch",
    False: "",
    None: "; numbers in boxes, if there are any, are microbatches",
}


def _note(report: Report, has_numbers: bool | None) -> Iterator[str]:
    definition = next((d for d in ratio_definitions() if d.name == report.headline), None)
    if definition is not None:
        yield f"{capitalised(name_measure(report).name)}: {with_source(definition.definition)}."
    yield f"Boxes are operations, to scale{_NUMBERS[has_numbers]}."
    for restriction in report.restrictions:
        yield f"{capitalised(restriction.text)}."


# Paths as published: relative to the directory where the command ran, not to the root.


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


# Limitations, as people read them.


def limitation_lines(report: Report, most: int = 12) -> list[str]:
    """Return the limitations of a report, one line per reason, with paths as published.

    Args:
        report: any report.
        most: lines at most; the last one says how many more there are.
    """
    same: dict[str, list[Limitation]] = {}
    for entry in with_relative_paths(report).limitations:
        same.setdefault(entry.reason, []).append(entry)
    lines = []
    for reason, entries in same.items():
        subjects = one_line("; ".join(dict.fromkeys(entry.what for entry in entries)), 160)
        count = sum(entry.count for entry in entries)
        lines.append(f"{subjects}{f' ({count:,})' if count != 1 else ''}: {one_line(reason, 400)}")
    if len(lines) > most:
        lines[most:] = [f"and {len(lines) - most} more with -o report.json"]
    return lines
