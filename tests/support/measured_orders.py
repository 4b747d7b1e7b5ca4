"""Measured orders for tests: the operations of ranks as a report holds them, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.count.iterations import Iteration
from bubbleviz.model.operations import Operations, Rank
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import Plan
from tests.support.drawn_reports import ranks_of

NONE = -1


@dataclass(frozen=True)
class Op:
    """One operation; a pair (FB) has the backward in the second columns."""

    phase: Phase
    microbatch: int
    chunk: int = 0
    second: tuple[int, int] = (NONE, NONE)
    occurrence: int = 0
    sequence: int = NONE


@dataclass(frozen=True)
class Measured:
    """What recognition takes of a report."""

    ranks: tuple[Rank, ...]
    operations: Operations
    iterations: tuple[Iteration, ...]


def devices_of(plan: Plan) -> list[list[Op]]:
    """Return what each device of a plan runs."""
    return [
        [Op(op.phase, op.microbatch, plan.chunk_of(op.virtual_stage)) for op in order]
        for order in plan.orders
    ]


def iteration(index: int, kind: str = "training", *, averaged: bool = True) -> Iteration:
    return Iteration(index, str(index), kind, True, averaged, None, 0, 0, {}, ranks_of(()))


def measured(
    cells: Iterable[tuple[int, int, Sequence[Op]]],
    places: Sequence[tuple[int | None, int | None]],
    iterations: Sequence[Iteration] = (),
) -> Measured:
    """Return a run.

    Args:
        cells: (rank, iteration, its operations in order), in any order.
        places: stage and pipeline of each rank.
        iterations: training ones, as many as the cells name, if not given.
    """
    rows = [
        (
            *(rank, index, int(op.phase), op.microbatch, op.chunk, op.sequence),
            *(*op.second, op.occurrence, 1000 * index + place),
        )
        for rank, index, order in cells
        for place, op in enumerate(order)
    ]
    # In order of (rank, start), as a report has them.
    table = np.array(sorted(rows, key=lambda row: (row[0], row[-1])), np.int64).reshape(-1, 10).T
    rank, index, phase, microbatch, chunk, sequence, second, second_chunk, again, start = (
        column.copy() for column in table
    )
    count = len(rank)

    def all_of(value: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.full(count, value, np.int64)

    operations = Operations(
        rank=rank,
        iteration=index,
        phase=phase,
        microbatch=microbatch,
        chunk=chunk,
        sequence=sequence,
        second_microbatch=second,
        second_chunk=second_chunk,
        occurrence=again,
        start_ns=start,
        end_ns=start + 1,
        has_span=all_of(1),
        host_start_ns=start.copy(),
        host_end_ns=start + 1,
        kernels=all_of(1),
        active_ns=all_of(1),
        busy_ns=all_of(1),
        received_ns=all_of(NONE),
        receive_start_ns=all_of(NONE),
        receive_launched_ns=all_of(NONE),
        launched_ns=all_of(NONE),
        virtual_stage=all_of(NONE),
        cut=all_of(0),
        tokens=all_of(-1),
        name_id=all_of(0),
        names=("",),
        stages=(),
    )
    ranks = tuple(
        Rank(n, f"host GPU {n}", "host", 0, n, 0, stage=stage, pipeline=pipeline)
        for n, (stage, pipeline) in enumerate(places)
    )
    last = max((cell[1] for cell in rows), default=-1)
    found = tuple(iterations) or tuple(iteration(n) for n in range(last + 1))
    return Measured(ranks, operations, found)


def of_orders(orders: Sequence[Sequence[Op]], times: int = 1) -> Measured:
    """Return a run of one pipeline that ran these orders so many times, device by device."""
    cells = [(rank, n, order) for n in range(times) for rank, order in enumerate(orders)]
    return measured(cells, [(rank, 0) for rank in range(len(orders))])
