"""Sums communication operations by communicator, name, algorithm and protocol."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from bubbleviz.analyses.nccl.analysis import Communication
from bubbleviz.analyses.nccl.communications import (
    PER_RANK_OPERATIONS,
    Communications,
    Communicator,
    format_communicator,
    get_bus_factor,
)
from bubbleviz.model import grouping, intervals
from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.sources.nccl.events import UNKNOWN


@dataclass(frozen=True)
class Total:
    """Sums over all operations, or over one communicator, name, algorithm and protocol.

    A sum only includes operations whose value is known. The sum is None if no value is known.

    Attributes:
        operations: Number of operations.
        bytes: Bytes that the ranks send or receive.
        sized_operations: Number of operations whose size in bytes is known.
        duration_ns: Sum of the durations. If an operation shares its kernel with other operations,
            the kernel's full duration is counted for each of them.
        timed_operations: Number of operations whose duration is known.
        busy_ns: Time during which any of the operations runs. Each instant on a GPU is counted
            once. The full duration of operations whose start is unknown is added.
        waiting_ns: Sum of the waiting times. An operation usually waits until its last member
            starts.
        waiting_operations: Number of operations whose waiting time is known.
        moving_ns: Sum of the moving times, where a moving time is the duration minus the waiting
            time.
        moving_operations: Number of operations whose moving time is known.
        rows: Rows of the operations, or empty for the sum over all operations.
        communicator: NCCL's communicator hash, PyTorch's process group, or None if unknown.
        ranks: Number of ranks in the communicator, or None if unknown.
        name: Name of the operations.
        peers: Distinct peers of sends and receives, or roots of collectives, ascending.
        algorithm: NCCL's algorithm, such as ``RING``, or "" if unknown.
        protocol: NCCL's protocol, such as ``LL128``, or "" if unknown.
        algorithm_gbps: Algorithm bandwidth in GB/s, which is total bytes divided by total duration,
            over the operations for which both are known. None if there are no such operations.
        bus_gbps: Bus bandwidth in GB/s, or None if unknown.
        moving_gbps: Bus bandwidth in GB/s, computed from the moving time, or None if unknown.
    """

    operations: int
    bytes: int | None
    sized_operations: int
    duration_ns: int | None
    timed_operations: int
    busy_ns: int | None
    waiting_ns: int | None
    waiting_operations: int
    moving_ns: int | None
    moving_operations: int
    rows: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    communicator: Communicator | None = None
    ranks: int | None = None
    name: str = ""
    peers: tuple[int, ...] = ()
    algorithm: str = ""
    protocol: str = ""
    algorithm_gbps: float | None = None
    bus_gbps: float | None = None
    moving_gbps: float | None = None


def sum_operations(table: Communications) -> Total:
    """Sum the bytes and times of all given operations. Unknown values are left out of the sums."""
    size, n_sized = _sum_known(table.bytes)
    duration_ns, n_timed = _sum_known(table.duration_ns)
    waiting_ns, n_waiting = _sum_known(table.waiting_ns)
    moving_ns, n_moving = _sum_known(table.moving_ns)
    return Total(
        operations=len(table),
        bytes=size,
        sized_operations=n_sized,
        duration_ns=duration_ns,
        timed_operations=n_timed,
        busy_ns=_measure_busy(table) if n_timed else None,
        waiting_ns=waiting_ns,
        waiting_operations=n_waiting,
        moving_ns=moving_ns,
        moving_operations=n_moving,
    )


def _sum_known(values: Ints) -> tuple[int | None, int]:
    """Return the sum and the count of the non-negative values.

    If there are no such values, the sum is None. Python integers are summed, because damaged files
    can contain numbers whose sum exceeds 64 bits.
    """
    known_values = values[values >= 0]
    return int(known_values.sum(dtype=object)) if len(known_values) else None, len(known_values)


def _measure_busy(table: Communications) -> int:
    """Return the time in ns during which any operation runs on a GPU, summed over all GPUs.

    Overlapping operations on the same GPU and clock are counted once. The full duration of
    operations whose start is unknown is added. Operations whose duration is unknown are ignored.
    """
    is_timed = table.duration_ns >= 0
    has_start = is_timed & (table.start_ns != UNKNOWN)
    without_start_ns = table.duration_ns[is_timed & ~has_start].sum()
    start_ns, duration_ns = table.start_ns[has_start], table.duration_ns[has_start]
    # Times on different clocks are not comparable.
    clocks = grouping.group_rows(table.gpu[has_start], table.clock[has_start])
    covered_ns = intervals.group_measure(
        clocks.of_row, len(clocks), start_ns, start_ns + duration_ns
    )
    return int(without_start_ns) + int(covered_ns.sum())


def find_totals(communication: Communication) -> tuple[Total, ...]:
    """Return the totals of a run, longest total duration first.

    There is one total for each combination of communicator, name, algorithm and protocol. Sends to
    different peers are therefore added together, as are receives from different peers.
    """
    return tuple(sorted(_compute_totals(communication), key=_make_sort_key))


def _make_sort_key(total: Total) -> tuple[object, ...]:
    """Return the sort key that puts the longest total first and breaks ties by name."""
    communicator = format_communicator(total.communicator)
    return -(total.duration_ns or 0), communicator, total.name, total.algorithm, total.protocol


def _compute_totals(communication: Communication) -> Iterator[Total]:
    """Sum operations by communicator, name, algorithm and protocol, and yield one total each."""
    table = communication.operations
    sizes, bus_factors = measure_sizes(communication)
    names = (*table.names, "")
    groups = grouping.group_rows(table.communicator, table.name, table.algorithm, table.protocol)
    for _, rows in grouping.list_rows_by_value(groups.of_row):
        operations = table.take(rows)
        first = int(rows[0])
        communicator = int(table.communicator[first])
        peers = np.where(operations.peer != NONE, operations.peer, operations.root)
        bytes_per_ns = _compute_rate(sizes[rows], operations.duration_ns)
        moving_bytes_per_ns = _compute_rate(sizes[rows], operations.moving_ns)
        yield replace(
            sum_operations(operations),
            rows=rows,
            communicator=None if communicator == NONE else table.communicators[communicator],
            ranks=None if communicator == NONE else communication.ranks[communicator],
            name=names[table.name[first]],
            peers=tuple(grouping.find_distinct(peers[peers != NONE]).tolist()),
            algorithm=names[table.algorithm[first]],
            protocol=names[table.protocol[first]],
            algorithm_gbps=_to_number(bytes_per_ns),
            bus_gbps=_to_number(bytes_per_ns * bus_factors[first]),
            moving_gbps=_to_number(moving_bytes_per_ns * bus_factors[first]),
        )


def measure_sizes(communication: Communication) -> tuple[Floats, Floats]:
    """Return the total bytes that each operation moves, and its bus bandwidth factor.

    If each rank holds only part of the data, the size of that part is multiplied by the number of
    ranks. Unknown values are NaN.

    As in nccl-tests (``doc/PERFORMANCE.md``), the algorithm bandwidth is the total bytes divided by
    time, and the bus bandwidth is the algorithm bandwidth times the factor. The bus bandwidth is
    comparable with the bandwidth of the hardware.
    """
    table = communication.operations
    rank_counts, names = (*communication.ranks, None), (*table.names, "")
    kinds = grouping.group_rows(table.name, table.communicator)
    kind_names = [names[name] for name in table.name[kinds.first].tolist()]
    kind_ranks = [rank_counts[row] for row in table.communicator[kinds.first].tolist()]
    # The float arrays below contain NaN for None.
    parts = [
        ranks if name in PER_RANK_OPERATIONS else 1
        for name, ranks in zip(kind_names, kind_ranks, strict=True)
    ]
    factors = [*map(get_bus_factor, kind_names, kind_ranks)]
    part_bytes = np.where(table.bytes >= 0, table.bytes, np.nan)
    size = part_bytes * np.array(parts, float)[kinds.of_row]
    return size, np.array(factors, float)[kinds.of_row]


def _compute_rate(size: Floats, length_ns: Ints) -> float:
    """Return total bytes divided by total time in ns.

    Operations whose size is unknown or whose time is not positive are left out. If none remains,
    the result is NaN.
    """
    is_known = ~np.isnan(size) & (length_ns > 0)
    if not is_known.any():
        return np.nan
    return float(size[is_known].sum() / length_ns[is_known].sum(dtype=float))


def _to_number(value: float) -> float | None:
    """Convert NaN to None, and return any other number unchanged."""
    return None if np.isnan(value) else float(value)
