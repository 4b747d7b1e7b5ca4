"""Interfaces that receive the progress of an analysis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

#: Callback that receives the completed fraction of a task, from 0 to 1.
Watch = Callable[[float], None]


class Progress(Protocol):
    """Receives progress updates in the thread that runs the analysis."""

    def files(self, sizes: Mapping[str, int]) -> None:
        """Receive the size of each profile in bytes, keyed by path, before reading starts."""

    def read(self, path: str, share: float) -> None:
        """Receive the fraction of a profile that has been read, from 0 to 1."""


class Unwatched:
    """Ignores the progress of an analysis."""

    def files(self, sizes: Mapping[str, int]) -> None:
        """Ignore the sizes of the profiles."""

    def read(self, path: str, share: float) -> None:
        """Ignore the fraction of a profile that has been read."""


def unwatched(share: float) -> None:
    """Ignore the completed fraction of a task."""
    del share
