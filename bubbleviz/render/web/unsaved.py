"""Collects numbers for the interactive page that a saved report does not contain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.explain.chunk_costs import find_costed_rows
from bubbleviz.model.columns import Ints
from bubbleviz.report.rank_means import MANY_RANKS, is_many_ranks
from bubbleviz.report.report import Report

#: Maximum number of stages for which prompt chunks are drawn.
_MAX_STAGES = 64
#: Maximum number of chunks per stage for which every chunk is drawn.
#: If there are more, at most one chunk is drawn in each cell of a grid over tokens and times.
#: The grid has ``_GRID`` x ``_GRID`` cells, which are smaller than a dot.
_MAX_CHUNKS = 1000
_GRID = 128
_MANY = (
    f"Slowdowns take a long time to compute for more than {MANY_RANKS} ranks. To see them, "
    "run: bubbleviz analyze RUN -v slowdown, or -o FILE.json."
)


@dataclass(frozen=True)
class ChunkTimes:
    """Measured prompt chunks of one virtual stage.

    Attributes:
        virtual_stage: Index of the virtual stage, or -1 if unknown.
        tokens: Number of tokens in each chunk.
        busy_ns: Busy time of each chunk in ns.
    """

    virtual_stage: int
    tokens: list[int]
    busy_ns: list[int]


@dataclass(frozen=True)
class UnsavedNumbers:
    """Numbers that the interactive page shows in addition to the JSON report.

    Attributes:
        chunk_times: Measured prompt chunks on each virtual stage whose chunk costs were fitted.
        no_slowdowns: Reason why the page shows no slowdowns, or "" if it shows them or the reason
            is unknown.
    """

    chunk_times: tuple[ChunkTimes, ...] = ()
    no_slowdowns: str = ""


def collect_unsaved_numbers(report: Report) -> UnsavedNumbers:
    """Collect the numbers on the interactive page that are not in the JSON report."""
    return UnsavedNumbers(
        chunk_times=_list_chunk_times(report),
        no_slowdowns=_explain_no_slowdowns(report),
    )


def _explain_no_slowdowns(report: Report) -> str:
    """Return the reason why the page shows no slowdowns.

    The result is "" if the page shows slowdowns, or if the reason is unknown.
    """
    if is_many_ranks(len(report.ranks)):
        return _MANY
    source = report.explanation.slowdown_source
    if source is None or report.slowdowns is not None:
        return ""
    return source.reason


def _list_chunk_times(report: Report) -> tuple[ChunkTimes, ...]:
    """Return the measured prompt chunks on each virtual stage whose chunk costs were fitted.

    At most ``_MAX_STAGES`` stages are returned. If a stage has very many chunks, a sample is
    returned; see :func:`_select_sample`.
    """
    operations = report.operations
    is_averaged = np.array([iteration.averaged for iteration in report.iterations], bool)
    rows = find_costed_rows(operations, is_averaged)
    stages = [cost.virtual_stage for cost in report.explanation.chunk_costs[:_MAX_STAGES]]
    times = []
    for stage in stages:
        of_stage = rows[operations.virtual_stage[rows] == stage]
        tokens, busy_ns = operations.tokens[of_stage], operations.busy_ns[of_stage]
        sample = _select_sample(tokens, busy_ns)
        times.append(ChunkTimes(stage, tokens[sample].tolist(), busy_ns[sample].tolist()))
    return tuple(times)


def _select_sample(tokens: Ints, busy_ns: Ints) -> Ints:
    """Choose the prompt chunks to draw in a plot of busy time against tokens.

    If there are at most ``_MAX_CHUNKS`` chunks, all of them are drawn. Otherwise, the plot is
    divided into ``_GRID`` x ``_GRID`` cells from 0 to the maximum of each axis. Only the first
    chunk in each cell is drawn.

    Args:
        tokens: Number of tokens in each chunk.
        busy_ns: Busy time of each chunk in ns.

    Returns:
        Indices of the chosen chunks, ascending.
    """
    if len(tokens) <= _MAX_CHUNKS:
        return np.arange(len(tokens))
    column = tokens * (_GRID - 1) // max(int(tokens.max()), 1)
    line = busy_ns * (_GRID - 1) // max(int(busy_ns.max()), 1)
    _, first_row = np.unique(column * _GRID + line, return_index=True)
    return np.sort(first_row)
