"""The explanation of one stretch, and what it hands on to that of the run.

:func:`explain_stretch` looks at nothing else, so that it runs wherever the ranks of a stretch are;
what it returns is small beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bubbleviz.align.arrivals import arrivals
from bubbleviz.count.rank_slices import joined_ranks
from bubbleviz.count.running_time import time_within
from bubbleviz.explain.causes.bubbles import with_host_activity
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.cause_times import CauseTimes, causes_of
from bubbleviz.explain.chunk_costs import ChunkTimes, chunk_times_of
from bubbleviz.explain.collective_waits import collective_times
from bubbleviz.explain.dependencies import dependencies_of, inputs_of
from bubbleviz.explain.explained_rows import ExplainedRows, joined_rows, moved_rows
from bubbleviz.explain.phase_samples import PhaseSamples, phase_samples_of
from bubbleviz.explain.receives import CommunicationTimes, Receives, communication_of, receives_of
from bubbleviz.explain.stretch import Stretch
from bubbleviz.explain.transfers import after_idling, gaps_of, waited
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.operations import Operations
from bubbleviz.model.values import frozen


@frozen(eq=False, shown=False)
class StretchExplanation:
    """What is explained of one stretch.

    Attributes:
        first_rank: its first rank in the run.
        first_row: its first operation in the run.
        count: its operations.
        elsewhere: as of :class:`~bubbleviz.explain.stretch.Stretch`.
        idle_ns: idle time by cause, as of :class:`.CauseTimes`.
        communication: of its ranks.
        samples: what phase times are worked out from.
        chunks: forwards whose tokens are known.
        received: of each iteration, how many receives it has.
        crossing: of each iteration, whether any operation takes from another rank.
        kept: rows of the ranks that are kept, with numbers of the stretch.
    """

    first_rank: int
    first_row: int
    count: int
    elsewhere: Ints
    idle_ns: Mapping[str, Ints]
    communication: CommunicationTimes
    samples: PhaseSamples
    chunks: ChunkTimes
    received: Ints
    crossing: Bools
    kept: ExplainedRows


def explain_stretch(stretch: Stretch) -> StretchExplanation:
    """Return why the ranks of a stretch were idle, and how long its operations took.

    Args:
        stretch: whole pipelines of a run.
    """
    operations, shared = stretch.operations, stretch.shared
    dependencies = dependencies_of(operations, stretch.ranks)
    if not shared.stages_known:
        dependencies = dependencies.take(slice(0))
    inputs = inputs_of(
        operations, dependencies, stages_known=shared.stages_known, passing=shared.passing
    )
    known = arrivals(operations)
    causes, bubbles, idle, tokens = causes_of(stretch, inputs, known)
    bubbles = with_host_activity(bubbles, stretch.hosts)
    receives = receives_of(operations, inputs, known, idle)
    stage = np.array([NONE if r.stage is None else r.stage for r in stretch.ranks], np.int64)
    samples = phase_samples_of(
        operations,
        stage,
        shared.averaged,
        waited(receives),
        after_idling(operations, inputs, known),
        gaps_of(operations, inputs),
    )
    iterations = len(shared.averaged)
    received = operations.iteration[receives.operation]
    crossing = np.zeros(iterations + 1, bool)
    crossing[operations.iteration[dependencies.after[dependencies.remote]]] = True
    rows = ExplainedRows(dependencies, receives, idle, bubbles, tokens)
    if not stretch.kept.all():
        rows = rows.of_ranks(stretch.kept, operations.rank)
    return StretchExplanation(
        first_rank=stretch.first_rank,
        first_row=stretch.first_row,
        count=len(operations),
        elsewhere=stretch.elsewhere,
        idle_ns=causes.idle_ns,
        communication=_communication(stretch, causes, receives),
        samples=samples,
        chunks=chunk_times_of(operations, stage, shared.averaged),
        received=np.bincount(received[received >= 0], minlength=iterations),
        crossing=crossing[:iterations],
        kept=rows.placed(lambda row: row, operations.take(slice(0))),
    )


def _communication(stretch: Stretch, causes: CauseTimes, receives: Receives) -> CommunicationTimes:
    """Return how long the ranks of a stretch communicated in each iteration."""
    ratio, running = stretch.shared.listed, stretch.running
    bounds = _communication_bounds(stretch, ratio, receives)
    exposed_ns = causes.idle_ns[ratio][:, :, Cause.COLLECTIVE] + stretch.collective_gap_ns
    return communication_of(
        stretch.operations,
        receives,
        collective_times(stretch.collectives, bounds, exposed_ns),
        *(
            time_within(running, column, *bounds)
            for column in (running.communication_ns, running.overlapped_ns)
        ),
    )


def _communication_bounds(stretch: Stretch, ratio: str, receives: Receives) -> tuple[Ints, Ints]:
    """Return since and until when the communication of iterations counts on ranks.

    That is a rank's window of a ratio, and from the start of the iteration's first receive on
    where that comes before. Where an iteration has no such window, its last work ends it.
    """
    window, extents, operations = stretch.windows[ratio], stretch.extents, stretch.operations
    known = window.known[:, None] & extents.present
    low_ns = np.where(known, window.start_ns, extents.first_ns)
    high_ns = np.maximum(np.where(known, window.end_ns, extents.last_ns), low_ns)
    iteration = operations.iteration[receives.operation]
    some = np.flatnonzero(iteration >= 0)
    rank = operations.rank[receives.operation[some]]
    np.minimum.at(low_ns, (iteration[some], rank), receives.start_ns[some])
    return low_ns, high_ns


def rows_of_run(parts: Sequence[StretchExplanation], operations: Operations) -> ExplainedRows:
    """Return the kept rows of all stretches, with the numbers of the run.

    Args:
        parts: the stretches of a run, in their order.
        operations: of the run.
    """
    return joined_rows(
        [
            part.kept.placed(
                moved_rows(part.first_row, part.count, part.elsewhere), operations, part.first_rank
            )
            for part in parts
        ]
    )


def causes_of_run(parts: Sequence[StretchExplanation]) -> CauseTimes:
    """Return the idle times of all stretches of a run as one."""
    columns = joined_ranks([part.idle_ns for part in parts])
    return CauseTimes(dict(zip(parts[0].idle_ns, columns, strict=True)))


def communication_of_run(parts: Sequence[StretchExplanation]) -> CommunicationTimes:
    """Return the communication of all stretches of a run as one."""
    return CommunicationTimes(*joined_ranks([vars(part.communication) for part in parts]))
