"""Reordered: what iterations save where ranks run their operations in the planned order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.explain.graph import ordered_work
from bubbleviz.explain.recognition.deviations import Deviation
from bubbleviz.explain.slowdown.measured import early_starts
from bubbleviz.explain.slowdown.reordering import turns_of
from bubbleviz.explain.slowdown.replay import replay_of
from bubbleviz.explain.slowdown.run_work import computing_rows
from bubbleviz.explain.slowdown.token_order import all_token_waits
from bubbleviz.explain.slowdown_source import SlowdownSource
from bubbleviz.model.columns import NONE
from bubbleviz.model.values import frozen


@frozen
class Reordered:
    """What a planned order saves.

    Attributes:
        length_ns: mean length of the iterations in the order that they ran.
        saving_ns: mean over the iterations.
        iterations: how many get shorter.
    """

    length_ns: float
    saving_ns: float
    iterations: int


def reordered(source: SlowdownSource, deviations: Sequence[Deviation]) -> Reordered | None:
    """Return what iterations save in the planned order; None where they cannot be replayed in it.

    Args:
        source: the run.
        deviations: from that order, all of them.
    """
    if source.reason:
        return None
    operations = source.operations
    rows = computing_rows(operations, source.averaged)
    iterations = np.full(int(source.numbers.max(initial=NONE)) + 1, NONE, np.int64)
    kept = source.numbers != NONE
    iterations[source.numbers[kept]] = np.flatnonzero(kept)
    turns = turns_of(operations, rows, deviations, iterations)
    if (turns == np.arange(len(rows))).all():
        return None
    lengths = []
    for of_rows in (None, turns):
        work, order = ordered_work(
            operations,
            source.ranks,
            source.dependencies,
            source.receives,
            source.collectives,
            source.averaged,
            all_token_waits(operations, source.tokens),
            of_rows,
        )
        replay = replay_of(work, order)
        if len(replay.unordered):
            return None
        if of_rows is None:
            early_ns = early_starts(work, order)
        lengths.append(replay.lengths_ns(work.own_ns[:, None], early_ns)[:, 0])
    measured_ns, planned_ns = lengths
    saved_ns = measured_ns - planned_ns
    return Reordered(
        float(measured_ns.mean()),
        float(saved_ns.mean()),
        int((saved_ns > 0).sum()),
    )
