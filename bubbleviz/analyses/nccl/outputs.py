"""Outputs of communication: JSON, operations as CSV, and what ``bubbleviz nccl`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields

import numpy as np

from bubbleviz._version import __version__
from bubbleviz.analyses.nccl.members import (
    Alignment,
    Communicator,
    RecordingClock,
    Split,
    Timing,
    communicator_text,
)
from bubbleviz.analyses.nccl.totals import (
    DEFINITIONS,
    Communication,
    Sums,
    Total,
    bandwidths_of,
    sums_of,
    totals_of,
)
from bubbleviz.model.collectives import stretches
from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.model.texts import counted, csv_text, inert, json_text, one_line
from bubbleviz.render.document import Block, HangingLines, Sentence, Table, milliseconds, shortened
from bubbleviz.sources.nccl.events import STATES, UNKNOWN, OperationKind

SCHEMA = "bubbleviz.nccl/1"
COLUMNS = (
    *("file", "kind", "pid", "communicator", "rank", "name", "peer", "root", "sequence", "count"),
    *("datatype", "bytes", "algorithm", "protocol", "channels", "clock", "start_ns", "end_ns"),
    *("duration_ns", "timing", "waiting_ns", "moving_ns", "split", "shared"),
    *("algorithm_gbps", "bus_gbps", "moving_gbps"),
)
#: Codes in words.
_KINDS = {
    OperationKind.COLLECTIVE: "collective",
    OperationKind.POINT_TO_POINT: "point-to-point",
    OperationKind.CALL: "call",
    OperationKind.COPY_ENGINE: "copy engine",
    OperationKind.PROXY: "proxy",
    OperationKind.KERNEL: "kernel",
}
_TIMINGS = {code: code.name.lower() for code in Timing}
_SPLITS = {code: "" if code == Split.UNKNOWN else code.name.lower() for code in Split}


def as_json(communication: Communication) -> str:
    """Return totals, clocks, files and limitations as JSON; null for what is unknown."""
    table = communication.operations
    document = {
        "schema": SCHEMA,
        "version": __version__,
        "files": [{**asdict(file), "events": dict(file.events)} for file in communication.files],
        "clocks": [
            {**asdict(clock), "aligned_by": clock.aligned_by.value}
            for clock in communication.clocks
        ],
        "communicators": [
            {"id": communicator_text(communicator), "ranks": ranks, **_group(communicator)}
            for communicator, ranks in communication.communicators
        ],
        "window": communication.window,
        **_sums(sums_of(table)),
        "totals": [_total(total) for total in totals_of(communication)],
        "definitions": list(DEFINITIONS),
        "limitations": [limitation.entry for limitation in communication.limitations],
    }
    return json_text(document)


def _group(communicator: Communicator) -> dict[str, object]:
    if isinstance(communicator, int):
        return {}
    return {
        "group": {
            "name": communicator.name,
            "description": communicator.description or None,
            "members": list(communicator.ranks) or None,
        }
    }


def _total(total: Total) -> dict[str, object]:
    return {
        "communicator": communicator_text(total.communicator) or None,
        "ranks": total.ranks,
        "name": total.name,
        "peers": list(total.peers),
        "algorithm": total.algorithm or None,
        "protocol": total.protocol or None,
        **_sums(total),
        "algorithm_gbps": total.algorithm_gbps,
        "bus_gbps": total.bus_gbps,
        "moving_gbps": total.moving_gbps,
    }


def _sums(sums: Sums) -> dict[str, object]:
    keys = {"sized": "sized_operations", "timed": "timed_operations"}
    keys |= {"waited": "waiting_operations", "moved": "moving_operations"}
    return {keys.get(own.name, own.name): getattr(sums, own.name) for own in fields(Sums)}


def csv_of_operations(communication: Communication) -> str:
    """Return communication as CSV, one row an operation; empty cells for what is unknown.

    Times are on the report's clock; on that of ``clock`` where it names one.
    """
    table = communication.operations
    names = [inert(name) for name in table.names]
    clocks = ["" if clock.aligned else inert(clock.label) for clock in communication.clocks]
    columns: list[list[object]] = [
        _looked_up(table.source, [inert(file.path) for file in communication.files]),
        [_KINDS[OperationKind(code)] for code in table.kind.tolist()],
        _numbers(table.pid),
        _looked_up(
            table.communicator, [inert(communicator_text(value)) for value in table.communicators]
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
        *(_rates(c) for c in bandwidths_of(communication)[1:]),
        *(column.tolist() for column in table.state_ns.T),
    ]
    header = (*COLUMNS, *(f"{name}_ns" for name in STATES))
    return csv_text(header, zip(*columns, strict=True))


def _numbers(column: Ints, none: int = NONE) -> list[object]:
    return ["" if value == none else value for value in column.tolist()]


def _looked_up(column: Ints, values: Sequence[str]) -> list[object]:
    return ["" if number == NONE else values[number] for number in column.tolist()]


def _rates(column: Floats) -> list[object]:
    return ["" if np.isnan(value) else round(value, 6) for value in column.tolist()]


# Text: files, totals, and clocks.


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


def sections(communication: Communication) -> Iterator[Block]:
    """Yield what to print."""
    yield Sentence(summary(communication))
    yield _table(communication, _ROWS)
    yield from _clock_table(communication.clocks)
    yield Sentence("\n" + "".join(f"{line}\n" for line in DEFINITIONS))


def first_screen(communication: Communication) -> Iterator[Block]:
    """Yield what fits one screen."""
    *files, sums = summary(communication).splitlines()
    more = [f"and {len(files) - _FILES:,} more files"] if len(files) > _FILES else []
    yield HangingLines([("", line) for line in (*files[:_FILES], *more, sums)])
    yield _table(communication, _FEW)
    yield Sentence(
        "\nms: from start to end, over all ranks; busy: each instant of a GPU once; waiting: until "
        "the operation's last rank has started; moving: the rest; bus GB/s: as nccl-tests count it"
    )
    yield Sentence("\nMore: -v (all rows, clocks, definitions); -o operations.csv", style="dim")


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
    totals, operations = totals_of(communication), communication.operations
    rows = []
    for total in totals[:most]:
        algorithm = "/".join(part for part in (total.algorithm, total.protocol) if part)
        rows.append(
            {
                "communicator": _short(communicator_text(total.communicator)) or "-",
                "n": "-" if total.ranks is None else f"{total.ranks:,}",
                "operation": _short(total.name),
                "peers": shortened(stretches(total.peers), _NAME // 2) or "-",
                "algorithm": shortened(one_line(algorithm, None), _NAME // 2) or "-",
                **_sum_cells(total),
                "alg GB/s": _rate(total.algorithm_gbps),
                "bus GB/s": _rate(total.bus_gbps),
                "moving GB/s": _rate(total.moving_gbps),
            }
        )
    if rest := totals[most:]:
        summed = sums_of(operations.take(np.concatenate([total.rows for total in rest])))
        words = f"{counted(len(rest), 'more row')}, summed"
        rows.append({"communicator": words, **_sum_cells(summed)})
    if len(totals) > 1:
        rows += [{}, {"communicator": "all", **_sum_cells(sums_of(operations))}]
    left = ("communicator", "operation", "peers", "algorithm")
    return Table("Communication, longest first", rows, left, giving_way=_GIVING_WAY)


def _short(name: str) -> str:
    return shortened(one_line(name, None), _NAME)


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3f}"


def _sum_cells(sums: Sums) -> dict[str, str]:
    """Return count, MB, ms, busy, waiting and moving; ``(k)`` where a sum is over k operations."""

    def partial(text: str, known: int) -> str:
        return text if known in {0, sums.operations} else f"{text} ({known:,})"

    return {
        "count": f"{sums.operations:,}",
        "MB": partial(_rate(None if sums.bytes is None else sums.bytes / 1e6), sums.sized),
        "ms": partial(milliseconds(sums.duration_ns), sums.timed),
        "busy": partial(milliseconds(sums.busy_ns), sums.timed),
        "waiting": partial(milliseconds(sums.waiting_ns), sums.waited),
        "moving": partial(milliseconds(sums.moving_ns), sums.moved),
    }


def _clock_table(clocks: Sequence[RecordingClock]) -> Iterator[Table]:
    if len(clocks) < 2 and all(clock.aligned_by is Alignment.REFERENCE for clock in clocks):
        return
    rows = [
        {
            "clock": _short(clock.label),
            "aligned by": _ALIGNMENTS[clock.aligned_by],
            "matched": f"{clock.matched:,}" if clock.of else "-",
            "of": f"{clock.of:,}" if clock.of else "-",
            "median us": _rate(None if clock.median_ns is None else clock.median_ns / 1e3),
            "largest us": _rate(None if clock.largest_ns is None else clock.largest_ns / 1e3),
            "drift ppm": _rate(clock.drift_ppm),
        }
        for clock in clocks[:_ROWS]
    ]
    title = "Clocks, with the distances between matched pairs"
    yield Table(title, rows, ("clock", "aligned by"), omitted=len(clocks) - _ROWS)
