"""Text: what ``bubbleviz nccl`` prints: files, totals, and clocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.text import Text

from bubbleviz.analyses.nccl.members import Alignment, RecordingClock, communicator_text
from bubbleviz.analyses.nccl.totals import (
    DEFINITIONS,
    Communication,
    Sums,
    Total,
    sums_of,
    totals_of,
)
from bubbleviz.model.collectives import stretches
from bubbleviz.model.texts import counted, one_line
from bubbleviz.render.text.tables import (
    HangingLines,
    Table,
    milliseconds,
    omitted,
    shortened,
    titled,
)

if TYPE_CHECKING:
    from rich.console import RenderableType


#: Files and rows of one screen.
_FILES, _FEW = 4, 10
#: Columns that go first where a terminal is narrow.
_GIVING_WAY = (
    *("moving GB/s", "alg GB/s", "algorithm", "n", "moving", "peers", "count", "waiting"),
    *("bus GB/s", "busy", "MB", "communicator", "ms"),
)
#: Rows of a table, and characters of a name in it.
_ROWS, _NAME = 40, 40
#: How clocks are aligned, in words.
_ALIGNMENTS = {
    Alignment.REFERENCE: "the report's clock",
    Alignment.KERNELS: "matched with kernels",
    Alignment.ANCHOR: "anchors",
    Alignment.UTC: "UTC of its host",
    Alignment.OPERATIONS: "ends of common operations",
    Alignment.UNALIGNED: "not aligned",
}


def sections(communication: Communication) -> Iterator[RenderableType]:
    """Yield what to print."""
    yield Text(summary(communication))
    yield from titled("Communication, longest first", _table(communication, _ROWS))
    yield from _clock_sections(communication.clocks)
    yield Text("\n" + "".join(f"{line}\n" for line in DEFINITIONS))


def first_screen(communication: Communication) -> Iterator[RenderableType]:
    """Yield what fits one screen."""
    files, sums = summary(communication).splitlines()[:-1], summary(communication).splitlines()[-1:]
    more = [f"and {len(files) - _FILES:,} more files"] if len(files) > _FILES else []
    yield HangingLines(("", line) for line in (*files[:_FILES], *more, *sums))
    yield from titled("Communication, longest first", _table(communication, _FEW))
    yield Text(
        "\nms: from start to end, over all ranks; busy: each instant of a GPU once; waiting: until "
        "the operation's last rank has started; moving: the rest; bus GB/s: as nccl-tests count it"
    )
    yield Text("\nMore: -v (all rows, clocks, definitions); -o operations.csv", style="dim")


def summary(communication: Communication) -> str:
    """Return the files and the sums, in lines."""
    lines = []
    for file in communication.files:
        events = sum(count for _, count in file.events)
        of = f" of {counted(events, 'event')}" if events else ""
        name = one_line(file.path, None)
        lines.append(f"{name}: {file.format}, {counted(file.operations, 'operation')}{of}\n")
    sums = sums_of(communication.operations)
    window = "" if communication.window is None else f"{communication.window} alone: "
    named = communication.communicators
    of_communicators = counted(len(named), "communicator") if named else "unknown communicators"
    return (
        "".join(lines)
        + f"{window}{counted(sums.operations, 'operation')} in {of_communicators}, {_size(sums)}; "
        f"{_time(sums)}\n"
    )


def _size(sums: Sums) -> str:
    if sums.bytes is None:
        return "unknown bytes"
    size = f"{sums.bytes / 1e6:,.3f} MB"
    if sums.sized == sums.operations:
        return size
    return f"{size} in the {counted(sums.sized, 'operation')} whose bytes are known"


def _time(sums: Sums) -> str:
    if sums.duration_ns is None:
        return "unknown times"
    operations = "operations"
    if sums.timed < sums.operations:
        operations = f"the {counted(sums.timed, 'operation')} whose time is known"
    return (
        f"{milliseconds(sums.duration_ns)} ms, summed over {operations}; "
        f"{milliseconds(sums.busy_ns)} ms in which GPUs run any of them"
    )


def _table(communication: Communication, most: int) -> Table:
    """Return the table of totals, those that are not listed in one row, and all of them in one."""
    table = Table(
        *("communicator", "n", "operation", "peers", "algorithm", "count", "MB", "ms", "busy"),
        *("waiting", "moving", "alg GB/s", "bus GB/s", "moving GB/s"),
        left=("communicator", "operation", "peers", "algorithm"),
        giving_way=_GIVING_WAY,
    )
    totals = totals_of(communication)
    for total in totals[:most]:
        table.add_row(*_cells(total))
    operations = communication.operations
    if rest := totals[most:]:
        rows = np.concatenate([total.rows for total in rest])
        words = f"{counted(len(rest), 'more row')}, summed"
        table.add_row(words, *("",) * 4, *_sum_cells(sums_of(operations.take(rows))))
    if len(totals) > 1:
        table.add_section()
        table.add_row("all", *("",) * 4, *_sum_cells(sums_of(operations)))
    return table


def _cells(total: Total) -> tuple[str, ...]:
    algorithm = "/".join(part for part in (total.algorithm, total.protocol) if part)
    return (
        shortened(one_line(communicator_text(total.communicator), None), _NAME) or "-",
        "-" if total.ranks is None else f"{total.ranks:,}",
        shortened(one_line(total.name, None), _NAME),
        shortened(stretches(total.peers), _NAME // 2) or "-",
        shortened(one_line(algorithm, None), _NAME // 2) or "-",
        *_sum_cells(total),
        *(
            "-" if rate is None else f"{rate:,.3f}"
            for rate in (total.algorithm_gbps, total.bus_gbps, total.moving_gbps)
        ),
    )


def _sum_cells(sums: Sums) -> tuple[str, ...]:
    """Return count, MB, ms, busy, waiting and moving; ``(k)`` where a sum is over k operations."""

    def partial(text: str, known: int) -> str:
        return text if known in {0, sums.operations} else f"{text} ({known:,})"

    return (
        f"{sums.operations:,}",
        partial("-" if sums.bytes is None else f"{sums.bytes / 1e6:,.3f}", sums.sized),
        partial(milliseconds(sums.duration_ns), sums.timed),
        partial(milliseconds(sums.busy_ns), sums.timed),
        partial(milliseconds(sums.waiting_ns), sums.waited),
        partial(milliseconds(sums.moving_ns), sums.moved),
    )


def _clock_sections(clocks: Sequence[RecordingClock]) -> Iterator[RenderableType]:
    if len(clocks) < 2 and all(clock.aligned_by is Alignment.REFERENCE for clock in clocks):
        return
    table = Table(
        "clock",
        "aligned by",
        "matched",
        "of",
        "median us",
        "largest us",
        "drift ppm",
        left=("clock", "aligned by"),
    )
    for clock in clocks[:_ROWS]:
        residuals = (clock.median_ns, clock.largest_ns)
        table.add_row(
            shortened(one_line(clock.label, None), _NAME),
            _ALIGNMENTS[clock.aligned_by],
            f"{clock.matched:,}" if clock.of else "-",
            f"{clock.of:,}" if clock.of else "-",
            *("-" if value is None else f"{value / 1e3:,.3f}" for value in residuals),
            "-" if clock.drift_ppm is None else f"{clock.drift_ppm:,.3f}",
        )
    yield from titled("Clocks, with the distances between matched pairs", table)
    yield from omitted(len(clocks), _ROWS)
