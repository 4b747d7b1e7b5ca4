"""Launch gaps: inside operations no kernel runs, since their launches take longer than they do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.explain.diagnosis.fault import Fault, FaultKind, group_medians
from bubbleviz.explain.diagnosis.rank_paces import Evidence
from bubbleviz.model.grouping import distinct

#: Ranks whose gaps take less of their computes than this have none to speak of.
_LEAST = 0.05
#: What takes this many times the gaps of its like is a pause.
_PAUSED = 2


def faults(seen: Evidence) -> Iterator[Fault]:
    """Yield the gaps of all ranks that have some, without which kernels follow each other."""
    effects, work = seen.effects, seen.work
    rows, cell = effects.rows, effects.cells.of_row
    gap_ns = seen.gap_ns[rows].astype(np.float64)
    usual_ns = group_medians(cell, len(effects.cells), gap_ns)[cell]
    gap_ns = np.minimum(gap_ns, _PAUSED * usual_ns)
    rank = work.rank[rows]
    lost_ns, time_ns = np.bincount(rank, gap_ns), np.bincount(rank, effects.time_ns)
    at = np.flatnonzero((gap_ns > 0) & (lost_ns > _LEAST * time_ns)[rank])
    if not len(at):
        return
    share = float(gap_ns[at].sum() / effects.time_ns[at].sum())
    yield Fault(
        FaultKind.LAUNCH_GAPS,
        "launch-gaps",
        rows[at],
        np.maximum(1 - gap_ns[at] / effects.time_ns[at], 0.0),
        ranks=tuple(distinct(rank[at]).tolist()),
        phases=(("", share),),
        bound=True,
    )
