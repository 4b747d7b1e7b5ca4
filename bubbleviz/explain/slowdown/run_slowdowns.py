"""Slowdowns of a run: worked out when they are first asked for, since they take seconds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.explain.causes.forward_waits import TokenWaits
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.receives import Receives
from bubbleviz.explain.slowdown.measured import early_starts
from bubbleviz.explain.slowdown.messages import messages_of
from bubbleviz.explain.slowdown.replay import Order
from bubbleviz.explain.slowdown.run_order import run_order
from bubbleviz.explain.slowdown.run_work import (
    computing_rows,
    outside_operations,
    run_work,
)
from bubbleviz.explain.slowdown.scenarios import Scenarios, scenarios_of
from bubbleviz.explain.slowdown.work import Work
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.operations import Operations, Rank


def work_of_run(
    operations: Operations,
    ranks: Sequence[Rank],
    dependencies: Dependencies,
    receives: Receives,
    collectives: CollectiveIntervals,
    included: Bools,
    tokens: TokenWaits,
) -> tuple[Work, Order, Ints]:
    """Return what ranks did in some iterations, what each row follows, and late collectives.

    The last is by how much hosts launched each row late that is a collective; 0 elsewhere.

    Args:
        operations: of all ranks.
        ranks: by number.
        dependencies: between operations.
        receives: of these.
        collectives: of all ranks.
        included: of each iteration, whether it is wanted.
        tokens: which operations waited for the token of which.
    """
    rows = computing_rows(operations, included)
    messages = messages_of(operations, dependencies, receives, rows)
    beside = outside_operations(collectives, operations, included)
    work = run_work(operations, ranks, rows, messages, beside)
    late_ns = np.zeros(len(work), np.int64)
    late_ns[len(work) - len(beside) :] = beside.late_ns
    return work, run_order(work, rows, messages, operations, tokens), late_ns


def scenarios_of_run(work: Work, order: Order) -> Scenarios | None:
    """Return the replay of a run's work; None where none of it can be replayed.

    Args:
        work: of all ranks.
        order: what each of its rows follows.
    """
    return scenarios_of(work, order, early_starts(work, order))
