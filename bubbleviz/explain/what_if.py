"""What if: the graph of an iteration, its critical path, and how long it would take under changes.

Every piece of work starts its delay after the last of those that it follows: the operation before
it on its rank, the transfers of its input from other ranks, and collectives, in which data moves
once the last member has entered::

    rank 0   ├── F0 ──┼── F1 ──┤ ...  ├── B7 ──┤▒ waits ▒│▓ all-reduce ▓┤├ Optimizer ┤
                      └transfer┐
    rank 1                     └delay├── F0 ──┤ ... ├─ B7 ─┤▓ all-reduce ▓┤├ Optimizer ┤

So it is replayed with other operation times or delays, in its order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.cause_times import idle_by_cause
from bubbleviz.explain.causes.idle import IdleIntervals, all_token_waits
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.recognition.recognition import Deviation
from bubbleviz.explain.slowdown import run_work
from bubbleviz.explain.slowdown.replay import Replay, build_replay
from bubbleviz.explain.slowdown.slack import compute_slack
from bubbleviz.explain.slowdown.work import POINT_TO_POINT, Role, Work, median_rows, plays
from bubbleviz.model import intervals
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Floats, Ints, joined, scattered
from bubbleviz.model.grouping import distinct, groups_of, looked_up, rows_by_value, sorted_rows
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import WORK, Phase


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """The work of an iteration: operations, collectives, and transfers of inputs.

    Attributes:
        work: operations, then collectives, then transfers, each from the end of its producer on.
        order: what each row of the work follows.
        replay: of it.
        rows: of the operations table, of the first rows of the work.
        works: of each row of the work, whether it is a forward or backward.
        own_ns: how long each row takes itself, without waiting.
        delay_ns: how long each starts after all that it follows, or after the iteration did.
        follows: which follow any other.
        delay_by_cause: how much of the delay of operations has which cause, shape (rows, causes).
    """

    work: Work
    order: Dependencies
    replay: Replay
    rows: Ints
    works: Bools
    own_ns: Ints
    delay_ns: Ints
    follows: Bools
    delay_by_cause: Ints

    @property
    def collectives(self) -> Bools:
        """Which rows of the work are collectives."""
        return self.work.communicates & ~plays(self.work.role, POINT_TO_POINT)


def graph_of(run: run_work.ReplayedRun, iteration: int) -> Graph:
    """Return the work of one iteration, and what each piece of it follows.

    Args:
        run: all ranks.
        iteration: index of the iteration.
    """
    operations = run.operations
    included = np.arange(int(operations.iteration.max(initial=iteration)) + 1) == iteration
    rows = run_work.computing_rows(operations, included)
    for collectives in (run.collectives, run.collectives.take(slice(0))):
        work, order = ordered_work(run, included, run.explained().tokens, collectives)
        replay = build_replay(work, order)
        # Collectives whose members' clocks are off can seem to wait for themselves.
        if not len(replay.unordered):
            break
    delay_ns = run_work.delays_of(work, order)
    follows = np.bincount(order.after, minlength=len(work)) > 0
    works = np.append(among(operations.phase[rows], WORK), np.zeros(len(work) - len(rows), bool))
    # How much of the delay of operations has which cause.
    delays = np.zeros((len(work), len(Cause)), np.int64)
    at = np.flatnonzero(follows[: len(rows)])
    rank, end_ns = work.rank[at], work.end_ns[at]
    since_ns = np.minimum(work.start_ns[at] - delay_ns[at], end_ns)
    delays[at] = idle_by_cause(run.explained().idle, rank, since_ns, end_ns)
    # A span that begins with work that needs no input has idle time after its start.
    room_ns = np.maximum(delay_ns, 0)[:, None] - np.cumsum(delays, axis=1) + delays
    delays = np.clip(delays, 0, np.maximum(room_ns, 0))
    return Graph(work, order, replay, rows, works, work.own_ns, delay_ns, follows, delays)


def ordered_work(
    run: run_work.ReplayedRun,
    included: Bools,
    tokens: Dependencies,
    collectives: CollectiveIntervals,
    turns: Ints | None = None,
) -> tuple[Work, Dependencies]:
    """Return the work of some iterations as in :class:`Graph`, and what each row of it follows.

    Args:
        run: all ranks.
        included: of each iteration, whether it is wanted.
        tokens: which operations wait for the token of which.
        collectives: of all ranks.
        turns: the row whose turn on its rank each operation takes; None for its own.
    """
    operations = run.operations
    rows = run_work.computing_rows(operations, included)
    messages = run_work.messages_of(run, rows)
    messages = replace(messages, seen=np.zeros(len(messages), bool))
    beside = run_work.outside_operations(collectives, operations, included)
    work = run_work.run_work(run, rows, messages, beside)
    place = scattered(len(operations), rows, np.arange(len(rows)))
    # An operation that seems to run before its producer (clocks can be off) cannot follow it.
    in_turn = np.empty(len(rows), np.int64)
    in_turn[sorted_rows(work.start_ns[: len(rows)], work.end_ns[: len(rows)])] = np.arange(
        len(rows)
    )
    ordered = in_turn[place[messages.producer]] < in_turn[place[messages.consumer]]
    messages = messages.take(ordered)
    turn = np.arange(len(work))
    if turns is not None:
        turn[: len(rows)] = turns
    in_turns = replace(work, start_ns=work.start_ns[turn], end_ns=work.end_ns[turn])
    order = run_work.run_order(in_turns, rows, messages, operations, tokens)
    # Transfers of inputs, each from the end of its producer on. None takes longer than the time
    # between its operations.
    producer, consumer = place[messages.producer], place[messages.consumer]
    start_ns = work.end_ns[producer]
    produced_ns = intervals.group_extents(consumer, len(work), start_ns, start_ns)[1][consumer]
    room_ns = np.maximum(work.start_ns[consumer] - produced_ns, 0)
    transfer_ns = _transfers(run)[messages.consumer]
    names = [kind.role for kind in work.kinds]
    moves = replace(
        work.take(consumer),
        kind=np.where(messages.forward, names.index(Role.RECV_F), names.index(Role.RECV_B)),
        start_ns=start_ns,
        end_ns=start_ns + np.clip(transfer_ns, 0, room_ns),
    )
    own = len(work) + np.arange(len(moves))
    return joined((work, moves)), Dependencies(
        np.concatenate((order.after, own, consumer)), np.concatenate((order.before, producer, own))
    )


def _transfers(run: run_work.ReplayedRun) -> Ints:
    """Return how long the input of each operation is in transfer.

    A receive that waited shows it. Any other one began late itself (before a bottleneck all do), or
    was not recorded: its transfer is the median of its virtual stage and direction, and where no
    receive of these waited, of the run.
    """
    operations = run.operations
    receives = run.explained().receives
    waited = receives.take(receives.wait_ns > 0)
    row, measured_ns = waited.operation, waited.transfer_ns
    if not len(row):
        return np.zeros(len(operations), np.int64)
    forward = among(operations.phase, (Phase.F, Phase.FB)).astype(np.int64)
    kinds = groups_of(operations.virtual_stage, forward)
    rows = median_rows(kinds.of_row[row], len(kinds), measured_ns)
    usual_ns = np.sort(measured_ns)[(len(measured_ns) - 1) // 2]
    transfer_ns = np.where(rows == NONE, usual_ns, measured_ns[rows])[kinds.of_row]
    transfer_ns[row] = measured_ns
    return transfer_ns


# The critical path: the chain of work that bounds an iteration, and the slack beside it.
#
# Work starts its delay after the last of what it follows: the operation before it on its rank, its
# input, the members of its collective. The path runs backwards from the end of the iteration,
# always to what came last; through a collective that is the member that entered last, on any rank::
#
#     rank 0   ██ F0 ██                      ██ B0 ██             ▓ all-reduce ▓█ Optimizer █
#                     │                      │       │            │
#     rank 1          └─delay─██ F0 ████ B0 ██       │            │
#                                                    └██ F0 .. B0 █ of another replica


@dataclass(frozen=True)
class PathPart:
    """A part of the critical path: the work of one rank in one phase, or one cause of delay.

    Attributes:
        rank: the rank.
        what: printed name of the phase, of the kind of collective, or of the cause.
        time_ns: how much of the path it is.
        count: operations, collectives, or delays.
    """

    rank: int
    what: str
    time_ns: int
    count: int


@dataclass(frozen=True)
class PathCollective:
    """A collective that the critical path passes.

    Attributes:
        what: printed name of its kind.
        last_rank: the rank that entered it last, from which the path comes.
        rank: the rank on which the path goes on.
        start_ns: when the last rank entered.
        end_ns: when the other one left.
    """

    what: str
    last_rank: int
    rank: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class CriticalPath:
    """The chain of work that bounds an iteration, each delayed only by what comes before it.

    Attributes:
        iteration: index of the iteration.
        operations: rows of the operations of the chain, in order.
        length_ns: from the start of the first to the end of the iteration, its optimizer included.
        parts: what the length is made of, largest first.
        collectives: those that the chain passes, in order.
        replayed: rows of the iteration's operations whose slack is known, ascending.
        slack_ns: of each of these, how much later it could end without a longer iteration, all else
            as measured.
    """

    iteration: int
    operations: Ints
    length_ns: int
    parts: tuple[PathPart, ...]
    collectives: tuple[PathCollective, ...]
    replayed: Ints
    slack_ns: Ints


def critical_path(graph: Graph, run: run_work.ReplayedRun, iteration: int) -> CriticalPath:
    """Return the critical path of an iteration, and the slack of each of its operations.

    Args:
        graph: the iteration.
        run: all ranks.
        iteration: index of the iteration.
    """
    work, replay, before = graph.work, graph.replay, graph.order.before
    if len(replay.rows) == 0:
        nothing = np.empty(0, np.int64)
        return CriticalPath(iteration, nothing, 0, (), (), nothing, nothing)
    times_ns = graph.own_ns, graph.delay_ns
    slack_ns = compute_slack(work, graph.order, replay, *times_ns)[: len(graph.rows)]
    # The member of the meeting of each row that started last; of several its own.
    last_entered = np.arange(len(work))
    met = np.flatnonzero(work.meeting != NONE)
    meetings, start_ns = groups_of(work.meeting[met]), work.start_ns[met]
    latest = met[_last_of_each(meetings.of_row, start_ns)][meetings.of_row]
    last_entered[met] = np.where(start_ns == work.start_ns[latest], met, latest)
    # What ended last of what each row follows; of several what its own rank computed.
    own = (work.rank[graph.order.after] == work.rank[before]).astype(np.int64)
    computed = (~work.communicates[before]).astype(np.int64)
    last = _last_of_each(graph.order.after, work.end_ns[before], own, computed)
    followed = scattered(len(work), graph.order.after[last], before[last])
    # From the end of the iteration backwards, each step from what ended to what began last.
    closing = replay.rows[replay.closing]
    step, steps = int(closing[work.end_ns[closing].argmax()]), []
    while step != NONE:
        steps.append((int(last_entered[step]), step))
        step = int(followed[last_entered[step]])
    entered, row = np.array(steps[::-1], np.int64).T.copy()
    passed = np.flatnonzero(graph.collectives[row])
    columns = (
        work.kind[row[passed]],
        work.rank[entered[passed]],
        work.rank[row[passed]],
        work.start_ns[entered[passed]],
        work.end_ns[row[passed]],
    )
    return CriticalPath(
        iteration,
        graph.rows[row[row < len(graph.rows)]],
        int(work.end_ns[row[-1]] - work.start_ns[entered[0]]),
        tuple(_parts(work, entered, row, run.explained().idle)),
        tuple(
            PathCollective(work.kinds[kind].phase, *rest)
            for kind, *rest in zip(*(column.tolist() for column in columns), strict=True)
        ),
        graph.rows,
        slack_ns,
    )


def _last_of_each(group: Ints, *by: Ints) -> Ints:
    """Return the row of each group, in their order, that comes last by some columns."""
    order = sorted_rows(group, *by)
    ordered = group[order]
    ends = np.append(ordered[1:] != ordered[:-1], True)[: len(order)]
    return np.asarray(order[ends], np.int64)


def _parts(work: Work, entered: Ints, row: Ints, idle: IdleIntervals) -> list[PathPart]:
    """Return the parts of a chain: work by rank and kind, and delays by rank and cause.

    Args:
        work: of the iteration.
        entered: what began last in each step of the chain; of a collective its last member.
        row: what ended in it.
        idle: idle intervals of all ranks.
    """
    start_ns, end_ns = work.start_ns[entered], work.end_ns[row]
    # What follows can begin before the one that it followed ended: no time counts twice.
    until_ns = np.maximum.accumulate(end_ns)
    since_ns = np.append(start_ns[:1], until_ns[:-1])
    gap_ns = np.maximum(start_ns - since_ns, 0)
    names = [
        Cause.COMMUNICATION.label if kind.role in POINT_TO_POINT else kind.phase
        for kind in work.kinds
    ]
    late = np.flatnonzero(gap_ns)
    entering, low_ns, late_ns = work.rank[entered][late], since_ns[late], gap_ns[late]
    delays_ns = idle_by_cause(idle, entering, low_ns, low_ns + late_ns)
    rank, worked_ns, labels = work.rank[row], until_ns - since_ns - gap_ns, sorted(set(names))
    label = np.array([labels.index(name) for name in names], np.int64)[work.kind[row]]
    own = [label == number for number in range(len(labels))]
    taken = [(what, rank[of], worked_ns[of]) for what, of in zip(labels, own, strict=True)]
    for cause, delay_ns in zip(Cause, delays_ns.T, strict=True):
        taken.append((cause.label, entering[delay_ns > 0], delay_ns[delay_ns > 0]))
    rest_ns = late_ns - delays_ns.sum(axis=1)
    taken.append(("other work", entering[rest_ns > 0], rest_ns[rest_ns > 0]))
    times: dict[tuple[int, str], tuple[int, int]] = {}
    for what, ranks, time_ns in taken:
        for place, at in rows_by_value(ranks):
            total_ns, count = times.get((place, what), (0, 0))
            if time_ns[at].any():
                times[place, what] = total_ns + int(time_ns[at].sum()), count + len(at)
    parts = [PathPart(place, what, *time) for (place, what), time in times.items()]
    return sorted(parts, key=lambda part: (-part.time_ns, part.rank, part.what))


# Changes: an iteration under each, all else as measured.


@dataclass(frozen=True)
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
    work, own_ns, delay_ns = graph.work, graph.own_ns, graph.delay_ns
    # Communication that takes no time ends no later than it did.
    at_once_ns = np.minimum(own_ns, 0)
    transfers = plays(work.role, POINT_TO_POINT)
    moved = {Cause.COMMUNICATION: transfers, Cause.COLLECTIVE: graph.collectives}
    #: Names, what they are, times and delays of all work.
    scenarios = [("measured", "as measured", own_ns, delay_ns)]
    for name, change, cause in _WITHOUT:
        removed_ns = graph.delay_by_cause[:, cause]
        moves = moved.get(cause, np.zeros(len(work), bool))
        if removed_ns.any() or moves.any() or cause is Cause.COMMUNICATION:
            without_ns = np.where(moves, at_once_ns, own_ns)
            scenarios.append((name, change, without_ns, delay_ns - removed_ns))
    # Each operation takes the median of its kind; or, as fast as the mean of all stages phase by
    # phase, it keeps its ratio to that.
    rows, count = graph.rows, len(graph.rows)
    phase, usual_ns, even_ns = operations.phase[rows], own_ns.copy(), own_ns.copy()
    kinds = groups_of(operations.rank[rows], operations.chunk[rows], phase)
    median_ns = own_ns[median_rows(kinds.of_row, len(kinds), own_ns[:count])][kinds.of_row]
    # An operation that stands for several (a W of all remaining microbatches) has no kind.
    single = operations.microbatch[rows] >= 0
    usual_ns[:count] = np.where(single, median_ns, own_ns[:count])
    for one in distinct(phase).tolist():
        at = np.flatnonzero((phase == one) & (usual_ns[:count] > 0))
        if len(at):
            scale = usual_ns[at].mean() / usual_ns[at]
            even_ns[at] = np.rint(own_ns[at] * scale).astype(np.int64)
    usual, even = (
        "every operation takes the median of its kind",
        "every stage takes the mean of all",
    )
    scenarios.append(("no-stragglers", usual, usual_ns, delay_ns))
    scenarios.append(("balanced", f"{even} stages", even_ns, delay_ns))
    pipeline = np.zeros(int(work.rank.max(initial=NONE)) + 1, np.int64)
    pipeline[work.rank] = work.replica
    iteration, numbers = operations.iteration[rows[:1]].tolist(), operations.microbatch[rows]
    if len(microbatch_lengths(operations, pipeline, iteration, int(numbers.max(initial=-1)) + 1)):
        packed_ns = own_ns.copy()
        mean_ns = np.bincount(kinds.of_row, own_ns[:count]) / np.bincount(kinds.of_row)
        packed_ns[:count] = np.where(single, np.rint(mean_ns)[kinds.of_row], own_ns[:count])
        packed = "every microbatch takes the mean of all, as if packed evenly"
        scenarios.append(("even-microbatches", packed, packed_ns, delay_ns))
    # Where members of a collective are unknown, waiting for them stays.
    kept_ns = graph.delay_by_cause[:, Cause.DEPENDENCY]
    early_ns = np.where(graph.follows, np.minimum(delay_ns, kept_ns), delay_ns)
    computes_ns = np.where(work.communicates, at_once_ns, own_ns)
    scenarios.append(("no-delay", "the same order without any delay", computes_ns, early_ns))
    own_ns, delay_ns = (np.stack([scenario[n] for scenario in scenarios], axis=1) for n in (2, 3))
    # From the first forward to the last backward.
    ends_ns, makespans_ns = np.zeros_like(own_ns), np.zeros(len(scenarios), np.int64)
    ends_ns[graph.replay.rows] = graph.replay.ends_ns(own_ns, delay_ns)
    ends_ns, own_ns = ends_ns[graph.works], own_ns[graph.works]
    if len(ends_ns):
        makespans_ns = ends_ns.max(axis=0) - (ends_ns - own_ns).min(axis=0)
    changes = []
    makespans = zip(scenarios, makespans_ns.tolist(), own_ns.sum(axis=0).tolist(), strict=True)
    for (name, change, *_), makespan_ns, busy_ns in makespans:
        # Most collectives run when all forwards and backwards have.
        if name != "no-collective" or makespan_ns != makespans_ns[0]:
            whole = ranks * makespan_ns
            ratio = (whole - busy_ns) / whole if whole > 0 else None
            changes.append(WhatIf(name, change, makespan_ns, ratio))
    return tuple(changes)


# Microbatch lengths: how many times as long as their mean microbatches take, on every stage.


#: Microbatches of so many iterations at most are kept.
_KEPT_ITERATIONS = 40
#: Lengths vary by so many times what the times of single operations make of it.
_MORE_THAN_CHANCE = 2.0
#: Microbatches that vary by a smaller share are alike.
_LEAST_SPREAD = 0.01


def microbatch_lengths(
    operations: Operations, pipeline: Ints, iterations: Sequence[int], microbatches: int
) -> Floats:
    """Return how many times as long as their mean microbatches take, shape (rows, microbatches).

    A row is an iteration of a pipeline; there are none where lengths vary by chance alone. What
    chance adds is taken off: operations of one microbatch take the same multiple of their kind's
    mean, and vary around that on their own.

    Args:
        operations: of all ranks.
        pipeline: of each rank.
        iterations: that count.
        microbatches: of each.
    """
    none = np.zeros((0, microbatches))
    chosen = iterations[:: max(1, len(iterations) // _KEPT_ITERATIONS)][:_KEPT_ITERATIONS]
    # Numbers that are dense, so that nothing is sorted; the last is that of all other iterations.
    number = scattered(max(chosen, default=0) + 2, list(chosen), np.arange(len(chosen)))
    of_row = number[np.minimum(operations.iteration, len(number) - 1)]
    ran = (of_row != NONE) & among(operations.phase, WORK) & (operations.has_span == 1)
    ran &= (operations.microbatch >= 0) & (operations.microbatch < microbatches)
    rows = np.flatnonzero(ran)
    # Each has two operations at least; numbers that few of them use may be huge.
    if len(rows) < max(2 * microbatches, 1):
        return none
    rank, chunk, busy_ns = operations.rank[rows], operations.chunk[rows], operations.busy_ns[rows]
    kinds = (rank * (int(chunk.max()) + 2) + chunk + 1) * len(Phase) + operations.phase[rows]
    mean_ns = np.bincount(kinds, busy_ns) / np.maximum(np.bincount(kinds), 1)
    ratio = busy_ns / np.maximum(mean_ns[kinds], 1.0)
    used = np.flatnonzero(np.bincount(pipeline[rank] + 1))
    place = of_row[rows] * len(used) + np.searchsorted(used, pipeline[rank] + 1)
    place, cells = place * microbatches + operations.microbatch[rows], len(chosen) * len(used)
    count = np.bincount(place, minlength=cells * microbatches)
    if count.min() < 2:
        return none
    length = np.bincount(place, ratio) / count
    around = float(((ratio - length[place]) ** 2).sum()) / (len(rows) - len(count))
    chance, spread = around * float((1 / count).mean()), float(length.var())
    if spread <= _MORE_THAN_CHANCE * chance or spread < _LEAST_SPREAD**2:
        return none
    mean = float(length.mean())
    length = mean + (length - mean) * ((spread - chance) / spread) ** 0.5
    return np.asarray((length / mean).reshape(cells, microbatches), np.float64)


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


def reordered(
    source: run_work.ReplayedRun, deviations: Sequence[Deviation]
) -> tuple[Ints, Ints] | None:
    """Return how long iterations take, as they ran and in the planned order, ns.

    None where they cannot be replayed in it.

    Args:
        source: the run.
        deviations: from that order, all of them.
    """
    if source.reason:
        return None
    operations = source.operations
    rows = run_work.computing_rows(operations, source.averaged)
    kept = np.flatnonzero(source.numbers != NONE)
    iterations = scattered(int(source.numbers.max(initial=NONE)) + 1, source.numbers[kept], kept)
    turns = turns_of(operations, rows, deviations, iterations)
    if (turns == np.arange(len(rows))).all():
        return None
    tokens = all_token_waits(operations, source.explained().tokens)
    lengths = []
    for own_turns in (None, turns):
        work, order = ordered_work(source, source.averaged, tokens, source.collectives, own_turns)
        replay = build_replay(work, order)
        if len(replay.unordered):
            return None
        if own_turns is None:
            early_ns = run_work.early_starts(work, run_work.delays_of(work, order))
        lengths.append(replay.lengths_ns(work.own_ns[:, None], early_ns)[:, 0])
    measured_ns, planned_ns = lengths
    return measured_ns, planned_ns


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
    wanted = [(iterations[d.iteration], d.rank, d.phase, d.microbatch, d.chunk) for d in moved]
    names = ("iteration", "rank", "phase", "microbatch", "chunk")
    keys = [getattr(operations, name)[rows] for name in names]
    at = looked_up(keys, turns, list(np.array(wanted, np.int64).reshape(-1, 5).T))
    places = np.array([d.places if d.what == "late" else -d.places for d in moved], np.int64)
    cells = [(d.iteration, d.rank) for d in moved]
    other = {(d.iteration, d.rank) for d in deviations if d.what not in _MOVED}
    for cell in sorted(set(cells) - other):
        own = np.array([c == cell for c in cells], bool)
        of_cell = (keys[0] == iterations[cell[0]]) & (keys[1] == cell[1])
        of_cell = np.flatnonzero(of_cell & (keys[2] != Phase.OPTIMIZER))
        if (at[own] != NONE).all() and among(keys[2][of_cell], _ORDERED).all():
            ran = of_cell[sorted_rows(operations.host_start_ns[rows[of_cell]])]
            by_turn = of_cell[sorted_rows(operations.start_ns[rows[of_cell]])]
            turns[_planned(ran, at[own], places[own], keys[3])] = by_turn
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
