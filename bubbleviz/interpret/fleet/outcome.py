"""Outcome of reading one profile: its recording, or why there is none; and of reading several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from bubbleviz.errors import ProfileError
from bubbleviz.interpret.record import ReadOptions, TimedRecording, record
from bubbleviz.interpret.recording import Part
from bubbleviz.interpret.tables.keys import by_clock
from bubbleviz.model.values import frozen
from bubbleviz.progress import Watch, unwatched
from bubbleviz.timing import Step

#: A profile's recording, or why there is none.
Outcome: TypeAlias = "TimedRecording | ProfileError"


def outcome_of(
    path: str,
    options: ReadOptions,
    watch: Watch = unwatched,
) -> Outcome:
    """Return the recording of a profile, or why there is none; see :func:`record`."""
    try:
        return record(path, options, watch)
    except ProfileError as error:
        return error
    except OSError as error:
        return ProfileError(f"{path}: cannot be read ({error.strerror or error})")


@frozen(eq=False)
class FilesRead:
    """What reading some files gave.

    Attributes:
        numbers: of the files, one after the other.
        outcomes: the steps of reading each, or why it cannot be read.
        recordings: one a clock of each, in the order of the files; they may be gathered.
    """

    numbers: tuple[int, ...]
    outcomes: tuple[tuple[Step, ...] | ProfileError, ...]
    recordings: tuple[Part, ...]


def files_read(numbers: Sequence[int], outcomes: Sequence[Outcome]) -> FilesRead:
    """Return what reading some files gave, by the outcome of each."""
    read = [outcome for outcome in outcomes if isinstance(outcome, TimedRecording)]
    return FilesRead(
        tuple(numbers),
        tuple(o.steps if isinstance(o, TimedRecording) else o for o in outcomes),
        tuple(part for outcome in read for part in by_clock(outcome.recording)),
    )
