"""A stand-in for the part of a report that schedule recognition reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bubbleviz.count.iterations import Iteration
from bubbleviz.model.operations import Operations, Rank
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import Plan
from tests.support import drawn_reports as drawn

NONE = -1


@dataclass(frozen=True)
class Op:
    """One operation.

    In an overlapped pair (FB), the second set of columns describes the backward.
    """

    phase: Phase
    microbatch: int
    chunk: int = 0
    second: tuple[int, int] = (NONE, NONE)
    occurrence: int = 0
    sequence: int = NONE


@dataclass(frozen=True)
class Measured:
    """The part of a report that schedule recognition reads."""

    ranks: tuple[Rank, ...]
    operations: Operations
    iterations: tuple[Iteration, ...]


def list_devices(plan: Plan) -> list[list[Op]]:
    """Return the operations of each device of a plan."""
    return [
        [Op(op.phase, op.microbatch, plan.chunk_of(op.virtual_stage)) for op in order]
        for order in plan.orders
    ]


def make_iteration(index: int, kind: str = "training", *, averaged: bool = True) -> Iteration:
    return Iteration(
        index, str(index), kind, True, averaged, None, 0, 0, {}, drawn.make_rank_iterations(())
    )


def make_measured(
    cells: Iterable[tuple[int, int, Sequence[Op]]],
    places: Sequence[tuple[int | None, int | None]],
    iterations: Sequence[Iteration] = (),
) -> Measured:
    """Build a run from its operations.

    Args:
        cells: (rank, iteration, operations in execution order) tuples, in any order.
        places: Stage and pipeline of each rank.
        iterations: Iterations of the run. By default, all are training iterations.
    """
    rows = [
        drawn.Op(
            rank,
            op.phase,
            op.microbatch,
            1000 * index + place,
            1000 * index + place + 1,
            op.chunk,
            index,
            *op.second,
            occurrence=op.occurrence,
            sequence=op.sequence,
        )
        for rank, index, order in cells
        for place, op in enumerate(order)
    ]
    operations, _ = drawn.make_operations(rows)
    ranks = tuple(
        Rank(n, f"host GPU {n}", "host", 0, n, 0, stage=stage, pipeline=pipeline)
        for n, (stage, pipeline) in enumerate(places)
    )
    last = max((op.iteration for op in rows), default=-1)
    chosen_iterations = tuple(iterations) or tuple(make_iteration(n) for n in range(last + 1))
    return Measured(ranks, operations, chosen_iterations)


def run_orders(orders: Sequence[Sequence[Op]], times: int = 1) -> Measured:
    """Return a run of one pipeline in which each device repeats its order."""
    cells = [(rank, n, order) for n in range(times) for rank, order in enumerate(orders)]
    return make_measured(cells, [(rank, 0) for rank in range(len(orders))])
