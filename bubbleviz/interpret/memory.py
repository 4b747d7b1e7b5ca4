"""The memory that operations allocate, and the time at which it is freed.

The allocations and frees are the memory events of a profile::

    F3 ├────────┤      B3 ├──────┤        W3 ├────┤
       a────────────────────┘                         freed by B: an activation
         b──────────────────────────────────┘         freed by W: an activation that W needs
           c──┘                                       temporary memory of F
             d──────────┘                             an output, until it is sent to the next stage
               e──────────────────────────────────>   never freed: gradients, optimizer states

An allocation is matched with the next free at the same address. A free may be recorded a little
after the end of the range. Therefore, a free is attributed to an operation until the next operation
starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from bubbleviz.conventions.layer_names import LayerName
from bubbleviz.interpret.layers import LayerRanges
from bubbleviz.model.columns import NONE, Bools, Codes, Floats, Ints, Table, join_tables, scatter
from bubbleviz.model.grouping import group_rows
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.memory_events import MemoryEvents
from bubbleviz.model.memory_sizes import format_memory
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COMPUTE, Phase
from bubbleviz.model.profile import process_of

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False, repr=False)
class RankMemory(Table):
    """Memory of ranks in bytes, or -1 if unknown. One row per rank.

    Attributes:
        rank: Index of the rank in its profile.
        peak: Maximum allocated memory.
        resident: Median of the allocated memory at the start of an iteration. It contains the
            weights, gradients and optimizer states.
        unseen: Lower bound of the memory that was allocated before the capture and freed during it.
            It is 0 if the events report the total allocated memory.
    """

    rank: Ints
    peak: Ints
    resident: Ints
    unseen: Ints


@dataclass(frozen=True, eq=False, repr=False)
class OperationMemory(Table):
    """Median memory per operation in bytes, one row per combination of rank, chunk and phase.

    Attributes:
        rank: Index of the rank in its profile.
        chunk: Chunk in the names of the operations, or -1 if the names contain none.
        phase: Phase of the operations.
        count: Number of operations.
        net: Memory at the end of an operation, minus the memory at its start.
        above_start: Peak memory during an operation, minus the memory at its start.
        activation: Memory that an F allocates and its backward frees. It is 0 for other phases.
        weight_activation: The part of ``activation`` that W frees rather than B. If the backward is
            a single operation (BW), this is all of ``activation``.
    """

    rank: Ints
    chunk: Ints
    phase: Ints
    count: Ints
    net: Floats
    above_start: Floats
    activation: Floats
    weight_activation: Floats


@dataclass(frozen=True, eq=False, repr=False)
class LayerMemory(Table):
    """Mean activation memory per microbatch in bytes, one row per rank, chunk and layer.

    Attributes:
        rank: Index of the rank in its profile.
        chunk: Chunk in the names of the operations, or -1 if the names contain none.
        layer: Index into ``layers``, or -1 for memory allocated outside all layer ranges.
        activation: See :class:`OperationMemory`.
        weight_activation: See :class:`OperationMemory`.
        layers: Distinct layers.
    """

    rank: Ints
    chunk: Ints
    layer: Ints
    activation: Floats
    weight_activation: Floats
    layers: tuple[LayerName, ...] = field(metadata={"shared": True})


@dataclass(frozen=True)
class MemoryUse:
    """Memory used by the ranks, operations and layers of a profile."""

    ranks: RankMemory
    operations: OperationMemory
    layers: LayerMemory


def measure_memory(
    events: MemoryEvents, operations: Operations, ranks: Ints, layers: LayerRanges
) -> MemoryUse | None:
    """Measure the memory that the operations of a profile allocate and keep.

    Args:
        events: Memory events of the profile.
        operations: Operations of the profile, with the host times of their ranges.
        ranks: Process and device of each rank, shape (ranks, 2).
        layers: Outermost layer ranges.

    Returns:
        The memory of all ranks that have events, or None if no event belongs to a rank.
    """
    parts = []
    for rank, (process, device) in enumerate(ranks.tolist()):
        rows = np.flatnonzero((process_of(events.thread) == process) & (events.device == device))
        if len(rows):
            of_rank = events.take(rows[np.argsort(events.time_ns[rows], kind="stable")])
            parts.append(_measure_rank(rank, of_rank, operations, layers))
    if not parts:
        return None
    return MemoryUse(*(join_tables(tables) for tables in zip(*parts, strict=True)))


def list_memory_limitations(path: str, use: MemoryUse) -> Iterator[Limitation]:
    """Yield a limitation if any ranks free memory whose allocation was not recorded.

    Args:
        path: Path of the profile.
        use: Measured memory of the profile.
    """
    unseen = use.ranks.unseen
    if unseen.any():
        yield Limitation(
            "memory allocated before the capture",
            f"{path}: up to {format_memory(int(unseen.max()))} was freed without a recorded "
            "allocation, so peak and resident memory may be larger than shown; start the capture "
            "at the beginning of the run",
            int((unseen > 0).sum()),
        )


def _measure_rank(
    rank: int, events: MemoryEvents, operations: Operations, layers: LayerRanges
) -> tuple[RankMemory, OperationMemory, LayerMemory]:
    """Measure the memory of one rank.

    Args:
        rank: Index of the rank.
        events: Memory events of the rank, sorted by time. Must not be empty.
        operations: Operations of all ranks.
        layers: Outermost layer ranges.

    Returns:
        rank: Memory of the rank, a single row.
        operations: Memory of its compute operations.
        layers: Memory of its layers.
    """
    rows = np.flatnonzero((operations.rank == rank) & mask_phases(operations.phase, COMPUTE))
    rows = rows[np.argsort(operations.host_start_ns[rows], kind="stable")]
    computes = operations.take(rows)
    running = events.change.cumsum()
    # If more memory is freed than was allocated, the difference was allocated before the capture.
    unseen = max(0, -int(running.min()))
    level = running + unseen
    if (events.total >= 0).all():
        unseen, level = 0, events.total
    pairs = find_backwards(computes)
    activations = _find_activations(computes, pairs, events, layers)
    of_rank = RankMemory(
        rank=np.array([rank]),
        peak=np.array([max(unseen, int(level.max()))]),
        resident=np.array([_measure_resident(computes, events, level)]),
        unseen=np.array([unseen]),
    )
    return (
        of_rank,
        _summarize_operations(rank, computes, events, pairs.backward, activations),
        _summarize_layers(rank, computes, pairs.backward, activations, layers.layers),
    )


@dataclass(frozen=True, eq=False, repr=False)
class _Activations(Table):
    """Allocations made in forwards and freed in the backward of the same microbatch.

    Attributes:
        forward: Row of the forward.
        layer: Index of the layer whose range was open during the allocation, or -1 if none was.
        size: Size of the allocation in bytes.
        weight_size: ``size`` if W frees the allocation or if the backward is a single operation
            (BW), otherwise 0.
    """

    forward: Ints
    layer: Ints
    size: Ints
    weight_size: Ints


@dataclass(frozen=True)
class Backwards:
    """The backward operations that belong to each operation of a rank, shape (operations,).

    Attributes:
        backward: Row of each forward's B or BW, or -1 if there is none.
        weight: Row of each forward's W, or -1 if there is none.
    """

    backward: Ints
    weight: Ints


def _find_activations(
    operations: Operations, pairs: Backwards, events: MemoryEvents, layers: LayerRanges
) -> _Activations:
    """Find the allocations made in forwards and freed in the B, BW or W of the same microbatch.

    A free that is recorded between the start of the B or BW and the start of the next operation
    belongs to the B or BW. A later free belongs to the W if it is recorded at or before the start
    of the operation that follows the W. All other frees are ignored, and so are forwards without a
    B or BW.

    Args:
        operations: Compute operations of a rank, sorted by host start.
        pairs: Backward operations that belong to each operation.
        events: Memory events of the rank, sorted by time.
        layers: Outermost layer ranges.
    """
    row, freed_ns = _match_frees(events)
    forward = _find_open_operation(operations, events.time_ns[row])
    has_pair = (forward != NONE) & (freed_ns != _NEVER)
    has_pair &= np.append(pairs.backward, NONE)[forward] != NONE
    row, freed_ns, forward = row[has_pair], freed_ns[has_pair], forward[has_pair]

    # A free is attributed to an operation until the next operation starts.
    next_but_one_ns = np.append(operations.host_start_ns[1:], [_NEVER, _NEVER])
    backward = pairs.backward[forward]
    last = np.maximum(pairs.weight, pairs.backward)[forward]
    by_backward = freed_ns <= next_but_one_ns[backward]
    by_weight = ~by_backward & (pairs.weight[forward] != NONE) & (freed_ns <= next_but_one_ns[last])
    is_activation = (freed_ns >= operations.host_start_ns[backward]) & (by_backward | by_weight)
    until_weight = by_weight | (operations.phase[backward] == Phase.BW)

    row = row[is_activation]
    size = events.change[row]
    return _Activations(
        forward=forward[is_activation],
        layer=layers.around(events.thread[row], events.time_ns[row]),
        size=size,
        weight_size=np.where(until_weight[is_activation], size, 0),
    )


def _match_frees(events: MemoryEvents) -> tuple[Ints, Ints]:
    """Match each allocation with the next event at the same address, if that event is a free.

    Args:
        events: Memory events of a rank, sorted by time.

    Returns:
        row: Rows of the allocations, sorted by (address, time).
        freed_ns: Time at which each allocation was freed, or the largest int64 if there is no
            matching free.
    """
    order = np.lexsort((np.arange(len(events)), events.address))
    address, change = events.address[order], events.change[order]
    freed_ns = np.full(len(order), _NEVER)
    before_free = np.flatnonzero((address[1:] == address[:-1]) & (change[1:] < 0))
    freed_ns[before_free] = events.time_ns[order][before_free + 1]
    is_allocation = change > 0
    return order[is_allocation], freed_ns[is_allocation]


def find_backwards(operations: Operations) -> Backwards:
    """Match each forward of a rank with the next B or BW, and with the next W, of its microbatch.

    Operations match if they have the same chunk, microbatch and sequence. There is no match if
    another forward with the same key comes first.

    Args:
        operations: Operations of a rank, sorted by time.

    Returns:
        Rows of the matching operations, shape (operations,). All rows are -1 for operations other
        than F.
    """
    row = np.arange(len(operations))
    order = np.lexsort((row, operations.sequence, operations.microbatch, operations.chunk))
    groups = group_rows(operations.chunk, operations.microbatch, operations.sequence)
    group, phase = groups.of_row[order], operations.phase[order]
    is_forward = phase == Phase.F
    next_forward = _find_next_in_group(is_forward, group)

    def match_forwards(is_candidate: Bools) -> Ints:
        """Return the next candidate for each forward, in the order of ``operations``."""
        match = _find_next_in_group(is_candidate, group)
        is_too_late = (next_forward != NONE) & (match > next_forward)
        has_match = is_forward & (match != NONE) & ~is_too_late
        return scatter(len(operations), order, np.where(has_match, order[match], NONE))

    return Backwards(
        backward=match_forwards(mask_phases(phase, (Phase.B, Phase.BW))),
        weight=match_forwards(phase == Phase.W),
    )


def _find_next_in_group(is_candidate: Bools, group: Ints) -> Ints:
    """Return, for each row, the next candidate in the same group, or -1 if there is none.

    Args:
        is_candidate: Mask of the rows that may be returned.
        group: Group of each row. Rows of a group are consecutive.
    """
    count = len(group)
    if not count:
        return np.empty(0, np.int64)
    candidate = np.where(is_candidate, np.arange(count), count)
    first_from = np.minimum.accumulate(candidate[::-1])[::-1]
    following = np.append(first_from[1:], count)
    has_next = following < count
    has_next[has_next] = group[following[has_next]] == group[has_next]
    return np.where(has_next, following, NONE)


def _find_open_operation(operations: Operations, time_ns: Ints) -> Ints:
    """Return the operation whose host range contains each time, or -1 if there is none.

    Args:
        operations: Operations of a rank, sorted by host start. If several operations contain a
            time, only the last one to start is considered.
        time_ns: The times, in any order.
    """
    last = np.searchsorted(operations.host_start_ns, time_ns, side="right") - 1
    is_open = (last >= 0) & (time_ns <= np.append(operations.host_end_ns, NONE)[last])
    return np.where(is_open, last, NONE).astype(np.int64)


def _measure_resident(operations: Operations, events: MemoryEvents, level: Ints) -> int:
    """Return the median, over all iterations, of the memory allocated before the first F.

    The result is -1 if there is no F.

    Args:
        operations: Operations of a rank, sorted by time.
        events: Memory events of the rank, sorted by time.
        level: Allocated memory after each event, in bytes.
    """
    forward = operations.take(operations.phase == Phase.F)
    if len(forward) == 0:
        return NONE
    start_ns = forward.host_start_ns[group_rows(forward.iteration).first]
    last_event = np.searchsorted(events.time_ns, start_ns) - 1
    initial = max(0, int(level[0] - events.change[0]))
    return int(np.median(np.where(last_event >= 0, level[last_event], initial)))


def _summarize_operations(
    rank: int,
    operations: Operations,
    events: MemoryEvents,
    backward: Ints,
    activations: _Activations,
) -> OperationMemory:
    """Compute the median memory per operation for each chunk and phase.

    The medians of four quantities are computed: the net change, the peak above the start, the
    activations, and the activations that are kept for W. Operations without a backward are left out
    of the two medians of activations. If no operation has a backward, both medians are 0.

    Args:
        rank: Index of the rank.
        operations: Compute operations of the rank, sorted by time.
        events: Memory events of the rank, sorted by time.
        backward: Row of each operation's backward, or -1 if there is none.
        activations: Activations of the forwards.
    """
    count = len(operations)
    net, above_start = _measure_changes(operations, events)
    sizes = np.bincount(activations.forward, activations.size, count)
    weight_sizes = np.bincount(activations.forward, activations.weight_size, count)
    groups = group_rows(operations.chunk, operations.phase)
    rows = [np.flatnonzero(groups.of_row == number) for number in range(len(groups.first))]
    rows_with_pair = [of_kind[backward[of_kind] != NONE] for of_kind in rows]

    def medians(values: Codes | Floats, rows: list[Ints]) -> Floats:
        return np.array([np.median(values[of]) if len(of) else 0.0 for of in rows], float)

    return OperationMemory(
        rank=np.full(len(rows), rank, np.int64),
        chunk=operations.chunk[groups.first],
        phase=operations.phase[groups.first],
        count=np.array([len(of_kind) for of_kind in rows], np.int64),
        net=medians(net, rows),
        above_start=medians(above_start, rows),
        activation=medians(sizes, rows_with_pair),
        weight_activation=medians(weight_sizes, rows_with_pair),
    )


def _measure_changes(operations: Operations, events: MemoryEvents) -> tuple[Floats, Floats]:
    """Measure how the allocated memory changes during each operation, in bytes.

    Args:
        operations: Compute operations of a rank, sorted by time.
        events: Memory events of the rank, sorted by time.

    Returns:
        net: Memory at the end of each operation minus memory at its start.
        above_start: Peak during each operation minus memory at its start, at least 0.
    """
    running = np.concatenate(([0], events.change.cumsum()))
    low = np.searchsorted(events.time_ns, operations.host_start_ns, side="left")
    high = np.searchsorted(events.time_ns, operations.host_end_ns, side="right")
    # The peak is not lower than the memory at the start. The extra last entry is for events outside
    # all operations (-1).
    peak = np.append(running[low], 0)
    np.maximum.at(peak, _find_open_operation(operations, events.time_ns), running[1:])
    net = running[high] - running[low]
    above_start = peak[:-1] - running[low]
    return net.astype(float), above_start.astype(float)


def _summarize_layers(
    rank: int,
    operations: Operations,
    backward: Ints,
    activations: _Activations,
    layers: tuple[LayerName, ...],
) -> LayerMemory:
    """Compute the mean activation memory of each chunk and layer.

    The mean is taken over the forwards of the chunk that have a backward.

    Args:
        rank: Index of the rank.
        operations: Compute operations of the rank, sorted by time.
        backward: Row of each operation's backward, or -1 if there is none.
        activations: Activations of the forwards.
        layers: Distinct layers.
    """
    has_pair = (backward != NONE) & (operations.phase == Phase.F)
    chunk = operations.chunk[activations.forward]
    groups = group_rows(chunk, activations.layer)
    chunk_of_group = chunk[groups.first]
    n_forwards = np.array(
        [(has_pair & (operations.chunk == number)).sum() for number in chunk_of_group], float
    )
    activation, weight_activation = (
        np.bincount(groups.of_row, sizes, len(groups.first)) / np.maximum(n_forwards, 1)
        for sizes in (activations.size, activations.weight_size)
    )
    return LayerMemory(
        rank=np.full(len(chunk_of_group), rank, np.int64),
        chunk=chunk_of_group,
        layer=activations.layer[groups.first],
        activation=activation,
        weight_activation=weight_activation,
        layers=layers,
    )
