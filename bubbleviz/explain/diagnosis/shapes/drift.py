"""Drift: a rank, or all of them, become slower from iteration to iteration."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.explain.diagnosis.evidence import Evidence
from bubbleviz.explain.diagnosis.fault import Fault, FaultKind
from bubbleviz.explain.diagnosis.trends import lines, rises
from bubbleviz.model.grouping import groups_of


def faults(seen: Evidence) -> Iterator[Fault]:
    """Yield the ranks whose computes take longer and longer."""
    effects, work = seen.effects, seen.work
    first = effects.rows[effects.paces.first]
    shared = effects.iteration_effect[effects.iterations.of_row[effects.paces.first]]
    series = np.log(effects.pace * shared)
    ranks = groups_of(work.rank[first])
    number = groups_of(work.iteration[first]).of_row.astype(np.float64)
    count = np.bincount(ranks.of_row)
    slope, explained = lines(ranks.of_row, number, series)
    out = rises(count, slope, explained)
    if not out.any():
        return
    risen = (slope[ranks.of_row] * number)[effects.paces.of_row]
    at = np.flatnonzero(out[ranks.of_row][effects.paces.of_row])
    slowest = float(np.exp((slope * (count - 1))[out].max()))
    names = work.rank[first[ranks.first[out]]].tolist()
    yield Fault(
        FaultKind.DRIFT,
        "drift",
        effects.rows[at],
        np.exp(-risen[at]),
        ranks=tuple(names),
        phases=(("", slowest),),
        what="all" if out.all() else "",
    )
