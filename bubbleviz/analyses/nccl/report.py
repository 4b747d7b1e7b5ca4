"""What ``nccl`` prints and writes: totals, clocks, and one row an operation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bubbleviz._version import __version__
from bubbleviz.analyses.nccl.communications import Split, Timing, communicator_text
from bubbleviz.analyses.nccl.totals import bandwidths_of, busy_ns, totals_of
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.process_groups import stretches
from bubbleviz.model.texts import csv_text, inert, one_line
from bubbleviz.render.text.cells import milliseconds, ruled, shortened, titled
from bubbleviz.sources.nccl.events import STATES, UNKNOWN, OperationKind

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bubbleviz.analyses.nccl.clocks import Clock
    from bubbleviz.analyses.nccl.communications import Communicator
    from bubbleviz.analyses.nccl.totals import Communication, Floats, Total

SCHEMA = "bubbleviz.nccl/1"
#: Of a table, rows; of a name in it, characters.
_ROWS, _NAME = 40, 40
COLUMNS = (
    *("file", "kind", "pid", "communicator", "rank", "name", "peer", "root", "sequence", "count"),
    *("datatype", "bytes", "algorithm", "protocol", "channels", "clock", "start_ns", "end_ns"),
    *("duration_ns", "timing", "waiting_ns", "moving_ns", "split", "shared"),
    *("algorithm_gbps", "bus_gbps", "moving_gbps"),
)
#: Words for codes.
_KINDS = {
    OperationKind.COLLECTIVE: "collective",
    OperationKind.POINT_TO_POINT: "point-to-point",
    OperationKind.CALL: "call",
    OperationKind.COPY_ENGINE: "copy engine",
    OperationKind.PROXY: "proxy",
    OperationKind.KERNEL: "kernel",
}
_TIMINGS = {own: own.name.lower() for own in Timing}
_SPLITS = {own: "" if own == Split.UNKNOWN else own.name.lower() for own in Split}
_BY = {
    "reference": "the report's clock",
    "kernels": "matched with kernels",
    "anchor": "as stated",
    "utc": "UTC of its host",
    "operations": "ends of common operations",
    "own": "on no other clock",
}
#: What the numbers mean; they stand below the table and in the JSON.
DEFINITIONS = (
    "n: ranks of the communicator, as NCCL's ranges or PyTorch's groups tell, else the "
    "highest that was seen and one",
    "bytes: elements times their size, as one rank hands in or takes them (an AllGather's: of one "
    "rank's part)",
    "waiting: from a rank's own start to the start of the operation's last member; where no other "
    "member is known, while a step of its proxy thread waits for the peer (SendPeerWait, RecvWait) "
    "and none moves data (SendWait, RecvFlushWait)",
    "moving: the rest of the operation's time",
    "GB/s: 10^9 bytes a second; alg: bytes over time, all ranks' parts together; bus: times "
    "2(n-1)/n (AllReduce), (n-1)/n (AllGather, ReduceScatter, AlltoAll, Gather, Scatter) or 1, as "
    "in nccl-tests; moving: bus, over the time in which data moves",
)


def summary(found: Communication) -> str:
    """Return what was read, in lines."""
    lines = []
    for file in found.files:
        events = sum(count for _, count in file.events)
        of = f" of {events:,} events" if events else ""
        name = one_line(file.path, None)
        lines.append(f"{name}: {file.format}, {file.operations:,} operations{of}\n")
    told = [own.bytes for own in totals_of(found) if own.bytes is not None]
    size = f"{sum(told) / 1e6:,.3f} MB" if told else "unknown bytes"
    count = len(found.operations)
    part = "" if found.window is None else f"{found.window} alone: "
    return (
        "".join(lines)
        + f"{part}{count:,} operations in {len(found.ranks):,} communicators, {size}; "
        f"{busy_ns(found) / 1e6:,.3f} ms in all, what runs in one kernel once\n"
    )


def parts(found: Communication) -> Iterator[RenderableType]:
    """Yield what to print."""
    from rich.text import Text

    yield Text(summary(found))
    totals = totals_of(found)
    left = ("communicator", "operation", "peers", "algorithm")
    table = ruled(
        *("communicator", "n", "operation", "peers", "algorithm", "count", "MB", "ms", "waiting"),
        *("moving", "alg GB/s", "bus GB/s", "moving GB/s"),
        left=left,
    )
    for own in totals[:_ROWS]:
        table.add_row(*_cells(own))
    yield from titled("Communication, what takes longest first (ms over all ranks)", table)
    if len(totals) > _ROWS:
        yield Text(f"and {len(totals) - _ROWS:,} more")
    yield from _clock_parts(found.clocks)
    yield Text("\n" + "".join(f"{line}\n" for line in DEFINITIONS))


def _cells(own: Total) -> tuple[str, ...]:
    how = "/".join(part for part in (own.algorithm, own.protocol) if part)
    return (
        shortened(one_line(communicator_text(own.communicator), None), _NAME) or "-",
        "-" if own.ranks is None else f"{own.ranks:,}",
        shortened(one_line(own.name, None), _NAME),
        shortened(stretches(own.peers), _NAME // 2) or "-",
        shortened(one_line(how, None), _NAME // 2) or "-",
        f"{own.operations:,}",
        "-" if own.bytes is None else f"{own.bytes / 1e6:,.3f}",
        milliseconds(own.duration_ns),
        milliseconds(own.waiting_ns),
        milliseconds(own.moving_ns),
        *(
            "-" if value is None else f"{value:,.3f}"
            for value in (own.algorithm_gbps, own.bus_gbps, own.moving_gbps)
        ),
    )


def _clock_parts(clocks: Sequence[Clock]) -> Iterator[RenderableType]:
    from rich.text import Text

    if len(clocks) < 2 and all(clock.by == "reference" for clock in clocks):
        return
    table = ruled(
        "clock",
        "placed by",
        "matched",
        "of",
        "median us",
        "largest us",
        "drift ppm",
        left=("clock", "placed by"),
    )
    for own in clocks[:_ROWS]:
        residual = (own.median_ns, own.worst_ns)
        table.add_row(
            shortened(one_line(own.label, None), _NAME),
            _BY[own.by],
            f"{own.matched:,}" if own.of else "-",
            f"{own.of:,}" if own.of else "-",
            *("-" if value is None else f"{value / 1e3:,.3f}" for value in residual),
            "-" if own.drift_ppm is None else f"{own.drift_ppm:,.3f}",
        )
    yield from titled("Clocks, and what is left between what they were matched by", table)
    if len(clocks) > _ROWS:
        yield Text(f"and {len(clocks) - _ROWS:,} more")


def to_csv(found: Communication) -> str:
    """Return one row an operation; empty cells for what is unknown.

    Times are on the report's clock; on that of ``clock`` where it names one.
    """
    table = found.operations
    names = [inert(name) for name in table.names]
    clocks = ["" if clock.placed else inert(clock.label) for clock in found.clocks]
    bandwidths = bandwidths_of(found)
    columns: list[list[object]] = [
        _looked_up(table.source, [inert(file.path) for file in found.files]),
        [_KINDS[OperationKind(code)] for code in table.kind.tolist()],
        _numbers(table.pid),
        _looked_up(
            table.communicator, [inert(communicator_text(own)) for own in table.communicators]
        ),
        _numbers(table.rank),
        _looked_up(table.name, names),
        *(_numbers(c) for c in (table.peer, table.root, table.sequence, table.count)),
        _looked_up(table.datatype, names),
        _numbers(table.bytes),
        _looked_up(table.algorithm, names),
        _looked_up(table.protocol, names),
        _numbers(table.channels),
        _looked_up(table.clock, clocks),
        *(_numbers(c, UNKNOWN) for c in (table.start_ns, table.end_ns)),
        _numbers(table.duration_ns),
        [_TIMINGS[Timing(code)] for code in table.timing.tolist()],
        *(_numbers(c) for c in (table.waiting_ns, table.moving_ns)),
        [_SPLITS[Split(code)] for code in table.split.tolist()],
        table.shared.tolist(),
        *(_rates(c) for c in (bandwidths.algorithm, bandwidths.bus, bandwidths.moving)),
        *(column.tolist() for column in table.state_ns.T),
    ]
    header = (*COLUMNS, *(f"{name}_ns" for name in STATES))
    return csv_text(header, zip(*columns, strict=True))


def _group(communicator: Communicator) -> dict[str, object]:
    if isinstance(communicator, int):
        return {}
    members = list(communicator.ranks) or None
    told = {"name": communicator.name, "description": communicator.description or None}
    return {"group": {**told, "members": members}}


def _numbers(column: Ints, none: int = NONE) -> list[object]:
    return ["" if value == none else value for value in column.tolist()]


def _looked_up(column: Ints, values: Sequence[str]) -> list[object]:
    return ["" if number == NONE else values[number] for number in column.tolist()]


def _rates(column: Floats) -> list[object]:
    return ["" if np.isnan(value) else round(value, 6) for value in column.tolist()]


def to_json(found: Communication) -> str:
    """Return totals, clocks, files and limitations for machines; null for what is unknown."""
    table = found.operations
    content = {
        "schema": SCHEMA,
        "version": __version__,
        "files": [
            {
                "path": file.path,
                "format": file.format,
                "operations": file.operations,
                "events": dict(file.events),
            }
            for file in found.files
        ],
        "clocks": [
            {
                "label": own.label,
                "placed_by": own.by,
                "matched": own.matched,
                "of": own.of,
                "residual_median_ns": own.median_ns,
                "residual_max_ns": own.worst_ns,
                "drift_ppm": own.drift_ppm,
            }
            for own in found.clocks
        ],
        "communicators": [
            {"id": communicator_text(own), "ranks": ranks, **_group(own)}
            for own, ranks in zip(table.communicators, found.ranks, strict=True)
        ],
        "window": found.window,
        "operations": len(table),
        "busy_ns": busy_ns(found),
        "totals": [
            {
                "communicator": communicator_text(own.communicator) or None,
                "ranks": own.ranks,
                "name": own.name,
                "peers": list(own.peers),
                "algorithm": own.algorithm or None,
                "protocol": own.protocol or None,
                "operations": own.operations,
                "bytes": own.bytes,
                "timed_operations": own.timed,
                "duration_ns": own.duration_ns,
                "waiting_ns": own.waiting_ns,
                "moving_ns": own.moving_ns,
                "algorithm_gbps": own.algorithm_gbps,
                "bus_gbps": own.bus_gbps,
                "moving_gbps": own.moving_gbps,
            }
            for own in totals_of(found)
        ],
        "definitions": list(DEFINITIONS),
        "limitations": [
            {"what": own.what, "reason": own.reason, "count": own.count}
            for own in found.limitations
        ],
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"
