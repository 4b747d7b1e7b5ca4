"""Small recorded tables, row by row."""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.slowdown.replay import Order, Work
from tests.support.straggler_traces import KINDS

NO_ORDER = Order(np.empty(0, np.int64), np.empty(0, np.int64))
NUMBER = {name: number for number, name in enumerate(KINDS)}
Row = tuple[int, int, int, str, int, int, int]


def table(*rows: Row) -> Work:
    """Return recorded work of (stage, replica, iteration, kind, microbatch, start, end)."""
    columns = [
        np.array([NUMBER[str(row[n])] if n == 3 else row[n] for row in rows], np.int64)
        for n in range(7)
    ]
    stage, replica, iteration, kind, microbatch, start_ns, end_ns = columns
    none = np.full(len(rows), -1, np.int64)
    return Work(
        rank=stage + 10 * replica,
        stage=stage,
        replica=replica,
        iteration=iteration,
        kind=kind,
        microbatch=microbatch,
        chunk=np.zeros(len(rows), np.int64),
        virtual_stage=stage.copy(),
        start_ns=start_ns,
        end_ns=end_ns,
        meeting=none,
        kinds=tuple(KINDS.values()),
    )
