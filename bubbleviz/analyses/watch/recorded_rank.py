"""The most recent recorded iterations of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.model.columns import NONE, Bools
from bubbleviz.sources.operations.jsonl import parts as recorded
from bubbleviz.sources.operations.jsonl.lines import Header
from bubbleviz.sources.operations.jsonl.sessions import RecordedSession


class RecordedRank:
    """The most recent recorded iterations of one rank.

    Args:
        part: Reader for the rank's recording.
        header: Header of the recording.

    Attributes:
        header: Header of the recording.
        host: Hostname, or "" if unknown.
        stretch: The kept iterations and their operations, or None before the first call of
            :meth:`add`. The iteration numbers are strictly increasing.
        read_s: Time at which the caller last read new data, in seconds on the caller's clock.
    """

    def __init__(self, part: recorded.PartReader, header: Header) -> None:
        self.header, self.host, self._path = header, header.host, part.path
        self.read_s, self._last = 0.0, NONE
        self.stretch: recorded.Stretch | None = None

    def add(self, stretch: recorded.Stretch) -> None:
        """Append iterations, and renumber them where needed so that numbers strictly increase.

        If an iteration's number is not greater than the previous number, the iteration gets the
        previous number + 1. This also applies if the iteration with the previous number has been
        dropped.
        """
        numbers = []
        for number in stretch.iterations.number.tolist():
            # An evaluation loop may restart the count at 0, but numbers must increase.
            self._last = number if number > self._last else self._last + 1
            numbers.append(self._last)
        iterations = replace(stretch.iterations, number=np.array(numbers, np.int64))
        new = replace(stretch, iterations=iterations)
        self.stretch = recorded.join_stretches([self.stretch, new] if self.stretch else [new])

    @property
    def iterations(self) -> recorded.RecordedIterations:
        """The kept iterations, one row each, sorted by number.

        The table is empty before the first call of :meth:`add`.
        """
        return self.stretch.iterations if self.stretch else recorded.RecordedIterations.make_empty()

    @property
    def numbers(self) -> list[int]:
        """Numbers of the kept iterations, strictly increasing."""
        return [int(number) for number in self.iterations.number]

    def drop_before(self, number: int) -> None:
        """Drop the iterations whose number is smaller than ``number``, along with their operations.

        :meth:`add` must have been called first.
        """
        self.stretch = self._select(self.iterations.number >= number)

    def _select(self, is_selected: Bools) -> recorded.Stretch:
        """Return a stretch that contains only the selected iterations and their operations.

        The operations' column ``iteration`` is renumbered to contain rows of the new iteration
        table.

        Args:
            is_selected: Mask of the kept iterations.
        """
        assert self.stretch is not None
        row_of_iteration, operations = np.cumsum(is_selected) - 1, self.stretch.operations
        operations = operations.take(is_selected[operations.iteration])
        return recorded.Stretch(
            self.stretch.iterations.take(is_selected),
            replace(operations, iteration=row_of_iteration[operations.iteration]),
        )

    def make_session(
        self, numbers: Sequence[int], names: tuple[str, ...]
    ) -> RecordedSession | None:
        """Return a recording with the given iterations, or None if the rank has none of them.

        Args:
            numbers: Numbers of the iterations to include; numbers that the rank lacks are ignored.
            names: Range names, indexed by range id.
        """
        is_selected = np.isin(self.iterations.number, numbers)
        if not is_selected.any():
            return None
        return RecordedSession(
            path=self._path,
            header=self.header,
            names=names,
            stretch=self._select(is_selected),
        )
