"""Interfaces for the progress of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

#: Receives the completed fraction of a task, from 0 to 1.
Watch = Callable[[float], None]


class Progress(Protocol):
    """Receives the progress of a run, in the thread that runs it."""

    def files(self, sizes: Mapping[str, int]) -> None:
        """Receive the size of each profile in bytes, keyed by path."""

    def read(self, path: str, share: float) -> None:
        """Receive the fraction of a profile that has been read, from 0 to 1."""


class Unwatched:
    """Ignores the progress of a run."""

    def files(self, sizes: Mapping[str, int]) -> None:
        """Ignore the sizes."""

    def read(self, path: str, share: float) -> None:
        """Ignore the fraction."""


def unwatched(share: float) -> None:
    """Ignore the completed fraction of a task."""
    del share
