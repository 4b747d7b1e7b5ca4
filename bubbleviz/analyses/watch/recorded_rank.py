"""Recorded rank: the newest iterations of one process, as they are written."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

import numpy as np

from bubbleviz.model.columns import NONE
from bubbleviz.sources.recordings.columns import Stretch, joined_stretches
from bubbleviz.sources.recordings.followed_folder import NewIterations
from bubbleviz.sources.recordings.header import Header
from bubbleviz.sources.recordings.session_reader import RecordedSession


class RecordedRank:
    """The newest iterations of one process.

    Args:
        new: its first ones.
        now_s: when they were read, on any clock.

    Attributes:
        header: of its recording.
        host: hostname; "" unknown.
        read_s: when it was last seen to have written.
    """

    def __init__(self, new: NewIterations, now_s: float) -> None:
        if new.part.header is None:
            raise ValueError(f"{new.part.path}: iterations in front of a header")
        self.header: Header = new.part.header
        self.host, self._device, self._run = new.part.host, new.part.device, new.part.run
        self._path = new.part.path
        self._stretch: Stretch | None = None
        self._last = NONE
        self.numbers: tuple[int, ...] = ()
        self.add(new, now_s)

    def add(self, new: NewIterations, now_s: float) -> None:
        """Keep some iterations more; those without a number of their own are counted."""
        iterations = new.stretch.iterations
        numbers = list(self.numbers)
        for number in iterations.number.tolist():
            # Evaluation may count from 0 again, and numbers are to go up.
            self._last = number if number > self._last else self._last + 1
            numbers.append(self._last)
        own = numbers[len(self.numbers) :]
        stretch = replace(
            new.stretch, iterations=replace(iterations, number=np.array(own, np.int64))
        )
        kept = stretch if self._stretch is None else joined_stretches([self._stretch, stretch])
        self._stretch, self.numbers, self.read_s = kept, tuple(numbers), now_s

    @property
    def utc_ns(self) -> dict[int, int]:
        """When each iteration was written, by its number."""
        if self._stretch is None:
            return {}
        return dict(zip(self.numbers, self._stretch.iterations.utc_ns.tolist(), strict=True))

    @property
    def clock_ns(self) -> tuple[int, ...]:
        """UTC less the monotonic clock, when each iteration was written."""
        if self._stretch is None:
            return ()
        iterations = self._stretch.iterations
        return tuple((iterations.utc_ns - iterations.monotonic_ns).tolist())

    def keep_from(self, number: int) -> None:
        """Forget iterations before one."""
        if self._stretch is not None and self.numbers and self.numbers[0] < number:
            self._stretch = _taken(self._stretch, [n >= number for n in self.numbers])
            self.numbers = tuple(n for n in self.numbers if n >= number)

    def session(self, chosen: Container[int], names: tuple[str, ...]) -> RecordedSession | None:
        """Return a recording of the chosen iterations alone; None where it has none of them.

        Args:
            chosen: their numbers.
            names: of ranges, by number.
        """
        inside = [number in chosen for number in self.numbers]
        if self._stretch is None or not any(inside):
            return None
        return RecordedSession(
            path=self._path,
            header=self.header,
            host=self.host,
            device=self._device,
            run=self._run,
            parts=1,
            names=names,
            stretch=_taken(self._stretch, inside),
            damaged=0,
            tail_bytes=0,
        )


def _taken(stretch: Stretch, inside: list[bool]) -> Stretch:
    """Return some iterations of a stretch."""
    chosen = np.array(inside, bool)
    place = np.cumsum(chosen) - 1
    operations = stretch.operations.take(chosen[stretch.operations.iteration])
    return Stretch(
        stretch.iterations.take(chosen),
        replace(operations, iteration=place[operations.iteration]),
    )
