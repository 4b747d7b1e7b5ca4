"""Writes the communication report as JSON, and its operations as CSV."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from bubbleviz._version import __version__
from bubbleviz.analyses.nccl import hangs
from bubbleviz.analyses.nccl.analysis import Communication
from bubbleviz.analyses.nccl.communications import Communicator, Split, Timing, format_communicator
from bubbleviz.analyses.nccl.summary import (
    NCCL_SCHEMA,
    CommunicatorEntry,
    FaultEntry,
    FileEntry,
    GroupEntry,
    NcclSummary,
    TotalEntry,
)
from bubbleviz.analyses.nccl.totals import Total, find_totals, measure_sizes, sum_operations
from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.model.texts import format_csv, format_json, quote_formula
from bubbleviz.report.summary import LatenessEntry, LimitationEntry, RestrictionEntry, to_values
from bubbleviz.sources.nccl.events import PROGRESS, STATES, UNKNOWN, OperationKind

#: Definitions of the terms in the report, printed below the table and written to the JSON.
DEFINITIONS = (
    "n: number of ranks in the communicator, from NCCL's ranges, NCCL Inspector or PyTorch's "
    "groups, otherwise the highest recorded rank plus one",
    "MB, ms, waiting, moving: sums over the operations. (k) means that the value is known for only "
    "k operations, which are summed",
    "bytes: number of elements times their size, sent or received by one rank (AllGather: one "
    "rank's part)",
    "ms: time from start to end, summed over all ranks. If operations share a kernel, each counts "
    "the kernel's full time",
    "busy: time in ms during which GPUs run any of these operations, without counting overlaps on "
    "a GPU twice. Rows can overlap, so they can add up to more than the total. Operations without "
    "times count in full",
    "waiting: time from a rank's start to the start of the operation's last member. If only "
    "durations were recorded: the duration minus the shortest duration of any member. If no other "
    "member was recorded: time during which the rank's proxy thread waits for the peer "
    "(SendPeerWait, RecvWait) and moves no data",
    "moving: the rest of the operation's time, if its end is known",
    "waited for: the rank that entered an operation last, and how long all others waited for it. "
    "Flight recorders and NCCL Inspector give exact durations only, so all members are assumed to "
    "end together. Ranks of NCCL Inspector are those of its largest communicator, if that contains "
    "all GPUs; otherwise the files are listed",
    "GB/s: 10^9 bytes per second. alg: bytes of all ranks' parts divided by time. bus: alg times "
    "2(n-1)/n (AllReduce), (n-1)/n (AllGather, ReduceScatter, AlltoAll, Gather, Scatter) or 1, as "
    "in nccl-tests. moving: the same as bus, but divided by the time during which data moves",
)
#: Transfer rate columns, which come after the columns of the operation table.
_RATES = ("algorithm_gbps", "bus_gbps", "moving_gbps")
COLUMNS = (
    *("file", "kind", "pid", "communicator", "rank", "name", "peer", "root", "sequence", "count"),
    *("datatype", "bytes", "algorithm", "protocol", "channels", "clock", "start_ns", "end_ns"),
    *("duration_ns", "timing", "waiting_ns", "moving_ns", "awaited_ns", "split", "shared"),
    *("run_rank", "progress"),
    *_RATES,
)


def as_json(communication: Communication) -> str:
    """Return totals, clocks, files and limitations as JSON. Unknown values are null."""
    return format_json(to_values(build_summary(communication)))


def build_summary(communication: Communication) -> NcclSummary:
    """Build the summary that is written as JSON."""
    sums = sum_operations(communication.operations)
    return NcclSummary(
        schema=NCCL_SCHEMA,
        version=__version__,
        files=[
            FileEntry(path, file_format, count, dict(events))
            for (path, file_format, events), count in zip(
                communication.files, communication.counts, strict=True
            )
        ],
        clocks=communication.clocks,
        communicators=[_make_communicator_entry(*entry) for entry in communication.communicators],
        window=communication.window,
        operations=sums.operations,
        bytes=sums.bytes,
        sized_operations=sums.sized_operations,
        duration_ns=sums.duration_ns,
        timed_operations=sums.timed_operations,
        busy_ns=sums.busy_ns,
        waiting_ns=sums.waiting_ns,
        waiting_operations=sums.waiting_operations,
        moving_ns=sums.moving_ns,
        moving_operations=sums.moving_operations,
        missing_ranks=hangs.find_culprits(communication.faults),
        faults=[_make_fault_entry(fault) for fault in communication.faults],
        waited_for=hangs.list_late_ranks(
            communication.operations, communication.paths_of_processes
        ),
        totals=[_make_total_entry(total) for total in find_totals(communication)],
        definitions=DEFINITIONS,
        restrictions=RestrictionEntry.list_of(communication.restrictions),
        limitations=LimitationEntry.list_of(communication.limitations),
        gpu_names=communication.gpu_names,
        lateness=None
        if communication.lateness is None
        else LatenessEntry.of(communication.lateness, communication.late_sentence),
    )


def _make_communicator_entry(communicator: Communicator, ranks: int | None) -> CommunicatorEntry:
    """Return the entry of a communicator.

    Args:
        communicator: The communicator.
        ranks: Number of ranks in the communicator, or None if unknown.
    """
    text = format_communicator(communicator)
    if isinstance(communicator, int):
        return CommunicatorEntry(text, ranks)
    members = list(communicator.ranks) or None
    group = GroupEntry(communicator.name, communicator.description or None, members)
    return CommunicatorEntry(text, ranks, group)


def _make_fault_entry(fault: hangs.Fault) -> FaultEntry:
    """Return the JSON entry for an operation that hangs or that ranks called differently."""
    return FaultEntry(
        communicator=format_communicator(fault.communicator),
        name=fault.name,
        sequence=None if fault.sequence == NONE else fault.sequence,
        entered=fault.entered,
        missing=fault.missing,
        undumped=fault.undumped,
        calls=fault.calls,
    )


def _make_total_entry(total: Total) -> TotalEntry:
    """Convert a total to its JSON entry. Unknown texts become null."""
    return TotalEntry(
        communicator=format_communicator(total.communicator) or None,
        ranks=total.ranks,
        name=total.name or None,
        peers=total.peers,
        algorithm=total.algorithm or None,
        protocol=total.protocol or None,
        operations=total.operations,
        bytes=total.bytes,
        sized_operations=total.sized_operations,
        duration_ns=total.duration_ns,
        timed_operations=total.timed_operations,
        busy_ns=total.busy_ns,
        waiting_ns=total.waiting_ns,
        waiting_operations=total.waiting_operations,
        moving_ns=total.moving_ns,
        moving_operations=total.moving_operations,
        algorithm_gbps=total.algorithm_gbps,
        bus_gbps=total.bus_gbps,
        moving_gbps=total.moving_gbps,
    )


def format_operations_csv(communication: Communication) -> str:
    """Return all operations as CSV, one row per operation. Cells of unknown values are empty.

    Times are on the report's clock, unless the column ``clock`` names a clock that could not be
    aligned.
    """
    table = communication.operations
    texts = _list_column_texts(communication)
    columns: list[list[object]] = []
    for name in COLUMNS[: -len(_RATES)]:
        values = getattr(table, "source" if name == "file" else name)
        unknown = UNKNOWN if name in {"start_ns", "end_ns"} else NONE
        columns.append(_format_cells(values, unknown, texts.get(name)))
    size, bus_factor = measure_sizes(communication)
    bytes_per_ns = size / _keep_positive(table.duration_ns)
    moving_bytes_per_ns = size / _keep_positive(table.moving_ns)
    for rate in (bytes_per_ns, bytes_per_ns * bus_factor, moving_bytes_per_ns * bus_factor):
        columns.append(["" if np.isnan(value) else round(value, 6) for value in rate.tolist()])
    header = (*COLUMNS, *(f"{name}_ns" for name in STATES))
    return format_csv(header, zip(*columns, *table.state_ns.T.tolist(), strict=True))


def _list_column_texts(communication: Communication) -> dict[str, list[str]]:
    """Return, for each column of indices, the texts that the indices refer to."""
    table = communication.operations
    names = [quote_formula(name) for name in table.names]
    kinds = [kind.name.lower().replace("_", " ") for kind in OperationKind]
    kinds[OperationKind.POINT_TO_POINT] = "point-to-point"
    return {
        "file": [quote_formula(path) for path, *_ in communication.files],
        "kind": kinds,
        "communicator": [
            quote_formula(format_communicator(value)) for value in table.communicators
        ],
        "clock": [
            "" if clock.aligned else quote_formula(clock.label) for clock in communication.clocks
        ],
        "progress": list(PROGRESS),
        "timing": [timing.name.lower() for timing in Timing],
        "split": ["", *(split.name.lower() for split in Split if split)],
        **dict.fromkeys(("name", "datatype", "algorithm", "protocol"), names),
    }


def _format_cells(values: Ints, unknown: int, texts: list[str] | None) -> list[object]:
    """Return the cells of a column.

    Args:
        values: Numbers, or indices into ``texts``.
        unknown: Value that stands for unknown and is written as an empty cell.
        texts: Texts to which the values refer by index, or None for a column of numbers.
    """
    if texts is None:
        return ["" if value == unknown else value for value in values.tolist()]
    return ["" if value == unknown else texts[value] for value in values.tolist()]


def _keep_positive(values: Ints) -> Floats:
    """Return the values as floats, with zeros and negative values replaced with NaN."""
    return np.where(values > 0, values, np.nan)


#: Functions that render the report, keyed by format name.
RENDERINGS: Mapping[str, Callable[[Communication], str]] = {
    "csv": format_operations_csv,
    "json": as_json,
}
