"""What if: how long an iteration would take with other operation times or delays, in its order.

The iteration's graph is replayed: every operation starts its delay after the last of those that it
follows has ended, transfers and collectives included.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.forward_waits import all_token_waits
from bubbleviz.explain.graph import Graph, ordered_work
from bubbleviz.explain.recognition.recognition import Deviation
from bubbleviz.explain.slowdown.replay import replay_of
from bubbleviz.explain.slowdown.run_work import computing_rows, early_starts
from bubbleviz.explain.slowdown_source import SlowdownSource
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import distinct, groups_of, looked_up, sorted_rows
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen


@frozen
class WhatIf:
    """An iteration under one change, all else as measured.

    Attributes:
        name: stable name of the change.
        change: what it is, for people.
        makespan_ns: window of the iteration over all ranks.
        bubble_ratio: its ``schedule`` ratio; None for an iteration without any length.
    """

    name: str
    change: str
    makespan_ns: int
    bubble_ratio: float | None


#: Changes that remove the delays of one cause: name, what it is, and the cause.
_WITHOUT = (
    ("no-host", "every operation launched in time", Cause.HOST),
    ("no-transfer", "transfers take no time", Cause.COMMUNICATION),
    ("no-collective", "collectives move data in no time", Cause.COLLECTIVE),
    ("no-profiler", "no profiler overhead", Cause.PROFILER),
    ("no-latency", "no launch latency or other unexplained delay", Cause.OTHER),
)


def what_if(graph: Graph, operations: Operations, ranks: int) -> tuple[WhatIf, ...]:
    """Return an iteration as measured, then under each change.

    Args:
        graph: the iteration.
        operations: of all ranks.
        ranks: number of ranks in the iteration.
    """
    count = len(graph.rows)
    own_ns, delay_ns = graph.own_ns, graph.delay_ns
    # Communication that takes no time ends no later than it did.
    at_once_ns = np.minimum(own_ns, 0)
    #: Names, what they are, times and delays of all work.
    scenarios = [("measured", "as measured", own_ns, delay_ns)]
    for name, change, cause in _WITHOUT:
        removed_ns = np.zeros(len(graph.work), np.int64)
        removed_ns[:count] = graph.delay_by_cause[:, cause]
        moves = np.zeros(len(graph.work), bool)
        if cause is Cause.COMMUNICATION:
            moves = graph.transfers
        elif cause is Cause.COLLECTIVE:
            moves = graph.collectives
        if removed_ns.any() or moves.any() or cause is Cause.COMMUNICATION:
            without_ns = np.where(moves, at_once_ns, own_ns)
            scenarios.append((name, change, without_ns, delay_ns - removed_ns))
    for name, change, busy_ns in (
        ("no-stragglers", "every operation takes the median of its kind", _medians),
        ("balanced", "every stage takes the mean of all stages", _balanced),
    ):
        taken_ns = np.concatenate((busy_ns(graph, operations), own_ns[count:]))
        scenarios.append((name, change, taken_ns, delay_ns))
    # Where members of a collective are unknown, waiting for them stays.
    kept_ns = np.zeros(len(graph.work), np.int64)
    kept_ns[:count] = graph.delay_by_cause[:, Cause.DEPENDENCY]
    early_ns = np.where(graph.follows, np.minimum(delay_ns, kept_ns), delay_ns)
    computes_ns = np.where(graph.work.communicates, at_once_ns, own_ns)
    scenarios.append(("no-delay", "the same order without any delay", computes_ns, early_ns))
    makespans_ns = graph.makespans_ns(
        *(np.stack([scenario[n] for scenario in scenarios], axis=1) for n in (2, 3))
    )
    changes = []
    for (name, change, own_ns, _), makespan_ns in zip(scenarios, makespans_ns, strict=True):
        # Most collectives run when all forwards and backwards have.
        if name != "no-collective" or makespan_ns != makespans_ns[0]:
            whole = ranks * makespan_ns
            busy = int(own_ns[graph.works].sum())
            ratio = (whole - busy) / whole if whole > 0 else None
            changes.append(WhatIf(name, change, makespan_ns, ratio))
    return tuple(changes)


def _medians(graph: Graph, operations: Operations) -> Ints:
    """Return for each operation the median time of its rank, chunk and phase."""
    busy_ns, rank = graph.own_ns[: len(graph.rows)], operations.rank[graph.rows]
    kind = groups_of(rank, operations.chunk[graph.rows], operations.phase[graph.rows]).of_row
    order = sorted_rows(kind, busy_ns)
    first = np.searchsorted(kind[order], np.arange(int(kind.max(initial=-1)) + 1))
    count = np.bincount(kind, minlength=len(first))
    middle: Ints = busy_ns[order][first + (count - 1) // 2]
    # An operation that stands for several (a W of all remaining microbatches) has no kind.
    single = operations.microbatch[graph.rows] >= 0
    return np.where(single, middle[kind], busy_ns)


def _balanced(graph: Graph, operations: Operations) -> Ints:
    """Return the times with every stage as fast as the mean of all stages, phase by phase.

    Each operation keeps its ratio to the median of its kind.
    """
    median_ns, phases = _medians(graph, operations), operations.phase[graph.rows]
    result = graph.own_ns[: len(graph.rows)].copy()
    for phase in distinct(phases).tolist():
        at = np.flatnonzero((phases == phase) & (median_ns > 0))
        if len(at):
            scale = median_ns[at].mean() / median_ns[at]
            result[at] = np.rint(result[at] * scale).astype(np.int64)
    return result


# Reordered: what iterations save where ranks run their operations in the planned order.
#
# What is out of place goes back among what is in place; each operation of a rank takes the turn of
# the one that ran there::
#
#     measured   F0 F1 B0 F2 B1 B2      B0 is late by 1
#     planned    F0 B0 F1 F2 B1 B2

#: What orders hold; a rank that runs anything else between them keeps its order.
_ORDERED = (Phase.F, Phase.B, Phase.BW, Phase.W)
#: Deviations that say where an operation belongs.
_MOVED = ("late", "early")


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
    tokens = all_token_waits(operations, source.tokens)
    lengths = []
    for own_turns in (None, turns):
        work, order = ordered_work(source, source.averaged, tokens, source.collectives, own_turns)
        replay = replay_of(work, order)
        if len(replay.unordered):
            return None
        if own_turns is None:
            early_ns = early_starts(work, order)
        lengths.append(replay.lengths_ns(work.own_ns[:, None], early_ns)[:, 0])
    measured_ns, planned_ns = lengths
    saved_ns = measured_ns - planned_ns
    return Reordered(
        float(measured_ns.mean()),
        float(saved_ns.mean()),
        int((saved_ns > 0).sum()),
    )


def turns_of(
    operations: Operations, rows: Ints, deviations: Sequence[Deviation], iterations: Ints
) -> Ints:
    """Return the row whose turn each operation takes in the planned order: most keep their own.

    Ranks of whose operations some are missing, repeated or more than planned keep their order in
    that iteration.

    Args:
        operations: of all ranks.
        rows: of those that compute.
        deviations: of the run, all of them.
        iterations: of each iteration in the deviations, its index in the operations.
    """
    turns = np.arange(len(rows))
    moved = [d for d in deviations if d.what in _MOVED]
    table = np.array(
        [(iterations[d.iteration], d.rank, d.phase, d.microbatch, d.chunk) for d in moved],
        np.int64,
    ).reshape(-1, 5)
    keys = (
        operations.iteration,
        operations.rank,
        operations.phase,
        operations.microbatch,
        operations.chunk,
    )
    at = looked_up([key[rows] for key in keys], np.arange(len(rows)), list(table.T))
    places = np.array([d.places if d.what == "late" else -d.places for d in moved], np.int64)
    other = {(d.iteration, d.rank) for d in deviations if d.what not in _MOVED}
    cells = [(d.iteration, d.rank) for d in moved]
    for cell in sorted(set(cells) - other):
        own = np.array([c == cell for c in cells], bool)
        low, high = np.searchsorted(operations.rank[rows], (cell[1], cell[1] + 1)).tolist()
        of_rank = operations.take(rows[low:high])
        in_cell = of_rank.iteration == iterations[cell[0]]
        of_cell = low + np.flatnonzero(in_cell & (of_rank.phase != Phase.OPTIMIZER))
        if (at[own] == NONE).any() or not among(operations.phase[rows[of_cell]], _ORDERED).all():
            continue
        ran = of_cell[sorted_rows(operations.host_start_ns[rows[of_cell]])]
        by_turn = of_cell[sorted_rows(operations.start_ns[rows[of_cell]])]
        planned = _planned(ran, at[own], places[own], operations.microbatch[rows])
        turns[planned] = by_turn
    return turns


def _planned(ran: Ints, moved: Ints, places: Ints, microbatch: Ints) -> Ints:
    """Return the operations of a rank in the planned order.

    Args:
        ran: in measured order.
        moved: those of them that are out of place.
        places: by how many in place each of these is late.
        microbatch: of all operations.
    """
    kept = ~np.isin(ran, moved)
    by_row = np.argsort(ran)
    kept_before = np.cumsum(kept)[by_row[np.searchsorted(ran, moved, sorter=by_row)]]
    # Those in place have even turns; what goes behind the n-th of them has the odd turn after it.
    turn = np.concatenate((2 * np.arange(1, int(kept.sum()) + 1), 2 * (kept_before - places) + 1))
    rows = np.concatenate((ran[kept], moved))
    return np.asarray(rows[sorted_rows(turn, microbatch[rows])], np.int64)
