"""Followed folder: the recordings of a run while it runs, iteration by iteration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bubbleviz import recording_layout as layout
from bubbleviz.errors import InputError, ProfileError
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.values import frozen
from bubbleviz.sources.recordings.columns import Stretch
from bubbleviz.sources.recordings.part_reader import PartReader
from bubbleviz.sources.recordings.sessions import in_order


@frozen
class NewIterations:
    """Whole iterations of one file that are new.

    Attributes:
        part: that they were read from, with its header and what it could not read.
        stretch: they and their operations; names are numbered by the folder.
    """

    part: PartReader
    stretch: Stretch


class FollowedFolder:
    """Reads what is new in the recordings of a folder each time it is asked.

    Files may appear, grow, make room for later ones, or be replaced meanwhile. Times are those of
    each host's monotonic clock; ``stretch.iterations`` has UTC beside it.

    Args:
        folder: where recordings are, or will be.

    Attributes:
        names: of ranges, numbered over all files.
        unreadable: why files cannot be read, by path; each is tried again.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._parts: dict[str, PartReader] = {}
        self.names: Numbering[str] = Numbering()
        self.unreadable: dict[str, ProfileError] = {}

    @property
    def parts(self) -> tuple[PartReader, ...]:
        """The files that are there, in order of ranks and their parts."""
        return tuple(self._parts.values())

    def new(self) -> Iterator[NewIterations]:
        """Yield whole iterations that were written since this was asked last, file by file.

        Raises:
            InputError: the folder cannot be read.
        """
        try:
            paths = in_order(map(str, self._folder.glob(f"*{layout.SUFFIX}")))
        except OSError as error:
            raise InputError(
                f"{self._folder}: cannot be read ({error.strerror}); check it and its permissions"
            ) from error
        self._parts = {
            path: self._parts.get(path) or PartReader(path, self.names) for path in paths
        }
        self.unreadable = {}
        for path, part in self._parts.items():
            try:
                while (stretch := part.read()) is not None:
                    yield NewIterations(part, stretch)
            except ProfileError as error:
                # A later part may have made it go meanwhile.
                if Path(path).exists():
                    self.unreadable[path] = error
