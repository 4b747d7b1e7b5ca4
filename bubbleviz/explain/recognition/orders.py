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
    kind_of,
    with_remaining_weights,
    without_fusion,
)
from bubbleviz.explain.recognition.order_numbers import (
    Numbers,
    chunks_in_turn,
    combined_microbatch,
    first_of_all,
    microbatches_from_zero,
)
from bubbleviz.model.columns import Bools, Codes, Ints, Table
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import Phase
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen
from bubbleviz.schedules.plan import Plan


@frozen
class OrderedOperations(Table):
    """Operations of one rank and iteration in order of host start; an overlapped pair is two.

    Attributes:
        code: the operation, in numbers that count from 0.
        microbatch: as the report numbers it.
        chunk: likewise.
        phase: code of :class:`bubbleviz.model.phases.Phase`, of the report's row.
    """

    code: Ints
    microbatch: Ints
    chunk: Ints
    phase: Ints


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

    def of_cell(self, cell: int) -> OrderedOperations:
        """Return the operations of a cell in their order."""
        part = self.parts[[part.iteration for part in self.parts].index(self.iteration[cell])]
        at = int(np.searchsorted(part.rank, self.rank[cell]))
        ends = np.append(part.first, len(part.row))[at : at + 2]
        own = slice(*ends.tolist())
        row, second, operations = part.row[own], part.second[own], self.operations
        code, fused = part.code[own], kind_of(part.code[own]) == FUSED
        return OrderedOperations(
            code=np.where(fused, code - coded(_FUSES, *_NOTHING), code),
            microbatch=np.where(
                second, operations.second_microbatch[row], operations.microbatch[row]
            ),
            chunk=np.where(second, operations.second_chunk[row], operations.chunk[row]),
            phase=np.where(second, int(Phase.BW), operations.phase[row]),
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
    rows = _ordered(operations, iterations)
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
    patterns = _Patterns()
    pattern = [patterns.numbers(part) for part in parts]
    none = np.empty(0, np.int64)
    return Orders(
        np.concatenate([none, *(np.full(len(p.rank), p.iteration) for p in parts)]),
        np.concatenate([none, *(part.rank for part in parts)]),
        np.concatenate([none, *pattern]),
        tuple(patterns.found),
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
    rows = _by_host(operations, rows)
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
    number = combined_microbatch(microbatch, operations.sequence[rows], sequences)
    known = number >= 0
    kind = np.where(~known & (kind == WEIGHTS), CLEARED, kind)
    turn = np.minimum(chunks_in_turn(cell, chunk), MOST_CHUNKS)
    plain_kind = np.where(kind == FUSED, BACKWARD, kind)
    numbered, numbers = microbatches_from_zero(
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
        coded(kind, turn, numbered),
        numbers,
    )


def _ordered(operations: Operations, iterations: Sequence[int]) -> Ints:
    """Return the rows that orders hold."""
    held = among(operations.phase, KINDS)
    wanted = np.zeros(int(operations.iteration.max(initial=0)) + 2, bool)
    wanted[list(iterations)] = True
    held &= wanted[operations.iteration]
    # A range that clears remaining weight gradients and launches nothing found none.
    held &= ~((operations.has_span == 0) & (operations.phase == Phase.W) & _unnumbered(operations))
    return np.flatnonzero(held)


def _unnumbered(operations: Operations) -> Bools:
    return np.asarray(operations.microbatch < 0, bool)


def _by_host(operations: Operations, rows: Ints) -> Ints:
    """Return rows of one iteration in order of (rank, host start)."""
    rank, host_ns = operations.rank[rows], operations.host_start_ns[rows]
    if ((rank[1:] > rank[:-1]) | (host_ns[1:] >= host_ns[:-1])).all():
        return rows
    return rows[sorted_rows(rank, host_ns)]


class _Patterns:
    """Distinct orders, as they come."""

    def __init__(self) -> None:
        self._row_of: dict[bytes, int] = {}
        self.found: list[Ints] = []

    def numbers(self, part: _IterationOrders) -> Ints:
        """Return the number of each rank's pattern in an iteration; -1 unknown."""
        pattern = np.full(len(part.first), -1, np.int64)
        for cell, order in enumerate(np.split(part.code, part.first[1:])):
            if part.unknown[cell]:
                continue
            key = order.tobytes()
            if key not in self._row_of:
                self._row_of[key] = len(self.found)
                self.found.append(with_remaining_weights(order))
            pattern[cell] = self._row_of[key]
        return pattern


def planned_orders(plan: Plan) -> tuple[Ints, ...]:
    """Return the order of each device of a plan, coded as measured ones are."""
    orders = []
    for order in plan.orders:
        flat = [(op.virtual_stage, op.phase, op.microbatch) for op in order]
        stage, phase, number = np.array(flat, np.int64).reshape(-1, 3).T
        chunk = chunks_in_turn(np.zeros(len(stage), np.int64), stage)
        orders.append(without_fusion(coded(KIND_OF_PHASE[phase], chunk, number)))
    return tuple(orders)
