"""Sessions: which files are parts of one recording, and which recordings are of one run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bubbleviz import recording_layout as layout
from bubbleviz.errors import NothingToAnalyseError, ProfileError
from bubbleviz.model.grouping import Numbering
from bubbleviz.model.values import frozen
from bubbleviz.progress import Watch
from bubbleviz.sources.recordings.parts import (
    Header,
    PartReader,
    Stretch,
    found_blocks,
    header_of,
    joined_stretches,
    rank_and_number,
    stretch_of,
)

#: Bytes at the end of a file in which its last iteration is looked for.
_TAIL_BYTES = 1 << 16
#: Clocks of hosts may differ by that.
_CLOCKS_NS = 1_000_000_000
#: And by that where nobody sets them.
_WRONG_CLOCKS_NS = 3_600_000_000_000


def parts_of(path: str) -> list[str]:
    """Return the files of the recording that a file belongs to, in the order of their parts.

    Each part knows its recording by its header; the others have the numbers around its own.

    Raises:
        ProfileError: the file cannot be read, or is no recording.
    """
    header = header_of(path)
    parts = {header.part: path}
    for other, file in _around(path, header.session):
        parts.setdefault(other.part, file)
    return [parts[part] for part in sorted(parts)]


def _around(path: str, session: tuple[int, ...]) -> Iterator[tuple[Header, str]]:
    """Yield the files of one session with the numbers below and above that of a file."""
    stem, own = rank_and_number(path) or ("", 0)
    for step in (-1, 1) if stem else ():
        number = own + step
        while number >= 0:
            file = _numbered(stem, number)
            other = _header_or_none(file)
            if other is None or other.session != session:
                break
            yield other, file
            number += step


def others_of(path: str) -> int:
    """Return how many files beside a recording belong to others of the same rank."""
    named = [found for part in parts_of(path) if (found := rank_and_number(part)) is not None]
    if not named:
        return 0
    numbers = [number for _, number in named]
    ends = (_numbered(named[0][0], n) for n in (min(numbers) - 1, max(numbers) + 1) if n >= 0)
    return sum(os.path.exists(other) and _header_or_none(other) is not None for other in ends)  # noqa: PTH110 - a look-up a rank


def first_parts(files: Sequence[str]) -> list[str]:
    """Return files without those that are later parts of others; opening one reads them all."""
    seen: dict[tuple[int, ...], tuple[int, str]] = {}
    kept: list[str] = []
    for file in files:
        header = _header_or_none(file) if file.endswith(layout.SUFFIX) else None
        if header is None:
            kept.append(file)
            continue
        part, first = seen.get(header.session, (header.part, file))
        if file == first:
            kept.append(file)
        elif header.part < part:
            kept[kept.index(first)] = file
        if header.part <= part:
            seen[header.session] = header.part, file
    return kept


def newest_run(files: Sequence[str]) -> list[str]:
    """Return the files of the newest run of a directory, one a rank, and all that are none.

    That is of each rank the recording that began last, unless it is of another number of ranks, or
    ended before the newest one began. Where each rank was recorded once, no earlier run shows, and
    what lies minutes apart has a clock that is wrong.
    """
    headers = {f: h for f in first_parts(files) if (h := _header_or_none(f)) is not None}
    if not headers:
        return list(files)
    newest = max(headers.values(), key=lambda header: header.began_utc_ns)
    of_rank: dict[int, str] = {}
    for file, header in sorted(headers.items(), key=lambda item: item[1].began_utc_ns):
        if header.world_size == newest.world_size:
            of_rank[header.rank] = file
    alike = sum(header.world_size == newest.world_size for header in headers.values())
    clocks_ns = _CLOCKS_NS if alike > len(of_rank) else _WRONG_CLOCKS_NS
    run = {
        file
        for file in of_rank.values()
        if headers[file].session == newest.session
        or _ended_utc_ns(file, headers[file]) + clocks_ns >= newest.began_utc_ns
    }
    return [file for file in files if file in run or not file.endswith(layout.SUFFIX)]


def _ended_utc_ns(file: str, header: Header) -> int:
    """Return UTC at the end of a recording: of its last iteration, or its beginning without any."""
    last = parts_of(file)[-1]
    own = header_of(last)
    with Path(last).open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        first = max(size - _TAIL_BYTES, 0)
        first += (layout.HEADER.size - first) % layout.RECORD_BYTES
        opened.seek(max(first, layout.HEADER.size))
        data = opened.read()
    found = found_blocks(data)
    if not found[1]:
        return max(header.began_utc_ns, own.utc_ns)
    return int(stretch_of(data, found, {}).iterations.utc_ns.max())


def _numbered(stem: str, number: int) -> str:
    """Return the path of a file of a rank by its number."""
    return f"{stem}.{number}{layout.SUFFIX}" if number else f"{stem}{layout.SUFFIX}"


def _header_or_none(path: str) -> Header | None:
    try:
        return header_of(path)
    except ProfileError:
        return None


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
    before: Header | None = None
    for number, reader in enumerate(readers):
        count = len(stretches)
        while (stretch := reader.read()) is not None:
            part = None if reader.header is None else reader.header.part
            if number and len(stretches) == count and (before is None or before.part + 1 != part):
                # Parts in front of this one are not there, and so their iterations.
                iterations = stretch.iterations
                after_gap = np.append(True, iterations.after_gap[1:])
                stretch = replace(stretch, iterations=replace(iterations, after_gap=after_gap))
            stretches.append(stretch)
        before = reader.header
        watch((number + 1) / len(readers))
    header = next((reader.header for reader in readers if reader.header is not None), None)
    if header is None or not stretches:
        raise NothingToAnalyseError(
            f"{path}: a recording without any whole iteration; let it run until the second one "
            "has begun"
        )
    host, device, run = (
        next(filter(None, texts), "")
        for texts in zip(*((part.host, part.device, part.run) for part in readers), strict=True)
    )
    return RecordedSession(
        path=paths[0],
        header=header,
        host=host,
        device=device,
        run=run,
        parts=len(paths),
        names=names.values,
        stretch=joined_stretches(stretches),
        damaged=sum(reader.damaged for reader in readers),
        tail_bytes=sum(reader.tail_bytes for reader in readers),
    )
