"""Find the causes of waits in an inference run, and trace each wait to the stage that caused it.

A chunk is the work of one step. Every chunk passes through all stages in turn. F6 and F7 below are
forwards of two chunks. The first stage waits for a token: the next step of a request can start only
after the last stage has finished the previous step. Then the host schedules and launches the step.
If the pipeline stays empty for longer than the last chunk took from the first to the last stage, no
request was pending::

    last stage   ── F6 ──┤                             ┌────────── F7
    first stage  ────────┼───────────┬────────┤ F7 ├───┘
                   token │   host    │ other                  or all of it: requests
                         ends     launched

A later stage gets a chunk late if the previous stage got it late. So idle time propagates down the
pipeline together with its cause. A later stage can wait for two other reasons. The previous stage
may take longer for the chunk than this stage (cause "stages"). Or this chunk may take longer than
the last one (cause "chunks").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.count.rank_slices import list_stages_and_pipelines
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.dependencies import Dependencies, Inputs
from bubbleviz.explain.idle import IdleIntervals, split_idle
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints, join_tables
from bubbleviz.model.grouping import find_distinct, find_positions, lookup_values, sort_rows
from bubbleviz.model.operations import Operations, Rank
from bubbleviz.model.phases import Phase

#: Causes of idle time during which the rank may actually be waiting for a token or a request.
_UNDIVIDED = (Cause.HOST, Cause.OTHER)


def explain_forward_waits(
    operations: Operations, ranks: Sequence[Rank], inputs: Inputs, idle: IdleIntervals
) -> tuple[IdleIntervals, Dependencies]:
    """Split the idle intervals of an inference run by causes that occur only in inference.

    The total idle time of each rank does not change.

    Args:
        operations: All operations of an inference run.
        ranks: The ranks, by index.
        inputs: Inputs that operations received from other ranks.
        idle: Idle intervals of all ranks, sorted by (rank, start). All of their causes also occur
            in training runs.

    Returns:
        The idle intervals with their new causes, and the token waits as pairs of an operation and
        the operation whose token it waited for.
    """
    bounds = np.searchsorted(idle.rank, np.arange(len(ranks) + 1)).tolist()
    idle_of_rank = [idle.take(slice(low, high)) for low, high in pairwise(bounds)]
    tokens = []
    stages, pipelines = list_stages_and_pipelines(ranks)
    for rank in sort_rows(stages).tolist():
        if stages[rank] == 0:
            # If the pipeline is unknown, the chunks of any rank may belong to it.
            in_pipeline = (pipelines == pipelines[rank]) | (pipelines[rank] == NONE)
            idle_of_rank[rank], token_waits = _explain_first_stage(
                operations, in_pipeline, inputs, idle_of_rank[rank]
            )
            tokens.append(token_waits)
        idle_of_rank[rank] = _explain_later_stage(
            operations, inputs, idle_of_rank[rank], idle_of_rank
        )
    token_table = join_tables(tokens) if tokens else Dependencies.make_empty()
    return join_tables(idle_of_rank), token_table


@dataclass(frozen=True, eq=False, repr=False)
class _Chunks:
    """The forwards of a pipeline, and the time that each chunk took.

    Attributes:
        rows: Rows of the pipeline's forwards on all stages, sorted by start.
        by_end: Rows of the pipeline's forwards on the last stage, sorted by end.
        length_ns: For each row of ``by_end``, the duration of its chunk in ns, from the start on
            the first stage to the end on the last stage. 0 if the start is unknown.
    """

    rows: Ints
    by_end: Ints
    length_ns: Ints


def _list_chunks(operations: Operations, in_pipeline: Bools) -> _Chunks | None:
    """List the chunks of a pipeline, or return None if the stage of every forward is unknown.

    Only forwards that ran GPU work and whose virtual stage is known are used. The last stage is the
    highest virtual stage among them. A chunk is identified by iteration, microbatch and sequence.

    Args:
        operations: Operations of all ranks.
        in_pipeline: Mask of the ranks in the pipeline.
    """
    is_forward = (operations.phase == Phase.F) & (operations.has_span == 1)
    is_forward &= operations.virtual_stage >= 0
    rows = np.flatnonzero(is_forward & in_pipeline[operations.rank])
    if not len(rows):
        return None
    stage = operations.virtual_stage[rows]
    started, by_end = rows[stage == 0], rows[stage == stage.max()]
    by_end = by_end[sort_rows(operations.end_ns[by_end])]
    keys = operations.iteration, operations.microbatch, operations.sequence
    start_of = lookup_values(
        tuple(key[started] for key in keys), started, tuple(key[by_end] for key in keys)
    )
    length_ns = operations.end_ns[by_end] - operations.start_ns[start_of]
    length_ns = np.where(start_of == NONE, 0, length_ns)
    return _Chunks(rows[sort_rows(operations.start_ns[rows])], by_end, length_ns)


def _explain_first_stage(
    operations: Operations, in_pipeline: Bools, inputs: Inputs, idle: IdleIntervals
) -> tuple[IdleIntervals, Dependencies]:
    """Set the causes TOKEN and REQUESTS in the idle intervals of a rank on the first stage.

    An idle interval can be a wait for a token or a request only if it meets two conditions:

    - Its cause is HOST or OTHER.
    - The operation after it has no known input from another rank.

    :func:`_find_tokens` and :func:`_divide_waits` find the part of each interval that is such a
    wait. The cause of the remaining time does not change.

    Args:
        operations: Operations of all ranks.
        in_pipeline: Mask of the ranks in the same pipeline.
        inputs: Inputs that operations received from other ranks.
        idle: The rank's idle intervals.

    Returns:
        The idle intervals sorted by start, and pairs of an operation and the operation whose token
        it waited for.
    """
    is_wait = (idle.after >= 0) & np.isin(idle.cause, _UNDIVIDED)
    is_wait &= np.append(inputs.ready_ns, 0)[idle.after] == NEVER
    chunks = _list_chunks(operations, in_pipeline)
    if chunks is None or not is_wait.any():
        return idle, Dependencies.make_empty()
    waits = _list_waits(operations, idle.take(is_wait))
    tokens = _find_tokens(operations, chunks, waits)
    has_waited = tokens.has_token & ~tokens.has_no_request & (tokens.time_ns > waits.start_ns)
    return (
        _sort_by_start(idle.take(~is_wait), _divide_waits(waits, tokens)),
        Dependencies(waits.next_operation[has_waited], tokens.producer[has_waited]),
    )


@dataclass(frozen=True, eq=False, repr=False)
class _Waits:
    """Idle intervals during which a rank may wait for a token or a request, one row per interval.

    Attributes:
        pieces: Pieces of the intervals. An interval can have several pieces, so this table can have
            more rows than the other columns.
        interval: Number of the interval, ascending.
        start_ns: Start of the first piece of the interval.
        end_ns: End of the last piece of the interval.
        next_operation: Row of the operation after the interval.
        limit_ns: Latest time at which the token of the interval can have arrived. This is the
            launch of the next operation, clipped to [``start_ns``, ``end_ns``], or ``end_ns`` if
            the launch is unknown.
    """

    pieces: IdleIntervals
    interval: Ints
    start_ns: Ints
    end_ns: Ints
    next_operation: Ints
    limit_ns: Ints


def _list_waits(operations: Operations, pieces: IdleIntervals) -> _Waits:
    """Group a rank's pieces of idle time into idle intervals.

    Pieces that have the same interval number belong to the same interval.

    Args:
        operations: Operations of all ranks.
        pieces: Pieces of idle intervals, each before an operation.
    """
    interval = find_distinct(pieces.interval)
    row_of_piece = np.searchsorted(interval, pieces.interval)
    start_ns, end_ns = intervals.group_extents(
        row_of_piece, len(interval), pieces.start_ns, pieces.end_ns
    )
    next_operation = np.empty(len(interval), np.int64)
    next_operation[row_of_piece] = pieces.after
    launched_ns = operations.launched_ns[next_operation]
    limit_ns = np.where(launched_ns == NONE, end_ns, np.clip(launched_ns, start_ns, end_ns))
    return _Waits(pieces, interval, start_ns, end_ns, next_operation, limit_ns)


@dataclass(frozen=True, eq=False, repr=False)
class _Tokens:
    """The last token that arrived during each wait of the first stage, one row per wait.

    Attributes:
        has_token: Mask of the waits during which a token arrived.
        producer: Row of the forward that produced the token; arbitrary if no token arrived.
        time_ns: Time at which the token arrived, or the start of the wait if no token arrived.
        has_no_request: Mask of the waits during which no request was pending after the token had
            arrived.
    """

    has_token: Bools
    producer: Ints
    time_ns: Ints
    has_no_request: Bools


def _find_tokens(operations: Operations, chunks: _Chunks, waits: _Waits) -> _Tokens:
    """Find the last token that arrived during each wait, and the waits without a pending request.

    A token arrives when a forward on the last stage ends. The token of a wait is the last one that
    arrived at or before ``limit_ns``. If this token arrived before the start of the wait, the wait
    has no token.

    A wait has no pending request if it has a token and two conditions hold:

    1. The pipeline was empty when the token arrived: all forwards on any stage that started before
       the end of the wait had ended by then.
    2. The time from the arrival of the token to ``limit_ns`` exceeds both 1 ns and the time that
       the token's chunk took (:attr:`_Chunks.length_ns`).

    Args:
        operations: Operations of all ranks.
        chunks: Chunks of the pipeline.
        waits: The waits of a rank on the first stage.

    Returns:
        The token of each wait, in the order of ``waits``.
    """
    end_ns = operations.end_ns[chunks.by_end]
    token = np.searchsorted(end_ns, waits.limit_ns, side="right") - 1
    has_token = (token >= 0) & (end_ns[token] >= waits.start_ns)
    time_ns = np.where(has_token, end_ns[token], waits.start_ns)
    is_empty = has_token & (_find_latest_ends(operations, chunks, waits.end_ns) <= time_ns)
    is_long = waits.limit_ns - time_ns > np.maximum(chunks.length_ns[token], 1)
    return _Tokens(has_token, chunks.by_end[token], time_ns, is_empty & is_long)


def _divide_waits(waits: _Waits, tokens: _Tokens) -> IdleIntervals:
    """Split waits at the arrival of their token and at ``limit_ns``, and set their causes.

    - If no request was pending, all time before ``limit_ns`` gets the cause REQUESTS.
    - Otherwise, the time before the arrival of the token gets the cause TOKEN.
    - The cause of all other time does not change.
    """
    pieces = split_idle(waits.pieces, tokens.time_ns, waits.limit_ns)
    row = np.searchsorted(waits.interval, pieces.interval)
    is_before_launch = pieces.start_ns < waits.limit_ns[row]
    is_before_token = tokens.has_token[row] & (pieces.start_ns < tokens.time_ns[row])
    cause = np.where(is_before_token, Cause.TOKEN, pieces.cause)
    cause = np.where(tokens.has_no_request[row] & is_before_launch, Cause.REQUESTS, cause)
    return replace(pieces, cause=cause)


def _find_latest_ends(operations: Operations, chunks: _Chunks, time_ns: Ints) -> Ints:
    """Return the latest end of the forwards that started before each time, or 0 if none did."""
    latest_ns = np.maximum.accumulate(operations.end_ns[chunks.rows])
    n_started = np.searchsorted(operations.start_ns[chunks.rows], time_ns)
    return np.append(latest_ns, 0)[n_started - 1]


def _explain_later_stage(
    operations: Operations,
    inputs: Inputs,
    idle: IdleIntervals,
    idle_of_rank: Sequence[IdleIntervals],
) -> IdleIntervals:
    """Split a rank's waits for the previous stage by what delayed the previous stage.

    A piece of idle time is split if all of the following hold:

    - Its cause is DEPENDENCY, it is outside collectives, and it has no ``peer_operation``.
    - There is an operation before its idle interval.
    - The next operation's input has a known producer.

    :func:`_split_waits` estimates the time of each cause. If the estimates add up to less than the
    wait, the remaining time keeps the cause DEPENDENCY. If they add up to more, all of them are
    scaled down to the length of the wait. Within a wait, causes are ordered by their codes.

    Args:
        operations: Operations of all ranks.
        inputs: Inputs that operations received from other ranks.
        idle: The rank's idle intervals.
        idle_of_rank: Idle intervals of each rank. The intervals of earlier stages are already
            split.

    Returns:
        The idle intervals of the rank, sorted by start.
    """
    producer = np.append(inputs.producer, NONE)[idle.after]
    is_wait = (idle.cause == Cause.DEPENDENCY) & (idle.peer_operation == NONE)
    is_wait &= (idle.collective == NONE) & (producer >= 0) & (idle.before >= 0)
    pieces = idle.take(is_wait)
    if len(pieces) == 0:
        return idle
    _, first, interval_row = np.unique(pieces.interval, return_index=True, return_inverse=True)
    parts_ns = _split_waits(
        operations, pieces.take(first), producer[is_wait][first], idle, idle_of_rank
    )
    length_ns = intervals.group_sum(interval_row, len(first), pieces.end_ns - pieces.start_ns)
    unexplained_ns = np.maximum(length_ns - parts_ns.sum(axis=1), 0)
    parts_ns[:, Cause.DEPENDENCY] += unexplained_ns
    # Scale the parts to the length of the wait.
    until_ns = np.cumsum(parts_ns, axis=1)
    until_ns = np.rint(length_ns[:, None] * (until_ns / until_ns[:, -1:])).astype(np.int64)
    return _sort_by_start(idle.take(~is_wait), _split_by_cause(pieces, interval_row, until_ns))


def _split_waits(
    operations: Operations,
    waits: IdleIntervals,
    source: Ints,
    idle: IdleIntervals,
    idle_of_rank: Sequence[IdleIntervals],
) -> Ints:
    """Estimate the time that each cause contributes to each wait, in ns, shape (waits, causes).

    Suppose that this rank has run F6, and waits for F7 from the previous stage. Then the wait
    follows from the times around it::

        wait = (idle before F7 there) + F7 there - F6 here - (idle before F6 here)

    The last term leaves out idle time with the cause DEPENDENCY. The sum is split into the
    contributions of the causes:

    - Each cause gets the idle time with this cause before F7 on the previous stage. The idle time
      with this cause before F6 on this rank is subtracted, except for DEPENDENCY.
    - STAGES also gets the busy time of F7 on the previous stage minus the busy time of F7 on this
      rank.
    - CHUNKS also gets the busy time of F7 minus the busy time of F6, both on this rank.

    Negative contributions are replaced with 0, so the contributions may not add up to the wait.

    Args:
        operations: Operations of all ranks.
        waits: One piece of each wait. Its ``before`` is F6, and its ``after`` is F7 on this rank.
        source: For each wait, the row of F7 on the previous stage.
        idle: The rank's idle intervals.
        idle_of_rank: Idle intervals of each rank.
    """
    parts_ns = np.zeros((len(waits), len(Cause)), np.int64)
    upstream = operations.rank[source]
    for rank in find_distinct(upstream).tolist():
        is_rank = upstream == rank
        parts_ns[is_rank] = _sum_idle_before(idle_of_rank[rank], source[is_rank])
    parts_ns -= _sum_idle_before(idle.take(idle.cause != Cause.DEPENDENCY), waits.before)
    here_ns = operations.busy_ns[waits.after]
    parts_ns[:, Cause.STAGES] += operations.busy_ns[source] - here_ns
    parts_ns[:, Cause.CHUNKS] += here_ns - operations.busy_ns[waits.before]
    return np.maximum(parts_ns, 0)


def _sum_idle_before(idle: IdleIntervals, operation: Ints) -> Ints:
    """Return the idle time in ns before each operation, by cause, shape (operations, causes).

    The idle time before an operation is the total length of the pieces whose ``after`` is that
    operation.

    Args:
        idle: Idle intervals of one rank.
        operation: Rows of operations. May contain duplicates.
    """
    operations = find_distinct(idle.after)
    # The last row stays 0. Operations that have no idle time before them use this row.
    time_ns = np.zeros((len(operations) + 1, len(Cause)), np.int64)
    row = np.searchsorted(operations, idle.after)
    np.add.at(time_ns, (row, idle.cause), idle.end_ns - idle.start_ns)
    return time_ns[find_positions(operations, operation)]


def _split_by_cause(pieces: IdleIntervals, interval_row: Ints, until_ns: Ints) -> IdleIntervals:
    """Cut idle intervals where the time of each cause ends, and assign each part its cause.

    An interval can consist of several pieces with time between them. The ends in ``until_ns`` do
    not count this time. Time after the end of the last cause is left out.

    Args:
        pieces: Pieces of the intervals, sorted by interval and time.
        interval_row: For each piece, the row of ``until_ns`` that belongs to its interval,
            ascending.
        until_ns: End of each cause in ns since the start of the interval, ascending, shape
            (intervals, causes).
    """
    length_ns = pieces.end_ns - pieces.start_ns
    done_ns = np.cumsum(length_ns) - length_ns
    done_ns -= done_ns[np.searchsorted(interval_row, interval_row)]
    ends_ns = np.clip(until_ns[interval_row] - done_ns[:, None], 0, length_ns[:, None])
    starts_ns = np.concatenate((np.zeros((len(pieces), 1), np.int64), ends_ns[:, :-1]), axis=1)
    row, cause = np.nonzero(ends_ns > starts_ns)
    parts = pieces.take(row)
    return replace(
        parts,
        start_ns=parts.start_ns + starts_ns[row, cause],
        end_ns=parts.start_ns + ends_ns[row, cause],
        cause=cause.astype(np.int64),
    )


def _sort_by_start(*parts: IdleIntervals) -> IdleIntervals:
    """Concatenate tables of pieces of one rank, and sort the pieces by start."""
    pieces = join_tables(parts)
    return pieces.take(sort_rows(pieces.start_ns))
