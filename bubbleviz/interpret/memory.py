"""Memory: what operations allocate, and how long it is held, by a profile's memory events.

::

    F3 ├────────┤      B3 ├──────┤        W3 ├────┤
       a────────────────────┘                         held to B: an activation
         b──────────────────────────────────┘         held to W: kept
           c──┘                                       of this F alone
             d──────────┘                             an output, on its way to the next stage
               e──────────────────────────────────>   never freed: gradients, states

An allocation is matched with the free of its address that follows. What is freed when the next
operation has begun counts as freed by the one before: frees come a little later than the range's
end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

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
    """Memory of ranks, in bytes; -1 unknown.

    Attributes:
        rank: the profile's own.
        peak: most that was allocated at once.
        resident: what is allocated when an iteration begins: weights, gradients, states.
        unseen: what was freed though no event allocated it, at least; 0 where events tell totals.
    """

    rank: Ints
    peak: Ints
    resident: Ints
    unseen: Ints


@dataclass(frozen=True, eq=False, repr=False)
class OperationMemory(Table):
    """Memory of operations of one kind: medians over them, in bytes.

    Attributes:
        rank: the profile's own.
        chunk: as names of operations give it; -1 none.
        phase: of the operations.
        count: how many there are.
        net: how much more is allocated after one than before it.
        above: how much more at its fullest moment than before it.
        held: of an F: what it allocates that is freed by its backward.
        kept: the part of ``held`` that is not freed by B, but by W; all of it where a backward is
            one operation.
    """

    rank: Ints
    chunk: Ints
    phase: Ints
    count: Ints
    net: Floats
    above: Floats
    held: Floats
    kept: Floats


@dataclass(frozen=True, eq=False, repr=False)
class LayerMemory(Table):
    """Activations of one microbatch by layer, in bytes: means over the forwards.

    Attributes:
        rank: the profile's own.
        chunk: as names of operations give it; -1 none.
        layer: row of ``layers``; -1 outside the ranges of layers.
        held: see :class:`OperationMemory`.
        kept: see there.
        layers: distinct layers.
    """

    rank: Ints
    chunk: Ints
    layer: Ints
    held: Floats
    kept: Floats
    layers: tuple[LayerName, ...] = field(metadata={"shared": True})


@dataclass(frozen=True)
class MemoryUse:
    """What a profile tells of memory."""

    ranks: RankMemory
    operations: OperationMemory
    layers: LayerMemory


def measure_memory(
    events: MemoryEvents, keys: Operations, ranks: Ints, layers: LayerRanges
) -> MemoryUse | None:
    """Return what operations allocate and hold; None where no event is of a rank.

    Args:
        events: of the profile.
        keys: of its operations, with the times of their ranges.
        ranks: process and device of each rank; shape (ranks, 2).
        layers: ranges of layers.
    """
    found = []
    for rank, (process, device) in enumerate(ranks.tolist()):
        rows = np.flatnonzero((process_of(events.thread) == process) & (events.device == device))
        if len(rows):
            of_rank = events.take(rows[np.argsort(events.time_ns[rows], kind="stable")])
            found.append(_measure_rank(rank, of_rank, keys, layers))
    if not found:
        return None
    parts = zip(*found, strict=True)
    return MemoryUse(*(join_tables(tables) for tables in parts))


def list_memory_limitations(path: str, use: MemoryUse) -> Iterator[Limitation]:
    """Yield the limitation of ranks that free what no event allocated.

    Args:
        path: of the profile.
        use: its memory.
    """
    unseen = use.ranks.unseen
    if unseen.any():
        yield Limitation(
            "memory allocated before the capture",
            f"{path}: up to {format_memory(int(unseen.max()))} are freed without a recorded "
            "allocation, so a rank's peak and its constant memory may be larger; capture from the "
            "start",
            int((unseen > 0).sum()),
        )


def _measure_rank(
    rank: int, events: MemoryEvents, keys: Operations, layers: LayerRanges
) -> tuple[RankMemory, OperationMemory, LayerMemory]:
    """Return what the operations of one rank allocate and hold, by its events in order of time."""
    # Operations of a rank follow each other on the host.
    work = np.flatnonzero((keys.rank == rank) & mask_phases(keys.phase, COMPUTE))
    own = keys.take(work[np.argsort(keys.host_start_ns[work], kind="stable")])
    running = events.change.cumsum()
    # Where more is freed than was allocated since the capture began, so much was there before.
    unseen = max(0, -int(running.min()))
    level = running + unseen
    if (events.total >= 0).all():
        unseen, level = 0, events.total
    backward, weight = find_backwards(own)
    activations = _find_activations(own, backward, weight, events, layers)
    figures = rank, max(unseen, int(level.max())), _measure_resident(own, events, level), unseen
    return (
        RankMemory(*(np.array([figure]) for figure in figures)),
        _summarize_operations(rank, own, events, backward, activations),
        _summarize_layers(rank, own, backward, activations, layers.layers),
    )


#: Allocations of forwards that their backwards free: row of the operation, layer around (-1 none),
#: bytes, and bytes that are held on to W.
_Activations: TypeAlias = tuple[Ints, Ints, Ints, Ints]


def _find_activations(
    own: Operations, backward: Ints, weight: Ints, events: MemoryEvents, layers: LayerRanges
) -> _Activations:
    """Return the allocations of forwards that are freed by their backwards."""
    order = np.lexsort((np.arange(len(events)), events.address))
    address, change = events.address[order], events.change[order]
    freed_ns = np.full(len(order), _NEVER)
    freed = np.flatnonzero((address[1:] == address[:-1]) & (change[1:] < 0))
    freed_ns[freed] = events.time_ns[order][freed + 1]
    row, freed_ns = order[change > 0], freed_ns[change > 0]
    forward = _find_open_operation(own, events.time_ns[row])
    inside = (forward != NONE) & (freed_ns != _NEVER)
    inside &= np.append(backward, NONE)[forward] != NONE
    row, freed_ns, forward = row[inside], freed_ns[inside], forward[inside]
    # What an operation leaves is freed before the next but one begins.
    after = np.append(own.host_start_ns[1:], [_NEVER, _NEVER])
    first, last = backward[forward], np.maximum(weight, backward)[forward]
    to_b = freed_ns <= after[first]
    to_w = ~to_b & (weight[forward] != NONE) & (freed_ns <= after[last])
    held = (freed_ns >= own.host_start_ns[first]) & (to_b | to_w)
    whole = own.phase[first] == Phase.BW
    row, forward = row[held], forward[held]
    change = events.change[row]
    return (
        forward,
        layers.around(events.thread[row], events.time_ns[row]),
        change,
        np.where(to_w[held] | whole[held], change, 0),
    )


def find_backwards(own: Operations) -> tuple[Ints, Ints]:
    """Return the backward, and the W, that follow each forward of a rank; -1 none.

    Args:
        own: operations of a rank in order of time.
    """
    place = np.arange(len(own))
    order = np.lexsort((place, own.sequence, own.microbatch, own.chunk))
    same = group_rows(own.chunk, own.microbatch, own.sequence).of_row[order]
    phase = own.phase[order]
    backward = _find_next_in_group(mask_phases(phase, (Phase.B, Phase.BW)), same)
    weight = _find_next_in_group(phase == Phase.W, same)
    # The W of a forward comes before the next forward of its kind.
    again = _find_next_in_group(phase == Phase.F, same)

    def of_forwards(follower: Ints) -> Ints:
        late = (again != NONE) & (follower > again)
        found = np.where((phase == Phase.F) & (follower != NONE) & ~late, order[follower], NONE)
        return scatter(len(own), order, found)

    return of_forwards(backward), of_forwards(weight)


def _find_next_in_group(wanted: Bools, same: Ints) -> Ints:
    """Return the next row behind each that is wanted and of the same group; -1 none."""
    count = len(wanted)
    place = np.where(wanted, np.arange(count), count)
    behind = np.append(np.minimum.accumulate(place[::-1])[::-1][1:], count) if count else place
    found = behind < count
    found[found] = same[behind[found]] == same[found]
    return np.where(found, behind, NONE)


def _find_open_operation(own: Operations, time_ns: Ints) -> Ints:
    """Return the operation inside whose range each time lies; -1 none."""
    at = np.searchsorted(own.host_start_ns, time_ns, side="right") - 1
    inside = (at >= 0) & (time_ns <= np.append(own.host_end_ns, NONE)[at])
    return np.where(inside, at, NONE).astype(np.int64)


def _measure_resident(own: Operations, events: MemoryEvents, level: Ints) -> int:
    """Return what is allocated when iterations begin, the median; -1 unknown."""
    forward = own.take(own.phase == Phase.F)
    if len(forward) == 0:
        return NONE
    begun_ns = forward.host_start_ns[group_rows(forward.iteration).first]
    before = np.searchsorted(events.time_ns, begun_ns) - 1
    # Before the first event what it changed was not there, or not yet gone.
    first = max(0, int(level[0] - events.change[0]))
    return int(np.median(np.where(before >= 0, level[before], first)))


def _summarize_operations(
    rank: int, own: Operations, events: MemoryEvents, backward: Ints, activations: _Activations
) -> OperationMemory:
    """Return the medians of operations by chunk and phase."""
    count = len(own)
    running = np.concatenate(([0], events.change.cumsum()))
    low = np.searchsorted(events.time_ns, own.host_start_ns, side="left")
    high = np.searchsorted(events.time_ns, own.host_end_ns, side="right")
    net = (running[high] - running[low]).astype(float)
    at = _find_open_operation(own, events.time_ns)
    fullest = np.full(count + 1, np.iinfo(np.int64).min)
    np.maximum.at(fullest, at, running[1:])
    above = np.maximum(fullest[:count] - running[low], 0).astype(float)
    forward, _, *sizes = activations
    held, kept = (np.bincount(forward, bytes_, count) for bytes_ in sizes)
    complete = backward != NONE
    groups = group_rows(own.chunk, own.phase)
    rows = [np.flatnonzero(groups.of_row == number) for number in range(len(groups.first))]
    whole = [of_kind[complete[of_kind]] for of_kind in rows]

    def medians(values: Codes | Floats, rows: list[Ints]) -> Floats:
        return np.array([np.median(values[of]) if len(of) else 0.0 for of in rows], float)

    return OperationMemory(
        rank=np.full(len(rows), rank, np.int64),
        chunk=own.chunk[groups.first],
        phase=own.phase[groups.first],
        count=np.array([len(of_kind) for of_kind in rows], np.int64),
        net=medians(net, rows),
        above=medians(above, rows),
        held=medians(held, whole),
        kept=medians(kept, whole),
    )


def _summarize_layers(
    rank: int,
    own: Operations,
    backward: Ints,
    activations: _Activations,
    layers: tuple[LayerName, ...],
) -> LayerMemory:
    """Return the means of activations over complete forwards, by chunk and layer."""
    complete = (backward != NONE) & (own.phase == Phase.F)
    forward, layer, *sizes = activations
    chunk = own.chunk[forward]
    groups = group_rows(chunk, layer)
    of_group = chunk[groups.first]
    forwards = np.array([(complete & (own.chunk == each)).sum() for each in of_group], float)
    held, kept = (
        np.bincount(groups.of_row, bytes_, len(groups.first)) / np.maximum(forwards, 1)
        for bytes_ in sizes
    )
    return LayerMemory(
        np.full(len(of_group), rank, np.int64), of_group, layer[groups.first], held, kept, layers
    )
