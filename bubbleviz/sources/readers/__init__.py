"""Input formats: each module here turns one kind of file into a ``Profile``.

Adding one is adding a module with a ``READER`` constant; whatever it yields is linked, counted
and drawn by the same stages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.progress import Watch
from bubbleviz.registry import discover
from bubbleviz.sources.gzip_files import head_of
from bubbleviz.sources.nccl.formats import format_of

if TYPE_CHECKING:
    from bubbleviz.model.profile import Contents, Profile


#: What reports of this program begin with.
_REPORT = re.compile(rb'^\s*\{\s*"schema"\s*:\s*"bubbleviz\.')


class OpenFile(Protocol):
    """An open file of some kind.

    All of its methods take GLOB prefilters of range names, and raise ProfileError where the file
    cannot be read.
    """

    def sample(self, globs: Sequence[str]) -> Mapping[str, int]:
        """Return how often such names occur in a sample of the ranges."""

    def read(self, globs: Sequence[str], *, partial: bool = False) -> Profile:
        """Return the profile; its calls can be read while the file is open.

        Args:
            globs: prefilters of the ranges that are wanted by name.
            partial: read it all the same where it lacks calls, ranges, or kernels beside copies.
                What it lacks is empty then, which is no limitation yet: whoever asked knows what
                follows. There is work in any case. Where calls stand for the work itself
                (``launches_known`` is false), a limitation says that launches, or what ran on a
                GPU, are not told, whether partial or not.

        Raises:
            NothingToAnalyseError: nothing ran; or, without ``partial``, any of these lacks that an
                analysis needs.
        """

    def inspect(self, globs: Sequence[str]) -> Contents:
        """Return what the file holds, for a first look."""


@dataclass(frozen=True)
class Reader:
    """A kind of file that can be read.

    Attributes:
        name: what reports call it.
        suffixes: endings of the files that a directory is searched for.
        maybe: endings of files that a directory is searched for, and taken if recognised.
        recognises: whether a file's first 64 KiB (unpacked where it is gzipped) are of this kind;
            no two kinds recognise the same file.
        open_file: opens a path, to be read by so many threads at once; tells how far it is.
        may_be: likewise, of a file that no reader recognises: whether it may be of this kind.
        told_better_by: other endings; where a file of the same name with one of these lies
            beside it in a directory, it is the same run, and that file is read instead.
        folder: below a directory without profiles, where a tool puts them, a folder a run; "" none.
    """

    name: str
    suffixes: tuple[str, ...]
    recognises: Callable[[bytes], bool]
    open_file: Callable[[str, int, Watch], AbstractContextManager[OpenFile]]
    maybe: tuple[str, ...] = ()
    may_be: Callable[[bytes], bool] = lambda _: False
    told_better_by: tuple[str, ...] = ()
    folder: str = ""


def readers() -> tuple[Reader, ...]:
    """Return every reader."""
    return discover(__name__, "READER", Reader)


def reader_of(path: str) -> Reader:
    """Return the reader for a file, by its first bytes.

    Raises:
        ProfileError: no reader knows the file.
    """
    head = head_of(path)
    if not head.strip():
        raise ProfileError(f"{path}: the file is empty; {_again(path)}")
    if _REPORT.search(head):
        raise ProfileError(
            f"{path}: is a report of bubbleviz, no profile; give the profiles, or the report to "
            "bubbleviz compare, gate or view"
        )
    if format_of(head) is not None:
        raise ProfileError(
            f"{path}: holds events of NCCL's own profiler, not a profile of a run; look at them "
            "with bubbleviz nccl, alone or together with profiles"
        )
    for reader in readers():
        if reader.recognises(head):
            return reader
    for reader in readers():
        if reader.may_be(head):
            return reader
    raise ProfileError(
        f"{path}: not an SQLite database (or an encrypted one), nor a trace of PyTorch or XLA; "
        f"{_again(path)}"
    )


def _again(path: str) -> str:
    """Return what to do with a file that holds no profile, by what its name says that it is."""
    if path.endswith((".json", ".gz", ".pb")):
        return "give the file that the profiler wrote, or copy it again"
    return EXPORT_AGAIN
