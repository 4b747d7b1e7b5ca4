"""Outcome of reading one profile: its recording, or why there is none."""

from __future__ import annotations

from typing import TypeAlias

from bubbleviz.errors import ProfileError
from bubbleviz.interpret.record import ReadOptions, TimedRecording, record
from bubbleviz.progress import Watch, unwatched

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
