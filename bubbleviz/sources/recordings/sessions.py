"""Sessions: which files are parts of one recording, and which recordings are of one run.

A process writes ``rank-00003.bvrec``, then ``rank-00003.1.bvrec`` and so on; a process that takes
its place after a restart goes on with the next number. Each part knows its recording by its header.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from bubbleviz import recording_layout as layout
from bubbleviz.errors import ProfileError
from bubbleviz.model.natural_order import natural_key
from bubbleviz.sources.recordings.blocks import found_blocks, stretch_of
from bubbleviz.sources.recordings.header import Header, header_of

_NAME = re.compile(rf"(?P<stem>.+?)(?:\.(?P<number>[0-9]{{1,6}}))?{re.escape(layout.SUFFIX)}\Z")
#: Bytes at the end of a file in which its last iteration is looked for.
_TAIL_BYTES = 1 << 16
#: Clocks of hosts may differ by that.
_CLOCKS_NS = 1_000_000_000
#: And by that where nobody sets them.
_WRONG_CLOCKS_NS = 3_600_000_000_000


def parts_of(path: str) -> list[str]:
    """Return the files of the recording that a file belongs to, in the order of their parts.

    Raises:
        ProfileError: the file cannot be read, or is no recording.
    """
    header = header_of(path)
    parts = {header.part: path}
    for other in _beside(path, header):
        own = _header_or_none(other)
        if own is not None and own.session == header.session:
            parts.setdefault(own.part, other)
    return [parts[part] for part in sorted(parts)]


def in_order(files: Iterable[str]) -> list[str]:
    """Return files in order of their ranks, and those of a rank in that of their numbers."""

    def key(file: str) -> tuple[tuple[tuple[int, int, str], ...], int]:
        match = _NAME.fullmatch(file)
        if match is None:
            return natural_key(file), 0
        return natural_key(match["stem"]), int(match["number"] or 0)

    return sorted(files, key=key)


def others_of(path: str) -> int:
    """Return how many files beside a recording belong to others of the same rank."""
    neighbours = (_numbered(path, number) for number in _ends(path))
    headers = [_header_or_none(other) for other in neighbours if os.path.exists(other)]  # noqa: PTH110 - a look-up a rank
    return len([header for header in headers if header is not None])


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
    if not found.last:
        return max(header.began_utc_ns, own.utc_ns)
    return int(stretch_of(data, found, {}).iterations.utc_ns.max())


def _beside(path: str, header: Header) -> list[str]:
    """Return the files in front of one and behind it that may be parts of its recording."""
    match = _NAME.fullmatch(path)
    if match is None:
        return []
    found = []
    own = int(match["number"] or 0)
    for step in (-1, 1):
        number = own + step
        while number >= 0:
            file = _numbered(path, number)
            other = _header_or_none(file)
            if other is None or other.session != header.session:
                break
            found.append(file)
            number += step
    return found


def _ends(path: str) -> list[int]:
    """Return the numbers in front of a recording's parts and behind them."""
    numbers = [int(m["number"] or 0) for p in parts_of(path) if (m := _NAME.fullmatch(p))]
    return [n for n in (min(numbers) - 1, max(numbers) + 1) if n >= 0] if numbers else []


def _numbered(path: str, number: int) -> str:
    """Return the path of a file of the same rank with another number."""
    match = _NAME.fullmatch(path)
    stem = path if match is None else match["stem"]
    return f"{stem}.{number}{layout.SUFFIX}" if number else f"{stem}{layout.SUFFIX}"


def _header_or_none(path: str) -> Header | None:
    try:
        return header_of(path)
    except ProfileError:
        return None
