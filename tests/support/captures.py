"""Cuts the exports of a planted run into several captures of every process.

``nsys profile --capture-range-end=repeat`` writes one report per capture (``report1.1``,
``report1.2``). Each report has its own session start, so its times begin near 0 again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from tests.planting.truth import Truth
from tests.support.edited_databases import edit_database, read_columns

#: Time before the first kernel of an iteration, in ns. At this time, the host has launched all work
#: of the previous iteration, but no work of the next one.
_LEAD_NS = 100_000


def cut_captures(
    truth: Truth,
    folder: Path,
    captures: Sequence[range],
    output: Path,
    *,
    moved_ns: Sequence[int] = (),
) -> list[list[Path]]:
    """Write one export per capture and file of a planted run, and return them by capture.

    The n-th capture of ``server0.sqlite`` is ``server0.n.sqlite``, counted from 1.

    Args:
        truth: The planted run, with a barrier before every optimizer, and hosts that launch work
            less than ``_LEAD_NS`` ahead.
        folder: Directory with the exports of the run.
        captures: Iterations that each capture contains.
        output: Output directory, created if necessary.
        moved_ns: Time by which each capture is moved into the future, in ns. By default, no
            capture is moved.
    """
    output.mkdir(parents=True, exist_ok=True)
    written: list[list[Path]] = []
    for number, iterations in enumerate(captures):
        by = moved_ns[number] if moved_ns else 0
        bounds = _find_start(truth, iterations.start), _find_start(truth, iterations.stop)
        paths = []
        for file in truth.files:
            path = output / f"{Path(file.path).stem}.{number + 1}.sqlite"
            low, high = (file.clock.of_one(bound) for bound in bounds)
            source = folder / file.path
            host_low = _find_range(source, iterations.start, low)
            host_high = _find_range(source, iterations.stop, high)
            statements = _cut(read_columns(source), (low, high), (host_low, host_high), by)
            paths.append(edit_database(path, *statements, source=source))
        written.append(paths)
    return written


def _find_start(truth: Truth, iteration: int) -> int:
    """Return the global time shortly before the first kernel of an iteration, in ns."""
    starts = [o.start_ns for o in truth.operations if o.iteration == iteration and o.start_ns]
    if starts:
        return min(starts) - _LEAD_NS
    return max(o.end_ns or 0 for o in truth.operations) + _LEAD_NS


def _find_range(export: Path, iteration: int, otherwise: int) -> int:
    """Return the first start of a range that names an iteration, or ``otherwise``."""
    with closing(sqlite3.connect(export)) as connection:
        query = "SELECT min(start) FROM NVTX_EVENTS WHERE text LIKE ?"
        ((start,),) = connection.execute(query, [f"iter_%_{iteration}"])
    return otherwise if start is None else int(start)


def _cut(
    columns: dict[str, tuple[str, ...]],
    device_ns: tuple[int, int],
    host_ns: tuple[int, int],
    moved: int,
) -> Iterable[str]:
    """Yield SQL that keeps the events of a capture, and gives it its own session start.

    Args:
        columns: Column names of each table.
        device_ns: Start and end of the capture on the clock of the file, for work on devices.
        host_ns: Start and end of the capture for calls and ranges.
        moved: Time by which the capture is moved into the future, in ns.
    """
    zero = min(device_ns[0], host_ns[0])
    for table, names in columns.items():
        if "start" not in names or "end" not in names:
            continue
        is_host = table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME")
        low, high = host_ns if is_host else device_ns
        yield f"DELETE FROM {table} WHERE start < {low} OR start >= {high}"
        yield f"UPDATE {table} SET start = start - {zero}, end = end - {zero}"
    session = "TARGET_INFO_SESSION_START_TIME"
    yield (
        f"UPDATE {session} SET utcEpochNs = utcEpochNs + {zero + moved}, "
        f"systemClockNs = systemClockNs + {zero + moved}"
    )
