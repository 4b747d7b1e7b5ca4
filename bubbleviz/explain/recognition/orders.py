"""Orders: the sequence in which each rank ran the operations of an iteration, as codes.

An order is the one in which the host issued operations, so it is that of the ranges on the host, as
iterations are (overlapped operations start on the device in any sequence). It holds F, backward and
W, without communication; a recompute belongs to its backward. Numbers are comparable with a plan's:
chunks count from 0 as a rank comes to them, microbatches from 0 in each iteration, an overlapped
pair is a forward and a backward, and a range that clears weight gradients is all that remain.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from bubbleviz.count.rank_slices import stage_and_pipeline
from bubbleviz.count.statistics import median
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, is_constant, marked
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.operations import Operations, Rank
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import Plan

# Order codes: an operation of an order as one integer, of kind, chunk and microbatch.
#
# ::
#
#     bit   56             52       32            0
#      unordered │  kind   │  chunk │ microbatch  │


#: Kinds of operations. B and BW are one kind: they differ in whether a W follows.
FORWARD, BACKWARD, WEIGHTS = 0, 1, 2
#: Kinds while orders are read: all remaining weight gradients, and a fused backward.
_CLEARED, _FUSED = 3, 4
_CHUNK, _KIND, _UNORDERED = 32, 52, 56
#: Largest chunk and largest microbatch that a code holds.
_MOST_CHUNKS, _MOST_MICROBATCHES = (1 << (_KIND - _CHUNK)) - 1, (1 << _CHUNK) - 1
#: Kinds of the phases that orders hold, and the same for every phase.
_KINDS = {
    Phase.F: FORWARD,
    Phase.FB: FORWARD,
    Phase.B: BACKWARD,
    Phase.BW: _FUSED,
    Phase.W: WEIGHTS,
}
_KIND_OF_PHASE = np.array([_KINDS.get(phase, FORWARD) for phase in Phase], np.int64)
#: Whether a kind goes forward (0) or back (1), or neither.
_NO_WAY = 2
_WAY_OF_KIND = np.array((FORWARD, BACKWARD, _NO_WAY, _NO_WAY, BACKWARD), np.int64)


def kind_of(code: Ints) -> Ints:
    """Return the kinds of codes."""
    return code >> _KIND & ((1 << (_UNORDERED - _KIND)) - 1)


def chunk_of(code: Ints) -> Ints:
    """Return the chunks of codes."""
    return code >> _CHUNK & _MOST_CHUNKS


def microbatch_of(code: Ints) -> Ints:
    """Return the microbatches of codes."""
    return code & _MOST_MICROBATCHES


def coded(kind: Ints, chunk: Ints, microbatch: Ints) -> Ints:
    """Return the codes of operations."""
    return kind << _KIND | chunk << _CHUNK | microbatch


def in_microbatch_order(order: Ints) -> Ints:
    """Return an order with unordered weight gradients in the sequence of the microbatches."""
    return order & ((1 << _UNORDERED) - 1)


def _in_planned_order(order: Ints, planned: Ints) -> Ints:
    """Return an order with unordered weight gradients in the sequence of a plan.

    The sequence within one range was not recorded, nor which weight gradients remained for it:
    those that are not planned are left out.
    """
    unordered = order >> _UNORDERED > 0
    if not unordered.any():
        return order
    code = in_microbatch_order(order)
    block = np.cumsum(np.diff(unordered, prepend=False))
    by_code = np.argsort(planned)
    at = grouping.found_in(planned[by_code], code)
    known = at != NONE
    place = np.where(unordered & known, by_code[at], np.arange(len(code)))
    sequence = grouping.sorted_rows(block, place)
    placed: Ints = code[sequence[(known | ~unordered)[sequence]]]
    return placed


def _with_remaining_weights(code: Ints) -> Ints:
    """Return an order in which ranges that clear weight gradients are all that remain, unordered.

    See :func:`_in_planned_order`.
    """
    pieces, at = [], 0
    done = code[kind_of(code) == WEIGHTS]
    for clear in np.flatnonzero(kind_of(code) == _CLEARED).tolist():
        backwards = code[:clear][kind_of(code[:clear]) == BACKWARD]
        backwards = backwards[chunk_of(backwards) == chunk_of(code[clear])]
        remaining = backwards + (WEIGHTS - BACKWARD << _KIND)
        remaining = remaining[~np.isin(remaining, done)]
        pieces += [code[at:clear], remaining + (1 << _UNORDERED)]
        done = np.concatenate((done, remaining))
        at = clear + 1
    return _without_fusion(np.concatenate([*pieces, code[at:]]))


def _without_fusion(code: Ints) -> Ints:
    """Return the codes with every backward as one kind."""
    return np.where(kind_of(code) == _FUSED, code - (_FUSED - BACKWARD << _KIND), code)


def without_eager_weights(order: Ints) -> Ints:
    """Return the order without each W that follows its own backward at once."""
    backward, following = order[:-1], order[1:]
    eager = in_microbatch_order(following - backward) == WEIGHTS - BACKWARD << _KIND
    rest: Ints = order[~np.append(False, eager & (kind_of(backward) == BACKWARD))[: len(order)]]
    return rest


# Order numbers: chunks and microbatches of measured orders, counted from 0 as in a plan.


#: Microbatch numbers with one gap in this many, or more, are not consecutive.
_GAPS = 3


def _chunks_in_turn(cell: Ints, chunk: Ints) -> Ints:
    """Return chunks numbered in the order in which each cell comes to them."""
    if not len(chunk) or (chunk == chunk[0]).all():
        return np.zeros(len(chunk), np.int64)
    groups = grouping.groups_of(cell, chunk)
    order = np.argsort(groups.first)
    first_of_cell = np.flatnonzero(np.diff(cell[groups.first[order]], prepend=-1))
    turn = grouping.places_in(order)
    base = np.zeros(len(groups), np.int64)
    base[first_of_cell] = first_of_cell
    return (turn - np.maximum.accumulate(base)[turn])[groups.of_row]


def _microbatches_from_zero(cell: Ints, chunk: Ints, kind: Ints, number: Ints) -> Ints:
    """Return each microbatch's place among those of its iteration; 0 for those that are unknown.

    A few missing numbers keep theirs. Where the chunks of an iteration do not share their numbers
    (the two directions of a pipeline that is fed from both ends), it is the place among those of
    its rank's chunk.

    Args:
        cell: number of the rank of each operation, ascending.
        chunk: counted from 0 within the cell.
        kind: of the operation; fused backwards are backwards.
        number: microbatch as the report numbers it; -1 unknown.
    """
    known = number >= 0
    if not known.any():
        return np.zeros(len(number), np.int64)
    chunks = int(chunk.max()) + 1
    group, count = cell, (int(cell[-1]) + 1) * chunks
    if chunks > 1:
        group = cell * chunks + chunk
    if count > 4 * len(number):
        groups = grouping.groups_of(cell, chunk)
        group, count = groups.of_row, len(groups)
    way = _WAY_OF_KIND[kind]
    if not known.all():
        way[~known] = _NO_WAY
    of_way = group * (_NO_WAY + 1)
    of_way += way
    low, high = (
        extent.reshape(count, -1).T[:_NO_WAY]
        for extent in group_extents(of_way, count * (_NO_WAY + 1), number, number)
    )
    worked = (high >= 0).all(axis=0)
    # The last rank of PyTorch's single-stage 1F1B numbers its forwards 1 to m and its backwards 0
    # to m-1: as many forwards as backwards are moved to where the backwards begin.
    ahead = np.where(worked & (high[0] - low[0] == high[1] - low[1]), low[0] - low[1], 0)
    if ahead.any():
        number = np.where(way == FORWARD, number - ahead[group], number)
    rows = slice(None) if known.all() else np.flatnonzero(known)
    group, number = group[rows], number[rows]
    numbers = grouping.distinct(number)
    first, last = int(numbers[0]), int(numbers[-1])
    consecutive = _GAPS * (last - first + 1 - len(numbers)) <= len(numbers)
    at = number - first if consecutive else np.searchsorted(numbers, number)
    # Where chunks usually have as many numbers as the iteration, one numbering holds for all.
    size = int(at.max()) + 1
    pair = group * size
    pair += at
    held = grouping.distinct(pair)
    owner = held // size
    begins = grouping.heads(owner)
    counts = np.diff(begins, append=len(owner))
    if len(numbers) != int(median(counts)):
        place = np.arange(len(owner)) - np.repeat(begins, counts)
        at = grouping.looked_up((held,), place, (pair,))
    result = np.zeros(len(known), np.int64)
    result[rows] = at
    return result


@dataclass(frozen=True, eq=False, repr=False)
class IterationOrders:
    """The orders of the ranks of one iteration.

    Attributes:
        iteration: its index.
        rank: of each rank with operations in it, ascending.
        first: its first row.
        unknown: whether any of its microbatches is.
        row: of the operations, in order of (rank, host start).
        second: whether that is the backward of an overlapped pair.
        code: the operation, in numbers that count from 0, with fused backwards told apart.
        pattern: the number of each rank's order; -1 where microbatches are unknown.
    """

    iteration: int
    rank: Ints
    first: Ints
    unknown: Bools
    row: Codes
    second: Bools
    code: Ints
    pattern: tuple[int, ...] = ()

    def of_rank(self, place: int, operations: Operations) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the operations of a rank in order of host start; an overlapped pair is two.

        Returns:
            Their codes, in numbers that count from 0, and as the report has them their phases,
            microbatches and chunks.
        """
        own = slice(*np.append(self.first, len(self.row))[place : place + 2].tolist())
        row, second = self.row[own], self.second[own]
        return (
            _without_fusion(self.code[own]),
            np.where(second, int(Phase.BW), operations.phase[row]),
            np.where(second, operations.second_microbatch[row], operations.microbatch[row]),
            np.where(second, operations.second_chunk[row], operations.chunk[row]),
        )


def orders_of(
    operations: Operations, iterations: Sequence[int]
) -> tuple[list[IterationOrders], list[Ints]]:
    """Return the orders of ranks in each of these iterations that has any, and the distinct ones.

    Args:
        operations: of the report.
        iterations: indices of the iterations.
    """
    wanted = marked(int(operations.iteration.max(initial=0)) + 2, list(iterations))
    held = among(operations.phase, _KINDS) & wanted[operations.iteration]
    # A range that clears remaining weight gradients and launches nothing found none.
    clears = (operations.phase == Phase.W) & (operations.microbatch < 0)
    held &= ~(clears & (operations.has_span == 0))
    sequence = operations.sequence
    sequence = sequence[:1] if is_constant(sequence) else sequence[held]
    parts = [
        _orders_in(operations, k, rows, int(sequence.max(initial=0)) + 1)
        for k in sorted(iterations)
        if len(rows := np.flatnonzero(held & (operations.iteration == k)))
    ]
    number: dict[bytes, int] = {}
    patterns: list[Ints] = []
    for place, part in enumerate(parts):
        ran = []
        codes, size = part.code.tobytes(), part.code.itemsize
        bounds = pairwise([*part.first.tolist(), len(part.code)])
        for (low, high), unknown in zip(bounds, part.unknown.tolist(), strict=True):
            key = codes[low * size : high * size]
            if not unknown and key not in number:
                number[key] = len(patterns)
                patterns.append(_with_remaining_weights(part.code[low:high]))
            ran.append(NONE if unknown else number[key])
        parts[place] = replace(part, pattern=tuple(ran))
    return parts, patterns


def _orders_in(
    operations: Operations,
    iteration: int,
    rows: Ints,
    sequences: int,
) -> IterationOrders:
    """Return the orders of the ranks of one iteration.

    Args:
        operations: of the report.
        iteration: its index.
        rows: of its operations, in order of (rank, start).
        sequences: parts of sequences in the run.
    """
    rows = rows[grouping.sorted_rows(operations.rank[rows], operations.host_start_ns[rows])]
    phase = operations.phase[rows]
    second = np.zeros(len(rows), bool)
    if (paired := phase == Phase.FB).any():
        rows, phase = (np.repeat(column, np.where(paired, 2, 1)) for column in (rows, phase))
        second = np.append(False, rows[1:] == rows[:-1])
    rank = operations.rank[rows]
    first = grouping.heads(rank)
    cell = np.repeat(np.arange(len(first)), np.diff(first, append=len(rows)))
    rank = rank[first]
    number = _of_second(operations.microbatch, operations.second_microbatch, rows, second)
    if sequences > 1:
        # One number for each microbatch and part of the sequence.
        part = np.maximum(operations.sequence[rows], 0)
        number = np.where(number >= 0, number * sequences + part, NONE)
    kind = _KIND_OF_PHASE[phase]
    kind[second] = _FUSED
    unnumbered = np.flatnonzero(number < 0)
    kind[unnumbered[kind[unnumbered] == WEIGHTS]] = _CLEARED
    turn = _of_second(operations.chunk, operations.second_chunk, rows, second)
    turn = np.minimum(_chunks_in_turn(cell, turn), _MOST_CHUNKS)
    from_zero = _microbatches_from_zero(cell, turn, kind, number)
    unknown = marked(len(first), cell[unnumbered[kind[unnumbered] != _CLEARED]])
    row = rows.astype(np.int32) if len(operations) < 1 << 31 else rows
    code = coded(kind, turn, from_zero)
    return IterationOrders(iteration, rank, first, unknown, row, second, code)


def _of_second(first: Ints, second: Ints, rows: Ints, is_second: Bools) -> Ints:
    """Return a column of some rows, by its twin where a row is the second of an overlapped pair."""
    return np.where(is_second, second[rows], first[rows]) if is_second.any() else first[rows]


def planned_orders(plan: Plan) -> tuple[Ints, ...]:
    """Return the order of each device of a plan, coded as measured ones are."""
    flat = [(op.virtual_stage, op.phase, op.microbatch) for order in plan.orders for op in order]
    stage, phase, number = np.array(flat, np.int64).reshape(-1, 3).T
    lengths = list(map(len, plan.orders))
    chunk = _chunks_in_turn(np.repeat(np.arange(len(lengths)), lengths), stage)
    code = _without_fusion(coded(_KIND_OF_PHASE[phase], chunk, number))
    return tuple(np.split(code, np.cumsum(lengths)[:-1]))


# Pipeline orders: the orders of one pipeline in one iteration, equal ones of a device once.


@dataclass(frozen=True)
class PipelineOrders:
    """The orders of one pipeline in one iteration; replicas with equal orders are one row.

    Attributes:
        devices: number of devices, p.
        places: of each order, the device that ran it; -1 where it is unknown.
        orders: distinct within a place, as codes.
        replicas: how many ranks ran each.
    """

    devices: int
    places: tuple[int, ...]
    orders: tuple[Ints, ...]
    replicas: tuple[int, ...]

    @property
    def placed(self) -> bool:
        """Whether the device of each order is known."""
        return min(self.places, default=-1) >= 0

    @property
    def unplaced(self) -> PipelineOrders:
        """The same on unknown devices."""
        return replace(self, places=(-1,) * len(self.places))

    @cached_property
    def chunks(self) -> int:
        """Number of model chunks per device: that of most devices."""
        return _usual([int(chunk_of(order).max(initial=0)) + 1 for order in self.orders])

    @cached_property
    def microbatches(self) -> int:
        """Number of microbatches of each chunk: the forwards of most chunks."""
        counts = []
        for order in self.orders:
            forward = order[kind_of(order) == FORWARD]
            chunks, _ = grouping.distinct_rows(chunk_of(forward), microbatch_of(forward))
            counts += np.bincount(chunks).tolist()
        return _usual(counts)

    @property
    def missing_microbatches(self) -> Ints:
        """Microbatches that no rank ran, though a later one ran; ascending."""
        ran = grouping.distinct(*map(microbatch_of, self.orders))
        return grouping.without(np.arange(int(ran.max(initial=-1)) + 1), ran)


#: A pipeline in an iteration: what pipelines with the same orders share, its orders, the places of
#: its ranks in :class:`IterationOrders`, and which order each ran.
Pipeline = tuple[tuple[object, ...], PipelineOrders, list[int], list[int]]


#: So many orders of pipelines are kept, to be looked up.
_MOST_ALIKE = 4096


def pipelines_of(
    ranks: Sequence[Rank], parts: Sequence[IterationOrders], patterns: Sequence[Ints]
) -> Iterator[tuple[IterationOrders, list[Pipeline]]]:
    """Yield the pipelines of each iteration whose microbatches are known, in order."""
    stage_of, pipeline_of = (column.tolist() for column in stage_and_pipeline(ranks))
    stages: dict[int, list[int]] = {}
    for rank in grouping.distinct(*(part.rank for part in parts)).tolist():
        stages.setdefault(pipeline_of[rank], []).append(stage_of[rank])
    # One whose last stages are in no profile has as many devices as most others.
    placed = {p: max(known) + 1 for p, known in stages.items() if min(known) >= 0}
    usual = _usual(list(placed.values()))
    devices = {p: max(placed[p], usual) if p in placed else len(of) for p, of in stages.items()}
    alike: dict[tuple[object, ...], tuple[tuple[object, ...], PipelineOrders, list[int]]] = {}
    for part in parts:
        cells: dict[int, list[int]] = {}
        rank_of = part.rank.tolist()
        for cell, (rank, pattern) in enumerate(zip(rank_of, part.pattern, strict=True)):
            if pattern != NONE:
                cells.setdefault(pipeline_of[rank], []).append(cell)
        pipelines = []
        for p, own in cells.items():
            places = [stage_of[rank_of[cell]] for cell in own]
            if min(places) < 0:
                places = [-1] * len(own)
            pairs = tuple(zip(places, [part.pattern[cell] for cell in own], strict=True))
            # Most pipelines run alike, in all iterations.
            if (devices[p], pairs) not in alike:
                if len(alike) > _MOST_ALIKE:
                    alike.clear()
                counted = Counter(pairs)
                members = sorted(counted)
                replicas = tuple(counted[pair] for pair in members)
                orders = tuple(patterns[pattern] for _, pattern in members)
                of_orders = tuple(place for place, _ in members)
                ran = PipelineOrders(devices[p], of_orders, orders, replicas)
                number = {pair: place for place, pair in enumerate(members)}
                shared = devices[p], replicas, tuple(members)
                alike[devices[p], pairs] = shared, ran, [number[pair] for pair in pairs]
            key, ran, ran_by = alike[devices[p], pairs]
            pipelines.append((key, ran, own, ran_by))
        if pipelines:
            yield part, pipelines


def _usual(values: Sequence[int]) -> int:
    """Return the most frequent value; of several the largest, 0 of none."""
    counted = Counter(values)
    return max(counted, key=lambda value: (counted[value], value), default=0)


# Order difference: operations of an order that are late, early, missing, extra or repeated.
#
# Of the operations in both orders, as many as possible are in place: a longest sequence that both
# share (a longest increasing subsequence). The others are out of place::
#
#     planned   F0 F1 B0 F2 B1 B2
#     measured  F0 F1 F2 B0 B1 B2      F2 is early by 1 (or B0 late by 1)


@dataclass(frozen=True)
class OrderDifference:
    """How an order differs from a planned one, in codes.

    Attributes:
        moved: operations out of place, in measured order.
        places: by how many operations each is late; negative where early.
        missing: what is planned, not measured.
        extra: what is measured, not planned.
        repeated: what is measured again.
    """

    moved: Ints
    places: Ints
    missing: Ints
    extra: Ints
    repeated: Ints

    @property
    def count(self) -> int:
        """Number of operations that are not as planned."""
        columns = (self.moved, self.missing, self.extra, self.repeated)
        return sum(len(column) for column in columns)


def difference(measured: Ints, planned: Ints) -> OrderDifference:
    """Return how a measured order differs from a planned one, which repeats nothing.

    It takes O(n log n) of what lies between the first and the last difference.
    """
    measured = _in_planned_order(measured, planned)
    if np.array_equal(measured, planned):
        return OrderDifference(*[np.empty(0, np.int64)] * 5)
    firsts = np.sort(np.unique(measured, return_index=True)[1])
    once = measured[firsts]
    order, ran = np.argsort(planned), np.zeros(len(planned), bool)
    found = grouping.found_in(planned[order], once)
    in_plan = found != NONE
    common, place = once[in_plan], order[found[in_plan]]
    ran[place] = True
    at = (np.cumsum(ran) - 1)[place]
    kept = np.ones(len(at), bool)
    off = np.flatnonzero(at != np.arange(len(at)))
    if len(off):
        # Those before the first and after the last difference belong to every longest sequence.
        rising = slice(int(off[0]), int(off[-1]) + 1)
        kept[rising] = _longest_rising(at[rising].tolist())
    moved = np.flatnonzero(~kept)
    return OrderDifference(
        moved=common[moved],
        # How many in place come before it as measured, and as planned.
        places=np.cumsum(kept)[moved] - np.searchsorted(np.sort(at[kept]), at[moved]),
        missing=planned[~ran],
        extra=once[~in_plan],
        repeated=np.delete(measured, firsts),
    )


def _longest_rising(values: list[int]) -> Bools:
    """Return which of some distinct values belong to a longest rising subsequence."""
    ends: list[int] = []
    rows: list[int] = []
    before = [-1] * len(values)
    for row, value in enumerate(values):
        length = bisect_left(ends, value)
        if length:
            before[row] = rows[length - 1]
        ends[length : length + 1], rows[length : length + 1] = [value], [row]
    chosen = np.zeros(len(values), bool)
    row = rows[-1] if rows else -1
    while row >= 0:
        chosen[row] = True
        row = before[row]
    return chosen
