"""Explain: why the bubbles are there, what bounds an iteration, and what could be won."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.align import Run
from bubbleviz.causes import Causes, Gaps, causes_of
from bubbleviz.columns import NONE
from bubbleviz.count import Counts, Iteration, typical
from bubbleviz.critical_path import (
    MOST_OPERATIONS,
    CriticalPath,
    WhatIf,
    critical_path,
    what_if,
)
from bubbleviz.doing import with_doing
from bubbleviz.graph import graph_of
from bubbleviz.idle import Idle
from bubbleviz.needs import Needs, inputs_of, needs_of
from bubbleviz.phase_times import PhaseTimes, phase_times_of
from bubbleviz.phases import WORK
from bubbleviz.receives import Communication, Receives, communication_of, receives_of


@dataclass(frozen=True)
class Explanation:
    """Why the bubbles are there.

    Attributes:
        causes: idle time by cause.
        gaps: the idle intervals in the headline's windows.
        receives: how long receives waited and moved.
        communication: the same by iteration and rank.
        phase_times: how long operations take.
        path: what bounds the typical iteration; None where that cannot be told.
        what_if: what that iteration would be under some changes; empty likewise.
    """

    causes: Causes
    gaps: Gaps
    receives: Receives
    communication: Communication
    phase_times: PhaseTimes
    path: CriticalPath | None
    what_if: tuple[WhatIf, ...]


def explain(run: Run, counts: Counts) -> Explanation:
    """Return why the bubbles of a run are there.

    Args:
        run: the profiles put together.
        counts: its ratios.
    """
    operations = run.operations
    needs = needs_of(operations, run.ranks)
    inputs = inputs_of(operations, needs)
    causes, gaps, idle = causes_of(run, counts, inputs)
    gaps = with_doing(gaps, run.hosts)
    receives = receives_of(operations, inputs, idle)
    averaged = np.array([i.averaged for i in counts.iterations], bool)
    stage = np.array([NONE if r.stage is None else r.stage for r in run.ranks], np.int64)
    path, changes = _bound(run, counts, needs, receives, idle)
    return Explanation(
        causes,
        gaps,
        receives,
        communication_of(operations, receives, run.communication_ns, run.overlapped_ns),
        phase_times_of(operations, stage, averaged, receives),
        path,
        changes,
    )


def _bound(
    run: Run, counts: Counts, needs: Needs, receives: Receives, idle: tuple[Idle, ...]
) -> tuple[CriticalPath | None, tuple[WhatIf, ...]]:
    """Return what bounds the typical iteration, where its ranks have one clock."""
    shown = typical(counts.iterations, counts.headline)
    if shown is None or not _comparable(shown):
        return None, ()
    own = (run.operations.iteration == shown.index) & np.isin(run.operations.phase, WORK)
    if int(own.sum()) > MOST_OPERATIONS:
        return None, ()
    graph = graph_of(run.operations, needs, receives, idle, shown.index)
    path = critical_path(graph, run.operations, shown.index)
    return path, what_if(graph, run.operations, len(shown.ranks))


def _comparable(iteration: Iteration) -> bool:
    ratio = iteration.ratios.get("schedule")
    return ratio is not None and ratio.value is not None
