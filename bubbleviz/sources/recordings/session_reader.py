"""Session reader: a whole recording of one process, all of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.values import frozen
from bubbleviz.progress import Watch
from bubbleviz.sources.recordings.columns import Stretch, joined_stretches
from bubbleviz.sources.recordings.header import Header
from bubbleviz.sources.recordings.part_reader import PartReader
from bubbleviz.sources.recordings.sessions import parts_of


@frozen
class RecordedSession:
    """A recording of one process.

    Attributes:
        path: of its first file.
        header: of its first file.
        host: hostname; "" unknown.
        device: name of its device; "" unknown.
        run: what the launcher calls the run; "" for nothing.
        parts: how many files it has.
        names: of ranges, by number.
        stretch: its whole iterations.
        damaged: records in front of the last iteration that belong to none.
        tail_bytes: bytes behind the last iteration.
    """

    path: str
    header: Header
    host: str
    device: str
    run: str
    parts: int
    names: tuple[str, ...]
    stretch: Stretch
    damaged: int
    tail_bytes: int


def read_session(path: str, watch: Watch) -> RecordedSession:
    """Return the recording that a file belongs to.

    Raises:
        ProfileError: a file cannot be read, or is damaged at its beginning.
        NothingToAnalyseError: it holds no whole iteration.
    """
    watch(0.0)
    names: Numbering[str] = Numbering()
    paths = parts_of(path)
    readers = [PartReader(part, names) for part in paths]
    stretches: list[Stretch] = []
    for number, reader in enumerate(readers):
        own = []
        while (stretch := reader.read()) is not None:
            own.append(stretch)
        if own and number and _follows(readers[number - 1 : number + 1]) is False:
            own[0] = _after_gap(own[0])
        stretches += own
        watch((number + 1) / len(readers))
    header = next((reader.header for reader in readers if reader.header is not None), None)
    if header is None or not stretches:
        raise NothingToAnalyseError(
            f"{path}: a recording without any whole iteration; let it run until the second one "
            "has begun"
        )
    return RecordedSession(
        path=paths[0],
        header=header,
        host=_first([reader.host for reader in readers]),
        device=_first([reader.device for reader in readers]),
        run=_first([reader.run for reader in readers]),
        parts=len(paths),
        names=names.values,
        stretch=joined_stretches(stretches),
        damaged=sum(reader.damaged for reader in readers),
        tail_bytes=sum(reader.tail_bytes for reader in readers),
    )


def _follows(readers: Sequence[PartReader]) -> bool:
    """Tell whether the second of two files is the part behind the first one."""
    first, second = (reader.header for reader in readers)
    return first is not None and second is not None and second.part == first.part + 1


def _after_gap(stretch: Stretch) -> Stretch:
    """Return a stretch of which iterations in front are not there."""
    after_gap = stretch.iterations.after_gap.copy()
    after_gap[0] = True
    return replace(stretch, iterations=replace(stretch.iterations, after_gap=after_gap))


def _first(texts: Sequence[str]) -> str:
    return next(filter(None, texts), "")


def repeated_numbers(session: RecordedSession) -> bool:
    """Tell whether ranges number iterations in another way than upwards, each once."""
    number = session.stretch.iterations.number
    named = number[number >= 0]
    return bool((np.diff(named) <= 0).any())
