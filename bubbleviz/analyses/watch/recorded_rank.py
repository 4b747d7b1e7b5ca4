"""The newest iterations of one process, as its recording gives them."""

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
        part: of its recording.
        header: of its recording.

    Attributes:
        header: of its recording.
        host: hostname; "" unknown.
        stretch: what is kept of its iterations, ascending numbers.
        read_s: when it was last seen to have written, on any clock.
    """

    def __init__(self, part: recorded.PartReader, header: Header) -> None:
        self.header, self.host, self._path = header, header.host, part.path
        self.read_s, self._last = 0.0, NONE
        self.stretch: recorded.Stretch | None = None

    def add(self, stretch: recorded.Stretch) -> None:
        """Keep some iterations more; those without a number of their own are counted."""
        own = []
        for number in stretch.iterations.number.tolist():
            # Evaluation may count from 0 again, and numbers are to go up.
            self._last = number if number > self._last else self._last + 1
            own.append(self._last)
        iterations = replace(stretch.iterations, number=np.array(own, np.int64))
        new = replace(stretch, iterations=iterations)
        self.stretch = recorded.joined_stretches([self.stretch, new] if self.stretch else [new])

    @property
    def iterations(self) -> recorded.RecordedIterations:
        """The iterations that are kept."""
        return self.stretch.iterations if self.stretch else recorded.RecordedIterations.make_empty()

    @property
    def numbers(self) -> list[int]:
        """The numbers of the iterations, ascending."""
        return [int(number) for number in self.iterations.number]

    def keep_from(self, number: int) -> None:
        """Forget iterations before one."""
        self.stretch = self._taken(self.iterations.number >= number)

    def _taken(self, chosen: Bools) -> recorded.Stretch:
        assert self.stretch is not None
        place, operations = np.cumsum(chosen) - 1, self.stretch.operations
        operations = operations.take(chosen[operations.iteration])
        return recorded.Stretch(
            self.stretch.iterations.take(chosen),
            replace(operations, iteration=place[operations.iteration]),
        )

    def session(self, chosen: Sequence[int], names: tuple[str, ...]) -> RecordedSession | None:
        """Return a recording of the chosen iterations alone; None where it has none of them.

        Args:
            chosen: their numbers.
            names: of ranges, by number.
        """
        inside = np.isin(self.iterations.number, chosen)
        if not inside.any():
            return None
        return RecordedSession(
            path=self._path,
            header=self.header,
            names=names,
            stretch=self._taken(inside),
        )
