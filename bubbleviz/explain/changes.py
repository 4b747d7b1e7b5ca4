"""Replay iterations with changed durations or delays, or in the planned order.

Times that a change does not affect are kept as measured. Iterations under other schedules are
simulated by :mod:`bubbleviz.schedules`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.tokens import list_token_waits
from bubbleviz.explain.microbatch_lengths import measure_lengths
from bubbleviz.explain.path import Graph, build_work
from bubbleviz.explain.recognition.deviations import Deviation
from bubbleviz.explain.slowdown.delays import keep_early_starts, measure_delays
from bubbleviz.explain.slowdown.replay import build_replay
from bubbleviz.explain.slowdown.replayed_run import ReplayedRun
from bubbleviz.explain.slowdown.run_work import find_computing_rows
from bubbleviz.explain.slowdown.work import find_median_rows
from bubbleviz.model.columns import NONE, Ints, make_mask, scatter
from bubbleviz.model.grouping import (
    find_distinct,
    group_rows,
    invert_permutation,
    lookup_values,
    sort_rows,
)
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.choices import MEASURED, NO_DELAY


@dataclass(frozen=True)
class Change:
    """The length and bubble ratio of an iteration that was replayed under one change.

    Attributes:
        name: Identifier of the change, such as ``no-host``. It is stable across versions.
        change: User-facing description of the change.
        makespan_ns: Time from the first forward to the last backward over all ranks.
        bubble_ratio: The ``schedule`` ratio of the iteration, or None if its makespan is 0.
    """

    name: str
    change: str
    makespan_ns: int
    bubble_ratio: float | None


@dataclass(frozen=True, eq=False, repr=False)
class _Scenario:
    """Durations and delays of all work under one change.

    Attributes:
        name: Identifier of the change, for example ``no-host``.
        change: User-facing description of the change.
        duration_ns: Duration of each row of the work table, excluding waiting.
        delay_ns: For each row, the time in ns from the end of its last predecessor to its start.
    """

    name: str
    change: str
    duration_ns: Ints
    delay_ns: Ints


#: Changes that remove the delays of one cause: name, description and cause.
_WITHOUT = (
    ("no-host", "no operation is launched late", Cause.HOST),
    ("no-transfer", "transfers take no time", Cause.COMMUNICATION),
    ("no-collective", "collectives move data instantly", Cause.COLLECTIVE),
    ("no-profiler", "no profiler overhead", Cause.PROFILER),
    ("no-latency", "no launch latency or other unexplained delay", Cause.OTHER),
)


def replay_changes(graph: Graph, operations: Operations, ranks: int) -> tuple[Change, ...]:
    """Replay an iteration as measured and under each change.

    The first entry is the iteration as measured, and the last entry is the iteration without any
    delay. The change ``no-collective`` is left out if it does not change the makespan.

    Args:
        graph: The graph of the iteration.
        operations: Operations of all ranks.
        ranks: Number of ranks in the iteration.
    """
    scenarios = [
        _Scenario(MEASURED, "as measured", graph.duration_ns, graph.delay_ns),
        *_remove_causes(graph),
        *_even_out_times(graph, operations),
        _remove_delays(graph),
    ]
    duration_ns = np.stack([scenario.duration_ns for scenario in scenarios], axis=1)
    delay_ns = np.stack([scenario.delay_ns for scenario in scenarios], axis=1)
    makespans_ns = _measure_makespans(graph, duration_ns, delay_ns)
    busy_ns = duration_ns[graph.is_counted].sum(axis=0)
    measured_ns = makespans_ns[0]
    changes = []
    for scenario, makespan_ns, work_ns in zip(
        scenarios, makespans_ns.tolist(), busy_ns.tolist(), strict=True
    ):
        # Most collectives run after the last backward, so they do not affect the makespan.
        if scenario.name == "no-collective" and makespan_ns == measured_ns:
            continue
        total_ns = ranks * makespan_ns
        ratio = (total_ns - work_ns) / total_ns if total_ns > 0 else None
        changes.append(Change(scenario.name, scenario.change, makespan_ns, ratio))
    return tuple(changes)


def _measure_makespans(graph: Graph, duration_ns: Ints, delay_ns: Ints) -> Ints:
    """Replay an iteration in each scenario, and return its makespan in ns.

    The makespan is the time from the first forward to the last backward.

    Args:
        graph: The graph of an iteration.
        duration_ns: Duration of each row without waiting, shape (rows, scenarios).
        delay_ns: Delay before each row, shape (rows, scenarios).
    """
    ends_ns = np.zeros_like(duration_ns)
    ends_ns[graph.replay.rows] = graph.replay.compute_ends(duration_ns, delay_ns)
    ends_ns, duration_ns = ends_ns[graph.is_counted], duration_ns[graph.is_counted]
    if not len(ends_ns):
        return np.zeros(duration_ns.shape[1], np.int64)
    starts_ns = ends_ns - duration_ns
    return np.asarray(ends_ns.max(axis=0) - starts_ns.min(axis=0), np.int64)


def _remove_causes(graph: Graph) -> Iterator[_Scenario]:
    """Yield one scenario for each cause in ``_WITHOUT``, without the delays due to this cause.

    Two causes also affect durations: without COMMUNICATION, transfers take no time, and without
    COLLECTIVE, collectives take no time. Scenarios other than ``no-transfer`` are left out if they
    would change nothing.
    """
    instant_ns = _make_instant_durations(graph)
    moving = {Cause.COMMUNICATION: graph.is_transfer, Cause.COLLECTIVE: graph.is_collective}
    nothing = np.zeros(len(graph.work), bool)
    for name, change, cause in _WITHOUT:
        removed_ns, is_instant = graph.delay_by_cause_ns[:, cause], moving.get(cause, nothing)
        if removed_ns.any() or is_instant.any() or cause is Cause.COMMUNICATION:
            duration_ns = np.where(is_instant, instant_ns, graph.duration_ns)
            yield _Scenario(name, change, duration_ns, graph.delay_ns - removed_ns)


def _make_instant_durations(graph: Graph) -> Ints:
    """Return a duration of 0 for each row, or its measured duration if that is negative.

    Negative durations are kept so that communication does not end later than measured.
    """
    return np.minimum(graph.duration_ns, 0)


def _remove_delays(graph: Graph) -> _Scenario:
    """Return the scenario with the same order, but without delays and communication times.

    The following delays are kept:

    - Delays with the cause DEPENDENCY, which may be waits for collectives whose members are
      unknown.
    - Negative delays.
    - Delays of rows without a predecessor.
    """
    kept_ns = graph.delay_by_cause_ns[:, Cause.DEPENDENCY]
    early_ns = np.where(graph.follows, np.minimum(graph.delay_ns, kept_ns), graph.delay_ns)
    instant_ns = _make_instant_durations(graph)
    compute_ns = np.where(graph.work.communicates, instant_ns, graph.duration_ns)
    return _Scenario(NO_DELAY, "the same order without any delay", compute_ns, early_ns)


def _even_out_times(graph: Graph, operations: Operations) -> Iterator[_Scenario]:
    """Yield the scenarios ``no-stragglers``, ``balanced`` and ``even-microbatches``.

    The kind of an operation is its rank, chunk and phase.

    - ``no-stragglers``: every operation takes the lower median time of its kind.
    - ``balanced``: a phase takes equally long on all ranks (:func:`_balance_phases`).
    - ``even-microbatches``: every operation takes the mean time of its kind. This scenario is
      yielded only if microbatch lengths vary more than expected by chance.

    The measured times of operations without a microbatch number are kept, except in ``balanced``.
    """
    rows, count = graph.operation_rows, len(graph.operation_rows)
    phase, measured_ns = operations.phase[rows], graph.duration_ns[:count]
    kinds = group_rows(operations.rank[rows], operations.chunk[rows], phase)
    # The measured time is kept for an operation of several microbatches (a W for all remaining
    # ones).
    is_single = operations.microbatch[rows] >= 0
    median_ns = measured_ns[find_median_rows(kinds.of_row, len(kinds), measured_ns)]
    median_ns = np.where(is_single, median_ns[kinds.of_row], measured_ns)

    def scenario(name: str, change: str, operations_ns: Ints) -> _Scenario:
        duration_ns = graph.duration_ns.copy()
        duration_ns[:count] = operations_ns
        return _Scenario(name, change, duration_ns, graph.delay_ns)

    yield scenario("no-stragglers", "every operation takes the median time of its kind", median_ns)
    balanced_ns = _balance_phases(phase, median_ns, measured_ns)
    yield scenario("balanced", "every stage takes the mean time of all stages", balanced_ns)
    if _has_uneven_microbatches(graph, operations):
        sizes = np.bincount(kinds.of_row)
        mean_ns = np.rint(np.bincount(kinds.of_row, measured_ns) / sizes)[kinds.of_row]
        packed_ns = np.where(is_single, mean_ns, measured_ns).astype(np.int64)
        change = "every microbatch takes the mean time, as if packed evenly"
        yield scenario("even-microbatches", change, packed_ns)


def _balance_phases(phase: Ints, usual_ns: Ints, measured_ns: Ints) -> Ints:
    """Scale durations so that the operations of a phase usually take equally long on all ranks.

    Each duration is multiplied by the mean usual duration of its phase, and divided by the usual
    duration of its kind. Operations whose usual duration is 0 are unchanged.

    Args:
        phase: Phase of each operation.
        usual_ns: Usual duration of each operation's kind.
        measured_ns: Measured duration of each operation.
    """
    balanced_ns = measured_ns.copy()
    for code in find_distinct(phase).tolist():
        rows = np.flatnonzero((phase == code) & (usual_ns > 0))
        if len(rows):
            scale = usual_ns[rows].mean() / usual_ns[rows]
            balanced_ns[rows] = np.rint(measured_ns[rows] * scale).astype(np.int64)
    return balanced_ns


def _has_uneven_microbatches(graph: Graph, operations: Operations) -> bool:
    """Return whether the microbatch lengths in the iteration vary more than expected by chance."""
    work, rows = graph.work, graph.operation_rows
    pipeline = np.zeros(int(work.rank.max(initial=NONE)) + 1, np.int64)
    pipeline[work.rank] = work.replica
    iteration = operations.iteration[rows[:1]].tolist()
    microbatches = int(operations.microbatch[rows].max(initial=-1)) + 1
    return len(measure_lengths(operations, pipeline, iteration, microbatches)) > 0


# To replay the planned order, operations that ran out of place are moved back between the
# operations that ran in place. The n-th operation in the planned order then takes the turn (the
# position in time) of the rank's n-th measured operation::
#
#     measured   F0 F1 B0 F2 B1 B2      B0 is late by 1
#     planned    F0 B0 F1 F2 B1 B2

#: Phases that can be reordered. If a rank ran any other phase, its order does not change.
_ORDERED = (Phase.F, Phase.B, Phase.BW, Phase.W)
#: Deviation kinds of operations that ran at a different position than planned.
_MOVED = ("late", "early")


def replay_planned_order(
    run: ReplayedRun, deviations: Sequence[Deviation]
) -> tuple[Ints, Ints] | None:
    """Replay the averaged iterations twice: in the measured and in the planned order.

    The measured durations of operations are used. Launch delays are left out of both replays.

    Args:
        run: The replayed run.
        deviations: All deviations from the planned order.

    Returns:
        Length of each iteration in ns, in the measured order and in the planned order. None if the
        iterations cannot be replayed, or if the planned order does not move any operation.
    """
    if run.reason:
        return None
    operations = run.operations
    rows = find_computing_rows(operations, run.averaged)
    turns = _assign_turns(operations, rows, deviations, _invert_numbers(run.numbers))
    if (turns == np.arange(len(rows))).all():
        return None
    tokens = list_token_waits(operations, run.explained().tokens)
    lengths = []
    for order_turns in (None, turns):
        work, order = build_work(run, run.averaged, tokens, run.collectives, order_turns)
        replay = build_replay(work, order)
        if len(replay.unordered):
            return None
        if order_turns is None:
            early_ns = keep_early_starts(work, measure_delays(work, order))
        lengths.append(replay.lengths_ns(work.own_ns[:, None], early_ns)[:, 0])
    return lengths[0], lengths[1]


def _invert_numbers(numbers: Ints) -> Ints:
    """Return the run index of each iteration in the report, or -1 if there is none.

    Args:
        numbers: For each iteration of the run, its number in the report, or -1 if it is left out.
    """
    iterations = np.flatnonzero(numbers != NONE)
    return scatter(int(numbers.max(initial=NONE)) + 1, numbers[iterations], iterations)


@dataclass(frozen=True, eq=False, repr=False)
class _DisplacedOperations:
    """Operations that ran at a different position than planned.

    Attributes:
        cells: The (iteration, rank) pair of each operation, as in its deviation.
        row: Index of the operation among the compute operations, or -1 if it is missing.
        places_late: Number of in-place operations that ran before this operation but should have
            run after it. Negative if the operation was early.
    """

    cells: list[tuple[int, int]]
    row: Ints
    places_late: Ints


def _assign_turns(
    operations: Operations, rows: Ints, deviations: Sequence[Deviation], iterations: Ints
) -> Ints:
    """For each operation, return the operation that ran at its planned position.

    If ranks had kept the planned order, operation ``i`` would have run at the position at which
    operation ``result[i]`` ran. If ``result[i]`` is ``i``, the position does not change. The
    positions of a rank's operations in an iteration do not change in two cases:

    - The rank has missing, repeated or extra operations in the iteration.
    - The rank ran phases that cannot be reordered.

    Args:
        operations: Operations of all ranks.
        rows: Rows of the compute operations. The result contains indices in ``rows``.
        deviations: All deviations of the run.
        iterations: For each iteration number of a deviation, the iteration in ``operations``.
    """
    turns = np.arange(len(rows))
    displaced = _find_displaced_operations(operations, rows, deviations, iterations)
    incomplete = {(d.iteration, d.rank) for d in deviations if d.what not in _MOVED}
    iteration, rank = operations.iteration[rows], operations.rank[rows]
    is_ordered = operations.phase[rows] != Phase.OPTIMIZER
    for cell in sorted(set(displaced.cells) - incomplete):
        in_cell = np.array([c == cell for c in displaced.cells], bool)
        ran_in_cell = (iteration == iterations[cell[0]]) & (rank == cell[1])
        ran = np.flatnonzero(ran_in_cell & is_ordered)
        part = operations.take(rows[ran])
        if (displaced.row[in_cell] != NONE).all() and mask_phases(part.phase, _ORDERED).all():
            planned = _insert_moved(
                part, np.searchsorted(ran, displaced.row[in_cell]), displaced.places_late[in_cell]
            )
            turns[ran[planned]] = ran[sort_rows(part.start_ns)]
    return turns


def _find_displaced_operations(
    operations: Operations, rows: Ints, deviations: Sequence[Deviation], iterations: Ints
) -> _DisplacedOperations:
    """Find the operations that ran later or earlier than planned.

    Other kinds of deviations are ignored. An operation is identified by iteration, rank, phase,
    microbatch and chunk.

    Args:
        operations: Operations of all ranks.
        rows: Rows of the compute operations.
        deviations: All deviations of the run.
        iterations: For each iteration number of a deviation, the iteration in ``operations``.
    """
    displaced = [d for d in deviations if d.what in _MOVED]
    names = ("iteration", "rank", "phase", "microbatch", "chunk")
    keys = tuple(getattr(operations, name)[rows] for name in names)
    moved_keys = [
        (iterations[d.iteration], d.rank, d.phase, d.microbatch, d.chunk) for d in displaced
    ]
    queries = list(np.array(moved_keys, np.int64).reshape(-1, 5).T)
    places_late = [d.places if d.what == "late" else -d.places for d in displaced]
    return _DisplacedOperations(
        [(d.iteration, d.rank) for d in displaced],
        lookup_values(keys, np.arange(len(rows)), queries),
        np.array(places_late, np.int64),
    )


def _insert_moved(operations: Operations, moved_rows: Ints, places_late: Ints) -> Ints:
    """Return the rows of a rank's operations in the planned order.

    Operations that ran in place keep the order in which the host started them. Each moved operation
    is inserted ``places_late`` in-place operations before the position at which it ran. Operations
    that are moved to the same position are ordered by microbatch.

    Args:
        operations: Operations of the rank in an iteration.
        moved_rows: Rows of the operations that ran out of place.
        places_late: For each moved operation, the number of in-place operations by which it was
            late. Negative if it was early.
    """
    launched = sort_rows(operations.host_start_ns)
    in_place = ~make_mask(len(operations), moved_rows)[launched]
    in_place_before = np.cumsum(in_place)[invert_permutation(launched)[moved_rows]]
    # The n-th operation in place has turn 2n. Operations moved directly after it have turn 2n + 1.
    even_turns = 2 * np.arange(1, int(in_place.sum()) + 1)
    odd_turns = 2 * (in_place_before - places_late) + 1
    turn = np.concatenate((even_turns, odd_turns))
    rows = np.concatenate((launched[in_place], moved_rows))
    return np.asarray(rows[sort_rows(turn, operations.microbatch[rows])], np.int64)
