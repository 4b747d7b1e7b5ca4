"""Progress: what a run tells of itself while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

#: Takes how much of a profile has been read, from 0 (begun) to 1 (done).
Watch = Callable[[float], None]


class Progress(Protocol):
    """Is told how far a run is; called from the thread that runs it."""

    def files(self, sizes: Mapping[str, int]) -> None:
        """Take the profiles of the run, each with its bytes."""

    def read(self, path: str, share: float) -> None:
        """Take how much of a profile has been read, from 0 (begun) to 1 (done)."""


class Unwatched:
    """Takes no notice of how far a run is."""

    def files(self, sizes: Mapping[str, int]) -> None:
        """Take no notice."""

    def read(self, path: str, share: float) -> None:
        """Take no notice."""


def unwatched(share: float) -> None:
    """Take no notice of how much has been read."""
    del share
