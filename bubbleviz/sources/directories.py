"""Files of a directory, of which some may be no profiles that can be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from bubbleviz.errors import ProfileError
from bubbleviz.progress import Progress, Unwatched, Watch
from bubbleviz.sources.nsys.columnar.directory import bytes_of
from bubbleviz.sources.paths import InputFile

if TYPE_CHECKING:
    from bubbleviz.model.limitations import Limitation

T = TypeVar("T")


def read_each(
    files: Sequence[InputFile], read: Callable[[str, Watch], T], progress: Progress | None
) -> tuple[list[T], tuple[Limitation, ...]]:
    """Return the contents of each file, and limitations for files of directories without any.

    Args:
        files: named, or found in directories.
        read: a file by its path; reports how much of it has been read.
        progress: receives how much of each file has been read.

    Raises:
        ProfileError: a file that was named cannot be read, or none of the others can.
    """
    progress = progress or Unwatched()
    progress.files({file.path: bytes_of(file.path) for file in files})
    contents: list[T] = []
    errors: list[ProfileError] = []
    for file in files:
        watch = partial(progress.read, file.path)
        try:
            contents.append(read(file.path, watch))
        except ProfileError as error:
            if file.named:
                raise
            errors.append(error)
        finally:
            watch(1.0)
    if errors and not contents:
        raise errors[0]
    return contents, tuple(unreadable_profile(str(error)) for error in errors)


def unreadable_profile(reason: str) -> Limitation:
    """Return the limitation for a file of a directory that cannot be read."""
    from bubbleviz.model.limitations import Limitation, LimitationKind

    return Limitation("a profile of the directory", reason, kind=LimitationKind.PROFILE_UNREADABLE)
