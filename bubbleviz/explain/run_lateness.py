"""Measure which ranks arrive last at the collectives of a run without a pipeline.

The parts of a step are the phases of its operations, and the time before the first forward of an
iteration, in which a rank usually loads data.

If the gradient synchronization was not recorded, ranks that share a host wait for each other in the
last backward of an iteration; see :mod:`.slowdown.barriers`. A rank then arrives when its last
backward starts, because nothing shows when its own work in the backward ends.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.explain.late_arrivals import Lateness, PartTimes, Visits, measure_lateness
from bubbleviz.explain.slowdown.replayed_run import ReplayedRun
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import find_first_rows, group_rows, sort_rows
from bubbleviz.model.intervals import find_last_before, group_extents
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import BACKWARD, COMPUTE, Phase

#: Name of the time between the previous operation and the first forward of an iteration.
BEFORE_FORWARD = "before forward"
#: Name of the time in backwards.
BACKWARD_PART = "backward"
#: Names of the parts of a step, and the phases of each part. The first part has no phase.
_PARTS: dict[str, tuple[Phase, ...]] = {
    BEFORE_FORWARD: (),
    "forward": (Phase.F, Phase.FB),
    BACKWARD_PART: (Phase.B, Phase.W, Phase.BW, Phase.R),
    "optimizer": (Phase.OPTIMIZER,),
}


def measure_run_lateness(
    run: ReplayedRun,
    *,
    recorded: Operations | None = None,
    has_common_clock: bool,
) -> Lateness | None:
    """Measure which ranks arrive last at the collectives of a run.

    Args:
        run: The run, with collectives whose members are known.
        recorded: Operations as recorded, if the collectives of ``run`` were inserted at the ends of
            last backwards; None if they were recorded.
        has_common_clock: Whether times of different ranks can be compared.

    Returns:
        The lateness over the averaged iterations in which no rank lacks operations, or None if the
        run has several stages, or no collective of several ranks in an averaged iteration.
    """
    if len(run.ranks) < 2 or len({rank.stage for rank in run.ranks}) > 1:
        return None
    operations = run.operations if recorded is None else recorded
    is_compute = (operations.has_span == 1) & mask_phases(operations.phase, COMPUTE)
    compute = operations.take(is_compute & (operations.iteration >= 0))
    begin_ns = _find_begin_times(compute, len(run.averaged))
    visits = _list_visits(run, begin_ns if has_common_clock else np.full_like(begin_ns, NONE))
    if recorded is not None:
        visits = _arrive_at_last_backwards(visits, compute)
    parts = _list_parts(compute, begin_ns, run)
    step_ns = _average_length(compute, visits, run.averaged)
    lateness = measure_lateness(visits, parts, step_ns, _select_iterations(compute, run.averaged))
    if not len(lateness.arrivals):
        return None
    return lateness if recorded is None else replace(lateness, hidden_part=BACKWARD_PART)


def _select_iterations(compute: Operations, averaged: Bools) -> Bools:
    """Return a mask of the averaged iterations in which the largest number of ranks compute.

    Optimizer steps do not count. If the forwards and backwards of a rank are missing, its time
    cannot be divided into parts.

    Args:
        compute: Compute operations of all ranks.
        averaged: Mask of the averaged iterations.
    """
    compute = compute.take(~mask_phases(compute.phase, (Phase.OPTIMIZER,)))
    steps = group_rows(compute.rank, compute.iteration)
    iteration = compute.iteration[steps.first]
    n_ranks = np.bincount(iteration, minlength=len(averaged))
    is_complete: Bools = n_ranks == n_ranks[averaged].max(initial=0)
    return np.asarray(averaged & is_complete, bool)


def _average_length(compute: Operations, visits: Visits, averaged: Bools) -> float:
    """Return the mean time from the start of a rank's iteration to its end, in ns.

    An iteration contains compute operations and barriers. The result is 0 if no averaged iteration
    has any.

    Args:
        compute: Compute operations of all ranks.
        visits: Visits to barriers.
        averaged: Mask of the averaged iterations.
    """
    compute = compute.take(averaged[compute.iteration])
    visits = visits.take(averaged[visits.step])
    steps = group_rows(
        np.concatenate((compute.rank, visits.rank)),
        np.concatenate((compute.iteration, visits.step)),
    )
    start_ns, end_ns = group_extents(
        steps.of_row,
        len(steps),
        np.concatenate((compute.start_ns, visits.enter_ns)),
        np.concatenate((compute.end_ns, visits.leave_ns)),
    )
    return float((end_ns - start_ns).mean()) if len(steps) else 0.0


def _arrive_at_last_backwards(visits: Visits, compute: Operations) -> Visits:
    """Let each visit begin when the last backward before the end of the visit starts.

    Args:
        visits: Visits to barriers at the ends of iterations.
        compute: Compute operations of all ranks.
    """
    backwards = compute.take(mask_phases(compute.phase, BACKWARD))
    last = find_last_before(backwards.rank, backwards.start_ns, visits.rank, visits.leave_ns)
    return visits.replace_columns(enter_ns=backwards.start_ns[last])


def _find_begin_times(compute: Operations, n_iterations: int) -> Ints:
    """Return when the first compute operation of each iteration starts, or -1 if there is none."""
    begin_ns, end_ns = group_extents(
        compute.iteration, n_iterations, compute.start_ns, compute.start_ns
    )
    return np.where(begin_ns > end_ns, NONE, begin_ns)


def _list_visits(run: ReplayedRun, begin_ns: Ints) -> Visits:
    """List the visits of ranks to collectives whose members are known.

    Args:
        run: The run.
        begin_ns: Common start of each iteration, or -1 if unknown.
    """
    collectives = run.collectives
    rows = np.flatnonzero((collectives.meeting >= 0) & (collectives.iteration >= 0))
    # A collective on one rank may have several pieces.
    pieces = group_rows(collectives.meeting[rows], collectives.rank[rows])
    enter_ns, leave_ns = group_extents(
        pieces.of_row, len(pieces), collectives.start_ns[rows], collectives.end_ns[rows]
    )
    first = rows[pieces.first]
    step = collectives.iteration[first]
    return Visits(
        barrier=collectives.meeting[first],
        rank=collectives.rank[first],
        step=step,
        enter_ns=enter_ns,
        leave_ns=leave_ns,
        begin_ns=begin_ns[step],
    )


def _list_parts(compute: Operations, begin_ns: Ints, run: ReplayedRun) -> PartTimes:
    """List the times that ranks spend in the parts of their steps.

    Args:
        compute: Compute operations, sorted by (rank, start).
        begin_ns: Start of each iteration on any rank.
        run: The run that contains the operations.
    """
    part = np.full(len(compute), NONE, np.int64)
    for number, phases in enumerate(_PARTS.values()):
        part[mask_phases(compute.phase, phases)] = number
    first = _find_first_operations(compute)
    ended_ns = _find_previous_ends(compute, first, begin_ns, run)
    return PartTimes(
        rank=np.concatenate((compute.rank, compute.rank[first])),
        part=np.concatenate((part, np.zeros(len(first), np.int64))),
        start_ns=np.concatenate((compute.start_ns, ended_ns)),
        end_ns=np.concatenate((compute.end_ns, compute.start_ns[first])),
        names=tuple(_PARTS),
    )


def _find_first_operations(compute: Operations) -> Ints:
    """Return the row of the first compute operation of each rank and iteration."""
    parts = group_rows(compute.rank, compute.iteration)
    return find_first_rows(parts.of_row, compute.start_ns)


def _find_previous_ends(compute: Operations, first: Ints, begin_ns: Ints, run: ReplayedRun) -> Ints:
    """Return when the operations and collectives before the given operations have ended.

    Args:
        compute: Compute operations, sorted by (rank, start).
        first: Rows of ``compute``.
        begin_ns: Start of each iteration on any rank, used if nothing has ended before.
        run: The run, whose collectives are taken into account.
    """
    rank = np.concatenate((compute.rank, run.collectives.rank))
    start_ns = np.concatenate((compute.start_ns, run.collectives.start_ns))
    end_ns = np.concatenate((compute.end_ns, run.collectives.end_ns))
    order = sort_rows(rank, start_ns)
    latest_ns = _accumulate_by_rank(rank[order], end_ns[order])
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    before = position[first] - 1
    has_before: Bools = (before >= 0) & (rank[order][before] == compute.rank[first])
    return np.where(has_before, latest_ns[before], begin_ns[compute.iteration[first]])


def _accumulate_by_rank(rank: Ints, end_ns: Ints) -> Ints:
    """Return the latest end up to each row, among the rows of the same rank.

    Args:
        rank: Rank of each row, ascending.
        end_ns: End of each row.
    """
    if not len(end_ns):
        return end_ns
    # Each rank is shifted beyond all earlier ranks, so that the maximum never crosses ranks.
    origin_ns = int(end_ns.min())
    width_ns = int(end_ns.max()) - origin_ns + 1
    shifted_ns = end_ns - origin_ns + rank * width_ns
    return np.asarray(np.maximum.accumulate(shifted_ns) - rank * width_ns + origin_ns, np.int64)
