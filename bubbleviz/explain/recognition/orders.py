"""Orders: the sequence in which each rank ran the operations of an iteration, as codes.

An order is the one in which the host issued operations, so it is that of the ranges on the host, as
iterations are (overlapped operations start on the device in any sequence). It holds F, backward and
W, without communication; a recompute belongs to its backward. Numbers are comparable with a plan's:
chunks count from 0 as a rank comes to them, microbatches from 0 in each iteration, an overlapped
pair is a forward and a backward, and a range that clears weight gradients is all that remain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from bubbleviz.count.rank_iterations import stage_and_pipeline
from bubbleviz.model.columns import NONE, Bools, Codes, Ints
from bubbleviz.model.grouping import (
    distinct,
    distinct_rows,
    groups_of,
    places_in,
    sorted_rows,
    without,
)
from bubbleviz.model.operations import Operations, Rank
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen
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
CLEARED, FUSED = 3, 4
_CHUNK, _KIND, _UNORDERED = 32, 52, 56
#: Largest chunk and largest microbatch that a code holds.
MOST_CHUNKS = (1 << (_KIND - _CHUNK)) - 1
MOST_MICROBATCHES = (1 << _CHUNK) - 1
_KINDS_MASK = (1 << (_UNORDERED - _KIND)) - 1

#: Kinds of the phases that orders hold.
KINDS = {
    Phase.F: FORWARD,
    Phase.FB: FORWARD,
    Phase.B: BACKWARD,
    Phase.BW: FUSED,
    Phase.W: WEIGHTS,
}
#: The same for every phase.
KIND_OF_PHASE = np.array([KINDS.get(phase, FORWARD) for phase in Phase], np.int64)


def kind_of(code: Ints) -> Ints:
    """Return the kinds of codes."""
    return code >> _KIND & _KINDS_MASK


def chunk_of(code: Ints) -> Ints:
    """Return the chunks of codes."""
    return code >> _CHUNK & MOST_CHUNKS


def microbatch_of(code: Ints) -> Ints:
    """Return the microbatches of codes."""
    return code & MOST_MICROBATCHES


def coded(kind: Ints, chunk: Ints, microbatch: Ints) -> Ints:
    """Return the codes of operations."""
    return kind << _KIND | chunk << _CHUNK | microbatch


def in_planned_order(order: Ints, planned: Ints) -> Ints:
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
    at = np.searchsorted(planned[by_code], code)
    known = at < len(planned)
    known[known] = planned[by_code][at[known]] == code[known]
    place = np.arange(len(code))
    place[unordered & known] = by_code[at[unordered & known]]
    sequence = sorted_rows(block, place)
    return code[sequence[(known | ~unordered)[sequence]]]


def in_microbatch_order(order: Ints) -> Ints:
    """Return an order with unordered weight gradients in the sequence of the microbatches."""
    return order & ((1 << _UNORDERED) - 1)


def with_remaining_weights(code: Ints) -> Ints:
    """Return an order in which ranges that clear weight gradients are all that remain, unordered.

    See :func:`in_planned_order`.
    """
    clears = np.flatnonzero(kind_of(code) == CLEARED).tolist()
    pieces, at = [], 0
    done = code[kind_of(code) == WEIGHTS]
    for clear in clears:
        before = code[:clear]
        backwards = before[kind_of(before) == BACKWARD]
        backwards = backwards[chunk_of(backwards) == chunk_of(code[clear])]
        remaining = coded(
            np.full(len(backwards), WEIGHTS), chunk_of(backwards), microbatch_of(backwards)
        )
        remaining = remaining[~np.isin(remaining, done)]
        pieces += [code[at:clear], remaining + (1 << _UNORDERED)]
        done = np.concatenate((done, remaining))
        at = clear + 1
    return without_fusion(np.concatenate([*pieces, code[at:]]))


def without_fusion(code: Ints) -> Ints:
    """Return the codes with every backward as one kind."""
    kind = kind_of(code)
    return np.asarray(code - ((kind - BACKWARD) * (kind == FUSED) << _KIND), np.int64)


def without_eager_weights(order: Ints) -> Ints:
    """Return the order without each W that follows its own backward at once."""
    following = np.zeros(len(order), bool)
    same = (kind_of(order[:-1]) == BACKWARD) & (kind_of(order[1:]) == WEIGHTS)
    same &= (chunk_of(order[:-1]) == chunk_of(order[1:])) & (
        microbatch_of(order[:-1]) == microbatch_of(order[1:])
    )
    following[1:] = same
    return order[~following]


# Order numbers: chunks and microbatches of measured orders, counted from 0 as in a plan.


#: Microbatch numbers with one gap in this many, or more, are not consecutive.
_GAPS = 3


def chunks_in_turn(cell: Ints, chunk: Ints) -> Ints:
    """Return chunks numbered in the order in which each cell comes to them."""
    if not len(chunk) or (chunk == chunk[0]).all():
        return np.zeros(len(chunk), np.int64)
    groups = groups_of(cell, chunk)
    order = np.argsort(groups.first)
    first_of_cell = np.flatnonzero(np.diff(cell[groups.first[order]], prepend=-1))
    turn = places_in(order)
    base = np.zeros(len(groups), np.int64)
    base[first_of_cell] = first_of_cell
    return (turn - np.maximum.accumulate(base)[turn])[groups.of_row]


@frozen
class Numbers:
    """The microbatches of an iteration.

    Attributes:
        low: the first.
        high: the last.
        alike: whether every rank's chunk that goes back has all between, and no other has others.
        back: whether any goes back.
    """

    low: int
    high: int
    alike: bool
    back: bool


def first_of_all(every: Sequence[Numbers]) -> int | None:
    """Return the first microbatch of all iterations where all are alike; None where not.

    Args:
        every: of each iteration with known microbatches.
    """
    alike = {(own.low, own.high) for own in every if own.back}
    if len(alike) != 1 or not all(own.alike for own in every if own.back):
        return None
    ((low, high),) = alike
    return low if all(low <= own.low and own.high <= high for own in every) else None


def microbatches_from_zero(
    cell: Ints,
    chunk: Ints,
    kind: Ints,
    number: Ints,
    known: Bools,
    *,
    start: int | None = None,
    ranked: bool = False,
) -> tuple[Ints, Numbers | None]:
    """Return microbatches of one iteration that count from 0, and which they are.

    Those that are unknown are 0; where all are, the last is None.

    Args:
        cell: number of the rank of each operation, ascending.
        chunk: counted from 0 within the cell.
        kind: of the operation.
        number: microbatch as the report numbers it.
        known: whether that is known.
        start: the first one; None for the least, if all are alike, else to number them by rank.
        ranked: whether they are numbered by rank in any case.
    """
    if not known.any():
        return np.zeros(len(number), np.int64), None
    chunks = int(chunk.max()) + 1
    group, count = cell * chunks + chunk, (int(cell[-1]) + 1) * chunks
    if count > 4 * len(number):
        groups = groups_of(cell, chunk)
        group, count = groups.of_row, len(groups)
    forward, backward = known & (kind == FORWARD), known & (kind == BACKWARD)
    low_f, high_f = _extents(group[forward], count, number[forward])
    low_b, high_b = _extents(group[backward], count, number[backward])
    worked = (high_f >= 0) & (high_b >= 0)
    # The last rank of PyTorch's single-stage 1F1B numbers its forwards 1 to m and its backwards 0
    # to m-1: as many forwards as backwards are moved to where the backwards begin.
    ahead = np.where(worked & (high_f - low_f == high_b - low_b), low_f - low_b, 0)
    number = np.where(forward, number - ahead[group], number)
    forwards = np.bincount(group[forward], minlength=count)[worked]
    low, high = low_b[worked], high_b[worked]
    least, most = int(number[known].min()), int(number[known].max())
    alike = len(low) > 0 and bool((low == least).all() and (high == most).all())
    alike = alike and bool((forwards == high - low + 1).all())
    numbers = Numbers(least, most, alike, len(low) > 0)
    if start is None and not ranked and alike:
        start = least
    if start is not None:
        return np.where(known, number - start, 0), numbers
    return _ranked(group, number, known), numbers


def _extents(group: Ints, count: int, number: Ints) -> tuple[Ints, Ints]:
    """Return the smallest and the largest number of each group; (largest possible, -1) for none."""
    low, high = np.full(count, MOST_MICROBATCHES, np.int64), np.full(count, -1, np.int64)
    np.minimum.at(low, group, number)
    np.maximum.at(high, group, number)
    return low, high


def _ranked(group: Ints, number: Ints, known: Bools) -> Ints:
    """Return each number's rank among those of its iteration; a few missing numbers keep theirs.

    Where the chunks of an iteration do not share their numbers (the two directions of a pipeline
    that is fed from both ends), it is the rank among those of its rank's chunk.
    """
    result = np.zeros(len(number), np.int64)
    rows = np.flatnonzero(known)
    of_number, of_group = groups_of(number[rows]), groups_of(group[rows], number[rows])
    # Where chunks usually have as many numbers as the iteration, one numbering holds for all.
    owner = group[rows][of_group.first]
    counts = np.bincount(groups_of(owner).of_row)
    if len(of_number) != int(np.median(counts)):
        result[rows] = (np.arange(len(owner)) - np.searchsorted(owner, owner))[of_group.of_row]
        return result
    low, high = int(number[rows].min()), int(number[rows].max())
    consecutive = _GAPS * (high - low + 1 - len(of_number)) <= len(of_number)
    result[rows] = number[rows] - low if consecutive else of_number.of_row
    return result


@frozen
class Orders:
    """The orders of ranks in iterations; equal orders are one pattern.

    Attributes:
        iteration: of each cell, ascending.
        rank: of each cell, ascending in its iteration.
        pattern: of each cell, a row of ``patterns``; -1 where microbatches are unknown.
        patterns: distinct sequences of codes.
        parts: the orders of each iteration.
        operations: of the report.
    """

    iteration: Ints
    rank: Ints
    pattern: Ints
    patterns: tuple[Ints, ...]
    parts: tuple[_IterationOrders, ...]
    operations: Operations

    def of_cell(self, cell: int) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the operations of a cell in order of host start; an overlapped pair is two.

        Returns:
            Their codes, in numbers that count from 0, and as the report has them their phases,
            microbatches and chunks.
        """
        part = self.parts[[part.iteration for part in self.parts].index(self.iteration[cell])]
        at = int(np.searchsorted(part.rank, self.rank[cell]))
        ends = np.append(part.first, len(part.row))[at : at + 2]
        own = slice(*ends.tolist())
        row, second, operations = part.row[own], part.second[own], self.operations
        code, fused = part.code[own], kind_of(part.code[own]) == FUSED
        return (
            np.where(fused, code - coded(_FUSES, *_NOTHING), code),
            np.where(second, int(Phase.BW), operations.phase[row]),
            np.where(second, operations.second_microbatch[row], operations.microbatch[row]),
            np.where(second, operations.second_chunk[row], operations.chunk[row]),
        )


@frozen(eq=False, shown=False)
class _IterationOrders:
    """The orders of the ranks of one iteration.

    Attributes:
        iteration: its index.
        rank: of each rank with operations in it, ascending.
        first: its first row.
        unknown: whether any of its microbatches is.
        row: of the operations, in order of (rank, host start).
        second: whether that is the backward of an overlapped pair.
        code: the operation, in numbers that count from 0, with fused backwards told apart.
        numbers: its microbatches; None where they are unknown.
    """

    iteration: int
    rank: Ints
    first: Ints
    unknown: Bools
    row: Codes
    second: Bools
    code: Ints
    numbers: Numbers | None


#: What a fused backward's kind is more than a backward's, and no chunk and microbatch.
_FUSES, _NOTHING = np.array(FUSED - BACKWARD), (np.array(0), np.array(0))


def orders_of(operations: Operations, iterations: Sequence[int]) -> Orders:
    """Return the order of each rank in each of these iterations.

    Args:
        operations: of the report.
        iterations: indices of the iterations.
    """
    wanted = np.zeros(int(operations.iteration.max(initial=0)) + 2, bool)
    wanted[list(iterations)] = True
    held = among(operations.phase, KINDS) & wanted[operations.iteration]
    # A range that clears remaining weight gradients and launches nothing found none.
    clears = (operations.phase == Phase.W) & (operations.microbatch < 0)
    rows = np.flatnonzero(held & ~(clears & (operations.has_span == 0)))
    sequences = int(operations.sequence[rows].max(initial=0)) + 1
    of_row = operations.iteration[rows]
    own = [(k, rows[of_row == k]) for k in sorted(iterations)]
    own = [(k, of_k) for k, of_k in own if len(of_k)]
    parts = [_orders_in(operations, k, of_k, sequences) for k, of_k in own]
    # Microbatches are numbered by their ranks in all iterations or in none.
    start = first_of_all([part.numbers for part in parts if part.numbers is not None])
    parts = [
        part
        if part.numbers is None or part.numbers.alike == (start is not None)
        else _orders_in(operations, k, of_k, sequences, start=start, ranked=start is None)
        for part, (k, of_k) in zip(parts, own, strict=True)
    ]
    number: dict[bytes, int] = {}
    patterns: list[Ints] = []
    pattern: list[int] = []
    for part in parts:
        orders = np.split(part.code, part.first[1:])
        for order, unknown in zip(orders, part.unknown.tolist(), strict=True):
            key = order.tobytes()
            if not unknown and key not in number:
                number[key] = len(patterns)
                patterns.append(with_remaining_weights(order))
            pattern.append(NONE if unknown else number[key])
    none = np.empty(0, np.int64)
    return Orders(
        np.concatenate([none, *(np.full(len(p.rank), p.iteration) for p in parts)]),
        np.concatenate([none, *(part.rank for part in parts)]),
        np.array(pattern, np.int64),
        tuple(patterns),
        tuple(parts),
        operations,
    )


def _orders_in(
    operations: Operations,
    iteration: int,
    rows: Ints,
    sequences: int,
    *,
    start: int | None = None,
    ranked: bool = False,
) -> _IterationOrders:
    """Return the orders of the ranks of one iteration.

    Args:
        operations: of the report.
        iteration: its index.
        rows: of its operations, in order of (rank, start).
        sequences: parts of sequences in the run.
        start: as of :func:`.microbatches_from_zero`.
        ranked: likewise.
    """
    rank, host_ns = operations.rank[rows], operations.host_start_ns[rows]
    if not ((rank[1:] > rank[:-1]) | (host_ns[1:] >= host_ns[:-1])).all():
        rows = rows[sorted_rows(rank, host_ns)]
    phase = operations.phase[rows]
    paired = phase == Phase.FB
    second = np.zeros(len(rows), bool)
    if paired.any():
        rows = np.repeat(rows, np.where(paired, 2, 1))
        phase = operations.phase[rows]
        second = np.append(False, (rows[1:] == rows[:-1]) & (phase[1:] == Phase.FB))
    microbatch, chunk = operations.microbatch[rows], operations.chunk[rows]
    if paired.any():
        microbatch = np.where(second, operations.second_microbatch[rows], microbatch)
        chunk = np.where(second, operations.second_chunk[rows], chunk)
    rank = operations.rank[rows]
    new_cell = np.append(True, rank[1:] != rank[:-1])
    first, cell = np.flatnonzero(new_cell), np.cumsum(new_cell) - 1
    kind = np.where(second, FUSED, KIND_OF_PHASE[phase])
    # One number for each microbatch and part of the sequence.
    number = microbatch * sequences + np.maximum(operations.sequence[rows], 0)
    number = np.where(microbatch >= 0, number, NONE)
    known = number >= 0
    kind = np.where(~known & (kind == WEIGHTS), CLEARED, kind)
    turn = np.minimum(chunks_in_turn(cell, chunk), MOST_CHUNKS)
    plain_kind = np.where(kind == FUSED, BACKWARD, kind)
    from_zero, numbers = microbatches_from_zero(
        cell, turn, plain_kind, number, known, start=start, ranked=ranked
    )
    unknown = np.zeros(len(first), bool)
    unknown[cell[~known & (kind != CLEARED)]] = True
    return _IterationOrders(
        iteration,
        rank[first],
        first,
        unknown,
        rows.astype(np.int32) if len(operations) < 1 << 31 else rows,
        second,
        coded(kind, turn, from_zero),
        numbers,
    )


def planned_orders(plan: Plan) -> tuple[Ints, ...]:
    """Return the order of each device of a plan, coded as measured ones are."""
    orders = []
    for order in plan.orders:
        flat = [(op.virtual_stage, op.phase, op.microbatch) for op in order]
        stage, phase, number = np.array(flat, np.int64).reshape(-1, 3).T
        chunk = chunks_in_turn(np.zeros(len(stage), np.int64), stage)
        orders.append(without_fusion(coded(KIND_OF_PHASE[phase], chunk, number)))
    return tuple(orders)


# Pipeline orders: the orders of one pipeline in one iteration, equal ones of a device once.


@frozen
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
    def chunks(self) -> int:
        """Number of model chunks per device: that of most devices."""
        return _usual([int(chunk_of(order).max(initial=0)) + 1 for order in self.orders])

    @property
    def microbatches(self) -> int:
        """Number of microbatches of each chunk: the forwards of most chunks."""
        counts = []
        for order in self.orders:
            forward = order[kind_of(order) == FORWARD]
            chunks, _ = distinct_rows(chunk_of(forward), microbatch_of(forward))
            counts += np.bincount(chunks).tolist()
        return _usual(counts)

    @property
    def missing_microbatches(self) -> Ints:
        """Microbatches that no rank ran, though a later one ran; ascending."""
        ran = distinct(*map(microbatch_of, self.orders))
        return without(np.arange(int(ran.max(initial=-1)) + 1), ran)


#: A pipeline in an iteration: what pipelines with the same orders share, its orders, the rows of
#: its ranks in :class:`~bubbleviz.explain.recognition.orders.Orders`, and which order each ran.
Pipeline = tuple[tuple[object, ...], PipelineOrders, list[int], list[int]]


def pipelines_of(ranks: Sequence[Rank], orders: Orders) -> Iterator[tuple[int, list[Pipeline]]]:
    """Yield the pipelines of each iteration, in order."""
    stage_of, pipeline_of = (column.tolist() for column in stage_and_pipeline(ranks))
    stages: dict[int, list[int]] = {}
    for rank in distinct(orders.rank).tolist():
        stages.setdefault(pipeline_of[rank], []).append(stage_of[rank])
    # One whose last stages are in no profile has as many devices as most others.
    placed = {p: max(known) + 1 for p, known in stages.items() if min(known) >= 0}
    usual = _usual(list(placed.values()))
    devices = {p: max(placed[p], usual) if p in placed else len(of) for p, of in stages.items()}
    cells: dict[int, dict[int, list[int]]] = {}
    columns = (orders.iteration.tolist(), orders.rank.tolist(), orders.pattern.tolist())
    for cell, (iteration, rank, pattern) in enumerate(zip(*columns, strict=True)):
        if pattern >= 0:
            cells.setdefault(iteration, {}).setdefault(pipeline_of[rank], []).append(cell)
    for iteration, by_pipeline in cells.items():
        yield (
            iteration,
            [_pipeline(orders, devices[p], stage_of, c) for p, c in by_pipeline.items()],
        )


def _pipeline(orders: Orders, devices: int, stage_of: Sequence[int], cells: list[int]) -> Pipeline:
    """Return one pipeline in one iteration; replicas of a device with equal orders are one row."""
    places = [stage_of[rank] for rank in orders.rank[cells].tolist()]
    if min(places) < 0:
        places = [-1] * len(cells)
    pairs = list(zip(places, orders.pattern[cells].tolist(), strict=True))
    counted = Counter(pairs)
    members = sorted(counted)
    number = {pair: place for place, pair in enumerate(members)}
    ran = PipelineOrders(
        devices,
        tuple(place for place, _ in members),
        tuple(orders.patterns[pattern] for _, pattern in members),
        tuple(counted[pair] for pair in members),
    )
    key = devices, ran.replicas, tuple(members)
    return key, ran, cells, [number[pair] for pair in pairs]


def _usual(values: Sequence[int]) -> int:
    """Return the most frequent value; of several the largest, 0 of none."""
    counted = Counter(values)
    return max(counted, key=lambda value: (counted[value], value), default=0)
