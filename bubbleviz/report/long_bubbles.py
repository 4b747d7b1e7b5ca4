"""Describe the longest bubbles in a run, and what the hosts were doing when they launched late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import Groups, group_rows, sort_rows
from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import format_count
from bubbleviz.report.kernel_time import NOTICEABLE
from bubbleviz.report.labels import (
    MAX_RANKS,
    capitalize_label,
    format_ms,
    format_operation,
    name_rank,
    name_ranks,
    truncate_name,
)
from bubbleviz.report.report import Report

#: Causes of bubbles that the schedule itself implies.
_INHERENT = (Cause.WARMUP, Cause.DRAIN, Cause.DEPENDENCY)
#: Reasons for idle time at the start and end of an iteration, for ranks that do not form a
#: pipeline.
_EDGES = {
    Cause.WARMUP: "another rank has already begun the iteration",
    Cause.DRAIN: "another rank has not finished the iteration",
}


def find_longest_bubbles(report: Report, count: int = 5) -> tuple[tuple[int, str], ...]:
    """Return the longest bubbles that are not implied by the schedule.

    - If the schedule implies all noticeable bubbles, the longest implied bubbles are returned.
    - Bubbles are grouped by rank, cause, and phase of the next operation. Only the longest bubble
      in each group is returned.
    - Only averaged iterations are used. If no iterations are averaged, all iterations are used.

    Args:
        report: The run's report.
        count: Maximum number of bubbles.

    Returns:
        (row in ``report.bubbles``, sentence) pairs, longest bubble first.
    """
    implied, avoidable = _list_averaged_bubbles(report)
    rows = avoidable if len(avoidable) else implied
    groups = _group_bubbles(report, rows)
    times = np.bincount(groups.of_row, minlength=len(groups))
    first_bubbles = np.sort(groups.first)[:count]
    return tuple(
        (
            int(rows[index]),
            _describe_bubble(report, int(rows[index]), int(times[groups.of_row[index]])),
        )
        for index in first_bubbles.tolist()
    )


def describe_longest_implied(report: Report) -> str | None:
    """Return a sentence about the longest bubble that is implied by the schedule.

    The result is None if the schedule does not imply any bubble. It is also None if the schedule
    implies all noticeable bubbles. In that case, :func:`find_longest_bubbles` already returns the
    longest implied ones.
    """
    implied, avoidable = _list_averaged_bubbles(report)
    if not len(implied) or not len(avoidable):
        return None
    return _describe_bubble(report, int(implied[0]), 1)


def _list_averaged_bubbles(report: Report) -> tuple[Ints, Ints]:
    """Return the bubbles of averaged iterations, longest first.

    If no iterations are averaged, the bubbles in all iterations are returned.

    Returns:
        implied: Rows of the bubbles that are implied by the schedule (causes in ``_INHERENT``).
        avoidable: Rows of all other bubbles that are noticeable (:func:`_mask_noticeable`).
    """
    bubbles = report.bubbles
    averaged = np.array([i.averaged for i in report.iterations] or [False])
    rows = np.arange(len(bubbles))
    if averaged.any():
        rows = np.flatnonzero(averaged[bubbles.iteration])
    length_ns = (bubbles.end_ns - bubbles.start_ns)[rows]
    rows = rows[sort_rows(-length_ns)]
    is_inherent = np.isin(bubbles.cause[rows], _INHERENT)
    implied, avoidable = rows[is_inherent], rows[~is_inherent]
    n_iterations = int(averaged.sum()) or len(averaged)
    return implied, avoidable[_mask_noticeable(report, avoidable, n_iterations)]


def _group_bubbles(report: Report, rows: Ints) -> Groups:
    """Group bubbles by rank, cause, and phase of the next operation."""
    bubbles = report.bubbles
    next_phase = np.append(report.operations.phase, NONE)[bubbles.after[rows]]
    return group_rows(bubbles.rank[rows], bubbles.cause[rows], next_phase)


def _mask_noticeable(report: Report, rows: Ints, n_iterations: int) -> Bools:
    """Return a mask of the bubbles in groups that take up a noticeable part of an iteration.

    Either the longest bubble of the group, or the group's mean time per iteration, is at least the
    fraction ``NOTICEABLE`` of the mean window of the primary ratio. If the window is unknown, all
    bubbles are noticeable.

    Args:
        report: The run's report.
        rows: Rows of the bubbles.
        n_iterations: Number of iterations that contain the bubbles.
    """
    window = report.summary.window_ns.get(report.headline)
    min_ns = NOTICEABLE * ((window and window.mean) or 0.0)
    length_ns = (report.bubbles.end_ns - report.bubbles.start_ns)[rows]
    groups = _group_bubbles(report, rows)
    longest_ns = np.zeros(len(groups), np.int64)
    np.maximum.at(longest_ns, groups.of_row, length_ns)
    mean_ns = np.bincount(groups.of_row, length_ns, len(groups)) / n_iterations
    is_noticeable = np.maximum(longest_ns, mean_ns) >= min_ns
    return np.asarray(is_noticeable[groups.of_row], bool)


def _describe_bubble(report: Report, row: int, times: int) -> str:
    """Return a sentence about a bubble.

    Args:
        report: The run's report.
        row: Row of the bubble in ``report.bubbles``.
        times: Number of similar bubbles, including this one, which is the longest.
    """
    bubbles, cause = report.bubbles, Cause(int(report.bubbles.cause[row]))
    who = capitalize_label(name_rank(report, int(bubbles.rank[row])))
    length = format_ms(int(bubbles.end_ns[row] - bubbles.start_ns[row]))
    next_operation, peer_operation = int(bubbles.after[row]), int(bubbles.peer_operation[row])
    upto = f" before {format_operation(report, next_operation)}" if next_operation != NONE else ""
    iteration = report.iterations[int(bubbles.iteration[row])].name
    idle = f"{who} is idle for {length}{upto} in iteration {iteration}: "
    similar = f" (the longest of {times:,})" if times > 1 else ""
    return idle + _describe_reason(report, row, cause, peer_operation) + similar


def _describe_reason(report: Report, row: int, cause: Cause, peer_operation: int) -> str:
    """Return a clause that explains why a rank is idle.

    The clause names the operation or collective that the rank is waiting for, if that is known.
    Otherwise, it gives the general meaning of the cause.

    Args:
        report: The run's report.
        row: Row of the bubble.
        cause: Cause of the bubble.
        peer_operation: Row of the operation whose result the next operation needs, or -1 if there
            is none.
    """
    producer = ""
    if peer_operation != NONE:
        peer = name_rank(report, int(report.operations.rank[peer_operation]))
        producer = f"{format_operation(report, peer_operation)} of {peer}"
    if report.bubbles.waits_in_collective[row]:
        return _describe_collective_wait(report, row, peer_operation)
    if cause is Cause.DEPENDENCY and producer:
        return f"it waits for {producer}"
    if cause is Cause.COMMUNICATION and producer:
        return f"the result of {producer} is being transferred"
    if cause is Cause.QUEUED and producer:
        transfer = _describe_transfer(report, peer_operation)
        return f"the transfer of its input is queued behind {transfer}"
    if report.no_pipeline is not None and cause in _EDGES:
        return _EDGES[cause]
    state = describe_host(report, row) if cause is Cause.HOST else ""
    return f"{cause.sentence}; {state}" if state else cause.sentence


def _describe_transfer(report: Report, row: int) -> str:
    """Describe a send or receive with both of its ends, as in ``RECV_F2 from stage 3 to stage 0``.

    The other end is the first rank of the same pipeline that runs the adjacent virtual stage. If
    there is no such rank, both ends are the rank of the operation itself.
    """
    operations, phase = report.operations, Phase(int(report.operations.phase[row]))
    own_rank, stage = int(operations.rank[row]), int(operations.virtual_stage[row])
    peer_stage = stage + (1 if phase in (Phase.SEND_F, Phase.RECV_B) else -1)
    pipeline = report.ranks[own_rank].pipeline
    peer_rank = next(
        (
            rank.index
            for rank in report.ranks
            if rank.pipeline == pipeline
            and ((operations.rank == rank.index) & (operations.virtual_stage == peer_stage)).any()
        ),
        own_rank,
    )
    rank_names = [name_rank(report, rank) for rank in (own_rank, peer_rank)]
    source, target = rank_names if phase in (Phase.SEND_F, Phase.SEND_B) else reversed(rank_names)
    return f"{format_operation(report, row)} from {source} to {target}"


def _describe_collective_wait(report: Report, row: int, peer_operation: int) -> str:
    """Return a clause about the rank that another rank waits for in a collective.

    Args:
        report: The run's report.
        row: Row of the bubble.
        peer_operation: Row of the last operation that the last rank runs before it enters the
            collective, or -1 if unknown.
    """
    kind = report.bubbles.kinds[int(report.bubbles.collective[row])] or "a collective"
    if peer_operation == NONE:
        return f"it waits in {kind} for the last rank to enter"
    last = name_rank(report, int(report.operations.rank[peer_operation]))
    previous_operation = format_operation(report, peer_operation)
    return f"it waits in {kind} for {last}, which enters last, after {previous_operation}"


def name_latest_host(report: Report, ranks: Sequence[int]) -> str:
    """Describe the rank that is idle longest because of late launches, and name the other ranks.

    If there are more than ``MAX_RANKS`` ranks, the other ranks are only counted. The text also
    contains the call and the range that the host was in during the rank's longest bubble of this
    kind, if they are known. If they are unknown and there are few ranks, all ranks are simply
    listed.

    Args:
        report: The run's report.
        ranks: Indices of the ranks to choose from. Must not be empty.

    Returns:
        The end of a sentence, such as " on stage 4, where the launching thread is in cudaMalloc,
        and on 7 other stages", or "" if no host launches late.
    """
    longest = _find_longest_late_bubble(report, ranks)
    if longest == NONE:
        return ""
    state = describe_host(report, longest)
    if not state and len(ranks) <= MAX_RANKS:
        return f" on {_list_ranks(report, ranks)}"
    rank = int(report.bubbles.rank[longest])
    others = [other for other in ranks if other != rank]
    on_rank = f" on {name_rank(report, rank)}"
    if state:
        on_rank += f", where {state}"
    if not others:
        return on_rank
    if len(ranks) <= MAX_RANKS:
        return f"{on_rank}, and on {_list_ranks(report, others)}"
    noun = "other stage" if _are_stages(report, ranks) else "other rank"
    n_others = format_count(len(others), noun)
    return f"{on_rank}, and on {n_others}" if state else f"{on_rank} and {n_others}"


def _find_longest_late_bubble(report: Report, ranks: Sequence[int]) -> int:
    """Return the row of a rank's longest bubble that is due to late launches, or -1 if none is.

    The rank is the one among the given ranks that is idle longest because of late launches. At
    equal times, the rank with the smallest index wins.
    """
    bubbles = report.bubbles
    rows = np.flatnonzero((bubbles.cause == Cause.HOST) & np.isin(bubbles.rank, ranks))
    if len(rows) == 0:
        return NONE
    length_ns = (bubbles.end_ns - bubbles.start_ns)[rows]
    total_ns = np.zeros(len(report.ranks), np.int64)
    np.add.at(total_ns, bubbles.rank[rows], length_ns)
    is_on_rank = bubbles.rank[rows] == total_ns.argmax()
    return int(rows[np.where(is_on_rank, length_ns, NONE).argmax()])


def _list_ranks(report: Report, ranks: Sequence[int]) -> str:
    """Return the names of all given ranks, such as "ranks 2, 5" or "stages 0, 2".

    Several ranks are named by their stages if each rank is the only one of its stage.
    """
    if len(ranks) == 1:
        return name_rank(report, ranks[0])
    if not _are_stages(report, ranks):
        return name_ranks(report, ranks)
    stages = sorted(report.ranks[rank].stage or 0 for rank in ranks)
    return f"stages {', '.join(map(str, stages))}"


def _are_stages(report: Report, ranks: Sequence[int]) -> bool:
    """Return whether each of the given ranks is the only rank of its stage."""
    n_ranks_of_stage = Counter(rank.stage for rank in report.ranks)
    stages = [report.ranks[index].stage for index in ranks]
    return all(stage is not None and n_ranks_of_stage[stage] == 1 for stage in stages)


def describe_host(report: Report, row: int) -> str:
    """Return a clause about what the launching thread did during a bubble, or "" if unknown."""
    return describe_thread(*find_host_activity(report, row))


def describe_thread(call: str | None, range_name: str | None) -> str:
    """Return a clause about what a launching thread was doing, or "" if unknown.

    Args:
        call: CUDA call that the thread was in, or None.
        range_name: Range that the thread was in, or None.
    """
    in_range = f" inside {truncate_name(range_name)!r}" if range_name else ""
    call = truncate_name(call) if call else None
    if call:
        return f"the launching thread is in {call}{in_range}"
    return f"the launching thread is{in_range} but not in an API call" if in_range else ""


def find_host_activity(report: Report, row: int) -> tuple[str | None, str | None]:
    """Return the names of the CUDA call and range that the host was in during a bubble.

    A name is None if it is unknown.
    """
    names = report.operations.names
    call, range_id = int(report.bubbles.host_call[row]), int(report.bubbles.host_range[row])
    return names[call] if call != NONE else None, names[range_id] if range_id != NONE else None
