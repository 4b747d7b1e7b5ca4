"""Timeline cells: what takes most of each cell of a terminal's timeline, row by row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.count.iterations import Iteration
from bubbleviz.model import intervals
from bubbleviz.model.columns import Ints
from bubbleviz.model.phases import COMPUTE, Phase
from bubbleviz.model.values import frozen
from bubbleviz.render.picture.selection import Selection, select
from bubbleviz.render.rows import RankRow
from bubbleviz.report.report import Report, View

#: What a cell holds beside the phases of COMPUTE, whose codes are smaller.
OTHER_ITERATION, UNATTRIBUTED, BUBBLE, OUTSIDE = 20, 21, 22, 23


@frozen
class CellRow:
    """One row of a timeline.

    Attributes:
        row: the rank that is drawn, with those that it stands for.
        ratio: mean bubble ratio of these; None where it is unknown.
        kinds: what takes most of each cell: the code of a phase, or one of those above.
    """

    row: RankRow
    ratio: float | None
    kinds: Ints


@frozen
class TimelineCells:
    """Some rows of the timeline of an iteration.

    Attributes:
        iteration: which one.
        rows: from top to bottom.
        row_count: how many rows there are.
        span_ns: from the left edge to the right one.
    """

    iteration: Iteration
    rows: tuple[CellRow, ...]
    row_count: int
    span_ns: int


def timeline_selection(report: Report, view: View, iteration: Iteration) -> Selection | None:
    """Return the rows of an iteration, a row a stage where stages are known; None without any."""
    ranks = [rank for rank in report.ranks if not view.ranks or rank.index in view.ranks]
    staged = any(rank.stage is not None for rank in ranks)
    rows = view.rows or ("stage" if staged else "rank")
    at_work = {rank.rank for rank in iteration.ranks}
    selection = select(report, replace(view, iterations=(iteration.index,), rows=rows))
    if selection is None:
        return None
    shown = tuple(row for row in selection.rows if {*row.replicas} & at_work)
    return replace(selection, rows=shown) if shown else None


def cells_of(report: Report, selection: Selection, most_rows: int, columns: int) -> TimelineCells:
    """Return the cells of a selection of one iteration.

    Args:
        report: any report.
        selection: its rows.
        most_rows: rows that are kept: first, last, those with the most and the least bubble, some
            evenly spaced between.
        columns: cells of a row.
    """
    (iteration,), (windows,) = selection.iterations, selection.windows
    ratios = [_ratio(report, iteration, row) for row in selection.rows]
    kept = _kept(ratios, most_rows)
    edges = selection.start_ns + selection.span_ns * np.arange(columns + 1) // columns
    busy = _busy(report, iteration, selection.start_ns, selection.end_ns)
    rows = []
    for at in kept:
        rank = selection.rows[at].rank.index
        window = windows.get(rank, (selection.start_ns, selection.start_ns))
        kinds = _kinds(busy, rank, window, edges)
        rows.append(CellRow(selection.rows[at], ratios[at], kinds))
    return TimelineCells(iteration, tuple(rows), len(ratios), selection.span_ns)


def _ratio(report: Report, iteration: Iteration, row: RankRow) -> float | None:
    name = report.headline
    own = [r.bubble_ratio.get(name) for r in iteration.ranks if r.rank in {*row.replicas}]
    known = [value for value in own if value is not None]
    return sum(known) / len(known) if known and len(known) == len(own) else None


def _kept(ratios: list[float | None], most: int) -> list[int]:
    """Return which rows are kept, ascending."""
    count = len(ratios)
    if count <= most:
        return list(range(count))
    known = sorted((ratio, at) for at, ratio in enumerate(ratios) if ratio is not None)
    kept = {0, count - 1}
    # The busiest rank is the one that others wait for.
    kept |= {known[-1][1], known[0][1]} if known and most >= len(kept) + 2 else set()
    for places in range(most, 1, -1):
        spread = {round(place * (count - 1) / (places - 1)) for place in range(places)}
        if len(kept | spread) <= most:
            return sorted(kept | spread)
    return sorted(kept)


@frozen
class _Busy:
    """When ranks were busy in a time, and with what; rows in any order."""

    rank: Ints
    kind: Ints
    start_ns: Ints
    end_ns: Ints


def _busy(report: Report, iteration: Iteration, start_ns: int, end_ns: int) -> _Busy:
    operations, busy, loose = report.operations, report.busy, report.unattributed
    shown = (busy.end_ns > start_ns) & (busy.start_ns < end_ns)
    row = busy.operation[shown]
    phase = operations.phase[row]
    own = operations.iteration[row] == iteration.index
    kind = np.where(own, phase, OTHER_ITERATION)
    # Communication is no work: where nothing else runs, it is bubble.
    works = np.isin(phase, [int(p) for p in COMPUTE])
    beside = (loose.end_ns > start_ns) & (loose.start_ns < end_ns)
    return _Busy(
        rank=np.concatenate((operations.rank[row][works], loose.rank[beside])),
        kind=np.concatenate((kind[works], np.full(int(beside.sum()), UNATTRIBUTED, np.int64))),
        start_ns=np.concatenate((busy.start_ns[shown][works], loose.start_ns[beside])),
        end_ns=np.concatenate((busy.end_ns[shown][works], loose.end_ns[beside])),
    )


def _kinds(busy: _Busy, rank: int, window: tuple[int, int], edges: Ints) -> Ints:
    """Return what takes most of each cell of a rank; of equals, the first phase."""
    own = busy.rank == rank
    start_ns, end_ns, kind = busy.start_ns[own], busy.end_ns[own], busy.kind[own]
    codes = sorted(set(kind.tolist()))
    low, high = edges[:-1], edges[1:]

    def covered(chosen: intervals.Intervals) -> Ints:
        return intervals.measure_within(chosen, low, high)

    measures = [covered(intervals.union(start_ns, end_ns, kind == code)) for code in codes]
    occupied = intervals.union(start_ns, end_ns)
    counted = (np.array([window[0]], np.int64), np.array([max(window)], np.int64))
    bubble = covered(intervals.difference(counted, occupied))
    outside = high - low - covered(occupied) - bubble
    table = np.stack((*measures, bubble, outside))
    kinds: Ints = np.array([*codes, BUBBLE, OUTSIDE], np.int64)
    most: Ints = kinds[table.argmax(axis=0)]
    return most


def phases_shown(cells: TimelineCells) -> tuple[int, ...]:
    """Return the kinds that any cell holds, ascending: phases first."""
    kinds = {kind for row in cells.rows for kind in np.unique(row.kinds).tolist()}
    return tuple(sorted(kinds - {OUTSIDE}))


def kind_label(kind: int) -> str:
    """Return what a legend calls a kind."""
    called = {OTHER_ITERATION: "other iteration", UNATTRIBUTED: "unattributed", BUBBLE: "bubble"}
    return called.get(kind) or Phase(kind).label
