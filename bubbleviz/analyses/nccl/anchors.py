"""Anchors: instants that a user gives on an event file's clock and on a profile's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bubbleviz.errors import UsageError
from bubbleviz.model.values import frozen
from bubbleviz.sources.nccl.events import EventFile

#: A GPU's clock counts since 1970, a host's since its profiler began.
_GPU_CLOCK_NS = 10**15
#: Differences of times do not grow beyond what a column holds.
_MOST_NS = 1 << 62


@frozen
class Anchor:
    """An instant on an event file's clock and on the profile's.

    Attributes:
        file: path of the event file, or the end of it; None for every one.
        event_ns: on the host's or the GPU's clock of the file.
        profile_ns: on the first profile's clock.
        gpu: whether ``event_ns`` is of the GPU's clock.
    """

    file: str | None
    event_ns: int
    profile_ns: int
    gpu: bool


def anchor_of(text: str) -> Anchor:
    """Return an anchor from ``[FILE:]EVENT=PROFILE_NS``.

    ``EVENT`` is a ``ts`` as it stands in the file (microseconds), or a ``StartGpuClk``.

    Raises:
        UsageError: it is not an anchor.
    """
    left, equals, right = text.rpartition("=")
    file, _, event = left.rpartition(":")
    try:
        if not equals:
            raise ValueError
        profile_ns = int(right)
        gpu = event.strip().isdigit() and int(event) >= _GPU_CLOCK_NS
        event_ns = int(event) if gpu else round(float(event) * 1000)
        if max(abs(event_ns), abs(profile_ns)) > _MOST_NS:
            raise ValueError
    except (ValueError, OverflowError):
        raise UsageError(
            f"--anchor {text[:60]!r}: give [FILE:]EVENT=PROFILE_NS, where EVENT is a ts of the "
            "file, in microseconds, or a StartGpuClk"
        ) from None
    return Anchor(file or None, event_ns, profile_ns, gpu)


def by_file(files: Sequence[EventFile], anchors: Sequence[Anchor]) -> list[list[Anchor]]:
    """Return the anchors of each file.

    Raises:
        UsageError: an anchor names no file, though there are several, or an unknown one.
    """
    if len(files) > 1 and any(anchor.file is None for anchor in anchors):
        raise UsageError(
            f"--anchor: there are {len(files)} event files, each with a clock of its own; say "
            "which, as FILE:EVENT=NS"
        )
    anchors_of: list[list[Anchor]] = [[] for _ in files]
    for anchor in anchors:
        numbers = [
            number
            for number, file in enumerate(files)
            if anchor.file is None or Path(file.path).as_posix().endswith(anchor.file)
        ]
        if not numbers:
            raise UsageError(
                f"--anchor: no event file is named {str(anchor.file)[:60]!r}; give one of them"
            )
        for number in numbers:
            anchors_of[number].append(anchor)
    return anchors_of
