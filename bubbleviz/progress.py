"""Progress: what a run reports while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

#: Takes how much of a profile has been read, from 0 (begun) to 1 (done).
Watch = Callable[[float], None]


class Progress(Protocol):
    """Takes the progress of a run; called from the thread that runs it."""

    def files(self, sizes: Mapping[str, int]) -> None:
        """Take the profiles of the run, each with its bytes."""

    def read(self, path: str, share: float) -> None:
        """Take how much of a profile has been read, from 0 (begun) to 1 (done)."""


class Unwatched:
    """Ignores the progress of a run."""

    def files(self, sizes: Mapping[str, int]) -> None:
        """Ignore it."""

    def read(self, path: str, share: float) -> None:
        """Ignore it."""


def unwatched(share: float) -> None:
    """Ignore how much has been read."""
    del share
