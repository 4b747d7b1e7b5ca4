"""Token order: which steps of a run that only goes forward follow the token of another step.

The pipeline holds a limited number of chunks at a time. The next one starts once the token of
another came back. With one more chunk in flight it would need the token of the chunk before::

    last stage    ── F0 ──── F1 ──── F2 ──
                          └──────┐└──────┐
    first stage                  F3      F4          with one more: F4 after F1

A step that waited for no token would wait for one if the pipeline were faster. So every step
follows the token that leaves as many chunks in flight as there ever were.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.model.columns import Ints, join_tables
from bubbleviz.model.grouping import find_distinct
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import Phase


def all_token_waits(operations: Operations, tokens: Dependencies, more: int = 0) -> Dependencies:
    """Return for which tokens steps wait with some more chunks in flight than there were.

    Args:
        operations: of all ranks.
        tokens: which operations waited for which; without any, no number of chunks is a limit.
        more: chunks in flight beyond those that there were.
    """
    waits = []
    for first, last in _pairs_of_ranks(operations, tokens):
        begun, ended = _chunks(operations, first), _chunks(operations, last)
        number = np.arange(len(begun))
        done = np.searchsorted(operations.end_ns[ended], operations.start_ns[begun], side="right")
        most = int((number + 1 - done).max())
        token = number - most - more
        some = (token >= 0) & (token < len(ended))
        waits.append(Dependencies(begun[some], ended[token[some]]))
        own = tokens.take(operations.rank[tokens.after] == first)
        at = np.searchsorted(ended, own.before) - more
        waits.append(Dependencies(own.after[at >= 0], ended[at[at >= 0]]))
    return join_tables(waits) if waits else tokens


def usual_depth(operations: Operations, tokens: Dependencies) -> int:
    """Return how many chunks were in flight where steps waited for tokens (median); 0 for none."""
    if not len(tokens):
        return 0
    depths = []
    for first, last in _pairs_of_ranks(operations, tokens):
        own = tokens.take(operations.rank[tokens.after] == first)
        begun = np.searchsorted(_chunks(operations, first), own.after)
        depths.append(begun - np.searchsorted(_chunks(operations, last), own.before))
    depth = np.sort(np.concatenate(depths))
    return int(depth[(len(depth) - 1) // 2])


def _pairs_of_ranks(operations: Operations, tokens: Dependencies) -> list[tuple[int, int]]:
    """Return each rank that waited for tokens, and the one that gave them last."""
    first = operations.rank[tokens.after]
    return [
        (rank, int(operations.rank[tokens.before[first == rank]].max()))
        for rank in find_distinct(first).tolist()
    ]


def _chunks(operations: Operations, rank: int) -> Ints:
    """Return the rows of a rank's chunks, in the order of their starts."""
    own = operations.rank == rank
    return np.flatnonzero(own & (operations.phase == Phase.F) & (operations.has_span == 1))
