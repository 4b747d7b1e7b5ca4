"""Explain: why the bubbles are there, what bounds an iteration, and what could be won."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.count.count import Counts
from bubbleviz.count.iterations import Iteration, typical
from bubbleviz.explain.causes import Bubbles, Causes, causes_of
from bubbleviz.explain.critical_path import (
    MOST_OPERATIONS,
    CriticalPath,
    WhatIf,
    critical_path,
    what_if,
)
from bubbleviz.explain.dependencies import Needs, inputs_of, needs_of
from bubbleviz.explain.graph import graph_of
from bubbleviz.explain.host_activity import with_doing
from bubbleviz.explain.idle import Idle
from bubbleviz.explain.phase_times import PhaseTimes, phase_times_of
from bubbleviz.explain.receives import Communication, Receives, communication_of, receives_of
from bubbleviz.model.columns import NONE
from bubbleviz.model.phases import WORK


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
        untold: why that cannot be told, where nothing else of the report says so; else empty.
    """

    causes: Causes
    bubbles: Bubbles
    receives: Receives
    communication: Communication
    phase_times: PhaseTimes
    path: CriticalPath | None
    what_if: tuple[WhatIf, ...]
    untold: str = ""


def explain(run: Run, counts: Counts) -> Explanation:
    """Return why the bubbles of a run are there.

    Args:
        run: the profiles put together.
        counts: its ratios.
    """
    operations = run.operations
    needs = needs_of(operations, run.ranks)
    inputs = inputs_of(operations, needs)
    causes, bubbles, idle = causes_of(run, counts, inputs)
    bubbles = with_doing(bubbles, run.hosts)
    receives = receives_of(operations, inputs, idle)
    averaged = np.array([i.averaged for i in counts.iterations], bool)
    stage = np.array([NONE if r.stage is None else r.stage for r in run.ranks], np.int64)
    shown = typical(counts.iterations, counts.headline)
    untold = "" if shown is None else _untold(run, needs, shown)
    path, changes = (None, ()) if untold else _bound(run, shown, needs, receives, idle)
    return Explanation(
        causes,
        bubbles,
        receives,
        communication_of(operations, receives, run.communication_ns, run.overlapped_ns),
        phase_times_of(operations, stage, averaged, receives),
        path,
        changes,
        untold,
    )


def _untold(run: Run, needs: Needs, shown: Iteration) -> str:
    """Return why it is not known what bounds an iteration: too much of it, or too little told.

    Ranks that wait for each other, and whose inputs are not known, would each stand alone.
    """
    of_iteration = run.operations.iteration == shown.index
    count = int((of_iteration & np.isin(run.operations.phase, WORK)).sum())
    if count > MOST_OPERATIONS:
        return (
            f"iteration {shown.name} holds {count:,} operations, more than the "
            f"{MOST_OPERATIONS:,} that are put together again"
        )
    stages = {run.ranks[own.rank].stage for own in shown.ranks}
    if len(shown.ranks) == 1 or stages == {0}:
        return ""
    if None in stages or not (needs.remote & of_iteration[needs.after]).any():
        return (
            "which operation waits for which of another rank is not known, for "
            + ("stages" if None in stages else "microbatches")
            + " are not told"
        )
    return ""


def _bound(
    run: Run,
    shown: Iteration | None,
    needs: Needs,
    receives: Receives,
    idle: tuple[Idle, ...],
) -> tuple[CriticalPath | None, tuple[WhatIf, ...]]:
    """Return what bounds the typical iteration, where its ranks have one clock."""
    if shown is None or not _comparable(shown):
        return None, ()
    graph = graph_of(run.operations, needs, receives, idle, shown.index)
    path = critical_path(graph, run.operations, shown.index)
    return path, what_if(graph, run.operations, len(shown.ranks))


def _comparable(iteration: Iteration) -> bool:
    ratio = iteration.ratios.get("schedule")
    return ratio is not None and ratio.value is not None
