"""Documents: communication as JSON, and its operations as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields

import numpy as np

from bubbleviz._version import __version__
from bubbleviz.analyses.nccl.members import (
    Communicator,
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
from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.model.texts import csv_text, inert, json_text
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
