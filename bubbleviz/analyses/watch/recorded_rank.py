"""The newest recorded iterations of one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.model.columns import NONE, Bools
from bubbleviz.sources.operations.jsonl import parts as recorded
from bubbleviz.sources.operations.jsonl.lines import Header
from bubbleviz.sources.operations.jsonl.sessions import RecordedSession


class RecordedRank:
    """The newest iterations of one process.

    Args:
        part: Reader of its recording.
        header: Header of its recording.

    Attributes:
        header: Header of its recording.
        host: Hostname, or "" if unknown.
        stretch: The iterations that are kept, with ascending numbers, or None if there are none.
        read_s: When new data was last read, in seconds of any clock.
    """

    def __init__(self, part: recorded.PartReader, header: Header) -> None:
        self.header, self.host, self._path = header, header.host, part.path
        self.read_s, self._last = 0.0, NONE
        self.stretch: recorded.Stretch | None = None

    def add(self, stretch: recorded.Stretch) -> None:
        """Append iterations. If a number does not increase, the previous number + 1 is used."""
        numbers = []
        for number in stretch.iterations.number.tolist():
            # An evaluation may count from 0 again, but numbers must increase.
            self._last = number if number > self._last else self._last + 1
            numbers.append(self._last)
        iterations = replace(stretch.iterations, number=np.array(numbers, np.int64))
        new = replace(stretch, iterations=iterations)
        self.stretch = recorded.join_stretches([self.stretch, new] if self.stretch else [new])

    @property
    def iterations(self) -> recorded.RecordedIterations:
        """Iterations that are kept."""
        return self.stretch.iterations if self.stretch else recorded.RecordedIterations.make_empty()

    @property
    def numbers(self) -> list[int]:
        """Numbers of the iterations, in ascending order."""
        return [int(number) for number in self.iterations.number]

    def drop_before(self, number: int) -> None:
        """Drop the iterations with smaller numbers."""
        self.stretch = self._select(self.iterations.number >= number)

    def _select(self, is_selected: Bools) -> recorded.Stretch:
        """Return the selected iterations and their operations.

        The operations refer to the rows of the selected iterations.
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
        """Return a recording with only these iterations, or None if the rank has none of them.

        Args:
            numbers: Numbers of the iterations.
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
