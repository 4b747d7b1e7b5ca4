"""Long bubbles: the longest of a run, each in a sentence."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TypeAlias

import numpy as np

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_iterations import account_column, has_account, rank_column
from bubbleviz.count.ratios import CountedWork, ratio_definitions
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model import intervals
from bubbleviz.model.arrow import Columns, column_of, table_of
from bubbleviz.model.columns import NONE, Ints, scattered
from bubbleviz.model.grouping import CodedTexts, groups_of, sorted_rows
from bubbleviz.model.intervals import group_sum, last_before
from bubbleviz.model.limitations import LimitationKind
from bubbleviz.model.operations import Operations, RankIntervals, look_up_by_rank
from bubbleviz.model.phases import COMPUTE, WORK, Phase
from bubbleviz.model.texts import counted, inert
from bubbleviz.report.labels import in_ms, operation_label, rank_label, shortened, subject
from bubbleviz.report.report import Report

#: Causes that come with the schedule itself.
_INHERENT = (Cause.WARMUP, Cause.DRAIN, Cause.DEPENDENCY)
#: The end of a sentence on a bubble at either end of an iteration of ranks that are no pipeline.
_EDGES = {
    Cause.WARMUP: "another rank has begun the iteration",
    Cause.DRAIN: "another rank has not ended the iteration",
}


def longest_bubbles(report: Report, count: int = 5) -> tuple[tuple[int, str], ...]:
    """Return the longest bubbles of averaged iterations that the schedule does not imply.

    Of each its row, and what happened in a sentence.

    Where there are none, those that it implies. Of the bubbles of one rank with one cause before
    operations of one phase, only the longest is listed.
    """
    bubbles = report.bubbles
    implied, avoidable = _averaged_bubbles(report)
    rows = avoidable if len(avoidable) else implied
    # Of similar bubbles, the longest stands for all.
    after = np.append(report.operations.phase, NONE)[bubbles.after[rows]]
    alike = groups_of(bubbles.rank[rows], bubbles.cause[rows], after)
    times = np.bincount(alike.of_row, minlength=len(alike))
    shown = np.sort(alike.first)[:count]
    return tuple(
        (int(rows[at]), _sentence(report, int(rows[at]), int(times[alike.of_row[at]])))
        for at in shown.tolist()
    )


def longest_implied(report: Report) -> str | None:
    """Return the longest bubble that the schedule implies, where one it does not is listed."""
    implied, avoidable = _averaged_bubbles(report)
    if not len(implied) or not len(avoidable):
        return None
    return _sentence(report, int(implied[0]), 1)


def _averaged_bubbles(report: Report) -> tuple[Ints, Ints]:
    """Return the bubbles of averaged iterations, longest first: implied by the schedule or not."""
    bubbles = report.bubbles
    averaged = np.array([i.averaged for i in report.iterations] or [False])
    some = (
        np.flatnonzero(averaged[bubbles.iteration]) if averaged.any() else np.arange(len(bubbles))
    )
    length_ns = (bubbles.end_ns - bubbles.start_ns)[some]
    some = some[sorted_rows(-length_ns)]
    inherent = np.isin(bubbles.cause[some], _INHERENT)
    return some[inherent], some[~inherent]


def _sentence(report: Report, row: int, times: int) -> str:
    bubbles, cause = report.bubbles, Cause(int(report.bubbles.cause[row]))
    who = subject(rank_label(report, int(bubbles.rank[row])))
    length = in_ms(int(bubbles.end_ns[row] - bubbles.start_ns[row]))
    after, peer_operation = int(bubbles.after[row]), int(bubbles.peer_operation[row])
    upto = f" before {operation_label(report, after)}" if after != NONE else ""
    iteration = report.iterations[int(bubbles.iteration[row])].name
    idle = f"{who} is idle for {length}{upto} in iteration {iteration}: "
    similar = f" (the longest of {times:,})" if times > 1 else ""
    return idle + _reason(report, row, cause, peer_operation) + similar


def _reason(report: Report, row: int, cause: Cause, peer_operation: int) -> str:
    """Return why a rank is idle, given the operation whose result the next one takes."""
    producer = ""
    if peer_operation != NONE:
        peer = rank_label(report, int(report.operations.rank[peer_operation]))
        producer = f"{operation_label(report, peer_operation)} of {peer}"
    if report.bubbles.waits_in_collective[row]:
        return _waits_in_collective(report, row, peer_operation)
    if cause is Cause.DEPENDENCY and producer:
        return f"it waits for {producer}"
    if cause is Cause.COMMUNICATION and producer:
        return f"the result of {producer} is in transfer"
    if cause is Cause.QUEUED and producer:
        return f"its input's transfer is queued behind {_transfer(report, peer_operation)}"
    if report.no_pipeline is not None and cause in _EDGES:
        return _EDGES[cause]
    return cause.sentence + (host_state(report, row) if cause is Cause.HOST else "")


def _transfer(report: Report, row: int) -> str:
    """Return a send or receive with both of its ends: ``RECV_F2, from stage 3 to stage 0``."""
    operations, phase = report.operations, Phase(int(report.operations.phase[row]))
    here, stage = int(operations.rank[row]), int(operations.virtual_stage[row])
    beyond = stage + (1 if phase in (Phase.SEND_F, Phase.RECV_B) else -1)
    pipeline = report.ranks[here].pipeline
    there = next(
        (
            rank.index
            for rank in report.ranks
            if rank.pipeline == pipeline
            and ((operations.rank == rank.index) & (operations.virtual_stage == beyond)).any()
        ),
        here,
    )
    ends = [rank_label(report, rank) for rank in (here, there)]
    source, target = ends if phase in (Phase.SEND_F, Phase.SEND_B) else reversed(ends)
    return f"{operation_label(report, row)}, from {source} to {target}"


def _waits_in_collective(report: Report, row: int, peer_operation: int) -> str:
    """Return whom a rank waits for in a collective."""
    kind = report.bubbles.kinds[int(report.bubbles.collective[row])] or "a collective"
    if peer_operation == NONE:
        return f"it waits in {kind} for the last rank to enter"
    last = rank_label(report, int(report.operations.rank[peer_operation]))
    after = operation_label(report, peer_operation)
    return f"it waits in {kind} for {last}, which enters it last, after {after}"


# Late hosts: which hosts launched late, and what they did instead.


def latest_host(report: Report, ranks: Sequence[int]) -> str:
    """Name the rank whose host launches late for the longest time, and count the other ranks.

    Args:
        report: Report of the run.
        ranks: Places of the ranks to choose from, at least one.

    Returns:
        The end of a sentence, such as " on stage 4, its thread is in cudaMalloc, and on 7 other
        stages", or "" if no host launches late.
    """
    bubbles = report.bubbles
    late = np.flatnonzero((bubbles.cause == Cause.HOST) & np.isin(bubbles.rank, ranks))
    if len(late) == 0:
        return ""
    length_ns = (bubbles.end_ns - bubbles.start_ns)[late]
    total_ns = np.zeros(len(report.ranks), np.int64)
    np.add.at(total_ns, bubbles.rank[late], length_ns)
    rank = int(total_ns.argmax())
    rows = late[bubbles.rank[late] == rank]
    longest = int(rows[np.argmax((bubbles.end_ns - bubbles.start_ns)[rows])])
    label, state = rank_label(report, rank), host_state(report, longest)
    if len(ranks) == 1:
        return f" on {label}{state}"
    n_ranks_of_stage = Counter(entry.stage for entry in report.ranks)
    stages = [report.ranks[index].stage for index in ranks]
    are_stages = all(stage is not None and n_ranks_of_stage[stage] == 1 for stage in stages)
    others = counted(len(ranks) - 1, "other stage" if are_stages else "other rank")
    return f" on {label}{state}, and on {others}" if state else f" on {label} and {others}"


def host_state(report: Report, row: int) -> str:
    """Return where the launching thread was in a bubble; empty where that is unknown."""
    return thread_state(*host_activity(report, row))


def thread_state(call: str | None, range_name: str | None) -> str:
    """Return where a launching thread was, as the end of a sentence; empty for nowhere."""
    inside = f" inside {shortened(range_name)!r}" if range_name else ""
    call = shortened(call) if call else None
    if call:
        return f", its thread is in {call}{inside}"
    return f", its thread is{inside}, outside API calls" if inside else ""


def host_activity(report: Report, row: int) -> tuple[str | None, str | None]:
    """Return (CUDA call, range) that the host was in during a bubble; None for none."""
    names = report.operations.names
    call, range_id = int(report.bubbles.host_call[row]), int(report.bubbles.host_range[row])
    return names[call] if call != NONE else None, names[range_id] if range_id != NONE else None


# Bubble parts: what the primary ratio is made of, so that the parts add up to it.
#
# The ratio is the mean over iterations of their ratios, so each part is a mean of shares, too; the
# ratio of all idle time to all windows would differ where iterations are not equally long.


#: Time that counts as bubble though something ran in it, by the name of its part.
_NO_WORK = {
    "unattributed": "compute outside every operation",
    "next iterations": "compute of other iterations",
    "optimizer": "the Optimizer, which this ratio does not count as work",
}


#: Work, in display order: kernels of each phase, and what else fills operations.
_WORK = dict.fromkeys((phase.label for phase in COMPUTE), "compute kernels") | {
    "in operations": "communication or copies in operations, beside no compute kernel",
    "launch gaps": "in operations, while no kernel ran",
    "other iterations": "work of other iterations",
}


@dataclass(frozen=True)
class BubblePart:
    """One part of the bubble, or of a step.

    Attributes:
        name: label of a cause of idle time, or what ran that does not count as work.
        meaning: the same, in words.
        share: of the window, a fraction of 1; mean over the averaged iterations.
        time_ns: mean over these and their ranks.
    """

    name: str
    meaning: str
    share: float
    time_ns: float


def bubble_parts(report: Report) -> tuple[BubblePart, ...]:
    """Return the parts of the bubble, the largest first; none without an averaged iteration.

    Their shares add up to the mean of the ratio ``report.explanation.listed_ratio``.
    """
    return parts_of(report, [iteration for iteration in report.iterations if iteration.averaged])


def step_window(report: Report) -> str:
    """Return the ratio whose window is a step: ``period``, else ``step``, else that of causes."""
    known = (name for name in ("period", "step") if report.summary.bubble_ratio[name].n)
    return next(known, report.explanation.listed_ratio)


def step_parts(report: Report) -> tuple[BubblePart, ...]:
    """Return all that the time of a step goes into: the bubble is among them.

    Shares of :func:`step_window` add up to 1, work comes first::

        operation   ├────── F0 ──────┤   ├─ F1 ─┤
        kernels     ████▒▒▒ ████ ████     ██████
                    F   in  gap          bubble
    """
    averaged = [iteration for iteration in report.iterations if iteration.averaged]
    return parts_of(report, averaged, step_window(report), whole=True)


def flops_use(report: Report) -> float | None:
    """Return the model FLOPs utilization (MFU) of a step; None where FLOPs or times are unknown.

    That is FLOPs of an iteration over what all GPUs could do in its window, as in PaLM (arXiv
    2204.02311, appendix B), which counts no recompute.
    """
    window_ns = report.summary.window_ns[step_window(report)].mean
    if report.flops is None or not window_ns:
        return None
    flops, peak = report.flops
    return flops / (peak * len(report.ranks) * window_ns / 1e9)


def parts_of(
    report: Report, iterations: Sequence[Iteration], ratio: str = "", *, whole: bool = False
) -> tuple[BubblePart, ...]:
    """Return the parts of the bubble of some iterations, as of :func:`bubble_parts`.

    Args:
        report: of the run.
        iterations: of these.
        ratio: in whose windows; empty for that of causes.
        whole: whether work is a part, too, as of :func:`step_parts`.
    """
    name = ratio or report.explanation.listed_ratio
    known = [
        (iteration, window_ns)
        for iteration in iterations
        if iteration.ratios[name].value is not None
        and (window_ns := _summed(iteration, name, "window_ns"))
    ]
    ranks = sum(len(i.ranks) for i, _ in known if has_account(i.ranks, name))
    meanings = (_WORK if whole else {}) | {cause.label: cause.meaning for cause in Cause} | _NO_WORK
    time_ns, share = dict.fromkeys(meanings, 0.0), dict.fromkeys(meanings, 0.0)
    active_ns = _active_ns(report) if whole else None
    for iteration, window_ns in known:
        idle_ns = report.explanation.causes.of_iteration(name, iteration.index)
        loose_ns = _summed(iteration, name, "unattributed_ns")
        parts: dict[str, float] = {**idle_ns, "unattributed": loose_ns}
        if active_ns is None:
            parts |= _without_work(iteration, name)
        else:  # all that ran is work
            parts |= _work(iteration, name, active_ns[iteration.index])
        for part, part_ns in parts.items():
            time_ns[part] += part_ns
            share[part] += part_ns / window_ns / len(known)
    found = [
        BubblePart(part, meaning, share[part], time_ns[part] / ranks)
        for part, meaning in meanings.items()
        if time_ns[part]
    ]
    work = [part for part in found if part.name in _WORK]
    return (*work, *sorted(found[len(work) :], key=lambda part: -part.share))


def _active_ns(report: Report) -> Ints:
    """Return how long kernels of operations ran, shape (iterations, phases)."""
    operations, shape = report.operations, (len(report.iterations) + 1, len(Phase))
    # The last row is of operations without an iteration.
    cell = (operations.iteration % shape[0]) * shape[1] + operations.phase
    return group_sum(cell, prod(shape), operations.active_ns).reshape(shape)[:-1]


def _work(iteration: Iteration, name: str, active_ns: Ints) -> dict[str, float]:
    """Return what the work in an iteration's windows consists of.

    Args:
        iteration: whose ranks are summed.
        name: of the ratio.
        active_ns: how long kernels of its operations ran, by phase.
    """
    compute_ns, within_ns = (
        int(rank_column(iteration.ranks, "compute_ns").sum()),
        _summed(iteration, name, "compute_ns"),
    )
    # Of operations that run side by side, and of those that reach out of the window, a share.
    phases = {phase.label: int(active_ns[phase]) for phase in WORK}
    gap_ns, kernel_ns = (
        int(rank_column(iteration.ranks, column).sum()) for column in ("gap_ns", "active_ns")
    )
    inside = within_ns / compute_ns if compute_ns else 0.0
    own = inside * kernel_ns / max(sum(phases.values()), 1)
    return {
        **{label: own * time_ns for label, time_ns in phases.items()},
        "in operations": max(inside * (compute_ns - kernel_ns - gap_ns), 0.0),
        "launch gaps": inside * gap_ns,
        "Optimizer": _summed(iteration, name, "optimizer_ns"),
        "other iterations": _summed(iteration, name, "overlap_ns"),
    }


def rounded_shares(shares: Sequence[float], digits: int = 2) -> list[str]:
    """Return shares in percent, rounded so that what is printed adds up to the rounded sum."""
    scale = 100 * 10**digits
    whole = [int(share * scale) for share in shares]
    left = round(sum(shares) * scale) - sum(whole)
    rest = [share * scale - down for share, down in zip(shares, whole, strict=True)]
    for at in sorted(range(len(rest)), key=lambda at: (-rest[at], at))[: max(left, 0)]:
        whole[at] += 1
    return [f"{number / 10**digits:.{digits}f}" for number in whole]


def _summed(iteration: Iteration, name: str, time: str) -> int:
    """Return a time of the accounts of a ratio, summed over an iteration's ranks."""
    return int(account_column(iteration.ranks, name, time).sum())


def _without_work(iteration: Iteration, name: str) -> dict[str, int]:
    """Return how long what ran in operations does not count as work of the ratio, by part."""
    work = next((r.work for r in ratio_definitions() if r.name == name), CountedWork.EVERYTHING)
    overlaps = work is not CountedWork.EVERYTHING
    optimizes = work is CountedWork.ITERATION
    return {
        "next iterations": _summed(iteration, name, "overlap_ns") if overlaps else 0,
        "optimizer": _summed(iteration, name, "optimizer_ns") if optimizes else 0,
    }


# Collective cells: the collectives of a report in the rows of its operations, as JSON.


def collective_cells(report: Report, beside: Ints) -> CodedTexts:
    """Return a cell for each operation; see :mod:`bubbleviz.model.collectives`.

    Args:
        report: with its collectives.
        beside: row of the operation that began last before each of them; -1 for none.
    """
    table = report.collectives
    owned = table.operation != NONE
    row = np.where(owned, table.operation, beside)
    order = np.flatnonzero(row != NONE)
    order = order[sorted_rows(row[order])]
    table, row, owned = table.take(order), row[order], owned[order]
    iterations = [*(iteration.name for iteration in report.iterations), ""]
    kinds = [*table.kinds, ""]
    groups = [*_names([group.label for group in table.groups]), ""]
    sizes = np.array([*(group.size for group in table.groups), 0], np.int64)
    columns = (
        [iterations[number] for number in table.iteration.tolist()],
        [kinds[number] for number in table.kind.tolist()],
        [groups[number] for number in table.group.tolist()],
        *(
            column.tolist()
            for column in (
                *(sizes[table.group], table.order, table.sequence, table.meeting),
                *(owned.astype(np.int64), table.start_ns, table.end_ns),
            )
        ),
    )
    entries = [json.dumps(entry, separators=(",", ":")) for entry in zip(*columns, strict=True)]
    return _in_cells(len(report.operations), row, entries, "[{}]", ",")


def _names(labels: Sequence[str]) -> list[str]:
    """Return labels of groups that tell them apart."""
    flat = [inert(label) for label in labels]
    return [
        name if name and flat.count(name) == 1 else f"{name} ({number})".strip()
        for number, name in enumerate(flat)
    ]


# Operation columns: what a table of operations holds so that it can be analysed again.
#
# A row is an operation. What ran beside operations stands in cells of the row that began last on
# its rank, as times such as ``12..15 20..31``::
#
#     rank          ├─ F0 ─┤  ▒▒   ▓▓    ├─ F1 ─┤
#                             │    └ only a collective ran ┐
#                             └ compute outside operations ┴ cells of the row of F0


#: Whole numbers, -1 for none, or texts.
OperationColumn: TypeAlias = "Ints | CodedTexts"
#: Digits that fit into 64 bits.
_DIGITS = 18


def further_columns(report: Report) -> Mapping[str, OperationColumn]:
    """Return the columns after those that every table of operations has, in their order.

    Columns of tokens exist only if the tokens of any operation are known.
    """
    operations = report.operations
    tokens = {}
    if (operations.tokens >= 0).any():
        tokens = {"tokens": operations.tokens, "prefix": operations.prefix}
    unpaired = LimitationKind.ITERATIONS_UNPAIRED in {note.kind for note in report.limitations}
    return tokens | {
        "virtual_stage": operations.virtual_stage,
        "busy_ns": operations.busy_ns,
        "launched_ns": operations.launched_ns,
        "pipeline": look_up_by_rank([rank.pipeline for rank in report.ranks], operations.rank),
        "host": CodedTexts(operations.rank.copy(), [inert(r.host) for r in report.ranks]),
        "global_rank": look_up_by_rank(
            [rank.global_rank for rank in report.ranks], operations.rank
        ),
        "received_ns": operations.received_ns,
        "receive_start_ns": operations.receive_start_ns,
        "receive_launched_ns": operations.receive_launched_ns,
        "paired": np.full(len(operations), 0 if unpaired else NONE, np.int64),
        "clock": _clocks(report),
        "clock_uncertainty_ns": look_up_by_rank(
            [report.clock_uncertainty_ns(rank) for rank in report.ranks], operations.rank
        ),
        "cut": np.where(operations.cut > 0, operations.cut, NONE),
        "waits": _cells(len(operations), *_waits(report)),
        "unattributed": _beside(operations, report.unattributed),
        "exposed": _beside(operations, report.exposed),
        "profiler": _beside(operations, report.overheads),
        "pauses": _beside(operations, report.pauses),
        "collectives": collective_cells(
            report, _began_last(operations, report.collectives.rank, report.collectives.start_ns)
        ),
    }


def _clocks(report: Report) -> CodedTexts:
    """Return the clocks of operations by the host they are of; none where all share one."""
    clocks = [report.clock(rank.profile) for rank in report.ranks]
    if len(set(clocks)) == 1:
        return CodedTexts(np.full(len(report.operations), NONE, np.int64), ())
    number = {clock: place for place, clock in enumerate(dict.fromkeys(clocks))}
    places = np.array([number[clock] for clock in clocks], np.int64)
    return CodedTexts(places[report.operations.rank], _names([host for host, _, _ in number]))


def _waits(report: Report) -> tuple[Ints, Ints, Ints]:
    """Return (operation, start, end): the times of spans that are not busy."""
    operations, busy = report.operations, report.busy
    length_ns = operations.end_ns - operations.start_ns
    rows = np.flatnonzero((operations.has_span == 1) & (operations.busy_ns != length_ns))
    number = np.full(len(operations), NONE, np.int64)
    number[rows] = every = np.arange(len(rows))
    own = busy.take(number[busy.operation] != NONE)
    owner = number[own.operation]
    packing = intervals.Packing.of(operations.start_ns[rows], operations.end_ns[rows])
    spans = intervals.union(
        packing.place(every, operations.start_ns[rows]),
        packing.place(every, operations.end_ns[rows]),
    )
    at_work = intervals.union(packing.place(owner, own.start_ns), packing.place(owner, own.end_ns))
    at, start_ns, end_ns = packing.unpack(intervals.difference(spans, at_work))
    return rows[at], start_ns, end_ns


def _beside(operations: Operations, times: RankIntervals) -> CodedTexts:
    """Return cells with the times of ranks, in the rows of the operations that began last."""
    row = _began_last(operations, times.rank, times.start_ns)
    held = row != NONE
    return _cells(len(operations), row[held], times.start_ns[held], times.end_ns[held])


def _began_last(operations: Operations, of_rank: Ints, at_ns: Ints) -> Ints:
    """Return the operation of a rank that began last before each time, else its first; -1 none."""
    began_ns = np.where(operations.has_span == 1, operations.start_ns, operations.host_start_ns)
    row = last_before(operations.rank, began_ns, of_rank, at_ns, or_at=True)
    first = np.searchsorted(operations.rank, of_rank)
    held = first < np.searchsorted(operations.rank, of_rank, side="right")
    return np.where(held, np.maximum(row, first), NONE)


def _cells(rows: int, row: Ints, start_ns: Ints, end_ns: Ints) -> CodedTexts:
    """Return cells with times, sorted by row, for so many rows."""
    words = [f"{low}..{high}" for low, high in zip(start_ns.tolist(), end_ns.tolist(), strict=True)]
    return _in_cells(rows, row, words, "{}", " ")


def _in_cells(rows: int, row: Ints, entries: Sequence[str], form: str, between: str) -> CodedTexts:
    """Return the entries of each of so many rows in a cell; they are sorted by row."""
    first = np.flatnonzero(np.diff(row, prepend=NONE))
    bounds = [*first.tolist(), len(row)]
    code = scattered(rows, row[first], np.arange(len(first)))
    texts = [form.format(between.join(entries[low:high])) for low, high in pairwise(bounds)]
    return CodedTexts(code, texts)


def written_operations(report: Report) -> Columns:
    """Return all operations for Arrow's libraries, with the columns of ``--csv``.

    The two microbatches or chunks of a fused operation are in two columns.
    """
    columns = report.operations.shown_columns()
    del columns["global_rank"]  # it follows where --csv has it
    # Iterations by name, as numbers where all names are.
    names = [iteration.name for iteration in report.iterations]
    columns["iteration"] = CodedTexts(report.operations.iteration, names)
    if all(name.isdecimal() and len(name) <= _DIGITS for name in names):
        numbers = np.array([*map(int, names), NONE], np.int64)
        columns["iteration"] = numbers[report.operations.iteration]
    columns |= further_columns(report)
    return table_of({name: column_of(name, column) for name, column in columns.items()})
