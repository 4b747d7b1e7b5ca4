"""Text: what ``bubbleviz nccl`` prints: files, totals, and clocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from bubbleviz.analyses.nccl.communications import Alignment, RecordingClock, communicator_text
from bubbleviz.analyses.nccl.totals import (
    DEFINITIONS,
    Communication,
    Total,
    busy_ns,
    totals_of,
)
from bubbleviz.model.process_groups import stretches
from bubbleviz.model.texts import one_line
from bubbleviz.render.text.cells import counted, milliseconds, omitted, ruled, shortened, titled

if TYPE_CHECKING:
    from rich.console import RenderableType

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
    totals = totals_of(communication)
    table = ruled(
        *("communicator", "n", "operation", "peers", "algorithm", "count", "MB", "ms", "waiting"),
        *("moving", "alg GB/s", "bus GB/s", "moving GB/s"),
        left=("communicator", "operation", "peers", "algorithm"),
    )
    for total in totals[:_ROWS]:
        table.add_row(*_cells(total))
    yield from titled("Communication, longest first (ms over all ranks)", table)
    yield from omitted(len(totals), _ROWS)
    yield from _clock_sections(communication.clocks)
    yield Text("\n" + "".join(f"{line}\n" for line in DEFINITIONS))


def summary(communication: Communication) -> str:
    """Return the files and the sums, in lines."""
    lines = []
    for file in communication.files:
        events = sum(count for _, count in file.events)
        of = f" of {events:,} events" if events else ""
        name = one_line(file.path, None)
        lines.append(f"{name}: {file.format}, {file.operations:,} operations{of}\n")
    sizes = [total.bytes for total in totals_of(communication) if total.bytes is not None]
    size = f"{sum(sizes) / 1e6:,.3f} MB" if sizes else "unknown bytes"
    window = "" if communication.window is None else f"{communication.window} alone: "
    return (
        "".join(lines) + f"{window}{counted(len(communication.operations), 'operation')} in "
        f"{counted(len(communication.ranks), 'communicator')}, {size}; "
        f"{busy_ns(communication) / 1e6:,.3f} ms in all, operations of one kernel counted once\n"
    )


def _cells(total: Total) -> tuple[str, ...]:
    algorithm = "/".join(part for part in (total.algorithm, total.protocol) if part)
    return (
        shortened(one_line(communicator_text(total.communicator), None), _NAME) or "-",
        "-" if total.ranks is None else f"{total.ranks:,}",
        shortened(one_line(total.name, None), _NAME),
        shortened(stretches(total.peers), _NAME // 2) or "-",
        shortened(one_line(algorithm, None), _NAME // 2) or "-",
        f"{total.operations:,}",
        "-" if total.bytes is None else f"{total.bytes / 1e6:,.3f}",
        milliseconds(total.duration_ns),
        milliseconds(total.waiting_ns),
        milliseconds(total.moving_ns),
        *(
            "-" if rate is None else f"{rate:,.3f}"
            for rate in (total.algorithm_gbps, total.bus_gbps, total.moving_gbps)
        ),
    )


def _clock_sections(clocks: Sequence[RecordingClock]) -> Iterator[RenderableType]:
    if len(clocks) < 2 and all(clock.aligned_by is Alignment.REFERENCE for clock in clocks):
        return
    table = ruled(
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
