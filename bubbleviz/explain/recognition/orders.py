"""Orders: the sequence in which each rank ran the operations of an iteration, as codes.

An order is the one in which the host issued operations, so it is that of the ranges on the host, as
iterations are (overlapped operations start on the device in any sequence). It holds F, backward and
W, without communication; a recompute belongs to its backward. Numbers are comparable with a plan's:
chunks count from 0 as a rank comes to them, microbatches from 0 in each iteration, an overlapped
pair is a forward and a backward, and a range that clears weight gradients is all that remain.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.explain.recognition.order_codes import (
    BACKWARD,
    CLEARED,
    FUSED,
    KIND_OF_PHASE,
    KINDS,
    MOST_CHUNKS,
    WEIGHTS,
    coded,
    with_remaining_weights,
    without_fusion,
)
from bubbleviz.explain.recognition.order_numbers import (
    chunks_in_turn,
    combined_microbatch,
    microbatches_from_zero,
)
from bubbleviz.model.columns import Bools, Ints, Table
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import Phase
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen
from bubbleviz.schedules.plan import Plan


@frozen
class OrderedOperations(Table):
    """Operations in order of (iteration, rank, host start); an overlapped pair takes two rows.

    Attributes:
        cell: number of the row's (iteration, rank) in :class:`Orders`.
        code: the operation, in numbers that count from 0.
        microbatch: as the report numbers it.
        chunk: likewise.
        phase: code of :class:`bubbleviz.model.phases.Phase`, of the report's row.
    """

    cell: Ints
    code: Ints
    microbatch: Ints
    chunk: Ints
    phase: Ints


@frozen
class Orders:
    """The orders of ranks in iterations; equal orders are one pattern.

    Attributes:
        iteration: of each cell.
        rank: of each cell.
        pattern: of each cell, a row of ``patterns``; -1 where microbatches are unknown.
        first: of each cell, its first row in ``operations``.
        patterns: distinct sequences of codes.
        operations: the operations of all cells.
    """

    iteration: Ints
    rank: Ints
    pattern: Ints
    first: Ints
    patterns: tuple[Ints, ...]
    operations: OrderedOperations

    def rows(self, cell: int) -> slice:
        """Return the rows of a cell."""
        end = self.first[cell + 1] if cell + 1 < len(self.first) else len(self.operations)
        return slice(int(self.first[cell]), int(end))


def orders_of(operations: Operations, iterations: Sequence[int]) -> Orders:
    """Return the order of each rank in each of these iterations.

    Args:
        operations: of the report.
        iterations: indices of the iterations.
    """
    rows = _ordered_rows(operations, iterations)
    paired = operations.phase[rows] == Phase.FB
    rows = np.repeat(rows, np.where(paired, 2, 1))
    second = np.zeros(len(rows), bool)
    second[1:] = (rows[1:] == rows[:-1]) & (operations.phase[rows[1:]] == Phase.FB)
    phase, microbatch, chunk, sequence = (
        getattr(operations, name)[rows] for name in ("phase", "microbatch", "chunk", "sequence")
    )
    microbatch = np.where(second, operations.second_microbatch[rows], microbatch)
    chunk = np.where(second, operations.second_chunk[rows], chunk)
    iteration, rank = operations.iteration[rows], operations.rank[rows]
    new_cell = np.ones(len(rows), bool)
    new_cell[1:] = (iteration[1:] != iteration[:-1]) | (rank[1:] != rank[:-1])
    first = np.flatnonzero(new_cell)
    cell = np.cumsum(new_cell) - 1
    kind = np.where(second, FUSED, KIND_OF_PHASE[phase])
    number = combined_microbatch(microbatch, sequence)
    known = number >= 0
    kind = np.where(~known & (kind == WEIGHTS), CLEARED, kind)
    plain_kind = np.where(kind == FUSED, BACKWARD, kind)
    turn = np.minimum(chunks_in_turn(cell, chunk), MOST_CHUNKS)
    numbered = microbatches_from_zero(iteration, cell, turn, plain_kind, number, known)
    unknown = np.zeros(len(first), bool)
    unknown[cell[~known & (kind != CLEARED)]] = True
    pattern, patterns = _distinct(coded(kind, turn, numbered), first, unknown)
    code = coded(plain_kind, turn, numbered)
    report_phase = np.where(second, int(Phase.BW), phase)
    ordered = OrderedOperations(cell, code, microbatch, chunk, report_phase)
    return Orders(iteration[first], rank[first], pattern, first, patterns, ordered)


def _ordered_rows(operations: Operations, iterations: Sequence[int]) -> Ints:
    """Return the rows that orders hold, in order of (iteration, rank, host start)."""
    # A range that clears remaining weight gradients and launches nothing found none.
    empty = (operations.phase == Phase.W) & (operations.microbatch < 0) & (operations.has_span == 0)
    rows = np.flatnonzero(
        np.isin(operations.phase, tuple(KINDS)) & np.isin(operations.iteration, iterations) & ~empty
    )
    keys = (operations.iteration[rows], operations.rank[rows], operations.host_start_ns[rows])
    return rows[sorted_rows(*keys)]


def _distinct(code: Ints, first: Ints, unknown: Bools) -> tuple[Ints, tuple[Ints, ...]]:
    """Return the pattern of each cell, and the patterns."""
    row_of: dict[bytes, int] = {}
    patterns: list[Ints] = []
    pattern = np.full(len(first), -1, np.int64)
    for cell, order in enumerate(np.split(code, first[1:]) if len(first) else []):
        if unknown[cell]:
            continue
        key = order.tobytes()
        if key not in row_of:
            row_of[key] = len(patterns)
            patterns.append(with_remaining_weights(order))
        pattern[cell] = row_of[key]
    return pattern, tuple(patterns)


def planned_orders(plan: Plan) -> tuple[Ints, ...]:
    """Return the order of each device of a plan, coded as measured ones are."""
    orders = []
    for order in plan.orders:
        flat = [(op.virtual_stage, op.phase, op.microbatch) for op in order]
        stage, phase, number = np.array(flat, np.int64).reshape(-1, 3).T
        chunk = chunks_in_turn(np.zeros(len(stage), np.int64), stage)
        orders.append(without_fusion(coded(KIND_OF_PHASE[phase], chunk, number)))
    return tuple(orders)
