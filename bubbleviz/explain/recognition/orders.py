"""Read orders: the sequence in which each rank ran the operations of an iteration, as codes.

Operations are sorted by the start of their ranges on the host, because overlapped operations can
start on the device in any sequence. Orders contain forwards, backwards and W, but no communication
and no recomputation. Orders are normalized so that they can be compared with a plan:

- Chunks are numbered from 0 in the order in which a rank first runs them.
- Microbatches are numbered from 0 in each iteration.
- An overlapped pair (one operation that contains a forward and a backward) becomes a forward and a
  backward.
- A range that clears weight gradients is replaced with all weight gradients that remain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from bubbleviz.count.statistics import compute_median
from bubbleviz.explain.recognition.order_codes import (
    BACKWARD,
    CLEARED,
    FORWARD,
    FUSED,
    KIND_OF_PHASE,
    KINDS,
    MAX_CHUNK,
    WEIGHTS,
    encode,
    expand_cleared_weights,
    unite_backwards,
)
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, is_constant, make_mask
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import Plan

#: Direction of kinds that are neither forward (0) nor backward (1).
_NO_DIRECTION = 2
#: Direction of each kind.
_DIRECTION_OF_KIND = np.array((FORWARD, BACKWARD, _NO_DIRECTION, _NO_DIRECTION, BACKWARD), np.int64)
#: Missing microbatch numbers are kept as gaps if at least this many numbers occur for each missing
#: one.
_GAPS = 3


@dataclass(frozen=True)
class RankOrder:
    """The operations of one rank in one iteration, in the order in which they were issued.

    Attributes:
        code: Code of each operation, with normalized numbers.
        phase: Phase of each operation in the report.
        microbatch: Microbatch number of each operation in the report.
        chunk: Chunk number of each operation in the report.
    """

    code: Ints
    phase: Ints
    microbatch: Ints
    chunk: Ints


@dataclass(frozen=True, eq=False, repr=False)
class IterationOrders:
    """The order of each rank in one iteration.

    Attributes:
        iteration: Index of the iteration.
        rank: Ranks that ran operations in the iteration, ascending.
        first: For each entry of ``rank``, the index of its first operation in ``row``, ``second``
            and ``code``.
        unknown: Mask of the ranks on which an operation's microbatch is unknown.
        row: Rows of the operations in the run, sorted by (rank, host start). An overlapped pair
            occurs twice.
        second: Mask of the entries of ``row`` that are the backward of an overlapped pair.
        code: Code of each entry of ``row``, with normalized numbers. Fused backwards have the kind
            ``FUSED``.
        pattern: For each entry of ``rank``, the index of its order in the list of distinct orders,
            or -1 if the microbatch of an operation is unknown.
    """

    iteration: int
    rank: Ints
    first: Ints
    unknown: Bools
    row: Codes
    second: Bools
    code: Ints
    pattern: tuple[int, ...] = ()

    def of_rank(self, cell: int, operations: Operations) -> RankOrder:
        """Return the order of a rank, with two entries for each overlapped forward and backward.

        Args:
            cell: Index of the rank in ``rank``.
            operations: Operations in the report.
        """
        bounds = np.append(self.first, len(self.row))
        of_rank = slice(*bounds[cell : cell + 2].tolist())
        row, second = self.row[of_rank], self.second[of_rank]
        return RankOrder(
            unite_backwards(self.code[of_rank]),
            np.where(second, int(Phase.BW), operations.phase[row]),
            np.where(second, operations.second_microbatch[row], operations.microbatch[row]),
            np.where(second, operations.second_chunk[row], operations.chunk[row]),
        )


def read_orders(
    operations: Operations, iterations: Sequence[int]
) -> tuple[list[IterationOrders], list[Ints]]:
    """Read the orders of the ranks in each iteration.

    Args:
        operations: Operations in the report.
        iterations: Indices of the iterations. Iterations without operations are left out.

    Returns:
        parts: Orders of each iteration, sorted by iteration.
        patterns: List of the distinct orders. The ``pattern`` of each part contains indices in this
            list.
    """
    is_selected = make_mask(int(operations.iteration.max(initial=0)) + 2, list(iterations))
    has_order = mask_phases(operations.phase, KINDS) & is_selected[operations.iteration]
    # A range that clears weight gradients but launches no kernel had no weight gradients left to
    # compute.
    clears_weights = (operations.phase == Phase.W) & (operations.microbatch < 0)
    has_order &= ~(clears_weights & (operations.has_span == 0))
    sequence = operations.sequence
    sequence = sequence[:1] if is_constant(sequence) else sequence[has_order]
    n_sequences = int(sequence.max(initial=0)) + 1
    parts = []
    for iteration in sorted(iterations):
        rows = np.flatnonzero(has_order & (operations.iteration == iteration))
        if len(rows):
            parts.append(_read_iteration(operations, iteration, rows, n_sequences))
    return _number_patterns(parts)


def _number_patterns(parts: list[IterationOrders]) -> tuple[list[IterationOrders], list[Ints]]:
    """List the distinct orders, and set the ``pattern`` of each rank to the index of its order.

    The pattern is -1 if the microbatch of any of the rank's operations is unknown.

    Returns:
        The iterations with their patterns, and the list of distinct orders.
    """
    index_of: dict[bytes, int] = {}
    patterns: list[Ints] = []
    numbered_parts = []
    for part in parts:
        rank_patterns = []
        code_bytes, size = part.code.tobytes(), part.code.itemsize
        bounds = pairwise([*part.first.tolist(), len(part.code)])
        for (start, stop), is_unknown in zip(bounds, part.unknown.tolist(), strict=True):
            key = code_bytes[start * size : stop * size]
            if not is_unknown and key not in index_of:
                index_of[key] = len(patterns)
                patterns.append(expand_cleared_weights(part.code[start:stop]))
            rank_patterns.append(NONE if is_unknown else index_of[key])
        numbered_parts.append(replace(part, pattern=tuple(rank_patterns)))
    return numbered_parts, patterns


def _read_iteration(
    operations: Operations, iteration: int, rows: Ints, n_sequences: int
) -> IterationOrders:
    """Read the order of each rank in one iteration. The ``pattern`` of the result is empty.

    Operations are sorted by the start of their ranges on the host. An overlapped pair becomes a
    forward and a backward. Chunks and microbatches are renumbered from 0.

    Args:
        operations: Operations in the report.
        iteration: Index of the iteration.
        rows: Rows of the iteration's operations, sorted by (rank, start).
        n_sequences: Number of parts into which sequences are split (sequence pipelining), or 1.
    """
    rows = rows[grouping.sort_rows(operations.rank[rows], operations.host_start_ns[rows])]
    rows, second = _repeat_pairs(rows, operations.phase[rows] == Phase.FB)
    rank = operations.rank[rows]
    first = grouping.find_run_starts(rank)
    cell = np.repeat(np.arange(len(first)), np.diff(first, append=len(rows)))
    number = _read_microbatches(operations, rows, second, n_sequences)
    kind = KIND_OF_PHASE[operations.phase[rows]]
    kind[second] = FUSED
    unnumbered = np.flatnonzero(number < 0)
    kind[unnumbered[kind[unnumbered] == WEIGHTS]] = CLEARED
    is_unknown = make_mask(len(first), cell[unnumbered[kind[unnumbered] != CLEARED]])
    chunk = _select_of_pair(operations.chunk, operations.second_chunk, rows, second)
    chunk = np.minimum(_number_chunks(cell, chunk), MAX_CHUNK)
    code = encode(kind, chunk, _number_microbatches(cell, chunk, kind, number))
    row = rows.astype(np.int32) if len(operations) < 1 << 31 else rows
    return IterationOrders(iteration, rank[first], first, is_unknown, row, second, code)


def _repeat_pairs(rows: Ints, is_pair: Bools) -> tuple[Ints, Bools]:
    """Repeat the rows of overlapped pairs so that the forward and the backward have one row each.

    Args:
        rows: Rows of operations, without duplicates.
        is_pair: Mask of the rows that are an overlapped pair of a forward and a backward.

    Returns:
        The rows, and a mask of the second row of each pair (the row for the backward).
    """
    if not is_pair.any():
        return rows, np.zeros(len(rows), bool)
    rows = np.repeat(rows, np.where(is_pair, 2, 1))
    return rows, np.append(False, rows[1:] == rows[:-1])


def _read_microbatches(
    operations: Operations, rows: Ints, is_second: Bools, n_sequences: int
) -> Ints:
    """Return the microbatch number of each row, or -1 if it is unknown.

    If sequences are split, each part of a sequence is a separate microbatch with the number
    ``microbatch * n_sequences + part``.

    Args:
        operations: Operations in the report.
        rows: Rows of the operations; overlapped pairs occur twice.
        is_second: Mask of the second occurrences (the backwards).
        n_sequences: Number of parts into which sequences are split, or 1 if they are not split.
    """
    number = _select_of_pair(operations.microbatch, operations.second_microbatch, rows, is_second)
    if n_sequences == 1:
        return number
    part = np.maximum(operations.sequence[rows], 0)
    return np.where(number >= 0, number * n_sequences + part, NONE)


def _select_of_pair(first: Ints, second: Ints, rows: Ints, is_second: Bools) -> Ints:
    """Return ``second[rows]`` where ``is_second`` is set, and ``first[rows]`` elsewhere."""
    return np.where(is_second, second[rows], first[rows]) if is_second.any() else first[rows]


def encode_plan(plan: Plan) -> tuple[Ints, ...]:
    """Return the order of each device in a plan, encoded like measured orders."""
    flat = [(op.virtual_stage, op.phase, op.microbatch) for order in plan.orders for op in order]
    stage, phase, number = np.array(flat, np.int64).reshape(-1, 3).T
    lengths = list(map(len, plan.orders))
    chunk = _number_chunks(np.repeat(np.arange(len(lengths)), lengths), stage)
    code = unite_backwards(encode(KIND_OF_PHASE[phase], chunk, number))
    return tuple(np.split(code, np.cumsum(lengths)[:-1]))


def _number_chunks(cell: Ints, chunk: Ints) -> Ints:
    """Renumber chunks from 0, in the order in which each rank first runs them.

    Args:
        cell: For each operation, the index of its rank in the iteration, ascending.
        chunk: Chunk of each operation.
    """
    if not len(chunk) or (chunk == chunk[0]).all():
        return np.zeros(len(chunk), np.int64)
    groups = grouping.group_rows(cell, chunk)
    by_first_row = np.argsort(groups.first)
    first_of_cell = np.flatnonzero(np.diff(cell[groups.first[by_first_row]], prepend=-1))
    position = grouping.invert_permutation(by_first_row)
    base = np.zeros(len(groups), np.int64)
    base[first_of_cell] = first_of_cell
    return (position - np.maximum.accumulate(base)[position])[groups.of_row]


def _number_microbatches(cell: Ints, chunk: Ints, kind: Ints, number: Ints) -> Ints:
    """Renumber microbatches from 0 in each iteration. Unknown microbatches become 0.

    All chunks of an iteration share one numbering (:func:`_number_from_zero`), in which a few
    missing numbers are kept as gaps. If chunks have different microbatch numbers, for example in a
    pipeline that is fed from both ends, each chunk of a rank is numbered separately.

    Args:
        cell: For each operation, the index of its rank in the iteration, ascending.
        chunk: Chunk of each operation, numbered from 0 on each rank.
        kind: Kind of each operation.
        number: Microbatch number of each operation in the report, or -1 if unknown.
    """
    is_known = number >= 0
    if not is_known.any():
        return np.zeros(len(number), np.int64)
    n_chunks = int(chunk.max()) + 1
    group, count = cell, (int(cell[-1]) + 1) * n_chunks
    if n_chunks > 1:
        group = cell * n_chunks + chunk
    if count > 4 * len(number):
        groups = grouping.group_rows(cell, chunk)
        group, count = groups.of_row, len(groups)
    direction = _DIRECTION_OF_KIND[kind]
    if not is_known.all():
        direction[~is_known] = _NO_DIRECTION
    number = _shift_forwards(group, count, direction, number)
    rows = slice(None) if is_known.all() else np.flatnonzero(is_known)
    result = np.zeros(len(is_known), np.int64)
    result[rows] = _number_from_zero(group[rows], number[rows])
    return result


def _shift_forwards(group: Ints, n_groups: int, direction: Ints, number: Ints) -> Ints:
    """Shift the microbatch numbers of forwards to start at the lowest number of the backwards.

    This is needed for the last rank of PyTorch's single-stage 1F1B, which numbers its forwards 1 to
    m and its backwards 0 to m-1. A group is shifted only if its forwards and its backwards span
    ranges of equal length.

    Args:
        group: Group of each operation; a group is a chunk on one rank.
        n_groups: Number of groups.
        direction: Direction of each operation: 0 for forwards, 1 for backwards, 2 for neither.
        number: Microbatch number of each operation.
    """
    n_directions = _NO_DIRECTION + 1
    cell = group * n_directions
    cell += direction
    lowest, highest = group_extents(cell, n_groups * n_directions, number, number)
    first_f, first_b, _ = lowest.reshape(n_groups, -1).T
    last_f, last_b, _ = highest.reshape(n_groups, -1).T
    has_both = (last_f >= 0) & (last_b >= 0)
    is_shifted = has_both & (last_f - first_f == last_b - first_b)
    shift = np.where(is_shifted, first_f - first_b, 0)
    if not shift.any():
        return number
    return np.where(direction == FORWARD, number - shift[group], number)


def _number_from_zero(group: Ints, number: Ints) -> Ints:
    """Renumber microbatches from 0, with a shared numbering for the iteration or one per group.

    A shared numbering is used if the median number of microbatches per group equals the number in
    the iteration. Most groups then contain all microbatches. The shared numbering keeps gaps if at
    most one number is missing for every three that occur, and has no gaps otherwise.

    If the median is smaller, each group is numbered separately and without gaps.

    Args:
        group: Group of each operation; a group is a chunk on one rank.
        number: Microbatch number of each operation. All numbers must be known.
    """
    numbers = grouping.find_distinct(number)
    first = int(numbers[0])
    n_missing = int(numbers[-1]) - first + 1 - len(numbers)
    is_consecutive = n_missing * _GAPS <= len(numbers)
    from_zero = number - first if is_consecutive else np.searchsorted(numbers, number)
    # If most groups contain all microbatches of the iteration, all groups share one numbering.
    size = int(from_zero.max()) + 1
    pair = group * size
    pair += from_zero
    distinct_pairs = grouping.find_distinct(pair)
    group_of_pair = distinct_pairs // size
    first_rows = grouping.find_run_starts(group_of_pair)
    counts = np.diff(first_rows, append=len(group_of_pair))
    if len(numbers) == int(compute_median(counts)):
        return from_zero
    position = np.arange(len(group_of_pair)) - np.repeat(first_rows, counts)
    return grouping.lookup_values((distinct_pairs,), position, (pair,))
