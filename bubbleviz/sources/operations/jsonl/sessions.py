"""Finds the files that belong to one recording, and the recordings that belong to one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np

from bubbleviz import recording_layout as layout
from bubbleviz.errors import NothingToAnalyzeError, ProfileError
from bubbleviz.model.numbering import Numbering
from bubbleviz.progress import Watch
from bubbleviz.sources.operations.jsonl import parts as recorded
from bubbleviz.sources.operations.jsonl.lines import Header
from bubbleviz.sources.operations.jsonl.parts import PartReader, Stretch

#: Maximum difference in ns between the clocks of hosts with synchronized clocks.
_CLOCKS_NS = 1_000_000_000
#: Maximum difference in ns between the clocks of hosts without synchronized clocks.
_WRONG_CLOCKS_NS = 3_600_000_000_000


def find_parts(path: str) -> list[str]:
    """Find all files that belong to the same recording as a given file, sorted by part index.

    The header of a file identifies its recording. Starting from the given file, files with the next
    lower and higher numbers in their names are tried, as long as they belong to the recording.

    Args:
        path: Path to any file in the recording.

    Raises:
        ProfileError: The file cannot be read, or is not a recording.
    """
    header = recorded.read_header(path)
    parts = {header.part: path}
    for other, file in _find_other_files(path, header.session):
        parts.setdefault(other.part, file)
    return [parts[part] for part in sorted(parts)]


def _find_other_files(path: str, session: tuple[int, ...]) -> Iterator[tuple[Header, str]]:
    """Yield the header and path of every other file in a session.

    The search goes from the given file to lower file numbers first, and then to higher ones. In
    each direction, the search stops at the first file that is missing, invalid or from another
    session.

    Args:
        path: Path to any file in the session.
        session: Key of the session, see :attr:`Header.session`.
    """
    stem, file_number = recorded.parse_file_name(path) or ("", 0)
    for step in (-1, 1) if stem else ():
        number = file_number + step
        while number >= 0:
            file = _format_file_name(stem, number)
            other = _read_header_if_valid(file)
            if other is None or other.session != session:
                break
            yield other, file
            number += step


def select_first_parts(files: Sequence[str]) -> list[str]:
    """Keep one file per recording, and all files that are not valid recordings.

    The file with the smallest part index is kept. Opening this file reads all files in the
    recording.
    """
    parts_of_session: dict[object, list[tuple[int, str]]] = {}
    for file in files:
        header = _read_header_if_valid(file) if file.endswith(layout.SUFFIX) else None
        session, part = (file, 0) if header is None else (header.session, header.part)
        parts_of_session.setdefault(session, []).append((part, file))
    return [min(parts, key=itemgetter(0))[1] for parts in parts_of_session.values()]


def select_newest_run(files: Sequence[str]) -> list[str]:
    """Select the files of the newest run, plus every file that has no valid header.

    The newest recording is the one with the latest start time in UTC. Another recording belongs to
    the same run if all of the following conditions hold:

    - The recording has the same world size as the newest recording.
    - The recording is the latest for its rank with this world size.
    - The recording had not ended when the newest recording began. This comparison allows host
      clocks to differ by one second. If every rank was recorded only once, there is no earlier run,
      so the comparison allows a difference of one hour.

    Files with a damaged header are kept, because they may belong to the run. The damage is reported
    when these files are read.

    Args:
        files: Files in one directory.

    Returns:
        The selected files, in the given order. Only the first file of each recording is returned.
    """
    headers = {
        f: h for f in select_first_parts(files) if (h := _read_header_if_valid(f)) is not None
    }
    if not headers:
        return list(files)
    newest = max(headers.values(), key=lambda header: header.began_utc_ns)
    of_rank: dict[int, str] = {}
    for file, header in sorted(headers.items(), key=lambda item: item[1].began_utc_ns):
        if header.world_size == newest.world_size:
            of_rank[header.rank] = file
    n_candidates = sum(h.world_size == newest.world_size for h in headers.values())
    clocks_ns = _CLOCKS_NS if n_candidates > len(of_rank) else _WRONG_CLOCKS_NS
    run = {
        file
        for file in of_rank.values()
        if headers[file].session == newest.session
        or _estimate_end_utc_ns(file, headers[file]) + clocks_ns >= newest.began_utc_ns
    }
    return [file for file in files if file in run or _read_header_if_valid(file) is None]


def _estimate_end_utc_ns(file: str, header: Header) -> int:
    """Estimate the UTC time at which a recording ended, in ns since 1970.

    The estimate is the time at which the last iteration in the recording's last file was written.
    If that file contains no iterations, the estimate is the start of the recording or of the file,
    whichever is later.
    """
    last_part = find_parts(file)[-1]
    iteration = recorded.read_last_iteration(last_part)
    if iteration is None:
        return max(header.began_utc_ns, recorded.read_header(last_part).clock.utc_ns)
    return iteration.clock.utc_ns


def _format_file_name(stem: str, number: int) -> str:
    """Return the path of the file that has the given stem and file number."""
    return f"{stem}.{number}{layout.SUFFIX}" if number else f"{stem}{layout.SUFFIX}"


def _read_header_if_valid(path: str) -> Header | None:
    try:
        return recorded.read_header(path)
    except ProfileError:
        return None


@dataclass(frozen=True)
class RecordedSession:
    """The recording of one process, read from all of its files.

    Attributes:
        path: Path to the first file.
        header: Header of the first file that has a complete header.
        names: Range names, indexed by name id.
        stretch: The complete iterations, sorted by start time, along with their operations.
        parts: Number of files.
        n_damaged: Number of damaged lines in all files.
        damage: Description of the damage in the first damaged line, or "" if no line is damaged.
        tail_bytes: Total number of bytes after the last line end in each file.
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
    """Read the complete recording that a file belongs to.

    Raises:
        ProfileError: A file cannot be read, its header is damaged, or all lines are damaged.
        NothingToAnalyzeError: The recording contains no complete iteration.
    """
    watch(0.0)
    names: Numbering[str] = Numbering()
    paths = find_parts(path)
    readers = [PartReader(part, names) for part in paths]
    stretches = _read_stretches(readers, watch)
    header = next((reader.header for reader in readers if reader.header is not None), None)
    damage = next((reader.damage for reader in readers if reader.damage), "")
    if damage and not stretches:
        raise ProfileError(
            f"{path}: every line of the recording is damaged ({damage}); copy the file again, or "
            "record the run again"
        )
    if header is None or not stretches:
        raise NothingToAnalyzeError(
            f"{path}: the recording contains no complete iteration; let the run continue until the "
            "second iteration has begun"
        )
    return RecordedSession(
        path=paths[0],
        header=header,
        parts=len(paths),
        names=names.values,
        stretch=recorded.sort_stretch(recorded.join_stretches(stretches)),
        n_damaged=sum(reader.n_damaged + reader.n_tail_damaged for reader in readers),
        damage=damage,
        tail_bytes=sum(reader.cut_bytes for reader in readers),
    )


def _read_stretches(readers: Sequence[PartReader], watch: Watch) -> list[Stretch]:
    """Read all files in a recording, as a list of stretches of consecutive iterations.

    If the previous file of the recording is missing or has no readable header, the first iteration
    of a file is marked as following a gap. The first of the given files is an exception and is
    never marked.

    Args:
        readers: The files' readers, sorted by part index.
        watch: Progress callback, called with the fraction of the files that have been read.
    """
    stretches: list[Stretch] = []
    previous_header: Header | None = None
    for number, reader in enumerate(readers):
        count = len(stretches)
        while (stretch := reader.read()) is not None:
            part = None if reader.header is None else reader.header.part
            if (
                number
                and len(stretches) == count
                and (previous_header is None or previous_header.part + 1 != part)
            ):
                # The preceding parts, and therefore their iterations, are missing.
                iterations = stretch.iterations
                after_gap = np.append(True, iterations.after_gap[1:])
                stretch = replace(stretch, iterations=replace(iterations, after_gap=after_gap))
            stretches.append(stretch)
        previous_header = reader.header
        watch((number + 1) / len(readers))
    return stretches


def has_neighbors(session: RecordedSession) -> bool:
    """Return whether the file number just before or after a recording belongs to another recording.

    Recordings that have adjacent file numbers come from the same rank.
    """
    stem, number = recorded.parse_file_name(session.path) or ("", 0)
    neighbors = [n for n in (number - 1, number + session.parts) if stem and n >= 0]
    return any(_read_header_if_valid(_format_file_name(stem, neighbor)) for neighbor in neighbors)
