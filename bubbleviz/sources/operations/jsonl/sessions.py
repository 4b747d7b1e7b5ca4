"""Sessions: which files are parts of one recording, and which recordings are of one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np

from bubbleviz import recording_layout as layout
from bubbleviz.errors import NothingToAnalyseError, ProfileError
from bubbleviz.model import grouping
from bubbleviz.progress import Watch
from bubbleviz.sources.operations.jsonl import parts as recorded
from bubbleviz.sources.operations.jsonl.lines import Header
from bubbleviz.sources.operations.jsonl.parts import PartReader, Stretch

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
    header = recorded.header_of(path)
    parts = {header.part: path}
    for other, file in _around(path, header.session):
        parts.setdefault(other.part, file)
    return [parts[part] for part in sorted(parts)]


def _around(path: str, session: tuple[int, ...]) -> Iterator[tuple[Header, str]]:
    """Yield the files of one session with the numbers below and above that of a file."""
    stem, own = recorded.rank_and_number(path) or ("", 0)
    for step in (-1, 1) if stem else ():
        number = own + step
        while number >= 0:
            file = _numbered(stem, number)
            other = _header_or_none(file)
            if other is None or other.session != session:
                break
            yield other, file
            number += step


def first_parts(files: Sequence[str]) -> list[str]:
    """Return files without those that are later parts of others; opening one reads them all."""
    together: dict[object, list[tuple[int, str]]] = {}
    for file in files:
        header = _header_or_none(file) if file.endswith(layout.SUFFIX) else None
        session, part = (file, 0) if header is None else (header.session, header.part)
        together.setdefault(session, []).append((part, file))
    return [min(parts, key=itemgetter(0))[1] for parts in together.values()]


def newest_run(files: Sequence[str]) -> list[str]:
    """Return the files of the newest run of a directory, one a rank, and all that are none.

    Those with a damaged header may be of it: who reads them says so.

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
    return [file for file in files if file in run or _header_or_none(file) is None]


def _ended_utc_ns(file: str, header: Header) -> int:
    """Return UTC at the end of a recording: of its last iteration, or its beginning without any."""
    last_part = parts_of(file)[-1]
    iteration = recorded.last_iteration(last_part)
    if iteration is None:
        return max(header.began_utc_ns, recorded.header_of(last_part).clock.utc_ns)
    return iteration.clock.utc_ns


def _numbered(stem: str, number: int) -> str:
    """Return the path of a file of a rank by its number."""
    return f"{stem}.{number}{layout.SUFFIX}" if number else f"{stem}{layout.SUFFIX}"


def _header_or_none(path: str) -> Header | None:
    try:
        return recorded.header_of(path)
    except ProfileError:
        return None


@dataclass(frozen=True)
class RecordedSession:
    """A recording of one process.

    Attributes:
        path: of its first file.
        header: of its first file.
        names: of ranges, by number.
        stretch: its whole iterations.
        parts: how many files it has.
        n_damaged: Number of damaged lines.
        damage: What is wrong with the first damaged line, or "" if none is damaged.
        tail_bytes: Number of bytes after the last line of the files.
    """

    path: str
    header: Header
    names: tuple[str, ...]
    stretch: Stretch
    parts: int = 1
    n_damaged: int = 0
    damage: str = ""
    tail_bytes: int = 0


def read_session(path: str, watch: Watch) -> RecordedSession:
    """Return the recording that a file belongs to.

    Raises:
        ProfileError: a file cannot be read, or is damaged at its beginning.
        NothingToAnalyseError: it holds no whole iteration.
    """
    watch(0.0)
    names: grouping.Numbering[str] = grouping.Numbering()
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
    damage = next((reader.damage for reader in readers if reader.damage), "")
    if damage and not stretches:
        raise ProfileError(
            f"{path}: a recording of which every line is damaged ({damage}); copy it again, or "
            "record again"
        )
    if header is None or not stretches:
        raise NothingToAnalyseError(
            f"{path}: a recording without any whole iteration; let it run until the second one "
            "has begun"
        )
    return RecordedSession(
        path=paths[0],
        header=header,
        parts=len(paths),
        names=names.values,
        stretch=recorded.sorted_stretch(recorded.joined_stretches(stretches)),
        n_damaged=sum(reader.n_damaged + reader.n_tail_damaged for reader in readers),
        damage=damage,
        tail_bytes=sum(reader.cut_bytes for reader in readers),
    )


def has_neighbours(session: RecordedSession) -> bool:
    """Return whether files of other sessions have the numbers next to those of a recording."""
    stem, number = recorded.rank_and_number(session.path) or ("", 0)
    neighbours = [n for n in (number - 1, number + session.parts) if stem and n >= 0]
    return any(_header_or_none(_numbered(stem, neighbour)) for neighbour in neighbours)
