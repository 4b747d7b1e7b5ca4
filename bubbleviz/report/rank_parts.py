"""Rank parts: groups of whole pipelines, and the part of a report that is theirs.

What is written for very many ranks is written part by part: no more than one is held beside the
report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.operations import RankIntervals
from bubbleviz.report.report import Report

#: Ranks of a part at least, where there are so many; pipelines of more are cut at the most.
_FEWEST_RANKS, _MOST_RANKS = 256, 1024


def rank_groups(
    pipelines: Sequence[int | None], fewest: int, most: int, unknown: int
) -> list[tuple[int, int]]:
    """Return groups of ranks, of whole pipelines, as (first, behind the last).

    Args:
        pipelines: of each rank, which are in order of these; None for unknown ones.
        fewest: pipelines of fewer ranks share a group, of up to so many.
        most: ranks of a group; larger pipelines are cut.
        unknown: ranks of a group where pipelines are not known.
    """
    count = len(pipelines)
    starts = [r for r in range(count) if r == 0 or pipelines[r] != pipelines[r - 1]]
    groups: list[tuple[int, int]] = []
    for first, last in zip(starts, [*starts[1:], count], strict=False):
        size = unknown if pipelines[first] is None else most
        if groups and last - groups[-1][0] <= fewest:
            groups[-1] = (groups[-1][0], last)
        else:
            groups.extend((at, min(at + size, last)) for at in range(first, last, size))
    return groups


def rank_parts(report: Report) -> list[tuple[int, int]]:
    """Return the ranks of each part of a report as (first, behind the last)."""
    pipelines = [rank.pipeline for rank in report.ranks]
    return rank_groups(pipelines, _FEWEST_RANKS, _MOST_RANKS, _FEWEST_RANKS)


def part_of(report: Report, first: int, last: int) -> Report:
    """Return a report with the operations of some ranks alone; all else is the whole's.

    Args:
        report: any report.
        first: of the ranks.
        last: behind the last.
    """
    rows = rows_of_ranks(report.operations.rank, first, last)
    operations, busy = report.operations.take(rows), report.busy
    at_work = busy.take((busy.operation >= rows.start) & (busy.operation < rows.stop))
    collectives = report.collectives
    collectives = collectives.take((collectives.rank >= first) & (collectives.rank < last))
    own = np.where(collectives.operation == NONE, NONE, collectives.operation - rows.start)
    return replace(
        report,
        operations=operations,
        busy=replace(at_work, operation=at_work.operation - rows.start),
        collectives=replace(collectives, operation=own),
        unattributed=_of_ranks(report.unattributed, first, last),
        exposed=_of_ranks(report.exposed, first, last),
        overheads=_of_ranks(report.overheads, first, last),
        pauses=_of_ranks(report.pauses, first, last),
    )


def rows_of_ranks(rank: Ints, first: int, last: int) -> slice:
    """Return the rows of some ranks in a column in order of these."""
    low, high = np.searchsorted(rank, (first, last)).tolist()
    return slice(low, high)


def _of_ranks(times: RankIntervals, first: int, last: int) -> RankIntervals:
    return times.take((times.rank >= first) & (times.rank < last))
