"""Kept files: one that was looked at stays open for whoever reads it next.

A trace that is decoded as a whole is then decoded once, though a look at its names came first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.readers import OpenFile, reader_of

#: By path; taken away by the next that opens it.
_KEPT: dict[str, tuple[ExitStack, OpenFile]] = {}


@contextmanager
def opened_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[OpenFile]:
    """Open a file, or take over the one that a look at it left open.

    Raises:
        ProfileError: no reader knows it, or it cannot be read.
    """
    kept = _KEPT.pop(path, None)
    if kept is not None:
        with kept[0]:
            yield kept[1]
        return
    with reader_of(path).open_file(path, jobs, watch) as file:
        yield file


def sampled_names(path: str, globs: Sequence[str], watch: Watch = unwatched) -> Mapping[str, int]:
    """Return how often names occur in a sample of a file's ranges; see :class:`OpenFile`.

    Raises:
        ProfileError: no reader knows the file, or it cannot be read.
    """
    reader = reader_of(path)
    with ExitStack() as stack:
        file = stack.enter_context(reader.open_file(path, 1, watch))
        names = file.sample(globs)
        if reader.decoded_whole:
            forget()
            _KEPT[path] = stack.pop_all(), file
    return names


def forget() -> None:
    """Close what nobody has opened since."""
    while _KEPT:
        _KEPT.popitem()[1][0].close()
