"""Find the steps of an inference run that have to wait for another step's token.

The number of chunks in flight is limited: a new chunk starts once the token of an earlier chunk has
been returned. In the figure, F3 waits for the token of F0, and F4 waits for the token of F1. If one
more chunk were in flight, F4 would wait for the token of F0::

    last stage    ── F0 ──── F1 ──── F2 ──
                          └──────┐└──────┐
    first stage                  F3      F4

Steps that did not wait for a token would have to wait if they started earlier. So in a replay, a
step waits for a token whenever the number of chunks in flight would otherwise exceed the largest
number that was observed.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.model.columns import Ints, join_tables
from bubbleviz.model.grouping import find_distinct
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import Phase


def list_token_waits(operations: Operations, tokens: Dependencies, n_more: int = 0) -> Dependencies:
    """List which steps have to wait for which tokens if the number of chunks in flight is limited.

    The limit is the largest number of chunks that were in flight on a pipeline, plus ``n_more``.
    There are two kinds of waits:

    - Step k of the first stage waits for the token of chunk k - limit.
    - A step that did wait for the token of chunk j in the measured run waits for the token of chunk
      j - ``n_more``.

    Waits for chunks that do not exist are left out.

    Args:
        operations: Operations of all ranks.
        tokens: Operations that waited for a token, and the operations that produced it. If there
            are none, the number of chunks in flight is not limited, and an empty table is returned.
        n_more: Number of chunks in flight to allow beyond the largest observed number.

    Returns:
        Pairs of a step on the first stage and the step on the last stage whose token it needs. A
        pair can occur twice.
    """
    waits = []
    for first_rank, last_rank in _pair_ranks(operations, tokens):
        started, by_end = _list_chunks(operations, first_rank), _list_chunks(operations, last_rank)
        number = np.arange(len(started))
        n_ended = np.searchsorted(
            operations.end_ns[by_end], operations.start_ns[started], side="right"
        )
        max_in_flight = int((number + 1 - n_ended).max())
        token = number - max_in_flight - n_more
        is_needed = (token >= 0) & (token < len(by_end))
        waits.append(Dependencies(started[is_needed], by_end[token[is_needed]]))
        observed = tokens.take(operations.rank[tokens.successor] == first_rank)
        token = np.searchsorted(by_end, observed.predecessor) - n_more
        waits.append(Dependencies(observed.successor[token >= 0], by_end[token[token >= 0]]))
    return join_tables(waits) if waits else tokens


def compute_usual_depth(operations: Operations, tokens: Dependencies) -> int:
    """Return how many chunks were usually in flight when a step waited for a token.

    The result is the lower median over all waits. If step i of the first stage waited for the token
    of chunk j, i - j chunks were in flight. The result is 0 if no step waited for a token.

    Args:
        operations: Operations of all ranks.
        tokens: Operations that waited for a token, and the operations that produced it.
    """
    if not len(tokens):
        return 0
    depths = []
    for first_rank, last_rank in _pair_ranks(operations, tokens):
        of_rank = tokens.take(operations.rank[tokens.successor] == first_rank)
        n_started = np.searchsorted(_list_chunks(operations, first_rank), of_rank.successor)
        n_ended = np.searchsorted(_list_chunks(operations, last_rank), of_rank.predecessor)
        depths.append(n_started - n_ended)
    depth = np.sort(np.concatenate(depths))
    return int(depth[(len(depth) - 1) // 2])


def _pair_ranks(operations: Operations, tokens: Dependencies) -> list[tuple[int, int]]:
    """Return (first_rank, last_rank) for each rank that waited for tokens, in ascending order.

    ``last_rank`` is the rank that produced tokens for ``first_rank``. If several ranks did, the
    rank with the highest index is used.
    """
    first = operations.rank[tokens.successor]
    return [
        (rank, int(operations.rank[tokens.predecessor[first == rank]].max()))
        for rank in find_distinct(first).tolist()
    ]


def _list_chunks(operations: Operations, rank: int) -> Ints:
    """Return the rows of a rank's forwards, sorted by start."""
    is_forward = (operations.phase == Phase.F) & (operations.has_span == 1)
    return np.flatnonzero((operations.rank == rank) & is_forward)
