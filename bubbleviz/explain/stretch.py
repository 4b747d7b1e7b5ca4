"""Split a run into stretches: groups of complete pipelines that fit into the caches of a core.

Each stretch is explained independently. Ranks are sorted by pipeline and operations by rank, so a
stretch is a contiguous slice of every table. A stretch also contains the few facts about other
stretches that its explanation needs::

    operations   ├─ pipelines 0 to 3 ─┼─ pipelines 4 to 7 ─┼─ pipelines 8 to 11 ─┤
                       stretch 0            stretch 1             stretch 2
    shared       windows, starts and ends of iterations, waiting times of collectives

If the pipeline of any rank is unknown, the run is a single stretch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.align.run import Run
from bubbleviz.count import rank_iterations, rank_slices
from bubbleviz.count.count import Counts
from bubbleviz.count.ratios import Extents, Windows, list_ratios
from bubbleviz.explain.collective_waits import CollectiveWaits, measure_collective_waits
from bubbleviz.model import operations as tables
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import (
    find_distinct,
)
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import CHAINED, Phase
from bubbleviz.model.run_kinds import INFERENCE, run_kind

#: Approximate maximum number of operations in a stretch.
MAX_OPERATIONS = 150_000


@dataclass(frozen=True, eq=False, repr=False)
class Stretch:
    """One or more complete pipelines of a run, with ranks and operation rows numbered from 0.

    Attributes:
        first_rank: Index in the run of the stretch's first rank.
        first_row: Row in the run of the stretch's first operation.
        ranks: The ranks of the stretch.
        operations: Operations of the ranks, with empty ``names``, because a run can have millions
            of names.
        busy: Intervals during which operations keep the ranks busy.
        running: Running times of kernels and copies.
        unattributed: Intervals during which compute kernels ran outside all operations.
        exposed: Intervals during which collectives ran but no operation did.
        overheads: Intervals during which the profiler delayed a rank.
        unrecorded: Intervals during which a rank may have run work that was launched but not
            recorded.
        hosts: Activities of launching threads, sorted by the operation that was launched late.
        collectives: Times that ranks spent waiting in collectives, and times during which data
            moved. Operation row ``len(operations) + i`` refers to ``elsewhere[i]``.
        elsewhere: Operations of other stretches that collectives waited for, as rows of the run.
        collective_gap_ns: Columns of :attr:`.Run.collective_gap_ns` for the stretch's ranks, shape
            (iterations, ranks).
        extents: Start of the first work and end of the last work of each rank in each iteration.
        windows: The measurement window of each ratio, keyed by ratio name.
        is_kept: Mask of the ranks whose bubbles and receives are kept after the explanation.
        averaged: Mask of the run's iterations that are included in averages.
        ended_ns: Time at which the last rank of the run ended each iteration, or the smallest int64
            if unknown.
        begun_ns: For each iteration, the time at which the first rank began the next iteration, or
            the largest int64 if unknown.
        listed_ratio: Name of the ratio whose bubbles the report lists.
        forward: Whether the run has only forwards (inference).
        stages_known: Whether all operations are consistent with the virtual stages.
        passing: Whether at least two ranks of the run have forwards or backwards.
        ends_early: Whether later stages may exist that were not recorded.
    """

    first_rank: int
    first_row: int
    ranks: tuple[tables.Rank, ...]
    operations: tables.Operations
    busy: tables.BusyIntervals
    running: tables.RunningTimes
    unattributed: tables.RankIntervals
    exposed: tables.RankIntervals
    overheads: tables.RankIntervals
    unrecorded: tables.RankIntervals
    hosts: tables.HostActivities
    collectives: CollectiveWaits
    elsewhere: Ints
    collective_gap_ns: Ints
    extents: Extents
    windows: Mapping[str, Windows]
    is_kept: Bools
    averaged: Bools
    ended_ns: Ints
    begun_ns: Ints
    listed_ratio: str
    forward: bool
    stages_known: bool
    passing: bool
    ends_early: bool


def split_into_stretches(
    run: Run, counts: Counts, is_kept: Bools | None = None
) -> Iterator[Stretch]:
    """Yield the stretches of a run, in rank order.

    Args:
        run: The merged profiles.
        counts: Counted iterations of the run and their ratios.
        is_kept: Mask of the ranks whose bubbles and receives are kept, or None for all ranks. If
            the run is a single stretch, the mask is ignored and all ranks are kept.
    """
    shared = _collect_shared(run, counts)
    collectives = measure_collective_waits(run.collectives, run.operations)
    bounds = rank_slices.split_pipelines(run, MAX_OPERATIONS)
    if is_kept is None or len(bounds) <= 2:
        is_kept = np.ones(len(run.ranks), bool)
    for ranks in pairwise(bounds):
        yield _cut_stretch(run, counts, collectives, ranks, is_kept[slice(*ranks)], shared)


def _cut_stretch(
    run: Run,
    counts: Counts,
    collectives: CollectiveWaits,
    ranks: tuple[int, int],
    is_kept: Bools,
    shared: Mapping[str, Any],
) -> Stretch:
    """Cut a stretch out of a run, and renumber its ranks and operation rows from 0.

    Args:
        run: The merged profiles.
        counts: Counted iterations of the run and their ratios.
        collectives: Times that all ranks of the run spent waiting in collectives, and times during
            which data moved.
        ranks: Half-open range (first, stop) of the stretch's ranks.
        is_kept: Mask of the stretch's ranks whose bubbles and receives are kept after the
            explanation.
        shared: The fields that all stretches share, keyed by name.
    """
    first_rank, columns = ranks[0], slice(*ranks)
    operations, busy, rows = rank_slices.take_operations(run, ranks)
    first_row = int(rows.start)
    waits = rank_slices.take_ranks(collectives, ranks)
    last_operation, elsewhere = _renumber_last_operations(
        waits.last_operation, first_row, len(operations)
    )
    return Stretch(
        first_rank=first_rank,
        first_row=first_row,
        ranks=run.ranks[columns],
        operations=replace(operations, names=()),
        busy=busy,
        running=rank_slices.take_ranks(run.running, ranks),
        unattributed=rank_slices.take_ranks(run.unattributed, ranks),
        exposed=rank_slices.take_ranks(run.exposed, ranks),
        overheads=rank_slices.take_ranks(run.overheads, ranks),
        unrecorded=rank_slices.take_ranks(run.unrecorded, ranks),
        hosts=_take_hosts(run.hosts, rows, first_rank),
        collectives=replace(waits, last_operation=last_operation),
        elsewhere=elsewhere,
        collective_gap_ns=run.collective_gap_ns[:, columns],
        extents=counts.extents.of_ranks(columns),
        windows={name: window.of_ranks(columns) for name, window in counts.windows.items()},
        is_kept=is_kept,
        **shared,
    )


def _collect_shared(run: Run, counts: Counts) -> dict[str, Any]:
    """Return the fields of :class:`Stretch` that all stretches of a run share, keyed by name."""
    phase = run.operations.phase
    compute_rows = np.flatnonzero(mask_phases(phase, (*CHAINED, Phase.FB)))
    has_several_ranks = (
        run.operations.rank[compute_rows[:1]] != run.operations.rank[compute_rows[-1:]]
    )
    ended_ns, begun_ns = _find_ends_and_starts(counts)
    return {
        "averaged": np.array([i.averaged for i in counts.iterations], bool),
        "ended_ns": ended_ns,
        "begun_ns": begun_ns,
        "listed_ratio": _choose_listed_ratio(counts),
        "forward": run_kind(phase) == INFERENCE,
        "stages_known": not has_contradicted_stages(run),
        "passing": bool(has_several_ranks.any()),
        "ends_early": run.ends_early,
    }


def _choose_listed_ratio(counts: Counts) -> str:
    """Return the name of the ratio whose bubbles the report lists.

    This is the headline ratio. If the headline ratio was not measured in any iteration, the first
    ratio that was measured is used.
    """
    ratio_names = (counts.headline, *(ratio.name for ratio in list_ratios()))
    names_with_windows = (
        name
        for name in ratio_names
        if any(rank_iterations.has_account(i.ranks, name) for i in counts.iterations)
    )
    return next(names_with_windows, counts.headline)


def _take_hosts(
    hosts: tables.HostActivities, rows: slice, first_rank: int
) -> tables.HostActivities:
    """Return the host activities of a stretch, with ranks and operation rows renumbered from 0.

    Args:
        hosts: Activities of launching threads in the whole run, sorted by the operation that was
            launched late.
        rows: Rows of the stretch's operations.
        first_rank: Index of the stretch's first rank.
    """
    bounds = np.searchsorted(hosts.operation, (rows.start, rows.stop))
    hosts = hosts.take(slice(*bounds.tolist()))
    if not (rows.start or first_rank):
        return hosts
    return replace(hosts, rank=hosts.rank - first_rank, operation=hosts.operation - rows.start)


def _renumber_last_operations(
    last_operation: Ints, first_row: int, n_operations: int
) -> tuple[Ints, Ints]:
    """Convert operation rows of the run to operation rows of a stretch.

    An operation of the stretch gets its old row minus ``first_row``. An operation outside the
    stretch, ``elsewhere[i]``, gets the row ``n_operations + i``. -1 stays -1.

    Args:
        last_operation: For each collective, the row in the run of the last operation before it, or
            -1.
        first_row: Row in the run of the stretch's first operation.
        n_operations: Number of operations in the stretch.

    Returns:
        last_operation: The converted rows.
        elsewhere: Rows in the run of the operations outside the stretch, ascending.
    """
    is_elsewhere = last_operation >= first_row + n_operations
    is_elsewhere |= (last_operation != NONE) & (last_operation < first_row)
    elsewhere = find_distinct(last_operation[is_elsewhere])
    row = np.where(last_operation == NONE, NONE, last_operation - first_row)
    row[is_elsewhere] = n_operations + np.searchsorted(elsewhere, last_operation[is_elsewhere])
    return row, elsewhere


def has_contradicted_stages(run: Run) -> bool:
    """Return whether a limitation of the run states that operations contradict the stage order."""
    return any(note.kind is LimitationKind.STAGES_CONTRADICTED for note in run.limitations)


def _find_ends_and_starts(counts: Counts) -> tuple[Ints, Ints]:
    """Return when the last rank ended each iteration, and when the first rank began the next one.

    Returns:
        ended_ns: Latest end of each iteration over all ranks. ``NEVER`` if the clocks of the
            iteration cannot be compared.
        begun_ns: Earliest start of the next iteration over all ranks. The largest int64 if there is
            no next iteration, or if its clocks cannot be compared.
    """
    extents, latest = counts.extents, np.iinfo(np.int64).max
    if not extents.present.size:
        return np.zeros(len(extents.first_ns), np.int64), np.zeros(len(extents.first_ns), np.int64)
    end_ns = np.where(extents.present, extents.step_last_ns, NEVER).max(axis=1)
    begin_ns = np.where(extents.present, extents.first_ns, latest).min(axis=1)
    end_ns = np.where(counts.one_clock, end_ns, NEVER)
    begin_ns = np.where(counts.one_clock, begin_ns, latest)
    return end_ns, np.append(begin_ns[1:], latest)
